"""The analytic Gaussian mechanism of Balle and Wang 2018, for many budgets at once, from the conservative side.

With mu = D/sigma, x = eps/mu - mu/2 and y = eps/mu + mu/2,

    delta(eps) = Phi(-x) - e^eps Phi(-y) = phi(x) (M(x) - M(y)),    d delta/d mu = phi(x),

where M is Mills' ratio. Newton's method finds log mu. The computed delta includes a bound on the rounding errors, here
and in the public privacy profiles, so that both meet the budget.
"""

from __future__ import annotations

import math

import numpy as np

from accountants.composition.gaussian import log_delta_units, mills
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import UNITS_OF_EPS, UNITS_OF_SUMS
from accountants.dominating_pairs.noise.gaussian import gaussian_delta
from dpkernels.numerics import UNIT_ROUNDOFF, ndtri, special_functions
from dpkernels.solve import NotPrivateError

DELTAS = (1e-290, 0.5)  # Beyond them delta has lost digits, or hardly changes with mu.
_LOG_ROOT = math.log(2 * math.pi) / 2  # log sqrt(2 pi).
_ROOT_HALF = math.sqrt(math.pi / 2)  # Mills' ratio at 0.
# Bounds on rounding errors, in units in the last place:
_MILLS_UNITS = 16  # of a Mills' ratio,
_RATIO_UNITS = 8  # of D over a sigma that is rounded,
_EPSILON_UNITS = 16  # and of the eps of a profile.
# Mills' ratios that differ by less than this share of them are subtracted under the integral.
_CANCELLING_SHARE = 2.0**-8
_MAX_ITERATIONS = 100  # The most Newton steps of log mu.
_MAX_STEP = 1.0  # The longest of them.
_BATCH = 500  # Ratios that are verified together, so that the nodes of their integrals stay in the cache.


def largest_ratios(epsilon: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return the largest D/sigma that meets each of some budgets, for vectors of eps >= 1e-6 and delta in ``DELTAS``.

    Raises:
        NotPrivateError: the profile of a ratio that was found, another formula, is above delta.
    """
    mu = _roots(epsilon, delta)
    for start in range(0, len(mu), _BATCH):
        block = slice(start, start + _BATCH)
        with np.errstate(all="ignore"):
            meets = gaussian_delta(mu[block], epsilon[block]) <= delta[block]
        if not meets.all():
            index = start + int(meets.argmin())
            raise _not_private(epsilon[index], delta[index])
    return mu


def _not_private(epsilon: float, delta: float) -> NotPrivateError:
    return NotPrivateError(f"epsilon, delta: no sigma was found that meets {epsilon:g}, {delta:g}")


def _roots(epsilon: np.ndarray, delta: np.ndarray) -> np.ndarray:
    # Delta is at most Phi(-x), and at most its value at eps = 0: two ratios that meet the budget.
    quantile = -ndtri(delta)
    mu = np.maximum(2 * epsilon / (np.sqrt(quantile**2 + 2 * epsilon) + quantile), -2 * ndtri((1 - delta) / 2))
    goal, unfinished = np.log(delta), np.arange(len(mu))
    for _ in range(_MAX_ITERATIONS):
        log_delta, slope, error_units, profile_units = _log_delta(epsilon[unfinished], mu[unfinished])
        missing = goal[unfinished] - log_delta - UNIT_ROUNDOFF * (error_units + profile_units)
        # The place meets the goal, and is as close to it as rounding allows.
        is_root = (missing >= 0) & (missing <= 4 * UNIT_ROUNDOFF * error_units)
        unfinished, missing, slope, error_units = (
            values[~is_root] for values in (unfinished, missing, slope, error_units)
        )
        if not len(unfinished):
            return mu
        mu[unfinished] *= np.exp(np.clip((missing - 2 * UNIT_ROUNDOFF * error_units) / slope, -_MAX_STEP, _MAX_STEP))
    raise _not_private(epsilon[unfinished[0]], delta[unfinished[0]])


def _log_delta(epsilon: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return log delta, its derivative in log mu, and the units of its error: own ones, and what profiles may add."""
    erfcx = special_functions(mu).erfcx
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    mills_y, mills_x = (_ROOT_HALF * erfcx(z / math.sqrt(2)) for z in (y, x))
    difference = mills_x - mills_y
    error_units = _MILLS_UNITS * (mills_x + mills_y) / np.maximum(difference, UNIT_ROUNDOFF * mills_x)
    if (cancels := difference < _CANCELLING_SHARE * mills_x).any():
        difference[cancels], error_units[cancels] = mills(x[cancels], mu[cancels]), 0.0
    log_phi = -(x**2) / 2 - _LOG_ROOT
    log_delta, slope = log_phi + np.log(difference), mu / difference
    formula = log_delta_units(log_delta, x, y)
    error_units += formula
    # A profile's delta is rounded upwards by units in the last place, which are two roundings.
    profile = UNITS_OF_SUMS + AdditivePair.units_of_log * np.abs(log_delta) + UNITS_OF_EPS * epsilon
    profile_units = formula + 2 * profile + _EPSILON_UNITS * epsilon * mills_y / difference + _RATIO_UNITS * slope
    return log_delta, slope, error_units, profile_units
