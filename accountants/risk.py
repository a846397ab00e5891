"""Risks of a guarantee: trade-off curves, success rates of attacks, posteriors, and the closest Gaussian guarantee.

An attacker sees all released values, knows all other records, and tests which of two neighbouring inputs was used. All
numbers bound the best such attack. Neighbours are those of the guarantee.

| risk | definition |
|---|---|
| ``trade_off(alpha)`` | the least type II error of a test with type I error alpha: f in f-DP (Dong, Roth, Su 2022) |
| ``true_positive_rate(rate)`` | the largest true positive rate of an attack with this false positive rate |
| ``advantage()`` | the largest true positive rate minus false positive rate: total variation, delta(0) |
| ``odds(delta)`` | the growth factor of the odds, exceeded with probability at most delta; e^epsilon if delta is 0 |
| ``posterior(prior, delta)`` | a posterior that is exceeded with probability at most delta |
| ``reconstruction(prior)`` | the largest success rate of a guess that succeeds with rate prior without the release |
| ``gaussian_mu()`` | the least mu of a Gaussian mechanism that is no more private, and how much less private it is |

Reconstruction: Balle, Cherubin, Hayes (2022); Kaissis, Hayes, Ziller, Rueckert (2023). Gaussian: Gomez et al. (2025).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from accountants.composition.gaussian import GaussianProfile
from accountants.composition.repeated import ConvergenceError
from accountants.composition.trade_off import CurvePoint, tangent_epsilon
from accountants.precision import in_64_bits
from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.numerics import MAX_EXPONENT, Real, RealArray, float_if_scalar, namespace, ndtri, without_derivative
from dpkernels.proven import proven

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The eps of the first grid of a search for the highest line.
_FIRST_GRID = np.append(0.0, np.geomspace(1e-3, 80.0, 64))
_ZOOM_POINTS = 9  # The points of each further grid of that search, next to the best point.
_ZOOMS = 5  # The number of further grids of that search.
_MU_WIDTH = 2e-3  # The relative width that is aimed at for the mu of the Gaussian that bounds a guarantee.
_LINES = 65  # The lines of which that mu is computed.
_COMPARED_POINTS = 65  # The eps at which the delta of that Gaussian is compared.
_ROUNDING = 2.0**-40  # More than the relative rounding errors of odds, beliefs and mu.
# The shares of delta that are tried for a loss that is exceeded with probability delta.
_DELTA_SHARES = np.append(np.geomspace(1e-3, 0.7, 13), [0.9, 0.99, 0.999])
_MIN_DELTA = 1e-290  # The least delta for which these shares are tried.
PRIORS = (0.01, 0.1, 0.5)  # The beliefs before a release that a report lists.
RATES = (0.001, 0.01, 0.1)  # The shares of others taken for members that a report lists.


class GaussianFit(NamedTuple):
    """The Gaussian guarantee next to another guarantee.

    - mu: Gaussian noise of standard deviation 1/mu and sensitivity 1 is no more private, at any error of a test in
      the range that was asked for.
    - error: an estimate of the least k with f(a + k) - k <= G_mu(a) at all a: how far both errors of a test are apart.
    """

    mu: float
    error: float


class Risks(abc.ABC):
    """The risks of a guarantee of reports, or of shuffled reports.

    Of plain numbers every risk is an upper bound, and the trade-off curve a lower one. Of JAX numbers they are
    estimates with derivatives.
    """

    terms: Any

    @abc.abstractmethod
    def delta(self, epsilon: Real) -> Any:
        """Return a delta at an epsilon."""

    @abc.abstractmethod
    def epsilon(self, delta: Real) -> Any:
        """Return an epsilon at a delta."""

    @abc.abstractmethod
    def estimate_delta(self, epsilon: Real) -> Any:
        """Return an estimate of delta at an epsilon."""

    @abc.abstractmethod
    def bracket(self, *, epsilon: float | None = None, delta: float | None = None) -> tuple[float, float]:
        """Return bounds of delta at an epsilon, or of epsilon at a delta."""

    @abc.abstractmethod
    def _curve_point(self, alpha: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in [0, 1]."""

    @abc.abstractmethod
    def _pure_epsilon(self) -> float:
        """Return an upper bound of the largest loss, inf if there is none."""

    @abc.abstractmethod
    def _check_proven(self) -> None:
        """Raise ValueError if no bound is proven."""

    def _gaussian_mu(self) -> float:
        """Return mu of Gaussian noise alone, rounded up; 0 of everything else."""
        return 0.0

    @abc.abstractmethod
    def _is_traced(self, *values: object) -> bool:
        """Return whether there is a JAX number."""

    def trade_off(self, alpha: Real) -> Real:
        """Return the least type II error of a test of the type I error alpha, for alpha in [0, 1] of any shape.

        It is the curve f of f-DP that ``delta`` implies. It is convex, falls, and is its own inverse, so that it holds
        for both neighbour directions. Of plain numbers it is the lower end of ``bracket(alpha=alpha)``, so that no
        test does better. Of JAX numbers it is ``estimate_trade_off``, which is differentiable.

        Raises:
            ValueError: alpha is not in [0, 1], or no bound is proven (see ``delta``).
        """
        if self._is_traced(alpha):
            return self.estimate_trade_off(alpha)
        return self._bound_each("alpha", alpha, lambda value: self._curve_point(value).error[0])

    @partial(in_64_bits, computes_on_host=True)
    def estimate_trade_off(self, alpha: Real) -> Real:
        """Return an estimate of ``trade_off``, from ``estimate_delta``; of JAX numbers with derivatives.

        It is the highest of the lines by which each (eps, delta) bounds the curve, as found by a search over eps.
        """
        checks.within("alpha", alpha, 0.0, 1.0)
        xp = namespace(alpha, *jax.tree.leaves(self.terms if self._is_traced() else ()))
        alpha = xp.asarray(alpha, float)
        frozen, frozen_alpha = jax.tree.map(without_derivative, self), xp.asarray(without_derivative(alpha))
        eps, delta = _grid(frozen, xp)
        eps, height = xp.broadcast_to(eps, (*frozen_alpha.shape, len(eps))), _line(eps, delta, frozen_alpha[..., None])
        for _ in range(_ZOOMS):
            low, _, high = _around_best(eps, height)
            eps = low + (high - low) * np.linspace(0.0, 1.0, _ZOOM_POINTS)
            height = _line(eps, frozen.estimate_delta(xp.abs(eps)), frozen_alpha[..., None])
        # The top of the parabola through the best three points.
        best_eps, heights = (_around_best(values, height) for values in (eps, height))
        rise, fall = heights[1] - heights[0], heights[1] - heights[2]
        step = (rise - fall) / xp.maximum(rise + fall, np.finfo(np.float32).tiny) / 2
        top_eps = (best_eps[1] + xp.clip(step, -1.0, 1.0) * (best_eps[2] - best_eps[0]) / 2)[..., 0]
        top_eps = without_derivative(top_eps)
        value = xp.clip(_line(top_eps, self.estimate_delta(xp.abs(top_eps)), alpha), 0.0, 1 - alpha)
        return float_if_scalar(value) if xp is np else value

    def true_positive_rate(self, false_positive_rate: Real) -> Any:
        """Return the largest share of members that an attack finds, at a share of others that it takes for members.

        Of plain numbers it is the upper end of ``bracket(false_positive_rate=rate)``.

        Raises:
            ValueError: the rate is not in [0, 1], or no bound is proven.
        """
        if self._is_traced(false_positive_rate):
            return 1 - self.estimate_trade_off(false_positive_rate)
        name, rates = "false_positive_rate", false_positive_rate
        return self._bound_each(name, rates, lambda rate: self._curve_point(rate).power[1])

    def advantage(self) -> float:
        """Return the largest true positive rate minus false positive rate of an attack: its advantage over a coin.

        If a record is in the data with probability 1/2, an attacker guesses right with probability (1 + advantage)/2.
        ``bracket(epsilon=0.0)`` has both ends.
        """
        return self.delta(0.0)

    def odds(self, delta: float = 0.0) -> Real:
        """Return the largest factor by which a release changes the odds of an input, but with probability delta.

        Whatever the input, the odds of it grow by more with probability at most delta, also those that follow from a
        part of the release. At delta 0 the factor is e^epsilon, or inf if losses are unbounded. Otherwise it is larger
        than e^epsilon(delta): (epsilon, delta)-DP allows losses above epsilon with more probability than delta.
        """
        checks.below_one("delta", delta)
        if self._is_traced(delta):
            eps = self._likely_loss(delta)
            return namespace(eps).exp(eps)
        eps = self._pure_epsilon()
        if delta >= _MIN_DELTA:
            eps = min(eps, float(self._likely_loss(delta)))
        return float(np.exp(eps)) * (1 + _ROUNDING) if eps < 709 else math.inf

    @proven("trade_off#proof")
    def _likely_loss(self, delta: Real) -> Real:
        """Return a loss that no event of the probability delta has: eps(s delta) - log(1 - s), with the best share s.

        Estimates choose the share.
        """
        xp = namespace(without_derivative(delta), *jax.tree.leaves(self.terms if self._is_traced() else ()))
        targets = xp.asarray(_DELTA_SHARES) * without_derivative(delta)
        try:
            eps = jax.tree.map(without_derivative, self).estimate_epsilon(targets)
        except ConvergenceError:
            eps = xp.zeros_like(targets)
        target = targets[xp.argmin(eps - xp.log1p(-targets / without_derivative(delta)))]
        fraction = without_derivative(target / delta)
        return self.epsilon(delta * fraction) - xp.log1p(-fraction)

    def posterior(self, prior: Real, delta: float = 0.0) -> Real:
        """Return the largest belief in an input after the release, but with probability delta.

        Args:
            prior: the probability of the input before the release, in [0, 1].
            delta: in [0, 1): the largest probability with which the belief may be larger; see ``odds``.
        """
        checks.within("prior", prior, 0.0, 1.0)
        odds = self.odds(delta)
        # prior odds / (1 - prior + prior odds), also for infinite odds.
        xp = namespace(prior, odds)
        prior = xp.asarray(prior, np.float64) if xp is np else prior
        with np.errstate(divide="ignore", invalid="ignore"):
            belief = prior / (prior + (1 - prior) / odds)
        belief = xp.where(prior == 0, 0.0, belief)
        return float_if_scalar(np.minimum(belief * (1 + _ROUNDING), 1.0)) if xp is np else belief

    def reconstruction(self, prior: Real) -> Real:
        """Return the largest probability of a successful reconstruction of a record.

        Success is whatever a guess without the release reaches with probability at most ``prior``, such as 1/k for one
        of k equally likely values. It is the true positive rate at this false positive rate.

        Raises:
            ValueError: the prior is not in [0, 1], or no bound is proven.
        """
        checks.within("prior", prior, 0.0, 1.0)
        return self.true_positive_rate(prior)

    def gaussian_mu(self, smallest: float = 1e-6) -> GaussianFit:
        """Return the Gaussian guarantee that contains this one, and how much less private it is.

        The least mu with G_mu(alpha) <= f(alpha), where both errors are at least ``smallest``. It is never too
        small, and mostly at most 0.4 % too large. Of Gaussian noise alone it is exact.

        Raises:
            ValueError: smallest is not in (0, 0.1], there is a JAX number, or no bound is proven.
        """
        checks.within("smallest", smallest, np.nextafter(0.0, 1.0), 0.1, span="(0, 0.1]")
        if self._is_traced():
            raise ValueError("gaussian_mu: takes numbers, no JAX arrays")
        self._check_proven()
        mu = self._gaussian_mu() or _least_mu(self, smallest)
        if math.isinf(mu):  # No test has errors: the inputs are never confused.
            return GaussianFit(mu, 0.0)
        eps = np.linspace(0.0, mu * (mu / 2 - float(ndtri(np.float64(smallest)))), _COMPARED_POINTS)
        gaussian, profile = _gaussian_delta(mu, eps), np.asarray(self.estimate_delta(eps))
        distances = (gaussian - profile) / (1 + np.exp(np.minimum(eps, MAX_EXPONENT)))
        return GaussianFit(mu, float(np.max(distances, initial=0.0)))

    def report(self, delta: float = 1e-6) -> RiskReport:
        """Return what this guarantee means for one person: a text, a dictionary or a picture.

        Args:
            delta: the probability with which beliefs may be larger, in (0, 1).

        Raises:
            ValueError: delta is out of range, there is a JAX number, or no bound is proven.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        if self._is_traced(delta):
            raise ValueError("report: takes numbers, no JAX arrays")
        self._check_proven()
        return RiskReport(self, delta)

    def _bound_each(self, name: str, values: Real, bound: Callable[[float], float]) -> Real:
        checks.within(name, values, 0.0, 1.0)
        self._check_proven()
        values = np.asarray(values, np.float64)
        return float_if_scalar(
            np.array([bound(float(value)) for value in values.ravel()], np.float64).reshape(values.shape)
        )


@dataclass(frozen=True)
class RiskReport:
    """What a guarantee means for one person, for readers without a background in privacy."""

    guarantee: Any
    delta: float

    @cached_property
    def _numbers(self) -> JsonObject:
        return {
            "neighbouring": self.guarantee.neighbouring,
            "delta": self.delta,
            "epsilon": float(self.guarantee.epsilon(self.delta)),
            "advantage": float(self.guarantee.advantage()),
            "beliefs": {prior: float(self.guarantee.posterior(prior, self.delta)) for prior in PRIORS},
            "true_positive_rates": {rate: float(self.guarantee.true_positive_rate(rate)) for rate in RATES},
        }

    def to_dict(self) -> JsonObject:
        """Return the numbers, in a form that ``json`` can write; an infinite epsilon is None."""
        numbers = self._numbers
        return numbers | {
            "epsilon": numbers["epsilon"] if math.isfinite(numbers["epsilon"]) else None,
            "beliefs": [{"prior": prior, "at_most": belief} for prior, belief in numbers["beliefs"].items()],
            "true_positive_rates": [
                {"false_positive_rate": rate, "at_most": power}
                for rate, power in numbers["true_positive_rates"].items()
            ],
        }

    def __str__(self) -> str:
        numbers = self._numbers
        success = (1 + numbers["advantage"]) / 2
        budget = f"({_rounded_up(numbers['epsilon'], 4)}, {self.delta:g})"
        lines = [
            f"Neighbours: {numbers['neighbouring']}.",
            f"The release is {budget}-DP. Every number is an upper bound, for attackers who know everything else.",
            "",
            f"An attacker who decides between two neighbouring inputs, each true with probability 50 %, is right in "
            f"{_percent(success)} of cases.",
            "",
            "The probability that an attacker gives to one of two neighbouring inputs, before and after the release (a",
            f"larger one after it has probability {self.delta:g}):",
            "",
            "  before   after",
            *(f"  {f'{100 * prior:g} %':<9}{_percent(belief)}" for prior, belief in numbers["beliefs"].items()),
            "",
            "An attacker who looks for the people in the data: the share of all others who are taken for one of them",
            "by mistake, and the share of them who are found:",
            "",
            "  mistakes  found",
            *(
                f"  {f'{100 * rate:g} %':<10}{_percent(power)}"
                for rate, power in numbers["true_positive_rates"].items()
            ),
        ]
        return "\n".join(lines)

    def plot(self, path: Path | str) -> None:
        """Plot the trade-off curve and the beliefs after the release into a PNG file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4), layout="constrained")
        trade, beliefs = figure.subplots(1, 2)
        plot_trade_off(self.guarantee, trade)
        prior = np.linspace(0.0, 1.0, 101)
        beliefs.plot(prior, self.guarantee.posterior(prior, self.delta), label="after the release, at most")
        beliefs.plot(prior, prior, ":", color="grey", label="no information")
        beliefs.set(title=f"Beliefs, but with probability {self.delta:g}", xlabel="before", ylabel="after")
        beliefs.set(aspect="equal", xlim=(0, 1), ylim=(0, 1))
        beliefs.legend(frameon=False)
        figure.savefig(Path(path), dpi=120)


def _percent(fraction: float) -> str:
    return f"{_rounded_up(100 * fraction, 3)} %"


def _rounded_up(value: float, digits: int) -> str:
    return f"{Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(value):f}"


def plot_trade_off(guarantee: Risks, axes: Axes) -> None:
    """Plot both ends of the trade-off curve, and the curve of releases without information."""
    alpha = np.append(np.geomspace(1e-3, 0.02, 8), np.linspace(0.02, 0.5, 20)[1:])
    low, high = np.transpose([guarantee._curve_point(float(point)).error for point in alpha])
    # The curve is its own inverse: its points are also those of large errors.
    order = np.argsort(np.append(alpha, low))
    axes.plot(np.append(alpha, low)[order], np.append(low, alpha)[order], color="C0", label="no test does better")
    order = np.argsort(np.append(alpha, high))
    some_test = np.append(alpha, high)[order], np.append(high, alpha)[order]
    axes.plot(*some_test, "--", color="C1", label="some test does this")
    axes.plot([0, 1], [1, 0], ":", color="grey", label="no information")
    axes.set(title="Trade-off curve", xlabel="type I error", ylabel="least type II error", aspect="equal")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False)


def _grid(guarantee: Risks, xp: ModuleType) -> tuple[RealArray, RealArray]:
    """Return the first grid of eps, of lines of both kinds, and delta at |eps|."""
    eps = xp.asarray(_FIRST_GRID)
    delta = guarantee.estimate_delta(eps)
    return xp.concatenate([-eps[:0:-1], eps]), xp.concatenate([delta[:0:-1], delta])


def _around_best(values: Real, height: Any) -> list[RealArray]:
    """Return the values before, at and after the place of the highest line."""
    xp = namespace(values, height)
    best = xp.clip(height.argmax(-1), 1, height.shape[-1] - 2)[..., None]
    return [xp.take_along_axis(values, best + step, -1) for step in (-1, 0, 1)]


def _line(epsilon: Real, delta: Real, alpha: Real) -> Real:
    """Return the steep line of an eps >= 0 at alpha, or the flat line of -eps, where delta is that at |eps|."""
    xp = namespace(epsilon, delta, alpha)
    size = xp.abs(epsilon)
    steep = 1 - delta - xp.exp(xp.minimum(size, 80.0)) * alpha
    return xp.where(epsilon >= 0, steep, xp.exp(-size) * (1 - delta - alpha))


# The Gaussian guarantee


def _gaussian_delta(mu: float, epsilon: Real) -> RealArray:
    with np.errstate(all="ignore"):
        return np.exp(GaussianProfile((), np.float64(mu)).evaluate(np.asarray(epsilon, np.float64))[0])


def _least_mu(guarantee: Risks, smallest: float) -> float:
    """Return a mu whose curve is below that of a guarantee, where both errors are at least ``smallest``.

    G_mu is convex. So it is below the highest of some lines if it is below their corners. Estimates choose the lines.
    """
    last = tangent_epsilon(lambda eps: float(guarantee.estimate_delta(eps)), smallest, False, guarantee._pure_epsilon())
    eps = np.linspace(0.0, last, _LINES)
    delta = np.asarray(guarantee.estimate_delta(eps))
    lines = np.arange(_LINES)
    allowed_mu = _mu_above(eps, delta, smallest) * (1 + _MU_WIDTH)
    for index in range(1, _LINES - 1):
        fewer = lines[lines != index]
        if _mu_above(eps[fewer], delta[fewer], smallest) <= allowed_mu:
            lines = fewer
    eps = eps[lines]
    return _mu_above(eps, np.asarray(guarantee.delta(eps)), smallest) * (1 + _ROUNDING)


def _mu_above(eps: np.ndarray, delta: np.ndarray, smallest: float) -> float:
    """Return the least mu whose curve is below all corners of the highest of some steep lines, the first of eps = 0."""
    i, k = np.triu_indices(len(eps), 1)
    slopes = -np.exp(eps)
    with np.errstate(divide="ignore", invalid="ignore"):  # All lines may be one.
        crossings = (delta[i] - delta[k]) / (slopes[i] - slopes[k])
    # The curve of lines is symmetric about the diagonal, which the highest line crosses last: that of eps = 0, but for
    # the errors of delta.
    middle = float(np.max((1 - delta) / (1 - slopes)))
    alpha = np.concatenate([[smallest, middle], crossings[(crossings > smallest) & (crossings < middle)]])
    height = np.max(1 - delta + slopes * alpha[:, None], 1)
    # Beyond the diagonal corners are mirror images.
    on_this_side = (height >= alpha * (1 - 1e-9)) | (alpha == middle)
    with np.errstate(invalid="ignore"):
        mu = np.asarray(-ndtri(alpha) - ndtri(np.clip(height, 0.0, 1.0)))
    return float(np.max(mu[on_this_side], initial=0.0))
