"""A mechanism chosen by its name, and the options of each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from dpkernels import checks
from dpkernels.cli.mechanisms import recipes
from dpkernels.cli.mechanisms.mechanism_table import RECIPES, Recipe
from dpkernels.cli.mechanisms.options import flag
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import exact_sampler
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.central_piecewise import central_piecewise
from dpkernels.mechanisms.named import MECHANISMS
from dpkernels.mechanisms.optimal.grid import covers
from dpkernels.mechanisms.optimal.program import ProgramError
from dpkernels.mechanisms.windowed.square_wave import square_wave

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
# Names of a choice, and what it is made among: no other bounded mechanism ever has less worst-case variance.
_CLOSED_FORMS = ("duchi", "hybrid", "piecewise")
CHOICES = {"closed-form": _CLOSED_FORMS, "auto": ("optimal", *_CLOSED_FORMS)}


def chosen_name(name: str, *, epsilon: float, lower: float, upper: float) -> str:
    """The mechanism of least worst-case variance among those of a choice.

    Raises:
        ValueError: epsilon not in [0.01, 20], or not lower < upper.
    """
    tried = [one for one in CHOICES[name] if one != "optimal" or covers(epsilon)]
    made = {one: MECHANISMS[one](epsilon=epsilon, lower=lower, upper=upper) for one in tried}
    return min(made, key=lambda one: float(made[one].worst_variance))


def chosen(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a choice is made of: the mechanism's name and its own options; of another name itself.

    For the distribution that is piecewise: of the families that ``tune --objective distribution`` compares none tells
    more, and its reports are unbiased too.

    Raises:
        ValueError: as for the mechanism.
    """
    own = {key: value for key, value in options.items() if key != "objective"}
    if name not in CHOICES:
        return name, dict(options)
    if options.get("objective") == "distribution":
        return "piecewise", {**own, "eta": recipes.eta_for_distribution(**own)}
    return chosen_name(name, **own), own


def _closed_form(*, epsilon: float, lower: float, upper: float) -> Mechanism:
    return _made("closed-form", {"epsilon": epsilon, "lower": lower, "upper": upper})


def _auto(*, epsilon: float, lower: float, upper: float, objective: str = "variance") -> Mechanism:
    return _made("auto", {"epsilon": epsilon, "lower": lower, "upper": upper, "objective": objective})


def _made(choice: str, options: Mapping[str, Any]) -> Mechanism:
    name, own = chosen(choice, options)
    return MECHANISMS[name](**own)


def _named(name: str, *, epsilon: float, lower: float, upper: float) -> Mechanism:
    """What the command has no more options for."""
    return MECHANISMS[name](epsilon=epsilon, lower=lower, upper=upper)


MAKERS: dict[str, Callable[..., Mechanism]] = {
    **{name: partial(_named, name) for name in MECHANISMS},
    "piecewise": recipes.piecewise,
    "closed-form": _closed_form,
    "auto": _auto,
    "square-wave": square_wave,
    **CENTRAL,
    **ADDITIVE,
}


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
        return MAKERS[name](**options)
    except click.UsageError as error:
        raise click.UsageError(where + error.message) from error
    except (ValueError, ProgramError) as error:
        raise click.UsageError(where + str(error)) from error


def exact_form(name: str, options: Mapping[str, Any], where: str = "") -> tuple[str, ExactSampler, dict[str, Any]]:
    """The name of the mechanism, which for a choice is the one chosen, its certified form and its options.

    Raises:
        click.UsageError: as ``mechanism``.
        CertificateError: its integers do not have the guarantee.
    """
    made = mechanism(name, options, where)
    try:
        own, given = chosen(name, options)
        return own, exact_sampler(made), given
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
    if found <= made.epsilon * (1 + 1e-9):  # The noise has its claim; it is the table that does not.
        return ""
    return f"; at delta {shortest(made.delta)} this noise has epsilon {found:.6g}"


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
