"""Engines that run the parts of a dataset: threads of this process, or tasks on a Ray cluster.

Ray runs a task again if its worker or machine dies. The key is a separate argument of a task, of a few bytes. Ray keeps
it in the description of the task, in the memory of the driver and of the workers. Only the job is in the object store,
which may be written to disks. ``release.ray_data`` cannot use these tasks: its blocks have no file size and time to
check, so it hashes their values, and its reports stay on the cluster.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import ClassVar

import click

from dpkernels.cli.dataset import ray_watch
from dpkernels.cli.dataset.perturb import Part, Secret, Task, TaskError, run_task
from dpkernels.cli.errors import error_text
from dpkernels.cli.options import OptionValues
from dpkernels.jax_on_use import jax
from dpkernels.release.engines import CORES
from dpkernels.release.ray_data import unpickle

_MAX_THREADS = 16  # each holds about 100 MB


@dataclass(frozen=True)
class LocalEngine:
    """Threads, each of which reads, perturbs and writes a part."""

    threads: int = min(CORES, _MAX_THREADS)
    gpus: ClassVar[int] = 0  # of a part

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def map_unordered(self, task: Task, job: object, secret: Secret | None, parts: Iterable[Part]) -> Iterator[object]:
        """Yield the results of the task for the parts as they are done."""
        waiting, running = iter(parts), set[Future[object]]()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="parts")
        try:
            while True:
                for part in islice(waiting, self.threads - len(running)):
                    running.add(pool.submit(run_task, task, job, secret, part))
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for task_of_part in finished:
                    yield task_of_part.result()
        finally:
            pool.shutdown(cancel_futures=True)


_IN_FLIGHT = 1000  # tasks that Ray knows at a time: enough for its autoscaler, little for its memory
_STOP_SECONDS = 30.0  # for tasks that are cancelled to end
_STORE_BYTES = 80 << 20  # of the object store of a cluster of our own, Ray's least; it holds one job


@dataclass(frozen=True)
class RayEngine:
    """Tasks on a cluster, and the resources of each."""

    address: str = ""  # of a cluster; empty for one of this machine, that begins and ends with the release
    cpus: float = 1
    gpus: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    retries: int = 10  # of one part

    def map_unordered(self, task: Task, job: object, secret: Secret | None, parts: Iterable[Part]) -> Iterator[object]:
        """Yield the results as threads do; OSError if a part failed as often as it may be tried."""
        import ray
        import ray.cloudpickle as pickle

        with self.ready():
            described = ray.put(pickle.dumps((task, job)))
            options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": dict(self.resources)}
            options |= {"max_retries": self.retries, "retry_exceptions": [OSError]}
            remote = ray.remote(_task)
            waiting, running = iter(parts), dict[object, Part]()
            try:
                while True:
                    for part in islice(waiting, _IN_FLIGHT - len(running)):
                        task_of_part = remote.options(name=f"part {part.number}", **options)
                        running[task_of_part.remote(described, secret, part, self.gpus)] = part
                    if not running:
                        return
                    for finished in ray.wait(list(running))[0]:
                        part = running.pop(finished)
                        try:
                            answer = ray.get(finished)
                        except ray.exceptions.RayError as error:
                            problem = getattr(error, "cause", None) or error
                            # Ray's own messages have many lines; the first one has the problem.
                            text = error_text(problem).strip().partition("\n")[0]
                            named = f"{part.file}, part {part.number}: {type(problem).__name__}"
                            raise OSError(f"{named}: {text}") from None
                        yield answer
            finally:
                for finished in running:
                    ray.cancel(finished, force=True)
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=_STOP_SECONDS)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Connect to the cluster for as long as it is needed; use a connection that the caller has."""
        import ray

        if ray.is_initialized():
            yield
            return
        # Ray sends usage statistics to its makers unless this is off.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings = {} if self.address else {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
        if not self.address:  # else Ray leaves a token in the home folder, which opens later clusters to its readers
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        stop = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self.address or "local", log_to_driver=False, logging_level="ERROR", **settings)
        except ConnectionError as error:
            raise OSError(f"--address: {self.address}: {error_text(error)}") from error
        _restore(stop)
        with nullcontext() if self.address else _watched(ray.nodes()[0]["ObjectStoreSocketName"]):
            try:
                available = ray.cluster_resources()
                for name, amount in {"CPU": self.cpus, "GPU": self.gpus, **self.resources}.items():
                    # A cluster of our own does not grow: tasks would hang.
                    if not self.address and amount > available.get(name, 0):
                        problem = f"a task needs {amount:g} {name}, this machine has {available.get(name, 0):g}"
                        raise click.UsageError(f"--engine ray: {problem}; --address names a cluster")
                yield
            finally:
                ray.shutdown()
                _restore(stop)


Engine = LocalEngine | RayEngine


@contextmanager
def _watched(socket: str) -> Iterator[None]:
    """End what Ray leaves of a cluster of our own if this process is killed, given a file among its sockets."""
    session = Path(socket).parent.parent.name
    command = [sys.executable, "-I", "-S", ray_watch.__file__, session]
    pipe, devnull = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=devnull, stderr=devnull, start_new_session=True) as watch:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                watch.communicate(b".")


def _restore(handler: Callable[[int, FrameType | None], object] | int | None) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _task(described: bytes, secret: Secret | None, part: Part, gpus: int) -> object:
    task, job = unpickle(described)
    if not gpus:  # a machine's accelerators are for those who asked for them
        jax.config.update("jax_platforms", "cpu")
    try:
        return run_task(task, job, secret, part)
    except OSError:
        raise  # to be tried again; its words are of the system
    except Exception as error:  # Ray keeps exceptions where others read them, and any other may name a value
        return TaskError(f"{part.file}: {type(error).__name__}: {error_text(error)}")


def engine(options: OptionValues) -> Engine:
    """Return the engine that the options describe, by name; None or empty where one was not given."""
    settings = {name: value for name, value in options.items() if name != "engine" and value not in (None, ())}
    if options["engine"] != "ray":
        if settings:
            raise click.UsageError(f"--{next(iter(settings)).replace('_', '-')}: is for --engine ray")
        return LocalEngine()
    if settings.get("address", "").startswith("ray://"):
        raise click.UsageError(
            "--address: behind ray:// another process would be the driver and hold the key; run this command on a "
            "machine of the cluster, with --address auto"
        )
    resources = dict[str, float]()
    for text in settings.pop("task_resource", ()):
        name, _, amount_text = text.partition("=")
        amount = 0.0
        with suppress(ValueError):
            amount = float(amount_text)
        if not (name and amount > 0):
            raise click.UsageError(f"--task-resource: {text!r} is not NAME=N, N positive")
        resources[name] = amount
    return RayEngine(resources=resources, **{name.removeprefix("task_"): value for name, value in settings.items()})
