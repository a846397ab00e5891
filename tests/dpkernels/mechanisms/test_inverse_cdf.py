"""The inverse cdf of mechanisms: accurate to 4 units of the output interval, increasing in u, exact at the ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import ALL, ATOMIC, CENTRAL_PIECEWISE, SKEW, UNIT, WINDOWED, input_range, inputs, over, spacing

import dpkernels as dpk
from dpkernels.mechanisms.base import METHODS
from dpkernels.numerics import arcsine_cdf, half_precision, sin_pi
from dpkernels.random.uniforms import uniforms

KEY = dpk.simulation_key(5)
# Where a ring of height 0 lies on a base as low, rounding of the mass below moves a report further.
SMOOTH = [name for name in WINDOWED if name != "ring-bowl-0.5-w0.7"] + list(CENTRAL_PIECEWISE)
QUICK = ("piecewise-0.5", "sine-quartic-0.5", "triangle-quartic0.3-5-w1.3", "central-piecewise-1")
LEVELS = np.unique([*np.geomspace(1e-9, 0.02, 60), *np.linspace(0.02, 0.98, 241), *(1 - np.geomspace(1e-6, 0.02, 60))])
MOST = 4.5  # Units in the last place, of which half a unit is the reference's own rounding of the parameters.


def unit_of_reports(m, dtype=np.float64):
    """The unit in the last place of the output interval's width, or of its larger end."""
    low, high = m.output_interval
    return np.spacing(np.asarray(max(abs(low), abs(high), high - low), dtype)).astype(float)


@over(ALL, *SMOOTH)
def test_icdf_is_accurate(m):
    """Against the cdf in 80-bit numbers, from the nearer end."""
    x = inputs(m)
    y = m.icdf(LEVELS[:, None], x)
    upper = LEVELS[:, None] > 0.5
    mirror = 2 * np.longdouble(m.middle)
    report = np.where(upper, mirror - y, y.astype(np.longdouble))
    input_ = np.where(upper, mirror - x, x.astype(np.longdouble))
    u = np.where(upper, 1 - LEVELS[:, None].astype(np.longdouble), LEVELS[:, None])
    density = m.pdf(report, input_)
    error = abs(m.cdf(report, input_) - u) / density
    assert np.all(error <= MOST * unit_of_reports(m) + 1e-18 / density)


@pytest.mark.lengthy
@pytest.mark.quick(*QUICK, "hybrid-1")
@over(ALL, *SMOOTH, *ATOMIC)
def test_float32_icdf_is_the_one_of_float64(m):
    u, x = LEVELS.astype(np.float32)[:, None], inputs(m).astype(np.float32)
    y = np.asarray(jax.jit(m.icdf)(u, jnp.asarray(x)), float)
    exact = m.icdf(u.astype(float), x.astype(float))
    atoms = np.isin(exact, m.atoms(x.astype(float))[0])
    error = np.where(atoms, 0.0, abs(y - exact))
    assert error.max() <= MOST * unit_of_reports(m, np.float32)


def neighbours(centre, dtype, count=300):
    """So many floats from a level on, each the next one."""
    centre = np.asarray(centre, dtype)
    return np.minimum(centre + np.arange(count, dtype=dtype) * np.spacing(centre), 1).astype(dtype)


@pytest.mark.lengthy
@pytest.mark.quick("sine-2-w1.3-float32", "triangle-quartic0.3-5-w1.3-float32", "hybrid-1-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@over(ALL)
def test_icdf_increases_between_neighbouring_floats(m, dtype):
    """Around the window's ends and its middle too, where the three cases meet."""
    x = np.asarray(inputs(m)[1], dtype)
    edges = [m.middle]
    if isinstance(m, dpk.Windowed):
        start = m._window_start(float(x)) + m.width * np.array([0.0, 0.5, 1.0])
        edges = m.middle + start / m.scale
    levels = [0.01, 0.37, 0.93, *(m.cdf(np.asarray(edges), float(x)) * (1 - 8 * np.finfo(dtype).eps))]
    u = np.concatenate([neighbours(level, dtype) for level in sorted(levels) if level > 0])
    u = np.sort(np.concatenate([u, np.linspace(0, 1, 401, dtype=dtype)]))
    with jax.enable_x64(dtype == "float64"):
        y = np.asarray(jax.jit(m.icdf)(jnp.asarray(u), jnp.asarray(x)))
    assert np.diff(y).min() >= 0
    if dtype == "float64":
        assert np.diff(m.icdf(u, x)).min() >= 0


@over(ALL)
def test_the_ends_are_exact_and_nothing_lies_beyond(m):
    u, x = np.array([0.0, 1.0, -1e-9, 1.1, np.nan])[:, None], inputs(m)
    low, high = m.output_interval
    y = m.icdf(u, x)
    np.testing.assert_array_equal(y, np.array([low, high, np.nan, np.nan, np.nan])[:, None] + 0 * x)


@pytest.mark.lengthy
def test_the_ends_are_exact_in_float32():
    for m in (WINDOWED["uniform-2-w1.95"], WINDOWED["sine-quartic-0.5"], ATOMIC["hybrid-1"]):
        y = jax.jit(m.icdf)(jnp.array([0.0, 1.0, -1.0])[:, None], jnp.asarray(inputs(m), jnp.float32))
        low, high = (np.float32(end) for end in m.output_interval)
        np.testing.assert_array_equal(y, np.array([low, high, np.nan])[:, None] + np.zeros((1, 5), np.float32))


@pytest.mark.quick(*QUICK)
@over(ALL, *SMOOTH)
def test_antithetic_reports_mirror_each_other(m):
    """The mirror image of an input has mirrored reports."""
    u, x = np.linspace(0.01, 0.49, 21)[:, None], inputs(m)
    mirrored = m.icdf(1 - u, m.lower + m.upper - x)
    slack = 8 * spacing(m) + 4e-16 / m.pdf(m.icdf(u, x), x)
    assert np.all(abs(m.icdf(u, x) + mirrored - 2 * m.middle) <= slack)


@pytest.mark.lengthy
@pytest.mark.parametrize("m", [dpk.composite("sine", "quartic", epsilon=1.0, **SKEW), dpk.laplace(epsilon=1.0)])
def test_inverse_samples_are_the_icdf_at_the_uniforms_of_the_key(m):
    x = jnp.full(64, 0.3, jnp.float32)
    y = m.sample(KEY, x, method="inverse")
    u = np.asarray(uniforms(KEY, (0, 0), 64, jnp.float32), float)
    np.testing.assert_allclose(y, m.icdf(u, 0.3), rtol=0, atol=2e-5)


def test_another_method_is_refused():
    with pytest.raises(ValueError, match=r"method: 'sobol'.*inverse, mixture"):
        dpk.piecewise(epsilon=1.0, **UNIT).sample(KEY, 0.5, method="sobol")
    assert METHODS == ("mixture", "inverse")


@pytest.mark.lengthy
@pytest.mark.quick("sine-quartic-0.5")
@over(WINDOWED, "piecewise-0.5", "sine-quartic-0.5", "triangle-0.1")
def test_icdf_has_derivatives_in_u_x_and_every_parameter(m, x64):
    x = m.lower + 0.411 * input_range(m)
    for u in (0.03, 0.45, 0.97):
        by_m, by_u, by_x = jax.jit(jax.grad(lambda m, u, x: m.icdf(u, x), argnums=(0, 1, 2)))(m, u, x)
        y = m.icdf(u, x)
        assert by_u == pytest.approx(1 / m.pdf(y, x), rel=1e-6)
        leaves, structure = jax.tree.flatten(m)

        def moved(h, i, leaves=leaves, structure=structure, u=u):
            changed = [leaf + h * (k == i) for k, leaf in enumerate(leaves)]
            return jax.tree.unflatten(structure, changed).icdf(u, x + h * (i < 0))

        for i, slope in enumerate([*jax.tree.leaves(by_m), by_x]):
            i = i if i < len(leaves) else -1
            h = 1e-6 * (input_range(m) if i < 0 or i >= len(leaves) - 3 else leaves[i])
            numeric = (moved(h, i) - moved(-h, i)) / (2 * h)
            assert slope == pytest.approx(numeric, rel=1e-5, abs=1e-7 * input_range(m) / h * 1e-6)


def ulps(values, exact):
    """Distances in units in the last place, for arrays of float and of higher precision."""
    units = np.spacing(np.abs(values)).astype(float)
    return np.array([float(abs(mpmath.mpf(float(g)) - e) / u) for g, e, u in zip(values, exact, units, strict=True)])


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions_are_within_two_units(dtype, x64):
    w = np.concatenate([np.linspace(0, 1, 501)[1:-1], np.geomspace(1e-30, 1e-3, 50)]).astype(dtype)
    with mpmath.workdps(40):
        exact = [mpmath.mpf(float(value)) for value in w]
        arcsines = [2 / mpmath.pi * mpmath.asin(mpmath.sqrt(value)) for value in exact]
        sines = [mpmath.sin(mpmath.pi * value) for value in exact]
    for function, expected in ((arcsine_cdf, arcsines), (sin_pi, sines)):
        values = jax.jit(function)(jnp.asarray(w))
        assert values.dtype == dtype
        assert ulps(np.asarray(values), expected).max() <= 2
    np.testing.assert_array_equal(arcsine_cdf(jnp.array([0.0, 1.0], dtype)), [0, 1])
    np.testing.assert_array_equal(sin_pi(jnp.array([0.0, 0.5, 1.0], dtype)), [0, 1, 0])


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions_have_derivatives(dtype, x64):
    w = np.linspace(0.05, 0.95, 19).astype(dtype)
    for function, slope in (
        (arcsine_cdf, 1 / (np.pi * np.sqrt(w * (1 - w)))),
        (sin_pi, np.pi * np.cos(np.pi * w)),
    ):
        for differentiate in (jax.grad, jax.jacfwd):
            derivatives = jax.vmap(differentiate(function))(jnp.asarray(w))
            np.testing.assert_allclose(derivatives, slope, rtol=20 * np.finfo(dtype).eps, atol=20 * np.finfo(dtype).eps)
    assert np.all(np.isfinite(jax.vmap(jax.grad(arcsine_cdf))(jnp.array([0.0, 1.0], dtype))))


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_half_precision_is_the_same_on_both_kinds(dtype, x64):
    x = np.geomspace(1e-20, 4.0, 1001).astype(dtype)
    rounded = half_precision(x)
    np.testing.assert_array_equal(half_precision(jnp.asarray(x)), rounded)
    bits = np.finfo(dtype).nmant // 2
    np.testing.assert_array_equal(np.ldexp(np.frexp(rounded)[0], bits + 1) % 1, 0)
    np.testing.assert_allclose(rounded, x, rtol=0.5 ** (bits + 1))


@pytest.mark.lengthy
@pytest.mark.quick(*(f"{kind}-{name}" for kind in ("numpy", "jax") for name in QUICK))
@over(ALL)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_icdf_is_nan_outside_the_input_interval(m, kind):
    """As ``sample`` is; inside, the ends included, it is a number."""
    low, high = m.input_interval
    width = high - low
    invalid, valid = [low - 0.1 * width, high + 0.1 * width, np.nan], [low, m.middle, high]
    assert np.isnan(m.icdf(kind(0.3), kind(np.array(invalid)))).all()
    assert np.isfinite(m.icdf(kind(0.3), kind(np.array(valid)))).all()
