"""Counts of rows and of values in bins, and the most frequent candidates with their numbers of persons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.session.blocks import Block
from dpkernels.session.cells import Keys, numbers
from dpkernels.session.plots import Index
from dpkernels.session.results import Result
from dpkernels.session.run import ReleaseInProgress, WeightedRows
from dpkernels.session.statistic import Groups, Statistic, as_vector, remaining_budget
from dpkernels.session.sums import NoisySums, SumLattice, floor_to_9_digits

_FEW_EDGES = 64  # of a histogram


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

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        return _count_result(self.title, self.noisy_sums(run, groups, epsilon), groups.index(), run.table.kind)

    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        return self._noise_width(rows_per_person, epsilon)


@dataclass(frozen=True)
class Histogram(Count):
    """The numbers of values between edges: bins hold [edge, next edge), and the last one its upper end."""

    column: str
    edges: Sequence[float]
    column_attributes: ClassVar[tuple[str, ...]] = ("column",)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = as_vector("edges", self.edges)
        if ends.ndim != 1 or len(ends) < 2 or not np.isfinite(ends).all() or not (np.diff(ends) > 0).all():
            raise ValueError("edges: must be two or more increasing finite numbers, stated without looking at the data")

    @property
    def cells_per_group(self) -> int:
        return len(self.edges) - 1

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
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

    def smallest_epsilon(self, rows_per_person: int) -> float:
        return 2.01e-4 * self.k if self._chooses_first(rows_per_person) else 0.0

    def _chooses_first(self, rows_per_person: int) -> bool:
        return rows_per_person > 2 * self.k

    def _choice_epsilon(self, epsilon: float) -> float:
        """Return the epsilon of each choice: half of all is for these."""
        return floor_to_9_digits(rational(epsilon) / (2 * self.k))

    def noise_parameters(self, rows_per_person: int, groups: int, epsilon: float) -> tuple[SumLattice, float, int]:
        count, count_epsilon = len(self.candidates), epsilon
        if self._chooses_first(rows_per_person):
            count = self.k
            count_epsilon = remaining_budget(epsilon, float(rational(self._choice_epsilon(epsilon)) * count))
        lattice = SumLattice.for_sums(min(rows_per_person, count), count_epsilon, count, 1, counts=True)
        return lattice, count_epsilon, count

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        keys = Keys(self.column, self.candidates)
        counts = run.person_counts(keys)
        lattice, count_epsilon, _ = self.noise_parameters(run.rows_per_person, groups.count, epsilon)
        if chooses_first := self._chooses_first(run.rows_per_person):
            chosen = run.choose_top(counts, self._choice_epsilon(epsilon), self.k, self.title)
            counts = counts[chosen]
        noisy = run.add_noise(counts[:, None], lattice, count_epsilon, f"{self.title}: counts")
        if not chooses_first:
            chosen = np.argsort(-noisy.values[:, 0], kind="stable")[: self.k]
        index = {"rank": list(range(1, self.k + 1)), str(self.column): [keys.keys[i] for i in chosen]}
        return _count_result(self.title, noisy, index, run.table.kind, None if chooses_first else chosen)

    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        count = 1 if self._chooses_first(rows_per_person) else len(self.candidates)
        return self._noise_width(rows_per_person, epsilon, 1 - 0.05 / count)
