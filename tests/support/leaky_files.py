"""Random files that hold the true values of their protected columns in many places, and a search for these values.

A case is a function of one number. Its values have 9 to 17 random digits, so no release has them by chance: the search
reports a number of eight bytes or more that occurs once, and numbers of four bytes if two different ones occur.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import dpkernels as dpk

SEED = 20261
KEY = dpk.key_from_bytes(bytes(range(32)))
UPPER = 1e15
MECHANISM = dpk.piecewise(epsilon=1.0, lower=0.0, upper=UPPER)
OPTIONS = ["--mechanism", "piecewise", "--epsilon", "1", "--lower", "0", "--upper", "1e15"]
CODECS = ["none", "none", "none", "snappy", "gzip", "zstd"]
KINDS = ["float64", "float64", "float32", "int64", "int32", "uint64", "Int64", "Float64", "int64[pyarrow]"]


# The search


@dataclass
class Needles:
    """What must not be found: numbers in every encoding, and texts of rows that are dropped."""

    wide: dict[bytes, str] = field(default_factory=dict)
    narrow: dict[bytes, str] = field(default_factory=dict)

    def add_numbers(self, values: Iterable[float]) -> None:
        for value in values:
            name, single = repr(value), np.float32(value)
            short = np.format_float_scientific(single), np.format_float_positional(single, trim="-")
            for text in (name, *short, f"{value:.17g}", f"{value:.15g}", f"{value:.12g}", str(int(value))):
                self.wide[text.encode()] = name
            self.wide |= {struct.pack(f"{order}d", value): name for order in "<>"}
            self.narrow |= {struct.pack(f"{order}f", value): name for order in "<>"}
            if value == int(value):
                self.wide |= {struct.pack(f"{order}q", int(value)): name for order in "<>"}
                if value < 1 << 31:
                    self.narrow |= {struct.pack(f"{order}i", int(value)): name for order in "<>"}

    def found(self, content: bytes) -> set[str]:
        """Return the values that occur in some bytes, or in base64 inside them."""
        names = set[str]()
        for part in (content, *_decoded(content)):
            names |= {name for text, name in self.wide.items() if text in part}
            narrow = {name for text, name in self.narrow.items() if text in part}
            names |= narrow if len(narrow) > 1 else set()
        return names


def _decoded(content: bytes) -> Iterator[bytes]:
    for run in re.findall(rb"[A-Za-z0-9+/]{24,}", content):
        for skip in range(4):
            text = run[skip:]
            yield base64.b64decode(text[: len(text) // 4 * 4])


def contents(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, and what is compressed in it."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".gz":
        yield gzip.decompress(content)
    if path.suffix == ".parquet":
        texts = [schema.name for schema in pq.read_schema(path) if pa.types.is_string(schema.type)]
        for dictionaries in ([], texts):
            table = pq.read_table(path, read_dictionary=dictionaries)
            yield ipc(table)
            yield str(table.schema.metadata).encode()


def ipc(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


# The files


@dataclass
class Case:
    """Columns by name, those that are protected, and where else their values are."""

    number: int
    source: np.random.Generator
    rows: int
    protected: list[str]
    frame: pd.DataFrame
    missing: str
    needles: Needles
    narrow: set[str] = field(default_factory=set)  # columns of 32-bit integers

    def text(self) -> str:
        """Return some of the true values, as people write them down."""
        values = self.frame[self.source.choice(self.protected)].dropna().to_numpy(float)
        some = values[: self.source.integers(1, len(values) + 1)]
        return [json.dumps, str, ";".join][0](some.tolist()) if self.pick(True, False) else f"max {some.max()!r}"

    def note(self) -> bytes:
        """Return some of the true values as text, as numbers of 8 or 4 bytes, or in base64."""
        values = self.frame[self.source.choice(self.protected)].dropna().to_numpy(float)
        dtype = self.pick("<f8", ">f8", "<f4", "<i8")
        encoding = self.pick("text", "binary", "base64")
        binary = values.astype(dtype).tobytes()
        return {"text": self.text().encode(), "binary": binary, "base64": base64.b64encode(binary)}[encoding]

    def pick(self, *choices: Any) -> Any:
        return choices[self.source.integers(len(choices))]


def case(number: int) -> Case:
    source = np.random.default_rng([SEED, number])
    rows = int(source.integers(6, 40))
    missing = ["refuse", "keep", "drop"][source.integers(3)]
    protected = ["age", "pay"][: source.integers(1, 3)]
    gone = source.random(rows) < 0.3
    gone[:2] = [True, False]
    needles, frame, narrow = Needles(), pd.DataFrame({"id": np.arange(rows)}), set[str]()
    for name in protected:
        kind = KINDS[source.integers(len(KINDS))]
        if "32" in kind:
            values = source.uniform(1e8, 2e9, rows).astype(np.float32).astype(float)
        elif "int" in kind.lower():
            values = np.floor(source.uniform(1e14, 9e14, rows))
        else:
            values = source.uniform(1e8, 9e14, rows)
        needles.add_numbers(values.tolist())
        narrow |= {name} if kind == "int32" else set()
        column = pd.Series(values).astype(kind if kind != "int32" else "int64")
        if missing != "refuse" and kind not in ("float64", "float32"):
            column = column.astype({"int64": "Int64", "int32": "Int64", "uint64": "UInt64"}.get(kind, kind))
        if missing != "refuse":
            column = column.mask(gone)
        frame[name] = column
    people = [f"person-{token:012d}" for token in source.integers(10**11, 10**12, rows)]
    frame["who"] = pd.Series(people).astype(["str", "category", "string"][source.integers(3)])
    if missing == "drop":
        needles.wide |= {one.encode(): one for one, out in zip(people, gone, strict=True) if out}
    return Case(
        number, source, rows, protected, frame[list(source.permutation(frame.columns))], missing, needles, narrow
    )


def arrow_table(it: Case, unused: bool = True) -> pa.Table:
    """Return the columns as an Arrow table, with the true values in some of the places that metadata have."""
    frame = it.frame.copy()
    if it.pick(True, False):
        frame.attrs = {"rows": it.text(), it.text(): 1}
    match it.pick("none", "none", "index", "range", "labels"):
        case "index":
            frame = frame.set_index(it.pick("id", it.protected[0]))
        case "range":
            frame.index = pd.RangeIndex(5, 5 + it.rows, name=it.text())
        case "labels":
            frame.columns.name = it.text()
    table = pa.Table.from_pandas(frame)
    names = table.column_names
    table = table.append_column("nested", nested(it))
    if unused:
        words = pa.array(["yes", "no", *(f"was {value}" for value in it.needles.wide.values())][: it.rows + 2])
        indices = pa.array(it.source.integers(0, 2, it.rows).astype(np.int32))
        table = table.append_column("answer", pa.DictionaryArray.from_arrays(indices, words))
    notes = dict(table.schema.metadata)
    for _ in range(it.source.integers(0, 3)):
        notes[it.pick(b"note", b"PANDAS_ATTRS", b"geo", it.note())] = it.note()
    if it.pick(*[False] * 5, True):
        notes[b"pandas"] = it.pick(b"[1", b'"%b"' % base64.b64encode(it.note()), b'{"columns": 3, "attributes": [1]}')
    fields = []
    for one in table.schema:
        own = {it.pick(b"comment", it.note()): it.note()} if it.pick(True, False) else {}
        if it.pick(*[False] * 7, True) and one.name in names:
            own |= {b"ARROW:extension:name": b"acme.people", b"ARROW:extension:metadata": it.note()}
        fields.append(one.with_metadata(own or None))
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, notes))


def nested(it: Case) -> pa.Array:
    """Return a column of lists or structs, whose inner fields have metadata."""
    numbers = pa.array(it.source.integers(0, 9, it.rows))
    inner = pa.field("part", pa.int64(), metadata={it.note(): it.note()})
    match it.pick("list", "large", "fixed", "struct", "map", "deep"):
        case "list":
            kind: Any = pa.list_(inner)
        case "large":
            kind = pa.large_list(inner)
        case "fixed":
            kind = pa.list_(inner, 1)
        case "struct":
            kind = pa.struct([inner])
        case "map":
            kind = pa.map_(pa.string(), inner)
        case _:
            kind = pa.list_(pa.field("deep", pa.struct([inner]), metadata={"note": it.note()}))
    values = [
        [("key", one)] if pa.types.is_map(kind) else {"part": one} if pa.types.is_struct(kind) else [one]
        for one in numbers.to_pylist()
    ]
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        values = [[{"part": one}] for one in numbers.to_pylist()]
    return pa.array(values, kind)


def hidden(it: Case, table: pa.Table) -> pa.Table:
    """Return the table with a column that has true values in memory under its nulls, and as a slice of a longer one."""
    values = it.frame[it.protected[0]].fillna(0).to_numpy(float)
    nulls = np.packbits(np.zeros(it.rows, bool), bitorder="little")
    column = pa.Array.from_buffers(pa.float64(), it.rows, [pa.py_buffer(nulls), pa.py_buffer(values)])
    table = table.append_column("shown", column)
    end = int(it.source.integers(1, it.rows + 1))
    table = table.slice(0, end)
    it.rows, it.frame = end, it.frame.iloc[:end]
    return table


def write_parquet(it: Case, table: pa.Table, path: Path) -> None:
    """Write a table with random settings."""
    for name in it.narrow:
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at).with_type(pa.int32()), table.column(at).cast(pa.int32()))
    pq.write_table(
        table,
        path,
        compression=it.pick(*CODECS),
        use_dictionary=it.pick(True, False),
        write_statistics=it.pick(True, True, False),
        row_group_size=int(it.source.integers(2, it.rows + 2)),
        write_page_index=it.pick(True, False),
        data_page_version=it.pick("1.0", "2.0"),
        store_schema=it.pick(True, True, True, False),
        sorting_columns=it.pick(None, [pq.SortingColumn(table.column_names.index(it.protected[0]))]),
    )


# The releases: each leaves files in the folder "out". The command is ``call``.


def command_options(it: Case) -> list[str]:
    columns = [text for name in it.protected for text in ("--column", name)]
    missing = [] if it.missing == "refuse" else ["--missing", it.missing]
    return [*columns, *OPTIONS, *missing, *it.pick([], ["--round", "1"])]


def release_parquet(it: Case, call: Callable[..., Any]) -> None:
    shuffled = it.pick([], ["--shuffle-rows"])
    table = arrow_table(it, unused=bool(shuffled) or it.missing == "drop")
    write_parquet(it, table, Path("in.parquet"))
    call("perturb", "in.parquet", "out/a.parquet", *command_options(it), *shuffled)


def release_dataset(it: Case, call: Callable[..., Any]) -> None:
    table = arrow_table(it, unused=it.missing == "drop")
    Path("in").mkdir()
    half = max(1, it.rows // 2)
    state = it.source.bit_generator.state
    for at, part in enumerate((table.slice(0, half), table.slice(half))):
        it.source.bit_generator.state = state
        if len(part):
            write_parquet(it, part, Path(f"in/{at}.parquet"))
    call("perturb", "in", "out/set", *command_options(it))


def release_text(it: Case, call: Callable[..., Any]) -> None:
    suffix = it.pick("csv", "tsv", "csv.gz", "tsv.gz")
    text = it.frame.to_csv(index=False, sep="\t" if "tsv" in suffix else ",", lineterminator=it.pick("\n", "\r\n"))
    text = it.pick("", "\ufeff") + it.pick("", "\n") + text
    # The packer's own note of a name has the values, too.
    packed = io.BytesIO()
    with gzip.GzipFile(it.text()[:200], "wb", 9, packed) as out:
        out.write(text.encode())
    Path(f"in.{suffix}").write_bytes(packed.getvalue() if "gz" in suffix else text.encode())
    call("perturb", f"in.{suffix}", f"out/a.{suffix}", *command_options(it), *it.pick([], ["--shuffle-rows"]))


def release_array(it: Case, call: Callable[..., Any]) -> None:
    values = it.frame[it.protected[0]].to_numpy(float, na_value=np.nan)
    np.save("in.npy", values)
    with Path("in.npy").open("ab") as file:
        file.write(it.note())  # after the array
    missing = [] if it.missing == "refuse" else ["--missing", it.missing]
    call("perturb", "in.npy", "out/a.npy", *OPTIONS, *missing)


def release_arrow(it: Case, call: Callable[..., Any]) -> None:
    table = hidden(it, arrow_table(it))
    if it.frame[it.protected].isna().any(axis=1).all():
        return
    released = dpk.perturb(table, dict.fromkeys(it.protected, MECHANISM), key=KEY, missing=it.missing)
    Path("out/a.arrow").write_bytes(ipc(released))
    Path("out/a.pickle").write_bytes(pickle.dumps(released, 5))
    pq.write_table(released, "out/a.parquet", compression=it.pick(*CODECS))


def release_pandas(it: Case, call: Callable[..., Any]) -> None:
    frame = it.frame.copy()
    frame.attrs = {"rows": it.text()}
    raw = frame[it.protected[0]].astype("Float64")
    frame["shown"] = raw.where(np.zeros(it.rows, bool))
    words = ["yes", "no", *(f"was {value}" for value in raw.dropna())]
    frame["answer"] = pd.Categorical.from_codes(it.source.integers(0, 2, it.rows), words)
    levels = pd.MultiIndex.from_arrays([[*range(it.rows), *raw.dropna()]])[: it.rows]
    categories = pd.CategoricalIndex(["a"] * it.rows, categories=["a", it.text()])
    frame.index = [frame.index, levels, categories][it.source.integers(3)]
    released = dpk.perturb(frame, dict.fromkeys(it.protected, MECHANISM), key=KEY, missing=it.missing)
    Path("out/a.pickle").write_bytes(pickle.dumps(released, 5))
    released.to_parquet("out/a.parquet", compression=None)
    released.reset_index(drop=True).to_feather("out/a.feather", compression="uncompressed")
    series = dpk.perturb(frame[it.protected[0]], MECHANISM, key=KEY, missing=it.missing)
    Path("out/b.pickle").write_bytes(pickle.dumps(series, 5))


def release_polars(it: Case, call: Callable[..., Any]) -> None:
    table = pa.Table.from_pandas(it.frame.astype({"who": "str"}), preserve_index=False)
    table = hidden(it, table)
    if it.frame[it.protected].isna().any(axis=1).all():
        return
    frame = pl.from_arrow(table)
    released = dpk.perturb(frame, dict.fromkeys(it.protected, MECHANISM), key=KEY, missing=it.missing)
    released.write_ipc("out/a.arrow", compression="uncompressed")
    released.write_parquet("out/a.parquet", compression="uncompressed")
    Path("out/a.pickle").write_bytes(pickle.dumps(released, 5))


RELEASES = [
    release_parquet,
    release_arrow,
    release_dataset,
    release_text,
    release_parquet,
    release_pandas,
    release_arrow,
    release_parquet,
    release_polars,
    release_array,
]


def leaks(number: int, call: Callable[..., Any]) -> tuple[int, set[str]]:
    """Release a case in the current folder; return the number of files in "out", and the true values that are there.

    The search must find values in every input file, whatever its format.
    """
    it = case(number)
    Path("out").mkdir()
    RELEASES[number % len(RELEASES)](it, call)
    for path in files(Path()):
        assert path.parts[0] == "out" or any(map(it.needles.found, contents(path)))
    released = files(Path("out"))
    leaked = [it.needles.found(content) for path in released for content in contents(path)]
    return len(released), set[str]().union(*leaked)


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
