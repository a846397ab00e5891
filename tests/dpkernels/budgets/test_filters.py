"""Filters and odometers: exact sums, refusals that charge nothing, and what they promise adaptive analysts."""

from __future__ import annotations

import copy
import doctest
import math
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpkernels as dpk
from accountants import calibrate
from dpkernels.budgets import filters
from dpkernels.budgets.filters import (
    BudgetExceeded,
    ConcentratedFilter,
    EpsilonDelta,
    Filter,
    Odometer,
    Rho,
    amount,
    format_amount,
    parse_budget,
    parse_charge,
)

# Amounts


def decimals(source: random.Random) -> Iterator[float]:
    """Prices as people type them."""
    while True:
        yield round(source.uniform(0, 1), source.randrange(1, 12)) * 10.0 ** -source.randrange(6)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (0.1, "1/10"),
        (1e-6, "1/1000000"),
        (np.float64(0.3), "3/10"),
        (np.int64(7), "7"),
        (3, "3"),
        (Fraction(1, 3), "1/3"),
        (Decimal("0.25"), "1/4"),
        (5e-324, f"5/{10**324}"),
        (-0.0, "0"),
    ],
)
def test_amounts_are_the_decimals_they_print_as(value: Any, exact: str) -> None:
    assert amount("epsilon", value) == Fraction(exact)


@pytest.mark.parametrize(
    "value", [-0.1, -1, Fraction(-1, 3), math.nan, math.inf, 10**400, Decimal("nan"), Decimal("1e999")]
)
def test_amounts_that_are_none(value: Any) -> None:
    with pytest.raises(ValueError, match=r"epsilon: .* is not a finite number of at least 0"):
        amount("epsilon", value)


@pytest.mark.parametrize("value", ["0.1", None, abs, 1j, [0.1]])
def test_what_is_not_a_number(value: Any) -> None:
    with pytest.raises(TypeError, match=r"epsilon: .* is not a number"):
        amount("epsilon", value)


def test_printed_amounts_read_back() -> None:
    prices = decimals(random.Random(1))
    for _ in range(2000):
        value = amount("x", next(prices)) * random.Random(2).randrange(1, 1000)
        assert Fraction(format_amount(value)) == value
    assert format_amount(Fraction(12345678901234567891, 10**20)) == "0.12345678901234567891"
    assert format_amount(Fraction(10**30 + 1)) == str(10**30 + 1)
    assert format_amount(Fraction(1, 3)) == "about 0.333333333"
    assert [format_amount(Fraction(x)) for x in ("0", "1", "0.000001", "2.5")] == ["0", "1", "1e-06", "2.5"]


def test_claims_are_taken_from_certificates_and_mechanisms() -> None:
    pure, gaussian = (
        dpk.duchi(epsilon=0.3, lower=0.0, upper=1.0),
        calibrate.gaussian(epsilon=0.7, delta=1e-6, sensitivity=1.0),
    )
    for one in (pure, dpk.exact_sampler(pure).certificate):
        assert parse_charge(one) == (Fraction("0.3"), 0)
    for one in (gaussian, dpk.exact_sampler(gaussian).certificate):
        assert parse_charge(one) == (Fraction("0.7"), Fraction("1e-6"))
    with pytest.raises(TypeError, match=r"delta: .* is given beside that of"):
        parse_charge(gaussian, 1e-6)
    with pytest.raises(TypeError, match="epsilon: None is not a number"):
        parse_charge(dpk.gaussian(sigma=1.0))


# Filters


def test_ten_tenths_are_one() -> None:
    budget = Filter(1)
    for _ in range(10):
        budget.charge(0.1)
    assert budget.left == EpsilonDelta()
    with pytest.raises(BudgetExceeded):
        budget.charge(1e-300)
    budget.charge(0)


@pytest.mark.parametrize("seed", range(20))
def test_a_filter_is_the_sum_of_fractions(seed: int) -> None:
    source = random.Random(seed)
    prices = decimals(source)
    total = EpsilonDelta(Fraction(repr(3 * next(prices) + 1)), Fraction(repr(next(prices) / 10)))
    budget, model = Filter(float(total.epsilon), float(total.delta)), [Fraction(0), Fraction(0)]
    for number in range(200):
        price = next(prices), next(prices) / 20
        sums = [spent + Fraction(repr(part)) for spent, part in zip(model, price, strict=True)]
        if all(new <= most for new, most in zip(sums, total, strict=True)):
            assert budget.charge(*price, label=f"{number}").label == f"{number}"
            model = sums
        else:
            with pytest.raises(BudgetExceeded):
                budget.charge(*price)
        assert list(budget.spent) == model
        assert [most - spent for most, spent in zip(budget.budget, model, strict=True)] == list(budget.left)
    assert budget.charges
    assert sum(charge.amounts.delta for charge in budget.charges) == model[1]


def test_a_refusal_says_what_there_was() -> None:
    budget = Filter(1.0, 1e-6)
    budget.charge(0.7, 4e-7, "first")
    with pytest.raises(BudgetExceeded) as refused:
        budget.charge(0.1, 7e-7)
    words = "left epsilon 0.3, delta 6e-07 (budget epsilon 1, delta 1e-06; spent epsilon 0.7, delta 4e-07)"
    assert str(refused.value).startswith("the budget would be exceeded: asked for epsilon 0.1, delta 7e-07; " + words)
    assert budget.spent == (Fraction("0.7"), Fraction("4e-7"))
    again = pickle.loads(pickle.dumps(refused.value))
    assert (str(again), again.left) == (str(refused.value), budget.left)


@pytest.mark.parametrize("price", [(-0.1,), (math.nan,), (0.1, -1e-9), (0.1, math.nan), (math.inf,)])
def test_wrong_charges_charge_nothing(price: tuple[float, ...]) -> None:
    budget = Filter(1.0, 0.5)
    with pytest.raises(ValueError, match="is not a finite number"):
        budget.charge(*price)
    assert budget.charges == ()


@pytest.mark.parametrize(
    ("budget", "words"),
    [((0.0,), "epsilon: "), ((-1,), "epsilon: "), ((1, 1.0), "delta: "), ((1, -0.1), "delta: "), ((math.nan,), "eps")],
)
def test_wrong_budgets(budget: tuple[float, ...], words: str) -> None:
    for make in (Filter, parse_budget):
        with pytest.raises(ValueError, match=words):
            make(*budget)


def test_threads_do_not_overspend() -> None:
    budget, granted = Filter(1), []

    def spend() -> None:
        for _ in range(200):
            try:
                granted.append(budget.charge(0.003))
            except BudgetExceeded:
                continue

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == len(budget.charges) == 333
    assert budget.left.epsilon == Fraction("0.001")


def test_no_thread_charges_between_the_check_and_the_sum_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes on when all others have asked for the lock: were charging not one step, all would be granted."""
    budget, granted, refused, check = Filter(1), [], [], filters.check
    lock, asked = threading.Lock(), threading.Semaphore(0)

    class Asked:
        def __enter__(self) -> None:
            asked.release()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def slowly(*given: Any) -> None:
        check(*given)
        assert all(asked.acquire(timeout=60) for _ in range(4))

    def spend() -> None:
        try:
            granted.append(budget.charge(0.6))
        except BudgetExceeded:
            refused.append(0.6)

    monkeypatch.setattr(filters, "check", slowly)
    budget._lock = Asked()
    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(granted), len(refused)) == (1, 3)
    assert budget.left.epsilon == Fraction("0.4")


@pytest.mark.parametrize("made", [Filter(1), Odometer()])
def test_what_interrupts_a_charge_does_not_undo_it(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    """Whoever is interrupted may have run the query: the sum counts it, and the lock is free again."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(filters, "Charge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.charge(0.75)
    assert made.spent.epsilon == Fraction("0.75")
    made.charge(0.25)
    assert made.spent.epsilon == 1


@pytest.mark.parametrize("made", [Filter(1), ConcentratedFilter(1), Odometer()])
@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_budget_has_no_copies(made: Any, twice: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="cannot be copied"):
        twice(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*multi-threaded")
@pytest.mark.parametrize("made", [Filter(1), ConcentratedFilter(1), Odometer()])
def test_a_forked_process_has_no_second_budget(made: Any) -> None:
    child = os.fork()
    if child == 0:
        try:
            made.charge(0.5)
        except RuntimeError as error:
            os._exit(7 if "use a Ledger" in str(error) and made.spent[0] == 0 else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    made.charge(0.5)


def test_a_concentrated_filter_adds_rho() -> None:
    budget = ConcentratedFilter(0.5)
    for _ in range(5):
        budget.charge(0.1, "query")
    assert (budget.spent, budget.left) == (Rho(Fraction(1, 2)), Rho(Fraction(0)))
    assert [charge.label for charge in budget.charges] == ["query"] * 5
    with pytest.raises(BudgetExceeded, match=r"asked for rho 0.01; left rho 0 "):
        budget.charge(0.01)
    with pytest.raises(ValueError, match="rho: a budget of 0"):
        ConcentratedFilter(0)


def test_an_odometer_never_refuses() -> None:
    odometer = Odometer()
    for label in "abc":
        odometer.charge(5, 0.4, label)
    assert odometer.spent == (15, Fraction("1.2"))
    assert [charge.label for charge in odometer.charges] == ["a", "b", "c"]


# What is promised, against analysts that choose every price by what they have seen


def transcripts(budget: Any, seed: int, seen: tuple[Any, ...] = (), p: float = 1.0, q: float = 1.0) -> Iterator[Any]:
    """Every transcript of an analyst with its probabilities under two neighbours.

    Queries are the worst there are: with probability delta the neighbour is told, otherwise randomised response.
    """
    source = random.Random(f"{seed} {seen}")
    price = round(source.uniform(0.05, 0.9), 2), round(source.uniform(0, 0.05), 3)
    mine = copy_of(budget)
    try:
        mine.charge(*price)
    except BudgetExceeded:
        price = (0.0, 0.0)
    if price == (0.0, 0.0) or len(seen) == 6:
        yield budget.spent, p, q
        return
    eps, delta = price
    high = 1 / (1 + math.exp(-eps))
    for outcome, a, b in [("P", delta, 0), ("Q", 0, delta), ("+", high, 1 - high), ("-", 1 - high, high)]:
        leak = 1.0 if outcome in "PQ" else 1 - delta
        yield from transcripts(mine, seed, (*seen, outcome), p * a * leak, q * b * leak)


def copy_of(budget: Any) -> Any:
    """The same account in another world."""
    same = Filter(*budget.budget) if isinstance(budget, Filter) else Odometer()
    for charge in budget.charges:
        same.charge(*charge.amounts)
    return same


@pytest.mark.parametrize("seed", range(8))
def test_adaptive_analysts_stay_within_a_filters_budget(seed: int) -> None:
    for epsilon, delta in [(1.0, 0.08), (1.7, 0.03)]:
        found = list(transcripts(Filter(epsilon, delta), seed))
        assert sum(p for _, p, _ in found) == pytest.approx(1, abs=1e-12)
        assert sum(max(0.0, p - math.exp(epsilon) * q) for _, p, q in found) <= delta + 1e-12


@pytest.mark.lengthy
def test_an_odometers_total_bounds_every_transcript_that_leaks_nothing() -> None:
    for spent, p, q in transcripts(Odometer(), 3):
        if p and q:
            assert abs(math.log(p / q)) <= float(spent.epsilon) + 1e-9


def test_doctests() -> None:
    assert doctest.testmod(filters) == (0, 3)
