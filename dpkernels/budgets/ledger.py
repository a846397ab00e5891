"""A filter in a file: one budget for many runs, processes and users of one machine.

Guaranteed, whatever dies and whenever (kill -9; power, if the disk keeps what it was told to keep), and however many
processes charge at once: the charges never exceed the budget, and a charge that returned is never lost. A query runs
only after its charge returned, so what has been seen is always paid for; a crash in between leaves a charge for
nothing, which is the safe side. The guarantee of a budget is that of ``filters.Filter``.

Every row carries a hash of all before it and the budget row the last hash, so damage, edits, and deletions are
noticed. Not protected against: somebody who recomputes the hashes, an older copy put back, or a deleted file made
anew. To notice an older copy, keep the number and hash of charges elsewhere: releases of the command do.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpkernels.budgets.amounts import asked, budgeted
from dpkernels.budgets.filters import check
from dpkernels.budgets.ledger_file import LedgerError, make, now, read, transaction, write
from dpkernels.budgets.statements import Entry, Statement, UnsoundError, text

__all__ = ["Entry", "Ledger", "LedgerError", "Statement"]


class Ledger:
    """An existing ledger. Its budget stays as it was created; threads and processes may share the file.

    A charge reads and verifies all charges before it, about 40 microseconds each.

    Args:
        path: the file.
        timeout: how many seconds to wait for other processes.

    Raises:
        FileNotFoundError: there is none.
        LedgerError: not a sound ledger.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        self.path = Path(path)
        self._timeout = timeout
        self._seen: Statement | None = None
        self.statement()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        epsilon: Any,
        delta: Any = 0,
        *,
        timeout: float = 10.0,
        like: Path | None = None,
    ) -> Ledger:
        """Make a ledger, or open the one that is there if its budget is the same; of several makers one makes it.

        Args:
            path: the file.
            epsilon: the budget, positive.
            delta: in [0, 1).
            timeout: as for ``Ledger``.
            like: a file whose permissions a ledger that is made gets at most; by default the process's usual ones.

        Raises:
            TypeError: a budget that is not of numbers.
            ValueError: epsilon not positive and finite; delta not in [0, 1).
            LedgerError: the file is there with another budget, or is not a sound ledger; or it cannot be made.
        """
        path, budget = Path(path), budgeted(epsilon, delta)
        for part in budget:
            text(part)
        if not os.path.lexists(path):
            make(path, budget, timeout, like)
        ledger = cls(path, timeout=timeout)
        if (found := ledger.statement().budget) != budget:
            raise LedgerError(f"{path}: has a budget of {found}, not of {budget}; a budget cannot be changed")
        return ledger

    def statement(self) -> Statement:
        """All that it holds, verified.

        Raises:
            FileNotFoundError: it is gone.
            LedgerError: it is not sound, or another process holds it too long.
        """
        seen = self._seen  # before reading: another thread may see more meanwhile
        with transaction(self.path, "DEFERRED", self._timeout) as connection:
            self._seen = _later(seen, read(connection))
            return self._seen

    def charge(self, epsilon: Any, delta: Any = 0, label: str = "") -> Statement:
        """Charge a query; run it only after this returns. Then the charge is on the disk, and nothing takes it back.

        Args:
            epsilon: a number, or a certificate or mechanism that has both; see ``filters.asked``.
            delta: a number.
            label: what it is for; whoever reads the file sees it.

        Returns:
            The ledger just after; its last entry is the charge.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged.
            TypeError: not numbers.
            ValueError: an amount that is negative, infinite, NaN or without a short decimal; a label that is no text.
            FileNotFoundError: the ledger is gone.
            LedgerError: it is not sound, cannot be written, or another process holds it too long. Nothing was charged;
                if the disk itself failed, the charge may stand.
        """
        amounts = asked(epsilon, delta)
        for part in amounts:
            text(part)
        label.encode()  # a lone surrogate is no text
        seen = self._seen
        with transaction(self.path, "IMMEDIATE", self._timeout) as connection:
            statement = _later(seen, read(connection))
            check(statement.budget, statement.spent, amounts, f"{self.path}: ")
            entry = statement.next(now(), label, amounts)
            write(connection, entry)
        self._seen = after = replace(statement, entries=(*statement.entries, entry))
        return after


def _later(seen: Statement | None, found: Statement) -> Statement:
    """The statement found, refused if it lacks anything that was seen before."""
    if seen is not None and found.ledger != seen.ledger:
        raise UnsoundError("is now another ledger than the one that was opened")
    if seen is not None and found.entries[: len(seen.entries)] != seen.entries:
        raise UnsoundError(f"has lost charges: there were {len(seen.entries)}; has an older copy been put back?")
    return found
