"""The exact sampler of reports of prefixes, where each person reports at one level, and its certificate.

The level of a person is drawn independently of the value, and the report of every level has the certificate of its
block response. So the ratio of the probabilities of a report given two values is at most the largest ratio of the
levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dpkernels.bounded_json import JsonObject, real
from dpkernels.decimals import shortest
from dpkernels.exact import arithmetic
from dpkernels.exact.categorical.certificate import BlockCertificate
from dpkernels.exact.categorical.sampler import BlockSampler, CategorySampler, stream_words
from dpkernels.exact.certificate import LIMITS, Certificate, CertificateError, Component
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.proven import proven
from dpkernels.shapes import Int, Num

LEVEL_STREAM = 31  # of a release's key; 21, 22 and 30 are those of ``sampler``
_MAX_LEVELS = 40  # a value has at most as many characters


@proven("categories#proof")
@dataclass(frozen=True)
class PrefixCertificate(Certificate, kind="prefixes"):
    """Verified facts about the integers of all levels."""

    epsilon: float
    levels: tuple[BlockCertificate, ...]

    components: ClassVar[dict[str, str]] = {}  # The levels have names of their own.
    facts: ClassVar[tuple[str, ...]] = ("epsilon", "categories", "realised_epsilon")
    inputs: ClassVar[str] = "values"

    def __post_init__(self) -> None:
        if not 1 <= len(self.levels) <= _MAX_LEVELS:
            raise CertificateError(f"levels: {len(self.levels)} of them; 1 to {_MAX_LEVELS} are allowed")
        for number, level in enumerate(self.levels):
            if not isinstance(level, BlockCertificate):
                raise CertificateError(f"level_{number}: {type(level).__name__} is not of block response")
            if level.epsilon != self.epsilon:
                raise CertificateError(
                    f"level_{number}: has epsilon {shortest(level.epsilon)}, not {shortest(self.epsilon)}"
                )
        sizes = [level.categories for level in self.levels]
        if sizes != sorted(set(sizes)):
            raise CertificateError(f"levels: have {sizes} prefixes; each needs more than the one before")

    @classmethod
    def of(cls, plan: PrefixPlan) -> Self:
        """Return the certificate of the largest thresholds that meet the budget."""
        return cls(float(plan.epsilon), tuple(map(BlockCertificate.of, plan.levels)))

    @classmethod
    def certified(cls, payload: JsonObject) -> Self:
        names = [name for name in (f"level_{number}" for number in range(_MAX_LEVELS)) if name in payload]
        levels: tuple[Any, ...] = tuple(Certificate.from_dict(payload[name]) for name in names)
        return cls(real("epsilon", payload["epsilon"]), levels)

    def _components(self) -> dict[str, Component]:
        return {f"level_{number}": level for number, level in enumerate(self.levels)}

    @property
    def categories(self) -> int:
        """Return the number of values: of prefixes at the last level."""
        return self.levels[-1].categories

    @property
    def realised_epsilon(self) -> float:
        return max(level.realised_epsilon for level in self.levels)

    @property
    def covers(self) -> str:
        return f"pure epsilon-DP of each report; neighbouring: any two values (local DP, replace one). {LIMITS}"

    def lines(self) -> list[tuple[str, str]]:
        return [
            ("epsilon", f"{shortest(self.epsilon)}, attained {shortest(self.realised_epsilon)}, at every level"),
            ("reports", f"at one of {len(self.levels)} levels, which is drawn independently of the value"),
            ("inputs", f"{self.categories} {self.inputs}"),
        ]


class PrefixSampler(CategorySampler):
    """The sampler of reports of prefixes: a word for the level, one for the direction and one for the block."""

    def reports(self, codes: Int[np.ndarray, " reports"], key: bytes, start: int) -> Num[np.ndarray, " reports"]:
        plan, count = self.mechanism, len(codes)
        level = arithmetic.high_product(stream_words(key, LEVEL_STREAM, start, count), len(plan.levels))
        words = [stream_words(key, stream, start, count) for stream in BlockSampler.streams]
        out = np.empty(count, plan.report_dtype)
        for number, sampler in enumerate(self.levels):
            rows = np.flatnonzero(level == np.uint64(number))
            level_reports = sampler.respond(plan.prefixes(codes[rows], number), *(word[rows] for word in words))
            out[rows] = level_reports.astype(np.int64) + plan.offsets[number]
        return out

    @property
    def levels(self) -> list[BlockSampler]:
        """Return the sampler of each level."""
        pairs = zip(self.mechanism.levels, self.certificate.levels, strict=True)
        return [BlockSampler(level, certificate) for level, certificate in pairs]


def prefix_sampler(plan: PrefixPlan) -> PrefixSampler:
    """Return the exact sampler of a plan whose people are split; a CertificateError says that its integers fail."""
    if plan.split != "people":
        raise ValueError(f"mechanism: split {plan.split!r} has several reports a person; plan.perturb makes them")
    return PrefixSampler(plan, PrefixCertificate.of(plan))
