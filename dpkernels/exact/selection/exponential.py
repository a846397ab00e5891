"""The exponential mechanism on integer scores, sampled exactly.

    P(i) = e^(eps s_i) / sum_j e^(eps s_j),    eps the decimal that its float prints as

Let n_i = max(s) - s_i be the gaps, w_i = e^(-eps n_i) the weights, C_i = w_0 + ... + w_i their sums, and W the last
sum. The choice is the first i with U W < C_i, for a real number U uniform on [0, 1). U is read a few bits at a time.
Floating-point arithmetic is used if its error, which is bounded, cannot change the choice; this is almost always the
case. Otherwise integer arithmetic is used, with further bits of U until the choice is certain. So the choice has
exactly the probabilities of real arithmetic, and costs no delta. Gumbel noise in floating point has other, unknown
probabilities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.numerics import UNIT_ROUNDOFF, RealArray
from dpkernels.random import host
from dpkernels.shapes import Float, Int

# The streams of a release's key for choices, and for items of a run; 16 to 19 are those of ``exact.sampler``.
CHOICE_UNIFORM_STREAM = 20
_ITEM_STREAM = 24  # 21 to 23 and 30 are those of ``categorical``, 27 to 29 those of ``permute_and_flip``

# The range of eps. Tables of powers have about sqrt(70/eps) entries: 1,024 at the smallest eps.
EPSILON_RANGE = (1e-4, 20.0)
_RUN_EPSILON_RANGE = Fraction(1, 10**8), Fraction(20)  # of runs: eps is a part of a budget there
MAX_SCORE = 1 << 61  # Gaps of int64 do not overflow.
_MAX_ITEMS = 1 << 32  # of all runs: floats hold their numbers, and a negligible weight of each adds up to 2^-68
_TABLE_BITS = 320  # Of a power: the 1,024th is off by about 2^-308, which matters to no float above 2^-100.
_NEGLIGIBLE_NATS = 70  # e^-70 < 2^-100: what floats take for 0.

Interval = tuple[int, int]


def uniform_number(key: bytes, number: int, stream: int = CHOICE_UNIFORM_STREAM) -> Callable[[int], int]:
    """Return bits -> floor(U 2^bits), bits a multiple of 32, for one of a key's real numbers U, uniform on [0, 1).

    Each ``number`` below 2^32 reads blocks of its own.
    """

    def leading(bits: int) -> int:
        words = np.empty(bits // 32, "<u4")
        host.fill(words, key, stream, number << 32)
        return int.from_bytes(words.tobytes(), "big")

    return leading


def exponential_top_k(scores: RealArray, epsilon: float, k: int, key: bytes) -> Int[np.ndarray, " {k}"]:
    """Return k different indices, each chosen by the exponential mechanism among those that are left, as int64.

    In order of discovery, they are distributed as the indices of the k largest eps s_i + Gumbel noise (Durfee & Rogers
    2019). Choice j depends on the key of 32 bytes, on j and on the earlier choices. The time is of order k times the
    number of scores. The scores are integers, 1-D, within +-2^61, epsilon is in [1e-4, 20], and k in 1..len(scores);
    otherwise the function raises a TypeError or ValueError.

    Guarantee: each choice is eps-bounded-range (Durfee & Rogers 2019; Dong 2019) given the earlier ones.
    Neighbouring scores differ by 0 to 1 each, all in the same direction; if they may move in both directions, the
    parameter is 2 eps. The guarantee assumes that the key's generator is indistinguishable from random, and does not
    cover timing.
    """

    def choose(remaining: np.ndarray, eps: Fraction, number: int) -> int:
        return _choose(remaining, eps, uniform_number(key, number))

    return chosen_in_turn(scores, epsilon, k, choose)


def chosen_in_turn(
    scores: RealArray, epsilon: float, k: int, choose: Callable[[np.ndarray, Fraction, int], int]
) -> Int[np.ndarray, " {k}"]:
    """Return k different indices as int64, each by ``choose(scores that are left, eps, number of the choice)``.

    Raises:
        TypeError: scores are no integers.
        ValueError: scores, epsilon or k are out of range.
    """
    checks.within("epsilon", epsilon, *EPSILON_RANGE)
    eps, remaining = rational(checks.number("epsilon", epsilon)), checks.integers("scores", scores)
    low, high = int(remaining.min()), int(remaining.max())
    if not -MAX_SCORE <= low <= high <= MAX_SCORE:
        raise ValueError(f"scores: {low} to {high} is not within -2^61..2^61")
    checks.integer_in("k", k, 1, len(remaining))
    remaining = remaining.astype(np.int64)
    indices, chosen = np.arange(len(remaining)), np.empty(k, np.int64)
    for number in range(k):
        choice = choose(remaining, eps, number)
        chosen[number] = indices[choice]
        remaining, indices = np.delete(remaining, choice), np.delete(indices, choice)
    return chosen


def exponential_item(
    scores: np.ndarray, lengths: np.ndarray, epsilon: Fraction, key: bytes, number: int = 0
) -> tuple[int, int]:
    """Return (run, item): one item, chosen by the exponential mechanism, of runs of items that have the same score.

    Run i has ``lengths[i]`` items of weight e^(eps s_i). The run is chosen with the exact probability of all its items,
    and the item exactly uniformly within it.

    Args:
        scores: integers, 1-D, within +-2^61.
        lengths: as many integers of at least 0, 1 to 2^32 in all.
        epsilon: in [1e-8, 20]. The choice is (2 D eps)-DP, with D the largest change of a score between neighbours,
            if the runs are stretches of one list of items that does not depend on the data.
        key: 32 bytes.
        number: which of the key's choices it is, below 2^32.
    """
    if not _RUN_EPSILON_RANGE[0] <= epsilon <= _RUN_EPSILON_RANGE[1]:
        raise ValueError(f"epsilon: {float(epsilon):g} is not within 1e-8..20")
    values, copies = checks.integers("scores", scores), checks.integers("lengths", lengths)
    if len(values) != len(copies) or copies.min() < 0 or not 1 <= sum(copies.tolist()) <= _MAX_ITEMS:
        raise ValueError(f"lengths: must be {len(values)} integers of at least 0, with a sum of 1 to 2^32")
    if not -MAX_SCORE <= int(values.min()) <= int(values.max()) <= MAX_SCORE:
        raise ValueError(f"scores: {values.min()} to {values.max()} is not within -2^61..2^61")
    present = np.flatnonzero(copies)
    lengths = copies[present].astype(np.int64)
    run = _choose(values[present].astype(np.int64), epsilon, uniform_number(key, number), lengths)
    return int(present[run]), uniform_below(int(lengths[run]), uniform_number(key, number, _ITEM_STREAM))


def uniform_below(count: int, uniform: Callable[[int], int]) -> int:
    """Return floor(U count), with as many bits of U as decide it."""
    bits = 128
    while (low := uniform(bits) * count >> bits) != ((uniform(bits) + 1) * count - 1) >> bits:
        bits *= 2
    return low


def _choose(
    scores: Int[np.ndarray, " items"],
    epsilon: Fraction,
    uniform: Callable[[int], int],
    copies: Int[np.ndarray, " items"] | None = None,
) -> int:
    """Return the chosen index; each index counts ``copies`` times, by default once."""
    gaps = scores.max() - scores
    choice = _by_floats(gaps, epsilon, uniform(64), copies)
    return _by_integers(gaps, epsilon, uniform, copies) if choice is None else choice


def _by_floats(
    gaps: Int[np.ndarray, " items"], epsilon: Fraction, u: int, copies: Int[np.ndarray, " items"] | None = None
) -> int | None:
    """Return the choice at U in [u, u + 1)/2^64, or None if floats cannot decide it.

    With h = 2^-53, the error of a weight is at most 5 h of itself (four roundings, one for its copies) or 2^-100 a
    copy, that of a sum of d weights at most d h of the total in any order, and that of U W at most (d + 8) h of W more.
    The margin of 3 d + 32 also covers the copies' 2^-68 of the total, which is at least 1, and terms of second order.
    """
    weights = float_weights(gaps, epsilon)
    sums = np.cumsum(weights if copies is None else weights * copies)
    margin = (3 * len(gaps) + 32) * UNIT_ROUNDOFF * sums[-1]
    point = u * 2.0**-64 * sums[-1]
    index = int(np.searchsorted(sums, point, side="right"))
    is_below_next = index < len(sums) and sums[index] - point > margin
    is_above_previous = index == 0 or point - sums[index - 1] > margin
    return index if is_below_next and is_above_previous else None


def float_weights(gaps: Int[np.ndarray, " items"], epsilon: Fraction) -> Float[np.ndarray, " items"]:
    """Return e^(-eps gap) with error at most 2^-51 relatively or 2^-100, from basic float operations only."""
    low, high = _float_powers(epsilon)
    shift = (len(low) - 1).bit_length()
    capped = np.minimum(gaps, (len(high) - 1) << shift)
    return low[capped & (len(low) - 1)] * high[capped >> shift]


@lru_cache(maxsize=16)
def _float_powers(epsilon: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Return e^(-eps j) for j < B and e^(-eps B j) down to 2^-100, then 0; rounded from 320 bits."""

    def powers(epsilon: Fraction, length: int) -> list[float]:
        ratio, _ = exp_minus(epsilon, _TABLE_BITS)
        exact = itertools.accumulate(range(1, length), lambda p, _: p * ratio >> _TABLE_BITS, initial=1 << _TABLE_BITS)
        return [power / (1 << _TABLE_BITS) for power in exact]

    largest = math.ceil(_NEGLIGIBLE_NATS / epsilon)
    size = 1 << ((largest - 1).bit_length() + 1) // 2
    return np.array(powers(epsilon, size)), np.array([*powers(epsilon * size, -(-largest // size)), 0.0])


def _by_integers(
    gaps: Int[np.ndarray, " items"],
    epsilon: Fraction,
    uniform: Callable[[int], int],
    copies: Int[np.ndarray, " items"] | None = None,
) -> int:
    """Return the choice, doubling the number of bits of U until they decide, which happens with probability 1."""
    bits = 128
    while (choice := _decide(gaps, epsilon, uniform(bits), bits, copies)) is None:
        bits *= 2
    return choice


def _decide(
    gaps: Int[np.ndarray, " items"],
    epsilon: Fraction,
    u: int,
    bits: int,
    copies: Int[np.ndarray, " items"] | None = None,
) -> int | None:
    """Return the choice for every U in [u, u + 1)/2^bits, or None if it is not known to be the same for all."""
    sums = _sums(gaps, epsilon, bits + 64, copies)
    least_total, most_total = sums(len(gaps))
    first, last = 0, len(gaps) - 1
    while first < last:
        middle = (first + last) // 2
        low, high = sums(middle + 1)
        if low << bits >= (u + 1) * most_total:
            last = middle
        elif high << bits <= u * least_total:
            first = middle + 1
        else:
            return None
    return first


def _sums(
    gaps: Int[np.ndarray, " items"], epsilon: Fraction, bits: int, copies: Int[np.ndarray, " items"] | None = None
) -> Callable[[int], Interval]:
    """Return bounds of 2^bits times the sum of the first weights, as a function of how many."""
    reach = math.ceil(bits / epsilon)  # e^-bits < 2^-bits, whose bounds are 0 and 1, as for all gaps beyond.
    distinct, which = np.unique(np.minimum(gaps, reach), return_inverse=True)
    ratio = exp_minus(epsilon, bits)
    powers = [power_interval(ratio, n, bits) for n in distinct.tolist()]

    def sums(count: int) -> Interval:
        alike = None if copies is None else copies[:count]  # Their sums, up to 2^32, are exact in floats.
        times = [int(n) for n in np.bincount(which[:count], alike, minlength=len(powers)).tolist()]
        low, high = (sum(n * power[side] for n, power in zip(times, powers, strict=True) if n) for side in (0, 1))
        return low, high

    return sums


def exp_minus(x: Fraction, bits: int) -> Interval:
    """Return integers that bracket 2^bits e^-x for x >= 0, a few units apart, by Horner's rule rounded down and up."""
    # Beyond N >= 2x terms a Taylor sum of e^x is at most twice its first one.
    unit = 1 << (bits + 2 * math.ceil(x) + 8)
    low, high = unit, 2 * unit
    for n in range(4 * math.ceil(x) + bits + 32, 0, -1):
        low = unit + low * x.numerator // (x.denominator * n)
        high = unit - (-high * x.numerator // (x.denominator * n))
    return (unit << bits) // high, -(-(unit << bits) // low)


def power_interval(ratio: Interval, n: int, bits: int) -> Interval:
    """Return bounds of ratio^n by squaring, both in units of 2^-bits."""
    low, high = result = 1 << bits, 1 << bits
    square = ratio
    while n:
        if n & 1:
            result = low, high = low * square[0] >> bits, -(-high * square[1] >> bits)
        square = square[0] ** 2 >> bits, -(-(square[1] ** 2) >> bits)
        n >>= 1
    return result
