"""The class that reads and writes a file of each format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpkernels.cli.files.arrays import ArrayFile
from dpkernels.cli.files.converted import ConvertedFile
from dpkernels.cli.files.delimited import DelimitedFile
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.parquet import ParquetFile


def converted(source: Source, written: Layout | None) -> Source:
    """Return a file whose output has another layout; the file itself for None."""
    return source if written is None else ConvertedFile(source, written)


def open_source(path: Path, layout: Layout) -> Source:
    """Return a file whose header has been read; ValueError if it is not a readable file of that format."""
    formats: dict[str, Callable[[Path, Layout], Source]] = {"parquet": ParquetFile, "npy": ArrayFile}
    return formats.get(layout.file_format, DelimitedFile)(path, layout)
