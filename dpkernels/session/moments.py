"""Sums, means, variances and regressions, computed from sums of integer weights and their ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpkernels.session.blocks import Block
from dpkernels.session.cells import numbers
from dpkernels.session.ratios import Coefficients, Ratio
from dpkernels.session.results import Result
from dpkernels.session.run import ReleaseInProgress, WeightedRows
from dpkernels.session.statistic import BoundedColumn, Groups, Statistic, check_bounds, to_unit_interval
from dpkernels.session.sums import UNIT, NoisySums, integer_weights, noise_sampler


@dataclass(frozen=True)
class Sum(BoundedColumn):
    """The sum of values, each rounded to 2^-32 of the larger bound."""

    @property
    def _size(self) -> float:
        return max(abs(end) for end in self._ends)

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        noisy, size = self.noisy_sums(run, groups, epsilon), self._size

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            low, high = (end.reshape(-1) * size for end in noisy.bounds(confidence))
            margin = 1e-12 * (np.abs(low) + np.abs(high))
            return low - margin, high + margin

        lower, upper = self._ends
        possible = 0.0 if lower >= 0 else -np.inf, 0.0 if upper <= 0 else np.inf
        return Result(self.title, groups.index(), noisy.sums.reshape(-1) * size, bounds, possible, run.table.kind)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        lower, upper = self._ends
        values = np.clip(numbers(block[self.column]), lower, upper)
        missing = np.isnan(values)
        values[missing] = 0.0
        values /= self._size
        weights = np.clip(values, -1.0, 1.0, out=values)
        weights *= UNIT
        return np.where(missing, -1, codes), [np.rint(weights, out=weights)]

    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        return self._noise_width(rows_per_person, epsilon) * self._size


def _constant(*coefficients: float) -> Coefficients:
    """Return nu -> coefficients, the same for every nu."""
    return lambda nu: np.broadcast_to(np.array(coefficients), (*np.shape(nu), len(coefficients)))


def _polynomial(*terms: np.ndarray) -> Coefficients:
    """Return nu -> sum_i terms[i] nu^i."""
    return lambda nu: np.sum([np.multiply.outer(np.asarray(nu) ** i, term) for i, term in enumerate(terms)], 0)


def _ratio_width(statistic: Statistic, ratio: Ratio, rows: int, rows_per_person: int, epsilon: float) -> float:
    """Return the width of a ratio's interval if all sums of a group are equal."""
    lattice, epsilon, size = statistic.noise_parameters(rows_per_person, 1, epsilon)
    values = np.full((1, size), np.rint(rows / size / float(lattice.step)))
    low, high = ratio.bounds(NoisySums(values, lattice, noise_sampler(lattice, epsilon, size)), 0.95)
    return float(high[0] - low[0])


# Of the Bernstein basis (1 - t)^2, 2 t (1 - t), t^2: the coefficients of 1, t and t^2.
_ONE = np.array([1.0, 1, 1])
_FIRST = np.array([0.0, 0.5, 1])
_SECOND = np.array([0.0, 0, 1])


def _bernstein(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (1 - t) ** 2, 2 * t * (1 - t), t**2


@dataclass(frozen=True)
class Mean(BoundedColumn):
    """The mean of values, from sum t and sum (1 - t), t the values scaled to [0, 1]."""

    sums_per_group: ClassVar[int] = 2
    ratio: ClassVar[Ratio] = Ratio(_constant(1.0, 0.0), _constant(1.0, 1.0), (0.0, 1.0))

    @property
    def _units(self) -> tuple[float, float]:
        """Return start and unit: the statistic is start + unit ratio."""
        lower, upper = self._ends
        return lower, upper - lower

    def _basis(self, t: np.ndarray) -> tuple[np.ndarray, ...]:
        return t, 1 - t

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        noisy, (start, unit) = self.noisy_sums(run, groups, epsilon), self._units
        lowest, highest = (start + unit * end for end in self.ratio.ends)

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            low, high = self.ratio.bounds(noisy, confidence)
            return start + unit * (low - 2.0**-30), start + unit * (high + 2.0**-30)

        values = start + unit * self.ratio.value(noisy)
        return Result(self.title, groups.index(), values, bounds, (lowest, highest), run.table.kind)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        t, missing = to_unit_interval(block[self.column], *self._ends)
        return np.where(missing, -1, codes), integer_weights(self._basis(t))

    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        return self._units[1] * _ratio_width(self, self.ratio, rows, rows_per_person, epsilon)


@dataclass(frozen=True)
class Variance(Mean):
    """The mean squared distance of values from their mean, from sums of the Bernstein basis of degree 2."""

    sums_per_group: ClassVar[int] = 3
    ratio: ClassVar[Ratio] = Ratio(
        _polynomial(_SECOND, -2 * _FIRST, _ONE),
        _constant(*_ONE),
        (0.0, 0.25),
        Ratio(_constant(*_FIRST), _constant(*_ONE), (0.0, 1.0)),
    )

    @property
    def _units(self) -> tuple[float, float]:
        lower, upper = self._ends
        return 0.0, (upper - lower) ** 2

    def _basis(self, t: np.ndarray) -> tuple[np.ndarray, ...]:
        return _bernstein(t)


@dataclass(frozen=True)
class Regression(Statistic):
    """The least-squares line of y on x: its value at x = 0, and its slope.

    Sums of 6 products of Bernstein bases, of degree 2 in x and 1 in y, have all the moments that the line needs.
    """

    y: str
    x: str
    y_bounds: tuple[float, float] = field(kw_only=True)
    x_bounds: tuple[float, float] = field(kw_only=True)
    column_attributes: ClassVar[tuple[str, ...]] = ("y", "x")
    sums_per_group: ClassVar[int] = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("y_bounds", "x_bounds"):
            if np.shape(getattr(self, name)) != (2,):
                raise ValueError(
                    f"{name}: {getattr(self, name)!r} must be (lower, upper), stated without looking at the data"
                )
            check_bounds(*getattr(self, name))

    @property
    def stated_bounds(self) -> Mapping[str, tuple[float, float]]:
        y_ends, x_ends = self._ends
        return {self.y: y_ends, self.x: x_ends}

    @property
    def _ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return check_bounds(*self.y_bounds), check_bounds(*self.x_bounds)

    @property
    def _ratios(self) -> tuple[Ratio, Ratio]:
        """Return the line's value at x = 0 and its slope, for x and y scaled to [0, 1]."""
        low, high = self._ends[1]
        zero = -low / (high - low)
        ones, y = np.array([1.0, 1.0]), np.array([0.0, 1.0])
        n, x, xx = (np.kron(moment, ones) for moment in (_ONE, _FIRST, _SECOND))
        sy, xy = np.kron(_ONE, y), np.kron(_FIRST, y)
        mean = Ratio(_constant(*x), _constant(*n), (0.0, 1.0))
        slope = Ratio(_polynomial(xy, -sy), _polynomial(xx, -2 * x, n), nuisance=mean)
        # With moments about zero, sum (y - tau) (1 - kappa x) = 0 at kappa = sum x / sum x^2.
        first, second, mixed = x - zero * n, xx - 2 * zero * x + zero**2 * n, xy - zero * sy
        kappa = Ratio(_constant(*first), _constant(*second))
        return Ratio(_polynomial(sy, -mixed), _polynomial(n, -first), nuisance=kappa), slope

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        noisy = self.noisy_sums(run, groups, epsilon)
        (y0, y1), (x0, x1) = self._ends
        starts, units = np.array([y0, 0.0]), np.array([y1 - y0, (y1 - y0) / (x1 - x0)])
        ratios = self._ratios

        def rescaled(coefficients: Sequence[np.ndarray]) -> np.ndarray:
            return (starts + units * np.stack(coefficients, 1)).reshape(-1)

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            lows, highs = zip(*(ratio.bounds(noisy, confidence) for ratio in ratios), strict=True)
            return rescaled(lows), rescaled(highs)

        index = groups.index(2) | {"coefficient": ["at 0", "slope"] * groups.count}
        values = rescaled([ratio.value(noisy) for ratio in ratios])
        return Result(self.title, index, values, bounds, _kind=run.table.kind)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        (y, no_y), (x, no_x) = (
            to_unit_interval(block[name], *ends) for name, ends in zip((self.y, self.x), self._ends, strict=True)
        )
        weights = integer_weights([x_weight * y_weight for x_weight in _bernstein(x) for y_weight in (1 - y, y)])
        return np.where(no_x | no_y, -1, codes), weights

    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        (y0, y1), (x0, x1) = self._ends
        return (y1 - y0) / (x1 - x0) * _ratio_width(self, self._ratios[1], rows, rows_per_person, epsilon)
