"""The charge for many reports about the same people, against the composed integers, outcome by outcome."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from fractions import Fraction
from functools import reduce
from types import SimpleNamespace

import mpmath as mp
import numpy as np
import pytest

import dpkernels as dpk
from accountants import calibrate, charges, guarantee, repeated_charge
from accountants.charges import repeated_bound
from dpkernels.exact.arithmetic import root_up
from dpkernels.exact.noise.certificate import gaussian_distance

NOISES = {
    "discrete-laplace": dpk.discrete_laplace(epsilon=1.0, sensitivity=1.0),
    "discrete-laplace, small": dpk.discrete_laplace(epsilon=0.3, sensitivity=1.0),
    "truncated-discrete-laplace": dpk.truncated_discrete_laplace(epsilon=1.0, delta=1e-4, sensitivity=1.0),
    "discrete-gaussian": calibrate.discrete_gaussian(epsilon=1.0, delta=1e-4, sensitivity=1.0),
}


def delta_of(certificate, count, epsilon):
    """The hockey-stick divergence of ``count`` tables and their shifts, summed over the outcomes by their losses."""
    p = np.array(certificate.table.outcomes, float) / certificate.table.total
    p, q = np.pad(p, (0, certificate.shift)), np.pad(p, (certificate.shift, 0))
    # Outcomes of one loss are one outcome.
    with np.errstate(divide="ignore"):
        loss = np.round(np.log(p) - np.log(q), 9)
    _, group = np.unique(loss, return_inverse=True)
    p, q = np.bincount(group, p), np.bincount(group, q)
    joint_p, joint_q = (reduce(np.multiply.outer, [one] * count).ravel() for one in (p, q))
    return np.maximum(joint_p - np.exp(epsilon) * joint_q, 0.0).sum()


@pytest.mark.lengthy
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["truncated-discrete-laplace", "discrete-gaussian"])  # Others have endless tables.
def test_the_composed_integers_have_the_charged_epsilon_and_delta(name, count):
    certificate = dpk.exact_sampler(NOISES[name]).certificate
    charge, bound = repeated_charge(NOISES[name], count), repeated_bound(certificate, count)
    assert charge.delta == count * Fraction(repr(certificate.delta))
    assert bound.epsilon <= charge.epsilon <= min(count * Fraction(repr(certificate.epsilon)), bound.epsilon * 1.00001)
    assert delta_of(certificate, count, float(charge.epsilon)) <= float(charge.delta) * (1 + 1e-9)
    if charge.epsilon < count * Fraction(repr(certificate.epsilon)):  # then it is the bracket's upper end, and close
        assert delta_of(certificate, count, 0.999 * float(charge.epsilon)) > float(charge.delta)


def test_other_mechanisms_cost_the_sum_of_their_claims():
    skewed = dpk.truncated_laplace(epsilon=1.0, delta=1e-2, sensitivity=1.0, upper=9.0)
    vector = dpk.on_vectors(NOISES["discrete-laplace"], dimensions=3, norm="l1", lattice=1.0)
    for mechanism, delta in ((dpk.duchi(epsilon=0.3, lower=0.0, upper=1.0), 0), (skewed, "0.01"), (vector, 0)):
        claim = Fraction(repr(dpk.exact_sampler(mechanism).certificate.epsilon))
        assert repeated_charge(mechanism, 7) == (7 * claim, 7 * Fraction(delta))


def test_one_report_costs_its_claim():
    assert repeated_charge(NOISES["discrete-laplace"], 1) == (1, 0)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, 1 << 41])
def test_a_count_is_a_number_of_reports(count):
    with pytest.raises((TypeError, ValueError), match="count: "):
        repeated_charge(NOISES["discrete-laplace"], count)


@pytest.mark.parametrize(("count", "exponent"), [(200, 7), (100, 9)])
def test_the_distance_of_tables_to_gaussian_noise_is_paid(count, exponent):
    """The stated epsilon in 50 digits: of 200 tables the distance is about a fortieth of delta, of 100 too much."""
    noise = dpk.Additive(dpk.Gaussian(np.array([11.0])), np.ones(1)).claim(sensitivity=1.0, epsilon=1.0, delta=1e-6)
    (certificate,) = dpk.exact_sampler(noise).certificate.tables
    delta = Fraction(1, 10**exponent)
    bound = charges._gaussian_bound([certificate], [count], delta)
    assert (bound is None) == (count == 100)
    if bound is not None:
        sigma = root_up(certificate.table.variance / certificate.table.bin_width**2 - Fraction(1, 12))
        tau = gaussian_distance(certificate.table, sigma)
        with mp.workdps(50):
            eps, scale = mp.mpf(float(bound)), mp.mpf(sigma.numerator) / sigma.denominator
            mu = mp.sqrt(count) * mp.mpf(certificate.shift) / scale
            gaussian = mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)
            distance = count * mp.mpf(tau.numerator) / tau.denominator * (1 + mp.exp(eps))
            assert gaussian + distance <= mp.mpf(delta.numerator) / delta.denominator
    assert charges._gaussian_bound([certificate], [100 * count], delta) is None  # Then it would be more than delta.


def exact_delta(certificates, epsilon):
    """The hockey-stick divergence of tables and their shifts, all moved the same way, in integers and 40 digits."""
    with mp.workdps(40):
        mantissa, exponent = mp.exp(mp.mpf(epsilon)).man_exp
    joint = Counter({(1, 1): 1})
    for certificate in certificates:
        weights = [int(weight) for weight in certificate.table.outcomes]
        pairs = Counter(zip(weights + [0] * certificate.shift, [0] * certificate.shift + weights, strict=True))
        product = Counter()
        for (p, q), count in joint.items():
            for (a, b), number in pairs.items():
                product[p * a, q * b] += count * number
        joint = product
    ratio = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    total = sum(count * max(p * ratio.denominator - q * ratio.numerator, 0) for (p, q), count in joint.items())
    return Fraction(total, ratio.denominator * math.prod(int(each.table.total) for each in certificates))


def test_composed_tables_meet_their_delta_to_the_last_digit():
    """Both ends of a bracket differ by 1e-9 or less here, and only the upper one is an epsilon at delta."""
    noises = [dpk.truncated_discrete_laplace(epsilon=eps, delta=1e-3, sensitivity=1.0) for eps in (1.0, 2.0)]
    first, second = (dpk.exact_sampler(noise).certificate for noise in noises)
    for delta in (Fraction(1, 100), Fraction(1, 20)):
        epsilon = charges._composed_bound([first, second], [1, 2], delta)
        assert epsilon > 1
        assert exact_delta([first, second, second], float(epsilon)) <= delta
        assert exact_delta([first, second, second], float(epsilon) * (1 - 1e-6)) > delta
    for certificate in (first, second):
        bound = repeated_bound(certificate, 3)
        assert bound.epsilon < 3 * Fraction(repr(certificate.epsilon))
        assert exact_delta([certificate] * 3, float(bound.epsilon)) <= bound.delta


@pytest.mark.parametrize("noise", [dpk.Gaussian(np.array([11.0, 30.0])), dpk.Gaussian(np.array([2.0, 3.0]))])
def test_a_batch_is_charged_for_each_of_its_reports(noise):
    """Tables of a wide Gaussian, and narrow ones whose bracket is computed."""
    batch = dpk.Additive(noise, np.ones(2)).claim(sensitivity=1.0, epsilon=5.0, delta=1e-7)
    charged = repeated_bound(batch, 6)
    real = float(guarantee(dpk.Additive(noise, np.ones(2))).repeat(6).epsilon(float(charged.delta)))
    assert charged.delta == Fraction(12, 10**7)
    assert charged.epsilon == pytest.approx(real, rel=0.01)
    assert charged.epsilon >= real * (1 - 1e-3)


def test_one_pair_dominates_tables_of_one_mode_and_whole_cells(monkeypatch):
    monkeypatch.setattr(charges, "_is_symmetric_noise", lambda certificate: True)

    def certificate(shift=1, **table):
        return SimpleNamespace(
            shift=shift, table=SimpleNamespace(**{"is_unimodal": True, "tail": None, "remainder": None, **table})
        )

    assert charges._is_composable(certificate())
    for other in ({"shift": 0}, {"is_unimodal": False}, {"tail": 1}, {"remainder": 1}):
        assert not charges._is_composable(certificate(**other))


@pytest.mark.parametrize("numbers", [{0.5: 3}, {0.25: 2, 0.5: 3}, {0.1: 1, 0.3: 2, 0.7: 2}])
def test_pure_budgets_cost_what_randomised_responses_do(numbers):
    """Against all outcomes of randomised responses: the delta at the composed epsilon is the one that was asked for."""
    delta = 1e-3
    composed = charges.composed_epsilon(numbers, delta)
    budgets = [epsilon for epsilon, number in numbers.items() for _ in range(number)]
    exact = 0.0
    for signs in itertools.product((1, -1), repeat=len(budgets)):
        loss = sum(map(operator.mul, signs, budgets))
        p = math.prod(1 / (1 + math.exp(-sign * budget)) for sign, budget in zip(signs, budgets, strict=True))
        exact += p * max(0.0, -math.expm1(composed - loss))
    assert exact == pytest.approx(delta, rel=1e-4)
    assert exact <= delta * (1 + 1e-12)
