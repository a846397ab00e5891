"""Tuning: find the best member of a family at a budget, by a BFGS method of this package or any optax transformation.

    result = tune.best(tune.budget_recycled("gaussian", epsilon=1.0, delta=1e-5), tune.acceptance(theta=1.0))
    result.mechanism, result.value, result.parameters, result.epsilon, result.delta

The exact accountant certifies a result before it is returned. Free parameters declare domains, and bijections make them
unconstrained. ``calibrate`` solves for what the budget determines, with implicit derivatives. So every point of a
search is private, and no penalty is needed. Searches run from several starts, each the best of some points, in one
compiled loop. It ends where no step promises an improvement, or where the best value stops improving.
"""

from accountants.tune.families.bounded import (
    composite,
    duchi,
    hybrid,
    optimal,
    piecewise,
    piecewise_triangle,
    square_wave,
)
from accountants.tune.families.composed import composed, shuffled
from accountants.tune.families.noise import (
    gaussian,
    laplace,
    merged_laplace,
    staircase,
    truncated_gaussian,
    truncated_laplace,
)
from accountants.tune.families.recycled import budget_recycled, free_rate, sampled_recycled
from accountants.tune.family import Family
from accountants.tune.objectives import (
    Objective,
    absolute_error,
    acceptance,
    average_variance,
    distribution,
    maximise,
    quantile,
    variance_at,
    worst_variance,
)
from accountants.tune.tuning import Many, Result, best, compare, many
from dpkernels.solve import NotPrivateError

__all__ = [
    "Family",
    "Many",
    "NotPrivateError",
    "Objective",
    "Result",
    "absolute_error",
    "acceptance",
    "average_variance",
    "best",
    "budget_recycled",
    "compare",
    "composed",
    "composite",
    "distribution",
    "duchi",
    "free_rate",
    "gaussian",
    "hybrid",
    "laplace",
    "many",
    "maximise",
    "merged_laplace",
    "optimal",
    "piecewise",
    "piecewise_triangle",
    "quantile",
    "sampled_recycled",
    "shuffled",
    "square_wave",
    "staircase",
    "truncated_gaussian",
    "truncated_laplace",
    "variance_at",
    "worst_variance",
]
