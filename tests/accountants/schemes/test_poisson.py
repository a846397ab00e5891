"""Amplification by sampling: against enumeration of samples, its inverse, limits and bad input."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accountants.schemes.poisson import amplified_budget, budget_on_sample

EPS = np.array([0.0, 1e-9, 0.01, 0.7, 3.0, 20.0, 700.0])


@pytest.mark.parametrize("rate", [1e-6, 0.03, 0.5, 1.0])
def test_formula_and_its_inverse(rate):
    eps, delta = amplified_budget(EPS, 1e-5, rate)
    np.testing.assert_allclose(eps[:-1], np.log1p(rate * np.expm1(EPS[:-1])), rtol=1e-12, atol=1e-16)
    assert eps[-1] == pytest.approx(700 + math.log(rate), rel=1e-12)
    back, delta_back = budget_on_sample(eps, delta, rate)
    np.testing.assert_allclose(back, EPS, rtol=1e-9, atol=1e-15)
    assert delta_back == pytest.approx(1e-5, rel=1e-15)
    assert delta == pytest.approx(1e-5 * rate)


def test_amplification_only_helps():
    random = np.random.default_rng(5)
    eps, rate = random.uniform(0, 10, 200), random.uniform(1e-6, 1, 200)
    assert np.all(amplified_budget(eps, 0.1, rate)[0] <= eps * (1 + 1e-15))
    assert np.all(np.diff(amplified_budget(2.0, 0.1, np.linspace(0.01, 1, 50))[0]) > 0)
    np.testing.assert_allclose(amplified_budget(eps, 0.1, 1.0)[0], eps, rtol=1e-15)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_it_holds_for_randomised_response_and_is_tight(rate):
    """A vote for one record of the sample's parity, enumerated over all Poisson samples, one record more or less."""
    eps = 1.3
    p = math.exp(eps) / (1 + math.exp(eps))

    def report_one(records):
        total = 0.0
        for kept in itertools.product((0, 1), repeat=len(records)):
            probability = math.prod(rate if k else 1 - rate for k in kept)
            any_one = any(k and r for k, r in zip(kept, records, strict=True))
            total += probability * (p if any_one else 1 - p)
        return total

    bound = float(amplified_budget(eps, 0.0, rate)[0])
    for others in ((), (0,), (1, 0), (1, 1, 1)):
        with_one, without = report_one((*others, 1)), report_one(others)
        loss = max(abs(math.log(with_one / without)), abs(math.log((1 - with_one) / (1 - without))))
        assert loss <= bound + 1e-12
    assert math.log(report_one((1,)) / report_one(())) == pytest.approx(bound, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_gradients():
    for function in (amplified_budget, budget_on_sample):
        for index in range(2):
            gradient = jax.grad(lambda *a, f=function: f(a[0], 1e-3, a[1])[0], argnums=index)(1.1, jnp.float64(0.3))
            h = [0.0, 0.0]
            h[index] = 1e-6
            up, down = (function(1.1 + s * h[0], 1e-3, 0.3 + s * h[1])[0] for s in (1, -1))
            assert float(gradient) == pytest.approx((up - down) / 2e-6, rel=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: amplified_budget(-1.0, 0.1, 0.5), r"epsilon: -1"),
        (lambda: amplified_budget(1.0, 1.1, 0.5), r"delta: 1.1 is not in \[0, 1\]"),
        (lambda: amplified_budget(1.0, 0.1, 0.0), r"rate: 0"),
        (lambda: budget_on_sample(1.0, 0.1, 1.5), r"rate: 1.5"),
        (lambda: budget_on_sample(1.0, 0.1, 0.1), r"rate: 0.1 is not in \(0.1, 1\]"),
        (lambda: budget_on_sample(np.nan, 0.1, 0.5), r"epsilon: nan"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
