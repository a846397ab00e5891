"""Counts of rows by integer or by pair, in memory proportional to the number of distinct integers or pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

HALF = np.uint64(32)  # the bits of each part of a word that has a pair
LOW_HALF = np.uint64(0xFFFFFFFF)  # of such a word
_SORTED_WORDS = 1 << 20  # words that are sorted at once, about
_MIN_UNMERGED = 1 << 23  # words that are stored before they are merged


@dataclass(frozen=True)
class SortedCounts:
    """The integers of rows: which ones there are, increasing, and how many rows have each."""

    values: np.ndarray
    counts: np.ndarray

    @cached_property
    def cumulative(self) -> np.ndarray:
        """Return the number of rows below each value, and that of all rows."""
        cumulative = np.zeros(len(self.values) + 1, np.int64)
        np.cumsum(self.counts, out=cumulative[1:])
        return cumulative

    def __len__(self) -> int:
        return int(self.cumulative[-1])

    def count_at_most(self, limits: np.ndarray) -> np.ndarray:
        """Return the number of rows that are at most each of these limits."""
        return self.cumulative[np.searchsorted(self.values, limits, side="right")]

    def split(self, limit: int) -> tuple[SortedCounts, SortedCounts]:
        """Return the rows that are at most a limit, and those above it."""
        cut = int(np.searchsorted(self.values, limit, side="right"))
        return SortedCounts(self.values[:cut], self.counts[:cut]), SortedCounts(self.values[cut:], self.counts[cut:])


class DistinctWords:
    """Distinct words of 64 bits, and how often each was added: 12 bytes each, or 24 while they are merged."""

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # increasing words and their counts
        self._size, self._merged_size = 0, 0  # of all runs, and of the first one after a merge

    def add(self, words: np.ndarray, counts: np.ndarray) -> None:
        """Add distinct words, increasing, and how often each is there."""
        self._runs.append((words, counts.astype(np.uint32)))
        self._size += len(words)
        if self._size > 2 * max(self._merged_size, _MIN_UNMERGED):
            self.sorted()

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all words, increasing, and how often each was added."""
        # Pages that are not written take no memory.
        words, counts, size = np.empty(self._size, np.uint64), np.empty(self._size, np.uint32), 0
        for repeated, repeated_counts in self._ranges():
            is_first = np.ones(len(repeated), bool)
            is_first[1:] = repeated[1:] != repeated[:-1]
            starts = np.flatnonzero(is_first)
            stop = size + len(starts)
            words[size:stop] = repeated[starts]
            counts[size:stop] = np.add.reduceat(repeated_counts, starts) if len(starts) else 0
            size = stop
        self._runs, self._size, self._merged_size = [(words[:size], counts[:size])], size, size
        return self._runs[0]

    def _ranges(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the words of all runs, with repeats, and their counts: increasing ranges of about 2^20 words."""
        step = max(self._size >> 12, 1)
        sample = np.sort(np.concatenate([np.zeros(0, np.uint64), *(words[::step] for words, _ in self._runs)]))
        cuts = np.unique(sample[:: max(len(sample) * _SORTED_WORDS // max(self._size, 1), 1)])
        ends = [[0, *np.searchsorted(words, cuts[1:]).tolist(), len(words)] for words, _ in self._runs]
        for k in range(max(len(cuts), 1)):
            slices = [slice(run_ends[k], run_ends[k + 1]) for run_ends in ends]
            runs = [(words[rows], counts[rows]) for rows, (words, counts) in zip(slices, self._runs, strict=True)]
            words = np.concatenate([np.zeros(0, np.uint64), *(words for words, _ in runs)])
            order = np.argsort(words, kind="stable")
            yield words[order], np.concatenate([np.zeros(0, np.uint32), *(counts for _, counts in runs)])[order]
