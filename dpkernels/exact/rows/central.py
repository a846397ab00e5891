"""The exact form of the Central Piecewise Mechanism: its steps in whole cells, its levels as integers."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dpkernels.decimals import rational, shortest
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.rows.certificate import certify_rows
from dpkernels.exact.rows.form import ExactRows, row_form
from dpkernels.exact.rows.lattice import outwards
from dpkernels.exact.rows.table import RowTable
from dpkernels.exact.windows.lattice import PROMISED_DEVIATION
from dpkernels.mechanisms.central_piecewise import CentralPiecewise

# Between these numbers of cells of a sensitivity one is tried each; and the most weights of a table.
_CELLS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
_MOST_WEIGHTS = 1 << 21

# Of the sensitivity in cells: what keeps neighbours so many rows apart after inputs are put on 2^16 steps a row.
_MARGIN = Fraction(1, 1 << 15)


@lru_cache(maxsize=64)
def central_form(mechanism: CentralPiecewise) -> ExactRows:
    """The coarsest table whose variance is the mechanism's to within 0.1 %, at 32 bits a word or at 64."""
    variance = float(mechanism.worst_variance)
    for cells in _fitting_cells(mechanism):
        for bits in (32, 64):
            table = central_table(mechanism, cells, bits)
            if table is None or abs(float(table.worst_variance) / variance - 1) > PROMISED_DEVIATION:
                continue
            return row_form(mechanism, certify_rows(table, mechanism.epsilon, mechanism.sensitivity))
    raise CertificateError(
        f"rows: no table of at most {_MOST_WEIGHTS} weights out of 2^64 has the variance of {mechanism.steps} steps, "
        f"each e^{shortest(mechanism.epsilon)} times the last, to within {PROMISED_DEVIATION}; fewer steps may"
    )


def _fitting_cells(mechanism: CentralPiecewise) -> list[int]:
    """Of every range the cells of a sensitivity of which the interval is nearest to an even whole number."""
    lower, upper, D = (rational(float(v)) for v in (mechanism.lower, mechanism.upper, mechanism.sensitivity))
    half = (upper - lower) / D / 2

    def excess(cells: int) -> Fraction:
        return math.ceil(half * cells) / (half * cells)

    return [min(range(*ends), key=excess) for ends in pairwise(_CELLS)]


def central_table(mechanism: CentralPiecewise, cells: int, bits: int) -> RowTable | None:
    """Integer weights with steps of ``cells`` codes and one row a cell; None where they do not fit.

    What the levels leave of the total goes to the base of codes at the middle, the same for every row, where it lowers
    ratios.
    """
    lower, upper, D = (rational(float(v)) for v in (mechanism.lower, mechanism.upper, mechanism.sensitivity))
    shifts = math.ceil((upper - lower) * cells / D)
    shifts += shifts % 2
    gap = max(D / (cells - _MARGIN), (upper - lower) / shifts)
    core = max(1, round(float(mechanism.core * (upper - lower) / gap)))
    widths = [core + 2 * cells * k for k in range(mechanism.steps)]
    codes = shifts + widths[-1]
    if codes * (shifts + 1) > _MOST_WEIGHTS:
        return None
    window = sum(_centred(width, widths[-1]) for width in widths)
    levels = _levels(
        mechanism.epsilon, mechanism.steps, np.bincount(window, minlength=mechanism.steps + 1), codes, bits
    )
    if levels is None:
        return None
    heights = np.array(levels, np.uint64)[window]
    base = _base(levels[0], (1 << bits) - levels[0] * shifts - sum(heights.tolist()), codes)
    weights = np.stack([base + np.pad(heights - np.uint64(levels[0]), (i, shifts - i)) for i in range(shifts + 1)])
    places = tuple(range(1 - codes, codes, 2))
    middle, reach = (lower + upper) / 2, gap * shifts / 2
    low, high = outwards(middle - reach, middle + reach)
    interval: tuple[Any, Any] = mechanism.lower, mechanism.upper
    first, last = min(low, interval[0]), max(high, interval[1])
    return RowTable(weights, places, bits, first, last, *interval)


def _centred(width: int, whole: int) -> np.ndarray:
    """Ones on the middle ``width`` of ``whole`` cells."""
    edge = (whole - width) // 2
    return np.pad(np.ones(width, np.int64), edge)


def _levels(epsilon: float, steps: int, counts: np.ndarray, codes: int, bits: int) -> list[int] | None:
    """Weights of a code outside the window and on each step inwards, for the highest core that fits.

    Every weight is that of the step inwards over e^eps, rounded up: so no ratio is above e^eps, and far steps that the
    total is too coarse for share its unit.
    """
    E, total = exp_lower_bound(float(epsilon)), 1 << bits
    each = [codes - int(counts[1:].sum()), *map(int, counts[1:])]

    def levels(core: int) -> list[int]:
        made = [core]
        for _ in range(steps):
            made.append(math.ceil(made[-1] / E))
        return made[::-1]

    def fits(core: int) -> bool:
        return sum(level * count for level, count in zip(levels(core), each, strict=True)) <= total

    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return levels(low) if low > 0 else None


def _base(outer: int, left: int, codes: int) -> np.ndarray:
    """The outer level at every code, and what is left of the total on top, symmetric."""
    base = np.full(codes, outer + left // codes, np.uint64)
    extra = left % codes
    edge = (codes - extra) // 2
    base[edge : codes - edge] += np.uint64(1)
    base[codes // 2] -= np.uint64(codes - 2 * edge - extra)  # An even number of codes about a middle one leaves it out.
    return base
