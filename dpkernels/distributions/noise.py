"""What every law of additive noise offers, with a density or on a lattice."""

from __future__ import annotations

import abc
from typing import Any

from dpkernels.numerics import RealArray


class Noise(abc.ABC):
    """A law on the real line, unimodal about 0.

    Methods take NumPy arrays (evaluated in float64) or JAX arrays (in their type) of any shape, and broadcast.
    """

    @abc.abstractmethod
    def prob(self, z: Any) -> Any:
        """Density at z."""

    @abc.abstractmethod
    def log_prob(self, z: Any) -> Any:
        """Log density at z, on a lattice log probability; -inf where neither."""

    @abc.abstractmethod
    def placed(self, z: Any, room: Any) -> Any:
        """z, or the value of positive probability that is within ``room`` of it: z may have been rounded."""

    @abc.abstractmethod
    def cdf(self, z: Any) -> Any:
        """P(Z <= z)."""

    @abc.abstractmethod
    def icdf(self, u: Any) -> Any:
        """The smallest z with cdf(z) >= u."""

    @property
    @abc.abstractmethod
    def mean(self) -> Any:
        """E Z."""

    @property
    @abc.abstractmethod
    def variance(self) -> Any:
        """Var Z."""

    @property
    @abc.abstractmethod
    def absolute_moment(self) -> Any:
        """E|Z|."""

    @property
    @abc.abstractmethod
    def atoms(self) -> tuple[RealArray, RealArray]:
        """Values of positive probability, and these probabilities; empty for a density."""
