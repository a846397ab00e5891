"""A windowed mechanism at two inputs: two densities on the same reports, each with its own window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import losses, placed_sticks, runs
from accountants.pairs.base import Curve, Pair
from accountants.pairs.losses import FEW, Losses, panel_rule, range_of
from accountants.pairs.runs import Spectrum, between_knots, flat
from accountants.pairs.sides import Side, side_of
from dpkernels import checks
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow, base_from, window_from
from dpkernels.mechanisms.windowed.windows import Sine, Triangle, Uniform, Window
from dpkernels.numerics import Real, floating, namespace
from dpkernels.pytrees import pytree

# How far beyond the reports a window of a file may reach, for rounding.
_ROUNDING = 1e-12


@pytree
@dataclass(frozen=True)
class Placed(Pair):
    """p and q: a base, and a window on it at one of two places; on the scaled reports [-1, 1].

    The numbers have no unit: neither the place nor the unit of the data has any effect on them.

    Attributes:
        window: a window that falls from its middle.
        base: a base that falls from 0.
        width: m in (0, 2), the width of the window.
        relative_height: k/y, the window's peak over the base's.
        apart: how far the middle of p's window is to the right of the middle of q's.
        centre: the point half-way between both middles; 0 for the two ends of the input interval.
    """

    window: Window
    base: Base
    width: Any
    relative_height: Any
    apart: Any
    centre: Any = 0.0

    @property
    def level(self) -> Any:
        """y, the base's height at its peak."""
        return 1 / (self.relative_height * self.window.area * self.width + 2 * self.base.area)

    @property
    def height(self) -> Any:
        """k, the window's peak."""
        return self.relative_height * self.level

    def hockey_stick(self) -> Curve:
        return placed_sticks.of_placed(_floating(self))

    def largest_loss(self) -> Real:
        return placed_sticks.largest_loss_of_placed(_floating(self))

    def losses(self, panels: int = 0) -> Losses:
        pair = _floating(self)
        if pair._is_flat:
            return _flat(pair)
        sides = [side_of(one, beyond=True) for one in (pair, pair.mirror())]
        each = max(1, panels // sum(len(side.left) for side in sides)) if panels else FEW
        own, other = (_nodes(side, each, dense=panels > 0) for side in sides)
        return losses.joined([own, other.mirrored()])

    def spectrum(self) -> Spectrum:
        """Pieces between the knots of both densities, cut again where the loss turns."""
        pair = jax.tree.map(float, self)
        if pair._is_flat:
            with jax.enable_x64(True):
                nodes = jax.tree.map(np.asarray, _flat(_floating(pair)))
            return Spectrum(nodes.p, nodes.q, nodes.loss, ())
        own, other = (_spectrum(side_of(one, beyond=True), pair._steep) for one in (pair, pair.mirror()))
        return runs.joined([own, other.mirrored()])

    @property
    def _is_flat(self) -> bool:
        return isinstance(self.window, Uniform) and isinstance(self.base, Constant)

    def _steep(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Half a sine is pi over its width; other shapes are polynomials of degree 4 at most between their knots."""
        return flat(left, right) + (np.pi / float(self.width) if isinstance(self.window, Sine) else 0.0)

    def mirror(self) -> Placed:
        return Placed(self.window, self.base, self.width, self.relative_height, -self.apart, self.centre)

    def asymmetry(self) -> Any:
        return namespace(self.centre).abs(self.centre)

    def check(self) -> None:
        _check_shapes(self)
        checks.within("width", self.width, 0.0, 2.0, open_ends=True)
        checks.positive("relative_height", self.relative_height)
        room = 1 - self.width / 2 + _ROUNDING
        for sign in (1, -1):
            checks.within("apart, centre", self.centre + sign * self.apart / 2, -room, room)


def ends_of(mechanism: Windowed) -> Placed:
    """The pair of the two ends of the input interval, at which the window meets the ends of the reports."""
    m = mechanism
    return Placed(m.window, m.base, m.width, m.relative_height, 2 - m.width)


def square_wave_ends(mechanism: SquareWave) -> Placed:
    """The same of a square wave, whose window may cover all but little of the reports: 1/b of them, and less."""
    b, height = mechanism.half_width, namespace(mechanism.epsilon).expm1(mechanism.epsilon)
    return Placed(Uniform(), Constant(), 4 * b / (1 + 2 * b), height, 2 / (1 + 2 * b))


def placed(mechanism: Windowed, x: Any, other: Any) -> Placed:
    """The pair of two inputs, in data units: p = density(. | x), q = density(. | other)."""
    m = mechanism
    share = (x - other) / (m.upper - m.lower)
    off = ((x - m.lower) - (m.upper - other)) / (m.upper - m.lower)
    reach = 1 - m.width / 2
    return Placed(m.window, m.base, m.width, m.relative_height, 2 * reach * share, reach * off)


def _floating(pair: Placed) -> Placed:
    return jax.tree.map(lambda leaf: floating(jnp.asarray(leaf)), pair)


def _check_shapes(pair: Placed) -> None:
    """A table must be one that ``window_from`` and ``base_from`` make, and fall from its middle."""
    for make, kind in ((window_from, TabulatedWindow), (base_from, TabulatedBase)):
        for name in ("window", "base"):
            shape = getattr(pair, name)
            if isinstance(shape, kind) and not (make(shape.shape.values) == shape and falls(shape)):
                raise ValueError(f"{name}: is not even with a peak of 1, or does not fall from its middle")


def falls(shape: Window | Base) -> bool:
    """Whether a window or a base falls from its middle for certain: of a user's own class it is not known."""
    if not isinstance(shape, TabulatedWindow | TabulatedBase):
        return isinstance(shape, Uniform | Sine | Triangle | Constant | Quartic)
    outward = shape.shape.heights[len(shape.shape.heights) // 2 :]
    return bool(np.all(np.diff(outward) <= 0))


def _flat(pair: Placed) -> Losses:
    """A flat window on a flat base: within p's window alone, within both or neither, and within q's alone."""
    alone = jnp.minimum(jnp.abs(pair.apart), pair.width)
    high, low = (pair.level + pair.height) * alone, pair.level * alone
    same = (pair.level + pair.height) * (pair.width - alone) + pair.level * (2 - pair.width - alone)
    loss = jnp.where(pair.apart == 0, 0.0, jnp.log1p(pair.relative_height))
    p = jnp.stack([high, same, low])
    return Losses(p, p[::-1], jnp.stack([loss, 0 * loss, -loss]), 0 * p)


def _nodes(side: Side, panels: int, *, dense: bool) -> Losses:
    """Quadrature on every piece."""
    share, weight = panel_rule(panels, side.left, dense=dense)
    width = (side.right - side.left)[:, None]
    e, in_p, in_q = side.left[:, None] + width * share, side.in_p[:, None], side.in_q[:, None]
    loss = side.loss(e, in_p, in_q)
    atomic = jnp.ptp(loss, axis=1, keepdims=True) <= 1e-13 * (1 + jnp.abs(loss))
    p, q = (width * weight * density for density in (side.p(e, in_p), side.q(e, in_q)))
    return Losses(*map(jnp.ravel, (p, q, loss, jnp.where(atomic, 0.0, range_of(loss)))))


def _spectrum(side: Side, steep: runs.Steepness) -> Spectrum:
    """One piece after the other: each has densities of its own, which do not jump at its ends."""

    def piece(left: float, right: float, in_p: bool, in_q: bool) -> Spectrum:
        return between_knots(
            lambda e: side.p(e, in_p),
            lambda e: side.q(e, in_q),
            lambda e: side.loss(e, in_p, in_q),
            np.array([left, right]),
            steep,
        )

    return runs.joined([piece(*each) for each in zip(side.left, side.right, side.in_p, side.in_q, strict=True)])
