"""Mean and variance by unbiased corrections in closed form, with normal and Bernstein intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpkernels.estimation.channel import Channel
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.intervals import Interval, Moment, TooFewReportsError

# The half-width of a normal 95 % interval, in standard errors.
_REACH = 1.96


def mean_of(counts: Counts) -> Moment:
    """Return the mean of the inputs: that of the reports, cut to the inputs' interval.

    The mean of the reports is unbiased, but for rounding that has made some of these equal. Intervals are about it.

    Raises:
        TooFewReportsError: so few that the interval would be as wide as the inputs'.
    """
    channel = counts.channel
    average = _Average(counts, channel.values)
    _check_enough(counts.total, "the mean", fewest_for_mean(channel))
    return Moment(average.value, average.error, channel.bias_bound, channel.lower, channel.upper, average.bernstein)


def fewest_for_mean(channel: Channel) -> float:
    """Return the number of reports with which the 95 % interval of the mean is surely narrower than the inputs'."""
    return _fewest(channel.mean_variance, (channel.upper - channel.lower) / 2)


def _fewest(variance: float, half: float) -> float:
    """Return the n at which the half-width of a normal interval with this variance is ``half``."""
    return (_REACH / half) ** 2 * variance


def _check_enough(n: int, name: str, needed: float) -> None:
    if n < needed:
        raise TooFewReportsError(f"reports: {n} are too few for {name}", math.ceil(needed))


def variance_of(counts: Counts) -> Moment:
    """Return the variance of the inputs, in squared data units.

    With weights g such that E[g | x] = (x - middle)^2 the estimate is mean(g) - (mean(y) - middle)^2 + s_y^2/n. Its
    standard error is that of the mean of g - 2 (mean(y) - middle) y.

    Raises:
        TooFewReportsError: so few that the interval would be as wide as what is possible.
        ValueError: the mechanism's reports have no information beyond the mean.
    """
    channel = counts.channel
    (g, bias_bound), away = channel.squares, channel.values - channel.middle
    first, second = _Average(counts, away), _Average(counts, g)
    both = _Average(counts, g - 2 * first.value * away)
    value = second.value - first.value**2 + first.error**2
    bias_bound += channel.bias_bound * (2 * abs(first.value) + channel.bias_bound)
    largest = ((channel.upper - channel.lower) / 2) ** 2
    _check_enough(counts.total, "the variance", _fewest(channel.square_variance, largest / 2))

    def bernstein(confidence: float) -> Interval:
        (a, b), (low, high) = first.bernstein(confidence, 2), second.bernstein(confidence, 2)
        a, b = a - channel.bias_bound, b + channel.bias_bound
        nearest = 0.0 if a <= 0 <= b else min(a * a, b * b)
        return low - max(a * a, b * b), high - nearest

    return Moment(value, both.error, bias_bound, 0.0, largest, bernstein)


def deviation_of(counts: Counts) -> Moment:
    """Return the standard deviation of the inputs: the root of the variance, its error that over twice the root.

    Raises:
        ValueError: as of ``variance_of``.
    """
    variance = variance_of(counts)
    root = math.sqrt(variance.value)
    error, bias_bound = (part / (2 * root) if root else math.inf for part in (variance.error, variance.bias_bound))

    def ends(interval: Callable[[float], Interval]) -> Callable[[float], Interval]:
        return lambda confidence: tuple(math.sqrt(end) for end in interval(confidence))  # type: ignore[return-value]

    return Moment(root, error, bias_bound, 0.0, math.sqrt(variance.largest), ends(variance.bernstein))


class _Average:
    """The mean of a function of reports."""

    def __init__(self, counts: Counts, weights: np.ndarray) -> None:
        self.n = counts.total
        if self.n < 2:
            raise TooFewReportsError(f"reports: there are {self.n}", 2)
        p = counts.numbers / self.n
        self.value = float(p @ weights)
        self.spread = float(p @ (weights - self.value) ** 2) * self.n / (self.n - 1)
        self.error = math.sqrt(self.spread / self.n)
        self.weights = weights
        self.channel = counts.channel

    def bernstein(self, confidence: float, averages: int = 1) -> Interval:
        """Return the Bernstein bound t: P(|error| >= t) <= 2 exp(-n t^2/(2 V + 2 M t/3)).

        V and M are the largest variance and deviation over the inputs.

        Of several averages the intervals hold together, by a union bound.
        """
        odds = math.log(2 * averages / (1 - confidence))
        V, M = self.channel.worst(self.weights)
        third = M * odds / 3
        half = (third + math.sqrt(third**2 + 2 * self.n * V * odds)) / self.n
        return self.value - half, self.value + half
