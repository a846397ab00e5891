"""``dpkernels account --plot``: delta against epsilon."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpkernels.cli.account import COVERS, Account
from dpkernels.cli.plot import write_with_note
from dpkernels.decimals import shortest

_FLOOR = 1e-12  # of delta
_POINTS = 240  # of the curve, evenly spaced, besides the steep parts
_NEAR = np.geomspace(1e-9, 0.1, 60)  # before an epsilon at which delta falls steeply, relative to it


def draw(target: Path, account: Account) -> None:
    """Draw the profile, with the claim if there is one, and write a PNG."""
    end = _end(account)
    steep = [one * (1 - _NEAR) for one in (account.pure, *account.claim[:1]) if one < end]
    note = f"{account.description}. Neighbouring: {account.neighbours}. Covers {COVERS}"
    write_with_note(_figure(account, np.union1d(np.linspace(0.0, end, _POINTS), steep)), note, target)


def _end(account: Account) -> float:
    """Where the curve has reached the floor, or the delta that no epsilon goes below; never before the claim."""
    plateau = float(account.delta([600.0])[0])
    reached = float(account.epsilon([max(_FLOOR, min(1.001 * plateau, 0.999))])[0])
    pure = account.pure if math.isfinite(account.pure) else 0.0
    return 1.15 * max([reached if math.isfinite(reached) else 0.0, pure, *account.claim[:1], 0.1])


def _figure(account: Account, epsilons: np.ndarray) -> Figure:
    deltas = account.delta(epsilons)
    figure = Figure(figsize=(8, 5.5), dpi=150)
    axes = figure.subplots()
    # Below the floor the curve leaves the picture: a delta of 0 has no place on a log scale.
    axes.plot(epsilons, np.maximum(deltas, _FLOOR / 10), linewidth=2, label="realised delta, the least that is enough")
    _mark(axes, account)
    axes.set(yscale="log", xlabel="epsilon", ylabel="delta, log scale", xlim=(0, epsilons[-1]), ylim=(_FLOOR, 1.0))
    axes.set(title=f"Privacy profile of one report: {account.name}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    return figure


def _mark(axes: Any, account: Account) -> None:
    """The claim and the pure level."""
    if account.claim:
        epsilon, delta = account.claim
        below = f" (below the axis, drawn at {shortest(_FLOOR)})" if delta < _FLOOR else ""
        label = f"claim: epsilon {shortest(epsilon)}, delta {shortest(delta)}{below}"
        axes.plot([epsilon], [max(delta, _FLOOR)], "o", color="C3", label=label, clip_on=False)
    if math.isfinite(account.pure):
        axes.axvline(account.pure, color="grey", linestyle="--", label=f"pure level, epsilon {account.pure:.6g}")
