"""Exact release of mechanisms given row by row: integers, certificates, the sampler, and what must be refused."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CENTRAL_PIECEWISE, ROWS, SKEW, UNIT, over

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact.alias import alias_columns
from dpkernels.exact.bounded.row_construction import central_table, row_table
from dpkernels.exact.bounded.rows import RowCertificate, lookups
from dpkernels.exact.bounded.sampler import fraction_bits, nearest_rows, positions
from dpkernels.exact.certificate import exp_lower_bound
from dpkernels.exact.registry import Certificate, MultivariateCertificate
from dpkernels.release.process import kernel_settings

EVERY = ROWS | CENTRAL_PIECEWISE
SMALL = {"points": 9, "outputs": 41}
KEY = dpk.key_from_bytes(bytes(range(7, 39)))


def table_columns(table):
    return [alias_columns(row, table.bits) for row in table.weights.tolist()]


def fractions_of(table):
    """Probabilities, reports and inputs of a table, from the integers anew."""
    total = 1 << table.bits
    p = [[Fraction(weight, total) for weight in row] for row in table.weights.tolist()]
    y = [table.value(code) for code in range(len(table.places))]
    gap = (rational(table.last) - rational(table.first)) / (table.rows - 1)
    return p, y, [rational(table.first) + i * gap for i in range(table.rows)]


# Certificates


@pytest.mark.quick("optimal-1", "optimal-central-2", "central-piecewise-1")
@over(EVERY)
def test_integers_have_what_the_certificate_says(m):
    """Sums, means, variances and every pair of neighbouring rows, in fractions, by formulas of the test's own."""
    certificate = dpk.exact_sampler(m).certificate
    table, bound = certificate.table, exp_lower_bound(m.epsilon)
    p, y, x = fractions_of(table)
    assert all(sum(row) == 1 for row in p)
    assert all(sum(a * b for a, b in zip(row, y, strict=True)) == at for row, at in zip(p, x, strict=True))
    assert x[0] <= rational(m.lower) < rational(m.upper) <= x[-1]
    step = 1 if table.rows < 40 else 32
    ratios = {
        Fraction(a, b)
        for i in range(0, table.rows, step)
        for k in range(max(0, i - certificate.cells), min(table.rows, i + certificate.cells + 1))
        for a, b in {*zip(table.weights[i].tolist(), table.weights[k].tolist(), strict=True)}
    }
    assert max(ratios) <= certificate.ratio <= bound
    assert step > 1 or max(ratios) == certificate.ratio
    variances = [
        sum(a * (b - at) ** 2 for a, b in zip(row, y, strict=True))
        for row, at in zip(p[::step], x[::step], strict=True)
    ]
    assert variances == [table.row_variance(s) for s in range(0, table.rows, step)]


@over(EVERY)
def test_certificates_are_near_the_mechanism(m):
    sampler = dpk.exact_sampler(m)
    assert abs(sampler.variance_cost) < 2e-3
    assert sampler.certificate.realised_epsilon <= m.epsilon
    assert sampler.certificate.realised_epsilon > m.epsilon * (1 - 1e-4)
    assert sampler is dpk.exact_sampler(m)
    low, high = (float(end) for end in (sampler.certificate.lowest, sampler.certificate.highest))
    assert (low, high) == pytest.approx(m.output_interval, rel=0.05, abs=0.05 * (m.upper - m.lower))


@pytest.mark.quick("optimal-1", "central-piecewise-1")
@over(EVERY)
def test_the_worst_variance_bounds_every_mixture(m):
    table = dpk.exact_sampler(m).table
    p, y, x = fractions_of(table)
    worst = table.worst_variance
    found = Fraction(0)
    for i in range(0, table.rows - 1, 1 if table.rows < 40 else 64):
        for f in (Fraction(n, 16) for n in range(17)):
            at = (1 - f) * x[i] + f * x[i + 1]
            if not rational(m.lower) <= at <= rational(m.upper):
                continue
            mixed = [(1 - f) * a + f * b for a, b in zip(p[i], p[i + 1], strict=True)]
            found = max(found, sum(a * (b - at) ** 2 for a, b in zip(mixed, y, strict=True)))
    assert found <= worst
    assert float(found) > 0.97 * float(worst)


@over(EVERY)
def test_certificates_go_through_json(m):
    certificate = dpk.exact_sampler(m).certificate
    payload = json.loads(certificate.to_json())
    again = Certificate.from_dict(payload)
    assert isinstance(again, dpk.RowCertificate)
    assert again.to_dict() == certificate.to_dict()
    assert str(again) == str(certificate)
    near = "at most 6 apart" if getattr(m, "sensitivity", None) == 6 else "apart"
    assert (near in certificate.covers) == (m.sensitivity is not None)


# Planted faults


def broken(table, **changes):
    return dataclasses.replace(table, **changes)


def moved(table, row, source, target, count=1):
    weights = table.weights.copy()
    weights[row, source] -= np.uint64(count)
    weights[row, target] += np.uint64(count)
    return broken(table, weights=weights)


def tight(certificate):
    """A row, a code and the other row where the ratio is the largest."""
    w = certificate.table.weights.astype(object)
    for i in range(len(w)):
        for k in range(max(0, i - certificate.cells), min(len(w), i + certificate.cells + 1)):
            for j in range(w.shape[1]):
                if Fraction(w[i, j], w[k, j]) == certificate.ratio:
                    return i, j, k
    raise AssertionError


@over(EVERY, "optimal-1", "optimal-3-far", "central-piecewise-1")
def test_one_unit_more_in_a_tight_column_is_refused(m):
    """At the budget that the integers realise, to one part in 10^12, of which a unit is many."""
    table = row_table(m, 32) if isinstance(m, dpk.Optimal) else central_table(m, 8, 32)
    certificate = RowCertificate.of(table, m.epsilon, m.sensitivity)
    epsilon = certificate.realised_epsilon + 1e-12
    assert RowCertificate.of(table, epsilon, m.sensitivity).ratio == certificate.ratio
    row, code, _ = tight(certificate)
    fault = moved(table, row, int(np.argmax(np.arange(len(table.places)) != code)), code)
    with pytest.raises(dpk.CertificateError, match="epsilon: a ratio is"):
        RowCertificate.of(fault, epsilon, m.sensitivity)


def test_sensitivities_that_are_no_part_of_the_interval_are_certified():
    sampler = dpk.exact_sampler(dpk.central_piecewise(epsilon=3.0, sensitivity=0.9, **UNIT))
    assert abs(sampler.variance_cost) < 1e-3
    RowCertificate.of(sampler.table, 3.0, 0.9)


@pytest.mark.lengthy
def test_more_steps_than_words_of_64_bits_hold_are_refused():
    with pytest.raises(dpk.CertificateError, match=r"20 steps, each e\^3 times the last"):
        dpk.exact_sampler(dpk.central_piecewise(epsilon=3.0, sensitivity=0.05, steps=20, **UNIT))


@over(ROWS)
def test_faults_of_every_kind_are_refused(m):
    certificate = dpk.exact_sampler(m).certificate
    table, last = certificate.table, len(certificate.table.places) - 1
    silent = table.weights.copy()
    silent[1, 0], silent[1, 1] = 0, silent[1, 1] + silent[1, 0]
    row, code, other = tight(certificate)
    heaviest = int(np.argmax(np.delete(table.weights[row], code)))
    louder = moved(table, row, heaviest + (heaviest >= code), code, int(table.weights[other, code]) // 1000)
    faults = {
        r"total: weights of row 0 sum to 2\^\d+ [+]1": broken(table, weights=table.weights + _one(table)),
        "mean: a row is off": moved(table, 1, 0, last),
        "support: report 0": broken(table, weights=silent),
        "epsilon: a ratio is": louder,
        "places: are not increasing": broken(table, places=(*table.places[:-1], table.places[-2])),
        "inputs: the rows from": broken(table, lower=table.first - 0.1 * (m.upper - m.lower)),
        "carry no signal": broken(table, weights=table.weights[:1]),
    }
    for match, fault in faults.items():
        with pytest.raises(dpk.CertificateError, match=match):
            RowCertificate.of(fault, m.epsilon, m.sensitivity)
    with pytest.raises(dpk.CertificateError, match="epsilon: a ratio is"):
        RowCertificate.of(table, m.epsilon * 0.999, m.sensitivity)


def _one(table):
    one = np.zeros(table.weights.shape, np.uint64)
    one[0, 0] = 1
    return one


@pytest.mark.parametrize("row", [0, 1, 4, 8])
def test_a_row_of_another_total_is_refused_though_its_mean_is_right(row):
    """Both ends of the row have one more, as far from the middle: no mean moves, and no ratio that is the largest."""
    table = dpk.exact_sampler(dpk.optimal(epsilon=1.0, lower=-1.0, upper=1.0, points=9, outputs=15)).table
    assert table.places[0] == -table.places[-1]
    assert table.rows == 9
    weights = table.weights.copy()
    weights[row, [0, -1]] += np.uint64(1)
    with pytest.raises(dpk.CertificateError, match=rf"total: weights of row {row} sum to 2\^\d+ [+]2"):
        RowCertificate.of(broken(table, weights=weights), 1.5)


def test_more_neighbours_than_certified_are_refused():
    m = ROWS["optimal-central-2"]
    certificate = dpk.exact_sampler(m).certificate
    assert certificate.cells < certificate.table.rows - 1
    for sensitivity in (m.sensitivity * 1.2, None):
        with pytest.raises(dpk.CertificateError, match="epsilon: a ratio is"):
            RowCertificate.of(certificate.table, m.epsilon, sensitivity)
    smaller = RowCertificate.of(certificate.table, m.epsilon, m.sensitivity / 3)
    assert smaller.cells < certificate.cells
    assert smaller.ratio <= certificate.ratio


@pytest.mark.parametrize(
    "change",
    [
        lambda form: form.update(epsilon=0.9),
        lambda form: form.update(sensitivity=9.0),
        lambda form: form.update(cells=1),
        lambda form: form.update(worst_variance="1"),
        lambda form: form.update(covers="everything"),
        lambda form: form["row_table"]["weights"][0].append(0),
        lambda form: form["row_table"]["weights"][0].__setitem__(0, 0.5),
        lambda form: form["row_table"]["weights"][0].__setitem__(0, -1),
        lambda form: form["row_table"].update(weights=[]),
        lambda form: form["row_table"].update(bits=31),
        lambda form: form["row_table"].update(first=math.nan),
        lambda form: form["row_table"].update(first=str(form["row_table"]["first"])),
        lambda form: form.pop("row_table"),
    ],
)
def test_a_changed_form_is_refused(change):
    form = json.loads(dpk.exact_sampler(ROWS["optimal-central-2"]).certificate.to_json())
    assert Certificate.from_dict(json.loads(json.dumps(form)))
    change(form)
    with pytest.raises(dpk.CertificateError):
        Certificate.from_dict(form)


@pytest.mark.parametrize("share", [1e-4, -1e-4])
def test_probabilities_that_are_not_private_or_biased_are_not_released(share):
    m = ROWS["optimal-1"]
    p = m.probabilities.copy()
    row, code = np.unravel_index(p.argmin(), p.shape)
    heavy = int(p[row].argmax())
    p[row, heavy] += share * p[row, code]
    p[row, code] -= share * p[row, code]
    with pytest.raises(dpk.CertificateError, match=r"epsilon|rows: a weight|mean"):
        dpk.exact_sampler(dataclasses.replace(m, probabilities=p))
    with pytest.raises(dpk.CertificateError, match=r"epsilon|rows: a weight"):
        dpk.exact_sampler(dataclasses.replace(m, epsilon=m.epsilon * (1 - 1e-4)))


@pytest.mark.lengthy
def test_reports_that_are_all_but_impossible_are_certified():
    """Far from the input a probability may fall by e^-eps every row, here to e^-80: less than 64 bits can hold."""
    m = dpk.optimal(epsilon=5.0, lower=0.0, upper=16.0, sensitivity=1.0, points=17, outputs=61)
    assert m.cells == 1
    assert dpk.exact_sampler(m).certificate.realised_epsilon <= 5.0


def test_a_traced_mechanism_is_refused():
    for m in (ROWS["optimal-1"], CENTRAL_PIECEWISE["central-piecewise-1"]):
        with pytest.raises(TypeError, match="traced"):
            jax.jit(lambda mechanism: dpk.exact_sampler(mechanism))(m)


# The sampler


@over(CENTRAL_PIECEWISE, "central-piecewise-1", "central-piecewise-0.5-far")
def test_every_word_of_sixteen_bits_is_sampled(m):
    """All 2^16 words through the compiled kernel, for every row: counts are the weights."""
    table = central_table(m, 4, 16)
    RowCertificate.of(table, m.epsilon, m.sensitivity)
    kernel = jax.jit(table.kernel())
    words = np.arange(1 << 16, dtype=np.uint16)
    codes = {place: code for code, place in enumerate(table.places)}
    lowest = table.places[0]
    with jax.enable_x64(True):
        for row in range(table.rows):
            places = np.asarray(kernel(words, np.full(len(words), row, np.int32)))
            counts = np.bincount(places - lowest, minlength=table.places[-1] - lowest + 1)
            expected = np.zeros(len(counts), int)
            for place, code in codes.items():
                expected[place - lowest] = table.weights[row, code]
            np.testing.assert_array_equal(counts, expected)


@pytest.mark.quick("optimal-1")
@pytest.mark.parametrize("m", [EVERY[name] for name in sorted(EVERY)[::3]], ids=sorted(EVERY)[::3])
def test_a_gpus_look_ups_are_the_same_function(m):
    table = dpk.exact_sampler(m).table
    rows, bits = table_columns(table), table.bits
    word, k = rows[0].packed.dtype.type, rows[0].log_columns
    row, column = (part.astype(np.int32) for part in divmod(np.arange(len(rows) << k), 1 << k))
    edges = np.concatenate([columns.threshold for columns in rows])
    columns = column.astype(word) << word(bits - k)
    with kernel_settings(x64=True):
        by_column, by_triple = lookups(table)
        for low in (edges, edges - word(1), edges * 0):
            r = columns | (low & word((1 << bits - k) - 1))
            np.testing.assert_array_equal(by_triple(jnp.asarray(r), jnp.asarray(row)), by_column(r, row))


@over(ROWS)
def test_alias_columns_hold_the_certified_weights(m):
    """The weights that thresholds and aliases imply, added up apart from the code that makes them."""
    sampler = dpk.exact_sampler(m)
    for columns, weights in zip(table_columns(sampler.table), sampler.table.weights.tolist(), strict=True):
        capacity = 1 << (columns.bits - columns.log_columns)
        masses = [0] * (1 << columns.log_columns)
        for column, (below, other) in enumerate(zip(columns.threshold.tolist(), columns.alias.tolist(), strict=True)):
            masses[column] += below
            masses[other] += capacity - below
        assert masses == weights + [0] * (len(masses) - len(weights))


@over(ROWS)
def test_the_kernel_is_the_alias_table(m):
    """At the first and the last word below every threshold, and at random ones, against Python integers."""
    table = dpk.exact_sampler(m).table
    random = np.random.default_rng(3)
    with jax.enable_x64(True):
        kernel = jax.jit(table.kernel())
        for row in {0, table.rows // 2, table.rows - 1}:
            columns = table_columns(table)[row]
            capacity = 1 << (table.bits - columns.log_columns)
            edges = [c * capacity + int(t) + d for c, t in enumerate(columns.threshold) for d in (-1, 0)]
            words = [word for word in edges if 0 <= word < 1 << table.bits]
            words += [int(word) for word in random.integers(0, 1 << table.bits, 500, np.uint64)]
            words = (words * 8)[:2048]
            got = kernel(np.array(words, f"uint{table.bits}"), np.full(len(words), row, np.int32))
            expected = []
            for word in words:
                column, low = divmod(word, capacity)
                code = column if low < int(columns.threshold[column]) else int(columns.alias[column])
                expected.append(table.places[code])
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("bits", [32, 64])
def test_rounding_to_either_word_keeps_the_guarantee(bits):
    m = ROWS["optimal-1"]
    certificate = RowCertificate.of(row_table(m, bits), m.epsilon)
    assert float(certificate.worst_variance) == pytest.approx(float(m.worst_variance), rel=1e-6)


# Rounding of inputs


@over({name: m for name, m in EVERY.items() if m.sensitivity is not None})
def test_neighbours_are_rounded_to_rows_within_the_certified_distance(m):
    """Under the same word, whatever it is: random inputs and the words next to where either of them turns."""
    sampler = dpk.exact_sampler(m)
    table, cells = sampler.table, sampler.certificate.cells
    bits = fraction_bits(table.last_row)
    random = np.random.default_rng(4)
    x = random.uniform(m.lower, max(m.lower, m.upper - m.sensitivity), 20_000)
    x[:200] = m.lower + (m.upper - m.lower) * np.arange(200) / 256
    other = np.minimum(x + m.sensitivity, m.upper)
    words = random.integers(0, 1 << bits, len(x)).astype(np.uint32)
    with jax.enable_x64(True):
        rows = jax.jit(lambda at, word: nearest_rows(at, word, table.last_row, table.first, table.last))
        position = (other - table.first) * ((table.last_row << bits) / (table.last - table.first))
        turning = (-np.floor(position + 0.5)).astype(np.int64)
        apart = []
        for word in (words, turning, turning - 1):
            word = (word & ((1 << bits) - 1)).astype(np.uint32)
            apart.append(np.abs(np.asarray(rows(other, word)) - np.asarray(rows(x, word))).max())
    assert max(apart) == cells


def test_inputs_one_gap_apart_may_be_put_two_rows_apart():
    """Half-way between steps of their positions, where a rounding of floats decides: that is one step of 2^26 more."""
    table, gap = dpk.exact_sampler(dpk.optimal(epsilon=1.0, lower=0.0, upper=1.0, points=11, outputs=15)).table, 0.1
    steps = 1 << fraction_bits(table.last_row)
    x = (np.random.default_rng(0).integers(0, steps * (table.last_row - 1), 3000) + 0.5) / (table.last_row * steps)
    x = np.nextafter(x, [[0.0], [1.0]]).ravel()
    other = x + gap
    near = [Fraction(b) - Fraction(a) <= Fraction(gap) for a, b in zip(x.tolist(), other.tolist(), strict=True)]
    x, other = x[near], other[near]
    place = positions(x, table.last_row, table.first, table.last)
    word = (-place - 1 & steps - 1).astype(np.uint32)  # With one more the row of x turns.
    rows = [nearest_rows(at, word, table.last_row, table.first, table.last) for at in (x, other)]
    assert (rows[1] - rows[0]).max() == 2
    assert RowCertificate.of(table, 1.0, gap).cells == 2


def test_far_from_zero_the_floats_decide_how_far_apart_rows_are():
    """The decimals of these ends are 0.075 further apart than the floats: by them neighbours were within 3 rows."""
    table = dpk.exact_sampler(ROWS["optimal-central-2"]).table
    first, last, D = 1e15 + 0.125, 1e15 + 1001.75, 300.5
    assert rational(D) < 3 * (rational(last) - rational(first)) / table.last_row
    far = broken(table, first=first, last=last, lower=first, upper=last)
    x = np.full(1 << 16, first)
    bits = fraction_bits(table.last_row)
    with jax.enable_x64(True):
        word = jnp.asarray(((1 << bits) - 1 - np.arange(len(x))).astype(np.uint32))
        near, other = (nearest_rows(jnp.asarray(at), word, table.last_row, first, last) for at in (x, x + D))
    assert int((other - near).max()) == 4
    with pytest.raises(dpk.CertificateError, match="epsilon: a ratio is"):
        RowCertificate.of(far, 2.0, D)
    assert RowCertificate.of(far, 2.0, D - 0.125).cells == 3


@over(ROWS)
def test_rounding_is_exact_on_its_steps(m):
    """Over all words an input on a step goes to the next row as often as its share of the way says."""
    table = dpk.exact_sampler(m).table
    bits = fraction_bits(table.last_row)
    share = Fraction(3, 16)
    x = np.full(1 << 16, float(rational(table.first) + table.row_spacing * (2 + share)))
    words = (np.arange(1 << 16, dtype=np.uint64) << np.uint64(bits - 16)).astype(np.uint32)
    with jax.enable_x64(True):
        rows = np.asarray(nearest_rows(jnp.asarray(x), jnp.asarray(words), table.last_row, table.first, table.last))
    assert set(rows.tolist()) == {2, 3}
    assert Fraction(int((rows == 3).sum()), 1 << 16) == share


# Releases


@pytest.mark.lengthy
@over(EVERY)
def test_reports_are_possible_and_have_the_right_moments(m):
    """Mean and variance within 6 standard errors, at a fixed key; the same again, and any part of it."""
    sampler = dpk.exact_sampler(m)
    n, x = 40_000, m.lower + 0.37 * (m.upper - m.lower)
    y = dpk.perturb(np.full(n, x), m, key=KEY)
    values = np.array([float(sampler.table.value(code)) for code in range(len(sampler.table.places))])
    np.testing.assert_allclose(
        np.unique(y), values[np.isin(np.round(values, 9), np.round(np.unique(y), 9))], rtol=1e-12
    )
    spread = float(m.variance(x))
    assert abs(y.mean() - x) < 6 * math.sqrt(spread / n)
    fourth = ((y - x) ** 4).mean() - spread**2
    assert abs(((y - x) ** 2).mean() - spread) < 6 * math.sqrt(fourth / n) + 2e-3 * spread
    np.testing.assert_array_equal(dpk.perturb(np.full(100, x), m, key=KEY), y[:100])
    assert dpk.perturb(np.full(3, x, np.float32), m).dtype == np.float32


def test_integers_that_floats_round_are_refused_where_neighbours_are_near():
    wide = {"epsilon": 1.0, "lower": 0.0, "upper": 2.0**54}
    x = np.array([(1 << 53) + 1, 3])
    for near in (dpk.central_piecewise(sensitivity=2.0**53, **wide), dpk.optimal(sensitivity=2.0**53, **SMALL, **wide)):
        with pytest.raises(ValueError, match=r"row 0 is .*float64 rounds int64"):
            dpk.perturb(x, near)
    assert dpk.perturb(x, dpk.optimal(**SMALL, **wide)).shape == (2,)


def test_inputs_outside_are_refused_though_rows_reach_further():
    m = CENTRAL_PIECEWISE["central-piecewise-1"]
    assert dpk.exact_sampler(m).table.first < m.lower
    with pytest.raises(ValueError, match="outside the input interval"):
        dpk.perturb(np.array([m.lower - 1e-6]), m)


def test_a_mean_is_estimated():
    m = ROWS["optimal-1"]
    x = np.linspace(m.lower, m.upper, 5000)
    low, high = dpk.estimate_mean(dpk.perturb(x, m, key=KEY), m).interval(1 - 1e-9)
    assert low < x.mean() < high


def test_coordinates_of_vectors():
    vectors = dpk.multivariate(dimensions=2, epsilon=1.0, coordinate="optimal", **UNIT)
    sampler = dpk.exact_sampler(vectors)
    assert Certificate.from_dict(json.loads(json.dumps(sampler.certificate.to_dict()))).epsilon == 1.0
    assert dpk.perturb(np.full((5, 2), 0.5), vectors).shape == (5, 2)
    x = np.linspace(-1, 1, 4001)
    assert vectors.worst_variance >= vectors.variance((x + 1) / 2).max() * (1 - 1e-12)
    assert vectors.worst_variance == pytest.approx(vectors.variance((x + 1) / 2).max(), rel=1e-5)


def test_near_neighbours_are_no_part_of_a_guarantee_for_any_two():
    near = dpk.central_piecewise(epsilon=1.0, lower=-1.0, upper=1.0, sensitivity=0.5)
    vectors = dpk.multivariate(dimensions=2, epsilon=1.0, **UNIT)
    with pytest.raises(ValueError, match=r"coordinate: is private for inputs at most 0.5 apart"):
        dataclasses.replace(vectors, coordinate=near)
    with pytest.raises(dpk.CertificateError, match=r"coordinate: is for inputs 0.5 apart"):
        MultivariateCertificate(dpk.exact_sampler(near).certificate, 2, 1)
    with pytest.raises(ValueError, match=r"second: is private for inputs at most 0.5 apart"):
        dpk.Mixture(dpk.piecewise(epsilon=1.0, lower=-1.0, upper=1.0), near, 0.5)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["optimal", "optimal-central", "central-piecewise"])
def test_the_command_releases_and_verifies(name, tmp_path, monkeypatch, capsys):
    from dpkernels.cli import main

    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.linspace(-3, 17, 50))
    claim = ["--epsilon", "1", "--lower", "-3", "--upper", "17"]
    claim += [] if name == "optimal" else ["--sensitivity", "10"]
    assert main(["perturb", "in.npy", "out.npy", "--mechanism", name, "--full-certificate", *claim]) == 0
    capsys.readouterr()
    assert main(["certify", "--verify", "out.npy.json"]) == 0
    near = "any two in [-3, 17]" if name == "optimal" else "at most 10 apart, in [-3, 17]"
    assert f"neighbours: {near}" in capsys.readouterr().out
    payload = json.loads((tmp_path / "out.npy.json").read_text())
    payload["columns"][0]["certificate"]["row_table"]["weights"][0][0] += 1
    (tmp_path / "out.npy.json").write_text(json.dumps(payload))
    assert main(["certify", "--verify", "out.npy.json"]) == 4
    assert main(["account", name, *claim]) == 0
    assert "pure level          epsilon" in capsys.readouterr().out


@pytest.mark.lengthy
def test_a_release_on_skewed_intervals_is_certified_at_many_budgets():
    """Small grids; whatever comes back has its certificate, which decides."""
    for epsilon in (0.01, 0.1, 6.0, 12.0):
        m = dpk.optimal(epsilon=epsilon, points=9, outputs=41, **SKEW)
        certificate = dpk.exact_sampler(m).certificate
        assert epsilon * (1 - 1e-4) < certificate.realised_epsilon <= epsilon


@pytest.mark.lengthy
@pytest.mark.quick("1e-11-1000.0", "3e-11--50000.0", "1e-09-1000000.0")
@pytest.mark.parametrize("lower", [1.0, 1e3, -5e4, 1e6])
@pytest.mark.parametrize("width", [1e-11, 3e-11, 1e-9])
def test_central_tables_far_from_0(lower, width):
    """Floats are coarse there: rows that were rounded towards each other had neighbours a row further apart."""
    upper = lower + abs(lower) * width
    for make in (partial(dpk.optimal, points=13, outputs=41), dpk.central_piecewise):
        made = make(epsilon=1.0, lower=lower, upper=upper, sensitivity=(upper - lower) / 3)
        assert dpk.exact_sampler(made).certificate.realised_epsilon <= 1.0
