"""The exact samplers of all mechanisms, including mixtures and vectors."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, singledispatch
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.batches import Batchable, freeze
from dpkernels.bounded_json import JsonObject, integer
from dpkernels.caching import bounded_cache
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.distributions.discrete import Lattice
from dpkernels.exact.batches import ExactBatch, exact_batch
from dpkernels.exact.bounded.row_construction import central_certificate, optimal_certificate
from dpkernels.exact.bounded.rows import ExactRows, RowCertificate
from dpkernels.exact.bounded.window_construction import square_wave_table, two_point_table, windowed_table
from dpkernels.exact.bounded.windows import ExactWindow, SquareWaveCertificate, WindowCertificate
from dpkernels.exact.categorical.prefixes import prefix_sampler
from dpkernels.exact.categorical.sampler import CategorySampler, category_sampler
from dpkernels.exact.certificate import COVERS, LIMITS, Certificate, CertificateError
from dpkernels.exact.noise.construction import in_sensitivities, noise_certificate, vector_certificate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.shared import shared_tables
from dpkernels.exact.sampler import CHOICE_STREAM, ExactSampler, Words
from dpkernels.jax_on_use import Tracer
from dpkernels.mechanisms.additive import Additive, AdditiveVector
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import SquareWave, Windowed
from dpkernels.numerics import RealArray, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import tree_leaves, tree_map


@dataclass(frozen=True)
class MixtureCertificate(Certificate, kind="mixture"):
    """A certificate of a mixture: two certified tables, one of which is chosen independently of the input."""

    first: WindowCertificate
    second: WindowCertificate
    threshold: int  # The first table is used where the choice word, of 32 bits, is below it.

    facts = ("epsilon", "realised_epsilon", "threshold", "lowest", "highest", "worst_variance")
    components: ClassVar[Mapping[str, str]] = {"first": "first", "second": "second"}

    def __post_init__(self) -> None:
        for component in (self.first, self.second):
            if not isinstance(component, WindowCertificate):
                raise CertificateError(f"mixture: {type(component).__name__} is not of an unbiased window table")
        if not 0 < self.threshold < 1 << 32:
            raise CertificateError(f"threshold: {self.threshold} is not in 1..2^32 - 1")
        intervals = {component.table.ends for component in (self.first, self.second)}
        if len(intervals) > 1:
            raise CertificateError(f"mixture: its tables are on different intervals, {sorted(intervals)}")

    @property
    def weight(self) -> Fraction:
        return Fraction(self.threshold, 1 << 32)

    entry_claims = ("epsilon", "lower", "upper")
    lower = property(attrgetter("first.table.lower"))
    upper = property(attrgetter("first.table.upper"))

    @property
    def epsilon(self) -> float:
        """Return the larger of the parts' budgets: the choice is independent of the input and may be revealed."""
        return max(self.first.epsilon, self.second.epsilon)

    @property
    def realised_epsilon(self) -> float:
        return max(self.first.realised_epsilon, self.second.realised_epsilon)

    @property
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance: both parts are unbiased, so their ``variance_terms`` are mixed."""
        pairs = zip(self.first.table.variance_terms, self.second.table.variance_terms, strict=True)
        A, c, rho = (self.weight * first + (1 - self.weight) * second for first, second in pairs)
        return self.first.table.largest((A, c, rho))

    @property
    def lowest(self) -> Fraction:
        return min(self.first.lowest, self.second.lowest)

    @property
    def highest(self) -> Fraction:
        return max(self.first.highest, self.second.highest)

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, payload: JsonObject) -> MixtureCertificate:
        first, second = (WindowCertificate.from_dict(payload[name]) for name in ("first", "second"))
        return cls(first, second, integer("threshold", payload["threshold"]))

    def lines(self) -> list[tuple[str, str]]:
        return [
            ("epsilon", f"{shortest(self.epsilon)}, of either table and of their mixture"),
            ("mixture", f"the first table with probability {self.threshold}/2^32, else the second"),
            ("variance", f"at most {shortest(float_at_least(self.worst_variance))} at any input"),
        ]


@proven("vectors#proof")
@dataclass(frozen=True)
class MultivariateCertificate(Certificate, kind="multivariate"):
    """A certificate for vectors: s of d coordinates, chosen independently of the data, each by a certified table."""

    coordinate: WindowCertificate | MixtureCertificate | RowCertificate  # On [-1, 1].
    dimensions: int  # d
    sampled: int  # s

    facts = ("epsilon", "realised_epsilon", "dimensions", "sampled")
    components: ClassVar[Mapping[str, str]] = {"coordinate": "coordinate"}

    def __post_init__(self) -> None:
        if not isinstance(self.coordinate, WindowCertificate | MixtureCertificate | RowCertificate):
            raise CertificateError(f"coordinate: {type(self.coordinate).__name__} is not of pure epsilon-DP")
        if (sensitivity := getattr(self.coordinate, "sensitivity", None)) is not None:
            raise CertificateError(f"coordinate: is for inputs {shortest(sensitivity)} apart, not for any two")
        checks.integer_in("dimensions", self.dimensions, 1, 1 << 31)
        checks.integer_in("sampled", self.sampled, 1, self.dimensions)

    @property
    def epsilon(self) -> float:
        """Return the budget of s reports by basic composition."""
        return float_at_least(self.sampled * rational(self.coordinate.epsilon))

    @property
    def realised_epsilon(self) -> float:
        return float_at_least(self.sampled * rational(self.coordinate.realised_epsilon))

    @property
    def covers(self) -> str:
        return (
            "pure epsilon-DP of each vector; neighbouring: any two vectors of the intervals (local DP, replace one "
            f"vector). {LIMITS}"
        )

    @classmethod
    def certified(cls, payload: JsonObject) -> MultivariateCertificate:
        coordinate: Any = Certificate.from_dict(payload["coordinate"])
        return cls(coordinate, integer("dimensions", payload["dimensions"]), integer("sampled", payload["sampled"]))

    def lines(self) -> list[tuple[str, str]]:
        coordinates = f"{self.sampled} of {self.dimensions} coordinates, {shortest(self.coordinate.epsilon)} each"
        error = f"{self.dimensions}/2^64 of probability {self.sampled}/{self.dimensions}"
        return [
            ("epsilon", f"{shortest(self.epsilon)} a vector: {coordinates}, on [-1, 1]"),
            ("coordinates", f"a cyclic run from a uniform start, each within a relative {error}"),
        ]


@dataclass(frozen=True, eq=False)
class ExactMixture(ExactSampler):
    """A sampler of a mixture. Only one part is reported, so both may read the same noise and rounding words."""

    certificate: MixtureCertificate
    first: ExactWindow
    second: ExactWindow

    def __post_init__(self) -> None:
        """Leave the kernels to the parts."""

    @cached_property
    def words(self) -> tuple[Words, ...]:
        pairs = zip(self.first.words, self.second.words, strict=True)
        return (*(max(pair, key=attrgetter("bits")) for pair in pairs), Words(CHOICE_STREAM, 32))

    @property
    def subnormal_safe_radius(self) -> float:
        return min(self.first.subnormal_safe_radius, self.second.subnormal_safe_radius)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        *shared, choice = words

        def of(sampler: ExactWindow) -> RealArray:
            return sampler.reports(
                x, *(word.astype(f"uint{need.bits}") for word, need in zip(shared, sampler.words, strict=True))
            )

        is_first = choice < np.uint32(self.certificate.threshold)
        return namespace(choice).where(is_first, of(self.first), of(self.second))


@dataclass(frozen=True, eq=False)
class ExactMultivariate:
    """An exact sampler for vectors: s of d coordinates, each released by the coordinate mechanism's sampler."""

    mechanism: Multivariate
    coordinate: ExactSampler
    certificate: MultivariateCertificate


def exact_sampler(mechanism: Any) -> Any:
    """Return the exact sampler of a mechanism, verified; its ``certificate`` prints and serialises.

    Args:
        mechanism: any mechanism of this package, with concrete parameters, or an exact sampler (returned as it is).

    Raises:
        CertificateError: the integers do not have the guarantee; the message says by how much.
        TypeError: a kind of mechanism that has no exact sampler, a traced one, or one whose class is not a pytree.
    """
    if (sampler := _cached.get(mechanism)) is not None:  # First, so that a release of few values is fast.
        return sampler
    if isinstance(mechanism, ExactSampler | ExactMultivariate | CategorySampler | ExactBatch):
        return mechanism
    if getattr(mechanism, "batch_shape", ()):
        return _batches.get(id(mechanism)) or _of_batch(mechanism)
    if _has_hash(mechanism):
        return _cached(mechanism)
    if isinstance(mechanism, Mechanism | AdditiveVector):  # A parameter is an array.
        return _cached(_evaluate_numbers(mechanism))
    return _sampler(mechanism)


# Of batches that are in use: arrays have no fast hash, but these cannot be changed.
_batches: dict[int, ExactBatch] = {}


def _of_batch(batch: Mechanism) -> ExactBatch:
    freeze(batch)  # JAX's transformations rebuild a batch without its constructor.
    sampler = exact_batch(batch, _in_units(batch), exact_sampler, shared_tables)
    _batches[id(batch)] = sampler
    weakref.finalize(batch, _batches.pop, id(batch), None)
    return sampler


@singledispatch
def _in_units(mechanism: Mechanism) -> Mechanism:
    """Return what decides the table of every entry of a batch: parameters in units of its interval or sensitivity."""
    return mechanism


@_in_units.register(Windowed)
@_in_units.register(SquareWave)
@_in_units.register(TwoPoint)
def _(mechanism: Windowed | SquareWave | TwoPoint) -> Mechanism:
    return mechanism.on_unit()


@_in_units.register
def _(mechanism: Additive) -> Additive:
    if mechanism.sensitivity is None or isinstance(mechanism.noise, Lattice):
        return mechanism
    noise, unit = in_sensitivities(mechanism.noise, mechanism.sensitivity)
    return dataclasses.replace(mechanism, noise=noise, sensitivity=unit)


def _has_hash(item: Batchable) -> bool:
    try:
        hash(item)
    except TypeError:
        return False
    return True


@bounded_cache(1 << 28)
def _cached(mechanism: object) -> ExactSampler:
    return _sampler(_evaluate_numbers(mechanism))


def _evaluate_numbers(mechanism: object) -> object:
    """Return a mechanism with plain numbers as parameters, of which there are no arrays but those of ``Optimal``."""
    if not isinstance(mechanism, Mechanism | AdditiveVector):
        return mechanism
    for leaf in tree_leaves(mechanism):
        if isinstance(leaf, Tracer):
            raise TypeError(
                "mechanism: a traced mechanism cannot be certified, because its integers need its parameters' values; "
                "give concrete ones outside jit and vmap, and under grad those of jax.lax.stop_gradient"
            )
        if np.asarray(leaf).dtype.kind not in "biuf":  # An object whose parameters JAX does not see.
            raise TypeError(
                f"mechanism: {type(leaf).__name__} is not a pytree; decorate its class with dpkernels.pytrees.pytree"
            )
        if np.ndim(leaf) and not isinstance(mechanism, Optimal):
            raise TypeError(
                f"mechanism: a parameter has shape {np.shape(leaf)}; certify mechanisms of numbers, one each"
            )
    return mechanism if isinstance(mechanism, Optimal) else tree_map(float, mechanism)


@singledispatch
def _sampler(mechanism: object) -> Any:
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact sampler")


@_sampler.register
def _(mechanism: Mixture) -> ExactMixture:
    first, second = exact_sampler(mechanism.first), exact_sampler(mechanism.second)
    if not (isinstance(first, ExactWindow) and isinstance(second, ExactWindow)):
        raise TypeError("mechanism: a mixture of mixtures has no exact sampler")
    # The certificate refuses parts that are not unbiased.
    certificate = MixtureCertificate(first.certificate, second.certificate, round(mechanism.weight * (1 << 32)))
    return ExactMixture(mechanism, certificate, first, second)


@_sampler.register
def _(mechanism: Multivariate) -> ExactMultivariate:
    coordinate = exact_sampler(mechanism.coordinate)
    certificate = MultivariateCertificate(coordinate.certificate, mechanism.dimensions, mechanism.sampled)
    return ExactMultivariate(mechanism, coordinate, certificate)


_sampler.register(Windowed, lambda m: ExactWindow(m, WindowCertificate.of(windowed_table(m), m.epsilon)))
_sampler.register(SquareWave, lambda m: ExactWindow(m, SquareWaveCertificate.of(square_wave_table(m), m.epsilon)))
_sampler.register(TwoPoint, lambda m: ExactWindow(m, WindowCertificate.of(two_point_table(m), m.epsilon)))
_sampler.register(Additive, lambda m: ExactNoise(m, noise_certificate(m)))
_sampler.register(AdditiveVector, lambda m: ExactNoise(m, vector_certificate(m)))
_sampler.register(CentralPiecewise, lambda m: ExactRows(m, central_certificate(m)))
_sampler.register(Optimal, lambda m: ExactRows(m, optimal_certificate(m)))
_sampler.register(Categorical, category_sampler)
_sampler.register(PrefixPlan, prefix_sampler)
