"""The maximum of the profiles of a pair and of its mirror, for asymmetric noise and shifts of any sign."""

from __future__ import annotations

import jax
import numpy as np

from accountants.dominating_pairs.additive import AdditivePair
from accountants.privacy_loss import PrivacyLossDistribution, join
from dpkernels.numerics import Real, RealArray, cast_like, namespace, without_derivative
from dpkernels.solve import bisect

_COMPARED_POINTS = 512  # The points at which both profiles are compared.
_MAX_CROSSINGS = 8  # The crossings of both that are kept; random merged Laplace noise had at most four.
_HALVINGS = 40  # The halvings that find a crossing.
_PROFILE_RTOL = 1e-10  # The relative difference up to which profiles are equal.


def larger_profile(pair: AdditivePair, panels: int = 0) -> PrivacyLossDistribution:
    """Return nodes of a pair whose profile is the maximum of this pair's and its mirror's, for shifts of any sign.

    Its positive losses are those of the pair where the pair's profile is larger, and those of the mirror elsewhere.
    Where the profiles cross it has an atom: the mass above the crossing of the pair that is larger below, minus that of
    the other. Staircases are not supported. The result is NaN if there are more crossings than are kept.
    """
    crossing, is_pairs_own = _crossings(without_derivative(pair))
    xp = namespace(crossing)
    nodes = pair.privacy_loss().nodes(panels, xp.concatenate([-crossing, xp.zeros_like(crossing[:1]), crossing]))
    positive, size = nodes.loss > 0, xp.abs(nodes.loss)
    p, q = xp.where(positive, nodes.p, nodes.q), xp.where(positive, nodes.q, nodes.p)
    is_above = size > crossing[:, None]
    chosen = is_pairs_own[is_above.sum(0)] == positive
    turn = xp.where(is_pairs_own[:-1] == is_pairs_own[1:], 0, xp.where(is_pairs_own[:-1], 1, -1))
    signed = turn[:, None] * xp.where(positive, 1, -1) * is_above
    p_above, q_above = (signed * p).sum(-1), (signed * q).sum(-1)
    is_larger = (p_above > 0) & (q_above > 0)
    # Up to rounding the loss of an atom is that of the crossing; it has the derivatives of log p/q.
    ratio = xp.log(xp.where(is_larger, p_above, 1.0)) - xp.log(xp.where(is_larger, q_above, 1.0))
    loss = xp.where(is_larger, crossing, 0.0) + ratio - without_derivative(ratio)
    p_above, q_above = xp.where(is_larger, p_above, 0.0), xp.where(is_larger, q_above, 0.0)
    atoms = PrivacyLossDistribution(p_above, q_above, loss, 0 * loss)
    positives = PrivacyLossDistribution(xp.where(chosen, p, 0.0), xp.where(chosen, q, 0.0), size, nodes.width)
    return join([positives, atoms]).symmetrized().scaled(xp.where(xp.isnan(crossing).any(), np.nan, 1.0))


def _crossings(pair: AdditivePair) -> tuple[RealArray, RealArray]:
    """Return (positive losses at which the profiles of a pair and its mirror cross, whether the pair's own is larger).

    The losses increase, and are inf where there are fewer. The second array has one more entry, for below the first.
    """
    sticks = pair.hockey_stick(), pair.mirror().hockey_stick()
    xp = namespace(*jax.tree.leaves(pair))
    top = xp.abs(pair.privacy_loss().nodes().finite[1]).max()
    # Points are added next to the top, where both profiles may be 0.
    y = top * cast_like(np.append(np.linspace(0.0, 1.0, _COMPARED_POINTS)[1:-1] ** 2, [1 - 1e-6, 1.0]), top)
    delta, mirror_delta = (stick(y) for stick in sticks)
    gap = delta - mirror_delta
    sign = xp.where(xp.abs(gap) > _PROFILE_RTOL * xp.maximum(delta, mirror_delta), xp.sign(gap), 0.0)
    # Equal profiles count as below, next to 0 as above; where all are equal, the pair's own counts as larger.
    sign = xp.concatenate([sign[xp.argmax(sign != 0)][None], sign])
    changes = xp.where(sign != 0, np.arange(len(sign)), 0)
    latest = np.maximum.accumulate(changes) if xp is np else jax.lax.cummax(changes)
    is_pairs_own = sign[latest][1:] >= 0
    crosses = is_pairs_own[1:] != is_pairs_own[:-1]
    index = xp.sort(xp.where(crosses, np.arange(_COMPARED_POINTS - 1), _COMPARED_POINTS - 1))[:_MAX_CROSSINGS]
    next_index = xp.minimum(index + 1, _COMPARED_POINTS - 1)

    def is_before_crossing(y: Real) -> RealArray:
        return (sticks[0](y) >= sticks[1](y)) == is_pairs_own[index]

    low, high = bisect(is_before_crossing, y[index], y[next_index], _HALVINGS)
    crossing = xp.where(next_index > index, (low + high) / 2, np.inf)
    crossing = xp.where(crosses.sum() <= _MAX_CROSSINGS, crossing, np.nan)
    return crossing, xp.concatenate([is_pairs_own[:1], is_pairs_own[next_index]])
