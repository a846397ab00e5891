"""Additive noise under two inputs: a law, and the same law a distance further on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import noise_sticks
from accountants.pairs.base import Curve, Pair
from accountants.pairs.noise_sticks import Pieces, split
from accountants.pairs.units import per_unit
from accountants.privacy_loss import FEW, PrivacyLossDistribution, SmoothPieces, join
from dpkernels import checks
from dpkernels.distributions.base import Distribution, Symmetric
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.numerics import Real, like, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

# How far out a Gaussian is followed, in sigma beyond both of its middles, and the panels it is cut into in all.
REACH, PANELS = 18.0, 30
# Mass of a Gaussian beyond its reach on both sides: 2 Phi(-18).
_UNSEEN = 2e-72
# The eighth root of 105, rounded up: by how much of the root of the curvature a log density is steeper than its score.
_CURVED = 1.8
# Periods of a staircase, on either side, whose steps a pair keeps: under tracing, and at most.
_TRACED_PERIODS, _MOST_PERIODS = 256, 1 << 16


@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class Shifted(Pair):
    """p = f, q = f(. - 1) or f(. + 1): additive noise under two inputs one unit apart; made by ``shifted``.

    Attributes:
        noise: the law with density f, in units of the distance of the inputs.
        shift: 1 or -1.
        periods: how many periods of a staircase on either side are kept step by step; the others follow geometrically.
    """

    noise: Distribution
    shift: Any
    periods: int = _TRACED_PERIODS

    @property
    def rounds_up(self) -> bool:
        """Whether it is Gaussian noise, truncated or recycled or not."""
        return self.noise.law.degree == 2

    def hockey_stick(self) -> Curve:
        return noise_sticks.of_noise(self)

    def largest_loss(self) -> Real:
        return noise_sticks.largest_loss_of_noise(self)

    def privacy_loss(self) -> PrivacyLossDistribution:
        outcomes, pieces = loss_pieces(self)
        return outcomes if pieces is None else join([outcomes, pieces])

    def mirror(self) -> Shifted:
        return Shifted(self.noise, -self.shift, self.periods)

    def asymmetry(self) -> Any:
        return 0.0 if is_even(self.noise) else np.inf

    def check(self) -> None:
        if self.shift not in (1, -1):
            raise ValueError(f"shift: {self.shift}; noise is in units of it, so it is 1 or -1")


def unseen(noise: Distribution) -> float:
    """Bound on the mass beyond the reach on both sides: of a Gaussian, reweighted at most as it is at 0."""
    return _UNSEEN * float(noise.weight(np.zeros(()))) if noise.law.degree == 2 else 0.0


def steepness_of_quadratic(score: Real, curvature: Real, width: Real) -> Any:
    """Return the steepness of e^g on panels of a width, g of degree 2: |g'| in their middles is given, and -g''."""
    return score + curvature * width / 2 + _CURVED * np.sqrt(curvature)


def is_even(noise: Distribution) -> bool:
    """Whether the density is even for certain: under tracing, only where its type says so."""
    if not isinstance(noise, Reweighted):
        return isinstance(noise, Symmetric)
    low, high = checks.concrete(noise.low), checks.concrete(noise.high)
    known = low is not None and high is not None
    return known and bool(np.all(noise.low == -noise.high)) and is_even(noise.kernel)


def shifted(noise: Distribution, shift: Real) -> Shifted:
    """The pair of additive noise and its shift, with as many periods of a staircase as it needs.

    Noise and shift are in any unit, and only their ratio counts. Of the pair the shift is the unit.

    Raises:
        ValueError: a staircase with too many steps within the shift.
    """
    xp = namespace(shift)
    noise, shift = per_unit(noise, xp.abs(shift)), xp.where(shift < 0, -1.0, 1.0)[()]
    if noise.law.degree:
        return Shifted(noise, shift)
    law: Any = noise.law
    parameters = law.epsilon, law.period, *noise.edges
    numbers = [number for number in map(checks.concrete, parameters) if number is not None]
    if len(numbers) < len(parameters):
        return Shifted(noise, shift)
    epsilon, period, *edges = (float(np.max(np.abs(number))) for number in numbers)
    reach = min(max([0.0, *edges]) / period, 120 / epsilon)
    needed = 4 + 2 * math.ceil(1 / period) + math.ceil(reach)
    if needed > _MOST_PERIODS:
        raise ValueError(f"sensitivity: is {1 / period:g} periods of the staircase; at most 30000 are accounted")
    return Shifted(noise, shift, 1 << max(4, needed - 1).bit_length())


def loss_pieces(pair: Shifted) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution | None]:
    """Return the pieces of constant loss as outcomes, and those on which the loss varies; None for laws of steps."""
    pieces, law, D = split(pair), pair.noise.law, pair.shift
    xp = namespace(pieces.at)
    if law.degree == 0:
        size = pieces.width * noise_sticks.step_copies(pair, pieces.at)
        p, finite = xp.exp(pieces.log_p) * size, xp.isfinite(pieces.loss)
        alone = pieces.weight_q * xp.exp(law.log_prob(pieces.at - D)) * size  # Where p is 0.
        q = xp.where(finite, p * xp.exp(-xp.where(finite, pieces.loss, 0.0)), xp.where(p > 0, 0.0, alone))
        return PrivacyLossDistribution(p, q, pieces.loss, 0 * p), None
    constant = (pieces.slope == 0) & (pieces.width > 0)
    p = pieces.weight_p * law.mass(pieces.left, pieces.right)
    q = pieces.weight_q * law.mass(pieces.left - D, pieces.right - D)
    p, q = xp.where(constant, p, 0.0), xp.where(constant, q, 0.0)
    return PrivacyLossDistribution(p, q, pieces.loss, 0 * p), _varying(pair, pieces)


def _varying(pair: Shifted, pieces: Pieces) -> PrivacyLossDistribution:
    """Return the pieces on which the loss varies: affine, on a log density that is a polynomial of degree 2 at most."""
    law, D, left, right, few = pair.noise.law, pair.shift, pieces.left, pieces.right, FEW
    xp = namespace(pieces.at)
    curvature = 0.0 * D
    if law.degree == 2:
        curvature = -law.score(xp.ones_like(pieces.at[0]))
        reach = REACH / xp.sqrt(curvature)
        low, high = xp.minimum(0.0, D) - reach, xp.maximum(0.0, D) + reach
        left, right, few = xp.clip(left, low, high), xp.clip(right, low, high), max(6, PANELS // len(left))
    present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
    # An absent piece has no length, and numbers that no formula stumbles over.
    left, right, at, log_p, rise, loss, slope = (
        xp.where(present, each, filler)
        for each, filler in (
            (left, 0.0),
            (right, 0.0),
            (pieces.at, 0.0),
            (pieces.log_p, 0.0),
            (pieces.rise, 0.0),
            (pieces.loss, 0.0),
            (pieces.slope, 1.0),
        )
    )

    def log_density(x: Any, i: Any) -> Any:
        away = x - at[i]
        return log_p[i] + rise[i] * away - curvature * away**2 / 2

    def steepness(start: Any, end: Any, i: Any) -> Any:
        away, width = (start + end) / 2 - at[i], end - start
        scores = (rise[i] - curvature * away, rise[i] - slope[i] - curvature * away)
        return np.maximum(*(steepness_of_quadratic(np.abs(score), curvature, width) for score in scores))

    def affine(x: Any, i: Any) -> Any:
        return loss[i] + slope[i] * (x - at[i])

    found = SmoothPieces(
        left,
        right,
        log_density,
        lambda x, i: log_density(x, i) - affine(x, i),
        affine,
        steepness,
        lambda value, i: at[i] + (value - loss[i]) / slope[i],
        few,
    )
    return PrivacyLossDistribution.of_pieces(found.where(present), unseen(pair.noise) if xp is np else 0.0)


# Of a pair and its mirror: how many places their profiles are compared at, how many crossings are kept (four, of merged
# Laplace, were the most in 8,000 random laws), the halvings that find one, and a relative difference that is none.
_PLACES, _CROSSINGS, _HALVINGS, _SAME = 512, 8, 40, 1e-10


def larger(pair: Shifted, panels: int = 0) -> PrivacyLossDistribution:
    """Nodes of the pair whose profile is the larger of this pair's and its mirror's: of noise for shifts of any sign.

    Its positive losses are those of the pair where the pair's profile is the larger one, else the mirror's. Where the
    profiles cross it has an atom: what the one that is larger below has above, less what the other one has. Not for
    staircases, which may cross at every step; NaN where there are more crossings than are kept.
    """
    y, own = _crossings(without_derivative(pair))
    xp = namespace(y)
    nodes = pair.privacy_loss().nodes(panels, xp.concatenate([-y, xp.zeros_like(y[:1]), y]))
    positive, size = nodes.loss > 0, xp.abs(nodes.loss)
    p, q = xp.where(positive, nodes.p, nodes.q), xp.where(positive, nodes.q, nodes.p)
    above = size > y[:, None]
    chosen = own[above.sum(0)] == positive
    turned = xp.where(own[:-1] == own[1:], 0, xp.where(own[:-1], 1, -1))[:, None] * xp.where(positive, 1, -1) * above
    atoms = _atoms_at(y, (turned * p).sum(-1), (turned * q).sum(-1))
    positives = PrivacyLossDistribution(xp.where(chosen, p, 0.0), xp.where(chosen, q, 0.0), size, nodes.width)
    return join([positives, atoms]).symmetrized().scaled(xp.where(xp.isnan(y).any(), np.nan, 1.0))


def _atoms_at(loss: Any, p: Any, q: Any) -> PrivacyLossDistribution:
    """Atoms at these losses, which are log p/q but for rounding, and whose derivatives are that one's."""
    xp = namespace(p, q)
    some = (p > 0) & (q > 0)
    ratio = xp.log(xp.where(some, p, 1.0)) - xp.log(xp.where(some, q, 1.0))
    loss = xp.where(some, loss, 0.0) + ratio - without_derivative(ratio)
    return PrivacyLossDistribution(xp.where(some, p, 0.0), xp.where(some, q, 0.0), loss, xp.zeros_like(loss))


def _crossings(pair: Shifted) -> tuple[Any, Any]:
    """(positive losses at which the profiles of a pair and its mirror cross, whether the pair's own is larger).

    The losses rise, and are inf where there are fewer; of the second one entry more: below the first, and above each.
    """
    sticks = pair.hockey_stick(), pair.mirror().hockey_stick()
    xp = namespace(*jax.tree.leaves(pair))
    top = xp.abs(pair.privacy_loss().nodes().finite[1]).max()
    # Next to the top, where both may be 0, too.
    y = top * like(np.append(np.linspace(0.0, 1.0, _PLACES)[1:-1] ** 2, [1 - 1e-6, 1.0]), top)
    one, other = (stick(y) for stick in sticks)
    sign = xp.where(xp.abs(one - other) > _SAME * xp.maximum(one, other), xp.sign(one - other), 0.0)
    # Where they are the same it is as below, next to 0 as above; the pair's own where they are all the same.
    sign = xp.concatenate([sign[xp.argmax(sign != 0)][None], sign])
    changes: Any = xp.where(sign != 0, np.arange(len(sign)), 0)
    latest: Any = np.maximum.accumulate(changes) if xp is np else jax.lax.cummax(changes)
    own = sign[latest][1:] >= 0
    at: Any
    if xp is np:
        at = np.flatnonzero(own[1:] != own[:-1])[:_CROSSINGS]
        at = np.append(at, np.full(_CROSSINGS - len(at), _PLACES - 1))
    else:
        (at,) = jnp.nonzero(own[1:] != own[:-1], size=_CROSSINGS, fill_value=_PLACES - 1)
    after = xp.minimum(at + 1, _PLACES - 1)

    def before(y: Any) -> Any:
        return (sticks[0](y) >= sticks[1](y)) == own[at]

    low, high = bisect(before, y[at], y[after], _HALVINGS)
    crossing = xp.where(after > at, (low + high) / 2, np.inf)
    kept = (own[1:] != own[:-1]).sum() <= _CROSSINGS
    return xp.where(kept, crossing, np.nan), xp.concatenate([own[:1], own[after]])
