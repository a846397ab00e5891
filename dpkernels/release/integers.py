"""Integer noise of private training inside a compiled program, from half words.

Value i uses word i of the stream of upper halves. If this does not determine the code, it also uses word i of the
stream of lower halves. If the remainder of the table is drawn, it also uses the whole word i of turn 1 of the stream of
the noise.
"""

from __future__ import annotations

import numpy as np

from dpkernels.exact.noise.halves import HalvedNoise
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.sampler import LOWER_HALF_STREAM, NOISE_STREAM, UPPER_HALF_STREAM
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.mechanisms.additive import check_dimensions
from dpkernels.numerics import RealArray
from dpkernels.random.chacha import counter_blocks, stream_words
from dpkernels.release.engines import check_words
from dpkernels.release.process import kernel_settings
from dpkernels.release.traced import with_mapped_keys

# Values that are completed together if one of them is open; a multiple of those of a block.
_ROW = 64
# So many rows are completed at a time, because every call of ChaCha20 takes some time of its own.
_TOGETHER = 16
# Up to so many values all words are drawn: that takes less time than to find those that matter.
_MAX_WHOLLY_DRAWN = 1 << 9


def release_integers(key: Array, sampler: ExactNoise, values: Array) -> Array:
    """Return a vector of int32 with the noise of a table of integers, as integers in float64.

    The values must be the same on all devices. The bits are not those of ``perturb_traced``.

    Raises:
        TypeError: the values are not int32, or the noise is not one of integers.
        ValueError: the noise is for another number of values, or ``vmap`` maps over values with one key.
        RuntimeError: the device's ChaCha20 words are wrong.
    """
    if (device := jax.local_devices()[0]).platform != "cpu":
        check_words(device)
    check_dimensions(sampler.mechanism.dimensions, values.shape)
    width = sampler.table.bin_width
    if values.dtype != np.int32 or width != 1:
        raise TypeError(f"values: are {values.dtype} for noise in steps of {float(width):g}; both must be integers")
    noise, count = sampler.derived[(HalvedNoise,)], len(values)

    def noisy(key: Array, values: Array) -> RealArray:
        # On a GPU all lower halves cost less than a loop over the few that matter.
        codes = jax.lax.platform_dependent(
            key,
            cuda=lambda key: _codes_at_once(noise, key, count),
            default=lambda key: _codes_by_rows(noise, key, count),
        )
        return values.astype(np.float64) + codes.astype(np.float64)

    with kernel_settings(x64=True):
        return with_mapped_keys(noisy)(jax.random.key_data(key), values)


def _codes_at_once(noise: HalvedNoise, key: Array, count: int) -> RealArray:
    """Return the codes of so many values, int32, from all of their words."""
    codes = noise.codes(*(stream_words(key, s, (0, 0), count, 32) for s in (UPPER_HALF_STREAM, LOWER_HALF_STREAM)))

    def complete(state: tuple[Array, RealArray]) -> tuple[Array, RealArray]:
        return state[0] & False, noise.complete(state[1], stream_words(key, NOISE_STREAM, (0, 0), count, 64, 1))

    # A loop of at most one turn: under vmap, lax.cond would compute both branches.
    return jax.lax.while_loop(lambda state: state[0], complete, (jnp.any(noise.are_incomplete(codes)), codes))[1]


def _codes_by_rows(noise: HalvedNoise, key: Array, count: int) -> RealArray:
    """Return the codes of so many values, int32, with lower halves for rows that have an open one alone."""
    rows = -(-count // _ROW)
    if count <= _MAX_WHOLLY_DRAWN:
        return _codes_of_rows(noise, key, jax.lax.iota(jnp.uint32, rows))[:count]
    upper = stream_words(key, UPPER_HALF_STREAM, (0, 0), rows * _ROW, 32)
    codes, is_open = noise.upper_codes(upper)
    has_open = is_open.reshape(rows, _ROW).any(1)
    # The last ones of them are followed by row 0, whose codes stay what they are.
    (numbers,) = jnp.nonzero(has_open, size=rows + _TOGETHER, fill_value=0)
    upper = upper.reshape(rows, _ROW)

    def complete(i: Array, codes: Array) -> Array:
        row_indices = jax.lax.dynamic_slice(numbers, (i * _TOGETHER,), (_TOGETHER,))
        completed = _codes_of_rows(noise, key, row_indices.astype(jnp.uint32), upper[row_indices].reshape(-1))
        return codes.at[row_indices].set(completed.reshape(_TOGETHER, _ROW))

    turns = -(-has_open.sum(dtype=jnp.int32) // _TOGETHER)
    return jax.lax.fori_loop(0, turns, complete, codes.reshape(rows, _ROW)).reshape(-1)[:count]


def _codes_of_rows(noise: HalvedNoise, key: Array, numbers: Array, upper: Array | None = None) -> RealArray:
    """Return the codes of whole rows with these numbers, int32, from all of their words."""
    count = len(numbers) * _ROW
    streams = [(LOWER_HALF_STREAM, 16, 0), (NOISE_STREAM, 8, 1), (UPPER_HALF_STREAM, 16, 0)]
    # All streams together, because every program of ChaCha20 takes half a second to compile.
    counters = [_row_counters(numbers, *stream) for stream in streams[: 3 if upper is None else 2]]
    words = counter_blocks(key, jnp.concatenate(counters, axis=1)).reshape(-1)
    pairs = words[count : 3 * count].reshape(-1, 2).astype(jnp.uint64)
    codes = noise.codes(words[3 * count :] if upper is None else upper, words[:count])
    return noise.complete(codes, pairs[:, 0] | pairs[:, 1] << np.uint64(32))


def _row_counters(numbers: Array, stream: int, in_block: int, turn: int) -> Array:
    """Return the counters of the blocks of rows of a stream, of which a block has so many words."""
    blocks = _ROW // in_block
    positions = (numbers[:, None] * np.uint32(blocks) + jax.lax.iota(jnp.uint32, blocks)).reshape(-1)
    constants = (jnp.full_like(positions, word) for word in (0, stream, turn))
    return jnp.stack([positions, *constants])
