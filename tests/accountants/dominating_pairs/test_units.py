"""No guarantee, calibration or tuning depends on where the data lie, or on their unit."""

from __future__ import annotations

import dataclasses
import json
import zlib

import numpy as np
import pytest
from helpers import slow
from random_mechanisms import BOUNDED, FAMILIES, between, budgets, somewhere

import accountants
import dpkernels as dpk
from accountants import calibrate, guarantee, tune

# Mechanisms of each family: a thousand in all of them.
EACH = -(-1000 // len(FAMILIES))
# Whose guarantee depends on the ratio of two lengths. Where these are no multiples of the unit it is rounded.
RATIOS = {"central-piecewise", "optimal", *(FAMILIES.keys() - BOUNDED.keys())}
# Families that are compared by default; others take long to compile.
QUICK = ("uniform-constant", "sine-constant", "duchi", "hybrid", "square-wave", "laplace")
NOWHERE = (0.0, 1.0)


# Ratios of these are rounded alone: lattices jump, and the optimal mechanism's lengths are read as decimals.
ROUNDED = sorted(name for name in RATIOS if "discrete" not in name and name != "optimal")


def draws(name, count, seed=0):
    for index in range(count):
        yield np.random.default_rng([seed, index, zlib.crc32(name.encode())])


def exactly(random):
    """A location and a unit with which every length is a multiple of the unit in floats too."""
    unit = 2.0 ** int(random.integers(-20, 20))
    return unit * int(random.integers(-(2**20), 2**20)), unit


def place_of(random, name):
    """The program of an optimal mechanism reads its lengths as the decimals that they print as."""
    if name == "optimal":
        unit = 10.0 ** int(random.integers(0, 7))
        return unit * int(random.integers(-1000, 1000)), unit
    return exactly(random) if name in RATIOS else somewhere(random)


@pytest.mark.lengthy
@pytest.mark.quick("duchi", "hybrid", "square-wave", "uniform-constant")
@pytest.mark.parametrize("name", slow(FAMILIES, *(FAMILIES.keys() - set(QUICK))))
def test_profiles_have_no_place_and_no_unit(name):
    """Bit by bit: delta at five budgets and eps at one delta, of mechanisms anywhere."""
    for random in draws(name, EACH):
        make = FAMILIES[name](random)
        reference, scaled = make(*NOWHERE), make(*place_of(random, name))
        eps = budgets(random, reference, 5)
        np.testing.assert_array_equal(accountants.delta(reference, eps), accountants.delta(scaled, eps))
        level = between(random, 1e-8, 1e-2)
        assert accountants.epsilon(reference, level) == accountants.epsilon(scaled, level)
        assert accountants.epsilon(reference, 0.0) == accountants.epsilon(scaled, 0.0)


@pytest.mark.parametrize("name", slow(ROUNDED, *(set(ROUNDED) - {"laplace", "gaussian", "central-piecewise"})))
def test_a_ratio_of_lengths_is_only_rounded(name):
    """In any unit; where a rounded ratio moves delta by no more than 1e-12 of it."""
    for random in draws(name, 8, seed=1):
        make = FAMILIES[name](random)
        reference, scaled = make(*NOWHERE), make(0.0, between(random, 1e-6, 1e6))
        eps = budgets(random, reference, 5)
        delta, moved_delta = (np.asarray(accountants.delta(m, eps)) for m in (reference, scaled))
        known = delta > 1e-3 * delta.max()
        np.testing.assert_allclose(moved_delta[known], delta[known], rtol=1e-12)


OF_GUARANTEES = ("uniform-constant", "sine-constant", "triangle-quartic", "table-table", "hybrid")
OTHERS = ("bracket", "inverse bracket", "renyi", "composed", "sampled", "kept")


@pytest.mark.quick("kept-uniform-constant", "bracket-sine-constant")
@pytest.mark.parametrize("name", slow(OF_GUARANTEES, "triangle-quartic", "table-table"))
@pytest.mark.parametrize("what", OTHERS)
def test_guarantees_have_no_place_and_no_unit(name, what):
    """Brackets, Renyi divergences, compositions, samples and forms, bit by bit."""
    random = next(draws(name, 1, seed=2))
    make = FAMILIES[name](random)
    reference, scaled = (guarantee(make(*place)) for place in (NOWHERE, somewhere(random)))
    value = {
        "bracket": lambda g: g.repeat(3).bracket(epsilon=0.5),
        "inverse bracket": lambda g: g.bracket(delta=1e-3),
        "renyi": lambda g: g.renyi(2.5),
        "composed": lambda g: g.repeat(5).delta(0.3),
        "sampled": lambda g: g.subsample(0.3).repeat(4).delta(0.1),
        "kept": lambda g: g.to_json(),
    }[what]
    assert value(reference) == value(scaled)


@pytest.mark.parametrize(("name", "law"), [("laplace", dpk.Laplace(0.8)), ("gaussian", dpk.Gaussian(1.7))])
def test_a_kept_guarantee_of_noise_has_no_unit(name, law):
    text = guarantee(dpk.Additive(law, 1.0)).to_json()
    wider = calibrate.rescaled(law, 4096.0)
    assert guarantee(dpk.Additive(wider, 4096.0)).to_json() == text
    assert accountants.Guarantee.from_json(text).to_json() == text
    assert "4096" not in json.dumps(guarantee(dpk.Additive(wider, 4096.0)).to_dict())


# Intervals at which the profile was half of the truth, and the bracket missed it


def test_a_far_interval_has_the_profile_of_any_other():
    near = dpk.composite("sine", "constant", epsilon=2.0, lower=0.0, upper=1.0)
    far = dpk.composite("sine", "constant", epsilon=2.0, lower=100000.1, upper=100001.2)
    delta = accountants.delta(far, 1.9)
    assert delta == accountants.delta(near, 1.9) == pytest.approx(0.021878850537, rel=1e-10)
    low, high = guarantee(far).bracket(epsilon=1.9)
    assert low <= delta <= high


def test_a_very_narrow_interval_has_the_bracket_of_any_other():
    narrow, unit = (
        guarantee(dpk.piecewise(epsilon=4.0, lower=lower, upper=upper)).repeat(30).bracket(epsilon=12.0)
        for lower, upper in ((3112480.239552603, 3112480.239557236), NOWHERE)
    )
    assert narrow == unit
    assert narrow[0] <= 0.9999999999999967 <= narrow[1]


# Calibration

CALIBRATED = {
    "gaussian": lambda D: calibrate.gaussian(epsilon=0.7, delta=1e-6, sensitivity=D),
    "laplace": lambda D: calibrate.laplace(epsilon=0.7, delta=1e-6, sensitivity=D),
    "merged": lambda D: calibrate.scaled(
        dpk.MergedLaplace((1.0, 0.0, 2.0), (0.3, 1.0)), epsilon=2.0, delta=1e-6, sensitivity=D
    ),
    "staircase": lambda D: calibrate.scaled(dpk.staircase(epsilon=1.0).noise, epsilon=1.0, delta=1e-3, sensitivity=D),
    "truncated-laplace": lambda D: calibrate.truncated_laplace(epsilon=1.0, delta=1e-4, sensitivity=D),
    "truncated-gaussian": lambda D: calibrate.truncated_gaussian(epsilon=1.0, delta=1e-3, sensitivity=D, bound=12 * D),
    "best-bound": lambda D: calibrate.truncated_gaussian(epsilon=0.2, delta=2e-2, sensitivity=D),
    "recycled": lambda D: calibrate.budget_recycled(
        dpk.Gaussian(3.3 * D), theta=4 * D, epsilon=1.0, delta=1e-4, sensitivity=D
    ),
    "recycled-at-rate": lambda D: calibrate.budget_recycled(
        dpk.Gaussian, theta=4 * D, q=0.3, epsilon=1.0, delta=1e-4, sensitivity=D
    ),
    "recycled-best": lambda D: calibrate.budget_recycled(
        dpk.Laplace, theta=3 * D, epsilon=1.0, delta=1e-3, sensitivity=D
    ),
    "composed": lambda D: calibrate.composed(dpk.Laplace(1.0), epsilon=1.0, delta=1e-5, sensitivity=D, count=20),
}


def lengths(law):
    """Every number of a law, lengths in units of the first, and rates times it."""
    if isinstance(law, dpk.Reweighted):
        return [*lengths(law.kernel), law.low, law.high]
    if isinstance(law, dpk.MergedLaplace):
        return [*(1 / rate for rate in law.rates if rate), *law.breaks]
    return [law.period if isinstance(law, dpk.Staircase) else law.sigma if isinstance(law, dpk.Gaussian) else law.scale]


@pytest.mark.quick("gaussian", "laplace", "truncated-laplace")
@pytest.mark.parametrize("name", CALIBRATED)
def test_calibration_has_no_unit(name):
    """But for rounding; and the claim is met in any unit."""
    reference = CALIBRATED[name](1.0)
    for D in (2.0**-30, 1234.567):
        scaled = CALIBRATED[name](D)
        np.testing.assert_allclose(lengths(scaled.noise), np.multiply(lengths(reference.noise), D), rtol=1e-12)
        assert getattr(scaled.noise, "outside", 0.0) == pytest.approx(
            getattr(reference.noise, "outside", 0.0), rel=1e-11
        )
        if scaled.delta is not None:
            assert accountants.delta(scaled, scaled.epsilon) <= scaled.delta


@pytest.mark.thorough
@pytest.mark.parametrize("make", [dpk.piecewise, dpk.duchi, dpk.hybrid])
def test_calibration_of_bounded_reports_has_no_place(make):
    budget = {"epsilon": 2.0, "delta": 1e-5, "count": 20}
    reference, scaled = (
        calibrate.composed_budget(make, **budget, lower=lower, upper=upper)
        for lower, upper in (NOWHERE, (987654.3, 987654.9))
    )
    assert reference.epsilon == scaled.epsilon


# Tuning: a family at a location and a unit, and an objective there; the power of the unit that its values have

TUNED = {
    "piecewise": (lambda low, unit: tune.piecewise(epsilon=1.3, lower=low, upper=low + unit), "worst variance"),
    "piecewise-error": (lambda low, unit: tune.piecewise(epsilon=1.3, lower=low, upper=low + unit), "absolute error"),
    "sine": (lambda low, unit: tune.composite("sine", epsilon=2.1, lower=low, upper=low + unit), "acceptance"),
    "quartic": (
        lambda low, unit: tune.composite("sine", "quartic", epsilon=0.7, lower=low, upper=low + unit),
        "variance",
    ),
    "triangle": (lambda low, unit: tune.piecewise_triangle(epsilon=3.0, lower=low, upper=low + unit), "average"),
    "square-wave": (lambda low, unit: tune.square_wave(epsilon=1.0, lower=low, upper=low + unit), "distribution"),
    "hybrid": (lambda low, unit: tune.hybrid(epsilon=1.0, lower=low, upper=low + unit), "quantile"),
    "recycled": (
        lambda low, unit: tune.budget_recycled("gaussian", epsilon=1.0, delta=1e-5, sensitivity=unit),
        "acceptance",
    ),
    "recycled-shape": (
        lambda low, unit: tune.budget_recycled("laplace", epsilon=1.0, delta=1e-5, sensitivity=unit),
        "worst variance",
    ),
    "staircase": (lambda low, unit: tune.staircase(epsilon=1.5, sensitivity=unit), "acceptance"),
    "merged": (lambda low, unit: tune.merged_laplace(epsilon=5.0, sensitivity=unit), "absolute error"),
    "truncated-laplace": (
        lambda low, unit: tune.truncated_laplace(epsilon=1.0, delta=1e-2, sensitivity=unit),
        "worst variance",
    ),
    "truncated-gaussian": (
        lambda low, unit: tune.truncated_gaussian(epsilon=1.0, delta=1e-2, sensitivity=unit),
        "worst variance",
    ),
}
OBJECTIVES = {
    "worst variance": (lambda low, unit: tune.worst_variance, 2),
    "variance": (lambda low, unit: tune.variance_at(low + unit / 4), 2),
    "average": (lambda low, unit: tune.average_variance(low + unit * np.array([0.0, 0.5, 1.0]), [1.0, 3.0]), 2),
    "absolute error": (lambda low, unit: tune.absolute_error(), 1),
    "quantile": (lambda low, unit: tune.quantile(0.1), 1),
    "distribution": (lambda low, unit: tune.distribution(1e4), 1),
    "acceptance": (lambda low, unit: tune.acceptance(0.75 * unit), 0),
}


@pytest.mark.lengthy
@pytest.mark.quick("piecewise", "hybrid")
@pytest.mark.parametrize(
    "name", slow(TUNED, *(TUNED.keys() - {"piecewise", "hybrid", "sine", "recycled", "square-wave"}))
)
def test_tuning_has_no_place_and_no_unit(name):
    """At a place where lengths are multiples of the unit in floats too: parameters of bounded ones bit by bit."""
    family, chosen = TUNED[name]
    objective, power = OBJECTIVES[chosen]
    reference, scaled = (tune.best(family(*units), objective(*units)) for units in (NOWHERE, (2.0**33, 2.0**-4)))
    assert scaled.value == pytest.approx(reference.value * 2.0 ** (-4 * power), rel=1e-12)
    assert scaled.evaluations == reference.evaluations
    if hasattr(reference.mechanism, "noise"):
        noise_lengths = lengths(scaled.mechanism.noise)
        np.testing.assert_allclose(noise_lengths, np.multiply(lengths(reference.mechanism.noise), 2.0**-4), rtol=1e-12)
    else:
        moved = dataclasses.replace(reference.mechanism, **place(reference.mechanism, *scaled.mechanism.input_interval))
        assert moved == scaled.mechanism


def place(mechanism, lower, upper):
    if isinstance(mechanism, dpk.Mixture):
        parts = {"first": mechanism.first, "second": mechanism.second}
        return {name: dataclasses.replace(part, lower=lower, upper=upper) for name, part in parts.items()}
    return {"lower": lower, "upper": upper}


@pytest.mark.thorough
def test_tuning_anywhere_finds_the_same():
    """Far from 0, where no length of the interval is one of its floats."""
    families = [tune.piecewise(epsilon=1.3, lower=low, upper=low + unit) for low, unit in (NOWHERE, (1e9 + 0.1, 1.7))]
    reference, scaled = (tune.best(family, tune.absolute_error()) for family in families)
    assert scaled.mechanism.width == reference.mechanism.width
    assert scaled.value == pytest.approx(reference.value * 2 * families[1].unit, rel=1e-12)


@pytest.mark.thorough
def test_tuning_at_many_budgets_has_no_place_and_no_unit():
    eps = np.array([0.5, 1.0, 3.0])
    reference, scaled = (
        tune.many(tune.piecewise(epsilon=eps, lower=low, upper=low + unit), tune.worst_variance)
        for low, unit in (NOWHERE, (2.0**33, 2.0**-4))
    )
    np.testing.assert_array_equal(reference.parameters["eta"], scaled.parameters["eta"])
    np.testing.assert_allclose(scaled.values, reference.values * 2.0**-8, rtol=1e-12)
