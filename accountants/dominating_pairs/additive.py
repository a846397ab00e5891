"""The dominating pair of additive noise: a distribution, and the same distribution a distance further on.

p = f,  q = f(. - D),  l = log p - log q. Any noise whose loss is monotone between known points has an exact profile: on
each piece {l > eps} is an interval, whose end is a root. Noise whose log density is a polynomial of degree 2 at most
between knots, such as Laplace, Gaussian or staircase noise, has closed forms. There l(x) = l(at) + slope (x - at)
between the knots of f and of its shift, and what does not depend on eps is computed once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs import gaussian_integrals
from accountants.dominating_pairs.base import Curve, DominatingPair, cap
from accountants.privacy_loss import FEW, PrivacyLossDistribution, SmoothPieces, join
from dpkernels import checks
from dpkernels.distributions.base import Distribution, PiecewiseExponential
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.staircase import Staircase
from dpkernels.numerics import (
    Real,
    RealArray,
    exponential_moment,
    floating,
    gauss_legendre,
    like,
    namespace,
    without_derivative,
)
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

# The distance, in sigma beyond both means, up to which a Gaussian is integrated, and its total number of panels.
REACH, PANELS = 18.0, 30
# The mass of a Gaussian beyond its reach on both sides: 2 Phi(-18).
_UNSEEN = 2e-72
# Other noise is integrated up to this tail probability on either side; its panels between two quantiles.
_TAIL, _FEW_GENERAL = 1e-40, 2
# Nodes of quadrature, and how much a log density may change over an interval on which they are exact.
(_NODES, _WEIGHTS), _SMOOTH = gauss_legendre(16), 10.0
# Steps of bisection for the point at which the loss is eps.
_BISECTIONS = 60
# Periods of a staircase, on either side, whose steps a pair keeps: under tracing, and at most.
_TRACED_PERIODS, _MOST_PERIODS = 256, 1 << 16
# Errors in units in the last place: of the numbers that eps is computed from, and of the norm of reweighted noise.
_UNITS, _UNITS_REWEIGHTED = 4, 256


@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class AdditivePair(DominatingPair):
    """p = f, q = f(. - 1) or f(. + 1): additive noise under two inputs one unit apart; made by ``additive_pair``.

    Attributes:
        noise: the distribution with density f, in units of the distance of the inputs.
        shift: 1 or -1.
        periods: how many periods of a staircase on either side are kept step by step; the others follow geometrically.
    """

    noise: Distribution
    shift: Any
    periods: int = _TRACED_PERIODS

    @property
    def formulas(self) -> NoiseFormulas:
        """Return the formulas for this kind of noise."""
        return formulas_of(self.noise.unweighted, self)

    @property
    def rounds_up(self) -> bool:
        """Return whether the noise is Gaussian, possibly truncated or recycled."""
        return self.formulas.rounds_up

    def hockey_stick(self) -> Curve:
        return self.formulas.hockey_stick()

    def largest_loss(self) -> Real:
        return self.formulas.largest_loss()

    def privacy_loss(self) -> PrivacyLossDistribution:
        return self.formulas.privacy_loss()

    def mirror(self) -> AdditivePair:
        return AdditivePair(self.noise, -self.shift, self.periods)

    def symmetry_gap(self) -> Any:
        return 0.0 if self.noise.is_even else np.inf

    def with_noise_scaled(self, factor: Real) -> AdditivePair:
        return additive_pair(self.noise, self.shift / factor)

    def check(self) -> None:
        if self.shift not in (1, -1):
            raise ValueError(f"shift: {self.shift}; noise is in units of it, so it is 1 or -1")


def additive_pair(noise: Distribution, shift: Real) -> AdditivePair:
    """Return the pair of additive noise and its shift, with the number of staircase periods that it needs.

    Noise and shift may be in any unit, since only their ratio matters. The shift is the unit of the pair.

    Raises:
        ValueError: a staircase has too many steps within the shift.
    """
    xp = namespace(shift)
    noise, shift = noise.rescale(1.0, xp.abs(shift)), xp.where(shift < 0, -1.0, 1.0)[()]
    return AdditivePair(noise, shift, _periods(noise))


def _periods(noise: Distribution) -> int:
    """Return how many periods of a staircase matter: those within the shift or an edge that are not negligible."""
    steps = noise.unweighted
    if not isinstance(steps, Staircase):
        return _TRACED_PERIODS
    parameters = steps.epsilon, steps.period, *noise.edges
    numbers = [number for number in map(checks.concrete, parameters) if number is not None]
    if len(numbers) < len(parameters):
        return _TRACED_PERIODS
    epsilon, period, *edges = (float(np.max(np.abs(number))) for number in numbers)
    reach = min(max([0.0, *edges]) / period, 120 / epsilon)
    needed = 4 + 2 * math.ceil(1 / period) + math.ceil(reach)
    if needed > _MOST_PERIODS:
        raise ValueError(f"sensitivity: is {1 / period:g} periods of the staircase; at most 30000 are accounted")
    return 1 << max(4, needed - 1).bit_length()


# Any noise


@dataclass(frozen=True)
class NoiseFormulas:
    """The profile and the privacy loss of noise whose loss is monotone between knots, quantiles and turning points.

    This is the general case.

    Attributes:
        pair: the pair.
        rounds_up: whether the computed hockey-stick divergence is an upper bound.
        is_smooth: whether the profiles of the pair and its mirror cross in few places, see ``larger_profile``.
    """

    pair: Any
    rounds_up: ClassVar[bool] = False
    is_smooth: ClassVar[bool] = True

    @property
    def knots(self) -> Any:
        """Return the knots of f."""
        noise = self.pair.noise
        xp = namespace(*jax.tree.leaves(self.pair))
        points = [floating(xp.asarray(k)) for k in (self._own_knots(), *noise.edges)]
        return xp.concatenate([xp.atleast_1d(k) for k in points])

    def _own_knots(self) -> Any:
        """Return the knots of the distribution without weights."""
        return self.pair.noise.unweighted.knots

    def _cuts(self) -> tuple[Any, Any, Any, Any]:
        """Return (left, right, weight of p, weight of q) of pieces with a monotone loss, left to right.

        The first and the last one are infinite.
        """
        noise, D = self.pair.noise, self.pair.shift
        source, xp = noise.unweighted, namespace(*jax.tree.leaves(self.pair))
        own = xp.concatenate([without_derivative(source.quantiles), self.knots])
        turns = [xp.atleast_1d(floating(xp.asarray(point))) for point in source.turning_points(D)]
        ends = xp.sort(xp.concatenate([own, own + D, *turns]))
        inner = inside(*_with_infinity(ends), D)
        return *_with_infinity(ends), noise.weight(inner), noise.weight(inner - D)

    def hockey_stick(self) -> Curve:
        """Return eps -> sum over pieces of P[l > eps] - e^eps Q[l > eps], each between the roots of l = eps.

        The integrand is 0 at a root, so derivatives do not need the root's own derivative.
        """
        source, D = self.pair.noise.unweighted, self.pair.shift
        left, right, weight_p, weight_q = self._cuts()
        low, high, known, change = self._finite(left, right, weight_p, weight_q)
        first, last = (without_derivative(source.loss(x, D) + change) for x in (low, high))
        falls, frozen = first >= last, without_derivative((source, D))

        def at(eps: Any) -> Any:
            xp = namespace(eps, left)
            level = eps[..., None]
            aim = without_derivative(level - change)
            start, end = without_derivative((low + 0 * aim, high + 0 * aim))
            ends = bisect(lambda x: (frozen[0].loss(x, frozen[1]) > aim) == falls, start, end, _BISECTIONS)
            cut = (ends[0] + ends[1]) / 2
            none, whole = xp.maximum(first, last) <= level, xp.minimum(first, last) > level
            start = xp.where(falls | whole, left, cut)
            end = xp.where(~falls | whole, right, cut)
            there = (xp.where(known, ~none, weight_p > 0)) & (right > left)
            start, end = (xp.where(known, inner, outer) for inner, outer in ((start, left), (end, right)))
            start, end = xp.where(there, start, 0.0), xp.where(there, end, 0.0)
            gap = weight_p * source.mass(start, end) - xp.exp(level) * weight_q * source.mass(start - D, end - D)
            short, direct = self._gap_by_quadrature(start, end, level - change)
            gap = xp.where(short & known, weight_p * direct, gap)
            return xp.where(gap < 0, 0.0, gap).sum(-1) * (1 + _UNITS_REWEIGHTED * np.finfo(gap.dtype).eps)

        return at

    def _gap_by_quadrature(self, start: Any, end: Any, level: Any) -> tuple[Any, Any]:
        """Return where the integral of f (1 - e^(level - loss)) is exact to rounding by quadrature, and its value.

        The difference of two masses would lose its digits where the loss varies little, as next to its maximum.
        """
        source, D = self.pair.noise.unweighted, self.pair.shift
        xp = namespace(start, level)
        change = [source.log_prob(end - at) - source.log_prob(start - at) for at in (0.0 * D, D)]
        short = (xp.abs(change[0]) <= _SMOOTH) & (xp.abs(change[1]) <= _SMOOTH)
        width = xp.where(short, end - start, 0.0)[..., None]
        x = xp.where(short, start, 0.0)[..., None] + width * like(_NODES, start)
        over = source.loss(x, D) - xp.where(short, level, 0.0)[..., None]
        over = xp.where(over > 0, over, 0.0)
        return short, -(width * like(_WEIGHTS, start) * source.prob(x) * xp.expm1(-over)).sum(-1)

    def _finite(self, left: Any, right: Any, weight_p: Any, weight_q: Any) -> tuple[Any, Any, Any, Any]:
        """Return finite ends, whether both weights are positive, and the log ratio of the weights."""
        xp = namespace(left, weight_p)
        low, high = xp.where(xp.isinf(left), right, left), xp.where(xp.isinf(right), left, right)
        known = (weight_p > 0) & (weight_q > 0)
        return low, high, known, xp.where(known, _log(weight_p) - _log(weight_q), 0.0)

    def largest_loss(self) -> Real:
        """Return the supremum of the loss; at infinite ends it is the limit that the distribution states."""
        source, D = self.pair.noise.unweighted, self.pair.shift
        left, right, weight_p, weight_q = self._cuts()
        low, high, known, change = self._finite(left, right, weight_p, weight_q)
        limits = source.loss_limits(D)
        xp = namespace(left, *limits)
        ends = [
            xp.where(xp.isinf(end), limit, source.loss(finite, D)) + change
            for end, limit, finite in ((left, limits[0], low), (right, limits[1], high))
        ]
        loss = xp.where(known, xp.maximum(*ends), xp.where(weight_p > 0, np.inf, -np.inf))
        return xp.where(right > left, loss, -np.inf).max()

    def _smooth(self, ends: Any, few: int) -> PrivacyLossDistribution:
        """Return the pieces between finite ends."""
        noise, D = self.pair.noise, self.pair.shift
        left, right = ends[:-1], ends[1:]
        middle = (left + right) / 2
        xp, source = namespace(ends), noise.unweighted
        weight_p, weight_q = noise.weight(middle), noise.weight(middle - D)
        both = (weight_p > 0) & (weight_q > 0)
        change = xp.where(both, _log(weight_p) - _log(weight_q), xp.where(weight_p > 0, np.inf, -np.inf))
        logs = [xp.where(w > 0, _log(w), -np.inf) for w in (weight_p, weight_q)]
        pieces = SmoothPieces(
            left,
            right,
            lambda x, i: source.log_prob(x) + logs[0][i],
            lambda x, i: source.log_prob(x - D) + logs[1][i],
            lambda x, i: source.loss(x, D) + change[i],
            lambda start, end, _: np.maximum(noise.steepness(start, end), noise.steepness(start - D, end - D)),
            None,
            few,
        )
        present = (right > left) & ((weight_p > 0) | (weight_q > 0))
        return PrivacyLossDistribution.of_pieces(pieces.where(present), self.unseen if xp is np else 0.0)

    @property
    def unseen(self) -> float:
        """Return a bound on the mass beyond the reach on both sides; noise is reweighted at most as it is at 0."""
        return 2 * _TAIL * float(self.pair.noise.weight(np.zeros(())))

    def within_reach(self, distances: tuple[float, ...]) -> Any:
        """Return all knots and quantiles of f and of its shifts by these multiples of D, within their joint reach."""
        pair, source = self.pair, self.pair.noise.unweighted
        xp = namespace(*jax.tree.leaves(pair))
        points = source.quantiles
        tail = like(np.array([_TAIL]), points)
        low, high = source.inverse(tail, np.ones(1, bool)), source.inverse(tail, np.zeros(1, bool))
        places = [place * pair.shift for place in distances]
        ends = xp.concatenate([one + place for place in places for one in (points, self.knots)])
        turns = [xp.atleast_1d(floating(xp.asarray(point))) for point in source.turning_points(pair.shift)]
        low, high = low + min(distances) * xp.abs(pair.shift), high + max(distances) * xp.abs(pair.shift)
        return xp.sort(xp.clip(xp.concatenate([ends, *turns, low, high]), low, high))

    def privacy_loss(self) -> PrivacyLossDistribution:
        """Return the distribution of the loss, as pieces out to where the tails are negligible."""
        return self._smooth(self.within_reach((0.0, 1.0)), _FEW_GENERAL)


@singledispatch
def formulas_of(noise: Any, pair: AdditivePair) -> NoiseFormulas:
    """Return the formulas of a pair, by its noise without weights: the general ones, or closed forms."""
    return NoiseFormulas(pair)


@formulas_of.register
def _(noise: PiecewiseExponential, pair: AdditivePair) -> NoiseFormulas:
    return ExponentialFormulas(pair)


@formulas_of.register
def _(noise: Gaussian, pair: AdditivePair) -> NoiseFormulas:
    return GaussianFormulas(pair)


@formulas_of.register
def _(noise: Staircase, pair: AdditivePair) -> NoiseFormulas:
    return StepFormulas(pair)


def total(term: Any, items: Any, epsilon: RealArray) -> Any:
    """Return the sum of term(item)(eps) over the entries of a pytree of arrays, one at a time: each passes over eps."""
    leaves = jax.tree.leaves(items)
    xp = namespace(epsilon, *leaves)

    def add(total: RealArray, item: Any) -> tuple[Any, None]:
        value = term(item)(epsilon)
        # A maximum with 0 would halve the derivative of a value of 0. NaN stays NaN.
        return total + xp.where(value < 0, 0.0, value), None

    start = xp.zeros(epsilon.shape, xp.result_type(epsilon, *leaves))
    if xp is jnp:
        return jax.lax.scan(add, start, items)[0]
    for k in range(len(leaves[0])):
        start, _ = add(start, jax.tree.map(lambda leaf: leaf[k], items))  # noqa: B023
    return start


# A log density that is a polynomial between knots


@pytree
@dataclass(frozen=True)
class Pieces:
    """The pieces of a pair from left to right, as arrays of one length.

    Attributes:
        left: the lower end. That of the first piece is -inf, except for staircases.
        right: the upper end. That of the last piece is inf, except for staircases.
        width: right - left, and 0 where the ends differ only by rounding.
        at: the point at which log_p and loss are given. It may be outside the piece, whose formulas then continue.
        log_p: the log density of p there, -inf for a piece without mass.
        rise: the derivative of log p there.
        loss: l there, inf where only q is 0 and -inf where only p is.
        slope: the slope of l.
        weight_p: p relative to ``noise.unweighted``.
        weight_q: q relative to the shift of ``noise.unweighted``.
    """

    left: Any
    right: Any
    width: Any
    at: Any
    log_p: Any
    rise: Any
    loss: Any
    slope: Any
    weight_p: Any
    weight_q: Any

    @property
    def top(self) -> tuple[Real, Real, Real]:
        """Return the end with the larger loss (the finite one if it is flat), -1 if it is the left end, and the offset.

        The offset is |top - at|, and the loss at the top is loss + |slope| offset.
        """
        xp = namespace(self.at)
        rightwards = xp.where(self.slope == 0, ~xp.isfinite(self.left), self.slope > 0)
        top = xp.where(rightwards, self.right, self.left)
        return top, xp.where(rightwards, 1.0, -1.0), xp.abs(top - self.at)


class PolynomialFormulas(NoiseFormulas):
    """Closed forms for an affine loss between knots."""

    curvature: ClassVar[Any] = 0.0

    def _ends(self) -> tuple[Any, Any, Any]:
        """Return neighbouring knots of f and of its shift, and their distances.

        A knot and its own shift have the distance D, which their difference may have lost to rounding.
        """
        knots, D = self.knots, self.pair.shift
        xp = namespace(knots, D)
        own, moved = xp.concatenate([knots, knots]), xp.repeat(xp.array([0.0, 1.0], knots.dtype), len(knots))
        order = xp.argsort(own + moved * D)
        own, moved = own[order], moved[order]
        ends = own + moved * D
        width = width_between(ends[:-1], ends[1:], D, xp.diff(own) + xp.diff(moved) * D)
        infinity = xp.full(1, np.inf, ends.dtype)
        return *_with_infinity(ends), xp.concatenate([infinity, width, infinity]) if len(ends) else infinity

    def _at(self, inner: Any) -> tuple[Any, Any, Any]:
        """Return (point, derivative of log p there, slope of the loss) of pieces, from points inside them."""
        source, D = self.pair.noise.unweighted, self.pair.shift
        rise = source.score(inner)
        return inner, rise, rise - source.score(inner - D)

    def pieces(self) -> Pieces:
        """Return the pieces of the whole line; for a staircase those between the outermost knots that are kept."""
        noise, D, source = self.pair.noise, self.pair.shift, self.pair.noise.unweighted
        xp = namespace(*jax.tree.leaves(self.pair))
        left, right, width = self._ends()
        inner = inside(left, right, D)
        weight_p, weight_q = noise.weight(inner), noise.weight(inner - D)
        at, rise, slope = self._at(inner)
        log_p = source.log_prob(at)
        loss = log_p - source.log_prob(at - D) + _log(weight_p) - _log(weight_q)
        # Where both weights are 0 the loss is that of equal small weights: derivatives in the weight are taken there.
        both = (weight_p > 0) == (weight_q > 0)
        loss = xp.where(both, loss, xp.where(weight_p > 0, np.inf, -np.inf))
        log_p = xp.where(weight_p > 0, log_p + _log(weight_p), -np.inf)
        slope = xp.where(both, slope, 0.0)
        return Pieces(left, right, width, at, log_p, rise, loss, slope, weight_p, weight_q)

    def largest_loss(self) -> Real:
        pieces = self.pieces()
        xp = namespace(pieces.loss)
        top = pieces.loss + xp.abs(pieces.slope) * pieces.top[2]
        return xp.where(pieces.width > 0, top, -np.inf).max()

    def privacy_loss(self) -> PrivacyLossDistribution:
        """Return the pieces of constant loss as outcomes, and those on which the loss varies."""
        pieces, source, D = self.pieces(), self.pair.noise.unweighted, self.pair.shift
        xp = namespace(pieces.at)
        constant = (pieces.slope == 0) & (pieces.width > 0)
        p = pieces.weight_p * source.mass(pieces.left, pieces.right)
        q = pieces.weight_q * source.mass(pieces.left - D, pieces.right - D)
        p, q = xp.where(constant, p, 0.0), xp.where(constant, q, 0.0)
        return join([PrivacyLossDistribution(p, q, pieces.loss, 0 * p), self._varying(pieces)])

    def _extent(self, pieces: Pieces) -> tuple[Any, Any, int]:
        """Return the ends within which pieces are integrated, and their number of panels."""
        return pieces.left, pieces.right, FEW

    @property
    def unseen(self) -> float:
        return 0.0

    def _varying(self, pieces: Pieces) -> PrivacyLossDistribution:
        """Return the pieces on which the loss varies."""
        noise, D = self.pair.noise, self.pair.shift
        left, right, few = self._extent(pieces)
        xp = namespace(pieces.at)
        curvature = self.curvature
        present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
        # An absent piece has no length, and values for which all formulas are finite.
        left, right, at, log_p, rise, loss, slope = (
            xp.where(present, each, filler)
            for each, filler in (
                *((left, 0.0), (right, 0.0), (pieces.at, 0.0), (pieces.log_p, 0.0), (pieces.rise, 0.0)),
                *((pieces.loss, 0.0), (pieces.slope, 1.0)),
            )
        )

        def log_density(x: Any, i: Any) -> Any:
            away = x - at[i]
            return log_p[i] + rise[i] * away - curvature * away**2 / 2

        def affine(x: Any, i: Any) -> Any:
            return loss[i] + slope[i] * (x - at[i])

        found = SmoothPieces(
            left,
            right,
            log_density,
            lambda x, i: log_density(x, i) - affine(x, i),
            affine,
            lambda start, end, _: np.maximum(noise.steepness(start, end), noise.steepness(start - D, end - D)),
            lambda value, i: at[i] + (value - loss[i]) / slope[i],
            few,
        )
        return PrivacyLossDistribution.of_pieces(found.where(present), self.unseen if xp is np else 0.0)


def _with_infinity(ends: Any) -> tuple[Any, Any]:
    """Return the lower and the upper ends of the pieces of the whole line."""
    xp = namespace(ends)
    infinity = xp.full(1, np.inf, ends.dtype)
    return xp.concatenate([-infinity, ends]), xp.concatenate([ends, infinity])


def width_between(left: Any, right: Any, D: Any, apart: Any = None) -> RealArray:
    """Return the distance of neighbouring knots, by default right - left; 0 where they differ only by rounding.

    There is no piece between such knots, and its loss would be wrong.
    """
    xp = namespace(left, right, D)
    rounding = 4 * xp.finfo(left.dtype).eps * (xp.abs(left) + xp.abs(right) + xp.abs(D))
    sliver = xp.isfinite(rounding) & (right - left <= rounding)
    return xp.where(sliver, 0.0, right - left if apart is None else apart)


def inside(left: Real, right: Real, D: Real) -> RealArray:
    """Return a point inside each piece."""
    xp = namespace(left, right, D)
    near = xp.where(xp.isfinite(left), left, xp.where(xp.isfinite(right), right - 2 * xp.abs(D), 0.0))
    far = xp.where(xp.isfinite(right), right, xp.where(xp.isfinite(left), left + 2 * xp.abs(D), 0.0))
    return (near + far) / 2


def _log(weight: Real) -> Real:
    """Return the logarithm, and 0 where the weight is 0."""
    xp = namespace(weight)
    return xp.log(xp.where(weight > 0, weight, 1.0))


class ExponentialFormulas(PolynomialFormulas):
    """Closed forms for noise that is exponential between knots."""

    def hockey_stick(self) -> Curve:
        """Return eps -> delta(eps), the sum over pieces of a closed integral.

        integral over 0 < t < T of p_top e^(r t) - e^eps q_top e^((r + s) t),    T = (l_top - eps)/s,

        where t is the distance from the top, r the derivative of log p in t, and s = |slope|.
        """
        pieces, source = self.pieces(), self.pair.noise.unweighted
        top, side, offset = pieces.top
        xp = namespace(pieces.at)
        fall, moved = xp.abs(pieces.slope), pieces.at - self.pair.shift
        further = source.score(moved)
        log_p = source.log_prob(pieces.at) + pieces.rise * (top - pieces.at)
        log_q = source.log_prob(moved) + further * (top - pieces.at)
        loss = pieces.loss + fall * offset
        # The difference of large logarithms has an error of units of theirs: eps is lowered by that, as in ``curve``.
        rounding = xp.finfo(loss.dtype).eps * without_derivative(xp.where(xp.isfinite(log_p), xp.abs(log_p), 0.0))
        p, q = (pieces.weight_p, log_p, -side * pieces.rise), (pieces.weight_q, log_q, -side * further)

        def term(item: Any) -> Curve:
            (weight_p, log_p, r), (weight_q, log_q, r_q), loss, s, width, rounding = item

            def at(eps: Real) -> Any:
                xp = namespace(eps, loss)
                eps = eps - rounding
                T = xp.clip((loss - eps) / xp.where(s > 0, s, 1.0), 0.0, width)
                T = xp.where(s > 0, T, xp.where(loss > eps, width, 0.0))
                return weight_p * exponential_growth(log_p, r, T) - weight_q * exponential_growth(log_q + eps, r_q, T)

            return at

        return lambda eps: total(term, (p, q, loss, fall, pieces.width, rounding), eps)


def exponential_growth(log_start: Real, r: Real, T: Real) -> Real:
    """Return the integral of exp(log_start + r t) over 0 < t < T; T may be infinite where r < 0.

    The result is 0 at T = 0, where e^eps q may overflow.
    """
    xp = namespace(log_start, r, T)
    highest = log_start + xp.maximum(r * xp.where(xp.isinf(T), 0.0, T), 0.0)
    size = xp.where(r == 0, 0.0, xp.abs(r))  # Not a maximum with -r, whose derivative at 0 is halved.
    return xp.exp(xp.where(T > 0, highest, -np.inf)) * exponential_moment(0, 0.0, size, T)


class GaussianFormulas(PolynomialFormulas):
    """Closed forms for a Gaussian, with steps of weight if it is truncated or recycled."""

    rounds_up: ClassVar[bool] = True

    @property
    def curvature(self) -> Any:  # type: ignore[override]
        """Return minus the second derivative of the log density."""
        return 1 / self.pair.noise.unweighted.sigma**2

    def _at(self, inner: Any) -> tuple[Any, Any, Any]:
        """Take the loss, D (D/2 - x)/s^2 plus a step, at x = D/2, where no digits are lost."""
        source, D = self.pair.noise.unweighted, self.pair.shift
        at = D / 2 + 0 * inner
        return at, source.score(at), source.score(D + 0 * at)

    def largest_loss(self) -> Real:
        return np.inf + 0 * self.pair.shift

    @property
    def unseen(self) -> float:
        """Return a bound on the mass beyond the reach on both sides; noise is reweighted at most as it is at 0."""
        return _UNSEEN * float(self.pair.noise.weight(np.zeros(())))

    def _extent(self, pieces: Pieces) -> tuple[Any, Any, int]:
        D, xp = self.pair.shift, namespace(pieces.at)
        reach = REACH * self.pair.noise.unweighted.sigma
        low, high = xp.minimum(0.0, D) - reach, xp.maximum(0.0, D) + reach
        return xp.clip(pieces.left, low, high), xp.clip(pieces.right, low, high), max(6, PANELS // len(pieces.left))

    def hockey_stick(self) -> Curve:
        """Return eps -> the sum over pieces of w_P times the integral of phi(x) (1 - e^(eps - loss)) where loss > eps.

        x is in units of sigma and rises with the loss: there the loss is log(w_P/w_Q) + a (x + a/2), a = |D|/sigma.
        The value is rounded upwards: eps is lowered by units of itself and of the losses at the piece's ends, and see
        ``gaussian_integrals``.
        """
        pair, sigma = self.pair, self.pair.noise.unweighted.sigma
        xp = namespace(*jax.tree.leaves(pair))
        a = xp.abs(pair.shift) / sigma
        if len(pair.noise.edges) == 0:
            return lambda eps: _of_one_gaussian(a, eps)
        pieces = self.pieces()

        def term(piece: Pieces) -> Curve:
            sloped = ~xp.isinf(piece.loss)  # NaN stays.
            left, right, width = (in_units(end, sigma) for end in (piece.left, piece.right, piece.width))
            far, top = xp.where(pair.shift < 0, left, -right), xp.where(pair.shift < 0, right, -left)
            loss = xp.where(sloped, piece.loss, 0.0)
            size = sum(xp.where(xp.isfinite(end), xp.abs(end), 0.0) for end in (far, top))
            size = xp.where(size > 0, xp.abs(loss) + a * (size + a), 0.0)

            def at(eps: RealArray) -> Any:
                xp = namespace(eps, loss)
                eps = eps - _UNITS * np.finfo(eps.dtype).eps * without_derivative(xp.abs(eps) + size)
                cut = (eps - loss) / a - a / 2
                whole = ~sloped | (cut <= far)
                start = xp.where(whole, far, xp.minimum(cut, top))
                there = ~((start >= top) | xp.isinf(start) | (piece.width <= 0))  # NaN stays.
                start, rest = xp.where(there, start, 0.0), xp.where(there, xp.where(whole, width, top - start), 1.0)
                lead = a * xp.where(whole & sloped & there, far - cut, 0.0)
                gain, p, q = gaussian_integrals.gain(start, rest, a, lead)
                # Where q is 0 the loss is infinite; q enters for the derivative in its weight.
                unbounded = xp.where(piece.loss > 0, piece.weight_p * p - xp.exp(eps) * piece.weight_q * q, 0.0)
                return xp.where(there, xp.where(sloped, piece.weight_p * gain, unbounded), 0.0)

            return at

        return lambda eps: total(term, pieces, eps) * (1 + _UNITS_REWEIGHTED * np.finfo(eps.dtype).eps)


def _of_one_gaussian(a: Any, eps: RealArray) -> Any:
    """Return delta for one piece without ends; it is positive at every eps, also where it underflows."""
    kind = np.finfo(eps.dtype)
    eps = eps - _UNITS * kind.eps * abs(without_derivative(eps))
    return gaussian_integrals.endless_gain(eps / a - a / 2, a) * (1 + _UNITS * kind.eps) + kind.tiny


def in_units(end: Real, sigma: Real) -> RealArray:
    """Return end/sigma with finite derivatives; an infinite end is returned as it is."""
    xp = namespace(end, sigma)
    finite = xp.isfinite(end)
    return xp.where(finite, xp.where(finite, end, 0.0) / sigma, end)


class StepFormulas(PolynomialFormulas):
    """Closed forms for a staircase, whose loss takes finitely many values on the periods kept."""

    is_smooth: ClassVar[bool] = False

    def _own_knots(self) -> Any:
        """Return the steps of the periods that the pair keeps."""
        return self.pair.noise.unweighted.steps(self.pair.periods)

    def _ends(self) -> tuple[Any, Any, Any]:
        """Return the ends of the pieces between the outermost knots."""
        left, right, width = super()._ends()
        return left[1:-1], right[1:-1], width[1:-1]

    def _at(self, inner: Any) -> tuple[Any, Any, Any]:
        return inner, 0.0 * inner, 0.0 * inner

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces, source, D = self.pieces(), self.pair.noise.unweighted, self.pair.shift
        xp = namespace(pieces.at)
        size = pieces.width * self.copies(pieces.at)
        p, finite = xp.exp(pieces.log_p) * size, xp.isfinite(pieces.loss)
        alone = pieces.weight_q * xp.exp(source.log_prob(pieces.at - D)) * size  # Where p is 0.
        q = xp.where(finite, p * xp.exp(-xp.where(finite, pieces.loss, 0.0)), xp.where(p > 0, 0.0, alone))
        return PrivacyLossDistribution(p, q, pieces.loss, 0 * p)

    def hockey_stick(self) -> Curve:
        """Return delta(eps), which is linear in e^eps between the values l_1 < l_2 < ... of the loss.

        delta(eps) = delta(l_i) + (1 - e^(eps - l_i)) e^(l_i) Q(loss >= l_i),  l_i the least level above eps.
        """
        pieces = self.pieces()
        xp = namespace(pieces.loss)
        largest = cap(pieces.loss.dtype)
        log_prob, size = self.pair.noise.unweighted.log_prob, pieces.width * self.copies(pieces.at)
        mass = pieces.weight_p * xp.exp(log_prob(pieces.at)) * size
        infinite = pieces.loss >= largest
        infinity_mass, infinity_mass_q = (
            xp.where(infinite, each, 0.0).sum()
            for each in (mass, pieces.weight_q * xp.exp(log_prob(pieces.at - self.pair.shift)) * size)
        )
        level = xp.clip(pieces.loss, -largest, largest)
        order = xp.argsort(-level)
        level, other = level[order], xp.where(infinite, 0.0, mass * xp.exp(-level))[order]
        above = xp.cumsum(other)
        steps = above[:-1] * xp.exp(level[:-1]) * -xp.expm1(level[1:] - level[:-1])
        delta = xp.concatenate([xp.zeros_like(level[:1]), xp.cumsum(steps)])
        slope = above * xp.exp(level)

        def at(eps: Real) -> Any:
            xp = namespace(eps, level)
            count = len(level) - xp.searchsorted(level[::-1], eps, side="right")
            i = xp.maximum(count - 1, 0)
            some = delta[i] - xp.where(count > 0, slope[i] * xp.expm1(eps - level[i]), 0.0)
            return some + infinity_mass - xp.exp(eps) * infinity_mass_q

        return at

    def copies(self, at: Real) -> Real:
        """Return how often a piece counts: beyond all edges a staircase repeats, e^-eps times as high each period.

        The last whole period before the reach R represents all that follow. NaN where R is not beyond the edges.
        """
        pair, source = self.pair, self.pair.noise.unweighted
        xp = namespace(at, *jax.tree.leaves(pair))
        D = source.period
        shift = xp.abs(pair.shift)
        reach = (pair.periods - 1 - xp.ceil(shift / D)) * D
        needed = shift + xp.abs(xp.stack([0 * shift, *pair.noise.edges])).max()
        x = xp.abs(at)
        copies = xp.where(x < reach - D, 1.0, xp.where(x < reach, -1 / xp.expm1(-source.epsilon), 0.0))
        negligible = source.epsilon * (reach / D - 1) > 120
        return xp.where((reach - D >= needed) | negligible, copies, np.nan)


# Noise that is not even

# For a pair and its mirror: the number of points at which their profiles are compared, the number of crossings that are
# kept (random merged Laplace noise had at most four), the halvings that find a crossing, and the relative difference up
# to which profiles are equal.
_PLACES, _CROSSINGS, _HALVINGS, _SAME = 512, 8, 40, 1e-10


def larger_profile(pair: AdditivePair, panels: int = 0) -> PrivacyLossDistribution:
    """Return nodes of a pair whose profile is the maximum of this pair's and its mirror's, for shifts of any sign.

    Its positive losses are those of the pair where the pair's profile is larger, and those of the mirror elsewhere.
    Where the profiles cross it has an atom: the mass above the crossing of the pair that is larger below, minus that of
    the pair that is larger above. Staircases may cross at every step and are not supported. The result is NaN if there
    are more crossings than are kept.
    """
    y, own = _crossings(without_derivative(pair))
    xp = namespace(y)
    nodes = pair.privacy_loss().nodes(panels, xp.concatenate([-y, xp.zeros_like(y[:1]), y]))
    positive, size = nodes.loss > 0, xp.abs(nodes.loss)
    p, q = xp.where(positive, nodes.p, nodes.q), xp.where(positive, nodes.q, nodes.p)
    above = size > y[:, None]
    chosen = own[above.sum(0)] == positive
    turned = xp.where(own[:-1] == own[1:], 0, xp.where(own[:-1], 1, -1))[:, None] * xp.where(positive, 1, -1) * above
    atoms = _atoms_at(y, (turned * p).sum(-1), (turned * q).sum(-1))
    positives = PrivacyLossDistribution(xp.where(chosen, p, 0.0), xp.where(chosen, q, 0.0), size, nodes.width)
    return join([positives, atoms]).symmetrized().scaled(xp.where(xp.isnan(y).any(), np.nan, 1.0))


def _atoms_at(loss: Any, p: Any, q: Any) -> PrivacyLossDistribution:
    """Return atoms at these losses, which equal log p/q up to rounding and have its derivatives."""
    xp = namespace(p, q)
    some = (p > 0) & (q > 0)
    ratio = xp.log(xp.where(some, p, 1.0)) - xp.log(xp.where(some, q, 1.0))
    loss = xp.where(some, loss, 0.0) + ratio - without_derivative(ratio)
    return PrivacyLossDistribution(xp.where(some, p, 0.0), xp.where(some, q, 0.0), loss, xp.zeros_like(loss))


def _crossings(pair: AdditivePair) -> tuple[Any, Any]:
    """Return (positive losses at which the profiles of a pair and its mirror cross, whether the pair's own is larger).

    The losses increase, and are inf where there are fewer. The second array has one more entry: it says which profile
    is larger below the first crossing and above each of them.
    """
    sticks = pair.hockey_stick(), pair.mirror().hockey_stick()
    xp = namespace(*jax.tree.leaves(pair))
    top = xp.abs(pair.privacy_loss().nodes().finite[1]).max()
    # Points are added next to the top, where both profiles may be 0.
    y = top * like(np.append(np.linspace(0.0, 1.0, _PLACES)[1:-1] ** 2, [1 - 1e-6, 1.0]), top)
    one, other = (stick(y) for stick in sticks)
    sign = xp.where(xp.abs(one - other) > _SAME * xp.maximum(one, other), xp.sign(one - other), 0.0)
    # Equal profiles count as below, next to 0 as above; where all are equal, the pair's own counts as larger.
    sign = xp.concatenate([sign[xp.argmax(sign != 0)][None], sign])
    changes: Any = xp.where(sign != 0, np.arange(len(sign)), 0)
    latest: Any = np.maximum.accumulate(changes) if xp is np else jax.lax.cummax(changes)
    own = sign[latest][1:] >= 0
    at: Any
    if xp is np:
        at = np.flatnonzero(own[1:] != own[:-1])[:_CROSSINGS]
        at = np.append(at, np.full(_CROSSINGS - len(at), _PLACES - 1))
    else:
        (at,) = jnp.nonzero(own[1:] != own[:-1], size=_CROSSINGS, fill_value=_PLACES - 1)
    after = xp.minimum(at + 1, _PLACES - 1)

    def before(y: Any) -> Any:
        return (sticks[0](y) >= sticks[1](y)) == own[at]

    low, high = bisect(before, y[at], y[after], _HALVINGS)
    crossing = xp.where(after > at, (low + high) / 2, np.inf)
    kept = (own[1:] != own[:-1]).sum() <= _CROSSINGS
    return xp.where(kept, crossing, np.nan), xp.concatenate([own[:1], own[after]])
