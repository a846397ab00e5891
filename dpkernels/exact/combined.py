"""Certificates and exact samplers of mixtures, and of vectors by coordinate. Importing it registers every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import integer
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact import noise_vectors  # noqa: F401  # Its kinds of certificates are read, too.
from dpkernels.exact.certificate import COVERS, LIMITS, Certificate, CertificateError, line
from dpkernels.exact.rows import RowCertificate
from dpkernels.exact.sampler import CHOICE_STREAM, ExactSampler, Words
from dpkernels.exact.windows import ExactWindow, WindowCertificate
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.two_point import Mixture
from dpkernels.numerics import RealArray, namespace


@dataclass(frozen=True)
class MixtureCertificate(Certificate, kind="mixture"):
    """A certificate of a mixture: two certified tables, one of which is chosen independently of the input."""

    first: WindowCertificate
    second: WindowCertificate
    threshold: int  # The first table is used where the choice word, of 32 bits, is below it.

    facts = ("epsilon", "realised_epsilon", "threshold", "lowest", "highest", "worst_variance")
    parts: ClassVar[Mapping[str, str]] = {"first": "first", "second": "second"}

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, WindowCertificate):
                raise CertificateError(f"mixture: {type(part).__name__} is not of an unbiased window table")
        if not 0 < self.threshold < 1 << 32:
            raise CertificateError(f"threshold: {self.threshold} is not in 1..2^32 - 1")
        intervals = {part.table.ends for part in (self.first, self.second)}
        if len(intervals) > 1:
            raise CertificateError(f"mixture: its tables are on different intervals, {sorted(intervals)}")

    @property
    def weight(self) -> Fraction:
        return Fraction(self.threshold, 1 << 32)

    @property
    def epsilon(self) -> float:
        """Return the larger of the parts' budgets: the choice is independent of the input and may be revealed."""
        return max(self.first.epsilon, self.second.epsilon)

    @property
    def realised_epsilon(self) -> float:
        return max(self.first.realised_epsilon, self.second.realised_epsilon)

    @property
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance: both parts are unbiased, so their ``variance_terms`` are mixed."""
        parts = zip(self.first.table.variance_terms, self.second.table.variance_terms, strict=True)
        A, c, rho = (self.weight * first + (1 - self.weight) * second for first, second in parts)
        return self.first.table.largest((A, c, rho))

    @property
    def lowest(self) -> Fraction:
        return min(self.first.lowest, self.second.lowest)

    @property
    def highest(self) -> Fraction:
        return max(self.first.highest, self.second.highest)

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> MixtureCertificate:
        first, second = (WindowCertificate.from_dict(payload[part]) for part in ("first", "second"))
        return cls(first, second, integer("threshold", payload["threshold"]))

    def lines(self) -> list[str]:
        return [
            line("epsilon", f"{shortest(self.epsilon)}, of either table and of their mixture"),
            line("mixture", f"the first table with probability {self.threshold}/2^32, else the second"),
            line("variance", f"at most {shortest(float_at_least(self.worst_variance))} at any input"),
        ]


@dataclass(frozen=True)
class MultivariateCertificate(Certificate, kind="multivariate"):
    """A certificate for vectors: s of d coordinates, chosen independently of the data, each by a certified table."""

    coordinate: WindowCertificate | MixtureCertificate | RowCertificate  # On [-1, 1].
    dimensions: int  # d
    sampled: int  # s

    facts = ("epsilon", "realised_epsilon", "dimensions", "sampled")
    parts: ClassVar[Mapping[str, str]] = {"coordinate": "coordinate"}

    def __post_init__(self) -> None:
        if not isinstance(self.coordinate, WindowCertificate | MixtureCertificate | RowCertificate):
            raise CertificateError(f"coordinate: {type(self.coordinate).__name__} is not of pure epsilon-DP")
        if (near := getattr(self.coordinate, "sensitivity", None)) is not None:
            raise CertificateError(f"coordinate: is for inputs {shortest(near)} apart, not for any two")
        checks.whole("dimensions", self.dimensions, 1, 1 << 31)
        checks.whole("sampled", self.sampled, 1, self.dimensions)

    @property
    def epsilon(self) -> float:
        """Return the budget of s reports by basic composition."""
        return float_at_least(self.sampled * rational(self.coordinate.epsilon))

    @property
    def realised_epsilon(self) -> float:
        return float_at_least(self.sampled * rational(self.coordinate.realised_epsilon))

    @property
    def covers(self) -> str:
        return (
            "pure epsilon-DP of each vector; neighbouring: any two vectors of the intervals (local DP, replace one "
            f"vector). {LIMITS}"
        )

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> MultivariateCertificate:
        coordinate: Any = Certificate.from_dict(payload["coordinate"])
        return cls(coordinate, integer("dimensions", payload["dimensions"]), integer("sampled", payload["sampled"]))

    def lines(self) -> list[str]:
        each = f"{self.sampled} of {self.dimensions} coordinates, {shortest(self.coordinate.epsilon)} each"
        share = f"{self.dimensions}/2^64 of probability {self.sampled}/{self.dimensions}"
        return [
            line("epsilon", f"{shortest(self.epsilon)} a vector: {each}, on [-1, 1]"),
            line("coordinates", f"a cyclic run from a uniform start, each within a relative {share}"),
        ]


@dataclass(frozen=True, eq=False)
class ExactMixture(ExactSampler):
    """A sampler of a mixture. Only one part is reported, so both may read the same noise and rounding words."""

    certificate: MixtureCertificate
    first: ExactWindow
    second: ExactWindow

    def __post_init__(self) -> None:
        """Leave the kernels to the parts."""

    @cached_property
    def words(self) -> tuple[Words, ...]:
        pairs = zip(self.first.words, self.second.words, strict=True)
        return (*(Words(a.stream, max(a.bits, b.bits)) for a, b in pairs), Words(CHOICE_STREAM, 32))

    @property
    def negligible(self) -> float:
        return min(self.first.negligible, self.second.negligible)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        *shared, choice = words

        def of(sampler: ExactWindow) -> RealArray:
            return sampler.reports(
                x, *(word.astype(f"uint{need.bits}") for word, need in zip(shared, sampler.words, strict=True))
            )

        is_first = choice < np.uint32(self.certificate.threshold)
        return namespace(choice).where(is_first, of(self.first), of(self.second))


def mixture_sampler(mechanism: Mixture, first: ExactSampler, second: ExactSampler) -> ExactMixture:
    """Return the sampler of a mixture by those of its parts, which must not be mixtures themselves."""
    if not (isinstance(first, ExactWindow) and isinstance(second, ExactWindow)):
        raise TypeError("mechanism: a mixture of mixtures has no exact sampler")
    threshold = round(mechanism.weight * (1 << 32))
    # The certificate refuses parts that are not unbiased.
    certificate = MixtureCertificate(first.certificate, second.certificate, threshold)  # type: ignore[arg-type]
    return ExactMixture(mechanism, certificate, first, second)


@dataclass(frozen=True, eq=False)
class ExactMultivariate:
    """An exact sampler for vectors: s of d coordinates, each released by the coordinate mechanism's sampler."""

    mechanism: Multivariate
    coordinate: ExactSampler
    certificate: MultivariateCertificate
