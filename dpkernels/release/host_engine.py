"""Exact reports on the CPU: the integer kernel of a sampler with ChaCha20 words of OpenSSL."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from dpkernels.exact.sampler import ExactSampler, Words
from dpkernels.jax_on_use import Array, is_deferred, jax, jnp
from dpkernels.numerics import RealArray
from dpkernels.random import host
from dpkernels.release.inputs import Bounds
from dpkernels.release.process import calling_thread_device, kernel_settings

# Every stream's 64-byte blocks begin at values whose index is a multiple of this: 512 bits of 16-bit words.
BLOCK_VALUES = 32

WORD_TYPES = {bits: np.dtype(f"<u{bits // 8}") for bits in (16, 32, 64)}

# The number of values of the smallest compiled program.
_MIN_CHUNK = 1 << 10
# The number of values of the largest compiled program.
CHUNK = 1 << 17
# The length beyond which programs have lengths between the powers of two, too, so that less padding is computed. For
# shorter ones compiling them takes longer than they save.
_LARGE_LENGTH = 1 << 14
# Up to this number of values NumPy is faster than a call of a compiled program.
_ALWAYS_NUMPY = 1 << 9
# Up to this number of values NumPy does the first calls, since compiling takes longer than it would save.
_FIRST_NUMPY = 1 << 13
# The number of these first calls.
_FIRST_CALLS = 8
# Before JAX is imported NumPy does so many chunks, since the import takes longer than it would save.
_CHUNKS_WITHOUT_JAX = 16


class HostRelease:
    """An engine for the CPU: NumPy for few values, otherwise the sampler's compiled kernel, with the same bits."""

    def __init__(self, sampler: ExactSampler, key: bytes) -> None:
        self.sampler, self.key = sampler, key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray, bounds: Bounds, row: int) -> int:
        """Check every value of ``x``, fill ``out`` with reports, and return their number.

        ``start`` is the index of the first value in the whole release, and ``row`` its row number in an error. The
        compiled kernel checks values as it reads them, and replaces a value outside the bounds before noise is added.
        If there is such a value, no output of the kernel is copied to ``out``.
        """
        derived = self.sampler.derived
        is_short = x.size <= _ALWAYS_NUMPY or (
            x.size <= _FIRST_NUMPY and next(derived[_call_counter, padded_length(x.size), out.dtype]) < _FIRST_CALLS
        )
        if not is_short and is_deferred():
            is_short = next(derived[_call_counter, 0, out.dtype]) < _CHUNKS_WITHOUT_JAX
        if is_short and derived[is_far_from_subnormal, out.dtype]:
            x = bounds.check(x, row)
            self._by_numpy(x, start, out)
            return x.size
        if bounds.clip:
            x = bounds.check(x, row)
        if not self._by_xla(x, start, out, bounds.valid_range(x.dtype, out.dtype).keys):
            bounds.check(x, row)
            raise RuntimeError("x: the kernel found a value outside the interval, and NumPy did not; no report is made")
        return x.size

    def _by_numpy(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        skip = start % BLOCK_VALUES
        words = [np.empty(skip + len(x), dtype) for dtype in self.sampler.derived[_word_types,]]
        fill_words(words, self.key, self.sampler.words, start - skip)
        with np.errstate(all="ignore"):
            out[:] = self.sampler.reports(x, *(stream[skip:] for stream in words))
        self._complete(self.sampler.are_incomplete(words[0][skip:]), x, start, out)

    def _complete(self, indices: np.ndarray, x: np.ndarray, start: int, out: np.ndarray) -> None:
        """Replace the reports at some indices, whose noise takes words of later turns: those of a value's own index."""
        if not indices.size:
            return
        needs, positions = self.sampler.words, indices + start
        words = [drawn_words(self.key, need, positions) for need in needs]
        values = x[indices].astype(out.dtype, copy=False)
        with np.errstate(all="ignore"):
            out[indices] = self.sampler.complete_reports(
                values, *words, noise_words=lambda turn: drawn_words(self.key, needs[0], positions, turn)
            )

    def _by_xla(self, x: np.ndarray, start: int, out: np.ndarray, bound_keys: tuple[RealArray, RealArray]) -> bool:
        """Fill ``out`` if all values are within ``bound_keys``, and return whether they are.

        A workspace is returned to the pool only after success, so an error never leaves a partly written one. Lending
        the memory of values to JAX would take longer than copying them; XLA writes only to memory of its own.
        """
        count, skip = x.size, start % BLOCK_VALUES
        words, length = self.sampler.derived[_word_types,], padded_length(count)
        program = self.sampler.derived[_program, length, out.dtype]
        workspace = lent_workspace(words, length, out.dtype)
        workspace.bound_keys[:2] = bound_keys
        workspace.take_values(x)
        buffers = [buffer[BLOCK_VALUES - skip : BLOCK_VALUES + count] for buffer in workspace.words]
        fill_words(buffers, self.key, self.sampler.words, start - skip)
        with kernel_settings():
            workspace.reports, is_valid = program(workspace.reports, *workspace.arguments())
            are_valid = bool(np.asarray(is_valid))
            if are_valid:
                out[:] = np.asarray(workspace.reports)[:count]
                if self.sampler.incomplete_words != ():
                    # The values that were checked: the caller's memory may have changed since.
                    checked = workspace.x[:count]
                    self._complete(self.sampler.are_incomplete(workspace.word_buffers(count)[0]), checked, start, out)
        workspace.give_back()
        return are_valid


def fill_words(buffers: list[np.ndarray], key: bytes, needs: tuple[Words, ...], first: int) -> None:
    """Fill a buffer a stream with words from value ``first`` on, a multiple of BLOCK_VALUES."""
    source = host.Keystream(key)
    for need, buffer in zip(needs, buffers, strict=True):
        source.fill(buffer, need.stream, first * need.bits // 512)


def drawn_words(key: bytes, need: Words, indices: np.ndarray, turn: int = 0) -> np.ndarray:
    """Return the words of some values of a release, by their indices."""
    source, dtype = host.Keystream(key), WORD_TYPES[need.bits]
    drawn, block = np.empty(indices.size, dtype), np.empty(64 // dtype.itemsize, dtype)
    for i, index in enumerate(indices.tolist()):
        source.fill(block, need.stream, index // len(block), turn)
        drawn[i] = block[index % len(block)]
    return drawn


def _call_counter(sampler: ExactSampler, length: int, dtype: np.dtype) -> itertools.count[int]:
    return itertools.count()


def is_far_from_subnormal(sampler: ExactSampler, dtype: np.dtype) -> bool:
    """Return whether all nonzero numbers of a computation are too large for XLA to flush them to 0.

    Distinct inputs, and reports, differ by more than ``subnormal_safe_radius``. Their sums and products with numbers of
    at most 62 bits are 0 or larger than 2^-64 of it.
    """
    return sampler.subnormal_safe_radius >= float(np.finfo(dtype).smallest_normal) * 2.0**64


def _program(sampler: ExactSampler, length: int, dtype: np.dtype) -> Callable[..., tuple[Array, Array]]:
    """Return the sampler's program for values of a length and type."""
    # Compiled ahead of time, because every call of jax.jit inspects settings, devices and types.
    sharding = jax.sharding.SingleDeviceSharding(calling_thread_device())
    inputs = [(length, dtype), (BOUND_SLOTS, _key_type(dtype)), (length, dtype)]
    inputs += [(length, word_type) for word_type in _word_types(sampler)]
    with kernel_settings(x64=True):
        arguments = [jax.ShapeDtypeStruct((size,), input_type, sharding=sharding) for size, input_type in inputs]
        return sampler.compiled.lower(*arguments).compile()


def _word_types(sampler: ExactSampler) -> tuple[np.dtype, ...]:
    return tuple(WORD_TYPES[need.bits] for need in sampler.words)


BOUND_SLOTS = 16  # The two ends and padding: 64 bytes or more, which JAX takes over without a copy.


def _key_type(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"int{8 * dtype.itemsize}")


class Workspace:
    """Reusable buffers for one chunk at a time, and the JAX arrays that alias them, made once.

    The words of the first value are at offset BLOCK_VALUES of their buffer, so a block may begin before it.
    """

    def __init__(self, words: tuple[np.dtype, ...], length: int, dtype: np.dtype) -> None:
        self._idle = _idle(words, length, dtype)
        self.x = aligned(length, dtype)
        self.bound_keys = aligned(BOUND_SLOTS, _key_type(dtype))
        self.words = [aligned(BLOCK_VALUES + length, word_type) for word_type in words]
        with kernel_settings(x64=True), jax.default_device(calling_thread_device()):
            self.reports = jnp.zeros(length, dtype)
        self._buffers = (self.bound_keys, self.x, *(words[BLOCK_VALUES:] for words in self.words))
        self._shared = self._device_arrays()
        self._is_shared = all(
            array.unsafe_buffer_pointer() == buffer.ctypes.data
            for array, buffer in zip(self._shared, self._buffers, strict=True)
        )

    def give_back(self) -> None:
        """Let the next chunk have the workspace."""
        self._idle.append(self)

    def take_values(self, x: np.ndarray) -> None:
        """Copy values, and pad them with the first one."""
        self.x[: len(x)] = x
        self.x[len(x) :] = self.x[0]

    def word_buffers(self, count: int, skip: int = 0) -> list[np.ndarray]:
        """Return the memory for the words of some values, and of ``skip`` values before these."""
        return [words[BLOCK_VALUES - skip : BLOCK_VALUES + count] for words in self.words]

    def arguments(self) -> list[Array]:
        """Return the buffers as JAX's arrays: of the same memory, or copies of what is in them now."""
        return self._shared if self._is_shared else self._device_arrays()

    def _device_arrays(self) -> list[Array]:
        with kernel_settings(x64=True):
            return [jax.device_put(buffer, calling_thread_device(), may_alias=True) for buffer in self._buffers]


def lent_workspace(words: tuple[np.dtype, ...], length: int, dtype: np.dtype) -> Workspace:
    """Return a workspace that is idle, or a new one; ``give_back`` makes it idle, which an error never does."""
    try:
        return _idle(words, length, dtype).pop()
    except IndexError:
        return Workspace(words, length, dtype)


@lru_cache(maxsize=16)
def _idle(words: tuple[np.dtype, ...], length: int, dtype: np.dtype) -> list[Workspace]:
    """Return the idle workspaces of one kind; ``pop`` and ``append`` are atomic."""
    return []


def aligned(length: int, dtype: np.dtype) -> np.ndarray:
    """Return uninitialised memory at a multiple of 64 bytes, which JAX takes over without a copy."""
    raw = np.empty(length * dtype.itemsize + 64, np.uint8)
    first = -raw.__array_interface__["data"][0] % 64
    return raw[first : first + length * dtype.itemsize].view(dtype)


@lru_cache(maxsize=1024)
def padded_length(length: int, unit: int = 1) -> int:
    """Return the length of the program for some values, a multiple of ``unit``, so that few lengths are ever compiled.

    Lengths are powers of two, with three between them where they are large, and beyond a chunk multiples of one.
    """
    power = 1 << (length - 1).bit_length()
    if length <= _MIN_CHUNK:
        step = _MIN_CHUNK
    elif length <= CHUNK:
        step = power if power <= _LARGE_LENGTH else power // 8
    else:
        step = CHUNK
    padded = -(-length // step) * step
    return -(-padded // unit) * unit
