"""The estimate of what crowds hide: by enumeration, by the integral, or by the grid from above; whichever serves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from accountants.shuffle import bracket, counts, integral
from accountants.shuffle.crowds import Crowd
from dpkernels.solve import root

# Where fewer reports than this that tell the inputs apart are expected nodes further out are looked at as well.
# Fewer than the least are not left to the integral.
_FEW, _LEAST, _TOLD, _LOOKED_AT = 10_000, 50, 1e-7, (1e-3, 1e-8, 1e-14)
# Of log delta: a root. How many steps are taken to it before it is bracketed.
_CLOSE, _SECANTS = 1e-11, 8


@dataclass(frozen=True, eq=False)
class Estimate:
    """The largest delta of some crowds, in numbers.

    Attributes:
        crowds: the crowds.
        n: how many reports.
        level: eps0, from which on delta is 0.
    """

    crowds: tuple[Crowd, ...]
    n: float
    level: float

    def log_delta(self, epsilon: float) -> float:
        """log delta at one eps; -inf from the level on."""
        if epsilon >= self.level * (1 + 1e-12):
            return -math.inf
        values = (self._log_value(crowd, way, epsilon) for crowd, way in zip(self.crowds, self.ways, strict=True))
        return max(values, default=-math.inf)

    def largest(self, epsilon: float) -> int:
        """The number of the crowd that hides least at one eps, or nearly; by the integral."""
        values = [integral.host_log_delta(crowd.thinned, self.n, epsilon)[0] for crowd in self.crowds]
        return max(range(len(values)), key=values.__getitem__)

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """How the value of every crowd is computed: "counts", "integral" or "grid"."""
        return tuple(self._way(crowd) for crowd in self.crowds)

    def _way(self, crowd: Crowd) -> str:
        if counts.applies(crowd, self.n):
            return "counts"
        if self.n < _LEAST and float(self.n) == int(self.n):
            return "grid"
        telling = self.n * crowd.gamma * float(crowd.mass[crowd.p != crowd.q].sum())
        if telling >= _FEW or float(self.n) != int(self.n):
            return "integral"
        thin = crowd.thinned
        for delta in _LOOKED_AT:
            at = integral.host_epsilon(thin, self.n, delta, self.level)[0]
            near, far = (integral.host_log_delta(thin, self.n, at, size) for size in (integral.NEAR, integral.FAR))
            if not abs(near[0] - far[0]) + far[1] < _TOLD:
                return "grid"
        return "integral"

    def _log_value(self, crowd: Crowd, way: str, epsilon: float) -> float:
        if way == "integral":
            return integral.host_log_delta(crowd, self.n, epsilon)[0]
        by = counts.delta if way == "counts" else bracket.of_crowd
        value = by(crowd, int(self.n), epsilon)
        return math.log(value) if value > 0 else -math.inf

    def epsilon(self, delta: float) -> tuple[float, float]:
        """(the least eps at one delta, about d log delta/d eps there), from the integral of the first crowd."""
        if not self.crowds:
            return 0.0, -1.0
        goal = math.log(delta)
        eps, slope = integral.host_epsilon(self.crowds[0].thinned, self.n, delta, self.level)
        before = math.nan, math.nan
        for _ in range(_SECANTS):
            gap = self.log_delta(eps) - goal
            if abs(gap) < _CLOSE or (eps == 0.0 and gap <= 0):
                return eps, slope
            if before[0] != eps and before[1] != gap and math.isfinite(before[1]):
                slope = (gap - before[1]) / (eps - before[0])
            if not (math.isfinite(gap) and slope < 0 and 0 <= eps - gap / slope < self.level):
                break
            before, eps = (eps, gap), eps - gap / slope
        eps = self._bracketed(goal)
        return eps, -1.0 / max(eps, 1e-9)

    def _bracketed(self, goal: float) -> float:
        if self.log_delta(0.0) <= goal:
            return 0.0
        # At the level delta is 0; the grid from above may be far above the goal there.
        return float(root(lambda eps, _: self.log_delta(eps) - goal, (), self.level, 0.0, rtol=1e-13))
