"""Conservative rounding: the one function that moves a result to the side on which a guarantee holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# How far a computed result is moved to the conservative side, at most: from a rounding error of 1 to 1e-10.
MARGINS = (0.0, *(2.0**-k for k in range(53, 33, -1)))


class NotPrivateError(ValueError):
    """A mechanism does not meet its budget."""


def first_feasible(candidates: Iterable[T], is_feasible: Callable[[T], object]) -> T:
    """Return the first of ever more conservative candidates, such as one for each of ``MARGINS``, that is feasible.

    A root has rounding errors, so what is built from it may miss its claim in the last digits. Only this function and
    ``conservative_root`` move such a result to the conservative side, or raise NotPrivateError.
    """
    tried = 0
    for candidate in candidates:
        if is_feasible(candidate):
            return candidate
        tried += 1
    raise NotPrivateError(f"none of {tried} candidates is private, the last one the most conservative")


def floats_from(start: float, towards: float, count: int = 1 << 20) -> Iterator[float]:
    """Yield ``start`` and the floats after it in the direction of ``towards``, at most ``count``."""
    value = start
    for _ in range(count):
        yield value
        value = math.nextafter(value, towards)


def conservative_root(
    missing: Callable[[float], float],
    start: float,
    *,
    direction: float = 1.0,
    overshoot: float = 1.05,
    least: float = 1e-9,
    growth: float = 4.0,
    longest: float = math.inf,
    steps: int = 40,
) -> float:
    """Return the first feasible x of a walk from an estimated root to the conservative side, or raise NotPrivateError.

    ``missing`` maps x to about how far it still is from the root of a bound, and to at most 0 where x is feasible. The
    walk starts at the estimate, and goes up, or with ``direction`` -1 down. A step is ``overshoot`` times the missing
    distance, left out if that is above ``longest``, plus an extra length: ``least`` at first, then ``growth`` times as
    much in each step, up to 0.1. At most ``steps`` points are tried.
    """
    x = start
    for step in range(steps):
        distance = missing(x)
        if distance <= 0:
            return x
        x += direction * (min(least * growth**step, 0.1) + (overshoot * distance if distance < longest else 0.0))
    raise NotPrivateError(f"none of {steps} points from {start:.9g} to {x:.9g} is private")
