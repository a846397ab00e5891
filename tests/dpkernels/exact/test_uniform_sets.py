"""Uniform sets: every draw is enumerated, boundaries are hit from both sides, and planted faults are caught."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpkernels.exact.categorical import uniform_sets
from dpkernels.exact.categorical.uniform_sets import Patterns, Split, UniformSets, patterns
from dpkernels.random import host

SPLITS = [(2, 1), (5, 2), (17, 16), (32, 16), (64, 32), (265, 256)]
CELLS = 1 << uniform_sets._CELL_DIGITS


def no_more(count, dtype):
    raise AssertionError("digits that do not matter were read")


def intervals(split, need):
    """The counts with their intervals in units of 1/C(size, need), from binomial coefficients alone."""
    part, rest = split.first_size, split.size - split.first_size
    order = [count for count, _ in split.weights(need)]
    assert sorted(order) == list(range(max(0, need - rest), min(part, need) + 1))
    sizes = [math.comb(part, c) * math.comb(rest, need - c) for c in order]
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == math.comb(split.size, need)
    return [(end - size, end, c) for end, size, c in zip(ends, sizes, order, strict=True)]


@pytest.mark.parametrize(("size", "part"), SPLITS)
def test_cells_and_digits_decide_as_fractions_do(size, part):
    """Every cell is inside the interval of its count or open; digits around every boundary give the exact count."""
    split = Split(size, part)
    for need in range(0, size + 1, 1 if size < 64 else 19):
        exact, total = intervals(split, need), math.comb(size, need)
        split._prepare([need])
        cells = split.cells[need * CELLS : (need + 1) * CELLS].tolist()
        assert sum(cell == 0 for cell in cells) <= len(exact)
        for low, high, count in exact:
            # The cells from the first one to before the last one are inside the interval of the count.
            first, last = -(-low * CELLS // total), high * CELLS // total
            assert set(cells[first:last]) <= {0, count + 1}
            assert {at for at, cell in enumerate(cells) if cell == count + 1} <= set(range(first, last))
        digits = {(low << 32) // total + shift for low, _, _ in exact for shift in (-1, 0, 1)}
        for first, more in itertools.product(sorted(digits - {-1, 1 << 32}), (0, 1 << 63, (1 << 64) - 1)):
            chosen = split.decide(
                np.array([need]), np.array([first], np.uint32), lambda count, dtype, more=more: np.array([more], dtype)
            )
            u = first << 64 | more
            assert [c for low, high, c in exact if low << 96 <= u * total < high << 96] == chosen.tolist()


def test_digits_are_read_until_they_decide():
    """The two numbers of 200 digits around 2/3 agree in three words, and belong to different counts."""
    split, below = Split(3, 1), (2 << 200) // 3
    assert intervals(split, 1) == [(0, 2, 0), (2, 3, 1)]
    for u, count in ((below, 0), (below + 1, 1)):
        words = iter([u >> 104 & (1 << 64) - 1, u >> 40 & (1 << 64) - 1, (u << 24) & (1 << 64) - 1])
        chosen = split.decide(
            np.array([1]),
            np.array([u >> 168], np.uint32),
            lambda count, dtype, words=words: np.array([next(words)], dtype),
        )
        assert chosen.tolist() == [count]
        assert next(words, None) is None


def test_bounds_of_large_splits_are_those_of_exact_integers():
    for size, part, need in ((4095, 2048, 1101), (8192, 4096, 2000), (512, 256, 1), (512, 256, 511)):
        split = Split(size, part)
        counts, starts = split.intervals(need)
        all_counts, all_starts = split._exact_intervals(need)
        assert (counts, starts) == (all_counts[: len(counts)], all_starts[: len(starts)])
        assert len(counts) == len(all_counts) or starts[-1] == (1 << 32) - 1


@pytest.mark.parametrize(("units", "negligible", "deviations"), [(160, 130, 1), (40, 1, 1)])
def test_bounds_hold_whatever_they_leave_out(units, negligible, deviations, monkeypatch):
    """Also where units are coarse, or counts that matter are left out: intervals are then those of exact integers."""
    monkeypatch.setattr(uniform_sets, "_UNITS", 1 << units)
    monkeypatch.setattr(uniform_sets, "_NEGLIGIBLE", 1 << negligible)
    monkeypatch.setattr(uniform_sets, "_DEVIATIONS", deviations)
    for size, part, need in itertools.product((300, 1000), (16, 256), range(0, 300, 23)):
        split = Split(size, part)
        counts, starts = split.intervals(need)
        all_counts, all_starts = split._exact_intervals(need)
        known = dict(zip(counts, starts, strict=True))
        assert known == {c: start for c, start in zip(all_counts, all_starts, strict=True) if c in known}
        # Whatever is left out has the first digits of the next count that is kept, or all ones.
        kept = [at for at, c in enumerate(all_counts) if c in known]
        following = [*kept, len(all_counts)]
        for at in set(range(len(all_counts))) - set(kept):
            after = min(place for place in following if place > at)
            end = all_starts[after] if after < len(all_starts) else (1 << 32) - 1
            assert all_starts[at] == end


@pytest.mark.parametrize("slots", [1, 2, 5, 16])
def test_every_pattern_has_a_place(slots):
    for members in range(slots + 1):
        table = patterns(slots)
        run = table.patterns[members << 14 :][: math.comb(slots, members)].tolist()
        assert len(set(run)) == int(table.runs[members]) == math.comb(slots, members)
        assert {pattern.bit_count() for pattern in run} == {members}
        assert int(table.refused[members]) == (1 << 32) % math.comb(slots, members)


class Planted:
    """Words that stand for every draw of a tree once: the tree's rows are all combinations of its choices."""

    def __init__(self, units: list[int]) -> None:
        # Place i of n stands for U = (i + 1/2)/n, which is in the middle of a unit of every denominator of a choice.
        places = np.array(list(itertools.product(*map(range, units)))).T
        self.rows = places.shape[1]
        words = [((2 * place + 1) << 32) // (2 * unit) for place, unit in zip(places, units, strict=True)]
        self.words = np.array(words, np.int64).astype("<u4")

    def sets(self, tree: UniformSets, need: int) -> np.ndarray:
        scratch = uniform_sets._Scratch(self.rows, tree.leaves, tree.splits)
        scratch.words[:] = self.words
        out = np.empty((self.rows, -(-tree.slots // 16)), np.uint16)
        tree.fill(scratch, np.full(self.rows, need, np.uint16), no_more, out)
        return out


def is_uniform(sets, slots, need):
    found, counts = np.unique(sets, axis=0, return_counts=True)
    sizes = set(np.bitwise_count(found).sum(1).tolist())
    return sizes == {need} and len(found) == math.comb(slots, need) and len(set(counts.tolist())) == 1


def units_of(tree, need):
    """For every word, a number of equal places that resolves each choice it may decide, in the order of the words."""
    units = []
    for level in tree.levels:
        for split, times in ((level.halves, level.nodes), (level.split_off, 1)):
            if split is not None:
                units += [math.lcm(*(math.comb(split.size, j) for j in range(min(need, split.size) + 1)))] * times
    sizes = [tree.leaf] * tree.full_leaves + [tree.last_leaf_slots] * (tree.last_leaf_slots > 0)
    return units + [math.lcm(*(math.comb(size, j) for j in range(min(need, size) + 1))) for size in sizes]


@pytest.mark.parametrize(
    ("slots", "leaf"),
    [(1, 16), (2, 16), (5, 16), (5, 2), (6, 2), (7, 3), (6, 1), pytest.param(8, 2, marks=pytest.mark.thorough)],
)
def test_every_combination_of_draws_is_a_uniform_set(slots, leaf):
    """The tree of small leaves has the code of that of 16 slots. Every combination of its choices is drawn once."""
    tree = UniformSets(slots, leaf)
    for need in range(slots + 1):
        units = units_of(tree, need)
        if math.prod(units) > 500_000:
            continue
        assert is_uniform(Planted(units).sets(tree, need), slots, need)


class WrongPart(UniformSets):
    """A planted fault: the members of the other half are those of this one."""

    def _split(self, scratch, split, needs, words, fresh):
        before = needs.copy()
        super()._split(scratch, split, needs, words, fresh)
        needs[:] = np.minimum(before - needs, split.first_size)


class WrongLeaf(UniformSets):
    """A planted fault: the last pattern of a run is never chosen."""

    def _choose(self, scratch, slots, needs, words, fresh):
        super()._choose(scratch, slots, needs, words // 2, lambda count, dtype: np.full(count, 1 << 30, dtype))


def test_planted_faults_are_not_uniform():
    for tree in (WrongPart(7, 3), WrongLeaf(5, 16), WrongLeaf(6, 2)):
        need = 3
        assert not is_uniform(Planted(units_of(tree, need)).sets(tree, need), tree.slots, need)
    tree = UniformSets(6, 2)
    words = Planted(units_of(tree, 3))
    words.words = words.words[::-1].copy()  # Words of other draws.
    assert not is_uniform(words.sets(tree, 3), 6, 3)
    cells = tree.levels[0].split_off.cells  # One count has the place of others.
    cells[3 * CELLS + CELLS * 3 // 4 :][: CELLS // 8] = cells[3 * CELLS + CELLS * 3 // 4]
    assert not is_uniform(Planted(units_of(tree, 3)).sets(tree, 3), 6, 3)


def test_refused_words_of_leaves_are_drawn_again():
    """A product's low half below 2^32 mod C is refused, so all places of a run have the same number of words."""
    table = Patterns(3)
    assert table.refused.tolist() == [0, 1, 1, 0]
    for run in (3, 5, 12870):
        refused = (1 << 16) % run
        accepted = [word * run >> 16 for word in range(1 << 16) if (word * run & 0xFFFF) >= refused]
        assert set(np.bincount(accepted).tolist()) == {(1 << 16) // run}  # The rule, with words of 16 bits.
    tree, turns = UniformSets(3), []
    scratch = uniform_sets._Scratch(tree.rows, tree.leaves, tree.splits)
    scratch.words[:] = 1 << 31
    scratch.words[0, 7:9] = 0  # The product is 0, which is refused.

    def fresh(count, dtype):
        turns.append(count)
        return np.array([0] * (count - 1) + [0xFFFFFFFF], dtype)

    out = np.empty((tree.rows, 1), np.uint16)
    tree.fill(scratch, np.ones(tree.rows, np.uint16), fresh, out)
    assert turns == [2, 1]
    assert out[:9, 0].tolist() == [2] * 7 + [4, 4]


@pytest.mark.parametrize("slots", [3, 15, 16, 17, 48, 265, 1023])
def test_sets_have_their_number_of_members(slots):
    """Slots are taken equally often, within 6 standard deviations: a false alarm below 1e-6."""
    tree = UniformSets(slots)
    need = np.resize(np.array([0, 1, slots // 3, slots // 2, slots - 1, slots], np.uint16), tree.rows)
    first, second = (np.empty((tree.rows, -(-slots // 16)), np.uint16) for _ in range(2))
    source = host.Keystream(bytes(range(32)))
    tree.draw(source, 24, 5, need, first)
    assert np.array_equal(np.bitwise_count(first).sum(1, dtype=np.uint16), need)
    bits = np.unpackbits(first.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, slots:].any()
    share = need / slots
    deviation = np.sqrt((share * (1 - share)).sum())
    assert (np.abs(bits[:, :slots].sum(0) - share.sum()) < 6 * deviation).all()
    UniformSets(slots).draw(host.Keystream(bytes(range(32))), 24, 5, need, second)  # Other tables are ready.
    assert np.array_equal(first, second)
    tree.draw(source, 24, 6, need, second)
    assert not np.array_equal(first, second)


class Recorder:
    """A source that remembers what is read of it: words 0, which leaves refuse, and in every other call ones."""

    def __init__(self):
        self.read, self.calls = [], 0

    def fill(self, out, stream, first_block, turn=0):
        self.calls += 1
        out[:] = 0 if self.calls % 2 else np.iinfo(out.dtype).max
        self.read += [(stream, turn, first_block + at) for at in range(-(-out.nbytes // 64))]


@pytest.mark.parametrize("slots", [3, 40, 265])
def test_no_word_is_read_twice(slots, monkeypatch):
    """Neither by two blocks of rows, nor by two further draws of one."""
    monkeypatch.setattr(uniform_sets, "_DRAWS", 32)
    tree, source = UniformSets(slots), Recorder()
    tree.blocks, tree.rows = tree.blocks * 64 // tree.rows, 64
    out, need = np.empty((tree.rows, -(-slots // 16)), np.uint16), np.full(tree.rows, slots // 2, np.uint16)
    for block in (0, 1, 2, 7):
        tree.draw(source, 30, block, need, out)
    assert source.calls > (8 if slots == 265 else 4)  # There are further draws, of many leaves more than one.
    assert len(set(source.read)) == len(source.read)
