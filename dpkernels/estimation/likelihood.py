"""Maximum likelihood estimates of a mixture from counts of reports: exact with a certificate, and smoothed.

If inputs have the masses theta_k at d components of a dictionary (points, bins or splines), reports have the
probabilities B theta, with B[j, k] = P(report j | component k). The mean log-likelihood l(theta) = sum_j p_j log (B
theta)_j of the observed shares p is concave. It is at most this gap below its maximum:

    gap = max_k g_k - sum_k theta_k g_k = max_k g_k - 1,    g = B' (p / B theta).

The constrained Newton method closes the gap in about ten steps. A step adds the components at which g has a local
maximum above 1. It then maximises the quadratic model of the log-likelihood over the masses of these and of the present
components. This is a nonnegative least squares problem, which sets the masses of superfluous components to 0.

Smoothed maximum likelihood (EMS) iterates theta <- S (theta B' (p / B theta)), where S averages neighbouring bins with
the weights (1, 2, 1)/4 and repeats the first and the last bin. With few noisy reports the maximum likelihood
distribution consists of spikes; the smoothed one is nearer to a smooth true distribution.

Sources: Wang, "On fast computation of the non-parametric maximum likelihood estimate of a mixing distribution" (2007);
Silverman, Jones, Wilson & Nychka 1990 (EMS), for locally private reports Li et al. 2020 (square wave).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

# Gaps in log-likelihood per report: the target of the method, and the largest that is accepted.
_AIM, LARGEST_GAP = 1e-9, 1e-6
_MOST_STEPS = 200
# The weight of the equation sum theta = 1 among the least squares equations.
_WEIGHT = 1e3
# A step is halved until the log-likelihood increases; shorter steps than this are rounding errors.
_SHORTEST = 1e-9
# Shares below this are rounding errors of 0.
_ZERO = 1e-14
# Smoothing stops when a step moves less than this share of the total, or after this number of steps.
_SMOOTH, _MOST_SMOOTHING_STEPS = 1e-5, 5000


@dataclass(frozen=True, repr=False)
class Fit:
    """A distribution over the components of a dictionary."""

    shares: np.ndarray  # (d,) of the components, at least 0, with sum 1
    log_likelihood: float  # per report, in nats
    gap: float  # a bound on the difference to the largest log-likelihood per report over this dictionary
    steps: int  # the number of iterations

    def __repr__(self) -> str:
        size = f"{len(self.shares)} components"
        return f"Fit({size}, log-likelihood {self.log_likelihood:.6g} a report, gap {self.gap:.2g})"


def most_likely(B: np.ndarray, counts: np.ndarray) -> Fit:
    """Return the shares of greatest likelihood, certified, given (m, d) B and (m,) how often each report was seen.

    A ValueError says that there are no reports, or one that has probability 0 from every component.
    """
    p = _shares(B, counts)
    seen = p > 0
    A, p = B[seen], p[seen]
    theta = uniform = np.full(B.shape[1], 1 / B.shape[1])
    steps, is_better = 0, True
    while is_better and steps < _MOST_STEPS:
        q = A @ theta
        g = A.T @ (p / q)
        if g.max() - 1 <= _AIM:
            break
        padded = np.concatenate([[-np.inf], g, [-np.inf]])
        peaks = (g >= padded[:-2]) & (g >= padded[2:]) & (g > 1)
        columns = np.flatnonzero((theta > 0) & (theta is not uniform) | peaks)
        target = np.zeros_like(theta)
        target[columns] = _newton(A[:, columns] / q[:, None], p)
        theta, is_better = _ascended(A, p, theta, target - theta)
        steps += 1
    fit = judged(B, counts, theta, steps)
    if not fit.gap <= LARGEST_GAP:
        raise RuntimeError(f"likelihood: the gap is {fit.gap:.3g} a report after {fit.steps} steps, not {LARGEST_GAP}")
    return fit


def judged(B: np.ndarray, counts: np.ndarray, shares: np.ndarray, steps: int = 0) -> Fit:
    """Return the shares with their log-likelihood and duality gap."""
    p, shares = _shares(B, counts), shares / shares.sum()
    q = B @ shares
    seen = p > 0
    with np.errstate(divide="ignore"):
        g = B[seen].T @ (p[seen] / q[seen])
        return Fit(shares, float(p[seen] @ np.log(q[seen])), float(g.max() - 1), steps)


def _shares(B: np.ndarray, counts: np.ndarray) -> np.ndarray:
    total = counts.sum()
    if not total:
        raise ValueError("reports: there are none; there is no distribution")
    if (counts[B.sum(axis=1) == 0] > 0).any():
        raise ValueError("reports: some are impossible for every input of the interval")
    return counts / total


def _newton(S: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return shares that maximise the quadratic model of the log-likelihood, -sum_j p_j ((S theta)_j - 2)^2 / 2."""
    root = np.sqrt(p)
    equations = np.vstack([root[:, None] * S, np.full((1, S.shape[1]), _WEIGHT)])
    theta = nnls(equations, np.append(2 * root, _WEIGHT), maxiter=20 * S.shape[1] + 200)[0]
    return theta / theta.sum()


def _ascended(A: np.ndarray, p: np.ndarray, theta: np.ndarray, move: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return theta after the longest of the steps 1, 1/2, 1/4, ... that increases the likelihood, if there is one."""
    before, length = p @ np.log(A @ theta), 1.0
    while length > _SHORTEST:
        new = theta + length * move
        new[new < _ZERO] = 0.0
        q = A @ new
        if q.min() > 0 and p @ np.log(q / new.sum()) >= before:
            return new / new.sum(), True
        length /= 2
    return theta, False


def smoothed(B: np.ndarray, counts: np.ndarray, bins: int) -> np.ndarray:
    """Return the shares at the fixed point of EMS, of which the first ``bins`` are neighbours and smoothed."""
    p, B_T, d = counts / counts.sum(), np.ascontiguousarray(B.T), B.shape[1]
    theta, padded = np.full(d, 1 / d), np.empty(bins + 2)
    for _ in range(_MOST_SMOOTHING_STEPS):
        new = theta * (B_T @ (p / np.maximum(B @ theta, 1e-300)))
        padded[1:-1] = new[:bins]
        padded[0], padded[-1] = padded[1], padded[-2]
        new[:bins] = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
        moved, theta = np.abs(new - theta).sum(), new
        if moved <= _SMOOTH:
            break
    return theta / theta.sum()
