"""The blanket of reports about categories, for shuffling."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

from accountants.dominating_pairs.categories import support_chances
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.numerics import RealArray, namespace


def outcome_probabilities(mechanism: Categorical) -> tuple[RealArray, RealArray, RealArray, RealArray]:
    """Return the least probability of classes of reports, those under x and x', and those under what others may hold.

    All reports have the same uniform probability under a mixture of the categories, times p g of those that support the
    true one and (1 - p) g/(g - 1) of the others, with g = d/k for sets. Classes are by which of x, x' and a third
    category are supported; the third one is on no line with the others. No report supports all categories, so the least
    probability is that of the others, and every pair of categories is the worst.
    """
    inner: Categorical = getattr(mechanism, "mechanism", mechanism)
    p, missed = support_chances(mechanism)
    if isinstance(inner, BlockResponse):
        g = inner.blocks
        classes = product((1, 0), repeat=min(inner.categories, 3))
        probabilities = {members: _probability_of_blocks(sum(members), inner) for members in classes}
        high, low = p * g, missed * g / (g - 1)
    else:
        d, k = inner.categories, inner.size  # type: ignore[attr-defined]
        probabilities = {members: _probability_of_sets(members, d, k) for members in product((1, 0), repeat=min(d, 3))}
        high, low = p * d / k, missed * d / (d - k)
    positive = {members: probability for members, probability in probabilities.items() if probability > 0}
    mass, supported = np.array(list(positive.values())), np.array(list(positive)).T
    xp = namespace(p)
    rows = [mass * xp.where(is_supported, high, low) for is_supported in supported.astype(bool)]
    return low * mass, rows[0], rows[1], xp.stack([*rows[1:], rows[0]])


def _probability_of_sets(members: tuple[int, ...], d: int, k: int) -> float:
    """Return the share of all sets of k of d that contain exactly these of some categories."""
    probability, remaining, chosen = Fraction(1), d, k
    for is_member in members:
        probability *= Fraction(chosen if is_member else remaining - chosen, remaining)
        remaining, chosen = remaining - 1, chosen - is_member
    return float(probability)


def _probability_of_blocks(members: int, mechanism: BlockResponse) -> float:
    """Return the share of all reports whose block contains exactly these of three, or of both, categories."""
    g, points = mechanism.blocks, mechanism.points
    c = mechanism.collision
    if mechanism.categories == 2:
        return {2: c / g, 1: (1 - c) / g, 0: 1 - (2 - c) / g}[members]
    # In a direction in which two categories share a block, the third one is in it with probability c'.
    all_three = c * (points // g**2 - 1) / (points // g - 1) if mechanism.digits > 1 else 0.0
    exactly_two, exactly_one = c - all_three, 1 - 2 * c + all_three
    some = all_three + 3 * (exactly_two + exactly_one)
    return {3: all_three / g, 2: exactly_two / g, 1: exactly_one / g, 0: 1 - some / g}[members]
