"""Failures of the command: their exit codes and their messages."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dis import opmap
from itertools import chain
from traceback import format_exception, format_tb

from dpkernels.cli.terminal import private, public, warnings

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

DONE, FAILED, USAGE, EXHAUSTED, UNVERIFIED, TRY_AGAIN = range(6)

# By name, since the classes are in modules that a light command does not load.
_CODES = {"BudgetExceeded": EXHAUSTED, "CertificateError": UNVERIFIED, "UnsoundError": UNVERIFIED}
_CODES |= {"TakenError": TRY_AGAIN}
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EBUSY, errno.ENOLCK}
_PASSING_IN_SQLITE = {5, 6, 13}  # SQLITE_BUSY, SQLITE_LOCKED and SQLITE_FULL
_DAMAGED_IN_SQLITE = {11, 26}  # SQLITE_CORRUPT and SQLITE_NOTADB
_EXTRAS = {"click": "cli", "matplotlib": "cli", "pyarrow": "cli", "ray": "ray", "rich": "cli"}
_OURS = ("dpkernels", "accountants")


class RowError(ValueError):
    """A value that cannot be perturbed, in a row of a file.

    Attributes:
        row: the number of the row, from 0.
        place: the row as messages name it, with its line where the file has lines.
        kind: the fault without the value, such as "missing"; public.
        column: the name of the column, or None for an array, and until it is known.
        others: how many rows have each kind of fault, and the first of them, if they were looked for.
    """

    def __init__(self, row: int, position: str, fault: str, text: str, column: str | None = None) -> None:
        self.row, self.position, self.fault, self.text, self.column = row, position, fault, text, column
        self.others: BadRows | None = None
        super().__init__(("" if column is None else f"column {column!r}: ") + f"{position} {text}")

    def __reduce__(self) -> tuple[object, ...]:
        return RowError, (self.row, self.position, self.fault, self.text, self.column)

    def in_file(self, name: str) -> RowError:
        """Return the error with the name of its file before its place."""
        return RowError(self.row, f"{name}: {self.position}", self.fault, self.text, self.column)

    def in_column(self, column: str | None) -> RowError:
        """Return the error with the name of its column."""
        return RowError(self.row, self.position, self.fault, self.text, column)

    def to_dict(self) -> dict[str, object]:
        """Return a JSON form, without the value."""
        return {"row": self.row, "place": self.position, "column": self.column, "problem": self.fault}


@dataclass(frozen=True)
class BadRows:
    """The values of a file that cannot be perturbed."""

    counts: Mapping[str, int]  # of each kind
    first: Sequence[RowError]
    is_all: bool  # whether the whole file was searched

    def __str__(self) -> str:
        total = sum(self.counts.values())
        faults = ", ".join(f"{count} {fault}" for fault, count in self.counts.items())
        positions = ", ".join(dict.fromkeys(error.position for error in self.first))
        more = "" if self.is_all else " or more"
        dots = ", .." if total > len(self.first) else ""
        return f"in all {total}{more} values cannot be perturbed ({faults}): {positions}{dots}"

    def to_dict(self) -> dict[str, object]:
        return {"counts": dict(self.counts), "all": self.is_all, "first": [error.to_dict() for error in self.first]}


def row_error(error: BaseException) -> RowError | None:
    """Return the fault of a row that caused an error, if one did."""
    return next((cause for cause in causes(error) if isinstance(cause, RowError)), None)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a failure, from the error and what caused it.

    A run whose charge stays is not to be tried again without a thought: the next one is charged, too.
    """
    if (usage_code := getattr(error, "exit_code", FAILED)) != FAILED:  # a usage error of click, whatever its cause
        return int(usage_code)
    code = next((code for cause in causes(error) if (code := _error_code(cause)) is not None), FAILED)
    return FAILED if code == TRY_AGAIN and getattr(error, "keeps_charge", False) else code


def _error_code(error: BaseException) -> int | None:
    by_name = (_CODES[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in _CODES)
    if (code := next(by_name, None)) is not None:
        return code
    in_sqlite = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if in_sqlite in _PASSING_IN_SQLITE or (isinstance(error, OSError) and error.errno in _PASSING):
        return TRY_AGAIN
    return UNVERIFIED if in_sqlite in _DAMAGED_IN_SQLITE else None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def error_document(error: BaseException, message: str, code: int, left_behind: str) -> dict[str, object]:
    """Return a failure as JSON, with the texts that a log may have."""
    fault = row_error(error)
    rows = None if fault is None or fault.others is None else fault.others.to_dict()
    first = None if fault is None else fault.to_dict()
    record = {"error": public(message), "code": code, "row": first, "rows": rows, "charge": public(left_behind) or None}
    return record | {"warnings": warnings()} | getattr(error, "findings", {})


def error_message(error: BaseException) -> str:
    """Return what is told of the failure of a command."""
    if hasattr(error, "format_message"):  # click's own errors
        return str(error.format_message())
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in _EXTRAS:
            return f"{package} is not installed; pip install '.[{_EXTRAS[package]}]' in a clone of dpkernels"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return _too_many_files(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (ValueError, OSError)) and str(error):
        fault = row_error(error)
        more = "" if fault is None or fault.others is None or len(fault.others.first) < 2 else f"; {fault.others}"
        return error_text(error) + more
    return f"unexpected {type(error).__name__}: {error_text(error)} (DPKERNELS_DEBUG=1 shows where)"


def error_text(error: BaseException) -> str:
    """Return the text of an error, to be part of a message.

    The text of an error that another package raised may quote a cell of a file, so it is private.
    """
    is_of_system = isinstance(error, OSError) and bool(error.strerror)
    return str(error) if is_of_system or _is_ours(error) else private(str(error), type(error).__name__)


def _too_many_files(error: OSError) -> str:
    """Return the cause, rather than the file that happened to be opened next."""
    limit = "" if resource is None else f" of {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    where = f" (at {error.filename})" if error.filename else ""
    if error.errno == errno.ENFILE:
        return f"too many files are open on this machine; try again later{where}"
    return f"too many open files: this process reached its limit{limit}; raise it with ulimit -n{where}"


def _is_ours(error: BaseException) -> bool:
    """Return whether a statement of this project raised an error, rather than a function of another package."""
    if (trace := error.__traceback__) is None:
        return type(error).__module__.partition(".")[0] in _OURS
    while trace.tb_next is not None:
        trace = trace.tb_next
    raised = trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
    return raised and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _OURS


def format_traceback(error: BaseException, *, with_texts: bool) -> str:
    """Return where an error and its causes arose; without their texts, which may quote cells, only their kinds."""
    if with_texts:
        return "".join(format_exception(error)).rstrip()
    from_first = reversed(list(causes(error)))
    lines = ((*format_tb(cause.__traceback__), type(cause).__name__) for cause in from_first)
    return "\n".join(line.rstrip() for line in chain.from_iterable(lines))
