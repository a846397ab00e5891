"""The channel of a mechanism: the probabilities of its reports given an input.

An input between two rows of a table is rounded to one of them at random, so P(report | x) is linear between rows. For
an input that is uniform on a bin, the probability is the average over the bin, a difference of integrals.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, parse_json, read_text
from dpkernels.caching import bounded_cache
from dpkernels.decimals import shortest
from dpkernels.estimation.interval_formulas import convex_minorant
from dpkernels.exact.bounded.rows import RowCertificate, RowTable
from dpkernels.exact.bounded.sampler import report_kernel
from dpkernels.exact.bounded.windows import SquareWaveCertificate, WindowCertificate, WindowTable
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.noise.certificate import NoiseCertificate, VectorNoiseCertificate
from dpkernels.exact.packed import full_certificates
from dpkernels.exact.registry import (
    Certificate,
    ExactMultivariate,
    MixtureCertificate,
    MultivariateCertificate,
    exact_sampler,
)
from dpkernels.exact.sampler import ExactSampler
from dpkernels.numerics import convolution
from dpkernels.shapes import Float, Int

SquareWeights = tuple[np.ndarray, float]  # of the reports, for the square of an input; and a bound on their bias
Table = WindowTable | RowTable

# The largest number of lattice points on which reports of additive noise are counted.
_MAX_POINTS = 1 << 22
# The largest input in grid points, so that 64-bit integers hold all positions.
_MAX_INPUT = 2.0**62
# Tables with fewer cells per sensitivity than this are those of noise on a grid; other tables have about 512.
_MIN_CELLS = 64
# The number of positions at which variances are compared; they are convex in the position, or constant.
_MAX_SHIFTS = 256
_MAX_KNOT_INTERVALS = 512  # intervals between the inputs at which a distribution can have mass
_COMPARED_EDGES = 5  # edges of bins whose reports are compared
# With fewer rows than this, rounding inputs to rows adds up to gap^2/4, which is not small compared with squares.
_MIN_ROWS = 16
# The largest bias of weights for squares, relative to the squared width of the interval. Some tables of ``optimal``
# have fewer codes than rows; no weights are then unbiased for every row.
_MAX_BIAS = 5e-3
_MAX_DECIMALS = 15  # to which reports can have been rounded


class Channel(abc.ABC):
    """The conditional probabilities P(report | input) of one released column."""

    lower: float  # the smallest input
    upper: float  # the largest input
    reports: Float[np.ndarray, " outcomes"]  # the possible reports as written, increasing
    values: Float[np.ndarray, " outcomes"]  # unbiased values of the reports: their mean, given an input, is the input
    bias_bound: float  # on the bias of the values; 0 unless rounding to decimals has made reports equal
    epsilon: float | None = None  # the budget of a report, if it is known
    lattice: float | None = None  # the distance between inputs, if the mechanism assumes that they are on a lattice

    def _set_reports(
        self,
        exact: Float[np.ndarray, " codes"],
        values: Float[np.ndarray, " codes"],
        decimals: int | None,
        shift: float = 0.0,
    ) -> None:
        """Set the possible reports, rounded to decimals, and their values; equal reports have their mean value."""
        rounded = exact if decimals is None else exact.round(decimals)
        # The first code of each report, and the index of the report of each code.
        self.reports, self._first_codes, self._indices = np.unique(rounded, return_index=True, return_inverse=True)
        self._is_merged = len(self.reports) < len(exact)
        means = np.bincount(self._indices, values) / np.bincount(self._indices) - shift - self.middle
        corrected, self.bias_bound = self._bias_corrected(means, 1)
        self.values = corrected + self.middle

    @abc.abstractmethod
    def probabilities(
        self, x: Float[np.ndarray, " inputs"], groups: Int[np.ndarray, " groups"], *, integrated: bool = False
    ) -> Float[np.ndarray, "groups inputs"]:
        """Return (g, k) P(report in group | input x) at (k,) increasing x, or integrals over inputs up to each x.

        ``groups`` are (g,) the first report of every group, increasing from 0; integrals have an arbitrary start.
        """

    @property
    @abc.abstractmethod
    def knots(self) -> Float[np.ndarray, " knots"]:
        """Return (k,) increasing inputs between which P(report | x) is linear.

        Thus for every distribution of inputs there is one on the knots alone whose reports have the same distribution:
        each input moves to the two knots around it at random, with its mean kept. For additive noise on an interval of
        more than 512 cells, the knots are 513 equally distant inputs, between which P is linear only approximately.
        """

    @property
    @abc.abstractmethod
    def square_weights(self) -> SquareWeights:
        """Return (m,) weights whose mean over the reports of x is (x - middle)^2, and a bound on their bias.

        A ValueError says that the reports have no information beyond the mean.
        """

    @abc.abstractmethod
    def means(
        self, weights: Float[np.ndarray, " outcomes"]
    ) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]]:
        """Return increasing inputs, and the means of (m,) weights over their reports, which are linear in between."""

    def largest_variance_and_deviation(self, weights: Float[np.ndarray, " outcomes"]) -> tuple[float, float]:
        """Return the largest variance, and the largest distance from the mean, of (m,) weights given any one input."""
        weights = weights - weights.mean()  # Far from 0, squares would have no digits left for the variance.
        (_, first), (_, second) = self.means(weights), self.means(weights**2)
        # Between these inputs both means are linear, so the variance exceeds its ends by at most (change of mean)^2/4.
        variance = (second - first**2).max() + (np.diff(first) ** 2).max() / 4
        return float(variance), float(max(weights.max() - first.min(), first.max() - weights.min()))

    @cached_property
    def value_variance(self) -> float:
        """Return the largest variance of a report's value given any one input; groups of reports share it."""
        return self.largest_variance_and_deviation(self.values)[0]

    @cached_property
    def square_weight_variance(self) -> float:
        """Return the largest variance of the ``square_weights`` given any one input; groups of reports share it."""
        return self.largest_variance_and_deviation(self.square_weights[0])[0]

    def noise_variances(
        self, mean: float, weights: Float[np.ndarray, " outcomes"] | None = None
    ) -> tuple[float, float]:
        """Return the variance of a report's value at an input, and the least average over distributions of this mean.

        (m,) ``weights`` stand in for the values.
        """
        x, variance, least_mean_variance = self._value_variances if weights is None else self._noise_variances(weights)
        return float(np.interp(mean, x, variance)), float(np.interp(mean, x, least_mean_variance))

    @cached_property
    def _value_variances(
        self,
    ) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]]:
        return self._noise_variances(self.values)

    def _noise_variances(
        self, weights: Float[np.ndarray, " outcomes"]
    ) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]]:
        """Return increasing inputs with the variances of weights, and the largest convex function below these."""
        weights = weights - weights.mean()
        (x, first), (_, second) = self.means(weights), self.means(weights**2)
        variance = np.maximum(second - first**2, 0.0)
        return x, variance, convex_minorant(x, variance)

    def _bias_corrected(self, weights: Float[np.ndarray, " outcomes"], power: int) -> SquareWeights:
        """Return weights whose means are (x - middle)^power, corrected for the constant that rounding has added."""
        if not self._is_merged:
            return weights, 0.0
        x, means = self.means(weights)
        bias = means - (x - self.middle) ** power
        low, high = float(bias.min()), float(bias.max())
        return weights - (low + high) / 2, (high - low) / 2

    def is_equivalent(self, other: Channel) -> bool:
        """Return whether two reports are the same number and equally probable for every input."""
        if self is other:
            return True
        if (self.lower, self.upper) != (other.lower, other.upper) or not np.array_equal(self.reports, other.reports):
            return False
        edges, codes = np.linspace(self.lower, self.upper, _COMPARED_EDGES), np.arange(len(self.reports))
        return bool(np.allclose(self.matrix(edges, codes), other.matrix(edges, codes), rtol=1e-9, atol=0))

    @property
    def middle(self) -> float:
        return (self.lower + self.upper) / 2

    def matrix(
        self, edges: Float[np.ndarray, " edges"], groups: Int[np.ndarray, " groups"]
    ) -> Float[np.ndarray, "groups bins"]:
        """Return (g, d) P(report in group | input uniform on a bin), of the d bins between edges."""
        return np.maximum(np.diff(self.probabilities(edges, groups, integrated=True), axis=1) / np.diff(edges), 0.0)


class TableChannel(Channel):
    """The channel of one bounded table, or of a mixture: the probability and the table of each, chosen at random."""

    def __init__(self, tables: Sequence[tuple[float, Table]], decimals: int | None = None) -> None:
        self.tables = tables
        self.lower, self.upper = tables[0][1].lower, tables[0][1].upper
        exact = np.concatenate([_table_reports(table) for _, table in tables])
        # Reports of a window placed at the input are stretched by the inverse of its slope, which makes them unbiased.
        self._set_reports(
            exact, np.concatenate([_table_reports(_unbiased_table(table)) for _, table in tables]), decimals
        )

    def _indexed_tables(self) -> Iterator[tuple[float, Table, np.ndarray]]:
        """Yield the probability of every table, the table, and the indices of its reports among the written ones."""
        ends = np.cumsum([table.codes for _, table in self.tables])[:-1]
        for (probability, table), indices in zip(self.tables, np.split(self._indices, ends), strict=True):
            yield probability, table, indices

    def probabilities(
        self, x: Float[np.ndarray, " inputs"], groups: Int[np.ndarray, " groups"], *, integrated: bool = False
    ) -> Float[np.ndarray, "groups inputs"]:
        total = np.zeros((len(self.reports), len(x)))
        for probability, table, indices in self._indexed_tables():
            np.add.at(total, indices, probability * _table_probabilities(table, x, integrated))
        return np.add.reduceat(total, groups)

    @cached_property
    def knots(self) -> Float[np.ndarray, " knots"]:
        return np.unique(np.concatenate([_row_inputs(table) for _, table in self.tables]))

    def means(
        self, weights: Float[np.ndarray, " outcomes"]
    ) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]]:
        x = self.knots
        means = np.zeros(len(x))
        for probability, table, indices in self._indexed_tables():
            means += probability * np.interp(x, _row_inputs(table), _row_means(table, weights[indices]))
        return x, means

    @cached_property
    def square_weights(self) -> SquareWeights:
        by_table = [(p, table, _table_square_weights(_unbiased_table(table))) for p, table in self.tables]
        informative = sum(p for p, _, squares in by_table if squares)
        if not informative:
            raise ValueError(
                "mechanism: its reports tell the mean only: values with the same mean but another spread are reported "
                "alike"
            )
        # A table without information contributes 0, and the others are scaled up.
        scaled = [squares[0] / informative if squares else np.zeros(table.codes) for _, table, squares in by_table]
        means = np.bincount(self._indices, np.concatenate(scaled)) / np.bincount(self._indices)
        g, bias_bound = self._bias_corrected(means, 2)
        return g, bias_bound + max(squares[1] for _, _, squares in by_table if squares)


class NoiseChannel(Channel):
    """The channel of additive noise; a ValueError says that the interval is too wide for the noise, or too far from 0.

    An input at grid point i = q M + f, 0 <= f < M, is rounded to position q + 1 with probability f/M, else to q. If the
    grid is coarse compared with the sensitivity, inputs are assumed to be on the grid, and M is 1.
    """

    def __init__(self, certificate: NoiseCertificate, lower: float, upper: float, decimals: int | None = None) -> None:
        self.table, self.lower, self.upper = certificate.table.finite, lower, upper
        table, on_lattice = self.table, certificate.shift < _MIN_CELLS
        if on_lattice:
            self._spacing, self._points_per_bin = float(table.bin_width), 1
            self.lattice = self._spacing
        else:
            self._spacing, self._points_per_bin = 2.0**table.grid_log2, table.points_per_bin
        interval = f"bounds: [{shortest(lower)}, {shortest(upper)}]"
        if max(abs(lower), abs(upper)) / self._spacing >= _MAX_INPUT:
            raise ValueError(f"{interval} is too far from 0 for the noise, whose values are {self._spacing:.3g} apart")
        start, end = (int(np.floor(x / self._spacing + 0.5)) for x in (lower, upper))
        self._first = start // self._points_per_bin + table.first
        self._points = -(-end // self._points_per_bin) + table.last - self._first + 1
        if self._points > _MAX_POINTS:
            raise ValueError(
                f"{interval} has {self._points:.3g} possible reports, more than {_MAX_POINTS}; "
                "the noise hardly matters on so wide an interval"
            )
        exact = (self._first + np.arange(self._points)) * float(table.bin_width)
        self._set_reports(exact, exact, decimals, float(table.mean))

    def probabilities(
        self, x: Float[np.ndarray, " inputs"], groups: Int[np.ndarray, " groups"], *, integrated: bool = False
    ) -> Float[np.ndarray, "groups inputs"]:
        """Return differences of P(position + code < end | x) = (1 - f/M) G(end - q) + f/M G(end - q - 1).

        G(n) = P(code < n); an integral over grid points is a sum.
        """
        # The first lattice point of every group, and the first one after all groups.
        end = (self._first + np.append(self._first_codes[groups], self._points))[:, None]
        spacing, M = self._spacing, self._points_per_bin
        i, fraction = np.divmod(x / spacing + 0.5, 1.0)
        q, f = np.divmod(i.astype(np.int64), M)
        at_q, at_next = self._noise_cdf(end - q), self._noise_cdf(end - q - 1)
        if not integrated:
            return np.diff((1 - f / M) * at_q + f / M * at_next, axis=0)
        start = end - (self._first - self.table.first)
        cell_integrals = (M + 1) / 2 * (self._noise_cdf_sum(start) - self._noise_cdf_sum(end - q))
        cell_integrals += (M - 1) / 2 * (self._noise_cdf_sum(start - 1) - self._noise_cdf_sum(end - q - 1))
        within_cell = f * at_q + f * (f - 1) / (2 * M) * (at_next - at_q)
        return np.diff(spacing * (cell_integrals + within_cell + fraction * (at_q + f / M * (at_next - at_q))), axis=0)

    @cached_property
    def knots(self) -> Float[np.ndarray, " knots"]:
        """Return the lattice positions that inputs are rounded to, or some of them, and both ends of the interval."""
        width = float(self.table.bin_width)
        if round((self.upper - self.lower) / width) > _MAX_KNOT_INTERVALS:
            return np.linspace(self.lower, self.upper, _MAX_KNOT_INTERVALS + 1)
        inner = width * np.arange(math.ceil(self.lower / width), math.floor(self.upper / width) + 1)
        return np.unique(np.concatenate([[self.lower], inner, [self.upper]]))

    def means(
        self, weights: Float[np.ndarray, " outcomes"]
    ) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]]:
        """Return the means at every lattice position, or at some of them and both ends if no report was rounded."""
        noise, weights = self.table.weights / 2.0**self.table.bits, weights[self._indices]
        shifts = self._points - self.table.codes
        positions = np.unique(np.linspace(0, shifts, min(shifts, _MAX_SHIFTS) + 1).astype(int))
        if self._is_merged and shifts > _MAX_SHIFTS:
            positions, means = np.arange(shifts + 1), convolution(weights, noise[::-1])[len(noise) - 1 : len(weights)]
        else:
            means = np.array([noise @ weights[i : i + self.table.codes] for i in positions])
        return (self._first - self.table.first + positions) * float(self.table.bin_width), means

    @cached_property
    def square_weights(self) -> SquareWeights:
        """Return y^2 minus the variance of the noise; rounding the input adds h^2 (1 - 1/M^2)/6 on average."""
        rounding = float(self.table.bin_width) ** 2 * (1 - self._points_per_bin**-2) / 6
        return self._bias_corrected((self.values - self.middle) ** 2 - float(self.table.variance) - rounding, 2)

    def _noise_cdf(self, n: np.ndarray) -> np.ndarray:
        """Return G(n) = P(code < n)."""
        return self._cdf[np.clip(n - self.table.first, 0, self.table.codes)]

    def _noise_cdf_sum(self, n: np.ndarray) -> np.ndarray:
        """Return the sum of G(j) over j <= n."""
        index, codes = n - self.table.first, self.table.codes
        return self._cdf_sums[np.clip(index, 0, codes)] + np.maximum(index - codes, 0)

    @cached_property
    def _cdf(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self.table.weights / 2.0**self.table.bits))

    @cached_property
    def _cdf_sums(self) -> np.ndarray:
        return np.cumsum(self._cdf)


def _unbiased_table(table: Table) -> Table:
    """Return the table with reports of a placed window stretched, so that their means are the inputs."""
    return replace(table, is_contracted=False) if isinstance(table, WindowTable) and table.is_contracted else table


def _table_square_weights(table: Table) -> SquareWeights | None:
    """Return (m,) weights g of codes with E[g(code) | x] = (x - middle)^2 and their bias, or None if there are none.

    For a window table E[(y - middle)^2 | x] = A + (1 + c) (x - middle)^2 + (1 + c) f (1 - f) gap^2 at the fraction f
    between two rows, whose mean over f is gap^2/6 (``WindowTable.variance_terms``).

    For a table of rows g has the least variance for uniform inputs: min sum_j q_j g_j^2 with A' g = t is
    g = A_q (A' A_q)^+ t, A[j, i] the probability of code j in row i, q its mean over rows, and A_q[j, i] = A[j, i]/q_j.
    """
    if table.last_row < _MIN_ROWS:
        return None
    if isinstance(table, WindowTable):
        A, c, _ = map(float, table.variance_terms)
        deviation = float(table.report_step) * (np.arange(table.codes) - (table.codes - 1) / 2)
        gap = (table.upper - table.lower) / table.last_row
        return (deviation**2 - A) / (1 + c) - gap**2 / 6, 0.0
    inputs = np.array([float(table.row_input(i) - table.middle) for i in range(table.rows)])
    probabilities = table.weights.T / 2.0**table.bits
    target = inputs**2 - float(table.row_spacing) ** 2 / 6
    scaled = probabilities / probabilities.mean(axis=1, keepdims=True)
    g = scaled @ np.linalg.lstsq(probabilities.T @ scaled, target, rcond=1e-12)[0]
    bias_bound = float(np.abs(probabilities.T @ g - target).max())
    return (g, bias_bound) if bias_bound <= _MAX_BIAS * (inputs[-1] - inputs[0]) ** 2 else None


def _table_reports(table: Table) -> Float[np.ndarray, " codes"]:
    """Return the reports of all codes, to the bit."""
    return report_kernel(table.middle, table.report_step)(np.array(table.doubled_offsets), np.float64)


def _row_inputs(table: Table) -> Float[np.ndarray, " rows"]:
    first, last = (float(table.row_input(i)) for i in (0, table.last_row))
    return np.linspace(first, last, table.last_row + 1)


def _table_probabilities(
    table: Table, x: Float[np.ndarray, " inputs"], integrated: bool
) -> Float[np.ndarray, "codes inputs"]:
    """Return (codes, len(x)) P(code | x), which is linear between rows, or its integrals from the first row up to x."""
    inputs = _row_inputs(table)
    width = inputs[-1] - inputs[0]
    position = np.clip((x - inputs[0]) / width, 0.0, 1.0) * table.last_row
    i = np.minimum(position.astype(int), table.last_row - 1)
    f = position - i
    if isinstance(table, RowTable):
        W = table.weights.T.astype(np.float64)
        sums = np.zeros_like(W)
        np.cumsum((W[:, 1:] + W[:, :-1]) / 2, axis=1, out=sums[:, 1:])
        row_integrals, first, second = sums[:, i], W[:, i], W[:, i + 1]
    else:
        # Row i is base[code] + window[code - i]; cumulative sums of the window are its integrals over rows.
        pad = np.zeros(table.last_row + 1)
        padded = np.concatenate([pad, table.window, pad])
        sums, entries = np.append(0.0, np.cumsum(padded)), np.arange(table.codes)[:, None] + len(pad)
        base = table.base.astype(np.float64)[:, None]
        row_integrals = (sums[entries + 1] - sums[entries + 1 - i] + sums[entries] - sums[entries - i]) / 2 + base * i
        first, second = base + padded[entries - i], base + padded[entries - i - 1]
    if integrated:
        return (row_integrals + f * first + f**2 / 2 * (second - first)) * width / table.last_row / 2.0**table.bits
    return (first + f * (second - first)) / 2.0**table.bits


def _row_means(table: Table, weights: Float[np.ndarray, " codes"]) -> Float[np.ndarray, " rows"]:
    if isinstance(table, RowTable):
        return table.weights @ weights / 2.0**table.bits
    window, base = (array / 2.0**table.bits for array in (table.window, table.base))
    return base @ weights + np.correlate(weights, window, "valid")


def as_channel(
    source: object, *, column: str | None = None, bounds: tuple[float, float] | None = None, decimals: int | None = None
) -> Channel:
    """Return the channel of a channel (itself), a mechanism, an exact sampler, a certificate, or a sidecar.

    A sidecar is a path or its JSON content. The other arguments and the errors are those of ``Counts``.
    """
    if isinstance(source, Channel):
        return source
    if isinstance(source, str | Path):
        try:
            source = parse_json(read_text(Path(source)))
        except ValueError as error:
            raise ValueError(f"{source}: is not the sidecar of a release; {error}") from error
    if isinstance(source, Mapping):
        source, decimals = _sidecar_certificate(dict(source), column, decimals)
    elif column is not None:
        raise ValueError(f"column: {column!r} is for a sidecar; {type(source).__name__} is of one column")
    if not isinstance(source, Certificate):
        sampler = source if isinstance(source, ExactSampler | ExactMultivariate) else exact_sampler(source)
        source = sampler.certificate
    if decimals is not None:
        checks.integer_in("decimals", decimals, 0, _MAX_DECIMALS)
    if bounds is not None:
        bounds = (checks.number("bounds", bounds[0]), checks.number("bounds", bounds[1]))
        if not -math.inf < bounds[0] < bounds[1] < math.inf:
            raise ValueError(f"bounds: {bounds} must be two finite numbers, the smaller first")
    return _channel(source, bounds, decimals)


def _sidecar_certificate(
    sidecar: JsonObject, column: str | None, decimals: int | None
) -> tuple[Certificate, int | None]:
    """Return a column's certificate, verified, and the decimals that its release rounded to."""
    try:
        columns = {entry["column"]: entry["certificate"] for entry in full_certificates(sidecar)["columns"]}
    except (KeyError, TypeError) as error:
        raise ValueError("mechanism: is not the sidecar of a release; it has no columns with certificates") from error
    except ValueError as error:
        raise CertificateError(f"mechanism: is not the sidecar of a release; {error}") from error
    if column is None and len(columns) == 1:
        column = next(iter(columns))
    if column not in columns:
        raise ValueError(f"column: {column!r} is not one of the perturbed columns {sorted(map(str, columns))}")
    if "replacing" in sidecar:
        raise CertificateError("mechanism: a run to the sidecar's output was killed; run it again")
    sidecar_decimals = sidecar.get("decimals")
    if sidecar_decimals is not None and decimals not in (None, sidecar_decimals):
        raise ValueError(f"decimals: {decimals}, but the sidecar says {sidecar_decimals}")
    return Certificate.from_dict(columns[column]), decimals if sidecar_decimals is None else sidecar_decimals


@bounded_cache(1 << 28)
def _channel(certificate: Certificate, bounds: tuple[float, float] | None, decimals: int | None) -> Channel:
    if isinstance(certificate, VectorNoiseCertificate | MultivariateCertificate):
        raise TypeError(
            "mechanism: is for vectors; estimate columns perturbed one by one (estimate_mean takes vectors)"
        )
    if isinstance(certificate, NoiseCertificate):
        if bounds is None:
            raise ValueError(
                "bounds: None; additive noise needs the smallest and the largest value that inputs can have"
            )
        channel: Channel = NoiseChannel(certificate, *bounds, decimals)
    else:
        if isinstance(certificate, MixtureCertificate):
            w, first, second = float(certificate.weight), certificate.first.table, certificate.second.table
            mixture: list[tuple[float, Table]] = [(w, first), (1 - w, second)]
        elif isinstance(certificate, WindowCertificate | SquareWaveCertificate | RowCertificate):
            mixture = [(1.0, certificate.table)]
        else:
            raise TypeError(f"mechanism: {type(certificate).__name__} is not of a column of numbers")
        if bounds is not None:
            raise ValueError(f"bounds: {bounds} are for additive noise; a bounded mechanism has its own interval")
        channel = TableChannel(mixture, decimals)
    channel.epsilon = float(certificate.epsilon)
    return channel
