"""Budgets as floats tell them: the largest one, and one low enough to cover rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpkernels.numerics import namespace

# Of the last place of 1 + eps: three times the most that a sweep of random laws finds (tests/test_sweeps.py).
_UNITS = 8


def cap(dtype: Any) -> float:
    """The largest budget told apart from larger ones: e^eps must stay finite."""
    return 0.97 * float(np.log(float(np.finfo(dtype).max)))


def lowered(epsilon: Any) -> Any:
    """A budget below eps by what rounding may be worth: delta falls with eps, so that its delta is an upper bound.

    p - e^eps q cancels next to the largest loss, where its error is of a few units of p and of eps p, and its slope is
    -p: a budget lower by as many covers it.
    """
    xp = namespace(epsilon)
    return epsilon - _UNITS * xp.finfo(xp.result_type(epsilon)).eps * (1 + abs(epsilon))
