"""Small searches: roots, minima and feasible numbers.

The files are ``base``, ``roots``, ``implicit``, ``minima`` and ``rounding``; a file imports earlier ones only. Each
search takes plain numbers or JAX ones. Plain numbers are searched on the host, without compiling. JAX numbers are
searched in a compiled loop, and every root has derivatives by one implicit rule. Where f(x(p), p) = 0,

    dx/dp = -(df/dp) / (df/dx).

A function maps (x, parameters) to a number, where parameters are a pytree of numbers, and closes over no tracer. A
requirement reads excess(x, parameters) <= 0. An x that meets it is feasible. A NaN is infeasible.
"""

from dpkernels.solve.base import Function, promote, while_loop
from dpkernels.solve.implicit import found_roots, newton, root
from dpkernels.solve.minima import (
    bounded_minimum,
    convex_root,
    first_root,
    maximum_between,
    maximum_on,
    minimum,
    minimum_near_grid,
    minimum_on_grid,
    shares_with_ends,
    smooth_minimum,
    turning_points,
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
    "falling_root",
    "first_feasible",
    "first_root",
    "floats_from",
    "found_roots",
    "invert_increasing",
    "invert_smooth",
    "maximum_between",
    "maximum_on",
    "minimum",
    "minimum_near_grid",
    "minimum_on_grid",
    "newton",
    "promote",
    "rising_root",
    "root",
    "shares_with_ends",
    "smooth_minimum",
    "turning_points",
    "while_loop",
]
