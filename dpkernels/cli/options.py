"""The options that commands share, and their help: one screen by ``--help``, everything by ``--help-all``."""

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


class NumberList(click.ParamType):
    """Numbers separated by commas, such as 1,0.5.

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
            self.fail(f"{value!r} must be numbers separated by commas")


class Command(click.Command):
    """A command whose ``--help`` fits on one screen.

    Options with a section are rare: ``--help`` lists their names, and ``--help-all`` explains them.

    Args:
        details: text that ``--help-all`` shows below the summary.
    """

    def __init__(self, *args: Any, details: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.details = details
        if details or any(map(_section, self.params)):
            show = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all)
            show.help = "Show all options" + (" and details." if details else ".")
            self.params.append(show)

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(context, formatter)
        if _ALL in context.meta and self.details:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(self.details)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[click.Parameter]] = {"": []}
        for parameter in self.get_params(context):
            if isinstance(parameter, click.Argument):
                continue
            sections.setdefault(_section(parameter), []).append(parameter)
        rare = {name: found for name, found in sections.items() if name}
        shown = sections if _ALL in context.meta else {"": sections[""]}
        for name, found in shown.items():
            with formatter.section(name or "Options"):
                formatter.write_dl([record for one in found if (record := one.get_help_record(context))])
        if rare and _ALL not in context.meta:
            with formatter.section("More options, explained by --help-all"):
                formatter.write_dl([(name, ", ".join(one.opts[0] for one in found)) for name, found in rare.items()])


_ALL = "dpkernels.help_all"


def _section(parameter: click.Parameter) -> str:
    return getattr(parameter, "section", "")


def _show_all(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()


class _Option(click.Option):
    """An option in a section of ``--help-all``."""

    def __init__(self, *args: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


def option(*names: str, section: str = "", **settings: Any) -> Decorator:
    """Give a command an option; with a section it is a rare one."""
    return click.option(*names, cls=_Option, section=section, **settings)


Function = Callable[..., object]
Decorator = Callable[[Function], Function]


def together(*decorators: Decorator) -> Decorator:
    """Give a command several options, in the order of its help."""

    def give(function: Function) -> Function:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return give


# Type, metavar and help by name, in the order in which help shows them.
Options = dict[str, tuple[type | click.ParamType, str | None, str]]

# What most mechanisms have.
_USUAL: Options = {
    "epsilon": (float, "E", "Privacy budget of each value, 0.01 to 20."),
    "delta": (float, "D", "Delta of each value, in (0, 1) (additive)."),
    "sensitivity": (float, "D", "Largest distance of neighbouring true values (additive, central)."),
    "lower": (float, "X", "Smallest valid value (bounded)."),
    "upper": (float, "X", "Largest valid value (bounded)."),
}
_PARAMETERS: Options = {
    "objective": (
        click.Choice(["variance", "distribution"]),
        "NAME",
        "What balanced, closed-form and auto optimise: the variance of a report (default), or the distribution.",
    ),
    "share": (float, "S", "Probability of piecewise in hybrid, in (0, 1). Default: of the lowest worst-case variance."),
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
    "rates": (NumberList(), "R,R,..", "Slopes of the log-density of the noise, from 0 outwards."),
    "breaks": (NumberList(may_be_none=True), "C,..", "Where the slopes change; one fewer than rates."),
}

OPTIONS = _USUAL | _PARAMETERS


def flag(name: str) -> str:
    """Return the option as a user types it."""
    return "--" + name.replace("_", "-")


def flags(names: Iterable[str]) -> str:
    """Options in a sentence: --a, --b and --c."""
    *most, last = map(flag, names)
    return f"{', '.join(most)} and {last}" if most else last


def options_of(table: Options, section: str = "", *, required: bool = False) -> Decorator:
    """Give a command the options of a table; ``single`` reads them.

    All may repeat: click would drop all but the last in silence.
    """
    usual: dict[str, Any] = {"section": section, "required": required, "multiple": True}
    return together(
        *(
            option(flag(name), name, type=kind, metavar=metavar, help=text, **usual)
            for name, (kind, metavar, text) in table.items()
        )
    )


mechanism_options = together(options_of(_USUAL), options_of(_PARAMETERS, "Mechanism parameters"))

_ROWS = "Rows and formats"
row_options = together(
    option("--round", "decimals", section=_ROWS, type=click.IntRange(0, 15), metavar="N", help="Decimals of reports."),
    option(
        "--shuffle-rows",
        section=_ROWS,
        is_flag=True,
        help="Put the rows into a random order. They are held in memory, at most 1 GiB.",
    ),
    option(
        "--format",
        "kind",
        section=_ROWS,
        type=click.Choice(list(FORMATS)),
        help="Format of IN and OUT. Default: from their suffixes.",
    ),
    option("--delimiter", section=_ROWS, metavar="C", help="What separates the cells of a csv or tsv."),
    option("--multiline", section=_ROWS, is_flag=True, help="Allow line breaks in quoted cells of a csv or tsv."),
    option(
        "--sidecar",
        section=_ROWS,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Where to write the certificates if OUT is -.",
    ),
)

_DATASET = "Datasets of many files"
engine_options = together(
    option(
        "--engine",
        section=_DATASET,
        type=click.Choice(["local", "ray"]),
        help="What runs the parts: threads of this process (default), or tasks of a Ray cluster.",
    ),
    option(
        "--address",
        section=_DATASET,
        metavar="ADDRESS",
        help="Address of the Ray cluster; auto is the one of this machine. Default: a new one that ends with the "
        "command.",
    ),
    option(
        "--task-cpus", section=_DATASET, type=click.FloatRange(0, min_open=True), help="CPUs of a task. Default: 1."
    ),
    option("--task-gpus", section=_DATASET, type=click.IntRange(0, 1), help="GPUs of a task. Default: 0."),
    option("--task-resource", section=_DATASET, metavar="NAME=N", multiple=True, help="Another resource of a task."),
    option("--retries", section=_DATASET, type=click.IntRange(0), help="Further attempts for a part. Default: 10."),
)
ENGINE = ("engine", "address", "task_cpus", "task_gpus", "task_resource", "retries")


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
