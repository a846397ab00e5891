"""``dpkernels account``, ``tune`` and ``estimate``, with their options; the work is imported when one runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.dataset.options import Input, engine, engine_options
from dpkernels.cli.interrupts import importing
from dpkernels.cli.mechanisms.options import (
    INPUT,
    Numbers,
    Options,
    json_option,
    mechanism_options,
    options_of,
    plot_option,
    single,
)
from dpkernels.cli.text import as_text

_MORE_ACCOUNT = """\b
Examples:
  dpkernels account laplace --sensitivity 1 --epsilon 1
  dpkernels account gaussian --sensitivity 1 --sigma 4 --at-epsilon 0.5 --at-epsilon 1 --at-delta 1e-6
  dpkernels account hybrid --lower 0 --upper 120 --epsilon 1 --plot profile.png
  dpkernels account gaussian --sensitivity 1 --sigma 4 --reports 1000 --subsample 0.01 --at-delta 1e-6
  dpkernels account piecewise --lower 0 --upper 120 --epsilon 4 --shuffle 100000 --plot shuffled.png
"""

_MORE_TUNE = """\b
Objectives, of the worst input where it matters:
  variance        of a report
  variance-at     the variance at the input --at
  absolute-error  E|error|
  acceptance      P(|error| <= --theta), made large
  quantile        the error exceeded with probability --beta
  distribution    the expected error of the cdf of --reports N values (bounded mechanisms)

\b
Examples:
  dpkernels tune --epsilon 1 --lower 0 --upper 120
  dpkernels tune --epsilon 0.1 --delta 1e-6 --shuffle 100000 --lower 0 --upper 120
  dpkernels tune --epsilon 1 --delta 1e-5 --sensitivity 1 --objective acceptance --theta 2 --plot search.png
"""


_MORE_ESTIMATE = """\b
Examples:
  dpkernels estimate private.csv --column age
  dpkernels estimate private.csv --column age --by plan --quantiles .25,.5,.75
  dpkernels estimate private.parquet --column income --histogram 20 --plot income.png
"""


# What several reports of a mechanism reveal together.
_TOGETHER: Options = {
    "reports": (int, "N", "Account N reports together."),
    "subsample": (
        float,
        "RATE",
        "Each report is on a Poisson sample of this rate of its own; neighbouring is one record more or less.",
    ),
    "shuffle": (
        int,
        "N",
        "N honest people send a report each through a trusted shuffler; neighbouring: another value of one.",
    ),
}

_TUNED: Options = {
    "epsilon": (float, "E", "Privacy budget, 0.01 to 20."),
    "lower": (float, "X", "Smallest valid value: bounded mechanisms."),
    "upper": (float, "X", "Largest valid value: bounded mechanisms."),
    "sensitivity": (float, "D", "Of additive noise: how far apart neighbours are at most."),
    "delta": (float, "D", "Also tune noise that spends a delta, in (0, 1)."),
    "theta": (float, "T", "Tolerated error of the objective acceptance."),
    "beta": (float, "B", "How often the error may exceed the objective quantile."),
    "at": (float, "X", "Input of the objective variance-at."),
    "reports": (int, "N", "How many there are, of the objective distribution."),
    "shuffle": (
        int,
        "N",
        "epsilon and delta are those of N honest people's reports, one each, through a trusted shuffler.",
    ),
}


def drawable(plot: Path | None) -> None:
    """Refuse a picture that could not be written, before the work.

    Raises:
        click.UsageError: not a .png, or not in a folder.
    """
    if plot is not None:
        from dpkernels.cli.plot import check_target

        check_target(plot)


@click.command(epilog=_MORE_ACCOUNT)
@click.argument("mechanism")
@mechanism_options
@click.option("--at-epsilon", type=float, metavar="E", multiple=True, help="Print delta at this epsilon; repeats.")
@click.option("--at-delta", type=float, metavar="D", multiple=True, help="Print epsilon at this delta; repeats.")
@options_of(_TOGETHER)
@plot_option("Also draw delta against epsilon, of shuffled reports epsilon against N, into this .png.")
@json_option()
def account(
    mechanism: str,
    at_epsilon: tuple[float, ...],
    at_delta: tuple[float, ...],
    reports: tuple[int, ...],
    subsample: tuple[float, ...],
    shuffle: tuple[int, ...],
    plot: Path | None,
    as_json: bool,
    **options: tuple[Any, ...],
) -> None:
    """The privacy that MECHANISM realises: delta at epsilons, epsilon at deltas, its pure level and its variance.

    MECHANISM is one of those that `dpkernels mechanisms` lists, with its options. Without --epsilon and --delta
    nothing is claimed, and the parameters of the noise must be given. With --reports or --subsample: what several
    reports reveal together, epsilon at deltas or delta at epsilons, each with an interval that certainly holds it.
    With --shuffle: what a bounded mechanism's certified reports reveal once nobody knows who sent which.
    """
    with importing():
        from dpkernels.cli import account as accounting

    drawable(plot)
    several = single({"reports": reports, "subsample": subsample})
    together = single({"shuffle": shuffle})
    if together and several:
        raise click.UsageError("--shuffle: has no use with --reports or --subsample; compose rounds in Python")
    found: Any = accounting.Account.of(mechanism, single(options), at_epsilon, at_delta)
    if several:
        from dpkernels.cli.composed import Composed

        found = Composed.of(found, at_epsilon, at_delta, **several)
    if together:
        from dpkernels.cli.composed import ShuffledAccount, draw_shuffled

        found = ShuffledAccount.of(found, at_epsilon, at_delta, together["shuffle"])
    if plot is not None and together:
        draw_shuffled(plot, found)
    elif plot is not None:
        from dpkernels.cli.profile_plot import draw

        found.guarantee.plot(plot) if several else draw(plot, found)
    click.echo(as_text(found.to_dict()) if as_json else str(found))


@click.command(epilog=_MORE_TUNE)
@click.option(
    "--objective", metavar="NAME", default="variance", help="What is made best, see below; by default variance."
)
@options_of(_TUNED)
@plot_option("Also draw the searches into this .png.")
@json_option()
def tune(objective: str, plot: Path | None, as_json: bool, **options: tuple[float, ...]) -> None:
    """The best parameters of every mechanism for one budget, the best mechanism first, by gradient.

    With --lower and --upper bounded mechanisms (any two values are neighbours), with --sensitivity additive noise.
    Every result has been accounted exactly. Prints the line of Python that builds the best.
    """
    with importing():
        from dpkernels.cli import tune as tuning

    drawable(plot)
    found = tuning.tuned(objective, single(options))
    if plot is not None:
        tuning.draw(plot, found)
    click.echo(as_text(found.to_dict()) if as_json else str(found))


@click.command(epilog=_MORE_ESTIMATE)
@click.argument("reports", metavar="REPORTS", type=Input(exists=True, dir_okay=False, path_type=Path))
@click.option("--sidecar", type=INPUT, metavar="FILE", help="The release's certificates; by default REPORTS.json.")
@click.option("--column", metavar="NAME", help="The perturbed column, where there are several.")
@click.option("--quantiles", type=Numbers(), metavar="P,P,..", help="Shares in (0, 1); by default .1,.5,.9.")
@click.option("--histogram", type=int, metavar="N", help="Also shares and numbers in N equal bins.")
@click.option("--by", metavar="NAME", help="Estimate by group: a column that was copied as it is.")
@click.option("--lower", type=float, metavar="X", help="Smallest value there can be (additive noise).")
@click.option("--upper", type=float, metavar="X", help="Largest value there can be (additive noise).")
@click.option("--confidence", type=float, default=0.95, help="Of every interval by itself, 0.95 by default.")
@plot_option("Also draw histogram and cdf into this .png.")
@engine_options
@json_option()
def estimate(
    reports: Path | str,
    sidecar: Path | None,
    column: str | None,
    quantiles: tuple[float, ...] | None,
    histogram: int | None,
    by: str | None,
    lower: float | None,
    upper: float | None,
    confidence: float,
    plot: Path | None,
    as_json: bool,
    **runs: Any,
) -> None:
    """What the reports in a released file say of the values behind them, with intervals.

    REPORTS is what `dpkernels perturb` wrote, .csv, .tsv (also .gz), .parquet or .npy, or the folder or URI of a
    released dataset; it is read once, in constant memory. Estimating costs no privacy. With --sidecar a file may hold
    some of the release's rows, or be of another format.
    """
    with importing():
        from dpkernels.cli.estimates import told

    if (lower is None) != (upper is None):
        raise click.UsageError("--lower and --upper: give both or neither")
    drawable(plot)
    if plot is not None and by is not None:
        raise click.UsageError("--plot: draws all rows; it has no use with --by")
    asked = told.Asked.of(quantiles, histogram, confidence)
    bounds = None if lower is None or upper is None else (lower, upper)
    found = told.estimates(_counted(reports, sidecar, column, by, bounds, runs), asked)
    if plot is not None and found.whole is not None:
        from dpkernels.estimation.plot import save_plot

        save_plot(found.whole, plot, confidence)
    click.echo(as_text(found.to_dict()) if as_json else str(found))


def _counted(
    reports: Path | str,
    sidecar: Path | None,
    column: str | None,
    by: str | None,
    bounds: tuple[float, float] | None,
    runs: Mapping[str, Any],
) -> Any:
    """The reports of a file, or of a dataset's parts."""
    if isinstance(reports, Path):
        if any(runs.values()):
            raise click.UsageError("--engine: runs the parts of a dataset; REPORTS is one file")
        with importing():
            from dpkernels.cli.estimates import reading

        return reading.read(reports, sidecar, column, by, bounds)
    if sidecar is not None:
        raise click.UsageError("--sidecar: is for one file; a dataset has its own")
    with importing():
        from dpkernels.cli.dataset import estimate as dataset

    return dataset.read(reports, column, by, bounds, engine(runs))
