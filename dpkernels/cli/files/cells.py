"""Records of a delimited file with the cells of the chosen columns: to numbers, and to the lines of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dpkernels.cli.files import buffers
from dpkernels.cli.files.formats import Numbers
from dpkernels.cli.files.records import QUOTE, Dialect, Grid, Region

_WHOLE = 2.0**53  # Floats hold every whole number below.
# Texts of cells without a value, as pandas, R and databases write them.
_MISSING = ["", "NA", "NaN", "nan", "NULL", "null"]


@dataclass(frozen=True)
class Records:
    """Whole records and where the chosen columns' cells are in them.

    Attributes:
        region: the records.
        first: where each begins.
        last: where the content of each ends, before its line end.
        spans: of each chosen column, where its cells begin and end, quotes around them included: whether a cell was
            quoted may depend on its value.
        cells: their contents, without these quotes.
    """

    region: Region
    first: np.ndarray
    last: np.ndarray
    spans: dict[str | None, tuple[np.ndarray, np.ndarray]]
    cells: dict[str | None, pa.Array]

    @classmethod
    def of(cls, region: Region, grid: Grid, columns: dict[str | None, int]) -> Records:
        """Of columns by name and number."""
        text = np.frombuffer(region.text, np.uint8)
        inner = {name: grid.column(text, at) for name, at in columns.items()}
        cells = {name: _parts(region.text, span) for name, span in inner.items()}
        spans = {name: grid.whole(text, at) for name, at in columns.items()}
        return cls(region, grid.first, grid.last(text), spans, cells)

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Lines:
    """Records of the output.

    Attributes:
        text: their bytes.
        first: where each begins.
        last: where the content of each ends, before its line end.
    """

    text: pa.Buffer
    first: np.ndarray
    last: np.ndarray

    def only(self, rows: np.ndarray) -> Lines:
        """Those whose mask is true; a line end goes with the record before it."""
        begin = int(self.first[0]) if len(rows) else 0
        left = buffers.binary(self.text, np.append(self.first, self.text.size)).filter(buffers.array(rows))
        begins, lengths = begin + buffers.offsets(left)[:-1], (self.last - self.first)[rows]
        text = self.text.slice(0, begin).to_pybytes() + buffers.text(left).to_pybytes()
        return Lines(pa.py_buffer(text), begins, begins + lengths)

    def contents(self) -> pa.Array:
        """The records without line ends and blank lines between them."""
        return _parts(self.text, (self.first, self.last))


def replaced(piece: Records, reports: dict[str | None, Numbers]) -> Lines:
    """The records with reports for the cells of these columns, and every other byte as it is."""
    names = sorted(reports, key=lambda name: piece.spans[name][0][:1].tolist())
    columns = [_texts(piece.cells[name], reports[name]) for name in names]
    filled = columns[0]
    if len(names) > 1:  # in the order of the file
        order = np.arange(len(piece) * len(names)).reshape(len(names), -1).T.ravel()
        filled = pa.concat_arrays(columns).take(buffers.array(order))
    old = _alternating(piece.region.text, [piece.spans[name] for name in names], piece.region.size)
    new = pc.replace_with_mask(old, _every_other(len(piece) * len(names)), filled)
    # A record begins in the bytes that are copied before its first report, and ends in those after its last.
    moved = (buffers.offsets(new) - buffers.offsets(old))[:: 2 * len(names)]
    return Lines(buffers.text(new), piece.first + moved[: len(piece)], piece.last + moved[1 : len(piece) + 1])


def numbers(cells: pa.Array) -> Numbers:
    """The numbers of cells' contents, spaces around them apart.

    Raises:
        CellError: for the first that is neither a number nor missing.
    """
    found = _plain_numbers(cells) or _numbers_and_missing(cells)
    return replace(found, rounded=_rounded(cells, found.values))


def _plain_numbers(cells: pa.Array) -> Numbers | None:
    """None where one is missing or not a number, or may be one with spaces around it."""
    try:
        found = Numbers.of(_floats(buffers.as_text(cells)))
    except pa.ArrowInvalid:
        return None
    return None if found.missing is not None else found


def _numbers_and_missing(cells: pa.Array) -> Numbers:
    trimmed = pc.ascii_trim_whitespace(buffers.as_text(cells))
    missing = pc.is_in(trimmed, pa.array(_MISSING))
    filled = pc.if_else(missing, "0", trimmed)
    try:
        values = _floats(filled)
    except pa.ArrowInvalid:
        raise CellError(_first_that_is_none(filled), cells) from None
    mask = buffers.truths(missing)
    return Numbers(values, mask if mask.any() else None)


def _rounded(cells: pa.Array, values: np.ndarray) -> np.ndarray | None:
    """Where whole numbers from 2^53 on stand, which a float may not hold; None for nowhere."""
    large = np.abs(values) >= _WHOLE
    if not large.any():
        return None
    whole = buffers.truths(pc.match_substring_regex(buffers.as_text(cells), r"^\s*[+-]?[0-9]+\s*$"))
    return large & whole if (large & whole).any() else None


class CellError(ValueError):
    """A cell that is not a number.

    Attributes:
        row: its number in the piece.
    """

    def __init__(self, row: int, cells: pa.Array) -> None:
        self.row = row
        super().__init__(f"{cells[row].as_py().decode(errors='replace')!r}; every row needs a number")


def counted_again(piece: Records, names: int, columns: dict[str | None, int], dialect: Dialect) -> None:
    """Refuse records of which Arrow's own parser finds another number, or other cells in the chosen columns.

    Raises:
        ValueError: it does.
    """
    if not piece.region.text:
        return
    wanted = {str(at): pa.binary() for at in columns.values()}
    parse = csv.ParseOptions(
        delimiter=chr(dialect.delimiter), newlines_in_values=dialect.multiline, ignore_empty_lines=names > 1
    )
    numbered = [str(at) for at in range(names)]
    read = csv.ReadOptions(use_threads=False, block_size=len(piece.region.text) + 1, column_names=numbered)
    convert = csv.ConvertOptions(include_columns=list(wanted), column_types=wanted, check_utf8=False)
    try:
        table = csv.read_csv(pa.py_buffer(piece.region.text), read, parse, convert)
    except pa.ArrowInvalid:
        table = None
    if table is None or len(table) != len(piece) or not all(_same(table, piece, *one) for one in columns.items()):
        raise ValueError(f"the records from line {piece.region.line} on are not read the same by a second parser")


def _same(table: pa.Table, piece: Records, name: str | None, at: int) -> bool:
    cells = piece.cells[name]
    if QUOTE in piece.region.text:
        cells = pc.replace_substring(cells, '""', '"')
    return table.column(str(at)).equals(pa.chunked_array([cells]))


def _parts(text: bytes | pa.Buffer, span: tuple[np.ndarray, np.ndarray]) -> pa.Array:
    return _alternating(text, [span], len(text)).filter(_every_other(len(span[0])))


def _alternating(text: bytes | pa.Buffer, spans: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> pa.Array:
    """The parts of a text: before the first span, the first span, what is between it and the second, and so on."""
    places = np.empty((len(spans[0][0]), 2 * len(spans)), np.int32)
    for at, span in enumerate(spans):
        places[:, 2 * at], places[:, 2 * at + 1] = span
    return buffers.binary(text, np.concatenate([[0], places.ravel(), [size]]))


def _every_other(count: int) -> pa.Array:
    """False, true, false ... true, false, as many true ones."""
    return pa.Array.from_buffers(pa.bool_(), 2 * count + 1, [None, pa.py_buffer(b"\xaa" * (count // 4 + 1))])


def _texts(cells: pa.Array, reports: Numbers) -> pa.Array:
    """Reports as the shortest decimals that read back as the same numbers; missing cells as they are."""
    texts = pc.cast(buffers.array(reports.values), pa.string())
    if reports.missing is not None:
        own = pc.ascii_trim_whitespace(buffers.as_text(cells))
        texts = pc.if_else(buffers.array(reports.missing), own, texts)
    return texts.cast(pa.binary())


def _floats(texts: pa.Array) -> np.ndarray:
    return buffers.numbers(pc.cast(texts, pa.float64()))


def _first_that_is_none(texts: pa.Array) -> int:
    """The row of the first text that is not a number, by halves."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _floats(texts[low:middle])
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
