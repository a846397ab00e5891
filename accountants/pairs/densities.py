"""Pairs of the user's own by two densities: quadrature between knots, with its error estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from accountants.pairs.base import Curve, Pair
from accountants.pairs.panels import (
    NODES,
    SIZE,
    LogDensity,
    Piece,
    log_densities,
    nodes_on,
    panel_ends,
    pieces_of,
    turned,
)
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, log_ratio
from dpkernels.numerics import Real, floating, like, map_over, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

_NORMALISED = 1e-9  # How far the mass of a density may be from 1.
_BISECTIONS = 50  # For where p - e^eps q changes its sign: 2^-50 of a panel.
# How far the loss goes beyond the outermost nodes, which are 1/190 of a panel from its ends, at most: of its range.
_MARGIN = 0.05
# From masses at the nodes to coefficients of Legendre polynomials, whose integral over a panel is the first one.
_COEFFICIENTS = (2 * np.arange(SIZE)[:, None] + 1) * np.polynomial.legendre.legvander(2 * NODES - 1, SIZE - 1).T


@partial(pytree, static=("log_p", "log_q", "pieces"))
@dataclass(frozen=True, eq=False)
class Densities(Pair):
    """Two laws by their log densities, which are smooth between knots; made by ``densities``.

    Attributes:
        log_p: log density under one input.
        log_q: under the other.
        pieces: the pieces between knots, with the panels that quadrature cuts them into.
        nodes: the panels' nodes.
    """

    log_p: LogDensity
    log_q: LogDensity
    pieces: tuple[tuple[Piece, tuple[float, ...]], ...]
    nodes: PrivacyLossDistribution

    joint: ClassVar[bool] = True
    has_two_ways: ClassVar[bool] = True

    def hockey_stick(self) -> Curve:
        return _hockey_stick(self)

    def largest_loss(self) -> Real:
        raise TypeError("pair: Densities has no known largest loss")

    def privacy_loss(self) -> PrivacyLossDistribution:
        """Panels are the pieces; those on which one density is 0 are atoms of infinite loss."""
        ends = [(piece, *panel) for piece, ends in self.pieces for panel in pairwise(ends)]
        columns = np.array([(piece.left, piece.right, piece.scale, *panel) for piece, *panel in ends])
        p, q, loss = (np.asarray(leaf).reshape(len(ends), -1) for leaf in (self.nodes.p, self.nodes.q, self.nodes.loss))
        finite = np.isfinite(loss).all(1)
        if not np.isinf(loss[~finite]).all():
            raise ValueError("log_p, log_q: one density becomes 0 between two knots; put a knot there")
        atoms = PrivacyLossDistribution.of_masses(*(mass[~finite].sum(1) for mass in (p, q)))
        left, right, scale, start, end = columns[finite].T

        def logs(t: np.ndarray, i: np.ndarray) -> list[np.ndarray]:
            piece = Piece(left[i], right[i], scale[i])
            return log_densities(piece, {"log_p": self.log_p, "log_q": self.log_q}, t)

        smooth = SmoothPieces(
            start,
            end,
            lambda t, i: logs(t, i)[0],
            lambda t, i: logs(t, i)[1],
            lambda t, i: log_ratio(*logs(t, i)),
            _no_steepness,
            few=1,
        )
        return join([atoms, PrivacyLossDistribution.of_pieces(smooth)])

    def mirror(self) -> Densities:
        return Densities(self.log_q, self.log_p, self.pieces, self.nodes.mirrored())

    def asymmetry(self) -> Any:
        return np.inf

    def check(self) -> None:
        """Nothing: ``densities`` has checked it."""


def densities(log_p: LogDensity, log_q: LogDensity, knots: Sequence[float]) -> Densities:
    """The pair of two laws with densities; a report may tell either way, and delta is the larger.

    By 16-point Gauss-Legendre on panels between the knots, which are halved until both halves give the masses of p and
    q and the integral of sqrt(p q) of the whole to 1e-12 of each. That is an estimate: ``bracket`` of such a pair holds
    as far as these masses are right, and is not proved. The functions' own parameters are constants: derivatives are
    in eps, delta and the sampling rate. With ``subsample``, q is the law without the record; replaced records are not
    accounted for, nor is, of a pair that is not its own mirror, a neighbour with p in one report and q in the next.
    There is no JSON form.

    Args:
        log_p: from NumPy float64 arrays of any shape to the log density there, -inf where it is 0.
        log_q: the same of the other law.
        knots: increasing, the first and the last being the ends of the support of both, possibly infinite; every
            point where one of the two is not smooth, or becomes 0.

    Raises:
        ValueError: knots that do not increase, NaN or +inf as a log density, a density that does not integrate to 1
            within 1e-9, or one that panels do not resolve, as where it has a jump that is no knot.
        TypeError: a function that is none or does not keep the shape.

    Example:
        >>> from accountants import guarantee
        >>> logistic = lambda y: -y - 2 * np.logaddexp(0, -y)
        >>> pair = densities(logistic, lambda y: logistic(y - 0.1), (-np.inf, 0.0, np.inf))
        >>> round(guarantee(pair).repeat(100).epsilon(1e-6), 4)
        2.6118
    """
    logs = {"log_p": log_p, "log_q": log_q}
    for name, log_density in logs.items():
        if not callable(log_density):
            raise TypeError(f"{name}: {log_density!r} is not a function")
    pieces = tuple((piece, turned(piece, logs, panel_ends(piece, logs))) for piece in pieces_of(knots))
    nodes = [nodes_on(piece, logs, *panel) for piece, ends in pieces for panel in pairwise(ends)]
    p, q, loss = (np.concatenate(column) for column in zip(*nodes, strict=True))
    pair = Densities(log_p, log_q, pieces, PrivacyLossDistribution(p, q, loss, 0 * p))
    for name, mass in (("log_p", pair.nodes.p.sum()), ("log_q", pair.nodes.q.sum())):
        if not abs(mass - 1) <= _NORMALISED:
            raise ValueError(f"{name}: its density integrates to {mass:.12g} over the knots, and not to 1")
    return pair


def _no_steepness(left: np.ndarray, right: np.ndarray, piece: np.ndarray) -> np.ndarray:
    """Say that quadrature is exact: panels were halved until it was, as an estimate."""
    return 0 * left


def _hockey_stick(pair: Densities) -> Curve:
    """On a panel p - e^eps q changes its sign once at most; its positive part is an integral of Legendre polynomials.

    The derivative needs none of where it changes: the integrand is 0 there.
    """
    xp = namespace(pair.nodes.p)
    masses = [floating(xp.asarray(mass)).reshape(-1, SIZE) for mass in (pair.nodes.p, pair.nodes.q)]
    p, q = (mass @ like(_COEFFICIENTS.T, mass) for mass in masses)
    least, most = _losses_of_panels(floating(xp.asarray(pair.nodes.loss)).reshape(-1, SIZE))

    def one(eps: Any) -> Any:
        xp = namespace(eps, p)
        gap = p - xp.exp(eps) * q
        cut = without_derivative(_sign_change(gap))
        part, whole = _integral(gap, cut), gap[:, 0]
        rises = _value(gap, xp.ones_like(cut)) > _value(gap, -xp.ones_like(cut))
        crossed = xp.maximum(xp.where(rises, whole - part, part), 0.0)
        return xp.where(most <= eps, 0.0, xp.where(least >= eps, whole, crossed)).sum()

    return lambda eps: map_over(one, eps.ravel()).reshape(eps.shape)


def _losses_of_panels(loss: Any) -> tuple[Any, Any]:
    """The least and the largest loss of panels, which at their ends go beyond those of the nodes."""
    xp = namespace(loss)
    least, most = loss.min(-1), loss.max(-1)
    finite = xp.isfinite(least) & xp.isfinite(most)
    margin = _MARGIN * (xp.where(finite, most, 0.0) - xp.where(finite, least, 0.0))
    return least - margin, most + margin


def _legendre(x: Any, count: int) -> Any:
    """P_0..P_(count - 1) at x, along a last axis."""
    xp = namespace(x)
    values = [xp.ones_like(x), x]
    for n in range(1, count - 1):
        values.append(((2 * n + 1) * x * values[-1] - n * values[-2]) / (n + 1))
    return xp.stack(values, -1)


def _value(coefficients: Any, x: Any) -> Any:
    return (coefficients * _legendre(x, SIZE)).sum(-1)


def _integral(coefficients: Any, x: Any) -> Any:
    """From -1 to x, the whole being the first coefficient: (P_(n+1) - P_(n-1))/(2 (2 n + 1)), of P_0 (x + 1)/2."""
    values = _legendre(x, SIZE + 1)
    steps = (values[:, 2:] - values[:, :-2]) / like(4.0 * np.arange(1, SIZE) + 2, x)
    return coefficients[:, 0] * (x + 1) / 2 + (coefficients[:, 1:] * steps).sum(-1)


def _sign_change(gap: Any) -> Any:
    """Where the gap of every panel changes its sign; an end, where it does not."""
    xp = namespace(gap)
    ones = xp.ones_like(gap[:, 0])
    rises = _value(gap, ones) > _value(gap, -ones)
    low, high = bisect(lambda x: (_value(gap, x) < 0) == rises, -ones, ones, _BISECTIONS)
    return (low + high) / 2
