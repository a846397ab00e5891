"""Exact forms of mechanisms: verified tables and the compiled map from an input and random words to a report."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, singledispatch
from typing import Any

import jax
import numpy as np
from jax import Array

from dpkernels.exact.combined import MixtureCertificate, MultivariateCertificate
from dpkernels.exact.kernels import CodeKernel, NoiseKernel, code_kernel, noise_kernel
from dpkernels.exact.namespace import namespace
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.lattice import certify_law
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.noise.vectors import VectorNoiseCertificate, certify_vector_law
from dpkernels.exact.rounding import ReportKernel, fraction_bits, nearest_rows, negligible, report_kernel
from dpkernels.exact.windows.certificate import WindowCertificate, certify_table
from dpkernels.exact.windows.lattice import two_point_table, windowed_table
from dpkernels.exact.windows.table import WindowTable
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.additive_vector import AdditiveVector
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed

# Streams of a release's key; numbers below 16 belong to the key type itself (random/chacha.py).
NOISE_STREAM, ROUNDING_STREAM, CHOICE_STREAM, COORDINATE_STREAM = 16, 17, 18, 19


@dataclass(frozen=True)
class Words:
    """Random words a form needs, one a value: word i of the stream belongs to value i."""

    stream: int
    bits: int


class ExactForm(abc.ABC):
    """A mechanism as a release samples it. Made by ``certify``."""

    mechanism: Any
    certificate: Any

    @property
    @abc.abstractmethod
    def words(self) -> tuple[Words, ...]:
        """What ``reports`` takes, in order."""

    @property
    @abc.abstractmethod
    def negligible(self) -> float:
        """Inputs at most so far from 0 may be read as 0, as processors read subnormal numbers."""

    @property
    def variance_cost(self) -> float:
        """The certificate's bound on the worst-case variance over the mechanism's own, minus 1."""
        return float(self.certificate.worst_variance) / float(self.mechanism.worst_variance) - 1

    @abc.abstractmethod
    def reports(self, x: Any, *words: Any) -> Any:
        """Reports for inputs in the interval; pure: of NumPy's arrays, or of JAX's with its 64-bit types on."""

    @cached_property
    def compiled(self) -> Callable[..., Array]:
        """``reports``, jitted, after an argument whose memory (of x's shape and type) the result takes over."""

        def into(_: Array, x: Array, *words: Array) -> Array:
            return self.reports(x, *words)

        return jax.jit(into, donate_argnums=0, keep_unused=True, compiler_options={"xla_cpu_multi_thread_eigen": False, "xla_cpu_prefer_vector_width": 512})


@dataclass(frozen=True, eq=False)
class ExactWindow(ExactForm):
    """A mechanism that is one window table: windowed or two-point."""

    mechanism: Any
    certificate: WindowCertificate

    @property
    def table(self) -> WindowTable:
        """The verified integers."""
        return self.certificate.table

    @property
    def fraction_bits(self) -> int:
        """Bits that round an input between rows."""
        return fraction_bits(self.table.shifts)

    @cached_property
    def words(self) -> tuple[Words, ...]:
        rounding = 16 if self.fraction_bits <= 16 else 32
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, rounding)

    @property
    def negligible(self) -> float:
        return negligible(self.table.shifts, self.table.lower, self.table.upper)

    @cached_property
    def codes(self) -> CodeKernel:
        """The table's sampler."""
        return code_kernel(self.table)

    def reports(self, x: Any, *words: Any) -> Any:
        noise, rounding = words
        return self.values(self.codes(noise, self.rows(x, rounding)), x.dtype)

    def rows(self, x: Array, rounding: Array) -> Array:
        """Round an input to one of the two rows around it, with its own random bits."""
        table = self.table
        return nearest_rows(x, rounding, table.shifts, table.lower, table.upper)

    def values(self, codes: Any, dtype: Any) -> Any:
        """middle + step (code - (N - 1)/2), a function of the code alone."""
        if isinstance(codes, np.ndarray):
            return self._values[np.dtype(dtype)].take(codes)
        return self._reports_at(2 * codes - (self.table.codes - 1), dtype)

    @cached_property
    def _reports_at(self) -> ReportKernel:
        return report_kernel(self.table.middle, self.table.step)

    @cached_property
    def _values(self) -> dict[np.dtype, np.ndarray]:
        """Of every code: one look-up costs less than the formula."""
        doubled = 2 * np.arange(self.table.codes, dtype=np.int32) - (self.table.codes - 1)
        return {np.dtype(dtype): self._reports_at(doubled, dtype) for dtype in (np.float32, np.float64)}


@dataclass(frozen=True, eq=False)
class ExactMixture(ExactForm):
    """One of two exact forms, chosen by a word of its own below a threshold out of 2^32.

    Only one of the two is reported, so both may read the same noise and rounding words.
    """

    mechanism: Mixture
    first: ExactWindow
    second: ExactWindow
    certificate: MixtureCertificate

    @cached_property
    def words(self) -> tuple[Words, ...]:
        pairs = zip(self.first.words, self.second.words, strict=True)
        shared = tuple(Words(a.stream, max(a.bits, b.bits)) for a, b in pairs)
        return (*shared, Words(CHOICE_STREAM, 32))

    @property
    def negligible(self) -> float:
        return min(self.first.negligible, self.second.negligible)

    def reports(self, x: Any, *words: Any) -> Any:
        *shared, choice = words
        reports = [
            form.reports(x, *(word.astype(f"uint{need.bits}") for word, need in zip(shared, form.words, strict=True)))
            for form in (self.first, self.second)
        ]
        return namespace(choice).where(choice < np.uint32(self.certificate.threshold), reports[0], reports[1])


@dataclass(frozen=True, eq=False)
class ExactNoise(ExactForm):
    """Additive noise from a table, on single values or on vectors."""

    mechanism: Any
    certificate: NoiseCertificate | VectorNoiseCertificate

    @property
    def table(self) -> NoiseTable:
        """The verified integers."""
        return self.certificate.table

    @cached_property
    def words(self) -> tuple[Words, ...]:
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, 32)

    @property
    def negligible(self) -> float:
        """Half a grain: what is strictly within it is rounded to the grain at 0."""
        return 2.0 ** (self.table.grain - 1)

    @cached_property
    def codes(self) -> NoiseKernel:
        """The table's sampler."""
        return noise_kernel(self.table)

    def reports(self, x: Any, *words: Any) -> Any:
        noise, rounding = words
        position = self.positions(x, rounding) + self.codes(noise)
        return (position.astype(np.float64) * float(self.table.cell)).astype(x.dtype, copy=False)

    def positions(self, x: Array, rounding: Array) -> Array:
        """floor((floor(x/g + 1/2) + r)/M) with r = floor(word M / 2^32), without a rounding error anywhere.

        x/g is exact, g being a power of two, and floor(x/g + 1/2) is floor((floor(2x/g) + 1)/2), in integers. Division
        is faster without signs, so a multiple of M is added and taken off again.
        """
        table, most = self.table, 1 << 62
        xp = namespace(x)
        doubled = xp.floor(x.astype(np.float64, copy=False) * 2.0 ** (1 - table.grain))
        # Inputs are within this; clipping moves no two of them apart, so that no input whatever can overflow.
        doubled = xp.minimum(xp.maximum(doubled, -(2.0**62)), 2.0**62).astype(np.int64)
        r = rounding.astype(np.uint64) * np.uint64(table.grains) >> np.uint64(32)
        ahead = most // table.grains
        shifted = (((doubled + 1) >> 1) + ahead * table.grains).astype(np.uint64) + r
        return (shifted // np.uint64(table.grains)).astype(np.int64) - ahead


@dataclass(frozen=True, eq=False)
class ExactMultivariate:
    """s of d coordinates, each released by the exact form of the coordinate mechanism."""

    mechanism: Multivariate
    coordinate: ExactForm
    certificate: MultivariateCertificate


@singledispatch
def certify(mechanism: Any) -> Any:
    """The exact form of a mechanism, verified; its ``certificate`` prints and serialises.

    Args:
        mechanism: any mechanism of this package, with concrete parameters, or an exact form (returned as it is).

    Returns:
        An ``ExactForm``, or ``ExactMultivariate`` for mechanisms on vectors.

    Raises:
        CertificateError: the integers do not have the guarantee; says by how much.
        TypeError: a kind of mechanism that has no exact form, or a traced one.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact form")


@certify.register
def _(mechanism: ExactForm) -> ExactForm:
    return mechanism


@certify.register
def _(mechanism: ExactMultivariate) -> ExactMultivariate:
    return mechanism


@certify.register(Mechanism)
@certify.register(AdditiveVector)
def _(mechanism: Any) -> ExactForm:
    try:
        hash(mechanism)
    except TypeError:  # A parameter is an array.
        mechanism = concrete_mechanism(mechanism)
    return _exact_once(mechanism)


@certify.register
def _(mechanism: Multivariate) -> ExactMultivariate:
    coordinate = certify(mechanism.coordinate)
    certificate = MultivariateCertificate(coordinate.certificate, mechanism.dimensions, mechanism.sampled)
    return ExactMultivariate(mechanism, coordinate, certificate)


def concrete_mechanism(mechanism: Any) -> Any:
    """A mechanism with Python numbers for parameters.

    Raises:
        TypeError: a parameter is traced, or an array.
    """
    return jax.tree.map(_concrete, mechanism)


def _concrete(leaf: Any) -> float:
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError("mechanism: a traced mechanism cannot be certified; certify it outside jit, vmap and grad")
    if np.ndim(leaf):
        raise TypeError(f"mechanism: a parameter has shape {np.shape(leaf)}; certify mechanisms of numbers, one each")
    return float(leaf)


@lru_cache(maxsize=256)
def _exact_once(mechanism: Any) -> ExactForm:
    return _exact(concrete_mechanism(mechanism))


@singledispatch
def _exact(mechanism: Any) -> ExactForm:
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact form")


@_exact.register
def _(mechanism: Windowed) -> ExactForm:
    return _window_form(mechanism, windowed_table(mechanism))


@_exact.register
def _(mechanism: TwoPoint) -> ExactForm:
    return _window_form(mechanism, two_point_table(mechanism))


def _window_form(mechanism: Windowed | TwoPoint, table: WindowTable) -> ExactWindow:
    form = ExactWindow(mechanism, certify_table(table, mechanism.epsilon))
    _ = form.codes  # The sampler's own tables are checked here, with the certificate.
    return form


@_exact.register
def _(mechanism: Additive) -> ExactForm:
    return _noise_form(mechanism, certify_law(mechanism))


@_exact.register
def _(mechanism: AdditiveVector) -> ExactForm:
    return _noise_form(mechanism, certify_vector_law(mechanism))


def _noise_form(mechanism: Any, certificate: Any) -> ExactNoise:
    form = ExactNoise(mechanism, certificate)
    _ = form.codes
    return form


@_exact.register
def _(mechanism: Mixture) -> ExactForm:
    first, second = certify(mechanism.first), certify(mechanism.second)
    if not (isinstance(first, ExactWindow) and isinstance(second, ExactWindow)):
        raise TypeError("mechanism: a mixture of mixtures has no exact form")
    threshold = round(mechanism.weight * (1 << 32))
    certificate = MixtureCertificate(first.certificate, second.certificate, threshold)
    return ExactMixture(mechanism, first, second, certificate)


# At the end, since it needs the above: it registers the forms of mechanisms given row by row.
from dpkernels.exact.rows import optimal as _optimal_form  # noqa: E402, F401
