"""The command ``dpkernels``: this file turns every failure into one line and an exit code.

``commands`` has the subcommands. Heavy packages are imported when a subcommand runs, so that help answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from dpkernels.cache_folder import keep_programs
from dpkernels.cli.interrupts import Requests, interruptible

_EXTRAS = {"click": "cli", "matplotlib": "cli", "pyarrow": "cli", "ray": "ray", "rich": "cli"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: ``arguments``, or the process's own, which then ends with this.

    The exit code is 0, 2 for a wrong option or argument, 1 for anything else. A release whose output and sidecar are in
    place is 0, even if no more can be printed. Every failure is one line on stderr; with DPKERNELS_DEBUG=1 in the
    environment it is raised instead.
    """
    requests = Requests()
    try:
        with interruptible(requests, last=arguments is None):
            if arguments is None:
                # Open closed standard streams: else a file opened later becomes the stream that a library writes to.
                while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
                    os.set_inheritable(descriptor, True)
                os.close(descriptor)
                keep_programs()
            return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt as error:
        return _fail(error, "interrupted")
    except Exception as error:
        return _failed(error, requests)


def _run(arguments: list[str]) -> int:
    import click

    from dpkernels.cli.commands import dpkernels

    try:
        with dpkernels.make_context("dpkernels", arguments) as context:
            dpkernels.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    if sys.stdout is not None:  # None if it is closed
        sys.stdout.flush()
    return 0


def _failed(error: Exception, requests: Requests) -> int:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, OSError) and not error.filename:
        from traceback import walk_tb

        import click

        # An error that arose while text was printed names no file.
        if any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__)):
            error.filename = "standard output"
    if os.environ.get("DPKERNELS_DEBUG") == "1":
        raise error
    if requests.finished:
        _say(f"the output is complete; what came after failed: {_message(error)}")
        return 0
    if requests.asked:  # while a library was imported or ran, which made another error of it
        return _fail(error, "interrupted")
    if isinstance(error, BrokenPipeError):  # the reader of stdout has gone, and wants no message
        return 1
    return _fail(error, _message(error), getattr(error, "exit_code", 1))


def _fail(error: BaseException, message: str, code: int = 1) -> int:
    # The files that the failure left behind. They are not a note of the error, since libraries add notes too.
    left = getattr(error, "left_behind", "")
    _say(f"error: {message}" + (f" {left}" if left else ""))
    return code


def _say(message: str) -> None:
    with suppress(OSError):
        if sys.stderr is not None:  # else print would take stdout
            print(f"dpkernels: {' '.join(message.split())}", file=sys.stderr)


def _message(error: Exception) -> str:
    if hasattr(error, "format_message"):  # click's own errors
        return error.format_message()
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in _EXTRAS:
            return f"{package} is not installed; pip install '.[{_EXTRAS[package]}]' in a clone of dpkernels"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (ValueError, OSError)) and str(error):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (DPKERNELS_DEBUG=1 shows where)"
