"""Densities that are mixtures of quadratic B-splines: few numbers for a smooth distribution, many for one with spikes.

The number of splines maximises the log-likelihood less a penalty of 2 for every spline that is used (between Akaike's 1
and Schwarz's log(n)/2). Their shares are maximum likelihood estimates, like those of bins: the channel of a spline is
the average of that of its bins.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.interpolate import BSpline

from dpkernels.estimation.likelihood import Fit, most_likely

_DEGREE = 2
# The numbers of splines that are tried, up to d/4 for d bins.
LADDER = (6, 8, 12, 16, 24, 32, 48, 64)
_PENALTY = 2.0
# Shares below this are a solver's zeros.
_USED = 1e-4


@lru_cache(maxsize=32)
def basis(bins: int, splines: int) -> np.ndarray:
    """Return (bins, splines) the share of every spline in equal bins; columns have the sum 1."""
    knots = np.linspace(0, 1, splines - _DEGREE + 1)
    knots = np.concatenate([np.zeros(_DEGREE), knots, np.ones(_DEGREE)])
    integrals = BSpline(knots, np.eye(splines), _DEGREE).antiderivative()(np.linspace(0, 1, bins + 1))
    shares = np.diff(integrals, axis=0)
    return shares / shares.sum(axis=0)


def ladder(bins: int) -> tuple[int, ...]:
    """Return the numbers of splines that are available for this number of bins."""
    return tuple(k for k in LADDER if 4 * k <= bins) or LADDER[:1]


def chosen(B: np.ndarray, counts: np.ndarray) -> int:
    """Return the number of splines whose penalised likelihood is the greatest.

    Args:
        B: (m, d) P(report j | bin k).
        counts: (m,) how often each report was seen.
    """

    def score(splines: int) -> float:
        fit = spline_fit(B, counts, splines)
        return counts.sum() * fit.log_likelihood - _PENALTY * (fit.shares > _USED).sum()

    return max(ladder(B.shape[1]), key=score)


def spline_fit(B: np.ndarray, counts: np.ndarray, splines: int) -> Fit:
    """Return the shares of splines, not of bins, of greatest likelihood."""
    return most_likely(B @ basis(B.shape[1], splines), counts)
