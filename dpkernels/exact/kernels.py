"""Integer samplers: random words in, outcomes out. Functions of arrays; every constant is compiled in.

Traced divisors and table sizes would be several times slower, so each table has its own compiled kernel. NumPy arrays
are computed on at once, without JAX: for few values that is far cheaper than a call of a compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jax import Array

from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.namespace import namespace, take

OutcomeKernel = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class AliasColumns:
    """Walker's alias table in integers: column c yields c where the word's low bits are below threshold[c].

    Attributes:
        threshold: one integer a column, 0 to 2^(bits - log_columns).
        alias: the outcome above the threshold.
        log_columns: log2 of the number of columns.
        bits: bits of a word.
    """

    threshold: np.ndarray
    alias: np.ndarray
    log_columns: int
    bits: int


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
    _check_masses(threshold, alias, capacity, weights)
    return AliasColumns(
        np.array(threshold, np.uint64).astype(f"uint{bits}"), np.array(alias, np.int32), log_columns, bits
    )


def _check_masses(threshold: list[int], alias: list[int], capacity: int, weights: list[int]) -> None:
    """Refuse columns that do not add up to the table's weights, so that what was certified is what is sampled."""
    masses = list(threshold)
    for column, other in enumerate(alias):
        masses[other] += capacity - threshold[column]
    if min(threshold) < 0 or max(threshold) > capacity or masses != weights + [0] * (len(masses) - len(weights)):
        raise CertificateError("alias columns: do not add up to the table's weights")


def alias_kernel(columns: AliasColumns) -> OutcomeKernel:
    """The sampler of columns: random word -> outcome, int32."""
    word = columns.threshold.dtype.type
    shift = word(columns.bits - columns.log_columns)
    mask = word((1 << int(shift)) - 1)

    def outcomes(r: Array) -> Array:
        column = (r >> shift).astype(np.int32)
        own = (r & mask) < take(columns.threshold, column)
        return namespace(r).where(own, column, take(columns.alias, column))

    return outcomes
