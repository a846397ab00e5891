"""Pairs and their mirrors: whether the hockey stick of (q, p) is that of (p, q)."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from accountants.pairs.worst import Atoms, Mixed, Placed, Shifted, is_even
from dpkernels.numerics import namespace


@singledispatch
def asymmetry(pair: Any) -> Any:
    """How far a pair is from one that a reflection turns into its mirror: 0 if it is one, inf if that is not known."""
    return np.inf


@asymmetry.register
def _(pair: Shifted) -> Any:
    return 0.0 if is_even(pair.noise) else np.inf


@asymmetry.register
def _(pair: Atoms) -> Any:
    if pair.moved is not None:
        return 0.0
    gap = pair.q - pair.p[::-1]
    return namespace(gap).abs(gap).max()


@asymmetry.register
def _(pair: Placed) -> Any:
    m = pair.mechanism
    off = (pair.x + pair.other - m.lower - m.upper) / (m.upper - m.lower)
    return namespace(off).abs(off)


@asymmetry.register
def _(pair: Mixed) -> Any:
    first, second = asymmetry(pair.first), asymmetry(pair.second)
    return namespace(first, second).maximum(first, second)


@singledispatch
def mirror(pair: Any) -> Any:
    """The pair (q, p).

    Raises:
        TypeError: a pair of an unknown type.
    """
    raise TypeError(f"pair: {type(pair).__name__} has no known mirror")


@mirror.register
def _(pair: Shifted) -> Any:
    return Shifted(pair.noise, -pair.shift, pair.periods)


@mirror.register
def _(pair: Atoms) -> Any:
    return Atoms(pair.q, pair.p, near=pair.near)


@mirror.register
def _(pair: Placed) -> Any:
    return Placed(pair.mechanism, pair.other, pair.x)


@mirror.register
def _(pair: Mixed) -> Any:
    return Mixed(pair.weight, mirror(pair.first), mirror(pair.second))
