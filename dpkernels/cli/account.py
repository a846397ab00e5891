"""``dpkernels account``: the privacy profile that a mechanism realises, in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
import numpy as np

import accountants
from dpkernels import checks
from dpkernels.cli.mechanisms.choose import ADDITIVE, mechanism
from dpkernels.cli.release.guarantees import guarantee
from dpkernels.cli.release.sidecar import law_of, parameters
from dpkernels.cli.text import aligned
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real

COVERS = (
    "one report of the law, in exact arithmetic. Does not cover sampling in floating point (a release samples the "
    "certified integers instead), several reports, which compose, or side channels."
)
# Where the profile is printed if the options do not say.
_DELTAS = (1e-5, 1e-6, 1e-9)
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the mechanism's own epsilon
_EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)  # where it has none


@dataclass(frozen=True)
class Account:
    """A mechanism and where to read its profile.

    Attributes:
        name: the mechanism's name.
        mechanism: the mechanism.
        options: those it was made with.
        epsilons: where to print delta.
        deltas: where to print epsilon.
    """

    name: str
    mechanism: Mechanism
    options: Mapping[str, Any]
    epsilons: Sequence[float]
    deltas: Sequence[float]

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], epsilons: Sequence[float], deltas: Sequence[float]) -> Account:
        """Choose the mechanism, and by its epsilon where to print delta unless that is given.

        Raises:
            click.UsageError: no such mechanism, or an option that is wrong, missing or out of range.
        """
        made = mechanism(name, options, release=False)
        try:
            accountants.delta(made, 1.0)
            checks.within("--at-epsilon", np.array(epsilons, float), 0.0, np.finfo(float).max)
            checks.within("--at-delta", np.array(deltas, float), 0.0, 1.0, open_ends=True)
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        own = options.get("epsilon")
        usual = _EPSILONS if own is None else [share * own for share in _SHARES]
        return cls(name, made, options, tuple(epsilons) or tuple(usual), tuple(deltas) or _DELTAS)

    def delta(self, epsilons: Iterable[float]) -> np.ndarray:
        """The profile at any epsilons."""
        # One by one: a number is compiled for once, an array for each of its lengths.
        return np.array([accountants.delta(self.mechanism, float(epsilon)) for epsilon in epsilons])

    def epsilon(self, deltas: Iterable[float]) -> np.ndarray:
        """Its inverse; inf where no epsilon will do."""
        return np.array([accountants.epsilon(self.mechanism, float(delta)) for delta in deltas])

    @cached_property
    def pure(self) -> float:
        """The pure level; inf where there is none."""
        return float(accountants.epsilon(self.mechanism))

    @property
    def is_additive(self) -> bool:
        """Whether it is noise, not a mechanism on an interval."""
        return self.name in ADDITIVE

    @property
    def claim(self) -> tuple[float, ...]:
        """(epsilon, delta) of its claim; empty if nothing is claimed."""
        made: Any = self.mechanism
        claim = (made.epsilon, made.delta) if self.is_additive else (self.options["epsilon"], 0.0)
        return () if None in claim else claim

    @property
    def neighbours(self) -> str:
        """Which inputs are neighbouring."""
        if self.is_additive:
            return f"true values at most {shortest(self.options['sensitivity'])} apart"
        interval = "[{}, {}]".format(*map(shortest, self.mechanism.input_interval))
        if "sensitivity" in self.options:
            return f"values in {interval} at most {shortest(self.options['sensitivity'])} apart"
        return f"any two values in {interval}"

    @property
    def description(self) -> str:
        """The mechanism, its options, and the law of its noise."""
        law = law_of(self.mechanism)
        options = ", ".join(f"{name.replace('_', '-')} {_shown(value)}" for name, value in self.options.items())
        return f"{self.name} ({options})" + (f"; noise of {law}" if law else "")

    @cached_property
    def errors(self) -> dict[str, float]:
        """How far a report is from its input."""
        made: Any = self.mechanism
        if not self.is_additive:
            middle = sum(map(float, made.input_interval)) / 2
            found = {"worst variance": float(made.worst_variance), "central variance": float(made.variance(middle))}
            return found | ({"largest bias": float(made.bias(made.lower))} if hasattr(made, "bias") else {})
        found = {"variance": float(made.noise.variance), "mean of the noise": float(made.noise.mean)}
        return found | ({"acceptance": float(made.noise.acceptance)} if "theta" in self.options else {})

    @cached_property
    def certified(self) -> str | None:
        """What the integers of a release realise; None where nothing is claimed."""
        if not self.claim:
            return None
        try:
            own = guarantee(exact_sampler(self.mechanism).certificate)
        except CertificateError as error:
            return f"no release: {error}"
        return f"a release realises epsilon {shortest(own.realised_epsilon)}, delta {shortest(own.realised_delta)}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON form; null where a number is infinite."""
        return {
            "mechanism": self.name,
            "parameters": parameters(self.mechanism),
            "neighbouring": self.neighbours,
            "covers": COVERS,
            "delta_at_epsilon": _pairs("epsilon", self.epsilons, "delta", self.delta(self.epsilons)),
            "epsilon_at_delta": _pairs("delta", self.deltas, "epsilon", self.epsilon(self.deltas)),
            "pure_epsilon": _finite(self.pure),
            **{name.replace(" ", "_"): value for name, value in self.errors.items()},
            "certified": self.certified,
        }

    def __str__(self) -> str:
        facts = {
            "mechanism": self.description,
            "neighbouring": self.neighbours,
            "pure level": f"epsilon {shortest(self.pure)}" if math.isfinite(self.pure) else "none: delta is never 0",
            **{name: f"{value:.9g}" for name, value in self.errors.items()},
            **({"certified": self.certified} if self.certified else {}),
            "covers": COVERS,
        }
        lines = [f"{name:<19} {text}" for name, text in facts.items()]
        lines += ["", *_table("epsilon", "delta", self.epsilons, self.delta(self.epsilons))]
        return "\n".join([*lines, "", *_table("delta", "epsilon", self.deltas, self.epsilon(self.deltas))])


def _shown(value: Real) -> str:
    return value if isinstance(value, str) else ",".join(map(shortest, np.ravel(value)))


def _table(given: str, found: str, at: Sequence[float], values: np.ndarray) -> list[str]:
    cells = [[shortest(x), f"{y:.9g}" if math.isfinite(y) else "none"] for x, y in zip(at, values, strict=True)]
    return aligned([[given, found], *cells])


def _pairs(given: str, at: Sequence[float], found: str, values: np.ndarray) -> list[dict[str, float | None]]:
    return [{given: x, found: _finite(float(y))} for x, y in zip(at, values, strict=True)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
