"""Mechanisms with reports of positive probability: Duchi's two points, and mixtures such as the hybrid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.mechanisms.base import Parabolic
from dpkernels.numerics import Real, RealArray, floating, namespace, unless_nan
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class TwoPoint(Parabolic):
    """Duchi's mechanism: report middle +- B, B = (R/2) (e^eps + 1)/(e^eps - 1), P(+) = 1/2 + (x - middle)/(2B).

    R is the width of the input interval from ``lower`` to ``upper``, and epsilon the pure-DP budget, in [0.01, 20]. The
    worst-case variance is the smallest of the closed forms for eps up to 0.61. Source: Wang 2019, section III.
    """

    lower: Real
    upper: Real
    epsilon: Any

    @property
    def magnitude(self) -> Real:
        """Return B, the distance of either report from the middle."""
        return (self.upper - self.lower) / 2 / namespace(self.epsilon).tanh(self.epsilon / 2)

    @property
    def output_interval(self) -> tuple[Real, Real]:
        return self.middle - self.magnitude, self.middle + self.magnitude

    def _distances(self, x: Real) -> tuple[Real, Real]:
        """Return the distances of x from both reports, computed from the ends of the interval to avoid cancellation."""
        x, margin = floating(x), (self.upper - self.lower) / namespace(self.epsilon).expm1(self.epsilon)
        return x - self.lower + margin, self.upper - x + margin

    def probability_high(self, x: Real) -> Real:
        """Return P(report = middle + B | x)."""
        return self._distances(x)[0] / (2 * self.magnitude)

    def probability_low(self, x: Real) -> Real:
        """Return P(report = middle - B | x)."""
        return self._distances(x)[1] / (2 * self.magnitude)

    def pdf(self, y: Real, x: Real) -> RealArray:
        """Return 0: every report has positive probability."""
        return namespace(y, x).zeros_like(floating(y) + floating(x))

    def cdf(self, y: Real, x: Real) -> Real:
        low, high = self.output_interval
        y, p = floating(y), self.probability_low(x)
        xp = namespace(y, p)
        return unless_nan(xp.where(y < low, 0.0, xp.where(y < high, p, 1.0)), y, p)

    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        low, high = self.output_interval
        p = self.probability_low(x)
        return namespace(u, p).where(u <= p, low, high)

    def variance(self, x: Real) -> Real:
        """Return B^2 - (x - middle)^2."""
        to_low, to_high = self._distances(x)
        return to_low * to_high

    def absolute_error(self, x: Real) -> Real:
        return self.variance(x) / self.magnitude

    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        probabilities = self.probability_low(x), self.probability_high(x)
        xp = namespace(*probabilities)
        return xp.stack([end + 0 * probabilities[0] for end in self.output_interval]), xp.stack(probabilities)


@pytree
@dataclass(frozen=True)
class Mixture(Parabolic):
    """A mixture that reports by ``first`` with probability ``weight``, else by ``second``.

    The choice is independent of the input. Both parts are unbiased and eps-DP for any two inputs of one input interval,
    hence so is the mixture, even if the choice is published.

    The variance of either part is affine in (x - middle)^2, as of all but ``Optimal``. The weight is in (0, 1). A
    traced weight, or one of a batch, may be 0; the mixture is then ``second``.
    """

    first: Parabolic
    second: Parabolic
    weight: Any

    def __post_init__(self) -> None:
        if self.batch_shape:
            checks.below_one("weight", self.weight)
        else:
            checks.within("weight", self.weight, 0.0, 1.0, open_ends=True)
        for name in ("first", "second"):
            component = getattr(self, name)
            checks.unbiased_for_any_two(name, component)
            if not isinstance(component, Parabolic):
                kind, requirement = type(component).__name__, "a mechanism whose variance is affine in (x - middle)^2"
                raise ValueError(f"{name}: {kind} is not Parabolic; {requirement} is needed")
        ends = [checks.concrete(end) for component in (self.first, self.second) for end in component.input_interval]
        if all(end is not None for end in ends) and not np.all((ends[0] == ends[2]) & (ends[1] == ends[3])):
            raise ValueError(f"second: its interval {ends[2:]} is not that of first, {ends[:2]}")

    def __getitem__(self, index: object) -> Any:
        entry = super().__getitem__(index)
        is_second = not entry.batch_shape and checks.concrete(entry.weight) is not None and entry.weight == 0
        return entry.second if is_second else entry

    @property
    def lower(self) -> Real:  # type: ignore[override]
        return self.first.lower

    @property
    def upper(self) -> Real:  # type: ignore[override]
        return self.first.upper

    def on_unit(self) -> Mixture:
        return Mixture(self.first.on_unit(), self.second.on_unit(), self.weight)

    @property
    def epsilon(self) -> Real:
        first, second = self.first.epsilon, self.second.epsilon
        return namespace(first, second).maximum(first, second)

    @property
    def output_interval(self) -> tuple[Real, Real]:
        (low, high), (low2, high2) = self.first.output_interval, self.second.output_interval
        xp = namespace(low, low2, high, high2, self.weight)
        pairs = (xp.minimum(low, low2), low2), (xp.maximum(high, high2), high2)
        lowest, highest = (xp.where(self.weight > 0, *pair)[()] for pair in pairs)
        return lowest, highest

    def _mix(self, first: Real, second: Real) -> Real:
        return self.weight * first + (1 - self.weight) * second

    def pdf(self, y: Real, x: Real) -> Real:
        return self._mix(self.first.pdf(y, x), self.second.pdf(y, x))

    def cdf(self, y: Real, x: Real) -> Real:
        return self._mix(self.first.cdf(y, x), self.second.cdf(y, x))

    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        """Return an atom of ``second`` where u is in its jump, else the report of ``first`` at the rest of u."""
        if not isinstance(self.second, TwoPoint) or isinstance(self.first, TwoPoint):
            return super()._solve_cdf(u, upper_tail, x)
        w, first, second = self.weight, self.first, self.second
        low, high = second.output_interval
        p_low, p_high = (1 - w) * second.probability_low(x), (1 - w) * second.probability_high(x)
        low_start, low_end = w * first.cdf(low, x), w * first.cdf(low, x) + p_low
        high_start, high_end = w * (1 - first.cdf(high, x)) + p_high, w * (1 - first.cdf(high, x))
        xp = namespace(u, w, low)
        is_below, is_above = u < low_start, upper_tail < high_end
        first_mass = xp.where(is_below, u, xp.where(is_above, 1 - upper_tail - (1 - w), u - p_low))
        first_upper_tail = xp.where(is_above, upper_tail, xp.where(is_below, 1 - u - (1 - w), upper_tail - p_high))
        scale = xp.where(w > 0, w, 1.0)
        y = first._solve_cdf(xp.clip(first_mass / scale, 0.0, 1.0), xp.clip(first_upper_tail / scale, 0.0, 1.0), x)
        between = xp.where(u <= low_end, low, xp.where(upper_tail <= high_start, high, xp.clip(y, low, high)))
        return xp.where(is_below, xp.minimum(y, low), xp.where(is_above, xp.maximum(y, high), between))

    def draw(self, u: Real, x: Real) -> Real:
        w = self.weight
        xp = namespace(u, w)
        first = self.first.draw(xp.minimum(u / xp.where(w > 0, w, 1.0), 1.0), x)
        second = self.second.draw(xp.maximum(u - w, 0.0) / (1 - w), x)
        return xp.where(u < w, first, second)

    def variance(self, x: Real) -> Real:
        return self._mix(self.first.variance(x), self.second.variance(x))

    def absolute_error(self, x: Real) -> Real:
        return self._mix(self.first.absolute_error(x), self.second.absolute_error(x))

    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        (atoms, p), (atoms2, p2) = self.first.atoms(x), self.second.atoms(x)
        xp = namespace(p, p2, self.weight)
        return xp.concatenate([atoms, atoms2]), xp.concatenate([self.weight * p, (1 - self.weight) * p2])
