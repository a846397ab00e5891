"""The optimal mechanism: its program, grids and cache; the Central Piecewise Mechanism; the accounting of both."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import os
import re
import struct
import tracemalloc
import zipfile

import jax
import mpmath
import numpy as np
import pytest
from helpers import ALL, CENTRAL_PIECEWISE, ROWS, SKEW, UNIT, inputs, over
from scipy.optimize import linprog

import accountants
import dpkernels as dpk
from accountants.composition import repeated
from accountants.dominating_pairs.registry import dominating_pairs
from dpkernels.mechanisms.optimal import search as optimal_search
from dpkernels.mechanisms.optimal.program import ProgramError, least_variance
from dpkernels.mechanisms.optimal.search import (
    InputGrid,
    expected_inputs,
    half_outputs,
    has_grid,
    input_grid,
    largest_ratio,
    row_weights,
)

SMALL = {"points": 9, "outputs": 41}


# The program


def brute_force(epsilon, x, y, cells, weights=None):
    """The least objective by the program written out: every pair of rows, no symmetry, no auxiliary unknowns."""
    n, m = len(x), len(y)
    rows, constraint_values = [], []

    def row(entries, limit=0.0):
        coefficients = np.zeros(n * m + 1)
        for index, value in entries:
            coefficients[index] += value
        rows.append(coefficients)
        constraint_values.append(limit)

    for i, k, j in itertools.product(range(n), range(n), range(m)):
        if 0 < abs(i - k) <= cells:
            row([(i * m + j, 1.0), (k * m + j, -math.exp(epsilon))])
    for i in range(n):
        row([*((i * m + j, y[j] ** 2) for j in range(m)), (n * m, -1.0)], x[i] ** 2)
    equal = np.zeros((2 * n, n * m + 1))
    for i in range(n):
        equal[i, i * m : (i + 1) * m] = 1.0
        equal[n + i, i * m : (i + 1) * m] = y
    cost = np.zeros(n * m + 1)
    if weights is None:
        cost[-1] = 1.0
    else:
        cost[:-1] = np.repeat(weights, m) * np.tile(y**2, n)
        rows, constraint_values = rows[:-n], constraint_values[:-n]
    return linprog(cost, rows, constraint_values, equal, np.concatenate([np.ones(n), x])).fun


@pytest.mark.parametrize("cells", [1, 2, 3, 6])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("weights", [None, np.arange(1.0, 8.0)], ids=["worst", "average"])
def test_the_program_is_the_one_written_out(cells, epsilon, weights):
    x, y = np.linspace(-1, 1, 7), np.linspace(-6, 6, 17)
    p = least_variance(epsilon, x, y, cells, weights)
    second = p @ y**2
    objective = (second - x**2).max() if weights is None else weights @ second
    assert objective == pytest.approx(brute_force(epsilon, x, y, cells, weights), rel=1e-5)


@over(ROWS)
def test_a_table_is_private_and_unbiased(m):
    p = m.probabilities
    x = m.middle + m.reach * np.linspace(-1, 1, m.rows)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(m.middle + p @ m.outputs, x, rtol=0, atol=1e-12 * max(1, abs(m.middle)) * np.ptp(x))
    assert np.all(p > 0)
    assert math.exp(m.epsilon) * (1 - 1e-5) < largest_ratio(p, m.cells) <= math.exp(m.epsilon)


@over(ROWS, "optimal-1", "optimal-central-2")
def test_a_symmetric_problem_has_a_symmetric_table(m):
    np.testing.assert_allclose(m.probabilities, m.probabilities[::-1, ::-1], rtol=1e-9)


@over(ROWS)
def test_the_mean_of_an_input_between_rows_is_the_input(m):
    x = np.linspace(m.lower, m.upper, 1001)
    atoms, p = m.atoms(x)
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=0, atol=1e-13)
    np.testing.assert_allclose(
        (p * (atoms - m.middle)).sum(axis=0), x - m.middle, rtol=0, atol=1e-9 * (m.upper - m.lower)
    )
    assert m.worst_variance >= m.variance(x).max() * (1 - 1e-12)
    assert m.worst_variance == pytest.approx(m.variance(x).max(), rel=1e-4)


@pytest.mark.lengthy
@pytest.mark.parametrize(("epsilon", "target"), [(0.5, 16.004), (1.0, 3.9907), (3.0, 0.3040)])
def test_worst_case_variances_of_local_mechanisms(epsilon, target):
    """Within 0.5 % of values computed apart, at 321 outputs; with what rounding between rows adds."""
    m = dpk.optimal(epsilon=epsilon, lower=-1.0, upper=1.0)
    assert m.worst_variance == pytest.approx(target, rel=5e-3)
    assert m.probabilities.shape[0] == 33


CENTRAL = [
    (1, 0.5, 4.0011),
    (1, 1, 0.9981),
    (1, 2, 0.2177),
    (2, 1, 1.3808),
    (2, 2, 0.3488),
    (4, 0.5, 6.0779),
    (4, 1, 1.7161),
    (4, 2, 0.4093),
    (4, 4, 0.0626),
]


@pytest.mark.lengthy
@pytest.mark.quick("1-0.5-4.0011", "2-2-0.3488", "4-2-0.4093")
@pytest.mark.parametrize(("ratio", "epsilon", "target"), CENTRAL)
def test_worst_case_variances_of_central_mechanisms(ratio, epsilon, target):
    """In units of the sensitivity squared, within 2 % of programs solved apart."""
    m = dpk.optimal(epsilon=epsilon, lower=0.0, upper=float(ratio), sensitivity=1.0)
    assert m.worst_variance == pytest.approx(target, rel=0.02)
    assert (m.sensitivity is None) == (ratio == 1)


@pytest.mark.lengthy
@pytest.mark.parametrize("epsilon", [0.02, 0.3, 1.0, 2.5, 5.0])
def test_no_named_mechanism_beats_the_optimal_one(epsilon):
    """But for what its grids lose: one part in ten thousand, and the rounding between rows."""
    best = dpk.optimal(epsilon=epsilon, **SKEW)
    for name, make in dpk.MECHANISMS.items():
        if "quartic" not in name or epsilon == 1.0:
            worst = make(epsilon=epsilon, **SKEW).worst_variance
            assert best.worst_variance <= worst * (1 + 1e-4) + best.step**2 / 4, name


# Budgets, and widths of the interval over the sensitivity.
QUICK = [(0.05, 1), (3, 1), (6, 1), (8, 1), (1, 4), (4, 3)]
SLOW = [
    *((0.5, 1), (1, 1), (2, 1), (4, 1), (5, 1), (7, 1), (9, 1), (10, 1), (11, 1), (12, 1)),
    *((0.5, 2), (0.5, 16), (1, 2), (1, 8), (2, 1.3), (2, 2), (2, 5), (3, 3), (3, 5), (4, 4), (5, 2.7), (6, 2), (6, 5)),
    *((8, 2), (8, 3), (8, 4), (8, 5), (10, 2), (10, 3), (10, 4.6), (12, 1.5), (12, 2), (12, 2.4)),
]
PAIRS = [*QUICK, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW)]


def claimed(epsilon, ratio):
    return {"epsilon": epsilon, "lower": -1.0, "upper": 1.0, "sensitivity": 2 / ratio if ratio > 1 else None}


@pytest.mark.quick("3-1", "8-1")
@pytest.mark.parametrize(("epsilon", "ratio"), PAIRS)
def test_integers_are_never_above_the_best_closed_form(epsilon, ratio):
    """Their worst-case variance, with all roundings, against the formulas', which a release adds to."""
    sampler = dpk.exact_sampler(dpk.optimal(**claimed(epsilon, ratio)))
    named = claimed(epsilon, 1)
    del named["sensitivity"]
    closed = [make(**named) for make in (dpk.piecewise, dpk.hybrid, dpk.duchi)]
    if ratio > 1:
        closed.append(dpk.central_piecewise(**claimed(epsilon, ratio)))
    assert sampler.certificate.worst_variance < min(float(mechanism.worst_variance) for mechanism in closed)


@pytest.mark.lengthy
@pytest.mark.quick("3-1", "8-1")
@pytest.mark.parametrize(("epsilon", "ratio"), PAIRS)
def test_twice_as_fine_grids_gain_less_than_one_percent(epsilon, ratio):
    """With inputs and outputs half as far apart; of the finer table what rounding of inputs adds to its rows."""
    m = dpk.optimal(**claimed(epsilon, ratio))
    rows = input_grid(epsilon, ratio, None)
    fine = InputGrid(2 * rows.points - 1, 2 * rows.row_distance, rows.reach)
    half_count = half_outputs(rows, None)
    p = least_variance(
        epsilon, fine.inputs, m.spacing / 2 * np.arange(-2 * half_count, 2 * half_count + 1), fine.row_distance
    )
    y = m.spacing / 2 * np.arange(-2 * half_count, 2 * half_count + 1)
    finer = (p @ y**2 - fine.inputs**2).max() + (m.step / 4) ** 2
    assert 0.99 * m.worst_variance < finer
    assert largest_ratio(m.probabilities, m.cells) <= math.exp(epsilon)


@pytest.mark.lengthy
@pytest.mark.parametrize(("epsilon", "ratio"), [(0.5, 4.0), (1.0, 2.0), (1.0, 4.0), (2.0, 2.0)])
def test_central_mechanisms_are_ordered(epsilon, ratio):
    claim = {"epsilon": epsilon, "lower": 0.0, "upper": ratio, "sensitivity": 1.0}
    worst = float(dpk.optimal(**claim).worst_variance)
    assert worst < float(dpk.central_piecewise(**claim).worst_variance)
    assert worst < 2 / epsilon**2
    assert worst < dpk.staircase(epsilon=epsilon, sensitivity=1.0).noise.variance
    local = float(dpk.optimal(epsilon=epsilon, lower=0.0, upper=ratio).worst_variance)
    assert float(dpk.optimal(epsilon=epsilon, lower=0.0, upper=1.0).worst_variance) < worst < local


# Grids and expected inputs


@pytest.mark.parametrize("ratio", [1.0001, 1.3, 2.0, 2.7, 3.01, 7.77, 16.0])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("points", [None, 3, 9, 33])
def test_grids_hold_the_interval_and_the_sensitivity(ratio, epsilon, points):
    """Neighbours, and one step of 2^-16 rows between them besides, are at most ``cells`` rows apart."""
    rows = input_grid(epsilon, ratio, points)
    step = 2 * rows.reach / (rows.points - 1)
    assert rows.points % 2 == 1
    assert rows.reach >= 1
    assert rows.row_distance == rows.points - 1 or 2 / ratio <= step * (rows.row_distance - 2.0**-16)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 1.6, 4.0, 8.0, 10.0, 12.0])
def test_what_is_covered_has_tables_that_fit(epsilon):
    ratios = [ratio for ratio in np.linspace(1.0, 17.0, 161) if has_grid(epsilon, ratio)]
    assert ratios[-1] >= 2.4
    for ratio in ratios:
        rows = input_grid(epsilon, ratio, None)
        assert rows.points * (2 * half_outputs(rows, None) + 1) <= 1 << 21
    assert not has_grid(12.5)


def test_rows_of_expected_inputs_have_the_histograms_moments():
    rows = input_grid(1.0, 1.0, 9)
    edges, masses = expected_inputs(([-2.0, 0.0, 1.0, 5.0], [1.0, 0.0, 3.0]), -3.0, 5.0)
    a = row_weights(edges, masses, rows)
    middles = (edges[1:] + edges[:-1]) / 2
    assert a.sum() == pytest.approx(1, abs=1e-14)
    assert a @ rows.inputs == pytest.approx(masses @ middles, abs=1e-14)
    np.testing.assert_array_equal(expected_inputs([1e308, 1e308], 0.0, 1.0)[1], 0.5)


def test_expected_inputs_lower_the_average_variance():
    weights = np.array([8.0, 4.0, 2.0, 1.0])
    x = (np.arange(400) + 0.5) / 400
    tailored, worst = (
        dpk.optimal(epsilon=1.0, objective=objective, **SMALL, **UNIT) for objective in (weights, "worst")
    )
    masses = np.repeat(weights, 100) / weights.sum() / 100
    assert masses @ tailored.variance(x) < 0.99 * (masses @ worst.variance(x))
    assert tailored.worst_variance > worst.worst_variance
    bins = dpk.optimal(epsilon=1.0, objective=(np.linspace(0, 1, 5), weights), **SMALL, **UNIT)
    assert bins == tailored


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epsilon": 0.0}, r"epsilon: 0 is not in \[0.01, 20\]"),
        ({"epsilon": 13.0}, r"epsilon: 13 is not in \[0.01, 12\]"),
        ({"epsilon": math.nan}, "epsilon: nan"),
        ({"lower": 1.0}, "lower must be below upper"),
        ({"sensitivity": 0.0}, "sensitivity: 0"),
        ({"sensitivity": math.nan}, "sensitivity: nan"),
        ({"sensitivity": 0.06}, "sensitivity: 0.06 is 1/16.6667 of the interval"),
        ({"epsilon": 4.0, "sensitivity": 0.19, "points": None}, "sensitivity: 0.19 is 1/5.26316 .* below 1/5, take"),
        ({"points": 1401, "outputs": 1501}, "outputs: 1501 for 1401 inputs are more than 2097152"),
        ({"points": 8}, "points: 8 is even"),
        ({"points": 1}, "points: 1 is not in 3"),
        ({"outputs": 40}, "outputs: 40 is even"),
        ({"outputs": 3}, "outputs: 3 is not in 9"),
        ({"objective": "mean"}, "objective: 'mean' is not one of worst"),
        ({"objective": [1.0, -1.0]}, "objective: weights must be at least 0"),
        ({"objective": [0.0, 0.0]}, "objective: weights must be at least 0"),
        ({"objective": [1.0, math.nan]}, "objective: weights must be a 1-D array of finite"),
        ({"objective": ([0.0, 1.0], [1.0, 2.0])}, "2 weights need 3 rising edges"),
        ({"objective": ([0.0, 2.0], [1.0])}, "1 weights need 2 rising edges"),
        ({"objective": (1.0, 2.0, 3.0)}, "objective: a tuple of 3"),
    ],
)
def test_bad_arguments_are_named(wrong, match):
    with pytest.raises(ValueError, match=match):
        dpk.optimal(**({"epsilon": 1.0, **SMALL, **UNIT} | wrong))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"sensitivity": -1.0}, "sensitivity: -1"),
        ({"sensitivity": 0.01}, "below 1/64 of the interval"),
        ({"steps": 0}, "steps: 0 is not in 1..64"),
        ({"core": 0.0}, "core: 0"),
        ({"core": "widest"}, "core: 'widest' is not a number, 'best' or 'published'"),
        ({"epsilon": 21.0}, "epsilon: 21 is not in"),
    ],
)
def test_bad_arguments_of_central_piecewise_are_named(wrong, match):
    with pytest.raises(ValueError, match=match):
        dpk.central_piecewise(**({"epsilon": 1.0, "sensitivity": 0.5, **UNIT} | wrong))


def test_a_program_without_a_solution_says_what_to_change():
    """Nine outputs at a small budget: none is near the outermost inputs' means."""
    with pytest.raises(ProgramError, match="take more outputs"):
        dpk.optimal(epsilon=0.02, sensitivity=0.1, points=3, outputs=9, **UNIT)


def test_a_table_of_another_shape_is_refused():
    m = ROWS["optimal-1"]
    with pytest.raises(ValueError, match="probabilities: have shape"):
        dpk.Optimal(m.probabilities[1:], m.places, m.reach, m.spacing, m.lower, m.upper, m.epsilon)
    with pytest.raises(ValueError, match="read-only"):
        m.probabilities[0, 0] = 1.0
    for probability in (0.0, math.nan):
        p = m.probabilities.copy()
        p[0, 0] = probability
        with pytest.raises(ValueError, match="probabilities: must be positive"):
            dpk.Optimal(p, m.places, m.reach, m.spacing, m.lower, m.upper, m.epsilon)


# The cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own; solutions in memory are forgotten on request."""
    monkeypatch.setenv("DPKERNELS_CACHE", str(tmp_path / "cache"))
    solved = []
    monkeypatch.setattr(optimal_search, "least_variance", lambda *given: solved.append(1) or least_variance(*given))

    def again():
        for cached in (optimal_search._mechanism, optimal_search._solution):
            cached.cache_clear()
        solved.clear()
        mechanism = dpk.optimal(epsilon=1.3, **SMALL, **UNIT)
        return mechanism, bool(solved)

    yield tmp_path / "cache", again
    for cached in (optimal_search._mechanism, optimal_search._solution):
        cached.cache_clear()


def test_a_solution_is_kept_and_read_again(cache):
    folder, again = cache
    first, solved = again()
    assert solved
    assert [path.suffix for path in folder.iterdir()] == [".npz"]
    second, solved = again()
    assert not solved
    assert second == first


def fake(path, **changes):
    with np.load(path) as file:
        arrays = dict(file)
    np.savez_compressed(path, **(arrays | {name: change(arrays) for name, change in changes.items()}))


def louder(arrays):
    """One probability moved so that a ratio is above e^eps; sums stay."""
    p = arrays["probabilities"].copy()
    index = np.unravel_index(p.argmin(), p.shape)
    p[index[0], p[index[0]].argmax()] += p[index] * 0.01
    p[index] *= 0.99
    return p


def flipped(data):
    """The first compressed bytes of every array are changed, which zlib notices."""
    data, position = bytearray(data), 0
    while (position := data.find(b"PK\x03\x04", position)) >= 0:
        name, extra = struct.unpack("<HH", data[position + 26 : position + 30])
        begin = position + 30 + name + extra
        data[begin : begin + 8] = b"\xff" * 8
        position = begin
    return bytes(data)


def far_places(arrays):
    return np.append(arrays["places"], 10**10)


def with_far_place(arrays):
    """A report of negligible probability, so far out that means are off nevertheless."""
    p = np.hstack([arrays["probabilities"], np.full((len(arrays["probabilities"]), 1), 1e-12)])
    return p / p.sum(axis=1, keepdims=True)


def one_place_more(arrays):
    return np.append(arrays["places"], arrays["places"][-1] + 1)


def hardly_there(arrays):
    """A report of a probability that no word of 64 bits has: sums and means stay, but it cannot be certified."""
    p = arrays["probabilities"]
    return np.hstack([p, np.full((len(p), 1), 1e-25)])


def tight(arrays):
    """The extreme probability moved so that a ratio is e^eps itself, which leaves no room for rounding to integers."""
    p = arrays["probabilities"].copy()
    j = 1 + (p.max(axis=0) / p.min(axis=0))[1:-1].argmax()
    i, k = p[:, j].argmin(), p[:, j].argmax()
    change = (p[i, j] - p[k, j] / math.exp(1.3) * (1 + 1e-15)) / 2
    p[i, j - 1 : j + 2] += np.array([change, -2 * change, change])
    assert math.exp(1.3) * (1 - 1e-9) < largest_ratio(p, len(p)) <= math.exp(1.3)
    return p


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "other key": lambda path: fake(path, key=lambda arrays: np.array("another")),
    "not private": lambda path: fake(path, probabilities=louder),
    "biased": lambda path: fake(path, spacing=lambda arrays: arrays["spacing"] * 1.001),
    "nan": lambda path: fake(path, probabilities=lambda arrays: arrays["probabilities"] * np.nan),
    "wrong shape": lambda path: fake(path, places=lambda arrays: arrays["places"][1:]),
    "bits of the arrays": lambda path: path.write_bytes(flipped(path.read_bytes())),
    "another format of NumPy's": lambda path: np.save(path.open("wb"), np.zeros(3)),
    "biased by a place far out": lambda path: fake(path, probabilities=with_far_place, places=far_places),
    "hardly there": lambda path: fake(path, probabilities=hardly_there, places=one_place_more),
    "no slack": lambda path: fake(path, probabilities=tight),
    "unordered": lambda path: fake(path, places=lambda arrays: arrays["places"][::-1]),
}


@pytest.mark.lengthy
@pytest.mark.quick(
    "cut", "not private", "hardly there", "no slack", "biased", "nan", "unordered", "biased by a place far out"
)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_solved_again(cache, damage):
    folder, again = cache
    first, _ = again()
    (path,) = folder.iterdir()
    damage(path)
    second, solved = again()
    assert solved
    assert second == first
    assert not again()[1]


def test_what_cannot_be_certified_and_was_not_read_is_refused(cache):
    _, again = cache
    mechanism, _ = again()
    p = np.array(mechanism.probabilities)
    row, code = np.unravel_index(p.argmin(), p.shape)
    p[row, code] *= 0.99
    with pytest.raises(dpk.CertificateError):
        dpk.exact_sampler(dataclasses.replace(mechanism, probabilities=p))


def test_what_was_read_and_cannot_be_certified_names_its_file(cache, monkeypatch):
    """And is solved again once the file is deleted."""
    folder, again = cache
    again()
    (path,) = folder.iterdir()
    fake(path, probabilities=hardly_there, places=one_place_more)
    monkeypatch.setattr(optimal_search, "_is_sound", lambda *_: True)
    mechanism, solved = again()
    assert not solved
    with pytest.raises(dpk.CertificateError, match=re.escape(str(path))):
        dpk.exact_sampler(mechanism)
    path.unlink()
    mechanism, solved = again()
    assert solved
    assert dpk.exact_sampler(mechanism).certificate.epsilon == 1.3


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue()


def bombed(path, data):
    """Another member beside what is there."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb.npy", data)


BOMBS = {
    "much": lambda path: bombed(path, header((1 << 23,)) + bytes(1 << 26)),
    "a header that lies": lambda path: bombed(path, header((1 << 40,)) + bytes(80)),
    "a long file": lambda path: path.write_bytes(path.read_bytes() + bytes(1 << 24)),
    "no file": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_is_read_is_bounded(cache, bomb):
    """None of these is read: 64 MiB in 64 KiB, a header of 8 TiB, more than solutions need, a pipe nobody writes to."""
    folder, again = cache
    first, _ = again()
    (path,) = folder.iterdir()
    bomb(path)
    tracemalloc.start()
    arrays = optimal_search._read(path, "any")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert arrays is None
    assert most < 1 << 22
    second, solved = again()
    assert solved
    assert second == first


def test_a_cache_may_be_off_or_out_of_reach(cache, monkeypatch, tmp_path):
    folder, again = cache
    monkeypatch.setenv("DPKERNELS_CACHE", "")
    assert again()[1]
    assert not folder.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPKERNELS_CACHE", str(tmp_path / "file"))
    assert again()[1]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("DPKERNELS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert optimal_search.folder() == tmp_path / "dpkernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert optimal_search.folder() == tmp_path / ".cache" / "dpkernels"


# Simulation


def test_equal_arguments_give_one_object():
    first, second = (dpk.optimal(epsilon=1.0, points=9, outputs=41, **SKEW) for _ in range(2))
    assert first is second
    assert first != ROWS["optimal-central-2"]
    assert jax.tree.unflatten(jax.tree.structure(first), jax.tree.leaves(first)) == first


def test_the_sampler_has_the_probabilities_of_the_atoms():
    """The largest of 30 standardised counts; the seed is fixed."""
    m = ROWS["optimal-1"]
    x, n = 3.7, 200_000
    atoms, p = m.atoms(np.array(x))
    y = np.asarray(m.sample(dpk.simulation_key(5), np.full(n, x, np.float32)))
    code = np.abs(y[:, None] - atoms).argmin(axis=1)
    np.testing.assert_allclose(y, atoms[code], rtol=1e-6, atol=1e-5)
    counts = np.bincount(code, minlength=len(p))
    assert (np.abs(counts - n * p) / np.sqrt(n * p * (1 - p))).max() < 5


@over(ROWS)
def test_columns_of_the_sampler_add_up_to_the_probabilities(m):
    threshold, alias = m.alias_columns
    mass = threshold.copy()
    np.add.at(mass, (np.arange(m.rows)[:, None], alias), 1 - threshold)
    np.testing.assert_allclose(mass / len(m.places), m.probabilities, rtol=0, atol=1e-15)


@pytest.mark.lengthy
@over(ROWS)
def test_every_uniform_number_of_the_sampler(m):
    """Evenly spaced ones, between rows and on them, draw every report as often as the atoms say, to two of them."""
    count = 1 << 18
    u = (np.arange(count) + 0.5) / count
    with jax.enable_x64(True):
        draw = jax.jit(m.sampler().draw)
        for x in inputs(m):
            atoms, p = m.atoms(np.array(x))
            y = np.asarray(draw(u, np.full(count, x)))
            frequencies = np.bincount(np.abs(y[:, None] - atoms).argmin(axis=1), minlength=len(p)) / count
            np.testing.assert_allclose(frequencies, p, rtol=0, atol=4 * len(p) / count)


@pytest.mark.thorough
def test_it_goes_through_jit_and_vmap():
    m = ROWS["optimal-central-2"]
    x = np.linspace(m.lower, m.upper, 7)
    jitted = jax.jit(lambda mechanism, at: mechanism.variance(at))(m, x)
    np.testing.assert_allclose(jitted, m.variance(x), rtol=1e-4)
    np.testing.assert_allclose(jax.vmap(m.absolute_error)(jax.numpy.asarray(x)), m.absolute_error(x), rtol=1e-4)


# The Central Piecewise Mechanism

PUBLISHED = {
    (1, 0.5): 5.2691,
    (1, 1): 1.2706,
    (1, 2): 0.2761,
    (2, 1): 2.7536,
    (2, 2): 0.5337,
    (4, 0.5): 14.4205,
    (4, 1): 2.8142,
    (4, 2): 0.4590,
    (4, 4): 0.0773,
}


@pytest.mark.parametrize(("ratio", "epsilon"), PUBLISHED)
def test_published_cores_have_the_published_variances(ratio, epsilon):
    """To the digits given, in units of the sensitivity squared; the best core is no worse."""
    claim = {"epsilon": epsilon, "lower": -3.0, "upper": -3.0 + 5 * ratio, "sensitivity": 5.0}
    published = dpk.central_piecewise(core="published", **claim)
    assert published.worst_variance / 25 == pytest.approx(PUBLISHED[ratio, epsilon], abs=1.01e-4)
    assert dpk.central_piecewise(**claim).worst_variance <= published.worst_variance


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_one_step_is_the_type_one_piecewise_mechanism(epsilon):
    mechanism = dpk.central_piecewise(epsilon=epsilon, sensitivity=20.0, **SKEW)
    piecewise = dpk.piecewise(epsilon=epsilon, **SKEW)
    assert mechanism.worst_variance == pytest.approx(piecewise.worst_variance, rel=1e-8)
    assert mechanism.output_interval == pytest.approx(piecewise.output_interval, rel=1e-3)


def test_more_steps_than_published_lower_the_variance():
    claim = {"epsilon": 1.0, "lower": 0.0, "upper": 2.0, "sensitivity": 1.0}
    worst = [float(dpk.central_piecewise(steps=steps, **claim).worst_variance) for steps in (2, 3, 4, 6)]
    assert worst == sorted(worst, reverse=True)


@pytest.mark.parametrize(
    ("epsilon", "ratio"), [(0.1, 1.5), (0.1, 8.0), (0.5, 4.0), (1.0, 2.0), (3.0, 16.0), (8.0, 4.0)]
)
def test_default_steps_are_the_fewest_that_are_as_good(epsilon, ratio):
    """Within 0.2 % of the best of all; at least as good as the source's, or within 0.2 % of it with fewer."""
    mechanism = dpk.central_piecewise(**claimed(epsilon, ratio))
    others = [
        dpk.central_piecewise(steps=s, **claimed(epsilon, ratio)) for s in (*range(1, 20, 3), math.ceil(ratio), 40, 64)
    ]
    assert mechanism.worst_variance <= 1.002 * min(one.worst_variance for one in others)
    fewer = [one for one in others if one.steps < 0.85 * mechanism.steps]
    assert all(mechanism.worst_variance < (1 - 1e-3) * one.worst_variance for one in fewer)
    assert dpk.central_piecewise(core=0.1, **claimed(epsilon, ratio)).steps == math.ceil(ratio)


@over(CENTRAL_PIECEWISE)
def test_neighbouring_densities_differ_by_one_factor_at_most(m):
    y = np.linspace(*m.output_interval, 2001)[1:-1, None]
    x = np.linspace(m.lower, m.upper - m.sensitivity, 41)
    moved = x + m.sensitivity * (1 - 1e-9)
    ratio = np.abs(np.log(m.pdf(y, x) / m.pdf(y, moved)))
    assert math.exp(-1e-9) * m.epsilon <= ratio.max() <= m.epsilon * (1 + 1e-9)


# Accounting


def profile_by_force(p, cells, epsilon):
    """The largest hockey stick of rows at most ``cells`` apart."""
    pairs = [(a, b) for a in range(len(p)) for b in range(len(p)) if 0 < abs(a - b) <= cells]
    first, second = (p[list(side)] for side in zip(*pairs, strict=True))
    return np.array([np.maximum(first - math.exp(eps) * second, 0).sum(axis=1).max() for eps in epsilon])


@over(ROWS)
def test_the_profile_is_the_largest_over_neighbouring_rows(m):
    epsilon = np.linspace(0, m.epsilon * 1.1, 45)
    expected = profile_by_force(m.probabilities, m.cells, epsilon)
    np.testing.assert_allclose(accountants.delta(m, epsilon), expected, rtol=0, atol=1e-9)
    assert np.all(accountants.delta(m, epsilon) >= expected - 1e-15)
    assert accountants.epsilon(m) == pytest.approx(math.log(largest_ratio(m.probabilities, m.cells)), abs=1e-15)


@over(ROWS)
def test_the_pair_is_its_own_mirror_and_a_pair_of_laws(m):
    (pair,) = dominating_pairs(m)
    np.testing.assert_array_equal(pair.p, pair.q[::-1])
    assert pair.p.sum() == pytest.approx(1, abs=1e-12)


def test_mixtures_of_rows_are_within_the_profile():
    """Neighbouring inputs anywhere, rounded by one shared uniform, have no larger hockey stick."""
    m = ROWS["optimal-central-2"]
    epsilon = np.linspace(0, 2, 9)
    bound = accountants.delta(m, epsilon)
    for x in np.linspace(m.lower, m.upper - m.sensitivity, 23):
        p, q = (m.atoms(np.array(at))[1] for at in (x, x + m.sensitivity))
        sticks = [np.maximum(a - np.exp(epsilon)[:, None] * b, 0).sum(axis=1) for a, b in ((p, q), (q, p))]
        assert np.all(np.max(sticks, axis=0) <= bound + 1e-12)


@over(CENTRAL_PIECEWISE)
def test_the_profile_of_central_piecewise_is_that_of_its_density(m):
    """By a fine Riemann sum over reports; every pair of inputs tried is within it."""
    y = np.linspace(*m.output_interval, 400_001)
    y, width = (y[1:] + y[:-1]) / 2, y[1] - y[0]
    epsilon = np.array([0.0, 0.3, 0.9]) * m.epsilon
    delta = accountants.delta(m, epsilon)
    for x, share in itertools.product(inputs(m)[:3], (0.4, 1.0)):
        p, q = m.pdf(y, x), m.pdf(y, min(x + share * m.sensitivity, m.upper))
        sums = [np.maximum(p - math.exp(eps) * q, 0).sum() * width for eps in epsilon]
        assert np.all(np.array(sums) <= delta + 1e-4)
    x = m.lower
    p, q = m.pdf(y, x), m.pdf(y, x + min(m.sensitivity, m.upper - m.lower))
    np.testing.assert_allclose([np.maximum(p - math.exp(e) * q, 0).sum() * width for e in epsilon], delta, atol=1e-4)
    assert accountants.epsilon(m) == m.epsilon


def test_a_sensitivity_of_its_own_is_refused():
    for m in (ROWS["optimal-central-2"], CENTRAL_PIECEWISE["central-piecewise-1"]):
        with pytest.raises(ValueError, match="sensitivity: 1"):
            accountants.delta(m, 1.0, sensitivity=1.0)


@over({name: ALL[name] for name in (*ROWS, "central-piecewise-1")})
def test_replaced_records_are_accounted_for_any_two_inputs_only(m):
    """With a sensitivity, one record's two values may be twice as far apart."""
    for reports in (m, dpk.exact_sampler(m)):
        single = accountants.guarantee(reports)
        for guarantee in (single, accountants.Guarantee.from_json(single.to_json())):
            if m.sensitivity is None:
                assert guarantee.subsample(0.5, adjacency="replace").neighbouring == repeated.NEIGHBOURS["replace"]
            else:
                with pytest.raises(ValueError, match="adjacency: 'replace' may move a value by twice the sensitivity"):
                    guarantee.subsample(0.5, adjacency="replace")


@pytest.mark.thorough
def test_reports_compose():
    m = ROWS["optimal-1"]
    together = accountants.guarantee(m).repeat(8)
    low, high = together.bracket(epsilon=3.0)
    assert low <= together.delta(3.0) <= high
    assert together.delta(3.0) < together.delta(1.0) < 1


# The command


@pytest.mark.thorough
def test_compare_shows_the_distance_from_the_optimum(capsys, monkeypatch):
    from dpkernels.cli import main

    monkeypatch.setenv("DPKERNELS_CACHE", "")
    assert main(["compare", "--epsilon", "1", "--lower", "0", "--upper", "4", "--sensitivity", "2", "--json"]) == 0
    captured = capsys.readouterr()
    rows = {row["mechanism"]: row for row in json.loads(captured.out)}
    best = rows["optimal-central"]
    assert best["percent_above_optimum"] == 0
    for row in rows.values():
        assert row["percent_above_optimum"] == pytest.approx(100 * (row["worst_variance"] / best["worst_variance"] - 1))
        assert row["percent_above_optimum"] >= 0
    assert rows["laplace (unbounded)"]["worst_variance"] == 8.0
    assert captured.err.count("solving the linear program") == 2
    assert main(["compare", "--epsilon", "13", "--lower", "0", "--upper", "4"]) == 0
    assert "optimal" not in capsys.readouterr().out.replace("above optimum", "")


@pytest.mark.parametrize(("epsilon", "steps"), [(0.5, 1), (2.0, 4), (9.0, 12), (20.0, 64)])
def test_the_published_core_is_the_sources_formula(epsilon, steps):
    """In 50 digits; at eps 20 and 64 steps e^(s eps) is beyond floats."""
    with mpmath.workdps(50):
        eps, d, m = mpmath.mpf(epsilon), mpmath.mpf(2) / steps, steps - 1
        A = d * mpmath.exp(eps) * mpmath.expm1(m * eps) / mpmath.expm1(eps)
        B = (1 + m * d) * mpmath.exp((m + 1) * eps)
        U = eps / mpmath.log((A + mpmath.sqrt(A**2 + 4 * B)) / 2)
        b = mpmath.mpf(m + 3) / (m + 4) * U
        wanted = mpmath.exp(eps / b - steps * eps) - d * (1 - mpmath.exp(-m * eps)) / mpmath.expm1(eps)
    mechanism = dpk.central_piecewise(epsilon=epsilon, lower=0.0, upper=float(steps), sensitivity=1.0, core="published")
    assert mechanism.steps == steps
    assert mechanism.core == pytest.approx(float(wanted), rel=1e-10)
