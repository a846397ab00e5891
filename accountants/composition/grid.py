"""Privacy losses on a grid: masses at grid points that integrate smooth functions of the loss as the losses do.

An outcome of loss l is distributed over the six grid points around it with the weights of Lagrange interpolation. The
sum over the grid of a smooth f is then that of the interpolated f, with an error of h^6 f^(6). The weights of linear
interpolation connect the dots (Doroshenko 2022), with an error of h^2 f''. Atoms on the grid stay exact.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from accountants.closed_forms.pure import decayed
from accountants.privacy_loss import PrivacyLossDistribution, join, panel_rule
from dpkernels.numerics import Real, add_at, like, namespace, special_functions, without_derivative
from dpkernels.pytrees import pytree

# Grid points of an outcome, relative to the one below it, and the coefficients of their weights in powers of the
# distance of the outcome from that point.
POINTS = np.arange(-2, 4)
COEFFICIENTS = np.array(
    [np.poly(np.delete(POINTS, j))[::-1] / np.prod(POINTS[j] - np.delete(POINTS, j)) for j in range(len(POINTS))]
).T
# Row n has the coefficients of the derivative, in powers of the position, from those of the polynomial.
_DERIVATIVE = COEFFICIENTS[1:] * np.arange(1, len(POINTS))[:, None]
_CHOICES = np.array([[math.comb(j, k) for j in range(len(POINTS))] for k in range(len(POINTS))], float)
_EXPONENTS = np.arange(len(POINTS)) - np.arange(len(POINTS))[:, None]
# Outcomes are crowded if one step of outcomes as dense would have a larger share of all mass.
_CROWDED = 0.003
# For several pairs: the size of the grid, the relative difference up to which profiles are equal, and the ratio to its
# neighbours from which on a mass is an atom.
_SIZE, _SAME, _ATOM = 1 << 14, 1e-11, 20.0


def tilted(nodes: PrivacyLossDistribution, c: Real, log_scale: Real) -> tuple[Any, Any]:
    """Return masses under p times e^(c l - log_scale), and losses; both are 0 where the loss is infinite."""
    log_p, loss = nodes.finite
    return namespace(log_p).exp(log_p + c * loss - log_scale), loss


@pytree
@dataclass(frozen=True)
class GridInterpolation:
    """Outcomes, distributed over the grid points around them.

    Attributes:
        mass: the tilted masses of the outcomes.
        on_grid: whether an outcome is an atom on the grid.
        lumped: whether an outcome is such an atom or crowded next to one, as the losses of samples may be on a scale
            that no grid resolves.
        index: the entries of the grid, of shape (6, n).
        above: the distance from the third of these, in steps.
    """

    mass: Any
    on_grid: Any
    lumped: Any
    index: Any
    above: Any

    def masses(self, size: int) -> Any:
        """Return (all tilted masses on the grid, those of lumped outcomes), of shape (2, size)."""
        xp = namespace(self.mass)
        both = xp.stack([self.mass, xp.where(self.lumped, self.mass, 0.0)], -1)
        return add_at(size, self.index, both * interpolation(self.above)[..., None]).T

    def interpolate(self, grid: Any, at_atoms: Any) -> tuple[Any, Any]:
        """Return the values of a function on the grid at all outcomes, and its derivative in the step.

        For lumped outcomes the function is the sum of both arguments.
        """
        xp = namespace(grid)
        around = xp.stack([grid, grid + at_atoms])[self.lumped.astype(int), self.index]
        return (interpolation(self.above) * around).sum(0), (_interpolation_slope(self.above) * around).sum(0)


def interpolation(above: Any) -> Any:
    """Return the weights of Lagrange interpolation, of shape (6, n)."""
    return _horner(COEFFICIENTS, above)


def _interpolation_slope(above: Any) -> Any:
    return _horner(_DERIVATIVE, above)


def _horner(rows: np.ndarray, above: Any) -> Any:
    value: Any = 0.0
    for row in like(rows, above)[::-1]:
        value = value * above + row[:, None]
    return value


def taylor_shift(s: Any) -> Any:
    """Return the matrix that turns a polynomial's coefficients at 0 into those at s; of the degree of ``POINTS``."""
    # Exponents are integers: the JAX derivative of a power of 0 with the float exponent 0 is NaN.
    return namespace(s).power(s, np.maximum(_EXPONENTS, 0)) * like(np.where(_EXPONENTS >= 0, _CHOICES, 0.0), s)


def taylor_shift_slope(s: Any) -> Any:
    """Return the derivative of ``taylor_shift`` in s."""
    factors = np.maximum(_EXPONENTS, 0) * _CHOICES
    return namespace(s).power(s, np.maximum(_EXPONENTS - 1, 0)) * like(factors, s)


def share_on_grid(
    nodes: PrivacyLossDistribution, c: Any, log_scale: Any, offset: Any, step: Any, size: int
) -> GridInterpolation:
    """Return tilted masses distributed over the grid points offset + k step, entry k modulo ``size``."""
    xp = namespace(nodes.loss, step)
    mass, loss = tilted(nodes, c, log_scale)
    place = (loss - offset) / step
    nearest = xp.round(place)
    on_grid = (nodes.width == 0) & (mass > 0) & (xp.abs(place - nearest) <= xp.finfo(place.dtype).eps ** 0.45)
    point = xp.mod(nearest, size).astype(int)
    crowded = mass * step > _CROWDED * nodes.width
    lumped = crowded & (add_at(size, point, on_grid.astype(mass.dtype)) > 0)[point]
    below = xp.where(on_grid, nearest, xp.floor(place))
    index = xp.mod(below + like(POINTS, below)[:, None], size).astype(int)
    return GridInterpolation(mass, on_grid, lumped, index, xp.where(on_grid, 0.0, place - below))


def heavy_atoms(nodes: PrivacyLossDistribution, c: Any, log_scale: Any) -> tuple[Any, Any, Any]:
    """Return (the loss of the heaviest atom, the distance of the second, the tilted mass of the second)."""
    mass, loss = tilted(nodes, c, log_scale)
    xp = namespace(mass)
    mass = xp.where(nodes.width == 0, mass, 0.0)
    heaviest = loss[mass.argmax()]
    apart = xp.abs(loss - heaviest)
    mass = xp.where(apart > xp.finfo(loss.dtype).eps ** 0.5 * (1 + xp.abs(heaviest)), mass, 0.0)
    second = mass.argmax()
    return heaviest, apart[second], mass[second]


# Smooth pieces on the grid, all in steps: the distance from the ends at which sampling starts; the width of the
# transition; the distance at which it is complete, 8 of these widths; and the distance of the atom of large losses
# below the largest sampled loss.
_FROM_END, _TRANSITION, _COMPLETE, _ATOM_BELOW = 30.0, 2.0, 16.0, 40.0
CAP_MARGIN = _ATOM_BELOW + 20.0
# Panels of quadrature at either end, in the transition, and of a piece that is too short to be sampled.
_END_PANELS, _TRANSITION_PANELS, _SHORT_PANELS = 48, 16, 256
# Coefficients of the central difference of order 8.
_DIFFERENCE = np.array([3, -32, 168, -672, 0, 672, -168, 32, -3]) / 840
# The tilted mass below which the lowest outcomes are not sampled.
_NEGLIGIBLE = 1e-19
_MOST_SAMPLES = 1 << 17


def sample_on_grid(
    smooth: PrivacyLossDistribution, nodes: PrivacyLossDistribution, c: Any, grid: tuple[Any, Any, Any]
) -> Any:
    """Return outcomes whose loss density is smooth on the grid; plain numbers only.

    With few releases, quadrature nodes whose spacing exceeds the step are visible at the kink of the hockey-stick
    divergence. Inside each piece the outcomes are therefore samples of the loss density at the grid points, which
    integrate smooth functions up to rounding. Smooth transitions lead to quadrature nodes at the ends of the piece,
    where losses on samples are crowded. Losses above the cap are gathered into an atom, as by ``capped``, part by part.

    Args:
        smooth: atoms and invertible pieces.
        nodes: the same distribution as outcomes.
        c: the tilt.
        grid: a grid point, the step, and the cap.
    """
    offset, step, cap = grid
    log_p, loss = nodes.finite
    size = log_p + c * loss
    mass = np.exp(size - size.max())
    order = np.argsort(loss)
    total = np.cumsum(mass[order])
    lowest = loss[order][min(np.searchsorted(total, _NEGLIGIBLE * total[-1]), len(loss) - 1)]
    parts = [PrivacyLossDistribution(smooth.p, smooth.q, smooth.loss, smooth.width)]
    for pieces in smooth.pieces:
        for number in np.flatnonzero(pieces.right > pieces.left):
            parts += _sample_piece(_Piece(pieces, number), offset, step, cap, lowest)
    return join(parts).pruned().padded().capped(cap - _ATOM_BELOW * step)


class _Piece(NamedTuple):
    """One of several smooth pieces."""

    pieces: Any
    number: Any

    def outcomes(self, x: Any, width: Any, loss: Any, spacing: Any) -> PrivacyLossDistribution:
        p, q = (width * np.exp(log(x, self.number)) for log in (self.pieces.log_p, self.pieces.log_q))
        return PrivacyLossDistribution(p, q, loss, spacing + 0.0 * loss)

    def nodes(self, start: Any, end: Any, panels: int) -> PrivacyLossDistribution:
        share, weight = panel_rule(panels, np.zeros(1), dense=True)
        x = start + (end - start) * share
        loss = self.pieces.loss(x, self.number)
        return self.outcomes(x, abs(end - start) * weight, loss, np.abs(np.gradient(loss)))


def _sample_piece(piece: _Piece, offset: Any, step: Any, cap: Any, lowest: Any) -> list[PrivacyLossDistribution]:
    left, right = (end[piece.number] for end in (piece.pieces.left, piece.pieces.right))
    inset = 1e-14 * (right - left)
    ends = piece.pieces.loss(np.array([left + inset, right - inset]), piece.number)
    low = ends.min() + _FROM_END * step
    high = min(ends.max() - _FROM_END * step, cap - (_ATOM_BELOW - _COMPLETE) * step)
    reach = _COMPLETE * step
    if not high - low > 2 * _COMPLETE * step:
        return [piece.nodes(left, right, _SHORT_PANELS)]

    def share(loss: Any) -> Any:
        ndtr = special_functions(loss).ndtr
        return ndtr((loss - low) / (_TRANSITION * step)) * ndtr((high - loss) / (_TRANSITION * step))

    first, last = np.ceil((max(low - reach, lowest) - offset) / step), np.floor((high + reach - offset) / step)
    if not 0 <= last - first <= _MOST_SAMPLES:
        return [piece.nodes(left, right, _SHORT_PANELS)]
    loss = offset + step * np.arange(first - 4, last + 5)
    x = piece.pieces.inverse(loss, piece.number)
    width, x, loss = np.abs(np.convolve(x, _DIFFERENCE, "valid")), x[4:-4], loss[4:-4]
    found = [piece.outcomes(x, width * share(loss), loss, step)]
    start, end = (left, right) if ends[0] < ends[1] else (right, left)
    cuts = piece.pieces.inverse(np.array([low - reach, low + reach, high - reach, high + reach]), piece.number)
    for x0, x1, panels in (
        (start, cuts[0], _END_PANELS),
        (cuts[0], cuts[1], _TRANSITION_PANELS),
        (cuts[2], cuts[3], _TRANSITION_PANELS),
        (cuts[3], end, _END_PANELS),
    ):
        nodes = piece.nodes(x0, x1, panels)
        rest = 1 - share(nodes.loss)
        found.append(dataclasses.replace(nodes, p=nodes.p * rest, q=nodes.q * rest))
    return found


def step_on_atoms(least: Real, gap: Real) -> Any:
    """Return a step of at least ``least`` that divides the gap of two atoms, by an even number if possible.

    A third atom in the middle, such as one without loss between two opposite atoms, is then on the grid. If the gap is
    smaller than ``least``, the step is ``least``.
    """
    xp = namespace(least, gap)
    least = without_derivative(least)
    many = without_derivative(gap) / least
    whole = xp.where(many >= 2, 2 * xp.floor(many / 2), 1.0)
    return xp.where(many >= 1, gap / whole, least)


def profile_on_grid(masses: Real, c: Any, step: Any) -> tuple[Any, Any]:
    """Return (T, B) of masses w tilted by e^(c l), from the largest loss down, as sums of positive terms.

    T_k = e^(-c h) (T_(k-1) + (1 - e^-h) B_(k-1)) is the tilted profile at grid point k, and
    B_k = w_k + e^(-(c+1) h) B_(k-1).
    """
    xp = namespace(masses, step)
    B = decayed(masses, (c + 1) * step)
    return decayed(-xp.exp(-c * step) * xp.expm1(-step) * _next(B), c * step), B


def _next(values: Any) -> Real:
    xp = namespace(values)
    return xp.concatenate([xp.zeros_like(values[:1]), values[:-1]])


def pointwise_maximum(several: list[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    """Return outcomes whose profile is the maximum of several profiles, by connecting their dots on a grid.

    It is never below that maximum, and exceeds it by about the square of a step. A single profile is returned as it is.
    """
    if len(several) == 1:
        return several[0]
    whole = join(several)
    xp = namespace(whole.loss)
    loss = whole.finite[1]
    lowest, atoms = loss.min(), heavy_atoms(whole, 0.0, 0.0)
    # If there is only one loss, the grid has no width.
    least = xp.maximum((loss.max() - lowest) / (_SIZE - 4), xp.finfo(loss.dtype).eps * (1 + xp.abs(lowest)))
    step = step_on_atoms(least, atoms[1])
    offset = atoms[0] - step * without_derivative(xp.floor((atoms[0] - lowest) / step) + 1)
    masses = [_connect_dots(one, offset, step)[::-1] for one in several]
    profile = first = profile_on_grid(masses[0], 0.0, step)[0]
    for other in masses[1:]:
        there = profile_on_grid(other, 0.0, step)[0]
        profile = xp.where(there > profile * (1 + _SAME), there, profile)
    p = xp.maximum(masses[0] + _masses_of_profile(profile - first, step), 0.0)[::-1]
    grid = offset + step * like(np.arange(_SIZE), step)
    width = xp.where(p > _ATOM * (xp.roll(p, 1) + xp.roll(p, -1)), 0.0, step)
    infinite = xp.stack([xp.where(one.loss == np.inf, one.p, 0.0).sum() for one in several]).max(keepdims=True)
    finite = PrivacyLossDistribution(p, p * xp.exp(-grid), grid, width)
    return join([finite, PrivacyLossDistribution(infinite, 0 * infinite, infinite + np.inf, 0 * infinite)])


def _connect_dots(nodes: PrivacyLossDistribution, offset: Real, step: Any) -> Any:
    """Return masses on a grid: every outcome is split between two points, keeping its masses under p and q."""
    mass, loss = tilted(nodes, 0.0, 0.0)
    xp = namespace(loss, step)
    place = (loss - offset) / step
    below = without_derivative(xp.floor(place + xp.finfo(place.dtype).eps ** 0.45))
    up = mass * xp.expm1((below - place) * step) / xp.expm1(-step)
    index = xp.clip(below, 0, _SIZE - 2).astype(int)
    return add_at(_SIZE, index, mass - up) + add_at(_SIZE, index + 1, up)


def _masses_of_profile(profile: Any, step: Any) -> Any:
    """Return the masses that have this profile on the grid, from the largest loss down."""
    xp = namespace(profile, step)
    B = (profile - _next(profile)) / -xp.expm1(-step)
    B = xp.concatenate([B[1:], xp.zeros_like(B[:1])])
    return B - xp.exp(-step) * _next(B)
