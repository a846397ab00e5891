"""Quantiles by the exponential mechanism on a lattice, and points near them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpkernels.decimals import rational
from dpkernels.session.distinct import SortedCounts
from dpkernels.session.run import Run

_ZOOMS = 14  # distances of a published point at which values are counted, each half of the one before


def private_quantiles(
    counts: SortedCounts, probabilities: Sequence[Fraction], points: int, epsilon: float, run: Run
) -> list[int]:
    """Return private quantiles of integers in 0..points - 1, in order.

    The middle one is chosen first, then those of the values up to it, and of the values above it, so that a row is
    read once at each of ceil(log2(m + 1)) levels, with the same part of the budget each (Kaplan, Schnapp & Stemmer
    2022).
    """
    levels = math.ceil(math.log2(len(probabilities) + 1))
    quantiles = [0] * len(probabilities)

    def choose(first: int, last: int, rows: SortedCounts, low: int, high: int, start: Fraction, end: Fraction) -> None:
        """Choose quantiles first..last - 1 in low..high, of the rows between the quantiles start and end."""
        if first >= last:
            return
        middle = (first + last) // 2
        probability = ((probabilities[middle] - start) / (end - start)).limit_denominator(1000)
        quantile = low
        if low < high:
            shifted = SortedCounts(rows.values - low, rows.counts)
            quantile += _quantile(shifted, probability, high - low + 1, rational(epsilon) / levels, run)
        quantiles[middle] = quantile
        lower_rows, upper_rows = rows.split(quantile)
        choose(first, middle, lower_rows, low, quantile, start, probabilities[middle])
        choose(middle + 1, last, upper_rows, min(quantile + 1, high), high, probabilities[middle], end)

    choose(0, len(probabilities), counts, 0, points - 1, Fraction(0), Fraction(1))
    return quantiles


def quantile_scores(counts: SortedCounts, probability: Fraction, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of stretches of 0..points - 1, in order, and their lengths.

    The score of y is -max(0, p n - d #(<= y), d #(< y) - p n) for the quantile p/d of n rows: 0 if y is a quantile.
    One more row changes the score of every y by at most max(p, d - p).
    """
    p, d, values = probability.numerator, probability.denominator, counts.values
    # Of the rows below a value, p n of 1/d, and 0 of these at a quantile.
    excess = d * counts.cumulative - p * len(counts)
    # Stretches between values, and the values themselves, in turn.
    scores, lengths = np.empty(2 * len(values) + 1, np.int64), np.ones(2 * len(values) + 1, np.int64)
    scores[::2] = -np.abs(excess)
    scores[1::2] = -np.maximum(np.maximum(-excess[1:], excess[:-1]), 0)
    lengths[::2] = np.append(values, points)
    lengths[2::2] -= values + 1
    return scores, lengths


def _quantile(counts: SortedCounts, probability: Fraction, points: int, epsilon: Fraction, run: Run) -> int:
    scores, lengths = quantile_scores(counts, probability, points)
    largest_change = run.rows_per_person * max(probability.numerator, probability.denominator - probability.numerator)
    stretch, item = run.choose_item(scores, lengths, epsilon / (2 * largest_change))
    return int(lengths[:stretch].sum()) + item


def zoom_edges(quantiles: Sequence[int], points: int) -> np.ndarray:
    """Return increasing edges from -1 to points - 1: each quantile, and both sides at half the distance repeatedly."""
    edges = {-1, points - 1}
    for quantile in quantiles:
        edges |= {quantile - 1, quantile}
        for distance in (points >> zoom for zoom in range(1, _ZOOMS + 1)):
            edges |= {quantile - distance, quantile + distance}
    return np.array(sorted(edge for edge in edges if -1 <= edge < points))
