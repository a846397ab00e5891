"""Composition by Fourier transform on a grid: a number and a gradient at every count.

One report's tilted losses are deposited on a grid (see ``deposits``) on which its heaviest atoms are; the transform's
n-th power is that of n reports, at any count n. With g their masses, tilted by e^(c S), at the grid points s_k,

    delta(eps) = e^(K(c) - c eps) sum over s_k > eps of g_k e^(-c x) (1 - e^-x),    x = s_k - eps

exactly, where S has atoms on the grid only. What is left once these are taken off, and what crowds next to them, sums
with a report whose loss is elsewhere, is smooth on the scale of h: there the sum is a quadrature of a function with a
kink at eps, which Euler and Maclaurin's formula corrects: what is returned varies with eps, and every parameter, as the
true one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import pascal
from scipy.special import bernoulli

from accountants.composition import deposits
from accountants.composition.characteristic import Part, Parts
from accountants.composition.deposits import COEFFICIENTS, POINTS
from accountants.pairs.losses import Losses
from dpkernels.numerics import Real, like
from dpkernels.pytrees import pytree

SIZE = 1 << 13
# -log of the tilted mass beyond the window; the slopes of the Chernoff bounds tried, over the deviation and of c.
_BEYOND, _SLOPES, _SHARES = 41.0, np.geomspace(0.125, 16.0, 8), np.array([0.3, 0.9])
_NOTHING = 1e-100  # A transform that has no logarithm.
# The relative error of eps at which floats no longer tell it.
_TOLD = 1e-5
# The step is at least so many times as wide as the outcomes deposited.
_OUTCOMES = 1.0


class _One(NamedTuple):
    """A part on the grid: what it is, what it deposits (Gaussian noise nothing), K of one report and its grid point.

    Its transform and its log, too: of all, and of what is at its atoms on the grid alone.
    """

    part: Part
    deposit: Any
    spectrum: Any
    log: Any
    log_scale: Any
    offset: Any

    def power(self) -> Any:
        """The transform of all its reports."""
        power = jnp.exp(self.part.count * self.log)
        if self.deposit is None:
            return jnp.stack([power, 0.0 * power])
        return jnp.where(jnp.abs(self.spectrum) > _NOTHING, power, 0.0)


class _Seen(NamedTuple):
    """What delta and minus its slope count masses for at one eps, and the rest around the point below; both, tilted."""

    epsilon: Any
    weights: Any
    near: Any
    below: Any
    sums: Any


@pytree
@dataclass(frozen=True)
class Sum:
    """The composed losses.

    Attributes:
        start: the first grid point.
        step: h.
        g: tilted masses, of sum about 1.
        rest: those of them that are no sums of atoms on the grid, and of what crowds there.
        tilt: c.
        log_scale: K(c).
        first: the number of the first grid point.
        spectrum: the transform of all, and of what is at atoms on the grid alone.
        parts: what it is the sum of.
    """

    start: Any
    step: Any
    g: Any
    rest: Any
    tilt: Any
    log_scale: Any
    first: Any
    spectrum: Any
    parts: tuple[_One, ...]

    def nothing(self) -> _Seen:
        """The shape of what is seen."""
        pair = jnp.zeros((2, SIZE), self.g.dtype)
        return _Seen(self.tilt, pair, pair[:, : len(POINTS)], self.tilt.astype(int), pair[:, 0])

    def read(self, epsilon: Any) -> tuple[Any, Any, _Seen]:
        """(log delta of finite losses, its derivative in eps, what they are of)."""
        below, s = self._place(epsilon)
        weights = self._weights(epsilon)
        kinks, shifted = jax.jvp(self._kinks, (s,), (1 / self.step,))
        near = jnp.stack([kinks, self.tilt * kinks - shifted])
        sums = (self.g * weights).sum(-1) + (near * self._around(below)).sum(-1)
        possible = ~(sums[0] <= 0)  # NaN stays.
        value = jnp.where(possible, sums[0], 1.0)
        log_delta = self.log_scale - self.tilt * epsilon + jnp.where(possible, jnp.log(value), -jnp.inf)
        return log_delta, jnp.where(possible, -sums[1] / value, 0.0), _Seen(epsilon, weights, near, below, sums)

    def _around(self, below: Any) -> Any:
        return jax.lax.dynamic_slice(self.rest, (below - 2,), (len(POINTS),))

    def _weights(self, epsilon: Any) -> Any:
        """e^(-c x) (1 - e^-x) and e^(-(c+1) x) of the grid points above eps."""
        x = self.start - epsilon + self.step * jnp.arange(SIZE, dtype=self.g.dtype)
        above = x > 0
        x = jnp.where(above, x, 1.0)
        falling = jnp.where(above, jnp.exp(-self.tilt * x), 0.0)
        return jnp.stack([falling * -jnp.expm1(-x), falling * jnp.exp(-x)])

    def _place(self, epsilon: Any) -> tuple[Any, Any]:
        """The grid point below eps, and by how many steps eps is above it."""
        place = (epsilon - self.start) / self.step
        below = jnp.clip(jnp.floor(place), 2, SIZE - 4)
        return below.astype(int), jnp.clip(place - below, 0.0, 1.0)

    def _kinks(self, s: Any) -> Any:
        """What the rest at the points around eps counts for: the sum of B_j(t)/j! F^(j-1)(0) over j from 2.

        F(y) = rest(y) phi(h y) in steps y from eps, phi the weight; t = 1 - s is how far the next grid point is above
        eps; the rest is interpolated.
        """
        decay = self.tilt * self.step
        fall = (jnp.power(decay, _ORDERS) - jnp.power(decay + self.step, _ORDERS)) * like(_SIGNS, self.g)
        kink = (like(_BERNOULLI, self.g)[2:] * jnp.power(1 - s, _POWERS)).sum(-1) / like(_POWERS, self.g)[2:]
        # The derivatives of the product at eps over j!, from those of either.
        by_taylor = (kink[:, None] * (jnp.take(fall, _ALONG) * _PRESENT)[1:]).sum(0)
        return ((by_taylor[:, None] * deposits.developed(s)).sum(0)[:, None] * like(COEFFICIENTS, self.g)).sum(0)

    def tells(self, epsilon: Any, value: Any, slope: Any, noise: Any) -> Any:
        """Whether floats tell which eps it is, at log delta and its slope there.

        Errors of the tilted masses are the noise; delta and its slope are of them.
        """
        tilted_slope = -slope * jnp.exp(value - self.log_scale + self.tilt * epsilon)
        return noise < _TOLD * tilted_slope * jnp.maximum(jnp.abs(epsilon), self.step)

    def slopes(self, seen: _Seen) -> tuple[Parts, Any]:
        """Derivatives of delta in all of the parts, and in eps: it is a homogeneous polynomial of the masses.

        With one report less at eps - l that is n delta in the mass of the loss l, and n p times minus its slope in l.
        All of these are one correlation, by transform; between grid points they are interpolated.
        """
        value, slope = seen.sums
        scale = jnp.exp(self.log_scale - self.tilt * seen.epsilon)
        spread = jax.lax.dynamic_update_slice(jnp.zeros_like(seen.weights), seen.near, (0 * seen.below, seen.below - 2))
        # Of all masses and, less what is of the rest only, of atoms on the grid.
        weights = jnp.stack([seen.weights + spread, -spread], 1)
        weights = jnp.fft.rfft(jnp.roll(weights, self.first.astype(int), -1))
        found = []
        for one in self.parts:
            part = one.part
            if one.deposit is None or part.losses is None:
                shares = deposits.interpolation(self._place(seen.epsilon)[1][None])[:, 0]
                density = self._around(seen.below) @ shares / self.step
                found.append(Part(None, scale * part.count * part.mu * density, scale * part.mu**2 / 2 * density))
                continue
            by_count = one.log_scale * value + one.offset * (slope - self.tilt * value) + self._by_log(one, weights[0])
            without = jnp.where(jnp.abs(one.spectrum) > _NOTHING, self.spectrum / one.spectrum, 0.0)
            by_mass = jnp.conj(without) * weights
            by_mass = jnp.fft.irfft(jnp.concatenate([by_mass[0], by_mass[1].sum(0, keepdims=True)]), SIZE)
            losses = self._by_losses(one, by_mass, scale * part.count)
            found.append(Part(losses, 0.0 * part.mu, scale * by_count))
        return tuple(found), -scale * slope

    def _by_log(self, one: _One, weights: Any) -> Any:
        """The derivative of the sum of masses times weights, given by their transform, in the count."""
        terms = jnp.real(jnp.conj(weights) * self.spectrum * one.log) * like(_FREQUENCIES, self.tilt)
        return terms[:, :-1].sum() + terms[:, -1].sum()

    def _by_losses(self, one: _One, by_mass: Any, scale: Any) -> Losses:
        """Derivatives in masses and losses; of an atom on the grid that in its loss is a sum there, not a slope."""
        nodes: Any = one.part.losses
        inner, by_step = one.deposit.read(*by_mass[:2])
        at_atoms = by_mass[2][one.deposit.index[2]]
        by_loss = jnp.where(one.deposit.on_grid, at_atoms, self.tilt * inner + by_step / self.step)
        mass, p = scale * one.deposit.mass, nodes.p
        some = one.deposit.mass > 0
        return Losses(jnp.where(some, mass / jnp.where(some, p, 1.0) * inner, 0.0), 0.0 * p, mass * by_loss, 0.0 * p)


# How often a frequency of the half transform is in the whole one, over its length.
_FREQUENCIES = np.concatenate([[1.0], np.full(SIZE // 2 - 1, 2.0), [1.0]]) / SIZE
# Terms of the correction: each is about (c + 1) h / (2 pi) of the one before.
_TERMS = 18
# Whole, as in ``developed``: s is 0 where eps is on the grid.
_ORDERS, _POWERS = np.arange(_TERMS), np.arange(_TERMS + 1)
_SIGNS = (-1.0) ** _ORDERS / np.cumprod([1.0, *range(1, _TERMS)])
# Entry (m, j) of a product's coefficients: which of the one factor's goes with the other's number j.
_ALONG = np.maximum(np.arange(_TERMS)[:, None] - np.arange(len(POINTS)), 0).astype(np.int32)
_PRESENT = np.arange(_TERMS)[:, None] >= np.arange(len(POINTS))
_CHOICES = pascal(_TERMS + 1, kind="lower").astype(float)
# Row n has the coefficients of the Bernoulli polynomial B_n(t), by powers of t.
_BERNOULLI = np.array(
    [
        [_CHOICES[n, j] * bernoulli(_TERMS)[n - j] if j <= n else 0.0 for j in range(_TERMS + 1)]
        for n in range(_TERMS + 1)
    ]
)


def composed(parts: Parts, c: Any) -> Sum:
    """The sum of all parts' losses; the tilt c changes what is precise."""
    moments = [part.moments(c) for part in parts]
    grid = _grid(parts, c, moments)
    frequency = 2 * jnp.pi * jnp.arange(SIZE // 2 + 1, dtype=c.dtype) / SIZE
    found = []
    start = log_scale = 0.0 * c
    for part, offset, moment in zip(parts, grid.offsets, moments, strict=True):
        start, log_scale = start + part.count * offset, log_scale + part.count * moment[0]
        if part.losses is None:
            deposit, spectrum, log = None, None, -((frequency * part.mu / grid.step) ** 2) / 2
        else:
            deposit = deposits.deposited(part.losses, c, moment[0], offset, grid.step, SIZE)
            spectrum = jnp.fft.rfft(deposit.masses(SIZE))
            log = jnp.log(jnp.where(jnp.abs(spectrum) > _NOTHING, spectrum, 1.0))
        found.append(_One(part, deposit, spectrum, log, moment[0], offset))
    first = jnp.floor((grid.low - start) / grid.step)
    spectrum = math.prod(one.power() for one in found)
    g, atoms = jnp.roll(jnp.fft.irfft(spectrum, SIZE), -first.astype(int), -1)
    start = start + first * grid.step
    return Sum(start, grid.step, g, g - atoms, c, log_scale, first, spectrum, tuple(found))


class _Grid(NamedTuple):
    """The step, a grid point next to every part's mean (a Gaussian's is its mean), and the window's lower end."""

    step: Any
    offsets: list[Any]
    low: Any


def _grid(parts: Parts, c: Any, moments: list[Any]) -> _Grid:
    """A step at which the window holds the sum, and at which the distance of the two heaviest atoms is whole."""
    mean = sum(part.count * moment[1] for part, moment in zip(parts, moments, strict=True))
    down, up = jax.lax.stop_gradient(_reach(parts, c, moments))
    atoms = [
        (0 * c, 0 * c, 0 * c) if part.losses is None else deposits.heavy_atoms(part.losses, c, moment[0])
        for part, moment in zip(parts, moments, strict=True)
    ]
    least = jnp.stack([finest(part, c, moment[0]) for part, moment in zip(parts, moments, strict=True)]).max()
    light = jnp.stack([part.count * lighter for part, (_, _, lighter) in zip(parts, atoms, strict=True)])
    gap = jnp.stack([gap for _, gap, _ in atoms])[light.argmax()]
    # Of one loss alone the window has no width.
    least = jnp.maximum(least, jnp.finfo(c.dtype).eps * (1 + jnp.abs(mean)))
    step = deposits.on_atoms(jnp.maximum((down + up) / (SIZE - 16), least), jnp.where(light.max() > 0, gap, 0.0))
    offsets = [
        moment[1] if part.losses is None else heaviest + step * jnp.round((moment[1] - heaviest) / step)
        for part, moment, (heaviest, _, _) in zip(parts, moments, atoms, strict=True)
    ]
    return _Grid(step, offsets, jax.lax.stop_gradient(mean - down - (SIZE * step - down - up) / 2))


def _reach(parts: Parts, c: Any, moments: list[Any]) -> Any:
    """How far below and above its mean the tilted sum is at most, but for a negligible probability."""
    variance = sum(part.count * moment[2] for part, moment in zip(parts, moments, strict=True))
    deviation = jnp.sqrt(jnp.maximum(variance, jnp.finfo(c.dtype).tiny ** 0.5))
    slopes = jnp.concatenate([like(_SLOPES, c) / deviation, like(_SHARES, c) * c])
    both = jnp.stack([-slopes, slopes])
    bounds = most = 0.0
    for part, (value, mean, _) in zip(parts, moments, strict=True):
        bounds = bounds + part.count * (part.log_moment(c + both) - value - both * mean)
        most = most + part.count * jnp.stack([largest(part, -1) + mean, largest(part, 1) - mean])
    return jnp.minimum(((bounds + _BEYOND) / slopes).min(-1), most)


def largest(part: Part, sign: int) -> Any:
    """The supremum of sign times the loss, finite ones only."""
    if part.losses is None:
        return jnp.asarray(jnp.inf, part.mu.dtype)
    return (sign * part.losses.finite[1]).max()


def finest(part: Part, c: Real, log_scale: Real) -> Real:
    """A step that is wide enough for what the part deposits: no comb of single outcomes is seen through it."""
    if part.losses is None:
        return 0 * c
    mass = deposits.tilted(part.losses, c, log_scale)[0] * (part.losses.width > 0)
    total = mass.sum()
    return _OUTCOMES * jnp.where(total > 0, (mass * part.losses.width).sum() / jnp.where(total > 0, total, 1.0), 0.0)
