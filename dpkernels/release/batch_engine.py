"""Exact reports of a batch on the CPU: every value by the table of its entry, on the entry's own grid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np

from dpkernels.exact.batches import ExactBatch, Stack
from dpkernels.exact.sampler import MAX_RANGES, all_in_pieces, indices_within, options_on_cpu, order_keys
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import RealArray
from dpkernels.pytrees import tree_map
from dpkernels.random import host
from dpkernels.release.host_engine import (
    BLOCK_VALUES,
    KEYS,
    WORD_TYPES,
    Workspace,
    aligned,
    is_far_from_subnormal,
    lent_workspace,
    padded_length,
    words_at,
)
from dpkernels.release.inputs import Bounds, finite_keys, keys_of_ends
from dpkernels.release.process import calling_thread_device, own_settings

_ALWAYS_NUMPY = 1 << 12  # Up to this number of values NumPy is faster than a call of a compiled program.
_DISAGREE = "x: the kernel found a value outside its interval, and NumPy did not; no report is made"


class BatchRelease:
    """An engine for the CPU. Value j of the array belongs to entry j modulo the batch's size."""

    def __init__(self, sampler: ExactBatch, key: bytes) -> None:
        self.sampler, self.key = sampler, key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray, bounds: Bounds, row: int) -> int:
        """Check every value of ``x``, fill ``out`` with reports, and return their number.

        ``start`` is the index of the first value in the whole release, and ``row`` that in the array.
        """
        entries = self._entries(row, len(x))
        if len(self.sampler.stacks) == 1 and not self._is_short(len(x), out.dtype):
            self._release_together(x, start, out, bounds, row, entries)
        else:
            self._release_by_stack(bounds.check_entries(x, entries, row), start, out, entries)
        return len(x)

    def _entries(self, first: int, count: int) -> slice | np.ndarray:
        """Return the entries of some values, as a slice if they follow each other."""
        first %= self.sampler.size
        if first + count <= self.sampler.size:
            return slice(first, first + count)
        return np.arange(first, first + count) % self.sampler.size

    def _is_short(self, count: int, dtype: np.dtype) -> bool:
        return count <= _ALWAYS_NUMPY and self.sampler.derived[is_far_from_subnormal, dtype]

    def _release_together(
        self, x: np.ndarray, start: int, out: np.ndarray, bounds: Bounds, row: int, entries: slice | np.ndarray
    ) -> None:
        """Fill ``out`` by one program, which checks values as it reads them.

        It replaces a value outside its entry's interval before noise is added. If there is such a value, no report is
        copied to ``out``.
        """
        (stack,), count = self.sampler.stacks, len(x)
        values = bounds.check_entries(x, entries, row) if bounds.clip else x
        ends = None if bounds.clip else (bounds, x.dtype)
        space = self._workspace(stack, count, out.dtype)
        space.take_values(values)
        self._fill(space.words_of(count, skip := start % BLOCK_VALUES), start - skip)
        reports = _by_xla(self.sampler, 0, space, count, entries, row % self.sampler.size, ends)
        if reports is not None:
            out[:] = reports
            self._complete(0, space.words_of(count), space.x[:count], start, entries, out)  # What was checked.
        space.give_back()
        if reports is None:
            bounds.check_entries(x, entries, row)
            raise RuntimeError(_DISAGREE)

    def _release_by_stack(self, x: np.ndarray, start: int, out: np.ndarray, entries: slice | np.ndarray) -> None:
        """Fill ``out`` with the reports of checked values, those of one stack after the other."""
        skip = start % BLOCK_VALUES
        buffers = [aligned(skip + len(x), WORD_TYPES[need.bits]) for need in self.sampler.words]
        self._fill(buffers, start - skip)
        words = [buffer[skip:] for buffer in buffers]
        if len(self.sampler.stacks) == 1:
            self._release(0, x, words, start, entries, out)
            return
        rows = np.arange(self.sampler.size)[entries]
        for number, stack in enumerate(self.sampler.stacks):
            own = np.flatnonzero(self.sampler.stack_of[rows] == number)
            if len(own):
                part = np.empty(len(own), out.dtype)
                self._release(number, x[own], [words[i][own] for i in stack.words], own + start, rows[own], part)
                out[own] = part

    def _release(
        self,
        number: int,
        x: np.ndarray,
        words: list[np.ndarray],
        start: Any,
        entries: slice | np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Fill ``out`` with the reports of one stack's values; ``start`` is the first index, or the index of each."""
        stack, count = self.sampler.stacks[number], len(x)
        if self._is_short(count, out.dtype):
            with np.errstate(all="ignore"):
                out[:] = stack.stacked.reports(x, words, *_numbers(self.sampler, number, entries))
        else:
            space = self._workspace(stack, count, out.dtype)
            space.take_values(x)
            for buffer, drawn in zip(space.words_of(count), words, strict=True):
                buffer[:] = drawn
            reports = _by_xla(self.sampler, number, space, count, entries)
            if reports is None:
                raise RuntimeError(_DISAGREE)
            out[:] = reports
            space.give_back()
        self._complete(number, words, x, start, entries, out)

    def _workspace(self, stack: Stack, count: int, dtype: np.dtype) -> Workspace:
        types = tuple(WORD_TYPES[self.sampler.words[i].bits] for i in stack.words)
        return lent_workspace(types, padded_length(count), dtype)

    def _fill(self, buffers: list[np.ndarray], first: int) -> None:
        """Fill one buffer a stream with words from value ``first`` on, a multiple of BLOCK_VALUES."""
        source = host.Keystream(self.key)
        for need, buffer in zip(self.sampler.words, buffers, strict=True):
            source.fill(buffer, need.stream, first * need.bits // 512)

    def _complete(
        self,
        number: int,
        words: list[np.ndarray],
        x: np.ndarray,
        start: Any,
        entries: slice | np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Replace the reports whose noise takes words of later turns: those of a value's own index."""
        for table, places in self._incomplete(number, words[0], entries):
            member: Any = self.sampler.samplers[table]
            indices = places + start if isinstance(start, int) else start[places]
            later = partial(words_at, self.key, member.words[0], indices)
            place = _numbers(self.sampler, number, np.arange(self.sampler.size)[entries][places])[0]
            drawn, values = [word[places] for word in words], x[places].astype(out.dtype, copy=False)
            with np.errstate(all="ignore"):
                out[places] = member.completed_at(values, *drawn, later, place)

    def _incomplete(
        self, number: int, noise: np.ndarray, entries: slice | np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield tables, each with the places of its values whose noise takes words of later turns."""
        words = self.sampler.derived[_incomplete_words, number]
        places = np.arange(len(noise)) if words is None else indices_within(noise, words)
        if len(places):
            table_of = self.sampler.certificate.table_of[entries][places]
            for table in np.unique(table_of).tolist():
                own = places[table_of == table]
                own = own[self.sampler.samplers[table].are_incomplete(noise[own])]
                if len(own):
                    yield table, own


def _incomplete_words(sampler: ExactBatch, number: int) -> tuple[range, ...] | None:
    """Return the words that are incomplete for some table of a stack, or None if these are of many ranges."""
    ranges = list[range]()
    for table in sampler.stacks[number].tables.tolist():
        words = sampler.samplers[table].incomplete_words
        if words is None:
            return None
        ranges.extend(words)
    first = range(max((each.stop for each in ranges if not each.start), default=0))
    others = dict.fromkeys(each for each in ranges if each.start)
    return (first, *others) if len(others) <= MAX_RANGES else None


def _numbers(sampler: ExactBatch, number: int, entries: slice | np.ndarray) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the numbers of some entries' places and tables, in one stack."""
    place, table = sampler.places[number], sampler.table_numbers[number]
    return _at(place, entries), _at(table, entries)


def _at(columns: tuple[np.ndarray, ...], entries: slice | np.ndarray) -> tuple[np.ndarray, ...]:
    """Return columns at some entries; a plain number is that of all entries."""
    return tuple(column[entries] if np.ndim(column) else column for column in columns)


Ends = tuple[Bounds, np.dtype] | None  # The interval of every entry, for values of a type; None if it was checked.


def _by_xla(
    sampler: ExactBatch,
    number: int,
    space: Workspace,
    count: int,
    entries: slice | np.ndarray,
    first: int | None = None,
    ends: Ends = None,
) -> np.ndarray | None:
    """Return the reports of a workspace's values by the compiled program; None if a value is outside its interval.

    Values of consecutive entries read numbers that are kept on the device, those from entry ``first`` on.
    """
    length, dtype = len(space.x), space.x.dtype
    with own_settings(x64=True):
        for is_near in (True, False) if sampler.stacks[number].stacked.near else (False,):
            columns = sampler.derived[_ends, number, dtype, ends, is_near]
            if first is not None:
                numbers = sampler.derived[_kept, first, count, length, number, columns]
            else:
                numbers = _on_device((_at(columns, entries), *_numbers(sampler, number, entries)), length)
            shapes = tuple(column.shape for column in numbers[0])
            program = sampler.derived[_program, number, length, dtype, shapes, is_near]
            space.reports, is_valid = program(space.reports, *space.arguments(), *numbers)
            if bool(np.asarray(is_valid)):
                return np.asarray(space.reports)[:count]
    return None


class _Columns(tuple[np.ndarray, ...]):
    """Columns that are compared and hashed as one object, so that they can be in a key."""

    __hash__, __eq__ = object.__hash__, object.__eq__


def _ends(sampler: ExactBatch, number: int, dtype: np.dtype, ends: Ends, is_near: bool) -> _Columns:
    """Return the ``order_keys`` of the ends of the entries' intervals; none if the program needs none.

    The program of values near 0 needs none where all near values are inside. A program whose reports read the ends has
    them anyway.
    """
    if ends is None:
        return _Columns(finite_keys(dtype))
    _limit_kept(sampler, (_ends, number, dtype, ends, is_near))
    low, high = keys = ends[0].entry_keys(ends[1], dtype)
    stacked, place = sampler.stacks[number].stacked, sampler.places[number]
    if is_near and stacked.near:
        reach = np.asarray(stacked.near.reach(place), dtype)
        if (low <= order_keys(-reach)).all() and (order_keys(reach) <= high).all():
            return _Columns()
    if stacked.interval and dtype == np.float64:
        own = keys_of_ends(*stacked.interval(place))
        if all((a == b).all() for a, b in zip(own, keys, strict=True)):
            return _Columns()
    return _Columns(keys)


def _on_device(columns: object, length: int) -> Any:
    """Return columns padded to a length as JAX's arrays, of their own memory where it is aligned."""

    def padded(column: np.ndarray) -> Any:
        if not np.ndim(column):
            return jax.device_put(np.asarray(column), calling_thread_device())
        buffer = column
        if len(column) != length or column.ctypes.data % 64 or not column.flags.c_contiguous:
            buffer = aligned(length, column.dtype)
            buffer[: len(column)] = column
            buffer[len(column) :] = column[0]
        return jax.device_put(buffer, calling_thread_device(), may_alias=True)

    return tree_map(padded, columns)


_MAX_KEPT = 1 << 8  # Parts of vectors whose numbers are kept on the device, and intervals.


def _kept(sampler: ExactBatch, first: int, count: int, length: int, number: int, ends: _Columns) -> Any:
    _limit_kept(sampler, (_kept, first, count, length, number, ends))
    entries: Any = np.arange(first, first + count) % sampler.size
    if first + count <= sampler.size:
        entries = slice(first, first + count)
    return _on_device((_at(ends, entries), *_numbers(sampler, number, entries)), length)


def _limit_kept(sampler: ExactBatch, key: tuple[Any, ...]) -> None:
    """Note that a value will be kept for a key, and forget the oldest one if there are too many."""
    kept = sampler.derived[_parts,]
    kept.append(key)
    if len(kept) > _MAX_KEPT:
        sampler.derived.pop(kept.pop(0), None)


def _parts(sampler: ExactBatch) -> list[Any]:
    return []


def _program(
    sampler: ExactBatch, number: int, length: int, dtype: np.dtype, shapes: tuple[Any, ...], is_near: bool
) -> Any:
    """Return the compiled program (memory, _, x, *words, ends, place, table) -> (reports, whether all are valid).

    The reports take over ``memory``. They are valid if every value is within the ends of its entry, and, of the program
    for values near 0, if they are near enough. A value outside the ends is replaced before it meets noise.
    """
    stacked, where = sampler.stacks[number].stacked, jax.sharding.SingleDeviceSharding(calling_thread_device())

    def are_valid(x: Array, *columns: Array) -> Array:
        place, keys = columns[len(shapes) :], order_keys(x)
        tests = [abs(x) < stacked.near.reach(place)] if is_near and stacked.near else []
        if shapes or stacked.interval:
            low, high = keys_of_ends(*stacked.interval(place)) if stacked.interval and not shapes else columns[:2]
            tests.append((low <= keys) & (keys <= high))
        return reduce(and_, tests)

    def release(_: Array, __: Array, x: Array, *rest: Any) -> tuple[RealArray, Array]:
        *words, ends, place, table = rest
        inputs = jnp.where(are_valid(x, *ends, *place), x, jnp.zeros_like(x))
        reports = stacked.near.reports if is_near and stacked.near else stacked.reports
        return reports(inputs, words, place, table), all_in_pieces(are_valid, x, *ends, *place)

    def like(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    keys = np.dtype(f"int{8 * dtype.itemsize}")
    words = [like((length,), WORD_TYPES[sampler.words[i].bits]) for i in sampler.stacks[number].words]
    ends = tuple(like(shape, keys) for shape in shapes)
    place, table = (
        tuple(like((length,) if np.ndim(column) else (), column.dtype) for column in columns[number])
        for columns in (sampler.places, sampler.table_numbers)
    )
    program = jax.jit(release, donate_argnums=0, keep_unused=True, compiler_options=options_on_cpu())
    return program.lower(
        like((length,), dtype), like((KEYS,), keys), like((length,), dtype), *words, ends, place, table
    ).compile()
