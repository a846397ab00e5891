"""The pages of docs/proofs: every test they name exists; and steps of the proofs by exhaustion."""

from __future__ import annotations

import ast
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import fft

from accountants.composition.brackets import sums
from accountants.composition.brackets.refinement import GridReleases
from accountants.composition.brackets.sums import _tilted, _transformed
from accountants.dominating_pairs.discrete import dominating_pair, pure_points
from accountants.shuffle import bracket

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "proofs").glob("*.md"))
STEPS = [page for page in PAGES if page.stem != "index"]
RATIOS = np.concatenate([np.geomspace(0.02, 50.0, 41), [1.0]])


@cache
def functions(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def named(page):
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())


@pytest.mark.parametrize("page", STEPS, ids=lambda page: page.stem)
def test_every_page_has_its_parts_and_its_tests_exist(page):
    text = page.read_text()
    parts = [re.search(f"{part}", text) for part in ("Statement", "Proof", "## Not covered", "## Tests")]
    assert all(parts)
    assert named(page)
    for path, name in named(page):
        assert name in functions(path), f"{path}::{name}"
    code = re.search(r"^Code: (.+?)\n\n", text, re.MULTILINE | re.DOTALL).group(1)
    for name in re.findall(r"`((?:dpkernels|accountants)/[\w/.]*)`", code):
        assert (ROOT / name).exists(), name
    assert len(text.splitlines()) < 300


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "proofs" / "index.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == {page.stem for page in STEPS}


def sticks(p, q):
    """H_t at all ratios."""
    return np.maximum(p - RATIOS[:, None] * q, 0.0).sum(1)


def falling(random, size):
    """Even weights that fall from the middle."""
    half = np.sort(random.integers(0, 12, (size + 1) // 2))[::-1]
    return np.concatenate([half[::-1], half[size % 2 :]]).astype(float)


@pytest.mark.parametrize("seed", range(40))
def test_ends_of_any_falling_window_are_worst_by_exhaustion(seed):
    """All rows of random integer tables, windows that overlap among them, both orders and every t >= 0."""
    random = np.random.default_rng(seed)
    codes = int(random.integers(4, 12))
    width = int(random.integers(1, codes))
    base, window = falling(random, codes) + 1, falling(random, width) + random.integers(0, 2)
    rows = np.tile(base, (codes - width + 1, 1))
    for s, row in enumerate(rows):
        row[s : s + width] += window
    ends = sticks(rows[-1], rows[0])
    for p in rows:
        for q in rows:
            assert np.all(sticks(p, q) <= ends * (1 + 1e-12) + 1e-12)


def test_ends_are_not_worst_where_a_window_has_two_humps():
    """Windows three apart share a hump, and those one apart share none."""
    rows = np.ones((4, 7))
    for s, row in enumerate(rows):
        row[s : s + 4] += [3.0, 0.0, 0.0, 3.0]
    assert np.any(sticks(rows[1], rows[0]) > sticks(rows[3], rows[0]) + 1)


@pytest.mark.parametrize("seed", range(10))
def test_no_pure_pair_exceeds_randomised_response(seed):
    random = np.random.default_rng(seed)
    p, q = random.random((2, 6)) + 0.05
    p, q = p / p.sum(), q / q.sum()
    level = np.log(max((p / q).max(), (q / p).max()))
    best = pure_points(level)
    for one in ((p, q), (q, p)):
        assert np.all(sticks(*one) <= sticks(best.p, best.q) + 1e-12)


@pytest.mark.parametrize("rows", [np.array([[0.95, 0.05], [0.9, 0.1]]), None])
def test_a_pair_of_dots_dominates_every_pair_of_rows_at_all_ratios(rows):
    """The first table's positive losses have masses of 1.85 under both laws together: the pair has more than 1."""
    if rows is None:
        rows = np.random.default_rng(2).random((5, 7)) + 0.1
        rows = rows / rows.sum(1, keepdims=True)
    pair = dominating_pair(rows, len(rows) - 1)
    found = sticks(pair.p, pair.q)
    for p in rows:
        for q in rows:
            assert np.all(sticks(p, q) <= found + 1e-12)
    np.testing.assert_allclose(found, sticks(pair.q[::-1], pair.p[::-1]), rtol=1e-12)


@pytest.mark.parametrize("size", [121, 4096, 4374, 6250, 12005, 14641])
def test_errors_of_transforms_are_within_their_bound(size):
    """SciPy's of all its radices, against 64 bits of mantissa: alone, and of powers and their product."""
    random = np.random.default_rng(size)
    eta = 8 * 2.0**-53 * np.log2(size)
    for values in (random.random(size), np.exp(-np.arange(size) / 7.0), random.standard_normal(size)):
        exact = fft.rfft(values.astype(np.longdouble))
        assert np.linalg.norm((fft.rfft(values) - exact).astype(complex)) <= eta * np.linalg.norm(exact.astype(complex))
        # Every entry, too, relative to the sum of the absolute values.
        assert np.abs((fft.rfft(values) - exact).astype(complex)).max() <= eta * np.abs(values).sum()
    parts = [_tilted(GridReleases(random.random(9) ** 4, -4, 0.0, 0.0, n), 0.1, 0.7)[0] for n in (3, 1000)]
    found, error = _transformed(parts, size)
    whole = np.ones(size // 2 + 1, np.clongdouble)
    for part in parts:
        folded = np.zeros(size, np.longdouble)
        np.add.at(folded, (part.first_index + np.arange(len(part.g))) % size, part.g)
        whole = whole * fft.rfft(folded) ** part.count
    assert 0 < np.linalg.norm((found - fft.irfft(whole, size)).astype(float)) <= error


def test_errors_of_products_of_many_transforms_are_those_of_each_factor(monkeypatch):
    """By a product of all other factors for each one, against products before and after it, in blocks of entries."""
    random, size = np.random.default_rng(5), 14641
    parts = [_tilted(GridReleases(random.random(9) ** 4, -4, 0.0, 0.0, n), 0.1, 0.7)[0] for n in (3, 50, 1, 2, 9)]
    spectra = [sums._spectrum(part.g, part.first_index, size) for part in parts]
    eta, error = 8 * 2.0**-53 * np.log2(size), 0.0
    for j, part in enumerate(parts):
        apart = spectra[j] ** (part.count - 1)
        for other, spectrum in zip(parts, spectra, strict=True):
            apart = apart * (1.0 if other is part else spectrum**other.count)
        least = 1e-3 ** (part.count - 1) if part.count > 1 else 0.0
        error += part.count * (eta + 8 * 2.0**-53) * (1.01 * sums._spectrum_norm(apart) / np.sqrt(size) + least)
    whole = np.prod([each**part.count for each, part in zip(spectra, parts, strict=True)], axis=0)
    error += 8 * 2.0**-53 * 65 * sums._spectrum_norm(whole) / np.sqrt(size)
    for entries in (1 << 21, 1):
        monkeypatch.setattr(sums, "_BLOCK_ENTRIES", entries)
        monkeypatch.setattr(sums, "_MIN_BLOCK", 1000)
        found, bound = _transformed(parts, size)
        assert bound == pytest.approx(error + eta * np.linalg.norm(found), rel=1e-12)
        assert found == pytest.approx(fft.irfft(whole, size), abs=1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_roundings_of_the_shuffled_bracket_are_ordered(seed):
    """E(L - t)_+ of losses on grids of every coarseness, at and between grid points: below, its own, above."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 30))
    value, mass = np.sort(random.normal(-0.1, 1.0, size)), random.dirichlet(np.ones(size))
    step = float(10 ** random.uniform(-3, 0.5))
    slack = (1e-14, 0.3 * step)[seed % 2]  # What a value may be off by, which each side adds.
    losses = bracket.LossSum(value, mass, 1, slack)
    low, high = bracket._split_downwards(losses, step, 1), bracket._split_upwards(losses, step, 1)
    grid = [(part.first_index + np.arange(len(part.mass))) * step for part in (low, high)]
    points = np.concatenate([value, *grid, random.uniform(-4, 4, 50)])

    def positive_part(x, m):
        return np.maximum(x - points[:, None], 0.0) @ m

    under, over = positive_part(grid[0], low.mass), positive_part(grid[1], high.mass)
    least, most = positive_part(value - slack, mass), positive_part(value + slack, mass)
    assert np.all(under <= least * (1 + 1e-13) + 1e-14)
    assert np.all(most <= over * (1 + 1e-13) + 1e-14)


def test_the_profile_of_a_table_is_never_rounded_down():
    """In fractions, at the dots: a sum of differences of floats is off by 1e-16 either way."""
    rows = 1 + 0.02 * np.random.default_rng(4).random((3, 40))
    rows = rows / rows.sum(1, keepdims=True)
    pair = dominating_pair(rows, 2)
    exact = [[Fraction(value) for value in row] for row in rows.tolist()]
    masses = [(Fraction(a), Fraction(b)) for a, b in zip(pair.p.tolist(), pair.q.tolist(), strict=True)]
    for t in sorted({a / b for a, b in masses if a > b}):
        most = max(sum(max(a - t * b, 0) for a, b in zip(x, y, strict=True)) for x in exact for y in exact)
        assert sum(max(a - t * b, 0) for a, b in masses) >= most or t == max(a / b for a, b in masses)
