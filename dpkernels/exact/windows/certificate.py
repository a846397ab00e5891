"""Certificates of window tables: pure DP for any two inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.exact.bounded_certificate import BoundedCertificate, certified_ratio, check_means, check_rows
from dpkernels.exact.certificate import LIMITS
from dpkernels.exact.windows.table import WindowTable
from dpkernels.untrusted import real

COVERS = (
    "pure epsilon-DP of each report; neighbouring: any two inputs of the interval (local DP, replace one value). "
    f"{LIMITS}"
)


@dataclass(frozen=True)
class WindowCertificate(BoundedCertificate, kind="window"):
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
        """All rows: any two inputs are neighbours."""
        return self.table.shifts

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, form: dict[str, Any]) -> WindowCertificate:
        return certify_table(WindowTable.from_dict(form["table"]), real("epsilon", form["epsilon"]))


def certify_table(table: WindowTable, epsilon: float) -> WindowCertificate:
    """Verify everything a release relies on.

    Raises:
        CertificateError: the total is not 2^bits, a report is impossible for some input, a ratio exceeds e^epsilon,
            or a row's mean is not the input; says by how much.
        ValueError: the budget is out of range, or the interval is none.
    """
    checks.epsilon(epsilon)
    check_rows(table)
    ratio = certified_ratio(*table.extremes(), epsilon)
    check_means(table, (0, table.shifts))  # Means and inputs are both affine in the row, so the ends decide.
    return WindowCertificate(float(epsilon), ratio, table)
