"""The layout of the files of a release, from their names and the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from dpkernels.bounded_json import JsonObject, brief

FORMATS = ("csv", "tsv", "npy", "parquet")
_DELIMITERS = {"csv": ",", "tsv": "\t"}

# Texts of cells without a value, as pandas, R and databases write them.
MISSING_TEXTS = ("", "NA", "NaN", "nan", "NULL", "null")

# Standard input or output, as an argument.
DASH = Path("-")
# The name of standard input, which gives access to its size and permissions.
STANDARD_INPUT = Path("/dev/stdin")


@dataclass(frozen=True)
class Layout:
    """The layout of an input and its output."""

    file_format: str  # one of ``FORMATS``
    delimiter: str = ","  # between the cells of a row, where there is one
    multiline: bool = False  # whether quoted cells may have line breaks
    unpack: bool = False  # whether the input is gzip
    pack: bool = False  # whether the output is
    markers: tuple[str, ...] = ()  # texts of cells without a value, besides ``MISSING_TEXTS``

    @property
    def suffix(self) -> str:
        return f".{self.file_format}{'.gz' if self.pack else ''}"

    def to_dict(self) -> dict[str, object]:
        document = {
            "kind": self.file_format,
            "delimiter": self.delimiter,
            "multiline": self.multiline,
            "unpack": self.pack,
        }
        return document | ({"markers": list(self.markers)} if self.markers else {})

    @classmethod
    def from_dict(cls, document: JsonObject) -> Layout:
        """Return the layout of an output, to read it; ValueError for anything that ``to_dict`` does not make."""
        file_format, delimiter, multiline, packed = (
            document.get(name, "") for name in ("kind", "delimiter", "multiline", "unpack")
        )
        markers = document.get("markers", [])
        if not isinstance(markers, list) or not all(isinstance(marker, str) for marker in markers):
            raise ValueError(f"layout: markers {brief(markers)} are not texts")
        layout = cls(file_format, delimiter, multiline, packed, packed, tuple(markers))
        if layout.file_format not in FORMATS or not _is_delimiter(layout.delimiter):
            raise ValueError(
                f"layout: {brief(layout.file_format)} with {brief(layout.delimiter)} is not a known format"
            )
        if layout.to_dict() != document or {type(layout.multiline), type(layout.pack)} != {bool}:
            raise ValueError("layout: is not the layout of an output")
        return layout


def input_layout(
    source: Path,
    target: Path,
    file_format: str | None,
    delimiter: str | None,
    multiline: bool,
    markers: Sequence[str] = (),
    output_format: str | None = None,
) -> Layout:
    """Return the layout of IN by the names of IN and OUT, ``--format``, ``--delimiter`` and so on.

    It is also the output's, unless that has another format; see ``written_layout``.
    """
    has_option = file_format is not None
    file_format = file_format or suffix_format(target if source == DASH else source)
    output_format = output_format or (file_format if has_option or target == DASH else suffix_format(target))
    if file_format not in _DELIMITERS:
        is_for_text = delimiter is not None and output_format not in _DELIMITERS
        options = {"--delimiter": is_for_text, "--multiline": multiline, "--missing-markers": bool(markers)}
        for option, is_wrong in options.items():
            if is_wrong:
                raise click.UsageError(f"{option}: is for csv and tsv, not for {file_format}")
        if source == DASH:
            raise click.UsageError(f"IN: {file_format} is read from a file, not from standard input, which has no size")
        return Layout(file_format)
    mark = _delimiter(file_format, delimiter)
    return Layout(file_format, mark, multiline, _is_packed(source), _is_packed(target), tuple(markers))


def written_layout(
    layout: Layout, target: Path, file_format: str | None, output_format: str | None, delimiter: str | None
) -> Layout | None:
    """Return the layout of an output of another format than the input, whose ``layout`` it is; None for the same one.

    By default it follows from the suffix of OUT; ``--format`` is for both, and standard output is like the input.
    """
    is_same = file_format is not None or target == DASH
    written_format = output_format or (layout.file_format if is_same else suffix_format(target))
    if written_format == layout.file_format:
        return None
    if "npy" in (written_format, layout.file_format):
        raise click.UsageError(f"OUT: {target} must have the format of IN, {layout.file_format}; .npy has no columns")
    if written_format == "parquet":
        return Layout(written_format)
    packed = _is_packed(target)
    mark = _delimiter(written_format, None if layout.file_format in _DELIMITERS else delimiter)
    return Layout(written_format, mark, multiline=True, unpack=packed, pack=packed)


def _delimiter(file_format: str, option: str | None) -> str:
    mark = _DELIMITERS[file_format] if option is None else option.replace("\\t", "\t")
    if not _is_delimiter(mark):
        raise click.UsageError(f"--delimiter: {mark!r} must be one ASCII character that no number or quote contains")
    return mark


def _is_delimiter(text: object) -> bool:
    return isinstance(text, str) and len(text) == 1 and text.isascii() and not (text.isalnum() or text in '".+-\r\n\0')


def suffix_format(path: Path) -> str:
    """Return the format that a name's suffix says."""
    if path == DASH:
        raise click.UsageError("--format: missing; standard input and output have no suffix")
    unpacked = path.with_suffix("") if _is_packed(path) else path
    file_format = unpacked.suffix.lower().removeprefix(".")
    if file_format not in FORMATS:
        suffixes = ", ".join(f".{name}" for name in FORMATS)
        raise click.UsageError(
            f"{path}: suffix {unpacked.suffix!r} is not one of {suffixes}; --format names the format"
        )
    if unpacked != path and file_format not in _DELIMITERS:
        raise click.UsageError(f"{path}: only .csv and .tsv may be .gz")
    return file_format


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"
