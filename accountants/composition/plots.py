"""Figures of guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def draw_guarantee(made: Any, path: Path, epsilon: float | None) -> None:
    """The privacy profile and the trade-off curve side by side, into a .png.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    highest = epsilon if epsilon is not None else made.epsilon(1e-9)
    eps = np.linspace(0.0, highest if np.isfinite(highest) else 10.0, 49)
    figure = Figure(figsize=(9, 4), layout="constrained")
    profile, trade = figure.subplots(1, 2)
    profile.semilogy(eps, np.maximum([made.delta(float(e)) for e in eps], 1e-18))
    profile.set(title="Privacy profile", xlabel="epsilon (nats)", ylabel="delta")
    alpha = np.linspace(0, 1, 201)
    trade.plot(alpha, made.trade_off(alpha))
    trade.plot(alpha, 1 - alpha, ":", color="grey", label="no information")
    trade.set(title="Trade-off curve", xlabel="type I error", ylabel="least type II error", aspect="equal")
    trade.legend(frameon=False)
    figure.savefig(path, dpi=120)
