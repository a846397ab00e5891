"""The options that commands share, and those that describe a mechanism or what runs a dataset."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.files.layout import FORMATS

INPUT = click.Path(exists=True, dir_okay=False, path_type=Path)


class _OutputFile(click.Path):
    """A file that is written, by its name: not standard output, for which other programs take -."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) in ("", "-"):
            self.fail("an empty name" if not str(value) else "- is not a file; ./- is one of this name", param, ctx)
        return super().convert(value, param, ctx)


OUTPUT = _OutputFile(dir_okay=False, path_type=Path)


class Numbers(click.ParamType):
    """Numbers with commas between, such as 1,0.5.

    Args:
        may_be_none: whether an empty string is allowed, for no numbers.
    """

    name = "numbers"

    def __init__(self, may_be_none: bool = False) -> None:
        self.may_be_none = may_be_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        if self.may_be_none and not value:
            return ()
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not numbers with commas between")


# Type, metavar and help by name, in the order in which help shows them.
Options = dict[str, tuple[type | click.ParamType, str | None, str]]

OPTIONS: Options = {
    "epsilon": (float, "E", "Privacy budget of each value, 0.01 to 20."),
    "delta": (float, "D", "Delta of each value, in (0, 1) (additive mechanisms)."),
    "sensitivity": (float, "D", "Largest distance of neighbouring true values (additive and central mechanisms)."),
    "lower": (float, "X", "Smallest valid value (bounded mechanisms)."),
    "upper": (float, "X", "Largest valid value (bounded mechanisms)."),
    "objective": (
        click.Choice(["variance", "distribution"]),
        "NAME",
        "What auto optimises: the variance of a report (default) or the distribution of the values.",
    ),
    "eta": (float, "N", "Output width over window width of piecewise, above 1. Default: of least worst-case variance."),
    "half_width": (
        float,
        "B",
        "Half the window of square-wave, in widths of the interval. Default: the published one.",
    ),
    "sigma": (float, "S", "Standard deviation of Gaussian noise. Default: the least for epsilon and delta."),
    "scale": (float, "B", "Scale of the Laplace kernel of recycled-laplace. Default: the best."),
    "theta": (float, "T", "Tolerated error of budget recycling: noise beyond it is redrawn with probability q."),
    "q": (float, "Q", "Probability of a redraw, in [0, 1). Default: the best for epsilon and delta."),
    "bound": (float, "T", "Largest noise of truncated-gaussian. Default: from delta."),
    "noise_upper": (float, "B", "Largest noise of truncated-laplace. Default: that of symmetric noise."),
    "degrees": (float, "NU", "Degrees of freedom of student noise, 3 to 1000. Default: 5."),
    "gamma": (float, "G", "Share of the high steps of the noise, in [0, 1]. Default: of least error."),
    "step": (float, "H", "Distance of the values of discrete noise, a short binary fraction. Default: 1."),
    "rates": (Numbers(), "R,R,..", "Slopes of the log-density of the noise, from 0 outwards."),
    "breaks": (Numbers(may_be_none=True), "C,..", "Where the slopes change; one fewer than rates."),
}


_FILE_OPTIONS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        ("--missing",),
        {
            "type": click.Choice(["error", "keep", "drop"]),
            "default": "error",
            "help": "What to do with empty, NA, NaN and null: refuse (default), keep, or drop the row. With keep "
            "and drop, the release reveals which values are missing.",
        },
    ),
    (
        ("--round", "decimals"),
        {"type": click.IntRange(0, 15), "metavar": "N", "help": "Round reports to N decimals."},
    ),
    (
        ("--shuffle-rows",),
        {"is_flag": True, "help": "Put the rows into a random order. They are held in memory, at most 1 GiB."},
    ),
    (
        ("--format", "kind"),
        {"type": click.Choice(list(FORMATS)), "help": "Format of IN and OUT. Default: from their suffixes."},
    ),
    (("--delimiter",), {"metavar": "C", "help": "What separates the cells of a csv or tsv."}),
    (("--multiline",), {"is_flag": True, "help": "Allow line breaks in quoted cells of a csv or tsv."}),
    (
        ("--sidecar",),
        {
            "type": click.Path(dir_okay=False, path_type=Path),
            "metavar": "FILE",
            "help": "Where to write the certificates if OUT is -.",
        },
    ),
]


def flag(name: str) -> str:
    """Return the option as a user types it."""
    return "--" + name.replace("_", "-")


def flags(names: Iterable[str]) -> str:
    """Options in a sentence: --a, --b and --c."""
    *most, last = map(flag, names)
    return f"{', '.join(most)} and {last}" if most else last


Command = Callable[..., object]
Decorator = Callable[[Command], Command]


def options_of(table: Options, *, required: bool = False) -> Decorator:
    """Give a command the options of a table; ``single`` reads them.

    All may repeat: click would drop all but the last in silence.
    """

    def give(command: Command) -> Command:
        for name, (kind, metavar, text) in reversed(table.items()):
            command = click.option(
                flag(name), name, type=kind, metavar=metavar, required=required, multiple=True, help=text
            )(command)
        return command

    return give


mechanism_options = options_of(OPTIONS)


def plot_option(text: str) -> Decorator:
    """Give a command ``--plot``, a .png to draw into."""
    return click.option("--plot", type=OUTPUT, help=text, callback=_check_picture)


def _check_picture(context: click.Context, option: click.Parameter, target: Path | None) -> Path | None:
    """Refuse, before the work, a picture that could not be written."""
    if target is not None and (target.suffix.lower() != ".png" or not target.parent.is_dir()):
        raise click.UsageError(f"--plot: {target} must be a .png in an existing folder")
    return target


def json_option(text: str = "Print JSON.") -> Decorator:
    """Give a command ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def file_options(command: Command) -> Command:
    """Give a command what is said of files and their rows besides noise."""
    for names, settings in reversed(_FILE_OPTIONS):
        command = click.option(*names, **settings)(command)
    return command


def single(given: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the options that were given, of a command that takes each once.

    Raises:
        click.UsageError: one was given twice.
    """
    for name, values in given.items():
        if len(values) > 1:
            raise click.UsageError(f"{flag(name)}: given {len(values)} times; give it once")
    return {name: values[0] for name, values in given.items() if values}


_WILD = re.compile(r"[*?\[]")

_ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "--engine": {
        "type": click.Choice(["local", "ray"]),
        "help": "What runs the parts of a dataset: threads of this process (default), or tasks of a Ray cluster.",
    },
    "--address": {
        "metavar": "ADDRESS",
        "help": "Of the Ray cluster, auto for that of this machine; by default one that ends with the command.",
    },
    "--task-cpus": {"type": click.FloatRange(0, min_open=True), "help": "CPUs of a task of Ray, 1 by default."},
    "--task-gpus": {"type": click.IntRange(0, 1), "help": "GPUs of a task of Ray, 0 by default."},
    "--task-resource": {"metavar": "NAME=N", "multiple": True, "help": "Another resource of a task of Ray."},
    "--retries": {"type": click.IntRange(0), "help": "How often Ray tries a part again, 10 by default."},
}

ENGINE = [name[2:].replace("-", "_") for name in _ENGINE_OPTIONS]


class Input(click.Path):
    """A file; or, as it was given, a folder, a pattern or an URI."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("an empty name; . is the current folder", param, ctx)
        return value if is_dataset(str(value)) else super().convert(value, param, ctx)


class Target(click.Path):
    """A file or folder; an URI, as it was given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("an empty name", param, ctx)
        return value if "://" in str(value) else super().convert(value, param, ctx)


def is_dataset(text: str) -> bool:
    """Return whether an argument names a folder, an URI or, where no file has this name, a pattern."""
    return (
        "://" in text or (bool(text) and Path(text).is_dir()) or (bool(_WILD.search(text)) and not Path(text).exists())
    )


def engine_options(command: Command) -> Command:
    """Give a command what says how a dataset's parts are run."""
    for name, settings in reversed(_ENGINE_OPTIONS.items()):
        command = click.option(name, **settings)(command)
    return command
