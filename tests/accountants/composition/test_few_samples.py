"""Few releases on Poisson samples against nested quadrature: delta_n(eps) = E_p delta_(n-1)(eps - loss)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from accountants import guarantee

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
NOISE = {"gaussian": stats.norm, "laplace": stats.laplace}


class Release:
    """One direction of neighbours of noise on a sample: the exact profile at every real eps, and quadrature nodes."""

    def __init__(self, name, scale, rate, removed):
        self.name, self.scale, self.rate, self.removed = name, scale, rate, removed
        self.noise = NOISE[name](scale=scale)

    def inner_loss(self, y):
        """log f(y - 1) - log f(y)."""
        if self.name == "gaussian":
            return (2 * y - 1) / (2 * self.scale**2)
        return (np.abs(y) - np.abs(y - 1)) / self.scale

    def loss(self, y):
        z = self.inner_loss(y)
        z = np.where(z > 30, z + np.log(self.rate), np.log1p(self.rate * np.expm1(np.minimum(z, 30.0))))
        return -z if self.removed else z

    def place(self, eps):
        """Return the y that parts the losses above eps from the others."""
        with np.errstate(all="ignore"):
            eps = -eps if self.removed else eps
            z = np.log1p(np.maximum(np.expm1(eps) / self.rate, -1.0))
        if self.name == "gaussian":
            return self.scale**2 * z + 0.5
        y = (1 + self.scale * z) / 2
        return np.where(y < 0, -np.inf, np.where(y > 1, np.inf, y))

    def profile(self, eps):
        y = self.place(eps)
        tail = self.noise.cdf if self.removed else self.noise.sf
        with_record = (1 - self.rate) * tail(y) + self.rate * tail(y - 1)
        p, q = (tail(y), with_record) if self.removed else (with_record, tail(y))
        return np.maximum(p - np.exp(eps) * q, 0.0)

    def nodes(self, near):
        """Return masses and losses on panels that shrink towards the knots and some places."""
        reach = (12 if self.name == "gaussian" else 45) * self.scale
        places = [place for place in (0.0, 1.0, *near) if np.isfinite(place)]
        graded = [place + sign * self.scale * 2.0**-k for place in places for sign in (1, -1) for k in range(50)]
        ends = np.unique([*np.arange(-reach, reach + 1, self.scale / 8), *places, *graded])
        half = np.diff(ends)[:, None] / 2
        y, weight = (ends[:-1, None] + half * (NODES + 1)).ravel(), (half * WEIGHTS).ravel()
        f, moved = self.noise.pdf(y), self.noise.pdf(y - 1)
        p = weight * (f if self.removed else (1 - self.rate) * f + self.rate * moved)
        some = p > 1e-26
        return p[some], self.loss(y[some])

    def composed(self, count, eps):
        if count == 1:
            return self.profile(eps)
        ends = np.array([self.loss(-1e9), self.loss(1e9)]) if self.name == "laplace" else np.log1p([-self.rate])
        ends = -ends if self.removed and self.name == "gaussian" else ends
        p, loss = self.nodes(self.place(eps - (count - 1) * ends))
        return p @ (self.composed(1, eps - loss) if count == 2 else [self.composed(count - 1, eps - x) for x in loss])


def check(name, scale, rate, count, delta):
    mechanism = dpk.gaussian(sigma=scale) if name == "gaussian" else dpk.laplace(epsilon=1 / scale)
    composed = guarantee(mechanism, 1.0).subsample(rate).repeat(count)
    eps = composed.estimate_epsilon(delta)
    if eps > 0:
        both = [Release(name, scale, rate, removed) for removed in (False, True)]
        rounding = 4 * np.spacing(eps)  # Next to the largest losses, that of eps itself counts.
        low, exact, high = (max(one.composed(count, x) for one in both) for x in (eps + rounding, eps, eps - rounding))
        # The density of Laplace noise has kinks, next to which tails this small lose digits.
        allowed = (5e-7 if name == "laplace" and delta < 1e-9 else 1e-9) * exact + (high - low)
        assert abs(exact - delta) <= allowed
        assert abs(composed.estimate_delta(eps) - exact) <= allowed


CASES = [(0.7, 0.01), (1.0, 0.01), (0.5, 0.1), (2.0, 0.3), (0.7, 0.8), (0.5, 0.001), (5.0, 0.1), (5.0, 0.001)]


@pytest.mark.quick("gaussian-0.7-0.01", "laplace-2.0-0.3")
@pytest.mark.parametrize(("scale", "rate"), CASES)
@pytest.mark.parametrize("name", sorted(NOISE))
def test_two_releases(name, scale, rate):
    for delta in (1e-2, 1e-6, 1e-10):
        check(name, scale, rate, 2, delta)


@pytest.mark.thorough
@pytest.mark.parametrize(("scale", "rate", "delta"), [(0.7, 0.01, 1e-8), (0.5, 0.1, 1e-6), (2.0, 0.3, 1e-4)])
def test_three_releases(scale, rate, delta):
    check("gaussian", scale, rate, 3, delta)


SHAPES = {
    "gaussian": dpk.Gaussian,
    "laplace": dpk.Laplace,
    "recycled": lambda scale: dpk.Reweighted(dpk.Gaussian(scale), -3.0, 3.0, 0.4),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "scale", "rate", "count", "delta"),
    [("gaussian", 0.7, 0.01, 2, 1e-8), ("laplace", 2.0, 0.3, 3, 1e-4), ("recycled", 2.0, 0.1, 5, 1e-5)],
)
def test_jax_numbers_have_the_values_of_plain_ones(x64, name, scale, rate, count, delta):
    def epsilon(scale, rate):
        return guarantee(dpk.Additive(SHAPES[name](scale)), 1.0).subsample(rate).repeat(count).estimate_epsilon(delta)

    value, slopes = jax.jit(jax.value_and_grad(epsilon, (0, 1)))(jnp.float64(scale), jnp.float64(rate))
    assert float(value) == pytest.approx(epsilon(scale, rate), rel=1e-12)
    by_scale = (epsilon(scale * 1.0001, rate) - epsilon(scale * 0.9999, rate)) / (2e-4 * scale)
    by_rate = (epsilon(scale, rate * 1.0001) - epsilon(scale, rate * 0.9999)) / (2e-4 * rate)
    np.testing.assert_allclose(slopes, (by_scale, by_rate), rtol=1e-7)


@pytest.mark.parametrize(("outside", "beside"), [(0.3, 3e-6), (0.05, 5.2e-5)])
def test_opposite_atoms_of_two_releases_cancel(outside, beside):
    """Of recycled noise the losses of two atoms may add up to 0, the kink of delta at eps 0, beside the grid."""
    noise = dpk.Reweighted(dpk.Laplace(2.0), -2.0, 2.0, outside)
    single = guarantee(dpk.Additive(noise), 1.0)
    low, high = single.repeat(2).bracket(epsilon=0.0)
    truth = nested_delta(single, noise)
    assert low <= truth <= high
    assert single.repeat(2).estimate_delta(0.0) == pytest.approx(truth, rel=beside)


def nested_delta(single, noise):
    """delta of two releases at eps 0, an integral of the exact profile of one."""
    ends = np.concatenate([np.linspace(a, b, 65)[:-1] for a, b in ((-80, -2), (-2, -1), (-1, 2), (2, 3), (3, 81))])
    ends = np.append(ends, 81.0)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(ends)[:, None] / 2
    x = ends[:-1, None] + half * (1 + nodes)
    level = np.log(noise.prob(x - 1.0)) - np.log(noise.prob(x))
    size = np.abs(level)
    delta = single.estimate_delta(size)
    delta = np.where(level >= 0, delta, -np.expm1(-size) + np.exp(-size) * delta)
    return float((half * weights * noise.prob(x) * delta).sum())


def by_integral(scale, eps):
    """Delta of two releases of logistic noise: that of one at eps less the first loss, which ends at -1/b and 1/b.

    A loss is above t below the point z where -4 artanh(tanh((z - 1/2)/(2 b)) tanh(1/(4 b))) = t.
    """
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(-45 * scale, 45 * scale, 4001)
    x = (edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2).ravel()
    p = stats.logistic.pdf(x, scale=scale) * (np.diff(edges)[:, None] * weights / 2).ravel()
    rest = eps - (stats.logistic.logpdf(x, scale=scale) - stats.logistic.logpdf(x, 1.0, scale))
    where = np.clip(-np.tanh(rest / 4) / np.tanh(1 / (4 * scale)), -1.0, 1.0)
    with np.errstate(divide="ignore"):
        z = 0.5 + 2 * scale * np.arctanh(where)
    return p @ (stats.logistic.cdf(z, scale=scale) - np.exp(rest) * stats.logistic.cdf(z, 1.0, scale))


@pytest.mark.parametrize(("scale", "eps"), [(5.885369071713276, 0.0), (1.0, 0.0), (1.0, 1.0), (0.2, 1.0)])
def test_estimates_of_two_releases_whose_losses_end(scale, eps):
    """The estimate was up to 4e-6 of itself off: the densities of both losses end, and their ends add up to 0."""
    two = guarantee(dpk.logistic(epsilon=1 / scale)).repeat(2)
    assert two.estimate_delta(eps) == pytest.approx(by_integral(scale, eps), rel=2e-8)
    assert by_integral(scale, eps) <= two.delta(eps)
