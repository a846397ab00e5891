"""Counts of reports about categories: a sufficient statistic for estimates, in constant memory, that can be merged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpkernels.bounded_json import parse_json, read_text
from dpkernels.estimation.counts import ReportError, as_numbers
from dpkernels.exact.categorical.certificate import BlockCertificate, CategoryCertificate, SetCertificate
from dpkernels.exact.categorical.prefixes import PrefixCertificate
from dpkernels.exact.categorical.sampler import CategorySampler, category_sampler
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.packed import full_certificates
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.categorical.base import Categorical, parse_categories
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.mechanisms.categorical.galois import field
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection
from dpkernels.release import containers
from dpkernels.release.categories import MISSING, UNKNOWN, category_codes, is_missing_value

# The most different reports that are counted one by one, eight bytes each.
_MAX_COUNTED = 1 << 27
_CHUNK = 1 << 15  # sets that are unpacked at once
_BLOCK_BYTES = 1 << 15  # of sets that are added to others bit by bit, which stay in a core's cache
# More reports than 2^40 are counted by the high and the low bits of their numbers, which floating point holds exactly.
_EXACT_BITS = 40
_PART_BITS = 20  # the low bits
_BYTE = 255  # Sums of so many bits fit into a byte.


class CategoryCounts:
    """The number of reports that support each category, to which parts of a release can be added one after another.

    ``CategoryCounts(mechanism).add(first).add(second)`` counts both parts. ``+`` adds counts of the same mechanism.
    ``dpk.estimate`` accepts counts in the place of reports. The memory does not grow with the number of reports.

    Args:
        mechanism: a mechanism for categories, or its exact sampler.

    Raises:
        TypeError: the mechanism is not for categories.
        ValueError: block response has too many different reports to count them.
    """

    def __init__(self, mechanism: object) -> None:
        sampler = exact_sampler(mechanism)
        if not isinstance(sampler, CategorySampler):
            raise TypeError(f"mechanism: {type(mechanism).__name__} is not for categories")
        if not isinstance(sampler.mechanism, Categorical):
            raise TypeError("mechanism: is a plan of prefixes; its method find returns the most frequent values")
        self.mechanism: Categorical = sampler.mechanism
        self.certificate: CategoryCertificate = sampler.certificate
        self.total = 0  #: the number of reports
        size = self.mechanism.categories if self.mechanism.kind == "set" else self.mechanism.outcomes
        if size > _MAX_COUNTED:
            raise ValueError(
                f"mechanism: its {size:.3g} different reports are too many to count; heavy hitters of large domains "
                "are found by prefixes"
            )
        #: how often each category is in a set, or how often there is each other report
        self.numbers = np.zeros(size, np.int64)

    def __repr__(self) -> str:
        return f"CategoryCounts({self.total:,} reports, {self.mechanism.categories:,} categories)"

    def add(self, reports: object) -> CategoryCounts:
        """Count more reports, of any kind that ``perturb`` returns; return the same counts.

        Sets may also be texts of hexadecimal digits. Missing reports are ignored. If a report is not a possible one, a
        ValueError names the first one, and no report is counted.
        """
        rows = plain_reports(reports, self.mechanism)
        if rows.ndim == 1:
            self.numbers += np.bincount(rows, minlength=len(self.numbers))
        else:
            self.numbers += _sum_of_bits(rows, self.mechanism.categories)
        self.total += len(rows)
        return self

    def __add__(self, other: CategoryCounts) -> CategoryCounts:
        if not isinstance(other, CategoryCounts):
            return NotImplemented
        if self.mechanism != other.mechanism:
            raise ValueError("counts: are of different mechanisms; their reports do not mean the same")
        combined = CategoryCounts(self.mechanism)
        combined.numbers, combined.total = self.numbers + other.numbers, self.total + other.total
        return combined

    @property
    def supports(self) -> np.ndarray:
        """Return (d,) the number of reports that support each category, int64."""
        mechanism = self.mechanism
        return block_supports(mechanism, self.numbers) if isinstance(mechanism, BlockResponse) else self.numbers

    @cached_property
    def probabilities(self) -> tuple[float, float]:
        """Return (p, q) of the integers that a release samples."""
        return float(self.certificate.probability), float(self.certificate.other_probability)


def sidecar_mechanism(source: object, column: str | None) -> Categorical | None:
    """Return the mechanism of a column of categories in a sidecar, a path or its JSON; None for other columns.

    A ``CertificateError`` says that the integers of the sidecar are not those of the mechanism that it states.
    """
    if not isinstance(source, str | Path | Mapping):
        return None
    sidecar: Any = source
    if not isinstance(source, Mapping):
        with suppress(ValueError):  # ``as_channel`` says what is wrong.
            sidecar = parse_json(read_text(Path(source)))
    columns = sidecar.get("columns") if isinstance(sidecar, Mapping) else None
    if not isinstance(columns, list) or not all(isinstance(entry, Mapping) for entry in columns):
        return None
    with suppress(ValueError):
        columns = full_certificates(sidecar)["columns"]
    chosen = [entry for entry in columns if column is None or entry.get("column") == column]
    if len(chosen) != 1 or not isinstance(chosen[0].get("certificate"), Mapping):
        return None
    payload = dict(chosen[0]["certificate"])
    if payload.get("kind") == PrefixCertificate.kind:
        raise TypeError("mechanism: the column has reports of prefixes; `dpkernels estimate` finds the frequent values")
    if payload.get("kind") not in (SetCertificate.kind, BlockCertificate.kind):
        return None
    certificate: Any = CategoryCertificate.from_dict(payload)
    options = chosen[0].get("options")
    labels = options.get("categories") if isinstance(options, Mapping) else None
    _, names, _ = parse_categories(labels if isinstance(labels, list) else certificate.categories, None)
    mechanism: Categorical
    if isinstance(certificate, BlockCertificate):
        mechanism = BlockResponse(certificate.epsilon, certificate.categories, certificate.blocks, names)
    else:
        mechanism = SubsetSelection(certificate.epsilon, certificate.categories, certificate.size, names)
    if category_sampler(mechanism).certificate != certificate:
        raise CertificateError("mechanism: the sidecar's integers are not those of the mechanism that it states")
    return mechanism


def block_supports(mechanism: BlockResponse, numbers: np.ndarray) -> np.ndarray:
    """Return how many reports of block response support each category, from how often there was each report.

    N(x) = sum_a table[a, <a, x>] = (1/g) sum_a sum_u F_a(u) w^Tr(u <a, x>), with F_a(u) = sum_s table[a, s] w^-Tr(u s):
    the coefficient of the frequency u a is F_a(u), and every frequency but 0 is u a for one direction a and one u. One
    inverse FFT gives all N, which are integers.
    """
    if (total := int(numbers.sum())) >> _EXACT_BITS and (numbers >> _PART_BITS).any():
        high, low = numbers >> _PART_BITS, numbers & ((1 << _PART_BITS) - 1)
        return (block_supports(mechanism, high) << _PART_BITS) + block_supports(mechanism, low)
    galois = field(mechanism.blocks)
    g, t = mechanism.blocks, mechanism.digits
    coefficients = galois.characters(numbers.reshape(mechanism.directions, g).astype(np.float64))
    vectors = mechanism.direction_vectors(np.arange(mechanism.directions))
    frequency = np.zeros((mechanism.directions, g - 1), np.int64)
    factors, power = np.arange(1, g), 1
    for _ in range(t):
        frequency += galois.frequencies[galois.multiply((vectors % g)[:, None], factors)] * power
        vectors, power = vectors // g, power * g
    spectrum = np.empty(mechanism.points, complex)
    spectrum[0] = total
    spectrum[frequency] = coefficients[:, 1:]
    axes = (galois.r,) * (galois.s * t)
    inverse = np.fft.ifftn(spectrum.reshape(axes)).real.reshape(-1) * (mechanism.points // g)
    supports = np.rint(inverse).astype(np.int64)
    if np.abs(inverse - supports).max() > 0.25 or int(supports.sum()) != total * (mechanism.points // g):
        raise ArithmeticError(f"reports: {total} of them are too many for floating point to count exactly")
    return supports[: mechanism.categories]


def _sum_of_bits(rows: np.ndarray, categories: int) -> np.ndarray:
    """Return how often each bit of rows of bytes is set.

    Blocks of rows are added bit by bit, and the sum is in planes: a plane of level l counts 2^l times. So 63 blocks
    leave six planes, whose bits are then counted one by one.
    """
    total, width, done = np.zeros(categories, np.int64), rows.shape[1], 0
    size = max(8, _BLOCK_BYTES // width // 8 * 8)  # rows of a block, which are whole words
    for blocks in (63, 15, 3):
        for first in range(done, len(rows) - blocks * size + 1, blocks * size):
            done = first + blocks * size
            words = np.ascontiguousarray(rows[first:done]).reshape(-1).view(np.uint64).reshape(blocks, -1)
            for level, planes in enumerate(_bit_planes(list(words))):
                for plane in planes:
                    total += _counted_bits(plane.view(np.uint8).reshape(size, width), categories) << level
    return total + _counted_bits(rows[done:], categories)


def _bit_planes(words: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Return for each level the planes, at most two, whose bits add up to those of arrays of words.

    Three planes of a level are one of its own, the bits' sums modulo 2, and one of the next level, the carries.
    """
    levels = [words]
    for planes in levels:
        carries = list[np.ndarray]()
        while len(planes) > 2:
            a, b, c = planes.pop(), planes.pop(), planes.pop()
            odd = a ^ b
            planes.insert(0, odd ^ c)
            carries.append(odd & c | a & b)
        if carries:
            levels.append(carries)
    return levels


def _counted_bits(rows: np.ndarray, categories: int) -> np.ndarray:
    total = np.zeros(categories, np.int64)
    for first in range(0, len(rows), _CHUNK):
        bits = np.unpackbits(rows[first : first + _CHUNK], axis=1, count=categories, bitorder="little")
        starts = range(0, len(bits), _BYTE)
        sums = [np.add.reduce(bits[start : start + _BYTE], axis=0, dtype=np.uint8) for start in starts]
        total += np.sum(sums, axis=0, dtype=np.int64)
    return total


def plain_reports(reports: object, mechanism: Categorical) -> np.ndarray:
    """Return reports of any container as integers, or sets as (n, bytes), without missing ones.

    A ``ReportError`` names the first one that the mechanism cannot have made.
    """
    if isinstance(mechanism, SubsetSelection) and mechanism.size > 1:
        rows, present = _set_bytes(reports, mechanism)
        _check_possible(
            mechanism.are_sets(rows), present, f"is no set of {mechanism.size} of {mechanism.categories} categories"
        )
        return rows
    if mechanism.kind == "category" and not _are_codes(reports, mechanism):
        codes, value = category_codes(reports, mechanism)
        if (unknown := codes == UNKNOWN).any():
            row = int(unknown.argmax())
            raise ReportError(row, f"is {value(row)!r}, which is not one of the {mechanism.categories} categories")
        return codes[codes != MISSING]
    values, present = _integers(reports)
    most = mechanism.outcomes - 1
    _check_possible((values >= 0) & (values <= most), present, f"is no integer in 0..{most}")
    return values.astype(np.int64)


def _are_codes(reports: Any, mechanism: Categorical) -> bool:
    """Return whether reports are codes of a mechanism whose labels are texts, such as those of ``sample``."""
    labels = mechanism.labels
    is_array = containers.library_name(reports) in ("numpy", "jax")
    return is_array and labels is not None and isinstance(labels[0], str) and reports.dtype.kind in "iu"


def _check_possible(is_possible: np.ndarray, present: np.ndarray | None, reason: str) -> None:
    if not is_possible.all():
        row = int(is_possible.argmin())
        raise ReportError(row if present is None else int(present[row]), f"{reason}; the mechanism cannot have made it")


def _integers(reports: object) -> tuple[np.ndarray, np.ndarray | None]:
    column, present = containers.present_rows(reports)
    values = as_numbers("reports", column).reshape(-1)
    if values.dtype.kind not in "iu":
        raise TypeError(f"reports: hold {values.dtype}; integers are needed")
    return values, present


def _set_bytes(reports: Any, mechanism: Categorical) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (n, bytes) of the sets that are present, and their rows unless all are."""
    (width,) = mechanism.report_shape
    if containers.library_name(reports) in ("numpy", "jax") and np.ndim(reports) and reports.dtype == np.uint8:
        array = np.asarray(np.ma.getdata(reports))
        if array.shape == (width,):
            array = array[None]
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(f"reports: have shape {array.shape}; sets have {width} bytes each")
        if np.ma.is_masked(reports):
            rows = np.flatnonzero(~np.ma.getmaskarray(reports).any(axis=1))
            return array[rows], rows
        return array, None
    values = [reports] if isinstance(reports, bytes | str) else containers.to_list(reports)
    present = [row for row, value in enumerate(values) if not is_missing_value(value)]
    sets = b"".join(_parse_set(row, values[row], width) for row in present)
    array = np.frombuffer(sets, np.uint8).reshape(-1, width)
    return array, None if len(present) == len(values) else np.array(present)


def _parse_set(row: int, value: object, width: int) -> bytes:
    with suppress(ValueError):
        members = bytes.fromhex(value) if isinstance(value, str) else value
        if isinstance(members, bytes) and len(members) == width:
            return members
    raise ReportError(row, f"is no set of {width} bytes; the mechanism cannot have made it")
