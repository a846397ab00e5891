"""Noise tables: integer weights of additive noise on a grid, and their sampler.

An input x is rounded to the position

    floor((floor(x/g + 1/2) + r) / M),    g = 2^grid_log2,    r uniform on 0..M-1,

a stochastic rounding to multiples of the bin width h = M g, in exact arithmetic: x/g moves a float's exponent, the rest
are integers. The report is h (position + code), with code ``first + j`` of probability weights[j] / 2^bits whatever
x is. The privacy of the release is that of the table shifted by up to ceil(ceil(D/g) / M) bins, see
docs/proofs/noise_tables.md. The hockey-stick divergence is computed at every such shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dpkernels.bounded_json import integer
from dpkernels.decimals import shortest
from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import (
    MAX_WEIGHTS,
    CertificateError,
    frozen_weights,
    integers,
    moments,
)
from dpkernels.exact.remainder import Remainder
from dpkernels.exact.sampler import (
    MAX_RANGES,
    NOISE_STREAM,
    ROUNDING_STREAM,
    ExactSampler,
    Later,
    NearReports,
    Stacked,
    Words,
    alias_columns,
    alias_kernel,
    indices_within,
    stacked_alias_kernel,
)
from dpkernels.exact.tail import EDGE, MAX_TAIL_CODE, Tail
from dpkernels.jax_on_use import jax, jnp
from dpkernels.numerics import Real, RealArray, namespace, power_of_two
from dpkernels.proven import proven

# Of ``grid_log2``: subnormal inputs, which processors may read as 0, are within half of the finest grid of 0 in float64
# (float32 inputs are checked when they come); with the largest, reports are finite.
GRID_LOG2_RANGE = (-1021, 960)
FINEST = 12  # log2 of the most cells of a sensitivity D: rounding inputs to them adds at most D^2 2^-26 of variance.
# Inputs are first put on a grid of the sensitivity over 2^22 to 2^23: fine, and within 64 bits far from 0.
GRID_BITS = 22
# log2 of the most sensitivities of a bin, of wide noise: a bin has less than 2^32 grid points.
WIDEST = 8


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Integer weights of additive noise; the module states their meaning."""

    weights: np.ndarray  # uint64, one a code.
    first: int  # The code of weights[0].
    bits: int  # log2 of the total.
    grid_log2: int  # log2 of g, to which inputs are rounded first.
    points_per_bin: int  # M, the grid points in a bin.
    tail: Tail | None = None  # Codes beyond the first and the last one, which are otherwise impossible.
    remainder: Remainder | None = None  # What the weights lack, on these and further codes.

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))

    @cached_property
    def outcomes(self) -> list[int]:
        return self.weights.tolist()

    @property
    def codes(self) -> int:
        return len(self.weights)

    @property
    def last(self) -> int:
        return self.first + self.codes - 1

    @property
    def ends(self) -> tuple[int, int]:
        """Return the first and the last code that are possible, but for a tail."""
        if self.remainder is None:
            return self.first, self.last
        return min(self.first, self.remainder.first), max(self.last, self.remainder.last)

    @cached_property
    def total(self) -> int:
        return arithmetic.total(self.weights) + self.rest

    @property
    def rest(self) -> int:
        """Return the weight of draws that need the words of later turns."""
        if self.remainder:
            return self.remainder.rest
        return 2 * self.tail.rest if self.tail else 0

    @cached_property
    def finite(self) -> NoiseTable:
        """Return this table, or one without a tail or remainder, near it in 64 bits, and whose ends weigh more.

        For estimates: either side of a code has at least the true probability, as long as that is below a half.
        """
        if self.remainder:
            return self._without_remainder(self.remainder)
        if self.tail is None:
            return self
        block, blocks, scale = self.tail.block / 2.0**self.bits, list[np.ndarray](), float(self.tail.rest)
        while scale * block[0] >= 1:
            blocks.append(np.floor(scale * block).astype(np.uint64))
            scale *= float(self.tail.again)
        side = np.concatenate([*blocks, np.zeros(1, np.uint64)])
        side = side[: np.count_nonzero(side) + 1]
        side[-1] = self.tail.rest - arithmetic.total(side)
        weights = np.concatenate([side[::-1], self.weights, side])
        return replace(self, weights=weights, first=self.first - len(side), tail=None)

    def _without_remainder(self, remainder: Remainder) -> NoiseTable:
        """Return the table with the remainder's weight at either end, and as much less at the code 0."""
        weights = np.zeros(len(remainder.weights), np.uint64)
        start = self.first - remainder.first
        weights[start : start + self.codes] = self.weights
        weights[[0, -1]] += np.uint64(remainder.rest)
        weights[-remainder.first] -= np.uint64(remainder.rest)
        return replace(self, weights=weights, first=remainder.first, remainder=None)

    @cached_property
    def bin_width(self) -> Fraction:
        """Return h, data units between neighbouring reports."""
        return self.points_per_bin * Fraction(2) ** self.grid_log2

    def cells(self, sensitivity: Fraction) -> int:
        """Return the largest number of cells between the positions of inputs D apart."""
        return cells_apart(sensitivity, self.grid_log2, self.points_per_bin)

    @cached_property
    def _mean_and_square(self) -> tuple[Fraction, Fraction]:
        first, second = (
            Fraction(moment, self.total) for moment in moments(self.outcomes, range(self.first, self.last + 1))
        )
        if self.tail:  # The same on both sides.
            mean, square = self.tail.moments
            start = self.last + 1
            second += Fraction(2 * self.tail.rest, self.total) * (start**2 + 2 * start * mean + square)
        if self.remainder:
            mean, square = self.remainder.moments
            first += Fraction(self.rest, self.total) * mean
            second += Fraction(self.rest, self.total) * square
        return self.bin_width * first, self.bin_width**2 * second

    @property
    def mean(self) -> Fraction:
        return self._mean_and_square[0]

    @property
    def variance(self) -> Fraction:
        """Return the exact variance of the noise; rounding the input adds at most h^2/4."""
        return self._mean_and_square[1] - self.mean**2

    @cached_property
    def is_unimodal(self) -> bool:
        """Return whether weights never fall and then rise."""
        rises = self.weights[1:] > self.weights[:-1]
        falls = self.weights[1:] < self.weights[:-1]
        return not (falls.any() and rises[int(falls.argmax()) :].any())

    def kernel(self) -> Callable[[RealArray], RealArray]:
        """Return the sampler, random word of ``bits`` bits -> code, int32; the one before the first draws the rest."""
        outcomes, first = alias_kernel(alias_columns(self.kernel_weights, self.bits)), np.int32(self.kernel_first)
        return lambda r: outcomes(r) + first

    @property
    def kernel_weights(self) -> np.ndarray:
        """Return the weights of the sampler's outcomes: that of the rest comes first, if there is one."""
        return np.append(np.uint64(self.rest), self.weights) if self.rest else self.weights

    @property
    def kernel_first(self) -> int:
        """Return the code of the first outcome."""
        return self.first - 1 if self.rest else self.first

    def to_dict(self) -> Mapping[str, object]:
        # A copy of the list that is sampled, because the caller may change it.
        weights, grid = self.weights.tolist(), {"grain": self.grid_log2, "grains": self.points_per_bin}
        tail = {} if self.tail is None else {"tail": self.tail.to_dict()}
        remainder = {} if self.remainder is None else {"remainder": self.remainder.to_dict()}
        return {"weights": weights, "first": self.first, "bits": self.bits, **grid, **tail, **remainder}

    @classmethod
    def from_dict(cls, payload: Any) -> NoiseTable:
        """Return the table in a payload, after a check of types and sizes only."""
        first, bits, grid_log2, points_per_bin = (
            integer(name, payload[name]) for name in ("first", "bits", "grain", "grains")
        )
        tail = Tail.from_dict(payload["tail"], bits) if "tail" in payload else None
        remainder = Remainder.from_dict(payload["remainder"], bits) if "remainder" in payload else None
        weights = frozen_weights(integers("weights", payload["weights"], MAX_WEIGHTS))
        return cls(weights, first, bits, grid_log2, points_per_bin, tail, remainder)


def cells_apart(distance: Fraction, grid_log2: int, points_per_bin: int) -> int:
    """Return ceil(ceil(distance / g) / M), the most cells by which the positions of such inputs can differ."""
    return math.ceil(Fraction(math.ceil(distance / Fraction(2) ** grid_log2), points_per_bin))


def grid(sensitivity: Fraction, bins: int | Fraction) -> tuple[int, int]:
    """Return (grid_log2, M) with ``bins`` bins of M grid points that just cover D, which has 2^22 to 2^23 points."""
    grid_log2 = math.frexp(float(sensitivity))[1] - 1 - GRID_BITS
    if not GRID_LOG2_RANGE[0] <= grid_log2 <= GRID_LOG2_RANGE[1]:
        raise CertificateError(
            f"sensitivity: {shortest(float(sensitivity))} is too small or too large; rescale the data"
        )
    return grid_log2, math.ceil(Fraction(math.ceil(sensitivity / Fraction(2) ** grid_log2), bins))


def grids(sensitivities: np.ndarray, bins_log2: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every sensitivity D, (grid_log2, ceil(D/g), M) of ``grid`` with 2^bins_log2 bins; exact."""
    exponents = np.frexp(sensitivities)[1].astype(np.int64) - 1 - GRID_BITS
    points = np.ceil(np.ldexp(sensitivities, -exponents)).astype(np.int64)  # At most 2^23: exact in floats.
    M = -(-points >> bins_log2) if bins_log2 >= 0 else points << -bins_log2
    return exponents, points, M


@proven("noise_tables#proof")
def excess(weights: np.ndarray, shift: int, ratio: Fraction) -> Fraction:
    """Return the sum of max(0, w[j] - ratio w[j - shift]) over codes, for a shift of either sign; w is 0 outside."""
    alone, paired = (weights[:shift], weights[shift:]) if shift >= 0 else (weights[shift:], weights[:shift])
    others = weights[: len(paired)] if shift >= 0 else weights[len(alone) :]
    above = arithmetic.exceeds(paired, others, ratio)
    return arithmetic.total(alone) + arithmetic.total(paired[above]) - ratio * arithmetic.total(others[above])


def hockey_stick(table: NoiseTable, shift: int, ratio: Fraction) -> Fraction:
    """Return delta at e^eps = ratio between the table and itself shifted by up to ``shift`` cells, exactly."""
    # Shifts beyond the table's length have the same delta. For unimodal weights the largest shift is the worst.
    shift = min(shift, table.codes)
    shifts = [shift] if table.is_unimodal else range(1, shift + 1)
    worst = max(excess(table.weights, sign * s, ratio) for s in shifts for sign in (1, -1))
    return worst / table.total


def rounding_share(table: NoiseTable, sensitivity: Fraction) -> Fraction:
    """Return the largest probability, at most 1, with which rounding moves inputs D apart to different positions.

    Where a bin has M grid points and D fewer, n, this is the probability of n neighbouring values of r, or of all but
    M - n. Of the words, n neighbouring values have at most ceil(n 2^32/M), and M - n at least floor((M - n) 2^32/M).
    """
    points = math.ceil(sensitivity / Fraction(2) ** table.grid_log2)
    return min(Fraction(1), Fraction(-((-points << 32) // table.points_per_bin), 1 << 32))


@proven("noise_tables#proof")
def mixed_hockey_stick(table: NoiseTable, share: Fraction, ratio: Fraction) -> Fraction:
    """Return delta between the table T and the mixture of T and its neighbour S, T shifted by a cell, exactly.

    With a the share of S and rho the ratio, in one order T - rho ((1 - a) T + a S) = (1 - rho + rho a) T - rho a S, in
    the other (1 - a) T + a S - rho T = a S - (rho - 1 + a) T.
    """
    rest = 1 - ratio * (1 - share)
    forward = [rest * excess(table.weights, sign, ratio * share / rest) for sign in (1, -1) if rest > 0]
    backward = [share * excess(table.weights, sign, (ratio - 1 + share) / share) for sign in (1, -1)]
    return max(Fraction(0), *forward, *backward) / table.total


class ExactNoise(ExactSampler):
    """Additive noise from a table, on single values or on vectors."""

    @cached_property
    def words(self) -> tuple[Words, ...]:
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, 32)

    @property
    def subnormal_safe_radius(self) -> float:
        """Return half of the grid; inputs strictly closer to 0 are rounded to 0."""
        return 2.0 ** (self.table.grid_log2 - 1)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        """Return the reports; those of ``are_incomplete`` are of no use."""
        noise, rounding = words
        return _values(positions(x, rounding, self.place) + self.kernel(noise), self.place, x.dtype)

    @cached_property
    def place(self) -> NoisePlace:
        return NoisePlace(self.table.grid_log2, self.table.points_per_bin)

    def are_incomplete(self, noise: np.ndarray) -> np.ndarray:
        """Return the indices of words that draw a tail or the remainder."""
        ranges = self.incomplete_words
        return np.flatnonzero(self._goes_on(self.kernel(noise))) if ranges is None else indices_within(noise, ranges)

    @cached_property
    def incomplete_words(self) -> tuple[range, ...] | None:
        """Return the words that draw a tail or the remainder: the smallest ones, unless these fill their column."""
        rest, bits = self.table.rest, self.table.bits
        if rest << self.table.codes.bit_length() < 1 << bits:
            return (range(rest),) if rest else ()
        columns = alias_columns(self.table.kernel_weights, bits)
        starts = [i << bits - columns.log_columns for i in range(len(columns.packed) + 1)]
        own = int(columns.threshold[0]) or starts[1]
        others = np.flatnonzero(columns.alias[1:] == 0) + 1
        if len(others) > MAX_RANGES:
            return None
        return range(own), *(range(starts[i] + int(columns.threshold[i]), starts[i + 1]) for i in others.tolist())

    def positions(self, x: RealArray, rounding: RealArray) -> RealArray:
        """Return the positions of inputs, in cells."""
        return positions(x, rounding, self.place)

    def entry_places(self, claims: Mapping[str, np.ndarray]) -> NoisePlace:
        """Return the places of the table for the sensitivities of entries."""
        return self.certificate.entry_places(claims)

    def safe_radius_of(self, claims: Mapping[str, np.ndarray]) -> float:
        return 2.0 ** (int(self.entry_places(claims).grid_log2.min()) - 1)

    def completed_at(
        self, x: RealArray, noise: RealArray, rounding: RealArray, later: Later, place: tuple[RealArray, ...]
    ) -> RealArray:
        """Return ``all_reports`` of values with places of their own."""
        return self.completed(x, noise, rounding, later, NoisePlace(*place))

    @classmethod
    def stacked(cls, samplers: Sequence[ExactNoise]) -> Stacked:
        """Return the noise of several tables; the numbers of an entry are its place, and its table's columns."""
        if len(samplers) == 1:
            kernel, numbers = samplers[0].kernel, tuple[np.ndarray, ...]()
        else:
            kernel, numbers = _stacked_kernel(samplers)

        def reports(x: RealArray, words: Sequence[RealArray], place: NoisePlace, table: RealArray) -> RealArray:
            (noise, rounding), place = words, NoisePlace(*place)
            return _values(positions(x, rounding, place) + kernel(noise, *table), place, x.dtype)

        def near_reports(x: RealArray, words: Sequence[RealArray], place: NoisePlace, table: RealArray) -> RealArray:
            (noise, rounding), place = words, NoisePlace(*place)
            code = kernel(noise, *table).astype(np.float64)
            return _values(near_positions(x, rounding, place) + code, place, x.dtype)

        return Stacked(reports, numbers, NearReports(near_reports, lambda place: reach(NoisePlace(*place))))

    def all_reports(self, x: RealArray, *words: RealArray, later: Later) -> RealArray:
        """Return the reports, those of the tail or the remainder by the words of later turns.

        A report beyond the edge is the edge. A code that stops at the largest one is there at any input.
        """
        if not self.table.rest:
            return self.reports(x, *words)
        noise, rounding = words
        if namespace(noise) is np:
            return self.completed(x, noise, rounding, later, self.place)
        # Seldom any of these goes on; if none does, the words of later turns are not drawn.
        ranges = self.incomplete_words or ()
        is_smallest = len(ranges) == 1 and ranges[0].start == 0
        goes_on = noise < noise.dtype.type(ranges[0].stop) if is_smallest else self._goes_on(self.kernel(noise))
        state = goes_on.any(), self.reports(x, *words)

        def complete(state: tuple[Any, RealArray]) -> tuple[Any, RealArray]:
            # Turn 0 draws the noise words again, so that they need not be kept for this.
            return state[0] & False, self.completed(x, later(jnp.uint32(0)), rounding, later, self.place)

        # A loop of at most one turn: under vmap, lax.cond would compute both branches.
        return jax.lax.while_loop(lambda state: state[0], complete, state)[1]

    def completed(
        self, x: RealArray, noise: RealArray, rounding: RealArray, later: Later, place: NoisePlace
    ) -> RealArray:
        """Return ``all_reports`` of a table with a rest, for inputs at a place, or at one place each."""
        code = self.kernel(noise)
        xp, goes_on, position = namespace(code), self._goes_on(code), positions(x, rounding, place)
        if self.table.remainder:
            further = self._further_kernel(later(xp.uint32(1))) + np.int32(self.table.remainder.first)
            return _values(position + xp.where(goes_on, further, code), place, x.dtype)
        # The first turn draws the side, and the others the blocks.
        side = (later(xp.uint32(1)) & noise.dtype.type(1)).astype(np.int64) * 2 - 1
        far = side * self._distance(goes_on, later)
        return _values(xp.clip(position + xp.where(goes_on, far, code), -EDGE, EDGE), place, x.dtype)

    def _goes_on(self, code: RealArray) -> RealArray:
        return code < np.int32(self.table.first)

    @proven("endless_noise#proof")
    def _distance(self, in_tail: RealArray, later: Later) -> RealArray:
        """Return the distance from 0 of codes in the tail, int64, drawn with the words of as many turns as it takes."""
        tail, xp, kernel = self.table.tail, namespace(in_tail), self._further_kernel
        if tail is None:
            raise ValueError("table: has no tail")

        def goes_on(state: tuple[Any, Any, Any]) -> RealArray:
            return state[2].any()

        def turn(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            number, distance, pending = state
            t = kernel(later(number))
            distance = xp.minimum(distance + xp.where(pending, t, np.int32(0)), MAX_TAIL_CODE)
            return number + 1, distance, pending & (t == tail.codes)

        start = in_tail.astype(np.int64) * (self.table.last + 1)
        if xp is not np:
            return jax.lax.while_loop(goes_on, turn, (jnp.uint32(2), start, in_tail))[1]
        state = 2, start, in_tail
        while goes_on(state):
            state = turn(state)
        return state[1]

    @cached_property
    def _further_kernel(self) -> Callable[..., RealArray]:
        return (self.table.remainder or self.table.tail).kernel()


def _stacked_kernel(samplers: Sequence[ExactNoise]) -> tuple[Callable[..., RealArray], tuple[np.ndarray, ...]]:
    """Return the sampler (word, numbers of each value's table) -> code, and the numbers of every table."""
    columns = [alias_columns(sampler.table.kernel_weights, sampler.table.bits) for sampler in samplers]
    outcomes, *numbers = stacked_alias_kernel(columns)
    firsts = np.array([sampler.table.kernel_first for sampler in samplers], np.int32)
    return lambda r, *table: outcomes(r, *table[:-1]) + table[-1], (*numbers, firsts)


class NoisePlace(NamedTuple):
    """Where a table is: plain numbers, or arrays with a number for every value, of few bytes."""

    grid_log2: RealArray  # An integer, or int16.
    points_per_bin: RealArray  # M, an integer, or uint32.

    @classmethod
    def of(cls, grid_log2: np.ndarray, points_per_bin: np.ndarray) -> NoisePlace:
        """Return the places of grids."""
        if not 1 <= points_per_bin.min() <= points_per_bin.max() < 1 << 32 or np.abs(grid_log2).max() > 1 << 14:
            raise ValueError("points_per_bin: must be from 1 to 2^32 - 1, and grid_log2 from -2^14 to 2^14")
        return cls(grid_log2.astype(np.int16), points_per_bin.astype(np.uint32))

    @property
    def finer(self) -> Real:
        """Return 2/g."""
        return power_of_two(1 - self._exponent)

    @property
    def bin_width(self) -> Real:
        """Return h = M g, exactly."""
        M = self.points_per_bin
        return (float(M) if isinstance(M, int) else M.astype(np.float64)) * power_of_two(self._exponent)

    @property
    def _exponent(self) -> Real:
        return self.grid_log2 if isinstance(self.grid_log2, int) else self.grid_log2.astype(np.int64)


@proven("noise_tables#proof")
def positions(x: RealArray, rounding: RealArray, place: NoisePlace) -> RealArray:
    """Return floor((floor(x/g + 1/2) + r)/M) with r = floor(word M / 2^32), exactly."""
    xp, M, one = namespace(x), place.points_per_bin, np.uint64
    # x/g is exact, g being a power of two, and floor(x/g + 1/2) is floor((floor(2x/g) + 1)/2), in integers.
    doubled = xp.floor(x.astype(np.float64, copy=False) * place.finer)
    # Inputs are within this; clipping moves no two of them apart, so that no input whatever can overflow.
    doubled = xp.minimum(xp.maximum(doubled, -(2.0**62)), 2.0**62).astype(np.int64)
    unsigned = one(M) if isinstance(M, int) else M.astype(np.uint64)
    # Division is faster without signs, so a multiple of M is added and taken off again.
    ahead = (1 << 62) // M if isinstance(M, int) else (1 << 62) // M.astype(np.int64)
    shifted = (((doubled + 1) >> 1) + ahead * M).astype(np.uint64) + _uniform(rounding, unsigned)
    return (shifted // unsigned).astype(np.int64) - ahead


def _uniform(rounding: RealArray, M: Any) -> RealArray:
    """Return r = floor(word M / 2^32), which is below M."""
    return rounding.astype(np.uint64) * M >> np.uint64(32)


def reach(place: NoisePlace) -> Real:
    """Return the distance from 0, 2^50 g, below which inputs have ``near_positions``."""
    return 2.0**51 / place.finer


@proven("noise_tables#proof")
def near_positions(x: RealArray, rounding: RealArray, place: NoisePlace) -> RealArray:
    """Return ``positions`` as floats, for inputs within ``reach``: processors divide floats faster than integers.

    All numbers are integers below 2^53, which floats hold. The quotient q = p/M is below 2^52, so it is rounded by less
    than a half, and its floor is off by at most 1, which the remainder p - M floor(q) shows.
    """
    xp, M = namespace(x), place.points_per_bin
    doubled = xp.floor(x.astype(np.float64, copy=False) * place.finer)
    r, m = _uniform(rounding, M.astype(np.uint64)), M.astype(np.float64)
    p = xp.floor((doubled + 1) * 0.5) + r.astype(np.uint32).astype(np.float64)
    q = xp.floor(p / m)
    remainder = p - q * m
    return q + (remainder >= m).astype(np.float64) - (remainder < 0).astype(np.float64)


def _values(position: RealArray, place: NoisePlace, dtype: np.dtype) -> RealArray:
    return (position.astype(np.float64, copy=False) * place.bin_width).astype(dtype, copy=False)
