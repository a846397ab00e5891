"""Smoothed maximum likelihood (EMS): expectation maximisation with a smoothing step after each step.

The iteration is theta <- S (theta B' (p / B theta)), where S averages neighbouring bins with the weights (1, 2, 1)/4
and repeats the first and the last bin. With few noisy reports the maximum likelihood distribution consists of spikes;
the smoothed one is nearer to a smooth true distribution.

Source: Silverman, Jones, Wilson & Nychka 1990; for locally private reports Li et al. 2020 (square wave).
"""

from __future__ import annotations

import numpy as np

# The iteration stops when a step moves less than this share of the total.
_AIM = 1e-5
_MOST_STEPS = 5000


def smoothed(B: np.ndarray, counts: np.ndarray, bins: int) -> np.ndarray:
    """Return the shares at the fixed point of EMS.

    Args:
        B: (m, d) P(report j | component k).
        counts: (m,) how often each report was seen, at least one.
        bins: how many of the components are neighbouring bins, which come first; the shares of the others are not
            smoothed.
    """
    p, B_T, d = counts / counts.sum(), np.ascontiguousarray(B.T), B.shape[1]
    theta, padded = np.full(d, 1 / d), np.empty(bins + 2)
    for _ in range(_MOST_STEPS):
        new = theta * (B_T @ (p / np.maximum(B @ theta, 1e-300)))
        padded[1:-1] = new[:bins]
        padded[0], padded[-1] = padded[1], padded[-2]
        new[:bins] = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
        moved, theta = np.abs(new - theta).sum(), new
        if moved <= _AIM:
            break
    return theta / theta.sum()
