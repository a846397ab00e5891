"""Compression of integer tables: every integer is stored as its difference from a prediction by earlier integers.

Weights of noise are a smooth function on a grid, up to rounding, so these differences have only a few bits. The
compression is lossless. Decoding needs only integer arithmetic, so it gives the same table on any machine, without the
floating-point functions that made the table. A list is packed as

    {"count": n, "mirrored": m, "order": r, "data": base64 of zlib of bytes}

where the bytes are the differences d as LEB128 numbers, 2d for d >= 0 and -2d - 1 for d < 0. If ``mirrored``, only the
first (n + 1) // 2 integers are stored, and the others mirror them. With a, b and c the last, second last and third last
integer, the prediction of order 0 is 0, of order 1 is a, of order 2 is a^2 // b, and of order 3 is a^3 c // b^3. The
prediction is a instead (0 for the first integer) if there are fewer than r earlier integers, if one of the last r is 0,
or if the prediction is not below 2^64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpkernels.bounded_json import JsonObject, brief, integer
from dpkernels.exact.certificate import MAX_WEIGHTS
from dpkernels.shapes import Num

_MIN_LENGTH = 32  # Shorter lists are left as they are.
_ORDERS = range(4)  # The orders of prediction of an integer from those before it.
_LIMIT = 1 << 64  # Integers are below this.
_TRIED = 256  # Integers in the middle of a list, for which the order is chosen.
_MAX_INTEGERS = 1 << 23  # In all lists of a form together.
_MAX_REFERRED = 1 << 25  # Of all references: a short form may name one list many times.
_MAX_BYTES = 10  # Of a distance: below 2^67.


def _prediction(order: int, before: Sequence[int], index: int) -> int:
    a = before[index - 1] if index else 0
    if order < 2 or index < order or 0 in before[index - order : index]:
        return a if order else 0
    b = before[index - 2]
    prediction = a * a // b if order == 2 else a**3 * before[index - 3] // b**3
    return prediction if prediction < _LIMIT else a


def _distances(values: Sequence[int], order: int) -> bytes:
    text = bytearray()
    for index, value in enumerate(values):
        d = value - _prediction(order, values, index)
        number = 2 * d if d >= 0 else -2 * d - 1
        while number > 127:
            text.append(number & 127 | 128)
            number >>= 7
        text.append(number)
    return bytes(text)


def pack(values: Sequence[int]) -> Mapping[str, object]:
    """Return integers from 0 to 2^64 - 1 as a short JSON form."""
    values = list(values)
    mirrored = values == values[::-1]
    stored = values[: (len(values) + 1) // 2] if mirrored else values
    start = max(0, len(stored) // 2 - _TRIED // 2)
    order = min(_ORDERS, key=lambda order: len(zlib.compress(_distances(stored[start : start + _TRIED], order), 9)))
    data = base64.b64encode(zlib.compress(_distances(stored, order), 7)).decode()  # 9 takes nine times as long.
    return {"count": len(values), "mirrored": mirrored, "order": order, "data": data}


def unpack(packed: Mapping[str, object]) -> list[int]:
    """Return the integers of a form of ``pack``, in time proportional to their number; ValueError if it is not one."""
    if type(packed) is not dict or packed.keys() != {"count", "mirrored", "order", "data"}:
        raise ValueError(f"integers: {brief(packed)} must have count, mirrored, order and data")
    count, order = integer("count", packed["count"]), integer("order", packed["order"])
    if not 0 <= count <= MAX_WEIGHTS or order not in _ORDERS or type(packed["mirrored"]) is not bool:
        raise ValueError(
            f"integers: count must be from 0 to {MAX_WEIGHTS}, order from 0 to 3, and mirrored true or false"
        )
    stored = (count + 1) // 2 if packed["mirrored"] else count
    values, number, shift = list[int](), 0, 0
    for byte in _bytes(packed["data"], stored * _MAX_BYTES):
        number |= (byte & 127) << shift
        shift += 7
        if byte > 127:
            if shift == 7 * _MAX_BYTES:
                raise ValueError(f"integers: a distance has more than {_MAX_BYTES} bytes")
            continue
        value = _prediction(order, values, len(values)) + (-(number + 1) // 2 if number & 1 else number // 2)
        if not 0 <= value < _LIMIT or len(values) == stored:
            raise ValueError(f"integers: more than {stored} of them, or one that is not from 0 to 2^64 - 1")
        values.append(value)
        number = shift = 0
    if shift or len(values) != stored:
        raise ValueError(f"integers: {len(values)} whole ones, not {stored}")
    return values + values[: count // 2][::-1] if packed["mirrored"] else values


_ARRAYS = {"int": np.dtype("<i8"), "float": np.dtype("<f8")}
_MAX_ENTRIES = 1 << 24  # Of an array.


def pack_array(array: Num[np.ndarray, " entries"]) -> Mapping[str, object]:
    """Return a vector of int64 or float64 as a short JSON form: zlib of its numbers' first bytes, second bytes, ..."""
    number_type = "float" if array.dtype.kind == "f" else "int"
    planes = np.ascontiguousarray(array, _ARRAYS[number_type]).view(np.uint8).reshape(-1, 8).T
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)).decode()
    return {"count": len(array), "type": number_type, "data": data}


def unpack_array(packed: Mapping[str, object]) -> Num[np.ndarray, " entries"]:
    """Return the vector of a form of ``pack_array``; ValueError if it is not one, or a number is not finite."""
    if type(packed) is not dict or packed.keys() != {"count", "type", "data"} or packed["type"] not in _ARRAYS:
        raise ValueError(f"array: {brief(packed)} must have count, type and data")
    if not 0 <= (count := integer("count", packed["count"])) <= _MAX_ENTRIES:
        raise ValueError(f"array: count must be from 0 to {_MAX_ENTRIES}")
    text = _bytes(packed["data"], 8 * count)
    if len(text) != 8 * count:
        raise ValueError(f"array: has {len(text)} bytes, not {8 * count}")
    planes = np.frombuffer(text, np.uint8).reshape(8, count)
    array = np.ascontiguousarray(planes.T).view(_ARRAYS[packed["type"]]).reshape(count)
    if not np.isfinite(array).all():
        raise ValueError("array: a number is not finite")
    return array


def _bytes(data: str, most: int) -> bytes:
    """Return the bytes that a text holds, of which there are at most so many."""
    if type(data) is not str:
        raise ValueError(f"integers: data: {brief(data)} must be a string")
    try:
        packed, decompression = base64.b64decode(data, validate=True), zlib.decompressobj()
        text = decompression.decompress(packed, most + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"integers: data: {brief(data)} cannot be read") from error
    if len(text) > most or not decompression.eof or decompression.unused_data:
        raise ValueError(f"integers: data: has more than {most} bytes, or is not whole")
    return text


def with_references(payload: object, integers: dict[str, object]) -> object:
    """Return a JSON form whose long lists of integers are references to ``integers``, to which they are added, packed.

    A reference is {"integers": the SHA-256 of the JSON of the list}.
    """
    if isinstance(payload, dict):
        return {name: with_references(value, integers) for name, value in payload.items()}
    if not isinstance(payload, list | tuple):
        return payload
    if len(payload) < _MIN_LENGTH or not all(type(value) is int and 0 <= value < _LIMIT for value in payload):
        return [with_references(value, integers) for value in payload]
    digest = json_digest(payload)
    if digest not in integers:
        integers[digest] = pack(payload)
    return {"integers": digest}


def without_references(payload: object, integers: Mapping[str, object]) -> object:
    """Return a form of ``with_references`` with its lists; ValueError for integers of another hash, or unused ones."""
    if type(integers) is not dict or not all(type(packed) is dict for packed in integers.values()):
        raise ValueError(f"integers: {brief(integers)} must be an object of packed integers")
    # A negative count, which ``unpack`` refuses, must not let the others be too large before.
    if sum(abs(integer("integers: count", packed.get("count"))) for packed in integers.values()) > _MAX_INTEGERS:
        raise ValueError(f"integers: more than {_MAX_INTEGERS} in all")
    lists = {digest: unpack(packed) for digest, packed in integers.items()}
    if altered := [digest for digest, values in lists.items() if json_digest(values) != digest]:
        raise ValueError(f"integers: those of {brief(altered[0])} have another SHA-256")
    reference_counts = Counter[str]()
    try:
        payload = _resolved(payload, lists, reference_counts)
    except RecursionError as error:
        raise ValueError("certificates: lists and objects are nested too deeply") from error
    if unused := sorted(lists.keys() - reference_counts):
        raise ValueError(f"integers: {brief(unused[0])} is used nowhere")
    if sum(len(lists[digest]) * count for digest, count in reference_counts.items()) > _MAX_REFERRED:
        raise ValueError(f"integers: their references have more than {_MAX_REFERRED} in all")
    return payload


def _resolved(payload: object, lists: Mapping[str, list[int]], reference_counts: Counter[str]) -> object:
    if type(payload) is list:
        return [_resolved(value, lists, reference_counts) for value in payload]
    if type(payload) is not dict:
        return payload
    if payload.keys() != {"integers"}:
        return {name: _resolved(value, lists, reference_counts) for name, value in payload.items()}
    digest = payload["integers"]
    if type(digest) is not str or digest not in lists:
        raise ValueError(f"integers: {brief(digest)} is missing")
    reference_counts[digest] += 1
    return lists[digest]


def json_digest(payload: object) -> str:
    """Return the SHA-256 of a JSON form whose keys are sorted, in hexadecimal."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def short_certificates(columns: list[dict[str, object]]) -> Mapping[str, object]:
    """Let columns of a sidecar name their certificates by a hash, and return these, each once, with packed integers."""
    certificates, integers = dict[str, Any](), dict[str, Any]()
    for column in columns:
        digest = json_digest(column["certificate"])
        certificates[digest], column["certificate"] = column["certificate"], {"sha256": digest}
    return {"certificates": with_references(certificates, integers), "integers": integers}


def full_certificates(sidecar: JsonObject) -> JsonObject:
    """Return a sidecar whose columns have their certificates; ValueError if one is missing, altered or of no column."""
    fields = {name: value for name, value in sidecar.items() if name not in ("certificates", "integers")}
    certificates = without_references(sidecar.get("certificates", {}), sidecar.get("integers", {}))
    if type(certificates) is not dict:
        raise ValueError(f"certificates: {brief(certificates)} must be an object")
    digests, columns = set[str](), []
    for column in sidecar["columns"]:
        certificate = column.get("certificate") if type(column) is dict else None
        if type(certificate) is dict and certificate.keys() == {"sha256"}:
            digest = certificate["sha256"]
            if type(digest) is not str or type(certificates.get(digest)) is not dict:
                raise ValueError(f"certificates: {brief(digest)} is missing")
            column = {**column, "certificate": certificates[digest]}
            digests.add(digest)
        columns.append(column)
    if unused := sorted(certificates.keys() - digests):
        raise ValueError(f"certificates: {brief(unused[0])} is of no column")
    if altered := sorted(digest for digest in digests if json_digest(certificates[digest]) != digest):
        raise ValueError(f"certificates: {brief(altered[0])} has another SHA-256")
    return {**fields, "columns": columns}
