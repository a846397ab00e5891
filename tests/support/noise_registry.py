"""The laws of additive noise every property is tested over, at odd parameters, and quadrature of their densities."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import piece_integrals

from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase

REFERENCE = json.loads((Path(__file__).parent / "noise_reference.json").read_text())

MERGED = MergedLaplace((0.9, 0.0, 0.35, 1.7), (0.3, 0.7, 2.9))
NARROW = MergedLaplace((3.0, 0.0, 0.8), (0.31, 1.0))
HALF_LINE = Reweighted(Laplace(1.3), -0.4, 6.0, 0.0)

SYMMETRIC: dict[str, Any] = {
    "laplace": Laplace(0.7),
    "laplace-wide": Laplace(13.0),
    "gaussian": Gaussian(2.3),
    "merged": MERGED,
    "merged-narrow": NARROW,
    "staircase-0": Staircase(0.8, 1.5, 0.0),
    "staircase-0.3": Staircase(1.7, 0.9, 0.3),
    "staircase-1": Staircase(0.4, 2.0, 1.0),
    "recycled-gaussian": Reweighted(Gaussian(1.7), -2.0, 2.0, 0.35),
    "recycled-laplace": Reweighted(Laplace(0.8), -0.9, 0.9, 0.08),
    "truncated-gaussian": Reweighted(Gaussian(1.1), -4.1, 4.1, 0.0),
}
ASYMMETRIC: dict[str, Any] = {
    "truncated-laplace": HALF_LINE,
    "truncated-gaussian-asymmetric": Reweighted(Gaussian(0.9), -5.2, 1.3, 0.0),
    "recycled-merged": Reweighted(MERGED, -1.1, 2.2, 0.6),
    "recycled-staircase": Reweighted(Staircase(1.1, 1.0, 0.45), -2.3, 0.8, 0.25),
    "recycled-truncated": Reweighted(HALF_LINE, -0.2, 2.5, 0.3),
}
LAWS = SYMMETRIC | ASYMMETRIC


def over(registry: dict[str, Any], *names: str) -> pytest.MarkDecorator:
    """Parametrise ``law`` over a registry, or over the named entries of it."""
    chosen = names or registry
    return pytest.mark.parametrize("law", [pytest.param(registry[name], id=name) for name in chosen])


def scale(law: Any) -> float:
    """The length over which the tails fall off."""
    if isinstance(law, Reweighted):
        return scale(law.kernel)
    if isinstance(law, Staircase):
        return law.period / law.epsilon
    if isinstance(law, MergedLaplace):
        return 1 / law.rates[-1]
    return law.scale if isinstance(law, Laplace) else law.sigma


def ends(law: Any) -> tuple[float, float]:
    """The support, cut where the tails are below 1e-32 of anything."""
    low, high = (float(end) for end in law.support)
    return max(low, -75 * scale(law)), min(high, 75 * scale(law))


def cells(law: Any, low: float, high: float, *more: Any) -> np.ndarray:
    """Points from low to high that hold all knots between, at most a third of a scale apart."""
    count = int(3 * (high - low) / scale(law)) + 2
    return np.unique(np.clip(np.concatenate([np.linspace(low, high, count), law.knots, *more]), low, high))


def quadrature(law: Any, function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """Integral of the function times the density over [low, high], exact to rounding."""
    return float(piece_integrals(lambda z: function(z) * law.prob(z), cells(law, low, high)).sum())


def one(z: np.ndarray) -> np.ndarray:
    return np.ones_like(z)


def tail_points(law: Any) -> np.ndarray:
    """Points in both tails, in the middle and on no knot; the farthest have tails below 1e-30 where there are any."""
    spread = np.array([0.013, 0.17, 0.61, 1.37, 2.9, 5.3, 9.1, 12.2, 35.3, 71.9]) * scale(law)
    points = np.concatenate([-spread[::-1], spread])
    low, high = law.support
    inner_points = points[(points > low) & (points < high)]
    return inner_points[(law.cdf(inner_points) > 1e-200) & (law.sf(inner_points) > 1e-200)]
