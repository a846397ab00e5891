"""Construction of window tables. ``BoundedCertificate.of`` then verifies or refuses them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.exact.bounded.certificate import PROMISED_DEVIATION
from dpkernels.exact.bounded.windows import WindowTable
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import SquareWave, Windowed, relative_height, window_height
from dpkernels.mechanisms.windowed.windows import Uniform
from dpkernels.proven import proven

# A table is accepted if its variances are within this of the mechanism's, relatively.
_ACCEPTED_DEVIATION = 2e-4
# Its window height has to be within this, relatively, which determines its width as well.
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
_MAX_CODES = 1 << 17  # Of the last candidates.
_MIN_ROWS = 1 << 8  # With fewer, rounding an input among them would need more than 16 bits.


def two_point_table(mechanism: TwoPoint, bits: int = 32) -> WindowTable:
    """Return Duchi's mechanism as two codes and a window of one: 2 a + kappa = 2^bits, (a + kappa)/a <= e^eps."""
    total = 1 << bits
    a = math.ceil(total / (1 + exp_lower_bound(mechanism.epsilon)))
    base, window = np.full(2, a, np.uint64), np.full(1, total - 2 * a, np.uint64)
    return WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


@proven("window_tables#proof")
def windowed_table(
    mechanism: Windowed, bits: int | None = None, codes: int | None = None, half_width: float | None = None
) -> WindowTable:
    """Return the first table, from the cheapest to sample up, that is faithful to a windowed mechanism.

    Its variances, and the window's half width in widths of the interval if that is given, are near the mechanism's.
    With ``codes``, any deviation is accepted, of a table with at most this many codes and the total 2^bits. A
    CertificateError says that the mechanism's height is not private at its epsilon, or that no table is near enough.
    """
    lower, upper = float(mechanism.lower), float(mechanism.upper)
    mechanism = mechanism.on_unit()  # So that the weights do not depend on the interval.
    relative, best_deviation = _permitted_height(mechanism), math.inf
    best: WindowTable | None = None
    is_flat = isinstance(mechanism.window, Uniform) and isinstance(mechanism.base, Constant)
    order = _ORDER if codes is None else ((True, bits or 32, codes), (False, bits or 32, codes))
    for divides, table_bits, limit in order:
        if divides and not is_flat:
            continue
        for table in (_flat_tables if divides else _cell_tables)(mechanism, relative, table_bits, limit):
            height = float(table.window.max() / table.base.max()) / mechanism.relative_height
            if codes is None and (table.last_row < _MIN_ROWS or height < 1 - _HEIGHT_TOLERANCE):
                continue
            deviation = _deviation(mechanism, table)
            if half_width is not None:
                deviation = max(deviation, abs(len(table.window) / table.last_row / 2 / half_width - 1))
            if deviation < best_deviation:
                best, best_deviation = replace(table, lower=lower, upper=upper), deviation
            if best is not None and not divides and best_deviation <= _ACCEPTED_DEVIATION:
                return best
        if best is not None and best_deviation <= _ACCEPTED_DEVIATION:
            return best
    if best is None or (codes is None and best_deviation > PROMISED_DEVIATION):
        raise CertificateError(
            f"lattice: no table of at most {_MAX_CODES} codes and at least {_MIN_ROWS} rows has the variance of a "
            f"window of width {shortest(mechanism.width)} at epsilon {shortest(mechanism.epsilon)} to within "
            f"{PROMISED_DEVIATION}"
        )
    return best


def square_wave_table(mechanism: SquareWave, bits: int | None = None, codes: int | None = None) -> WindowTable:
    """Return ``windowed_table`` of the unbiased counterpart, of the same width, with values moved to the middle."""
    return windowed_table(mechanism.unbiased, bits, codes, mechanism.half_width).contracted


def _deviation(mechanism: Windowed, table: WindowTable) -> float:
    """Return the relative difference of the worst-case or central variance, the larger, for choosing among tables."""
    total, n, w, span = float(table.total), table.codes, len(table.window), table.upper - table.lower
    base, window = table.base.astype(float) / total, table.window.astype(float) / total
    mass = window.sum()
    second = base @ (np.arange(n) - (n - 1) / 2) ** 2 + window @ (np.arange(w) - (w - 1) / 2) ** 2
    central = (second / mass**2 + 1 / (4 * mass)) * (span / table.last_row) ** 2
    worst = central + (1 / mass - 1) * span**2 / 4
    return float(max(central / mechanism.central_variance - 1, abs(worst / mechanism.worst_variance - 1)))


def _permitted_height(mechanism: Windowed) -> Fraction | float:
    """Return the mechanism's ratio k / y, or infinity where it is the largest private one; refuse a larger one."""
    ratio = mechanism.relative_height
    best = relative_height(mechanism.window, mechanism.base, mechanism.width, mechanism.epsilon, "pointwise")
    if ratio > best * (1 + 1e-9):
        raise CertificateError(
            f"relative_height: {shortest(ratio)} is {ratio / best - 1:.3g} above what epsilon "
            f"{shortest(mechanism.epsilon)} allows"
        )
    return math.inf if ratio >= best * (1 - 1e-9) else Fraction(float(ratio))


def _flat_tables(mechanism: Windowed, relative: Fraction | float, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield solutions of N a + w kappa = 2^bits with N = 2^g p, w = 2^g q and p - q = 2^h, w/N near m/2.

    Then p a + q kappa = 2^(bits-g) fixes a modulo q, S = 2^(g+h) is a power of two, and the smallest a with
    kappa / a <= e^eps - 1 wastes at most q/a of the ratio.
    """
    largest, ratio = min(exp_lower_bound(mechanism.epsilon) - 1, relative), mechanism.width / 2
    for h in range(18):
        odd = (int(ratio / (1 - ratio) * 2**h) - 1) | 1
        for q in {q for q in (odd - 2, odd, odd + 2, odd + 4) if q > 0}:
            p = q + 2**h
            for g in range(max(0, limit.bit_length() - p.bit_length() - 4), bits):
                if p << g > limit:
                    break
                total = 1 << (bits - g)
                least_base = math.ceil(total / (p + q * largest))
                a = least_base + (total * pow(p, -1, q) - least_base) % q
                kappa = (total - p * a) // q
                if a > 0 and kappa > 0:
                    base, window = np.full(p << g, a, np.uint64), np.full(q << g, kappa, np.uint64)
                    yield WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


def _cell_tables(mechanism: Windowed, relative: Fraction | float, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield tables of cell masses, one per octave of codes up to ``limit``, with w/N nearest to m/2 in the octave."""
    for octave in range(max(4, limit.bit_length() - 5), limit.bit_length()):
        codes = np.arange(1 << octave, min(limit, (2 << octave) - 1) + 1, 2)
        window_codes = 2 * np.round(mechanism.width * codes / 4)  # Even, so that the window mirrors like the base.
        nearest = int(np.argmin(np.abs(window_codes / codes - mechanism.width / 2)))
        table = _cell_table(mechanism, relative, bits, int(codes[nearest]), int(window_codes[nearest]))
        if table is not None:
            yield table


@proven("window_tables#proof")
def _cell_table(
    mechanism: Windowed, relative: Fraction | float, bits: int, codes: int, window_codes: int
) -> WindowTable | None:
    """Return cell masses as integers: the window's rounded down, the base's up, the remainder added to the base.

    Weight added to the base of a code raises no ratio. Where every row's window covers a code, rounding can lower the
    smaller side by one; E/(E - 1) more in the base, E = e^eps, make up for it (docs/proofs/window_tables.md).
    """
    h, g, half_codes = mechanism.window, mechanism.base, codes // 2
    if not 2 <= window_codes <= codes - 2:
        return None
    width = 2 * window_codes / codes
    best = relative_height(h, g, width, mechanism.epsilon, "pointwise") * (1 - _SLACK)
    height = window_height(float(min(relative, best)), h, g, width)
    window_mass = h.area * height * width
    is_covered = window_codes > codes - window_codes
    pad = math.ceil(1 / -math.expm1(-mechanism.epsilon)) if is_covered else 0
    scale = float((1 << bits) - (2 + pad) * codes)
    # The lower halves of both; the upper ones mirror them.
    base = np.diff(g.cdf(np.linspace(-1, 0, half_codes + 1))) * ((1 - window_mass) * scale)
    window = np.diff(h.cdf(np.linspace(0, 0.5, window_codes // 2 + 1))) * (window_mass * scale)
    base, window = np.ceil(base).astype(np.uint64), np.floor(window).astype(np.uint64)
    spare = (1 << (bits - 1)) - sum(base.tolist()) - sum(window.tolist())
    if spare < 0 or not window.any():
        return None
    base += np.uint64(spare // half_codes)
    base[half_codes - spare % half_codes :] += np.uint64(1)
    base, window = np.append(base, base[::-1]), np.append(window, window[::-1])
    return WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))
