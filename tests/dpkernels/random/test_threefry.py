"""Unrolled Threefry: jax.random's words by position, and the uniforms that samplers draw from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from dpkernels.random import host, simulation_key
from dpkernels.random.chacha import BITS_STREAM, wrap
from dpkernels.random.uniforms import threefry_words, uniforms, unit_interval

SEEDS = [0, 1, 2**31 - 1]
KEYS = {"threefry": simulation_key(11), "chacha20": wrap(np.arange(8, dtype=np.uint32))}


stream_words = jax.jit(threefry_words, static_argnums=(2, 3))
draw = jax.jit(uniforms, static_argnums=(2, 3))


def halves(start):
    """A 64-bit index as the two words that streams take."""
    return np.uint32(start & 0xFFFFFFFF), np.uint32(start >> 32)


def data(seed):
    return jax.random.key_data(simulation_key(seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bits", [32, 64])
def test_words_are_those_of_jax_random(seed, bits):
    with jax.enable_x64(True):
        expected = jax.random.bits(simulation_key(seed), (1001,), f"uint{bits}")
        words = stream_words(data(seed), halves(0), 1001, bits)
        assert words.dtype == expected.dtype
        np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize("bits", [32, 64])
def test_an_offset_is_a_slice(bits):
    with jax.enable_x64(True):
        whole = stream_words(data(5), halves(0), 500, bits)
        np.testing.assert_array_equal(stream_words(data(5), halves(123), 300, bits), whole[123:423])


@pytest.mark.parametrize("start", [2**32 - 3, 2**40 - 3])
def test_an_offset_across_2_32_goes_on(start):
    """Against jax's own Threefry at the 64-bit counters (high, low)."""
    index = np.arange(8, dtype=np.uint64) + np.uint64(start)
    counters = np.concatenate([index >> np.uint64(32), index & np.uint64(0xFFFFFFFF)]).astype(np.uint32)
    high, low = np.split(np.asarray(threefry_2x32(data(3), jnp.asarray(counters))), 2)
    words = stream_words(data(3), halves(start), 8, 32)
    np.testing.assert_array_equal(words, high ^ low)


@pytest.mark.lengthy
def test_every_float32_uniform_is_inside_and_mirrored():
    """All 2^23 values the kept bits can give, and that the bits dropped do not matter."""
    words = np.arange(1 << 23, dtype=np.uint32) << np.uint32(9)
    u = np.asarray(unit_interval(jnp.asarray(words), jnp.float32))
    assert u.dtype == np.float32
    assert u[0] > 0
    assert u[-1] < 1
    np.testing.assert_array_equal(1 - u[::-1], u)
    assert len(np.unique(u)) == len(u)
    np.testing.assert_array_equal(unit_interval(jnp.asarray(words[:1000] | 511), jnp.float32), u[:1000])


def test_float64_uniforms_are_inside_and_mirrored():
    ends = np.array([0, 1 << 12, 2**64 - (2 << 12), 2**64 - 1], np.uint64)
    with jax.enable_x64(True):
        u = np.asarray(unit_interval(jnp.asarray(ends), jnp.float64))
    assert u.dtype == np.float64
    assert 0 < u[0] < u[1] < u[2] < u[3] < 1
    np.testing.assert_array_equal(1 - u[::-1], u)


@pytest.mark.lengthy
@pytest.mark.quick("chacha20-float32", "threefry-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_uniforms_are_uniform(key, dtype):
    """Kolmogorov-Smirnov at a fixed key; a slight bend of the distribution must be seen."""
    with jax.enable_x64(True):
        u = np.asarray(draw(key, halves(0), 300_000, jnp.dtype(dtype)))
    assert u.dtype == dtype
    assert stats.kstest(u, "uniform").pvalue > 1e-6
    assert stats.kstest(u**1.03, "uniform").pvalue < 1e-6


@pytest.mark.quick("threefry-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_uniforms_from_an_offset_are_a_slice(key, dtype):
    with jax.enable_x64(True):
        whole = draw(key, halves(0), 400, jnp.dtype(dtype))
        np.testing.assert_array_equal(draw(key, halves(160), 200, jnp.dtype(dtype)), whole[160:360])


@pytest.mark.quick("threefry-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_uniforms_across_2_32_go_on(key, dtype):
    with jax.enable_x64(True):
        both = draw(key, halves(7 * 2**32 - 64), 128, jnp.dtype(dtype))
        np.testing.assert_array_equal(draw(key, halves(7 * 2**32), 64, jnp.dtype(dtype)), both[64:])
        assert not np.array_equal(draw(key, halves(0), 64, jnp.dtype(dtype)), both[64:])


@pytest.mark.parametrize("start", [0, 2**32 + 16, 2**36, 5 * 2**40 + 64, 2**63])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chachas_uniforms_are_openssls_words_at_any_index(start, dtype):
    bits = np.dtype(dtype).itemsize * 8
    words = np.empty(32, f"<u{bits // 8}")
    host.fill(words, np.arange(8, dtype="<u4").tobytes(), BITS_STREAM, start * bits // 512)
    with jax.enable_x64(True):
        expected = unit_interval(jnp.asarray(words), jnp.dtype(dtype))
        np.testing.assert_array_equal(draw(KEYS["chacha20"], halves(start), 32, jnp.dtype(dtype)), expected)


def test_an_unknown_generator_is_refused():
    with pytest.raises(TypeError, match="rbg"):
        uniforms(jax.random.key(0, impl="rbg"), halves(0), 16, jnp.float32)
