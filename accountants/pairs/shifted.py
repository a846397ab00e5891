"""Additive noise under two inputs: a law, and the same law a distance further on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import noise_sticks, runs
from accountants.pairs.base import Curve, Pair
from accountants.pairs.losses import FEW, PANELS, REACH, Losses, joined, panel_rule, range_of
from accountants.pairs.noise_sticks import Pieces, split
from accountants.pairs.runs import Spectrum
from dpkernels import checks
from dpkernels.distributions.base import Distribution, Symmetric
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.numerics import Real
from dpkernels.pytrees import pytree

_AFFINE = ("at", "log_p", "rise", "loss", "slope")
# Periods of a staircase, on either side, whose steps a pair keeps: under tracing, and at most.
_TRACED_PERIODS, _MOST_PERIODS = 256, 1 << 16


@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class Shifted(Pair):
    """p = f, q = f(. - D): additive noise under two inputs a distance D apart.

    Attributes:
        noise: the law with density f.
        shift: D, of any sign.
        periods: how many periods of a staircase on either side are kept step by step; the others follow geometrically.
    """

    noise: Distribution
    shift: Any
    periods: int = _TRACED_PERIODS

    def hockey_stick(self) -> Curve:
        return noise_sticks.of_noise(self)

    def largest_loss(self) -> Real:
        return noise_sticks.largest_loss_of_noise(self)

    def losses(self, panels: int = 0) -> Losses:
        single, pieces, bend = shifted_pieces(self)
        return single if self.noise.law.degree == 0 else joined([single, _sloped(self, pieces, bend, panels)])

    def spectrum(self) -> Spectrum:
        with jax.enable_x64(True):
            single, pieces, bend = jax.tree.map(np.asarray, _shifted_pieces(jax.tree.map(np.float64, self)))
        keep = (single.p > 0) | (single.q > 0)
        reach = REACH / np.sqrt(bend) if bend > 0 else np.inf
        D = float(self.shift)
        low, high = min(0.0, D) - reach, max(0.0, D) + reach
        found = []
        for j in np.flatnonzero((pieces.slope != 0) & (pieces.width > 0)):
            left, right = float(np.clip(pieces.left[j], low, high)), float(np.clip(pieces.right[j], low, high))
            if right > left:
                at, log_p, rise, loss, slope = (float(getattr(pieces, name)[j]) for name in _AFFINE)
                found.append(runs.affine(left, right, at, log_p, rise, loss, slope, float(bend)))
        return Spectrum(single.p[keep], single.q[keep], single.loss[keep], tuple(found), unseen(self.noise))

    def mirror(self) -> Shifted:
        return Shifted(self.noise, -self.shift, self.periods)

    def asymmetry(self) -> Any:
        return 0.0 if is_even(self.noise) else np.inf

    def check(self) -> None:
        checks.sensitivity(np.abs(self.shift))


def unseen(noise: Distribution) -> float:
    """Bound on the mass beyond the reach on both sides: of a Gaussian, reweighted at most as it is at 0."""
    return runs.UNSEEN * float(noise.weight(np.zeros(()))) if noise.law.degree == 2 else 0.0


def is_even(noise: Distribution) -> bool:
    """Whether the density is even for certain: under tracing, only where its type says so."""
    if not isinstance(noise, Reweighted):
        return isinstance(noise, Symmetric)
    low, high = checks.concrete(noise.low), checks.concrete(noise.high)
    known = low is not None and high is not None
    return known and bool(np.all(noise.low == -noise.high)) and is_even(noise.kernel)


def shifted(noise: Distribution, shift: Real) -> Shifted:
    """The pair of additive noise and its shift, with as many periods of a staircase as it needs.

    Raises:
        ValueError: a staircase with too many steps within the shift.
    """
    if noise.law.degree:
        return Shifted(noise, shift)
    law: Any = noise.law
    parameters = law.epsilon, law.period, shift, *noise.edges
    numbers = [number for number in map(checks.concrete, parameters) if number is not None]
    if len(numbers) < len(parameters):
        return Shifted(noise, shift)
    epsilon, period, D, *edges = (float(np.max(np.abs(number))) for number in numbers)
    reach = min(max([0.0, *edges]) / period, 120 / epsilon)
    needed = 4 + 2 * math.ceil(D / period) + math.ceil(reach)
    if needed > _MOST_PERIODS:
        raise ValueError(f"sensitivity: {D:g} is {D / period:g} periods of the staircase; at most 30000 are accounted")
    return Shifted(noise, shift, 1 << max(4, needed - 1).bit_length())


def shifted_pieces(pair: Shifted) -> tuple[Losses, Pieces, Real]:
    """Pieces of constant loss as outcomes, all pieces, and minus the second derivative of the log density."""
    pieces, law, D = split(pair), pair.noise.law, pair.shift
    bend = -law.score(jnp.ones_like(pieces.at[0])) if law.degree == 2 else 0.0 * pieces.at[0]
    if law.degree == 0:
        p = jnp.exp(pieces.log_p) * pieces.width * noise_sticks.step_copies(pair, pieces.at)
        q = jnp.where(jnp.isfinite(pieces.loss), p * jnp.exp(-pieces.loss), 0.0)
        return Losses(p, q, pieces.loss, 0 * p), pieces, bend
    flat = (pieces.slope == 0) & (pieces.width > 0)
    p = pieces.weight_p * law.mass(pieces.left, pieces.right)
    q = pieces.weight_q * law.mass(pieces.left - D, pieces.right - D)
    p, q = jnp.where(flat, p, 0.0), jnp.where(flat, q, 0.0)
    return Losses(p, q, pieces.loss, 0 * p), pieces, bend


_shifted_pieces = jax.jit(shifted_pieces)


def _sloped(pair: Shifted, pieces: Pieces, bend: Any, panels: int) -> Losses:
    """Panels of the pieces whose loss is not constant."""
    left, right, D, few = pieces.left, pieces.right, pair.shift, FEW
    if pair.noise.law.degree == 2:
        reach = REACH / jnp.sqrt(bend)
        low, high = jnp.minimum(0.0, D) - reach, jnp.maximum(0.0, D) + reach
        left, right, few = jnp.clip(left, low, high), jnp.clip(right, low, high), max(6, PANELS // len(left))
    present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
    # An absent piece is as wide as any: its density must not be beyond the floats.
    left, right = jnp.where(present, left, 0.0), jnp.where(present, right, jnp.abs(D))
    share, weight = panel_rule(max(1, panels // len(left)) if panels else few, left, dense=panels > 0 and len(left) > 1)
    x = left[:, None] + (right - left)[:, None] * share - pieces.at[:, None]
    log_p = pieces.log_p[:, None] + pieces.rise[:, None] * x - bend * x**2 / 2
    loss = jnp.where(present, pieces.loss, 0.0)[:, None] + pieces.slope[:, None] * x
    weight = jnp.where(present, right - left, 0.0)[:, None] * weight
    width = range_of(loss)
    return Losses(*map(jnp.ravel, (weight * jnp.exp(log_p), weight * jnp.exp(log_p - loss), loss, width)))
