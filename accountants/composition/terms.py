"""What guarantees are made of: a number of reports of one mechanism, on all the data or on samples of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from accountants.composition.cumulant import RepeatedLoss
from accountants.composition.grid import pointwise_maximum
from accountants.composition.replacement import Replaced, check_replaceable, replaced_privacy_loss
from accountants.dominating_pairs.additive import AdditivePair, larger_profile
from accountants.dominating_pairs.base import DominatingPair, Sampled
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree

# How datasets differ whose samples are reported on.
ADJACENCIES = {
    "add_remove": "datasets of which one has one record more",
    "replace": "datasets of as many records that differ in one",
}
_ON_ALL_DATA = "inputs whose true values differ by at most the sensitivity; of bounded ones without one, any two inputs"


@partial(pytree, static=("adjacency",))
@dataclass(frozen=True)
class Term:
    """n independent reports of one mechanism, each on a Poisson sample of rate r.

    Attributes:
        pairs: the mechanism's worst pairs; its profile is the maximum over them.
        count: n.
        rate: r, or None for all the data.
        adjacency: which datasets are neighbours, of reports on samples: one of ``ADJACENCIES``.
    """

    pairs: tuple[Any, ...]
    count: Any
    rate: Any = None
    adjacency: str = "add_remove"

    @property
    def has_directions(self) -> bool:
        """Whether the pairs (p, q) and (q, p) may have two profiles.

        Noise and windows on all the data have one, and so have replaced records; added and removed ones are two, and
        tables and densities of the user's own may be.
        """
        if self.rate is not None:
            return self.adjacency == "add_remove"
        return any(pair.has_two_ways for pair in self.pairs)


def neighbouring(terms: tuple[Term, ...]) -> str:
    """Which inputs are neighbours, in words."""
    sampled = {term.adjacency for term in terms if term.rate is not None}
    return ADJACENCIES[sampled.pop()] if sampled else _ON_ALL_DATA


def one_adjacency(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """The terms, refused where their samples have different neighbours.

    Raises:
        ValueError: neighbours of their samples are not the same.
    """
    if len({term.adjacency for term in terms if term.rate is not None}) > 1:
        raise ValueError("adjacency: some samples have records added or removed, and others have them replaced")
    return terms


def check_terms(terms: Any) -> None:
    """Refuse the terms of a form where ``guarantee`` could not have made them.

    Raises:
        ValueError: saying what is wrong.
        TypeError: the same, of a type.
    """
    if not (isinstance(terms, tuple) and terms and all(isinstance(term, Term) for term in terms)):
        raise ValueError("form: the terms of a guarantee are one or more")
    for term in terms:
        checks.whole("count", term.count, 1, 1 << 62)
        checks.one_of("adjacency", term.adjacency, ADJACENCIES)
        if term.rate is not None:
            checks.within("rate", term.rate, np.nextafter(0.0, 1.0), 1.0)
        if not (isinstance(term.pairs, tuple) and term.pairs):
            raise ValueError("form: the pairs of a term are one or more")
        for pair in term.pairs:
            if not isinstance(pair, DominatingPair):
                raise ValueError(f"form: {type(pair).__name__} is no pair of laws")
            pair.check()
        first, *others = term.pairs
        expected: tuple[list[Any], ...] = [], [first.mirror()]  # By ``parts_of``.
        if isinstance(first, AdditivePair) and others not in expected:
            raise ValueError("form: the pairs of noise are one, or two of opposite shifts")
        if term.adjacency == "replace":
            check_replaceable(term.pairs)
    one_adjacency(terms)


def with_mirror(pair: Any) -> tuple[Any, ...]:
    """A pair of the user's own, and its mirror where that has another profile and ``both_ways`` does not add it."""
    odd = checks.concrete(pair.asymmetry())
    symmetric = odd is not None and odd <= 1e-9
    return (pair,) if symmetric or pair.has_two_ways else (pair, pair.mirror())


def both_ways(pairs: tuple[Any, ...]) -> tuple[DominatingPair, ...]:
    """The pairs, and the mirrors of those that may have another profile."""
    return (*pairs, *(pair.mirror() for pair in pairs if pair.has_two_ways))


def one_release(term: Term) -> tuple[DominatingPair, ...]:
    """The pairs of one release of the term, sampled or not: its profile is their maximum, exactly."""
    if term.rate is None:
        return both_ways(term.pairs)
    if term.adjacency == "replace":
        return tuple(Replaced(pair, term.rate) for pair in term.pairs)
    return tuple(Sampled(pair, term.rate, removed) for pair in term.pairs for removed in (False, True))


def parts_of(term: Term, ways: tuple[bool, ...], panels: int = 0) -> list[RepeatedLoss]:
    """Return the losses of the term: of Gaussian noise alone its mu, of others their outcomes.

    Of two pairs (asymmetric noise) the choice may differ from report to report: then those of their maximum.

    Args:
        term: the reports.
        ways: one part for each, with a neighbour that has one record more if it is true.
        panels: see ``PrivacyLossDistribution.nodes``.
    """
    if is_gaussian(term):
        (pair,) = term.pairs
        mu = pair.shift / pair.noise.sigma
        return [RepeatedLoss(None, namespace(mu).asarray(mu), term.count) for _ in ways]
    # Comparisons do not see a NaN, and what is then left out would count as no loss.
    leaves = jax.tree.leaves(term)
    xp = namespace(*leaves)
    known = xp.where(xp.stack([xp.any(leaf != leaf) for leaf in leaves]).any(), np.nan, 1.0)
    several = [one.scaled(known) for one in _nodes(term, panels)]
    turned = [pointwise_maximum([one.mirrored() for one in several] if added else several) for added in ways]
    return [RepeatedLoss(nodes, xp.zeros_like(nodes.p[0]), term.count) for nodes in turned]


def is_gaussian(term: Term) -> bool:
    """Whether it is Gaussian noise on all the data, of which any number of reports is one."""
    (pair, *others) = term.pairs
    return not others and term.rate is None and isinstance(pair, AdditivePair) and isinstance(pair.noise, Gaussian)


def _nodes(term: Term, panels: int) -> list[PrivacyLossDistribution]:
    """Of every pair; of smooth noise that is not even, whose pairs are one and its mirror, of what both make."""
    first, rate = term.pairs[0], term.rate
    if rate is not None and term.adjacency == "replace":
        return [replaced_privacy_loss(pair, rate).nodes(panels) for pair in term.pairs]
    if len(term.pairs) > 1 and isinstance(first, AdditivePair) and first.formulas.is_smooth:
        nodes = larger_profile(first, panels)
        return [nodes if rate is None else nodes.subsampled(rate)]
    losses = [pair.privacy_loss() for pair in term.pairs]
    return [(one if rate is None else one.subsampled(rate)).nodes(panels) for one in losses]
