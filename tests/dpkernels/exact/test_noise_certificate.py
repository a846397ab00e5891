"""Certificates of additive noise: (epsilon, delta) recomputed shift by shift, and planted faults refused."""

import dataclasses
import json
import math
import re
from fractions import Fraction

import jax
import mpmath
import numpy as np
import pytest
from noise_tables import (
    CLAIMS,
    LATTICES,
    SMALL,
    brute_force,
    claim,
    exact,
    exp_bounds,
    plain_table,
    sensitivity,
    small_table,
)

import dpkernels as dpk
from accountants.dominating_pairs.registry import additive_profile
from dpkernels.decimals import rational
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.noise.certificate import NoiseCertificate, certify_noise
from dpkernels.exact.noise.construction import BITS, noise_table
from dpkernels.exact.noise.table import NoiseTable, excess, hockey_stick, mixed_hockey_stick, rounding_probability
from dpkernels.exact.registry import Certificate, MultivariateCertificate

RNG = np.random.default_rng(11)
every_claim = pytest.mark.parametrize("name", CLAIMS)
every_law = pytest.mark.parametrize("name", SMALL)
PROMISED_COST = 1e-3
DENSITIES = [name for name in CLAIMS if "discrete" not in name]


# delta, recomputed.


@pytest.mark.lengthy
@pytest.mark.parametrize("name", [name for name in SMALL if "truncated-disc" not in name])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_delta_is_that_of_the_worst_shift(name, epsilon):
    """Every shift up to D, both ways, summed anew."""
    table = small_table(name, codes=64)
    certificate = certify_noise(table, sensitivity(name), epsilon, 0.999)
    low, high = (brute_force(table.outcomes, certificate.shift, ratio) for ratio in reversed(exp_bounds(epsilon)))
    assert low <= certificate.realised_delta
    assert certificate.realised_delta <= high + Fraction(1, 10**30)


def random_weights(codes, kind):
    weights = RNG.integers(0, 1000, codes)
    if kind == "unimodal":
        top = int(RNG.integers(0, codes))
        weights = np.concatenate([np.sort(weights[:top]), np.sort(weights[top:])[::-1]])
    if kind == "flat":
        weights = weights // 300
    weights = [int(weight) + (kind == "flat") for weight in weights]
    weights[weights.index(max(weights))] += (1 << 16) - sum(weights)
    return weights


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["any", "unimodal", "flat"])
def test_delta_of_any_weights_is_that_of_the_worst_shift(kind):
    """Unimodal tables by their largest shift alone, others by all."""
    unimodal = set()
    for _ in range(40):
        table = plain_table(random_weights(int(RNG.integers(2, 14)), kind), -int(RNG.integers(0, 2)))
        unimodal.add(table.is_unimodal)
        w = table.outcomes
        rises = any(w[i] > w[j] < w[k] for i in range(len(w)) for j in range(i, len(w)) for k in range(j, len(w)))
        assert table.is_unimodal == (not rises)
        for shift in (1, 2, 5, 20):
            for ratio in (Fraction(1), Fraction(3, 2), Fraction(100)):
                assert hockey_stick(table, shift, ratio) == brute_force(w, shift, ratio)
    assert unimodal >= {kind == "unimodal"}


def test_a_valley_is_found():
    """The largest shift reveals nothing, a smaller one all."""
    table = plain_table([1 << 15, 0, 1 << 15], -1)
    assert hockey_stick(table, 2, Fraction(2)) == 1
    assert excess(table.weights, 2, Fraction(2)) == 1 << 15


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 2.718281828, 20.0])
def test_the_ratio_is_a_lower_bound(epsilon):
    _, high = exp_bounds(epsilon)
    assert 0 <= high - exp_lower_bound(epsilon) <= high * Fraction(1, 1 << 118)
    assert exp_lower_bound(epsilon) <= high


@pytest.mark.lengthy
@pytest.mark.quick(
    "laplace-1",
    "truncated-laplace-1e-2",
    "truncated-laplace-skewed",
    "gaussian-1",
    "recycled-laplace",
    "discrete-laplace",
    "truncated-discrete-laplace",
)
@every_claim
def test_a_release_has_its_claim(name):
    certificate = exact(name).certificate
    table, mechanism = certificate.table, claim(name)
    assert (certificate.epsilon, certificate.delta) == (mechanism.epsilon, mechanism.delta)
    assert certificate.realised_delta <= Fraction(repr(mechanism.delta))
    assert Fraction(mechanism.sensitivity) <= certificate.shift * table.bin_width
    assert (certificate.shift - 1) * table.bin_width < Fraction(mechanism.sensitivity)
    assert certificate.lowest == table.first * table.bin_width
    assert certificate.highest == table.last * table.bin_width
    assert certificate.bias == table.mean
    assert certificate.worst_variance == table.variance + table.bin_width**2 / 4


@pytest.mark.lengthy
@pytest.mark.quick("laplace-0.01", "gaussian-8")
@pytest.mark.parametrize("name", ["laplace-0.01", "gaussian-8", "truncated-laplace-1e-2", "recycled-merged"])
def test_a_release_in_floats(name):
    """A second computation of delta, over smaller shifts too."""
    certificate = exact(name).certificate
    p = np.array(certificate.table.outcomes, float) / 2.0**64
    found = {}
    for shift in {1, certificate.shift // 2, certificate.shift - 1, certificate.shift}:
        padded = np.concatenate([np.zeros(shift), p, np.zeros(shift)])
        for other in (padded[: len(p)], padded[2 * shift :]):
            found[shift] = max(found.get(shift, 0), np.maximum(p - math.exp(certificate.epsilon) * other, 0).sum())
    assert max(found.values()) == found[certificate.shift]
    assert float(certificate.realised_delta) == pytest.approx(found[certificate.shift], rel=1e-9, abs=1e-15)


@pytest.mark.lengthy
@pytest.mark.quick("laplace-1", "truncated-laplace-1e-2", "truncated-laplace-skewed", "gaussian-1", "recycled-laplace")
@pytest.mark.parametrize("name", DENSITIES)
def test_delta_is_the_laws_own(name):
    """A table is the noise seen through a rounding: never more, and hardly less."""
    mechanism, realised = claim(name), float(exact(name).certificate.realised_delta)
    ideal = float(additive_profile(mechanism.noise, mechanism.sensitivity, mechanism.epsilon))
    assert realised <= ideal * (1 + 1e-9) + 1e-14
    # A step of the density within a cell is smoothed; the law's own delta is rounded upwards.
    rounded = 4e-15 * (1 + mechanism.epsilon)
    assert realised >= ideal * (1 - (6e-3 if name.startswith(("recycled", "ends")) else 1e-4)) - rounded


@pytest.mark.quick("3.0-gaussian-1", "3.0-recycled-laplace")
@pytest.mark.parametrize("name", ["gaussian-1", "truncated-laplace-1e-6-huge", "recycled-laplace", "staircase-0.5"])
@pytest.mark.parametrize("other", [0.3, 3.0])
def test_the_whole_profile_is_the_laws_own(name, other):
    """At other budgets than the one it was made for."""
    mechanism, table = claim(name), exact(name).table
    realised = float(hockey_stick(table, exact(name).certificate.shift, exp_lower_bound(other)))
    ideal = float(additive_profile(mechanism.noise, mechanism.sensitivity, other))
    assert realised == pytest.approx(ideal, rel=2e-3, abs=1e-14)


def test_claims_a_little_too_small_are_refused():
    """Below what the law has, by more than a table may make up for; the error says what is reached."""
    law, D, epsilon = LATTICES["discrete-gaussian"], 2.0, 1.0
    table = noise_table(law, Fraction(D))
    delta = float(hockey_stick(table, 2, exp_lower_bound(epsilon))) * (1 + 1e-9)
    made = dpk.Additive(law).claim(sensitivity=D, epsilon=epsilon, delta=delta)
    dpk.exact_sampler(made)
    with pytest.raises(CertificateError, match=r"^delta: is 0\.\d+ at epsilon 1 .* above the claimed .* wider than"):
        dpk.exact_sampler(dataclasses.replace(made, delta=0.99 * delta))
    with pytest.raises(CertificateError, match=r"^delta: is .* for inputs 2.1 apart"):
        dpk.exact_sampler(dataclasses.replace(made, sensitivity=2.1))


@pytest.mark.lengthy
def test_a_gaussian_claim_a_little_too_small_is_refused():
    made = claim("gaussian-0.01")
    with pytest.raises(CertificateError, match=r"^delta: is .* at epsilon 0.01 .* above the claimed .* wider than"):
        dpk.exact_sampler(dataclasses.replace(made, delta=0.99 * made.delta))


@pytest.mark.parametrize("missing", [{"delta": None}, {"epsilon": None}, {"sensitivity": None}])
def test_what_claims_nothing_is_not_released(missing):
    with pytest.raises(CertificateError, match="needs all three"):
        dpk.exact_sampler(dataclasses.replace(dpk.laplace(epsilon=1.0), **missing))


@pytest.mark.lengthy
@pytest.mark.quick("1e-32", "1e+99")
@pytest.mark.parametrize("D", [1e-100, 1e-40, 1e-32, 1e99])
def test_any_sensitivity_has_a_table(D):
    """The same one in another unit; ``perturb`` refuses float32 where its subnormal numbers would matter."""
    table, plain = (dpk.exact_sampler(dpk.laplace(epsilon=1.0, sensitivity=d)).table for d in (D, 1.0))
    assert table.codes == pytest.approx(plain.codes, rel=1.0)
    assert float(table.variance) / D**2 == pytest.approx(2.0, rel=1e-3)


@pytest.mark.lengthy
@pytest.mark.parametrize(("delta", "tables"), [(1e-19, 4), (1e-20, 0), (1e-300, 0)])
def test_a_delta_beyond_every_table_is_refused_after_few(delta, tables, monkeypatch):
    tried = []

    def counted(table, *claim, **how):
        tried.append(table)
        return certify_noise(table, *claim, **how)

    monkeypatch.setattr("dpkernels.exact.noise.construction.certify_noise", counted)
    noise = dpk.Additive(dpk.Gaussian(9.0))
    with pytest.raises(CertificateError, match="delta"):
        dpk.exact_sampler(noise.claim(sensitivity=1.0, epsilon=1.0, delta=delta))
    assert len(tried) == tables


# Cells wider than the sensitivity.


def places(M):
    """Return for every grid point of a cell the exact mean of the cells that it is rounded up by."""
    words = [-(-(r << 32) // M) for r in range(M + 1)]  # r has the words from words[r] to words[r + 1].
    return [Fraction((1 << 32) - words[M - a], 1 << 32) for a in range(M)]


@pytest.mark.parametrize("M", [2, 3, 7, 12, 64])
def test_the_share_of_rounding_bounds_that_of_all_inputs(M):
    up = places(M)
    mean = [cell + up[a] for cell in range(3) for a in range(M)]
    for points in range(1, M):
        share = rounding_probability(plain_table([1 << 16], 0, 16, 0, M), Fraction(points))
        largest = max(b - a for a, b in zip(mean, mean[points:], strict=False))
        assert largest <= share <= largest + Fraction(2, 1 << 32)


@pytest.mark.parametrize("kind", ["any", "unimodal", "flat"])
@pytest.mark.parametrize(("M", "points"), [(2, 1), (5, 2), (8, 7)])
def test_delta_of_wide_cells_is_that_of_the_worst_inputs(kind, M, points):
    """All pairs of inputs, as mixtures of two tables each, in Fractions."""
    up = places(M)
    for _ in range(5):
        table = plain_table(random_weights(int(RNG.integers(2, 9)), kind), -int(RNG.integers(0, 2)), 16, 0, M)
        w = {**dict(enumerate(table.outcomes)), -1: 0, -2: 0, -3: 0}
        places_of_reports = range(table.codes + 3)
        rows = [
            [(1 - up[a]) * w.get(j - cell, 0) + up[a] * w.get(j - cell - 1, 0) for j in places_of_reports]
            for cell in (0, 1)
            for a in range(M)
        ]
        share = rounding_probability(table, Fraction(points))
        for ratio in (Fraction(1), Fraction(101, 100), Fraction(3, 2), Fraction(100)):
            worst = max(
                sum(max(Fraction(0), p - ratio * q) for p, q in zip(first, second, strict=True))
                for k, one in enumerate(rows)
                for other in rows[k + 1 : k + points + 1]
                for first, second in ((one, other), (other, one))
            ) / (1 << 16)
            delta = mixed_hockey_stick(table, share, ratio)
            assert worst <= delta <= worst + Fraction(8, 1 << 32)


SMALL_BUDGETS = {
    "gaussian-0.001": lambda: dpk.gaussian(sigma=2e3, sensitivity=1.0, epsilon=1e-3, delta=1e-5),
    "gaussian-1e-6": lambda: dpk.gaussian(sigma=2.8e5, sensitivity=0.7, epsilon=1e-6, delta=1e-6),
    "laplace-0.001": lambda: dpk.Additive(dpk.Laplace(1e3)).claim(sensitivity=1.0, epsilon=1e-3, delta=1e-15),
    "laplace-1e-6": lambda: dpk.Additive(dpk.Laplace(7e5)).claim(sensitivity=0.7, epsilon=1e-6, delta=1e-15),
    "discrete-laplace": lambda: dpk.Additive(dpk.DiscreteLaplace(1e3)).claim(
        sensitivity=1.0, epsilon=1e-3, delta=1e-15
    ),
    "vector": lambda: dpk.on_vectors(
        dpk.gaussian(sigma=2e3, sensitivity=1.0, epsilon=1e-3, delta=1e-5), dimensions=2, norm="l2", lattice=1.0
    ),
}


@pytest.mark.lengthy
@pytest.mark.quick("gaussian-0.001", "discrete-laplace")
@pytest.mark.parametrize("name", SMALL_BUDGETS)
def test_small_budgets_that_are_claimed_are_released(name):
    mechanism = SMALL_BUDGETS[name]()
    sampler = dpk.exact_sampler(mechanism)
    certificate = sampler.certificate
    assert certificate.realised_delta <= rational(mechanism.delta)
    assert abs(sampler.variance_cost) <= PROMISED_COST
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert str(again) == str(certificate)
    x = np.zeros((400, getattr(mechanism, "dimensions", 1)))
    reports = dpk.perturb(x, mechanism, key=dpk.key_from_bytes(bytes(range(32))))
    deviation = float(mechanism.worst_variance) ** 0.5
    # The key is fixed.
    assert abs(reports.mean()) < 6 * deviation / 20
    assert 0.7 < reports.std() / deviation < 1.4


def test_a_mixture_is_claimed_for_wide_cells_only():
    payload = json.loads(json.dumps(exact("laplace-1").certificate.to_dict()))
    with pytest.raises(CertificateError, match="cells are not wider than the sensitivity"):
        Certificate.from_dict({**payload, "shift": "1/2"})


@pytest.mark.lengthy
def test_wide_cells_10_percent_too_narrow_are_refused():
    mechanism = dpk.gaussian(sigma=3e5, sensitivity=1.0, epsilon=1e-6, delta=0.999e-6)
    certificate = dpk.exact_sampler(mechanism).certificate
    assert certificate.shift < 1
    narrow = dataclasses.replace(certificate.table, points_per_bin=round(certificate.table.points_per_bin / 1.1))
    with pytest.raises(CertificateError, match=r"^delta: is"):
        certify_noise(narrow, 1.0, 1e-6, certificate.delta, is_mixed=True)


# Planted faults. Every table has the right total.


def changed(table, weights, at=None):
    """The table with other weights, what is missing from the total put on one code, the likeliest by default."""
    weights = [int(weight) for weight in weights]
    at = weights.index(max(weights)) if at is None else at
    weights[at] += (1 << table.bits) - sum(weights)
    return dataclasses.replace(table, weights=np.array(weights, np.uint64))


def refused(table, name, delta=None):
    made = claim(name)
    with pytest.raises(CertificateError, match=r"^delta: is"):
        certify_noise(table, made.sensitivity, made.epsilon, made.delta if delta is None else delta)
    return True


TIGHT = ("laplace-1", "truncated-laplace-1e-6-huge", "staircase-0.5", "truncated-discrete-laplace", "discrete-laplace")


# Their shifts are few: a dent makes the certificate try them all.
@pytest.mark.parametrize("name", ["laplace-0.01", "discrete-laplace", "truncated-discrete-laplace"])
def test_one_weight_1_percent_low_is_refused(name):
    certificate = exact(name).certificate
    weights = certificate.table.outcomes.copy()
    at = -certificate.table.first + certificate.shift
    weights[at] = weights[at] * 99 // 100
    refused(changed(certificate.table, weights), name)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", [*TIGHT, "gaussian-1"])
@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_a_dropped_tail_is_refused(name, sides):
    """What lies beyond 1e-8 at either end, or at one."""
    table = exact(name).table
    p = np.array(table.outcomes, float) / 2.0**64
    outer = max(1e-8, 2 * claim(name).delta)
    keep = np.ones(len(p), bool)
    if sides[0]:
        keep &= np.cumsum(p) > outer
    if sides[1]:
        keep &= np.cumsum(p[::-1])[::-1] > outer
    weights = [w if kept else 0 for w, kept in zip(table.outcomes, keep, strict=True)]
    refused(changed(table, weights), name)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "name", ["laplace-1", "gaussian-1", "staircase-0.5", "truncated-laplace-1e-2", "recycled-laplace"]
)
def test_noise_5_percent_too_narrow_is_refused(name):
    """The same codes for cells 5 % smaller."""
    table = exact(name).table
    refused(dataclasses.replace(table, points_per_bin=round(table.points_per_bin / 1.05)), name)
    certify_noise(dataclasses.replace(table, points_per_bin=table.points_per_bin + 1), *claim_numbers(name))


def claim_numbers(name):
    made = claim(name)
    return made.sensitivity, made.epsilon, made.delta


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["truncated-laplace-1e-14", "truncated-discrete-laplace"])
@pytest.mark.parametrize("end", [0, -1])
def test_the_last_code_never_reported_is_refused(name, end):
    """Of tables at the edge of their claim."""
    certificate = exact(name).certificate
    weights = certificate.table.outcomes.copy()
    weights[end] = 0
    refused(changed(certificate.table, weights), name, float(certificate.realised_delta) * (1 + 1e-9))


def masses_at_32_bits(codes=4096):
    """Truncated Laplace at 32 bits: its table, a claim that is just met, and the law's masses in it."""
    mechanism = dpk.truncated_laplace(epsilon=1.0, delta=1e-4)
    table = noise_table(mechanism.noise, Fraction(1), bits=32, codes=codes)
    realised = hockey_stick(table, table.cells(Fraction(1)), exp_lower_bound(1.0))
    edges = (np.arange(table.first, table.last + 2) - 0.5) / table.cells(Fraction(1))
    return table, float(realised) * (1 + 1e-9), mechanism.noise.mass(edges[:-1], edges[1:]) * 2.0**32


def test_weights_rounded_to_the_nearest_are_refused():
    table, delta, masses = masses_at_32_bits()
    certify_noise(table, 1.0, 1.0, delta)
    with pytest.raises(CertificateError, match=r"^delta: is"):
        certify_noise(changed(table, np.rint(masses)), 1.0, 1.0, delta)


def test_a_remainder_spread_over_the_tails_is_refused():
    """Rounded down, and the missing units put on the outermost codes, one each."""
    table, delta, masses = masses_at_32_bits(1 << 15)
    weights = np.floor(masses).astype(np.int64)
    missing = (1 << 32) - int(weights.sum())
    order = np.argsort(-np.abs(np.arange(len(weights)) + table.first), kind="stable")
    weights[order[:missing]] += 1
    assert weights.sum() == 1 << 32
    certify_noise(table, 1.0, 1.0, delta)
    with pytest.raises(CertificateError, match=r"^delta: is"):
        certify_noise(changed(table, weights), 1.0, 1.0, delta)


def test_16_random_bits_for_64_are_refused():
    table = exact("laplace-1").table
    weights = [(w + (1 << 47)) >> 48 << 48 for w in table.outcomes]
    refused(changed(table, weights), "laplace-1")


@pytest.mark.parametrize("by", [-1, 1, 1 << 40])
def test_another_total_is_refused(by):
    table = exact("laplace-1").table
    weights = table.outcomes.copy()
    weights[-table.first] += by
    wrong = dataclasses.replace(table, weights=np.array(weights, np.uint64))
    with pytest.raises(CertificateError, match=re.escape(f"total: weights sum to 2^64 {by:+d}")):
        certify_noise(wrong, 1.0, 1.0, 1e-3)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("points_per_bin", 0, "points_per_bin"),
        ("points_per_bin", -3, "points_per_bin"),
        ("points_per_bin", 1 << 32, "points_per_bin"),
        ("first", 1, "codes"),
        ("first", -3, "codes"),
        ("first", 10**30, "codes"),
        ("grid_log2", 961, "grid_log2"),
        ("grid_log2", -1022, "grid_log2"),
        ("grid_log2", 10**40, "grid_log2"),
        ("bits", 15, "bits"),
        ("bits", 17, "bits"),
        ("bits", 0, "bits"),
        ("bits", -1, "bits"),
        ("bits", 10**40, "bits"),
    ],
)
def test_tables_that_cannot_be_sampled_are_refused(part, value, message):
    table = plain_table([1 << 14, 1 << 15, 1 << 14], -1)
    certify_noise(table, 1.0, 1.0, 0.9)
    with pytest.raises(CertificateError, match=message):
        certify_noise(dataclasses.replace(table, **{part: value}), 1.0, 1.0, 0.9)


def test_words_of_other_sizes_are_refused():
    """The weights sum to 2^bits, but no words have so many bits."""
    for bits in (2, 8, 20, 62, 63):
        weights = [1 << (bits - 2), 1 << (bits - 1), 1 << (bits - 2)]
        with pytest.raises(CertificateError, match="bits"):
            certify_noise(plain_table(weights, -1, bits), 1.0, 1.0, 0.9)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ((0.0, 1.0, 0.5), "sensitivity"),
        ((math.nan, 1.0, 0.5), "sensitivity"),
        ((math.inf, 1.0, 0.5), "sensitivity"),
        ((1.0, 0.0, 0.5), "epsilon"),
        ((1.0, math.nan, 0.5), "epsilon"),
        ((1.0, 1.0, 0.0), "delta"),
        ((1.0, 1.0, 1.0), "delta"),
        ((1.0, 1.0, math.nan), "delta"),
    ],
)
def test_claims_out_of_range_are_refused(claims, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        certify_noise(plain_table([1 << 14, 1 << 15, 1 << 14], -1), *claims)


# JSON.


@pytest.mark.parametrize(
    "name", ["laplace-1-odd", "truncated-laplace-skewed", "discrete-gaussian", "truncated-discrete-laplace"]
)
def test_a_certificate_survives_json(name):
    certificate = exact(name).certificate
    again = Certificate.from_dict(json.loads(certificate.to_json()))
    assert isinstance(again, NoiseCertificate)
    assert again.to_dict() == certificate.to_dict()
    assert str(again) == str(certificate)
    assert again.realised_delta == certificate.realised_delta


def short_form():
    return json.loads(exact("truncated-discrete-laplace").certificate.to_json())


@pytest.mark.parametrize(
    ("claimed_name", "lie"),
    [
        ("epsilon", 0.99),
        ("epsilon", "1"),
        ("epsilon", True),
        ("epsilon", [1.0]),
        ("epsilon", math.nan),
        ("delta", 1e-9),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", "1e-5"),
        ("delta", None),
        ("sensitivity", 4.0),
        ("sensitivity", 1.0),
        ("sensitivity", math.inf),
        ("sensitivity", "3"),
        ("shift", 5),
        ("shift", 7.5),
        ("realised_delta", "0"),
        ("realised_delta", 9e-6),
        ("realised_epsilon", 0.5),
        ("lowest", "0"),
        ("highest", "1/3"),
        ("bias", "1/100"),
        ("worst_variance", "1"),
        ("covers", "everything"),
        ("noise", None),
        ("noise", {}),
        ("noise", []),
    ],
)
def test_a_form_that_claims_something_else_is_refused(claimed_name, lie):
    with pytest.raises(CertificateError):
        Certificate.from_dict({**short_form(), claimed_name: lie})


@pytest.mark.parametrize(
    "left_out", ["epsilon", "delta", "sensitivity", "shift", "realised_delta", "bias", "covers", "noise"]
)
def test_a_form_that_leaves_a_claim_out_is_refused(left_out):
    sampler = short_form()
    del sampler[left_out]
    with pytest.raises(CertificateError):
        Certificate.from_dict(sampler)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("grains", 0),
        ("grains", -1),
        ("grains", 1.0),
        ("grains", 1 << 33),
        ("bits", 63),
        ("bits", 65),
        ("bits", -1),
        ("bits", "64"),
        ("bits", 10**30),
        ("first", 1),
        ("first", -1000),
        ("first", None),
        ("first", 0),
        ("grain", -1100),
        ("grain", 10**20),
        ("grain", -3.0),
        ("weights", []),
        ("weights", "12"),
        ("weights", None),
        ("weights", 5),
        ("weights", {"0": 1}),
        ("weights", [[1, 2], [3, 4]]),
        ("weights", [1 << 64]),
        ("weights", [1 << 65, -(1 << 65) + (1 << 64)]),
    ],
)
def test_a_form_with_another_table_is_refused(part, value):
    sampler = short_form()
    sampler["noise"][part] = value
    with pytest.raises(CertificateError):
        Certificate.from_dict(sampler)


@pytest.mark.parametrize("spoil", [float, str, bool, lambda w: -w, lambda w: w + 1, lambda w: [w], lambda w: None])
@pytest.mark.parametrize("at", [0, 5])
def test_a_form_with_a_weight_that_is_none_is_refused(spoil, at):
    sampler = short_form()
    sampler["noise"]["weights"][at] = spoil(sampler["noise"]["weights"][at])
    with pytest.raises(CertificateError):
        Certificate.from_dict(sampler)


def test_a_weight_moved_to_another_code_is_refused():
    """The total is right, and delta no longer what the payload says."""
    sampler = short_form()
    sampler["noise"]["weights"][0] -= 1000
    sampler["noise"]["weights"][40] += 1000
    with pytest.raises(CertificateError):
        Certificate.from_dict(sampler)


def test_a_table_too_large_to_be_ours_is_refused():
    with pytest.raises(ValueError, match="weights: a list of 2097153 is not a list of at most 2097152 integers"):
        NoiseTable.from_dict({"weights": [0] * ((1 << 21) + 1), "first": 0, "bits": 64, "grain": 0, "grains": 1})


def test_a_certificate_prints_what_it_covers():
    text = str(exact("truncated-laplace-1e-2").certificate)
    for part in (
        "0.3, 0.01",
        "at most 3 apart",
        "total weight        2^64",
        "mean of the noise   0\n",
        "neighbouring: datasets",
    ):
        assert part in text


def test_variance_cost_is_against_the_laws_own():
    sampler = exact("laplace-1")
    assert sampler.variance_cost == pytest.approx(float(sampler.certificate.worst_variance) / 2 - 1)


# What is certified.


def test_certified_once_and_only_once():
    assert dpk.exact_sampler(dpk.laplace(epsilon=1.0)) is dpk.exact_sampler(dpk.laplace(epsilon=1.0))
    sampler = exact("laplace-1")
    assert dpk.exact_sampler(sampler) is sampler
    assert BITS == sampler.table.bits == sampler.words[0].bits == 64


@pytest.mark.parametrize(
    "make", [lambda t: dpk.laplace(epsilon=1.0, sensitivity=t), lambda t: dpk.Additive(dpk.Laplace(t), 1.0, 1.0, 1e-3)]
)
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_traced_mechanisms_are_refused(make, transform):
    def traced(t):
        dpk.exact_sampler(make(t))
        return t

    given = np.ones(3, np.float32) if transform is jax.vmap else np.float32(1.0)
    with pytest.raises(TypeError, match="traced mechanism cannot be certified"):
        transform(traced)(given)


def test_array_parameters_are_certified_as_numbers():
    mechanism = dpk.laplace(epsilon=1.0)
    arrays = jax.tree.map(np.float64, mechanism)
    assert dpk.exact_sampler(arrays).certificate.to_dict() == dpk.exact_sampler(mechanism).certificate.to_dict()


def test_a_law_of_the_users_own_has_no_table():
    class Own(dpk.Laplace):
        pass

    class Other:
        pass

    assert dpk.exact_sampler(dpk.Additive(dpk.Laplace(1.0), 1.0, 1.0, 1e-12))
    with pytest.raises(TypeError, match="Other has no table"):
        noise_table(Other(), Fraction(1))


def test_mpmath_agrees_on_laplace():
    """delta of a table of pure noise is what its finite ends and its rounding cost: below 1e-15, in 60 digits."""
    certificate = exact("laplace-1").certificate
    with mpmath.workdps(60):
        e, w, n = mpmath.e, certificate.table.outcomes, certificate.shift
        shifted = [0] * n + w
        delta = mpmath.fsum(max(0, a - e * b) for a, b in zip(w, shifted, strict=False)) / 2**64
        assert (
            abs(delta - mpmath.mpf(certificate.realised_delta.numerator) / certificate.realised_delta.denominator)
            < 1e-30
        )


def test_no_vector_of_pure_budget_is_made_of_noise():
    """Its certificate would say pure epsilon-DP of tables that are (epsilon, delta)-DP."""
    own = dpk.exact_sampler(dpk.laplace(epsilon=1.0)).certificate
    with pytest.raises(CertificateError, match="coordinate: NoiseCertificate is not of pure"):
        MultivariateCertificate(own, 2, 1)
    multivariate = dpk.multivariate(dimensions=2, epsilon=1.0, lower=0.0, upper=1.0, coordinate="piecewise")
    form = dpk.exact_sampler(multivariate).certificate.to_dict() | {"coordinate": own.to_dict()}
    with pytest.raises(CertificateError, match="coordinate: NoiseCertificate is not of pure"):
        Certificate.from_dict(form)


def test_a_shift_beyond_the_table_reveals_all_and_costs_nothing_to_see():
    table = NoiseTable(np.array([1 << 14, 1 << 15, 1 << 14]), -1, 16, 0, 1)
    assert hockey_stick(table, 10**300, Fraction(3)) == hockey_stick(table, 3, Fraction(3)) == 1
    humps = NoiseTable(np.array([1 << 15, 0, 1 << 15]), -1, 16, 0, 1)
    assert hockey_stick(humps, 10**300, Fraction(1)) == 1


def test_a_sensitivity_of_no_size_is_named():
    for D in (1e300, 1e200, 1e-200, 5e-324, -1.0, math.nan):
        with pytest.raises(ValueError, match="sensitivity: "):
            dpk.laplace(epsilon=1.0, sensitivity=D)
    with pytest.raises(ValueError, match="sensitivity: entry 1 is 1e-200"):
        dpk.laplace(epsilon=1.0, sensitivity=np.array([1.0, 1e-200]))
