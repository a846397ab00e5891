"""The state of JAX in this process: settings, forks after JAX has run, and a CPU client for the threads of a release.

This is the only file of the release code that uses private interfaces of JAX, because there are no public ones. Each
use has a tested fallback.

* Detection of whether JAX has run. A child process that is forked afterwards would wait forever for threads that it
  does not have. If the detection fails, the child is refused.
* A CPU client whose programs run in the calling thread. JAX's own client hands a program to other threads, which takes
  time to wake. Without this client the reports are the same, but slower.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from operator import attrgetter
from typing import Any

from dpkernels.jax_on_use import is_deferred, jax

_had_run = _after_fork = False


def jax_has_run() -> bool:
    """Return whether JAX has started its threads; True where it cannot be asked."""
    if is_deferred():
        return False
    try:
        from jax._src import xla_bridge

        return xla_bridge.backends_are_initialized()
    except (AttributeError, ImportError):
        return True


def _before_fork() -> None:
    global _had_run  # Determined before the fork: a lock that another thread held would never be released in the child.
    _had_run = _after_fork or jax_has_run()


def _note_fork() -> None:
    global _after_fork
    _after_fork = _had_run


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_note_fork)


def check_process() -> None:
    """Raise a RuntimeError if this process was forked from one in which JAX had run, and would wait forever."""
    if _after_fork:
        raise RuntimeError(
            "this process was forked after JAX had run, and JAX's threads are not in it; start workers by "
            "multiprocessing.get_context('spawn'), or fork before JAX runs"
        )


@cache
def calling_thread_device() -> Any:
    """Return a CPU device that runs a program in the thread that calls it, or JAX's own where there is none."""
    with _making_client:  # Several threads may ask for it at once.
        return _calling_thread_device()


_making_client = threading.Lock()


@cache
def _calling_thread_device() -> Any:
    try:
        from jax._src.lib import xla_client

        # The number of the client's threads, and of the parts that a program is cut into.
        before = os.environ.get("PJRT_NPROC")
        os.environ["PJRT_NPROC"] = "1"
        try:
            client: Any = xla_client.make_cpu_client(asynchronous=False, num_devices=1)
        finally:
            del os.environ["PJRT_NPROC"]
            if before is not None:
                os.environ["PJRT_NPROC"] = before
        return client.devices()[0]
    except (AttributeError, ImportError, TypeError):  # Another version of JAX.
        return jax.local_devices(backend="cpu")[0]


_current = attrgetter(
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_transfer_guard_host_to_device",
    "jax_transfer_guard_device_to_host",
    "jax_transfer_guard_device_to_device",
)
_UNCHANGED = nullcontext()


def kernel_settings(x64: bool | None = None) -> AbstractContextManager[None]:
    """Set JAX's options as the kernels need them, in this thread; with ``x64`` None, 64-bit types are as the user's."""
    types = _UNCHANGED if x64 is None else jax.enable_x64(x64)
    promotion, ranks, *guards = _current(jax.config)
    are_as_needed = promotion == "standard" and ranks == "allow" and {None, "allow"}.issuperset(guards)
    return types if are_as_needed else _imposed(types)


@contextmanager
def _imposed(types: AbstractContextManager[None]) -> Iterator[None]:
    # Setting the transfer guard takes as long as a release of a few values, so it is set only if necessary.
    standard, ranks = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with types, standard, ranks, jax.transfer_guard("allow"):
        yield
