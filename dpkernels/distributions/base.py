"""Base classes of the distributions of additive noise: abstract members and shared code."""

from __future__ import annotations

import abc
import dataclasses
import importlib
import pkgutil
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dpkernels.batches import Batchable, each_entry
from dpkernels.numerics import (
    GAUSS_LEGENDRE,
    Real,
    RealArray,
    cast_like,
    floating,
    namespace,
    number_like,
    zero_at_infinity,
)
from dpkernels.pytrees import tree_leaves

# The probabilities beyond the ends of the intervals over which a general density is integrated.
_TAILS = 10.0 ** -np.array([np.log10(2), 0.5, 1, 1.5, *range(2, 16), *range(16, 44, 4), 80, 160, 300])


class Noise(Batchable, abc.ABC):
    """A distribution on the real line, unimodal about 0: a frozen dataclass and a pytree of its parameters.

    Methods take NumPy arrays (evaluated in float64) or JAX arrays (in their type) of any shape, and broadcast.
    """

    lengths: ClassVar[tuple[str, ...]] = ("scale",)  # The parameters that are lengths, which ``rescale`` multiplies.
    is_even: bool = False  # The probabilities of z and -z are equal. Under tracing, whether this is known.
    _classes: ClassVar[dict[str, type[Noise]]] = {}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        namesake = Noise._classes.get(cls.__name__)
        if namesake is not None and (namesake.__module__, namesake.__qualname__) != (cls.__module__, cls.__qualname__):
            module = namesake.__module__
            raise TypeError(f"{cls.__name__}: {module} has a distribution of this name; choose another name")
        Noise._classes[cls.__name__] = cls

    @property
    def gaussian_sigma(self) -> Any:
        """Return sigma of a Gaussian, whose vectors are accounted in l2; None for others."""
        return None

    @property
    def geometric_tail(self) -> tuple[float, float | None] | None:
        """Return (z0, period): f(z + period) = c f(z) for |z| > z0, for even noise; a period of None stands for any.

        None means that there are no such numbers. Otherwise a release draws the tail without end, and is pure.
        """
        return None

    @staticmethod
    def classes() -> dict[str, type[Noise]]:
        """Return every class of distributions by its name."""
        for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
            importlib.import_module(f"dpkernels.distributions.{module.name}")
        return {name: cls for name, cls in Noise._classes.items() if dataclasses.is_dataclass(cls)}

    def rescale(self, factor: Real, unit: Real = 1.0) -> Self:
        """Return the distribution of ``factor`` Z / ``unit``; a length that is the unit becomes 1 exactly."""
        try:
            lengths = {name: getattr(self, name) * factor / unit for name in self.lengths}
        except AttributeError:
            raise TypeError(
                f"noise: {type(self).__name__} has no parameters {', '.join(self.lengths)}; list those that are "
                "lengths in its attribute lengths, or write its method rescale(factor, unit)"
            ) from None
        return dataclasses.replace(self, **lengths)  # type: ignore[type-var]

    def nearest_possible(self, z: Real, tolerance: Real) -> Real:
        """Return z, or the value of positive probability within ``tolerance`` of it: z may have been rounded."""
        return z

    @abc.abstractmethod
    def prob(self, z: Real) -> Real:
        """Return the density at z."""

    @abc.abstractmethod
    def log_prob(self, z: Real) -> Any:
        """Return the log density at z, on a grid the log probability; -inf outside the support."""

    @abc.abstractmethod
    def cdf(self, z: Real) -> Real:
        """Return P(Z <= z), accurate in the lower tail."""

    @abc.abstractmethod
    def icdf(self, u: RealArray) -> Real:
        """Return the smallest z with cdf(z) >= u."""

    @property
    @abc.abstractmethod
    def mean(self) -> Real:
        """Return E Z."""

    @property
    @abc.abstractmethod
    def variance(self) -> Real:
        """Return Var Z."""

    @property
    @abc.abstractmethod
    def absolute_moment(self) -> Real:
        """Return E|Z|."""

    @property
    def atoms(self) -> tuple[RealArray, RealArray]:
        """Return values of positive probability, and these probabilities; empty for a density."""
        return np.zeros(0), np.zeros(0)


class Distribution(Noise):
    """A distribution with a density that is smooth between knots, and log-concave or with known turning points.

    A subclass defines ``log_prob``, ``cdf``, ``sf`` and ``inverse``, and other members if it has a formula for them.
    Rigorous brackets follow from its tails. With ``steepness`` they need fewer digits of these.
    """

    # Brackets assume that tail probabilities and densities v are right to so many roundings (2^-53), times 1 + |log v|,
    # of themselves, and losses l to as many, times 1 + |l|. This value is for classes that state no smaller one.
    roundings: ClassVar[float] = 4096.0
    # The form of the density between knots: "general", or "exponential", "gaussian" or "constant", of which privacy
    # profiles have closed forms.
    density_form: ClassVar[str] = "general"

    @abc.abstractmethod
    def sf(self, z: Real) -> Real:
        """Return P(Z > z), accurate in the upper tail."""

    @abc.abstractmethod
    def inverse(self, u: Real, lower: Real) -> RealArray:
        """Return the z at which the lower tail (``lower`` true) or the upper one has mass u; accurate for u near 0."""

    def steepness(self, left: Real, right: Real) -> Any:
        """Return s with |f'| <= s f and |f^(8)| <= s^8 f on [left, right], which holds no knot; f is the density.

        With it, brackets integrate the density where an interval is so narrow that its mass, as a difference of tails,
        has few digits (docs/proofs/brackets.md). ``accountants.check_steepness`` samples it.
        """
        name = type(self).__name__
        raise TypeError(
            f"noise: {name} has no bound on how fast its density changes; write the method "
            f"{name}.steepness(left, right), or ask for estimate_delta or estimate_epsilon"
        )

    def loss(self, z: Real, shift: Real) -> RealArray:
        """Return log f(z) - log f(z - shift), without the weights of ``weight``; a density may keep more digits."""
        return self.log_prob(z) - self.log_prob(z - shift)

    def loss_limits(self, shift: Real) -> tuple[Real, Real]:
        """Return the limits of ``loss`` at -inf and at +inf; by default infinite ones, a bound of any others."""
        limit = namespace(shift).sign(shift) * np.inf
        return limit, -limit

    def turning_points(self, shift: Real) -> tuple[Real, ...]:
        """Return all z where ``loss`` turns; by default none, as a log-concave density has a monotone loss."""
        return ()

    def mass(self, a: Real, b: Real) -> RealArray:
        """Return P(a < Z <= b) for a <= b, as a difference of the smaller tail to avoid cancellation."""
        a, b = floating(a), floating(b)
        xp = namespace(a, b)
        one_sided = xp.where(a >= 0, self.sf(a) - self.sf(b), self.cdf(b) - self.cdf(a))
        return xp.where((a < 0) & (b > 0), 1 - self.cdf(a) - self.sf(b), one_sided)

    def moment(self, power: int, a: Real, b: Real) -> RealArray:
        """Return the integral of z^power f(z) over [a, b], power 0, 1 or 2; precise also for close ends."""
        return self._quadrature(power, a, b)

    @each_entry
    def _quadrature(self, power: int, a: Real, b: Real) -> RealArray:
        points = self.quantiles
        xp = namespace(points, a, b)
        points = xp.sort(xp.concatenate([points, *map(xp.atleast_1d, (self.knots, *self.edges, 0.0))]))
        ends = xp.clip(points, *(xp.asarray(end)[..., None] for end in (a, b)))
        width = xp.diff(ends)[..., None]
        z = ends[..., :-1, None] + width * cast_like(GAUSS_LEGENDRE[0], ends)
        return (width * cast_like(GAUSS_LEGENDRE[1], ends) * z**power * self.prob(z)).sum((-2, -1))

    @property
    def quantiles(self) -> RealArray:
        """Return points, increasing, between which the density and the loss are smooth enough for quadrature."""
        numbers = tree_leaves(self)
        xp = namespace(*numbers)
        dtype = xp.result_type(*(floating(leaf) for leaf in numbers))
        tails = cast_like(_TAILS[4 * float(xp.finfo(dtype).tiny) < _TAILS], xp.zeros((), dtype))
        is_lower = np.ones(len(tails), bool)
        low, high = self.inverse(tails, is_lower), self.inverse(tails, ~is_lower)
        return xp.concatenate([low[::-1], high[1:]])

    @property
    def support(self) -> tuple[Real, Real]:
        return -float("inf"), float("inf")

    @property
    def knots(self) -> RealArray:
        """Return the points at which the density's formula changes, as an increasing 1-D array."""
        return np.zeros(0)

    @property
    def edges(self) -> tuple[Real, ...]:
        """Return the points at which ``weight`` steps; with the knots of ``unweighted`` these are the knots."""
        return ()

    @property
    def unweighted(self) -> Any:
        """Return the distribution underneath: the density is ``weight(z)`` times its density."""
        return self

    def weight(self, z: Real) -> Real:
        """Return the density at z relative to that of ``unweighted``; constant between knots."""
        return 1.0 + 0.0 * floating(z)

    def icdf(self, u: Real) -> Real:
        lower = u < 0.5
        return self.inverse(namespace(u).where(lower, u, 1 - u), lower)

    def isf(self, u: Real) -> Real:
        """Return the inverse of ``sf``, from the nearer tail."""
        lower = u > 0.5
        return self.inverse(namespace(u).where(lower, 1 - u, u), lower)

    def prob(self, z: Real) -> Real:
        log_density = self.log_prob(z)
        return namespace(log_density).exp(log_density)

    @property
    def mean(self) -> Real:
        return self.moment(1, *self.support)

    @property
    def variance(self) -> Real:
        return self.moment(2, *self.support) - self.mean**2

    @property
    def absolute_moment(self) -> Real:
        low, high = self.support
        return self.moment(1, 0.0, high) - self.moment(1, low, 0.0)


class Symmetric(Distribution):
    """An even density on the whole line; a subclass defines ``log_prob``, ``tail`` and ``lower_inverse``."""

    is_even = True

    @abc.abstractmethod
    def tail(self, z: Real) -> Real:
        """Return P(Z > z), for finite z >= 0."""

    @abc.abstractmethod
    def lower_inverse(self, u: Real) -> Real:
        """Return the inverse of ``cdf`` for u in (0, 1), accurate near 0."""

    def partial_moment(self, power: int, lower: Real, upper: Real) -> Real:
        """Return the integral of t^power f(t), power 0, 1 or 2, over [lower, upper] in [0, infinity]."""
        return self._quadrature(power, lower, upper)

    def cdf(self, z: Real) -> Real:
        z = floating(z)
        tail = zero_at_infinity(self.tail, namespace(z).abs(z))
        return namespace(z, tail).where(z < 0, tail, 1 - tail)

    def sf(self, z: Real) -> Real:
        return self.cdf(-floating(z))

    def mass(self, a: Real, b: Real) -> RealArray:
        a, b = floating(a), floating(b)
        xp = namespace(a, b)
        tail_a, tail_b = zero_at_infinity(self.tail, xp.abs(a)), zero_at_infinity(self.tail, xp.abs(b))
        two_sided = 1 - tail_a - tail_b
        xp = namespace(two_sided)
        return xp.where(a >= 0, tail_a - tail_b, xp.where(b <= 0, tail_b - tail_a, two_sided))

    def moment(self, power: int, a: Real, b: Real) -> Any:
        a, b = (floating(number_like(z, *tree_leaves(self)) if isinstance(z, int | float) else z) for z in (a, b))
        xp = namespace(a, b)
        spans_zero, b_is_outer, a, b = (a < 0) & (b > 0), xp.abs(b) >= xp.abs(a), xp.abs(a), xp.abs(b)
        inner, outer = xp.where(b_is_outer, a, b), xp.where(b_is_outer, b, a)
        # Of an odd integrand the parts at equal distances from 0 cancel.
        is_empty = xp.isinf(inner) & (True if power == 1 else ~spans_zero)
        inner, outer = xp.where(is_empty, 0.0, inner), xp.where(is_empty, 0.0, outer)
        xp = namespace(inner, outer)
        if power == 1:
            moment = self.partial_moment(1, inner, outer)
            return namespace(moment).where(b_is_outer, moment, -moment)
        outer_moment = self.partial_moment(power, xp.where(spans_zero, 0.0, inner), outer)
        return outer_moment + self.partial_moment(power, xp.zeros_like(inner), xp.where(spans_zero, inner, 0.0))

    def inverse(self, u: Real, lower: Real) -> RealArray:
        z = self.lower_inverse(u)
        return namespace(z, lower).where(lower, z, -z)


class PiecewiseExponential(Symmetric):
    """A symmetric distribution whose log density is linear between knots, so that its profile has a closed form."""

    density_form: ClassVar[str] = "exponential"

    @abc.abstractmethod
    def score(self, z: Real) -> RealArray:
        """Return the derivative of the log density at z, between knots."""

    @staticmethod
    def excess_distance(z: Real, shift: Real) -> RealArray:
        """Return |z - shift| - |z|, to full precision also far out."""
        xp = namespace(z, shift)
        size = xp.abs(shift)
        return xp.clip((shift - 2 * z) * xp.sign(shift), -size, size)

    def steepness(self, left: Real, right: Real) -> RealArray:
        middle = (left + right) / 2
        return namespace(middle).abs(self.score(middle))
