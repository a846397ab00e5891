"""Tables whose weights go on in a second word: draws, moments, distance from the normal law, certificates, faults."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import jax
import mpmath
import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.noise.certificate import VectorClaim, certify_noise, certify_vector, gaussian_distance
from dpkernels.exact.noise.construction import fine_gaussian_table
from dpkernels.exact.noise.remainder import Remainder
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.table import NoiseTable

WORDS16 = np.arange(1 << 16, dtype=np.uint16)


def small_table(rest=5000, further=(30000, 5000, 20000, 10000, 536), first=-2):
    """Return a table of 16 bits on three codes, with a remainder on five."""
    weights = np.array([20000, (1 << 16) - rest - 40000, 20000], np.uint64)
    remainder = Remainder(rest, np.array(further, np.uint64), first, 16)
    return NoiseTable(weights, -1, 16, 0, 1, remainder=remainder)


def sampler_of(table):
    vector = dpk.on_vectors(
        dpk.gaussian(sigma=32.0, sensitivity=1.0, epsilon=1.0, delta=0.5),
        dimensions=1,
        norm="l2",
        delta=0.5,
        lattice=1.0,
    )
    certificate = certify_vector(fine_gaussian_table(32), VectorClaim(1.0, 0.5, 1.0, "l2", 1, 1.0, 32.0))
    return ExactNoise(vector, dataclasses.replace(certificate, table=table))


def probabilities(table):
    numbers = table.remainder.combined_weights(table.first, table.outcomes)
    return {table.remainder.first + j: Fraction(n, 1 << 2 * table.bits) for j, n in enumerate(numbers)}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.lengthy)])
def test_every_pair_of_words_counts(compiled):
    """All first words that decide, and all second words of one that does not, by NumPy and by JAX."""
    table = small_table()
    sampler, kernel = sampler_of(table), table.kernel()(WORDS16)
    assert [int((kernel == code).sum()) for code in (-2, -1, 0, 1)] == [5000, *table.outcomes]
    assert (sampler.are_incomplete(WORDS16) == np.flatnonzero(kernel == -2)).all()

    def reports(first, second):
        words = {0: first, 1: second}
        x, rounding = first * 0.0, (first * 0).astype(np.uint32)
        if not compiled:
            return sampler.complete_reports(x, first, rounding, noise_words=lambda turn: words[turn])
        return sampler.complete_reports(
            x, first, rounding, noise_words=lambda turn: jax.lax.select(turn == 0, first, second)
        )

    program = jax.jit(reports) if compiled else reports
    with jax.enable_x64(True):
        decided = np.asarray(program(WORDS16, WORDS16[::-1].copy())).astype(int)
        further = np.asarray(program(np.full(1 << 16, WORDS16[kernel == -2][7]), WORDS16)).astype(int)
    assert [int((decided[kernel == code] == code).sum()) for code in (-1, 0, 1)] == table.outcomes
    assert np.bincount(further + 2).tolist() == table.remainder.weights.tolist()


def test_moments_and_ends_have_the_remainder():
    table = small_table()
    law = probabilities(table)
    assert sum(law.values()) == 1
    mean = sum(code * p for code, p in law.items())
    assert table.mean == mean != 0
    assert table.variance == sum(code**2 * p for code, p in law.items()) - mean**2
    assert table.ends == (-2, 2)
    finite = table.finite
    assert finite.total == 1 << 16
    assert finite.remainder is None
    for code in range(1, 3):  # Either side weighs at least as much as it truly does.
        for sign in (1, -1):
            side = sum(p for c, p in law.items() if sign * c >= code)
            found = sum(w for j, w in enumerate(finite.outcomes) if sign * (finite.first + j) >= code)
            assert Fraction(found, 1 << 16) >= side


@pytest.mark.parametrize("sigma", [64, pytest.param(4096, marks=pytest.mark.lengthy)])
def test_the_table_is_the_normal_law_to_112_bits(sigma):
    """At codes in the table, in the remainder alone, and at their ends."""
    table = fine_gaussian_table(sigma)
    law, unit = probabilities(table), table.rest
    codes = {
        1,
        table.last,
        table.last + 1,
        table.ends[1],
        *np.random.default_rng(0).integers(1, table.ends[1], 40).tolist(),
    }
    with mpmath.workdps(70):
        for code in sorted(codes):
            mass = mpmath.ncdf((-code + mpmath.mpf(1) / 2) / sigma) - mpmath.ncdf((-code - mpmath.mpf(1) / 2) / sigma)
            for sign in (1, -1):
                p = mpmath.mpf(law[sign * code].numerator) / law[sign * code].denominator
                assert (
                    abs(p - mass) <= unit * mpmath.mpf(2) ** -128 + mpmath.mpf(42) / 92897280 / mpmath.mpf(sigma) ** 9
                )
    assert gaussian_distance(table, Fraction(sigma)) < (2.0**-96 if sigma == 4096 else 1e-18)


@pytest.mark.lengthy
def test_the_distance_is_that_of_an_independent_sum():
    """Of all cells at 32 cells a standard deviation, where the series of cell masses is good to 1e-17."""
    table = fine_gaussian_table(32)
    with mpmath.workdps(60):
        edge = [mpmath.ncdf((j - mpmath.mpf(1) / 2) / 32) for j in range(table.ends[0], table.ends[1] + 2)]
        law = probabilities(table)
        over = mpmath.fsum(
            max(0, mpmath.mpf(p.numerator) / p.denominator - edge[j + 1] + edge[j]) for j, p in enumerate(law.values())
        )
        found = gaussian_distance(table, Fraction(32))
        assert over <= mpmath.mpf(found.numerator) / found.denominator <= over + mpmath.mpf(10) ** -16


def certificate(table, sigma=64):
    return certify_vector(table, VectorClaim(1.0, 0.2, float(sigma), "l2", 10**6, 1.0, float(sigma)))


def test_a_certificate_is_verified_again_from_its_json():
    made = certificate(fine_gaussian_table(64))
    payload = json.loads(made.to_json())
    again = Certificate.from_dict(payload)
    assert again.realised_delta == made.realised_delta
    assert again.worst_variance == made.worst_variance
    assert "2^128 with the remainder" in str(again)
    for name, fault in {
        "total": lambda r: r["weights"].__setitem__(5, r["weights"][5] + 1),
        "remainder": lambda r: r.__setitem__("first", r["first"] + 1000),
        "delta": lambda r: r.__setitem__("weights", [1 << 63, *[0] * (len(r["weights"]) - 2), 1 << 63]),
    }.items():
        spoilt = json.loads(made.to_json())
        fault(spoilt["noise"]["remainder"])
        if name == "delta":  # At a distance that a million coordinates do not pardon.
            spoilt["dimensions"], spoilt["delta"] = 1 << 31, 0.127
        with pytest.raises(CertificateError, match=name):
            Certificate.from_dict(spoilt)
    with pytest.raises(CertificateError, match="total"):
        certificate(dataclasses.replace(fine_gaussian_table(64), remainder=None))


def test_only_gaussian_vectors_have_a_remainder():
    table = fine_gaussian_table(32)
    with pytest.raises(CertificateError, match="remainder, which only Gaussian noise of vectors"):
        certify_noise(table, 1.0, 1.0, 0.5)
    with pytest.raises(CertificateError, match="remainder, which only Gaussian noise"):
        certify_vector(table, VectorClaim(1.0, 0.5, 1.0, "l1", 3, 1.0, None))
