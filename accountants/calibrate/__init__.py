"""The least noise for a target (eps, delta): parameters from the conservative side of a root of the exact profile.

One idea works for every distribution. Noise scaled by c, over a shift D, has the profile of the noise over D/c,

    delta_c(eps; D) = delta_1(eps; D/c),

and delta grows with the shift (Balle and Wang 2018 for the Gaussian). So one root, ``largest_shift``, calibrates the
scale of any distribution. Where a length is fixed in addition to the scale (theta of budget recycling, the bound of a
truncated Gaussian), delta is not monotone in the scale. Then the first scale from below that meets the target is used.

The result meets its target as computed: delta(eps) <= delta, also after rounding. For several releases together
(``composed``, ``composed_budget``, ``noise_scale_factor``) the upper end of the rigorous bracket meets it. JAX
arguments give JAX values, with implicit derivatives, in the precision of their type; use 64 bits. If the target is
infeasible, JAX values are NaN, and plain numbers raise an error that gives what is feasible.

The same functions work for plain numbers, ``jit``, ``vmap`` and ``grad``. Three of them take plain numbers only:
``discrete_gaussian`` and ``discrete_laplace``, whose tables have a size that depends on the numbers, and
``known_domain``.
"""

from accountants.calibrate.composed import composed, composed_budget, composed_scale, noise_scale_factor
from accountants.calibrate.one_release import bounded, discrete_gaussian, discrete_laplace
from accountants.calibrate.reweighted import (
    best_bound,
    best_recycled_scale,
    budget_recycled,
    least_bound,
    recycled_scale,
    recycling_rate,
    truncated_gaussian,
    truncated_laplace,
)
from accountants.calibrate.shuffled import shuffled
from accountants.histograms.accounting import KnownDomain, known_domain
from accountants.scale import (
    gaussian,
    infeasible_shift,
    laplace,
    largest_shift,
    rescaled,
    scaled,
    smallest_scale,
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
    "noise_scale_factor",
    "recycled_scale",
    "recycling_rate",
    "rescaled",
    "scaled",
    "shuffled",
    "smallest_scale",
    "truncated_gaussian",
    "truncated_laplace",
]
