"""The staircase law (Geng and Viswanath 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.numerics import floating, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Staircase(Symmetric):
    """Steps of height a q^k on [k D, (k + gamma) D) and a q^(k+1) on [(k + gamma) D, (k + 1) D), q = e^-eps.

    a = (1 - q) / (2 D (gamma + q (1 - gamma))). eps-DP for shifts up to D.

    Attributes:
        epsilon: eps.
        period: D, the sensitivity it was made for.
        gamma: share of the high part of a period, in [0, 1]; 1/(1 + e^(eps/2)) has the least E|Z|.

    Raises:
        ValueError: epsilon not in [0.01, 20]; period not in [1e-140, 1e140]; gamma not in [0, 1].
    """

    degree: ClassVar[int] = 0

    epsilon: Any
    period: Any
    gamma: Any

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.width("period", self.period)
        checks.within("gamma", self.gamma, 0.0, 1.0)

    @property
    def _ratio(self) -> Any:
        return namespace(self.epsilon).exp(-self.epsilon)

    @property
    def _peak(self) -> Any:
        q = self._ratio
        return (1 - q) / (2 * self.period * (self.gamma + q * (1 - self.gamma)))

    def _position(self, z: Any) -> tuple[Any, Any]:
        """Period number k and position in it, in periods, of z >= 0."""
        xp, t = namespace(z, self.period), z / self.period
        k = xp.floor(t)
        return k, t - k

    def log_prob(self, z: Any) -> Any:
        z = floating(z)
        xp = namespace(z, self.period, self.epsilon)
        finite = xp.isfinite(z)
        k, part = self._position(xp.abs(xp.where(finite, z, 0.0)))
        inside = xp.log(self._peak) - self.epsilon * (k + xp.where(part < self.gamma, 0.0, 1.0))
        return xp.where(finite, inside, -xp.inf)

    def score(self, z: Any) -> Any:
        return 0.0 * floating(z)

    def tail(self, z: Any) -> Any:
        return self._tail(z, 0)

    def _tail(self, z: Any, power: int) -> Any:
        """Integral of t^power f(t) from z >= 0 to infinity: the rest of z's period, and a geometric sum."""
        D, g, q, a = self.period, self.gamma, self._ratio, self._peak
        k, part = self._position(z)
        xp = namespace(k, g)
        n = power + 1

        def piece(low: Any, high: Any) -> Any:
            return ((k + high) ** n - (k + low) ** n) / n if power else high - low

        rest = piece(xp.minimum(part, g), g) + q * piece(xp.maximum(part, g), 1.0)
        return a * D**n * xp.exp(-self.epsilon * k) * (rest + q * self._periods(k + 1, power))

    def _periods(self, k: Any, power: int) -> Any:
        """Sum over j >= 0 of q^j times the integral of (high or q) t^power over period k + j, in periods."""
        g, q = self.gamma, self._ratio
        s0, s1, s2 = 1 / (1 - q), q / (1 - q) ** 2, q * (1 + q) / (1 - q) ** 3
        p1, p2, p3 = g + q * (1 - g), (g**2 + q * (1 - g**2)) / 2, (g**3 + q * (1 - g**3)) / 3
        if power == 0:
            return p1 * s0
        if power == 1:
            return p1 * (k * s0 + s1) + p2 * s0
        return p1 * (k**2 * s0 + 2 * k * s1 + s2) + 2 * p2 * (k * s0 + s1) + p3 * s0

    def lower_inverse(self, u: Any) -> Any:
        """The period from the geometric tail q^k / 2, then the part of it.

        The high step is gone through from its start, the low one, whose mass is about q of it, from its end.
        """
        D, g, q = self.period, self.gamma, self._ratio
        xp = namespace(u, D, q)
        below = u < 0.5
        tail = 2 * xp.where(below, u, 1 - u)
        k = xp.floor(-xp.log(tail) / self.epsilon)
        rest, mass = tail * xp.exp(self.epsilon * k), (g + q * (1 - g)) / (1 - q)
        used = xp.maximum((1 - rest) * mass, 0.0)
        left = xp.maximum((rest * xp.exp(self.epsilon) - 1) * mass, 0.0)
        z = D * (k + xp.where(used < g, used, xp.maximum(1 - left, g)))
        return xp.where(below, -z, z)

    def between(self, near: Any, far: Any) -> Any:
        """The rest of the first period, whole ones, and the start of the last; or a part of one."""
        D, g, q, a = self.period, self.gamma, self._ratio, self._peak
        (k, part), (last, end) = self._position(near), self._position(far)
        xp = namespace(k, last, g)
        same = k == last

        def piece(low: Any, high: Any) -> Any:
            steps = xp.minimum(high, g) - xp.minimum(low, g), xp.maximum(high, g) - xp.maximum(low, g)
            return steps[0] + q * steps[1]

        whole = xp.exp(-self.epsilon) * -xp.expm1(-self.epsilon * xp.maximum(last - k - 1, 0.0)) / (1 - q)
        later = whole * piece(0.0, 1.0) + xp.exp(-self.epsilon * (last - k)) * piece(0.0, end)
        return a * D * xp.exp(-self.epsilon * k) * (piece(part, xp.where(same, end, 1.0)) + xp.where(same, 0.0, later))

    def first_tail(self, z: Any) -> Any:
        return self._tail(z, 1)

    def second_tail(self, z: Any) -> Any:
        return self._tail(z, 2)

    @property
    def knots(self) -> Any:
        """All steps with a tail above 1e-300; how many depends on eps, which must be a number: ``steps`` traces."""
        return self.steps(int(700 / float(self.epsilon)) + 2)

    def steps(self, periods: int) -> Any:
        """The steps of this many periods on either side of 0, increasing."""
        D, g = self.period, self.gamma
        k = np.arange(periods)
        ends = (namespace(D, g).stack([k + 0 * g, k + g], -1) * D).ravel()
        return namespace(ends).concatenate([-ends[:0:-1], ends])
