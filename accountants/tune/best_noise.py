"""The best additive noise for several releases, among all families that the package knows.

Every family has a width, which the total budget determines, and at most one shape parameter. For each shape, a search
solves for the log of the width at which the composed releases meet the budget. It then moves the shape to the vertex of
the parabola through the three best values. The search uses estimates by FFT with few nodes, which are precise to about
1e-5. Finally, the best mechanism gets the smallest width for which the upper end of the bracket meets the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from accountants.calibrate.composed import conservative_parameter, gaussian_ratio, log_mu, with_release_claim
from accountants.calibrate.scale import check_target
from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.dispatch import rough_epsilon
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.precision import in_64_bits
from accountants.tune.family import expression
from accountants.tune.least_variance import least_variance
from accountants.tune.objectives import Objective, ObjectiveLike, as_objective, evaluate, worst_variance
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.generalised_normal import GeneralisedNormal
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.logistic import Logistic
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.distributions.student import Student
from dpkernels.mechanisms.additive import Additive
from dpkernels.solve import newton

__all__ = ["NOISE_FAMILIES", "BestNoise", "NoiseCost", "NoiseFamily", "noise"]

_TOLERANCE = 1e-3  # Of the last step of t, whose error is about its square.
_MAX_SECANTS = 6  # The most steps of t before it is bracketed.
_MIN_SLOPE = 0.05  # The least -slope of the excess in t that a step uses;
_MAX_SLOPE = 1e7  # and the largest: nearly pure noise has a steep slope.
_SEARCH_RADIUS = 40.0  # How far from its start t is searched.
_MAX_STEP = 1.0  # The longest step of t.
_MAX_SHAPE_STEPS = 8  # The most steps of a shape.
_MIN_GAIN = 2e-6  # The relative gain at which a search of a shape ends.
_MAX_SHAPE_STEP = 4.0  # The longest step of a shape, over its reach.
_SMALLEST = 1e-300  # The least delta, and the least eps over that of the budget, whose logs are used.
_MAX_EPSILON_RATIO = 1e2  # The most of eps over that of the budget: more says no more about t.
_ABOVE_INFINITE = 1.001  # Delta over the probability of an infinite loss from which on eps is resolved.
_MAX_STEP_OF_ONE = 0.1  # The longest step of t of one release, whose delta falls to 0 within little of t.


@dataclass(frozen=True)
class NoiseFamily:
    """Noise of one width, and of one number of shape or none, at sensitivity 1.

    Attributes:
        name: the name in tables.
        member: the distribution, from its width, with which delta falls, and the shape.
        symbol: the name of the shape; empty for noise of one shape.
        span: the least and the largest shape.
        starts: the search starts at the best of these shapes; or a function to them from count/delta.
        reach: the length of the first step of a search.
    """

    name: str
    member: Callable[..., Distribution]
    symbol: str = ""
    span: tuple[float, float] = (0.0, 0.0)
    starts: tuple[float, ...] | Callable[[float], tuple[float, ...]] = (0.0,)
    reach: float = 0.1

    def noise(self, t: float, shape: float) -> Distribution:
        """Return the distribution whose width is e^t."""
        return self.member(math.exp(t), *([shape] if self.symbol else []))


def _staircase(width: float, gamma: float) -> Staircase:
    return Staircase(math.sqrt(2) / width, 1.0, gamma)


def _truncated(kernel: Callable[[float], Distribution]) -> Callable[[float, float], Distribution]:
    def member(width: float, log_bound: float) -> Distribution:
        bound = width * math.exp(log_bound)
        return Reweighted(kernel(width), -bound, bound, 0.0)

    return member


def _log_bounds(kernel: Callable[[float], Distribution]) -> Callable[[float], tuple[float, ...]]:
    """Return the log of the bound beyond which there is a small part of delta."""
    return lambda odds: (math.log(float(kernel(1.0).isf(np.float64(0.1 / odds)))),)


def _student(width: float, log_degrees: float) -> Student:
    return Student(width, math.exp(log_degrees))


NOISE_FAMILIES = (
    NoiseFamily("Laplace", Laplace),
    NoiseFamily("Gaussian", Gaussian),
    NoiseFamily("logistic", Logistic),
    NoiseFamily("staircase", _staircase, "gamma", (0.0, 1.0), (0.0, 0.25, 0.45), 0.1),
    NoiseFamily("generalised normal", GeneralisedNormal, "exponent", (1.0, 8.0), (1.5, 1.02), 0.2),
    NoiseFamily("Student", _student, "log degrees", (math.log(3.0), math.log(1000.0)), (2.5,), 0.5),
    NoiseFamily("truncated Laplace", _truncated(Laplace), "log bound/scale", (-1.0, 4.0), _log_bounds(Laplace), 0.1),
    NoiseFamily("truncated Gaussian", _truncated(Gaussian), "log bound/sigma", (-1.0, 2.2), _log_bounds(Gaussian), 0.1),
)


@dataclass(frozen=True)
class NoiseCost:
    """What the best member of one family costs.

    Attributes:
        family: the family's name.
        noise: the distribution, on the budget by an estimate; None if no member was found.
        value: the objective in its natural direction.
        parameters: the shape, by name.
        width: the width, at sensitivity 1.
        error: why no member was found.
    """

    family: str
    noise: Distribution | None
    value: float
    parameters: dict[str, float] = field(default_factory=dict)
    width: float = math.nan
    error: str = ""


@dataclass(frozen=True)
class BestNoise:
    """The best noise of several families, certified, and what the others cost.

    Attributes:
        mechanism: the noise as a mechanism; its claim is that of one release.
        family: its family's name.
        value: its objective, in its natural direction.
        parameters: the shape, by name.
        epsilon: of all releases together.
        delta: the upper end of the bracket of the composed delta at epsilon.
        count: the number of releases.
        objective: the objective's name.
        costs: of every family, the best first.
        target_delta: the delta of the budget, which the bracket's upper end meets.
        rate: that of the samples.
    """

    mechanism: Additive
    family: str
    value: float
    parameters: dict[str, float]
    epsilon: float
    delta: float
    count: int
    objective: str
    costs: tuple[NoiseCost, ...]
    target_delta: float = math.nan
    rate: float | None = None

    @property
    def lower_bound(self) -> float:
        """Return a lower bound on the variance of any noise for the budget; see ``least_variance``.

        It is NaN for other objectives than the variance and for samples, of which no bound is known.
        """
        if self.objective != worst_variance.name or self.rate is not None or math.isnan(self.target_delta):
            return math.nan
        sensitivity = float(self.mechanism.sensitivity)
        return least_variance(epsilon=self.epsilon, delta=self.target_delta, count=self.count, sensitivity=sensitivity)

    @property
    def excess(self) -> float:
        """Return how much more variance this noise has than the lower bound, relative to that bound."""
        return self.value / bound - 1 if (bound := self.lower_bound) else math.inf

    @property
    def python(self) -> str:
        """Return the Python expression that makes the mechanism, with ``import dpkernels as dpk``."""
        return expression(self.mechanism)

    def __str__(self) -> str:
        lines = [f"{self.objective} of the best noise of each family, for {self.count} releases"]
        for cost in self.costs:
            shape = ", ".join(f"{name} {value:.4g}" for name, value in cost.parameters.items())
            ratio = f"{cost.value:12.6g} {cost.value / self.value:8.4f}" if cost.noise else f"{cost.error:>21}"
            lines.append(f"{cost.family:20} {ratio}  {shape}".rstrip())
        return "\n".join(lines)


@in_64_bits
def noise(
    *,
    epsilon: float,
    delta: float,
    count: int = 1,
    sensitivity: float = 1.0,
    rate: float | None = None,
    adjacency: str = "add_remove",
    objective: ObjectiveLike = worst_variance,
    families: Sequence[NoiseFamily] | None = None,
) -> BestNoise:
    """Return the best additive noise for ``count`` releases that are (epsilon, delta)-DP together.

    The best member of every family is searched. That of the best family is certified: the upper end of the bracket of
    all releases is at most delta. Other values are estimates, precise to about 1e-5.

    Args:
        epsilon: eps of all releases, positive.
        delta: delta of all releases, in (0, 1).
        count: the number of releases, an integer in 1..2^40.
        sensitivity: D, in data units, in [1e-100, 1e100].
        rate: the rate of the Poisson sample of each release, in (0, 1].
        adjacency: the neighbours of samples; see ``Guarantee.subsample``.
        objective: of this package, or a callable from a mechanism to a number that is made small.
        families: the families that are searched; by default all of ``NOISE_FAMILIES``.

    Raises:
        ValueError: an argument is out of range, or no family has a member that meets the budget.
        TypeError: count is not an integer.

    Example:
        >>> found = noise(epsilon=1.0, delta=1e-6, count=10)
        >>> found.family, round(found.value)
        ('generalised normal', 159)
    """
    check_target(epsilon, delta, sensitivity)
    checks.positive("epsilon", epsilon)
    checks.integer_in("count", count, 1, 1 << 40)
    families = NOISE_FAMILIES if families is None else families
    if not families:
        raise ValueError("families: is empty; at least one is needed")
    target = _Target(float(epsilon), float(delta), count, float(sensitivity), rate, adjacency, as_objective(objective))
    costs = sorted((target.search_family(family) for family in families), key=lambda cost: target.sign * cost.value)
    if costs[0].noise is None:
        raise ValueError(f"epsilon, delta: {epsilon:g}, {delta:g}; no family meets them: {costs[0].error}")
    return target.certify(costs, next(family for family in families if family.name == costs[0].family))


@dataclass(frozen=True)
class _Target:
    """A budget of several releases, and an objective."""

    epsilon: float
    delta: float
    count: int
    sensitivity: float
    rate: float | None
    adjacency: str
    objective: Objective

    @property
    def sign(self) -> int:
        return self.objective.sign

    def releases(self, noise: Distribution) -> Guarantee:
        release = guarantee(Additive(noise, 1.0))
        return (release if self.rate is None else release.subsample(self.rate, self.adjacency)).repeat(self.count)

    def mechanism(self, noise: Distribution) -> Additive:
        return Additive(noise.rescale(self.sensitivity), self.sensitivity)

    @cached_property
    def deviation(self) -> float:
        """Return about the standard deviation that is needed; pure noise needs less where there are few releases."""
        ratio = float(gaussian_ratio(self.epsilon, self.delta, self.count, self.rate))
        return min(1 / ratio, math.sqrt(2) * self.count / self.epsilon)

    def value(self, noise: Distribution) -> float:
        return float(evaluate(self.objective, self.mechanism(noise)))

    def excess(self, noise: Distribution) -> float:
        """Return the log of the composed eps at delta over that of the budget, which falls with t about like -t.

        Truncated noise has infinite losses, and eps jumps where they have the probability delta. There the excess is
        the log of their probability over delta, and eps is that at the larger one of both. Eps of one release would
        take many profiles: there the excess is log mu of delta, less that of the budget.
        """
        releases, infinite = self.releases(noise), -math.inf
        if self.count == 1:
            delta = max(float(releases.estimate_delta(self.epsilon)), _SMALLEST)
            return float(log_mu(np.float64(delta), self.epsilon) - log_mu(np.float64(self.delta), self.epsilon))
        delta = self.delta
        if np.isfinite(noise.support[1]):
            with np.errstate(all="ignore"):
                least = _ABOVE_INFINITE * releases.infinity_mass
            if least > 0:
                infinite, delta = math.log(least / delta), min(max(least, delta), 0.5)
        eps = rough_epsilon(releases, delta)
        return max(math.log(float(np.clip(eps / self.epsilon, _SMALLEST, _MAX_EPSILON_RATIO))), infinite)

    def search_family(self, family: NoiseFamily) -> NoiseCost:
        try:
            best = _Search(self, family).descend()
        except ValueError as error:
            return NoiseCost(family.name, None, self.sign * math.inf, error=str(error))
        noise = family.noise(best.t, best.shape)
        parameters = {family.symbol: best.shape} if family.symbol else {}
        return NoiseCost(family.name, noise, self.value(noise), parameters, math.exp(best.t))

    def certify(self, costs: Sequence[NoiseCost], family: NoiseFamily) -> BestNoise:
        """Return the best noise, with the least width that the bracket proves to suffice."""
        best = costs[0]

        def member(t: float) -> Distribution:
            return family.member(best.width * math.exp(t), *best.parameters.values())

        t = conservative_parameter(lambda t: self.releases(member(t)), self.epsilon, self.delta, starts_at_root=True)
        noise = member(t)
        upper = RigorousBounds(self.releases(noise)).upper_delta(self.epsilon)
        mechanism = with_release_claim(self.mechanism(noise), self.delta / self.count)
        facts = self.value(noise), best.parameters, self.epsilon, upper, self.count, self.objective.name
        return BestNoise(mechanism, best.family, *facts, tuple(costs), self.delta, self.rate)


class _Point(NamedTuple):
    """A shape, the t of the budget, and the signed log of the objective there."""

    shape: float
    t: float
    value: float


class _Search:
    """A search for the best shape of one family."""

    def __init__(self, target: _Target, family: NoiseFamily) -> None:
        self.target, self.family = target, family
        self.slope = -1.0  # About the derivative of the excess in t.
        self.points: list[_Point] = []  # By increasing shape.

    def excess(self, t: float, shape: float) -> float:
        return self.target.excess(self.family.noise(t, shape))

    def add(self, shape: float) -> None:
        """Add the point of a shape, from about its standard deviation."""
        t = self.solved(shape, self._log_deviation(shape) - self._unit(shape))
        value = self.target.sign * math.log(self.target.value(self.family.noise(t, shape)))
        self.points = sorted([*self.points, _Point(shape, t, value)])

    def solved(self, shape: float, t: float) -> float:
        """Return the t of the budget, from about it: by secants, or from a bracket where these fail."""
        if self.target.count == 1:
            return self._bracketed(shape, t, _MAX_STEP_OF_ONE)
        excess = self.excess(t, shape)
        for _ in range(_MAX_SECANTS):
            step = -excess / self.slope
            if abs(step) <= _TOLERANCE and abs(excess) <= _TOLERANCE:  # The error of the next step is about its square.
                return t + step
            if not abs(step) <= _MAX_STEP:
                break
            t, before = t + step, excess
            excess = self.excess(t, shape)
            slope = (excess - before) / step
            self.slope = slope if -_MAX_SLOPE < slope < -_MIN_SLOPE else -1.0
        return self._bracketed(shape, t, _MAX_STEP)

    def _bracketed(self, shape: float, t: float, longest: float) -> float:
        ends = t - _SEARCH_RADIUS, t + _SEARCH_RADIUS
        t = newton(lambda t, _: self.excess(t, shape), (), t, ends, tolerance=_TOLERANCE, longest=longest)
        if math.isnan(t):
            raise ValueError("no width meets the budget")
        return t

    def descend(self) -> _Point:
        """Return the best point, by parabolas through the best one and its neighbours."""
        family, target = self.family, self.target
        starts = family.starts(target.count / target.delta) if callable(family.starts) else family.starts
        for shape in starts:
            self.add(shape)
        for _ in range(_MAX_SHAPE_STEPS if family.symbol else 0):
            if (aim := self._aim()) is None:
                break
            try:
                self.add(aim)
            except ValueError:  # Not every shape has a width on the budget.
                break
        return min(self.points, key=lambda point: point.value)

    def _nearest(self, shape: float) -> list[_Point]:
        """Return the three points of the nearest shapes, or all if there are fewer."""
        return sorted(self.points, key=lambda point: abs(point.shape - shape))[:3]

    def _unit(self, shape: float) -> float:
        """Return the log of the standard deviation at t = 0."""
        return math.log(self.family.noise(0.0, shape).variance) / 2

    def _log_deviation(self, shape: float) -> float:
        """Return about the log of the standard deviation on the budget, by interpolation."""
        if not self.points:
            return math.log(self.target.deviation)
        nearest = self._nearest(shape)
        shapes, deviations = np.transpose([(point.shape, point.t + self._unit(point.shape)) for point in nearest])
        return float(np.polynomial.polynomial.polyfit(shapes - shape, deviations, len(nearest) - 1)[0])

    def _aim(self) -> float | None:
        """Return the next shape, or None where it would gain too little."""
        points, (low, high), reach = self.points, self.family.span, self.family.reach
        if len(points) == 1:
            return points[0].shape + (reach if points[0].shape + reach <= high else -reach)
        index = min(range(len(points)), key=lambda i: points[i].value)
        best = points[index]
        before, after = points[index - 1] if index else None, points[index + 1] if index + 1 < len(points) else None
        shapes, _, values = np.transpose(self._nearest(best.shape))
        coefficients = np.polynomial.polynomial.polyfit(shapes - best.shape, values - best.value, len(shapes) - 1)
        slope, bend = coefficients[1], coefficients[2] if len(shapes) > 2 else 0.0
        step = -math.copysign(reach if len(shapes) == 2 else _MAX_SHAPE_STEP * reach, slope)
        gain = abs(slope) * reach
        if bend > 0 and slope**2 <= (2 * bend * _MAX_SHAPE_STEP * reach) ** 2:
            gain, step = slope**2 / (4 * bend), -slope / (2 * bend)
        aim = min(max(best.shape + step, low), high)
        if before and after and not before.shape < aim < after.shape:
            aim = (best.shape + max(before.shape, after.shape, key=lambda shape: abs(shape - best.shape))) / 2
        return None if gain <= _MIN_GAIN or aim == best.shape else float(aim)
