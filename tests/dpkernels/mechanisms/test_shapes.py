"""Windows and bases: area, spread, cdf, its integral and its inverse agree with quadrature of their density."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import BOWL, BUMP, DOME, HUMPS, RING, piece_integrals, shape_knots

import dpkernels as dpk

WINDOWS = {
    "uniform": dpk.Uniform(),
    "sine": dpk.Sine(),
    "triangle": dpk.Triangle(),
    "bump": BUMP,
    "humps": HUMPS,
    "ring": RING,
    "three-values": dpk.window_from([0.0, 2.0, 0.0]),
}
BASES = {
    "constant": dpk.Constant(),
    **{f"quartic-{edge:g}": dpk.Quartic(edge) for edge in (1e-9, 1e-6, 0.3, 1.0)},
    "bowl": BOWL,
    "dome": DOME,
}
SHAPES = {**{name: (w, 0.0, 1.0) for name, w in WINDOWS.items()}, **{n: (b, -1.0, 1.0) for n, b in BASES.items()}}

over_shapes = pytest.mark.parametrize(
    ("shape", "low", "high"), [pytest.param(*shape, id=name) for name, shape in SHAPES.items()]
)
over_windows = pytest.mark.parametrize("window", [pytest.param(w, id=name) for name, w in WINDOWS.items()])


def _grid(shape, low, high):
    """Knots of the shape, and points between them."""
    return np.union1d(low + (high - low) * shape_knots(shape), np.linspace(low, high, 101))


def _integral(shape, low, high, function):
    return piece_integrals(lambda z: function(z) * shape.density(z), _grid(shape, low, high)).sum()


@over_shapes
def test_peak_is_one_and_area_and_spread_are_integrals(shape, low, high):
    middle = (low + high) / 2
    mass = _integral(shape, low, high, np.ones_like)
    second = _integral(shape, low, high, lambda z: (z - middle) ** 2)
    assert shape.density(_grid(shape, low, high)).max() == pytest.approx(1, abs=1e-15)
    assert shape.area == pytest.approx(mass / (high - low), rel=1e-13)
    assert shape.variance == pytest.approx(second / mass, rel=1e-13)


@over_shapes
def test_density_is_symmetric_and_zero_outside(shape, low, high):
    z = np.linspace(low, high, 307)[1:-1]
    assert shape.density(z) == pytest.approx(shape.density(low + high - z), abs=1e-12)
    assert np.all(shape.density(np.array([low - 0.01, high + 0.01, low - 3, high + 3])) == 0)


@over_shapes
def test_cdf_is_the_integral_of_the_density(shape, low, high):
    z = _grid(shape, low, high)
    pieces = piece_integrals(shape.density, z) / ((high - low) * shape.area)
    np.testing.assert_allclose(np.diff(shape.cdf(z)), pieces, rtol=0, atol=1e-14)
    outside = shape.cdf(np.array([low - 1, low, high, high + 1]))
    assert outside == pytest.approx([0, 0, 1, 1], abs=1e-14)


@over_shapes
def test_cdf_integral_is_the_integral_of_the_cdf(shape, low, high):
    z = _grid(shape, low, high)
    np.testing.assert_allclose(np.diff(shape.cdf_integral(z)), piece_integrals(shape.cdf, z), rtol=0, atol=1e-14)
    assert shape.cdf_integral(np.array(low)) == pytest.approx(0, abs=1e-15)


@over_shapes
def test_icdf_undoes_cdf(shape, low, high):
    u = np.concatenate([[0.0, 1e-12, 1e-7], np.linspace(0.01, 0.99, 53), [1 - 1e-7, 1 - 1e-12, 1.0]])
    z = shape.icdf(u)
    assert np.all((low <= z) & (z <= high))
    assert np.all(np.diff(z) > 0)
    np.testing.assert_allclose(shape.cdf(z), u, rtol=0, atol=2e-15)


@pytest.mark.quick("triangle", "humps", "quartic-1e-06", "bowl")
@over_shapes
def test_icdf_in_float32(shape, low, high):
    """Every float32 uniform, the ends included, has a report in the interval with the right mass below it."""
    tiny = np.array([0.0, 2.0**-24, 2.0**-20], np.float32)
    u = np.concatenate([tiny, np.linspace(0.01, 0.99, 53, dtype=np.float32), 1 - tiny])
    z = jax.jit(shape.icdf)(jnp.asarray(u))
    assert z.dtype == jnp.float32
    assert np.all((low <= z) & (z <= high))
    # One rounding of z moves the mass below it by at most (peak density) * 2^-24.
    steepest = 1 / ((high - low) * shape.area)
    np.testing.assert_allclose(shape.cdf(np.asarray(z, np.float64)), u, rtol=0, atol=(2 + 4 * steepest) * 2.0**-23)


@pytest.mark.lengthy
@pytest.mark.quick("sine", "humps", "quartic-0.3", "bowl")
@over_shapes
def test_jax_agrees_with_numpy(shape, low, high, x64):
    z, u = np.linspace(low, high, 77), np.linspace(0, 1, 77)
    for name, at in (("density", z), ("cdf", z), ("cdf_integral", z), ("icdf", u)):
        expected, got = getattr(shape, name)(at), jax.jit(getattr(shape, name))(jnp.asarray(at))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13, err_msg=name)


@over_windows
def test_supremum_and_infimum_bound_the_density(window):
    """They are the extremes at distances from the middle beyond, and up to, d."""
    d = np.union1d(np.linspace(0, 0.5, 401), abs(shape_knots(window) - 0.5))
    density = window.density(0.5 + d)
    suffix_maximum = np.maximum.accumulate(density[::-1])[::-1]
    up_to = np.minimum.accumulate(density)
    assert np.all(window.supremum_beyond(d) >= suffix_maximum - 1e-12)
    assert np.all(window.infimum_within(d) <= up_to + 1e-12)
    at_knots = np.isin(d, abs(shape_knots(window) - 0.5))
    np.testing.assert_allclose(window.supremum_beyond(d)[at_knots], suffix_maximum[at_knots], rtol=0, atol=1e-12)
    np.testing.assert_allclose(window.infimum_within(d)[at_knots], up_to[at_knots], rtol=0, atol=1e-12)
    assert window.supremum_beyond(np.array([0.51, 2.0])) == pytest.approx(0, abs=0)
    assert window.infimum_within(np.array([0.51, 2.0])) == pytest.approx(0, abs=0)


@pytest.mark.parametrize("base", [pytest.param(base, id=name) for name, base in BASES.items()])
def test_lowest_is_the_infimum(base):
    assert base.lowest == pytest.approx(base.density(_grid(base, -1.0, 1.0)).min(), rel=1e-6)


@pytest.mark.parametrize(
    ("table", "named"), [(WINDOWS["three-values"], dpk.Triangle()), (dpk.window_from([3, 3, 3]), dpk.Uniform())]
)
def test_tables_of_named_windows_are_these(table, named):
    z = np.linspace(0, 1, 41)
    assert (table.area, table.variance) == pytest.approx((named.area, named.variance), rel=1e-14)
    for method in ("density", "cdf", "cdf_integral", "icdf"):
        np.testing.assert_allclose(getattr(table, method)(z), getattr(named, method)(z), rtol=0, atol=1e-14)


def test_function_is_its_table_at_1025_knots():
    window, base = (lambda z: 2 + np.cos(2 * np.pi * z)), (lambda v: 2 - v**2)
    knots = np.linspace(0, 1, 1025)
    assert dpk.window_from(window) == dpk.window_from([window(z) for z in knots])
    assert dpk.base_from(base) == dpk.base_from([base(v) for v in 2 * knots - 1])
