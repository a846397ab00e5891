r"""Poisson samples of a data set with a static shape, for use inside ``jit``.

**Positions.** In floating point, the gradient of an example may depend on its position in the batch, because vector
instructions round in another order than the scalar instructions for the last rows. If rows were in the order of the
data, an additional example would move the rows after it, and so change the sum by more than its own gradient. Rows
therefore have random positions.

The sum then keeps its sensitivity. Let f_p be the gradient of an example at position p, a function of this example
alone. The m rows of a batch have m different positions, uniformly at random. In a batch of m + 1 rows, the positions of
the first m rows have the same distribution. Couple both batches such that these positions agree. Then the sums differ
by f_p of one example, which is clipped. The positions do not depend on the data and are not disclosed, so the mixture
over them costs no more than each of them (joint convexity).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from scipy.stats import binom

from dpkernels import checks
from dpkernels.random.keys import check_release_key
from dpkernels.release.traced import device_axes
from dpkernels.shapes import Bool, Int


class PoissonBatch(NamedTuple):
    """A sample with a static shape: its rows at random places, and row 0 at the others; ``mask`` says which count."""

    indices: Int[Array, " capacity"]
    mask: Bool[Array, " capacity"]


def poisson_batch(key: Array, examples: int, rate: float, capacity: int) -> PoissonBatch:
    """Draw a Poisson sample of the rows of a data set, with a static shape, inside ``jit`` or outside.

    Every row is in the sample with probability floor(2^32 rate)/2^32, independently, and stands at a random place. If
    the sample has more rows than the capacity, the batch is empty. ``poisson_overflow`` bounds the probability of that;
    account for it. The key is a ChaCha20 key of this step alone, different from the key of the noise.
    ``poisson_capacity`` proposes a capacity.

    Raises:
        TypeError: key is not a ChaCha20 key.
        ValueError: an argument is out of range, or several devices run the program, in ``shard_map`` or ``pmap``. All
            would draw the same rows. Draw the batch outside, and split it over the devices.
    """
    check_release_key(key)
    checks.within("rate", rate, 2.0**-32, 1.0)
    checks.integer_in("capacity", capacity, 1, 1 << 31)
    if axes := device_axes():
        raise ValueError(
            f"key: all devices along {axes[0]!r} would draw the same rows; draw the batch outside shard_map"
        )
    threshold = int(rate * 2.0**32)
    hits = jax.random.bits(key, (examples,), jnp.uint32) <= jnp.uint32(threshold - 1)
    return shuffled_batch(key, hits, capacity)


def shuffled_batch(key: Array, hits: Bool[Array, " examples"], capacity: int) -> PoissonBatch:
    """Return the rows that hit at random places of a batch, which is empty if they are more than its capacity."""
    count = hits.sum()
    (indices,) = jnp.nonzero(hits, size=capacity, fill_value=0)
    words = jax.random.bits(jax.random.fold_in(key, 0), (2, capacity), jnp.uint32)
    order = jnp.lexsort((words[0], words[1]))
    ordered = words[:, order]
    # Equal words, which the order of a sort would decide, make the batch empty. They do not depend on the data, and
    # otherwise all orders are equally probable: so this costs nothing.
    is_tied = (ordered[:, 1:] == ordered[:, :-1]).all(0).any()
    is_row = (jnp.arange(capacity) < count) & (count <= capacity) & ~is_tied
    return PoissonBatch(indices[order], is_row[order])


def poisson_overflow(examples: int, rate: float, capacity: int) -> float:
    """Return a bound on the probability that a Poisson sample has more rows than the capacity.

    It holds for a data set of ``examples`` rows and for its neighbours, which may have one row more.
    """
    checks.within("rate", rate, 0.0, 1.0)
    return float(binom.sf(capacity, examples + 1, rate)) * (1 + 1e-6)


def poisson_capacity(examples: int, rate: float, overflow: float = 1e-15) -> int:
    """Return the smallest capacity whose ``poisson_overflow`` is at most ``overflow``: at most ``examples + 1``."""
    checks.within("overflow", overflow, 0.0, 1.0)
    capacity = max(1, int(binom.isf(overflow, examples + 1, rate)))
    while poisson_overflow(examples, rate, capacity) > overflow:
        capacity += 1
    return capacity
