"""Certificates of window tables: pure DP for any two inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.bounded_json import real
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import (
    LIMITS,
    BoundedCertificate,
    UnbiasedCertificate,
    certified_ratio,
    check_means,
    check_rows,
)
from dpkernels.exact.windows.table import WindowTable

COVERS = (
    "pure epsilon-DP of each report; neighbouring: any two inputs of the interval (local DP, replace one value). "
    f"{LIMITS}"
)


@dataclass(frozen=True)
class WindowCertificate(UnbiasedCertificate, kind="window"):
    """Verified facts about one window table; see ``BoundedCertificate``."""

    epsilon: float
    ratio: Fraction
    table: WindowTable

    facts = (
        "epsilon",
        "total",
        "codes",
        "rows",
        "realised_epsilon",
        "ratio",
        "lowest",
        "highest",
        "mean_error",
        "worst_variance",
    )
    parts: ClassVar[Mapping[str, str]] = {"table": "table"}

    @property
    def cells(self) -> int:  # type: ignore[override]
        """Return all rows: any two inputs are neighbours."""
        return self.table.shifts

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> WindowCertificate:
        return certify_table(WindowTable.from_dict(payload["table"]), real("epsilon", payload["epsilon"]))


@dataclass(frozen=True)
class PlacedCertificate(BoundedCertificate, kind="placed window"):
    """Verified facts about a window table whose means are not the inputs; see ``BoundedCertificate``.

    Attributes:
        epsilon: the budget, as printed.
        ratio: the largest ratio of any report's probability between two inputs.
        table: the integers.
    """

    epsilon: float
    ratio: Fraction
    table: WindowTable

    facts = tuple("slope" if name == "mean_error" else name for name in WindowCertificate.facts)
    parts: ClassVar[Mapping[str, str]] = {"table": "table"}

    @property
    def cells(self) -> int:  # type: ignore[override]
        """Return all rows: any two inputs are neighbours."""
        return self.table.shifts

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean of a report by the input, below 1."""
        return self.table.slope

    @property
    def means(self) -> str:
        middle, slope = shortest(float(self.table.middle)), shortest(float(self.slope))
        return f"not the input: {middle} + {slope} (input - {middle}), biased towards the middle"

    @property
    def covers(self) -> str:
        return f"{COVERS} No mean is claimed: reports are biased."

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> PlacedCertificate:
        return certify_placed(WindowTable.from_dict(payload["table"]), real("epsilon", payload["epsilon"]))


def certify_table(table: WindowTable, epsilon: float) -> WindowCertificate:
    """Verify all properties that a release relies on, and return the certificate.

    Raises:
        CertificateError: the total is not 2^bits, a report is impossible for some input, a ratio exceeds e^epsilon,
            or a row's mean is not the input; says by how much.
        ValueError: the budget is out of range, or the interval is none.
    """
    return WindowCertificate(float(epsilon), _verified_ratio(table, epsilon, table.row_input), table)


def certify_placed(table: WindowTable, epsilon: float) -> PlacedCertificate:
    """Certify weights with the window placed at the input; means lie between the inputs and the middle.

    Raises:
        CertificateError: as ``certify_table``; a row's mean is not where the slope says.
        ValueError: the budget is out of range, or the interval is none.
    """
    table = table.placed

    def nominal(s: int) -> Fraction:
        return table.middle + table.slope * (table.row_input(s) - table.middle)

    return PlacedCertificate(float(epsilon), _verified_ratio(table, epsilon, nominal), table)


def _verified_ratio(table: WindowTable, epsilon: float, nominal: Callable[[int], Fraction]) -> Fraction:
    checks.epsilon(epsilon)
    check_rows(table)
    ratio = certified_ratio(*table.extremes(), epsilon)
    check_means(table, (0, table.shifts), nominal)  # Means and inputs are both affine in the row: the ends decide.
    return ratio
