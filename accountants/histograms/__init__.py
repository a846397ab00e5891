"""Counts and the largest of them (Cesar & Rogers 2021, section 6): privacy cost, least noise, and release of the top k.

Unless a function says otherwise, neighbours differ in at most D0 counts (l0 sensitivity), by at most Dinf each (linf
sensitivity). ``delta`` is in (0, 1), and numbers of counts are in 1..10^6.

Guarantees are those of the distributions of noise in real arithmetic. Discovery is sampled exactly
(``dpkernels.exact.choice``), and counts are released by ``perturb``, from integer tables close to the distributions.
Laplace noise is charged by the claim that ``perturb`` certifies, so its tables are covered. For Gaussian noise,
truncated or not, the difference between a table and its distribution is not covered. Timing and other side channels are
not covered either.
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
