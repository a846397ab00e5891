"""Upper bounds of a guarantee by its Renyi divergences, for cases in which a grid is too large or too inaccurate.

Renyi divergences add up under composition, need no grid and truncate no mass. For every order a = 1 + c, the divergence
R_a of all releases gives (Canonne, Kamath & Steinke 2020, Proposition 12)

    log delta = c (R_a - eps) + c log(1 - 1/a) - log a.

Every order is valid. The best order is found with the divergences of ``renyi``, which are precise but not rigorous. The
divergence of this order is then bounded: in closed form for Gaussian noise, and by masses on a grid that dominate the
losses for other noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from accountants.composition.brackets.cells import cells_on_grid
from accountants.composition.brackets.masses import GridReleases, upper_masses
from accountants.composition.brackets.monotone import NoGridError, split_monotone
from accountants.composition.brackets.offsets import best_offset
from accountants.composition.brackets.refinement import GridBracket
from accountants.composition.closed_form import Bounds
from accountants.composition.repeated import ConvergenceError, GuaranteeLike, RepeatedReleases
from accountants.composition.trade_off import CurvePoint, Interval, curve_point, points_around_tangent
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import as_float64
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF
from dpkernels.proven import proven

_ORDER_EXCESSES = np.geomspace(1e-3, 1e5, 17)  # The orders, less 1, that are tried first.
_MIN_ORDER_EXCESS = 1e-12  # The order, less 1, below which the search does not go on,
_MAX_ORDER_EXCESS = 1e12  # and the order, less 1, above which it does not.
_HALVINGS = 4  # How often the ratio of neighbouring orders is replaced by its root around the best order.
_ROUNDING_RTOL = 1e-12  # More than the relative rounding errors of the terms of a bound.
_WIDE_BRACKET = 0.05  # The relative width of the grid's bracket above which orders are tried as well.
_MIN_DELTA = 1e-290  # Upper bounds of delta up to this are kept: they are close to the least floats.
_STEP = 0.02  # The step of a grid times its order: the spread on it adds at most 0.02^2/8 to a moment, relatively.
_MIN_CELLS = 1 << 14  # The fewest cells of a grid,
_MAX_CELLS = 1 << 16  # and the most cells.
_LOG_OF_TAIL = 80.0  # The negated logarithm of the moment that may be beyond a grid's reach.
_MAX_TERMS = 1 << 20  # The most terms of the sum of a sampled Gaussian, which is the largest order.
_UNITS = 64  # The roundings of a moment's logarithm, relative to 1 and to its largest exponent.


@proven("sums#closed-forms")
def epsilon_of_orders(guarantee: GuaranteeLike, delta: float) -> float:
    """Return the least epsilon at delta of the orders that are tried; inf if no divergence is finite."""

    def epsilon(c: float, divergence: float) -> float:
        terms = divergence, math.log1p(-1 / (1 + c)), -(math.log1p(c) + math.log(delta)) / c
        return sum(terms) + _ROUNDING_RTOL * sum(map(abs, terms))

    return max(_best_bound(guarantee, epsilon), 0.0)


@proven("sums#closed-forms")
def delta_of_orders(guarantee: GuaranteeLike, epsilon: float) -> float:
    """Return the least delta at epsilon of the orders that are tried, at most 1."""

    def log_delta(c: float, divergence: float) -> float:
        terms = c * divergence, -c * epsilon, c * math.log1p(-1 / (1 + c)), -math.log1p(c)
        return sum(terms) + _ROUNDING_RTOL * sum(map(abs, terms))

    least = _best_bound(guarantee, log_delta)
    return min(math.exp(max(least, -MAX_EXPONENT)) * (1 + _ROUNDING_RTOL), 1.0) if least < 0 else 1.0


def _best_bound(guarantee: GuaranteeLike, bound: Callable[[float, float], float]) -> float:
    """Return the bound by the divergence of the best order that is found; inf if no divergence is finite."""

    def estimate(c: float) -> float:
        with suppress(ConvergenceError):
            divergence = float(guarantee.renyi(1 + c))
            if math.isfinite(divergence):
                return bound(c, divergence)
        return math.inf

    values = [estimate(float(c)) for c in _ORDER_EXCESSES]
    best = int(np.argmin(values))
    least, center, ratio = values[best], float(_ORDER_EXCESSES[best]), float(_ORDER_EXCESSES[1] / _ORDER_EXCESSES[0])
    if not math.isfinite(least):
        return least
    for step in (1 / ratio, ratio):  # Beyond the first orders.
        while _MIN_ORDER_EXCESS < center < _MAX_ORDER_EXCESS and (candidate := estimate(center * step)) < least:
            least, center = candidate, center * step
    for _ in range(_HALVINGS):
        ratio = math.sqrt(ratio)
        least, center = min((least, center), *((estimate(c), c) for c in (center / ratio, center * ratio)))
    orders = {center}
    if any(map(_is_sampled_gaussian, guarantee.terms)):  # They have a closed form at integers.
        orders = {float(max(math.floor(center), 1)), float(math.ceil(center))}
    return min(bound(c, _divergence_above(as_float64(guarantee), c)) for c in orders)


# Divergences from above


@proven("sums#closed-forms")
def _divergence_above(guarantee: GuaranteeLike, c: float) -> float:
    """Return an upper bound of the Renyi divergence of order 1 + c; inf if none is known."""
    divergences = []
    with np.errstate(all="ignore"):
        for mirror in guarantee.neighbour_directions:
            sums = [
                float(term.count) * max(_log_moment_above(term, k, mirror, c) for k in range(len(term.pairs)))
                for term in guarantee.terms
            ]
            divergences.append(sum(sums) * (1 + UNIT_ROUNDOFF * len(sums)) / c)
    return max(divergences)


def _is_sampled_gaussian(term: RepeatedReleases) -> bool:
    is_noise = all(isinstance(pair, AdditivePair) and type(pair.noise) is Gaussian for pair in term.pairs)
    return is_noise and term.sampling_rate is not None


def _log_moment_above(term: RepeatedReleases, pair_index: int, mirror: bool, c: float) -> float:
    """Return an upper bound of log E_p e^(c l) of one release."""
    reach, log_tail = math.inf, -math.inf
    if term.is_gaussian or _is_sampled_gaussian(term):
        mu, rate = abs(float(term.mu)), float(term.sampling_rate or 1.0)
        is_replaced = term.sampling_rate is not None and term.adjacency == "replace"
        if rate == 1:
            return _log_moment_of_gaussian(2 * mu if is_replaced else mu, c)
        if not is_replaced:  # The logarithm is convex in c, and 0 at 0.
            k = math.ceil(c)
            return c / k * _log_moment_of_sampled(rate, mu, k + 1) * (1 + _UNITS * UNIT_ROUNDOFF)
        reach, log_tail = _tail_of_replaced(rate, mu, c)
    release = term.release_pairs()[pair_index]
    losses = release.privacy_loss()
    split_losses = split_monotone(losses.mirrored() if mirror else losses)
    smooth = [end for pieces in split_losses.pieces for end in pieces.end_losses]
    ends = np.clip(np.concatenate([split_losses.loss[np.isfinite(split_losses.loss)], *smooth]), -reach, reach)
    if not len(ends) or not np.isfinite(ends).all() or (split_losses.loss == np.inf).any():
        return math.inf
    extent = float(np.ptp(ends))
    count = int(np.clip(extent * (1 + c) / _STEP, _MIN_CELLS, _MAX_CELLS))
    step = max(extent, float(np.abs(ends).max()) * 1e-6, 1e-300) / count
    try:
        cells = cells_on_grid(split_losses, step, offset=best_offset(split_losses, step), reach=(-reach, reach))
        masses, largest = upper_masses(cells, step, 1), reach
        if math.isinf(reach) and masses.infinite > 0:
            largest = float((release.mirror() if mirror else release).largest_loss())
    except (NoGridError, TypeError):  # A TypeError says that the largest loss of the pair is unknown.
        return math.inf
    log_moment = _log_moment_of(masses, step, c, largest * (1 + _ROUNDING_RTOL) + _UNITS * UNIT_ROUNDOFF)
    return float(np.logaddexp(log_moment, log_tail)) + UNIT_ROUNDOFF * abs(log_moment)


def _log_moment_of(masses: GridReleases, step: float, c: float, largest: float) -> float:
    """Return the log of the sum of m e^(c l), rounded upwards; mass of infinite loss has in truth the largest one."""
    loss = masses.offset + step * (masses.first_index + np.arange(len(masses.mass)))
    loss, mass = np.append(loss, largest), np.append(masses.mass, masses.infinite)
    has_mass = mass > 0
    size = c * float(np.abs(loss[has_mass]).max(initial=0.0))
    return float(logsumexp(c * loss[has_mass], b=mass[has_mass])) + _UNITS * UNIT_ROUNDOFF * (1 + size)


def _log_moment_of_sampled(rate: float, mu: float, order: int) -> float:
    """Return the log of the moment of Gaussian noise on a sample, of an integer order a, with a record added.

    It is 1 plus the sum over k from 2 of C(a, k) (1 - r)^(a - k) r^k (e^(k (k - 1) mu^2/2) - 1). With a record removed
    it is no larger (Mironov, Talwar & Zhang 2019, Theorem 5).
    """
    if order > _MAX_TERMS:
        return math.inf
    k = np.arange(2.0, order + 1)
    log_factorial = float(gammaln(order + 1))
    log_choices = log_factorial - gammaln(k + 1) - gammaln(order - k + 1)
    log_odds = k * math.log(rate) + (order - k) * math.log1p(-rate)
    exponent = k * (k - 1) * mu**2 / 2
    growth = np.log(np.where(exponent > 1, -np.expm1(-exponent), np.expm1(np.minimum(exponent, 1.0))))
    growth += np.where(exponent > 1, exponent, 0.0)
    size = log_factorial + float((np.abs(log_odds) + exponent + np.abs(growth)).max())
    log_sum = float(logsumexp(log_choices + log_odds + growth)) + _UNITS * UNIT_ROUNDOFF * (1 + size)
    return float(np.logaddexp(0.0, log_sum)) * (1 + _UNITS * UNIT_ROUNDOFF)


def _tail_of_replaced(rate: float, mu: float, c: float) -> tuple[float, float]:
    """Return (a loss, a bound of the log of the moment of larger ones) of Gaussian noise with a record replaced.

    p^a q^(1 - a) is convex in (p, q) together. So its integral beyond x standard deviations is at most that of its
    parts: (1 - r) of the noise itself, and r e^(2 a c mu^2) of Gaussian mass around (2 a - 1) mu.
    """
    log_factor, center = math.log(rate) + _log_moment_of_gaussian(2 * mu, c), (2 * c + 1) * mu
    x = center + math.sqrt(2 * max(log_factor + _LOG_OF_TAIL, 0.0)) + 1.0
    gain, cost = mu * x - mu**2 / 2, -mu * x - mu**2 / 2
    loss = float(np.logaddexp(math.log1p(-rate), math.log(rate) + gain)) - math.log1p(rate * math.expm1(cost))
    x -= 1.0  # By far more than the loss is rounded: from x to x + 1 it rises by more than its rounding.
    return loss, float(np.logaddexp(log_ndtr(-x), log_factor + log_ndtr(center - x)))


def _log_moment_of_gaussian(mu: float, c: float) -> float:
    return c * (c + 1) * mu**2 / 2 * (1 + _UNITS * UNIT_ROUNDOFF)


@dataclass(frozen=True)
class GridOrRenyi(Bounds):
    """The bounds of losses on a grid, with upper ends by Renyi divergences where the grid's are wide or missing."""

    grid: GridBracket

    def delta(self, epsilon: float) -> Interval:
        low, high = 0.0, 1.0
        with suppress(NoGridError):
            low, high = self.grid.delta(epsilon)
        if high - low > _WIDE_BRACKET * high and high > _MIN_DELTA:
            high = max(min(high, delta_of_orders(self.grid.guarantee, epsilon)), low)
        return low, high

    def epsilon(self, delta: float) -> Interval:
        low, high, refusal = 0.0, math.inf, None
        try:
            low, high = self.grid.epsilon(delta)
        except NoGridError as error:
            refusal = error
        if (math.isinf(high) or high - low > _WIDE_BRACKET * high) and self.grid.guarantee.infinity_mass < delta:
            high = max(min(high, epsilon_of_orders(self.grid.guarantee, delta)), low)
        if math.isinf(high) and refusal is not None:
            raise refusal
        return low, high

    def curve_point(self, alpha: float, largest_loss: float) -> CurvePoint:
        with suppress(NoGridError):
            return self.grid.curve_point(alpha, largest_loss)
        estimate = self.grid.guarantee.estimate_delta
        tangent_points = partial(points_around_tangent, estimate, largest_loss=largest_loss)
        return curve_point(self.delta, tangent_points, alpha, largest_loss)
