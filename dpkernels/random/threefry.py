"""Threefry-2x32 with its 20 rounds unrolled, so that XLA fuses it with its consumer. For simulation only.

The words equal those of ``jax.random.bits`` under jax's default (partitionable) threefry; jax lowers its own with
rolled loops on the CPU, which a consumer cannot fuse with.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dpkernels.numerics import Real

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(key: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Apply Threefry-2x32 with 20 rounds (Salmon et al. 2011) to a key of 2 words and a counter (x0, x1), uint32."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(by)) | (x1 >> np.uint32(32 - by))) ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def stream_words(key: Array, start: tuple[Real, Real], count: int, bits: int) -> Array:
    """Return words ``start .. start + count - 1`` of the key's stream, of 32 or 64 bits.

    Args:
        key: 2 words, uint32.
        start: (low, high) words of the first index.
        count: how many.
        bits: 32 or 64.
    """
    low, high = (jnp.asarray(word, jnp.uint32) for word in start)
    index = low + lax.iota(jnp.uint32, count)
    x0, x1 = threefry2x32(key, high + (index < low).astype(jnp.uint32), index)
    if bits == 32:
        return x0 ^ x1
    return (x0.astype(jnp.uint64) << np.uint64(32)) | x1.astype(jnp.uint64)
