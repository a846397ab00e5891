"""Tuning: find the best member of a family at a budget, by Brent's method, BFGS or any optax transformation.

    result = tune.best(tune.budget_recycled("gaussian", epsilon=1.0, delta=1e-5), tune.acceptance(theta=1.0))
    result.mechanism, result.value, result.parameters, result.epsilon, result.delta

The exact accountant certifies a result before it is returned. Bijections make the domains of free parameters
unconstrained. ``calibrate`` solves for the parameters that the budget determines, with implicit derivatives. So every
point of a search meets the budget, and no penalty is needed.
"""

from accountants.tune import allocate as _allocate
from accountants.tune import best_noise, objectives, sweeps, tuning
from accountants.tune import categories as _categories
from accountants.tune import free_form as _free_form
from accountants.tune import least_variance as _least_variance
from accountants.tune import mixed_allocation as _mixed_allocation
from accountants.tune.allocate import *  # noqa: F403
from accountants.tune.best_noise import *  # noqa: F403
from accountants.tune.categories import *  # noqa: F403
from accountants.tune.families import composed as _composed
from accountants.tune.families import constructed as _constructed
from accountants.tune.families import noise as _noise
from accountants.tune.families.composed import *  # noqa: F403
from accountants.tune.families.constructed import *  # noqa: F403
from accountants.tune.families.noise import *  # noqa: F403
from accountants.tune.family import Family
from accountants.tune.free_form import *  # noqa: F403
from accountants.tune.least_variance import *  # noqa: F403
from accountants.tune.mixed_allocation import *  # noqa: F403
from accountants.tune.objectives import *  # noqa: F403
from accountants.tune.sweeps import *  # noqa: F403
from accountants.tune.tuning import *  # noqa: F403
from dpkernels.solve import NotPrivateError

_HOMES = (
    *(_allocate, best_noise, _categories, _free_form, _least_variance, _composed, _constructed, _noise),
    *(_mixed_allocation, objectives, sweeps, tuning),
)
__all__ = ["Family", "NotPrivateError", *(name for home in _HOMES for name in home.__all__)]
