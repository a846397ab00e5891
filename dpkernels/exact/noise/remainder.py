"""The remainder of a noise table: a second word refines the rounded weights of the table.

Besides its codes, a table has an outcome with the weight ``rest``. If it is drawn, a second word draws a code c from
the weights of the remainder. With B the bits of a word, w(c) the weights of the table and v(c) those of the remainder,
c has the probability

    (2^B w(c) + rest v(c)) / 2^(2B),

a fraction of 128 bits. Only a fraction rest/2^B of all draws needs the second word. See docs/proofs/vectors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpkernels.bounded_json import JsonObject, integer
from dpkernels.exact import arithmetic
from dpkernels.exact.alias import alias_columns, alias_kernel
from dpkernels.exact.certificate import MAX_WEIGHTS, CertificateError, check_totals, frozen_weights, integers, moments
from dpkernels.numerics import RealArray
from dpkernels.proven import proven
from dpkernels.shapes import UInt64


@proven("vectors#proof")
@dataclass(frozen=True, eq=False)
class Remainder:
    """The weights of a table's remainder; the module states their meaning."""

    rest: int
    weights: UInt64[np.ndarray, " codes"]
    first: int  # The code of weights[0].
    bits: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))

    @property
    def last(self) -> int:
        return self.first + len(self.weights) - 1

    @cached_property
    def moments(self) -> tuple[Fraction, Fraction]:
        """Return the means of a code and of its square."""
        first, second = moments(self.weights.tolist(), range(self.first, self.last + 1))
        return Fraction(first, 1 << self.bits), Fraction(second, 1 << self.bits)

    def combined_weights(self, first: int, weights: list[int]) -> list[int]:
        """Return the weights of all codes in units of 2^-(2 bits), from weights that begin at the code ``first``."""
        combined = [self.rest * weight for weight in self.weights.tolist()]
        for code, weight in enumerate(weights, first - self.first):
            combined[code] += weight << self.bits
        return combined

    def check(self, first: int, last: int) -> None:
        """Refuse weights that are not a distribution, or a remainder that lacks codes from the first to the last."""
        check_totals(self.bits, [arithmetic.total(self.weights)])
        if not (0 < self.rest < 1 << self.bits and self.first <= first and last <= self.last):
            raise CertificateError(
                f"remainder: has the codes {self.first} to {self.last} and the weight {self.rest}; the codes must have "
                f"those of the table, {first} to {last}, and the weight must be positive and below 2^{self.bits}"
            )

    def kernel(self) -> Callable[[RealArray], RealArray]:
        """Return the sampler, random word -> code - first, int32."""
        return alias_kernel(alias_columns(self.weights, self.bits))

    def to_dict(self) -> Mapping[str, object]:
        return {"rest": self.rest, "weights": self.weights.tolist(), "first": self.first}

    @classmethod
    def from_dict(cls, payload: JsonObject, bits: int) -> Remainder:
        """Return the remainder in a payload, after a check of types and sizes only."""
        weights = frozen_weights(integers("remainder", payload["weights"], MAX_WEIGHTS))
        return cls(integer("rest", payload["rest"]), weights, integer("first", payload["first"]), bits)
