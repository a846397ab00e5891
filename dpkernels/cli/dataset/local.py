"""The engine of one machine: threads of this process, a few parts at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dpkernels.cli.dataset.part import Secret, Versioned, Work, attempt
from dpkernels.cli.dataset.plan import Part
from dpkernels.release.engines import CORES

_MOST_THREADS = 16  # each holds about 100 MB


@dataclass(frozen=True)
class LocalEngine:
    """Every thread reads, perturbs and writes a part.

    Attributes:
        threads: how many.
    """

    threads: int = min(CORES, _MOST_THREADS)

    def ready(self) -> AbstractContextManager[None]:
        """It always is."""
        return nullcontext()

    def each(self, work: Work, job: Versioned, secret: Secret | None, parts: Sequence[Part]) -> Iterator[Any]:
        """What the work answers for the parts, in the order in which they are done."""
        waiting, running = iter(parts), set[Future[Any]]()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="parts")
        try:
            while True:
                for part in islice(waiting, self.threads - len(running)):
                    running.add(pool.submit(attempt, work, job, secret, part))
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for one in finished:
                    yield one.result()
        finally:
            pool.shutdown(cancel_futures=True)
