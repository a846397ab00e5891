"""Requests to stop, and failures of a release that do not depend on its reports.

A request to stop raises KeyboardInterrupt, except in the few steps that must not be interrupted.

The user who starts a run sees whether it fails. If a failure depends on the reports, it reveals something about them:
for example, whether a compressed output fits on the disk. The charge for such a run is kept. A failure counts as
independent of the reports only if the code marks it so; all other failures count as dependent.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from dpkernels.proven import proven

_REQUESTS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
Handler = Callable[[int, FrameType | None], object]
_AGAIN_SECONDS = 0.02  # after which a request that was lost in a callback is sent again, when that has returned


@dataclass
class Requests:
    """The requests to stop that a command has had."""

    signal_number: int = 0  # the request that was seen
    finished: bool = False  # whether the work is done, so that requests come too late


_state = Requests()  # of the command that runs in this process


def _note(number: int, frame: FrameType | None) -> None:
    if not _state.finished:
        _state.signal_number = number


def _raise(number: int, frame: FrameType | None) -> None:
    _note(number, frame)
    raise_if_interrupted()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a request to stop has been kept."""
    if _state.signal_number:
        raise KeyboardInterrupt


def finished() -> None:
    """Note that the work is done: requests to stop come too late from here on."""
    _state.signal_number, _state.finished = 0, True


@contextmanager
def interruptible(requests: Requests, last: bool = False) -> Iterator[None]:
    """Let SIGTERM and SIGHUP behave as Ctrl-C does; after the ``last`` command, requests are ignored."""
    global _state
    _state = requests
    # A signal that the caller has set to be ignored (nohup) stays ignored.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    try:
        handlers = {request: _raise for request in _REQUESTS if signal.getsignal(request) in usual}
        with _handled(handlers, last), _raising_lost_requests():
            yield
    finally:
        _state = Requests()


@contextmanager
def _raising_lost_requests() -> Iterator[None]:
    """Raise an exception again that a callback, such as JAX's at a garbage collection, has printed and lost."""
    before, soon = sys.unraisablehook, list[threading.Timer]()

    def send(request: int) -> None:
        if request and (thread := threading.main_thread().ident) is not None:
            signal.pthread_kill(thread, request)

    def resend(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        soon.append(threading.Timer(_AGAIN_SECONDS, send, [_state.signal_number]))
        soon[-1].start()

    sys.unraisablehook = resend
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in soon:
            timer.cancel()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep requests to stop for ``raise_if_interrupted``, in steps of a few milliseconds."""
    heeded = [request for request in _REQUESTS if signal.getsignal(request) is not signal.SIG_IGN]
    with _handled(dict.fromkeys(heeded, _note)):
        yield


@contextmanager
def importing() -> Iterator[None]:
    """Let requests to stop wait for an import, up to a second: compiled modules crash if they are cut short."""
    with uninterrupted():
        yield
    raise_if_interrupted()


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler], last: bool = False) -> Iterator[None]:
    # Only the main thread may set handlers; elsewhere, signals are the caller's business.
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    before = {request: signal.signal(request, handler) for request, handler in handlers.items()}
    try:
        yield
    finally:
        for request, handler in before.items():
            signal.signal(request, signal.SIG_IGN if last else signal.SIG_DFL if handler is None else handler)


@contextmanager
def independent_of_reports() -> Iterator[None]:
    """Mark errors of steps that do not depend on the reports: reading and checking the input."""
    try:
        yield
    except Exception as error:
        mark_independent(error)
        raise


def mark_independent(error: BaseException) -> None:
    """Note that an error does not depend on the reports."""
    error.is_independent_of_reports = True  # type: ignore[attr-defined]


@proven("filters#proof")
def is_independent(error: BaseException) -> bool:
    """Return whether a run ended for a reason that does not depend on its reports.

    After a request to stop the run ends as interrupted, whatever the reports are and whatever else fails.
    """
    if _state.signal_number or isinstance(error, KeyboardInterrupt):
        return True
    cause: BaseException | None = error
    while cause is not None and not getattr(cause, "is_independent_of_reports", False):
        cause = cause.__cause__
    return cause is not None
