"""``dpkernels estimate``: the mean behind a column of a released dataset."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dpkernels.cli.dataset.options import ENGINE, engine, engine_options
from dpkernels.cli.interrupts import importing
from dpkernels.cli.text import as_text


@click.command()
@click.argument("folder", metavar="OUT")
@click.option("--column", metavar="NAME", help="A perturbed column (not for .npy).")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the intervals, in (0, 1).")
@engine_options
@click.option("--progress/--no-progress", default=None, help="Show a bar; by default for long work.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def estimate(
    folder: str, column: str | None, confidence: float, progress: bool | None, as_json: bool, **options: Any
) -> None:
    """The mean of the values behind a column of OUT, a folder or URI that `dpkernels perturb` has filled."""
    with importing():
        from dpkernels.cli.dataset.estimate import mean

    found = mean(folder, column, confidence, engine({name: options[name] for name in ENGINE}), progress)
    if as_json:
        click.echo(as_text(asdict(found)))
        return
    click.echo(f"mean {found.value:.9g} of {found.count} reports, at confidence {found.confidence:.9g} within")
    click.echo(f"  {found.interval[0]:.9g} to {found.interval[1]:.9g} (normal, for many reports)")
    click.echo(f"  {found.bernstein[0]:.9g} to {found.bernstein[1]:.9g} (Bernstein, for any number)")
