"""Stop a local Ray cluster when its driver ends: a script for a separate process, ``ray_watch.py SESSION``.

If the driver is killed, Ray stops most of the cluster, but its agents wait for a minute. This process waits for the end
of its standard input, which comes when the driver ends for any reason. A driver that has shut its cluster down first
writes a byte. The script imports only the standard library, and requires ``/proc``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GRACE_SECONDS = 1.0  # for processes that end by themselves
_TRIES = 20  # after each of which the processes may be gone


def left_over(session: str) -> Iterator[int]:
    """Yield the processes of a Ray session, by the files that they have open and the name that Ray gives them."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone
            if not (folder / "cmdline").read_bytes().startswith(b"ray::"):
                continue
            if any(f"/{session}/" in str(file.readlink()) for file in (folder / "fd").iterdir()):
                yield int(folder.name)


def end(session: str) -> None:
    """Kill the remaining processes of a session."""
    for _ in range(_TRIES):
        time.sleep(_GRACE_SECONDS)
        processes = list(left_over(session))
        if not processes:
            return
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


if __name__ == "__main__" and not sys.stdin.buffer.read(1):
    end(sys.argv[1])
