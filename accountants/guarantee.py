"""Guarantees as values: the privacy of a sequence of mechanisms.

    guarantee(mechanism).subsample(rate).repeat(n).compose(other)

Neighbours are those of the mechanisms. For additive noise, and for bounded mechanisms with a sensitivity, they are
datasets whose true values differ by at most the sensitivity in every report. For other mechanisms they are any two
inputs. With ``subsample``, every report uses a Poisson sample of its own, and neighbours differ by one record that is
added or removed, or by one that is replaced, as ``adjacency`` says.

Guarantees cover mechanisms that are fixed in advance; for budgets that are chosen adaptively see ``dpkernels.budgets``.
They cover the reports of floating-point distributions in exact arithmetic, and those of exact samplers as they are.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from accountants.composition.adaptive import AdaptiveProfile, is_adaptive
from accountants.composition.bounds import Bracket
from accountants.composition.cells import UnknownSteepnessError
from accountants.composition.evaluate import directions_of_numbers
from accountants.composition.outside_jit import evaluate
from accountants.composition.renyi import renyi_divergence
from accountants.composition.self_composed import (
    NEIGHBOURS,
    ON_ALL_DATA,
    ConvergenceError,
    RepeatedLosses,
    SelfComposed,
    check_releases,
    infinity_mass,
    with_one_neighbouring,
)
from accountants.dominating_pairs.base import DominatingPair, as_float64
from accountants.dominating_pairs.registry import dominating_pairs, reject_sensitivity
from accountants.dominating_pairs.replaced import check_replaceable
from accountants.guarantee_json import UNKNOWN, from_json_form, to_json_form
from accountants.precision import in_64_bits
from dpkernels import checks
from dpkernels.numerics import Real, namespace, plain
from dpkernels.pytrees import pytree

# Up to these, values of releases on samples are kept inside their brackets: the rate, and the mean number of samples
# that a record is in.
_TINY_RATE, _HARDLY = 0.002, 0.1
_SYMMETRIC = 1e-9  # The difference up to which the profiles of a pair and its mirror are equal.


class ComposableGuarantee(abc.ABC):
    """A guarantee that can be repeated and composed: of reports, or of shuffled reports."""

    terms: Any

    @abc.abstractmethod
    def delta(self, epsilon: Real) -> Any:
        """Return the smallest delta at an epsilon; an estimate."""

    @abc.abstractmethod
    def epsilon(self, delta: Real) -> Any:
        """Return the smallest epsilon at a delta; an estimate."""

    @abc.abstractmethod
    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        """Return (lower, upper) bounds of delta at eps >= 0."""

    @abc.abstractmethod
    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        """Return (lower, upper) bounds of eps at delta in (0, 1)."""

    def bracket(self, *, epsilon: float | None = None, delta: float | None = None) -> tuple[float, float]:
        """Return a rigorous interval (lower, upper) for delta at an epsilon >= 0, or for epsilon at a delta in (0, 1).

        The interval includes truncation, quadrature and rounding errors.

        Raises:
            ValueError: not exactly one argument is given, or it is out of range; or there is no bracket, as for a
                density that states no bound on how fast it changes.
        """
        check_one_given(epsilon, delta)
        if delta is None:
            checks.within("epsilon", at := checks.number("epsilon", epsilon), 0.0, np.inf)
            low, high = self._delta_bracket(at)
        else:
            checks.within("delta", target := checks.number("delta", delta), 0.0, 1.0, open_ends=True)
            low, high = self._epsilon_bracket(target)
        return float(low), float(high)

    def repeat(self, count: Real) -> Guarantee:
        """Return the guarantee of the same reports repeated ``count`` times.

        A JAX number need not be an integer, so that values have a derivative in it: the derivative in the power of the
        transform of the loss distribution. The derivative is meaningful where the sum of losses is smooth; with few
        different losses the values jump from count to count.

        Raises:
            TypeError: count is not an integer.
            ValueError: count is not positive.
        """
        n = count if isinstance(count, jax.Array) else checks.whole("count", count, 1, 1 << 40)
        checks.positive("count", n)
        return Guarantee(tuple(dataclasses.replace(term, count=n * term.count) for term in self.terms))

    def compose(self, *others: ComposableGuarantee) -> Guarantee:
        """Return the guarantee of all reports of this and other guarantees together.

        All must be about the same person or record. The mechanism of a later guarantee may depend on earlier results,
        as long as its guarantee is the one that is composed.

        Raises:
            ValueError: one guarantee is for added and removed records, another one for replaced records.
        """
        return Guarantee(with_one_neighbouring(sum((other.terms for other in others), self.terms)))


def check_one_given(epsilon: Any, delta: Any) -> None:
    """Raise ValueError unless exactly one of the two is given."""
    if (epsilon is None) == (delta is None):
        raise ValueError("epsilon, delta: exactly one of them must be given")


@pytree
@dataclass(frozen=True, eq=False)
class Guarantee(ComposableGuarantee):
    """The privacy guarantee of composed reports; made by ``guarantee``, immutable, a pytree of its terms."""

    terms: tuple[SelfComposed, ...]

    def subsample(self, rate: Real, adjacency: str = "add_remove") -> Guarantee:
        """Return the guarantee if every report uses a Poisson sample of its own, with this rate.

        Neighbouring datasets differ by one record. The sensitivity of additive noise is the most that one record, if it
        is in the sample, adds to the true value or subtracts from it.

        Args:
            rate: the sampling rate, in (0, 1].
            adjacency: "add_remove": one record is added or removed; the worst two inputs are those of the dataset with
                the record and without it. "replace": one record is replaced by another one, so that the true value may
                change by twice the sensitivity; see ``dominating_pairs.replaced``.

        Raises:
            ValueError: the rate is out of range; reports are on samples already; or adjacency is "replace" and the
                noise, table or densities are not symmetric.
        """
        checks.within("rate", rate, np.nextafter(0.0, 1.0), 1.0)
        checks.one_of("adjacency", adjacency, NEIGHBOURS)
        if any(term.sampling_rate is not None for term in self.terms):
            raise ValueError("rate: these reports are on samples already")
        if adjacency == "replace":
            for term in self.terms:
                check_replaceable(term.pairs)
        sampled = (dataclasses.replace(term, sampling_rate=rate, neighbours=adjacency) for term in self.terms)
        return Guarantee(tuple(sampled))

    @property
    def neighbouring(self) -> str:
        """Describe which inputs are neighbours."""
        sampled = {term.neighbours for term in self.terms if term.sampling_rate is not None}
        return NEIGHBOURS[sampled.pop()] if sampled else ON_ALL_DATA

    @partial(in_64_bits, computes_on_host=True)
    def delta(self, epsilon: Real) -> Any:
        """Return the smallest delta such that the composed mechanism is (epsilon, delta)-DP, for eps >= 0 of any shape.

        The value is an estimate; use ``bracket`` for rigorous bounds. One release and composed Gaussian noise have
        exact profiles, few outcomes are enumerated, and everything else is composed by FFT on a grid. The table in
        docs/additive.md gives the accuracy of each case. Plain numbers are computed by NumPy, without compilation.

        Returns:
            A float for a number, otherwise a NumPy float64 array. JAX arguments give a JAX array, differentiable in
                eps, the count, the sampling rate and every parameter of the mechanism. One case is excluded: several
                reports have no valid derivative in an ``outside`` weight of 0, because losses are unbounded next to it.
                JAX numbers of 32 bits are computed in 64 bits where they are concrete; traced ones are an error.

        Raises:
            ValueError: epsilon is negative, or JAX traces numbers of 32 bits, which lose the tails of sums.
        """
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return self._inside_bracket(evaluate(self, "delta", epsilon), epsilon, self._delta_bracket)

    @partial(in_64_bits, computes_on_host=True)
    def epsilon(self, delta: Real) -> Any:
        """Return the smallest epsilon >= 0 such that the composed mechanism is (epsilon, delta)-DP.

        The value is inf if there is no such epsilon, and as accurate as ``delta``. Derivatives are implicit. JAX values
        are inf, too, where floating point does not resolve epsilon.

        Raises:
            ValueError: delta is not in (0, 1).
            ConvergenceError: floating point does not resolve epsilon, as for deltas next to the least float.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        found = self._inside_bracket(evaluate(self, "epsilon", delta), delta, self._epsilon_bracket)
        if namespace(found) is np and np.isinf(found).any() and np.any(np.isinf(found) & (self.infinity_mass < delta)):
            raise ConvergenceError(f"delta: {np.min(delta):g}; no eps is resolved in floating point")
        return found

    def _inside_bracket(self, found: Any, at: Any, bracket: Callable[[float], tuple[float, float]]) -> Any:
        """Return values of plain numbers; where one is outside its bracket, the upper end of the bracket.

        The FFT is not reliable for samples so small that losses are as close together as grid points: only these are
        checked.
        """
        if namespace(found) is not np or not self._has_tiny_samples:
            return found
        try:
            ends = [bracket(float(one)) if np.isfinite(one) else (0.0, np.inf) for one in np.ravel(at)]
        except UnknownSteepnessError:
            return found
        low, high = np.reshape(np.transpose(ends), (2, *np.shape(found)))
        return plain(np.where((low <= found) & (found <= high), found, high)[()])

    @property
    def _has_tiny_samples(self) -> bool:
        sampled = [term for term in self.terms if term.sampling_rate is not None]
        numbers = [(checks.concrete(term.count), checks.concrete(term.sampling_rate)) for term in sampled]
        known = [(float(count), float(rate)) for count, rate in numbers if count is not None and rate is not None]
        if not sampled or len(known) < len(sampled) or (len(self.terms) == 1 and known[0][0] == 1):
            return False
        return min(rate for _, rate in known) <= _TINY_RATE and sum(count * rate for count, rate in known) <= _HARDLY

    @cached_property
    def _bracket(self) -> Bracket:
        return Bracket(self)

    @property
    def infinity_mass(self) -> float:
        """Return the probability of an infinite loss, in the neighbour direction in which it is larger."""
        return float(max(infinity_mass(parts) for parts in as_float64(self).repeated_losses()))

    @property
    def neighbour_directions(self) -> tuple[bool, ...]:
        """Return, for each neighbour direction that is composed, whether the pairs are mirrored."""
        return (False,) if all(term.is_symmetric for term in self.terms) else (False, True)

    def repeated_losses(self, panels: int = 0, *, few: bool = False) -> tuple[RepeatedLosses, ...]:
        """Return the losses that are composed, for each neighbour direction; see ``SelfComposed.repeated_losses``."""
        mirrors = self.neighbour_directions
        return tuple(zip(*(term.repeated_losses(mirrors, panels, few=few) for term in self.terms), strict=True))

    @cached_property
    def numeric(self) -> Guarantee:
        """Return the guarantee with all plain numbers as NumPy's; cached."""
        return as_float64(self)

    @cached_property
    def numeric_directions(self) -> list[tuple[RepeatedLosses, RepeatedLosses]]:
        """Return (losses, the same losses with fewer nodes) of plain numbers for each neighbour direction; cached."""
        return directions_of_numbers(self)

    @cached_property
    def adaptive_profile(self) -> AdaptiveProfile | None:
        """Return the profile of plain numbers if a neighbour may move in another direction from release to release."""
        return AdaptiveProfile(self.numeric) if is_adaptive(self) else None

    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        adaptive = self.adaptive_profile and self.adaptive_profile.bracket("delta", epsilon)
        return adaptive or self._bracket.delta(epsilon)

    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        adaptive = self.adaptive_profile and self.adaptive_profile.bracket("epsilon", delta)
        return adaptive or self._bracket.epsilon(delta)

    @in_64_bits
    def renyi(self, order: Any) -> Any:
        """Return the Renyi divergence of the given order > 1, of any shape; inf where a loss may be infinite.

        It is rounded upwards, by at most 1e-10 of itself where losses are below 10^5, and that of the worse neighbour
        direction. If a neighbour
        may move in either direction, also adaptively, every release counts with its worse one.

        Raises:
            ValueError: an order is not above 1, or infinite.
            ConvergenceError: floating point does not resolve the divergence; with JAX numbers it is inf.
        """
        checks.within("order", order, np.nextafter(1.0, 2.0), np.finfo(np.float64).max)
        return renyi_divergence(self, order)

    def trade_off(self, alpha: Any) -> Any:
        """Return the least type II error of a test of level alpha.

        It is the maximum, over a grid of eps, of the two lines by which each (eps, delta) bounds the trade-off curve.
        """
        checks.within("alpha", alpha, 0.0, 1.0)
        # Fewer lines give a lower curve, which is conservative; beyond this eps the lines are almost flat.
        eps = np.linspace(0.0, min(self.epsilon(1e-9), 50.0), 129)
        delta = np.asarray(self.delta(eps))
        a = np.asarray(alpha, float)[..., None]
        lines = np.maximum(1 - delta - np.exp(eps) * a, np.exp(-eps) * (1 - delta - a))
        return np.maximum(lines.max(-1), 0.0)[()]

    def to_dict(self) -> dict[str, Any]:
        """Return a form that ``json`` can write."""
        return {"format": 1, "guarantee": {"type": "Guarantee", "terms": to_json_form(self.terms)}}

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Guarantee:
        """Return the guarantee from which ``to_dict`` made the form.

        Raises:
            ValueError: the form is not a guarantee of format 1.
        """
        whole = form.get("guarantee") if form.get("format") == 1 else None
        if not isinstance(whole, dict):
            raise ValueError("form: is not a guarantee of format 1")
        if set(whole) != {"type", "terms"} or whole["type"] != "Guarantee":
            raise ValueError(f"form: {whole.get('type')!r} {UNKNOWN}")
        terms = from_json_form(whole["terms"])
        check_releases(terms)
        return cls(terms)

    @classmethod
    def from_json(cls, text: str) -> Guarantee:
        """Return the guarantee from which ``to_json`` made the text."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guarantee) and self.to_dict() == other.to_dict())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached values, which contain functions that cannot be pickled."""
        return {"terms": self.terms}

    def __hash__(self) -> int:
        return hash(self.to_json())

    def plot(self, path: Path | str, *, epsilon: float | None = None) -> None:
        """Plot the privacy profile and the trade-off curve side by side into a PNG file.

        The largest eps shown is ``epsilon``, by default the eps at which delta is 1e-9.
        """
        from matplotlib.figure import Figure

        highest = epsilon if epsilon is not None else self.epsilon(1e-9)
        eps = np.linspace(0.0, highest if np.isfinite(highest) else 10.0, 49)
        figure = Figure(figsize=(9, 4), layout="constrained")
        profile, trade = figure.subplots(1, 2)
        profile.semilogy(eps, np.maximum([self.delta(float(e)) for e in eps], 1e-18))
        profile.set(title="Privacy profile", xlabel="epsilon (nats)", ylabel="delta")
        alpha = np.linspace(0, 1, 201)
        trade.plot(alpha, self.trade_off(alpha))
        trade.plot(alpha, 1 - alpha, ":", color="grey", label="no information")
        trade.set(title="Trade-off curve", xlabel="type I error", ylabel="least type II error", aspect="equal")
        trade.legend(frameon=False)
        figure.savefig(Path(path), dpi=120)


def guarantee(mechanism: Any, sensitivity: Any = None) -> Guarantee:
    """Return the guarantee of one report of a mechanism or of its exact sampler.

    Args:
        mechanism: a mechanism of dpkernels; an exact sampler, or the certificate of noise on numbers, whose integers
            are then accounted; or a dominating pair, as ``weights``, ``randomised_response`` and ``densities`` make.
        sensitivity: D of an additive mechanism; the default is that of its claim. Other mechanisms take none.

    Raises:
        TypeError: the mechanism is unknown.
        ValueError: the sensitivity is missing or not applicable; or p or q of a pair is not a probability distribution.
    """
    if isinstance(mechanism, DominatingPair):
        reject_sensitivity(sensitivity)
        if namespace(*jax.tree.leaves(mechanism)) is np:
            mechanism.check()
        odd = checks.concrete(mechanism.symmetry_gap())
        # Pairs that may be asymmetric are composed in both directions.
        alone = mechanism.may_be_asymmetric or (odd is not None and odd <= _SYMMETRIC)
        return Guarantee((SelfComposed((mechanism,) if alone else (mechanism, mechanism.mirror()), 1),))
    return Guarantee((SelfComposed(dominating_pairs(mechanism, sensitivity), 1),))
