"""Privacy amounts as exact numbers, for budgets and the costs of queries.

Sums and comparisons use fractions. A float counts as its shortest decimal, so ten charges of 0.1 are exactly 1.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from numbers import Rational
from operator import add, sub
from typing import Any, NamedTuple, TypeVar

from dpkernels.decimals import rational

_LARGEST = Fraction(sys.float_info.max)
_MOST_DIGITS = 400  # after the point, of an amount that is printed in full


class EpsilonDelta(NamedTuple):
    """An (epsilon, delta), exact."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"epsilon {printed(self.epsilon)}, delta {printed(self.delta)}"


class Rho(NamedTuple):
    """The rho of zCDP, exact."""

    rho: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"rho {printed(self.rho)}"


Amounts = TypeVar("Amounts", EpsilonDelta, Rho)


def amount(name: str, value: Any) -> Fraction:
    """Return a number of at least 0 as a fraction: a float as the decimal it prints as, other numbers as they are.

    Raises:
        TypeError: not a number.
        ValueError: negative, infinite or NaN.
    """
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name}: {value!r} is not a number")
    # A fraction keeps its exact value, of which a float would be a rounding.
    exact = Fraction(int(value.numerator), int(value.denominator)) if isinstance(value, Rational) else None
    number = float(value) if exact is None else exact
    if not 0 <= number <= sys.float_info.max:
        raise ValueError(f"{name}: {value} is not a finite number of at least 0")
    return rational(float(number)) if exact is None else exact


def asked(epsilon: Any, delta: Any = 0) -> EpsilonDelta:
    """Return what a charge costs.

    Args:
        epsilon: a number, or a certificate or a mechanism, whose claimed epsilon and delta count. Pure ones have
            delta 0.
        delta: a number. It is not given with a certificate.

    Raises:
        TypeError: not numbers, or a delta beside a certificate's.
        ValueError: negative, infinite or NaN.
    """
    if hasattr(epsilon, "epsilon"):
        if delta:
            raise TypeError(f"delta: {delta!r} is given beside that of a {type(epsilon).__name__}")
        epsilon, delta = epsilon.epsilon, getattr(epsilon, "delta", 0)
    return EpsilonDelta(amount("epsilon", epsilon), amount("delta", delta))


def budgeted(epsilon: Any, delta: Any = 0) -> EpsilonDelta:
    """Return a budget.

    Raises:
        TypeError: not numbers.
        ValueError: epsilon is not positive and finite, or delta not in [0, 1).
    """
    budget = EpsilonDelta(amount("epsilon", epsilon), amount("delta", delta))
    if budget.epsilon == 0:
        raise ValueError("epsilon: a budget of 0 allows no charge")
    if budget.delta >= 1:
        raise ValueError(f"delta: {delta} is not below 1; such a budget has no guarantee")
    return budget


def plus(one: Amounts, other: Amounts) -> Amounts:
    """Return the sum: basic composition."""
    return type(one)(*map(add, one, other))


def minus(one: Amounts, other: Amounts) -> Amounts:
    """Return the difference."""
    return type(one)(*map(sub, one, other))


def printed(amount: Fraction) -> str:
    """Return an amount in decimals, exactly, or with "about" where its decimals do not end."""
    near = float(min(amount, _LARGEST))
    if rational(near) == amount:
        return repr(near).removesuffix(".0")
    for places in range(_MOST_DIGITS + 1):
        if 10**places % amount.denominator == 0:
            digits = str(amount.numerator * (10**places // amount.denominator)).rjust(places + 1, "0")
            return f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return f"about {near:.9g}"
