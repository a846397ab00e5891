"""How a Parquet file was written, read from its footer: to write another alike, and to say what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyarrow.parquet import FileMetaData


def options(footer: FileMetaData) -> dict[str, Any]:
    """Options of ``pyarrow.parquet.ParquetWriter``."""
    first = footer.row_group(0)
    columns = [first.column(at) for at in range(first.num_columns)]
    return {
        "compression": {column.path_in_schema: _codec(column) for column in columns},
        "use_dictionary": [column.path_in_schema for column in columns if column.has_dictionary_page],
        "write_statistics": [column.path_in_schema for column in columns if column.is_stats_set],
        "version": footer.format_version if footer.format_version in ("1.0", "2.4") else "2.6",
        "use_deprecated_int96_timestamps": _all_int96(footer),
    }


def differences(old: FileMetaData, new: FileMetaData, replaced: set[str], groups: Sequence[int]) -> list[str]:
    """What of some row groups of a file another file does not have, the types of replaced columns apart."""
    found = [*_schema(old, new, replaced)]
    codecs = [{_codec(column) for column in _chunks(one)} for one in (old, new)]
    if codecs[1] and codecs[0] - codecs[1]:  # a file without rows has no codecs
        found.append(f"compression by {', '.join(sorted(codecs[0] - codecs[1]))}")
    sizes = [_sizes(old, groups), _sizes(new, range(new.num_row_groups))]
    if not sizes[1]:
        found.append("the row groups of a file whose rows were all dropped")
    elif sizes[0] != sizes[1]:
        many = f"{len(sizes[0])} row group{'s' * (len(sizes[0]) > 1)}"
        found.append(f"{many}, now {len(sizes[1])}, of other sizes")
    if any(old.row_group(at).sorting_columns for at in range(old.num_row_groups)):
        found.append("the note of the columns it is sorted by")
    if any(column.bloom_filter_offset is not None for column in _chunks(old)):
        found.append("Bloom filters")
    if any(column.has_column_index or column.has_offset_index for column in _chunks(old)):
        found.append("the page index")
    return found


def _schema(old: FileMetaData, new: FileMetaData, replaced: set[str]) -> Iterator[str]:
    for at in range(min(old.num_columns, new.num_columns)):
        before, after = old.schema.column(at), new.schema.column(at)
        if before.path in replaced:
            continue
        for word in ("path", "physical_type", "logical_type", "max_definition_level", "max_repetition_level"):
            one, other = (str(getattr(column, word)) for column in (before, after))
            if one != other:
                yield f"column {before.path!r}: {word.replace('_', ' ')} {one}, now {other}"


def _chunks(footer: FileMetaData) -> Iterator[Any]:
    """Every column of every row group."""
    for group in map(footer.row_group, range(footer.num_row_groups)):
        yield from map(group.column, range(group.num_columns))


def _sizes(footer: FileMetaData, groups: Iterable[int]) -> list[int]:
    return [footer.row_group(at).num_rows for at in groups]


def _codec(chunk: Any) -> str:
    return "NONE" if chunk.compression == "UNCOMPRESSED" else chunk.compression


def _all_int96(footer: FileMetaData) -> bool:
    """Whether timestamps are INT96, which a writer writes for all or for none."""
    columns = [footer.schema.column(at) for at in range(footer.num_columns)]
    others = any(column.logical_type.type == "TIMESTAMP" for column in columns)
    return not others and any(column.physical_type == "INT96" for column in columns)
