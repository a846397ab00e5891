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
        here, there = make(*NOWHERE), make(*place_of(random, name))
        eps = budgets(random, here, 5)
        np.testing.assert_array_equal(accountants.delta(here, eps), accountants.delta(there, eps))
        level = between(random, 1e-8, 1e-2)
        assert accountants.epsilon(here, level) == accountants.epsilon(there, level)
        assert accountants.epsilon(here, 0.0) == accountants.epsilon(there, 0.0)


@pytest.mark.parametrize("name", slow(ROUNDED, *(set(ROUNDED) - {"laplace", "gaussian", "central-piecewise"})))
def test_a_ratio_of_lengths_is_only_rounded(name):
    """In any unit; where a rounded ratio moves delta by no more than 1e-12 of it."""
    for random in draws(name, 8, seed=1):
        make = FAMILIES[name](random)
        here, there = make(*NOWHERE), make(0.0, between(random, 1e-6, 1e6))
        eps = budgets(random, here, 5)
        found, moved = (np.asarray(accountants.delta(m, eps)) for m in (here, there))
        known = found > 1e-3 * found.max()
        np.testing.assert_allclose(moved[known], found[known], rtol=1e-12)


OF_GUARANTEES = ("uniform-constant", "sine-constant", "triangle-quartic", "table-table", "hybrid")
OTHERS = ("bracket", "inverse bracket", "renyi", "composed", "sampled", "kept")


@pytest.mark.quick("kept-uniform-constant", "bracket-sine-constant")
@pytest.mark.parametrize("name", slow(OF_GUARANTEES, "triangle-quartic", "table-table"))
@pytest.mark.parametrize("what", OTHERS)
def test_guarantees_have_no_place_and_no_unit(name, what):
    """Brackets, Renyi divergences, compositions, samples and forms, bit by bit."""
    random = next(draws(name, 1, seed=2))
    make = FAMILIES[name](random)
    here, there = (guarantee(make(*place)) for place in (NOWHERE, somewhere(random)))
    value = {
        "bracket": lambda made: made.repeat(3).bracket(epsilon=0.5),
        "inverse bracket": lambda made: made.bracket(delta=1e-3),
        "renyi": lambda made: made.renyi(2.5),
        "composed": lambda made: made.repeat(5).delta(0.3),
        "sampled": lambda made: made.subsample(0.3).repeat(4).delta(0.1),
        "kept": lambda made: made.to_json(),
    }[what]
    assert value(here) == value(there)


@pytest.mark.parametrize(("name", "law"), [("laplace", dpk.Laplace(0.8)), ("gaussian", dpk.Gaussian(1.7))])
def test_a_kept_guarantee_of_noise_has_no_unit(name, law):
    made = guarantee(dpk.Additive(law, 1.0)).to_json()
    wider = calibrate.rescaled(law, 4096.0)
    assert guarantee(dpk.Additive(wider, 4096.0)).to_json() == made
    assert accountants.Guarantee.from_json(made).to_json() == made
    assert "4096" not in json.dumps(guarantee(dpk.Additive(wider, 4096.0)).to_dict())


# Intervals at which the profile was half of the truth, and the bracket missed it


def test_a_far_interval_has_the_profile_of_any_other():
    near = dpk.composite("sine", "constant", epsilon=2.0, lower=0.0, upper=1.0)
    far = dpk.composite("sine", "constant", epsilon=2.0, lower=100000.1, upper=100001.2)
    found = accountants.delta(far, 1.9)
    assert found == accountants.delta(near, 1.9) == pytest.approx(0.021878850537, rel=1e-10)
    low, high = guarantee(far).bracket(epsilon=1.9)
    assert low <= found <= high


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
    here = CALIBRATED[name](1.0)
    for D in (2.0**-30, 1234.567):
        there = CALIBRATED[name](D)
        np.testing.assert_allclose(lengths(there.noise), np.multiply(lengths(here.noise), D), rtol=1e-12)
        assert getattr(there.noise, "outside", 0.0) == pytest.approx(getattr(here.noise, "outside", 0.0), rel=1e-11)
        if there.delta is not None:
            assert accountants.delta(there, there.epsilon) <= there.delta


@pytest.mark.thorough
@pytest.mark.parametrize("make", [dpk.piecewise, dpk.duchi, dpk.hybrid])
def test_calibration_of_bounded_reports_has_no_place(make):
    budget = {"epsilon": 2.0, "delta": 1e-5, "count": 20}
    here, there = (
        calibrate.composed_budget(make, **budget, lower=lower, upper=upper)
        for lower, upper in (NOWHERE, (987654.3, 987654.9))
    )
    assert here.epsilon == there.epsilon


# Tuning: a family at a location and a unit, and an objective there; the power of the unit that its values have

TUNED = {
    "piecewise": (lambda at, unit: tune.piecewise(epsilon=1.3, lower=at, upper=at + unit), "worst variance"),
    "piecewise-error": (lambda at, unit: tune.piecewise(epsilon=1.3, lower=at, upper=at + unit), "absolute error"),
    "sine": (lambda at, unit: tune.composite("sine", epsilon=2.1, lower=at, upper=at + unit), "acceptance"),
    "quartic": (lambda at, unit: tune.composite("sine", "quartic", epsilon=0.7, lower=at, upper=at + unit), "variance"),
    "triangle": (lambda at, unit: tune.piecewise_triangle(epsilon=3.0, lower=at, upper=at + unit), "average"),
    "square-wave": (lambda at, unit: tune.square_wave(epsilon=1.0, lower=at, upper=at + unit), "distribution"),
    "hybrid": (lambda at, unit: tune.hybrid(epsilon=1.0, lower=at, upper=at + unit), "quantile"),
    "recycled": (
        lambda at, unit: tune.budget_recycled("gaussian", epsilon=1.0, delta=1e-5, sensitivity=unit),
        "acceptance",
    ),
    "recycled-shape": (
        lambda at, unit: tune.budget_recycled("laplace", epsilon=1.0, delta=1e-5, sensitivity=unit),
        "worst variance",
    ),
    "staircase": (lambda at, unit: tune.staircase(epsilon=1.5, sensitivity=unit), "acceptance"),
    "merged": (lambda at, unit: tune.merged_laplace(epsilon=5.0, sensitivity=unit), "absolute error"),
    "truncated-laplace": (
        lambda at, unit: tune.truncated_laplace(epsilon=1.0, delta=1e-2, sensitivity=unit),
        "worst variance",
    ),
    "truncated-gaussian": (
        lambda at, unit: tune.truncated_gaussian(epsilon=1.0, delta=1e-2, sensitivity=unit),
        "worst variance",
    ),
}
OBJECTIVES = {
    "worst variance": (lambda at, unit: tune.worst_variance, 2),
    "variance": (lambda at, unit: tune.variance_at(at + unit / 4), 2),
    "average": (lambda at, unit: tune.average_variance(at + unit * np.array([0.0, 0.5, 1.0]), [1.0, 3.0]), 2),
    "absolute error": (lambda at, unit: tune.absolute_error(), 1),
    "quantile": (lambda at, unit: tune.quantile(0.1), 1),
    "distribution": (lambda at, unit: tune.distribution(1e4), 1),
    "acceptance": (lambda at, unit: tune.acceptance(0.75 * unit), 0),
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
    here, there = (tune.best(family(*at), objective(*at)) for at in (NOWHERE, (2.0**33, 2.0**-4)))
    assert there.value == pytest.approx(here.value * 2.0 ** (-4 * power), rel=1e-12)
    assert there.evaluations == here.evaluations
    if hasattr(here.mechanism, "noise"):
        found = lengths(there.mechanism.noise)
        np.testing.assert_allclose(found, np.multiply(lengths(here.mechanism.noise), 2.0**-4), rtol=1e-12)
    else:
        moved = dataclasses.replace(here.mechanism, **place(here.mechanism, *there.mechanism.input_interval))
        assert moved == there.mechanism


def place(mechanism, lower, upper):
    if isinstance(mechanism, dpk.Mixture):
        parts = {"first": mechanism.first, "second": mechanism.second}
        return {name: dataclasses.replace(part, lower=lower, upper=upper) for name, part in parts.items()}
    return {"lower": lower, "upper": upper}


@pytest.mark.thorough
def test_tuning_anywhere_finds_the_same():
    """Far from 0, where no length of the interval is one of its floats."""
    families = [tune.piecewise(epsilon=1.3, lower=at, upper=at + unit) for at, unit in (NOWHERE, (1e9 + 0.1, 1.7))]
    here, there = (tune.best(family, tune.absolute_error()) for family in families)
    assert there.mechanism.width == here.mechanism.width
    assert there.value == pytest.approx(here.value * 2 * families[1].unit, rel=1e-12)


@pytest.mark.thorough
def test_tuning_at_many_budgets_has_no_place_and_no_unit():
    eps = np.array([0.5, 1.0, 3.0])
    here, there = (
        tune.many(tune.piecewise(epsilon=eps, lower=at, upper=at + unit), tune.worst_variance)
        for at, unit in (NOWHERE, (2.0**33, 2.0**-4))
    )
    np.testing.assert_array_equal(here.parameters["eta"], there.parameters["eta"])
    np.testing.assert_allclose(there.values, here.values * 2.0**-8, rtol=1e-12)
