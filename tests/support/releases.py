"""Events of a release in pieces, for tests that would otherwise wait for some time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest

from dpkernels.release import engines


def stops(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set as soon as a release takes all its remaining pieces away, because one has failed."""
    stopped = threading.Event()

    class Deque(deque[Any]):
        def __init__(self, content: Iterable[Any] = (), maxlen: int | None = None) -> None:
            super().__init__(content, maxlen)
            if maxlen == 0:
                stopped.set()

    monkeypatch.setattr(engines, "deque", Deque)
    return stopped
