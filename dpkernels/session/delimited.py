"""Reading of CSV files in which every line is parsed separately."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpkernels.byte_order_marks import UTF8_MARK, UTF16_MARKS, UTF16_PROBLEM
from dpkernels.session.cells import decode_text

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_LINE = 1 << 24  # bytes of a line, which pyarrow must find within a block


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

    def most_rows(self, limit: int) -> int:
        """Return an upper bound on the number of rows; if it is above the limit, the number of line feeds."""
        fewest_bytes = max(len(self.names), 2)  # of a row: delimiters and a line feed; an empty line is none
        most = sum(path.stat().st_size for path in self.paths) // fewest_bytes + len(self.paths)
        if most <= limit:
            return most
        feeds = len(self.paths)  # The last line may have none.
        for path in self.paths:
            with path.open("rb") as file:
                while block := file.read(LONGEST_LINE):
                    feeds += block.count(b"\n")
        return feeds

    def to_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns, as bytes and null where a cell is empty; batches may be of any size."""
        import pyarrow as pa
        from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

        types = dict.fromkeys(columns, pa.binary())
        cells = ConvertOptions(
            column_types=types, include_columns=list(columns), strings_can_be_null=True, null_values=[""]
        )
        lines = ParseOptions(delimiter=self.delimiter)
        for path in self.paths:
            for text in self._valid_lines(path):
                # A byte order mark is left out at the start of what is read alone, where no row must begin.
                reading = ReadOptions(column_names=self.names, block_size=len(text) + 2)
                try:
                    table = read_csv(pa.py_buffer(b"\n" + text), reading, lines, cells)
                except pa.ArrowInvalid:  # A handler of invalid rows fails for one that is not UTF-8.
                    text = b"\n" + self._filtered(text, has_cells=True)
                    table = read_csv(pa.py_buffer(text), reading, lines, cells)
                yield from table.to_batches()

    def _header(self, path: Path) -> list[str]:
        with path.open("rb") as file:
            line = file.readline(LONGEST_LINE).removeprefix(UTF8_MARK)
        if line.startswith(UTF16_MARKS):
            raise ValueError(f"data: {path} {UTF16_PROBLEM}")
        if not line.strip():
            raise ValueError(f"data: {path} is empty; a header is needed")
        try:
            # The reader of pyarrow starts threads, which a process that ends at once may abort.
            (names,) = csv.reader([decode_text(line)], delimiter=self.delimiter, strict=True)
        except csv.Error:
            raise ValueError(f"data: {path} has a header that is no line of a CSV file") from None
        for delimiter in {";", "\t", ","} - {self.delimiter}:
            if line.count(delimiter.encode()) > line.count(self.delimiter.encode()) and b'"' not in line:
                raise ValueError(
                    f"data: {path} has {delimiter!r} between names of columns; {self.delimiter!r} is needed"
                )
        return names

    def _valid_lines(self, path: Path) -> Iterator[bytes]:
        """Yield whole lines of a file without its header, those alone that are rows by themselves."""
        with path.open("rb") as file:
            file.readline(LONGEST_LINE)
            buffer, is_long = b"", False
            while block := file.read(LONGEST_LINE // 2):
                buffer += block
                complete, feed, buffer = buffer.rpartition(b"\n")
                if is_long and feed:  # The end of a line whose beginning was too long.
                    complete, is_long = complete.partition(b"\n")[2], False
                if feed and (lines := self._valid(complete)):
                    yield lines
                if len(buffer) > LONGEST_LINE:
                    buffer, is_long = b"", True
            if buffer and not is_long and (lines := self._valid(buffer)):
                yield lines

    def _valid(self, lines: bytes) -> bytes:
        is_plain = b'"' not in lines and lines.count(b"\r") == lines.count(b"\r\n") + lines.endswith(b"\r")
        return lines if is_plain and len(lines) <= LONGEST_LINE else self._filtered(lines)

    def _filtered(self, lines: bytes, *, has_cells: bool = False) -> bytes:
        """Return the lines that are rows by themselves; if asked for, those alone that have as many cells as names."""
        import pyarrow as pa
        import pyarrow.compute as pc

        mark, quoted = re.escape(self.delimiter), r'"(?:[^"\r]|"")*"'
        cell = rf'(?:[^"\r{mark}][^\r{mark}]*|{quoted})?'
        array = pa.array(lines.split(b"\n"), pa.binary())
        # Wherever it stands: the end of a block, which depends on other lines, must not decide.
        is_row = pc.and_(
            pc.match_substring_regex(array, rf"^{cell}(?:{mark}{cell})*\r?$"),
            pc.less_equal(pc.binary_length(array), LONGEST_LINE),
        )
        array = array.filter(is_row)
        if has_cells:
            bare = pc.replace_substring_regex(array, rf"(^|{mark}){quoted}", r"\1")
            array = array.filter(pc.equal(pc.count_substring(bare, self.delimiter), len(self.names) - 1))
        return b"\n".join(array.to_pylist())
