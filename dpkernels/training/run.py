"""The privacy of a training run with ``private_aggregate``.

    run = noise_multiplier_for(TrainingRun(1.0, 0.01, 1000, slack=overflow), epsilon=2.0, delta=1e-5, dimensions=2410)
    run.noise_multiplier, run.epsilon(1e-5), run.bracket(delta=1e-5)

Every step is Gaussian noise on a random batch of the data, up to a total variation distance s: the distance of the
noise table from a Gaussian, plus the probability that a sample has more rows than its batch can hold. T steps add at
most T s (1 + e^eps) to delta (docs/proofs/vectors.md), which all results include. For this, s must bound the distance
for both of two neighbouring data sets, as ``PrivateNoise.total_variation`` and ``poisson_overflow`` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import accountants
import dpkernels as dpk
from dpkernels import checks
from dpkernels.numerics import Real
from dpkernels.training.noise import MULTIPLIERS, PrivateNoise

if TYPE_CHECKING:
    import dp_accounting

# For every scheme, what makes the guarantee of a run of one step's noise, its epochs and the steps of an epoch.
_SCHEMES: dict[str, Callable[[accountants.Guarantee, int, int], accountants.Guarantee]] = {
    "random_allocation": lambda step, epochs, steps: step.random_allocation(steps).repeat(epochs),
    "balls_in_bins": lambda step, epochs, steps: step.balls_in_bins(steps, epochs),
}
_POISSON = "poisson"
# How far 1/sampling_rate may be from the number of steps of an epoch, relatively: by rounding errors.
_RATE_RTOL = 1e-12
# How far the answer is above a solution of the equation for epsilon.
_EPSILON_MARGIN = 1e-9
# The number of iterations towards that solution. Where the slack takes nearly all of delta many are needed; after the
# last one the answer is inf, which is an upper bound, too.
_MAX_ITERATIONS = 24
# The exponential of every smaller number is finite in floats.
_MAX_EPSILON = 709.0
# Relative precision of a calibrated noise multiplier, which is rounded upwards.
_MULTIPLIER_RTOL = 1e-6
# The factor by which the slack is larger than the distance of the table that was certified: the calibrated noise
# multiplier is a slightly different one, and so is its table.
SLACK_FACTOR = 1 + 1e-3


@dataclass(frozen=True)
class TrainingRun:
    """A number of steps of DP-SGD, each on a batch of its own.

    Attributes:
        noise_multiplier: the standard deviation of the noise over the clipping norm.
        sampling_rate: the probability that a step uses an example.
        steps: the number of steps.
        neighbours: "add_remove" for data sets with one example more or less, "replace" for another example.
        slack: the total variation distance of one step to Gaussian noise on a batch of the scheme, for the data set and
            for its neighbours.
        scheme: "poisson" for a Poisson sample in every step; "random_allocation" if every epoch of 1/sampling_rate
            steps uses an example in one of them, at random; "balls_in_bins" if it is the same one in all epochs. The
            last two need "add_remove", and whole epochs. Their ``random_assignment`` is a distance of at most 2^-33 a
            step from a uniform one, which is part of the slack.

    Raises:
        ValueError: an attribute is out of range.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    neighbours: str = "add_remove"
    slack: float = 0.0
    scheme: str = _POISSON

    def __post_init__(self) -> None:
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.within("sampling_rate", self.sampling_rate, 2.0**-1000, 1.0)
        checks.integer_in("steps", self.steps, 1, 1 << 40)
        checks.one_of("neighbours", self.neighbours, ("add_remove", "replace"))
        checks.within("slack", self.slack, 0.0, 1.0)
        checks.one_of("scheme", self.scheme, (_POISSON, *_SCHEMES))
        if self.scheme != _POISSON:
            self._check_epochs()

    def _check_epochs(self) -> None:
        if self.neighbours != "add_remove":
            raise ValueError(
                f"neighbours: {self.neighbours!r}; the scheme {self.scheme!r} is accounted for 'add_remove'"
            )
        if abs(self.sampling_rate * self._steps_an_epoch - 1) > _RATE_RTOL:
            raise ValueError(
                f"sampling_rate: {self.sampling_rate:g}; the scheme {self.scheme!r} needs 1 over the steps of an epoch"
            )
        if self.steps % self._steps_an_epoch:
            raise ValueError(f"steps: {self.steps} are no whole epochs of {self._steps_an_epoch} steps")

    @property
    def _steps_an_epoch(self) -> int:
        return round(1 / self.sampling_rate)

    @property
    def guarantee(self) -> accountants.Guarantee:
        """Return the guarantee of the run without the slack."""
        noise = accountants.guarantee(dpk.Additive(dpk.Gaussian(self.noise_multiplier)), 1.0)
        if self.scheme == _POISSON:
            return noise.subsample(self.sampling_rate, adjacency=self.neighbours).repeat(self.steps)
        return _SCHEMES[self.scheme](noise, self.steps // self._steps_an_epoch, self._steps_an_epoch)

    def delta(self, epsilon: float) -> float:
        """Return a delta such that the run is (epsilon, delta)-DP: the upper end of ``bracket``."""
        return self._with_slack(self.guarantee.delta, epsilon)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon such that the run is (epsilon, delta)-DP; infinite if the slack takes all of delta.

        It is an upper bound: the upper end of ``bracket``.
        """
        return self._solved(self.guarantee.epsilon, delta)

    def estimate_delta(self, epsilon: float) -> float:
        """Return an estimate of ``delta``, which may be below the truth and takes less time."""
        return self._with_slack(self.guarantee.estimate_delta, epsilon)

    def estimate_epsilon(self, delta: float) -> float:
        """Return an estimate of ``epsilon``, which may be below the truth and takes less time."""
        return self._solved(self.guarantee.estimate_epsilon, delta)

    def bracket(self, *, epsilon: float | None = None, delta: float | None = None) -> tuple[float, float]:
        """Return a rigorous interval for delta at epsilon, or for epsilon at delta; give one of the two.

        The lower end is that of Gaussian noise without any slack.
        """
        if delta is None:
            low, high = self.guarantee.bracket(epsilon=epsilon)
            return low, min(1.0, high + self._slack(float(epsilon or 0.0)))
        guarantee = self.guarantee
        low, high = guarantee.bracket(epsilon=epsilon, delta=delta)
        return low, self._solved(guarantee.epsilon, delta) if self.slack else high

    def to_dp_event(self, delta: float) -> dp_accounting.DpEvent:
        """Return the event of dp_accounting whose epsilon at this delta is at least that of the run with its slack.

        dp_accounting has no event for a distance. So the event is of less noise than the run's, by as much as the slack
        costs at this delta. At other deltas it may cost less than the run. It needs the package dp-accounting.
        """
        from dp_accounting import NeighboringRelation

        from accountants.interop.dp_accounting import to_dp_event

        candidate, epsilon, reduction = replace(self, slack=0.0), self.epsilon(delta), _MULTIPLIER_RTOL
        if epsilon == math.inf:
            raise ValueError(f"delta: {delta:g}; the slack of the run takes all of it")
        while self.slack and candidate.bracket(delta=delta)[0] < epsilon:
            candidate = replace(candidate, noise_multiplier=self.noise_multiplier * (1 - reduction))
            reduction *= 2
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        if self.neighbours == "replace":
            relation = NeighboringRelation.REPLACE_ONE
        return to_dp_event(candidate.guarantee, relation)

    def _with_slack(self, delta_at_epsilon: Callable[[float], float], epsilon: float) -> float:
        return min(1.0, float(delta_at_epsilon(epsilon)) + self._slack(epsilon))

    def slack_factor(self, epsilon: float) -> float:
        """Return T (1 + e^epsilon), by which the slack is multiplied in delta, above all rounding errors."""
        growth = math.exp(epsilon) if epsilon < _MAX_EPSILON else math.inf
        return self.steps * (1 + growth) * (1 + 2.0**-48)

    def _slack(self, epsilon: float) -> float:
        return self.slack * self.slack_factor(epsilon) if self.slack else 0.0

    def _solved(self, epsilon_at_delta: Callable[[float], float], delta: float) -> float:
        """Return an eps, found from below, with delta(eps) + slack(eps) <= delta, next to the smallest one."""
        eps = float(epsilon_at_delta(delta))
        if not self.slack:
            return eps
        for _ in range(_MAX_ITERATIONS):
            remaining_delta = delta - self._slack(eps + _EPSILON_MARGIN)
            next_eps = float(epsilon_at_delta(remaining_delta)) if remaining_delta > 0 else math.inf
            if next_eps <= eps + _EPSILON_MARGIN:
                return eps + _EPSILON_MARGIN
            eps = next_eps
        return math.inf


def noise_multiplier_for(
    run: TrainingRun, *, epsilon: float, delta: float, dimensions: int | None = None
) -> TrainingRun:
    """Return the run with the smallest noise multiplier whose bracket at delta ends at most at epsilon.

    The noise multiplier of the given run is where the search begins.

    Args:
        run: the run, with all slack except the distance of the table of noise.
        epsilon: epsilon of the run, positive.
        delta: delta of the run, in (0, 1).
        dimensions: the number of parameters that are trained with ``private_aggregate``. The slack of the returned run
            then includes the distance of its table of noise from a Gaussian, and its noise multiplier is at least 0.25.
            Leave it out only where the noise is a Gaussian of real numbers, which has no table.

    Raises:
        ValueError: the budget is out of range, or no noise multiplier up to 2^20 meets it; or ``private_aggregate`` has
            no such noise for so many parameters.
    """
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    calibrated = calibrated_run(run, epsilon, delta)
    if dimensions is None:
        return calibrated
    while True:
        calibrated = replace(calibrated, noise_multiplier=max(calibrated.noise_multiplier, MULTIPLIERS[0]))
        distance = PrivateNoise.certified(1.0, calibrated.noise_multiplier, dimensions).total_variation
        if run.slack + distance <= calibrated.slack:
            return calibrated
        calibrated = calibrated_run(replace(calibrated, slack=run.slack + distance * SLACK_FACTOR), epsilon, delta)


def calibrated_run(run: TrainingRun, epsilon: float, delta: float) -> TrainingRun:
    """Return ``noise_multiplier_for`` the run's own slack."""

    def private(multiplier: float) -> bool:
        candidate = replace(run, noise_multiplier=multiplier)
        # The estimate rules most candidates out in less time.
        return candidate.estimate_epsilon(delta) <= epsilon and candidate.epsilon(delta) <= epsilon

    low = high = run.noise_multiplier
    while not private(high):
        if high > 1 << 20:
            raise ValueError(f"epsilon: {epsilon}, delta: {delta}; no noise multiplier up to 2^20 meets the budget")
        low, high = high, 2 * high
    while low == high or private(low):
        if low < 2.0**-20:
            break
        low, high = low / 2, low
    while high > low * (1 + _MULTIPLIER_RTOL):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    return replace(run, noise_multiplier=high)


def best_training_run(
    *,
    epsilon: float,
    delta: float,
    sampling_rates: Iterable[float],
    steps: Iterable[int],
    neighbours: str = "add_remove",
    slack: float = 0.0,
    scheme: str = _POISSON,
    error: Callable[[TrainingRun], Real] | None = None,
    dimensions: int | None = None,
) -> TrainingRun:
    """Return the run of the smallest error that meets a budget, over all given sampling rates and numbers of steps.

    ``error`` is by default the standard deviation of the mean of all updates' noise, in units of the clipping norm over
    the number of examples: ``noise_multiplier / (sampling_rate * sqrt(steps))``. ``neighbours``, ``slack`` and
    ``scheme`` are those of ``TrainingRun``. With ``dimensions`` the noise multiplier of the best run is that of
    ``noise_multiplier_for``.

    Raises:
        ValueError: there are no sampling rates or no steps, or a budget is out of range.
    """
    measure = error or (lambda run: run.noise_multiplier / (run.sampling_rate * math.sqrt(run.steps)))
    runs = [
        noise_multiplier_for(TrainingRun(1.0, rate, count, neighbours, slack, scheme), epsilon=epsilon, delta=delta)
        for rate, count in product(sampling_rates, steps)
    ]
    if not runs:
        raise ValueError("sampling_rates, steps: each must have at least one value")
    best = min(runs, key=measure)
    if dimensions is None:
        return best
    return noise_multiplier_for(best, epsilon=epsilon, delta=delta, dimensions=dimensions)
