"""The dominating pair of additive noise: a distribution, and the same distribution a distance further on.

p = f,  q = f(. - D),  l = log p - log q. Any noise whose loss is monotone between known points has an exact profile: on
each piece {l > eps} is an interval, whose end is a root. Noise whose log density is a polynomial of degree 2 at most
between knots, such as Laplace, Gaussian or staircase noise, has closed forms. There l(x) = l(at) + slope (x - at)
between the knots of f and of its shift, and what does not depend on eps is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from accountants.dominating_pairs import gaussian_integrals
from accountants.dominating_pairs.base import Curve, DominatingPair, cap, sum_of_pieces
from accountants.dominating_pairs.discrete import Atoms
from accountants.loss_intervals import LOSS_UNITS, UNIT, LossIntervals, intervals_from_tails, points_at_levels
from accountants.privacy_loss import SMOOTH_PANELS, PrivacyLossDistribution, SmoothPieces, join, log_ratio
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.staircase import Staircase
from dpkernels.numerics import (
    Boolean,
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
from dpkernels.proven import proven
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

# The distance, in sigma beyond both means, up to which a Gaussian is integrated.
_MAX_DEVIATIONS = 18.0
# The mass of a Gaussian beyond its reach on both sides: 2 Phi(-18).
_UNSEEN = 2e-72
# Other noise is integrated up to this tail probability on either side.
_TAIL = 1e-40
# Further tail probabilities of the joints of a profile: between them a log density changes by little.
_FAR_TAILS = 10.0 ** -np.arange(44.0, 304.0, 4.0)
# Masses between levels of the loss are known up to this tail probability.
_RESOLVED = 1e-307
_NODES, _WEIGHTS = gauss_legendre(16)
_MAX_LOG_CHANGE = 10.0  # How much a log density may change over an interval on which these nodes are exact.
# The same for a mass; on longer intervals it is a difference of tails, which do not cancel.
_MAX_LOG_CHANGE_OF_MASS = 1.0
# Steps of bisection for the point at which the loss is eps.
_BISECTIONS = 60
_TRACED_PERIODS = 256  # Periods of a traced staircase, on either side, whose steps a pair keeps.
_MAX_PERIODS = 1 << 16  # The most periods of other staircases.
# Bounds on errors, in units in the last place:
_UNITS = 4  # of the numbers that eps is computed from,
_UNITS_REWEIGHTED = 256  # of the norm of reweighted noise,
_UNITS_REPLACED = 16  # and of the numbers from which the mass of noise on samples with replaced records is computed.
# The roundings of the loss of a replaced record: log densities of up to 700 are subtracted.
_UNITS_OF_REPLACED_LOSS = 1024
# The weights of p and of q in f and in its shift.
_OWN_WEIGHTS = np.eye(2)
_LARGE_LOSS = 30.0  # Above this loss, e^loss is or will soon be close to overflow.
# The positions of f, of p's part and of q's part, in units of D, if a record of a sample is replaced.
_REPLACED_POSITIONS = (0.0, 1.0, -1.0)


@proven("worst_pairs#1-additive-noise")
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
    units_of_log: ClassVar[int] = 280
    ends_at_no_loss: ClassVar[bool] = False  # Whether pieces of even noise end where its loss changes its sign.

    @property
    def formulas(self) -> NoiseFormulas:
        return NoiseFormulas.of_form[self.noise.unweighted.density_form](self)

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        """Return whether the noise is Gaussian, possibly truncated or recycled."""
        return self.formulas.rounds_up

    def hockey_stick(self) -> Curve:
        return self.formulas.hockey_stick()

    def nearest_curve(self) -> Curve:
        return self.formulas.hockey_stick(-1)

    def largest_loss(self) -> Real:
        return self.formulas.largest_loss()

    def privacy_loss(self) -> PrivacyLossDistribution:
        return self.formulas.privacy_loss()

    def mirror(self) -> AdditivePair:
        return AdditivePair(self.noise, -self.shift, self.periods)

    def symmetry_gap(self) -> Real:
        return 0.0 if self.noise.is_even else np.inf

    def with_noise_scaled(self, factor: Real) -> AdditivePair:
        return additive_pair(self.noise, self.shift / factor)

    def check(self) -> None:
        if self.shift not in (1, -1):
            raise ValueError(f"shift: {self.shift}; noise is in units of it, so it is 1 or -1")


@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class HalvedPair(AdditivePair):
    """The pair of even noise whose pieces have losses of one sign."""

    ends_at_no_loss: ClassVar[bool] = True


def additive_pair(noise: Distribution, shift: Real) -> AdditivePair:
    """Return the pair of noise and its shift, of any unit, with the number of staircase periods that it needs."""
    xp = namespace(shift)
    noise = noise if len(noise.edges) else noise.unweighted
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
    if needed > _MAX_PERIODS:
        raise ValueError(f"sensitivity: is {1 / period:g} periods of the staircase; at most 30000 are accounted")
    return 1 << max(4, needed - 1).bit_length()


class Pieces(NamedTuple):
    """The pieces between the joints of shifted densities, from left to right, as arrays of one length."""

    left: Any  # -inf for the first piece, except for staircases.
    right: Any
    width: Any  # 0 where the ends differ only by rounding.
    # Points inside, minus the position of each density, along a last axis. With a slope, the point at which the loss is
    # given, which may be outside the piece, whose formulas then continue.
    at: Any
    weights: Any  # The weights of the densities relative to the noise without weights, along a last axis.
    loss: Any = None  # If it is affine: its value, inf where only q is 0, and -inf where only p is.
    slope: Any = None

    @property
    def both_positive(self) -> Boolean:
        return (self.weights > 0).all(-1)

    @property
    def log_ratio_of_weights(self) -> RealArray:
        """Return log w_p - log w_q, where a weight of 0 counts as 1."""
        xp = namespace(self.weights)
        log_p, log_q = xp.log(xp.where(self.weights > 0, self.weights, 1.0)).T
        return log_p - log_q

    @property
    def size_of_weights(self) -> RealArray:
        """Return 0 where both weights are equal, else the size of numbers whose roundings their log ratio has."""
        xp, (weight_p, weight_q) = namespace(self.weights), self.weights.T
        logs = xp.abs(xp.log(xp.where(self.weights > 0, self.weights, 1.0))).sum(-1)
        return xp.where(weight_p == weight_q, 0.0, 2 + logs)

    @property
    def top(self) -> tuple[Real, Real, Real]:
        """Return the end with the larger loss (the finite one if it is flat), -1 if it is the left end, |top - at|."""
        xp = namespace(self.at)
        rightwards = xp.where(self.slope == 0, ~xp.isfinite(self.left), self.slope > 0)
        top = xp.where(rightwards, self.right, self.left)
        return top, xp.where(rightwards, 1.0, -1.0), xp.abs(top - self.at)


# Any noise


class NoiseFormulas:
    """The profile and the privacy loss of noise whose loss is monotone between knots, quantiles and turning points.

    A subclass states the ``density_form`` of the noise for which it is used.
    """

    of_form: ClassVar[dict[str, type[NoiseFormulas]]] = {}
    # Whether the computed hockey-stick divergence is an upper bound.
    rounds_up: ClassVar[bool] = False
    # Whether the profiles of the pair and its mirror cross in few places, see ``larger_profile``.
    is_smooth: ClassVar[bool] = True
    # The mass of the source that is not integrated.
    beyond_reach: ClassVar[float] = 2 * _TAIL
    # The least panels of a piece, and of all pieces; the same with replaced records.
    panels: ClassVar[tuple[int, int]] = 2, 0
    panels_replaced: ClassVar[tuple[int, int]] = 4, 0

    def __init_subclass__(cls, density_form: str | None = None) -> None:
        if density_form is not None:
            NoiseFormulas.of_form[density_form] = cls

    def __init__(self, pair: AdditivePair) -> None:
        self.pair, self.noise, self.D, self.periods = pair, pair.noise, pair.shift, pair.periods
        self.source, self.xp = pair.noise.unweighted, namespace(*jax.tree.leaves(pair))

    @property
    def knots(self) -> RealArray:
        return self.xp.concatenate(self._vectors(self.source.knots, *self.noise.edges))

    def _vectors(self, *points: Real) -> list[Any]:
        return [self.xp.atleast_1d(floating(self.xp.asarray(point))) for point in points]

    @property
    def joints(self) -> RealArray:
        """Return the points between which f is smooth enough."""
        return self.xp.concatenate([without_derivative(self.source.quantiles), self.knots])

    def split(self, distances: tuple[float, ...] = (0.0, 1.0), further: Any = ()) -> Pieces:
        """Return the pieces between all joints of f shifted by these multiples of D, and turning points of the loss."""
        joints, turns, D = self.joints, self._vectors(*self.source.turning_points(self.D)), self.D
        if self.pair.ends_at_no_loss:
            joints = self.xp.concatenate([joints, *self._vectors(D / 2)])
        if len(further):
            joints = namespace(joints, further).concatenate([joints, further])
        xp = namespace(joints, D)
        own = xp.concatenate([xp.tile(joints, len(distances)), *turns])
        moved = xp.repeat(xp.array(distances, joints.dtype), len(joints))
        moved = xp.concatenate([moved, *(0 * turn for turn in turns)])
        order = xp.argsort(own + moved * D)
        own, moved = own[order], moved[order]
        ends, infinity = own + moved * D, xp.full(1, np.inf, own.dtype)
        left, right = xp.concatenate([-infinity, ends]), xp.concatenate([ends, infinity])
        # A joint and its own shift have the distance D, which their difference may have lost to rounding.
        width = width_between(ends[:-1], ends[1:], D, xp.diff(own) + xp.diff(moved) * D)
        width = xp.concatenate([infinity, width, infinity]) if len(ends) else infinity
        at = inside(left, right, D)[:, None] - D * xp.array(distances, ends.dtype)
        return Pieces(left, right, width, at, self.noise.weight(at))

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> sum over pieces of P[l > eps] - e^eps Q[l > eps]; roots of l = eps need no derivative.

        Allowances for rounding errors are added; those that may be large are subtracted with ``side`` -1.
        """
        source, D, pieces = self.source, self.D, self.split(further=self._far_joints)
        left, right, width = pieces[:3]
        (weight_p, weight_q), both_positive, change = (
            pieces.weights.T,
            pieces.both_positive,
            pieces.log_ratio_of_weights,
        )
        low, high = _finite_ends(left, right)
        first, last = (without_derivative(source.loss(x, D) + change) for x in (low, high))
        falls, frozen = first >= last, without_derivative((source, D))

        def cut_at(aim: RealArray, start: RealArray, end: RealArray, falls: Boolean) -> RealArray:
            ends = bisect(lambda x: (frozen[0].loss(x, frozen[1]) > aim) == falls, start, end, _BISECTIONS)
            return (ends[0] + ends[1]) / 2

        def of_pieces(level: Real) -> Real:
            xp = namespace(level, left)
            aim = without_derivative(level - change)
            start, end = without_derivative((low + 0 * aim, high + 0 * aim))
            none_above, all_above = xp.maximum(first, last) <= level, xp.minimum(first, last) > level
            if xp is np:  # Few pieces have the level between their ends.
                some, cut = both_positive & ~none_above & ~all_above, 0 * aim
                cut[some] = cut_at(aim[some], start[some], end[some], np.broadcast_to(falls, some.shape)[some])
            else:
                cut = cut_at(aim, start, end, falls)
            start = xp.where(both_positive & ~(falls | all_above), cut, left)
            end = xp.where(both_positive & falls & ~all_above, cut, right)
            is_present = (xp.where(both_positive, ~none_above, weight_p > 0)) & (width > 0)
            start, end = xp.where(is_present, start, 0.0), xp.where(is_present, end, 0.0)
            gap = weight_p * source.mass(start, end) - xp.exp(level) * weight_q * source.mass(start - D, end - D)
            short, direct = self._gap_by_quadrature(start, end, level - change)
            gap = xp.where(short & both_positive, weight_p * direct, gap)
            return gap * (1 + side * _UNITS_REWEIGHTED * np.finfo(gap.dtype).eps)

        return sum_of_pieces(of_pieces, len(left) * len(_NODES))

    def _gap_by_quadrature(self, start: RealArray, end: RealArray, level: RealArray) -> tuple[Boolean, RealArray]:
        """Return which pieces are short, and the integral of f (1 - e^(level - loss)) on them, without cancellation."""
        source, xp = self.source, namespace(start, level)
        change = [source.log_prob(end - at) - source.log_prob(start - at) for at in (0.0 * self.D, self.D)]
        short = (xp.abs(change[0]) <= _MAX_LOG_CHANGE) & (xp.abs(change[1]) <= _MAX_LOG_CHANGE)
        width = xp.where(short, end - start, 0.0)[..., None]
        x = xp.where(short, start, 0.0)[..., None] + width * like(_NODES, start)
        over = source.loss(x, self.D) - xp.where(short, level, 0.0)[..., None]
        over = xp.where(over > 0, over, 0.0)
        return short, -(width * like(_WEIGHTS, start) * source.prob(x) * xp.expm1(-over)).sum(-1)

    def largest_loss(self) -> Real:
        """Return the supremum of the loss; at infinite ends it is the limit that the distribution states."""
        pieces, limits = self.split(), self.source.loss_limits(self.D)
        sides = (pieces.left, pieces.right)
        xp = namespace(pieces.left, *limits)
        ends = [
            xp.where(xp.isinf(end), limit, self.source.loss(inner, self.D)) + pieces.log_ratio_of_weights
            for end, limit, inner in zip(sides, limits, _finite_ends(*sides), strict=True)
        ]
        unbounded = xp.where(pieces.weights[:, 0] > 0, np.inf, -np.inf)
        loss = xp.where(pieces.both_positive, xp.maximum(*ends), unbounded)
        return xp.where(pieces.width > 0, loss, -np.inf).max()

    @property
    def unseen(self) -> float:
        """Return a bound on the mass beyond the reach on both sides, of plain numbers; 0 under tracing."""
        # Noise is reweighted at most as it is at 0.
        return self.beyond_reach * float(self.noise.weight(np.zeros(()))) if self.xp is np else 0.0

    @property
    def _far_joints(self) -> RealArray:
        """Return quantiles in the tails, where a mass is too small for a difference of tails."""
        xp, quantiles = namespace(self.source.quantiles), without_derivative(self.source.quantiles)
        tails = _FAR_TAILS[4 * float(np.finfo(quantiles.dtype).tiny) < _FAR_TAILS]
        sides = (self.source.inverse(like(tails, quantiles), np.full(len(tails), lower)) for lower in (True, False))
        return without_derivative(xp.concatenate(list(sides)))

    @property
    def _reach(self) -> tuple[Real, Real]:
        tail = like(np.array([_TAIL]), self.source.quantiles)
        return self.source.inverse(tail, np.ones(1, bool)), self.source.inverse(tail, np.zeros(1, bool))

    def within_reach(self, pieces: Pieces, distances: tuple[float, ...] = (0.0, 1.0)) -> tuple[RealArray, RealArray]:
        """Return the ends of pieces within the joint reach of f shifted by these multiples of D."""
        xp, places, (low, high) = self.xp, [distance * self.D for distance in distances], self._reach
        low, high = low + xp.stack(places).min(), high + xp.stack(places).max()
        return xp.clip(pieces.left, low, high), xp.clip(pieces.right, low, high)

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces, source, D = self.split(), self.source, self.D
        left, right = self.within_reach(pieces)
        log_p, log_q = (floating(log_or_never(weight)) for weight in pieces.weights.T)
        change = log_ratio(log_p, log_q)
        smooth = SmoothPieces(
            left,
            right,
            lambda x, i: source.log_prob(x) + log_p[i],
            lambda x, i: source.log_prob(x - D) + log_q[i],
            lambda x, i: source.loss(x, D) + change[i],
            self._steepness(),
            min_panels=_panels_of(left, self.panels),
            whole_ends=(pieces.left, pieces.right),
            intervals=self._intervals(pieces, lambda x, i: source.loss(x, D) + change[i]),
        )
        present = (pieces.weights > 0).any(-1)
        return PrivacyLossDistribution.of_pieces(smooth.where(present), self.unseen)

    @property
    def _far_reach(self) -> tuple[RealArray, RealArray]:
        """Return points beyond which both tails have no more than the least probability that is resolved."""
        least = np.array([_RESOLVED])
        return self.source.inverse(least, np.ones(1, bool)), self.source.inverse(least, np.zeros(1, bool))

    def _intervals(
        self,
        pieces: Pieces,
        loss: Any,
        inverse: Callable[[Any, Any], Any] | None = None,
        distances: tuple[float, ...] = (0.0, 1.0),
        shares: np.ndarray = _OWN_WEIGHTS,
        units: float = LOSS_UNITS,
    ) -> LossIntervals | None:
        """Return the masses between levels of the loss, for plain numbers.

        ``shares`` has the factors of the weights at these distances, for p and for q. ``units`` are the roundings to
        which the loss is known.
        """
        if self.xp is not np:
            return None
        (low, high), places = self._far_reach, [distance * self.D for distance in distances]
        ends = tuple(np.clip(end, low + min(places), high + max(places)) for end in (pieces.left, pieces.right))
        units = max(units, self.source.roundings)

        def points(level: np.ndarray, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if inverse is None:
                return points_at_levels(loss, ends, level, piece, units)
            error = units * UNIT * (1 + np.abs(np.where(np.isfinite(level), level, 0.0)))
            return np.clip(inverse(level, piece), ends[0][piece], ends[1][piece]), error

        weights = shares[:, :, None] * pieces.weights.T
        intervals = intervals_from_tails(self.source, places, (weights[0], weights[1]), ends, points)
        return intervals.where((pieces.weights > 0).any(-1))

    def _steepness(self, distances: tuple[float, ...] = (0.0, 1.0)) -> Callable[[Any, Any, Any], Any]:
        """Return the function that maps panels to the largest steepness of f at these positions."""
        places = [distance * self.D for distance in distances]
        return lambda left, right, _: np.max([self.noise.steepness(left - at, right - at) for at in places], axis=0)

    # One release on a sample of rate r with a record replaced, D > 0: see ``replaced``.

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        """Use that {p > t q} is a half line for an even log-concave density: f(. - D)/f rises and f(. + D)/f falls."""
        noise, D, points = self.noise, self.D, without_derivative(self.noise.quantiles)
        low, high = points[0] - D, points[-1] + D
        still, still_rate = without_derivative((self.pair, rate))

        def at(eps: Any) -> Any:
            xp = namespace(eps, low)
            eps = eps - side * _UNITS_REPLACED * xp.finfo(eps.dtype).eps * (1 + xp.abs(without_derivative(eps)))
            level = without_derivative(eps)

            def before(x: Real) -> Any:
                return log_ratio(*still.formulas.replaced_logs(x, still_rate)) <= level

            ends = bisect(before, low + 0 * level, high + 0 * level, _BISECTIONS)
            cut = (ends[0] + ends[1]) / 2
            same, own, other = noise.sf(cut), noise.sf(cut - D), noise.sf(cut + D)
            delta = rate * (own - xp.exp(eps) * other) - (1 - rate) * xp.expm1(eps) * same
            return xp.where(delta < 0, 0.0, delta)

        return at

    def replaced_logs(self, y: Real, rate: Real) -> tuple[RealArray, RealArray]:
        """Return log p and log q of a release with a record replaced."""
        same, *moved = self._logs_of_replaced(y)
        return _mixed(same, moved[0], rate), _mixed(same, moved[1], rate)

    def _logs_of_replaced(self, y: Real) -> list[Any]:
        return [self.noise.log_prob(y - distance * self.D) for distance in _REPLACED_POSITIONS]

    def replaced_loss(self, y: Real, rate: Real) -> RealArray:
        """Return log p/q of a release with a record replaced, to full precision.

        It is the loss l > 0 of the pair of both records on a sample of the rate that their part of q has: with
        q = (1 - r) f + r g and s = r g/q, p/q is 1 + s (e^l - 1). Where l < 0, p and q are exchanged.
        """
        same, one, other = self._logs_of_replaced(y)
        xp = namespace(same, one, other, rate)
        p, q = _mixed(same, one, rate), _mixed(same, other, rate)
        regular = xp.isfinite(one) & xp.isfinite(other)
        at = xp.where(regular, y, 0.0)
        weights = (floating(log_or_never(self.noise.weight(at + side * self.D))) for side in (-1.0, 1.0))
        own = self.source.loss(at - self.D, -2 * self.D) + log_ratio(*weights)
        rises = own >= 0
        sign, size = xp.where(rises, 1.0, -1.0), xp.abs(own)
        log_share = xp.minimum(xp.log(rate) + xp.where(regular, xp.where(rises, other - q, one - p), 0.0), 0.0)
        large = size > _LARGE_LOSS
        near = xp.log1p(xp.exp(log_share) * xp.expm1(xp.where(large, 0.0, size)))
        far = xp.logaddexp(log_or_never(-xp.expm1(log_share)), size + log_share)
        return xp.where(regular, sign * xp.where(large, far, near), log_ratio(p, q))

    def replaced_privacy_loss(self, rate: Any) -> PrivacyLossDistribution:
        uncut = self.split(_REPLACED_POSITIONS)
        left, right = self.within_reach(uncut, _REPLACED_POSITIONS)
        intervals = None
        if len(self.noise.edges) == 0 and namespace(rate) is np:  # The density is log-concave, so the loss is monotone.
            shares = np.array([[1 - rate, rate, 0.0], [1 - rate, 0.0, rate]])
            loss = self.replaced_loss
            intervals = self._intervals(
                uncut, lambda x, _: loss(x, rate), None, _REPLACED_POSITIONS, shares, _UNITS_OF_REPLACED_LOSS
            )
        pieces = self._replaced_pieces(left, right, right - left, rate)
        pieces = replace(pieces, whole_ends=(uncut.left, uncut.right), intervals=intervals)
        return PrivacyLossDistribution.of_pieces(pieces, self.unseen if namespace(left, rate) is np else 0.0)

    def _replaced_pieces(self, left: Any, right: Any, width: Any, rate: Any) -> SmoothPieces:
        return SmoothPieces(
            left,
            left + width_between(left, right, self.D, width),
            lambda x, _: self.replaced_logs(x, rate)[0],
            lambda x, _: self.replaced_logs(x, rate)[1],
            lambda x, _: self.replaced_loss(x, rate),
            self._steepness(_REPLACED_POSITIONS),
            min_panels=_panels_of(left, self.panels_replaced),
        )


def _mixed(log_f: RealArray, log_g: RealArray, rate: Real) -> RealArray:
    """Return log((1 - r) f + r g)."""
    xp = namespace(log_f, log_g, rate)
    top = without_derivative(xp.maximum(log_f, log_g))
    top = xp.where(top > -np.inf, top, 0.0)
    return top + log_or_never((1 - rate) * xp.exp(log_f - top) + rate * xp.exp(log_g - top))


def _panels_of(pieces: RealArray, panels: tuple[int, int]) -> int:
    return max(panels[0], panels[1] // len(pieces))


# A log density that is a polynomial between knots


class PolynomialFormulas(NoiseFormulas):
    """Closed forms for an affine loss between knots."""

    beyond_reach: ClassVar[float] = 0.0
    panels: ClassVar[tuple[int, int]] = SMOOTH_PANELS, 0
    panels_replaced: ClassVar[tuple[int, int]] = 8, 0

    @property
    def _reach(self) -> tuple[Real, Real]:
        return -np.inf, np.inf

    @property
    def joints(self) -> RealArray:
        return self.knots

    def _units(self, size: RealArray) -> RealArray:
        """Return the relative errors, in units in the last place, of masses with log densities of this size."""
        return _UNITS * size + (_UNITS_REWEIGHTED if len(self.noise.edges) else 0)

    def _at(self, at: RealArray) -> tuple[RealArray, RealArray]:
        """Return (point at which the loss is given, slope of the loss) of pieces, from points inside them."""
        return at[:, 0], self.source.score(at[:, 0]) - self.source.score(at[:, 1])

    def pieces(self) -> Pieces:
        pieces, source = self.split(), self.source
        at, slope = self._at(pieces.at)
        loss = source.loss(at, self.D) + pieces.log_ratio_of_weights
        xp, (has_p, has_q) = namespace(loss), (pieces.weights > 0).T
        # Where both weights are 0 the loss is that of equal small weights: derivatives in the weight are taken there.
        both = has_p == has_q
        loss = xp.where(both, loss, xp.where(has_p, np.inf, -np.inf))
        return pieces._replace(at=at, loss=loss, slope=xp.where(both, slope, 0.0))

    def largest_loss(self) -> Real:
        pieces = self.pieces()
        xp = namespace(pieces.loss)
        top = pieces.loss + xp.abs(pieces.slope) * pieces.top[2]
        return xp.where(pieces.width > 0, top, -np.inf).max()

    def _mass(self, pieces: Pieces, at: Real) -> RealArray:
        """Return the masses of the source moved to ``at``: by nodes where a difference of tails would cancel."""
        source, left, right = self.source, pieces.left - at, pieces.right - at
        xp = namespace(left)
        finite = xp.isfinite(pieces.width)
        low, high = xp.where(finite, left, 0.0), xp.where(finite, right, 0.0)
        top = source.log_prob(without_derivative(xp.clip(0.0 * low, low, high)))
        short = finite & (top - xp.minimum(source.log_prob(low), source.log_prob(high)) <= _MAX_LOG_CHANGE_OF_MASS)
        width = xp.where(short, pieces.width, 0.0)[:, None]
        by_nodes = (width * like(_WEIGHTS, low) * source.prob(low[:, None] + width * like(_NODES, low))).sum(-1)
        return xp.where(short, by_nodes, source.mass(left, right))

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces, source, D = self.pieces(), self.source, self.D
        xp = namespace(pieces.at)
        constant = (pieces.slope == 0) & (pieces.width > 0)
        p, q = (
            xp.where(constant, weight * self._mass(pieces, at), 0.0)
            for weight, at in zip(pieces.weights.T, (0.0, D), strict=True)
        )
        width = xp.where(constant, pieces.width, 0.0)
        atoms = PrivacyLossDistribution(_possible(p, pieces.loss, width), q, pieces.loss, 0 * p)
        left, right = self.within_reach(pieces)
        present = (pieces.slope != 0) & (pieces.width > 0)
        # An absent piece has no length, and values for which all formulas are finite.
        numbers = left, right, pieces.left, pieces.right, pieces.at, pieces.loss
        left, right, *beyond, at, loss = (xp.where(present, each, 0.0) for each in numbers)
        slope, log_weight = xp.where(present, pieces.slope, 1.0), floating(log_or_never(pieces.weights[:, 0]))

        def log_p(x: RealArray, i: RealArray) -> RealArray:
            return source.log_prob(x) + log_weight[i]

        def affine(x: RealArray, i: Real) -> RealArray:
            return loss[i] + slope[i] * (x - at[i])

        def inverse(value: RealArray, i: Real) -> RealArray:
            return at[i] + (value - loss[i]) / slope[i]

        def log_q(x: RealArray, i: RealArray) -> RealArray:
            return log_p(x, i) - affine(x, i)

        panels = _panels_of(left, self.panels)
        # Points far from 0 are rounded, by more than a loss allows for where it is steep there.
        finite = xp.isfinite(left) & xp.isfinite(right)
        steep = xp.where(finite, xp.abs(slope) * xp.maximum(xp.abs(left), xp.abs(right)), 0.0).max()
        units = max(LOSS_UNITS, _UNITS * float(steep)) if self.xp is np else LOSS_UNITS
        intervals = self._intervals(pieces, affine, inverse, units=units)
        smooth = SmoothPieces(
            left, right, log_p, log_q, affine, self._steepness(), inverse, panels, (beyond[0], beyond[1]), intervals
        )
        return join([atoms, PrivacyLossDistribution.of_pieces(smooth.where(present), self.unseen)])


def _possible(p: RealArray, loss: RealArray, width: RealArray) -> RealArray:
    """Return masses, those of losses above 0 not 0 by underflow: a possible loss must stay one, however large."""
    xp = namespace(p, loss)
    return xp.where((loss > 0) & (width > 0), xp.maximum(p, xp.finfo(p.dtype).tiny), p)


def _finite_ends(left: RealArray, right: RealArray) -> tuple[RealArray, RealArray]:
    xp = namespace(left)
    return xp.where(xp.isinf(left), right, left), xp.where(xp.isinf(right), left, right)


def width_between(left: RealArray, right: RealArray, D: Real, apart: RealArray) -> RealArray:
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


class ExponentialFormulas(PolynomialFormulas, density_form="exponential"):
    """Closed forms for noise that is exponential between knots."""

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> delta(eps), the sum over pieces of a closed integral.

        integral over 0 < t < T of p_top e^(r t) - e^eps q_top e^((r + s) t),    T = (l_top - eps)/s,

        where t is the distance from the top, r the derivative of log p in t, and s = |slope|.
        """
        pieces, source = self.pieces(), self.source
        top, direction, offset = pieces.top
        xp = namespace(pieces.at)
        fall, loss = xp.abs(pieces.slope), pieces.loss + xp.abs(pieces.slope) * offset

        def density(weight: Real, at: Real) -> tuple[Any, Any, Any, Any]:
            score, log = source.score(at), source.log_prob(at)
            change = score * (top - pieces.at)
            return weight, log + change, -direction * score, xp.abs(log) + xp.abs(change)

        # The difference of large logarithms has an error of units of theirs: eps is lowered by that, as in ``curve``.
        weight_p, log_p, r, size_p = density(pieces.weights[:, 0], pieces.at)
        weight_q, log_q, r_q, size_q = density(pieces.weights[:, 1], pieces.at - self.D)
        size = xp.maximum(size_p, size_q) + pieces.size_of_weights
        unit, size = xp.finfo(loss.dtype).eps, without_derivative(xp.where(xp.isfinite(size), size, 0.0))
        factor = 1 + side * unit * self._units(size)

        def of_pieces(eps: Real) -> Real:
            eps = eps - side * unit * size
            T = xp.clip((loss - eps) / xp.where(fall > 0, fall, 1.0), 0.0, pieces.width)
            T = xp.where(fall > 0, T, xp.where(loss > eps, pieces.width, 0.0))
            gap = weight_p * exponential_growth(log_p, r, T) - weight_q * exponential_growth(log_q + eps, r_q, T)
            return gap * factor

        return sum_of_pieces(of_pieces, len(loss))

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        """Return eps -> delta(eps), a sum over pieces; s is the distance from their finite end, log densities l + k s.

        log r f(. - D) - log((1 - r) (t - 1) f + t r f(. + D)) is concave between knots, so positive on an interval.
        """
        pieces, source = self.split(_REPLACED_POSITIONS), self.source
        xp = namespace(pieces.left, rate)
        places = self.D * xp.array(_REPLACED_POSITIONS, pieces.left.dtype)
        rising = xp.isfinite(pieces.left)
        origin = xp.where(rising, pieces.left, pieces.right)
        slopes = xp.where(rising, 1.0, -1.0)[:, None] * source.score(pieces.at)
        logs = source.log_prob(origin[:, None] - places) + log_or_never(pieces.weights)
        logs = logs + xp.stack([xp.log1p(-rate) + 0 * rate, xp.log(rate), xp.log(rate)])
        size = xp.where(xp.isfinite(logs), xp.abs(logs), 0.0).max(-1)
        unit, size = xp.finfo(logs.dtype).eps, without_derivative(size)
        factor = 1 + side * unit * (_UNITS_REPLACED + self._units(size))

        (free, own, other), (free_slope, slope, other_slope), width = logs.T, slopes.T, pieces.width
        finite = xp.where(xp.isfinite(width), width, 0.0)

        def of_pieces(eps: RealArray) -> Real:
            xp = namespace(eps, logs)
            eps = eps - side * 2 * unit * size
            growth = log_or_never(xp.maximum(xp.expm1(eps), 0.0))

            def excess(s: RealArray) -> tuple[RealArray, RealArray]:
                log_free, log_own = growth + free + free_slope * s, own + slope * s
                both = xp.logaddexp(log_free, eps + other + other_slope * s)
                share = xp.exp(log_free - xp.where(both > -np.inf, both, 0.0))
                ratio = xp.where(log_own > -np.inf, log_ratio(log_own, both), -np.inf)
                return ratio, slope - share * free_slope - (1 - share) * other_slope

            first, last = _positive(excess, finite + 0 * eps)
            endless = xp.isinf(width)
            first = xp.where(endless, 0.0, first)
            positive = excess(0.0 * eps)[0] > 0
            last = xp.where(endless, xp.where(positive, np.inf, 0.0), xp.where(last >= finite, width, last))
            first = xp.where(first > 0, without_derivative(first), 0.0)

            def mass(log_start: Real, slope: Real) -> Any:
                return exponential_growth(log_start + slope * first, slope, last - first)

            lost = xp.expm1(eps) * mass(free, free_slope) + mass(eps + other, other_slope)
            return (mass(own, slope) - lost) * factor

        return sum_of_pieces(of_pieces, len(width))

    def replaced_privacy_loss(self, rate: Any) -> PrivacyLossDistribution:
        left, right, width = (each[1:-1] for each in self.split(_REPLACED_POSITIONS)[:3])
        pieces = PrivacyLossDistribution.of_pieces(self._replaced_pieces(left, right, width, rate))
        # Beyond all knots the loss is constant; the last knot is that of q's part.
        near, middle, far = (floating(self.noise.sf(self.knots.max() + k * self.D))[None] for k in range(3))
        without = (1 - rate) * middle
        beyond = PrivacyLossDistribution.of_masses(without + rate * near, without + rate * far)
        return join([pieces, beyond, beyond.mirrored()])


def _positive(excess: Any, width: Real) -> tuple[Real, Real]:
    """Return the ends of the interval on which a concave function is positive; (width, width) if it is nowhere."""

    def value(s: Real) -> Any:
        return without_derivative(excess(without_derivative(s))[0])

    def slope(s: Real) -> Any:
        return without_derivative(excess(without_derivative(s))[1])

    xp = namespace(width)
    zero = xp.zeros_like(width)
    low, high = bisect(lambda s: slope(s) > 0, zero, width, _BISECTIONS)
    best = xp.where(slope(zero) <= 0, zero, xp.where(slope(width) >= 0, width, (low + high) / 2))
    first = bisect(lambda s: value(s) <= 0, zero, best, _BISECTIONS)[1]
    first = xp.where(value(zero) > 0, zero, first)
    last = bisect(lambda s: value(s) > 0, best, width, _BISECTIONS)[0]
    last = xp.where(value(width) > 0, width, last)
    is_positive = value(best) > 0
    return xp.where(is_positive, first, width), xp.where(is_positive, last, width)


def exponential_growth(log_start: Real, r: Real, T: Real) -> Real:
    """Return the integral of exp(log_start + r t) over 0 < t < T: 0 at T = 0, and T may be infinite where r < 0."""
    xp = namespace(log_start, r, T)
    highest = log_start + xp.maximum(r * xp.where(xp.isinf(T), 0.0, T), 0.0)
    size = xp.where(r == 0, 0.0, xp.abs(r))  # Not a maximum with -r, whose derivative at 0 is halved.
    return xp.exp(xp.where(T > 0, highest, -np.inf)) * exponential_moment(0, 0.0, size, T)


class GaussianFormulas(PolynomialFormulas, density_form="gaussian"):
    """Closed forms for a Gaussian, with steps of weight if it is truncated or recycled."""

    rounds_up: ClassVar[bool] = True
    beyond_reach: ClassVar[float] = _UNSEEN
    panels: ClassVar[tuple[int, int]] = 6, 30
    panels_replaced: ClassVar[tuple[int, int]] = 12, 96  # The loss changes its slope within sigma^2/D.

    def _at(self, at: RealArray) -> tuple[RealArray, RealArray]:
        """Take the loss, D (D/2 - x)/s^2 plus a step, at x = D/2, where no digits are lost."""
        middle = self.D / 2 + 0 * at[:, 0]
        return middle, self.source.score(middle) - self.source.score(middle - self.D)

    def largest_loss(self) -> Real:
        return np.inf + 0 * self.D

    @property
    def _reach(self) -> tuple[Any, Any]:
        reach = _MAX_DEVIATIONS * self.source.sigma + floating(self.xp.zeros(()))
        return -reach, reach

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> the sum over pieces of w_P times the integral of phi(x) (1 - e^(eps - loss)) where loss > eps.

        x is in units of sigma and rises with the loss: there the loss is log(w_P/w_Q) + a (x + a/2), a = |D|/sigma.
        The value is rounded upwards: eps is lowered by units of itself and of the losses at the piece's ends.
        """
        D, sigma, xp = self.D, self.source.sigma, self.xp
        a = xp.abs(D) / sigma
        if len(self.noise.edges) == 0:
            return sum_of_pieces(lambda eps: gaussian_delta(a, eps), gaussian_integrals.VALUES)
        pieces = self.pieces()
        sloped = ~xp.isinf(pieces.loss)  # NaN stays.
        left, right, width = (in_units(end, sigma) for end in pieces[:3])
        far, top = xp.where(D < 0, left, -right), xp.where(D < 0, right, -left)
        loss, (weight_p, weight_q) = xp.where(sloped, pieces.loss, 0.0), pieces.weights.T
        size = sum(xp.where(xp.isfinite(end), xp.abs(end), 0.0) for end in (far, top))
        size = xp.where(size > 0, xp.abs(loss) + a * (size + a) + pieces.size_of_weights, 0.0)

        def of_pieces(eps: RealArray) -> Real:
            xp = namespace(eps, loss)
            eps = eps - side * _UNITS * np.finfo(eps.dtype).eps * without_derivative(xp.abs(eps) + size)
            cut = (eps - loss) / a - a / 2
            all_above = ~sloped | (cut <= far)
            start = xp.where(all_above, far, xp.minimum(cut, top))
            is_present = ~((start >= top) | xp.isinf(start) | (width <= 0))  # NaN stays.
            start, rest = (
                xp.where(is_present, start, 0.0),
                xp.where(is_present, xp.where(all_above, width, top - start), 1.0),
            )
            lead = a * xp.where(all_above & sloped & is_present, far - cut, 0.0)
            gain, p, q = gaussian_integrals.gain(start, rest, a, lead)
            # Where q is 0 the loss is infinite; q enters for the derivative in its weight.
            unbounded = xp.where(pieces.loss > 0, weight_p * p - xp.exp(eps) * weight_q * q, 0.0)
            delta = xp.where(is_present, xp.where(sloped, weight_p * gain, unbounded), 0.0)
            return delta * (1 + side * _UNITS_REWEIGHTED * np.finfo(eps.dtype).eps)

        return sum_of_pieces(of_pieces, len(loss) * gaussian_integrals.VALUES)

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        """Return the sum over pieces, with x in units of sigma and a = D/sigma."""
        sigma = self.source.sigma
        a = self.D / sigma
        if len(self.noise.edges) == 0:
            return sum_of_pieces(lambda eps: _of_one_gaussian_replaced(a, rate, eps), gaussian_integrals.VALUES)
        pieces = self.split(_REPLACED_POSITIONS)
        left, right, width = (in_units(end, sigma) for end in pieces[:3])
        free, own, other = pieces.weights.T

        def of_pieces(eps: RealArray) -> Real:
            xp = namespace(eps, left, rate)
            cut, has_cut = _cut(a, rate, eps, (free, own, other))
            all_above = cut <= left
            start = xp.where(all_above, left, cut)
            # Below the first point where p is possible there is no mass of p; at an end of -inf, p is not above t q.
            is_present = has_cut & ~((start >= right) | xp.isinf(start) | (width <= 0))
            start, rest = (
                xp.where(is_present, start, 0.0),
                xp.where(is_present, xp.where(all_above, width, right - start), 1.0),
            )
            one, _, mass = gaussian_integrals.gain(start - a, rest, a, 0.0 * start)
            two, _, _ = gaussian_integrals.gain(start, rest, a, 0.0 * start)
            factor = xp.exp(xp.where(is_present, eps - a * start - a**2 / 2, 0.0))
            gained = rate * (own * one + other * factor * two)
            ahead = rate * (own * xp.exp(a * start - a**2 / 2) - other * factor) - (1 - rate) * free * xp.expm1(eps)
            delta = gained + xp.where(all_above, xp.maximum(ahead, 0.0), 0.0) * mass
            return xp.where(is_present, _sized(delta, start, a, eps), 0.0)

        return sum_of_pieces(of_pieces, len(left) * gaussian_integrals.VALUES)


def gaussian_delta(a: Real, eps: RealArray) -> RealArray:
    """Return delta for one piece without ends; it is positive at every eps, also where it underflows."""
    kind = np.finfo(eps.dtype)
    eps = eps - _UNITS * kind.eps * abs(without_derivative(eps))
    return gaussian_integrals.endless_gain(eps / a - a / 2, a) * (1 + _UNITS * kind.eps) + kind.tiny


def _cut(
    a: Real, rate: Real, eps: RealArray, weights: tuple[RealArray, RealArray, RealArray]
) -> tuple[RealArray, Boolean]:
    """Return the point at which p = t q, and whether there is one; p - t q > 0 above it.

    The root of A e^(a x) - B - C e^(-a x) = 0 is  a x = log(C/A)/2 + asinh(B/(2 sqrt(A C))).
    """
    free, own, other = weights
    xp = namespace(a, rate, eps, own)
    log_own, log_other = (log_or_never(rate * weight) for weight in (own, other))
    growth = xp.maximum(xp.expm1(eps), 0.0)
    log_b = log_or_never((1 - rate) * free * growth)
    two = (own > 0) & (other > 0)
    half = xp.where(two, eps + xp.where(two, log_other - log_own, 0.0), 0.0) / 2
    log_2k = xp.log(2.0) + xp.where(two, log_own + log_other, 0.0) / 2 + (eps - a**2) / 2
    large = log_b - log_2k > 20
    z = (1 - rate) * free * growth * xp.exp(-xp.where(large, 0.0, log_2k))
    far = xp.log(2.0) + xp.where(large, log_b - log_2k, 0.0)
    both = half + xp.where(large, far, xp.arcsinh(xp.where(large, 0.0, z)))
    some_b = log_b > -np.inf
    one = xp.where(some_b, xp.where(some_b, log_b, 0.0) - xp.where(own > 0, log_own, 0.0) + a**2 / 2, -np.inf)
    x = xp.where(two, both, xp.where(some_b, one, 0.0)) / a
    return xp.where(two | some_b, x, -np.inf), own > 0


def _sized(value: RealArray, start: RealArray, a: Real, eps: RealArray) -> RealArray:
    """Return the value rounded upwards by the possible error of its exponents."""
    xp = namespace(value, start)
    size = without_derivative(1 + start**2 + a**2 + xp.abs(a * start) + xp.abs(eps))
    return value * (1 + _UNITS_REPLACED * xp.finfo(value.dtype).eps * xp.minimum(size, 1e4))


def _of_one_gaussian_replaced(a: Real, rate: Real, eps: RealArray) -> RealArray:
    """Return r J(c - a) + t r e^(-a c - a^2/2) J(c),  J(c) = integral of phi(x) (1 - e^-(a (x - c))) over x > c."""
    xp = namespace(a, rate, eps)
    kind = xp.finfo(eps.dtype)
    eps = eps - _UNITS_REPLACED * kind.eps * xp.abs(without_derivative(eps))
    one = xp.ones_like(eps)
    cut, _ = _cut(a, rate, eps, (one, one, one))
    own = gaussian_integrals.endless_gain(cut - a, a)
    other = xp.exp(eps - a * cut - a**2 / 2) * gaussian_integrals.endless_gain(cut, a)
    return _sized(rate * (own + other), cut, a, eps) + kind.tiny


def in_units(end: Real, sigma: Real) -> RealArray:
    """Return end/sigma with finite derivatives; an infinite end is returned as it is."""
    xp = namespace(end, sigma)
    finite = xp.isfinite(end)
    return xp.where(finite, xp.where(finite, end, 0.0) / sigma, end)


class StepFormulas(PolynomialFormulas, density_form="constant"):
    """Closed forms for a staircase, whose loss takes finitely many values on the periods kept."""

    is_smooth: ClassVar[bool] = False

    @property
    def knots(self) -> RealArray:
        """Return the steps of the periods that the pair keeps, and the edges."""
        return self.xp.concatenate(self._vectors(self.source.steps(self.periods), *self.noise.edges))

    def split(self, distances: tuple[float, ...] = (0.0, 1.0), further: Any = ()) -> Pieces:
        return Pieces(*(each[1:-1] for each in super().split(distances, further)[:5]))

    def _at(self, at: RealArray) -> tuple[RealArray, RealArray]:
        return at[:, 0], 0.0 * at[:, 0]

    def _masses(self, pieces: Pieces) -> tuple[Any, Any]:
        xp, size = namespace(pieces.at), pieces.width * self.copies(pieces.at)
        p, q = (xp.exp(self.source.log_prob(at)) * size for at in (pieces.at, pieces.at - self.D))
        return pieces.weights[:, 0] * p, pieces.weights[:, 1] * q

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces = self.pieces()
        p, q = self._masses(pieces)
        width = pieces.width * self.copies(pieces.at)
        return PrivacyLossDistribution(_possible(p, pieces.loss, width), q, pieces.loss, 0 * p)

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> delta(eps), which is linear in e^eps between the values l_1 < l_2 < ... of the loss.

        delta(eps) = delta(l_i) + (1 - e^(eps - l_i)) e^(l_i) Q(loss >= l_i),  l_i the least level above eps.
        """
        pieces = self.pieces()
        p, q = self._masses(pieces)
        xp = namespace(pieces.loss)
        largest = cap(pieces.loss.dtype)
        unit, places = xp.finfo(pieces.loss.dtype).eps, (pieces.at, pieces.at - self.D)
        size_p, size_q = (without_derivative(xp.abs(self.source.log_prob(at))) for at in places)
        p, q = p * (1 + side * unit * self._units(size_p)), q * (1 - side * unit * self._units(size_q))
        infinite = pieces.loss >= largest
        infinity_mass, infinity_mass_q = (xp.where(infinite, mass, 0.0).sum() for mass in (p, q))
        level = xp.clip(pieces.loss + side * unit * (size_p + size_q), -largest, largest)
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
            finite_part = delta[i] - xp.where(count > 0, slope[i] * xp.expm1(eps - level[i]), 0.0)
            return finite_part + infinity_mass - xp.exp(eps) * infinity_mass_q

        return at

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        losses = self.replaced_privacy_loss(rate)
        pair = Atoms(losses.p, losses.q)
        return pair.hockey_stick() if side > 0 else pair.nearest_curve()

    def replaced_privacy_loss(self, rate: Any) -> PrivacyLossDistribution:
        pieces = self.split(_REPLACED_POSITIONS)
        at = (pieces.left + pieces.right) / 2
        mass, logs = pieces.width * self.copies(at), self.replaced_logs(at, rate)
        p, q = (mass * namespace(mass).exp(log) for log in logs)
        loss = log_ratio(*logs)
        return PrivacyLossDistribution(_possible(p, loss, mass), q, loss, 0 * mass)

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


NoiseFormulas.of_form["general"] = NoiseFormulas


# Noise that is not even

# For a pair and its mirror:
_COMPARED_POINTS = 512  # the points at which their profiles are compared,
_MAX_CROSSINGS = 8  # the crossings that are kept (random merged Laplace noise had at most four),
_HALVINGS = 40  # the halvings that find a crossing,
_PROFILE_RTOL = 1e-10  # and the relative difference up to which profiles are equal.


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
    is_larger = (p_above > 0) & (q_above > 0)
    # Up to rounding the loss of an atom is y; it has the derivatives of log p/q.
    ratio = xp.log(xp.where(is_larger, p_above, 1.0)) - xp.log(xp.where(is_larger, q_above, 1.0))
    loss = xp.where(is_larger, y, 0.0) + ratio - without_derivative(ratio)
    atoms = PrivacyLossDistribution(
        xp.where(is_larger, p_above, 0.0), xp.where(is_larger, q_above, 0.0), loss, 0 * loss
    )
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
    y = top * like(np.append(np.linspace(0.0, 1.0, _COMPARED_POINTS)[1:-1] ** 2, [1 - 1e-6, 1.0]), top)
    one, other = (stick(y) for stick in sticks)
    sign = xp.where(xp.abs(one - other) > _PROFILE_RTOL * xp.maximum(one, other), xp.sign(one - other), 0.0)
    # Equal profiles count as below, next to 0 as above; where all are equal, the pair's own counts as larger.
    sign = xp.concatenate([sign[xp.argmax(sign != 0)][None], sign])
    changes: Any = xp.where(sign != 0, np.arange(len(sign)), 0)
    latest: Any = np.maximum.accumulate(changes) if xp is np else jax.lax.cummax(changes)
    own = sign[latest][1:] >= 0
    crosses = own[1:] != own[:-1]
    at = xp.sort(xp.where(crosses, np.arange(_COMPARED_POINTS - 1), _COMPARED_POINTS - 1))[:_MAX_CROSSINGS]
    after = xp.minimum(at + 1, _COMPARED_POINTS - 1)

    def before(y: Real) -> Any:
        return (sticks[0](y) >= sticks[1](y)) == own[at]

    low, high = bisect(before, y[at], y[after], _HALVINGS)
    crossing = xp.where(after > at, (low + high) / 2, np.inf)
    return xp.where(crosses.sum() <= _MAX_CROSSINGS, crossing, np.nan), xp.concatenate([own[:1], own[after]])
