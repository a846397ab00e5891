"""Failures of a release that say nothing about its reports, so that the charge for it may be voided.

Whether a run fails is seen by whoever started it. If that depends on the reports, each failed run reveals something
about them: whether a compressed output fits on the disk, for example. Such a run is paid for. A failure is independent
of the reports only where the code says so; every other one counts as dependent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpkernels.cli.interrupts import was_asked


@contextmanager
def independent_of_reports() -> Iterator[None]:
    """Mark errors of steps that would fail in the same way whatever the reports are: reading and checking the input."""
    try:
        yield
    except Exception as error:
        mark_independent(error)
        raise


def mark_independent(error: BaseException) -> None:
    """Note that an error does not depend on the reports."""
    error.is_independent_of_reports = True  # type: ignore[attr-defined]


def is_independent(error: BaseException) -> bool:
    """Return whether a run ended for a reason that does not depend on its reports.

    Once there is a request to stop, the run ends as interrupted whatever the reports are, and whatever else fails.
    """
    if was_asked() or isinstance(error, KeyboardInterrupt):
        return True
    causes: BaseException | None = error
    while causes is not None:
        if getattr(causes, "is_independent_of_reports", False):
            return True
        causes = causes.__cause__
    return False
