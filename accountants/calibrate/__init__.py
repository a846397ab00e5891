"""The least noise for a target (eps, delta): parameters from the safe side of a root of the exact profile.

One idea serves every law. Noise c times as wide seen over a shift D is the noise seen over D/c,

    delta_c(eps; D) = delta_1(eps; D/c),

and delta grows with the shift (Balle and Wang 2018 for the Gaussian): so one root, ``largest_shift``, calibrates the
scale of any law. Where a length is fixed beside the scale (theta of budget recycling, the bound of a truncated
Gaussian) delta is not monotone in the scale, and the first scale from below that meets the target is taken.

What is returned meets its target as computed: delta(eps) <= delta, never above by rounding; of several reports
together (``composed``, ``composed_budget``, ``widening``) by the upper end of the rigorous bracket. JAX arguments give
JAX values, differentiable by implicit derivatives, to the precision of their type: use 64 bits.
Where no choice meets the target they give NaN, and other arguments an error that says what is feasible.
"""

from accountants.calibrate.bounded import bounded
from accountants.calibrate.composed import composed, composed_budget, composed_scale
from accountants.calibrate.discrete import discrete_gaussian, discrete_laplace
from accountants.calibrate.recycled import best_recycled_scale, budget_recycled, recycled_scale, recycling_rate
from accountants.calibrate.shuffled import shuffled
from accountants.calibrate.truncated import best_bound, least_bound, truncated_gaussian, truncated_laplace
from accountants.calibrate.widening import widening
from accountants.histograms.calibration import KnownDomain, known_domain
from accountants.scale import (
    gaussian,
    infeasible_shift,
    laplace,
    largest_shift,
    merged_laplace,
    rescaled,
    scaled,
    smallest_scale,
    staircase,
)

__all__ = [
    "KnownDomain",
    "best_bound",
    "best_recycled_scale",
    "bounded",
    "budget_recycled",
    "composed",
    "composed_budget",
    "composed_scale",
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian",
    "infeasible_shift",
    "known_domain",
    "laplace",
    "largest_shift",
    "least_bound",
    "merged_laplace",
    "recycled_scale",
    "recycling_rate",
    "rescaled",
    "scaled",
    "shuffled",
    "smallest_scale",
    "staircase",
    "truncated_gaussian",
    "truncated_laplace",
    "widening",
]
