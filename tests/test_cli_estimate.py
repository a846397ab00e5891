"""``dpkernels estimate``: what Python says of the same reports, whatever the file; groups; refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import Run, assert_refused, command, known_secret, small_pieces

import dpkernels as dpk

run = pytest.fixture(command, name="run")
__all__ = ["known_secret", "small_pieces"]

N = 3000
GIVEN = ["--column", "age", "--mechanism", "piecewise", "--epsilon", "4", "--lower", "0", "--upper", "100"]


def people() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    plan = np.array(["10", "2", 'a "b"'])[rng.integers(0, 3, N)]
    return {"plan": plan, "age": rng.beta(2, 5, N) * 100}


def written(path: str) -> None:
    """The people as a file of any format."""
    table = people()
    if path.endswith(".parquet"):
        pq.write_table(pa.table({"plan": pa.array(table["plan"]), "age": table["age"]}), path)
        return
    if path.endswith(".npy"):
        np.save(path, table["age"])
        return
    between = "\t" if ".tsv" in path else ","
    rows = [f"plan{between}age"]
    cells = ['"' + cell.replace('"', '""') + '"' for cell in table["plan"]]
    rows += [f"{cell}{between}{float(x)!r}" for cell, x in zip(cells, table["age"], strict=True)]
    text = ("\n".join(rows) + "\n").encode()
    Path(path).write_bytes(gzip.compress(text) if path.endswith(".gz") else text)


def released(run: Run, path: str, *more: str) -> None:
    """``in`` and ``path``, its release."""
    source = "in" + path[path.index(".") :]
    written(source)
    done = run("perturb", source, path, *(GIVEN[2:] if path.endswith(".npy") else GIVEN), *more)
    assert done.code == 0, done.err


def estimated(run: Run, *arguments: Any) -> dict[str, Any]:
    done = run("estimate", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def in_python(reports: np.ndarray) -> Any:
    return dpk.estimate(reports, dpk.piecewise(epsilon=4.0, lower=0.0, upper=100.0))


def reports_of(path: str) -> np.ndarray:
    if path.endswith(".npy"):
        return np.load(path)
    if path.endswith(".parquet"):
        return pq.read_table(path)["age"].to_numpy()
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt") as file:
        return np.array(
            [float(line.rstrip("\n").rsplit("\t" if ".tsv" in path else ",", 1)[1]) for line in list(file)[1:]]
        )


@pytest.mark.quick("out.csv", "out.parquet")
@pytest.mark.parametrize("path", ["out.csv", "out.tsv.gz", "out.parquet", "out.npy"])
def test_the_file_says_what_python_says(run: Run, path: str, small_pieces: None) -> None:
    released(run, path)
    form = estimated(run, path, "--quantiles", ".25,.5", "--histogram", "4", "--confidence", ".9")
    (told,), e = form["estimates"], in_python(reports_of(path))
    assert told["reports"] == N
    assert told["mean"] == {"value": e.mean.value, "interval": list(e.mean.interval(0.9))}
    assert told["standard_deviation"]["value"] == e.standard_deviation.value
    for p in (0.25, 0.5):
        found = e.quantile(p)
        assert told[f"quantile_{p}"] == {"value": found.value, "interval": list(found.interval(0.9))}
    histogram = e.histogram(4)
    assert [one["share"] for one in told["histogram"]] == histogram.shares.value.tolist()
    assert [one["count_high"] for one in told["histogram"]] == histogram.counts.interval(0.9)[1].tolist()
    assert (form["column"], form["mechanism"]) == (None if path.endswith("npy") else "age", "piecewise")
    assert abs(told["mean"]["value"] - people()["age"].mean()) < 6 * e.mean.error


@pytest.mark.quick("out.csv")
@pytest.mark.parametrize("path", ["out.csv", "out.parquet"])
def test_groups_are_those_of_a_copied_column(run: Run, path: str, small_pieces: None) -> None:
    released(run, path)
    form = estimated(run, path, "--by", "plan", "--quantiles", "0.5")
    plan, reports = people()["plan"], reports_of(path)
    assert [one["group"] for one in form["estimates"]] == ["2", "10", 'a "b"']
    for one in form["estimates"]:
        own = reports[plan == one["group"]]
        assert one["reports"] == len(own)
        assert one["mean"]["value"] == pytest.approx(own.mean(), rel=1e-12)
        assert one["quantile_0.5"]["value"] == in_python(own).quantile(0.5).value
    lines = run("estimate", path, "--by", "plan", "--quantiles", "0.5").out.splitlines()
    assert lines[0] == f"age: {N} reports of piecewise, values in [0, 100]"
    assert lines[2].split() == ["plan", "reports", "estimate", "95", "%", "interval"]
    assert len(lines) == 3 + 3 * 3


def test_one_row_a_number_for_a_person(run: Run) -> None:
    released(run, "out.csv")
    told = estimated(run, "out.csv")["estimates"][0]
    done = run("estimate", "out.csv", "--histogram", "3", "--plot", "out.png")
    lines = done.out.splitlines()
    low, high = told["mean"]["interval"]
    assert lines[3].split() == [str(N), "mean", f"{told['mean']['value']:.5g}", f"{low:.5g}", "to", f"{high:.5g}"]
    assert [line.split()[0] for line in lines[4:8]] == ["standard", "quantile", "quantile", "quantile"]
    assert lines[9].split()[:4] == ["from", "to", "share", "95"]
    assert len(lines) == 13
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")


def test_another_file_with_some_of_its_reports(run: Run) -> None:
    """A subset, in another format: the sidecar is named, and the reports themselves are held against it."""
    released(run, "out.csv")
    half = reports_of("out.csv")[: N // 2]
    pq.write_table(pa.table({"age": half}), "half.parquet")
    assert_refused(run("estimate", "half.parquet"), 2, "--sidecar: missing", "half.parquet.json")
    told = estimated(run, "half.parquet", "--sidecar", "out.csv.json")["estimates"][0]
    assert told["reports"] == N // 2
    assert told["mean"]["value"] == in_python(half).mean.value


def test_missing_values_that_were_kept_are_counted(run: Run) -> None:
    Path("in.csv").write_text("plan,age\n" + "a,1\n" * 30 + "b,\n" * 5 + "a,90\n" * 20)
    assert run("perturb", "in.csv", "out.csv", *GIVEN, "--missing", "keep").code == 0
    done = run("estimate", "out.csv")
    assert "5 rows without a report" in done.out
    assert estimated(run, "out.csv")["missing"] == 5
    assert_refused(run("estimate", "out.csv", "--by", "plan"), 1, "--by: group 'b' of 'plan' has no report")


def test_rounded_reports(run: Run) -> None:
    released(run, "out.csv", "--round", "1")
    told = estimated(run, "out.csv")["estimates"][0]
    assert told["mean"]["value"] == pytest.approx(people()["age"].mean(), abs=2)


def test_two_points_tell_the_mean_alone(run: Run) -> None:
    np.save("in.npy", people()["age"])
    given = ["--mechanism", "duchi", "--epsilon", "1", "--lower", "0", "--upper", "100"]
    assert run("perturb", "in.npy", "out.npy", *given).code == 0
    told = estimated(run, "out.npy")["estimates"][0]
    assert told["mean"]["value"] == pytest.approx(np.load("out.npy").mean())
    assert told["quantile_0.5"]["value"] is None
    assert "the mean only" in told["quantile_0.5"]["why"]
    assert_refused(run("estimate", "out.npy", "--quantiles", "0.5"), 1, "the mean only")


def test_additive_noise_has_ends_of_the_users(run: Run) -> None:
    np.save("in.npy", people()["age"])
    given = ["--mechanism", "laplace", "--epsilon", "1", "--sensitivity", "20"]
    assert run("perturb", "in.npy", "out.npy", *given).code == 0
    assert_refused(run("estimate", "out.npy"), 2, "--lower and --upper: missing; additive noise")
    told = estimated(run, "out.npy", "--lower", "0", "--upper", "100", "--quantiles", "0.5")["estimates"][0]
    assert told["mean"]["value"] == pytest.approx(people()["age"].mean(), abs=2)
    assert told["quantile_0.5"]["value"] == pytest.approx(np.median(people()["age"]), abs=4)


def _cell(path: str, row: int, text: str) -> None:
    lines = Path(path).read_text().splitlines()
    lines[row + 1] = lines[row + 1].rsplit(",", 1)[0] + "," + text
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("12.3456789", ["column 'age': ", "row 700 (line 702) is 12.3456789, which is not one of its reports"]),
        ("1e9", ["column 'age': ", "row 700 (line 702) is 1000000000", "where all its reports are"]),
        ("", ["column 'age': ", "row 700 (line 702) is missing"]),
        ("x", ["column 'age': ", "row 700 (line 702) is 'x'"]),
    ],
)
def test_what_the_mechanism_cannot_have_made_is_named(run: Run, text: str, says: list[str], small_pieces: None) -> None:
    released(run, "out.csv")
    _cell("out.csv", 700, text)
    assert_refused(run("estimate", "out.csv"), 1, "is not the file that out.csv.json was written with")
    assert_refused(run("estimate", "out.csv", "--sidecar", "out.csv.json"), 1, *says)


def test_the_sidecar_of_another_release(run: Run) -> None:
    released(run, "out.csv")
    assert run("perturb", "in.csv", "other.csv", *GIVEN[:4], "--epsilon", "1", *GIVEN[6:]).code == 0
    assert_refused(run("estimate", "out.csv", "--sidecar", "other.csv.json"), 1, "row 0 (line 2)", "not")
    Path("out.csv.json").write_text(Path("other.csv.json").read_text())
    assert_refused(run("estimate", "out.csv"), 1, "is not the file that out.csv.json was written with")
    Path("out.csv.json").write_text('{"columns": []}')
    assert_refused(run("estimate", "out.csv"), 1, "out.csv.json: is not the sidecar of a release")


def test_a_forged_table_is_refused(run: Run) -> None:
    released(run, "out.csv")
    form = json.loads(Path("out.csv.json").read_text())
    form["columns"][0]["certificate"]["table"]["window"][0][0] += 1
    Path("out.csv.json").write_text(json.dumps(form))
    assert_refused(run("estimate", "out.csv"), 1, "total: weights sum to 2^32")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--column", "plan"], 2, "--column: 'plan' was copied as it is"),
        (["--column", "pay"], 2, "--column: 'pay' is not there; the perturbed columns are age"),
        (["--by", "age"], 2, "--by: 'age' is perturbed"),
        (["--by", "pay"], 2, "--by: out.csv has 0 columns 'pay'"),
        (["--quantiles", "0.5,1"], 2, "--quantiles"),
        (["--quantiles", "0.00001"], 1, "too few for the quantile 1e-05"),
        (["--by", "plan", "--quantiles", "0.0001"], 1, "plan '2': p:"),
        (["--histogram", "0"], 2, "--histogram: 0"),
        (["--confidence", "1"], 2, "--confidence: 1"),
        (["--lower", "0"], 2, "--lower and --upper: give both or neither"),
        (["--lower", "0", "--upper", "1"], 2, "--lower, --upper: (0.0, 1.0) are for additive noise"),
        (["--plot", "a.pdf"], 2, "a.pdf must be a .png"),
        (["--plot", "a.png", "--by", "plan"], 2, "--plot: draws all rows"),
        (["--sidecar", "in.csv"], 1, "in.csv: is not the sidecar of a release"),
    ],
)
def test_wrong_arguments(run: Run, arguments: list[str], code: int, says: str) -> None:
    released(run, "out.csv")
    assert_refused(run("estimate", "out.csv", *arguments), code, says)


def test_columns_have_to_be_named_and_arrays_have_no_groups(run: Run) -> None:
    Path("in.csv").write_text("a,b\n" + "1,2\n" * 50)
    both = ["--column", "a", "--column", "b", "--epsilon", "1", "--lower", "0", "--upper", "4"]
    assert run("perturb", "in.csv", "out.csv", *both).code == 0
    assert_refused(run("estimate", "out.csv"), 2, "--column: missing; the perturbed columns are a, b")
    assert estimated(run, "out.csv", "--column", "b")["column"] == "b"
    released(run, "out.npy")
    assert_refused(run("estimate", "out.npy", "--by", "b"), 2, "--by: out.npy has 0 columns 'b'")


def test_too_many_groups_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.estimates.reading._MOST_COUNTS", 2000)
    released(run, "out.csv")
    assert_refused(run("estimate", "out.csv", "--by", "plan"), 2, "--by: 'plan' has too many groups")
