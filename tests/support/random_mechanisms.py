"""Random mechanisms of every family, each at any place and in any unit of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import accountants
import dpkernels as dpk
from dpkernels.mechanisms import named

# From (location, unit) to a mechanism: the input interval is [location, location + unit], and lengths are in units.
Somewhere = Callable[[float, float], Any]


def between(random: np.random.Generator, low: float, high: float) -> float:
    """A number of this order of magnitude."""
    return float(10.0 ** random.uniform(math.log10(low), math.log10(high)))


# Bounded mechanisms


# Tables are compiled in: few of them. The first two windows end in a jump, the last two bases are next to 0 there.
WINDOW_TABLES = (
    *([0.2, 0.7, 1.0, 0.7, 0.2], [0.9, 0.9, 1.0, 0.9, 0.9]),
    *([0.0, 0.4, 1.0, 0.4, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0]),
)
BASE_TABLES = ([0.3, 0.8, 1.0, 0.8, 0.3], [1.0, 1.0, 1.0], [1e-6, 0.5, 1.0, 0.5, 1e-6], [1e-9, 1.0, 1e-9])


def random_window(random: np.random.Generator, kind: str) -> Any:
    if kind == "table":
        return dpk.window_from(WINDOW_TABLES[random.integers(len(WINDOW_TABLES))])
    return {"uniform": dpk.Uniform(), "sine": dpk.Sine(), "triangle": dpk.Triangle()}[kind]


def random_base(random: np.random.Generator, kind: str) -> Any:
    if kind == "table":
        return dpk.base_from(BASE_TABLES[random.integers(len(BASE_TABLES))])
    return dpk.Constant() if kind == "constant" else dpk.Quartic(between(random, 1e-9, 1.0))


def random_width(random: np.random.Generator) -> float:
    """Narrow ones, ordinary ones, and ones that all but fill the reports."""
    kind = random.integers(3)
    if kind == 0:
        return between(random, 1e-6, 1.0)
    return float(random.uniform(0.05, 1.95)) if kind == 1 else 2 - between(random, 1e-6, 1.0)


def windowed(window: str, base: str) -> Callable[[np.random.Generator], Somewhere]:
    """Any width, and any height: the label epsilon does not count."""

    def draw(random: np.random.Generator) -> Somewhere:
        h, g, m = random_window(random, window), random_base(random, base), random_width(random)
        height = math.expm1(between(random, 1e-2, 20.0)) * (float(g.lowest) if random.integers(2) else 1.0)
        return lambda location, unit: dpk.Windowed(h, g, m, height, location, location + unit, 1.0)

    return draw


def constructed(make: Callable[..., Any], *, least: float = 1e-2) -> Callable[[np.random.Generator], Somewhere]:
    """By a constructor that takes the budget and the interval."""

    def draw(random: np.random.Generator) -> Somewhere:
        epsilon = between(random, least, 20.0)
        return lambda location, unit: make(epsilon=epsilon, lower=location, upper=location + unit)

    return draw


def square_wave(random: np.random.Generator) -> Somewhere:
    epsilon = between(random, 1e-2, 20.0)
    half_width = between(random, 1e-9, 1e6) if random.integers(2) else None
    return lambda location, unit: dpk.square_wave(
        epsilon=epsilon, lower=location, upper=location + unit, half_width=half_width
    )


def central_piecewise(random: np.random.Generator) -> Somewhere:
    epsilon, ratio, core = between(random, 1e-2, 20.0), between(random, 1e-6, 4.0), between(random, 1e-4, 10.0)
    steps = int(random.integers(1, 7))
    return lambda location, unit: dpk.CentralPiecewise(core, steps, location, location + unit, epsilon, ratio * unit)


# A linear program takes its time: few budgets, solved once.
_OPTIMAL = [(0.3, None), (2.0, None), (1.0, 0.3)]


def optimal(random: np.random.Generator) -> Somewhere:
    epsilon, ratio = _OPTIMAL[random.integers(len(_OPTIMAL))]

    def at(location: float, unit: float) -> Any:
        sensitivity = None if ratio is None else ratio * unit
        options = {"lower": location, "upper": location + unit, "sensitivity": sensitivity}
        return dpk.optimal(epsilon=epsilon, points=9, outputs=21, **options)

    return at


def multivariate(random: np.random.Generator) -> Somewhere:
    epsilon, kind = between(random, 1e-2, 20.0), str(random.choice(["duchi", "piecewise", "sine-constant"]))
    dimensions = int(random.integers(1, 5))
    return lambda location, unit: dpk.multivariate(
        dimensions=dimensions, sampled=1, epsilon=epsilon, coordinate=kind, lower=location, upper=location + unit
    )


BOUNDED: dict[str, Callable[[np.random.Generator], Somewhere]] = {
    **{
        f"{window}-{base}": windowed(window, base)
        for window in ("uniform", "sine", "triangle", "table")
        for base in ("constant", "quartic", "table")
    },
    "type-I": constructed(dpk.piecewise),
    "type-II": constructed(dpk.piecewise_triangle),
    "wang2019": constructed(dpk.piecewise_wang2019),
    "duchi": constructed(dpk.duchi),
    "hybrid": constructed(dpk.hybrid, least=0.7),
    "square-wave": square_wave,
    "central-piecewise": central_piecewise,
    "optimal": optimal,
    "multivariate": multivariate,
}


# Additive noise, of sensitivity one unit times a number


def _noise(random_law: Callable[[np.random.Generator], Callable[[float], Any]]) -> Callable[..., Somewhere]:
    def draw(random: np.random.Generator) -> Somewhere:
        law = random_law(random)
        return lambda location, unit: dpk.Additive(law(unit), unit)

    return draw


def laplace_law(random: np.random.Generator) -> Callable[[float], Any]:
    scale = 1 / between(random, 1e-6, 50.0)
    return lambda unit: dpk.Laplace(scale * unit)


def gaussian_law(random: np.random.Generator) -> Callable[[float], Any]:
    sigma = 1 / between(random, 1e-6, 20.0)
    return lambda unit: dpk.Gaussian(sigma * unit)


def merged_law(random: np.random.Generator) -> Callable[[float], Any]:
    lengths = np.cumsum([between(random, 0.03, 3.0) for _ in range(3)])
    rates = [between(random, 1e-3, 20.0) * (random.uniform() < 0.7) for _ in range(3)] + [between(random, 1e-3, 20.0)]
    many = int(random.integers(1, 4))
    return lambda unit: dpk.MergedLaplace(
        tuple(rate / unit for rate in rates[3 - many :]), tuple((lengths[:many] * unit).tolist())
    )


def staircase_law(random: np.random.Generator) -> Callable[[float], Any]:
    """Some of the period of the sensitivity, which they are made for; others of any other, by no simple ratio."""
    epsilon, gamma = between(random, 0.01, 20.0), float(random.choice([0.0, 1.0, random.uniform()]))
    period = 1.0 if random.integers(2) else between(random, 0.1, 10.0)
    return lambda unit: dpk.Staircase(epsilon, period * unit, gamma)


def reweighted(random_law: Callable[..., Callable[[float], Any]], size: Callable[[Any], float], outside: str) -> Any:
    """Cut off, or recycled, at some widths of the kernel."""

    def draw(random: np.random.Generator) -> Callable[[float], Any]:
        kernel = random_law(random)
        width = size(kernel(1.0))
        low, high = (width * between(random, 0.3, 10.0) for _ in range(2))
        low = high if random.integers(2) else low
        u = 0.0 if outside == "cut" else 1 - float(random.uniform(0.01, 0.999))
        return lambda unit: dpk.Reweighted(kernel(unit), -low * unit, high * unit, u)

    return draw


def _scale(law: Any) -> float:
    return float(law.scale)


def _deviation(law: Any) -> float:
    return float(np.sqrt(law.variance))


def discrete(kind: str) -> Callable[[np.random.Generator], Somewhere]:
    """Of few points: references are sums over all of them. The step is no simple share of the sensitivity."""

    def draw(random: np.random.Generator) -> Somewhere:
        epsilon, share, delta = between(random, 0.3, 20.0), between(random, 0.1, 3.0), between(random, 1e-9, 1e-2)
        sigma = between(random, 0.2, 5.0)

        def at(location: float, unit: float) -> Any:
            if kind == "gaussian":
                return named.discrete_gaussian(sigma=sigma * unit, sensitivity=unit, step=share * unit)
            if kind == "truncated":
                return named.truncated_discrete_laplace(
                    epsilon=epsilon, delta=delta, sensitivity=unit, step=share * unit
                )
            return named.discrete_laplace(epsilon=epsilon, sensitivity=unit, step=share * unit)

        return at

    return draw


NOISE: dict[str, Callable[[np.random.Generator], Somewhere]] = {
    "laplace": _noise(laplace_law),
    "gaussian": _noise(gaussian_law),
    "merged-laplace": _noise(merged_law),
    "staircase": _noise(staircase_law),
    "truncated-laplace": _noise(reweighted(laplace_law, _scale, "cut")),
    "truncated-gaussian": _noise(reweighted(gaussian_law, _deviation, "cut")),
    "truncated-merged": _noise(reweighted(merged_law, _deviation, "cut")),
    "truncated-staircase": _noise(reweighted(staircase_law, _deviation, "cut")),
    "recycled-laplace": _noise(reweighted(laplace_law, _scale, "recycled")),
    "recycled-gaussian": _noise(reweighted(gaussian_law, _deviation, "recycled")),
    "recycled-merged": _noise(reweighted(merged_law, _deviation, "recycled")),
    "recycled-staircase": _noise(reweighted(staircase_law, _deviation, "recycled")),
    "discrete-laplace": discrete("laplace"),
    "truncated-discrete-laplace": discrete("truncated"),
    "discrete-gaussian": discrete("gaussian"),
}

FAMILIES = BOUNDED | NOISE


def somewhere(random: np.random.Generator) -> tuple[float, float]:
    """A location from 0 to 1e9 of either sign, and a unit from 1e-6 to 1e6 that floats resolve there."""
    while True:
        unit = between(random, 1e-6, 1e6)
        location = float(random.choice([-1.0, 0.0, 1.0])) * between(random, 1e-6, 1e9)
        if unit > 1e-11 * abs(location):
            return location, unit


def budgets(random: np.random.Generator, mechanism: Any, count: int) -> np.ndarray:
    """Budgets from 1e-6 to 50: of any size, evenly up to the largest loss, and next to it, from below."""
    top = accountants.epsilon(mechanism, 0.0)
    if not np.isfinite(top):
        top = min(50.0, 2 * accountants.epsilon(mechanism, 1e-6) + 1e-6)
    fractions = random.uniform(size=count), 1 - 10.0 ** random.uniform(-9, 0, count)
    kinds = np.stack([10.0 ** random.uniform(-6, math.log10(50.0), count), *(top * fraction for fraction in fractions)])
    return np.clip(kinds[random.integers(0, 3, count), np.arange(count)], 1e-6, 50.0)
