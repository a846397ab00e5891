"""The losses of one neighbour direction, and the tilt with which they are composed.

Numbers that affect only the precision, such as the tilt, are computed from ``coarse`` losses if these are known: the
same losses with fewer quadrature nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.composition.base import ComposedProfile, Composer
from accountants.composition.quantity import Quantity
from accountants.composition.repeated import (
    MAX_TILT,
    GuaranteeLike,
    LossTuple,
    RepeatedLoss,
    TiltedLoss,
    infinity_mass,
    least_step,
)
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.numerics import Real, RealArray, cast_like, namespace, without_derivative
from dpkernels.pytrees import PyTree

MAX_SAMPLED_RELEASES = 32  # Up to so many releases on samples are composed from samples of their densities.
PANELS = 256  # The panels of quadrature that the varying losses of one release share.
# The same for plain numbers and up to four releases on all the data, whose sums show the ends of single losses.
_FINE_PANELS = 4096
_MAX_TILTED_STEP = 0.25  # The largest c times the width of an outcome on the grid.
_TILTS = np.geomspace(1e-3, 1e5, 28)  # The tilts of the first bounds, over the whole range.
_MAX_SAMPLED_TILT = 1e9  # The largest tilt of few releases on samples, which may reach their largest losses.


class Tilt(NamedTuple):
    """A tilt, the estimate of the eps that is given or wanted, and the capped losses with which both were found."""

    c: RealArray
    epsilon_guess: RealArray
    losses: LossTuple


@dataclass(frozen=True)
class Direction:
    """The losses that are composed in one neighbour direction, and the quantity that is computed of them.

    Losses above what the quantity needs are capped: they count as partly infinite.
    """

    quantity: Quantity
    losses: LossTuple
    coarse: LossTuple | None = None

    @property
    def are_sampled(self) -> bool:
        """Return whether smooth losses are composed from samples of their densities."""
        return any(term.source is not None for term in self.losses)

    @cached_property
    def _bound_and_start(self) -> tuple[Real, Real]:
        """Return the largest eps of interest, and the tilt of the least upper bound of delta, or of eps.

        delta(eps) <= e^(K(c) - c eps) c^c / (1 + c)^(c + 1) at every c > 0.
        """
        argument, infinite = self.quantity.argument, infinity_mass(self.losses)
        xp, c = namespace(argument), cast_like(_TILTS, argument)
        if self.coarse is not None:
            c = xp.minimum(c, tilt_losses(self.coarse, xp.full_like(argument, MAX_TILT))[1])
        losses = self.losses if self.coarse is None else self.coarse
        log_moment = sum(term.count * term.log_moment(c) for term in losses)
        return self.quantity.bound(log_moment + c * xp.log(c) - (c + 1) * xp.log1p(c), c, infinite)

    @property
    def bound(self) -> Real:
        """Return an upper bound of the eps that is given, or wanted."""
        return self._bound_and_start[0]

    @cached_property
    def capped(self) -> tuple[tuple[RepeatedLoss, ...], RealArray]:
        """Return the losses that matter up to the bound, and the probability of an infinite loss."""
        return capped_losses(self.losses, self.bound)

    @cached_property
    def tilt(self) -> Tilt:
        """Return the tilt, found with coarse losses if these are enough."""
        (losses, infinite), start = self.capped, self._bound_and_start[1]
        greatest = _MAX_SAMPLED_TILT if self.are_sampled else MAX_TILT
        if self.coarse is not None:
            coarse = cap_losses(self.coarse, self.bound)
            tilt = Tilt(*self.quantity.saddle_point(coarse, infinite, start, greatest), coarse)
            if tilt_losses(coarse, tilt.c)[1] >= tilt.c:
                return tilt
            start = tilt.c
        return Tilt(*self.quantity.saddle_point(losses, infinite, start, greatest), losses)


def tilt_losses(losses: LossTuple, c: RealArray) -> tuple[list[TiltedLoss], RealArray]:
    """Return the tilted losses, and the tilt, reduced where it is steep on the scale of single outcomes."""
    xp = namespace(c)

    def tilt(c: RealArray) -> tuple[list[TiltedLoss], RealArray]:
        tilted = [term.tilted(c) for term in losses]
        least = least_step(tilted, c)
        return tilted, xp.where(least > 0, xp.minimum(c, _MAX_TILTED_STEP / xp.where(least > 0, least, 1.0)), c)

    if xp is not np:
        return _tilt_twice(tilt, losses, c)
    tilted, reduced = tilt(c)
    return (tilted if reduced == c else [term.tilted(reduced) for term in losses]), reduced


def _tilt_twice(
    tilt: Callable[[RealArray], tuple[list[TiltedLoss], RealArray]], losses: LossTuple, c: RealArray
) -> tuple[list[TiltedLoss], RealArray]:
    """Return the losses tilted by the tilt that they reduce c to, by a loop that is compiled once."""

    def advance(_: int, state: PyTree) -> PyTree:
        _, reduced, _ = state
        tilted, least = tilt(reduced)
        return reduced, least, [loss[1:] for loss in tilted]

    initial = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: advance(0, (c, c, None))[2])
    )
    reduced, _, tilted = jax.lax.fori_loop(0, 2, advance, (c, c, initial))
    return [TiltedLoss(term, *fields) for term, fields in zip(losses, tilted, strict=True)], reduced


def largest_needed_loss(losses: LossTuple, epsilon: Real) -> Real:
    """Return the loss above which losses count as partly infinite: eps minus the least that all others add up to."""
    least = sum(term.count * namespace(epsilon).maximum(term.largest_loss(-1), 0.0) for term in losses)
    return without_derivative(epsilon + least + 1e-9)


def cap_losses(losses: LossTuple, epsilon: Real) -> LossTuple:
    """Return the losses with those that no eps up to this one distinguishes from an infinite loss partly infinite."""
    cap = largest_needed_loss(losses, epsilon)
    if namespace(cap) is np and all(term.losses is None or term.largest_loss(1) <= cap for term in losses):
        return losses
    return tuple(term.map_losses(lambda nodes: nodes.capped(cap)) for term in losses)


def capped_losses(losses: LossTuple, bound: Real) -> tuple[tuple[RepeatedLoss, ...], RealArray]:
    """Return the losses capped for an eps of at most ``bound``, and the probability of an infinite loss."""
    capped = tuple(dataclasses.replace(term, source=None) for term in cap_losses(losses, bound))
    return capped, infinity_mass(capped)


def pad_losses(losses: LossTuple) -> LossTuple:
    """Return the losses with outcomes of no mass at their ends; see ``PrivacyLossDistribution.padded``."""
    return tuple(term.map_losses(PrivacyLossDistribution.padded) for term in losses)


def directions_of_numbers(guarantee: GuaranteeLike) -> list[tuple[LossTuple, LossTuple]]:
    """Return (losses, the same losses with fewer nodes) of each neighbour direction, for plain numbers."""
    on_all_data = all(term.sampling_rate is None for term in guarantee.terms)  # Samples have densities, not nodes.
    panels = _FINE_PANELS if on_all_data and _are_at_most(4, guarantee) else PANELS
    coarse = fine = guarantee.repeated_losses(panels, may_sample=may_sample_densities(guarantee))
    if any(term.losses is not None and term.losses.width.any() for losses in fine for term in losses):
        coarse = guarantee.repeated_losses()
    return list(zip(*(map(pad_losses, directions) for directions in (fine, coarse)), strict=True))


def may_sample_densities(guarantee: GuaranteeLike) -> bool:
    """Return whether releases are known to be so few that those on samples are composed from sampled densities."""
    return _are_at_most(MAX_SAMPLED_RELEASES, guarantee)


def _are_at_most(limit: int, guarantee: GuaranteeLike) -> bool:
    """Return whether the number of releases is known, and not larger than ``limit``."""
    counts = [checks.concrete(term.count) for term in guarantee.terms]
    known = [float(count) for count in counts if count is not None]
    return len(known) == len(counts) and sum(known) <= limit


@dataclass(frozen=True)
class TiltedComposer(Composer):
    """A method that composes capped losses at a tilt."""

    bound: Real  # Sums of losses are needed up to here.
    tilt: RealArray  # c.
    epsilon_guess: RealArray  # An estimate of the eps that is given, or wanted.

    @classmethod
    def for_direction(cls, direction: Direction) -> TiltedComposer:
        return cls(direction.bound, direction.tilt.c, direction.tilt.epsilon_guess)

    def prepare(self, losses: LossTuple) -> tuple[PyTree, Real]:
        return capped_losses(losses, self.bound)

    def initial_guess(self, composed: ComposedProfile, log_delta: Real) -> Real:
        return self.epsilon_guess
