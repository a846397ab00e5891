"""The generalised normal distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.jax_on_use import Array, custom_jvp, jax, jnp
from dpkernels.numerics import Real, RealArray, floating, namespace, special_functions, without_derivative
from dpkernels.pytrees import pytree

_FRACTION_FROM = 2.0  # The x from which on a continued fraction of the incomplete gamma function replaces its series.
_FRACTION_TERMS = 48  # The terms of the fraction.
_SERIES_TERMS = 28  # The terms of the series.
_NEWTON_STEPS = 7  # Of Newton's method for a quantile of JAX numbers.
# The power series of 1/Gamma(1 + a), from the coefficient of a on.
_RECIPROCAL_GAMMA = (
    *(0.5772156649015329, -0.6558780715202539, -0.04200263503409524, 0.16653861138229148, -0.04219773455554433),
    *(-0.009621971527876973, 0.0072189432466631, -0.0011651675918590652, -0.00021524167411495098),
    *(0.0001280502823881162, -2.013485478078824e-05, -1.2504934821426706e-06, 1.133027231981696e-06),
    *(-2.056338416977607e-07, 6.116095104481416e-09, 5.002007644469223e-09, -1.18127457048702e-09),
    *(1.0434267116911005e-10, 7.782263439905071e-12, -3.696805618642206e-12, 5.100370287454476e-13),
    *(-2.0583260535665066e-14, -5.348122539423018e-15, 1.2267786282382608e-15, -1.1812593016974588e-16),
)
_GRADES = 8  # The distances from 0, each a quarter of the one before, at which quadrature is cut.


@pytree
@dataclass(frozen=True)
class GeneralisedNormal(Symmetric):
    """The generalised normal (Subbotin) distribution, f(z) = exp(-|z/s|^b) / (2 s Gamma(1 + 1/b)).

    The scale s is in [1e-140, 1e140], and the exponent b is in [1, 8]. The exponent 1 is Laplace noise of scale s, and
    2 is Gaussian noise of standard deviation s/sqrt(2). Between them is the noise of least variance for several
    releases; see ``accountants.tune.noise``. The density is log-concave, and at 0 it has no second derivative where
    b < 2.
    """

    roundings: ClassVar[float] = 32.0

    scale: Real
    exponent: Any

    def __post_init__(self) -> None:
        checks.width("scale", self.scale)
        checks.within("exponent", self.exponent, 1.0, 8.0)

    @property
    def geometric_tail(self) -> tuple[float, float | None] | None:
        return (0.0, None) if self._has_exponent(1) else None

    @property
    def gaussian_sigma(self) -> Real | None:
        return self.scale / math.sqrt(2) if self._has_exponent(2) else None

    @property
    def unweighted(self) -> Symmetric:
        """Return Laplace or Gaussian noise at the exponents 1 and 2, whose accounting has closed forms."""
        if self._has_exponent(1):
            return Laplace(self.scale)
        sigma = self.gaussian_sigma
        return self if sigma is None else Gaussian(sigma)

    def _has_exponent(self, exponent: int) -> bool:
        """Return whether the exponent is a plain number equal to this one."""
        value = checks.concrete(self.exponent)
        return value is not None and bool(np.all(np.asarray(value) == exponent))  # NumPy's, also within a trace.

    def log_prob(self, z: Real) -> Real:
        xp = namespace(z, self.scale, self.exponent)
        return -self._power(xp.abs(z)) - _log_half_width(self.exponent) - xp.log(2 * self.scale)

    def _power(self, distance: Real, fraction: float = 1.0) -> RealArray:
        """Return (distance/s)^(fraction b), at 0 with derivatives of 0; the distance may be too large for the power."""
        t, b = floating(distance / self.scale), fraction * self.exponent
        xp = namespace(t, b)
        is_positive, highest = t > 0, xp.finfo(t.dtype).max ** (0.5 / b)
        return xp.where(is_positive, xp.minimum(xp.where(is_positive, t, 1.0), highest) ** b, 0.0)

    def tail(self, z: Real) -> Real:
        t = floating(z) / self.scale
        traced = namespace(t, self.exponent) is jnp
        return _traced_tail(*_arrays(t, self.exponent)) if traced else _upper_power(t, self.exponent) / 2

    def lower_inverse(self, u: Real) -> Real:
        xp = namespace(u, self.scale, self.exponent)
        is_lower = u < 0.5
        tail = xp.where(is_lower, u, 1 - u)
        if xp is np:
            a = 1 / self.exponent
            t = special_functions(tail).gammainccinv(a, 2 * tail) ** a
        else:
            t = _traced_inverse(*_arrays(tail, self.exponent))
        return self.scale * xp.where(is_lower, -t, t)

    def loss(self, z: Real, shift: Real) -> RealArray:
        """Return (|z - D|^b - |z|^b)/s^b, which is -2 |z (z - D)/s^2|^(b/2) sinh(b artanh v).

        Here v is m/h or h/m, whichever is smaller, with m = z - D/2 and h = D/2.
        """
        h, xp = shift / 2, namespace(z, shift, self.scale, self.exponent)
        m = z - h
        outer = xp.abs(m) > xp.abs(h)
        v = xp.where(outer, h, m) / xp.where(outer, m, h)
        roots = self._power(xp.abs(z), 0.5) * self._power(xp.abs(z - shift), 0.5)
        close = -2 * roots * xp.sinh(self.exponent * xp.arctanh(xp.clip(v, -0.5, 0.5)))
        # Where one of both powers is small there is no cancellation.
        return xp.where(xp.abs(v) < 0.5, close, self._power(xp.abs(z - shift)) - self._power(xp.abs(z)))

    def loss_limits(self, shift: Real) -> tuple[RealArray, Real]:
        xp = namespace(shift, self.scale, self.exponent)
        limit = xp.where(self.exponent == 1, shift / self.scale, xp.sign(shift) * np.inf)
        return limit, -limit

    @property
    def knots(self) -> RealArray:
        return np.zeros(1)

    @property
    def quantiles(self) -> RealArray:
        """Return quantiles, and points close to 0, where powers of z have no derivatives."""
        points, scale = without_derivative((super().quantiles, self.scale))
        distances, xp = scale * 0.25 ** np.arange(_GRADES), namespace(points)
        return xp.sort(xp.concatenate([points, -distances, distances])).astype(points.dtype)

    @property
    def mean(self) -> Real:
        return 0.0 * self.scale

    @property
    def variance(self) -> Real:
        """Return s^2 Gamma(3/b)/Gamma(1/b)."""
        return self.scale**2 * self._gamma_ratio(3)

    @property
    def absolute_moment(self) -> Real:
        """Return s Gamma(2/b)/Gamma(1/b)."""
        return self.scale * self._gamma_ratio(2)

    def _gamma_ratio(self, factor: int) -> RealArray:
        a = 1 / self.exponent
        log_gamma = special_functions(a).gammaln
        return namespace(a).exp(log_gamma(factor * a) - log_gamma(a))


def _log_half_width(b: Real) -> RealArray:
    """Return log Gamma(1 + 1/b): at unit scale the density at 0 is exp of minus this over 2."""
    return -namespace(b).log1p(_remainder(1 / b) / b)


def _arrays(*values: Real) -> list[Array]:
    """Return JAX arrays of one shape and type."""
    return jnp.broadcast_arrays(*(jnp.asarray(value, jnp.result_type(float, *values)) for value in values))


def _upper_power(t: RealArray, b: RealArray) -> RealArray:
    """Return Q(1/b, t^b), the probability of |T| > t at unit scale; at t = 0 with derivatives of 0 in b."""
    xp = namespace(t, b)
    limits = xp.finfo(t.dtype)
    return _upper_gamma(1 / b, xp.clip(t, float(limits.tiny) ** 0.125, float(limits.max) ** 0.1) ** b)


def _upper_gamma(a: Real, x: Real) -> RealArray:
    """Return the regularised upper incomplete gamma function Q(a, x), 1/8 <= a <= 1, by a series or a fraction.

    The errors are below 16 (1 + |log Q|) units; SciPy's are larger around x = 1. Derivatives keep their digits where Q
    is small, which those of JAX's function do not.
    """
    xp = namespace(a, x)
    is_small = x < _FRACTION_FROM
    small_x, large_x = xp.where(is_small, x, 1.0), xp.where(is_small, _FRACTION_FROM, x)
    # 1/Gamma(1 + a) = 1 + a R, and Q = -a R - (1 + a R) (x^a - 1 + a x^a sum of (-x)^n/(n! (a + n)), n >= 1).
    remainder = _remainder(a)
    total = _nested(_SERIES_TERMS, lambda n, total: -small_x / n * (1 / (a + n) + total), 0.0 * (small_x + a))
    power = xp.expm1(a * xp.log(small_x))
    series = -a * remainder - (1 + a * remainder) * (power + a * (1 + power) * total)

    def step(n: int, denominator: Real) -> RealArray:  # Legendre's continued fraction, from its end.
        return large_x + (2 * n - 1) - a - n * (n - a) / denominator

    denominator = _nested(_FRACTION_TERMS, step, large_x + (2 * _FRACTION_TERMS + 1) - a)
    fraction = a * (1 + a * remainder) * xp.exp(a * xp.log(large_x) - large_x) / denominator
    return xp.where(is_small, series, fraction)


def _remainder(a: Real) -> RealArray:
    """Return R = (1/Gamma(1 + a) - 1)/a for 0 <= a <= 1, by its power series."""
    table = namespace(a).asarray(_RECIPROCAL_GAMMA, floating(a).dtype)
    return _nested(len(table), lambda n, total: table[n - 1] + a * total, 0.0 * a)


def _nested(count: int, step: Callable[[int, RealArray], RealArray], total: Any) -> RealArray:
    """Return step(1, step(2, ... step(count, total))); a loop of JAX compiles in a tenth of the time of its terms."""
    if namespace(total) is np:
        for n in range(count, 0, -1):
            total = step(n, total)
        return total
    return jax.lax.fori_loop(0, count, lambda turn, total: step(count - turn, total), total)


def _tail_and_slope(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[RealArray, RealArray]:
    """Return minus the density times dt, and the derivative of series and fraction times db."""
    t, b = primals
    return _traced_tail(t, b), -_density(t, b) * tangents[0] + _slope_in_exponent(t, b) * tangents[1]


@custom_jvp(jvp=_tail_and_slope)
def _traced_tail(t: RealArray, b: RealArray) -> RealArray:
    return _upper_power(t, b) / 2


def _slope_in_exponent(t: RealArray, b: Real) -> Array:
    return jax.jvp(lambda b: _upper_power(t, b), (b,), (jnp.ones_like(b),))[1] / 2


def _density(t: Real, b: Real) -> Array:
    return jnp.exp(-(t**b) - _log_half_width(b)) / 2


def _inverse_and_slope(primals: tuple[Real, Real], tangents: tuple[Real, Real]) -> tuple[Real, Real]:
    """Differentiate tail(t(u, b), b) = u."""
    tail, b = primals
    root = _traced_inverse(tail, b)
    t = jnp.where(jnp.isfinite(root), root, 0.0)
    return root, (_slope_in_exponent(t, b) * tangents[1] - tangents[0]) / _density(t, b)


@custom_jvp(jvp=_inverse_and_slope)
def _traced_inverse(tail: Real, b: RealArray) -> Array:
    """Return the t >= 0 of a tail <= 1/2 by Newton's method for its logarithm, which is concave in t.

    It starts near the root: far out at the x of x^(a - 1) e^-x = Gamma(a) q, near 0 on the tangent at 0.
    """
    a, q = 1 / b, 2 * tail
    is_zero = q <= 0
    log_q = jnp.log(jnp.where(is_zero, 1.0, q))
    level = -log_q - jax.scipy.special.gammaln(a)
    is_far = level > 1.5
    level = jnp.where(is_far, level, 2.0)
    t = jnp.where(is_far, (level - (1 - a) * jnp.log(level)) ** a, jnp.exp(_log_half_width(b)) * (1 - jnp.exp(log_q)))

    def step(_: object, t: Array) -> Array:
        tail = _upper_power(t, b) / 2
        return jnp.maximum(t + (jnp.log(2 * tail) - log_q) * (tail / _density(t, b)), 0.0)

    return jnp.where(is_zero, jnp.inf, jax.lax.fori_loop(0, _NEWTON_STEPS, step, t))
