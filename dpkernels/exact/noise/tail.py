"""The unbounded tail of a noise table: blocks of codes with repeating weights.

A table with the last code n also has an outcome with the weight ``rest`` on either side. If it is drawn, a second word
draws the side. A third word draws a code of the first block, n + 1 + t, or, with the weight ``continue_weight``, the
next block. The next word then draws from the same weights for that block, and so on without end. With B the bits of a
word, the code n + 1 + k L + t, and its negative, has the probability

    rest/2^B (continue_weight/2^B)^k block[t]/2^B,    t = 0..L - 1, k = 0, 1, ...

So a bound for the first block, and for the step to the second block, holds for all blocks. See
docs/proofs/endless_noise.md.
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
from dpkernels.exact.certificate import MAX_WEIGHTS, CertificateError, frozen_weights, integers, moments
from dpkernels.numerics import RealArray
from dpkernels.proven import proven
from dpkernels.shapes import UInt64

# Positions, the first codes and the results of ``ExactNoise`` are within 2^61, 2^21 and the sum of both, the edge.
EDGE = (1 << 61) + (1 << 21)
# The largest code of the tail, at which it stops: the report is then the edge, whatever the input.
MAX_TAIL_CODE = (1 << 62) + (1 << 22)


@dataclass(frozen=True, eq=False)
class Tail:
    """The weights of a table's tail; the module states their meaning."""

    rest: int
    block: UInt64[np.ndarray, " codes"]
    bits: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", frozen_weights(self.block))

    @property
    def codes(self) -> int:
        return len(self.block)

    @cached_property
    def continue_weight(self) -> int:
        return (1 << self.bits) - arithmetic.total(self.block)

    @property
    def continue_probability(self) -> Fraction:
        """Return the probability of a further block."""
        return Fraction(self.continue_weight, 1 << self.bits)

    @cached_property
    def moments(self) -> tuple[Fraction, Fraction]:
        """Return E X and E X^2 of X = k L + t, from X = t, or L + X' with probability ``continue_probability``."""
        first, second = (Fraction(moment, 1 << self.bits) for moment in moments(self.block.tolist(), range(self.codes)))
        q = self.continue_probability
        mean = (first + q * self.codes) / (1 - q)
        square = (second + q * (self.codes**2 + 2 * self.codes * mean)) / (1 - q)
        return mean, square

    def kernel(self) -> Callable[[RealArray], RealArray]:
        """Return the sampler, random word -> t, or L for a further block, int32."""
        return alias_kernel(alias_columns([*self.block.tolist(), self.continue_weight], self.bits))

    def to_dict(self) -> Mapping[str, object]:
        return {"rest": self.rest, "block": self.block.tolist()}

    @classmethod
    def from_dict(cls, payload: JsonObject, bits: int) -> Tail:
        """Return the tail in a payload, after a check of types and sizes only."""
        block = frozen_weights(integers("block", payload["block"], MAX_WEIGHTS))
        return cls(integer("rest", payload["rest"]), block, bits)


@proven("endless_noise#proof")
def check_pure(weights: UInt64[np.ndarray, " codes"], first: int, tail: Tail, distance: int, limit: Fraction) -> None:
    """Refuse a table with a tail if some ratio of probabilities up to ``distance`` codes apart may be above the limit.

    The weights and the tail fall away from the code 0, and are the same on both sides. So the largest ratio is that of
    a code c >= 0 and c + ``distance``. Both are in the table, or in the table and the first block, or in the first
    block, or in it and the second one, or as in one of these in later blocks.
    """
    n, total = len(weights) - 1 + first, 1 << tail.bits
    side, block, rest, continue_weight = weights[-first:], tail.block, tail.rest, tail.continue_weight
    if first != -n or not np.array_equal(weights, weights[::-1]):
        raise CertificateError("weights: are not even, which those of a table with a tail have to be")
    if not (rest > 0 and continue_weight > 0 and len(block) and block.all() and side.all()):
        raise CertificateError("weights: a code is impossible, in a table with a tail")
    if not 1 <= distance <= len(block) < 1 << 21 or n >= 1 << 21:
        raise CertificateError(f"block: has {len(block)} codes; neighbours are {distance} cells apart")
    falls = (side[1:] <= side[:-1]).all() and (block[1:] <= block[:-1]).all()
    last, first_of_block, last_of_block = int(side[-1]), int(block[0]), int(block[-1])
    blocks_fall = continue_weight * first_of_block <= last_of_block * total
    if not (falls and blocks_fall and rest * first_of_block <= last * total):
        raise CertificateError("weights: rise away from 0, in a table with a tail")
    p, q = limit.numerator, limit.denominator
    in_first_block = range(max(0, distance - n - 1), distance)
    back = len(block) - distance  # The neighbour of t in the first block is t - back in the second one.
    exceeded = (
        bool(arithmetic.exceeds(side[:-distance], side[distance:], limit).any()) if distance <= n else False,
        any(q * int(side[n + 1 + t - distance]) * total > p * rest * int(block[t]) for t in in_first_block),
        bool(arithmetic.exceeds(block[: len(block) - distance], block[distance:], limit).any()),
        any(q * int(block[t]) * total > p * continue_weight * int(block[t - back]) for t in range(back, len(block))),
    )
    if any(exceeded):
        names = "within the table", "at its end", "within a block", "from a block to the next one"
        where = names[exceeded.index(True)]
        raise CertificateError(f"epsilon: a ratio of probabilities {distance} cells apart, {where}, is above e^epsilon")
