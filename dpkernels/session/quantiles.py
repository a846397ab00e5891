"""Quantiles by the exponential mechanism on a lattice, and points near them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpkernels.decimals import rational
from dpkernels.session.distinct import Places
from dpkernels.session.run import Run

_ZOOMS = 14  # distances of a published point at which values are counted, each half of the one before
_MAX_EXPONENT = 60  # private bounds are at most 2^60 in size,
_MIN_EXPONENT = -40  # and at least 2^-40 or 0
_STEPS = _MAX_EXPONENT - _MIN_EXPONENT + 1
EXPONENTS = 2 * _STEPS + 1  # places for private bounds: negative powers of two, 0, and positive ones


def quantile_points(places: Places, shares: Sequence[Fraction], points: int, epsilon: float, run: Run) -> list[int]:
    """Return private quantiles of places in 0..points - 1, in order.

    The middle one is chosen first, then those of the values up to it, and of the values above it, so that a row is
    read once at each of ceil(log2(m + 1)) levels, with the same share of the budget each (Kaplan, Schnapp & Stemmer
    2022).
    """
    levels = math.ceil(math.log2(len(shares) + 1))
    chosen: list[int] = [0] * len(shares)

    def choose(first: int, last: int, members: Places, low: int, high: int, start: Fraction, end: Fraction) -> None:
        """Choose quantiles first..last - 1 of the members, which are the share from start to end, in low..high."""
        if first >= last:
            return
        middle = (first + last) // 2
        share = ((shares[middle] - start) / (end - start)).limit_denominator(1000)
        place = low
        if low < high:
            shifted = Places(members.values - low, members.counts)
            place += _quantile(shifted, share, high - low + 1, rational(epsilon) / levels, run)
        chosen[middle] = place
        below, above = members.split(place)
        choose(first, middle, below, low, place, start, shares[middle])
        choose(middle + 1, last, above, min(place + 1, high), high, shares[middle], end)

    choose(0, len(shares), places, 0, points - 1, Fraction(0), Fraction(1))
    return chosen


def quantile_scores(places: Places, share: Fraction, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of stretches of 0..points - 1, in order, and their lengths.

    The score of y is -max(0, p n - d #(<= y), d #(< y) - p n) for the quantile p/d of n places: 0 if y is a quantile.
    One more place changes the score of every y by at most max(p, d - p).
    """
    p, d, values = share.numerator, share.denominator, places.values
    # Of the rows below a place p n of 1/d, and 0 of these at a quantile.
    excess = d * places.below - p * len(places)
    # Stretches between values, and the values themselves, in turn.
    scores, lengths = np.empty(2 * len(values) + 1, np.int64), np.ones(2 * len(values) + 1, np.int64)
    scores[::2] = -np.abs(excess)
    scores[1::2] = -np.maximum(np.maximum(-excess[1:], excess[:-1]), 0)
    lengths[::2] = np.append(values, points)
    lengths[2::2] -= values + 1
    return scores, lengths


def _quantile(places: Places, share: Fraction, points: int, epsilon: Fraction, run: Run) -> int:
    scores, lengths = quantile_scores(places, share, points)
    largest_change = run.rows * max(share.numerator, share.denominator - share.numerator)
    stretch, item = run.item(scores, lengths, epsilon / (2 * largest_change))
    return int(lengths[:stretch].sum()) + item


def zoom_edges(points: Sequence[int], count: int) -> np.ndarray:
    """Return increasing edges from -1 to count - 1: each point, and places at half the distance again and again."""
    edges = {-1, count - 1}
    for point in points:
        for distance in (0, *(count >> zoom for zoom in range(1, _ZOOMS + 1))):
            edges |= {point - distance - (distance == 0), point + distance} | {point}
    return np.array(sorted(edge for edge in edges if -1 <= edge < count))
