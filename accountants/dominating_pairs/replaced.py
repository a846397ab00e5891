"""Reports on Poisson samples whose neighbours replace one record by another.

Given the rest of a sample, which shifts all three distributions alike, a report has the density f without the record,
and with one or the other record, each in the sample with probability r, the density

    p = (1 - r) f + r f(. - a),    q = (1 - r) f + r f(. - b),    |a|, |b| <= D.

For noise with f even and falling from 0, (a, b) = (D, -D) is the worst case at every eps >= 0. At rate 1 this is noise
shifted by 2 D. For bounded mechanisms without a sensitivity, with any three inputs and e^eps' = 1 + r (e^eps - 1),
delta'(eps') <= r delta(eps) (advanced joint convexity, Balle, Barthe & Gaboardi 2018). The samples of the dominating
pair attain this bound. Proofs: docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from accountants.dominating_pairs import gaussian_integrals
from accountants.dominating_pairs.additive import (
    AdditivePair,
    ExponentialFormulas,
    GaussianFormulas,
    NoiseFormulas,
    PolynomialFormulas,
    StepFormulas,
    exponential_growth,
    in_units,
    inside,
    total,
    width_between,
)
from accountants.dominating_pairs.base import Curve, DominatingPair, sampled_profile, upper
from accountants.dominating_pairs.discrete import Atoms
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, log_ratio
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real, RealArray, floating, log_or_never, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

# The difference from their mirrors that symmetric pairs may have: for plain numbers, and in the precision of a trace.
_CONCRETE, _TRACED = 1e-9, 1e-4
# Panels of a piece: for exponentials; for a Gaussian, whose loss changes its slope within sigma^2/D; for other noise.
_PANELS, _GAUSSIAN_PANELS, _FEW_PANELS = 8, 96, 4
# The error, in units in the last place, of the numbers from which a mass is computed.
_UNITS = 16
_HALVINGS = 60
# The positions of f in p and q, in units of D.
_DISTANCES = (-1.0, 0.0, 1.0)


def check_replaceable(pairs: tuple[Any, ...]) -> None:
    """Raise a ValueError for pairs whose worst replaced record is not known.

    These are noise, tables or densities that are not symmetric, noise whose density is neither log-concave nor of a
    known form, and bounded mechanisms with a sensitivity.
    """
    for pair in pairs:
        if pair.near:
            raise ValueError(
                "adjacency: 'replace' may move a value by twice the sensitivity that this bounded mechanism was made "
                "for; take 'add_remove', or a mechanism for any two inputs"
            )
        if isinstance(pair, AdditivePair) and type(pair.formulas) is NoiseFormulas:
            noise = pair.noise
            if len(noise.edges) or noise.unweighted.turning_points(1.0):
                raise ValueError(
                    f"adjacency: 'replace' is not known for {type(noise).__name__}, whose density is not log-concave; "
                    "take 'add_remove'"
                )
        odd = checks.concrete(pair.symmetry_gap())
        if odd is not None and not odd <= _CONCRETE:
            raise ValueError(
                "adjacency: 'replace' is known for even noise and for tables whose second row is the first one "
                f"reversed; this {type(pair).__name__} is neither, or under tracing not known to be"
            )


def replaced_pair(pair: DominatingPair, rate: Any) -> DominatingPair:
    """Return the symmetric pair of one release on a Poisson sample with one record replaced, from that on all data."""
    if isinstance(pair, AdditivePair):
        return ReplacedNoise(pair, rate)
    if isinstance(pair, Atoms) and pair.moved is not None:
        return _symmetrized(pair, rate)
    return ReplacedBounded(pair, rate)


def _symmetrized(pair: Atoms, rate: Any) -> Atoms:
    """Return the pair of a lattice that is shifted forwards and back: p starts with the weights, and q with zeros."""
    xp = namespace(pair.p, rate)
    none = xp.zeros(int(pair.moved or 0))
    middle = xp.concatenate([pair.q, none])
    forth, back = xp.concatenate([none, pair.q]), xp.concatenate([pair.p, none])
    return Atoms((1 - rate) * middle + rate * forth, (1 - rate) * middle + rate * back)


def replaced_atoms(pair: Atoms, rate: Any) -> Atoms:
    """Return the dominating pair of a table, as a table."""
    losses = replaced_pair(pair, rate).privacy_loss()
    return Atoms(losses.p, losses.q)


@pytree
@dataclass(frozen=True)
class ReplacedBounded(DominatingPair):
    """The pair of one release of a bounded mechanism, from that on all data; its profile is that of an added record."""

    pair: Any
    rate: Any

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.pair.joint

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        return True

    def hockey_stick(self) -> Curve:
        """Return the maximum of both directions: pairs are symmetric up to rounding."""
        pair, known = self.pair, _one_if_symmetric(self.pair)
        sides = (pair, *([pair.mirror()] if pair.may_be_asymmetric else []))
        sticks = [sampled_profile(upper(one), self.rate) for one in sides]

        def at(eps: Any) -> Any:
            values = [stick(eps) for stick in sticks]
            return known * namespace(*values).stack(values).max(0)

        return at

    def privacy_loss(self) -> PrivacyLossDistribution:
        whole, known = self.pair.privacy_loss().subsampled(self.rate).symmetrized(), _one_if_symmetric(self.pair)
        return whole if namespace(known, self.rate) is np else whole.scaled(known)

    def mirror(self) -> ReplacedBounded:
        return self

    def symmetry_gap(self) -> Any:
        return 0.0

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
        check_replaceable((self.pair,))
        if self.pair.is_shift and type(self) is ReplacedBounded:
            raise ValueError("pair: is noise, whose replaced records are twice the sensitivity apart")


def _one_if_symmetric(pair: Any) -> Any:
    """Return 1 for a symmetric pair, and NaN for another one, which only tracing lets through."""
    odd = pair.symmetry_gap()
    return namespace(odd).where(odd <= _TRACED, 1.0, np.nan)


# Noise


@pytree
@dataclass(frozen=True)
class ReplacedNoise(ReplacedBounded):
    """The pair of one release of even additive noise.

    p - t q = r f(. - D) - (1 - r) (t - 1) f - t r f(. + D) for t = e^eps >= 1. Between the knots of all three, where
    log f is a polynomial of degree 2 at most, it changes its sign at most twice.
    """

    @property
    def noise(self) -> Distribution:
        return self.pair.noise

    @property
    def distance(self) -> Any:
        return namespace(self.pair.shift).abs(self.pair.shift)

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        return self.pair.rounds_up and not len(self.noise.edges)

    def log_p(self, y: Real) -> Any:
        return self._mixed(y, self.distance)

    def log_q(self, y: Real) -> Any:
        return self._mixed(y, -self.distance)

    def _mixed(self, y: Real, shift: Any) -> Any:
        logs = self.noise.log_prob(y), self.noise.log_prob(y - shift)
        xp = namespace(*logs, self.rate)
        top = without_derivative(xp.maximum(*logs))
        top = xp.where(top > -np.inf, top, 0.0)
        return top + log_or_never((1 - self.rate) * xp.exp(logs[0] - top) + self.rate * xp.exp(logs[1] - top))

    def loss(self, y: Real) -> Any:
        return log_ratio(self.log_p(y), self.log_q(y))

    def hockey_stick(self) -> Curve:
        formulas = self.pair.formulas
        return _HOCKEY_STICKS[type(formulas)](self, formulas)

    def privacy_loss(self) -> PrivacyLossDistribution:
        formulas: Any = self.pair.formulas
        if isinstance(formulas, StepFormulas):
            return self._of_steps(formulas)
        if isinstance(formulas, ExponentialFormulas):
            left, right, _ = (each[1:-1] for each in formulas.intervals(_DISTANCES))
            pieces = self._pieces(left, right, _PANELS)
            # Beyond all knots the loss is constant.
            return join([PrivacyLossDistribution.of_pieces(pieces), self._beyond(formulas.knots.max())])
        ends = formulas.within_reach(_DISTANCES)
        gaussian = isinstance(formulas, GaussianFormulas)
        few = max(12, _GAUSSIAN_PANELS // (len(ends) - 1)) if gaussian else _FEW_PANELS
        unseen = formulas.unseen if namespace(ends, self.rate) is np else 0.0
        return PrivacyLossDistribution.of_pieces(self._pieces(ends[:-1], ends[1:], few), unseen)

    def _of_steps(self, formulas: StepFormulas) -> PrivacyLossDistribution:
        left, right, width = formulas.intervals(_DISTANCES)
        at = (left + right) / 2
        mass = width * formulas.copies(at)
        p, q = (mass * namespace(mass).exp(log(at)) for log in (self.log_p, self.log_q))
        return PrivacyLossDistribution(p, q, self.loss(at), 0 * mass)

    def _beyond(self, last: Real) -> PrivacyLossDistribution:
        """Return the reports beyond all knots; ``last`` is the last knot of f."""
        near, middle, far = (floating(self.noise.sf(last + k * self.distance))[None] for k in range(3))
        without = (1 - self.rate) * middle
        upper = PrivacyLossDistribution.of_masses(without + self.rate * near, without + self.rate * far)
        return join([upper, upper.mirrored()])

    def _pieces(self, left: Any, right: Any, few: int) -> SmoothPieces:
        """Return the pieces between knots; the steepness is the largest of f at its three positions."""

        def steepness(left: np.ndarray, right: np.ndarray, _: Any) -> Any:
            places = [distance * self.distance for distance in _DISTANCES]
            return np.max([self.noise.steepness(left - place, right - place) for place in places], axis=0)

        return SmoothPieces(
            left,
            left + width_between(left, right, self.distance, right - left),
            lambda x, _: self.log_p(x),
            lambda x, _: self.log_q(x),
            lambda x, _: self.loss(x),
            steepness,
            few=few,
        )


def _steps(densities: ReplacedNoise, formulas: StepFormulas) -> Curve:
    nodes = densities._of_steps(formulas)
    return Atoms(nodes.p, nodes.q).hockey_stick()


def _monotone(densities: ReplacedNoise, formulas: NoiseFormulas) -> Curve:
    """Use that {p > t q} is a half line for an even log-concave density: f(. - D)/f rises and f(. + D)/f falls."""
    noise, D, rate = densities.noise, densities.distance, densities.rate
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


class _Pieces(NamedTuple):
    """The pieces between neighbouring knots of f, f(. - D) and f(. + D), as arrays of one length."""

    left: Any
    right: Any
    width: Any  # 0 where the ends differ only by rounding.
    at: Any  # A point inside, minus the position of f, f(. - D) and f(. + D), along a last axis.
    weights: Any  # The weights of the three, relative to the noise without weights, along a last axis.


def _split(formulas: PolynomialFormulas, D: Any) -> _Pieces:
    left, right, width = formulas.intervals(_DISTANCES)
    xp = namespace(left, D)
    at = inside(left, right, D)[:, None] - D * xp.array([0.0, 1.0, -1.0], left.dtype)
    return _Pieces(left, right, width, at, formulas.noise.weight(at))


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


def _gaussians(densities: ReplacedNoise, formulas: GaussianFormulas) -> Curve:
    sigma, rate = formulas.source.sigma, densities.rate
    a = densities.distance / sigma
    if len(densities.noise.edges) == 0:
        return lambda eps: _of_one_gaussian(a, rate, eps)

    def term(piece: _Pieces) -> Curve:
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

    pieces = _split(formulas, densities.distance)
    return lambda eps: total(term, pieces, eps)


# Exponentials


def _exponentials(densities: ReplacedNoise, formulas: ExponentialFormulas) -> Curve:
    """Return eps -> delta(eps), a sum over pieces; s is the distance from their finite end, log densities are l + k s.

    log r f(. - D) - log((1 - r) (t - 1) f + t r f(. + D)) is concave between knots, so it is positive on an interval.
    """
    pieces, source, rate = _split(formulas, densities.distance), formulas.source, densities.rate
    xp = namespace(pieces.left, rate)
    places = densities.distance * xp.array([0.0, 1.0, -1.0], pieces.left.dtype)
    rising = xp.isfinite(pieces.left)
    origin = xp.where(rising, pieces.left, pieces.right)
    slopes = xp.where(rising, 1.0, -1.0)[:, None] * source.score(pieces.at)
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
                free, own, other = (logs[i] + slopes[i] * s for i in range(3))
                free, other = growth + free, eps + other
                both = xp.logaddexp(free, other)
                share = xp.exp(free - xp.where(both > -np.inf, both, 0.0))
                ratio = xp.where(own > -np.inf, log_ratio(own, both), -np.inf)
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

    def value(s: Any) -> Any:
        return without_derivative(excess(without_derivative(s))[0])

    def slope(s: Any) -> Any:
        return without_derivative(excess(without_derivative(s))[1])

    xp = namespace(width)
    zero = xp.zeros_like(width)
    low, high = bisect(lambda s: slope(s) > 0, zero, width, _HALVINGS)
    best = xp.where(slope(zero) <= 0, zero, xp.where(slope(width) >= 0, width, (low + high) / 2))
    first = bisect(lambda s: value(s) <= 0, zero, best, _HALVINGS)[1]
    first = xp.where(value(zero) > 0, zero, first)
    last = bisect(lambda s: value(s) > 0, best, width, _HALVINGS)[0]
    last = xp.where(value(width) > 0, width, last)
    some = value(best) > 0
    return xp.where(some, first, width), xp.where(some, last, width)


_HOCKEY_STICKS: dict[type, Callable[[ReplacedNoise, Any], Curve]] = {
    NoiseFormulas: _monotone,
    StepFormulas: _steps,
    GaussianFormulas: _gaussians,
    ExponentialFormulas: _exponentials,
}
