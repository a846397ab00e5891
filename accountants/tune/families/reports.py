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

from accountants import calibrate
from accountants.calibrate.composed import with_own_claim
from accountants.calibrate.outward import least_private, log_mu
from accountants.composition.guarantee import Guarantee, Term
from accountants.pairs.hockey_stick import as_float64
from accountants.pairs.worst import shifted, worst_pairs
from accountants.scale import rescaled
from accountants.tune.domains import Domain, LogBetween, Positive
from accountants.tune.families.bounded import Composite, Piecewise, Plain
from accountants.tune.families.merged import MergedLaplaces
from accountants.tune.families.noise import PlainNoise
from accountants.tune.families.recycled import KERNELS, Recycled, scale_symbol, width_of
from accountants.tune.families.staircase import Staircases
from accountants.tune.families.truncated import TruncatedGaussian, TruncatedLaplace
from accountants.tune.family import Family
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, namespace

_NEWTON_STEPS = 30
_FOUND = 1e-8  # Of ln eps: a root.
_TINY = 1e-300


@singledispatch
def member(inner: Any, loss: Any, parameters: dict[str, Any]) -> Any:
    """The member whose delta grows with a loss in [0.01, 20]: its epsilon, or what each redraw adds; traceable.

    Raises:
        TypeError: a family without such a member.
    """
    raise TypeError(
        f"family: {inner.name} has no budget of its own that a composition could set; composed takes bounded families "
        "and additive ones"
    )


def check_known(inner: Family) -> None:
    """Refuse a family without such a member."""
    if all(one.dispatch(type(inner)) is one.dispatch(object) for one in (member, built)):
        member(inner, 1.0, {})


@member.register(Composite)
@member.register(MergedLaplaces)
@member.register(Piecewise)
@member.register(Plain)
@member.register(Staircases)
def _(inner: Any, loss: Real, parameters: dict[str, Real]) -> Any:
    return replace(inner, epsilon=loss).build(parameters)


@member.register
def _(inner: Recycled, loss: Any, parameters: dict[str, Any]) -> Additive:
    """q = 1 - e^-loss at a kernel that the parameters choose."""
    kernel, theta = inner.drawn(parameters)
    return Additive(Reweighted(kernel, -theta, theta, namespace(loss).exp(-loss)), inner.sensitivity)


@singledispatch
def free(inner: Family, family: Family) -> dict[str, Domain]:
    """The free parameters of one report."""
    return inner.domains


@free.register
def _(inner: Recycled, family: Any) -> dict[str, Domain]:
    """The scale in units of about what reports without recycling need."""
    xp = namespace(family.about, *jax.tree.leaves(inner))
    need = inner.sensitivity / family.about / xp.sqrt(inner.kernel.variance)
    return {**inner.domains, scale_symbol(inner.kernel): Positive(need, span=(0.1, 2.5))}


# Truncated noise as wide as the interval [-1, 1] lets it be nearly uniform, and so narrow that nothing is cut off.
_WIDTHS = LogBetween(0.05, 20.0, span=(-1.0, 0.5))
_CUT: dict[type, tuple[str, Any]] = {TruncatedGaussian: ("sigma/T", Gaussian), TruncatedLaplace: ("b/T", Laplace)}


@free.register(TruncatedGaussian)
@free.register(TruncatedLaplace)
def _(inner: Any, family: Any) -> dict[str, Domain]:
    """How wide the noise is next to the interval [-T, T] that it is cut to; T is solved for."""
    return {_CUT[type(inner)][0]: _WIDTHS}


def shape(inner: Any, parameters: dict[str, Any]) -> Reweighted:
    """Truncated noise on [-1, 1]."""
    name, law = _CUT[type(inner)]
    return Reweighted(law(parameters[name]), -1.0, 1.0, 0.0)


@singledispatch
def built(inner: Family, family: Family, parameters: dict[str, Real]) -> Any:
    """``Composed.build``."""
    return member(inner, _largest_loss(family, parameters), parameters)


@built.register
def _(inner: PlainNoise, family: Any, parameters: dict[str, Any]) -> Additive:
    return calibrate.composed(KERNELS[inner.kind], sensitivity=inner.sensitivity, **family.target)


@built.register(TruncatedGaussian)
@built.register(TruncatedLaplace)
def _(inner: Any, family: Any, parameters: dict[str, Any]) -> Additive:
    """As wide as all reports need; that its ends are opposite is not seen while they are traced."""
    law, D = shape(inner, parameters), inner.sensitivity
    start = jax.lax.stop_gradient(D / family.about / jnp.sqrt(law.variance))
    reports = Guarantee((Term((shifted(rescaled(law, start), D),), family.count, family.rate),))
    factor = calibrate.widening(reports, epsilon=family.epsilon, delta=family.delta)
    return Additive(rescaled(law, start * factor), D)


def _largest_loss(family: Any, parameters: dict[str, Any]) -> jax.Array:
    """The loss at which T reports have this eps at delta: Newton in ln loss on ln eps; NaN where there is none.

    ln eps is next to linear in it, and rises. A step that leaves what is known to hold the root goes half-way. The last
    one carries the derivatives.
    """

    def log_excess(t: Real, family: Any, parameters: dict[str, Real]) -> Any:
        eps = _estimated(family, member(family.inner, jnp.exp(t), parameters))
        return jnp.log(jnp.clip(eps, _TINY, 1 / _TINY)) - jnp.log(family.epsilon)

    still = jax.lax.stop_gradient((family, parameters))
    least, most = (jnp.log(end) for end in checks.EPSILON_RANGE)

    def unfinished(state: Any) -> Any:
        count, _, value, *_ = state
        return (count < _NEWTON_STEPS) & ~(jnp.abs(value) < _FOUND)

    def newton(state: Any) -> Any:
        """To the next trial from what is known of this one; of the first one nothing is."""
        count, at, value, slope, low, high = state
        low = jnp.where((count > 0) & (value < 0), at, low)
        high = jnp.where((count == 0) | (value < 0), high, at)
        new = at - value / jnp.where(slope > 0, slope, 1.0)
        new = jnp.where((new > low) & (new < high), new, (low + high) / 2)
        new = jnp.where(count > 0, new, at)
        value, slope = jax.jvp(lambda t: log_excess(t, *still), (new,), (jnp.ones_like(new),))
        return count + 1, new, value, slope, low, high

    start = jnp.clip(jnp.log(2 * still[0].about), least, jnp.log(still[0].epsilon))
    unknown = jnp.full_like(start, jnp.nan)
    state = 0, start, unknown, unknown, jnp.full_like(start, least), jnp.full_like(start, most)
    _, at, value, slope, *_ = jax.lax.while_loop(unfinished, newton, state)
    moved = log_excess(at, family, parameters)
    found = (jnp.abs(value) < _FOUND) & (slope > 0)
    return jnp.where(found, jnp.exp(at - (moved - jax.lax.stop_gradient(moved)) / slope), jnp.nan)


@jax.jit
def largest_loss(family: Any, parameters: dict[str, Any]) -> Any:
    """``_largest_loss``, compiled."""
    return _largest_loss(family, parameters)


def _estimated(family: Any, mechanism: Any) -> Real:
    """eps of all reports at delta."""
    # All additive noise here is even, which is not seen while its ends are traced.
    even = isinstance(mechanism, Additive)
    pairs = (shifted(mechanism.noise, mechanism.sensitivity),) if even else worst_pairs(mechanism)
    return Guarantee((Term(pairs, family.count, family.rate),)).epsilon(family.delta)


@singledispatch
def released(inner: Any, family: Any, parameters: dict[str, Real]) -> Mechanism:
    """``Composed.release``."""

    def constructor(*, epsilon: float) -> Mechanism:
        return replace(inner, epsilon=epsilon).release(parameters)

    return calibrate.composed_budget(constructor, **family.target)


@released.register
def _(inner: PlainNoise, family: Any, parameters: dict[str, Any]) -> Additive:
    return built(inner, family, parameters)


@released.register(TruncatedGaussian)
@released.register(TruncatedLaplace)
def _(inner: Any, family: Any, parameters: dict[str, Any]) -> Additive:
    return calibrate.composed(shape(inner, parameters), sensitivity=inner.sensitivity, **family.target)


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
def described(inner: Family, parameters: dict[str, Real], mechanism: Mechanism) -> dict[str, Real]:
    """``Composed.symbols``, of one report."""
    return inner.symbols(parameters, mechanism)


@described.register(TruncatedGaussian)
@described.register(TruncatedLaplace)
def _(inner: Any, parameters: dict[str, Any], mechanism: Additive) -> dict[str, Any]:
    noise: Any = mechanism.noise
    unit = _CUT[type(inner)][1](1.0)
    return {scale_symbol(unit): width_of(noise.kernel) / width_of(unit), "T": noise.high}


@described.register
def _(inner: PlainNoise, parameters: dict[str, Any], mechanism: Additive) -> dict[str, Any]:
    noise: Any = mechanism.noise
    return {scale_symbol(noise): width_of(noise) / width_of(KERNELS[inner.kind])}
