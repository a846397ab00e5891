"""Published bounds for shuffled reports, for comparison: sound, and never below ``accountants.shuffled``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accountants.shuffle.blanket import worst_inputs
from dpkernels import checks
from dpkernels.solve import root

_DEVIATIONS = 12.0  # Deviations of how many reports hide one that are summed over.


def published_closed_form(level: float, n: int, delta: float) -> float:
    """Return eps at delta by Feldman, McMillan & Talwar 2021, Theorem 3.1; sound, inf where it does not apply.

    ln(1 + (e^eps0 - 1)/(e^eps0 + 1) (8 sqrt(e^eps0 ln(4/delta)/n) + 8 e^eps0/n)), for eps0 <= ln(n/(16 ln(2/delta))).
    """
    if not math.exp(level) <= n / (16 * math.log(2 / delta)):
        return math.inf
    size = 8 * math.sqrt(math.exp(level) * math.log(4 / delta) / n) + 8 * math.exp(level) / n
    return math.log1p(math.tanh(level / 2) * size)


def published_clones(level: float, n: int, epsilon: float) -> float:
    """Return delta at eps by the numerical bound of Feldman, McMillan & Talwar 2021, with e^-eps0 clones; sound."""
    return _hidden(n, math.exp(level), 1 / (1 + math.exp(level)), math.exp(-level), epsilon)


def published_variation_ratio(level: float, n: int, epsilon: float, total_variation: float) -> float:
    """Return delta at eps by the variation-ratio reduction of Wang et al. 2024; sound.

    It uses only eps0 and the total variation. Others are clones of each input with probability alpha = TV/(e^eps0 - 1),
    that of the rarer report. With probability 1 - (e^eps0 + 1) alpha the hidden report is equally likely for both
    inputs, and here the curator is assumed to know whether it is (joint convexity). Counting such reports among the
    others gives less than the truth: for randomised response on 4 categories, eps0 = 1.5, 9 reports and eps = 0.4 it
    gives 0.1111778, and enumeration 0.1112083. By eps0 alone, TV is at most tanh(eps0/2).
    """
    alpha = total_variation / math.expm1(level)
    return _hidden(n, math.exp(level), alpha, 2 * alpha, epsilon)


def _hidden(n: int, p: float, alpha: float, clones: float, epsilon: float) -> float:
    """Return delta from two counts, of clones of x and of x'.

    A clone is of x or x' with equal probability. The hidden report is of its own input with probability p alpha, and of
    the other with probability alpha. If s reports are of either input and a of them of x, the difference of the
    probability under x and e^eps times that under x' is Bin(a; s, 1/2) times the line base + slope a.
    """
    from scipy.stats import binom  # Imported on use: it takes 0.2 s.

    E, mean = math.exp(epsilon), (n - 1) * clones
    reach = _DEVIATIONS * math.sqrt(mean * (1 - clones)) + 2 * _DEVIATIONS
    s = np.arange(max(math.floor(mean - reach), 0), min(math.ceil(mean + reach), n) + 1)
    weight = 2 * alpha * binom.pmf(s - 1, n - 1, clones)
    slope, base = weight / np.maximum(s, 1) * (p - 1) * (1 + E), weight * (1 - E * p)
    first = np.clip(np.ceil(-base / np.where(slope > 0, slope, 1.0)), 0, s + 1)
    tails = binom.sf(first - 1, s, 0.5), s / 2 * binom.sf(first - 2, np.maximum(s - 1, 0), 0.5)
    return float(np.where(slope > 0, base * tails[0] + slope * tails[1], 0.0).sum().clip(0.0, 1.0))


def published_blanket(mechanism: object, n: int, epsilon: float, inequality: str = "bennett") -> float:
    """Return delta at eps > 0 by Balle, Bell, Gascon & Nissim 2019, by "hoeffding" or "bennett"; sound.

    It bounds E[(L_1 + ... + L_m)_+], averaged over Bin(n, gamma).
    With E L = -a, a = e^eps - 1, and values of L within B of each other, b above -a at most, v = Var L:
    Hoeffding's inequality gives B^2/(4 a) exp(-2 m a^2/B^2), Bennett's b/ln(1 + u) exp(-m v/b^2 h(u)), u = a b/v,
    h(u) = (1 + u) ln(1 + u) - u.
    """
    checks.one_of("inequality", inequality, ("hoeffding", "bennett"))
    checks.positive("epsilon", epsilon)
    a, best = math.expm1(epsilon), 0.0
    for pair in worst_inputs(mechanism).pairs:
        blanket = pair.upper.merged
        L, gamma = blanket.losses(epsilon), blanket.gamma
        if inequality == "hoeffding":
            scale, rate = np.ptp(L) ** 2 / (4 * a), 2 * a**2 / np.ptp(L) ** 2
        else:
            b, v = L.max() + a, float(blanket.mass @ (L + a) ** 2)
            u = a * b / v
            scale, rate = b / math.log1p(u), v / b**2 * ((1 + u) * math.log1p(u) - u)
        # E e^(-rate M) = (1 - gamma + gamma e^-rate)^n; the case M = 0 adds 0.
        none = n * math.log1p(-gamma) if gamma < 1 else -math.inf
        likely = math.exp(n * math.log1p(gamma * math.expm1(-rate))) - math.exp(none)
        best = max(best, scale * likely / (gamma * n))
    return min(best, 1.0)


def epsilon_of(bound: Callable[[float], float], delta: float, level: float) -> float:
    """Return the least eps in (0, eps0] at which a falling bound of delta is at most ``delta``; eps0 if none."""
    if bound(level * (1 - 1e-9)) > delta:
        return level
    low = 1e-9 * level
    if bound(low) <= delta:
        return 0.0
    return float(
        root(lambda eps, _: math.log(max(bound(eps), 1e-300) / delta), (), level * (1 - 1e-9), low, rtol=1e-12)
    )
