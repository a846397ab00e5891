"""Intervals contain the true values: up to 2,000 releases of a small table in each of 20 settings.

The groups have 4, 60, 800 and no rows. An interval is refused if so few hits have a probability below 1e-9 at a
coverage of 95 %, so that all settings together have a false-alarm rate below 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpkernels.session import Result, Session

FALSE_ALARM = 1e-9
pytestmark = pytest.mark.filterwarnings("ignore:another session:UserWarning")
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


def true_values(name, result):
    """Of a cross table and of the candidates that were chosen they are looked up by their keys."""
    if name in TRUE:
        return TRUE[name]
    if name == "top":
        return np.array([(key == X).sum() for key in result.index["x"]])
    return np.array([((SMALL["g"] == g) & (key == X)).sum() for g, key in zip(*result.index.values(), strict=True)])


def coverage(name, epsilon, runs):
    """The shares of intervals that have the true value, by place in the table."""
    hits = []
    for _ in range(runs):
        result = RELEASES[name](Session(SMALL, epsilon=epsilon), epsilon)
        true = true_values(name, result)
        low, high = result.interval(0.95)
        hits.append(np.where(np.isnan(true), True, (low <= true) & (true <= high)))
    return np.mean(hits, 0)


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


def test_intervals_of_a_lower_confidence_are_caught(monkeypatch):
    own = Result.interval
    monkeypatch.setattr(Result, "interval", lambda self, confidence: own(self, confidence - 0.15))
    with pytest.raises(AssertionError):
        check_coverage("count", 0.3, 300)
