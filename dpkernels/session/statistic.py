"""The interface of a statistic of a session: its groups, budget and noise.

If a cell is missing or not a number, its row is left out of the statistic. Infinities are clipped to the bounds, like
all numbers. So no cell can cause an error.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import product
from typing import ClassVar, TypeAlias

import numpy as np

import dpkernels as dpk
from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.session.blocks import Block
from dpkernels.session.bounds import EXPONENTS, bounds_lattice, private_bounds
from dpkernels.session.cells import Key, Keys, numbers
from dpkernels.session.results import Result
from dpkernels.session.run import ReleaseInProgress, WeightedRows, key_count_sampler
from dpkernels.session.sums import NoisySums, SumLattice, floor_to_9_digits, noise_sampler

# A column to a list of its keys, or to "found".
By: TypeAlias = Mapping[str, "str | Sequence[object]"]
FOUND = "found"  # in place of keys, which are then found privately
PRIVATE = "private"  # in place of bounds, which are then found privately
_SELECTION_DIVISOR = 4  # keys that are found, and private bounds, get this part of a statistic's budget each
_MIN_KEY_EPSILON = 0.011  # of the noise of a key
_MAX_GROUPS = 1 << 20  # of a statistic


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

    def index(self, repeats: int = 1) -> dict[str, Sequence[object]]:
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
    def arguments_text(self) -> str:
        """Return the arguments as text, for reports and keys: with another text, releases of a key would change."""
        arguments = {argument.name: getattr(self, argument.name) for argument in fields(self)}
        return ", ".join(f"{name}={_python_value(value)!r}" for name, value in arguments.items() if value is not None)

    @property
    def has_stated_keys_and_bounds(self) -> bool:
        """Return whether its keys and bounds are stated."""
        return not self.finds_keys and not self.has_private_bounds

    def check_budget(self, rows_per_person: int, groups_per_person: int, epsilon: float, delta: float) -> None:
        """Raise a ValueError for a budget that cannot be used, before it is charged.

        Args:
            rows_per_person: the most rows of a person.
            groups_per_person: the most keys of a person when keys are found.
            epsilon: the statistic's.
            delta: the statistic's.
        """
        selection_epsilon, main = self._divide_budget(epsilon)
        if self.finds_keys:
            groups = rows_per_person  # A person is in no more of the groups whose keys are found.
            if not delta:
                raise ValueError("delta: keys that are found need one, such as delta=1e-6")
            if epsilon / _SELECTION_DIVISOR / groups_per_person < _MIN_KEY_EPSILON:
                least = _MIN_KEY_EPSILON * _SELECTION_DIVISOR * groups_per_person
                raise ValueError(
                    f"epsilon: {epsilon:g} is too small to find keys, {groups_per_person} a person; from {least:g} on"
                )
            key_count_sampler(selection_epsilon, delta, groups_per_person)
        else:
            groups = self.groups().count
        if self.smallest_epsilon(rows_per_person) > epsilon * (
            1 if self.has_stated_keys_and_bounds else 1 - 2 / _SELECTION_DIVISOR
        ):
            raise ValueError(f"epsilon: {epsilon:g} is too small for {self.title} with {rows_per_person} rows a person")
        try:
            if self.has_private_bounds:
                noise_sampler(bounds_lattice(rows_per_person, selection_epsilon), selection_epsilon, EXPONENTS)
            noise_sampler(*self.noise_parameters(rows_per_person, groups, main))
        except ValueError as error:
            raise ValueError(
                f"epsilon: {epsilon:g} is too small for {self.title} with {rows_per_person} rows a person: {error}"
            ) from error

    def smallest_epsilon(self, rows_per_person: int) -> float:
        """Return the smallest epsilon of its choices."""
        return 0.0

    def groups(self) -> Groups:
        return Groups([Keys(name, keys) for name, keys in (self.by or {}).items()])

    def _divide_budget(self, epsilon: float) -> tuple[float, float]:
        """Return the epsilon of keys that are found, and of private bounds; and of what is then released."""
        selection_epsilon = floor_to_9_digits(rational(epsilon) / _SELECTION_DIVISOR)
        for _ in range(self.finds_keys + self.has_private_bounds):
            epsilon = remaining_budget(epsilon, selection_epsilon)
        return selection_epsilon, epsilon

    def release(self, run: ReleaseInProgress, epsilon: float, delta: float) -> Result:
        """Return the released statistic; ``epsilon`` and ``delta`` have been charged."""
        statistic: Statistic = self
        selection_epsilon, main = self._divide_budget(epsilon)
        if self.finds_keys:
            keys = find_keys(self, run, selection_epsilon, delta)
            if not any(keys.values()):
                return Result(self.title, keys, np.zeros(0), lambda _: (np.zeros(0),) * 2, _kind=run.table.kind)
            statistic = _unchecked_copy(statistic, by=keys)
        if self.has_private_bounds:
            lower, upper = private_bounds(statistic.names[0], run, selection_epsilon, self.title)
            statistic = _unchecked_copy(statistic, lower=lower, upper=upper, bounds=None)
        return statistic.release_groups(run, statistic.groups(), main)

    @abc.abstractmethod
    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        """Return the released statistic of groups and bounds that are known."""

    @abc.abstractmethod
    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        """Return the width of the 95 % interval of a group of so many rows, before anything is released."""

    @property
    def cells_per_group(self) -> int:
        """Return the number of cells of each group, such as bins, that have sums of their own."""
        return 1

    def noise_parameters(self, rows_per_person: int, groups: int, epsilon: float) -> tuple[SumLattice, float, int]:
        """Return the lattice, epsilon and number of the sums that get noise."""
        count = groups * self.cells_per_group
        lattice = SumLattice.for_sums(
            rows_per_person, epsilon, count, self.sums_per_group, counts=self.adds_whole_numbers
        )
        return lattice, epsilon, count * self.sums_per_group

    def noisy_sums(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> NoisySums:
        """Return noisy sums of ``weighted_rows`` over the cells of all groups."""
        lattice, epsilon, size = self.noise_parameters(run.rows_per_person, groups.count, epsilon)
        shape = size // self.sums_per_group, self.sums_per_group
        sums = run.sums(self.names, shape, lambda block: self.weighted_rows(block, groups.codes(block)))
        return run.add_noise(sums, lattice, epsilon, self.title)

    def weighted_rows(self, block: Block, codes: np.ndarray) -> WeightedRows:
        """Return the cells of rows and their integer weights."""
        return codes, None

    def _noise_width(self, rows_per_person: int, epsilon: float, confidence: float = 0.95) -> float:
        """Return the width of the interval of one sum of one group."""
        lattice, epsilon, size = self.noise_parameters(rows_per_person, 1, epsilon)
        low, high = dpk.confidence_interval(np.zeros(size), noise_sampler(lattice, epsilon, size), confidence)
        return float((high - low)[0]) * float(lattice.step)


@dataclass(frozen=True)
class BoundedColumn(Statistic):
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


def check_bounds(lower: object, upper: object) -> tuple[float, float]:
    """Return two finite numbers of which the second is the larger."""
    low, high = (checks.number(name, end) for name, end in (("lower", lower), ("upper", upper)))
    checks.interval(low, high)
    return float(low), float(high)


def as_vector(name: str, values: object) -> np.ndarray:
    """Return one number or several as an array."""
    with suppress(TypeError, ValueError, OverflowError):
        if np.ndim(array := np.asarray(values, float)) <= 1:
            return array
    raise TypeError(f"{name}: {values!r} are not numbers")


def to_unit_interval(cells: np.ndarray, lower: float, upper: float) -> tuple[np.ndarray, np.ndarray]:
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


def remaining_budget(epsilon: float, spent: float) -> float:
    """Return what is left of a budget."""
    return floor_to_9_digits(rational(epsilon) - rational(spent))


def find_keys(statistic: Statistic, run: ReleaseInProgress, epsilon: float, delta: float) -> dict[str, list[Key]]:
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
