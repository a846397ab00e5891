"""Jiang 2024: acceptance and sampling rates, exactly accounted, for the notebook and the tables.

Acceptance is P(|report - answer| <= theta). All budgets are (eps, delta) of one report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import erf, ndtri

import dpkernels as dpk
from accountants import calibrate, guarantee, recycling, tune
from accountants.dominating_pairs.registry import additive_profile
from accountants.published import recycling as published
from accountants.published.searches import published_recycling, search
from accountants.schemes.poisson import budget_on_sample
from dpkernels.numerics import Real

DELTA = 1e-5


def staircase_acceptance(theta: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """The largest acceptance of any additive noise that is (eps, 0)-DP.

    Geng & Viswanath 2014: for a cost that grows with |z|, such as 1 where |z| > theta, a staircase is best; its high
    steps end at theta, gamma = theta/D - floor(theta/D).
    """
    gamma = math.fmod(theta / sensitivity, 1.0)
    return max(float(dpk.Staircase(epsilon, sensitivity, shape).mass(-theta, theta)) for shape in (gamma, 1.0))


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
    published_choice = published.published_budget(dpk.Gaussian, theta=theta, **budget)
    kernel: Any = calibrate.gaussian(**budget).noise
    true = recycling.profile(published_choice.kernel, theta, published_choice.q, sensitivity, epsilon)
    return {
        "kernel alone": float(kernel.mass(-theta, theta)),
        "published": published_choice.acceptance,
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
    for name, rate in (("published", published.published_rate), ("exact", calibrate.recycling_rate)):
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
    """Return acceptance over the sampling rate p, with the source's sensitivity D and with D/p.

    The Gaussian kernel meets the sample's budget by itself, and q is the largest possible for it.

    Args:
        rates: p, at most 1.
        sampling_noise: standard deviation of the estimate without noise, as a function of p.
        theta: tolerated error.
        epsilon: for the whole data.
        sensitivity: D of the estimate from all the data.
        delta: for the whole data.
    """
    readings = {"D kept": published.published_sensitivity, "D/p": recycling.rescaled_sensitivity}
    rows = []
    for rate in rates:
        noise = float(sampling_noise(rate))
        row = {"rate": rate, "sampling noise": noise}
        for name, sensitivity_at in readings.items():
            noise_on_sample = _sampled(rate, noise, theta, epsilon, sensitivity, delta, sensitivity_at)
            row[name] = float(noise_on_sample.acceptance)
        rows.append(row)
    return rows


def _sampled(
    rate: float, noise: float, theta: float, epsilon: float, sensitivity: float, delta: float, sensitivity_at: Any
) -> Any:
    inner_epsilon, inner_delta = budget_on_sample(epsilon, delta, rate)
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


def epsilon_for(theta: float, D: float, acceptance: float) -> list[float]:
    """The eps at which the published algorithms reach an acceptance, Gaussian kernel."""
    from scipy.optimize import brentq

    def missing(epsilon: float) -> float:
        published_choice = published.published_budget(
            dpk.Gaussian, theta=theta, epsilon=epsilon, delta=DELTA, sensitivity=D
        )
        return published_choice.acceptance - acceptance

    return [float(brentq(missing, 0.5, 15.0, xtol=1e-3))]


def composed(counts: Sequence[int], epsilon: float, theta: float, delta: float = DELTA) -> list[dict[str, float]]:
    """Figure 5: eps at delta of T reports: the kernel alone, and Algorithm 2's choice by Algorithm 3 and exactly.

    Also plain noise that is accepted as often as the published choice. D = 1, Gaussian kernel, (eps, delta) a report.
    """
    alone: Any = calibrate.gaussian(epsilon=epsilon, delta=delta).noise
    law: Any = published_recycling(dpk.Gaussian(1.0), theta, epsilon, delta, 1.0)[0]
    as_often = dpk.gaussian(sigma=theta / float(ndtri((1 + law.acceptance) / 2)))
    guarantees = {
        "kernel alone": guarantee(dpk.gaussian(sigma=alone.sigma), 1.0),
        "published choice, exactly": guarantee(dpk.Additive(law), 1.0),
        "plain, accepted as often": guarantee(as_often, 1.0),
    }
    return [
        {"T": T, "published choice, Algorithm 3": _by_algorithm_three(law, theta, T, delta)}
        | {
            name: float(composed_guarantee.repeat(T).estimate_epsilon(delta))
            for name, composed_guarantee in guarantees.items()
        }
        for T in counts
    ]


def _by_algorithm_three(law: Any, theta: float, count: int, delta: float) -> float:
    from scipy.optimize import brentq

    weight, q = float(published.published_weight(law.kernel, theta, 1.0)), float(1 - law.outside)
    profile = partial(additive_profile, dpk.Gaussian(law.kernel.sigma / math.sqrt(count)), 1.0)

    def excess(epsilon: float) -> float:
        return published.published_composition(profile, weight, q, count, epsilon) / delta - 1

    return float(brentq(excess, 0.0, 500.0, xtol=1e-9))


# Figure 6: sigma_x = 10, eps = 0.1, delta = 1e-5, p_c = 0.1. theta and D are those of section 8.
FIGURE_SIX: dict[str, tuple[Callable[[int, float], Real], float, float]] = {
    "sum": (lambda n, p: recycling.sampling_noise_sum(10.0, n, p), 22.0, 5.0),
    "average": (lambda n, p: recycling.sampling_noise_mean(10.0, n, p), 0.0017, 1.0),
    "count": (lambda n, p: recycling.sampling_noise_count(0.1, n, p), 1.0, 3.0),
}


def best_rates(sizes: Sequence[int], epsilon: float = 0.1, delta: float = DELTA) -> list[dict[str, float]]:
    """Figure 6: the rate p of the largest acceptance of Gaussian noise on a sample, by n, with D kept and with D/p.

    Without recycling, whose part at eps = 0.1 is small: the error is then Gaussian, of both variances together.
    """
    rates = np.geomspace(0.002, 1, 160)
    sigma = np.array([_sigma(rate, epsilon, delta) for rate in rates])
    rows = []
    for n in sizes:
        row: dict[str, float] = {"n": n}
        for query, (noise, D, theta) in FIGURE_SIX.items():
            sampling = np.array([noise(n, rate) for rate in rates])
            for name, scale in (("D", 1.0), ("D/p", 1 / rates)):
                accepted = erf(theta / np.hypot(sampling, sigma * D * scale) / math.sqrt(2))
                # Where several are accepted always, the largest.
                row[f"{query}, {name}"] = float(rates[accepted >= accepted.max() - 1e-12].max())
        rows.append(row)
    return rows


def _sigma(rate: float, epsilon: float, delta: float) -> float:
    inner = dict(zip(("epsilon", "delta"), map(float, budget_on_sample(epsilon, delta, rate)), strict=True))
    noise: Any = calibrate.gaussian(**inner).noise
    return float(noise.sigma)


# Figures 7 and 8: (eps, D, theta) of the queries of section 8.
SECTION_EIGHT = {
    ("Adult", "sum"): (0.5, 22.0, 5.0),
    ("Adult", "average"): (0.05, 0.0017, 1.0),
    ("Adult", "count"): (0.1, 1.0, 3.0),
    ("Gowalla", "sum"): (0.5, 12.0, 10.0),
    ("Gowalla", "average"): (0.05, 0.0012, 1.0),
    ("Gowalla", "count"): (0.1, 1.0, 3.0),
}


def section_eight() -> list[dict[str, Any]]:
    """Acceptances at the settings of figures 7 and 8, all the data used; no data are needed for them."""
    return [
        {"data": data, "query": query, "eps": eps, "D": D, "theta": theta} | acceptances(theta, eps, D)
        for (data, query), (eps, D, theta) in SECTION_EIGHT.items()
    ]


@dataclass(frozen=True)
class Rated:
    """A rate of sampling, what is accepted there, and what the report adds.

    Attributes:
        rate: p.
        acceptance: P(|report - answer| <= theta), sampling included.
        sigma: of the kernel.
        q: probability of a redraw.
    """

    rate: float
    acceptance: float
    sigma: float
    q: float


def count_on_sample(size: int, rate: float | None = None, epsilon: float = 0.1, theta: float = 3.0) -> Rated:
    """Algorithm 4 on the count of a tenth of n records, D = 1 kept; or Algorithm 2 at a given rate."""
    family: Any = tune.sampled_recycled(
        "gaussian",
        epsilon=epsilon,
        delta=DELTA,
        theta=theta,
        query="count",
        spread=0.1,
        size=float(size),
        sensitivity_at=published.published_sensitivity,
    )
    if rate is None:
        tuned: Any = search(family, tune.acceptance(theta)).mechanism
        return _rated(tuned.mechanism.noise, tuned.rate, theta, tuned.sampling_noise)
    law = published_recycling(family.kernel, theta, *family.budget_on_sample(rate))[0]
    return _rated(law, rate, theta, float(family.rate.error(rate)))


def _rated(law: Any, rate: float, theta: float, noise: float) -> Rated:
    accepted = float(recycling.acceptance(law, theta, noise))
    return Rated(float(rate), accepted, float(law.kernel.sigma), float(1 - law.outside))
