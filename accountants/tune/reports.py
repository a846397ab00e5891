"""The member of a family whose reports meet a budget together, in a search and for release; see ``composed``.

A ``family`` here is a ``Composed``, ``inner`` its family of one report.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants import calibrate, characteristic
from accountants.calibrate.composed import with_own_claim
from accountants.calibrate.outward import least_private, log_mu
from accountants.guarantee import Guarantee, Term
from accountants.hockey_stick import as_float64
from accountants.pairs import worst_pairs
from accountants.tune.bounded import Composite, Piecewise, Plain
from accountants.tune.domains import Domain, Positive
from accountants.tune.noise import PlainNoise
from accountants.tune.recycled import KERNELS, Recycled, scale_symbol, width_of
from dpkernels import checks
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import namespace

_NEWTON_STEPS = 30
_FOUND = 1e-6  # Of ln delta: a root of the estimate.


@singledispatch
def member(inner: Any, loss: Any, parameters: dict[str, Any]) -> Any:
    """The member whose delta grows with a loss in [0.01, 20]: its epsilon, or what each redraw adds; traceable.

    Raises:
        TypeError: a family without such a member.
    """
    raise TypeError(
        f"family: {inner.name} spends a delta of its own in each report, or its composition is not known to be "
        "monotone in its budget; composed takes bounded families, laplace, gaussian, and budget recycling"
    )


def check_known(inner: Any) -> None:
    """Refuse a family without such a member."""
    if all(one.dispatch(type(inner)) is one.dispatch(object) for one in (member, built)):
        member(inner, 1.0, {})


@member.register(Composite)
@member.register(Piecewise)
@member.register(Plain)
def _(inner: Any, loss: Any, parameters: dict[str, Any]) -> Any:
    return replace(inner, epsilon=loss).build(parameters)


@member.register
def _(inner: Recycled, loss: Any, parameters: dict[str, Any]) -> Additive:
    """q = 1 - e^-loss at a kernel that the parameters choose."""
    kernel, theta = inner.drawn(parameters)
    return Additive(Reweighted(kernel, -theta, theta, namespace(loss).exp(-loss)), inner.sensitivity)


@singledispatch
def free(inner: Any, family: Any) -> dict[str, Domain]:
    """The free parameters of one report."""
    return inner.domains


@free.register
def _(inner: Recycled, family: Any) -> dict[str, Domain]:
    """The scale in units of about what reports without recycling need."""
    xp = namespace(family.about, *jax.tree.leaves(inner))
    need = inner.sensitivity / family.about / xp.sqrt(inner.kernel.variance)
    return {**inner.domains, scale_symbol(inner.kernel): Positive(need, span=(0.1, 2.5))}


@singledispatch
def built(inner: Any, family: Any, parameters: dict[str, Any]) -> Any:
    """``Composed.build``."""
    return member(inner, _largest_loss(family, parameters), parameters)


@built.register
def _(inner: PlainNoise, family: Any, parameters: dict[str, Any]) -> Additive:
    return calibrate.composed(KERNELS[inner.kind], sensitivity=inner.sensitivity, **family.target)


def _largest_loss(family: Any, parameters: dict[str, Any]) -> Any:
    """The loss at which T reports have this delta at eps: Newton in ln loss on ln delta; NaN where there is none.

    ln delta is smooth and rises with it. A step goes back up where no member is feasible. The last one carries the
    derivatives.
    """

    def log_excess(t: Any, family: Any, parameters: Any) -> Any:
        delta = _estimated(family, member(family.inner, jnp.exp(t), parameters))
        return jnp.log(jnp.maximum(delta, 1e-300)) - jnp.log(family.delta)

    still = jax.lax.stop_gradient((family, parameters))
    least, most = (jnp.log(end) for end in checks.EPSILON_RANGE)

    def unfinished(state: tuple[Any, Any, Any, Any]) -> Any:
        _, value, _, count = state
        return (count < _NEWTON_STEPS) & ~(jnp.abs(value) < 1e-3 * _FOUND)

    def newton(state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        at, value, slope, count = state
        step = jnp.where(jnp.isfinite(value), jnp.clip(-value / slope, -0.5, 0.5), 0.2)
        at = jnp.where(count > 0, jnp.clip(at + step, least, most), at)
        value, slope = jax.jvp(lambda t: log_excess(t, *still), (at,), (jnp.ones_like(at),))
        return at, value, slope, count + 1

    start = jnp.clip(jnp.log(2 * still[0].about), least, jnp.log(still[0].epsilon))
    at, value, slope, _ = jax.lax.while_loop(unfinished, newton, (start, start + jnp.inf, jnp.ones_like(start), 0))
    moved = log_excess(at, family, parameters)
    found = (jnp.abs(value) < _FOUND) & (slope > 0)
    return jnp.where(found, jnp.exp(at - (moved - jax.lax.stop_gradient(moved)) / slope), jnp.nan)


@jax.jit
def largest_loss(family: Any, parameters: dict[str, Any]) -> Any:
    """``_largest_loss``, compiled."""
    return _largest_loss(family, parameters)


def _estimated(family: Any, mechanism: Any) -> Any:
    """delta of all reports at eps, by characteristic function whether or not its contour has converged.

    Losses with few atoms leave it a few tenths of a percent off: near enough to choose parameters; what is released is
    solved again, by the rigorous bracket.
    """
    together = Guarantee((Term(worst_pairs(mechanism)[:1], family.count, family.rate),))
    values = [
        characteristic.delta_at(parts, family.epsilon, characteristic.SMALL)[0] for parts in together.directions()
    ]
    return jnp.stack(values).max()


@singledispatch
def released(inner: Any, family: Any, parameters: dict[str, Any]) -> Any:
    """``Composed.release``."""

    def constructor(*, epsilon: float) -> Any:
        return replace(inner, epsilon=epsilon).release(parameters)

    return calibrate.composed_budget(constructor, **family.target)


@released.register
def _(inner: PlainNoise, family: Any, parameters: dict[str, Any]) -> Additive:
    return built(inner, family, parameters)


@released.register
def _(inner: Recycled, family: Any, parameters: dict[str, Any]) -> Additive:
    """At the estimated q as narrow a kernel as the bracket allows: delta varies more with the width than with q.

    Its claim is that of one report.
    """
    with jax.enable_x64(True):
        loss = float(largest_loss(as_float64(family), as_float64(parameters)))
    symbol, epsilon, delta = scale_symbol(inner.kernel), float(family.epsilon), float(family.delta)

    def wider(t: float) -> Additive:
        return member(inner, loss, {**parameters, symbol: parameters[symbol] * math.exp(t)})

    t = least_private(lambda t: family.together(wider(t)), epsilon, delta, float(log_mu(np.float64(delta), epsilon)))
    return with_own_claim(wider(t), delta / family.count)


@singledispatch
def described(inner: Any, parameters: dict[str, Any], mechanism: Any) -> dict[str, Any]:
    """``Composed.symbols``, of one report."""
    return inner.symbols(parameters, mechanism)


@described.register
def _(inner: PlainNoise, parameters: dict[str, Any], mechanism: Additive) -> dict[str, Any]:
    noise: Any = mechanism.noise
    return {scale_symbol(noise): width_of(noise) / width_of(KERNELS[inner.kind])}
