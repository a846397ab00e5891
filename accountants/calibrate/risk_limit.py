"""Limits of risks as targets of a calibration, instead of an epsilon and a delta (Kulynych, Gomez et al. 2024).

Each risk is converted to mu of the Gaussian guarantee with the same risk. If noise is proportional to e^t, log mu has a
slope of about -1 in t, as in ``composed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import numpy as np

from accountants.composition.repeated import ConvergenceError
from accountants.guarantee import Guarantee
from accountants.risk import Risks
from dpkernels import checks
from dpkernels.numerics import UNIT_ROUNDOFF, Real, namespace, ndtri
from dpkernels.solve import NotPrivateError, conservative_root, root

_MIN_MU = 1e-12  # The mu that is looked for is at least this.
_MAX_STEP = 3.0  # The longest step, in the log of the parameter, of a search for a bracket.
_MAX_ITERATIONS = 40  # The most steps of it.
_MIN_EXCESS = 1e-9  # Of a risk whose mu has the same float as that of the limit.
_TOLERANCE = 1e-7  # The tolerance of the log of the parameter.
_MAX_CONSERVATIVE_STEP = 1e-3  # The longest step of that log to the conservative side.


@dataclass(frozen=True)
class RiskLimit:
    """The largest risk that releases may have: a true positive rate at a false positive rate, or an advantage."""

    false_positive_rate: float | None  # None for an advantage.
    limit: float

    @property
    def mu(self) -> float:
        return math.exp(self.log_mu(self.limit))

    def log_mu(self, risk: float) -> float:
        """Return log mu of the Gaussian guarantee that has a risk."""
        risk = min(risk, 1 - UNIT_ROUNDOFF)
        if self.false_positive_rate is None:
            mu = 2 * float(ndtri(np.float64((1 + risk) / 2)))
        else:
            mu = float(ndtri(np.float64(risk)) - ndtri(np.float64(self.false_positive_rate)))
        return math.log(max(mu, _MIN_MU))

    def bound(self, guarantee: Risks) -> float:
        """Return the rigorous upper bound of the risk."""
        rate = self.false_positive_rate
        return float(guarantee.advantage() if rate is None else guarantee.true_positive_rate(rate))

    def estimate(self, guarantee: Risks) -> float:
        rate = self.false_positive_rate
        return float(guarantee.estimate_delta(0.0) if rate is None else 1 - guarantee.estimate_trade_off(rate))

    def excess(self, risk: float) -> float:
        """Return how much log mu of a risk is above that of the limit; positive if and only if the risk is larger."""
        excess = self.log_mu(risk) - self.log_mu(self.limit)
        return max(excess, _MIN_EXCESS) if risk > self.limit else min(excess, 0.0)

    def __str__(self) -> str:
        if self.false_positive_rate is None:
            return f"advantage: {self.limit:g}"
        return f"true_positive_rate: {self.limit:g} at a false positive rate of {self.false_positive_rate:g}"

    def check_noise_is_needed(self, delta_without_noise: float) -> None:
        """Raise ValueError if releases without noise meet the limit: their delta is the same at every epsilon."""
        risk = delta_without_noise + (self.false_positive_rate or 0.0)
        if self.limit >= risk:
            raise ValueError(f"{self}; on these samples releases without noise have {risk:.6g} already")


def parse_target(
    epsilon: Real | None,
    delta: Real | None,
    advantage: Real | None,
    true_positive_rate: tuple[float, float] | None,
    numbers: object = (),
) -> RiskLimit | tuple[Real, Real]:
    """Return the limit of a risk that is given, or (epsilon, delta).

    Raises:
        ValueError: not exactly one of these is given, one is out of range, or there is a JAX number besides a limit.
    """
    budget = [number for number in (epsilon, delta) if number is not None]
    risks = [risk for risk in (advantage, true_positive_rate) if risk is not None]
    if (len(budget), len(risks)) not in ((2, 0), (0, 1)):
        raise ValueError("epsilon, delta, advantage, true_positive_rate: give epsilon and delta, or one of the risks")
    if not risks:
        return budget[0], budget[1]
    if namespace(*jax.tree.leaves((advantage, true_positive_rate, numbers))) is not np:
        raise ValueError("advantage, true_positive_rate: take numbers, no JAX arrays")
    if advantage is not None:
        checks.within("advantage", advantage, 0.0, 1.0, open_ends=True)
        return RiskLimit(None, float(advantage))
    if true_positive_rate is None or np.shape(true_positive_rate) != (2,):
        raise ValueError("true_positive_rate: must be two numbers, the false positive rate and the true positive rate")
    false, true = map(float, true_positive_rate)
    if not 0 < false < true < 1:
        raise ValueError(f"true_positive_rate: {false:g}, {true:g}; must be 0 < false positive rate < rate < 1")
    return RiskLimit(false, true)


def risk_parameter(releases: Callable[[float], Guarantee], limit: RiskLimit) -> float:
    """Return the least plain t at which the rigorous bound of the risk of releases meets a limit; it falls with t.

    Raises:
        ConvergenceError: no t was found.
    """

    @cache
    def missing(t: float) -> float:
        """Return about the increase of t that is needed."""
        return limit.excess(limit.bound(releases(t)))

    bracket = {missing(0.0) <= 0: 0.0}
    t = 0.0
    for _ in range(_MAX_ITERATIONS):
        if len(bracket) == 2:
            break
        t += math.copysign(min(max(1.2 * abs(missing(t)), 1e-4), _MAX_STEP), missing(t))
        bracket[missing(t) <= 0] = t
    else:
        raise ConvergenceError(f"{limit}; no noise meets it")
    # The root is looked for as a distance, so that its tolerance is absolute.
    base = bracket[False] - 1.0
    start = base + root(lambda x, _: missing(base + x), (), bracket[True] - base, 1.0, rtol=_TOLERANCE)
    try:
        return conservative_root(missing, start, longest=_MAX_CONSERVATIVE_STEP)
    except NotPrivateError as error:
        raise ConvergenceError(f"{limit}; the bound stays above it: {error}") from error
