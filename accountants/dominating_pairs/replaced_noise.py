"""The exact profile of noise on a Poisson sample in which one record is replaced: closed forms between knots.

For f even and falling from 0 the worst two records move the value by D and by -D:

    p = (1 - r) f + r f(. - D),    q = (1 - r) f + r f(. + D),
    p - t q = r f(. - D) - (1 - r) (t - 1) f - t r f(. + D),    t = e^eps >= 1.

Between the knots of all three, where log f is a polynomial of degree 2 at most, p - t q changes its sign at most twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from accountants.dominating_pairs import gaussian_integrals
from accountants.dominating_pairs.additive import (
    REACH,
    AdditivePair,
    ExponentialFormulas,
    GaussianFormulas,
    NoiseFormulas,
    StepFormulas,
    exponential_growth,
    in_units,
    inside,
    total,
    width_between,
)
from accountants.dominating_pairs.base import Curve
from accountants.dominating_pairs.discrete import Atoms
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, log_ratio
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real, RealArray, floating, log_or_never, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

# Panels of a piece: for exponentials; for a Gaussian, whose loss changes its slope within sigma^2/D; for other noise.
_PANELS, _GAUSSIAN_PANELS, _FEW_PANELS = 8, 96, 4
# The error, in units in the last place, of the numbers from which a mass is computed.
_UNITS = 16
_HALVINGS = 60


@pytree
@dataclass(frozen=True)
class ReplacedPieces:
    """The pieces between neighbouring knots of f, f(. - D) and f(. + D), as arrays of one length.

    Attributes:
        left: the lower end; -inf for the first piece.
        right: the upper end; inf for the last piece.
        width: right - left, and 0 where the ends differ only by rounding.
        weights: the weights of f, f(. - D) and f(. + D), relative to ``noise.unweighted``, along a last axis.
        scores: the derivatives of their log densities at a point inside, along a last axis.
    """

    left: Any
    right: Any
    width: Any
    weights: Any
    scores: Any


def replaced_hockey_stick(pair: AdditivePair, rate: Any) -> Curve:
    """Return the function eps -> delta(eps), for eps >= 0, of even noise."""
    noise, D = pair.noise, namespace(pair.shift).abs(pair.shift)
    formulas = pair.formulas
    if isinstance(formulas, StepFormulas):
        nodes = _of_steps(formulas, ReplacedDensities.of(pair, rate))
        return Atoms(nodes.p, nodes.q).hockey_stick()
    if isinstance(formulas, GaussianFormulas):
        if len(noise.edges) == 0:
            return lambda eps: _of_one_gaussian(D / noise.unweighted.sigma, rate, eps)
        return _gaussians(pair, D, rate)
    if isinstance(formulas, ExponentialFormulas):
        return _exponentials(pair, D, rate)
    return _monotone(pair, D, rate)


def check_replaceable(pair: AdditivePair) -> None:
    """Raise an error for noise whose profile on samples with a replaced record is not known.

    Raises:
        ValueError: the density is neither log-concave nor of a known form.
    """
    noise = pair.noise
    if type(pair.formulas) is NoiseFormulas and (len(noise.edges) or noise.unweighted.turning_points(1.0)):
        raise ValueError(
            f"adjacency: 'replace' is not known for {type(noise).__name__}, whose density is not log-concave; take "
            "'add_remove'"
        )


def _monotone(pair: AdditivePair, D: Any, rate: Any) -> Curve:
    """Use that p/q rises for an even log-concave density, so that {p > t q} is a half line.

    f(. - D)/f rises and f(. + D)/f falls.
    """
    noise = pair.noise
    densities = ReplacedDensities(noise, D, rate)
    points = without_derivative(noise.quantiles)
    low, high = points[0] - D, points[-1] + D

    def at(eps: Any) -> Any:
        xp = namespace(eps, low)
        eps = eps - _UNITS * xp.finfo(eps.dtype).eps * (1 + xp.abs(without_derivative(eps)))
        frozen = without_derivative((densities, eps))
        ends = bisect(lambda x: frozen[0].loss(x) <= frozen[1], low + 0 * frozen[1], high + 0 * frozen[1], _HALVINGS)
        cut = (ends[0] + ends[1]) / 2
        same, own, other = noise.sf(cut), noise.sf(cut - D), noise.sf(cut + D)
        found = rate * (own - xp.exp(eps) * other) - (1 - rate) * xp.expm1(eps) * same
        return xp.where(found < 0, 0.0, found)

    return at


def _split(pair: AdditivePair, D: Any) -> ReplacedPieces:
    noise, knots = pair.noise, pair.formulas.knots
    xp = namespace(knots, D)
    own = xp.asarray(xp.tile(knots, 3))
    moved = xp.repeat(xp.array([-1.0, 0.0, 1.0], own.dtype), len(own) // 3)
    order = xp.argsort(own + moved * D)
    own, moved = own[order], moved[order]
    ends = own + moved * D
    infinity = xp.full(1, np.inf, ends.dtype)
    width = width_between(ends[:-1], ends[1:], D, xp.diff(own) + xp.diff(moved) * D)
    left, right = xp.concatenate([-infinity, ends]), xp.concatenate([ends, infinity])
    at = inside(left, right, D)[:, None] - D * xp.array([0.0, 1.0, -1.0], ends.dtype)
    whole = xp.concatenate([infinity, width, infinity])
    return ReplacedPieces(left, right, whole, noise.weight(at), noise.unweighted.score(at))


# Gaussian noise: x in units of sigma, a = D/sigma


def _cut(a: Any, rate: Any, eps: Any, weights: Any) -> tuple[Any, Any]:
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


def _sized(value: Any, start: Any, a: Any, eps: Any) -> Any:
    """Return the value rounded upwards by the possible error of its exponents."""
    xp = namespace(value, start)
    size = without_derivative(1 + start**2 + a**2 + xp.abs(a * start) + xp.abs(eps))
    return value * (1 + _UNITS * xp.finfo(value.dtype).eps * xp.minimum(size, 1e4))


def _of_one_gaussian(a: Any, rate: Any, eps: RealArray) -> Any:
    """Return r J(c - a) + t r e^(-a c - a^2/2) J(c),  J(c) = integral of phi(x) (1 - e^-(a (x - c))) over x > c."""
    xp = namespace(a, rate, eps)
    kind = xp.finfo(eps.dtype)
    eps = eps - _UNITS * kind.eps * xp.abs(without_derivative(eps))
    one = xp.ones_like(eps)
    cut, _ = _cut(a, rate, eps, (one, one, one))
    own = gaussian_integrals.endless_gain(cut - a, a)
    other = xp.exp(eps - a * cut - a**2 / 2) * gaussian_integrals.endless_gain(cut, a)
    return _sized(rate * (own + other), cut, a, eps) + kind.tiny


def _gaussians(pair: AdditivePair, D: Any, rate: Any) -> Curve:
    sigma = pair.noise.unweighted.sigma
    a = D / sigma
    pieces = _split(pair, D)

    def term(piece: ReplacedPieces) -> Curve:
        left, right, width = (in_units(end, sigma) for end in (piece.left, piece.right, piece.width))
        free, own, other = piece.weights

        def at(eps: RealArray) -> Any:
            xp = namespace(eps, piece.left, rate)
            cut, some = _cut(a, rate, eps, piece.weights)
            whole = cut <= left
            start = xp.where(whole, left, cut)
            # Below the first point where p is possible there is no mass of p; at an end of -inf, p is not above t q.
            there = some & ~((start >= right) | xp.isinf(start) | (piece.width <= 0))
            start, rest = xp.where(there, start, 0.0), xp.where(there, xp.where(whole, width, right - start), 1.0)
            one, _, mass = gaussian_integrals.gain(start - a, rest, a, 0.0 * start)
            two, _, _ = gaussian_integrals.gain(start, rest, a, 0.0 * start)
            factor = xp.exp(xp.where(there, eps - a * start - a**2 / 2, 0.0))
            gained = rate * (own * one + other * factor * two)
            ahead = rate * (own * xp.exp(a * start - a**2 / 2) - other * factor) - (1 - rate) * free * xp.expm1(eps)
            found = gained + xp.where(whole, xp.maximum(ahead, 0.0), 0.0) * mass
            return xp.where(there, _sized(found, start, a, eps), 0.0)

        return at

    return lambda eps: total(term, pieces, eps)


# Exponentials


def _exponentials(pair: AdditivePair, D: Any, rate: Any) -> Curve:
    """Return eps -> delta(eps), a sum over pieces; s is the distance from their finite end, log densities are l + k s.

    log r f(. - D) - log((1 - r) (t - 1) f + t r f(. + D)) is concave between knots, so it is positive on an interval.
    """
    pieces, source = _split(pair, D), pair.noise.unweighted
    xp = namespace(pieces.left, rate)
    places = D * xp.array([0.0, 1.0, -1.0], pieces.left.dtype)
    rising = xp.isfinite(pieces.left)
    origin = xp.where(rising, pieces.left, pieces.right)
    slopes = xp.where(rising, 1.0, -1.0)[:, None] * pieces.scores
    logs = source.log_prob(origin[:, None] - places) + log_or_never(pieces.weights)
    logs = logs + xp.stack([xp.log1p(-rate) + 0 * rate, xp.log(rate), xp.log(rate)])
    size = xp.where(xp.isfinite(logs), xp.abs(logs), 0.0).max(-1)
    lowering = 2 * xp.finfo(logs.dtype).eps * without_derivative(size)

    def term(item: Any) -> Curve:
        logs, slopes, width, lowering = item
        finite = xp.where(xp.isfinite(width), width, 0.0)

        def at(eps: RealArray) -> Any:
            xp = namespace(eps, logs)
            eps = eps - lowering
            growth = log_or_never(xp.maximum(xp.expm1(eps), 0.0))

            def excess(s: Any) -> tuple[Any, Any]:
                """Return the log ratio at s, and its derivative."""
                free, own, other = (logs[i] + slopes[i] * s for i in range(3))
                free, other = growth + free, eps + other
                top = xp.maximum(free, other)
                top = xp.where(top > -np.inf, top, 0.0)
                parts = xp.exp(free - top), xp.exp(other - top)
                both = parts[0] + parts[1]
                some = both > 0
                share = xp.where(some, parts[0] / xp.where(some, both, 1.0), 0.0)
                log_both = xp.where(some, top + xp.log(xp.where(some, both, 1.0)), -np.inf)
                ratio = xp.where(some, own - xp.where(some, log_both, 0.0), np.inf)
                ratio = xp.where(own > -np.inf, ratio, -np.inf)
                return ratio, slopes[1] - share * slopes[0] - (1 - share) * slopes[2]

            first, last = _positive(excess, finite + 0 * eps)
            endless = xp.isinf(width)
            first = xp.where(endless, 0.0, first)
            positive = excess(0.0 * eps)[0] > 0
            last = xp.where(endless, xp.where(positive, np.inf, 0.0), xp.where(last >= finite, width, last))
            first = xp.where(first > 0, without_derivative(first), 0.0)
            mass = [exponential_growth(logs[i] + slopes[i] * first, slopes[i], last - first) for i in (0, 1)]
            other = exponential_growth(eps + logs[2] + slopes[2] * first, slopes[2], last - first)
            return mass[1] - xp.expm1(eps) * mass[0] - other

        return at

    rounding = 1 + _UNITS * np.finfo(logs.dtype).eps
    return lambda eps: rounding * total(term, (logs, slopes, pieces.width, lowering), eps)


def _positive(excess: Any, width: Any) -> tuple[Any, Any]:
    """Return the ends of the interval on which a concave function is positive; (width, width) if it is nowhere."""
    excess = _frozen(excess)
    xp = namespace(width)
    zero = xp.zeros_like(width)
    low, high = bisect(lambda s: excess(s)[1] > 0, zero, width, _HALVINGS)
    best = xp.where(excess(zero)[1] <= 0, zero, xp.where(excess(width)[1] >= 0, width, (low + high) / 2))
    some = excess(best)[0] > 0
    first = bisect(lambda s: excess(s)[0] <= 0, zero, best, _HALVINGS)[1]
    first = xp.where(excess(zero)[0] > 0, zero, first)
    last = bisect(lambda s: excess(s)[0] > 0, best, width, _HALVINGS)[0]
    last = xp.where(excess(width)[0] > 0, width, last)
    return xp.where(some, first, width), xp.where(some, last, width)


def _frozen(excess: Any) -> Any:
    return lambda s: without_derivative(excess(without_derivative(s)))


# The privacy loss


@pytree
@dataclass(frozen=True)
class ReplacedDensities:
    """The densities p and q of noise f at sampling rate r, for records that shift it by D and by -D."""

    noise: Distribution
    D: Any
    rate: Any

    @classmethod
    def of(cls, pair: AdditivePair, rate: Any) -> ReplacedDensities:
        return cls(pair.noise, namespace(pair.shift).abs(pair.shift), rate)

    def log_p(self, y: Real) -> Any:
        return self._mixed(y, self.D)

    def log_q(self, y: Real) -> Any:
        return self._mixed(y, -self.D)

    def _mixed(self, y: Real, shift: Any) -> Any:
        """Return log of (1 - r) f + r f(. - shift)."""
        logs = self.noise.log_prob(y), self.noise.log_prob(y - shift)
        xp = namespace(*logs, self.rate)
        top = without_derivative(xp.maximum(*logs))
        top = xp.where(top > -np.inf, top, 0.0)
        total = (1 - self.rate) * xp.exp(logs[0] - top) + self.rate * xp.exp(logs[1] - top)
        return xp.where(total > 0, top + xp.log(xp.where(total > 0, total, 1.0)), -np.inf)

    def loss(self, y: Real) -> Any:
        """Return log p/q, and 0 where both are 0."""
        return log_ratio(self.log_p(y), self.log_q(y))

    def steepness(self, left: np.ndarray, right: np.ndarray) -> Any:
        """Return the maximum of the steepness of f at all three positions, between knots; see ``SmoothPieces``."""
        places = (0.0, self.D, -self.D)
        return np.max([self.noise.steepness(left - place, right - place) for place in places], axis=0)

    def beyond(self, y: Real) -> tuple[Any, Any]:
        """Return the masses of P and Q beyond y + D."""
        middle, near, far = (self.noise.sf(y + by * self.D) for by in (1, 0, 2))
        return (1 - self.rate) * middle + self.rate * near, (1 - self.rate) * middle + self.rate * far


def replaced_privacy_loss(pair: AdditivePair, rate: Any) -> PrivacyLossDistribution:
    """Return the distribution of the privacy loss."""
    densities, formulas = ReplacedDensities.of(pair, rate), pair.formulas
    if isinstance(formulas, StepFormulas):
        return _of_steps(formulas, densities)
    if isinstance(formulas, ExponentialFormulas):
        # Beyond all knots the loss is constant.
        outer = _outer(densities, formulas.knots.max())
        return join([PrivacyLossDistribution.of_pieces(_between(_ends(formulas), densities, _PANELS)), outer])
    if isinstance(formulas, GaussianFormulas):
        ends = _within_reach(formulas)
        few = max(12, _GAUSSIAN_PANELS // (len(ends) - 1))
    else:
        ends, few = formulas.within_reach((-1.0, 0.0, 1.0)), _FEW_PANELS
    concrete = namespace(ends, rate) is np
    return PrivacyLossDistribution.of_pieces(_between(ends, densities, few), formulas.unseen if concrete else 0.0)


def _ends(formulas: NoiseFormulas) -> Any:
    """Return all knots, increasing."""
    knots, D = formulas.knots, formulas.pair.shift
    xp = namespace(knots, D)
    D = xp.abs(D)
    return xp.sort(xp.concatenate([knots - D, knots, knots + D]))


def _of_steps(formulas: StepFormulas, densities: ReplacedDensities) -> PrivacyLossDistribution:
    ends = _ends(formulas)
    at = (ends[:-1] + ends[1:]) / 2
    mass = width_between(ends[:-1], ends[1:], densities.D) * formulas.copies(at)
    loss, xp = densities.loss(at), namespace(mass)
    p, q = (mass * xp.exp(log(at)) for log in (densities.log_p, densities.log_q))
    return PrivacyLossDistribution(p, q, loss, 0 * mass)


def _outer(densities: ReplacedDensities, last: Real) -> PrivacyLossDistribution:
    p, q = (mass[None] for mass in densities.beyond(last))
    upper = PrivacyLossDistribution.of_masses(p, q)
    return join([upper, upper.mirrored()])


def _within_reach(formulas: GaussianFormulas) -> Any:
    pair = formulas.pair
    xp = namespace(*jax.tree.leaves(pair))
    limit = xp.abs(pair.shift) + REACH * pair.noise.unweighted.sigma + floating(xp.zeros(1))
    if len(pair.noise.edges) == 0:
        return xp.concatenate([-limit, limit])
    return xp.concatenate([-limit, xp.clip(_ends(formulas), -limit, limit), limit])


def _between(ends: Any, densities: ReplacedDensities, few: int) -> SmoothPieces:
    """Return the pieces between knots."""
    left, right = ends[:-1], ends[1:]
    right = left + width_between(left, right, densities.D)

    return SmoothPieces(
        left,
        right,
        lambda x, _: densities.log_p(x),
        lambda x, _: densities.log_q(x),
        lambda x, _: densities.loss(x),
        lambda start, end, _: densities.steepness(start, end),
        None,
        few,
    )
