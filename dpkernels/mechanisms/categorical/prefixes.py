"""Plans for reports of prefixes of values, for a domain that is too large to enumerate.

Values are words of a fixed number of digits. A level is a length of prefixes, with block response on all prefixes of
this length. If the people are split, each reports the prefix of one level, which is drawn at random and independently
of the value. The report is one integer, which encodes the level and the report of this level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import numpy as np

from dpkernels.mechanisms.categorical.base import smallest_unsigned
from dpkernels.mechanisms.categorical.block_response import BlockResponse

SPLITS = ("people", "budget")  # what is divided among the levels
LONGER = ("error", "cut")  # what becomes of longer texts
_TEXTS = 1 << 16  # that are read at once


@dataclass(frozen=True)
class PrefixPlan:
    """A plan of reports of prefixes. Each person's reports are epsilon-DP together, for any two values.

    Attributes:
        epsilon: the budget of a person.
        length: the number of digits of a value.
        alphabet: the characters of values that are texts, or the base of values that are integers.
        lengths: the lengths of the prefixes of the levels, of which the last is ``length``.
        split: "people", each of whom reports at one random level, or "budget", of which a part is spent at each level.
        levels: the mechanism of each level.
        other: the code of the value that stands for those which are none of the plan's, or None.
        longer: "error", or "cut" if the first ``length`` characters stand for a longer text.
    """

    epsilon: float
    length: int
    alphabet: str | int
    lengths: tuple[int, ...]
    split: str
    levels: tuple[BlockResponse, ...]
    other: int | None = None
    longer: str = "error"

    kind: ClassVar[str] = "prefix"
    is_categorical: ClassVar[bool] = True
    labels: ClassVar[None] = None
    report_shape: ClassVar[tuple[int, ...]] = ()

    @property
    def base(self) -> int:
        """Return the number of values of a digit; of texts, 0 stands for no character."""
        return self.alphabet if isinstance(self.alphabet, int) else len(self.alphabet) + 1

    @property
    def categories(self) -> int:
        """Return the number of words of digits; at a level, that of its prefixes."""
        return self.base**self.length

    @property
    def domain(self) -> str:
        """Return a description of the values, for errors."""
        if isinstance(self.alphabet, int):
            return f"in 0..{self.categories - 1}"
        size = "of" if self.longer == "cut" else f"of up to {self.length} of"
        return f"a text {size} the plan's characters"

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the number of reports before those of each level, and the number of all."""
        return tuple(accumulate((level.outcomes for level in self.levels), initial=0))

    @property
    def outcomes(self) -> int:
        """Return the number of possible reports of a person, where people are split."""
        return self.offsets[-1]

    @property
    def report_dtype(self) -> np.dtype:
        """Return the smallest unsigned type of reports, where people are split."""
        return smallest_unsigned(self.outcomes)

    def prefixes(self, codes: np.ndarray, level: int) -> np.ndarray:
        """Return the prefixes of codes at a level."""
        return codes // self.base ** (self.length - self.lengths[level])

    def codes_of_texts(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return texts as integers in 0..base^length - 1, whose digits are the characters, and which are values."""
        chunks = [self._codes(texts[start : start + _TEXTS]) for start in range(0, len(texts), _TEXTS)]
        codes, is_value = zip((np.zeros(0, np.int64), np.zeros(0, bool)), *chunks, strict=True)
        return np.concatenate(codes), np.concatenate(is_value)

    def _codes(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        table, length = self._digits, self.length
        characters = np.array(texts, f"U{length}").view(np.uint32).reshape(-1, length)
        digits = table[np.minimum(characters, len(table) - 1)]
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        # After a text's end NumPy has characters of number 0, which are in no alphabet and have the digit 0.
        is_value = np.count_nonzero(digits, axis=1) == np.minimum(sizes, length)
        if self.longer == "error":
            is_value &= sizes <= length
        return digits @ self.base ** np.arange(length - 1, -1, -1), is_value

    @cached_property
    def _digits(self) -> np.ndarray:
        """Return the digit of every character by its number, and 0 for those that are in no value."""
        alphabet = str(self.alphabet)
        table = np.zeros(max(map(ord, alphabet)) + 2, np.int64)
        table[[ord(character) for character in alphabet]] = np.arange(1, self.base)
        return table

    def value(self, code: int) -> object:
        """Return the value of a code."""
        if isinstance(self.alphabet, int):
            return code
        digits = [code // self.base**power % self.base for power in reversed(range(self.length))]
        return "".join(self.alphabet[digit - 1] for digit in digits if digit)
