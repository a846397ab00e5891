"""What a pair of laws is: p and q, the laws of a report under two neighbouring inputs, the unit of all accounting."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from accountants.pairs import losses, runs
from accountants.pairs.losses import Losses
from accountants.pairs.runs import Spectrum
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

Curve = Callable[[Any], Any]


class Pair(abc.ABC):
    """Two laws of a report; a frozen dataclass and a pytree of its parameters.

    Attributes:
        joint: whether its arrays belong together, as probabilities of atoms do, and do not broadcast with eps.
        has_two_ways: whether (q, p) may have another hockey stick than (p, q), so that both are composed.
        rounds_up: whether its hockey stick is an upper bound as computed; others are read at a lower budget.
    """

    joint: ClassVar[bool] = False
    has_two_ways: ClassVar[bool] = False
    rounds_up: ClassVar[bool] = False

    @abc.abstractmethod
    def hockey_stick(self) -> Curve:
        """eps -> integral max(0, p - e^eps q), with all that does not depend on eps computed; JAX arrays of any shape.

        Differentiable in every parameter; in an ``outside`` weight of 0, where that ends, from the right.
        """

    @abc.abstractmethod
    def largest_loss(self) -> Real:
        """The supremum of log p/q: the pair's pure level; inf where the loss is unbounded."""

    @abc.abstractmethod
    def losses(self, panels: int = 0) -> Losses:
        """Nodes that integrate functions of the loss.

        Args:
            panels: how many panels of 16 nodes the pieces whose loss varies share, at least one each; by default as few
                as smooth functions of the loss need.
        """

    @abc.abstractmethod
    def spectrum(self) -> Spectrum:
        """The atoms and runs of the loss; of concrete parameters."""

    @abc.abstractmethod
    def mirror(self) -> Pair:
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
class Mixed(Pair):
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
        return jnp.maximum(self.first.largest_loss(), self.second.largest_loss())

    def losses(self, panels: int = 0) -> Losses:
        first, second, w = self.first.losses(panels), self.second.losses(panels), self.weight
        return losses.joined([first.scaled(w), second.scaled(1 - w)])

    def spectrum(self) -> Spectrum:
        w = float(self.weight)
        return runs.joined([self.first.spectrum().scaled(w), self.second.spectrum().scaled(1 - w)])

    def mirror(self) -> Mixed:
        return Mixed(self.weight, self.first.mirror(), self.second.mirror())

    def asymmetry(self) -> Any:
        first, second = self.first.asymmetry(), self.second.asymmetry()
        return namespace(first, second).maximum(first, second)

    def check(self) -> None:
        checks.within("weight", self.weight, 0.0, 1.0)
        for part in (self.first, self.second):
            if not isinstance(part, Pair):
                raise ValueError(f"form: {type(part).__name__} is no pair of laws")
            part.check()
