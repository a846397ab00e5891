"""The noise of private training: one certified table of Gaussian integers for all steps, and its privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from scipy.special import ndtr

import dpkernels as dpk
from dpkernels import checks
from dpkernels.decimals import float_at_least
from dpkernels.exact.noise.certificate import VectorClaim, VectorNoiseCertificate, certify_vector, gaussian_distance
from dpkernels.exact.noise.construction import fine_gaussian_table
from dpkernels.exact.noise.sampler import ExactNoise

# The noise multipliers that tables can have.
MULTIPLIERS = (0.25, 1000.0)
# Standard deviations of the noise in units that are tried.
_SIGMAS = (2.0**12, 2.0**13, 2.0**14, 2.0**15)
# The first of them at which rounding widens the noise by at most this share is taken.
_SMALL_WIDENING = 2.0**-4
# The share of the sensitivity that rounding may take.
_MAX_ROUNDING = 0.25


@dataclass(frozen=True)
class PrivateNoise:
    """The noise of every step, with its certificate and its cost."""

    l2_norm_clip: float  #: C, the norm that gradients are clipped to
    noise_multiplier: float  #: the standard deviation over the sensitivity, both in units
    dimensions: int  #: d, the number of parameters
    sensitivity: float  #: K, in units
    #: of the table, for vectors of integers at most K apart
    certificate: VectorNoiseCertificate = field(compare=False, repr=False)

    @classmethod
    def certified(cls, l2_norm_clip: float, noise_multiplier: float, dimensions: int) -> PrivateNoise:
        """Return the noise for gradients of so many parameters; its certificate takes some seconds the first time.

        Raises:
            ValueError: an argument is out of range, or there are too many parameters for the noise multiplier.
        """
        checks.within("l2_norm_clip", l2_norm_clip, 1e-20, 1e20)
        checks.within("noise_multiplier", noise_multiplier, *MULTIPLIERS)
        sampler, sensitivity = exact_noise(noise_multiplier, dimensions)
        return cls(l2_norm_clip, noise_multiplier, dimensions, sensitivity, sampler.certificate)

    @property
    def unit(self) -> float:
        """Return u, the unit of which rounded gradients are multiples."""
        return self.l2_norm_clip / (self.sensitivity - math.sqrt(self.dimensions) / 2)

    @property
    def rounding_cost(self) -> float:
        """Return the share by which the noise is wider than for real numbers."""
        return self.unit * self.sensitivity / self.l2_norm_clip - 1

    @property
    def standard_deviation(self) -> float:
        """Return the standard deviation of the noise of a sum, in the gradients' unit."""
        return self.unit * math.sqrt(float(self.certificate.worst_variance))

    @property
    def total_variation(self) -> float:
        """Return a bound on the total variation distance of one step's noise to Gaussian noise rounded to integers.

        For a run of T steps, add T (1 + e^eps) times this distance to the delta of Gaussian noise of the noise
        multiplier. The certificate's delta is that of Gaussian noise plus (1 + e^eps) times this distance.
        """
        claim, table = self.certificate.claim, self.certificate.table
        if claim.sigma is None:
            raise ValueError("certificate: states no sigma; it is not of Gaussian noise")
        return float_at_least(claim.dimensions * gaussian_distance(table, Fraction(claim.sigma)))


def _gaussian_delta(mu: float, epsilon: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@lru_cache(maxsize=16)
def exact_noise(multiplier: float, size: int) -> tuple[ExactNoise, float]:
    """Return the certified noise for vectors of integers and their sensitivity K, in units."""
    checks.integer_in("params: their number of values", size, 1, 1 << 31)
    rounding_norm = math.sqrt(size) / 2
    sigma = next((s for s in _SIGMAS if rounding_norm * multiplier / s <= _SMALL_WIDENING), _SIGMAS[-1])
    sensitivity = sigma / multiplier
    if rounding_norm > _MAX_ROUNDING * sensitivity:
        largest = int((2 * _MAX_ROUNDING * _SIGMAS[-1] / multiplier) ** 2)
        raise ValueError(f"params: have {size} values; with noise multiplier {multiplier:g} they may have {largest}")
    # Below the quotient, so that the noise multiplier is not above that of the integers.
    sensitivity = math.nextafter(sigma / multiplier, 0)
    delta = _gaussian_delta(1 / multiplier, 1.0)
    claimed = delta + min(1e-3, (1 - delta) / 2)
    noise = dpk.gaussian(sigma=sigma, sensitivity=sensitivity, epsilon=1.0, delta=claimed)
    vector = dpk.on_vectors(noise, dimensions=size, norm="l2", delta=claimed, lattice=1.0)
    claim = VectorClaim(1.0, claimed, sensitivity, "l2", size, 1.0, sigma)
    return ExactNoise(vector, certify_vector(fine_gaussian_table(int(sigma)), claim)), sensitivity
