"""Compare the best noise of every family for k releases with a free form, certify and verify it, and draw the ratios.

    python -m benchmarks.best_noise [--quick] [--output docs/_static/best_noise.png]

A row has the variance at sensitivity 1 of the noise that ``tune.noise`` finds, and those of its integer table and of
the integer table of the free form; for the worse of these two tables, the upper end of the bracket of k releases and
its width, over delta, and dp_accounting's epsilon at delta from the weights of the table over epsilon (an upper bound,
on a grid of losses); then the variances of the families, and of the free form, the lower bound on the variance of any
noise, and how far the least variance found exceeds it. The least of the two tables' variances is compared with that of
the prototype, where there is one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

import dpkernels as dpk
from accountants import guarantee, tune
from benchmarks.shown import machine, make_parser, markdown

BUDGETS = ((0.5, 1e-6), (1.0, 1e-6), (4.0, 1e-6), (1.0, 1e-9))
# The numbers of releases, and for each the cells of a sensitivity in the free form: few releases need steps.
CELLS = {1: 12, 2: 12, 3: 12, 5: 6, 10: 4, 30: 1, 100: 1}
SHOWN = ("Gaussian", "Laplace", "staircase", "logistic", "generalised normal", "Student")
# The least variances that a prototype of this search found, with floats, by (epsilon, delta, k).
PROTOTYPE = {
    (1.0, 1e-6, 1): 1.918,
    (1.0, 1e-6, 3): 17.92,
    (1.0, 1e-6, 5): 49.73,
    (1.0, 1e-6, 10): 158.62,
    (0.5, 1e-6, 10): 588.7,
    (4.0, 1e-6, 10): 11.568,
    (1.0, 1e-9, 30): 867.2,
    (1.0, 1e-6, 30): 526.2,
    (1.0, 1e-6, 100): 1781.2,
}
FEW = 5  # Up to so many releases noise is nearly pure, and delta most sensitive to the grid.


class Row(NamedTuple):
    """One budget and one number of releases."""

    epsilon: float
    delta: float
    releases: int
    best: Any
    table_variance: float
    free_table_variance: float
    bound: float
    width: float
    accounted: float
    free: float
    least: float

    @property
    def costs(self) -> dict[str, Any]:
        return {cost.family: cost for cost in self.best.costs}

    @property
    def over_prototype(self) -> float | None:
        """Return the least variance of an integer table over the prototype's."""
        prototype = PROTOTYPE.get((self.epsilon, self.delta, self.releases))
        return prototype and min(self.table_variance, self.free_table_variance) / prototype

    @property
    def excess(self) -> float:
        """Return what the least variance found has more than the lower bound, relative to it."""
        return min(self.best.value, self.free) / self.least - 1

    def cells(self) -> list[str]:
        shape = ", ".join(f"{name} {value:.3g}" for name, value in self.best.parameters.items())
        costs = [f"{self.costs[name].value:.5g}" for name in SHOWN]
        return [
            *(f"{self.epsilon:g}, {self.delta:.0e}".replace("e-0", "e-"), f"{self.releases}", self.best.family, shape),
            *(f"{self.best.value:.5g}", f"{self.table_variance:.5g}", f"{self.free_table_variance:.5g}"),
            *(
                f"{self.bound / self.delta:.5f}",
                f"{self.width / self.delta:.1e}",
                f"{self.accounted / self.epsilon:.6f}",
                *costs,
                f"{self.free:.5g}",
            ),
            *(f"{self.least:.5g}", f"{100 * self.excess:.2g} %"),
            "" if self.over_prototype is None else f"{self.over_prototype:.5f}",
        ]


def accounted_epsilon(sampler: Any, epsilon: float, delta: float, count: int) -> float:
    """Return dp_accounting's epsilon at delta of ``count`` releases, from the weights of a table."""
    certificate = sampler.certificate
    table, shift = certificate.table.finite, int(certificate.shift)
    logs = np.log(table.weights.astype(np.float64)) - table.bits * np.log(2.0)
    step = epsilon / count / 2**17 if count <= FEW else 3e-6
    log_p = dict(enumerate(logs.tolist()))
    log_q = {code + shift: log for code, log in log_p.items()}
    losses = privacy_loss_distribution.from_two_probability_mass_functions(
        log_q, log_p, value_discretization_interval=step, symmetric=bool((table.weights == table.weights[::-1]).all())
    )
    return float(losses.self_compose(count).get_epsilon_for_delta(delta))


def measured_row(epsilon: float, delta: float, count: int) -> Row:
    """Return the row of a budget."""
    free = tune.free_form(epsilon=epsilon, delta=delta, count=count, cells=CELLS[count])
    samplers = [dpk.exact_sampler(mechanism) for mechanism in (free.named.mechanism, free.mechanism)]
    accounted = max(accounted_epsilon(sampler, epsilon, delta, count) for sampler in samplers)
    brackets = [guarantee(sampler).repeat(count).bracket(epsilon=epsilon) for sampler in samplers]
    bound, width = max(high for _, high in brackets), max(high - low for low, high in brackets)
    named, free_form = (float(sampler.certificate.worst_variance) for sampler in samplers)
    return Row(
        epsilon, delta, count, free.named, named, free_form, bound, width, accounted, free.value, free.lower_bound
    )


def draw(rows: list[Row], output: Path) -> None:
    """Draw the variances of all families over the number of releases, relative to the least that was found."""
    figure, axes = plt.subplots(1, len(BUDGETS), figsize=(13.0, 3.6), sharey=True, layout="constrained")
    for axis, (epsilon, delta) in zip(axes, BUDGETS, strict=True):
        those = [row for row in rows if (row.epsilon, row.delta) == (epsilon, delta)]
        counts = [row.releases for row in those]
        for name, colour in zip(SHOWN, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False):
            ratios = [row.costs[name].value / min(row.free, row.best.value) for row in those]
            # Laplace noise often has the variance of the staircase.
            line = {"linestyle": "--", "zorder": 3} if name == "Laplace" else {}
            axis.plot(counts, ratios, marker="o", markersize=3, color=colour, label=name, **line)
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="least found")
        axis.set(xscale="log", xlabel="releases", title=f"epsilon {epsilon:g}, delta {delta:.0e}", ylim=(0.98, 1.5))
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.minorticks_off()
        axis.grid(color="0.9")
    axes[0].set_ylabel("variance over the least that was found")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(output, dpi=130)


def main() -> None:
    """Print the table and save the picture."""
    parser = make_parser((__doc__ or "").splitlines()[0], "one budget and two numbers of releases")
    parser.add_argument(
        "--output", type=Path, default=Path("docs/_static/best_noise.png"), help="where the picture goes"
    )
    options = parser.parse_args()
    print(machine("dp-accounting"), flush=True)
    budgets, counts = (BUDGETS[1:2], (10, 30)) if options.quick else (BUDGETS, tuple(CELLS))
    header = [
        "epsilon, delta",
        "k",
        "best",
        "shape",
        "variance",
        "table",
        "free table",
        "delta",
        "width",
        "dp_accounting",
        *SHOWN,
        "free form",
        "bound",
        "excess",
        "over the prototype",
    ]
    rows, start = [], time.process_time()
    for epsilon, delta in budgets:
        for count in counts:
            rows.append(measured_row(epsilon, delta, count))
            print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
    print(f"\n{markdown(header, [row.cells() for row in rows])}")
    print(f"{time.process_time() - start:.0f} s of processor time")
    worst = max(ratio for row in rows if (ratio := row.over_prototype) is not None)
    bound, width = (max(getattr(row, name) / row.delta for row in rows) for name in ("bound", "width"))
    print(
        f"largest table over the prototype {worst:.5f}, largest bound {bound:.6f}, widest bracket {width:.1e} of delta"
    )
    if not options.quick:
        draw(rows, options.output)


if __name__ == "__main__":
    main()
