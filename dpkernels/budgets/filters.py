"""Budgets over several queries: a filter, which refuses charges that would exceed it, and an odometer, which counts.

Amounts are exact: sums and comparisons use fractions. A float of 64 bits counts as its shortest decimal, so ten charges
of 0.1 are exactly 1. Certificates are verified for the same decimal. All other numbers count as their exact value:
integers, fractions, decimals, and floats of other widths. The guarantees of all charged queries must use the same
neighbouring relation. Every query, with its epsilon and delta, may be chosen after seeing the outputs of the earlier
ones. The data may be accessed only through charged queries. These objects exist in one process; ``ledger.Ledger`` is
persistent.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from operator import add, sub
from typing import Any, Generic, NamedTuple, TypeVar

from dpkernels.decimals import rational
from dpkernels.proven import proven

_MAX_FLOAT = Fraction(sys.float_info.max)  # The largest float: greater amounts are refused.
_MAX_DIGITS = 400  # after the point, of an amount that is printed in full
_MAX_PLACES = 1000  # after the point, of a Decimal: the fraction of one with a huge exponent would fill the memory


class EpsilonDelta(NamedTuple):
    """An (epsilon, delta), exact."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"epsilon {format_amount(self.epsilon)}, delta {format_amount(self.delta)}"

    def __repr__(self) -> str:
        return f"EpsilonDelta(epsilon={format_amount(self.epsilon)}, delta={format_amount(self.delta)})"


class Rho(NamedTuple):
    """The rho of zCDP, exact."""

    rho: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"rho {format_amount(self.rho)}"


Amounts = TypeVar("Amounts", EpsilonDelta, Rho)


def amount(name: str, value: object) -> Fraction:
    """Return a finite number of at least 0 as a fraction: a float as the decimal it prints as, others as they are."""
    # An array without axes, such as a number of JAX, holds a scalar of NumPy.
    number = value.__array__()[()] if hasattr(value, "__array__") and not getattr(value, "mask", False) else value
    with suppress(ValueError, ArithmeticError):  # of NaN and infinities
        if (exact := _exact(number)) is None:
            raise TypeError(f"{name}: {value!r} is not a number of a type whose exact value is known")
        if 0 <= exact <= _MAX_FLOAT:
            return exact
    raise ValueError(f"{name}: {value} is not a finite number of at least 0, with up to {_MAX_PLACES} decimal places")


def _exact(number: Any) -> Fraction | None:
    """Return the value of a number, of a float the decimal it prints as; None if the type does not state a value."""
    if isinstance(number, bool):
        return None
    if isinstance(number, float):
        return rational(number)
    if isinstance(number, Rational):
        return Fraction(int(number.numerator), int(number.denominator))
    if isinstance(number, Decimal) and number.is_finite() and abs(int(number.as_tuple().exponent)) > _MAX_PLACES:
        raise ValueError
    if getattr(getattr(number, "dtype", None), "kind", "") == "V":  # bfloat16 and others that a float holds exactly
        number = float(number)
    return Fraction(*map(int, number.as_integer_ratio())) if hasattr(number, "as_integer_ratio") else None


def parse_charge(epsilon: Any, delta: object = 0) -> EpsilonDelta:
    """Return the cost of a charge: two numbers, or the claimed epsilon and delta of a certificate or a mechanism."""
    if not hasattr(epsilon, "epsilon"):
        return EpsilonDelta(amount("epsilon", epsilon), amount("delta", delta))
    if delta:
        raise TypeError(f"delta: {delta!r} is given beside that of a {type(epsilon).__name__}")
    if getattr(epsilon, "batch_shape", ()):
        return composed_claims(*epsilon.claims_of_entries())
    # A mechanism that reports several coordinates of a vector costs their sum, of which its own epsilon is a rounding.
    reports, claim = getattr(epsilon, "sampled", 1), epsilon.coordinate if hasattr(epsilon, "sampled") else epsilon
    return EpsilonDelta(reports * _claimed("epsilon", claim.epsilon), _claimed("delta", getattr(claim, "delta", 0)))


def composed_claims(epsilons: Any, deltas: Any) -> EpsilonDelta:
    """Return the sums of the claims of a batch's entries, exactly: basic composition; equal claims are counted.

    ``epsilons`` and ``deltas`` are NumPy arrays, which need no import here: a ledger by itself loads no NumPy.
    """
    totals = []
    for name, values in (("epsilon", epsilons), ("delta", deltas)):
        counts = Counter(values.ravel().tolist())
        totals.append(sum((count * amount(name, number) for number, count in counts.items()), Fraction(0)))
    return EpsilonDelta(*totals)


def _claimed(name: str, value: float) -> Fraction:
    """Return a mechanism's parameter, or the float64 that its certificate is for, where that is larger."""
    return max(amount(name, value), rational(value))


def parse_budget(epsilon: object, delta: object = 0) -> EpsilonDelta:
    """Return a budget; epsilon must be positive and finite, and delta in [0, 1)."""
    budget = EpsilonDelta(amount("epsilon", epsilon), amount("delta", delta))
    if budget.epsilon == 0:
        raise ValueError("epsilon: a budget of 0 allows no charge")
    if budget.delta >= 1:
        raise ValueError(f"delta: {delta} is not below 1; such a budget has no guarantee")
    return budget


def plus(amounts: Amounts, other: Amounts) -> Amounts:
    """Return the sum: basic composition."""
    return type(amounts)(*map(add, amounts, other))


def minus(amounts: Amounts, other: Amounts) -> Amounts:
    """Return the difference."""
    return type(amounts)(*map(sub, amounts, other))


def format_amount(amount: Fraction) -> str:
    """Return an amount in decimals, exactly, or with "about" where its decimals do not end."""
    nearest = float(min(amount, _MAX_FLOAT))
    if rational(nearest) == amount:
        return repr(nearest).removesuffix(".0")
    for decimals in range(_MAX_DIGITS + 1):
        if 10**decimals % amount.denominator == 0:
            digits = str(amount.numerator * (10**decimals // amount.denominator)).rjust(decimals + 1, "0")
            return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
    return f"about {nearest:.9g}"


class Charge(NamedTuple, Generic[Amounts]):
    """The cost of one query, with a description of it."""

    amounts: Amounts
    label: str


class BudgetExceeded(ValueError):  # noqa: N818 - it is not the caller's misuse
    """A charge was refused and not made; the query must not run.

    ``budget`` is the whole budget, ``spent`` the sum of the earlier charges, and ``asked`` the refused amounts.
    """

    def __init__(self, budget: Any, spent: Any, asked: Any, where: str = "") -> None:
        super().__init__(budget, spent, asked, where)
        self.budget, self.spent, self.asked, self.where = budget, spent, asked, where

    @property
    def left(self) -> Any:
        """Return what was left of the budget when the charge was refused."""
        return minus(self.budget, self.spent)

    def __str__(self) -> str:
        facts = f"asked for {self.asked}; left {self.left} (budget {self.budget}; spent {self.spent})"
        return f"{self.where}the budget would be exceeded: {facts}; nothing was charged"


def check(budget: Amounts, spent: Amounts, charge: Amounts, where: str = "") -> None:
    """Raise ``BudgetExceeded`` for a charge that exceeds the rest of the budget."""
    if min(minus(budget, plus(spent, charge))) < 0:
        raise BudgetExceeded(budget, spent, charge, where)


class _Charged(Generic[Amounts]):
    """An object that is charged, with a lock that makes checking and charging atomic.

    Two copies would spend the budget twice. So it cannot be copied or pickled, and a process that was forked afterwards
    cannot charge it.
    """

    def __init__(self, zero: Amounts, budget: Amounts | None = None) -> None:
        self._process = os.getpid()
        self._spent: Amounts = zero
        self._charges: list[Charge[Amounts]] = []
        self._budget: Amounts | None = budget
        self._lock = threading.Lock()

    @property
    def spent(self) -> Amounts:
        """Return the sum of the charges."""
        return self._spent

    @property
    def charges(self) -> tuple[Charge[Amounts], ...]:
        """Return every charge, the first first."""
        return tuple(self._charges)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise TypeError(
            f"{type(self).__name__}: cannot be copied, because a copy would not count the charges of the other"
        )

    def check_process(self) -> None:
        """Raise a RuntimeError in a process that was forked after this object was made: it is a copy there."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{type(self).__name__}: was made before this process was forked, and does not count the charges of "
                "the other process; use a Ledger, which processes share"
            )

    def _charge(self, amounts: Amounts, label: str) -> Charge[Amounts]:
        self.check_process()
        with self._lock:
            if self._budget is not None:
                check(self._budget, self._spent, amounts)
            # The sum is updated first, so that an interruption never loses a granted charge.
            self._spent = plus(self._spent, amounts)
            self._charges.append(charge := Charge(amounts, label))
            return charge


class _Limited(_Charged[Amounts]):
    """An object with a budget."""

    budget: Amounts

    @property
    def left(self) -> Amounts:
        """Return the budget less the charges."""
        return minus(self.budget, self.spent)


class _ByEpsilonDelta(_Charged[EpsilonDelta]):
    def charge(self, epsilon: object, delta: object = 0, label: str = "") -> Charge[EpsilonDelta]:
        """Charge a query. Run the query only after this returns.

        ``epsilon`` is a number, or a certificate or mechanism that has both, for one report of it. To charge all that a
        release says about one person, use ``perturb(..., ledger=...)``.

        Raises:
            BudgetExceeded: the charge exceeds the rest of a budget and was not made.
            TypeError: not numbers.
            ValueError: an amount that is negative, infinite or NaN.
        """
        return self._charge(parse_charge(epsilon, delta), label)


@proven("filters#proof")
class Filter(_Limited[EpsilonDelta], _ByEpsilonDelta):
    """A privacy filter: an (epsilon, delta) budget fixed in advance, and charges that never exceed it.

    Guarantee: if every query is charged before it runs, and no refused query runs, all outputs together are
    (epsilon, delta)-DP. Each query and its cost may depend on the earlier outputs, and so may the time to stop. Sums of
    epsilon and of delta suffice by the basic filter of Rogers, Roth, Ullman & Vadhan 2016. Advanced composition for
    costs fixed in advance is not valid here. Threads may share a filter.

    Raises:
        TypeError: not numbers.
        ValueError: epsilon not positive and finite; delta not in [0, 1).

    Example:
        >>> budget = Filter(1.0)
        >>> charges = [budget.charge(0.1) for _ in range(10)]
        >>> print(budget.left)
        epsilon 0, delta 0
    """

    def __init__(self, epsilon: object, delta: object = 0) -> None:
        self.budget = parse_budget(epsilon, delta)
        super().__init__(EpsilonDelta(), self.budget)


@proven("filters#proof")
class ConcentratedFilter(_Limited[Rho]):
    """A privacy filter for zCDP: a budget rho fixed in advance, and charges that never exceed it.

    The guarantee is that of ``Filter`` with rho-zCDP in place of (epsilon, delta)-DP; each charge may depend on earlier
    outputs (Feldman & Zrnic 2021, for every Renyi order; Whitehouse, Ramdas, Rogers & Wu 2023).
    ``concentrated.best_epsilon(rho, delta)`` of the whole budget, at a delta fixed in advance, is the corresponding
    epsilon. The filter is for pure zCDP, without the delta of approximate zCDP.

    Raises:
        TypeError: rho is not a number.
        ValueError: rho is not positive and finite.
    """

    def __init__(self, rho: object) -> None:
        self.budget = Rho(amount("rho", rho))
        super().__init__(Rho(), self.budget)
        if self.budget.rho == 0:
            raise ValueError("rho: a budget of 0 allows no charge")

    def charge(self, rho: object, label: str = "") -> Charge[Rho]:
        """Charge a query. Run the query only after this returns. The errors are those of ``Filter.charge``."""
        return self._charge(Rho(amount("rho", rho)), label)


@proven("filters#proof")
class Odometer(_ByEpsilonDelta):
    """A privacy odometer: running totals without a budget, which never refuse a charge.

    Guarantee for pure queries (delta 0), at any time: the probabilities of the outputs so far under neighbouring data
    differ by a factor of at most e^spent.epsilon, even if every cost was chosen from the earlier outputs.

    Guarantee with deltas: for every (E, D) fixed in advance, the outputs up to the last moment at which the totals were
    at most (E, D) are (E, D)-DP. If costs or the time to stop depend on outputs, the totals are random, and the outputs
    are not "(spent.epsilon, spent.delta)-DP": only the largest possible value of the totals is a guarantee. With
    basic composition the totals may be read at any time; sharper compositions would need more (Rogers et al. 2016).
    """

    def __init__(self) -> None:
        super().__init__(EpsilonDelta())
