"""Intervals contain the true values: up to 2,000 releases of a small table in each of 20 settings.

The groups have 4, 60, 800 and no rows. An interval is refused if so few hits have a probability below 1e-9 at a
coverage of 95 %, so that all settings together have a false-alarm rate below 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.session import Mean, Regression, Result, Session, Variance
from dpkernels.session.run import ReleaseInProgress
from dpkernels.session.sums import NoisySums, noise_sampler
from dpkernels.session.tables import SessionTable

FALSE_ALARM = 1e-9
pytestmark = [
    pytest.mark.filterwarnings("ignore:another session:UserWarning"),
    pytest.mark.filterwarnings("ignore::dpkernels.session.DataWarning"),
]
RNG = np.random.default_rng(7)
X = RNG.integers(0, 11, 864).astype(float)
SMALL = {"g": np.repeat([0, 1, 2], [4, 60, 800]), "x": X, "y": 3 * X + 5 + RNG.normal(0, 3, 864)}
GROUPS = {"g": [0, 1, 2, 3]}
EDGES = [0, 2, 3, 10]


def by_group(function):
    """The values of a function of every group's x and y, NaN for the group without rows if it has none."""
    values = [function(X[SMALL["g"] == g], SMALL["y"][SMALL["g"] == g].clip(0, 50)) for g in range(3)]
    none = np.zeros(0)
    try:
        empty = function(none, none)
    except (IndexError, TypeError, ZeroDivisionError):
        empty = np.full(np.shape(values[0]), np.nan)
    return np.array([*values, empty], float).ravel()


def mean(x):
    return x.sum() / len(x) if len(x) else np.nan


TRUE = {
    "count": by_group(lambda x, y: len(x)),
    "sum": by_group(lambda x, y: x.sum()),
    "mean": by_group(lambda x, y: mean(x)),
    "variance": by_group(lambda x, y: mean((x - mean(x)) ** 2)),
    "histogram": by_group(lambda x, y: np.histogram(x, EDGES)[0]),
    "quantiles": by_group(lambda x, y: [np.sort(x)[int(np.ceil(p * len(x))) - 1] for p in (0.25, 0.6)]),
    "regression": by_group(lambda x, y: np.polyfit(x, y, 1)[::-1]),
    "ratio": by_group(lambda x, y: mean(x)),
}
RELEASES = {
    "count": lambda s, e: s.count(by=GROUPS, epsilon=e),
    "sum": lambda s, e: s.sum("x", 0, 10, by=GROUPS, epsilon=e),
    "mean": lambda s, e: s.mean("x", 0, 10, by=GROUPS, epsilon=e),
    "variance": lambda s, e: s.variance("x", 0, 10, by=GROUPS, epsilon=e),
    "histogram": lambda s, e: s.histogram("x", EDGES, by=GROUPS, epsilon=e),
    "quantiles": lambda s, e: s.quantiles("x", 0, 10, (0.25, 0.6), by=GROUPS, step=1, epsilon=e),
    "regression": lambda s, e: s.regression("y", "x", y_bounds=(0, 50), x_bounds=(0, 10), by=GROUPS, epsilon=e),
    "ratio": lambda s, e: s.sum("x", 0, 10, by=GROUPS, epsilon=e / 2) / s.count(by=GROUPS, epsilon=e / 2),
    "crosstab": lambda s, e: s.crosstab(by=GROUPS | {"x": [0, 5]}, epsilon=e),
    "top": lambda s, e: s.top("x", 2, list(range(13)), epsilon=e),
}


class ManyReleases(ReleaseInProgress):
    """A run whose sums get noise many times, each time as in a release of its own."""

    releases = 1

    def add_noise(self, sums, lattice, epsilon, label):
        sampler, rounded = noise_sampler(lattice, epsilon, sums.size), lattice.rounded(sums).astype(float)
        copies = np.broadcast_to(rounded.reshape(-1), (self.releases, sums.size)).copy()
        values = np.asarray(dpk.perturb(copies, sampler)).reshape(-1, sums.shape[1])
        return NoisySums(values, lattice, sampler)


# Of these, the intervals of all groups are computed in one call, and so are those of many releases.
RATIOS = {
    "mean": Mean("x", 0, 10, by=GROUPS),
    "variance": Variance("x", 0, 10, by=GROUPS),
    "regression": Regression("y", "x", y_bounds=(0, 50), x_bounds=(0, 10), by=GROUPS),
}


def true_values(name, result):
    """Of a cross table and of the candidates that were chosen they are looked up by their keys."""
    if name in TRUE:
        return TRUE[name]
    if name == "top":
        return np.array([(key == X).sum() for key in result.index["x"]])
    return np.array([((SMALL["g"] == g) & (key == X)).sum() for g, key in zip(*result.index.values(), strict=True)])


def coverage(name, epsilon, runs):
    """The shares of intervals that have the true value, by place in the table."""
    if name in RATIOS:
        run = ManyReleases(SessionTable.open(SMALL), 1, 1, bytes(32))
        run.releases = runs
        result = RATIOS[name].release(run, epsilon, 0.0)
        low, high = (end.reshape(runs, -1) for end in result.interval(0.95))
        return have(low, high, TRUE[name]).mean(0)
    hits = []
    for _ in range(runs):
        result = RELEASES[name](Session(SMALL, epsilon=epsilon), epsilon)
        low, high = result.interval(0.95)
        hits.append(have(low, high, true_values(name, result)))
    return np.mean(hits, 0)


def have(low, high, true):
    """Whether intervals have the true values, as they do where there is none."""
    return np.isnan(true) | ((low <= true) & (true <= high))


def check_coverage(name, epsilon, runs):
    shares = coverage(name, epsilon, runs)
    assert stats.binom.cdf(np.rint(shares * runs), runs, 0.95).min() > FALSE_ALARM, shares


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("name", RELEASES)
def test_intervals_cover(name, epsilon):
    check_coverage(name, epsilon, 300)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("name", RELEASES)
def test_intervals_cover_in_many_releases(name, epsilon):
    check_coverage(name, epsilon, 2000)


@pytest.mark.parametrize("name", RATIOS)
def test_many_releases_at_once_are_those_of_sessions(name, monkeypatch):
    """Of intervals whose noise is that of a fixed key."""
    original, key = dpk.perturb, dpk.key_from_bytes(bytes(range(32)))
    monkeypatch.setattr(
        dpk, "perturb", lambda values, sampler, key=None, fixed=key: original(values, sampler, key=fixed)
    )
    run = ManyReleases(SessionTable.open(SMALL), 1, 1, bytes(32))
    ends = RATIOS[name].release(run, 1.0, 0.0).interval(0.95)
    for end, other in zip(ends, RELEASES[name](Session(SMALL, epsilon=1.0), 1.0).interval(0.95), strict=True):
        assert np.array_equal(end, other)


def test_intervals_of_a_lower_confidence_are_caught(monkeypatch):
    original = Result.interval
    monkeypatch.setattr(Result, "interval", lambda self, confidence: original(self, confidence - 0.15))
    with pytest.raises(AssertionError):
        check_coverage("count", 0.3, 300)
