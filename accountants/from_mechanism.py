"""The guarantee of a mechanism, of a batch of mechanisms, or of a dominating pair."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from accountants.batch_guarantee import BatchGuarantee, LargestGuarantee
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.base import DominatingPair
from accountants.dominating_pairs.registry import dominating_pairs, reject_sensitivity
from accountants.guarantee import Guarantee
from dpkernels import checks
from dpkernels.batches import flat_leaves
from dpkernels.numerics import Real, namespace

_SYMMETRY_TOLERANCE = 1e-9  # The difference up to which the profiles of a pair and its mirror are equal.


def guarantee(mechanism: object, sensitivity: Real | None = None, *, people: str = "same") -> Any:
    """Return the guarantee of one report of a mechanism, or of all reports of a batch about the same person, composed.

    With ``people="different"`` every entry of a batch is about people of its own. The guarantee is then the largest one
    of an entry (parallel composition).

    Args:
        mechanism: a mechanism of dpkernels; an exact sampler, or the certificate of noise on numbers, whose integers
            are then accounted; a batch of mechanisms; or a dominating pair, as ``discrete_pair``,
            ``randomised_response`` and ``density_pair`` make.
        sensitivity: D of an additive mechanism; the default is that of its claim. Other mechanisms take none.
        people: whom the entries of a batch are about, "same" or "different".

    Raises:
        TypeError: the mechanism is unknown.
        ValueError: the sensitivity is missing or not applicable; or p or q of a pair is not a probability distribution.
    """
    checks.one_of("people", people, ("same", "different"))
    if getattr(mechanism, "batch_shape", ()):
        return _of_batch(BatchGuarantee(mechanism, sensitivity), people)
    if isinstance(mechanism, DominatingPair):
        reject_sensitivity(sensitivity)
        if namespace(*jax.tree.leaves(mechanism)) is np:
            mechanism.check()
        asymmetry = checks.concrete(mechanism.symmetry_gap())
        # Pairs that may be asymmetric are composed in both directions.
        one_is_enough = mechanism.may_be_asymmetric or (asymmetry is not None and asymmetry <= _SYMMETRY_TOLERANCE)
        return Guarantee((RepeatedReleases((mechanism,) if one_is_enough else (mechanism, mechanism.mirror()), 1),))
    return Guarantee((RepeatedReleases(dominating_pairs(mechanism, sensitivity), 1),))


def _of_batch(batch: BatchGuarantee, people: str) -> Guarantee | BatchGuarantee | LargestGuarantee:
    if namespace(*jax.tree.leaves(batch.batch)) is not np:  # JAX's numbers have estimates with derivatives.
        terms = tuple(RepeatedReleases(dominating_pairs(entry), 1) for entry in flat_leaves(batch.batch))
        return Guarantee(terms) if people == "same" else LargestGuarantee(tuple(Guarantee((term,)) for term in terms))
    if people == "same":
        return batch
    members = tuple(Guarantee((dataclasses.replace(term, count=1),)) for term in batch.terms)
    return members[0] if len(members) == 1 else LargestGuarantee(members)
