"""Integer noise from half words: the lower half is drawn only if the upper half does not determine the code.

The sampler of a table takes words of 2h bits. The upper half has the k bits that select a column of the alias table,
and the first h - k bits of the number that is compared with the threshold of the column. If these differ from the first
bits of the threshold, the lower half does not matter. They are equal in a fraction of about 2^(k - h) of all draws: for
tables of Gaussian noise, in one of 32,768 to 4,096. The result is always that of a whole word of independent random
bits, so its distribution is the certified one. See docs/proofs/vectors.md.
"""

from __future__ import annotations

import numpy as np

from dpkernels.exact.alias import AliasColumns, alias_columns, take
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.numerics import RealArray, namespace
from dpkernels.proven import proven
from dpkernels.shapes import UInt


@proven("vectors#proof")
class HalvedNoise:
    """The sampler of a noise table whose words come in halves."""

    def __init__(self, sampler: ExactNoise) -> None:
        table = sampler.table
        columns = alias_columns(table.kernel_weights, table.bits)
        if table.tail or not 0 < columns.log_columns < table.bits // 2:
            raise ValueError(f"table: has a tail, or 2^{columns.log_columns} columns, which half of a word must number")
        self.table, self.bits, self._log_columns = table, table.bits // 2, columns.log_columns
        self._packed, self._kernel = _upper_halves(columns), table.kernel()
        self._remainder_kernel = table.remainder.kernel() if table.remainder else None

    def upper_codes(self, upper: RealArray) -> tuple[RealArray, RealArray]:
        """Return the codes, int32, by the upper halves alone, and which of them are open: those are of no use."""
        word = self._packed.dtype.type
        column = (upper >> word(self.bits - self._log_columns)).astype(np.int32)
        entry, ones = take(self._packed, column), word((1 << self._log_columns) - 1)
        fraction, threshold = upper << word(self._log_columns), entry & ~ones
        outcome = namespace(upper).where(fraction < threshold, column, (entry & ones).astype(np.int32))
        codes = outcome + np.int32(self.table.kernel_first)
        return codes, (fraction == threshold) | self.are_incomplete(codes)

    def codes(self, upper: RealArray, lower: RealArray) -> RealArray:
        """Return the codes of whole words, int32."""
        word = np.dtype(f"uint{self.table.bits}").type
        return self._kernel(upper.astype(word) << word(self.bits) | lower.astype(word))

    def are_incomplete(self, codes: RealArray) -> RealArray:
        """Return which draws have no code yet, but one of the remainder."""
        return codes < np.int32(self.table.first)

    def complete(self, codes: RealArray, further_words: RealArray) -> RealArray:
        """Return the codes, with those that the remainder draws by further whole words."""
        if self._remainder_kernel is None:
            return codes
        further = self._remainder_kernel(further_words) + np.int32(self.table.remainder.first)
        return namespace(codes).where(self.are_incomplete(codes), further, codes)


def _upper_halves(columns: AliasColumns) -> UInt[np.ndarray, " columns"]:
    """Return the columns in half of the bits: the first bits of a threshold, and the alias."""
    word, half_bits = columns.packed.dtype.type, columns.bits // 2
    ones = word((1 << columns.log_columns) - 1)
    thresholds = columns.packed >> word(half_bits) & ~ones
    return (thresholds | columns.packed & ones).astype(f"uint{half_bits}")
