"""The exact accountant's check of a tuned mechanism, which must pass before it is returned."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from accountants import profile
from accountants.tune.family import Family
from dpkernels.solve import NotPrivateError

# The pure level of a windowed density is a quotient of floats.
ROUNDING = 1e-9


@singledispatch
def realised(family: Family, mechanism: Any) -> tuple[float, float]:
    """(epsilon, delta) that the mechanism meets, delta as the exact accountant finds it.

    Raises:
        NotPrivateError: the budget is exceeded; by how much.
    """
    epsilon, delta = (float(part) for part in family.budget)
    if delta > 0:
        found = float(profile.delta(mechanism, epsilon))
        refuse_above(family, "delta", found, delta)
        return epsilon, found
    level = float(profile.epsilon(mechanism))
    refuse_above(family, "epsilon", level, epsilon * (1 + ROUNDING))
    return epsilon, 0.0


def refuse_above(family: Family, name: str, found: float, allowed: float) -> None:
    """Refuse a value that is above the allowed one, or NaN."""
    if not found <= allowed:
        raise NotPrivateError(f"{family.name}: {name} is {found:.12g}, above the {allowed:.12g} allowed")
