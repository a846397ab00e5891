"""Dominating pairs: two distributions of a report under neighbouring inputs, and the privacy profile of several pairs.

The profile is the pointwise maximum of the pairs' hockey-stick divergences, on NumPy and JAX arrays.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from accountants.privacy_loss import PrivacyLossDistribution, join, sampled_loss
from dpkernels import checks
from dpkernels.numerics import Real, RealArray, floating, namespace
from dpkernels.pytrees import pytree

Curve = Callable[[Any], Any]


class DominatingPair(abc.ABC):
    """Two laws of a report; a frozen dataclass and a pytree of its parameters.

    Attributes:
        joint: whether its arrays belong together, as probabilities of atoms do, and do not broadcast with eps.
        has_two_ways: whether (q, p) may have another hockey stick than (p, q), so that both are composed.
        rounds_up: whether its hockey stick is an upper bound as computed; others are read at a lower budget.
    """

    joint: ClassVar[bool] = False
    has_two_ways: ClassVar[bool] = False

    @property
    def rounds_up(self) -> bool:
        """Whether the hockey stick is an upper bound as computed."""
        return False

    @abc.abstractmethod
    def hockey_stick(self) -> Curve:
        """eps -> integral max(0, p - e^eps q), with all that does not depend on eps computed; arrays of any shape.

        Differentiable in every parameter; in an ``outside`` weight of 0, where that ends, from the right.
        """

    @abc.abstractmethod
    def largest_loss(self) -> Real:
        """The supremum of log p/q: the pair's pure level; inf where the loss is unbounded."""

    @abc.abstractmethod
    def privacy_loss(self) -> PrivacyLossDistribution:
        """The distribution of the privacy loss, from plain numbers or JAX's."""

    @abc.abstractmethod
    def mirror(self) -> DominatingPair:
        """The pair (q, p)."""

    @abc.abstractmethod
    def asymmetry(self) -> Any:
        """How far it is from a pair that a reflection turns into its mirror: 0 if it is one, inf where unknown."""

    @abc.abstractmethod
    def check(self) -> None:
        """Refuse a pair, from a file or a user, whose p or q is not a probability law.

        Raises:
            ValueError: names what is wrong.
        """


@pytree
@dataclass(frozen=True)
class Mixed(DominatingPair):
    """The pair ``first`` with probability w, else ``second``; a report tells which: delta = w delta_1 + (1-w) delta_2.

    Attributes:
        weight: w.
        first: a pair.
        second: a pair at the same two inputs.
    """

    weight: Any
    first: Any
    second: Any

    def hockey_stick(self) -> Curve:
        w, first, second = self.weight, self.first.hockey_stick(), self.second.hockey_stick()
        return lambda eps: w * first(eps) + (1 - w) * second(eps)

    def largest_loss(self) -> Real:
        first, second = self.first.largest_loss(), self.second.largest_loss()
        return namespace(first, second).maximum(first, second)

    def privacy_loss(self) -> PrivacyLossDistribution:
        first, second = self.first.privacy_loss(), self.second.privacy_loss()
        return join([first.scaled(self.weight), second.scaled(1 - self.weight)])

    def mirror(self) -> Mixed:
        return Mixed(self.weight, self.first.mirror(), self.second.mirror())

    def asymmetry(self) -> Any:
        first, second = self.first.asymmetry(), self.second.asymmetry()
        return namespace(first, second).maximum(first, second)

    def check(self) -> None:
        checks.within("weight", self.weight, 0.0, 1.0)
        for part in (self.first, self.second):
            if not isinstance(part, DominatingPair):
                raise ValueError(f"form: {type(part).__name__} is no pair of laws")
            part.check()


# Of the last place of 1 + eps: three times the most that a sweep of random laws finds (tests/dpkernels/test_sweeps.py).
_UNITS = 8


def cap(dtype: Any) -> float:
    """The largest budget told apart from larger ones: e^eps must stay finite."""
    return 0.97 * float(np.log(float(np.finfo(dtype).max)))


def lowered(epsilon: Any) -> Any:
    """A budget below eps by what rounding may be worth: delta falls with eps, so that its delta is an upper bound.

    p - e^eps q cancels next to the largest loss, where its error is of a few units of p and of eps p, and its slope is
    -p: a budget lower by as many covers it.
    """
    xp = namespace(epsilon)
    return epsilon - _UNITS * xp.finfo(xp.result_type(epsilon)).eps * (1 + abs(epsilon))


def profile(pairs: tuple[DominatingPair, ...], epsilon: Real) -> Any:
    """Pointwise maximum of the pairs' hockey sticks.

    Args:
        pairs: pairs of any types; array parameters broadcast with epsilon.
        epsilon: any shape.

    Returns:
        delta, of epsilon's shape; NumPy (float64) for NumPy arguments, JAX for JAX ones.
    """
    if namespace(epsilon, *jax.tree.leaves(pairs)) is jnp:
        return _profile(pairs, floating(jnp.asarray(epsilon)))
    with np.errstate(all="ignore"):
        return _profile_of_numbers(as_float64(pairs), np.asarray(epsilon, np.float64))[()]


def _profile_of_numbers(pairs: tuple[Any, ...], epsilon: np.ndarray) -> np.ndarray:
    leaves, structure = jax.tree.flatten(pairs, is_leaf=is_whole)
    numbers = [leaf for leaf in leaves if not is_whole(leaf)]
    shape = np.broadcast_shapes(epsilon.shape, *(leaf.shape for leaf in numbers))
    if all(leaf.ndim == 0 for leaf in numbers):
        return curve(pairs)(epsilon.ravel()).reshape(shape)
    columns = [leaf if is_whole(leaf) else np.broadcast_to(leaf, shape).ravel() for leaf in leaves]
    every = np.broadcast_to(epsilon, shape).ravel()

    def one(k: int) -> Any:
        parts = jax.tree.unflatten(structure, [leaf if is_whole(leaf) else leaf[k] for leaf in columns])
        return curve(parts)(every[k : k + 1])[0]

    return np.array([one(k) for k in range(every.size)]).reshape(shape)


def as_float64(tree: Any) -> Any:
    """Every number of a pytree as NumPy float64, so that what is compiled does not depend on how it was given."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@jax.jit
def _profile(pairs: tuple[Any, ...], epsilon: RealArray) -> Real:
    numbers = [leaf for leaf in jax.tree.leaves(pairs, is_leaf=is_whole) if not is_whole(leaf)]
    shape = jnp.broadcast_shapes(epsilon.shape, *(jnp.shape(leaf) for leaf in numbers))
    if all(jnp.ndim(leaf) == 0 for leaf in numbers):
        return curve(pairs)(epsilon.ravel()).reshape(shape)
    flat = jax.tree.map(
        lambda leaf: leaf if is_whole(leaf) else jnp.broadcast_to(leaf, shape).ravel(), pairs, is_leaf=is_whole
    )
    axes = jax.tree.map(lambda leaf: None if is_whole(leaf) else 0, pairs, is_leaf=is_whole)
    one = jax.vmap(lambda pairs, eps: curve(pairs)(eps), in_axes=(axes, 0))
    return one(flat, jnp.broadcast_to(epsilon, shape).ravel()).reshape(shape)


def is_whole(item: Any) -> bool:
    """Whether the arrays of an item belong together, and do not broadcast with eps."""
    return isinstance(item, DominatingPair) and item.joint


def curve(pairs: tuple[DominatingPair, ...]) -> Curve:
    """The pointwise maximum of the pairs' hockey sticks, as a function of eps; rounded upwards, see ``lowered``.

    A budget beyond the cap is read as the cap.
    """
    sticks = [pair.hockey_stick() for pair in pairs]

    def at(epsilon: Any) -> Any:
        xp = namespace(epsilon, *jax.tree.leaves(pairs))
        known = xp.minimum(epsilon, cap(epsilon.dtype))
        values = [stick(known if pair.rounds_up else lowered(known)) for pair, stick in zip(pairs, sticks, strict=True)]
        return xp.clip(xp.stack(values).max(0), 0.0, 1.0)

    return at


# By how much of itself eps is lowered: more than rounding of what follows from it is worth.
_UNITS = 8


def with_added_record(profile: Curve, rate: Any) -> Curve:
    """Return eps -> r H_s(P, Q), from eps -> H_t(P, Q): an upper bound where that is one."""

    def at(epsilon: Any) -> Any:
        xp = namespace(epsilon, rate)
        kind = xp.finfo(xp.result_type(epsilon))
        eps = epsilon - _UNITS * kind.eps * abs(epsilon)
        inner = eps + xp.log1p(-xp.expm1(-eps) / rate * (1 - rate))
        return rate * profile(xp.minimum(inner, cap(kind.dtype))) * (1 + _UNITS * kind.eps)

    return at


def with_removed_record(mirror_profile: Curve, rate: Any) -> Curve:
    """Return eps -> r (1 - y) H_s(Q, P), from eps -> H_t(Q, P): an upper bound where that is one."""

    def at(epsilon: Any) -> Any:
        xp = namespace(epsilon, rate)
        kind = xp.finfo(xp.result_type(epsilon))
        eps = xp.minimum(epsilon, cap(kind.dtype))
        eps = eps - _UNITS * kind.eps * abs(eps)
        y = xp.expm1(eps) / rate * (1 - rate)
        none = y >= 1
        y = xp.where(none, 0.0, y)
        inner = xp.minimum(eps - xp.log1p(-y), cap(kind.dtype))
        found = rate * (1 - y) * mirror_profile(inner) * (1 + _UNITS * kind.eps)
        return xp.where(none, 0.0, found)

    return at


def upper(pair: DominatingPair) -> Curve:
    """The pair's hockey stick, read at a lower budget unless it is an upper bound by itself."""
    stick = pair.hockey_stick()
    return stick if pair.rounds_up else lambda epsilon: stick(lowered(epsilon))


@partial(pytree, static=("removed",))
@dataclass(frozen=True)
class Sampled(DominatingPair):
    """The laws of one release on a Poisson sample: (r P + (1 - r) Q, Q), or its mirror.

    Attributes:
        pair: (P, Q) without samples, P with the record.
        rate: r, in (0, 1].
        removed: whether it is the mirror, (Q, r P + (1 - r) Q).
    """

    pair: DominatingPair
    rate: Any
    removed: bool = False

    has_two_ways: ClassVar[bool] = True

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """That of the pair without samples."""
        return self.pair.joint

    @property
    def rounds_up(self) -> bool:
        return True

    def hockey_stick(self) -> Curve:
        if self.removed:
            return with_removed_record(upper(self.pair.mirror()), self.rate)
        return with_added_record(upper(self.pair), self.rate)

    def largest_loss(self) -> Any:
        if self.removed:
            return -sampled_loss(-self.pair.mirror().largest_loss(), self.rate)
        return sampled_loss(self.pair.largest_loss(), self.rate)

    def privacy_loss(self) -> PrivacyLossDistribution:
        losses = self.pair.privacy_loss().subsampled(self.rate)
        return losses.mirrored() if self.removed else losses

    def mirror(self) -> Sampled:
        return Sampled(self.pair, self.rate, not self.removed)

    def asymmetry(self) -> Any:
        return np.inf

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
