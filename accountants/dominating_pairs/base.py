"""Dominating pairs: two distributions of a report under neighbouring inputs, and the profile of several pairs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from accountants.privacy_loss import PrivacyLossDistribution, join
from dpkernels import checks
from dpkernels.numerics import Real, RealArray, elementwise_maximum, floating, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree, pytree

Curve = Callable[[Any], Any]


class DominatingPair(abc.ABC):
    """Two distributions of a report; a frozen dataclass and a pytree of its parameters.

    - has_joint_axes: whether its arrays belong together, as probabilities of atoms do, and do not broadcast with eps.
    - may_be_asymmetric: whether (q, p) may have another profile than (p, q), so that both are composed.
    - rounds_up: whether its computed hockey-stick divergence is an upper bound; others are evaluated at a lower eps.
    - units_of_log: the units of |log delta| by which an upper bound of Gaussian integrals may exceed the truth.
    - within_sensitivity: whether the pair is valid only for inputs within the sensitivity, not for twice as far ones.
    - is_shift: whether q(x) = p(x - D) for the sensitivity D. Such a pair, but no pair that contains
      it, is also valid for inputs 2 D apart, shifted by 2 D.
    - has_estimated_masses: whether its masses are estimates by quadrature, so that no bound is proven.
    - neighbours: of a pair for a batch scheme, the kind of neighbouring datasets; None for one on all the data.
    """

    has_joint_axes: ClassVar[bool] = False
    may_be_asymmetric: ClassVar[bool] = False
    rounds_up: ClassVar[bool] = False
    units_of_log: ClassVar[int] = 520
    within_sensitivity: ClassVar[bool] = False
    is_shift: ClassVar[bool] = False
    has_estimated_masses: ClassVar[bool] = False
    neighbours: ClassVar[str | None] = None

    @abc.abstractmethod
    def hockey_stick(self) -> Curve:
        """Return the function eps -> integral max(0, p - e^eps q), for arrays of any shape.

        It is differentiable in every parameter; in an ``outside`` weight of 0, the end of its range, from the right.
        """

    def nearest_curve(self) -> Curve:
        """Return the curve that ``lower_hockey_stick`` lowers, without large allowances on the upper side."""
        return upper(self)

    def lower_hockey_stick(self) -> Curve:
        """Return a lower bound of the divergence of plain numbers: at a higher eps and without all allowances."""
        upper_bound, unit = self.nearest_curve(), np.finfo(np.float64).eps

        def lower_bound(eps: np.ndarray) -> RealArray:
            delta = upper_bound(eps + _UNITS_BELOW * unit * (1 + eps))
            size = self.units_of_log * np.abs(np.log(np.maximum(delta, 5e-324))) + UNITS_OF_EPS * np.abs(eps)
            raised = delta * (1 - (UNITS_OF_SUMS + (size if self.rounds_up else 0.0)) * unit)
            # Upper bounds may be raised by the least normal float, and masses of q below it lose digits.
            return np.maximum(raised - 2 * np.finfo(np.float64).tiny - UNITS * 5e-324 * np.exp(eps), 0.0)

        return lower_bound

    def largest_loss(self) -> Real:
        """Return the supremum of log p/q, the pure level of the pair; inf where the loss is unbounded."""
        raise TypeError(f"pair: {type(self).__name__} has no known largest loss")

    @abc.abstractmethod
    def privacy_loss(self) -> PrivacyLossDistribution:
        """Return the distribution of the privacy loss, for NumPy or JAX parameters."""

    @abc.abstractmethod
    def mirror(self) -> DominatingPair:
        """Return the pair (q, p)."""

    def attained(self) -> tuple[DominatingPair, ...]:
        """Return pairs that bound this one from below, each also if composed; none if its own profile is attained."""
        return ()

    def symmetry_gap(self) -> Real:
        """Return how far the pair is from being symmetric by reflection: 0 if it is, inf if that is unknown."""
        return np.inf

    def with_noise_scaled(self, factor: Real) -> DominatingPair:
        """Return the pair with its noise scaled: c Z over a shift D is Z over D/c; TypeError if there is no noise."""
        raise TypeError(f"made: releases of {type(self).__name__} pairs are not additive noise, and have no scale")

    @abc.abstractmethod
    def check(self) -> None:
        """Raise ValueError if p and q of a pair from a file or a user are not probability distributions."""


@proven("worst_pairs#4-mixtures-coordinates")
@pytree
@dataclass(frozen=True)
class Mixed(DominatingPair):
    """The pair ``first`` with probability w, else ``second``, as reports show: delta = w delta_1 + (1 - w) delta_2."""

    weight: Real
    first: DominatingPair
    second: DominatingPair

    @property
    def within_sensitivity(self) -> bool:  # type: ignore[override]
        return any(pair.within_sensitivity or pair.is_shift for pair in (self.first, self.second))

    @property
    def has_estimated_masses(self) -> bool:  # type: ignore[override]
        return self.first.has_estimated_masses or self.second.has_estimated_masses

    def hockey_stick(self) -> Curve:
        w, first, second = self.weight, self.first.hockey_stick(), self.second.hockey_stick()
        return lambda eps: w * first(eps) + (1 - w) * second(eps)

    def lower_hockey_stick(self) -> Curve:
        w, first, second = self.weight, self.first.lower_hockey_stick(), self.second.lower_hockey_stick()
        return lambda eps: (w * first(eps) + (1 - w) * second(eps)) * (1 - UNITS * np.finfo(np.float64).eps)

    def largest_loss(self) -> Real:
        first, second = self.first.largest_loss(), self.second.largest_loss()
        return namespace(first, second).maximum(first, second)

    def privacy_loss(self) -> PrivacyLossDistribution:
        first, second = self.first.privacy_loss(), self.second.privacy_loss()
        return join([first.scaled(self.weight), second.scaled(1 - self.weight)])

    def mirror(self) -> Mixed:
        return Mixed(self.weight, self.first.mirror(), self.second.mirror())

    def symmetry_gap(self) -> Real:
        first, second = self.first.symmetry_gap(), self.second.symmetry_gap()
        return namespace(first, second).maximum(first, second)

    def with_noise_scaled(self, factor: Real) -> Mixed:
        return Mixed(self.weight, *(pair.with_noise_scaled(factor) for pair in (self.first, self.second)))

    def check(self) -> None:
        checks.within("weight", self.weight, 0.0, 1.0)
        for pair in (self.first, self.second):
            if not isinstance(pair, DominatingPair):
                raise ValueError(f"form: {type(pair).__name__} is not a pair of distributions")
            pair.check()


def check_masses(pairs: Iterable[DominatingPair], otherwise: str) -> None:
    """Raise ValueError, with what to do otherwise, if masses are estimates, so that no bound is proven."""
    if any(pair.has_estimated_masses for pair in pairs):
        raise ValueError(
            "mechanism: the masses of its densities are estimates by quadrature, so no bound is proven; take noise "
            f"with a steepness, such as a Distribution, or {otherwise}"
        )


# Units in the last place of 1 + eps: three times the largest error in a sweep of random distributions
# (tests/dpkernels/test_sweeps.py).
UNITS = 8
# More than twice what the pairs that round up by themselves add, in units in the last place. An upper bound of theirs
# that is moved down by this is a lower bound.
_UNITS_BELOW = 64  # What they add to eps.
UNITS_OF_SUMS = 1024  # What they add to the sum of their pieces.
# What Gaussian integrals add to delta, in units of eps, and 1,024. For a mass p above a position s of noise with mu = a
# it is 20 units, four of them errors, of 1 + s^2 in p, and of 1 + (s + a)^2 + a (s + a) in e^eps q < 3/4 p, of which a
# quarter of p remains: in all 140 + 140 s^2 + 240 eps, where s^2 is at most 2 |log delta|. On samples a (s + a/2) is
# the eps on all data instead, which is larger by at most |log delta|.
UNITS_OF_EPS = 240


def cap(dtype: np.dtype | type) -> float:
    """Return the largest eps that is distinguished from larger ones, for which e^eps is finite."""
    return 0.97 * float(np.log(float(np.finfo(dtype).max)))


def lowered(epsilon: RealArray) -> RealArray:
    """Return eps lowered by more than the rounding errors: since delta falls with eps, its delta is an upper bound.

    p - e^eps q cancels next to the largest loss. Its error there is a few units of p and of eps p, and its slope is -p.
    """
    xp = namespace(epsilon)
    return epsilon - UNITS * xp.finfo(xp.result_type(epsilon)).eps * (1 + xp.abs(epsilon))


def profile(pairs: tuple[DominatingPair, ...], epsilon: Real) -> Real:
    """Return the pointwise maximum of the hockey-stick divergences of several pairs, whose numbers broadcast with eps.

    delta is NumPy float64 for NumPy arguments, and JAX for JAX arguments.
    """
    if namespace(epsilon, *jax.tree.leaves(pairs)) is jnp:
        return compiled_profile(pairs, floating(jnp.asarray(epsilon)))
    with np.errstate(all="ignore"):
        return _profile(as_float64(pairs), np.asarray(epsilon, np.float64))[()]


def lower_profile(pairs: tuple[DominatingPair, ...], epsilon: Real) -> Real:
    """Return a lower bound of ``profile`` for plain numbers."""
    eps = np.minimum(np.atleast_1d(np.asarray(epsilon, np.float64)), cap(np.float64))
    with np.errstate(all="ignore"):
        values = [pair.lower_hockey_stick()(eps) for pair in as_float64(pairs)]
    return np.clip(np.max(values, axis=0), 0.0, 1.0).reshape(np.shape(epsilon))[()]


def _profile(pairs: tuple[DominatingPair], epsilon: RealArray) -> RealArray:
    leaves, structure = jax.tree.flatten(pairs, is_leaf=is_whole)
    numbers = [leaf for leaf in leaves if not is_whole(leaf)]
    if all(np.ndim(leaf) == 0 for leaf in numbers):
        return curve(pairs)(epsilon.ravel()).reshape(epsilon.shape)
    xp = namespace(epsilon, *jax.tree.leaves(pairs))

    def entry_delta(eps: Real, *numbers: Real) -> Real:
        entries = iter(numbers)
        entry_pairs = jax.tree.unflatten(structure, [leaf if is_whole(leaf) else next(entries) for leaf in leaves])
        return curve(entry_pairs)(xp.atleast_1d(eps))[0]

    return (jnp.vectorize(entry_delta) if xp is jnp else np.vectorize(entry_delta, otypes=[float]))(epsilon, *numbers)


compiled_profile = jax.jit(_profile)


def as_float64(tree: PyTree) -> PyTree:
    """Convert every number of a pytree to NumPy float64, so that its type does not decide what is compiled."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def is_whole(item: object) -> bool:
    """Return whether the arrays of an item belong together, instead of broadcasting with eps."""
    return isinstance(item, DominatingPair) and item.has_joint_axes


def curve(pairs: tuple[DominatingPair, ...]) -> Curve:
    """Return the maximum of the pairs' hockey-stick divergences as a function of eps up to the cap, rounded upwards."""
    sticks = [upper(pair) for pair in pairs]

    def largest_delta(epsilon: RealArray) -> Real:
        xp = namespace(epsilon, *jax.tree.leaves(pairs))
        capped = xp.minimum(epsilon, cap(epsilon.dtype))
        return xp.clip(elementwise_maximum([stick(capped) for stick in sticks]), 0.0, 1.0)

    return largest_delta


# The most values, of all pieces at several eps, that are computed together.
_MAX_BLOCK = 1 << 18


def sum_of_pieces(piece_deltas: Curve, count: int) -> Curve:
    """Return eps -> the sum of the positive values of pieces, which are along a last axis; ``count`` are computed."""

    def sum_of_block(eps: RealArray) -> RealArray:
        values = piece_deltas(eps[..., None])
        # A maximum with 0 would halve the derivative of a value of 0. NaN stays NaN.
        return namespace(values).where(values < 0, 0.0, values).sum(-1)

    def sum_in_blocks(eps: RealArray) -> RealArray:
        block_size = max(1, _MAX_BLOCK // count)
        if np.size(eps) <= block_size:
            return sum_of_block(eps)
        if namespace(eps) is jnp:
            return jax.lax.map(sum_of_block, eps.ravel(), batch_size=block_size).reshape(eps.shape)
        blocks = np.split(eps.ravel(), range(block_size, eps.size, block_size))
        return np.concatenate([sum_of_block(block) for block in blocks]).reshape(eps.shape)

    return sum_in_blocks


def upper(pair: DominatingPair) -> Curve:
    """Return an upper bound of the pair's hockey-stick divergence, as a function of eps."""
    stick = pair.hockey_stick()

    def upper_bound(epsilon: RealArray) -> RealArray:
        # The sum of pieces is rounded, too, where it hardly changes with eps.
        delta = stick(lowered(epsilon))
        return delta * (1 + UNITS * namespace(delta).finfo(delta.dtype).eps)

    return stick if pair.rounds_up else upper_bound
