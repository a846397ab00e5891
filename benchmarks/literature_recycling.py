"""Jiang 2024: acceptance and sampling rates, exactly accounted, for the notebook and the tables.

Acceptance is P(|report - answer| <= theta). All budgets are (eps, delta) of one report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import dpkernels as dpk
from accountants import calibrate, recycling, tune
from accountants.subsampling import on_sample

DELTA = 1e-5


def staircase_acceptance(theta: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """The largest acceptance of any additive noise that is (eps, 0)-DP.

    Geng & Viswanath 2014: for a cost that grows with |z|, such as 1 where |z| > theta, a staircase is best; its high
    steps end at theta, gamma = theta/D - floor(theta/D).
    """
    gamma = math.fmod(theta / sensitivity, 1.0)
    return max(float(dpk.Staircase(epsilon, sensitivity, each).mass(-theta, theta)) for each in (gamma, 1.0))


def tuned(theta: float, epsilon: float, sensitivity: float = 1.0, delta: float = DELTA) -> tune.Result:
    """Recycled Gaussian noise, exactly accounted, with the sigma and q of the largest acceptance."""
    family = tune.budget_recycled("gaussian", epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    return tune.best(family, tune.acceptance(theta))


def acceptances(theta: float, epsilon: float, sensitivity: float = 1.0, delta: float = DELTA) -> dict[str, float]:
    """Acceptance of a Gaussian kernel alone, as published, and exactly accounted; of Laplace noise and the staircase.

    *Exact* is tuned: the sigma, with the largest q for it, of the largest acceptance. The last entry is the delta that
    the published choice really has, over the target.
    """
    budget = {"epsilon": epsilon, "delta": delta, "sensitivity": sensitivity}
    published = recycling.published_budget(dpk.Gaussian, theta=theta, **budget)
    kernel: Any = calibrate.gaussian(**budget).noise
    true = recycling.profile(published.kernel, theta, published.q, sensitivity, epsilon)
    return {
        "kernel alone": float(kernel.mass(-theta, theta)),
        "published": published.acceptance,
        "exact": tuned(theta, **budget).value,
        "Laplace": -math.expm1(-epsilon * theta / sensitivity),
        "staircase": staircase_acceptance(theta, epsilon, sensitivity),
        "true delta of published / delta": float(true) / delta,
    }


def shares(
    values: Sequence[float], theta: float, epsilon: float, sensitivity: float = 1.0, delta: float = DELTA
) -> list[dict[str, float]]:
    """Acceptance against the kernel's share of eps, with the largest q of Algorithm 1 and of exact accounting."""
    return [_share(share, theta, epsilon, sensitivity, delta) for share in values]


def _share(share: float, theta: float, epsilon: float, sensitivity: float, delta: float) -> dict[str, float]:
    kernel: Any = calibrate.gaussian(epsilon=share * epsilon, delta=delta, sensitivity=sensitivity).noise
    row = {"share": share}
    for name, rate in (("published", recycling.published_rate), ("exact", calibrate.recycling_rate)):
        q = float(rate(kernel, theta, epsilon, delta, sensitivity))
        true = recycling.profile(kernel, theta, q, sensitivity, epsilon)
        row |= {name: float(recycling.recycled(kernel, theta, q).acceptance), f"{name} delta": float(true)}
    return row


def on_samples(
    rates: Sequence[float],
    sampling_noise: Callable[[float], Any],
    theta: float,
    epsilon: float,
    sensitivity: float,
    delta: float = DELTA,
) -> list[dict[str, float]]:
    """Acceptance against the sampling rate p, with the source's sensitivity D and with D/p.

    The Gaussian kernel is the one that meets the sample's budget alone, and q the largest for it.

    Args:
        rates: p, at most 1.
        sampling_noise: standard deviation of the estimate without noise, as a function of p.
        theta: tolerated error.
        epsilon: for the whole data.
        sensitivity: D of the estimate from all the data.
        delta: for the whole data.
    """
    readings = {"D kept": recycling.published_sensitivity, "D/p": recycling.rescaled_sensitivity}
    rows = []
    for rate in rates:
        noise = float(sampling_noise(rate))
        row = {"rate": rate, "sampling noise": noise}
        for name, sensitivity_at in readings.items():
            made = _sampled(rate, noise, theta, epsilon, sensitivity, delta, sensitivity_at)
            row[name] = float(made.acceptance)
        rows.append(row)
    return rows


def _sampled(
    rate: float, noise: float, theta: float, epsilon: float, sensitivity: float, delta: float, sensitivity_at: Any
) -> Any:
    inner_epsilon, inner_delta = on_sample(epsilon, delta, rate)
    kernel: Any = calibrate.gaussian(
        epsilon=float(inner_epsilon), delta=float(inner_delta), sensitivity=sensitivity_at(sensitivity, rate)
    ).noise
    return recycling.subsampled_recycling(
        kernel,
        theta=theta,
        rate=rate,
        epsilon=epsilon,
        delta=delta,
        sensitivity=sensitivity,
        sampling_noise=noise,
        sensitivity_at=sensitivity_at,
    )
