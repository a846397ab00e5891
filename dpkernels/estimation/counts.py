"""Counts of reports by code: a sufficient statistic for all estimates, in constant memory, that can be merged."""

from __future__ import annotations

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.estimation.channel import Channel, as_channel
from dpkernels.release import containers

# Reports are computed in float64 by a few roundings, each of half a unit in the last place.
_ROUNDINGS = 4


class ReportError(ValueError):
    """A number that the mechanism cannot have reported: its row, and a reason with the nearest possible reports."""

    def __init__(self, row: int, reason: str) -> None:
        self.row, self.reason = row, reason
        super().__init__(f"reports: row {row} {reason}")


class Counts:
    """The number of reports of every code, to which the parts of a release can be added one after another.

    ``Counts(mechanism).add(first).add(second)`` counts both parts. ``+`` adds counts of the same mechanism.
    ``dpk.estimate`` accepts counts in the place of reports.

    Arguments and errors are those of ``estimate``; the ``mechanism`` may also be the ``channel`` of other counts, which
    is the probabilities of reports given inputs. ``numbers`` (m,) are the count of every report in ``channel.reports``.
    """

    def __init__(
        self,
        mechanism: object,
        *,
        column: str | None = None,
        bounds: tuple[float, float] | None = None,
        decimals: int | None = None,
    ) -> None:
        self.channel: Channel = as_channel(mechanism, column=column, bounds=bounds, decimals=decimals)
        self.numbers = np.zeros(len(self.channel.reports), np.int64)

    @property
    def total(self) -> int:
        """Return the number of reports."""
        return int(self.numbers.sum())

    def __repr__(self) -> str:
        return f"Counts({self.total:,} reports, {len(self.numbers):,} different ones are possible)"

    def add(self, reports: object) -> Counts:
        """Count more reports, of any shape and of any kind that ``perturb`` returns; return the same counts.

        Numbers may be float64 or float32, and may have been written as text. Missing ones are ignored. If a number is
        not a possible report, a ValueError names the first one, and no report is counted.
        """
        present, rows = containers.present_rows(reports)
        try:
            indices = report_indices(self.channel, as_numbers("reports", present).reshape(-1))
        except ReportError as error:
            raise ReportError(error.row if rows is None else int(rows[error.row]), error.reason) from None
        self.numbers += np.bincount(indices, minlength=len(self.numbers))
        return self

    def __add__(self, other: Counts) -> Counts:
        if not isinstance(other, Counts):
            return NotImplemented
        if not self.channel.is_equivalent(other.channel):
            raise ValueError("counts: are of different mechanisms; their reports do not mean the same")
        combined = Counts(self.channel)
        combined.numbers = self.numbers + other.numbers
        return combined


def as_numbers(name: str, column: object) -> np.ndarray:
    """Return the numbers of an array or a column of any kind and shape."""
    try:
        return np.asarray(containers.unwrap(column)[0])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {str(error).removeprefix('x: ')}") from error


def report_indices(channel: Channel, reports: np.ndarray) -> np.ndarray:
    """Return (n,) the index of every report in ``channel.reports``; a ``ReportError`` names the first impossible one.

    Another ValueError says that the float type is too coarse for the mechanism.
    """
    if reports.dtype != np.float32:
        indices, is_possible = _nearest(channel.reports, reports.astype(np.float64, copy=False))
        if is_possible.all():
            return indices
    single = channel.reports.astype(np.float32).astype(np.float64)
    if (np.diff(single) > 0).all():
        # Or they are float32, and perhaps were written as text and read again.
        with np.errstate(over="ignore"):
            indices, is_possible = _nearest(single, reports.astype(np.float32).astype(np.float64))
        unit = np.spacing(np.abs(single[indices]).astype(np.float32))
        is_possible &= np.abs(reports.astype(np.float64) - single[indices]) <= unit
        if is_possible.all():
            return indices
    elif reports.dtype == np.float32:
        raise ValueError(
            "reports: are float32, in which different reports of this mechanism are the same number; perturb float64"
        )
    row = int(is_possible.argmin())
    value, possible = float(reports[row]), channel.reports
    if not possible[0] <= value <= possible[-1]:
        reason = (
            f"is not in [{shortest(float(possible[0]))}, {shortest(float(possible[-1]))}], where all its reports are"
        )
    else:
        index = int(np.clip(np.searchsorted(possible, value), 1, len(possible) - 1))
        nearest = " and ".join(shortest(float(report)) for report in possible[index - 1 : index + 1])
        reason = f"is not one of its reports; the next are {nearest} (decimals=K if reports were rounded)"
    raise ReportError(row, f"is {shortest(value)}, which {reason}; the mechanism cannot have made it")


def _nearest(possible: np.ndarray, reports: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest of increasing numbers to each report, and whether they agree up to rounding."""
    indices = np.searchsorted((possible[1:] + possible[:-1]) / 2, reports)
    slack = _ROUNDINGS * np.finfo(np.float64).eps * max(abs(possible[0]), abs(possible[-1]))
    with np.errstate(invalid="ignore"):
        return indices, np.abs(reports - possible[indices]) <= slack
