"""An accountant for the events of dp_accounting that uses the privacy profiles of this package.

Install the extra ``dp-accounting``. The supported events depend on the neighbouring relation of the accountant:

    event                                         add/remove, replace-special        replace-one
    Gaussian                                      yes                                yes, twice the distance
    Laplace, discrete Laplace                     yes                                yes, twice the distance
    randomised response                           replace-special                    yes
    mixture of Gaussians                          yes                                no
    zCDP, (epsilon, delta), exponential mechanism, permute-and-flip
                                                  yes, as upper bounds               yes, as upper bounds
    discrete Gaussian of one dimension            yes                                yes, twice the distance
    Poisson sample of Gaussian mechanisms         yes                                yes
    Poisson sample of (discrete) Laplace          yes                                no
    truncated Poisson sample of a Gaussian        yes, as an upper bound             no
    fixed-size sample of noise                    no                                 yes, as an upper bound
    no-op, non-private, composed, self-composed   yes                                yes

All other events raise ``dp_accounting.UnsupportedEventError``. For a Gaussian mechanism on a Poisson sample with one
record replaced, the worst case is two records with opposite vectors of the largest norm; see
docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation
from dp_accounting import dp_event as events
from scipy.special import expit

import accountants
import dpkernels as dpk
from accountants.closed_forms.concentrated import best_delta
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.base import DominatingPair
from accountants.dominating_pairs.gaussian_mixture import GaussianMixture
from accountants.privacy_loss import sampled_loss
from accountants.shuffle.bracket import lower_hull
from dpkernels.numerics import Real, ndtri

_Details = dp_accounting.PrivacyAccountant.CompositionErrorDetails
_Unsupported = dp_accounting.UnsupportedEventError

# A discrete Laplace event has one outcome for each integer up to its sensitivity.
_MAX_OUTCOMES = 1 << 20
_POINTS = 2048  # Points at which the profile of a zCDP mechanism is bounded.
_LAST_DELTA = 1e-18  # The delta beyond the last of them.
_ROUNDING = 2.0**-40  # More than the relative rounding error of a sum of pure budgets.
_RATIO_ROUNDING = 2.0**-48  # More than the absolute rounding error of the log ratio of two probabilities.
_NOISES = ("gaussian", "laplace", "discrete laplace", "discrete gaussian")


def _event_class(name: str) -> Any:
    """Return an event's class; of a dp_accounting without it, one that has no instances."""
    return getattr(events, name, type(name, (), {}))


_EpsilonDelta = _event_class("EpsilonDeltaDpEvent")
_Exponential = _event_class("ExponentialMechanismDpEvent")
_PermuteAndFlip = _event_class("PermuteAndFlipDpEvent")
_DiscreteGaussian = _event_class("DiscreteGaussianDpEvent")


class Accountant(dp_accounting.PrivacyAccountant):
    """A privacy accountant for ``DpEvent`` trees.

    Its answers are upper bounds, the upper ends of rigorous brackets. ``estimate_epsilon`` and ``estimate_delta``
    return estimates, which may be below the truth.

    Example:
        >>> import dp_accounting
        >>> from accountants.interop.dp_accounting import Accountant
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> round(Accountant().compose(step, 1000).get_epsilon(1e-6), 3)
        2.125
    """

    def __init__(self, neighboring_relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> None:
        """Start an empty accountant; a neighbouring relation that is not one of dp_accounting's is a TypeError."""
        if not isinstance(neighboring_relation, Relation):
            raise TypeError(f"neighboring_relation: {neighboring_relation!r} is not a NeighboringRelation")
        super().__init__(neighboring_relation)
        self._counts = Counter[_AccountedRelease]()
        self._composed: accountants.Guarantee | None = None

    def _maybe_compose(self, event: object, count: int, do_compose: bool) -> object:
        try:
            releases = [item for item in _releases(event, count, self.neighboring_relation) if item[1]]
        except _Unsupported as error:
            return _Details(*error.args)
        if do_compose:
            self._composed = None
            for release, times in releases:
                self._counts[release] += times
        return None

    @property
    def guarantee(self) -> accountants.Guarantee:
        """Return the composed mechanisms as a ``Guarantee``.

        Raises:
            ValueError: no event has been composed, or one without privacy.
        """
        if _NON_PRIVATE in self._counts:
            raise ValueError("ledger: holds a non-private event, which has no guarantee")
        if self._composed is None:
            relation = self.neighboring_relation
            guarantees = [
                release.guarantee(relation).repeat(n) for release, n in self._counts.items() if release.kind != "zcdp"
            ]
            zcdp = [(n, *release.parameters) for release, n in self._counts.items() if release.kind == "zcdp"]
            if zcdp:
                rho, xi = sum(n * rho for n, rho, _ in zcdp), sum(n * xi for n, _, xi in zcdp)
                guarantees.append(accountants.guarantee(_zcdp_pair(rho, xi)))
            if not guarantees:
                raise ValueError("ledger: holds no event with a privacy loss, so there is no guarantee")
            self._composed = reduce(lambda first, second: first.compose(second), guarantees)
        return self._composed

    def get_epsilon(self, target_delta: float) -> float:
        """Return an epsilon such that everything composed is (epsilon, target_delta)-DP: an upper bound.

        Raises:
            ValueError: target_delta is not in [0, 1].
        """
        return self._epsilon_bracket(target_delta)[1]

    def get_delta(self, target_epsilon: float) -> float:
        """Return a delta such that everything composed is (target_epsilon, delta)-DP: an upper bound.

        Raises:
            ValueError: target_epsilon is negative.
        """
        return self._delta_bracket(target_epsilon)[1]

    def estimate_epsilon(self, target_delta: float) -> float:
        """Return an estimate of the smallest epsilon of everything composed; it may be below the truth."""
        closed_form = self._trivial_epsilon(target_delta)
        epsilon = float(self.guarantee.estimate_epsilon(target_delta)) if closed_form is None else closed_form
        return min(epsilon, self._pure_epsilon())

    def estimate_delta(self, target_epsilon: float) -> float:
        """Return an estimate of the smallest delta of everything composed; it may be below the truth."""
        closed_form = self._trivial_delta(target_epsilon)
        return float(self.guarantee.estimate_delta(target_epsilon)) if closed_form is None else closed_form

    def get_true_positive_rates(self, false_positive_rates: Real, deltas: object = None) -> Real:
        """Return upper bounds of the true positive rates of any attack at some false positive rates.

        They are those of the trade-off curve itself, so that ``deltas``, at which dp_accounting looks, are not needed.

        Raises:
            ValueError: a rate is not in [0, 1].
        """
        rates = np.asarray(false_positive_rates, np.float64)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise ValueError(f"false_positive_rates: {false_positive_rates} are not in [0, 1]")
        if _NON_PRIVATE in self._counts:
            return np.ones_like(rates)[()]
        return self.guarantee.true_positive_rate(false_positive_rates) if self._counts else rates[()]

    def get_gdp_parameter_estimate(self, false_positive_rates: object = None, deltas: object = None) -> float:
        """Return an estimate of the mu of a Gaussian mechanism that is no more private at some false positive rates.

        It is inf if an infinite loss is more likely than the least rate. The default rates are 100 from 1e-12 to 0.5.
        """
        rates = np.geomspace(1e-12, 0.5, 100) if false_positive_rates is None else np.asarray(false_positive_rates)
        rates = rates[rates <= 0.5]
        if _NON_PRIVATE in self._counts or (self._counts and self.guarantee.infinity_mass > rates.min()):
            return math.inf
        return float(np.max(ndtri(self.get_true_positive_rates(rates, deltas)) - ndtri(rates)))

    def get_bracket(self, *, delta: float | None = None, epsilon: float | None = None) -> tuple[float, float]:
        """Return a rigorous interval for epsilon at delta, or for delta at epsilon.

        For zCDP events only the upper end is rigorous: the lower end is that of the bound that stands for them.

        Raises:
            ValueError: not exactly one of the two is given, or it is out of range.
        """
        if (delta is None) == (epsilon is None):
            raise ValueError("delta, epsilon: exactly one of them must be given")
        return self._epsilon_bracket(delta) if delta is not None else self._delta_bracket(float(epsilon or 0.0))

    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        closed_form = self._trivial_epsilon(delta)
        low, high = (
            (closed_form, closed_form) if closed_form is not None else self.guarantee.bracket(delta=float(delta))
        )
        return min(low, self._pure_epsilon()), min(high, self._upper_pure_epsilon())

    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        closed_form = self._trivial_delta(epsilon)
        return (closed_form, closed_form) if closed_form is not None else self.guarantee.bracket(epsilon=float(epsilon))

    def _trivial_epsilon(self, delta: float) -> float | None:
        """Return epsilon where it does not need the composition, else None; inf at a delta of 0."""
        if not 0 <= delta <= 1:
            raise ValueError(f"target_delta: {delta} is not in [0, 1]")
        if delta == 0 or _NON_PRIVATE in self._counts:
            return math.inf  # The pure epsilon is smaller, where there is one.
        return 0.0 if not self._counts or delta == 1 else None

    def _trivial_delta(self, epsilon: float) -> float | None:
        """Return delta where it does not need the composition, else None."""
        if not epsilon >= 0:
            raise ValueError(f"target_epsilon: {epsilon} is not at least 0")
        if _NON_PRIVATE in self._counts:
            return 1.0
        return 0.0 if not self._counts or epsilon >= self._upper_pure_epsilon() else None

    def _upper_pure_epsilon(self) -> float:
        """Return ``_pure_epsilon``, rounded up; budgets that are given have an exact sum."""
        if all(release.kind == "budget" and not release.parameters[1] for release in self._counts):
            total = sum((n * Fraction(release.parameters[0]) for release, n in self._counts.items()), Fraction(0))
            return float(total) if Fraction(float(total)) >= total else math.nextafter(float(total), math.inf)
        return self._pure_epsilon() * (1 + _ROUNDING) + _RATIO_ROUNDING * sum(self._counts.values())

    def _pure_epsilon(self) -> float:
        """Return the pure epsilon of everything composed: the larger sum over both directions of a neighbour."""
        if _NON_PRIVATE in self._counts:
            return math.inf
        levels = [(release.pure_levels(self.neighboring_relation), n) for release, n in self._counts.items()]
        return max(math.fsum(n * level[i] for level, n in levels) for i in (0, 1))


def from_dp_event(
    event: dp_accounting.DpEvent, neighboring_relation: Relation = Relation.ADD_OR_REMOVE_ONE
) -> accountants.Guarantee:
    """Return the guarantee of an event.

    Raises:
        dp_accounting.UnsupportedEventError: the event is not accounted under the relation.
        ValueError: the event has no privacy loss, or no privacy.
    """
    return Accountant(neighboring_relation).compose(event).guarantee


def to_dp_event(
    guarantee: accountants.Guarantee, neighboring_relation: Relation = Relation.ADD_OR_REMOVE_ONE
) -> dp_accounting.DpEvent:
    """Return the event that has the meaning of a guarantee, for an accountant with this relation.

    Gaussian and Laplace noise, on all the data or on Poisson samples, has an event; so have randomised response and the
    pairs that ``from_dp_event`` makes of discrete Laplace noise. The noise multiplier of a guarantee on all the data is
    its standard deviation over its sensitivity. With records replaced, neighbours are two norms apart, so that it
    doubles.

    Raises:
        ValueError: no event means the same under this relation. The error names the mechanism.
    """
    events = [_term_event(term, neighboring_relation) for term in guarantee.terms]
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def _term_event(term: RepeatedReleases, relation: Relation) -> dp_accounting.DpEvent:
    pair, *further_pairs = term.pairs
    replaced = relation is Relation.REPLACE_ONE
    if term.sampling_rate is not None and replaced != (term.adjacency == "replace"):
        raise ValueError(f"neighboring_relation: {relation.name} is not that of the guarantee's samples")
    distance = 2.0 if replaced and term.sampling_rate is None else 1.0
    noise, event = getattr(pair, "noise", None), None
    if further_pairs:
        pass
    elif isinstance(noise, dpk.Gaussian):
        event = dp_accounting.GaussianDpEvent(distance * float(noise.sigma))
    elif isinstance(noise, dpk.Laplace):
        event = dp_accounting.LaplaceDpEvent(distance * float(noise.scale))
    elif noise is None and hasattr(pair, "p") and np.array_equal(pair.p, np.asarray(pair.q)[::-1]):
        event = _table_event(np.asarray(pair.p), relation)
    if event is None or (term.sampling_rate is not None and replaced and not isinstance(noise, dpk.Gaussian)):
        raise ValueError(f"guarantee: no event means the same as its {type(noise or pair).__name__}")
    if term.sampling_rate is not None:
        event = dp_accounting.PoissonSampledDpEvent(float(term.sampling_rate), event)
    return event if term.count == 1 else dp_accounting.SelfComposedDpEvent(event, int(term.count))


def _table_event(p: np.ndarray, relation: Relation) -> dp_accounting.DpEvent | None:
    """Return the event of a symmetric pair of probabilities, or None."""
    if not (len(p) > 1 and p[0] > p[-1] > 0):
        return None
    if relation is not Relation.REPLACE_ONE:
        n = len(p) - 1
        event: dp_accounting.DpEvent = events.DiscreteLaplaceDpEvent(math.log(p[0] / p[-1]) / n, n)
    elif len(p) > 3:
        return None
    else:
        buckets = 2 if len(p) == 2 else round(p[1] / p[-1]) + 2
        event = events.RandomizedResponseDpEvent(float(buckets * p[-1]), buckets)
    (release, _), *_ = _releases(event, 1, relation)
    reproduced = release.table(relation)[0]
    return event if len(reproduced) == len(p) and np.allclose(reproduced, p, rtol=1e-12, atol=0) else None


@dataclass(frozen=True)
class _AccountedRelease:
    """One mechanism of a tree: its kind and numbers, and the sample that it is on, or else all the data.

    Samples are Poisson samples of a rate, possibly with (capacity, examples); or fixed ones of (batch, examples).
    """

    kind: str
    parameters: tuple[Any, ...] = ()
    rate: float | None = None
    capacity: tuple[int, int] | None = None
    fixed: tuple[int, int] | None = None

    def guarantee(self, relation: Relation) -> accountants.Guarantee:
        replaced = relation is Relation.REPLACE_ONE
        if self.fixed:  # A fixed sample's distance follows from that of an added record.
            return replace(self, fixed=None).guarantee(Relation.ADD_OR_REMOVE_ONE).sample_fixed(*self.fixed)
        distance = 2.0 if replaced and self.rate is None else 1.0
        if self.kind in ("gaussian", "laplace"):
            noise = dpk.Gaussian if self.kind == "gaussian" else dpk.Laplace
            on_data = accountants.guarantee(dpk.Additive(noise(self.parameters[0] / distance)), 1.0)
        elif self.kind == "discrete gaussian":
            sigma, sensitivity = self.parameters
            on_data = accountants.guarantee(dpk.Additive(dpk.DiscreteGaussian(sigma)), distance * sensitivity)
        elif self.kind == "mixture":
            sigma, mixture = self.parameters
            centres, weights = np.array(mixture).T
            on_data = accountants.guarantee(GaussianMixture(centres / sigma, weights / math.fsum(weights)))
        else:
            on_data = accountants.guarantee(accountants.discrete_pair(*self.table(relation)))
        if self.rate is None:
            return on_data
        if self.capacity:
            return on_data.subsample(self.rate, capacity=self.capacity[0], examples=self.capacity[1])
        return on_data.subsample(self.rate, adjacency="replace" if replaced else "add_remove")

    def table(self, relation: Relation) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of the outcomes with the record and without it, or with the other record."""
        if self.kind == "budget":
            epsilon, delta = self.parameters
            p = (1 - delta) * expit(np.array([epsilon, -epsilon]))
            p = np.concatenate([[delta], p, [0.0]])
            return p, p[::-1]
        if self.kind == "discrete laplace":
            a, n = self.parameters
            n *= 2 if relation is Relation.REPLACE_ONE else 1
            between = math.tanh(a / 2) * np.exp(-a * np.arange(1, n))
            p = np.concatenate([[1 / (1 + math.exp(-a))], between, [math.exp(-a * n) / (1 + math.exp(-a))]])
            return p, p[::-1]
        noise, buckets = self.parameters
        low = noise / buckets
        if relation is Relation.REPLACE_ONE:
            p = np.array([1 - (buckets - 1) * low, *[(buckets - 2) * low] * (buckets > 2), low])
            return p, p[::-1]
        return np.array([1 - (buckets - 1) * low, (buckets - 1) * low]), np.array([1 / buckets, 1 - 1 / buckets])

    def pure_levels(self, relation: Relation) -> tuple[float, float]:
        """Return the largest loss of one release, and that of its mirror."""
        if self.kind in ("gaussian", "mixture", "zcdp", "discrete gaussian"):
            return math.inf, math.inf
        if self.kind == "budget":
            return (math.inf, math.inf) if self.parameters[1] else (self.parameters[0],) * 2
        if self.kind == "laplace":
            level = (2.0 if relation is Relation.REPLACE_ONE and self.rate is None else 1.0) / self.parameters[0]
            levels = (level, level)
        else:
            p, q = self.table(relation)
            ratio = np.log(p) - np.log(q)
            levels = (float(ratio.max()), float(-ratio.min()))
        if self.rate is None:
            return levels
        # Only pairs that are their own mirrors are sampled.
        return float(sampled_loss(levels[0], self.rate)), -float(sampled_loss(-levels[0], self.rate))


_NON_PRIVATE = _AccountedRelease("non-private")


def _releases(event: dp_accounting.DpEvent, count: int, relation: Relation) -> Iterator[tuple[_AccountedRelease, int]]:
    """Yield the mechanisms of a tree, with how often each is run; those without a privacy loss are left out."""
    release: _AccountedRelease | None = None
    match event:
        case dp_accounting.NoOpDpEvent():
            pass
        case dp_accounting.SelfComposedDpEvent():
            if not _is_integer(event.count, 0):
                raise _Unsupported(event, f"count must be an integer that is not negative. Found {event.count!r}.")
            yield from _releases(event.event, int(event.count) * count, relation)
        case dp_accounting.ComposedDpEvent():
            for inner in event.events:
                yield from _releases(inner, count, relation)
        case dp_accounting.PoissonSampledDpEvent():
            yield from ((inner, count * times) for inner, times in _sampled(event, relation))
        case dp_accounting.NonPrivateDpEvent():
            release = _NON_PRIVATE
        case dp_accounting.GaussianDpEvent():
            release = _noise("gaussian", event.noise_multiplier)
        case dp_accounting.LaplaceDpEvent():
            release = _noise("laplace", event.noise_multiplier)
        case events.DiscreteLaplaceDpEvent():
            n = event.sensitivity
            if not (_is_integer(n, 1) and n <= _MAX_OUTCOMES):
                raise _Unsupported(event, f"sensitivity must be an integer from 1 to {_MAX_OUTCOMES}. Found {n!r}.")
            release = _noise("discrete laplace", event.noise_parameter, int(n))
        case events.RandomizedResponseDpEvent():
            release = _randomised_response(event, relation)
        case events.MixtureOfGaussiansDpEvent():
            release = _mixture(event, relation)
        case _EpsilonDelta():
            release = _budget(event.epsilon, event.delta)
        case _Exponential() | _PermuteAndFlip():
            if isinstance(event, _PermuteAndFlip):
                _check_relation(event, relation, Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
            release = _budget(event.epsilon, 0.0)
        case _DiscreteGaussian():
            n = event.sensitivity
            if event.dimension != 1 or not 0 < n < _MAX_OUTCOMES:
                raise _Unsupported(event, f"dimension must be 1, and sensitivity positive. Found {event}.")
            release = _noise("discrete gaussian", event.sigma, math.ceil(n))
        case events.TruncatedSubsampledGaussianDpEvent():
            release = _truncated(event, relation)
        case dp_accounting.SampledWithoutReplacementDpEvent():
            yield from ((inner, count * times) for inner, times in _fixed_size(event, relation))
        case events.ZCDpEvent():
            for name, value in (("rho", event.rho), ("xi", event.xi)):
                if not 0 <= value < math.inf:
                    raise ValueError(f"{name}: {value} is not at least 0 and finite")
            if event.rho or event.xi:
                release = _AccountedRelease("zcdp", (float(event.rho), float(event.xi)))
        case _:
            raise _Unsupported(event, "Unsupported event.")
    if release is not None:
        yield release, count


def _is_integer(value: Real, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _noise(kind: str, parameter: Real, *further: int) -> _AccountedRelease:
    """Return additive noise; an event without noise is not private."""
    if not 0 <= parameter < math.inf:
        raise ValueError(f"{kind} event: its parameter {parameter} is not at least 0 and finite")
    return _AccountedRelease(kind, (float(parameter), *further)) if parameter > 0 else _NON_PRIVATE


def _budget(epsilon: Real, delta: Real) -> _AccountedRelease | None:
    """Return the mechanism that is worst of all with this budget."""
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"epsilon: {epsilon}, delta: {delta}; they are at least 0, and delta is at most 1")
    if delta == 1 or math.isinf(epsilon):
        return _NON_PRIVATE
    return _AccountedRelease("budget", (float(epsilon), float(delta))) if epsilon or delta else None


def _truncated(event: dp_accounting.DpEvent, relation: Relation) -> _AccountedRelease | None:
    """Return Gaussian noise on a Poisson sample of a capacity; the dataset is the larger one of both neighbours."""
    _check_relation(event, relation, Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
    rate, capacity, examples = event.sampling_probability, event.truncated_batch_size, event.dataset_size
    if not (0 <= rate <= 1 and _is_integer(capacity, 0) and _is_integer(examples, 0)):
        raise ValueError(f"event: {event}; the probability is in [0, 1], and both sizes are integers of at least 0")
    if 0 in (rate, capacity, examples):
        return None
    release = _noise("gaussian", event.noise_multiplier)
    sample = None if capacity >= examples else (int(capacity), int(examples))
    is_everything = sample is None and rate == 1
    return release if release == _NON_PRIVATE or is_everything else replace(release, rate=float(rate), capacity=sample)


def _fixed_size(event: dp_accounting.DpEvent, relation: Relation) -> Iterator[tuple[_AccountedRelease, int]]:
    """Yield the mechanism of a sample without replacement, which is one of noise."""
    _check_relation(event, relation, Relation.REPLACE_ONE)
    batch, examples = event.sample_size, event.source_dataset_size
    if not (_is_integer(examples, 1) and _is_integer(batch, 0) and batch <= examples):
        raise ValueError(
            f"sample_size: {batch!r} of source_dataset_size {examples!r}; both are integers, and it is less"
        )
    inner = [(release, times) for release, times in _releases(event.event, 1, relation) if times]
    if batch == 0 or not inner:
        return
    ((release, times), *further) = inner
    if release == _NON_PRIVATE:
        yield from inner
    elif further or times > 1 or release.kind not in _NOISES or release.rate is not None or release.fixed:
        raise _Unsupported(
            event, f"Subevent of `SampledWithoutReplacementDpEvent` must be one of noise. Found {event.event}."
        )
    else:
        yield replace(release, fixed=(int(batch), int(examples))), 1


def _check_relation(event: object, relation: Relation, *allowed: Relation) -> None:
    if relation not in allowed:
        names = " or ".join(f"`{option.name}`" for option in allowed)
        reason = f"neighboring_relation must be {names} for `{type(event).__name__}`. Found {relation}."
        raise _Unsupported(event, reason)


def _randomised_response(event: dp_accounting.DpEvent, relation: Relation) -> _AccountedRelease | None:
    _check_relation(event, relation, Relation.REPLACE_ONE, Relation.REPLACE_SPECIAL)
    noise, buckets = float(event.noise_parameter), event.num_buckets
    if not _is_integer(buckets, 1):
        raise ValueError(f"num_buckets: {buckets!r} is not a positive integer")
    if not 0 <= noise <= 1:
        raise ValueError(f"noise_parameter: {noise} is not in [0, 1]")
    if buckets == 1 or noise == 1:
        return None
    return _AccountedRelease("randomised response", (noise, int(buckets))) if noise else _NON_PRIVATE


def _mixture(event: dp_accounting.DpEvent, relation: Relation) -> _AccountedRelease | None:
    """Return the mechanism of a mixture event: a Poisson sample if its distances are 0 and one other number."""
    _check_relation(event, relation, Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
    sigma, distances = float(event.standard_deviation), [float(c) for c in event.sensitivities]
    masses = [float(p) for p in event.sampling_probs]
    valid = len(distances) == len(masses) > 0 and all(0 <= c < math.inf for c in distances)
    if not (valid and all(p > 0 for p in masses) and abs(math.fsum(masses) - 1) <= 1e-9 and 0 <= sigma < math.inf):
        raise ValueError(
            f"MixtureOfGaussiansDpEvent: {event} needs as many probabilities, which are positive and add up to 1, as "
            "sensitivities, which are not negative, and a standard deviation that is not negative"
        )
    merged = dict.fromkeys(distances, 0.0)
    for distance, mass in zip(distances, masses, strict=True):
        merged[distance] += mass
    positive_distances = [distance for distance in merged if distance]
    if not positive_distances:
        return None
    if sigma == 0:
        return _NON_PRIVATE
    if len(positive_distances) == 1:
        (distance,) = positive_distances
        rate = merged[distance] if merged[distance] < 1 and 0.0 in merged else None
        return _AccountedRelease("gaussian", (sigma / distance,), rate)
    return _AccountedRelease("mixture", (sigma, tuple(sorted(merged.items()))))


def _sampled(event: dp_accounting.DpEvent, relation: Relation) -> Iterator[tuple[_AccountedRelease, int]]:
    """Yield the mechanism of a Poisson sample; mechanisms that share the sample must all be Gaussian."""
    rate = float(event.sampling_probability)
    if not 0 <= rate <= 1:
        raise ValueError(f"sampling_probability: {rate} is not in [0, 1]")
    inner = [(release, times) for release, times in _releases(event.event, 1, relation) if times]
    if rate == 0 or not inner:
        return
    if rate == 1 or any(release == _NON_PRIVATE for release, _ in inner):
        yield from inner
        return
    (release, times), *further = inner
    if (further or times > 1) and all(release.kind == "gaussian" and release.rate is None for release, _ in inner):
        # Gaussian mechanisms on one sample are one, of all their precisions together.
        precision = math.fsum(n / release.parameters[0] ** 2 for release, n in inner)
        release, times, further = _AccountedRelease("gaussian", (1 / math.sqrt(precision),)), 1, []
    if further or times > 1 or release.kind not in ("gaussian", "laplace", "discrete laplace"):
        raise _Unsupported(
            event,
            "Subevent of `PoissonSampledDpEvent` must be Gaussian mechanisms, or one `LaplaceDpEvent` or "
            f"`DiscreteLaplaceDpEvent`. Found {event.event}.",
        )
    if release.kind != "gaussian":
        _check_relation(event, relation, Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
    yield replace(release, rate=rate * (1.0 if release.rate is None else release.rate)), 1


def _zcdp_pair(rho: float, xi: float) -> DominatingPair:
    """Return a pair that dominates every (xi, rho)-zCDP mechanism.

    H(t), the hockey-stick divergence at t = e^eps, is convex and at most the conversion at every point. So it is at
    most the lower convex hull of the conversions at some points, which is the profile of a pair: at a corner t where
    the slope rises by q, the loss log t has the probability q without the record and t q with it. The value at the last
    point is the probability of an infinite loss. For exchanged neighbours, H(1/t) = 1 - 1/t + H(t)/t.
    """
    if rho == 0:
        p = 1 / (1 + math.exp(-xi))
        return accountants.discrete_pair(np.array([p, 1 - p]), np.array([1 - p, p]))
    last = xi + rho + 2 * math.sqrt(-rho * math.log(_LAST_DELTA))
    eps = np.linspace(0.0, last, _POINTS)
    f = np.where(eps < xi, 1.0, best_delta(rho, np.maximum(eps - xi, 0.0)))
    # By log t: slopes between neighbours, in units of 1/t, that floats hold.
    t, delta = np.exp(eps), np.minimum(f, 1.0)
    t, delta = np.concatenate([1 / t[:0:-1], t]), np.concatenate([(1 - 1 / t + delta / t)[:0:-1], delta])
    corners, slopes = lower_hull(t, delta)
    t, infinity_mass = t[corners], float(delta[-1])
    rises = np.maximum(np.diff(np.append(slopes, 0.0), prepend=0.0), 0.0)
    low, high = rises[t > 1], (t * rises)[t > 1]
    remainder = max(0.0, 1 - float(low.sum() + high.sum()) - infinity_mass)
    masses = np.concatenate([[infinity_mass], high[::-1], [remainder], low, [0.0]])
    masses = masses / masses.sum()
    return accountants.discrete_pair(masses, masses[::-1])
