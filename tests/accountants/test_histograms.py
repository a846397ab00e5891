"""Top-k of histograms: guarantees by enumeration, likely counts, what can never appear, and which noise to take."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import dpkernels as dpk
from accountants.calibrate import gaussian_crossing, histogram_noise
from accountants.closed_forms.concentrated import best_epsilon, setwise_epsilon
from accountants.closed_forms.pure import pure_delta
from accountants.dominating_pairs.registry import additive_profile
from accountants.histograms import (
    gaussian_histogram_rho,
    known_domain_guarantee,
    known_domain_top_k,
    laplace_histogram_delta,
    most_likely,
    release,
    unknown_domain_guarantee,
    unknown_domain_top_k,
)
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms import named
from dpkernels.mechanisms.named import truncation_bound

SIMULATED = {"exact": False, "key": dpk.simulation_key(5)}
LAPLACE = named.laplace(epsilon=0.5)
GAUSSIAN = named.gaussian(sigma=4.0, sensitivity=1.0, epsilon=1.0, delta=0.1)


# Known domain: discovery by enumeration


def pick_laws(counts, eps, k):
    """For every ordered choice of k: the probability of each pick given the earlier ones."""
    weights = np.exp(eps * np.array(counts, float))
    laws = {}
    for picks in itertools.permutations(range(len(counts)), k):
        remaining, chain = weights.sum(), []
        for pick in picks:
            chain.append(weights[pick] / remaining)
            remaining -= weights[pick]
        laws[picks] = chain
    return laws


COUNTS = [(0, 0, 0, 0), (3, 0, 1, 2), (5, 5, 0, 1)]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("eps", [0.3, 2.0])
def test_every_pick_has_bounded_range_for_all_neighbours(counts, eps):
    """Both ways round: log-ratios of the last pick, given the others, lie in an interval of length eps around 0."""
    for change in itertools.product((0, 1), repeat=4):
        laws, neighbour_laws = (pick_laws(np.add(counts, c), eps, 2) for c in (change, (0,) * 4))
        for first in range(4):
            ratios = [math.log(laws[p][1] / neighbour_laws[p][1]) for p in laws if p[0] == first]
            assert max(ratios) - min(ratios) <= eps * (1 + 1e-12)
            assert min(ratios) <= 1e-12
            assert max(ratios) >= -1e-12


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(("eps", "delta"), [(0.3, 0.05), (1.0, 1e-3), (2.0, 1e-6)])
def test_no_set_of_outcomes_exceeds_the_guarantee(k, eps, delta):
    """With hardly any cost of counts: the exact hockey stick of the picks, for all neighbours, both ways."""
    bounds = known_domain_guarantee(k, eps, delta, sigma=1e9).bounds
    for counts, change in itertools.product(COUNTS, itertools.product((0, 1), repeat=4)):
        laws = [pick_laws(np.add(counts, c), eps, k) for c in (change, (0,) * 4)]
        p, q = (np.array([np.prod(chain) for chain in law.values()]) for law in laws)
        for budget in (*bounds.values(), float(k * eps)):
            if np.isfinite(budget):
                assert max(np.maximum(a - np.exp(budget) * b, 0).sum() for a, b in ((p, q), (q, p))) <= delta


def test_changes_in_both_directions_are_not_covered():
    """The neighbours' definition is needed: with changes both ways a pick's range is 2 eps."""
    first, second = (pick_laws(c, 0.5, 1) for c in ((1, 0), (0, 1)))
    ratios = [math.log(first[p][0] / second[p][0]) for p in first]
    assert max(ratios) - min(ratios) == pytest.approx(1.0)


def test_known_domain_guarantee_is_the_sum_of_its_parts():
    g = known_domain_guarantee(7, 0.2, 1e-6, sigma=5.0)
    rho = 7 * (0.2**2 / 8 + 1 / 50)
    assert g.bounds["concentrated"] == pytest.approx(float(best_epsilon(rho, 1e-6)))
    parts = {"bounded_range": [0.2] * 7, "concentrated": [(7 / 50, math.sqrt(7) / 5)]}
    assert g.bounds["setwise"] == pytest.approx(setwise_epsilon(1e-6, **parts))
    g = known_domain_guarantee(7, 0.2, 1e-6, scale=4.0)
    assert g.bounds["setwise"] == pytest.approx(setwise_epsilon(1e-6, pure=[0.25] * 7, bounded_range=[0.2] * 7))
    assert g.bounds["added"] == pytest.approx(7 * 0.45)
    assert g.epsilon == min(g.bounds.values())


def test_known_domain_guarantee_is_vectorised():
    k = np.arange(1, 6)
    together = known_domain_guarantee(k, 0.2, 1e-6, scale=4.0, leak=1e-15).epsilon
    one_by_one = [known_domain_guarantee(int(n), 0.2, 1e-6, scale=4.0, leak=1e-15).epsilon for n in k]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)
    assert np.all(np.diff(together) > 0)


# Known domain: counts


def test_likely_counts_are_feasible_and_no_feasible_ones_are_nearer():
    rng = np.random.default_rng(1)
    for _ in range(50):
        noisy = rng.normal(0, 5, 8)
        likely = most_likely(noisy)
        assert np.all(np.diff(likely) <= 0)
        assert np.all(likely >= 0)
        others = np.sort(np.abs(rng.normal(likely, rng.choice([0.01, 1, 5]), (500, 8))), axis=1)[:, ::-1]
        distance = ((others - noisy) ** 2).sum(1)
        assert ((likely - noisy) ** 2).sum() <= distance.min()
        # A projection on a convex set: no farther from anything that is feasible.
        assert np.all(((likely - others) ** 2).sum(1) <= ((noisy - others) ** 2).sum(1) + 1e-9)
    np.testing.assert_array_equal(most_likely([9.0, 4.0, 4.0, 0.0]), [9, 4, 4, 0])
    np.testing.assert_array_equal(most_likely([3.0, 5.0, -2.0]), [4, 4, 0])


@pytest.mark.quick("exact-laplace", "simulated-gaussian")
@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
@pytest.mark.parametrize("options", [SIMULATED, {}], ids=["simulated", "exact"])
def test_known_domain_release(noise, options):
    counts = np.random.default_rng(3).integers(0, 50, 200)
    counts[[17, 4, 90]] = 10_000, 9_000, 8_000
    top = known_domain_top_k(counts, 3, noise=noise, discovery_epsilon=0.1, delta=1e-6, **options)
    assert top.items.tolist() == [17, 4, 90]
    np.testing.assert_array_equal(top.counts, most_likely(top.noisy))
    assert np.all(np.abs(top.noisy - counts[top.items]) < 100)
    assert np.all(top.noisy != counts[top.items])
    assert top.guarantee.delta == 1e-6


def test_a_key_repeats_a_release():
    key, counts = dpk.os_key(), np.arange(30)
    first, again = (
        known_domain_top_k(counts, 5, noise=LAPLACE, discovery_epsilon=0.1, delta=1e-6, key=key) for _ in range(2)
    )
    np.testing.assert_array_equal(first.items, again.items)
    np.testing.assert_array_equal(first.noisy, again.noisy)


def test_laplace_counts_are_charged_by_their_certified_claim():
    top = known_domain_top_k(np.arange(9), 2, noise=LAPLACE, discovery_epsilon=0.1, delta=1e-6, **SIMULATED)
    claimed = known_domain_guarantee(2, 0.1, 1e-6, scale=2.0, leak=LAPLACE.delta)
    assert top.guarantee.epsilon == claimed.epsilon
    wide = LAPLACE.claim(sensitivity=1.0, epsilon=0.75, delta=1e-15)
    top = known_domain_top_k(np.arange(9), 2, noise=wide, discovery_epsilon=0.1, delta=1e-6, **SIMULATED)
    assert top.guarantee.bounds["added"] == pytest.approx(2 * 0.85)


# Unknown domain

UNKNOWN = {"sigma": 3.0, "truncation_delta": 1e-4, "l0_sensitivity": 4, "linf_sensitivity": 2.0, "delta": 1e-3}


@pytest.mark.lengthy
def test_what_one_person_brings_in_never_appears():
    counts = {f"own {i}": 1 + i % 2 for i in range(20_000)} | {"shared": 500}
    for seed in range(20):
        top = unknown_domain_top_k(counts, **UNKNOWN, exact=False, key=dpk.simulation_key(seed))
        assert top.items == ("shared",)
    assert unknown_domain_top_k(counts, **UNKNOWN).items == ("shared",)


@pytest.mark.lengthy
@pytest.mark.parametrize("exact", [True, False])
def test_not_even_by_the_largest_noise(monkeypatch, exact):
    """The largest noise there is leaves a count of Dinf at the threshold, and brings one more above it."""
    T = truncation_bound(3.0, 1e-4, 2.0)
    largest = []

    def stand_in(values, sampler, **_):
        cell = float(sampler.certificate.table.bin_width) if exact else 0.0
        largest.append(float(sampler.certificate.highest) + cell if exact else T)
        return values + largest[0]

    monkeypatch.setattr(release, "perturb", stand_in)
    counts = {"own": 2, "more": 3, "none": 0}
    key = None if exact else dpk.simulation_key(0)
    top = unknown_domain_top_k(counts, **UNKNOWN, exact=exact, key=key)
    assert top.items == ("more",)
    assert largest[0] == pytest.approx(T, rel=1e-2)
    assert 2 + largest[0] <= top.threshold == pytest.approx(2 + T, rel=1e-2)


@pytest.mark.quick("exact")
@pytest.mark.parametrize("options", [SIMULATED, {}], ids=["simulated", "exact"])
def test_unknown_domain_release(options):
    counts = {f"item {i}": 100 * i for i in range(10)}
    everything = unknown_domain_top_k(counts, **UNKNOWN, **options)
    assert everything.items == tuple(f"item {i}" for i in range(9, 0, -1))
    assert np.all(np.diff(everything.counts) <= 0)
    T = truncation_bound(3.0, 1e-4, 2.0)
    assert all(abs(y - counts[item]) <= T + 0.1 for item, y in zip(everything.items, everything.counts, strict=True))
    assert unknown_domain_top_k(counts, 3, **UNKNOWN, **options).items == ("item 9", "item 8", "item 7")


@pytest.mark.parametrize("counts", [{}, {"a": 0}, {"a": 1, "b": 2}])
def test_nothing_to_release(counts):
    top = unknown_domain_top_k(counts, **UNKNOWN)
    assert top.items == ()
    assert top.counts.shape == (0,)


def test_unknown_domain_guarantee_of_one_count_against_the_exact_profile():
    """For one count the exact delta of truncated Gaussian noise is within both bounds, and near the Gaussian one."""
    m = named.truncated_gaussian(sigma=3.0, delta=1e-4, sensitivity=2.0)
    g = unknown_domain_guarantee(1, 2.0, 3.0, 1e-4, 1e-3)
    for budget in g.bounds.values():
        assert float(additive_profile(m.noise, 2.0, budget)) <= 1e-3
    assert float(additive_profile(m.noise, 2.0, 0.95 * g.bounds["gaussian"])) > 1e-3


@pytest.mark.parametrize(("l0", "delta"), [(2, 3e-4), (3, 1e-3), (3, 0.05)])
def test_unknown_domain_guarantee_of_several_counts_by_quadrature(l0, delta):
    """The hockey stick of independent truncated Gaussians, all shifted, from a fine histogram of their loss."""
    s, D, tau = 3.0, 2.0, 1e-4
    T = truncation_bound(s, tau, D)
    m, ends = Gaussian(s), np.linspace(D - T, T, 60_001)
    mass = np.diff(m.cdf(ends)) / m.mass(-T, T)
    # On the overlap the loss of z is D (D/2 - z)/s^2: affine, so the sum's law is a convolution of the masses.
    joint, loss = mass, D * (D / 2 - (ends[1:] + ends[:-1]) / 2) / s**2
    for _ in range(l0 - 1):
        joint = np.maximum(np.fft.irfft(np.fft.rfft(joint, 1 << 18) * np.fft.rfft(mass, 1 << 18), 1 << 18), 0)
    total = l0 * loss[0] - (loss[0] - loss[1]) * np.arange(len(joint))
    leak = 1 - mass.sum() ** l0
    g = unknown_domain_guarantee(l0, D, s, tau, delta)
    assert leak == pytest.approx(1 - (1 - tau) ** l0, rel=1e-6)
    for budget in g.bounds.values():
        assert leak + (joint * -np.expm1(np.minimum(budget - total, 0))).sum() <= delta * (1 + 1e-3)
    assert g.bounds["gaussian"] <= g.bounds["concentrated"]


# Which noise


def exact_composition(k, ratio, level):
    """Kairouz's formula in fractions, e^eps0 = ratio and e^eps = level."""
    terms = (math.comb(k, j) * max(Fraction(0), ratio ** (k - j) - level * ratio**j) for j in range(k + 1))
    return sum(terms, Fraction(0)) / (1 + ratio) ** k


@pytest.mark.parametrize("k", [1, 2, 7, 60])
@pytest.mark.parametrize("ratio", [Fraction(101, 100), Fraction(3, 2), Fraction(20)])
def test_pure_composition_is_the_formula(k, ratio):
    for level in (Fraction(1), Fraction(11, 10), Fraction(5)):
        exact = float(exact_composition(k, ratio, level))
        delta = float(pure_delta(math.log(ratio), k, math.log(level)))
        assert delta == pytest.approx(exact, rel=1e-10, abs=1e-15)


def test_pure_composition_reference():
    np.testing.assert_allclose(pure_delta(0.1, 100, [2.0, 4.306791372516507]), [0.020140178428191532, 1e-5])
    assert pure_delta(0.1, 50, 5.0 + 1e-9) == 0


def test_pure_composition_of_many():
    """Against the normal limit: losses of mean k eps0 tanh(eps0/2) and variance k eps0^2."""
    k, eps0 = 10_000, 0.01
    ratio = eps0 * math.sqrt(k)
    normal = additive_profile(Gaussian(1.0), ratio, np.array([0.5, 1.0, 3.0]))
    np.testing.assert_allclose(pure_delta(eps0, k, [0.5, 1.0, 3.0]), normal, rtol=5e-3)


@pytest.mark.parametrize("l0", [1, 4, 50])
@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (10.0, 1e-3), (1.0, 0.3)])
def test_histogram_noise_meets_its_budget_and_is_the_least(l0, eps, delta):
    D = 3.0
    noise = histogram_noise(l0, D, eps, delta)

    def gaussian(sigma):
        return float(additive_profile(Gaussian(sigma), math.sqrt(l0) * D, eps))

    assert gaussian(noise.sigma) <= delta * (1 + 1e-9)
    assert gaussian(0.99 * noise.sigma) > delta
    assert laplace_histogram_delta(l0, D, noise.scale, eps) <= delta * (1 + 1e-9)
    assert laplace_histogram_delta(l0, D, 0.99 * noise.scale, eps) > delta
    assert noise.scale <= l0 * D / eps * (1 + 1e-11)
    assert noise.gaussian_variance == noise.sigma**2
    assert noise.laplace_variance == 2 * noise.scale**2


def test_laplace_for_one_count_is_no_worse_than_the_bound():
    exact = float(additive_profile(Laplace(2.0), 1.0, 0.2))
    assert exact <= laplace_histogram_delta(1, 1.0, 2.0, 0.2)


@pytest.mark.thorough
@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-6), (1.0, 1e-9), (3.0, 1e-5)])
def test_gaussian_noise_wins_from_the_crossing_on(eps, delta):
    crossing = gaussian_crossing(eps, delta)
    assert 2 < crossing < 30
    for l0 in (*range(1, 2 * crossing), 1000):
        noise = histogram_noise(l0, 1.0, eps, delta)
        assert (noise.gaussian_variance < noise.laplace_variance) == (l0 >= crossing)
    assert gaussian_crossing(eps, delta, most=crossing - 1) is None


def test_gaussian_histogram_rho():
    np.testing.assert_allclose(gaussian_histogram_rho(np.array([1, 4]), 3.0, 2.0), [9 / 8, 9 / 2])


# What is refused


def known(counts=(3, 2, 1), k=2, noise=LAPLACE, discovery_epsilon=0.1, delta=1e-6):
    return known_domain_top_k(counts, k, noise=noise, discovery_epsilon=discovery_epsilon, delta=delta, **SIMULATED)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: known(counts=[1.0, 2.0]), TypeError, "counts: are float64"),
        (lambda: known(counts=[1, -2]), ValueError, "counts: -2 to 1"),
        (lambda: known(counts=[]), ValueError, "counts: have shape"),
        (lambda: known(k=4), ValueError, r"k: 4 is not in 1\.\.3"),
        (lambda: known(k=0), ValueError, "k: 0"),
        (lambda: known(delta=0.0), ValueError, "delta: 0"),
        (
            lambda: known(noise=LAPLACE.claim(sensitivity=1.0, epsilon=0.5, delta=1e-15), delta=1e-15),
            ValueError,
            r"delta: 1\.?e-15",
        ),
        (lambda: known(np.ma.array([1, 2, 300], mask=[0, 0, 1])), TypeError, "counts: some are masked"),
        (lambda: known(discovery_epsilon=0.0), ValueError, "epsilon: 0"),
        (lambda: known(noise=named.laplace(epsilon=1.0, sensitivity=0.5)), ValueError, "claim is for sensitivity 0.5"),
        (lambda: known(noise=named.staircase(epsilon=1.0)), TypeError, "Staircase noise on counts"),
        (lambda: known_domain_guarantee(1, 0.1, 1e-6), ValueError, "exactly one is needed"),
        (lambda: known_domain_guarantee(1, 0.1, 1e-6, sigma=1.0, scale=1.0), ValueError, "exactly one is needed"),
        (lambda: known_domain_guarantee(1, 0.1, 1e-6, scale=-1.0), ValueError, "scale: -1"),
        (lambda: unknown_domain_top_k({"a": 1.5}, **UNKNOWN), TypeError, "counts: are float64"),
        (lambda: unknown_domain_top_k({"a": -1}, **UNKNOWN), ValueError, "counts: -1"),
        (lambda: unknown_domain_top_k({"a": 1}, 0, **UNKNOWN), ValueError, "k: 0"),
        (lambda: unknown_domain_top_k({"a": 9}, **UNKNOWN | {"sigma": 0.2}), ValueError, "sigma: 0.2 is too small"),
        (lambda: unknown_domain_guarantee(11, 1.0, 3.0, 1e-4, 1e-3), ValueError, "delta: 0.001 is not in"),
        (lambda: unknown_domain_guarantee(0, 1.0, 3.0, 1e-4, 1e-3), ValueError, "l0_sensitivity: 0"),
        (lambda: unknown_domain_guarantee(1, 1.0, -3.0, 1e-4, 1e-3), ValueError, "sigma: -3"),
        (lambda: unknown_domain_guarantee(1, 1.0, 3.0, 0.0, 1e-3), ValueError, "truncation_delta: 0"),
        (lambda: histogram_noise(0, 1.0, 1.0, 1e-6), ValueError, "l0_sensitivity: 0"),
        (lambda: histogram_noise(1, 0.0, 1.0, 1e-6), ValueError, "linf_sensitivity: 0"),
        (lambda: histogram_noise(1, 1.0, 0.0, 1e-6), ValueError, "epsilon: 0"),
        (lambda: histogram_noise(1, 1.0, 1.0, 1.0), ValueError, "delta: 1"),
        (lambda: pure_delta(0.1, 1.5, 1.0), TypeError, "k: 1.5"),
        (lambda: pure_delta(0.0, 2, 1.0), ValueError, "epsilon0: 0"),
        (lambda: gaussian_histogram_rho(0, 1.0, 1.0), ValueError, "l0_sensitivity: 0"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
