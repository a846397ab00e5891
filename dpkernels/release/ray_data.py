"""Perturbation of a ``ray.data.Dataset``, with the same noise if Ray recomputes a block.

Ray Data has no row numbers, and recomputes a block when the machine that held it is lost. New noise would make a second
report about the same people. The same noise for different values would disclose the difference of the values. Therefore
the dataset is computed once, its rows are numbered in the order of its blocks, and a keyed hash of every block's values
is stored. A task receives a block, the number of its first row, and that hash. If the values differ, because the
pipeline is random or its source has changed, the task fails; otherwise the reports are the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from dpkernels.exact.registry import exact_sampler
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import AdditiveVector
from dpkernels.random.keys import column_secret
from dpkernels.release import containers
from dpkernels.release.engines import exact_engine, in_chunks
from dpkernels.release.inputs import Bounds

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data


@dataclass(frozen=True, repr=False)
class BlockSecrets:
    """Two secret keys of 32 bytes, for the noise and for the hashes, as an argument of tasks that is never printed."""

    noise: bytes
    hashes: bytes


def perturb_dataset(
    dataset: ray.data.Dataset, mechanisms: Mapping[str, object], clip: bool = False
) -> ray.data.Dataset:
    """Perturb some columns of a ``ray.data.Dataset``, and return it with reports in their places; see ``perturb``.

    The whole dataset is computed once and kept in Ray's object store, as are its reports. The key is generated here and
    known only to this process and its tasks. It cannot be an argument, since the order of blocks is not reproducible.
    """
    import ray
    import ray.cloudpickle as pickle
    import ray.data

    samplers = {name: exact_sampler(mechanism) for name, mechanism in mechanisms.items()}
    for name, sampler in samplers.items():
        if not isinstance(sampler, ExactSampler) or isinstance(sampler.mechanism, AdditiveVector):
            mechanism_type = type(mechanisms[name]).__name__
            raise TypeError(f"column {name!r}: {mechanism_type} is on vectors; a column holds single values")
    names = list(dataset.columns() or ())  # none of a dataset without rows
    for name in mechanisms if names else ():
        if names.count(name) != 1:
            raise ValueError(f"mechanism: no column {name!r}; the dataset has {', '.join(names)}")
    # The tasks unpickle the samplers of the columns, and whether values are clipped to the interval.
    secrets, described = fresh_secrets(), ray.put(pickle.dumps((samplers, clip)))
    blocks = dataset.to_arrow_refs()
    number = ray.remote(number_rows).options(max_retries=10)
    row_counts_and_hashes = ray.get([number.remote(block, described, secrets) for block in blocks])
    firsts = list(accumulate((rows for rows, _ in row_counts_and_hashes), initial=0))
    if not firsts[-1]:
        raise ValueError("x: is empty; at least one value is needed")
    perturb = ray.remote(perturb_block).options(num_returns=2, max_retries=10)
    numbered_blocks = zip(blocks, firsts, row_counts_and_hashes, strict=False)
    released = [perturb.remote(block, described, secrets, first, *numbers) for block, first, numbers in numbered_blocks]
    for problem in ray.get([problem for _, problem in released]):
        if problem is not None:
            raise ValueError(problem)
    return ray.data.from_arrow_refs([block for block, _ in released])


def fresh_secrets() -> BlockSecrets:
    """Return two keys of the operating system."""
    return BlockSecrets(os.urandom(32), os.urandom(32))


def number_rows(block: pa.Table, described: bytes, secrets: BlockSecrets) -> tuple[int, bytes]:
    """Return the number of rows of a block and the hash of its values. Invalid values are reported later."""
    return len(block), _hash(block, unpickle(described)[0], secrets)


def perturb_block(
    block: pa.Table, described: bytes, secrets: BlockSecrets, first: int, rows: int, expected_hash: bytes
) -> tuple[pa.Table, str | None]:
    """Return the reports of a block whose first row has this number, or the errors in its values.

    Errors are returned, because Ray writes exceptions to logs. A RuntimeError says, without a value, that the block has
    other rows or another hash than when rows were numbered.
    """
    samplers, clip = unpickle(described)
    if len(block) != rows or _hash(block, samplers, secrets) != expected_hash:
        raise RuntimeError(
            "a block was computed again, with other values: the pipeline behind it is not deterministic, and noise is "
            "not used for two values; materialise it (write it to files) and perturb those"
        )
    if not block.column_names:  # of a block without rows
        return block, None
    jax.config.update("jax_platforms", "cpu")
    reports = {}
    for name, sampler in samplers.items():
        try:
            values, rewrap = containers.unwrap(block.column(name))
            engine = exact_engine(sampler, column_secret(secrets.noise, name))
            reports[name] = rewrap(in_chunks(engine, Bounds.of(sampler, clip), values, start=first, row=0))
        except (KeyError, TypeError, ValueError) as error:
            return None, f"column {name!r}, block that begins with row {first}: {error}"
    return containers.replace_columns(block, reports), None


def _hash(block: pa.Table, names: Iterable[str], secrets: BlockSecrets) -> bytes:
    """Return a keyed hash, from which the values cannot be learned without the key."""
    digest = hashlib.blake2b(key=secrets.hashes, digest_size=32)
    for name in names:
        try:
            values, _ = containers.unwrap(block.column(name))
        except (KeyError, TypeError, ValueError):  # it will be refused
            values = np.zeros(0)
        digest.update(f"{name!r} {values.dtype} {len(values)};".encode() + values.tobytes())
    return digest.digest()


@lru_cache(maxsize=4)
def unpickle(described: bytes) -> Any:
    """Return an unpickled object, read once in a process so that its sampler is compiled once."""
    import ray.cloudpickle as pickle

    return pickle.loads(described)
