"""Exact reports of prefixes: their levels, their words, their probabilities, and certificates of all levels."""

from __future__ import annotations

import json

import numpy as np
import pytest

import accountants
import dpkernels as dpk
from dpkernels.exact import sampler
from dpkernels.exact.categorical import prefixes
from dpkernels.exact.categorical import sampler as categorical_sampler
from dpkernels.exact.categorical.certificate import BlockCertificate
from dpkernels.exact.categorical.prefixes import PrefixCertificate, PrefixSampler
from dpkernels.exact.categorical.sampler import BlockSampler, stream_words
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import Certificate
from dpkernels.exact.selection import exponential, permute_and_flip
from dpkernels.random import chacha

KEY = bytes(range(32))
PLAN = dpk.prefix_response(1.5, 6, 3, lengths=(2, 3, 6))


def test_a_report_is_that_of_a_random_level_about_its_prefix():
    exact, codes, start = dpk.exact_sampler(PLAN), np.random.default_rng(0).integers(0, 3**6, 600), 13
    words = [stream_words(KEY, stream, start, 600) for stream in (31, *BlockSampler.streams)]
    reports = exact.reports(codes, KEY, start)
    assert reports.dtype == PLAN.report_dtype == np.uint16
    levels, own = PLAN.split_reports(reports.astype(np.int64))
    assert levels.tolist() == [int(word) * 3 >> 64 for word in words[0].tolist()]
    for row, (level, report) in enumerate(zip(levels.tolist(), own.tolist(), strict=True)):
        of_level = dpk.exact_sampler(PLAN.levels[level])
        digits = codes[row : row + 1] // 3 ** (6 - PLAN.lengths[level])
        wanted = of_level.respond(digits, *(word[row : row + 1] for word in words[1:]))
        assert report == wanted[0]
    assert np.array_equal(exact.reports(codes[100:], KEY, start + 100), reports[100:])
    assert PLAN.offsets == (0, *np.cumsum([level.outcomes for level in PLAN.levels]))
    assert reports.max() < PLAN.outcomes == PLAN.offsets[-1]


def test_a_report_depends_on_the_prefix_of_its_level_alone():
    exact, codes = dpk.exact_sampler(PLAN), np.random.default_rng(0).integers(0, 3**6, 2000)
    reports = exact.reports(codes, KEY, 0)
    levels = PLAN.split_reports(reports.astype(np.int64))[0]
    changed = codes // 9 * 9 + (codes + 1) % 9  # The first four digits are the same, and others are not.
    others = exact.reports(changed, KEY, 0)
    assert (reports == others)[levels < 2].all()
    assert not (reports == others)[levels == 2].all()
    assert np.bincount(levels).min() > 500


class WholeValues(PrefixSampler):
    """A planted fault: a level's report is about digits of the end of the value."""

    def reports(self, codes, key, start):
        return super().reports(codes % 3**4 * 9 + codes // 3**4, key, start)


@pytest.mark.lengthy
@pytest.mark.quick("700")
@pytest.mark.parametrize("value", [5, 700])
def test_reports_have_the_probabilities(value):
    """Supports of 18,000 reports, each within 6.5 standard deviations: a false alarm below 1e-6."""
    exact, n = dpk.exact_sampler(PLAN), 18_000

    def is_right(made):
        level, report = PLAN.split_reports(made.reports(np.full(n, value), KEY, 0).astype(np.int64))
        good = True
        for number, mechanism in enumerate(PLAN.levels):
            own, certificate = report[level == number], exact.certificate.levels[number]
            p, q = float(certificate.probability), float(certificate.other_probability)
            prefix = value // 3 ** (6 - PLAN.lengths[number])
            expected = np.where(np.arange(mechanism.categories) == prefix, p, q)
            shares = sum(mechanism.supports(part).sum(0) for part in np.array_split(own, 10)) / len(own)
            good &= abs(len(own) - n / 3) < 6.5 * np.sqrt(n * 2 / 9)
            good &= (np.abs(shares - expected) < 6.5 * np.sqrt(expected * (1 - expected) / len(own))).all()
        return good

    assert is_right(exact)
    assert not is_right(WholeValues(PLAN, exact.certificate))


def test_streams_of_a_key_are_different():
    """Words that decide about different things are independent."""
    modules = chacha, sampler, exponential, categorical_sampler, permute_and_flip, prefixes
    streams = {
        name: number
        for module in modules
        for name, number in vars(module).items()
        if name.endswith("_STREAM") and isinstance(number, int)
    }
    assert len(streams) == 21
    assert len(set(streams.values())) == len(streams)
    assert BlockSampler.streams == (categorical_sampler.DIRECTION_STREAM, categorical_sampler.RESPONSE_STREAM)


def test_certificates_are_verified_from_json():
    certificate = dpk.exact_sampler(PLAN).certificate
    payload = json.loads(certificate.to_json())
    assert Certificate.from_dict(payload) == certificate
    assert certificate.realised_epsilon <= 1.5
    assert certificate.categories == 3**6
    assert "any two values" in str(certificate)
    level = payload["level_1"]
    other = json.loads(dpk.exact_sampler(dpk.block_response(2.0, 27, level["blocks"])).certificate.to_json())
    for wrong in (
        {"epsilon": 1.4},
        {"categories": 3**5},
        {"realised_epsilon": 1.0},
        {"level_1": other},
        {"level_1": payload["level_0"]},
        {"level_1": payload["level_2"]},
        {"level_1": level | {"threshold": level["threshold"] + level["blocks"] - 1}},
        {"level_3": payload["level_2"]},
        {"level_4": payload["level_2"]},
        {"level_1": json.loads(dpk.exact_sampler(dpk.randomised_response(1.5, 27)).certificate.to_json())},
    ):
        with pytest.raises(CertificateError):
            Certificate.from_dict(payload | wrong)
    for name in payload:
        with pytest.raises(CertificateError):
            Certificate.from_dict({key: value for key, value in payload.items() if key != name})


def test_the_level_of_the_largest_ratio_counts():
    levels = tuple(BlockCertificate.of(level, 16) for level in PLAN.levels)
    realised = [level.realised_epsilon for level in levels]
    assert len(set(realised)) > 1
    for order in (levels, (levels[0],), levels[1:]):
        assert PrefixCertificate(1.5, order).realised_epsilon == max(level.realised_epsilon for level in order)


def test_accountants():
    """The pair of values is the worst one of the channel, and there is no blanket."""
    exact = dpk.exact_sampler(PLAN)
    assert accountants.epsilon(exact) == exact.certificate.realised_epsilon
    assert accountants.epsilon(PLAN) == 1.5
    small = dpk.prefix_response(1.5, 2, 3, lengths=(1, 2))
    channels = [level.channel()[1] for level in small.levels]
    rows = [np.concatenate([channels[0][code // 3], channels[1][code]]) / 2 for code in range(9)]
    for epsilon in (0.0, 0.4, 1.2):
        worst = max(np.maximum(p - np.exp(epsilon) * q, 0).sum() for p in rows for q in rows)
        assert accountants.delta(small, epsilon) == pytest.approx(worst, abs=1e-12)
        assert accountants.delta(dpk.exact_sampler(small), epsilon) == pytest.approx(worst, abs=1e-12)
    with pytest.raises(TypeError, match="several reports a person"):
        accountants.delta(dpk.prefix_response(1.5, 2, 3, lengths=(1, 2), split="budget"), 0.5)
    with pytest.raises(TypeError, match="no known blanket"):
        accountants.shuffled(exact, 1000).epsilon(1e-6)


def test_budgets_that_are_split_have_several_reports():
    with pytest.raises(ValueError, match="several reports a person"):
        dpk.exact_sampler(dpk.prefix_response(1.0, 4, 3, split="budget"))
