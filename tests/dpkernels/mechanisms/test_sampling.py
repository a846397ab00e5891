"""Samples have the law their cdf states, and the statistics would reject noise 5 % too wide.

Seeds are fixed. Were they drawn anew, a right library would fail the KS tests with probability at most
FALSE_ALARMS = 1e-6 in all (Massart's bound holds for every n), and each of the 6 sigma tests with about 2e-9.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np
import pytest
from helpers import ALL, ATOMIC, WINDOWED, input_range, inputs, over, spacing

import dpkernels as dpk

N = 1 << 18
FALSE_ALARMS = 1e-6

# Where float32 cannot tell reports 1e-4 of the interval apart, its samples are coarse by nature.
FLOAT32 = [name for name, m in ALL.items() if 2**29 * spacing(m) < 1e-4 * input_range(m)]
# The variance of this one hangs on the base, of which N reports hold 0.3 on average.
COMMON = [name for name in ALL if name != "piecewise-20"]
GENERATORS = {"threefry": dpk.simulation_key(3), "chacha20": dpk.key_from_bytes(bytes(range(32)))}

KS_TESTS = len(ALL) + len(FLOAT32) + len(GENERATORS)
CRITICAL = np.sqrt(np.log(2 * KS_TESTS / FALSE_ALARMS) / (2 * N))


@lru_cache(maxsize=4)
def draw(m, dtype):
    """N reports and their inputs as float64, from a sampler working in ``dtype``."""
    margin = 1e-6 * input_range(m)
    x = np.resize(np.clip(inputs(m), m.lower + margin, m.upper - margin), N).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        y = m.sample(dpk.simulation_key(0), x)
        assert y.dtype == dtype
    return np.asarray(y, np.float64), x.astype(np.float64)


def uniform_transform(m, y, x):
    """cdf(y, x), spread evenly over the jump where the report is an atom: uniform if and only if y has the law."""
    at, p = m.atoms(x)
    on_atom = np.isclose(y, at, rtol=0, atol=1e-5 * input_range(m))
    snapped = np.where(on_atom.any(0), (at * on_atom).sum(0), y)
    spread = np.random.default_rng(0).uniform(size=y.shape)
    return m.cdf(snapped, x) - spread * (p * on_atom).sum(0)


def distance_from_uniform(u):
    """Kolmogorov and Smirnov's statistic."""
    ranks, u = np.arange(len(u)) / len(u), np.sort(u)
    return max((u - ranks).max(), (ranks + 1 / len(u) - u).max())


def check_law(m, dtype):
    y, x = draw(m, dtype)
    assert distance_from_uniform(uniform_transform(m, y, x)) < CRITICAL
    too_wide = x + 1.05 * (y - x)
    assert distance_from_uniform(uniform_transform(m, too_wide, x)) > 1.5 * CRITICAL


@pytest.mark.lengthy
@pytest.mark.quick(
    "piecewise-0.5",
    "triangle-quartic0.3-5-w1.3",
    "humps-1-w0.7",
    "duchi-0.1",
    "hybrid-1",
    "optimal-1",
    "central-piecewise-1",
)
@over(ALL)
def test_law_in_float64(m):
    check_law(m, "float64")


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.5", "humps-1-w0.7", "hybrid-5", "optimal-1")
@over(ALL, *FLOAT32)
def test_law_in_float32(m):
    check_law(m, "float32")


@pytest.mark.lengthy
@over(ALL, *COMMON)
def test_mean_and_variance_within_6_sigma(m):
    y, x = draw(m, "float64")
    noise = (y - x) / np.sqrt(m.variance(x))
    squares = noise**2
    assert abs(noise.mean()) < 6 / np.sqrt(N)
    assert abs(squares.mean() - 1) < 6 * squares.std() / np.sqrt(N) + 1e-6


@pytest.mark.lengthy
@over(ALL)
def test_reports_stay_in_the_output_interval(m):
    y, _ = draw(m, "float64")
    assert m.output_interval[0] - 4 * spacing(m) <= y.min()
    assert y.max() <= m.output_interval[1] + 4 * spacing(m)


@pytest.mark.lengthy
@over(ALL, *FLOAT32)
def test_float32_reports_stay_in_the_output_interval(m):
    y, _ = draw(m, "float32")
    rounding = 2**31 * spacing(m)
    assert m.output_interval[0] - rounding <= y.min()
    assert y.max() <= m.output_interval[1] + rounding


@over(ATOMIC)
def test_atoms_come_as_often_as_stated(m):
    y, x = draw(m, "float64")
    for start in range(5):
        given, reports = x[start], y[start::5]
        for at, p in zip(*m.atoms(given), strict=True):
            share = np.isclose(reports, at, rtol=0, atol=1e-9 * input_range(m)).mean()
            assert abs(share - p) < 6 * np.sqrt(p * (1 - p) / len(reports)) + 1e-8


@pytest.mark.lengthy
@pytest.mark.parametrize("generator", GENERATORS)
def test_law_under_each_generator(generator):
    m = WINDOWED["bump-1"]
    x = np.resize(inputs(m)[1:-1], N).astype(np.float32)
    y = np.asarray(m.sample(GENERATORS[generator], x), np.float64)
    assert distance_from_uniform(m.cdf(y, x.astype(np.float64))) < CRITICAL


def test_neighbouring_reports_are_uncorrelated():
    m = WINDOWED["piecewise-0.5"]
    y, x = draw(m, "float64")
    noise = (y - x) / np.sqrt(m.variance(x))
    for lag in (1, 2, 16, 1000):
        assert abs((noise[lag:] * noise[:-lag]).mean()) < 6 / np.sqrt(N - lag)
