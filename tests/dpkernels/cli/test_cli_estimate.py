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
from command_helpers import Run, assert_refused, command, known_secret, small_pieces

import dpkernels as dpk
from dpkernels.cli import estimate

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


@pytest.mark.lengthy
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


@pytest.mark.thorough
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
    assert lines[:2] == [
        f"age: {N:,} reports of the mechanism piecewise at epsilon 4, values in [0, 100]",
        "Intervals assume nothing about the values.",
    ]
    assert lines[2] == "Each single interval contains its true value with probability 95 %."
    assert lines[4].split() == ["plan", "reports", "estimate", "95", "%", "interval"]
    assert len(lines) == 5 + 3 * 3


@pytest.mark.lengthy
def test_one_row_a_number_for_a_person(run: Run, known_secret: None) -> None:
    released(run, "out.csv")
    told = estimated(run, "out.csv")["estimates"][0]
    done = run("estimate", "out.csv", "--histogram", "3", "--plot", "out.png")
    lines = done.out.splitlines()
    low, high = told["mean"]["interval"]
    # Whichever model has the higher likelihood of held-out reports, which depends on the noise.
    assert lines[1] == f"Distribution: {in_python(reports_of('out.csv')).model}."
    assert lines[1].endswith(", chosen by the likelihood of held-out reports.")
    assert lines[2] == "Intervals assume nothing about the values."
    lines = lines[2:]
    assert lines[4].split() == [f"{N:,}", "mean", f"{told['mean']['value']:.5g}", f"{low:.5g}", "to", f"{high:.5g}"]
    assert [line.split()[0] for line in lines[5:9]] == ["standard", "quantile", "quantile", "quantile"]
    assert lines[10].split()[:4] == ["from", "to", "share", "95"]
    assert len(lines) == 14
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.lengthy
def test_zeros_and_whole_numbers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 % zeros: the quantile 0.3 is 0, and its interval contains 0. The key decides whether a point mass is added."""
    rng = np.random.default_rng(1)
    cells = "".join(f"{x}\n" for x in np.where(rng.random(N) < 0.6, 0, rng.integers(0, 101, N)))
    Path("in.csv").write_text("age\n" + cells)
    with monkeypatch.context() as fixed:
        fixed.setattr("os.urandom", lambda count: bytes(range(count)))
        assert run("perturb", "in.csv", "out.csv", *GIVEN, "--clip").code == 0
    told = estimated(run, "out.csv", "--quantiles", ".3")
    assert told["assumption"] == "Intervals assume nothing about the values."
    assert told["estimates"][0]["quantile_0.3"]["value"] == 0
    assert told["estimates"][0]["quantile_0.3"]["interval"][0] == 0
    assert "1 point mass" in told["estimates"][0]["distribution"]
    lines = run("estimate", "out.csv", "--grid", "1", "--quantiles", ".5,.9").out.splitlines()
    assert lines[0].endswith("values in [0, 100]; values outside were clipped")
    assert lines[2] == "Intervals assume that the values are whole numbers, and nothing else."
    assert lines[-2].split()[-4] == "0"
    assert float(lines[-1].split()[-4]).is_integer()
    smooth = run("estimate", "out.csv", "--assume", "smooth", "--atoms", "0").out
    assert "smooth density and point masses only at 0" in smooth


@pytest.mark.thorough
def test_a_picture_of_every_group(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    released(run, "out.csv")
    done = run("estimate", "out.csv", "--by", "plan", "--histogram", "4", "--plot", "out.png")
    assert done.code == 0, done.err
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("dpkernels.cli.estimate.MAX_PANELS", 2)
    assert_refused(run("estimate", "out.csv", "--by", "plan", "--plot", "more.png"), 2, "--plot: 3 groups; at most 2")


def test_another_file_with_some_of_its_reports(run: Run) -> None:
    """A subset, in another format: the sidecar is named, and the reports themselves are held against it."""
    released(run, "out.csv")
    half = reports_of("out.csv")[: N // 2]
    pq.write_table(pa.table({"age": half}), "half.parquet")
    assert_refused(run("estimate", "half.parquet"), 2, "--sidecar: missing", "half.parquet.json")
    told = estimated(run, "half.parquet", "--sidecar", "out.csv.json")["estimates"][0]
    assert told["reports"] == N // 2
    assert told["mean"]["value"] == in_python(half).mean.value


@pytest.mark.lengthy
def test_missing_values_that_were_kept_are_counted(run: Run) -> None:
    Path("in.csv").write_text("plan,age\n" + "a,1\n" * 30 + "b,\n" * 5 + "a,90\n" * 20)
    assert run("perturb", "in.csv", "out.csv", *GIVEN, "--missing", "keep").code == 0
    done = run("estimate", "out.csv")
    assert "5 rows without a report" in done.out
    assert estimated(run, "out.csv")["missing"] == 5
    one, other = estimated(run, "out.csv", "--by", "plan")["estimates"]
    assert (one["group"], one["reports"]) == ("a", 50)
    assert other == {"group": "b", "reports": 0, "distribution": None, "mean": {"value": None, "why": "no report"}}
    assert run("estimate", "out.csv", "--by", "plan").out.splitlines()[-1].split() == [
        "b",
        "0",
        "mean",
        "-",
        "no",
        "report",
    ]


@pytest.mark.lengthy
def test_a_group_with_too_few_reports_is_marked_and_the_others_are_answered(run: Run) -> None:
    Path("in.csv").write_text("plan,age\n" + "a,20\na,60\n" * 2000 + "b,50\n" * 2 + "c,50\n")
    assert run("perturb", "in.csv", "out.csv", *GIVEN).code == 0
    given = "--by", "plan", "--quantiles", ".5", "--histogram", "2"
    a, b, c = estimated(run, "out.csv", *given)["estimates"]
    assert 0 < a["quantile_0.5"]["value"] < 100
    assert len(a["histogram"]) == 2
    assert b["mean"]["value"] is not None
    assert "too few" in b["quantile_0.5"]["why"]
    assert c["mean"] == {"value": None, "why": "there are 1; about 2 are needed"}
    lines = run("estimate", "out.csv", *given).out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("a", "b", "c"))].count("b") >= 1
    Path("in.csv").write_text("plan,age\n" + "b,50\n" * 3)
    assert run("perturb", "in.csv", "few.csv", *GIVEN[:4], "--epsilon", "1", *GIVEN[6:]).code == 0
    assert_refused(run("estimate", "few.csv", "--quantiles", ".5"), 1, "error: reports: 3 are too few for the mean")
    assert_refused(run("estimate", "few.csv", "--by", "plan"), 1, "--by: no group can answer; plan b: reports: 3 are")


def counted_groups(path: str) -> dict[str | None, dpk.Counts]:
    release, source = estimate.open_release(Path(path), None)
    selection = estimate.Selection.from_sidecar(release, source.names, path, "age", "plan", None)
    return selection.join([selection.tally(source)], path).groups


def group_names(run: Run, cells: pa.Array) -> list[Any]:
    """The names of the groups of a release with these cells, every one of which occurs four times."""
    table = pa.table({"plan": pa.concat_arrays([cells] * 4), "age": np.arange(4.0 * len(cells)) % 100})
    pq.write_table(table, "in.parquet", store_schema=True)
    assert run("perturb", "in.parquet", "out.parquet", *GIVEN, "--force").code == 0
    groups = counted_groups("out.parquet")
    assert {counts.total for counts in groups.values()} == {4}
    return list(groups)


NANOSECONDS = 1_700_000_000_000_000_000
CELLS = {
    "time64": (pa.array([1, 2], pa.time64("ns")), ["00:00:00.000000001", "00:00:00.000000002"]),
    "timestamp": (
        pa.array([NANOSECONDS, NANOSECONDS + 1], pa.timestamp("ns")),
        ["2023-11-14 22:13:20.000000000", "2023-11-14 22:13:20.000000001"],
    ),
    "an hour that a clock shows twice": (
        pa.array([1_698_537_600, 1_698_541_200], pa.timestamp("s", "Europe/Berlin")),
        ["2023-10-29 00:00:00.000Z", "2023-10-29 01:00:00.000Z"],
    ),
    "duration": (pa.array([1, 2], pa.duration("ns")), ["1 ns", "2 ns"]),
    "null and empty": (pa.array(["", None, "None", "(null)"]), ["", "(null)", "None", None]),
    "bytes": (pa.array([b"\xe4", b"\xf6", b"a", None], pa.binary()), ["a", "\udce4", "\udcf6", None]),
    "booleans": (pa.array([True, False, None]), ["False", "True", None]),
    "dictionary": (pa.array(["b", "a", None]).dictionary_encode(), ["a", "b", None]),
    "numbers": (pa.array([2.0, 10.0, -0.5, None]), ["-0.5", "2.0", "10.0", None]),
}


@pytest.mark.quick("time64", "null*", "bytes")
@pytest.mark.parametrize("case", CELLS)
def test_different_cells_are_different_groups(run: Run, case: str) -> None:
    cells, names = CELLS[case]
    assert group_names(run, cells) == names


@pytest.mark.lengthy
def test_cells_of_another_encoding_are_different_groups(run: Run) -> None:
    """Latin-1, of a csv: no two cells become one for not being UTF-8."""
    rows = [plan + b",%d" % age for plan in (b"\xe4", b"\xf6", b"\xef\xbf\xbd", b"") for age in range(5)]
    Path("in.csv").write_bytes(b"plan,age\n" + b"\n".join(rows) + b"\n")
    assert run("perturb", "in.csv", "out.csv", *GIVEN).code == 0
    groups = counted_groups("out.csv")
    assert {name: counts.total for name, counts in groups.items()} == dict.fromkeys(
        ["", "\udce4", "\udcf6", "\ufffd"], 5
    )
    lines = run("estimate", "out.csv", "--by", "plan").out.splitlines()
    assert sum(line.startswith(("'\\udce4' ", "'\\udcf6' ")) for line in lines) == 2


LAPLACE = ["--mechanism", "laplace", "--epsilon", "1", "--sensitivity", "20"]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "ends", [("-inf", "inf"), ("-1e308", "1e308"), ("0", "1e300"), ("1e300", "1.1e300"), ("0", "nan")]
)
def test_ends_that_no_noise_fits_are_refused_in_a_short_line(run: Run, ends: tuple[str, str]) -> None:
    np.save("in.npy", people()["age"])
    assert run("perturb", "in.npy", "out.npy", *LAPLACE).code == 0
    done = run("estimate", "out.npy", "--lower", ends[0], "--upper", ends[1])
    assert_refused(done, 2, "--lower, --upper: ")
    assert len(done.err) < 200


@pytest.mark.lengthy
@pytest.mark.parametrize("confidence", ["5e-324", "1e-9", "0.9999999999999999"])
def test_every_confidence_has_intervals(run: Run, confidence: str) -> None:
    released(run, "out.csv")
    told = estimated(run, "out.csv", "--confidence", confidence)["estimates"][0]
    low, high = told["mean"]["interval"]
    assert low <= told["mean"]["value"] <= high
    assert np.isfinite([low, high]).all()


def test_the_sidecar_of_an_array_is_none_of_a_table(run: Run) -> None:
    released(run, "out.npy")
    released(run, "out.csv")
    done = run("estimate", "out.csv", "--sidecar", "out.npy.json")
    assert_refused(done, 1, "out.csv: has columns, but the sidecar is that of an array")
    assert_refused(run("estimate", "out.npy", "--sidecar", "out.csv.json"), 1, "out.npy: has 0 columns 'age'")


FORGED: dict[str, Any] = {
    "no object": (lambda form: [form], "JSON: a list of 1 must be an object"),
    "output null": (lambda form: form | {"output": None}, "output: None must be an object"),
    "no hash": (lambda form: form | {"output": {"bytes": 1, "columns": []}}, "output.sha256: is missing"),
    "decimals": (lambda form: form | {"decimals": "x"}, "decimals: 'x' must be null or a whole number"),
    "a number for a name": (lambda form: _renamed(form, 7), "columns[0].column: 7 must be a string"),
    "a truth for a name": (lambda form: _renamed(form, True), "columns[0].column: True must be a string"),
    "a column twice": (lambda form: form | {"columns": form["columns"] * 2}, "is there twice"),
    "parts": (
        lambda form: form | {"output": {"parts": [{"name": 1}], "columns": []}},
        "output.parts[0].name: 1 must be a string",
    ),
}


def _renamed(form: dict[str, Any], name: Any) -> dict[str, Any]:
    return form | {"columns": [form["columns"][0] | {"column": name}]}


@pytest.mark.parametrize("case", FORGED)
def test_a_sidecar_of_other_types_is_refused_by_the_field(run: Run, case: str) -> None:
    released(run, "out.csv")
    change, says = FORGED[case]
    Path("out.csv.json").write_text(json.dumps(change(json.loads(Path("out.csv.json").read_text()))))
    assert_refused(run("estimate", "out.csv"), 4, "out.csv.json: is not the sidecar of a release", says)
    assert_refused(run("certify", "--verify", "out.csv.json"), 4, "out.csv.json: is not the sidecar of a release", says)


def test_a_damaged_layout_is_refused_by_the_name_of_the_sidecar(run: Run) -> None:
    released(run, "out.csv")
    payload = json.loads(Path("out.csv.json").read_text())
    Path("out.csv.json").write_text(json.dumps(payload | {"layout": payload["layout"] | {"kind": "xyz"}}))
    told = "out.csv.json: is not the sidecar of a release; layout: 'xyz' with ',' is not a known format"
    assert_refused(run("estimate", "out.csv"), 4, f"error: {told}")


def test_rounded_reports(run: Run) -> None:
    released(run, "out.csv", "--round", "1")
    told = estimated(run, "out.csv")["estimates"][0]
    assert told["mean"]["value"] == pytest.approx(people()["age"].mean(), abs=2)


def test_two_points_tell_the_mean_alone(run: Run) -> None:
    np.save("in.npy", people()["age"])
    options = ["--mechanism", "duchi", "--epsilon", "1", "--lower", "0", "--upper", "100"]
    assert run("perturb", "in.npy", "out.npy", *options).code == 0
    told = estimated(run, "out.npy")["estimates"][0]
    assert told["mean"]["value"] == pytest.approx(np.load("out.npy").mean())
    assert told["quantile_0.5"]["value"] is None
    assert "the mean only" in told["quantile_0.5"]["why"]
    assert_refused(run("estimate", "out.npy", "--quantiles", "0.5"), 1, "the mean only")


@pytest.mark.lengthy
def test_additive_noise_has_ends_of_the_users(run: Run) -> None:
    np.save("in.npy", people()["age"])
    options = ["--mechanism", "laplace", "--epsilon", "1", "--sensitivity", "20"]
    assert run("perturb", "in.npy", "out.npy", *options).code == 0
    assert_refused(run("estimate", "out.npy"), 2, "--lower and --upper: missing; additive noise")
    told = estimated(run, "out.npy", "--lower", "0", "--upper", "100", "--quantiles", "0.5")["estimates"][0]
    assert told["mean"]["value"] == pytest.approx(people()["age"].mean(), abs=2)
    assert told["quantile_0.5"]["value"] == pytest.approx(np.median(people()["age"]), abs=4)


def _cell(path: str, row: int, text: str) -> None:
    lines = Path(path).read_text().splitlines()
    lines[row + 1] = lines[row + 1].rsplit(",", 1)[0] + "," + text
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.mark.lengthy
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
    assert_refused(run("estimate", "out.csv"), 4, "is not the file that out.csv.json was written with")
    assert_refused(run("estimate", "out.csv", "--sidecar", "out.csv.json"), 1, *says)


def test_the_sidecar_of_another_release(run: Run) -> None:
    released(run, "out.csv")
    assert run("perturb", "in.csv", "other.csv", *GIVEN[:4], "--epsilon", "1", *GIVEN[6:]).code == 0
    assert_refused(run("estimate", "out.csv", "--sidecar", "other.csv.json"), 1, "row 0 (line 2)", "not")
    Path("out.csv.json").write_text(Path("other.csv.json").read_text())
    assert_refused(run("estimate", "out.csv"), 4, "is not the file that out.csv.json was written with")
    Path("out.csv.json").write_text('{"columns": []}')
    assert_refused(run("estimate", "out.csv"), 4, "out.csv.json: is not the sidecar of a release")


def test_a_forged_table_is_refused(run: Run) -> None:
    released(run, "out.csv", "--full-certificate")
    payload = json.loads(Path("out.csv.json").read_text())
    payload["columns"][0]["certificate"]["table"]["window"][0][0] += 1
    Path("out.csv.json").write_text(json.dumps(payload))
    assert_refused(run("estimate", "out.csv"), 4, "total: weights sum to 2^32")


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--column", "plan"], 2, "--column: 'plan' was copied as it is"),
        (["--column", "pay"], 2, "--column: 'pay' is not there; the perturbed columns are age"),
        (["--by", "age"], 2, "--by: 'age' is perturbed"),
        (["--by", "pay"], 2, "--by: out.csv has 0 columns 'pay'"),
        (["--quantiles", "0.5,1"], 2, "--quantiles"),
        (["--quantiles", "0.00001"], 1, "error: --quantiles: 3000 reports are too few for the quantile 1e-05"),
        (["--by", "plan", "--quantiles", "0.0001"], 1, "--by: no group can answer; plan 2: --quantiles: "),
        (["--quantiles", ""], 2, "'' must be numbers"),
        (["--quantiles", ".5,"], 2, "'.5,' must be numbers"),
        (["--quantiles", ".5,,.6"], 2, "must be numbers"),
        (["--histogram", "0"], 2, "--histogram: 0"),
        (["--confidence", "1"], 2, "--confidence: 1"),
        (["--lower", "0"], 2, "--lower and --upper: give both or neither"),
        (["--lower", "0", "--upper", "1"], 2, "--lower, --upper: (0.0, 1.0) are for additive noise"),
        (["--plot", "a.pdf"], 2, "a.pdf must be a .png"),
        (["--atoms", "101"], 2, "--atoms: 101"),
        (["--grid", "0"], 2, "--grid: 0"),
        (["--grid", "1", "--atoms", "0.5"], 2, "--atoms: 0.5 must be multiples of the grid 1"),
        (["--assume", "all"], 2, "--assume"),
        (["--sidecar", "in.csv"], 4, "in.csv: is not the sidecar of a release"),
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
    monkeypatch.setattr("dpkernels.cli.estimate._MAX_COUNTS", 2000)
    released(run, "out.csv")
    assert_refused(run("estimate", "out.csv", "--by", "plan"), 2, "--by: 'plan' has too many groups")
