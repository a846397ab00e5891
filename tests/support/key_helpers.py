"""Keys of columns and of samples, for tests that make a release again."""

from __future__ import annotations

from jax import Array

import dpkernels as dpk
from dpkernels.random import host
from dpkernels.random.keys import column_secret


def numbered_key(secret: bytes, number: int) -> Array:
    """Return the key with a number folded in: another sample for every number."""
    return dpk.key_from_bytes(host.fold_in(secret, number))


def column_key(secret: bytes, name: str | None) -> Array:
    """Return the key of a released column; an array in a file has the number 0 in the place of a name."""
    return numbered_key(secret, 0) if name is None else dpk.key_from_bytes(column_secret(secret, name))
