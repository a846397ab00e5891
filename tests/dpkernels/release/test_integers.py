"""Integers with noise inside a program, by halves of words: the words of OpenSSL, rows that are completed, refusals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.exact.noise.halves import HalvedNoise
from dpkernels.exact.noise.remainder import Remainder
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.sampler import LOWER_HALF_STREAM, NOISE_STREAM, UPPER_HALF_STREAM
from dpkernels.random import host
from dpkernels.release import integers
from dpkernels.release.integers import release_integers
from dpkernels.training.noise import exact_noise

SECRET = bytes(range(32))
KEY = dpk.key_from_bytes(SECRET)


def openssl(stream, count, bits, turn=0):
    words = np.empty(count, f"<u{bits // 8}")
    host.Keystream(SECRET).fill(words, stream, 0, turn)
    return words


def expected(sampler, count):
    """The codes of whole words, with those of the remainder."""
    upper, lower = (openssl(stream, count, 32).astype(np.uint64) for stream in (UPPER_HALF_STREAM, LOWER_HALF_STREAM))
    codes, remainder = sampler.kernel(upper << np.uint64(32) | lower), sampler.table.remainder
    further = remainder.kernel()(openssl(NOISE_STREAM, count, 64, 1)) + remainder.first
    return np.where(codes < sampler.table.first, further, codes)


class Often(HalvedNoise):
    """Noise of which every 100th draw is open besides, where its codes are of no use."""

    def upper_codes(self, upper):
        codes, is_open = super().upper_codes(upper)
        is_spoilt = upper % np.uint32(100) == 0
        return jnp.where(is_spoilt, 10**6, codes), is_open | is_spoilt


def with_large_remainder(sampler):
    """A sampler, and noise of three codes with a remainder that is drawn half of the time."""
    weights = np.array([1 << 61, 1 << 62, 1 << 61], np.uint64)
    further = Remainder(1 << 63, np.full(8, 1 << 61, np.uint64), -4, 64)
    table = NoiseTable(weights, -1, 64, 0, 1, remainder=further)
    return type("Sampler", (), {"table": table, "kernel": staticmethod(table.kernel())})()


@pytest.mark.lengthy
@pytest.mark.quick("few-300-plain", "rows-6000-remainder", "at once-700-remainder")
@pytest.mark.parametrize("kind", ["plain", "remainder"])
@pytest.mark.parametrize(("method", "count"), [("few", 300), ("rows", 6000), ("at once", 700)])
def test_codes_are_those_of_whole_words(monkeypatch, method, count, kind):
    """By every way of drawing them, of which that by rows completes some rows and leaves out others."""
    sampler, _ = exact_noise(1.0, count)
    sampler = with_large_remainder(sampler) if kind == "remainder" else sampler
    monkeypatch.setattr(integers, "_MAX_WHOLLY_DRAWN", 0 if method == "rows" else 1 << 12)
    noise = Often(sampler)
    drawn = integers._codes_at_once if method == "at once" else integers._codes_by_rows
    with jax.enable_x64(True):
        codes = jax.jit(lambda key: drawn(noise, key, count))(jax.random.key_data(KEY))
    assert (np.asarray(codes) == expected(sampler, count)).all()
    is_open = Often(sampler).upper_codes(openssl(UPPER_HALF_STREAM, count, 32))[1]
    rows_open = len(set(np.flatnonzero(is_open) // integers._ROW))
    assert rows_open > 0
    # More rows than are completed at once, and with few open draws others are left out.
    assert method != "rows" or rows_open > integers._TOGETHER
    assert method != "rows" or kind == "remainder" or rows_open < count // integers._ROW


@pytest.mark.lengthy
@pytest.mark.parametrize("count", [300, 700])
def test_a_vector_has_the_noise_of_its_sampler(count):
    """Also next to the ends of 32 bits, and for a batch of keys."""
    sampler, _ = exact_noise(1.0, count)
    values = np.random.default_rng(0).choice(np.array([-(2**31), -5, 2**31 - 1], np.int32), count)
    with jax.enable_x64(True):
        program = jax.jit(lambda key: release_integers(key, sampler, jnp.asarray(values)))
        noisy = np.asarray(program(KEY))
        assert (noisy - values == expected(sampler, count)).all()
        keys = jnp.stack([KEY, dpk.key_from_bytes(bytes(32))])
        both = np.asarray(jax.vmap(program)(keys))
        assert (both[0] == noisy).all()
        assert (both[1] != noisy).mean() > 0.9
        with pytest.raises(ValueError, match="key: is one for 2 rows under vmap"):
            jax.vmap(lambda x: release_integers(KEY, sampler, x))(jnp.zeros((2, count), jnp.int32))


def test_what_is_not_of_integers_is_refused():
    sampler, _ = exact_noise(1.0, 300)
    with pytest.raises(TypeError, match="values: are float32 for noise in steps of 1"):
        release_integers(KEY, sampler, jnp.zeros(300))
    with pytest.raises(ValueError, match="300"):
        release_integers(KEY, sampler, jnp.zeros(299, jnp.int32))
    coarse = dpk.exact_sampler(
        dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=4.0), dimensions=2, norm="l1", lattice=2.0)
    )
    with pytest.raises(TypeError, match="values: are int32 for noise in steps of "):
        release_integers(KEY, coarse, jnp.zeros(2, jnp.int32))
