"""Additive noise on vectors: one release of d values, neighbours close in a norm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

NORMS = ("l1", "l2", "linf")


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
    sensitivity: Any
    dimensions: int
    norm: str
    lattice: Any

    @property
    def own_norm(self) -> str:
        """Return the norm in which the noise's privacy is known."""
        return "l2" if isinstance(self.coordinate.noise, Gaussian) else "l1"

    # Those of a coordinate: the interval of each value, the claim of a whole vector, the variance of each report.
    input_interval = property(attrgetter("coordinate.input_interval"))
    output_interval = property(attrgetter("coordinate.output_interval"))
    epsilon = property(attrgetter("coordinate.epsilon"))
    delta = property(attrgetter("coordinate.delta"))
    worst_variance = property(attrgetter("coordinate.worst_variance"))

    def variance(self, x: Any) -> Any:
        """Return the variance of every coordinate."""
        return self.coordinate.variance(x)

    def mean(self, x: Any) -> Any:
        """Return E(report | x)."""
        return self.coordinate.mean(x)

    def log_prob(self, y: Real, x: Any) -> Any:
        """Return the log likelihood of reports y of vectors x, both of shape (..., d); the result has shape (...)."""
        for name, value in (("y", y), ("x", x)):
            self.check_shape(np.shape(value), name)
        return self.coordinate.log_prob(y, x).sum(-1)

    def check_shape(self, shape: tuple[int, ...], name: str = "x") -> None:
        """Refuse arrays whose last axis does not hold the d values."""
        if not shape or shape[-1] != self.dimensions:
            raise ValueError(
                f"{name}: has shape {shape}; its last axis must hold the {self.dimensions} values of a vector"
            )

    def sample(self, key: Array, x: Any, method: str = "mixture") -> Array:
        """Draw float reports for vectors x of shape (..., d), for simulation only; see ``Additive.sample``."""
        x = jnp.asarray(x)
        self.check_shape(x.shape)
        return self.coordinate.sample(key, x, method)


def growth(norm: str, own_norm: str, dimensions: int) -> float:
    """Return the largest length in the noise's own norm of d values of length 1 in ``norm``: 1, sqrt(d) or d."""
    power = {("linf", "l1"): 1.0, ("linf", "l2"): 0.5, ("l2", "l1"): 0.5}.get((norm, own_norm), 0.0)
    return dimensions**power


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
    distance in the noise's own norm, which is l2 for Gaussian noise and l1 for all other noise:

    - D, if ``norm`` is the noise's own norm, or l1 for Gaussian noise;
    - sqrt(d) D, if ``norm`` is linf for Gaussian noise, or l2 for other noise;
    - d D, if ``norm`` is linf for other noise.

    Rounding in a release adds up to one cell a value to this distance. The exact sampler compensates for it with wider
    noise, unless the values are on a ``lattice`` known in advance.

    Args:
        mechanism: additive noise with a claim.
        dimensions: d, 1 to 2^31.
        norm: "l1", "l2" or "linf".
        sensitivity: D; by default the largest that the mechanism's claim covers, or a ``ValueError`` above it.
        delta: delta of the vector's claim; by default the larger of the mechanism's delta and 1e-10, because d finite
            tables cannot reach the delta of a single one.
        lattice: a number of which every value is a multiple, such as 1.0 for counts; at most D. A release checks this.
    """
    checks.one_of("norm", norm, NORMS)
    checks.whole("dimensions", dimensions, 1, 1 << 31)
    if mechanism.sensitivity is None or mechanism.epsilon is None or mechanism.delta is None:
        raise ValueError("mechanism: claims nothing; it needs a sensitivity, epsilon and delta")
    if lattice is not None:
        checks.positive("lattice", lattice)
    total = namespace(mechanism.delta).maximum(mechanism.delta, 1e-10)[()] if delta is None else delta
    claim = mechanism.claim(sensitivity=mechanism.sensitivity, epsilon=mechanism.epsilon, delta=total)
    vector = AdditiveVector(claim, 1.0, dimensions, norm, lattice)
    most = mechanism.sensitivity / growth(norm, vector.own_norm, dimensions)
    D = most if sensitivity is None else sensitivity
    checks.sensitivity(D)
    if lattice is not None:
        checks.within("lattice", lattice, 0.0, D)
    if (far := checks.concrete(D / most)) is not None and far > 1 + 1e-12:
        raise ValueError(
            f"sensitivity: {shortest(D)} in {norm} of {dimensions} values is {D / most * mechanism.sensitivity:.9g} in "
            f"{vector.own_norm}; the noise is made for {shortest(mechanism.sensitivity)}"
        )
    return AdditiveVector(claim, D, dimensions, norm, lattice)
