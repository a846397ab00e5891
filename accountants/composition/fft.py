"""Composition by the fast Fourier transform (FFT) on a grid: a number and a gradient at every count.

The tilted losses of one release are distributed on a grid (see ``grid``) that contains its heaviest atoms. The n-th
power of their transform is that of n releases. With g their masses, tilted by e^(c S), at the grid points s_k,

    delta(eps) = e^(K(c) - c eps) sum over s_k > eps of g_k e^(-c x) (1 - e^-x),    x = s_k - eps,

which is exact where S has atoms on the grid only. Without these atoms, and without outcomes crowded next to them, the
masses are smooth on the scale of h. For smooth masses the sum is a quadrature of a function with a kink at eps, which
the Euler-Maclaurin formula corrects. The result then varies with eps, and with every parameter, as the true value does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from accountants.composition import grid
from accountants.composition.base import ComposedProfile
from accountants.composition.grid import COEFFICIENTS, POINTS
from accountants.composition.self_composed import RepeatedLoss, RepeatedLosses, integer_power
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels.numerics import Real, like, namespace, without_derivative
from dpkernels.pytrees import pytree

SIZE = 1 << 13
FEW = 32  # Up to this number of releases, sums of atoms are not smooth.
# -log of the tilted mass beyond the window; the slopes that Chernoff bounds try, in deviations and as shares of c.
_BEYOND, _SLOPES, _SHARES = 41.0, np.geomspace(0.125, 16.0, 8), np.array([0.3, 0.9])
_NOTHING = 1e-100  # The size up to which a transform counts as 0 and has no logarithm.
_RESOLVED = 1e-5  # The relative error of eps from which on it is not resolved in floating point.
_ATOMS = 5  # The atoms beside the heaviest one that decide the step.


class _OnGrid(NamedTuple):
    """A repeated loss on the grid."""

    part: RepeatedLoss  # The repeated loss.
    shares: Any  # Its interpolation on the grid; None for Gaussian noise.
    spectrum: Any  # Its transform, a row of all masses and a row of lumped ones; its logarithm for Gaussian noise.
    log_scale: Any  # K of one release.
    offset: Any  # Its grid point.

    def log(self) -> Any:
        """Return the logarithm of the transform, 0 where it has none."""
        xp = namespace(self.spectrum)
        return xp.log(xp.where(xp.abs(self.spectrum) > _NOTHING, self.spectrum, 1.0))

    def power(self) -> Any:
        count = self.part.count
        xp = namespace(self.spectrum, count)
        if self.shares is None:
            power = xp.exp(count * self.spectrum)
            return xp.stack([power, 0.0 * power])
        if xp is np and count == np.floor(count):
            return integer_power(self.spectrum, int(count))
        return xp.where(xp.abs(self.spectrum) > _NOTHING, xp.exp(count * self.log()), 0.0)


class _Evaluation(NamedTuple):
    """The sums at one eps."""

    epsilon: Any
    weights: Any  # Of all masses, in delta and in minus its slope.
    near: Any  # Weights of the smooth masses around eps.
    below: Any  # The number of the grid point below eps.
    sums: Any  # The tilted delta and minus its slope.


@pytree
@dataclass(frozen=True)
class ComposedPLD(ComposedProfile):
    """The distribution of the composed privacy loss on a grid."""

    start: Any  # The first grid point.
    step: Any  # h.
    g: Any  # The tilted masses, of sum about 1.
    smooth: Any  # The part of g that is neither a sum of atoms on the grid nor crowded next to one.
    tilt: Any  # c.
    log_scale: Any  # K(c).
    first: Any  # The number of the first grid point.
    spectrum: Any  # The transform of all masses, and of the sums of lumped ones.
    parts: tuple[_OnGrid, ...]  # The losses that are composed.

    def empty(self) -> _Evaluation:
        xp = namespace(self.g)
        pair = xp.zeros((2, SIZE), self.g.dtype)
        return _Evaluation(self.tilt, pair, pair[:, : len(POINTS)], self.tilt.astype(int), pair[:, 0])

    def evaluate(self, epsilon: Any) -> tuple[Any, Any, _Evaluation]:
        xp = namespace(self.g, epsilon)
        below, s = self._place(epsilon)
        weights = self._weights(epsilon)
        kinks, slope = self._kinks(s)
        near = xp.stack([kinks, self.tilt * kinks - slope / self.step])
        sums = (self.g * weights).sum(-1) + (near * self._around(below)).sum(-1)
        possible = ~(sums[0] <= 0)  # NaN stays.
        value = xp.where(possible, sums[0], 1.0)
        log_delta = self.log_scale - self.tilt * epsilon + xp.where(possible, xp.log(value), -np.inf)
        evaluation = _Evaluation(epsilon, weights, near, below, sums)
        return log_delta, xp.where(possible, -sums[1] / value, 0.0), evaluation

    def _around(self, below: Any) -> Any:
        if namespace(self.smooth) is np:
            return self.smooth[below - 2 : below - 2 + len(POINTS)]
        return jax.lax.dynamic_slice(self.smooth, (below - 2,), (len(POINTS),))

    def _weights(self, epsilon: Any) -> Any:
        """Return e^(-c x) (1 - e^-x) and e^(-(c+1) x) at the grid points above eps."""
        xp = namespace(self.g, epsilon)
        x = self.start - epsilon + self.step * xp.arange(SIZE, dtype=self.g.dtype)
        above = x > 0
        x = xp.where(above, x, 1.0)
        falling, change = xp.where(above, xp.exp(-self.tilt * x), 0.0), xp.expm1(-x)
        return xp.stack([falling * -change, falling * (1 + change)])

    def _place(self, epsilon: Any) -> tuple[Any, Any]:
        xp = namespace(self.g, epsilon)
        place = (epsilon - self.start) / self.step
        below = xp.clip(xp.floor(place), 2, SIZE - 4)
        return below.astype(int), xp.clip(place - below, 0.0, 1.0)

    def _kinks(self, s: Any) -> tuple[Any, Any]:
        """Return the weights of the smooth masses around eps in the correction at the kink, and their derivative in s.

        The correction is the sum of B_j(t)/j! F^(j-1)(0) over j from 2, where F(y) = smooth(y) phi(h y) in steps y from
        eps, and phi is the weight. t = 1 - s is the distance from eps to the next grid point. Masses are interpolated.
        """
        xp = namespace(self.g, s)
        decay = self.tilt * self.step
        fall = (xp.power(decay, _ORDERS) - xp.power(decay + self.step, _ORDERS)) * like(_SIGNS, self.g)
        kink = (like(_BERNOULLI, self.g) * xp.power(1 - s, _POWERS)).sum(-1)
        kink_slope = -(like(_BERNOULLI_SLOPES, self.g) * xp.power(1 - s, _POWERS[:-1])).sum(-1)
        # These are the derivatives of the product at eps over j!, from those of both factors.
        products = (fall[_ALONG] * _PRESENT)[1:]
        shift, shift_slope = grid.taylor_shift(s)

        def around(by_taylor: Any, shift: Any) -> Any:
            return ((by_taylor[:, None] * shift).sum(0)[:, None] * like(COEFFICIENTS, self.g)).sum(0)

        by_taylor, moved = (kink[:, None] * products).sum(0), (kink_slope[:, None] * products).sum(0)
        return around(by_taylor, shift), around(moved, shift) + around(by_taylor, shift_slope)

    def is_resolved(self, epsilon: Any, value: Any, slope: Any, noise: Any) -> Any:
        """Return whether the noise in the tilted masses, of which delta and its slope are sums, resolves eps."""
        xp = namespace(value)
        tilted_slope = -slope * xp.exp(value - self.log_scale + self.tilt * epsilon)
        return noise < _RESOLVED * tilted_slope * xp.maximum(xp.abs(epsilon), self.step)

    def gradient(self, evaluation: _Evaluation) -> tuple[RepeatedLosses, Any]:
        """Return the derivatives of delta, a homogeneous polynomial of the masses, as one correlation.

        That in the mass of the loss l is n times delta of one release less at eps - l; that in l is n p times minus its
        slope.
        """
        jnp = jax.numpy
        value, slope = evaluation.sums
        scale = jnp.exp(self.log_scale - self.tilt * evaluation.epsilon)
        start = (0 * evaluation.below, evaluation.below - 2)
        spread = jax.lax.dynamic_update_slice(jnp.zeros_like(evaluation.weights), evaluation.near, start)
        # Weights of all masses, and of lumped masses without the weights of the smooth masses.
        weights = jnp.stack([evaluation.weights + spread, -spread], 1)
        weights = jnp.fft.rfft(jnp.roll(weights, self.first.astype(int), -1))
        found = []
        for one in self.parts:
            part = one.part
            if one.shares is None:
                shares = grid.interpolation(self._place(evaluation.epsilon)[1][None])[:, 0]
                density = self._around(evaluation.below) @ shares / self.step
                by_mu, by_count = scale * part.count * part.mu * density, scale * part.mu**2 / 2 * density
                found.append(RepeatedLoss(None, by_mu, by_count))
                continue
            # The derivative in the power of the transform.
            terms = jnp.real(jnp.conj(weights[0]) * self.spectrum * one.log()) * like(_FREQUENCIES, self.tilt)
            by_power = terms[:, :-1].sum() + terms[:, -1].sum()
            by_count = one.log_scale * value + one.offset * (slope - self.tilt * value) + by_power
            without = jnp.where(jnp.abs(one.spectrum) > _NOTHING, self.spectrum / one.spectrum, 0.0)
            by_mass = jnp.conj(without) * weights
            by_mass = jnp.fft.irfft(jnp.concatenate([by_mass[0], by_mass[1].sum(0, keepdims=True)]), SIZE)
            losses = self._by_losses(one, by_mass, scale * part.count)
            found.append(RepeatedLoss(losses, 0.0 * part.mu, scale * by_count))
        return tuple(found), -scale * slope

    def _by_losses(self, one: _OnGrid, by_mass: Any, scale: Any) -> PrivacyLossDistribution:
        """Return derivatives in masses and losses; for an atom on the grid, that in its loss is a sum, not a slope."""
        jnp, shares, p = jax.numpy, one.shares, cast(PrivacyLossDistribution, one.part.losses).p
        inner, by_step = shares.interpolate(*by_mass[:2])
        by_loss = jnp.where(shares.on_grid, by_mass[2][shares.index[2]], self.tilt * inner + by_step / self.step)
        mass, some = scale * shares.mass, shares.mass > 0
        by_p = jnp.where(some, mass / jnp.where(some, p, 1.0) * inner, 0.0)
        return PrivacyLossDistribution(by_p, 0.0 * p, mass * by_loss, 0.0 * p)


# How often a frequency of the half transform occurs in the whole one, over its length.
_FREQUENCIES = np.concatenate([[1.0], np.full(SIZE // 2 - 1, 2.0), [1.0]]) / SIZE
_TERMS = 18  # Terms of the correction: each is about (c + 1) h / (2 pi) times the previous one.
# Integers, as in ``taylor_shift``: s is 0 where eps is on the grid.
_ORDERS, _POWERS = np.arange(_TERMS), np.arange(_TERMS + 1)
_SIGNS = (-1.0) ** _ORDERS / np.cumprod([1.0, *range(1, _TERMS)])
# Entry (m, j) of a product's coefficients: the coefficient of one factor that belongs to coefficient j of the other.
_ALONG = np.maximum(np.arange(_TERMS)[:, None] - np.arange(len(POINTS)), 0).astype(np.int32)
_PRESENT = np.arange(_TERMS)[:, None] >= np.arange(len(POINTS))


def _bernoulli_polynomials() -> np.ndarray:
    """Return the coefficients of the Bernoulli polynomials B_n(t), n = 0 to ``_TERMS``, by powers of t, in rows."""
    numbers = [Fraction(1)]
    for n in range(1, _TERMS + 1):
        numbers.append(-sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0)) / (n + 1))
    rows = [[math.comb(n, j) * numbers[n - j] if j <= n else 0 for j in range(_TERMS + 1)] for n in range(_TERMS + 1)]
    return np.array(rows, float)


_BERNOULLI = _bernoulli_polynomials()[2:] / _POWERS[2:, None]  # B_n(t)/n for n from 2.
_BERNOULLI_SLOPES = _BERNOULLI[:, 1:] * _POWERS[1:]


class Grid(NamedTuple):
    """The step, a grid point next to each part's mean (for a Gaussian its mean), and the lower end of the window."""

    step: Any
    offsets: list[Any]
    low: Any


def compose(parts: RepeatedLosses, c: Any, points: Grid) -> ComposedPLD:
    """Return the distribution of the sum of all losses; the tilt c and the grid affect the precision only."""
    xp = namespace(c)
    found = []
    start = log_scale = 0.0 * c
    for part, offset in zip(parts, points.offsets, strict=True):
        scale = part.log_moment(c)
        start, log_scale = start + part.count * offset, log_scale + part.count * scale
        if part.losses is None:
            frequency = 2 * np.pi * xp.arange(SIZE // 2 + 1, dtype=c.dtype) / SIZE
            shares, spectrum = None, -((frequency * part.mu / points.step) ** 2) / 2
        else:
            shares = grid.share_on_grid(part.losses, c, scale, offset, points.step, SIZE, _count_of_atoms(part.count))
            spectrum = xp.fft.rfft(shares.masses(SIZE))
        found.append(_OnGrid(part, shares, spectrum, scale, offset))
    first = xp.floor((points.low - start) / points.step)
    spectrum = math.prod(one.power() for one in found)
    g, lumped = xp.roll(xp.fft.irfft(spectrum, SIZE), -first.astype(int), -1)
    start = start + first * points.step
    return ComposedPLD(start, points.step, g, g - lumped, c, log_scale, first, spectrum, tuple(found))


def grid_of(parts: RepeatedLosses, c: Any, coarse: RepeatedLosses) -> Grid:
    """Return a grid whose window contains the sum, with the two heaviest atoms a whole number of steps apart.

    The step is not smaller than the width of single outcomes, except for parts that are sampled on the grid later. The
    window is computed from ``coarse``, the same losses with fewer nodes.
    """
    xp = namespace(c)
    moments = [part.moments(c) for part in parts]
    mean = sum(part.count * moment[1] for part, moment in zip(parts, moments, strict=True))
    down, up = without_derivative(_reach(parts, c, moments, coarse))
    none = xp.zeros(_ATOMS, c.dtype)
    atoms, steps = [], []
    for part, (log_scale, _, _) in zip(parts, moments, strict=True):
        losses = part.losses
        atoms.append((0 * c, none, none) if losses is None else grid.heaviest_atoms(losses, c, log_scale, _ATOMS))
        steps.append(0 * c if part.source is not None else least_step(part, c, log_scale))
    decisive = xp.stack([part.count * masses[0] for part, (_, _, masses) in zip(parts, atoms, strict=True)]).argmax()
    _, distances, masses = (xp.stack(column)[decisive] for column in zip(*atoms, strict=True))
    count = xp.stack([0 * c + _count_of_atoms(part.count) for part in parts])[decisive]
    # If there is only one loss, the window has no width.
    least = xp.maximum(xp.stack(steps).max(), xp.finfo(c.dtype).eps * (1 + xp.abs(mean)))
    least = xp.maximum((down + up) / (SIZE - 16), least)
    step = grid.step_on_atoms(least, xp.where(masses > 0, distances, 0.0), masses, count)
    offsets = [
        moment[1] if part.losses is None else heaviest + step * xp.round((moment[1] - heaviest) / step)
        for part, moment, (heaviest, _, _) in zip(parts, moments, atoms, strict=True)
    ]
    return Grid(step, offsets, without_derivative(mean - down - (SIZE * step - down - up) / 2))


def _count_of_atoms(count: Any) -> Any:
    """Return how many atoms are added up; a huge number for many releases, whose sums of atoms are smooth."""
    return namespace(count).where(count <= FEW, count, 1e30)


def _reach(parts: RepeatedLosses, c: Any, moments: list[Any], coarse: RepeatedLosses) -> Any:
    """Return how far below and above its mean the tilted sum is, up to a negligible probability (Chernoff)."""
    xp = namespace(c)
    variance = sum(part.count * moment[2] for part, moment in zip(parts, moments, strict=True))
    deviation = xp.sqrt(xp.maximum(variance, xp.finfo(c.dtype).tiny ** 0.5))
    slopes = xp.concatenate([like(_SLOPES, c) / deviation, like(_SHARES, c) * c])
    both = xp.stack([-slopes, slopes])
    bounds = most = 0.0
    for part, few, (value, mean, _) in zip(parts, coarse, moments, strict=True):
        bounds = bounds + part.count * (few.log_moment(c + both) - value - both * mean)
        most = most + part.count * xp.stack([part.largest_loss(-1) + mean, part.largest_loss(1) - mean])
    return xp.minimum(((bounds + _BEYOND) / slopes).min(-1), most)


def least_step(part: RepeatedLoss, c: Real, log_scale: Real) -> Real:
    """Return the mean width of outcomes that are no atoms: a step that is wide enough to smooth them out."""
    if part.losses is None:
        return 0 * c
    xp = namespace(c, part.losses.p)
    mass = grid.tilted(part.losses, c, log_scale)[0] * (part.losses.width > 0)
    total = mass.sum()
    return xp.where(total > 0, (mass * part.losses.width).sum() / xp.where(total > 0, total, 1.0), 0.0)
