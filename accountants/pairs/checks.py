"""Pairs of laws from elsewhere, a file or a user: refused where they are none."""

from __future__ import annotations

from typing import Any

import numpy as np

from accountants.pairs.worst import Atoms, Mixed, Placed, Shifted, falls
from dpkernels import checks
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow, base_from, window_from


def check_pair(pair: Any) -> None:
    """Refuse a pair that is none of laws.

    Raises:
        ValueError: names what is wrong.
    """
    if isinstance(pair, Atoms):
        for name, mass in (("p", pair.p), ("q", pair.q)):
            checks.within(name, mass, 0.0, 1.0)
            if np.shape(mass) != np.shape(pair.p) or np.ndim(mass) != 1 or abs(np.sum(mass) - 1) > 1e-9:
                raise ValueError(f"{name}: is not of as many probabilities as the other, or they do not add up to 1")
        if pair.moved is not None:
            _check_moved(pair)
    elif isinstance(pair, Mixed):
        checks.within("weight", pair.weight, 0.0, 1.0)
        check_pair(pair.first)
        check_pair(pair.second)
    elif isinstance(pair, Shifted):
        checks.sensitivity(np.abs(pair.shift))
    elif isinstance(pair, Placed):
        _check_shapes(pair.mechanism)
        for name, x in (("x", pair.x), ("other", pair.other)):
            checks.within(name, x, pair.mechanism.lower, pair.mechanism.upper)
    else:
        raise ValueError(f"form: {type(pair).__name__} is no pair of laws")


def _check_moved(pair: Any) -> None:
    n = checks.whole("moved", pair.moved, 1, len(pair.p) - 1)
    weights = pair.p[: len(pair.p) - n]
    falls = np.all(np.diff(weights[len(weights) // 2 :]) <= 0)
    if any(pair.p[-n:]) or any(pair.q[:n]) or np.any(pair.q[n:] != weights):
        raise ValueError(f"moved: {n}; q is not p so many points further on")
    if np.any(weights != weights[::-1]) or not falls:
        raise ValueError("p: of noise on a lattice is even and falls from the middle")


def _check_shapes(mechanism: Any) -> None:
    """A table must be one that ``window_from`` and ``base_from`` make, and fall from its middle."""
    for make, kind in ((window_from, TabulatedWindow), (base_from, TabulatedBase)):
        for name in ("window", "base"):
            shape = getattr(mechanism, name)
            if isinstance(shape, kind) and not (make(shape.shape.values) == shape and falls(shape)):
                raise ValueError(f"{name}: is not even with a peak of 1, or does not fall from its middle")
