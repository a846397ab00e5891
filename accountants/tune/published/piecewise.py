"""Ma 2021's own choice of a piecewise transformation of type I, for comparison."""

from __future__ import annotations

from dpkernels import checks
from dpkernels.mechanisms.named import piecewise
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.numerics import Real, namespace


def published_eta(epsilon: Real) -> Real:
    """Ma 2021, Theorem 4 (eq. 19): eta_0 = 1 + cbrt(E + sqrt(E^2 - 1)) + cbrt(E - sqrt(E^2 - 1)), E = e^eps.

    It minimises (eta^3 + E - 1)/(eta - 1)^2, the variance in the middle with eps and the window's probability q both
    held. Normalisation ties q to eta, q = E/(E + eta - 1), so that the variance has the factor E + eta - 1 as well:
    **not the optimum**. The worst-case variance at eta_0 is 21 % above the least at eps = 0.5 and 15 % at eps = 2
    (``python -m benchmarks.literature``).

    Args:
        epsilon: positive; any shape.

    Raises:
        ValueError: epsilon not in [0.01, 20].
    """
    checks.epsilon(epsilon)
    xp = namespace(epsilon)
    root = xp.exp(xp.arccosh(xp.exp(epsilon)) / 3)  # cbrt(E + sqrt(E^2 - 1)); the other one is its reciprocal.
    return 1 + root + 1 / root


def published_piecewise(*, epsilon: float, lower: float, upper: float) -> Windowed:
    """Type I at ``published_eta``: private and unbiased, but noisier than ``dpkernels.piecewise`` with its own eta.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    return piecewise(epsilon=epsilon, lower=lower, upper=upper, eta=float(published_eta(epsilon)))
