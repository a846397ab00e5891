"""The divergence of a mean of t independent ratios for JAX numbers: computed by NumPy, with derivatives by formula.

Let K = t e^eps, D = E (S_t - K)_+/t, and S_(t-1) the sum of the other ratios. The derivative of D in the mass of a
value x is E (x + S_(t-1) - K)_+. In the value x it is the mass times P(x + S_(t-1) > K), and in t it is a central
difference. If the record is removed, D = e^eps E (t e^-eps - S_t)_+/t has corresponding derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from accountants.privacy_loss import PrivacyLossDistribution
from accountants.schemes.ratio_sums import discretised_ratio, self_sum
from dpkernels.jax_on_use import Array
from dpkernels.numerics import Real, RealArray
from dpkernels.pytrees import PyTree
from dpkernels.shapes import Float

_PANELS = 64  # The panels of quadrature of one ratio.
LOSS_POINTS = 2048  # The losses of a table of JAX numbers.
_DIFFERENCE_DIVISOR = 50  # The central difference in t is at t -/+ t/50, or 1.
_NEGLIGIBLE = 1e-16  # The mass beyond all losses of a table.
_MAX_REMEMBERED = 8  # How many sums are remembered.


@dataclass(frozen=True)
class _Sum:
    """The values of a sum, increasing, with the masses and the first moments from each value on, and below it."""

    value: Float[np.ndarray, " outcomes"]
    from_value: tuple[Float[np.ndarray, " outcomes+1"], Float[np.ndarray, " outcomes+1"]]
    below_value: tuple[Float[np.ndarray, " outcomes+1"], Float[np.ndarray, " outcomes+1"]]


def _on_host(function: Callable[..., list[np.ndarray]], shapes: list[tuple[int, ...]], *numbers: Real) -> list[Array]:
    """Return the results of a NumPy function of JAX numbers, both in 64 bits.

    A callback's thread does not know the scope of 64 bits of its caller, so that numbers travel as pairs of words.
    """
    dtypes = [jnp.result_type(number) for number in numbers]
    words = [jax.lax.bitcast_convert_type(jnp.asarray(number, jnp.float64), jnp.uint32) for number in numbers]
    input_shapes = [np.shape(number) for number in numbers]

    def call(*words: object) -> list[np.ndarray]:
        pairs = [np.ascontiguousarray(np.asarray(word, np.uint32)) for word in words]
        values = [pair.view(np.float64).reshape(size) for pair, size in zip(pairs, input_shapes, strict=True)]
        results = [
            np.ascontiguousarray(np.broadcast_to(value, shape), np.float64)
            for value, shape in zip(function(*values), shapes, strict=True)
        ]
        return [result.reshape(*shape, 1).view(np.uint32) for result, shape in zip(results, shapes, strict=True)]

    specifications = [jax.ShapeDtypeStruct((*shape, 2), jnp.uint32) for shape in shapes]
    answers = jax.pure_callback(call, specifications, *words, vmap_method="sequential")
    dtype = jnp.result_type(*dtypes)
    return [jax.lax.bitcast_convert_type(answer, jnp.float64).astype(dtype) for answer in answers]


def _ratio_sum(ratio: Float[np.ndarray, " outcomes"], mass: Float[np.ndarray, " outcomes"], count: int) -> _Sum:
    return _cached_sum(ratio.tobytes(), (mass / mass.sum()).tobytes(), count)


@lru_cache(_MAX_REMEMBERED)
def _cached_sum(ratio: bytes, mass: bytes, count: int) -> _Sum:
    value, masses = np.zeros(1), np.ones(1)
    if count > 0:
        terms, weights = np.frombuffer(ratio), np.frombuffer(mass)
        value, masses = self_sum(discretised_ratio(terms[weights > 0], weights[weights > 0], 1), count).points()
    order = np.argsort(value)
    value, masses = value[order], masses[order]
    columns = (masses, masses * value)
    from_value = tuple(np.append(np.cumsum(column[::-1])[::-1], 0.0) for column in columns)
    below_value = tuple(np.append(0.0, np.cumsum(column)) for column in columns)
    return _Sum(value, from_value, below_value)  # type: ignore[arg-type]


def _gains(total: _Sum, strike: np.ndarray, removed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return E (S - k)_+ and P(S > k), or E (k - S)_+ and P(S < k) if removed."""
    index = np.searchsorted(total.value, strike, side="right")
    mass, moment = (column[index] for column in (total.below_value if removed else total.from_value))
    return np.maximum(strike * mass - moment if removed else moment - strike * mass, 0.0), mass


def _divergence(removed: bool, numbers: tuple[np.ndarray, ...], count: int | None = None) -> np.ndarray:
    ratio, mass, infinite, steps, epsilon = numbers
    count = round(float(steps)) if count is None else count
    sign = -1 if removed else 1
    gain, _ = _gains(_ratio_sum(ratio, mass, count), count * np.exp(sign * epsilon), removed)
    return (np.exp(epsilon) if removed else 1.0) * gain / count + infinite


def _slopes(removed: bool, in_steps: bool, *numbers: np.ndarray) -> list[np.ndarray]:
    """Return the derivatives in the masses and in the values, along a last axis, in eps, and in the steps."""
    ratio, mass, _, steps, epsilon = numbers
    count, sign = round(float(steps)), -1 if removed else 1
    scale = np.exp(epsilon) if removed else np.ones(np.shape(epsilon))
    strike = count * np.exp(sign * epsilon)
    gain, probability = _gains(_ratio_sum(ratio, mass, count - 1), np.asarray(strike)[..., None] - ratio, removed)
    sum_gain, sum_probability = _gains(_ratio_sum(ratio, mass, count), strike, removed)
    # d/d eps of E (S - K)_+/t is -e^eps P(S > K), and of e^eps E (k - S)_+/t it is that minus P(S < k).
    by_epsilon = scale * sum_gain / count - sum_probability if removed else -np.exp(epsilon) * sum_probability
    by_steps = np.zeros(np.shape(epsilon))
    if in_steps:
        half_width = max(count // _DIFFERENCE_DIVISOR, 1)
        low, high = max(count - half_width, 1), count + half_width
        by_steps = (_divergence(removed, numbers, high) - _divergence(removed, numbers, low)) / (high - low)
    scale = np.asarray(scale)[..., None]
    return [scale * gain, sign * scale * mass * probability, by_epsilon, by_steps]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def mean_divergence(removed: bool, ratio: Real, mass: Real, infinite: Real, steps: Real, epsilon: Real) -> Array:
    """Return D at eps of any shape, from the values of one ratio and their masses under q."""
    numbers = ratio, mass, infinite, steps, epsilon
    return _on_host(lambda *numbers: [_divergence(removed, numbers)], [jnp.shape(epsilon)], *numbers)[0]


@partial(mean_divergence.defjvp, symbolic_zeros=True)
def _(removed: bool, primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> tuple[Array, Array]:
    ratio, *_, epsilon = primals
    shape, dtype = jnp.shape(epsilon), jnp.result_type(epsilon)
    moves = [not isinstance(tangent, SymbolicZero) for tangent in tangents]
    shapes = [shape + jnp.shape(ratio) * (k < 2) for k in range(4)]
    by_mass, by_ratio, by_epsilon, by_steps = _on_host(partial(_slopes, removed, moves[3]), shapes, *primals)
    change: Array = jnp.zeros(shape, dtype)
    for k, slope in ((0, by_ratio), (1, by_mass)):
        change = change + ((slope * tangents[k]).sum(-1) if moves[k] else 0.0)
    for k, factor in ((2, 1.0), (3, by_steps), (4, by_epsilon)):
        change = change + (factor * tangents[k] if moves[k] else 0.0)
    return mean_divergence(removed, *primals), change


def traced_ratios(
    losses: PrivacyLossDistribution, removed: bool
) -> tuple[Float[RealArray, " outcomes"], Float[RealArray, " outcomes"], Float[RealArray, ""]]:
    """Return values of the ratio, with masses under q, and the mass of p at an infinite one, of JAX numbers."""
    nodes = (losses.mirrored() if removed else losses).nodes(_PANELS)
    finite = jnp.isfinite(nodes.loss)
    ratio = jnp.where(finite, jnp.exp(jnp.where(finite, -nodes.loss if removed else nodes.loss, 0.0)), 0.0)
    infinite = jnp.where(nodes.loss == jnp.inf, nodes.p, 0.0)
    if removed:
        return ratio, jnp.where(nodes.loss == -jnp.inf, 0.0, nodes.p), 0.0 * infinite.sum()
    return ratio, jnp.where(nodes.loss == jnp.inf, 0.0, nodes.q), infinite.sum()


def traced_losses(
    removed: bool, numbers: tuple[RealArray, ...], hockey_stick: Callable[[Array], Array]
) -> tuple[Float[Array, " points"], Float[Array, " points"], Float[Array, " points"]]:
    """Return masses of p and q, and losses, of the pair whose profile is that of D at some losses, and linear between.

    The slope of D in e^eps rises by the mass of q at a loss.
    """
    ratio, mass, _, steps = numbers
    (loss,) = _on_host(
        lambda *values: [_loss_points(removed, *values)], [(LOSS_POINTS,)], *jax.lax.stop_gradient((ratio, mass, steps))
    )
    delta, exp_epsilon = hockey_stick(loss), jnp.exp(loss)
    slopes = jnp.concatenate([-jnp.ones(1), jnp.diff(delta) / jnp.diff(exp_epsilon), jnp.zeros(1)])
    q = jnp.maximum(jnp.diff(slopes), 0.0)
    p = jnp.append(exp_epsilon * q, delta[-1])
    return p, jnp.append(q, 0.0), jnp.append(loss, jnp.inf)


def _loss_points(
    removed: bool, ratio: Float[np.ndarray, " outcomes"], mass: Float[np.ndarray, " outcomes"], steps: np.ndarray
) -> Float[np.ndarray, " points"]:
    """Return losses that increase, as dense as the values of the sum where these matter."""
    count = round(float(steps))
    total = _ratio_sum(ratio, mass, count)
    (mass_below, moment_below), (mass_from, moment_from) = total.below_value, total.from_value
    start = int(np.searchsorted(mass_below if removed else moment_below / count, _NEGLIGIBLE))
    stop = int(np.searchsorted(-(mass_from if removed else moment_from / count), -_NEGLIGIBLE))
    value = np.unique(np.maximum(total.value[max(start - 1, 0) : stop + 1], 1e-300)) / count
    position = np.linspace(0, len(value) - 1, LOSS_POINTS)
    loss = np.interp(position, np.arange(len(value)), np.log(value))
    return -loss[::-1] if removed else loss
