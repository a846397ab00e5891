"""ChaCha20 (RFC 8439) in jax.numpy, as a typed-key implementation with 256-bit keys.

State words 0-3 are constants, 4-11 the key, 12-13 a 64-bit block counter, 14-15 the nonce. The nonce's first word
names the *stream*: streams are domain separated, so ``split``, ``fold_in``, ``random_bits`` and each use of a
release draw from unrelated key streams. ``host.py`` produces the same words through OpenSSL.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import define_prng_impl

from dpkernels.random import chacha_gpu
from dpkernels.random.chacha_gpu import CONSTANTS, quarter_round

BITS_STREAM, SPLIT_STREAM, FOLD_STREAM = 0, 1, 2

_State = tuple[Array, Array, Array, Array]


def block_words(key: Array, counter: Array, nonce: tuple[Any, Any, Any]) -> Array:
    """Return the key stream blocks ``ChaCha20(key, counter, nonce)``, RFC 8439 section 2.3.

    Args:
        key: 8 words, uint32.
        counter: word 12 of the state, uint32 of shape (n,).
        nonce: words 13, 14, 15; scalars or (n,).

    Returns:
        uint32 of shape (n, 16), the serialised block as little-endian words.
    """
    shape = (4, counter.shape[0])
    row = [jnp.broadcast_to(jnp.asarray(word, jnp.uint32), counter.shape) for word in (counter, *nonce)]
    start: _State = (
        jnp.broadcast_to(jnp.asarray(CONSTANTS)[:, None], shape),
        jnp.broadcast_to(key[:4, None], shape),
        jnp.broadcast_to(key[4:, None], shape),
        jnp.stack(row),
    )
    end = lax.fori_loop(0, 10, lambda _, state: _double_round(state), start)
    return jnp.concatenate([a + b for a, b in zip(start, end, strict=True)]).T


def _double_round(state: _State) -> _State:
    a, b, c, d = quarter_round(*state)
    a, b, c, d = quarter_round(a, jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0))
    return a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)


def stream_words(key: Array, stream: int, first_block: tuple[Any, Any], count: int, bits: int) -> Array:
    """Return ``count`` words of ``bits`` bits of a stream, from a 64-bit block number on.

    Args:
        key: 8 words, uint32.
        stream: the stream's number, below 2^32.
        first_block: (low, high) words of the first block's counter.
        count: how many words.
        bits: 8, 16, 32 or 64 (64 only where JAX's 64-bit types are on).

    Returns:
        Unsigned integers of shape (count,): the little-endian key stream read ``bits`` at a time.
    """
    words = (*first_block, stream, 0)
    return words_from(jnp.concatenate([key, jnp.stack([jnp.asarray(w, jnp.uint32) for w in words])]), count, bits)


def words_from(head: Array, count: int, bits: int) -> Array:
    """Return ``stream_words`` of a state: of its words 4 to 15, the key, the first block's number, the stream and 0."""
    number = -(-count * bits // 512)
    made = lax.platform_dependent(
        head, cuda=partial(chacha_gpu.blocks, count=number), default=partial(_blocks, count=number)
    )
    return _regroup(made.reshape(-1), bits)[:count]


def _blocks(head: Array, count: int) -> Array:
    low = head[8] + lax.iota(jnp.uint32, count)
    carry = (low < head[8]).astype(jnp.uint32)
    return block_words(head[:8], low, (head[9] + carry, head[10], head[11]))


def _regroup(words: Array, bits: int) -> Array:
    if bits == 32:
        return words
    if bits == 64:
        pairs = words.reshape(-1, 2).astype(jnp.uint64)
        return pairs[:, 0] | (pairs[:, 1] << np.uint64(32))
    shifts = jnp.arange(0, 32, bits, dtype=jnp.uint32)
    parts = words[:, None] >> shifts
    return parts.reshape(-1).astype(jnp.dtype(f"uint{bits}"))


def _seed(seed: Array) -> Array:
    raise ValueError(
        "seed: a ChaCha20 key has 256 bits and an integer seed too few; "
        "use dpkernels.random.os_key() or dpkernels.random.key_from_bytes(32 bytes)"
    )


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    words = stream_words(key, SPLIT_STREAM, (0, 0), 8 * math.prod(shape), 32)
    return words.reshape(*shape, 8)


def _fold_in(key: Array, data: Any) -> Array:
    return stream_words(key, FOLD_STREAM, (jnp.asarray(data).astype(jnp.uint32), 0), 8, 32)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    return stream_words(key, BITS_STREAM, (0, 0), math.prod(shape), bit_width).reshape(shape)


chacha20_impl = define_prng_impl(
    key_shape=(8,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="chacha20",
)


def wrap(words: Array | np.ndarray) -> Array:
    """Return the typed key with these 8 words (uint32)."""
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=chacha20_impl)  # type: ignore[arg-type]
