"""Our accountant for the events of dp_accounting: beside its own, and against enumeration."""

from __future__ import annotations

import math
import subprocess
import sys
import unittest
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import accountants
import dpkernels as dpk
from accountants.closed_forms.concentrated import best_epsilon

google = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

from dp_accounting import dp_event, pld  # noqa: E402

from accountants.interop.dp_accounting import Accountant, Relation, from_dp_event, to_dp_event  # noqa: E402

ADD, REPLACE, SPECIAL = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE, Relation.REPLACE_SPECIAL
Gaussian, Laplace = google.GaussianDpEvent, google.LaplaceDpEvent
DiscreteLaplace, Response = dp_event.DiscreteLaplaceDpEvent, dp_event.RandomizedResponseDpEvent
Sampled, Composed, Repeated = google.PoissonSampledDpEvent, google.ComposedDpEvent, google.SelfComposedDpEvent
Mixture = dp_event.MixtureOfGaussiansDpEvent


def leaf(random, relation):
    """A random mechanism that both accountants know."""
    kinds = ["gaussian", "sampled gaussian"]
    kinds += [] if relation is REPLACE else ["laplace", "discrete laplace", "sampled laplace"]
    kinds += [] if relation is ADD else ["response"]
    rate, scale = float(random.choice([0.001, 0.01, 0.1, 0.5, 0.9])), float(np.exp(random.uniform(0.0, 2.5)))
    match random.choice(kinds):
        case "gaussian":
            return Gaussian(2 * scale)
        case "sampled gaussian":
            return Sampled(rate, Gaussian(scale))
        case "laplace":
            return Laplace(2 * scale)
        case "discrete laplace":
            return DiscreteLaplace(1 / (4 * scale), int(random.integers(1, 4)))
        case "sampled laplace":
            return Sampled(rate, Laplace(scale))
    return Response(float(random.uniform(0.3, 0.9)), int(random.integers(2, 6)))


def tree(random, relation, depth=3):
    """A random tree of events."""
    kind = random.integers(0, 4) if depth else 0
    if kind == 1:
        return Repeated(tree(random, relation, depth - 1), int(random.integers(1, 5)))
    if kind == 2:
        return Composed([tree(random, relation, depth - 1) for _ in range(random.integers(1, 4))])
    if kind == 3:
        return Composed([google.NoOpDpEvent(), tree(random, relation, depth - 1)])
    return leaf(random, relation)


def spelled_out(event):
    """The same tree for dp_accounting 0.6, which counts a self-composed randomised response once."""
    if isinstance(event, Composed):
        return Composed([spelled_out(one) for one in event.events])
    if isinstance(event, Repeated):
        inner = spelled_out(event.event)
        return Composed([inner] * event.count) if "RandomizedResponse" in str(inner) else Repeated(inner, event.count)
    return event


def check_tree(seed):
    random = np.random.default_rng([33, seed])
    relation = (ADD, REPLACE, SPECIAL)[seed % 3]
    event, delta = tree(random, relation), float(10 ** random.uniform(-8, -2))
    ours = Accountant(relation).compose(event)
    value, (lower, upper) = ours.get_epsilon(delta), ours.get_bracket(delta=delta)
    # Theirs rounds every randomised response up to its grid, and these errors add up.
    interval = 2e-5 if "RandomizedResponse" in str(event) else 1e-4
    theirs = pld.PLDAccountant(relation, interval).compose(spelled_out(event)).get_epsilon(delta)
    assert lower <= value == upper, (event, delta)
    assert lower - 1e-9 <= theirs, (event, delta)
    assert abs(value - theirs) <= 1e-3, (event, delta)


@pytest.mark.lengthy
@pytest.mark.quick("3", "5", "8")
@pytest.mark.parametrize("seed", [*range(9), 169, 232])
def test_random_trees_agree_with_their_accountant(seed):
    check_tree(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_500_random_trees_agree_with_their_accountant(block):
    for seed in range(50 * block, 50 * (block + 1)):
        check_tree(seed)


def nested(event):
    return (event, Composed([Gaussian(1.0), event]), Repeated(event, 3), Repeated(Composed([event]), 2))


class Unknown(google.DpEvent):
    """An event that nobody knows."""


UNSUPPORTED = {
    ADD: [Response(0.5, 3)],
    SPECIAL: [],
    REPLACE: [
        Sampled(0.1, Laplace(1.0)),
        Sampled(0.1, DiscreteLaplace(1.0, 1)),
        Mixture(1.0, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]),
    ],
}
ALWAYS = [
    google.UnsupportedDpEvent(),
    Unknown(),
    Sampled(0.1, Response(0.5, 3)),
    Sampled(0.1, Composed([Gaussian(1.0), Laplace(1.0)])),
    Sampled(0.1, Repeated(Laplace(1.0), 2)),
    Sampled(0.1, Repeated(Sampled(0.1, Gaussian(1.0)), 2)),
    google.SampledWithReplacementDpEvent(10, 2, Gaussian(1.0)),
    google.SampledWithoutReplacementDpEvent(10, 2, Gaussian(1.0)),
    google.SingleEpochTreeAggregationDpEvent(1.0, 3),
    dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
]


@pytest.mark.thorough
@pytest.mark.parametrize("relation", [ADD, REPLACE, SPECIAL])
def test_what_is_not_accounted_is_an_error_and_changes_nothing(relation):
    for bad in UNSUPPORTED[relation] + ALWAYS:
        for event in nested(bad):
            accountant = Accountant(relation).compose(Gaussian(2.0))
            before = accountant.get_epsilon(1e-5)
            assert not accountant.supports(event)
            with pytest.raises(google.UnsupportedEventError, match="caused by subevent"):
                accountant.compose(event)
            assert accountant.get_epsilon(1e-5) == before
            assert accountant.ledger == Gaussian(2.0)


def test_what_is_no_event_is_a_type_error():
    with pytest.raises(TypeError):
        Accountant().compose("Gaussian")
    with pytest.raises(TypeError, match="neighboring_relation"):
        Accountant("replace")


@pytest.mark.parametrize("bad", [Gaussian(-1.0), Gaussian(math.nan), Laplace(math.inf), Sampled(1.5, Gaussian(1.0))])
def test_impossible_parameters_are_errors(bad):
    with pytest.raises(ValueError, match="is not"):
        Accountant().compose(bad)


def test_a_ledger_is_what_was_composed():
    accountant = Accountant().compose(Gaussian(1.0)).compose(Gaussian(1.0), 2).compose(Laplace(1.0))
    assert accountant.ledger == Composed([Repeated(Gaussian(1.0), 3), Laplace(1.0)])


@pytest.mark.parametrize("relation", [ADD, REPLACE, SPECIAL])
def test_nothing_and_everything(relation):
    for event in (google.NoOpDpEvent(), Composed([]), Sampled(0.0, Gaussian(1.0)), Sampled(0.5, google.NoOpDpEvent())):
        accountant = Accountant(relation).compose(event)
        assert accountant.get_epsilon(0.0) == accountant.get_epsilon(1e-9) == accountant.get_delta(0.0) == 0
        assert accountant.get_bracket(delta=1e-9) == (0, 0)
        with pytest.raises(ValueError, match="no guarantee"):
            _ = accountant.guarantee
    for event in (google.NonPrivateDpEvent(), Gaussian(0.0), Sampled(0.5, google.NonPrivateDpEvent()), Laplace(0.0)):
        accountant = Accountant(relation).compose(Gaussian(1.0)).compose(event)
        assert accountant.get_epsilon(0.5) == math.inf
        assert accountant.get_delta(math.inf) == 1
        assert accountant.get_bracket(delta=0.5) == (math.inf, math.inf)


def test_gaussian_mechanisms_on_one_sample_are_one():
    shared = Sampled(0.1, Composed([Gaussian(2.0), Repeated(Gaussian(2.0), 3)]))
    for relation in (ADD, REPLACE):
        one, same = (Accountant(relation).compose(e, 10) for e in (shared, Sampled(0.1, Gaussian(1.0))))
        assert one.get_epsilon(1e-6) == same.get_epsilon(1e-6)


def test_a_sample_of_a_sample():
    twice, once = Sampled(0.5, Sampled(0.2, Gaussian(1.0))), Sampled(0.1, Gaussian(1.0))
    assert Accountant().compose(twice, 5).get_epsilon(1e-6) == Accountant().compose(once, 5).get_epsilon(1e-6)
    all_data = Accountant().compose(Sampled(1.0, Laplace(2.0)))
    assert all_data.estimate_epsilon(0.0) == 0.5 < all_data.get_epsilon(0.0) <= 0.5 * (1 + 1e-12)


def test_replacing_a_record_moves_unsampled_noise_twice_as_far():
    for event, half in (
        (Gaussian(2.0), Gaussian(1.0)),
        (Laplace(4.0), Laplace(2.0)),
        (DiscreteLaplace(0.3, 2), DiscreteLaplace(0.3, 4)),
    ):
        replaced, added = Accountant(REPLACE).compose(event, 3), Accountant(ADD).compose(half, 3)
        for delta in (0.0, 1e-6):
            assert replaced.get_epsilon(delta) == added.get_epsilon(delta)


@pytest.mark.parametrize("buckets", [2, 3, 5])
@pytest.mark.parametrize("relation", [REPLACE, SPECIAL])
def test_repeated_randomised_response_is_enumerated(buckets, relation):
    """Of n answers the numbers of each kind are multinomial; theirs counts one answer for n."""
    n, noise = 6, 0.4
    low = noise / buckets
    high, eps = 1 - (buckets - 1) * low, 1.0
    p = [high, low] + [low] * (buckets - 2)
    q = [low, high] + [low] * (buckets - 2) if relation is REPLACE else [1 / buckets] * buckets
    joint = [np.ones(1), np.ones(1)]
    for _ in range(n):
        joint = [np.multiply.outer(old, new).ravel() for old, new in zip(joint, (p, q), strict=True)]
    expected = max(np.maximum(a - math.exp(eps) * b, 0).sum() for a, b in (joint, joint[::-1]))
    accountant = Accountant(relation).compose(Repeated(Response(noise, buckets), n))
    assert accountant.get_delta(eps) == pytest.approx(expected, rel=1e-9)
    lower, upper = accountant.get_bracket(epsilon=eps)
    assert lower <= expected * (1 + 1e-12)
    assert upper >= expected * (1 - 1e-12)


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (DiscreteLaplace(0.4, 3), 1.2),
        (Laplace(0.7), 1 / 0.7),
        (Sampled(0.3, Laplace(0.7)), math.log1p(0.3 * math.expm1(1 / 0.7))),
        (Sampled(0.3, DiscreteLaplace(0.4, 3)), math.log1p(0.3 * math.expm1(1.2))),
    ],
)
def test_pure_budgets(event, level):
    ours = Accountant().compose(event, 2)
    assert ours.get_epsilon(0.0) == pytest.approx(2 * level, rel=2e-12)
    assert ours.get_delta(2 * level * (1 + 1e-9)) == 0
    assert ours.get_delta(2 * level * (1 - 1e-3)) > 0
    assert ours.get_epsilon(1e-13) <= ours.get_epsilon(0.0)
    assert ours.estimate_epsilon(0.0) < ours.get_epsilon(0.0)


@pytest.mark.thorough
def test_mixtures_of_gaussians():
    two = Mixture(2.0, [0.0, 4.0], [0.75, 0.25])
    assert Accountant().compose(two).guarantee == Accountant().compose(Sampled(0.25, Gaussian(0.5))).guarantee
    three = Mixture(2.0, [1.0, 0.0, 3.0], [0.2, 0.7, 0.1])
    for event in (three, Composed([three, Sampled(0.1, Gaussian(1.0)), Repeated(three, 4)])):
        ours, theirs = Accountant().compose(event), pld.PLDAccountant(value_discretization_interval=1e-2).compose(event)
        low, high = ours.get_bracket(delta=1e-5)
        assert low <= ours.estimate_epsilon(1e-5) <= high == ours.get_epsilon(1e-5) <= low * (1 + 1e-3)
        assert high == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-3)
    with pytest.raises(ValueError, match="add up to 1"):
        Accountant().compose(Mixture(1.0, [0.0, 1.0], [0.5, 0.6]))


@pytest.mark.quick("0.02")
@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.5, 8.0])
def test_concentrated_events_are_bounded_by_their_conversion(rho):
    event = dp_event.ZCDpEvent(rho / 4)
    accountant = Accountant().compose(event, 4)
    for delta in (1e-9, 1e-5, 1e-2):
        bound = best_epsilon(rho, delta)
        value = accountant.get_epsilon(delta)
        assert bound - 1e-9 <= value <= bound + 1e-3 * (1 + bound)
        assert accountant.get_bracket(delta=delta)[1] >= bound - 1e-9
    # Gaussian noise of this rho has a smaller profile everywhere, and so has anything composed with it.
    gaussian = Gaussian(1 / math.sqrt(2 * rho))
    other = Sampled(0.1, Laplace(1.0))
    for extra in (google.NoOpDpEvent(), Repeated(other, 5)):
        exact, bound = (Accountant().compose(Composed([e, extra])) for e in (gaussian, Repeated(event, 4)))
        for eps in (0.0, 0.1, 1.0, 5.0):
            assert exact.get_delta(eps) <= bound.get_delta(eps) * (1 + 1e-9)


def test_concentrated_events_with_an_offset():
    assert Accountant().compose(dp_event.ZCDpEvent(0.0, 0.5)).get_epsilon(1e-6) == pytest.approx(0.5, abs=1e-5)
    accountant = Accountant().compose(dp_event.ZCDpEvent(0.1, 0.5))
    assert 0.5 + best_epsilon(0.1, 1e-6) - 1e-9 <= accountant.get_epsilon(1e-6) <= 0.502 + best_epsilon(0.1, 1e-6)


@pytest.mark.thorough
def test_their_calibration_takes_our_accountant():
    delta = 1e-6

    def event(sigma):
        return Repeated(Sampled(0.01, Gaussian(sigma)), 1000)

    sigma = google.calibrate_dp_mechanism(Accountant, event, 1.0, delta)
    assert 1 - 1e-4 <= Accountant().compose(event(sigma)).get_epsilon(delta) <= 1
    count = google.calibrate_dp_mechanism(
        Accountant,
        lambda n: Repeated(Gaussian(20.0), n),
        1.0,
        delta,
        google.LowerEndpointAndGuess(1, 10),
        discrete=True,
    )
    before, after = (Accountant().compose(Repeated(Gaussian(20.0), n)).get_epsilon(delta) for n in (count, count + 1))
    assert before <= 1 < after


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_events_and_guarantees_are_converted_both_ways(relation):
    events = [Gaussian(3.0), Laplace(2.5), Repeated(Sampled(0.25, Gaussian(1.5)), 7)]
    if relation is ADD:
        events += [Sampled(0.125, Laplace(1.25)), DiscreteLaplace(0.5, 4), Sampled(0.25, DiscreteLaplace(0.5, 4))]
    else:
        events += [Response(0.25, 2), Repeated(Response(0.5, 4), 3)]
    events.append(Composed(events[:3]))
    for event in events:
        converted = from_dp_event(event, relation)
        event_again = to_dp_event(converted, relation)
        if isinstance(event, DiscreteLaplace):
            assert event_again.sensitivity == event.sensitivity
            assert event_again.noise_parameter == pytest.approx(event.noise_parameter, rel=1e-12)
        elif "DiscreteLaplace" not in str(event) and "Response" not in str(event):
            assert event_again == event
            assert from_dp_event(event_again, relation) == converted
        assert from_dp_event(event_again, relation).epsilon(1e-6) == pytest.approx(converted.epsilon(1e-6), rel=1e-10)


def test_what_no_event_means_is_not_converted():
    staircase = dpk.staircase(epsilon=1.0)
    for unconvertible in (
        accountants.guarantee(staircase),
        accountants.guarantee(accountants.discrete_pair([0.5, 0.3, 0.2], [0.1, 0.4, 0.5])),
        accountants.guarantee(accountants.discrete_pair([0.6, 0.1, 0.2, 0.1], [0.1, 0.2, 0.1, 0.6])),
    ):
        with pytest.raises(ValueError, match="no event means the same"):
            to_dp_event(unconvertible)
    sampled = accountants.guarantee(dpk.Additive(dpk.Gaussian(1.0)), 1.0).subsample(0.1, adjacency="replace")
    with pytest.raises(ValueError, match="neighboring_relation"):
        to_dp_event(sampled, ADD)
    assert to_dp_event(sampled, REPLACE) == Sampled(0.1, Gaussian(1.0))


FIRST_ANSWER = """
import time
import dp_accounting as google
from accountants.interop.dp_accounting import Accountant
start = time.process_time()
step = google.PoissonSampledDpEvent(0.01, google.GaussianDpEvent(1.0))
Accountant().compose(step, 10_000).estimate_epsilon(1e-6)
print(time.process_time() - start)
"""


@pytest.mark.thorough
def test_10000_sampled_steps_take_at_most_300_ms_in_a_new_process():
    """Processor time, of the best of three, after the imports."""
    times = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FIRST_ANSWER], capture_output=True, text=True, check=True)
        times.append(float(done.stdout))
    assert min(times) <= 0.3


# Tests of theirs that our accountant answers differently, and why.
DIFFERENT = {
    # One record replaced moves (discrete) Laplace noise by two norms: the profile is known, so it is accounted.
    "test_composition_errors_for_neighboring_relation1",
    "test_composition_errors_for_neighboring_relation3",
    # Their profile of truncated batches is an upper bound. Ours are of events whose profile is known.
    "test_truncated_subsampled_gaussian_basic",
}


@pytest.mark.slow
def test_their_own_tests_pass(monkeypatch):
    """The tests of their accountant that are installed with it, with our class in its place."""
    theirs = import_module("dp_accounting.pld.pld_privacy_accountant")
    try:
        tests = import_module("dp_accounting.pld.pld_privacy_accountant_test")
    except ImportError as error:
        pytest.skip(f"dp-accounting is installed without its tests: {error}")
    monkeypatch.setattr(theirs, "PLDAccountant", Accountant)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
    assert result.testsRun >= 60
    failed = {test._testMethodName: report for test, report in result.failures + result.errors}
    assert failed.keys() == DIFFERENT, failed


# Batch schemes and budgets


def event_class(name):
    return getattr(dp_event, name, None) or pytest.skip(f"this dp_accounting has no {name}")


def test_truncated_samples_of_gaussian_noise():
    """The larger dataset has dataset_size records; the bound is at most dp_accounting's."""
    event = dp_event.TruncatedSubsampledGaussianDpEvent(10_000, 0.01, 150, 1.0)
    low, high = Accountant().compose(event, 100).get_bracket(delta=1e-6)
    theirs = pld.PLDAccountant().compose(event, 100).get_epsilon(1e-6)
    plain = Accountant().compose(Sampled(0.01, Gaussian(1.0)), 100)
    assert plain.get_bracket(delta=1e-6)[0] * (1 - 1e-4) <= low < high <= theirs
    none = dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 0, 1.0)
    assert Accountant().compose(none).get_delta(0.0) == 0.0
    with pytest.raises(google.UnsupportedEventError):
        Accountant(REPLACE).compose(event)


def test_samples_without_replacement():
    """Records are replaced, and rate 1 is a release on all the data."""
    for inner in (Gaussian(2.0), Laplace(2.0)):
        all_data = Accountant(REPLACE).compose(google.SampledWithoutReplacementDpEvent(10, 10, inner), 3)
        plain = Accountant(REPLACE).compose(inner, 3)
        assert all_data.get_epsilon(1e-5) == pytest.approx(plain.get_epsilon(1e-5), rel=1e-4)
        few = Accountant(REPLACE).compose(google.SampledWithoutReplacementDpEvent(10, 1, inner), 3)
        assert few.get_epsilon(1e-5) < plain.get_epsilon(1e-5)
    with pytest.raises(google.UnsupportedEventError):
        Accountant().compose(google.SampledWithoutReplacementDpEvent(10, 1, inner))


@pytest.mark.parametrize("name", ["ExponentialMechanismDpEvent", "PermuteAndFlipDpEvent"])
def test_budgets_of_selections(name):
    accountant = Accountant().compose(event_class(name)(1.0), 2)
    assert accountant.get_epsilon(0.0) == pytest.approx(2.0, rel=1e-9)
    response = accountants.guarantee(accountants.randomised_response(1.0)).repeat(2)
    assert accountant.get_delta(0.5) == pytest.approx(response.delta(0.5), rel=1e-9)


def test_budgets_with_delta():
    accountant = Accountant().compose(event_class("EpsilonDeltaDpEvent")(1.0, 0.1), 2)
    assert accountant.get_delta(2.0) == pytest.approx(1 - 0.9**2, rel=1e-9)
    assert accountant.get_epsilon(0.05) == float("inf")


@dataclass(frozen=True)
class Budget(google.DpEvent):
    """An event of a budget, also for a dp_accounting that has none."""

    epsilon: float
    delta: float


@pytest.mark.parametrize(("epsilon", "delta", "count"), [(0.3, 1e-6, 4), (1.0, 0.1, 2), (0.0, 0.1, 3), (800.0, 0.0, 1)])
def test_budgets_are_composed_optimally(monkeypatch, epsilon, delta, count):
    """Kairouz, Oh and Viswanath's composition of (eps, delta); a budget that floats cannot tell from none is one."""
    monkeypatch.setattr(sys.modules[Accountant.__module__], "_EpsilonDelta", Budget)
    accountant = Accountant().compose(Budget(epsilon, delta), count)
    for eps in (0.0, 0.5):
        high = range(count + 1)
        terms = (
            [
                math.comb(count, j) * max(math.exp(j * epsilon) - math.exp(eps + (count - j) * epsilon), 0.0)
                for j in high
            ]
            if epsilon < 100
            else [0.0]
        )
        pure = sum(terms) / (1 + math.exp(epsilon)) ** count if epsilon < 100 else 1.0
        truth = 1 - (1 - delta) ** count * (1 - pure)
        low, above = accountant.get_bracket(epsilon=eps)
        assert low <= truth * (1 + 1e-12) <= above * (1 + 2e-12) <= truth * (1 + 1e-9)


def test_discrete_gaussian_events():
    event = event_class("DiscreteGaussianDpEvent")
    expected = accountants.guarantee(dpk.Additive(dpk.DiscreteGaussian(2.0)), 1.0).repeat(3)
    assert Accountant().compose(event(2.0, 1.0, 1), 3).get_epsilon(1e-5) == expected.epsilon(1e-5)
    with pytest.raises(google.UnsupportedEventError, match="dimension must be 1"):
        Accountant().compose(event(2.0))


def test_true_positive_rates():
    accountant = Accountant().compose(Gaussian(1.0))
    rates = np.array([0.01, 0.3])
    np.testing.assert_allclose(accountant.get_true_positive_rates(rates), ndtr(1 + ndtri(rates)), rtol=1e-9)
    assert accountant.get_gdp_parameter_estimate() == pytest.approx(1.0, rel=1e-6)
    assert Accountant().get_true_positive_rates(0.3) == 0.3
    assert Accountant().compose(google.NonPrivateDpEvent()).get_true_positive_rates(0.3) == 1.0
    with pytest.raises(ValueError, match="are not in"):
        accountant.get_true_positive_rates(1.5)
