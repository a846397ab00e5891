"""Mechanisms on vectors that report s of d coordinates, each with eps/s (Wang 2019; Ma 2021, Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.jax_on_use import Array, jax, jit, jnp
from dpkernels.mechanisms.additive import check_dimensions
from dpkernels.mechanisms.base import METHODS, Bounded, as_array, sample_from, with_sample_shape
from dpkernels.numerics import Real, RealArray, floating, log_or_minus_inf, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree
from dpkernels.random.keys import typed_simulation_key

# Labels of ``fold_in`` for a simulation key.
_START = 0  # the first of the coordinates that are reported
_REPORTS = 1  # the reports of these coordinates


@partial(pytree, static=("dimensions", "sampled"))
@dataclass(frozen=True)
class Multivariate:
    """A mechanism that reports s of d coordinates, scaled by d/s about the middle; the others report the middle.

    The reported coordinates are a cyclic run of s from a uniform start, chosen independently of the data, so each is
    reported with probability s/d. Each is perturbed by ``coordinate``, on [-1, 1], with eps/s.

    Attributes:
        coordinate: a mechanism with input interval [-1, 1] and budget eps/s, for any two inputs.
        lower, upper: smallest and largest valid input, numbers or one a coordinate.
        dimensions: d.
        sampled: s, 1 to d.
    """

    coordinate: Bounded
    lower: Real
    upper: Real
    dimensions: int
    sampled: int

    def __post_init__(self) -> None:
        checks.interval(self.lower, self.upper)
        checks.integer_in("dimensions", self.dimensions, 1, 1 << 31)
        checks.integer_in("sampled", self.sampled, 1, self.dimensions)
        for name in ("lower", "upper"):
            if (shape := np.shape(getattr(self, name))) not in ((), (self.dimensions,)):
                raise ValueError(f"{name}: shape {shape}; a number or {self.dimensions} numbers are needed")
        checks.unbiased_for_any_two("coordinate", self.coordinate)
        low, high = (checks.concrete(end) for end in self.coordinate.input_interval)
        if low is not None and high is not None and not (low == -1 and high == 1):
            raise ValueError(f"coordinate: its interval is [{shortest(low)}, {shortest(high)}]; it must be [-1, 1]")

    @property
    def epsilon(self) -> Real:
        """Return the budget of a whole vector, s times the coordinate's; any two vectors are neighbours."""
        return self.coordinate.epsilon * self.sampled

    @property
    def input_interval(self) -> tuple[Real, Real]:
        return self.lower, self.upper

    @property
    def _middle(self) -> Any:
        return self.lower + (self.upper - self.lower) / 2

    @property
    def _half_width(self) -> Any:
        return (self.upper - self.lower) / 2

    @property
    def output_interval(self) -> tuple[Real, Real]:
        low, high = self.coordinate.output_interval
        factor = self._half_width * self.dimensions / self.sampled
        return self._middle + factor * low, self._middle + factor * high

    def unit(self, x: Real) -> Real:
        """Return inputs on [-1, 1]."""
        return (x - self._middle) / self._half_width

    def mean(self, x: Real) -> RealArray:
        return floating(x)

    def variance(self, x: RealArray) -> RealArray:
        """Return (d/s)(Var(z) + z^2) - z^2 a coordinate, z the input on [-1, 1], times the squared half-width."""
        z, rate = self.unit(floating(x)), self.dimensions / self.sampled
        return (rate * (self.coordinate.variance(z) + z**2) - z**2) * self._half_width**2

    @property
    def central_variance(self) -> Real:
        return self.variance(self._middle)

    @property
    def worst_variance(self) -> Real:
        return self.coordinate.worst_excess(self.dimensions / self.sampled) * self._half_width**2

    def log_prob(self, y: RealArray, x: RealArray) -> RealArray:
        """Return the log likelihood of reports y of vectors x, both of shape (..., d); the result has shape (...).

        It is the log of the mean, over the d runs, of the product of the likelihoods of the run's coordinates; a run
        counts as 0 if a coordinate outside it is not the middle.
        """
        for name, value in (("y", y), ("x", x)):
            check_dimensions(self.dimensions, np.shape(value), name)
        y, x = namespace(y, x, self.lower).broadcast_arrays(floating(y), floating(x))
        rate, unit_inputs = self.dimensions / self.sampled, self.unit(x)
        z = self.unit(y) / rate
        # A report that may be a rounding of an atom counts as the atom.
        unit_atoms = self.coordinate.atoms(unit_inputs)[0]
        rounding = 16 * np.finfo(y.dtype).eps * (abs(y) + abs(self._middle))
        is_atom = abs(z - unit_atoms) * self._half_width <= rounding / rate
        z = namespace(z, unit_atoms).where(is_atom.any(0), (is_atom * unit_atoms).sum(0) / is_atom.sum(0).clip(1), z)
        mass = self.coordinate.mass(z, unit_inputs)
        density = self.coordinate.pdf(z, unit_inputs) / (self._half_width * rate)
        # The log likelihood of every coordinate as one of a run.
        log_likelihoods = log_or_minus_inf(namespace(mass, density).where(mass > 0, mass, density))
        xp, s = namespace(log_likelihoods), self.sampled
        # The middle is compared as it is rounded in the reports' type.
        is_middle = abs(y - self._middle) <= 2 * np.finfo(y.dtype).eps * (abs(self._middle) + self._half_width)
        is_possible = log_likelihoods > -xp.inf
        by_run = _over_runs(xp.where(is_possible, log_likelihoods, 0.0), s)
        # A run is possible if all its coordinates are possible and every coordinate outside it is the middle.
        is_run = (_over_runs(~is_possible, s) == 0) & (_over_runs(~is_middle, s) == (~is_middle).sum(-1, keepdims=True))
        largest = xp.where(is_run, by_run, -xp.inf).max(-1)
        offset = xp.where(largest > -xp.inf, largest, 0.0)
        likelihoods = xp.where(is_run, xp.exp(xp.where(is_run, by_run - offset[..., None], 0.0)), 0.0)
        return offset + log_or_minus_inf(likelihoods.mean(-1))

    def sample(self, key: Array, x: Real, sample_shape: tuple[int, ...] = (), *, method: str = "mixture") -> Array:
        """Draw float reports for vectors ``x`` of shape (..., d), for simulation only; see ``TwoPoint.sample``."""
        key, x = typed_simulation_key(key), as_array(x)
        checks.one_of("method", method, METHODS)
        check_dimensions(self.dimensions, x.shape)
        return _sample(self, key, with_sample_shape(x, sample_shape), method)


def _over_runs(values: RealArray, length: int) -> RealArray:
    """Return sums over the cyclic runs of this length along the last axis, in the order of their starts."""
    xp = namespace(values)
    sums = xp.cumsum(xp.concatenate([values, values[..., : length - 1]], -1), -1)
    preceding = xp.concatenate([xp.zeros_like(sums[..., :1]), sums[..., : values.shape[-1] - 1]], -1)
    return sums[..., length - 1 :] - preceding


@proven("vectors#proof")
def chosen_coordinates(start: RealArray, dimensions: int, sampled: int) -> np.ndarray:
    """Return the cyclic run of s coordinates from each start, shape (rows, s)."""
    return (start[:, None] + namespace(start).arange(sampled)) % dimensions


@jit(static_argnums=3)
def _sample(mechanism: Multivariate, key: Array, x: Array, method: str) -> Array:
    d, s = mechanism.dimensions, mechanism.sampled
    x = floating(x)
    rows = jnp.broadcast_to(mechanism.unit(x), x.shape).reshape(-1, d)
    start = jax.random.randint(jax.random.fold_in(key, _START), rows.shape[:1], 0, d)
    coordinates = chosen_coordinates(start, d, s)
    z = jnp.take_along_axis(rows, coordinates, axis=1)
    reports = sample_from(mechanism.coordinate, jax.random.fold_in(key, _REPORTS), 0, z, method) * (d / s)
    units = jnp.zeros_like(rows).at[jnp.arange(len(rows))[:, None], coordinates].set(reports)
    return (mechanism._middle + mechanism._half_width * units.reshape(x.shape)).astype(x.dtype)
