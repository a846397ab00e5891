"""The smooth pieces of several privacy loss distributions as those of one."""

from __future__ import annotations

import dataclasses
from functools import reduce
from typing import Any

import numpy as np

from accountants.loss_intervals import IntervalMasses, LossIntervals
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces
from dpkernels.numerics import namespace


def with_pieces_together(losses: PrivacyLossDistribution) -> PrivacyLossDistribution:
    """Return the same distribution with all smooth pieces in one object."""
    return dataclasses.replace(losses, pieces=(reduce(beside, losses.pieces),)) if losses.pieces else losses


def beside(first: SmoothPieces, second: SmoothPieces) -> SmoothPieces:
    """Return the pieces of both, numbered one after the other."""
    xp, count = namespace(first.left, second.left), len(first.left)

    def either(name: str) -> Any:
        one, other = getattr(first, name), getattr(second, name)
        if one is None or other is None:
            return None
        return lambda *at: xp.where(
            at[-1] < count, one(*at[:-1], xp.minimum(at[-1], count - 1)), other(*at[:-1], xp.maximum(at[-1] - count, 0))
        )

    intervals = None
    if first.intervals is not None and second.intervals is not None:
        intervals = _intervals_beside(first.intervals, second.intervals)
    ends = [xp.concatenate([getattr(first, name), getattr(second, name)]) for name in ("left", "right")]
    beyond = tuple(xp.concatenate([one, other]) for one, other in zip(first.whole, second.whole, strict=True))
    functions = {name: either(name) for name in ("log_p", "log_q", "loss", "steepness", "inverse")}
    few = max(first.few, second.few)
    return SmoothPieces(ends[0], ends[1], few=few, beyond=beyond, intervals=intervals, **functions)  # type: ignore[arg-type]


def _intervals_beside(first: LossIntervals, second: LossIntervals) -> LossIntervals:
    count = len(first.left)

    def measure(level: np.ndarray, piece: np.ndarray) -> IntervalMasses:
        if not len(piece):
            return first.measure(level, piece)
        is_second = piece >= count
        runs = np.split(np.arange(len(piece)), np.flatnonzero(np.diff(is_second)) + 1)
        parts = []
        for run in runs:
            source, number = (second, piece[run] - count) if is_second[run[0]] else (first, piece[run])
            parts.append(vars(source.measure(level[run], number)))
            # Between the levels of two pieces a mass has no meaning.
            parts.append({name: np.zeros(1) for name in parts[-1]})
        names = parts[0]
        return IntervalMasses(**{name: np.concatenate([part[name] for part in parts[:-1]]) for name in names})

    left, right = (np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("left", "right"))
    return LossIntervals(left, right, measure, max(first.mass_error, second.mass_error))
