"""The options that commands share, and their help: one screen by ``--help``, everything by ``--help-all``."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from dpkernels.cli.calendar import parse_date
from dpkernels.cli.errors import error_text
from dpkernels.cli.files.layout import DASH, FORMATS
from dpkernels.cli.terminal import redact, reserve_stdout, show

OptionValues = Mapping[str, Any]  # By the names of options, each of a type of its own: numbers, texts, tuples, paths.


def is_dataset(text: str) -> bool:
    """Return whether an argument names a folder, an URI or, where no file has this name, a pattern."""
    has_wildcard = re.search(r"[*?\[]", text) is not None
    return "://" in text or (bool(text) and Path(text).is_dir()) or (has_wildcard and not Path(text).exists())


class _PathArgument(click.Path):
    """A file or folder. ``refusals`` maps refused names to reasons; URIs and datasets pass through unchanged."""

    def __init__(
        self, refusals: dict[str, str], is_passed_through: Callable[[str], bool] = lambda _: False, **settings: Any
    ) -> None:
        super().__init__(path_type=Path, **settings)
        self.refusals, self.is_passed_through = refusals, is_passed_through

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if (text := str(value)) in self.refusals:
            self.fail(self.refusals[text], param, ctx)
        return value if self.is_passed_through(text) else super().convert(value, param, ctx)


T = TypeVar("T")

INPUT = click.Path(exists=True, dir_okay=False, path_type=Path)
# Not standard output, for which other programs take -.
OUTPUT = _PathArgument({"": "an empty name", "-": "- is not a file; ./- is one of this name"}, dir_okay=False)
_NO_NAME = {"": "an empty name; . is the current folder"}
REPORTS = _PathArgument(_NO_NAME, is_dataset, exists=True, dir_okay=False)
SOURCE = _PathArgument(_NO_NAME, is_dataset, exists=True, dir_okay=False, allow_dash=True)
TARGET = _PathArgument({"": "an empty name"}, lambda text: "://" in text)


def date_or_number(text: str) -> date | float:
    """Return the number or the date of a text; ValueError for any other."""
    try:
        return float(text)
    except ValueError:
        return parse_date(text)


class _Parsed(click.ParamType, abc.ABC):
    """A text that is parsed. Values that are no text were parsed before."""

    allowed = ""  # in words

    @abc.abstractmethod
    def parse(self, text: str) -> object:
        """Return the value of a text; ValueError or ArithmeticError if it is not allowed."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except (ValueError, ArithmeticError):
            self.fail(f"{value!r} must be {self.allowed}", param, ctx)


class NumberList(_Parsed):
    """Numbers separated by commas, such as 1,0.5; or none, if that is allowed."""

    name, allowed = "numbers", "numbers separated by commas"

    def __init__(self, may_be_none: bool = False, number: Callable[[str], object] = float) -> None:
        self.may_be_none, self.number = may_be_none, number

    def parse(self, text: str) -> tuple[object, ...]:
        return () if self.may_be_none and not text else tuple(self.number(number) for number in text.split(","))


class DateOrNumber(_Parsed):
    """A number, or a date such as 2020-02-29."""

    name, allowed = "number or date", "a number, or of dates a date such as 2020-02-29"

    def parse(self, text: str) -> date | float:
        return date_or_number(text)


class DateOrigin(_Parsed):
    """A date, for all columns or, as NAME=DATE, for one."""

    name, allowed = "date", "a date such as 1900-01-01, or NAME=DATE"

    def parse(self, text: str) -> tuple[str | None, date]:
        name, equals, day = text.rpartition("=")
        return name if equals else None, parse_date(day)


class TextList(_Parsed):
    """Texts separated by commas."""

    name = "texts"

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(","))


class CategoryList(_Parsed):
    """Labels separated by commas, such as a,b,c; or a number of categories."""

    name = "categories"
    allowed = "labels separated by commas, or their number; --categories-from reads a file"

    def parse(self, text: str) -> int | tuple[str, ...]:
        if text.isascii() and text.isdigit():
            return int(text[:32])
        labels = tuple(label.strip() for label in text.split(","))
        if len(labels) < 2 or not all(labels):
            raise ValueError(text)
        return labels


class CategoryFile(click.ParamType):
    """The labels in a file, one a line."""

    name = "file"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        path = Path(INPUT.convert(value, param, ctx))
        try:
            if path.stat().st_size > _MAX_LABEL_BYTES:
                self.fail(f"{value!r} has more than {_MAX_LABEL_BYTES} bytes")
            labels = tuple(line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"{value!r} cannot be read as UTF-8 text: {error_text(error)}")
        if len(labels) < 2:
            self.fail(f"{value!r} has {len(labels)} lines; it needs one category a line, two or more")
        return labels


_MAX_LABEL_BYTES = 1 << 24  # of a file of categories


class Command(click.Command):
    """A command whose ``--help`` fits on one screen: it only names rare options, which ``--help-all`` explains."""

    def __init__(self, *args: Any, details: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.details = details
        if details or any(isinstance(parameter, _Rare) for parameter in self.params):
            more = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all)
            more.help = "Show all options" + (" and details." if details else ".")
            self.params.append(more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(parameter.name == "target" for parameter in self.params):
            reserve_stdout(str(DASH) in args)  # until it is known what each argument is
        texts, *_ = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_GIVEN] = texts
        reserve_stdout(texts.get("target") == str(DASH))
        return super().parse_args(ctx, args)

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(context, formatter)
        if _ALL in context.meta and self.details:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(self.details)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[click.Parameter]] = {"Options": []}
        for parameter in self.get_params(context):
            if not isinstance(parameter, click.Argument):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(parameter)
        rare = {} if _ALL in context.meta else {name: sections.pop(name) for name in list(sections)[1:]}
        for name, parameters in sections.items():
            with formatter.section(name):
                formatter.write_dl([record for p in parameters if (record := p.get_help_record(context))])
        if rare:
            with formatter.section("More options, explained by --help-all"):
                formatter.write_dl([(name, ", ".join(p.opts[0] for p in hidden)) for name, hidden in rare.items()])


# Keys of a context's notes:
_ALL = "dpkernels.help_all"  # whether the help shows all options
_GIVEN = "dpkernels.given"  # the texts that the command line gives


def command_line_options(context: click.Context) -> dict[str, object]:
    """Return the texts that the command line gives, by the name of their parameter."""
    return {name: value for name, value in context.meta[_GIVEN].items() if value is not None and value != ()}


def _show_all(context: click.Context, option: click.Parameter, is_requested: bool) -> None:
    if is_requested and not context.resilient_parsing:
        context.meta[_ALL] = True
        show(context.get_help())
        context.exit()


class _Rare(click.Option):
    def __init__(self, *args: Any, section: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


def rare_options(section: str) -> Callable[..., Decorator]:
    """Return a ``click.option`` for a section of ``--help-all``."""
    return partial(click.option, cls=_Rare, section=section)


Function = Callable[..., object]
Decorator = Callable[[Function], Function]


def together(*decorators: Decorator) -> Decorator:
    """Give a command several options, in the order of its help."""
    return lambda function: reduce(lambda decorated, decorate: decorate(decorated), reversed(decorators), function)


# Type, metavar and help by name, in the order in which help shows them.
Options = dict[str, tuple[type | click.ParamType, str | None, str]]

# The options of most mechanisms.
_USUAL: Options = {
    "epsilon": (float, "E", "Privacy budget of each value, 0.01 to 20."),
    "delta": (float, "D", "Delta of each value, in (0, 1) (additive)."),
    "sensitivity": (float, "D", "Largest distance of neighbours' true values."),
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
    "scale": (
        float,
        "B",
        "Scale of generalised-normal noise, or of the kernel of recycled-laplace. Default: the best.",
    ),
    "exponent": (float, "B", "Exponent of generalised-normal noise, 1 (Laplace) to 8; 2 is Gaussian."),
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

_CATEGORIES: Options = {
    "categories": (CategoryList(), "A,B,..", "Categories of the column, or their number for codes from 0."),
    "categories_from": (CategoryFile(), "FILE", "The categories in a file, one a line."),
    "other": (str, "NAME", "Category or text that stands for values which are none; a new category is added."),
    "size": (int, "K", "Categories in a report of subset-selection. Default: of least error."),
    "blocks": (int, "G", "Blocks of block-response, a prime or a power of one. Default: of least error."),
    "bits": (float, "B", "Most bits of a report of categorical. Default: any number."),
    "length": (int, "L", "Characters of the longest text of prefix-response."),
    "alphabet": (str, "CHARS", "The characters of the texts of prefix-response."),
    "lengths": (NumberList(number=int), "L,L,..", "Lengths of its prefixes, growing. Default: about 64-fold steps."),
    "longer": (click.Choice(["error", "cut"]), "NAME", "What longer texts are: errors (default), or cut to L."),
}

OPTIONS = _USUAL | _PARAMETERS | _CATEGORIES


def flag(name: str) -> str:
    """Return the option as a user types it."""
    return "--" + name.replace("_", "-")


def flags(names: Iterable[str]) -> str:
    """Options in a sentence: --a, --b and --c."""
    *first, last = map(flag, names)
    return f"{', '.join(first)} and {last}" if first else last


def table_options(table: Options, option: Callable[..., Decorator] = click.option, **settings: object) -> Decorator:
    """Give a command the options of a table, which ``single`` reads.

    All may repeat: click would drop all but the last in silence.
    """
    settings["multiple"] = True
    return together(
        *(
            option(flag(name), name, type=value_type, metavar=metavar, help=text, **settings)
            for name, (value_type, metavar, text) in table.items()
        )
    )


_RARE_PARAMETERS = table_options(_PARAMETERS | _CATEGORIES, rare_options("Mechanism parameters"))
mechanism_options = together(table_options(_USUAL), _RARE_PARAMETERS)
# Of columns, some of which may hold dates.
_ENDS: Options = {name: (DateOrNumber(), *_USUAL[name][1:]) for name in ("lower", "upper")}
column_options = together(table_options(_USUAL | _ENDS), _RARE_PARAMETERS)

_SHUFFLE = "Put the rows into a random order. They are held in memory, at most 1 GiB."
_DATES = "The column, by default all but categories, holds dates: perturb days since DATE. Bounds may be dates."
_MARKERS = "Further texts of cells without a value, such as N/A or -999."
_FORMAT = "Format of IN and OUT. Default: from their suffixes."
_OUTPUT_FORMAT = "Format of OUT, where it is another one and has no suffix that says so."
_SIDECAR = "Where to write the certificates if OUT is -."
_ROWS = "Whom rows of statistics are about: charge a ledger for all rows, or for one."
_row_option = rare_options("Rows and formats")
row_options = together(
    _row_option("--rows", type=click.Choice(["same-people", "different-people"]), multiple=True, help=_ROWS),
    _row_option("--date-origin", type=DateOrigin(), metavar="[NAME=]DATE", multiple=True, help=_DATES),
    _row_option("--round", "decimals", type=click.IntRange(0, 15), metavar="N", help="Decimals of reports."),
    _row_option("--shuffle-rows", is_flag=True, help=_SHUFFLE),
    _row_option("--format", "file_format", type=click.Choice(list(FORMATS)), help=_FORMAT),
    _row_option("--output-format", "output_format", type=click.Choice(list(FORMATS)), help=_OUTPUT_FORMAT),
    _row_option("--delimiter", metavar="C", help="What separates the cells of a csv or tsv."),
    _row_option("--missing-markers", type=TextList(), default=(), metavar="A,B,..", help=_MARKERS),
    _row_option("--multiline", is_flag=True, help="Allow line breaks in quoted cells of a csv or tsv."),
    _row_option("--sidecar", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=_SIDECAR),
)

# The parameters that a column may have, and what a column of each holds.
QUERY_COLUMNS = {
    "sensitivity": "Public column with the sensitivity of every row.",
    "lower": "Public column with the smallest valid value of every row.",
    "upper": "Public column with the largest valid value of every row.",
    "epsilon": "Public column with the budget of every row.",
    "weight": "Public column with the weight of every row's variance, for --together.",
}
_TOGETHER = "Divide one budget among all rows, which are about the same people."
_query_option = rare_options("Rows with own parameters")
query_options = together(
    *(
        _query_option(f"--{name}-column", metavar="NAME", multiple=True, help=text)
        for name, text in QUERY_COLUMNS.items()
    ),
    _query_option("--together", type=NumberList(number=Decimal), metavar="EPS[,DELTA]", multiple=True, help=_TOGETHER),
)

_ENGINE = "What runs the parts: threads of this process (default), or tasks of a Ray cluster."
_ADDRESS = "Address of the Ray cluster; auto is the one of this machine. Default: a new one that ends with the command."
_engine_option = rare_options("Datasets of many files")
_ENGINE_OPTIONS: dict[str, dict[str, object]] = {
    "engine": {"type": click.Choice(["local", "ray"]), "help": _ENGINE},
    "address": {"metavar": "ADDRESS", "help": _ADDRESS},
    "task_cpus": {"type": click.FloatRange(0, min_open=True), "help": "CPUs of a task. Default: 1."},
    "task_gpus": {"type": click.IntRange(0, 1), "help": "GPUs of a task. Default: 0."},
    "task_resource": {"metavar": "NAME=N", "multiple": True, "help": "Another resource of a task."},
    "retries": {"type": click.IntRange(0), "help": "Further attempts for a part. Default: 10."},
}
engine_options = together(*(_engine_option(flag(name), **settings) for name, settings in _ENGINE_OPTIONS.items()))
ENGINE = tuple(_ENGINE_OPTIONS)


def plot_option(text: str) -> Decorator:
    """Give a command ``--plot``, a .png to draw into."""
    return click.option("--plot", type=OUTPUT, help=text, callback=_check_picture)


def _check_picture(context: click.Context, option: click.Parameter, target: Path | None) -> Path | None:
    if target is not None and (target.suffix.lower() != ".png" or not target.parent.is_dir()):
        raise click.UsageError(f"--plot: {target} must be a .png in an existing folder")
    return target


def redact_option(option: Callable[..., Decorator] = click.option) -> Decorator:
    """Give a command ``--redact``."""
    return option("--redact", is_flag=True, expose_value=False, help=_REDACT, is_eager=True, callback=_redact)


_REDACT = "Never show values in errors, only rows and lines. Values are shown on a terminal only."


def _redact(context: click.Context, option: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        redact()


def json_option(text: str = "Print JSON.") -> Decorator:
    """Give a command ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def single(options: Mapping[str, Sequence[T]]) -> dict[str, T]:
    """Return the options that were given, of a command that takes each once."""
    for name, values in options.items():
        if len(values) > 1:
            raise click.UsageError(f"{flag(name)}: given {len(values)} times; give it once")
    return {name: values[0] for name, values in options.items() if values}


@contextmanager
def usage_errors(where: str = "", errors: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    """Let errors of the values of options be usage errors, which begin with ``where``."""
    try:
        yield
    except click.UsageError as error:
        raise click.UsageError(where + error.message) from error
    except errors as error:
        raise click.UsageError(where + error_text(error)) from error
