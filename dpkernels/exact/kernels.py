"""Integer samplers: random words in, outcomes out. Functions of arrays; every constant is compiled in.

Traced divisors and table sizes would be several times slower, so each table has its own compiled kernel. NumPy arrays
are computed on at once, without JAX: for few values that is far cheaper than a call of a compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from dpkernels.exact.certificate import CertificateError
from dpkernels.numerics import RealArray, namespace

OutcomeKernel = Callable[[RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class AliasColumns:
    """Walker's alias table in integers: column c yields c where the word's low bits are below threshold[c].

    Attributes:
        packed: of every column its threshold and, in the last ``log_columns`` bits, its alias: one look-up finds both.
        log_columns: log2 of the number of columns.
        bits: bits of a word, and of a packed entry.
    """

    packed: np.ndarray
    log_columns: int
    bits: int

    @property
    def threshold(self) -> np.ndarray:
        """One integer a column, below 2^(bits - log_columns); 0 for a column that is all its own."""
        return self.packed >> self.packed.dtype.type(self.log_columns)

    @property
    def alias(self) -> np.ndarray:
        """The outcome from the threshold on, int32."""
        return (self.packed & self.packed.dtype.type((1 << self.log_columns) - 1)).astype(np.int32)


def take(table: np.ndarray, at: RealArray) -> RealArray:
    """``table[at]`` for indices that are within it, NumPy's or JAX's."""
    if namespace(at) is np:
        return table.take(at)
    return jnp.asarray(table).at[at].get(mode="promise_in_bounds")


def alias_columns(weights: list[int], bits: int) -> AliasColumns:
    """Exact alias columns of weights that sum to 2^bits.

    All columns hold 2^bits / columns weight; outcomes past the last have none. Vose's construction, in integers:
    a light column is filled up from a heavy one, which loses as much.
    """
    log_columns = (len(weights) - 1).bit_length()
    capacity = 1 << (bits - log_columns)
    left = weights + [0] * ((1 << log_columns) - len(weights))
    threshold, alias = list(left), list(range(1 << log_columns))
    light = [c for c, weight in enumerate(left) if weight < capacity]
    heavy = [c for c, weight in enumerate(left) if weight > capacity]
    while light:
        small, large = light.pop(), heavy[-1]
        threshold[small], alias[small] = left[small], large
        left[large] -= capacity - left[small]
        if left[large] <= capacity:
            heavy.pop()
            threshold[large] = left[large]
            if left[large] < capacity:
                light.append(large)
    # A full column, whose threshold has a bit too many and whose alias is itself, is as well one with threshold 0.
    packed = [below % capacity << log_columns | other for below, other in zip(threshold, alias, strict=True)]
    columns = AliasColumns(np.array(packed, f"uint{bits}"), log_columns, bits)
    _check_masses(columns, weights)
    return columns


def _check_masses(columns: AliasColumns, weights: list[int]) -> None:
    """Refuse columns that do not add up to the table's weights, so that what was certified is what is sampled."""
    capacity, threshold = 1 << (columns.bits - columns.log_columns), columns.threshold.tolist()
    masses = list(threshold)
    for below, other in zip(threshold, columns.alias.tolist(), strict=True):
        masses[other] += capacity - below
    if masses != weights + [0] * (len(masses) - len(weights)):
        raise CertificateError("alias columns: do not add up to the table's weights")


def alias_kernel(columns: AliasColumns) -> OutcomeKernel:
    """The sampler of columns: random word -> outcome, int32.

    With the word's column bits shifted out and ones in their place, it is below the packed entry exactly where its low
    bits are below the threshold, whatever the alias.
    """
    word = columns.packed.dtype.type
    log_columns, shift = word(columns.log_columns), word(columns.bits - columns.log_columns)
    ones = word((1 << columns.log_columns) - 1)

    def outcomes(r: RealArray) -> RealArray:
        column = (r >> shift).astype(np.int32)
        entry = take(columns.packed, column)
        return namespace(r).where((r << log_columns | ones) < entry, column, (entry & ones).astype(np.int32))

    return outcomes
