"""Privacy losses on a grid: masses at grid points that give smooth functions of the loss the same expectation.

An outcome of loss l is distributed over the six grid points around it with the weights of Lagrange interpolation, for
smooth f with an error of h^6 f^(6). The weights of linear interpolation connect the dots (Doroshenko 2022), with an
error of h^2 f''. Atoms on the grid stay exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from accountants.closed_forms.pure import decayed
from accountants.privacy_loss import PrivacyLossDistribution, join
from dpkernels.numerics import Real, RealArray, cast_like, namespace, sums_by_index, without_derivative
from dpkernels.pytrees import PyTree, pytree
from dpkernels.shapes import Bool, Float, Int

# Grid points of an outcome, relative to the one below it, and the coefficients of their weights in powers of the
# distance of the outcome from that point.
POINTS = np.arange(-2, 4)
COEFFICIENTS = np.array(
    [np.poly(np.delete(POINTS, j))[::-1] / np.prod(POINTS[j] - np.delete(POINTS, j)) for j in range(len(POINTS))]
).T
# Row n has the coefficients of the derivatives, in powers of the distance.
_DERIVATIVE = COEFFICIENTS[1:] * np.arange(1, len(POINTS))[:, None]
# The exponents in the matrix that turns a polynomial's coefficients at 0 into those at s, and their factors. Exponents
# are integers: the JAX derivative of a power of 0 with the float exponent 0 is NaN.
_UPPER = np.maximum(np.arange(len(POINTS)) - np.arange(len(POINTS))[:, None], 0)
_SHIFT = np.array([[math.comb(j, k) for j in range(len(POINTS))] for k in range(len(POINTS))], float)
_NEGLIGIBLE_MASS = 1e-40  # Plain numbers: lighter outcomes, of all mass 1, are left out.
_CROWDED_SHARE = 0.003  # Outcomes are crowded if one step of outcomes as dense would have a larger share of all mass.
_MAX_GRID_DISTANCE = 0.1  # The distance of a sum of atoms from the grid, in steps, up to which it is near the grid.
_STEP_CHOICES = 64  # How many steps are tried for further atoms.
_NEGLIGIBLE_OFFSET = 1e-9  # The mass times its distance from the grid, in steps, up to which choices are equally good.
# For the maximum of the profiles of several pairs:
_SIZE = 1 << 14  # the points of the grid,
_PROFILE_RTOL = 1e-11  # the relative difference up to which profiles are equal,
_ATOM_RATIO = 20.0  # and how many times the sum of its two neighbours a mass is if it is an atom.


@pytree
@dataclass(frozen=True)
class GridInterpolation:
    """Outcomes, distributed over the grid points around them."""

    mass: Float[Any, " outcomes"]  # The tilted masses of the outcomes.
    on_grid: Bool[RealArray, " outcomes"]  # Whether an outcome is an atom on the grid.
    # Whether an outcome is an atom near the grid, or crowded next to one, as the losses of samples may be on a scale
    # that no grid resolves.
    lumped: Bool[RealArray, " outcomes"]
    index_below: Int[Any, " outcomes"]  # The index of the grid point below each outcome.
    fraction: Float[Any, " outcomes"]  # The distance from it, in steps.

    def masses(self, size: int) -> list[Float[RealArray, " {size}"]]:
        """Return all tilted masses on the grid, and those of lumped outcomes if there may be some."""
        xp = namespace(self.mass)
        if xp is not np:
            index, weights = xp.mod(self.index_below + POINTS[:, None], size), lagrange_weights(self.fraction)
            return sums_by_index(size, index, self.mass * weights, xp.where(self.lumped, self.mass, 0.0) * weights)
        heavy = ~(self.mass < min(_NEGLIGIBLE_MASS, self.mass.max()))
        lumped = heavy & self.lumped
        rows = [heavy, lumped] if lumped.any() else [heavy]
        return [_spread(size, self.mass[chosen], self.index_below[chosen], self.fraction[chosen]) for chosen in rows]

    def interpolate(
        self, grid: Float[RealArray, " points"], at_atoms: Float[RealArray, " points"]
    ) -> tuple[Float[RealArray, " outcomes"], Float[RealArray, " outcomes"]]:
        """Return the values of a function on the grid at all outcomes, and its derivative in the step."""
        xp = namespace(grid)
        index = xp.mod(self.index_below + POINTS[:, None], len(grid))
        grid_values = xp.stack([grid, grid + at_atoms])[self.lumped.astype(int), index]
        value, slope = (lagrange_weights(self.fraction, rows) * grid_values for rows in (COEFFICIENTS, _DERIVATIVE))
        return value.sum(0), slope.sum(0)


def _spread(
    size: int,
    mass: Float[np.ndarray, " outcomes"],
    index: Int[np.ndarray, " outcomes"],
    fraction: Float[np.ndarray, " outcomes"],
) -> Float[np.ndarray, " {size}"]:
    """Return the masses on the grid of plain numbers, by sums of mass times powers of the distances."""
    # The losses of one of many releases are next to each other on the grid.
    low = index.min()
    width = min(int(index.max() - low) + 1, size)
    index, sums = (index - low) % size, []
    for _ in POINTS:
        sums.append(np.bincount(index, mass, width))
        mass = mass * fraction
    position = np.mod(low + POINTS[:, None] + np.arange(width), size)
    return np.bincount(position.ravel(), (COEFFICIENTS.T @ sums).ravel(), size)


def lagrange_weights(
    fraction: Float[RealArray, " outcomes"], coefficients: Float[np.ndarray, "powers 6"] = COEFFICIENTS
) -> Float[RealArray, "6 outcomes"]:
    """Return the weights of Lagrange interpolation, or other polynomials of the distance, of shape (6, n)."""
    value: Any = 0.0
    for row in cast_like(coefficients, fraction)[::-1]:
        value = value * fraction + row[:, None]
    return value


def taylor_shift(s: Float[RealArray, ""]) -> tuple[Float[RealArray, "6 6"], Float[RealArray, "6 6"]]:
    """Return the matrix that turns a polynomial's coefficients at 0 into those at s, and its derivative in s."""
    power = namespace(s).power
    return power(s, _UPPER) * cast_like(_SHIFT, s), power(s, np.maximum(_UPPER - 1, 0)) * cast_like(_UPPER * _SHIFT, s)


def interpolate_on_grid(
    nodes: PrivacyLossDistribution,
    mass: Float[RealArray, " outcomes"],
    offset: Real,
    step: Real,
    size: int,
    count: Real = 1,
) -> GridInterpolation:
    """Return masses on grid points offset + k step, entry k modulo ``size``; atoms near the grid are lumped."""
    loss = nodes.finite[1]
    xp = namespace(loss, step)
    position = (loss - offset) / step
    nearest = xp.round(position)
    is_atom, distance = (nodes.width == 0) & (mass > 0), xp.abs(position - nearest)
    on_grid = is_atom & (distance <= xp.finfo(position.dtype).eps ** 0.45)
    index = xp.mod(nearest.astype(int), size)
    is_lumped_atom = on_grid | (is_atom & (count * distance <= _MAX_GRID_DISTANCE))
    (lumps,) = sums_by_index(size, index, is_lumped_atom.astype(mass.dtype))
    lumped = (mass * step > _CROWDED_SHARE * nodes.width) & (lumps > 0)[index]
    index_below = xp.where(on_grid, nearest, xp.floor(position))
    fraction = xp.where(on_grid, 0.0, position - index_below)
    return GridInterpolation(mass, on_grid, lumped, index_below.astype(int), fraction)


def heaviest_atoms(
    nodes: PrivacyLossDistribution, mass: Float[RealArray, " outcomes"], count: int = 1
) -> tuple[Float[RealArray, ""], Float[RealArray, " {count}"], Float[RealArray, " {count}"]]:
    """Return the heaviest atom's loss, the next heaviest ones' distances from it (0 if absent), and their masses."""
    loss, is_atom = nodes.finite[1], nodes.width == 0
    xp = namespace(loss)
    if xp is np and is_atom.any():  # Most outcomes are no atoms.
        mass, loss, is_atom = mass[is_atom], loss[is_atom], is_atom[is_atom]
    mass = xp.where(is_atom, mass, 0.0)
    heaviest = latest = loss[mass.argmax()]
    tolerance = xp.finfo(loss.dtype).eps ** 0.5 * (1 + xp.abs(heaviest))

    def advance(state: tuple[RealArray, RealArray], _: object) -> tuple[PyTree, PyTree]:
        mass, latest = state
        mass = xp.where(xp.abs(loss - latest) > tolerance, mass, 0.0)
        latest = loss[mass.argmax()]
        return (mass, latest), (latest - heaviest, mass.max())

    if xp is not np and count > 1:
        _, (distances, masses) = jax.lax.scan(advance, (mass, latest), length=count)
        return heaviest, distances, masses
    state, next_atoms = (mass, latest), []
    for _ in range(count):
        state, atom = advance(state, None)
        next_atoms.append(atom)
    distances, masses = (xp.stack(column) for column in zip(*next_atoms, strict=True))
    return heaviest, distances, masses


def step_on_atoms(
    least: Real, distances: Float[RealArray, " atoms"], masses: Float[RealArray, " atoms"], count: Real = 1
) -> Float[RealArray, ""]:
    """Return a step of at least ``least`` that divides the distance of two atoms, by an even number if possible.

    A third atom in the middle is then on the grid. Of the steps that are up to a quarter wider, the one is taken for
    which the other atoms are nearest to the grid. If the distance is smaller than ``least``, the step is ``least``. For
    the distances and masses see ``heaviest_atoms``; ``count`` of these atoms are added up.
    """
    xp = namespace(least, distances)
    least, gap = without_derivative(least), xp.abs(distances[0])
    steps_in_gap = without_derivative(gap) / least
    largest_divisor = 2 * xp.floor(steps_in_gap / 2)
    divisors = xp.maximum(largest_divisor - 2 * cast_like(np.arange(_STEP_CHOICES), largest_divisor), 2.0)
    positions = without_derivative(distances[1:] / xp.where(gap > 0, gap, 1.0))[:, None] * divisors
    # Where even the sums of these atoms are not near the grid, other steps are no better.
    misfit = (masses[1:, None] * xp.minimum(count * xp.abs(positions - xp.round(positions)), _MAX_GRID_DISTANCE)).sum(0)
    misfit = xp.where(divisors < 0.8 * largest_divisor, np.inf, xp.maximum(misfit, _NEGLIGIBLE_OFFSET))
    divisors = xp.where(steps_in_gap >= 2, divisors[misfit.argmin()], 1.0)
    return xp.where(steps_in_gap >= 1, gap / divisors, least)


def pointwise_maximum(distributions: list[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    """Return outcomes whose profile is at least the maximum of several, and above by about the square of a step."""
    if len(distributions) == 1:
        return distributions[0]
    joint = join(distributions)
    xp = namespace(joint.loss)
    loss = joint.finite[1]
    lowest, (heaviest, *next_atoms) = loss.min(), heaviest_atoms(joint, xp.where(xp.isinf(joint.loss), 0.0, joint.p))
    # If there is only one loss, the grid has no width.
    least = xp.maximum((loss.max() - lowest) / (_SIZE - 4), xp.finfo(loss.dtype).eps * (1 + xp.abs(lowest)))
    step = step_on_atoms(least, *next_atoms)
    offset = heaviest - step * without_derivative(xp.floor((heaviest - lowest) / step) + 1)
    masses = [_connect_dots(distribution, offset, step)[::-1] for distribution in distributions]
    first, *further_profiles = (profile_on_grid(mass, step) for mass in masses)
    profile = first
    for candidate in further_profiles:
        profile = xp.where(candidate > profile * (1 + _PROFILE_RTOL), candidate, profile)
    p = xp.maximum(masses[0] + masses_of_profile(profile - first, step), 0.0)[::-1]
    grid = offset + step * cast_like(np.arange(_SIZE), step)
    width = xp.where(p > _ATOM_RATIO * (xp.roll(p, 1) + xp.roll(p, -1)), 0.0, step)
    infinite = xp.stack(
        [xp.where(distribution.loss == np.inf, distribution.p, 0.0).sum() for distribution in distributions]
    ).max(keepdims=True)
    finite = PrivacyLossDistribution(p, p * xp.exp(-grid), grid, width)
    return join([finite, PrivacyLossDistribution(infinite, 0 * infinite, infinite + np.inf, 0 * infinite)])


def _connect_dots(
    nodes: PrivacyLossDistribution, offset: Real, step: Float[RealArray, ""]
) -> Float[RealArray, " points"]:
    """Return masses on a grid: every outcome is split between two points, keeping its masses under p and q."""
    loss = nodes.finite[1]
    xp = namespace(loss, step)
    mass = xp.where(xp.isinf(nodes.loss), 0.0, nodes.p)
    position = (loss - offset) / step
    floor = without_derivative(xp.floor(position + xp.finfo(position.dtype).eps ** 0.45))
    upper_mass = mass * xp.expm1((floor - position) * step) / xp.expm1(-step)
    index = xp.clip(floor, 0, _SIZE - 2).astype(int)
    return sums_by_index(_SIZE, index, mass - upper_mass)[0] + sums_by_index(_SIZE, index + 1, upper_mass)[0]


def profile_on_grid(masses: Float[RealArray, " points"], step: Real) -> Float[RealArray, " points"]:
    """Return delta at grid points from masses at them, both from the largest loss down, as sums of positive terms.

    delta_k = delta_(k-1) + (1 - e^-h) B_(k-1), where B_k = w_k + e^-h B_(k-1).
    """
    return decayed(-namespace(step).expm1(-step) * _next(decayed(masses, step)), 0.0 * step)


def masses_of_profile(profile: Float[RealArray, " points"], step: Real) -> Float[RealArray, " points"]:
    """Return the masses that have this profile on the grid."""
    xp = namespace(profile, step)
    B = (profile - _next(profile)) / -xp.expm1(-step)
    B = xp.concatenate([B[1:], xp.zeros_like(B[:1])])
    return B - xp.exp(-step) * _next(B)


def _next(values: Float[RealArray, " points"]) -> Float[RealArray, " points"]:
    xp = namespace(values)
    return xp.concatenate([xp.zeros_like(values[:1]), values[:-1]])
