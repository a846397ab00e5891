"""The mean of perturbed values, with its confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.exact.bounded import PROMISED_DEVIATION
from dpkernels.exact.registry import ExactMultivariate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import check_shape
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.windowed.mechanism import SquareWave
from dpkernels.numerics import Real
from dpkernels.release import containers

# The share of its width by which a table's reports may exceed the density's output interval: their lattices differ.
_TABLE_ROOM = 0.05


@dataclass(frozen=True)
class MeanEstimate:
    """An unbiased mean with two confidence intervals, as floats or as arrays with one entry per coordinate.

    Attributes:
        value: the mean of the reports.
        interval: a normal interval from the sample variance of the reports, for the mean of the inputs or of the
            population from which they were drawn. It is valid for large n.
        bernstein: a wider interval for the mean of the inputs that is valid for every n. It uses the bounds and the
            worst-case variance of the reports.
        count: n, the number of reports.
        confidence: the confidence of either interval; for vectors, of all coordinates together (Bonferroni).
    """

    value: Any
    interval: tuple[Real, Real]
    bernstein: tuple[Real, Real]
    count: int
    confidence: float


def estimate_mean(reports: Any, mechanism: Any, confidence: float = 0.95) -> MeanEstimate:
    """Return the mean of the values behind reports of one mechanism, by post-processing, which costs no privacy.

    Args:
        reports: the output of ``perturb``, without rows left out; for vectors, coordinates on the last axis.
        mechanism: the mechanism (or exact sampler) that made them.
        confidence: in (0, 1).

    Returns:
        A ``MeanEstimate``, in the data's units.

    Raises:
        ValueError: there are no reports, a report is impossible for the mechanism, the mechanism is biased, or
            confidence is not in (0, 1).
        TypeError: not numbers, or not a mechanism.

    Source: Bernstein's inequality for n unbiased bounded reports, P(|error| >= t) <= 2 exp(-n t^2/(2 V + 2 M t/3)),
    with V the worst-case variance and M the largest |report - input| (Ma 2021, Theorem 5 and Appendix B).
    """
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    mechanism = mechanism.mechanism if isinstance(mechanism, ExactSampler | ExactMultivariate) else mechanism
    values, _ = containers.unwrap(reports)
    rows = _rows(mechanism, np.asarray(values))
    if len(rows) == 0:
        raise ValueError("reports: is empty; there is no mean")
    low, high = (np.asarray(end, float) for end in mechanism.output_interval)
    room = _TABLE_ROOM * (high - low)
    low, high = low - room, high + room
    bad = ~((rows >= low) & (rows <= high))
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(
            f"reports: row {row} is {rows[row]}, outside the mechanism's output interval [{low}, {high}]; "
            "these are not its reports"
        )
    n, d = rows.shape
    tail = (1 - confidence) / d
    mean = rows.mean(axis=0, dtype=np.float64)
    deviation = rows.std(axis=0, ddof=1, dtype=np.float64) if n > 1 else np.full(d, np.inf)
    normal = -NormalDist().inv_cdf(tail / 2) * deviation / math.sqrt(n)
    # Bernstein's t, at which 2 exp(-n t^2 / (2 V + 2 M t / 3)) is the tail: the positive root of a quadratic.
    log_odds, variance = math.log(2 / tail), mechanism.worst_variance * (1 + PROMISED_DEVIATION)
    largest = np.maximum(high - mechanism.input_interval[0], mechanism.input_interval[1] - low)
    third = largest * log_odds / 3
    bernstein = (third + np.sqrt(third**2 + 2 * n * variance * log_odds)) / n
    shape = (lambda v: v) if isinstance(mechanism, Multivariate) else (lambda v: float(np.broadcast_to(v, (1,))[0]))
    return MeanEstimate(
        value=shape(mean),
        interval=(shape(mean - normal), shape(mean + normal)),
        bernstein=(shape(mean - bernstein), shape(mean + bernstein)),
        count=n,
        confidence=confidence,
    )


def _rows(mechanism: Any, reports: np.ndarray) -> np.ndarray:
    if isinstance(mechanism, Multivariate):
        check_shape(mechanism, reports.shape)
        return reports.reshape(-1, mechanism.dimensions)
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism: {type(mechanism).__name__} is not a mechanism or an exact sampler")
    if isinstance(mechanism, SquareWave):
        raise ValueError(
            "mechanism: square wave is biased, so the mean of its reports is not that of the inputs; dpk.estimate "
            "corrects for it, and piecewise needs no correction and is as accurate at the same width of the window"
        )
    return reports.reshape(-1, 1)
