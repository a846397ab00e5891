"""Draw the README's picture: the error of one report over epsilon, for bounded mechanisms and for Laplace noise.

    python -m benchmarks.errors_figure [--output docs/_static/errors.png]

The error is the worst-case standard deviation over the input interval, in widths of the interval.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import dpkernels as dpk

MECHANISMS: dict[str, tuple[Callable[..., Any], str]] = {
    "hybrid": (dpk.hybrid, "tab:blue"),
    "piecewise": (dpk.piecewise, "tab:orange"),
    "Duchi (two points)": (dpk.duchi, "tab:green"),
    "sine window, quartic base": (lambda **given: dpk.composite("sine", "quartic", **given), "tab:purple"),
}
TICKS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def main() -> None:
    """Draw and save the picture."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/_static/errors.png"), help="where the picture goes")
    output = parser.parse_args().output
    epsilons = np.geomspace(0.25, 8.0, 41)
    figure, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
    axes.plot(epsilons, np.sqrt(2) / epsilons, color="black", linestyle="--", label="Laplace (unbounded)")
    for name, (build, colour) in MECHANISMS.items():
        variances = [build(epsilon=float(eps), lower=0.0, upper=1.0).worst_variance for eps in epsilons]
        axes.plot(epsilons, np.sqrt(variances), color=colour, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="epsilon of one report",
        ylabel="worst-case standard deviation\n(widths of the interval)",
    )
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set_yticks([0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0], ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    figure.savefig(output, dpi=160)


if __name__ == "__main__":
    main()
