"""Privacy loss distributions: atoms and smooth pieces of the loss log p/q, and their algebra.

Estimates use outcomes: ``nodes`` turns smooth pieces into outcomes by quadrature. Rigorous bounds use the pieces
themselves (``composition.brackets``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from accountants.loss_intervals import LossIntervals
from dpkernels.numerics import (
    GAUSS_LEGENDRE,
    Boolean,
    Real,
    RealArray,
    cast_like,
    log_or_minus_inf,
    namespace,
    without_derivative,
)
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree, pytree
from dpkernels.shapes import Float

_NODES, _WEIGHTS = GAUSS_LEGENDRE
SMOOTH_PANELS = 4  # The panels of a piece on which only smooth functions of the loss are integrated.
_MAX_MISSED_MASS = 1e-6  # The mass that quadrature may miss by rounding.
_LARGE_LOSS = 30.0  # Above this loss, e^loss is or will soon be close to overflow.
# On CPUs, XLA compiles sums of multiples of this number of terms quickly; other lengths need extra code for their ends.
_TERM_MULTIPLE = 32
_ZERO_LOSS_UNITS = 64  # Losses up to this number of roundings of 1 are rounding errors.
_MAX_SAMPLED_PIECES = 12  # Up to this number, pieces are sampled on a grid.
_CONSTANT_RTOL = 1e-13  # A piece on which the loss varies by less than this, relatively, has a constant loss.


@proven("brackets#proof-of-1-quadrature")
@dataclass(frozen=True)
class SmoothPieces:
    """Intervals on which both densities are smooth, and each is either positive or 0 throughout.

    The functions take points x and the numbers i of their pieces, which broadcast.

    - lower, upper: the ends, arrays; a piece is empty if its length is not positive.
    - log_p, log_q: log densities at (x, i).
    - loss: log p/q at (x, i), to full precision; infinite where one density is 0, and 0 where both are.
    - steepness: a bound s on how fast densities change on panels (lower, upper, i): p and q are sums of positive parts
      f with |f^(8)| <= s^8 f (docs/proofs/brackets.md). Polynomials of degree 7 have s = 0. None: no proven bracket.
    - inverse: the point of piece i that has a given loss, if the loss is monotone and a formula is known; else None.
    - min_panels: the least number of panels of a piece.
    - whole_ends: the ends of the whole pieces, possibly infinite, where lower and upper leave out negligible tails.
    - intervals: for plain numbers and a monotone loss on every piece, the masses between levels of the loss, if they
      are known from tail probabilities; its pieces may reach further. Else None.
    """

    lower: Float[RealArray, " pieces"]
    upper: Float[RealArray, " pieces"]
    log_p: Callable[..., Real]
    log_q: Callable[..., Real]
    loss: Callable[..., RealArray]
    steepness: Callable[..., RealArray] | None = None
    inverse: Callable[..., RealArray] | None = None
    min_panels: int = SMOOTH_PANELS
    whole_ends: tuple[Float[RealArray, " pieces"], Float[RealArray, " pieces"]] | None = None
    intervals: LossIntervals | None = None

    @property
    def untruncated(self) -> tuple[Float[RealArray, " pieces"], Float[RealArray, " pieces"]]:
        """Return the ends of the whole pieces."""
        return self.whole_ends or (self.lower, self.upper)

    def scaled(self, weight: Real) -> SmoothPieces:
        xp = namespace(weight)
        log_weight = xp.log(weight)
        return dataclasses.replace(
            self,
            log_p=lambda x, i: self.log_p(x, i) + log_weight,
            log_q=lambda x, i: self.log_q(x, i) + log_weight,
            intervals=self.intervals.scaled(weight) if self.intervals and xp is np else None,
        )

    def mirrored(self, sign: Real = -1) -> SmoothPieces:
        """Return the pieces of the pair (q, p), or of this pair if the sign is 1; the sign may be a JAX number."""
        inverse, intervals = self.inverse, self.intervals if namespace(sign) is np else None
        log_p, log_q = _exchanged(sign, self.log_p, self.log_q)
        return dataclasses.replace(
            self,
            log_p=log_p,
            log_q=log_q,
            loss=lambda x, i: sign * self.loss(x, i),
            inverse=inverse and (lambda loss, i: inverse(sign * loss, i)),
            intervals=intervals if intervals is None or sign > 0 else intervals.mirrored(),
        )

    def subsampled(self, rate: Any) -> SmoothPieces:
        inverse, is_plain = self.inverse, namespace(rate) is np

        def level_before(level: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return _loss_before_sampling(level, rate)

        def log_p(x: RealArray, i: RealArray) -> RealArray:
            log_p, log_q, loss = self.log_p(x, i), self.log_q(x, i), self.loss(x, i)
            xp = namespace(loss, rate)
            on_sample = sampled_loss(loss, rate)
            return xp.where(loss == np.inf, log_p + xp.log(rate), log_q + xp.where(on_sample == np.inf, 0.0, on_sample))

        return dataclasses.replace(
            self,
            log_p=log_p,
            loss=lambda x, i: sampled_loss(self.loss(x, i), rate),
            inverse=inverse and (lambda loss, i: inverse(_loss_before_sampling(loss, rate), i)),
            intervals=self.intervals.subsampled(rate, level_before) if self.intervals and is_plain else None,
        )

    def where(self, is_present: Boolean) -> SmoothPieces:
        """Return the same pieces, with those that are not kept made empty."""
        ends = (self.lower, self.upper), self.untruncated
        upper, end = (namespace(low, is_present).where(is_present, high, low) for low, high in ends)
        intervals = self.intervals and self.intervals.where(is_present)
        return dataclasses.replace(self, upper=upper, whole_ends=(self.untruncated[0], end), intervals=intervals)

    def nodes(self, panels: int, cuts: Float[RealArray, " cuts"] | None = None) -> PrivacyLossDistribution:
        """Return outcomes that integrate smooth functions of the loss; see ``PrivacyLossDistribution.nodes``."""
        count = len(self.lower)
        xp = namespace(self.lower, self.upper)
        panel_count = max(
            self.min_panels, panels // (count if xp is not np else max(int((self.upper > self.lower).sum()), 1))
        )
        # Of JAX arrays a slice is no gather, which would be a kernel of its own.
        number = np.arange(count)[:, None] if xp is np else np.s_[:, None]
        width = (self.upper - self.lower)[:, None]
        if self.inverse is None:
            cuts = None
        elif cuts is not None:
            fraction = (self.inverse(cuts, number) - self.lower[:, None]) / xp.where(width > 0, width, 1.0)
            cuts = without_derivative(xp.where(width > 0, xp.clip(fraction, 0.0, 1.0), 0.0))
        fraction, weight = panel_rule(panel_count, self.lower, dense=panels > 0 and count > 1, cuts=cuts)
        x = self.lower[:, None] + width * fraction
        loss = self.loss(x, number)
        p, q = (width * weight * xp.exp(log(x, number)) for log in (self.log_p, self.log_q))
        finite = xp.where(xp.isfinite(loss), loss, 0.0)
        constant = _extent(finite) <= _CONSTANT_RTOL * (1 + xp.abs(finite))
        spacing = xp.where(constant, 0.0, node_spacing(finite))
        return PrivacyLossDistribution(*map(xp.ravel, (p, q, loss, spacing)))


@proven("worst_pairs#7-poisson-samples-one-record-added-or-removed")
@partial(pytree, static=("pieces", "unseen"))
@dataclass(frozen=True)
class PrivacyLossDistribution:
    """The distribution of the privacy loss of a pair: outcomes, and pieces on which the loss varies smoothly.

    Outcomes have masses p and q, and the loss log p/q, which is inf where q = 0 and -inf where p = 0. Their width is
    the approximate width of the range of losses that each represents, 0 for an atom. ``unseen`` bounds the mass, under
    p and under q, that is neither in outcomes nor in pieces: Gaussian tails beyond the reach.
    """

    p: Float[RealArray, "*batch outcomes"]
    q: Float[RealArray, "*batch outcomes"]
    loss: Float[RealArray, "*batch outcomes"]
    width: Float[RealArray, "*batch outcomes"]
    pieces: tuple[SmoothPieces, ...] = ()
    unseen: float = 0.0

    @classmethod
    def of_masses(cls, p: Float[RealArray, " outcomes"], q: Float[RealArray, " outcomes"]) -> PrivacyLossDistribution:
        """Return the distribution of two tables of probabilities: all outcomes are atoms."""
        return cls(p, q, log_ratio(log_or_minus_inf(p), log_or_minus_inf(q)), 0 * p)

    @classmethod
    def of_pieces(cls, pieces: SmoothPieces, unseen: float = 0.0) -> PrivacyLossDistribution:
        none = namespace(pieces.lower).zeros_like(pieces.lower[:0])
        return cls(none, none, none, none, (pieces,), unseen)

    def mirrored(self, sign: Real = -1) -> PrivacyLossDistribution:
        """Return the distribution of the pair (q, p), or of this pair if the sign is 1."""
        pieces = tuple(piece.mirrored(sign) for piece in self.pieces)
        p, q = _exchanged(sign, self.p, self.q)
        return PrivacyLossDistribution(p, q, sign * self.loss, self.width, pieces, self.unseen)

    def for_one_direction(self) -> PrivacyLossDistribution:
        """Return the losses alone; a subclass may know others for the mirrored pair."""
        return self

    def scaled(self, weight: Real) -> PrivacyLossDistribution:
        pieces = tuple(piece.scaled(weight) for piece in self.pieces)
        unseen = self.unseen * float(weight) if self.unseen else 0.0
        return PrivacyLossDistribution(weight * self.p, weight * self.q, self.loss, self.width, pieces, unseen)

    def subsampled(self, rate: Real) -> PrivacyLossDistribution:
        """Return the distribution of (r p + (1 - r) q, q): the differing record is in a Poisson sample of rate r."""
        xp = namespace(self.loss, rate)
        sampled = sampled_loss(self.loss, rate)
        infinite = xp.isinf(self.loss)
        change = xp.where(infinite, 0.0, self.loss) - xp.where(infinite, 0.0, sampled)
        width = self.width * rate * xp.exp(change)
        pieces = tuple(piece.subsampled(rate) for piece in self.pieces)
        p = rate * self.p + (1 - rate) * self.q
        return PrivacyLossDistribution(p, self.q, sampled, width, pieces, self.unseen)

    def symmetrized(self) -> PrivacyLossDistribution:
        """Return the distribution of the maximum of the profiles of this pair, which must be larger, and its mirror.

        It has the positive losses, their mirror images, and else loss 0. The losses of each piece must have one sign.
        """
        xp = namespace(self.loss)
        # Rounding errors would be counted twice, and subtracted from the remaining mass.
        positive = self.loss > _ZERO_LOSS_UNITS * xp.finfo(self.loss.dtype).eps
        p, q = xp.where(positive, self.p, 0.0), xp.where(positive, self.q, 0.0)
        pieces = tuple(
            piece.where(piece.loss((piece.lower + piece.upper) / 2, np.arange(len(piece.lower))) > 0)
            for piece in self.pieces
        )
        larger = PrivacyLossDistribution(p, q, self.loss, self.width, pieces, self.unseen)
        mass = xp.maximum(1 - sum(larger.masses()), 0.0)[None]
        return join([larger, larger.mirrored(), PrivacyLossDistribution(mass, mass, 0 * mass, 0 * mass)])

    def masses(self) -> tuple[Real, Real]:
        nodes = self.nodes()
        return nodes.p.sum(), nodes.q.sum()

    def nodes(self, panels: int = 0, cuts: Float[RealArray, " cuts"] | None = None) -> PrivacyLossDistribution:
        """Return the distribution as outcomes alone, which integrate smooth functions of the loss up to rounding.

        The pieces share a number of panels of 16 nodes, at least ``min_panels`` each, by default as many as smooth
        functions of the loss need. Panels of pieces with an inverse end at the losses ``cuts``, too.
        """
        if not self.pieces:
            return self
        outcomes = PrivacyLossDistribution(self.p, self.q, self.loss, self.width)
        return join([outcomes, *(piece.nodes(panels, cuts) for piece in self.pieces if len(piece.lower))])

    @property
    def is_invertible(self) -> bool:
        """Return whether there are pieces, at most 12, and the inverse of the loss is known on each."""
        count = sum(len(piece.lower) for piece in self.pieces)
        return 0 < count <= _MAX_SAMPLED_PIECES and all(piece.inverse for piece in self.pieces)

    def padded(self) -> PrivacyLossDistribution:
        """Return outcomes followed by as many of no mass as make sums compile quickly."""
        xp = namespace(self.p)
        columns: tuple[RealArray, ...] = (self.p, self.q, self.loss, self.width)
        if xp is np:
            has_mass = (self.p != 0) | (self.q != 0)
            columns = tuple(column[has_mass] for column in columns)
        size = columns[0].shape[-1] + 1
        padding = 1 + -size % (
            1 if size < _TERM_MULTIPLE else _TERM_MULTIPLE if size < _TERM_MULTIPLE**2 else _TERM_MULTIPLE**2
        )
        none = xp.zeros((*columns[0].shape[:-1], padding), self.p.dtype)
        return PrivacyLossDistribution(*(xp.concatenate([column, none], -1) for column in columns))

    def capped(self, cap: Real) -> PrivacyLossDistribution:
        """Return a distribution with the same profile at every eps up to the cap.

        Larger losses become (e^cap q, q), and their remaining mass under p gets an infinite loss. The composition with
        other losses does not change as long as their sum is at least eps - cap. The last outcome takes the remaining
        mass. It must have no mass of its own (see ``padded``), which would get an infinite loss, too.
        """
        xp = namespace(self.p, cap)
        is_above = xp.isfinite(self.loss) & (self.loss > cap)
        fall = xp.where(is_above, cap - self.loss, 0.0)
        # Do not compute this as p minus the mass kept: the rounding error would count n times.
        lost = (self.p * -xp.expm1(fall)).sum()
        last = np.arange(self.p.size) == self.p.size - 1
        loss = xp.where(last, np.inf, xp.where(is_above, cap, self.loss))
        p = self.p * xp.exp(fall) + xp.where(last, lost, 0.0)
        return PrivacyLossDistribution(p, self.q, loss, xp.where(is_above, 0.0, self.width))

    def completed(self) -> PrivacyLossDistribution:
        """Return outcomes with the mass that quadrature missed, of noise between its nodes, at an infinite loss."""
        missed = 1 - without_derivative(self.p.sum(-1, keepdims=True))
        xp = namespace(missed)
        p = xp.where(missed > max(_MAX_MISSED_MASS, 4 * float(np.finfo(missed.dtype).eps) ** 0.5), missed, 0.0)
        if xp is np and not p.any():
            return self
        return join([self, PrivacyLossDistribution(p, 0 * p, p + np.inf, 0 * p)])

    @property
    def finite(self) -> tuple[Float[RealArray, "*batch outcomes"], Float[RealArray, "*batch outcomes"]]:
        """Return (log p, loss) of outcomes, with mass 0 and loss 0 where the loss is infinite; cached for NumPy."""
        cached = self.__dict__.get("_finite")
        if cached is not None:
            return cached
        xp = namespace(self.p, self.loss)
        real = ~(xp.isinf(self.loss) | (self.p <= 0))  # NaN stays.
        log_p_and_loss = xp.where(real, xp.log(xp.where(real, self.p, 1.0)), -np.inf), xp.where(real, self.loss, 0.0)
        if xp is np:
            object.__setattr__(self, "_finite", log_p_and_loss)
        return log_p_and_loss


def _exchanged(sign: Real, first: object, second: object) -> tuple[PyTree, PyTree]:
    xp = namespace(sign)
    if xp is np:
        return (first, second) if sign > 0 else (second, first)

    def chosen(when_positive: object, otherwise: PyTree) -> Any:
        if callable(when_positive):
            return lambda x, i: xp.where(sign > 0, when_positive(x, i), otherwise(x, i))
        return xp.where(sign > 0, when_positive, otherwise)

    return chosen(first, second), chosen(second, first)


def join(distributions: Sequence[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    """Return the distribution with all outcomes and pieces of several."""
    xp = namespace(*(value for entry in distributions for value in (entry.p, entry.q, entry.loss)))
    columns = zip(*((entry.p, entry.q, entry.loss, entry.width) for entry in distributions), strict=True)
    p, q, loss, width = (xp.concatenate([xp.ravel(column) for column in arrays]) for arrays in columns)
    pieces = sum((entry.pieces for entry in distributions), ())
    return PrivacyLossDistribution(p, q, loss, width, pieces, sum(entry.unseen for entry in distributions))


def sampled_loss(loss: Real, rate: Real) -> RealArray:
    """Return log(1 + r (e^loss - 1)), the loss on a Poisson sample of rate r."""
    xp = namespace(loss, rate)
    infinite = xp.isinf(loss)
    finite = xp.where(infinite, 0.0, loss)  # NaN stays.
    is_large, is_small = finite > _LARGE_LOSS, finite < -1
    middle_loss = xp.log1p(rate * xp.expm1(xp.where(is_large | is_small, 0.0, finite)))
    large_loss = finite + xp.log(rate + (1 - rate) * xp.exp(-xp.where(is_large, finite, 0.0)))
    # Next to the least loss, log(1 - r), log1p would cancel; 1 - r is exact where it is small.
    small_loss = xp.log(
        xp.where(rate < 1, 1 - rate, 1.0) + xp.where(rate < 1, rate * xp.exp(xp.where(is_small, finite, 0.0)), 0.0)
    )
    small_loss = xp.where(rate < 1, small_loss, finite)  # At rate 1 a large negative loss would underflow.
    sampled = xp.where(is_large, large_loss, xp.where(is_small, small_loss, middle_loss))
    lowest = xp.where(rate < 1, xp.log1p(-xp.where(rate < 1, rate, 0.0)), -np.inf)
    return xp.where(infinite, xp.where(loss > 0, np.inf, lowest), sampled)


def _loss_before_sampling(loss: RealArray, rate: object) -> Any:
    """Return the loss that ``sampled_loss`` maps to this one, -inf for a loss below all of these."""
    xp = namespace(loss, rate)
    is_large = loss > _LARGE_LOSS
    change = xp.expm1(xp.where(is_large, 0.0, loss)) / rate
    is_below = change <= -1  # NaN stays.
    inverse = xp.where(is_below, -np.inf, xp.log1p(xp.where(is_below, 0.0, change)))
    return xp.where(is_large, loss - xp.log(rate), inverse)


def log_ratio(log_p: Real, log_q: Real) -> Any:
    """Return log p - log q: infinite where one of the two is 0, and 0 where both are."""
    xp = namespace(log_p, log_q)
    p, q = log_p > -np.inf, log_q > -np.inf
    finite = xp.where(p & q, log_p, 0.0) - xp.where(p & q, log_q, 0.0)
    return xp.where(p == q, finite, xp.where(p, np.inf, -np.inf))


def split_intervals(
    lower: np.ndarray, upper: np.ndarray, points: np.ndarray, rows_of_points: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (lower ends, upper ends, rows) of intervals of plain numbers, split at points in given rows."""
    starts, rows = np.concatenate([lower, points]), np.concatenate([np.arange(len(lower)), rows_of_points])
    order = np.lexsort((starts, rows))
    starts, rows = starts[order], rows[order]
    is_last = np.diff(rows, append=len(lower)) != 0
    return starts, np.where(is_last, upper[rows], np.append(starts[1:], 0.0)[: len(rows)]), rows


def node_spacing(loss: Float[RealArray, "pieces nodes"]) -> Float[RealArray, "pieces nodes"]:
    """Return the approximate range of losses that each node represents; nodes are along the last axis."""
    loss = without_derivative(loss)
    concatenate, number = namespace(loss).concatenate, np.arange(loss.shape[-1])
    after = concatenate([loss[..., 1:], loss[..., -1:]], -1)
    before = concatenate([loss[..., :1], loss[..., :-1]], -1)
    return abs(after - before) * np.where((number == 0) | (number == number[-1]), 1.0, 0.5).astype(loss.dtype)


def _extent(values: Float[RealArray, "pieces nodes"]) -> Float[RealArray, "pieces 1"]:
    """Return the largest difference in each row, of shape (rows, 1)."""
    xp = namespace(values)
    if xp is np:
        return np.ptp(values, axis=1, keepdims=True)
    return xp.stack([values, -values]).max(-1, keepdims=True).sum(0)  # By one reduction.


def panel_rule(
    panels: int, value: Real, *, dense: bool = False, cuts: Float[RealArray, "pieces cuts"] | None = None
) -> tuple[Float[RealArray, "*pieces nodes"], Float[RealArray, "*pieces nodes"]]:
    """Return nodes and weights on [0, 1] of the given number of panels, in the type of ``value``.

    If ``dense``, nodes accumulate quadratically at both ends, by t = s^2 (3 - 2 s), because the sums of few releases
    may come as close to the ends of the losses. ``cuts`` are further ends of panels, of shape (rows, n): each row has
    its own.
    """
    if cuts is None:
        return tuple(cast_like(table, value) for table in _regular_rule(panels, dense))
    xp, ends = namespace(cuts), np.arange(panels + 1) / panels
    cuts = 0.5 - xp.sin(xp.arcsin(1 - 2 * cuts) / 3) if dense else cuts
    regular = xp.broadcast_to(cast_like(ends, value), (len(cuts), panels + 1))
    return tuple(cast_like(table, value) for table in _rule(xp.sort(xp.concatenate([regular, cuts], -1)), dense))


@lru_cache(maxsize=16)
def _regular_rule(panels: int, dense: bool) -> tuple[Float[RealArray, " nodes"], Float[RealArray, " nodes"]]:
    return _rule(np.arange(panels + 1) / panels, dense)


def _rule(
    ends: Float[RealArray, "*pieces ends"], dense: bool
) -> tuple[Float[RealArray, "*pieces nodes"], Float[RealArray, "*pieces nodes"]]:
    width = (ends[..., 1:] - ends[..., :-1])[..., None]
    s, weights = ends[..., :-1, None] + width * cast_like(_NODES, ends), width * cast_like(_WEIGHTS, ends)
    if dense:
        s, weights = s**2 * (3 - 2 * s), weights * 6 * s * (1 - s)
    shape = *ends.shape[:-1], -1
    return s.reshape(shape), weights.reshape(shape)
