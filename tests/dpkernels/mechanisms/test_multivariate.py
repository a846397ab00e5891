"""Vectors: which coordinates are reported, what with, and that the mean is the input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MULTIVARIATE, SKEW, UNIT, over

import dpkernels as dpk
from dpkernels.mechanisms.base import METHODS

KEY = dpk.simulation_key(21)
ROWS = 1 << 14

over_all = over(MULTIVARIATE)


def bounds(m):
    return [np.broadcast_to(end, m.dimensions) for end in m.input_interval]


def rows(m, share=0.37):
    """The same vector in every row, off the middle by another share of the width in each coordinate."""
    lower, upper = bounds(m)
    return np.tile(lower + (upper - lower) * np.linspace(share, 0.9, m.dimensions), (ROWS, 1))


def sample(m, x, key=KEY, method="mixture"):
    with jax.enable_x64(True):
        return np.asarray(m.sample(key, jnp.asarray(x), method=method))


@pytest.mark.lengthy
@pytest.mark.quick("*all-of-two*")
@over_all
@pytest.mark.parametrize("method", METHODS)
def test_mean_and_variance_within_6_sigma(m, method):
    x = rows(m)
    y = sample(m, x, method=method)
    noise = (y - x) / np.sqrt(m.variance(x))
    assert np.all(abs(noise.mean(0)) < 6 / np.sqrt(ROWS))
    squares = noise**2
    assert np.all(abs(squares.mean(0) - 1) < 6 * squares.std(0) / np.sqrt(ROWS) + 1e-9)


@pytest.mark.lengthy
@over_all
def test_s_coordinates_are_reported_each_as_often(m):
    """The others report the middle: exactly s reports differ from it, each coordinate s/d of the time."""
    lower, upper = bounds(m)
    reported = abs(sample(m, rows(m)) - (lower + upper) / 2) > 1e-9 * (upper - lower)
    rate = m.sampled / m.dimensions
    assert np.all(reported.sum(1) == m.sampled)
    assert np.all(abs(reported.mean(0) - rate) <= 6 * np.sqrt(rate * (1 - rate) / ROWS))


@pytest.mark.lengthy
@over_all
def test_which_coordinates_does_not_depend_on_the_data(m):
    lower, upper = bounds(m)
    middle = (lower + upper) / 2
    first, second = (
        abs(sample(m, x) - middle) > 1e-9 * (upper - lower) for x in (rows(m), np.full_like(rows(m), lower))
    )
    np.testing.assert_array_equal(first, second)


@over_all
def test_reports_are_those_of_the_coordinate_mechanism_scaled(m):
    lower, upper = bounds(m)
    y = sample(m, rows(m))
    ends = [np.broadcast_to(end, m.dimensions) for end in m.output_interval]
    margin = 1e-9 * (upper - lower)
    assert np.all((ends[0] - margin <= y) & (y <= ends[1] + margin))
    scale = (upper - lower) / 2 * m.dimensions / m.sampled
    low, high = m.coordinate.output_interval
    np.testing.assert_allclose(ends[1] - ends[0], scale * (high - low), rtol=1e-12)
    reached = (y.max(0) - y.min(0)) / (ends[1] - ends[0])
    assert np.all(reached > 0.98)


@over_all
def test_noise_of_a_row_is_uncorrelated(m):
    x = rows(m)
    noise = (sample(m, x) - x) / np.sqrt(m.variance(x))
    assert abs((noise[1:, 0] * noise[:-1, 0]).mean()) < 6 / np.sqrt(ROWS - 1)
    if m.sampled == m.dimensions == 2:
        assert abs((noise[:, 0] * noise[:, 1]).mean()) < 6 / np.sqrt(ROWS)


@pytest.mark.thorough
def test_shapes_jit_and_vmap():
    m = MULTIVARIATE["two-of-five"]
    x = jnp.asarray(rows(m)[:6], jnp.float32)
    flat = m.sample(KEY, x)
    assert (flat.shape, flat.dtype) == (x.shape, jnp.float32)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    deep = m.sample(KEY, x.reshape(2, 3, 5))
    np.testing.assert_allclose(deep.reshape(x.shape), flat, **tolerance)
    batch = jax.jit(jax.vmap(m.sample, (0, None)))(jax.random.split(KEY, 2), x)
    np.testing.assert_allclose(batch[1], m.sample(jax.random.split(KEY, 2)[1], x), **tolerance)
    assert m.sample(KEY, x[0]).shape == (5,)
    assert m.sample(KEY, x[:0]).shape == (0, 5)


def test_nan_and_values_outside_are_nan_where_reported():
    m = dpk.multivariate(dimensions=3, sampled=3, epsilon=3.0, **SKEW)
    y = m.sample(KEY, np.array([np.nan, 17.5, 3.0]))
    assert list(np.isnan(y)) == [True, True, False]


@pytest.mark.parametrize(("epsilon", "sampled"), [(1.0, 1), (4.9, 1), (5.0, 2), (7.6, 3), (20.0, 4)])
def test_default_number_of_coordinates(epsilon, sampled):
    """Wang 2019: max(1, min(d, floor(eps / 2.5)))."""
    m = dpk.multivariate(dimensions=4, epsilon=epsilon, **UNIT)
    assert m.sampled == sampled
    assert m.coordinate.epsilon == pytest.approx(epsilon / sampled)


@pytest.mark.lengthy
@pytest.mark.quick("duchi", "piecewise", "optimal")
@pytest.mark.parametrize("name", sorted(set(dpk.MECHANISMS) - {"sine-quartic", "triangle-quartic"}))
def test_any_listed_mechanism_serves_a_coordinate(name):
    m = dpk.multivariate(dimensions=2, epsilon=1.0, coordinate=name, **SKEW)
    assert m.coordinate == dpk.MECHANISMS[name](epsilon=1.0, lower=-1.0, upper=1.0)
    x = np.full((64, 2), 3.0)
    assert np.all(np.isfinite(m.sample(KEY, x)))


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (3, 4, 1)])
def test_wrong_last_axis_is_refused(shape):
    m = dpk.multivariate(dimensions=3, epsilon=1.0, **UNIT)
    with pytest.raises(ValueError, match=r"x: has shape .* last axis must hold the 3"):
        m.sample(KEY, np.full(shape, 0.5))
