"""Numbers of rows by place or by pair, in memory proportional to the distinct ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

HALF = np.uint64(32)  # the bits of each part of a word that has a pair
LOW_HALF = np.uint64(0xFFFFFFFF)  # of such a word
_SORTED_WORDS = 1 << 20  # words that are sorted at once, about
_MIN_HELD = 1 << 23  # words that are held before they are merged


@dataclass(frozen=True)
class Places:
    """The places of rows on a lattice: which ones there are, increasing, and how many rows each one has."""

    values: np.ndarray
    counts: np.ndarray

    @cached_property
    def below(self) -> np.ndarray:
        """Return the number of rows before each place, and that of all."""
        below = np.zeros(len(self.values) + 1, np.int64)
        np.cumsum(self.counts, out=below[1:])
        return below

    def __len__(self) -> int:
        return int(self.below[-1])

    def up_to(self, places: np.ndarray) -> np.ndarray:
        """Return the number of rows at or below each of these places."""
        return self.below[np.searchsorted(self.values, places, side="right")]

    def split(self, place: int) -> tuple[Places, Places]:
        """Return those at or below a place, and those above it."""
        cut = int(np.searchsorted(self.values, place, side="right"))
        return Places(self.values[:cut], self.counts[:cut]), Places(self.values[cut:], self.counts[cut:])


class DistinctWords:
    """Distinct words of 64 bits, and how often each was added: 12 bytes each, or 24 while they are merged."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._held, self._merged = 0, 0

    def add(self, words: np.ndarray, counts: np.ndarray) -> None:
        """Add distinct words, increasing, and how often each is there."""
        self._parts.append((words, counts.astype(np.uint32)))
        self._held += len(words)
        if self._held > 2 * max(self._merged, _MIN_HELD):
            self.sorted()

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all words, increasing, and how often each was added."""
        # Pages that are not written take no memory.
        words, counts, size = np.empty(self._held, np.uint64), np.empty(self._held, np.uint32), 0
        for some, own in self._ranges():
            is_first = np.ones(len(some), bool)
            is_first[1:] = some[1:] != some[:-1]
            starts = np.flatnonzero(is_first)
            stop = size + len(starts)
            words[size:stop] = some[starts]
            counts[size:stop] = np.add.reduceat(own, starts) if len(starts) else 0
            size = stop
        self._parts, self._held, self._merged = [(words[:size], counts[:size])], size, size
        return self._parts[0]

    def _ranges(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the words of all parts, with repeats, and their counts: increasing ranges of about 2^20 words."""
        step = max(self._held >> 12, 1)
        sample = np.sort(np.concatenate([np.zeros(0, np.uint64), *(words[::step] for words, _ in self._parts)]))
        cuts = np.unique(sample[:: max(len(sample) * _SORTED_WORDS // max(self._held, 1), 1)])
        ends = [[0, *np.searchsorted(words, cuts[1:]).tolist(), len(words)] for words, _ in self._parts]
        for k in range(max(len(cuts), 1)):
            slices = [slice(own[k], own[k + 1]) for own in ends]
            parts = [(words[own], counts[own]) for own, (words, counts) in zip(slices, self._parts, strict=True)]
            words = np.concatenate([np.zeros(0, np.uint64), *(words for words, _ in parts)])
            order = np.argsort(words, kind="stable")
            yield words[order], np.concatenate([np.zeros(0, np.uint32), *(counts for _, counts in parts)])[order]
