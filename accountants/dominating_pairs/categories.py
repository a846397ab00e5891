"""The dominating pair of a mechanism for categories, which is the same for any two categories.

A report supports only the first of two categories, only the second, or both or neither of them. In the last case its
probability is the same for both categories, so three outcomes are enough. Under the first category they have the
probabilities own, 1 - own - other and other, and under the second category the reverse.
"""

from __future__ import annotations

from accountants.dominating_pairs.discrete import Atoms
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.numerics import Real, namespace


def support_chances(mechanism: Categorical | CategorySampler) -> tuple[Real, Real]:
    """Return p, with which a report supports the true category, and 1 - p, which as a difference would cancel.

    They are those of the integers that are sampled, if it is a sampler.
    """
    if isinstance(mechanism, CategorySampler):
        p = mechanism.certificate.probability
        return float(p), float(1 - p)
    # The odds are e^eps to the choices that do not support it, each by as many as do.
    odds = mechanism.blocks - 1 if isinstance(mechanism, BlockResponse) else mechanism.categories / mechanism.size - 1  # type: ignore[attr-defined]
    p = mechanism.support_probabilities[0]
    return p, p * odds * namespace(p).exp(-mechanism.epsilon)


def category_pair(mechanism: Categorical) -> Atoms:
    """Return the pair of any two categories.

    With sets of k, own = p (d - k)/(d - 1) and other = (1 - p) k/(d - 1). With blocks, of which two categories share
    one with probability c, own = (1 - c) p and other = (1 - c) (1 - p)/(g - 1).
    """
    inner: Categorical = getattr(mechanism, "mechanism", mechanism)
    p, missed = support_chances(mechanism)
    if isinstance(inner, BlockResponse):
        separate = 1 - inner.collision
        first, second, has_rest = separate * p, separate * missed / (inner.blocks - 1), inner.outcomes > 2
    else:
        d, k = inner.categories, inner.size  # type: ignore[attr-defined]
        first, second, has_rest = p * (d - k) / (d - 1), missed * k / (d - 1), d > 2
    xp = namespace(first)
    masses = xp.stack([first, 1 - first - second, second] if has_rest else [first, second])
    return Atoms(masses, masses[::-1])
