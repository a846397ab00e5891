"""Integer samplers: random words in, output codes out. Functions of arrays; every constant is compiled in.

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
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.windows.table import WindowTable

CodeKernel = Callable[[Array, Array], Array]
NoiseKernel = Callable[[Array], Array]


def code_kernel(table: WindowTable) -> CodeKernel:
    """The sampler of a table: (random word, row) -> code, both of one shape; the word has ``table.bits`` bits."""
    if table.is_flat:
        return _division_kernel(table)
    outcomes, n = _alias_kernel(alias_columns(table.outcomes, table.bits)), np.int32(table.codes)

    def codes(r: Array, row: Array) -> Array:
        outcome = outcomes(r)
        return namespace(r).where(outcome < n, outcome, row + outcome - n)

    return codes


def noise_kernel(table: NoiseTable) -> NoiseKernel:
    """The sampler of noise: random word of ``table.bits`` bits -> code, int32."""
    outcomes, first = _alias_kernel(alias_columns(table.outcomes, table.bits)), np.int32(table.first)
    return lambda r: outcomes(r) + first


def _division_kernel(table: WindowTable) -> CodeKernel:
    """Constant base weight a, constant window weight kappa: r < N a -> r // a, else row + (r - N a) // kappa."""
    word = np.dtype(f"uint{table.bits}").type
    a, kappa, base_total = word(table.base[0]), word(table.window[0]), word(table.codes * int(table.base[0]))

    def codes(r: Array, row: Array) -> Array:
        in_base = (r // a).astype(np.int32)
        in_window = row + ((r - base_total) // kappa).astype(np.int32)
        return namespace(r).where(r < base_total, in_base, in_window)

    return codes


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


def _alias_kernel(columns: AliasColumns) -> NoiseKernel:
    word = columns.threshold.dtype.type
    shift = word(columns.bits - columns.log_columns)
    mask = word((1 << int(shift)) - 1)

    def outcomes(r: Array) -> Array:
        column = (r >> shift).astype(np.int32)
        own = (r & mask) < take(columns.threshold, column)
        return namespace(r).where(own, column, take(columns.alias, column))

    return outcomes
