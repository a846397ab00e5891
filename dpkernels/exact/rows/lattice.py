"""From a table of probabilities to a row table: rounding to integers, then repair of every row's sum and mean.

What is made here is only a proposal; ``certificate.certify_rows`` decides.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np

from dpkernels.decimals import rational
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.rows.table import RowTable
from dpkernels.mechanisms.optimal.mechanism import Optimal

# Shares of a weight that rounding and repair may change; what makes the probabilities leaves more of e^eps unused.
_MOST_CHANGE = 1e-7

# Probabilities are read to 2^-120.
_FINE = 120
# Repairs are moves between so many of the heaviest weights of a row.
_MOVED = 24


def row_table(mechanism: Optimal, bits: int) -> RowTable:
    """Integer weights near a mechanism's probabilities, every row with the sum 2^bits, the means evenly spaced.

    Raises:
        CertificateError: a row cannot be repaired: its sum or mean is not that of a mechanism, or bits are too few.
    """
    probabilities, places = np.asarray(mechanism.probabilities, np.float64), mechanism.places
    n, total = len(probabilities), 1 << bits
    unit = math.gcd(*(place - places[0] for place in places))
    # Means are multiples of unit/2^bits places, up to an offset that is 0 for symmetric places.
    slope = unit * round(Fraction(float(mechanism.step)) / Fraction(float(mechanism.spacing)) * total / unit)
    rows = []
    for i, row in enumerate(probabilities.tolist()):
        weights = _diffused(row, bits)
        short = slope * (i - (n - 1) // 2) - sum(map(operator.mul, weights, places))
        rows.append(_repaired(weights, places, total - sum(weights), short, unit))
    lower, upper = float(mechanism.lower), float(mechanism.upper)
    first, last = _ends(lower, upper, float(mechanism.reach))
    return RowTable(np.array(rows, np.uint64), places, bits, first, last, lower, upper)


def _ends(lower: float, upper: float, reach: float) -> tuple[float, float]:
    """Where the outermost rows are: at the interval's ends, or beyond them."""
    if 2 * reach <= (upper - lower) * (1 + 1e-12):
        return lower, upper
    middle = (rational(lower) + rational(upper)) / 2
    first, last = outwards(middle - Fraction(reach), middle + Fraction(reach))
    return min(first, lower), max(last, upper)


def outwards(low: Fraction, high: Fraction) -> tuple[float, float]:
    """The nearest floats at most ``low`` and at least ``high``: rows are never nearer to each other than was meant."""
    ends = float(low), float(high)
    return (
        ends[0] if Fraction(ends[0]) <= low else math.nextafter(ends[0], -math.inf),
        ends[1] if Fraction(ends[1]) >= high else math.nextafter(ends[1], math.inf),
    )


def _diffused(row: list[float], bits: int) -> list[int]:
    """Rounded so that sums over the first columns are right to within 1/2: the mean is then nearly right as well."""
    weights, carried, shift = [], 0, _FINE - bits
    for p in row:
        carried += int(math.ldexp(p, _FINE))
        weights.append((carried + (1 << shift - 1)) >> shift)
        carried -= weights[-1] << shift
    return weights


def _repaired(weights: list[int], places: tuple[int, ...], missing: int, short: int, unit: int) -> list[int]:
    """Add ``missing`` to the sum and ``short`` to the sum of weight times place, in small shares of large weights."""
    changed = list(weights)
    heavy = _heaviest(weights, places, unit)
    changed[heavy[0]] += missing
    short -= missing * places[heavy[0]]
    by_gap = _heaviest_pairs(weights, places, sorted(heavy))
    far = max(by_gap, key=lambda gap: gap * by_gap[gap][0])
    moves = {far: _towards_zero(short, far)}
    for gap in _moves(short - far * moves[far], tuple(sorted(by_gap))):
        moves[abs(gap)] = moves.get(abs(gap), 0) + (1 if gap > 0 else -1)
    for gap, count in moves.items():
        _, a, b = by_gap[gap]
        changed[a] -= count
        changed[b] += count
    for j, (before, after) in enumerate(zip(weights, changed, strict=True)):
        if abs(after - before) > max(1, _MOST_CHANGE * before) or after <= 0:
            raise CertificateError(f"rows: a weight of {before} at place {places[j]} would have to become {after}")
    return changed


def _heaviest(weights: list[int], places: tuple[int, ...], unit: int) -> list[int]:
    """The heaviest columns, the first one first: so many that moves between them can change a mean by one unit."""
    columns = sorted(range(len(places)), key=weights.__getitem__, reverse=True)
    count = _MOVED
    while math.gcd(*(places[j] - places[columns[0]] for j in columns[:count])) > unit:
        count *= 2
    return columns[:count]


def _towards_zero(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def _heaviest_pairs(weights: list[int], places: tuple[int, ...], columns: list[int]) -> dict[int, tuple[int, int, int]]:
    """For every gap the pair of columns so far apart whose lighter one is heaviest: its weight, and both columns."""
    best: dict[int, tuple[int, int, int]] = {}
    for a, b in combinations(columns, 2):
        gap, weight = places[b] - places[a], min(weights[a], weights[b])
        if weight > best.get(gap, (-1,))[0]:
            best[gap] = weight, a, b
    return best


@lru_cache(maxsize=1 << 12)
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
