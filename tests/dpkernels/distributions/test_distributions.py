"""Laws of additive noise: densities, tails, inverses and moments agree with each other, with quadrature and SciPy."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats
from helpers import slow
from noise_registry import LAWS, MERGED, SYMMETRIC, ends, one, over, quadrature, scale, tail_points

from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase

TINY = 10.0 ** -np.array([30, 25, 16, 9, 5, 3, 2, 1, 0.4])
UNIFORM = np.concatenate([TINY, 1 - TINY[3:]])
QUICK = ("laplace", "gaussian")


def close(actual, expected, rtol, atol=0.0):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


# Densities


@over(LAWS)
def test_density_integrates_to_one(law):
    close(quadrature(law, one, *ends(law)), 1.0, 1e-12)


@pytest.mark.parametrize(
    "name", ["laplace", "laplace-wide", "gaussian", "truncated-gaussian", "truncated-gaussian-asymmetric"]
)
def test_scipy_agrees(name):
    law, z = LAWS[name], tail_points(LAWS[name])
    peer = {
        "laplace": lambda: scipy.stats.laplace(scale=law.scale),
        "gaussian": lambda: scipy.stats.norm(scale=law.sigma),
        "truncated": lambda: scipy.stats.truncnorm(
            *(end / law.kernel.sigma for end in law.support), 0, law.kernel.sigma
        ),
    }[name.split("-")[0]]()
    close(law.log_prob(z), peer.logpdf(z), 1e-12)
    close(law.prob(z), peer.pdf(z), 1e-12)
    close(law.cdf(z), peer.cdf(z), 1e-10)
    close(law.sf(z), peer.sf(z), 1e-10)
    close(law.icdf(UNIFORM[3:]), peer.ppf(UNIFORM[3:]), 1e-8)
    close([law.mean, law.variance], peer.stats("mv"), 1e-9, 1e-12)


@pytest.mark.parametrize("law", [MERGED, LAWS["merged-narrow"]])
def test_merged_log_density_has_its_slopes(law):
    starts, stops = (0.0, *law.breaks), (*law.breaks, law.breaks[-1] + 5.0)
    for start, stop, rate in zip(starts, stops, law.rates, strict=True):
        z = np.linspace(start, stop, 7)
        close(np.diff(law.log_prob(z)), -rate * np.diff(z), 1e-11, 1e-14)
        close(law.log_prob(-z), law.log_prob(z), 1e-15)


@over(LAWS, "staircase-0", "staircase-0.3", "staircase-1")
def test_staircase_steps(law):
    z = law.period * (np.arange(9)[:, None] + np.array([0.05, 0.2, 0.5, 0.93]))
    high = np.broadcast_to(z[0] < law.gamma * law.period, z.shape)
    level = law.log_prob(z) + law.epsilon * np.arange(9)[:, None] + np.where(high, 0, law.epsilon)
    close(level, level[0, 0], 1e-12, 1e-12)
    close(law.log_prob(-z), law.log_prob(z), 1e-15)


@over({name: law for name, law in LAWS.items() if isinstance(law, Reweighted)})
def test_reweighted_is_the_kernel_times_a_step(law):
    z = np.linspace(-6.05, 6.03, 97) * scale(law)
    is_inside = (z >= law.low) & (z <= law.high)
    kernel_inside = quadrature(law.kernel, one, max(law.low, ends(law.kernel)[0]), min(law.high, ends(law.kernel)[1]))
    total = kernel_inside + law.outside * (1 - kernel_inside)
    close(law.prob(z), law.kernel.prob(z) * np.where(is_inside, 1.0, law.outside) / total, 1e-11)
    close([law.total, law.acceptance], [total, kernel_inside / total], 1e-11)


@over(LAWS)
def test_density_is_weight_times_the_law_underneath(law):
    z = np.concatenate([tail_points(law), np.linspace(-4.03, 4.05, 41) * scale(law)])
    close(law.prob(z), law.weight(z) * law.unweighted.prob(z), 1e-12)
    assert any(
        law.unweighted is symmetric or type(law.unweighted) is type(symmetric) for symmetric in SYMMETRIC.values()
    )
    close(law.unweighted.prob(-z), law.unweighted.prob(z), 1e-14)


@over(LAWS)
def test_weight_is_constant_and_density_smooth_between_knots(law):
    assert np.all(np.diff(law.knots) >= 0)
    low, high = (max(ends(law)[0], -20 * scale(law)), min(ends(law)[1], 20 * scale(law)))
    edges = np.unique(np.clip(np.concatenate([[low, high], law.knots]), low, high))
    edges = edges[np.concatenate([[True], np.diff(edges) > 1e-9 * scale(law)])]
    points = edges[:-1, None] + np.diff(edges)[:, None] * np.linspace(0.001, 0.999, 9)
    weight = law.weight(points)
    close(weight, weight[:, :1] + 0 * weight, 1e-14)
    third = np.diff(law.log_prob(points), 3, axis=1)
    close(third, 0, 0, 1e-9)  # At most quadratic: affine losses between knots.


@over(LAWS)
def test_nothing_outside_the_support(law):
    low, high = law.support
    z = np.array([low - 0.1, high + 0.1])
    if np.isfinite(low):
        assert np.all(law.prob(z) == 0)
        assert np.all(law.log_prob(z) == -np.inf)
    close(law.cdf(z), [0, 1], 0, 1e-15)
    close(law.sf(z), [1, 0], 0, 1e-15)
    assert law.mass(low, high) == pytest.approx(1, abs=1e-14)


# Tails


@over(LAWS)
def test_cdf_and_sf_are_integrals_of_the_density(law):
    low, high = ends(law)
    z = tail_points(law)
    reach = 60 * scale(law)
    close(law.cdf(z), [quadrature(law, one, max(float(law.support[0]), min(end, 0) - reach), end) for end in z], 1e-10)
    close(law.sf(z), [quadrature(law, one, end, min(float(law.support[1]), max(end, 0) + reach)) for end in z], 1e-10)
    if np.isinf(law.support[0]):
        assert law.cdf(z).min() < 1e-30
        assert law.sf(z).min() < 1e-30
    close(law.cdf(z) + law.sf(z), 1.0, 1e-14)
    assert np.all(np.diff(law.cdf(np.linspace(low, high, 999))) >= 0)


@pytest.mark.lengthy
@over(LAWS)
def test_mass_is_the_integral_of_the_density(law):
    z = tail_points(law)
    a, b = (pairs.ravel() for pairs in np.meshgrid(z, z))
    a, b = a[a < b], b[a < b]
    close(law.mass(a, b), [quadrature(law, one, *pair) for pair in zip(a, b, strict=True)], 1e-10)


@pytest.mark.parametrize("s", [0.013, 1.0, 42.0])
def test_mass_keeps_its_digits_in_the_far_tails(s):
    with mpmath.workdps(60):
        for a, b in [(0.4, 0.9), (11.0, 11.5), (36.9, 37.4), (-0.8, 0.3), (3.0, math.inf), (30.0, 31.0)]:
            normal = mpmath.ncdf(-mpmath.mpf(a)) - mpmath.ncdf(-mpmath.mpf(b))
            edge = [mpmath.sign(z) * (1 - mpmath.exp(-abs(mpmath.mpf(z)))) for z in (a, b)]
            for law, exact in ((Gaussian(s), normal), (Laplace(s), (edge[1] - edge[0]) / 2)):
                close(law.mass(a * s, b * s), float(exact), 1e-12)
                close(law.mass(-b * s, -a * s), float(exact), 1e-12)
                if math.isinf(b):
                    close([law.sf(a * s), law.cdf(-a * s)], float(exact), 1e-12)


@over(LAWS)
def test_infinite_ends(law):
    infinity = np.array([-np.inf, np.inf])
    close(law.cdf(infinity), [0, 1], 0)
    close(law.sf(infinity), [1, 0], 0)
    close(law.prob(infinity), [0, 0], 0)
    z = tail_points(law)
    close(law.mass(-np.inf, z), law.cdf(z), 1e-12)
    close(law.mass(z, np.inf), law.sf(z), 1e-12)


# Inverses


@over(LAWS)
def test_inverses_undo_the_cdf_in_both_tails(law):
    # Next to a finite end, floats are this far apart.
    finite = [abs(float(end)) for end in law.support if np.isfinite(end)]
    spacing = max((4 * np.spacing(end) * law.prob(np.array([-end, end])).max() for end in finite), default=0.0)
    close(law.cdf(law.icdf(UNIFORM)), UNIFORM, 1e-11, spacing)
    close(law.sf(law.isf(UNIFORM)), UNIFORM, 1e-11, spacing)
    close(law.sf(law.icdf(UNIFORM[9:])), TINY[3:], 1e-6)
    assert np.all(np.diff(law.icdf(np.linspace(1e-9, 1 - 1e-9, 5001))) >= 0)


@over(LAWS)
def test_the_cdf_undoes_the_inverses(law):
    z = tail_points(law)
    lower, upper = z[law.cdf(z) < 0.4], z[law.sf(z) < 0.4]
    close(law.icdf(law.cdf(lower)), lower, 1e-11, 1e-13 * scale(law))
    close(law.isf(law.sf(upper)), upper, 1e-11, 1e-13 * scale(law))


@over(SYMMETRIC)
def test_symmetric_laws_are_symmetric(law):
    z = np.linspace(0.01, 9, 50) * scale(law)
    close(law.cdf(-z), law.sf(z), 1e-13)
    close(law.icdf(TINY), -law.isf(TINY), 1e-13)
    close(law.mean, 0, 0, 1e-14 * scale(law))


# Moments


@over(LAWS)
def test_moments(law):
    low, high = ends(law)
    mean = quadrature(law, lambda z: z, low, high)
    close(law.mean, mean, 1e-11, 1e-13 * scale(law))
    close(law.variance, quadrature(law, lambda z: (z - mean) ** 2, low, high), 1e-11)
    sides = quadrature(law, np.abs, low, 0.0) + quadrature(law, np.abs, 0.0, high)
    close(law.absolute_moment, sides, 1e-11)


@over(LAWS)
def test_partial_moments(law):
    low, high = np.sort(np.random.default_rng(5).normal(size=(2, 12)) * 3 * scale(law), axis=0)
    for power, function in ((1, lambda z: z), (2, np.square)):
        exact = [quadrature(law, function, *pair) for pair in zip(low, high, strict=True)]
        size = quadrature(law, lambda z, f=function: np.abs(f(z)), *ends(law))
        close(law.moment(power, low, high), exact, 1e-11, 1e-13 * size)


# JAX


@pytest.mark.quick("laplace", "merged-narrow", "truncated-laplace", "recycled-staircase")
@over(LAWS)
def test_float32_quantiles_have_the_right_size_in_both_tails(law):
    u = np.array([2.0**-24, 1 - 2.0**-24], np.float32)
    z = jax.jit(lambda law, u: law.icdf(u))(law, jnp.asarray(u))
    assert z.dtype == jnp.float32
    close(np.asarray(z), law.icdf(u.astype(np.float64)), 1e-4)
    lower, upper = np.asarray(z, np.float64)
    if np.isinf(law.support[0]):
        close([law.cdf(lower), law.sf(upper)], 2.0**-24, 2e-3)


def everything(law, z, u):
    moments = (law.mean, law.variance, law.absolute_moment, law.mass(z[0], z[-1]), law.moment(1, z[1], z[-2]))
    array = jnp if isinstance(z, jax.Array) else np
    values = (law.log_prob(z), law.cdf(z), law.sf(z), law.weight(z), array.stack([array.asarray(m) for m in moments]))
    return array.concatenate([*values, law.icdf(u)])


def arguments(law):
    """Points off all knots, inside the support."""
    u = np.array([1e-6, 0.0123, 0.231, 0.487, 0.731, 0.977, 1 - 1e-6])
    return law.icdf(u + 0.003 * u * (1 - u)), u


def stencil(name, value):
    """Offsets and weights of a second-order difference that stays in the parameter's range."""
    h = 1e-5 * max(abs(value), 1.0)
    if value == 0:
        return np.array([0, h, 2 * h]), np.array([-1.5, 2, -0.5]) / h
    if value == 1 and name in ("gamma", "outside"):
        return np.array([0, -h, -2 * h]), np.array([1.5, -2, 0.5]) / h
    return np.array([-h, h]), np.array([-0.5, 0.5]) / h


def parameters(law):
    paths, structure = jax.tree_util.tree_flatten_with_path(law)
    return (
        [str(path[0].name if len(path) == 1 else path[-1]).strip(".") for path, _ in paths],
        [v for _, v in paths],
        structure,
    )


def differences(law, function):
    """d function / d every parameter, by differences in NumPy's float64."""
    names, values, structure = parameters(law)
    columns = []
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        offsets, weights = stencil(name, value)
        moved = [[*values[:index], value + offset, *values[index + 1 :]] for offset in offsets]
        columns.append(sum(w * function(jax.tree.unflatten(structure, m)) for w, m in zip(weights, moved, strict=True)))
    return np.stack(columns, -1)


@pytest.mark.lengthy
@pytest.mark.quick("laplace")
@over(LAWS, *QUICK)
@pytest.mark.usefixtures("x64")
def test_gradients_with_respect_to_every_parameter(law):
    check_gradients(law)


def check_gradients(law):
    z, u = arguments(law)
    _, values, structure = parameters(law)

    @jax.jit
    def run(leaves, z, u):
        def packed(leaves):
            return everything(jax.tree.unflatten(structure, list(leaves)), z, u)

        return packed(leaves), jax.jacrev(packed)(leaves)

    value, gradient = run(jnp.array(values, float), jnp.asarray(z), jnp.asarray(u))
    close(np.asarray(value), everything(law, z, u), 1e-11, 1e-13)
    direct = len(value) - len(u)
    numeric = differences(law, lambda moved: everything(moved, z, u)[:direct])
    close(np.asarray(gradient)[:direct], numeric, 3e-7, 3e-8)
    quantile = law.icdf(u)
    implicit = -differences(law, lambda moved: np.where(u < 0.5, moved.cdf(quantile), -moved.sf(quantile)))
    implicit /= law.prob(quantile)[:, None]
    close(np.asarray(gradient)[direct:], implicit, 1e-6, 1e-6)


@pytest.mark.parametrize("name", slow(["laplace", "recycled-truncated"], "recycled-truncated"))
@pytest.mark.usefixtures("x64")
def test_vmap_over_laws_and_grad_in_z(name):
    law = LAWS[name]
    z, u = arguments(law)
    grown = [law, jax.tree.map(lambda leaf: leaf * 1.01, law)]
    stacked = jax.tree.map(lambda *leaves: jnp.array(leaves, float), *grown)
    mapped = jax.jit(jax.vmap(everything, in_axes=(0, None, None)))(stacked, jnp.asarray(z), jnp.asarray(u))
    close(np.asarray(mapped), [everything(each, z, u) for each in grown], 1e-11, 1e-13)
    slope = jax.jit(jax.vmap(jax.grad(law.cdf)))(jnp.asarray(z))
    close(np.asarray(slope), law.prob(z), 1e-9, 1e-13)
    close(np.asarray(jax.jit(jax.vmap(jax.grad(law.icdf)))(jnp.asarray(u))), 1 / law.prob(law.icdf(u)), 1e-9)


@pytest.mark.lengthy
@pytest.mark.quick("laplace", "merged", "staircase-0.3")
@over(LAWS)
def test_shapes_and_types(law):
    z = np.linspace(-1, 1, 6).reshape(2, 3)
    for method in (law.log_prob, law.cdf, law.sf, law.weight, law.prob):
        assert method(z).shape == (2, 3)
        assert method(z).dtype == np.float64
        assert np.shape(method(0.25)) == ()
    assert law.mass(z, z[:, :1] + 3).shape == (2, 3)
    assert law.icdf(np.full((4, 1), 0.2)).shape == (4, 1)
    assert law.cdf(jnp.float32(0.25)).dtype == jnp.float32


# Errors


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize(("law", "name"), [(Laplace, "scale"), (Gaussian, "sigma")])
def test_scales_are_positive_and_finite(law, name, bad):
    with pytest.raises(ValueError, match=f"^{name}:"):
        law(bad)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rates": (1.0, 2.0)}, "rates"),
        ({"rates": ()}, "rates"),
        ({"rates": (1.0, -0.1, 2.0)}, "rates"),
        ({"rates": (1.0, np.nan, 2.0)}, "rates"),
        ({"rates": (1.0, 2.0, 0.0)}, "rates"),
        ({"breaks": (2.0, 1.0)}, "breaks"),
        ({"breaks": (1.0, 1.0)}, "breaks"),
        ({"breaks": (0.0, 1.0)}, "breaks"),
        ({"breaks": (-1.0, 1.0)}, "breaks"),
        ({"breaks": (1.0, np.inf)}, "breaks"),
    ],
)
def test_merged_laplace_errors(change, name):
    valid = MergedLaplace((1.0, 0.0, 2.0), (0.5, 1.0))
    with pytest.raises(ValueError, match=f"^{name}:"):
        dataclasses.replace(valid, **change)


@pytest.mark.parametrize(
    ("law", "change", "name"),
    [
        (LAWS["staircase-0.3"], {"epsilon": 0.0}, "epsilon"),
        (LAWS["staircase-0.3"], {"period": 0.0}, "period"),
        (LAWS["staircase-0.3"], {"gamma": 1.01}, "gamma"),
        (LAWS["staircase-0.3"], {"gamma": -0.01}, "gamma"),
        (LAWS["recycled-laplace"], {"low": 0.0}, "low"),
        (LAWS["recycled-laplace"], {"low": 0.5}, "low"),
        (LAWS["recycled-laplace"], {"high": 0.0}, "high"),
        (LAWS["recycled-laplace"], {"high": -1.0}, "high"),
        (LAWS["recycled-laplace"], {"outside": 1.01}, "outside"),
        (LAWS["recycled-laplace"], {"outside": -0.01}, "outside"),
        (LAWS["recycled-laplace"], {"outside": np.nan}, "outside"),
    ],
)
def test_parameters_out_of_range(law, change, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        dataclasses.replace(law, **change)


def test_text_is_no_number():
    with pytest.raises(TypeError, match="scale"):
        Laplace("1")
    with pytest.raises(TypeError, match="gamma"):
        Staircase(1.0, 1.0, "half")
