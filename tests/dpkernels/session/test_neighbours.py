"""One person more or less moves what gets noise by at most the stated sensitivity: exactly, on many random tables.

Nothing is drawn here. Of two neighbouring tables the integers that would get noise are compared, and the scores of
every possible choice. Choices are the same for both tables.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from dpkernels.decimals import rational
from dpkernels.session import (
    Count,
    Crosstab,
    Histogram,
    Mean,
    Quantiles,
    Regression,
    Sum,
    Top,
    Variance,
    cells,
    quantiles,
    sums,
)
from dpkernels.session.run import NoiseRecord, ReleaseInProgress
from dpkernels.session.tables import SessionTable

SECRET = bytes(range(32))
BY = {"plan": ["A", "B", "C"]}
STATISTICS = [
    Count(),
    Count(by=BY),
    Crosstab(by={"plan": ["A", "B"], "ward": [1, 2, 3]}),
    Histogram("age", (0, 20, 50, 90), by=BY),
    Sum("age", 0, 90),
    Sum("age", -30, 20, by=BY),
    Mean("age", 0, 90),
    Mean("age", 10, 33.7, by=BY),
    Variance("age", 0, 90),
    Variance("age", 0, 90, by=BY),
    Regression("income", "age", y_bounds=(0, 1e5), x_bounds=(0, 90), by=BY),
    Quantiles("age", 0, 90, 0.5),
    Quantiles("age", 0, 90, (0.1, 0.35, 0.5, 0.9), step=1, by=BY),
    Top("plan", 2, ["A", "B", "C", "D"]),
    Top("plan", 1, ["A", "B", "C", "D"]),
    Count(by={"plan": "found"}),
    Mean("age", bounds="private", by=BY),
]
every_statistic = pytest.mark.parametrize(
    "statistic", STATISTICS, ids=lambda each: f"{each.title} {getattr(each, 'k', '')}".strip().replace(" ", "-")
)
ODD = [np.nan, np.inf, -np.inf, 1e300, -1e300, "x", None, 12.5, "31", 0, True]


SAMPLER = sums.noise_sampler(sums.SumLattice(0, 0, 1), 1.0, 1)


class Recorder(ReleaseInProgress):
    """A run that draws nothing: it keeps what would get noise, and makes the choices of ``script``, or the first."""

    def __init__(self, table, rows, groups, script=None):
        super().__init__(table, rows, groups, SECRET)
        self.kept, self.script = [], script

    def add_noise(self, sums_, lattice, epsilon, label):
        self.kept.append(("noise", lattice.rounded(sums_), lattice))
        self.noise_records.append(NoiseRecord(label, epsilon))
        return sums.NoisySums(np.zeros(sums_.shape), lattice, SAMPLER)

    def person_counts_by_key(self, name):
        keys, counts = super().person_counts_by_key(name)
        self.kept.append(("keys", dict(zip(keys, counts.tolist(), strict=True))))
        return ["A", 7], np.full(2, 1000)

    def choose_top(self, counts, epsilon, k, label):
        self.kept.append(("top", counts.copy()))
        return np.arange(k)

    def choose_item(self, scores, lengths, epsilon):
        """Choose the point that the script has, or one that follows from the number of choices before."""
        points, probability = int(lengths.sum()), self.probability
        self.kept.append(("choice", self.members, probability, points, epsilon))
        point = hash((len(self.kept), points)) % points
        ends = np.cumsum(lengths)
        stretch = int(np.searchsorted(ends, point, side="right"))
        return stretch, point - int(ends[stretch] - lengths[stretch])


@pytest.fixture(autouse=True)
def scores_are_kept(monkeypatch):
    """What a choice is made of: the rows and the probability. No tables of noise are made."""
    monkeypatch.setattr("dpkernels.session.statistic.noise_sampler", lambda *_: SAMPLER)
    original = quantiles.quantile_scores

    def keeping(counts, probability, points):
        Recorder.members, Recorder.probability = np.repeat(counts.values, counts.counts), probability
        return original(counts, probability, points)

    monkeypatch.setattr(quantiles, "quantile_scores", keeping)


def random_rows(rng, persons, most):
    """Rows by person: some have one, and some have many."""
    rows = []
    for person in range(persons):
        for _ in range(rng.choice([1, 1, 2, most])):
            age = ODD[rng.integers(len(ODD))] if rng.random() < 0.3 else float(rng.integers(-20, 120))
            income = ODD[rng.integers(len(ODD))] if rng.random() < 0.2 else float(rng.exponential(4e4))
            plan = rng.choice(["A", "B", "C", "D", "E"]) if rng.random() < 0.9 else None
            rows.append((person, age, income, plan, int(rng.integers(0, 4))))
    return rows


def make_table(rows, person, most):
    columns = list(zip(*rows, strict=True)) or [()] * 5
    names = ("id", "age", "income", "plan", "ward")
    table = SessionTable.open({name: np.array(column, object) for name, column in zip(names, columns, strict=True)})
    if person:
        table.bound_rows("id", most, SECRET)
    return table


def recorded(statistic, rows, person, most, groups, epsilon):
    recorder = Recorder(make_table(rows, person, most), most if person else 1, groups if person else 1)
    statistic.release(recorder, epsilon, 1e-5)
    return recorder.kept


def scores_of(places, share, points):
    """The scores of the first and the last place of every stretch of both tables."""
    p, d = share.numerator, share.denominator
    return lambda y: (
        -max(0, p * len(places) - d * int((places <= y).sum()), d * int((places < y).sum()) - p * len(places))
    )


def check_neighbours(one, other, most, groups):
    """Raise an AssertionError if what was kept of two tables is farther apart than the noise covers."""
    assert len(one) == len(other)
    for (kind, *a), (_, *b) in zip(one, other, strict=True):
        if kind == "noise":
            assert a[1] == b[1], "the lattice must not depend on the data"
            assert np.abs(a[0] - b[0]).sum() <= a[1].sensitivity
        elif kind == "keys":
            moved = [abs(a[0].get(key, 0) - b[0].get(key, 0)) for key in a[0].keys() | b[0].keys()]
            assert max(moved, default=0) <= 1
            assert sum(moved) <= groups
        elif kind == "top":
            change = a[0] - b[0]
            assert np.abs(change).max() <= 1
            assert (change >= 0).all() or (change <= 0).all()
        else:
            (places, share, points, epsilon), (others, *rest) = a, b
            assert rest == [share, points, epsilon]
            compared_points = sorted(
                {0, points - 1, *places.tolist(), *others.tolist(), *(places + 1).tolist(), *(others + 1).tolist()}
            )
            first, second = scores_of(places, share, points), scores_of(others, share, points)
            moved = max(abs(first(y) - second(y)) for y in compared_points if y < points)
            yield 2 * epsilon * moved
    yield 0


def attack(statistic, seed, persons=7, tables_=1):
    """Return the largest share of epsilon that the choices use; noise is checked on the way."""
    rng = np.random.default_rng(seed)
    worst = Fraction(0)
    for _ in range(tables_):
        most, person = int(rng.integers(1, 5)), bool(rng.random() < 0.75)
        groups = int(rng.integers(1, most + 1))
        epsilon = float(rng.choice([0.05, 0.3, 1.0, 4.0][statistic.finds_keys :]))
        rows = random_rows(rng, int(rng.integers(0, persons)), 6)
        rng.shuffle(rows)
        rows = [tuple(row) for row in rows]
        if person:
            extra = [(99, *row[1:]) for row in random_rows(rng, 1, 1000 if rng.random() < 0.05 else 9)]
        else:
            extra = random_rows(rng, 1, 1)[:1]
        more = rows + extra
        order = rng.permutation(len(more))
        kept = [recorded(statistic, each, person, most, groups, epsilon) for each in (rows, [more[i] for i in order])]
        spent = sum(check_neighbours(*kept, most, groups))
        worst = max(worst, Fraction(spent) / rational(epsilon))
    return worst


@every_statistic
def test_a_person_moves_what_gets_noise_by_its_sensitivity(statistic):
    assert attack(statistic, seed=1, tables_=25) <= 1


@pytest.mark.thorough
@every_statistic
def test_a_person_moves_it_so_on_many_tables(statistic):
    assert attack(statistic, seed=2, tables_=400) <= 1


@every_statistic
def test_another_order_of_rows_gives_the_same_integers(statistic):
    rng = np.random.default_rng(4)
    rows = [tuple(row) for row in random_rows(rng, 20, 8)]
    one, other = (
        recorded(statistic, [rows[i] for i in order], True, 2, 2, 0.5)
        for order in (range(len(rows)), rng.permutation(len(rows)))
    )
    for (kind, a, *_), (_, b, *_) in zip(one, other, strict=True):
        assert a == b if kind == "keys" else np.array_equal(a, b)


def test_choices_at_one_level_have_one_levels_budget():
    """The choices below one another add up: of 3 quantiles, a person is in 2 of the 3 choices."""
    kept = recorded(
        Quantiles("age", 0, 90, (0.2, 0.5, 0.7), interval_share=0),
        random_rows(np.random.default_rng(1), 9, 3),
        True,
        3,
        3,
        1.0,
    )
    bounds = [2 * part[4] * 3 * max(part[2].numerator, part[2].denominator - part[2].numerator) for part in kept]
    assert bounds == [Fraction(1, 2)] * 3


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_a_person_counts_for_so_many_keys_that_are_found(groups):
    """Of a person with 9 rows, which have 6 keys; and of one without any."""
    rows = [(1, 30.0, 1.0, plan, 1) for plan in "ABCDEFABC"] + [(2, 30.0, 1.0, None, 1)]
    keys, counts = ReleaseInProgress(make_table(rows, True, 9), 9, groups, SECRET).person_counts_by_key("plan")
    assert sorted(keys) == list("ABCDEF")
    assert sorted(counts) == [0] * (6 - groups) + [1] * groups


@pytest.mark.parametrize("k", [1, 2])
def test_the_counts_of_top_candidates_have_noise_for_all_of_a_persons(k):
    """Also where they are chosen first, since persons have more than 2 k rows."""
    rows, statistic = [(1, 30.0, 1.0, plan, 1) for plan in "ABCDE"], Top("plan", k, ["A", "B", "C"])
    for most in (2, 5):
        kept = [recorded(statistic, each, True, most, 1, 1.0) for each in ([], rows)]
        assert list(check_neighbours(*kept, most, 1)) == [0]


# Planted faults, each of which the comparison must find.


def test_values_that_are_not_clipped_are_caught(monkeypatch):
    def unclipped(self, block, codes):
        values = np.nan_to_num(cells.numbers(block["age"]), posinf=1e6, neginf=-1e6)
        return codes, [np.rint(np.clip(values / 90, -1e6, 1e6) * 2.0**32)]

    monkeypatch.setattr(Sum, "weighted_rows", unclipped)
    with pytest.raises(AssertionError):
        attack(Sum("age", 0, 90), seed=1, tables_=40)


def test_a_person_with_many_rows_who_is_not_bounded_is_caught(monkeypatch):
    def unbounded(table, person, rows, secret):
        original(table, person, 1 << 20, secret)

    original = SessionTable.bound_rows
    monkeypatch.setattr(SessionTable, "bound_rows", unbounded)
    for statistic in (Count(), Mean("age", 0, 90), Count(by=BY)):
        with pytest.raises(AssertionError):
            attack(statistic, seed=1, tables_=40)


def test_rows_that_are_chosen_by_their_place_are_caught(monkeypatch):
    """A person's rows would then depend on the rows of others before them."""
    monkeypatch.setattr(
        cells, "cell_hashes", lambda array, secret: np.arange(len(array), dtype=np.uint64) % np.uint64(7)
    )
    with pytest.raises(AssertionError):
        attack(Sum("age", -30, 20), seed=1, tables_=100)


def test_a_person_in_several_groups_who_is_counted_once_is_caught(monkeypatch):
    original = sums.SumLattice.for_sums

    def one_group(rows, epsilon, groups, weights, *, counts):
        return original(1, epsilon, groups, weights, counts=counts)

    monkeypatch.setattr(sums.SumLattice, "for_sums", staticmethod(one_group))
    with pytest.raises(AssertionError):
        attack(Count(by=BY), seed=1, tables_=40)


def test_keys_of_a_person_that_are_not_bounded_are_caught(monkeypatch):
    original = ReleaseInProgress._count_persons
    monkeypatch.setattr(
        ReleaseInProgress,
        "_count_persons",
        lambda self, name, read, most, stated: original(self, name, read, 99, stated),
    )
    with pytest.raises(AssertionError):
        attack(Count(by={"plan": "found"}), seed=1, tables_=60)


def test_weights_that_are_rounded_one_by_one_are_caught(monkeypatch):
    """Three weights rounded to a coarse lattice move it by more than a row's share; the sensitivity includes that."""
    original = sums.SumLattice.for_sums

    def without(rows, epsilon, groups, weights, *, counts):
        lattice = original(rows, epsilon, groups, weights, counts=counts)
        return dataclasses.replace(lattice, sensitivity=rows << -lattice.log2) if lattice.log2 < 0 else lattice

    monkeypatch.setattr(sums.SumLattice, "for_sums", staticmethod(without))
    with pytest.raises(AssertionError):
        attack(Regression("income", "age", y_bounds=(0, 1e5), x_bounds=(0, 90)), seed=1, tables_=60)


@pytest.mark.lengthy
def test_a_quantile_that_charges_one_level_is_caught(monkeypatch):
    original = quantiles._quantile
    monkeypatch.setattr(
        quantiles,
        "_quantile",
        lambda places, share, points, epsilon, own_run: original(places, share, points, 3 * epsilon, own_run),
    )
    worst = attack(Quantiles("age", 0, 90, (0.2, 0.5, 0.7), interval_share=0), seed=5, tables_=150)
    assert worst > 1


@pytest.mark.lengthy
def test_the_budget_of_quantiles_is_not_exceeded():
    for p, tables_ in ((0.5, 100), (0.9, 50), ((0.2, 0.5, 0.7), 150)):
        assert attack(Quantiles("age", 0, 90, p, interval_share=0), seed=5, tables_=tables_) <= 1


def test_partitions_are_whole():
    """Weights of a row are integers of at least 0 with the sum 2^32, whatever floats they come from."""
    t = np.random.default_rng(1).uniform(0, 1, 10_000)
    t[:4] = 0, 1, 2.0**-40, 1 - 2.0**-40
    for weights in ((t, 1 - t), ((1 - t) ** 2, 2 * t * (1 - t), t**2), (t / 2, t / 2, 1 - t), (t * 1.1, 1 - t)):
        whole = np.array(sums.integer_weights(weights))
        assert ((whole >= 0) & (whole == np.rint(whole))).all()
        assert (whole.sum(0) == sums.UNIT).all()


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("epsilon", [0.001, 0.1, 20.0])
@pytest.mark.parametrize("weights", [1, 2, 3, 6])
def test_rounding_adds_what_the_lattice_says(rows, epsilon, weights):
    """Of the worst person that random search finds: with every group and with few weights that are not 0."""
    rng = np.random.default_rng(rows + weights)
    for counts in (True, False) if weights == 1 else (False,):
        lattice = sums.SumLattice.for_sums(rows, epsilon, 4, weights, counts=counts)
        for _ in range(40):
            base = rng.integers(0, 1 << 40, (4, weights)) if not counts else rng.integers(0, 1 << 20, (4, 1))
            codes = rng.integers(0, rng.integers(1, 5), rows)
            unit = 1 if counts else sums.UNIT
            if weights == 1:
                signs = rng.choice([1, -1]) if not counts else 1
                contributions = np.full((rows, 1), unit) * signs
            else:
                contributions = np.array(sums.integer_weights(rng.dirichlet(np.full(weights, 0.1), rows).T), np.int64).T
            after = base.copy()
            np.add.at(after, codes, contributions)
            assert np.abs(lattice.rounded(after) - lattice.rounded(base)).sum() <= lattice.sensitivity
