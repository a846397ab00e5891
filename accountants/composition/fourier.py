"""Composition by Fourier transform on a grid: a number and a gradient at every count.

One report's tilted losses are deposited on a grid (see ``deposits``) on which its heaviest atoms are; the transform's
n-th power is that of n reports, at any count n. With g their masses, tilted by e^(c S), at the grid points s_k,

    delta(eps) = e^(K(c) - c eps) sum over s_k > eps of g_k e^(-c x) (1 - e^-x),    x = s_k - eps

exactly, where S has atoms on the grid only. What is left once these are taken off, sums with a report whose loss is
elsewhere, is smooth on the scale of h: there the sum is a quadrature of a function with a kink at eps, which
Euler and Maclaurin's formula corrects: what is returned varies with eps, and every parameter, as the true one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import bernoulli

from accountants.composition.characteristic import Part, Parts
from accountants.composition.deposits import COEFFICIENTS, POINTS, deposited, heavy_atoms, on_atoms, tilted
from dpkernels.numerics import Real, RealArray, like
from dpkernels.pytrees import pytree

SIZE = 1 << 13
# -log of the tilted mass beyond the window; the slopes of the Chernoff bounds tried, over the deviation and of c.
_BEYOND, _SLOPES, _SHARES = 41.0, np.geomspace(0.125, 16.0, 8), np.array([0.3, 0.9])
# The step is at least so many times as wide as the outcomes deposited.
_OUTCOMES = 1.0


@pytree
@dataclass(frozen=True)
class Sum:
    """The composed losses.

    Attributes:
        start: the first grid point.
        step: h.
        g: tilted masses, of sum about 1.
        rest: those of them that are no sums of atoms on the grid.
        tilt: c.
        log_scale: K(c).
    """

    start: Any
    step: Any
    g: Any
    rest: Any
    tilt: Any
    log_scale: Real

    def log_delta(self, epsilon: Real) -> Real:
        """log delta of finite losses."""
        x = self.start - epsilon + self.step * jnp.arange(SIZE, dtype=self.g.dtype)
        above = x > 0
        x = jnp.where(above, x, 1.0)
        value = jnp.where(above, -self.g * jnp.exp(-self.tilt * x) * jnp.expm1(-x), 0.0).sum()
        value = value + self._correction(epsilon)
        possible = value > 0
        return (
            self.log_scale
            - self.tilt * epsilon
            + jnp.where(possible, jnp.log(jnp.where(possible, value, 1.0)), -jnp.inf)
        )

    def _correction(self, epsilon: Real) -> Real:
        """Sum of B_j(t)/j! F^(j-1)(0) over j from 2, F(y) = rest(y) phi(h y) in steps y from eps, phi the weight.

        t is how far the next grid point is above eps; the rest is interpolated through the points around.
        """
        place = (epsilon - self.start) / self.step
        below = jax.lax.stop_gradient(jnp.clip(jnp.floor(place), 2, SIZE - 4))
        around = jax.lax.dynamic_slice(self.rest, (below.astype(int) - 2,), (len(POINTS),))
        s = place - below  # eps is at s steps above the point below, t = 1 - s.
        decay = self.tilt * self.step
        fall = (jnp.power(decay, _ORDERS) - jnp.power(decay + self.step, _ORDERS)) * _SIGNS
        # The derivatives of the product at eps over j!, from those of either.
        F = (jnp.take(fall, _ALONG) * _PRESENT) @ _taylor(around, s)
        return ((like(_BERNOULLI, self.g) @ jnp.power(1 - s, _POWERS))[2:] / (_ORDERS[1:] + 1) * F[1:]).sum()


# Terms of the correction: each is about (c + 1) h / (2 pi) of the one before.
_TERMS = 18
_ORDERS, _POWERS = np.arange(_TERMS, dtype=float), np.arange(_TERMS + 1, dtype=float)
_SIGNS = (-1) ** _ORDERS / np.cumprod([1.0, *range(1, _TERMS)])
# Entry (m, j) of a product's coefficients: which of the one factor's goes with the other's number j.
_ALONG = np.maximum(np.arange(_TERMS)[:, None] - np.arange(len(POINTS)), 0)
_PRESENT = np.arange(_TERMS)[:, None] >= np.arange(len(POINTS))
_CHOICES = np.array([[math.comb(n, j) for j in range(_TERMS + 1)] for n in range(_TERMS + 1)], float)
# Row n has the coefficients of the Bernoulli polynomial B_n(t), by powers of t.
_BERNOULLI = np.array(
    [
        [_CHOICES[n, j] * bernoulli(_TERMS)[n - j] if j <= n else 0.0 for j in range(_TERMS + 1)]
        for n in range(_TERMS + 1)
    ]
)


def _taylor(values: RealArray, s: Real) -> Real:
    """Coefficients of the interpolation of values at ``POINTS``, developed at s."""
    many = len(POINTS)
    power = np.arange(many) - np.arange(many)[:, None]
    moved = jnp.power(s, np.maximum(power, 0.0)) * np.where(power >= 0, _CHOICES[:many, :many].T, 0.0)
    return moved @ (like(COEFFICIENTS, values) @ values)


def composed(parts: Parts, c: Any) -> Sum:
    """The sum of all parts' losses; the tilt c changes what is precise, and has no derivative."""
    c = jax.lax.stop_gradient(c)
    moments = [part.moments(c) for part in parts]
    grid = _grid(parts, c, moments)
    frequency = 2 * jnp.pi * jnp.arange(SIZE // 2 + 1, dtype=c.dtype) / SIZE
    whole: Any = 1.0
    of_atoms: Any = 1.0
    start = log_scale = 0.0 * c
    for part, offset, moment in zip(parts, grid.offsets, moments, strict=True):
        start, log_scale = start + part.count * offset, log_scale + part.count * moment[0]
        if part.losses is None:
            whole = whole * jnp.exp(-part.count * (frequency * part.mu / grid.step) ** 2 / 2)
            of_atoms = 0.0 * whole
            continue
        masses = deposited(part.losses, c, moment[0], offset, grid.step, SIZE)
        whole, of_atoms = (
            product * _power(jnp.fft.rfft(each), part.count)
            for product, each in zip((whole, of_atoms), masses, strict=True)
        )
    first = jnp.floor((grid.low - start) / grid.step)
    order = jnp.mod(jax.lax.stop_gradient(first) + jnp.arange(SIZE, dtype=c.dtype), SIZE).astype(int)
    g, atoms = (jnp.fft.irfft(each + 0j, SIZE)[order] for each in (whole, of_atoms))
    return Sum(start + jax.lax.stop_gradient(first) * grid.step, grid.step, g, g - atoms, c, log_scale)


def _power(values: Real, count: Real) -> Real:
    """The n-th power of complex numbers, n real; of next to 0 none."""
    some = jnp.abs(values) > 1e-100
    return jnp.where(some, jnp.exp(count * jnp.log(jnp.where(some, values, 1.0))), 0.0)


class _Grid(NamedTuple):
    """The step, a grid point next to every part's mean (a Gaussian's is its mean), and the window's lower end."""

    step: Any
    offsets: list[Any]
    low: Any


def _grid(parts: Parts, c: Real, moments: list[Any]) -> _Grid:
    """A step at which the window holds the sum, and at which the distance of the two heaviest atoms is whole."""
    mean = sum(part.count * moment[1] for part, moment in zip(parts, moments, strict=True))
    down, up = (jax.lax.stop_gradient(_reach(parts, c, moments, sign)) for sign in (-1, 1))
    atoms = [_atoms(part, c, moment[0]) for part, moment in zip(parts, moments, strict=True)]
    least = jnp.stack([finest(part, c, moment[0]) for part, moment in zip(parts, moments, strict=True)]).max()
    light = jnp.stack([part.count * lighter for part, (_, _, lighter) in zip(parts, atoms, strict=True)])
    gap = jnp.stack([gap for _, gap, _ in atoms])[light.argmax()]
    step = on_atoms(jnp.maximum((down + up) / (SIZE - 16), least), jnp.where(light.max() > 0, gap, 0.0))
    offsets = [
        moment[1] if part.losses is None else heaviest + step * jnp.round((moment[1] - heaviest) / step)
        for part, moment, (heaviest, _, _) in zip(parts, moments, atoms, strict=True)
    ]
    return _Grid(step, offsets, jax.lax.stop_gradient(mean - down - (SIZE * step - down - up) / 2))


def _reach(parts: Parts, c: Any, moments: list[Any], sign: int) -> jax.Array:
    """How far above (1) or below (-1) its mean the tilted sum is at most, but for a negligible probability."""
    variance = sum(part.count * moment[2] for part, moment in zip(parts, moments, strict=True))
    deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(c.dtype).tiny ** 0.5))
    slopes = jnp.concatenate([like(_SLOPES, c) / deviation, like(_SHARES, c) * c])
    bounds = most = 0.0
    for part, (value, mean, _) in zip(parts, moments, strict=True):
        bounds = bounds + part.count * (part.log_moment(c + sign * slopes) - value - sign * slopes * mean)
        most = most + part.count * (largest(part, sign) - sign * mean)
    return jnp.minimum(((bounds + _BEYOND) / slopes).min(), most)


def largest(part: Part, sign: int) -> Any:
    """The supremum of sign times the loss, finite ones only."""
    if part.losses is None:
        return jnp.inf
    return (sign * part.losses.finite[1]).max()


def finest(part: Part, c: Real, log_scale: Real) -> Real:
    """A step that is wide enough for what the part deposits: no comb of single outcomes is seen through it."""
    if part.losses is None:
        return 0 * c
    mass = tilted(part.losses, c, log_scale)[0] * (part.losses.width > 0)
    total = mass.sum()
    return _OUTCOMES * jnp.where(total > 0, (mass * part.losses.width).sum() / jnp.where(total > 0, total, 1.0), 0.0)


def _atoms(part: Part, c: Any, log_scale: RealArray) -> tuple[Real, Real, Real]:
    return (0 * c, 0 * c, 0 * c) if part.losses is None else heavy_atoms(part.losses, c, log_scale)
