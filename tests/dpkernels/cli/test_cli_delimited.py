"""Delimited files: a release has the input's records and no other byte, or is refused."""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from dpkernels.cli.files import delimited
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.perturb import plan, rows
from dpkernels.cli.perturb.request import Request

BOUNDS = {"lower": [0.0], "upper": [1000.0], "epsilon": [1.0]}
# In the place of a report, so that it can be found again; no input has this text.
SENTINEL = 7e9
SENTINELS = re.compile(rb"7\d{9}\.25")


class Released:
    """A release whose reports are numbered, with the values that the engine was given."""

    def __init__(self, content: bytes, name: str, form: Layout, missing: str, block: int) -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            source, target = Path(folder) / "in.csv", Path(folder) / "out.csv"
            source.write_bytes(content)
            patch.setattr(delimited, "BLOCK_BYTES", block)
            patch.setattr(rows, "in_chunks", self._numbered)
            patch.setattr("os.fsync", lambda handle: None)
            self.seen: dict[int, float] = {}
            try:
                request = Request(
                    source=source,
                    target=target,
                    columns=[name],
                    mechanism=["piecewise"],
                    options=BOUNDS,
                    clip=False,
                    force=False,
                    ledger=[],
                    budget=[],
                    rows=[],
                    missing=missing,
                    decimals=None,
                    shuffle_rows=False,
                    sidecar=None,
                    file_format=form.file_format,
                    delimiter=form.delimiter,
                    multiline=form.multiline,
                )
                self.rows = plan.plan(request).release(False).rows
                self.output = target.read_bytes()
            except (ValueError, click.UsageError):
                assert [path.name for path in Path(folder).iterdir()] == ["in.csv"]
                raise

    def _numbered(self, engine: Any, bounds: Any, values: np.ndarray, *, start: int, row: int) -> np.ndarray:
        if len(values):
            bounds.check(values, start)
        rows = range(start, start + len(values))
        self.seen.update(zip(rows, values.tolist(), strict=True))
        return SENTINEL + np.array(rows) + 0.25


def parsed(content: bytes, delimiter: str) -> list[list[str]]:
    """Python's own reader's records; a byte is a character. A blank line is an empty cell if there is one column."""
    text = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    header = next(at for at, row in enumerate(rows) if row)
    return [row or [""] for row in rows[header:] if row or len(rows[header]) == 1]


def is_missing(cell: str) -> bool:
    return cell.strip() in ("", "NA", "NaN", "nan", "NULL", "null")


def check(content: bytes, name: str, form: Layout, missing: str, block: int) -> None:
    """What must hold of a release; ValueError where it is refused."""
    made = Released(content, name, form, missing, block)
    before, after = parsed(content, form.delimiter), parsed(made.output, form.delimiter)
    assert before[0] == after[0]
    at = before[0].index(name)
    there = [row for row in before[1:] if missing != "drop" or not is_missing(row[at])]
    assert len(after) - 1 == len(there) == made.rows
    reported = iter(SENTINELS.findall(made.output))
    for row, (old, new) in enumerate(zip(there, after[1:], strict=True)):
        assert old[:at] + old[at + 1 :] == new[:at] + new[at + 1 :]
        if is_missing(old[at]):
            assert new[at] == old[at].strip()
            continue
        assert new[at].encode() == next(reported)
        if missing != "drop":
            assert new[at] == f"{SENTINEL + row + 0.25:.2f}"
            assert made.seen[row] == float(old[at])
    assert next(reported, None) is None
    if missing == "error":  # with the cells put back, and the quotes around them, every byte is the input's
        cells = [re.escape(row[at].encode("latin-1")) for row in there]
        first, *rest = map(re.escape, SENTINELS.split(made.output))
        whole = first + b"".join(b'(?:"%b"|%b)%b' % (cell, cell, more) for cell, more in zip(cells, rest, strict=True))
        assert re.fullmatch(whole, content)


def written(cell: str, delimiter: str, quoted: bool) -> str:
    if quoted or any(mark in cell for mark in f'"\r\n{delimiter}'):
        return '"' + cell.replace('"', '""') + '"'
    return cell


TEXTS = st.text(st.sampled_from('ab 1,;\t"\n\r\xe9\xff\ufeff\u2028'), max_size=6)
NUMBERS = st.one_of(
    st.floats(0, 1000).map(repr), st.integers(0, 1000).map(str), st.sampled_from([" 7 ", "1e2", "+5", "0005", ".5"])
)
MISSING = st.sampled_from(["", "NA", "nan", "NaN", " null "])


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, str, Layout, str, int, bool]:
    """A sound file, its protected column, how to read it, and whether it must be released."""
    delimiter = draw(st.sampled_from(",;\t"))
    columns = draw(st.integers(1, 4))
    at = draw(st.integers(0, columns - 1))
    names = [f"c{number}" for number in range(columns)]
    missing = draw(st.sampled_from(["error", "error", "keep", "drop"]))
    cells = st.one_of(NUMBERS, NUMBERS, MISSING) if missing != "error" else NUMBERS
    rows = draw(st.lists(st.tuples(cells, *[TEXTS] * (columns - 1)), min_size=1, max_size=8))
    end = draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"]]))
    blank = columns > 1 and draw(st.booleans())
    text = ""
    for number, row in enumerate([names, *([*row[1 : at + 1], row[0], *row[at + 1 :]] for row in rows)]):
        quoted = [written(cell, delimiter, draw(st.booleans()) and number > 0) for cell in row]
        text += delimiter.join(quoted) + draw(st.sampled_from(end))
        text += draw(st.sampled_from(["", *end])) if blank else ""
    # In a table of one column, an empty cell that nothing ends is nothing.
    if draw(st.booleans()) and not (columns == 1 and is_missing(rows[-1][0])):
        text = text.rstrip("\r\n")
    form = Layout("csv", delimiter, multiline=draw(st.booleans()))
    broken = any(mark in cell for row in rows for cell in row[1:] for mark in "\r\n")
    sure = (form.multiline or not broken) and not (missing == "drop" and all(is_missing(row[0]) for row in rows))
    block = draw(st.sampled_from([1, 7, 64, 1 << 20]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "latin-1"]))
    content = text.encode(encoding, "replace" if encoding == "latin-1" else "strict")
    content = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content
    return content, names[at], form, missing, block, sure


COUNTS = [60, pytest.param(300, marks=pytest.mark.thorough), pytest.param(10_000, marks=pytest.mark.slow)]
over_counts = pytest.mark.parametrize("count", COUNTS)


def examples(count: int) -> settings:
    """So many, always the same."""
    return settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def sound_files_are_released(case: tuple[bytes, str, Layout, str, int, bool]) -> None:
    *wanted, sure = case
    try:
        check(*wanted)
    except ValueError:
        assert not sure


def damaged_files_are_refused_or_released_whole(
    case: tuple[bytes, str, Layout, str, int, bool], damages: list[tuple[float, int, bytes]]
) -> None:
    content, *wanted, _ = case
    for share, cut, put in damages:
        place = int(share * len(content))
        content = content[:place] + put + content[place + cut :]
    with suppress(ValueError, click.UsageError):
        check(content, *wanted)


DAMAGES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from([b"", *(bytes([one]) for one in b'",;\n\r\t1a\0')])),
    min_size=1,
    max_size=3,
)


@pytest.mark.lengthy
@over_counts
def test_sound_files_are_released(count: int) -> None:
    examples(count)(given(files())(sound_files_are_released))()


@over_counts
def test_damaged_files_are_refused_or_released_whole(count: int) -> None:
    examples(count)(given(files(), DAMAGES)(damaged_files_are_refused_or_released_whole))()
