"""JAX's settings as the kernels need them, whatever the user has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter

import jax

_current = attrgetter(
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_transfer_guard_host_to_device",
    "jax_transfer_guard_device_to_host",
    "jax_transfer_guard_device_to_device",
)
_UNCHANGED = nullcontext()


def own_settings(x64: bool | None = None) -> AbstractContextManager[None]:
    """Set JAX's options as the kernels need them, in this thread; with ``x64`` None, 64-bit types are as the user's."""
    types = _UNCHANGED if x64 is None else jax.enable_x64(x64)
    promotion, ranks, *guards = _current(jax.config)
    own = promotion == "standard" and ranks == "allow" and {None, "allow"}.issuperset(guards)
    return types if own else _imposed(types)


@contextmanager
def _imposed(types: AbstractContextManager[None]) -> Iterator[None]:
    # Setting the transfer guard takes as long as a release of a few values, so it is set only if necessary.
    standard, ranks = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with types, standard, ranks, jax.transfer_guard("allow"):
        yield
