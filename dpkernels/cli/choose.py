"""A mechanism chosen by its name, and the one table of which mechanism has which options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click

from dpkernels import checks
from dpkernels.cli import recipes
from dpkernels.cli.options import OPTIONS, flag, flags
from dpkernels.cli.text import aligned
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.forms import ExactForm, certify
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.central_piecewise import central_piecewise
from dpkernels.mechanisms.named import MECHANISMS
from dpkernels.mechanisms.optimal_grid import MOST_EPSILON
from dpkernels.mechanisms.optimal_program import ProgramError

# What a release is private for; never a default.
_CLAIM = ("epsilon", "delta", "sensitivity")


@dataclass(frozen=True)
class Recipe:
    """How a mechanism is made of options: its constructor's keyword arguments that are options.

    Attributes:
        name: the mechanism's name.
        make: its constructor.
    """

    name: str
    make: Callable[..., Mechanism]

    @cached_property
    def options(self) -> dict[str, bool]:
        """Its options, and whether the constructor has a default for each."""
        arguments = inspect.signature(self.make).parameters
        own = [arguments[name] for name in OPTIONS if name in arguments]
        return {one.name: one.default is not one.empty for one in own}

    def required(self, release: bool) -> list[str]:
        """What must be given: for a release the whole claim; the sensitivity, in the data's unit, always."""
        always = _CLAIM if release else ("sensitivity",)
        return [name for name, optional in self.options.items() if not optional or name in always]

    def check(self, given: Iterable[str], release: bool) -> None:
        """Refuse options that the mechanism does not have, and too few.

        Raises:
            click.UsageError: names the option.
        """
        given, required = list(given), self.required(release)
        for name in given:
            if name not in self.options:
                raise click.UsageError(f"{flag(name)}: {self.name} has no such option; it has {flags(self.options)}")
        if missing := [name for name in required if name not in given]:
            shown = ", ".join(map(flag, missing))
            raise click.UsageError(f"{shown}: missing; {self.name} needs {flags(required)}")


CENTRAL: dict[str, Callable[..., Mechanism]] = {
    "optimal-central": recipes.optimal_central,
    "central-piecewise": central_piecewise,
}
ADDITIVE: dict[str, Callable[..., Mechanism]] = {
    "laplace": named.laplace,
    "gaussian": recipes.gaussian,
    "truncated-laplace": recipes.truncated_laplace,
    "truncated-gaussian": recipes.truncated_gaussian,
    "recycled-laplace": recipes.recycled_laplace,
    "recycled-gaussian": recipes.recycled_gaussian,
    "staircase": named.staircase,
    "merged-laplace": named.merged_laplace,
    "discrete-laplace": named.discrete_laplace,
    "discrete-gaussian": named.discrete_gaussian,
    "truncated-discrete-laplace": named.truncated_discrete_laplace,
}
AUTO = "auto"


def best_bounded(*, epsilon: float, lower: float, upper: float) -> str:
    """The bounded mechanism of least worst-case variance; those not tried never have less.

    Raises:
        ValueError: an argument out of range.
    """
    tried = ("optimal", "piecewise", "hybrid") if epsilon <= MOST_EPSILON else ("piecewise", "hybrid")
    made = {name: MECHANISMS[name](epsilon=epsilon, lower=lower, upper=upper) for name in tried}
    return min(made, key=lambda name: float(made[name].worst_variance))


def _auto(*, epsilon: float, lower: float, upper: float) -> Mechanism:
    return MECHANISMS[best_bounded(epsilon=epsilon, lower=lower, upper=upper)](
        epsilon=epsilon, lower=lower, upper=upper
    )


_MAKERS: dict[str, Callable[..., Mechanism]] = {**MECHANISMS, AUTO: _auto, **CENTRAL, **ADDITIVE}
RECIPES = {name: Recipe(name, make) for name, make in _MAKERS.items()}


def recipe(name: str, where: str = "") -> Recipe:
    """The recipe of a name.

    Raises:
        click.UsageError: no such mechanism; begins with ``where``.
    """
    if name not in RECIPES:
        raise click.UsageError(f"{where}mechanism: {name!r} is not one of {', '.join(RECIPES)}")
    return RECIPES[name]


def mechanism(name: str, options: Mapping[str, Any], where: str = "", *, release: bool = True) -> Mechanism:
    """The mechanism.

    Args:
        name: its name.
        options: the options that were given.
        where: what an error begins with.
        release: whether it needs a claim; accounting does not.

    Raises:
        click.UsageError: no such mechanism; a missing or unknown option, or one out of range; or its program fails.
    """
    chosen = recipe(name, where)
    try:
        chosen.check(options, release)
        if "delta" in options:
            checks.within("delta", options["delta"], 0.0, 1.0, open_ends=True)
        return chosen.make(**options)
    except click.UsageError as error:
        raise click.UsageError(where + error.message) from error
    except (ValueError, ProgramError) as error:
        raise click.UsageError(where + str(error)) from error


def exact_form(name: str, options: Mapping[str, Any], where: str = "") -> tuple[str, ExactForm]:
    """The name of the mechanism, which for "auto" is the one chosen, and its certified form.

    Raises:
        click.UsageError: as ``mechanism``.
        CertificateError: its integers do not have the guarantee.
    """
    made = mechanism(name, options, where)
    try:
        return best_bounded(**options) if name == AUTO else name, certify(made)
    except CertificateError as error:
        instead = _feasible(made) if str(error).startswith("delta:") else ""
        raise CertificateError(f"{where}{error}{instead}") from error


def _feasible(made: Any) -> str:
    """The epsilon that noise has at its delta, where that can be said."""
    from accountants import epsilon

    try:
        found = epsilon(made, made.delta)
    except (TypeError, ValueError):
        return ""
    return f"; at delta {made.delta:g} this noise has epsilon {found:.6g}"


def spread(names: Sequence[str], given: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The options of each column.

    An option given once is for every column whose mechanism has it; given as often as there are such columns, for
    these in their order.

    Args:
        names: the mechanism of each column.
        given: the values of each option that was given, in their order.

    Raises:
        click.UsageError: an unknown mechanism, an option that none has, or one given another number of times.
    """
    chosen = [recipe(name) for name in names]
    columns: list[dict[str, Any]] = [{} for _ in chosen]
    for option, values in given.items():
        having = [column for column, one in zip(columns, chosen, strict=True) if option in one.options]
        if not having:
            raise click.UsageError(f"{flag(option)}: {_without(names)}")
        those = "" if len(having) == len(names) else " whose mechanism has it"
        check_count(option, len(values), len(having), those)
        each = list(values) * (len(having) if len(values) == 1 else 1)
        for column, value in zip(having, each, strict=True):
            column[option] = value
    return columns


def _without(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    if len(different) == 1:
        return f"{different[0]} has no such option"
    return f"none of {', '.join(different)} has such an option"


def check_count(option: str, count: int, columns: int, those: str = "") -> None:
    """Refuse an option that is given neither once nor once a column.

    Raises:
        click.UsageError: says what is allowed.
    """
    if count not in (1, columns):
        allowed = "once" if columns == 1 else f"once, or once for each of the {columns} columns{those}"
        raise click.UsageError(f"{flag(option)}: given {count} times; give it {allowed}")


def listing() -> list[str]:
    """Every mechanism with what a release needs and what else it may have."""
    heading = ["mechanism", "needs", "may have"]
    note = "What a mechanism may have is chosen for it where it is not given; `dpkernels perturb --help` explains each."
    return [*aligned([heading, *map(_listed, RECIPES.values())]), "", note]


def _listed(one: Recipe) -> list[str]:
    required = one.required(release=True)
    more = [name for name in one.options if name not in required]
    return [one.name, " ".join(map(flag, required)), " ".join(map(flag, more))]
