"""The lower bound on the variance of any noise for several releases; see docs/proofs/least_variance.md."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
import scipy.optimize

import dpkernels as dpk
from accountants import calibrate, tune
from accountants.tune.least_variance import Program, Region

# (epsilon, delta, k), the certified variance of docs/best_noise.md, and the most it may exceed the bound.
FOUND = [
    ((1.0, 1e-6, 1), 1.9181, 0.002),
    ((4.0, 1e-6, 1), 0.064979, 0.004),
    ((1.0, 1e-6, 2), 7.917, 0.06),
    ((4.0, 1e-6, 3), 1.0443, 0.11),
    ((1.0, 1e-6, 100), 1781.1, 0.56),
]


@pytest.mark.lengthy
@pytest.mark.parametrize(("budget", "variance", "excess"), FOUND)
def test_certified_noise_is_close_to_the_bound(budget, variance, excess):
    bound = tune.least_variance(**dict(zip(("epsilon", "delta", "count"), budget, strict=True)))
    assert bound <= variance <= bound * (1 + excess)


def composed_delta(masses, shifts, epsilon):
    """Return delta of releases on a lattice whose values move by these many cells, outcome by outcome."""
    reach = max(abs(s) for s in shifts)
    p = np.pad(masses, reach)
    joint_p, joint_q = np.ones(1), np.ones(1)
    for s in shifts:
        joint_p, joint_q = np.outer(joint_p, p).ravel(), np.outer(joint_q, np.roll(p, s)).ravel()
    return float(np.maximum(joint_p - math.exp(epsilon) * joint_q, 0.0).sum())


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_noise_of_any_shape_has_more_variance(seed):
    """Random masses on a lattice of half sensitivities: some with gaps, not symmetric, with several modes."""
    rng = np.random.default_rng(seed)
    count, size = 1 + seed % 2, int(rng.integers(9, 25))
    z = np.arange(size) - (size - 1) / 2
    masses = np.exp(-np.abs(z / rng.uniform(1.0, 4.0)) + rng.normal(0.0, 0.3, size))
    if seed >= 4:
        masses[::3] = 0.0
    masses /= masses.sum()
    variance = float(masses @ (z - masses @ z) ** 2) / 4
    for epsilon in (0.5, 1.5):
        moved = itertools.product((-2, -1, 1, 2), repeat=count)
        delta = max(composed_delta(masses, shifts, epsilon) for shifts in moved)
        assert 0 < delta < 1
        assert tune.least_variance(epsilon=epsilon, delta=delta, count=count) <= variance


@pytest.mark.parametrize("count", [2, 3, 5])
def test_private_results_are_in_the_region(count):
    """Of random results those on the boundary of the budget, outcome by outcome, meet all limits, some closely."""
    epsilon, delta = 1.0, 1e-3
    region = Region(epsilon, delta, count)
    slopes = region.first_slopes()
    limits = region.largest(slopes)
    closest = np.zeros(len(slopes))
    rng = np.random.default_rng(count)

    def is_private(u, v):
        q = itertools.product(enumerate((v, 1 - u - v, u)), repeat=count)
        total = 0.0
        for results in q:
            swapped = [(v, 1 - u - v, u)[2 - index] for index, _ in results]
            total += max(math.prod(p for _, p in results) - math.exp(epsilon) * math.prod(swapped), 0.0)
        return total <= delta

    for t in np.exp(rng.uniform(math.log(1e-4), 0.0, 40)):
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if is_private(t * (1 - middle) / 2, t * (1 + middle) / 2) else (low, middle)
        reached = t * (1 + low) / 2 - slopes * t * (1 - low) / 2
        assert (reached <= limits).all()
        closest = np.maximum(closest, reached / limits)
    assert closest.max() > 0.95


@pytest.mark.parametrize("count", [2, 5])
def test_a_region_is_bounded_from_outside(count):
    """Its corners have more than delta, outcome by outcome, and limits are those of the curve through the corners."""
    region = Region(1.0, 1e-4, count)
    results = np.array(list(itertools.product((1, 0, -1), repeat=count)))
    for t, d in zip(region.total[::9], region.difference[::9], strict=True):
        u, v = (t - d) / 2, (t + d) / 2
        p, q = (np.where(results == 1, one, np.where(results == 0, 1 - t, other)) for one, other in ((v, u), (u, v)))
        delta = np.maximum(p.prod(axis=1) - math.e * q.prod(axis=1), 0.0).sum()
        assert delta > 1e-4 or d == t
    slopes = region.first_slopes()
    t = np.geomspace(region.total[0] / 2, 1.0, 20_001)
    after = np.minimum(np.searchsorted(region.total, t), len(region.total) - 1)
    before = np.maximum(after - 1, 0)
    d = np.minimum(region.difference[after], region.difference[before] * t / region.total[before])
    values = (t + d) / 2 - slopes[:, None] * (t - d) / 2
    assert (values.max(axis=1) <= region.largest(slopes)).all()
    assert (values.max(axis=1) >= 0.98 * region.largest(slopes)).all()


@pytest.mark.parametrize(
    ("count", "shifts", "spread"),
    [(2, [1.0], 0.0), (2, [1.0], 0.5), pytest.param(3, [0.5, 1.0], 0.0, marks=pytest.mark.lengthy)],
)
def test_a_bound_is_proven_by_its_functions(monkeypatch, count, shifts, spread):
    """The inequality between the knots too, and all costs, from any functions that a solver may propose."""
    solve, proposed, rng = scipy.optimize.linprog, [], np.random.default_rng(0)

    def propose(*problem, **options):
        result = solve(*problem, **options)
        result.x *= np.exp(spread * rng.normal(size=len(result.x))) - spread * rng.uniform(size=len(result.x))
        if spread:  # The largest value is often at the place that a test has in common with its mirror image.
            functions = result.x[: len(slopes) * len(program.knots[0])].reshape(len(slopes), -1)
            functions[::2, 0] = functions[::2].max(axis=1)
        proposed.append(result.x)
        return result

    monkeypatch.setattr(scipy.optimize, "linprog", propose)
    region = Region(2.0, 1e-5, count)
    slopes = region.first_slopes()
    limits, near = region.largest(slopes), np.exp([0.9 * 2.0 / count, 1.15 * 2.0 / count])
    program = Program(1.4 * count / 2.0, math.log(count / 1e-5), np.array(shifts), near)
    x = np.linspace(0.0, program.points[-1] + 1.0, 200_001)
    bound, parts = program.solve(slopes, limits)
    least, costs, first = x**2, 0.0, 0
    for s, y in zip(program.shifts, program.knots, strict=True):
        for slope, limit in zip(slopes, limits, strict=True):
            if s < 1 and not near[0] <= slope <= near[1]:
                continue
            g = np.maximum(proposed[0][first : first + len(y)], 0.0)
            first += len(y)

            def at(z, y=y, g=g):
                return np.interp(z, np.append(y[0] - program.spacing, y), np.append(0.0, g))

            least = least + (at(x + s) + at(s - x)) / 2 - slope * (at(x) + at(-x)) / 2
            costs += limit * (at(y) + at(s - y)).max()
    proven = float(least.min()) - costs
    assert parts.sum() >= (1 - 1e-12) * costs
    assert bound <= max(proven, 0.0)
    assert bound >= 0.99 * proven


def test_many_releases_are_sums(monkeypatch):
    """Ten releases are three sums of three, and one more, where a program has at most four."""
    three = tune.least_variance(epsilon=2.0, delta=1e-5, count=3)
    monkeypatch.setattr(sys.modules["accountants.tune.least_variance"], "_MAX_RELEASES", 4)
    assert tune.least_variance(epsilon=2.0, delta=1e-5, count=10) == pytest.approx(3 * three, rel=1e-12)
    assert tune.least_variance(epsilon=2.0, delta=1e-5, count=3, sensitivity=3.0) == pytest.approx(9 * three, rel=1e-12)


def test_a_region_that_is_too_small_is_found(monkeypatch):
    """With a third of the limits the bound exceeds the variance of certified noise."""
    true = Region.largest
    monkeypatch.setattr(Region, "largest", lambda self, slopes: true(self, slopes) / 3)
    assert tune.least_variance(epsilon=1.0, delta=1.01e-6, count=3) > 17.93


@pytest.mark.parametrize("seed", range(6))
def test_reports_of_any_laws_have_more_variance(seed):
    """Random laws at both ends, with the right means; outcome by outcome, for all inputs of one or two reports."""
    rng = np.random.default_rng(seed)
    count, size = 1 + seed % 2, 7
    y = np.sort(rng.normal(size=size))
    p, q = (np.exp(rng.normal(0.0, 0.5, size) + slope * y) for slope in (0.6, -0.6))
    p, q = p / p.sum(), q / q.sum()
    y = (2 * y - p @ y - q @ y) / (p @ y - q @ y)
    np.testing.assert_allclose([p @ y, q @ y], [1.0, -1.0], atol=1e-12)
    variance = max(p @ y**2, q @ y**2) - 1
    pairs = (
        [(p, q), (q, p)]
        if count == 1
        else [
            (np.outer(a, b).ravel(), np.outer(c, d).ravel()) for a, c in ((p, q), (q, p)) for b, d in ((p, q), (q, p))
        ]
    )
    for epsilon in (0.3, 1.0):
        delta = max(float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum()) for one, other in pairs)
        bound = tune.least_report_variance(epsilon=epsilon, delta=delta, count=count, lower=-2.0, upper=2.0)
        assert 0 < bound <= 4 * variance


# (epsilon, reports, the least worst-case variance of known reports on [-1, 1], and the most it may exceed the bound).
REPORTS = [
    (1.0, 1, dpk.hybrid, 0.17),
    (1.0, 3, dpk.duchi, 0.04),
    (1.0, 5, dpk.duchi, 0.051),
    (4.0, 10, dpk.duchi, 0.15),
]


@pytest.mark.parametrize(("epsilon", "count", "make", "excess"), REPORTS)
def test_known_reports_are_close_to_the_bound(monkeypatch, epsilon, count, make, excess):
    budget = {"epsilon": epsilon, "delta": 1e-6, "count": count}
    variance = float(calibrate.composed_budget(make, **budget, lower=0.0, upper=10.0).worst_variance)
    bound = tune.least_report_variance(**budget, lower=0.0, upper=10.0)
    assert bound <= variance <= bound * (1 + excess)
    monkeypatch.setattr(sys.modules["accountants.tune.least_variance"], "_MAX_RELEASES", count)
    assert tune.least_report_variance(**budget | {"count": 3 * count}) == pytest.approx(3 * bound / 25, rel=1e-12)
    # With limits that are too small the bound exceeds the variance.
    true = Region.largest
    monkeypatch.setattr(Region, "largest", lambda self, slopes: true(self, slopes) / (1 + 1.2 * excess))
    assert tune.least_report_variance(**budget, lower=0.0, upper=10.0) > variance


def test_the_result_of_a_search_has_the_bound():
    families = [family for family in tune.NOISE_FAMILIES if family.name in ("Laplace", "staircase")]
    budget = {"epsilon": 1.0, "delta": 1e-6, "count": 2}
    tuned = tune.noise(**budget, sensitivity=2.0, families=families)
    assert tuned.lower_bound == tune.least_variance(**budget, sensitivity=2.0)
    assert 0 < tuned.excess == tuned.value / tuned.lower_bound - 1 < 0.06
    sampled = tune.noise(**budget, rate=0.5, families=families[:1])
    assert math.isnan(sampled.lower_bound)
    assert math.isnan(sampled.excess)


def test_noise_far_below_the_knots_has_the_bound_0():
    assert tune.least_variance(epsilon=100.0, delta=1e-6, count=2) == 0.0


def test_wrong_budgets_are_refused():
    right = {"epsilon": 1.0, "delta": 1e-6, "count": 2}
    for name, value in (("epsilon", 0.0), ("delta", 1.0), ("count", 0), ("sensitivity", -1.0)):
        with pytest.raises(ValueError, match=name):
            tune.least_variance(**{**right, name: value})
        if name != "sensitivity":
            with pytest.raises(ValueError, match=name):
                tune.least_report_variance(**{**right, name: value})
    with pytest.raises(TypeError, match="count"):
        tune.least_variance(**{**right, "count": 2.5})
    with pytest.raises(ValueError, match="lower must be below upper"):
        tune.least_report_variance(**right, lower=1.0, upper=0.0)
