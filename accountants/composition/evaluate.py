"""Delta at eps and eps at delta of composed releases, by the most precise method that applies.

- One release: its exact profile.
- Noise that is not even, where the direction may change: dynamic programming (``adaptive``); plain numbers only.
- Few joint outcomes: enumeration (``enumeration``).
- Gaussian noise alone: closed form (``gaussian``).
- Losses with three values and few relevant counts: enumeration (``enumeration``).
- All others: the fast Fourier transform on a grid (``fft``).

Plain numbers are evaluated by NumPy, and JAX numbers by the same functions, compiled. Derivatives of JAX numbers are
implicit: they are those of delta at the root, in the neighbour direction that has the largest value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from accountants.composition import enumeration, fft, grid, self_composed
from accountants.composition.base import ComposedProfile
from accountants.composition.gaussian import GaussianProfile
from accountants.composition.self_composed import GREATEST_TILT, RepeatedLosses, TiltedLoss, infinity_mass
from accountants.dominating_pairs.base import profile
from accountants.privacy_loss import PrivacyLossDistribution
from accountants.profile import epsilon_of
from dpkernels import checks
from dpkernels.batching import vmap_in_batches
from dpkernels.numerics import Real, RealArray, floating, like, namespace, plain, without_derivative

NO_SECOND_DERIVATIVES = (
    "delta, epsilon: composed releases have first derivatives only; for second ones take differences of gradients, as "
    "(gradient(x + h) - gradient(x - h)) / (2 h), or the formulas of one release, which have both"
)
PANELS = 256  # The panels of quadrature that the varying losses of one release share.
# The same for plain numbers and up to four releases on all the data, whose sums show the ends of single losses.
_PANELS_OF_FOUR = 4096
_TOGETHER = 8  # The most values that are evaluated together under vmap on a CPU.
_STEEPEST = 0.25  # The largest c times the width of an outcome on the grid.
_TILTS = np.geomspace(1e-3, 1e5, 28)
_SLACK = 1 + 1e-3  # Delta of one release may be larger than that of all by this factor, by rounding.
_STEEPEST_OF_FEW = 1e9  # Next to the largest losses, which few releases may reach.
# The exact functions of one release.
_EXACT: dict[str, Callable[..., Any]] = {"delta": profile, "epsilon": epsilon_of}


def evaluate(made: Any, what: str, at: Real) -> Any:
    """Return the largest value over the neighbour directions: "delta" at eps, or "epsilon" at delta.

    ``at`` may have any shape. Plain numbers give a float or a NumPy array, JAX numbers a differentiable JAX array.
    """
    if namespace(at, *jax.tree.leaves(made)) is np and made.adaptive_profile is not None:
        bounds = [made.adaptive_profile.bracket(what, float(value)) for value in np.ravel(at)]
        if None not in bounds:
            return plain(np.reshape([each[1] for each in bounds if each], np.shape(at))[()])
    return evaluate_by_largest_profile(made, what, at)


def evaluate_by_largest_profile(made: Any, what: str, at: Real) -> Any:
    """Return the same, of noise that is not even by the pair whose profile is the largest over both its directions.

    This is an upper bound of ``evaluate`` up to the error of the composition, and the value that has derivatives.
    """
    is_plain = namespace(at, *jax.tree.leaves(made)) is np
    made = made.numeric if is_plain else made
    if len(made.terms) == 1:
        count = checks.concrete(made.terms[0].count)
        if count is None:
            return _evaluate_one_or_more(made, what, floating(jnp.asarray(at)))
        if count == 1:
            return plain(_EXACT[what](made.terms[0].one_release(), at))
    self_composed.check_one_mechanism(made.terms)
    if is_plain or len(made.terms) > 1:
        outcomes = enumeration.enumerate_outcomes(made.terms, made.neighbour_directions)
        if outcomes is not None:
            return plain(enumeration.evaluate_outcomes(what, outcomes, at))
    if not is_plain:
        values: Any = floating(jnp.asarray(at))
        return _evaluate_traced(made, what, values, are_few(made) and values.dtype == jnp.float64)
    at = np.minimum(np.asarray(at, np.float64), np.finfo(np.float64).max ** 0.5)  # Also for an infinite eps.
    found = np.empty(at.shape)
    with np.errstate(all="ignore"):
        directions = made.numeric_directions
        for index, value in np.ndenumerate(at):
            best = np.float64(-1.0)
            for parts, few in directions:
                one = _evaluate_direction(what, False, parts, value, best, few).found
                best = best if one <= best or np.isnan(best) else one  # NaN stays.
            found[index] = best
    return plain(found[()])


def directions_of_numbers(made: Any) -> list[tuple[RepeatedLosses, RepeatedLosses]]:
    """Return (losses, the same losses with fewer nodes) of each neighbour direction, for plain numbers."""
    on_all_data = all(term.sampling_rate is None for term in made.terms)  # Samples have densities instead of nodes.
    panels = _PANELS_OF_FOUR if on_all_data and _are_at_most(4, made) else PANELS
    coarse = fine = made.repeated_losses(panels, few=are_few(made))
    if any(part.losses is not None and part.losses.width.any() for parts in fine for part in parts):
        coarse = made.repeated_losses()
    return list(zip(*(map(padded, directions) for directions in (fine, coarse)), strict=True))


def padded(parts: RepeatedLosses) -> RepeatedLosses:
    """Return the losses with outcomes of no mass at their ends; see ``PrivacyLossDistribution.padded``."""
    return tuple(part.map_losses(PrivacyLossDistribution.padded) for part in parts)


def are_few(made: Any) -> bool:
    """Return whether releases are known to be so few that those on samples are composed from sampled densities."""
    return _are_at_most(fft.FEW, made)


def _are_at_most(most: int, made: Any) -> bool:
    """Return whether the number of releases is known, and not larger than ``most``."""
    counts: list[Any] = [checks.concrete(term.count) for term in made.terms]
    return all(count is not None for count in counts) and sum(counts) <= most


@partial(jax.jit, static_argnames=("what", "few"))
def _evaluate_traced(made: Any, what: str, at: RealArray, few: bool = False) -> Real:
    ways = made.repeated_losses(PANELS, few=few)
    at = at.astype(jnp.result_type(at, *jax.tree.leaves(ways)))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)).astype(at.dtype), *ways)
    directions = padded(stacked)

    def one(value: Any) -> Any:
        return _value(what, directions, jnp.minimum(value, jnp.finfo(at.dtype).max ** 0.5))  # Also for infinite eps.

    return one(at) if jnp.ndim(at) == 0 else jax.lax.map(one, at.ravel()).reshape(at.shape)


@partial(jax.jit, static_argnames=("what",))
def _evaluate_one_or_more(made: Any, what: str, at: jax.Array) -> Real:
    """Return the value for a traced count, which may be 1: then that of the exact profile of one release."""
    (term,) = made.terms

    def single(made: Any) -> Real:
        return _EXACT[what](made.terms[0].one_release(), at).astype(at.dtype)

    return jax.lax.cond(term.count == 1, single, lambda made: _evaluate_traced(made, what, at).astype(at.dtype), made)


def tilted(parts: RepeatedLosses, c: Any) -> tuple[list[TiltedLoss], Any]:
    """Return the tilted losses, and the tilt, reduced where it is steep on the scale of single outcomes."""
    xp = namespace(c)
    found = [part.tilted(c) for part in parts]
    least = fft.least_step(found, c)
    reduced = xp.where(least > 0, xp.minimum(c, _STEEPEST / xp.where(least > 0, least, 1.0)), c)
    return (found if xp is np and reduced == c else [part.tilted(reduced) for part in parts]), reduced


def _cap(parts: RepeatedLosses, epsilon: Real) -> Any:
    """Return the loss above which losses count as partly infinite: eps minus the least that all others add up to."""
    least = sum(part.count * namespace(epsilon).maximum(part.largest_loss(-1), 0.0) for part in parts)
    return without_derivative(epsilon + least + 1e-9)


def _capped(parts: RepeatedLosses, epsilon: Real) -> RepeatedLosses:
    cap = _cap(parts, epsilon)
    if namespace(cap) is np and all(part.losses is None or part.largest_loss(1) <= cap for part in parts):
        return parts
    return tuple(part.map_losses(lambda nodes: nodes.capped(cap)) for part in parts)


def finite(parts: RepeatedLosses, bound: Any) -> tuple[RepeatedLosses, Any]:
    """Return the losses capped for an eps of at most ``bound``, and the probability of an infinite loss."""
    parts = tuple(dataclasses.replace(part, source=None) for part in _capped(parts, bound))
    return parts, infinity_mass(parts)


def _upper_bound(parts: RepeatedLosses, at: Any, log_delta: Any, steepest: Real) -> tuple[Any, Any]:
    """Return (an upper bound of eps, or eps if it is given, and the tilt of the least upper bound).

    delta(eps) <= e^(K(c) - c eps) c^c / (1 + c)^(c + 1) at every c > 0.
    """
    xp = namespace(at)
    c = xp.minimum(like(_TILTS, at), steepest)
    moment = sum(part.count * part.log_moment(c) for part in parts) + c * xp.log(c) - (c + 1) * xp.log1p(c)
    if log_delta is None:
        return at, c[(moment - c * at).argmin()]
    bounds = (moment - log_delta) / c
    return xp.maximum(bounds.min(), 0.0), c[bounds.argmin()]


class _Value(NamedTuple):
    """Eps or delta of one neighbour direction, and derivatives of delta in its parts and in eps, or None."""

    found: Any
    by_parts: Any
    by_epsilon: Any


class _Question(NamedTuple):
    """A question about one neighbour direction."""

    at: Any  # eps, or a delta whose least eps is wanted.
    best: Any  # The best value so far; values that do not exceed it are not of interest.
    infinite: Any  # The probability of an infinite loss, which is part of delta and not of the profile.
    log_delta: Any  # The log of the part of delta that remains for finite losses; None where eps is given.
    guess: Any  # An estimate of eps.
    noise: Any  # The approximate relative error of delta.


def _evaluate_direction(
    what: str, sloped: bool, parts: RepeatedLosses, at: Any, best: Any, coarse: RepeatedLosses | None = None
) -> _Value:
    """Return delta at one eps, or the least eps at one delta: inf if there is none, or if floats do not resolve it.

    JAX arrays may have derivatives (``sloped``). For plain numbers the tilt is estimated from ``coarse``, the same
    losses with fewer nodes. For ``best`` see ``_Question``.
    """
    xp = namespace(at)

    def log_finite(infinite: Any) -> Any:
        """Return the log of the part of delta that remains for finite losses; None where eps is given."""
        return None if what == "delta" else xp.log(xp.maximum(at - infinite, xp.finfo(at.dtype).tiny))

    if all(part.losses is None for part in parts):
        gaussian, log_delta = GaussianProfile.of(parts), None if what == "delta" else xp.log(at)
        guess = at if log_delta is None else gaussian.guess(log_delta)
        question = _Question(at, best, 0.0 * at, log_delta, guess, 0.0 * at)
        return _value_of(gaussian, question, parts if sloped else None)
    few, steepest = parts, cast(Any, np.inf)
    if coarse is not None:
        if largest_sum(parts) <= (at if what == "delta" else best):
            infinite = xp.clip(infinity_mass(parts), 0.0, 1.0) + 0.0  # Not -0.
            return _Value(infinite if what == "delta" else 0.0 if infinite <= at else np.inf, None, None)
        few, steepest = coarse, tilted(coarse, xp.full_like(at, GREATEST_TILT))[1]
    bound, start = _upper_bound(few, at, log_finite(infinity_mass(parts)), steepest)
    (capped, infinite), back = _with_gradient(sloped, partial(finite, bound=bound), parts)
    log_delta = log_finite(infinite)
    is_few = any(part.source is not None for part in parts)
    greatest = _STEEPEST_OF_FEW if is_few else GREATEST_TILT
    few, (c, guess) = _tilt_from_coarse(capped, coarse, bound, (at, log_delta), start, greatest)
    noise = sum(part.count for part in parts) * xp.finfo(at.dtype).eps
    question = _Question(at, best, infinite, log_delta, guess, noise)

    def by_transform() -> _Value:
        parts, tilt = tilted(capped, c)
        return _value_of(fft.compose(parts, tilt, fft.grid_of(parts, tilt, few)), question, known)

    known = capped if sloped else None
    three = three_point_losses(capped, c, sloped)
    if three is None and is_few:
        _, c = tilted(capped, c)
        on = sampling_grid(parts, parts if coarse is None else coarse, bound, c)
        (sampled, infinite), back = _with_gradient(sloped, partial(sample, on=on), parts)
        question = question._replace(infinite=infinite, log_delta=log_finite(infinite))
        composed = fft.compose([part.tilted(c) for part in sampled], c, on.points)
        found = _value_of(composed, question, sampled if sloped else None)
    elif three is None:
        found = by_transform()
    elif xp is np:
        found = _value_of(three.losses, question, None)
    else:
        nothing = _Value(0.0 * c, *(jax.tree.map(jnp.zeros_like, (capped, c)) if sloped else (None, None)))
        found = _compute_if(~three.possible, by_transform, nothing)
        found = _compute_if(three.possible, lambda: _value_of(three.losses, question, known, three.to_parts), found)
    if what == "epsilon":
        impossible = _delta_of_one_release(parts, xp.where(xp.isinf(found.found), 0.0, found.found)) > _SLACK * at
        found = found._replace(found=xp.where(impossible, np.inf, found.found))
    return found._replace(by_parts=back((found.by_parts, xp.ones_like(infinite)))[0]) if back else found


def largest_sum(parts: RepeatedLosses) -> Any:
    """Return the largest sum of finite losses."""
    return sum(part.count * part.largest_loss(1) for part in parts)


def _delta_of_one_release(parts: RepeatedLosses, epsilon: Any) -> Any:
    """Return delta of the worst single release, which that of all releases cannot be below."""
    xp = namespace(epsilon)
    every: list[Any] = [part.losses for part in parts if part.losses is not None]
    return xp.stack([(one.p * -xp.expm1(xp.minimum(epsilon - one.loss, 0.0))).sum(-1) for one in every]).max()


def _value_of(
    profile: ComposedProfile,
    asked: _Question,
    parts: RepeatedLosses | None,
    to_parts: Callable[[Any], RepeatedLosses] = lambda by: by,
) -> _Value:
    """Return the value from a profile of finite losses, with derivatives if its ``parts`` are given."""
    at = asked.at
    xp = namespace(at)
    if asked.log_delta is None:
        value, _, evaluation = profile.evaluate(at)
        found = xp.clip(asked.infinite + xp.exp(value), 0.0, 1.0)
    else:
        floor = xp.where((asked.best > 0) & (asked.best < np.inf), asked.best, 0.0)
        start = xp.maximum(asked.guess, floor)
        eps, value, slope, is_found, evaluation = profile.solve(
            asked.log_delta, start, floor, asked.noise, parts is not None
        )
        resolved = is_found & profile.is_resolved(eps, value, slope, asked.noise)
        resolved = resolved | ((eps <= floor) & (value <= asked.log_delta))
        found = xp.where(resolved & (at > asked.infinite), eps, np.inf)
    if parts is None:
        return _Value(found, None, None)

    def slopes() -> tuple[RepeatedLosses, Any]:
        by_profile, by_epsilon = profile.gradient(evaluation)
        return to_parts(by_profile), by_epsilon

    nothing = jax.tree.map(jnp.zeros_like, (parts, at))
    return _Value(found, *_compute_if(~(found <= asked.best), slopes, nothing))


def _tilt_from_coarse(
    capped: RepeatedLosses,
    coarse: RepeatedLosses | None,
    bound: Any,
    question: tuple[Any, Any],
    start: Any,
    most: float,
) -> tuple[RepeatedLosses, tuple[Any, Any]]:
    """Return the losses with which the tilt is found, coarse ones if these are enough, and ``_tilt_for`` of them."""
    few = capped if coarse is None else _capped(coarse, bound)
    c, guess = _tilt_for(few, *question, start, most)
    if coarse is None or tilted(few, c)[1] >= c:
        return few, (c, guess)
    return capped, _tilt_for(capped, *question, c, most)


def tilt_of_delta(parts: RepeatedLosses, coarse: RepeatedLosses, epsilon: Any) -> tuple[RepeatedLosses, Any]:
    """Return the tilt for delta at an eps of plain numbers, and the losses with which it was found."""
    greatest = _STEEPEST_OF_FEW if any(part.source is not None for part in parts) else GREATEST_TILT
    steepest = tilted(coarse, np.full_like(epsilon, GREATEST_TILT))[1]
    start = _upper_bound(coarse, epsilon, None, steepest)[1]
    capped = finite(parts, epsilon)[0]
    few, (c, _) = _tilt_from_coarse(capped, coarse, epsilon, (epsilon, None), start, greatest)
    return few, c


def delta_of_direction(parts: RepeatedLosses, coarse: RepeatedLosses, epsilon: Any) -> Any:
    """Return delta at one eps of plain numbers in one neighbour direction."""
    return _evaluate_direction("delta", False, parts, epsilon, np.float64(-1.0), coarse).found


def _tilt_for(parts: RepeatedLosses, at: Any, log_delta: Any, start: Any, greatest: float) -> tuple[Any, Any]:
    """Return the tilt for an eps, or for a log delta if it is given, and the estimate of eps that belongs to it."""
    if log_delta is None:
        return self_composed.saddle_point(parts, at, start, greatest), at
    return self_composed.saddle_point_of_delta(parts, log_delta, start, greatest)


def _with_gradient(sloped: bool, function: Callable[[RepeatedLosses], Any], parts: RepeatedLosses) -> tuple[Any, Any]:
    return jax.vjp(function, parts) if sloped else (function(parts), None)


class SamplingGrid(NamedTuple):
    """Where the smooth pieces of few releases are sampled."""

    points: fft.Grid
    tilt: Any  # c.
    cap: Any  # Losses above it are gathered.
    bound: Any  # Sums of losses are needed up to here.


def sampling_grid(parts: RepeatedLosses, coarse: RepeatedLosses, bound: Any, c: Any) -> SamplingGrid:
    """Return the grid on which releases are sampled for sums of losses up to a bound."""

    def points_up_to(bound: Any) -> fft.Grid:
        return fft.grid_of([part.tilted(c) for part in _capped(parts, bound)], c, _capped(coarse, bound))

    margin = grid.CAP_MARGIN * points_up_to(bound).step
    cap = without_derivative(_cap(parts, bound) + margin)
    return SamplingGrid(without_derivative(points_up_to(bound + margin)), c, cap, bound + margin)


def sample(parts: RepeatedLosses, on: SamplingGrid) -> tuple[RepeatedLosses, Any]:
    """Return the losses of few releases, sampled on a grid, and the probability of an infinite loss; as ``finite``."""
    sampled = []
    for given, part, offset in zip(parts, finite(parts, on.bound)[0], on.points.offsets, strict=True):
        if given.source is not None:
            nodes = cast(PrivacyLossDistribution, part.losses)
            losses = grid.sample_on_grid(given.smooth_losses(), nodes, on.tilt, (offset, on.points.step, on.cap))
            part = dataclasses.replace(part, losses=losses)
        sampled.append(part)
    return tuple(sampled), infinity_mass(tuple(sampled))


class _ThreePoint(NamedTuple):
    """Losses reduced to three values, whether they have no others and can be enumerated, and the map to the parts."""

    losses: enumeration.ThreePointLoss
    possible: Any
    to_parts: Callable[[Any], RepeatedLosses]


def three_point_losses(parts: RepeatedLosses, c: Any, sloped: bool) -> _ThreePoint | None:
    """Return the losses reduced to three values; None if it is known that there are others, or too many counts."""
    if not _may_be_three(parts):
        return None

    def three(parts: RepeatedLosses) -> Any:
        nodes: Any = parts[0].losses
        return enumeration.three_point_loss(nodes, parts[0].count - np.arange(1 + sloped), c)

    back: Any = None
    if sloped:
        losses, back, alone = jax.vjp(three, parts, has_aux=True)
    else:
        losses, alone = three(parts)
    possible = alone & enumeration.is_enumerable(losses)
    if namespace(possible) is np and not possible:
        return None
    return _ThreePoint(losses, possible, lambda by: back(by)[0])


def _may_be_three(parts: RepeatedLosses) -> bool:
    nodes = parts[0].losses
    return len(parts) == 1 and nodes is not None and nodes.p.shape[-1] <= enumeration.MOST_OUTCOMES + 1


def _compute_if(needed: Any, compute: Callable[[], Any], otherwise: Any) -> Any:
    """Return the computed value where it is needed, by a loop, as lax.cond under vmap computes both sides for all."""
    state = needed, otherwise
    return jax.lax.while_loop(lambda state: state[0], lambda _: (jnp.zeros_like(needed), compute()), state)[1]


def _largest(what: str, sloped: bool, directions: RepeatedLosses, at: Any) -> tuple[Any, _Value]:
    """Return (the direction with the largest value, that value); eps is searched above that of earlier directions."""

    def next_one(best: Any, way: Any) -> tuple[Any, None]:
        number, parts = way
        one = _evaluate_direction(what, sloped, parts, at, best[1].found)
        larger = ~(one.found <= best[1].found) & ~jnp.isnan(best[1].found)  # A NaN in either stays.
        return jax.tree.map(partial(jnp.where, larger), (number, one), best), None

    numbers = jnp.arange(jax.tree.leaves(directions)[0].shape[0])
    slopes = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), directions), 0.0 * at
    none = _Value(0.0 * at - 1, *(slopes if sloped else (None, None)))
    return jax.lax.scan(next_one, (0 * numbers[0], none), (numbers, directions))[0]


@cache
def _largest_in_batches(what: str, sloped: bool) -> Callable[[RepeatedLosses, Any], tuple[Any, _Value]]:
    """Return ``_largest`` for vmap; three-point losses run one at a time, because only some can be enumerated."""

    def together(directions: RepeatedLosses, _: Any) -> int:
        return 1 if _may_be_three(directions) else _TOGETHER

    return vmap_in_batches(partial(_largest, what, sloped), together)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(what: str, directions: RepeatedLosses, at: Any) -> Any:
    return _largest_in_batches(what, False)(directions, at)[1].found


@_value.defjvp
def _value_jvp(what: str, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Differentiate delta(eps) of the direction that has the largest value."""
    number, (found, by_parts, by_epsilon) = _largest_with_slopes(what, *primals)
    if what == "epsilon":
        possible = (found > 0) & (found < jnp.inf) & (by_epsilon < 0)
        factor, by_at = -1 / jnp.where(possible, by_epsilon, 1.0), -jnp.ones_like(found)
    else:
        possible = ~((found <= 0) | (found >= 1))
        factor, by_at = jnp.ones_like(found), jnp.where(possible, by_epsilon, 0.0)
    # A NaN among the parameters, which comparisons do not detect, stays.
    unknown = sum(jnp.isnan(leaf.max()) for leaf in jax.tree.leaves(primals)) > 0
    factor = jnp.where(unknown, jnp.nan, jnp.where(possible, factor, 0.0))
    along = jax.tree.map(lambda by, moved: (jnp.where(possible, by, 0.0) * moved[number]).sum(), by_parts, tangents[0])
    return found, factor * (sum(jax.tree.leaves(along)) + by_at * tangents[1])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest_with_slopes(what: str, directions: RepeatedLosses, at: Any) -> tuple[Any, _Value]:
    return _largest_in_batches(what, True)(directions, at)


@_largest_with_slopes.defjvp
def _refuse_second_derivatives(*_: Any) -> Any:
    raise NotImplementedError(NO_SECOND_DERIVATIVES)
