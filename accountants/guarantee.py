"""Guarantees as values: the privacy of a sequence of mechanisms.

    guarantee(mechanism).subsample(rate).repeat(n).compose(other)

The neighbours of a guarantee are those of its mechanisms:

- For additive noise, and for bounded mechanisms with a sensitivity, neighbours are datasets whose true values differ by
  at most the sensitivity in every report.
- For other mechanisms, neighbours are any two inputs.
- With ``subsample``, every report uses an independent Poisson sample, and neighbours differ by one record that is added
  or removed, or by one that is replaced (``adjacency``).

Guarantees are for mechanisms that are fixed in advance; ``dpkernels.budgets`` is for budgets that are chosen
adaptively. The guarantee of a mechanism is for its distribution in exact arithmetic, and that of an exact sampler for
its integers.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from accountants.composition.adaptive import AdaptiveProfile, is_adaptive
from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.brackets.monotone import UnknownSteepnessError
from accountants.composition.gaussian import GaussianReleases
from accountants.composition.outside_jit import evaluate_outside_jit
from accountants.composition.quantity import DeltaAt, EpsilonAt
from accountants.composition.renyi import renyi_divergence
from accountants.composition.repeated import (
    ALL_NEIGHBOURS,
    NEIGHBOURS,
    ON_ALL_DATA,
    ConvergenceError,
    LossTuple,
    RepeatedReleases,
    check_adjacency,
    check_releases,
    infinity_mass,
)
from accountants.composition.tilted_direction import directions_of_numbers
from accountants.composition.trade_off import CurvePoint
from accountants.dominating_pairs.base import DominatingPair, as_float64, check_masses
from accountants.dominating_pairs.replaced import check_replaceable
from accountants.guarantee_json import UNKNOWN, from_json_form, to_json_form
from accountants.precision import in_64_bits
from accountants.risk import Risks, plot_trade_off
from accountants.schemes.allocation import allocated_pairs, repeated_gaussian
from accountants.schemes.fixed_size import fixed_size_pair, replacing_pair
from accountants.schemes.groups import MAX_RECORDS, grouped_pair, sampled_group_pair
from accountants.schemes.poisson import truncated_pair
from accountants.schemes.shuffled import shuffled_pair
from dpkernels import checks
from dpkernels.numerics import Real, float_if_scalar, namespace
from dpkernels.pytrees import pytree

ASK_FOR_AN_ESTIMATE = "ask for estimate_delta or estimate_epsilon, which may be below the truth"


class ComposableGuarantee(Risks):
    """A guarantee that can be repeated and composed: of reports, or of shuffled reports."""

    @abc.abstractmethod
    def estimate_epsilon(self, delta: Real) -> Any:
        """Return an estimate of epsilon at a delta, which may be on either side of the truth."""

    @abc.abstractmethod
    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        """Return (lower, upper) bounds of delta at eps >= 0."""

    @abc.abstractmethod
    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        """Return (lower, upper) bounds of eps at delta in (0, 1)."""

    def bracket(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        alpha: float | None = None,
        false_positive_rate: float | None = None,
    ) -> tuple[float, float]:
        """Return a rigorous interval (lower, upper), which includes truncation, quadrature and rounding errors.

        | argument | of |
        |---|---|
        | ``epsilon`` >= 0 | ``delta`` |
        | ``delta`` in (0, 1) | ``epsilon`` |
        | ``alpha`` in [0, 1] | ``trade_off`` |
        | ``false_positive_rate`` in [0, 1] | ``true_positive_rate`` |

        Raises:
            ValueError: not exactly one argument is given, or it is out of range; or there is no bracket, as for a
                density that states no bound on how fast it changes.
        """
        arguments = {"epsilon": epsilon, "delta": delta, "alpha": alpha, "false_positive_rate": false_positive_rate}
        name, argument = only_argument(**arguments)
        largest = np.inf if name == "epsilon" else 1.0
        checks.within(name, number := checks.number(name, argument), 0.0, largest, open_ends=name == "delta")
        if name in ("epsilon", "delta"):
            low, high = self._delta_bracket(number) if name == "epsilon" else self._epsilon_bracket(number)
        else:
            point = self._curve_point(number)
            low, high = point.error if name == "alpha" else point.power
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
        n = count if isinstance(count, jax.Array) else checks.integer_in("count", count, 1, 1 << 40)
        checks.positive("count", n)
        return Guarantee(tuple(dataclasses.replace(term, count=n * term.count) for term in self.terms))

    def compose(self, *others: ComposableGuarantee) -> Guarantee:
        """Return the guarantee of all reports of this and other guarantees together.

        All must be about the same person or record. The mechanism of a later guarantee may depend on earlier results,
        as long as its guarantee is the one that is composed.

        Raises:
            ValueError: one guarantee is for added and removed records, another one for replaced records.
        """
        terms = sum((guarantee.terms for guarantee in others), self.terms)
        check_adjacency(terms)
        return Guarantee(terms)


def only_argument(**arguments: Real | None) -> tuple[str, Real]:
    """Return the name and the value of the one argument that is given; raise ValueError unless it is exactly one."""
    stated = [(name, value) for name, value in arguments.items() if value is not None]
    if len(stated) != 1:
        raise ValueError(f"{', '.join(arguments)}: exactly one of them must be given")
    return stated[0]


@contextmanager
def advising(alternative: str) -> Iterator[None]:
    """Say, where a density states no steepness that a bound needs, what else to ask for."""
    try:
        yield
    except UnknownSteepnessError as error:
        raise UnknownSteepnessError(f"{error}; state its steepness, or {alternative}") from error


@pytree
@dataclass(frozen=True, eq=False)
class Guarantee(ComposableGuarantee):
    """The privacy guarantee of composed reports; made by ``guarantee``, immutable, a pytree of its terms."""

    terms: tuple[RepeatedReleases, ...]

    def subsample(
        self, rate: Real, adjacency: str = "add_remove", *, capacity: int | None = None, examples: int | None = None
    ) -> Guarantee:
        """Return the guarantee if every report uses a Poisson sample of its own, with this rate.

        Neighbouring datasets differ by one record. The sensitivity of additive noise is the most that one record, if it
        is in the sample, adds to the true value or subtracts from it.

        Args:
            rate: the sampling rate, in (0, 1].
            adjacency: "add_remove": one record is added or removed; the worst two inputs are those of the dataset with
                the record and without it. "replace": one record is replaced by another one, so that the true value may
                change by twice the sensitivity; see ``dominating_pairs.replaced``.
            capacity: the most records of a sample. Of more records that were drawn, a random subset of this size is
                kept (truncated Poisson sampling). The guarantee is an upper bound, which is narrow if samples are
                seldom full; ``bracket`` has both ends.
            examples: with a capacity, the number of records of the larger one of both datasets.

        Raises:
            ValueError: the rate is out of range; reports are on samples already; adjacency is "replace" and the noise,
                table or densities are not symmetric, or there is a capacity; or one of capacity and examples is given
                without the other.
        """
        checks.within("rate", rate, np.nextafter(0.0, 1.0), 1.0)
        checks.one_of("adjacency", adjacency, NEIGHBOURS)
        self._check_on_all_data("rate")
        if capacity is not None or examples is not None:
            if capacity is None or examples is None or adjacency == "replace":
                raise ValueError(
                    f"capacity: {capacity}, examples: {examples}; both are needed for samples of a capacity, whose "
                    "adjacency is 'add_remove'"
                )
            return self._map_pairs(
                lambda pair: truncated_pair(pair, replacing_pair(pair), rate, capacity, examples), "capacity"
            )
        if adjacency == "replace":
            for term in self.terms:
                check_replaceable(term.pairs)
        sampled = (dataclasses.replace(term, sampling_rate=rate, adjacency=adjacency) for term in self.terms)
        return Guarantee(tuple(sampled))

    def sample_fixed(self, batch: Real, examples: Real) -> Guarantee:
        """Return the guarantee if every report uses ``batch`` of ``examples`` records, drawn without replacement.

        Neighbouring datasets have as many records and differ in one. One report is accounted exactly. Of several
        reports the values are upper bounds; the lower end of ``bracket`` is that of datasets that are known to be bad.

        Raises:
            ValueError: a number is not positive, the batch has more records than there are; the noise is not even, or
                a bounded mechanism is for inputs within a sensitivity; or reports are on samples already.
        """
        checks.positive("batch", batch)
        checks.positive("examples", examples)
        checks.within("batch", batch, 0.0, examples)
        self._check_on_all_data("batch")
        return self._map_pairs(lambda pair: fixed_size_pair(pair, batch / examples), "batch")

    def random_allocation(self, steps: Real, times: int = 1) -> Guarantee:
        """Return the guarantee of ``steps`` reports if every record takes part in ``times`` of them, chosen at random.

        All reports together are one allocation. ``repeat(epochs)`` allocates afresh in every epoch; ``balls_in_bins``
        uses one assignment for all epochs. Neighbouring datasets differ by one record that is added or removed. The
        bracket of one allocation is at most about 1e-4 wide. For ``times`` above 1 the values are upper bounds, which
        are those of a step in each of so many blocks of steps; the lower end is that of the sum of all reports for
        Gaussian noise, and 0 for other mechanisms. Values of JAX numbers have derivatives, also in steps that are a
        JAX number.

        Raises:
            TypeError: a number is not an integer.
            ValueError: there are fewer steps than times; the noise is not even; this guarantee has several reports; or
                they are on samples already.

        Example:
            >>> import dpkernels as dpk
            >>> from accountants import guarantee
            >>> step = guarantee(dpk.Additive(dpk.Gaussian(1.0)), 1.0)
            >>> round(step.random_allocation(100).epsilon(1e-6), 3)
            0.858
        """
        self._check_single_report("steps")
        times = checks.integer_in("times", times, 1, 1 << 40)
        if not isinstance(steps, jax.Array):
            steps = checks.integer_in("steps", steps, 1, 1 << 40)
        checks.positive("steps", steps)
        self._check_on_all_data("steps")
        terms = []
        for term in self._single_pair_terms("steps"):
            terms += [
                dataclasses.replace(term, pairs=(pair,), count=count * term.count)
                for pair, count in allocated_pairs(term.pairs[0], steps, times)
            ]
        return Guarantee(tuple(terms))

    def balls_in_bins(self, steps: int, epochs: Real = 1) -> Guarantee:
        """Return the guarantee of ``epochs`` times ``steps`` reports if a record takes part in one random step of all.

        Every epoch has the same assignment of records to steps. The average of the epochs' reports of a step tells
        all, so that this is exactly one random allocation of noise that is narrower by the root of the epochs.

        Raises:
            ValueError: the noise is not Gaussian, a number is not positive, this guarantee has several reports, or they
                are on samples already.
        """
        self._check_single_report("epochs")
        checks.positive("epochs", epochs)
        self._check_on_all_data("epochs")
        averaged = self._map_pairs(lambda pair: repeated_gaussian(pair, epochs), "epochs")
        return averaged.random_allocation(steps)

    def shuffled_batches(self, steps: int) -> Guarantee:
        """Return the guarantee of ``steps`` reports, each on one of as many equal batches of the shuffled records.

        All reports together are one pass over the data. Neighbours replace the value of one record by 0, and batches
        stay as they are. No amplification by shuffling is proven for the noise of training. So the values, which are
        upper bounds, are those of one report without shuffling. The lower end of ``bracket`` is that of a test which
        is proven to work: shuffled batches are less private than Poisson samples of one rate, or random allocation.

        Raises:
            ValueError: the noise is not Gaussian, the steps are not positive, this guarantee has several reports, or
                they are on samples already.
        """
        self._check_single_report("steps")
        steps = checks.integer_in("steps", steps, 1, 1 << 40)
        self._check_on_all_data("steps")
        return self._map_pairs(lambda pair: shuffled_pair(pair, steps), "steps")

    def for_groups(self, records: int) -> Guarantee:
        """Return the guarantee for groups of up to so many records, which are all added or all removed.

        It is for people with several records. Additive noise on all the data moves by as many sensitivities. On Poisson
        samples, every record is in the sample independently; the bound is attained by even log-concave noise.

        Raises:
            ValueError: the mechanism is not additive noise, records are not 1 to 1024; or reports are on samples with
                replaced records or of another scheme, where no bound for groups is known.
        """
        records = checks.integer_in("records", records, 1, MAX_RECORDS)
        if records == 1:
            return self
        terms = []
        for term in self.terms:
            if term.record_adjacency == "replace" or (term.record_adjacency and term.sampling_rate is None):
                raise ValueError(
                    f"records: {records}; groups are known for reports on all the data and on Poisson samples with "
                    "records added or removed"
                )
            if term.sampling_rate is None:
                pairs = tuple(grouped_pair(pair, records) for pair in term.pairs)
            else:
                (single,) = self._single_pair_terms("records", term)
                pairs = (sampled_group_pair(single.pairs[0], records, term.sampling_rate),)
            terms.append(RepeatedReleases(pairs, term.count))
        return Guarantee(tuple(terms))

    def _check_on_all_data(self, name: str) -> None:
        if any(term.record_adjacency for term in self.terms):
            raise ValueError(f"{name}: these reports are on samples already")

    def _check_single_report(self, name: str) -> None:
        """Raise a ValueError if a step has several reports: if they share its records, they are no allocations each."""
        counts = [checks.concrete(term.count) for term in self.terms]
        if len(counts) > 1 or any(count is not None and count != 1 for count in counts):
            raise ValueError(
                f"{name}: the guarantee of a step is that of one report, and this one has several; repeat or compose "
                "the allocations if each report has its own"
            )

    def _single_pair_terms(self, name: str, *terms: RepeatedReleases) -> tuple[RepeatedReleases, ...]:
        """Return the terms, all by default; raise ValueError if one has two pairs, as noise that is not even has."""
        terms = terms or self.terms
        if any(len(term.pairs) > 1 for term in terms):
            raise ValueError(f"{name}: this scheme is known for noise that is even, and for symmetric pairs")
        return terms

    def _map_pairs(self, change: Callable[[DominatingPair], DominatingPair], name: str) -> Guarantee:
        terms = self._single_pair_terms(name)
        return Guarantee(tuple(dataclasses.replace(term, pairs=(change(term.pairs[0]),)) for term in terms))

    def attained(self) -> list[Guarantee]:
        """Return guarantees that bound this one from below, none if its own pairs are attained."""
        numeric = self.numeric
        if not any(pair.attained() for term in numeric.terms for pair in term.pairs):
            return []
        choices = [[term.attained(pair) for pair in term.pairs] for term in numeric.terms]
        count = max(len(several) for choice in choices for several in choice)
        return [
            Guarantee(
                tuple(
                    dataclasses.replace(term, pairs=tuple(several[min(k, len(several) - 1)] for several in choice))
                    for term, choice in zip(numeric.terms, choices, strict=True)
                )
            )
            for k in range(count)
        ]

    @property
    def neighbouring(self) -> str:
        """Describe which inputs are neighbours."""
        sampled = {term.record_adjacency for term in self.terms if term.record_adjacency}
        return ALL_NEIGHBOURS[sampled.pop()] if sampled else ON_ALL_DATA

    def delta(self, epsilon: Real) -> Any:
        """Return a delta such that the composed mechanism is (epsilon, delta)-DP, for eps >= 0 of any shape.

        Of plain numbers it is the upper end of ``bracket``, so it is never below the smallest such delta. Of JAX
        numbers it is ``estimate_delta``, which is differentiable. docs/accuracy.md has the width of every method.

        Returns:
            A float for a number, otherwise a NumPy float64 array; a JAX array for JAX arguments.

        Raises:
            ValueError: epsilon is negative, or no bound is proven: a density states no steepness where one is needed,
                or masses are estimates.
        """
        if self._is_traced(epsilon):
            return self.estimate_delta(epsilon)
        checks.within("epsilon", epsilon, 0.0, np.inf)
        self._check_proven()
        with advising(ASK_FOR_AN_ESTIMATE):
            return float_if_scalar(self._bounds.upper_ends_of_delta(np.asarray(epsilon, np.float64)))

    def epsilon(self, delta: Real) -> Any:
        """Return an epsilon >= 0 such that the composed mechanism is (epsilon, delta)-DP, for deltas of any shape.

        Of plain numbers it is the upper end of ``bracket``, so it is never below the smallest such epsilon. It is inf
        if none is proven. Of JAX numbers it is ``estimate_epsilon``, which is differentiable.

        Raises:
            ValueError: delta is not in (0, 1), or a case of ``delta``.
        """
        if self._is_traced(delta):
            return self.estimate_epsilon(delta)
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        self._check_proven()
        with advising(ASK_FOR_AN_ESTIMATE):
            return float_if_scalar(self._bounds.upper_ends_of_epsilon(np.asarray(delta, np.float64)))

    @partial(in_64_bits, computes_on_host=True)
    def estimate_delta(self, epsilon: Real) -> Any:
        """Return an estimate of the smallest delta such that the composed mechanism is (epsilon, delta)-DP.

        The estimate may be below the truth; docs/accuracy.md has its error. One release and composed Gaussian noise
        have exact profiles, few outcomes are enumerated, and everything else is composed by FFT on a grid. Plain
        numbers are computed by NumPy, without compilation.

        Returns:
            A float for a number, otherwise a NumPy float64 array. JAX arguments give a JAX array, differentiable in
                eps, the count, the sampling rate and every parameter of the mechanism. One case is excluded: several
                reports have no valid derivative in an ``outside`` weight of 0, because losses are unbounded next to it.
                JAX numbers of 32 bits are computed in 64 bits where they are concrete; traced ones are an error.

        Raises:
            ValueError: epsilon is negative, or JAX traces numbers of 32 bits, which lose the tails of sums.
        """
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return evaluate_outside_jit(self, DeltaAt, epsilon)

    @partial(in_64_bits, computes_on_host=True)
    def estimate_epsilon(self, delta: Real) -> Any:
        """Return an estimate of the smallest epsilon >= 0 such that the composed mechanism is (epsilon, delta)-DP.

        The value is inf if there is no such epsilon, and as accurate as ``estimate_delta``. Derivatives are implicit.
        JAX values are inf, too, where floating point does not resolve epsilon.

        Raises:
            ValueError: delta is not in (0, 1).
            ConvergenceError: floating point does not resolve epsilon, as for deltas next to the least float.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        eps = evaluate_outside_jit(self, EpsilonAt, delta)
        if namespace(eps) is np and np.isinf(eps).any() and np.any(np.isinf(eps) & (self.infinity_mass < delta)):
            raise ConvergenceError(f"delta: {np.min(delta):g}; no eps is resolved in floating point")
        return eps

    def _is_traced(self, *values: object) -> bool:
        return namespace(*values, *jax.tree.leaves(self)) is not np

    def _check_proven(self) -> None:
        check_masses((pair for term in self.terms for pair in term.pairs), ASK_FOR_AN_ESTIMATE)

    def _curve_point(self, alpha: float) -> CurvePoint:
        with advising("ask for estimate_trade_off, which may be above the truth"):
            return self._bounds.curve_point(alpha)

    def _gaussian_mu(self) -> float:
        gaussian = GaussianReleases.from_guarantee(self)
        return 0.0 if gaussian is None else float(gaussian.profile.mu) * (1 + 1e-12)

    def _pure_epsilon(self) -> float:
        return 0.0 if self._bounds.largest_loss <= 0 else self._bounds.largest_loss

    @cached_property
    def _bounds(self) -> RigorousBounds:
        return RigorousBounds(self)

    @property
    def infinity_mass(self) -> float:
        """Return the probability of an infinite loss, in the neighbour direction in which it is larger."""
        return float(max(infinity_mass(losses) for losses in as_float64(self).repeated_losses()))

    @property
    def neighbour_directions(self) -> tuple[bool, ...]:
        """Return, for each neighbour direction that is composed, whether the pairs are mirrored."""
        return (False,) if all(term.is_symmetric for term in self.terms) else (False, True)

    def repeated_losses(self, panels: int = 0, *, may_sample: bool = False) -> tuple[LossTuple, ...]:
        """Return the losses that are composed, for each neighbour direction, as ``RepeatedReleases`` does."""
        mirrors = self.neighbour_directions
        columns = (term.repeated_losses(mirrors, panels, may_sample=may_sample) for term in self.terms)
        return tuple(zip(*columns, strict=True))

    @cached_property
    def numeric(self) -> Guarantee:
        """Return the guarantee with all plain numbers as NumPy's; cached."""
        return as_float64(self)

    @cached_property
    def numeric_directions(self) -> list[tuple[LossTuple, LossTuple]]:
        """Return (losses, the same losses with fewer nodes) of plain numbers for each neighbour direction; cached."""
        return directions_of_numbers(self)

    @cached_property
    def adaptive_profile(self) -> AdaptiveProfile | None:
        """Return the profile of plain numbers if a neighbour may move in another direction from release to release."""
        return AdaptiveProfile(self.numeric) if is_adaptive(self) else None

    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        return self._bounds.delta(epsilon)

    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        return self._bounds.epsilon(delta)

    @in_64_bits
    def renyi(self, order: Real) -> Real:
        """Return the Renyi divergence of the given order > 1, of any shape; inf where a loss may be infinite.

        It is that of the worse neighbour direction, rounded upwards by at most 1e-10 of itself where losses are below
        10^5. If a neighbour may move in either direction, also adaptively, every release counts with its worse one.

        Raises:
            ValueError: an order is not above 1, or infinite.
            ConvergenceError: floating point does not resolve the divergence; with JAX numbers it is inf.
        """
        checks.within("order", order, np.nextafter(1.0, 2.0), np.finfo(np.float64).max)
        return renyi_divergence(self, order)

    def to_dict(self) -> dict[str, object]:
        """Return a form that ``json`` can write."""
        return {"format": 1, "guarantee": {"type": "Guarantee", "terms": to_json_form(self.terms)}}

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, form: dict[str, object]) -> Guarantee:
        """Return the guarantee from which ``to_dict`` made the form.

        Raises:
            ValueError: the form is not a guarantee of format 1.
        """
        content = form.get("guarantee") if form.get("format") == 1 else None
        if not isinstance(content, dict):
            raise ValueError("form: is not a guarantee of format 1")
        if set(content) != {"type", "terms"} or content["type"] != "Guarantee":
            raise ValueError(f"form: {content.get('type')!r} {UNKNOWN}")
        terms = from_json_form(content["terms"])
        check_releases(terms)
        return cls(terms)

    @classmethod
    def from_json(cls, text: str) -> Guarantee:
        """Return the guarantee from which ``to_json`` made the text."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guarantee) and self.to_dict() == other.to_dict())

    def __getstate__(self) -> dict[str, object]:
        """Leave out the cached values, which contain functions that cannot be pickled."""
        return {"terms": self.terms}

    def __hash__(self) -> int:
        return hash(self.to_json())

    def plot(self, path: Path | str, *, epsilon: float | None = None) -> None:
        """Plot the privacy profile, an estimate, and both ends of the trade-off curve side by side into a PNG file.

        The largest eps shown is ``epsilon``, by default the eps at which delta is 1e-9.
        """
        from matplotlib.figure import Figure

        highest = epsilon if epsilon is not None else self.estimate_epsilon(1e-9)
        eps = np.linspace(0.0, highest if np.isfinite(highest) else 10.0, 49)
        figure = Figure(figsize=(9, 4), layout="constrained")
        profile, trade = figure.subplots(1, 2)
        profile.semilogy(eps, np.maximum(self.estimate_delta(eps), 1e-18))
        profile.set(title="Privacy profile", xlabel="epsilon (nats)", ylabel="delta")
        plot_trade_off(self, trade)
        figure.savefig(Path(path), dpi=120)
