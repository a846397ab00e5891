"""Exact reports of a batch on the CPU: every value by the table of its entry, on the entry's own grid."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpkernels.exact.batches import ExactBatch, Stack
from dpkernels.exact.sampler import options_on_cpu
from dpkernels.jax_on_use import jax
from dpkernels.pytrees import tree_map
from dpkernels.random import host
from dpkernels.release.host_engine import (
    BLOCK_VALUES,
    WORD_TYPES,
    aligned,
    is_far_from_subnormal,
    padded_length,
)
from dpkernels.release.inputs import Bounds
from dpkernels.release.process import calling_thread_device, own_settings

_ALWAYS_NUMPY = 1 << 12  # Up to this number of values NumPy is faster than a call of a compiled program.


class BatchRelease:
    """An engine for the CPU. Value j of the array belongs to entry j modulo the batch's size."""

    def __init__(self, sampler: ExactBatch, key: bytes) -> None:
        self.sampler, self.key = sampler, key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray, bounds: Bounds, row: int) -> int:
        """Check every value of ``x``, fill ``out`` with reports, and return their number.

        ``start`` is the index of the first value in the whole release, and ``row`` that in the array.
        """
        entries = self._entries(row, len(x))
        values = bounds.check_entries(x, entries, row)
        skip = start % BLOCK_VALUES
        buffers = [aligned(skip + len(x), WORD_TYPES[need.bits]) for need in self.sampler.words]
        source = host.Keystream(self.key)
        for need, buffer in zip(self.sampler.words, buffers, strict=True):
            source.fill(buffer, need.stream, (start - skip) * need.bits // 512)
        words = [buffer[skip:] for buffer in buffers]
        for number, stack in enumerate(self.sampler.stacks):
            own = self._of_stack(number, entries)
            if own is None:
                self._release(number, stack, values, words, start, entries, out, row % self.sampler.size)
            elif len(own):
                part = np.empty(len(own), out.dtype)
                rows = np.arange(self.sampler.size)[entries] if isinstance(entries, slice) else entries
                indices = own + start
                self._release(number, stack, values[own], [word[own] for word in words], indices, rows[own], part)
                out[own] = part
        return len(x)

    def _entries(self, first: int, count: int) -> Any:
        """Return the entries of some values, as a slice if they follow each other."""
        first %= self.sampler.size
        if first + count <= self.sampler.size:
            return slice(first, first + count)
        return np.arange(first, first + count) % self.sampler.size

    def _of_stack(self, number: int, entries: Any) -> np.ndarray | None:
        if len(self.sampler.stacks) == 1:
            return None
        return np.flatnonzero(self.sampler.stack_of[entries] == number)

    def _release(
        self,
        number: int,
        stack: Stack,
        x: np.ndarray,
        words: list[Any],
        start: Any,
        entries: Any,
        out: np.ndarray,
        first: int | None = None,
    ) -> None:
        """Fill ``out`` with the reports of one stack's values; ``start`` is the first index, or the index of each.

        ``first`` is the first entry where the entries follow each other.
        """
        sampler = self.sampler
        own_words = [words[i] for i in stack.words]
        if len(x) <= _ALWAYS_NUMPY and sampler.derived[is_far_from_subnormal, out.dtype]:
            with np.errstate(all="ignore"):
                out[:] = stack.stacked.reports(x, own_words, *_numbers(sampler, number, entries))
        else:
            out[:] = _by_xla(sampler, number, x, own_words, entries, first)
        for incomplete, table in self._incomplete(stack, own_words[0], entries):
            if incomplete.size:
                indices = incomplete + start if isinstance(start, int) else start[incomplete]
                self._complete(table, indices, incomplete, x, _numbers(sampler, number, entries)[0], out)

    def _incomplete(self, stack: Stack, noise: np.ndarray, entries: Any) -> Any:
        """Yield the places of values whose noise takes words of later turns, by table."""
        for number in stack.tables.tolist():
            member = self.sampler.samplers[number]
            if not member.may_be_incomplete:
                return
            if len(stack.tables) == 1:
                yield member.are_incomplete(noise), number
            else:
                own = np.flatnonzero(self.sampler.certificate.table_of[entries] == number)
                yield own[member.are_incomplete(noise[own])] if len(own) else own, number

    def _complete(
        self, number: int, indices: np.ndarray, places: np.ndarray, x: np.ndarray, place: Any, out: np.ndarray
    ) -> None:
        """Replace the reports at some places, whose noise takes words of later turns: those of a value's own index."""
        source = host.Keystream(self.key)
        member: Any = self.sampler.samplers[number]

        def words(need: Any, turn: int) -> np.ndarray:
            kind = WORD_TYPES[need.bits]
            drawn, block = np.empty(places.size, kind), np.empty(64 // kind.itemsize, kind)
            for i, index in enumerate(indices.tolist()):
                source.fill(block, need.stream, index // len(block), turn)
                drawn[i] = block[index % len(block)]
            return drawn

        noise, rounding = (words(need, 0) for need in member.words)
        values = x[places].astype(out.dtype, copy=False)
        with np.errstate(all="ignore"):
            later = lambda turn: words(member.words[0], turn)  # noqa: E731
            out[places] = member.completed_at(values, noise, rounding, later, tuple(c[places] for c in place))


def _numbers(sampler: ExactBatch, number: int, entries: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the numbers of some entries' places and tables, in one stack."""
    place = tuple(column[entries] for column in sampler.places[number])
    table = sampler.table_numbers[number]
    return place, tuple(column[entries] if np.ndim(column) else column for column in table)


def _by_xla(
    sampler: ExactBatch, number: int, x: np.ndarray, words: list[np.ndarray], entries: Any, first: int | None
) -> np.ndarray:
    """Return the reports by the compiled program, for vectors padded to one of a few lengths."""
    length = padded_length(len(x))
    with own_settings(x64=True):
        if first is not None:
            # The same values of a later release read the same numbers.
            numbers = sampler.derived[_kept, first, len(x), length, number]
        else:
            numbers = _on_device(_numbers(sampler, number, entries), length)
        arguments = (*_on_device((x, words), length), *numbers)
        program = sampler.derived[_program, number, len(words), tuple(np.dtype(a.dtype) for a in (x, *words)), length]
        return np.asarray(program(*arguments))[: len(x)]


def _on_device(columns: object, length: int) -> Any:
    """Return columns padded to a length as JAX's arrays, of their own memory where it is aligned."""

    def padded(column: Any) -> Any:
        if not np.ndim(column):
            return jax.device_put(np.asarray(column), calling_thread_device())
        buffer = column
        if len(column) != length or column.ctypes.data % 64 or not column.flags.c_contiguous:
            buffer = aligned(length, column.dtype)
            buffer[: len(column)] = column
            buffer[len(column) :] = column[0]
        return jax.device_put(buffer, calling_thread_device(), may_alias=True)

    return tree_map(padded, columns)


_MOST_KEPT = 1 << 8  # Parts of vectors whose numbers are kept on the device.


def _kept(sampler: ExactBatch, first: int, count: int, length: int, number: int) -> Any:
    kept = sampler.derived[_parts,]
    kept.append(key := (_kept, first, count, length, number))
    if len(kept) > _MOST_KEPT:
        sampler.derived.pop(kept.pop(0), None)
    entries: Any = np.arange(first, first + count) % sampler.size
    if first + count <= sampler.size:
        entries = slice(first, first + count)
    return _on_device(_numbers(sampler, number, entries), length) if key else None


def _parts(sampler: ExactBatch) -> list[Any]:
    return []


def _program(sampler: ExactBatch, number: int, words: int, types: tuple[np.dtype, ...], length: int) -> Any:
    """Return the compiled program (x, words, place, table numbers) -> reports."""
    where = jax.sharding.SingleDeviceSharding(calling_thread_device())

    def like(dtype: DTypeLike, shape: tuple[int, ...] = (length,)) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    x, *of_words = map(like, types)
    place = tuple(like(column.dtype) for column in sampler.places[number])
    table = tuple(like(c.dtype, (length,) if np.ndim(c) else ()) for c in sampler.table_numbers[number])
    program = jax.jit(sampler.stacks[number].stacked.reports, compiler_options=options_on_cpu())
    return program.lower(x, of_words, place, table).compile()
