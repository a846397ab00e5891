"""One release on a Poisson sample, by its exact profile: against the definition in 50 digits, for every mechanism."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import ALL, knots, positive_part, slope_by_differences
from mpmath import mp, mpf
from noise_registry import ASYMMETRIC, LAWS, SYMMETRIC, over, scale

from accountants import discrete_pair, guarantee, randomised_response
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.schemes.poisson import budget_on_sample
from dpkernels.distributions.discrete import DiscreteLaplace
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive

# How far above the truth a value may be, relatively. It is never below.
ABOVE = 1e-11


@pytest.fixture(autouse=True)
def many_digits():
    """References in 50 digits."""
    with mpmath.workdps(50):
        yield


# The definition, from the parameters of a law


class Exact:
    """The density of noise in many digits: a kernel times steps, with masses in closed form."""

    def __init__(self, law):
        self.steps = []
        while isinstance(law, Reweighted):
            self.steps.append((mpf(float(law.low)), mpf(float(law.high)), mpf(float(law.outside))))
            law = law.kernel
        self.kernel = law
        self.knots = sorted({end for low, high, _ in self.steps for end in (low, high)} | set(self.kernel_knots()))
        ends = [-mp.inf, *self.knots, mp.inf]
        self.total = sum(self._weight(a, b) * self.kernel_mass(a, b) for a, b in itertools.pairwise(ends))

    def kernel_knots(self):
        if isinstance(self.kernel, Gaussian):
            return []
        if isinstance(self.kernel, Laplace):
            return [mpf(0)]
        breaks = [mpf(float(c)) for c in self.kernel.breaks]
        return [mpf(0), *breaks, *(-c for c in breaks)]

    def log_density(self, y):
        """Of the kernel, but for a constant."""
        k, y = self.kernel, abs(y)
        if isinstance(k, Gaussian):
            return -((y / mpf(float(k.sigma))) ** 2) / 2
        if isinstance(k, Laplace):
            return -y / mpf(float(k.scale))
        ends = [mpf(0), *(mpf(float(c)) for c in k.breaks), mp.inf]
        return -sum(
            mpf(float(rate)) * (min(y, b) - a)
            for rate, (a, b) in zip(k.rates, itertools.pairwise(ends), strict=True)
            if y > a
        )

    def kernel_mass(self, a, b):
        """Between neighbouring knots, or beyond; unnormalised."""
        k = self.kernel
        if isinstance(k, Gaussian):
            s = mpf(float(k.sigma))
            return (
                s
                * mp.sqrt(2 * mp.pi)
                * (mp.ncdf(b / s) - mp.ncdf(a / s) if a < 0 else mp.ncdf(-a / s) - mp.ncdf(-b / s))
            )
        if a == -mp.inf:
            a, b = -b, mp.inf
        at = a + 1 if b == mp.inf else (a + b) / 2
        step = mpf(10) ** -20 * (abs(at) + 1)
        rate = (self.log_density(at + step) - self.log_density(at - step)) / (2 * step)
        rate = mpf(0) if abs(rate) < mpf(10) ** -25 else rate
        log_a = self.log_density(at) + rate * (a - at)
        if b == mp.inf:
            return -mp.exp(log_a) / rate
        return mp.exp(log_a) * ((b - a) if rate == 0 else mp.expm1(rate * (b - a)) / rate)

    def _weight(self, a, b):
        at = b - 1 if a == -mp.inf and b != mp.inf else a + 1 if b == mp.inf and a != -mp.inf else (a + b) / 2
        at = mpf(0) if a == -mp.inf and b == mp.inf else at
        return mp.fprod(mpf(1) if low <= at <= high else outside for low, high, outside in self.steps)

    def parts(self, a, b, shift):
        """Weight of f(. - shift) between neighbouring knots of all laws."""
        return self._weight(a - shift, b - shift) / self.total


def exact_stick(law, shifts, t):
    """Integral of max(0, p - t q), p and q being mixtures: {shift: (probability under p, under q)}."""
    exact, t = Exact(law), mpf(t)
    knots = sorted({knot + shift for knot in exact.knots for shift in shifts})
    reach = mpf(60) * mpf(scale(law)) + max(abs(s) for s in shifts)
    ends = [-reach, *(k for k in knots if abs(k) < reach), reach]
    total = mpf(0)
    for a, b in itertools.pairwise(ends):
        if b - a <= mpf(10) ** -35 * reach:
            continue
        coefficients = [(s, exact.parts(a, b, s) * (mpf(u) - t * mpf(v))) for s, (u, v) in shifts.items()]

        def gap(y, coefficients=coefficients):
            return sum(c * mp.exp(exact.log_density(y - s)) for s, c in coefficients if c)

        inset = (b - a) * mpf(10) ** -30
        # Not evenly spaced: of symmetric laws the gap is 0 exactly half-way.
        points = [a + inset + (b - a - 2 * inset) * (mpf(k) / 48) ** mpf(1.0371) for k in range(49)]
        cuts = [a]
        for x, y in itertools.pairwise(points):
            if gap(x) * gap(y) < 0:
                rises = gap(y) > 0
                for _ in range(100):
                    middle = (x + y) / 2
                    x, y = (x, middle) if (gap(middle) > 0) == rises else (middle, y)
                cuts.append(y)
        for x, y in itertools.pairwise([*cuts, b]):
            if gap((x + y) / 2) > 0:
                total += sum(c * exact.kernel_mass(x - s, y - s) for s, c in coefficients if c)
    return total


def added_or_removed(law, D, rate, eps):
    """The larger of both directions, and of both signs of the shift."""
    r, t = mpf(rate), mp.exp(mpf(eps))
    found = []
    for shift in {mpf(D), -mpf(D)} if law in ASYMMETRIC.values() else {mpf(D)}:
        with_record, without = {mpf(0): (r, 0), shift: (1 - r, 1)}, {mpf(0): (0, r), shift: (1, 1 - r)}
        found += [exact_stick(law, with_record, t), exact_stick(law, without, t)]
    return max(found)


def replaced(law, D, rate, eps):
    r = mpf(rate)
    shifts = {mpf(0): (1 - r, 1 - r), mpf(D): (r, 0), -mpf(D): (0, r)}
    return exact_stick(law, shifts, mp.exp(mpf(eps)))


def check(found, exact, above=ABOVE):
    """Not below the exact value by more than its own place, and hardly above; next to the largest loss a rounding."""
    assert found >= exact * (1 - mpf(10) ** -15) - mpf(10) ** -300
    assert found <= exact * (1 + mpf(above)) + mpf(10) ** -14


# Noise

SMOOTH = {name: law for name, law in LAWS.items() if "staircase" not in name}
CASES = [(0.5, 0.3), (0.01, 0.02), (0.97, 1.1), (0.2, 0.0)]


@pytest.mark.lengthy
@pytest.mark.quick("case0-gaussian", "case1-laplace", "case1-recycled-merged")
@over(SMOOTH)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case{CASES.index(case)}")
def test_a_record_added_or_removed(law, case):
    rate, eps = case
    D = 0.9 * scale(law)
    check(guarantee(Additive(law), D).subsample(rate).delta(eps), added_or_removed(law, D, rate, eps))


@pytest.mark.quick("case0-gaussian", "case1-laplace", "case2-recycled-gaussian")
@over({name: law for name, law in SMOOTH.items() if name in SYMMETRIC})
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case{CASES.index(case)}")
def test_a_record_replaced(law, case):
    rate, eps = case
    D = 0.9 * scale(law)
    check(guarantee(Additive(law), D).subsample(rate, "replace").delta(eps), replaced(law, D, rate, eps))


def masses_of_steps(law, shift, D, cells=4000):
    """Masses of f(. - shift) between all knots of f and its shifts by -D, 0 and D, as far as there is mass."""
    steps = np.arange(-cells, cells + 1)
    at = np.unique(
        np.concatenate([steps * law.period, (steps + law.gamma) * law.period, -(steps + law.gamma) * law.period])
    )
    ends = np.unique(np.concatenate([at, at + D, at - D]))
    middles = (ends[1:] + ends[:-1]) / 2
    return law.prob(middles - shift) * np.diff(ends)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("rate", [0.03, 0.6])
def test_steps_are_summed_one_by_one(adjacency, rate):
    law, D = SYMMETRIC["staircase-0.3"], 1.3
    f, up, down = (masses_of_steps(law, shift, D, 400) for shift in (0.0, D, -D))
    sampled = guarantee(Additive(law), D).subsample(rate, adjacency)
    for eps in (0.0, 0.02, 0.4):
        if adjacency == "replace":
            pairs = [((1 - rate) * f + rate * up, (1 - rate) * f + rate * down)]
        else:
            pairs = [(rate * up + (1 - rate) * f, f), (f, rate * up + (1 - rate) * f)]
        exact = max(np.maximum(p - math.exp(eps) * q, 0.0).sum() for p, q in pairs)
        assert sampled.delta(eps) == pytest.approx(exact, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_noise_on_a_lattice(adjacency):
    noise, rate = DiscreteLaplace(1.7, 1.0, 12), 0.3
    w = [mpf(float(x)) for x in noise.probabilities]
    none = [mpf(0)] * 2
    f, up, down = [*none, *w, *none], [*none, *none, *w], [*w, *none, *none]
    r = mpf(rate)
    mixed = {
        name: [(1 - r) * a + r * b for a, b in zip(f, law, strict=True)] for name, law in (("up", up), ("down", down))
    }
    pairs = [(mixed["up"], mixed["down"])] if adjacency == "replace" else [(mixed["up"], f), (f, mixed["up"])]
    for eps in (0.0, 0.05, 0.6):
        t = mp.exp(mpf(eps))
        exact = max(sum(max(mpf(0), a - t * b) for a, b in zip(p, q, strict=True)) for p, q in pairs)
        check(guarantee(Additive(noise), 2.0).subsample(rate, adjacency).delta(eps), exact)


def test_numbers_that_another_library_prints():
    """Sampled Gaussian noise of sigma 2 over a distance of 6, in the tests of dp-accounting; and others."""
    assert guarantee(Additive(Gaussian(2.0)), 6.0).subsample(0.4).delta(1.0) == pytest.approx(0.28883080051, rel=2e-11)
    for sigma, D, rate, eps in (
        (2.0, 6.0, 0.4, 1.0),
        (1.0, 1.0, 0.01, 0.5),
        (1e4, 1.0, 0.2, 1e-4),
        (0.3, 1.0, 1e-7, 0.2),
    ):
        with mpmath.workdps(60):
            a, r = mpf(D) / mpf(sigma), mpf(rate)
            at = mp.log1p(mp.expm1(mpf(eps)) / r)
            exact = r * (mp.ncdf(a / 2 - at / a) - mp.exp(at) * mp.ncdf(-a / 2 - at / a))
        delta = guarantee(Additive(Gaussian(sigma)), D).subsample(rate).delta(eps)
        assert exact <= delta <= exact * (1 + mpf("1e-12"))


# Noise much wider than the sensitivity, small rates, large budgets

HARD = [
    (Gaussian(1e4), 1.0, 0.3, 3e-5),
    (Gaussian(0.2), 1.0, 1e-6, 1.0),
    (Gaussian(0.2), 1.0, 0.9, 15.0),
    (Laplace(1e3), 1.0, 0.5, 2e-4),
    (Laplace(0.1), 1.0, 1e-5, 0.05),
    (Reweighted(Gaussian(30.0), -20.0, 20.0, 0.3), 0.5, 0.4, 4e-3),
    (Reweighted(Laplace(2.0), -9.0, 9.0, 0.0), 0.5, 0.01, 1e-3),
]


@pytest.mark.quick("*-0", "*-3")
@pytest.mark.parametrize("case", range(len(HARD)))
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_far_from_ordinary_parameters(case, adjacency):
    law, D, rate, eps = HARD[case]
    exact = added_or_removed(law, D, rate, eps) if adjacency == "add_remove" else replaced(law, D, rate, eps)
    delta = guarantee(Additive(law), D).subsample(rate, adjacency).delta(eps)
    check(delta, exact, 1e-11 if isinstance(law, Gaussian) else 1e-6)


# Bounded mechanisms and pairs

BOUNDED = ["piecewise-0.5", "sine-2-w1.3", "triangle-quartic0.3-5-w1.3", "duchi-0.1", "hybrid-1", "optimal-1"]


def atoms_and_density(m, x):
    """Probabilities of the atoms, and the density, of a report of x."""
    return np.asarray(m.atoms(x)[1], float), lambda y: m.pdf(y, x)


def by_definition(m, rate, t):
    """The larger direction of the two ends of the interval, by atoms and by quadrature between all knots."""
    (atoms_p, p), (atoms_q, q) = (atoms_and_density(m, x) for x in (m.upper, m.lower))
    points = np.unique(np.concatenate([knots(m, m.upper), knots(m, m.lower)]))
    points = np.unique(points[:-1, None] + np.diff(points)[:, None] * np.linspace(0, 1, 301))
    found = []
    for u, v in (((rate, 1 - rate), (0.0, 1.0)), ((0.0, 1.0), (rate, 1 - rate))):
        at = np.maximum(u[0] * atoms_p + u[1] * atoms_q - t * (v[0] * atoms_p + v[1] * atoms_q), 0.0).sum()
        dense = positive_part(lambda y, u=u, v=v: (u[0] - t * v[0]) * p(y) + (u[1] - t * v[1]) * q(y), points)
        found.append(at + dense)
    return max(found)


@pytest.mark.quick("piecewise-0.5-0.3", "duchi-0.1-0.3", "hybrid-1-0.02")
@pytest.mark.parametrize("rate", [0.3, 0.02])
@pytest.mark.parametrize("name", [name for name in BOUNDED if "optimal" not in name])
def test_bounded_mechanisms(name, rate):
    m = ALL[name]
    for share in (0.0, 0.3, 0.9):
        eps = math.log1p(rate * math.expm1(share * m.epsilon))
        exact = by_definition(m, rate, math.exp(eps))
        for adjacency in ("add_remove", "replace"):
            assert guarantee(m).subsample(rate, adjacency).delta(eps) == pytest.approx(exact, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("name", ["optimal-1", "duchi-0.1"])
@pytest.mark.parametrize("rate", [0.4, 0.003])
def test_tables_by_enumeration(name, rate):
    (pair,) = dominating_pairs(ALL[name])
    p, q = ([mpf(float(x)) for x in mass] for mass in (pair.p, pair.q))
    r = mpf(rate)
    mixed = [r * a + (1 - r) * b for a, b in zip(p, q, strict=True)]
    for eps in (0.0, 0.1 * rate, 0.7 * rate):
        t = mp.exp(mpf(eps))
        ways = [sum(max(mpf(0), a - t * b) for a, b in zip(*laws, strict=True)) for laws in ((mixed, q), (q, mixed))]
        check(guarantee(ALL[name]).subsample(rate).delta(eps), max(ways))


def test_a_pair_of_the_users_own_has_two_directions():
    p, q, rate = [0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.4, 0.1], 0.3
    mixed = rate * np.array(p) + (1 - rate) * np.array(q)
    for eps in (0.0, 0.05, 0.2, 1.0):
        t = math.exp(eps)
        exact = max(np.maximum(mixed - t * np.array(q), 0).sum(), np.maximum(q - t * mixed, 0).sum())
        assert guarantee(discrete_pair(p, q)).subsample(rate).delta(eps) == pytest.approx(exact, rel=1e-12, abs=2e-15)


def test_all_of_the_data_is_no_sample():
    for law in (Gaussian(2.3), Laplace(0.7), SYMMETRIC["recycled-laplace"]):
        single, D = guarantee(Additive(law), 1.1), 1.1
        eps = np.array([0.0, 0.1, 0.7])
        np.testing.assert_allclose(single.subsample(1.0).delta(eps), single.delta(eps), rtol=1e-12, atol=1e-14)
        twice = guarantee(Additive(law), 2 * D).delta(eps)
        np.testing.assert_allclose(single.subsample(1.0, "replace").delta(eps), twice, rtol=1e-11, atol=1e-14)


@pytest.mark.quick("gaussian-*", "laplace-add_remove")
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(
    "law", [Gaussian(2.3), Laplace(0.7), SYMMETRIC["recycled-gaussian"]], ids=["gaussian", "laplace", "recycled"]
)
def test_epsilon_is_where_delta_is_reached(law, adjacency):
    sampled = guarantee(Additive(law), 1.1).subsample(0.3, adjacency)
    for delta in (1e-8, 1e-4, 0.03):
        eps = sampled.epsilon(delta)
        assert sampled.delta(eps) <= delta
        assert (
            eps == 0.0
            or sampled.delta(eps * (1 - 1e-9)) > delta
            or sampled.delta(eps * (1 - 1e-9)) == sampled.delta(eps)
        )


def test_a_budget_on_a_sample_is_amplified_exactly():
    """What ``schemes.poisson`` says of any (eps, delta) is attained by the exact profile."""
    single, rate = guarantee(Additive(Gaussian(2.0)), 1.0), 0.2
    for eps in (0.01, 0.3, 1.0):
        inner, _ = budget_on_sample(eps, 0.0, rate)
        assert single.subsample(rate).delta(eps) == pytest.approx(rate * single.delta(inner), rel=1e-11)


# Derivatives, traced counts

SLOPES = {
    "gaussian-rate": lambda v, way: guarantee(Additive(Gaussian(2.0)), 1.0).subsample(v, way).delta(jnp.float64(0.1)),
    "gaussian-sigma": lambda v, way: (
        guarantee(Additive(Gaussian(8 * v)), 1.0).subsample(0.3, way).delta(jnp.float64(0.0))
    ),
    "gaussian-eps": lambda v, way: guarantee(Additive(Gaussian(2.0)), 1.0).subsample(0.3, way).delta(v),
    "gaussian-delta": lambda v, way: guarantee(Additive(Gaussian(2.0)), 1.0).subsample(0.3, way).epsilon(0.01 * v),
    "laplace-scale": lambda v, way: (
        guarantee(Additive(Laplace(3 * v)), 1.0).subsample(0.3, way).delta(jnp.float64(0.1))
    ),
    "recycled-theta": lambda v, way: (
        guarantee(Additive(Reweighted(Gaussian(1.0), -4 * v, 4 * v, 0.4)), 1.0)
        .subsample(0.3, way)
        .delta(jnp.float64(0.1))
    ),
    "recycled-laplace-theta": lambda v, way: (
        guarantee(Additive(Reweighted(Laplace(1.0), -5 * v, 5 * v, 0.4)), 1.0)
        .subsample(0.3, way)
        .delta(jnp.float64(0.1))
    ),
    "sine-rate": lambda v, way: guarantee(ALL["sine-1"]).subsample(v, way).delta(jnp.float64(0.05)),
}


@pytest.mark.lengthy
@pytest.mark.quick("gaussian-rate-replace", "gaussian-eps-add_remove")
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", SLOPES)
def test_gradients(x64, name, adjacency):
    both = jax.jit(jax.value_and_grad(lambda v: SLOPES[name](v, adjacency)))
    at = 0.25
    if name.endswith("theta") and adjacency == "replace":  # Traced bounds are not known to be even.
        with pytest.raises(ValueError, match="under tracing not known to be"):
            both(jnp.float64(at))
        return
    found = float(both(jnp.float64(at))[1])
    expected = slope_by_differences(lambda v: both(jnp.float64(v))[0], at, 1e-4)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.thorough
def test_a_traced_count_may_be_one(x64):
    sampled = guarantee(Additive(Gaussian(2.0)), 1.0).subsample(0.3)
    found = jax.jit(lambda n: sampled.repeat(n).delta(0.1))(jnp.float64(1.0))
    assert float(found) == pytest.approx(sampled.delta(0.1), rel=1e-12)


# Several releases of few outcomes


def one_by_one(parts, eps):
    """All outcomes of tables, multiplied out; the larger direction."""

    def one(parts):
        p, q = np.ones(1), np.ones(1)
        for here, there in parts:
            p, q = np.multiply.outer(p, here).ravel(), np.multiply.outer(q, there).ravel()
        return math.fsum(np.maximum(p - math.exp(eps) * q, 0.0))

    return max(one(parts), one([(q, p) for p, q in parts]))


@pytest.mark.parametrize("seed", range(4))
def test_randomised_responses_at_different_rates(seed):
    """The atoms are on no grid together, and delta has a kink at each sum of losses; eps = 0 is one of them."""
    random = np.random.default_rng(seed)
    made, parts = None, []
    for _ in range(int(random.integers(2, 6))):
        rate, count = float(random.uniform(0.05, 0.9)), int(random.integers(1, 4))
        answer = randomised_response(float(random.uniform(0.2, 3)), categories=int(random.integers(2, 4)))
        composed = guarantee(answer).subsample(rate).repeat(count)
        made = composed if made is None else made.compose(composed)
        parts += [(rate * answer.p + (1 - rate) * answer.q, answer.q)] * count
    for eps in (0.0, 0.1, 0.7):
        exact = one_by_one(parts, eps)
        assert exact <= made.delta(eps) == pytest.approx(exact, rel=1e-12, abs=1e-15)
        if 0 < exact < 1:
            assert exact * (1 - 1e-11) <= made.delta(made.epsilon(exact)) <= exact


def test_replaced_randomised_responses():
    rates, answers = (0.3, 0.6), (randomised_response(1.1), randomised_response(0.4, categories=3))
    one, two = (guarantee(a).subsample(r, "replace") for a, r in zip(answers, rates, strict=True))
    parts = []
    for a, r in zip(answers, rates, strict=True):
        p, q = r * a.p + (1 - r) * a.q, a.q
        some = p > q * (1 + 1e-12)
        rest = 1 - p[some].sum() - q[some].sum()
        parts.append((np.array([*p[some], *q[some], rest]), np.array([*q[some], *p[some], rest])))
    for eps in (0.0, 0.2):
        assert one.compose(two).delta(eps) == pytest.approx(one_by_one(parts, eps), rel=1e-12)


@pytest.mark.lengthy
def test_enumerated_values_have_derivatives(x64):
    def made(v):
        return guarantee(randomised_response(v)).subsample(0.4).compose(guarantee(randomised_response(1.0)).repeat(2))

    for value in (lambda v: made(v).delta(jnp.float64(0.3)), lambda v: made(v).epsilon(jnp.float64(0.05))):
        both = jax.jit(jax.value_and_grad(value))
        expected = slope_by_differences(lambda v, both=both: both(jnp.float64(v))[0], 0.7, 1e-4)
        assert float(both(jnp.float64(0.7))[1]) == pytest.approx(expected, rel=1e-6)
