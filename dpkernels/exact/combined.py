"""Certificates of what is made of several tables: mixtures, and vectors of coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpkernels.exact.certificate import COVERS, Certificate, CertificateError, check_claims, reading, worst_of
from dpkernels.exact.noise_certificate import NoiseCertificate
from dpkernels.exact.noise_vectors import VectorNoiseCertificate
from dpkernels.exact.row_certificate import RowCertificate
from dpkernels.exact.tables import rational

VECTOR_COVERS = COVERS.replace("each report", "each vector").replace(
    "any two inputs of the interval (local DP, replace one value)",
    "any two vectors of the intervals (local DP, replace one vector)",
)


@dataclass(frozen=True)
class MixtureCertificate:
    """Two certified tables, one of which reports, chosen independently of the input.

    Attributes:
        first: certificate of the table used where the choice word is below the threshold.
        second: certificate of the other.
        threshold: out of 2^32.
    """

    first: Certificate
    second: Certificate
    threshold: int

    def __post_init__(self) -> None:
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
        return worst_of(self.variance_terms, self.first.table)

    @property
    def lowest(self) -> Fraction:
        """Smallest possible report."""
        return min(self.first.lowest, self.second.lowest)

    @property
    def highest(self) -> Fraction:
        """Largest possible report."""
        return max(self.first.highest, self.second.highest)

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        own = {
            "epsilon": self.epsilon,
            "realised_epsilon": self.realised_epsilon,
            "threshold": self.threshold,
            "lowest": str(self.lowest),
            "highest": str(self.highest),
            "worst_variance": str(self.worst_variance),
        }
        return {**own, "covers": COVERS, "first": self.first.to_dict(), "second": self.second.to_dict()}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> MixtureCertificate:
        """Verify both tables of a JSON form again, and what it says beside them.

        Raises:
            CertificateError: a table fails, or the form claims something else.
        """
        with reading():
            first, second = (Certificate.from_dict(form[part]) for part in ("first", "second"))
            certificate = cls(first, second, form["threshold"])
            check_claims(form, certificate.to_dict())
        return certificate

    def __str__(self) -> str:
        return "\n".join(
            [
                f"epsilon             {self.epsilon:g}, of either table and of their mixture",
                f"mixture             the first table with probability {self.threshold}/2^32, else the second",
                f"variance            at most {float(self.worst_variance):.9g} at any input",
                *(f"-- table {n}\n{part}" for n, part in ((1, self.first), (2, self.second))),
            ]
        )


@dataclass(frozen=True)
class MultivariateCertificate:
    """s of d coordinates, each by a certified table; which ones is independent of the data.

    Attributes:
        coordinate: certificate of a coordinate's report, on [-1, 1].
        dimensions: d.
        sampled: s.
    """

    coordinate: Certificate | MixtureCertificate | RowCertificate
    dimensions: int
    sampled: int

    def __post_init__(self) -> None:
        if not isinstance(self.coordinate, Certificate | MixtureCertificate | RowCertificate):
            raise CertificateError(f"coordinate: {type(self.coordinate).__name__} is not of pure epsilon-DP")
        if (near := getattr(self.coordinate, "sensitivity", None)) is not None:
            raise CertificateError(f"coordinate: is for inputs {near:g} apart, not for any two")
        if not (isinstance(self.sampled, int) and 1 <= self.sampled <= self.dimensions):
            raise CertificateError(f"sampled: {self.sampled} is not in 1..{self.dimensions}")

    @property
    def epsilon(self) -> float:
        """Basic composition of s reports."""
        return float(self.sampled * rational(self.coordinate.epsilon))

    @property
    def realised_epsilon(self) -> float:
        """s times the coordinate's."""
        return self.sampled * self.coordinate.realised_epsilon

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        own = {
            "epsilon": self.epsilon,
            "realised_epsilon": self.realised_epsilon,
            "dimensions": self.dimensions,
            "sampled": self.sampled,
        }
        return {**own, "covers": VECTOR_COVERS, "coordinate": self.coordinate.to_dict()}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> MultivariateCertificate:
        """Verify the coordinate's tables in a JSON form again, and what it says beside them.

        Raises:
            CertificateError: a table fails, or the form claims something else.
        """
        with reading():
            certificate = cls(read_certificate(form["coordinate"]), form["dimensions"], form["sampled"])
            check_claims(form, certificate.to_dict())
        return certificate

    def __str__(self) -> str:
        return "\n".join(
            [
                f"epsilon             {self.epsilon:g} a vector: {self.sampled} of {self.dimensions} coordinates, "
                f"{self.coordinate.epsilon:g} each",
                "coordinates         a cyclic run from a uniform start, each within a relative "
                f"{self.dimensions}/2^64 of probability {self.sampled}/{self.dimensions}",
                f"covers              {VECTOR_COVERS}",
                f"-- each coordinate, on [-1, 1]\n{self.coordinate}",
            ]
        )


def read_certificate(form: dict[str, Any]) -> Any:
    """The certificate in a JSON form, of whichever kind, verified again from its integers.

    Raises:
        CertificateError: it fails, or is none.
    """
    with reading():
        kinds: dict[str, Any] = {
            "table": Certificate,
            "row_table": RowCertificate,
            "norm": VectorNoiseCertificate,
            "noise": NoiseCertificate,
            "first": MixtureCertificate,
            "coordinate": MultivariateCertificate,
        }
        kind = next((kind for name, kind in kinds.items() if name in form), None)
        if kind is None:
            raise CertificateError("form: is not a certificate; it has no table")
        return kind.from_dict(form)
