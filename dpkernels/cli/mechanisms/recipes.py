"""Mechanisms from options; parameters of additive ones that are not given are calibrated to the claim."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms import named as bounded
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.search import optimal
from dpkernels.mechanisms.windowed.mechanism import Windowed


def optimal_central(*, epsilon: float, lower: float, upper: float, sensitivity: float) -> Optimal:
    """The linear program's mechanism for inputs up to the sensitivity apart; see ``optimal``.

    Raises:
        ValueError: as for ``optimal``.
    """
    return optimal(epsilon=epsilon, lower=lower, upper=upper, sensitivity=sensitivity)


def piecewise(*, epsilon: float, lower: float, upper: float, eta: float | None = None) -> Windowed:
    """Type-I piecewise transformation; see ``named.piecewise``.

    Raises:
        ValueError: as for it.
    """
    return bounded.piecewise(epsilon=epsilon, lower=lower, upper=upper, eta=eta)


@lru_cache(maxsize=16)
def eta_for_distribution(*, epsilon: float, lower: float, upper: float) -> float:
    """The eta of ``piecewise`` whose reports, 10^5 of them, tell most of the distribution.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    from accountants import tune

    family = tune.piecewise(epsilon=epsilon, lower=lower, upper=upper)
    return float(tune.best(family, tune.distribution()).parameters["eta"])


def gaussian(
    *, epsilon: float | None = None, delta: float | None = None, sensitivity: float, sigma: float | None = None
) -> Additive:
    """Gaussian noise, of the least sigma for the claim unless it is given.

    Raises:
        ValueError: as for ``named_additive.gaussian`` or ``calibrate.gaussian``; neither sigma nor a claim.
    """
    claim = {"epsilon": epsilon, "delta": delta, "sensitivity": sensitivity}
    if sigma is not None:
        return named.gaussian(sigma=sigma, **claim)
    _check_claim("--sigma", claim)
    return _calibrate().gaussian(**claim)


def truncated_gaussian(
    *,
    epsilon: float | None = None,
    delta: float,
    sensitivity: float,
    sigma: float | None = None,
    bound: float | None = None,
) -> Additive:
    """Gaussian noise on an interval, of the least sigma for the claim unless it is given.

    Raises:
        ValueError: as for ``named_additive.truncated_gaussian`` or that of ``calibrate``; neither sigma nor a claim.
    """
    claim: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "sensitivity": sensitivity}
    if sigma is not None:
        return named.truncated_gaussian(sigma=sigma, bound=bound, **claim)
    _check_claim("--sigma", claim)
    return _calibrate().truncated_gaussian(bound=bound, **claim)


def truncated_laplace(
    *, epsilon: float, delta: float, sensitivity: float, noise_upper: float | None = None
) -> Additive:
    """Laplace noise on an interval; its upper end has another name than the input interval's.

    Raises:
        ValueError: as for ``named_additive.truncated_laplace``.
    """
    try:
        return named.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=sensitivity, upper=noise_upper)
    except ValueError as error:
        name, colon, text = str(error).partition(":")
        raise ValueError(("noise-upper" if name == "upper" else name) + colon + text) from error


def recycled_gaussian(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sensitivity: float,
    theta: float,
    sigma: float | None = None,
    q: float | None = None,
) -> Additive:
    """Budget recycling of Gaussian noise; sigma and q that are not given are the best for the claim.

    Raises:
        ValueError: as for ``calibrate.budget_recycled``; neither both sigma and q nor a claim.
    """
    claim = {"epsilon": epsilon, "delta": delta, "sensitivity": sensitivity}
    return _recycled(Gaussian, "--sigma", sigma, q, theta, claim)


def recycled_laplace(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sensitivity: float,
    theta: float,
    scale: float | None = None,
    q: float | None = None,
) -> Additive:
    """Budget recycling of Laplace noise; scale and q that are not given are the best for the claim.

    Raises:
        ValueError: as for ``calibrate.budget_recycled``; neither both scale and q nor a claim.
    """
    claim = {"epsilon": epsilon, "delta": delta, "sensitivity": sensitivity}
    return _recycled(Laplace, "--scale", scale, q, theta, claim)


def _recycled(law: Any, flag: str, width: float | None, q: float | None, theta: float, claim: Any) -> Additive:
    kernel: Distribution | None = None if width is None else law(width)
    if kernel is not None and q is not None:
        return named.budget_recycled(kernel, theta=theta, q=q, **claim)
    _check_claim(flag if kernel is None else "--q", claim)
    if kernel is not None:
        return _calibrate().budget_recycled(kernel, theta=theta, **claim)
    return _calibrate().budget_recycled(law, theta=theta, q=q, **claim)


def _check_claim(flag: str, claim: dict[str, Any]) -> None:
    if None in claim.values():
        raise ValueError(f"{flag}: missing; give it, or --epsilon and --delta, to which it is calibrated")


def _calibrate() -> Any:
    from accountants import calibrate

    return calibrate
