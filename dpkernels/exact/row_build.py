"""Build row tables: of a linear program's probabilities, and of the Central Piecewise Mechanism.

Probabilities are rounded to integers, then the sum and the mean of every row are repaired. The levels of the Central
Piecewise Mechanism are integers from the start. The table is a proposal. ``certificate.certify_rows`` decides.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from dpkernels.decimals import rational, shortest
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.rows import ExactRows, RowCertificate, RowTable, certify_rows
from dpkernels.exact.window_build import PROMISED_DEVIATION
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.search import solved_again

# The relative changes of a weight by rounding and repair; the linear program leaves a larger share of e^eps unused.
_MOST_CHANGE = 1e-7

# Probabilities are read to 2^-120.
_FINE = 120
# The number of heaviest weights of a row between which repairs move units.
_MOVED = 24


def row_table(mechanism: Optimal, bits: int) -> RowTable:
    """Return integer weights near a mechanism's probabilities; every row sums to 2^bits, and means are evenly spaced.

    Raises:
        CertificateError: a row cannot be repaired, because its sum or mean is wrong, or the bits are too few.
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
    """Return the inputs of the outermost rows: the interval's ends, or points beyond them."""
    if 2 * reach <= (upper - lower) * (1 + 1e-12):
        return lower, upper
    middle = (rational(lower) + rational(upper)) / 2
    first, last = outwards(middle - Fraction(reach), middle + Fraction(reach))
    return min(first, lower), max(last, upper)


def outwards(low: Fraction, high: Fraction) -> tuple[float, float]:
    """Return the nearest floats at most ``low`` and at least ``high``, so that rows are never nearer than intended."""
    ends = float(low), float(high)
    return (
        ends[0] if Fraction(ends[0]) <= low else math.nextafter(ends[0], -math.inf),
        ends[1] if Fraction(ends[1]) >= high else math.nextafter(ends[1], math.inf),
    )


def _diffused(row: list[float], bits: int) -> list[int]:
    """Return rounded weights whose cumulative sums are right to within 1/2, so that the mean is nearly right."""
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
    """Return the heaviest columns in descending order, enough that moves between them can change a mean by one unit."""
    columns = sorted(range(len(places)), key=weights.__getitem__, reverse=True)
    count = _MOVED
    while math.gcd(*(places[j] - places[columns[0]] for j in columns[:count])) > unit:
        count *= 2
    return columns[:count]


def _towards_zero(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def _heaviest_pairs(weights: list[int], places: tuple[int, ...], columns: list[int]) -> dict[int, tuple[int, int, int]]:
    """Return for every gap the pair of columns whose lighter one is heaviest: its weight, and both columns."""
    best: dict[int, tuple[int, int, int]] = {}
    for a, b in combinations(columns, 2):
        gap, weight = places[b] - places[a], min(weights[a], weights[b])
        if weight > best.get(gap, (-1,))[0]:
            best[gap] = weight, a, b
    return best


@lru_cache(maxsize=1 << 12)
def _moves(remainder: int, gaps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the fewest gaps, with signs, that add up to the remainder, by breadth-first search.

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


# Between these numbers of cells of a sensitivity one is tried each; and the most weights of a table.
_CELLS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
_MOST_WEIGHTS = 1 << 21

# A margin, in cells, for rounding inputs to 2^16 steps a row.
_MARGIN = Fraction(1, 1 << 15)


@lru_cache(maxsize=64)
def central_sampler(mechanism: CentralPiecewise) -> ExactRows:
    """Return the coarsest table whose variance is the mechanism's to within 0.1 %, at 32 bits a word or at 64."""
    variance = float(mechanism.worst_variance)
    for cells in _fitting_cells(mechanism):
        for bits in (32, 64):
            table = central_table(mechanism, cells, bits)
            if table is None or abs(float(table.worst_variance) / variance - 1) > PROMISED_DEVIATION:
                continue
            return ExactRows(mechanism, certify_rows(table, mechanism.epsilon, mechanism.sensitivity))
    raise CertificateError(
        f"rows: no table of at most {_MOST_WEIGHTS} weights out of 2^64 has the variance of {mechanism.steps} steps, "
        f"each e^{shortest(mechanism.epsilon)} times the last, to within {PROMISED_DEVIATION}; fewer steps may"
    )


def _fitting_cells(mechanism: CentralPiecewise) -> list[int]:
    """Return, per range of table sizes, the cells per sensitivity that fit the interval best."""
    lower, upper, D = (rational(float(v)) for v in (mechanism.lower, mechanism.upper, mechanism.sensitivity))
    half = (upper - lower) / D / 2

    def excess(cells: int) -> Fraction:
        return math.ceil(half * cells) / (half * cells)

    return [min(range(*ends), key=excess) for ends in pairwise(_CELLS)]


def central_table(mechanism: CentralPiecewise, cells: int, bits: int) -> RowTable | None:
    """Return integer weights with steps of ``cells`` codes and one row a cell, or None if they do not fit.

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
    """Return ones on the middle ``width`` of ``whole`` cells."""
    edge = (whole - width) // 2
    return np.pad(np.ones(width, np.int64), edge)


def _levels(epsilon: float, steps: int, counts: np.ndarray, codes: int, bits: int) -> list[int] | None:
    """Return weights of a code outside the window and on each step inwards, for the highest core that fits.

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
    """Return the outer level at every code, and what is left of the total on top, symmetric."""
    base = np.full(codes, outer + left // codes, np.uint64)
    extra = left % codes
    edge = (codes - extra) // 2
    base[edge : codes - edge] += np.uint64(1)
    base[codes // 2] -= np.uint64(codes - 2 * edge - extra)  # An even number of codes about a middle one leaves it out.
    return base


@lru_cache(maxsize=64)
def optimal_sampler(mechanism: Optimal) -> ExactRows:
    """Return the sampler, from its program solved again where a solution from the cache folder cannot be certified."""
    try:
        return ExactRows(mechanism, _narrowest(mechanism))
    except CertificateError:
        again = solved_again(mechanism)
        if again is None:
            raise
        return ExactRows(again, _narrowest(again))


def _narrowest(mechanism: Optimal) -> RowCertificate:
    """Return the certificate with words of 32 bits, or of 64 where weights out of 2^32 would be too coarse."""
    try:
        return _certified(mechanism, 32)
    except CertificateError:
        return _certified(mechanism, 64)


def _certified(mechanism: Optimal, bits: int) -> RowCertificate:
    sensitivity = None if mechanism.sensitivity is None else float(mechanism.sensitivity)
    return certify_rows(row_table(mechanism, bits), float(mechanism.epsilon), sensitivity)
