"""The dominating pair of additive noise: a distribution, and the same distribution a distance further on.

p = f,  q = f(. - D),  l = log p - log q. Any noise whose loss is monotone between known points has an exact profile: on
each piece {l > eps} is an interval, whose end is a root. Noise whose log density is a polynomial of degree 2 at most
between knots, such as Laplace, Gaussian or staircase noise, has closed forms. There l(x) = l(at) + slope (x - at)
between the knots of f and of its shift, and what does not depend on eps is computed once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs import gaussian_integrals
from accountants.dominating_pairs.base import Curve, DominatingPair, cap
from accountants.privacy_loss import FEW, PrivacyLossDistribution, SmoothPieces, join, log_ratio
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
    log_or_never,
    namespace,
    without_derivative,
)
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

# The distance, in sigma beyond both means, up to which a Gaussian is integrated, and its total number of panels.
_REACH, _PANELS = 18.0, 30
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

    ``periods`` is how many periods of a staircase on either side are kept step by step; others follow geometrically.
    """

    noise: Distribution
    shift: Any
    periods: int = _TRACED_PERIODS

    is_shift: ClassVar[bool] = True

    @property
    def formulas(self) -> NoiseFormulas:
        for kind, formulas in _CLOSED_FORMS.items():
            if isinstance(self.noise.unweighted, kind):
                return formulas(self)
        return NoiseFormulas(self)

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
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
    """Return the pair of noise and its shift, of any unit, with the number of staircase periods that it needs."""
    xp = namespace(shift)
    noise, shift = noise.rescale(1.0, xp.abs(shift)), xp.where(shift < 0, -1.0, 1.0)[()]
    return AdditivePair(noise, shift, _periods(noise))


def _periods(noise: Distribution) -> int:
    """Return how many periods of a staircase matter: those within the shift or an edge that are not negligible."""
    steps = noise.unweighted
    if not isinstance(steps, Staircase):
        return _TRACED_PERIODS
    numbers = [checks.concrete(number) for number in (steps.epsilon, steps.period, *noise.edges)]
    if any(number is None for number in numbers):
        return _TRACED_PERIODS
    epsilon, period, *edges = (float(np.max(np.abs(number))) for number in numbers)  # type: ignore[arg-type]
    reach = min(max([0.0, *edges]) / period, 120 / epsilon)
    needed = 4 + 2 * math.ceil(1 / period) + math.ceil(reach)
    if needed > _MOST_PERIODS:
        raise ValueError(f"sensitivity: is {1 / period:g} periods of the staircase; at most 30000 are accounted")
    return 1 << max(4, needed - 1).bit_length()


# Any noise


class NoiseFormulas:
    """The profile and the privacy loss of noise whose loss is monotone between knots, quantiles and turning points."""

    # Whether the computed hockey-stick divergence is an upper bound.
    rounds_up: ClassVar[bool] = False
    # Whether the profiles of the pair and its mirror cross in few places, see ``larger_profile``.
    is_smooth: ClassVar[bool] = True
    # The mass of the source that is not integrated.
    beyond_reach: ClassVar[float] = 2 * _TAIL

    def __init__(self, pair: AdditivePair) -> None:
        self.noise, self.D, self.periods = pair.noise, pair.shift, pair.periods
        self.source, self.xp = pair.noise.unweighted, namespace(*jax.tree.leaves(pair))

    @property
    def knots(self) -> Any:
        return self.xp.concatenate(self._vectors(self.source.knots, *self.noise.edges))

    def _vectors(self, *points: Any) -> list[Any]:
        return [self.xp.atleast_1d(floating(self.xp.asarray(point))) for point in points]

    @property
    def _turning_points(self) -> list[Any]:
        return self._vectors(*self.source.turning_points(self.D))

    def _cuts(self) -> tuple[Any, ...]:
        """Return (left, right, weight of p, weight of q, both are positive, log ratio of the weights) of the pieces."""
        own = self.xp.concatenate([without_derivative(self.source.quantiles), self.knots])
        left, right = _with_infinity(self.xp.sort(self.xp.concatenate([own, own + self.D, *self._turning_points])))
        inner = inside(left, right, self.D)
        weight_p, weight_q = self.noise.weight(inner), self.noise.weight(inner - self.D)
        known = (weight_p > 0) & (weight_q > 0)
        xp = namespace(weight_p)
        return left, right, weight_p, weight_q, known, xp.where(known, _log(weight_p) - _log(weight_q), 0.0)

    def hockey_stick(self) -> Curve:
        """Return eps -> sum over pieces of P[l > eps] - e^eps Q[l > eps]; roots of l = eps need no derivative."""
        source, D = self.source, self.D
        left, right, weight_p, weight_q, known, change = self._cuts()
        low, high = _finite_ends(left, right)
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
            start = xp.where(known & ~(falls | whole), cut, left)
            end = xp.where(known & falls & ~whole, cut, right)
            there = (xp.where(known, ~none, weight_p > 0)) & (right > left)
            start, end = xp.where(there, start, 0.0), xp.where(there, end, 0.0)
            gap = weight_p * source.mass(start, end) - xp.exp(level) * weight_q * source.mass(start - D, end - D)
            short, direct = self._gap_by_quadrature(start, end, level - change)
            gap = xp.where(short & known, weight_p * direct, gap)
            return xp.where(gap < 0, 0.0, gap).sum(-1) * (1 + _UNITS_REWEIGHTED * np.finfo(gap.dtype).eps)

        return at

    def _gap_by_quadrature(self, start: Any, end: Any, level: Any) -> tuple[Any, Any]:
        """Return which pieces are short, and the integral of f (1 - e^(level - loss)) on them, without cancellation."""
        source, xp = self.source, namespace(start, level)
        change = [source.log_prob(end - at) - source.log_prob(start - at) for at in (0.0 * self.D, self.D)]
        short = (xp.abs(change[0]) <= _SMOOTH) & (xp.abs(change[1]) <= _SMOOTH)
        width = xp.where(short, end - start, 0.0)[..., None]
        x = xp.where(short, start, 0.0)[..., None] + width * like(_NODES, start)
        over = source.loss(x, self.D) - xp.where(short, level, 0.0)[..., None]
        over = xp.where(over > 0, over, 0.0)
        return short, -(width * like(_WEIGHTS, start) * source.prob(x) * xp.expm1(-over)).sum(-1)

    def largest_loss(self) -> Real:
        """Return the supremum of the loss; at infinite ends it is the limit that the distribution states."""
        left, right, weight_p, _, known, change = self._cuts()
        limits, finite = self.source.loss_limits(self.D), _finite_ends(left, right)
        xp = namespace(left, *limits)
        ends = [
            xp.where(xp.isinf(end), limit, self.source.loss(inner, self.D)) + change
            for end, limit, inner in zip((left, right), limits, finite, strict=True)
        ]
        loss = xp.where(known, xp.maximum(*ends), xp.where(weight_p > 0, np.inf, -np.inf))
        return xp.where(right > left, loss, -np.inf).max()

    @property
    def unseen(self) -> float:
        """Return a bound on the mass beyond the reach on both sides, of plain numbers; 0 under tracing."""
        # Noise is reweighted at most as it is at 0.
        return self.beyond_reach * float(self.noise.weight(np.zeros(()))) if self.xp is np else 0.0

    @property
    def _joints(self) -> Any:
        return self.xp.concatenate([self.source.quantiles, self.knots])

    @property
    def _reach(self) -> tuple[Any, Any]:
        tail = like(np.array([_TAIL]), self.source.quantiles)
        return self.source.inverse(tail, np.ones(1, bool)), self.source.inverse(tail, np.zeros(1, bool))

    def within_reach(self, distances: tuple[float, ...]) -> Any:
        """Return all knots and quantiles of f and of its shifts by these multiples of D, within their joint reach."""
        xp, joints, (low, high) = self.xp, self._joints, self._reach
        low, high = low + min(distances) * xp.abs(self.D), high + max(distances) * xp.abs(self.D)
        ends = [joints + distance * self.D for distance in distances]
        return xp.sort(xp.clip(xp.concatenate([*ends, *self._turning_points, low, high]), low, high))

    def privacy_loss(self) -> PrivacyLossDistribution:
        ends, source, D = self.within_reach((0.0, 1.0)), self.source, self.D
        left, right = ends[:-1], ends[1:]
        middle = (left + right) / 2
        weight_p, weight_q = self.noise.weight(middle), self.noise.weight(middle - D)
        log_p, log_q = (floating(log_or_never(weight)) for weight in (weight_p, weight_q))
        change = log_ratio(log_p, log_q)
        pieces = SmoothPieces(
            left,
            right,
            lambda x, i: source.log_prob(x) + log_p[i],
            lambda x, i: source.log_prob(x - D) + log_q[i],
            lambda x, i: source.loss(x, D) + change[i],
            self._steepness,
            few=_FEW_GENERAL,
        )
        present = (right > left) & ((weight_p > 0) | (weight_q > 0))
        return PrivacyLossDistribution.of_pieces(pieces.where(present), self.unseen)

    def _steepness(self, left: Any, right: Any, _: Any) -> Any:
        return np.maximum(self.noise.steepness(left, right), self.noise.steepness(left - self.D, right - self.D))


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


class Pieces(NamedTuple):
    """The pieces of a pair from left to right, as arrays of one length; of a staircase those between its knots."""

    left: Any  # -inf for the first piece, except for staircases.
    right: Any
    width: Any  # 0 where the ends differ only by rounding.
    at: Any  # The point at which the loss is given; it may be outside the piece, whose formulas then continue.
    loss: Any  # inf where only q is 0, and -inf where only p is.
    slope: Any  # The slope of the loss.
    weight_p: Any  # p relative to ``source``.
    weight_q: Any  # q relative to the shift of ``source``.

    @property
    def top(self) -> tuple[Real, Real, Real]:
        """Return the end with the larger loss (the finite one if it is flat), -1 if it is the left end, |top - at|."""
        xp = namespace(self.at)
        rightwards = xp.where(self.slope == 0, ~xp.isfinite(self.left), self.slope > 0)
        top = xp.where(rightwards, self.right, self.left)
        return top, xp.where(rightwards, 1.0, -1.0), xp.abs(top - self.at)


class PolynomialFormulas(NoiseFormulas):
    """Closed forms for an affine loss between knots."""

    beyond_reach: ClassVar[float] = 0.0

    def intervals(self, distances: tuple[float, ...] = (0.0, 1.0)) -> tuple[Any, Any, Any]:
        knots, D = self.knots, self.D
        xp = namespace(knots, D)
        own, moved = xp.tile(knots, len(distances)), xp.repeat(xp.array(distances, knots.dtype), len(knots))
        order = xp.argsort(own + moved * D)
        own, moved = own[order], moved[order]
        ends = own + moved * D
        # A knot and its own shift have the distance D, which their difference may have lost to rounding.
        width = width_between(ends[:-1], ends[1:], D, xp.diff(own) + xp.diff(moved) * D)
        infinity = xp.full(1, np.inf, ends.dtype)
        return *_with_infinity(ends), xp.concatenate([infinity, width, infinity]) if len(ends) else infinity

    def _at(self, inner: Any) -> tuple[Any, Any]:
        """Return (point at which the loss is given, slope of the loss) of pieces, from points inside them."""
        return inner, self.source.score(inner) - self.source.score(inner - self.D)

    def pieces(self) -> Pieces:
        noise, D, source, xp = self.noise, self.D, self.source, self.xp
        left, right, width = self.intervals()
        inner = inside(left, right, D)
        weight_p, weight_q = noise.weight(inner), noise.weight(inner - D)
        at, slope = self._at(inner)
        loss = source.log_prob(at) - source.log_prob(at - D) + _log(weight_p) - _log(weight_q)
        # Where both weights are 0 the loss is that of equal small weights: derivatives in the weight are taken there.
        both = (weight_p > 0) == (weight_q > 0)
        loss = xp.where(both, loss, xp.where(weight_p > 0, np.inf, -np.inf))
        return Pieces(left, right, width, at, loss, xp.where(both, slope, 0.0), weight_p, weight_q)

    def largest_loss(self) -> Real:
        pieces = self.pieces()
        xp = namespace(pieces.loss)
        top = pieces.loss + xp.abs(pieces.slope) * pieces.top[2]
        return xp.where(pieces.width > 0, top, -np.inf).max()

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces, source, D = self.pieces(), self.source, self.D
        xp = namespace(pieces.at)
        constant = (pieces.slope == 0) & (pieces.width > 0)
        p = xp.where(constant, pieces.weight_p * source.mass(pieces.left, pieces.right), 0.0)
        q = xp.where(constant, pieces.weight_q * source.mass(pieces.left - D, pieces.right - D), 0.0)
        return join([PrivacyLossDistribution(p, q, pieces.loss, 0 * p), self._varying(pieces)])

    def _extent(self, pieces: Pieces) -> tuple[Any, Any, int]:
        return pieces.left, pieces.right, FEW

    def _varying(self, pieces: Pieces) -> PrivacyLossDistribution:
        left, right, few = self._extent(pieces)
        xp = namespace(pieces.at)
        present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
        # An absent piece has no length, and values for which all formulas are finite.
        left, right, at, loss = (xp.where(present, each, 0.0) for each in (left, right, pieces.at, pieces.loss))
        slope, log_weight = xp.where(present, pieces.slope, 1.0), floating(log_or_never(pieces.weight_p))

        def log_p(x: Any, i: Any) -> Any:
            return self.source.log_prob(x) + log_weight[i]

        def affine(x: Any, i: Any) -> Any:
            return loss[i] + slope[i] * (x - at[i])

        def inverse(value: Any, i: Any) -> Any:
            return at[i] + (value - loss[i]) / slope[i]

        def log_q(x: Any, i: Any) -> Any:
            return log_p(x, i) - affine(x, i)

        found = SmoothPieces(left, right, log_p, log_q, affine, self._steepness, inverse, few)
        return PrivacyLossDistribution.of_pieces(found.where(present), self.unseen)


def _with_infinity(ends: Any) -> tuple[Any, Any]:
    xp = namespace(ends)
    infinity = xp.full(1, np.inf, ends.dtype)
    return xp.concatenate([-infinity, ends]), xp.concatenate([ends, infinity])


def _finite_ends(left: Any, right: Any) -> tuple[Any, Any]:
    xp = namespace(left)
    return xp.where(xp.isinf(left), right, left), xp.where(xp.isinf(right), left, right)


def width_between(left: Any, right: Any, D: Any, apart: Any) -> RealArray:
    """Return ``apart``, the distance of neighbouring knots, and 0 where they differ only by rounding."""
    xp = namespace(left, right, D)
    rounding = 4 * xp.finfo(left.dtype).eps * (xp.abs(left) + xp.abs(right) + xp.abs(D))
    return xp.where(xp.isfinite(rounding) & (right - left <= rounding), 0.0, apart)


def inside(left: Real, right: Real, D: Real) -> RealArray:
    """Return a point inside each piece."""
    xp = namespace(left, right, D)
    near = xp.where(xp.isfinite(left), left, xp.where(xp.isfinite(right), right - 2 * xp.abs(D), 0.0))
    far = xp.where(xp.isfinite(right), right, xp.where(xp.isfinite(left), left + 2 * xp.abs(D), 0.0))
    return (near + far) / 2


def _log(weight: Real) -> Real:
    xp = namespace(weight)
    return xp.log(xp.where(weight > 0, weight, 1.0))


class ExponentialFormulas(PolynomialFormulas):
    """Closed forms for noise that is exponential between knots."""

    def hockey_stick(self) -> Curve:
        """Return eps -> delta(eps), the sum over pieces of a closed integral.

        integral over 0 < t < T of p_top e^(r t) - e^eps q_top e^((r + s) t),    T = (l_top - eps)/s,

        where t is the distance from the top, r the derivative of log p in t, and s = |slope|.
        """
        pieces, source = self.pieces(), self.source
        top, side, offset = pieces.top
        xp = namespace(pieces.at)
        fall, loss = xp.abs(pieces.slope), pieces.loss + xp.abs(pieces.slope) * offset

        def density(weight: Any, at: Any) -> tuple[Any, Any, Any]:
            score = source.score(at)
            return weight, source.log_prob(at) + score * (top - pieces.at), -side * score

        p, q = density(pieces.weight_p, pieces.at), density(pieces.weight_q, pieces.at - self.D)
        # The difference of large logarithms has an error of units of theirs: eps is lowered by that, as in ``curve``.
        rounding = xp.finfo(loss.dtype).eps * without_derivative(xp.where(xp.isfinite(p[1]), xp.abs(p[1]), 0.0))

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
    """Return the integral of exp(log_start + r t) over 0 < t < T: 0 at T = 0, and T may be infinite where r < 0."""
    xp = namespace(log_start, r, T)
    highest = log_start + xp.maximum(r * xp.where(xp.isinf(T), 0.0, T), 0.0)
    size = xp.where(r == 0, 0.0, xp.abs(r))  # Not a maximum with -r, whose derivative at 0 is halved.
    return xp.exp(xp.where(T > 0, highest, -np.inf)) * exponential_moment(0, 0.0, size, T)


class GaussianFormulas(PolynomialFormulas):
    """Closed forms for a Gaussian, with steps of weight if it is truncated or recycled."""

    rounds_up: ClassVar[bool] = True
    beyond_reach: ClassVar[float] = _UNSEEN

    def _at(self, inner: Any) -> tuple[Any, Any]:
        """Take the loss, D (D/2 - x)/s^2 plus a step, at x = D/2, where no digits are lost."""
        at = self.D / 2 + 0 * inner
        return at, self.source.score(at) - self.source.score(at - self.D)

    def largest_loss(self) -> Real:
        return np.inf + 0 * self.D

    @property
    def _joints(self) -> Any:
        return self.knots

    @property
    def _reach(self) -> tuple[Any, Any]:
        reach = _REACH * self.source.sigma + floating(self.xp.zeros(1))
        return -reach, reach

    def _extent(self, pieces: Pieces) -> tuple[Any, Any, int]:
        (low, high), xp = self._reach, namespace(pieces.at)
        low, high = low + xp.minimum(0.0, self.D), high + xp.maximum(0.0, self.D)
        return xp.clip(pieces.left, low, high), xp.clip(pieces.right, low, high), max(6, _PANELS // len(pieces.left))

    def hockey_stick(self) -> Curve:
        """Return eps -> the sum over pieces of w_P times the integral of phi(x) (1 - e^(eps - loss)) where loss > eps.

        x is in units of sigma and rises with the loss: there the loss is log(w_P/w_Q) + a (x + a/2), a = |D|/sigma.
        The value is rounded upwards: eps is lowered by units of itself and of the losses at the piece's ends.
        """
        D, sigma, xp = self.D, self.source.sigma, self.xp
        a = xp.abs(D) / sigma
        if len(self.noise.edges) == 0:
            return lambda eps: _of_one_gaussian(a, eps)
        pieces = self.pieces()

        def term(piece: Pieces) -> Curve:
            sloped = ~xp.isinf(piece.loss)  # NaN stays.
            left, right, width = (in_units(end, sigma) for end in (piece.left, piece.right, piece.width))
            far, top = xp.where(D < 0, left, -right), xp.where(D < 0, right, -left)
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

    @property
    def knots(self) -> Any:
        """Return the steps of the periods that the pair keeps, and the edges."""
        return self.xp.concatenate(self._vectors(self.source.steps(self.periods), *self.noise.edges))

    def intervals(self, distances: tuple[float, ...] = (0.0, 1.0)) -> tuple[Any, Any, Any]:
        left, right, width = super().intervals(distances)
        return left[1:-1], right[1:-1], width[1:-1]

    def _at(self, inner: Any) -> tuple[Any, Any]:
        return inner, 0.0 * inner

    def _masses(self, pieces: Pieces) -> tuple[Any, Any]:
        xp, size = namespace(pieces.at), pieces.width * self.copies(pieces.at)
        p, q = (xp.exp(self.source.log_prob(at)) * size for at in (pieces.at, pieces.at - self.D))
        return pieces.weight_p * p, pieces.weight_q * q

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces = self.pieces()
        p, q = self._masses(pieces)
        return PrivacyLossDistribution(p, q, pieces.loss, 0 * p)

    def hockey_stick(self) -> Curve:
        """Return eps -> delta(eps), which is linear in e^eps between the values l_1 < l_2 < ... of the loss.

        delta(eps) = delta(l_i) + (1 - e^(eps - l_i)) e^(l_i) Q(loss >= l_i),  l_i the least level above eps.
        """
        pieces = self.pieces()
        p, q = self._masses(pieces)
        xp = namespace(pieces.loss)
        largest = cap(pieces.loss.dtype)
        infinite = pieces.loss >= largest
        infinity_mass, infinity_mass_q = (xp.where(infinite, mass, 0.0).sum() for mass in (p, q))
        level = xp.clip(pieces.loss, -largest, largest)
        order = xp.argsort(-level)
        level, other = level[order], xp.where(infinite, 0.0, p * xp.exp(-level))[order]
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
        D, epsilon, xp = self.source.period, self.source.epsilon, namespace(at, self.D, *jax.tree.leaves(self.noise))
        shift = xp.abs(self.D)
        reach = (self.periods - 1 - xp.ceil(shift / D)) * D
        needed = shift + xp.abs(xp.stack([0 * shift, *self.noise.edges])).max()
        x = xp.abs(at)
        copies = xp.where(x < reach - D, 1.0, xp.where(x < reach, -1 / xp.expm1(-epsilon), 0.0))
        negligible = epsilon * (reach / D - 1) > 120
        return xp.where((reach - D >= needed) | negligible, copies, np.nan)


_CLOSED_FORMS: dict[type, type[NoiseFormulas]] = {
    PiecewiseExponential: ExponentialFormulas,
    Gaussian: GaussianFormulas,
    Staircase: StepFormulas,
}


# Noise that is not even

# For a pair and its mirror: the number of points at which their profiles are compared, the number of crossings that are
# kept (random merged Laplace noise had at most four), the halvings that find a crossing, and the relative difference up
# to which profiles are equal.
_PLACES, _CROSSINGS, _HALVINGS, _SAME = 512, 8, 40, 1e-10


def larger_profile(pair: AdditivePair, panels: int = 0) -> PrivacyLossDistribution:
    """Return nodes of a pair whose profile is the maximum of this pair's and its mirror's, for shifts of any sign.

    Its positive losses are those of the pair where the pair's profile is larger, and those of the mirror elsewhere.
    Where the profiles cross it has an atom: the mass above the crossing of the pair that is larger below, minus that of
    the other. Staircases are not supported. The result is NaN if there are more crossings than are kept.
    """
    y, own = _crossings(without_derivative(pair))
    xp = namespace(y)
    nodes = pair.privacy_loss().nodes(panels, xp.concatenate([-y, xp.zeros_like(y[:1]), y]))
    positive, size = nodes.loss > 0, xp.abs(nodes.loss)
    p, q = xp.where(positive, nodes.p, nodes.q), xp.where(positive, nodes.q, nodes.p)
    above = size > y[:, None]
    chosen = own[above.sum(0)] == positive
    turned = xp.where(own[:-1] == own[1:], 0, xp.where(own[:-1], 1, -1))[:, None] * xp.where(positive, 1, -1) * above
    p_above, q_above = (turned * p).sum(-1), (turned * q).sum(-1)
    some = (p_above > 0) & (q_above > 0)
    # Up to rounding the loss of an atom is y; it has the derivatives of log p/q.
    ratio = xp.log(xp.where(some, p_above, 1.0)) - xp.log(xp.where(some, q_above, 1.0))
    loss = xp.where(some, y, 0.0) + ratio - without_derivative(ratio)
    atoms = PrivacyLossDistribution(xp.where(some, p_above, 0.0), xp.where(some, q_above, 0.0), loss, 0 * loss)
    positives = PrivacyLossDistribution(xp.where(chosen, p, 0.0), xp.where(chosen, q, 0.0), size, nodes.width)
    return join([positives, atoms]).symmetrized().scaled(xp.where(xp.isnan(y).any(), np.nan, 1.0))


def _crossings(pair: AdditivePair) -> tuple[Any, Any]:
    """Return (positive losses at which the profiles of a pair and its mirror cross, whether the pair's own is larger).

    The losses increase, and are inf where there are fewer. The second array has one more entry, for below the first.
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
    crosses = own[1:] != own[:-1]
    at = xp.sort(xp.where(crosses, np.arange(_PLACES - 1), _PLACES - 1))[:_CROSSINGS]
    after = xp.minimum(at + 1, _PLACES - 1)

    def before(y: Any) -> Any:
        return (sticks[0](y) >= sticks[1](y)) == own[at]

    low, high = bisect(before, y[at], y[after], _HALVINGS)
    crossing = xp.where(after > at, (low + high) / 2, np.inf)
    return xp.where(crosses.sum() <= _CROSSINGS, crossing, np.nan), xp.concatenate([own[:1], own[after]])
