"""Maximum likelihood estimates of a mixture from counts of reports, and profile likelihood intervals.

Let inputs have the masses theta_k at d components (points, bins or splines). Reports then have the probabilities B
theta, with B[j, k] = P(report j | component k). The mean log-likelihood l(theta) = sum_j p_j log (B theta)_j of the
observed frequencies p is concave. Its distance from the maximum is at most the gap

    gap = max_k g_k - sum_k theta_k g_k = max_k g_k - 1,    g = B' (p / B theta).

The constrained Newton method closes the gap in about ten steps. A step adds the components at which g has a local
maximum above 1. It then maximises the quadratic model of the log-likelihood over the masses of all current components.
This is a nonnegative least squares problem, whose solution sets the masses of superfluous components to 0. If the
component of a rare report is left with too little mass, a step of expectation maximisation restores it.

Smoothed maximum likelihood (EMS) iterates theta <- S (theta B' (p / B theta)), where S averages neighbouring bins with
the weights (1, 2, 1)/4 and repeats the first and the last bin. With few noisy reports the maximum likelihood
distribution consists of spikes; the smoothed one is nearer to a smooth true distribution.

The profile likelihood interval of a linear functional c'theta, with n reports, is its range over all theta with

    2 n (max l - l(theta)) <= z^2,        z the normal quantile of the confidence.

With the quadratic model of l at its maximum this is a quadratic program with one parameter: maximise mu c'theta +
n l(theta) for increasing mu. Its solution is piecewise linear in mu, and the critical line method follows it. Between
two events the set of positive masses stays the same; at an event one mass becomes 0 or another one becomes positive.

Sources: Wang, "On fast computation of the non-parametric maximum likelihood estimate of a mixing distribution" (2007);
Silverman, Jones, Wilson & Nychka 1990 (EMS), for locally private reports Li et al. 2020 (square wave); Markowitz 1952
(critical line); Kuusela, Patil et al. 2022 (one-at-a-time strict bounds intervals).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from scipy.linalg.lapack import dposv
from scipy.optimize import nnls

from dpkernels.shapes import Float, Int, Num

# The gap in log-likelihood per report at which the method stops.
_GAP_TOLERANCE = 1e-9
# The largest gap that is accepted.
MAX_GAP = 1e-6
_MAX_ITERATIONS = 200  # The most steps. The last one is taken if its gap is accepted.
# The weight of the equation sum theta = 1 among the least squares equations.
_SUM_WEIGHT = 1e3
# A step is halved until the log-likelihood increases; shorter steps than this are rounding errors.
_MIN_STEP = 1e-9
# Shares below this are rounding errors of 0.
_MIN_SHARE = 1e-14
# Smoothing stops when a step moves less than this fraction of the total.
_SMOOTHING_TOLERANCE = 1e-5
# It stops after this number of steps at the latest.
_MAX_SMOOTHING_STEPS = 5000

# Of profiles: added to the diagonal of the Hessian, in nats, so that components that have nearly the same reports stay
# distinguishable. The log-likelihood changes by at most half of it.
_RIDGE = 1e-3
# The least multiplier, in nats. Multipliers are moved by different amounts, so that the maximum is the unique starting
# point and no two events coincide.
_MIN_MULTIPLIER = 1e-6
_MAX_EVENTS = 10_000  # The most steps of a profile; more are an error.
# A smaller gain is a rounding error of 0.
_MIN_GAIN = 1e-14
# A longer step is a rounding error of infinity.
_MAX_STEP = 1e9
# A smaller derivative, relative to the largest one, is a rounding error of 0.
_MIN_DERIVATIVE = 1e-12
# Numbers that differ by less than this fraction of the interval are the same position.
_POSITION_RTOL = 1e-9

Ends = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, repr=False)
class Fit:
    """A distribution over the components of a dictionary."""

    shares: Float[np.ndarray, " components"]  # of the components, at least 0, with sum 1
    log_likelihood: float  # per report, in nats
    gap: float  # a bound on the difference to the largest log-likelihood per report over this dictionary
    steps: int  # the number of iterations

    def __repr__(self) -> str:
        size = f"{len(self.shares)} components"
        return f"Fit({size}, log-likelihood {self.log_likelihood:.6g} a report, gap {self.gap:.2g})"


def maximum_likelihood(B: Float[np.ndarray, "groups components"], counts: Num[np.ndarray, " groups"]) -> Fit:
    """Return the shares of greatest likelihood, certified, given (m, d) B and (m,) how often each report was seen.

    A ValueError says that there are no reports, or one that has probability 0 from every component.
    """
    p = _shares(B, counts)
    is_seen = p > 0
    A, p = B[is_seen], p[is_seen]
    theta = uniform = np.full(B.shape[1], 1 / B.shape[1])
    steps, is_better = 0, True
    while is_better and steps < _MAX_ITERATIONS:
        q = A @ theta
        g = A.T @ (p / q)
        if g.max() - 1 <= _GAP_TOLERANCE:
            break
        padded = np.concatenate([[-np.inf], g, [-np.inf]])
        peaks = (g >= padded[:-2]) & (g >= padded[2:]) & (g > 1)
        columns = np.flatnonzero((theta > 0) & (theta is not uniform) | peaks)
        target = np.zeros_like(theta)
        if g.max() > 2 * len(theta):
            # A share is so small that the quadratic model would at most double it; with uniform shares, g is at most d.
            target = (theta * g + uniform) / 2  # The first half is a step of expectation maximisation.
        else:
            target[columns] = _newton_shares(A[:, columns] / q[:, None], p)
        theta, is_better = _line_search(A, p, theta, target - theta)
        steps += 1
    fit = evaluate_fit(B, counts, theta, steps)
    if not fit.gap <= MAX_GAP:
        raise RuntimeError(f"likelihood: the gap is {fit.gap:.3g} a report after {fit.steps} steps, not {MAX_GAP}")
    return fit


def evaluate_fit(
    B: Float[np.ndarray, "groups components"],
    counts: Num[np.ndarray, " groups"],
    shares: Float[np.ndarray, " components"],
    steps: int = 0,
) -> Fit:
    """Return the shares with their log-likelihood and duality gap."""
    p, shares = _shares(B, counts), shares / shares.sum()
    q = B @ shares
    is_seen = p > 0
    with np.errstate(divide="ignore"):
        g = B[is_seen].T @ (p[is_seen] / q[is_seen])
        return Fit(shares, float(p[is_seen] @ np.log(q[is_seen])), float(g.max() - 1), steps)


def _shares(
    B: Float[np.ndarray, "groups components"], counts: Num[np.ndarray, " groups"]
) -> Float[np.ndarray, " groups"]:
    total = counts.sum()
    if not total:
        raise ValueError("reports: there are none; there is no distribution")
    if (counts[B.sum(axis=1) == 0] > 0).any():
        raise ValueError("reports: some are impossible for every input of the interval")
    return counts / total


def _newton_shares(
    S: Float[np.ndarray, "groups components"], p: Float[np.ndarray, " groups"]
) -> Float[np.ndarray, " components"]:
    """Return shares that maximise the quadratic model of the log-likelihood, -sum_j p_j ((S theta)_j - 2)^2 / 2."""
    root = np.sqrt(p)
    equations = np.vstack([root[:, None] * S, np.full((1, S.shape[1]), _SUM_WEIGHT)])
    theta = nnls(equations, np.append(2 * root, _SUM_WEIGHT), maxiter=20 * S.shape[1] + 200)[0]
    return theta / theta.sum()


def _line_search(
    A: Float[np.ndarray, "groups components"],
    p: Float[np.ndarray, " groups"],
    theta: Float[np.ndarray, " components"],
    move: Float[np.ndarray, " components"],
) -> tuple[Float[np.ndarray, " components"], bool]:
    """Return theta after the longest of the steps 1, 1/2, 1/4, ... that increases the likelihood, if there is one."""
    before, length = p @ np.log(A @ theta), 1.0
    while length > _MIN_STEP:
        new = theta + length * move
        new[new < _MIN_SHARE] = 0.0
        q = A @ new
        if q.min() > 0 and p @ np.log(q / new.sum()) >= before:
            return new / new.sum(), True
        length /= 2
    return theta, False


def ems_shares(
    B: Float[np.ndarray, "groups components"], counts: Num[np.ndarray, " groups"], bins: int
) -> Float[np.ndarray, " components"]:
    """Return the shares at the fixed point of EMS, of which the first ``bins`` are neighbours and smoothed."""
    p, B_T, d = counts / counts.sum(), np.ascontiguousarray(B.T), B.shape[1]
    theta, padded = np.full(d, 1 / d), np.empty(bins + 2)
    for _ in range(_MAX_SMOOTHING_STEPS):
        new = theta * (B_T @ (p / np.maximum(B @ theta, 1e-300)))
        padded[1:-1] = new[:bins]
        padded[0], padded[-1] = padded[1], padded[-2]
        new[:bins] = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
        moved, theta = np.abs(new - theta).sum(), new
        if moved <= _SMOOTHING_TOLERANCE:
            break
    return theta / theta.sum()


class ProfileLikelihood:
    """The quadratic model of a log-likelihood at its maximum; B and counts are those of ``maximum_likelihood``."""

    def __init__(
        self,
        B: Float[np.ndarray, "groups components"],
        counts: Num[np.ndarray, " groups"],
        shares: Float[np.ndarray, " components"],
    ) -> None:
        n, q = counts.sum(), np.maximum(B @ shares, 1e-150)
        # The expected information n/q, and the observed one where hardly any report is expected.
        information = np.where(n * q >= 1, n / q, counts / q**2)
        A = np.sqrt(information)[:, None] * B
        self._hessian = A.T @ A
        self._hessian[np.diag_indices(len(shares))] += _RIDGE
        self._shares = shares
        offsets = _MIN_MULTIPLIER * (1 + np.random.default_rng(0).random(len(shares)))
        self._slack = np.where(shares > 0, 0.0, np.maximum(n - B.T @ (counts / q), 0.0) + offsets)

    def maximum(self, c: Float[np.ndarray, " components"], confidence: float) -> float:
        """Return the upper end of the two-sided interval of c'theta, with c of shape (d,)."""
        allowance = NormalDist().inv_cdf((1 - confidence) / 2) ** 2 / 2
        theta, slack, mu, loss = self._shares.copy(), self._slack.copy(), 0.0, 0.0
        support = np.flatnonzero(theta)
        for _ in range(_MAX_EVENTS):
            d_theta, d_slack = self._direction(support, c)
            gain = max(float(c[support] @ d_theta), 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                is_falling = d_theta < -_MIN_DERIVATIVE * np.abs(d_theta).max()
                leave_steps = np.where(is_falling, -theta[support] / d_theta, np.inf)
                enter_steps = np.where(d_slack < -_MIN_DERIVATIVE, -slack / d_slack, np.inf)
            leaving, entering = int(leave_steps.argmin()), int(enter_steps.argmin())
            step = min(leave_steps[leaving], enter_steps[entering])
            # The loss of log-likelihood increases by gain times the increase of mu^2 / 2.
            last_step = np.sqrt(mu**2 + 2 * (allowance - loss) / gain) - mu if gain > _MIN_GAIN else np.inf
            if not min(last_step, step) < _MAX_STEP:  # No distribution has a larger value.
                break
            if last_step <= step:
                theta[support] += last_step * d_theta
                break
            theta[support] += step * d_theta
            slack = np.maximum(slack + step * d_slack, 0.0)
            loss, mu = loss + gain * ((mu + step) ** 2 - mu**2) / 2, mu + step
            if leave_steps[leaving] <= enter_steps[entering]:
                theta[support[leaving]] = 0.0
                support = np.delete(support, leaving)
            else:
                support = np.append(support, entering)
        else:
            raise RuntimeError(f"profile: {_MAX_EVENTS} steps were not enough")
        return float(c @ theta / theta.sum())

    def _direction(
        self, support: Int[np.ndarray, " support"], c: Float[np.ndarray, " components"]
    ) -> tuple[Float[np.ndarray, " support"], Float[np.ndarray, " components"]]:
        """Return the derivatives in mu of the positive masses, and of the multipliers of the others.

        H theta' = c - nu' 1 on the support, and sum theta' = 0.
        """
        rows = self._hessian[support]
        _, solved, info = dposv(rows[:, support], np.stack([c[support], np.ones(len(support))], axis=1))
        if info:
            raise RuntimeError(f"profile: {len(support)} components have singular information; this is not expected")
        d_nu = solved[:, 0].sum() / solved[:, 1].sum()
        d_theta = solved[:, 0] - d_nu * solved[:, 1]
        d_slack = rows.T @ d_theta - c + d_nu
        d_slack[support] = 0.0
        return d_theta, d_slack


class MixtureModel:
    """Mixtures of splines, whose columns come first, and of atoms, which are point masses at known positions.

    ``columns`` are (m, d) P(group of reports | component), and ``counts`` (m,) of the groups. ``shapes`` are (bins,
    splines) the share of every spline in each bin between ``edges``; without edges inputs are at the atoms only.
    Quantiles are evaluated at (k,) increasing ``positions``, from the smallest to the largest possible input.
    """

    def __init__(
        self,
        columns: Float[np.ndarray, "groups components"],
        counts: Num[np.ndarray, " groups"],
        atoms: Float[np.ndarray, " atoms"],
        edges: Float[np.ndarray, " edges"] | None = None,
        shapes: Float[np.ndarray, "bins splines"] | None = None,
    ) -> None:
        self.columns, self.counts, self._atoms, self._is_grid = columns, counts, atoms, edges is None
        self._edges = atoms if edges is None else edges
        self.positions = np.union1d(self._edges, atoms)
        self._cumulated = [] if shapes is None else [np.append(0.0, column) for column in np.cumsum(shapes, axis=0).T]
        self._tolerance = _POSITION_RTOL * float(self.positions[-1] - self.positions[0])
        self._cdf_ends = dict[tuple[int, int, float], float]()

    @cached_property
    def fit(self) -> Fit:
        return maximum_likelihood(self.columns, self.counts)

    @cached_property
    def _profile(self) -> ProfileLikelihood:
        return ProfileLikelihood(self.columns, self.counts, self.fit.shares)

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        """Return (d,) vectors c with c'theta <= P(X <= x) <= c'theta, or of P(X < x) if strict."""
        smooth = [np.interp(x, self._edges, column) for column in self._cumulated]
        limit = x - self._tolerance if strict else x + self._tolerance
        row = np.append(smooth, (self._atoms <= limit).astype(float))
        return row, row

    def between(self, a: float, b: float, *, closed: bool) -> Ends:
        """Return (d,) vectors that bound P(a <= X < b), or P(a <= X <= b) if closed."""
        (low_a, high_a), (low_b, high_b) = self.cumulative(a, strict=True), self.cumulative(b, strict=not closed)
        return low_b - high_a, high_b - low_a

    def interval(self, ends: Ends, confidence: float) -> tuple[float, float]:
        return -self._profile.maximum(-ends[0], confidence), self._profile.maximum(ends[1], confidence)

    def quantile_interval(self, p: float, confidence: float) -> tuple[float, float]:
        """Return the numbers between which the p-quantile lies: those at which the cdf may be p."""
        lower, upper = self._first_index(p, 1, confidence), self._first_index(p, 0, confidence)
        if not self._is_grid:  # The quantile may lie between the position before and this one.
            lower = max(lower - 1, 0)
        return float(self.positions[lower]), float(self.positions[upper])

    def _first_index(self, p: float, end: int, confidence: float) -> int:
        """Return the first index at which the lower (0) or upper (1) end of the cdf is at least p, or the last one."""
        return bisect_left(range(len(self.positions) - 1), True, key=lambda i: self._cdf_end(i, end, confidence) >= p)

    def _cdf_end(self, index: int, end: int, confidence: float) -> float:
        """Return an end of the cdf's interval at a position, cached because quantiles are sought at the same ones."""
        if (key := (index, end, confidence)) not in self._cdf_ends:
            sign = 2 * end - 1
            c = self.cumulative(self.positions[index])[end]
            self._cdf_ends[key] = sign * self._profile.maximum(sign * c, confidence)
        return self._cdf_ends[key]


class AnyDistribution(MixtureModel):
    """All distributions on an interval, without any assumption.

    A distribution has the same reports as one on ``Channel.knots``. The mass between two knots moves to both, so that
    the cdf is known up to the mass at the next knots.
    """

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        size, tolerance = len(self.positions), self._tolerance
        if x >= self.positions[-1] - tolerance and not strict:
            return np.ones(size), np.ones(size)
        if x <= self.positions[0] + tolerance and strict:
            return np.zeros(size), np.zeros(size)
        fewest = int(np.searchsorted(self.positions, x + tolerance, side="right")) - 1
        most = int(np.searchsorted(self.positions, x - tolerance, side="left")) + 1
        indices = np.arange(size)
        return (indices < fewest).astype(float), (indices < most).astype(float)
