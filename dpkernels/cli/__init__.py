"""The command ``dpkernels``: this file turns every failure into one line and an exit code.

``commands`` has the subcommands. Heavy packages are imported when a subcommand runs, so that help answers at once.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

from dpkernels.cache_folder import keep_programs
from dpkernels.cli.errors import DONE, FAILED, error_document, error_message, exit_code, format_traceback
from dpkernels.cli.interrupts import Requests, interruptible
from dpkernels.cli.terminal import (
    answer_in_json,
    begin,
    is_answer_in_json,
    is_redacted,
    is_stdout_reserved,
    print_message,
    show,
    warn_of_library,
)
from dpkernels.jax_on_use import defer

_JSON = "--json"
_COMPLETE = "_DPKERNELS_COMPLETE"  # what a shell sets to ask for completions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: ``arguments``, or the process's own, which then ends with this.

    The exit codes are those of ``errors``. A release whose output and sidecar are in place is 0, even if no more can be
    printed. Every failure is one line on stderr, after its traceback with DPKERNELS_DEBUG=1 in the environment.
    """
    requests = Requests()
    begin()
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    answer_in_json(_JSON in command_line)
    try:
        with interruptible(requests, last=arguments is None), warnings.catch_warnings():
            warnings.showwarning = warn_of_library
            if arguments is None:
                # Open closed standard streams: else a file opened later becomes the stream that a library writes to.
                while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
                    os.set_inheritable(descriptor, True)
                os.close(descriptor)
                keep_programs()
                defer()
            return _run(command_line)
    except KeyboardInterrupt as error:
        return _fail(error, "interrupted")
    except Exception as error:
        return _failed(error, requests)


def _run(arguments: list[str]) -> int:
    import click

    from dpkernels.cli.commands import dpkernels

    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        with suppress(KeyError, ValueError):  # of what a shell did not set
            if (code := shell_complete(dpkernels, {}, "dpkernels", _COMPLETE, instruction)) == DONE:
                return code
        raise click.UsageError(f"{_COMPLETE}: {instruction!r}; it is bash_source, zsh_source or fish_source")
    try:
        with dpkernels.make_context("dpkernels", arguments) as context:
            dpkernels.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    if sys.stdout is not None:  # None if it is closed
        sys.stdout.flush()
    return DONE


def _failed(error: Exception, requests: Requests) -> int:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get("DPKERNELS_DEBUG") == "1":
        show(format_traceback(error, with_texts=not is_redacted()), error=True)
    if requests.finished:
        print_message(f"the output is complete; what came after failed: {error_message(error)}")
        return DONE
    if requests.signal_number:  # while a library was imported or ran, which made another error of it
        return _fail(error, "interrupted")
    if isinstance(error, BrokenPipeError) and not _consequence(error):
        return FAILED  # The reader of stdout has gone, and wants no message; but what was charged is told.
    return _fail(error, error_message(error), exit_code(error))


def _fail(error: BaseException, message: str, code: int = FAILED) -> int:
    consequence, as_json = _consequence(error), is_answer_in_json()
    if as_json:
        with suppress(OSError):
            show(json.dumps(error_document(error, message, code, consequence), indent=2), error=is_stdout_reserved())
    if not (as_json and is_stdout_reserved()):
        print_message(f"error: {message}" + (f" {consequence}" if consequence else ""))
    return code


def _consequence(error: BaseException) -> str:
    """Return what a failure left behind, such as a charge. It is not a note of the error: libraries add notes too."""
    return getattr(error, "left_behind", "")
