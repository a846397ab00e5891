"""Accounting of batches: per entry, composed for one person, and the largest of different people; and allocation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import tune
from accountants.batch_guarantee import BatchGuarantee, LargestGuarantee, joined_levels
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee

RANDOM = np.random.default_rng(3)
LENGTHS = np.exp(RANDOM.uniform(-1, 1, 40))


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "batch",
    [
        dpk.hybrid(epsilon=np.array([0.3, 1.0, 2.0]), lower=0.0, upper=1.0),
        dpk.laplace(epsilon=np.array([0.3, 1.0, 2.0]), sensitivity=np.array([1.0, 2.0, 3.0])),
        dpk.discrete_laplace(epsilon=np.array([0.5, 1.0, 2.0])),
        dpk.gaussian(sigma=np.array([1.0, 2.0, 5.0]), sensitivity=1.0),
    ],
)
def test_delta_and_epsilon_are_those_of_every_entry(batch):
    for at in (0.4, np.array([0.1, 0.5, 1.0]), np.array([[0.2], [0.7]])):
        deltas, epsilons = accountants.delta(batch, at), accountants.epsilon(batch, at / 10)
        spread = np.broadcast_to(at, np.shape(deltas))
        assert np.shape(epsilons) == np.shape(deltas) == np.broadcast_shapes(np.shape(at), (3,))
        for place in np.ndindex(np.shape(deltas)):
            assert deltas[place] == accountants.delta(batch[place[-1]], spread[place])
            assert epsilons[place] == accountants.epsilon(batch[place[-1]], spread[place] / 10)


def test_a_budget_an_entry_is_calibrated_as_by_itself():
    budgets = np.array([0.5, 1.0, 0.5])
    batch = accountants.calibrate.gaussian(epsilon=budgets, delta=1e-6, sensitivity=np.array([1.0, 2.0, 1.0]))
    singles = [
        accountants.calibrate.gaussian(epsilon=epsilon, delta=1e-6, sensitivity=D)
        for epsilon, D in zip(budgets.tolist(), (1.0, 2.0, 1.0), strict=True)
    ]
    assert list(batch) == singles
    with pytest.raises(ValueError, match="epsilon: entry 1 is -1"):
        accountants.calibrate.gaussian(epsilon=np.array([1.0, -1.0]), delta=1e-6)


def test_a_batch_composes_its_entries_and_counts_equal_ones():
    batch = dpk.laplace(epsilon=np.array([0.1, 0.2, 0.1, 0.1]))
    composed = guarantee(batch[0]).repeat(3).compose(guarantee(batch[1]))
    together = guarantee(batch)
    assert isinstance(together, BatchGuarantee)
    assert sorted(term.count for term in together.terms) == [1, 3]
    assert together.epsilon(1e-5) == composed.epsilon(1e-5)
    assert together.delta(0.3) == composed.delta(0.3)
    assert together.bracket(delta=1e-5) == composed.bracket(delta=1e-5)
    assert together.repeat(2).epsilon(1e-5) == composed.repeat(2).epsilon(1e-5)
    # The planted fault: one entry left out.
    assert guarantee(batch[1:]).epsilon(1e-5) < 0.95 * together.epsilon(1e-5)


def test_gaussian_entries_are_one_gaussian_release():
    batch = dpk.gaussian(sigma=30 * LENGTHS**2, sensitivity=LENGTHS)
    mu = float(np.sqrt(np.sum((1 / (30 * LENGTHS)) ** 2)))
    low, high = guarantee(batch).bracket(delta=1e-6)
    exact = guarantee(dpk.gaussian(sigma=1 / mu, sensitivity=1.0)).bracket(delta=1e-6)
    assert low <= exact[0] * (1 + 1e-12)
    assert exact[1] * (1 - 1e-12) <= high <= exact[1] * (1 + 1e-11)
    terms = Guarantee(guarantee(batch).terms)
    assert low <= terms.bracket(delta=1e-6)[1] <= high * (1 + 1e-12)
    assert len(guarantee(batch)._upper.terms) == 1


@pytest.mark.lengthy
def test_joined_scales_enclose_the_composition_of_all():
    """The bracket holds the estimate of the terms as they are, and every joined ratio is on its side."""
    ratios = np.exp(RANDOM.uniform(np.log(0.02), np.log(0.2), 16))
    batch = guarantee(dpk.Additive(dpk.Laplace(1 / ratios), 1.0))
    low, high = batch.bracket(delta=1e-6)
    every = Guarantee(batch.terms).estimate_epsilon(1e-6)
    assert low < every < high < 1.2 * low * 1.2
    assert batch.estimate_epsilon(1e-6) == pytest.approx(every, rel=1e-3)
    assert batch.epsilon(1e-6) == high


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(("count", "spread"), [(20, 1.5), (300, 6.0), (3000, 12.0)])
def test_ratios_on_a_lattice_are_on_their_side(count, spread, side):
    """Every entry has a ratio of its own that is moved to its side, or for lower bounds none, if it is small."""
    ratios = np.exp(np.random.default_rng(count).uniform(-spread, 0, count)) / 9
    batch = guarantee(dpk.Additive(dpk.Laplace(np.repeat(1 / ratios, 2)), 1.0)).repeat(3)
    terms = batch._joined(side).terms
    levels = np.array([float(term.pairs[0].shift / term.pairs[0].noise.scale) for term in terms])
    assert 8 < len(levels) <= 64
    parts = levels / 2.0 ** np.floor(np.log2(levels.max() / 1024))
    assert np.abs(parts - np.round(parts)).max() < 1e-9
    joined = np.sort(np.repeat(levels, [term.count for term in terms]))
    own = np.sort(np.repeat(ratios, 6))
    if side < 0:
        own = own[len(own) - len(joined) :]  # The largest ones.
        assert ((6 * ratios**2).sum() - (joined**2).sum()) / (6 * ratios**2).sum() < 0.06
    assert len(joined) == len(own)
    assert (joined >= own).all() if side > 0 else (joined <= own).all()


@pytest.mark.lengthy
def test_the_bracket_of_ten_thousand_scales_is_narrow():
    """Atoms are on one grid; and of few ratios the bracket holds that of the composition of all."""
    batch = guarantee(dpk.Additive(dpk.Laplace(np.exp(RANDOM.uniform(4, 6, 10_000))), 1.0))
    low, high = batch.bracket(delta=1e-6)
    assert low < batch.estimate_epsilon(1e-6) < high < 1.035 * low
    few = guarantee(dpk.Additive(dpk.Laplace(np.exp(RANDOM.uniform(0, 2, 12))), 1.0))
    for at in ({"delta": 1e-6}, {"epsilon": 2.0}):
        (low, high), (least, most) = few.bracket(**at), few.unjoined.bracket(**at)
        assert low <= most
        assert least <= high < 1.06 * low
        assert low < least * (1 + 1e-5)
        assert high > most * (1 - 1e-5)


@pytest.mark.parametrize("side", [1, -1])
def test_levels_are_on_their_side_and_leave_no_entry_out(side):
    ratios, counts = np.sort(RANDOM.uniform(0.1, 1, 700)), RANDOM.integers(1, 5, 700)
    levels = joined_levels(ratios, counts, 6, side)
    assert len(levels) <= 6
    assert sum(count for _, count in levels) == counts.sum()
    spread = np.repeat(*map(np.array, zip(*levels, strict=True)))
    own = np.repeat(ratios, counts)
    assert (spread >= own).all() if side > 0 else (spread <= own).all()
    # An optimum: not far above the best even cut.
    even = np.array_split(own, 6)
    cost = sum(len(part) * part[-1 if side > 0 else 0] ** 2 for part in even) * side
    assert (spread**2).sum() * side <= cost + 0.02 * abs(cost)


@pytest.mark.lengthy
def test_different_people_have_the_largest_guarantee_of_an_entry():
    batch = dpk.laplace(epsilon=np.array([0.1, 0.2, 0.1]))
    apart = guarantee(batch, people="different")
    assert isinstance(apart, LargestGuarantee)
    assert apart.epsilon(1e-6) == guarantee(batch[1]).epsilon(1e-6)
    assert apart.delta(0.05) == guarantee(batch[1]).delta(0.05)
    assert apart.bracket(delta=1e-6) == guarantee(batch[1]).bracket(delta=1e-6)
    assert apart.bracket(alpha=0.1) == guarantee(batch[1]).bracket(alpha=0.1)
    assert apart.repeat(3).epsilon(1e-6) == guarantee(batch[1]).repeat(3).epsilon(1e-6)
    other = guarantee(dpk.laplace(epsilon=1.0))
    assert apart.compose(other).epsilon(1e-6) == guarantee(batch[1]).compose(other).epsilon(1e-6)
    assert apart.advantage() == guarantee(batch[1]).advantage()
    with pytest.raises(ValueError, match="people"):
        guarantee(batch, people="all")


def test_guarantees_of_batches_take_a_sensitivity_and_jax_numbers():
    batch = dpk.Additive(dpk.Gaussian(np.array([1.0, 2.0])))
    with pytest.raises(ValueError, match="sensitivity: None"):
        guarantee(batch)
    epsilon = guarantee(batch, sensitivity=np.array([0.1, 0.1])).epsilon(1e-6)
    assert epsilon == guarantee(dpk.gaussian(sigma=np.array([1.0, 2.0]), sensitivity=0.1)).epsilon(1e-6)
    traced = guarantee(dpk.gaussian(sigma=jnp.array([1.0, 2.0]), sensitivity=0.1))
    assert float(traced.epsilon(1e-6)) == pytest.approx(epsilon, rel=1e-5)
    with pytest.raises(ValueError, match="takes none"):
        guarantee(dpk.duchi(epsilon=np.array([1.0, 2.0]), lower=0.0, upper=1.0), sensitivity=1.0)


# Allocation

WEIGHTS = np.exp(RANDOM.uniform(-2, 2, 40))


def test_gaussian_allocation_is_the_closed_form_and_the_search_agrees():
    queries = dpk.gaussian(sigma=1.0, sensitivity=LENGTHS)
    allocation = tune.allocate(queries, epsilon=1.0, delta=1e-6, weights=WEIGHTS)
    single = accountants.calibrate.gaussian(epsilon=1.0, delta=1e-6)
    shares = LENGTHS / np.sqrt(WEIGHTS)
    expected = np.sqrt(shares * (LENGTHS * np.sqrt(WEIGHTS)).sum()) * single.noise.sigma
    np.testing.assert_allclose(allocation.mechanism.noise.sigma, expected, rtol=1e-9)
    assert allocation.epsilon <= 1.0
    assert guarantee(allocation.mechanism).epsilon(1e-6) == allocation.epsilon > 1 - 1e-9
    searched = tune.allocate(queries, epsilon=1.0, delta=1e-6, objective=lambda s: (WEIGHTS * s**2).sum())
    np.testing.assert_allclose(searched.mechanism.noise.sigma, allocation.mechanism.noise.sigma, rtol=1e-6)
    assert searched.value == pytest.approx(allocation.value, rel=1e-9)


def test_pure_allocation_is_the_closed_form():
    queries = dpk.laplace(epsilon=1.0, sensitivity=LENGTHS)
    allocation = tune.allocate(queries, epsilon=1.0, weights=WEIGHTS)
    shares = (WEIGHTS * LENGTHS**2) ** (1 / 3)
    np.testing.assert_allclose(allocation.mechanism.epsilon, shares / shares.sum(), rtol=1e-9)
    assert allocation.epsilon <= 1.0
    ledger = accountants.Odometer()
    ledger.charge(allocation.mechanism)
    assert 1 - 1e-9 < float(ledger.spent.epsilon) <= 1.0
    moved = allocation.mechanism.epsilon * (1 + 0.01 * RANDOM.normal(size=40))
    other = 2 * (WEIGHTS * (LENGTHS / (moved / moved.sum())) ** 2).sum()
    assert allocation.value < other


@pytest.mark.lengthy
def test_tight_allocation_of_laplace_noise_is_certified_and_better_than_basic():
    queries = dpk.laplace(epsilon=1.0, sensitivity=LENGTHS)
    basic = tune.allocate(queries, epsilon=1.0, weights=WEIGHTS)
    tight = tune.allocate(queries, epsilon=1.0, delta=1e-6, weights=WEIGHTS, levels=8)
    assert tight.epsilon <= 1.0
    assert guarantee(tight.mechanism).epsilon(1e-6) == tight.epsilon > 0.999
    assert tight.value < 0.5 * basic.value
    assert len(np.unique(tight.mechanism.epsilon)) <= 8
    # Ratios of the levels are at an optimum: moving one of them, at the same composed epsilon, gains nothing.
    level = tight.mechanism.epsilon == tight.mechanism.epsilon.max()
    for factor in (0.97, 1.03):
        ratios = np.where(level, factor, 1.0) * tight.mechanism.epsilon
        budget = guarantee(dpk.Additive(dpk.Laplace(LENGTHS / ratios), LENGTHS)).estimate_epsilon(1e-6)
        own = guarantee(tight.mechanism).estimate_epsilon(1e-6)
        # Of many releases epsilon is about proportional to the ratios.
        value = 2 * (WEIGHTS * (LENGTHS / (ratios * own / budget)) ** 2).sum()
        assert value > tight.value * (1 - 1e-3)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("sensitivities", "options"),
    [
        (np.array([1.0, 4.0]), {}),
        (LENGTHS[:12], {}),
        (LENGTHS[:12], {"levels": 2}),
        (LENGTHS[:12], {"objective": "largest"}),
    ],
)
def test_a_few_laplace_queries_are_not_worse_than_with_budgets_that_add_up(sensitivities, options):
    queries = dpk.laplace(epsilon=1.0, sensitivity=sensitivities)
    basic = tune.allocate(queries, epsilon=1.0, **options)
    tight = tune.allocate(queries, epsilon=1.0, delta=1e-6, **options)
    assert tight.value <= basic.value
    assert tight.epsilon <= 1.0
    assert tight.delta == 1e-6
    assert len(np.unique(tight.mechanism.epsilon)) <= options.get("levels", 12)


@pytest.mark.lengthy
def test_an_allocation_is_released():
    for make, arguments in ((dpk.gaussian, {"sigma": 1.0}), (dpk.laplace, {"epsilon": 1.0})):
        queries = make(**arguments, sensitivity=np.round(LENGTHS, 1))
        allocation = tune.allocate(queries, epsilon=2.0, delta=1e-6, levels=2)
        sampler = dpk.exact_sampler(allocation.mechanism)
        assert len(sampler.samplers) <= 12
        assert dpk.perturb(np.zeros(40), sampler).shape == (40,)


@pytest.mark.lengthy
def test_the_largest_deviation_is_that_of_all():
    queries = dpk.gaussian(sigma=1.0, sensitivity=LENGTHS)
    allocation = tune.allocate(queries, epsilon=1.0, delta=1e-6, weights=WEIGHTS, objective="largest")
    deviations = WEIGHTS * allocation.mechanism.noise.sigma
    np.testing.assert_allclose(deviations, allocation.value, rtol=1e-9)


@pytest.mark.parametrize(
    ("queries", "arguments", "error", "message"),
    [
        (dpk.laplace(epsilon=1.0), {}, TypeError, "is not a batch"),
        (dpk.duchi(epsilon=np.ones(2), lower=0.0, upper=1.0), {}, TypeError, "is not a batch"),
        (dpk.Additive(dpk.Gaussian(np.ones(2))), {"delta": 1e-6}, ValueError, "every query needs one"),
        (dpk.gaussian(sigma=np.ones(2), sensitivity=1.0), {}, ValueError, "needs a delta above 0"),
        (dpk.laplace(epsilon=np.ones(2)), {"weights": np.ones(3)}, ValueError, "weights: have shape"),
        (dpk.laplace(epsilon=np.ones(2)), {"weights": np.array([1.0, 0.0])}, ValueError, "weights: entry 1 is 0"),
        (dpk.laplace(epsilon=np.ones(2)), {"objective": "mean"}, ValueError, "objective"),
        (dpk.laplace(epsilon=np.ones(2)), {"delta": 1.0}, ValueError, "delta"),
        (dpk.laplace(epsilon=np.ones(2)), {"levels": 0}, ValueError, "levels"),
        (
            dpk.generalised_normal(scale=1.0, exponent=np.array([1.2, 1.4]), sensitivity=1.0),
            {"delta": 1e-6},
            ValueError,
            "several shapes",
        ),
    ],
)
def test_allocations_are_refused(queries, arguments, error, message):
    with pytest.raises(error, match=message):
        tune.allocate(queries, epsilon=1.0, **arguments)


def test_a_term_of_a_batch_is_that_of_its_entry():
    batch = dpk.gaussian(sigma=np.array([1.0, 2.0]), sensitivity=1.0)
    assert guarantee(batch).terms == tuple(RepeatedReleases(dominating_pairs(entry), 1) for entry in batch)
