"""The data of a session: columns of any kind of table, read in blocks, with a bound on the rows of each person.

Nothing here depends on one person's rows in a way that another person's rows would show. A cell that is no number is
missing, whatever else its column holds; types and names of columns, and the number of rows a table can have, are taken
to be public. Which rows of a person count is decided by a keyed hash of the person and of the rows' own content, so it
depends neither on other persons nor on the order of rows.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.release import containers

BLOCK = 1 << 20  # rows that are read at once; sums of a block are exact in float64
MOST_ROWS = 1 << 29  # so that 64-bit integers hold every sum
LONGEST_LINE = 1 << 24  # bytes of a line of a CSV file, which pyarrow must find within a block
_ENDINGS = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

_TRUTH = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}

Block = dict[Any, np.ndarray]
ROWS = object()  # the name of a column of a block that no table has


def as_array(column: Any) -> np.ndarray:
    """Return a column as numbers, or as objects; missing cells are NaN or None.

    Its type alone decides how cells are read. A missing cell, which one person may have, does not change the others:
    integers become objects then, not floats, in which two persons could have one number.
    """
    match containers.kind(column):
        case "pandas":
            kind = column.dtype if isinstance(column.dtype, np.dtype) else getattr(column.dtype, "numpy_dtype", object)
            is_plain = kind is column.dtype or (np.dtype(kind).kind in "biuf" and not column.isna().any())
            array = column.to_numpy(dtype=kind) if is_plain else column.astype(object).to_numpy()
        case "polars":
            kind, name = column.dtype, str(column.dtype)
            is_plain = kind.is_float() or (kind.is_temporal() and name != "Time")
            if (kind.is_integer() and "128" not in name) or name == "Boolean":
                is_plain = not column.null_count()
            array = column.to_numpy() if is_plain else _objects(column.to_list())
        case "pyarrow":
            array = np.asarray(column) if _is_plain(column) else _objects(column.to_pylist())
        case _ if isinstance(column, np.ma.MaskedArray):
            array = np.ma.filled(column.astype(object), None)
        case _:  # NumPy would make texts of all cells of a list if one is a text.
            array = _objects(column) if isinstance(column, list | tuple) else np.asarray(column)
    if array.ndim != 1:
        raise ValueError(f"data: a column has {array.ndim} axes; one is needed")
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind in "mM":
        missing = np.isnat(array)
        array = array.astype(str).astype(object)  # Dates are texts, since in some units they would become numbers.
        array[missing] = None
    cells = (cell.decode(errors="replace") if isinstance(cell, bytes) else cell for cell in array.astype(object))
    return np.fromiter(cells, object, len(array))


def _is_plain(column: Any) -> bool:
    """Return whether NumPy reads the cells of a pyarrow column as what they are."""
    from pyarrow import types

    kind = column.type
    if types.is_integer(kind) or types.is_boolean(kind):
        return not column.null_count
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
    return is_text or types.is_floating(kind) or (types.is_temporal(kind) and not types.is_time(kind))


def _objects(cells: Sequence[Any]) -> np.ndarray:
    return np.fromiter(cells, object, len(cells))


def _number(cell: Any) -> float:
    try:
        # Cells of a column of truth values are texts if one person's is neither.
        return _TRUTH[cell] if isinstance(cell, str) and cell in _TRUTH else float(cell)
    except OverflowError:  # of an integer beyond all floats
        return math.inf if cell > 0 else -math.inf
    except Exception:  # Objects may raise any.
        return math.nan


def _text(cell: Any) -> str:
    try:
        return str(cell)
    except Exception:  # of an integer with thousands of digits, or of any object
        return hex(cell) if isinstance(cell, int) else type(cell).__name__


def numbers(array: np.ndarray) -> np.ndarray:
    """Return cells as float64: NaN for those that are missing or no number; infinities stay, bounds clip them."""
    return array.astype(np.float64) if array.dtype.kind in "biuf" else _by_cell(array, _number, np.float64)


class Keys:
    """Stated keys of one column. A cell has a key if both are the same number, or else the same text.

    So a key has the same rows whether a column holds numbers or texts of them, which one cell of it may decide.
    """

    def __init__(self, name: str, keys: Sequence[Any]) -> None:
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray) or not len(keys):
            raise ValueError(f"by: the keys of {name!r} are {keys!r}; state a list of them, or 'found'")
        self.name, self.keys = name, [key.item() if isinstance(key, np.generic) else key for key in keys]
        self._codes: dict[Any, int] = {}
        for index, key in enumerate(self.keys):
            if not isinstance(key, str | int | float) or key != key:
                raise TypeError(f"by: key {key!r} of {name!r} must be a text or a number")
            if self._codes.setdefault(_form(key), index) != index:
                raise ValueError(f"by: the keys of {name!r} have {key!r} twice; a row is in one group")

    def __len__(self) -> int:
        return len(self.keys)

    def codes(self, array: np.ndarray) -> np.ndarray:
        """Return for each cell the index of its key, or -1."""
        numeric = {form: code for form, code in self._codes.items() if isinstance(form, float)}
        if array.dtype.kind in "iuf":
            ordered = np.array(sorted(numeric) or [math.nan])
            codes = np.array([numeric.get(number, -1) for number in ordered.tolist()])
            places = np.minimum(np.searchsorted(ordered, array), len(ordered) - 1)
            return np.where(ordered[places] == array, codes[places], -1)
        return _by_cell(array.astype(object), self._code)

    def _code(self, cell: Any) -> int:
        return -1 if _is_missing(cell) else self._codes.get(_form(cell), self._codes.get(_text(cell), -1))


def _form(cell: Any) -> float | str:
    """Return a cell's number, or its text if it has none."""
    number = _number(cell)
    return number if number == number else _text(cell)


def key_of(cell: Any) -> Any:
    """Return the key that a cell has when keys are found, or None if it is missing: a number, or else a text."""
    if _is_missing(cell):
        return None
    form = _form(cell)
    return int(form) if isinstance(form, float) and form.is_integer() else form


def _is_missing(cell: Any) -> bool:
    try:
        return cell is None or bool(cell != cell)
    except Exception:  # of pandas' NA, of arrays, of signalling NaNs
        return True


def _name(cell: Any) -> Any:
    """Return what equal cells of one type have in common, and can be looked up."""
    try:
        hash(cell)
    except TypeError:
        return repr(cell)
    return cell


def _by_cell(array: np.ndarray, function: Callable[[Any], Any], kind: Any = np.int64) -> np.ndarray:
    """Return a function of each cell, computed once for equal cells of one type."""
    known: dict[Any, Any] = {}
    values = []
    for cell in array.tolist():
        name = type(cell), _name(cell)
        if (value := known.get(name)) is None:
            value = known[name] = function(cell)
        values.append(value)
    return np.array(values, kind)


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return a hash of 64-bit words, SplitMix64's: it need not be secret, because any choice of rows is private."""
    words = (words ^ (words >> np.uint64(30))) * _MIX[1]
    words = (words ^ (words >> np.uint64(27))) * _MIX[2]
    return words ^ (words >> np.uint64(31))


def _hashes(array: np.ndarray, secret: bytes) -> np.ndarray:
    """Return a keyed hash of each cell: the same for the same number, or else for the same text, and for all missing.

    A number has one hash in every type of column, because the cells of one person may decide the type of all.
    """
    key = int.from_bytes(hashlib.blake2b(secret, digest_size=8).digest(), "little")

    def of_text(cell: Any) -> int:
        text = "" if _is_missing(cell) else _text(cell)
        return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), key=secret, digest_size=8).digest())

    values = numbers(array)
    hashes = _mixed((values + 0.0).view(np.uint64) * _MIX[0] + np.uint64(key))
    lost = np.isnan(values)
    hashes[lost] = _by_cell(array[lost].astype(object), of_text, np.uint64)
    return hashes


def _codes_of_persons(array: np.ndarray, known: dict[Any, int]) -> np.ndarray:
    """Return a number for each person, -1 where the cell is missing; ``known`` grows with new persons."""
    if array.dtype.kind in "biuf":
        distinct, places = np.unique(array, return_inverse=True)
    else:
        distinct, places = array, np.arange(len(array))
    cells = distinct.tolist()
    codes = [-1 if _is_missing(cell) else known.setdefault(_name(cell), len(known)) for cell in cells]
    return np.array(codes, np.int64)[places]


class DelimitedLines:
    """CSV files of which every line is read by itself.

    A line with a quote that is not closed, a carriage return within it, too many or too few cells, or more than
    ``LONGEST_LINE`` bytes is no row. It does not change how other lines are read, which are of other persons. Cells are
    bytes until they are asked for: a type that is guessed would depend on the content, and a text that is not UTF-8
    would be an error.
    """

    def __init__(self, paths: Sequence[Path], delimiter: str) -> None:
        self.paths, self.delimiter = paths, delimiter
        headers = [self._header(path) for path in paths]
        if any(header != headers[0] for header in headers):
            raise ValueError(f"data: the files of {paths[0].parent} have different columns")
        self.names = headers[0]

    def to_batches(self, columns: Sequence[str], batch_size: int) -> Iterator[Any]:
        """Yield the rows of some columns, as bytes and null where a cell is empty; batches may be of any size."""
        import pyarrow as pa
        import pyarrow.csv as csv

        types = dict.fromkeys(columns, pa.binary())
        cells = csv.ConvertOptions(
            column_types=types, include_columns=list(columns), strings_can_be_null=True, null_values=[""]
        )
        for path in self.paths:
            for text in self._sound_lines(path):
                reading = csv.ReadOptions(column_names=self.names, block_size=len(text) + 1)
                yield from csv.read_csv(pa.py_buffer(text), reading, self._parse(), cells).to_batches()

    def _parse(self) -> Any:
        import pyarrow.csv as csv

        return csv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=lambda _: "skip")

    def _header(self, path: Path) -> list[str]:
        import pyarrow as pa
        import pyarrow.csv as csv

        with path.open("rb") as file:
            line = file.readline(LONGEST_LINE)
        if not line.strip():
            raise ValueError(f"data: {path} is empty; a header is needed")
        names: list[str] = csv.read_csv(pa.py_buffer(line), parse_options=self._parse()).column_names
        return names

    def _sound_lines(self, path: Path) -> Iterator[bytes]:
        """Yield whole lines of a file without its header, those alone that are rows by themselves."""
        with path.open("rb") as file:
            file.readline(LONGEST_LINE)
            held, is_long = b"", False
            while block := file.read(LONGEST_LINE // 2):
                held += block
                whole, feed, held = held.rpartition(b"\n")
                if is_long and feed:  # The end of a line whose beginning was too long.
                    whole, is_long = whole.partition(b"\n")[2], False
                if feed and (lines := self._sound(whole)):
                    yield lines
                if len(held) > LONGEST_LINE:
                    held, is_long = b"", True
            if held and not is_long and (lines := self._sound(held)):
                yield lines

    def _sound(self, lines: bytes) -> bytes:
        import pyarrow as pa
        import pyarrow.compute as pc

        is_plain = b'"' not in lines and lines.count(b"\r") == lines.count(b"\r\n") + lines.endswith(b"\r")
        if is_plain and len(lines) <= LONGEST_LINE:
            return lines
        mark = re.escape(self.delimiter)
        cell = rf'(?:[^"\r{mark}][^\r{mark}]*|"(?:[^"\r]|"")*")?'
        array = pa.array(lines.split(b"\n"), pa.binary())
        is_sound = pc.match_substring_regex(array, rf"^{cell}(?:{mark}{cell})*\r?$")
        # Wherever it stands: the end of a block, which depends on other lines, must not decide.
        is_short = pc.less_equal(pc.binary_length(array), LONGEST_LINE)
        return b"\n".join(array.filter(pc.and_(is_sound, is_short)).to_pylist())


class UnknownColumnError(ValueError):
    """A name that is not a column's; ``columns`` are the names, which may be cells of a file without a header."""

    def __init__(self, name: str, columns: Sequence[Any]) -> None:
        self.name, self.columns = name, tuple(map(str, columns))
        super().__init__(f"column: there is no {name!r}; the data has {', '.join(self.columns)}")


@dataclass
class Table:
    """Columns that are read in blocks, and which of their rows count.

    Attributes:
        kind: of the data, in which results are returned: "pandas", "polars", "pyarrow" or "dict".
        columns: the names.
        files: a pyarrow dataset or ``DelimitedLines``, or None if ``data`` holds the columns.
        persons: the number of each row's person, or None if a row is a person; -1 counts for nobody.
        counted: whether a row counts, or None if all do.
    """

    kind: str
    columns: tuple[str, ...]
    data: Any
    files: Any = None
    persons: np.ndarray | None = field(default=None, repr=False)
    counted: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def of(cls, data: Any) -> Table:
        """Return the table of a pandas or polars frame, a pyarrow table, a dict of arrays, or a path.

        Raises:
            TypeError: data of another kind.
            ValueError: columns of different lengths, or too many rows.
        """
        if isinstance(data, str | os.PathLike):
            return cls._of_files(Path(data))
        if isinstance(data, Mapping):
            columns = {name: as_array(column) for name, column in data.items()}
            if len({len(column) for column in columns.values()}) != 1:
                raise ValueError("data: the columns have different lengths, or there are none")
            if len(next(iter(columns.values()))) > MOST_ROWS:
                raise ValueError(f"data: has more than {MOST_ROWS} rows")
            return cls("dict", tuple(columns), columns)
        kind = containers.kind(data)
        if kind not in ("pandas", "polars", "pyarrow") or not containers.is_table(data):
            raise TypeError(
                f"data: {type(data).__name__} is not a pandas or polars DataFrame, a pyarrow Table, a dict of arrays, "
                "or the path of a CSV or Parquet file"
            )
        names = containers.columns_of(data)
        _check_unique(names)
        if len(data) > MOST_ROWS:
            raise ValueError(f"data: has more than {MOST_ROWS} rows")
        return cls(kind, tuple(names), data)

    @classmethod
    def _of_files(cls, path: Path) -> Table:
        import pyarrow.dataset as datasets

        endings = {file.suffix for file in path.iterdir()} if path.is_dir() else {path.suffix}
        formats = {_ENDINGS[ending] for ending in endings if ending in _ENDINGS}
        if len(formats) != 1:
            raise ValueError(f"data: {path} must be a .csv, .tsv or .parquet file, or a folder of one kind of these")
        if formats == {"parquet"}:
            files = datasets.dataset(path, format="parquet")
            _check_unique(files.schema.names)
            return cls("pyarrow", tuple(files.schema.names), None, files)
        if {".csv", ".tsv"} <= endings:
            raise ValueError(f"data: {path} has .csv and .tsv files; name a folder of one kind of them")
        paths = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _ENDINGS)
        lines = DelimitedLines(paths, "\t" if ".tsv" in endings else ",")
        _check_unique(lines.names)
        return cls("pyarrow", tuple(lines.names), None, lines)

    def check_columns(self, *names: str) -> None:
        """Raise an UnknownColumnError for a name that is not a column's."""
        for name in names:
            if name not in self.columns:
                raise UnknownColumnError(name, self.columns)

    def _all_blocks(self, names: Sequence[str]) -> Iterator[Block]:
        if self.files is not None:
            rows = 0
            for batch in self.files.to_batches(columns=list(names), batch_size=BLOCK):
                if (rows := rows + batch.num_rows) > MOST_ROWS:
                    raise ValueError(f"data: has more than {MOST_ROWS} rows")
                for start in range(0, batch.num_rows, BLOCK):
                    piece = batch.slice(start, BLOCK)
                    yield {name: as_array(piece.column(name)) for name in names} | {ROWS: np.empty(piece.num_rows)}
            return
        length = len(next(iter(self.data.values()))) if self.kind == "dict" else len(self.data)
        for start in range(0, length, BLOCK):
            piece = slice(start, min(start + BLOCK, length))
            by_place = {name: getattr(self.data[name], "iloc", self.data[name]) for name in names}  # of pandas
            columns = {name: as_array(by_place[name][piece]) for name in names}
            yield columns | {ROWS: np.empty(piece.stop - piece.start)}

    def blocks(self, *names: str) -> Iterator[tuple[Block, np.ndarray | None]]:
        """Yield the columns of up to 2^20 rows that count, and the persons of these rows, None where a row is one.

        The column ``ROWS`` is as long as the others and holds nothing.
        """
        start = 0
        for block in self._all_blocks(names):
            stop = start + len(block[ROWS])
            self._check_length(stop)
            if self.counted is None or self.persons is None:
                yield block, None
            else:
                keep = self.counted[start:stop]
                yield {name: array[keep] for name, array in block.items()}, self.persons[start:stop][keep]
            start = stop
        self._check_length(start, whole=True)

    def _check_length(self, rows: int, *, whole: bool = False) -> None:
        known = rows if self.counted is None else len(self.counted)
        if rows > known or (whole and rows < known):
            raise RuntimeError("data: has changed since the session was opened; open another one with the same ledger")

    def bound_rows(self, person: str, rows: int, secret: bytes) -> None:
        """Let at most so many rows of each person count, chosen by a keyed hash; rows without a person never count."""
        self.check_columns(person)
        known: dict[Any, int] = {}
        persons, hashes = [], []
        for block in self._all_blocks(self.columns):
            persons.append(_codes_of_persons(block[person], known))
            content = np.zeros(len(persons[-1]), np.uint64)
            for name in self.columns:
                content = _mixed(content * _MIX[0] + _hashes(block[name], secret))
            hashes.append(content)
        self.persons = np.concatenate(persons) if persons else np.zeros(0, np.int64)
        order = np.lexsort((np.concatenate(hashes) if hashes else np.zeros(0), self.persons))
        ordered = self.persons[order]
        rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        self.counted = np.zeros(len(order), bool)
        self.counted[order[rank < rows]] = True
        self.counted &= self.persons >= 0


def _check_unique(names: Sequence[Any]) -> None:
    if len(set(names)) < len(names):
        raise ValueError("data: two columns have the same name; rename one of them")


def table_of(kind: str, columns: Mapping[str, Any]) -> Any:
    """Return columns as a table of a kind: "pandas", "polars", "pyarrow" or "dict"."""
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame(dict(columns))
    if kind == "polars":
        import polars as pl

        return pl.DataFrame(dict(columns), strict=False)
    if kind == "pyarrow":
        import pyarrow as pa

        return pa.table(dict(columns))
    return {name: np.asarray(column) for name, column in columns.items()}


def check_bounds(lower: Any, upper: Any) -> tuple[float, float]:
    """Return two finite numbers of which the second is the larger."""
    low, high = (checks.number(name, end) for name, end in (("lower", lower), ("upper", upper)))
    checks.interval(low, high)
    return float(low), float(high)
