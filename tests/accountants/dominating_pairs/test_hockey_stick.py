"""The exact privacy profile of additive noise: against quadrature, closed forms, and what every profile obeys."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import in_rows, piece_integrals, positive_part, shift_profile
from noise_registry import ASYMMETRIC, LAWS, MERGED, REFERENCE, SYMMETRIC, cells, over, scale

from accountants import guarantee
from accountants.dominating_pairs.registry import additive_profile
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.additive import Additive

EPS = np.array([-1.3, -0.2, 0.0, 0.07, 0.41, 0.93, 1.6, 2.7, 4.4])


def by_quadrature(law, shift, eps):
    """Integral of max(0, f(x) - e^eps f(x - shift)): cells between all knots, halved where the sign changes."""

    def gap(x):
        return law.prob(x) - np.exp(eps) * law.prob(x - shift)

    low, high = (float(law.icdf(1e-27)), float(law.isf(1e-27)))
    x = cells(law, low, high, law.knots + shift, [shift])
    x = x[np.concatenate([[True], np.diff(x) > 1e-13 * scale(law)])]  # Knots that meet but for rounding.
    return positive_part(gap, x)


def random_laws(count):
    """Laws and shifts at random parameters of every type, over seven orders of magnitude of the units."""
    random = np.random.default_rng(17)
    for index in range(count):
        unit = 10.0 ** random.uniform(-3, 4)
        a, b, c, d = random.uniform(0.2, 2.5, 4)
        kernel = (
            Laplace(a * unit),
            Gaussian(a * unit),
            MergedLaplace((a / unit, 0.0, b / unit), (c * unit, (c + d) * unit)),
            Staircase(a, b * unit, float(random.uniform())),
        )[index % 4]
        outside = (1.0, 0.0, float(random.uniform()))[index // 4 % 3]
        law = kernel if outside == 1.0 else Reweighted(kernel, -3 * c * unit, 2 * d * unit, outside)
        yield law, unit * float(random.uniform(0.1, 3)) * random.choice([-1, 1])


# Values


@pytest.mark.quick("0.23-gaussian", "0.23-merged-narrow", "0.23-staircase-0.3", "-2.7-truncated-laplace")
@over(LAWS)
@pytest.mark.parametrize("share", [0.23, 1.0, -2.7])
def test_profile_is_the_integral(law, share):
    shift = share * scale(law)
    # Delta is rounded upwards, by units of 1 + eps and of the log density: next to the largest loss it shows.
    exact = [by_quadrature(law, shift, eps) for eps in EPS]
    np.testing.assert_allclose(shift_profile(law, shift, EPS), exact, rtol=1e-10, atol=2e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_profile_is_the_integral_at_random_parameters(part):
    for law, shift in itertools.islice(random_laws(48), part * 12, part * 12 + 12):
        eps = EPS[2 + part :: 2]
        exact = [by_quadrature(law, shift, each) for each in eps]
        np.testing.assert_allclose(
            shift_profile(law, shift, eps), exact, rtol=1e-10, atol=2e-14, err_msg=f"{law} {shift}"
        )


@pytest.mark.quick("laplace-*", "staircase-0.3-*", "recycled-merged-1e+30")
@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1e-4, 1e4, 1e9, 1e30])
@over(
    LAWS,
    "laplace",
    "gaussian",
    "recycled-gaussian",
    "truncated-gaussian-asymmetric",
    "recycled-merged",
    "staircase-0.3",
)
def test_profile_does_not_depend_on_the_unit(law, unit):
    """The tail of a wide law is low and wide: it must not be taken for one without mass."""

    def rescaled(law):
        if isinstance(law, Reweighted):
            return Reweighted(rescaled(law.kernel), law.low * unit, law.high * unit, law.outside)
        if isinstance(law, MergedLaplace):
            return MergedLaplace(tuple(r / unit for r in law.rates), tuple(c * unit for c in law.breaks))
        if isinstance(law, Staircase):
            return Staircase(law.epsilon, law.period * unit, law.gamma)
        return type(law)(next(iter(vars(law).values())) * unit)

    shift = 0.8 * scale(law)
    expected = shift_profile(law, shift, EPS)
    np.testing.assert_allclose(shift_profile(rescaled(law), shift * unit, EPS), expected, rtol=1e-10, atol=2e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_composed_reports_do_not_depend_on_the_unit(unit):
    units = (unit, 1.0)
    guarantees = [guarantee(Additive(Reweighted(Laplace(0.8 * u), -0.9 * u, 0.9 * u, 0.08)), 0.5 * u) for u in units]
    delta, expected = (guarantee_of_unit.repeat(3).delta(0.7) for guarantee_of_unit in guarantees)
    assert delta == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("ratio", [0.001, 0.03, 0.4, 1.0, 6.0])
@pytest.mark.parametrize("sigma", [0.02, 1.0, 350.0])
def test_gaussian_closed_form_down_to_1e_30(sigma, ratio):
    """Balle and Wang 2018: Phi(D/2s - eps s/D) - e^eps Phi(-D/2s - eps s/D)."""
    D = ratio * sigma
    # Tails between 0 and 11.5 deviations.
    eps = ratio * (np.array([-1.0, 0.0, 1.0, 3.0, 6.0, 9.0, 11.5]) + ratio / 2)
    eps = eps[eps < 30]
    with mpmath.workdps(60):
        half, slope = mpmath.mpf(D) / sigma / 2, mpmath.mpf(sigma) / D
        exact = [float(mpmath.ncdf(half - e * slope) - mpmath.exp(e) * mpmath.ncdf(-half - e * slope)) for e in eps]
    delta = shift_profile(Gaussian(sigma), D, eps)
    # Two tails that differ by a share of about D/s: that many digits are lost, and no more.
    np.testing.assert_allclose(delta, exact, rtol=1e-10 + 1e-12 / ratio)
    assert ratio != 0.4 or min(exact) < 1e-30


@pytest.mark.parametrize("ratio", [1e-4, 1e-6, 1e-8])
def test_wide_gaussian_noise_has_its_total_variation(ratio):
    """2 Phi(D/2s) - 1, which is sqrt(2/pi) D/2s for D far below s."""
    delta = shift_profile(Gaussian(1 / ratio), 1.0, 0.0)
    np.testing.assert_allclose(delta, ratio / np.sqrt(2 * np.pi), rtol=1e-6)


@pytest.mark.parametrize("D", [0.05, 1.0, 40.0])
def test_laplace_closed_form(D):
    for b in (0.3, 1.0, 17.0):
        eps = np.concatenate([np.array([0.0, 0.1, 0.5, 0.9, 1 - 1e-6]) * D / b, [D / b * (1 + 1e-9), D / b + 3]])
        exact = np.where(eps < D / b, -np.expm1((eps - D / b) / 2), 0.0)
        delta, rounded = shift_profile(Laplace(b), D, eps), 4e-15 * (1 + D / b)
        np.testing.assert_allclose(delta, exact, rtol=1e-8, atol=rounded)
        np.testing.assert_allclose(delta[:4], exact[:4], rtol=1e-12, atol=rounded)


@pytest.mark.parametrize("row", REFERENCE["budget_recycling_exact_delta"])
def test_budget_recycling_reference(row):
    kernel = {"gaussian": Gaussian, "laplace": Laplace}[row["kernel"]](row["scale"])
    law = Reweighted(kernel, -row["theta"], row["theta"], 1 - row["q"])
    for shift in (row["sensitivity"], -row["sensitivity"]):
        assert float(shift_profile(law, shift, row["eps"])) == pytest.approx(row["delta"], rel=1e-9)


@pytest.mark.quick("1.0-5.0-1.0")
@pytest.mark.parametrize(("s", "T", "D"), [(1.0, 5.0, 1.0), (2.0, 3.0, 2.5), (0.3, 2.0, 0.1)])
def test_truncated_gaussian_closed_form(s, T, D):
    """Section 2 of the derivations: cut at b = clip(D/2 - s^2 eps/D, D - T, T), seen from below."""
    eps = np.linspace(0, 3, 7)
    with mpmath.workdps(40):
        Phi, exact = mpmath.ncdf, []
        for e in eps:
            b = min(max(mpmath.mpf(D) / 2 - mpmath.mpf(s) ** 2 * e / D, mpmath.mpf(D) - T), mpmath.mpf(T))
            low = Phi(-mpmath.mpf(T) / s)
            loss = Phi(b / s) - low - mpmath.exp(e) * (Phi((b - D) / s) - low)
            exact.append(float(loss / (1 - 2 * low)))
    np.testing.assert_allclose(shift_profile(Reweighted(Gaussian(s), -T, T, 0.0), D, eps), exact, rtol=1e-11)


def in_many_digits(law, shift, eps):
    """The definition in 70 digits: masses of the law underneath between knots and closed-form sign changes."""
    m, kernel = mpmath.mpf, law.unweighted

    def tail(x):
        """P(Z > x) of the law underneath."""
        if isinstance(kernel, Gaussian):
            return mpmath.ncdf(-x / m(kernel.sigma))
        half = mpmath.exp(-abs(x) / m(kernel.scale)) / 2
        return half if x >= 0 else 1 - half

    def log_density(x):
        return -((x / m(kernel.sigma)) ** 2) / 2 if isinstance(kernel, Gaussian) else -abs(x) / m(kernel.scale)

    def loss(x):
        return log_density(x) - log_density(x - shift) + mpmath.log(weight(x)) - mpmath.log(weight(x - shift))

    def weight(x):
        return m(1) if not isinstance(law, Reweighted) or law.low <= x <= law.high else m(law.outside)

    shift, eps, far = m(shift), m(eps), 80 * m(scale(law))
    knots = [m(0), *map(m, law.edges)]
    ends = sorted([-far, far, *knots, *(k + shift for k in knots)])
    total = m(0)
    for a, b in itertools.pairwise(ends):
        inside, a1, b1 = (a + b) / 2, a + (b - a) * m(10) ** -40, b - (b - a) * m(10) ** -40
        if b <= a or weight(inside) == 0:
            continue
        if weight(inside - shift) > 0:
            at_a, at_b = loss(a1) - eps, loss(b1) - eps
            if at_a <= 0 and at_b <= 0:
                continue
            if at_a * at_b < 0:
                cut = a + (b - a) * at_a / (at_a - at_b)
                a, b = (a, cut) if at_a > 0 else (cut, b)
            lost = mpmath.exp(eps) * weight(inside - shift) * (tail(a - shift) - tail(b - shift))
        else:
            lost = m(0)
        total += weight(inside) * (tail(a) - tail(b)) - lost
    low, high = (m(end) for end in law.edges) if isinstance(law, Reweighted) else (m(0), m(0))
    inside = tail(low) - tail(high)
    return total / (inside + weight(high + 1) * (1 - inside))


DEEP = {
    "laplace": Laplace(0.7),
    "gaussian": Gaussian(2.3),
    "recycled-gaussian": Reweighted(Gaussian(1.7), -2.0, 3.1, 0.35),
    "recycled-laplace": Reweighted(Laplace(0.8), -0.9, 1.9, 0.08),
    "truncated-gaussian": Reweighted(Gaussian(1.1), -8.1, 12.9, 0.0),
    "truncated-laplace": Reweighted(Laplace(0.1), -5.4, 6.0, 0.0),
}


@pytest.mark.quick("laplace-0.31", "gaussian-0.31", "recycled-laplace-0.9", "truncated-laplace--1.7")
@pytest.mark.parametrize("share", [0.31, 0.9, -1.7])
@over(DEEP)
def test_profile_in_many_digits_down_to_1e_30(law, share):
    shift = share * scale(law)
    random = np.random.default_rng(5)
    eps = np.sort(np.concatenate([[0.0], random.uniform(0, 2, 8), random.uniform(0, 13 * abs(share), 12)]))
    with mpmath.workdps(70):
        exact = np.array([float(in_many_digits(law, shift, e)) for e in eps])
    deep = exact > 1e-30
    np.testing.assert_allclose(shift_profile(law, shift, eps)[deep], exact[deep], rtol=1e-10)
    assert np.all(shift_profile(law, shift, eps)[~deep] <= 1e-30 * (1 + 1e-10))


# What every profile obeys


@pytest.mark.quick("0.4-gaussian", "-1.9-truncated-laplace")
@over(LAWS)
@pytest.mark.parametrize("share", [0.4, -1.9])
def test_profiles_fall_and_are_convex_in_the_odds(law, share):
    odds = np.linspace(0.05, 30, 400)
    delta = shift_profile(law, share * scale(law), np.log(odds))
    assert np.all(np.diff(delta) <= 1e-14)
    assert np.all(np.diff(delta, 2) >= -1e-13)
    assert np.all((delta >= np.maximum(0, 1 - odds) - 1e-14) & (delta <= 1))
    assert delta[0] > 0.9


@pytest.mark.quick("gaussian", "staircase-0.3", "truncated-laplace")
@over(LAWS)
def test_delta_at_zero_is_the_total_variation(law):
    shift = 0.8 * scale(law)
    points = np.sort(
        np.concatenate([cells(law, *(float(law.icdf(u)) for u in (1e-20, 1 - 1e-16)), law.knots + shift), [shift / 2]])
    )
    reach = 45 * scale(law) + shift
    points = cells(law, -reach, reach, law.knots + shift, [shift / 2], points)
    apart = np.abs(piece_integrals(lambda x: law.prob(x) - law.prob(x - shift), points)).sum() / 2
    crossing_known = law in SYMMETRIC.values()
    assert float(shift_profile(law, shift, 0.0)) == pytest.approx(apart, rel=1e-11 if crossing_known else 1e-3)
    if crossing_known:
        assert float(shift_profile(law, shift, 0.0)) == pytest.approx(float(law.mass(-shift / 2, shift / 2)), rel=1e-11)


@pytest.mark.quick("staircase-0.3", "truncated-laplace")
@over(LAWS)
def test_negative_budgets_mirror_the_pair(law):
    """delta_PQ(-e) = 1 - e^-e + e^-e delta_QP(e)."""
    shift, eps = 0.7 * scale(law), np.array([0.1, 0.6, 2.3])
    mirrored = -np.expm1(-eps) + np.exp(-eps) * shift_profile(law, -shift, eps)
    np.testing.assert_allclose(shift_profile(law, shift, -eps), mirrored, rtol=1e-12)


@pytest.mark.quick("gaussian", "merged-narrow", "staircase-0.3")
@over(SYMMETRIC)
def test_symmetric_laws_ignore_the_sign_of_the_shift(law):
    shift = 1.3 * scale(law)
    np.testing.assert_allclose(shift_profile(law, shift, EPS), shift_profile(law, -shift, EPS), rtol=1e-12, atol=2e-16)


@pytest.mark.quick("truncated-laplace")
@over(ASYMMETRIC)
def test_asymmetric_laws_do_not(law):
    shift = 0.8 * scale(law)
    up, down = shift_profile(law, shift, EPS), shift_profile(law, -shift, EPS)
    assert np.abs(up - down).max() > 1e-4
    np.testing.assert_array_equal(additive_profile(law, shift, EPS), np.maximum(up, down))


@pytest.mark.quick("gaussian", "staircase-0.3")
@over(LAWS)
def test_no_smaller_shift_is_worse(law):
    random = np.random.default_rng(4)
    D = 1.9 * scale(law)
    worst = in_rows(lambda eps: additive_profile(law, D, eps), EPS[2:])
    for d in np.concatenate([random.uniform(0, D, 20), D * np.array([1e-3, 0.5, 1 - 1e-6])]):
        for shift in (d, -d):
            assert np.all(shift_profile(law, shift, EPS[2:]) <= worst * (1 + 1e-11) + 1e-15)


def window_budget(law, D):
    """The largest integral of the slope of the log density over a window of length D."""
    starts = np.array([0.0, *law.breaks, *(c - D for c in law.breaks if c > D)])

    def drop(z):
        edges = np.array([0.0, *law.breaks, np.inf])
        return sum(r * np.clip(z - lo, 0, hi - lo) for r, lo, hi in zip(law.rates, edges, edges[1:], strict=False))

    return float((drop(starts + D) - drop(starts)).max())


PURE = [(Laplace(b), D, D / b) for b, D in ((0.7, 0.3), (13.0, 13.0), (1.0, 7.1))]
PURE += [
    (Staircase(e, D, g), D, e) for e, D, g in ((0.4, 2.0, 0.3), (1.7, 0.9, 0.0), (3.1, 1.0, 1.0), (1.0, 1.0, 0.62))
]
PURE += [(law, D, window_budget(law, D)) for law in (MERGED, LAWS["merged-narrow"]) for D in (0.2, 1.0, 2.6, 5.0)]


@pytest.mark.quick("law0-*", "law3-*", "law7-*")
@pytest.mark.parametrize(("law", "D", "budget"), PURE)
def test_pure_laws_have_no_delta_at_their_budget(law, D, budget):
    shares = np.array([1, 1 + 1e-9, 1.01, 2, 1 - 1e-3, 0.9])
    *above, just_below, below = in_rows(lambda eps: additive_profile(law, D, eps), budget * shares)
    assert np.all(np.array(above) >= 0)
    assert np.all(np.array(above) <= 4e-15 * (1 + budget))
    assert just_below > 1e-8
    assert below > 1e-4


# Arrays and derivatives


def test_shapes():
    law = LAWS["laplace"]
    eps = np.linspace(0, 2, 6).reshape(2, 3)
    delta = additive_profile(law, 1.0, eps)
    assert delta.shape == (2, 3)
    assert delta.dtype == np.float64
    np.testing.assert_allclose(delta.ravel(), [additive_profile(law, 1.0, e) for e in eps.ravel()], rtol=1e-13)
    assert np.shape(shift_profile(law, 1.0, 1)) == ()
    assert additive_profile(law, 1.0, np.zeros((0, 2))).shape == (0, 2)
    assert additive_profile(law, 1.0, jnp.float32(0.3)).dtype == jnp.float32


@pytest.mark.quick("laplace")
@over(LAWS, "laplace", "gaussian", "recycled-gaussian", "truncated-laplace", "recycled-truncated")
def test_float32_is_coarse_but_right(law):
    shift, eps = 1.1 * scale(law), np.float32([0.03, 0.3, 0.77])
    delta = additive_profile(law, shift, jnp.asarray(eps))
    np.testing.assert_allclose(np.asarray(delta), additive_profile(law, shift, eps.astype(float)), rtol=2e-4, atol=2e-6)


def perturbed(values, index, by):
    return [*values[:index], values[index] + by, *values[index + 1 :]]


@pytest.mark.quick("gaussian-0")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
@over(LAWS)
def test_gradients(law, seed):
    """In every parameter, the sensitivity and eps, in reverse mode, against differences of fourth order.

    Where a parameter ends, as a rate and a truncation's outside weight do at 0, from the right. But for the first seed
    the others are moved by up to a twentieth.
    """
    # Off the edges of a range.
    law = Staircase(law.epsilon, law.period, 0.21) if isinstance(law, Staircase) else law
    leaves, form = jax.tree.flatten(law)
    moves = np.random.default_rng(seed).uniform(0.95, 1.05, len(leaves)) if seed else np.ones(len(leaves))
    values = [*(float(v) * move for v, move in zip(leaves, moves, strict=True)), 1.07 * scale(law), 0.37]

    def profile(values):
        return shift_profile(jax.tree.unflatten(form, values[:-2]), values[-2], values[-1])

    with jax.enable_x64(True):
        value, gradient = jax.jit(jax.value_and_grad(profile))([jnp.asarray(v) for v in values])
    assert float(value) == pytest.approx(float(profile(values)), rel=1e-12)
    for index, value_of_index in enumerate(values):
        h = 1e-5 * max(abs(value_of_index), 0.1)
        assert np.isfinite(gradient[index])
        if value_of_index == 0:
            first_difference, second_difference, farther = (profile(perturbed(values, index, k * h)) for k in (0, 1, 2))
            numeric = (-3 * first_difference + 4 * second_difference - farther) / (2 * h)
        else:
            first_difference, second_difference = (
                profile(perturbed(values, index, k * h)) - profile(perturbed(values, index, -k * h)) for k in (1, 2)
            )
            numeric = (8 * first_difference - second_difference) / (12 * h)
        assert float(gradient[index]) == pytest.approx(float(numeric), rel=1e-6, abs=1e-8), index


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_jit_and_vmap_over_laws():
    scales, eps = jnp.array([0.6, 1.0, 2.5]), jnp.array([0.1, 0.5])
    deltas = jax.jit(jax.vmap(lambda s: additive_profile(Reweighted(Gaussian(s), -1.5, 2.0, 0.2), 1.0, eps)))(scales)
    each = [additive_profile(Reweighted(Gaussian(s), -1.5, 2.0, 0.2), 1.0, np.asarray(eps)) for s in (0.6, 1.0, 2.5)]
    np.testing.assert_allclose(np.asarray(deltas), each, rtol=1e-12)
