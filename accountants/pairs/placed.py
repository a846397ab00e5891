"""A windowed mechanism at two inputs: two densities on the same reports, each with its own window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from accountants.pairs import placed_sticks
from accountants.pairs.base import Curve, Pair
from accountants.pairs.sides import Side, side_of
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join
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

    def privacy_loss(self) -> PrivacyLossDistribution:
        pair = _floating(self)
        if isinstance(self.window, Uniform) and isinstance(self.base, Constant):
            return _flat(pair)
        apart = checks.concrete(self.apart)
        if apart is not None and np.all(apart == 0):
            one = namespace(pair.width).ones_like(pair.width)[None]
            return PrivacyLossDistribution.of_masses(one, one)
        own, other = (self._pieces(side_of(one, beyond=True)) for one in (pair, pair.mirror()))
        return join([own, other.mirrored()])

    def _pieces(self, side: Side) -> PrivacyLossDistribution:
        """The pieces between the knots of both densities, on one side."""

        def log_density(number: int) -> Callable[[Any, Any], Any]:
            density, inside = side.densities[number]
            return lambda e, i: namespace(e, side.left).log(density(e, inside[i]))

        def loss(e: Any, i: Any) -> Any:
            return side.loss(e, side.in_p[i], side.in_q[i])

        return PrivacyLossDistribution.of_pieces(
            SmoothPieces(side.left, side.right, log_density(0), log_density(1), loss, self._steepness)
        )

    @property
    def _steepness(self) -> Callable[[Any, Any, Any], Any] | None:
        """That of the window and of the base, whichever is larger; None where one of them says none."""
        steep, flat = self.window.steepness, self.base.steepness
        if steep is None or flat is None:
            return None
        return lambda left, _, __: 0 * left + max(steep / float(self.width), flat)

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
    xp = namespace(*jax.tree.leaves(pair))
    return jax.tree.map(lambda leaf: floating(xp.asarray(leaf)), pair)


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


def _flat(pair: Placed) -> PrivacyLossDistribution:
    """A flat window on a flat base: within p's window alone, within both or neither, and within q's alone."""
    xp = namespace(*jax.tree.leaves(pair))
    alone = xp.minimum(xp.abs(pair.apart), pair.width)
    high, low = (pair.level + pair.height) * alone, pair.level * alone
    same = (pair.level + pair.height) * (pair.width - alone) + pair.level * (2 - pair.width - alone)
    loss = xp.where(pair.apart == 0, 0.0, xp.log1p(pair.relative_height))
    p = xp.stack([high, same, low])
    return PrivacyLossDistribution(p, p[::-1], xp.stack([loss, 0 * loss, -loss]), 0 * p)
