"""Profile likelihood intervals for linear functionals of a mixture, over all distributions that are possible.

The possible distributions are the mixtures of the components of a dictionary with masses theta. For every x there are
two vectors c such that P(X <= x) lies between the two numbers c'theta. With l(theta) the log-likelihood of all reports,
the interval of c'theta is its range over all theta with

    2 (max l - l(theta)) <= z^2,        z the normal quantile of the confidence.

With the quadratic model of l at its maximum this is a quadratic program with one parameter: maximise mu c'theta +
l(theta) for increasing mu. Its solution is piecewise linear in mu, and the critical line method follows it. Between two
events the set of positive masses stays the same; at an event one mass becomes 0 or another one becomes positive.

Since the dictionary contains every distribution that is possible, the constraints theta >= 0 are the only assumption.

Sources: Markowitz 1952 (critical line); Kuusela, Patil et al. 2022 (one-at-a-time strict bounds intervals).
"""

from __future__ import annotations

import abc
from bisect import bisect_left
from functools import cached_property
from statistics import NormalDist

import numpy as np
from scipy.linalg.lapack import dposv

from dpkernels.estimation.likelihood import Fit, most_likely

Ends = tuple[np.ndarray, np.ndarray]

# Added to the diagonal of the Hessian, in nats: components that have nearly the same reports stay distinguishable. The
# log-likelihood changes by at most half of it.
_RIDGE = 1e-3
# The least multiplier, in nats. Multipliers are moved by different amounts, so that the maximum is the unique starting
# point and no two events coincide.
_SMALLEST = 1e-6
_MOST_STEPS = 10_000
# Gains and steps beyond these are rounding errors of 0 and of infinity.
_NO_GAIN, _FARTHEST, _STILL = 1e-14, 1e9, 1e-12
# Numbers that differ by less than this share of the interval are the same place.
_SAME = 1e-9


class ProfileLikelihood:
    """The quadratic model of a log-likelihood at its maximum, the shares, with B and counts as of ``most_likely``."""

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
        """Return the upper end of the two-sided interval of c'theta, with c of shape (d,)."""
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
        """Return the derivatives in mu of the positive masses, and of the multipliers of the others.

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


class Dictionary(abc.ABC):
    """The components of possible distributions: (m, d) columns P(group of reports | component), and (m,) counts.

    Quantiles are evaluated at (k,) increasing places, from the smallest to the largest possible input.
    """

    is_discrete = False  # whether inputs are at the places only

    def __init__(self, columns: np.ndarray, counts: np.ndarray, places: np.ndarray) -> None:
        self.columns, self.counts, self.places = columns, counts, places
        self._tolerance = _SAME * float(places[-1] - places[0])
        self._known = dict[tuple[int, int, float], float]()  # ends of the cdf's intervals

    @cached_property
    def fit(self) -> Fit:
        return most_likely(self.columns, self.counts)

    @cached_property
    def _profile(self) -> ProfileLikelihood:
        return ProfileLikelihood(self.columns, self.counts, self.fit.shares)

    @abc.abstractmethod
    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        """Return (d,) vectors c with c'theta <= P(X <= x) <= c'theta, or of P(X < x) if strict."""

    def between(self, a: float, b: float, *, closed: bool) -> Ends:
        """Return (d,) vectors that bound P(a <= X < b), or P(a <= X <= b) if closed."""
        (low_a, high_a), (low_b, high_b) = self.cumulative(a, strict=True), self.cumulative(b, strict=not closed)
        return low_b - high_a, high_b - low_a

    def interval(self, ends: Ends, confidence: float) -> tuple[float, float]:
        return -self._profile.maximum(-ends[0], confidence), self._profile.maximum(ends[1], confidence)

    def quantile_interval(self, p: float, confidence: float) -> tuple[float, float]:
        """Return the numbers between which the p-quantile lies: those at which the cdf may be p."""
        above = self._first(p, 1, confidence)
        if not self.is_discrete:  # The quantile may lie between the place before and this place.
            above = max(above - 1, 0)
        return float(self.places[above]), float(self.places[self._first(p, 0, confidence)])

    def _first(self, p: float, end: int, confidence: float) -> int:
        """Return the first place, or the last one, at which the lower (0) or upper (1) end of the cdf is at least p."""
        return bisect_left(range(len(self.places) - 1), True, key=lambda at: self._cdf_end(at, end, confidence) >= p)

    def _cdf_end(self, place: int, end: int, confidence: float) -> float:
        """Return an end of the cdf's interval at a place, kept because searches for quantiles visit the same places."""
        key = place, end, confidence
        if key not in self._known:
            sign = 2 * end - 1
            c = self.cumulative(self.places[place])[end]
            self._known[key] = sign * self._profile.maximum(sign * c, confidence)
        return self._known[key]


class AnyDistribution(Dictionary):
    """All distributions on an interval, without any assumption.

    A distribution has the same reports as one on ``Channel.places``. The mass between two places moves to both, so that
    the cdf is known up to the mass at the next places.
    """

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        last, tolerance = len(self.places), self._tolerance
        if x >= self.places[-1] - tolerance and not strict:
            return np.ones(last), np.ones(last)
        if x <= self.places[0] + tolerance and strict:
            return np.zeros(last), np.zeros(last)
        surely = int(np.searchsorted(self.places, x + tolerance, side="right")) - 1
        perhaps = int(np.searchsorted(self.places, x - tolerance, side="left")) + 1
        return _first_ones(last, surely), _first_ones(last, perhaps)


class GridDistribution(Dictionary):
    """All distributions on a grid, such as those of whole numbers; the places are its points."""

    is_discrete = True

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        limit = x - self._tolerance if strict else x + self._tolerance
        ones = _first_ones(len(self.places), int(np.searchsorted(self.places, limit)))
        return ones, ones


class SmoothDistribution(Dictionary):
    """Mixtures of splines, whose columns come first, and of point masses at known places, the atoms.

    ``shapes`` are (bins, splines) the share of every spline in each bin.
    """

    def __init__(
        self, columns: np.ndarray, counts: np.ndarray, edges: np.ndarray, shapes: np.ndarray, atoms: np.ndarray
    ) -> None:
        super().__init__(columns, counts, np.union1d(edges, atoms))
        self._edges, self._atoms = edges, atoms
        self._cumulated = np.vstack([np.zeros(shapes.shape[1]), np.cumsum(shapes, axis=0)])

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        smooth = [np.interp(x, self._edges, column) for column in self._cumulated.T]
        limit = x - self._tolerance if strict else x + self._tolerance
        both = np.append(smooth, (self._atoms <= limit).astype(float))
        return both, both


def _first_ones(size: int, count: int) -> np.ndarray:
    return (np.arange(size) < count).astype(float)
