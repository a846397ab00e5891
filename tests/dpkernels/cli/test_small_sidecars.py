"""Sidecars hold the integers of noise packed: small, exact, and verified as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_helpers import Run, assert_refused, command

from dpkernels.cli.perturb.sidecar import parse_sidecar
from dpkernels.exact.packed import json_digest, pack, unpack, with_references

run = pytest.fixture(command, name="run")

NOISE = ["--sensitivity", "1", "--epsilon", "0.5"]


def released(run: Run, *more: str, mechanism: str = "laplace", out: str = "out") -> dict[str, Any]:
    np.save("in.npy", np.array([3.0, 5.0, 9.0, 1.0]))
    done = run("perturb", "in.npy", f"{out}.npy", "--mechanism", mechanism, *NOISE, *more)
    assert done.code == 0, done
    form: dict[str, Any] = json.loads(Path(f"{out}.npy.json").read_text())
    return form


def save(form: dict[str, Any]) -> None:
    Path("out.npy.json").write_text(json.dumps(form))


def verify(run: Run) -> Any:
    return run("certify", "--verify", "out.npy.json")


def test_four_counts_have_a_small_sidecar(run: Run) -> None:
    Path("in.csv").write_text("a,b,c,d\n1,2,3,4\n")
    columns = [word for name in "abcd" for word in ("--column", name)]
    assert run("perturb", "in.csv", "out.csv", *columns, "--mechanism", "laplace", *NOISE).code == 0
    assert Path("out.csv.json").stat().st_size <= 10_000
    assert run("certify", "--verify", "out.csv.json").code == 0


def test_a_full_certificate_has_the_same_integers(run: Run) -> None:
    released(run)
    full = released(run, "--full-certificate", out="full")
    assert not full.keys() & {"certificates", "integers"}
    assert parse_sidecar(Path("out.npy.json").read_text())["columns"] == full["columns"]
    assert len(full["columns"][0]["certificate"]["noise"]["weights"]) > 1000
    assert run("certify", "--verify", "full.npy.json").code == verify(run).code == 0


def test_sidecars_of_the_format_before_are_read(run: Run) -> None:
    form = released(run, "--full-certificate")
    save(form | {"format": 3})
    assert verify(run).code == 0
    assert run("estimate", "out.npy", "--lower", "0", "--upper", "9").code == 0
    form["columns"][0]["certificate"]["noise"]["weights"][5] += 1
    save(form | {"format": 3})
    assert_refused(verify(run), 4)


def test_other_integers_are_refused(run: Run) -> None:
    form = released(run)
    (digest,) = form["certificates"]
    certificate = form["certificates"][digest]
    name = certificate["noise"]["weights"]["integers"]
    weights = unpack(form["integers"][name])
    weights[5] += 1
    integers = {**form["integers"], name: pack(weights)}
    save(form | {"integers": integers})
    assert_refused(verify(run), 4, "have another SHA-256")
    for wrong in ({}, {name: 1}, [], {**form["integers"], "0": pack([1])}):
        save(form | {"integers": wrong})
        assert_refused(verify(run), 4, "integers")
    for wrong in ({}, {digest: 1}, [], {digest: {**certificate, "epsilon": 0.25}}, {**form["certificates"], "0": {}}):
        save(form | {"certificates": wrong})
        assert_refused(verify(run), 4)
    # Other integers with hashes that are right: the certificate does not follow from them.
    plain = parse_sidecar(json.dumps(form))["columns"][0]["certificate"]
    plain["noise"]["weights"] = weights
    lists: dict[str, Any] = {}
    certificates = with_references({json_digest(plain): plain}, lists)
    columns = [{**form["columns"][0], "certificate": {"sha256": json_digest(plain)}}]
    save(form | {"certificates": certificates, "integers": lists, "columns": columns})
    assert_refused(verify(run), 4, "2^64")


def test_a_table_of_another_release_is_refused(run: Run) -> None:
    form = released(run)
    weaker = ["--mechanism", "laplace", "--sensitivity", "1", "--epsilon", "2"]
    assert run("perturb", "in.npy", "other.npy", *weaker).code == 0
    other = json.loads(Path("other.npy.json").read_text())
    columns = [{**form["columns"][0], "certificate": other["columns"][0]["certificate"]}]
    save({**other, "columns": columns, "output": form["output"]})
    assert_refused(verify(run), 4)
    save({**form, "columns": columns, "certificates": other["certificates"], "integers": other["integers"]})
    assert_refused(verify(run), 4)
    save(other)  # the sidecar of another output
    assert_refused(verify(run), 4, "sha256")
    save(form | {"format": 99})
    assert_refused(verify(run), 4, "this version reads formats 3 to 4")


@pytest.mark.parametrize("mechanism", ["gaussian", "staircase", "logistic", "student"])
def test_sidecars_of_all_noise_are_small(run: Run, mechanism: str) -> None:
    released(run, *(["--delta", "1e-6"] if mechanism == "gaussian" else []), mechanism=mechanism)
    assert Path("out.npy.json").stat().st_size <= 40_000
    assert verify(run).code == 0
