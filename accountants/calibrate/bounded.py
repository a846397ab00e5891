"""Bounded mechanisms for an (epsilon, delta) budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accountants.profile import delta as realised
from accountants.scale import check_target
from dpkernels import checks
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real
from dpkernels.solve import root


def bounded(constructor: Callable[..., Any], *, epsilon: float, delta: float, **arguments: Any) -> Mechanism:
    """A bounded mechanism with the largest budget eps0 >= eps of its own whose delta(eps) is at most delta.

    A mechanism that is eps0-DP, and no more, is (eps, delta)-DP for smaller eps: there is more to spend than eps.

    Args:
        constructor: such as ``dpkernels.piecewise``; called with ``epsilon=eps0`` and the arguments.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        **arguments: the constructor's others, such as lower and upper.

    Returns:
        The mechanism; its ``epsilon`` is eps0.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1).
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta)

    def excess(budget: Real, _: Any) -> Any:
        return realised(constructor(epsilon=float(budget), **arguments), epsilon) - delta

    largest = checks.EPSILON_RANGE[1]
    budget = largest if excess(largest, ()) <= 0 else root(excess, (), epsilon, largest, rtol=1e-12)
    return constructor(epsilon=budget, **arguments)
