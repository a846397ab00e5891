"""A density between knots, cut into panels on which 16-point Gauss-Legendre is exact to 1e-12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from accountants.privacy_loss import log_ratio
from dpkernels.numerics import gauss_legendre
from dpkernels.solve import turning_points

LogDensity = Callable[[np.ndarray], Any]

# Nodes of a panel: with more, panels are fewer and each smooth piece costs more.
SIZE = 16
NODES, _WEIGHTS = gauss_legendre(SIZE)
# Panels of a piece at first, how often one is halved, the error of one allowed, and what needs no digits.
_FIRST, _HALVINGS, _PRECISE, _TINY = 8, 40, 1e-12, 1e-40
# By how much a log density may change on a panel, that its digits be good all over it, down to what mass.
_RANGE, _LITTLE = 4.0, 1e-20
# Where more panels than this are still unresolved, the density is not smooth: an error, not a longer wait.
_MOST = 1 << 12
# Points of a panel at which turns of the loss are looked for; two turns between neighbouring points go unseen.
_SAMPLES = 65
# Relative changes of the loss that are taken for none, since rounding turns them.
_FLAT = 1e-9


@dataclass(frozen=True)
class Piece:
    """An interval as the image of 0 < t < 1: affine, and of a half line  y = end -/+ scale s/(1 - s), s = 1 - t or t.

    Attributes:
        left: its lower end; may be -inf.
        right: its upper end; may be inf if left is finite.
        scale: a length. Arrays make many intervals, one for each entry of t.
    """

    left: Any
    right: Any
    scale: Any

    def at(self, t: np.ndarray) -> np.ndarray:
        """y."""
        with np.errstate(all="ignore"):
            rising, falling = self.left + self.scale * t / (1 - t), self.right - self.scale * (1 - t) / t
            return self._choose(rising, falling, self.left + (self.right - self.left) * t)

    def log_rate(self, t: np.ndarray) -> np.ndarray:
        """log dy/dt."""
        with np.errstate(all="ignore"):
            rising, falling = np.log(self.scale) - 2 * np.log1p(-t), np.log(self.scale) - 2 * np.log(t)
            return self._choose(rising, falling, np.log(self.right - self.left) + 0 * t)

    def _choose(self, rising: np.ndarray, falling: np.ndarray, affine: np.ndarray) -> np.ndarray:
        return np.where(np.isinf(self.right), rising, np.where(np.isinf(self.left), falling, affine))


def pieces_of(knots: Sequence[float]) -> list[Piece]:
    """The intervals between knots.

    Raises:
        ValueError: fewer than two knots, or knots that do not increase.
    """
    ends = np.asarray(knots, np.float64)
    if ends.ndim != 1 or len(ends) < 2 or not np.all(np.diff(ends) > 0):
        raise ValueError(f"knots: {knots!r}; two or more increasing numbers are needed")
    finite = ends[np.isfinite(ends)]
    if not len(finite):
        ends, finite = np.array([-np.inf, 0.0, np.inf]), np.zeros(1)
    scale = float(np.ptp(finite)) or max(1.0, float(abs(finite[0])))
    return [Piece(left, right, scale) for left, right in pairwise(ends.tolist())]


def log_densities(piece: Piece, logs: dict[str, LogDensity], t: np.ndarray) -> list[np.ndarray]:
    """Both log densities, in t."""
    y = piece.at(t)
    return [_checked(name, log_density, y) + piece.log_rate(t) for name, log_density in logs.items()]


def _checked(name: str, log_density: LogDensity, y: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        values = np.asarray(log_density(y), np.float64)
    if values.shape != y.shape:
        raise TypeError(f"{name}: gives shape {values.shape} at points of shape {y.shape}")
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        raise ValueError(f"{name}: is {values[bad][0]} at {y[bad][0]:.17g}; a log density is a number or -inf")
    return values


def panel_ends(piece: Piece, logs: dict[str, LogDensity]) -> tuple[float, ...]:
    """Ends of panels in t; those of no mass that counts at either end of the piece are left out."""
    ends = np.linspace(0, 1, _FIRST + 1)
    todo, done = np.stack([ends[:-1], ends[1:]], 1), []
    for _ in range(_HALVINGS):
        middle = todo.mean(1)
        halves = np.stack([todo[:, 0], middle, middle, todo[:, 1]], 1).reshape(-1, 2)
        whole, parts = _integrals(piece, logs, todo), _integrals(piece, logs, halves).reshape(3, -1, 2).sum(2)
        fine = ((np.abs(whole - parts) <= _PRECISE * parts) | (parts <= _TINY)).all(0)
        fine &= ~(_is_steep(piece, logs, todo) & (parts[:2] > _LITTLE)).any(0)
        done.append(np.column_stack([todo, parts[:2].max(0)])[fine])
        todo = halves.reshape(-1, 2, 2)[~fine].reshape(-1, 2)
        if not len(todo):
            return _without_ends(np.concatenate(done))
        if len(todo) > _MOST:
            break
    names = " and ".join(logs)
    raise ValueError(
        f"{names}: not smooth near {piece.at(todo[0, 0]):.12g}; put a knot where a density jumps, bends or ends"
    )


def _integrals(piece: Piece, logs: dict[str, LogDensity], panels: np.ndarray) -> np.ndarray:
    """Of p, q and sqrt(p q) over panels."""
    width = np.diff(panels, axis=1)
    p, q = log_densities(piece, logs, panels[:, :1] + width * NODES)
    return np.stack([(width * np.exp(values)) @ _WEIGHTS for values in (p, q, (p + q) / 2)])


def _is_steep(piece: Piece, logs: dict[str, LogDensity], panels: np.ndarray) -> np.ndarray:
    """Whether p and q change much on panels."""
    values = np.stack(log_densities(piece, logs, panels[:, :1] + np.diff(panels, axis=1) * NODES))
    finite = np.isfinite(values)
    top = np.where(finite, values, -np.inf).max(-1)
    return top - np.where(finite, values, np.inf).min(-1) > _RANGE


def _without_ends(panels: np.ndarray) -> tuple[float, ...]:
    panels = panels[np.argsort(panels[:, 0])]
    some = np.flatnonzero(panels[:, 2] > _TINY)
    kept = panels[some[0] : some[-1] + 1] if len(some) else panels[:1]
    return (*kept[:, 0].tolist(), float(kept[-1, 1]))


def turned(piece: Piece, logs: dict[str, LogDensity], ends: tuple[float, ...]) -> tuple[float, ...]:
    """The panels cut where the loss turns."""

    def loss(t: np.ndarray) -> np.ndarray:
        return log_ratio(*log_densities(piece, logs, t))

    starts = []
    for left, right in pairwise(ends):
        x = np.linspace(left, right, _SAMPLES + 2)[1:-1]
        level = loss(x)
        turns = np.isfinite(level).all() and np.ptp(level) > _FLAT * (1 + np.abs(level).max())
        found = turning_points(lambda t, _: loss(t), x[None])[0].tolist() if turns else []
        starts += [left, *sorted(found)]
    return (*starts, ends[-1])


def nodes_on(
    piece: Piece, logs: dict[str, LogDensity], start: float, end: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (mass of p, mass of q, loss) at a panel's nodes."""
    p, q = log_densities(piece, logs, start + (end - start) * NODES)
    weight = (end - start) * _WEIGHTS
    return weight * np.exp(p), weight * np.exp(q), log_ratio(p, q)
