"""The staircase distribution (Geng and Viswanath 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.numerics import MAX_EXPONENT, Real, RealArray, floating, namespace
from dpkernels.pytrees import pytree

# A number of periods that has at least a share 1 - 1/e of the mass, down to the smallest eps, 0.01.
_MAX_SUMMED_PERIODS = 100


@pytree
@dataclass(frozen=True)
class Staircase(Symmetric):
    """The staircase distribution, which is eps-DP for shifts up to D.

    With q = e^-eps, the density is a q^k on [k D, (k + gamma) D) and a q^(k+1) on [(k + gamma) D, (k + 1) D), where
    a = (1 - q) / (2 D (gamma + q (1 - gamma))). Epsilon is in [0.01, 20], the period D, the sensitivity, in
    [1e-140, 1e140], and gamma in [0, 1]; 1/(1 + e^(eps/2)) minimises E|Z|.
    """

    lengths: ClassVar[tuple[str, ...]] = ("period",)
    density_form: ClassVar[str] = "constant"

    # Unions of types take mypy half a minute in these formulas.
    epsilon: Any
    period: Any
    gamma: Any

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.width("period", self.period)
        checks.within("gamma", self.gamma, 0.0, 1.0)

    @property
    def _ratio(self) -> RealArray:
        return namespace(self.epsilon).exp(-self.epsilon)

    @property
    def _peak(self) -> Real:
        q = self._ratio
        return (1 - q) / (2 * self.period * (self.gamma + q * (1 - self.gamma)))

    def _position(self, z: Real) -> tuple[Real, Real]:
        """Return the period k of z >= 0, and the position in it in units of a period."""
        xp, t = namespace(z, self.period), z / self.period
        k = xp.floor(t)
        return k, t - k

    @property
    def geometric_tail(self) -> tuple[float, float | None]:
        return 0.0, float(self.period)

    def log_prob(self, z: Real) -> Real:
        z = floating(z)
        xp = namespace(z, self.period, self.epsilon)
        finite = xp.isfinite(z)
        log_density = xp.log(self._peak) - self.epsilon * self._steps_down(xp.where(finite, z, 0.0))
        return xp.where(finite, log_density, -xp.inf)

    def loss(self, z: Real, shift: Real) -> RealArray:
        """Return eps times a difference of whole numbers."""
        return self.epsilon * (self._steps_down(z - shift) - self._steps_down(z))

    def _steps_down(self, z: Real) -> RealArray:
        k, position = self._position(namespace(z).abs(z))
        return k + namespace(position).where(position < self.gamma, 0.0, 1.0)

    def steepness(self, left: Real, right: Real) -> Real:
        return 0.0 * floating(left)

    def tail(self, z: Real) -> Real:
        return self._tail_integral(0, *self._position(z))

    def partial_moment(self, power: int, lower: Real, upper: Real) -> Real:
        """Add up the rest of the first period, the whole periods, and the start of the last one."""
        a, xp = self._peak, namespace(lower, upper, self.period)
        is_endless = xp.isinf(upper)
        (k, position), (last, end) = self._position(lower), self._position(xp.where(is_endless, lower, upper))
        is_one_period = k == last
        first = self._period_integral(power, k, position, xp.where(is_one_period, end, 1.0))
        start = xp.exp(-self.epsilon * (last - k)) * self._period_integral(power, last, 0.0, end)
        further = self._whole_periods(power, k + 1, last) + start
        total = first + xp.where(is_one_period, 0.0, further)
        finite = a * self.period ** (power + 1) * xp.exp(-self.epsilon * k) * total
        return xp.where(is_endless, self._tail_integral(power, k, position), finite)

    def _period_integral(self, power: int, k: Real, low: Real, high: Real) -> Real:
        """Return the integral of (1 or q) t^power over [k + low, k + high] in period k, with t in periods."""
        g, q = self.gamma, self._ratio
        xp = namespace(k, low, high, g)

        def step(low: Real, high: Real) -> Real:
            middle, width = k + (low + high) / 2, high - low
            return width * (1.0, middle, middle**2 + width**2 / 12)[power]

        return step(xp.minimum(low, g), xp.minimum(high, g)) + q * step(xp.maximum(low, g), xp.maximum(high, g))

    def _tail_integral(self, power: int, k: Real, position: Real) -> Real:
        """Return the integral of t^power f(t) from a point of period k to infinity, with a geometric sum."""
        scale = self._peak * self.period ** (power + 1) * namespace(k, self.epsilon).exp(-self.epsilon * k)
        return scale * (self._period_integral(power, k, position, 1.0) + self._ratio * self._all_periods(k + 1, power))

    def _whole_periods(self, power: int, k: Real, last: Real) -> Real:
        """Return sum_j q^(1 + j - k) I_j over j = k .. last - 1, I_j the integral of (1 or q) t^power over period j."""
        eps, q, xp = self.epsilon, self._ratio, namespace(k, last, self.epsilon)
        count = xp.maximum(last - k, 0.0)
        decrease = -xp.expm1(-eps * count)
        if power == 0:
            return q * decrease * self._all_periods(k, 0)
        # The difference of the sums from k and from last cancels where q^count is near 1: sum one by one there.
        is_short = (eps * count < 1) & (count <= _MAX_SUMMED_PERIODS)
        difference = q * (self._all_periods(k, power) - (1 - decrease) * self._all_periods(k + count, power))
        staircases = Staircase(*(xp.expand_dims(xp.asarray(value), -1) for value in (eps, self.period, self.gamma)))
        j = xp.arange(_MAX_SUMMED_PERIODS) + 0.0 * staircases.epsilon
        integrals = staircases._period_integral(power, xp.expand_dims(k, -1) + j, 0.0, 1.0)
        terms = xp.exp(-staircases.epsilon * (j + 1)) * integrals
        return xp.where(is_short, xp.where(j < xp.expand_dims(count, -1), terms, 0.0).sum(-1), difference)

    def _all_periods(self, k: Real, power: int) -> Real:
        """Return the sum over j >= 0 of q^j times the integral of (1 or q) t^power over period k + j, in periods."""
        g, q = self.gamma, self._ratio
        s0, s1, s2 = 1 / (1 - q), q / (1 - q) ** 2, q * (1 + q) / (1 - q) ** 3
        p1, p2, p3 = g + q * (1 - g), (g**2 + q * (1 - g**2)) / 2, (g**3 + q * (1 - g**3)) / 3
        if power == 0:
            return p1 * s0
        if power == 1:
            return p1 * (k * s0 + s1) + p2 * s0
        return p1 * (k**2 * s0 + 2 * k * s1 + s2) + 2 * p2 * (k * s0 + s1) + p3 * s0

    def lower_inverse(self, u: Real) -> Real:
        """Return the period from the geometric tail q^k / 2, then the position from the nearer end of the period."""
        D, g, q = self.period, self.gamma, self._ratio
        xp = namespace(u, D, q)
        is_lower = u < 0.5
        tail = 2 * xp.where(is_lower, u, 1 - u)
        k = xp.floor(-xp.log(tail) / self.epsilon)
        period_tail, mass = tail * xp.exp(self.epsilon * k), (g + q * (1 - g)) / (1 - q)
        from_start = xp.maximum((1 - period_tail) * mass, 0.0)
        to_end = xp.maximum((period_tail * xp.exp(self.epsilon) - 1) * mass, 0.0)
        z = D * (k + xp.where(from_start < g, from_start, xp.maximum(1 - to_end, g)))
        return xp.where(is_lower, -z, z)

    @property
    def knots(self) -> RealArray:
        """Return all steps with a tail above 1e-300. Their number depends on eps, which JAX must not trace."""
        return self.steps(int(MAX_EXPONENT / float(self.epsilon)) + 2)

    def steps(self, periods: int) -> RealArray:
        """Return the steps of this many periods on either side of 0, increasing."""
        D, g = self.period, self.gamma
        k = np.arange(periods)
        ends = (namespace(D, g).stack([k + 0 * g, k + g], -1) * D).ravel()
        return namespace(ends).concatenate([-ends[:0:-1], ends])
