"""Lower bounds of tables' sums by a spread: exact enumeration, planted faults, and how close they are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from accountants import discrete_pair, guarantee
from accountants.composition.brackets import table_sums
from accountants.composition.brackets.monotone import split_monotone
from accountants.composition.brackets.table_sums import LossTable, lower_sum, upper_sum

BITS = 40
EVERYWHERE = (-math.inf, math.inf)


def weights_of(rng, size, kind):
    """Return integer weights of two tables, of one total: of any ratios, or of nearly two ratios only."""
    if kind == "any":
        columns = rng.dirichlet(np.ones(size), 2)
    else:  # Most outcomes have one of two losses, but for roundings, and some any other one.
        first = rng.dirichlet(np.ones(size))
        ratio = np.exp(rng.choice([-0.3, 0.3], size) + (rng.random(size) < 0.2) * rng.normal(0, 0.1, size))
        columns = first, first * ratio / (first * ratio).sum()
    rows = []
    for column in columns:
        row = [max(int(weight), 1) for weight in np.asarray(column) * 2.0**BITS]
        row[int(np.argmax(row))] += (1 << BITS) - sum(row)
        rows.append(row)
    return rows


def exact_delta(tables, epsilon):
    """Return delta of one release of each table, given as integer weights, as a fraction."""
    with mpmath.workdps(60):
        growth = Fraction(str(mpmath.exp(mpmath.mpf(epsilon))))
    joint = [(1, 1)]
    for p, q in tables:
        joint = [(a * one, b * other) for a, b in joint for one, other in zip(p, q, strict=True)]
    num, den = growth.numerator, growth.denominator
    return Fraction(sum(max(a * den - b * num, 0) for a, b in joint), den << (BITS * len(tables)))


def table_of(p, q, count):
    pair = discrete_pair(np.array(p) / 2.0**BITS, np.array(q) / 2.0**BITS)
    return LossTable.from_losses(split_monotone(pair.privacy_loss()), count, EVERYWHERE)


def cases(number, seed, kinds=("any", "two ratios")):
    rng = np.random.default_rng(seed)
    for case in range(number):
        count = int(rng.integers(1, 4))
        size = int(rng.integers(2, {1: 40, 2: 25, 3: 9}[count]))
        rows = weights_of(rng, size, kinds[case % len(kinds)])
        loss = np.log(np.divide(*map(np.array, rows)))
        # An eps of any size, or next to a sum of losses.
        epsilon = float(rng.uniform(0, 0.8 * count * loss.max()))
        if rng.random() < 0.5:
            epsilon = max(float(rng.choice(loss, count).sum()) * (1 - 10.0 ** -rng.integers(3, 14)), 0.0)
        step, tilt = float(np.exp(rng.uniform(-9, 0))), float(rng.exponential(10))
        yield rows, count, epsilon, step, tilt


def violations(number, seed=0, sides=(-1, 1), **others):
    """Return in how many cases the lower bound is above the exact delta, or the upper one below it."""
    wrong = 0
    for (p, q), count, epsilon, step, tilt in cases(number, seed, **others):
        exact, table = exact_delta([(p, q)] * count, epsilon), table_of(p, q, count)
        if -1 in sides:
            wrong += Fraction(lower_sum([table], step, tilt).delta(epsilon, -1)) > exact
        if 1 in sides:  # The grid goes through an eps next to it, or far from it.
            place = epsilon * (1 + (0.0, 1e-9, 0.3)[int(1e6 * step) % 3])
            wrong += Fraction(upper_sum(table, step, tilt, place).delta(epsilon, 1)) < exact
    return wrong


def test_bounds_hold_the_enumeration():
    assert violations(120) == 0


@pytest.mark.thorough
def test_bounds_hold_many_enumerations():
    assert violations(4000, seed=1) == 0


def test_two_tables_of_one_sum():
    rng = np.random.default_rng(3)
    for _ in range(20):
        first, second = weights_of(rng, 9, "any"), weights_of(rng, 7, "two ratios")
        epsilon, step = float(rng.uniform(0, 2)), float(np.exp(rng.uniform(-9, -1)))
        low = lower_sum([table_of(*first, 2), table_of(*second, 1)], step, 3.0).delta(epsilon, -1)
        assert Fraction(low) <= exact_delta([first, first, second], epsilon)


def test_lower_bounds_are_close():
    """What a spread adds falls with the square of the step. Where few losses are off the grid it hardly matters."""
    for kind, most in (("any", (1e-5, 1e-6)), ("two ratios", (1e-11, 1e-11))):
        p, q = weights_of(np.random.default_rng(5), 60, kind)
        exact = float(exact_delta([(p, q)] * 2, 0.4))
        gaps = [1 - lower_sum([table_of(p, q, 2)], step, 1.0).delta(0.4, -1) / exact for step in (4e-3, 1e-3)]
        assert all(0 <= gap < limit for gap, limit in zip(gaps, most, strict=True))


@pytest.mark.parametrize(
    "fault",
    ["no bump", "a narrow bump", "a short reach", "all on the grid", "raised losses", "lost mean", "groups above"],
)
def test_planted_faults_are_seen(monkeypatch, fault):
    sides = (-1,)
    if fault in ("no bump", "a narrow bump", "a short reach"):
        mean_of_bump = table_sums._mean_of_bump
        narrower = {"no bump": (0.0, 1.0), "a narrow bump": (0.05, 1.0), "a short reach": (1.0, 0.0)}[fault]

        def changed(total, epsilon, deviation, reach, side):
            return mean_of_bump(total, epsilon, deviation * narrower[0], reach * narrower[1], side)

        monkeypatch.setattr(table_sums, "_mean_of_bump", changed)
    elif fault == "all on the grid":
        masses = LossTable.masses

        def all_on_grid(*arguments):
            every, _ = masses(*arguments)
            return every, replace(every, mass=every.mass * (1 - 1e-9))

        monkeypatch.setattr(LossTable, "masses", all_on_grid)
    elif fault == "raised losses":
        monkeypatch.setattr(table_sums, "LOSS_UNITS", -table_sums.LOSS_UNITS)
        monkeypatch.setattr(table_sums, "_MASS_ERROR", 0.0)
        sides = (-1, 1)
        assert violations(80, sides=(1,)) > 0
    elif fault == "groups above":  # They lower delta.
        table = LossTable.masses

        def grouped(self, offset, step, side):
            p, loss = self.gathered(offset, 32 * step)
            return table(replace(self, p=p, loss=loss), offset, step, side)

        monkeypatch.setattr(LossTable, "masses", grouped)
        sides = (1,)
    else:  # Groups get the loss of one of their members.
        monkeypatch.setattr(np, "log1p", lambda x: 0 * x)
        monkeypatch.setattr(table_sums, "_BINS", 1)
    assert violations(80, sides=sides) > 0


@pytest.mark.parametrize("kind", ["any", "two ratios"])
def test_brackets_of_tables_hold_the_enumeration_and_are_narrow(kind):
    rng = np.random.default_rng(11)
    for _ in range(3):
        p, q = weights_of(rng, 150, kind)
        pair = discrete_pair(np.array(p) / 2.0**BITS, np.array(q) / 2.0**BITS)
        epsilon = float(rng.uniform(0.3, 0.9))
        exact = max(exact_delta([one] * 2, epsilon) for one in ((p, q), (q, p)))
        low, high = guarantee(pair).repeat(2).bracket(epsilon=epsilon)
        assert Fraction(low) <= exact <= Fraction(high)
        assert high <= low * (1 + 1e-4)
        least, most = guarantee(pair).repeat(2).bracket(delta=float(exact))
        assert least <= epsilon <= most <= least * (1 + 1e-4)


def test_a_spread_has_no_upper_bound():
    p, q = weights_of(np.random.default_rng(0), 5, "any")
    with pytest.raises(ValueError, match="side"):
        lower_sum([table_of(p, q, 2)], 1e-3, 1.0).delta(0.1, 1)


def test_losses_beyond_the_reach_are_left_out_below_and_infinite_above():
    p, q = weights_of(np.random.default_rng(2), 12, "any")
    losses = split_monotone(discrete_pair(np.array(p) / 2.0**BITS, np.array(q) / 2.0**BITS).privacy_loss())
    exact = float(exact_delta([(p, q)] * 2, 0.3))
    some, every, none = (LossTable.from_losses(losses, 2, reach) for reach in ((-0.5, 0.5), EVERYWHERE, (50.0, 60.0)))
    assert some.mass_below > 0 < some.mass_above
    low = [lower_sum([table], 1e-3, 3.0).delta(0.3, -1) for table in (none, some, every)]
    assert 0 == low[0] < low[1] < low[2] <= exact
    high = [upper_sum(table, 1e-3, 3.0, 0.3).delta(0.3, 1) for table in (some, every)]
    assert exact <= high[1] < high[0]
    assert high[0] > 1 - (1 - some.mass_above) ** 2


def test_infinite_losses_count():
    p = np.array([1, 3, 4, 0]) / 8
    q = np.array([0, 4, 3, 1]) / 8
    table = LossTable.from_losses(split_monotone(discrete_pair(p, q).privacy_loss()), 2, EVERYWHERE)
    exact = sum(max(p[i] * p[j] - math.exp(0.2) * q[i] * q[j], 0) for i, j in itertools.product(range(4), repeat=2))
    low, high = lower_sum([table], 1e-4, 3.0).delta(0.2, -1), upper_sum(table, 1e-4, 3.0, 0.2).delta(0.2, 1)
    assert exact * (1 - 1e-6) < low <= exact <= high < exact * (1 + 1e-6)


def test_pure_noise_that_meets_its_eps_has_almost_no_delta():
    """Losses in a narrow range below eps/n: a grid through one of them would raise others above eps/n."""
    rng = np.random.default_rng(4)
    loss, mass = 0.2 - 4e-8 * rng.random(60), rng.dirichlet(np.ones(60))
    high, low = mass / (1 + np.exp(-loss)), mass / (1 + np.exp(loss))
    pair = discrete_pair(np.append(high, low), np.append(low, high))
    epsilon = 5 * float(loss.max()) * (1 + 1e-12)
    low, high = guarantee(pair).repeat(5).bracket(epsilon=epsilon)
    assert low <= high < 1e-13
