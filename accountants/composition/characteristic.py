"""Composition by characteristic function: the precise estimate (Zhu, Dong & Wang 2022, by a saddle-point contour).

    delta(eps) = 1/pi Re integral_0^inf exp(K(z) - z eps) / (z (z + 1)) du,    z = c + i u,

with K(z) = sum over mechanisms of n log E_p exp(z l), and c > 0 the saddle of K(c) - c eps - log(c (c + 1)). Nodes in
u = w sinh t, w the saddle's width, make the trapezoid rule converge exponentially; halving them estimates the error.
Outcomes of infinite loss add 1 - prod (1 - m)^n, m their mass, and are left out of K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.losses import Losses
from dpkernels.numerics import Real, RealArray
from dpkernels.pytrees import pytree

# Trapezoid nodes and the largest t: the first that converges is taken, under tracing the middle one.
SMALL, MIDDLE, LARGE = (96, 3.6), (400, 6.0), (768, 9.0)
ACCEPTED = 1e-9  # Relative error of delta.
_BISECTIONS = 60  # For a saddle, on log c; any c gives the right value, a near one gives it with few nodes.


class ConvergenceError(ValueError):
    """The promised precision cannot be reached."""


@pytree
@dataclass(frozen=True)
class Part:
    """n reports with the same pair.

    Attributes:
        losses: its nodes, or None for Gaussian noise alone.
        mu: sensitivity over sigma of Gaussian noise alone, whose K(z) is z (z + 1) mu^2 / 2.
        count: n.
    """

    losses: Losses | None
    mu: Any
    count: Any

    @property
    def infinite(self) -> Real:
        """Mass of infinite loss; of that alone the float below 1, whose logarithm there is."""
        if self.losses is None:
            return 0.0 * self.mu
        mass = jnp.where(self.losses.loss == jnp.inf, self.losses.p, 0.0).sum()
        return jnp.minimum(mass, 1 - jnp.finfo(mass.dtype).epsneg)

    def with_room(self) -> Part:
        """The same with an outcome of no mass, or with more; see ``Losses.with_room``."""
        return self if self.losses is None else replace(self, losses=self.losses.with_room())

    def moments(self, c: Any) -> tuple[Real, Real, Real]:
        """K, K' and K'' of one report at a real c: log of the mass tilted by e^(c l), mean and variance of l there."""
        if self.losses is None:
            return c * (c + 1) * self.mu**2 / 2, (2 * c + 1) * self.mu**2 / 2, self.mu**2 + 0 * c
        log_p, loss = self.losses.finite
        top, tilted = _scaled(log_p + c * loss)
        mass = jnp.maximum(tilted.sum(), jnp.finfo(tilted.dtype).tiny)
        mean = (tilted * loss).sum() / mass
        return top[0] + jnp.log(mass), mean, (tilted * (loss - mean) ** 2).sum() / mass

    def log_moment(self, z: Real) -> Real:
        """log E_p exp(z l), finite losses only; z of any shape, real or complex."""
        if self.losses is None:
            return z * (z + 1) * self.mu**2 / 2
        log_p, loss = self.losses.finite
        x = jnp.real(z)[..., None]
        top, terms = _scaled(log_p + x * loss)
        if jnp.iscomplexobj(z):
            phase = jnp.imag(z)[..., None] * loss
            total = jax.lax.complex((terms * jnp.cos(phase)).sum(-1), (terms * jnp.sin(phase)).sum(-1))
        else:
            total = jnp.maximum(terms.sum(-1), jnp.finfo(terms.dtype).tiny)
        return top[..., 0] + jnp.log(total)

    def revival(self, c: Real, u: Real) -> Real:
        """log of an estimate of the largest |E_p exp((c + i v) l)| over v > u.

        Atoms may come back in phase, at worst all of them; what is spread out does not, and is taken at its value at u.
        """
        if self.losses is None:
            return self.log_moment(c) - (u * self.mu) ** 2 / 2
        p, loss = self.losses.p, self.losses.loss
        real = jnp.isfinite(loss) & (p > 0)
        loss = jnp.where(real, loss, 0.0)
        top = jax.lax.stop_gradient(jnp.where(real, c * loss, -jnp.inf).max())
        size = jnp.where(real, p * jnp.exp(jnp.minimum(c * loss - top, 0.0)), 0.0)
        spread = jnp.where(self.losses.width > 0, size, 0.0)
        rest = jnp.hypot((spread * jnp.cos(u * loss)).sum(), (spread * jnp.sin(u * loss)).sum())
        return top + jnp.log((size - spread).sum() + rest + jnp.finfo(size.dtype).tiny)


def _scaled(size: RealArray) -> tuple[Any, Any]:
    """(the largest, e^size over that of it), along the last axis; 0 where all are -inf, as of infinite losses alone."""
    top = jax.lax.stop_gradient(size.max(-1, keepdims=True))
    top = jnp.where(jnp.isneginf(top), 0.0, top)  # NaN stays.
    return top, jnp.exp(size - top)


Parts = tuple[Part, ...]


def cumulant(parts: Parts, z: Real) -> Real:
    """K(z)."""
    return sum(part.count * part.log_moment(z) for part in parts)


def certain(parts: Parts) -> RealArray:
    """1 - prod (1 - m)^n, the probability that some loss is infinite."""
    return -jnp.expm1(sum(part.count * jnp.log1p(-part.infinite) for part in parts))


def _bisect(rising: Any, low: Real, high: Real, steps: int) -> Real:
    """Where an increasing function of log c changes sign."""

    def halve(_: int, ends: tuple[Real, Real]) -> tuple[Real, Real]:
        middle = (ends[0] + ends[1]) / 2
        below = rising(middle) < 0
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    low, high = jax.lax.fori_loop(0, steps, halve, (low, high))
    return (low + high) / 2


# A saddle c is looked for between 1e-4 and 1e5.
_LOWEST, _HIGHEST = np.log(1e-4), np.log(1e5)


def slopes(parts: Parts, c: Real) -> tuple[RealArray, RealArray, RealArray]:
    """K, K' and K'' at a real c."""
    moments = [part.moments(c) for part in parts]
    value, slope, bend = (
        sum(part.count * each for part, each in zip(parts, column, strict=True))
        for column in zip(*moments, strict=True)
    )
    return value, slope, bend


def saddle(parts: Parts, epsilon: Real, steps: int = _BISECTIONS) -> Real:
    """c for one eps."""

    def rising(log_c: Real) -> Any:
        c = jnp.exp(log_c)
        return slopes(parts, c)[1] - epsilon - 1 / c - 1 / (1 + c)

    ends = jnp.full_like(epsilon, _LOWEST), jnp.full_like(epsilon, _HIGHEST)
    return jnp.exp(_bisect(rising, *ends, steps))


def approximation(parts: Parts, c: Real) -> tuple[Any, Any]:
    """(log delta, eps) of the saddle-point approximation at the eps whose saddle is c."""
    value, slope, bend = slopes(parts, c)
    eps = slope - 1 / c - 1 / (1 + c)
    bend = bend + 1 / c**2 + 1 / (1 + c) ** 2
    return value - c * eps - jnp.log(c * (1 + c)) - jnp.log(2 * jnp.pi * bend) / 2, eps


def saddle_of_delta(parts: Parts, log_delta: Real, steps: int = _BISECTIONS) -> tuple[jax.Array, jax.Array]:
    """(c, eps) at which the saddle-point approximation of log delta(eps) has this value."""
    ends = jnp.full_like(log_delta, _LOWEST), jnp.full_like(log_delta, _HIGHEST)
    log_c = _bisect(lambda log_c: log_delta - approximation(parts, jnp.exp(log_c))[0], *ends, steps)
    return jnp.exp(log_c), approximation(parts, jnp.exp(log_c))[1]


@pytree
@dataclass(frozen=True)
class Contour:
    """K on the nodes of a contour.

    Attributes:
        z: nodes, c + i u.
        log_kernel: K(z) - log(z (z + 1)), complex.
        weight: of the trapezoid rule, du/pi; every other node with twice the weight is the coarser rule.
        log_rest: log of an estimate of what lies beyond the last node, at eps = 0.
    """

    z: Any
    log_kernel: Any
    weight: Any
    log_rest: Any

    def delta(self, epsilon: Real) -> tuple[Any, Any]:
        """(delta, estimated absolute error) of finite losses at one eps."""
        terms = self.weight * jnp.real(jnp.exp(self.log_kernel - self.z * epsilon))
        fine, coarse = terms.sum(), 2 * terms[::2].sum()
        rest = jnp.exp(self.log_rest - jnp.real(self.z[0]) * epsilon)
        return fine, jnp.abs(fine - coarse) + jnp.abs(terms[-8:]).sum() + rest

    def slope(self, epsilon: Real) -> Any:
        """Derivative of delta in eps."""
        return -(self.weight * jnp.real(self.z * jnp.exp(self.log_kernel - self.z * epsilon))).sum()


def contour(parts: Parts, c: Real, size: tuple[int, float]) -> Contour:
    """The contour through c."""
    count, end = size
    bend = slopes(parts, c)[2] + 1 / c**2 + 1 / (1 + c) ** 2
    width = jax.lax.stop_gradient(1 / jnp.sqrt(bend))
    t = jnp.linspace(0.0, end, count + 1)
    step = jnp.full(count + 1, end / count).at[0].multiply(0.5)
    z = jax.lax.complex(jnp.full_like(t, c), width * jnp.sinh(t))
    kernel = cumulant(parts, z) - jnp.log(z) - jnp.log(1 + z)
    end_u = jnp.imag(z[-1])
    rest = sum(part.count * part.revival(c, end_u) for part in parts) - jnp.log(jnp.pi * end_u)
    return Contour(z, kernel, step * width * jnp.cosh(t) / jnp.pi, rest)


def _accepted(value: RealArray) -> float:
    """Relative error allowed in this precision."""
    return max(ACCEPTED, 1e3 * float(jnp.finfo(value.dtype).eps))


def delta_at(parts: Parts, epsilon: Real, size: tuple[int, float]) -> tuple[Real, Real]:
    """(delta, whether it has converged) at one eps."""
    c = jax.lax.stop_gradient(saddle(parts, epsilon))
    value, error = contour(parts, c, size).delta(epsilon)
    sure = certain(parts)
    total = jnp.clip(sure + value, 0.0, 1.0)
    return total, error <= _accepted(total) * total + jnp.finfo(total.dtype).tiny


def epsilon_at(parts: Parts, delta: Any, size: tuple[int, float]) -> tuple[RealArray, RealArray]:
    """(eps, whether it has converged) at one delta; derivatives are implicit, from the last Newton step.

    The saddle of the saddle-point approximation is near enough to the right one: any contour is right.
    """
    sure = certain(parts)
    target = jnp.maximum(delta - sure, jnp.finfo(delta.dtype).tiny)
    c, guess = jax.lax.stop_gradient(saddle_of_delta(parts, jnp.log(target)))
    path = contour(parts, c, size)
    still, goal = jax.lax.stop_gradient((path, target))

    def newton(_: int, eps: RealArray) -> Any:
        value, slope = still.delta(eps)[0], still.slope(eps)
        good = (value > 0) & (slope < 0)
        return eps - jnp.where(
            good, value / jnp.where(good, slope, -1.0) * jnp.log(jnp.where(good, value, 1) / goal), 0
        )

    eps = jax.lax.fori_loop(0, 8, newton, guess)
    value, error = path.delta(eps)
    found = eps - (value - target) / still.slope(eps)
    at_zero, good_at_zero = delta_at(parts, jnp.zeros_like(delta), size)
    enough = good_at_zero & (at_zero <= delta)
    good = (jnp.abs(value - target) + error <= _accepted(target) * target) | enough | (sure >= delta)
    return jnp.where(sure >= delta, jnp.inf, jnp.where(enough | (found < 0), 0.0, found)), good


def guess_at(parts: Parts, delta: Real) -> tuple[Real, Real]:
    """(eps, c) of the saddle-point approximation at one delta."""
    target = jnp.maximum(delta - certain(parts), delta / 2)
    c, eps = saddle_of_delta(parts, jnp.log(target))
    return jnp.maximum(eps, 0.0), c


def renyi(parts: Parts, order: Any) -> Any:
    """K(a - 1)/(a - 1) at one order a; inf where a loss may be infinite."""
    a = order - 1
    return jnp.where(certain(parts) > 0, jnp.inf, cumulant(parts, a) / a)
