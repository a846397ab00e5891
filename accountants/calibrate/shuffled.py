"""The largest local budget whose reports, shuffled, meet a central one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from accountants.shuffle import Shuffled
from accountants.shuffle import shuffled as account
from dpkernels import checks
from dpkernels.exact.certify import certify
from dpkernels.solve import first_feasible, root

# Of log eps0, to the safe side: the bracket is above the value by 1e-7 to 1e-2 of delta.
_MARGINS = (0.0, *(1e-8 * 4.0**k for k in range(13)))
# The least step of log eps0 to where a constructor takes no more.
_FEWEST = 1e-2


def shuffled(constructor: Callable[..., Any], *, epsilon: float, delta: float, n: int, **arguments: Any) -> Any:
    """The mechanism with the largest eps0 of which n shuffled reports are (eps, delta)-DP.

    Neighbouring: one person's input replaced; a shuffler is trusted; n counts honest reports; see
    ``accountants.shuffle``. Met, by the upper end of the rigorous bracket, by the integers that a release samples.

    Args:
        constructor: of a bounded mechanism, such as ``dpkernels.piecewise``; called with ``epsilon=eps0`` and the
            arguments.
        epsilon: central eps, positive.
        delta: central, in (0, 1).
        n: how many honest reports.
        **arguments: the constructor's others, such as lower and upper.

    Returns:
        The mechanism; its ``epsilon`` is eps0, in [0.01, 20].

    Raises:
        NotPrivateError: no mechanism was proven to meet the target.
        ValueError: an argument out of range; a target that eps0 = 0.01 misses, with what it gives.

    Example:
        >>> from dpkernels import piecewise
        >>> round(shuffled(piecewise, epsilon=0.1, delta=1e-6, n=100_000, lower=0.0, upper=1.0).epsilon, 3)
        3.747
    """
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    n = checks.whole("n", n, 2, 1 << 50)

    def excess(t: float) -> float:
        value = account(constructor(epsilon=math.exp(t), **arguments), n).delta(epsilon)
        return max(math.log(max(value, 1e-300) / delta), -50.0)

    low, high = (math.log(end) for end in checks.EPSILON_RANGE)
    if excess(low) > 0:
        own = account(constructor(epsilon=math.exp(low), **arguments), n).epsilon(delta)
        raise ValueError(
            f"epsilon: {epsilon:g} at delta {delta:g}; {n} reports of eps0 = 0.01 already have epsilon {own:.4g}"
        )
    t = _largest(excess, low, high)

    def made(margin: float) -> Any:
        return constructor(epsilon=math.exp(max(t - margin, low)), **arguments)

    return first_feasible(map(made, _MARGINS), lambda one: proven(one, n).upper_bound(epsilon) <= delta)


def _largest(excess: Callable[[float], float], low: float, high: float) -> float:
    """The root, looked for from below in growing steps: mechanisms of the largest budgets may not exist."""
    safe, step = low, 1.0
    while safe < high:
        unsafe = min(safe + step, high)
        try:
            if excess(unsafe) > 0:
                return float(root(lambda t, _: excess(t), (), safe, unsafe, rtol=1e-12))
            safe = unsafe
        except ValueError:
            high, step = unsafe - 1e-6, step / 2
            if step < _FEWEST:
                break
    return safe


def proven(mechanism: Any, n: int) -> Shuffled:
    """Of the integers that a release samples."""
    return account(certify(mechanism), n)
