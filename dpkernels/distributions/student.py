"""Student's t distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.jax_on_use import custom_jvp
from dpkernels.numerics import (
    Real,
    RealArray,
    cast_like,
    floating,
    namespace,
    ndtri,
    special_functions,
    without_derivative,
)
from dpkernels.pytrees import pytree


@partial(pytree, static=("degrees",))
@dataclass(frozen=True)
class Student(Symmetric):
    """Student's t distribution, f(z) proportional to (1 + z^2/(nu s^2))^(-(nu + 1)/2), with heavy tails.

    The scale s is in [1e-140, 1e140]. The degrees of freedom nu, from 3 to 1000, are a plain number, which JAX does not
    trace. The density is not log-concave. The privacy loss of a shift D rises and falls again, with the maximum
    (nu + 1) asinh(D/(2 s sqrt(nu))), so the noise is pure DP. Poisson sampling with replace-one neighbours is not
    supported.
    """

    scale: float
    degrees: float = 3.0

    @property
    def roundings(self) -> float:  # type: ignore[override]
        """Return 32 and one for each degree: the incomplete beta function loses digits of a large argument."""
        return 32.0 + self.degrees

    def __post_init__(self) -> None:
        checks.width("scale", self.scale)
        checks.not_traced("degrees", "The beta function has no derivative in them; give a plain number.", self.degrees)
        checks.within("degrees", checks.number("degrees", self.degrees), 3.0, 1000.0)

    @property
    def _square(self) -> Real:
        return self.degrees * self.scale**2

    def log_prob(self, z: Real) -> Real:
        nu, xp = self.degrees, namespace(z, self.scale)
        log_norm = _log_gamma_ratio(nu / 2) - math.log(math.pi * nu) / 2
        # The square of a large distance would overflow.
        log_distance, t = xp.log(xp.maximum(xp.abs(z / self.scale), 1.0)), z / self.scale
        relative = xp.where(xp.abs(t) > 1, 1 / xp.maximum(xp.abs(t), 1.0), xp.abs(t))
        inner = xp.where(xp.abs(t) > 1, xp.log(relative**2 + 1 / nu) + 2 * log_distance, xp.log1p(relative**2 / nu))
        return log_norm - (nu + 1) / 2 * inner - xp.log(self.scale)

    def tail(self, z: Real) -> Real:
        """Return I_x(nu/2, 1/2)/2 at x = 1/(1 + z^2/(nu s^2)), or at small z 1/2 less its complement."""
        t = floating(z) / self.scale
        return (_tail if namespace(t) is np else _traced_tail)(t, self.degrees)

    def lower_inverse(self, u: Real) -> Real:
        """Return the root of the tail by a step of Halley's method and one of Newton's, which is differentiable."""
        standard, nu, xp = Student(1.0, self.degrees), self.degrees, namespace(u, self.scale)
        is_lower = u < 0.5
        tail = xp.where(is_lower, u, 1 - u)
        is_zero = tail <= 0
        tail = xp.where(is_zero, 0.5, tail)
        target = without_derivative(tail)
        z = _approximate_inverse(target, nu)
        # These ratios stay finite in the far tail, where the density underflows.
        step = (standard.tail(z) / target - 1) * xp.exp(xp.log(target) - standard.log_prob(z))
        z = without_derivative(z + step / (1 - step * ((nu + 1) / 2) * (z / (nu + z**2))))
        z = z + (standard.tail(z) / tail - 1) * without_derivative(xp.exp(xp.log(target) - standard.log_prob(z)))
        z = xp.where(is_zero, np.inf, z)
        return self.scale * xp.where(is_lower, -z, z)

    def loss(self, z: Real, shift: Real) -> RealArray:
        a, xp = self._square, namespace(z, shift, self.scale)
        return (self.degrees + 1) / 2 * xp.log1p(shift * (shift - 2 * z) / (a + z**2))

    def loss_limits(self, shift: Real) -> tuple[Real, Real]:
        return 0.0 * shift, 0.0 * shift

    def turning_points(self, shift: Real) -> tuple[Real, ...]:
        """Return the zeros of z^2 - D z - nu s^2."""
        half_distance = namespace(shift, self.scale).sqrt(shift**2 / 4 + self._square)
        return shift / 2 - half_distance, shift / 2 + half_distance

    def steepness(self, left: Real, right: Real) -> Real:
        """Return Cauchy's bound on circles of radius theta d, d the panel's distance from the poles +-i s sqrt(nu).

        On these circles |f| is at most (1 - theta)^-(nu + 1) f. The bound is smallest at theta = 8/(nu + 9).
        """
        nu, xp = self.degrees, namespace(left, right, self.scale)
        theta = 8 / (nu + 9)
        nearest = xp.maximum(xp.maximum(left, -right), 0.0)
        rate = math.factorial(8) ** 0.125 * (1 - theta) ** (-(nu + 1) / 8) / theta
        return 1.0001 * rate / xp.sqrt(nearest**2 + self._square)

    @property
    def quantiles(self) -> RealArray:
        """Return the quantiles at unit scale, as plain numbers, times the scale."""
        if isinstance(self.scale, float):
            return super().quantiles
        return self.scale * cast_like(Student(1.0, self.degrees).quantiles, floating(self.scale))

    @property
    def mean(self) -> Real:
        return 0.0 * self.scale

    @property
    def variance(self) -> Real:
        return self._square / (self.degrees - 2)

    @property
    def absolute_moment(self) -> Real:
        """Return 2 s sqrt(nu) Gamma((nu + 1)/2) / (sqrt(pi) (nu - 1) Gamma(nu/2))."""
        nu = self.degrees
        ratio = math.exp(_log_gamma_ratio(nu / 2))
        return 2 * self.scale * math.sqrt(nu / math.pi) * ratio / (nu - 1)


def _log_gamma_ratio(x: float) -> float:
    """Return log(Gamma(x + 1/2) / Gamma(x)), without the difference of two large logarithms."""
    if x < 100:
        return math.log(math.gamma(x + 0.5) / math.gamma(x))
    return math.log(x) / 2 - 1 / (8 * x) + 1 / (192 * x**3) - 1 / (640 * x**5)


def _approximate_inverse(tail: Real, nu: float) -> RealArray:
    """Return about the t with P(T > t) = tail <= 1/2 at unit scale (Hill 1970, CACM Algorithm 396: t-quantiles)."""
    xp = namespace(tail)
    a = 1 / (nu - 0.5)
    b = 48 / a**2
    c: Real = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * nu
    y = (2 * d * tail) ** (2 / nu)
    far_term = ((1 / (((nu + 6) / (nu * y) - 0.089 * d - 0.822) * (nu + 2) * 3) + 0.5 / (nu + 4)) * y - 1) * (nu + 1)
    is_far = y <= 0.05 + a
    x = ndtri(xp.where(is_far, 0.5, tail))
    c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c + (0.3 * (nu - 4.5) * (x + 0.6) if nu < 5 else 0.0)
    normal_quantile = (((((0.4 * x**2 + 6.3) * x**2 + 36) * x**2 + 94.5) / c - x**2 - 3) / b + 1) * x
    return xp.sqrt(nu * xp.where(is_far, far_term / (nu + 2) + 1 / y, xp.expm1(a * normal_quantile**2)))


def _tail(t: Real, nu: float) -> RealArray:
    """Return P(T > t) at unit scale, for t >= 0; for t < 1 as a complement, which would cancel in a small tail."""
    xp, special = namespace(t), special_functions(t)
    is_small = t < 1
    square = xp.where(is_small, t, 1.0) ** 2
    small_tail = 0.5 - special.betainc(0.5, nu / 2, square / (square + nu)) / 2
    large_tail = special.betainc(nu / 2, 0.5, 1 / (1 + xp.where(is_small, 1.0, t**2) / nu)) / 2
    return xp.where(is_small, small_tail, large_tail)


def _tail_and_slope(nu: float, primals: tuple[Real], tangents: tuple[Real]) -> tuple[Real, Real]:
    """Return minus the density times dt; the beta function's own derivative is not finite at t = 0."""
    return _traced_tail(primals[0], nu), -Student(1.0, nu).prob(primals[0]) * tangents[0]


_traced_tail = custom_jvp(jvp=_tail_and_slope, nondiff_argnums=(1,))(_tail)
