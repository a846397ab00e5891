"""The interface of a law, and what is derived from it once."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import jax
import numpy as np

from dpkernels.distributions.noise import Noise
from dpkernels.numerics import Real, RealArray, as_of, floating, namespace, vanishing


class Distribution(Noise):
    """A law on the real line with a piecewise smooth density, unimodal about 0.

    Methods take NumPy arrays (evaluated in float64) or JAX arrays (in their type) of any shape, and broadcast.
    """

    @abc.abstractmethod
    def log_prob(self, z: Real) -> Real:
        """Log density at z; -inf outside the support."""

    @abc.abstractmethod
    def cdf(self, z: Real) -> Real:
        """P(Z <= z), accurate in the lower tail."""

    @abc.abstractmethod
    def sf(self, z: Real) -> Real:
        """P(Z > z), accurate in the upper tail."""

    @abc.abstractmethod
    def inverse(self, u: Real, lower: Real) -> RealArray:
        """Where the lower tail (where ``lower`` is true), else the upper one, has mass u; accurate for u near 0."""

    @abc.abstractmethod
    def mass(self, a: Real, b: Real) -> RealArray:
        """P(a < Z <= b) for a <= b: a difference on the nearer tail, so that it keeps its digits."""

    @abc.abstractmethod
    def narrow_mass(self, a: Real, b: Real) -> RealArray:
        """``mass`` with all its digits also where a and b are close; dearer."""

    @abc.abstractmethod
    def first_moment(self, a: Real, b: Real) -> Real:
        """Integral of z times the density over [a, b]."""

    @abc.abstractmethod
    def second_moment(self, a: Real, b: Real) -> Real:
        """Integral of z^2 times the density over [a, b]."""

    @property
    @abc.abstractmethod
    def support(self) -> tuple[Real, Real]:
        """The ends of the support."""

    @property
    @abc.abstractmethod
    def knots(self) -> RealArray:
        """Where the density's formula changes, increasing; a 1-D array."""

    @property
    @abc.abstractmethod
    def edges(self) -> tuple[Real, ...]:
        """Where ``weight`` steps; with the knots of ``law`` these are the knots."""

    @property
    @abc.abstractmethod
    def law(self) -> Symmetric:
        """The symmetric law underneath: the density is ``weight(z)`` times its density."""

    @abc.abstractmethod
    def weight(self, z: Real) -> Real:
        """Density at z relative to that of ``law``; constant between knots."""

    def icdf(self, u: Real) -> Real:
        """The inverse of ``cdf``, from the nearer tail."""
        lower = u < 0.5
        return self.inverse(namespace(u).where(lower, u, 1 - u), lower)

    def isf(self, u: Real) -> Real:
        """The inverse of ``sf``, from the nearer tail."""
        lower = u > 0.5
        return self.inverse(namespace(u).where(lower, 1 - u, u), lower)

    def prob(self, z: Real) -> Real:
        """Density at z."""
        log_density = self.log_prob(z)
        return namespace(log_density).exp(log_density)

    def placed(self, z: Real, room: Any) -> Any:
        return z

    @property
    def atoms(self) -> tuple[RealArray, RealArray]:
        return np.zeros(0), np.zeros(0)

    @property
    def absolute_moment(self) -> Real:
        """E|Z|."""
        low, high = self.support
        return self.first_moment(0.0, high) - self.first_moment(low, 0.0)


class Symmetric(Distribution):
    """A law with an even density on the whole line, given by its tails.

    Attributes:
        degree: of the log density as a polynomial between knots: 0 for steps, 1 for exponentials, 2 for one Gaussian.
    """

    degree: ClassVar[int]

    @abc.abstractmethod
    def score(self, z: Real) -> RealArray:
        """Derivative of the log density at z, between knots."""

    @abc.abstractmethod
    def tail(self, z: Real) -> Real:
        """P(Z > z), for finite z >= 0."""

    @abc.abstractmethod
    def partial_moment(self, power: int, near: Real, far: Real) -> Real:
        """Integral of t^power f(t) over [near, far], power 0, 1 or 2, for finite near >= 0 and far >= near.

        far may be infinite. Where near and far are close it is no difference of two larger numbers.
        """

    @abc.abstractmethod
    def lower_inverse(self, u: Real) -> Real:
        """The inverse of ``cdf`` for u in (0, 1), accurate near 0."""

    def cdf(self, z: Real) -> Real:
        z = floating(z)
        beyond = vanishing(self.tail, namespace(z).abs(z))
        return namespace(z, beyond).where(z < 0, beyond, 1 - beyond)

    def sf(self, z: Real) -> Real:
        return self.cdf(-floating(z))

    def mass(self, a: Real, b: Real) -> RealArray:
        a, b = floating(a), floating(b)
        xp = namespace(a, b)
        beyond_a, beyond_b = vanishing(self.tail, xp.abs(a)), vanishing(self.tail, xp.abs(b))
        across = 1 - beyond_a - beyond_b
        xp = namespace(across)
        return xp.where(a >= 0, beyond_a - beyond_b, xp.where(b <= 0, beyond_b - beyond_a, across))

    def narrow_mass(self, a: Real, b: Real) -> RealArray:
        return self._even_moment(0, a, b)

    def _even_moment(self, power: int, a: Real, b: Real) -> Any:
        """One side's part and the other's, where 0 is between a and b."""
        near, far, across, _ = self._distances(a, b)
        xp = namespace(near, far)
        one_side = self.partial_moment(power, xp.where(across, 0.0, near), far)
        return one_side + self.partial_moment(power, xp.zeros_like(near), xp.where(across, near, 0.0))

    def _distances(self, a: Real, b: Real) -> tuple[Real, Real, Real, Real]:
        """Of a and b from 0, the nearer and the further; whether 0 is between them; and whether b is the further."""
        a, b = (floating(as_of(z, *jax.tree.leaves(self)) if isinstance(z, int | float) else z) for z in (a, b))
        xp = namespace(a, b)
        across, rising, a, b = (a < 0) & (b > 0), xp.abs(b) >= xp.abs(a), xp.abs(a), xp.abs(b)
        near, far = xp.where(rising, a, b), xp.where(rising, b, a)
        none = xp.isinf(near) & ~across
        return xp.where(none, 0.0, near), xp.where(none, 0.0, far), across, rising

    def inverse(self, u: Real, lower: Real) -> RealArray:
        z = self.lower_inverse(u)
        return namespace(z, lower).where(lower, z, -z)

    def first_moment(self, a: Real, b: Real) -> Real:
        """The integrand is odd: what is as far on both sides of 0 cancels."""
        near, far, _, rising = self._distances(a, b)
        xp = namespace(near, far)
        none = xp.isinf(near)
        part = self.partial_moment(1, xp.where(none, 0.0, near), xp.where(none, 0.0, far))
        return namespace(part).where(rising, part, -part)

    def second_moment(self, a: Real, b: Real) -> Real:
        return self._even_moment(2, a, b)

    @property
    def mean(self) -> Real:
        return self.first_moment(*self.support)

    @property
    def variance(self) -> Real:
        return self.second_moment(*self.support) - self.mean**2

    @property
    def support(self) -> tuple[Real, Real]:
        return -float("inf"), float("inf")

    @property
    def edges(self) -> tuple[Real, ...]:
        return ()

    @property
    def law(self) -> Symmetric:
        return self

    def weight(self, z: Real) -> Real:
        return 1.0 + 0.0 * floating(z)
