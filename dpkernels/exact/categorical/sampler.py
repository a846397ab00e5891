"""Exact samplers of mechanisms for categories.

A report supports the true category if a random word u of 64 bits is below T, so p = T/2^64. All other choices are
uniform, and no probability is rounded:

- Randomised response: the words from T on are d - 1 runs of t = (2^64 - T)/(d - 1), one for each other category.
- Subset selection: the k or k - 1 categories besides the true one are a uniform set of the d - 1 others.
- Block response: the direction is independent of the value, and the block is randomised response.

Slots are all categories but the last. ``uniform_sets`` draws a set of slots without reading the value. Then the bits of
the true category and of the last category are exchanged, and the bit of the true category is set or cleared. So the set
is uniform over the other categories, and the time does not depend on the value.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernels.exact import arithmetic
from dpkernels.exact.categorical.certificate import BlockCertificate, SetCertificate
from dpkernels.exact.categorical.uniform_sets import UniformSets, uniform_sets
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.mechanisms.categorical.galois import field
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection
from dpkernels.random import host
from dpkernels.shapes import Bool, Int, Num, UInt, UInt8, UInt64

# Streams of a release's key; 16 to 20 are those of ``exact.sampler`` and ``selection``. 23 is that of earlier versions.
RESPONSE_STREAM = 21  # The response: whether the report supports the true category, or which report it is.
DIRECTION_STREAM = 22  # The direction of a report of blocks.
SET_STREAM = 30  # The sets of further categories.


@dataclass(frozen=True, eq=False)
class CategorySampler(abc.ABC):
    """The sampler of a release of categories: a mechanism with its verified integers. ``exact_sampler`` makes it.

    Row i of a release has noise that depends on the key and on i alone.
    """

    mechanism: Any
    certificate: Any

    # Rows whose noise is drawn together: a part of a release that begins at a multiple of it wastes none.
    rows: ClassVar[int] = 1 << 16
    is_categorical: ClassVar[bool] = True
    # The number of the way in which reports follow from a key, if it has changed: versions differ in these reports.
    drawing: ClassVar[int | None] = None

    @property
    def most_rows(self) -> int:
        """Return the most rows of a release, whose streams number their blocks of 64 bytes in 64 bits."""
        return 1 << 62

    @abc.abstractmethod
    def reports(self, codes: Int[np.ndarray, " reports"], key: bytes, start: int) -> np.ndarray:
        """Return the reports of codes 0..d - 1, int64, which are rows ``start`` and on of the release of a key."""

    def _has_true(self, words: UInt[np.ndarray, " reports"]) -> Bool[np.ndarray, " reports"]:
        return words < words.dtype.type(self.certificate.threshold)

    def _response(
        self, words: UInt[np.ndarray, " reports"], true: Int[np.ndarray, " reports"], choices: int
    ) -> Int[np.ndarray, " reports"]:
        """Return randomised response: ``true``, or one of the g - 1 other choices."""
        T, bits = self.certificate.threshold, self.certificate.bits
        t = words.dtype.type(((1 << bits) - T) // (choices - 1))
        # The index of the choice among the others; where the word is below T, it is not used.
        index = ((words - words.dtype.type(T)) // t).astype(np.int64)
        return np.where(self._has_true(words), true, index + (index >= true))


def stream_words(key: bytes, stream: int, start: int, count: int) -> UInt64[np.ndarray, " {count}"]:
    """Return words ``start`` and on, of 64 bits, of a stream of a key."""
    skip = start % 8  # A block has eight of them.
    words = np.empty(skip + count, "<u8")
    host.fill(words, key, stream, start // 8)
    return words[skip:]


class ResponseSampler(CategorySampler):
    """The sampler of randomised response on d categories: one word a report."""

    def reports(self, codes: Int[np.ndarray, " reports"], key: bytes, start: int) -> Num[np.ndarray, " reports"]:
        words = stream_words(key, RESPONSE_STREAM, start, len(codes))
        return self._response(words, codes, self.mechanism.categories).astype(self.mechanism.report_dtype)


class BlockSampler(CategorySampler):
    """The sampler of block response: a word for the direction and one for the block.

    The probability of a direction is off by at most the number of directions over 2^64 of itself, whatever the value.
    """

    streams: ClassVar[tuple[int, int]] = (DIRECTION_STREAM, RESPONSE_STREAM)

    def reports(self, codes: Int[np.ndarray, " reports"], key: bytes, start: int) -> Num[np.ndarray, " reports"]:
        return self.respond(codes, *(stream_words(key, stream, start, len(codes)) for stream in self.streams))

    def respond(
        self,
        codes: Int[np.ndarray, " reports"],
        direction_words: UInt64[np.ndarray, " reports"],
        response_words: UInt64[np.ndarray, " reports"],
    ) -> Num[np.ndarray, " reports"]:
        """Return the reports of codes by two independent random words each."""
        mechanism, g = self.mechanism, self.mechanism.blocks
        directions = arithmetic.high_product(direction_words, mechanism.directions).view(np.int64)
        blocks = self._response(response_words, mechanism.host_block_indices(directions, codes), g)
        return (directions * g + blocks).astype(mechanism.report_dtype)


class SetSampler(CategorySampler):
    """The sampler of subset selection with sets of two or more."""

    drawing = 2

    @property
    def _sets(self) -> UniformSets:
        return uniform_sets(self.mechanism.categories - 1)

    @property
    def rows(self) -> int:  # type: ignore[override]
        """Return how many rows draw their sets together."""
        return self._sets.rows

    @property
    def most_rows(self) -> int:
        return min(1 << 62, ((1 << 64) // self._sets.blocks - 1) * self.rows)

    def reports(self, codes: Int[np.ndarray, " reports"], key: bytes, start: int) -> UInt8[np.ndarray, "reports bytes"]:
        (width,) = self.mechanism.report_shape
        words = -(-width // 2)  # of 16 bits
        out = np.empty((len(codes), 2 * words), np.uint8)
        source, rows, end = host.Keystream(key), self.rows, start + len(codes)
        for block in range(start // rows, -(-end // rows)):
            low, high = max(start, block * rows), min(end, (block + 1) * rows)
            out_rows, block_rows = slice(low - start, high - start), slice(low - block * rows, high - block * rows)
            has_true = self._has_true(stream_words(key, RESPONSE_STREAM, block * rows, rows))
            # The sets of a whole block are drawn where they are returned.
            sets = out[out_rows] if high - low == rows else np.empty((rows, 2 * words), np.uint8)
            self._sets.draw(
                source, SET_STREAM, block, self.mechanism.size - has_true.astype(np.uint16), sets.view("<u2")
            )
            out[out_rows] = self._with_true_bits(sets[block_rows], has_true[block_rows], codes[out_rows])
        return out if width == 2 * words else np.ascontiguousarray(out[:, :width])

    def _with_true_bits(
        self,
        sets: UInt8[np.ndarray, "reports bytes"],
        has_true: Bool[np.ndarray, " reports"],
        codes: Int[np.ndarray, " reports"],
    ) -> UInt8[np.ndarray, "reports bytes"]:
        """Exchange the bits of the true and the last category, and set the true one's bit where it is in the set."""
        width, last = sets.shape[1], self.mechanism.categories - 1
        flat = sets.reshape(-1)
        index, bit = np.arange(len(codes)) * width + (codes >> 3), (codes & 7).astype(np.uint8)
        byte, true_bit = flat[index], has_true.view(np.uint8)
        moved = byte >> bit & np.uint8(1)  # The bit of the last category is none of the slots', and 0.
        flat[index] = byte & ~(np.uint8(1) << bit) | true_bit << bit
        sets[:, last >> 3] |= moved << np.uint8(last & 7)
        return sets


def category_sampler(mechanism: Categorical) -> CategorySampler:
    """Return the exact sampler of a mechanism for categories; a CertificateError says that its integers fail."""
    if isinstance(mechanism, BlockResponse):
        _ = field(mechanism.blocks)
        return BlockSampler(mechanism, BlockCertificate.of(mechanism))
    if not isinstance(mechanism, SubsetSelection):
        raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact sampler")
    certificate = SetCertificate.of(mechanism)
    return ResponseSampler(mechanism, certificate) if mechanism.size == 1 else SetSampler(mechanism, certificate)
