"""Threads that release the pieces of a vector: the calling thread, and those of a pool that join it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import Any

from dpkernels.release.process import forget_after_fork

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def release_pieces(
    release: Callable[[int, int], int], ends: Sequence[int], workers: int, advance: Callable[[int], Any]
) -> int:
    """Release all pieces of a vector, and return the number of values.

    Args:
        release: releases the values from one index up to another one, and returns their number.
        ends: where the pieces begin, and where the last one ends.
        workers: the largest number of threads.
        advance: called in the calling thread with the number of values of a completed piece.

    Raises:
        BaseException: of several pieces that failed, the error of the first one.
    """
    pieces, done, failed = iter(list(pairwise(ends))), deque[int](), dict[int, BaseException]()
    reported, tasks = 0, list[Future[None]]()

    def work(report: Callable[[], Any] = lambda: None) -> None:
        for first, end in pieces:
            try:
                done.append(release(first, end))
            except BaseException as error:  # Whatever it is, reports are missing.
                failed[first] = error
                _exhaust(pieces)
            report()

    def report() -> None:
        nonlocal reported
        while done:
            reported += (finished := done.popleft())
            advance(finished)

    try:
        tasks.extend(_pool(workers).submit(work) for _ in range(min(workers, len(ends) - 1) - 1))
        work(report)
    finally:
        # No thread writes to the reports after this returns, also if an exception ended it.
        _exhaust(pieces)
        wait([task for task in tasks if not task.cancel()])
    if failed:
        raise failed[min(failed)]
    report()
    return reported


def _exhaust(pieces: Iterator[tuple[int, int]]) -> None:
    """Stop handing out further pieces."""
    deque(pieces, maxlen=0)


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Return the threads of all releases of this process; they outlive a call."""
    return ThreadPoolExecutor(workers, thread_name_prefix="dpkernels")


forget_after_fork(_pool.cache_clear)
