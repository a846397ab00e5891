"""``log_prob`` and ``mass`` of reports as they are released: every report is possible, and NaN is no answer."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk

INTERVALS = [(0.0, 1.0), (0.0, 120.0), (1000.0, 1001.0), (-3.0, 7.0)]
BOUNDED = {
    "duchi": dpk.duchi,
    "hybrid": dpk.hybrid,
    "optimal": dpk.optimal,
    "piecewise": dpk.piecewise,
    "sine-quartic": lambda **given: dpk.composite("sine", "quartic", **given),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_exact_reports_are_possible(name, interval, epsilon):
    """Also those that the lattice of the integers puts beside the float mechanism's atoms."""
    low, high = interval
    m = BOUNDED[name](epsilon=epsilon, lower=low, upper=high)
    x = np.linspace(low, high, 499)
    y = dpk.perturb(x, m)
    assert np.isfinite(m.log_prob(y, x)).all()
    if name in ("duchi", "optimal"):
        assert (m.mass(y, x) > 0).all()


def test_a_share_of_the_hybrids_reports_are_atoms():
    """e^(-eps/2) of them: 0.1353 of 10,000 at eps 4, within 6 deviations."""
    x = np.linspace(0.0, 1.0, 10_000)
    m = dpk.hybrid(epsilon=4.0, lower=0.0, upper=1.0)
    atom_fraction, expected = (m.mass(dpk.perturb(x, m), x) > 0).mean(), math.exp(-2.0)
    assert abs(atom_fraction - expected) < 6 * math.sqrt(expected * (1 - expected) / 10_000)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("sampled", [1, 2])
def test_exact_vectors_are_possible(kind, sampled):
    """Of intervals of their own, whose middles and atoms are rounded."""
    low, high = np.array([0.0, -1.3, 5.1]), np.array([1.0, 2.2, 7.7])
    m = dpk.multivariate(epsilon=1.9, lower=low, upper=high, dimensions=3, sampled=sampled)
    x = np.linspace(low, high, 200).astype(kind)
    assert np.isfinite(m.log_prob(dpk.perturb(x, m), x)).all()


EVERY = {name: make(epsilon=1.0, lower=0.0, upper=1.0) for name, make in BOUNDED.items()} | {
    "square wave": dpk.square_wave(epsilon=1.0, lower=0.0, upper=1.0),
    "central": dpk.central_piecewise(epsilon=1.0, lower=0.0, upper=4.0, sensitivity=1.0),
    "laplace": dpk.laplace(epsilon=1.0, sensitivity=1.0),
    "gaussian": dpk.gaussian(sigma=2.0, sensitivity=1.0),
    "staircase": dpk.staircase(epsilon=1.0, sensitivity=1.0),
    "truncated": dpk.truncated_laplace(epsilon=1.0, delta=1e-6, sensitivity=1.0),
    "discrete": dpk.discrete_laplace(epsilon=1.0, sensitivity=1.0),
}


@pytest.mark.lengthy
@pytest.mark.quick("asarray0-*", "asarray1-piecewise", "asarray1-laplace")
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_nan_is_no_likelihood_and_an_infinite_report_is_impossible(name, kind):
    m = EVERY[name]
    y, x = kind([math.nan, 0.5, math.inf, -math.inf]), kind([0.5, math.nan, 0.5, 0.5])
    for method, ends in ((m.log_prob, (-math.inf, -math.inf)), (m.mass, (0.0, 0.0)), (m.cdf, (1.0, 0.0))):
        values = np.asarray(method(y, x), float)
        assert np.isnan(values[:2]).all()
        assert values[2:] == pytest.approx(ends, abs=1e-6)
