"""Densities that are mixtures of quadratic B-splines: few numbers for a smooth distribution, many for a rough one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.interpolate import BSpline

_DEGREE = 2
# The numbers of splines that are tried, up to d/4 for d bins.
LADDER = (6, 8, 12, 16, 24, 32, 48, 64)


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
