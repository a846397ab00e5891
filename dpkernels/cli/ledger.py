"""The options ``--ledger`` and ``--budget``, and ``dpkernels ledger``, which prints a ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol, Self

import click

from dpkernels.bounded_json import JsonObject
from dpkernels.budgets.filters import BudgetExceeded, EpsilonDelta, check, format_amount, minus, parse_budget
from dpkernels.budgets.ledger import JOURNALS, Entry, Ledger, LedgerError, LedgerState, check_makeable
from dpkernels.cli.errors import error_text
from dpkernels.cli.interrupts import is_independent, raise_if_interrupted, uninterrupted
from dpkernels.cli.options import OptionValues, usage_errors
from dpkernels.cli.text import aligned, display_name
from dpkernels.proven import proven

_MIN_DELTA = -9  # the power of ten of the least delta that is advised
_VOID_LABEL = "the run failed before its output was in place"


@dataclass(frozen=True)
class Price:
    """The cost of a release, and the rows that are charged together."""

    amounts: EpsilonDelta
    rows: str | None  # whom the rows are about, as the user says; None of local mechanisms: each row is a person
    charged_rows: int  # 1 unless the rows are about the same people

    def describe(self, charge: str) -> str:
        """Return the description of a charge with the rows that it is for."""
        if self.rows is None:
            return charge
        if self.rows == "different-people":
            return f"{charge}, rows about different people"
        return f"{charge}, {self.charged_rows} row{'s' * (self.charged_rows > 1)} about the same people"


@dataclass(frozen=True)
class LedgerAccount:
    """The ledger that a release is charged to."""

    path: Path
    budget: tuple[Decimal, ...] = ()  # the (epsilon, delta) it has, or is made with; empty for that of an existing one
    like: Path | None = None  # a file; a ledger that is made gets at most its permissions

    @classmethod
    def from_options(cls, options: OptionValues, files: Sequence[Path], folders: Sequence[Path] = ()) -> Self | None:
        """Return the account that ``--ledger`` and ``--budget`` name, if any, or refuse it with a click.UsageError.

        ``files`` are those that the release reads and writes, the input first. It may use all files of the ``folders``.
        """
        path, budget = options.get("ledger"), options.get("budget", ())
        if path is None:
            if budget:
                raise click.UsageError("--budget: needs --ledger FILE, which keeps it")
            return None
        if len(budget) > 2:
            raise click.UsageError(f"--budget: {len(budget)} numbers; it is EPS or EPS,DELTA")
        if budget:
            with usage_errors("--budget: "):
                parse_budget(*budget)
        # A ledger that is data, or that the release would replace, would forget what was spent.
        for folder in folders:
            if path.resolve().is_relative_to(folder.resolve()):
                raise click.UsageError(f"--ledger: {path} is in {folder}, a folder of the release; keep it elsewhere")
        ledger_files = {
            Path(f"{path.resolve()}{ending}") for ending in ("", *JOURNALS)
        }  # SQLite deletes what has these names.
        for file in files:
            if file.resolve() in ledger_files or (path.exists() and file.exists() and path.samefile(file)):
                raise click.UsageError(
                    f"--ledger: {path} is a file of the release, or {file.name} is one of the ledger"
                )
        if not budget and not path.exists():
            raise click.UsageError(f"--ledger: {path} does not exist; --budget EPS[,DELTA] makes it")
        return cls(path, budget, files[0] if files else None)

    def opened(self, charge: EpsilonDelta) -> Ledger:
        """Return the ledger for a charge; it is made, if it is a new one, unless the charge exceeds its budget."""
        self._check_new(charge)
        return Ledger.create(self.path, *self.budget, like=self.like) if self.budget else Ledger(self.path)

    def charge(self, price: Price, label: str) -> LedgerCharge:
        with self._advice():
            ledger = self.opened(price.amounts)
            return LedgerCharge(self.path, price, ledger.charge(*price.amounts, label), ledger)

    def check(self, charge: EpsilonDelta) -> str:
        """Return in words the budget that the charge would leave now, without charging or making a ledger."""
        with self._advice():
            self._check_new(charge)
            if not self.path.exists():
                check_makeable(self.path)
                return f"ledger {self.path}: would be made, and {minus(parse_budget(*self.budget), charge)} be left"
            ledger = Ledger.create(self.path, *self.budget) if self.budget else Ledger(self.path)
            state = ledger.rehearse(*charge)
            return f"ledger {self.path}: {charge} fits; {minus(state.left, charge)} would be left"

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Name a budget that fits, if the exceeded one has no delta: additive noise from a finite table needs one."""
        try:
            yield
        except BudgetExceeded as error:
            charge, remaining = error.asked, error.left
            if not isinstance(charge, EpsilonDelta) or error.budget.delta or not charge.delta:
                raise
            power = max(_MIN_DELTA, math.ceil(math.log10(charge.delta)) + 1)
            if charge.epsilon > remaining.epsilon or power >= 0:  # A budget with a delta does not help.
                raise
            epsilon, delta = format_amount(error.budget.epsilon), format_amount(charge.delta)
            where = "--budget" if self.budget else f"--ledger: the budget of {self.path}"
            raise click.UsageError(
                f"{where}: has delta 0, but this release costs delta {delta}; use --budget {epsilon},1e{power}"
                + ("" if self.budget else " with a new ledger")
            ) from error

    def _check_new(self, charge: EpsilonDelta) -> None:
        if self.budget:
            check(parse_budget(*self.budget), EpsilonDelta(), charge, f"{self.path}: ")


class ReleaseOutput(Protocol):
    """The output of a release, of one file or many, on this machine or in a store."""

    @property
    def is_resumable(self) -> bool:
        """Return whether another run can continue this one."""

    def withdraw(self) -> bool:
        """Delete what was written; return False if another user may have read it, or if it cannot be deleted."""

    def check_space(self, size: int) -> None:
        """Raise the OSError of a full disk if a file of about this size does not fit; nothing is charged yet."""

    def commit(self, sidecar: str, names: Sequence[str]) -> None:
        """Put the output, files of these names, and its sidecar in place; from then on the work is finished."""


@proven("filters#proof")
@dataclass(frozen=True)
class LedgerCharge:
    """A charge that was made to a ledger, and the ledger's state just after it."""

    path: Path
    price: Price
    after: LedgerState
    ledger: Ledger = field(repr=False, compare=False)
    marks: int = 0  # how often the run of the charge was continued

    @property
    def entry(self) -> Entry:
        return self.after.entries[-1]

    def to_dict(self) -> dict[str, object]:
        """Return a JSON form with exact decimals. The hash shows later that the ledger still has the charge."""
        entry, after = self.entry, self.after
        amounts = _exact("", entry.amounts) | _exact("spent_", after.spent) | _exact("budget_", after.budget)
        rows = {"rows": self.price.rows, "charged_rows": self.price.charged_rows}
        return {"ledger": after.ledger, "charge": entry.id, "time": entry.time, "hash": entry.hash, **rows, **amounts}

    def settle(self, error: BaseException, output: ReleaseOutput) -> str:
        """Void the charge of a failed release, if no part of it can have been read; return what was done, in words."""
        charge, why = f"charge {self.entry.id} of {self.entry.amounts}", ""
        if self.marks:
            why = "a killed run has made it"
        elif not is_independent(error):
            why = "whether such a run fails may depend on the reports"
        elif not output.withdraw():
            why = "part of the release may already have been read"
        else:
            try:
                if _marks(self.ledger.state(), self.entry.id):
                    why = "a copy of the run was continued"
                else:
                    self.ledger.void(self.entry.id, _VOID_LABEL)
            except (OSError, LedgerError) as failed:
                why = f"it could not be voided: {error_text(failed)}"
        if why:
            error.keeps_charge = True  # type: ignore[attr-defined]
            continuation = "; --resume continues the run" if output.is_resumable else ""
            return f"({charge} stays in {self.path}: {why}{continuation})"
        return f"({charge} in {self.path} is voided: nothing was released)"

    def __str__(self) -> str:
        after = f"spent {self.after.spent}; left {self.after.left}"
        return f"ledger {self.path}: {self.price.describe(f'charge {self.entry.id} of {self.entry.amounts}')}; {after}"


@contextmanager
def charging(
    ledger_account: LedgerAccount | None, price: Callable[[], Price], label: str, output: ReleaseOutput
) -> Iterator[LedgerCharge | None]:
    """Charge before a value is read, and void the charge if the release fails before any part of it can be read.

    ``price`` returns the cost; it may count the rows. ``output.withdraw`` deletes all that was written, and returns
    whether it is gone and no other user can have read it. The message of a failure says whether the charge is voided.
    A usage error becomes another failure, because the exit code of usage errors promises that there was no charge.
    """
    if ledger_account is None:
        yield None
        return
    cost = price()
    with uninterrupted():  # so that no charge is made without a ledger_charge
        ledger_charge = ledger_account.charge(cost, cost.describe(label))
    with settling(lambda: ledger_charge, output):
        raise_if_interrupted()
        yield ledger_charge


@contextmanager
def resuming(
    ledger_account: LedgerAccount | None, price: Callable[[], Price], charge: JsonObject | None, output: ReleaseOutput
) -> Iterator[LedgerCharge | None]:
    """Yield the charge that a killed run has made, which stays; a click.UsageError says that it is not in the ledger.

    ``charge`` is what the run has noted of it. The ledger gets an entry of 0 each time, so that a copy of an earlier
    state of the run cannot be continued: its rows would get other noise for the same charge.
    """
    if (ledger_account is None) != (charge is None):
        raise click.UsageError(f"--resume: the killed run {'had no' if charge is None else 'charged a'} ledger")
    if ledger_account is None or charge is None:
        yield None
        return
    with uninterrupted():
        ledger = Ledger(ledger_account.path)
        state, number, cost = ledger.state(), charge["charge"], price()
        entry = next((entry for entry in state.entries if entry.id == number), None)
        if state.ledger != charge["ledger"] or entry is None or entry.hash != charge["hash"]:
            raise click.UsageError(f"--resume: {ledger_account.path} does not have the charge of the killed run")
        if number in state.voided or entry.amounts != cost.amounts:
            raise click.UsageError(
                f"--resume: charge {number} of {ledger_account.path} is voided, or is for other rows"
            )
        mark(ledger, number, charge["marks"])
    after = replace(state, entries=state.entries[:number])
    ledger_charge = LedgerCharge(ledger_account.path, cost, after, ledger, charge["marks"] + 1)
    with settling(lambda: ledger_charge, output):
        raise_if_interrupted()
        yield ledger_charge


def mark(ledger: Ledger, charge: int, marks: int) -> None:
    """Note in a ledger, at no cost, that the run of a charge goes on, or is complete.

    A click.UsageError says that a copy of the run was continued, since there are not so many marks, or that the charge
    was voided: at most one copy of a run is ever complete, for a charge that stands.
    """
    before = ledger.state()
    if _marks(before, charge) == marks and charge not in before.voided:
        after = ledger.charge(0, 0, _mark(charge))  # Another process may have been there in between.
        if _marks(after, charge) == marks + 1 and charge not in after.voided:
            return
    raise click.UsageError(
        f"--ledger: {ledger.path} says that the run was continued or completed by another one, or its charge was voided"
    )


def _mark(charge: int) -> str:
    return f"the run of charge {charge} was continued or completed"


def _marks(state: LedgerState, charge: int) -> int:
    return sum(entry.label == _mark(charge) for entry in state.entries)


@contextmanager
def settling(charged: Callable[[], LedgerCharge | None], output: ReleaseOutput) -> Iterator[None]:
    """Settle the charge of a failed release, if one was made, and let the error say what became of it."""
    try:
        yield
    except BaseException as error:
        with uninterrupted():
            if (ledger_charge := charged()) is None:
                raise
            left_behind = ledger_charge.settle(error, output)
        failed = click.ClickException(error.message) if isinstance(error, click.UsageError) else error
        failed.left_behind = left_behind  # type: ignore[attr-defined]
        raise failed from error.__cause__


@dataclass(frozen=True)
class Report:
    """What a ledger holds."""

    path: Path
    state: LedgerState

    def to_dict(self) -> dict[str, object]:
        """Return a JSON form; amounts are decimals, exactly."""
        state = self.state
        document: dict[str, object] = {"ledger": state.ledger, "created": state.created}
        for name in ("budget", "spent", "left"):
            document |= _exact(f"{name}_", getattr(state, name))
        charges = [
            {"charge": entry.id, "time": entry.time, **_signed(entry), "label": entry.label, "hash": entry.hash}
            | {"voids": entry.voids or None, "voided_by": state.voided.get(entry.id)}
            for entry in state.entries
        ]
        return document | {"charges": charges}

    def __str__(self) -> str:
        state = self.state
        path, ledger, created = map(display_name, (str(self.path), state.ledger, state.created))
        lines = [f"ledger  {path}, {ledger}, made {created}"]
        lines += [f"{name:<7} {getattr(state, name)}" for name in ("budget", "spent", "left")]
        rows = [["charge", "time", "epsilon", "delta", "label"]]
        for entry in state.entries:
            notes = [f"voids charge {entry.voids}"] if entry.voids else []
            notes += [f"voided by {state.voided[entry.id]}"] if entry.id in state.voided else []
            label = ": ".join([*notes, *([display_name(entry.label)] if entry.label else [])])
            rows.append([str(entry.id), display_name(entry.time), *_signed(entry).values(), label])
        return "\n".join(lines + (["", *aligned(rows)] if state.entries else []))


def _signed(entry: Entry) -> dict[str, str]:
    """Return an entry's amounts, negative if it voids another: the sum over all entries is what is spent."""
    exact = _exact("", entry.amounts).items()
    return {name: "-" + text if entry.voids and text != "0" else text for name, text in exact}


def _exact(prefix: str, amounts: EpsilonDelta) -> dict[str, str]:
    return {prefix + name: format_amount(amount) for name, amount in zip(amounts._fields, amounts, strict=True)}
