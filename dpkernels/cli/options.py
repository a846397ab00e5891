"""The options that describe a mechanism: their types and help. Which mechanism has which is ``choose``'s to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click


class Numbers(click.ParamType):
    """Numbers with commas between, such as 1,0.5."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(float(part) for part in value.split(",") if value)
        except ValueError:
            self.fail(f"{value!r} is not numbers with commas between")


# In the order in which help shows them.
OPTIONS: dict[str, tuple[Any, str, str]] = {
    "epsilon": (float, "E", "Privacy budget of each value, 0.01 to 20."),
    "delta": (float, "D", "Delta of each value, in (0, 1) (additive mechanisms)."),
    "sensitivity": (float, "D", "How far apart neighbouring true values are at most (additive, central mechanisms)."),
    "lower": (float, "X", "Smallest valid value (bounded mechanisms)."),
    "upper": (float, "X", "Largest valid value (bounded mechanisms)."),
    "sigma": (float, "S", "Standard deviation of Gaussian noise; by default the least for epsilon and delta."),
    "scale": (float, "B", "Scale of the Laplace kernel of recycled-laplace; by default the best."),
    "theta": (float, "T", "Tolerated error of budget recycling: noise beyond it is redrawn with probability q."),
    "q": (float, "Q", "Probability of a redraw, in [0, 1); by default the best for epsilon and delta."),
    "bound": (float, "T", "Largest noise of truncated-gaussian; by default from delta."),
    "noise_upper": (float, "B", "Largest noise of truncated-laplace; by default that of symmetric noise."),
    "gamma": (float, "G", "Share of the high steps of staircase, in [0, 1]; by default of least error."),
    "step": (float, "H", "Distance of the values of discrete noise, 1 by default; a short binary fraction."),
    "rates": (Numbers(), "R,R,..", "Slopes of the log-density of merged-laplace, from 0 outwards."),
    "breaks": (Numbers(), "C,..", "Where the slopes change; one fewer than rates."),
}


def flag(name: str) -> str:
    """The option as a user types it."""
    return "--" + name.replace("_", "-")


def flags(names: Iterable[str]) -> str:
    """Options in a sentence: --a, --b and --c."""
    *most, last = map(flag, names)
    return f"{', '.join(most)} and {last}" if most else last


def mechanism_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command every option of a mechanism. All may repeat: click would drop all but the last in silence."""
    for name, (kind, metavar, text) in reversed(OPTIONS.items()):
        command = click.option(flag(name), name, type=kind, metavar=metavar, multiple=True, help=text)(command)
    return command


def single(given: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The options that were given, of a command that takes each once.

    Raises:
        click.UsageError: one was given twice.
    """
    for name, values in given.items():
        if len(values) > 1:
            raise click.UsageError(f"{flag(name)}: given {len(values)} times; give it once")
    return {name: values[0] for name, values in given.items() if values}
