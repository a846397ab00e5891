"""Yamamoto's Central Piecewise Mechanism: the density decreases by a factor e^-eps for each sensitivity."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.batches import each_entry, entrywise, has_axes
from dpkernels.decimals import shortest
from dpkernels.mechanisms.base import Parabolic
from dpkernels.numerics import Real, RealArray, floating, math_namespace, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import bounded_minimum, smooth_minimum

_MAX_STEPS = 64  # Every step is a term of all formulas, and needs cells of its own in an exact table.
_STEP_GAIN = 1e-3  # Steps are added while they lower the variance by this share.
_LOG_CORES = math.log(1e-6), math.log(100.0)  # The range in which the log of the core r is searched.


@partial(pytree, static=("steps",))
@dataclass(frozen=True)
class CentralPiecewise(Parabolic):
    """A bounded, unbiased mechanism whose density falls in steps; epsilon-DP for inputs at most D apart.

    Let t in [-1, 1] be the scaled input, and report middle + (R/2) X v. With E = e^-eps, d = 2 D/R and half widths
    r_l = r + l d (r_(-1) = 0), the density of v is q E^l at distances from r_(l-1) to r_l of t, for l = 0..s - 1, and
    q E^s elsewhere in [-V, V], V = 1 + r_(s-1). It is a mixture of uniform distributions: s nested windows of masses
    w_l = 2 q r_l E^l (1 - E), and a base of mass 2 q E^s V. The masses sum to 1. The mean is the input for
    X = 1/sum w_l.

    Privacy: replacing an input by one at most D away moves every step by at most its width, so the density changes
    nowhere by more than a factor e^eps.

    Source: Yamamoto, "Central Piecewise Mechanism for Numeric Queries" (IEEE Transactions on Privacy, 2026), in the
    form of its published programs, which use s = ceil(R/D). With one step it is the type-I piecewise mechanism.

    The core r is half the width of the highest step, in half widths of the input interval. The number of steps s is in
    1..64, the pure-DP budget epsilon in [0.01, 20], and the sensitivity D in [1e-100, 1e100].
    """

    core: Any
    steps: int
    lower: Real
    upper: Real
    epsilon: Any
    sensitivity: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.sensitivity(self.sensitivity)
        checks.positive("core", self.core)
        checks.integer_in("steps", self.steps, 1, _MAX_STEPS)

    def on_unit(self) -> CentralPiecewise:
        D = 2 * self.sensitivity / (self.upper - self.lower)
        return dataclasses.replace(self, lower=-1.0, upper=1.0, sensitivity=D)

    @property
    def half_widths(self) -> RealArray:
        """Return r_l, of shape (s,)."""
        return self.core + np.arange(self.steps) * (2 * self.sensitivity / (self.upper - self.lower))

    @property
    def masses(self) -> tuple[np.ndarray, float]:
        """Return w_l, of shape (s,), and the mass of the base."""
        r = self.half_widths
        E = namespace(r, self.epsilon).exp(-self.epsilon)
        windows, base = 2 * r * E ** np.arange(self.steps) * (1 - E), 2 * E**self.steps * (1 + r[-1])
        total = windows.sum() + base
        return windows / total, base / total

    @property
    def scale(self) -> Real:
        """Return the data units of one unit of v, (R/2) X."""
        return (self.upper - self.lower) / 2 / self.masses[0].sum()

    @property
    def reach(self) -> Real:
        """Return V."""
        return 1 + self.half_widths[-1]

    @property
    @each_entry
    def output_interval(self) -> tuple[Real, Real]:
        half_range = self.reach * self.scale
        return self.middle - half_range, self.middle + half_range

    def _scaled(self, y: Real, x: Real) -> tuple[Real, Real]:
        """Return v and t."""
        middle, half_width = self.middle, (self.upper - self.lower) / 2
        return (floating(y) - middle) / self.scale, (floating(x) - middle) / half_width

    @each_entry
    def pdf(self, y: Real, x: Real) -> RealArray:
        (v, t), (windows, base) = self._scaled(y, x), self.masses
        xp = namespace(v, t, base)
        density = xp.where(xp.abs(v) <= self.reach, base / (2 * self.reach), 0.0)
        for w, r in zip(windows, self.half_widths, strict=True):
            density = density + xp.where(xp.abs(v - t) <= r, w / (2 * r), 0.0)
        return density / self.scale

    @each_entry
    def cdf(self, y: Real, x: Real) -> Real:
        (v, t), (windows, base) = self._scaled(y, x), self.masses
        xp = namespace(v, t, base)
        total = base * xp.clip((v / self.reach + 1) / 2, 0.0, 1.0)
        for w, r in zip(windows, self.half_widths, strict=True):
            total = total + w * xp.clip(((v - t) / r + 1) / 2, 0.0, 1.0)
        return total

    @each_entry
    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        """Return the point of the step that holds u; a report above the input mirrors one below it."""
        (_, t), (windows, base), V = self._scaled(x, x), self.masses, self.reach
        mirrored = u > self.cdf(self.middle + self.scale * t, x)
        xp = namespace(mirrored, base)
        u, t = xp.where(mirrored, upper_tail, u), xp.where(mirrored, -t, t)
        density, edge, mass = base / (2 * V), -V + 0 * t, 0 * u
        v = edge + u / density
        for w, r in zip(windows[::-1], self.half_widths[::-1], strict=True):
            next_edge = t - r
            mass, density = mass + density * (next_edge - edge), density + w / (2 * r)
            v, edge = xp.where(u > mass, next_edge + (u - mass) / density, xp.minimum(v, next_edge)), next_edge
        v = xp.clip(v, -V, t)
        return self.middle + self.scale * xp.where(mirrored, -v, v)

    @each_entry
    def variance(self, x: Real) -> Real:
        """Return (R/2)^2 (X^2 (sum_l w_l r_l^2 + w_base V^2)/3 + (X - 1) t^2)."""
        (windows, base), half_width = self.masses, (self.upper - self.lower) / 2
        X = 1 / windows.sum()
        spread = ((windows * self.half_widths**2).sum() + base * self.reach**2) / 3
        return half_width**2 * (X**2 * spread + (X - 1) * self._scaled(x, x)[1] ** 2)

    @each_entry
    def absolute_error(self, x: Real) -> Real:
        """Return 2 (R/2) X times the integral of the cdf up to the input, since the report is unbiased."""
        (v, t), (windows, base) = self._scaled(x, x), self.masses
        xp = namespace(v, base)
        integral = base * (v + self.reach) ** 2 / (4 * self.reach)
        for w, r in zip(windows, self.half_widths, strict=True):
            z = xp.clip(((v - t) / r + 1) / 2, 0.0, 1.0)
            integral = integral + w * (r * z**2 + xp.maximum(v - t - r, 0.0))
        return 2 * self.scale * integral


def central_piecewise(
    *, epsilon: Real, lower: Real, upper: Real, sensitivity: Real, steps: int | None = None, core: Real | str = "best"
) -> CentralPiecewise:
    """Return the Central Piecewise Mechanism (Yamamoto 2026), bounded and unbiased, for a sensitivity below the width.

    ``optimal`` has at most the same variance wherever it has grids.

    Args:
        epsilon: pure-DP budget, in [0.01, 20].
        lower: smallest valid input, fixed before the data are seen.
        upper: largest valid input.
        sensitivity: D; inputs at most D apart are neighbours. Without ``steps`` it is at least 1/64 of the interval.
        steps: s, 1 to 64. The default for the best core is the smallest number beyond which more steps lower the
            variance by less than 0.1 %; for any other core it is the published ceil(R/D). Give s if JAX traces.
        core: r above 0; "best" for the least worst-case variance, "published" for the source's
            r = e^(eps/b - s eps) - (2 D/R) (1 - e^(-(s-1) eps))/(e^eps - 1), b its heuristic.

    Example:
        >>> m = central_piecewise(epsilon=2.0, lower=0.0, upper=4.0, sensitivity=1.0, core="published")
        >>> round(float(m.worst_variance), 4)
        0.459
    """
    checks.sensitivity(sensitivity)
    if has_axes(epsilon, lower, upper, sensitivity, core):

        def entry(
            epsilon: float, lower: float, upper: float, sensitivity: float, core_entry: float = 0.0
        ) -> CentralPiecewise:
            entry_core = core if isinstance(core, str) else core_entry
            return central_piecewise(
                epsilon=epsilon, lower=lower, upper=upper, sensitivity=sensitivity, steps=steps, core=entry_core
            )

        return entrywise(entry, epsilon, lower, upper, sensitivity, *(() if isinstance(core, str) else (core,)))
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    D = checks.number("sensitivity", sensitivity)
    if isinstance(core, str) and core not in ("best", "published"):
        raise ValueError(f"core: {core!r} is not a number, 'best' or 'published'")
    parameters, is_best = (lower, upper, epsilon, D), isinstance(core, str) and core == "best"
    if steps is None:
        checks.not_traced("steps", "Their number is a discrete choice; give it.", *parameters, core)
        published_steps = math.ceil((Fraction(repr(upper)) - Fraction(repr(lower))) / Fraction(repr(D)))
        if published_steps > _MAX_STEPS:
            raise ValueError(f"sensitivity: {shortest(D)} is below 1/{_MAX_STEPS} of the interval; take additive noise")
        if is_best:
            return _best_steps(*parameters)
        steps = published_steps
    checks.integer_in("steps", steps, 1, _MAX_STEPS)
    if is_best:
        return _best_core(steps, *parameters)
    r = _published_core(steps, *parameters) if isinstance(core, str) else checks.number("core", core)
    return CentralPiecewise(r, steps, *parameters)


def _best_steps(*parameters: Real) -> CentralPiecewise:
    """Return the best mechanism over the number of steps, increased by an eighth until the variance stops falling."""
    best, steps = _best_core(1, *parameters), 1
    while steps < _MAX_STEPS:
        steps += max(1, steps // 8)
        candidate = _best_core(min(steps, _MAX_STEPS), *parameters)
        if candidate.worst_variance > (1 - _STEP_GAIN) * best.worst_variance:
            break
        best = candidate
    return best


def _best_core(steps: int, *parameters: Real) -> CentralPiecewise:
    """Return the mechanism with the least worst-case variance over log r, a unimodal function."""

    def member(log_r: Real, parameters: tuple[Real, ...]) -> CentralPiecewise:
        return CentralPiecewise(math_namespace(log_r).exp(log_r), steps, *parameters)

    def variance(log_r: list[float], parameters: tuple[Real, ...]) -> Real:
        return member(log_r[0], parameters).worst_variance

    if namespace(*parameters) is np:
        floats = tuple(map(float, parameters))
        log_r, _ = bounded_minimum(lambda log_r: float(variance([log_r], floats)), *_LOG_CORES, xatol=1e-9)
        return member(log_r, parameters)
    starts = np.linspace(*_LOG_CORES, 20)[:, None]
    return member(smooth_minimum(variance, parameters, starts, starts[0], starts[-1])[0], parameters)


def _published_core(steps: int, lower: Real, upper: Real, epsilon: Real, sensitivity: Real) -> Real:
    """Return r for b = (s + 2)/(s + 3) U, U = eps/ln of the positive root of z^2 - A z - B, m = s - 1.

    A = d e^eps (e^(m eps) - 1)/(e^eps - 1),    B = (1 + m d) e^((m + 1) eps).
    """
    m, d = steps - 1, 2 * sensitivity / (upper - lower)
    f = math_namespace(epsilon, d)
    # Solve for z e^(-m eps) to avoid overflow.
    A = d * f.expm1(-m * epsilon) / f.expm1(-epsilon)
    B = (1 + m * d) * f.exp((1 - m) * epsilon)
    eps_over_b = (m + 4) / (m + 3) * (m * epsilon + f.log((A + f.sqrt(A**2 + 4 * B)) / 2))
    return f.exp(eps_over_b - steps * epsilon) + d * f.expm1(-m * epsilon) / f.expm1(epsilon)
