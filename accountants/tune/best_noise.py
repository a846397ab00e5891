"""The best additive noise for several releases, among all families that the package knows.

Every family has one width, which the budget of all releases determines, and at most one number of shape. With t the log
of the width, x the shape and m(t, x) the log of the composed eps at delta, the objective V on the budget has the
derivative

    dV/dx = V_x - V_t m_x / m_t,

by which the shape descends. Partial derivatives are differences of estimates by FFT, which are precise to 1e-9. The
best member of the best family then gets the least width that the bracket's upper end allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from accountants.calibrate.composed import conservative_parameter, gaussian_ratio, log_mu, with_own_claim
from accountants.calibrate.scale import check_target
from accountants.composition.rigorous import RigorousBounds
from accountants.guarantee import Guarantee
from accountants.mechanism_guarantee import guarantee
from accountants.precision import in_64_bits
from accountants.tune.family import expression
from accountants.tune.least_variance import least_variance
from accountants.tune.objectives import Objective, as_objective, evaluate, worst_variance
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

_STEP = 1e-4  # Of differences, in t and in the shape.
_TOLERANCE = 1e-3  # Of the last step of t, whose error is about its square.
_SECANTS = 6  # The most steps of t before it is bracketed.
_FLATTEST, _STEEPEST = 0.05, 1e7  # Of the slope of the excess in t. Nearly pure noise has a steep one.
_FARTHEST, _LONGEST = 40.0, 1.0  # Of t from its start, and of its steps.
_TURNS, _GAIN = 8, 1e-5  # The most steps of a shape, and the relative gain at which a descent ends.
_LEAST, _MOST = 1e-300, 1e2  # The least delta, and the least and the most of eps over that of the budget.


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


def _truncated(kernel: Any) -> Callable[[float, float], Distribution]:
    def member(width: float, log_bound: float) -> Distribution:
        bound = width * math.exp(log_bound)
        return Reweighted(kernel(width), -bound, bound, 0.0)

    return member


def _beyond(kernel: Any) -> Callable[[float], tuple[float, ...]]:
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
    NoiseFamily("Student", _student, "log degrees", (math.log(3.0), math.log(1000.0)), (3.0,), 0.5),
    NoiseFamily("truncated Laplace", _truncated(Laplace), "log bound/scale", (-1.0, 4.0), _beyond(Laplace), 0.1),
    NoiseFamily("truncated Gaussian", _truncated(Gaussian), "log bound/sigma", (-1.0, 2.2), _beyond(Gaussian), 0.1),
)


@dataclass(frozen=True)
class NoiseCost:
    """What the best member of one family costs.

    Attributes:
        family: the family's name.
        noise: the distribution, of the precise composition; None if no member was found.
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
    objective: Any = worst_variance,
    families: Sequence[NoiseFamily] | None = None,
) -> BestNoise:
    """Return the best additive noise for ``count`` releases that are (epsilon, delta)-DP together.

    The best member of every family is searched by gradient. That of the best family is certified: the upper end of the
    bracket of all releases is at most delta. Other values are those of the precise composition.

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
    costs = sorted((target.best_of(family) for family in families), key=lambda cost: target.sign * cost.value)
    if costs[0].noise is None:
        raise ValueError(f"epsilon, delta: {epsilon:g}, {delta:g}; no family meets them: {costs[0].error}")
    return target.certified(costs, next(family for family in families if family.name == costs[0].family))


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

        That of one release takes many profiles: there it is log mu of delta, less that of the budget.
        """
        releases = self.releases(noise)
        if self.count > 1:
            return math.log(float(np.clip(releases.estimate_epsilon(self.delta) / self.epsilon, _LEAST, _MOST)))
        delta = max(float(releases.estimate_delta(self.epsilon)), _LEAST)
        return float(log_mu(np.float64(delta), self.epsilon) - log_mu(np.float64(self.delta), self.epsilon))

    def best_of(self, family: NoiseFamily) -> NoiseCost:
        try:
            best = _Search(self, family).descend()
        except ValueError as error:
            return NoiseCost(family.name, None, self.sign * math.inf, error=str(error))
        noise = family.noise(best.root, best.shape)
        parameters = {family.symbol: best.shape} if family.symbol else {}
        return NoiseCost(family.name, noise, self.value(noise), parameters, math.exp(best.root))

    def certified(self, costs: Sequence[NoiseCost], family: NoiseFamily) -> BestNoise:
        """Return the best noise, with the least width that the bracket proves to suffice."""
        best = costs[0]

        def member(t: float) -> Distribution:
            return family.member(best.width * math.exp(t), *best.parameters.values())

        t = conservative_parameter(lambda t: self.releases(member(t)), self.epsilon, self.delta, is_known=True)
        noise = member(t)
        upper = RigorousBounds(self.releases(noise)).upper_delta(self.epsilon)
        mechanism = with_own_claim(self.mechanism(noise), self.delta / self.count)
        facts = self.value(noise), best.parameters, self.epsilon, upper, self.count, self.objective.name
        return BestNoise(mechanism, best.family, *facts, tuple(costs), self.delta, self.rate)


class _Point(NamedTuple):
    """A shape, a t with a small excess, the t on the budget, and the signed log of the objective there."""

    shape: float
    t: float
    excess: float
    root: float
    value: float


class _Search:
    """A descent of the shape of one family."""

    def __init__(self, target: _Target, family: NoiseFamily) -> None:
        self.target, self.family = target, family
        self.slope = -1.0  # About the derivative of the excess in t.

    def excess(self, t: float, shape: float) -> float:
        return self.target.excess(self.family.noise(t, shape))

    def log_value(self, t: float, shape: float) -> float:
        return self.target.sign * math.log(self.target.value(self.family.noise(t, shape)))

    def solved(self, shape: float, t: float) -> _Point:
        """Return the point of a shape, from about its t: by secants, or from a bracket where these fail."""
        excess = self.excess(t, shape)
        for _ in range(_SECANTS):
            step = -excess / self.slope
            if abs(step) <= _TOLERANCE and abs(excess) <= _TOLERANCE:  # The error of the next step is about its square.
                return _Point(shape, t, excess, t + step, self.log_value(t + step, shape))
            if not abs(step) <= _LONGEST:
                break
            t, before = t + step, excess
            excess = self.excess(t, shape)
            slope = (excess - before) / step
            self.slope = slope if -_STEEPEST < slope < -_FLATTEST else -1.0
        ends = t - _FARTHEST, t + _FARTHEST
        t = newton(lambda t, _: self.excess(t, shape), (), t, ends, tolerance=_TOLERANCE, longest=_LONGEST)
        if math.isnan(t):
            raise ValueError("no width meets the budget")
        return _Point(shape, t, self.excess(t, shape), t, self.log_value(t, shape))

    def derivative(self, point: _Point) -> tuple[float, float]:
        """Return the derivative of the value in the shape, and that of t, on the budget."""
        shape, t = point.shape, point.t
        h = _STEP if shape + _STEP < self.family.span[1] else -_STEP
        value = self.log_value(t, shape)
        self.slope = (self.excess(t + _STEP, shape) - point.excess) / _STEP
        of_t = (self.log_value(t + _STEP, shape) - value) / _STEP
        along = -(self.excess(t, shape + h) - point.excess) / h / self.slope
        return (self.log_value(t, shape + h) - value) / h + of_t * along, along

    def descend(self) -> _Point:
        """Return the best point, by secants of the derivative within a bracket of its root."""
        family, target = self.family, self.target
        starts = family.starts(target.count / target.delta) if callable(family.starts) else family.starts
        t = math.log(target.deviation) - math.log(family.noise(0.0, starts[0]).variance) / 2
        points = list[_Point]()
        for shape in starts:
            points.append(self.solved(shape, points[-1].t if points else t))
        best = point = min(points, key=lambda point: point.value)
        (low, high), step, before = family.span, family.reach, None
        for _ in range(_TURNS if family.symbol else 0):
            slope, along = self.derivative(point)
            low, high = (low, point.shape) if slope > 0 else (point.shape, high)
            if before and (bend := (slope - before[1]) / (point.shape - before[0])) > 0:
                step = min(abs(slope) / bend, 4 * family.reach)
            aim = point.shape - math.copysign(step, slope)
            if not low < aim < high:
                # An end of the bracket that is one of the span may be best; another one is not.
                end = low if aim <= low else high
                aim = end if end in family.span else (low + high) / 2
            if abs(slope * (aim - point.shape)) <= _GAIN:
                break
            before = point.shape, slope
            point = self.solved(aim, point.t + along * (aim - point.shape))
            best = min(best, point, key=lambda point: point.value)
        return best
