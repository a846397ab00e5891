"""Exact samplers of categories: every word and every set is counted, and certificates refuse one unit too much."""

from __future__ import annotations

import dataclasses
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.exact.categorical.certificate import BlockCertificate, SetCertificate, response_threshold, set_threshold
from dpkernels.exact.categorical.sampler import DIRECTION_STREAM, BlockSampler, ResponseSampler, SetSampler
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.registry import Certificate
from dpkernels.random import host

KEY = bytes(range(32))
MECHANISMS = [
    dpk.randomised_response(1.0, 5),
    dpk.subset_selection(1.0, 9, 3),
    dpk.subset_selection(0.5, 266),
    dpk.block_response(1.0, 300),
]
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.kind}-{m.categories}")


@every_mechanism
def test_certificates_are_verified_from_json(mechanism):
    certificate = dpk.exact_sampler(mechanism).certificate
    payload = json.loads(certificate.to_json())
    assert Certificate.from_dict(payload) == certificate
    assert "any two categories" in str(certificate)
    for name, value in payload.items():
        other = value + 1 if isinstance(value, int) else value - 0.1 if isinstance(value, float) else value + "1"
        if (mechanism.kind, name) != ("block", "categories"):  # The same integers serve another number as well.
            with pytest.raises(CertificateError):
                Certificate.from_dict(payload | {name: other})
        with pytest.raises(CertificateError):
            Certificate.from_dict({word: item for word, item in payload.items() if word != name})
    with pytest.raises(CertificateError, match="more"):
        Certificate.from_dict(payload | {"more": 1})


@every_mechanism
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_thresholds_are_the_largest_that_the_budget_allows(mechanism, bits):
    kind = BlockCertificate if mechanism.kind == "block" else SetCertificate
    certificate = kind.of(mechanism, bits)
    choices, size = certificate._choices
    step = choices - 1 if size == 1 else 1
    assert certificate.ratio <= exp_lower_bound(float(mechanism.epsilon))
    with pytest.raises(CertificateError, match="above epsilon"):
        dataclasses.replace(certificate, threshold=certificate.threshold + step)
    if step > 1:
        with pytest.raises(CertificateError, match="runs of one length"):
            dataclasses.replace(certificate, threshold=certificate.threshold - 1)


def test_a_threshold_without_signal_is_refused():
    with pytest.raises(CertificateError, match="no signal"):
        SetCertificate(1.0, 4, 1 << 62, 64, 1)
    with pytest.raises(CertificateError, match="threshold"):
        SetCertificate(1.0, 4, 0, 64, 1)


def response_of(words, true, choices, threshold, sampler=ResponseSampler):
    certificate = SetCertificate(1.0, choices, threshold, 16, 1)
    made = sampler(dpk.randomised_response(1.0, choices), certificate)
    return made._response(words, true, choices)


class ShiftedResponse(ResponseSampler):
    """A planted fault: the code after the true one is reported in its place."""

    def _response(self, words, true, choices):
        return super()._response(words, (true + 1) % choices, choices)


class EqualResponse(ResponseSampler):
    """A planted fault: a word that equals the threshold counts as below it."""

    def _has_true(self, words):
        return words <= words.dtype.type(self.certificate.threshold)


@pytest.mark.parametrize("choices", [2, 3, 5, 16, 17])
def test_every_word_of_randomised_response(choices):
    words, T = np.arange(1 << 16, dtype=np.uint16), response_threshold(1.0, choices, 16)
    t = ((1 << 16) - T) // (choices - 1)
    for true in range(choices):
        expected = [T if code == true else t for code in range(choices)]

        def counts(sampler, true=true):
            found = response_of(words, np.full(1 << 16, true), choices, T, sampler)
            return np.bincount(found, minlength=choices).tolist()

        assert counts(ResponseSampler) == expected
        assert counts(ShiftedResponse) != expected
        assert counts(EqualResponse) != expected


class TooManySets(SetSampler):
    """A planted fault: the true category is set without a place for it."""

    def _with_true_bits(self, sets, has_true, codes):
        return super()._with_true_bits(sets, np.ones(len(codes), bool), codes)


@pytest.mark.parametrize(("d", "k"), [(3, 2), (8, 3), (9, 4), (6, 5)])
def test_sets_are_placed_one_to_one(d, k):
    """Given whether the true category is in it, all sets of the others come from one set of slots each."""
    mechanism = dpk.subset_selection(1.0, d, k)
    width = mechanism.report_shape[0]
    for sampler_type in (SetSampler, TooManySets):
        sampler = sampler_type(mechanism, SetCertificate.of(mechanism))
        good = True
        for x, has_true in itertools.product(range(d), (False, True)):
            slots = list(itertools.combinations(range(d - 1), k - has_true))
            sets = np.zeros((len(slots), 8 * width), np.uint8)
            for row, members in zip(sets, slots, strict=True):
                row[list(members)] = 1
            packed = np.packbits(sets, axis=1, bitorder="little")
            placed = sampler._with_true_bits(packed, np.full(len(slots), has_true), np.full(len(slots), x))
            found = {tuple(np.flatnonzero(row)) for row in mechanism.supports(placed)}
            good &= found == {s for s in itertools.combinations(range(d), k) if (x in s) == has_true}
            good &= not np.unpackbits(placed, axis=1, bitorder="little")[:, d:].any()
        assert good == (sampler_type is SetSampler)


@every_mechanism
def test_noise_depends_on_the_row_alone(mechanism):
    sampler = dpk.exact_sampler(mechanism)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, mechanism.categories, 300)
    start = sampler.rows - 100
    whole = sampler.reports(codes, KEY, start)
    assert np.array_equal(sampler.reports(codes[120:150], KEY, start + 120), whole[120:150])
    assert np.array_equal(sampler.reports(codes[:1], KEY, start), whole[:1])
    assert not np.array_equal(sampler.reports(codes, bytes(32), start), whole)
    assert not np.array_equal(sampler.reports(codes, KEY, start + 1), whole)


@every_mechanism
def test_blocks_of_rows_have_noise_of_their_own(mechanism):
    """Rows at the same place of two blocks have equal reports as often as independent ones, which is rare."""
    sampler, n = dpk.exact_sampler(mechanism), 200
    first, second = (sampler.reports(np.zeros(n, np.int64), KEY, start) for start in (0, sampler.rows))
    assert (first == second).reshape(n, -1).all(1).mean() < 0.5


@pytest.mark.lengthy
@every_mechanism
def test_reports_have_the_probabilities(mechanism):
    """Supports of 30,000 reports, each within 6 standard deviations: a false alarm below 1e-6."""
    n, x = 30_000, 4
    sampler = dpk.exact_sampler(mechanism)
    reports = sampler.reports(np.full(n, x), KEY, 0)
    p, q = float(sampler.certificate.probability), float(sampler.certificate.other_probability)
    expected = np.where(np.arange(mechanism.categories) == x, p, q)
    shares = sum(mechanism.supports(part).sum(0) for part in np.array_split(reports, 10)) / n
    assert (np.abs(shares - expected) < 6 * np.sqrt(expected * (1 - expected) / n)).all()


def test_directions_read_words_as_fractions():
    sampler = dpk.exact_sampler(MECHANISMS[3])
    assert isinstance(sampler, BlockSampler)
    reports = sampler.reports(np.zeros(50, np.int64), KEY, 3)
    words = np.empty(56, "<u8")
    host.fill(words, KEY, DIRECTION_STREAM, 0)
    directions = [int(word) * sampler.mechanism.directions >> 64 for word in words[3:53].tolist()]
    assert sampler.mechanism.split(reports)[0].tolist() == directions


def test_thresholds_of_sets():
    for d, k, epsilon in ((5, 2, 1.0), (266, 72, 1.0), (4096, 74, 4.0)):
        T, e = set_threshold(epsilon, d, k), exp_lower_bound(epsilon)
        assert Fraction(T * (d - k), ((1 << 64) - T) * k) <= e < Fraction((T + 1) * (d - k), ((1 << 64) - T - 1) * k)


def test_traced_and_unknown_mechanisms_are_refused():
    import jax

    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda e: dpk.exact_sampler(dpk.SubsetSelection(e, 5, 1)) and e)(1.0)
    assert dpk.exact_sampler(sampler := dpk.exact_sampler(MECHANISMS[0])) is sampler
