"""Published searches and choices of parameters, for comparison with ``tune``.

The searches try the same points in the same order as the published algorithms. They evaluate each point with the
functions of ``tune``, and the same accountant certifies the result, or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import jax
import numpy as np

from accountants import recycling
from accountants.dominating_pairs.base import as_float64
from accountants.published.recycling import published_excess, published_search
from accountants.tune.families.constructed import Composite, Piecewise, composite
from accountants.tune.families.noise import Recycled, SampledRecycled
from accountants.tune.family import Family, checked_single
from accountants.tune.objectives import Objective, ObjectiveLike, as_objective
from accountants.tune.tuning import Result, certified_result
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.named import piecewise
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, RealArray, namespace

_STEPS = (0.1, 0.01, 0.001)  # The source's, one a round.
_BATCH = 4096  # Points evaluated at once; the last batch is filled up, so that one shape is compiled.


@dataclass(frozen=True)
class Enumerated:
    """The result of a published search; ``rounds`` has the best value after each round.

    ``evaluations`` is how often the objective, or for recycling the privacy profile, was computed.
    """

    source: str
    mechanism: Any
    parameters: dict[str, float]
    value: float
    evaluations: int
    rounds: list[float]


def best(family: Family, objective: ObjectiveLike) -> Result:
    """Return what the source's own search of a family finds, certified by the exact accountant, as ``tune.best`` does.

    Raises:
        TypeError: no family, or no search of it is published.
        ValueError: many budgets, or an objective, a condition or a kernel that the source's search does not have.
        NotPrivateError: what was found does not meet the budget; the sources' searches of recycling may do that.
    """
    family, objective = checked_single(family), as_objective(objective)
    if objective.theta is not None:
        family = family.with_tolerated_error(objective.theta)
    enumerated = search(family, objective)
    path = {"objective": np.asarray(enumerated.rounds)}
    member = enumerated.parameters, enumerated.mechanism, enumerated.value, path
    return certified_result(family, objective, *member, enumerated.evaluations, source=enumerated.source)


@singledispatch
def search(family: Family, objective: Objective) -> Enumerated:
    """Return what the source's own search of a family finds, without a certificate; errors as ``best``."""
    raise TypeError(f"family: no search of {family.name} is published; tune.best searches it by gradient")


@search.register
def _(family: Piecewise, objective: Objective) -> Enumerated:
    window = "uniform" if family.constructor is piecewise else "triangle"
    enumerated = composite_search(composite(window, **family.fixed, condition="sup_inf"), objective)
    return replace(enumerated, parameters={"eta": 2 / enumerated.parameters["width"]})


@search.register
def composite_search(family: Composite, objective: Objective, stop_at: float | None = None) -> Enumerated:
    """Return what Zhang 2024, Algorithms 1 and 2, finds in up to three rounds over a grid: sound, but not the optimum.

    The rounds have steps of 0.1, 0.01 and 0.001 in (y, k, m) with y, k in (0, 1) and m in (0, 2], each around the best
    point of the round before. L follows from total probability 1. Points are feasible where k + y <= 1 and
    k <= y (e^eps - 1); with the quartic base t = (y + k) e^-eps. The source compares ``variance_at`` the middle. The
    search ends after the round that reaches ``stop_at``, V_t of Algorithm 2; the authors' released code runs all three.
    """
    if isinstance(family.base, Base) and not isinstance(family.base, Constant):
        raise ValueError("family: the source's search has the constant and the quartic base")
    ends = [(0.0, 1.0), (0.0, 1.0), (0.0, 2.0)]
    best_point: np.ndarray | None = None
    least = np.inf
    rounds: list[float] = []
    count = 0
    for step in _STEPS:
        axes = [np.arange(round(low / step), round(high / step) + 1) * step for low, high in ends]
        points = _feasible(np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], -1), family)
        if len(points) == 0:
            continue
        values = objective.sign * _values(objective, family, points)
        count += len(points)
        index = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
        if best_point is None or values[index] < least:
            least, best_point = values[index], points[index]
        rounds.append(objective.sign * float(least))
        if stop_at is not None and least <= objective.sign * stop_at:
            break
        ends = [(max(value - step, 0.0), value + step) for value in best_point]
    if best_point is None:
        raise ValueError(f"family: no point of the published grid is feasible at epsilon = {family.epsilon:g}")
    edge, width, relative = (np.asarray(number).item() for number in _on_unit_interval(best_point, family))
    parameters = {"width": width} if family.base is not None else {"width": width, "edge": edge}
    interval = family.fixed["lower"], family.fixed["upper"], family.epsilon
    mechanism = Windowed(
        family.window, Quartic(edge) if family.base is None else family.base, width, relative, *interval
    )
    return Enumerated("Zhang 2024", mechanism, parameters, rounds[-1], count, rounds)


def _feasible(points: np.ndarray, family: Composite) -> np.ndarray:
    y, k, m = points.T
    mass = family.window.area * k * m
    is_positive = (y > 1e-9) & (k > 1e-9) & (m > 1e-9)
    points = points[is_positive & (mass < 1) & (k + y <= 1 + 1e-9) & (k <= y * np.expm1(family.epsilon))]
    return points[_on_unit_interval(points.T, family)[1] < 2]


def _on_unit_interval(point: RealArray, family: Composite) -> tuple[np.ndarray, RealArray, RealArray]:
    """Return (edge r = t/y of the quartic base, m, k/y) on the interval [-1, 1], where the source's is [-L, L]."""
    y, k, m = point
    quartic = family.base is None
    r = np.minimum((y + k) / y * np.exp(-family.epsilon), 1.0) if quartic else np.ones_like(y)
    L = (1 - family.window.area * k * m) / (2 * y * ((r + 4) / 5 if quartic else 1.0))
    return r, m / L, k / y


def _values(objective: Objective, family: Composite, points: np.ndarray) -> np.ndarray:
    """Return the objective at every point, in batches of one shape, so that it is compiled once."""
    rows = np.stack(_on_unit_interval(points.T, family), -1)
    rows = np.concatenate([rows, np.repeat(rows[:1], -len(rows) % _BATCH, 0)])
    interval = np.array([family.fixed["lower"], family.fixed["upper"], family.epsilon], np.float64)
    setting = (family.window, family.base), as_float64(objective), interval
    with jax.enable_x64(True):
        values = [np.asarray(_objective_values(*setting, batch)) for batch in np.split(rows, len(rows) // _BATCH)]
    return np.concatenate(values)[: len(points)]


@jax.jit
def _objective_values(
    shape: tuple[Window, Base], objective: Callable[[Windowed], Real], interval: RealArray, rows: RealArray
) -> Real:
    window, base = shape

    def value_of_row(row: RealArray) -> Real:
        return objective(Windowed(window, Quartic(row[0]) if base is None else base, row[1], row[2], *interval))

    return jax.vmap(value_of_row)(rows)


_RATE_WIDTH = 1e-3  # How close to the best rate the search ends.


@search.register(Recycled)
def recycled_search(family: Any, objective: Objective) -> Enumerated:
    """Return what Jiang 2024, Algorithm 2 with 1 inside, finds; **not sound**, see ``published_budget``."""
    _check_acceptance(family, objective)
    best, count = published_recycling(family.kernel, family.theta, family.epsilon, family.delta, family.sensitivity)
    mechanism = Additive(best, family.sensitivity, family.epsilon, family.delta)
    parameters = {best.kernel.lengths[0]: jax.tree.leaves(best.kernel)[0]}
    return Enumerated("Jiang 2024", mechanism, parameters, float(best.acceptance), count, [float(best.acceptance)])


@search.register(SampledRecycled)
def sampled_search(family: Any, objective: Objective) -> Enumerated:
    """Return what Jiang 2024, Algorithm 4, finds; **not sound**.

    It is a ternary search for the rate p of the largest acceptance, with Algorithm 2 at every p. The choice at a rate
    has the budget that ``poisson.budget_on_sample`` allows on the sample. The errors of Algorithm 2 remain.
    The acceptance that is compared is the true one of noise and sampling error together, by quadrature. The source's is
    the reciprocal of its eq. (13), which can be several times larger.
    """
    _check_acceptance(family, objective)
    candidates: list[tuple[float, float, Reweighted, int]] = []

    def acceptance(p: float) -> float:
        noise, count = published_recycling(family.kernel, family.theta, *family.budget_on_sample(p))
        value = float(recycling.acceptance(noise, family.theta, float(family.rate.error(p))))
        candidates.append((value, p, noise, count))
        return value

    # The least rate tried: delta/p is a probability, and eps on the sample at most a mechanism's largest.
    densest = np.expm1(float(family.epsilon)) / np.expm1(checks.EPSILON_RANGE[1])
    sparsest = max(2 * float(family.delta), float(densest) * (1 + 1e-9))
    acceptance(ternary(acceptance, sparsest, 1.0, _RATE_WIDTH))
    value, p, noise, _ = max(candidates, key=lambda candidate: candidate[0])
    eps, delta, D = family.budget_on_sample(p)
    mechanism = recycling.Subsampled(Additive(noise, D, eps, delta), p, float(family.rate.error(p)), value)
    rounds = np.maximum.accumulate([candidate[0] for candidate in candidates]).tolist()
    evaluations = sum(candidate[3] for candidate in candidates)
    return Enumerated("Jiang 2024, Algorithm 4", mechanism, {}, value, evaluations, rounds)


def ternary(function: Callable[[float], float], low: float, high: float, width: float) -> float:
    """Return the top of one hill on [low, high]; a third is dropped until the interval is at most that wide."""
    while high - low > width:
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if function(first) < function(second):
            low = first
        else:
            high = second
    return (low + high) / 2


def _check_acceptance(family: Recycled | SampledRecycled, objective: Objective) -> None:
    if objective.theta is None or objective.theta != family.theta:
        raise ValueError(
            f"objective: {objective.name}; the source's search is for the acceptance at the family's theta"
        )


def published_recycling(
    kernel: Distribution, theta: float, eps: float, delta: float, D: float
) -> tuple[Reweighted, int]:
    """Return (Algorithm 2's noise, how often the published profile was computed); **not sound**."""
    count = 0

    def excess(q: Real, parameters: tuple[object, ...]) -> Real:
        nonlocal count
        count += 1
        return published_excess(q, parameters)

    choice = published_search(type(kernel), theta, eps, delta, D, excess)
    return Reweighted(choice.kernel, -theta, theta, 1 - choice.q), count


def published_eta(epsilon: Real) -> Real:
    """Return Ma 2021's eta of Theorem 4 (eq. 19), sound and not the optimum.

    eta_0 = 1 + cbrt(E + sqrt(E^2 - 1)) + cbrt(E - sqrt(E^2 - 1)), E = e^eps. It minimises (eta^3 + E - 1)/(eta - 1)^2,
    the variance in the middle with eps and the window's probability q both held. Normalisation ties q to eta,
    q = E/(E + eta - 1), so that the variance has the factor E + eta - 1 as well: **not the optimum**. The worst-case
    variance at eta_0 is 21 % above the least at eps = 0.5 and 15 % at eps = 2 (``python -m benchmarks.literature``).
    """
    checks.epsilon(epsilon)
    xp = namespace(epsilon)
    root = xp.exp(xp.arccosh(xp.exp(epsilon)) / 3)  # cbrt(E + sqrt(E^2 - 1)); the other one is its reciprocal.
    return 1 + root + 1 / root


def published_piecewise(*, epsilon: float, lower: float, upper: float) -> Windowed:
    """Return type I at ``published_eta``: sound and unbiased, but noisier than ``dpkernels.piecewise``."""
    return piecewise(epsilon=epsilon, lower=lower, upper=upper, eta=float(published_eta(epsilon)))
