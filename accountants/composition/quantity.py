"""Quantities of composed releases: delta at an eps, and the least eps at a delta."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from accountants.composition import repeated
from accountants.composition.base import ComposedProfile, Composer
from accountants.composition.repeated import LossTuple
from accountants.dominating_pairs.base import DominatingPair, profile
from accountants.profile import inverse_profile
from dpkernels.numerics import Boolean, Real, RealArray, namespace
from dpkernels.pytrees import PyTree

_SLACK = 1 + 1e-3  # Delta of one release may be larger than that of all by this factor, by rounding.


@dataclass(frozen=True)
class Quantity(abc.ABC):
    """A quantity of one neighbour direction, at an argument. That of a guarantee is the largest over the directions."""

    argument: Any
    # The largest value of earlier directions. A value that does not exceed it may be any number up to it.
    best: Real = -np.inf

    name: ClassVar[str]

    @staticmethod
    @abc.abstractmethod
    def evaluate_release(pairs: tuple[DominatingPair, ...], argument: Real) -> Any:
        """Return the answer of the exact profile of one release."""

    @property
    @abc.abstractmethod
    def least_epsilon(self) -> Real:
        """Return an eps below which delta is of no interest."""

    @abc.abstractmethod
    def log_target(self, infinite: Real) -> Real | None:
        """Return log(delta - infinite), the target for the finite losses; None where eps is given."""

    @abc.abstractmethod
    def bound(self, log_moment: RealArray, c: RealArray, infinite: RealArray) -> tuple[Real, Real]:
        """Return an upper bound of eps, and its tilt c, from delta(eps) <= e^(log_moment - c eps) at every c."""

    @abc.abstractmethod
    def saddle_point(
        self, losses: LossTuple, infinite: RealArray, start: Real, greatest: float
    ) -> tuple[RealArray, RealArray]:
        """Return the tilt at which the losses are composed best, and the estimate of eps that belongs to it."""

    @abc.abstractmethod
    def read(
        self, composer: Composer, composed: ComposedProfile, infinite: Real, losses: LossTuple, precision: float
    ) -> tuple[RealArray, PyTree]:
        """Return the answer, and the evaluation of the profile from which its derivatives follow.

        ``composed`` is the profile of the finite losses. ``infinite``, the probability of an infinite loss, is not part
        of it. For ``precision`` see ``ComposedProfile.solve``.
        """

    @staticmethod
    @abc.abstractmethod
    def is_at_end(value: Real) -> Boolean:
        """Return whether a value is at an end of its range, where it does not move."""

    @staticmethod
    @abc.abstractmethod
    def chain(by_epsilon: Real) -> tuple[Real, Real]:
        """Return (derivative of the answer in delta(eps), derivative of delta(eps) - target in the argument).

        The answer's derivative in the argument is the product of both. If eps is given there is no target.
        """


class DeltaAt(Quantity):
    """Delta at an eps."""

    name = "delta"

    @staticmethod
    def evaluate_release(pairs: tuple[DominatingPair, ...], argument: Real) -> Real:
        return profile(pairs, argument)

    @property
    def least_epsilon(self) -> Real:
        return self.argument

    def log_target(self, infinite: Real) -> Real | None:
        return None

    def bound(self, log_moment: RealArray, c: RealArray, infinite: RealArray) -> tuple[Real, Real]:
        return self.argument, c[(log_moment - c * self.argument).argmin()]

    def saddle_point(
        self, losses: LossTuple, infinite: RealArray, start: Real, greatest: float
    ) -> tuple[RealArray, RealArray]:
        return repeated.saddle_point(losses, self.argument, start, greatest), self.argument

    def read(
        self, composer: Composer, composed: ComposedProfile, infinite: Real, losses: LossTuple, precision: float
    ) -> tuple[RealArray, PyTree]:
        xp = namespace(self.argument)
        log_delta, _, evaluation = composed.evaluate(self.argument)
        return xp.clip(infinite + xp.exp(log_delta), 0.0, 1.0), evaluation

    @staticmethod
    def is_at_end(value: Real) -> Boolean:
        return (value <= 0) | (value >= 1)

    @staticmethod
    def chain(by_epsilon: Real) -> tuple[Real, Real]:
        return 1.0, by_epsilon


class EpsilonAt(Quantity):
    """The least eps at a delta: inf if there is none, or if floats do not resolve it."""

    name = "epsilon"

    @staticmethod
    def evaluate_release(pairs: tuple[DominatingPair, ...], argument: Real) -> Real:
        return inverse_profile(pairs, argument)

    @property
    def least_epsilon(self) -> Real:
        return self.best

    def log_target(self, infinite: Real) -> Real:
        xp, remaining = namespace(self.argument), self.argument - infinite
        return xp.log(xp.where(remaining > 0, remaining, xp.finfo(self.argument.dtype).tiny))

    def bound(self, log_moment: RealArray, c: RealArray, infinite: RealArray) -> tuple[Real, Real]:
        bounds = (log_moment - self.log_target(infinite)) / c
        return namespace(bounds).maximum(bounds.min(), 0.0), c[bounds.argmin()]

    def saddle_point(
        self, losses: LossTuple, infinite: RealArray, start: Real, greatest: float
    ) -> tuple[RealArray, RealArray]:
        return repeated.saddle_point_of_delta(losses, self.log_target(infinite), start, greatest)

    def read(
        self, composer: Composer, composed: ComposedProfile, infinite: Real, losses: LossTuple, precision: float
    ) -> tuple[RealArray, PyTree]:
        xp, log_delta = namespace(self.argument), self.log_target(infinite)
        floor = xp.where((self.best > 0) & (self.best < np.inf), self.best, 0.0)
        start = xp.maximum(composer.initial_guess(composed, log_delta), floor)
        rounding_rtol = composer.rounding_rtol(losses, self.argument)
        eps, value, slope, is_accurate, evaluation = composed.solve(log_delta, start, floor, rounding_rtol, precision)
        resolved = is_accurate & composed.is_resolved(eps, value, slope, rounding_rtol)
        resolved = resolved | ((eps <= floor) & (value <= log_delta))
        is_possible = xp.where(value > -np.inf, self.argument > infinite, self.argument >= infinite)
        eps = xp.where(resolved & is_possible, eps, np.inf)
        least_delta = _release_delta(losses, xp.where(xp.isinf(eps), 0.0, eps))
        return xp.where(least_delta > _SLACK * self.argument, np.inf, eps), evaluation

    @staticmethod
    def is_at_end(value: Real) -> Boolean:
        return (value <= 0) | (value == np.inf)

    @staticmethod
    def chain(by_epsilon: Real) -> tuple[RealArray, Real]:
        falls = by_epsilon < 0
        xp = namespace(by_epsilon)
        return xp.where(falls, -1 / xp.where(falls, by_epsilon, 1.0), 0.0), -1.0


def _release_delta(losses: LossTuple, epsilon: RealArray) -> RealArray:
    """Return delta of the worst single release, which that of all releases cannot be below; 0 for Gaussian noise."""
    finite = [term.losses for term in losses if term.losses is not None]
    xp, largest = namespace(epsilon), 0.0 * epsilon
    for nodes in finite:
        largest = xp.maximum(largest, (nodes.p * -xp.expm1(xp.minimum(epsilon - nodes.loss, 0.0))).sum(-1))
    return largest
