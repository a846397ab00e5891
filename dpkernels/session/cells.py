"""Reading of the cells of a column as numbers, keys, persons or hashes.

The result for a cell does not depend on other cells, which belong to other persons, and no cell causes an error. A cell
that is not a number is missing, whatever the rest of its column.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import lru_cache, partial
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpkernels.release import containers

if TYPE_CHECKING:
    import pyarrow as pa

Key: TypeAlias = str | int | float  # of a group, which rows of equal cells are in

# The constants of SplitMix64.
_SPLITMIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Types of numbers of persons:
_SIGNED = np.uint64(1)  # integers of 64 bits with a sign,
_UNSIGNED = np.uint64(2)  # larger ones up to 2^64 - 1,
_FLOAT = np.uint64(3)  # and other floats
_TRUTH = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}
_MIDNIGHT = re.compile(r"^(\d{4}-\d\d-\d\d)[T ]00:00:00(?:\.0+)?$")
_NUMBER: Any = Number  # which says nothing of the attributes that its types have
_PLAIN_TYPES = {str, int, float, bool, bytes, type(None)}  # whose equal values are read alike


def as_array(column: containers.Container) -> np.ndarray:
    """Return a column as numbers, or as objects; missing cells are NaN or None.

    Its type alone decides how cells are read. A missing cell, which one person may have, does not change the others:
    integers become objects then, not floats, in which two persons could have one number.
    """
    match containers.library_name(column):
        case "pandas":
            dtype = column.dtype if isinstance(column.dtype, np.dtype) else getattr(column.dtype, "numpy_dtype", object)
            is_plain = dtype is column.dtype or (np.dtype(dtype).kind in "biuf" and not column.isna().any())
            array = column.to_numpy(dtype=dtype) if is_plain else column.astype(object).to_numpy()
        case "polars":
            dtype, name = column.dtype, str(column.dtype)
            is_plain = dtype.is_float() or (dtype.is_temporal() and name != "Time")
            if (dtype.is_integer() and "128" not in name) or name == "Boolean":
                is_plain = not column.null_count()
            array = column.to_numpy() if is_plain else _objects(column.to_list())
        case "pyarrow":
            array = _arrow_cells(column)
        case _ if isinstance(column, np.ma.MaskedArray):
            array = np.ma.filled(column.astype(object), None)
        case _:  # NumPy would make texts of all cells of a list if one is a text.
            array = _objects(column) if isinstance(column, list | tuple) else np.asarray(column)
    if array.ndim != 1:
        raise ValueError(f"data: a column has {array.ndim} axes; one is needed")
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind in "mM":
        missing = np.isnat(array)
        array = array.astype(str).astype(object)  # Dates are texts, since in some units they would become numbers.
        array[missing] = None
    # Different bytes are different texts, because two persons must not be one.
    cells = (
        cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell for cell in array.astype(object)
    )
    return np.fromiter(cells, object, len(array))


def _arrow_cells(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return the cells of a pyarrow column; one that Python cannot hold is None, and the others are read as ever."""
    try:
        return np.asarray(column) if _is_plain(column) else _objects(column.to_pylist())
    except Exception:  # of a text that is not UTF-8, of a date beyond the year 9999 within another type
        return _objects([_arrow_cell(scalar) for scalar in column])


def _arrow_cell(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except Exception:
        return None


def _is_plain(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether NumPy reads the cells of a pyarrow column as what they are."""
    from pyarrow import types

    kind = column.type
    if types.is_integer(kind) or types.is_boolean(kind):
        return not column.null_count
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
    return is_text or types.is_floating(kind) or (types.is_temporal(kind) and not types.is_time(kind))


def _objects(cells: Sequence[object]) -> np.ndarray:
    return np.fromiter(cells, object, len(cells))


def _number(cell: Any) -> float:
    try:
        # Cells of a column of truth values are texts if one person's is neither.
        return _TRUTH[cell] if isinstance(cell, str) and cell in _TRUTH else float(cell)
    except OverflowError:  # of an integer beyond all floats
        return math.inf if cell > 0 else -math.inf
    except Exception:  # Objects may raise any.
        return math.nan


def _text(cell: object) -> str:
    try:
        return str(cell)
    except Exception:  # of an integer with thousands of digits, or of any object
        return hex(cell) if isinstance(cell, int) else type(cell).__name__


def numbers(array: np.ndarray) -> np.ndarray:
    """Return cells as float64: NaN for those that are missing or no number; infinities stay, bounds clip them.

    An array that is float64 is returned itself.
    """
    with np.errstate(over="ignore"):  # of a wider float, which becomes infinite
        return (
            array.astype(np.float64, copy=False)
            if array.dtype.kind in "biuf"
            else _map_cells(array, _number, np.float64)
        )


class Keys:
    """Stated keys of one column. A cell has a key if both are the same number, or else the same text.

    One cell may decide whether a column is read as numbers or as texts. A key selects the same rows either way.
    """

    def __init__(self, name: str, keys: Sequence[object] | np.ndarray) -> None:
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray) or not len(keys):
            description = repr(keys) if isinstance(keys, str) else f"of type {type(keys).__name__}"
            raise ValueError(f"by: the keys of {name!r} are {description}; state a list of them, or 'found'")
        self.name, self.keys = name, list[Key]()
        self._codes: dict[float | str, int] = {}
        for index, key in enumerate(map(_plain_key, keys)):
            if not isinstance(key, str | int | float) or key != key:
                raise TypeError(f"by: key {key!r} of {name!r} must be a text, a number or a date")
            self.keys.append(key)
            if self._codes.setdefault(_number_or_text(key), index) != index:
                raise ValueError(f"by: the keys of {name!r} have {key!r} twice; a row is in one group")

    def __len__(self) -> int:
        return len(self.keys)

    def codes(self, array: np.ndarray) -> np.ndarray:
        """Return for each cell the index of its key, or -1."""
        numeric = {number: code for number, code in self._codes.items() if isinstance(number, float)}
        if array.dtype.kind in "iuf":
            ordered = np.array(sorted(numeric) or [math.nan])
            codes = np.array([numeric.get(number, -1) for number in ordered.tolist()])
            indices = np.minimum(np.searchsorted(ordered, array), len(ordered) - 1)
            return np.where(ordered[indices] == array, codes[indices], -1)
        return _map_cells(array.astype(object), self._code)

    def _code(self, cell: object) -> int:
        return -1 if _is_missing(cell) else self._codes.get(_number_or_text(cell), self._codes.get(_key_text(cell), -1))


def _plain_key(key: object) -> object:
    """Return a stated key as a number of Python or a text, as a date is in a column."""
    if isinstance(key, date | np.datetime64) and key == key:
        return _key_text(key)
    return key.item() if isinstance(key, np.generic) else key


def _number_or_text(cell: object) -> float | str:
    """Return a cell's number, or else that of its text, as of a year, or else its text."""
    number, text = _number(cell), _key_text(cell)
    if number != number:
        number = _number(text)
    return number if number == number else text


def _key_text(cell: object) -> str:
    """Return a cell's text, which can be written to a file; a date has a time of day only if that is not midnight."""
    text = _text(cell)
    try:
        raw = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # of other lone surrogates
        raw = text.encode(errors="backslashreplace")
    return _MIDNIGHT.sub(r"\1", decode_text(raw))


def decode_text(text: bytes) -> str:
    """Return a text, whose bytes are UTF-8, or else Windows-1252."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("cp1252", "backslashreplace")


def cell_key(cell: object) -> Key | None:
    """Return the key that a cell has when keys are found, or None if it is missing: a number, or else a text."""
    if _is_missing(cell):
        return None
    key = _number_or_text(cell)
    return int(key) if isinstance(key, float) and key.is_integer() and abs(key) < 2**63 else key


def distinct_keys(array: np.ndarray) -> tuple[list[Key], np.ndarray]:
    """Return the different keys of cells, in order, and the index of each cell's key, -1 if it is missing."""
    indices: dict[Key, int] = {}
    keys = map(cell_key, array.tolist())
    codes = [-1 if key is None else indices.setdefault(key, len(indices)) for key in keys]
    return list(indices), np.array(codes, np.int64)


def _is_missing(cell: object) -> bool:
    try:
        return cell is None or bool(cell != cell)
    except Exception:  # of pandas' NA, of arrays, of signalling NaNs
        return True


def _map_cells(array: np.ndarray, function: Callable[[Any], object], dtype: type = np.int64) -> np.ndarray:
    """Return a function of each cell, computed once for equal cells of a plain type.

    Equal cells of other types may have different texts, such as one instant in two time zones.
    """
    cached = lru_cache(maxsize=None, typed=True)(function)
    return np.array([(cached if type(cell) in _PLAIN_TYPES else function)(cell) for cell in array.tolist()], dtype)


def _splitmix(words: np.ndarray) -> np.ndarray:
    """Return a hash of 64-bit words, SplitMix64's: it need not be secret, because any choice of rows is private."""
    words = (words ^ (words >> np.uint64(30))) * _SPLITMIX[1]
    words = (words ^ (words >> np.uint64(27))) * _SPLITMIX[2]
    return words ^ (words >> np.uint64(31))


def _hash_key(secret: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(secret, digest_size=8).digest(), "little"))


def cell_hashes(array: np.ndarray, secret: bytes) -> np.ndarray:
    """Return a keyed hash of each cell: the same for the same number, or else for the same text, and for all missing.

    A number has one hash in every type of column, because the cells of one person may decide the type of all.
    """
    key = _hash_key(secret)

    def text_hash(cell: object) -> int:
        text = "" if _is_missing(cell) else _text(cell)
        return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), key=secret, digest_size=8).digest())

    values = numbers(array)
    words = _splitmix((values + 0.0).view(np.uint64) * _SPLITMIX[0] + key)
    is_text = np.isnan(values)
    words[is_text] = _map_cells(array[is_text].astype(object), text_hash, np.uint64)
    return words


def row_hashes(columns: Iterable[np.ndarray], secret: bytes) -> np.ndarray:
    """Return a keyed hash of each row of one or more columns."""
    words = np.zeros(1, np.uint64)
    for column in columns:
        words = _splitmix(words * _SPLITMIX[0] + cell_hashes(column, secret))
    return words


def person_words(array: np.ndarray, secret: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return two words for each cell, the same two for one person alone, and zeros for a missing cell.

    Cells are of one person if they are the same number, or else the same text; "1" and "1.0" are texts of 1, as files
    have them where a column is of integers and where it is of floats. Numbers of 64 bits have words that are
    one-to-one. Other persons have keyed hashes of 127 bits, of which two are the same with a probability below 2^-69 if
    there are 2^29 persons.
    """
    if array.dtype.kind in "iu" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8):
        tags, bits = _number_bits(array)
    else:
        tags, bits = _map_cells(array, partial(_person, secret=secret), np.uint64).reshape(-1, 2).T
    is_number = (tags >= _SIGNED) & (tags <= _FLOAT)
    words = np.where(is_number, _splitmix(bits * _SPLITMIX[0] + _hash_key(secret)), bits)
    if len(tags) and (tags == tags[0]).all():
        return np.broadcast_to(tags[0].copy(), tags.shape), words  # in no memory
    return tags.copy(), words


def _number_bits(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each number the type that holds it, and its bits in this type: int64, else uint64, else float64."""
    values = array.astype(np.float64)
    bits, tags = values.view(np.uint64).copy(), np.full(len(values), _FLOAT)
    if array.dtype.kind in "iu":
        bits = array.astype(np.int64 if array.dtype.kind == "i" else np.uint64).view(np.uint64)
        is_signed = np.ones(len(bits), bool) if array.dtype.kind == "i" else bits < np.uint64(1 << 63)
        return np.where(is_signed, _SIGNED, _UNSIGNED), bits
    for tag, dtype, low, high in ((_SIGNED, np.int64, -(2.0**63), 2.0**63), (_UNSIGNED, np.uint64, 2.0**63, 2.0**64)):
        is_exact = (values == np.floor(values)) & (values >= low) & (values < high)
        bits[is_exact], tags[is_exact] = values[is_exact].astype(dtype).view(np.uint64), tag
    missing = np.isnan(values)
    bits[missing], tags[missing] = 0, 0
    return tags, bits


def _person(cell: object, secret: bytes) -> tuple[int, int]:
    """Return the type and the bits of a number, or a hash of a text."""
    if _is_missing(cell):
        return 0, 0
    number = _exact_number(cell)
    if isinstance(number, int):
        return int(_SIGNED if number < 1 << 63 else _UNSIGNED), number % (1 << 64)
    if number is not None:
        return int(_FLOAT), int(np.float64(number).view(np.uint64))
    digest = hashlib.blake2b(_text(cell).encode(errors="surrogatepass"), key=secret, digest_size=16).digest()
    return int.from_bytes(digest[:8]) | 1 << 63, int.from_bytes(digest[8:])


def _number_of_text(text: str) -> int | float | None:
    """Return the number that Python writes like this, or None."""
    if len(text) > 24:
        return None
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    return number if str(number) == text and math.isfinite(number) else None


def _exact_number(cell: Any) -> int | float | None:
    """Return the integer of 64 bits, or the float, that a cell is equal to or the text of, or None."""
    try:
        if isinstance(cell, str):
            cell = _number_of_text(cell)
        cell = cell.item() if isinstance(cell, np.generic) else cell  # NumPy compares integers with floats as floats.
        if not isinstance(cell, _NUMBER):
            return None
        real = cell.real
        number = float(real)
        if number == cell and not (number.is_integer() and -(2.0**63) <= number < 2.0**64):
            return number
        return int(real) if -(1 << 63) <= real < 1 << 64 and int(real) == cell else None
    except Exception:  # Objects may raise any.
        return None
