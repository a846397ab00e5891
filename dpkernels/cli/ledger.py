"""``--ledger`` and ``--budget`` of ``dpkernels perturb``, and ``dpkernels ledger``, which shows what a ledger holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from dpkernels.budgets.amounts import EpsilonDelta, budgeted, minus, printed
from dpkernels.budgets.filters import check
from dpkernels.budgets.ledger import Entry, Ledger, Statement
from dpkernels.cli.text import aligned, shown


@dataclass(frozen=True)
class Purse:
    """The ledger that a release is charged to.

    Attributes:
        path: its file.
        budget: the (epsilon, delta) it has, or is made with; empty for that of an existing one.
        like: a file; a ledger that is made gets at most its permissions.
    """

    path: Path
    budget: tuple[float, ...] = ()
    like: Path | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], files: Sequence[Path]) -> Purse | None:
        """The purse of the options, if they name one.

        Args:
            given: ``ledger`` and ``budget`` as far as they were given.
            files: what the release reads and writes, the input first.

        Raises:
            click.UsageError: a budget without a ledger or out of range; a ledger that is one of the files, or missing.
        """
        path, budget = given.get("ledger"), given.get("budget", ())
        if path is None:
            if budget:
                raise click.UsageError("--budget: needs --ledger FILE, which keeps it")
            return None
        _check_budget(budget)
        _check_apart(path, files)
        if not budget and not path.exists():
            raise click.UsageError(f"--ledger: {path} does not exist; --budget EPS[,DELTA] makes it")
        return cls(path, budget, files[0])

    def charge(self, epsilon: Fraction, delta: Fraction, label: str) -> Receipt:
        """Charge; what comes after is paid for.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged.
            LedgerError: the file is not a sound ledger, has another budget, or cannot be written.
        """
        self._check_new(epsilon, delta)  # no ledger is made for what it could not pay for
        ledger = Ledger.create(self.path, *self.budget, like=self.like) if self.budget else Ledger(self.path)
        return Receipt(self.path, ledger.charge(epsilon, delta, label))

    def check(self, epsilon: Fraction, delta: Fraction) -> str:
        """Whether the charge would fit now; nothing is charged, and no ledger made.

        Returns:
            What would be left.

        Raises:
            BudgetExceeded: it does not fit.
            LedgerError: the file is not a sound ledger, or has another budget.
        """
        self._check_new(epsilon, delta)
        asked = EpsilonDelta(epsilon, delta)
        if not self.path.exists():
            return f"ledger {self.path}: would be made, and {minus(budgeted(*self.budget), asked)} be left"
        ledger = Ledger.create(self.path, *self.budget) if self.budget else Ledger(self.path)
        now = ledger.statement()
        check(now.budget, now.spent, asked, f"{self.path}: ")
        return f"ledger {self.path}: {asked} fits; {minus(now.left, asked)} would be left"

    def _check_new(self, epsilon: Fraction, delta: Fraction) -> None:
        if self.budget:
            check(budgeted(*self.budget), EpsilonDelta(), EpsilonDelta(epsilon, delta), f"{self.path}: ")


def _check_budget(budget: tuple[float, ...]) -> None:
    try:
        if len(budget) > 2:
            raise ValueError(f"{len(budget)} numbers; it is EPS or EPS,DELTA")
        if budget:
            budgeted(*budget)
    except ValueError as error:
        raise click.UsageError(f"--budget: {error}") from error


def _check_apart(path: Path, files: Iterable[Path]) -> None:
    """A release that replaced its own ledger would forget what was spent."""
    for file in files:
        if path.resolve() == file.resolve() or (path.exists() and file.exists() and path.samefile(file)):
            raise click.UsageError(f"--ledger: {path} is a file of the release")


@dataclass(frozen=True)
class Receipt:
    """A charge that was made.

    Attributes:
        path: the ledger's file.
        after: the ledger just after it.
    """

    path: Path
    after: Statement

    @property
    def entry(self) -> Entry:
        """The charge."""
        return self.after.entries[-1]

    def to_dict(self) -> dict[str, Any]:
        """A JSON form; its amounts are decimals, exactly. The hash shows later that the ledger still has the charge."""
        return {
            "ledger": self.after.ledger,
            "charge": self.entry.id,
            "time": self.entry.time,
            "hash": self.entry.hash,
            **_exact("", self.entry.amounts),
            **_exact("spent_", self.after.spent),
            **_exact("budget_", self.after.budget),
        }

    @property
    def stays(self) -> str:
        """What a release that fails after the charge says."""
        return (
            f"(charge {self.entry.id} of {self.entry.amounts} stays in {self.path}: that nobody has seen any of a "
            "release that had begun cannot be known)"
        )

    def __str__(self) -> str:
        after = f"spent {self.after.spent}; left {self.after.left}"
        return f"ledger {self.path}: charge {self.entry.id} of {self.entry.amounts}; {after}"


def listing(path: Path) -> list[str]:
    """A ledger for a terminal."""
    statement = Ledger(path).statement()
    facts = {
        "ledger": f"{path}, {statement.ledger}, made {statement.created}",
        "budget": statement.budget,
        "spent": statement.spent,
        "left": statement.left,
    }
    lines = [f"{name:<7} {text}" for name, text in facts.items()]
    if statement.entries:
        lines += ["", *aligned([["charge", "time", "epsilon", "delta", "label"], *map(_row, statement.entries)])]
    return lines


@contextmanager
def paid(purse: Purse | None, totals: tuple[Fraction, Fraction], label: str) -> Iterator[Receipt | None]:
    """Pays before a value is read. The charge stays, come what may: a failure says so.

    Args:
        purse: what pays; None for nothing.
        totals: the (epsilon, delta) of a row.
        label: of the ledger's entry.
    """
    if purse is None:
        yield None
        return
    receipt = purse.charge(*totals, label)
    try:
        yield receipt
    except BaseException as error:
        error.left_behind = receipt.stays  # type: ignore[attr-defined]
        raise


def would_leave(purse: Purse | None, totals: tuple[Fraction, Fraction]) -> list[str]:
    """What a payment would leave, in words; nothing is charged.

    Raises:
        BudgetExceeded: it does not fit.
        LedgerError: the file is not a sound ledger, or has another budget.
    """
    return [] if purse is None else [purse.check(*totals)]


def to_dict(path: Path) -> dict[str, Any]:
    """A JSON form of a ledger; amounts are decimals, exactly."""
    statement = Ledger(path).statement()
    return {
        "ledger": statement.ledger,
        "created": statement.created,
        **_exact("budget_", statement.budget),
        **_exact("spent_", statement.spent),
        **_exact("left_", statement.left),
        "charges": [
            {"charge": one.id, "time": one.time, **_exact("", one.amounts), "label": one.label, "hash": one.hash}
            for one in statement.entries
        ],
    }


def _row(entry: Entry) -> list[str]:
    return [str(entry.id), entry.time, *map(printed, entry.amounts), shown(entry.label) if entry.label else ""]


def _exact(prefix: str, amounts: Any) -> dict[str, str]:
    return {prefix + name: printed(amount) for name, amount in zip(amounts._fields, amounts, strict=True)}
