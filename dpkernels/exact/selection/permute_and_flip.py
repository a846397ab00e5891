"""Permute-and-flip on integer scores, sampled exactly (McKenna & Sheldon 2020).

Indices are visited in random order, and index i is accepted with probability e^(-eps n_i), with the gap
n_i = max(s) - s_i. The first one that is accepted is uniform among all that would be accepted. So one pass draws, for
every index, whether it would be, and then one of these uniformly; the index of the largest score always is one.

Each index has a real number U, uniform on [0, 1), and would be accepted if U < e^(-eps n_i). Floating-point arithmetic
with 64 bits of U is used if its error cannot change the answer; this is almost always the case. Otherwise integer
arithmetic is used, with as many bits as necessary. So the choice has exactly the probabilities of real arithmetic, and
costs no delta.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from dpkernels.exact.selection.exponential import (
    chosen_in_turn,
    exp_minus,
    float_weights,
    power_interval,
    uniform_below,
    uniform_number,
)
from dpkernels.numerics import RealArray
from dpkernels.random import host
from dpkernels.shapes import Bool, Int, UInt64

# Streams of a release's key; 16 to 26 and 30 to 33 are those of other samplers.
_FLIP_STREAM = 27  # The word of each candidate, which decides whether it is accepted.
_MEMBER_STREAM = 28  # The choice among all that are accepted.
_FURTHER_STREAM = 29  # Further digits of a candidate's word.


def permute_and_flip_top_k(scores: RealArray, epsilon: float, k: int, key: bytes) -> Int[np.ndarray, " {k}"]:
    """Return k different indices, each chosen by permute-and-flip among those that are left, as int64.

    The expected gap of a single choice is at most that of the exponential mechanism with the same epsilon, and down to
    half of it. The arguments are those of ``exponential_top_k``.

    Guarantee: each choice is eps-DP given the earlier ones, and all together are (k eps)-DP. Neighbouring scores differ
    by 0 to 1 each, all in the same direction; if they may move in both directions, the parameter is 2 eps. Unlike those
    of the exponential mechanism, the choices are not eps-bounded-range, so for many choices at a delta that mechanism
    may cost less. The guarantee assumes that the key's generator is indistinguishable from random, and does not cover
    timing.
    """

    def choose(remaining: np.ndarray, eps: Fraction, number: int) -> int:
        return _choose(remaining.max() - remaining, eps, host.fold_in(key, number))

    return chosen_in_turn(scores, epsilon, k, choose)


def _choose(gaps: Int[np.ndarray, " items"], epsilon: Fraction, key: bytes) -> int:
    words = np.empty(len(gaps), "<u8")
    host.fill(words, key, _FLIP_STREAM, 0)
    accepted, undecided = _by_floats(gaps, epsilon, words)
    for index in np.flatnonzero(undecided).tolist():
        further = uniform_number(key, index, _FURTHER_STREAM)
        accepted[index] = _by_integers(int(gaps[index]), epsilon, int(words[index]), further)
    members = np.flatnonzero(accepted)
    return int(members[uniform_below(len(members), uniform_number(key, 0, _MEMBER_STREAM))])


def _by_floats(
    gaps: Int[np.ndarray, " items"], epsilon: Fraction, words: UInt64[np.ndarray, " items"]
) -> tuple[Bool[np.ndarray, " items"], Bool[np.ndarray, " items"]]:
    """Return which indices are accepted for every U in [w, w + 1)/2^64, and which ones floats cannot decide.

    The float of w/2^64 is off by at most 2^-53 of itself, U by 2^-64 more, and the probability by 2^-51 of itself or
    2^-100.
    """
    probabilities, uniforms = float_weights(gaps, epsilon), words * 2.0**-64
    margin = 2.0**-50 * (probabilities + uniforms) + 2.0**-63
    return uniforms + margin < probabilities, np.abs(uniforms - probabilities) <= margin


def _by_integers(gap: int, epsilon: Fraction, word: int, further: Callable[[int], int]) -> bool:
    """Return whether U < e^(-eps gap), for U of the 64 bits of ``word`` and further ones, as many as decide it."""
    for bits in (64 << doublings for doublings in itertools.count()):
        u, precision = word << bits | further(bits), 64 + bits
        low, high = power_interval(exp_minus(epsilon, precision), gap, precision)
        if u + 1 <= low:
            return True
        if u >= high:
            return False
    raise AssertionError  # with probability 0
