"""Ratios of noisy sums, such as means, variances and slopes, and their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from dpkernels.session.sums import UNIT_LOG2, NoisySums
from dpkernels.solve import bisect

Coefficients: TypeAlias = Callable[[np.ndarray], np.ndarray]  # of k sums, from nu of any shape (...): shape (..., k)
_MIN_SCALE_RATIO = 1.01  # of neighbouring scales in a sum of Laplace noises
_MAX_GROWTHS = 40  # of the distance of an end from the ratio, until it is refused
_HALVINGS = 36  # of the interval in which an end is
_NUISANCE_POINTS = 9  # values of nu that stand for its interval


def laplace_tail(t: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return an upper bound on P(sum_j s_j L_j >= t), L_j independent Laplace noise of scale 1, j the last axis.

    Scales are raised until each is 1 % above the next one, which raises the tail, because the noise is symmetric and
    unimodal. Then P = (1/2) sum_j e^(-t/s_j) prod_(i != j) s_j^2/(s_j^2 - s_i^2) for t >= 0.
    """
    s = np.sort(np.abs(scales), -1)
    s = np.maximum(s, np.maximum(1e-6 * s[..., -1:], 1e-300))
    for j in range(1, s.shape[-1]):
        s[..., j] = np.maximum(s[..., j], _MIN_SCALE_RATIO * s[..., j - 1])
    total = np.zeros(np.shape(t))
    for j in range(s.shape[-1]):
        square, other_squares = s[..., j : j + 1] ** 2, np.delete(s, j, -1) ** 2
        total = total + np.prod(square / (square - other_squares), -1) * np.exp(-np.maximum(t, 0.0) / s[..., j])
    return np.where(t > 0, np.clip(total / 2 * (1 + 1e-6) + 1e-12, 0.0, 0.5), 1.0)


@dataclass(frozen=True)
class Ratio:
    """A number tau for which the true sums s have sum_j (P_j - tau R_j) s_j = 0, with sum_j R_j s_j >= 0.

    P and R may depend on another number nu, which is such a ratio itself: the mean of x, for a variance or a slope.
    """

    numerator: Coefficients  # nu -> P
    denominator: Coefficients  # nu -> R
    ends: tuple[float, float] = (-math.inf, math.inf)  # between which tau is
    nuisance: Ratio | None = None

    def value(self, noisy: NoisySums) -> np.ndarray:
        """Return tau of the released sums, clipped to its ends; the middle or 0 where they say nothing."""
        nu = self.nuisance.value(noisy) if self.nuisance else np.zeros(len(noisy.values))
        numerator, denominator = _dot(self.numerator(nu), noisy), _dot(self.denominator(nu), noisy)
        low, high = self.ends
        middle = (low + high) / 2 if math.isfinite(high - low) else max(low, 0.0)
        is_positive = denominator > 0
        return np.where(is_positive, np.clip(numerator / np.where(is_positive, denominator, 1.0), low, high), middle)

    def bounds(self, noisy: NoisySums, confidence: float) -> tuple[np.ndarray, np.ndarray]:
        """Return an interval of tau for every group, which inverts tests of the linear form, as Fieller's does.

        A number tau is refused if noise alone makes sum_j (P_j - tau R_j) s_j of the released sums so far from 0 with
        probability alpha/2 at most. If the released denominator may be noise alone, the interval is all between the
        ends. Otherwise the refused numbers are those below one end and those above another. A tenth of alpha is for
        the interval of nu; the result is the union over nine equally distant nu in it.
        """
        alpha = 1 - confidence
        if self.nuisance is None:
            low, high = self._bounds(noisy, np.zeros((1, len(noisy.values))), alpha)
            return low[0], high[0]
        low, high = self.nuisance.bounds(noisy, 1 - alpha / 10)
        is_finite = np.isfinite(high - low)
        low, high = np.where(is_finite, low, 0.0), np.where(is_finite, high, 0.0)
        nu = low + (high - low) * np.linspace(0, 1, _NUISANCE_POINTS)[:, None]
        lows, highs = self._bounds(noisy, nu, 0.9 * alpha)
        return np.where(is_finite, lows.min(0), self.ends[0]), np.where(is_finite, highs.max(0), self.ends[1])

    def _bounds(self, noisy: NoisySums, nu: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals for every nu of shape (m, groups)."""
        P, R = self.numerator(nu), self.denominator(nu)
        numerator, denominator = _dot(P, noisy), _dot(R, noisy)
        # Noise is moved outwards by a step, rounding is half a step, and that of a row at most 2^-31.
        error = 1 + noisy.slack + np.maximum(noisy.values.sum(1), 0.0) * 2.0 ** (1 + UNIT_LOG2)

        def is_likely(linear_form: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
            distance = linear_form - np.abs(coefficients).sum(-1) * error
            return laplace_tail(distance, noisy.scale * coefficients) > alpha / 2

        def is_accepted(sign: float, tau: np.ndarray) -> np.ndarray:
            return is_likely(sign * (tau * denominator - numerator), P - tau[..., None] * R)

        is_unbounded = is_likely(denominator, R)
        start = np.where(is_unbounded, 0.0, numerator / np.where(is_unbounded, 1.0, denominator))
        interval = []
        for sign, end in zip((-1.0, 1.0), self.ends, strict=True):
            step = np.maximum(np.abs(start), 1.0) * 2.0**-40
            for _ in range(_MAX_GROWTHS):
                if (is_enclosed := ~is_accepted(sign, start + sign * step) | is_unbounded).all():
                    break
                step = np.where(is_enclosed, step, 4 * step)
            _, outer = bisect(partial(is_accepted, sign), start, start + sign * step, _HALVINGS)
            interval.append(np.where(is_unbounded | ~is_enclosed, end, np.clip(outer, *self.ends)))
        return interval[0], interval[1]


def _dot(coefficients: np.ndarray, noisy: NoisySums) -> np.ndarray:
    return ((noisy.values + noisy.slack) * coefficients).sum(-1)
