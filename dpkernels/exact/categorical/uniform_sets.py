"""Exact uniform sets of j of m slots, drawn by halves.

The slots are divided into parts of 16 x 2^a slots, for the binary digits of m // 16, and a rest of m % 16. A split

    P(c of the first s of l slots | j of all l) = C(s, c) C(l - s, j - c)/C(l, j)

divides the members between a part and the remaining slots, and then between the halves of every part, down to leaves of
16 slots. The members of a leaf are one of C(16, j) patterns, all equally likely. So every set of j of m slots has the
probability 1/C(m, j).

No probability is rounded:

- A split reads the binary digits of a uniform U in [0, 1) until they determine the interval of a count that contains U.
  The first 32 digits are a word. A table with a cell for each value of the first 11 digits holds the count, or 0 if a
  boundary is inside the cell. In the latter case, all 32 digits are compared with the boundaries. If they equal the
  first 32 digits of a boundary, Python integers compare as many further digits as necessary.
- A leaf multiplies words of 32 bits by the number of its patterns, and rejects the surplus words, so that all patterns
  are equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from threading import Lock

import numpy as np

from dpkernels.proven import proven
from dpkernels.random import host

LEAF = 16  # slots; a pattern of them is a word of 16 bits
_DIGITS = 32  # bits of a random word that decides a split
_CELL_DIGITS = 11  # the first bits of it, with which a table is looked up
_MORE_DIGITS = 64  # bits that are drawn in addition if a word decides nothing
_RUN_BITS = 14  # C(16, 8) is below 2^14
_UNITS = 1 << 160  # of a weight, in which bounds are rounded
_NEGLIGIBLE = 1 << 60  # units: weights that cannot matter
_DEVIATIONS = 7  # around the mean, of the counts that have the first intervals
_ROWS_OF_LEAVES = 1 << 19  # leaves of the rows that are drawn together
_DRAWS = 1 << 14  # draws that are made at once, whose arrays stay in a core's cache

# Returns this many fresh words of a type.
Fresh = Callable[[int, str], np.ndarray]


class Split:
    """A split of ``size`` slots: the exact distribution of the members among the first ``first_size`` ones.

    Rows of the table are made when they are first needed. A draw depends only on U, and not on which rows there are.
    """

    def __init__(self, size: int, first_size: int) -> None:
        self.size, self.first_size = size, first_size
        # Pages that are never written take no memory. A count c is held as c + 1.
        self.cells = np.zeros((size + 1) << _CELL_DIGITS, np.uint16)
        self._is_ready = np.zeros(size + 1, bool)
        self._boundaries: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._preparing = Lock()
        self._searched = np.zeros(0, np.uint64), np.zeros(0, np.uint16)

    def _first(self, need: int) -> int:
        """Return the count that has the first interval: a little below the likely ones."""
        low, high = self._range(need)
        mean = need * self.first_size / self.size
        variance = mean * (self.size - self.first_size) * (self.size - need) / max(1, self.size * (self.size - 1))
        return min(max(low, math.floor(mean - _DEVIATIONS * math.sqrt(variance))), high)

    def _range(self, need: int) -> tuple[int, int]:
        return max(0, need - (self.size - self.first_size)), min(self.first_size, need)

    def _ratios(self, need: int, first: int) -> Iterator[Iterator[tuple[int, int, int]]]:
        """Yield the counts above the first one, and those below it, with the ratio of each weight to the one before."""
        first_size, (low, high) = self.first_size, self._range(need)
        spare = self.size - first_size - need
        yield ((c, (first_size - c + 1) * (need - c + 1), c * (spare + c)) for c in range(first + 1, high + 1))
        yield ((c, (c + 1) * (spare + c + 1), (first_size - c) * (need - c)) for c in range(first - 1, low - 1, -1))

    def weights(self, need: int) -> Iterator[tuple[int, int]]:
        """Yield every count with its weight, of a total of C(size, need), in the order of their intervals."""
        first = self._first(need)
        first_weight = math.comb(self.first_size, first) * math.comb(self.size - self.first_size, need - first)
        yield first, first_weight
        for ratios in self._ratios(need, first):
            weight = first_weight
            for count, numerator, denominator in ratios:
                weight = weight * numerator // denominator
                yield count, weight

    def _weight_bounds(self, need: int) -> tuple[list[tuple[int, int, int]], int]:
        """Return likely counts with bounds of their weights over the first one's, in units, and a bound of the rest."""
        bounds, rest_bound = [(first := self._first(need), _UNITS, _UNITS)], 0
        for ratios in self._ratios(need, first):
            low = high = _UNITS
            for count, numerator, denominator in ratios:
                low, high = low * numerator // denominator, -(-high * numerator // denominator)
                bounds.append((count, low, high))
                # Ratios fall, so no later weight is larger.
                if numerator < denominator and high * self.size < _NEGLIGIBLE:
                    rest_bound += high * self.size
                    break
        return bounds, rest_bound

    def intervals(self, need: int) -> tuple[list[int], list[int]]:
        """Return counts, and the first digits of where each one's interval begins, until those of the rest agree."""
        bounds, rest_bound = self._weight_bounds(need)
        least, most = sum(low for _, low, _ in bounds), sum(high for _, _, high in bounds) + rest_bound
        # What is left out above the likely counts lies below the intervals of those under the first one.
        counts, starts, lower, upper = [], [], 0, rest_bound
        for count, low, high in bounds:
            if (start := (lower << _DIGITS) // most) != (upper << _DIGITS) // least:
                return self._exact_intervals(need)
            counts.append(count)
            starts.append(start)
            if start == (1 << _DIGITS) - 1:
                return counts, starts
            lower, upper = lower + low, upper + high
        return (counts, starts) if rest_bound == 0 else self._exact_intervals(need)

    def _exact_intervals(self, need: int) -> tuple[list[int], list[int]]:
        """Return the same for all counts without bounds: a boundary may have no more than the first digits."""
        total, cumulative, starts, counts = math.comb(self.size, need), 0, [], []
        for count, weight in self.weights(need):
            counts.append(count)
            starts.append((cumulative << _DIGITS) // total)
            cumulative += weight
        return counts, starts

    def _prepare(self, needs: list[int]) -> None:
        """Make the rows of the table, and the boundaries to search, for these numbers of members."""
        with self._preparing:  # Threads share the boundaries, and none may undo what another one has added.
            for need in needs:
                numbers, digits = self.intervals(need)
                counts, starts = np.array(numbers, np.uint16), np.array(digits, np.uint64)
                of_starts = (starts >> np.uint64(_DIGITS - _CELL_DIGITS)).astype(np.int64)
                cells = np.repeat(counts + np.uint16(1), np.diff(of_starts, append=1 << _CELL_DIGITS))
                cells[of_starts[1:]] = 0
                self.cells[need << _CELL_DIGITS : (need + 1) << _CELL_DIGITS] = cells
                self._boundaries[need] = starts + np.uint64(need << _DIGITS), counts
            ready = [self._boundaries[need] for need in sorted(self._boundaries)]
            self._searched = np.concatenate([row[0] for row in ready]), np.concatenate([row[1] for row in ready])
            self._is_ready[needs] = True

    def decide(self, needs: np.ndarray, digits: np.ndarray, fresh: Fresh) -> np.ndarray:
        """Return the counts of draws that the table leaves open, from all digits of their words."""
        if not (is_ready := self._is_ready[needs]).all():
            self._prepare(np.unique(needs[~is_ready]).tolist())
        starts, counts = self._searched
        keys = needs.astype(np.uint64) << np.uint64(_DIGITS) | digits
        index = np.searchsorted(starts, keys, side="right") - 1
        chosen = counts[index]
        if (equal := starts[index] == keys).any():
            for draw in np.flatnonzero(equal).tolist():
                chosen[draw] = self.exact(int(needs[draw]), int(digits[draw]), _DIGITS, fresh)
        return chosen

    def exact(self, need: int, first: int, digits: int, fresh: Fresh) -> int:
        """Return the count of U with these first digits, a number of ``digits`` bits, and others read as needed."""
        total = math.comb(self.size, need)
        while True:
            # The count whose interval contains the least number with these digits, and the end of the interval.
            ends, weights = accumulate(weight for _, weight in self.weights(need)), self.weights(need)
            intervals = zip(ends, weights, strict=True)
            end, count = next((end, count) for end, (count, _) in intervals if first * total < end << digits)
            if (first + 1) * total <= end << digits:
                return count
            first, digits = first << _MORE_DIGITS | int(fresh(1, "<u8")[0]), digits + _MORE_DIGITS


class Patterns:
    """The patterns of up to 16 slots, ordered by their members: for each number of these, a run of C(slots, j)."""

    def __init__(self, slots: int) -> None:
        all_patterns = np.arange(1 << slots, dtype=np.uint16)
        sizes = np.bitwise_count(all_patterns)
        self.runs = np.bincount(sizes).astype(np.uint64)  # C(slots, j)
        self.patterns = np.zeros((slots + 1) << _RUN_BITS, np.uint16)
        for members, run in enumerate(self.runs.tolist()):
            self.patterns[members << _RUN_BITS :][:run] = all_patterns[sizes == members]
        #: The low halves of products with a run that are below this are drawn again.
        self.refused = ((1 << _DIGITS) % self.runs).astype(np.uint32)
        self.most_refused = int(self.refused.max())


@lru_cache(maxsize=LEAF)
def patterns(slots: int) -> Patterns:
    """Return the patterns of a number of slots."""
    return Patterns(slots)


@dataclass(frozen=True)
class _Level:
    """A level of the tree: nodes are halved, and a node may be split off the slots that are in none yet."""

    halves: Split | None  # of the ``nodes`` nodes
    nodes: int
    split_off: Split | None  # of the slots that are in no node
    takes_all: bool = False  # whether all of these slots are the new node


class _Scratch:
    """Arrays of one thread for the rows that are drawn together: memory that is used again costs no page faults."""

    def __init__(self, rows: int, leaves: int, splits: int) -> None:
        self.words = np.empty((splits + leaves, rows), "<u4")  # for each split and then for each leaf
        self.nodes = np.empty((leaves, rows), np.uint16)
        # Indices of tables. Those of splits: bits 0 to 15 are a word, bits 16 to 31 a number of members.
        self.index = np.zeros(_DRAWS, np.int64)
        self.runs, self.products = np.empty(_DRAWS, np.uint64), np.empty(_DRAWS, np.uint64)


class UniformSets:
    """The uniform sets of one number of slots, for any number of members in each row. ``uniform_sets`` makes it.

    Args:
        slots: m, at least 1.
        leaf: the slots of a leaf, at most 16; other numbers than 16 are for tests.
    """

    def __init__(self, slots: int, leaf: int = LEAF) -> None:
        self.slots, self.leaf = slots, leaf
        # The leaves with all slots, and the slots of another one.
        self.full_leaves, self.last_leaf_slots = divmod(slots, leaf)
        self.leaves = self.full_leaves + (self.last_leaf_slots > 0)
        self.levels = list(self._levels())
        self.splits = sum(level.nodes + (level.split_off is not None) for level in self.levels)
        #: rows that are drawn together
        self.rows = 1 << min(14, max(6, (_ROWS_OF_LEAVES // self.leaves).bit_length() - 1))
        #: 64-byte blocks of a stream that belong to these rows
        self.blocks = self.rows * 4 * (self.splits + self.leaves) // 64
        self._free: list[_Scratch] = []

    def _levels(self) -> Iterator[_Level]:
        nodes, remaining = 0, self.slots
        for exponent in reversed(range(self.full_leaves.bit_length())):
            size = self.leaf << exponent
            has_node = self.full_leaves >> exponent & 1
            halves = Split(2 * size, size) if nodes else None
            split_off = Split(remaining, size) if has_node and remaining > size else None
            yield _Level(halves, nodes, split_off, takes_all=bool(has_node and remaining == size))
            nodes, remaining = 2 * nodes + has_node, remaining - size * has_node

    def draw(self, source: host.Keystream, stream: int, block: int, need: np.ndarray, out: np.ndarray) -> None:
        """Write the sets of a block of rows.

        Args:
            source: the key streams of the release's key.
            stream: the number of the stream of the sets.
            block: the number of the block of rows in the release.
            need: (rows,) the members of each row's set, uint16.
            out: (rows, words) uint16, with a bit for each slot; it is written as a whole.
        """
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = _Scratch(self.rows, self.leaves, self.splits)
        source.fill(scratch.words.reshape(-1), stream, block * self.blocks)
        turn = 0

        def fresh(count: int, dtype: str) -> np.ndarray:
            nonlocal turn
            turn += 1
            words = np.empty(count, dtype)
            source.fill(words, stream, block * self.blocks, turn)
            return words

        self.fill(scratch, need, fresh, out)
        self._free.append(scratch)

    @proven("categories#proof")
    def fill(self, scratch: _Scratch, need: np.ndarray, fresh: Fresh, out: np.ndarray) -> None:
        """Write the sets that the words of a scratch stand for; see ``draw``."""
        nodes, words = scratch.nodes, scratch.words
        remaining, row = need.copy(), 0
        for level in self.levels:
            n = level.nodes
            if level.halves is not None:
                nodes[n : 2 * n] = nodes[:n]
                self._split(scratch, level.halves, nodes[:n], words[row : row + n], fresh)
                nodes[n : 2 * n] -= nodes[:n]
                row += n
            if level.takes_all:
                nodes[2 * n] = remaining
            elif level.split_off is not None:
                nodes[2 * n] = remaining
                self._split(scratch, level.split_off, nodes[2 * n : 2 * n + 1], words[row : row + 1], fresh)
                remaining -= nodes[2 * n]
                row += 1
        if self.full_leaves:
            self._choose(scratch, self.leaf, nodes[: self.full_leaves], words[row : row + self.full_leaves], fresh)
        if self.last_leaf_slots:
            nodes[self.full_leaves] = remaining
            self._choose(scratch, self.last_leaf_slots, nodes[self.full_leaves :], words[-1:], fresh)
        self._store(nodes, out)

    def _split(self, scratch: _Scratch, split: Split, needs: np.ndarray, words: np.ndarray, fresh: Fresh) -> None:
        """Replace the members of nodes by those in their first part."""
        flat, word = needs.reshape(-1), words.reshape(-1)
        high, open_draws, members = word.view("<u2")[1::2], [], []
        for first in range(0, flat.size, _DRAWS):
            counts = flat[first : first + _DRAWS]
            index = scratch.index[: counts.size]
            index[:] = counts
            index <<= 16
            index.view("<u2")[0::4] = high[first : first + _DRAWS]
            index >>= 16 - _CELL_DIGITS
            np.take(split.cells, index, out=counts, mode="wrap")
            is_open = np.flatnonzero(counts == 0)
            counts -= np.uint16(1)
            open_draws.append(is_open + first)
            members.append(index[is_open] >> _CELL_DIGITS)
        if len(open_index := np.concatenate(open_draws)):
            flat[open_index] = split.decide(np.concatenate(members), word[open_index], fresh)

    def _choose(self, scratch: _Scratch, slots: int, needs: np.ndarray, words: np.ndarray, fresh: Fresh) -> None:
        """Replace the members of leaves by patterns of this number of slots."""
        flat, word, table = needs.reshape(-1), words.reshape(-1), patterns(slots)
        for first in range(0, flat.size, _DRAWS):
            members = flat[first : first + _DRAWS]
            index, runs, product = (array[: members.size] for array in (scratch.index, scratch.runs, scratch.products))
            index[:] = members
            np.take(table.runs, index, out=runs, mode="wrap")
            product[:] = word[first : first + _DRAWS]
            np.multiply(product, runs, out=product)
            if product.view("<u4")[0::2].min() < table.most_refused:
                _redraw(product, runs, table.refused[members], fresh)
            np.right_shift(product, _DIGITS, out=product)
            np.left_shift(index, _RUN_BITS, out=index)
            np.add(index, product.view(np.int64), out=index)
            np.take(table.patterns, index, out=members, mode="wrap")

    def _store(self, nodes: np.ndarray, out: np.ndarray) -> None:
        """Write the patterns of leaves one after another, bit by bit."""
        if self.leaf == LEAF:
            out[:, -1] = 0
            for leaf in range(self.leaves):
                out[:, leaf] = nodes[leaf]
            return
        out[:] = 0
        for slot in range(self.slots):
            leaf, bit = divmod(slot, self.leaf)
            out[:, slot // LEAF] |= (nodes[leaf] >> np.uint16(bit) & np.uint16(1)) << np.uint16(slot % LEAF)


def _redraw(product: np.ndarray, runs: np.ndarray, refused: np.ndarray, fresh: Fresh) -> None:
    """Draw the words again of which the products' low halves are refused, so that the high halves are uniform."""
    refused_index = np.flatnonzero(product.astype(np.uint32) < refused)
    while len(refused_index):
        product[refused_index] = runs[refused_index] * fresh(len(refused_index), "<u4")
        refused_index = refused_index[product[refused_index].astype(np.uint32) < refused[refused_index]]


@lru_cache(maxsize=8)
def uniform_sets(slots: int) -> UniformSets:
    """Return the uniform sets of a number of slots, whose tables are shared by all releases."""
    return UniformSets(slots)
