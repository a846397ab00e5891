"""ChaCha20 (RFC 8439) in jax.numpy, as a typed-key implementation with 256-bit keys.

State words 0-3 are constants, 4-11 the key, 12-13 a 64-bit block counter, 14-15 the nonce. The first word of the nonce
is the *stream*, and the second its *turn*, which is 0 except for noise that needs further words. Different uses have
different streams, so ``split``, ``fold_in``, ``random_bits`` and each use of a release draw from unrelated key streams.
``host.py`` computes the same words with OpenSSL.
"""

from __future__ import annotations

import math
import os
from functools import cache, partial
from typing import Any

import numpy as np

from dpkernels.jax_on_use import Array, jax, jnp, lax, when_imported
from dpkernels.shapes import UInt, UInt32

# Streams of words of a key, for
BITS_STREAM = 0  # its random bits,
SPLIT_STREAM = 1  # the keys that it is split into,
FOLD_STREAM = 2  # the keys with folded numbers,
DEVICE_STREAM = 3  # and the keys of the devices of one program.

# Of ChaCha20 (RFC 8439), like the quarter rounds below: of columns, then of diagonals.
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))

# Of a tile: 128 KB of states for each core, which share the work on a tile.
_TILE = 2048 * min(os.cpu_count() or 1, 16)
_BLOCKS = 128  # Of a program of a GPU's grid, one a thread.
_MAX_BLOCKS = 1 << 26  # A GPU's kernel counts words in 32 signed bits, so longer streams are made by several.


def _quarter_round(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    """Apply the quarter round of RFC 8439 section 2.1."""
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(word: Array, bits: int) -> Array:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def blocks(head: UInt32[Array, "12"], count: int) -> UInt32[Array, "{count} 16"]:
    """Return consecutive blocks, RFC 8439 section 2.3, uint32 of shape (count, 16), from a state's words 4 to 15 on.

    Long streams are made tile by tile, whose states stay in the processor's caches through all rounds.
    """

    def tile(index: UInt32[Array, " size"]) -> UInt32[Array, "size 16"]:
        low = head[8] + index
        high = head[9] + (low < head[8]).astype(jnp.uint32)
        nonce = (jnp.broadcast_to(word, low.shape) for word in head[10:])
        return counter_blocks(head[:8], jnp.stack([low, high, *nonce]))

    tiles = -(-count // _TILE)
    if tiles == 1:
        return tile(lax.iota(jnp.uint32, count))
    size = -(-count // (16 * tiles)) * 16  # Whole vectors of the processor.
    starts, index = lax.iota(jnp.uint32, tiles) * np.uint32(size), lax.iota(jnp.uint32, size)
    _, words = lax.scan(lambda _, start: (None, tile(start + index)), None, starts)
    return words.reshape(-1, 16)[:count]


def counter_blocks(key: UInt32[Array, "8"], counters: UInt32[Array, "4 count"]) -> UInt32[Array, "count 16"]:
    """Return the blocks of a key for counters: words 12 to 15 of a state, uint32 of shape (4, count)."""
    constants = varying_like(jnp.asarray(_CONSTANTS), key)
    fixed = (jnp.broadcast_to(words[:, None], counters.shape) for words in (constants, key[:4], key[4:]))
    start = (*fixed, varying_like(counters, key))
    end = lax.fori_loop(0, 10, lambda _, state: _round(_round(state)), start)
    return jnp.concatenate([a + b for a, b in zip(start, end, strict=True)]).T


def varying_like(value: Array, *references: Array) -> Array:
    """Return the value typed as varying on the devices of a shard_map on which references do: loops need one type."""
    axes = frozenset[str]().union(*(jax.typeof(reference).manual_axis_type.varying for reference in references))
    missing = axes - jax.typeof(value).manual_axis_type.varying
    return lax.pcast(value, tuple(missing), to="varying") if missing else value


def _round(state: tuple[Array, ...]) -> tuple[Array, ...]:
    """Apply a round to the columns, and put the words of row r in the order r - i of columns i, modulo 4.

    Diagonals are columns in that order, and the order of that order is the first one. Both rounds have the same code,
    because XLA then makes one pass over memory of each row: the usual rotations by r and -r take up to twice as long.
    """
    return tuple(
        jnp.concatenate([row[(r - i) % 4 :][:1] for i in range(4)]) for r, row in enumerate(_quarter_round(*state))
    )


def stream_words(
    key: UInt32[Array, "8"],
    stream: int,
    first_block: tuple[Array | int, Array | int],
    count: int,
    bits: int,
    turn: int = 0,
) -> UInt[Array, " {count}"]:
    """Return ``count`` unsigned integers of 8, 16, 32 or 64 ``bits``: the little-endian key stream from a block on.

    The key has 8 uint32 words, the stream's number is below 2^32, and the block's number is given as (low, high) words.
    64 bits require JAX's 64-bit types. Every turn, below 2^32, has a stream of its own.
    """
    words = (*first_block, stream, turn)
    return words_from(jnp.concatenate([key, jnp.stack([jnp.asarray(w, jnp.uint32) for w in words])]), count, bits)


def words_from(head: UInt32[Array, "12"], count: int, bits: int) -> UInt[Array, " {count}"]:
    """Return ``stream_words`` of a state: of its words 4 to 15: key, block, stream and turn."""
    number = -(-count * bits // 512)
    on_gpu, elsewhere = (partial(words_of_blocks, count=number) for words_of_blocks in (gpu_blocks, blocks))
    words = lax.platform_dependent(head, cuda=on_gpu, default=elsewhere).reshape(-1)
    if bits == 64:
        pairs = words.reshape(-1, 2).astype(jnp.uint64)
        words = pairs[:, 0] | (pairs[:, 1] << np.uint64(32))
    elif bits < 32:
        pieces = words[:, None] >> jnp.arange(0, 32, bits, dtype=jnp.uint32)
        words = pieces.reshape(-1).astype(jnp.dtype(f"uint{bits}"))
    return words[:count]


def gpu_blocks(head: UInt32[Array, "12"], count: int, *, interpret: bool = False) -> UInt32[Array, "{count} 16"]:
    """Return ``blocks`` by one Triton kernel for NVIDIA GPUs; with ``interpret`` JAX's own operations run it.

    The rounds are a loop, and the state is in registers. XLA makes a kernel through memory of every quarter round, or
    compiles for a minute.
    """
    pieces = [
        _gpu_piece(head, first, min(_MAX_BLOCKS, count - first), interpret) for first in range(0, count, _MAX_BLOCKS)
    ]
    return jnp.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _gpu_piece(head: UInt32[Array, "12"], first: int, count: int, interpret: bool) -> UInt32[Array, "{count} 16"]:
    # Imported here: they add to JAX's flags.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    programs = -(-count // _BLOCKS)
    varying = jax.typeof(head).manual_axis_type  # Which devices of a shard_map may have heads of their own.

    def kernel(head_ref: Array, out_ref: Array) -> None:
        block = np.uint32(first) + pl.program_id(0).astype(jnp.uint32) * np.uint32(_BLOCKS)
        block += lax.iota(jnp.uint32, _BLOCKS)
        low = head_ref[8] + block
        high = head_ref[9] + (low < block).astype(jnp.uint32)
        words = [*_CONSTANTS, *(head_ref[i] for i in range(8)), low, high, head_ref[10], head_ref[11]]
        start = tuple(jnp.broadcast_to(word, block.shape).astype(jnp.uint32) for word in words)

        def double_round(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            words = list(state)
            for a, b, c, d in _COLUMNS + _DIAGONALS:
                words[a], words[b], words[c], words[d] = _quarter_round(words[a], words[b], words[c], words[d])
            return tuple(words)

        end = lax.fori_loop(0, 10, double_round, start)
        for i in range(16):
            out_ref[:, i] = start[i] + end[i]

    with jax.enable_x64(False):
        out = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((programs * _BLOCKS, 16), jnp.uint32, manual_axis_type=varying),
            grid=(programs,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((_BLOCKS, 16), lambda i: (i, 0)),
            compiler_params=triton.CompilerParams(num_warps=_BLOCKS // 32, num_stages=1),
            interpret=interpret,
        )(head)
    return out[:count]


def _seed(seed: Array) -> Array:
    raise ValueError(
        "seed: a ChaCha20 key has 256 bits and an integer seed too few; "
        "use dpkernels.random.os_key() or dpkernels.random.key_from_bytes(32 bytes)"
    )


def _random_bits(key: Array, bits: int, shape: tuple[int, ...]) -> Array:
    return stream_words(key, BITS_STREAM, (0, 0), math.prod(shape), bits).reshape(shape)


@cache
def implementation() -> Any:
    """Return the implementation of typed keys, which JAX knows by its name from then on."""
    from jax.extend.random import define_prng_impl

    return define_prng_impl(
        key_shape=(8,),
        seed=_seed,
        split=lambda key, shape: stream_words(key, SPLIT_STREAM, (0, 0), 8 * math.prod(shape), 32).reshape(*shape, 8),
        random_bits=_random_bits,
        fold_in=lambda key, data: stream_words(key, FOLD_STREAM, (jnp.asarray(data).astype(jnp.uint32), 0), 8, 32),
        name="chacha20",
        tag="chacha20",
    )


when_imported(implementation)


def wrap(words: Array | np.ndarray) -> Array:
    """Return the typed key with these 8 words (uint32)."""
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=implementation())
