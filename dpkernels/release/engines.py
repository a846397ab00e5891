"""The engines of ``perturb``, and how a vector is divided among them.

An engine fills memory with the reports of checked values. Value i of a vector gets the same random words whatever the
engine, the pieces or the number of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.base import Mechanism, sample_from
from dpkernels.release.device_engine import DeviceRelease
from dpkernels.release.host_engine import BLOCK_VALUES, CHUNK, HostRelease, aligned, padded_length
from dpkernels.release.inputs import Bounds, report_type
from dpkernels.release.process import check_process
from dpkernels.release.threads import CORES, release_pieces
from dpkernels.settings import own_settings

# Fills ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release.
Engine = HostRelease | DeviceRelease | Callable[[np.ndarray, int, np.ndarray], None]

_WORKERS = min(CORES, 9)
# The smallest number of values for which waking another thread is worth its time.
_SMALLEST_PIECE = 1 << 14


def exact_engine(sampler: ExactSampler, key: bytes) -> HostRelease | DeviceRelease:
    """Return the engine for values in host memory: this machine's accelerators if JAX has any, else its CPU.

    Raises:
        RuntimeError: this process was forked from one in which JAX had run.
    """
    check_process()
    devices = tuple(jax.local_devices())
    if len(devices) == 1 and devices[0].platform == "cpu":
        return HostRelease(sampler, key)
    return DeviceRelease(sampler, key, devices)


class Simulation:
    """An engine for simulation: float reports from a mechanism's own sampler, reproducible from a key."""

    def __init__(self, mechanism: Mechanism, key: Array) -> None:
        self.mechanism = mechanism
        self.key = key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        values = np.pad(x, (0, padded_length(len(x)) - len(x)), mode="edge")
        with own_settings(x64=x.dtype == np.float64):
            out[:] = np.asarray(sample_from(self.mechanism, self.key, start, jnp.asarray(values)))[: len(x)]


def in_chunks(
    engine: Engine,
    bounds: Bounds,
    x: np.ndarray,
    *,
    start: int = 0,
    row: int | None = None,
    advance: Callable[[int], Any] = lambda _: None,
) -> np.ndarray:
    """Return the engine's reports of x, piece by piece; of several errors, the first in the order of x is raised.

    Args:
        engine: the reports of a piece, given the index of its first value.
        bounds: checks a piece before it is perturbed.
        x: the values, of any shape.
        start: index of the first value in the whole release.
        row: the row number of the first value in errors; by default its index.
        advance: called with the length of every completed piece.
    """
    flat, out = x if x.ndim == 1 else x.reshape(-1), aligned(x.size, report_type(x.dtype))
    row = start if row is None else row

    def release(first: int, end: int) -> int:
        values, reports = flat[first:end], out[first:end]
        if isinstance(engine, HostRelease):  # Its kernel checks values itself.
            return engine(values, start + first, reports, bounds, row + first)
        checked = bounds.check(values, row + first)
        engine(checked, start + first, reports)
        return checked.size

    if x.size == 0:
        released = 0
    elif isinstance(engine, DeviceRelease):
        released = engine.in_turns(lambda at, end: bounds.check(flat[at:end], row + at), start, out, advance)
    elif x.size <= CHUNK and x.size < 2 * _SMALLEST_PIECE:
        advance(released := release(0, x.size))
    else:
        released = release_pieces(release, _ends_of_pieces(x.size), _WORKERS, advance)
    if released != x.size:
        raise RuntimeError(f"x: {released} of {x.size} values were perturbed")
    return out if x.ndim == 1 else out.reshape(x.shape)


def _ends_of_pieces(count: int) -> list[int]:
    """Return where nearly equal pieces for all threads begin, of at most a chunk, and where the last one ends."""
    pieces = max(-(-count // CHUNK), min(_WORKERS, count // _SMALLEST_PIECE))
    size = min(CHUNK, -(-count // (pieces * BLOCK_VALUES)) * BLOCK_VALUES)
    return [*range(0, count, size), count]
