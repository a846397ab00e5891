"""Noisy counts and the top k (Cesar & Rogers 2021, section 6): privacy cost, least noise, and release.

Unless a function says otherwise, neighbours differ in at most D0 counts (l0 sensitivity), by at most Dinf each (linf
sensitivity). ``delta`` is in (0, 1), and numbers of counts are in 1..10^6.

Guarantees are for the distributions of noise in real arithmetic. The selection of items is sampled exactly
(``dpkernels.exact.selection``), and ``perturb`` releases the counts from integer tables close to the distributions. The
charge for Laplace noise is the certified one, so it covers the tables. For Gaussian noise, truncated or not, the
difference between a table and its distribution is not covered. Timing and other side channels are not covered.
"""

from accountants.histograms.guarantees import (
    MOST_COUNTS,
    HistogramGuarantee,
    gaussian_histogram_rho,
    known_domain_guarantee,
    laplace_histogram_delta,
    unknown_domain_guarantee,
)
from accountants.histograms.release import (
    KnownTopK,
    UnknownTopK,
    known_domain_top_k,
    most_likely,
    unknown_domain_top_k,
)

__all__ = [
    "MOST_COUNTS",
    "HistogramGuarantee",
    "KnownTopK",
    "UnknownTopK",
    "gaussian_histogram_rho",
    "known_domain_guarantee",
    "known_domain_top_k",
    "laplace_histogram_delta",
    "most_likely",
    "unknown_domain_guarantee",
    "unknown_domain_top_k",
]
