"""Laplace noise of many scales from few tables: certificates against sums of Fractions, faults, and frequencies."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact import batches
from dpkernels.exact.batches import BatchCertificate
from dpkernels.exact.certificate import Certificate, CertificateError, exp_lower_bound
from dpkernels.exact.noise import shared
from dpkernels.exact.noise.construction import pure_table_on_grid
from dpkernels.exact.noise.shared import certify_shared, shared_grids
from dpkernels.release import batch_engine

KEY = dpk.key_from_bytes(bytes(range(5, 37)))
RANDOM = np.random.default_rng(8)
EPSILON = np.append(np.exp(RANDOM.uniform(np.log(4), np.log(20), 58)), [4.0, 20.0])  # Of small tables.
WIDE = np.append(np.exp(RANDOM.uniform(np.log(0.01), np.log(4), 58)), [0.01, 0.0625])
LENGTHS = np.exp(RANDOM.uniform(-9, 9, 60))


@pytest.fixture(autouse=True)
def few_own_tables(monkeypatch):
    monkeypatch.setattr(batches, "MAX_TABLES", 20)


def many(epsilon=EPSILON, lengths=LENGTHS):
    return dpk.laplace(epsilon=epsilon, sensitivity=lengths)


def small_table(rate):
    return pure_table_on_grid(dpk.Laplace(1 / rate), 1, -11, 1 << 11, 64, 2.0**-20, 1.0)


@pytest.mark.parametrize("rate", [0.5, 0.125])
def test_any_number_of_cells_has_its_budget(rate):
    """Every pair of codes, to the third block of the tail: the ratio is at most e^(rate times their distance)."""
    table = small_table(rate)
    certify_shared(table, rate)
    tail, total = table.tail, table.total
    half = [Fraction(w, total) for w in table.outcomes[-table.first :]]
    for block in range(3):
        half += [
            Fraction(tail.rest, total) * tail.continue_probability**block * Fraction(w, total)
            for w in tail.block.tolist()
        ]
    probabilities = half[:0:-1] + half
    limits = [exp_lower_bound(Fraction(rate) * cells) for cells in range(7)]
    for cells in range(1, 7):
        for a, b in zip(probabilities, probabilities[cells:], strict=False):
            assert max(a, b) <= limits[cells] * min(a, b)
    # Nothing is wasted: somewhere a step is that of the rate but for the stretch.
    assert max(a / b for a, b in pairwise(half)) > exp_lower_bound(rate * (1 - 1e-5))


@pytest.mark.lengthy
@pytest.mark.parametrize("budgets", [EPSILON, WIDE])
def test_entries_are_as_many_cells_apart_as_their_budgets_allow(budgets):
    """As fractions: the cells of an entry's own grid times the rate are at most its budget, and nearly all of it."""
    certificate = dpk.exact_sampler(many(budgets)).certificate
    assert len(certificate.tables) < 9
    assert (certificate.epsilon == budgets).all()
    assert not certificate.delta.any()
    for i, (epsilon, D) in enumerate(zip(budgets.tolist(), LENGTHS.tolist(), strict=True)):
        rate = certificate.tables[certificate.table_index[i]].rate
        grid_log2, points, M = (int(n[0]) for n in shared_grids(budgets[[i]], LENGTHS[[i]], rate))
        g = Fraction(2) ** grid_log2
        assert points == -(-Fraction(D) // g)
        cells = -(-points // M)
        assert cells * Fraction(rate) <= rational(epsilon)
        scale = float(M * g) / rate
        assert 1 - 1e-12 < scale * epsilon / D < (1.002 if epsilon >= 1 / 16 else 1.005)


@pytest.mark.lengthy
def test_planted_faults_are_refused(monkeypatch):
    table, rate = small_table(0.125), 0.125
    middle = table.codes // 2
    for place, change in ((3, -0.01), (9, 0.01)):
        weights = table.weights.tolist()
        moved = int(weights[middle + place] * change)
        for code, weight in ((middle + place, moved), (middle - place, moved), (middle, -2 * moved)):
            weights[code] += weight
        with pytest.raises(CertificateError):
            certify_shared(replace(table, weights=np.array(weights, np.uint64)), rate)
    for wrong in (rate / 2, 0.12):
        with pytest.raises(CertificateError):
            certify_shared(table, wrong)
    with pytest.raises(CertificateError, match="no tail"):
        certify_shared(replace(table, tail=None), rate)

    sampler = dpk.exact_sampler(many())
    certificate, payload = sampler.certificate, sampler.certificate.to_dict()
    again = Certificate.from_dict(json.loads(json.dumps(payload)))
    assert isinstance(again, BatchCertificate)
    assert again.to_dict() == payload
    assert "for each cell" in str(again)
    for change in (
        lambda p: p["tables"][0].__setitem__("rate", p["tables"][0]["rate"] / 2),
        lambda p: p["claims"]["delta"].__setitem__(3, 1e-6),
        lambda p: p["claims"]["epsilon"].__setitem__(3, 1e-5),
        lambda p: p["claims"]["epsilon"].__setitem__(3, 21.0),
        lambda p: p["claims"]["sensitivity"].__setitem__(3, 0.0),
        lambda p: p["tables"][0]["noise"].__delitem__("tail"),
    ):
        forged = copy.deepcopy(payload)
        change(forged)
        with pytest.raises(CertificateError):
            Certificate.from_dict(forged)
    # One cell more than the budget has room for: refused for the entry by itself, whatever its grid.
    own = shared.shared_grids

    def too_fine(epsilon, sensitivity, rate):
        exponents, points, _ = own(epsilon, sensitivity, rate)
        return exponents, points, points // (np.floor(epsilon / rate).astype(np.int64) + 1)

    monkeypatch.setattr(shared, "shared_grids", too_fine)
    with pytest.raises(CertificateError, match="entry 0: table"):
        replace(certificate)


def test_what_cannot_share_tables_is_refused():
    budgets = np.linspace(0.5, 2.0, 60)
    for batch in (
        dpk.staircase(epsilon=budgets),
        dpk.Additive(dpk.Laplace(2 / budgets), 1.0, budgets, 0.0),  # Wider than its claim.
        dpk.Additive(dpk.Laplace(1 / budgets), 1.0, budgets, 1e-9),
        dpk.Additive(dpk.Laplace(1e5 / budgets), 1.0, budgets / 1e5, 0.0),  # Of too few cells.
    ):
        with pytest.raises(CertificateError, match="over 20 kinds of entries"):
            dpk.exact_sampler(batch)


def test_reports_are_on_the_cells_of_their_own_entry():
    """Planted: the cells of the next entry."""
    sampler = dpk.exact_sampler(many())
    x = np.zeros(60)
    reports = dpk.perturb(x, sampler, key=KEY)
    for i in range(60):
        rate = sampler.certificate.tables[sampler.certificate.table_index[i]].rate
        grid_log2, _, M = (int(n[0]) for n in shared_grids(EPSILON[[i]], LENGTHS[[i]], rate))
        assert (Fraction(reports[i]) / (M * Fraction(2) ** grid_log2)).denominator == 1
    wrong = batches.ExactBatch(sampler.mechanism, sampler.certificate, sampler.samplers)
    wrong.__dict__["entry_parameters"] = tuple(
        tuple(np.roll(c, 1) for c in columns) for columns in sampler.entry_parameters
    )
    assert (reports != dpk.perturb(x, wrong, key=KEY)).mean() > 0.9


@pytest.mark.lengthy
def test_numpy_xla_and_parts_report_the_same_bits(monkeypatch):
    batch, x = many(), 10 * LENGTHS
    rows = np.tile(x, (500, 1))
    reports = dpk.perturb(rows, batch, key=KEY)
    np.testing.assert_array_equal(reports[77:], dpk.perturb(rows[77:], batch, key=KEY, start=77))
    np.testing.assert_array_equal(
        dpk.perturb(x, batch, key=KEY)[30:], dpk.perturb(x[30:], batch[30:], key=KEY, start=30)
    )
    monkeypatch.setattr(batch_engine, "_ALWAYS_NUMPY", 1 << 30)
    np.testing.assert_array_equal(reports, dpk.perturb(rows, batch, key=KEY))


@pytest.mark.lengthy
def test_noise_has_the_distribution_of_its_scale():
    """Kolmogorov-Smirnov of 25 entries, each at a level of 1e-6/25; the noise is within 0.5 % of its scale."""
    epsilon, lengths = np.linspace(0.5, 9.0, 25), np.exp(np.linspace(-3, 3, 25))
    reports = dpk.perturb(np.zeros((40_000, 25)), many(epsilon, lengths), key=KEY)
    for i in range(25):
        p = stats.kstest(reports[:, i], stats.laplace(scale=lengths[i] / epsilon[i]).cdf).pvalue
        assert p > 1e-6 / 25
