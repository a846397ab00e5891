"""The error of the best linear estimate of the inputs' distribution from reports, an objective of tuning.

Inputs are of one of d bins, reports of one of K cells; A is the channel between them. Of n reports the Fisher
information about the bins' probabilities is n A' diag(1/q) A, q = A p, here at the uniform p. It is nearly singular, so
the probabilities have a prior: the uniform one and a Gaussian process of the density with the covariance (1 + r) e^-r,
r = sqrt(3) |x - y| on [0, 1] (once differentiable), K0 = L L' for the bins. The posterior covariance is

    S = L (1 + n L' A' diag(1/q) A L)^-1 L'

and the error of the cdf at the ends of bins is sqrt(2/pi) times the square root of the diagonal of C S C', C the sums
of first bins: their mean is what the Wasserstein-1 distance of the estimate is about, in widths of the interval.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, RealArray, namespace

_BINS, _CELLS, _INPUTS = 48, 192, 4  # Inputs a bin: evenly spaced, for their average.


@lru_cache(maxsize=1)
def _prior() -> np.ndarray:
    """Return L, of shape (d, d - 1): a square root of the prior's covariance, of probabilities that sum to 1."""
    x = (np.arange(_BINS) + 0.5) / _BINS
    centred = np.eye(_BINS) - 1 / _BINS
    r = np.sqrt(3) * np.abs(x[:, None] - x)
    eigenvalues, vectors = np.linalg.eigh(centred @ ((1 + r) * np.exp(-r)) @ centred / _BINS**2)
    return vectors[:, 1:] * np.sqrt(np.maximum(eigenvalues[1:], 0.0))


def channel(mechanism: Mechanism) -> RealArray:
    """Return A, of shape (K, d): P(report in cell | bin), cells evenly spaced over the output interval."""
    (lower, upper), (low, high) = mechanism.input_interval, mechanism.output_interval
    x = lower + (upper - lower) * (np.arange(_BINS * _INPUTS) + 0.5) / (_BINS * _INPUTS)
    inner = low + (high - low) * np.linspace(0, 1, _CELLS + 1)[1:-1, None]
    below = mechanism.cdf(inner, x)
    xp = namespace(below)
    below = xp.concatenate([xp.zeros((1, x.size)), below, xp.ones((1, x.size))])
    return xp.diff(below, axis=0).reshape(_CELLS, _BINS, _INPUTS).mean(-1)


def cdf_error(mechanism: Any, reports: Real) -> Real:
    """Return the expected absolute error of the cdf, averaged over the interval, in data units; see the module."""
    lower, upper = mechanism.input_interval
    A, L = channel(mechanism), _prior()
    xp = namespace(A)
    q = A.mean(1)
    weight = xp.where(q > 0, 1 / xp.where(q > 0, q, 1.0), 0.0)
    B = A @ L
    information = xp.eye(L.shape[1]) + reports * (B.T * weight) @ B
    C = xp.cumsum(L, axis=0)
    variances = (C.T * xp.linalg.solve(information, C.T)).sum(0)
    return xp.sqrt(2 / xp.pi) * xp.sqrt(xp.maximum(variances[:-1], 1e-30)).mean() * (upper - lower)
