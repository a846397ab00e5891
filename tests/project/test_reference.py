"""Published and independently computed values: reference.json and the closed forms of Ma 2021."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dpkernels as dpk
from benchmarks.literature_composite import h1_rate

REFERENCE = json.loads((Path(__file__).parents[1] / "support" / "reference.json").read_text())
CONSTANT_BASE = REFERENCE["windowed_constant_base_optima"]
QUARTIC_BASE = REFERENCE["windowed_quartic_base_pointwise_optima"]
TYPE_I = REFERENCE["type_I_worst_case_optima_on_-1_1"]
ON_UNIT = {"lower": -1.0, "upper": 1.0}

over_type_one = pytest.mark.parametrize("row", TYPE_I, ids=lambda row: str(row["eps"]))


def _random_parameters(count=25):
    rng = np.random.default_rng(5)
    return zip(rng.uniform(0.05, 9, count), 1 + rng.lognormal(0, 1.5, count), strict=True)


over_parameters = pytest.mark.parametrize(("epsilon", "eta"), list(_random_parameters()))
INPUTS = np.linspace(-1, 1, 9)


@pytest.mark.parametrize(("objective", "column"), [("worst", "worst_case"), ("central", "at_centre")])
@pytest.mark.parametrize("row", CONSTANT_BASE, ids=lambda row: f"{row['window']}-{row['eps']}")
def test_constant_base_optima(row, objective, column):
    m = dpk.composite(
        row["window"], epsilon=row["eps"], condition="sup_inf", objective=objective, lower=-3.0, upper=17.0
    )
    expected, squared_range = row[column], 20.0**2
    # The variance is flat at its optimum: a width off by 1e-6 moves the other columns by more than the optimised one.
    optimised, other = (1e-9, 1e-5) if objective == "worst" else (1e-5, 1e-9)
    assert m.width == pytest.approx(expected["width_over_L"], abs=1e-6)
    assert m.worst_variance / squared_range == pytest.approx(expected["variance_worst"], rel=optimised)
    assert m.central_variance / squared_range == pytest.approx(expected["variance_at_centre"], rel=other)
    assert h1_rate(m) == pytest.approx(expected["H1"], rel=1e-5)


@pytest.mark.lengthy
@pytest.mark.quick("0.5-sine")
@pytest.mark.parametrize("window", ["uniform", "sine"])
@pytest.mark.parametrize("row", QUARTIC_BASE, ids=lambda row: str(row["eps"]))
def test_quartic_base_optima(row, window):
    m = dpk.composite(window, "quartic", epsilon=row["eps"], lower=0.0, upper=1.0, objective="central")
    digits = len(str(row[window]).split(".")[1])
    assert m.central_variance == pytest.approx(row[window], abs=0.51 * 10.0**-digits)


@pytest.mark.quick("0.5")
@pytest.mark.parametrize("row", QUARTIC_BASE, ids=lambda row: str(row["eps"]))
def test_quartic_base_optima_of_the_triangle(row):
    """The listed values come from a grid that misses the constraint at the very edge, |v| -> 1.

    So they are slightly too small to be private: the true optimum lies 2e-5 to 3e-4 above them.
    """
    m = dpk.composite("triangle", "quartic", epsilon=row["eps"], lower=0.0, upper=1.0, objective="central")
    listed = row["triangle"]
    assert listed * (1 - 1e-9) <= m.central_variance <= listed * (1 + 5e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.2, 2.0])
def test_uniform_on_constant_is_best_of_the_six(epsilon):
    best = dpk.composite(epsilon=epsilon, lower=0.0, upper=1.0, objective="central").central_variance
    for window in ("uniform", "sine", "triangle"):
        for base in ("constant", "quartic"):
            m = dpk.composite(window, base, epsilon=epsilon, lower=0.0, upper=1.0, objective="central")
            assert best <= m.central_variance * (1 + 1e-9)


@over_type_one
def test_type_I_worst_case_optima(row):
    m = dpk.piecewise(epsilon=row["eps"], **ON_UNIT)
    assert 2 / m.width == pytest.approx(row["eta"], abs=1e-5)
    assert m.worst_variance == pytest.approx(row["worst_variance"], rel=1e-9)


@over_type_one
@pytest.mark.parametrize(
    ("make", "column"),
    [(dpk.piecewise_wang2019, "piecewise_wang2019"), (dpk.duchi, "duchi"), (dpk.hybrid, "hybrid")],
)
def test_worst_case_variances(row, make, column):
    assert make(epsilon=row["eps"], **ON_UNIT).worst_variance == pytest.approx(row[column], rel=1e-9)


@over_type_one
def test_bounded_mechanisms_beat_laplace(row):
    for make in (dpk.piecewise, dpk.piecewise_wang2019, dpk.hybrid):
        assert make(epsilon=row["eps"], **ON_UNIT).worst_variance < row["laplace"]


def test_type_I_and_duchi_change_places():
    """Duchi is better up to eps of about 1.18; towards 0 the two are 16/(3 eps^2) and 4/eps^2."""
    for epsilon, type_I_wins in ((1.17, False), (1.19, True)):
        variances = [make(epsilon=epsilon, **ON_UNIT).worst_variance for make in (dpk.piecewise, dpk.duchi)]
        assert (variances[0] < variances[1]) == type_I_wins
    small = 0.01
    assert dpk.piecewise(epsilon=small, **ON_UNIT).worst_variance * small**2 == pytest.approx(16 / 3, rel=1e-2)
    assert dpk.duchi(epsilon=small, **ON_UNIT).worst_variance * small**2 == pytest.approx(4, rel=1e-2)


@over_parameters
def test_type_I_in_the_letters_of_ma2021(epsilon, eta):
    """Window [k x - a, k x + a], density p inside and p e^-eps outside, on [-(k + a), k + a]."""
    m = dpk.piecewise(epsilon=epsilon, eta=eta, **ON_UNIT)
    E1 = math.expm1(epsilon)
    a = (E1 + eta) / ((eta - 1) * E1)
    k = (eta - 1) * a
    p = math.exp(epsilon) / (2 * a * k * E1)
    x = INPUTS
    inside, edge = k * x + 0.999 * a, k + a
    np.testing.assert_allclose(m.output_interval, [-edge, edge], rtol=1e-12)
    np.testing.assert_allclose(m.pdf(inside, x), p, rtol=1e-9)
    np.testing.assert_allclose(m.pdf(k * x[:-1] + 1.001 * a, x[:-1]), p * math.exp(-epsilon), rtol=1e-9)
    np.testing.assert_allclose(m.pdf(k * x[1:] - 1.001 * a, x[1:]), p * math.exp(-epsilon), rtol=1e-9)
    q = math.exp(epsilon) / (E1 + eta)
    np.testing.assert_allclose(m.cdf(k * x + a, x) - m.cdf(k * x - a, x), q, rtol=1e-9)
    variance = (k - 1) * x**2 + a / (3 * (eta - 1)) * (eta**3 / E1 + 1)
    np.testing.assert_allclose(m.variance(x), variance, rtol=1e-9)


@over_parameters
def test_type_II_in_the_letters_of_ma2021(epsilon, eta):
    """Triangle window over [k x - a, k x + a]."""
    m = dpk.piecewise_triangle(epsilon=epsilon, eta=eta, **ON_UNIT)
    E1 = math.expm1(epsilon)
    a = ((E1 + 2) / (eta - 1) + 2) / E1
    k = (eta - 1) * a
    x = INPUTS
    np.testing.assert_allclose(m.output_interval, [-(k + a), k + a], rtol=1e-12)
    variance = (k - 1) * x**2 + a / (6 * (eta - 1)) * (4 * eta**3 / E1 + 1)
    np.testing.assert_allclose(m.variance(x), variance, rtol=1e-9)
    peak, outside = m.pdf(k * x, x), m.pdf(k * x[:-1] + 1.001 * a, x[:-1])
    np.testing.assert_allclose(peak[:-1] / outside, math.exp(epsilon), rtol=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_wang2019_is_type_I_at_its_eta(epsilon):
    """k = e^(eps/2)/(e^(eps/2) - 1), a = 1/(e^(eps/2) - 1)."""
    m, t = dpk.piecewise_wang2019(epsilon=epsilon, **ON_UNIT), math.exp(epsilon / 2)
    assert m.output_interval[1] == pytest.approx((t + 1) / (t - 1), rel=1e-12)
    expected = INPUTS**2 / (t - 1) + (t + 3) / (3 * (t - 1) ** 2)
    np.testing.assert_allclose(m.variance(INPUTS), expected, rtol=1e-9)
