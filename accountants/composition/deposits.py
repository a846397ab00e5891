"""Losses as masses on a grid, which sum smooth functions of the loss as the losses themselves do.

An outcome of loss l is deposited on the six grid points around it with the weights of Lagrange's interpolation there:
for a smooth f the sum over the grid is that of f interpolated, off by h^6 f^(6). Connecting the dots (Doroshenko 2022)
are the weights of linear interpolation, off by h^2 f''. Atoms that are on the grid stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import pascal

from accountants.closed_forms.lattice import decayed
from accountants.pairs.losses import Losses, joined
from dpkernels.numerics import Real, like
from dpkernels.pytrees import pytree

# Grid points of an outcome, relative to the one below it, and the coefficients of their weights by powers of how far
# the outcome is above that.
POINTS = np.arange(-2, 4)
COEFFICIENTS = np.array(
    [np.poly(np.delete(POINTS, j))[::-1] / np.prod(POINTS[j] - np.delete(POINTS, j)) for j in range(len(POINTS))]
).T
_CHOICES = pascal(len(POINTS), kind="upper").astype(float)
# Outcomes are crowded if a step of as many would have a larger share of all mass.
_CROWDED = 0.003
# Of several pairs: the grid, by how much one profile is above another for certain, and what stands out as an atom.
_SIZE, _SAME, _ATOM = 1 << 14, 1e-11, 20.0


def tilted(nodes: Losses, c: Real, log_scale: Real) -> tuple[jax.Array, jax.Array]:
    """Masses under p times e^(c l - log_scale), and losses; both 0 where the loss is infinite."""
    log_p, loss = nodes.finite
    return jnp.exp(log_p + c * loss - log_scale), loss


@pytree
@dataclass(frozen=True)
class Deposit:
    """Outcomes and the grid points around them.

    Attributes:
        mass: tilted masses.
        on_grid: whether it is an atom on the grid.
        lumped: whether it is one, or crowds next to one, as samples' losses do on a scale that no grid shows.
        index: entries of the grid, of shape (6, n).
        above: how far above the third of these, in steps.
    """

    mass: Any
    on_grid: Any
    lumped: Any
    index: Any
    above: Any

    def masses(self, size: int) -> Any:
        """(all tilted masses, those at atoms on the grid), of shape (2, size)."""
        both = jnp.stack([self.mass, jnp.where(self.lumped, self.mass, 0.0)], -1)
        both = both * interpolation(self.above)[..., None]
        return jnp.zeros((size, 2), self.mass.dtype).at[self.index].add(both).T

    def read(self, grid: Any, at_atoms: Any) -> tuple[Any, Any]:
        """A function on the grid at all outcomes, and its derivative by the step; at atoms plus another function."""
        around = jnp.stack([grid, grid + at_atoms])[self.lumped.astype(int), self.index]
        shares, moved = jax.jvp(interpolation, (self.above,), (jnp.ones_like(self.above),))
        return (shares * around).sum(0), (moved * around).sum(0)


def interpolation(above: Any) -> Any:
    """Lagrange's weights, of shape (6, n)."""
    share: Any = 0.0
    for row in like(COEFFICIENTS, above)[::-1]:
        share = share * above + row[:, None]
    return share


def developed(s: Any) -> Any:
    """The coefficients of a polynomial of that degree developed at s, from those at 0."""
    many = len(POINTS)
    power = np.arange(many) - np.arange(many)[:, None]
    # Exponents are whole: of 0 to the float 0 JAX's derivative is NaN.
    return jnp.power(s, np.maximum(power, 0)) * like(np.where(power >= 0, _CHOICES, 0.0), s)


def deposited(nodes: Losses, c: Any, log_scale: Any, offset: Any, step: Any, size: int) -> Deposit:
    """Tilted masses at offset + k step, entry k modulo ``size``."""
    mass, loss = tilted(nodes, c, log_scale)
    place = (loss - offset) / step
    nearest = jnp.round(place)
    on_grid = (nodes.width == 0) & (mass > 0) & (jnp.abs(place - nearest) <= jnp.finfo(place.dtype).eps ** 0.45)
    point = jnp.mod(nearest, size).astype(int)
    crowded = mass * step > _CROWDED * nodes.width
    lumped = crowded & jnp.zeros(size, bool).at[point].max(on_grid)[point]
    below = jnp.where(on_grid, nearest, jnp.floor(place))
    index = jnp.mod(below + like(POINTS, below)[:, None], size).astype(int)
    return Deposit(mass, on_grid, lumped, index, jnp.where(on_grid, 0.0, place - below))


def heavy_atoms(nodes: Losses, c: Any, log_scale: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(the loss of the heaviest atom, the distance of the next one, the mass of that), as tilted."""
    mass, loss = tilted(nodes, c, log_scale)
    mass = jnp.where(nodes.width == 0, mass, 0.0)
    heaviest = loss[mass.argmax()]
    apart = jnp.abs(loss - heaviest)
    mass = jnp.where(apart > jnp.finfo(loss.dtype).eps ** 0.5 * (1 + jnp.abs(heaviest)), mass, 0.0)
    second = mass.argmax()
    return heaviest, apart[second], mass[second]


def on_atoms(least: Real, gap: Real) -> jax.Array:
    """A step from ``least`` up of which the gap of two atoms is a whole multiple, an even one if it can be.

    A third one half-way, of no loss between two opposite ones, is on the grid then. Of a gap below that, the least.
    """
    least = jax.lax.stop_gradient(least)
    many = jax.lax.stop_gradient(gap) / least
    whole = jnp.where(many >= 2, 2 * jnp.floor(many / 2), 1.0)
    return jnp.where(many >= 1, gap / whole, least)


def profiles(masses: Real, c: Any, step: Any) -> tuple[Any, Any]:
    """(T, B) of masses w tilted by e^(c l), from the largest loss down: sums of positive terms.

    T_k = e^(-c h) (T_(k-1) + (1 - e^-h) B_(k-1)) is the profile at grid point k, as tilted, and
    B_k = w_k + e^(-(c+1) h) B_(k-1).
    """
    B = decayed(masses, (c + 1) * step)
    return decayed(-jnp.exp(-c * step) * jnp.expm1(-step) * _next(B), c * step), B


def _next(values: Any) -> Real:
    return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])


def highest(several: list[Losses]) -> Losses:
    """The pair whose profile is the largest of several's, if there are several: by connecting their dots on a grid.

    It is nowhere below; above it by about a step's square.
    """
    if len(several) == 1:
        return several[0]
    whole = joined(several)
    loss = whole.finite[1]
    lowest, atoms = loss.min(), heavy_atoms(whole, 0.0, 0.0)
    step = on_atoms((loss.max() - lowest) / (_SIZE - 4), atoms[1])
    offset = atoms[0] - step * jax.lax.stop_gradient(jnp.floor((atoms[0] - lowest) / step) + 1)
    masses = [_dots(one, offset, step)[::-1] for one in several]
    profile = sum_of = profiles(masses[0], 0.0, step)[0]
    for other in masses[1:]:
        there = profiles(other, 0.0, step)[0]
        profile = jnp.where(there > profile * (1 + _SAME), there, profile)
    p = jnp.maximum(masses[0] + _masses(profile - sum_of, step), 0.0)[::-1]
    grid = offset + step * like(np.arange(_SIZE), step)
    width = jnp.where(p > _ATOM * (jnp.roll(p, 1) + jnp.roll(p, -1)), 0.0, step)
    infinite = jnp.stack([jnp.where(one.loss == jnp.inf, one.p, 0.0).sum() for one in several]).max(keepdims=True)
    finite = Losses(p, p * jnp.exp(-grid), grid, width)
    return joined([finite, Losses(infinite, 0 * infinite, infinite + jnp.inf, 0 * infinite)])


def _dots(nodes: Losses, offset: Real, step: Any) -> Any:
    """Masses on a grid, every outcome's on the two points around it."""
    mass, loss = tilted(nodes, 0.0, 0.0)
    place = (loss - offset) / step
    below = jax.lax.stop_gradient(jnp.floor(place + jnp.finfo(place.dtype).eps ** 0.45))
    # Masses under p and q are kept.
    up = mass * jnp.expm1((below - place) * step) / jnp.expm1(-step)
    index = jnp.clip(below, 0, _SIZE - 2).astype(int)
    return jnp.zeros(_SIZE, mass.dtype).at[index].add(mass - up).at[index + 1].add(up)


def _masses(profile: Any, step: Any) -> Any:
    """The masses that have this profile on the grid, from the largest loss down."""
    B = (profile - _next(profile)) / -jnp.expm1(-step)
    B = jnp.concatenate([B[1:], jnp.zeros_like(B[:1])])
    return B - jnp.exp(-step) * _next(B)
