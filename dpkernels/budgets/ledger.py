"""A privacy filter in a file: one budget for many runs, processes and users of one machine.

The ledger guarantees, for any number of concurrent processes, that the charges never exceed the budget, and that no
crash loses a charge that returned. This includes ``kill -9``, and power failures if the disk honours fsync. A query
runs only after its charge returned, so every output has been charged. A crash in between leaves a charge without an
output, which is conservative. The budget has the guarantee of ``filters.Filter``.

An entry is a charge, or it voids an earlier charge. Both stay in the ledger; a voided charge does not count. A charge
may be voided if no part of its query's output has been seen. Only the object that made the charge can void it, so a
crash keeps the charge.

Entries form a chain of hashes that starts with the hash of the budget. The hash of an entry covers its row and the
previous hash. The last hash, the head, is stored separately. So every changed, missing, inserted or moved row is
detected. The ledger does not protect against an attacker who recomputes the hashes, restores an older copy, or
recreates a deleted file. To detect an older copy, keep the number and hash of charges elsewhere, as releases of the
command do.

The file is a SQLite database, and every entry is one transaction:

- It uses a rollback journal and not a write-ahead log. The file alone is then the ledger between charges. A copy
  without the write-ahead log would lose charges.
- It is written with synchronous=EXTRA, not FULL. A commit is the deletion of the journal, and only EXTRA makes this
  durable. With FULL, a journal that reappears after a power failure rolls the charge back.
- It uses the locks of the file system. Do not put a ledger on a network file system whose locks do not work (many NFS),
  and do not use it through two hard links of one file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property, reduce
from pathlib import Path
from typing import NamedTuple

from dpkernels.budgets.filters import EpsilonDelta, check, format_amount, minus, parse_budget, parse_charge, plus
from dpkernels.proven import proven
from dpkernels.staging import claimed, staged, sweep, to_disk

_APPLICATION = 0x64706B6C  # "dpkl", where SQLite keeps whose file it is
_VERSION = 2  # of the tables of a ledger, where SQLite keeps a user's version
JOURNALS = ("-journal", "-wal")  # endings of the names of files that SQLite keeps beside a ledger
# ``voids`` is the number of the charge that an entry voids, and empty for a charge.
_TABLES = {
    "budget": "CREATE TABLE budget (ledger TEXT, created TEXT, epsilon TEXT, delta TEXT, head TEXT)",
    "charges": "CREATE TABLE charges (id INTEGER PRIMARY KEY, time TEXT, label TEXT, epsilon TEXT, delta TEXT, "
    "hash TEXT, voids TEXT DEFAULT '')",
}
_SETTINGS = ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF", "cell_size_check = ON")

_UNCHARGED = "nothing was charged"
_WHY = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
    sqlite3.SQLITE_READONLY: "cannot be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened, or its folder cannot be written",
    sqlite3.SQLITE_PERM: "cannot be written",
}

_HASHED = 1  # version of what is hashed
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"[0-9]{1,1000}(\.[0-9]{1,1000})?(e[+-][0-9]{1,3})?")


class LedgerError(ValueError):
    """A file that is not a sound ledger, or that cannot be charged; names the file and says what is wrong."""


class UnsoundError(Exception):
    """The content of a ledger is not sound."""


class Entry(NamedTuple):
    """A charge in a ledger, or an entry that voids an earlier charge."""

    id: int  # its number, from 1
    time: str  # UTC, by the clock of the machine; it is not checked
    label: str  # a description
    amounts: EpsilonDelta  # the cost of the charge, or of the charge that this entry voids
    hash: str  # of this entry and all before it
    voids: int = 0  # the number of the charge that this entry voids; 0 for a charge


@dataclass(frozen=True)
class LedgerState:
    """The verified content of a ledger at one moment; ``ledger`` is its random identity."""

    ledger: str
    created: str
    budget: EpsilonDelta
    entries: tuple[Entry, ...] = ()

    @cached_property
    def spent(self) -> EpsilonDelta:
        """Return the sum of the charges that are not voided."""
        return reduce(_added, self.entries, EpsilonDelta())

    @cached_property
    def voided(self) -> dict[int, int]:
        """Return, by the number of each voided charge, the number of the entry that voids it."""
        return {entry.voids: entry.id for entry in self.entries if entry.voids}

    @property
    def left(self) -> EpsilonDelta:
        return minus(self.budget, self.spent)

    @property
    def head(self) -> str:
        """Return the hash of the whole chain of entries."""
        if self.entries:
            return self.entries[-1].hash
        return _hash("", _HASHED, self.ledger, self.created, *map(format_amount, self.budget))

    def next(self, time: str, label: str, amounts: EpsilonDelta, voids: int = 0) -> Entry:
        number = len(self.entries) + 1
        hashed = _hash(self.head, number, time, label, *map(format_amount, amounts), *_voiding(voids))
        return Entry(number, time, label, amounts, hashed, voids)

    def next_void(self, time: str, label: str, charge: int) -> Entry:
        """Return the entry that voids a charge; an ``UnsoundError`` says that there is none or that it is voided."""
        _check_voidable(self.entries, self.voided, charge)
        return self.next(time, label, self.entries[charge - 1].amounts, charge)


def _voiding(charge: int) -> tuple[str, ...]:
    return (f"voids {charge}",) if charge else ()


def _added(spent: EpsilonDelta, entry: Entry) -> EpsilonDelta:
    return minus(spent, entry.amounts) if entry.voids else plus(spent, entry.amounts)


def _check_voidable(entries: Sequence[Entry], voided: Container[int], charge: int) -> None:
    if not 1 <= charge <= len(entries) or entries[charge - 1].voids:
        raise UnsoundError(f"has no charge {charge} that could be voided")
    if charge in voided:
        raise UnsoundError(f"has voided charge {charge} already")


@proven("filters#proof")
def verify_rows(budgets: Sequence[Sequence[object]], charges: Iterable[Sequence[object]]) -> LedgerState:
    """Return the state that rows of a file make, or raise an ``UnsoundError`` that says what is wrong.

    ``budgets`` are rows of (ledger, created, epsilon, delta, head), of which there must be one. ``charges`` are rows of
    (id, time, label, epsilon, delta, voids, hash), by id; voids is empty for a charge. Each is checked against those
    before it: its hash, and that the sum stays within the budget.
    """
    if len(budgets) != 1:
        raise UnsoundError(f"is damaged: it has {len(budgets)} budgets")
    ledger, created, epsilon, delta, last = _texts(budgets[0], "budget")
    start = LedgerState(ledger, created, EpsilonDelta(parse_amount(epsilon), parse_amount(delta)))
    head, spent, entries, voided = start.head, EpsilonDelta(), list[Entry](), set[int]()
    for number, (stored_number, *row) in enumerate(charges, 1):
        if stored_number != number:
            raise UnsoundError(f"is damaged: charge {number} is missing")
        *texts, voids, stored_hash = _texts(row, f"charge {number}")
        if voids and not _NUMBER.fullmatch(voids):
            raise UnsoundError(f"is damaged: {voids[:40]!r} is not the number of a charge")
        charge = int(voids or 0)
        head = _hash(head, number, *texts, *_voiding(charge))
        if stored_hash != head:
            raise UnsoundError(f"is damaged: charge {number}, or one before it, was changed")
        time, label, epsilon, delta = texts
        entry = Entry(number, time, label, EpsilonDelta(parse_amount(epsilon), parse_amount(delta)), head, charge)
        if charge:
            try:
                _check_voidable(entries, voided, charge)
            except UnsoundError as error:
                raise UnsoundError(f"is damaged: entry {number} voids a charge, and the ledger {error}") from None
            if entries[charge - 1].amounts != entry.amounts:
                raise UnsoundError(f"is damaged: entry {number} does not void the amounts of charge {charge}")
            voided.add(charge)
        spent = _added(spent, entry)
        if min(minus(start.budget, spent)) < 0:
            raise UnsoundError(f"is damaged: its charges of {spent} exceed its budget of {start.budget}")
        entries.append(entry)
    if head != last:
        raise UnsoundError("is damaged: its budget or its last charges were changed or deleted")
    return replace(start, entries=tuple(entries))


def _texts(row: Sequence[object], name: str) -> list[str]:
    texts = [cell for cell in row if isinstance(cell, str)]
    if len(texts) < len(row):
        raise UnsoundError(f"is damaged: {name} holds what is not text")
    return texts


def parse_amount(text: str) -> Fraction:
    """Return an amount as the file has it: a decimal of at least 0, in the form that ``format_amount`` gives it."""
    if not _DECIMAL.fullmatch(text) or format_amount(amount := Fraction(text)) != text:
        raise UnsoundError(f"is damaged: {text[:40]!r} is not an amount")
    return amount


def storable(amounts: EpsilonDelta) -> EpsilonDelta:
    """Return the amounts, or refuse those whose text ``parse_amount`` would not read as the same amounts."""
    for amount in amounts:
        try:
            parse_amount(format_amount(amount))
        except UnsoundError:
            raise ValueError(f"{amount} has no short decimal; a ledger keeps amounts as decimals, exactly") from None
    return amounts


def _hash(*fields: object) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@proven("filters#proof")
class Ledger:
    """An existing ledger. Its budget stays as it was created; threads and processes may share the file.

    A charge reads and verifies all entries before it, about 40 microseconds each. It waits ``timeout`` seconds for
    other processes. Every method raises these errors:

    Raises:
        FileNotFoundError: there is no such file, or it is gone.
        LedgerError: it is not a sound ledger, cannot be written, or another process holds it too long.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        self.path = Path(path)
        self._timeout = timeout
        self._seen: LedgerState | None = None
        self._made = set[tuple[int, int]]()  # processes, and the charges that they may still void
        self.state()

    def __getstate__(self) -> dict[str, object]:
        """Return the state of a copy, which cannot void what this object has charged."""
        return self.__dict__ | {"_made": set()}

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        epsilon: object,
        delta: object = 0,
        *,
        timeout: float = 10.0,
        like: Path | None = None,
    ) -> Ledger:
        """Make a ledger, or open an existing one with the same budget. If several processes try, one makes it.

        A ledger that is made gets at most the permissions of the file ``like``, by default the process's usual ones.

        Raises:
            TypeError: a budget that is not of numbers.
            ValueError: epsilon is not positive and finite, or delta is not in [0, 1).
            LedgerError: the file exists with another budget, is not a sound ledger, or cannot be made.
        """
        path, budget = Path(path), storable(parse_budget(epsilon, delta))
        if not os.path.lexists(path):
            _make(path, budget, timeout, like)
        ledger = cls(path, timeout=timeout)
        if (stored_budget := ledger.state().budget) != budget:
            raise LedgerError(f"{path}: has a budget of {stored_budget}, not of {budget}; a budget cannot be changed")
        return ledger

    @property
    def voidable(self) -> frozenset[int]:
        """Return the numbers of the charges that this object has made and not voided."""
        return frozenset(charge for process, charge in self._made if process == os.getpid())  # not of a forked one

    def state(self) -> LedgerState:
        """Return all that it holds, verified."""
        last_seen = self._seen  # before reading: another thread may see more meanwhile
        with _transaction(self.path, "DEFERRED", self._timeout) as connection:
            self._seen = _later(last_seen, _read(connection))
            return self._seen

    def charge(self, epsilon: object, delta: object = 0, label: str = "") -> LedgerState:
        """Charge a query. Run the query only after this returns: then the charge is on the disk and survives a crash.

        ``epsilon`` is a number, or a certificate or mechanism that has both, for one report of it. To charge all that a
        release says about one person, use ``perturb(..., ledger=...)``. ``label`` is a description of the query,
        visible to every reader of the file. The result is the ledger just after; its last entry is the charge.

        Raises:
            BudgetExceeded: the charge exceeds the rest of the budget and was not made.
            TypeError: not numbers.
            ValueError: an amount is negative, infinite, NaN or without a short decimal, or the label is no text.
            LedgerError: there is no charge, unless the disk itself failed: then the charge may stand.
        """
        amounts = storable(parse_charge(epsilon, delta))
        label.encode()  # a lone surrogate is no text
        after = self._append(lambda state: self._next(state, label, amounts))
        self._made.add((os.getpid(), after.entries[-1].id))
        return after

    def rehearse(self, epsilon: object, delta: object = 0) -> LedgerState:
        """Check that a charge would succeed: make it, roll it back before it is written to disk, and return the ledger.

        It raises the errors of ``charge``.
        """
        amounts = storable(parse_charge(epsilon, delta))
        with _transaction(self.path, "IMMEDIATE", self._timeout) as connection:
            state = _later(self._seen, _read(connection))
            _write(connection, self._next(state, "", amounts))
            connection.execute("ROLLBACK")
        return state

    def void(self, charge: int, label: str = "") -> LedgerState:
        """Void a charge whose query has released no output and never will, so that its amounts can be charged again.

        This is sound only if no part of the query's result has been seen, the result is deleted, and the decision to
        void the charge does not depend on the result. When in doubt, keep the charge.

        ``charge`` is the number of a charge that this object made, and ``label`` the reason, visible to every reader of
        the file. The result is the ledger just after; its last entry voids the charge.

        Raises:
            ValueError: this object did not make the charge, or has voided it, or the label is no text.
            LedgerError: the charge stands, unless the disk itself failed: then it may be voided.
        """
        if charge not in self.voidable:
            raise ValueError(f"charge: {charge} was not made by this object, or is voided already")
        label.encode()
        after = self._append(lambda state: state.next_void(_utc_time(), label, charge), "the charge stands")
        self._made.discard((os.getpid(), charge))
        return after

    def _append(self, entry: Callable[[LedgerState], Entry], otherwise: str = _UNCHARGED) -> LedgerState:
        """Write one entry, made from what the ledger holds in the same transaction; return the ledger after it."""
        last_seen = self._seen
        with _transaction(self.path, "IMMEDIATE", self._timeout, otherwise) as connection:
            state = _later(last_seen, _read(connection))
            _write(connection, new := entry(state))
        self._seen = after = replace(state, entries=(*state.entries, new))
        return after

    def _next(self, state: LedgerState, label: str, amounts: EpsilonDelta) -> Entry:
        check(state.budget, state.spent, amounts, f"{self.path}: ")
        return state.next(_utc_time(), label, amounts)


def _later(earlier: LedgerState | None, current: LedgerState) -> LedgerState:
    """Return the state found, or refuse it if it lacks anything that was seen before."""
    if earlier is not None and current.ledger != earlier.ledger:
        raise UnsoundError("is now another ledger; a file with other entries has taken its name")
    if earlier is not None and current.entries[: len(earlier.entries)] != earlier.entries:
        raise UnsoundError(f"has lost charges: there were {len(earlier.entries)}; has an older copy been put back?")
    return current


def check_makeable(path: Path) -> None:
    """Refuse a path at which no ledger could be made: it is there already, or its folder cannot be written."""
    _refuse_leftovers(path)
    try:
        with claimed(path), staged(path):
            pass
    except OSError as error:
        raise LedgerError(f"{path}: cannot be made: {error.strerror or error}") from error
    if os.path.lexists(path):
        raise LedgerError(f"{path}: cannot be made: a link that leads nowhere has this name")


def _make(path: Path, budget: EpsilonDelta, timeout: float, like: Path | None) -> None:
    """Make a complete ledger under a temporary name and rename it, so that a partial file never appears."""
    _refuse_leftovers(path)
    try:
        with claimed(path, timeout):
            sweep(path)
            if os.path.lexists(path):  # Another process was faster.
                return
            with staged(path, 0o666 if like is None else 0o600) as new:
                new.finish(like)
                new.file.close()  # first: closing any handle of a file drops the process's locks on it, SQLite's too
                try:
                    with _explained(path, timeout), closing(_connect(new.path, timeout)) as connection:
                        connection.execute("BEGIN IMMEDIATE")
                        _fill(connection, LedgerState(secrets.token_hex(16), _utc_time(), budget))
                        connection.execute("COMMIT")
                finally:
                    new.path.with_name(new.path.name + "-journal").unlink(missing_ok=True)
                path.hardlink_to(new.path)  # unlike a rename, it never replaces a file
            to_disk(path.parent)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be made: {error.strerror or error}") from error


def _refuse_leftovers(path: Path) -> None:
    for ending in JOURNALS:
        if os.path.lexists(f"{path}{ending}") and not os.path.lexists(path):
            raise LedgerError(f"{path}: is gone, but {path.name}{ending} is left of it; put it back or delete both")


def _fill(connection: sqlite3.Connection, new: LedgerState) -> None:
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    for table in _TABLES.values():
        connection.execute(table)
    row = (new.ledger, new.created, *map(format_amount, new.budget), new.head)
    connection.execute("INSERT INTO budget VALUES (?, ?, ?, ?, ?)", row)


@contextmanager
def _transaction(path: Path, mode: str, timeout: float, otherwise: str = _UNCHARGED) -> Iterator[sqlite3.Connection]:
    """Yield a connection with one transaction, which is committed at the end and rolled back if an exception is raised.

    A connection each time, because SQLite's must not cross a fork. The caller may end the transaction before. Errors of
    a transaction that was rolled back say ``otherwise``.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise LedgerError(f"{path}: is not a file")
    if size == 0:
        raise LedgerError(f"{path}: is damaged: it is empty, and a ledger never is") from UnsoundError("is empty")
    with _explained(path, timeout, otherwise), closing(_connect(path, timeout)) as connection:
        connection.execute(f"BEGIN {mode}")
        yield connection
        if connection.in_transaction:
            connection.execute("COMMIT")


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    where = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(where, uri=True, timeout=timeout, isolation_level=None)
    try:
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        if connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
            raise UnsoundError("cannot be given a rollback journal")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _explained(path: Path, timeout: float, otherwise: str = _UNCHARGED) -> Iterator[None]:
    """Raise errors of SQLite, and of the file's content, as errors that name the file."""
    try:
        yield
    except UnsoundError as error:
        raise LedgerError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:  # of SQLite's own message about a damaged page
        raise LedgerError(f"{path}: is damaged: holds bytes that are no text") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest are kinds of it
        if code == sqlite3.SQLITE_BUSY:
            raise LedgerError(f"{path}: other processes held it for {timeout:g} s; {otherwise}") from error
        after = "if it shows the entry, that stays" if code == sqlite3.SQLITE_IOERR else otherwise
        why = f"{_WHY[code]} ({error})" if code in _WHY else f"is damaged or not a ledger: {error}"
        raise LedgerError(f"{path}: {why}; {after}") from error


def _read(connection: sqlite3.Connection) -> LedgerState:
    """Return the whole content of a file, verified."""

    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    if (application := pragma("application_id")) != _APPLICATION:
        raise UnsoundError(f"is not a ledger of dpkernels (application {application:#x})")
    if (version := pragma("user_version")) != _VERSION:
        raise UnsoundError(f"is a ledger of version {version}; this program reads version {_VERSION}")
    tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    if tables != list(_TABLES.items()):  # no triggers or views either
        raise UnsoundError("is damaged: its tables are not those of a ledger")
    if (problem := pragma("integrity_check(1)")) != "ok":
        raise UnsoundError(f"is damaged: {problem}")
    budgets = connection.execute("SELECT ledger, created, epsilon, delta, head FROM budget")
    charges = connection.execute("SELECT id, time, label, epsilon, delta, voids, hash FROM charges ORDER BY id")
    return verify_rows(budgets.fetchall(), charges.fetchall())


def _write(connection: sqlite3.Connection, entry: Entry) -> None:
    row = (entry.id, entry.time, entry.label, *map(format_amount, entry.amounts), entry.hash, str(entry.voids or ""))
    connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.execute("UPDATE budget SET head = ?", (entry.hash,))


def _utc_time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
