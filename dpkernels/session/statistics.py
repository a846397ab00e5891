"""Specifications of the statistics of a session, with their bounds and groups.

If a cell is missing or not a number, its row is left out of the statistic. Infinities are clipped to the bounds, like
all numbers. So no cell can cause an error.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import ClassVar, TypeAlias

import numpy as np

import dpkernels as dpk
from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.estimation.released import ReleasedQuantile
from dpkernels.session.blocks import Block
from dpkernels.session.bounds import EXPONENTS, bounds_lattice, private_bounds
from dpkernels.session.cells import Key, Keys, numbers
from dpkernels.session.plots import Index
from dpkernels.session.quantiles import private_quantiles, zoom_edges
from dpkernels.session.ratios import Coefficients, Ratio
from dpkernels.session.results import Result
from dpkernels.session.run import Part, Run, WeightedRows, key_count_sampler
from dpkernels.session.sums import UNIT, Lattice, NoisySums, noise_sampler, partition, rounded_down

# A column to a list of its keys, or to "found".
By: TypeAlias = Mapping[str, "str | Sequence[object]"]
FOUND = "found"  # in place of keys, which are then found privately
PRIVATE = "private"  # in place of bounds, which are then found privately
_PRELIMINARY_DIVISOR = 4  # keys that are found, and private bounds, get this part of a statistic's budget each
_MIN_KEY_EPSILON = 0.011  # of the noise of a key
_MAX_GROUPS = 1 << 20  # of a statistic
_QUANTILE_STEPS = 1 << 24  # of the lattice of a quantile without a step
_FEW_EDGES = 64  # of a histogram
_MAX_POINTS = 1 << 32  # of a quantile's lattice: positions are words of 32 bits


class Groups:
    """The groups of rows that stated keys define: one for every combination, or a single one."""

    def __init__(self, keys: Sequence[Keys]) -> None:
        self.keys = keys
        self.count = math.prod(map(len, keys))
        if self.count > _MAX_GROUPS:
            raise ValueError(f"by: has {self.count} groups; at most {_MAX_GROUPS} can be released")

    def codes(self, block: Block) -> np.ndarray:
        """Return the number of each row's group, -1 for none."""
        codes = np.zeros(block.rows, np.int64)
        for keys in self.keys:
            key_codes = keys.codes(block[keys.name])
            codes = np.where((codes >= 0) & (key_codes >= 0), codes * len(keys) + key_codes, -1)
        return codes

    def index(self, repeats: int = 1) -> dict[str, list[Key]]:
        """Return the columns of keys, each group ``repeats`` times."""
        rows = [row for row in product(*(keys.keys for keys in self.keys)) for _ in range(repeats)]
        return {keys.name: [row[i] for row in rows] for i, keys in enumerate(self.keys)}


@dataclass(frozen=True)
class Statistic(abc.ABC):
    """A statistic of the rows of every group.

    ``by`` maps a column to its keys, which are stated without looking at the data, or to "found": then keys that enough
    persons have are released first, which needs a delta.
    """

    by: By | None = field(default=None, kw_only=True)
    column_attributes: ClassVar[tuple[str, ...]] = ()  # the attributes that name columns
    sums_per_group: ClassVar[int] = 1  # sums of each group
    adds_whole_numbers: ClassVar[bool] = False  # whether rows add whole numbers to them

    def __post_init__(self) -> None:
        for attribute in self.column_attributes:
            if not isinstance(name := getattr(self, attribute), Hashable):
                raise TypeError(f"{attribute}: {name!r} is not the name of a column")
        if isinstance(self.by, str) or not isinstance(self.by, Mapping | None):
            raise ValueError(
                f"by: {self.by!r} does not state the keys; give {{column: [keys]}}, or {{column: 'found'}} for those "
                "that many persons have"
            )
        for name, keys in (self.by or {}).items():
            if isinstance(keys, str) and keys == FOUND:
                if len(self.by or {}) > 1:
                    raise ValueError(f"by: {name!r}: keys are found for one column alone; state them for several")
            else:
                Keys(name, keys)

    @property
    def has_private_bounds(self) -> bool:
        return getattr(self, "bounds", None) is not None

    @property
    def stated_bounds(self) -> Mapping[str, tuple[float, float]]:
        """Return the bounds of columns that the user states."""
        return {}

    @property
    def finds_keys(self) -> bool:
        return any(isinstance(keys, str) for keys in (self.by or {}).values())

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns that it reads."""
        columns = [getattr(self, attribute) for attribute in self.column_attributes]
        return tuple(dict.fromkeys([*columns, *(self.by or {})]))

    @property
    def title(self) -> str:
        columns = " on ".join(str(getattr(self, attribute)) for attribute in self.column_attributes)
        by = f" by {' and '.join(map(str, self.by))}" if self.by else ""
        return f"{type(self).__name__.lower()}{f' of {columns}' if columns else ''}{by}"

    @property
    def settings(self) -> str:
        """Return the arguments as text, for reports and keys: with another text, releases of a key would change."""
        arguments = {argument.name: getattr(self, argument.name) for argument in fields(self)}
        return ", ".join(f"{name}={_python_value(value)!r}" for name, value in arguments.items() if value is not None)

    @property
    def is_stated(self) -> bool:
        """Return whether its keys and bounds are stated."""
        return not self.finds_keys and not self.has_private_bounds

    def check(self, rows: int, most_groups: int, epsilon: float, delta: float) -> None:
        """Raise a ValueError for a budget that cannot be used, before it is charged.

        Args:
            rows: the most rows of a person.
            most_groups: the most keys of a person when keys are found.
            epsilon: the statistic's.
            delta: the statistic's.
        """
        preliminary, main = self._divided(epsilon)
        groups = rows  # A person is in no more of the groups whose keys are found.
        if self.finds_keys:
            if not delta:
                raise ValueError("delta: keys that are found need one, such as delta=1e-6")
            if epsilon / _PRELIMINARY_DIVISOR / most_groups < _MIN_KEY_EPSILON:
                least = _MIN_KEY_EPSILON * _PRELIMINARY_DIVISOR * most_groups
                raise ValueError(
                    f"epsilon: {epsilon:g} is too small to find keys, {most_groups} a person; from {least:g} on"
                )
            key_count_sampler(preliminary, delta, most_groups)
        else:
            groups = self.groups().count
        if self.smallest_epsilon(rows) > epsilon * (1 if self.is_stated else 1 - 2 / _PRELIMINARY_DIVISOR):
            raise ValueError(f"epsilon: {epsilon:g} is too small for {self.title} with {rows} rows a person")
        try:
            if self.has_private_bounds:
                noise_sampler(bounds_lattice(rows, preliminary), preliminary, EXPONENTS)
            noise_sampler(*self.noise(rows, groups, main))
        except ValueError as error:
            raise ValueError(
                f"epsilon: {epsilon:g} is too small for {self.title} with {rows} rows a person: {error}"
            ) from error

    def smallest_epsilon(self, rows: int) -> float:
        """Return the smallest epsilon of its choices."""
        return 0.0

    def groups(self) -> Groups:
        return Groups([Keys(name, keys) for name, keys in (self.by or {}).items()])

    def _divided(self, epsilon: float) -> tuple[float, float]:
        """Return the epsilon of keys that are found, and of private bounds; and of what is then released."""
        preliminary = rounded_down(rational(epsilon) / _PRELIMINARY_DIVISOR)
        for _ in range(self.finds_keys + self.has_private_bounds):
            epsilon = _remaining(epsilon, preliminary)
        return preliminary, epsilon

    def release(self, run: Run, epsilon: float, delta: float) -> Result:
        """Return the released statistic; ``epsilon`` and ``delta`` have been charged."""
        statistic: Statistic = self
        preliminary, main = self._divided(epsilon)
        if self.finds_keys:
            keys = find_keys(self, run, preliminary, delta)
            if not any(keys.values()):
                return Result(self.title, keys, np.zeros(0), lambda _: (np.zeros(0),) * 2, _kind=run.table.kind)
            statistic = _unchecked_copy(statistic, by=keys)
        if self.has_private_bounds:
            lower, upper = private_bounds(statistic.names[0], run, preliminary, self.title)
            statistic = _unchecked_copy(statistic, lower=lower, upper=upper, bounds=None)
        return statistic.release_groups(run, statistic.groups(), main)

    @abc.abstractmethod
    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
        """Return the released statistic of groups and bounds that are known."""

    @abc.abstractmethod
    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        """Return the width of the 95 % interval of a group of so many rows, before anything is released."""

    @property
    def cells_per_group(self) -> int:
        """Return the number of cells of each group, such as bins, that have sums of their own."""
        return 1

    def noise(self, rows: int, groups: int, epsilon: float) -> tuple[Lattice, float, int]:
        """Return the lattice, epsilon and number of the sums that get noise."""
        count = groups * self.cells_per_group
        lattice = Lattice.for_sums(rows, epsilon, count, self.sums_per_group, counts=self.adds_whole_numbers)
        return lattice, epsilon, count * self.sums_per_group

    def noisy_sums(self, run: Run, groups: Groups, epsilon: float) -> NoisySums:
        """Return noisy sums of ``weighted_rows`` over the cells of all groups."""
        lattice, epsilon, size = self.noise(run.rows_per_person, groups.count, epsilon)
        shape = size // self.sums_per_group, self.sums_per_group
        sums = run.sums(self.names, shape, lambda block: self.weighted_rows(block, groups.codes(block)))
        return run.add_noise(sums, lattice, epsilon, self.title)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        """Return the cells of rows and their integer weights."""
        return codes, None

    def _noise_width(self, person_rows: int, epsilon: float, confidence: float = 0.95) -> float:
        """Return the width of the interval of one sum of one group."""
        lattice, epsilon, size = self.noise(person_rows, 1, epsilon)
        low, high = dpk.confidence_interval(np.zeros(size), noise_sampler(lattice, epsilon, size), confidence)
        return float((high - low)[0]) * float(lattice.step)


def check_bounds(lower: object, upper: object) -> tuple[float, float]:
    """Return two finite numbers of which the second is the larger."""
    low, high = (checks.number(name, end) for name, end in (("lower", lower), ("upper", upper)))
    checks.interval(low, high)
    return float(low), float(high)


def _vector(name: str, values: object) -> np.ndarray:
    """Return one number or several as an array."""
    with suppress(TypeError, ValueError, OverflowError):
        if np.ndim(array := np.asarray(values, float)) <= 1:
            return array
    raise TypeError(f"{name}: {values!r} are not numbers")


def scaled(cells: np.ndarray, lower: float, upper: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values on [0, 1], 0 for those that are missing, and which are missing."""
    t = np.clip(numbers(cells), lower, upper)
    missing = np.isnan(t)
    t[missing] = lower
    t -= lower
    t /= upper - lower
    return np.clip(t, 0.0, 1.0, out=t), missing


def _python_value(value: object) -> object:
    """Return a value whose numbers are Python's, so that it has one text."""
    if isinstance(value, np.generic | np.ndarray):
        return _python_value(tuple(value.tolist())) if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, Mapping):
        return {_python_value(name): _python_value(entry) for name, entry in value.items()}
    if type(value) is tuple:
        return tuple(map(_python_value, value))
    return list(map(_python_value, value)) if type(value) is list else value


def _unchecked_copy(statistic: Statistic, **changes: object) -> Statistic:
    """Return a changed copy without the checks of what a user states."""
    copy: Statistic = object.__new__(type(statistic))
    for name in (argument.name for argument in fields(statistic)):
        object.__setattr__(copy, name, changes.get(name, getattr(statistic, name)))
    return copy


def _remaining(epsilon: float, spent: float) -> float:
    """Return what is left of a budget."""
    return rounded_down(rational(epsilon) - rational(spent))


def _count_result(title: str, noisy: NoisySums, index: Index, kind: str, chosen: np.ndarray | None = None) -> Result:
    """Return the result of counts, of all or of those that were chosen from them.

    A count that was chosen because it is large has a larger noise than others: then the intervals of all hold at once.
    """
    selected, simultaneous = (slice(None), 1) if chosen is None else (chosen, noisy.values.size)

    def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
        risk = (1 - confidence) / simultaneous
        low, high = (end.reshape(-1)[selected] for end in noisy.bounds(min(1 - risk, np.nextafter(1.0, 0.0))))
        return np.ceil(low - 1e-6), np.floor(high + 1e-6)

    return Result(title, index, noisy.sums.reshape(-1)[selected], bounds, (0.0, np.inf), kind)


@dataclass(frozen=True)
class Count(Statistic):
    """The number of rows."""

    adds_whole_numbers: ClassVar[bool] = True

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
        return _count_result(self.title, self.noisy_sums(run, groups, epsilon), groups.index(), run.table.kind)

    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        return self._noise_width(person_rows, epsilon)


@dataclass(frozen=True)
class Histogram(Count):
    """The numbers of values between edges: bins hold [edge, next edge), and the last one its upper end."""

    column: str
    edges: Sequence[float]
    column_attributes: ClassVar[tuple[str, ...]] = ("column",)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = _vector("edges", self.edges)
        if ends.ndim != 1 or len(ends) < 2 or not np.isfinite(ends).all() or not (np.diff(ends) > 0).all():
            raise ValueError("edges: must be two or more increasing finite numbers, stated without looking at the data")

    @property
    def cells_per_group(self) -> int:
        return len(self.edges) - 1

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
        noisy, ends = self.noisy_sums(run, groups, epsilon), list(self.edges)
        index = groups.index(self.cells_per_group) | {"from": ends[:-1] * groups.count, "to": ends[1:] * groups.count}
        return _count_result(self.title, noisy, index, run.table.kind)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        values, edges = numbers(block[self.column]), np.asarray(self.edges, float)
        if len(edges) <= _FEW_EDGES:  # Comparisons are faster than searches.
            bins = np.full(len(values), -1, np.int64)
            for edge in edges[:-1]:
                bins += values >= edge
        else:
            bins = np.searchsorted(edges[:-1], values, side="right") - 1
        is_counted = (bins >= 0) & (values <= edges[-1]) & (codes >= 0)
        return np.where(is_counted, codes * self.cells_per_group + bins, -1), None


@dataclass(frozen=True)
class Crosstab(Count):
    """The number of rows for every combination of the keys of two columns, which ``by`` states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.by or {}) != 2:
            raise ValueError(f"by: {self.by!r}; a cross table has the keys of two columns")


@dataclass(frozen=True)
class _BoundedColumn(Statistic):
    """A statistic of one column with bounds, to which values are clipped."""

    column: str
    lower: float | None = None
    upper: float | None = None
    bounds: str | None = field(default=None, kw_only=True)
    column_attributes: ClassVar[tuple[str, ...]] = ("column",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bounds is not None:
            checks.one_of("bounds", self.bounds, (PRIVATE,))
            if self.lower is not None or self.upper is not None:
                raise ValueError("bounds: 'private' finds lower and upper; state none of them")
        elif self.lower is None or self.upper is None:
            raise ValueError("lower, upper: must be stated without looking at the data, or give bounds='private'")
        else:
            check_bounds(self.lower, self.upper)

    @property
    def stated_bounds(self) -> Mapping[str, tuple[float, float]]:
        return {} if self.has_private_bounds else {self.column: self._ends}

    @property
    def _ends(self) -> tuple[float, float]:
        return check_bounds(self.lower, self.upper)


@dataclass(frozen=True)
class Sum(_BoundedColumn):
    """The sum of values, each rounded to 2^-32 of the larger bound."""

    @property
    def _size(self) -> float:
        return max(abs(end) for end in self._ends)

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
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

    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        return self._noise_width(person_rows, epsilon) * self._size


def _constant(*coefficients: float) -> Coefficients:
    """Return nu -> coefficients, the same for every nu."""
    return lambda nu: np.broadcast_to(np.array(coefficients), (*np.shape(nu), len(coefficients)))


def _polynomial(*terms: np.ndarray) -> Coefficients:
    """Return nu -> sum_i terms[i] nu^i."""
    return lambda nu: np.sum([np.multiply.outer(np.asarray(nu) ** i, term) for i, term in enumerate(terms)], 0)


def _ratio_width(statistic: Statistic, ratio: Ratio, rows: int, person_rows: int, epsilon: float) -> float:
    """Return the width of a ratio's interval if all sums of a group are equal."""
    lattice, epsilon, size = statistic.noise(person_rows, 1, epsilon)
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
class Mean(_BoundedColumn):
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

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
        noisy, (start, unit) = self.noisy_sums(run, groups, epsilon), self._units
        lowest, highest = (start + unit * end for end in self.ratio.ends)

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            low, high = self.ratio.bounds(noisy, confidence)
            return start + unit * (low - 2.0**-30), start + unit * (high + 2.0**-30)

        values = start + unit * self.ratio.value(noisy)
        return Result(self.title, groups.index(), values, bounds, (lowest, highest), run.table.kind)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        t, missing = scaled(block[self.column], *self._ends)
        return np.where(missing, -1, codes), partition(self._basis(t))

    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        return self._units[1] * _ratio_width(self, self.ratio, rows, person_rows, epsilon)


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

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
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
            scaled(block[name], *ends) for name, ends in zip((self.y, self.x), self._ends, strict=True)
        )
        weights = partition([x_weight * y_weight for x_weight in _bernstein(x) for y_weight in (1 - y, y)])
        return np.where(no_x | no_y, -1, codes), weights

    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        (y0, y1), (x0, x1) = self._ends
        return (y1 - y0) / (x1 - x0) * _ratio_width(self, self._ratios[1], rows, person_rows, epsilon)


@dataclass(frozen=True)
class Quantiles(_BoundedColumn):
    """The smallest values that shares p of the values do not exceed, by the exponential mechanism.

    Attributes:
        p: a number, or increasing numbers, in (0, 1).
        step: a number of which values are multiples above ``lower``, such as 1 for ages; by default none is known.
            It is not used if private bounds have 2^32 of them or more.
        interval_share: the share of the budget for counts between points near the quantiles, from which their intervals
            follow. With 0 the intervals are [lower, upper].
    """

    p: float | Sequence[float] = 0.5
    step: float | None = field(default=None, kw_only=True)
    interval_share: float = field(default=0.3, kw_only=True)
    adds_whole_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        probabilities = self._probabilities if np.isfinite(_vector("p", self.p)).all() else []
        is_inside = len(probabilities) > 0 and all(0 < p < 1 for p in probabilities)
        if not is_inside or any(a >= b for a, b in pairwise(probabilities)):
            raise ValueError(f"p: {self.p!r} must be increasing numbers in (0, 1), at least 1/1000 apart")
        checks.within("interval_share", checks.number("interval_share", self.interval_share), 0.0, 0.9)
        if self.step is not None:
            checks.positive("step", checks.number("step", self.step))
            if not self.has_private_bounds and (self._ends[1] - self._ends[0]) / self.step >= _MAX_POINTS:
                raise ValueError(f"step: {self.step} is too small for so wide bounds; at most 2^32 steps are possible")

    def smallest_epsilon(self, rows: int) -> float:
        return 2e-5 * rows * (1 + math.log2(len(self._probabilities) + 1)) / (1 - self.interval_share)

    @property
    def _probabilities(self) -> list[Fraction]:
        return [Fraction(p).limit_denominator(1000) for p in np.atleast_1d(_vector("p", self.p)).tolist()]

    @property
    def _step(self) -> float | None:
        """Return the step, or None where private bounds are so wide that they have too many of them."""
        lower, upper = self._ends
        return None if self.step is None or (upper - lower) / self.step >= _MAX_POINTS else self.step

    @property
    def _points(self) -> int:
        (lower, upper), step = self._ends, self._step
        if step is None:
            return _QUANTILE_STEPS
        return min(math.floor((upper - lower) / step + 1e-9) + 1, _MAX_POINTS - 1)

    def _values(self, positions: np.ndarray) -> np.ndarray:
        (lower, upper), step = self._ends, self._step
        if step is None:
            return lower + (upper - lower) * (positions + 0.5) / _QUANTILE_STEPS
        return lower + step * positions

    def noise(self, rows: int, groups: int, epsilon: float) -> tuple[Lattice, float, int]:
        """Return those of the counts near the points, of which a person changes at most ``rows``."""
        count_epsilon = rounded_down(rational(epsilon) * rational(float(self.interval_share))) or epsilon
        return Lattice.for_sums(rows, count_epsilon, rows, 1, counts=True), count_epsilon, 1

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
        (lower, upper), probabilities = self._ends, self._probabilities
        lattice, count_epsilon, _ = self.noise(run.rows_per_person, groups.count, epsilon)
        choice_epsilon = _remaining(epsilon, count_epsilon) if self.interval_share else epsilon
        rows = run.sorted_counts(self.names, groups.count, lambda block: self._positions(block, groups.codes(block)))
        points = [private_quantiles(counts, probabilities, self._points, choice_epsilon, run) for counts in rows]
        run.parts.append(Part(f"{self.title}: points", choice_epsilon))
        values = self._values(np.array(points, float).reshape(-1))
        index = groups.index(len(probabilities))
        if len(probabilities) > 1:
            index["p"] = [float(p) for p in probabilities] * groups.count
        if not self.interval_share:
            ends = np.full(len(values), lower), np.full(len(values), upper)
            return Result(self.title, index, values, lambda _: ends, (lower, upper), run.table.kind)
        edges = [zoom_edges(group_points, self._points) for group_points in points]
        counts = [np.diff(counts.count_at_most(group_edges)) for counts, group_edges in zip(rows, edges, strict=True)]
        label = f"{self.title}: counts near the points"
        noisy = run.add_noise(np.concatenate(counts)[:, None], lattice, count_epsilon, label)

        @cache
        def quantiles() -> list[ReleasedQuantile]:
            released = dpk.released_values(noisy.values[:, 0], noisy.sampler)
            by_group = np.split(released, np.cumsum([len(group_edges) - 1 for group_edges in edges])[:-1])
            pairs = zip(by_group, edges, strict=True)
            histograms = [(counts.tolist(), group_edges.astype(float)) for counts, group_edges in pairs]
            return [dpk.histogram_quantile(*histogram, float(p)) for histogram in histograms for p in probabilities]

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            low, high = np.array([quantile.interval(confidence) for quantile in quantiles()]).T
            margin = 0.5 if self._step is None else 0.0  # of a position, which stands for a stretch of values
            return self._values(np.minimum(low + 1, high) - margin), self._values(high + margin)

        return Result(self.title, index, values, bounds, (lower, upper), run.table.kind)

    def _positions(self, block: Block, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (lower, upper), last, step = self._ends, self._points - 1, self._step
        t, missing = scaled(block[self.column], lower, upper)
        positions = np.floor(t * (last + 1)) if step is None else np.rint(t * ((upper - lower) / step))
        is_counted = ~missing & (codes >= 0)
        return codes[is_counted], np.clip(positions[is_counted], 0, last).astype(np.int64)

    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        return self._ends[1] - self._ends[0] if self.interval_share == 0 else math.nan


@dataclass(frozen=True)
class Top(Statistic):
    """The k stated candidates that most persons have, and the numbers of these persons.

    A person counts once for each candidate that one of the person's rows has. If persons have r rows, all counts get
    noise of scale r/epsilon, and the k largest are chosen from these. If r > 2k, half of epsilon is for choices by
    permute-and-flip, and half for the counts of what was chosen, whose scale is then 2k/epsilon.
    """

    column: str
    k: int
    candidates: Sequence[object]
    column_attributes: ClassVar[tuple[str, ...]] = ("column",)
    adds_whole_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by:
            raise ValueError("by: top is for all rows; release a count by group")
        checks.integer_in("k", self.k, 1, len(Keys(self.column, self.candidates)))

    def smallest_epsilon(self, rows: int) -> float:
        return 2.01e-4 * self.k if self._chooses_first(rows) else 0.0

    def _chooses_first(self, rows: int) -> bool:
        return rows > 2 * self.k

    def _choice_epsilon(self, epsilon: float) -> float:
        """Return the epsilon of each choice: half of all is for these."""
        return rounded_down(rational(epsilon) / (2 * self.k))

    def noise(self, rows: int, groups: int, epsilon: float) -> tuple[Lattice, float, int]:
        if not self._chooses_first(rows):
            count = len(self.candidates)
            return Lattice.for_sums(min(rows, count), epsilon, count, 1, counts=True), epsilon, count
        count_epsilon = _remaining(epsilon, float(rational(self._choice_epsilon(epsilon)) * self.k))
        return Lattice.for_sums(min(rows, self.k), count_epsilon, self.k, 1, counts=True), count_epsilon, self.k

    def release_groups(self, run: Run, groups: Groups, epsilon: float) -> Result:
        keys = Keys(self.column, self.candidates)
        counts = run.person_counts(keys)
        lattice, count_epsilon, _ = self.noise(run.rows_per_person, groups.count, epsilon)
        if chooses_first := self._chooses_first(run.rows_per_person):
            chosen = run.choose_top(counts, self._choice_epsilon(epsilon), self.k, self.title)
            counts = counts[chosen]
        noisy = run.add_noise(counts[:, None], lattice, count_epsilon, f"{self.title}: counts")
        if not chooses_first:
            chosen = np.argsort(-noisy.values[:, 0], kind="stable")[: self.k]
        index = {"rank": list(range(1, self.k + 1)), str(self.column): [keys.keys[i] for i in chosen]}
        return _count_result(self.title, noisy, index, run.table.kind, None if chooses_first else chosen)

    def expected_width(self, rows: int, person_rows: int, epsilon: float) -> float:
        count = 1 if self._chooses_first(person_rows) else len(self.candidates)
        return self._noise_width(person_rows, epsilon, 1 - 0.05 / count)


def find_keys(statistic: Statistic, run: Run, epsilon: float, delta: float) -> dict[str, list[Key]]:
    """Return the keys of which the number of persons, with bounded noise, is above the largest noise there is.

    A person is counted for at most c keys, with noise of (epsilon/c, delta/c) each. A key that nobody has is never
    returned, since its noise cannot be above the largest. So the keys that occur need not be known before.
    """
    ((name, _),) = (statistic.by or {}).items()
    sampler = key_count_sampler(epsilon, delta, run.groups_per_person)
    keys, counts = run.person_counts_by_key(name)
    noisy = run.add_bounded_noise(counts, sampler, f"{statistic.title}: keys")
    threshold = float(sampler.certificate.highest)
    frequent = (key for key, count in zip(keys, noisy, strict=True) if count > threshold)
    return {name: sorted(frequent, key=lambda key: (isinstance(key, str), key))}
