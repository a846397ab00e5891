"""A pair of laws as atoms of the loss and runs on which it is monotone: what a loss distribution is discretised from.

NumPy in float64. On a run the densities are smooth and the loss can be inverted, so cells can end where the loss is
on the grid, and nodes inside a cell integrate to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from accountants.losses import REACH, losses, shifted_pieces, whole
from accountants.pairs import Atoms, Mixed, Placed, Shifted
from dpkernels.numerics import gauss_legendre

Function = Callable[[np.ndarray], np.ndarray]

_NODES, _WEIGHTS = gauss_legendre(4)
_SAMPLES, _BISECTIONS = 257, 60
# Panels of a run, beside those that the grid makes; an atom this near to the grid, in steps, is on it.
_PANELS, _ON_GRID, _INSET = 256, 1e-9, 1e-12


@dataclass(frozen=True)
class Run:
    """An interval on which the loss is monotone and continuous.

    Attributes:
        left: its lower end.
        right: its upper end.
        p: density of one law.
        q: density of the other.
        loss: log p/q.
        inverse: from losses between those at the ends to points.
    """

    left: float
    right: float
    p: Function
    q: Function
    loss: Function
    inverse: Function


@dataclass(frozen=True)
class Spectrum:
    """All of a pair: atoms (masses under p and q, and losses, which may be infinite) and runs."""

    p: np.ndarray
    q: np.ndarray
    loss: np.ndarray
    runs: tuple[Run, ...]

    def mirrored(self) -> Spectrum:
        """The pair (q, p)."""
        runs = tuple(
            Run(run.left, run.right, run.q, run.p, _after(np.negative, run.loss), _after(run.inverse, np.negative))
            for run in self.runs
        )
        return Spectrum(self.q, self.p, -self.loss, runs)

    def sampled(self, rate: float) -> Spectrum:
        """The pair (r p + (1 - r) q, q), of loss log(1 + r (e^l - 1))."""

        def there(loss: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                near = np.log1p(rate * np.expm1(loss))
                return np.where(loss > 30, loss + np.log(rate) + np.log1p((1 - rate) / rate * np.exp(-loss)), near)

        def back(loss: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                return np.where(loss > 30, loss - np.log(rate), np.log1p(np.maximum(np.expm1(loss) / rate, -1.0)))

        runs = tuple(
            Run(run.left, run.right, _mix(run, rate), run.q, _after(there, run.loss), _after(run.inverse, back))
            for run in self.runs
        )
        return Spectrum(rate * self.p + (1 - rate) * self.q, self.q, there(self.loss), runs)


def _after(outer: Any, inner: Any) -> Function:
    return lambda x: outer(inner(x))


def _mix(run: Run, rate: float) -> Function:
    return lambda x: rate * run.p(x) + (1 - rate) * run.q(x)


@singledispatch
def spectrum(pair: Any) -> Spectrum:
    """The atoms and runs of a pair with concrete parameters.

    Raises:
        TypeError: a pair of an unknown type.
    """
    raise TypeError(f"pair: {type(pair).__name__} has no known loss distribution")


@spectrum.register
def _(pair: Atoms) -> Spectrum:
    with jax.enable_x64(True):
        nodes = jax.tree.map(np.asarray, losses(pair))
    return Spectrum(nodes.p, nodes.q, nodes.loss, ())


@spectrum.register
def _(pair: Mixed) -> Spectrum:
    w = float(pair.weight)
    parts = [_scaled(spectrum(pair.first), w), _scaled(spectrum(pair.second), 1 - w)]
    p, q, loss = (np.concatenate([getattr(part, name) for part in parts]) for name in ("p", "q", "loss"))
    return Spectrum(p, q, loss, parts[0].runs + parts[1].runs)


def _scaled(whole: Spectrum, weight: float) -> Spectrum:
    def times(density: Function) -> Function:
        return lambda x: weight * density(x)

    runs = tuple(Run(r.left, r.right, times(r.p), times(r.q), r.loss, r.inverse) for r in whole.runs)
    return Spectrum(weight * whole.p, weight * whole.q, whole.loss, runs)


@spectrum.register
def _(pair: Shifted) -> Spectrum:
    with jax.enable_x64(True):
        single, pieces, bend = jax.tree.map(np.asarray, shifted_pieces(pair))
    keep = (single.p > 0) | (single.q > 0)
    reach = REACH / np.sqrt(bend) if bend > 0 else np.inf
    D = float(pair.shift)
    low, high = min(0.0, D) - reach, max(0.0, D) + reach
    runs = []
    for j in np.flatnonzero((pieces.slope != 0) & (pieces.width > 0)):
        left, right = float(np.clip(pieces.left[j], low, high)), float(np.clip(pieces.right[j], low, high))
        if right > left:
            at, log_p, rise, loss, slope = (float(getattr(pieces, name)[j]) for name in _AFFINE)
            runs.append(_affine(left, right, at, log_p, rise, loss, slope, float(bend)))
    return Spectrum(single.p[keep], single.q[keep], single.loss[keep], tuple(runs))


_AFFINE = ("at", "log_p", "rise", "loss", "slope")


def _affine(
    left: float, right: float, at: float, log_p: float, rise: float, loss: float, slope: float, bend: float
) -> Run:
    """A piece of a shifted pair: log p a polynomial of degree 2 at most, the loss affine."""

    def log_density(x: np.ndarray) -> np.ndarray:
        return log_p + rise * (x - at) - bend * (x - at) ** 2 / 2

    def level(x: np.ndarray) -> np.ndarray:
        return loss + slope * (x - at)

    return Run(
        left,
        right,
        lambda x: np.exp(log_density(x)),
        lambda x: np.exp(log_density(x) - level(x)),
        level,
        lambda value: at + (value - loss) / slope,
    )


@spectrum.register
def _(pair: Placed) -> Spectrum:
    """Pieces between the knots of both densities, cut again where the loss turns."""
    p, q, ends = whole(jax.tree.map(float, pair))
    atoms: list[tuple[Any, Any, Any]] = []
    runs: list[Run] = []
    for left, right in pairwise(ends.tolist()):
        if right - left <= 1e-13:
            continue
        inset = _INSET * (right - left)
        x = np.linspace(left + inset, right - inset, _SAMPLES)
        loss = np.log(p(x)) - np.log(q(x))
        if np.ptp(loss) <= 1e-13 * (1 + np.abs(loss).max()):
            width = right - left
            nodes = left + width * _NODES
            atoms.append((width * (p(nodes) @ _WEIGHTS), width * (q(nodes) @ _WEIGHTS), loss[_SAMPLES // 2]))
        else:
            runs.extend(_numeric(p, q, *span) for span in _monotone(p, q, x, left, right))
    p_mass, q_mass, loss = np.array(atoms).reshape(-1, 3).T
    return Spectrum(p_mass, q_mass, loss, tuple(runs))


def _monotone(p: Function, q: Function, x: np.ndarray, left: float, right: float) -> list[tuple[float, float]]:
    """The spans between turns of the loss, each found by golden section in its bracket."""
    from scipy.optimize import minimize_scalar

    loss = np.log(p(x)) - np.log(q(x))
    rising = np.diff(loss) > 0
    cuts = [left]
    for j in np.flatnonzero(rising[1:] != rising[:-1]) + 1:
        sign = -1.0 if rising[j - 1] else 1.0
        found = minimize_scalar(
            lambda v, sign=sign: float(sign * (np.log(p(np.array(v))) - np.log(q(np.array(v))))),
            bounds=(x[j - 1], x[j + 1]),
            method="bounded",
            options={"xatol": 1e-12 * (right - left)},
        )
        cuts.append(float(found.x))
    return list(zip(cuts, [*cuts[1:], right], strict=True))


def _numeric(p: Function, q: Function, left: float, right: float) -> Run:
    """A run whose loss is inverted by bisection."""

    def loss(x: np.ndarray) -> np.ndarray:
        return np.log(p(x)) - np.log(q(x))

    inset = _INSET * (right - left)
    rises = loss(np.array(right - inset)) > loss(np.array(left + inset))

    def inverse(level: np.ndarray) -> np.ndarray:
        low, high = np.full(level.shape, left + inset), np.full(level.shape, right - inset)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            before = (loss(middle) < level) == rises
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        return (low + high) / 2

    return Run(left, right, p, q, loss, inverse)


@dataclass(frozen=True)
class Nodes:
    """A spectrum cut along a grid of the loss.

    Attributes:
        p: mass under p.
        q: mass under q.
        cell: k, with the loss in [k h, (k + 1) h].
        share: where in its cell the loss is, 0 to 1.
        infinite: mass of p where q is 0.
    """

    p: np.ndarray
    q: np.ndarray
    cell: np.ndarray
    share: np.ndarray
    infinite: float


def nodes_on_grid(whole: Spectrum, step: float) -> Nodes:
    """Nodes of every cell of the grid k step."""
    finite = np.isfinite(whole.loss)
    infinite = float(whole.p[whole.loss == np.inf].sum())
    level = whole.loss[finite] / step
    near = np.round(level)
    level = np.where(np.abs(level - near) < _ON_GRID, near, level)
    atoms = (whole.p[finite], whole.q[finite], np.floor(level), level - np.floor(level))
    parts = [atoms, *(_cells(run, step) for run in whole.runs)]
    p, q, cell, share = (np.concatenate(column) for column in zip(*parts, strict=True))
    keep = p > 0
    return Nodes(p[keep], q[keep], cell[keep].astype(np.int64), np.clip(share[keep], 0.0, 1.0), infinite)


def _cells(run: Run, step: float) -> tuple[Any, Any, Any, Any]:
    """Gauss-Legendre nodes between points of a run: where its loss is on the grid, and evenly where it hardly moves."""
    inset = _INSET * (run.right - run.left)  # At a knot itself a density may jump.
    ends = run.loss(np.array([run.left + inset, run.right - inset])) / step
    inner = np.arange(np.floor(ends.min()) + 1, np.ceil(ends.max()))
    on_grid = np.clip(run.inverse(inner * step), run.left, run.right)
    points = np.union1d(on_grid, np.linspace(run.left, run.right, _PANELS + 1))
    width = np.diff(points)
    x = points[:-1, None] + width[:, None] * _NODES
    cell = np.floor(run.loss(points[:-1] + width / 2) / step)[:, None] + 0 * x
    weight = width[:, None] * _WEIGHTS
    share = run.loss(x) / step - cell
    return (weight * run.p(x)).ravel(), (weight * run.q(x)).ravel(), cell.ravel(), share.ravel()
