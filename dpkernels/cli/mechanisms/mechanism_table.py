"""Which mechanism has which options, without importing any mechanism, so that they are listed at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import click

from dpkernels.cli.mechanisms.options import OPTIONS, flag, flags
from dpkernels.cli.text import aligned

# What a release is private for; never a default.
_CLAIM = ("epsilon", "delta", "sensitivity")

_BOUNDED = (
    "piecewise",
    "piecewise-triangle",
    "piecewise-wang2019",
    "duchi",
    "hybrid",
    "optimal",
    "sine-constant",
    "sine-quartic",
    "triangle-constant",
    "triangle-quartic",
    "closed-form",
    "auto",
)
# The options of each constructor; those with a question mark have a default.
_OPTIONS: dict[str, str] = {
    **dict.fromkeys(_BOUNDED, "epsilon lower upper"),
    "piecewise": "epsilon lower upper eta?",
    "auto": "epsilon lower upper objective?",
    "square-wave": "epsilon lower upper half_width?",
    "optimal-central": "epsilon sensitivity lower upper",
    "central-piecewise": "epsilon sensitivity lower upper",
    "laplace": "epsilon sensitivity?",
    "gaussian": "epsilon? delta? sensitivity sigma?",
    "truncated-laplace": "epsilon delta sensitivity noise_upper?",
    "truncated-gaussian": "epsilon? delta sensitivity sigma? bound?",
    "recycled-laplace": "epsilon? delta? sensitivity scale? theta q?",
    "recycled-gaussian": "epsilon? delta? sensitivity sigma? theta q?",
    "staircase": "epsilon sensitivity? gamma?",
    "merged-laplace": "epsilon? delta? sensitivity? rates breaks",
    "discrete-laplace": "epsilon sensitivity? step?",
    "discrete-gaussian": "epsilon? delta? sensitivity? sigma step?",
    "truncated-discrete-laplace": "epsilon delta sensitivity? step?",
}


@dataclass(frozen=True)
class Recipe:
    """What a mechanism is made of.

    Attributes:
        name: the mechanism's name.
    """

    name: str

    @cached_property
    def options(self) -> dict[str, bool]:
        """Its options in the order of help, and whether the constructor has a default for each."""
        given = {word.rstrip("?"): word.endswith("?") for word in _OPTIONS[self.name].split()}
        return {name: given[name] for name in OPTIONS if name in given}

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


RECIPES = {name: Recipe(name) for name in _OPTIONS}


def listing() -> list[str]:
    """Every mechanism with what a release needs and what else it may have."""
    heading = ["mechanism", "needs", "may have"]
    notes = [
        "closed-form is piecewise, hybrid or duchi, auto one of these or optimal: whichever has the least worst-case",
        "variance for the budget; auto --objective distribution is piecewise, as narrow as tells most of the values'",
        "distribution. What a mechanism may have is chosen for it where it is not given; `dpkernels perturb",
        "--help` explains each. Reports of square-wave are for the distribution of the values: their mean is biased.",
    ]
    return [*aligned([heading, *map(_listed, RECIPES.values())]), "", *notes]


def _listed(one: Recipe) -> list[str]:
    required = one.required(release=True)
    more = [name for name in one.options if name not in required]
    return [one.name, " ".join(map(flag, required)), " ".join(map(flag, more))]
