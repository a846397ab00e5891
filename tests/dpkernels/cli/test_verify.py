"""``certify --verify``: every claim of a sidecar is checked against its integers and its output, or is declared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from additive_commands import ADDITIVE, arguments
from command_helpers import AGE, Run, ages, assert_refused, command, write

import dpkernels as dpk
from dpkernels.cli.perturb import verify
from dpkernels.cli.perturb.grids import ReportGrid
from dpkernels.exact.certificate import CertificateError

run = pytest.fixture(command, name="run")


NOISE = ["--mechanism", "truncated-discrete-laplace", "--delta", "1e-2", "--sensitivity", "1", "--epsilon", "5"]


def released(run: Run) -> dict[str, Any]:
    lines = [f"p{n},{n % 90},{n % 7}.25,{1000 * n}" for n in range(50)]
    Path("in.csv").write_text("\n".join(["id,age,share,pay", *lines, ""]))
    columns = ["--column", "age", "--column", "pay", "--mechanism", "piecewise", *NOISE]
    given = ["--epsilon", "1", "--lower", "0", "--upper", "120", "--ledger", "l", "--budget", "9,0.1"]
    given += ["--rows", "different-people"]
    done = run("perturb", "in.csv", "out.csv", *columns[:6], *columns[6:-2], *given, *columns[-2:])
    assert done.code == 0, done.err
    return json.loads(Path("out.csv.json").read_text())


def checked(run: Run, form: dict[str, Any]) -> Any:
    Path("out.csv.json").write_text(json.dumps(form))
    return run("certify", "--verify", "out.csv.json")


def test_what_is_verified_and_what_is_declared(run: Run) -> None:
    released(run)
    done = run("certify", "--verify", "out.csv.json")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "ok: age, mechanism piecewise, epsilon 1; neighbours: any two in [0, 120]"
    noise = "mechanism truncated-discrete-laplace, epsilon 5, delta 0.01; neighbours: at most 1 apart"
    assert lines[1] == f"ok: pay, {noise}"
    assert lines[2].startswith("ok: total epsilon a row 6, delta 0.01; neighbours: ")
    result = "SHA-256 is right; every perturbed value is one that its mechanism can release"
    assert lines[3] == f"ok: out.csv, 50 rows; {result}"
    assert [line.split()[3] for line in lines[4:]] == [
        "clip",
        "missing",
        "decimals",
        "row_order",
        "not_kept",
        "versions",
        "ledger",
    ]
    assert lines[4].endswith("clip false: values outside their interval were refused")
    assert lines[6].endswith("decimals null: reports are not rounded")
    assert all(line.startswith("declared, not verified: ") for line in lines[4:])


def _column(at: int, **changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda form: form["columns"][at].update(changes)


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "rows": (lambda form: form.update(rows=51), "rows: the file says 51, out.csv has 50"),
    "rows as a truth": (lambda form: form.update(rows=True), "rows: True must be a whole number"),
    "a column's name": (_column(0, column="wage"), "column wage: out.csv has 0 columns of this name"),
    "a copied column's name": (_column(0, column="share"), "column share: row 0 (line 2) is no report of its table"),
    "one name for two": (_column(0, column="pay"), "is there twice"),
    "no name": (_column(0, column=None), "an array must be the only column"),
    "the mechanism's name": (_column(0, mechanism="duchi"), "mechanism: 'duchi' has the parameters"),
    "another of the same parameters": (_column(0, mechanism="optimal"), "mechanism: 'optimal' has"),
    "no mechanism": (_column(0, mechanism="magic"), "mechanism: 'magic' cannot be made"),
    "an option": (lambda form: form["columns"][1]["options"].update(epsilon=4.0), "mechanism: "),
    "a parameter": (lambda form: form["columns"][0]["parameters"].update(width=0.5), "has the parameters"),
    "the hash": (lambda form: form["output"].update(sha256="0" * 64), "output: sha256"),
    "the size": (lambda form: form["output"].update(bytes=3), "output: bytes"),
    "the output's columns": (lambda form: form["output"].update(columns=["id"]), "output: columns"),
    "values of a row": (lambda form: form.update(values_per_row=2), "epsilon: the file says"),
    "what was charged": (lambda form: form["ledger"].update(epsilon="1"), "ledger: epsilon: the file says 1"),
    "whom the rows are about": (lambda form: form["ledger"].update(rows="same-people"), "ledger: charged_rows: "),
    "nobody": (lambda form: form["ledger"].update(rows=None), "ledger: rows: None must say whom"),
    "no output": (lambda form: form.pop("output"), "not the sidecar"),
    "a column that is missing": (lambda form: form["columns"].pop(), "certificates: "),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_sidecars_are_refused(run: Run, forgery: str) -> None:
    change, words = FORGERIES[forgery]
    form = released(run)
    change(form)
    assert_refused(checked(run, form), 4, words)


@pytest.mark.parametrize("word", ["rows", "epsilon", "realised_epsilon", "neighbouring", "mechanism", "parameters"])
def test_a_forged_field_is_not_printed_whole(run: Run, word: str) -> None:
    """An error is one line that can be read, whatever a sidecar holds."""
    form = released(run)
    long = "x" * 5000 if word == "mechanism" else {"epsilon": 1.0, "lower": 0.0, "upper": 120.0, "long": "x" * 5000}
    (form["columns"][0] if word in ("mechanism", "parameters") else form)[word] = long
    refused = checked(run, form)
    assert refused.code == 4
    assert len(refused.err) < 1500


def test_a_changed_output_is_refused(run: Run) -> None:
    form = released(run)
    content = Path("out.csv").read_bytes()
    Path("out.csv").write_bytes(content.replace(b"p7,", b"p8,"))
    assert_refused(checked(run, form), 4, "output: sha256: the file says")
    Path("out.csv").write_bytes(content[:-9])
    assert_refused(checked(run, form), 4, "output: bytes: the file says")
    # Whoever changes both is refused where a report cannot be.
    content = Path("in.csv").read_bytes()
    Path("out.csv").write_bytes(content)
    form["output"] |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert_refused(checked(run, form), 4, "column age: row 0 (line 2) is no report of its table")


def test_without_the_output_it_says_what_is_not_verified_and_fails(run: Run) -> None:
    released(run)
    Path("out.csv").unlink()
    done = run("certify", "--verify", "out.csv.json")
    assert_refused(done, 4, "out.csv: is not there, so it could not be verified")
    assert done.out.startswith("ok: age, mechanism piecewise, epsilon 1;")
    assert "not verified: rows, values a row, the columns' names, the output's hash; out.csv is not there\n" in done.out


def test_a_mechanism_of_another_version_is_declared(run: Run) -> None:
    form = released(run)
    form["versions"]["dpkernels"] = "0.0.1"
    form["columns"][0]["mechanism"] = "duchi"
    done = checked(run, form)
    assert done.out.splitlines()[0].startswith("ok: age, mechanism duchi (declared, not verified), epsilon 1; ")


def test_unknown_claims_are_printed_as_declared(run: Run) -> None:
    done = checked(run, released(run) | {"anonymous": True})
    assert "declared, not verified: anonymous true\n" in done.out


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "1", "null", "[" * 100_000, '{"format": 3}', '{"replacing": 1}', "\xff"]
)
def test_what_is_no_sidecar_is_refused(run: Run, text: str) -> None:
    Path("out.csv.json").write_bytes(text.encode("latin-1"))
    assert_refused(run("certify", "--verify", "out.csv.json"), 4, "out.csv.json: is not the sidecar of a release")


def test_the_sidecar_of_a_run_that_was_killed_before_its_output_was_there(run: Run) -> None:
    form = released(run)
    Path("out.csv.json").write_text('{"replacing": null, ' + json.dumps(form)[1:])
    Path("out.csv").unlink()
    told = "out.csv.json: a run to out.csv was killed; its sidecar is there, its output is not"
    assert run("certify", "--verify", "out.csv.json") == (4, "", f"dpkernels: error: {told}\n")
    with pytest.raises(CertificateError, match=told):
        verify.verify(Path("out.csv.json"))


# Which numbers can be reports


def can_report(certificate: Any, values: np.ndarray) -> np.ndarray:
    return np.any([grid.can_report(values) for grid in ReportGrid.from_certificate(certificate)], axis=0)


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["piecewise", "hybrid", "duchi", "optimal", "triangle-quartic"])
def test_reports_of_bounded_mechanisms_are_known_and_others_are_not(name: str, dtype: Any) -> None:
    sampler = dpk.exact_sampler(dpk.MECHANISMS[name](epsilon=1.0, lower=-3.0, upper=120.0))
    values = np.linspace(-3, 120, 5000).astype(dtype)
    assert can_report(sampler.certificate, dpk.perturb(values, sampler)).all()
    assert can_report(sampler.certificate, values).mean() < 0.02
    wild = np.array([np.nan, np.inf, -np.inf, 1e9, -1e9], dtype)
    assert not can_report(sampler.certificate, wild).any()


@pytest.mark.lengthy
@pytest.mark.parametrize("case", ["laplace", "gaussian", "discrete-laplace", "staircase"])
def test_reports_of_noise_are_known_and_others_are_not(case: str) -> None:
    sampler = dpk.exact_sampler(ADDITIVE[case][1]())
    values = ages()
    assert can_report(sampler.certificate, dpk.perturb(values, sampler)).all()
    assert can_report(sampler.certificate, values).mean() < 0.02
    assert not can_report(sampler.certificate, np.array([np.nan, np.inf])).any()


def test_certificates_of_vectors_are_refused() -> None:
    sampler = dpk.exact_sampler(dpk.multivariate(epsilon=1.0, lower=0.0, upper=1.0, dimensions=3))
    with pytest.raises(ValueError, match="is not of single values"):
        can_report(sampler.certificate, np.zeros(3))


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_every_format_is_verified(run: Run, suffix: str) -> None:
    source = write(Path(f"in{suffix}"), ages(5000).astype(np.float32))
    given = [] if suffix == ".npy" else ["--column", "age"]
    assert run("perturb", source, f"out{suffix}", *given, *AGE).code == 0
    assert f"ok: out{suffix}, 5000 rows; SHA-256 is right" in run("certify", "--verify", f"out{suffix}.json").out


@pytest.mark.lengthy
@pytest.mark.quick("staircase, gamma")
@pytest.mark.parametrize(
    "case", ["merged-laplace", "recycled-gaussian", "truncated-gaussian, both", "staircase, gamma"]
)
def test_mechanisms_are_made_again_from_their_options(run: Run, case: str) -> None:
    np.save("in.npy", ages())
    assert run("perturb", "in.npy", "out.npy", *arguments(case)).code == 0
    assert "(declared" not in run("certify", "--verify", "out.npy.json").out
    payload = json.loads(Path("out.npy.json").read_text())
    payload["columns"][0]["mechanism"] = "laplace" if "laplace" not in case else "gaussian"
    Path("out.npy.json").write_text(json.dumps(payload))
    assert_refused(run("certify", "--verify", "out.npy.json"), 4, "mechanism: ")


@pytest.mark.parametrize("decimals", [0, -1, -300, 16, True])
def test_raw_values_are_no_rounded_reports(run: Run, decimals: Any) -> None:
    Path("in.csv").write_text("age\n" + "".join(f"{at}.25\n" for at in range(50)))
    options = ["--column", "age", "--lower", "0", "--upper", "120", "--epsilon", "1", "--round", "2"]
    assert run("perturb", "in.csv", "out.csv", *options).code == 0
    assert run("certify", "--verify", "out.csv.json").code == 0
    raw, payload = Path("in.csv").read_bytes(), json.loads(Path("out.csv.json").read_text())
    Path("out.csv").write_bytes(raw)
    payload["output"] |= {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
    for changed in (payload, {**payload, "decimals": decimals}):
        Path("out.csv.json").write_text(json.dumps(changed) + "\n")
        assert run("certify", "--verify", "out.csv.json").code == 4


@pytest.mark.parametrize(("text", "code"), [("{at}", 0), ("{at}.25", 4), ("{at}.0000001", 4)])
def test_more_decimals_than_stated_are_refused_where_the_table_is_finer(run: Run, text: str, code: int) -> None:
    """Every number is within half a unit of a report there: its decimals alone tell."""
    Path("in.csv").write_text("age\n" + "50\n" * 50)
    options = ["--column", "age", "--lower", "0", "--upper", "120", "--epsilon", "1", "--round", "0"]
    assert run("perturb", "in.csv", "out.csv", *options).code == 0
    forged = ("age\n" + "".join(f"{text.format(at=at)}\n" for at in range(50))).encode()
    payload = json.loads(Path("out.csv.json").read_text())
    payload["output"] |= {"sha256": hashlib.sha256(forged).hexdigest(), "bytes": len(forged)}
    Path("out.csv").write_bytes(forged)
    Path("out.csv.json").write_text(json.dumps(payload) + "\n")
    assert run("certify", "--verify", "out.csv.json").code == code


def test_reports_too_coarse_to_be_told_are_said_to_be(run: Run) -> None:
    np.save("in.npy", np.full(5, 0.5))
    options = ["--lower", "0", "--upper", "1", "--epsilon", "1", "--mechanism", "piecewise", "--round", "1"]
    assert run("perturb", "in.npy", "out.npy", *options).code == 0
    assert "not verified: reports of (array), too coarse" in run("certify", "--verify", "out.npy.json").out


def test_a_total_without_its_output_is_declared(run: Run) -> None:
    np.save("in.npy", np.full((5, 3), 0.5))
    assert run("perturb", "in.npy", "out.npy", "--lower", "0", "--upper", "1", "--epsilon", "1").code == 0
    Path("out.npy").unlink()
    lines = run("certify", "--verify", "out.npy.json").out.splitlines()
    assert not any(line.startswith("ok: total") for line in lines)
    assert any(line.startswith("declared, not verified: 3 values a row") for line in lines)
