"""Closed forms for a Gaussian, with steps of weight if it is truncated or recycled."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from accountants.dominating_pairs import gaussian_integrals
from accountants.dominating_pairs.base import Curve, sum_of_pieces
from accountants.dominating_pairs.noise.formulas import REPLACED_POSITIONS, UNITS, UNITS_REPLACED, UNITS_REWEIGHTED
from accountants.dominating_pairs.noise.polynomial import PolynomialFormulas
from dpkernels.numerics import Boolean, Real, RealArray, floating, log_or_minus_inf, namespace, without_derivative

_MAX_DEVIATIONS = 18.0  # The distance, in sigma beyond both means, up to which a Gaussian is integrated.
_UNSEEN = 2e-72  # The mass beyond its reach on both sides: 2 Phi(-18).


class GaussianFormulas(PolynomialFormulas):
    """Integrals of Gaussian densities on the pieces between the steps of weight."""

    rounds_up: ClassVar[bool] = True
    mass_beyond_reach: ClassVar[float] = _UNSEEN
    panels: ClassVar[tuple[int, int]] = 6, 30
    panels_replaced: ClassVar[tuple[int, int]] = 12, 96  # The loss changes its slope within sigma^2/D.

    def _loss_points(self, points: RealArray) -> tuple[RealArray, RealArray]:
        """Take the loss, D (D/2 - x)/s^2 plus a step, at x = D/2, where no digits are lost."""
        middle = self.D / 2 + 0 * points[:, 0]
        return middle, self.source.score(middle) - self.source.score(middle - self.D)

    def largest_loss(self) -> Real:
        return np.inf + 0 * self.D

    @property
    def _reach(self) -> tuple[RealArray, RealArray]:
        reach = _MAX_DEVIATIONS * self.source.sigma + floating(self.xp.zeros(()))
        return -reach, reach

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> the sum over pieces of w_P times the integral of phi(x) (1 - e^(eps - loss)) where loss > eps.

        x is in units of sigma and rises with the loss: there the loss is log(w_P/w_Q) + a (x + a/2), a = |D|/sigma.
        The value is rounded upwards: eps is lowered by units of itself and of the losses at the piece's ends.
        """
        D, sigma, xp = self.D, self.source.sigma, self.xp
        a = xp.abs(D) / sigma
        if len(self.noise.edges) == 0:
            return sum_of_pieces(lambda eps: gaussian_delta(a, eps), gaussian_integrals.VALUES)
        pieces = self.pieces()
        sloped = ~xp.isinf(pieces.loss)  # NaN stays.
        lower, upper, width = (_in_sigmas(end, sigma) for end in pieces[:3])
        bottom, top = xp.where(D < 0, lower, -upper), xp.where(D < 0, upper, -lower)
        loss, (weight_p, weight_q) = xp.where(sloped, pieces.loss, 0.0), pieces.weights.T
        size = sum(xp.where(xp.isfinite(end), xp.abs(end), 0.0) for end in (bottom, top))
        size = xp.where(size > 0, xp.abs(loss) + a * (size + a) + pieces.size_of_weights, 0.0)

        def piece_deltas(eps: RealArray) -> Real:
            xp = namespace(eps, loss)
            eps = eps - side * UNITS * np.finfo(eps.dtype).eps * without_derivative(xp.abs(eps) + size)
            cut = (eps - loss) / a - a / 2
            all_above = ~sloped | (cut <= bottom)
            start = xp.where(all_above, bottom, xp.minimum(cut, top))
            is_present = ~((start >= top) | xp.isinf(start) | (width <= 0))  # NaN stays.
            length = xp.where(is_present, xp.where(all_above, width, top - start), 1.0)
            start = xp.where(is_present, start, 0.0)
            lead = a * xp.where(all_above & sloped & is_present, bottom - cut, 0.0)
            gain, p, q = gaussian_integrals.gain(start, length, a, lead)
            # Where q is 0 the loss is infinite; q enters for the derivative in its weight.
            unbounded = xp.where(pieces.loss > 0, weight_p * p - xp.exp(eps) * weight_q * q, 0.0)
            delta = xp.where(is_present, xp.where(sloped, weight_p * gain, unbounded), 0.0)
            return delta * (1 + side * UNITS_REWEIGHTED * np.finfo(eps.dtype).eps)

        return sum_of_pieces(piece_deltas, len(loss) * gaussian_integrals.VALUES)

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        """Return the sum over pieces, with x in units of sigma and a = D/sigma."""
        sigma = self.source.sigma
        a = self.D / sigma
        if len(self.noise.edges) == 0:
            return sum_of_pieces(lambda eps: _replaced_gaussian_delta(a, rate, eps), gaussian_integrals.VALUES)
        pieces = self.split(REPLACED_POSITIONS)
        lower, upper, width = (_in_sigmas(end, sigma) for end in pieces[:3])
        weight_f, weight_p, weight_q = pieces.weights.T

        def piece_deltas(eps: RealArray) -> Real:
            xp = namespace(eps, lower, rate)
            cut, has_cut = _replaced_cut(a, rate, eps, (weight_f, weight_p, weight_q))
            all_above = cut <= lower
            start = xp.where(all_above, lower, cut)
            # Below the first point where p is possible there is no mass of p; at an end of -inf, p is not above t q.
            is_present = has_cut & ~((start >= upper) | xp.isinf(start) | (width <= 0))
            length = xp.where(is_present, xp.where(all_above, width, upper - start), 1.0)
            start = xp.where(is_present, start, 0.0)
            gain_p, _, mass = gaussian_integrals.gain(start - a, length, a, 0.0 * start)
            gain_q, _, _ = gaussian_integrals.gain(start, length, a, 0.0 * start)
            factor = xp.exp(xp.where(is_present, eps - a * start - a**2 / 2, 0.0))
            gained = rate * (weight_p * gain_p + weight_q * factor * gain_q)
            ahead = rate * (weight_p * xp.exp(a * start - a**2 / 2) - weight_q * factor)
            ahead = ahead - (1 - rate) * weight_f * xp.expm1(eps)
            delta = gained + xp.where(all_above, xp.maximum(ahead, 0.0), 0.0) * mass
            return xp.where(is_present, _rounded_up(delta, start, a, eps), 0.0)

        return sum_of_pieces(piece_deltas, len(lower) * gaussian_integrals.VALUES)


def gaussian_delta(a: Real, eps: RealArray) -> RealArray:
    """Return delta for one piece without ends; it is positive at every eps, also where it underflows."""
    info = np.finfo(eps.dtype)
    eps = eps - UNITS * info.eps * abs(without_derivative(eps))
    return gaussian_integrals.endless_gain(eps / a - a / 2, a) * (1 + UNITS * info.eps) + info.tiny


def _replaced_cut(
    a: Real, rate: Real, eps: RealArray, weights: tuple[RealArray, RealArray, RealArray]
) -> tuple[RealArray, Boolean]:
    """Return the point at which p = t q, and whether there is one; p - t q > 0 above it.

    The root of A e^(a x) - B - C e^(-a x) = 0 is  a x = log(C/A)/2 + asinh(B/(2 sqrt(A C))).
    """
    weight_f, weight_p, weight_q = weights
    xp = namespace(a, rate, eps, weight_p)
    log_p, log_q = (log_or_minus_inf(rate * weight) for weight in (weight_p, weight_q))
    growth = xp.maximum(xp.expm1(eps), 0.0)
    log_b = log_or_minus_inf((1 - rate) * weight_f * growth)
    has_both = (weight_p > 0) & (weight_q > 0)
    half_log_ratio = xp.where(has_both, eps + xp.where(has_both, log_q - log_p, 0.0), 0.0) / 2
    log_2k = xp.log(2.0) + xp.where(has_both, log_p + log_q, 0.0) / 2 + (eps - a**2) / 2
    large = log_b - log_2k > 20
    z = (1 - rate) * weight_f * growth * xp.exp(-xp.where(large, 0.0, log_2k))
    large_arcsinh = xp.log(2.0) + xp.where(large, log_b - log_2k, 0.0)
    both_cut = half_log_ratio + xp.where(large, large_arcsinh, xp.arcsinh(xp.where(large, 0.0, z)))
    has_f = log_b > -np.inf
    single_cut = xp.where(has_f, xp.where(has_f, log_b, 0.0) - xp.where(weight_p > 0, log_p, 0.0) + a**2 / 2, -np.inf)
    x = xp.where(has_both, both_cut, xp.where(has_f, single_cut, 0.0)) / a
    return xp.where(has_both | has_f, x, -np.inf), weight_p > 0


def _rounded_up(value: RealArray, start: RealArray, a: Real, eps: RealArray) -> RealArray:
    """Return the value rounded upwards by the possible error of its exponents."""
    xp = namespace(value, start)
    size = without_derivative(1 + start**2 + a**2 + xp.abs(a * start) + xp.abs(eps))
    return value * (1 + UNITS_REPLACED * xp.finfo(value.dtype).eps * xp.minimum(size, 1e4))


def _replaced_gaussian_delta(a: Real, rate: Real, eps: RealArray) -> RealArray:
    """Return r J(c - a) + t r e^(-a c - a^2/2) J(c),  J(c) = integral of phi(x) (1 - e^-(a (x - c))) over x > c."""
    xp = namespace(a, rate, eps)
    info = xp.finfo(eps.dtype)
    eps = eps - UNITS_REPLACED * info.eps * xp.abs(without_derivative(eps))
    weight = xp.ones_like(eps)
    cut, _ = _replaced_cut(a, rate, eps, (weight, weight, weight))
    gain_p = gaussian_integrals.endless_gain(cut - a, a)
    gain_q = xp.exp(eps - a * cut - a**2 / 2) * gaussian_integrals.endless_gain(cut, a)
    return _rounded_up(rate * (gain_p + gain_q), cut, a, eps) + info.tiny


def _in_sigmas(end: Real, sigma: Real) -> RealArray:
    """Return end/sigma with finite derivatives; an infinite end is returned as it is."""
    xp = namespace(end, sigma)
    finite = xp.isfinite(end)
    return xp.where(finite, xp.where(finite, end, 0.0) / sigma, end)
