"""The function ``estimate``: moments and the distribution of the values behind one column of reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.distribution import SMOOTHINGS, Distribution, Shares
from dpkernels.estimation.intervals import Histogram, Resampled, TooFewReportsError, shown
from dpkernels.estimation.likelihood import Fit
from dpkernels.estimation.moments import Moment, deviation_of, mean_of, variance_of
from dpkernels.estimation.plot import plot_estimate
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real

_BINS, _FEWEST_BINS, _MOST_BINS = 256, 24, 1024
_RESAMPLES, _MOST_RESAMPLES = 400, 100_000
# The confidence at which a quantile must be distinguishable from the ends of the inputs' interval.
# The range of bootstrap quantiles that is examined.
_LIKELY = np.linspace(0.1, 0.9, 9)


def estimate(
    reports: Any,
    mechanism: Mechanism | None = None,
    *,
    column: str | None = None,
    bounds: tuple[float, float] | None = None,
    decimals: int | None = None,
    bins: int = _BINS,
    smoothing: str = "splines",
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Estimate the distribution and the moments of the values behind reports, by post-processing, at no privacy cost.

    Each quantity is computed when it is first used::

        e = dpk.estimate(reports, mechanism)       # or a sidecar: dpk.estimate(reports, "private.csv.json")
        e.mean.value, e.mean.interval(0.95), e.mean.bernstein(0.95)
        e.variance.value                           # of the values, without the noise
        e.quantile([0.5, 0.9]).interval(0.95)      # one interval each
        e.cdf(x).band(0.95)                        # intervals that hold together
        e.histogram(20).counts.value, e.count_between(18, 65).interval(0.95)
        e.gap                                      # certificate of the likelihood's optimality
        e.plot(label="age in years")               # Matplotlib axes, shown in a notebook

    Estimates of moments make no assumption about the values. Estimates of the distribution, and the intervals of its
    cdf, quantiles and histograms, assume a density that is smooth on a scale of about 1/60 of the inputs' interval. If
    many inputs have the same value (many zeros, for example), the cdf near that value can be wrong by up to their
    share, and its intervals do not hold.

    Args:
        reports: the output of ``perturb``, of any shape and without rows left out, as float64 or float32, also after it
            was written as text; or a ``Counts`` of it.
        mechanism: the source of the reports: a mechanism, an exact sampler, a certificate, or the sidecar of a release
            (a path or its JSON content). None with ``Counts``, which contain it.
        column: the column of a sidecar; required if it has several.
        bounds: smallest and largest possible input; required for additive noise, and only there.
        decimals: the number of decimals to which the reports were rounded; a sidecar contains it. The intervals of mean
            and variance include the largest effect of this rounding.
        bins: the number of equal bins of the distribution, 24 to 1,024; it is uniform within a bin.
        smoothing: "splines", a mixture of quadratic splines whose number is chosen by penalised likelihood; "ems",
            expectation maximisation with a smoothing step (Li et al. 2020); "none", the maximum likelihood shares of
            the bins. Intervals are always computed with splines.
        resamples: the number of bootstrap samples for the intervals of distributions, 40 to 100,000.
        seed: the seed of the bootstrap.

    Returns:
        An ``Estimate``, in data units.

    Raises:
        ValueError: there are no reports, a report is impossible for the mechanism, or an argument is out of range or
            does not apply.
        CertificateError: the tables of a sidecar do not satisfy its claims.
        TypeError: the reports are not numbers, or the mechanism is not for one column of numbers.
    """
    if isinstance(reports, Counts):
        if mechanism is not None or column is not None or bounds is not None or decimals is not None:
            raise ValueError(
                "mechanism: Counts know what made them; give it to these, with column, bounds and decimals"
            )
        counts = Counts(reports.channel) + reports  # A copy: estimates are of what was counted by now.
    else:
        if mechanism is None:
            raise TypeError("mechanism: None; say what made the reports")
        counts = Counts(mechanism, column=column, bounds=bounds, decimals=decimals).add(reports)
    if not counts.total:
        raise ValueError("reports: is empty; there is nothing to estimate from")
    checks.whole("bins", bins, _FEWEST_BINS, _MOST_BINS)
    checks.whole("resamples", resamples, 40, _MOST_RESAMPLES)
    checks.whole("seed", seed, 0, 1 << 32)
    if smoothing not in SMOOTHINGS:
        raise ValueError(f"smoothing: {smoothing!r} is not one of {', '.join(SMOOTHINGS)}")
    return Estimate(counts, Distribution(counts, bins, smoothing, resamples, seed))


class Estimate:
    """Estimates of the values behind reports; ``estimate`` makes it.

    - ``mean``, ``variance`` and ``standard_deviation`` are ``Moment`` objects with ``value``, ``error``,
      ``interval(confidence)`` and ``bernstein(confidence)``.
    - ``quantile``, ``cdf`` and ``count_between`` return a ``Resampled`` with ``value``, ``error``,
      ``interval(confidence)`` for each number by itself, and ``band(confidence)`` for all numbers together. They are
      arrays if the argument is one.
    - ``histogram`` returns ``edges`` and, as ``Resampled``, ``shares`` and ``counts``.

    Attributes:
        reports: the ``Counts``.
        lower: smallest possible input.
        upper: largest possible input.
    """

    def __init__(self, reports: Counts, distribution: Distribution) -> None:
        self.reports, self._distribution = reports, distribution
        self.lower, self.upper = reports.channel.lower, reports.channel.upper

    @property
    def count(self) -> int:
        """Return the number of reports."""
        return self.reports.total

    @cached_property
    def mean(self) -> Moment:
        """Return the estimated mean of the inputs; it lies in [lower, upper] and in its own intervals.

        It is the mean of the reports, clipped to that interval. Without clipping it is unbiased up to the rounding of
        reports (``Moment.missed``).

        Raises:
            TooFewReportsError: the 95 % interval would be as wide as the inputs' interval.
        """
        return mean_of(self.reports)

    @cached_property
    def variance(self) -> Moment:
        """Return the unbiased estimate of the variance of the inputs: that of the reports less the noise's, at least 0.

        Raises:
            TooFewReportsError: the 95 % interval would be as wide as what is possible.
            ValueError: the reports have no information beyond the mean (two-point mechanisms).
        """
        return variance_of(self.reports)

    @cached_property
    def standard_deviation(self) -> Moment:
        """Return the root of ``variance``."""
        return deviation_of(self.reports)

    def cdf(self, x: Real) -> Resampled:
        """Return the share of inputs that are at most x, for continuous inputs.

        If the inputs are integers, evaluate it at half-integers.

        Args:
            x: numbers in [lower, upper], of any shape.

        Raises:
            ValueError: an x is not in the inputs' interval, or the reports have no information beyond the mean.
        """
        x = self._within("x", x, self.lower, self.upper)
        return self._resampled(lambda shares: shares.cdf(x), 0.0, 1.0)

    def quantile(self, p: Real) -> Resampled:
        """Return the smallest x that a share p of inputs does not exceed.

        Args:
            p: numbers in (0, 1), of any shape.

        Raises:
            TooFewReportsError: the reports cannot distinguish the quantile from an end of the interval, at 95 %.
            ValueError: a p that is not in (0, 1), or reports that have no information beyond the mean.
        """
        p = self._within("p", p, 0.0, 1.0, open_ends=True)
        found = self._resampled(lambda shares: shares.quantile(p), self.lower, self.upper)
        # Not only where it was found: of few reports that is at an end, where no cdf has an error.
        likely = np.quantile(found.draws, _LIKELY, axis=0)
        self._check_enough(p, np.max(self.cdf(likely).error, axis=0))
        return found

    def histogram(self, bins: Any = 20) -> Histogram:
        """Return the estimated shares and numbers of inputs in bins.

        Args:
            bins: the number of equal bins, or their increasing edges within [lower, upper].

        Raises:
            ValueError: the bins are not valid, or the reports have no information beyond the mean.
        """
        edges = self._edges(bins)
        shares = self._resampled(lambda shares: np.diff(shares.cdf(edges), axis=-1), 0.0, 1.0)
        counts = self._resampled(lambda shares: self.count * np.diff(shares.cdf(edges), axis=-1), 0.0, self.count)
        return Histogram(edges, shares, counts)

    def count_between(self, a: float, b: float) -> Resampled:
        """Return the estimated number of inputs in [a, b].

        Raises:
            ValueError: not lower <= a < b <= upper, or reports that have no information beyond the mean.
        """
        ends = self._within("a, b", [a, b], self.lower, self.upper)
        if not ends[0] < ends[1]:
            raise ValueError(f"a, b: {a} is not less than {b}")
        return self._resampled(lambda shares: self.count * np.diff(shares.cdf(ends), axis=-1)[..., 0], 0.0, self.count)

    @property
    def likelihood(self) -> Fit:
        """Return the maximum likelihood distribution over the bins, with its certificate."""
        return self._told.fit

    @property
    def gap(self) -> float:
        """Return a bound on how far the log-likelihood per report is below its maximum over the bins; at most 1e-6."""
        return self.likelihood.gap

    def plot(
        self,
        ax: Any = None,
        *,
        kind: str = "histogram",
        bins: Any = 25,
        confidence: float = 0.95,
        label: str = "value",
        title: str | None = None,
    ) -> Any:
        """Draw the estimated distribution with its intervals; needs matplotlib (extra ``plot``).

        Args:
            ax: Matplotlib axes to draw into; by default those of a new figure.
            kind: "histogram", with an interval for each bin, or "cdf", with a band that holds everywhere.
            bins: of the histogram, as of ``histogram``.
            confidence: in (0, 1).
            label: a description of the values with their unit, such as "age in years".
            title: of the axes; by default the number of reports, their epsilon and the confidence.

        Returns:
            The axes.

        Raises:
            ValueError: an unknown kind, confidence not in (0, 1), or as of ``histogram`` and ``cdf``.
        """
        return plot_estimate(self, ax, kind, bins, confidence, label, title)

    def __repr__(self) -> str:
        try:
            mean = self.mean
        except TooFewReportsError as error:
            return f"Estimate({error.reason.removeprefix('reports: ')})"
        low, high = mean.interval()
        interval = f"95 % interval from {shown(low)} to {shown(high)}"
        return f"Estimate({self.count:,} reports, mean {shown(mean.value)}, {interval})"

    @cached_property
    def _told(self) -> Distribution:
        """Return the distribution.

        Raises:
            ValueError: the reports have no information beyond the mean.
        """
        _ = self.reports.channel.squares
        return self._distribution

    def _resampled(self, functional: Callable[[Shares], np.ndarray], smallest: float, largest: float) -> Resampled:
        told = self._told
        found = functional(told.best)
        value = float(found) if np.ndim(found) == 0 else found
        return Resampled(value, functional(told.centre), functional(told.draws), smallest, largest)

    def _edges(self, bins: Any) -> np.ndarray:
        if np.ndim(bins) == 0:
            return np.linspace(self.lower, self.upper, checks.whole("bins", bins, 1, _MOST_BINS) + 1)
        edges = self._within("bins", bins, self.lower, self.upper)
        if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
            raise ValueError("bins: must be a number of bins, or two or more increasing edges")
        return edges

    def _within(self, name: str, values: Any, low: float, high: float, *, open_ends: bool = False) -> np.ndarray:
        array = checks.concrete(values)
        assert array is not None
        checks.within(name, array, low, high, open_ends=open_ends)
        return array

    def _check_enough(self, p: np.ndarray, error: np.ndarray) -> None:
        """Refuse quantiles whose estimated share is within a few standard errors of 0 or 1."""
        room = np.minimum(p, 1 - p) / 1.96
        short = error > room
        if short.any():
            at = np.unravel_index(short.argmax(), short.shape)
            needed = self.count * float(error[at] / room[at]) ** 2
            raise TooFewReportsError(f"p: {self.count} reports are too few for the quantile {shortest(p[at])}", needed)
