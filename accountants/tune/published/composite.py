"""The sources' own searches, for comparison: here that of Zhang 2024 for composite mechanisms.

They are reproduced as searches: which points they try, in which order, and what they keep. What they try is evaluated
as the gradient method evaluates it, and what they keep is certified by the same accountant, which may refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from accountants.dominating_pairs.base import as_float64
from accountants.tune.families.bounded import Composite, Piecewise
from accountants.tune.objectives import Objective
from dpkernels.mechanisms.named import WINDOWS
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, RealArray

_STEPS = (0.1, 0.01, 0.001)  # The source's, one a round.
_BATCH = 4096  # Points evaluated at once; the last batch is filled up, so that one shape is compiled.


@dataclass(frozen=True)
class Enumerated:
    """What a published search found.

    Attributes:
        source: whose it is.
        mechanism: its choice.
        parameters: by the family's names.
        value: its objective, in its natural direction.
        evaluations: how often the objective, or for recycling the privacy profile, was computed.
        rounds: the best value after each round.
    """

    source: str
    mechanism: Any
    parameters: dict[str, Any]
    value: float
    evaluations: int
    rounds: list[float]


def piecewise_search(family: Piecewise, objective: Objective) -> Enumerated:
    """The search of the composite mechanism that it is."""
    return _zhang(WINDOWS[family.window], Constant(), family, objective, lambda m, _: {"eta": 2 / m})


def composite_search(family: Composite, objective: Objective, stop_at: float | None = None) -> Enumerated:
    """Zhang 2024, Algorithms 1 and 2: three rounds over a grid, or fewer.

    Args:
        family: of ``tune.composite``, with the constant or the quartic base.
        objective: what is compared; the source's is ``variance_at`` the middle.
        stop_at: V_t of Algorithm 2, an objective that is good enough: no round is begun after one that reaches it. The
            authors' released code has none and runs all three.

    Raises:
        ValueError: another base; no point of the grid is feasible.
    """
    if isinstance(family.base, Base) and not isinstance(family.base, Constant):
        raise ValueError("family: the source's search has the constant and the quartic base")

    def named(m: float, base: Base) -> dict[str, Any]:
        return {"m": m} if family.base is not None else {"m": m, "r": base.lowest}

    return _zhang(family.window, family.base, family, objective, named, stop_at)


def _zhang(
    window: Window,
    base: Base | None,
    family: Any,
    objective: Objective,
    named: Callable[[float, Base], dict[str, Real]],
    stop_at: float | None = None,
) -> Enumerated:
    """Zhang 2024, Algorithms 1 and 2, as the authors' released code has them.

    Three rounds over a grid of (y, k, m) with y, k in (0, 1) and m in (0, 2], of steps 0.1, 0.01 and 0.001, each
    around the best of the round before. L follows from total probability 1. Feasible are k + y <= 1 and
    k <= y (e^eps - 1); with the quartic base t = (y + k) e^-eps. The objective is the caller's; the source's is the
    variance at the middle.
    """
    ends: Any = ((0.0, 1.0), (0.0, 1.0), (0.0, 2.0))
    chosen: Any = None
    rounds: list[float] = []
    count = 0
    for step in _STEPS:
        points = _feasible(np.stack([part.ravel() for part in _grid(ends, step)], -1), family, window, base)
        if len(points) == 0:
            continue
        values = objective.sign * _values(objective, family, window, base, points)
        count += len(points)
        at = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
        if chosen is None or values[at] < chosen[0]:
            chosen = values[at], points[at]
        rounds.append(objective.sign * float(chosen[0]))
        if stop_at is not None and chosen[0] <= objective.sign * stop_at:
            break
        ends = tuple((max(value - step, 0.0), value + step) for value in chosen[1][:3])
    if chosen is None:
        raise ValueError(f"family: no point of the published grid is feasible at epsilon = {family.epsilon:g}")
    shape, m, relative = (np.asarray(part).item() for part in _scaled(chosen[1], base, window, family.epsilon))
    made_base = Quartic(shape) if base is None else base
    made = Windowed(window, made_base, m, relative, family.lower, family.upper, family.epsilon)
    return Enumerated("Zhang 2024", made, named(m, made_base), rounds[-1], count, rounds)


def _grid(ends: tuple[tuple[float, float], tuple[float, float], tuple[float, float]], step: float) -> list[np.ndarray]:
    axes = [np.arange(round(low / step), round(high / step) + 1) * step for low, high in ends]
    return list(np.meshgrid(*axes, indexing="ij"))


def _feasible(points: np.ndarray, family: Any, window: Window, base: Base | None) -> np.ndarray:
    y, k, m = points.T
    mass = window.area * k * m
    good = (y > 1e-9) & (k > 1e-9) & (m > 1e-9) & (mass < 1) & (k + y <= 1 + 1e-9) & (k <= y * np.expm1(family.epsilon))
    points = points[good]
    _, width, _ = _scaled(points.T, base, window, family.epsilon)
    return points[width < 2]


def _scaled(point: RealArray, base: Base | None, window: Window, epsilon: float) -> tuple[Any, Any, Any]:
    """(edge r = t/y of the quartic base, m, k/y) on the output interval [-1, 1], where the source's is [-L, L]."""
    y, k, m = point
    r = np.minimum((y + k) / y * np.exp(-epsilon), 1.0) if base is None else np.ones_like(y)
    area = (r + 4) / 5 if base is None else 1.0
    L = (1 - window.area * k * m) / (2 * y * area)
    return r, m / L, k / y


def _values(objective: Objective, family: Any, window: Window, base: Base | None, points: np.ndarray) -> np.ndarray:
    """The objective at every point, in batches of one shape, so that it is compiled once."""
    r, m, relative = _scaled(points.T, base, window, family.epsilon)
    interval = np.array([family.lower, family.upper, family.epsilon], np.float64)
    values = []
    with jax.enable_x64(True):
        for rows in _batches(np.stack([r, m, relative], -1)):
            shape = window, base
            values.append(np.asarray(_objective_at(shape, as_float64(objective), interval, rows)))
    return np.concatenate(values)[: len(points)]


def _batches(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), _BATCH):
        piece = rows[start : start + _BATCH]
        yield np.concatenate([piece, np.repeat(piece[:1], _BATCH - len(piece), 0)])


@jax.jit
def _objective_at(shape: tuple[Window, Base], objective: Objective, interval: RealArray, rows: Real) -> Real:
    window, base = shape
    lower, upper, epsilon = interval

    def one(row: Any) -> Any:
        made = Quartic(row[0]) if base is None else base
        return objective(Windowed(window, made, row[1], row[2], lower, upper, epsilon))

    return jax.vmap(one)(rows)
