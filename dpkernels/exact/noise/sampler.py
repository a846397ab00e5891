"""The sampler of additive noise from an integer table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.exact.alias import alias_columns, stacked_alias_kernel
from dpkernels.exact.noise.grid import NoisePlace, _values, near_positions, positions, reach
from dpkernels.exact.noise.tail import EDGE, MAX_TAIL_CODE
from dpkernels.exact.sampler import (
    MAX_RANGES,
    NOISE_STREAM,
    ROUNDING_STREAM,
    ExactSampler,
    Later,
    NearReports,
    Stacked,
    Words,
    indices_within,
)
from dpkernels.jax_on_use import jax, jnp
from dpkernels.numerics import RealArray, namespace
from dpkernels.proven import proven


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
