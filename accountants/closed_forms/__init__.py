"""Composition of mechanisms with known budgets, in closed form or by a short recursion.

Use it for mechanisms of other libraries. If the density of a mechanism is known, ``accountants.guarantee`` returns a
smaller cost. docs/known_budgets.md lists the functions.
"""

from accountants.closed_forms.adaptive import AdaptiveBounds, adaptive_bracket, adaptive_delta, ordering_table
from accountants.closed_forms.approximate import (
    advanced_composition,
    approximate_delta,
    basic_composition,
    parallel_composition,
)
from accountants.closed_forms.bounded_range import bounded_range_renyi, mixed_delta, mixed_epsilon
from accountants.closed_forms.concentrated import (
    best_delta,
    best_epsilon,
    bounded_range_rho,
    gaussian_rho,
    pure_rho,
    setwise_concentrated_delta,
    setwise_epsilon,
)
from accountants.closed_forms.pure import pure_delta, pure_epsilon

__all__ = [
    "AdaptiveBounds",
    "adaptive_bracket",
    "adaptive_delta",
    "advanced_composition",
    "approximate_delta",
    "basic_composition",
    "best_delta",
    "best_epsilon",
    "bounded_range_renyi",
    "bounded_range_rho",
    "gaussian_rho",
    "mixed_delta",
    "mixed_epsilon",
    "ordering_table",
    "parallel_composition",
    "pure_delta",
    "pure_epsilon",
    "pure_rho",
    "setwise_concentrated_delta",
    "setwise_epsilon",
]
