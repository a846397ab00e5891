"""Guarantees as values: what a sequence of mechanisms reveals together.

    guarantee(mechanism).subsample(rate).repeat(n).compose(other)

Neighbours are those of the mechanisms: for additive noise, and bounded mechanisms with a sensitivity, datasets whose
true values differ by at most the sensitivity in every report; for others, any two inputs. With ``subsample``, every
report is on a Poisson sample of its own, and neighbours differ by one record added or removed, or by one replaced by
another, as asked. Covered: mechanisms fixed in advance (for budgets chosen on the way see ``dpkernels.budgets``), and
the reports of float laws in exact arithmetic, or exactly the integer tables of exact forms.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from accountants.composition.bounds import Bracket
from accountants.composition.evaluate import directions_of_numbers, evaluate
from accountants.composition.self_composed import (
    NEIGHBOURS,
    ConvergenceError,
    RepeatedLosses,
    SelfComposed,
    check_releases,
    infinity_mass,
    neighbouring,
    with_mirror,
    with_one_neighbouring,
)
from accountants.dominating_pairs.base import DominatingPair, as_float64
from accountants.dominating_pairs.registry import dominating_pairs, reject_sensitivity
from accountants.dominating_pairs.replaced import check_replaceable
from accountants.guarantee_json import from_json_form, to_json_form
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True, eq=False)
class Guarantee:
    """What reports reveal together; made by ``guarantee``, immutable, a pytree.

    Attributes:
        terms: what is composed.
    """

    terms: tuple[SelfComposed, ...]

    def repeat(self, count: Real) -> Guarantee:
        """The same reports ``count`` times.

        Args:
            count: a positive whole number; or a JAX one, which need not be whole, so that values have a derivative in
                it: that of the power of the law's transform. It says something where the sum of losses is smooth;
                reports with few different losses jump from count to count: of three it is what the last one adds.

        Raises:
            TypeError: count is not a whole number.
            ValueError: it is not positive.
        """
        n = count if isinstance(count, jax.Array) else checks.whole("count", count, 1, 1 << 40)
        checks.positive("count", n)
        return Guarantee(tuple(dataclasses.replace(term, count=n * term.count) for term in self.terms))

    def compose(self, *others: Guarantee) -> Guarantee:
        """The reports of this guarantee and the others together.

        Raises:
            ValueError: samples with added and removed records, and samples with replaced ones.
        """
        return Guarantee(with_one_neighbouring(sum((other.terms for other in others), self.terms)))

    def subsample(self, rate: Real, adjacency: str = "add_remove") -> Guarantee:
        """Every report on a Poisson sample of its own, of this rate.

        Neighbouring is by records of the datasets, and the sensitivity of noise is the most that one record, if it is
        in the sample, adds to the true value or takes from it.

        Args:
            rate: in (0, 1].
            adjacency: "add_remove": one record added or removed; the two worst inputs are those of the dataset with
                the record and of the one without it. "replace": one record replaced by another, so that the true
                value may change by twice the sensitivity; see ``replacement``.

        Raises:
            ValueError: the rate is not in (0, 1], or reports are on samples already; replaced records and asymmetric
                noise, tables or densities.
        """
        checks.within("rate", rate, np.nextafter(0.0, 1.0), 1.0)
        checks.one_of("adjacency", adjacency, NEIGHBOURS)
        if any(term.sampling_rate is not None for term in self.terms):
            raise ValueError("rate: these reports are on samples already")
        if adjacency == "replace":
            for term in self.terms:
                check_replaceable(term.pairs)
        return Guarantee(
            tuple(dataclasses.replace(term, sampling_rate=rate, neighbours=adjacency) for term in self.terms)
        )

    @property
    def neighbouring(self) -> str:
        """Which inputs are neighbours, in words."""
        return neighbouring(self.terms)

    def delta(self, epsilon: Real) -> Any:
        """Return the smallest delta such that the composed mechanism is (epsilon, delta)-DP.

        The value is precise, not a bound: use ``bracket`` for rigorous bounds. One release and Gaussian noise have
        their exact profiles, few outcomes are enumerated, all else is composed by FFT on a grid. Accuracy by case is a
        table in docs/additive.md. Plain numbers are computed by NumPy, without compiling.

        Args:
            epsilon: eps >= 0, any shape.

        Returns:
            A float for a number, else NumPy float64; JAX for JAX arguments, differentiable in eps, the count, the rate
            and every parameter of the mechanism; but several reports not in an ``outside`` weight of 0, next to which
            losses are unbounded: what JAX gives there is no derivative. Use 64 bits: tails of sums are lost in 32.

        Raises:
            ValueError: epsilon negative.
        """
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return evaluate(self, "delta", epsilon)

    def epsilon(self, delta: Real) -> Any:
        """Return the smallest epsilon >= 0 such that the composed mechanism is (epsilon, delta)-DP.

        It is inf if there is none, and as accurate as ``delta``. Derivatives are implicit. JAX values are inf too where
        floats do not tell which eps.

        Raises:
            ValueError: delta is not in (0, 1).
            ConvergenceError: floats do not tell which eps, as at deltas next to the least float.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        found = evaluate(self, "epsilon", delta)
        if namespace(found) is np and np.isinf(found).any() and np.any(np.isinf(found) & (self.infinity_mass < delta)):
            raise ConvergenceError(f"delta: {np.min(delta):g}; no eps is resolved in floating point")
        return found

    @property
    def infinity_mass(self) -> float:
        """The probability that some loss is infinite, in the direction of neighbours in which it is larger."""
        return float(max(infinity_mass(parts) for parts in as_float64(self).repeated_losses()))

    @property
    def neighbour_directions(self) -> tuple[bool, ...]:
        """Whether the pairs are mirrored, for each direction of neighbours that is composed; delta is the largest."""
        return (False,) if all(term.is_symmetric for term in self.terms) else (False, True)

    def repeated_losses(self, panels: int = 0) -> tuple[RepeatedLosses, ...]:
        """Return what is composed, for each direction of neighbours.

        Args:
            panels: see ``PrivacyLossDistribution.nodes``.
        """
        mirrors = self.neighbour_directions
        return tuple(zip(*(term.repeated_losses(mirrors, panels) for term in self.terms), strict=True))

    @cached_property
    def numeric_directions(self) -> list[tuple[RepeatedLosses, RepeatedLosses]]:
        """Of plain numbers (losses, the same by fewer nodes) for each direction of neighbours; computed once."""
        return directions_of_numbers(as_float64(self))

    def bracket(self, *, epsilon: float | None = None, delta: float | None = None) -> tuple[float, float]:
        """A rigorous interval for delta at eps, or for eps at delta; truncation and rounding errors are inside.

        Raises:
            ValueError: not exactly one of the two; epsilon negative; delta not in (0, 1).
        """
        if (epsilon is None) == (delta is None):
            raise ValueError("epsilon, delta: exactly one of them must be given")
        made = Bracket(self)
        return (
            made.delta(checks.number("epsilon", epsilon))
            if delta is None
            else made.epsilon(checks.number("delta", delta))
        )

    def renyi(self, order: Any) -> Any:
        """The Renyi divergence of the given order > 1, of any shape; inf where a loss may be infinite."""
        checks.within("order", order, np.nextafter(1.0, 2.0), np.inf)
        return evaluate(self, "renyi", order)

    def trade_off(self, alpha: Any) -> Any:
        """The least type II error of a test of level alpha: max over eps of the two lines each (eps, delta) gives."""
        checks.within("alpha", alpha, 0.0, 1.0)
        # Fewer lines give a lower curve, which is the safe side; beyond this eps they are all but flat.
        eps = np.linspace(0.0, min(self.epsilon(1e-9), 50.0), 129)
        delta = np.asarray(self.delta(eps))
        a = np.asarray(alpha, float)[..., None]
        lines = np.maximum(1 - delta - np.exp(eps) * a, np.exp(-eps) * (1 - delta - a))
        return np.maximum(lines.max(-1), 0.0)[()]

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {"format": 1, "guarantee": to_json_form(self, (Guarantee,))}

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Guarantee:
        """The guarantee of ``to_dict``.

        Raises:
            ValueError: it is none.
        """
        made = from_json_form(form.get("guarantee") if form.get("format") == 1 else None, (Guarantee,))
        if not isinstance(made, cls):
            raise ValueError("form: is not a guarantee of format 1")
        check_releases(made.terms)
        return made

    @classmethod
    def from_json(cls, text: str) -> Guarantee:
        """The guarantee of ``to_json``."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guarantee) and self.to_dict() == other.to_dict())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the terms: its functions cannot be pickled."""
        return {"terms": self.terms}

    def __hash__(self) -> int:
        return hash(self.to_json())

    def plot(self, path: Path | str, *, epsilon: float | None = None) -> None:
        """Draw the privacy profile and the trade-off curve into a .png.

        Args:
            path: the file.
            epsilon: the largest eps shown; by default where delta is 1e-9.
        """
        _draw(self, Path(path), epsilon)


def guarantee(mechanism: Any, sensitivity: Any = None) -> Guarantee:
    """What one report of a mechanism, or of its exact form, reveals.

    Args:
        mechanism: a mechanism of dpkernels, its exact form (then the integers are accounted), or a pair of laws, such
            as ``weights``, ``randomised_response`` and ``densities`` make.
        sensitivity: D of an additive mechanism, by default its claim's; others take none.

    Raises:
        TypeError: an unknown mechanism.
        ValueError: no sensitivity for an additive mechanism, or one for another; a pair that is not one of laws.
    """
    if isinstance(mechanism, DominatingPair):
        reject_sensitivity(sensitivity)
        if namespace(*jax.tree.leaves(mechanism)) is np:
            mechanism.check()
        return Guarantee((SelfComposed(with_mirror(mechanism), 1),))
    return Guarantee((SelfComposed(dominating_pairs(mechanism, sensitivity), 1),))


def _draw(made: Guarantee, path: Path, epsilon: float | None) -> None:
    """The privacy profile and the trade-off curve side by side."""
    from matplotlib.figure import Figure

    highest = epsilon if epsilon is not None else made.epsilon(1e-9)
    eps = np.linspace(0.0, highest if np.isfinite(highest) else 10.0, 49)
    figure = Figure(figsize=(9, 4), layout="constrained")
    profile, trade = figure.subplots(1, 2)
    profile.semilogy(eps, np.maximum([made.delta(float(e)) for e in eps], 1e-18))
    profile.set(title="Privacy profile", xlabel="epsilon (nats)", ylabel="delta")
    alpha = np.linspace(0, 1, 201)
    trade.plot(alpha, made.trade_off(alpha))
    trade.plot(alpha, 1 - alpha, ":", color="grey", label="no information")
    trade.set(title="Trade-off curve", xlabel="type I error", ylabel="least type II error", aspect="equal")
    trade.legend(frameon=False)
    figure.savefig(path, dpi=120)
