"""Requests to stop, and failures of a release that do not depend on its reports.

A request to stop raises KeyboardInterrupt, except in the few steps that must not be cut short.

The user who starts a run sees whether it fails. If that depends on the reports, each failed run says something about
them: whether a compressed output fits on the disk, for example. The charge for such a run is kept. A failure is
independent of the reports only where the code says so; every other failure counts as dependent.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_REQUESTS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_AGAIN_SECONDS = 0.02  # after which a request that was lost in a callback is sent again, when that has returned


@dataclass
class _State:
    """The state of the command that runs in this process.

    Attributes:
        asked: the request to stop that was seen; 0 for none.
        finished: whether the work is done, so that requests come too late.
    """

    asked: int = 0
    finished: bool = False


_state = _State()


def _note(number: int, frame: FrameType | None) -> None:
    if not _state.finished:
        _state.asked = number


def _raise(number: int, frame: FrameType | None) -> None:
    _note(number, frame)
    stop_if_asked()


def was_asked() -> bool:
    """Return whether there was a request to stop; libraries turn its exception into others."""
    return _state.asked != 0


def is_finished() -> bool:
    """Return whether what was asked for is done, whatever fails after it."""
    return _state.finished


def stop_if_asked() -> None:
    """Raise what a request to stop should have raised already."""
    if _state.asked:
        raise KeyboardInterrupt


def finished() -> None:
    """Requests to stop come too late from here on: what was asked for is done."""
    _state.asked, _state.finished = 0, True


@contextmanager
def interruptible(last: bool = False) -> Iterator[None]:
    """SIGTERM and SIGHUP behave as Ctrl-C does, so that what cleans up after one cleans up after all.

    Args:
        last: the process ends with this, and requests to stop that come after it are ignored.
    """
    _state.asked, _state.finished = 0, False
    # A signal that the caller has set to be ignored (nohup) stays ignored.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    with _handled({request: _raise for request in _REQUESTS if signal.getsignal(request) in usual}, last), _heard():
        yield


@contextmanager
def _heard() -> Iterator[None]:
    """An exception raised in a callback, such as JAX's at a garbage collection, is printed and lost: raise it again."""
    before, soon = sys.unraisablehook, list[threading.Timer]()

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        soon.append(threading.Timer(_AGAIN_SECONDS, _send, [_state.asked]))
        soon[-1].start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in soon:
            timer.cancel()


def _send(request: int) -> None:
    if request and (thread := threading.main_thread().ident) is not None:
        signal.pthread_kill(thread, request)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Requests to stop are kept for ``stop_if_asked``; for steps of a few milliseconds."""
    heeded = [request for request in _REQUESTS if signal.getsignal(request) is not signal.SIG_IGN]
    with _handled(dict.fromkeys(heeded, _note)):
        yield


@contextmanager
def importing() -> Iterator[None]:
    """Requests to stop wait for an import, up to a second: compiled modules crash if they are cut short."""
    with uninterrupted():
        yield
    stop_if_asked()


@contextmanager
def _handled(handlers: dict[Any, Any], last: bool = False) -> Iterator[None]:
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
    """Mark errors of steps that would fail in the same way whatever the reports are: reading and checking the input."""
    try:
        yield
    except Exception as error:
        mark_independent(error)
        raise


def mark_independent(error: BaseException) -> None:
    """Note that an error does not depend on the reports."""
    error.is_independent_of_reports = True  # type: ignore[attr-defined]


def is_independent(error: BaseException) -> bool:
    """Return whether a run ended for a reason that does not depend on its reports.

    Once there is a request to stop, the run ends as interrupted whatever the reports are, and whatever else fails.
    """
    if was_asked() or isinstance(error, KeyboardInterrupt):
        return True
    causes: BaseException | None = error
    while causes is not None:
        if getattr(causes, "is_independent_of_reports", False):
            return True
        causes = causes.__cause__
    return False
