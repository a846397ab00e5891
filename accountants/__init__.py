"""Privacy accounting for the mechanisms of dpkernels.

``epsilon`` computes the pure-DP level that a mechanism's density realises, from the density and not from the budget
it was built for. An unknown mechanism is an error, never a number.
"""

from accountants.pure import epsilon

__all__ = ["epsilon"]
