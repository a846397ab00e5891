"""The subcommands and their options, but for ``analysis``; the work is imported when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import dpkernels as package
from dpkernels.cli.analysis import account, drawable, estimate, tune
from dpkernels.cli.dataset.options import ENGINE, Input, Target, engine, engine_options
from dpkernels.cli.files.layout import DASH, layout
from dpkernels.cli.interrupts import importing
from dpkernels.cli.mechanisms.options import (
    INPUT,
    OUTPUT,
    Numbers,
    Options,
    file_options,
    json_option,
    mechanism_options,
    options_of,
    plot_option,
    single,
)
from dpkernels.cli.text import as_text

_STREAM = Input(exists=True, dir_okay=False, path_type=Path, allow_dash=True)
_TARGET = Target(path_type=Path)

_EXAMPLES = """\b
Examples:
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1
  dpkernels perturb in.parquet out.parquet --column age --lower 0 --upper 120 --epsilon 1 \\
      --column income --lower 0 --upper 1e6 --epsilon 0.5
  dpkernels perturb in.npy out.npy --mechanism laplace --sensitivity 1 --epsilon 0.5
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1 --ledger people.ledger --budget 5
  dpkernels perturb - - --format csv --sidecar out.json --column age --lower 0 --upper 120 --epsilon 1 \\
      < in.csv > out.csv
  dpkernels perturb s3://bucket/in s3://bucket/out --engine ray --address auto --column age --lower 0 --upper 120 \\
      --epsilon 1
"""

_COMPARED: Options = {
    "epsilon": (float, None, "Privacy budget, 0.01 to 20."),
    "lower": (float, None, "Smallest valid value."),
    "upper": (float, None, "Largest valid value."),
}

_OVERVIEW = """\b
Examples:
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1
  dpkernels perturb in.csv out.csv --column pay --mechanism gaussian --sensitivity 1 --epsilon 1 --delta 1e-6
  dpkernels certify --verify out.csv.json
  dpkernels estimate out.csv --column age
  dpkernels compare --epsilon 1 --lower 0 --upper 120
  dpkernels account recycled-gaussian --theta 3 --sensitivity 1 --epsilon 1 --delta 1e-6 --plot out.png
  dpkernels tune --epsilon 1 --delta 1e-5 --sensitivity 1 --objective acceptance --theta 2
  dpkernels mechanisms
  dpkernels explore
  dpkernels ledger people.ledger

\b
Exit codes:
  0  done; of perturb: OUT and OUT.json are complete, even if a summary could not be printed
  1  failed or interrupted, with one line that says why; nothing was written. A charge to a ledger is voided
     if nothing of the release can be known; else it stays, and the line says so
  2  a wrong option or argument; nothing was charged or written
"""


@click.group(
    epilog=_OVERVIEW,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package.__version__, prog_name="dpkernels")
@click.pass_context
def dpkernels(context: click.Context) -> None:
    """Differential-privacy noise, bounded or additive, released by certified integer samplers."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@dpkernels.command(epilog=_EXAMPLES)
@click.argument("source", metavar="IN", type=_STREAM)
@click.argument("target", metavar="OUT", type=_TARGET)
@click.option("--column", "columns", metavar="NAME", multiple=True, help="A column to perturb (not for .npy).")
@click.option(
    "--mechanism",
    metavar="NAME",
    multiple=True,
    default=["closed-form"],
    help="What draws the noise: by default closed-form, that of piecewise, hybrid and duchi of least worst-case "
    "variance for the budget (which, is printed); auto tries the linear program's optimum too. "
    "`dpkernels mechanisms` lists them with their options.",
)
@mechanism_options
@click.option("--clip", is_flag=True, help="Clip values outside [lower, upper] instead of refusing them.")
@click.option(
    "--ledger",
    type=OUTPUT,
    metavar="FILE",
    multiple=True,
    help="Charge a row's total to this ledger first, and refuse what would exceed its budget.",
)
@click.option(
    "--budget",
    type=Numbers(),
    metavar="EPS[,DELTA]",
    multiple=True,
    help="Budget of FILE: makes FILE, or must be that of the FILE there is. Additive noise needs a DELTA.",
)
@file_options
@engine_options
@click.option("--force", is_flag=True, help="Replace OUT and OUT.json if they exist.")
@click.option("--check", is_flag=True, help="Check options, ledger and every value; charge and write nothing.")
@click.option("--check-first", is_flag=True, help="Read every value once before the ledger is charged.")
@click.option("--progress/--no-progress", default=None, help="Show a bar; by default for long work.")
@click.option("--quiet", is_flag=True, help="Print no summary.")
@json_option("Print the summary as JSON.")
def perturb(
    source: Path | str,
    target: Path | str,
    columns: tuple[str, ...],
    mechanism: tuple[str, ...],
    clip: bool,
    ledger: tuple[Path, ...],
    budget: tuple[tuple[float, ...], ...],
    force: bool,
    check: bool,
    check_first: bool,
    progress: bool | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Perturb columns of IN (.csv, .tsv, .parquet), or the whole array of a .npy, into OUT of the same format.

    IN may be a dataset: a folder, a pattern such as 'in/*.parquet', or an URI such as s3://bucket/in. Then OUT is a new
    folder or an URI, its sidecar is _release.json there, and --engine ray spreads the parts over a cluster.

    --column repeats; --mechanism is given once for every column, or once a column in the same order. Any other option
    of a mechanism is given once for all columns whose mechanism has it, or once for each of these, in the same order.
    All other columns, and the order of the rows, are copied as they are and are NOT protected. A csv
    or tsv may be .gz, or - for standard input and output.

    Bounds and sensitivities must be known without looking at the data. A certificate for every column is written to
    OUT.json.

    What is released about the same people adds up. A --ledger is for one group of people, one row each: it adds a
    row's total over the perturbed columns of every release, whatever the file, and refuses before it reads the data.
    Someone with k rows spends k times as much.

    A run that fails over its input, or is interrupted, before its output is in place voids its charge; the ledger
    keeps both entries. The charge stays if the run is killed, if its output could not be written, or if part of it
    may have been read: on standard output, or in a store of objects. --check-first finds values that cannot be
    perturbed before the charge, and --check does nothing but find them.

    With --force the old OUT and OUT.json stay until the new ones are complete; a run that is killed leaves the old
    release or the new one, and the next run to OUT removes what else it left.

    In a folder, files whose names begin with . or _ are not read, and the command names them. Anything else that is
    not a readable file is refused.
    """
    with importing():
        from dpkernels.cli.files.handling import Handling
        from dpkernels.cli.release import summary

    charged = single({"ledger": ledger, "budget": budget})
    runs = {name: options.pop(name) for name in ENGINE}
    form = tuple(options.pop(name) for name in ("kind", "delimiter", "multiline"))
    handling = Handling(*(options.pop(name) for name in ("missing", "decimals", "shuffle_rows")))
    common = {"clip": clip, "force": force, "charged": charged, "handling": handling, "sidecar": options.pop("sidecar")}
    wanted = columns, mechanism, _given(options)
    work: Any
    if isinstance(source, Path) and isinstance(target, Path) and not any(runs.values()):
        with importing():
            from dpkernels.cli import perturb as one_file

        release: Any = one_file.plan(source, target, *wanted, form=layout(source, target, *form), **common)
        work = one_file.check_file, one_file.perturb_file
    else:
        with importing():
            from dpkernels.cli.dataset import release as datasets

        release = datasets.plan(str(source), str(target), *wanted, form=form, engine=engine(runs), **common)
        work = datasets.check, datasets.release
    done, left = work[0](release, progress) if check else (work[1](release, progress, check_first), [])
    if not quiet:
        told = done, release.copied, None if check else (target, release.sidecar)
        text = as_text(summary.to_dict(*told)) if as_json else "\n".join(summary.lines(*told, left))
        click.echo(text, err=target == DASH)


@dpkernels.command()
@options_of(_COMPARED, required=True)
@options_of({"sensitivity": (float, None, "Also compare mechanisms for neighbours at most so far apart.")})
@plot_option("Also draw worst-case variances against epsilon into this .png.")
@json_option()
def compare(plot: Path | None, as_json: bool, **options: tuple[float, ...]) -> None:
    """Every mechanism's variance, distance from the optimum and range of reports, the best worst case first."""
    with importing():
        from dpkernels.cli.compare import as_table, comparison

    drawable(plot)
    given = single(options)
    rows = comparison(**given)
    if plot is not None:
        from dpkernels.cli.plot import draw

        draw(plot, **given)
    click.echo(as_text(rows) if as_json else as_table(rows, given["epsilon"], given["lower"], given["upper"]))


@dpkernels.command()
@click.option("--mechanism", metavar="NAME", multiple=True, help="A mechanism; `dpkernels mechanisms` lists them.")
@mechanism_options
@json_option("Print JSON, the integer table included.")
@click.option("--verify", type=INPUT, help="Verify every certificate of this OUT.json again instead.")
def certify(mechanism: tuple[str, ...], as_json: bool, verify: Path | None, **options: tuple[Any, ...]) -> None:
    """The certificate of a mechanism's integer table, or (--verify) of every column of a finished release.

    --verify checks the output as well. Of a dataset it checks every part, and refuses a folder in which a part is
    missing or altered, or that has a file which the release does not.
    """
    wanted = single({"mechanism": mechanism, **options})
    if verify is not None:
        if wanted or as_json:
            raise click.UsageError("--verify: takes no other option")
        with importing():
            from dpkernels.cli.release.verify import verify as verified

        click.echo("\n".join(verified(verify)))
        return
    if not mechanism:
        raise click.UsageError("--mechanism: missing (or give --verify FILE)")
    with importing():
        from dpkernels.cli.certify import Report

    report = Report.of(wanted.pop("mechanism"), wanted)
    click.echo(as_text(report.to_dict()) if as_json else str(report))


@dpkernels.command()
@click.argument("file", type=INPUT)
@json_option()
def ledger(file: Path, as_json: bool) -> None:
    """The budget of FILE, a ledger of `dpkernels perturb --ledger`, what is spent and left, and every charge."""
    from dpkernels.cli import ledger as ledgers

    click.echo(as_text(ledgers.to_dict(file)) if as_json else "\n".join(ledgers.listing(file)))


@dpkernels.command()
def mechanisms() -> None:
    """Every mechanism and its options."""
    from dpkernels.cli.mechanisms.mechanism_table import listing

    click.echo("\n".join(listing()))


@dpkernels.command()
@click.option("--output", type=OUTPUT, metavar="FILE", help="Write the page to this file instead of opening it.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--print", "only_print", is_flag=True, help="Print where the page is, and open nothing.")
def explore(output: Path | None, force: bool, only_print: bool) -> None:
    """A page to choose a mechanism with, opened in the browser. It is part of the package and works offline.

    It ranks mechanisms by error for a budget, or by budget for an accuracy, draws reports and what they reveal, and
    writes the lines of Python and the command that make them. On a machine without a browser, --output writes the page
    to a file to open elsewhere.
    """
    from dpkernels.cli.explorer import page

    if output is not None:
        page.write(output, force)
    elif not only_print and not page.opened():
        raise click.ClickException(f"no browser opened {page.PAGE.as_uri()}; --output FILE writes the page to a file")
    click.echo(page.PAGE.as_uri() if output is None else output)


def _given(options: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {name: values for name, values in options.items() if values}


for _one in (account, estimate, tune):
    dpkernels.add_command(_one)
