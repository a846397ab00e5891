"""Renyi divergences of composed releases, from the densities themselves.

With l = log p/q and an order a = 1 + c, the moment E_q e^(a l) is 1 + E_q g(l), where

    g(l) = e^(a l) - 1 - a (e^l - 1)

is not negative, so that small divergences keep their relative accuracy. The largest terms may be far out in the tails
of p and q, near the order times the shift. Adaptive quadrature finds them: it halves panels on a logarithmic scale
until the error of every panel is negligible, and so is, if the integral of the tail is not known, an extrapolation of
the integrand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.composition.repeated import ConvergenceError, GuaranteeLike, RepeatedReleases, check_one_mechanism
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import as_float64
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import (
    GAUSS_LEGENDRE,
    Boolean,
    Real,
    RealArray,
    cast_like,
    elementwise_maximum,
    float_if_scalar,
    floating,
    log_or_minus_inf,
    namespace,
    without_derivative,
)
from dpkernels.shapes import Float, Int

_NODES, _WEIGHTS = GAUSS_LEGENDRE
_HALVES = np.concatenate([_NODES, 1 + _NODES]) / 2  # The nodes of both halves of a panel.
_GAPS = np.diff(_HALVES)  # The distances of these nodes.
# The ends of the first panels of a piece with two ends, and of the others in units of their extent.
_INNER_ENDS = np.linspace(0.0, 1.0, 5)
_OUTER_ENDS = np.array([0.0, 0.25, 0.5, *4.0 ** np.arange(31)])
_SPLIT_PANELS = 32  # The panels that are halved in one round.
_MAX_ROUNDS = 160  # The most rounds.
_SERIES_TERMS = 18  # The terms of the series of g,
_SERIES_MAX = 0.5  # and the absolute value of a l up to which the series is used.
_ESTIMATE_RTOL = 1e-3  # Relative difference of integrals of a panel and of its halves up to which they are estimates.
_EXPONENT_UNITS = 4  # A bound on errors of exponents, in units in the last place.
_SUM_UNITS = 64  # A bound on rounding errors of sums, in units in the last place.
_NEGLIGIBLE = float(np.log(64 * np.finfo(np.float64).eps))  # The log of the share of an integral that is negligible.
_MAX_NOISY_ROUNDS = 12  # The most rounds in which all that is not known may be cancellation error.
_SINGULAR_DISTANCE = 1e-9  # Mass this close to an end of a piece, in units of its extent, is that of a singularity.
_MAX_EXPONENT = 600.0  # An exponent whose exponential does not overflow.
_MAX_PANELS = 1 << 10  # The panels that matter, at most: of JAX numbers there are so many.


def renyi_divergence(guarantee: GuaranteeLike, order: Real) -> Real:
    """Return the Renyi divergence of a guarantee in its worse neighbour direction, an upper bound up to rounding.

    In each direction the divergences of the releases add up, each that of its worse pair, also if these are chosen
    adaptively.

    Raises:
        ConvergenceError: floating point does not resolve the divergence; with JAX numbers it is inf.
    """
    check_one_mechanism(guarantee.terms)
    if namespace(order, *jax.tree.leaves(guarantee)) is jnp:
        orders, divergence = floating(jnp.asarray(order)), partial(_divergence_of_traced, guarantee)
        return divergence(orders) if orders.ndim == 0 else jax.lax.map(divergence, orders.ravel()).reshape(orders.shape)
    values = np.empty(np.shape(order))
    with np.errstate(all="ignore"):
        for index, single_order in np.ndenumerate(np.asarray(order, np.float64)):
            values[index], is_resolved = _divergence(guarantee.numeric, single_order)
            if not is_resolved:
                raise ConvergenceError(f"order: {single_order:g}; the divergence is not resolved in floating point")
    return float_if_scalar(values[()])


@jax.jit
def _divergence_of_traced(guarantee: GuaranteeLike, order: Float[jax.Array, ""]) -> Float[jax.Array, ""]:
    value, is_resolved = _divergence(guarantee, order.astype(jnp.result_type(order, *jax.tree.leaves(guarantee))))
    return jnp.where(is_resolved, value, jnp.inf)


def _divergence(guarantee: GuaranteeLike, order: Real) -> tuple[np.ndarray, Boolean]:
    """Return (the divergence, whether it is resolved)."""
    c = order - 1
    xp = namespace(c)
    directions: list[Real] = []
    resolved: list[Boolean] = []
    for mirror in guarantee.neighbour_directions:
        total = 0.0 * c
        for term in guarantee.terms:
            moments = [_log_moment(term, k, mirror, c) for k in range(len(term.pairs))]
            total = total + term.count * elementwise_maximum([value for value, _ in moments])
            resolved += [is_resolved for _, is_resolved in moments]
        directions.append(total / c)
    leaves = [c, *jax.tree.leaves(guarantee)]
    unknown = xp.stack([xp.asarray(xp.any(leaf != leaf)) for leaf in leaves]).any()  # Comparisons do not detect a NaN.
    value = xp.where(unknown, np.nan, elementwise_maximum(directions))
    return value, xp.stack(resolved).all() | unknown


def _log_moment(term: RepeatedReleases, pair_index: int, mirror: bool, c: Real) -> tuple[Real, Boolean]:
    """Return log E_q e^(a l) of one release, rounded upwards, and whether it is resolved."""
    xp, pair = namespace(c), term.pairs[pair_index]
    if isinstance(pair, AdditivePair) and isinstance(pair.noise, Gaussian) and term.sampling_rate is None:
        return c * (c + 1) * (pair.shift / pair.noise.sigma) ** 2 / 2, xp.asarray(True)
    losses = _losses(term, pair_index, mirror)
    atoms = _terms(_log_q(losses), losses.loss, log_or_minus_inf(losses.p), c)
    sums: list[tuple[Real, Real]] = [atoms.sum(1.0)[:2]] if losses.p.size else []
    resolved = [xp.asarray(True)]
    for index, pieces in enumerate(losses.pieces):
        integral = _search(pieces, c) if xp is np else _search_on_host(term, pair_index, mirror, index, c)
        # JAX numbers are integrated once more, with derivatives in the parameters and in the ends of pieces.
        log_value = integral.log_value if xp is np else _integrate(pieces, integral, c)
        sums.append((xp.where(integral.diverges, np.inf, log_value), integral.error))
        resolved.append(xp.asarray(integral.is_resolved))
    logs, errors = (xp.stack(column) for column in zip(*sums, strict=True))
    log_sum = _log_sum(logs)
    # log(1 + G), where neither 1 nor G overflows or is lost.
    high, low = xp.where(log_sum > 0, log_sum, 0.0), xp.where(log_sum > 0, 0.0, log_sum)
    value = xp.where(log_sum > 0, high + xp.log1p(xp.exp(-high)), xp.log1p(xp.exp(low)))
    finite = xp.isfinite(log_sum)
    error = xp.where(finite, (xp.exp(logs - xp.where(finite, value, 0.0)) * errors).sum(), 0.0)
    rounding = _SUM_UNITS * float(np.finfo(value.dtype).eps)
    return value * (1 + rounding) + without_derivative(error), xp.stack(resolved).all()


def _losses(term: RepeatedReleases, pair_index: int, mirror: bool) -> PrivacyLossDistribution:
    losses = term.privacy_losses[pair_index]
    return losses.mirrored() if mirror else losses


def _log_q(losses: PrivacyLossDistribution) -> Float[RealArray, " outcomes"]:
    """Return log q of outcomes: where q underflows, and the loss is finite, log p less the loss."""
    xp = namespace(losses.p, losses.loss)
    is_lost = (losses.q < xp.finfo(losses.q.dtype).tiny) & (losses.p > 0) & (losses.loss < np.inf)
    loss = xp.where(is_lost, losses.loss, 0.0)
    return xp.where(is_lost, log_or_minus_inf(losses.p) - loss, log_or_minus_inf(losses.q))


class _Terms(NamedTuple):
    """Values q g(l) = e^exponent u of an integrand at points along a last axis."""

    exponent: Float[RealArray, "*panels nodes"]  # inf where q is 0 and p is not.
    mantissa: Float[RealArray, "*panels nodes"]  # u, from 0 to a.
    # Relative errors: if losses have full precision, and if they are differences of log densities.
    error: Float[RealArray, "*panels nodes"]
    cancellation_error: Float[RealArray, "*panels nodes"]

    def sum(
        self, weights: Float[RealArray, " nodes"] | float
    ) -> tuple[Float[RealArray, "*panels"], Float[RealArray, "*panels"], Float[RealArray, "*panels"]]:
        """Return the log of the weighted sum, and bounds of its relative error and cancellation error."""
        xp = namespace(self.exponent)
        top = without_derivative(self.exponent.max(-1, keepdims=True))
        top = xp.where(xp.isfinite(top), top, 0.0)
        values = weights * xp.exp(self.exponent - top) * self.mantissa
        total = values.sum(-1)
        is_regular = (total > 0) & (total < np.inf)
        fractions = without_derivative(values / xp.where(is_regular, total, 1.0)[..., None])
        error, cancellation_error = (
            xp.where(is_regular, (fractions * bound).sum(-1), 0.0) for bound in (self.error, self.cancellation_error)
        )
        return top[..., 0] + log_or_minus_inf(total), error, cancellation_error


def _terms(log_q: Real, loss: Float[RealArray, "*panels nodes"], log_p: Real, c: Real) -> _Terms:
    xp, a = namespace(log_q, loss, c), 1 + c
    is_infinite, is_minus_infinity = (loss == np.inf) & (log_p > -np.inf), loss == -np.inf
    is_finite = (log_q > -np.inf) & (loss < np.inf)
    finite, log_q = xp.where(is_finite & ~is_minus_infinity, loss, 0.0), xp.where(is_finite, log_q, 0.0)
    is_small, is_positive = xp.abs(a * finite) <= _SERIES_MAX, finite > 0
    small_loss, high, low = (
        xp.where(is_small, finite, 0.0),
        xp.where(is_small, 1.0, xp.abs(finite)),
        xp.where(is_small, -1.0, -xp.abs(finite)),
    )
    # g e^(-a l) for l > 0, and g for l < 0, as differences that do not cancel.
    rising = -xp.expm1(-c * high) + c * xp.exp(-c * high) * xp.expm1(-high)
    falling = -c * xp.expm1(low) + xp.exp(low) * xp.expm1(c * low)
    mantissa = xp.where(is_small, _series(small_loss, c), xp.where(is_positive, rising, falling))
    mantissa = xp.where(is_minus_infinity, c, mantissa)
    scaled_loss = xp.where(is_small | ~is_positive, 0.0, a * finite)
    unit = _EXPONENT_UNITS * float(np.finfo(mantissa.dtype).eps)
    error = unit * without_derivative(1 + xp.abs(log_q) + xp.abs(scaled_loss))
    steepness = a + 2 / xp.where(finite == 0, 1.0, xp.abs(finite))
    cancellation_error = error + unit * without_derivative(steepness * (2 * xp.abs(log_q) + xp.abs(finite)))
    exponent = xp.where(is_infinite, np.inf, xp.where(is_finite, log_q + scaled_loss, -np.inf))
    return _Terms(exponent, xp.where(is_infinite, 1.0, mantissa), error, cancellation_error)


def _series(loss: Float[RealArray, "*panels nodes"], c: Real) -> Float[RealArray, "*panels nodes"]:
    """Return g at small losses: the sum over k from 2 of (a^k - a) l^k/k! = (1 - a^(1 - k)) (a l)^k/k!."""
    xp = namespace(loss, c)
    x, log_a, value = (1 + c) * loss, xp.log1p(c), 0.0
    for k in range(_SERIES_TERMS, 1, -1):
        value = (value - xp.expm1((1 - k) * log_a)) * x / k
    return value * x


def _log_sum(logs: Float[RealArray, " terms"]) -> float:
    xp = namespace(logs)
    top = without_derivative(logs.max())
    top = xp.where(xp.isfinite(top), top, 0.0)
    return top + log_or_minus_inf(xp.exp(logs - top).sum())


# Integrals over pieces


@dataclass(frozen=True)
class _Coordinates:
    """Points x = base + span t of pieces: 0 < t < 1 in a piece with two ends, and other t in a piece without."""

    base: Float[RealArray, " pieces"]
    span: Float[RealArray, " pieces"]
    edges: Float[RealArray, "pieces edges"]  # The ends of the first panels in t, of shape (pieces, edges).

    @classmethod
    def from_pieces(cls, pieces: SmoothPieces) -> _Coordinates:
        lower, upper = pieces.untruncated
        xp = namespace(lower, upper)
        is_unbounded_below, is_unbounded_above = xp.isinf(lower), xp.isinf(upper)
        is_line, is_finite = is_unbounded_below & is_unbounded_above, ~(is_unbounded_below | is_unbounded_above)
        lower_end, upper_end = xp.where(is_unbounded_below, 0.0, lower), xp.where(is_unbounded_above, 0.0, upper)
        length = pieces.upper - pieces.lower
        extent = xp.where((length > 0) & (length < np.inf), length, 0.0)
        extent = xp.maximum(extent, xp.maximum(xp.abs(lower_end), xp.abs(upper_end)))
        extent = without_derivative(xp.where(extent > 0, extent, 1.0))
        is_reversed = is_unbounded_below & ~is_unbounded_above
        base = xp.where(is_reversed, upper_end, lower_end)
        span = xp.where(is_finite, upper_end - lower_end, xp.where(is_reversed, -extent, extent))
        inner = np.pad(_INNER_ENDS, (0, len(_OUTER_ENDS) - len(_INNER_ENDS)), "edge")
        positive = xp.where(is_finite[:, None], cast_like(inner, span), cast_like(_OUTER_ENDS, span))
        negative = xp.where(is_line[:, None], cast_like(-_OUTER_ENDS[:0:-1], span), 0.0)
        edges = xp.where((upper > lower)[:, None], xp.concatenate([negative, positive], 1), 0.0)
        return cls(base, span, edges)

    def first_panels(
        self,
    ) -> tuple[Int[RealArray, " panels"], Float[RealArray, " panels"], Float[RealArray, " panels"]]:
        start, end = self.edges[:, :-1], self.edges[:, 1:]
        piece, edge = np.nonzero(end > start)
        return piece, start[piece, edge], end[piece, edge]


class _Panels(NamedTuple):
    """Panels of pieces, and what is known of their integrals."""

    piece: Int[RealArray, " panels"]
    start: Float[RealArray, " panels"]
    end: Float[RealArray, " panels"]
    whole: Float[RealArray, " panels"]  # The log of the integral by the nodes of the whole panel.
    halves: Float[RealArray, "panels 2"]  # The logs of the integrals of both halves, along a last axis.
    bound: Any  # The log of the integral of an extrapolated largest value.
    error: Float[RealArray, " panels"]  # Bounds of the relative error and cancellation error; see ``_Terms``.
    cancellation_error: Float[RealArray, " panels"]

    @property
    def log_value(self) -> Float[np.ndarray, " panels"]:
        return np.logaddexp(self.halves[:, 0], self.halves[:, 1])

    @property
    def difference(self) -> Float[np.ndarray, " panels"]:
        """Return the relative difference of the integrals by the panels and by their halves."""
        value = self.log_value
        difference = np.where(value == self.whole, 0.0, self.whole - value)
        return np.abs(np.expm1(np.where(difference < _MAX_EXPONENT, difference, _MAX_EXPONENT)))

    def log_unknown(self, rounding_error: Float[RealArray, " panels"]) -> Float[np.ndarray, " panels"]:
        """Return logs of bounds of the errors of the integrals, besides relative ones up to a rounding error."""
        difference = self.difference
        errors = self.log_value + log_or_minus_inf(np.where(difference > rounding_error, difference, 0.0))
        return np.where(difference <= _ESTIMATE_RTOL, errors, np.maximum(errors, self.bound))

    def are_negligible(self, log_value: float) -> bool:
        """Return whether an integral is negligible next to that over all panels."""
        total = _log_sum(self.log_value)
        return bool(total == np.inf or log_value <= total + _NEGLIGIBLE)

    def take(self, rows: np.ndarray) -> _Panels:
        return _Panels(*(column[rows] for column in self))

    def joined(self, others: _Panels) -> _Panels:
        return _Panels(*(np.concatenate(columns) for columns in zip(self, others, strict=True)))


class _Integral(NamedTuple):
    """The integral of q g(l) over pieces, and the panels that matter."""

    piece: Int[RealArray, " panels"]
    start: Float[RealArray, " panels"]
    end: Float[RealArray, " panels"]
    log_value: Any
    error: Any  # A bound of the relative error.
    is_resolved: Boolean
    diverges: Boolean


def _search(pieces: SmoothPieces, c: Real) -> _Integral:
    """Return the integral over pieces of plain numbers."""
    coordinates = _Coordinates.from_pieces(pieces)
    rows = coordinates.first_panels()
    if not len(rows[0]):
        return _Integral(*rows, -np.inf, 0.0, True, False)
    panels = _evaluate(pieces, coordinates, c, *rows)
    remaining_rounds = _MAX_NOISY_ROUNDS
    for _ in range(_MAX_ROUNDS):
        unknown = panels.log_unknown(panels.error)
        remaining_rounds -= panels.are_negligible(_log_sum(panels.log_unknown(panels.cancellation_error)))
        if panels.are_negligible(_log_sum(unknown)) or not remaining_rounds:
            break
        count = min(_SPLIT_PANELS, len(unknown))
        is_halved = np.zeros(len(unknown), bool)
        is_halved[np.argpartition(-unknown, count - 1)[:count]] = True
        is_halved &= unknown > -np.inf
        parents = panels.take(is_halved)
        middle = (parents.start + parents.end) / 2
        start, end = np.concatenate([parents.start, middle]), np.concatenate([middle, parents.end])
        piece = np.concatenate([parents.piece, parents.piece])
        panels = panels.take(~is_halved).joined(
            _evaluate(pieces, coordinates, c, piece, start, end, parents.halves.T.ravel())
        )
    unknown = panels.log_unknown(panels.cancellation_error)
    is_resolved = panels.are_negligible(_log_sum(unknown))
    # At infinity a panel stands for all that follow. Elsewhere an integral that is not resolved at an end is infinite.
    first, last = coordinates.edges[:, 0][panels.piece], coordinates.edges[:, -1][panels.piece]
    at_first, at_last = panels.start == first, panels.end == last
    at_infinity = (at_first & (first < 0)) | (at_last & (last > 1))
    at_end = at_first | at_last
    is_unbounded = at_infinity | (panels.end - first < _SINGULAR_DISTANCE) | (last - panels.start < _SINGULAR_DISTANCE)
    diverges = not panels.are_negligible(np.where(is_unbounded, panels.bound, -np.inf).max()) or (
        not is_resolved and bool(at_end[unknown.argmax()])
    )
    log_value = _log_sum(panels.log_value)
    log_error = _log_sum(panels.log_value + log_or_minus_inf(panels.error + panels.difference))
    error = np.exp(log_error - log_value) if np.isfinite(log_value) else 0.0
    matters = panels.log_value > log_value + _NEGLIGIBLE - np.log(len(unknown))
    return _Integral(*panels.take(matters)[:3], log_value, error, is_resolved or diverges, diverges)


def _search_on_host(term: RepeatedReleases, pair_index: int, mirror: bool, index: int, c: Any) -> _Integral:
    """Return the integral of JAX numbers, without derivatives, from the host: the search takes minutes to compile."""
    leaves, structure = jax.tree.flatten((without_derivative(c), without_derivative(term)))

    def search(*leaves: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            host_order, on_host = as_float64(jax.tree.unflatten(structure, map(_unpacked, leaves)))
            integral = _search(_losses(on_host, pair_index, mirror).pieces[index], host_order[()])
        count = len(integral.piece)
        piece, *ends = (np.pad(column[:_MAX_PANELS], (0, max(0, _MAX_PANELS - count))) for column in integral[:3])
        is_resolved = integral.is_resolved and (count <= _MAX_PANELS or integral.diverges)
        floats = np.concatenate([*ends, [integral.log_value, integral.error]])
        bits = floats.astype(c.dtype).view(np.uint32).reshape(len(floats), *words)
        return piece.astype(np.int32), bits, np.array([is_resolved, integral.diverges])

    words = (2,) if c.dtype == jnp.float64 else ()
    layouts = ((_MAX_PANELS,), np.int32), ((2 * _MAX_PANELS + 2, *words), np.uint32), ((2,), bool)
    shapes = tuple(jax.ShapeDtypeStruct(*layout) for layout in layouts)
    piece, bits, flags = jax.pure_callback(search, shapes, *map(_packed, leaves), vmap_method="sequential")
    ends, (log_value, error) = jnp.split(jax.lax.bitcast_convert_type(bits, c.dtype), [2 * _MAX_PANELS])
    start, end = jnp.split(ends, 2)
    return _Integral(piece, start, end, log_value, error, flags[0], flags[1])


# A callback runs with the default settings of JAX, in which numbers have 32 bits: their bits are passed as integers.


def _packed(leaf: object) -> RealArray:
    leaf = jnp.asarray(leaf)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32) if leaf.dtype == jnp.float64 else leaf


def _unpacked(leaf: object) -> np.ndarray:
    leaf = np.asarray(leaf)
    return np.ascontiguousarray(leaf).view(np.float64)[..., 0] if leaf.dtype == np.uint32 else leaf


def _integrate(pieces: SmoothPieces, integral: _Integral, c: Real) -> Real:
    """Return the log of the integral over the panels that matter."""
    panels = _evaluate(
        pieces, _Coordinates.from_pieces(pieces), c, integral.piece, integral.start, integral.end, integral.start
    )
    return _log_sum(panels.halves.ravel())


def _evaluate(
    pieces: SmoothPieces,
    coordinates: _Coordinates,
    c: Real,
    piece: Int[RealArray, " panels"],
    start: Float[RealArray, " panels"],
    end: Float[RealArray, " panels"],
    whole_integrals: Float[RealArray, " panels"] | None = None,
) -> _Panels:
    """Return the panels; ``whole_integrals`` are the logs of their integrals by their own nodes, if known already."""
    xp, row = namespace(c, start), piece[:, None]
    base, span, width = coordinates.base[row], coordinates.span[row], (end - start)[:, None]
    length = log_or_minus_inf(width[:, 0] * xp.abs(span[:, 0]))

    def terms(points: np.ndarray) -> _Terms:
        x = base + span * (start[:, None] + width * cast_like(points, start))
        return _terms(pieces.log_q(x, row), pieces.loss(x, row), pieces.log_p(x, row), c)

    def integral(terms: _Terms) -> tuple[RealArray, RealArray, RealArray]:
        log_sum, error, cancellation_error = terms.sum(cast_like(_WEIGHTS, start))
        return xp.where(width[:, 0] > 0, log_sum + length, -np.inf), error, cancellation_error

    if whole_integrals is None:
        whole_integrals = integral(terms(_NODES))[0]
    half_terms, n = terms(_HALVES), len(_NODES)
    node_halves = (_Terms(*(column[:, rows] for column in half_terms)) for rows in (slice(None, n), slice(n, None)))
    halves, error, cancellation_error = (
        xp.stack(column, -1) for column in zip(*map(integral, node_halves), strict=True)
    )
    largest = _extrapolated(without_derivative(half_terms.exponent + log_or_minus_inf(half_terms.mantissa))) + length
    return _Panels(
        piece, start, end, whole_integrals, halves - np.log(2.0), largest, error.max(-1), cancellation_error.max(-1)
    )


def _extrapolated(logs: Float[RealArray, "panels nodes"]) -> Float[RealArray, " panels"]:
    """Return the largest value of functions between their nodes, as if they were concave there."""
    xp, gaps = namespace(logs), cast_like(_GAPS, logs)
    logs = xp.where(logs == logs, logs, -np.inf)
    is_finite = xp.isfinite(logs)
    slope = xp.diff(xp.where(is_finite, logs, 0.0), axis=-1) / gaps
    slope = xp.where(is_finite[:, 1:] & is_finite[:, :-1], slope, 0.0)
    ahead = logs[:, 1:-1] + xp.maximum(slope[:, :-1], 0.0) * gaps[1:]
    behind = logs[:, 1:-1] + xp.maximum(-slope[:, 1:], 0.0) * gaps[:-1]
    edge = float(_HALVES[0])
    first = logs[:, 0] + edge * xp.maximum(-slope[:, 0], 0.0)
    last = logs[:, -1] + edge * xp.maximum(slope[:, -1], 0.0)
    return xp.maximum(xp.maximum(ahead, behind).max(-1), xp.maximum(first, last))
