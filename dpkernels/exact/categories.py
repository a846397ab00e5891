"""Exact samplers of mechanisms for categories, and certificates of the integers that they draw from.

A word u of 64 random bits decides whether a report supports the true category: where u < T, so p = T/2^64. Everything
else is uniform, and no probability is rounded:

- Randomised response: the words from T on are d - 1 runs of t = (2^64 - T)/(d - 1), one for each other category.
- Subset selection: the k or k - 1 categories besides the true one are a uniform set of the d - 1 others.
- Block response: the direction is independent of the value, and the block is randomised response.

So the ratio of a report's probabilities given two categories is (T/(2^64 - T)) (d - k)/k at most, with the d blocks or
categories of which a report names k; and k = 1 for blocks. Certificates compare this fraction with e^epsilon.

Slots are the categories other than the last one, and ``uniform_sets`` draws a set of them without reading the value. In
the end the bits of the true and of the last category are exchanged, and the true one's bit is set or cleared. The set
is thus uniform over the other categories, and the time does not depend on the value.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import shortest
from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import (
    LIMITS,
    WORDS,
    Certificate,
    CertificateError,
    exp_lower_bound,
    log_upper_bound,
)
from dpkernels.exact.uniform_sets import UniformSets, uniform_sets
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.mechanisms.categorical.galois import field, is_field
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection
from dpkernels.proven import proven
from dpkernels.random import host

# Streams of a release's key; 16 to 20 are those of ``sampler`` and ``choice``. 23 is that of earlier versions.
RESPONSE_STREAM = 21  # The response: whether the report supports the true category, or which report it is.
DIRECTION_STREAM = 22  # The direction of a report of blocks.
SET_STREAM = 30  # The sets of further categories.

BITS = 64  # of the word that decides whether a report supports the true category
_MAX_ENUMERATED = 1 << 20  # entries of an exact channel


def response_threshold(epsilon: float, choices: int, bits: int = BITS) -> int:
    """Return T for randomised response over g choices: the rest is g - 1 equal runs of t words, and T <= e^eps t."""
    t = math.ceil((1 << bits) / (exp_lower_bound(epsilon) + choices - 1))
    return (1 << bits) - (choices - 1) * t


def set_threshold(epsilon: float, categories: int, size: int, bits: int = BITS) -> int:
    """Return the largest T with T (d - k) <= e^eps k (2^bits - T)."""
    odds = size * exp_lower_bound(epsilon)
    return math.floor((1 << bits) * odds / (odds + categories - size))


@proven("categories#proof")
@dataclass(frozen=True)
class CategoryCertificate(Certificate):
    """Verified facts about the integers of a mechanism for categories."""

    epsilon: float
    categories: int
    threshold: int  # The report supports the true category where a word is below it.
    bits: int  # of that word

    parts: ClassVar[Mapping[str, str]] = {}
    facts: ClassVar[tuple[str, ...]] = ("epsilon", "categories", "threshold", "bits", "ratio", "realised_epsilon")
    inputs: ClassVar[str] = "categories"

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.integer_in("categories", self.categories, 2, 1 << 40)
        if self.bits not in WORDS:
            raise CertificateError(f"bits: {self.bits} is not one of {', '.join(map(str, WORDS))}")
        if not 0 < self.threshold < 1 << self.bits:
            raise CertificateError(f"threshold: {self.threshold} is not in 1..2^{self.bits} - 1")
        choices, size = self._choices
        rest = (1 << self.bits) - self.threshold
        if size == 1 and rest % (choices - 1):
            raise CertificateError(
                f"threshold: leaves {rest} words, which are no {choices - 1} runs of one length for the other choices"
            )
        if self.ratio <= 1:
            raise CertificateError(f"threshold: {self.threshold} carries no signal; a ratio is {float(self.ratio):.6g}")
        if self.ratio > exp_lower_bound(float(self.epsilon)):
            raise CertificateError(
                f"epsilon: a ratio is {shortest(float(self.ratio))}, {log_upper_bound(self.ratio) - self.epsilon:.3g} "
                f"above epsilon {shortest(self.epsilon)}"
            )

    @property
    @abc.abstractmethod
    def _choices(self) -> tuple[int, int]:
        """Return of how many choices a report names how many."""

    @property
    def probability(self) -> Fraction:
        """Return p, the probability that a report supports the true category."""
        return Fraction(self.threshold, 1 << self.bits)

    @property
    @abc.abstractmethod
    def other_probability(self) -> Fraction:
        """Return q, the probability that a report supports any one other category."""

    @property
    def ratio(self) -> Fraction:
        """Return the largest ratio of the probabilities of a report given two categories."""
        choices, size = self._choices
        return Fraction(self.threshold * (choices - size), ((1 << self.bits) - self.threshold) * size)

    @property
    def realised_epsilon(self) -> float:
        """Return ln(ratio), rounded up; at most epsilon."""
        return log_upper_bound(self.ratio)

    @property
    def covers(self) -> str:
        return f"pure epsilon-DP of each report; neighbouring: any two categories (local DP, replace one). {LIMITS}"

    @property
    @abc.abstractmethod
    def reports(self) -> str:
        """Return a description of the reports."""

    @abc.abstractmethod
    def channel(self) -> list[list[Fraction]]:
        """Return the exact probability of every report, in the order of ``all_reports``, given each category."""

    def lines(self) -> list[tuple[str, str]]:
        p, q = float(self.probability), float(self.other_probability)
        realised = shortest(self.realised_epsilon)
        return [
            ("epsilon", f"{shortest(self.epsilon)}, attained {realised} (the logarithm of the largest ratio)"),
            ("reports", self.reports),
            ("inputs", f"{self.categories} {self.inputs}"),
            ("supports", f"the true category with probability {p:.9g}, any other one with {q:.9g}"),
            ("total weight", f"2^{self.bits}, of which {self.threshold} support the true category"),
        ]

    def _few(self, reports: int) -> None:
        if reports * self.categories > _MAX_ENUMERATED:
            raise ValueError(f"channel: {reports} reports of {self.categories} categories are too many to enumerate")


@dataclass(frozen=True)
class SetCertificate(CategoryCertificate, kind="set of categories"):
    """A certificate of subset selection, and of randomised response with size 1."""

    size: int

    facts = (*CategoryCertificate.facts, "size")

    def __post_init__(self) -> None:
        checks.integer_in("size", self.size, 1, self.categories - 1)
        super().__post_init__()

    @classmethod
    def of(cls, mechanism: SubsetSelection, bits: int = BITS) -> Self:
        """Return the certificate of the largest threshold that meets the budget."""
        epsilon, d, k = _number(mechanism), mechanism.categories, mechanism.size
        T = response_threshold(epsilon, d, bits) if k == 1 else set_threshold(epsilon, d, k, bits)
        return cls(epsilon, d, T, bits, k)

    @classmethod
    def certified(cls, payload: Mapping[str, object]) -> Self:
        names = ("categories", "threshold", "bits", "size")
        return cls(real("epsilon", payload["epsilon"]), *(integer(name, payload[name]) for name in names))

    @property
    def _choices(self) -> tuple[int, int]:
        return self.categories, self.size

    @property
    def other_probability(self) -> Fraction:
        return (self.size - self.probability) / (self.categories - 1)

    @property
    def reports(self) -> str:
        return "one category" if self.size == 1 else f"a set of {self.size} categories"

    def channel(self) -> list[list[Fraction]]:
        d, k, p = self.categories, self.size, self.probability
        self._few(math.comb(d, k))
        inside, outside = p / math.comb(d - 1, k - 1), (1 - p) / math.comb(d - 1, k)
        return [[inside if x in members else outside for members in combinations(range(d), k)] for x in range(d)]


@dataclass(frozen=True)
class BlockCertificate(CategoryCertificate, kind="block of categories"):
    """A certificate of block response."""

    blocks: int

    facts = (*CategoryCertificate.facts, "blocks")

    def __post_init__(self) -> None:
        checks.integer_in("blocks", self.blocks, 2, 1 << 20)
        if not is_field(self.blocks):
            raise CertificateError(f"blocks: {self.blocks} is neither a prime nor a small power of one")
        super().__post_init__()

    @classmethod
    def of(cls, mechanism: BlockResponse, bits: int = BITS) -> Self:
        """Return the certificate of the largest threshold that meets the budget."""
        epsilon = _number(mechanism)
        T = response_threshold(epsilon, mechanism.blocks, bits)
        return cls(epsilon, mechanism.categories, T, bits, mechanism.blocks)

    @classmethod
    def certified(cls, payload: Mapping[str, object]) -> Self:
        names = ("categories", "threshold", "bits", "blocks")
        return cls(real("epsilon", payload["epsilon"]), *(integer(name, payload[name]) for name in names))

    @cached_property
    def _mechanism(self) -> BlockResponse:
        return BlockResponse(self.epsilon, self.categories, self.blocks)

    @property
    def _choices(self) -> tuple[int, int]:
        return self.blocks, 1

    @property
    def collision(self) -> Fraction:
        """Return c, the probability that another category is in the block of the true one."""
        points = self._mechanism.points
        return Fraction(points // self.blocks - 1, points - 1)

    @property
    def other_probability(self) -> Fraction:
        c, p = self.collision, self.probability
        return c * p + (1 - c) * (1 - p) / (self.blocks - 1)

    @property
    def reports(self) -> str:
        return f"one of {self.blocks} blocks, in one of {self._mechanism.directions} directions"

    def channel(self) -> list[list[Fraction]]:
        mechanism, p = self._mechanism, self.probability
        self._few(mechanism.outcomes)
        supports = mechanism.supports(mechanism.all_reports()).T
        own, other = (one / mechanism.directions for one in (p, (1 - p) / (self.blocks - 1)))
        return [[own if is_own else other for is_own in row] for row in supports.tolist()]


def _number(mechanism: Categorical) -> float:
    checks.not_traced("mechanism", "Its integers need the value of epsilon; give one outside jit.", mechanism.epsilon)
    if shape := np.shape(mechanism.epsilon):
        raise ValueError(
            f"epsilon: has shape {shape}; a release of categories has one budget, and batches are simulated"
        )
    return float(checks.number("epsilon", mechanism.epsilon))


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
    def reports(self, codes: np.ndarray, key: bytes, start: int) -> np.ndarray:
        """Return the reports of codes 0..d - 1, int64, which are rows ``start`` and on of the release of a key."""

    def _has_true(self, words: np.ndarray) -> np.ndarray:
        return words < words.dtype.type(self.certificate.threshold)

    def _response(self, words: np.ndarray, true: np.ndarray, choices: int) -> np.ndarray:
        """Return randomised response: ``true``, or one of the g - 1 other choices."""
        T, bits = self.certificate.threshold, self.certificate.bits
        t = words.dtype.type(((1 << bits) - T) // (choices - 1))
        other = ((words - words.dtype.type(T)) // t).astype(np.int64)  # Where the word is below T, it is not used.
        return np.where(self._has_true(words), true, other + (other >= true))


def stream_words(key: bytes, stream: int, start: int, count: int) -> np.ndarray:
    """Return words ``start`` and on, of 64 bits, of a stream of a key."""
    skip = start % 8  # A block has eight of them.
    words = np.empty(skip + count, "<u8")
    host.fill(words, key, stream, start // 8)
    return words[skip:]


class ResponseSampler(CategorySampler):
    """The sampler of randomised response on d categories: one word a report."""

    def reports(self, codes: np.ndarray, key: bytes, start: int) -> np.ndarray:
        words = stream_words(key, RESPONSE_STREAM, start, len(codes))
        return self._response(words, codes, self.mechanism.categories).astype(self.mechanism.report_dtype)


class BlockSampler(CategorySampler):
    """The sampler of block response: a word for the direction and one for the block.

    The probability of a direction is off by at most the number of directions over 2^64 of itself, whatever the value.
    """

    streams: ClassVar[tuple[int, int]] = (DIRECTION_STREAM, RESPONSE_STREAM)

    def reports(self, codes: np.ndarray, key: bytes, start: int) -> np.ndarray:
        return self.respond(codes, *(stream_words(key, stream, start, len(codes)) for stream in self.streams))

    def respond(self, codes: np.ndarray, direction_words: np.ndarray, response_words: np.ndarray) -> np.ndarray:
        """Return the reports of codes by two independent random words each."""
        mechanism, g = self.mechanism, self.mechanism.blocks
        directions = arithmetic.high_product(direction_words, mechanism.directions).view(np.int64)
        blocks = self._response(response_words, mechanism.host_blocks_of(directions, codes), g)
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

    def reports(self, codes: np.ndarray, key: bytes, start: int) -> np.ndarray:
        (width,) = self.mechanism.report_shape
        words = -(-width // 2)  # of 16 bits
        out = np.empty((len(codes), 2 * words), np.uint8)
        source, rows, end = host.Keystream(key), self.rows, start + len(codes)
        for block in range(start // rows, -(-end // rows)):
            low, high = max(start, block * rows), min(end, (block + 1) * rows)
            place, inside = slice(low - start, high - start), slice(low - block * rows, high - block * rows)
            has_true = self._has_true(stream_words(key, RESPONSE_STREAM, block * rows, rows))
            # The sets of a whole block are drawn where they are returned.
            sets = out[place] if high - low == rows else np.empty((rows, 2 * words), np.uint8)
            self._sets.draw(
                source, SET_STREAM, block, self.mechanism.size - has_true.astype(np.uint16), sets.view("<u2")
            )
            out[place] = self._placed(sets[inside], has_true[inside], codes[place])
        return out if width == 2 * words else np.ascontiguousarray(out[:, :width])

    def _placed(self, sets: np.ndarray, has_true: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Exchange the bits of the true and the last category, and set the true one's bit where it is in the set."""
        width, last = sets.shape[1], self.mechanism.categories - 1
        flat = sets.reshape(-1)
        at, bit = np.arange(len(codes)) * width + (codes >> 3), (codes & 7).astype(np.uint8)
        byte, own = flat[at], has_true.view(np.uint8)
        moved = byte >> bit & np.uint8(1)  # The bit of the last category is none of the slots', and 0.
        flat[at] = byte & ~(np.uint8(1) << bit) | own << bit
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
