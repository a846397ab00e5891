"""Privacy accounting for the mechanisms of dpkernels.

``delta`` and ``epsilon`` compute the privacy profile that a mechanism's density realises, from the density and not from
the budget it was built for. ``calibrate`` finds the least noise for a budget, ``recycling`` accounts for budget
recycling, ``histograms`` releases the largest counts. An unknown mechanism is an error, never a number.
"""

from accountants import calibrate, recycling
from accountants.histograms import known_domain_top_k, unknown_domain_top_k
from accountants.profile import delta, epsilon
from accountants.subsampling import amplified, on_sample

__all__ = [
    "amplified",
    "calibrate",
    "delta",
    "epsilon",
    "known_domain_top_k",
    "on_sample",
    "recycling",
    "unknown_domain_top_k",
]
