"""Packed integers: exactly the same ones again, or an error."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from dpkernels.exact.packed import (
    _distances,
    full_certificates,
    pack,
    pack_array,
    unpack,
    unpack_array,
    with_references,
    without_references,
)

RNG = np.random.default_rng(4)
TOP = (1 << 64) - 1
HALF = [int(2**60 * 0.99**k) for k in range(300)]
LISTS = {
    "none": [],
    "one": [7],
    "zeros": [0] * 40,
    "ends": [0, TOP] * 20,
    "words": [int(word) for word in RNG.integers(0, TOP, 200, np.uint64)],
    "small": [int(word) for word in RNG.integers(0, 3, 200)],
    "geometric": HALF,
    "even mirror": HALF[::-1] + HALF,
    "odd mirror": HALF[::-1] + HALF[1:],
    "a bell": [int(2**50 * np.exp(-((k / 50) ** 2))) for k in range(-400, 401)],
    "the largest quotient": [1, TOP, TOP, 1, TOP, 1, 1, TOP] * 5,
}


@pytest.mark.parametrize("name", LISTS)
def test_packed_integers_are_the_same_again(name: str) -> None:
    values = LISTS[name]
    payload = json.loads(json.dumps(pack(values)))
    assert unpack(payload) == values
    for order in range(4):  # whichever is chosen
        data = base64.b64encode(zlib.compress(_distances(values, order))).decode()
        assert unpack({"count": len(values), "mirrored": False, "order": order, "data": data}) == values


@pytest.mark.parametrize("values", [list(range(-9, 40)), [0.1, -2.5, 1e300], []], ids=["int", "float", "none"])
def test_packed_arrays_are_the_same_again(values: list[float]) -> None:
    array = np.array(values)
    unpacked = unpack_array(json.loads(json.dumps(pack_array(array))))
    assert unpacked.dtype == array.dtype
    assert unpacked.tolist() == values


def _data(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


GOOD = pack(HALF)
FORGED: dict[str, Any] = {
    "no object": [1],
    "another key": {**GOOD, "more": 1},
    "fewer": {**GOOD, "count": 299},
    "more": {**GOOD, "count": 301},
    "too many": {**GOOD, "count": 1 << 22},
    "negative count": {**GOOD, "count": -1},
    "an order": {**GOOD, "order": 4},
    "a truth": {**GOOD, "order": True},
    "mirrored": {**GOOD, "mirrored": 1},
    "no base64": {**GOOD, "data": "%%"},
    "no zlib": {**GOOD, "data": "AAAA"},
    "cut": {**GOOD, "data": base64.b64encode(base64.b64decode(GOOD["data"])[:-9]).decode()},
    "a tail": {**GOOD, "data": base64.b64encode(base64.b64decode(GOOD["data"]) + b"x").decode()},
    "below 0": {"count": 1, "mirrored": False, "order": 0, "data": _data(b"\x01")},
    "above 64 bits": {"count": 1, "mirrored": False, "order": 0, "data": _data(b"\x80" * 9 + b"\x10")},
    "endless": {"count": 1, "mirrored": False, "order": 0, "data": _data(b"\x80" * 10)},
    "half a number": {"count": 1, "mirrored": False, "order": 0, "data": _data(b"\x80")},
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_forms_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"integers|count|order"):
        unpack(FORGED[name])


def test_a_bomb_takes_no_memory() -> None:
    bomb = {**GOOD, "data": _data(b"\0" * (1 << 24))}
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than"):
        unpack(bomb)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_references_name_lists_by_their_hash() -> None:
    form, integers = {"a": HALF, "b": [{"c": HALF, "d": [1, 2]}], "e": [0.5] * 99}, dict[str, Any]()
    packed = json.loads(json.dumps(with_references(form, integers)))
    assert len(integers) == 1
    assert without_references(packed, integers) == form
    (digest,) = integers
    for forged in (
        {},
        {digest: pack(HALF[:-1])},
        {digest: integers[digest], "0" * 64: pack([1])},
        {digest: {**integers[digest], "count": 1 << 23}},
        {digest: 1},
        [],
    ):
        with pytest.raises(ValueError, match=r"integers|count"):
            without_references(packed, forged)


def test_a_negative_count_hides_no_others() -> None:
    """All lists but the last one would be read, and they are gigabytes."""
    zeros = {"count": 1 << 21, "mirrored": False, "order": 0, "data": _data(b"\0" * (1 << 21))}
    integers = {f"{at:064}": zeros for at in range(5)} | {"f" * 64: {**zeros, "count": -(1 << 40)}}
    with pytest.raises(ValueError, match="more than 8388608 in all"):
        without_references({}, integers)


def test_references_do_not_multiply_a_list() -> None:
    """A text of some kilobytes would be a certificate of gigabytes, whose hash is computed."""
    integers = dict[str, Any]()
    reference = with_references([0] * 100_000, integers)
    with pytest.raises(ValueError, match="more than 33554432 in all"):
        without_references([reference] * 400, integers)


def test_nested_certificates_are_refused() -> None:
    certificate: Any = {}
    for _ in range(700):
        certificate = {"a": certificate}
    form = {"certificates": {"0" * 64: certificate}, "integers": {}, "columns": []}
    with pytest.raises(ValueError, match="nested too deeply"):
        full_certificates(form)
