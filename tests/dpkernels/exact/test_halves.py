"""Noise by halves of its words: all halves of small tables, and planted faults."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dpkernels.exact.alias import alias_columns
from dpkernels.exact.noise.construction import fine_gaussian_table
from dpkernels.exact.noise.halves import HalvedNoise
from dpkernels.exact.noise.remainder import Remainder
from dpkernels.exact.noise.table import NoiseTable

ALL = np.arange(256, dtype=np.uint8)


def table_of(codes, rest):
    """A table of 16 bits with random weights and a remainder."""
    random = np.random.default_rng(codes)
    cuts = np.sort(random.choice(np.arange(1, (1 << 16) - rest), codes - 1, replace=False))
    weights = np.diff(np.concatenate([[0], cuts, [(1 << 16) - rest]])).astype(np.uint64)
    further = Remainder(rest, np.full(64, 1 << 10, np.uint64), -32, 16) if rest else None
    return NoiseTable(weights, -(codes // 2), 16, 0, 1, remainder=further)


TABLES = [(2, 0), (3, 20_000), (5, 1), (37, 9), (60, 300)]


@pytest.mark.parametrize(("codes", "rest"), TABLES)
def test_all_halves_draw_the_table(codes, rest):
    """Every pair of halves: the draws have the table's weights, and one that is not open is that of all of its words.

    A fault of one unit in the upper half of a threshold, either way, is seen.
    """
    table = table_of(codes, rest)
    noise = HalvedNoise(SimpleNamespace(table=table))
    upper, lower = (np.ravel(halves) for halves in np.meshgrid(ALL, ALL, indexing="ij"))
    whole = noise.codes(upper, lower)
    counts = np.bincount(whole - table.kernel_first, minlength=len(table.kernel_weights))
    assert counts.tolist() == table.kernel_weights.tolist()

    def is_right():
        first, is_open = noise.upper_codes(upper)
        return bool((first == whole)[~is_open].all() and is_open[whole < table.first].all())

    assert is_right()
    columns = alias_columns(table.kernel_weights, 16)
    highest = 256 - (1 << columns.log_columns)
    inner = (columns.threshold % 256 > 0) & (columns.alias != np.arange(len(columns.alias)))
    if rest:  # Its draws are always open.
        inner &= columns.alias > 0
        inner[0] = False
    for column in np.flatnonzero(inner)[:3]:
        for step in (-1, 1):
            faulty = int(noise._packed[column]) + step * (1 << columns.log_columns)
            if 0 <= faulty <= highest + int(columns.alias[column]):
                correct, noise._packed[column] = noise._packed[column], faulty
                assert not is_right()
                noise._packed[column] = correct
    assert is_right()


def test_further_words_draw_the_remainder():
    noise = HalvedNoise(SimpleNamespace(table=table_of(3, 20_000)))
    further = np.arange(1 << 16, dtype=np.uint16)
    codes = np.full(1 << 16, -2, np.int32)
    assert (np.bincount(noise.complete(codes, further) + 32) == 1 << 10).all()
    assert (noise.complete(codes + 1, further) == -1).all()


def test_few_draws_of_a_gaussian_table_are_open():
    noise = HalvedNoise(SimpleNamespace(table=fine_gaussian_table(1 << 12)))
    upper = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    assert 10 < noise.upper_codes(upper)[1].sum() < 70  # 32 are expected; beyond with a probability below 1e-6.


def test_tables_that_halves_cannot_draw_are_refused():
    with pytest.raises(ValueError, match=r"table: has a tail, or 2\^9 columns"):
        HalvedNoise(SimpleNamespace(table=table_of(500, 0)))
