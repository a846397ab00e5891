"""The function ``estimate``: moments and the distribution of the values behind one column of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from dpkernels import checks
from dpkernels.decimals import format_number, shortest
from dpkernels.estimation.categorical.counts import CategoryCounts, sidecar_mechanism
from dpkernels.estimation.categorical.estimate import CategoryEstimate
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.interval_formulas import (
    bernstein_half_width,
    clopper_pearson,
    pooled_mean,
    pooled_quantile,
    pooled_variance,
)
from dpkernels.estimation.intervals import Functional, Histogram, Interval, Moment, TooFewReportsError
from dpkernels.estimation.likelihood import Ends, Fit, MixtureModel
from dpkernels.estimation.models import MODELS, InputDistribution, ReportModels, Weights, grid_points, report_models
from dpkernels.estimation.pictures import draw_intervals, share_scale
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.numerics import Real, float_if_scalar
from dpkernels.release.categories import is_categorical
from dpkernels.staging import write_png

T = TypeVar("T")

_BINS = 256  # the usual number of bins of a density
_MIN_BINS = 24  # bins of a density
_MAX_BINS = 1024  # bins of a histogram
_MAX_ATOMS = 64  # places of point masses that a user may give
_MAX_POINTS = 1024  # points of a grid of possible values
# The confidence at which a quantile must be distinguishable from the ends of the inputs' interval.
_CONFIDENCE = 0.95
_NAMED_ATOMS = 5  # places of point masses that a sentence names
_DRAWN_BINS = (25, 12, 6, 3)  # bins of a drawn histogram: the most whose intervals show where the values are
_RESOLVED_SHARE = 0.5  # the share of the values whose place they must show
_DRAWN_POINTS = 65  # points of a drawn cdf
_MAX_TICKS = 6  # ticks of an axis
MAX_PANELS = 12  # estimates in one picture


@overload
def estimate(reports: Any, mechanism: Categorical | CategorySampler) -> CategoryEstimate: ...


@overload
def estimate(reports: Any) -> CategoryEstimate: ...


@overload
def estimate(
    reports: Any,
    mechanism: Mechanism | None = None,
    *,
    column: str | None = None,
    bounds: tuple[float, float] | None = None,
    decimals: int | None = None,
    bins: int = _BINS,
    model: str = "auto",
    atoms: Sequence[float] = (),
    grid: float | None = None,
    assume: str = "nothing",
    seed: int = 0,
) -> Estimate: ...


def estimate(
    reports: Any,
    mechanism: object = None,
    *,
    column: str | None = None,
    bounds: tuple[float, float] | None = None,
    decimals: int | None = None,
    bins: int = _BINS,
    model: str = "auto",
    atoms: Sequence[float] = (),
    grid: float | None = None,
    assume: str = "nothing",
    seed: int = 0,
) -> Any:
    """Estimate the distribution and the moments of the values behind reports, by post-processing, at no privacy cost.

    Reports about categories, by a mechanism or a sidecar, give a ``CategoryEstimate`` of counts and shares.

    Each quantity is computed when it is first used::

        e = dpk.estimate(reports, mechanism)       # or a sidecar: dpk.estimate(reports, "private.csv.json")
        e.mean.value, e.mean.interval(0.95), e.mean.bernstein(0.95)
        e.variance.value                           # of the values, without the noise
        e.quantile([0.5, 0.9]).interval(0.95)      # one interval each
        e.cdf(x).band(0.95)                        # intervals that hold together
        e.histogram(20).counts.value, e.count_between(18, 65).interval(0.95)
        e.gap                                      # certificate of the likelihood's optimality
        e.plot(label="age in years")               # Matplotlib axes, shown in a notebook

    Moments and all intervals make no assumption about the values, unless ``grid`` or ``assume`` make one.

    Args:
        reports: the output of ``perturb`` as float64 or float32, of any shape and without rows left out, also after it
            was written as text, or a ``Counts`` of it.
        mechanism: the source of the reports: a mechanism, an exact sampler, a certificate, or the sidecar of a release
            (a path or its JSON content). None with ``Counts``, which contain it.
        column: the column of a sidecar, which may be left out if there is only one.
        bounds: smallest and largest possible input, for additive noise only, which requires them.
        decimals: the number of decimals to which the reports were rounded, unless a sidecar contains it. The intervals
            of mean and variance include the largest effect of this rounding.
        bins: the number of equal bins of the distribution, 24 to 1,024. It is uniform within a bin.
        model: the model of the distribution. "splines" is a mixture of quadratic splines whose number is chosen by
            penalised likelihood. "ems" is expectation maximisation with a smoothing step (Li et al. 2020). "atoms" adds
            point masses to splines at places that the reports choose. "none" consists of the maximum likelihood masses
            of all places. "auto" is the one of them with the greatest cross-validated likelihood of the reports.
        atoms: places, such as 0, at which the distribution may have point masses. The reports choose other places.
        grid: the distance between possible values, which are its multiples: 1 for whole numbers. With None values may
            lie between. Noise on a lattice of inputs implies that lattice.
        assume: "nothing", so that intervals hold for all distributions (on the grid, if there is one), or "smooth", so
            that they hold for distributions with a smooth density and point masses only at ``atoms`` and the places
            that were found. These are narrower. "nothing" is exact for bounded mechanisms. For additive noise whose
            ``bounds`` are more than 512 cells of its table apart, the reports of a value are computed as those of its
            two neighbours among 513 equally distant places, in proportion.
        seed: the seed of the division of reports for cross-validation.

    Raises:
        ValueError: there are no reports, a report is impossible for the mechanism, or an argument is out of range or
            does not apply.
        CertificateError: the tables of a sidecar do not satisfy its claims.
        TypeError: the reports are not numbers, or the mechanism is not for one column of numbers.
    """
    if (categorical := sidecar_mechanism(mechanism, column)) is not None:
        mechanism, column = categorical, None
    if isinstance(reports, CategoryCounts) or is_categorical(mechanism):
        numeric = {"column": column, "bounds": bounds, "decimals": decimals, "atoms": atoms or None, "grid": grid}
        for name, value in numeric.items():
            if value is not None:
                raise ValueError(f"{name}: {value!r} is for reports of numbers, not of categories")
        return _category_estimate(reports, mechanism)
    if isinstance(reports, Counts):
        if mechanism is not None or column is not None or bounds is not None or decimals is not None:
            raise ValueError("mechanism: Counts already hold it; give column, bounds and decimals to Counts, too")
        counts = Counts(reports.channel) + reports  # A copy: estimates are of what was counted by now.
    else:
        if mechanism is None:
            raise TypeError("mechanism: None; say what made the reports")
        counts = Counts(mechanism, column=column, bounds=bounds, decimals=decimals).add(reports)
    if not counts.total:
        raise ValueError("reports: is empty; at least one report is needed")
    return Estimate(counts, bins, model, atoms, grid, assume, seed)


def _category_estimate(reports: object, mechanism: object) -> CategoryEstimate:
    if not isinstance(reports, CategoryCounts):
        return CategoryEstimate(CategoryCounts(mechanism).add(reports))
    if mechanism is not None:
        raise ValueError("mechanism: CategoryCounts know what made them; give none")
    return CategoryEstimate(CategoryCounts(reports.mechanism) + reports)  # A copy: of what was counted by now.


class Estimate:
    """Estimates of the values behind reports, in data units; ``estimate`` makes it.

    If the reports have no information beyond the mean (two-point mechanisms), all but the mean raise a ValueError.

    - ``mean``, ``variance`` and ``standard_deviation`` are ``Moment`` objects.
    - ``quantile``, ``cdf`` and ``count_between`` return a ``Functional``, of an array if the argument is one.
    - ``histogram`` returns a ``Histogram``.

    ``reports`` are the ``Counts``, and ``lower`` and ``upper`` the smallest and the largest possible input.
    """

    def __init__(
        self, reports: Counts, bins: int, model: str, atoms: Sequence[float], grid: float | None, assume: str, seed: int
    ) -> None:
        channel = reports.channel
        self.reports, self.lower, self.upper = reports, channel.lower, channel.upper
        self._bins = checks.integer_in("bins", bins, _MIN_BINS, _MAX_BINS)
        self._seed = checks.integer_in("seed", seed, 0, 1 << 32)
        checks.one_of("model", model, ("auto", *MODELS))
        checks.one_of("assume", assume, ("nothing", "smooth"))
        self._model, self._assume = model, assume
        self._atoms = tuple(checks.number(f"atoms[{i}]", atom) for i, atom in enumerate(atoms))
        if len(self._atoms) > _MAX_ATOMS:
            raise ValueError(f"atoms: {len(self._atoms)} places; at most {_MAX_ATOMS} are allowed")
        for atom in self._atoms:
            checks.within("atoms", atom, self.lower, self.upper)
        if grid is not None:
            width = self.upper - self.lower
            checks.within("grid", grid, width / _MAX_POINTS, width)
            grid = float(grid)
        elif channel.lattice and len(grid_points(self.lower, self.upper, channel.lattice)) <= _MAX_POINTS:
            grid = channel.lattice
        self._grid = grid
        if grid is None:
            return
        if len(points := grid_points(self.lower, self.upper, grid)) < 2:
            ends = f"[{shortest(self.lower)}, {shortest(self.upper)}]"
            raise ValueError(f"grid: {shortest(grid)} has {len(points)} multiples in {ends}; two or more are needed")
        if any(abs(atom / grid - round(atom / grid)) > 1e-9 for atom in self._atoms):
            raise ValueError(
                f"atoms: {', '.join(map(shortest, self._atoms))} must be multiples of the grid {shortest(grid)}"
            )

    @property
    def count(self) -> int:
        """Return the number of reports."""
        return self.reports.total

    @cached_property
    def mean(self) -> Moment:
        """Return the mean of the reports, clipped to [lower, upper], as the estimate of the mean of the inputs.

        Without clipping it is unbiased up to the rounding of reports (``Moment.bias_bound``). A 95 % interval as wide
        as the inputs' interval is a ``TooFewReportsError``.
        """
        channel = self.reports.channel
        average = _Average(self.reports, channel.values)
        _check_count(self.count, "the mean", self._required_count_for_mean)
        ends = self.lower, self.upper

        def interval(confidence: float) -> Interval:
            low, high = average.interval(confidence, self._pooled_mean(average.value))
            return low - channel.bias_bound, high + channel.bias_bound

        def bernstein(confidence: float) -> Interval:
            low, high = average.bernstein(confidence)
            return low - channel.bias_bound, high + channel.bias_bound

        return Moment(average.value, average.error, channel.bias_bound, *ends, bernstein, _interval=interval)

    def _pooled_mean(self, mean: float) -> float:
        pooled = float(pooled_mean(self.count, mean, self.reports.channel.middle))
        return min(max(pooled, self.lower), self.upper)

    @cached_property
    def _required_count_for_mean(self) -> float:
        return _required_count(self.reports.channel.value_variance, (self.upper - self.lower) / 2)

    @cached_property
    def variance(self) -> Moment:
        """Return the unbiased estimate of the variance of the inputs, at least 0.

        With weights g such that E[g | x] = (x - middle)^2 it is mean(g) - (mean(y) - middle)^2 + s_y^2/n. Its standard
        error is that of the mean of g - 2 (mean(y) - middle) y. Intervals add the error of (mean(y) - middle)^2, and
        contain the variance of the n inputs, which is 1/n smaller, too. A 95 % interval as wide as what is possible is
        a ``TooFewReportsError``.
        """
        channel = self.reports.channel
        (g, bias_bound), centred = channel.square_weights, channel.values - channel.middle
        first, second = _Average(self.reports, centred), _Average(self.reports, g)
        residual = _Average(self.reports, g - 2 * first.value * centred)
        value = second.value - first.value**2 + first.error**2
        bias_bound += channel.bias_bound * (2 * abs(first.value) + channel.bias_bound)
        largest = ((self.upper - self.lower) / 2) ** 2
        _check_count(self.count, "the variance", _required_count(channel.square_weight_variance, largest / 2))

        def bernstein(confidence: float) -> Interval:
            (a, b), (low, high) = first.bernstein(confidence, 2), second.bernstein(confidence, 2)
            a, b = a - channel.bias_bound, b + channel.bias_bound
            nearest = 0.0 if a <= 0 <= b else min(a * a, b * b)
            return low - max(a * a, b * b) - bias_bound, high - nearest + bias_bound

        def interval(confidence: float) -> Interval:
            n, mean = self.count, self._pooled_mean(first.value + channel.middle)
            weights = g - 2 * (mean - channel.middle) * centred
            spread = residual.pooled_variance(mean, weights) / n + 2 * first.pooled_variance(mean) ** 2 / (n * (n - 1))
            half_width = pooled_quantile(n, confidence) * math.sqrt(spread) + bias_bound
            return value * (1 - 1 / n) - half_width, value + half_width

        return Moment(value, residual.error, bias_bound, 0.0, largest, bernstein, _interval=interval)

    @cached_property
    def standard_deviation(self) -> Moment:
        """Return the root of ``variance``, with the roots of its intervals.

        Its standard error is that of the variance over twice the root.
        """
        variance = self.variance
        root = math.sqrt(variance.value)
        error, bias_bound = (size / (2 * root) if root else math.inf for size in (variance.error, variance.bias_bound))

        def square_roots(interval: Callable[[float], Interval], confidence: float) -> Interval:
            low, high = interval(confidence)
            return math.sqrt(low), math.sqrt(high)

        bernstein, interval = partial(square_roots, variance.bernstein), partial(square_roots, variance.interval)
        return Moment(root, error, bias_bound, 0.0, math.sqrt(variance.largest), bernstein, _interval=interval)

    @cached_property
    def distribution(self) -> InputDistribution:
        """Return the estimated distribution: a density that is uniform on bins, and point masses."""
        return self._models.distribution(self._weights)

    @property
    def model(self) -> str:
        """Return a description of the estimated distribution and of how it was chosen."""
        return self.distribution.model + ", chosen by the likelihood of held-out reports" * (self._model == "auto")

    @property
    def assumption(self) -> str:
        """Return one sentence that says what the intervals assume about the values; see ``assume`` of ``estimate``."""
        if self._assume == "smooth":
            atoms = self._models.positions[self._models.named | self._weights.point_masses]
            named = ", ".join(map(format_number, atoms[:_NAMED_ATOMS])) + ", ..." * (len(atoms) > _NAMED_ATOMS)
            exceptions = f"point masses only at {named}" if len(atoms) else "no point masses"
            return f"Intervals assume that the values have a smooth density and {exceptions}."
        if self._grid is not None:
            numbers = "whole numbers" if self._grid == 1 else f"multiples of {shortest(self._grid)}"
            return f"Intervals assume that the values are {numbers}, and nothing else."
        return "Intervals assume nothing about the values."

    def cdf(self, x: Real) -> Functional:
        """Return the share of inputs that are at most x, of any shape; an x not in [lower, upper] is a ValueError."""
        x = _checked("x", x, self.lower, self.upper)
        ends = [self._possible.cumulative(float(point)) for point in x.flat]
        return self._functional(self.distribution.cdf(x), ends)

    def quantile(self, p: Real) -> Functional:
        """Return the smallest x that a share p of inputs does not exceed, for numbers p in (0, 1), of any shape.

        Raises:
            TooFewReportsError: the 95 % interval of the quantile or of the mean would be the inputs' interval, or there
                would be no 95 % interval of so few values even without noise.
            ValueError: a p that is not in (0, 1).
        """
        p = _checked("p", p, 0.0, 1.0, open_ends=True)
        intervals = _intervals(p.ravel(), p.shape, self._possible.quantile_interval)
        low, high = intervals(_CONFIDENCE)
        is_whole = (low <= self._possible.positions[0]) & (high >= self._possible.positions[-1])
        for probability, is_too_wide in zip(p.flat, is_whole.flat, strict=True):
            required = max(
                self._required_count_for_mean,
                # Without noise, the least and the greatest of this number of values enclose the quantile.
                math.log((1 - _CONFIDENCE) / 2) / math.log1p(-min(probability, 1 - probability)),
                4 * self.count if is_too_wide else 0,  # which make intervals about half as wide
            )
            if self.count < required:
                reason = f"p: {self.count} reports are too few for the quantile {shortest(probability)}"
                raise TooFewReportsError(reason, math.ceil(required))
        return Functional(float_if_scalar(self.distribution.quantile(p)), intervals)

    def histogram(self, bins: object = 20) -> Histogram:
        """Return the estimated shares and numbers of inputs in bins.

        ``bins`` is the number of equal bins, or their increasing edges within [lower, upper]; others are a ValueError.
        A bin contains its lower end, and the last bin its upper end, too.
        """
        edges = self._edges(bins)
        ends = [self._possible.between(low, high, closed=high == edges[-1]) for low, high in pairwise(edges)]
        cumulated = np.append(self.distribution.cdf(edges[:-1], strict=True), self.distribution.cdf(edges[-1]))
        shares = self._functional(np.diff(cumulated), ends)
        return Histogram(edges, shares, shares.scaled(self.count))

    def count_between(self, a: float, b: float) -> Functional:
        """Return the estimated number of inputs in [a, b]; not lower <= a < b <= upper is a ValueError."""
        a, b = map(float, _checked("a, b", [a, b], self.lower, self.upper))
        if not a < b:
            raise ValueError(f"a, b: {a} is not less than {b}")
        ends = [self._possible.between(a, b, closed=True)]
        share = self.distribution.cdf(np.array(b)) - self.distribution.cdf(np.array(a), strict=True)
        return self._functional(share, ends).scaled(self.count)

    @property
    def likelihood(self) -> Fit:
        """Return the maximum likelihood masses of all distributions that are possible, with their certificate."""
        return self._possible.fit

    @property
    def gap(self) -> float:
        """Return a bound on how far the log-likelihood per report is below its maximum; at most 1e-6."""
        return self.likelihood.gap

    def plot(
        self,
        ax: Any = None,
        *,
        kind: str = "histogram",
        bins: Any = None,
        confidence: float = 0.95,
        label: str = "value",
        title: str | None = None,
    ) -> Any:
        """Draw the estimated distribution with its intervals, with Matplotlib (extra ``cli``), and return the axes.

        Args:
            ax: axes to draw into, by default those of a new figure.
            kind: "histogram", with an interval for each bin, or "cdf", with a band that holds everywhere.
            bins: of the histogram, as of ``histogram``; by default as many as the reports resolve.
            confidence: in (0, 1).
            label: a description of the values with their unit, such as "age in years".
            title: of the axes, by default the number of reports and their epsilon.
        """
        checks.one_of("kind", kind, ("histogram", "cdf"))
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
        percent = f"{100 * confidence:g} %"
        if kind == "histogram":
            histogram = self.histogram(self._resolved_bins(confidence) if bins is None else bins)
            shares, (low, high) = histogram.shares.value, histogram.shares.interval(confidence)
            draw_intervals(ax, histogram.edges[:-1], histogram.edges[1:], shares, low, high, f"{percent} intervals")
            ax.set_ylabel("share of values")
        else:
            x = np.linspace(self.lower, self.upper, _DRAWN_POINTS)
            cdf = self.cdf(x)
            ax.fill_between(x, *cdf.band(confidence), color="C0", alpha=0.25, label=f"{percent} band")
            ax.plot(x, cdf.value, color="C0", label="estimate")
            ax.set(ylabel="share of values up to it", ylim=(0, 1))
            ax.legend(frameon=False, loc="lower right")  # The cdf is 1 at the right end.
        ax.set_xlim(self.lower, self.upper)
        ax.set_xlabel(label, parse_math=False)
        ax.set_title(self._caption if title is None else title, parse_math=False)
        ax.xaxis.set_major_locator(MaxNLocator(_MAX_TICKS))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        return ax

    def _resolved_bins(self, confidence: float) -> int:
        """Return the most bins, of some numbers of them, whose intervals show where half of the values are."""
        for bins in _DRAWN_BINS[:-1]:
            shares = self.histogram(bins).shares
            if shares.value[shares.interval(confidence)[0] > 0].sum() >= _RESOLVED_SHARE:
                return bins
        return _DRAWN_BINS[-1]

    @property
    def _caption(self) -> str:
        budget = self.reports.channel.epsilon
        return f"{self.count:,} reports" + ("" if budget is None else f" at epsilon {budget:g}")

    def __repr__(self) -> str:
        try:
            mean = self.mean
        except TooFewReportsError as error:
            return f"Estimate({error.reason.removeprefix('reports: ')})"
        low, high = mean.interval()
        interval = f"95 % interval from {format_number(low)} to {format_number(high)}"
        return f"Estimate({self.count:,} reports, mean {format_number(mean.value)}, {interval})"

    @cached_property
    def _models(self) -> ReportModels:
        _ = (
            self.reports.channel.square_weights
        )  # It raises an error if the reports have no information beyond the mean.
        return report_models(self.reports.channel, self._bins, self._atoms, self._grid)

    @cached_property
    def _grouped(self) -> np.ndarray:
        return np.add.reduceat(self.reports.numbers, self._models.groups)

    @cached_property
    def _weights(self) -> Weights:
        model = self._model
        if model == "auto":
            names = [name for name in MODELS if self._assume == "nothing" or name != "none"]
            model = self._models.choose(self._grouped, self._seed, names)
        return self._models.fit(model, self._grouped)

    @cached_property
    def _possible(self) -> MixtureModel:
        weights = self._weights if self._assume == "smooth" else None
        return self._models.possible(self._grouped, weights)

    def _functional(self, value: np.ndarray, ends: list[Ends]) -> Functional:
        """Return numbers of the same shape as ``value`` with the intervals of the functionals, clipped to shares."""

        def interval(functional: Ends, confidence: float) -> tuple[float, float]:
            low, high = _clip_shares(np.array(self._possible.interval(functional, confidence)))
            return float(low), float(high)

        return Functional(float_if_scalar(_clip_shares(value)), _intervals(ends, np.shape(value), interval))

    def _edges(self, bins: Any) -> np.ndarray:
        if np.ndim(bins) == 0:
            return np.linspace(self.lower, self.upper, checks.integer_in("bins", bins, 1, _MAX_BINS) + 1)
        edges = _checked("bins", bins, self.lower, self.upper)
        if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
            raise ValueError("bins: must be a number of bins, or two or more increasing edges")
        return edges


def _checked(name: str, values: object, low: float, high: float, *, open_ends: bool = False) -> np.ndarray:
    """Return numbers of [low, high] as an array."""
    array = checks.concrete(values)
    assert array is not None
    checks.within(name, array, low, high, open_ends=open_ends)
    return array


def _clip_shares(values: np.ndarray) -> np.ndarray:
    """Return shares clipped to [0, 1], which differences of sums may exceed by a rounding error, and no -0."""
    return np.clip(values, 0.0, 1.0) + 0.0


def _intervals(
    arguments: Iterable[T], shape: tuple[int, ...], interval: Callable[[T, float], tuple[float, float]]
) -> Callable[[float], Interval]:
    """Return the function of a confidence that evaluates an interval for each argument."""

    def intervals(confidence: float) -> Interval:
        low, high = np.array([interval(argument, confidence) for argument in arguments]).reshape(-1, 2).T
        return low.reshape(shape), high.reshape(shape)

    return intervals


class _Average:
    """The mean of a function of reports."""

    def __init__(self, counts: Counts, weights: np.ndarray) -> None:
        self.n, self.counts, self.weights, self.channel = counts.total, counts, weights, counts.channel
        if self.n < 2:
            raise TooFewReportsError(f"reports: there are {self.n}", 2)
        p = counts.numbers / self.n
        self.value = float(p @ weights)
        self.error = math.sqrt(float(p @ (weights - self.value) ** 2) / (self.n - 1))

    def pooled_variance(self, mean: float, weights: np.ndarray | None = None) -> float:
        """Return the variance of a weight for an interval, pooled with the noise's, of the values or other weights."""
        variances = self.channel.noise_variances(mean, weights)
        return float(pooled_variance(self.n, self.error**2 * self.n, *variances))

    def interval(self, confidence: float, mean: float) -> Interval:
        """Return the interval of the mean of unbiased values, given the pooled mean."""
        if len(self.weights) == 2:
            low, high = map(float, clopper_pearson(self.n, int(self.counts.numbers[1]), confidence))
            low_weight, high_weight = self.weights
            return low_weight + low * (high_weight - low_weight), low_weight + high * (high_weight - low_weight)
        half_width = pooled_quantile(self.n, confidence) * math.sqrt(self.pooled_variance(mean) / self.n)
        return self.value - half_width, self.value + half_width

    def bernstein(self, confidence: float, averages: int = 1) -> Interval:
        """Return Bernstein's interval; those of several averages hold together, by a union bound."""
        log_odds = math.log(2 * averages / (1 - confidence))
        half_width = bernstein_half_width(self.n, *self.channel.largest_variance_and_deviation(self.weights), log_odds)
        return self.value - half_width, self.value + half_width


def _required_count(variance: float, half_width: float) -> float:
    """Return the n at which a normal 95 % interval with this variance of a report has a half-width."""
    return (1.96 / half_width) ** 2 * variance


def _check_count(n: int, name: str, required: float) -> None:
    if n < required:
        raise TooFewReportsError(f"reports: {n} are too few for {name}", math.ceil(required))


def save_plots(
    estimates: Mapping[str, Estimate],
    target: Path,
    confidence: float,
    *,
    bins: int | None = None,
    label: str = "value",
    ticks: Sequence[tuple[float, str]] = (),
) -> None:
    """Write histogram and cdf of at most 12 estimates, by title, as a PNG with common scales in an existing folder.

    ``ticks`` are places of the x-axis and their texts, by default round numbers.
    """
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise ValueError(f"path: {target} must be a .png in an existing folder")
    if len(estimates) > MAX_PANELS:
        raise ValueError(f"estimates: {len(estimates)} groups; at most {MAX_PANELS} are drawn")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.5 + 4 * len(estimates)), dpi=150, layout="constrained")
    grid = figure.subplots(len(estimates), 2, squeeze=False, sharey="col")
    # Bins are as wide for all, so that their shares compare.
    bins = bins or min(estimate._resolved_bins(confidence) for estimate in estimates.values())
    for row, (title, estimate) in zip(grid, estimates.items(), strict=True):
        for kind, ax in zip(("histogram", "cdf"), row, strict=True):
            caption = f"{title}: {estimate._caption}" if title else None
            estimate.plot(ax, kind=kind, bins=bins, confidence=confidence, label=label, title=caption)
            if ticks:
                ax.set_xticks(*zip(*ticks, strict=True))
    share_scale(list(grid[:, 0]))
    write_png(figure, target)
