"""Sampling as a JAX program: shapes, types, pieces, batches, and one compilation each."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ALL, HUMPS, SKEW, UNIT, WINDOWED, input_range, inputs, over

import dpkernels as dpk
from dpkernels.mechanisms.base import _sample, sample_from

VARIED = ("piecewise-0.5", "sine-2-w1.3", "triangle-quartic0.3-5-w1.3", "humps-1-w0.7", "hybrid-1", "duchi-0.1")
THREE = ("sine-quartic-0.5", "bump-dome-5", "hybrid-1")
KEY = dpk.simulation_key(5)
PIECE = 48

over_types = pytest.mark.parametrize("dtype", ["float32", "float64"])
over_keys = pytest.mark.parametrize("key", [KEY, dpk.key_from_bytes(bytes(range(32)))], ids=["threefry", "chacha20"])


def range_of_reports(m):
    low, high = m.output_interval
    return high - low


@pytest.mark.lengthy
@pytest.mark.quick("sine-quartic-0.5-float32", "hybrid-1-float64")
@over_types
@over(ALL, *THREE)
def test_every_shape_is_the_flat_sample(m, dtype):
    """XLA may fuse each shape its own way, so the last bits may differ."""
    tolerance = 8 * np.finfo(dtype).eps * range_of_reports(m)
    with jax.enable_x64(dtype == "float64"):
        x = np.resize(inputs(m), 12).astype(dtype)
        flat = m.sample(KEY, x)
        for shape in ((), (3, 4), (0,), (2, 0, 3)):
            y = m.sample(KEY, np.resize(x, shape))
            assert (y.shape, y.dtype) == (shape, dtype)
            np.testing.assert_allclose(np.ravel(y), flat[: y.size], rtol=0, atol=tolerance)


@pytest.mark.lengthy
@pytest.mark.quick("int32-threefry", "float16-chacha20")
@over_keys
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, jnp.bfloat16, bool])
def test_other_types_become_float32(key, dtype):
    m = dpk.piecewise(epsilon=1.0, lower=0.0, upper=5.0)
    y, from_float32 = (m.sample(key, np.array([0, 1, 1, 0], x_dtype)) for x_dtype in (dtype, np.float32))
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, from_float32)


@pytest.mark.parametrize("x", [2, 2.0, [0.0, 5.0], [[1], [2]]], ids=repr)
def test_python_numbers_become_arrays(x):
    y = dpk.piecewise(epsilon=1.0, **SKEW).sample(KEY, x)
    assert (y.shape, y.dtype) == (np.shape(x), jnp.float32)


@pytest.mark.quick("piecewise-0.5", "duchi-0.1")
@over(ALL, *VARIED)
def test_outside_the_interval_is_nan(m):
    margin = 0.01 * input_range(m)
    bad = np.array([m.lower - margin, m.upper + margin, np.nan, np.inf, -np.inf])
    y = m.sample(KEY, np.concatenate([bad, inputs(m)[1:-1]]))
    assert np.all(np.isnan(y) == ([True] * 5 + [False] * 3))


@pytest.mark.quick("piecewise-0.5", "sine-2-w1.3", "duchi-0.1")
@over(ALL, *VARIED)
def test_both_ends_are_inside(m):
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            assert np.all(np.isfinite(m.sample(KEY, np.array([m.lower, m.upper], dtype))))


@pytest.mark.thorough
@over(ALL, *THREE)
def test_jit_and_vmap_over_keys(m):
    x = jnp.asarray(inputs(m), jnp.float32)
    keys = jax.random.split(KEY, 3)
    alone = jnp.stack([m.sample(key, x) for key in keys])
    together = jax.vmap(lambda key: m.sample(key, x))(keys)
    jitted = jax.jit(lambda mechanism, key: mechanism.sample(key, x))(m, keys[0])
    tolerance = 1e-5 * range_of_reports(m)
    np.testing.assert_allclose(together, alone, rtol=0, atol=tolerance)
    np.testing.assert_allclose(jitted, alone[0], rtol=0, atol=tolerance)
    assert not np.any(alone[0] == alone[1]) or isinstance(m, dpk.Mixture)


@pytest.mark.quick("duchi")
@pytest.mark.parametrize("make", [dpk.piecewise, dpk.duchi, dpk.hybrid])
def test_vmap_over_mechanisms(make, x64):
    """A stack of mechanisms, leaf by leaf, is a batch of mechanisms."""
    batch = [make(epsilon=epsilon, **SKEW) for epsilon in (0.7, 1.0, 3.0)]
    stack = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *batch)
    x = jnp.linspace(-3.0, 17.0, 64)
    for method in (lambda m: m.sample(KEY, x), lambda m: m.variance(x)):
        alone = jnp.stack([method(m) for m in batch])
        np.testing.assert_allclose(jax.vmap(method)(stack), alone, rtol=1e-9, atol=1e-9)


@pytest.mark.lengthy
@pytest.mark.quick("float32-chacha20", "float64-threefry")
@over_keys
@over_types
def test_piece_is_the_tail_of_the_whole(key, dtype):
    m = WINDOWED["sine-2-w1.3"]
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.resize(inputs(m), 2 * PIECE), dtype)
        reports = m.sample(key, x)
        tolerance = 8 * np.finfo(dtype).eps * range_of_reports(m)
        for start in (0, PIECE):
            piece = sample_from(m, key, start, x[start : start + PIECE])
            np.testing.assert_allclose(piece, reports[start : start + PIECE], rtol=0, atol=tolerance)


@pytest.mark.lengthy
@over_keys
def test_start_counts_beyond_32_bits(key):
    m = WINDOWED["sine-2-w1.3"]
    x = jnp.asarray(np.resize(inputs(m), 2 * PIECE), "float32")
    crossing = sample_from(m, key, (1 << 32) - PIECE, x)
    late_reports = sample_from(m, key, 1 << 32, x[PIECE:])
    np.testing.assert_allclose(crossing[PIECE:], late_reports, rtol=0, atol=1e-6 * range_of_reports(m))
    assert not np.any(late_reports == sample_from(m, key, 0, x[PIECE:]))


def test_keys_decide_the_noise():
    m, x = WINDOWED["piecewise-0.5"], np.zeros(64)
    first, repeated, other_key = (m.sample(dpk.simulation_key(seed), x) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, repeated)
    assert not np.any(first == other_key)


@pytest.mark.quick("piecewise-0.5", "hybrid-1")
@over(ALL, *VARIED)
def test_one_compilation_a_shape_and_type(m):
    x = jnp.asarray(np.resize(inputs(m), 137), jnp.float32)
    m.sample(KEY, x)
    before = _sample._cache_size()
    for shift in (0.25, 0.5):
        _moved(m, shift * input_range(m)).sample(dpk.simulation_key(9), x)
    assert _sample._cache_size() == before
    m.sample(KEY, x[:136])
    assert _sample._cache_size() == before + 1


def _moved(m, shift):
    """A mechanism of the same structure with other parameters."""
    if isinstance(m, dpk.Mixture):
        return dataclasses.replace(m, first=_moved(m.first, shift), second=_moved(m.second, shift), weight=0.3)
    changed = {"lower": m.lower - shift, "upper": m.upper + shift, "epsilon": m.epsilon * 1.1}
    if isinstance(m, dpk.Windowed):
        changed |= {"width": 0.9 * m.width, "relative_height": 0.9 * m.relative_height}
    return dataclasses.replace(m, **changed)


@pytest.mark.quick("piecewise-0.5")
@over(ALL, *VARIED)
def test_strict_promotion(m):
    """Users may run JAX with strict promotion: no method mixes types silently."""
    with jax.numpy_dtype_promotion("strict"):
        x = jnp.asarray(inputs(m)[1:-1], jnp.float32)
        y = m.sample(KEY, x)
        for value in (m.pdf(y, x), m.cdf(y, x), m.variance(x), m.absolute_error(x)):
            assert value.dtype == jnp.float32


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.5", "duchi-0.1")
@over(ALL, *VARIED)
def test_methods_agree_in_jax_and_numpy(m, x64):
    x = inputs(m)
    y = np.linspace(*m.output_interval, 23)[1:-1, None] + 0.00123 * input_range(m)
    jax_y, jax_x = jnp.asarray(y), jnp.asarray(x)
    np.testing.assert_allclose(m.cdf(jax_y, jax_x), m.cdf(y, x), rtol=0, atol=1e-9)
    np.testing.assert_allclose(m.pdf(jax_y, jax_x), m.pdf(y, x), rtol=1e-6, atol=1e-9 / input_range(m))
    for method in (m.variance, m.absolute_error, m.mean):
        np.testing.assert_allclose(method(jax_x), method(x), rtol=1e-7)


@pytest.mark.lengthy
@over(ALL, "piecewise-0.5", "sine-quartic-0.5", "hybrid-1")
def test_icdf_agrees_in_jax_and_numpy(m, x64):
    u, x = np.linspace(0.01, 0.99, 21)[:, None], inputs(m)
    in_jax = jax.jit(m.icdf)(jnp.asarray(u), jnp.asarray(x))
    np.testing.assert_allclose(in_jax, m.icdf(u, x), rtol=0, atol=1e-9 * input_range(m))


@over(ALL, "humps-1-w0.7")
def test_icdf_of_tables_is_a_loop(m):
    """The program does not grow with the bits to be found; unrolled, it takes minutes to compile."""
    sizes = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            sizes.append(len(jax.jit(m.icdf).lower(jnp.asarray(0.3), jnp.asarray(m.middle)).as_text()))
    assert sizes[1] < 1.3 * sizes[0]


@pytest.mark.thorough
def test_float64_is_not_spoiled_by_float32_before():
    """JAX caches NumPy constants of a jitted function in the type of its first use (seen in jax 0.10.2)."""
    m = dpk.composite(HUMPS, dpk.base_from([0.5, 0.9, 1.0, 0.9, 0.5]), epsilon=1.3, **UNIT)
    y, x = np.linspace(*m.output_interval, 50)[1:-1], inputs(m)[1]
    m.sample(KEY, jnp.full(3, x, jnp.float32))
    with jax.enable_x64(True):
        np.testing.assert_allclose(m.cdf(jnp.asarray(y), jnp.asarray(x)), m.cdf(y, x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("make_key", [lambda: 0, lambda: np.zeros(2, np.uint32), lambda: jnp.zeros(4, jnp.uint32)])
def test_what_is_no_typed_key_is_refused(make_key):
    with pytest.raises(TypeError, match=r"key: .* is not a typed JAX key"):
        dpk.piecewise(epsilon=1.0, **UNIT).sample(make_key(), 0.5)


SIMULATED = {
    "piecewise": (dpk.piecewise(epsilon=1.0, lower=0.0, upper=5.0), np.array([0.0, 1.0, 4.0])),
    "laplace": (dpk.laplace(epsilon=1.0), np.array([0.0, 1.0, 4.0])),
    "vector of noise": (dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=3, norm="l1"), np.array([0.0, 1.0, 4.0])),
    "coordinates": (dpk.multivariate(dimensions=3, epsilon=1.0, lower=0.0, upper=5.0), np.array([0.0, 1.0, 4.0])),
    "categories": (dpk.subset_selection(1.0, 4), np.array([0, 1, 3])),
}
simulated = pytest.mark.parametrize("name", SIMULATED)


@simulated
def test_sample_shape_draws_each_input_several_times(name):
    m, x = SIMULATED[name]
    reports = m.sample(KEY, x, (2, 1))
    assert reports.shape[:3] == (2, 1, 3)
    np.testing.assert_array_equal(reports, m.sample(KEY, np.broadcast_to(x, (2, 1, 3))))
    np.testing.assert_array_equal(m.sample(KEY, x, ()), m.sample(KEY, x))
    with pytest.raises(ValueError, match="sample_shape: -1"):
        m.sample(KEY, x, (-1,))


@simulated
def test_a_legacy_key_draws_as_the_typed_one_with_its_words(name):
    m, x = SIMULATED[name]
    np.testing.assert_array_equal(
        m.sample(jax.random.PRNGKey(3), x), m.sample(jax.random.key(3, impl="threefry2x32"), x)
    )


@simulated
def test_a_pytree_is_refused_in_words(name):
    m, x = SIMULATED[name]
    with pytest.raises(TypeError, match=r"x: dict is not one array.*For a pytree, draw each leaf with a key"):
        m.sample(KEY, {"a": x})


def test_the_variance_of_additive_noise_needs_no_input():
    m = dpk.laplace(epsilon=np.array([0.5, 1.0]))
    np.testing.assert_array_equal(m.variance(), m.variance(np.array([3.0, 4.0])))
    assert dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=3, norm="l1").variance() == 2.0
    assert m.absolute_error().shape == (2,)


def test_several_keys_are_refused():
    with pytest.raises(TypeError, match=r"key: has shape \(2,\)"):
        dpk.duchi(epsilon=1.0, **UNIT).sample(jax.random.split(KEY, 2), 0.5)
