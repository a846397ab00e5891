"""The division of a budget among the statistics of a plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

import accountants
import dpkernels as dpk
from accountants.charges import composed_epsilon
from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.session.statistic import Statistic
from dpkernels.session.sums import floor_to_9_digits

_FACTOR_GROWTH = 1.25  # of the epsilons, until their composition exceeds the budget
_FACTOR_HALVINGS = 12  # of the interval in which the largest factor is
_COMPOSITION_MARGIN = 1e-12  # of the budget, relative, that is left unused
_WIDTH_ITERATIONS = 3  # of widths and the division of the budget that follows from them


def divide(needs: Sequence[float], epsilon: float, delta: float) -> tuple[float, ...]:
    """Return epsilons in proportion to needs, whose composition at delta is at most epsilon."""
    exact = [Fraction(need) for need in needs]  # Quotients of floats could add up to more than 1.

    def epsilons(factor: float) -> list[float]:
        return [floor_to_9_digits(rational(epsilon) * need / sum(exact) * Fraction(factor)) for need in exact]

    def is_within_budget(factor: float) -> bool:
        return composed_epsilon(Counter(epsilons(factor)), delta) <= epsilon * (1 - _COMPOSITION_MARGIN)

    low, high = 1.0, 1.0
    if delta > 0 and len(needs) > 1:
        while high < len(needs) and is_within_budget(high := min(high * _FACTOR_GROWTH, len(needs))):
            low = high
        for _ in range(_FACTOR_HALVINGS if high > low else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if is_within_budget(middle) else (low, middle)
    return tuple(epsilons(low))


def expected_widths(
    statistics: Sequence[Statistic], epsilons: Sequence[float], rows: int, rows_per_person: int
) -> list[float]:
    """Return the expected width of each statistic's 95 % interval, NaN where it depends on the data."""
    return [
        statistic.expected_width(rows, rows_per_person, epsilon) if statistic.has_stated_keys_and_bounds else math.nan
        for statistic, epsilon in zip(statistics, epsilons, strict=True)
    ]


def needs_for_widths(
    statistics: Sequence[Statistic],
    widths: Sequence[float],
    objective: str,
    rows: int,
    rows_per_person: int,
    epsilon: float,
) -> list[float]:
    """Return the epsilons that ``tune.allocate`` gives Laplace noise on numbers with such intervals.

    Only their proportions are used: the budget is met by the integers that are released, see ``divide``.
    """
    checks.positive("widths", np.asarray(widths))
    if np.shape(widths) != (len(statistics),):
        raise ValueError(f"widths: has shape {np.shape(widths)}; one number for each statistic is needed")
    tune = accountants.tune  # whose import takes a while
    lengths, epsilons = np.zeros(len(statistics)), np.full(len(statistics), epsilon)
    for _ in range(_WIDTH_ITERATIONS):  # An interval is nearly of a length in proportion to 1/epsilon.
        products = epsilons * expected_widths(statistics, epsilons.tolist(), rows, rows_per_person)
        if np.isnan(products).any():
            unknown = statistics[int(np.argmax(np.isnan(products)))].title
            raise ValueError(f"widths: that of {unknown} depends on the data; release it by itself")
        lengths = np.maximum(lengths, products)  # One that ends at the bounds of the values needs no less.
        queries = dpk.Additive(dpk.Laplace(np.ones(len(lengths))), lengths / np.asarray(widths, float))
        allocation = tune.allocate(queries, epsilon=1.0, objective=objective)
        epsilons = np.asarray(allocation.mechanism.epsilon) * epsilon
    return epsilons.tolist()
