"""Composition of few releases with smooth losses on Poisson samples, from samples of their densities on a grid.

With few releases, quadrature nodes that are further apart than the step cause an error at the kink of the hockey-stick
divergence. Samples of the loss density at the grid points do not.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from accountants.composition import fft
from accountants.composition.base import ComposedProfile
from accountants.composition.repeated import LossTuple, infinity_mass
from accountants.composition.tilted_direction import (
    Direction,
    TiltedComposer,
    cap_losses,
    capped_losses,
    largest_needed_loss,
    tilt_losses,
)
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, node_spacing, panel_rule
from dpkernels.numerics import Real, RealArray, namespace, special_functions, without_derivative
from dpkernels.pytrees import PyTree, pytree

_SAMPLES_INSET = 30.0  # The distance from the ends of a piece at which sampling starts, in steps.
_TRANSITION = 2.0  # The width of the transition from nodes to samples, in steps.
_TRANSITION_REACH = 16.0  # The distance, in steps, at which the transition is complete: 8 of its widths.
_ATOM_BELOW = 40.0  # The distance of the atom of large losses below the largest sampled loss, in steps.
_CAP_MARGIN = _ATOM_BELOW + 20.0  # How far beyond the largest needed loss losses are capped, in steps.
# Panels of quadrature on the four intervals beside the samples: from an end to the transition, and in the transition.
_PANELS = (48, 16, 16, 48)
# The ends of these intervals in a piece that is too short to be sampled, as shares of it.
_QUARTERS = np.array([0.25, 0.5, 0.5, 0.75])
_DIFFERENCE = np.array([3, -32, 168, -672, 0, 672, -168, 32, -3]) / 840  # Central difference of order 8 for step 1.
_BESIDE = 4  # The points on either side that it needs.
_NEGLIGIBLE_LOG = -50.0  # The log of tilted mass, relative to the largest one, below which outcomes are not sampled.
_MAX_SAMPLES = 1 << 13  # The most samples of a piece.


@pytree
@dataclass(frozen=True)
class SampledDensities(TiltedComposer):
    """Releases some of whose losses are sampled on a grid."""

    points: fft.Grid
    cap: Real  # Losses above it are gathered.

    @classmethod
    def applies(cls, direction: Direction) -> bool:
        return direction.are_sampled

    @classmethod
    def for_direction(cls, direction: Direction) -> SampledDensities:
        losses, tilt = direction.losses, tilt_losses(direction.capped[0], direction.tilt.c)[1]
        coarse = losses if direction.coarse is None else direction.coarse

        def choose_grid_up_to(bound: Real) -> fft.Grid:
            tilted = [term.tilted(tilt) for term in cap_losses(losses, bound)]
            return fft.choose_grid(tilted, tilt, cap_losses(coarse, bound))

        margin = _CAP_MARGIN * choose_grid_up_to(direction.bound).step
        bound = direction.bound + margin
        cap = largest_needed_loss(losses, direction.bound) + margin
        return cls(bound, tilt, direction.tilt.epsilon_guess, choose_grid_up_to(bound), cap)

    def prepare(self, losses: LossTuple) -> tuple[PyTree, Real]:
        sampled = []
        for term, capped, offset in zip(losses, capped_losses(losses, self.bound)[0], self.points.offsets, strict=True):
            if term.source is not None:
                nodes, grid = cast(PrivacyLossDistribution, capped.losses), (offset, self.points.step, self.cap)
                samples = sample_on_grid(term.smooth_losses(), nodes, self.tilt, grid)
                capped = dataclasses.replace(capped, losses=samples)
            sampled.append(capped)
        return tuple(sampled), infinity_mass(tuple(sampled))

    def profile(self, prepared: LossTuple, direction: Direction) -> ComposedProfile:
        return fft.compose([term.tilted(self.tilt) for term in prepared], self.tilt, self.points)


def sample_on_grid(
    smooth: PrivacyLossDistribution, nodes: PrivacyLossDistribution, c: Real, grid: tuple[Real, RealArray, Real]
) -> PrivacyLossDistribution:
    """Return outcomes whose loss density is smooth on the grid: (a grid point, the step, the cap).

    Outcomes inside each piece are samples of the loss density at the grid points. Smooth transitions lead to the
    quadrature ``nodes`` at the ends of the piece, where losses on samples are crowded. Losses above the cap are
    gathered into an atom, as by ``capped``, part by part.
    """
    xp = namespace(c)
    grid, (log_p, loss) = without_derivative((grid, nodes.finite))
    size = log_p + c * loss
    matters = size > size.max() + _NEGLIGIBLE_LOG
    ends = xp.where(matters, loss, np.inf).min(), xp.where(matters, loss, -np.inf).max()
    atoms = PrivacyLossDistribution(smooth.p, smooth.q, smooth.loss, smooth.width)
    samples = (outcomes for pieces in smooth.pieces for outcomes in _sample_pieces(pieces, *grid, ends))
    step, cap = grid[1:]
    return join([atoms, *samples]).padded().capped(cap - _ATOM_BELOW * step)


def _sample_pieces(
    pieces: SmoothPieces, offset: Real, step: RealArray, cap: Real, needed_range: tuple[float, float]
) -> list[PrivacyLossDistribution]:
    """Return the samples of all pieces, and the nodes on the four intervals beside them; a row for each piece."""
    xp, inverse = namespace(step), cast(Any, pieces.inverse)
    numbers = np.flatnonzero(pieces.upper > pieces.lower) if xp is np else np.arange(len(pieces.lower))
    if not len(numbers):
        return []
    row = numbers[:, None]
    lower, upper = (end[numbers][:, None] for end in (pieces.lower, pieces.upper))
    inset = 1e-14 * (upper - lower)
    ends = without_derivative(pieces.loss(xp.concatenate([lower + inset, upper - inset], 1), row))
    bottom, top, reach = ends.min(1, keepdims=True), ends.max(1, keepdims=True), _TRANSITION_REACH * step
    low = bottom + _SAMPLES_INSET * step
    high = xp.minimum(top - _SAMPLES_INSET * step, cap - (_ATOM_BELOW - _TRANSITION_REACH) * step)
    first = xp.ceil((xp.maximum((low - reach).min(), needed_range[0]) - offset) / step)
    count = xp.floor((xp.minimum(high + reach, needed_range[1]) - offset) / step) - first + 1
    is_long = (high - low > 2 * reach) & (count >= 1) & (count <= _MAX_SAMPLES)

    # Levels beyond a piece, whose share is 0, are moved inside.
    size = _MAX_SAMPLES if xp is not np else int(np.max(count, where=is_long, initial=1))
    level = offset + step * (first + xp.arange(-_BESIDE, size + _BESIDE))
    inner = xp.where(is_long, _BESIDE * step, 0.0)
    points = inverse(xp.clip(level, bottom + inner, top - inner), row)
    width = sum(weight * points[:, k : k + size] for k, weight in enumerate(_DIFFERENCE))
    points, level = points[:, _BESIDE:-_BESIDE], level[_BESIDE:-_BESIDE]
    is_rising = ends[:, :1] < ends[:, 1:]
    start, end = xp.where(is_rising, lower, upper), xp.where(is_rising, upper, lower)
    cuts = inverse(xp.clip(xp.concatenate([low - reach, low + reach, high - reach, high + reach], 1), bottom, top), row)
    cuts = without_derivative(xp.where(is_long, cuts, start + (end - start) * _QUARTERS))
    intervals = ((start, cuts[:, :1]), (cuts[:, :1], cuts[:, 1:2]), (cuts[:, 2:3], cuts[:, 3:]), (cuts[:, 3:], end))
    rules = [panel_rule(panels, level, dense=True) for panels in _PANELS]
    nodes = xp.concatenate([x0 + (x1 - x0) * t for (x0, x1), (t, _) in zip(intervals, rules, strict=True)], 1)
    weights = [abs(x1 - x0) * weight for (x0, x1), (_, weight) in zip(intervals, rules, strict=True)]
    node_loss = pieces.loss(nodes, row)
    spacing = [node_spacing(losses) for losses in xp.split(node_loss, np.cumsum([len(t) for t, _ in rules])[:-1], 1)]

    # All are evaluated together, so that the functions are compiled once.
    x, width = xp.concatenate([points, nodes], 1), xp.concatenate([abs(width), *weights], 1)
    loss = xp.concatenate([xp.broadcast_to(level, points.shape), node_loss], 1)
    # The share of the mass at a loss that the samples have; the nodes have the rest.
    ndtr, transition = special_functions(loss).ndtr, _TRANSITION * step
    fraction = xp.where(is_long, ndtr((loss - low) / transition) * ndtr((high - loss) / transition), 0.0)
    p = width * xp.exp(pieces.log_p(x, row)) * xp.where(np.arange(x.shape[1]) < size, fraction, 1 - fraction)
    spacing = xp.concatenate([step + 0.0 * points, *spacing], 1)
    q = without_derivative(p * xp.exp(-loss))
    return [PrivacyLossDistribution(*map(xp.ravel, (p, q, loss, spacing)))]
