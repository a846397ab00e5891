"""The sampler of additive noise from an integer table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from dpkernels.exact.alias import alias_columns, stacked_alias_kernel
from dpkernels.exact.noise.grid import NoiseGrid, float_positions, positions
from dpkernels.exact.noise.tail import EDGE, MAX_TAIL_CODE
from dpkernels.exact.sampler import (
    MAX_RANGES,
    NOISE_STREAM,
    ROUNDING_STREAM,
    ExactSampler,
    FloatReports,
    NoiseWords,
    StackedSampler,
    Words,
    indices_within,
)
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree


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
        return self.grid.reports(positions(x, rounding, self.grid) + self.kernel(noise), x.dtype)

    @cached_property
    def grid(self) -> NoiseGrid:
        return NoiseGrid(self.table.grid_log2, self.table.points_per_bin)

    def are_incomplete(self, noise: np.ndarray) -> np.ndarray:
        """Return the indices of words that draw a tail or the remainder."""
        if (ranges := self.incomplete_words) is None:
            return np.flatnonzero(self._has_no_code(self.kernel(noise)))
        return indices_within(noise, ranges)

    @cached_property
    def incomplete_words(self) -> tuple[range, ...] | None:
        """Return the words that draw a tail or the remainder: the smallest ones, unless these fill their column."""
        rest, bits = self.table.rest, self.table.bits
        if rest << self.table.codes.bit_length() < 1 << bits:
            return (range(rest),) if rest else ()
        columns = alias_columns(self.table.kernel_weights, bits)
        starts = [i << bits - columns.log_columns for i in range(len(columns.packed) + 1)]
        aliased = np.flatnonzero(columns.alias[1:] == 0) + 1  # The other columns that draw outcome 0.
        if len(aliased) > MAX_RANGES:
            return None
        first = range(int(columns.threshold[0]) or starts[1])
        return first, *(range(starts[i] + int(columns.threshold[i]), starts[i + 1]) for i in aliased.tolist())

    def positions(self, x: RealArray, rounding: RealArray) -> RealArray:
        """Return the positions of inputs, in cells."""
        return positions(x, rounding, self.grid)

    def entry_parameters(self, claims: Mapping[str, np.ndarray]) -> NoiseGrid:
        """Return the grids of the table for the sensitivities of entries."""
        return self.certificate.entry_grids(claims)

    def least_safe_radius(self, claims: Mapping[str, np.ndarray]) -> float:
        return 2.0 ** (int(self.entry_parameters(claims).grid_log2.min()) - 1)

    @property
    def stack_key(self) -> tuple[object, ...]:
        return type(self), self.words

    @classmethod
    def stacked(cls, samplers: Sequence[ExactNoise]) -> StackedSampler:
        """Return the sampler of several tables; an entry's parameters are its grid, and its table's columns."""
        if len(samplers) == 1:
            kernel, table_parameters = samplers[0].kernel, tuple[np.ndarray, ...]()
        else:
            kernel, table_parameters = _stacked_kernel(samplers)

        def reports(x: RealArray, words: Sequence[RealArray], entry: Sequence[RealArray], table: PyTree) -> RealArray:
            (noise, rounding), grid = words, NoiseGrid(*entry)
            return grid.reports(positions(x, rounding, grid) + kernel(noise, *table), x.dtype)

        def float_reports(
            x: RealArray, words: Sequence[RealArray], entry: Sequence[RealArray], table: PyTree
        ) -> RealArray:
            (noise, rounding), grid = words, NoiseGrid(*entry)
            codes = kernel(noise, *table).astype(np.float64)
            return grid.reports(float_positions(x, rounding, grid) + codes, x.dtype)

        by_floats = FloatReports(float_reports, lambda entry: NoiseGrid(*entry).float_radius)
        return StackedSampler(reports, table_parameters, by_floats)

    def complete_reports(self, x: RealArray, *words: RealArray, noise_words: NoiseWords) -> RealArray:
        """Return the reports, those of the tail or the remainder by the words of later turns.

        A report beyond the edge is the edge. A code that stops at the largest one is there at any input.
        """
        if not self.table.rest:
            return self.reports(x, *words)
        noise, rounding = words
        if namespace(noise) is np:
            return self.complete(x, noise, rounding, noise_words, self.grid)
        # Seldom any of these is incomplete; if none is, the words of later turns are not drawn.
        ranges = self.incomplete_words or ()
        is_smallest = len(ranges) == 1 and ranges[0].start == 0
        incomplete = noise < noise.dtype.type(ranges[0].stop) if is_smallest else self._has_no_code(self.kernel(noise))
        state = jnp.any(incomplete), self.reports(x, *words)

        def complete(state: tuple[Array, RealArray]) -> tuple[Array, RealArray]:
            # Turn 0 draws the noise words again, so that they need not be kept for this.
            return state[0] & False, self.complete(x, noise_words(jnp.uint32(0)), rounding, noise_words, self.grid)

        # A loop of at most one turn: under vmap, lax.cond would compute both branches.
        return jax.lax.while_loop(lambda state: state[0], complete, state)[1]

    def complete(
        self, x: RealArray, noise: RealArray, rounding: RealArray, noise_words: NoiseWords, grid: NoiseGrid
    ) -> RealArray:
        """Return ``complete_reports`` of a table with a tail or a remainder, for inputs on a grid, or on one each."""
        codes = self.kernel(noise)
        xp, incomplete, position = namespace(codes), self._has_no_code(codes), positions(x, rounding, grid)
        if self.table.remainder:
            further = self._further_kernel(noise_words(xp.uint32(1))) + np.int32(self.table.remainder.first)
            return grid.reports(position + xp.where(incomplete, further, codes), x.dtype)
        # The first turn draws the side, and the others the blocks.
        side = (noise_words(xp.uint32(1)) & noise.dtype.type(1)).astype(np.int64) * 2 - 1
        tail_codes = side * self._tail_distance(incomplete, noise_words)
        return grid.reports(xp.clip(position + xp.where(incomplete, tail_codes, codes), -EDGE, EDGE), x.dtype)

    def _has_no_code(self, codes: RealArray) -> RealArray:
        """Return which draws have no code yet: those of a tail or the remainder."""
        return codes < np.int32(self.table.first)

    @proven("endless_noise#proof")
    def _tail_distance(self, in_tail: RealArray, noise_words: NoiseWords) -> RealArray:
        """Return the distance from 0 of codes in the tail, int64, drawn with the words of as many turns as it takes."""
        tail, xp, kernel = self.table.tail, namespace(in_tail), self._further_kernel
        if tail is None:
            raise ValueError("table: has no tail")

        def turn(state: tuple[Real, RealArray, RealArray]) -> tuple[Real, RealArray, RealArray]:
            number, distance, pending = state
            t = kernel(noise_words(number))
            distance = xp.minimum(distance + xp.where(pending, t, np.int32(0)), MAX_TAIL_CODE)
            return number + 1, distance, pending & (t == tail.codes)

        start = in_tail.astype(np.int64) * (self.table.last + 1)
        if xp is not np:
            return jax.lax.while_loop(lambda state: state[2].any(), turn, (jnp.uint32(2), start, in_tail))[1]
        state: tuple[Real, RealArray, RealArray] = (2, start, in_tail)
        while state[2].any():
            state = turn(state)
        return state[1]

    @cached_property
    def _further_kernel(self) -> Callable[..., RealArray]:
        return (self.table.remainder or self.table.tail).kernel()


def _stacked_kernel(samplers: Sequence[ExactNoise]) -> tuple[Callable[..., RealArray], tuple[np.ndarray, ...]]:
    """Return the sampler (word, parameters of each value's table) -> code, and the parameters of every table."""
    columns = [alias_columns(sampler.table.kernel_weights, sampler.table.bits) for sampler in samplers]
    outcomes, *alias_parameters = stacked_alias_kernel(columns)
    firsts = np.array([sampler.table.kernel_first for sampler in samplers], np.int32)
    return lambda r, *table: outcomes(r, *table[:-1]) + table[-1], (*alias_parameters, firsts)
