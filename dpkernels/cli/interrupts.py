"""Signals: a request to stop raises KeyboardInterrupt, except in the few steps that must not be cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_REQUESTS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


# Requests seen. An exception raised while JAX collects its garbage is swallowed there, so the request is kept too.
_seen: list[int] = []


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    _seen.append(number)
    raise KeyboardInterrupt


def stop_if_asked() -> None:
    """Raise what a request to stop should have raised already."""
    if _seen:
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP behave as Ctrl-C does, so that what cleans up after one cleans up after all."""
    # A signal that the caller has set to be ignored (nohup) stays ignored.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    _seen.clear()
    with _handled({request: _raise for request in _REQUESTS if signal.getsignal(request) in usual}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Requests to stop are ignored; for steps of a few milliseconds."""
    with _handled(dict.fromkeys(_REQUESTS, signal.SIG_IGN)):
        yield


@contextmanager
def _handled(handlers: dict[Any, Any]) -> Iterator[None]:
    # Only the main thread may set handlers; elsewhere, signals are the caller's business.
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    before = {request: signal.signal(request, handler) for request, handler in handlers.items()}
    try:
        yield
    finally:
        for request, handler in before.items():
            signal.signal(request, signal.SIG_DFL if handler is None else handler)
