"""Composition of mechanisms with a known (eps, delta): sound, with results rounded upwards.

Mechanisms of this package have a privacy profile, which is tighter: compose it with ``accountants.guarantee``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from accountants.closed_forms.concentrated import pure_terms, tail_bound
from accountants.closed_forms.pure import pure_delta
from dpkernels import checks
from dpkernels.numerics import Real, RealArray

_MAX_FLOAT = np.finfo(float).max  # The largest finite float.
_ROUND_UP = 1 + 2.0**-48  # A factor that is more than a few float roundings.


def parallel_composition(epsilons: object, deltas: object = 0.0, adjacency: str = "add_remove") -> tuple[float, float]:
    """Return a sound (eps, delta) of independent mechanisms, each on its own part of the data (Jiang 2024, Remark 2).

    A record's part must depend on that record alone. Mechanism i must be (eps_i, delta_i)-DP for one record more or
    less in its part. A guarantee for replaced records is not enough: it allows a mechanism to print the size of its
    part, and records that move between parts change these sizes.

    | neighbours | eps | delta |
    |---|---|---|
    | one record added or removed | max eps_i | max delta_i |
    | one record replaced, perhaps by one of another part | 2 max eps_i | max delta_i (1 + e^eps_i) |

    Where a record is replaced within part i, that part's guarantee is used twice: delta_i (1 + e^eps_i) at 2 eps_i
    (group privacy). Where it moves from part i to part j, one record of each changes: the smaller value
    1 - (1 - delta_i)(1 - delta_j) at eps_i + eps_j. Remark 2 claims the first row without naming the neighbours.

    Args:
        epsilons: eps_i >= 0, one or several.
        deltas: delta_i in [0, 1]; one for each, or one for all.
        adjacency: "add_remove" or "replace".

    Raises:
        ValueError: no part, epsilons negative or infinite, deltas not in [0, 1], an unknown adjacency.

    Example:
        >>> parallel_composition([0.5, 1.0], [1e-6, 1e-7])
        (1.0, 1e-06)
    """
    checks.one_of("adjacency", adjacency, ("add_remove", "replace"))
    eps, delta = _budgets(epsilons, deltas)
    if adjacency == "add_remove":
        return float(eps.max()), float(delta.max())
    with np.errstate(over="ignore", invalid="ignore"):
        twice = np.where(delta > 0, delta * (1 + np.exp(eps)), 0.0)
    return 2 * float(eps.max()), min(float(twice.max()) * _ROUND_UP, 1.0)


def basic_composition(epsilons: object, deltas: object = 0.0) -> tuple[float, float]:
    """Return a sound (eps, delta) of mechanisms on the same data: the sums (Jiang 2024, Remark 3).

    Later mechanisms may be chosen by the outputs of earlier ones, as long as their budgets are fixed beforehand.

    Example:
        >>> basic_composition([0.5, 1.0], 1e-6)
        (1.5, 2e-06)
    """
    eps, delta = _budgets(epsilons, deltas)
    return _sum_upwards(eps), min(_sum_upwards(delta), 1.0)


def advanced_composition(epsilons: Real, deltas: Real, slack: float) -> tuple[float, float]:
    """Return a sound (eps, delta) of mechanisms on the same data, with the slack delta' in (0, 1).

        eps = min(sum eps_i,  sum eps_i tanh(eps_i/2) + sqrt(2 ln(1/delta') sum eps_i^2))
        delta = sum delta_i + delta'

    (Dwork, Rothblum & Vadhan 2010, with the mean of Kairouz, Oh & Viswanath 2015 in place of eps (e^eps - 1).) Later
    mechanisms may be chosen by the outputs of earlier ones, as long as their budgets are fixed beforehand. Jiang 2024,
    Remark 4, leaves sum delta_i out: ``recycling.published_advanced_composition``.
    """
    checks.within("slack", slack, 0.0, 1.0, open_ends=True)
    eps, delta = _budgets(epsilons, deltas)
    means, squares = map(np.asarray, pure_terms(eps))
    concentrated = tail_bound(math.fsum(means), math.fsum(squares), slack)
    return min(float(concentrated) * _ROUND_UP, _sum_upwards(eps)), min(_sum_upwards([*delta, slack]), 1.0)


def approximate_delta(epsilon0: Real, delta0: Real, k: Real, epsilon: Real) -> RealArray:
    """Return the optimal delta at eps >= 0 of k (eps0, delta0)-DP mechanisms, adaptive or not; sound, and attained.

        delta = 1 - (1 - delta0)^k (1 - delta_k),   delta_k that of k eps0-DP mechanisms, ``pure.pure_delta``

    (Kairouz, Oh & Viswanath 2015, Theorem 3.3.) The worst mechanism outputs its input with probability delta0, and
    otherwise randomised response at eps0, which for eps0 = 0 is no information. Arguments broadcast.
    """
    checks.within("epsilon0", epsilon0, 0.0, _MAX_FLOAT)
    checks.below_one("delta", delta0)
    checks.within("epsilon", epsilon, 0.0, np.inf)
    eps0 = np.asarray(epsilon0, float)
    positive = np.where(eps0 > 0, eps0, 1.0)
    pure = np.where(eps0 > 0, pure_delta(positive, k, np.asarray(epsilon, float)), 0.0)
    leak = -np.expm1(k * np.log1p(-np.asarray(delta0, float)))
    return np.minimum((leak + (1 - leak) * pure) * _ROUND_UP, 1.0)[()]


def _budgets(epsilons: object, deltas: object) -> tuple[np.ndarray, np.ndarray]:
    checks.within("epsilons", epsilons, 0.0, _MAX_FLOAT)
    checks.within("deltas", deltas, 0.0, 1.0)
    eps, delta = np.broadcast_arrays(np.asarray(epsilons, float), np.asarray(deltas, float))
    if not eps.size:
        raise ValueError("epsilons: are none; at least one mechanism is needed")
    return eps.ravel(), delta.ravel()


def _sum_upwards(values: Iterable[float]) -> float:
    total = math.fsum(values)
    return float(np.nextafter(total, np.inf)) if math.fsum([*values, -total]) > 0 else total
