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
from dpkernels.numerics import Real, like
from dpkernels.pytrees import pytree
from dpkernels.roots import halved

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

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        """Whether it is Gaussian noise, truncated or recycled or not."""
        return self.noise.law.degree == 2

    def hockey_stick(self) -> Curve:
        return noise_sticks.of_noise(self)

    def largest_loss(self) -> Real:
        return noise_sticks.largest_loss_of_noise(self)

    def losses(self, panels: int = 0, cuts: Any = None) -> Losses:
        """At cuts, an array of losses, there are ends of panels."""
        single, pieces, bend = shifted_pieces(self)
        return single if self.noise.law.degree == 0 else joined([single, _sloped(self, pieces, bend, panels, cuts)])

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
        finite = jnp.isfinite(pieces.loss)
        q = jnp.where(finite, p * jnp.exp(-jnp.where(finite, pieces.loss, 0.0)), 0.0)
        return Losses(p, q, pieces.loss, 0 * p), pieces, bend
    flat = (pieces.slope == 0) & (pieces.width > 0)
    p = pieces.weight_p * law.mass(pieces.left, pieces.right)
    q = pieces.weight_q * law.mass(pieces.left - D, pieces.right - D)
    p, q = jnp.where(flat, p, 0.0), jnp.where(flat, q, 0.0)
    return Losses(p, q, pieces.loss, 0 * p), pieces, bend


_shifted_pieces = jax.jit(shifted_pieces)


def _sloped(pair: Shifted, pieces: Pieces, bend: Any, panels: int, cuts: Any) -> Losses:
    """Panels of the pieces whose loss is not constant."""
    left, right, D, few = pieces.left, pieces.right, pair.shift, FEW
    if pair.noise.law.degree == 2:
        reach = REACH / jnp.sqrt(bend)
        low, high = jnp.minimum(0.0, D) - reach, jnp.maximum(0.0, D) + reach
        left, right, few = jnp.clip(left, low, high), jnp.clip(right, low, high), max(6, PANELS // len(left))
    present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
    # An absent piece is as wide as any: its density must not be beyond the floats.
    left, right = jnp.where(present, left, 0.0), jnp.where(present, right, jnp.abs(D))
    if cuts is not None:
        x = pieces.at[:, None] + (cuts - pieces.loss[:, None]) / jnp.where(present, pieces.slope, 1.0)[:, None]
        share = (x - left[:, None]) / (right - left)[:, None]
        cuts = jax.lax.stop_gradient(jnp.where(present[:, None], jnp.clip(share, 0.0, 1.0), 0.0))
    many, dense = max(1, panels // len(left)) if panels else few, panels > 0 and len(left) > 1
    share, weight = panel_rule(many, left, dense=dense, cuts=cuts)
    x = left[:, None] + (right - left)[:, None] * share - pieces.at[:, None]
    log_p = pieces.log_p[:, None] + pieces.rise[:, None] * x - bend * x**2 / 2
    loss = jnp.where(present, pieces.loss, 0.0)[:, None] + pieces.slope[:, None] * x
    weight = jnp.where(present, right - left, 0.0)[:, None] * weight
    width = range_of(loss)
    return Losses(*map(jnp.ravel, (weight * jnp.exp(log_p), weight * jnp.exp(log_p - loss), loss, width)))


# Of a pair and its mirror: how many places their profiles are compared at, how many crossings are kept (four, of merged
# Laplace, were the most in 8,000 random laws), the halvings that find one, and a relative difference that is none.
_PLACES, _CROSSINGS, _HALVINGS, _SAME = 512, 8, 40, 1e-10


def larger(pair: Shifted, panels: int = 0) -> Losses:
    """Nodes of the pair whose profile is the larger of this pair's and its mirror's: of noise for shifts of any sign.

    Its positive losses are those of the pair where the pair's profile is the larger one, else the mirror's. Where the
    profiles cross it has an atom: what the one that is larger below has above, less what the other one has. Not for
    staircases, which may cross at every step; NaN where there are more crossings than are kept.
    """
    y, own = _crossings(jax.lax.stop_gradient(pair))
    nodes = pair.losses(panels, jnp.concatenate([-y, jnp.zeros_like(y[:1]), y]))
    positive, size = nodes.loss > 0, jnp.abs(nodes.loss)
    p, q = jnp.where(positive, nodes.p, nodes.q), jnp.where(positive, nodes.q, nodes.p)
    above = size > y[:, None]
    chosen = own[above.sum(0)] == positive
    turned = jnp.where(own[:-1] == own[1:], 0, jnp.where(own[:-1], 1, -1))[:, None] * jnp.where(positive, 1, -1) * above
    atoms = _atoms_at(y, (turned * p).sum(-1), (turned * q).sum(-1))
    positives = Losses(jnp.where(chosen, p, 0.0), jnp.where(chosen, q, 0.0), size, nodes.width)
    return joined([positives, atoms]).both_ways().scaled(jnp.where(jnp.isnan(y).any(), jnp.nan, 1.0))


def _atoms_at(loss: Any, p: Any, q: Any) -> Losses:
    """Atoms at these losses, which are log p/q but for rounding, and whose derivatives are that one's."""
    some = (p > 0) & (q > 0)
    ratio = jnp.log(jnp.where(some, p, 1.0)) - jnp.log(jnp.where(some, q, 1.0))
    loss = jnp.where(some, loss, 0.0) + ratio - jax.lax.stop_gradient(ratio)
    return Losses(jnp.where(some, p, 0.0), jnp.where(some, q, 0.0), loss, jnp.zeros_like(loss))


def _crossings(pair: Shifted) -> tuple[Any, Any]:
    """(positive losses at which the profiles of a pair and its mirror cross, whether the pair's own is larger).

    The losses rise, and are inf where there are fewer; of the second one entry more: below the first, and above each.
    """
    sticks = pair.hockey_stick(), pair.mirror().hockey_stick()
    top = jnp.abs(pair.losses().finite[1]).max()
    # Next to the top, where both may be 0, too.
    y = top * like(np.append(np.linspace(0.0, 1.0, _PLACES)[1:-1] ** 2, [1 - 1e-6, 1.0]), top)
    one, other = (stick(y) for stick in sticks)
    sign = jnp.where(jnp.abs(one - other) > _SAME * jnp.maximum(one, other), jnp.sign(one - other), 0.0)
    # Where they are the same it is as below, next to 0 as above; the pair's own where they are all the same.
    sign = jnp.concatenate([sign[jnp.argmax(sign != 0)][None], sign])
    own = jax.lax.associative_scan(lambda before, here: jnp.where(here == 0, before, here), sign)[1:] >= 0
    (at,) = jnp.nonzero(own[1:] != own[:-1], size=_CROSSINGS, fill_value=_PLACES - 1)
    after = jnp.minimum(at + 1, _PLACES - 1)

    def before(y: Any) -> Any:
        return (sticks[0](y) >= sticks[1](y)) == own[at]

    low, high = halved(before, y[at], y[after], _HALVINGS)
    crossing = jnp.where(after > at, (low + high) / 2, jnp.inf)
    kept = (own[1:] != own[:-1]).sum() <= _CROSSINGS
    return jnp.where(kept, crossing, jnp.nan), jnp.concatenate([own[:1], own[after]])
