"""The source's own search of a family, by its kind."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from accountants.tune.families.bounded import Composite, Piecewise
from accountants.tune.families.recycled import Recycled
from accountants.tune.families.sampled import SampledRecycled
from accountants.tune.objectives import Objective
from accountants.tune.published.composite import Enumerated, composite_search, piecewise_search
from accountants.tune.published.recycling import recycled_search, sampled_search


@singledispatch
def enumerated(family: Any, objective: Objective) -> Enumerated:
    """The source's own search of a family.

    Raises:
        TypeError: none is published.
        ValueError: an objective, a condition or a kernel that the source's search does not have.
    """
    raise TypeError(f"family: no search of {family.name} is published; method='gradient' tunes it")


enumerated.register(Piecewise, piecewise_search)
enumerated.register(Composite, composite_search)
enumerated.register(Recycled, recycled_search)
enumerated.register(SampledRecycled, sampled_search)
