"""The channel between inputs and reports: the probabilities of a table's reports given an input.

An input between two rows of a table is rounded to one of them at random, so P(report | x) is linear between rows. For
an input that is uniform on a bin, the probability is the average over the bin, a difference of integrals.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import signal

from dpkernels.decimals import shortest
from dpkernels.estimation.tables import (
    Squares,
    inputs_of,
    integrals_of,
    probabilities_of,
    reports_of,
    row_means,
    squares_of,
    unbiased,
)
from dpkernels.exact.noise import NoiseCertificate
from dpkernels.exact.rows import RowTable
from dpkernels.exact.windows import WindowTable

# The largest number of lattice points on which reports of additive noise are counted.
_MOST_POINTS = 1 << 22
# The largest input in grid points, so that 64-bit integers hold all positions.
_FARTHEST = 2.0**62
# Tables with fewer cells per sensitivity than this are those of noise on a grid; other tables have about 512.
_FINE = 64
# The number of positions at which variances are compared; they are convex in the position, or constant.
_MOST_SHIFTS = 256
_MOST_PLACES = 512  # inputs at which a distribution can have mass
_COMPARED = 5  # edges of bins whose reports are compared
_NO_SQUARES = "its reports tell the mean only: values with the same mean but another spread are reported alike"


class Channel(abc.ABC):
    """The conditional probabilities P(report | input) of one released column.

    Attributes:
        lower: smallest input.
        upper: largest input.
        written: (m,) the possible reports as written, increasing.
        values: (m,) the unbiased values of the reports: their mean, given an input, is the input. They are the reports
            less the mean of the noise. Reports that became equal by rounding to decimals have their mean value.
        bias_bound: a bound on the bias of the values; 0 unless rounding to decimals has made reports equal.
        epsilon: the budget of a report, if it is known.
        lattice: the distance between possible inputs, if the mechanism assumes that they are on a lattice.
    """

    lower: float
    upper: float
    written: np.ndarray
    values: np.ndarray
    bias_bound: float
    epsilon: float | None = None
    lattice: float | None = None

    @abc.abstractmethod
    def integrals(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return the integral of P(report in group | u) over u up to every x, from an arbitrary starting point.

        Args:
            x: (k,) inputs, increasing.
            groups: (g,) the first report of every group, increasing from 0.

        Returns:
            (g, k), in data units.
        """

    @abc.abstractmethod
    def at(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return (g, k) P(report in group | input x).

        Args:
            x: (k,) inputs.
            groups: (g,) the first report of every group, increasing from 0.
        """

    @property
    @abc.abstractmethod
    def places(self) -> np.ndarray:
        """Return (k,) increasing inputs between which P(report | x) is linear.

        Every distribution of inputs has the same distribution of reports as one on these places: the mass between two
        places moves to both in proportion. If there would be too many places, P is linear between them approximately.
        """

    @property
    @abc.abstractmethod
    def squares(self) -> Squares:
        """Return (m,) weights whose mean over the reports of x is (x - middle)^2, and a bound on their bias.

        Raises:
            ValueError: the reports have no information beyond the mean.
        """

    @abc.abstractmethod
    def means(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return increasing inputs, and the means of (m,) weights over their reports, which are linear in between."""

    def worst(self, weights: np.ndarray) -> tuple[float, float]:
        """Return the largest variance, and the largest distance from the mean, of weights given any one input.

        Args:
            weights: (m,).
        """
        weights = weights - weights.mean()  # Far from 0, squares would have no digits left for the variance.
        (_, first), (_, second) = self.means(weights), self.means(weights**2)
        # Between these inputs both are linear, and the variance is at most that of the ends and their distance's.
        variance = (second - first**2).max() + (np.diff(first) ** 2).max() / 4
        return float(variance), float(max(weights.max() - first.min(), first.max() - weights.min()))

    @cached_property
    def mean_variance(self) -> float:
        """Return the largest variance of a report's value, given any one input."""
        return self.worst(self.values)[0]

    @cached_property
    def square_variance(self) -> float:
        """Return the largest variance of a report's weight in ``squares``, given any one input."""
        return self.worst(self.squares[0])[0]

    def _made_right(self, weights: np.ndarray, power: int) -> Squares:
        """Return weights whose means are (x - middle)^power, corrected for the constant that rounding has added."""
        if not self._is_merged:
            return weights, 0.0
        x, means = self.means(weights)
        away = means - (x - self.middle) ** power
        low, high = float(away.min()), float(away.max())
        return weights - (low + high) / 2, (high - low) / 2

    @property
    @abc.abstractmethod
    def _is_merged(self) -> bool:
        """Return whether rounding to decimals has made reports equal."""

    def same(self, other: Channel) -> bool:
        """Return whether two reports are the same number and equally probable for every input."""
        if self is other:
            return True
        if (self.lower, self.upper) != (other.lower, other.upper) or not np.array_equal(self.written, other.written):
            return False
        edges, every = np.linspace(self.lower, self.upper, _COMPARED), np.arange(len(self.written))
        return bool(np.allclose(self.matrix(edges, every), other.matrix(edges, every), rtol=1e-9, atol=0))

    @property
    def middle(self) -> float:
        """Return the middle of the inputs."""
        return (self.lower + self.upper) / 2

    def matrix(self, edges: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return (g, d) P(report in group | input uniform on a bin), of the d bins between edges."""
        return np.maximum(np.diff(self.integrals(edges, groups), axis=1) / np.diff(edges), 0.0)


class TableChannel(Channel):
    """The channel of one bounded table, or of a mixture of tables chosen independently of the input.

    Args:
        parts: tables with the probability of each.
        decimals: the number of decimals to which written reports were rounded; None if they were not.
    """

    def __init__(self, parts: Sequence[tuple[float, WindowTable | RowTable]], decimals: int | None = None) -> None:
        self.parts = tuple(parts)
        self.lower, self.upper = parts[0][1].lower, parts[0][1].upper
        exact = np.concatenate([reports_of(table) for _, table in parts])
        self.written, places = np.unique(exact if decimals is None else exact.round(decimals), return_inverse=True)
        # Reports of a window placed at the input are stretched by the inverse of its slope, which makes them unbiased.
        stand_for = np.concatenate([reports_of(unbiased(table)) for _, table in parts])
        values = np.bincount(places, stand_for) / np.bincount(places) - self.middle
        self._places = np.split(places, np.cumsum([table.codes for _, table in parts])[:-1])
        right, self.bias_bound = self._made_right(values, 1)
        self.values = right + self.middle

    @property
    def _is_merged(self) -> bool:
        return len(self.written) < sum(len(places) for places in self._places)

    def integrals(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        total = np.zeros((len(self.written), len(x)))
        for (weight, table), places in zip(self.parts, self._places, strict=True):
            np.add.at(total, places, weight * integrals_of(table, x))
        return np.add.reduceat(total, groups)

    def at(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        total = np.zeros((len(self.written), len(x)))
        for (weight, table), places in zip(self.parts, self._places, strict=True):
            np.add.at(total, places, weight * probabilities_of(table, x))
        return np.add.reduceat(total, groups)

    @cached_property
    def places(self) -> np.ndarray:
        return np.unique(np.concatenate([inputs_of(table) for _, table in self.parts]))

    def means(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = self.places
        means = np.zeros(len(x))
        for (weight, table), places in zip(self.parts, self._places, strict=True):
            means += weight * np.interp(x, inputs_of(table), row_means(table, weights[places]))
        return x, means

    @cached_property
    def squares(self) -> Squares:
        found = [(weight, table, squares_of(table)) for weight, table in self.parts]
        known = sum(weight for weight, _, squares in found if squares)
        if not known:
            raise ValueError(f"mechanism: {_NO_SQUARES}")
        # A part without information contributes 0, and the others are scaled up.
        each = [squares[0] / known if squares else np.zeros(table.codes) for _, table, squares in found]
        places = np.concatenate(self._places)
        g, bias_bound = self._made_right(np.bincount(places, np.concatenate(each)) / np.bincount(places), 2)
        return g, bias_bound + max(squares[1] for _, _, squares in found if squares)


class NoiseChannel(Channel):
    """The channel of additive noise on inputs of a known interval.

    An input at grid point i = q M + f, 0 <= f < M, is rounded to position q + 1 with probability f/M, else to q. If the
    grid is coarse compared with the sensitivity, inputs are assumed to be on the grid, and M is 1.

    Args:
        certificate: the certificate of the noise.
        lower: smallest input.
        upper: largest input.
        decimals: as for ``TableChannel``.

    Raises:
        ValueError: the interval is too wide for the noise, or too far from 0.
    """

    def __init__(self, certificate: NoiseCertificate, lower: float, upper: float, decimals: int | None = None) -> None:
        self.table, self.lower, self.upper = certificate.table, lower, upper
        table, on_lattice = certificate.table, certificate.shift < _FINE
        self._grain, self._grains = (
            (float(table.bin_width), 1) if on_lattice else (2.0**table.grid_log2, table.points_per_bin)
        )
        self.lattice = self._grain if on_lattice else None
        asked = f"bounds: [{shortest(lower)}, {shortest(upper)}]"
        if max(abs(lower), abs(upper)) / self._grain >= _FARTHEST:
            raise ValueError(f"{asked} is too far from 0 for the noise, whose values are {self._grain:.3g} apart")
        begin, end = (int(np.floor(x / self._grain + 0.5)) for x in (lower, upper))
        self._first = begin // self._grains + table.first
        points = -(-end // self._grains) + table.last - self._first + 1
        if points > _MOST_POINTS:
            raise ValueError(
                f"{asked} has {points:.3g} possible reports, more than {_MOST_POINTS}; "
                "the noise hardly matters on so wide an interval"
            )
        self._points = points
        exact = (self._first + np.arange(points)) * float(table.bin_width)
        rounded = exact if decimals is None else exact.round(decimals)
        self.written, self._begin, self._places = np.unique(rounded, return_index=True, return_inverse=True)
        values = np.bincount(self._places, exact) / np.bincount(self._places) - float(table.mean) - self.middle
        right, self.bias_bound = self._made_right(values, 1)
        self.values = right + self.middle

    @property
    def _is_merged(self) -> bool:
        return len(self.written) < self._points

    def integrals(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        return np.diff(self._below(self._ends(groups), x), axis=0)

    def at(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return P(report in group | x); G(n) = P(code < n), and x is rounded to q + 1 with probability f/M."""
        q, f = np.divmod(np.floor(x / self._grain + 0.5).astype(np.int64), self._grains)
        n = self._ends(groups) - q
        below = (1 - f / self._grains) * self._noise(n) + f / self._grains * self._noise(n - 1)
        return np.diff(below, axis=0)

    @cached_property
    def places(self) -> np.ndarray:
        """Return the lattice positions that inputs are rounded to, or some of them, and both ends of the interval."""
        width = float(self.table.bin_width)
        count = round((self.upper - self.lower) / width)
        if count > _MOST_PLACES:
            return np.linspace(self.lower, self.upper, _MOST_PLACES + 1)
        inner = width * np.arange(math.ceil(self.lower / width), math.floor(self.upper / width) + 1)
        return np.unique(np.concatenate([[self.lower], inner, [self.upper]]))

    def _ends(self, groups: np.ndarray) -> np.ndarray:
        """Return (g + 1, 1) the first lattice point of every group, and the first one after all groups."""
        return (self._first + np.append(self._begin[groups], self._points))[:, None]

    def means(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the means at every lattice position, or at some of them and both ends if no report was rounded."""
        noise, weights = self.table.weights / 2.0**self.table.bits, weights[self._places]
        shifts = self._points - self.table.codes
        at = np.unique(np.linspace(0, shifts, min(shifts, _MOST_SHIFTS) + 1).astype(int))
        if self._is_merged and shifts > _MOST_SHIFTS:
            at, means = np.arange(shifts + 1), signal.fftconvolve(weights, noise[::-1], "valid")
        else:
            means = np.array([noise @ weights[i : i + self.table.codes] for i in at])
        return (self._first - self.table.first + at) * float(self.table.bin_width), means

    def _below(self, end: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the integral of P(position + code < end | u) over u up to x, from the first position on.

        With G(n) = P(code < n) it is a sum over grains of (1 - f/M) G(end - q) + f/M G(end - q - 1).
        """
        grain, M = self._grain, self._grains
        i, part = np.divmod(x / grain + 0.5, 1.0)
        q, f = np.divmod(i.astype(np.int64), M)
        here, next_ = self._noise(end - q), self._noise(end - q - 1)
        start = end - (self._first - self.table.first)
        cells = (M + 1) / 2 * (self._sums(start) - self._sums(end - q))
        cells += (M - 1) / 2 * (self._sums(start - 1) - self._sums(end - q - 1))
        grains = f * here + f * (f - 1) / (2 * M) * (next_ - here)
        return grain * (cells + grains + part * (here + f / M * (next_ - here)))

    def _noise(self, n: np.ndarray) -> np.ndarray:
        """Return G(n) = P(code < n)."""
        return self._cumulated[np.clip(n - self.table.first, 0, self.table.codes)]

    def _sums(self, n: np.ndarray) -> np.ndarray:
        """Return the sum of G(j) over j <= n."""
        at = n - self.table.first
        return self._summed[np.clip(at, 0, self.table.codes)] + np.maximum(at - self.table.codes, 0)

    @cached_property
    def _cumulated(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self.table.weights / 2.0**self.table.bits))

    @cached_property
    def _summed(self) -> np.ndarray:
        return np.cumsum(self._cumulated)

    @cached_property
    def squares(self) -> Squares:
        """Return y^2 minus the variance of the noise; rounding the input adds h^2 (1 - 1/M^2)/6 on average."""
        cell = float(self.table.bin_width)
        rounding = cell**2 * (1 - self._grains**-2) / 6
        return self._made_right((self.values - self.middle) ** 2 - float(self.table.variance) - rounding, 2)
