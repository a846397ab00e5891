"""Exact reports on the CPU: OpenSSL's ChaCha20 words into the form's integer kernel."""

from __future__ import annotations

import itertools
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.exact.form import ExactForm
from dpkernels.random import host
from dpkernels.settings import own_settings

# Every stream's 64-byte blocks begin at values whose index is a multiple of this: 512 bits of 16-bit words.
BLOCK_VALUES = 32

_WORD = {bits: np.dtype(f"<u{bits // 8}") for bits in (16, 32, 64)}

# The most values that one compiled program is made for.
CHUNK = 1 << 18
_SMALLEST_CHUNK = 1 << 10

# Up to so many values NumPy is done before a compiled program would have started.
_FEW = 1 << 9

# Up to so many values the first calls are NumPy's: a program takes longer to compile than it would save in these.
_MORE, _CALLS = 1 << 13, 8


class HostRelease:
    """Exact reports on the CPU: by NumPy for few values, else by the form's compiled kernel; the same bits.

    Attributes:
        form: the exact form.
        key: 32 bytes.
    """

    def __init__(self, form: ExactForm, key: bytes) -> None:
        self.form = form
        self.key = key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        """Fill ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release."""
        if len(x) <= _MORE and _is_far_from_subnormal(self.form, x.dtype) and not self._is_worth_compiling(x):
            self._by_numpy(x, start, out)
        else:
            self._by_xla(x, start, out)

    def _is_worth_compiling(self, x: np.ndarray) -> bool:
        return len(x) > _FEW and next(_calls(self.form, padded_length(len(x)), x.dtype)) >= _CALLS

    def _by_numpy(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        words = [np.empty(len(x) + start % BLOCK_VALUES, _WORD[need.bits]) for need in self.form.words]
        with np.errstate(all="ignore"):
            out[:] = self.form.reports(x, *self._filled(words, start, len(x), len(x)))

    def _by_xla(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        """In a workspace that is given back only when all went well: no error leaves one that is half written."""
        idle = _idle(tuple(need.bits for need in self.form.words), padded_length(len(x)), x.dtype)
        try:
            space = idle.pop()
        except IndexError:
            space = _Workspace(self.form, padded_length(len(x)), x.dtype)
        space.x[: len(x)] = x
        space.x[len(x) :] = x[0]
        words = self._filled(space.words, start, len(x), len(space.x))
        with own_settings(x64=True), jax.default_device(_here()):
            space.reports = self.form.compiled(space.reports, space.x, *words)
            out[:] = np.asarray(space.reports)[: len(x)]
        idle.append(space)

    def _filled(self, buffers: list[np.ndarray], start: int, count: int, length: int) -> list[np.ndarray]:
        """One stream a buffer: the words of values ``start`` to ``start + count - 1``, then any up to a length."""
        skip, source = start % BLOCK_VALUES, host.Source(self.key)
        for need, buffer in zip(self.form.words, buffers, strict=True):
            source.fill(buffer[: skip + count], need.stream, (start - skip) * need.bits // 512)
        return [buffer[skip : skip + length] for buffer in buffers]


@lru_cache(maxsize=1024)
def _calls(form: ExactForm, length: int, dtype: np.dtype) -> itertools.count[int]:
    """Counts the calls for one program."""
    return itertools.count()


@cache
def _here() -> Any:
    """A CPU device that runs a program in the thread that calls it.

    JAX's own hands all but the smallest programs to another thread, which takes as long as working on 20,000 values.
    """
    try:  # There is no public way to make a client.
        from jax._src.lib import xla_client

        client: Any = xla_client.make_cpu_client(asynchronous=False, num_devices=1)
        return client.devices()[0]
    except (AttributeError, ImportError, TypeError):  # Another version of JAX: the same reports, later.
        return jax.local_devices(backend="cpu")[0]


@lru_cache(maxsize=256)
def _is_far_from_subnormal(form: ExactForm, dtype: np.dtype) -> bool:
    """Whether no number of a computation is so small that XLA might read it as 0, and NumPy not.

    Inputs are told apart, and reports are, by more than ``negligible``, and sums and products of those with numbers of
    at most 62 bits differ from 0 by more than 2^-64 of it or not at all.
    """
    return form.negligible >= float(np.finfo(dtype).smallest_normal) * 2.0**64


class _Workspace:
    """Buffers that one chunk at a time is worked on in: fresh memory would cost as much as the arithmetic."""

    def __init__(self, form: ExactForm, length: int, dtype: np.dtype) -> None:
        self.x = aligned(length, dtype)
        self.words = [aligned(length + BLOCK_VALUES, _WORD[need.bits]) for need in form.words]
        with own_settings(x64=True), jax.default_device(_here()):
            self.reports = jnp.zeros(length, dtype)


@lru_cache(maxsize=16)
def _idle(bits: tuple[int, ...], length: int, dtype: np.dtype) -> list[_Workspace]:
    """Workspaces in nobody's hands, of one kind; ``pop`` and ``append`` are atomic."""
    return []


def aligned(length: int, dtype: np.dtype) -> np.ndarray:
    """Uninitialised memory at a multiple of 64 bytes, which JAX takes over without a copy."""
    raw = np.empty(length * dtype.itemsize + 64, np.uint8)
    first = -raw.__array_interface__["data"][0] % 64
    return raw[first : first + length * dtype.itemsize].view(dtype)


def padded_length(length: int, unit: int = 1) -> int:
    """A power of two up to a chunk, then a multiple of one, and of ``unit``: so few shapes are ever compiled."""
    padded = 1 << (length - 1).bit_length() if length <= CHUNK else -(-length // CHUNK) * CHUNK
    return -(-max(_SMALLEST_CHUNK, padded) // unit) * unit
