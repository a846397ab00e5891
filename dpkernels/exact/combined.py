"""Certificates of what is made of several tables: mixtures, and vectors of coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.certificate import LIMITS, Certificate, CertificateError, line
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.vectors import VectorNoiseCertificate
from dpkernels.exact.rows.certificate import RowCertificate
from dpkernels.exact.windows.certificate import COVERS, PlacedCertificate, WindowCertificate
from dpkernels.untrusted import integer

VECTOR_COVERS = (
    "pure epsilon-DP of each vector; neighbouring: any two vectors of the intervals (local DP, replace one vector). "
    f"{LIMITS}"
)


@dataclass(frozen=True)
class MixtureCertificate(Certificate, kind="mixture"):
    """Two certified tables, one of which reports, chosen independently of the input.

    Attributes:
        first: certificate of the table used where the choice word is below the threshold.
        second: certificate of the other.
        threshold: out of 2^32.
    """

    first: WindowCertificate
    second: WindowCertificate
    threshold: int

    facts = ("epsilon", "realised_epsilon", "threshold", "lowest", "highest", "worst_variance")
    parts: ClassVar[Mapping[str, str]] = {"first": "first", "second": "second"}

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, WindowCertificate):
                raise CertificateError(f"mixture: {type(part).__name__} is not of an unbiased window table")
        if not 0 < self.threshold < 1 << 32:
            raise CertificateError(f"threshold: {self.threshold} is not in 1..2^32 - 1")
        intervals = {(part.table.lower, part.table.upper) for part in (self.first, self.second)}
        if len(intervals) > 1:
            raise CertificateError(f"mixture: its tables are on different intervals, {sorted(intervals)}")

    @property
    def weight(self) -> Fraction:
        """The probability of the first table."""
        return Fraction(self.threshold, 1 << 32)

    @property
    def epsilon(self) -> float:
        """The larger of the parts' budgets: the choice is independent of the input and may be revealed."""
        return max(self.first.epsilon, self.second.epsilon)

    @property
    def realised_epsilon(self) -> float:
        """The larger of the parts' realised budgets."""
        return max(self.first.realised_epsilon, self.second.realised_epsilon)

    @property
    def variance_terms(self) -> tuple[Fraction, Fraction, Fraction]:
        """The parts' (A, c, rho) of ``WindowTable.variance_terms``, mixed: both parts are unbiased."""
        parts = zip(self.first.table.variance_terms, self.second.table.variance_terms, strict=True)
        A, c, rho = (self.weight * first + (1 - self.weight) * second for first, second in parts)
        return A, c, rho

    @property
    def worst_variance(self) -> Fraction:
        """Bound on the variance at any input."""
        return self.first.table.largest(self.variance_terms)

    @property
    def lowest(self) -> Fraction:
        """Smallest possible report."""
        return min(self.first.lowest, self.second.lowest)

    @property
    def highest(self) -> Fraction:
        """Largest possible report."""
        return max(self.first.highest, self.second.highest)

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, form: dict[str, Any]) -> MixtureCertificate:
        first, second = (WindowCertificate.from_dict(form[part]) for part in ("first", "second"))
        return cls(first, second, integer("threshold", form["threshold"]))

    def lines(self) -> list[str]:
        return [
            line("epsilon", f"{shortest(self.epsilon)}, of either table and of their mixture"),
            line("mixture", f"the first table with probability {self.threshold}/2^32, else the second"),
            line("variance", f"at most {shortest(float_at_least(self.worst_variance))} at any input"),
        ]


@dataclass(frozen=True)
class MultivariateCertificate(Certificate, kind="multivariate"):
    """s of d coordinates, each by a certified table; which ones is independent of the data.

    Attributes:
        coordinate: certificate of a coordinate's report, on [-1, 1].
        dimensions: d.
        sampled: s.
    """

    coordinate: WindowCertificate | MixtureCertificate | RowCertificate
    dimensions: int
    sampled: int

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
        """Basic composition of s reports."""
        return float_at_least(self.sampled * rational(self.coordinate.epsilon))

    @property
    def realised_epsilon(self) -> float:
        """s times the coordinate's."""
        return float_at_least(self.sampled * rational(self.coordinate.realised_epsilon))

    @property
    def covers(self) -> str:
        return VECTOR_COVERS

    @classmethod
    def certified(cls, form: dict[str, Any]) -> MultivariateCertificate:
        coordinate: Any = Certificate.from_dict(form["coordinate"])
        return cls(coordinate, integer("dimensions", form["dimensions"]), integer("sampled", form["sampled"]))

    def lines(self) -> list[str]:
        each = f"{self.sampled} of {self.dimensions} coordinates, {shortest(self.coordinate.epsilon)} each"
        share = f"{self.dimensions}/2^64 of probability {self.sampled}/{self.dimensions}"
        return [
            line("epsilon", f"{shortest(self.epsilon)} a vector: {each}, on [-1, 1]"),
            line("coordinates", f"a cyclic run from a uniform start, each within a relative {share}"),
        ]


def read_certificate(form: dict[str, Any]) -> Certificate:
    """The certificate in a JSON form, of whichever kind, verified again from its integers.

    Raises:
        CertificateError: it fails, or is none.
    """
    return Certificate.from_dict(form)


# What ``Certificate.from_dict`` reads; all kinds are known once this module is.
CERTIFICATES = (
    WindowCertificate,
    PlacedCertificate,
    RowCertificate,
    NoiseCertificate,
    VectorNoiseCertificate,
    MixtureCertificate,
    MultivariateCertificate,
)
