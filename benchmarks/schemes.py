"""Brackets of batch schemes, beside dp_accounting where it accounts for them, and the picture of docs/sampling.md.

    python -m benchmarks.schemes                                 # a minute or two
    python -m benchmarks.schemes --figure docs/_static/sampling.png

Times are processor seconds of the first answer. PLD_accounting 2.0 is not run: its numbers, from its default accuracy,
are those of the settings in PUBLISHED.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import dpkernels as dpk
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from benchmarks.shown import machine, make_parser, markdown

DELTA = 1e-6
PUBLISHED = {(1.0, 1000): (0.16865, 0.17569), (0.5, 1000): (4.0984, 4.1176), (1.0, 100): (0.8437, 0.8745)}
STEPS, EPOCHS, EXAMPLES = 100, 5, 10_000  # Of the picture.
SIGMAS = np.geomspace(0.6, 4.0, 10)
SCHEMES: dict[str, Callable[[Guarantee], Guarantee]] = {
    "one step an epoch on all records": lambda step: step.repeat(EPOCHS),
    "shuffled batches, lower end": lambda step: step.shuffled_batches(STEPS).repeat(EPOCHS),
    "fixed size (a record is replaced)": lambda step: step.sample_fixed(EXAMPLES // STEPS, EXAMPLES).repeat(
        STEPS * EPOCHS
    ),
    "Poisson, capacity 150": lambda step: step.subsample(1 / STEPS, capacity=150, examples=EXAMPLES).repeat(
        STEPS * EPOCHS
    ),
    "balls in bins": lambda step: step.balls_in_bins(STEPS, EPOCHS),
    "random allocation": lambda step: step.random_allocation(STEPS).repeat(EPOCHS),
    "Poisson": lambda step: step.subsample(1 / STEPS).repeat(STEPS * EPOCHS),
}


def gaussian(sigma: float) -> Guarantee:
    """Return the guarantee of one step of Gaussian noise."""
    return guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)


def settings() -> list[tuple[str, Guarantee, Any]]:
    """Return (name, guarantee, what another accountant says) of every row."""
    rows: list[tuple[str, Guarantee, Any]] = [
        (f"1 of {t}, sigma {sigma}", gaussian(sigma).random_allocation(t), PUBLISHED.get((sigma, t)))
        for sigma in (0.5, 1.0, 2.0)
        for t in (100, 1000, 10_000, 100_000)
    ]
    rows.append(("1 of 100, sigma 1, 10 epochs", gaussian(1.0).random_allocation(100).repeat(10), None))
    group = gaussian(1.0).subsample(0.01).for_groups(8).repeat(1000)
    capacity = gaussian(1.0).subsample(0.01, capacity=150, examples=10_000).repeat(1000)
    rows.append(("groups of 8, rate 0.01, 1000 steps", group, _google_group))
    rows.append(("capacity 150 of 10,000, rate 0.01, 1000 steps", capacity, _google_capacity))
    return rows


def _google(event: object, count: int) -> float:
    from dp_accounting.pld import PLDAccountant

    return float(PLDAccountant(value_discretization_interval=1e-3).compose(event, count).get_epsilon(DELTA))


def _google_group() -> float:
    from dp_accounting import dp_event
    from scipy.stats import binom

    return _google(dp_event.MixtureOfGaussiansDpEvent(1.0, list(range(9)), list(binom.pmf(range(9), 8, 0.01))), 1000)


def _google_capacity() -> float:
    from dp_accounting import dp_event

    return _google(dp_event.TruncatedSubsampledGaussianDpEvent(10_000, 0.01, 150, 1.0), 1000)


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a function, and its processor time."""
    start = time.process_time()
    return function(), time.process_time() - start


def table() -> str:
    """Return the table of all settings."""
    rows = []
    for name, scheme, peer in settings():
        (low, high), seconds = timed(lambda scheme=scheme: scheme.bracket(delta=DELTA))  # type: ignore[misc]
        theirs = "" if peer is None else peer
        if callable(peer):
            value, spent = timed(peer) if find_spec("dp_accounting") else (float("nan"), 0.0)
            theirs = f"dp_accounting {value:.5g}, {spent:.1f} s"
        elif peer is not None:
            theirs = f"PLD_accounting ({peer[0]:.5g} to {peer[1]:.5g})"
        rows.append([name, f"{low:.7g} to {high:.7g}", f"{(high - low) / high:.1e}", f"{seconds:.2f}", str(theirs)])
    return markdown(["setting, delta 1e-6", "bracket of epsilon", "relative width", "processor s", "others"], rows)


def draw(path: Path) -> None:
    """Draw epsilon over the noise of every scheme at one expected batch size."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, scheme) in enumerate(SCHEMES.items()):
        lower = name.endswith("lower end")
        epsilon = [scheme(gaussian(sigma)).bracket(delta=DELTA)[0 if lower else 1] for sigma in SIGMAS]
        axes.loglog(SIGMAS, epsilon, "--" if lower else "-", marker="osv^Dx+"[number], markersize=4, label=name)
    axes.set(xlabel="noise multiplier", ylabel=f"epsilon at delta {DELTA:g}")
    axes.set_title(f"{STEPS} steps an epoch, {EPOCHS} epochs, 1 % of the records a step")
    axes.set_xticks([0.6, 1, 2, 4], ["0.6", "1", "2", "4"])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the table, or draw the picture."""
    parser = make_parser(__doc__)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    if arguments.figure:
        draw(arguments.figure)
    else:
        print(machine(), table(), sep="\n\n")


if __name__ == "__main__":
    main()
