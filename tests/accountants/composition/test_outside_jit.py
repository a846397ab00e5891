"""Values and gradients of JAX numbers outside ``jit``: those of plain numbers, composed without a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants.composition import dispatch

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the composition itself is traced."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the composition was traced outside jit")

    monkeypatch.setattr(dispatch, "_evaluate_traced", refuse)


def weights(t: Any) -> Any:
    """Return a table of twenty outcomes, so that more numbers move than are differentiated forwards."""
    levels = np.linspace(-1, 1, 20)
    xp = jnp if isinstance(t, jax.Array) else np
    p, q = xp.exp(t * levels**2 + 0.3 * levels), xp.exp(0 * t - 0.2 * levels)
    return accountants.discrete_pair(p / p.sum(), q / q.sum())


# The guarantee at one parameter, a value of it, eps, and whether derivatives are taken in its only parameter.
CASES: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "grid": (lambda t: accountants.guarantee(dpk.laplace(epsilon=t)).repeat(100), 0.1, 0.97),
    "gaussian": (lambda t: accountants.guarantee(dpk.gaussian(sigma=t), 1.0).repeat(40), 8.0, 1.0),
    "samples": (lambda t: accountants.guarantee(dpk.gaussian(sigma=1.0), 1.0).subsample(t).repeat(50), 0.05, 1.0),
    "few samples": (lambda t: accountants.guarantee(dpk.gaussian(sigma=t), 1.0).subsample(0.1).repeat(5), 1.0, 1.0),
    "table": (lambda t: accountants.guarantee(weights(t)).repeat(2), 0.4, 0.3),
    "large table": (lambda t: accountants.guarantee(weights(t)).repeat(30), 0.4, 1.0),
    "one release": (lambda t: accountants.guarantee(dpk.gaussian(sigma=t), 1.0), 1.0, 1.0),
    "mixed": (
        lambda t: (
            accountants.guarantee(dpk.gaussian(sigma=10.0), 1.0)
            .repeat(10)
            .compose(accountants.guarantee(dpk.laplace(epsilon=t)).repeat(20))
        ),
        0.1,
        1.0,
    ),
}


def difference(function: Callable[[float], Any], t: float) -> float:
    """Return the central difference quotient of order four."""
    h = 2e-4 * t
    near, far = (function(t + k * h) - function(t - k * h) for k in (1, 2))
    return float((8 * near - far) / (12 * h))


@pytest.mark.parametrize("name", [*CASES])
def test_values_and_gradients_are_those_of_plain_numbers(name: str) -> None:
    make, t, eps = CASES[name]
    delta = make(t).estimate_delta(eps)
    for quantity, at in (("delta", eps), ("epsilon", float(delta))):

        def function(t: Any, at: Any = at, quantity: str = quantity) -> Any:
            return getattr(make(t), f"estimate_{quantity}")(at)

        value, (by_t, by_argument) = jax.value_and_grad(function, (0, 1))(t, at)
        np.testing.assert_allclose(value, function(t), rtol=1e-7)
        np.testing.assert_allclose(by_t, difference(function, t), rtol=2e-6)
        np.testing.assert_allclose(by_argument, difference(lambda at: function(t, at), at), rtol=2e-6)


def test_vmap_jacfwd_and_arrays_of_eps() -> None:
    make, t, _ = CASES["gaussian"]
    eps = np.array([0.5, 1.0, 2.0])
    values, slopes = jax.vmap(jax.value_and_grad(lambda t: make(t).estimate_delta(1.0)))(jnp.array([6.0, 8.0]))
    np.testing.assert_allclose(values, [make(6.0).estimate_delta(1.0), make(8.0).estimate_delta(1.0)], rtol=1e-12)
    for row, one in zip(slopes, (6.0, 8.0), strict=True):
        np.testing.assert_allclose(row, difference(lambda t: make(t).estimate_delta(1.0), one), rtol=1e-6)
    along = jax.jacfwd(lambda t: make(t).estimate_delta(eps))(t)
    np.testing.assert_allclose(along, [difference(lambda t, e=e: make(t).estimate_delta(e), t) for e in eps], rtol=1e-6)
    by_eps = jax.grad(lambda eps: make(t).estimate_delta(eps).sum())(jnp.asarray(eps))
    np.testing.assert_allclose(by_eps, [difference(make(t).delta, e) for e in eps], rtol=1e-6)


@pytest.mark.thorough
def test_noise_that_is_not_even_has_one_value_and_its_gradient() -> None:
    """The value was that of dynamic programming, and the gradient that of another, larger value."""

    def function(sigma: Any) -> Any:
        noise = dpk.Additive(dpk.Reweighted(dpk.Gaussian(sigma), -1.0, 3.0, 0.5))
        return accountants.guarantee(noise, 1.0).repeat(3).estimate_delta(0.8)

    values = {sigma: function(jnp.asarray(sigma)) for sigma in (1.98, 2.0, 2.02)}
    value, slope = jax.value_and_grad(function)(2.0)
    assert value == values[2.0]
    np.testing.assert_allclose(slope, (values[2.02] - values[1.98]) / 0.04, rtol=1e-3)


def test_an_unknown_number_stays_unknown() -> None:
    make, _, eps = CASES["samples"]
    value, slope = jax.value_and_grad(lambda t: make(t).estimate_delta(eps))(jnp.nan)
    assert np.isnan(value)
    assert np.isnan(slope)


def test_a_value_at_its_end_does_not_move() -> None:
    value, slope = jax.value_and_grad(
        lambda t: accountants.guarantee(dpk.laplace(epsilon=t)).repeat(2).estimate_delta(1.0)
    )(0.1)
    assert (value, slope) == (0.0, 0.0)


def test_numbers_keep_their_type() -> None:
    with jax.enable_x64(False):
        value, slope = jax.value_and_grad(
            lambda t: accountants.guarantee(dpk.laplace(epsilon=t)).repeat(9).estimate_delta(0.5)
        )(jnp.float32(0.1))
    assert (value.dtype, slope.dtype) == (jnp.float32, jnp.float32)
    make = accountants.guarantee(dpk.laplace(epsilon=0.1)).repeat(9)
    np.testing.assert_allclose(value, make.estimate_delta(0.5), rtol=1e-4)


def test_second_derivatives_are_refused_in_words() -> None:
    make, t, eps = CASES["grid"]
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.hessian(lambda t: make(t).estimate_delta(eps))(t)


def test_one_release_on_a_sample_moves_with_the_rate():
    """The maximum over both neighbour directions may be recomputed with other rounding errors for the derivative."""

    def delta(rate: Any) -> Any:
        return accountants.guarantee(dpk.gaussian(sigma=2.0), 1.0).subsample(rate).delta(jnp.float64(0.1))

    for rate in (0.24, 0.25, 0.3):
        by_rate = jax.grad(delta)(jnp.float64(rate))
        assert by_rate == pytest.approx(difference(delta, rate), rel=1e-6)
