"""``estimate``: everything that one column of reports says of the values behind it."""

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
# Intervals at which a quantile must be told from the ends of the inputs' interval.
_CONFIDENCE = 0.95
# Quantiles of resampled ones: where these are likely to be.
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

    Nothing is computed before it is asked for::

        e = dpk.estimate(reports, mechanism)       # or a sidecar: dpk.estimate(reports, "private.csv.json")
        e.mean.value, e.mean.interval(0.95), e.mean.bernstein(0.95)
        e.variance.value                           # of the values, without the noise
        e.quantile([0.5, 0.9]).interval(0.95)      # one interval each
        e.cdf(x).band(0.95)                        # intervals that hold together
        e.histogram(20).counts.value, e.count_between(18, 65).interval(0.95)
        e.gap                                      # certificate of the likelihood's optimality
        e.plot(label="age in years")               # Matplotlib axes, shown in a notebook

    Moments suppose nothing of the values. Distributions, and intervals of cdf, quantiles and histograms, are of
    densities that are smooth over about a 60th of the inputs' interval: near a value that a large share of inputs have
    in common (many zeros, say) the cdf may be off by up to that share, and its intervals do not hold.

    Args:
        reports: what ``perturb`` returned, of any shape, without rows left out; as float64 or float32, also after they
            were written as text; or a ``Counts`` of them.
        mechanism: what made them: a mechanism, an exact form, a certificate, or the sidecar of a release, as a path or
            as what its JSON holds. None with ``Counts``, which know.
        column: which column of a sidecar; needed where it has several.
        bounds: smallest and largest value that inputs can have: of additive noise, and only there.
        decimals: to how many decimals the reports were rounded; a sidecar says so itself. By as much as that can have
            moved mean and variance their intervals are wider.
        bins: equal bins on which the distribution is estimated, 24 to 1,024; it is uniform within a bin.
        smoothing: "splines", a density of as many quadratic splines as the reports can tell; "ems", expectation
            maximisation smoothed after each step (Li et al. 2020); "none", the bins' shares of greatest likelihood
            themselves. Intervals are those of splines.
        resamples: how many times reports are drawn again for the intervals of distributions, 40 to 100,000.
        seed: of this resampling.

    Returns:
        An ``Estimate``, in data units.

    Raises:
        ValueError: there are no reports, one that the mechanism cannot have made, or an argument that is out of range
            or does not belong there.
        CertificateError: a sidecar whose tables do not have what it claims.
        TypeError: not numbers, or nothing that reports of one column are made with.
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
    """What reports say of the values behind them; made by ``estimate``.

    ``mean``, ``variance`` and ``standard_deviation`` are ``Moment``s: ``value``, ``error``, ``interval(confidence)``
    and ``bernstein(confidence)``. ``quantile``, ``cdf`` and ``count_between`` give ``Resampled``: ``value``, ``error``,
    ``interval(confidence)`` of each number by itself and ``band(confidence)`` of all together; of an array of
    arguments these are arrays. ``histogram`` gives ``edges``, ``shares`` and ``counts``, both ``Resampled``.

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

        It is the mean of the reports, cut to that interval. That is unbiased, but for the cut and for rounding
        (``Moment.missed``).

        Raises:
            TooFewReportsError: the 95 % interval would be as wide as that of the inputs.
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
            ValueError: an x is not in the inputs' interval, or the reports tell the mean only.
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
            bins: how many equal bins, or their increasing edges within [lower, upper].

        Raises:
            ValueError: not at least one bin or not edges, or reports that tell the mean only.
        """
        edges = self._edges(bins)
        shares = self._resampled(lambda shares: np.diff(shares.cdf(edges), axis=-1), 0.0, 1.0)
        counts = self._resampled(lambda shares: self.count * np.diff(shares.cdf(edges), axis=-1), 0.0, self.count)
        return Histogram(edges, shares, counts)

    def count_between(self, a: float, b: float) -> Resampled:
        """Return the estimated number of inputs in [a, b].

        Raises:
            ValueError: not lower <= a < b <= upper, or reports that tell the mean only.
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
            label: what the values are, with their unit: "age in years".
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
        """Return the distribution, if the reports tell it.

        Raises:
            ValueError: they do not.
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
        """Refuse quantiles that cannot be told from the ends: whose share is not a few errors away from 0 and 1."""
        room = np.minimum(p, 1 - p) / 1.96
        short = error > room
        if short.any():
            at = np.unravel_index(short.argmax(), short.shape)
            needed = self.count * float(error[at] / room[at]) ** 2
            raise TooFewReportsError(f"p: {self.count} reports are too few for the quantile {shortest(p[at])}", needed)
