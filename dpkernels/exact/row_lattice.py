"""From a table of probabilities to a row table: rounding to integers, then repair of every row's sum and mean.

What is made here is only a proposal; ``row_certificate.certify_rows`` decides.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np

from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.row_tables import RowTable
from dpkernels.exact.tables import rational
from dpkernels.mechanisms.optimal import Optimal

# Shares of a weight that rounding and repair may change; what makes the probabilities leaves more of e^eps unused.
_MOST_CHANGE = 1e-7


def row_table(mechanism: Optimal, bits: int) -> RowTable:
    """Integer weights near a mechanism's probabilities, every row with the sum 2^bits, the means evenly spaced.

    Raises:
        CertificateError: a row cannot be repaired: its sum or mean is not that of a mechanism, or bits are too few.
    """
    probabilities, places = np.asarray(mechanism.probabilities, np.float64), mechanism.places
    n, total = len(probabilities), 1 << bits
    gaps = tuple(sorted({b - a for k, a in enumerate(places) for b in places[k + 1 :]}))
    unit = math.gcd(*gaps)
    # Means are multiples of unit/2^bits places, up to an offset that is 0 for symmetric places.
    slope = unit * round(Fraction(float(mechanism.step)) / Fraction(float(mechanism.spacing)) * total / unit)
    rows = []
    for i, row in enumerate(probabilities):
        weights = _diffused(row, total)
        short = slope * (i - (n - 1) // 2) - sum(w * place for w, place in zip(weights, places, strict=True))
        rows.append(_repaired(weights, places, total - sum(weights), short, gaps))
    lower, upper = float(mechanism.lower), float(mechanism.upper)
    first, last = _ends(lower, upper, float(mechanism.reach))
    return RowTable(np.array(rows, np.uint64), places, bits, first, last, lower, upper)


def _ends(lower: float, upper: float, reach: float) -> tuple[float, float]:
    """Where the outermost rows are: at the interval's ends, or beyond them."""
    if 2 * reach <= (upper - lower) * (1 + 1e-12):
        return lower, upper
    middle = (rational(lower) + rational(upper)) / 2
    first, last = float(middle - Fraction(reach)), float(middle + Fraction(reach))
    return min(first, lower), max(last, upper)


def _diffused(row: np.ndarray, total: int) -> list[int]:
    """Rounded so that sums over the first columns are right to within 1/2: the mean is then nearly right as well."""
    weights, carried = [], Fraction(0)
    for p in row.tolist():
        exact = Fraction(p) * total + carried
        weights.append(math.floor(exact + Fraction(1, 2)))
        carried = exact - weights[-1]
    return weights


def _repaired(
    weights: list[int], places: tuple[int, ...], missing: int, short: int, gaps: tuple[int, ...]
) -> list[int]:
    """Add ``missing`` to the sum and ``short`` to the sum of weight times place, in small shares of large weights."""
    changed = list(weights)
    heaviest = max(range(len(places)), key=lambda j: weights[j])
    changed[heaviest] += missing
    short -= missing * places[heaviest]
    by_gap = _heaviest_pairs(tuple(weights), places)
    far = max(gaps, key=lambda gap: gap * by_gap[gap][0])
    moves = {far: _towards_zero(short, far)}
    for gap in _moves(short - far * moves[far], gaps):
        moves[abs(gap)] = moves.get(abs(gap), 0) + (1 if gap > 0 else -1)
    for gap, count in moves.items():
        _, a, b = by_gap[gap]
        changed[a] -= count
        changed[b] += count
    for j, (before, after) in enumerate(zip(weights, changed, strict=True)):
        if abs(after - before) > max(1, _MOST_CHANGE * before) or after <= 0:
            raise CertificateError(f"rows: a weight of {before} at place {places[j]} would have to become {after}")
    return changed


def _towards_zero(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def _heaviest_pairs(weights: tuple[int, ...], places: tuple[int, ...]) -> dict[int, tuple[int, int, int]]:
    """For every gap the pair of columns so far apart whose lighter one is heaviest: its weight, and both columns."""
    best: dict[int, tuple[int, int, int]] = {}
    for a in range(len(places)):
        for b in range(a + 1, len(places)):
            gap, weight = places[b] - places[a], min(weights[a], weights[b])
            if weight > best.get(gap, (-1,))[0]:
                best[gap] = weight, a, b
    return best


@cache
def _moves(remainder: int, gaps: tuple[int, ...]) -> tuple[int, ...]:
    """The fewest gaps, with signs, that add up to the remainder, by breadth-first search.

    Raises:
        CertificateError: none do.
    """
    most = 2 * max(gaps[-1], abs(remainder))
    paths: dict[int, tuple[int, ...]] = {0: ()}
    ends = [0]
    while ends and remainder not in paths:
        found: dict[int, tuple[int, ...]] = {}
        for end in ends:
            for gap in (*gaps, *(-gap for gap in gaps)):
                if abs(end + gap) <= most and end + gap not in paths:
                    found.setdefault(end + gap, (*paths[end], gap))
        paths |= found
        ends = list(found)
    if remainder not in paths:
        raise CertificateError(f"rows: a mean is off by {remainder}, which moves between places cannot repair")
    return paths[remainder]
