"""Standard output and standard error: every line of the command is written by this module.

This module alone enforces two rules. Characters that move a cursor, change colours or reorder text are escaped in all
output. Text that is marked ``private``, because it may quote a cell of a file, is shown only on a terminal, because the
standard error of a scheduled job goes to a log that others may read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress

# Noncharacters of Unicode, which no text contains. A marked text is a plain string: it can be part of any message.
_OPEN = "\ufdd0"  # before a private text
_OTHERWISE = "\ufdd1"  # between it and the text that stands for it elsewhere
_CLOSE = "\ufdd2"  # after both
_MARKED = re.compile(f"{_OPEN}(.*?){_OTHERWISE}(.*?){_CLOSE}", re.DOTALL)
_MARKS = re.compile(f"[{_OPEN}{_OTHERWISE}{_CLOSE}]")

_redacted = False  # by --redact
_answers_in_json = False  # whether a failure is JSON, too
_holds_data = False  # whether standard output is the output of a release
_warnings = list[str]()  # of this run


def begin() -> None:
    """Forget what an earlier command of this process has set."""
    redact(False)
    reserve_stdout(False)
    answer_in_json(False)
    _warnings.clear()


def reserve_stdout(holds_data: bool) -> None:
    """Keep standard output for the output of a release: JSON then goes to standard error."""
    global _holds_data
    _holds_data = holds_data


def answer_in_json(is_json: bool = True) -> None:
    """Let a failure be JSON, as the result would be."""
    global _answers_in_json
    _answers_in_json = is_json


def is_answer_in_json() -> bool:
    """Return whether a failure is JSON."""
    return _answers_in_json


def is_stdout_reserved() -> bool:
    """Return whether standard output is the output of a release."""
    return _holds_data


def warnings() -> list[str]:
    """Return the warnings of this run, as a log may have them."""
    return list(_warnings)


def warn(message: str) -> None:
    """Print a warning on standard error, and keep it for JSON."""
    _warnings.append(printable(public(" ".join(message.split()))))
    print_message(f"warning: {message}")


def warn_of_library(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """Print a warning of Python, whose text may quote a cell of a file.

    That there is a ``DataWarning`` of a session depends on the data, so it is shown on a terminal alone.
    """
    if category.__name__ == "DataWarning":
        if not is_redacted():
            print_message(f"warning: {message}")
        return
    warn(private(str(message), category.__name__))


def redact(redacted: bool = True) -> None:
    """Withhold private text on terminals too, or no longer."""
    global _redacted
    _redacted = redacted


def is_redacted() -> bool:
    """Return whether private text is withheld: standard error is not a terminal, or ``--redact`` is given."""
    return _redacted or sys.stderr is None or not sys.stderr.isatty()


def private(text: str, otherwise: str) -> str:
    """Mark text that may quote a cell of a file; an error that is not shown on a terminal has the other text."""
    return f"{_OPEN}{_settled(text, withheld=False)}{_OTHERWISE}{_settled(otherwise, withheld=True)}{_CLOSE}"


def public(text: str) -> str:
    """Return a text as a log may have it: without what is private."""
    return _settled(text, withheld=True)


def _settled(text: str, *, withheld: bool) -> str:
    return _MARKS.sub("", _MARKED.sub(r"\2" if withheld else r"\1", text))


def printable(text: str) -> str:
    """Return one line in which every character that could disturb a terminal is escaped as in Python."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(text: str | Sequence[str], *, error: bool = False) -> None:
    """Print a text of several lines, or lines, on standard output or error; OSError if it cannot be printed."""
    stream = sys.stderr if error else sys.stdout
    if stream is None:  # it is closed
        return
    lines = text.split("\n") if isinstance(text, str) else text
    try:
        stream.write("".join(f"{printable(_settled(line, withheld=is_redacted()))}\n" for line in lines))
        stream.flush()
    except OSError as failure:
        failure.filename = f"standard {'error' if error else 'output'}"
        raise


def print_message(message: str) -> None:
    """Print a message of one line on standard error, if it can be printed."""
    with suppress(OSError):
        show([f"dpkernels: {' '.join(message.split())}"], error=True)
