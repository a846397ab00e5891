"""Maximum likelihood estimates of a distribution from counts of reports, with a certificate of optimality.

If inputs have the shares theta_k in d bins, reports have the probabilities B theta, with B[j, k] = P(report j | bin k).
The mean log-likelihood l(theta) = sum_j p_j log (B theta)_j of the observed shares p is concave. No distribution has a
log-likelihood above that of theta by more than the duality gap

    gap = max_k g_k - sum_k theta_k g_k = max_k g_k - 1,    g = B' (p / B theta).

An interior-point method closes the gap in about 20 steps. Expectation maximisation, theta <- theta g, takes thousands.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dpkernels.exact.sampler import ON_CPU

# Gaps in log-likelihood per report: the target of the method, and the largest that is accepted.
_AIM, LARGEST_GAP = 1e-9, 1e-6
_MOST_STEPS = 100
# A regularisation of a matrix whose largest eigenvalue is about 1. With few reports the matrix is singular up to
# rounding. The regularisation changes the steps, but not the solution.
_RIDGE = 1e-13
# The largest step, as a share of the distance to the nearest bound.
_TO_BOUND = 0.99


@dataclass(frozen=True, repr=False)
class Fit:
    """A distribution over bins.

    Attributes:
        shares: (d,) of the bins, at least 0, with sum 1.
        log_likelihood: per report, in nats.
        gap: a bound on the difference to the largest log-likelihood per report over these bins.
        steps: the number of iterations.
    """

    shares: np.ndarray
    log_likelihood: float
    gap: float
    steps: int

    def __repr__(self) -> str:
        return f"Fit({len(self.shares)} bins, log-likelihood {self.log_likelihood:.6g} a report, gap {self.gap:.2g})"


def most_likely(B: np.ndarray, counts: np.ndarray) -> Fit:
    """Return the shares of greatest likelihood, certified.

    Args:
        B: (m, d) P(report j | bin k).
        counts: (m,) how often each report was seen.

    Raises:
        ValueError: there are no reports, or one that has probability 0 from every bin.
        RuntimeError: the gap has not become small; this is not expected.
    """
    p = _shares(B, counts)
    with jax.enable_x64(True):
        theta, steps = _one(_padded(B), _padded(p))
    fit = judged(B, counts, np.asarray(theta)[: B.shape[1]], int(steps))
    if not fit.gap <= LARGEST_GAP:
        raise RuntimeError(f"likelihood: the gap is {fit.gap:.3g} a report after {fit.steps} steps, not {LARGEST_GAP}")
    return fit


def most_likely_each(B: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return (b, d) the shares of greatest likelihood of (b, m) counts, in one compiled loop.

    Raises:
        RuntimeError: not all are within a gap of 1e-9; this is not expected.
    """
    p = counts / counts.sum(axis=1, keepdims=True)
    with jax.enable_x64(True):
        theta, steps = (np.asarray(part) for part in _each(_padded(B), _padded(p, (1,))))
    if steps.max() == _MOST_STEPS or not np.isfinite(theta).all():
        raise RuntimeError(f"likelihood: {_MOST_STEPS} steps were not enough for resampled reports")
    shares = theta[:, : B.shape[1]]
    return shares / shares.sum(axis=1, keepdims=True)


def _padded(array: np.ndarray, axes: tuple[int, ...] = (0, 1)) -> Array:
    """Pad with zeros to one of a few sizes, powers of 4, so that few programs are compiled; the result is unchanged."""
    sizes = [
        max(16, 4 ** (((n - 1).bit_length() + 1) // 2)) if axis in axes else n for axis, n in enumerate(array.shape)
    ]
    return jnp.asarray(np.pad(array, [(0, size - n) for size, n in zip(sizes, array.shape, strict=True)]))


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


def _interior_point(B: Array, p: Array) -> tuple[Array, Array]:
    """Minimise sum theta - sum_j p_j log (B theta)_j over theta >= 0; the solution sums to 1.

    Primal-dual with Mehrotra's predictor and corrector: z >= 0 are the bounds' multipliers, 1 - g = z at the solution,
    and theta z = 0. Equations are scaled by sqrt(theta), which keeps their condition as theta goes to 0.
    """
    d = B.shape[1]

    def gradient(theta: Array) -> tuple[Array, Array]:
        q = jnp.maximum(B @ theta, 1e-300)
        return 1 - B.T @ (p / q), q

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        theta, _, step = state
        total = theta.sum()
        g = 1 - gradient(theta / total)[0]
        return (jnp.max(g) - 1 > _AIM) & (step < _MOST_STEPS)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        theta, z, count = state
        slope, q = gradient(theta)
        root = jnp.sqrt(theta)
        A = B * (jnp.sqrt(p) / q)[:, None] * root
        factor = jax.scipy.linalg.cho_factor(A.T @ A + jnp.diag(z + _RIDGE))

        def move(target: Array) -> tuple[Array, Array]:
            """Return the Newton step to theta z = target."""
            d_theta = root * jax.scipy.linalg.cho_solve(factor, root * (target / theta - slope))
            return d_theta, (target - z * d_theta) / theta - z

        mu = theta @ z / d
        ahead, z_ahead = move(jnp.zeros(d))
        left = (theta + _length(theta, ahead) * ahead) @ (z + _length(z, z_ahead) * z_ahead) / d
        ahead, z_ahead = move((left / mu) ** 3 * mu - ahead * z_ahead)
        theta = theta + _TO_BOUND * _length(theta, ahead) * ahead
        return theta, z + _TO_BOUND * _length(z, z_ahead) * z_ahead, count + 1

    theta = jnp.full(d, 1 / d)
    start = theta, jnp.maximum(gradient(theta)[0], 0.0) + 1.0, jnp.array(0)
    theta, _, steps = lax.while_loop(unfinished, step, start)
    return theta / theta.sum(), steps


# One thread each: products are small, and threads that wait for each other cost more than they save.
_one = jax.jit(_interior_point, compiler_options=ON_CPU)
_each = jax.jit(jax.vmap(_interior_point, (None, 0)), compiler_options=ON_CPU)


def _length(at: Array, move: Array) -> Array:
    """Return the largest step up to 1 after which all entries are nonnegative."""
    return jnp.minimum(1.0, jnp.min(jnp.where(move < 0, -at / jnp.where(move < 0, move, -1.0), 1.0)))
