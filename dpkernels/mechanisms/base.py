"""The interface of a mechanism, with shared code for sampling, inverse cdf and worst-case variance."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Protocol, Self

import numpy as np

from dpkernels import checks
from dpkernels.batches import Batchable, check_fits
from dpkernels.jax_on_use import Array, jax, jit, jnp
from dpkernels.numerics import Real, RealArray, cast_like, floating, log_or_minus_inf, namespace, unless_nan
from dpkernels.pytrees import tree_leaves
from dpkernels.random.keys import typed_simulation_key
from dpkernels.random.uniforms import uniforms
from dpkernels.solve import differentiable_roots, invert_increasing

# How far a report may be from its atom, in units of rounding.
_ROUNDING_UNITS = 16
# How far it may be on the grid of an exact sampler, as a fraction of the output interval.
_GRID_TOLERANCE = 1e-8

METHODS = ("mixture", "inverse")


class Sampler(Protocol):
    """What draws reports: a mechanism, or a pytree with tables that make drawing faster."""

    @property
    def input_interval(self) -> tuple[Real, Real]: ...
    def draw(self, u: Array, x: Array) -> Real: ...
    def pdf(self, y: Real, x: Real) -> Real: ...
    def cdf(self, y: Real, x: Real) -> Real: ...
    def atoms(self, x: Real) -> tuple[RealArray, RealArray]: ...


class Mechanism(Batchable, abc.ABC):
    """A randomised map from a number to a report.

    Methods take NumPy arrays (evaluated by NumPy, in float64) or JAX arrays and tracers (evaluated by JAX, in
    their type) of any shape, and broadcast. All values are in the units of the data. ``sample`` and ``icdf`` return NaN
    for inputs outside ``input_interval``; other methods do not check inputs.
    """

    epsilon: Any

    @abc.abstractmethod
    def pdf(self, y: Real, x: Real) -> Real:
        """Return the density at report ``y`` given input ``x``, per data unit, without the atoms; see ``atoms``."""

    @abc.abstractmethod
    def cdf(self, y: Real, x: Real) -> Real:
        """Return P(report <= y | x)."""

    @abc.abstractmethod
    def mass(self, y: Real, x: Real) -> Real:
        """Return P(report = y | x), with y compared up to rounding; 0 except at an atom."""

    @abc.abstractmethod
    def log_prob(self, y: Real, x: Real) -> Real:
        """Return the log likelihood of report ``y``: log ``mass`` at an atom, else log ``pdf``; -inf if impossible."""

    @abc.abstractmethod
    def variance(self, x: Real) -> Real:
        """Return Var(report | x), in squared data units."""

    @abc.abstractmethod
    def absolute_error(self, x: Real) -> Real:
        """Return E|report - x| given x, in data units."""

    @abc.abstractmethod
    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        """Return the reports of positive probability and their probabilities, each of shape (atoms, *x.shape)."""

    def probability_within(self, x: Real, theta: Real) -> RealArray:
        """Return P(|report - x| <= theta)."""
        atoms, p = self.atoms(x)
        lower_end_mass = namespace(atoms, x).where(atoms == x - theta, p, 0.0).sum(0)
        return self.cdf(x + theta, x) - self.cdf(x - theta, x) + lower_end_mass

    def error_bound(self, x: Real) -> Real:
        """Return a bound of |report - x| that is exceeded with a probability below 1e-9."""
        low, high = self.output_interval
        return namespace(high, x).maximum(high - x, x - low)

    @property
    @abc.abstractmethod
    def output_interval(self) -> tuple[Real, Real]:
        """Return the smallest and largest possible report."""

    @property
    @abc.abstractmethod
    def input_interval(self) -> tuple[Real, Real]:
        """Return the smallest and largest valid input."""

    @abc.abstractmethod
    def mean(self, x: Real) -> Real:
        """Return E(report | x)."""

    @property
    @abc.abstractmethod
    def worst_variance(self) -> Real:
        """Return the largest variance over valid inputs."""

    def icdf(self, u: Real, x: Real) -> RealArray:
        """Return the smallest possible report y with cdf(y, x) >= u; NaN unless u is in [0, 1] and x in its interval.

        The result increases with u, such as Sobol points or antithetic pairs of your own; u and x broadcast. At 0 and
        1 it is an end of the output interval, or for noise from a table of integers the first or last number with a
        probability that floats resolve. Its derivatives in u, x and every parameter are those of implicit
        reparameterisation. At an atom they are NaN.
        """
        u, x = floating(u), floating(x)
        low, high = self.input_interval
        is_valid = (x >= low) & (x <= high)
        xp = namespace(is_valid, low)
        x = xp.where(is_valid, x, cast_like(xp.asarray(low), x))
        is_host = namespace(u, x, *tree_leaves(self)) is np
        y = self._icdf(u, x) if is_host else _reparameterised_reports(self, u, x, inverse=True)
        return namespace(y, is_valid).where(is_valid, y, np.nan)

    def _icdf(self, u: Real, x: Real) -> RealArray:
        """Return ``icdf`` of float arrays, without its derivative, for inputs in the input interval."""
        xp = namespace(u, x, *tree_leaves(self))
        u, x = xp.broadcast_arrays(u, x)
        is_probability = (u >= 0) & (u <= 1)
        u = xp.where(is_probability, u, 0.5)
        return xp.where(is_probability, self._solve_cdf(u, 1 - u, x), np.nan)

    @abc.abstractmethod
    def _solve_cdf(self, u: Any, upper_tail: Real, x: Real) -> Real:
        """Return ``icdf`` without its derivative; u and upper_tail = 1 - u, of one shape, are accurate near 0."""

    def sampler(self) -> Sampler:
        """Return the object that draws reports: this one, or a pytree with tables that make drawing faster."""
        return self

    def draw(self, u: Real, x: Real) -> Real:
        """Map a uniform number ``u`` in (0, 1) to a report by the fastest map with the right distribution."""
        return self._icdf(u, x)

    def sample(self, key: Array, x: Real, sample_shape: tuple[int, ...] = (), *, method: str = "mixture") -> Array:
        """Draw float reports for inputs ``x`` of any shape, for simulation and training, not for release.

        Reports have the shape (*sample_shape, *x.shape), and are NaN where x is not in ``input_interval``. The function
        is compiled once per shape and dtype. It is differentiable in x and in every parameter by implicit
        reparameterisation, dy = -dF(y|x)/pdf(y|x) (Figurnov 2018). The derivative is NaN at an atom.

        Args:
            key: a typed key, Threefry (fast) or ChaCha20, or a legacy ``jax.random.PRNGKey``.
            x: inputs, for a batch of shape (..., *batch_shape). Float32 and float64 are kept, others become float32.
                Flat index i of the reports uses uniform i of the key.
            sample_shape: how many independent reports each input has, along leading axes.
            method: "mixture" takes the fastest map from a uniform number to a report. "inverse" takes ``icdf``, so that
                a report increases with its uniform number and moves smoothly with x and the parameters.
        """
        key, x = typed_simulation_key(key), as_array(x)
        checks.one_of("method", method, METHODS)
        check_fits(x.shape, self.batch_shape)
        return sample_from(self, key, 0, with_sample_shape(x, sample_shape), method)


def as_array(x: Real) -> Array:
    """Return inputs as a JAX array, or refuse what is not one, such as a dictionary of arrays, with a TypeError."""
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"x: {type(x).__name__} is not one array; sample takes a number or an array. For a pytree, draw each leaf "
            "with a key of its own (jax.random.split)"
        ) from error


def with_sample_shape(x: Array, sample_shape: tuple[int, ...]) -> Array:
    """Return inputs broadcast along leading axes."""
    sizes = [checks.integer_in("sample_shape", size, 0, (1 << 31) - 1) for size in sample_shape]
    return jnp.broadcast_to(x, (*sizes, *x.shape)) if sizes else x


class Local(Mechanism):
    """A map from ``[lower, upper]`` to a bounded interval, pure epsilon-DP; by default without atoms."""

    lower: Real
    upper: Real

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.interval(self.lower, self.upper)

    @property
    def input_interval(self) -> tuple[Real, Real]:
        return self.lower, self.upper

    def on_unit(self) -> Self:
        """Return the mechanism in units of half the input interval, which is then [-1, 1]."""
        return dataclasses.replace(self, lower=-1.0, upper=1.0)  # type: ignore[type-var]

    @property
    def middle(self) -> Real:
        """Return the middle of the input interval."""
        return self.lower + (self.upper - self.lower) / 2

    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        empty = namespace(x).zeros((0, *np.shape(x)), floating(x).dtype)
        return empty, empty

    def mass(self, y: Real, x: Real) -> Real:
        report, x = namespace(y, x).broadcast_arrays(floating(y), floating(x))
        atoms, p = self.atoms(x)
        is_atom = abs(report - atoms) <= self._tolerance(atoms.astype(report.dtype))
        return unless_nan(namespace(is_atom, p).where(is_atom, p, 0.0).sum(0), report, x)

    def _tolerance(self, atoms: Any) -> Real:
        """Return how far a report may be from its atom, by rounding and on the grid of an exact sampler."""
        low, high = self.output_interval
        rounding = _ROUNDING_UNITS * np.finfo(atoms.dtype).eps * (abs(atoms) + abs(self.middle))
        return namespace(rounding, low).maximum(rounding, _GRID_TOLERANCE * (high - low))

    def log_prob(self, y: Real, x: Real) -> Real:
        mass, density = self.mass(y, x), self.pdf(y, x)
        return unless_nan(log_or_minus_inf(namespace(mass, density).where(mass > 0, mass, density)), y, x)

    def _icdf(self, u: Real, x: Real) -> RealArray:
        """Keep rounding from the ends of the output interval."""
        y, (low, high) = super()._icdf(u, x), self.output_interval
        xp = namespace(y, low)
        return xp.where(u == 0, low, xp.where(u == 1, high, xp.clip(y, low, high)))

    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        """Bisect the cdf."""
        return invert_increasing(lambda y: self.cdf(y, x), u, *self.output_interval)


class Bounded(Local):
    """A local mechanism that is unbiased; any two inputs are neighbours, unless it has a sensitivity."""

    def mean(self, x: Real) -> Real:
        return floating(x)

    @property
    def central_variance(self) -> Real:
        """Return the variance at the middle of the input interval."""
        return self.variance(self.middle)

    @property
    def worst_variance(self) -> Real:
        return self.worst_excess(1.0)

    @abc.abstractmethod
    def worst_excess(self, rate: Real) -> Real:
        """Return the largest rate E(report - middle)^2 - (x - middle)^2 over valid inputs, ``worst_variance`` at 1."""


class Parabolic(Bounded):
    """A bounded mechanism whose variance is affine in (x - middle)^2, hence the largest at the middle or at an end."""

    def worst_excess(self, rate: Real) -> Real:
        at_middle, half_width = rate * self.central_variance, (self.upper - self.lower) / 2
        at_end = rate * self.variance(self.upper) + (rate - 1) * half_width**2
        return namespace(at_middle, at_end).maximum(at_middle, at_end)


@jit(inline=True, static_argnums=4)
def _sample(mechanism: Mechanism, key: Array, start: tuple[Real, Real], x: Array, inverse: bool) -> Array:
    x = floating(x)
    u = uniforms(key, start, x.size, x.dtype).reshape(x.shape)
    y = _reparameterised_reports(mechanism, u, x, inverse)
    low, high = mechanism.input_interval
    return jnp.where((x >= low) & (x <= high), y, jnp.nan).astype(x.dtype)


def sample_from(mechanism: Mechanism, key: Array, start: int, x: Array, method: str = "mixture") -> Array:
    """Sample the part of ``mechanism.sample`` that begins at flat index ``start``, with the same values."""
    inverse = method == "inverse"
    words = np.uint32(start & 0xFFFFFFFF), np.uint32(start >> 32)
    return _sample(mechanism if inverse else mechanism.sampler(), key, words, x, inverse)


# Of a mechanism: its leaves that JAX traces, the uniform number and the input.
Parameters = tuple[list[Array | None], Real, Real]


def _reparameterised_reports(mechanism: Mechanism, u: Real, x: Real, inverse: bool) -> Array:
    """Return what ``_icdf`` or ``draw`` gives, with the derivatives of implicit reparameterisation."""
    leaves, structure = jax.tree.flatten(mechanism)
    # Plain numbers stay constants of float64, so that what is computed of them is not rounded to float32 before.
    traced_leaves = [leaf if isinstance(leaf, Array) else None for leaf in leaves]

    def unflatten(parameters: Parameters) -> tuple[Any, Real, Real]:
        traced, u, x = parameters
        merged = [plain if leaf is None else leaf for plain, leaf in zip(leaves, traced, strict=True)]
        return jax.tree.unflatten(structure, merged), u, x

    def excess(y: Real, parameters: Parameters) -> Real:
        mechanism, u, x = unflatten(parameters)
        return mechanism.cdf(y, x) - u

    def reports(parameters: Parameters) -> Array:
        mechanism, u, x = unflatten(parameters)
        return mechanism._icdf(u, x) if inverse else mechanism.draw(u, x)

    def density(y: RealArray, parameters: Parameters) -> Array:
        """Return the density at a report, or 0 at an atom, where a report does not move smoothly."""
        mechanism, _, x = unflatten(parameters)
        density, (atoms, _) = mechanism.pdf(y, x), mechanism.atoms(jnp.broadcast_to(x, y.shape))
        on_atom = jnp.any(abs(y - atoms) <= _ROUNDING_UNITS * np.finfo(y.dtype).eps * abs(atoms), axis=0)
        return jnp.where(on_atom, 0.0, density)

    return differentiable_roots(excess, (traced_leaves, u, x), reports, density)
