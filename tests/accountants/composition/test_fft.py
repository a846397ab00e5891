"""Composition by Fourier transform: enumeration, the contour, the bracket, and derivatives against differences."""

from __future__ import annotations

import math

import contour
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import UNIT, slow
from scipy.special import gammaln

import accountants
import dpkernels as dpk
from accountants import discrete_pair, guarantee
from accountants.composition import fft, repeated
from accountants.composition.interpolation import POINTS, interpolate_on_grid, pointwise_maximum
from accountants.composition.repeated import ConvergenceError
from accountants.composition.three_point import ThreePointLoss, three_point_loss
from accountants.composition.tilted_direction import PANELS
from accountants.dominating_pairs.base import as_float64
from accountants.dominating_pairs.discrete import Atoms
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.additive import Additive

# Exact lattices


def three_losses(p, loss, n, eps):
    """delta of n reports of losses 0 and +-loss, by adding up all outcomes."""
    up, down = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    some = up + down <= n
    up, down = up[some], down[some]
    ways = gammaln(n + 1) - gammaln(up + 1) - gammaln(down + 1) - gammaln(n - up - down + 1)
    mass = np.exp(ways + up * math.log(p[0]) + down * math.log(p[2]) + (n - up - down) * math.log(p[1]))
    return math.fsum(mass * -np.expm1(np.minimum(eps - (up - down) * loss, 0.0)))


@pytest.mark.quick("0.4-7")
@pytest.mark.parametrize("n", [2, 7, 40])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.93])
def test_three_losses_by_enumeration(n, share):
    loss, high = 0.7, 0.5
    p = np.array([high, 1 - high - high * math.exp(-loss), high * math.exp(-loss)])
    eps = share * n * loss
    exact = three_losses(p, loss, n, eps)
    composed = guarantee(discrete_pair(p, p[::-1])).repeat(n)
    assert composed.estimate_delta(eps) == pytest.approx(exact, rel=1e-12)
    assert composed.estimate_epsilon(exact) == pytest.approx(eps, rel=1e-12)


def test_windowed_reports_are_three_losses():
    composed = guarantee(dpk.piecewise(epsilon=1.0, **UNIT)).repeat(30)
    m = dpk.piecewise(epsilon=1.0, **UNIT)
    inside = m.width * (m.level + m.height)
    p = np.array([inside, 1 - inside * (1 + math.exp(-1.0)), inside * math.exp(-1.0)])
    assert composed.estimate_delta(9.3) == pytest.approx(three_losses(p, 1.0, 30, 9.3), rel=1e-12)


def counted(p, losses, n, eps):
    """delta of n reports of any three losses, by adding up all outcomes."""
    a, b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    a, b = a[a + b <= n], b[a + b <= n]
    c = n - a - b
    ways = gammaln(n + 1) - gammaln(a + 1) - gammaln(b + 1) - gammaln(c + 1)
    mass = np.exp(ways + np.log(p) @ np.stack([a, b, c]))
    return math.fsum(mass * -np.expm1(np.minimum(eps - losses @ np.stack([a, b, c]), 0.0)))


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 22, 130])
@pytest.mark.parametrize("rate", [0.003, 0.3])
def test_samples_of_three_losses_by_enumeration(n, rate):
    """No grid holds their losses, of which the two directions have others."""
    loss, high = 1.1, 0.5
    p = np.array([high, 1 - high - high * math.exp(-loss), high * math.exp(-loss)])
    sampled = rate * p + (1 - rate) * p[::-1]
    ways = [(one, np.log(one / other)) for one, other in ((sampled, p[::-1]), (p[::-1], sampled))]
    eps = 0.4 * max(losses.max() for _, losses in ways) * min(n, 9)
    exact = max(counted(one, losses, n, eps) for one, losses in ways)
    composed = guarantee(discrete_pair(p, p[::-1])).subsample(rate).repeat(n)
    assert composed.estimate_delta(eps) == pytest.approx(exact, rel=3e-12)
    assert composed.estimate_epsilon(exact) == pytest.approx(eps, rel=3e-12)


COUNTED = [
    (0.33, [0.4, 0.35, 0.25], [1.1, -0.3, -0.9], 22),
    (-8.93, [0.4, 0.35, 0.25], [1.1, -0.3, -0.9], 22),
    (30.0, [0.4, 0.35, 0.25], [1.1, -0.3, -0.9], 22),
    (3.0, [0.7 - 1e-9, 0.3, 1e-9], [0.4, -0.2, -5.0], 40),
    (7.5, [1e-9, 0.7 - 1e-9, 0.3], [0.4, 0.2, -5.0], 40),
    (0.2, [0.3, 0.3, 0.4], [0.5, -0.1, -0.2], 1),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("eps", "p", "losses", "n"), COUNTED)
def test_derivatives_of_three_losses_by_enumeration(eps, p, losses, n, x64):
    """In every mass and loss, in eps, and in the count: what the last report adds."""
    p, losses = np.array(p), np.array(losses)
    a, b = np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0), indexing="ij")
    counts = np.stack([a, b, n - a - b])[:, a + b <= n]
    mass = np.exp(gammaln(n + 1) - gammaln(counts + 1).sum(0) + np.log(p) @ counts)
    above = losses @ counts > eps
    q = np.where(above, mass * np.exp(np.minimum(eps - losses @ counts, 0.0)), 0.0)
    gain = np.where(above, mass, 0.0) - q
    last = gain.sum() - (counted(p, losses, n - 1, eps) if n > 1 else max(-math.expm1(eps), 0.0))

    three = ThreePointLoss(jnp.asarray(p), jnp.asarray(losses), jnp.float64(n), jnp.float64(1.0))
    value, slope, seen = three.evaluate(jnp.float64(eps))
    found, by_eps = three.gradient(seen)
    near = {"rtol": 3e-11, "atol": 1e-13}
    assert np.allclose(jnp.exp(value), gain.sum(), **near)
    assert np.allclose(found.mass, counts @ gain / p, **near)
    assert np.allclose(found.loss, counts @ q, **near)
    assert np.allclose([by_eps, slope * jnp.exp(value)], -q.sum(), **near)
    assert np.allclose(found.count, last, **near)


@pytest.mark.thorough
def test_derivatives_of_three_losses_far_apart_in_32_bits():
    """A loss of 200 more has no finite ratio in floats."""
    three = ThreePointLoss(
        jnp.array([0.5, 0.3, 0.2]), jnp.array([100.0, -100.0, 10.0]), jnp.float32(30.0), jnp.float32(0.05)
    )
    found, _ = three.gradient(three.evaluate(jnp.float32(1200.0))[2])
    assert np.allclose(found.mass, [4.805, 2.260, 3.416], rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 5, 30])
def test_noise_next_to_its_largest_losses(count):
    """Whatever tilt a saddle far out asks for: deltas down to what only the largest losses reach, and below."""
    composed = guarantee(dpk.laplace(epsilon=0.5)).repeat(count)
    for delta in 10.0 ** -np.arange(3.0, 12.5):
        low, high = composed.bracket(delta=delta)
        assert low * (1 - 1e-4) <= composed.estimate_epsilon(delta) <= high * (1 + 1e-4)


@jax.jit
def three_of(made):
    return [three_point_loss(parts[0], 1.0) for parts in made.repeated_losses()]


@pytest.mark.thorough
def test_equal_losses_of_two_parts_are_one():
    """A hybrid's windows and points have the same largest loss, in other nodes."""
    composed = guarantee(dpk.hybrid(epsilon=1.2, **UNIT)).subsample(0.11).repeat(22)
    exact = []
    with jax.enable_x64(True):
        for reports, alone in three_of(as_float64(composed)):
            assert bool(alone)
            exact.append(counted(np.asarray(reports.mass), np.asarray(reports.loss), 22, 1.0))
    assert composed.estimate_delta(1.0) == pytest.approx(max(exact), rel=1e-11)


@pytest.mark.thorough
def test_whole_counts_leave_a_derivative_in_the_parameters(x64):
    """Of a plain count, as in a user's loop: of three losses without a grid."""

    def eps(t):
        p = jnp.stack([0.5 + t, 0.3, 0.2 - t])
        return guarantee(Atoms(p, p[::-1])).subsample(0.2).repeat(9).estimate_epsilon(1e-4)

    h = 1e-7
    value = float(jax.jit(jax.grad(eps))(jnp.float64(0.01)))
    assert value == pytest.approx((float(eps(0.01 + h)) - float(eps(0.01 - h))) / (2 * h), rel=1e-5)


# Deposits


@pytest.mark.thorough
def test_deposits_keep_polynomials_and_atoms(x64):
    """Sums over the grid of powers up to the fifth are those of the losses; an atom on the grid is one entry."""
    loss = np.array([0.31, 1.77, 4.2, 5.0])
    nodes = PrivacyLossDistribution(np.array([0.1, 0.2, 0.3, 0.4]), np.zeros(4), loss, np.array([0.2, 0.2, 0.0, 0.0]))
    nodes = as_float64(nodes)
    masses, atoms = interpolate_on_grid(nodes, nodes.p, 1.0, 0.5, 32).masses(32)
    grid = 1.0 + 0.5 * np.where(np.arange(32) < 24, np.arange(32), np.arange(32) - 32)
    for power in range(len(POINTS)):
        assert (masses * grid**power).sum() == pytest.approx((nodes.p * loss**power).sum(), rel=1e-12)
    np.testing.assert_allclose(np.flatnonzero(np.asarray(atoms)), [8])
    assert atoms[8] == pytest.approx(0.4, rel=1e-14)


@pytest.mark.lengthy
def test_the_highest_of_a_pair_and_itself_is_the_pair(x64):
    made = guarantee(Additive(Reweighted(Gaussian(2.0), -4.0, 4.0, 0.3)), 1.0)

    @jax.jit
    def moments(made, c):
        (part,) = made.repeated_losses(PANELS)[0]
        twice = pointwise_maximum([part.losses, part.losses])
        return [repeated.RepeatedLoss(n, 0.0, 1).tilted(c).log_scale for n in (part.losses, twice)]

    for c in (0.5, 2.0):
        one, other = moments(as_float64(made), jnp.float64(c))
        assert float(other) == pytest.approx(float(one), abs=1e-6)


# The contour, where it converges


CONTOURS = {
    "laplace": guarantee(Additive(Laplace(5.0)), 1.0).repeat(1000),
    "sampled": guarantee(Additive(Gaussian(1.3)), 1.0).subsample(0.02).repeat(500),
    "recycled": guarantee(Additive(Reweighted(Gaussian(3.0), -5.0, 5.0, 0.2)), 1.0).repeat(300),
    "together": guarantee(Additive(Gaussian(9.0)), 1.0)
    .repeat(40)
    .compose(guarantee(Additive(Laplace(4.0)), 1.0).repeat(300)),
}


@jax.jit
def by_contour(made, delta):
    return [contour.epsilon_at(parts, delta, contour.LARGE) for parts in made.repeated_losses()]


@pytest.mark.lengthy
@pytest.mark.quick("together")
@pytest.mark.parametrize("name", slow(CONTOURS, "laplace", "recycled"))
def test_agrees_with_the_contour(name):
    made = CONTOURS[name]
    with jax.enable_x64(True):
        for delta in (1e-3, 1e-9):
            values, good = zip(*by_contour(as_float64(made), jnp.float64(delta)), strict=True)
            assert all(good)
            assert made.estimate_epsilon(delta) == pytest.approx(float(max(values)), rel=1e-8)


# All mechanisms

KINDS = {
    "piecewise": lambda r: windowed(r, "uniform"),
    "sine": lambda r: windowed(r, "sine"),
    "triangle": lambda r: windowed(r, "triangle"),
    "duchi": lambda r: dpk.duchi(epsilon=r.uniform(0.1, 3), **UNIT),
    "hybrid": lambda r: dpk.hybrid(epsilon=r.uniform(0.7, 3), **UNIT),
    "laplace": lambda r: Additive(Laplace(wide(r)), 1.0),
    "gaussian": lambda r: Additive(Gaussian(wide(r)), 1.0),
    "staircase": lambda r: Additive(staircase(r), 1.0),
    "merged": lambda r: Additive(merged(r), 1.0),
    "recycled gaussian": lambda r: Additive(recycled(r, Gaussian(wide(r))), 1.0),
    "recycled laplace": lambda r: Additive(recycled(r, Laplace(wide(r))), 1.0),
    "recycled merged": lambda r: Additive(recycled(r, merged(r)), 1.0),
    "recycled staircase": lambda r: Additive(recycled(r, staircase(r)), 1.0),
    "asymmetric": lambda r: Additive(Reweighted(Gaussian(wide(r)), -5.0, 3.0, r.uniform(0.1, 0.9)), 1.0),
}
# The numbers that are moved. A hybrid's height is not: it parts losses that are one, where derivatives are one-sided.
MOVED = (".relative_height", ".epsilon", ".sigma", ".scale", "rates[0]", ".weight")
# Relative errors of derivatives: sums of atoms that fit no grid, where the true ones jump from atom to atom, and twelve
# Gaussian samples, which a traced count keeps from being composed as few.
JUMPS = {
    "gaussian": {9: 2e-5},
    "staircase": {7: 4e-5, 9: 2e-3, 23: 2e-4, 31: 2e-5, 35: 4e-5},
    "recycled laplace": {4: 3e-5},
    "recycled staircase": {0: 2e-2, 2: 3e-5, 31: 7e-4, 32: 3e-4, 34: 3e-5},
}
STEPS = 10.0 ** -np.arange(3, 9)
ORDINARY = ("recycled gaussian",)


def wide(r):
    return float(np.exp(r.uniform(np.log(0.3), np.log(10))))


def windowed(r, window):
    return dpk.composite(window, epsilon=float(r.uniform(0.1, 4)), width=float(r.uniform(0.4, 1.6)), **UNIT)


def staircase(r):
    return Staircase(float(r.uniform(0.2, 3)), float(r.uniform(0.6, 0.9)), float(r.uniform(0.1, 0.9)))


def merged(r):
    return MergedLaplace((float(r.uniform(0.5, 2)), float(r.uniform(0.1, 0.5)), float(r.uniform(0.5, 2))), (0.4, 1.3))


def recycled(r, kernel):
    theta = float(kernel.isf(0.2)) * float(r.uniform(1, 4))
    return Reweighted(kernel, -theta, theta, float(r.uniform(0.05, 0.8)))


def drawn(kind, number):
    """(guarantee, delta): counts from 2 up to 10^5, half of them on samples of rates from 0.001."""
    r = np.random.default_rng([number, *map(ord, kind)])
    single, count = guarantee(KINDS[kind](r)), round(math.exp(r.uniform(math.log(2), math.log(1e5))))
    rate, delta = float(np.exp(r.uniform(np.log(1e-3), 0))), float(np.exp(r.uniform(np.log(1e-12), np.log(1e-2))))
    return (single.subsample(rate) if number % 2 else single).repeat(count), delta


@jax.jit
def value_and_gradient(made, delta):
    return jax.value_and_grad(lambda made, delta: made.estimate_epsilon(delta), argnums=(0, 1))(made, delta)


def differences(made, delta, which, size):
    """Central ones of fourth order in one number of a guarantee."""
    leaves, tree = jax.tree.flatten(made)

    def at(step):
        moved = [*leaves[:which], leaves[which] + step, *leaves[which + 1 :]]
        return float(value_and_gradient(jax.tree.unflatten(tree, moved), delta)[0])

    return (8 * (at(size) - at(-size)) - (at(2 * size) - at(-2 * size))) / (12 * size)


def check(kind, number):
    """Finite, within 1e-6 of the bracket (2e-6 of samples of many atoms); the scale's or height's derivative is right.

    To 1e-5, but in a dozen known cases; see ``JUMPS``.

    Of the step sizes one must agree: sums with atoms have kinks, three losses' close ones, and far sums are rounded.
    """
    plain, delta = drawn(kind, number)
    made = jax.tree.map(jnp.float64, plain)
    value, (gradient, by_delta) = value_and_gradient(made, jnp.float64(delta))
    slopes = jax.tree.leaves(gradient)
    assert np.isfinite(np.concatenate([jnp.ravel(slope) for slope in (value, by_delta, *slopes)])).all()
    low, high = plain.bracket(delta=delta)
    # The bracket's upper end may be the value but for rounding; a grid does not hold the many losses of a staircase.
    off = 2e-6 if "staircase" in kind else 1e-6
    assert low * (1 - off) <= value <= high * (1 + off)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(made)]
    for which, at in enumerate(jax.tree.leaves(made)):
        if value > 0 and at.ndim == 0 and names[which].endswith(MOVED[5:] if kind == "hybrid" else MOVED):
            scale = abs(slopes[which]) + 1e-3 * value
            found = [differences(made, delta, which, at * h) for h in STEPS]
            rounded = 1e-15 * made.terms[0].count * value / (1e-4 * abs(at))
            assert (
                min(abs(each - slopes[which]) for each in found)
                < JUMPS.get(kind, {}).get(number, 1e-5) * scale + rounded
            )


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(1))
@pytest.mark.parametrize("kind", ORDINARY)
def test_values_and_gradients(x64, kind, number):
    check(kind, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(36))
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_of_all(x64, kind, number):
    check(kind, number)


# What there is to differentiate


@pytest.mark.thorough
def test_the_count_has_a_derivative(x64):
    single = guarantee(Additive(Laplace(3.0)), 1.0)
    slope = jax.jit(jax.grad(lambda n: single.repeat(n).estimate_epsilon(1e-6)))(jnp.float64(400.0))
    near, far = (
        single.repeat(400 + k).estimate_epsilon(1e-6) - single.repeat(400 - k).estimate_epsilon(1e-6) for k in (1, 2)
    )
    assert float(slope) == pytest.approx((8 * near - far) / 12, rel=1e-7)


@pytest.mark.lengthy
def test_derivatives_at_grid_points_are_those_beside_them(x64):
    """Where eps is on the grid, as whole and decimal numbers may be, polynomials developed there have powers of 0."""

    @jax.jit
    def slopes(made, places, shift):
        (parts,) = made.repeated_losses(PANELS)
        c = jnp.float64(1.0)
        tilted = [part.tilted(c) for part in parts]
        made_of = fft.compose(tilted, c, fft.choose_grid(tilted, c, parts))

        def at(place):
            eps = made_of.start + made_of.step * place
            below, place = made_of._position(eps)
            by_parts, by_epsilon = made_of.gradient(made_of.evaluate(eps + shift)[2])
            return place - below, by_parts[0].losses.loss.sum(), by_parts[0].count, by_epsilon

        return jax.lax.map(at, places)

    made, places = as_float64(guarantee(Additive(Laplace(2.0)), 1.0).repeat(6)), 3500.0 + jnp.arange(60.0)
    s, *there = slopes(made, places, 0.0)
    assert np.isin(s, [0.0, 1.0]).sum() > 5
    for found, beside in zip(there, slopes(made, places, 1e-9)[1:], strict=True):
        np.testing.assert_allclose(found, beside, rtol=1e-4)  # Some are at atoms.


@pytest.mark.thorough
def test_a_traced_count_of_one_is_the_exact_profile(x64):
    m = Additive(Laplace(1.4), 1.0)
    at = jax.jit(jax.value_and_grad(lambda b, n: guarantee(Additive(Laplace(b), 1.0)).repeat(n).estimate_epsilon(0.1)))
    # Plain numbers of few releases sample the densities, which a traced count, composed on a grid, cannot.
    for n, rtol in ((1, 1e-12), (3, 1e-8)):
        value, slope = at(jnp.float64(1.4), jnp.float64(n))
        assert float(value) == pytest.approx(guarantee(m).repeat(n).estimate_epsilon(0.1), rel=rtol)
        assert np.isfinite(slope)


@pytest.mark.thorough
def test_vmap_over_budgets_counts_and_parameters(x64):
    def eps(scale, count, delta):
        return guarantee(Additive(Laplace(scale)), 1.0).repeat(count).estimate_epsilon(delta)

    scales, counts, deltas = np.array([2.0, 5.0, 1.0]), np.array([3.0, 50.0, 7.0]), np.array([1e-4, 1e-8, 1e-2])
    found = jax.jit(jax.vmap(eps))(*map(jnp.asarray, (scales, counts, deltas)))
    rows = zip(scales, counts, deltas, strict=True)
    np.testing.assert_allclose(found, [eps(float(s), int(n), float(d)) for s, n, d in rows], rtol=1e-8)


@pytest.mark.lengthy
def test_second_derivatives_are_refused_inside_jit_too(x64):
    def eps(scale):
        return guarantee(Additive(Laplace(scale)), 1.0).repeat(50).estimate_epsilon(1e-6)

    scales = jnp.array([2.0, 5.0])
    for bends, at in (
        (jax.hessian(eps), scales[0]),
        (jax.grad(jax.grad(eps)), scales[0]),
        (jax.vmap(jax.hessian(eps)), scales),
    ):
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            jax.jit(bends)(at)


@pytest.mark.thorough
def test_a_traced_threshold_of_recycled_noise(x64):
    """Whether it is even is not known while it is traced."""

    def eps(theta):
        return guarantee(Additive(Reweighted(Gaussian(3.0), -theta, theta, 0.2)), 1.0).repeat(50).estimate_epsilon(1e-6)

    value, slope = jax.jit(jax.value_and_grad(eps))(jnp.float64(5.0))
    assert float(value) == pytest.approx(eps(5.0), rel=1e-6)
    assert float(slope) == pytest.approx((eps(5.001) - eps(4.999)) / 0.002, rel=1e-3)


@pytest.mark.thorough
def test_where_no_contour_and_no_narrow_bracket_is_there_is_a_value():
    composed = guarantee(dpk.hybrid(epsilon=2.29, **UNIT)).repeat(10)
    assert composed.estimate_delta(22.94) < 1e-15  # Above ten times 2.29.
    low, high = composed.bracket(delta=1e-6)
    assert low <= composed.estimate_epsilon(1e-6) <= high


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("scale", "rate", "count", "eps"),
    [(0.01, 0.01, 5, 95.3865), (0.05, 0.01, 5, 15.34691), (0.1, 0.001, 5, 3.120918), (0.1, 0.1, 3, 7.49157)],
)
def test_few_samples_whose_losses_crowd_at_one_end(scale, rate, count, eps):
    """Nodes within a step of an atom are no density: read as one, these were off by 3e-4 to 0.04."""
    composed = guarantee(dpk.Additive(dpk.Laplace(scale), 1.0)).subsample(rate).repeat(count)
    low, high = composed.bracket(epsilon=eps)
    assert low * (1 - 1e-3) <= composed.estimate_delta(eps) <= high * (1 + 1e-4)


def off_the_bracket(random):
    """By how much delta is outside, at places within three steps of the largest loss of one or two samples."""
    scale, rate = 10 ** random.uniform(-2.2, -0.3), 10 ** random.uniform(-3, -0.5)
    count, many = int(random.integers(2, 12)), int(random.integers(1, 3))
    composed = guarantee(dpk.Additive(dpk.Laplace(scale), 1.0)).subsample(rate).repeat(count)
    low, top = np.log1p(rate * np.expm1([-1 / scale, 1 / scale]))
    step = count * (top - low) / 4096
    for shift in (-2.0, -0.7, -0.3, 0.2, 0.5, 0.9, 1.7, 3.0) if many < count else ():
        eps = float(many * top + (count - many) * low + shift * step)
        least, most = composed.bracket(epsilon=max(eps, 0.0))
        if most > 1e-13:
            value = composed.estimate_delta(max(eps, 0.0))
            yield max(least / value, value / most, 1.0) - 1


@pytest.mark.slow
def test_few_samples_next_to_the_largest_losses_of_so_many():
    """What ``Guarantee.delta`` says of them: 736 places, 1.3 % at worst, and 1.9 % of them by more than 1e-3."""
    random = np.random.default_rng(0)
    off = np.array([each for _ in range(100) for each in off_the_bracket(random)])
    assert off.size > 500
    assert off.max() <= 0.0131
    assert (off > 1e-3).mean() <= 0.02


def test_an_infinite_loss_is_no_atom_at_0():
    """Against quadrature in 30 digits; where what is next to 0 was taken for an atom's, it was 5e-7 low."""
    composed = guarantee(Additive(Reweighted(Laplace(1.0), -6.0, 6.0, 0.0), 1.0)).repeat(2)
    assert composed.estimate_delta(1.0) == pytest.approx(0.244648117441945936, rel=5e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_noise_narrower_than_the_shift_has_infinite_losses_alone(x64, scale):
    """Their sum is 1, or above it by a rounding; on samples one finite loss is left. Counts of such reports."""

    def value(scale, rate):
        made = guarantee(Additive(Reweighted(Laplace(scale), -0.5, 0.5, 0.0)), 2.0)
        return (made if rate is None else made.subsample(rate)).repeat(3).estimate_delta(1.0)

    for rate, delta in ((None, 1.0), (0.25, 1 - 0.75**3)):
        assert value(scale, rate) == pytest.approx(delta, rel=1e-15)
        found, slope = jax.jit(jax.value_and_grad(lambda scale, rate=rate: value(scale, rate)))(jnp.float64(scale))
        assert float(found) == pytest.approx(delta, rel=1e-15)
        assert float(slope) == pytest.approx(0.0, abs=1e-15)
    made = guarantee(Additive(Reweighted(Laplace(scale), -0.5, 0.5, 0.0)), 2.0).repeat(3)
    assert made.bracket(epsilon=1.0) == (1.0, 1.0)
    assert made.bracket(delta=0.5) == (np.inf, np.inf)
    assert made.estimate_epsilon(0.5) == np.inf
    assert made.compose(guarantee(Additive(Laplace(1.0)), 1.0)).estimate_delta(1.0) == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [Laplace(2.0), Gaussian(2.0)], ids=["laplace", "gaussian"])
def test_an_infinite_eps_leaves_infinite_losses(x64, kernel):
    for noise in (kernel, Reweighted(kernel, -4.0, 4.0, 0.0)):
        m = Additive(noise, 1.0)
        delta = 1 - (1 - accountants.delta(m, np.inf)) ** 5
        composed = guarantee(m).repeat(5)
        assert composed.estimate_delta(np.inf) == pytest.approx(delta, rel=1e-12)
        value, slope = jax.value_and_grad(composed.delta)(jnp.float64(np.inf))
        assert (float(value), float(slope)) == (pytest.approx(delta, rel=1e-12), 0.0)


@pytest.mark.thorough
def test_staircases_that_cross_at_many_steps_are_not_cut_short():
    noise = Reweighted(Staircase(0.9993, 0.0537, 0.3162), -0.139, 5.235, 0.0051)
    composed = guarantee(Additive(noise, 1.0)).repeat(2)
    for eps in (36.0, 40.0):
        low, high = composed.bracket(epsilon=eps)
        assert low * (1 - 1e-6) <= composed.estimate_delta(eps) <= high * (1 + 1e-6)


@pytest.mark.thorough
def test_numbers_of_32_bits_where_there_are_64(x64):
    composed = guarantee(Additive(Laplace(2.0), 1.0)).repeat(5)
    assert float(composed.estimate_delta(jnp.float32(1.0))) == pytest.approx(composed.estimate_delta(1.0), rel=1e-5)
    counted = jax.jit(lambda n: guarantee(Additive(Laplace(2.0), 1.0)).repeat(n).estimate_delta(jnp.float32(1.0)))
    assert float(counted(5.0)) == pytest.approx(composed.estimate_delta(1.0), rel=1e-5)


@pytest.mark.thorough
def test_signs_that_are_equal_next_to_0(x64):
    """Against a distribution of losses connected at steps of 1e-5; an atom next to no loss made it 1e-5 high."""
    noise = Reweighted(Gaussian(0.6389767496280642), -5.0, 3.0, 0.6721150601904602)
    composed = guarantee(Additive(noise, 1.0)).subsample(0.023269633137062935).repeat(174)
    assert composed.estimate_epsilon(0.0020795228139002257) == pytest.approx(3.5946547, rel=3e-8)


@pytest.mark.thorough
def test_no_eps_is_infinite_and_what_floats_do_not_tell_an_error(x64):
    composed = guarantee(Additive(Reweighted(Laplace(1.0), -9.0, 9.0, 0.0)), 1.0).repeat(5)
    assert composed.estimate_epsilon(1e-9) == np.inf
    assert float(composed.estimate_epsilon(jnp.float64(1e-9))) == np.inf
    huge = guarantee(Additive(Gaussian(1e6)), 1.0).subsample(0.5).repeat(1 << 40)
    with pytest.raises(ConvergenceError, match=r"^delta: "):
        huge.estimate_epsilon(1e-6)
    assert float(huge.estimate_epsilon(jnp.float64(1e-6))) == np.inf


# Precisions


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["plain", "jax"])
def test_both_precisions_in_one_process(first):
    """Eps in 32 bits is that of 64 but for its rounding: it is never below by what it did not find."""
    composed = guarantee(Additive(Laplace(1.0), 1.0)).repeat(10)
    jax.clear_caches()
    deltas = np.float32([1e-4, 1e-6])
    ways = {
        "plain": lambda: [composed.estimate_epsilon(float(delta)) for delta in deltas],
        "jax": lambda: [float(composed.estimate_epsilon(jnp.float32(delta))) for delta in deltas],
    }
    found = {way: ways[way]() for way in (first, *ways)}
    np.testing.assert_allclose(found["jax"], found["plain"], rtol=2e-6)


@pytest.mark.lengthy
@pytest.mark.quick("0.01")
@pytest.mark.parametrize("sigma", [6e-9, 1e-4, 1e-2])
def test_noise_between_the_nodes_of_quadrature_is_not_private(x64, sigma):
    """Kernels far narrower than the shift: mass that quadrature misses must not count as no loss."""

    def composed(sigma):
        return guarantee(dpk.Additive(dpk.Reweighted(dpk.Gaussian(sigma), -50.0, 50.0, 0.3)), 1.0).repeat(300)

    # The ends of the weights are negligibly far out.
    true = guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0).repeat(300).estimate_epsilon(1e-5)
    assert composed(sigma).estimate_delta(1.0) == pytest.approx(1.0)
    assert composed(sigma).estimate_epsilon(1e-5) >= true * (1 - 1e-9)
    delta, epsilon = jax.jit(lambda s: (composed(s).estimate_delta(1.0), composed(s).estimate_epsilon(1e-5)))(
        jnp.float64(sigma)
    )
    assert delta == pytest.approx(1.0)
    assert epsilon >= true * (1 - 1e-9)


@pytest.mark.lengthy
@pytest.mark.quick("1e-06-33-1e-06")
@pytest.mark.parametrize(
    ("rate", "count", "delta"), [(1e-6, 32, 1e-10), (1e-4, 2, 1e-6), (1e-6, 2, 1e-10), (1e-6, 33, 1e-6)]
)
def test_values_of_tiny_samples_are_not_below_their_bracket(rate, count, delta):
    composed = guarantee(dpk.gaussian(sigma=1.0, sensitivity=1.0)).subsample(rate).repeat(count)
    low, high = composed.bracket(delta=delta)
    assert low <= composed.epsilon(delta) <= high
    eps = max(low, 1e-9)
    assert composed.bracket(epsilon=eps)[0] <= composed.delta(eps) <= composed.bracket(epsilon=eps)[1]
