"""Construction of tables row by row. ``BoundedCertificate.of`` then verifies or refuses them."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, pairwise
from operator import mul

import numpy as np

from dpkernels.decimals import rational, shortest
from dpkernels.exact.bounded.certificate import PROMISED_DEVIATION
from dpkernels.exact.bounded.rows import RowCertificate, RowTable
from dpkernels.exact.certificate import MAX_WEIGHTS, CertificateError, exp_lower_bound
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.optimal.mechanism import FILES, Optimal, digest

# The relative changes of a weight by rounding and repair; the linear program leaves a larger share of e^eps unused.
_MAX_CHANGE = 1e-7
_PROBABILITY_BITS = 120  # Probabilities are read to 2^-120.
_REPAIRED_WEIGHTS = 24  # The number of heaviest weights of a row between which repairs move units.


def row_table(mechanism: Optimal, bits: int) -> RowTable:
    """Return integer weights near a mechanism's probabilities: every row sums to 2^bits, means are evenly spaced."""
    probabilities, places = np.asarray(mechanism.probabilities, np.float64), mechanism.places
    n, total = len(probabilities), 1 << bits
    unit = math.gcd(*(place - places[0] for place in places))
    # Means are multiples of unit/2^bits places, up to an offset that is 0 for symmetric places.
    slope = unit * round(Fraction(float(mechanism.step)) / Fraction(float(mechanism.spacing)) * total / unit)
    rows = []
    for i, row in enumerate(probabilities.tolist()):
        # Cumulative sums are right to within 1/2, so that the mean is nearly right.
        weights, carried, shift = [], 0, _PROBABILITY_BITS - bits
        for p in row:
            carried += int(math.ldexp(p, _PROBABILITY_BITS))
            weights.append((carried + (1 << shift - 1)) >> shift)
            carried -= weights[-1] << shift
        short = slope * (i - (n - 1) // 2) - sum(map(mul, weights, places))
        rows.append(_repaired(weights, places, total - sum(weights), short, unit))
    lower, upper, reach = (float(value) for value in (mechanism.lower, mechanism.upper, mechanism.reach))
    is_covered = 2 * reach <= (upper - lower) * (1 + 1e-12)
    ends = (lower, upper) if is_covered else outer_ends(lower, upper, Fraction(reach))
    return RowTable(np.array(rows, np.uint64), places, bits, *ends, lower, upper)


def outer_ends(lower: float, upper: float, reach: Fraction) -> tuple[float, float]:
    """Return floats outside the interval, at least ``reach`` from its middle: rows are never nearer than intended."""
    middle = (rational(lower) + rational(upper)) / 2
    first, last = float(middle - reach), float(middle + reach)
    if first > middle - reach:
        first = math.nextafter(first, -math.inf)
    if last < middle + reach:
        last = math.nextafter(last, math.inf)
    return min(first, lower), max(last, upper)


def _repaired(weights: list[int], places: tuple[int, ...], missing: int, short: int, unit: int) -> list[int]:
    """Add ``missing`` to the sum and ``short`` to the sum of weight times place, in small shares of large weights."""
    changed = list(weights)
    # The heaviest columns, enough that moves between them can change a mean by one unit.
    columns, count = sorted(range(len(places)), key=weights.__getitem__, reverse=True), _REPAIRED_WEIGHTS
    while math.gcd(*(places[j] - places[columns[0]] for j in columns[:count])) > unit:
        count *= 2
    heavy = columns[:count]
    changed[heavy[0]] += missing
    short -= missing * places[heavy[0]]
    # For every gap the pair of columns whose lighter one is heaviest: its weight, and both columns.
    by_gap: dict[int, tuple[int, int, int]] = {}
    for a, b in combinations(sorted(heavy), 2):
        gap, weight = places[b] - places[a], min(weights[a], weights[b])
        if weight > by_gap.get(gap, (-1,))[0]:
            by_gap[gap] = weight, a, b
    largest = max(by_gap, key=lambda gap: gap * by_gap[gap][0])
    moves = {largest: math.trunc(Fraction(short, largest))}
    for gap in _moves(short - largest * moves[largest], tuple(sorted(by_gap))):
        moves[abs(gap)] = moves.get(abs(gap), 0) + (1 if gap > 0 else -1)
    for gap, count in moves.items():
        _, a, b = by_gap[gap]
        changed[a] -= count
        changed[b] += count
    for j, (before, after) in enumerate(zip(weights, changed, strict=True)):
        if abs(after - before) > max(1, _MAX_CHANGE * before) or after <= 0:
            raise CertificateError(f"rows: a weight of {before} at place {places[j]} would have to become {after}")
    return changed


@lru_cache(maxsize=1 << 12)
def _moves(remainder: int, gaps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the fewest gaps, with signs, that add up to the remainder, by breadth-first search."""
    farthest = 2 * max(gaps[-1], abs(remainder))
    paths: dict[int, tuple[int, ...]] = {0: ()}
    ends = [0]
    while ends and remainder not in paths:
        new_paths: dict[int, tuple[int, ...]] = {}
        for end in ends:
            for gap in (*gaps, *(-gap for gap in gaps)):
                if abs(end + gap) <= farthest and end + gap not in paths:
                    new_paths.setdefault(end + gap, (*paths[end], gap))
        paths |= new_paths
        ends = list(new_paths)
    if remainder not in paths:
        raise CertificateError(f"rows: a mean is off by {remainder}, which moves between places cannot repair")
    return paths[remainder]


# Between these numbers of cells of a sensitivity one is tried each.
_CELLS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
# A margin, in cells, for rounding inputs to 2^16 steps a row.
_MARGIN = Fraction(1, 1 << 15)


def central_certificate(mechanism: CentralPiecewise) -> RowCertificate:
    """Return that of the coarsest table with a variance within 0.1 % of the mechanism's, at 32 or 64 bits a word."""
    variance, (span, D) = float(mechanism.worst_variance), _span_and_sensitivity(mechanism)
    for ends in pairwise(_CELLS):
        # The number whose whole cells reach the least beyond the interval.
        count = min(range(*ends), key=lambda count: math.ceil(span / D / 2 * count) / (span / D / 2 * count))
        for bits in (32, 64):
            table = central_table(mechanism, count, bits)
            if table is None or abs(float(table.worst_variance) / variance - 1) > PROMISED_DEVIATION:
                continue
            return RowCertificate.of(table, mechanism.epsilon, mechanism.sensitivity)
    raise CertificateError(
        f"rows: no table of at most {MAX_WEIGHTS} weights out of 2^64 has the variance of {mechanism.steps} steps, "
        f"each e^{shortest(mechanism.epsilon)} times the last, to within {PROMISED_DEVIATION}; fewer steps may"
    )


def _span_and_sensitivity(mechanism: CentralPiecewise) -> tuple[Fraction, Fraction]:
    lower, upper, D = (rational(float(v)) for v in (mechanism.lower, mechanism.upper, mechanism.sensitivity))
    return upper - lower, D


def central_table(mechanism: CentralPiecewise, resolution: int, bits: int) -> RowTable | None:
    """Return integer weights with steps of ``resolution`` codes and one row a cell, or None if they do not fit."""
    span, D = _span_and_sensitivity(mechanism)
    last_row = 2 * math.ceil(span * resolution / D / 2)
    gap = max(D / (resolution - _MARGIN), span / last_row)
    core = max(1, round(float(mechanism.core * span / gap)))
    widths = [core + 2 * resolution * k for k in range(mechanism.steps)]
    codes = last_row + widths[-1]
    if codes * (last_row + 1) > MAX_WEIGHTS:
        return None
    # The step that every cell of the window is on, counted inwards.
    window = sum(np.pad(np.ones(width, np.int64), (widths[-1] - width) // 2) for width in widths)
    outside_and_steps = [last_row, *np.bincount(window)[1:].tolist()]
    levels = _levels(mechanism.epsilon, outside_and_steps, 1 << bits)
    if levels is None:
        return None
    heights = np.array(levels, np.uint64)[window]
    # The outer level at every code, and what is left of the total on top, symmetric.
    surplus, extra = divmod((1 << bits) - levels[0] * last_row - sum(heights.tolist()), codes)
    base, edge = np.full(codes, levels[0] + surplus, np.uint64), (codes - extra) // 2
    base[edge : codes - edge] += np.uint64(1)
    base[codes // 2] -= np.uint64(codes - 2 * edge - extra)  # An even number of codes about a middle one leaves it out.
    weights = np.stack([base + np.pad(heights - np.uint64(levels[0]), (i, last_row - i)) for i in range(last_row + 1)])
    interval = float(mechanism.lower), float(mechanism.upper)
    ends = outer_ends(*interval, gap * last_row / 2)
    return RowTable(weights, tuple(range(1 - codes, codes, 2)), bits, *ends, *interval)


def _levels(epsilon: float, counts: list[int], total: int) -> list[int] | None:
    """Return weights of a code outside the window and on each step inwards, for the highest core that fits."""
    E = exp_lower_bound(float(epsilon))

    def levels(core: int) -> list[int]:
        weights = [core]
        for _ in counts[1:]:
            # Rounded up: so no ratio is above e^eps, and far steps that the total is too coarse for share its unit.
            weights.append(math.ceil(weights[-1] / E))
        return weights[::-1]

    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(map(mul, levels(middle), counts)) <= total else (low, middle)
    return levels(low) if low > 0 else None


def optimal_certificate(mechanism: Optimal) -> RowCertificate:
    """Return the certificate with words of 32 bits, or of 64 where weights out of 2^32 would be too coarse."""
    claim = float(mechanism.epsilon), None if mechanism.sensitivity is None else float(mechanism.sensitivity)
    with suppress(CertificateError):
        return RowCertificate.of(row_table(mechanism, 32), *claim)
    try:
        return RowCertificate.of(row_table(mechanism, 64), *claim)
    except CertificateError as error:
        if path := FILES.get(digest(mechanism.probabilities)):
            raise CertificateError(f"{error}; the table was read from {path}: delete it to solve it again") from error
        raise
