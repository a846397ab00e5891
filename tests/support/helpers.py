"""The registry of mechanisms every property is tested over, and quadrature between the knots of a density."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import pytest

import dpkernels as dpk
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.base import profile
from accountants.dominating_pairs.windowed import WindowedPair
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow

SKEW = {"lower": -3.0, "upper": 17.0}
UNIT = {"lower": 0.0, "upper": 1.0}
FAR = {"lower": 1e6, "upper": 1e6 + 5}
SMALL = {"lower": -1e-3, "upper": 2e-3}

BUMP = dpk.window_from(lambda z: np.sin(np.pi * z) ** 2 + 0.1)
HUMPS = dpk.window_from([0.2, 0.9, 1.0, 0.5, 0.3, 0.5, 1.0, 0.9, 0.2])
RING = dpk.window_from([0.0, 1.0, 0.0, 1.0, 0.0])
BOWL = dpk.base_from(lambda v: 1.2 - np.cos(2 * v))
DOME = dpk.base_from([0.4, 0.8, 1.0, 0.8, 0.4])


def _composites(condition: str, rows: list[tuple[Any, ...]]) -> dict[str, dpk.Windowed]:
    return {
        name: dpk.composite(window, base, epsilon=epsilon, width=width, condition=condition, **interval)
        for name, window, base, epsilon, width, interval in rows
    }


# Heights as high as the pointwise condition lets them be.
POINTWISE: dict[str, dpk.Windowed] = {
    "piecewise-0.01": dpk.piecewise(epsilon=0.01, **UNIT),
    "piecewise-0.5": dpk.piecewise(epsilon=0.5, **SKEW),
    "piecewise-1-far": dpk.piecewise(epsilon=1.0, **FAR),
    "piecewise-5-central": dpk.piecewise(epsilon=5.0, objective="central", **SMALL),
    "piecewise-20": dpk.piecewise(epsilon=20.0, **UNIT),
    "piecewise-1-eta4": dpk.piecewise(epsilon=1.0, eta=4.0, **SKEW),
    "wang2019-2": dpk.piecewise_wang2019(epsilon=2.0, **SKEW),
    **_composites(
        "pointwise",
        [
            ("uniform-0.5-w1.3", "uniform", "constant", 0.5, 1.3, SMALL),
            ("uniform-2-w1.95", "uniform", "constant", 2.0, 1.95, UNIT),
            ("sine-1", "sine", "constant", 1.0, None, SMALL),
            ("sine-0.5-w0.05", "sine", "constant", 0.5, 0.05, UNIT),
            ("sine-2-w1.3", "sine", "constant", 2.0, 1.3, SKEW),
            ("sine-20-w0.7", "sine", "constant", 20.0, 0.7, UNIT),
            ("triangle-0.1", "triangle", "constant", 0.1, None, UNIT),
            ("triangle-0.1-w1.7", "triangle", "constant", 0.1, 1.7, SKEW),
            ("triangle-5-w0.7-far", "triangle", "constant", 5.0, 0.7, FAR),
            ("uniform-quartic1-8-w0.05-far", "uniform", dpk.Quartic(1.0), 8.0, 0.05, FAR),
            ("uniform-quartic0.3-1", "uniform", dpk.Quartic(0.3), 1.0, None, SKEW),
            ("sine-quartic-0.5", "sine", "quartic", 0.5, None, UNIT),
            ("sine-quartic1e-6-1-w0.7", "sine", dpk.Quartic(1e-6), 1.0, 0.7, SKEW),
            ("triangle-quartic0.3-5-w1.3", "triangle", dpk.Quartic(0.3), 5.0, 1.3, UNIT),
            ("triangle-quartic1e-6-0.1-w1.7", "triangle", dpk.Quartic(1e-6), 0.1, 1.7, SMALL),
            ("bump-1", BUMP, "constant", 1.0, None, SKEW),
            ("humps-1-w0.7", HUMPS, "constant", 1.0, 0.7, SKEW),
            ("humps-2-w1.3", HUMPS, "constant", 2.0, 1.3, SMALL),
            ("ring-bowl-0.5-w0.7", RING, BOWL, 0.5, 0.7, UNIT),
            ("uniform-bowl-1", "uniform", BOWL, 1.0, None, UNIT),
            ("bump-dome-5", BUMP, DOME, 5.0, None, SKEW),
        ],
    ),
}

# Heights by the sufficient condition sup P / inf P' = e^eps.
SUP_INF: dict[str, dpk.Windowed] = {
    "triangle-type-II-0.1": dpk.piecewise_triangle(epsilon=0.1, **SMALL),
    "triangle-type-II-8": dpk.piecewise_triangle(epsilon=8.0, **SKEW),
    **_composites(
        "sup_inf",
        [
            ("uniform-sup-inf-1", "uniform", "constant", 1.0, None, UNIT),
            ("sine-quartic0.3-sup-inf-2", "sine", dpk.Quartic(0.3), 2.0, None, SKEW),
            ("humps-dome-sup-inf-2-w0.7", HUMPS, DOME, 2.0, 0.7, UNIT),
        ],
    ),
}

WINDOWED = POINTWISE | SUP_INF

ATOMIC: dict[str, Mechanism] = {
    "duchi-0.1": dpk.duchi(epsilon=0.1, **SKEW),
    "duchi-8-far": dpk.duchi(epsilon=8.0, **FAR),
    "hybrid-0.5": dpk.hybrid(epsilon=0.5, **UNIT),
    "hybrid-1": dpk.hybrid(epsilon=1.0, **SKEW),
    "hybrid-5": dpk.hybrid(epsilon=5.0, **SMALL),
}

ROWS: dict[str, dpk.Optimal] = {
    "optimal-1": dpk.optimal(epsilon=1.0, points=9, outputs=41, **SKEW),
    "optimal-3-far": dpk.optimal(epsilon=3.0, points=9, outputs=41, **FAR),
    "optimal-central-2": dpk.optimal(epsilon=2.0, sensitivity=6.0, points=11, outputs=41, **SKEW),
    "optimal-expected-1": dpk.optimal(epsilon=1.0, points=9, outputs=41, objective=[3.0, 1.0, 0.0], **UNIT),
}

CENTRAL_PIECEWISE: dict[str, dpk.CentralPiecewise] = {
    "central-piecewise-1": dpk.central_piecewise(epsilon=1.0, sensitivity=6.0, **SKEW),
    "central-piecewise-3-published": dpk.central_piecewise(epsilon=3.0, sensitivity=0.25, core="published", **UNIT),
    "central-piecewise-0.5-far": dpk.central_piecewise(epsilon=0.5, sensitivity=5.0, steps=3, **FAR),
}

ALL: dict[str, Mechanism] = WINDOWED | ATOMIC | ROWS | CENTRAL_PIECEWISE

MULTIVARIATE: dict[str, dpk.Multivariate] = {
    "one-of-three": dpk.multivariate(dimensions=3, epsilon=1.0, **SKEW),
    "two-of-five": dpk.multivariate(dimensions=5, epsilon=5.0, coordinate="piecewise", **UNIT),
    "all-of-two": dpk.multivariate(
        dimensions=2, epsilon=4.0, sampled=2, coordinate="sine-constant", lower=[-3.0, 0.0], upper=[17.0, 0.5]
    ),
    "alone": dpk.multivariate(dimensions=1, epsilon=0.5, coordinate="duchi", **SMALL),
}


def over(registry: dict[str, Any], *names: str) -> pytest.MarkDecorator:
    """Parametrise ``m`` over a registry, or over the named entries of it."""
    chosen = names or registry
    return pytest.mark.parametrize("m", [pytest.param(registry[name], id=name) for name in chosen])


def slow(names: Iterable[str], *slow_ones: str) -> list[Any]:
    """Names to parametrise over, of which some are for ``-m slow``: they take the way of another, and long."""
    return [pytest.param(name, marks=pytest.mark.slow if name in slow_ones else ()) for name in names]


def inputs(m: Any) -> np.ndarray:
    """Both ends of the input interval, its middle, and points off the middle."""
    return m.lower + (m.upper - m.lower) * np.array([0.0, 0.13, 0.5, 0.82, 1.0])


def input_range(m: Any) -> float:
    return m.upper - m.lower


def spacing(m: Any) -> float:
    """Distance between neighbouring float64 reports: how precisely a report can be written down."""
    return float(np.spacing(np.abs(m.output_interval).max()))


def rounding(m: Any) -> float:
    """Probability that a few such roundings, of a report or of the window's place, may carry."""
    if isinstance(m, dpk.Mixture):
        return rounding(m.first)
    if isinstance(m, dpk.TwoPoint):
        return 4 * spacing(m) / input_range(m)
    if isinstance(m, dpk.Optimal):
        return 1e-15 + 4 * spacing(m) / m.step
    if isinstance(m, dpk.CentralPiecewise):
        return 1e-15 + 4 * spacing(m) * float(m.pdf(m.middle, m.middle))
    return 1e-15 + 4 * spacing(m) * m.scale * (m.level + m.height)


def shape_knots(shape: Any) -> np.ndarray:
    """Where a window on [0, 1], or a base mapped to it, is not smooth."""
    if isinstance(shape, TabulatedWindow | TabulatedBase):
        return np.linspace(0, 1, len(shape.shape.values))
    return np.array([0.0, 0.5, 1.0])


def knots(m: Any, x: float) -> np.ndarray:
    """Reports where the density given x is not smooth, within the output interval and with its ends."""
    low, high = (float(end) for end in m.output_interval)
    points = [np.array([low, high, x])]
    if isinstance(m, dpk.CentralPiecewise):
        centre = m.middle + m.scale * (x - m.middle) / (input_range(m) / 2)
        points.append(centre + m.scale * np.concatenate([m.half_widths, -m.half_widths]))
    for component in (m.first, m.second) if isinstance(m, dpk.Mixture) else (m,):
        if isinstance(component, dpk.Windowed):
            half_range = (component.output_interval[1] - component.output_interval[0]) / 2
            centre = component.middle + (x - component.middle) / component.window_mass
            points.append(centre + half_range * component.width * (shape_knots(component.window) - 0.5))
            points.append(component.middle + half_range * (2 * shape_knots(component.base) - 1))
    return np.unique(np.clip(np.concatenate(points), low, high))


def shift_profile(noise: Any, shift: Any, epsilon: Any) -> Any:
    """delta(eps) of the pair (Z, Z + shift)."""
    pairs = (additive_pair(noise, shift),)
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((pairs, epsilon))):
        return profile(pairs, epsilon)
    return in_rows(lambda eps: profile(pairs, eps), epsilon)


def in_rows(curve: Callable[[np.ndarray], np.ndarray], epsilon: Any, row: int = 9) -> Any:
    """A curve at any number of budgets, nine at a time: a program of one shape for all that ask."""
    eps = np.asarray(epsilon, np.float64)
    rows = np.append(eps, np.zeros(-eps.size % row)).reshape(-1, row)
    return np.concatenate([curve(row_values) for row_values in rows])[: eps.size].reshape(eps.shape)[()]


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def piece_integrals(function: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> np.ndarray:
    """Integrals between neighbouring points, by Gauss-Legendre: exact where smooth between them."""
    middles, halves = (points[1:] + points[:-1]) / 2, np.diff(points) / 2
    return (function(middles[:, None] + halves[:, None] * _NODES) @ _WEIGHTS) * halves


def positive_part(gap: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> float:
    """Integral of max(0, gap) over the points' span: cells between them, cut where the sign changes."""
    a, b = points[:-1] + 1e-9 * np.diff(points), points[1:] - 1e-9 * np.diff(points)
    before = gap(a) > 0
    changes = before != (gap(b) > 0)
    a, b, before = a[changes], b[changes], before[changes]
    for _ in range(60):
        middle = (a + b) / 2
        same = (gap(middle) > 0) == before
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    # The nodes of a piece are inside it, hence on one side of every jump and sign change.
    return float(np.maximum(piece_integrals(gap, np.unique(np.concatenate([points, b]))), 0).sum())


def slope_by_differences(value: Callable[[float], Any], x0: float, h: float) -> float:
    """Central differences in two step sizes, extrapolated."""

    def difference(h: float) -> float:
        return float(value(x0 + h) - value(x0 - h)) / (2 * h)

    return (4 * difference(h / 2) - difference(h)) / 3


def expectation(m: Any, x: float, function: Callable[[np.ndarray], np.ndarray]) -> float:
    """E(function(report) | x): quadrature of the density, and the atoms."""
    smooth = piece_integrals(lambda y: function(y) * m.pdf(y, x), knots(m, x)).sum()
    atoms, p = m.atoms(x)
    return float(smooth + (function(atoms) * p).sum())


def windowed_pair(mechanism: dpk.Windowed, x: Any, other: Any) -> WindowedPair:
    """The pair of two inputs, in data units: p = density(. | x), q = density(. | other)."""
    m = mechanism
    fraction = (x - other) / (m.upper - m.lower)
    offset = ((x - m.lower) - (m.upper - other)) / (m.upper - m.lower)
    reach = 1 - m.width / 2
    return WindowedPair(m.window, m.base, m.width, m.relative_height, 2 * reach * fraction, reach * offset)
