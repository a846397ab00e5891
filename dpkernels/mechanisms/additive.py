"""Additive mechanisms: noise, shifted by the input."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, RealArray, floating, namespace, unless_nan
from dpkernels.pytrees import pytree

# Larger multiples of the sensitivity are refused as inputs: a release represents positions as 64-bit integers.
_LARGEST = 2.0**34
# Larger inputs are refused, so that sums with noise stay finite in float32.
_LARGEST_FLOAT = 1e30


@pytree
@dataclass(frozen=True)
class Additive(Mechanism):
    """A mechanism that reports x + Z, where the distribution of Z does not depend on x.

    A simulation does not round x to the grid of discrete noise; a release does.

    Attributes:
        noise: the distribution of Z.
        sensitivity: D in [1e-100, 1e100], the largest change of x between neighbours that the claim covers, or None.
        epsilon: the claimed epsilon, in [1e-6, 20]. ``accountants.delta`` computes the realised privacy profile.
        delta: the claimed delta, in [0, 1]. A release requires a positive delta, since its tables are finite.
    """

    noise: Noise
    sensitivity: Any = None
    epsilon: Any = None
    delta: Any = None

    def __post_init__(self) -> None:
        if self.sensitivity is not None:
            checks.sensitivity(self.sensitivity)
        if self.epsilon is not None:
            checks.noise_epsilon(self.epsilon)
        if self.delta is not None:
            checks.within("delta", self.delta, 0.0, 1.0)

    def claim(self, *, sensitivity: Real, epsilon: Real, delta: Real) -> Additive:
        """Return the same noise with this claim, which ``exact_sampler`` and ``perturb`` verify on their integers."""
        return dataclasses.replace(self, sensitivity=sensitivity, epsilon=epsilon, delta=delta)

    @property
    def input_interval(self) -> tuple[Real, Real]:
        end = _LARGEST_FLOAT if self.sensitivity is None else _LARGEST * self.sensitivity
        return -end, end

    @property
    def output_interval(self) -> tuple[Real, Real]:
        return -np.inf, np.inf

    def pdf(self, y: Real, x: Any) -> Any:
        return self.noise.prob(floating(y) - x)

    def log_prob(self, y: Real, x: Any) -> Any:
        """Return the log density of the noise at y - x, on a grid log probability; -inf outside its support."""
        return unless_nan(self.noise.log_prob(self._noise_of(y, x)), y, x)

    def _noise_of(self, y: Real, x: Any) -> Any:
        """Return y - x; for noise on a grid, rounded to the nearest grid point if it is within rounding of it."""
        y = floating(y)
        z = y - x
        return self.noise.nearest_possible(z, 2 * np.finfo(z.dtype).eps * (abs(y) + abs(x)))

    def mass(self, y: Real, x: Any) -> Any:
        if not len(self.noise.atoms[0]):
            return unless_nan(namespace(y, x).zeros_like(floating(y) + x), y, x)
        log_mass = self.log_prob(y, x)
        return namespace(log_mass).exp(log_mass)

    def cdf(self, y: Real, x: Real) -> Real:
        return unless_nan(self.noise.cdf(self._noise_of(y, x)), y, x)

    def inverse_cdf(self, u: Any, above: Any, x: Any) -> Any:
        return x + self.noise.icdf(u)

    def mean(self, x: Any) -> Any:
        """Return x + E Z; asymmetric noise is biased."""
        return floating(x) + self.noise.mean

    def variance(self, x: Real) -> Real:
        return self.noise.variance + 0 * floating(x)

    def absolute_error(self, x: Real) -> Real:
        return self.noise.absolute_moment + 0 * floating(x)

    def probability_within(self, x: Any, theta: Any) -> Any:
        if not isinstance(self.noise, Distribution):
            return super().probability_within(x, theta)
        return self.noise.mass(-theta, theta)

    def error_bound(self, x: Real) -> Any:
        noise: Any = self.noise
        xp = namespace(x, *jax.tree.leaves(noise))
        tail = xp.full_like(floating(x), 1e-12)
        if not isinstance(noise, Distribution):
            return xp.maximum(noise.icdf(1 - tail), -noise.icdf(tail))
        return xp.maximum(noise.isf(tail), -noise.icdf(tail))

    @property
    def worst_variance(self) -> Real:
        return self.noise.variance

    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        at, probability = self.noise.atoms
        column = (-1, *[1] * np.ndim(x))
        return x + at.reshape(column), probability.reshape(column) + 0.0 * floating(x)
