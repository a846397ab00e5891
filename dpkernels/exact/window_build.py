"""Build window tables: choose the number of codes and rows, and round weights towards the guarantee.

The table is a proposal. ``certificate.certify_table`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.windows import WindowTable
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import Windowed, height_at, relative_height
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.mechanisms.windowed.windows import Uniform

# A table is accepted if its variances are within this of the mechanism's, relatively, and its window height within
# 0.5 %. This determines its width as well.
ACCEPTED_DEVIATION = 2e-4
# If no table is accepted, the best one is used if it is within this. ``estimate_mean`` allows for this difference.
PROMISED_DEVIATION = 1e-3
_HEIGHT_TOLERANCE = 0.005

# Cell masses come from float64 cdfs; this share of the window's height makes their rounding conservative.
_SLACK = 1e-8

# Whether two divisions sample the table (else alias columns), log2 of its total, the most codes: cheapest first.
_ORDER = (
    (True, 32, 1 << 12),
    (False, 32, 1 << 12),
    (False, 32, 1 << 14),
    (True, 64, 1 << 14),
    (False, 64, 1 << 14),
    (True, 64, 1 << 17),
    (False, 64, 1 << 17),
)
_MOST_CODES = 1 << 17  # of the last candidates

Deviation = Callable[[Windowed, WindowTable], float]

# Fewer rows would need more than 16 bits to round an input among them.
_FEWEST_ROWS = 1 << 8


def _interval(mechanism: TwoPoint | Windowed) -> tuple[Any, Any]:
    """Return (lower, upper): plain numbers, as all of a mechanism that is certified."""
    return mechanism.lower, mechanism.upper


def two_point_table(mechanism: TwoPoint, bits: int = 32) -> WindowTable:
    """Return Duchi's mechanism as two codes and a window of one: 2 a + kappa = 2^bits, (a + kappa)/a <= e^eps."""
    total = 1 << bits
    a = math.ceil(total / (1 + exp_lower_bound(mechanism.epsilon)))
    base, window = np.full(2, a, np.uint64), np.full(1, total - 2 * a, np.uint64)
    return WindowTable(base, window, bits, *_interval(mechanism))


def placed_table(mechanism: SquareWave, bits: int | None = None, codes: int | None = None) -> WindowTable:
    """Return ``windowed_table`` of the unbiased counterpart, with the values moved towards the middle.

    Raises:
        CertificateError: no table has the counterpart's variances and the width to within 0.1 %.
    """

    def deviation(unbiased: Windowed, table: WindowTable) -> float:
        width = len(table.window) / table.shifts / 2
        return max(_deviation(unbiased, table), abs(width / mechanism.half_width - 1))

    return windowed_table(mechanism.unbiased, bits, codes, deviation).placed


def windowed_table(
    mechanism: Windowed, bits: int | None = None, codes: int | None = None, deviation: Deviation | None = None
) -> WindowTable:
    """Return the first table, from the cheapest to sample up, that is faithful to a windowed mechanism.

    Args:
        mechanism: with concrete parameters.
        bits: log2 of the total, with ``codes``; by default 32, or 64 where 32 are not enough.
        codes: the largest number of output codes. By default 4,096 are tried first, then more; tables must have at
            least 256 rows.
        deviation: maps the mechanism and a table to their relative difference; by default that of their variances.

    Raises:
        CertificateError: the mechanism's height is not private at its epsilon, or no table has its variances to
            within 0.1 %. The second condition is not applied if bits and codes are given.
    """
    relative = _permitted_height(mechanism)
    best, best_deviation = None, math.inf
    for tier in _tiers(mechanism, relative, bits, codes):
        for table in tier:
            off = (deviation or _deviation)(mechanism, table)
            if off < best_deviation:
                best, best_deviation = table, off
        if best is not None and best_deviation <= ACCEPTED_DEVIATION:
            return best
    if best is None or (codes is None and best_deviation > PROMISED_DEVIATION):
        raise CertificateError(
            f"lattice: no table of at most {_MOST_CODES} codes and at least {_FEWEST_ROWS} rows has the variance of a "
            f"window of width {shortest(mechanism.width)} at epsilon {shortest(mechanism.epsilon)} to within "
            f"{PROMISED_DEVIATION}"
        )
    return best


def _tiers(
    mechanism: Windowed, relative: float | None, bits: int | None, codes: int | None
) -> Iterator[Iterable[WindowTable]]:
    """Yield groups of candidate tables, the cheapest to sample first."""
    flat = isinstance(mechanism.window, Uniform) and isinstance(mechanism.base, Constant)
    order = _ORDER if codes is None else ((True, bits or 32, codes), (False, bits or 32, codes))
    for divides, table_bits, limit in order:
        if divides and flat:
            tables = _flat_tables(mechanism, relative, table_bits, limit)
            yield [table for table in tables if codes is not None or _usual(mechanism, table)]
        elif not divides:
            for table in _cell_tables(mechanism, relative, table_bits, limit):
                yield [table] if codes is not None or _usual(mechanism, table) else []


def _usual(mechanism: Windowed, table: WindowTable) -> bool:
    """Return whether a table has enough rows, and a window as high as the mechanism's."""
    height = float(table.window.max() / table.base.max()) / mechanism.relative_height
    return table.shifts >= _FEWEST_ROWS and height >= 1 - _HEIGHT_TOLERANCE


def _deviation(mechanism: Windowed, table: WindowTable) -> float:
    """Return the relative difference of the worst-case or central variance from the mechanism's, the larger of both."""
    central, worst = _float_variances(table)
    return float(max(central / mechanism.central_variance - 1, abs(worst / mechanism.worst_variance - 1)))


def _permitted_height(mechanism: Windowed) -> float | None:
    """Return the mechanism's ratio k / y, or None where it is the largest private one; refuse a larger one."""
    ratio = mechanism.relative_height
    best = relative_height(mechanism.window, mechanism.base, mechanism.width, mechanism.epsilon, "pointwise")
    if ratio > best * (1 + 1e-9):
        raise CertificateError(
            f"relative_height: {shortest(ratio)} is {ratio / best - 1:.3g} above what epsilon "
            f"{shortest(mechanism.epsilon)} allows"
        )
    return None if ratio >= best * (1 - 1e-9) else float(ratio)


def _flat_tables(mechanism: Windowed, relative: float | None, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield solutions of N a + w kappa = 2^bits with N = 2^g p, w = 2^g q and p - q = 2^h, w/N near m/2.

    Then p a + q kappa = 2^(bits-g) fixes a modulo q, S = 2^(g+h) is a power of two, and the smallest a with
    kappa / a <= e^eps - 1 wastes at most q/a of the ratio.
    """
    largest = exp_lower_bound(mechanism.epsilon) - 1
    if relative is not None:
        largest = min(largest, Fraction(relative))
    share = mechanism.width / 2
    for h in range(18):
        for q in _odd_near(share / (1 - share) * 2**h):
            p = q + 2**h
            for g in range(max(0, limit.bit_length() - p.bit_length() - 4), bits):
                if p << g > limit:
                    break
                total = 1 << (bits - g)
                least = math.ceil(total / (p + q * largest))
                a = least + (total * pow(p, -1, q) - least) % q
                kappa = (total - p * a) // q
                if a > 0 and kappa > 0:
                    base, window = np.full(p << g, a, np.uint64), np.full(q << g, kappa, np.uint64)
                    yield WindowTable(base, window, bits, *_interval(mechanism))


def _odd_near(value: float) -> Iterable[int]:
    below = int(value)
    below -= 1 - below % 2
    return {odd for odd in (below - 2, below, below + 2, below + 4) if odd > 0}


def _cell_tables(mechanism: Windowed, relative: float | None, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield tables of cell masses, one per octave of codes up to ``limit``, with w/N nearest to m/2 in the octave."""
    for octave in range(max(4, limit.bit_length() - 5), limit.bit_length()):
        codes = np.arange(1 << octave, min(limit, (2 << octave) - 1) + 1, 2)
        cells = 2 * np.round(mechanism.width * codes / 4)  # Even, so that the window mirrors like the base.
        at = int(np.argmin(np.abs(cells / codes - mechanism.width / 2)))
        table = _cell_table(mechanism, relative, bits, int(codes[at]), int(cells[at]))
        if table is not None:
            yield table


def _cell_table(mechanism: Windowed, relative: float | None, bits: int, codes: int, cells: int) -> WindowTable | None:
    """Return cell masses as integers: the window's rounded down, the base's up, the remainder added to the base.

    Weight added to the base of a code raises no ratio. Where every row's window covers a code, rounding can lower the
    smaller side by one; E/(E - 1) more in the base, E = e^eps, make up for it (docs/proofs/window_tables.md).
    """
    h, g, half = mechanism.window, mechanism.base, codes // 2
    if not 2 <= cells <= codes - 2:
        return None
    width = 2 * cells / codes
    best = relative_height(h, g, width, mechanism.epsilon, "pointwise") * (1 - _SLACK)
    height = height_at(best if relative is None else min(relative, best), h, g, width)
    window_mass = h.area * height * width
    covered = cells > codes - cells
    pad = math.ceil(1 / -math.expm1(-mechanism.epsilon)) if covered else 0
    scale = float((1 << bits) - (2 + pad) * codes)
    base = np.diff(g.cdf(np.linspace(-1, 0, half + 1))) * ((1 - window_mass) * scale)
    window = np.diff(h.cdf(np.linspace(0, 0.5, cells // 2 + 1))) * (window_mass * scale)
    base_weights = np.ceil(base).astype(np.uint64)
    window_weights = np.floor(window).astype(np.uint64)
    spare = (1 << (bits - 1)) - sum(base_weights.tolist()) - sum(window_weights.tolist())
    if spare < 0 or not window_weights.any():
        return None
    base_weights += np.uint64(spare // half)
    base_weights[half - spare % half :] += np.uint64(1)
    base_weights, window_weights = _mirrored(base_weights), _mirrored(window_weights)
    return WindowTable(base_weights, window_weights, bits, *_interval(mechanism))


def _mirrored(half: np.ndarray) -> np.ndarray:
    return np.concatenate([half, half[::-1]])


def _float_variances(table: WindowTable) -> tuple[float, float]:
    """Return the central and worst-case variance in float64, input rounding included, for choosing among tables."""
    total = float(1 << table.bits)
    n, w, s = table.codes, len(table.window), table.shifts
    base, window = table.base.astype(float) / total, table.window.astype(float) / total
    mass = window.sum()
    second = base @ (np.arange(n) - (n - 1) / 2) ** 2 + window @ (np.arange(w) - (w - 1) / 2) ** 2
    gap = (table.upper - table.lower) / s
    central = (second / mass**2 + 1 / (4 * mass)) * gap**2
    return float(central), float(central + (1 / mass - 1) * (table.upper - table.lower) ** 2 / 4)
