"""The least noise for a target (eps, delta): parameters from the conservative side of a root of the exact profile.

Noise scaled by c, over a shift D, has the profile of the noise over D/c,

    delta_c(eps; D) = delta_1(eps; D/c),

and delta grows with the shift (Balle and Wang 2018 for the Gaussian). So one root, ``largest_shift``, calibrates the
scale of any distribution. If another length is fixed besides the scale (theta of budget recycling, the bound of a
truncated Gaussian), delta is not monotone in the scale. The result is then the smallest scale that meets the target.

The result meets its target also after rounding: delta(eps) <= delta. For several releases together, the upper end of
the rigorous bracket meets it. If the target is infeasible, plain numbers raise an error that states a feasible target.

The same functions work for plain numbers, ``jit``, ``vmap`` and ``grad``, except ``discrete_gaussian``,
``discrete_laplace`` and ``known_domain``, which take plain numbers only. JAX arguments give JAX values, with implicit
derivatives, in the precision of their type (use 64 bits), and NaN if the target is infeasible.
"""

from accountants.calibrate import composed as _composed
from accountants.calibrate import counts as _counts
from accountants.calibrate import one_release as _one_release
from accountants.calibrate import scale as _scale
from accountants.calibrate import scheme_comparison as _schemes
from accountants.calibrate import shuffled_reports as _shuffled
from accountants.calibrate.composed import *  # noqa: F403
from accountants.calibrate.counts import *  # noqa: F403
from accountants.calibrate.one_release import *  # noqa: F403
from accountants.calibrate.scale import *  # noqa: F403
from accountants.calibrate.scheme_comparison import *  # noqa: F403
from accountants.calibrate.shuffled_reports import *  # noqa: F403

_HOMES = _composed, _counts, _one_release, _scale, _schemes, _shuffled
__all__ = [name for home in _HOMES for name in home.__all__]
