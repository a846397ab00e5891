"""Shuffled reports at the ends: many pairs of rows, rounded rows, large eps, NaN, and what must not be composed."""

import math
from itertools import pairwise, permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk
from accountants import guarantee, shuffled, tune
from accountants.composition.brackets.sums import ComposedBounds
from accountants.shuffle import bracket, estimate
from accountants.shuffle.blanket import OutcomeProbabilities, worst_inputs


def revealed(rows, n, eps):
    """What some n reports reveal at least, of the worst pair of rows, all others holding the second."""
    least = rows.min(0)
    pairs = [OutcomeProbabilities(least, rows[x], rows[y], rows[[y]]) for x, y in permutations(range(len(rows)), 2)]
    return max(bracket.lower_delta(blanket, n, eps) for pair in pairs for blanket in pair.lower)


def table(seed, shape, level=1.5):
    rows = np.exp(level * np.random.default_rng(seed).uniform(-1, 1, shape))
    return rows / rows.sum(1, keepdims=True)


@pytest.mark.thorough
def test_no_pair_of_a_small_table_is_forgotten():
    """The pair (2, 1), which is not among those that are worst for most eps and t, is the worst at this eps."""
    rows = np.array([[100.0, 20, 2, 50], [50, 1, 1, 50], [5, 5, 1, 2]])
    rows /= rows.sum(1, keepdims=True)
    reports, eps = shuffled(rows, 100), 0.7185746
    assert revealed(rows, 100, eps) == pytest.approx(3.41e-3, rel=2e-3)
    assert reports.delta(eps) >= revealed(rows, 100, eps)
    assert reports.epsilon(3.4e-3) >= eps
    assert reports.bracket(epsilon=eps)[1] >= reports.delta(eps) * (1 - 1e-6)


@pytest.mark.lengthy
@pytest.mark.quick("2-shape1-50")
@pytest.mark.parametrize(("seed", "shape", "n"), [(1, (4, 3), 30), (2, (5, 4), 50), (3, (3, 6), 9)])
def test_values_hold_what_every_pair_reveals(seed, shape, n):
    """Tables of few and of many different pairs; of the latter the bracket's upper end is what is returned."""
    rows, eps = table(seed, shape), 0.3
    reports = shuffled(rows, n)
    assert reports.delta(eps) >= revealed(rows, n, eps) * (1 - 1e-9)
    if reports.inputs.stop_loss is not None:
        assert reports.delta(eps) == reports.bracket(epsilon=eps)[1]


def test_both_kinds_of_table_are_tried():
    kinds = {worst_inputs(table(*case)).stop_loss is None for case in [(1, (4, 3)), (2, (5, 4)), (3, (3, 6))]}
    assert kinds == {True, False}


def test_rows_that_add_up_nearly_are_made_to():
    """Off by 4.5e-10, which alone would be delta at eps 0 of reports that reveal less."""
    rows = table(4, (2, 3), level=1e-6)
    reports = shuffled(rows * np.array([[1 + 4.5e-10], [1 - 4.5e-10]]), 2)
    low, high = reports.bracket(epsilon=0.0)
    assert low <= high
    assert reports.delta(0.0) <= high * (1 + 1e-6)
    assert reports.delta(0.0) == pytest.approx(shuffled(rows, 2).delta(0.0), rel=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("epsilon", [2.0000001, 30.0, 800.0, 1e300])
def test_beyond_the_pure_level_delta_is_zero(epsilon):
    reports = shuffled(dpk.exact_sampler(dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0)), 50)
    assert reports.delta(epsilon) == 0.0
    assert reports.bracket(epsilon=epsilon) == (0.0, 0.0)
    assert reports.upper_bound(epsilon) == 0.0
    rows = shuffled(table(2, (5, 4)), 50)
    assert rows.delta(epsilon + 4) == 0.0
    assert rows.bracket(epsilon=epsilon + 4) == (0.0, 0.0)


@pytest.mark.lengthy
@pytest.mark.quick("0.5-100")
@pytest.mark.parametrize(("level", "n"), [(1.0, 1000), (0.5, 100), (2.0, 10**6)])
def test_delta_falls_all_the_way_to_the_level(level, n):
    high = math.exp(level) / (1 + math.exp(level))
    reports = shuffled(np.array([[high, 1 - high], [1 - high, high]]), n)
    shares = [0.1, 1e-2, *10.0 ** -np.arange(3.0, 16.0)]
    deltas = [reports.delta(reports.inputs.pure_epsilon * (1 - share)) for share in shares]
    assert all(later <= delta * (1 + 1e-6) + 1e-309 for delta, later in pairwise(deltas))


def test_nan_is_no_guarantee():
    """A NaN parameter, count or eps under JAX is a NaN value, never delta 0."""
    with jax.enable_x64(True):
        mechanism = dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0)

        def delta(eps, n, level):
            family = tune.piecewise(epsilon=level, lower=0.0, upper=1.0)
            return shuffled(family.build({"eta": jnp.float64(3.0)}), n).delta(eps)

        both = jax.jit(delta)
        good = (jnp.float64(0.1), jnp.float64(1000.0), jnp.float64(2.0))
        assert 0 < both(*good) < 1
        for i in range(3):
            assert math.isnan(both(*(jnp.float64(jnp.nan) if i == j else one for j, one in enumerate(good))))
        one = jax.jit(lambda delta: shuffled(mechanism, jnp.float64(1000.0)).epsilon(delta))
        assert math.isnan(one(jnp.float64(jnp.nan)))
    for call in (shuffled(mechanism, 1000).delta, shuffled(mechanism, 1000).epsilon):
        with pytest.raises(ValueError, match="nan"):
            call(math.nan)


@pytest.mark.thorough
def test_composed_rounds_refuse_neighbours_of_another_kind():
    """n records of which one is replaced: not the neighbours of added or removed records, and no sample of them."""
    reports = shuffled(dpk.exact_sampler(dpk.duchi(epsilon=1.0, lower=0.0, upper=1.0)), 500)
    alone = reports.guarantee()
    (term,) = alone.terms
    assert (term.sampling_rate, term.adjacency) == (1.0, "replace")
    with pytest.raises(ValueError, match="sampl"):
        alone.subsample(0.1)
    samples = guarantee(dpk.gaussian(sigma=5.0, sensitivity=1.0))
    with pytest.raises(ValueError, match="replace"):
        reports.compose(samples.subsample(0.1))
    assert reports.compose(samples.subsample(0.1, adjacency="replace")).delta(0.5) > 0


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("n", "places"),
    [(70_000_000, [0.1, 0.5437, 3.0]), pytest.param(2**21, [0.5, 4.0, 6.65, 9.0], marks=pytest.mark.thorough)],
)
def test_many_reports_that_are_rarely_informative(n, places, monkeypatch):
    """One report in 30,000 tells the inputs apart: the sum of the losses has rare values far below 0."""
    reports = shuffled(dpk.piecewise_wang2019(epsilon=13.3, lower=0.0, upper=1.0), n)
    blanket = reports._upper.blankets[0]
    monkeypatch.setattr(estimate, "_MAX_ENTRIES", 1 << 24)
    for eps in places:
        truth = estimate.enumerated_delta(blanket, n, eps)
        # The steps of the grid cost more where delta falls fast: 2.7 % at 1e-27.
        assert 0 < truth <= reports.delta(eps) <= truth * (1 + (1e-2 if truth > 1e-15 else 5e-2))
        assert reports.estimate_delta(eps) == pytest.approx(truth, rel=1e-12)
    for share in (0.9, 0.9999, 1 - 1e-9):  # No sum of losses is that large.
        assert 0 < reports.delta(13.3 * share) < 1e-300


@pytest.mark.lengthy
def test_epsilon_falls_with_the_number_of_reports():
    """Where the method changes from enumeration to the grid, and from it to the integral."""
    mechanism = dpk.hybrid(epsilon=13.3, lower=0.0, upper=1.0)
    every = [shuffled(mechanism, n) for n in (10_000_000, 70_000_000, 200_000_000)]
    assert {reports._upper.methods[0] for reports in every} == {"enumeration", "grid", "integral"}
    epsilon = [reports.estimate_epsilon(1e-6) for reports in every]
    assert all(more < fewer for fewer, more in pairwise(epsilon))
    assert every[1].epsilon(1e-6) == pytest.approx(epsilon[1], rel=1e-5)
    assert every[1].delta(epsilon[1]) == pytest.approx(1e-6, rel=1e-3)


def test_a_lower_bound_that_is_enough_is_as_good_as_the_best():
    """It reaches a target if and only if the bound does that is refined to the end."""
    reports = shuffled(dpk.randomised_response(epsilon=2.0, categories=5), 200)
    blanket = reports._lower.blankets[0]
    best = bracket.lower_delta(blanket, 200, 0.3)
    assert 0 < best <= reports.delta(0.3)
    for share in (0.5, 1 - 1e-4, 1.0, 1 + 1e-9, 1.001):
        enough = bracket.lower_delta(blanket, 200, 0.3, share * best)
        assert enough <= best
        assert (enough >= share * best) == (share <= 1)


@pytest.mark.parametrize("side", [-1, 1])
def test_trimmed_losses_are_on_their_side(side):
    """Against all sums of 6 reports, one by one, for losses that are trimmed at several places."""
    value, mass = np.array([-40.0, -9.0, -1.0, 2.0, 0.0]), np.array([0.05, 0.1, 0.25, 0.3, 0.3])
    loss = bracket.ReportLoss(value, mass, np.full(5, 1e-14))

    def positive_part(loss):
        ((total, count),) = bracket._split_reports(loss.sum(), 6)
        assert count == 1
        return np.maximum(total.value, 0.0) @ total.mass

    trimmed, untrimmed = (
        [positive_part(loss.trimmed(6, c, side)) for c in (0.1, 1.0, 3.0, 8.0, 40.0)],
        positive_part(loss),
    )
    assert all(side * (one - untrimmed) >= -1e-12 for one in trimmed)
    assert abs(trimmed[-1] - untrimmed) > 1e-3


@pytest.mark.parametrize("n", [9_999, 9_947])
def test_reports_that_are_left_over_enter_at_a_later_stage(n):
    """Sums of 64 reports are composed in stages, and the other 15, or 27, enter on a coarser grid."""
    reports = shuffled(np.array([[0.75, 0.25], [0.25, 0.75]]), n)
    for epsilon in (0.02, 0.06):
        truth = reports.estimate_delta(epsilon)  # By enumeration.
        low, high = reports.bracket(epsilon=epsilon)
        assert 0 < low <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= high <= truth * (1 + 1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_positive_parts_contain_every_error_that_is_stated(seed):
    """Of the tilted masses: the worst of a given 2-norm, and mass that may be anywhere."""
    random = np.random.default_rng(seed)
    loss, g, c, error, outside = np.linspace(-3, 5, 81), random.dirichlet(np.ones(81)), 0.8, 0.02, 0.03
    weight = np.where(loss > 0, loss * np.exp(-c * loss), 0.0)
    for off, missing in ((error, 0.0), (0.0, outside)):
        total = ComposedBounds(loss, g, c, 0.0, 0.0, off, missing)
        low, high = (bracket._positive_part(total, side) for side in (-1, 1))
        worst = off * np.linalg.norm(weight) + missing * weight.max()
        assert low <= weight @ g - worst < weight @ g + worst <= high
        assert high - low <= 2.1 * worst
