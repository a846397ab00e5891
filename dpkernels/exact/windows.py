"""Window tables: integer weights of windowed and two-point mechanisms, their certificates and their samplers.

A ``WindowTable`` has N output codes and S + 1 rows. Row s gives code j the weight

    base[j] + window[j - s],    0 <= j - s < w,    S = N - w,    total 2^bits for every s,

and code j stands for the value  middle + step (j - (N - 1)/2). An input between two rows' means is rounded to one of
them at random, so what holds for rows (mean, pure DP) holds for inputs.

The tables of mechanisms that are built here are proposals; ``BoundedCertificate.of`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np

from dpkernels.bounded_json import integer, real
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import (
    COVERS,
    MOST_WEIGHTS,
    BoundedCertificate,
    BoundedTable,
    CertificateError,
    exp_lower_bound,
    frozen_weights,
    integers,
    moments,
    sliding_extremes,
)
from dpkernels.exact.sampler import BoundedSampler, alias_columns, alias_kernel
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import SquareWave, Windowed, height_at, relative_height
from dpkernels.mechanisms.windowed.windows import Uniform
from dpkernels.numerics import RealArray, namespace


@dataclass(frozen=True, eq=False)
class WindowTable(BoundedTable):
    """Integer weights of a windowed mechanism."""

    base: np.ndarray  # N weights, uint64, the same for every row.
    window: np.ndarray  # w weights, uint64, placed at code s by row s.
    bits: int
    lower: float
    upper: float
    is_placed: bool = False  # The window's middle is the input itself, so means are nearer to the middle by ``slope``.

    def __post_init__(self) -> None:
        for name in ("base", "window"):
            object.__setattr__(self, name, frozen_weights(getattr(self, name)))

    @property
    def shifts(self) -> int:
        return len(self.base) - len(self.window)

    @property
    def doubled_places(self) -> range:
        return range(1 - len(self.base), len(self.base), 2)

    @property
    def outcomes(self) -> list[int]:
        """Return the weights of base codes, then of window positions, as Python integers."""
        return self.base.tolist() + self.window.tolist()

    @cached_property
    def window_total(self) -> int:
        return sum(self.window.tolist())

    @property
    def totals(self) -> list[int]:
        return [sum(self.outcomes)]

    @property
    def decisive_rows(self) -> tuple[int, int]:
        """Return the first and the last row, since means and inputs are both affine in the row."""
        return 0, self.shifts

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean by the input: 1, or the window's share of the total if it is placed."""
        return Fraction(self.window_total, self.total) if self.is_placed else Fraction(1)

    @property
    def placed(self) -> WindowTable:
        """Return the table with the same weights and its values contracted to the middle by the window's share."""
        return replace(self, is_placed=True)

    def row(self, s: int) -> np.ndarray:
        row = self.base.copy()
        row[s : s + len(self.window)] += self.window
        return row

    def row_moments(self, s: int) -> tuple[int, int]:
        (base1, base2), (window1, window2) = self._moments
        away = 2 * s - self.shifts  # Of the window's middle, in doubled places.
        second = base2 + window2 + 2 * away * window1 + away**2 * self.window_total
        return base1 + window1 + away * self.window_total, second

    @cached_property
    def _moments(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return ``moments`` of the base and of the window, each about its own middle."""
        width = len(self.window)
        base = moments(self.base.tolist(), self.doubled_places)
        return base, moments(self.window.tolist(), range(1 - width, width, 2))

    @cached_property
    def variance_terms(self) -> tuple[Fraction, Fraction, Fraction]:
        """Return (A, c, rho) with Var(x) = A + c (x - middle)^2 + r and 0 <= r <= rho, r the rounding between rows.

        With k = slope^2, row variances have c = k (total/window_total - 1), and rounding at a fraction f of the gap
        between two rows adds f (1 - f) (k + c) gap^2. With two rows this rounding is itself a parabola, and there is
        no other term.
        """
        half, k = self.shifts * self.gap / 2, self.slope**2
        end = max(self.row_variance(0), self.row_variance(self.shifts))
        if self.shifts == 1:
            return end + k * half**2, -k, Fraction(0)
        c = k * (Fraction(self.total, self.window_total) - 1)
        return end - c * half**2, c, (k + c) * self.gap**2 / 4

    @property
    def worst_variance(self) -> Fraction:
        return self.largest(self.variance_terms)

    def largest(self, terms: tuple[Fraction, Fraction, Fraction]) -> Fraction:
        """Return the largest A + c (x - middle)^2 + rho over the inputs."""
        A, c, rho = terms
        return A + max(Fraction(0), c * (self.shifts * self.gap / 2) ** 2) + rho

    def extremes(self, cells: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over all rows, as Python integers."""
        pad = np.zeros(self.shifts, np.uint64)
        # Row s puts window[j - s] on code j; over s = 0..S these are S + 1 neighbours of the padded window.
        high, low = sliding_extremes(np.concatenate([pad, self.window, pad]), self.rows)
        base = self.base.astype(object)
        return base + high, base + low

    @cached_property
    def is_flat(self) -> bool:
        """Return whether both parts are constant: then two divisions sample it, without a table."""
        return bool((self.base == self.base[0]).all() and (self.window == self.window[0]).all())

    @property
    def falls(self) -> bool:
        """Return whether both parts are even and fall from their middles."""
        for weights in (self.window, self.base):
            outward = weights[len(weights) // 2 :]
            if (weights != weights[::-1]).any() or (outward[1:] > outward[:-1]).any():
                return False
        return True

    def kernel(self) -> Callable[[RealArray, RealArray], RealArray]:
        """Return the sampler, (random word of ``bits`` bits, row) -> code, both of one shape."""
        if self.is_flat:
            word = np.dtype(f"uint{self.bits}").type
            a, kappa, base_total = word(self.base[0]), word(self.window[0]), word(self.codes * int(self.base[0]))

            def divided(r: RealArray, row: RealArray) -> RealArray:
                in_base = (r // a).astype(np.int32)
                in_window = row + ((r - base_total) // kappa).astype(np.int32)
                return namespace(r).where(r < base_total, in_base, in_window)

            return divided

        outcomes, n = alias_kernel(alias_columns(self.outcomes, self.bits)), np.int32(self.codes)

        def codes(r: RealArray, row: RealArray) -> RealArray:
            outcome = outcomes(r)
            return namespace(r).where(outcome < n, outcome, row + outcome - n)

        return codes

    def to_dict(self) -> dict[str, Any]:
        ends = {"lower": self.lower, "upper": self.upper}
        return {"base": _runs(self.base), "window": _runs(self.window), "bits": self.bits, **ends}

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> WindowTable:
        """Return the table in a payload, after a check of types and sizes only."""
        base, window = (_from_runs(name, payload[name]) for name in ("base", "window"))
        lower, upper = (real(name, payload[name]) for name in ("lower", "upper"))
        return cls(base, window, integer("bits", payload["bits"]), lower, upper)


def _runs(weights: np.ndarray) -> list[list[int]]:
    starts = np.flatnonzero(np.concatenate([[True], weights[1:] != weights[:-1]]))
    counts = np.diff(np.append(starts, len(weights)))
    return [[int(value), int(count)] for value, count in zip(weights[starts], counts, strict=True)]


def _from_runs(name: str, runs: Any) -> np.ndarray:
    if type(runs) is not list or not 0 < len(runs) <= MOST_WEIGHTS:
        raise ValueError(f"{name}: needs runs of weights, {MOST_WEIGHTS} at most")
    values, counts = zip(*(integers(name, run, 2) for run in runs), strict=True)
    if min(counts) < 1 or sum(counts) > MOST_WEIGHTS:
        raise ValueError(f"{name}: has {sum(counts)} weights; {MOST_WEIGHTS} at most, every run one or more")
    return np.repeat(frozen_weights(values), counts)


class WindowCertificate(BoundedCertificate, kind="window"):
    """Verified facts about one window table whose means are the inputs; see ``BoundedCertificate``."""

    table_type = WindowTable


class PlacedCertificate(BoundedCertificate, kind="placed window"):
    """Verified facts about a window table placed at the input: the mean lies between the input and the middle."""

    table_type = WindowTable
    is_unbiased = False
    facts = tuple("slope" if name == "mean_error" else name for name in BoundedCertificate.facts)

    @property
    def slope(self) -> Fraction:
        return self.table.slope

    @property
    def means(self) -> str:
        middle, slope = shortest(float(self.table.middle)), shortest(float(self.slope))
        return f"not the input: {middle} + {slope} (input - {middle}), biased towards the middle"

    @property
    def covers(self) -> str:
        return f"{COVERS} No mean is claimed: reports are biased."

    @classmethod
    def of(cls, table: WindowTable, epsilon: float, sensitivity: float | None = None) -> Self:  # type: ignore[override]
        """Verify the table with its values placed; see ``BoundedCertificate.of``."""
        return super().of(table.placed, epsilon, sensitivity)


class ExactWindow(BoundedSampler):
    """A mechanism that is one window table: windowed, square wave or two-point."""

    def values(self, outcomes: RealArray, dtype: Any) -> Any:
        if isinstance(outcomes, np.ndarray):
            return self._values[np.dtype(dtype)].take(outcomes)
        return self.reports_at(2 * outcomes - (self.table.codes - 1), dtype)

    @cached_property
    def _values(self) -> dict[np.dtype, np.ndarray]:
        """Return the values of all codes: one look-up costs less than the formula."""
        doubled = np.array(self.table.doubled_places, np.int32)
        return {np.dtype(dtype): self.reports_at(doubled, dtype) for dtype in (np.float32, np.float64)}


# Construction: the number of codes and rows, and weights rounded towards the guarantee

# A table is accepted if its variances are within this of the mechanism's, relatively, and its window height within
# 0.5 %. This determines its width as well. If none is, the best one is used if it is within what is promised:
# ``estimate_mean`` allows for this difference.
_ACCEPTED_DEVIATION, PROMISED_DEVIATION, _HEIGHT_TOLERANCE = 2e-4, 1e-3, 0.005
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
_MOST_CODES = 1 << 17  # Of the last candidates.
_FEWEST_ROWS = 1 << 8  # With fewer, rounding an input among them would need more than 16 bits.


def two_point_table(mechanism: TwoPoint, bits: int = 32) -> WindowTable:
    """Return Duchi's mechanism as two codes and a window of one: 2 a + kappa = 2^bits, (a + kappa)/a <= e^eps."""
    total = 1 << bits
    a = math.ceil(total / (1 + exp_lower_bound(mechanism.epsilon)))
    base, window = np.full(2, a, np.uint64), np.full(1, total - 2 * a, np.uint64)
    return WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


def windowed_table(
    mechanism: Windowed, bits: int | None = None, codes: int | None = None, half_width: float | None = None
) -> WindowTable:
    """Return the first table, from the cheapest to sample up, that is faithful to a windowed mechanism.

    Its variances, and the window's half width in widths of the interval if that is given, are near the mechanism's.
    With ``codes``, any deviation is accepted, of a table with at most this many codes and the total 2^bits. A
    CertificateError says that the mechanism's height is not private at its epsilon, or that no table is near enough.
    """
    relative, best_deviation = _permitted_height(mechanism), math.inf
    best: Any = None
    is_flat = isinstance(mechanism.window, Uniform) and isinstance(mechanism.base, Constant)
    order = _ORDER if codes is None else ((True, bits or 32, codes), (False, bits or 32, codes))
    for divides, table_bits, limit in order:
        if divides and not is_flat:
            continue
        for table in (_flat_tables if divides else _cell_tables)(mechanism, relative, table_bits, limit):
            height = float(table.window.max() / table.base.max()) / mechanism.relative_height
            if codes is None and (table.shifts < _FEWEST_ROWS or height < 1 - _HEIGHT_TOLERANCE):
                continue
            off = _deviation(mechanism, table)
            if half_width is not None:
                off = max(off, abs(len(table.window) / table.shifts / 2 / half_width - 1))
            if off < best_deviation:
                best, best_deviation = table, off
            if not divides and best_deviation <= _ACCEPTED_DEVIATION:
                return best
        if best_deviation <= _ACCEPTED_DEVIATION:
            return best
    if best is None or (codes is None and best_deviation > PROMISED_DEVIATION):
        raise CertificateError(
            f"lattice: no table of at most {_MOST_CODES} codes and at least {_FEWEST_ROWS} rows has the variance of a "
            f"window of width {shortest(mechanism.width)} at epsilon {shortest(mechanism.epsilon)} to within "
            f"{PROMISED_DEVIATION}"
        )
    return best


def placed_table(mechanism: SquareWave, bits: int | None = None, codes: int | None = None) -> WindowTable:
    """Return ``windowed_table`` of the unbiased counterpart, of the same width, with values moved to the middle."""
    return windowed_table(mechanism.unbiased, bits, codes, mechanism.half_width).placed


def _deviation(mechanism: Windowed, table: WindowTable) -> float:
    """Return the relative difference of the worst-case or central variance, the larger, for choosing among tables."""
    total, n, w, span = float(table.total), table.codes, len(table.window), table.upper - table.lower
    base, window = table.base.astype(float) / total, table.window.astype(float) / total
    mass = window.sum()
    second = base @ (np.arange(n) - (n - 1) / 2) ** 2 + window @ (np.arange(w) - (w - 1) / 2) ** 2
    central = (second / mass**2 + 1 / (4 * mass)) * (span / table.shifts) ** 2
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
    largest, share = min(exp_lower_bound(mechanism.epsilon) - 1, relative), mechanism.width / 2
    for h in range(18):
        near = (int(share / (1 - share) * 2**h) - 1) | 1
        for q in {odd for odd in (near - 2, near, near + 2, near + 4) if odd > 0}:
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
                    yield WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


def _cell_tables(mechanism: Windowed, relative: Fraction | float, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield tables of cell masses, one per octave of codes up to ``limit``, with w/N nearest to m/2 in the octave."""
    for octave in range(max(4, limit.bit_length() - 5), limit.bit_length()):
        codes = np.arange(1 << octave, min(limit, (2 << octave) - 1) + 1, 2)
        cells = 2 * np.round(mechanism.width * codes / 4)  # Even, so that the window mirrors like the base.
        at = int(np.argmin(np.abs(cells / codes - mechanism.width / 2)))
        table = _cell_table(mechanism, relative, bits, int(codes[at]), int(cells[at]))
        if table is not None:
            yield table


def _cell_table(
    mechanism: Windowed, relative: Fraction | float, bits: int, codes: int, cells: int
) -> WindowTable | None:
    """Return cell masses as integers: the window's rounded down, the base's up, the remainder added to the base.

    Weight added to the base of a code raises no ratio. Where every row's window covers a code, rounding can lower the
    smaller side by one; E/(E - 1) more in the base, E = e^eps, make up for it (docs/proofs/window_tables.md).
    """
    h, g, half = mechanism.window, mechanism.base, codes // 2
    if not 2 <= cells <= codes - 2:
        return None
    width = 2 * cells / codes
    best = relative_height(h, g, width, mechanism.epsilon, "pointwise") * (1 - _SLACK)
    height = height_at(float(min(relative, best)), h, g, width)
    window_mass = h.area * height * width
    is_covered = cells > codes - cells
    pad = math.ceil(1 / -math.expm1(-mechanism.epsilon)) if is_covered else 0
    scale = float((1 << bits) - (2 + pad) * codes)
    # The lower halves of both; the upper ones mirror them.
    base = np.diff(g.cdf(np.linspace(-1, 0, half + 1))) * ((1 - window_mass) * scale)
    window = np.diff(h.cdf(np.linspace(0, 0.5, cells // 2 + 1))) * (window_mass * scale)
    base, window = np.ceil(base).astype(np.uint64), np.floor(window).astype(np.uint64)
    spare = (1 << (bits - 1)) - sum(base.tolist()) - sum(window.tolist())
    if spare < 0 or not window.any():
        return None
    base += np.uint64(spare // half)
    base[half - spare % half :] += np.uint64(1)
    base, window = np.append(base, base[::-1]), np.append(window, window[::-1])
    return WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))
