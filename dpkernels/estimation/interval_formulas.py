"""Formulas of confidence intervals of means and probabilities.

Intervals of means are Student's, with the pooled variance of ``pooled_variance``: a few reports may have similar values
by chance, so that their own variance is too small. Two-point reports have Clopper and Pearson's intervals. Bernstein's
intervals hold at every n.
"""

from __future__ import annotations

import numpy as np

from dpkernels.numerics import Real

# As many reports of the known variance are pooled with the sample, like the z^2 = 4 of Agresti and Coull (1998).
_POOLED = 4


def bernstein_half_width(n: int, variance: Real, largest: Real, log_odds: float) -> Real:
    """Return the t at which Bernstein's bound 2 exp(-n t^2/(2 V + 2 M t/3)) of P(|error| >= t) is 2 e^-log_odds.

    V and M are the largest variance and deviation of a report, over all inputs.
    """
    third = largest * log_odds / 3
    return (third + np.sqrt(third**2 + 2 * n * variance * log_odds)) / n


def pooled_variance(n: int, sample: Real, noise: Real, least_variance: Real) -> Real:
    """Return the variance of a report for an interval: the sample's, pooled with the known one of the noise.

    ``noise`` is the variance of the noise at the estimated mean, and ``least_variance`` a lower bound on the mean
    variance of the noise of inputs with this mean. A smaller sample variance is due to chance.
    """
    return np.maximum(((n - 1) * sample + _POOLED * noise) / (n - 1 + _POOLED), least_variance)


def pooled_mean(n: int, mean: Real, middle: Real) -> Real:
    """Return the mean of a sample and of the reports that are pooled with it, at the middle of the inputs."""
    return (n * mean + _POOLED * middle) / (n + _POOLED)


def student_quantile(degrees: float, confidence: float) -> float:
    """Return the half-width, in standard errors, of Student's interval."""
    from scipy import special  # Imported on use: it takes 0.7 s.

    return -float(special.stdtrit(degrees, (1 - confidence) / 2))  # (1 + confidence)/2 may be 1


def pooled_quantile(n: int, confidence: float) -> float:
    """Return that half-width for a ``pooled_variance``."""
    return student_quantile(n - 1 + _POOLED, confidence)


def clopper_pearson(n: int, count: Real, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a probability of which there are ``count`` of n.

    It holds for the mean of n different probabilities, too, whose number of successes varies less (Hoeffding 1956).

    Source: C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits", Biometrika 26 (1934).
    """
    from scipy import special  # Imported on use: it takes 0.7 s.

    tail = (1 - confidence) / 2
    low = clopper_pearson_lower(n, count, tail)
    return low, np.where(count < n, special.betainccinv(count + 1, np.maximum(n - count, 1), tail), 1.0)


def clopper_pearson_lower(n: int, count: Real, error_rate: float) -> np.ndarray:
    """Return the lower end alone, which exceeds the probability with at most the error rate."""
    from scipy import special  # Imported on use: it takes 0.7 s.

    return np.where(count > 0, special.betaincinv(np.maximum(count, 1), n - count + 1, error_rate), 0.0)


def convex_minorant(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the largest convex function below values at increasing x: of means of values by the mean of their x."""
    corners = [0]
    for i in range(1, len(x)):
        while len(corners) > 1 and (values[corners[-1]] - values[corners[-2]]) * (x[i] - x[corners[-2]]) >= (
            values[i] - values[corners[-2]]
        ) * (x[corners[-1]] - x[corners[-2]]):
            corners.pop()
        corners.append(i)
    return np.interp(x, x[corners], values[corners])
