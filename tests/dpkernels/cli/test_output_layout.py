"""The layout of an output says nothing of the true values: names of parts, row groups, encodings, codecs, estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import Run, command

from dpkernels.cli.files import parquet
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.opening import converted, open_source

run = pytest.fixture(command, name="run")

ROWS = 3000
WORD = ["--column", "word", "--categories", "x,z", "--other", "z", "--epsilon", "1", "--quiet"]
LONG = np.random.default_rng(5).bytes(100_000).hex()  # of one person, whom neighbouring files have or do not have
NEIGHBOURS = {"short": "x", "long": LONG}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 15)
    monkeypatch.setattr(parquet, "_PIECE_BYTES", 1 << 13)
    monkeypatch.setattr("dpkernels.cli.files.converted._BLOCK_ROWS", 1 << 7)
    monkeypatch.setattr("dpkernels.cli.files.delimited.BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.PART_BYTES", 1 << 13)


def table(word: str) -> pa.Table:
    words = ["x" if row % 3 else "y" for row in range(ROWS)]
    words[100] = word
    return pa.table({"word": words, "id": [f"{row:030d}" for row in range(ROWS)]})


def layout(path: Path) -> list[Any]:
    groups = map(pq.read_metadata(path).row_group, range(pq.read_metadata(path).num_row_groups))
    facts = ("has_dictionary_page", "encodings", "is_stats_set", "compression")
    return [
        (group.num_rows, *(str(getattr(group.column(i), fact)) for i in (0, 1) for fact in facts)) for group in groups
    ]


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "folder"])
def test_row_groups_and_parts_do_not_depend_on_true_values(run: Run, source: str) -> None:
    """One long cell moves the records of a text file between its blocks, and widens the rows of a Parquet file."""
    layouts = {}
    for name, word in NEIGHBOURS.items():
        Path(name).mkdir()
        given, target = Path(name, source), Path(name, "out" if source == "folder" else "out.parquet")
        if source == "in.csv":
            rows = zip(*table(word).to_pydict().values(), strict=True)
            given.write_text("word,id\n" + "".join(f"{','.join(row)}\n" for row in rows))
        elif source == "in.parquet":
            pq.write_table(table(word), given)
        else:
            given.mkdir()
            pq.write_table(table(word), given / "a.parquet", row_group_size=50)
        done = run("perturb", str(given), str(target), *WORD)
        assert done.code == 0, done.err
        files = sorted(target.glob("*.parquet")) if target.is_dir() else [target]
        layouts[name] = [(file.name, layout(file)) for file in files]
        assert sum(group[0] for _, groups in layouts[name] for group in groups) == ROWS
        assert sum(len(groups) for _, groups in layouts[name]) > 3
    assert layouts["short"] == layouts["long"]


def test_encodings_that_a_writer_chose_for_true_values_are_not_copied(run: Run) -> None:
    """Some writers give a dictionary to columns of few different values, and compress those that become smaller."""
    columns, layouts = table("x"), {}
    for name, has_any in (("few", True), ("many", False)):
        own: dict[str, Any] = {"use_dictionary": ["word"] * has_any, "write_statistics": ["word"] * has_any}
        codecs = {"word": "zstd" if has_any else "none", "id": "zstd"}
        pq.write_table(columns, f"{name}.parquet", compression=codecs, **own)
        assert run("perturb", f"{name}.parquet", f"{name}-out.parquet", *WORD).code == 0
        layouts[name] = layout(Path(f"{name}-out.parquet"))
    assert layouts["few"] == layouts["many"]


def test_the_estimate_of_a_size_counts_no_true_value(run: Run) -> None:
    estimates = {}
    for name, word in NEIGHBOURS.items():
        path = Path(f"{name}.parquet")
        pq.write_table(table(word), path)
        source = open_source(path, Layout("parquet"))
        kinds = None, Layout("csv", multiline=True)
        estimates[name] = [converted(source, kind).output_bytes(["word"]) for kind in kinds]
    assert estimates["short"] == estimates["long"]
