"""Arrow tables for release: they contain the values of their columns and no other data.

Metadata are free text, and pandas stores the ``attrs`` of a frame there, so they may contain true values. Only these
metadata are kept, because they are known to be harmless:

- ``pandas`` of a schema describes index and types. It is rebuilt from the columns (``_pandas``).
- ``PARQUET:field_id`` of a field is a 32-bit number that table formats use to identify the column.
- ``ARROW:extension:*`` of a field is kept for types without parameters, and for types of pandas with known parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.pandas_compat import get_logical_type

from dpkernels.bounded_json import JsonObject, parse_json

_FIELD_ID = re.compile(rb"-?[0-9]{1,10}")
_EXTENSION = b"ARROW:extension:name"  # the key of a field's metadata that has the name of its extension type,
_PARAMETERS = b"ARROW:extension:metadata"  # and the key that has the type's parameters
_SUBTYPE = rb"u?int(8|16|32|64)|float|double|timestamp\[(s|ms|us|ns)\]"
# Extension types by name, each with the texts that its parameters may have.
_EXTENSIONS = {
    b"arrow.bool8": re.compile(rb""),
    b"arrow.json": re.compile(rb"(\{\})?"),
    b"arrow.uuid": re.compile(rb""),
    b"pandas.interval": re.compile(rb'\{"subtype": "(%b)", "closed": "(left|right|both|neither)"\}' % _SUBTYPE),
    b"pandas.period": re.compile(rb'\{"freq": "[A-Z]{1,3}(-[A-Z]{3})?"\}'),
}
# Keys of a schema that writers make themselves.
_WRITTEN = {b"ARROW:schema", b"pandas"}

_WIDTHS = ("8", "16", "32", "64")
_NUMPY = {"bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in _WIDTHS)}
_MASKED = {"boolean", "Float32", "Float64", *(f"{sign}Int{bits}" for sign in ("", "U") for bits in _WIDTHS)}
_STRINGS = {"str", "string", "string[python]", "string[pyarrow]"}
_LABELS = {*_NUMPY, "bytes", "empty", "mixed", "mixed-integer", "object", "str", "string", "unicode"}
_GENERATED = re.compile(r"__index_level_[0-9]+__")  # the name of a column that holds an index without a name


def released_table(table: pa.Table) -> pa.Table:
    """Return a table with the same values in the same columns, and with nothing else that may hold raw values."""
    table = without_unused(visible(table))
    return relabelled(table, released_schema(table.schema))


def released_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the same of a column without a name."""
    return released_table(pa.table({"": column})).column(0)


def released_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the same columns, and with those metadata that are known to be harmless."""
    fields = [_field(field) for field in schema]
    metadata = {}
    if b"pandas" in (schema.metadata or {}):
        metadata = {"pandas": json.dumps(_pandas(pa.schema(fields), _described(schema)))}
    return pa.schema(fields, metadata or None)


def dropped_metadata(schema: pa.Schema) -> list[str]:
    """Return what ``released_schema`` leaves out, in words that repeat nothing of it but the names of columns."""
    description, lines = _described(schema), []
    count = len(set(schema.metadata or ()) - _WRITTEN)
    if count:
        lines.append(f"metadata of the file ({count} {'entry' if count == 1 else 'entries'})")
    if description.get("attributes"):
        lines.append("the attributes of the pandas table")
    released_description = _pandas(schema, description)
    plain_range = {"kind": "range", "name": None, "start": 0, "step": 1}
    ranges = [index for index in _dicts(description.get("index_columns")) if not plain_range.items() <= index.items()]
    labels = [level for level in _dicts(description.get("column_indexes")) if level.get("name") is not None]
    if ranges or labels or len(released_description["column_indexes"]) < len(_dicts(description.get("column_indexes"))):
        lines.append("labels of the pandas table that are in no column")
    # Fields whose dictionaries have other metadata are equal.
    changed = [field for field in schema if pa.schema([field]).serialize() != pa.schema([_field(field)]).serialize()]
    return lines + [f"column {field.name!r}: its metadata" for field in changed]


def relabelled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a table under another schema of the same memory, without a copy.

    A cast may keep the metadata of nested fields, since types are equal without them.
    """
    return pa.Table.from_batches([pa.record_batch(_Relabelled(batch, schema)) for batch in table.to_batches()], schema)


class _Relabelled:
    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def without_unused(table: pa.Table) -> pa.Table:
    """Return a table whose dictionaries have no values that no row has: they may be those of rows that were left out.

    Dictionaries inside nested columns are replaced by their values.
    """
    for position, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type) and has_dictionary(field.type):
            decoded_field = field.with_type(decoded(field.type))
            table = table.set_column(position, decoded_field, table.column(position).cast(decoded_field.type))
    table = table.unify_dictionaries()
    for position, field in enumerate(table.schema):
        chunks = table.column(position).chunks
        if not pa.types.is_dictionary(field.type) or not chunks:
            continue
        indices = pc.unique(pa.chunked_array([chunk.indices for chunk in chunks])).drop_null()
        if len(indices) < len(chunks[0].dictionary):
            indices = indices.take(pc.sort_indices(indices))
            values, dtype = chunks[0].dictionary.take(indices), field.type
            index_arrays = [pc.index_in(chunk.indices, indices).cast(dtype.index_type) for chunk in chunks]
            arrays = [pa.DictionaryArray.from_arrays(index, values, ordered=dtype.ordered) for index in index_arrays]
            table = table.set_column(position, field, pa.chunked_array(arrays, dtype))
    return table


def has_dictionary(dtype: pa.DataType) -> bool:
    """Return whether a type is a dictionary, or has one inside."""
    return pa.types.is_dictionary(dtype) or any(has_dictionary(dtype.field(i).type) for i in range(dtype.num_fields))


def decoded(dtype: pa.DataType) -> pa.DataType:
    """Return a type with the values of its dictionaries in their places."""
    if pa.types.is_dictionary(dtype):
        return decoded(dtype.value_type)
    return _rebuilt(dtype, lambda field: field.with_type(decoded(field.type)))


def visible(table: pa.Table) -> pa.Table:
    """Return a table that shares no memory with more values than it shows: those under nulls, and around slices.

    Arrow's own files and pickles would hold these values.
    """
    for position, field in enumerate(table.schema):
        column = table.column(position)
        if column.null_count or pa.types.is_nested(field.type) or column.nbytes < column.get_total_buffer_size():
            table = table.set_column(position, field, _copied(column))
    return table


def _copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_run_end_encoded(column.type):
        dtype = column.type
        values = _copied(pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], dtype.value_type))
        return pa.chunked_array([pc.run_end_encode(chunk, dtype.run_end_type) for chunk in values.chunks], dtype)
    missing = np.asarray(pc.is_null(column))
    try:
        return column.filter(pa.array(~missing)).take(pa.array(np.cumsum(~missing) - 1, mask=missing))
    except pa.ArrowNotImplementedError:  # Arrow takes no rows of views.
        return pa.chunked_array([column.to_pylist()], column.type)


def _field(field: pa.Field) -> pa.Field:
    notes = field.metadata or {}
    metadata = {name: text for name, text in notes.items() if name == b"PARQUET:field_id" and _FIELD_ID.fullmatch(text)}
    if _is_harmless(notes.get(_EXTENSION, b""), notes.get(_PARAMETERS, b"")):
        metadata |= {name: text for name, text in notes.items() if name in (_EXTENSION, _PARAMETERS)}
    return pa.field(field.name, _type(field.type), field.nullable, metadata or None)


def _is_harmless(extension: bytes, parameters: bytes) -> bool:
    return extension in _EXTENSIONS and _EXTENSIONS[extension].fullmatch(parameters) is not None


def _type(dtype: pa.DataType) -> pa.DataType:
    """Return a type without metadata of its fields, and without extension types that may have free text."""
    if isinstance(dtype, pa.BaseExtensionType):
        serialize = getattr(dtype, "__arrow_ext_serialize__", bytes)  # Arrow's own classes have none.
        is_harmless = _is_harmless(dtype.extension_name.encode(), serialize())
        return dtype if is_harmless else _type(dtype.storage_type)
    if pa.types.is_dictionary(dtype):
        return pa.dictionary(dtype.index_type, _type(dtype.value_type), dtype.ordered)
    return _rebuilt(dtype, _field)


def _rebuilt(dtype: pa.DataType, rebuild: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a nested type with other fields, which a function makes of each; or a plain type as it is."""
    types = pa.types
    if types.is_map(dtype):
        return pa.map_(rebuild(dtype.key_field), rebuild(dtype.item_field), dtype.keys_sorted)
    if types.is_run_end_encoded(dtype):
        return pa.run_end_encoded(dtype.run_end_type, rebuild(pa.field("values", dtype.value_type)).type)
    if not dtype.num_fields:
        return dtype
    fields = [rebuild(dtype.field(i)) for i in range(dtype.num_fields)]
    if types.is_struct(dtype):
        return pa.struct(fields)
    if types.is_union(dtype):
        return pa.union(fields, dtype.mode, dtype.type_codes)
    if types.is_fixed_size_list(dtype):
        return pa.list_(fields[0], dtype.list_size)
    for is_of_kind, make in (
        (types.is_list, pa.list_),
        (types.is_large_list, pa.large_list),
        (types.is_list_view, pa.list_view),
        (types.is_large_list_view, pa.large_list_view),
    ):
        if is_of_kind(dtype):
            return make(fields[0])
    raise ValueError(f"{dtype}: is a nested type that this version does not know, so it cannot be released")


def _described(schema: pa.Schema) -> JsonObject:
    """Return the description of pandas in a schema; an empty one where there is none, or none that can be read."""
    try:
        description = parse_json((schema.metadata or {}).get(b"pandas", b"{}").decode())
    except ValueError:
        return {}
    return description if isinstance(description, dict) else {}


def _pandas(schema: pa.Schema, description: Mapping[str, object]) -> JsonObject:
    """Return the description that pandas reads, from the columns.

    Of an older one only references to columns are copied, and names of types in a fixed vocabulary.
    """
    names = schema.names
    stated = [(column.get("field_name") or column.get("name"), column) for column in _dicts(description.get("columns"))]
    notes = {name: column for name, column in stated if isinstance(name, str)}
    columns = []
    for field in schema:
        note, name = notes.get(field.name, {}), None if _GENERATED.fullmatch(field.name) else field.name
        columns.append(
            {
                "name": note["name"] if note.get("name") in names else name,
                "field_name": field.name,
                "pandas_type": get_logical_type(field.type),
                "numpy_type": _numpy_type(field.type, str(note.get("numpy_type"))),
                "metadata": {"timezone": field.type.tz} if getattr(field.type, "tz", None) else None,
            }
        )
    index, levels = description.get("index_columns"), _dicts(description.get("column_indexes"))
    labels = [[level.get("pandas_type"), level.get("numpy_type")] for level in levels]
    if not all(isinstance(name, str) and name in _LABELS for pair in labels for name in pair):
        labels = []
    encoding: dict[object, object] = {"unicode": {"encoding": "UTF-8"}}
    return {
        "index_columns": [name for name in index if name in names] if isinstance(index, list) else [],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": p, "numpy_type": n, "metadata": encoding.get(p)}
            for p, n in labels
        ],
        "columns": columns,
        "creator": {"library": "pyarrow", "version": pa.__version__},
    }


def _dicts(content: object) -> list[JsonObject]:
    return [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []


def _numpy_type(dtype: pa.DataType, stated: str) -> str:
    """Return the dtype that pandas reads a column as: its own kind, pandas' with a mask or Arrow's, as was stated."""
    types = pa.types
    if types.is_string(dtype) or types.is_large_string(dtype):
        return stated if stated in _STRINGS else "object"
    if types.is_dictionary(dtype):
        return str(dtype.index_type)
    if types.is_integer(dtype) or types.is_floating(dtype) or types.is_boolean(dtype):
        name = np.dtype(dtype.to_pandas_dtype()).name
        masked = {"bool": "boolean"}.get(name, name.replace("int", "Int").replace("uI", "UI").replace("fl", "Fl"))
        if stated in _MASKED and masked in _MASKED:
            return masked
        return f"{dtype}[pyarrow]" if stated.endswith("[pyarrow]") else name
    if types.is_temporal(dtype) and stated == f"{dtype}[pyarrow]":
        return stated
    if types.is_timestamp(dtype) or types.is_duration(dtype):
        return f"{'datetime' if types.is_timestamp(dtype) else 'timedelta'}64[{dtype.unit}]"
    return "object"
