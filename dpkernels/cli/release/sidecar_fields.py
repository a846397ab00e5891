"""The types of a sidecar's fields, checked before anything is made of them: anyone may have written the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpkernels.cli.release.sidecar import FORMAT
from dpkernels.untrusted import brief

Check = Callable[[Any], bool]

_MISSING = object()
_HEXADECIMAL = frozenset("0123456789abcdef")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_names(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_hash(value: Any) -> bool:
    return type(value) is str and len(value) == 64 and _HEXADECIMAL.issuperset(value)


# What each field must be, in words and as a check. A field with a question mark may be missing.
_FIELDS: dict[str, tuple[str, Check]] = {
    "format": ("a whole number", lambda value: type(value) is int),
    "rows?": ("a whole number from 0 to 2^63 - 1", _is_count),
    "values_per_row?": ("a whole number from 0 to 2^63 - 1", _is_count),
    "missing?": ("error, keep or drop", lambda value: value in ("error", "keep", "drop")),
    "decimals?": ("null or a whole number", lambda value: value is None or _is_count(value)),
    "layout?": ("an object", lambda value: type(value) is dict),
    "columns": ("a list of one or more objects", lambda value: type(value) is list and bool(value)),
    "output?": ("an object", lambda value: type(value) is dict),
    "versions?": ("an object", lambda value: type(value) is dict),
    "ledger?": ("an object", lambda value: type(value) is dict),
}
_COLUMN: dict[str, tuple[str, Check]] = {
    "column": ("a string, or null for an array", lambda value: value is None or _is_text(value)),
    "mechanism": ("a string", _is_text),
    "options?": ("an object", lambda value: type(value) is dict),
    "parameters": ("an object", lambda value: type(value) is dict),
    "certificate": ("an object", lambda value: type(value) is dict),
}
_OUTPUT: dict[str, tuple[str, Check]] = {
    "sha256": ("64 hexadecimal digits", _is_hash),
    "bytes": ("a whole number from 0 to 2^63 - 1", _is_count),
    "columns": ("a list of strings", _is_names),
}
_PARTS: dict[str, tuple[str, Check]] = {
    "parts": ("a list of one or more objects", lambda value: type(value) is list and bool(value)),
    "columns": ("a list of strings", _is_names),
}
_PART: dict[str, tuple[str, Check]] = {
    "name": ("a string", _is_text),
    "rows": ("a whole number from 0 to 2^63 - 1", _is_count),
    "sha256": ("64 hexadecimal digits", _is_hash),
    "bytes": ("a whole number from 0 to 2^63 - 1", _is_count),
}


def check_fields(form: Any) -> None:
    """Refuse what is not shaped as the sidecar of a release; whether it is true is checked elsewhere.

    Raises:
        ValueError: names the field, its value, and what it must be.
    """
    if type(form) is dict and type(form.get("format")) is int and not 1 <= form["format"] <= FORMAT:
        raise ValueError(f"format {brief(form['format'])}; this version reads 1 to {FORMAT}")
    _check("", form, _FIELDS)
    for number, column in enumerate(form["columns"]):
        _check(f"columns[{number}].", column, _COLUMN)
    names = [column["column"] for column in form["columns"]]
    if len(set(names)) < len(names):
        raise ValueError(f"columns: one of {brief(names)} is there twice")
    if None in names and len(names) > 1:
        raise ValueError("columns: an array, which has no name, is the only column")
    if "output" not in form:
        return
    output = form["output"]
    _check("output.", output, _PARTS if "parts" in output else _OUTPUT)
    for number, part in enumerate(output.get("parts", ())):
        _check(f"output.parts[{number}].", part, _PART)


def _check(where: str, form: Any, fields: dict[str, tuple[str, Check]]) -> None:
    if type(form) is not dict:
        raise ValueError(f"{where.removesuffix('.') or 'JSON'}: {brief(form)} must be an object")
    for name, (words, is_right) in fields.items():
        value = form.get(name.removesuffix("?"), _MISSING)
        if value is _MISSING:
            if name.endswith("?"):
                continue
            raise ValueError(f"{where}{name}: is missing; it must be {words}")
        if not is_right(value):
            raise ValueError(f"{where}{name.removesuffix('?')}: {brief(value)} must be {words}")
