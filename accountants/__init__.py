"""Privacy accounting for the mechanisms of dpkernels.

``delta`` and ``epsilon`` compute the privacy profile of a mechanism from its density, not from the budget that it was
built for. ``guarantee`` composes mechanisms; ``Filter`` and ``Ledger`` keep a budget. ``calibrate`` finds the least
noise for a budget, and ``tune`` the best free parameters. ``recycling`` accounts for budget recycling.
``known_domain_top_k`` and ``unknown_domain_top_k`` release the largest counts. An unknown mechanism raises an error.
"""

import lazy_loader

from accountants import calibrate, closed_forms, recycling
from accountants.audit import Audit, audit, audit_training
from accountants.charges import repeated_charge
from accountants.closed_forms.approximate import parallel_composition
from accountants.comparison import compare
from accountants.dominating_pairs.densities import density_pair
from accountants.dominating_pairs.discrete import discrete_pair, randomised_response
from accountants.dominating_pairs.steepness import check_steepness
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.histograms import known_domain_top_k, unknown_domain_top_k
from accountants.profile import delta, epsilon
from accountants.schemes.poisson import amplified_budget, budget_on_sample
from accountants.shuffle import Shuffled, shuffled
from dpkernels.budgets.filters import BudgetExceeded, ConcentratedFilter, Filter, Odometer
from dpkernels.budgets.ledger import Ledger, LedgerError
from dpkernels.jax_on_use import import_now

import_now()  # These modules have imported it.

# Tuning imports optax, which takes 0.1 s.
__getattr__ = lazy_loader.attach(__name__, submodules=["tune"])[0]

__all__ = [
    "Audit",
    "BudgetExceeded",
    "ConcentratedFilter",
    "Filter",
    "Guarantee",
    "Ledger",
    "LedgerError",
    "Odometer",
    "Shuffled",
    "amplified_budget",
    "audit",
    "audit_training",
    "budget_on_sample",
    "calibrate",
    "check_steepness",
    "closed_forms",
    "compare",
    "delta",
    "density_pair",
    "discrete_pair",
    "epsilon",
    "guarantee",
    "known_domain_top_k",
    "parallel_composition",
    "randomised_response",
    "recycling",
    "repeated_charge",
    "shuffled",
    "tune",
    "unknown_domain_top_k",
]


def __dir__() -> list[str]:
    return list(__all__)
