"""The blocks of ``chacha.py`` on an NVIDIA GPU, as one Triton kernel: the rounds in a loop, the state in registers.

XLA makes a kernel through memory of every quarter round, or compiles for a minute.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# Blocks a program of the grid, one a thread.
_BLOCKS = 128

# A kernel counts words in 32 signed bits, so longer streams are made by several.
_MOST_BLOCKS = 1 << 26

CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def blocks(head: Array, count: int, *, interpret: bool = False) -> Array:
    """Return ``count`` consecutive blocks from a state on, RFC 8439 section 2.3 with a counter of 64 bits.

    Args:
        head: words 4 to 15 of the first block's state, uint32.
        count: how many.
        interpret: run by JAX's own operations, on any device.

    Returns:
        uint32 of shape (count, 16).
    """
    pieces = [
        _piece(head, first, min(_MOST_BLOCKS, count - first), interpret) for first in range(0, count, _MOST_BLOCKS)
    ]
    return jnp.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _piece(head: Array, first: int, count: int, interpret: bool) -> Array:
    # Imported here: they add to JAX's flags.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    programs = -(-count // _BLOCKS)
    varying = jax.typeof(head).manual_axis_type  # Which devices of a shard_map may have heads of their own.

    def kernel(head_ref: Array, out_ref: Array) -> None:
        at = np.uint32(first) + pl.program_id(0).astype(jnp.uint32) * np.uint32(_BLOCKS) + lax.iota(jnp.uint32, _BLOCKS)
        low = head_ref[8] + at
        high = head_ref[9] + (low < at).astype(jnp.uint32)
        words = [*CONSTANTS, *(head_ref[i] for i in range(8)), low, high, head_ref[10], head_ref[11]]
        start = tuple(jnp.broadcast_to(word, at.shape).astype(jnp.uint32) for word in words)
        end = lax.fori_loop(0, 10, lambda _, state: _double_round(state), start)
        for i in range(16):
            out_ref[:, i] = start[i] + end[i]

    with jax.enable_x64(False):
        made = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((programs * _BLOCKS, 16), jnp.uint32, manual_axis_type=varying),
            grid=(programs,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((_BLOCKS, 16), lambda i: (i, 0)),
            compiler_params=triton.CompilerParams(num_warps=_BLOCKS // 32, num_stages=1),
            interpret=interpret,
        )(head)
    return made[:count]


def _double_round(state: tuple[Array, ...]) -> tuple[Array, ...]:
    words = list(state)
    for a, b, c, d in _COLUMNS + _DIAGONALS:
        words[a], words[b], words[c], words[d] = quarter_round(words[a], words[b], words[c], words[d])
    return tuple(words)


def quarter_round(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
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


def _rotate(word: Array, by: int) -> Array:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))
