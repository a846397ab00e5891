"""Certificates: what every mechanism's integers guarantee, and that planted faults are refused."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from exact_registry import LARGE, SMALL, WINDOWED, exact, mechanism, small_table, tables

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact import alias
from dpkernels.exact.bounded.certificate import certified_ratio
from dpkernels.exact.bounded.window_construction import windowed_table
from dpkernels.exact.bounded.windows import SquareWaveCertificate, WindowCertificate, WindowTable
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.registry import Certificate, MixtureCertificate
from dpkernels.mechanisms.windowed.mechanism import relative_height, window_height

PROMISED_COST = 1e-3
every_case = pytest.mark.parametrize(("name", "epsilon"), LARGE)
every_small_case = pytest.mark.parametrize(("name", "epsilon"), SMALL)


def parts(certificate):
    """The certificates of the tables: one, or two for a mixture."""
    return [certificate.first, certificate.second] if hasattr(certificate, "first") else [certificate]


def tampered(table, **weights):
    """The table with other weights."""
    return dataclasses.replace(table, **{name: np.array(w, np.uint64) for name, w in weights.items()})


def repaired(weights, total, bits):
    """Put what is missing from the total on the code just left of the middle: everything but the total stays."""
    weights = [int(weight) for weight in weights]
    weights[len(weights) // 2] += (1 << bits) - total - sum(weights)
    return weights


@pytest.mark.lengthy
@pytest.mark.quick("*-0.5", "*-5.0")
@every_case
def test_the_realised_budget_is_within_the_budget(name, epsilon):
    for part in parts(exact(name, epsilon).certificate):
        assert part.ratio <= exp_lower_bound(epsilon)
        with mpmath.workdps(60):
            realised = mpmath.log(mpmath.mpf(part.ratio.numerator) / part.ratio.denominator)
            assert realised <= mpmath.mpf(repr(epsilon))
            assert part.realised_epsilon == pytest.approx(float(realised), rel=1e-12)


@pytest.mark.parametrize("name", ["duchi", "piecewise", "sine-quartic"])
def test_a_budget_one_float_below_the_realised_one_is_refused(name):
    """The comparison with e^epsilon has no tolerance, on either side."""
    certificate = exact(name, 1.0).certificate
    realised = certificate.realised_epsilon
    assert WindowCertificate.of(certificate.table, realised).ratio == certificate.ratio
    with pytest.raises(CertificateError, match="epsilon: a ratio is"):
        WindowCertificate.of(certificate.table, math.nextafter(realised, 0.0))


@pytest.mark.parametrize("sensitivity", [0.1, math.nan])
@pytest.mark.parametrize("kind", [WindowCertificate, SquareWaveCertificate])
def test_a_window_table_is_certified_for_any_two_inputs_only(kind, sensitivity):
    table = small_table("piecewise", 0.5, codes=32)
    with pytest.raises(ValueError, match=f"sensitivity: {sensitivity}; this table is certified for any two inputs"):
        kind.of(table, 1.0, sensitivity)


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_ratio_is_found_among_those_that_floats_do_not_tell_apart(seed):
    """Of 200 quotients of 64-bit integers within 2^-58 of each other, most are one float or the next."""
    rng = np.random.default_rng(seed)
    low = rng.integers(1 << 60, 1 << 61, 200, np.uint64)
    high = np.array([weight * 17 // 10 for weight in low.tolist()], np.uint64) + rng.integers(0, 4, 200, np.uint64)
    expected = max(Fraction(a, b) for a, b in zip(high.tolist(), low.tolist(), strict=True))
    assert certified_ratio(high, low, 1.0) == expected


@pytest.mark.quick("*-1.0")
@every_case
def test_little_of_the_budget_is_lost(name, epsilon):
    """At most 0.7 % (Duchi's two integers at epsilon 20 lose 0.1 %); a mechanism that asks for less gets less."""
    if name != "gentle":
        assert exact(name, epsilon).certificate.realised_epsilon >= 0.993 * epsilon


@pytest.mark.quick("*-1.0")
@every_case
def test_the_variance_is_that_of_the_mechanism(name, epsilon):
    made = mechanism(name, epsilon)
    certified = float(exact(name, epsilon).certificate.worst_variance)
    assert certified / made.worst_variance - 1 <= PROMISED_COST


@pytest.mark.lengthy
@every_case
def test_total_and_report_range(name, epsilon):
    certificate = exact(name, epsilon).certificate
    for part in parts(certificate):
        stated = part.to_dict()
        assert [stated["total"]] == part.table.totals == [1 << part.table.bits]
        assert part.lowest + part.highest == rational(part.table.lower) + rational(part.table.upper)
        assert part.lowest == part.table.value(0)
        assert stated["codes"] == part.table.codes
        assert stated["rows"] == part.table.last_row + 1
    assert certificate.lowest == min(part.lowest for part in parts(certificate))


@pytest.mark.lengthy
@every_case
def test_row_means_are_the_inputs(name, epsilon):
    """From the weights and values alone, for the outer rows and three between them."""
    for table in tables(exact(name, epsilon)):
        lower, upper = rational(table.lower), rational(table.upper)
        for s in {0, 1, table.last_row // 3, table.last_row - 1, table.last_row}:
            codes = sum(weight * j for j, weight in enumerate(table.row(s).tolist()))
            mean = table.value(0) + table.report_step * Fraction(codes, 1 << table.bits)
            assert mean == lower + (upper - lower) * s / table.last_row


@every_small_case
def test_every_row_of_a_small_table_is_private_and_unbiased(name, epsilon):
    """The certificate of a small table against all pairs of rows, one by one."""
    table = small_table(name, epsilon)
    certificate = WindowCertificate.of(table, epsilon)
    rows = [table.row(s).tolist() for s in range(table.last_row + 1)]
    assert certificate.ratio == max(Fraction(max(weights), min(weights)) for weights in zip(*rows, strict=True))
    inputs = [sum(weight * table.value(j) for j, weight in enumerate(row)) / Fraction(1 << table.bits) for row in rows]
    width = rational(table.upper) - rational(table.lower)
    assert inputs == [rational(table.lower) + width * s / table.last_row for s in range(table.last_row + 1)]


def variance_between(table, s):
    """Half-way between rows s and s + 1, where rounding adds the most."""
    means, variances = ([of(row) for row in (s, s + 1)] for of in (table.row_mean, table.row_variance))
    return sum(variances) / 2 + (means[1] - means[0]) ** 2 / 4


def loud_table():
    """Hardly any base: rounding between its three rows weighs more than what it does not cover."""
    return WindowTable(np.ones(4, np.uint64), np.full(2, 2**15 - 2, np.uint64), 16, -1.0, 1.0), 12.0


@pytest.mark.parametrize(
    ("table", "epsilon"), [*((small_table(name, epsilon), epsilon) for name, epsilon in SMALL), loud_table()]
)
def test_the_worst_variance_is_a_bound(table, epsilon):
    """Of every input, on a row or between two; and no more than rounding above the largest."""
    certificate = WindowCertificate.of(table, epsilon)
    on_rows = max(table.row_variance(s) for s in range(table.last_row + 1))
    largest = max(on_rows, *(variance_between(table, s) for s in range(table.last_row)))
    assert largest <= certificate.worst_variance
    assert certificate.worst_variance <= largest + table.variance_terms[2]


@pytest.mark.lengthy
@pytest.mark.parametrize(("name", "epsilon"), [case for case in LARGE if case[0] != "hybrid"][::4])
def test_a_certificate_survives_json(name, epsilon):
    certificate = exact(name, epsilon).certificate
    again = Certificate.from_dict(json.loads(certificate.to_json()))
    assert again.to_dict() == certificate.to_dict()
    assert str(again) == str(certificate)


@pytest.mark.parametrize("name", ["piecewise", "sine-quartic"])
@pytest.mark.parametrize(
    ("claim", "lie"),
    [
        ("epsilon", 0.99),
        ("ratio", "2"),
        ("realised_epsilon", 0.9),
        ("total", 2**31),
        ("codes", 500),
        ("rows", 2),
        ("lowest", "0"),
        ("highest", "1/3"),
        ("mean_error", "1"),
        ("worst_variance", "1"),
    ],
)
def test_a_form_that_claims_something_else_is_refused(name, claim, lie):
    payload = json.loads(exact(name, 1.0).certificate.to_json())
    with pytest.raises(CertificateError):
        Certificate.from_dict({**payload, claim: lie})


@pytest.mark.parametrize("claim", ["ratio", "codes", "worst_variance"])
def test_a_form_that_leaves_a_claim_out_is_refused(claim):
    payload = json.loads(exact("own", 1.0).certificate.to_json())
    del payload[claim]
    with pytest.raises(CertificateError):
        Certificate.from_dict(payload)


@pytest.mark.parametrize("part", ["base", "window", "bits", "lower"])
def test_a_form_with_another_table_is_refused(part):
    payload = json.loads(exact("own", 1.0).certificate.to_json())
    table = payload["table"]
    if isinstance(table[part], list):
        table[part][0][0] += 1
    else:
        table[part] += 1
    with pytest.raises(CertificateError):
        Certificate.from_dict(payload)


@pytest.mark.parametrize("budgets", [(1.0, 2.0), (2.0, 1.0)])
def test_a_mixture_has_the_larger_budget_of_its_parts(budgets):
    """Whichever part that is: the choice tells which one reported."""
    kinds = zip((dpk.piecewise, dpk.duchi), budgets, strict=True)
    first, second = (dpk.exact_sampler(make(epsilon=eps, lower=0.0, upper=1.0)).certificate for make, eps in kinds)
    mixed = MixtureCertificate(first, second, 1 << 31)
    assert mixed.epsilon == 2.0
    assert mixed.realised_epsilon == max(first.realised_epsilon, second.realised_epsilon) > 1.5
    assert Certificate.from_dict(json.loads(mixed.to_json())).epsilon == 2.0


@pytest.mark.parametrize("name", ["piecewise", "own", "duchi", "hybrid"])
def test_a_certificate_prints_what_it_covers(name):
    text = str(exact(name, 1.0).certificate)
    assert "epsilon             1, " in text
    assert "any two inputs of the interval" in text


@pytest.mark.parametrize("name", [name for name in WINDOWED if name not in ("gentle", "piecewise-triangle")])
@pytest.mark.parametrize("factor", [1.01, 1 + 1e-7])
def test_a_height_above_the_private_one_is_refused(name, factor):
    made = mechanism(name, 0.5)
    with pytest.raises(CertificateError, match="height"):
        dpk.exact_sampler(dataclasses.replace(made, relative_height=made.relative_height * factor))


def test_a_gentler_mechanism_keeps_its_own_height():
    made = mechanism("gentle", 1.0)
    certificate = dpk.exact_sampler(made).certificate
    ratio = 1 + made.relative_height
    assert float(certificate.ratio) == pytest.approx(ratio, rel=2e-3)


def test_a_mixture_reports_the_larger_budget():
    certificate = exact("hybrid", 2.0).certificate
    realised = [part.realised_epsilon for part in parts(certificate)]
    assert certificate.realised_epsilon == max(realised)
    assert certificate.weight == Fraction(certificate.threshold, 1 << 32)


def test_a_mixtures_variance_is_the_mixture_of_variances():
    certificate = exact("hybrid", 2.0).certificate
    w, (first, second) = certificate.weight, parts(certificate)
    ends = [part.table.row_variance(0) for part in (first, second)]
    assert certificate.worst_variance >= w * ends[0] + (1 - w) * ends[1]
    assert certificate.worst_variance <= w * first.worst_variance + (1 - w) * second.worst_variance


@pytest.mark.parametrize(("epsilon", "sampled"), [(1.0, 3), (1.1, 3), (0.7, 7), (5.0, 2), (2.3, 6)])
def test_a_vectors_budget_is_the_sum_over_its_coordinates(epsilon, sampled):
    mechanism = dpk.multivariate(
        dimensions=9, epsilon=epsilon, lower=0.0, upper=1.0, sampled=sampled, coordinate="piecewise"
    )
    certificate = dpk.exact_sampler(mechanism).certificate
    assert certificate.epsilon == pytest.approx(epsilon)
    assert certificate.epsilon <= epsilon
    realised = sampled * rational(certificate.coordinate.realised_epsilon)
    assert realised <= rational(certificate.realised_epsilon) <= realised * (1 + Fraction(1, 10**15))
    assert certificate.realised_epsilon <= epsilon


def test_certificates_of_mixtures_and_vectors_serialise():
    """The tables in them can be verified again."""
    mixture = exact("hybrid", 2.0).certificate
    payload = json.loads(json.dumps(mixture.to_dict()))
    for name, part in zip(("first", "second"), parts(mixture), strict=True):
        assert Certificate.from_dict(payload[name]).to_dict() == part.to_dict()
    mechanism = dpk.multivariate(dimensions=2, epsilon=1.0, lower=0.0, upper=[1.0, 2.0], coordinate="piecewise")
    vector = dpk.exact_sampler(mechanism).certificate
    payload = json.loads(json.dumps(vector.to_dict()))
    assert Certificate.from_dict(payload["coordinate"]).to_dict() == vector.coordinate.to_dict()


def test_certified_once_and_only_once():
    assert dpk.exact_sampler(mechanism("own", 1.0)) is dpk.exact_sampler(mechanism("own", 1.0))
    sampler = exact("own", 1.0)
    assert dpk.exact_sampler(sampler) is sampler


@pytest.mark.parametrize("thing", ["piecewise", None, 1.0, dpk.piecewise])
def test_what_is_no_mechanism_has_no_exact_form(thing):
    with pytest.raises(TypeError, match="no exact sampler"):
        dpk.exact_sampler(thing)


# Planted faults. Every one keeps what the others are about: a faulty budget has the right total, and so on.


@pytest.mark.parametrize("name", ["piecewise", "sine-constant", "own", "sine-quartic"])
def test_one_base_weight_1_percent_low_is_refused(name):
    """At the code where the certified ratio is the largest."""
    table = exact(name, 1.0).table
    high, low = table.extremes()
    at = int(np.argmax(high.astype(float) / low))
    base = table.base.tolist()
    base[at] = base[at] * 99 // 100
    base[0 if at else -1] += (1 << table.bits) - sum(base) - table.window_total
    with pytest.raises(CertificateError, match="epsilon: a ratio is"):
        WindowCertificate.of(tampered(table, base=base), 1.0)


@pytest.mark.parametrize("name", ["piecewise", "own"])
@pytest.mark.parametrize("code", [0, -1])
def test_a_code_never_reported_from_some_inputs_is_refused(name, code):
    table = exact(name, 1.0).table
    base = table.base.tolist()
    base[code] = 0
    base = repaired(base, table.window_total, table.bits)
    with pytest.raises(CertificateError, match="support"):
        WindowCertificate.of(tampered(table, base=base), 1.0)


def rounded(table, unit):
    """Its weights at the nearest multiples of ``unit``, the remainder spread evenly by single units."""
    base, window = ([unit * round(Fraction(w, unit)) for w in part.tolist()] for part in (table.base, table.window))
    missing = ((1 << table.bits) - sum(base) - sum(window)) // unit
    for at in range(abs(missing)):
        base[at * len(base) // abs(missing)] += unit if missing > 0 else -unit
    return tampered(table, base=base, window=window)


@pytest.mark.parametrize("name", ["piecewise", "sine-constant", "own", "sine-quartic"])
def test_16_random_bits_for_32_are_refused(name):
    """The words' low halves dropped: all weights become multiples of 2^16, rounded to the nearest."""
    coarse = rounded(exact(name, 1.0).table, 1 << 16)
    assert coarse.totals == [1 << 32]
    with pytest.raises(CertificateError, match=r"epsilon: a ratio is|support"):
        WindowCertificate.of(coarse, 1.0)


def nearest_table(made, codes, bits):
    """The ideal cell masses, each rounded to its nearest integer; what is left over goes to mirrored pairs."""
    h, g = made.window, made.base
    cells = 2 * round(made.width * codes / 4)
    width = 2 * cells / codes
    mass = h.area * width * window_height(relative_height(h, g, width, made.epsilon, "pointwise"), h, g, width)
    base = np.rint(np.diff(g.cdf(np.linspace(-1, 1, codes + 1))) * (1 - mass) * 2**bits)
    window = np.rint(np.diff(h.cdf(np.linspace(0, 1, cells + 1))) * mass * 2**bits)
    spare = int(2**bits - base.sum() - window.sum())
    for pair in range(abs(spare) // 2):
        at = codes // 2 + pair % (codes // 2)
        base[[at, codes - 1 - at]] += np.sign(spare)
    return WindowTable(base.astype(np.uint64), window.astype(np.uint64), bits, made.lower, made.upper)


@pytest.mark.parametrize("name", ["piecewise", "sine-constant", "own", "sine-quartic"])
def test_weights_rounded_to_the_nearest_are_refused(name):
    """At 16 bits and 256 codes, where the same mechanism rounded to the safe side passes."""
    made = mechanism(name, 1.0)
    WindowCertificate.of(windowed_table(made, bits=16, codes=256), 1.0)
    nearest = nearest_table(made, 256, 16)
    assert nearest.totals == [1 << 16]
    with pytest.raises(CertificateError, match="epsilon: a ratio is"):
        WindowCertificate.of(nearest, 1.0)


@pytest.mark.parametrize("by", [-1, 1, 2**16])
def test_another_total_is_refused(by):
    table = exact("own", 1.0).table
    base = table.base.tolist()
    base[len(base) // 2] += by
    with pytest.raises(CertificateError, match=re.escape(f"2^32 {by:+d}")):
        WindowCertificate.of(tampered(table, base=base), 1.0)


@pytest.mark.parametrize("part", ["window", "base"])
def test_an_asymmetric_table_is_refused(part):
    """One unit of weight moved by one code: private at a slightly larger budget, but biased."""
    table = exact("own", 1.0).table
    weights = getattr(table, part).tolist()
    middle = len(weights) // 2
    weights[middle - 1] -= 1
    weights[middle] += 1
    with pytest.raises(CertificateError, match="mean"):
        WindowCertificate.of(tampered(table, **{part: weights}), 1.001)


def test_a_smaller_budget_than_the_tables_is_refused():
    table = exact("piecewise", 1.0).table
    with pytest.raises(CertificateError, match="above epsilon"):
        WindowCertificate.of(table, 0.9999)


def test_a_table_without_signal_is_refused():
    table = exact("own", 1.0).table
    silent = tampered(table, base=repaired(table.base, 0, 32), window=np.zeros(len(table.window)))
    with pytest.raises(CertificateError, match="no signal"):
        WindowCertificate.of(silent, 1.0)
    everywhere = tampered(table, base=np.full(4, 2**28), window=np.full(4, 3 * 2**28))
    with pytest.raises(CertificateError, match="no signal"):
        WindowCertificate.of(everywhere, 1.0)


# What is certified stays what is sampled.


def test_a_certified_table_cannot_be_changed():
    table = exact("piecewise", 1.0).table
    for weights in (table.base, table.window):
        with pytest.raises(ValueError, match="read-only"):
            weights[0] += 1


def test_a_table_does_not_follow_the_arrays_it_was_made_of():
    weights = np.full(2, 1 << 14, np.uint64)
    table = WindowTable(weights, np.full(1, 1 << 15, np.uint64), 16, 0.0, 1.0)
    weights[0] += 1
    WindowCertificate.of(table, 2.0)


@pytest.mark.parametrize("fault", ["threshold", "alias"])
def test_alias_columns_that_do_not_add_up_are_refused(fault, monkeypatch):
    table = exact("sine-constant", 1.0).table

    def tampered(columns, weights):
        if fault == "threshold":
            columns.packed[7] ^= 1 << columns.log_columns
        else:
            columns.packed[7] ^= 1
        check(columns, weights)

    check = alias._check_masses
    monkeypatch.setattr(alias, "_check_masses", tampered)
    with pytest.raises(CertificateError, match="do not add up"):
        alias.alias_columns(table.outcomes, table.bits)


@pytest.mark.lengthy
@pytest.mark.parametrize("width", [0.01, 0.05, 0.7, 1.3, 1.95])
@pytest.mark.parametrize("window", ["uniform", "sine", "triangle"])
def test_a_table_is_of_the_width_that_was_asked_for(window, width):
    mechanism = dpk.composite(window, epsilon=1.0, lower=-3.0, upper=17.0, width=width)
    sampler = dpk.exact_sampler(mechanism)
    assert 2 * len(sampler.table.window) / sampler.table.codes == pytest.approx(width, rel=0.01)
    assert abs(sampler.variance_cost) < 1e-3


def test_a_window_that_no_lattice_carries_is_refused():
    for window, width in (("uniform", 1.99999), ("triangle", 1e-4)):
        mechanism = dpk.composite(window, epsilon=1.0, lower=0.0, upper=1.0, width=width)
        with pytest.raises(CertificateError, match=f"lattice: no table .* width {width:g}"):
            dpk.exact_sampler(mechanism)


@pytest.mark.parametrize("sampled", range(1, 9))
def test_a_vectors_budget_is_never_more_than_asked_for(sampled):
    for epsilon in (1.7, 0.6, 2.3, 4.1, 9.9):
        sampler = dpk.exact_sampler(
            dpk.multivariate(dimensions=8, sampled=sampled, epsilon=epsilon, lower=0.0, upper=1.0)
        )
        assert sampler.certificate.epsilon <= epsilon
        assert sampler.certificate.epsilon == pytest.approx(epsilon, rel=1e-14)


def test_a_mixture_of_mixtures_has_no_exact_form():
    hybrid, duchi = (build(epsilon=1.0, lower=0.0, upper=1.0) for build in (dpk.hybrid, dpk.duchi))
    with pytest.raises(TypeError, match="mixture of mixtures"):
        dpk.exact_sampler(dpk.Mixture(hybrid, duchi, 0.5))


@pytest.mark.parametrize("change", [{"sampled": 0}, {"sampled": -3}, {"dimensions": 1}, {"epsilon": 99.0}])
def test_a_vector_certificate_with_false_claims_is_refused(change):
    payload = dpk.exact_sampler(
        dpk.multivariate(dimensions=5, sampled=2, epsilon=5.0, lower=0.0, upper=1.0)
    ).certificate.to_dict()
    assert Certificate.from_dict(payload).epsilon == 5.0
    with pytest.raises(CertificateError):
        Certificate.from_dict(payload | change)


@pytest.mark.parametrize("epsilon", [float("nan"), 1e9, -1.0, "1", None])
def test_a_form_with_an_absurd_budget_is_refused(epsilon):
    with pytest.raises(CertificateError):
        Certificate.from_dict(exact("piecewise", 1.0).certificate.to_dict() | {"epsilon": epsilon})


@pytest.mark.lengthy
def test_a_new_process_reads_every_kind_by_its_public_name():
    payload = exact("duchi", 1.0).certificate.to_json()
    code = "import json, sys, dpkernels; print(dpkernels.Certificate.from_dict(json.load(sys.stdin)).epsilon)"
    done = subprocess.run([sys.executable, "-c", code], input=payload, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1.0"
