"""Square wave: its law, its table word by word, what its certificate says and does not, its privacy, the command."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_helpers import Run, assert_refused, command
from helpers import FAR, SKEW, SMALL, UNIT, over
from scipy import integrate, stats

import accountants
import dpkernels as dpk
from dpkernels.exact.bounded.window_construction import square_wave_table
from dpkernels.exact.bounded.windows import SquareWaveCertificate, WindowCertificate, WindowTable
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.packed import full_certificates
from dpkernels.exact.registry import MixtureCertificate, MultivariateCertificate
from dpkernels.mechanisms.windowed.mechanism import published_half_width

run = pytest.fixture(command, name="run")

WAVES = {
    "0.01": dpk.square_wave(epsilon=0.01, **UNIT),
    "1": dpk.square_wave(epsilon=1.0, **SKEW),
    "2, wide": dpk.square_wave(epsilon=2.0, half_width=1.5, **SMALL),
    "4, far": dpk.square_wave(epsilon=4.0, **FAR),
    "6, narrow": dpk.square_wave(epsilon=6.0, half_width=0.001, **SKEW),
}
BITS = [("1", 1.0, None), ("0.3", 0.3, 0.8), ("3", 3.0, 0.02), ("3, wide", 3.0, 2.0)]
every_small = pytest.mark.parametrize(("epsilon", "half_width"), [case[1:] for case in BITS], ids=lambda v: str(v))


def places(m: Any) -> np.ndarray:
    """Inputs from end to end."""
    return m.lower + (m.upper - m.lower) * np.array([0.0, 0.13, 0.5, 0.82, 1.0])


def expected(m: Any, x: float, function: Any) -> float:
    """By quadrature of the paper's density, written again, from kink to kink."""
    R, b, E = m.upper - m.lower, m.half_width, math.exp(m.epsilon)
    q = 1 / (2 * b * E + 1)
    t = (x - m.lower) / R
    total = 0.0
    for low, high, density in ((-b, t - b, q), (t - b, t + b, E * q), (t + b, 1 + b, q)):
        kinks = sorted({low, high, min(max(t, low), high)})
        for lower, upper in pairwise(kinks):
            total += density * integrate.fixed_quad(lambda v: function(m.lower + R * v), lower, upper, n=8)[0]
    return total


# The law


@over(WAVES)
def test_the_density_is_the_papers(m: Any) -> None:
    for x in places(m):
        assert expected(m, x, np.ones_like) == pytest.approx(1, abs=1e-10)
        R = m.upper - m.lower
        assert m.mean(x) == pytest.approx(expected(m, x, lambda y: y), rel=1e-10, abs=1e-10 * R)
        assert m.bias(x) == pytest.approx(expected(m, x, lambda y, x=x: y - x), abs=1e-10 * R)
        mean = float(m.mean(x))
        assert m.variance(x) == pytest.approx(expected(m, x, lambda y, u=mean: (y - u) ** 2), rel=1e-9)
        assert m.absolute_error(x) == pytest.approx(expected(m, x, lambda y, x=x: abs(y - x)), rel=1e-9)
    assert m.worst_variance == pytest.approx(max(map(m.variance, np.linspace(m.lower, m.upper, 101))), rel=1e-12)


@over(WAVES)
def test_it_is_the_piecewise_mechanism_nearer_to_the_middle(m: Any) -> None:
    unbiased, middle = m.unbiased, (m.lower + m.upper) / 2
    low, high = m.output_interval
    y = np.linspace(low, high, 997)[1:-1]
    stretched = middle + (y - middle) / m.window_mass
    for x in places(m):
        np.testing.assert_allclose(m.cdf(y, x), unbiased.cdf(stretched, x), atol=1e-9)
        np.testing.assert_allclose(m.variance(x), m.window_mass**2 * unbiased.variance(x), rtol=1e-9)
    assert unbiased.window_mass == pytest.approx(m.window_mass, rel=1e-12)


@over(WAVES)
def test_the_cdf_is_inverted_and_is_the_integral_of_the_density(m: Any) -> None:
    u = np.linspace(0.001, 0.999, 37)
    for x in places(m):
        y = m.icdf(u, x)
        np.testing.assert_allclose(m.cdf(y, x), u, atol=1e-10)
        h = 1e-4 * (m.output_interval[1] - m.output_interval[0])
        slope = (m.cdf(y + h, x) - m.cdf(y - h, x)) / (2 * h)
        same = m.pdf(y + h, x) == m.pdf(y - h, x)
        np.testing.assert_allclose(m.pdf(y, x)[same], slope[same], rtol=1e-5)
        assert same.mean() > 0.5
        np.testing.assert_allclose(np.exp(m.log_prob(y, x)), m.pdf(y, x), rtol=1e-14)
    assert m.log_prob(m.output_interval[1] + 1.0, m.lower) == -np.inf


def test_reports_follow_the_cdf_and_not_that_of_a_wider_window() -> None:
    """Kolmogorov-Smirnov at a fixed seed; against a window 5 % wider it must reject."""
    m = WAVES["1"]
    y = np.asarray(m.sample(dpk.simulation_key(3), jnp.full(200_000, m.upper)), float)
    assert stats.kstest(y, lambda v: m.cdf(v, m.upper)).pvalue > 1e-3
    wider = dataclasses.replace(m, half_width=1.05 * m.half_width)
    assert stats.kstest(y, lambda v: wider.cdf(v, m.upper)).pvalue < 1e-9


@pytest.mark.thorough
def test_derivatives_of_reports_are_implicit(x64: None) -> None:
    m, u = WAVES["1"], jnp.asarray(0.4)
    slope = float(jax.grad(lambda x: m.icdf(u, x))(jnp.asarray(3.0)))
    h = 1e-6
    assert slope == pytest.approx(float(m.icdf(0.4, 3.0 + h) - m.icdf(0.4, 3.0 - h)) / (2 * h), rel=1e-6)


def test_the_published_width() -> None:
    eps = 1.0
    E = math.exp(eps)
    assert published_half_width(eps) == pytest.approx((eps * E - E + 1) / (2 * E * (E - 1 - eps)), rel=1e-12)
    assert published_half_width(1e-4) == pytest.approx(0.5, rel=1e-3)


def test_it_has_the_most_mutual_information_of_a_uniform_input() -> None:
    """The source's reason for the width: I = h(report) - h(report | input), reports nearly uniform."""

    def information(b: float) -> float:
        q = 1 / (2 * b * E + 1)
        return math.log(1 + 2 * b) + (2 * b * E * q * math.log(E * q) + q * math.log(q))

    E = math.exp(2.0)
    b = published_half_width(2.0)
    assert information(b) > max(information(0.99 * b), information(1.01 * b))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"lower": 2.0}, "lower, upper"),
        ({"half_width": 0.0}, "half_width: 0"),
        ({"half_width": math.nan}, "half_width"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dpk.square_wave(**{"epsilon": 1.0, **UNIT, **given})


# The table


@cache
def small(epsilon: float, half_width: float | None) -> tuple[Any, WindowTable]:
    mechanism = dpk.square_wave(epsilon=epsilon, half_width=half_width, **SKEW)
    return mechanism, square_wave_table(mechanism, bits=16, codes=192)


@every_small
def test_every_word_of_every_row_counts(epsilon: float, half_width: float | None) -> None:
    """All 2^16 words: counts are the weights; and every pair of them is within the rational bound of e^eps."""
    mechanism, table = small(epsilon, half_width)
    certificate = SquareWaveCertificate.of(table, epsilon)
    codes, words = table.kernel(), np.arange(1 << 16, dtype=np.uint16)
    rows = np.arange(table.last_row + 1)
    counts = np.array([np.bincount(codes(words, np.int32(row)), minlength=table.codes) for row in rows])
    high, low = counts.max(0), counts.min(0)
    ratio = max(Fraction(int(a), int(b)) for a, b in zip(high, low, strict=True))
    assert ratio == certificate.ratio <= exp_lower_bound(epsilon)
    values = [table.value(code) for code in range(table.codes)]
    lower, middle = Fraction(int(mechanism.lower)), table.middle
    for row in rows[:: max(1, len(rows) // 7)]:
        mean = sum(int(n) * value for n, value in zip(counts[row], values, strict=True)) / (1 << 16)
        x = lower + Fraction(int(row), table.last_row) * (Fraction(int(mechanism.upper)) - lower)
        assert mean == middle + certificate.slope * (x - middle) == table.row_mean(int(row))
    assert values[0] == lower - (values[1] - values[0]) * Fraction(len(table.window) - 1, 2)


@every_small
def test_the_variance_bound_holds_between_rows_too(epsilon: float, half_width: float | None) -> None:
    _, table = small(epsilon, half_width)
    values = np.array([float(table.value(code)) for code in range(table.codes)])
    worst = 0.0
    for row in range(table.last_row):
        for f in (0.0, 0.5, 1.0):
            p = ((1 - f) * table.row(row) + f * table.row(row + 1)) / float(1 << 16)
            worst = max(worst, float(p @ values**2 - (p @ values) ** 2))
    assert worst <= float(table.worst_variance) * (1 + 1e-12)
    assert worst >= float(table.worst_variance) * 0.98


@pytest.mark.parametrize("epsilon", [0.01, 0.25, 1.0, 4.0, 12.0])
def test_tables_are_faithful(epsilon: float) -> None:
    mechanism = dpk.square_wave(epsilon=epsilon, **SKEW)
    sampler = dpk.exact_sampler(mechanism)
    assert abs(sampler.variance_cost) < 1e-3
    assert float(sampler.certificate.slope) == pytest.approx(mechanism.window_mass, rel=2e-3)
    ends = sampler.certificate.lowest, sampler.certificate.highest
    step = float(sampler.table.report_step)
    np.testing.assert_allclose(
        [float(e) for e in ends], mechanism.output_interval, atol=0.02 * (20 * mechanism.half_width) + step
    )


def test_a_window_too_narrow_for_a_table_is_refused() -> None:
    with pytest.raises(CertificateError, match="no table"):
        dpk.exact_sampler(dpk.square_wave(epsilon=20.0, **UNIT))


def test_reports_are_of_the_table() -> None:
    """A chi-squared test of 400,000 exact reports at a fixed key, and of the float kernel's against the same cells."""
    mechanism = dpk.square_wave(epsilon=1.0, **SKEW)
    sampler = dpk.exact_sampler(mechanism)
    x = np.full(400_000, mechanism.lower + 0.3 * (mechanism.upper - mechanism.lower))
    reports = dpk.perturb(x, sampler, key=dpk.key_from_bytes(bytes(range(32))))
    codes = np.rint((reports - float(sampler.certificate.lowest)) / float(sampler.table.report_step)).astype(int)
    position = 0.3 * sampler.table.last_row
    row, f = int(position), position - int(position)
    p = ((1 - f) * sampler.table.row(row) + f * sampler.table.row(row + 1)) / float(sampler.table.total)
    assert stats.chisquare(np.bincount(codes, minlength=len(p)), 400_000 * p).pvalue > 1e-6
    simulated = dpk.perturb(x, mechanism, exact=False, key=dpk.simulation_key(1))
    assert stats.ks_2samp(reports, simulated).pvalue > 1e-6


# What the certificate says


def certificate() -> Any:
    return SquareWaveCertificate.of(small(1.0, None)[1], 1.0)


def test_no_mean_is_claimed() -> None:
    payload = certificate().to_dict()
    assert "mean_error" not in payload
    assert 0 < Fraction(payload["slope"]) < 1
    assert "biased" in payload["covers"]
    assert "not the input" in str(certificate())
    certificate_read = dpk.Certificate.from_dict(json.loads(json.dumps(payload)))
    assert certificate_read.to_dict() == payload
    assert type(certificate_read) is type(certificate())


def test_a_table_is_placed_before_it_is_certified() -> None:
    placed = small(1.0, None)[1]
    certified = SquareWaveCertificate.of(dataclasses.replace(placed, is_contracted=False), 1.0)
    assert certified.to_dict() == certificate().to_dict()
    assert SquareWaveCertificate.from_dict(certified.to_dict()).slope == placed.slope < 1


def tampered(table: WindowTable, name: str, at: int, by: int) -> WindowTable:
    weights = getattr(table, name).astype(np.int64)
    weights[at] += by
    return dataclasses.replace(table, **{name: weights.astype(np.uint64)})


def test_planted_faults_are_refused() -> None:
    table = small(1.0, None)[1]
    with pytest.raises(CertificateError, match="total"):
        SquareWaveCertificate.of(tampered(table, "base", 3, 1), 1.0)
    moved = tampered(tampered(table, "base", 3, -1), "base", 4, 1)
    with pytest.raises(CertificateError, match=r"mean|epsilon"):
        SquareWaveCertificate.of(moved, 2.0)
    with pytest.raises(CertificateError, match="epsilon: a ratio is"):
        SquareWaveCertificate.of(table, 0.99)
    leaning = tampered(tampered(table, "window", 0, -9), "window", 7, 9)
    with pytest.raises(CertificateError, match="mean: a row is off"):
        SquareWaveCertificate.of(leaning, 2.0)
    impossible = dataclasses.replace(table, base=np.zeros_like(table.base), bits=16)
    with pytest.raises(CertificateError, match=r"total|support"):
        SquareWaveCertificate.of(impossible, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"slope": "1/2"},
        {"kind": "window"},
        {"mean_error": "0"},
        {"realised_epsilon": 0.5},
        {"covers": "everything"},
        {"epsilon": 0.9},
        {"lowest": "0"},
    ],
)
def test_forged_forms_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CertificateError):
        dpk.Certificate.from_dict({**certificate().to_dict(), **change})


def test_one_of_an_unbiased_table_does_not_pass_for_it() -> None:
    table = small(1.0, None)[1]
    unbiased = WindowCertificate.of(WindowTable(table.base, table.window, table.bits, table.lower, table.upper), 1.0)
    payload = unbiased.to_dict()
    with pytest.raises(CertificateError):
        dpk.Certificate.from_dict({**payload, "kind": certificate().kind})
    assert float(unbiased.lowest) < float(certificate().lowest)


def test_biased_parts_are_refused() -> None:
    biased = dpk.square_wave(epsilon=1.0, lower=-1.0, upper=1.0)
    unbiased: Any = dpk.piecewise(epsilon=1.0, lower=-1.0, upper=1.0)
    with pytest.raises(ValueError, match="first: SquareWave is biased"):
        dpk.Mixture(biased, unbiased, 0.5)
    with pytest.raises(ValueError, match="coordinate: SquareWave is biased"):
        dpk.Multivariate(biased, -1.0, 1.0, 3, 1)
    with pytest.raises(CertificateError, match="mixture: SquareWaveCertificate"):
        MixtureCertificate(certificate(), certificate(), 1 << 31)
    with pytest.raises(CertificateError, match="coordinate: SquareWaveCertificate"):
        MultivariateCertificate(certificate(), 3, 1)


@pytest.mark.parametrize("make", [lambda m: m, dpk.exact_sampler])
def test_the_mean_of_its_reports_is_not_estimated(make: Any) -> None:
    mechanism = make(dpk.square_wave(epsilon=1.0, **UNIT))
    with pytest.raises(ValueError, match="square wave is biased"):
        dpk.estimate_mean(np.array([0.5, 0.7]), mechanism)


# Its privacy


@over(WAVES)
def test_its_profile_is_that_of_the_piecewise_mechanism_of_its_width(m: Any) -> None:
    assert accountants.epsilon(m) == pytest.approx(m.epsilon, rel=1e-9)
    for epsilon in (0.0, 0.3 * m.epsilon, 0.9 * m.epsilon):
        # By hand, for the two ends: in the one window but not in the other the densities are E q and q.
        E, b = math.exp(m.epsilon), m.half_width
        apart = min(2 * b, 1.0) * (E - math.exp(epsilon)) / (2 * b * E + 1)
        assert accountants.delta(m, epsilon) == pytest.approx(apart, rel=1e-9)
    assert accountants.delta(m, m.epsilon * 1.001) == 0


@pytest.mark.thorough
def test_composed_and_shuffled() -> None:
    mechanism = dpk.square_wave(epsilon=2.0, **SKEW)
    twin = dpk.composite(
        "uniform", epsilon=2.0, width=4 * mechanism.half_width / (1 + 2 * mechanism.half_width), **SKEW
    )
    assert accountants.guarantee(mechanism).repeat(5).epsilon(1e-6) == pytest.approx(
        accountants.guarantee(twin).repeat(5).epsilon(1e-6), rel=1e-9
    )
    sampler = dpk.exact_sampler(mechanism)
    assert accountants.shuffled(sampler, 10_000).epsilon(1e-6) < 0.2
    assert accountants.shuffled(sampler, 10_000).epsilon(1e-6) == pytest.approx(
        accountants.shuffled(twin, 10_000).epsilon(1e-6), rel=1e-2
    )
    assert accountants.delta(sampler, 1.0) == pytest.approx(accountants.delta(mechanism, 1.0), rel=1e-3)
    assert accountants.epsilon(sampler) <= 2.0


# The command


def test_the_command_releases_and_verifies(run: Run) -> None:
    np.save("in.npy", np.linspace(0, 100, 5001))
    options = ["--mechanism", "square-wave", "--epsilon", "1", "--lower", "0", "--upper", "100"]
    done = run("perturb", "in.npy", "out.npy", *options)
    assert done.code == 0, done.err
    sidecar = full_certificates(json.loads(Path("out.npy.json").read_text()))
    assert sidecar["columns"][0]["certificate"]["kind"] == "placed window"
    assert run("certify", "--verify", "out.npy.json").code == 0
    reports = np.load("out.npy")
    assert -26 < reports.min() < -20
    assert run("perturb", "in.npy", "wide.npy", *options, "--half-width", "0.5").code == 0
    assert np.load("wide.npy").min() < -40
    assert "largest_bias" in json.loads(run("account", *options[1:2], *options[2:], "--json").out)
    assert "biased" in run("certify", *options).out


def test_a_forged_sidecar_fails(run: Run) -> None:
    np.save("in.npy", np.linspace(0, 100, 100))
    options = ["--mechanism", "square-wave", "--epsilon", "1", "--lower", "0", "--upper", "100"]
    assert run("perturb", "in.npy", "out.npy", *options).code == 0
    sidecar = json.loads(Path("out.npy.json").read_text())
    sidecar["columns"][0]["parameters"]["half_width"] = 0.3
    Path("out.npy.json").write_text(json.dumps(sidecar))
    assert_refused(run("certify", "--verify", "out.npy.json"), 4, "has the parameters", "half_width")


# What its reports say


@pytest.mark.thorough
def test_estimates_correct_its_bias() -> None:
    """Mean, variance and median are in their intervals (false alarms: 3e-9); the bias alone would be far outside."""
    x = np.random.default_rng(4).beta(5, 2, 100_000) * 20 - 3
    mechanism = dpk.square_wave(epsilon=2.0, **SKEW)
    estimate = dpk.estimate(dpk.perturb(x, mechanism, key=dpk.key_from_bytes(bytes(range(32)))), mechanism)
    estimates = [(estimate.mean, x.mean()), (estimate.variance, x.var()), (estimate.quantile(0.5), np.median(x))]
    for functional, truth in estimates:
        low, high = functional.interval(1 - 1e-9)
        assert low <= truth <= high
    low, high = estimate.mean.interval(1 - 1e-9)
    assert abs(mechanism.bias(x.mean())) > 1.5 * (high - low)
