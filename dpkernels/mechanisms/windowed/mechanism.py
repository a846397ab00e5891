"""Windowed mechanisms, whose window moves with the input on a fixed base, and the square wave mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dpkernels import checks, solve
from dpkernels.batches import entrywise, flat_leaves, has_axes
from dpkernels.decimals import shortest
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.mechanisms.base import Local, Parabolic
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.minima import minima_on_grid
from dpkernels.mechanisms.windowed.windows import FallingWindow, Uniform, Window
from dpkernels.numerics import (
    Boolean,
    Real,
    RealArray,
    cast_like,
    float_if_scalar,
    floating,
    math_namespace,
    namespace,
    root_or_zero,
    squared,
)
from dpkernels.programs import in_one_program
from dpkernels.pytrees import PyTree, pytree, tree_leaves, tree_map

NARROWEST = 1e-100  # A window's width: its square does not vanish.
_NEWTON_STEPS = 3  # Newton's steps that invert half a window in float32.


def check_width(width: object) -> None:
    """Refuse a window's width outside [1e-100, 2)."""
    checks.within("width", width, 0.0, 2.0, open_ends=True)
    checks.within("width", width, NARROWEST, 2.0)


@pytree
@dataclass(frozen=True)
class Windowed(Parabolic):
    """A window that follows the input, on a base that does not.

    On the scaled output interval [-1, 1] the density at v, given the scaled input c, is

        p(v | c) = y g(v) + k h((v - a(c)) / m),    a(c) = c / S1 - m / 2,

    with k the height, and y the level that makes the total 1. Zhang 2024 calls the family composite mechanisms (A1..A3
    on B1, B2). Ma 2021's piecewise types I and II and Wang 2019's Piecewise Mechanism are windows on the constant base.

    Attributes:
        window: the window h, of peak 1 and symmetric on [0, 1].
        base: the base g, of peak 1 and even.
        width: m in [1e-100, 2), the window's width.
        relative_height: k / y above 0, the window's peak over the base's.
        lower, upper: smallest and largest valid input.
        epsilon: the budget that the parameters are for, in [0.01, 20]; ``accountants.epsilon`` has the attained one.
    """

    window: Window
    base: Base
    width: Any
    relative_height: Real  # Stored instead of k, since y cannot be recovered from k when the base's mass is small.
    lower: Real
    upper: Real
    epsilon: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.width)
        checks.positive("relative_height", self.relative_height)

    @property
    def height(self) -> Any:
        """Return k, the window's peak."""
        return self.relative_height * self.level

    @property
    def window_mass(self) -> Real:
        """Return S1 = area k m, the probability of the window."""
        return self.window.area * self.height * self.width

    @property
    def base_mass(self) -> Real:
        """Return S2 = 1 - S1."""
        return 2 * self.base.area * self.level

    @property
    def level(self) -> Real:
        """Return y = S2 / (2 b), the base's height at its peak; b is its mean over [-1, 1]."""
        return 1 / (self.relative_height * self.window.area * self.width + 2 * self.base.area)

    @property
    def scale(self) -> Real:
        """Return C = 2 c_max / R: scaled units a data unit, with c_max = S1 (1 - m/2) the largest scaled input."""
        return 2 * self.window_mass * (1 - self.width / 2) / (self.upper - self.lower)

    @property
    def output_interval(self) -> tuple[Real, Real]:
        return self.middle - 1 / self.scale, self.middle + 1 / self.scale

    def _scaled(self, value: Real) -> RealArray:
        return (floating(value) - self.middle) * self.scale

    def _window_middle(self, x: Real) -> RealArray:
        return (floating(x) - self.middle) * ((2 - self.width) / (self.upper - self.lower))

    def _window_start(self, x: Real) -> RealArray:
        return self._window_middle(x) - self.width / 2

    def pdf(self, y: Real, x: Real) -> Real:
        v = self._scaled(y)
        window = self.height * self.window.density((v - self._window_start(x)) / self.width)
        return (self.level * self.base.density(v) + window) * self.scale

    def cdf(self, y: Real, x: Real) -> Real:
        v = self._scaled(y)
        window = self.window.cdf((v - self._window_start(x)) / self.width)
        return self.base_mass * self.base.cdf(v) + self.window_mass * window

    def draw(self, u: Real, x: Real) -> Real:
        """Draw from the exact mixture: u < S1 gives a point of the window at a(c), any other u a point of the base."""
        S1, S2 = self.window_mass, self.base_mass
        xp = namespace(u, S1)
        in_window = self._window_start(x) + self.width * self.window.icdf(xp.minimum(u * (1 / S1), 1.0))
        in_base = self.base.icdf(xp.clip((u - S1) * (1 / S2), 0.0, 1.0))
        return self.middle + xp.where(u < S1, in_window, in_base) * (1 / self.scale)

    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        """Return the report below the window, inside it or above it; the masses of the three cases are known."""
        S1, S2, base, m = self.window_mass, self.base_mass, self.base, self.width
        middle = self._window_middle(x)
        base_mass_to_middle = base.mass_between(0.0, middle + 1)
        # A report above the window's middle mirrors one below, so half of the window is inverted. Positions are
        # distances d from the near end of [-1, 1], where v = d - 1.
        mirrored = u > S2 * base_mass_to_middle + S1 / 2
        xp = namespace(mirrored, m)
        u, middle = xp.where(mirrored, upper_tail, u), xp.where(mirrored, -middle, middle)
        start = xp.maximum(middle + 1 - m / 2, 0.0)
        mass_below = S2 * base.mass_between(0.0, start)
        half_mass = S1 / 2 + (S2 * xp.where(mirrored, 1 - base_mass_to_middle, base_mass_to_middle) - mass_below)
        is_below = u < mass_below
        d, z = self._invert_half(is_below, u, xp.maximum(u - mass_below, 0.0), half_mass, start)
        window_distance = xp.maximum(middle + 1 - m * (0.5 - xp.minimum(z, 0.5)), start)
        v = xp.minimum(xp.where(is_below, xp.minimum(d, start), window_distance) - 1, middle)
        return self.middle + xp.where(mirrored, -v, v) * (1 / self.scale)

    def _invert_half(
        self, is_below: Boolean, u: RealArray, mass: RealArray, half_mass: RealArray, start: RealArray
    ) -> tuple[Real, Real]:
        """Return (d, z), of which the caller reads d where the report is below the window, and else z.

        At the distance d from the end of [-1, 1] the mass of the base is u. From the window's start, which is at the
        distance ``start``, to the position z in the window the mass of both is ``mass``, and to z = 1/2 ``half_mass``.
        """
        xp, m, window, base = namespace(u, self.width), self.width, self.window, self.base
        S1, S2 = self.window_mass, self.base_mass
        d = base.icdf(xp.minimum(u * (1 / S2), 1.0)) + 1
        fraction = mass * (1 / half_mass)
        if window.is_flat and base.is_flat:
            return d, fraction / 2
        if not (window.is_smooth and base.is_smooth):

            def cdf(z: Real) -> Real:
                return S1 * window.mass_near_end(z) + S2 * base.mass_between(start, m * z)

            return d, solve.invert_increasing(cdf, mass, 0.0, 0.5)
        # The root of a density that is linear in z, which those of linear windows on a flat base are.
        density_at_start = self.height * window.density_near_end(0 * u) + self.level * base.density_near_end(start)
        edge = m * density_at_start * (0.5 / half_mass)
        z = fraction * (1 / (edge + root_or_zero(edge**2 + 4 * (1 - edge) * fraction)))
        is_exact = window.is_linear and base.is_flat
        # One search for d or z: below the window, its mass is left out, and the unit of positions is that of d.
        mass, z = xp.where(is_below, u, mass), xp.where(is_below, d, z)
        start, unit = xp.where(is_below, 0.0, start), xp.where(is_below, 1.0, m)
        S1, k = (xp.where(is_below, 0.0, weight) for weight in (S1, self.height))
        z = solve.invert_smooth(
            lambda z: S1 * window.mass_near_end(z) + S2 * base.mass_between(start, unit * z),
            mass,
            z,
            lambda z: unit * (k * window.density_near_end(z) + self.level * base.density_near_end(start + unit * z)),
            steps=None if is_exact else _NEWTON_STEPS,
        )
        return z, z  # The one that is read is right: every entry is either below the window or in it.

    def variance(self, x: Real) -> Real:
        """Return (S2 vB + S1 vA m^2 + c^2 S2/S1) / C^2."""
        S1, S2, c = self.window_mass, self.base_mass, self._scaled(x)
        spread = S2 * self.base.variance + S1 * self.window.variance * self.width**2
        return (spread + c**2 * S2 / S1) / self.scale**2

    def absolute_error(self, x: Real) -> Real:
        """Return 2/C times the integral of the cdf up to c, since the report is unbiased."""
        xp = namespace(c := self._scaled(x), self.width)
        z = (c - self._window_start(x)) / self.width
        window_integral = self.window.cdf_integral(xp.clip(z, 0.0, 1.0)) + xp.maximum(z - 1, 0.0)
        integral = self.base_mass * self.base.cdf_integral(c) + self.window_mass * self.width * window_integral
        return 2 * integral / self.scale

    def envelope(self, v: Real) -> tuple[np.ndarray, np.ndarray]:
        """Return the supremum and infimum over valid inputs of the scaled density at v in [-1, 1]."""
        (nearest, farthest), base = distances(v, self.width), self.level * self.base.density(v)
        highest, lowest = self.window.supremum_beyond(nearest), self.window.infimum_within(farthest)
        return base + self.height * highest, base + self.height * lowest


def distances(v: Real, width: Real) -> tuple[Real, Real]:
    """Return the least and largest distance of v from the window's middle over valid inputs, in window widths."""
    xp, reach = namespace(v, width), 1 - width / 2
    return xp.maximum(xp.abs(v) - reach, 0.0) / width, (xp.abs(v) + reach) / width


def kinks(window: Window, base: Base, width: Real) -> RealArray:
    """Return the distances from the middle at which an extreme over inputs may have a kink or a jump."""
    xp, reach = namespace(width), 1 - width / 2
    bends = width * cast_like(window.kinks, floating(width))
    return xp.concatenate([cast_like(base.kinks, bends), reach + bends, bends - reach])


def critical_points(window: Window, base: Base, width: float) -> np.ndarray:
    """Return a dense grid of v in [0, 1] with both sides of every kink or jump of an extreme over inputs."""
    v = kinks(window, base, width)
    v = np.concatenate([v, v * (1 - 1e-12), v * (1 + 1e-12)])
    return np.union1d(np.linspace(0, 1, 2049), v[(v > 0) & (v < 1)])


# The largest window height at a budget, and the free parameters of least variance; JAX may trace every argument.

CONDITIONS = ("pointwise", "sup_inf")
OBJECTIVES = ("worst", "central")
_XATOL = 1e-10  # Of the logarithms that are searched.
# The logits of m/2 from m = 1e-5 to 1.99. Quartic bases have two basins, about m = 1, where the scan is dense.
_LOGITS = np.linspace(-12.0, 5.0, 52)
_SCANNED_EDGES = 9  # That are scanned, evenly in the logarithm.


def relative_height(window: Window, base: Base, width: Real, epsilon: Real, condition: str) -> Real:
    """Return the largest ratio k / y of window to base height that is eps-DP; if none, NaN for JAX, or a ValueError.

    ``pointwise`` (exact): (e^eps - 1) g(v) >= (k/y) (highest(v) - e^eps lowest(v)) for every v, where highest and
    lowest are the extremes of the unit window at v over valid inputs. ``sup_inf`` (sufficient, Zhang 2024):
    the density's supremum over its infimum, (1 + k/y) / min g <= e^eps.
    """
    checks.one_of("condition", condition, CONDITIONS)
    parameters = window, base, width, epsilon
    if namespace(*tree_leaves(parameters)) is not np:
        return _possible_height(*parameters, condition)
    height = _largest_height(*parameters, condition)
    if not np.all(is_private := height > 0):
        budgets, edges = (np.broadcast_to(value, np.shape(height))[~is_private] for value in (epsilon, base.lowest))
        raise ValueError(
            f"epsilon: at {shortest(budgets.flat[0])} no positive window height is private; the base falls to "
            f"{shortest(edges.flat[0])} of its peak, {condition} needs more than {shortest(np.exp(-budgets.flat[0]))}"
        )
    return float_if_scalar(height)


def _largest_height(window: Window, base: Base, width: Real, epsilon: Real, condition: str) -> Real:
    xp = namespace(width, epsilon, *tree_leaves((window, base)))
    if condition == "sup_inf":
        return xp.exp(epsilon) * base.lowest - 1
    return xp.expm1(epsilon) / (1.0 if window.is_flat and base.is_flat else _max_excess(window, base, width, epsilon))


@in_one_program(static_argnums=4)
def _possible_height(window: Window, base: Base, width: Real, epsilon: Real, condition: str) -> Array:
    height = _largest_height(window, base, width, epsilon, condition)
    return jnp.where(height > 0, height, jnp.nan)


def _max_excess(window: Window, base: Base, width: Any, epsilon: Real) -> Real:
    """Return the maximum over v of (highest - e^eps lowest) / g, the window's extremes over valid inputs."""
    parameters = window, base, width, epsilon
    xp = namespace(*tree_leaves(parameters))
    if xp is np and (is_plateau := _is_on_plateau(window, base, width)).all():
        return np.ones(np.broadcast_shapes(is_plateau.shape, np.shape(epsilon)))[()]
    if has_axes(*tree_leaves(parameters)):
        return _entrywise(lambda base, width, epsilon: _max_excess(window, base, width, epsilon), base, width, epsilon)
    if xp is np:
        return solve.refined_maximum(lambda v: _excess(v, parameters), critical_points(window, base, width))
    ends = xp.concatenate([kinks(window, base, width), xp.array([0.0, 1.0])])
    return solve.maximum_between(_excess, parameters, xp.sort(xp.clip(ends, 0.0, 1.0)))


# The largest width at which some v are within the window of every input's and beyond that of another one, 4/3, less
# what rounding may change.
_MAX_PLATEAU = 1.33


def _is_on_plateau(window: Window, base: Base, width: object) -> np.ndarray:
    """Return whether ``_max_excess`` is 1: at some v the window's extremes are 1 and 0, on a flat base."""
    is_falling = isinstance(window, FallingWindow) and base.is_flat and bool(window.density(np.float64(0.5)) == 1.0)
    return is_falling & (np.asarray(width) <= _MAX_PLATEAU)


def _excess_bound(window: Window, base: Base, width: RealArray, epsilon: Real) -> np.ndarray:
    """Return a lower bound of ``_max_excess`` for a falling window on a flat base, which is exact on a plateau."""
    plateau_start, plateau_end = 1 - width / 2, np.minimum(np.maximum(width - 1, 1 - width / 2), 1.0)
    points = plateau_start, (plateau_start + plateau_end) / 2, plateau_end
    values = [_excess(v, (window, base, width, epsilon)) for v in points]
    return np.where(_is_on_plateau(window, base, width), 1.0, np.maximum.reduce(values))


def _excess(v: Real, parameters: tuple[Window, Base, Real, Real]) -> Any:
    window, base, width, epsilon = parameters
    nearest, farthest = distances(v, width)
    highest, lowest = window.supremum_beyond(nearest), window.infimum_within(farthest)
    return (highest - namespace(v, epsilon).exp(epsilon) * lowest) / base.density(v)


def window_height(relative: Real, window: Window, base: Base, width: Real) -> Real:
    """Return k from k / y, by normalisation: y (k/y area m + 2 b) = 1."""
    return relative / (relative * window.area * width + 2 * base.area)


def scaled_variance(window: Window, base: Base, width: Real, height: Real, objective: str) -> Any:
    """Return the central or worst-case variance in units of the squared width of the input interval."""
    S1 = window.area * height * width
    reach = S1 * (1 - width / 2)  # c_max
    central = ((1 - S1) * base.variance + S1 * window.variance * squared(width)) / (4 * squared(reach))
    return central if objective == "central" else central + (1 / S1 - 1) / 4


def best_shape(window: Window, base: Base | None, epsilon: Any, condition: str, objective: str) -> tuple[Base, Real]:
    """Return the base and the width of least variance; a base of None is quartic, its edge chosen with the width."""
    checks.one_of("condition", condition, CONDITIONS)
    checks.one_of("objective", objective, OBJECTIVES)
    parameters = window, base, epsilon
    if has_axes(*tree_leaves(parameters)):
        return _best_shapes(window, base, epsilon, condition, objective)
    if namespace(*tree_leaves(parameters)) is np:
        base = _best_quartic(window, epsilon, condition, objective) if base is None else base
        return base, _best_width(window, base, epsilon, condition, objective)[0]
    axes = [_LOGITS] if base is not None else [_LOGITS, np.linspace(0.0, 1.0, _SCANNED_EDGES)]
    starts = np.stack(np.meshgrid(*axes), -1).reshape(-1, len(axes))

    def logits(parameters: tuple[Window, Base | None, Real]) -> np.ndarray:
        window, base, epsilon = tree_map(lambda leaf: float_if_scalar(np.asarray(leaf, np.float64)), parameters)
        best, width = best_shape(window, base, epsilon, condition, objective)
        x = [-np.log(2 / width - 1)]
        if isinstance(best, Quartic) and base is None:
            x.append(1 - np.log(best.edge) / np.log(lowest_edge(epsilon, condition)))
        return np.array(x)

    variance = _variance_of_shape(condition, objective)
    x = solve.smooth_minimum(variance, parameters, starts, starts.min(0), starts.max(0), logits)
    return _shape(x, base, epsilon, condition)


def _entrywise(function: Callable[..., Any], base: Base | None, *numbers: Real) -> Any:
    """Return a function of a base and of numbers at each entry of a batch of them."""
    leaves, structure = jax.tree.flatten(base)

    def at_entry(*values: float) -> Real:
        return function(jax.tree.unflatten(structure, values[: len(leaves)]), *values[len(leaves) :])

    return entrywise(at_entry, *leaves, *numbers)


def _best_shapes(
    window: Window, base: Base | None, epsilon: np.ndarray, condition: str, objective: str
) -> tuple[Base, Real]:
    """Return ``best_shape`` of a batch of budgets or bases: all at once where the height has a closed form.

    A falling window on a flat base has one up to the width of a plateau. Beyond it the variance is at least that of a
    height that is too large. So an entry whose minimum and grid points around it are on the plateau has its width.
    """
    is_closed = base is not None and (condition == "sup_inf" or (window.is_flat and base.is_flat))
    if base is None or not (is_closed or (isinstance(window, FallingWindow) and base.is_flat)):
        return _entrywise(lambda base, eps: best_shape(window, base, eps, condition, objective), base, epsilon)
    shape = np.broadcast_shapes(base.batch_shape, np.shape(epsilon))
    budgets = np.broadcast_to(epsilon, shape).ravel()
    bases = flat_leaves(tree_map(lambda leaf: np.broadcast_to(leaf, shape), base))

    def variances(logits: np.ndarray, entries: np.ndarray) -> np.ndarray:
        base_entries = bases[entries] if bases.batch_shape else base
        width, eps = _width_from_logit(logits), budgets[entries]
        if is_closed:
            return _best_height_variance(window, base_entries, width, eps, condition, objective)
        relative = np.expm1(eps) / _excess_bound(window, base_entries, width, eps)
        height = window_height(relative, window, base_entries, width)
        return scaled_variance(window, base_entries, width, height, objective)

    logits = minima_on_grid(variances, len(budgets), _LOGITS, _XATOL)
    widths = _width_from_logit(logits)
    if not is_closed:
        is_off_plateau = ~_is_on_plateau(window, base, _width_from_logit(logits + 2 * (_LOGITS[1] - _LOGITS[0])))
        for entry in np.flatnonzero(is_off_plateau).tolist():
            widths[entry] = _best_width(window, base, float(budgets[entry]), condition, objective)[0]
    return base, widths.reshape(shape)


@in_one_program(static_argnums=3)
def _shape(x: Array, base: Base | None, epsilon: Real, condition: str) -> tuple[Base, Real]:
    if base is None:  # At a share of the way from the log of the lowest edge to 0.
        base = Quartic(jnp.exp((1 - x[1]) * jnp.log(lowest_edge(epsilon, condition))))
    return base, _width_from_logit(x[0])


@cache  # Programs are compiled once for a function.
def _variance_of_shape(condition: str, objective: str) -> Callable[[Array, PyTree], Real]:
    def variance(x: Array, parameters: tuple[Uniform, Constant, Array]) -> Real:
        window, base, epsilon = parameters
        return _best_height_variance(window, *_shape(x, base, epsilon, condition), epsilon, condition, objective)

    return variance


def _best_height_variance(
    window: Window, base: Base, width: Real, epsilon: Real, condition: str, objective: str
) -> Any:
    height = window_height(relative_height(window, base, width, epsilon, condition), window, base, width)
    return scaled_variance(window, base, width, height, objective)


@lru_cache(maxsize=512)
def _best_width(window: Window, base: Base, epsilon: float, condition: str, objective: str) -> tuple[float, float]:
    """Return the width of least variance on a given base, and that variance."""

    def variance(logit: float) -> float:
        return _best_height_variance(window, base, _width_from_logit(logit), epsilon, condition, objective)

    logit, value = solve.minimum_and_value_on_grid(variance, _LOGITS, xatol=_XATOL)
    return _width_from_logit(logit), value


def _width_from_logit(logit: Real) -> Any:
    return float_if_scalar(2 / (1 + namespace(logit).exp(-logit)))


@lru_cache(maxsize=512)
def _best_quartic(window: Window, epsilon: float, condition: str, objective: str) -> Quartic:
    """Return the quartic base of least variance, its width chosen with it."""

    def variance(log_edge: float) -> float:
        return _best_width(window, Quartic(float(np.exp(log_edge))), epsilon, condition, objective)[1]

    lowest = float(np.log(lowest_edge(epsilon, condition)))
    log_edge, value = solve.minimum_and_value_on_grid(variance, np.linspace(lowest, 0.0, _SCANNED_EDGES), xatol=_XATOL)
    return Quartic(1.0) if variance(0.0) <= value else Quartic(float(np.exp(log_edge)))


def lowest_edge(epsilon: Real, condition: str) -> Real:
    """Return the lowest edge with a private height; under sup_inf an edge of at most e^-eps has none."""
    return 1e-6 if condition == "pointwise" else namespace(epsilon).exp(-epsilon) * (1 + 1e-6)


# The square wave mechanism, for estimating the distribution of inputs

_HALF_WIDTHS = (1e-9, 1e6)  # Beyond, the window is numerically the whole output interval, or empty.


@pytree
@dataclass(frozen=True)
class SquareWave(Local):
    """The square wave mechanism: reports near the input are e^eps times as likely as others.

    For scaled inputs t in [0, 1], reports v are in [-b, 1 + b] with the density

        p(v | t) = e^eps q where |v - t| <= b, else q,    q = 1/(2 b e^eps + 1)

    The window has the mass S1 = 2 b (e^eps - 1) q and the base S2 = (1 + 2 b) q. The mean is S1 t + S2/2, so reports
    are biased towards the middle. Stretched about the middle by 1/S1, they are the reports of ``unbiased``, a type-I
    piecewise mechanism, which has the same information about the inputs and whose mean is the input.

    The half width b, in widths of the input interval, is in [1e-9, 1e6], the pure-DP budget epsilon in [0.01, 20]. Any
    two inputs are neighbours. Source: Li, Wang, Lopuhaa-Zwakenberg, Skoric, Li, "Estimating Numerical Distributions
    under Local Differential Privacy" (SIGMOD 2020), section 5.
    """

    half_width: Any
    lower: Real
    upper: Real
    epsilon: Real

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.within("half_width", self.half_width, *_HALF_WIDTHS)

    @property
    def output_interval(self) -> tuple[Real, Real]:
        margin = self.half_width * self._range
        return self.lower - margin, self.upper + margin

    @property
    def _range(self) -> Real:
        return self.upper - self.lower

    @property
    def level(self) -> RealArray:
        """Return q, the density away from the input on the scale of [0, 1]."""
        return 1 / (2 * self.half_width * namespace(self.epsilon).exp(self.epsilon) + 1)

    @property
    def window_mass(self) -> Real:
        """Return S1."""
        return 2 * self.half_width * namespace(self.epsilon).expm1(self.epsilon) * self.level

    @property
    def base_mass(self) -> Real:
        """Return S2 = 1 - S1."""
        return (1 + 2 * self.half_width) * self.level

    @property
    def unbiased(self) -> Windowed:
        """Return the type-I piecewise mechanism whose reports are these, stretched about the middle by 1/S1."""
        width = 4 * self.half_width / (1 + 2 * self.half_width)
        height = namespace(self.epsilon).expm1(self.epsilon)
        return Windowed(Uniform(), Constant(), width, height, self.lower, self.upper, self.epsilon)

    def _scaled(self, value: Real) -> RealArray:
        return (floating(value) - self.lower) / self._range

    def pdf(self, y: Real, x: Real) -> RealArray:
        b, q, v, t = self.half_width, self.level, self._scaled(y), self._scaled(x)
        xp = namespace(v, t, q)
        high = q * xp.exp(self.epsilon)
        return xp.where((v < -b) | (v > 1 + b), 0.0, xp.where(xp.abs(v - t) <= b, high, q)) / self._range

    def cdf(self, y: Real, x: Real) -> Real:
        b, v, t = self.half_width, self._scaled(y), self._scaled(x)
        xp = namespace(v, t, b)
        base, window = xp.clip((v + b) / (1 + 2 * b), 0.0, 1.0), xp.clip((v - t + b) / (2 * b), 0.0, 1.0)
        return self.base_mass * base + self.window_mass * window

    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        return self.middle + self.window_mass * (self.unbiased._solve_cdf(u, upper_tail, x) - self.middle)

    def draw(self, u: Real, x: Real) -> Real:
        """Draw from the exact mixture: u < S1 gives a point of the window, any other u a point of the base."""
        b, S1, S2, t = self.half_width, self.window_mass, self.base_mass, self._scaled(x)
        xp = namespace(u, S1, t)
        in_window = t + b * (2 * xp.minimum(u / S1, 1.0) - 1)
        in_base = (1 + 2 * b) * xp.maximum(u - S1, 0.0) / S2 - b
        return self.lower + self._range * xp.where(u < S1, in_window, in_base)

    def mean(self, x: Real) -> RealArray:
        """Return lower + R (S1 t + S2/2)."""
        return self.lower + self._range * (self.window_mass * self._scaled(x) + self.base_mass / 2)

    def bias(self, x: Real) -> RealArray:
        """Return E(report | x) - x = R S2 (1/2 - t)."""
        return self._range * self.base_mass * (0.5 - self._scaled(x))

    def variance(self, x: Real) -> Real:
        """Return R^2 (S1 b^2/3 + S2 (1 + 2 b)^2/12 + S1 S2 (t - 1/2)^2), the variance about the biased mean."""
        b, S1, S2 = self.half_width, self.window_mass, self.base_mass
        spread = S1 * b**2 / 3 + S2 * (1 + 2 * b) ** 2 / 12
        return self._range**2 * (spread + S1 * S2 * (self._scaled(x) - 0.5) ** 2)

    @property
    def worst_variance(self) -> Real:
        """Return the variance at an end."""
        return self.variance(self.upper)

    def absolute_error(self, x: Real) -> Real:
        """Return E|report - x|: R (S1 b/2 + S2 ((t + b)^2 + (1 + b - t)^2) / (2 (1 + 2 b)))."""
        b, t = self.half_width, self._scaled(x)
        base_error = ((t + b) ** 2 + (1 + b - t) ** 2) / (2 * (1 + 2 * b))
        return self._range * (self.window_mass * b / 2 + self.base_mass * base_error)


def published_half_width(epsilon: Real) -> Real:
    """Return the b of most mutual information (Li 2020), (eps e^eps - e^eps + 1) / (2 e^eps (e^eps - 1 - eps))."""
    expm1 = math_namespace(epsilon).expm1
    return (expm1(-epsilon) + epsilon) / (2 * (expm1(epsilon) - epsilon))


def square_wave(*, epsilon: Real, lower: Real, upper: Real, half_width: Real | None = None) -> SquareWave:
    """Return the square wave mechanism (Li 2020), for estimating the distribution of the inputs.

    Its reports are biased towards the middle: ``estimate`` corrects for this, and ``estimate_mean`` refuses them.
    ``piecewise`` with the same window width has the same information about the distribution, and is unbiased.

    The half width b of the window, in [1e-9, 1e6] widths of the interval, is by default the published one. Above an
    epsilon of about 13 this is too narrow for an integer table, and ``exact_sampler`` raises an error. Any two inputs
    are neighbours (local DP). Epsilon is in [0.01, 20], and the interval is fixed before the data are seen.

    Example:
        >>> m = square_wave(epsilon=1.0, lower=0.0, upper=100.0)
        >>> round(m.half_width, 4), [round(float(end), 1) for end in m.output_interval]
        (0.2561, [-25.6, 125.6])
    """
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    b = published_half_width(epsilon) if half_width is None else half_width
    checks.within("half_width", b, *_HALF_WIDTHS)
    return SquareWave(checks.real("half_width", b), lower, upper, epsilon)
