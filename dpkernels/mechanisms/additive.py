"""Additive mechanisms: noise, shifted by the input, on numbers or on vectors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.jax_on_use import Array
from dpkernels.mechanisms.base import Mechanism, as_array
from dpkernels.numerics import Real, RealArray, floating, namespace, unless_nan
from dpkernels.pytrees import pytree, tree_leaves

_MAX_SENSITIVITIES = 2.0**34  # Of inputs, in sensitivities: a release represents positions as 64-bit integers.
_MAX_INPUT = 1e30  # Of inputs, so that sums with noise stay finite in float32.
NORMS = ("l1", "l2", "linf")  # In which neighbouring vectors are close.


@pytree
@dataclass(frozen=True)
class Additive(Mechanism):
    """A mechanism that reports x + Z, where the distribution of Z does not depend on x.

    A simulation does not round x to the grid of discrete noise; a release does.

    Attributes:
        noise: the distribution of Z.
        sensitivity: D in [1e-100, 1e100], the largest change of x between neighbours that the claim covers, or None.
        epsilon: the claimed epsilon, in [1e-6, 20]. ``accountants.delta`` computes the attained privacy profile.
        delta: the claimed delta, in [0, 1]. A release requires a positive delta, since its tables are finite, unless
            the tail of the noise is geometric (Laplace, merged Laplace, staircase, discrete Laplace).
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
        end = _MAX_INPUT if self.sensitivity is None else _MAX_SENSITIVITIES * self.sensitivity
        return -end, end

    @property
    def output_interval(self) -> tuple[Real, Real]:
        return -np.inf, np.inf

    def pdf(self, y: Real, x: Real) -> Real:
        return self.noise.prob(floating(y) - x)

    def log_prob(self, y: Real, x: Real) -> Real:
        """Return the log density of the noise at y - x, on a grid log probability; -inf outside its support."""
        return unless_nan(self.noise.log_prob(self._residual(y, x)), y, x)

    def _residual(self, y: Real, x: Any) -> Real:
        """Return y - x; for noise on a grid, rounded to the nearest grid point if it is within rounding of it."""
        y = floating(y)
        z = y - x
        return self.noise.nearest_possible(z, 2 * np.finfo(z.dtype).eps * (abs(y) + abs(x)))

    def mass(self, y: Real, x: Real) -> Real:
        if not len(self.noise.atoms[0]):
            return unless_nan(namespace(y, x).zeros_like(floating(y) + x), y, x)
        log_mass = self.log_prob(y, x)
        return namespace(log_mass).exp(log_mass)

    def cdf(self, y: Real, x: Real) -> Real:
        return unless_nan(self.noise.cdf(self._residual(y, x)), y, x)

    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        return x + self.noise.icdf(u)

    def mean(self, x: Real) -> RealArray:
        """Return x + E Z; asymmetric noise is biased."""
        return floating(x) + self.noise.mean

    def variance(self, x: Real = 0.0) -> Real:
        return self.noise.variance + 0 * floating(x)

    def absolute_error(self, x: Real = 0.0) -> Real:
        return self.noise.absolute_moment + 0 * floating(x)

    def probability_within(self, x: Real, theta: Real) -> RealArray:
        if not isinstance(self.noise, Distribution):
            return super().probability_within(x, theta)
        return self.noise.mass(-theta, theta)

    def error_bound(self, x: Real) -> Real:
        noise = self.noise
        xp = namespace(x, *tree_leaves(noise))
        tail = xp.full_like(floating(x), 1e-12)
        highest = noise.isf(tail) if isinstance(noise, Distribution) else noise.icdf(1 - tail)
        return xp.maximum(highest, -noise.icdf(tail))

    @property
    def worst_variance(self) -> Real:
        return self.noise.variance

    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        noise_atoms, probability = self.noise.atoms
        batch = noise_atoms.shape[1:]
        column = (-1, *[1] * (np.ndim(x) - len(batch)), *batch)
        return x + noise_atoms.reshape(column), probability.reshape(column) + 0.0 * floating(x)


@partial(pytree, static=("dimensions", "norm"))
@dataclass(frozen=True)
class AdditiveVector:
    """Independent noise with one distribution on each of d = ``dimensions`` values; ``on_vectors`` makes it.

    Attributes:
        coordinate: the noise, and the claim for a whole vector: (epsilon, delta) for vectors up to its sensitivity
            apart in the noise's own norm, l2 for Gaussian noise and l1 for all others.
        sensitivity: D, the largest distance of neighbouring vectors in ``norm``, which is l1, l2 or linf.
        lattice: a number of which every value is a multiple (1.0 for counts), or None.
    """

    coordinate: Additive
    sensitivity: Real
    dimensions: int
    norm: str
    lattice: float | None

    @property
    def noise_norm(self) -> str:
        """Return the norm in which the noise's privacy is known."""
        return "l1" if self.coordinate.noise.gaussian_sigma is None else "l2"

    # Those of a coordinate: the interval of each value, the claim of a whole vector, the variance of each report.
    input_interval = property(attrgetter("coordinate.input_interval"))
    output_interval = property(attrgetter("coordinate.output_interval"))
    epsilon = property(attrgetter("coordinate.epsilon"))
    delta = property(attrgetter("coordinate.delta"))
    worst_variance = property(attrgetter("coordinate.worst_variance"))

    def variance(self, x: Real = 0.0) -> Real:
        """Return the variance of every coordinate."""
        return self.coordinate.variance(x)

    def mean(self, x: Real) -> Real:
        """Return E(report | x)."""
        return self.coordinate.mean(x)

    def log_prob(self, y: Real, x: Real) -> RealArray:
        """Return the log likelihood of reports y of vectors x, both of shape (..., d); the result has shape (...)."""
        for name, value in (("y", y), ("x", x)):
            check_dimensions(self.dimensions, np.shape(value), name)
        return floating(self.coordinate.log_prob(y, x)).sum(-1)

    def sample(self, key: Array, x: Real, sample_shape: tuple[int, ...] = (), *, method: str = "mixture") -> Array:
        """Draw float reports for vectors x of shape (..., d), for simulation only; see ``Additive.sample``."""
        x = as_array(x)
        check_dimensions(self.dimensions, x.shape)
        return self.coordinate.sample(key, x, sample_shape, method=method)


def check_dimensions(dimensions: int, shape: tuple[int, ...], name: str = "x") -> None:
    """Refuse arrays whose last axis does not hold the coordinates of a mechanism on vectors."""
    if not shape or shape[-1] != dimensions:
        raise ValueError(f"{name}: has shape {shape}; its last axis must hold the {dimensions} coordinates of a vector")


def norm_growth(norm: str, noise_norm: str, dimensions: int) -> float:
    """Return the largest length in the noise's own norm of d values of length 1 in ``norm``: 1, sqrt(d) or d."""
    exponent = {("linf", "l1"): 1.0, ("linf", "l2"): 0.5, ("l2", "l1"): 0.5}.get((norm, noise_norm), 0.0)
    return dimensions**exponent


def on_vectors(
    mechanism: Additive,
    *,
    dimensions: int,
    norm: str,
    sensitivity: float | None = None,
    delta: float | None = None,
    lattice: float | None = None,
) -> AdditiveVector:
    """Return a mechanism that adds the same noise independently to each of d values of one release.

    Vectors are neighbours if they are at most D apart in ``norm``. The mechanism's own claim must cover the same
    distance in the noise's own norm, which is l2 for Gaussian noise and l1 for all other noise: sqrt(d) D for linf and
    Gaussian noise and for l2 and other noise, d D for linf and other noise, else D.

    Rounding in a release adds up to one cell a value to this distance. The exact sampler compensates for it with wider
    noise, unless the values are on a ``lattice`` known in advance.

    Args:
        mechanism: additive noise with a claim.
        dimensions: d, 1 to 2^31.
        norm: "l1", "l2" or "linf".
        sensitivity: D; by default the largest that the mechanism's claim covers, or a ``ValueError`` above it.
        delta: delta of the vector's claim; by default 0 for a mechanism that claims 0, otherwise the larger of the
            mechanism's delta and 1e-10, because d finite tables cannot reach the delta of a single one.
        lattice: a number of which every value is a multiple, such as 1.0 for counts; at most D. A release checks this.
    """
    checks.one_of("norm", norm, NORMS)
    checks.integer_in("dimensions", dimensions, 1, 1 << 31)
    if mechanism.batch_shape:
        raise ValueError(f"mechanism: is a batch of shape {mechanism.batch_shape}; the noise of a vector is one")
    if mechanism.sensitivity is None or mechanism.epsilon is None or mechanism.delta is None:
        raise ValueError("mechanism: claims nothing; it needs a sensitivity, epsilon and delta")
    if lattice is not None:
        checks.positive("lattice", lattice)
    if delta is None:
        xp = namespace(mechanism.delta)
        delta = xp.where(xp.asarray(mechanism.delta) == 0, 0.0, xp.maximum(mechanism.delta, 1e-10))[()]
    claim = mechanism.claim(sensitivity=mechanism.sensitivity, epsilon=mechanism.epsilon, delta=delta)
    noise_norm = AdditiveVector(claim, 1.0, dimensions, norm, lattice).noise_norm
    largest_sensitivity = mechanism.sensitivity / norm_growth(norm, noise_norm, dimensions)
    D = largest_sensitivity if sensitivity is None else sensitivity
    checks.sensitivity(D)
    if lattice is not None:
        checks.within("lattice", lattice, 0.0, D)
    if (excess_ratio := checks.concrete(D / largest_sensitivity)) is not None and excess_ratio > 1 + 1e-12:
        raise ValueError(
            f"sensitivity: {shortest(D)} in {norm} of {dimensions} values is "
            f"{excess_ratio * mechanism.sensitivity:.9g} in {noise_norm}; the noise is made for "
            f"{shortest(mechanism.sensitivity)}"
        )
    return AdditiveVector(claim, D, dimensions, norm, lattice)
