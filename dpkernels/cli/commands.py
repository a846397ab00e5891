"""The subcommands and their options; the work of a subcommand is imported when it runs."""

from __future__ import annotations

import json
import os
import webbrowser
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import click

import dpkernels as package
from dpkernels.cli import config
from dpkernels.cli import options as opts
from dpkernels.cli.config import config_options
from dpkernels.cli.errors import error_text
from dpkernels.cli.interrupts import importing
from dpkernels.cli.terminal import is_stdout_reserved, show, warn

_OVERVIEW = """\b
Examples:
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1
  dpkernels perturb in.csv out.csv --column pay --mechanism gaussian --sensitivity 1 --epsilon 1 --delta 1e-6
  dpkernels release people.csv out.csv --count --mean age:0:100 --epsilon 1
  dpkernels estimate out.csv --column age
  dpkernels certify --verify out.csv.json
  dpkernels compare --epsilon 1 --lower 0 --upper 120
  dpkernels account laplace --sensitivity 1 --epsilon 1 --reports 100 --at-delta 1e-6
  dpkernels tune --epsilon 1 --delta 1e-5 --sensitivity 1 --objective acceptance --theta 2

\b
Exit codes:
  0  done; for perturb, OUT and OUT.json are complete, even if a summary could not be printed
  1  failed or interrupted; one line says why, and nothing was written. A charge to a ledger is voided
     if nothing of the release can have been read; otherwise it is kept, and the line says so
  2  a wrong option or argument; nothing was charged or written
  3  the budget is exhausted; nothing was charged or written
  4  verification failed: a release, its sidecar, a certificate or a ledger is not what it says
  5  try again: the disk is full, another process holds a file, or too many files are open;
     no charge was made or is left, so trying again costs nothing more

An error names rows and lines of a file. It shows their values only if standard error is a terminal.
"""


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(epilog=_OVERVIEW, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(package.__version__, prog_name="dpkernels")
@click.pass_context
def dpkernels(context: click.Context) -> None:
    """Differential-privacy noise, bounded or additive, released by certified integer samplers."""
    if context.invoked_subcommand is None:
        show(context.get_help())


dpkernels.command_class = opts.Command


def _print(result: Any, as_json: bool, plot: Path | None = None) -> None:
    if plot is not None:
        result.plot(plot)
    show(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


def _charged_ledger(ledger: Path | None) -> Path | None:
    """Return the ledger of a release: the one that was given, or else that of the environment."""
    usual = os.environ.get(_LEDGER_VARIABLE)
    if ledger is not None or not usual:
        return ledger
    if not Path(usual).is_absolute():
        problem = "must be an absolute path, because in another folder --budget would make another ledger"
        raise click.UsageError(f"{_LEDGER_VARIABLE}: {usual!r} {problem}")
    return Path(usual)


def _may_be_session(path: Path) -> bool:
    """Return whether a file may be of ``Session.save``: its format stands first, unless the file is being replaced."""
    with path.open("rb") as file:
        head = file.read(64)
    return b'"dpkernels session' in head or head.startswith(b'{"replacing"')


_MORE_ACCOUNT = """\b
Examples:
  dpkernels account laplace --sensitivity 1 --epsilon 1
  dpkernels account gaussian --sensitivity 1 --sigma 4 --at-epsilon 0.5 --at-epsilon 1 --at-delta 1e-6
  dpkernels account gaussian --sensitivity 1 --sigma 4 --reports 1000 --subsample 0.01 --at-delta 1e-6
  dpkernels account piecewise --lower 0 --upper 120 --epsilon 4 --shuffle 100000 --plot shuffled.png
  dpkernels account gaussian --sensitivity 1 --sigma 4 --reports 10 --risk --plot risk.png
"""

_MORE_TUNE = """\b
Objectives (for the worst input, where the input matters):
  variance        the variance of a report (default)
  variance-at     the variance at the input --at
  absolute-error  the expected absolute error
  acceptance      the probability that the error is at most --theta, made as large as possible
  quantile        the error that is exceeded with probability --beta
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
  dpkernels estimate private.csv --column ward
  dpkernels estimate private.csv --column word --most 50
"""


_ATOMS = "Values that many people may have, such as 0."
_MOST = "Values of prefix-response to find, 1 to 16384. More are lost if fewer are kept. Default: 32."
_CONFIDENCE = "Probability that each single interval contains its true value. Default: 0.95."
_ASSUME = (
    "What intervals assume about the values: nothing (default), or a smooth density beside --atoms and the point "
    "masses that are found, which makes intervals narrower."
)

# Accounting of several reports.
_TOGETHER: opts.Options = {
    "reports": (int, "N", "Account N reports together."),
    "subsample": (float, "RATE", "Sample the records anew for each report, at this rate (Poisson)."),
    "shuffle": (int, "N", "N honest people send one report each through a trusted shuffler."),
}

_TUNED: opts.Options = {
    "epsilon": (float, "E", "Privacy budget, 0.01 to 20."),
    "lower": (float, "X", "Smallest valid value (bounded mechanisms)."),
    "upper": (float, "X", "Largest valid value (bounded mechanisms)."),
    "sensitivity": (float, "D", "Largest distance of the true values of neighbours (additive noise)."),
    "delta": (float, "D", "Also tune noise that has a delta, in (0, 1)."),
    "theta": (float, "T", "Tolerated error, for the objective acceptance."),
    "beta": (float, "B", "How often the error may be exceeded, for the objective quantile."),
    "at": (float, "X", "Input, for the objective variance-at."),
    "reports": (int, "N", "Number of reports, for the objective distribution."),
    "shuffle": (int, "N", "The budget is for N honest people's reports together, one each, after a trusted shuffler."),
}


@dpkernels.command(epilog=_MORE_ACCOUNT)
@click.argument("mechanism")
@opts.mechanism_options
@click.option("--at-epsilon", type=float, metavar="E", multiple=True, help="Print delta here; repeats.")
@click.option("--at-delta", type=float, metavar="D", multiple=True, help="Print epsilon here; repeats.")
@opts.table_options(_TOGETHER)
@click.option("--risk", is_flag=True, help="Print what it means for one person instead: attacks and beliefs.")
@opts.plot_option("Draw delta against epsilon into this .png; for shuffled reports, epsilon against N.")
@opts.json_option()
def account(mechanism: str, risk: bool, plot: Path | None, as_json: bool, **options: tuple[object, ...]) -> None:
    """Print the privacy of MECHANISM: delta at epsilons, epsilon at deltas, pure level and variance.

    `dpkernels mechanisms` lists the mechanisms with their options. Without --epsilon and --delta the mechanism makes no
    claim, and the parameters of its noise must be given. With --reports, --subsample or --shuffle, print the privacy
    of all these reports together, each number with rigorous bounds. With --risk, print how often the best attack on
    one person succeeds, and how much a belief can change.
    """
    with importing():
        from dpkernels.cli import account as accounting

    _print(accounting.privacy_account(mechanism, risk=risk, **options), as_json, plot)


@dpkernels.command(epilog=_MORE_TUNE)
@click.option("--objective", metavar="NAME", default="variance", help="What to optimise; see below.")
@opts.table_options(_TUNED)
@opts.plot_option("Also draw the searches into this .png.")
@opts.json_option()
def tune(objective: str, plot: Path | None, as_json: bool, **options: tuple[float, ...]) -> None:
    """Find the best parameters of every mechanism for one budget, by gradient, and list the best mechanism first.

    Give --lower and --upper for bounded mechanisms (any two values are neighbours), or --sensitivity for additive
    noise. Every result is accounted exactly. The last line is the Python that builds the best mechanism.
    """
    with importing():
        from dpkernels.cli import tune as tuning

    _print(tuning.tune_families(objective, opts.single(options)), as_json, plot)


@dpkernels.command(epilog=_MORE_ESTIMATE)
@click.argument("reports", metavar="REPORTS", type=opts.REPORTS)
@click.option("--sidecar", type=opts.INPUT, metavar="FILE", help="The release's certificates. Default: REPORTS.json.")
@click.option("--column", metavar="NAME", help="The perturbed column, where there are several.")
@click.option("--quantiles", type=opts.NumberList(), metavar="P,P,..", help="Shares in (0, 1). Default: .1,.5,.9.")
@click.option("--histogram", type=int, metavar="N", help="Also shares and numbers in N equal bins.")
@click.option("--by", metavar="NAME", help="Estimate by group: a column that was copied as it is.")
@click.option("--lower", type=opts.DateOrNumber(), metavar="X", help="Smallest value there can be (additive noise).")
@click.option("--upper", type=opts.DateOrNumber(), metavar="X", help="Largest value there can be (additive noise).")
@click.option("--confidence", type=float, default=0.95, help=_CONFIDENCE)
@click.option("--atoms", type=opts.NumberList(number=opts.date_or_number), metavar="X,X,..", help=_ATOMS)
@click.option("--grid", type=float, metavar="G", help="Values are multiples of G: 1 for whole numbers.")
@click.option("--assume", type=click.Choice(["nothing", "smooth"]), default="nothing", help=_ASSUME)
@click.option("--most", type=click.IntRange(1, 1 << 14), metavar="K", help=_MOST)
@opts.plot_option("Also draw the histogram and the cdf into this .png, of every group.")
@opts.engine_options
@opts.redact_option()
@opts.json_option()
def estimate(reports: Path | str, sidecar: Path | None, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Estimate from the reports in a released file the values behind them, with intervals.

    REPORTS is what `dpkernels perturb` wrote, .csv, .tsv (also .gz), .parquet or .npy, or the folder or URI of a
    released dataset; it is read once, in constant memory. Estimating costs no privacy. With --sidecar a file may hold
    some of the release's rows, or be of another format.
    """
    with importing():
        from dpkernels.cli import category_estimates, estimate

    runs = {name: options.pop(name) for name in opts.ENGINE}
    column, group_column, lower, upper = (options.pop(name) for name in ("column", "by", "lower", "upper"))
    most = options.pop("most")
    if (lower is None) != (upper is None):
        raise click.UsageError("--lower and --upper: give both or neither")
    settings = estimate.EstimateOptions(**options)
    given = {**options, "lower": lower, "upper": upper, "most": most}
    select = partial(category_estimates.select_reports, column=column, group_column=group_column, options=given)
    if isinstance(reports, Path):
        if any(runs.values()):
            raise click.UsageError("--engine: runs the parts of a dataset; REPORTS is one file")
        form, source = estimate.open_release(reports, sidecar)
        counted: Any = select(form, source.names, reports)
        while hasattr(counted, "tally"):  # once, but for each level of prefixes
            counted = counted.join([counted.tally(source)], reports)
    else:
        if sidecar is not None:
            raise click.UsageError("--sidecar: is for one file; a dataset has its own")
        with importing():
            from dpkernels.cli.dataset import estimate as dataset
            from dpkernels.cli.dataset.engines import engine

        counted = dataset.read(reports, select, engine(runs))
    if isinstance(counted, category_estimates.CategoryEstimates | category_estimates.FoundValues):
        _print(counted, as_json, plot)
        return
    if plot is not None:
        estimate.check_panels(counted)
    estimates = estimate.estimates(counted, settings)
    _print(estimates, as_json)
    if plot is not None:
        estimates.plot(plot)


_run_option = opts.rare_options("Course of the run")

_EXAMPLES = """\b
Examples:
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1 --ledger people.ledger --budget 5
  dpkernels perturb in.csv out.csv --column ward --categories cardio,neuro,ortho --epsilon 1
"""

_DETAILS = """Repeat --column for several columns. Give --mechanism once for all columns, or once for each column in the
same order. Give any other option of a mechanism once for all columns whose mechanism has it, or once for each of these.

IN may be a dataset: a folder, a pattern such as 'in/*.parquet', or a URI such as s3://bucket/in. Then OUT is a new
folder or a URI, its sidecar is _release.json there, and --engine ray spreads the parts over a cluster. In a folder,
files whose names begin with . or _ are not read, and the command names them. A .csv or .tsv may be .gz, or - for
standard input and output.

A column of categories needs --categories, or --categories-from with one category a line. State them without looking at
the data. A value that is none of them is an error, or with --other becomes that category. Reports are categories
(randomised-response), numbers (block-response) or sets of categories (subset-selection), which are bytes in a Parquet
file and hexadecimal digits in a text file. With columns of both kinds give --mechanism for each, such as categorical
and balanced. Texts that are too many to list need --length and --alphabet (prefix-response): `dpkernels estimate` finds
the most frequent ones.

Rows that are queries, with parameters of their own, need --sensitivity-column and so on. Columns of parameters are
copied, and all noise scales can be computed from them, so they must be PUBLIC: a sensitivity, an interval or an epsilon
that was computed from private data leaks it. --together EPS[,DELTA] divides one budget among all rows, so that the sum
of their variances, each times the weight of --weight-column, is small, and charges it once.

Privacy loss adds up over releases about the same people. A --ledger is for one group of people. It adds the total over
the perturbed columns of every release, and refuses a release that exceeds the budget before a value is perturbed. Of a
local mechanism each row is a person, and one row is charged. Without --ledger that of $DPKERNELS_LEDGER is charged.
Rows of a mechanism with a sensitivity are statistics: --rows same-people charges all of them together, also those that
--missing drops, and --rows different-people charges one. A person with k rows spends k times as much.

If a run fails over its input or is interrupted before its output is in place, its charge is voided. The ledger keeps
both entries. The charge is kept if the run is killed, if its output could not be written, or if part of it may already
have been read: on standard output, or in a store of objects. --check-first finds values that cannot be perturbed before
the charge; --check does only that.

With --force the old OUT and OUT.json stay until the new ones are complete. If a run is killed, the output is either the
old release or the new one, never a mixture. The next run to OUT removes temporary files.

\b
More examples:
  dpkernels perturb in.parquet out.parquet --column age --lower 0 --upper 120 --epsilon 1 \\
      --column income --lower 0 --upper 1e6 --epsilon 0.5
  dpkernels perturb counts.npy out.npy --mechanism laplace --sensitivity 1 --epsilon 0.5 --rows same-people \\
      --ledger people.ledger --budget 5,1e-9
  dpkernels perturb queries.csv out.csv --column answer --sensitivity-column most --together 1,1e-6
  dpkernels perturb - - --format csv --sidecar out.json --column age --lower 0 --upper 120 --epsilon 1 \\
      < in.csv > out.csv
  dpkernels perturb s3://bucket/in s3://bucket/out --engine ray --address auto --column age --lower 0 --upper 120 \\
      --epsilon 1
"""

_MECHANISM = "From `dpkernels mechanisms`. Default: balanced."
_MISSING = "Empty cells, NA, NaN, null: refuse (default), keep, or drop the row, which reveals where."
_LEDGER_VARIABLE = "DPKERNELS_LEDGER"
_LEDGER = "First charge the release to this ledger."
_BUDGET = "Budget of a new ledger."

_MORE_COMPARE = """\b
Examples:
  dpkernels compare --epsilon 1 --lower 0 --upper 120
  dpkernels compare --epsilon 1 --sensitivity 10
  dpkernels compare --epsilon 1 --categories 266
  dpkernels compare --epsilon 1 --lower 0 --upper 120 --sensitivity 10 --plot variances.png
"""

_COMPARED: opts.Options = {
    "lower": (float, "X", "Smallest valid value."),
    "upper": (float, "X", "Largest valid value."),
    "sensitivity": (float, "D", "Largest distance of neighbours: compare noise, and mechanisms for it."),
    "categories": (opts.CategoryList(), "D", "Number of categories: compare the mechanisms for them."),
}


def _refuse_head(context: click.Context, option: click.Parameter, count: str | None) -> None:
    if count is not None:
        raise click.UsageError(
            "--head: reports of some rows are a release of these people's values, at the full cost; --check tries a "
            "command on all rows without one, and a made-up file shows what reports look like"
        )


@dpkernels.command(details=_DETAILS, epilog=_EXAMPLES)
@click.argument("source", metavar="IN", type=opts.SOURCE)
@click.argument("target", metavar="OUT", type=opts.TARGET)
@click.option("--column", "columns", metavar="NAME", multiple=True, help="Column to perturb (not of .npy); repeats.")
@click.option("--mechanism", metavar="NAME", multiple=True, help=_MECHANISM)
@opts.column_options
@click.option("--clip", is_flag=True, help="Clip values outside [lower, upper].")
@click.option("--missing", type=click.Choice(["error", "keep", "drop"]), default="error", help=_MISSING)
@click.option("--ledger", type=opts.OUTPUT, metavar="FILE", multiple=True, help=_LEDGER)
@click.option("--budget", type=opts.NumberList(number=Decimal), metavar="EPS[,DELTA]", multiple=True, help=_BUDGET)
@opts.query_options
@opts.row_options
@opts.engine_options
@_run_option("--check-first", is_flag=True, help="Read every value once before the ledger is charged.")
@_run_option("--progress/--no-progress", default=None, help="Show a progress bar. Default: for long work only.")
@opts.redact_option(_run_option)
@_run_option("--quiet", is_flag=True, help="Print no summary, but warnings.")
@config_options
@_run_option("--label", metavar="TEXT", help="What the ledger calls the charge, besides the names of the files.")
@_run_option("--head", metavar="N", hidden=True, expose_value=False, callback=_refuse_head)
@_run_option("--full-certificate", is_flag=True, help="Write the integers of certificates as numbers, not packed.")
@_run_option("--resume", is_flag=True, help="Continue a killed run of a dataset to OUT, and its charge.")
@click.option("--check", is_flag=True, help="Check every value; charge and write nothing.")
@click.option("--force", is_flag=True, help="Replace OUT and OUT.json if they exist.")
@opts.json_option("Print the summary as JSON.")
@click.pass_context
def perturb(
    context: click.Context, source: Path | str, target: Path | str, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Perturb columns of IN (.csv, .tsv, .parquet, or a whole .npy) into OUT.

    All other columns, and the order of the rows, are copied as they are and are NOT protected. Choose bounds and
    sensitivities without looking at the data. OUT.json, the sidecar, holds a certificate for every column.
    """
    with importing():
        from dpkernels.cli.perturb import plan, summary
        from dpkernels.cli.perturb.request import Request

    check, check_first, progress = (options.pop(name) for name in ("check", "check_first", "progress"))
    runs, save_config = {name: options.pop(name) for name in opts.ENGINE}, options.pop("save_config")
    parameters = {name: options.pop(name) for name in list(options) if name in opts.OPTIONS}  # as the user ordered them
    of_mechanisms = {name: values for name, values in parameters.items() if values}
    names = {name: options.pop(f"{name}_column") for name in opts.QUERY_COLUMNS}
    options["query_columns"] = {name: values for name, values in names.items() if values}
    usual = None if options["ledger"] else _charged_ledger(None)
    if usual is not None:
        options["ledger"] = (usual,)
    request = Request(source, target, of_mechanisms, **options)
    if isinstance(source, Path) and isinstance(target, Path) and not any(runs.values()):
        release: plan.ReleasePlan = plan.plan(request)
    else:
        with importing():
            from dpkernels.cli.dataset import perturb as datasets
            from dpkernels.cli.dataset.engines import engine

        release = datasets.plan(request, engine(runs))
    done, left = release.check(progress) if check else (release.release(progress, check_first), "")
    if save_config is not None:
        try:
            config.save(save_config, context, {} if usual is None else {"ledger": [str(usual)]})
        except OSError as error:  # The release is complete, and its summary is still to be printed.
            warn(f"--save-config: {save_config} could not be written: {error_text(error)}")
    summary.warn_about(done)
    if not quiet or as_json:
        about = done, None if check else (target, release.sidecar)
        result = json.dumps(summary.summary_dict(*about), indent=2) if as_json else summary.summary_lines(*about, left)
        show(result, error=is_stdout_reserved())


_MORE_RELEASE = """\b
Examples:
  dpkernels release people.csv out.csv --person id --rows-per-person 5 --by plan=A,B,C --count \\
      --mean age:0:100 --quantiles income:0:200000:0.1,0.5,0.9 --epsilon 1 --dry-run
  dpkernels release people.csv out.csv --mean age:0:100 --epsilon 0.5 --ledger people.ledger --budget 4
  dpkernels release people.parquet out.csv --by ward=found --count --epsilon 1 --delta 1e-6 --plot wards.png
"""
_STATISTICS = {
    "sum": ("COL:LOW:HIGH", "Sum of values, clipped to [LOW, HIGH]."),
    "mean": ("COL:LOW:HIGH", "Mean of values, clipped to [LOW, HIGH]."),
    "variance": ("COL:LOW:HIGH", "Variance of values, clipped to [LOW, HIGH]."),
    "histogram": ("COL:E,E,...", "Numbers of values between edges."),
    "quantiles": ("COL:LOW:HIGH:P,...", "Quantiles of values in [LOW, HIGH]."),
    "regression": ("Y:LOW:HIGH:X:LOW:HIGH", "Least-squares line of Y on X."),
    "top": ("COL:K:VALUE,...", "The K of the stated values that most persons have; not with --by."),
}


@dpkernels.command(epilog=_MORE_RELEASE)
@click.argument("source", metavar="IN", type=click.Path(exists=True, path_type=Path))
@click.argument("target", metavar="OUT", type=opts.OUTPUT)
@click.option("--person", metavar="COL", help="Column that says whom a row is about. Default: a row is a person.")
@click.option("--rows-per-person", type=click.IntRange(1), metavar="N", help="Most rows of a person; with --person.")
@click.option("--groups-per-person", type=click.IntRange(1), metavar="N", help="Most keys of a person, if found.")
@click.option("--by", metavar="COL=KEY,...", multiple=True, help="Groups of stated keys; COL=found finds them.")
@click.option("--count", is_flag=True, help="Number of rows.")
@opts.together(
    *(click.option(f"--{name}", metavar=form, multiple=True, help=text) for name, (form, text) in _STATISTICS.items())
)
@click.option("--epsilon", type=float, metavar="E", required=True, help="Budget of all statistics together.")
@click.option("--delta", type=float, metavar="D", default=0.0, help="Their delta; keys that are found need one.")
@click.option("--ledger", type=opts.OUTPUT, metavar="FILE", help="First charge this ledger.")
@click.option("--budget", type=opts.NumberList(number=Decimal), metavar="EPS[,DELTA]", help="Budget of a new ledger.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of each interval.")
@click.option("--dry-run", is_flag=True, help="Print expected widths; release and charge nothing.")
@click.option("--rows", type=click.IntRange(1), default=1000, show_default=True, help="Rows of a group, for --dry-run.")
@opts.plot_option("Draw all statistics into this .png.")
@click.option("--force", is_flag=True, help="Replace OUT and OUT.json if they exist.")
@opts.json_option("Print the summary as JSON.")
def release(source: Path, target: Path, by: tuple[str, ...], count: bool, **options: Any) -> None:
    """Release statistics of IN, a CSV or Parquet file of people or a folder of them, into the table OUT.

    Neighbours differ in one person: all rows of one person are added or removed. State bounds, edges and keys
    without looking at the data. Values that are missing, or no numbers, are left out. OUT.json holds the results,
    certificates and charges; `dpkernels certify --verify OUT.json` verifies it.
    """
    with importing():
        from dpkernels.cli import release as releasing

    asked = {name: (form, options.pop(name)) for name, (form, _) in _STATISTICS.items()}
    keys = releasing.groups(by)
    chosen = [releasing.Count(by=keys)] * count + releasing.statistics(asked, keys)
    options["ledger"] = _charged_ledger(options["ledger"])
    show(releasing.release(source, target, chosen, keys, **options).splitlines())


@dpkernels.command(epilog=_MORE_COMPARE)
@opts.table_options({"epsilon": (float, "E", "Privacy budget, 0.01 to 20.")}, required=True)
@opts.table_options(_COMPARED)
@opts.plot_option("Also draw worst-case variances against epsilon into this .png.")
@opts.json_option()
def compare(plot: Path | None, as_json: bool, **options: tuple[Any, ...]) -> None:
    """List every mechanism's variance, distance from the optimum and range of reports, the best worst case first.

    Give --lower and --upper for values in an interval, --sensitivity for a statistic, or all three for a statistic in
    an interval. Give --categories for a choice among several categories.
    """
    with importing():
        from dpkernels.cli import compare as comparing

    given = opts.single(options)
    if "categories" in given:
        from dpkernels.cli.categories import compare_categories

        if plot is not None or len(given) > 2:
            raise click.UsageError("--categories: goes with --epsilon alone")
        _print(compare_categories(**given), as_json)
        return
    _print(comparing.comparison(**given), as_json, plot)


@dpkernels.command()
@click.option("--mechanism", metavar="NAME", multiple=True, help="A mechanism; `dpkernels mechanisms` lists them.")
@opts.mechanism_options
@opts.redact_option()
@opts.json_option("Print JSON, the integer table included.")
@click.option("--verify", type=opts.INPUT, help="Instead, verify every certificate of this OUT.json.")
def certify(mechanism: tuple[str, ...], as_json: bool, verify: Path | None, **options: tuple[Any, ...]) -> None:
    """Print the certificate of a mechanism's integer table, or verify every column of a finished release (--verify).

    --verify also checks the output, which must be beside the sidecar. For a dataset it checks every part, and refuses
    a folder in which a part is missing or altered, or that has a file which the release does not have.
    """
    settings = opts.single({"mechanism": mechanism, **options})
    if verify is not None:
        if settings:
            raise click.UsageError("--verify: takes no other option but --json and --redact")
        if _may_be_session(verify):
            with importing():
                from dpkernels.cli import release as releasing

            if releasing.is_session(verify):
                _print(releasing.verified(verify), as_json)
                return
        with importing():
            from dpkernels.cli.perturb.verify import Findings

        findings = Findings.from_sidecar(verify)
        if not as_json:
            show(findings.lines)
        elif not findings.problem:
            show(json.dumps(findings.to_dict(), indent=2))
        findings.check()
        return
    if not mechanism:
        raise click.UsageError("--mechanism: missing (or give --verify FILE)")
    with importing():
        from dpkernels.cli.perturb.verify import MechanismCertificate, build_exact_sampler

    _print(MechanismCertificate(*build_exact_sampler(settings.pop("mechanism"), settings)), as_json)


@dpkernels.command()
@click.argument("file", type=opts.INPUT)
@opts.json_option()
def ledger(file: Path, as_json: bool) -> None:
    """Print the budget of FILE, a ledger of `dpkernels perturb --ledger`, what is spent and left, and every charge."""
    from dpkernels.cli import ledger as ledgers

    _print(ledgers.Report(file, ledgers.Ledger(file).state()), as_json)


@dpkernels.command()
@opts.json_option()
def mechanisms(as_json: bool) -> None:
    """List every mechanism and its options."""
    from dpkernels.cli.mechanisms import listing, listing_dict

    show(json.dumps(listing_dict(), indent=2) if as_json else listing())


@dpkernels.command()
@click.option("--output", type=opts.OUTPUT, metavar="FILE", help="Write the page to this file instead of opening it.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--print", "only_print", is_flag=True, help="Print where the page is, and open nothing.")
@opts.json_option()
def explore(output: Path | None, force: bool, only_print: bool, as_json: bool) -> None:
    """Open a page in the browser that helps to choose a mechanism. It is one file and works offline.

    It ranks mechanisms by error for a budget, or by budget for an accuracy, draws reports and their privacy, and writes
    the lines of Python and the command that make them. On a machine without a browser, --output writes the page to a
    file to open elsewhere.
    """
    from dpkernels.cli.explorer import page

    if output is not None:
        if output.exists() and not force:
            raise click.UsageError(f"--output: {output} exists; --force replaces it")
        if not output.parent.is_dir():
            raise click.UsageError(f"--output: the folder {output.parent} does not exist")
        page.write(output)
        show(json.dumps({"page": str(output)}) if as_json else [str(output)])
        return
    place, is_open = page.cached_page().as_uri(), only_print
    with suppress(webbrowser.Error):
        is_open = is_open or webbrowser.open(place)
    if not is_open:
        raise click.ClickException(f"no browser opened {place}; --output FILE writes the page to a file")
    show(json.dumps({"page": place}) if as_json else [place])
