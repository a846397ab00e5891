"""A ledger's SQLite file: how it is made, opened, read and verified; ``ledger`` says what it guarantees.

One transaction an entry. A rollback journal and not a write-ahead log: then the file alone is the ledger
between charges, while a log left behind by a copy would un-charge. With synchronous=EXTRA, not FULL: a commit is the
deletion of the journal, and only EXTRA makes that durable; with FULL a journal that reappears after a power failure
rolls the charge back. Locks are the file system's: not for network file systems whose locks do not work (many NFS),
nor through two hard links of one file.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpkernels.budgets.amounts import EpsilonDelta
from dpkernels.budgets.statements import Entry, Statement, UnsoundError, text, verified
from dpkernels.staging import claimed, staged, sweep, to_disk

_APPLICATION = 0x64706B6C  # "dpkl", where SQLite keeps whose file it is
_VERSION = 2
# ``voids`` is the number of the charge that an entry voids, and empty for a charge.
_TABLES = {
    "budget": "CREATE TABLE budget (ledger TEXT, created TEXT, epsilon TEXT, delta TEXT, head TEXT)",
    "charges": "CREATE TABLE charges (id INTEGER PRIMARY KEY, time TEXT, label TEXT, epsilon TEXT, delta TEXT, "
    "hash TEXT, voids TEXT DEFAULT '')",
}
_SETTINGS = ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF", "cell_size_check = ON")

_UNCHARGED = "nothing was charged"
_CANNOT_WRITE = "cannot be written"
_WHY = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
    sqlite3.SQLITE_READONLY: _CANNOT_WRITE,
    sqlite3.SQLITE_CANTOPEN: "cannot be opened, or its folder cannot be written",
    sqlite3.SQLITE_PERM: _CANNOT_WRITE,
}


class LedgerError(ValueError):
    """A file that is not a sound ledger, or that cannot be charged; names the file and says what is wrong."""


def make(path: Path, budget: EpsilonDelta, timeout: float, like: Path | None = None) -> None:
    """Make a complete ledger under a temporary name and rename it, so that a partial file never appears.

    Args:
        path: the ledger.
        budget: its budget.
        timeout: how many seconds to wait for another process that is making it.
        like: a file whose permissions it gets at most.

    Raises:
        LedgerError: it cannot be made.
    """
    _refuse_leftovers(path)
    try:
        with claimed(path, timeout):
            sweep(path)
            if not os.path.lexists(path):  # else another process was faster
                _make(path, budget, timeout, like)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be made: {error.strerror or error}") from error


def check_makeable(path: Path) -> None:
    """Refuse a path at which no ledger could be made, without making one.

    Raises:
        LedgerError: it is there already, or its folder does not exist or cannot be written.
    """
    _refuse_leftovers(path)
    try:
        with claimed(path), staged(path):
            pass
    except OSError as error:
        raise LedgerError(f"{path}: cannot be made: {error.strerror or error}") from error
    if os.path.lexists(path):
        raise LedgerError(f"{path}: cannot be made: a link that leads nowhere has this name")


def _make(path: Path, budget: EpsilonDelta, timeout: float, like: Path | None) -> None:
    with staged(path, 0o666 if like is None else 0o600) as new:
        new.finish(like)
        new.file.close()  # before SQLite opens it: a file that is closed takes the process's locks on it along
        try:
            with _explained(path, timeout), closing(_connect(new.path, "rw", timeout)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                _fill(connection, Statement(secrets.token_hex(16), now(), budget))
                connection.execute("COMMIT")
        finally:
            new.path.with_name(new.path.name + "-journal").unlink(missing_ok=True)
        path.hardlink_to(new.path)  # unlike a rename, it never replaces a file
    to_disk(path.parent)


def _refuse_leftovers(path: Path) -> None:
    for ending in ("-journal", "-wal"):
        if os.path.lexists(f"{path}{ending}") and not os.path.lexists(path):
            raise LedgerError(f"{path}: is gone, but {path.name}{ending} is left of it; put it back or delete both")


def _fill(connection: sqlite3.Connection, new: Statement) -> None:
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    for table in _TABLES.values():
        connection.execute(table)
    row = (new.ledger, new.created, *map(text, new.budget), new.head)
    connection.execute("INSERT INTO budget VALUES (?, ?, ?, ?, ?)", row)


@contextmanager
def transaction(path: Path, kind: str, timeout: float, otherwise: str = _UNCHARGED) -> Iterator[sqlite3.Connection]:
    """Yield a connection with one transaction, which is committed at the end and rolled back if an exception is raised.

    A connection each time, because SQLite's must not cross a fork. The caller may end the transaction before.

    Args:
        path: the ledger.
        kind: of the transaction, in SQLite's words.
        timeout: how many seconds to wait for other processes.
        otherwise: what an error says of a transaction that was rolled back.
    """
    _check_file(path)
    with _explained(path, timeout, otherwise), closing(_connect(path, "rw", timeout)) as connection:
        connection.execute(f"BEGIN {kind}")
        yield connection
        if connection.in_transaction:
            connection.execute("COMMIT")


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    if not path.is_file():
        raise LedgerError(f"{path}: is not a file")
    if size == 0:
        raise LedgerError(f"{path}: is damaged: it is empty, and a ledger never is")


def _connect(path: Path, mode: str, timeout: float) -> sqlite3.Connection:
    where = f"{path.absolute().as_uri()}?mode={mode}"
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
    """Raise errors of SQLite and of the content as errors that name the file."""
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


def read(connection: sqlite3.Connection) -> Statement:
    """Return all of a file, verified.

    Raises:
        UnsoundError: says what is wrong.
        sqlite3.Error: SQLite cannot read it.
    """
    _check_tables(connection)
    budgets = connection.execute("SELECT ledger, created, epsilon, delta, head FROM budget")
    charges = connection.execute("SELECT id, time, label, epsilon, delta, voids, hash FROM charges ORDER BY id")
    return verified(budgets.fetchall(), charges.fetchall())


def write(connection: sqlite3.Connection, entry: Entry) -> None:
    """Append an entry."""
    row = (entry.id, entry.time, entry.label, *map(text, entry.amounts), entry.hash, str(entry.voids or ""))
    connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.execute("UPDATE budget SET head = ?", (entry.hash,))


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _check_tables(connection: sqlite3.Connection) -> None:
    """Refuse a file that is not a ledger, or that SQLite does not find whole."""
    if (found := _pragma(connection, "application_id")) != _APPLICATION:
        raise UnsoundError(f"is not a ledger of dpkernels (application {found:#x})")
    if (version := _pragma(connection, "user_version")) != _VERSION:
        raise UnsoundError(f"is a ledger of version {version}; this program reads version {_VERSION}")
    tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    if tables != list(_TABLES.items()):  # no triggers or views either
        raise UnsoundError("is damaged: its tables are not those of a ledger")
    if (problem := _pragma(connection, "integrity_check(1)")) != "ok":
        raise UnsoundError(f"is damaged: {problem}")


def now() -> str:
    """Return the time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
