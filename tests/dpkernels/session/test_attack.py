"""What an attacker sees: of many releases of two neighbouring tables, no event is more than e^epsilon times as likely.

The comparison of integers in ``test_neighbours`` is exact. This one includes the noise, and how it is drawn. For every
half-line of a released number the ratio of its two frequencies is tested, at a false-alarm rate of 1e-6 in all.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.choice import exponential_item
from dpkernels.exact.permute_and_flip import permute_and_flip_top_k
from dpkernels.random import host
from dpkernels.session import Count, Histogram, Mean, Quantiles, Regression, Sum, Top, Variance
from dpkernels.session.blocks import InMemory
from dpkernels.session.run import Run
from dpkernels.session.sums import Lattice, sampler_of
from dpkernels.session.tables import Table

FALSE_ALARM = 1e-6
ROWS = {
    "id": [1, 2, 2, 3],
    "age": [10.0, 50.0, np.nan, 90.0],
    "plan": ["A", "B", "A", "B"],
    "weight": [0.0, 0.2, 0.5, 1.0],
}
# One person with 1,000 rows of extreme, infinite and missing values.
EXTRA = {
    "id": [9] * 1000,
    "age": np.resize(np.array([1e300, np.inf, -np.inf, np.nan, 100.0]), 1000).tolist(),
    "plan": ["A"] * 1000,
    "weight": np.resize(np.array([1.0, -np.inf, 0.0]), 1000).tolist(),
}
EPSILON = 1.0
STATISTICS = {
    "count": Count(by={"plan": ["A", "B"]}),
    "sum": Sum("age", 0, 100),
    "mean": Mean("age", 0, 100),
    "variance": Variance("age", 0, 100),
    "histogram": Histogram("age", (0, 50, 100)),
    "quantile": Quantiles("age", 0, 100, 0.5, step=25, interval_share=0),
    "quantiles": Quantiles("age", 0, 100, (0.3, 0.6), step=25, interval_share=0),
    "top": Top("plan", 1, ["A", "B"]),
    "regression": Regression("age", "weight", y_bounds=(0, 100), x_bounds=(0, 1)),
}


def tables(rows):
    columns = ROWS, {name: [*ROWS[name], *EXTRA[name]] for name in ROWS}
    made = [Table.of({name: np.array(column, object) for name, column in each.items()}) for each in columns]
    for table in made:
        table.bound_rows("id", rows, bytes(32))
    # What counts never changes; the table of what counts is smaller.
    return [
        Table(
            InMemory("dict", {name: column[table.counted] for name, column in table.source.data.items()}),
            table.persons[table.counted],
            table.counted[table.counted],
        )
        for table in made
    ]


def released(statistic, table, rows, count, seed):
    """Projections of many releases: the sum of all values, and the first of them."""
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(count):
        value = np.atleast_1d(statistic.release(Run(table, rows, rows, rng.bytes(32)), EPSILON, 0.0).value)
        values.append((value.sum(), value[0]))
    return np.array(values).T


def excess_found(first, second):
    """Return whether some half-line is surely more than e^epsilon times as likely in the first sample."""
    count = len(first)
    for sign in (1, -1):
        for threshold in np.unique(np.quantile(sign * np.append(first, second), np.linspace(0, 1, 25))):
            hits, others = ((sign * each >= threshold).sum() for each in (first, second))
            # With Clopper-Pearson bounds on both frequencies.
            tail = FALSE_ALARM / 400
            low = stats.beta.ppf(tail, hits, count - hits + 1) if hits else 0.0
            high = stats.beta.isf(tail, others + 1, count - others) if others < count else 1.0
            if low > np.exp(EPSILON) * high:
                return True
    return False


def attack(name, rows, count):
    one, other = (released(STATISTICS[name], table, rows, count, seed) for seed, table in enumerate(tables(rows)))
    return any(excess_found(a, b) or excess_found(b, a) for a, b in zip(one, other, strict=True))


@pytest.mark.lengthy
def test_no_event_of_a_count_tells_of_a_person():
    assert not attack("count", 3, 1_000)


@pytest.mark.thorough
@pytest.mark.parametrize("name", STATISTICS)
def test_no_event_tells_of_a_person(name):
    assert not attack(name, 3, 5_000)


class Drawn(Exception):  # noqa: N818 - it is not an error
    """The draws of a statistic, instead of its release."""


class ManyDraws(Run):
    """A run whose first noise or choice is drawn many times: sums in few calls, and choices one by one."""

    draws = 1_000_000

    def noisy(self, sums, lattice, epsilon, label):
        rounded = lattice.rounded(sums).reshape(-1).astype(float)
        sampler, size = sampler_of(lattice, epsilon, len(rounded)), 100_000
        copies = np.broadcast_to(rounded, (size, len(rounded))).copy()
        keys = (dpk.key_from_bytes(self.key(b"")) for _ in range(self.draws // size))
        raise Drawn(np.concatenate([np.asarray(dpk.perturb(copies, sampler, key=key)) for key in keys]))

    def item(self, scores, lengths, epsilon):
        key, ends = self.key(b""), np.cumsum(lengths) - lengths
        choices = (exponential_item(scores, lengths, epsilon, key, number) for number in range(self.draws))
        raise Drawn(np.array([[ends[stretch] + item] for stretch, item in choices], float))

    def top(self, counts, epsilon, k, label):
        key = self.key(b"")
        keys = (host.fold_in(key, number) for number in range(self.draws))
        raise Drawn(np.array([permute_and_flip_top_k(counts, epsilon, k, each) for each in keys], float))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STATISTICS if name != "quantiles"])
def test_no_event_tells_of_a_person_in_a_million_draws(name):
    """Of the first noise or choice; that of several quantiles depends on choices before."""
    samples = []
    for seed, table in enumerate(tables(2)):
        run = ManyDraws(table, 2, 2, np.random.default_rng(seed).bytes(32))
        with pytest.raises(Drawn) as drawn:
            STATISTICS[name].release(run, EPSILON, 0.0)
        samples.append((drawn.value.args[0].sum(1), drawn.value.args[0][:, 0]))
    for first, second in zip(*samples, strict=True):
        assert not excess_found(first, second)
        assert not excess_found(second, first)


def test_the_attack_finds_noise_of_a_third(monkeypatch):
    own = Lattice.of
    monkeypatch.setattr(Lattice, "of", staticmethod(lambda rows, *a, **o: own(1, *a, **o)))
    assert attack("count", 3, 200)
