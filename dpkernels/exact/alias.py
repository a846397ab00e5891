"""Walker's alias tables in integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import CertificateError
from dpkernels.jax_on_use import jnp
from dpkernels.numerics import RealArray, namespace
from dpkernels.shapes import Int, UInt

# Kernels


@dataclass(frozen=True, eq=False)
class AliasColumns:
    """Walker's alias table in integers: column c yields c if the word's low bits are below threshold[c]."""

    packed: UInt[np.ndarray, " columns"]  # A column's threshold and, in the last ``log_columns`` bits, its alias.
    log_columns: int  # log2 of their number.
    bits: int

    @property
    def threshold(self) -> UInt[np.ndarray, " columns"]:
        """Return one integer a column, below 2^(bits - log_columns); 0 for a column with a single outcome."""
        return self.packed >> self.packed.dtype.type(self.log_columns)

    @property
    def alias(self) -> Int[np.ndarray, " columns"]:
        """Return the outcome from the threshold on, int32."""
        return (self.packed & self.packed.dtype.type((1 << self.log_columns) - 1)).astype(np.int32)


def take(table: np.ndarray, index: RealArray) -> RealArray:
    """Return ``table[index]`` for indices that are within it, NumPy's or JAX's."""
    if namespace(index) is np:
        return table.take(index)
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def alias_columns(weights: np.ndarray | Sequence[float], bits: int) -> AliasColumns:
    """Return exact alias columns (Walker, Vose) of weights that sum to 2^bits; padding outcomes have weight 0.

    Every column has the same capacity, and holds its own outcome and at most one other, its alias. A light column has
    less weight than that, a heavy one more. The light columns, one after the other, are filled up from the first heavy
    column that has a surplus left. When the last one takes more than is left, the heavy column becomes light by the
    difference, and the next heavy column fills it.

    For example, with the weights 1, 2, 6, 7 the capacity is 4. From the last column to the first, columns 1 and 0 lack
    2 and 3, and columns 3 and 2 have a surplus of 3 and 2. Column 3 fills column 1, and column 0, too, although it has
    only 1 left. It then lacks 2 itself, which column 2 fills.

    In sums: let D(k) be what the first k light columns lack, and E(m) the surplus of the first m heavy ones. Heavy m
    serves the light k for which D(k - 1) < E(m). The first of these for which D(k) >= E(m) exhausts it, and it then
    lacks D(k) - E(m).
    """
    log_columns = (len(weights) - 1).bit_length()
    capacity = 1 << (bits - log_columns)
    padded = np.zeros(1 << log_columns, np.uint64)
    padded[: len(weights)] = np.asarray(weights, np.uint64)
    threshold, alias = padded.copy(), np.arange(1 << log_columns)
    light, heavy = (np.flatnonzero(mask)[::-1] for mask in (padded < capacity, padded > capacity))
    lack = np.cumsum(np.uint64(capacity) - padded[light]) if len(light) else padded[:0]
    surplus = np.cumsum(padded[heavy] - np.uint64(capacity)) if len(heavy) else padded[:0]
    if arithmetic.total(padded) != 1 << bits:
        raise CertificateError(_OFF)
    if len(heavy):
        alias[light] = heavy[np.searchsorted(surplus, np.append(np.uint64(0), lack[:-1]), side="right")]
        deficit = lack[np.searchsorted(lack, surplus)] - surplus
        threshold[heavy] = np.uint64(capacity) - deficit
        alias[heavy[:-1]] = np.where(deficit[:-1] > 0, heavy[1:], heavy[:-1])
    # A full column has threshold 0: its own threshold would have a bit too many, and its alias is itself.
    packed = threshold % np.uint64(capacity) << np.uint64(log_columns) | alias.astype(np.uint64)
    columns = AliasColumns(packed.astype(f"uint{bits}"), log_columns, bits)
    _check_masses(columns, padded)
    return columns


_OFF = "alias columns: do not add up to the table's weights"


def _check_masses(columns: AliasColumns, weights: UInt[np.ndarray, " columns"]) -> None:
    """Refuse columns that do not add up to the table's weights, so that the certified weights are sampled.

    Sums are modulo 2^64, and exact where the weights sum to 2^bits.
    """
    masses = columns.threshold.astype(np.uint64)
    np.add.at(masses, columns.alias, np.uint64(1 << (columns.bits - columns.log_columns)) - masses)
    if not np.array_equal(masses, weights):
        raise CertificateError(_OFF)


def alias_kernel(columns: AliasColumns) -> Callable[..., RealArray]:
    """Return the sampler, random word -> outcome, int32; for several tables in a row, (word, table) -> outcome."""
    word = columns.packed.dtype.type
    log_columns, shift = word(columns.log_columns), word(columns.bits - columns.log_columns)
    ones = word((1 << columns.log_columns) - 1)

    def outcomes(r: RealArray, table: RealArray | None = None) -> RealArray:
        column = (r >> shift).astype(np.int32)
        index = column if table is None else (table << np.int32(columns.log_columns)) + column
        entry = take(columns.packed, index)
        # With ones for its column bits, the word is below the entry exactly where its low bits are below the threshold.
        return namespace(r).where((r << log_columns | ones) < entry, column, (entry & ones).astype(np.int32))

    return outcomes


def stacked_alias_kernel(columns: Sequence[AliasColumns]) -> tuple[Callable[..., RealArray], np.ndarray, np.ndarray]:
    """Return ``alias_kernel`` of several tables, of words of one length, and the two numbers that it takes of each.

    The numbers are where the table begins among all columns, and log2 of its number of columns.
    """
    packed = np.concatenate([table.packed for table in columns])
    starts = np.cumsum([0, *(len(table.packed) for table in columns[:-1])])
    bits, word = columns[0].bits, packed.dtype.type
    logs = np.array([table.log_columns for table in columns], packed.dtype)
    index = np.int32 if len(packed) < 1 << 31 else np.int64
    common_log = logs[0] if (logs == logs[0]).all() else None  # A constant shift is faster.

    def outcomes(r: RealArray, start: RealArray, log_columns: RealArray) -> RealArray:
        log_columns = log_columns if common_log is None else common_log
        column = (r >> (word(bits) - log_columns)).astype(index)
        ones = (word(1) << log_columns) - word(1)
        entry = take(packed, start + column)
        is_column = (r << log_columns | ones) < entry
        return namespace(r).where(is_column, column, (entry & ones).astype(index)).astype(np.int32)

    return outcomes, starts.astype(index), logs
