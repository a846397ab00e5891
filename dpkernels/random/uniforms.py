"""Uniform numbers in the open interval (0, 1) by position, for the floating-point samplers.

The words are those of ChaCha20 (``chacha``) or of Threefry-2x32, the fast generator for simulation; they equal those
of ``jax.random.bits`` under jax's default (partitionable) threefry.
"""

from __future__ import annotations

import numpy as np

from dpkernels.jax_on_use import Array, jax, jnp, lax
from dpkernels.numerics import Real
from dpkernels.random import chacha
from dpkernels.random.keys import generator_name

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # Of Threefry-2x32 (Salmon et al. 2011), like the parity.
_PARITY = np.uint32(0x1BD11BDA)


def uniforms(key: Array, start: tuple[Real, Real], count: int, dtype: np.dtype) -> Array:
    """Return uniforms ``start .. start + count - 1`` of the stream of a typed key, Threefry or ChaCha20.

    ``start`` is (low, high) 32-bit words of the first index, for ChaCha20 a multiple of 16. Float32 has 23 random bits,
    float64 52. The numbers are odd multiples of half a unit, so 0 and 1 never occur. Another generator is a TypeError.
    """
    data, bits = jax.random.key_data(key), jnp.finfo(dtype).bits
    match generator_name(key):
        case "threefry2x32":
            words = threefry_words(data, start, count, bits)
        case "chacha20":
            per_block = np.uint32(512 // bits)
            low, high = (jnp.asarray(word, jnp.uint32) for word in start)
            # 64-bit start / words a block, in 32-bit pieces.
            block = (low // per_block) | (high << np.uint32(32 - int(per_block).bit_length() + 1))
            words = chacha.stream_words(data, chacha.BITS_STREAM, (block, high // per_block), count, bits)
        case other:
            raise TypeError(f"key: generator {other!r} is not supported; use threefry2x32 or chacha20 keys")
    return unit_interval(words, dtype)


def unit_interval(words: Array, dtype: np.dtype) -> Array:
    """Map words as wide as the float type to (0, 1): (floor(word / 2^shift) + 1/2) 2^-precision."""
    info = jnp.finfo(dtype)
    top_bits = words >> words.dtype.type(info.bits - info.nmant)
    return (top_bits.astype(dtype) + info.dtype.type(0.5)) * info.dtype.type(2.0**-info.nmant)


def threefry_words(key: Array, start: tuple[Real, Real], count: int, bits: int) -> Array:
    """Return words ``start .. start + count - 1`` of 32 or 64 bits, by Threefry-2x32 with 20 rounds (Salmon 2011)."""
    low, high = (jnp.asarray(word, jnp.uint32) for word in start)
    index = low + lax.iota(jnp.uint32, count)
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = high + (index < low).astype(jnp.uint32) + schedule[0], index + schedule[1]
    # Unrolled, so that XLA fuses the rounds with their consumer; jax lowers its own with rolled loops on the CPU.
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))) ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    if bits == 32:
        return x0 ^ x1
    return (x0.astype(jnp.uint64) << np.uint64(32)) | x1.astype(jnp.uint64)
