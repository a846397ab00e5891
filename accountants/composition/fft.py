"""Composition by the fast Fourier transform (FFT) on a grid, with gradients, for any mechanism and number of releases.

The tilted losses of one release are distributed on a grid that contains its heaviest atoms (see ``interpolation``). The
n-th power of their transform is that of n releases. With g the masses of the sum S, tilted by e^(c S), at the grid
points s_k,

    delta(eps) = e^(K(c) - c eps) sum over s_k > eps of g_k e^(-c x) (1 - e^-x),    x = s_k - eps,

which is exact if S has only atoms on the grid. All other masses, except for outcomes very close to an atom, are smooth
on the scale of h. For smooth masses the sum is a quadrature of a function with a kink at eps, which the Euler-Maclaurin
formula corrects. The result then varies with eps, and with every parameter, as the true value does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from accountants.composition.base import ComposedProfile
from accountants.composition.interpolation import (
    COEFFICIENTS,
    POINTS,
    GridInterpolation,
    heaviest_atoms,
    interpolate_on_grid,
    lagrange_weights,
    step_on_atoms,
    taylor_shift,
)
from accountants.composition.repeated import LossTuple, TiltedLoss, integer_power, least_step, traced_integer_power
from accountants.composition.tilted_direction import MAX_SAMPLED_RELEASES, Direction, TiltedComposer, tilt_losses
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels.numerics import Boolean, Real, RealArray, cast_like, namespace, without_derivative
from dpkernels.pytrees import PyTree, pytree
from dpkernels.shapes import Float, Inexact, Int

SIZE = 1 << 13  # The points of the grid, a power of 2 for the transform.
_NEGLIGIBLE_LOG = 41.0  # -log of the tilted mass beyond the window.
_SLOPES = np.geomspace(0.125, 16.0, 8)  # The slopes that Chernoff bounds try, over one per standard deviation,
_TILT_SHARES = np.array([0.3, 0.9])  # and others, as shares of the tilt c.
_MIN_TRANSFORM = 1e-100  # The size up to which a transform counts as 0 and has no logarithm.
_MAX_EPSILON_ERROR = 1e-5  # The relative error of eps from which on it is not resolved in floating point.
_STEP_ATOMS = 5  # The atoms beside the heaviest one that decide the step.


class _LossOnGrid(NamedTuple):
    """A repeated loss on the grid."""

    tilted: TiltedLoss  # The repeated loss, tilted.
    interpolation: GridInterpolation | None  # Its interpolation on the grid; None for Gaussian noise.
    # The transforms of all its masses, and of the lumped ones if there may be some; for Gaussian noise the logarithm.
    spectrum: tuple[Any, ...]
    offset: Real  # Its grid point.

    def powers(self) -> list[Inexact[RealArray, " frequencies"]]:
        count = self.tilted.term.count
        xp = namespace(*self.spectrum, count)
        if self.interpolation is None:
            return [xp.exp(count * row) for row in self.spectrum]
        if xp is np and count == np.floor(count):
            return [integer_power(row, int(count)) for row in self.spectrum]
        if self.tilted.term.is_whole:
            return list(traced_integer_power(xp.stack(self.spectrum), count))
        return [xp.where(xp.abs(row) > _MIN_TRANSFORM, xp.exp(count * _log(row)), 0.0) for row in self.spectrum]


class _Evaluation(NamedTuple):
    """The sums at one eps."""

    epsilon: Real
    kink_weights: Float[RealArray, "2 6"]  # Weights of the smooth masses around eps, in delta and in minus its slope.
    index_below: Int[RealArray, ""]  # The index of the grid point below eps.
    sums: Float[RealArray, "2"]  # The tilted delta and minus its slope.


@pytree
@dataclass(frozen=True)
class ComposedPLD(ComposedProfile):
    """The distribution of the composed privacy loss on a grid."""

    start: Real  # The first grid point.
    step: Real  # h.
    g: Float[RealArray, " points"]  # The tilted masses, of sum about 1.
    # The part of g that is neither a sum of atoms on the grid nor crowded next to one.
    smooth: Float[RealArray, " points"]
    tilt: Float[RealArray, ""]  # c.
    log_scale: Float[RealArray, ""]  # K(c).
    first: Float[RealArray, ""]  # The number of the first grid point.
    spectrum: list[Any]  # The transforms of all masses, and of the sums of lumped ones if there may be some.
    losses: tuple[_LossOnGrid, ...]  # The losses that are composed.
    # e^(-c x) (1 - e^-x) and e^(-(c+1) x) at x = k h for k from 0; JAX arrays have as many zeros before them.
    tail_weights: Float[RealArray, "2 distances"]
    # The weights of the Taylor coefficients of smooth masses, by powers of t; see ``_euler_maclaurin_weights``.
    kink_coefficients: Float[RealArray, "powers 6"]

    def empty(self) -> _Evaluation:
        xp = namespace(self.g)
        pair = xp.zeros((2, len(POINTS)), self.g.dtype)
        return _Evaluation(self.tilt, pair, self.tilt.astype(int), pair[:, 0])

    def evaluate(self, epsilon: Real) -> tuple[Real, Real, PyTree]:
        xp = namespace(self.g, epsilon)
        index, position = self._position(epsilon)
        kink_weights = self._kink_weights(xp.clip(position - index, 0.0, 1.0))
        sums = self._at_distance(index, position, self._sums_above(index)) + (
            kink_weights * _slice(self.smooth, index - 2, len(POINTS))
        ).sum(-1)
        possible = ~(sums[0] <= 0)  # NaN stays.
        value = xp.where(possible, sums[0], 1.0)
        log_delta = self.log_scale - self.tilt * epsilon + xp.where(possible, xp.log(value), -np.inf)
        return (log_delta, xp.where(possible, -sums[1] / value, 0.0), _Evaluation(epsilon, kink_weights, index, sums))

    def _sums_above(self, index: Int[RealArray, ""]) -> Any:
        """Return the sums of weighted masses above eps as if eps were a grid point; ``_at_distance`` corrects them."""
        if namespace(self.g) is np:
            g = self.g[index + 1 :]
            return [(g * row[: len(g)]).sum() for row in self.tail_weights]
        return (self.g * self._weights_above(index)).sum(-1)

    def _weights_above(self, index: Int[RealArray, ""]) -> Float[RealArray, "2 points"]:
        weights = self.tail_weights
        return _slice(weights if weights.shape[-1] > SIZE else _padded(weights), SIZE - 1 - index, SIZE)

    def _at_distance(self, index: Int[RealArray, ""], position: Real, weights: Any) -> Float[RealArray, " 2 *points"]:
        """Return the weights, or sums by them, for the true distance from eps to the first grid point above it."""
        xp, (delta, slope) = namespace(position, weights), weights
        x = xp.maximum((index + 1 - position) * self.step, 0.0)
        fall = xp.where(position <= SIZE - 3, xp.exp(-self.tilt * x), 0.0)  # Nothing is above the window.
        return xp.stack([fall * (delta - xp.expm1(-x) * slope), fall * xp.exp(-x) * slope])

    def _position(self, epsilon: Real) -> tuple[Int[RealArray, ""], Real]:
        xp = namespace(self.g, epsilon)
        position = (epsilon - self.start) / self.step
        return xp.clip(xp.floor(position), 2, SIZE - 4).astype(int), position

    def _kink_weights(self, s: Float[RealArray, ""]) -> Float[RealArray, "2 6"]:
        """Return the weights of the smooth masses around eps in the corrections of delta and of minus its slope."""
        xp = namespace(self.g, s)
        # Each row, and its derivative in s, by one product.
        powers = xp.stack([xp.power(1 - s, _POWERS), -_POWERS * xp.power(1 - s, np.maximum(_POWERS - 1, 0))])
        taylors = (powers[..., None] * self.kink_coefficients).sum(1)
        shift, shift_slope = taylor_shift(s)
        changes = xp.stack([0 * taylors[0], taylors[0]])[..., None] * shift_slope
        kinks, slopes = (taylors[..., None] * shift + changes).sum(1)
        rows = xp.stack([kinks, self.tilt * kinks - slopes / self.step])
        return (rows[..., None] * cast_like(COEFFICIENTS, self.g)).sum(1)

    def is_resolved(self, epsilon: Real, value: Real, slope: Real, rounding_rtol: Real) -> Boolean:
        """Return whether eps is resolved, given the rounding errors of the tilted masses, of which delta is a sum."""
        xp = namespace(value)
        tilted_slope = -slope * xp.exp(value - self.log_scale + self.tilt * epsilon)
        return rounding_rtol < _MAX_EPSILON_ERROR * tilted_slope * xp.maximum(xp.abs(epsilon), self.step)

    def gradient(self, evaluation: _Evaluation) -> tuple[LossTuple, Real]:
        """Return the derivatives of delta, a homogeneous polynomial of the masses, as one correlation.

        The derivative in the mass p of a loss l is n delta(eps - l) of n - 1 releases. That in l itself is n p times
        minus the slope of this delta.
        """
        xp = namespace(self.g)
        value, slope = evaluation.sums
        scale = xp.exp(self.log_scale - self.tilt * evaluation.epsilon)
        index, position = self._position(evaluation.epsilon)
        weights = self._at_distance(index, position, self._weights_above(index))
        spread = _embedded(evaluation.kink_weights, index - 2, weights.shape[-1])
        # Weights of all masses, and of lumped masses, if there may be some, without the weights of the smooth masses.
        weights = xp.stack([weights + spread, -spread][: len(self.spectrum)], 1)
        weights = xp.fft.rfft(xp.roll(weights, self.first.astype(int), -1))
        derivatives = []
        for on_grid in self.losses:
            term = on_grid.tilted.term
            if on_grid.interpolation is None:
                weights_at_epsilon = lagrange_weights(xp.clip(position - index, 0.0, 1.0)[None])[:, 0]
                density = _slice(self.smooth, index - 2, len(POINTS)) @ weights_at_epsilon / self.step
                by_mu, by_count = scale * term.count * term.mu * density, scale * term.mu**2 / 2 * density
                derivatives.append(replace(term, mu=by_mu, count=by_count))
                continue
            # The derivative in the power of the transform.
            power, spectrum = xp.stack(self.spectrum), xp.stack(on_grid.spectrum[: len(self.spectrum)])
            terms = xp.real(xp.conj(weights[0]) * power * _log(spectrum)) * cast_like(_FREQUENCIES, self.tilt)
            by_power = terms[:, :-1].sum() + terms[:, -1].sum()
            by_count = on_grid.tilted.log_scale * value + on_grid.offset * (slope - self.tilt * value) + by_power
            possible = xp.abs(spectrum) > _MIN_TRANSFORM
            power_without_factor = xp.where(possible, power / xp.where(possible, spectrum, 1.0), 0.0)
            by_mass = xp.conj(power_without_factor) * weights
            by_mass = xp.fft.irfft(xp.concatenate([by_mass[0], by_mass[1].sum(0, keepdims=True)]), SIZE)
            losses = self._by_losses(on_grid, by_mass, scale * term.count)
            derivatives.append(replace(term, losses=losses, mu=0.0 * term.mu, count=scale * by_count))
        return tuple(derivatives), -scale * slope

    def _by_losses(
        self, on_grid: _LossOnGrid, by_mass: Float[RealArray, "spectra points"], scale: RealArray
    ) -> PrivacyLossDistribution:
        """Return derivatives in masses and losses; for an atom on the grid, that in its loss is a sum, not a slope."""
        xp = namespace(by_mass)
        interpolation = cast(GridInterpolation, on_grid.interpolation)
        p = cast(PrivacyLossDistribution, on_grid.tilted.term.losses).p
        at_atoms = by_mass[1] if len(by_mass) > 2 else xp.zeros_like(by_mass[0])
        inner, by_step = interpolation.interpolate(by_mass[0], at_atoms)
        by_loss = xp.where(
            interpolation.on_grid,
            by_mass[-1][interpolation.index_below % SIZE],
            self.tilt * inner + by_step / self.step,
        )
        mass, has_mass = scale * interpolation.mass, interpolation.mass > 0
        by_p = xp.where(has_mass, mass / xp.where(has_mass, p, 1.0) * inner, 0.0)
        return PrivacyLossDistribution(by_p, 0.0 * p, mass * by_loss, 0.0 * p)


# How often a frequency of the half transform occurs in the whole one, over its length.
_FREQUENCIES = np.concatenate([[1.0], np.full(SIZE // 2 - 1, 2.0), [1.0]]) / SIZE
_TERMS = 18  # Terms of the correction: each is about (c + 1) h / (2 pi) times the previous one.
# Integers, as in ``taylor_shift``: s is 0 where eps is on the grid.
_ORDERS = np.arange(_TERMS)  # The orders of derivatives at eps.
_POWERS = np.arange(_TERMS + 1)  # The powers of t in Bernoulli polynomials.
_SIGNS = (-1.0) ** _ORDERS / np.cumprod([1.0, *range(1, _TERMS)])  # (-1)^j/j!.
# Entry (m, j) of a product's coefficients: the coefficient of one factor that belongs to coefficient j of the other.
_ALONG = np.maximum(np.arange(_TERMS)[:, None] - np.arange(len(POINTS)), 0).astype(np.int32)
_PRESENT = np.arange(_TERMS)[:, None] >= np.arange(len(POINTS))


def _bernoulli_polynomials() -> Float[np.ndarray, "orders powers"]:
    """Return the coefficients of the Bernoulli polynomials B_n(t), n = 0 to ``_TERMS``, by powers of t, in rows."""
    numbers = [Fraction(1)]
    for n in range(1, _TERMS + 1):
        numbers.append(-sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0)) / (n + 1))
    rows = [[math.comb(n, j) * numbers[n - j] if j <= n else 0 for j in range(_TERMS + 1)] for n in range(_TERMS + 1)]
    return np.array(rows, float)


_BERNOULLI = _bernoulli_polynomials()[2:] / _POWERS[2:, None]  # B_n(t)/n for n from 2.


def _euler_maclaurin_weights(c: Float[RealArray, ""], step: Real) -> Float[RealArray, "powers 6"]:
    """Return the weights of Taylor coefficients in the correction of smooth masses at the kink, by powers of t.

    The correction is the sum of B_j(t)/j! F^(j-1)(0) over j from 2, where F(y) = smooth(y) phi(h y) in steps y from
    eps, and phi is the weight. t is the distance from eps to the next grid point. Masses are interpolated.
    """
    power = namespace(c).power
    fall = (power(c * step, _ORDERS) - power((c + 1) * step, _ORDERS)) * cast_like(_SIGNS, c)
    # These are the derivatives of the product at eps over j!, from those of both factors.
    products = (fall[_ALONG] * _PRESENT)[1:]
    return (cast_like(_BERNOULLI, c)[..., None] * products[:, None]).sum(0)


def _weights(c: Float[RealArray, ""], step: Real) -> Float[RealArray, "2 distances"]:
    """Return ``ComposedPLD.tail_weights``, from products of short tables."""
    xp = namespace(c)
    size = 1 << (SIZE.bit_length() // 2)
    rows, columns = np.arange(0, SIZE, size), np.arange(size)
    x = step * cast_like(np.concatenate([rows, columns]), c)
    by_c, by_one = xp.exp(-x * xp.stack([c, xp.ones_like(c)])[:, None])
    lost, number = -xp.expm1(-x), len(rows)
    falling = by_c[:number, None] * by_c[number:]
    weights = xp.stack(
        [
            falling * (lost[:number, None] + by_one[:number, None] * lost[number:]),
            falling * (by_one[:number, None] * by_one[number:]),
        ]
    ).reshape(2, SIZE)
    return weights if xp is np else _padded(weights)


def _padded(weights: Float[RealArray, "2 points"]) -> Float[RealArray, "2 distances"]:
    return namespace(weights).pad(weights, ((0, 0), (SIZE, 0)))


def _log(spectrum: Inexact[RealArray, "*spectra frequencies"]) -> Inexact[RealArray, "*spectra frequencies"]:
    """Return the logarithm of a transform, 0 where it has none."""
    xp = namespace(spectrum)
    return xp.log(xp.where(xp.abs(spectrum) > _MIN_TRANSFORM, spectrum, 1.0))


def _slice(
    values: Float[RealArray, "*rows points"], start: Int[RealArray, ""], size: int
) -> Float[RealArray, "*rows {size}"]:
    """Return ``size`` values from ``start`` along the last axis."""
    if namespace(values) is np:
        return values[..., start : start + size]
    return jax.lax.dynamic_slice_in_dim(values, start, size, -1)


def _embedded(
    values: Float[RealArray, "*rows points"], start: Int[RealArray, ""], size: int
) -> Float[RealArray, "*rows {size}"]:
    """Return zeros along the last axis with the values from ``start`` on."""
    xp = namespace(values)
    zeros = xp.zeros((*values.shape[:-1], size), values.dtype)
    if xp is np:
        zeros[..., start : start + values.shape[-1]] = values
        return zeros
    return jax.lax.dynamic_update_slice(zeros, values, (0 * start, start))


class Grid(NamedTuple):
    """The step, a grid point next to each part's mean (for a Gaussian its mean), and the lower end of the window."""

    step: Float[RealArray, ""]
    offsets: list[Real]
    window_start: np.ndarray


def compose(tilted: Sequence[TiltedLoss], c: Float[RealArray, ""], grid: Grid) -> ComposedPLD:
    """Return the distribution of the sum of all losses; the tilt c and the grid affect the precision only."""
    xp, step = namespace(c), grid.step
    terms = []
    start = log_scale = 0.0 * c
    for loss, offset in zip(tilted, grid.offsets, strict=True):
        term = loss.term
        start, log_scale = start + term.count * offset, log_scale + term.count * loss.log_scale
        if term.losses is None:
            frequency = 2 * np.pi * xp.arange(SIZE // 2 + 1, dtype=c.dtype) / SIZE
            log_spectrum = -((frequency * term.mu / step) ** 2) / 2
            # No mass is lumped: the second transform is 0.
            interpolation, spectrum = None, (log_spectrum,) if xp is np else (log_spectrum, log_spectrum - np.inf)
        else:
            interpolation = interpolate_on_grid(term.losses, loss.mass, offset, step, SIZE, _count_of_atoms(term.count))
            spectrum = tuple(map(xp.fft.rfft, interpolation.masses(SIZE)))
        terms.append(_LossOnGrid(loss, interpolation, spectrum, offset))
    first = xp.floor((grid.window_start - start) / step)
    # Sums are lumped if all of their parts are.
    spectra = [math.prod(rows) for rows in zip(*(on_grid.powers() for on_grid in terms), strict=False)]
    g, *lumped = (xp.roll(xp.fft.irfft(row, SIZE), -first.astype(int)) for row in spectra)
    smooth, weights = (g - lumped[0] if lumped else g), _weights(c, step)
    start = start + first * step
    return ComposedPLD(
        start, step, g, smooth, c, log_scale, first, spectra, tuple(terms), weights, _euler_maclaurin_weights(c, step)
    )


def choose_grid(tilted: Sequence[TiltedLoss], c: Float[RealArray, ""], coarse: LossTuple) -> Grid:
    """Return a grid whose window contains the sum, with the two heaviest atoms a whole number of steps apart.

    The step is not smaller than the width of single outcomes, except for parts that are sampled on the grid later. The
    window is computed from ``coarse``, the same losses with fewer nodes.
    """
    xp = namespace(c)
    mean = sum(loss.term.count * loss.mean for loss in tilted)
    lower_reach, upper_reach = without_derivative(_reach(tilted, c, coarse))
    zeros = xp.zeros(_STEP_ATOMS, c.dtype)
    atoms = [
        (0 * c, zeros, zeros) if loss.term.losses is None else heaviest_atoms(loss.term.losses, loss.mass, _STEP_ATOMS)
        for loss in tilted
    ]
    counts = [_count_of_atoms(loss.term.count) for loss in tilted]
    if len(tilted) == 1:
        (_, distances, masses), (count,) = atoms[0], counts
    else:
        weights = xp.stack([loss.term.count * masses[0] for loss, (_, _, masses) in zip(tilted, atoms, strict=True)])
        decisive = weights.argmax()
        _, distances, masses = (xp.stack(column)[decisive] for column in zip(*atoms, strict=True))
        count = xp.stack([0 * c + count for count in counts])[decisive]
    # If there is only one loss, the window has no width.
    least = least_step([loss for loss in tilted if loss.term.source is None], c)
    least = xp.maximum(least, xp.finfo(c.dtype).eps * (1 + xp.abs(mean)))
    least = xp.maximum((lower_reach + upper_reach) / (SIZE - 16), least)
    step = step_on_atoms(least, xp.where(masses > 0, distances, 0.0), masses, count)
    offsets = [
        loss.mean if loss.term.losses is None else heaviest + step * xp.round((loss.mean - heaviest) / step)
        for loss, (heaviest, _, _) in zip(tilted, atoms, strict=True)
    ]
    return Grid(step, offsets, without_derivative(mean - lower_reach - (SIZE * step - lower_reach - upper_reach) / 2))


def _count_of_atoms(count: Real) -> RealArray:
    """Return how many atoms are added up; a huge number for many releases, whose sums of atoms are smooth."""
    return namespace(count).where(count <= MAX_SAMPLED_RELEASES, count, 1e30)


def _reach(tilted: Sequence[TiltedLoss], c: Float[RealArray, ""], coarse: LossTuple) -> Float[RealArray, "2"]:
    """Return how far below and above its mean the tilted sum is, up to a negligible probability (Chernoff)."""
    xp = namespace(c)
    variance = sum(loss.term.count * loss.variance for loss in tilted)
    deviation = xp.sqrt(xp.maximum(variance, xp.finfo(c.dtype).tiny ** 0.5))
    slopes = xp.concatenate([cast_like(_SLOPES, c) / deviation, cast_like(_TILT_SHARES, c) * c])
    shifts = xp.stack([-slopes, slopes])
    bounds = largest = 0.0
    for loss, coarse_term in zip(tilted, coarse, strict=True):
        term, mean = loss.term, loss.mean
        bounds = bounds + term.count * (coarse_term.log_moment(c + shifts) - loss.log_scale - shifts * mean)
        largest = largest + term.count * xp.stack([term.largest_loss(-1) + mean, term.largest_loss(1) - mean])
    return xp.minimum(((bounds + _NEGLIGIBLE_LOG) / slopes).min(-1), largest)


@pytree
@dataclass(frozen=True)
class LossesOnGrid(TiltedComposer):
    """Losses that are distributed over a grid."""

    @classmethod
    def applies(cls, direction: Direction) -> bool:
        return True

    def profile(self, prepared: LossTuple, direction: Direction) -> ComposedProfile:
        tilted, tilt = tilt_losses(prepared, self.tilt)
        return compose(tilted, tilt, choose_grid(tilted, tilt, direction.tilt.losses))

    def compose(self, direction: Direction) -> tuple[ComposedProfile, Real]:
        capped, infinite = direction.capped
        return self.profile(capped, direction), infinite
