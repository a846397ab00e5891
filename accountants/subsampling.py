"""Privacy of a report made on a random sample of the data.

A mechanism that is (eps, delta)-DP on a sample of rate p is (eps_p, delta_p)-DP on the whole,

    eps_p = ln(1 + p (e^eps - 1)),   delta_p = p delta

(Jiang 2024, Theorem 4; Balle, Barthe and Gaboardi 2018). This holds for samples that contain each record independently
with probability p, where neighbours differ by one record added or removed. It also holds for samples of p n records
drawn without replacement, where neighbours differ in one record. It must stay secret which records were drawn.
"""

from __future__ import annotations

from typing import Any

from accountants.privacy_loss import sampled_loss
from dpkernels import checks
from dpkernels.numerics import Real, namespace


def amplified_budget(epsilon: Any, delta: Any, rate: Any) -> tuple[Any, Any]:
    """Return ln(1 + p (e^eps - 1)) and p delta, the budget on the whole data of a mechanism that has this on a sample.

    Raises:
        ValueError: epsilon is negative, delta is not in [0, 1], or rate is not in (0, 1]. They have any shape.
    """
    _check(epsilon, delta, rate)
    return sampled_loss(epsilon, rate)[()], rate * delta


def _check(epsilon: Any, delta: Any, rate: Any) -> None:
    checks.within("epsilon", epsilon, 0.0, float("inf"))
    checks.within("delta", delta, 0.0, 1.0)
    checks.within("rate", rate, 5e-324, 1.0)


def budget_on_sample(epsilon: Real, delta: Real, rate: Real) -> tuple[Any, Any]:
    """Return ln(1 + (e^eps - 1)/p) and delta/p, which a mechanism may spend on a sample.

    This is the inverse of ``amplified_budget``.

    Raises:
        ValueError: epsilon is negative, rate is not in (0, 1], or delta is not in [0, rate). They have any shape.
    """
    _check(epsilon, delta, rate)
    spent, available = checks.concrete(delta), checks.concrete(rate)
    if spent is not None and available is not None and not (spent < available).all():
        raise ValueError(f"rate: {available.min():.9g} is not in ({spent.max():.9g}, 1], above delta")
    xp = namespace(epsilon, rate)
    return epsilon + xp.log1p(-xp.expm1(-epsilon) * (1 - rate) / rate), delta / rate
