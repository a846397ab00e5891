"""Exact profiles of one report against 50 digits, at random parameters of every family."""

from __future__ import annotations

import zlib

import mpmath as mp
import numpy as np
import pytest
from oracle import exact_profile
from random_mechanisms import FAMILIES, budgets, somewhere

import accountants
import dpkernels as dpk

# Of every mechanism so many budgets; below the first the truth is next to what floats can hold.
BUDGETS, LEAST = 5, 1e-290
# By how much of the truth a value may be below it, which has fifty digits.
BELOW, DIGITS = 1e-40, mp.mpf(10) ** -40
# How many mechanisms: 20,000 profiles in the slow set, and a few hundred by default.
MANY = -(-20_000 // (BUDGETS * len(FAMILIES)))
FEW = 6
QUICK = (
    *("uniform-constant", "sine-constant", "triangle-constant", "table-table", "type-I", "type-II", "wang2019"),
    *("duchi", "hybrid", "square-wave", "central-piecewise", "multivariate", "laplace", "gaussian", "discrete-laplace"),
)


def search(name, count, seed=0):
    """(the least and the largest relative error, and where they are) of so many mechanisms."""
    worst = [(0.0, None), (0.0, None)]
    for index in range(count):
        random = np.random.default_rng([seed, index, zlib.crc32(name.encode())])
        m = FAMILIES[name](random)(*somewhere(random))
        eps = budgets(random, m, BUDGETS)
        for at, found in zip(eps.tolist(), np.asarray(accountants.delta(m, eps)).tolist(), strict=True):
            truth = exact_profile(m, at)
            assert 0.0 <= found <= 1.0, (m, at, found)
            if truth > LEAST:
                error = float(found / truth - 1)
                worst = [min(worst[0], (error, (m, at)), key=first), max(worst[1], (error, (m, at)), key=first)]
    return worst


def first(item):
    return item[0]


@pytest.mark.lengthy
@pytest.mark.parametrize("name", QUICK)
def test_no_profile_is_below_the_truth(name):
    assert search(name, FEW)[0][0] >= -BELOW


# Noise with an infinite loss, tables whose reports of nearly equal losses are one, and masses far below 1.
# The seeds of mechanisms of each family.
FRAGILE = {
    "truncated-merged": (7, 8, 9),
    "truncated-staircase": (5,),
    "optimal": (0,),
    "central-piecewise": (4, 5),
    "discrete-gaussian": (1, 3),
}


@pytest.mark.lengthy
@pytest.mark.quick("truncated-staircase", "optimal")
@pytest.mark.parametrize("name", FRAGILE)
def test_the_truth_is_between_both_ends_to_the_last_digit(name):
    for index in FRAGILE[name]:
        random = np.random.default_rng([7, index, zlib.crc32(name.encode())])
        m = FAMILIES[name](random)(*somewhere(random))
        single = accountants.guarantee(m)
        for at in [*budgets(random, m, BUDGETS).tolist(), 0.0, 40.0]:
            low, high = single.bracket(epsilon=at)
            truth = exact_profile(m, at)
            assert low * (1 - DIGITS) <= truth <= high * (1 + DIGITS) + 5e-324, (m, at)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_no_profile_of_twenty_thousand_is_below_the_truth(name, capsys):
    """What is above is next to the largest loss, where delta is rounded upwards."""
    below, above = search(name, MANY, seed=1)
    with capsys.disabled():
        print(f"\n{name}: {MANY * BUDGETS} profiles, {below[0]:.2e} to {above[0]:.2e} of the truth")
    assert below[0] >= -BELOW, below[1]


# The oracle itself: against closed forms and quadrature of the densities as they are defined

POINTS = 400_000


def test_the_oracle_has_the_closed_forms():
    with mp.workdps(40):
        laplace = exact_profile(dpk.Additive(dpk.Laplace(2.0), 3.0), 0.5)
        assert abs(laplace - (1 - mp.exp(mp.mpf(-0.5)))) < mp.mpf(10) ** -38
        normal = exact_profile(dpk.Additive(dpk.Gaussian(2.0), 3.0), 0.5)
        a, b = (sign * mp.mpf(0.75) - mp.mpf(1) / 3 for sign in (1, -1))
        assert abs(normal - (mp.ncdf(a) - mp.exp(mp.mpf(0.5)) * mp.ncdf(b))) < mp.mpf(10) ** -38
        points = exact_profile(dpk.duchi(epsilon=1.0, lower=0.0, upper=1.0), 0.25)
        assert abs(points - (mp.e - mp.exp(mp.mpf(0.25))) / (1 + mp.e)) < mp.mpf(10) ** -38


ON_BASES = [f"{h}-{g}" for h in ("uniform", "sine", "triangle", "table") for g in ("constant", "quartic", "table")]


@pytest.mark.quick("sine-quartic", "central-piecewise")
@pytest.mark.parametrize("name", [*ON_BASES, "square-wave", "central-piecewise"])
def test_the_oracle_integrates_the_densities(name):
    """On [0, 1], of ordinary widths, as precisely as a midpoint rule on the reports finds jumps."""
    for index in range(10):
        random = np.random.default_rng([2, index, zlib.crc32(name.encode())])
        m = FAMILIES[name](random)(0.0, 1.0)
        wide = m.half_width if isinstance(m, dpk.SquareWave) else getattr(m, "width", 1.0)
        if not 0.1 < wide < 1.9 or np.ptp(m.output_interval) > 100:
            continue
        apart = min(m.sensitivity, 1.0) if isinstance(m, dpk.CentralPiecewise) else 1.0
        low, high = m.output_interval
        y = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
        p, q = m.pdf(y, np.float64(apart)), m.pdf(y, np.float64(0.0))
        for eps in budgets(random, m, 3).tolist():
            found = np.maximum(p - np.exp(eps) * q, 0.0).mean() * (high - low)
            one_cell = p.max() * (high - low) / len(y)
            assert float(exact_profile(m, eps)) == pytest.approx(found, rel=1e-4, abs=8 * one_cell)


NOISE = [name for name in FAMILIES if name.split("-")[0] in ("merged", "staircase", "truncated", "recycled")]


@pytest.mark.lengthy
@pytest.mark.quick("recycled-merged", "truncated-staircase")
@pytest.mark.parametrize("name", [name for name in NOISE if "discrete" not in name])
def test_the_oracle_integrates_the_densities_of_noise(name):
    for index in range(8):
        random = np.random.default_rng([3, index, zlib.crc32(name.encode())])
        m = FAMILIES[name](random)(0.0, 1.0)
        reach = 40 * float(np.sqrt(m.noise.variance)) + 2
        if not 1 < reach < 400:
            continue
        z = reach * (2 * (np.arange(POINTS) + 0.5) / POINTS - 1)
        for eps in budgets(random, m, 2).tolist():
            sticks = (np.maximum(m.noise.prob(z) - np.exp(eps) * m.noise.prob(z - D), 0.0).mean() for D in (1.0, -1.0))
            assert float(exact_profile(m, eps)) == pytest.approx(2 * reach * max(sticks), rel=1e-3, abs=1e-4)
