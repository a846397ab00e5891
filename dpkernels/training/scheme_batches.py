"""Batches of a random allocation and of a fixed size with static shapes, for use inside ``jit``.

Account for them with ``Guarantee.random_allocation`` and ``Guarantee.sample_fixed`` (docs/sampling.md). The functions
state their distance s to the exact scheme, in total variation: T of them add at most T s (1 + e^epsilon) to delta.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from dpkernels import checks
from dpkernels.random.keys import check_release_key
from dpkernels.release.traced import device_axes
from dpkernels.shapes import Int
from dpkernels.training.batches import PoissonBatch, shuffled_batch


def random_assignment(key: Array, examples: int, steps: int) -> Int[Array, " {examples}"]:
    """Return a random step of one epoch, 0 to steps - 1, for every row of a data set.

    Draw an assignment of its own for every epoch, from a key that serves nothing else. The step of a row is a distance
    s of at most steps/2^33 from a uniform one, once an epoch.

    Raises:
        TypeError: key is not a ChaCha20 key.
        ValueError: an argument is out of range, or several devices run the program, in ``shard_map`` or ``pmap``.
    """
    _check_key(key)
    checks.integer_in("examples", examples, 1, 1 << 31)
    checks.integer_in("steps", steps, 1, 1 << 16)
    high, low = jnp.divmod(jax.random.bits(key, (examples,), jnp.uint32), jnp.uint32(1 << 16))
    # The upper 32 bits of 48-bit products, word by word: floor(bits steps/2^32).
    count = jnp.uint32(steps)
    return ((high * count + ((low * count) >> 16)) >> 16).astype(jnp.int32)


def allocated_batch(key: Array, assignment: Int[Array, " examples"], step: Array | int, capacity: int) -> PoissonBatch:
    """Return the rows that are assigned to a step, at random places of a batch with a static shape (``batches.py``).

    If there are more rows than the capacity, the batch is empty. ``poisson_overflow(examples, allocation_rate(steps),
    capacity)`` bounds the probability of that; it is a distance s of every batch. The key is a ChaCha20 key of this
    step alone, different from that of the assignment.

    Raises:
        TypeError: key is not a ChaCha20 key.
        ValueError: the capacity is out of range, or several devices run the program, in ``shard_map`` or ``pmap``.
    """
    _check_key(key)
    checks.integer_in("capacity", capacity, 1, 1 << 31)
    return shuffled_batch(key, assignment == step, capacity)


def allocation_rate(steps: int) -> float:
    """Return a bound on the probability that ``random_assignment`` gives a row one of so many steps."""
    return min(1.0, 1 / steps + 2.0**-32)


def fixed_batch(key: Array, examples: int, batch: int) -> Int[Array, " {batch}"]:
    """Return the row numbers of a uniformly random subset of ``batch`` rows, drawn without replacement.

    The rows have random words of 64 bits, and those of the least words are drawn. Equal words are a distance s of at
    most examples^2/2^65.

    Raises:
        TypeError: key is not a ChaCha20 key.
        ValueError: an argument is out of range, or several devices run the program, in ``shard_map`` or ``pmap``.
    """
    _check_key(key)
    checks.integer_in("examples", examples, 1, 1 << 31)
    checks.integer_in("batch", batch, 1, examples)
    words = jax.random.bits(key, (2, examples), jnp.uint32)
    return jnp.lexsort((words[0], words[1]))[:batch]


def _check_key(key: Array) -> None:
    check_release_key(key)
    if axes := device_axes():
        raise ValueError(
            f"key: all devices along {axes[0]!r} would draw the same rows; draw the batch outside shard_map"
        )
