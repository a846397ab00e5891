"""Small searches: roots, minima and feasible numbers.

The files are ``base``, ``roots``, ``implicit``, ``minima`` and ``rounding``; each file imports only earlier files. Each
search takes plain numbers or JAX numbers. The search with plain numbers runs on the host, without compiling. The search
with JAX numbers is a compiled loop, and roots have derivatives by one implicit rule. Where f(x(p), p) = 0,

    dx/dp = -(df/dp) / (df/dx).

A function maps (x, parameters) to a number, where parameters are a pytree of numbers, and closes over no tracer. A
requirement has the form excess(x, parameters) <= 0. An x that satisfies it is feasible. NaN is infeasible.
"""

from dpkernels.solve.base import Function, promote, while_loop
from dpkernels.solve.implicit import differentiable_roots, newton, root
from dpkernels.solve.minima import (
    bounded_minimum,
    convex_root,
    first_root,
    maximum_between,
    minimum,
    minimum_and_value_on_grid,
    minimum_on_grid,
    refined_maximum,
    smooth_minimum,
    turning_points,
    unit_grid_dense_at_ends,
)
from dpkernels.solve.roots import bisect, falling_root, invert_increasing, invert_smooth, rising_root
from dpkernels.solve.rounding import MARGINS, NotPrivateError, conservative_root, first_feasible, floats_from

__all__ = [
    "MARGINS",
    "Function",
    "NotPrivateError",
    "bisect",
    "bounded_minimum",
    "conservative_root",
    "convex_root",
    "differentiable_roots",
    "falling_root",
    "first_feasible",
    "first_root",
    "floats_from",
    "invert_increasing",
    "invert_smooth",
    "maximum_between",
    "minimum",
    "minimum_and_value_on_grid",
    "minimum_on_grid",
    "newton",
    "promote",
    "refined_maximum",
    "rising_root",
    "root",
    "smooth_minimum",
    "turning_points",
    "unit_grid_dense_at_ends",
    "while_loop",
]
