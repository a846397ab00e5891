"""Columns of categories in files: from cells to codes, and from reports to cells.

The cells of a text file are compared with the labels byte by byte, and those of a Parquet file in their text form, so
that the labels of the options are always texts. Without labels, the categories are the integers from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels.cli.files import buffers
from dpkernels.cli.files.layout import MISSING_TEXTS
from dpkernels.exact.categorical.certificate import CategoryCertificate
from dpkernels.exact.categorical.prefixes import PrefixCertificate
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection
from dpkernels.release.categories import MISSING, UNKNOWN

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[[ord(digit) for digit in "0123456789abcdef"]] = range(16)


def is_categorical(certificate: object) -> bool:
    """Return whether a certificate, or its JSON, is of a mechanism for categories."""
    if isinstance(certificate, Mapping):
        return certificate.get("kind") in ("set of categories", "block of categories", "prefixes")
    return isinstance(certificate, CategoryCertificate | PrefixCertificate)


def _labels(mechanism: Categorical | PrefixPlan) -> list[str]:
    return [str(label) for label in mechanism.labels or range(mechanism.categories)]


def _texts(cells: pa.Array) -> pa.Array:
    """Return cells as bytes: those of a text file as they are, and numbers as they print."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if pa.types.is_binary(cells.type) or pa.types.is_large_binary(cells.type):
        return cells
    if pa.types.is_boolean(cells.type) or not (
        pa.types.is_integer(cells.type) or pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
        or pa.types.is_string_view(cells.type)
    ):  # fmt: skip
        raise ValueError(f"holds {cells.type}; categories are texts or whole numbers")
    return cells.cast(pa.string()).cast(pa.binary())


def category_codes(cells: pa.Array, mechanism: Categorical | PrefixPlan, markers: Sequence[str] = ()) -> np.ndarray:
    """Return the code of every cell; ``MISSING`` where it has no value, and ``UNKNOWN`` where it is no category.

    A text without a value, also one of the ``markers``, is a category if it is one of the labels.
    """
    if isinstance(mechanism, PrefixPlan):
        return _prefix_codes(cells, mechanism, markers)
    if mechanism.labels is None and pa.types.is_integer(cells.type) and not markers:
        values, is_number, is_missing = _integers(cells, mechanism.categories)
        return np.where(is_missing, MISSING, np.where(is_number, values, UNKNOWN))
    texts = _texts(cells)
    if mechanism.labels is None:
        values, is_number = _whole_numbers(texts)
        codes = np.where(is_number & (values < mechanism.categories), values, UNKNOWN)
    else:
        indices = pc.index_in(
            texts, value_set=pa.array([str(label).encode() for label in mechanism.labels], texts.type)
        )
        codes = buffers.numbers(pc.fill_null(indices, UNKNOWN)).astype(np.int64)
    return np.where((codes == UNKNOWN) & _is_missing(texts, markers), MISSING, codes)


def _prefix_codes(cells: pa.Array, plan: PrefixPlan, markers: Sequence[str]) -> np.ndarray:
    """Return the codes of texts. Those without a value are missing, also where the plan has such a text."""
    texts = _texts(cells)
    # Bytes that are no UTF-8 become lone surrogates, which are in no alphabet.
    values = [b"" if cell is None else cell for cell in texts.to_pylist()]
    codes, is_text = plan.codes_of_texts([cell.decode(errors="surrogateescape") for cell in values])
    return np.where(_is_missing(texts, markers), MISSING, np.where(is_text, codes, UNKNOWN))


def _is_missing(texts: pa.Array, markers: Sequence[str]) -> np.ndarray:
    empty = pc.is_in(texts, value_set=pa.array([text.encode() for text in (*MISSING_TEXTS, *markers)], texts.type))
    return buffers.truths(pc.or_(pc.is_null(texts), empty))


@dataclass(frozen=True)
class CategoryReports:
    """The reports of a column of a chunk of a file: codes, or sets as (n, bytes)."""

    reports: np.ndarray
    mechanism: Categorical | PrefixPlan
    missing: np.ndarray | None  # a mask of rows without a report, or None

    def column(self) -> pa.Array:
        """Return the reports as a column of a Parquet file, null where they are missing."""
        validity = None if self.missing is None else pa.py_buffer(np.packbits(~self.missing, bitorder="little"))
        if self.reports.ndim > 1:
            data = pa.py_buffer(np.ascontiguousarray(self.reports))
            return pa.Array.from_buffers(pa.binary(self.reports.shape[1]), len(self.reports), [validity, data])
        codes = buffers.array(self.reports, self.missing)
        if self.mechanism.kind == "category" and self.mechanism.labels is not None:
            return pa.array(_labels(self.mechanism)).take(codes)
        return codes

    def texts(self, delimiter: str) -> pa.Array:
        """Return the reports as cells of a text file: sets as hexadecimal digits, labels quoted where they must be."""
        if self.reports.ndim > 1:
            text = _HEX[self.reports]
            return buffers.binary(text.tobytes(), np.arange(len(text) + 1) * text.itemsize * text.shape[1])
        codes = buffers.array(self.reports)
        if self.mechanism.kind == "category" and self.mechanism.labels is not None:
            return pa.array([_quoted(label, delimiter).encode() for label in _labels(self.mechanism)]).take(codes)
        return codes.cast(pa.string()).cast(pa.binary())


def _quoted(label: str, delimiter: str) -> str:
    if any(mark in label for mark in (delimiter, '"', "\n", "\r")):
        return '"' + label.replace('"', '""') + '"'
    return label


def parse_reports(
    cells: pa.Array, mechanism: Categorical | PrefixPlan, markers: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the reports in cells, whether each is a possible one, and whether each is missing.

    Reports that are missing or impossible are 0.
    """
    if mechanism.kind == "category":
        codes = category_codes(cells, mechanism, markers)
        return np.maximum(codes, 0), codes >= 0, codes == MISSING
    if isinstance(mechanism, SubsetSelection):
        return _parse_sets(cells, mechanism, markers)
    if pa.types.is_integer(cells.type) and not markers:
        return _integers(cells, mechanism.outcomes)
    texts = _texts(cells)
    values, is_number = _whole_numbers(texts)
    is_valid = is_number & (values < mechanism.outcomes)
    return np.where(is_valid, values, 0), is_valid, _is_missing(texts, markers)


def _integers(cells: pa.Array, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return integer cells, whether each is in 0..end - 1, and whether each has no value; 0 where it is not in it."""
    cell_values = buffers.numbers(cells)
    is_valid = cell_values < end if cell_values.dtype.kind == "u" else (cell_values >= 0) & (cell_values < end)
    is_missing = buffers.truths(pc.is_null(cells)) if cells.null_count else np.zeros(len(cell_values), bool)
    is_valid &= ~is_missing
    values = cell_values.astype(np.int64)
    return values if is_valid.all() else np.where(is_valid, values, 0), is_valid, is_missing


def _whole_numbers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of texts that are whole numbers of up to 18 digits as they print, and which texts are."""
    is_number = buffers.truths(pc.fill_null(pc.match_substring_regex(texts, r"\A(0|[1-9][0-9]{0,17})\z"), False))
    digits = pc.if_else(buffers.array(is_number), texts, pa.scalar(b"0", texts.type))
    return buffers.numbers(digits.cast(pa.string()).cast(pa.int64())), is_number


def _parse_sets(
    cells: pa.Array, mechanism: SubsetSelection, markers: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (width,) = mechanism.report_shape
    if pa.types.is_fixed_size_binary(cells.type):
        cells = cells.cast(pa.binary())
        digits = width
    elif pa.types.is_binary(cells.type):  # Digits of a text file, or bytes of a Parquet file of another writer.
        digits = 2 * width
    else:
        raise ValueError(f"holds {cells.type}; sets of categories are bytes")
    lengths = pc.fill_null(pc.binary_length(cells), 0)
    is_missing = _is_missing(cells, markers)
    has_width = buffers.numbers(lengths) == digits
    filled = pc.if_else(buffers.array(has_width), cells, pa.scalar(b"0" * digits, pa.binary()))
    array = np.frombuffer(buffers.text(filled), np.uint8).reshape(-1, digits)
    if digits > width:
        values = _NIBBLES[array]
        has_width &= (values < 16).all(1)
        array = (values[:, 0::2] << np.uint8(4)) | (values[:, 1::2] & np.uint8(15))
    return array, has_width & mechanism.are_sets(array), is_missing
