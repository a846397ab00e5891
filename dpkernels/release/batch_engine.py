"""Exact reports of a batch on the CPU: every value uses the table and the grid of its entry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np

from dpkernels.exact.batches import ExactBatch, Stack
from dpkernels.exact.noise.grid import NoiseGrid
from dpkernels.exact.sampler import MAX_RANGES, all_in_pieces, indices_within, options_on_cpu, order_keys
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import RealArray
from dpkernels.pytrees import PyTree, tree_map
from dpkernels.release.host_engine import (
    BLOCK_VALUES,
    BOUND_SLOTS,
    WORD_TYPES,
    Workspace,
    aligned,
    drawn_words,
    fill_words,
    is_far_from_subnormal,
    lent_workspace,
    padded_length,
)
from dpkernels.release.inputs import Bounds, finite_keys, keys_of_ends
from dpkernels.release.process import calling_thread_device, kernel_settings
from dpkernels.shapes import Float, Num, UInt

_ALWAYS_NUMPY = 1 << 12  # Up to this number of values NumPy is faster than a call of a compiled program.
Columns = tuple[RealArray, ...]

_KERNEL_DISAGREES = "x: the kernel found a value outside its interval, and NumPy did not; no report is made"


class BatchRelease:
    """An engine for the CPU. Value j of the array belongs to entry j modulo the batch's size."""

    def __init__(self, sampler: ExactBatch, key: bytes) -> None:
        self.sampler, self.key = sampler, key

    def __call__(
        self, x: Num[np.ndarray, " values"], start: int, out: Float[np.ndarray, " values"], bounds: Bounds, row: int
    ) -> int:
        """Check every value of ``x``, fill ``out`` with reports, and return their number.

        ``start`` is the index of the first value in the whole release, and ``row`` that in the array.
        """
        entries = _entries(self.sampler.size, row, len(x))
        if len(self.sampler.stacks) == 1 and not self._is_short(len(x), out.dtype):
            self._release_together(x, start, out, bounds, row, entries)
        else:
            self._release_by_stack(bounds.check_entries(x, entries, row), start, out, entries)
        return len(x)

    def _is_short(self, count: int, dtype: np.dtype) -> bool:
        return count <= _ALWAYS_NUMPY and self.sampler.derived[is_far_from_subnormal, dtype]

    def _release_together(
        self,
        x: Num[np.ndarray, " values"],
        start: int,
        out: Float[np.ndarray, " values"],
        bounds: Bounds,
        row: int,
        entries: slice | np.ndarray,
    ) -> None:
        """Fill ``out`` by one program, which checks values as it reads them.

        It replaces a value outside its entry's interval before noise is added. If there is such a value, no report is
        copied to ``out``.
        """
        (stack,), count = self.sampler.stacks, len(x)
        values = bounds.check_entries(x, entries, row) if bounds.clip else x
        ends = None if bounds.clip else (bounds, x.dtype)
        workspace = self._workspace(stack, count, out.dtype)
        workspace.take_values(values)
        skip = start % BLOCK_VALUES
        fill_words(workspace.word_buffers(count, skip), self.key, self.sampler.words, start - skip)
        reports = _compiled_reports(self.sampler, 0, workspace, count, entries, row % self.sampler.size, ends)
        if reports is not None:
            out[:] = reports
            checked = workspace.x[:count]
            self._complete(0, workspace.word_buffers(count), checked, start, entries, out)
        workspace.give_back()
        if reports is None:
            bounds.check_entries(x, entries, row)
            raise RuntimeError(_KERNEL_DISAGREES)

    def _release_by_stack(
        self, x: Num[np.ndarray, " values"], start: int, out: Float[np.ndarray, " values"], entries: slice | np.ndarray
    ) -> None:
        """Fill ``out`` with the reports of checked values, those of one stack after the other."""
        skip = start % BLOCK_VALUES
        buffers = [aligned(skip + len(x), WORD_TYPES[need.bits]) for need in self.sampler.words]
        fill_words(buffers, self.key, self.sampler.words, start - skip)
        words = [buffer[skip:] for buffer in buffers]
        if len(self.sampler.stacks) == 1:
            self._release(0, x, words, start, entries, out)
            return
        rows = np.arange(self.sampler.size)[entries]
        for stack_index, stack in enumerate(self.sampler.stacks):
            indices = np.flatnonzero(self.sampler.stack_index[rows] == stack_index)
            if len(indices):
                reports, stack_words = np.empty(len(indices), out.dtype), [words[i][indices] for i in stack.words]
                self._release(stack_index, x[indices], stack_words, indices + start, rows[indices], reports)
                out[indices] = reports

    def _release(
        self,
        stack_index: int,
        x: Num[np.ndarray, " values"],
        words: list[UInt[np.ndarray, " values"]],
        start: int | np.ndarray,
        entries: slice | np.ndarray,
        out: Float[np.ndarray, " values"],
    ) -> None:
        """Fill ``out`` with the reports of one stack's values; ``start`` is the first index, or the index of each."""
        stack, count = self.sampler.stacks[stack_index], len(x)
        if self._is_short(count, out.dtype):
            with np.errstate(all="ignore"):
                out[:] = stack.sampler.reports(x, words, *_parameters(self.sampler, stack_index, entries))
        else:
            workspace = self._workspace(stack, count, out.dtype)
            workspace.take_values(x)
            for buffer, drawn in zip(workspace.word_buffers(count), words, strict=True):
                buffer[:] = drawn
            reports = _compiled_reports(self.sampler, stack_index, workspace, count, entries)
            if reports is None:
                raise RuntimeError(_KERNEL_DISAGREES)
            out[:] = reports
            workspace.give_back()
        self._complete(stack_index, words, x, start, entries, out)

    def _workspace(self, stack: Stack, count: int, dtype: np.dtype) -> Workspace:
        types = tuple(WORD_TYPES[self.sampler.words[i].bits] for i in stack.words)
        return lent_workspace(types, padded_length(count), dtype)

    def _complete(
        self,
        stack_index: int,
        words: list[np.ndarray],
        x: np.ndarray,
        start: int | np.ndarray,
        entries: slice | np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Replace the reports whose noise takes words of later turns: those of a value's own index."""
        for table, indices in self._incomplete(stack_index, words[0], entries):
            sampler: Any = self.sampler.samplers[table]
            positions = indices + start if isinstance(start, int) else start[indices]
            noise_words = partial(drawn_words, self.key, sampler.words[0], positions)
            entry, _ = _parameters(self.sampler, stack_index, np.arange(self.sampler.size)[entries][indices])
            drawn, values = [word[indices] for word in words], x[indices].astype(out.dtype, copy=False)
            with np.errstate(all="ignore"):
                out[indices] = sampler.complete(values, *drawn, noise_words, NoiseGrid(*entry))

    def _incomplete(
        self, stack_index: int, noise: np.ndarray, entries: slice | np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield tables, each with the indices of its values whose noise takes words of later turns."""
        words = self.sampler.derived[_incomplete_words, stack_index]
        candidates = np.arange(len(noise)) if words is None else indices_within(noise, words)
        if len(candidates):
            tables = self.sampler.certificate.table_index[entries][candidates]
            for table in np.unique(tables).tolist():
                indices = candidates[tables == table]
                indices = indices[self.sampler.samplers[table].are_incomplete(noise[indices])]
                if len(indices):
                    yield table, indices


def _entries(size: int, first: int, count: int) -> slice | np.ndarray:
    """Return the entries of some values of a batch, as a slice if they follow each other."""
    first %= size
    return slice(first, first + count) if first + count <= size else np.arange(first, first + count) % size


def _incomplete_words(sampler: ExactBatch, stack_index: int) -> tuple[range, ...] | None:
    """Return the words that are incomplete for some table of a stack, or None if these are of many ranges."""
    ranges = list[range]()
    for table in sampler.stacks[stack_index].tables.tolist():
        words = sampler.samplers[table].incomplete_words
        if words is None:
            return None
        ranges.extend(words)
    smallest = range(max((words.stop for words in ranges if not words.start), default=0))
    larger = dict.fromkeys(words for words in ranges if words.start)
    return (smallest, *larger) if len(larger) <= MAX_RANGES else None


def _parameters(sampler: ExactBatch, stack_index: int, entries: slice | np.ndarray) -> tuple[Columns, Columns]:
    """Return the parameters of some entries of a stack, and those of the entries' tables."""
    entry, table = sampler.entry_parameters[stack_index], sampler.table_parameters[stack_index]
    return _select(entry, entries), _select(table, entries)


def _select(columns: Columns, entries: slice | np.ndarray) -> Columns:
    """Return columns at some entries; a plain number is that of all entries."""
    return tuple(column[entries] if np.ndim(column) else column for column in columns)


Ends = tuple[Bounds, np.dtype] | None  # The interval of every entry, for values of a type; None if it was checked.


def _compiled_reports(
    sampler: ExactBatch,
    stack_index: int,
    workspace: Workspace,
    count: int,
    entries: slice | np.ndarray,
    first: int | None = None,
    ends: Ends = None,
) -> np.ndarray | None:
    """Return the reports of a workspace's values by the compiled program; None if a value is outside its interval.

    Values of consecutive entries read parameters that are kept on the device, those from entry ``first`` on.
    """
    length, dtype = len(workspace.x), workspace.x.dtype
    with kernel_settings(x64=True):
        for by_floats in (True, False) if sampler.stacks[stack_index].sampler.by_floats else (False,):
            interval_keys = sampler.derived[_interval_keys, stack_index, dtype, ends, by_floats]
            if first is not None:
                columns = sampler.derived[_device_columns, first, count, length, stack_index, interval_keys]
            else:
                parameters = _parameters(sampler, stack_index, entries)
                columns = _to_device((_select(interval_keys, entries), *parameters), length)
            shapes = tuple(column.shape for column in columns[0])
            program = sampler.derived[_program, stack_index, length, dtype, shapes, by_floats]
            workspace.reports, is_valid = program(workspace.reports, *workspace.arguments(), *columns)
            if bool(np.asarray(is_valid)):
                return np.asarray(workspace.reports)[:count]
    return None


class _Columns(tuple[RealArray, ...]):
    """Columns that are compared and hashed as one object, so that they can be in a key."""

    __hash__, __eq__ = object.__hash__, object.__eq__


def _interval_keys(sampler: ExactBatch, stack_index: int, dtype: np.dtype, ends: Ends, by_floats: bool) -> _Columns:
    """Return the ``order_keys`` of the ends of the entries' intervals; none if the program needs none.

    The program by floats needs none where all values within its radius are valid. A program whose reports read the ends
    has them anyway.
    """
    if ends is None:
        return _Columns(finite_keys(dtype))
    _limit_cache(sampler, (_interval_keys, stack_index, dtype, ends, by_floats))
    low, high = end_keys = ends[0].entry_keys(ends[1], dtype)
    stacked, entry = sampler.stacks[stack_index].sampler, sampler.entry_parameters[stack_index]
    if by_floats and stacked.by_floats:
        radius = np.asarray(stacked.by_floats.radius(entry), dtype)
        if (low <= order_keys(-radius)).all() and (order_keys(radius) <= high).all():
            return _Columns()
    if stacked.interval and dtype == np.float64:
        table_keys = keys_of_ends(*stacked.interval(entry))
        if all((a == b).all() for a, b in zip(table_keys, end_keys, strict=True)):
            return _Columns()
    return _Columns(end_keys)


def _to_device(columns: PyTree, length: int) -> PyTree:
    """Return columns padded to a length as JAX's arrays, of their own memory where it is aligned."""

    def padded(column: np.ndarray) -> Array:
        if not np.ndim(column):
            return jax.device_put(np.asarray(column), calling_thread_device())
        buffer = column
        if len(column) != length or column.ctypes.data % 64 or not column.flags.c_contiguous:
            buffer = aligned(length, column.dtype)
            buffer[: len(column)] = column
            buffer[len(column) :] = column[0]
        return jax.device_put(buffer, calling_thread_device(), may_alias=True)

    return tree_map(padded, columns)


_MAX_CACHED = 1 << 8  # Values of ``_interval_keys`` and ``_device_columns`` of a sampler.


def _device_columns(
    sampler: ExactBatch, first: int, count: int, length: int, stack_index: int, interval_keys: _Columns
) -> PyTree:
    """Return the columns that the program of a stack reads for consecutive entries, on the device."""
    _limit_cache(sampler, (_device_columns, first, count, length, stack_index, interval_keys))
    entries = _entries(sampler.size, first, count)
    return _to_device((_select(interval_keys, entries), *_parameters(sampler, stack_index, entries)), length)


def _limit_cache(sampler: ExactBatch, key: tuple[object, ...]) -> None:
    """Note a key of ``derived`` that is about to have a value, and forget the oldest value if there are too many."""
    cached = sampler.derived[_cached_keys,]
    cached.append(key)
    if len(cached) > _MAX_CACHED:
        sampler.derived.pop(cached.pop(0), None)


def _cached_keys(sampler: ExactBatch) -> list[tuple[object, ...]]:
    return []


def _program(
    sampler: ExactBatch,
    stack_index: int,
    length: int,
    dtype: np.dtype,
    shapes: tuple[tuple[int, ...], ...],
    by_floats: bool,
) -> jax.stages.Compiled:
    """Return the compiled program (memory, _, x, *words, interval_keys, entry, table) -> (reports, are_valid).

    The reports take over ``memory``. They are valid if every value is within the interval of its entry, and, of the
    program by floats, within its radius. A value outside the interval is replaced before it meets noise.
    """
    stacked, sharding = sampler.stacks[stack_index].sampler, jax.sharding.SingleDeviceSharding(calling_thread_device())

    def are_valid(x: Array, *columns: Array) -> RealArray:
        entry, value_keys = columns[len(shapes) :], order_keys(x)
        tests = list[RealArray]()
        if by_floats and stacked.by_floats:
            tests.append(abs(x) < stacked.by_floats.radius(entry))
        if shapes or stacked.interval:
            low, high = keys_of_ends(*stacked.interval(entry)) if stacked.interval and not shapes else columns[:2]
            tests.append((low <= value_keys) & (value_keys <= high))
        return reduce(and_, tests)

    def release(_: Array, __: Array, x: Array, *arguments: Array) -> tuple[RealArray, Array]:
        *words, interval_keys, entry, table = arguments
        inputs = jnp.where(are_valid(x, *interval_keys, *entry), x, jnp.zeros_like(x))
        reports = stacked.by_floats.reports if by_floats and stacked.by_floats else stacked.reports
        return reports(inputs, words, entry, table), all_in_pieces(are_valid, x, *interval_keys, *entry)

    def abstract(shape: tuple[int, ...], dtype: np.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    key_type, values = np.dtype(f"int{8 * dtype.itemsize}"), abstract((length,), dtype)
    words = [abstract((length,), WORD_TYPES[sampler.words[i].bits]) for i in sampler.stacks[stack_index].words]
    interval_keys = tuple(abstract(shape, key_type) for shape in shapes)
    entry, table = (
        tuple(abstract((length,) if np.ndim(column) else (), column.dtype) for column in columns[stack_index])
        for columns in (sampler.entry_parameters, sampler.table_parameters)
    )
    program = jax.jit(release, donate_argnums=0, keep_unused=True, compiler_options=options_on_cpu())
    unread = abstract((BOUND_SLOTS,), key_type)
    return program.lower(values, unread, values, *words, interval_keys, entry, table).compile()
