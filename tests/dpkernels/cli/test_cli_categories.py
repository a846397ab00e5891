"""The command on columns of categories: releases, sidecars, verification, estimates and what must not be written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import SECRET, Run, command, known_secret, small_pieces
from key_helpers import column_key
from matplotlib.backends.backend_agg import FigureCanvasAgg

import dpkernels as dpk
from dpkernels.cli.files.categories import category_codes, parse_reports

__all__ = ["known_secret", "small_pieces"]

run = pytest.fixture(command, name="run")

LABELS = ["cardio", 'neu,"ro', "ortho", "uro"]
VALUES = np.random.default_rng(1).choice(LABELS, 300, p=[0.5, 0.25, 0.15, 0.1]).tolist()
NAMES = ["randomised-response", "subset-selection", "block-response"]
every_name = pytest.mark.parametrize("name", NAMES)
every_suffix = pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
FROM = ["--column", "ward", "--categories-from", "wards.txt", "--epsilon", "1"]
PREFIXES = ["--length", "7", "--alphabet", 'acdehinortu,"']


def named(name):
    return ["--mechanism", name, *(["--size", "2"] if name == "subset-selection" else [])]


def write(path, values=VALUES, **more):
    Path("wards.txt").write_text("\n".join(LABELS) + "\n")
    table = {"id": [f"p{row}" for row in range(len(values))], "ward": values, **more}
    if path.endswith("parquet"):
        pq.write_table(pa.table(table), path, row_group_size=128)
        return
    mark = "\t" if path.endswith("tsv") else ","

    def cell(text):
        text = "" if text is None else str(text)
        return '"' + text.replace('"', '""') + '"' if mark in text or '"' in text else text

    rows = [mark.join(map(cell, row)) for row in zip(*table.values(), strict=True)]
    Path(path).write_text("\n".join([mark.join(table), *rows, ""]))


def reports(path, mechanism):
    """The reports in a file, in its order, as the mechanism's supports of every row."""
    if path.endswith("parquet"):
        cells = pq.read_table(path).column("ward").to_pylist()
    else:
        import pandas as pd

        cells = pd.read_csv(path, sep="\t" if path.endswith("tsv") else ",", dtype=str)["ward"].tolist()
    if mechanism.kind == "set":
        rows = [bytes.fromhex(cell) if isinstance(cell, str) else cell for cell in cells]
        return mechanism.supports(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1))
    if mechanism.kind == "block":
        return mechanism.supports(np.array([int(cell) for cell in cells]))
    return mechanism.supports(np.array([mechanism.labels.index(cell) for cell in cells]))


def mechanism_of(form):
    own = form["columns"][0]
    build = getattr(dpk, own["mechanism"].replace("-", "_"))
    return build(**{**own["options"], "categories": own["options"]["categories"]})


@pytest.mark.lengthy
@pytest.mark.quick("parquet-*")
@every_name
@every_suffix
def test_a_release_has_the_reports_of_the_library(run: Run, name, suffix, known_secret, small_pieces):
    write(f"in.{suffix}")
    done = run("perturb", f"in.{suffix}", f"out.{suffix}", *FROM, *named(name), "--full-certificate")
    assert done.code == 0, done.err
    payload = json.loads(Path(f"out.{suffix}.json").read_text())
    m = mechanism_of(payload)
    assert m.labels == tuple(LABELS)
    assert payload["columns"][0].get("drawing") == (2 if m.kind == "set" else None)
    expected = dpk.perturb(np.array(VALUES), m, key=column_key(SECRET, "ward"))
    if m.kind == "category":
        expected = np.array([LABELS.index(label) for label in expected])
    assert np.array_equal(reports(f"out.{suffix}", m), m.supports(expected))
    verified = run("certify", "--verify", f"out.{suffix}.json")
    assert verified.code == 0, verified.err
    assert f"ok: ward, mechanism {name}, epsilon 1; neighbours: any two of the 4 categories" in verified.out
    estimated = run("estimate", f"out.{suffix}", "--column", "ward", "--json")
    assert estimated.code == 0, estimated.err
    (one,) = json.loads(estimated.out)["estimates"]
    e = dpk.estimate(expected, m)
    assert [row["category"] for row in one["categories"]] == LABELS
    np.testing.assert_allclose([row["count"] for row in one["categories"]], e.counts.value)
    np.testing.assert_allclose([row["count_low"] for row in one["categories"]], e.counts.interval()[0])
    if suffix == "parquet":
        cells = pq.read_table(f"out.{suffix}").column("ward")
        assert dpk.estimate(cells, f"out.{suffix}.json").supports.tolist() == e.supports.tolist()
        payload["columns"][0]["certificate"]["threshold"] -= 3
        with pytest.raises(dpk.CertificateError):
            dpk.estimate(cells, payload)


@pytest.mark.lengthy
def test_the_default_is_the_least_error_and_is_printed(run: Run):
    write("in.csv")
    done = run("perturb", "in.csv", "out.csv", *FROM)
    assert "randomised-response" in done.out
    assert dpk.categorical(1.0, 4).kind == "category"
    done = run("perturb", "in.csv", "other.csv", *FROM, "--bits", "1.5")
    assert done.code == 2
    assert "smallest report of 4 categories takes 2 bits" in done.err


@pytest.mark.lengthy
@pytest.mark.quick("csv", "parquet")
@every_suffix
def test_codes(run: Run, suffix):
    values = [row % 30 for row in range(200)]
    write(f"in.{suffix}", values)
    done = run("perturb", f"in.{suffix}", f"out.{suffix}", "--column", "ward", "--categories", "30", "--epsilon", "1")
    assert done.code == 0, done.err
    assert "subset-selection" in done.out
    estimated = run("estimate", f"out.{suffix}", "--column", "ward")
    assert "200 reports of the mechanism subset-selection at epsilon 1, 30 categories" in estimated.out
    wrong = run("perturb", f"in.{suffix}", f"w.{suffix}", "--column", "ward", "--categories", "29", "--epsilon", "1")
    assert wrong.code == 1
    assert "row 29" in wrong.err
    assert "is not one of the 29 categories" in wrong.err


@pytest.mark.lengthy
@pytest.mark.quick("csv", "parquet")
@every_suffix
def test_unknown_and_missing_values(run: Run, suffix):
    values = [None if row == 7 else "secret ward" if row == 3 else value for row, value in enumerate(VALUES)]
    write(f"in.{suffix}", values)
    done = run("perturb", f"in.{suffix}", f"out.{suffix}", *FROM)
    assert done.code == 1
    assert "row 3" in done.err
    assert "'secret ward', which is not one of the 4 categories; --other NAME takes such values" in done.err
    done = run("perturb", f"in.{suffix}", f"out.{suffix}", *FROM, "--other", "else")
    assert done.code == 1
    assert "row 7" in done.err
    assert "is missing" in done.err
    for missing, rows in (("keep", 300), ("drop", 299)):
        for name in NAMES:
            target = f"{missing}-{name}.{suffix}"
            options = ["--other", "else", "--missing", missing, *named(name)]
            assert run("perturb", f"in.{suffix}", target, *FROM, *options).code == 0
            assert f"{rows} rows" in run("certify", "--verify", f"{target}.json").out
            estimated = run("estimate", target, "--column", "ward", "--json")
            assert estimated.code == 0, estimated.err
            (one,) = json.loads(estimated.out)["estimates"]
            assert one["reports"] == 299
            for file in (target, f"{target}.json"):  # Neither the value nor its place.
                assert b"secret ward" not in Path(file).read_bytes()


@pytest.mark.lengthy
def test_numbers_and_categories_in_one_call_with_a_ledger(run: Run):
    write("in.csv", age=[row % 90 for row in range(300)])
    both = ["--column", "ward", "--column", "age", "--mechanism", "categorical", "--mechanism", "balanced"]
    options = ["--categories-from", "wards.txt", "--lower", "0", "--upper", "120", "--epsilon", "1", "--epsilon", "0.5"]
    missing = run("perturb", "in.csv", "out.csv", *both[:4], *options)
    assert missing.code == 2
    assert "--mechanism: missing; with --categories and --lower give one for each column" in missing.err
    done = run("perturb", "in.csv", "out.csv", *both, *options, "--ledger", "l", "--budget", "2")
    assert done.code == 0, done.err
    assert "total epsilon a row: 1.5" in done.out
    assert run("certify", "--verify", "out.csv.json").code == 0
    again = run("perturb", "in.csv", "o.csv", *both, *options, "--ledger", "l")
    assert again.code == 3
    for column in ("ward", "age"):
        assert run("estimate", "out.csv", "--column", column).code == 0


@pytest.mark.lengthy
@every_name
def test_shuffled_rows_and_groups(run: Run, name):
    write("in.parquet", plan=["A" if row % 3 else "B" for row in range(300)])
    assert run("perturb", "in.parquet", "out.parquet", *FROM, *named(name), "--shuffle-rows").code == 0
    done = run("estimate", "out.parquet", "--column", "ward", "--by", "plan")
    assert "plan A: 200 reports" in done.out
    assert "plan B: 100 reports" in done.out
    assert run("estimate", "out.parquet", "--column", "ward", "--by", "ward").code == 2
    for option in (["--quantiles", ".5"], ["--histogram", "3"], ["--lower", "0", "--upper", "1"], ["--grid", "1"]):
        refused = run("estimate", "out.parquet", "--column", "ward", *option)
        assert refused.code == 2
        assert "is for numbers; the column holds categories" in refused.err
    assert run("estimate", "out.parquet", "--column", "ward", "--plot", "p.png").code == 0
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_every_group_of_a_picture_has_its_own_labels(run: Run, monkeypatch):
    """Groups whose largest categories differ, and a label that is no formula."""
    shares = {"A": [0.7, 0.1, 0.2], "B": [0.1, 0.3, 0.6]}
    labels, rng, figures = ["$x", "pear", "$_{fig$"], np.random.default_rng(2), []
    rows = [(plan, rng.choice(labels, p=share)) for plan, share in shares.items() for _ in range(4000)]
    pq.write_table(
        pa.table({"plan": [plan for plan, _ in rows], "fruit": [str(fruit) for _, fruit in rows]}), "in.parquet"
    )
    options = ["--column", "fruit", "--categories", ",".join(labels), "--epsilon", "4"]
    assert run("perturb", "in.parquet", "out.parquet", *options).code == 0
    monkeypatch.setattr("dpkernels.cli.category_estimates.write_png", lambda figure, _: figures.append(figure))
    payload = json.loads(run("estimate", "out.parquet", "--by", "plan", "--json", "--plot", "p.png").out)
    (figure,) = figures
    FigureCanvasAgg(figure).draw()
    for ax, group in zip(figure.axes, payload["estimates"], strict=True):
        names = [text.get_text() for text in ax.get_xticklabels()]
        assert sorted(names) == sorted(labels)
        share = {row["category"]: (row["share_low"], row["share_high"]) for row in group["categories"]}
        drawn = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in ax.patches]
        assert drawn == [pytest.approx(share[name]) for name in names]
        assert ax.get_ylim()[1] > max(high for _, high in drawn)


@pytest.mark.lengthy
@every_name
def test_false_sidecars_and_outputs_are_refused(run: Run, name):
    write("in.csv")
    assert run("perturb", "in.csv", "out.csv", *FROM, *named(name), "--full-certificate").code == 0
    text = Path("out.csv.json").read_text()

    def verified(change):
        payload = json.loads(text)
        change(payload["columns"][0])
        Path("out.csv.json").write_text(json.dumps(payload))
        done = run("certify", "--verify", "out.csv.json")
        estimated = run("estimate", "out.csv", "--column", "ward")
        assert done.code == 4
        return done.err, estimated.code

    def more_budget(own):
        own["certificate"]["threshold"] += 1

    def other_labels(own):
        own["options"]["categories"] = [*own["options"]["categories"], "fifth"]

    def other_epsilon(own):
        own["parameters"]["epsilon"] = 2.0

    assert "column ward" in verified(more_budget)[0]
    error, code = verified(other_labels)
    assert "has other integers" in error or "cannot be made" in error or "is no report" in error
    assert code != 0
    assert "epsilon" in verified(other_epsilon)[0]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()])
def test_integers_are_read_as_their_texts_are(kind):
    """Numbers of a Parquet file do not become texts; nulls, negative and large ones are what their texts are."""
    large = np.iinfo(kind.to_pandas_dtype()).max
    values = [0, 29, None, 30, 7, int(large), None, 3, *([-1, -128] if pa.types.is_signed_integer(kind) else [])]
    cells = pa.array(values, kind).slice(1)
    texts = cells.cast(pa.string()).cast(pa.binary())
    m = dpk.randomised_response(1.0, 30)
    assert category_codes(cells, m).tolist() == category_codes(texts, m).tolist()
    numbers, words = (parse_reports(held, dpk.block_response(1.0, 30)) for held in (cells, texts))
    assert all(np.array_equal(one, other) for one, other in zip(numbers, words, strict=True))
    marked = category_codes(cells, m, ["30"]).tolist()  # A marker that prints like a number is compared with texts.
    assert marked == category_codes(texts, m, ["30"]).tolist() != category_codes(cells, m).tolist()


def test_an_unknown_value_is_reported_as_the_other_category(run: Run, known_secret):
    write("in.parquet", [*["what"] * 50, *VALUES[50:]])
    assert run("perturb", "in.parquet", "out.parquet", *FROM, *named(NAMES[0]), "--other", "ortho").code == 0
    m = dpk.randomised_response(1.0, LABELS)
    expected = dpk.perturb(np.array([*["ortho"] * 50, *VALUES[50:]]), m, key=column_key(SECRET, "ward"))
    assert pq.read_table("out.parquet").column("ward").to_pylist() == expected.tolist()
    assert category_codes(pa.array([" uro", "uro ", "Uro", "uro", " "]), m).tolist() == [-2, -2, -2, 3, -2]


def test_a_set_with_bits_of_no_category_is_none():
    """Of the right number of members, of which one is beyond the last category."""
    m = dpk.subset_selection(1.0, 5, 2)
    cells = pa.array([bytes([0b00011]), bytes([0b100001])], pa.binary(1))
    assert parse_reports(cells, m)[1].tolist() == [True, False]
    with pytest.raises(ValueError, match="row 1 is no set of 2 of 5"):
        dpk.CategoryCounts(m).add(cells)


@pytest.mark.lengthy
def test_sets_that_an_earlier_version_drew_are_verified(run: Run):
    """Sidecars of versions that drew sets in another way do not state how; what no version writes is refused."""
    write("in.csv")
    assert run("perturb", "in.csv", "out.csv", *FROM, *named("subset-selection")).code == 0
    path = Path("out.csv.json")
    payload = json.loads(path.read_text())
    assert payload["columns"][0].pop("drawing") == 2
    path.write_text(json.dumps(payload))
    assert run("certify", "--verify", "out.csv.json").code == 0
    payload["columns"][0]["drawing"] = "2"
    path.write_text(json.dumps(payload))
    refused = run("certify", "--verify", "out.csv.json")
    assert refused.code == 4
    assert "drawing: '2' must be a whole number" in refused.err


@pytest.mark.parametrize("name", ["subset-selection", "block-response"])
def test_the_meaning_of_reports_is_declared_and_not_verified(run: Run, name):
    """Sets and numbers are the same whatever their categories are called."""
    write("in.csv")
    assert run("perturb", "in.csv", "out.csv", *FROM, *named(name)).code == 0
    payload = json.loads(Path("out.csv.json").read_text())
    options = payload["columns"][0]["options"]
    for labels in (options["categories"], options["categories"][::-1]):
        options["categories"] = labels
        Path("out.csv.json").write_text(json.dumps(payload))
        done = run("certify", "--verify", "out.csv.json")
        assert done.code == 0
        assert f"declared, not verified: ward is about {', '.join(labels)}, in this order" in done.out
        assert ("ward has reports of drawing 2" in done.out) == (name == "subset-selection")


@pytest.mark.lengthy
def test_a_report_of_another_mechanism_is_found(run: Run):
    write("in.csv")
    for name in NAMES:
        assert run("perturb", "in.csv", "out.csv", *FROM, *named(name), "--force").code == 0
        lines = Path("out.csv").read_text().splitlines()
        lines[5] = lines[5].partition(",")[0] + ",zz"
        Path("changed.csv").write_text("\n".join([*lines, ""]))
        done = run("estimate", "changed.csv", "--sidecar", "out.csv.json", "--column", "ward")
        assert done.code == 1
        assert "row 4 (line 6) is no report of this release" in done.err
        assert "zz" not in done.err


def many_files(run: Run, name):
    """The files of a released dataset, whose files have the same values."""
    Path("in").mkdir()
    for part in range(2):
        write(f"in/{part}.parquet", site=["ab"[part]] * 300)
    assert run("perturb", "in", "out", *FROM, *named(name)).code == 0
    return sorted(Path("out").glob("*.parquet"))


@pytest.mark.parametrize("name", [*NAMES, "prefix-response"])
def test_files_of_a_dataset_share_no_noise(run: Run, monkeypatch, name):
    """Equal reports of all rows have a probability below 1e-60."""
    monkeypatch.setattr(f"{__name__}.FROM", FROM if name in NAMES else [*FROM[:2], "--epsilon", "1", *PREFIXES])
    first, second = (pq.read_table(part).column("ward") for part in many_files(run, name))
    assert first != second


@pytest.mark.lengthy
@every_name
def test_a_dataset_of_many_files(run: Run, name):
    parts = many_files(run, name)
    assert run("certify", "--verify", "out/_release.json").code == 0
    assert run("estimate", parts[0], "--sidecar", "out/_release.json", "--column", "ward").code == 0
    pq.write_table(pa.concat_tables([pq.read_table(part) for part in parts]), "one.parquet")
    for options in (["--json"], ["--by", "site", "--json"]):
        whole = run("estimate", "out", "--column", "ward", *options)
        alone = run("estimate", "one.parquet", "--sidecar", "out/_release.json", "--column", "ward", *options)
        assert whole.code == alone.code == 0
        assert json.loads(whole.out) == json.loads(alone.out)
    assert [one["reports"] for one in json.loads(whole.out)["estimates"]] == [300, 300]
    assert "--quantiles: is for numbers" in run("estimate", "out", "--column", "ward", "--quantiles", "0.5").err
    parts[1].write_bytes(parts[0].read_bytes())
    assert "is not the file" in run("estimate", "out", "--column", "ward").err


MARK = "Zyzzyva-7719"


@pytest.mark.lengthy
@every_name
@pytest.mark.parametrize("missing", ["error", "keep", "drop"])
def test_categories_of_the_data_are_in_no_output(run: Run, name, missing):
    """Dictionaries, unused categories, metadata, and values that another category stands for."""
    import pandas as pd

    values = [MARK if row == 3 else None if missing != "error" and row == 5 else v for row, v in enumerate(VALUES)]
    ward = pd.Categorical(values, categories=[*LABELS, MARK, MARK + "-unused"])
    frame = pd.DataFrame({"ward": ward, "plan": pd.Categorical(["A"] * 300)})
    frame.attrs = {"raw": MARK}
    write("other.csv")
    frame.to_parquet("in.parquet")
    frame.to_csv("in.csv", index=False)
    for file in ("in.parquet", "in.csv"):
        assert MARK.encode() in Path(file).read_bytes()
        target = file.replace("in", "out")
        done = run("perturb", file, target, *FROM, *named(name), "--other", "else", "--missing", missing)
        assert done.code == 0, done.err
        assert "the categories of 'ward'" not in done.out
        for written in (target, f"{target}.json"):
            assert MARK.encode() not in Path(written).read_bytes()
        assert MARK not in done.out
    released = pd.read_parquet("out.parquet")
    assert len(released) == (299 if missing == "drop" else 300)
    assert released["ward"].isna().sum() == (missing == "keep")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--categories", "a"], "must be labels separated by commas"),
        (["--categories", "a,a"], "'a' is given twice"),
        (["--categories", "a,b", "--categories-from", "wards.txt"], "both given"),
        (["--categories", "a,b", "--mechanism", "piecewise"], "has no such option"),
        (["--mechanism", "categorical"], "--categories, --categories-from: missing"),
        (["--categories", "5", "--other", "x"], "is not one of the codes 0 to 4"),
        (["--categories", "5", "--size", "2"], "categorical has no such option"),
        (["--categories", "9999999"], "at most 1048576"),
    ],
)
def test_wrong_options_are_usage_errors(run: Run, options, words):
    write("in.csv")
    done = run("perturb", "in.csv", "out.csv", "--column", "ward", "--epsilon", "1", *options)
    assert done.code == 2
    assert words in done.err
    assert not Path("out.csv").exists()


def test_a_column_of_texts_points_to_categories(run: Run):
    for suffix in ("csv", "parquet"):
        write(f"in.{suffix}")
        for options in ([], ["--lower", "0", "--upper", "1"]):
            done = run("perturb", f"in.{suffix}", f"out.{suffix}", "--column", "ward", "--epsilon", "1", *options)
            assert done.code in (1, 2)
            assert "--categories" in done.err


@pytest.mark.lengthy
def test_other_subcommands(run: Run):
    np.save("in.npy", np.arange(5))
    refused = run("perturb", "in.npy", "out.npy", "--categories", "5", "--epsilon", "1")
    assert refused.code == 2
    assert "is for columns; in.npy is one array" in refused.err
    lines = run("compare", "--categories", "266", "--epsilon", "1").out.splitlines()
    assert lines[3].split()[:5] == ["subset-selection", "a", "set", "of", "72"]
    assert [
        row["mechanism"] for row in json.loads(run("compare", "--categories", "a,b,c", "--epsilon", "1", "--json").out)
    ]
    assert run("compare", "--categories", "3", "--epsilon", "1", "--lower", "0").code == 2
    account = run("account", "randomised-response", "--categories", "5", "--epsilon", "1")
    assert "any two of the 5 categories" in account.out
    assert "attains epsilon 1" in account.out
    assert "2^64" in run("certify", "--mechanism", "block-response", "--categories", "300", "--epsilon", "1").out
