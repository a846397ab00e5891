"""Guarantees of batches: of all entries together for the same people, or of each entry for different people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.brackets.monotone import split_monotone
from accountants.composition.brackets.offsets import two_heaviest_atoms
from accountants.composition.repeated import ON_ALL_DATA, RepeatedReleases
from accountants.composition.trade_off import CurvePoint
from accountants.dominating_pairs.base import DominatingPair, as_float64
from accountants.dominating_pairs.registry import dominating_pairs, noise_pairs, reject_sensitivity
from accountants.guarantee import ComposableGuarantee, Guarantee
from accountants.risk import Risks
from dpkernels import checks
from dpkernels.batches import distinct_entries, flat_leaves, map_leaves
from dpkernels.distributions.base import Distribution
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, elementwise_maximum, float_if_scalar, namespace
from dpkernels.pytrees import pytree

_LEVELS = 8  # The most different ratios of a noise's sensitivity to its scale that bounds are computed for,
_LATTICE_LEVELS = 64  # and the most if the ratios are multiples of one number, and the losses have two heavy atoms.
_LATTICE_PARTS = 256  # About how many times that number the largest ratio is,
_LATTICE_POINTS = 1 << 17  # or fewer, for a grid of about this number of points.
_FEWEST_PARTS = 16  # With fewer multiples a lattice is too coarse.
_LATTICE_DEVIATIONS = 16  # The standard deviations of the sum that a grid covers, about.
_PROPORTIONAL_RTOL = 1e-9  # How far the distance of atoms may be from twice another one.
_JOINED_WIDTH = 1e-3  # The relative width that brackets of joined ratios aim at: joining has more effect.
# The share by which a ratio is moved to cover the rounding of a sum of up to 2^40 squares, a quotient and a root.
_ROUNDING = 2.0**-49
_CELLS = 64  # The groups of close ratios of an estimate, of which each has one ratio.
_FINE_CELLS = 512  # The groups of close ratios of which the levels of bounds are made.


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class _JoinedGuarantee(Guarantee):
    """The guarantee of entries whose ratios are joined, so that narrow brackets of it would be of no use."""

    @cached_property
    def _bounds(self) -> RigorousBounds:
        return RigorousBounds(self, _JOINED_WIDTH)


class BatchGuarantee(ComposableGuarantee):
    """The guarantee of all entries of a batch together, about the same person; ``guarantee`` makes it.

    Entries of one kind are counted. Gaussian entries are one Gaussian release. Of noise of one shape, entries with many
    different scales are joined in few levels: with all ratios of sensitivity to scale rounded up for upper bounds, and
    down for lower ones. ``terms`` are those of the entries as they are.
    """

    def __init__(self, batch: Any, sensitivity: object = None, times: int = 1) -> None:
        if sensitivity is not None:
            if not isinstance(batch, Additive):
                reject_sensitivity(sensitivity)
            batch = dataclasses.replace(batch, sensitivity=sensitivity)
        if isinstance(batch, Additive):
            if batch.sensitivity is None:
                raise ValueError("sensitivity: None; the mechanism claims none, so it must be given, a positive number")
            batch = Additive(batch.noise, batch.sensitivity)  # Whatever entries claim, equal noise is counted.
        self.batch, self.times = batch, times

    @cached_property
    def _entries(self) -> tuple[Any, np.ndarray]:
        """Return the distinct entries as a flat batch, and how many of each there are."""
        firsts, indices = distinct_entries(self.batch)
        return flat_leaves(self.batch)[firsts], np.bincount(indices)

    @cached_property
    def terms(self) -> tuple[RepeatedReleases, ...]:
        """Return the releases of every distinct entry."""
        distinct, counts = self._entries
        numbers = zip(distinct, counts.tolist(), strict=True)
        return tuple(RepeatedReleases(dominating_pairs(entry), count * self.times) for entry, count in numbers)

    @cached_property
    def unjoined(self) -> Guarantee:
        """Return the guarantee of the ``terms``, such as for its JSON or a plot; slow for many different entries."""
        return Guarantee(self.terms)

    def renyi(self, order: Real) -> Real:
        """Return the Renyi divergence of all reports; see ``Guarantee.renyi``."""
        return self.unjoined.renyi(order)

    @cached_property
    def _upper(self) -> Guarantee:
        return self._joined(1)

    @cached_property
    def _lower(self) -> Guarantee:
        return self._joined(-1)

    @cached_property
    def _joined_estimate(self) -> Guarantee:
        return self._joined(0)

    @property
    def joined_terms(self) -> tuple[RepeatedReleases, ...]:
        """Return releases that dominate those of all entries together, few for noise of one shape."""
        return self._joined(1, may_be_many=False).terms

    def _joined(self, side: int, *, may_be_many: bool = True) -> Guarantee:
        """Return the guarantee of joined entries, each one's ratio moved up, down, or with 0 to a mean of a level."""
        distinct, counts = self._entries
        noise: Any = getattr(distinct, "noise", None)
        lengths = noise.lengths if isinstance(noise, Distribution) and noise.is_even else ()
        if not lengths or not hasattr(noise, lengths[0]) or len(counts) <= (_LEVELS if side else _CELLS):
            return self.unjoined
        length = np.broadcast_to(getattr(noise, lengths[0]), len(counts))
        ratios = np.broadcast_to(distinct.sensitivity, len(counts)) / length
        # A shift by more is never more private: noise_pairs. So is the composition of such releases.
        shapes = dataclasses.replace(distinct, noise=noise.rescale(1.0, length), sensitivity=None)
        firsts, shape_indices = distinct_entries(_with_size(shapes, len(counts)))
        terms: list[RepeatedReleases] = []
        for shape_index, first in enumerate(firsts.tolist()):
            shape = _with_size(shapes, len(counts))[first].noise
            rows = shape_indices == shape_index
            levels = self._on_lattice(shape, ratios[rows], counts[rows], side) if side and may_be_many else None
            terms += levels or self._levels(shape, ratios[rows], counts[rows], side)
        return _JoinedGuarantee(tuple(terms))

    def _on_lattice(
        self, shape: Distribution, ratios: np.ndarray, counts: np.ndarray, side: int
    ) -> list[RepeatedReleases] | None:
        """Return releases with ratios that are multiples of one number; None if that is of no use.

        It is of use if losses have two heavy atoms, whose distance is in proportion to the ratio. All atoms are then on
        one grid, and few points suffice for many ratios.
        """
        if shape.gaussian_sigma is not None:
            return None
        deviation = math.sqrt(self.times * float((counts * ratios**2).sum()))
        least = _LATTICE_DEVIATIONS * deviation / (2 * _LATTICE_POINTS)
        unit = 2.0 ** max(math.floor(math.log2(ratios.max() / _LATTICE_PARTS)), math.ceil(math.log2(least)))
        if unit > ratios.max() / _FEWEST_PARTS:
            return None
        gap, twice = (_gap_of_atoms(noise_pairs(shape, ratio)) for ratio in (unit, 2 * unit))
        if not gap or abs(twice / gap - 2) > _PROPORTIONAL_RTOL:
            return None
        order = np.argsort(ratios)
        multiples = (np.ceil if side > 0 else np.floor)(ratios[order] / unit * (1 + side * _ROUNDING))
        levels = joined_levels(multiples * unit, counts[order], _LATTICE_LEVELS, side)
        fewer = joined_levels(ratios[order], counts[order], _LEVELS, side)
        if _change(levels, ratios, counts) > _change(fewer, ratios, counts):
            return None
        numbers: dict[float, int] = {}
        for ratio, count in levels:
            numbers[ratio] = numbers.get(ratio, 0) + count * self.times
        return [RepeatedReleases(noise_pairs(shape, ratio), count) for ratio, count in numbers.items() if ratio]

    def _levels(self, shape: Distribution, ratios: np.ndarray, counts: np.ndarray, side: int) -> list[RepeatedReleases]:
        """Return releases of noise of one shape, with few ratios of the sensitivity to its length."""
        if shape.gaussian_sigma is not None:
            squares = (counts * ratios**2).tolist()
            # The sum is exact but for the rounding of its terms and of the root.
            mu = math.sqrt(math.fsum(squares)) * (1 + side * _ROUNDING)
            return [RepeatedReleases(noise_pairs(shape, mu), self.times)]
        order = np.argsort(ratios)
        ratios, counts = ratios[order], counts[order]
        return [
            RepeatedReleases(noise_pairs(shape, ratio * (1 + side * _ROUNDING)), int(count) * self.times)
            for ratio, count in joined_levels(ratios, counts, _LEVELS if side else _CELLS, side)
        ]

    def delta(self, epsilon: Real) -> Any:
        """Return a delta such that all reports are (epsilon, delta)-DP; see ``Guarantee.delta``."""
        return self._upper.delta(epsilon)

    def epsilon(self, delta: Real) -> Real:
        """Return an epsilon such that all reports are (epsilon, delta)-DP; see ``Guarantee.epsilon``."""
        return self._upper.epsilon(delta)

    def estimate_delta(self, epsilon: Real) -> Real:
        """Return an estimate of the smallest delta at an epsilon, with ratios joined in cells of one mean square."""
        return self._joined_estimate.estimate_delta(epsilon)

    def estimate_epsilon(self, delta: Real) -> Real:
        """Return an estimate of the smallest epsilon at a delta, with ratios joined in cells of one mean square."""
        return self._joined_estimate.estimate_epsilon(delta)

    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        return self._lower._delta_bracket(epsilon)[0], self._upper._delta_bracket(epsilon)[1]

    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        return self._lower._epsilon_bracket(delta)[0], self._upper._epsilon_bracket(delta)[1]

    def _curve_point(self, alpha: float) -> CurvePoint:
        private, revealing = self._lower._curve_point(alpha), self._upper._curve_point(alpha)
        return CurvePoint((revealing.error[0], private.error[1]), (private.power[0], revealing.power[1]))

    def _gaussian_mu(self) -> float:
        return self._upper._gaussian_mu()

    def _pure_epsilon(self) -> float:
        return self._upper._pure_epsilon()

    def _check_proven(self) -> None:
        self._upper._check_proven()

    def _is_traced(self, *values: object) -> bool:
        return namespace(*values) is not np

    @property
    def neighbouring(self) -> str:
        """Describe which inputs are neighbours."""
        return ON_ALL_DATA

    def repeat(self, count: Real) -> Any:
        """Return the guarantee of all reports repeated ``count`` times; see ``Guarantee.repeat``."""
        if isinstance(count, jax.Array):
            return self.unjoined.repeat(count)
        return BatchGuarantee(self.batch, times=self.times * checks.integer_in("count", count, 1, 1 << 40))

    def subsample(self, rate: Real, adjacency: str = "add_remove") -> Guarantee:
        """Return the guarantee if every report uses a Poisson sample of its own; see ``Guarantee.subsample``."""
        return self.unjoined.subsample(rate, adjacency)


class LargestGuarantee(Risks):
    """The guarantee of several guarantees, each about people of its own: the largest of each number."""

    def __init__(self, members: tuple[ComposableGuarantee, ...]) -> None:
        self.terms = members

    def delta(self, epsilon: Real) -> Any:
        """Return a delta such that every person has (epsilon, delta)-DP."""
        return self._largest(lambda member: member.delta(epsilon))

    def epsilon(self, delta: Real) -> Any:
        """Return an epsilon such that every person has (epsilon, delta)-DP."""
        return self._largest(lambda member: member.epsilon(delta))

    def estimate_delta(self, epsilon: Real) -> Real:
        """Return an estimate of the smallest such delta."""
        return self._largest(lambda member: member.estimate_delta(epsilon))

    def estimate_epsilon(self, delta: Real) -> Real:
        """Return an estimate of the smallest such epsilon."""
        return self._largest(lambda member: member.estimate_epsilon(delta))

    @property
    def neighbouring(self) -> str:
        """Describe which inputs are neighbours."""
        return "; or ".join(dict.fromkeys(member.neighbouring for member in self.terms))

    def bracket(self, **arguments: object) -> tuple[float, float]:
        """Return a rigorous interval (lower, upper); see ``Guarantee.bracket``."""
        brackets = [member.bracket(**arguments) for member in self.terms]
        choose = min if arguments.get("alpha") is not None else max
        low, high = zip(*brackets, strict=True)
        return choose(low), choose(high)

    def repeat(self, count: Real) -> LargestGuarantee:
        """Return the guarantee of the same reports repeated ``count`` times."""
        return LargestGuarantee(tuple(member.repeat(count) for member in self.terms))

    def compose(self, *others: ComposableGuarantee) -> LargestGuarantee:
        """Return the guarantee of these reports, and of others that are about every one of the people."""
        return LargestGuarantee(tuple(member.compose(*others) for member in self.terms))

    def _largest(self, quantity: Callable[[ComposableGuarantee], Real]) -> Real:
        return float_if_scalar(elementwise_maximum([quantity(member) for member in self.terms]))

    def _curve_point(self, alpha: float) -> CurvePoint:
        points = [member._curve_point(alpha) for member in self.terms]
        errors, powers = zip(*((point.error, point.power) for point in points), strict=True)
        (low, high), (least, most) = zip(*errors, strict=True), zip(*powers, strict=True)
        return CurvePoint((min(low), min(high)), (max(least), max(most)))

    def _pure_epsilon(self) -> float:
        return max(member._pure_epsilon() for member in self.terms)

    def _check_proven(self) -> None:
        for member in self.terms:
            member._check_proven()

    def _is_traced(self, *values: object) -> bool:
        return any(member._is_traced(*values) for member in self.terms)


def _with_size(batch: object, size: int) -> Any:
    """Return a flat batch whose leaves all have an axis."""
    return map_leaves(lambda leaf, axes: leaf if np.ndim(leaf) > axes else np.broadcast_to(leaf, size), batch)


def _gap_of_atoms(pairs: tuple[DominatingPair, ...]) -> float:
    """Return the distance of the two heaviest atoms of the losses of a pair; 0 if there are not two."""
    with np.errstate(all="ignore"):
        losses = RepeatedReleases(as_float64(pairs), 1).privacy_loss(as_float64(pairs)[0])
    return two_heaviest_atoms(split_monotone(losses)).gap


def _change(levels: list[tuple[float, int]], ratios: np.ndarray, counts: np.ndarray) -> float:
    """Return by how much joining changes the sum of squared ratios."""
    return abs(sum(count * ratio**2 for ratio, count in levels) - float((counts * ratios**2).sum()))


def joined_levels(ratios: np.ndarray, counts: np.ndarray, most: int, side: int) -> list[tuple[float, int]]:
    """Return (ratio, count) of at most so many groups of neighbours, for increasing ratios.

    A group has its largest ratio, or with ``side`` -1 its smallest one. The groups are those of the least change of the
    sum of squared ratios, with cells of close ratios kept together, by dynamic programming. With ``side`` 0 a group is
    a cell, and has the root of its mean square.
    """
    edges = np.linspace(0, 1, (_FINE_CELLS if side else most) + 1)[1:-1]
    cells = np.searchsorted(edges, np.cumsum(counts * ratios**2) / (counts * ratios**2).sum())
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    ends = np.append(starts[1:], len(ratios))
    number, square = np.add.reduceat(counts, starts), np.add.reduceat(counts * ratios**2, starts)
    if not side:
        return list(zip(np.sqrt(square / number).tolist(), number.tolist(), strict=True))
    level = ratios[ends - 1] if side > 0 else ratios[starts]
    before, squares = np.append(0, np.cumsum(number)), np.append(0.0, np.cumsum(square))
    n = len(starts)
    # The change of a group by its end and its beginning.
    group_ratio = np.append(0.0, level)[:, None] if side > 0 else np.append(level, 0.0)
    changes = np.abs((before[:, None] - before) * group_ratio**2 - (squares[:, None] - squares))
    changes[np.triu_indices(n + 1)] = np.inf
    cost, choices = np.full(n + 1, np.inf), []
    cost[0] = 0.0
    for _ in range(min(most, n)):
        totals = changes + cost
        choices.append(totals.argmin(1))
        cost = totals.min(1)
    groups, end = [], n
    for choice in reversed(choices):
        begin_of_group = int(choice[end])
        ratio = level[end - 1] if side > 0 else level[begin_of_group]
        groups.append((float(ratio), int(before[end] - before[begin_of_group])))
        end = begin_of_group
    return groups[::-1]
