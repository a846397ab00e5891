"""No certificate or sidecar that anyone can write is accepted with a claim that is not so, nor costs much to refuse.

What is so is decided by ``independent``, which shares nothing with the package. Forgers may know the package's code:
besides forms with any change, those are tried whose facts the package itself computes from changed integers and claims.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from independent import KEYS, certificate_kind, decimal, false_claims
from mutations import mutated
from small_certificates import NAMES, RECORDED, text

import dpkernels as dpk
from dpkernels.bounded_json import parse_json
from dpkernels.cli.perturb.verify import verify
from dpkernels.decimals import rational
from dpkernels.exact.bounded.rows import RowCertificate
from dpkernels.exact.bounded.window_construction import two_point_table, windowed_table
from dpkernels.exact.bounded.windows import WindowCertificate
from dpkernels.exact.certificate import _KINDS, CertificateError, log_upper_bound
from dpkernels.exact.registry import Certificate, MultivariateCertificate

PHASES = (Phase.generate,)
QUICK = settings(max_examples=60, phases=PHASES, deadline=None, derandomize=True, database=None)


def accepted(form):
    """What is accepted of a form, as it is and with the facts that the package computes of its integers and claims."""
    with suppress(CertificateError):
        Certificate.from_dict(json.loads(json.dumps(form)))
        yield form
    with suppress(KeyError, ValueError, TypeError, AttributeError, ArithmeticError, StopIteration):
        yield _KINDS[certificate_kind(form)].certified(json.loads(json.dumps(form))).to_dict()


def assert_true(form):
    for one in accepted(form):
        assert false_claims(json.loads(json.dumps(one))) == []


def sidecar_lies(form):
    """What a release's file claims that is not so: of its columns, and of all together."""
    columns, values = form["columns"], form["values_per_row"]
    certificates = [column["certificate"] for column in columns]
    wrong = [f"{n}: {claim}" for n, one in enumerate(certificates) for claim in false_claims(one)]
    sums = {
        name: values * sum((Fraction(str(one.get(name, 0))) for one in certificates), Fraction(0))
        for name in ("epsilon", "realised_epsilon", "delta", "realised_delta")
    }
    slack = 1 + Fraction(1, 10**12)
    wrong += [name for name in ("epsilon", "delta") if decimal(float(form[name])) != sums[name]]
    wrong += [name for name in sums if decimal(float(form[name])) * slack < sums[name]]
    for column, one in zip(columns, certificates, strict=True):
        for name in {"epsilon", "delta", "sensitivity", "lower", "upper"} & column["parameters"].keys():
            table = one.get("table") or one.get("row_table") or {}
            truth = one[name] if name in one else table[name]
            wrong += [f"parameter {name}"] if column["parameters"][name] != truth else []
    return wrong


def assert_sidecar_true(form, folder):
    path = folder / "out.csv.json"
    path.write_text(json.dumps(form))
    try:
        verify(path)
    except ValueError:
        return
    assert sidecar_lies(parse_json(path.read_text())) == []


def test_the_verifier_knows_every_kind():
    # A batch is a list of certificates, which the verifier reads one by one. Tests of shared noise enumerate its own.
    assert set(KEYS) == set(_KINDS) - {"batch", "shared noise"}
    assert {certificate_kind(json.loads(text(name))) for name in NAMES} == set(KEYS)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_so_is_accepted(name):
    """By the package and by the verifier; and what is written of it again is of today."""
    payload = json.loads(text(name))
    assert false_claims(payload) == []
    again = Certificate.from_dict(payload).to_dict()
    assert false_claims(again) == []
    assert Certificate.from_dict(again).to_dict() == again
    assert Certificate.from_dict(again).to_json() == json.dumps(again)


def test_a_sum_rounded_to_the_nearest_float_is_refused():
    """Three times this budget is no float: the certificate states the next float above it."""
    made = next(
        certificate
        for n in range(100)
        if rational((certificate := sampled(0.3 + n / 977)).epsilon) > 3 * rational(certificate.coordinate.epsilon)
        and float(3 * rational(certificate.coordinate.epsilon)) < certificate.epsilon
    )
    with pytest.raises(CertificateError, match="epsilon: the payload says"):
        Certificate.from_dict(made.to_dict() | {"epsilon": float(3 * rational(made.coordinate.epsilon))})


def sampled(epsilon):
    table = two_point_table(dpk.duchi(epsilon=epsilon, lower=-1.0, upper=1.0), 32)
    return MultivariateCertificate(WindowCertificate.of(table, epsilon), 5, 3)


@pytest.mark.parametrize("name", NAMES)
def test_the_verifier_sees_smaller_claims(name):
    """Lower budgets, deltas and realised facts than are so, in forms of every kind."""
    payload = json.loads(text(name))
    smaller = {"epsilon": 0.02, "realised_epsilon": 1e-3, "delta": 1e-9, "realised_delta": "1/1000000", "ratio": "1"}
    smaller |= {"worst_variance": "1/1000000", "lowest": "7", "cells": 0, "shift": 0, "covers": "all", "sampled": 0}
    if certificate_kind(payload) == "vector noise":
        del smaller["shift"]  # The verifier does not look at it, but at what it is for.
    for claim, value in smaller.items():
        if claim in payload:
            assert false_claims({**payload, claim: value}), claim
    assert false_claims({**payload, "extra": 1})


@pytest.mark.lengthy
@pytest.mark.quick("window", "mixture", "rows", "noise on a lattice", "vector noise", "multivariate")
@QUICK
@given(st.data())
@pytest.mark.parametrize("name", NAMES)
def test_no_changed_certificate_is_accepted_with_a_claim_that_is_not_so(name, data):
    assert_true(data.draw(mutated(json.loads(text(name)))))


@settings(QUICK, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_changed_sidecar_is_accepted_with_a_claim_that_is_not_so(tmp_path, data):
    assert_sidecar_true(data.draw(mutated(RECORDED["sidecar"])), tmp_path)


def test_a_true_sidecar_is_verified(tmp_path):
    form = RECORDED["sidecar"]
    (tmp_path / "out.csv.json").write_text(json.dumps(form))
    lines, _ = verify(tmp_path / "out.csv.json")
    assert sum(line.startswith("ok: ") for line in lines) == 2
    assert "total epsilon a row" in lines[2]
    assert sidecar_lies(form) == []
    assert sidecar_lies({**form, "epsilon": 1.0})


# Forms and files that are known to be dangerous.


def forged(form, **changes):
    return {**form, **changes}


def window_form(name="window"):
    return json.loads(text(name))


def overflowing():
    """4,096 codes of 65 bits in all, of which the window's one has half: sums modulo 2^64 hide a ratio of 4,097.

    This was accepted as epsilon 0.01.
    """
    form = RECORDED["accepted once"]
    (weight, codes), ((window, _),) = form["table"]["base"][0], form["table"]["window"]
    assert Fraction(weight + window, weight) > 4096
    assert (weight + window) % (1 << 64) <= weight
    assert codes * weight + window == 1 << 65
    return form


def with_table(name, part="table", **changes):
    payload = json.loads(text(name))
    return {**payload, part: {**payload[part], **changes}}


def swapped_laplace():
    """Two weights of a wide table exchanged: it rises after it falls, and 4,096 shifts would be tried."""
    payload = dpk.exact_sampler(dpk.laplace(epsilon=1.0)).certificate.to_dict()
    w = payload["noise"]["weights"]
    at = len(w) // 2 - 100
    assert w[at] < w[at + 1]
    w[at], w[at + 1] = w[at + 1], w[at]
    return payload


def deep(name, depth=100_000):
    form = {}
    for _ in range(depth):
        form = {"coordinate": form, "dimensions": 1, "sampled": 1, "kind": "multivariate"}
    return form


DANGEROUS = {
    "sums that wrap": overflowing,
    "bits of 10 GB": lambda: with_table("window", bits=40_000_000_000),
    "bits of 10 GB, rows": lambda: with_table("rows", "row_table", bits=40_000_000_000),
    "bits of 10 GB, noise": lambda: with_table("noise", "noise", bits=40_000_000_000),
    "63 bits": lambda: with_table("window", bits=63),
    "bits that are true": lambda: with_table("window", bits=True),
    "a long run": lambda: with_table("window", base=[[1, 1 << 40]]),
    "many long runs": lambda: with_table("window", base=[[1, 1 << 19]] * 100),
    "a negative run": lambda: with_table("window", base=[[1, 1 << 40], [1, 1 - (1 << 40)]]),
    "a run of three": lambda: with_table("window", base=[[1, 1, 1]]),
    "runs of runs": lambda: with_table("window", base=[[[1], 1]]),
    "no runs": lambda: with_table("window", base=[]),
    "many rows": lambda: with_table("rows", "row_table", weights=[[1, 1]] * (1 << 20), places=[0, 1]),
    "many columns": lambda: with_table("rows", "row_table", weights=[[1] * (1 << 21)] * 2, places=[*range(1 << 21)]),
    "far places": lambda: with_table("rows", "row_table", places=[-(10**300), *range(9), 10**300]),
    "a far cell": lambda: with_table("noise", "noise", grain=10**18),
    "an upside-down interval": lambda: with_table("window", lower=1.0, upper=-1.0),
    "no interval": lambda: with_table("window", lower=1.0, upper=1.0),
    "an infinite interval": lambda: with_table("window", upper=math.inf),
    "a swapped pair": swapped_laplace,
    "many dimensions": lambda: forged(window_form("multivariate"), dimensions=10**4000),
    "many reports": lambda: forged(window_form("multivariate"), sampled=10**4000, dimensions=10**4000),
    "deep": lambda: deep("multivariate"),
    "a claim too many": lambda: forged(window_form(), delta=0.0),
    "another kind": lambda: forged(window_form(), kind="noise"),
    "no kind": lambda: forged(window_form(), kind=None),
    "a list for a kind": lambda: forged(window_form(), kind=["window"]),
    "an integer for a float": lambda: forged(window_form(), epsilon=2),
    "a float for an integer": lambda: forged(window_form(), codes=32.0),
    "true for 1": lambda: forged(window_form("multivariate, mixture"), sampled=True),
    "other words": lambda: forged(window_form(), covers=window_form()["covers"] + " And everything else."),
    "a list": lambda: [window_form()],
    "text": lambda: "window",
}


@pytest.mark.lengthy
@pytest.mark.parametrize("danger", DANGEROUS)
def test_dangerous_forms_are_refused_at_once(danger):
    """In 10 s of this processor's time and 200 MB: without bounds these take minutes and gigabytes."""
    form = DANGEROUS[danger]()
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(CertificateError):
        Certificate.from_dict(form)
    spent, most = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spent < 10
    assert most < 200e6


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "[" * 200_000 + "]" * 200_000,
        lambda text: '{"a":' * 200_000 + "1" + "}" * 200_000,
        lambda text: text.replace('"rows": 7', '"rows": ' + "7" * 100_000),
        lambda text: text.replace('"rows": 7', '"rows": 7, "rows": 7'),
        lambda text: text.replace('"rows": 7', '"rows": 7, "columns": []'),
        lambda text: text.replace('"clip": false', '"clip": NaN'),
        lambda text: text.replace('"clip": false', '"clip": 1e999'),
        lambda text: text.replace('"format": 3', '"format": true'),
        lambda text: text.replace('"format": 3', '"format": 3.0'),
        lambda text: text.replace('"values_per_row": 1', '"values_per_row": true'),
        lambda text: text.replace('"values_per_row": 1', '"values_per_row": ' + "9" * 31),
        lambda text: text[:-10],
        lambda text: "",
        lambda text: "null",
        lambda text: text.replace("csv", "\udcff"),
        lambda text: text.encode("utf-16").decode("latin-1"),
    ],
)
def test_dangerous_files_are_refused(change, tmp_path):
    path, original = tmp_path / "out.csv.json", json.dumps(RECORDED["sidecar"] | {"note": "csv"})
    changed = change(original)
    assert changed != original
    path.write_bytes(changed.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"."):
        verify(path)


def test_a_file_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("dpkernels.bounded_json.MAX_BYTES", 1000)
    path = tmp_path / "out.csv.json"
    path.write_text(json.dumps(RECORDED["sidecar"]))
    with pytest.raises(ValueError, match="file: has more than 1000 bytes"):
        verify(path)


def test_a_table_with_a_whole_row_on_one_code_is_not_wrapped():
    """The sum 2^64 of a code is no 0: what is impossible for some inputs is named, and nothing else."""
    table = windowed_table(dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0), bits=64, codes=64)
    base = np.zeros(3, np.uint64)
    base[0] = 1
    window = np.array([(1 << 64) - 1], np.uint64)
    whole = type(table)(base, window, 64, 0.0, 1.0)
    high, low = whole.extremes()
    assert (high.tolist(), low.tolist()) == ([1 << 64, (1 << 64) - 1, (1 << 64) - 1], [1, 0, 0])
    with pytest.raises(CertificateError, match="support"):
        WindowCertificate.of(whole, 1.0)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 1 << 64), st.integers(0, 1 << 64))
def test_a_realised_epsilon_is_the_least_float_above(low, more):
    ratio = Fraction(low + more, low)
    least = log_upper_bound(ratio)
    with mpmath.workdps(60):
        truth = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert mpmath.mpf(repr(least)) >= truth - mpmath.mpf(10) ** -35
        assert least == 0 or mpmath.mpf(repr(math.nextafter(least, 0.0))) < truth


@pytest.mark.parametrize("apart", [1, 2, 5, 100])
def test_rows_are_compared_with_all_their_neighbours(apart):
    """The running extremes of a row table against every pair, one by one."""
    table = dpk.exact_sampler(dpk.optimal(epsilon=1.0, lower=-1.0, upper=1.0, points=9, outputs=15)).table
    high, low = table.extremes(apart)
    rows, width = table.weights, min(apart, table.last_row) + 1
    for i in range(len(high)):
        np.testing.assert_array_equal(high[i], rows[i : i + width].max(axis=0))
        np.testing.assert_array_equal(low[i], rows[i : i + width].min(axis=0))
    assert len(high) == table.rows - width + 1
    assert RowCertificate.of(table, 1.0).cells == table.last_row


# The same at length, in a process of its own with limits that end it.


def attack(examples):
    """So many changed forms of every kind and files, in turns; each in 10 s, all in 500 MB more than at the start."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder, slowest = Path(sys.argv[1]), [0.0]
    long = settings(QUICK, max_examples=examples, suppress_health_check=list(HealthCheck))

    @long
    @given(st.data())
    def every(data):
        name = data.draw(st.sampled_from([*NAMES, "sidecar"]))
        form = data.draw(mutated(RECORDED["sidecar"] if name == "sidecar" else json.loads(text(name))))
        begin = time.process_time()
        with suppress(CertificateError):
            Certificate.from_dict(form)
        slowest[0] = max(slowest[0], time.process_time() - begin)
        assert_sidecar_true(form, folder) if name == "sidecar" else assert_true(form)

    every()
    spent = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"slowest {slowest[0]:.2f} s, {spent:.0f} MB more")
    assert slowest[0] < 10
    assert spent < 500


@pytest.mark.slow
def test_10000_changed_forms_and_files(tmp_path):
    code = "import test_forged_certificates as test; test.attack(10_000)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (3600, 3600)),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_another_type_are_refused(name):
    """A float or a truth value equals an integer in Python, and reads as something else to those who only read."""
    payload = json.loads(text(name))
    for key, value in payload.items():
        if type(value) is int:
            others = [float(value), *([True] if value == 1 else [])]
        elif type(value) is float and value.is_integer():
            others = [int(value)]
        else:
            continue
        for other in others:
            with pytest.raises(CertificateError):
                Certificate.from_dict({**payload, key: other})
