"""Mugunthan 2020: the tables of its appendix, whole, as printed and corrected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import dpkernels as dpk
from accountants import calibrate


def table_b(eps: float, delta: float) -> list[float]:
    """A, L1* = E|X|/sigma and L2* = E[X^2]/sigma^2 of symmetric truncated Laplace noise, D = 1.

    sigma is the analytic Gaussian's at the same (eps, delta).
    """
    noise: Any = dpk.truncated_laplace(epsilon=eps, delta=delta).noise
    normal = calibrate.gaussian(epsilon=eps, delta=delta).noise
    sigma = float(normal.variance) ** 0.5
    return [float(noise.low), float(noise.absolute_moment) / sigma, float(noise.variance) / sigma**2]


def exact_rates(printed: Sequence[float]) -> tuple[float, ...]:
    """1/3 for a printed 0.33: the rates are reciprocals of whole numbers, printed to two digits."""
    return tuple(1 / round(1 / rate) for rate in printed)


def with_the_slip(rates: tuple[float, ...], breaks: tuple[float, ...]) -> tuple[float, float, float]:
    """Return mass, E|X| and E[X^2] of the printed function, which has e^(-c2 r3) where continuity needs e^(+c2 r3).

    The function is no density. The integrals over the segments of the continuous distribution are exact; the last one
    is scaled by e^(-2 c2 r3).
    """
    noise, c2 = dpk.MergedLaplace(rates, breaks), breaks[-1]
    slip = np.exp(-2 * c2 * rates[-1])
    inner = noise.mass(-c2, c2), 2 * noise.moment(1, 0.0, c2), 2 * noise.moment(2, 0.0, c2)
    outer = 2 * noise.sf(c2), 2 * noise.moment(1, c2, np.inf), 2 * noise.moment(2, c2, np.inf)
    mass, first, second = (float(i + slip * o) for i, o in zip(inner, outer, strict=True))
    return mass, first, second


def table_c(eps1: float, eps2: float, eps3: float, c1: float, c2: float) -> list[float]:
    """Return E|X| and E[X^2] of Laplace noise at eps3: plain, merged with one break at c1, and with two breaks.

    The printed columns of two breaks have the slip. One break gives the continuous distribution of rates (eps2, eps3).
    """
    rates = exact_rates((eps1, eps2, eps3))
    laplace, merged = dpk.Laplace(1 / rates[2]), dpk.MergedLaplace(rates[1:], (c1,))
    _, first, second = with_the_slip(rates, (c1, c2))
    moments = [float(value) for law in (laplace, merged) for value in (law.absolute_moment, law.variance)]
    return [moments[0], moments[2], first, moments[1], moments[3], second]


def corrected(eps1: float, eps2: float, eps3: float, c1: float, c2: float) -> tuple[float, float]:
    """E|X| and E[X^2] of the continuous distribution with two breaks."""
    law = dpk.MergedLaplace(exact_rates((eps1, eps2, eps3)), (c1, c2))
    return float(law.absolute_moment), float(law.variance)
