"""Composition by characteristic function, an independent reference (Zhu, Dong & Wang 2022, by a saddle-point contour).

    delta(eps) = 1/pi Re integral_0^inf exp(K(z) - z eps) / (z (z + 1)) du,    z = c + i u,

with K(z) = sum over mechanisms of n log E_p exp(z l), and c > 0 the saddle of K(c) - c eps - log(c (c + 1)). Nodes in
u = w sinh t, w the saddle's width, make the trapezoid rule converge exponentially; halving them estimates the error.
Outcomes of infinite loss add 1 - prod (1 - m)^n, m their mass, and are left out of K. It does not converge for few
releases of losses with atoms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from accountants.composition.repeated import cumulants, infinity_mass, saddle_point, saddle_point_of_delta
from dpkernels.pytrees import pytree

# Trapezoid nodes and the largest t: the first that converges is taken, under tracing the middle one.
SMALL, MIDDLE, LARGE = (96, 3.6), (400, 6.0), (768, 9.0)
ACCEPTED = 1e-9  # Relative error of delta.


def log_moment(term, z):
    """log E_p exp(z l) of one release, finite losses only, at complex z."""
    if term.losses is None:
        return z * (z + 1) * term.mu**2 / 2
    log_p, loss = term.losses.finite
    x = log_p + jnp.real(z)[..., None] * loss
    top = jax.lax.stop_gradient(x.max(-1, keepdims=True))
    terms, phase = jnp.exp(x - top), jnp.imag(z)[..., None] * loss
    return top[..., 0] + jnp.log(jax.lax.complex((terms * jnp.cos(phase)).sum(-1), (terms * jnp.sin(phase)).sum(-1)))


def revival(term, c, u):
    """log of an estimate of the largest |E_p exp((c + i v) l)| over v > u.

    Atoms may come back in phase, at worst all of them; what is spread out does not, and is taken at its value at u.
    """
    if term.losses is None:
        return log_moment(term, c + 0j) - (u * term.mu) ** 2 / 2
    p, loss = term.losses.p, term.losses.loss
    real = jnp.isfinite(loss) & (p > 0)
    loss = jnp.where(real, loss, 0.0)
    top = jax.lax.stop_gradient(jnp.where(real, c * loss, -jnp.inf).max())
    size = jnp.where(real, p * jnp.exp(jnp.minimum(c * loss - top, 0.0)), 0.0)
    spread = jnp.where(term.losses.width > 0, size, 0.0)
    rest = jnp.hypot((spread * jnp.cos(u * loss)).sum(), (spread * jnp.sin(u * loss)).sum())
    return top + jnp.log((size - spread).sum() + rest + jnp.finfo(size.dtype).tiny)


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

    def delta(self, epsilon):
        """(delta, estimated absolute error) of finite losses at one eps."""
        terms = self.weight * jnp.real(jnp.exp(self.log_kernel - self.z * epsilon))
        fine, coarse = terms.sum(), 2 * terms[::2].sum()
        rest = jnp.exp(self.log_rest - jnp.real(self.z[0]) * epsilon)
        return fine, jnp.abs(fine - coarse) + jnp.abs(terms[-8:]).sum() + rest

    def slope(self, epsilon):
        """Derivative of delta in eps."""
        return -(self.weight * jnp.real(self.z * jnp.exp(self.log_kernel - self.z * epsilon))).sum()


def contour(terms, c, size):
    """The contour through c."""
    count, end = size
    bend = cumulants(terms, c)[2] + 1 / c**2 + 1 / (1 + c) ** 2
    width = jax.lax.stop_gradient(1 / jnp.sqrt(bend))
    t = jnp.linspace(0.0, end, count + 1)
    step = jnp.full(count + 1, end / count).at[0].multiply(0.5)
    z = jax.lax.complex(jnp.full_like(t, c), width * jnp.sinh(t))
    kernel = sum(term.count * log_moment(term, z) for term in terms) - jnp.log(z) - jnp.log(1 + z)
    end_u = jnp.imag(z[-1])
    rest = sum(term.count * revival(term, c, end_u) for term in terms) - jnp.log(jnp.pi * end_u)
    return Contour(z, kernel, step * width * jnp.cosh(t) / jnp.pi, rest)


def _accepted(value):
    """Relative error allowed in this precision."""
    return max(ACCEPTED, 1e3 * float(jnp.finfo(value.dtype).eps))


def delta_at(terms, epsilon, size):
    """(delta, whether it has converged) at one eps."""
    c = jax.lax.stop_gradient(saddle_point(terms, epsilon))
    value, error = contour(terms, c, size).delta(epsilon)
    sure = infinity_mass(terms)
    total = jnp.clip(sure + value, 0.0, 1.0)
    return total, error <= _accepted(total) * total + jnp.finfo(total.dtype).tiny


def epsilon_at(terms, delta, size):
    """(eps, whether it has converged) at one delta; derivatives are implicit, from the last Newton step.

    The saddle of the saddle-point approximation is near enough to the right one: any contour is right.
    """
    sure = infinity_mass(terms)
    target = jnp.maximum(delta - sure, jnp.finfo(delta.dtype).tiny)
    c, guess = jax.lax.stop_gradient(saddle_point_of_delta(terms, jnp.log(target)))
    path = contour(terms, c, size)
    still, goal = jax.lax.stop_gradient((path, target))

    def newton(_: int, eps):
        value, slope = still.delta(eps)[0], still.slope(eps)
        good = (value > 0) & (slope < 0)
        return eps - jnp.where(
            good, value / jnp.where(good, slope, -1.0) * jnp.log(jnp.where(good, value, 1) / goal), 0
        )

    eps = jax.lax.fori_loop(0, 8, newton, guess)
    value, error = path.delta(eps)
    next_epsilon = eps - (value - target) / still.slope(eps)
    at_zero, good_at_zero = delta_at(terms, jnp.zeros_like(delta), size)
    enough = good_at_zero & (at_zero <= delta)
    good = (jnp.abs(value - target) + error <= _accepted(target) * target) | enough | (sure >= delta)
    return jnp.where(sure >= delta, jnp.inf, jnp.where(enough | (next_epsilon < 0), 0.0, next_epsilon)), good
