"""Exact release of vectors: the choice of coordinates, and the reports of the coordinate mechanism."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpkernels.exact.combined import ExactMultivariate
from dpkernels.exact.sampler import COORDINATE_STREAM
from dpkernels.mechanisms.multivariate import check_shape, chosen_coordinates
from dpkernels.random import host
from dpkernels.release.engines import exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, report_type

_ROWS = 1 << 16  # The number of vectors that are released at once, which bounds the memory of intermediate arrays.


def release_vectors(
    sampler: ExactMultivariate,
    secret: bytes,
    x: np.ndarray,
    clip: bool,
    advance: Callable[[int], object],
    start: int = 0,
) -> np.ndarray:
    """Perturb vectors, coordinates on the last axis of x; row i uses words start + i of its streams.

    Raises:
        ValueError: the last axis does not fit, or a value is not finite or outside its coordinate's interval.
    """
    mechanism, d, s = sampler.mechanism, sampler.mechanism.dimensions, sampler.mechanism.sampled
    check_shape(mechanism, x.shape)
    rows = x.reshape(-1, d)
    bounds, on_unit = Bounds.of(mechanism, clip), Bounds(np.float64(-1), np.float64(1), clip=True)
    middle = np.broadcast_to((bounds.lower + bounds.upper) / 2, (d,))
    half = np.broadcast_to((bounds.upper - bounds.lower) / 2, (d,))
    engine = exact_engine(sampler.coordinate, secret)
    out = np.empty(rows.shape, report_type(x.dtype))
    out[:] = middle
    for first in range(0, len(rows), _ROWS):
        block = bounds.check_rows(rows[first : first + _ROWS], first)
        chosen = chosen_coordinates(_starts(secret, start + first, len(block), d), d, s)
        z = (np.take_along_axis(block, chosen, axis=1) - middle[chosen]) / half[chosen]
        reports = in_chunks(engine, on_unit, z, start=(start + first) * s)
        np.put_along_axis(out[first : first + _ROWS], chosen, middle[chosen] + half[chosen] * (d / s) * reports, 1)
        advance(block.size)
    return out.reshape(x.shape)


def _starts(secret: bytes, first: int, rows: int, dimensions: int) -> np.ndarray:
    """Return floor(word d / 2^64) for one 64-bit word a row; every start has probability 1/d within d/2^64."""
    skip = first % 8  # A block has eight of them.
    words = np.empty(skip + rows, "<u8")
    host.fill(words, secret, COORDINATE_STREAM, first // 8)
    words = words[skip:]
    d, half_word = np.uint64(dimensions), np.uint64(32)
    high, low = words >> half_word, words & np.uint64(0xFFFFFFFF)
    return ((high * d + (low * d >> half_word)) >> half_word).astype(np.int64)
