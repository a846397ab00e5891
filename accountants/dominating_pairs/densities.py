"""User-defined pairs of two densities: quadrature between knots, with an estimate of its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import jax
import numpy as np

from accountants.dominating_pairs.base import Curve, DominatingPair, sum_of_pieces
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, log_ratio
from dpkernels.numerics import Real, RealArray, cast_like, floating, gauss_legendre, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.shapes import Bool, Float
from dpkernels.solve import bisect, turning_points

LogDensity = Callable[[np.ndarray], object]

# Nodes of a panel: with more nodes there are fewer panels, and each smooth piece costs more.
_SIZE = 16
_NODES, _WEIGHTS = gauss_legendre(_SIZE)
_FIRST_PANELS = 8  # The panels of a piece before any is halved.
_MAX_HALVINGS = 40  # How often a panel is halved.
_RTOL = 1e-12  # The relative error of a panel's integral that is allowed,
_NEGLIGIBLE_MASS = 1e-40  # unless its mass is at most this.
_MAX_LOG_RANGE = 4.0  # The change of a log density on a panel up to which it is accurate on the whole panel.
_RESOLVED_MASS = 1e-20  # Panels with more mass than this are halved until their log densities change by no more.
# With more unresolved panels than this the density is taken as not smooth, which is an error.
_MAX_PANELS = 1 << 12
# Points of a panel at which turning points of the loss are looked for; two between neighbouring points are missed.
_SAMPLES = 65
# Relative changes of the loss up to this may be rounding errors.
_FLAT = 1e-9
_MASS_TOLERANCE = 1e-9  # The largest deviation from 1 of the mass of a density.
_BISECTIONS = 50  # For the point where p - e^eps q changes its sign: 2^-50 of a panel.
# The outermost nodes are 1/190 of a panel from its ends. Beyond them the loss changes by at most this share.
_MARGIN = 0.05
# From masses at the nodes to coefficients of Legendre polynomials, of which the first is the integral over a panel.
_COEFFICIENTS = (2 * np.arange(_SIZE)[:, None] + 1) * np.polynomial.legendre.legvander(2 * _NODES - 1, _SIZE - 1).T
# From these coefficients to those of the integral from the lower end.
_ANTIDERIVATIVES = np.polynomial.legendre.legint(np.eye(_SIZE), lbnd=-1) / 2


@dataclass(frozen=True)
class Piece:
    """An interval as the image of 0 < t < 1; arrays make many intervals, one for each entry of t.

    A finite interval is affine in t. A half line is  y = end -/+ scale s/(1 - s)  with s = 1 - t or t.
    """

    lower: Any
    upper: Any
    scale: Any

    def point(self, t: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            rising, falling = self.lower + self.scale * t / (1 - t), self.upper - self.scale * (1 - t) / t
            return self._choose(rising, falling, self.lower + (self.upper - self.lower) * t)

    def log_rate(self, t: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            rising, falling = np.log(self.scale) - 2 * np.log1p(-t), np.log(self.scale) - 2 * np.log(t)
            return self._choose(rising, falling, np.log(self.upper - self.lower) + 0 * t)

    def _choose(self, rising: np.ndarray, falling: np.ndarray, affine: np.ndarray) -> np.ndarray:
        return np.where(np.isinf(self.upper), rising, np.where(np.isinf(self.lower), falling, affine))


def _pieces_between(knots: Sequence[float]) -> list[Piece]:
    ends = np.asarray(knots, np.float64)
    if ends.ndim != 1 or len(ends) < 2 or not np.all(np.diff(ends) > 0):
        raise ValueError(f"knots: {knots!r}; two or more increasing numbers are needed")
    finite = ends[np.isfinite(ends)]
    if not len(finite):
        ends, finite = np.array([-np.inf, 0.0, np.inf]), np.zeros(1)
    scale = float(np.ptp(finite)) or max(1.0, float(abs(finite[0])))
    return [Piece(lower, upper, scale) for lower, upper in pairwise(ends.tolist())]


def _log_densities(
    piece: Piece, logs: dict[str, LogDensity], t: Float[np.ndarray, "*points"]
) -> Float[np.ndarray, " 2 *points"]:
    y, rate = piece.point(t), piece.log_rate(t)
    return np.stack([_checked(name, log_density, y) + rate for name, log_density in logs.items()])


def _checked(name: str, log_density: LogDensity, y: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points"]:
    with jax.enable_x64(True):
        values = np.asarray(log_density(y), np.float64)
    if values.shape != y.shape:
        raise TypeError(f"{name}: gives shape {values.shape} at points of shape {y.shape}")
    is_invalid = np.isnan(values) | (values == np.inf)
    if is_invalid.any():
        value, point = values[is_invalid][0], y[is_invalid][0]
        raise ValueError(f"{name}: is {value} at {point:.17g}; a log density is a number or -inf")
    return values


def _panel_ends(piece: Piece, logs: dict[str, LogDensity]) -> list[float]:
    """Return the ends of panels in t, without panels of negligible mass at either end of the piece."""

    def integrals(
        panels: Float[np.ndarray, "panels 2"],
    ) -> tuple[Float[np.ndarray, "3 panels"], Bool[np.ndarray, "2 panels"]]:
        """Return the integrals of p, q and sqrt(p q) over panels, and which of p and q vary by large factors."""
        width = np.diff(panels, axis=1)
        node_logs = _log_densities(piece, logs, panels[:, :1] + width * _NODES)
        finite = np.isfinite(node_logs)
        log_range = np.where(finite, node_logs, -np.inf).max(-1) - np.where(finite, node_logs, np.inf).min(-1)
        logs_of_three = (*node_logs, node_logs.mean(0))
        return np.stack([(width * np.exp(log)) @ _WEIGHTS for log in logs_of_three]), log_range > _MAX_LOG_RANGE

    ends = np.linspace(0, 1, _FIRST_PANELS + 1)
    todo, done = np.stack([ends[:-1], ends[1:]], 1), []
    for _ in range(_MAX_HALVINGS):
        middle = todo.mean(1)
        halves = np.stack([todo[:, 0], middle, middle, todo[:, 1]], 1).reshape(-1, 2)
        (by_panels, steep), by_halves = integrals(todo), integrals(halves)[0].reshape(3, -1, 2).sum(2)
        fine = ((np.abs(by_panels - by_halves) <= _RTOL * by_halves) | (by_halves <= _NEGLIGIBLE_MASS)).all(0)
        fine &= ~(steep & (by_halves[:2] > _RESOLVED_MASS)).any(0)
        done.append(np.column_stack([todo, by_halves[:2].max(0)])[fine])
        todo = halves.reshape(-1, 2, 2)[~fine].reshape(-1, 2)
        if not len(todo):
            panels = np.concatenate(done)
            panels = panels[np.argsort(panels[:, 0])]
            heavy_index = np.flatnonzero(panels[:, 2] > _NEGLIGIBLE_MASS)
            heavy_panels = panels[heavy_index[0] : heavy_index[-1] + 1] if len(heavy_index) else panels[:1]
            return [*heavy_panels[:, 0], heavy_panels[-1, 1]]
        if len(todo) > _MAX_PANELS:
            break
    names = " and ".join(logs)
    raise ValueError(
        f"{names}: not smooth near {piece.point(todo[0, 0]):.12g}; put a knot where a density jumps, bends or ends"
    )


def _split_at_turns(piece: Piece, logs: dict[str, LogDensity], ends: list[float]) -> list[float]:
    def loss(t: np.ndarray) -> np.ndarray:
        return log_ratio(*_log_densities(piece, logs, t))

    turns: list[float] = []
    for lower, upper in pairwise(ends):
        x = np.linspace(lower, upper, _SAMPLES + 2)[1:-1]
        level = loss(x)
        if np.isfinite(level).all() and np.ptp(level) > _FLAT * (1 + np.abs(level).max()):
            turns += turning_points(lambda t, _: loss(t), x[None])[0].tolist()
    return sorted([*ends, *turns])


@partial(pytree, static=("log_p", "log_q", "panels"))
@dataclass(frozen=True, eq=False)
class Densities(DominatingPair):
    """Two distributions by their log densities, which are smooth between knots; made by ``density_pair``."""

    log_p: LogDensity
    log_q: LogDensity
    panels: tuple[tuple[float, ...], ...]  # The fields of each panel's piece, and the panel's ends in t.
    nodes: PrivacyLossDistribution  # The nodes of the panels.

    has_joint_axes: ClassVar[bool] = True
    may_be_asymmetric: ClassVar[bool] = True
    has_estimated_masses: ClassVar[bool] = True

    def hockey_stick(self) -> Curve:
        """Integrate the positive part of p - e^eps q on panels by Legendre polynomials; it changes its sign once."""
        xp = namespace(self.nodes.p)
        mass_p, mass_q, loss = (
            floating(xp.asarray(array)).reshape(-1, _SIZE) for array in (self.nodes.p, self.nodes.q, self.nodes.loss)
        )
        p, q = (mass @ cast_like(_COEFFICIENTS.T, mass) for mass in (mass_p, mass_q))
        # The least and the largest loss of panels, with a margin for the ends beyond the nodes.
        lowest, highest = loss.min(-1), loss.max(-1)
        finite = xp.isfinite(lowest) & xp.isfinite(highest)
        margin = _MARGIN * (xp.where(finite, highest, 0.0) - xp.where(finite, lowest, 0.0))
        lowest, highest = lowest - margin, highest + margin

        def panel_deltas(eps: Real) -> Real:
            xp = namespace(eps, p)
            gap = p - xp.exp(eps)[..., None] * q
            ones, total = xp.ones_like(gap[..., 0]), gap[..., 0]
            rises = _legendre_sum(gap, ones) > _legendre_sum(gap, -ones)
            ends = bisect(lambda x: (_legendre_sum(gap, x) < 0) == rises, -ones, ones, _BISECTIONS)
            cut = without_derivative((ends[0] + ends[1]) / 2)
            integral_below = _legendre_sum(gap @ cast_like(_ANTIDERIVATIVES.T, gap), cut)
            crossed = xp.where(rises, total - integral_below, integral_below)
            return xp.where(highest <= eps, 0.0, xp.where(lowest >= eps, total, crossed))

        return sum_of_pieces(panel_deltas, p.size)

    def privacy_loss(self) -> PrivacyLossDistribution:
        """Return the panels as pieces; panels on which one density is 0 become atoms of infinite loss."""
        p, q, loss = (np.asarray(array).reshape(-1, _SIZE) for array in (self.nodes.p, self.nodes.q, self.nodes.loss))
        finite = np.isfinite(loss).all(1)
        if not np.isinf(loss[~finite]).all():
            raise ValueError("log_p, log_q: one density becomes 0 between two knots; put a knot there")
        atoms = PrivacyLossDistribution.of_masses(*(mass[~finite].sum(1) for mass in (p, q)))
        *fields, start, end = np.array(self.panels).T
        is_continued = np.all([field[1:] == field[:-1] for field in fields], axis=0)
        # The first and the last panel of a piece continue to its ends.
        whole_ends = (
            np.where(np.append(False, is_continued), start, 0.0)[finite],
            np.where(np.append(is_continued, False), end, 1.0)[finite],
        )
        lower, upper, scale, start, end = (field[finite] for field in (*fields, start, end))

        def logs(t: np.ndarray, i: np.ndarray) -> np.ndarray:
            piece = Piece(lower[i], upper[i], scale[i])
            return _log_densities(piece, {"log_p": self.log_p, "log_q": self.log_q}, t)

        smooth = SmoothPieces(
            start,
            end,
            lambda t, i: logs(t, i)[0],
            lambda t, i: logs(t, i)[1],
            lambda t, i: log_ratio(*logs(t, i)),
            lambda lower, *_: 0 * lower,  # Panels were halved until quadrature was exact, as an estimate.
            min_panels=1,
            whole_ends=whole_ends,
        )
        return join([atoms, PrivacyLossDistribution.of_pieces(smooth)])

    def mirror(self) -> Densities:
        return Densities(self.log_q, self.log_p, self.panels, self.nodes.mirrored())

    def check(self) -> None:
        """Accept the pair: ``density_pair`` has checked both distributions."""


def density_pair(log_p: LogDensity, log_q: LogDensity, knots: Sequence[float]) -> Densities:
    """Return the pair of two distributions with densities.

    A neighbour may have either distribution, and delta is the larger one of both directions.

    Quadrature is 16-point Gauss-Legendre on panels between the knots. Panels are halved until both halves give the
    masses of p and q and the integral of sqrt(p q) over the whole to 1e-12 of each. This is an estimate of the error:
    ``bracket`` of such a pair is valid as far as these masses are right, and is not proven. So the guarantee of such a
    pair has ``estimate_delta`` and ``estimate_epsilon``, and refuses ``delta`` and ``epsilon``. Parameters of the
    functions are constants: derivatives are in eps, delta and the sampling rate. There is no JSON form.

    With ``subsample``, q is the distribution without the record. Replaced records are not covered. For a pair that is
    not symmetric, neither is a neighbour with p in one report and q in the next.

    Args:
        log_p: a function from NumPy float64 arrays of any shape to the log density there, -inf where it is 0.
        log_q: the same function for the other distribution.
        knots: increasing numbers. The first and the last are the ends of the support of both, possibly infinite. Every
            point at which one density is not smooth, or becomes 0, must be a knot.

    Raises:
        ValueError: the knots do not increase; a log density is NaN or +inf; a density does not integrate to 1 within
            1e-9; or panels do not resolve a density, as where it has a jump that is no knot.
        TypeError: log_p or log_q is not a function, or does not keep the shape.

    Example:
        >>> from accountants import guarantee
        >>> logistic = lambda y: -y - 2 * np.logaddexp(0, -y)
        >>> pair = density_pair(logistic, lambda y: logistic(y - 0.1), (-np.inf, 0.0, np.inf))
        >>> round(guarantee(pair).repeat(100).estimate_epsilon(1e-6), 4)
        2.6118
    """
    logs = {"log_p": log_p, "log_q": log_q}
    for name, log_density in logs.items():
        if not callable(log_density):
            raise TypeError(f"{name}: {log_density!r} is not a function")
    panels = []
    for piece in _pieces_between(knots):
        ends = _split_at_turns(piece, logs, _panel_ends(piece, logs))
        panels += [(piece.lower, piece.upper, piece.scale, *panel) for panel in pairwise(ends)]
    *columns, start, end = np.array(panels).T[..., None]
    node_logs = _log_densities(Piece(*columns), logs, start + (end - start) * _NODES)
    p, q = (end - start) * _WEIGHTS * np.exp(node_logs)
    p, q, loss = (array.ravel() for array in (p, q, log_ratio(*node_logs)))
    pair = Densities(log_p, log_q, tuple(panels), PrivacyLossDistribution(p, q, loss, 0 * p))
    for name, mass in (("log_p", pair.nodes.p.sum()), ("log_q", pair.nodes.q.sum())):
        if not abs(mass - 1) <= _MASS_TOLERANCE:
            raise ValueError(f"{name}: its density integrates to {mass:.12g} over the knots, and not to 1")
    return pair


def _legendre_sum(coefficients: Float[RealArray, "*panels orders"], x: Real) -> Float[RealArray, "*panels"]:
    """Return the sum of Legendre polynomials, whose coefficients are along a last axis, at x."""
    xp = namespace(x)
    values = [xp.ones_like(x), x]
    for n in range(1, coefficients.shape[-1] - 1):
        values.append(((2 * n + 1) * x * values[-1] - n * values[-2]) / (n + 1))
    return (coefficients * xp.stack(values, -1)).sum(-1)
