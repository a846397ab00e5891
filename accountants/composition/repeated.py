"""Repeated releases of one mechanism, and the cumulants of their privacy losses.

With l the privacy loss under p, the cumulant generating function of n independent releases is

    K(c) = n log E_p exp(c l).

At the saddle point, K'(c) = eps + 1/c + 1/(1 + c), the mean of the sum tilted by e^(c l) is close to eps, so that the
computed sums keep their relative accuracy far out in the tail. Other tilts give the same values with fewer digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.composition.interpolation import pointwise_maximum
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import DominatingPair, is_whole
from accountants.dominating_pairs.discrete import NO_LOSS
from accountants.dominating_pairs.larger_profile import larger_profile
from accountants.dominating_pairs.replaced import SYMMETRIC, check_replaceable, replaced_pair
from accountants.dominating_pairs.sampled import Sampled
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import Real, RealArray, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import rising_root

# The neighbouring datasets of releases on samples.
NEIGHBOURS = {
    "add_remove": "datasets of which one has one record more",
    "replace": "datasets of as many records that differ in one",
}
# Those of all pairs for batch schemes.
ALL_NEIGHBOURS = NEIGHBOURS | {"zero_out": "datasets of which one has the value 0 in place of one record"}
ON_ALL_DATA = "inputs whose true values differ by at most the sensitivity; any two inputs of a mechanism without one"
_TILT_TOLERANCE = 1e-3  # The last Newton step of log c; values next to the largest loss of few releases need it.
_NEAR_ROOT = 0.5  # The error of log delta up to which a tilt is corrected to first order.
_MIN_TILT = 1e-4  # The least tilt of a search.
MAX_TILT = 1e5  # The largest tilt of a search, by default.


class AdaptiveBrackets(Protocol):
    """Brackets of releases whose neighbours may move in another direction from release to release."""

    def bracket(self, quantity: str, argument: float) -> tuple[float, float] | None: ...


class GuaranteeLike(Protocol):
    """What composition reads of ``accountants.guarantee.Guarantee``, which has the docstrings."""

    @property
    def terms(self) -> tuple[RepeatedReleases, ...]: ...
    @property
    def neighbour_directions(self) -> tuple[bool, ...]: ...
    @property
    def numeric(self) -> GuaranteeLike: ...
    @property
    def numeric_directions(self) -> list[tuple[LossTuple, LossTuple]]: ...
    @property
    def adaptive_profile(self) -> AdaptiveBrackets | None: ...
    @property
    def infinity_mass(self) -> float: ...
    def repeated_losses(self, panels: int = 0, *, may_sample: bool = False) -> tuple[LossTuple, ...]: ...
    def attained(self) -> Sequence[GuaranteeLike]: ...
    def estimate_delta(self, epsilon: Real) -> Any: ...
    def renyi(self, order: Real) -> Real: ...


class ConvergenceError(ValueError):
    """The promised precision cannot be reached."""


def check_one_mechanism(terms: tuple[RepeatedReleases, ...]) -> None:
    """Raise ValueError if a parameter is an array, so that these are releases of several mechanisms."""
    for leaf in jax.tree.leaves(terms, is_leaf=is_whole):
        if not is_whole(leaf) and np.ndim(leaf):
            raise ValueError(
                f"mechanism: a parameter has shape {np.shape(leaf)}; give numbers, one guarantee each, or vmap. "
                "accountants.delta and accountants.epsilon take arrays, for one release"
            )


@partial(pytree, static=("adjacency",))
@dataclass(frozen=True)
class RepeatedReleases:
    """Independent releases of one mechanism, on all the data or each on a Poisson sample of its own."""

    pairs: tuple[Any, ...]  # The mechanism's dominating pairs; its profile is the maximum over them.
    count: Real  # n, the number of releases.
    sampling_rate: Real | None = None  # The probability r that a sample contains a record, or None for all the data.
    adjacency: str = "add_remove"  # The neighbouring datasets of releases on samples, a key of ``NEIGHBOURS``.

    @property
    def record_adjacency(self) -> str | None:
        """Return how records of neighbouring datasets differ, a key of ``ALL_NEIGHBOURS``, or None on all the data."""
        return self.pairs[0].neighbours if self.sampling_rate is None else self.adjacency

    @property
    def is_symmetric(self) -> bool:
        """Return whether (p, q) and (q, p) have one profile, so that one neighbour direction is enough."""
        if self.sampling_rate is not None:
            return self.adjacency == "replace"
        return not any(pair.may_be_asymmetric for pair in self.pairs)

    def attained(self, pair: DominatingPair) -> tuple[DominatingPair, ...]:
        """Return pairs that bound one of this term from below, where records are replaced symmetric ones; or itself."""
        pairs = pair.attained() or (pair,)
        if self.adjacency == "replace" and self.sampling_rate is not None:
            pairs = tuple(candidate for candidate in pairs if candidate.symmetry_gap() <= SYMMETRIC) or (NO_LOSS,)
        return pairs

    @property
    def mu(self) -> Real:
        """Return sensitivity over standard deviation of the first pair, if it is Gaussian noise."""
        pair = self.pairs[0]
        return pair.shift / pair.noise.sigma

    @property
    def is_gaussian(self) -> bool:
        """Return whether the releases are Gaussian noise on all the data, so that any number of them is again."""
        pair, is_alone = self.pairs[0], len(self.pairs) == 1 and self.sampling_rate is None
        return is_alone and isinstance(pair, AdditivePair) and isinstance(pair.noise, Gaussian)

    def release_pairs(self) -> tuple[DominatingPair, ...]:
        """Return the pairs of one release; its exact profile is their maximum."""
        pairs = tuple(self.sampled_pair(pair) for pair in self.pairs)
        return pairs if self.is_symmetric else (*pairs, *(pair.mirror() for pair in pairs if pair.may_be_asymmetric))

    def sampled_pair(self, pair: DominatingPair) -> DominatingPair:
        if self.sampling_rate is None:
            return pair
        if self.adjacency == "replace":
            return replaced_pair(pair, self.sampling_rate)
        return Sampled(pair, self.sampling_rate)

    def privacy_loss(self, pair: DominatingPair) -> PrivacyLossDistribution:
        return self.sampled_pair(pair).privacy_loss()

    def repeated_losses(
        self, mirrors: tuple[bool, ...], panels: int = 0, *, may_sample: bool = False
    ) -> list[RepeatedLoss]:
        """Return the losses of all releases, one entry for each neighbour direction.

        For two pairs (noise that is not even) the worse pair may change from release to release. The result is then the
        loss of a pair whose profile is the maximum of both. If ``may_sample``, smooth losses of releases on samples are
        composed from samples of their densities.
        """
        if self.is_gaussian:
            mu = namespace(self.mu).asarray(self.mu)
            return [RepeatedLoss(None, mu, self.count) for _ in mirrors]
        # Comparisons do not detect a NaN, and the masses that they drop would count as no loss.
        leaves = jax.tree.leaves(self)
        xp = namespace(*leaves)
        unknown = sum(xp.any(leaf != leaf) for leaf in leaves) > 0
        forward = self._nodes(panels)
        if xp is not np or unknown:
            forward = [distribution.scaled(xp.where(unknown, np.nan, 1.0)) for distribution in forward]
        has_pieces = any(distribution.pieces for distribution in self.privacy_losses)
        # On all the data the loss density may jump, and samples of it next to a jump are no better than nodes.
        may_sample = (
            may_sample
            and len(self.pairs) == 1
            and self.sampling_rate is not None
            and self.privacy_losses[0].is_invertible
        )
        directions = []
        for mirror in mirrors:
            nodes = [distribution.mirrored() for distribution in forward] if mirror else forward
            losses = pointwise_maximum([distribution.completed() for distribution in nodes] if has_pieces else nodes)
            source = (self, -1.0 if mirror else 1.0) if may_sample else None
            losses = losses.for_one_direction()
            directions.append(RepeatedLoss(losses, xp.zeros_like(losses.p[0]), self.count, source))
        return directions

    def _nodes(self, panels: int) -> list[PrivacyLossDistribution]:
        """Return the nodes of every pair; for smooth noise that is not even, those of the maximum of both pairs."""
        first, rate = self.pairs[0], self.sampling_rate
        is_replaced = rate is not None and self.adjacency == "replace"
        if is_replaced or len(self.pairs) == 1 or not (isinstance(first, AdditivePair) and first.formulas.is_smooth):
            return [distribution.nodes(panels) for distribution in self.privacy_losses]
        nodes = larger_profile(first, panels)
        return [nodes if rate is None else nodes.subsampled(rate)]

    @property
    def privacy_losses(self) -> list[PrivacyLossDistribution]:
        """Return the distributions of the loss of every pair, cached for plain numbers."""
        cached = self.__dict__.get("_privacy_losses")
        if cached is None:
            cached = [self.privacy_loss(pair) for pair in self.pairs]
            if namespace(*jax.tree.leaves(self)) is np:
                object.__setattr__(self, "_privacy_losses", cached)
        return cached


def check_adjacency(releases: tuple[RepeatedReleases, ...]) -> None:
    """Raise ValueError if samples have different neighbours."""
    if len({release.record_adjacency for release in releases} - {None}) > 1:
        raise ValueError("adjacency: some samples have records added or removed, and others have them replaced")


def check_releases(releases: object) -> None:
    """Raise a TypeError or ValueError for releases, read from a file, that ``guarantee`` could not have made."""
    if not (
        isinstance(releases, tuple) and releases and all(isinstance(release, RepeatedReleases) for release in releases)
    ):
        raise ValueError("form: the terms of a guarantee are one or more")
    for release in releases:
        checks.integer_in("count", release.count, 1, 1 << 62)
        checks.one_of("adjacency", release.adjacency, NEIGHBOURS)
        if release.sampling_rate is not None:
            checks.within("rate", release.sampling_rate, np.nextafter(0.0, 1.0), 1.0)
        if not (isinstance(release.pairs, tuple) and release.pairs):
            raise ValueError("form: the pairs of a term are one or more")
        for pair in release.pairs:
            if not isinstance(pair, DominatingPair):
                raise ValueError(f"form: {type(pair).__name__} is not a pair of distributions")
            pair.check()
        first, further = release.pairs[0], release.pairs[1:]  # ``_nodes`` relies on what follows.
        if isinstance(first, AdditivePair) and further not in ((), (first.mirror(),)):
            raise ValueError("form: the pairs of noise are one, or two of opposite shifts")
        if release.adjacency == "replace":
            check_replaceable(release.pairs)
    check_adjacency(releases)


@partial(pytree, static=("is_whole",))
@dataclass(frozen=True, eq=False)
class RepeatedLoss:
    """The privacy loss of n releases of one mechanism, for one neighbour direction."""

    losses: PrivacyLossDistribution | None  # The outcomes of one release, or None for Gaussian noise on all the data.
    mu: Any  # Sensitivity over sigma of that Gaussian noise, whose K(z) is z (z + 1) mu^2 / 2; 0 otherwise.
    count: Any  # n.
    # (the releases, -1 if their pair is mirrored and else 1) where smooth pieces are composed from samples of their
    # densities, else None.
    source: tuple[RepeatedReleases, Real] | None = None
    is_whole: bool = False  # Whether JAX knows that n is an integer, though not which one.

    @property
    def infinity_mass(self) -> Real:
        """Return the probability of an infinite loss of one release, at most the largest float below 1."""
        if self.losses is None:
            return 0.0 * self.mu
        xp = namespace(self.losses.p)
        mass = xp.where(self.losses.loss == np.inf, self.losses.p, 0.0).sum()
        return xp.minimum(mass, 1 - xp.finfo(mass.dtype).epsneg)

    def map_losses(self, change: Callable[[PrivacyLossDistribution], PrivacyLossDistribution]) -> RepeatedLoss:
        """Return the same releases with changed losses; Gaussian noise is returned as it is."""
        return self if self.losses is None else replace(self, losses=change(self.losses))

    def smooth_losses(self) -> PrivacyLossDistribution:
        releases, sign = cast(tuple[RepeatedReleases, Real], self.source)
        return releases.privacy_losses[0].mirrored(sign)

    def largest_loss(self, sign: int) -> Real:
        if self.losses is None:
            return namespace(self.mu).asarray(np.inf, self.mu.dtype)
        return (sign * self.losses.finite[1]).max()

    def tilted(self, c: Real) -> TiltedLoss:
        """Return the loss of one release, tilted by a number c."""
        if self.losses is None:
            square = self.mu**2
            return TiltedLoss(self, None, c * (c + 1) * square / 2, (2 * c + 1) * square / 2, square + 0 * c)
        log_p, loss = self.losses.finite
        xp = namespace(log_p)
        top, mass = _exp_relative_to_largest(log_p + c * loss)
        total = xp.maximum(mass.sum(), xp.finfo(mass.dtype).tiny)
        mass = mass / total
        mean = (mass * loss).sum()
        return TiltedLoss(self, mass, top[0] + xp.log(total), mean, (mass * (loss - mean) ** 2).sum())

    def log_moment(self, c: RealArray) -> RealArray:
        """Return log E_p exp(c l) of one release over its finite losses; c has any shape."""
        if self.losses is None:
            return c * (c + 1) * self.mu**2 / 2
        log_p, loss = self.losses.finite
        xp = namespace(log_p)
        top, terms = _exp_relative_to_largest(log_p + c[..., None] * loss)
        return top[..., 0] + xp.log(xp.maximum(terms.sum(-1), xp.finfo(terms.dtype).tiny))


LossTuple = tuple[RepeatedLoss, ...]


class TiltedLoss(NamedTuple):
    """The loss of one of some repeated releases, with masses times e^(c l)."""

    term: RepeatedLoss  # The releases.
    mass: Any  # The tilted masses of all outcomes, of sum 1, with 0 for an infinite loss; None for Gaussian noise.
    log_scale: Real  # K(c) of one release.
    mean: RealArray  # The tilted mean of the finite losses.
    variance: RealArray  # Their tilted variance.


def least_step(tilted: Iterable[TiltedLoss], c: Real) -> Real:
    """Return the mean width of outcomes that are no atoms: a step that is wide enough to smooth them all out."""
    xp, least = namespace(c), 0.0 * c
    for loss in tilted:
        if loss.term.losses is not None:
            width = loss.term.losses.width
            total = xp.where(width > 0, loss.mass, 0.0).sum()
            least = xp.maximum(least, (loss.mass * width).sum() / xp.where(total > 0, total, 1.0))
    return least


def _exp_relative_to_largest(size: RealArray) -> tuple[RealArray, RealArray]:
    """Return (the largest size, e^(size - largest)) along the last axis; 0 where all sizes are -inf."""
    xp = namespace(size)
    top = without_derivative(size.max(-1, keepdims=True))
    top = xp.where(top == -np.inf, 0.0, top)  # NaN stays.
    return top, xp.exp(size - top)


def infinity_mass(losses: LossTuple) -> RealArray:
    """Return 1 - prod (1 - m)^n, the probability that some loss is infinite."""
    masses = [term.infinity_mass for term in losses]
    xp = namespace(losses[0].count, masses[0])
    return -xp.expm1(sum(term.count * xp.log1p(-mass) for term, mass in zip(losses, masses, strict=True)))


def cumulants(losses: LossTuple, c: Real) -> tuple[Any, ...]:
    """Return K, K' and K'' of all releases at a tilt c."""
    moments = [[term.count * moment for moment in term.tilted(c)[2:]] for term in losses]
    return tuple(map(sum, zip(*moments, strict=True)))


def saddle_point(losses: LossTuple, epsilon: Real, start: Real = 1.0, greatest: float = MAX_TILT) -> RealArray:
    """Return the tilt c at which K'(c) = eps + 1/c + 1/(1 + c)."""

    def excess(log_c: RealArray) -> tuple[RealArray, RealArray]:
        c = namespace(log_c).exp(log_c)
        _, mean, variance = cumulants(losses, c)
        return mean - epsilon - 1 / c - 1 / (1 + c), c * (variance + 1 / c**2 + 1 / (1 + c) ** 2)

    return _tilt_at_root(excess, epsilon, start, greatest)[0]


def saddle_point_of_delta(
    losses: LossTuple, log_delta: Real, start: Real = 1.0, greatest: float = MAX_TILT
) -> tuple[RealArray, RealArray]:
    """Return (c, eps) at which the saddle-point approximation of log delta(eps) has the given value."""

    def excess(log_c: RealArray) -> tuple[RealArray, ...]:
        c = namespace(log_c).exp(log_c)
        value, eps, variance = approximate(losses, c)
        return log_delta - value, c**2 * variance, eps, value - log_delta

    c, eps, error = _tilt_at_root(excess, log_delta, start, greatest, 2)
    if namespace(c) is np:  # JAX would compile the approximation once more.
        value, eps, _ = approximate(losses, c)
        error = value - log_delta
    # The slope of log delta is about -c. At an end of the range of tilts there is no root.
    xp = namespace(error)
    return c, eps + xp.where(xp.abs(error) < _NEAR_ROOT, error, 0.0) / c


def _tilt_at_root(rising: Any, reference: Real, start: Real, greatest: float, count: int = 0) -> tuple[RealArray, ...]:
    """Return the tilt where a function of log c is 0, and other values, as ``rising_root`` does."""
    xp = namespace(reference, start)
    low, high = xp.full_like(reference, np.log(_MIN_TILT)), xp.full_like(reference, np.log(greatest))
    start = xp.clip(xp.log(start) + 0 * low, low, high)
    log_c, *values = rising_root(rising, start, low, high, _TILT_TOLERANCE, count)
    return xp.exp(log_c), *values


def approximate(losses: LossTuple, c: Real) -> tuple[RealArray, RealArray, RealArray]:
    """Return (log delta, eps, d eps/d c) of the saddle-point approximation at the eps whose saddle point is c."""
    value, slope, curvature = cumulants(losses, c)
    xp = namespace(value)
    eps = slope - 1 / c - 1 / (1 + c)
    curvature = curvature + 1 / c**2 + 1 / (1 + c) ** 2
    return value - c * eps - xp.log(c * (1 + c)) - xp.log(2 * np.pi * curvature) / 2, eps, curvature


def integer_power(base: np.ndarray, count: int) -> np.ndarray:
    """Return the power of an array by repeated squaring, for a count of 1 or more."""
    result = None
    while count:
        if count & 1:
            result = base if result is None else result * base
        count >>= 1
        base = base * base if count else base
    return cast(np.ndarray, result)


def traced_integer_power(base: Array, count: Array) -> Array:
    """Return the same for JAX arrays and a float count that JAX traces."""

    def square(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, base, result = state
        half = jnp.floor(count / 2)
        return half, base * base, jnp.where(count > 2 * half, result * base, result)

    return jax.lax.while_loop(lambda state: state[0] > 0, square, (count, base, jnp.ones_like(base)))[2]
