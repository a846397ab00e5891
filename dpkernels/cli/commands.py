"""The subcommands and their options; the work is imported when one runs."""

from __future__ import annotations

from pathlib import Path

import click

import dpkernels as package

_INPUT = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, path_type=Path)

_EXAMPLES = """\b
Examples:
  dpkernels perturb in.csv out.csv --column age --lower 0 --upper 120 --epsilon 1
  dpkernels perturb in.parquet out.parquet --column age --lower 0 --upper 120 --epsilon 1 \\
      --column income --lower 0 --upper 1e6 --epsilon 0.5
"""


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package.__version__, prog_name="dpkernels")
@click.pass_context
def dpkernels(context: click.Context) -> None:
    """Differential-privacy noise: bounded, unbiased, released by certified integer samplers."""
    if context.invoked_subcommand is None:
        raise click.UsageError(f"a subcommand is missing, one of {', '.join(dpkernels.commands)}")


@dpkernels.command(epilog=_EXAMPLES)
@click.argument("source", metavar="IN", type=_INPUT)
@click.argument("target", metavar="OUT", type=_OUTPUT)
@click.option("--column", "columns", metavar="NAME", multiple=True, help="A column to perturb (not for .npy).")
@click.option("--lower", type=float, multiple=True, required=True, help="Smallest valid value.")
@click.option("--upper", type=float, multiple=True, required=True, help="Largest valid value.")
@click.option("--epsilon", type=float, multiple=True, required=True, help="Privacy budget of each value, 0.01 to 20.")
@click.option(
    "--mechanism",
    metavar="NAME",
    multiple=True,
    default=["piecewise"],
    help="What draws the noise, piecewise by default; `dpkernels compare` lists them.",
)
@click.option("--clip", is_flag=True, help="Clip values outside [lower, upper] instead of refusing them.")
@click.option("--force", is_flag=True, help="Replace OUT and OUT.json if they exist.")
@click.option("--progress/--no-progress", default=None, help="Show a bar; by default for long work.")
def perturb(
    source: Path,
    target: Path,
    columns: tuple[str, ...],
    lower: tuple[float, ...],
    upper: tuple[float, ...],
    epsilon: tuple[float, ...],
    mechanism: tuple[str, ...],
    clip: bool,
    force: bool,
    progress: bool | None,
) -> None:
    """Perturb columns of IN (.csv or .parquet), or the whole array of a .npy, into OUT of the same format.

    --column repeats; --lower, --upper, --epsilon and --mechanism are given once for every column, or once a
    column in the same order. All other columns are copied as they are and are NOT protected.

    Bounds must be known without looking at the data. A certificate for every column is written to OUT.json.
    """
    from dpkernels.cli.perturb import perturb_file, plan

    release = plan(source, target, columns, (mechanism, lower, upper, epsilon), clip=clip, force=force)
    for line in perturb_file(release, progress):
        click.echo(line)


@dpkernels.command()
@click.option("--epsilon", type=float, required=True, help="Privacy budget, 0.01 to 20.")
@click.option("--lower", type=float, required=True, help="Smallest valid value.")
@click.option("--upper", type=float, required=True, help="Largest valid value.")
@click.option("--plot", type=_OUTPUT, help="Also draw worst-case variances against epsilon into this .png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(epsilon: float, lower: float, upper: float, plot: Path | None, as_json: bool) -> None:
    """Every mechanism's variance and range of reports, the best worst case first."""
    from dpkernels.cli.compare import as_table, comparison

    rows = comparison(epsilon, lower, upper)
    if plot is not None:
        from dpkernels.cli.plot import draw

        draw(plot, epsilon)
    click.echo(_json(rows) if as_json else as_table(rows, epsilon, lower, upper))


@dpkernels.command()
@click.option("--mechanism", metavar="NAME", help="A mechanism; `dpkernels compare` lists them.")
@click.option("--epsilon", type=float, help="Privacy budget, 0.01 to 20.")
@click.option("--lower", type=float, help="Smallest valid value.")
@click.option("--upper", type=float, help="Largest valid value.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, the integer table included.")
@click.option("--verify", type=_INPUT, help="Verify every certificate of this OUT.json again instead.")
def certify(
    mechanism: str | None,
    epsilon: float | None,
    lower: float | None,
    upper: float | None,
    as_json: bool,
    verify: Path | None,
) -> None:
    """The certificate of a mechanism's integer table, or (--verify) of every column of a finished release."""
    from dpkernels.cli import certify as certificates

    wanted = {"--mechanism": mechanism, "--epsilon": epsilon, "--lower": lower, "--upper": upper}
    missing = [name for name, value in wanted.items() if value is None]
    if verify is not None:
        if len(missing) < len(wanted) or as_json:
            raise click.UsageError("--verify: takes no other option")
        click.echo("\n".join(certificates.verify(verify)))
        return
    if mechanism is None or epsilon is None or lower is None or upper is None:
        raise click.UsageError(f"{', '.join(missing)}: missing (or give --verify FILE)")
    report = certificates.Report.of(mechanism, epsilon, lower, upper)
    click.echo(_json(report.to_dict()) if as_json else str(report))


def _json(form: object) -> str:
    import json

    return json.dumps(form, indent=2)
