"""Composition of releases whose finite losses cannot exceed the eps of interest, so that only infinite losses count."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from accountants.composition.base import ComposedProfile, Composer
from accountants.composition.repeated import LossTuple
from accountants.composition.tilted_direction import Direction, capped_losses
from dpkernels.numerics import Boolean, Real, namespace
from dpkernels.pytrees import PyTree, pytree


@pytree
@dataclass(frozen=True)
class EmptyProfile(ComposedProfile):
    """The profile of finite losses that are too small to matter: delta is 0."""

    losses: LossTuple

    def evaluate(self, epsilon: Real) -> tuple[Real, Real, PyTree]:
        return 0.0 * epsilon - np.inf, 0.0 * epsilon, ()

    def gradient(self, evaluation: PyTree) -> tuple[LossTuple, Real]:
        return jax.tree.map(np.zeros_like, self.losses), np.zeros(())

    def empty(self) -> PyTree:
        return ()


@pytree
@dataclass(frozen=True)
class InfiniteLosses(Composer):
    """Plain numbers of which no sum of finite losses is larger than eps."""

    bound: Real  # This eps.

    @classmethod
    def applies(cls, direction: Direction) -> Boolean:
        if namespace(direction.quantity.argument) is not np:
            return False
        largest_sum = sum(term.count * term.largest_loss(1) for term in direction.losses)
        return largest_sum <= direction.quantity.least_epsilon

    @classmethod
    def for_direction(cls, direction: Direction) -> InfiniteLosses:
        return cls(direction.quantity.least_epsilon)

    def prepare(self, losses: LossTuple) -> tuple[PyTree, Real]:
        return capped_losses(losses, self.bound)

    def profile(self, prepared: LossTuple, direction: Direction) -> EmptyProfile:
        return EmptyProfile(prepared)
