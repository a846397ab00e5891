"""What an attacker sees: of many releases of two neighbouring tables, no event is more than e^epsilon times as likely.

The comparison of integers in ``test_neighbours`` is exact. This one includes the noise, and how it is drawn. For every
half-line of a projection of what is released the ratio of its two frequencies is tested, at a false-alarm rate of 1e-6
in all. The attacker knows both tables but does not know which one it is. One projection is how much nearer a release is
to the first than to the second: for Laplace noise on sums, half-lines of it are the most powerful tests.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.selection.exponential import exponential_item
from dpkernels.exact.selection.permute_and_flip import permute_and_flip_top_k
from dpkernels.random import host
from dpkernels.session import (
    Count,
    Histogram,
    Mean,
    Quantiles,
    Regression,
    Sum,
    Top,
    Variance,
    bounds,
)
from dpkernels.session import statistic as statistic_module
from dpkernels.session.blocks import InMemory
from dpkernels.session.run import NoiseRecord, ReleaseInProgress
from dpkernels.session.sums import NoisySums, SumLattice, noise_sampler
from dpkernels.session.tables import SessionTable

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
    "plan": np.resize(np.array(["A", "B", "C"]), 1000).tolist(),
    "weight": [*np.linspace(-1.0, 2.0, 998), np.nan, -np.inf],
}
EPSILON = 1.0
SECRET = bytes([4]) * 32  # by which the rows of ages 100, -inf and 1e300 count, each in another group
OTHER_SECRET = bytes([3]) * 32  # by which three keys count of three rows
STATISTICS = {
    "count": Count(by={"plan": ["A", "B", "C"]}),
    "sum": Sum("age", 0, 100),
    "mean": Mean("age", 0, 100),
    "variance": Variance("age", 0, 100),
    "histogram": Histogram("age", (0, 50, 100)),
    "quantile": Quantiles("age", 0, 100, 0.5, step=25, interval_share=0),
    "quantiles": Quantiles("age", 0, 100, (0.3, 0.6), step=25, interval_share=0),
    "top": Top("plan", 1, ["A", "B", "C"]),
    "regression": Regression("age", "weight", y_bounds=(0, 100), x_bounds=(0, 1)),
}


def tables(rows):
    columns = ROWS, {name: [*ROWS[name], *EXTRA[name]] for name in ROWS}
    opened = [SessionTable.open({name: np.array(column, object) for name, column in data.items()}) for data in columns]
    for table in opened:
        table.bound_rows("id", rows, SECRET)
    # What counts never changes; the table of what counts is smaller.
    return [
        SessionTable(
            InMemory("dict", {name: column[table.counted] for name, column in table.source.data.items()}),
            table.persons[table.counted],
            table.counted[table.counted],
        )
        for table in opened
    ]


class Noiseless(ReleaseInProgress):
    """A run without noise, whose choices are the likeliest."""

    def add_noise(self, sums, lattice, epsilon, label):
        return NoisySums(lattice.rounded(sums), lattice, noise_sampler(lattice, epsilon, sums.size))

    def choose_item(self, scores, lengths, epsilon):
        return int(np.argmax(scores)), 0

    def choose_top(self, counts, epsilon, k, label):
        return np.argsort(-counts)[:k]


def released(statistic, table, rows, count, seed):
    """The values of many releases, of shape (count, values), and those without noise."""
    rng = np.random.default_rng(seed)
    runs = [Noiseless(table, rows, rows, bytes(32))]
    runs += [ReleaseInProgress(table, rows, rows, rng.bytes(32)) for _ in range(count)]
    values = [np.atleast_1d(statistic.release(run, EPSILON, 0.0).value) for run in runs]
    return np.array(values[1:]), values[0]


def excess_of(samples, true):
    """Return whether some half-line of a projection is too likely in one of two samples of shape (count, values)."""
    nearer = [sum(sign * np.abs(sample - center).sum(1) for sign, center in zip((1, -1), true, strict=True))
              for sample in samples]  # fmt: skip
    projections = (
        nearer,
        [sample.sum(1) for sample in samples],
        *([sample[:, k] for sample in samples] for k in (0, -1)),
    )
    return any(excess_found(*pair) or excess_found(*pair[::-1]) for pair in projections)


def excess_found(first, second):
    """Return whether some half-line is surely more than e^epsilon times as likely in the first sample."""
    count = len(first)
    for sign in (1, -1):
        for threshold in np.unique(np.quantile(sign * np.append(first, second), np.linspace(0, 1, 25))):
            hits, others = ((sign * each >= threshold).sum() for each in (first, second))
            low, high = frequency_bounds(hits, others, count, FALSE_ALARM / 1000)
            if low > np.exp(EPSILON) * high:
                return True
    return False


def frequency_bounds(hits, others, count, tail):
    """Return a lower bound on the first probability and an upper one on the second, of Clopper and Pearson."""
    low = stats.beta.ppf(tail, hits, count - hits + 1) if hits else 0.0
    return low, stats.beta.isf(tail, others + 1, count - others) if others < count else 1.0


def attack(name, rows, count):
    releases = [released(STATISTICS[name], table, rows, count, seed) for seed, table in enumerate(tables(rows))]
    return excess_of(*zip(*releases, strict=True))


def test_the_rows_of_the_attackers_person_are_in_several_groups():
    data = tables(3)[1].source.data
    assert data["plan"][-3:].tolist() == ["B", "C", "A"]
    assert data["age"][-3:].tolist() == [100, -np.inf, 1e300]


@pytest.mark.lengthy
def test_no_event_of_a_count_tells_of_a_person():
    assert not attack("count", 3, 1_000)


@pytest.mark.thorough
@pytest.mark.parametrize("name", STATISTICS)
def test_no_event_tells_of_a_person(name):
    assert not attack(name, 3, 5_000)


class Drawn(Exception):  # noqa: N818 - it is not an error
    """The draws of a statistic and what they are of, instead of its release."""


class ManyDraws(ReleaseInProgress):
    """A run whose first noise or choice is drawn many times: sums in few calls, and choices one by one."""

    draws = 1_000_000

    def add_noise(self, sums, lattice, epsilon, label):
        rounded = lattice.rounded(sums).reshape(-1).astype(float)
        sampler, size = noise_sampler(lattice, epsilon, len(rounded)), min(self.draws, 100_000)
        copies = np.broadcast_to(rounded, (size, len(rounded))).copy()
        keys = (dpk.key_from_bytes(self.key(b"")) for _ in range(self.draws // size))
        raise Drawn(np.concatenate([np.asarray(dpk.perturb(copies, sampler, key=key)) for key in keys]), rounded)

    def choose_item(self, scores, lengths, epsilon):
        key, ends = self.key(b""), np.cumsum(lengths) - lengths
        choices = (exponential_item(scores, lengths, epsilon, key, number) for number in range(self.draws))
        chosen = np.array([[ends[stretch] + item] for stretch, item in choices], float)
        raise Drawn(chosen, ends[np.argmax(scores)][None])

    def choose_top(self, counts, epsilon, k, label):
        key = self.key(b"")
        keys = (host.fold_in(key, number) for number in range(self.draws))
        chosen = np.array([permute_and_flip_top_k(counts, epsilon, k, each) for each in keys], float)
        raise Drawn(chosen, np.argsort(-counts)[:k])


def attack_of_draws(name, rows):
    """Of the first noise or choice with the whole budget; that of several quantiles depends on choices before."""
    drawn = []
    for seed, table in enumerate(tables(rows)):
        run = ManyDraws(table, rows, rows, np.random.default_rng(seed).bytes(32))
        with pytest.raises(Drawn) as draws:
            STATISTICS[name].release(run, EPSILON, 0.0)
        drawn.append(draws.value.args)
    return excess_of(*zip(*drawn, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STATISTICS if name != "quantiles"])
def test_no_event_tells_of_a_person_in_a_million_draws(name):
    assert not attack_of_draws(name, 3)


@pytest.mark.parametrize("name", ["count", "mean"])
def test_noise_of_two_thirds_is_caught(name, monkeypatch):
    original = noise_sampler
    monkeypatch.setattr(ManyDraws, "draws", 20_000)
    monkeypatch.setitem(
        globals(), "noise_sampler", lambda lattice, epsilon, size: original(lattice, 1.5 * epsilon, size)
    )
    assert attack_of_draws(name, 3)


def test_noise_for_one_row_of_a_person_is_caught(monkeypatch):
    original = SumLattice.for_sums
    monkeypatch.setattr(ManyDraws, "draws", 20_000)
    monkeypatch.setattr(SumLattice, "for_sums", staticmethod(lambda rows, *a, **o: original(1, *a, **o)))
    assert attack_of_draws("count", 3)


# Keys that are found, which cost a delta, and private bounds: whole steps of a release.

KEYS_EPSILON = 0.5
CROWDED = ("A", "B", "D")  # keys that so many persons have that about half of all releases have them
OWN_KEYS = ("mine", np.inf, 1e300, "-0.0", np.nan, None)  # that only the attacker's person has
ATTACKS_OF_KEYS = {"crowded": (CROWDED, 3, 2e-3), "own": (OWN_KEYS, 3, 2e-3), "one own": (OWN_KEYS, 1, 0.01)}
ATTACKS_OF_BOUNDS = {"crowded": (1e9, 1e9, 1e9), "own": (1e300, np.inf, 1e9, np.nan, None, "x")}


class ReadOnce(ReleaseInProgress):
    """A run that reads its data once, and draws the noise of keys many times in one call."""

    draws = 1_000_000

    def person_counts_by_key(self, name):
        self._keys = getattr(self, "_keys", None) or super().person_counts_by_key(name)
        return self._keys

    def sums(self, names, shape, weighted_rows):
        if not hasattr(self, "_sums"):
            self._sums = super().sums(names, shape, weighted_rows)
        return self._sums

    def add_noise(self, sums, lattice, epsilon, label):
        if not hasattr(self, "_values"):
            sampler, rounded = noise_sampler(lattice, epsilon, sums.size), lattice.rounded(sums).astype(float)
            size = min(self.draws, 10_000)
            copies = np.broadcast_to(rounded.reshape(-1), (size, rounded.size)).copy()
            keys = (dpk.key_from_bytes(self.key(b"")) for _ in range(self.draws // size))
            self._values = (values for key in keys for values in np.asarray(dpk.perturb(copies, sampler, key=key)))
            self._of_noise = rounded.shape, lattice, sampler
            self.noise_records.append(NoiseRecord(label, epsilon))
        shape, *rest = self._of_noise
        return NoisySums(next(self._values).reshape(shape), *rest)

    def add_bounded_noise(self, counts, sampler, label):
        if not hasattr(self, "_noisy"):
            copies = np.broadcast_to(counts.astype(float), (self.draws, len(counts))).copy()
            self._noisy = iter(np.asarray(dpk.perturb(copies, sampler, key=dpk.key_from_bytes(self.key(b"")))))
        return next(self._noisy)


def neighbouring_runs(rows, cells, most):
    """Return runs for rows (person, cell), and for these with 1,000 rows of one person more, all different."""
    runs = []
    for seed, extra in enumerate(([], [(-1, cells[number % len(cells)]) for number in range(1000)])):
        persons, column = zip(*rows, *extra, strict=True)
        data = {"id": persons, "x": column, "n": range(len(column))}
        table = SessionTable.open({name: np.array(list(own), object) for name, own in data.items()})
        table.bound_rows("id", most, OTHER_SECRET)
        runs.append(ReadOnce(table, most, most, np.random.default_rng(seed).bytes(32)))
    return runs


def attack_of_keys(name):
    """Return whether some set of outcomes is surely too likely, where an outcome is a set of keys."""
    cells, most, delta = ATTACKS_OF_KEYS[name]
    crowd = int(statistic_module.key_count_sampler(KEYS_EPSILON, delta, most).certificate.highest)
    runs = neighbouring_runs([(person, key) for key in CROWDED for person in range(crowd)], cells, most)
    by_key = Count(by={"x": "found"})
    outcomes = [
        str(statistic_module.find_keys(by_key, run, KEYS_EPSILON, delta)) for run in runs for _ in range(run.draws)
    ]
    return is_unlikely(outcomes, KEYS_EPSILON, delta)


def is_unlikely(outcomes, epsilon, delta=0.0):
    """Return whether a set of outcomes, whose first half is of one table and the second half of another, is unlikely.

    It is learned from half of the draws, as the outcomes that are e^epsilon times as frequent, and tested on the
    others: one test each way, with Clopper-Pearson bounds on both frequencies.
    """
    halves = np.unique(outcomes, return_inverse=True)[1].reshape(4, -1)
    count, size = halves.shape[1], halves.max() + 1
    a_learned, a, b_learned, b = (np.bincount(half, minlength=size) for half in halves)
    for learned, others_learned, own, others in ((a_learned, b_learned, a, b), (b_learned, a_learned, b, a)):
        event = learned > np.exp(epsilon) * others_learned
        low, high = frequency_bounds(own[event].sum(), others[event].sum(), count, FALSE_ALARM / 4)
        if low > np.exp(epsilon) * high + delta:
            return True
    return False


def attack_of_bounds(name, most):
    """The same of private bounds: 99 persons have 2, and so many 1e9 that its count is nearly large."""
    lattice = bounds.bounds_lattice(most, EPSILON)
    crowd = int(lattice.sensitivity / EPSILON * np.log(bounds.EXPONENTS / (2 * bounds._RISK)))
    rows = [(person, 2.0 if person < 99 else 1e9) for person in range(99 + crowd)]
    runs = neighbouring_runs(rows, ATTACKS_OF_BOUNDS[name], most)
    outcomes = [str(bounds.private_bounds("x", run, EPSILON, "mean")) for run in runs for _ in range(run.draws)]
    return is_unlikely(outcomes, EPSILON)


@pytest.mark.parametrize("name", ATTACKS_OF_KEYS)
def test_the_attackers_person_has_the_keys_of_its_attack(name):
    cells, most, _ = ATTACKS_OF_KEYS[name]
    table = neighbouring_runs([(0, "A")], cells, most)[1].table
    keys = table.source.data["x"][table.counted & (table.persons == table.persons[-1])].tolist()
    assert len({str(key) for key in keys if key == key and key is not None}) == most


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS_OF_KEYS)
def test_no_set_of_keys_tells_of_a_person_in_a_million_draws(name):
    assert not attack_of_keys(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS_OF_BOUNDS)
def test_no_private_bounds_tell_of_a_person_in_a_million_draws(name):
    assert not attack_of_bounds(name, 3)


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(ReadOnce, "draws", 30_000)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ATTACKS_OF_KEYS)
def test_no_set_of_keys_tells_of_a_person(name, few_draws):
    assert not attack_of_keys(name)


@pytest.mark.lengthy
@pytest.mark.parametrize("fault", ["noise of two thirds", "noise for one key of three"])
def test_noise_of_keys_that_is_too_narrow_is_caught(fault, few_draws, monkeypatch):
    original = statistic_module.key_count_sampler
    faults = {
        "noise of two thirds": lambda epsilon, delta, groups: original(1.5 * epsilon, delta, groups),
        "noise for one key of three": lambda epsilon, delta, groups: original(epsilon, delta, 1),
    }
    monkeypatch.setattr(statistic_module, "key_count_sampler", faults[fault])
    assert attack_of_keys("crowded")


@pytest.mark.lengthy
def test_a_threshold_of_keys_that_is_one_too_low_is_caught(few_draws, monkeypatch):
    original = ReadOnce.add_bounded_noise
    monkeypatch.setattr(ReadOnce, "add_bounded_noise", lambda *arguments: original(*arguments) + 1)
    assert attack_of_keys("one own")


@pytest.mark.lengthy
@pytest.mark.parametrize("is_faulty", [False, True])
def test_private_bounds_tell_of_a_person_only_if_noise_is_for_one_row_of_three(is_faulty, monkeypatch):
    original = bounds.bounds_lattice
    monkeypatch.setattr(ReadOnce, "draws", 10_000)
    if is_faulty:
        monkeypatch.setattr(bounds, "bounds_lattice", lambda rows, epsilon: original(1, epsilon))
    assert attack_of_bounds("crowded", 3) == is_faulty
