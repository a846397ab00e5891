"""Composition of asymmetric noise, if neighbours may differ in another direction in every release.

An adversary who sees all earlier values chooses the direction of every release. Let H(t) be the profile of one release
in one direction, p the distribution of its losses l, and V_k(s) the largest delta at eps = s of k releases. Then

    V_0(s) = max(0, 1 - e^s),    V_k(s) = max over directions of  E_p V_(k-1)(s - l).

Every V_k decreases in s and is convex in e^s, so V_k increases with the profiles H at all t > 0. Both are bounded on a
grid of losses: H from above by chords between its values, and from below by the same chords, lowered to tangents. All
terms are positive, so small deltas keep their relative accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accountants.composition.interpolation import profile_on_grid
from accountants.composition.repeated import GuaranteeLike, check_one_mechanism
from accountants.dominating_pairs.base import DominatingPair, cap, upper
from dpkernels import checks
from dpkernels.numerics import MAX_EXPONENT
from dpkernels.proven import proven

_UNIT = float(np.finfo(np.float64).eps)  # The rounding unit of float64, twice the largest relative rounding error.
_SLACK = 1e-12  # The relative error of a profile; a sum of positive terms adds one unit a term.
_WIDTH = 9e-5  # The relative width of a bracket that is aimed at.
_FIRST_STEP = 1 / 32  # The step of the first grid; it is halved until the bracket is narrow enough,
_MIN_STEP = 1 / 4096  # but no finer grid than this is tried.
_MAX_PRODUCTS = 1e9  # The products of all convolutions of a bracket, at most.
_TAIL_SHARE = 1e-7  # The share of delta that the tails of losses may have.
_DEVIATIONS = 12.0  # The deviations of the sum of losses that the grid has.
_MIN_DELTA = 1e-300  # Grids of smaller deltas are those of this one.


@dataclass(frozen=True)
class _Losses:
    """Masses of losses (k - K) h, k = 0, ..., 2 K, and of an infinite loss: a bound of the profile of a release."""

    mass: np.ndarray
    infinite: float

    @property
    def total(self) -> float:
        return float(self.mass.sum()) + self.infinite


@dataclass(frozen=True)
class AdaptiveDirectionBounds:
    """Bounds of delta at the eps i h, i = 0, 1, ..., of which both are convex in e^eps."""

    step: float
    low: np.ndarray
    high: np.ndarray

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return (lower, upper) bounds of delta: extrapolated and interpolated in e^eps."""
        i, last = int(np.floor(epsilon / self.step)), len(self.high) - 1
        if i >= last:
            return 0.0, float(self.high[-1])
        rise_from_start, fall_to_end = np.expm1(epsilon - i * self.step), np.expm1(epsilon - (i + 1) * self.step)
        rise = np.expm1(self.step)
        high = self.high[i] + (self.high[i + 1] - self.high[i]) * rise_from_start / rise
        low = max(self.low[i + 1], 0.0)
        if i + 2 <= last:
            low = max(low, self.low[i + 1] + (self.low[i + 2] - self.low[i + 1]) * fall_to_end / rise)
        if i > 0:
            low = max(low, self.low[i] + (self.low[i] - self.low[i - 1]) * rise_from_start / -np.expm1(-self.step))
        return float(low), float(high)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Return (lower, upper) bounds of eps: inf where no eps on the grid is sufficient."""
        return tuple(self._least(side, delta) for side in (0, 1))  # type: ignore[return-value]

    def _least(self, side: int, delta: float) -> float:
        values = (self.low, self.high)[side]
        sufficient = np.flatnonzero(values <= delta)
        if not len(sufficient):
            return float("inf") if side else (len(values) - 1) * self.step
        if sufficient[0] == 0:
            return 0.0
        low, high = (sufficient[0] - 1) * self.step, sufficient[0] * self.step
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle)[side] > delta else (low, middle)
        return high if side else low


def is_adaptive(guarantee: GuaranteeLike) -> bool:
    """Return whether a guarantee of plain numbers is that of several releases of one noise that is not even."""
    if len(guarantee.terms) != 1 or len(guarantee.terms[0].pairs) < 2:
        return False
    count = checks.concrete(guarantee.terms[0].count)
    return count is not None and not count.ndim and float(count).is_integer() and 1 < float(count) <= 1 << 12


class AdaptiveProfile:
    """Brackets of one guarantee of plain numbers: that of several releases of one noise that is not even."""

    def __init__(self, guarantee: GuaranteeLike) -> None:
        check_one_mechanism(guarantee.terms)
        (term,) = guarantee.terms
        self.count = int(term.count)
        pairs = [term.sampled_pair(pair) for pair in term.pairs]
        self.directions = [
            [pair.mirror() if mirror else pair for pair in pairs] for mirror in guarantee.neighbour_directions
        ]
        self._known: dict[tuple[float, float, int], AdaptiveDirectionBounds | None] = {}

    def bracket(self, quantity: str, argument: float) -> tuple[float, float] | None:
        """Return bounds of delta at eps or of eps at delta, on finer and finer grids; None if it takes too long."""
        step, likely, best = _FIRST_STEP, argument if quantity == "epsilon" else 1.0, None
        while step >= _MIN_STEP:
            bounds = self._bounds(step, argument if quantity == "delta" else 0.0, likely)
            if bounds is None:
                break
            low, high = bounds.delta(argument) if quantity == "delta" else bounds.epsilon(argument)
            best = (low, high) if best is None else (max(low, best[0]), min(high, best[1]))
            if not best[1] - best[0] > _WIDTH * best[1]:
                break
            step, likely = step / 2, likely if quantity == "epsilon" else best[1]
        return best

    def _bounds(self, step: float, epsilon: float, likely: float) -> AdaptiveDirectionBounds | None:
        """Return bounds on a grid, which are kept, up to a power of 2 above eps, for deltas down to a power of 1e-3."""
        farthest = 2.0 ** np.ceil(np.log2(max(epsilon, 1.0)))
        key = step, float(farthest), int(np.floor(np.log10(max(likely, _MIN_DELTA)) / 3))
        if key not in self._known:
            negligible = _TAIL_SHARE * 10.0 ** (3 * key[2]) / self.count
            bounds = [_direction_bounds(pairs, self.count, step, key[1], negligible) for pairs in self.directions]
            present = [entry for entry in bounds if entry is not None]
            self._known[key] = _larger(present) if len(present) == len(bounds) else None
        return self._known[key]


def _larger(bounds: list[AdaptiveDirectionBounds]) -> AdaptiveDirectionBounds:
    size = min(len(entry.low) for entry in bounds)
    low, high = (np.max([getattr(entry, side)[:size] for entry in bounds], axis=0) for side in ("low", "high"))
    return AdaptiveDirectionBounds(bounds[0].step, low, high)


@proven("directions#proof")
def _direction_bounds(
    pairs: list[DominatingPair], count: int, step: float, epsilon: float, negligible: float
) -> AdaptiveDirectionBounds | None:
    sides = [(_profile(pair, 1), _profile(pair, -1)) for pair in pairs]
    reach = max(_reach(upper_profile, negligible) for upper_profile, _ in sides)
    K = int(np.ceil(reach / step)) + 1
    if (2 * K + 1) ** 2 * count * len(pairs) * 2 > _MAX_PRODUCTS:
        return None
    grid = np.arange(-K, K + 1) * step
    masses = [
        _masses(upper_profile(grid), lower_profile(grid), pair, step)
        for (upper_profile, lower_profile), pair in zip(sides, pairs, strict=True)
    ]
    deviation = max(_deviation(high.mass, grid) for high, _ in masses)
    half_width = min(count * reach, _DEVIATIONS * np.sqrt(count) * deviation + 2 * reach)
    M = int(np.ceil((half_width + epsilon) / step)) + K
    if (2 * M + 1) * (2 * K + 1) * count * len(pairs) * 2 > _MAX_PRODUCTS:
        return None
    s = np.arange(-M, M + 1) * step
    start, slack = np.maximum(-np.expm1(s), 0.0), _SLACK + _UNIT * len(grid)
    high, low, limit = start * (1 + slack), start * (1 - slack), 0.0
    for _ in range(count):
        # Below the grid V is at most 1, and at least its value at the end; beyond it, the other way round.
        wide_high = np.concatenate([np.ones(K), high, np.full(K, high[-1])])
        wide_low = np.concatenate([np.full(K, low[0]), low, np.full(K, limit)])
        high = np.max([losses.infinite + np.convolve(wide_high, losses.mass, "valid") for losses, _ in masses], axis=0)
        low = np.max([losses.infinite + np.convolve(wide_low, losses.mass, "valid") for _, losses in masses], axis=0)
        limit = max(losses.infinite + limit * float(losses.mass.sum()) for _, losses in masses) * (1 - slack)
        high, low = np.minimum(high * (1 + slack), 1.0), low * (1 - slack)
    return AdaptiveDirectionBounds(step, low[M:], high[M:])


def _profile(pair: DominatingPair, side: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return an upper (side 1) or a lower (side -1) bound of the profile of a pair at any eps.

    With t = e^eps < 1, H(t) = 1 - t + t H'(1/t), where H' is the profile of the mirror.
    """

    def bounded(pair: DominatingPair) -> Callable[[np.ndarray], np.ndarray]:
        stick = upper(pair) if side > 0 else pair.lower_hockey_stick()
        return lambda eps: np.clip(stick(eps), 0.0, 1.0)

    direct, mirrored = bounded(pair), bounded(pair.mirror())

    def bound(eps: np.ndarray) -> np.ndarray:
        size, rises, values = np.minimum(np.abs(eps), cap(eps.dtype)), eps >= 0, np.empty(eps.shape)
        with np.errstate(all="ignore"):
            values[rises], mirrored_epsilon = direct(size[rises]), size[~rises]
            values[~rises] = -np.expm1(-mirrored_epsilon) + np.exp(-mirrored_epsilon) * mirrored(mirrored_epsilon)
        return values

    return bound


def _reach(upper_profile: Callable[[np.ndarray], np.ndarray], negligible: float) -> float:
    """Return a loss above which the profile is negligible, and minus which that of the mirror is."""
    candidates = np.concatenate([np.arange(1, 64) / 8, np.geomspace(8.0, MAX_EXPONENT, 64)])
    profile = upper_profile(candidates)
    sufficient = np.flatnonzero(profile <= max(negligible, _MIN_DELTA) + profile[-1] * (1 + 1e-9))
    return float(candidates[sufficient[0]])


@proven("directions#proof")
def _masses(
    upper_profile: np.ndarray, lower_profile: np.ndarray, pair: DominatingPair, step: float
) -> tuple[_Losses, _Losses]:
    """Return masses on the grid whose profiles bound one that has these bounds at the grid points."""
    rise = np.expm1(step)
    losses = _chords(upper_profile, step)
    profile = losses.infinite + profile_on_grid(losses.mass[::-1], step)[::-1]
    # Differences have rounding errors: all masses are raised until no value is below the profile, also at t = 0.
    ratio = (
        max(1.0, float(np.max(upper_profile[:-1] / np.maximum(profile[:-1], _MIN_DELTA))), 1 / losses.total) + _SLACK
    )
    high = _Losses(losses.mass * ratio, losses.infinite * ratio)
    p = _chords(lower_profile, step).mass
    first, second = p[:-1], p[1:] * np.exp(-step)
    # The most by which a chord may be above the profile, since the chords on either side, continued, are below it.
    excess = rise * first * second / np.maximum(first + second, _MIN_DELTA)
    lowered = lower_profile * (1 - _SLACK) - np.maximum(np.append(excess, 0.0), np.append(0.0, excess))
    t = np.exp(np.arange(-(len(lower_profile) // 2), len(lower_profile) // 2 + 1) * step)
    lowered[0] = min(lowered[0], 1 - t[0])
    nodes = pair.privacy_loss().nodes()
    infinite = min(float(nodes.p[nodes.loss == np.inf].sum()) * (1 - 1e-9), 1 - t[0])
    # The profile may reach this mass anywhere before the first point where its bound is below. So the bound reaches it
    # one point earlier: a chord that was cut off at it would be above the profile.
    has_reached = lowered < infinite
    has_reached[:-1] |= has_reached[1:]
    lowered[has_reached] = infinite
    lowered[-1] = infinite
    corners = _lower_hull(np.append(0.0, t), np.append(1.0, lowered))
    slopes = np.append(np.diff(np.append(1.0, lowered)[corners]) / np.diff(np.append(0.0, t)[corners]), 0.0)
    mass = np.zeros(len(t))
    mass[corners[1:] - 1] = np.maximum(t[corners[1:] - 1] * np.diff(slopes), 0.0) * (1 - _SLACK)
    return high, _Losses(mass, infinite)


def _chords(profile: np.ndarray, step: float) -> _Losses:
    """Return the masses whose profile is linear in t between these values, and between 1 at t = 0 and the first."""
    fall = (profile[:-1] - profile[1:]) / np.expm1(step)
    before = np.append(1 - profile[0], np.exp(step) * fall)
    return _Losses(np.maximum(before - np.append(fall, 0.0), 0.0), float(profile[-1]))


def _lower_hull(t: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the numbers of the corners of the largest convex function below the values."""
    corners: list[int] = []
    for j in range(len(t)):
        while len(corners) > 1:
            i, k = corners[-2], corners[-1]
            if (values[k] - values[i]) * (t[j] - t[k]) < (values[j] - values[k]) * (t[k] - t[i]):
                break
            corners.pop()
        corners.append(j)
    return np.array(corners)


def _deviation(mass: np.ndarray, losses: np.ndarray) -> float:
    mass = mass / mass.sum()
    mean = float((mass * losses).sum())
    return float(np.sqrt((mass * (losses - mean) ** 2).sum())) + abs(mean)
