"""Caches that are bounded by bytes."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.caching import bounded_cache, memory_size
from dpkernels.exact import registry


def test_the_least_recently_used_values_are_forgotten():
    calls = []

    @bounded_cache(9_000)
    def zeros(count):
        calls.append(count)
        return np.zeros(count)

    for count in (500, 400, 500, 300, 400):  # of 8 bytes: 300 makes them too many, and 400 is the oldest
        assert len(zeros(count)) == count
    assert calls == [500, 400, 300, 400]
    assert zeros.memory() <= zeros.limit
    assert len(zeros(5000)) == 5000  # Too large by itself, and kept alone.
    zeros(5000)
    assert calls[4:] == [5000]
    zeros(10)
    zeros(5000)
    assert calls[5:] == [10, 5000]


def test_a_cache_refuses_what_has_no_hash():
    with pytest.raises(TypeError, match="unhashable"):
        bounded_cache(1)(len)([])


@pytest.mark.parametrize(
    "make",
    [
        lambda: dpk.exact_sampler(dpk.gaussian(sigma=5.0, sensitivity=1.0, epsilon=8.0, delta=0.3)),
        lambda: dpk.exact_sampler(dpk.optimal(epsilon=1.3, lower=0.0, upper=1.0)),
        lambda: {"a": [np.zeros(10_000), (np.zeros(10_000),)], 3: list(range(10_000))},
    ],
)
def test_memory_is_estimated(make):
    """Within a factor of 2 of what is allocated for a value."""
    make()
    registry._cached.cache_clear()
    gc.collect()
    tracemalloc.start()
    value = make()
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert allocated / 2 < memory_size(value) < 2 * allocated


def test_what_views_share_is_counted_once():
    array = np.zeros(1000)
    assert 8000 <= memory_size([array, array[:500], array[500:], array.view("u8")]) < 9000


def test_noise_of_many_scales_takes_bounded_memory(monkeypatch):
    """A sampler that the cache forgets is gone: nothing else refers to it, with its programs."""
    monkeypatch.setattr(registry._cached, "limit", 12 << 20)
    registry._cached.cache_clear()
    samplers = []
    for scale in range(12):
        mechanism = dpk.gaussian(sigma=5.0 + scale / 100, sensitivity=1.0, epsilon=8.0, delta=0.3)
        dpk.perturb(np.zeros(10), mechanism)
        samplers.append(weakref.ref(dpk.exact_sampler(mechanism)))
        assert registry._cached.memory() <= 12 << 20
    dpk.perturb(np.zeros(20_000), mechanism)
    dpk.exact_sampler(dpk.gaussian(sigma=6.0, sensitivity=1.0, epsilon=8.0, delta=0.3))
    gc.collect()
    alive = [reference for reference in samplers if reference() is not None]
    assert 2 <= len(alive) <= 9
    del mechanism
    registry._cached.cache_clear()
    gc.collect()
    assert not any(reference() is not None for reference in samplers)
