"""Reading of JSON from untrusted sources: data that are too large or of the wrong type raise a ValueError."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

# A value that JSON has. An integer is a float to a type checker.
Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"
# An object of JSON, whose members are checked where they are read.
JsonObject: TypeAlias = dict[str, Any]

# The largest size of a file in bytes; a column of additive noise takes about a MiB.
MAX_BYTES = 1 << 28
_MAX_DIGITS = 32  # The largest length of an integer; 64-bit integers have 20 digits.
# The most values of each kind, since a small value takes up to 70 times its text in memory. A column of additive noise
# has about 50,000 numbers, and a part of a dataset one object. Characters inside strings count, too.
_MAX_VALUES = {"lists and objects": ("[{", 1 << 18), "members of objects": (":", 1 << 20), "values": (",", 1 << 23)}


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"file: has more than {MAX_BYTES} bytes, the most that is read")
    return text.decode()


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, in time proportional to its length and at most about 0.5 GB of memory.

    A ValueError says that it is not JSON, is nested too deeply, or has too many values, a duplicate key, a number that
    is not finite, or an integer with too many digits.
    """
    for kind, (marks, limit) in _MAX_VALUES.items():
        if (count := sum(map(text.count, marks))) > limit:
            raise ValueError(f"JSON: has about {count} {kind}; at most {limit} are read")

    def number(text: str) -> float:
        return real("JSON", float(text))

    try:
        return json.loads(
            text, object_pairs_hook=_unique_keys, parse_int=_integer, parse_float=number, parse_constant=number
        )
    except RecursionError as error:
        raise ValueError("JSON: lists and objects are nested too deeply") from error


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("JSON: an object has the same key twice")
    return unique


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"JSON: an integer has {len(digits)} digits; at most {_MAX_DIGITS} are read")
    return int(digits)


def real(name: str, value: object) -> float:
    """Return the value if it is a finite float, and no integer."""
    if type(value) is not float or not math.isfinite(value):
        raise ValueError(f"{name}: {brief(value)} is not a finite float")
    return value


def integer(name: str, value: object) -> int:
    """Return the value if it is an integer of at most 64 bits, and no bool."""
    if type(value) is not int or value.bit_length() > 64:
        raise ValueError(f"{name}: {brief(value)} is not an integer of at most 64 bits")
    return value


def brief(value: object) -> str:
    """Return the value as text that fits into a line."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = f"a {type(value).__name__} of {len(value)}" if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
