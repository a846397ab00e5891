"""Mechanisms whose exact forms the tests go through, at shifted, scaled and asymmetric intervals.

``LARGE`` cases are what a release certifies; ``small_table`` is the same mechanism at 16 random bits and few codes,
small enough to try every word.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache, partial

from dpkernels import (
    Quartic,
    composite,
    duchi,
    exact_sampler,
    hybrid,
    piecewise,
    piecewise_triangle,
    piecewise_wang2019,
)
from dpkernels.exact.alias import alias_columns
from dpkernels.exact.bounded.window_construction import two_point_table, windowed_table

INTERVALS = ((0.0, 120.0), (-1.5, 4.0), (1000.0, 1000.1), (-1e-3, 2e-3))


def _gentle(**budget):
    """Less signal than the budget allows: a window 20 % lower than the highest private one."""
    mechanism = composite("sine", "constant", **budget)
    return dataclasses.replace(mechanism, relative_height=0.8 * mechanism.relative_height)


def _raised_cosine(z):
    return 1 - math.cos(2 * math.pi * z)


def _dented(z):
    return 0.3 + 0.7 * abs(2 * z - 1)


def _tent(v):
    return 1 - 0.4 * abs(v)


WINDOWED = {
    "piecewise": piecewise,
    "piecewise-triangle": piecewise_triangle,
    "piecewise-wang2019": piecewise_wang2019,
    "piecewise-eta3": partial(piecewise, eta=3.0),
    **{
        f"{window}-{base}": partial(composite, window, shape)
        for window in ("uniform", "sine", "triangle")
        for base, shape in (("constant", "constant"), ("quartic", Quartic(0.7)))
        if (window, base) != ("uniform", "constant")
    },
    "narrow": partial(composite, "sine", "constant", width=0.05),
    "wide": partial(composite, "triangle", "constant", width=1.9),
    "own": partial(composite, _raised_cosine, _tent),
    "dented": partial(composite, _dented, "constant"),
    "ring": partial(composite, (0.0, 1.0, 0.0, 1.0, 0.0), "constant"),
    "steep": partial(composite, "sine", Quartic(1e-6), width=0.7),
    "gentle": _gentle,
}
TABLES = {**WINDOWED, "duchi": duchi}
EVERY = {**TABLES, "hybrid": hybrid}

BUDGETS = (0.1, 0.5, 1.0, 2.0, 5.0)
EXTREMES = [
    (name, epsilon)
    for name in ("piecewise", "sine-constant", "own", "duchi", "hybrid")
    for epsilon in (0.01, 8.0, 20.0)
]
LARGE = [(name, epsilon) for name in EVERY for epsilon in BUDGETS] + EXTREMES
SMALL = [(name, epsilon) for name in TABLES for epsilon in (0.5, 2.0)]


@cache
def mechanism(name, epsilon):
    """The mechanism of a case; each name has an interval of its own."""
    lower, upper = INTERVALS[list(EVERY).index(name) % len(INTERVALS)]
    return EVERY[name](epsilon=epsilon, lower=lower, upper=upper)


def exact(name, epsilon):
    """Its exact form."""
    return exact_sampler(mechanism(name, epsilon))


def tables(sampler):
    """The window tables behind an exact sampler: one, or two for a mixture."""
    components = (sampler.first, sampler.second) if hasattr(sampler, "first") else (sampler,)
    return [component.table for component in components]


@cache
def small_table(name, epsilon, codes=256):
    """The case at 16 random bits and at most this many codes."""
    built = mechanism(name, epsilon)
    return two_point_table(built, 16) if name == "duchi" else windowed_table(built, bits=16, codes=codes)


def slow_sampler(table):
    """The two samplers written again with Python integers."""
    a, kappa, n = int(table.base[0]), int(table.window[0]), table.codes
    columns = None if table.is_flat else alias_columns(table.outcomes, table.bits)

    def code(word, row):
        if columns is None:
            return word // a if word < n * a else row + (word - n * a) // kappa
        column, low = divmod(word, 1 << (table.bits - columns.log_columns))
        outcome = column if low < int(columns.threshold[column]) else int(columns.alias[column])
        return outcome if outcome < n else row + outcome - n

    return code
