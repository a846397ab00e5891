"""Profile likelihood intervals for linear functionals of a mixture.

Let l(theta) be the log-likelihood of all reports, theta the masses of the components of a dictionary, and c'theta a
functional, such as the cdf at a point. The interval is the range of c'theta over all theta with

    2 (max l - l(theta)) <= z^2,        z the normal quantile of the confidence.

With the quadratic model of l at its maximum this is a quadratic program with one parameter: maximise mu c'theta +
l(theta) for increasing mu. Its solution is piecewise linear in mu, and the critical line method follows it. Between two
events the set of positive masses stays the same; at an event one mass becomes 0 or another one becomes positive.

Since the dictionary contains every distribution that is possible, the constraints theta >= 0 are the only assumption.

Sources: Markowitz 1952 (critical line); Kuusela, Patil et al. 2022 (one-at-a-time strict bounds intervals).
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from scipy.linalg.lapack import dposv

# Added to the diagonal of the Hessian, in nats: components that have nearly the same reports stay distinguishable. The
# log-likelihood changes by at most half of it.
_RIDGE = 1e-3
# The least multiplier, in nats. Multipliers are moved by different amounts, so that the maximum is the unique starting
# point and no two events coincide.
_SMALLEST = 1e-6
_MOST_STEPS = 10_000
# Gains and steps beyond these are rounding errors of 0 and of infinity.
_NO_GAIN, _FARTHEST, _STILL = 1e-14, 1e9, 1e-12


class ProfileLikelihood:
    """The quadratic model of a log-likelihood at its maximum.

    Args:
        B: (m, d) P(report j | component k).
        counts: (m,) how often each report was seen.
        shares: (d,) the maximum likelihood shares.
    """

    def __init__(self, B: np.ndarray, counts: np.ndarray, shares: np.ndarray) -> None:
        n, q = counts.sum(), np.maximum(B @ shares, 1e-150)
        # The expected information n/q, and the observed one where hardly any report is expected.
        information = np.where(n * q >= 1, n / q, counts / q**2)
        A = np.sqrt(information)[:, None] * B
        self._hessian = A.T @ A
        self._hessian[np.diag_indices(len(shares))] += _RIDGE
        self._shares = shares
        apart = _SMALLEST * (1 + np.random.default_rng(0).random(len(shares)))
        self._slack = np.where(shares > 0, 0.0, np.maximum(n - B.T @ (counts / q), 0.0) + apart)

    def maximum(self, c: np.ndarray, confidence: float) -> float:
        """Return the upper end of the two-sided interval of c'theta.

        Args:
            c: (d,) the functional's value at each component.
            confidence: in (0, 1).
        """
        room = NormalDist().inv_cdf((1 - confidence) / 2) ** 2 / 2
        theta, slack, mu, loss = self._shares.copy(), self._slack.copy(), 0.0, 0.0
        support = np.flatnonzero(theta).tolist()
        for _ in range(_MOST_STEPS):
            at = np.array(support)
            d_theta, d_slack = self._direction(at, c)
            gain = max(float(c[at] @ d_theta), 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                leave = np.where(d_theta < -_STILL * np.abs(d_theta).max(), -theta[at] / d_theta, np.inf)
                enter = np.where(d_slack < -_STILL, -slack / d_slack, np.inf)
            out, in_ = int(leave.argmin()), int(enter.argmin())
            step = min(leave[out], enter[in_])
            # The loss of log-likelihood increases by gain times the increase of mu^2 / 2.
            last = np.sqrt(mu**2 + 2 * (room - loss) / gain) - mu if gain > _NO_GAIN else np.inf
            if not min(last, step) < _FARTHEST:  # No distribution has a larger value.
                break
            if last <= step:
                theta[at] += last * d_theta
                break
            theta[at] += step * d_theta
            slack = np.maximum(slack + step * d_slack, 0.0)
            loss, mu = loss + gain * ((mu + step) ** 2 - mu**2) / 2, mu + step
            if leave[out] <= enter[in_]:
                theta[at[out]] = 0.0
                support.pop(out)
            else:
                support.append(in_)
        else:
            raise RuntimeError(f"profile: {_MOST_STEPS} steps were not enough")
        return float(c @ theta / theta.sum())

    def _direction(self, at: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives of the positive masses, and of the multipliers of the others, in mu.

        H theta' = c - nu' 1 on the support, and sum theta' = 0.
        """
        rows = self._hessian[at]
        _, solved, info = dposv(rows[:, at], np.stack([c[at], np.ones(len(at))], axis=1))
        if info:
            raise RuntimeError(f"profile: the information of {len(at)} components is singular; this is not expected")
        d_nu = solved[:, 0].sum() / solved[:, 1].sum()
        d_theta = solved[:, 0] - d_nu * solved[:, 1]
        d_slack = rows.T @ d_theta - c + d_nu
        d_slack[at] = 0.0
        return d_theta, d_slack
