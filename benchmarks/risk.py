"""Trade-off curves of ten published training runs, and the noise that a limit of a risk saves, as markdown tables.

Run ``python -m benchmarks.risk [--times 3] [--calibrate]``. It needs riskcal (``pip install '.[peers]'``). Every run is
that of ``benchmarks.training_runs``. Times are the least processor times after the first answer of the process.

- The first table has the least type II error at some type I errors, by dp_accounting's privacy loss distribution, which
  rounds losses up on a grid of 1e-4. The best of the lines that its deltas allow is a lower bound. riskcal combines the
  distributions of both neighbour directions; its value may be above the truth.
- The second table has the noise multiplier at which an attack finds at most the share of members that the published run
  allows, at a false positive rate of 1 %: calibrated to this risk, and to an epsilon at the run's delta from which the
  same limit follows.
"""

from __future__ import annotations

import argparse
import math
import warnings
from functools import partial
from typing import Any

from dp_accounting import pld

from accountants import calibrate
from accountants.interop.dp_accounting import from_dp_event
from benchmarks.shown import machine
from benchmarks.training_runs import RUNS, Run, least
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.solve import bounded_minimum

ALPHAS = (1e-6, 1e-3, 0.05)
_RATE = 0.01


def best_line(distribution: Any, alpha: float) -> float:
    """Return the highest line at alpha by which dp_accounting's deltas bound the type II error."""
    return (
        1
        - bounded_minimum(
            lambda eps: distribution.get_delta_for_epsilon(eps) + math.exp(eps) * alpha, 0.0, -math.log(alpha), 1e-6
        )[1]
    )


def _bracket(run: Run, alpha: float) -> tuple[float, float]:
    return from_dp_event(run.event).bracket(alpha=alpha)


def rows(run: Run, times: int) -> list[str]:
    """Return the rows of a run in the first table."""
    from riskcal import analysis

    distribution, slow = least(lambda: pld.PLDAccountant().compose(run.event)._pld, times)
    lines = []
    for alpha in ALPHAS:
        best, search = least(partial(best_line, distribution, alpha), times)
        theirs, own_result = least(partial(analysis.get_beta_from_pld, distribution, alpha), times)
        (low, high), ours = least(partial(_bracket, run, alpha), times)
        lines.append(
            f"| {run.name} | {alpha:g} | {best:.7f} | {slow + search:.0f} | {theirs:.7f}{'!' * (theirs > high)} | "
            f"{slow + own_result:.0f} | {low:.7f} to {high:.7f} | {ours:.0f} |"
        )
    return lines


def calibrated_row(run: Run) -> str:
    """Return the row of a run in the second table."""
    release: dict[str, Any] = {"count": run.steps, "rate": run.sampling_rate}
    power = from_dp_event(run.event).true_positive_rate(_RATE)
    by_risk, _ = least(lambda: calibrate.composed_scale(Gaussian(1.0), **release, true_positive_rate=(_RATE, power)), 1)
    # (eps, delta)-DP has at most the power delta + e^eps rate, and at most 1 - e^-eps (1 - delta - rate).
    eps = max(math.log((power - run.delta) / _RATE), math.log((1 - run.delta - _RATE) / (1 - power)))
    by_budget: Any = calibrate.composed_scale(Gaussian(1.0), **release, epsilon=eps, delta=run.delta)
    return f"| {run.name} | {power:.4f} | {eps:.3f} | {by_budget:.3f} | {by_risk:.3f} | {by_budget / by_risk:.2f} |"


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--calibrate", action="store_true", help="print the second table")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print(machine("dp-accounting", "riskcal"), "\n")
    if options.calibrate:
        print(f"| run | power at {_RATE:g} | epsilon of the same limit | noise for it | noise for the risk | ratio |")
        print("|---|---|---|---|---|---|")
        for run in RUNS:
            print(calibrated_row(run), flush=True)
        return
    print("| run | alpha | dp_accounting, best line | ms | riskcal (! is above our upper end) | ms | ours | ms |")
    print("|---|---|---|---|---|---|---|---|")
    for run in RUNS:
        print("\n".join(rows(run, options.times)), flush=True)


if __name__ == "__main__":
    main()
