"""Uniform numbers in the open interval (0, 1) by position: what float samplers draw from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels.numerics import Real
from dpkernels.random import chacha, threefry
from dpkernels.random.keys import family


def uniforms(key: Array, start: tuple[Real, Real], count: int, dtype: Any) -> Array:
    """Return uniforms ``start .. start + count - 1`` of a key's stream.

    Args:
        key: a typed key, Threefry or ChaCha20.
        start: (low, high) 32-bit words of the first index; for ChaCha20 a multiple of 16.
        count: how many.
        dtype: float32 (23 random bits) or float64 (52).

    Returns:
        Array of shape (count,): odd multiples of half a unit, so 0 and 1 never occur and u and 1 - u are alike.

    Raises:
        TypeError: another generator.
    """
    bits = jnp.finfo(dtype).bits
    return unit_interval(_words(key, start, count, bits), dtype)


def unit_interval(words: Array, dtype: Any) -> Array:
    """Map words as wide as the float type to (0, 1): (floor(word / 2^shift) + 1/2) 2^-precision."""
    info = jnp.finfo(dtype)
    kept = words >> words.dtype.type(info.bits - info.nmant)
    return (kept.astype(dtype) + info.dtype.type(0.5)) * info.dtype.type(2.0**-info.nmant)


def _words(key: Array, start: tuple[Real, Real], count: int, bits: int) -> Array:
    data = jax.random.key_data(key)
    match family(key):
        case "threefry2x32":
            return threefry.stream_words(data, start, count, bits)
        case "chacha20":
            per_block = np.uint32(512 // bits)
            low, high = (jnp.asarray(word, jnp.uint32) for word in start)
            # 64-bit start / words a block, in 32-bit pieces.
            block = (low // per_block) | (high << np.uint32(32 - int(per_block).bit_length() + 1))
            return chacha.stream_words(data, chacha.BITS_STREAM, (block, high // per_block), count, bits)
        case other:
            raise TypeError(f"key: generator {other!r} is not supported; use threefry2x32 or chacha20 keys")
