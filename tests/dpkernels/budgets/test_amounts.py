"""Every number that enters a charge or a budget counts as its exact value, against sums of fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.budgets.filters import BudgetExceeded, Filter, Odometer, amount, parse_charge
from dpkernels.budgets.ledger import Ledger
from dpkernels.cli.options import NumberList


def numbers(source: Random) -> tuple[Any, Fraction]:
    """A number of a random type and size, and its exact value; a float of 64 bits is the decimal it prints as."""
    value = source.uniform(0.1, 1) * 10.0 ** -source.randrange(8)
    digits = "".join(source.choices("0123456789", k=source.randrange(1, 40)))
    fraction = Fraction(source.randrange(1, 10**9), source.randrange(1, 10**9))
    wide = np.longdouble(value) + np.longdouble(value) * np.longdouble(2.0**-60)
    return source.choice(
        [
            (value, Fraction(repr(value))),
            (np.float64(value), Fraction(repr(value))),
            (np.asarray(value), Fraction(repr(value))),
            (np.float32(value), Fraction(float(np.float32(value)))),
            (np.asarray(value, np.float32), Fraction(float(np.float32(value)))),
            (np.float16(value), Fraction(float(np.float16(value)))),
            (jnp.float32(value), Fraction(float(np.float32(value)))),
            (jnp.bfloat16(value), Fraction(float(jnp.bfloat16(value)))),
            (wide, Fraction(*map(int, wide.as_integer_ratio()))),
            (Decimal(f"0.{digits}"), Fraction(int(digits), 10 ** len(digits))),
            (fraction, fraction),
            (np.asarray(fraction, object), fraction),
            *((kind(3), Fraction(3)) for kind in (int, np.int8, np.uint64, jnp.int32)),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_charges_and_totals_are_those_of_fractions(seed: int) -> None:
    """A budget of exactly the total pays for all charges, and one that is less by 1e-60 does not pay for the last."""
    source, odometer = Random(f"amounts {seed}"), Odometer()
    pairs = [(numbers(source), numbers(source)) for _ in range(60)]
    for (epsilon, exact_epsilon), (delta, exact_delta) in pairs:
        charge = odometer.charge(epsilon, delta)
        assert charge.amounts == (exact_epsilon, exact_delta), (type(epsilon), epsilon, type(delta), delta)
    total = sum(exact for (_, exact), _ in pairs)
    assert odometer.spent == (total, sum(exact for _, (_, exact) in pairs))
    whole, less = Filter(total), Filter(total - Fraction(1, 10**60))
    for (epsilon, _), _ in pairs[:-1]:
        whole.charge(epsilon)
        less.charge(epsilon)
    whole.charge(pairs[-1][0][0])
    assert whole.left.epsilon == 0
    with pytest.raises(BudgetExceeded):
        less.charge(pairs[-1][0][0])


@pytest.mark.parametrize("more", [Decimal("0.1000000000000000055"), np.longdouble("0.1"), np.float32(0.1)])
def test_ten_charges_of_more_than_a_tenth_exceed_one(tmp_path: Path, more: Any) -> None:
    for budget in (Filter(1), Ledger.create(tmp_path / "a", 1)):
        for _ in range(9):
            budget.charge(more)
        with pytest.raises(BudgetExceeded):
            budget.charge(more)


def test_a_budget_is_not_rounded_up(tmp_path: Path) -> None:
    """Floats would read each of these as 1."""
    for less in (
        Decimal("0.99999999999999999"),
        NumberList(number=Decimal).convert("0.99999999999999999", None, None)[0],
    ):
        for budget in (Filter(less), Ledger.create(tmp_path / "a", less)):
            with pytest.raises(BudgetExceeded):
                budget.charge(1)


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), np.ma.masked, np.str_("1"), np.complex64(1), np.array([0.1]), jnp.ones(1), {}, b"1"]
)
def test_what_has_no_exact_value_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"epsilon: .* is not a number of a type whose exact value is known"):
        amount("epsilon", value)


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "0e-999999999", "sNaN", "-1e-400", "inf"])
def test_decimals_out_of_range_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"epsilon: .* is not a finite number of at least 0"):
        amount("epsilon", Decimal(text))


@pytest.mark.parametrize("sampled", [2, 3, 5, 7])
def test_a_vector_costs_the_sum_of_its_coordinates(sampled: int) -> None:
    """The product of floats may be below it: 3 times 0.7 is 2.0999999999999996."""
    coordinate = dpk.duchi(epsilon=0.7, lower=-1.0, upper=1.0)
    vector = dpk.Multivariate(coordinate, 0.0, 1.0, 9, sampled)
    assert parse_charge(vector).epsilon == sampled * Fraction("0.7")
    assert parse_charge(dpk.exact_sampler(vector).certificate) == parse_charge(vector)


@pytest.mark.parametrize("epsilon", [0.7, np.float32(0.7), np.float32(0.3), np.longdouble("0.7"), jnp.float32(0.3)])
def test_a_mechanism_costs_at_least_what_its_release_is_certified_for(epsilon: Any) -> None:
    mechanism = dpk.duchi(epsilon=epsilon, lower=0.0, upper=1.0)
    assert parse_charge(mechanism) >= parse_charge(dpk.exact_sampler(mechanism).certificate)
