"""Certificates of mechanisms for categories: the integers of ``sampler.py``, and the largest probability ratio.

A report supports the true category if a word of 64 bits is below T. The ratio of the probabilities of a report given
two categories is at most (T/(2^64 - T)) (d - k)/k. Here d is the number of categories or blocks, of which a report
names k (k = 1 for blocks). Certificates compare this fraction with e^epsilon.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, integer, real
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import LIMITS, WORDS, Certificate, CertificateError, exp_lower_bound, log_upper_bound
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.mechanisms.categorical.galois import is_field
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection
from dpkernels.proven import proven

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

    components: ClassVar[Mapping[str, str]] = {}
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
        spare = (1 << self.bits) - self.threshold
        if size == 1 and spare % (choices - 1):
            raise CertificateError(
                f"threshold: leaves {spare} words, which are no {choices - 1} runs of one length for the other choices"
            )
        if self.ratio <= 1:
            raise CertificateError(f"threshold: {self.threshold} carries no signal; a ratio is {float(self.ratio):.6g}")
        if self.ratio > exp_lower_bound(float(self.epsilon)):
            raise CertificateError(
                f"epsilon: a ratio is {shortest(float(self.ratio))}, {log_upper_bound(self.ratio) - self.epsilon:.3g} "
                f"above epsilon {shortest(self.epsilon)}"
            )

    @classmethod
    def certified(cls, payload: JsonObject) -> Self:
        _, *names = (field.name for field in fields(cls))
        return cls(real("epsilon", payload["epsilon"]), *(integer(name, payload[name]) for name in names))

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

    def _check_enumerable(self, reports: int) -> None:
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
        self._check_enumerable(math.comb(d, k))
        supporting, opposing = p / math.comb(d - 1, k - 1), (1 - p) / math.comb(d - 1, k)
        return [[supporting if x in members else opposing for members in combinations(range(d), k)] for x in range(d)]


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
        self._check_enumerable(mechanism.outcomes)
        supports = mechanism.supports(mechanism.all_reports()).T
        supporting, opposing = p / mechanism.directions, (1 - p) / (self.blocks - 1) / mechanism.directions
        return [[supporting if is_supported else opposing for is_supported in row] for row in supports.tolist()]


def _number(mechanism: Categorical) -> float:
    checks.not_traced("mechanism", "Its integers need the value of epsilon; give one outside jit.", mechanism.epsilon)
    if shape := np.shape(mechanism.epsilon):
        raise ValueError(
            f"epsilon: has shape {shape}; a release of categories has one budget, and batches are simulated"
        )
    return float(checks.number("epsilon", mechanism.epsilon))
