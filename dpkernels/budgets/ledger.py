"""A privacy filter in a file: one budget for many runs, processes and users of one machine.

Guarantee, for any number of concurrent processes: the charges never exceed the budget, and no crash loses a charge that
returned. This includes ``kill -9``, and power failures if the disk honours fsync. A query runs only after its charge
returned, so every output has been charged. A crash in between leaves a charge without an output, which is conservative.
The budget has the guarantee of ``filters.Filter``.

A charge may be voided if no part of its query's output has been seen. Only the object that made the charge can void it,
so a crash keeps the charge. Both entries stay in the ledger, and the voided charge no longer counts.

Every row contains a hash of all earlier rows, and the budget row contains the last hash, so damage, edits and deletions
are detected. The ledger does not protect against an attacker who recomputes the hashes, restores an older copy, or
creates a deleted file again. To detect an older copy, keep the number and hash of charges elsewhere, as releases of the
command do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpkernels.budgets.amounts import EpsilonDelta, asked, budgeted
from dpkernels.budgets.filters import check
from dpkernels.budgets.ledger_file import LedgerError, make, now, read, transaction, write
from dpkernels.budgets.statements import Entry, Statement, UnsoundError, text

__all__ = ["Entry", "Ledger", "LedgerError", "Statement"]


class Ledger:
    """An existing ledger. Its budget stays as it was created; threads and processes may share the file.

    A charge reads and verifies all entries before it, about 40 microseconds each.

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
        self._made = set[int]()  # the charges that may still be voided
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
        """Make a ledger, or open an existing one with the same budget. If several processes try, one makes it.

        Args:
            path: the file.
            epsilon: the budget, positive.
            delta: in [0, 1).
            timeout: as for ``Ledger``.
            like: a file whose permissions a ledger that is made gets at most; by default the process's usual ones.

        Raises:
            TypeError: a budget that is not of numbers.
            ValueError: epsilon is not positive and finite, or delta is not in [0, 1).
            LedgerError: the file exists with another budget, is not a sound ledger, or cannot be made.
        """
        path, budget = Path(path), _exact(budgeted(epsilon, delta))
        if not os.path.lexists(path):
            make(path, budget, timeout, like)
        ledger = cls(path, timeout=timeout)
        if (found := ledger.statement().budget) != budget:
            raise LedgerError(f"{path}: has a budget of {found}, not of {budget}; a budget cannot be changed")
        return ledger

    def statement(self) -> Statement:
        """Return all that it holds, verified.

        Raises:
            FileNotFoundError: it is gone.
            LedgerError: it is not sound, or another process holds it too long.
        """
        seen = self._seen  # before reading: another thread may see more meanwhile
        with transaction(self.path, "DEFERRED", self._timeout) as connection:
            self._seen = _later(seen, read(connection))
            return self._seen

    def charge(self, epsilon: Any, delta: Any = 0, label: str = "") -> Statement:
        """Charge a query. Run the query only after this returns: then the charge is on the disk and survives a crash.

        Args:
            epsilon: a number, or a certificate or mechanism that has both (``amounts.asked``).
            delta: a number.
            label: a description of the query, visible to every reader of the file.

        Returns:
            The ledger just after; its last entry is the charge.

        Raises:
            BudgetExceeded: the charge exceeds the rest of the budget and was not made.
            TypeError: not numbers.
            ValueError: an amount is negative, infinite, NaN or without a short decimal, or the label is no text.
            FileNotFoundError: the ledger is gone.
            LedgerError: it is not sound, cannot be written, or another process holds it too long. There is no charge,
                unless the disk itself failed: then the charge may stand.
        """
        amounts = _exact(asked(epsilon, delta))
        label.encode()  # a lone surrogate is no text
        after = self._append(lambda statement: self._next(statement, label, amounts), "nothing was charged")
        self._made.add(after.entries[-1].id)
        return after

    def rehearse(self, epsilon: Any, delta: Any = 0) -> Statement:
        """Check that a charge would succeed: make it, and roll it back before it is written to disk.

        Returns:
            The ledger, unchanged.

        Raises:
            BudgetExceeded, TypeError, ValueError, FileNotFoundError, LedgerError: as ``charge``.
        """
        amounts = _exact(asked(epsilon, delta))
        with transaction(self.path, "IMMEDIATE", self._timeout) as connection:
            statement = _later(self._seen, read(connection))
            write(connection, self._next(statement, "", amounts))
            connection.execute("ROLLBACK")
        return statement

    def void(self, charge: int, label: str = "") -> Statement:
        """Void a charge whose query has released no output and never will, so that its amounts can be charged again.

        This is sound only if no part of the query's result has been seen, the result is deleted, and the decision to
        void the charge does not depend on the result. When in doubt, keep the charge.

        Args:
            charge: the number of a charge that this object made.
            label: the reason, visible to every reader of the file.

        Returns:
            The ledger just after; its last entry voids the charge.

        Raises:
            ValueError: this object did not make the charge, or has voided it, or the label is no text.
            FileNotFoundError: the ledger is gone.
            LedgerError: it is not sound, cannot be written, or another process holds it too long. The charge stands,
                unless the disk itself failed: then it may be voided.
        """
        if charge not in self._made:
            raise ValueError(f"charge: {charge} was not made by this object, or is voided already")
        label.encode()
        after = self._append(lambda statement: statement.next_void(now(), label, charge), "the charge stands")
        self._made.discard(charge)
        return after

    def _append(self, entry: Callable[[Statement], Entry], otherwise: str) -> Statement:
        """Write one entry, made from what the ledger holds in the same transaction; return the ledger after it."""
        seen = self._seen
        with transaction(self.path, "IMMEDIATE", self._timeout, otherwise) as connection:
            statement = _later(seen, read(connection))
            write(connection, new := entry(statement))
        self._seen = after = replace(statement, entries=(*statement.entries, new))
        return after

    def _next(self, statement: Statement, label: str, amounts: EpsilonDelta) -> Entry:
        check(statement.budget, statement.spent, amounts, f"{self.path}: ")
        return statement.next(now(), label, amounts)


def _exact(amounts: EpsilonDelta) -> EpsilonDelta:
    """Return amounts, refused if a ledger cannot hold them."""
    for part in amounts:
        text(part)
    return amounts


def _later(seen: Statement | None, found: Statement) -> Statement:
    """Return the statement found, refused if it lacks anything that was seen before."""
    if seen is not None and found.ledger != seen.ledger:
        raise UnsoundError("is now another ledger; a file with other entries has taken its name")
    if seen is not None and found.entries[: len(seen.entries)] != seen.entries:
        raise UnsoundError(f"has lost charges: there were {len(seen.entries)}; has an older copy been put back?")
    return found
