"""Releases of batches: an entry has the bits of its own mechanism, and no certificate but that of its own claim."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import accountants
import dpkernels as dpk
from dpkernels.caching import memory_size
from dpkernels.exact import batches
from dpkernels.exact.batches import BatchCertificate
from dpkernels.exact.bounded.sampler import split_products
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.noise import construction
from dpkernels.exact.noise.certificate import certify_noise
from dpkernels.exact.noise.grid import covering_grid, covering_grids
from dpkernels.random.keys import key_from_bytes
from dpkernels.release import batch_engine
from dpkernels.release.batch_engine import BatchRelease
from dpkernels.release.inputs import Bounds

KEY = key_from_bytes(bytes(range(3, 35)))
RANDOM = np.random.default_rng(5)
LENGTHS = np.exp(RANDOM.uniform(-4, 4, 40))
BUDGETS = np.array([0.31, 1.0, 2.7, 1.0, 0.31, 6.4])
INTERVALS = {"lower": -LENGTHS[:6], "upper": 2 * LENGTHS[:6]}

# Batches, each with values in units of its lengths, and how many tables it has.
BATCHES = {
    "laplace, own units": (lambda: dpk.laplace(epsilon=1.0, sensitivity=LENGTHS), LENGTHS, 1),
    "laplace, rounded ratios": (lambda: dpk.laplace(epsilon=0.7, sensitivity=LENGTHS), LENGTHS, None),
    "laplace, narrow": (lambda: dpk.laplace(epsilon=9.0, sensitivity=LENGTHS), LENGTHS, None),
    "laplace, wide": (lambda: dpk.laplace(epsilon=0.01, sensitivity=LENGTHS[:4]), LENGTHS[:4], None),
    "laplace, own budgets": (lambda: dpk.laplace(epsilon=BUDGETS, sensitivity=LENGTHS[:6]), LENGTHS[:6], None),
    "gaussian, own units": (
        lambda: dpk.gaussian(sigma=4 * LENGTHS, sensitivity=LENGTHS, epsilon=1.5, delta=1e-6),
        LENGTHS,
        1,
    ),
    "gaussian, wide": (
        lambda: dpk.gaussian(sigma=2e5 * LENGTHS[:3], sensitivity=LENGTHS[:3], epsilon=1e-4, delta=1e-6),
        LENGTHS[:3],
        None,
    ),
    "staircase": (lambda: dpk.staircase(epsilon=1.3, sensitivity=LENGTHS), LENGTHS, 1),
    "discrete": (lambda: dpk.discrete_laplace(epsilon=BUDGETS), np.ones(6), 4),
    "piecewise, own intervals": (lambda: dpk.piecewise(epsilon=1.0, lower=-LENGTHS, upper=2 * LENGTHS), LENGTHS, 1),
    "piecewise, own budgets": (lambda: dpk.piecewise(epsilon=BUDGETS, **INTERVALS), LENGTHS[:6], 4),
    "piecewise, two lengths of words": (lambda: dpk.piecewise(epsilon=2 * BUDGETS, **INTERVALS), LENGTHS[:6], 4),
    "sine": (lambda: dpk.composite("sine", width=0.7, epsilon=BUDGETS, **INTERVALS), LENGTHS[:6], 4),
    "square wave": (lambda: dpk.square_wave(epsilon=1.0, **INTERVALS), LENGTHS[:6], 1),
    "duchi": (lambda: dpk.duchi(epsilon=BUDGETS, **INTERVALS), LENGTHS[:6], 4),
    "hybrid": (lambda: dpk.hybrid(epsilon=BUDGETS, lower=-1.0, upper=2.0), np.ones(6), 4),
    "central": (
        lambda: dpk.central_piecewise(epsilon=BUDGETS, lower=-1.0, upper=2.0, sensitivity=1.5, steps=2),
        np.ones(6),
        4,
    ),
    "both axes": (
        lambda: dpk.laplace(epsilon=np.array([[1.0], [2.0]]), sensitivity=LENGTHS[:3]),
        np.ones((2, 1)) * LENGTHS[:3],
        2,
    ),
}
over_batches = pytest.mark.parametrize("name", BATCHES)
QUICK = ("laplace, own*", "gaussian, own units", "piecewise, own*", "hybrid", "both axes")


def batch_and_values(name, dtype=np.float64):
    make, lengths, _ = BATCHES[name]
    return make(), (np.random.default_rng(1).uniform(-1, 2, lengths.shape) * lengths * (1 - 1e-6)).astype(dtype)


@pytest.mark.lengthy
@pytest.mark.quick(*(f"*{name}*" for name in QUICK))
@over_batches
def test_an_entry_releases_the_bits_of_its_own_mechanism(name):
    """Under the same key and index; and with a table for each distinct ratio only."""
    batch, x = batch_and_values(name)
    reports = dpk.perturb(x, batch, key=KEY)
    assert reports.shape == x.shape
    assert np.isfinite(reports).all()
    for i, place in enumerate(np.ndindex(batch.batch_shape)):
        single = dpk.perturb(x.reshape(-1)[i : i + 1], batch[place], key=KEY, start=i)
        assert single.tobytes() == reports[place].tobytes()
    tables = BATCHES[name][2]
    sampler = dpk.exact_sampler(batch)
    assert len(sampler.samplers) == tables if tables else len(sampler.samplers) <= 8
    assert dpk.exact_sampler(batch) is sampler
    assert dpk.exact_sampler(sampler) is sampler


@pytest.mark.lengthy
@pytest.mark.quick("laplace, own budgets", "piecewise, own budgets")
@over_batches
def test_the_certificate_of_an_entry_is_that_of_its_own_mechanism(name):
    """The claim, and every fact of the table on the entry's own grid or interval."""
    batch, _ = batch_and_values(name)
    certificate = dpk.exact_sampler(batch).certificate
    for i, place in enumerate(np.ndindex(batch.batch_shape)):
        own = dpk.exact_sampler(batch[place]).certificate
        shared = certificate.tables[certificate.table_index[i]]
        for fact in ("realised_epsilon", "realised_delta", "ratio", "shift", "cells"):
            assert getattr(own, fact, None) == getattr(shared, fact, None)
        claims = {name: float(values[i]) for name, values in certificate.claims.items()}
        assert claims == {name: float(getattr(own, name)) for name in own.entry_claims}
    again = Certificate.from_dict(json.loads(certificate.to_json()))
    assert again.to_dict() == certificate.to_dict()
    assert str(again) == str(certificate)


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name", ["laplace, own budgets", "gaussian, own units", "piecewise, two lengths of words", "sine"]
)
def test_numpy_xla_chunks_and_parts_report_the_same_bits(name, dtype, monkeypatch):
    batch, x = batch_and_values(name, dtype)
    many = np.tile(x, (-(-300_000 // len(x)), 1))
    reports = dpk.perturb(many, batch, key=KEY)
    assert reports.dtype == dtype
    monkeypatch.setattr(batch_engine, "_ALWAYS_NUMPY", 1 << 30)
    np.testing.assert_array_equal(reports.view("u1"), dpk.perturb(many, batch, key=KEY).view("u1"))
    np.testing.assert_array_equal(reports[777:], dpk.perturb(many[777:], batch, key=KEY, start=777))
    monkeypatch.setattr(batch_engine, "_ALWAYS_NUMPY", 0)
    np.testing.assert_array_equal(reports[777:780], dpk.perturb(many[777:780], batch, key=KEY, start=777))


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["laplace, own units", "laplace, own budgets"])
def test_values_far_from_0_have_the_bits_of_their_own_mechanisms(name):
    """The compiled program for values near 0 has to leave all to the other one if a single value is far from it."""
    batch, x = batch_and_values(name)
    many = np.tile(x, (-(-6000 // len(x)), 1))
    for far in (2.0**26, 2.0**28, -(2.0**33)):
        many[3], many[-1, -1] = x * far / 2, -far * x[-1] / 2
        reports = dpk.perturb(many, batch, key=KEY)
        for row in (3, 4, len(many) - 1):
            part = dpk.perturb(many[row], batch, key=KEY, start=row * len(x))
            assert part.tobytes() == reports[row].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_a_value_outside_its_own_interval_is_refused_by_the_program_too(dtype):
    """Where many values are checked as they are read: the next float beyond an end, and 0 of both signs within it."""
    n = 5000
    upper = np.linspace(1.0, 3.0, n)
    upper[17] = 0.0
    batch = dpk.piecewise(epsilon=1.0, lower=-upper - 1.0, upper=upper)
    x = np.zeros(n, dtype)
    assert dpk.perturb(x, batch).shape == (n,)
    if dtype != "int64":
        x[17] = -0.0
        x[40] = np.asarray(upper[40], dtype)
        dpk.perturb(x, batch)
    beyond = np.nextafter(np.array([upper[40]], "float32" if dtype == "float32" else "float64"), 9)[0]
    float_values = beyond, np.nan, np.inf, -1e30
    for value in (3, -5) if dtype == "int64" else float_values:
        wrong = x.copy()
        wrong[40] = value
        with pytest.raises(ValueError, match="row 40 is"):
            dpk.perturb(wrong, batch)
    if dtype != "int64":
        wrong = x.copy()
        wrong[17] = np.finfo(dtype).smallest_subnormal
        with pytest.raises(ValueError, match="row 17 is"):
            dpk.perturb(wrong, batch)
    wrong = x.copy()
    wrong[4999] = 100
    assert np.isfinite(dpk.perturb(wrong, batch, clip=True)).all()


def test_products_are_split_into_their_nearest_floats_of_29_bits():
    """By fractions, for numbers of all sizes; and an exact product has no second part."""
    random = np.random.default_rng(4)
    numbers = [
        Fraction(int(n), int(d)) * Fraction(2) ** int(e)
        for n, d, e in zip(*random.integers(1, 1 << 62, (2, 500)), random.integers(-300, 300, 500), strict=True)
    ]
    factor = Fraction(3, 7)

    def nearest(number):
        mantissa, exponent = math.frexp(float(number))
        return math.ldexp(round(math.ldexp(mantissa, 29)), exponent - 29)

    coarse, fine = split_products(numbers, factor)
    assert coarse.tolist() == [nearest(number * factor) for number in numbers]
    rests = [number * factor - Fraction(c) for number, c in zip(numbers, coarse.tolist(), strict=True)]
    assert fine.tolist() == [nearest(rest) for rest in rests]
    assert [part.tolist() for part in split_products([Fraction(5)], Fraction(1, 8))] == [[0.625], [0.0]]


def test_what_a_sampler_keeps_for_intervals_and_parts_is_limited(monkeypatch):
    """Intervals of other objects, as every file has, do not add up; and a value that was forgotten is made again."""
    monkeypatch.setattr(batch_engine, "_MAX_CACHED", 4)
    batch = dpk.piecewise(epsilon=1.0, lower=-np.linspace(1, 2, 5000), upper=np.linspace(1, 2, 5000))
    own = dpk.exact_sampler(batch)
    sampler = batches.ExactBatch(batch, own.certificate, own.samplers)
    engine, sizes, reports = BatchRelease(sampler, bytes(32)), set(), set()
    for _ in range(12):
        out = np.empty(5000)
        engine(np.zeros(5000), 0, out, Bounds.of(sampler, clip=False), 0)
        sizes.add(len(sampler.derived))
        reports.add(out.tobytes())
    assert max(sizes) <= 12
    assert len(reports) == 1


def test_a_part_of_a_vector_takes_its_part_of_the_batch():
    batch, x = batch_and_values("laplace, own units")
    reports = dpk.perturb(x, batch, key=KEY)
    np.testing.assert_array_equal(reports[7:20], dpk.perturb(x[7:20], batch[7:20], key=KEY, start=7))


@pytest.mark.parametrize(
    "make",
    [
        lambda eps: dpk.piecewise(epsilon=eps, lower=0.0, upper=1.0),
        lambda eps: dpk.hybrid(epsilon=eps, lower=0.0, upper=1.0),
        lambda eps: dpk.central_piecewise(epsilon=eps / 2, lower=0.0, upper=1.0, sensitivity=0.2, steps=2),
        lambda eps: dpk.laplace(epsilon=eps, sensitivity=1.0),
    ],
)
def test_tables_of_a_batch_and_of_its_parts_share_no_bits_of_a_stream(make):
    """Words of two lengths would overlap: word 2j + 1 of 32 bits is a half of word j of 64."""
    words = set(dpk.exact_sampler(make(np.array([1.0, 12.0]))).words)
    assert words == {need for eps in (1.0, 12.0) for need in dpk.exact_sampler(make(eps)).words}
    assert len({need.stream for need in words}) == len(words)


def test_values_with_words_of_two_lengths_have_independent_noise():
    """The correlation of 2,000 pairs is within 0.2, at a false-alarm rate below 1e-12."""
    n = 8000
    batch = dpk.piecewise(epsilon=np.where(np.arange(n) < n // 2, 12.0, 1.0), lower=0.0, upper=1.0)
    for reports in (
        dpk.perturb(np.full(n, 0.5), batch, key=KEY),
        np.concatenate(  # In parts, with one key.
            [dpk.perturb(np.full(n // 2, 0.5), batch[s : s + n // 2], key=KEY, start=s) for s in (0, n // 2)]
        ),
    ):
        wide = reports[n // 4 : n // 2]
        for half in (0, 1):
            narrow = reports[n // 2 + half :: 2]
            assert abs(np.corrcoef(wide, narrow)[0, 1]) < 0.2


@pytest.mark.lengthy
def test_tails_without_end_are_completed_by_the_words_of_their_own_index(monkeypatch):
    """With tails of 2^-6 and more: some reports need later turns, of one table and of several."""
    monkeypatch.setattr(construction, "_TAIL_MASS", 2.0**-6)
    lengths = np.exp(np.random.default_rng(2).uniform(-2, 2, 5000))
    for budgets in (1.25, np.where(np.arange(5000) % 3, 0.75, 1.625)):
        batch = dpk.laplace(epsilon=budgets, sensitivity=lengths)
        sampler, x = dpk.exact_sampler(batch), np.zeros(5000)
        reports = dpk.perturb(x, sampler, key=KEY)
        far = np.flatnonzero(np.abs(reports) > 4.2 * lengths / budgets)
        assert len(far) > 30
        for i in far[:60].tolist():
            assert reports[i] == dpk.perturb(x[i : i + 1], batch[i], key=KEY, start=i)[0]


@pytest.mark.parametrize("name", ["laplace, own budgets", "gaussian, own units", "piecewise, own budgets"])
def test_planted_faults_are_refused(name):
    """Tables exchanged, the claim of the next entry, a table for nobody, an entry left out, a weight one more."""
    certificate = dpk.exact_sampler(batch_and_values(name)[0]).certificate
    claims, table_of = dict(certificate.claims), certificate.table_index

    def refused(message, **changes):
        with pytest.raises(CertificateError, match=message):
            replace(certificate, **changes)

    if len(certificate.tables) > 1:
        swapped = table_of.copy()
        swapped[[0, 1]] = swapped[[1, 0]]
        refused("entry [01]: table [01] is not certified", table_index=swapped)
        refused("is not certified", tables=certificate.tables[::-1])
    refused("does not name each", table_index=table_of + 1)
    refused("one number each", table_index=table_of[:-1])
    refused("one number each", claims=claims | {"epsilon": claims["epsilon"][1:]})
    refused("claims: are of", claims={"epsilon": claims["epsilon"]})
    refused("is not certified", claims=claims | {"epsilon": claims["epsilon"] * (1 - 1e-15)})
    refused("no batch", tables=())
    payload = certificate.to_dict()
    for change in (
        lambda p: p["tables"][0].__setitem__("epsilon", p["tables"][0]["epsilon"] / 2),
        lambda p: p["claims"]["epsilon"].__setitem__(2, 5e-3),
        lambda p: p["claims"]["epsilon"].__setitem__(2, "1"),
        lambda p: p["table_of"].__setitem__(0, len(p["tables"])),
        lambda p: p["table_of"].__setitem__(0, 0.0),
        lambda p: p["shape"].append(2),
        lambda p: p.__setitem__("shape", [-len(table_of), -1]),
        lambda p: p.__setitem__("more", 1),
        lambda p: p.__delitem__("claims"),
    ):
        forged = copy.deepcopy(payload)
        change(forged)
        with pytest.raises(CertificateError):
            Certificate.from_dict(forged)


@pytest.mark.parametrize(
    ("name", "claim", "values"),
    [
        ("piecewise, own intervals", "lower", (np.inf, -np.inf, np.nan, 1e151, -1e151, 1e9)),
        ("laplace, own units", "sensitivity", (np.inf, -np.inf, np.nan, 0.0, -1.0, 5e-324, 1.7e308)),
    ],
)
def test_a_claim_that_no_mechanism_can_have_is_refused(name, claim, values):
    certificate = dpk.exact_sampler(batch_and_values(name)[0]).certificate
    for value in values:
        numbers = certificate.claims[claim].copy()
        numbers[3] = value
        with pytest.raises(CertificateError, match="entry 3: table 0 is not certified"):
            replace(certificate, claims=certificate.claims | {claim: numbers})


def test_a_sensitivity_of_another_entry_is_refused_where_it_is_too_large():
    """On its grid, an entry is as many cells apart as its table is certified for; the grid follows from the claim."""
    certificate = dpk.exact_sampler(batch_and_values("laplace, own units")[0]).certificate
    (table,) = certificate.tables
    D = certificate.claims["sensitivity"]
    exponents, points, M = covering_grids(D, table.bins_log2)
    for i, (d, exponent, count, bins) in enumerate(zip(*(a.tolist() for a in (D, exponents, points, M)), strict=True)):
        grid_log2, points_per_bin = covering_grid(Fraction(d), Fraction(2) ** table.bins_log2)
        assert (grid_log2, points_per_bin) == (exponent, bins)
        assert count == -(Fraction(-d) / Fraction(2) ** exponent).__floor__()
        moved = replace(table.table, grid_log2=grid_log2, points_per_bin=points_per_bin)
        own = certify_noise(moved, d, table.epsilon, table.delta)
        assert own.shift == table.shift
        assert own.realised_delta == table.realised_delta
        # The planted fault: the next entry's grid for this one.
        wrong = int(exponents[(i + 1) % len(D)]), int(M[(i + 1) % len(D)])
        other = replace(table.table, grid_log2=wrong[0], points_per_bin=wrong[1])
        if other.cells(Fraction(d)) > table.shift:
            with pytest.raises(CertificateError):
                certify_noise(other, d, table.epsilon, table.delta)
        assert other.cells(Fraction(d)) != table.shift


def test_the_sampler_reads_the_places_that_its_certificate_states():
    """Planted: the places of the next entry. The reports are then not those of the entry's own mechanism."""
    for name in ("laplace, own units", "piecewise, own intervals"):
        batch, x = batch_and_values(name)
        sampler = dpk.exact_sampler(batch)
        reports = dpk.perturb(x, sampler, key=KEY)
        wrong = batches.ExactBatch(sampler.mechanism, sampler.certificate, sampler.samplers)
        wrong.__dict__["entry_parameters"] = tuple(
            tuple(np.roll(c, 1) for c in columns) for columns in sampler.entry_parameters
        )
        others = dpk.perturb(x, wrong, key=KEY)
        assert (reports != others).mean() > 0.9


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(5), r"last axes must be \(6,\)"),
        (np.zeros((6, 1)), r"last axes must be \(6,\)"),
        (np.float64(0.0), r"last axes must be \(6,\)"),
        (np.zeros((0, 6)), "is empty"),
        (np.array([0.0, 0.0, np.nan, 0.0, 0.0, 0.0]), "row 2 is nan"),
        (np.array([[0.0] * 6, [0.0, 0.0, np.inf, 0.0, 0.0, 0.0]]), r"value \(1, 2\) is inf"),
        (np.array([0.0, 0.0, 0.0, 1e9, 0.0, 0.0]), "row 3 is 1000000000, outside the input interval"),
    ],
)
def test_values_that_do_not_fit_are_refused_before_a_charge(x, message, tmp_path):
    """Each in the interval of its own entry: an ordinary value of another entry is refused, too."""
    batch = dpk.piecewise(epsilon=BUDGETS, **INTERVALS)
    ledger = accountants.Ledger.create(tmp_path / "ledger", 100.0)
    for options in ({}, {"exact": False}, {"ledger": ledger, "rows": "same-people"}):
        with pytest.raises(ValueError, match=message):
            dpk.perturb(x, batch, **options)
    assert not ledger.state().entries
    shuffled = np.where(np.arange(6) == 2, 1.9 * LENGTHS[:6].max(), 0.0)
    if LENGTHS[2] < LENGTHS[:6].max():
        with pytest.raises(ValueError, match="row 2 is"):
            dpk.perturb(shuffled, batch)
    assert dpk.perturb(shuffled, batch, clip=True).shape == (6,)


def test_a_batch_is_charged_for_all_that_a_person_pays(tmp_path):
    def spent(x, batch, **options):
        ledger = accountants.Odometer()
        dpk.perturb(x, batch, ledger=ledger, **options)
        return ledger.spent

    statistics = dpk.gaussian(
        sigma=np.full(4, 100.0), sensitivity=1.0, epsilon=np.array([0.1, 0.2, 0.3, 0.1]), delta=1e-6
    )
    local = dpk.duchi(epsilon=np.array([0.1, 0.2, 0.3, 0.1]), lower=0.0, upper=1.0)
    everyone, one = {"rows": "same-people"}, {"rows": "different-people"}
    assert spent(np.zeros(4), statistics, **everyone) == (Fraction(7, 10), Fraction(4, 10**6))
    assert spent(np.zeros(4), statistics, **one) == (Fraction(3, 10), Fraction(1, 10**6))
    assert spent(np.zeros((5, 4)), statistics, **everyone) == (Fraction(35, 10), Fraction(20, 10**6))
    assert spent(np.zeros((5, 4)), statistics, **one) == (Fraction(7, 10), Fraction(4, 10**6))
    assert spent(np.zeros((5, 4)), local) == (Fraction(7, 10), 0)
    assert spent(np.zeros((1, 4)), statistics) == (Fraction(7, 10), Fraction(4, 10**6))
    for batch in (statistics, local):
        with pytest.raises(ValueError, match="rows: None"):
            spent(np.zeros(4), batch)
    with pytest.raises(ValueError, match="rows: None"):
        spent(np.zeros((2, 4)), statistics)
    ledger = accountants.Odometer()
    ledger.charge(dpk.laplace(epsilon=0.1, sensitivity=np.arange(1.0, 11.0)))
    assert ledger.spent == (Fraction(1), 0)


def test_a_batch_has_no_missing_values_and_no_devices():
    batch, x = batch_and_values("laplace, own units")
    for missing in ("keep", "drop"):
        with pytest.raises(ValueError, match="so none may be missing"):
            dpk.perturb(x, batch, missing=missing)
        with pytest.raises(ValueError, match="so none may be missing"):
            dpk.perturb(x, dpk.exact_sampler(batch), missing=missing)
    with pytest.raises(ValueError, match="devices: are for one mechanism"):
        dpk.perturb(x, batch, devices=jax.devices())
    with pytest.raises(TypeError, match="not an exact sampler of single values"):
        dpk.perturb_traced(KEY, dpk.exact_sampler(batch), jnp.asarray(x))
    with pytest.raises(TypeError, match="traced batch"):
        jax.jit(lambda s: dpk.exact_sampler(dpk.laplace(epsilon=1.0, sensitivity=s)))(x)
    with pytest.raises(CertificateError, match="claims sensitivity"):
        dpk.exact_sampler(dpk.gaussian(sigma=np.ones(3)))


def test_too_many_tables_are_refused(monkeypatch):
    monkeypatch.setattr(batches, "MAX_TABLES", 3)
    with pytest.raises(CertificateError, match="over 3 kinds of entries"):
        dpk.exact_sampler(dpk.duchi(epsilon=np.linspace(1, 2, 4), lower=0.0, upper=1.0))


def test_columns_and_jax_arrays_keep_their_kind():
    pd = pytest.importorskip("pandas")
    batch, x = batch_and_values("piecewise, own budgets")
    reports = dpk.perturb(x, batch, key=KEY)
    column = dpk.perturb(pd.Series(x, name="x"), batch, key=KEY)
    assert column.name == "x"
    assert (column.to_numpy() == reports).all()
    with jax.enable_x64(True):
        of_jax = dpk.perturb(jnp.asarray(x), batch, key=KEY)
        assert isinstance(of_jax, jax.Array)
        assert (np.asarray(of_jax) == reports).all()
    table = dpk.perturb(pd.DataFrame({"a": x, "b": x}), {"a": batch}, key=KEY)
    assert (table["b"] == x).all()
    assert (table["a"] != x).all()
    assert (dpk.perturb(x, pickle.loads(pickle.dumps(dpk.exact_sampler(batch))), key=KEY) == reports).all()


def test_a_changed_array_changes_no_release():
    sensitivities = np.ones(3)
    batch = dpk.laplace(epsilon=1.0, sensitivity=sensitivities)
    before = dpk.perturb(np.zeros(3), batch, key=KEY)
    sensitivities[:] = 1e-9
    assert (dpk.perturb(np.zeros(3), batch, key=KEY) == before).all()


def test_the_memory_of_a_batch_counts():
    batch = dpk.laplace(epsilon=1.0, sensitivity=np.arange(1.0, 1001.0))
    assert memory_size(batch) > 2 * 8 * 1000  # Sensitivities and scales.


def test_no_array_of_a_batch_can_be_changed():
    """Else the certificate, which is kept, would be of other claims than the batch's."""
    source = np.ones(3)
    view = source[:]
    source.setflags(write=False)
    batch = dpk.piecewise(epsilon=source, lower=0.0, upper=1.0)
    view[:] = 7.0
    assert (batch.epsilon == 1.0).all()
    nested = dpk.laplace(epsilon=1.0, sensitivity=source)
    rebuilt = [jax.tree.map(np.copy, each) for each in (batch, nested)]  # Without the constructor.
    for each in rebuilt:
        dpk.exact_sampler(each)
    for each in (
        batch,
        nested,
        *rebuilt,
        pickle.loads(pickle.dumps(batch)),
        copy.deepcopy(nested),
        batch[[0, 1]],
        batch[1:],
    ):
        for leaf in jax.tree.leaves(each):
            if np.ndim(leaf):
                with pytest.raises(ValueError, match="WRITEABLE"):
                    leaf.setflags(write=True)


@pytest.mark.lengthy
@pytest.mark.parametrize("local", [True, False])
def test_outcomes_have_the_frequencies_of_their_tables(local):
    """Chi-square of 50 entries, each at a level of 1e-6/50, against the certified integers."""
    budgets, lengths = np.linspace(0.5, 3, 50), np.exp(np.linspace(-2, 2, 50))
    interval = {"lower": -lengths, "upper": lengths}
    batch = dpk.piecewise(epsilon=budgets, **interval) if local else dpk.laplace(epsilon=budgets, sensitivity=lengths)
    draws, x = 200_000, 0.3 * lengths if local else np.zeros(50)
    reports = dpk.perturb(np.broadcast_to(x, (draws, 50)), batch, key=KEY)
    for i in range(50):
        table = dpk.exact_sampler(batch[i]).certificate.table
        if local:
            share = (x[i] - table.lower) / float(table.row_spacing)
            row = int(share)
            weights = (row + 1 - share) * table.row(row) + (share - row) * table.row(row + 1)
            codes = np.round((reports[:, i] - float(table.middle)) / float(table.report_step) + (table.codes - 1) / 2)
        else:
            table = table.finite
            weights, codes = table.weights.astype(float), np.round(reports[:, i] / float(table.bin_width)) - table.first
            codes = np.clip(codes, 0, table.codes - 1)
        p = weights / weights.sum()
        groups = np.searchsorted(np.linspace(0, 1, 21)[1:-1], np.cumsum(p) - p / 2)
        expected = draws * np.bincount(groups, p, 20)
        counts = np.bincount(groups[codes.astype(int)], minlength=20)
        assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-6 / 50, 19)


def test_a_batch_release_is_an_engine_of_any_part():
    batch, _x = batch_and_values("laplace, own budgets")
    sampler = dpk.exact_sampler(batch)
    assert isinstance(sampler.certificate, BatchCertificate)
    engine = BatchRelease(sampler, bytes(range(3, 35)))
    assert batch_engine._entries(engine.sampler.size, 4, 2) == slice(4, 6)
    assert batch_engine._entries(engine.sampler.size, 4, 5).tolist() == [4, 5, 0, 1, 2]
