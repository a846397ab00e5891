"""Quantities of mechanisms whose parameters JAX traces: values and derivatives are those of plain numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import shuffled, tune

SPAN = {"lower": -1.0, "upper": 2.0}
X, Y = 0.3, 0.55
READINGS = {
    "variance": lambda m: m.variance(X),
    "worst variance": lambda m: m.worst_variance,
    "central variance": lambda m: m.central_variance,
    "absolute error": lambda m: m.absolute_error(X),
    "pdf": lambda m: m.pdf(Y, X),
    "log_prob": lambda m: m.log_prob(Y, X),
    "cdf": lambda m: m.cdf(Y, X),
    "mean": lambda m: m.mean(X),
}
# (a mechanism of one parameter, its value, its readings)
MECHANISMS = {
    "piecewise": (lambda eta: dpk.piecewise(epsilon=1.3, eta=eta, **SPAN), 3.1),
    "composite": (lambda width: dpk.composite("sine", dpk.Quartic(0.6), width=width, epsilon=1.3, **SPAN), 0.7),
    "duchi": (lambda epsilon: dpk.duchi(epsilon=epsilon, **SPAN), 1.3),
    "hybrid": (lambda epsilon: dpk.hybrid(epsilon=epsilon, **SPAN), 1.3),
    "square_wave": (lambda b: dpk.square_wave(epsilon=1.3, half_width=b, **SPAN), 0.2),
    "central_piecewise": (
        lambda core: dpk.central_piecewise(epsilon=1.3, sensitivity=1.0, steps=3, core=core, **SPAN),
        0.4,
    ),
    "gaussian": (lambda sigma: dpk.gaussian(sigma=sigma, sensitivity=1.0), 2.1),
    "laplace": (lambda epsilon: dpk.laplace(epsilon=epsilon), 0.9),
    "recycled": (lambda q: dpk.budget_recycled(dpk.Gaussian(2.1), theta=1.4, q=q), 0.6),
    "recycled-theta": (lambda theta: dpk.budget_recycled(dpk.Gaussian(2.1), theta=theta, q=0.6), 1.4),
}


# A number of one parameter beside its value: of accountants, and objectives of tune.
ACCOUNTED = {
    "delta": (lambda sigma: accountants.delta(dpk.gaussian(sigma=sigma, sensitivity=1.0), 0.7), 2.1),
    "delta of recycled noise": (
        lambda q: accountants.delta(dpk.budget_recycled(dpk.Gaussian(2.1), theta=1.4, q=q, sensitivity=1.0), 0.7),
        0.6,
    ),
    "epsilon": (lambda sigma: accountants.epsilon(dpk.gaussian(sigma=sigma, sensitivity=1.0), 1e-5), 2.1),
    "composed": (
        lambda sigma: accountants.guarantee(dpk.gaussian(sigma=sigma, sensitivity=1.0)).repeat(5).delta(2.0),
        2.1,
    ),
    "shuffled": (
        lambda eta: shuffled(dpk.piecewise(epsilon=2.0, eta=eta, lower=0.0, upper=1.0), 30_000).estimate_delta(0.08),
        3.0,
    ),
    "acceptance": (lambda b: tune.acceptance(1.0)(dpk.laplace(epsilon=b)), 0.9),
}


@pytest.mark.lengthy
def test_a_report_that_never_comes_has_no_slope(x64):
    """Y is neither of Duchi's reports: its density is 0 for every epsilon."""
    value, slope = jax.value_and_grad(lambda epsilon: dpk.duchi(epsilon=epsilon, **SPAN).log_prob(Y, X))(1.3)
    assert (value, slope) == (-np.inf, 0.0)


def check(function, at, value, slope):
    """Compare values and derivatives with plain values and central differences of fourth order."""
    plain, step = function(at), 1e-4 * at
    np.testing.assert_allclose(value, plain, rtol=1e-12, atol=1e-300)
    assert np.isfinite(plain).all()
    near, far = (np.subtract(function(at + n * step), function(at - n * step)) for n in (1, 2))
    numeric, noise = (8 * near - far) / (12 * step), 1e-13 * np.abs(plain) / step
    assert np.all(np.abs(slope - numeric) <= 1e-6 * np.abs(numeric) + noise), (slope, numeric)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise", "hybrid", "gaussian")
@pytest.mark.parametrize("name", MECHANISMS)
def test_readings_of_a_mechanism(name, x64):
    make, at = MECHANISMS[name]
    left_out = set() if hasattr(make(at), "central_variance") else {"central variance"}
    left_out |= {"log_prob"} if make(at).pdf(Y, X) == 0 else set()
    known = [read for key, read in READINGS.items() if key not in left_out]

    def all_of(parameter):
        made = make(parameter)
        return [read(made) for read in known]

    def twice(parameter):
        values = jnp.stack(all_of(parameter))
        return values, values

    slope, value = jax.jit(jax.jacfwd(twice, has_aux=True))(at)
    check(all_of, at, value, slope)


@pytest.mark.quick("delta")
@pytest.mark.parametrize("name", ACCOUNTED)
def test_what_is_accounted(name, x64):
    function, at = ACCOUNTED[name]
    check(function, at, *jax.jit(jax.value_and_grad(function))(at))
