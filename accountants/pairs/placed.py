"""A windowed mechanism at two inputs: two densities on the same reports, each with its own window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import placed_sticks
from accountants.pairs.base import Curve, Pair
from accountants.privacy_loss import FEW, panel_rule
from accountants.privacy_loss import PrivacyLossDistribution as Losses

Spectrum = None
from dpkernels import checks
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow, base_from, window_from
from dpkernels.mechanisms.windowed.windows import Sine, Triangle, Uniform, Window
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

# Densities that differ less, relatively, are equal.
_EQUAL = 1e-13


@pytree
@dataclass(frozen=True)
class Placed(Pair):
    """p = density(. | x), q = density(. | other) of a windowed mechanism.

    Attributes:
        mechanism: a window that falls from its middle, on a base that falls from 0.
        x: the input of p.
        other: the input of q.
    """

    mechanism: Windowed
    x: Any
    other: Any

    def hockey_stick(self) -> Curve:
        return placed_sticks.of_placed(self)

    def largest_loss(self) -> Real:
        return placed_sticks.largest_loss_of_placed(self)

    def privacy_loss(self, panels: int = 0) -> Losses:
        if isinstance(self.mechanism.window, Uniform) and isinstance(self.mechanism.base, Constant):
            return _flat(self)
        p, q, ends = whole(self)
        share, weight = panel_rule(max(1, panels // (len(ends) - 1)) if panels else FEW, ends, dense=panels > 0)
        width = jnp.diff(ends)
        v = ends[:-1, None] + width[:, None] * share
        weight = width[:, None] * weight
        loss = jnp.log(p(v)) - jnp.log(q(v))
        atomic = jnp.ptp(loss, axis=1, keepdims=True) <= 1e-13 * (1 + jnp.abs(loss))
        return Losses(*map(jnp.ravel, (weight * p(v), weight * q(v), loss, jnp.where(atomic, 0.0, range_of(loss)))))

    def spectrum(self) -> Spectrum:
        """Pieces between the knots of both densities, cut again where the loss turns."""
        p, q, ends = whole(jax.tree.map(float, self))
        return between_knots(p, q, lambda x: np.log(p(x)) - np.log(q(x)), ends, self._steep)

    def _steep(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Half a sine is pi over its width; other shapes are polynomials of degree 4 at most between their knots."""
        sine = isinstance(self.mechanism.window, Sine)
        return flat(left, right) + (np.pi / float(self.mechanism.width) if sine else 0.0)

    def mirror(self) -> Placed:
        return Placed(self.mechanism, self.other, self.x)

    def asymmetry(self) -> Any:
        m = self.mechanism
        off = (self.x + self.other - m.lower - m.upper) / (m.upper - m.lower)
        return namespace(off).abs(off)

    def check(self) -> None:
        _check_shapes(self.mechanism)
        for name, x in (("x", self.x), ("other", self.other)):
            checks.within(name, x, self.mechanism.lower, self.mechanism.upper)


def _check_shapes(mechanism: Any) -> None:
    """A table must be one that ``window_from`` and ``base_from`` make, and fall from its middle."""
    for make, kind in ((window_from, TabulatedWindow), (base_from, TabulatedBase)):
        for name in ("window", "base"):
            shape = getattr(mechanism, name)
            if isinstance(shape, kind) and not (make(shape.shape.values) == shape and falls(shape)):
                raise ValueError(f"{name}: is not even with a peak of 1, or does not fall from its middle")


def falls(shape: Window | Base) -> bool:
    """Whether a window or a base falls from its middle for certain: of a user's own class it is not known."""
    if not isinstance(shape, TabulatedWindow | TabulatedBase):
        return isinstance(shape, Uniform | Sine | Triangle | Constant | Quartic)
    outward = shape.shape.heights[len(shape.shape.heights) // 2 :]
    return bool(np.all(np.diff(outward) <= 0))


def _flat(pair: Placed) -> Losses:
    """A flat window on a flat base: within one window, within the other, and where the two densities are the same."""
    p, q, ends = whole(pair)
    width, v = jnp.diff(ends), (ends[:-1] + ends[1:]) / 2
    higher, lower = p(v) > q(v) * (1 + _EQUAL), q(v) > p(v) * (1 + _EQUAL)
    parts = [jnp.where(each, width, 0.0) for each in (higher, ~higher & ~lower, lower)]
    p, q = (jnp.stack([(part * density(v)).sum() for part in parts]) for density in (p, q))
    there = p > 0
    return Losses(p, q, jnp.log(jnp.where(there, p, 1.0)) - jnp.log(jnp.where(there, q, 1.0)), 0 * p)


def whole(pair: Placed) -> tuple[Any, Any, Any]:
    """The densities of p and q on the scaled reports [-1, 1], and all their knots and the point half-way."""
    m = pair.mechanism
    xp = namespace(*jax.tree.leaves(pair))
    middles = [(x - m.middle) * m.scale / m.window_mass for x in (pair.x, pair.other)]

    def density(middle: Any) -> Any:
        return lambda v: m.level * m.base.density(v) + m.height * m.window.density((v - middle) / m.width + 0.5)

    bends = np.concatenate([m.window.kinks, -m.window.kinks])
    edges = np.concatenate([m.base.kinks, -m.base.kinks, [-1.0, 1.0]])
    # Between two inputs as far from the middle the loss changes its sign half-way.
    between = xp.stack([(middles[0] + middles[1]) / 2])
    knots = xp.concatenate([*(middle + m.width * bends for middle in middles), between, edges])
    return density(middles[0]), density(middles[1]), xp.sort(xp.clip(knots, -1.0, 1.0))
