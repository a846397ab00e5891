"""Draw the error of an expectation by independent uniforms, antithetic pairs and Sobol points, through ``icdf``.

    python -m benchmarks.quasi_monte_carlo [--output docs/_static/quasi_monte_carlo.png]

On the left, the mean of one report; on the right, the expected largest of 8 reports of different inputs. An error is
the root mean square over 200 repetitions, in widths of the input interval.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import qmc

import dpkernels as dpk

COUNTS = 2 ** np.arange(4, 13)
REPETITIONS = 200
REFERENCE = 1 << 18  # Sobol points of the value that errors are measured against.

Points = Callable[[int, int, np.random.Generator], np.ndarray]


def independent(count: int, dimensions: int, random: np.random.Generator) -> np.ndarray:
    """Return independent uniforms."""
    return random.random((count, dimensions))


def antithetic(count: int, dimensions: int, random: np.random.Generator) -> np.ndarray:
    """Return independent uniforms u and their mirror images 1 - u."""
    u = random.random((count // 2, dimensions))
    return np.concatenate([u, 1 - u])


def sobol(count: int, dimensions: int, random: np.random.Generator) -> np.ndarray:
    """Return scrambled Sobol points."""
    return qmc.Sobol(dimensions, rng=random).random(count)


POINTS: dict[str, tuple[Points, str]] = {
    "independent": (independent, "tab:blue"),
    "antithetic pairs": (antithetic, "tab:orange"),
    "Sobol points": (sobol, "tab:green"),
}


def errors(points: Points, x: np.ndarray, mechanism: dpk.Windowed) -> list[float]:
    """Return the error of the mean of the largest report of the inputs x, for every number of points."""
    random = np.random.default_rng(1)
    truth = mechanism.icdf(sobol(REFERENCE, len(x), random), x).max(1).mean()
    values = []
    for count in COUNTS:
        u = np.stack([points(int(count), len(x), random) for _ in range(REPETITIONS)])
        means = mechanism.icdf(u, x).max(2).mean(1)
        values.append(float(np.sqrt(np.mean((means - truth) ** 2))))
    return values


def main() -> None:
    """Draw and save the picture."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    about = "where the picture goes"
    parser.add_argument("--output", type=Path, default=Path("docs/_static/quasi_monte_carlo.png"), help=about)
    output = parser.parse_args().output
    mechanism = dpk.composite("sine", "constant", epsilon=1.0, lower=0.0, upper=1.0)
    figure, panels = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained", sharey=True)
    for axes, x, title in zip(
        panels,
        (np.array([0.3]), np.linspace(0.1, 0.9, 8)),
        ("mean of one report", "expected largest of 8 reports"),
        strict=True,
    ):
        for name, (points, colour) in POINTS.items():
            axes.plot(COUNTS, errors(points, x, mechanism), color=colour, marker="o", markersize=3, label=name)
        axes.set(xscale="log", yscale="log", xlabel="evaluations of icdf a report", title=title)
        axes.set_xticks(COUNTS[::2], [f"{count:,}" for count in COUNTS[::2]])
        axes.minorticks_off()
        axes.grid(color="0.9")
    panels[0].set_ylabel("error (widths of the interval)")
    panels[0].legend(frameon=False)
    figure.savefig(output, dpi=160)


if __name__ == "__main__":
    main()
