"""The command ``dpkernels``. This file turns every failure into one line and an exit code; ``commands`` has the rest.

Nothing heavy is imported before a subcommand runs, so that help answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from dpkernels.cli.interrupts import interruptible

_EXTRAS = {"click": "cli", "pyarrow": "cli", "rich": "cli", "matplotlib": "plot"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what follows ``dpkernels``; by default the process's own.

    Returns:
        The exit code: 0, 2 for a wrong option or argument, 1 for anything else. Every failure is one line on
        stderr; with DPKERNELS_DEBUG=1 in the environment it is raised instead.
    """
    try:
        with interruptible():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
            sys.stdout.flush()
            return code
    except KeyboardInterrupt as error:
        return _fail("interrupted" + _also(error))
    except BrokenPipeError:
        # The reader of stdout has gone: Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("DPKERNELS_DEBUG") == "1":
            raise
        return _fail(_message(error) + _also(error), getattr(error, "exit_code", 1))


def _run(arguments: list[str]) -> int:
    import click

    from dpkernels.cli.commands import dpkernels

    try:
        with dpkernels.make_context("dpkernels", arguments) as context:
            dpkernels.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def _fail(message: str, code: int = 1) -> int:
    print(f"dpkernels: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _also(error: BaseException) -> str:
    """What the failure left behind, where something did. Not a note of the error: libraries add notes too."""
    return f" {left}" if (left := getattr(error, "left_behind", "")) else ""


def _message(error: Exception) -> str:
    if hasattr(error, "format_message"):  # click's own errors
        return error.format_message()
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in _EXTRAS:
            return f"{package} is not installed; pip install 'dpkernels[{_EXTRAS[package]}]'"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (ValueError, OSError)) and str(error):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (DPKERNELS_DEBUG=1 shows where)"
