"""A search for the best of many calibrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpkernels.roots import lowest

# Scales tried by a search over many calibrations, in place of the 160 of one.
COARSE = {"count": 40, "rtol": 1e-9}


def best_on(function: Callable[[Any, Any], Any], grid: np.ndarray, rtol: float) -> float:
    """Where a function is lowest: around the lowest of the grid's points, to ``rtol`` of the cells there."""
    values = [function(x, ()) for x in grid]
    at = int(np.argmin(values))
    found = lowest(function, (), grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], rtol=rtol)
    return found if function(found, ()) < values[at] else float(grid[at])
