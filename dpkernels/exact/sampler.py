"""Exact samplers: a mechanism, its verified integers, and the map from an input and random words to a report."""

from __future__ import annotations

import abc
import operator
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels.exact.kernels import ReportKernel, fraction_bits, nearest_rows, negligible, report_kernel
from dpkernels.exact.table import BoundedTable
from dpkernels.numerics import RealArray

# Streams of a release's key; numbers below 16 belong to the key type itself (random/chacha.py).
NOISE_STREAM, ROUNDING_STREAM, CHOICE_STREAM, COORDINATE_STREAM = 16, 17, 18, 19

# Vectors as long as the processor has them: half the time of XLA's 256 bits. Matrices are multiplied by one thread,
# however many there are. Of versions of JAX that are known to know these options.
ON_CPU: dict[str, Any] | None = None
if jax.__version_info__ < (0, 11):
    ON_CPU = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_prefer_vector_width": 512}


_PARTS = 16  # of a vector whose inputs are checked together


@dataclass(frozen=True)
class Words:
    """The random words that a sampler needs, one per value: word i of the stream belongs to value i."""

    stream: int
    bits: int


class ExactSampler(abc.ABC):
    """The sampler of a release: a mechanism with its verified integers. ``exact_sampler`` makes it."""

    mechanism: Any
    certificate: Any

    def __post_init__(self) -> None:
        _ = self.kernel  # The sampler's own tables are checked here.

    @property
    def kernel(self) -> Any:
        """Return the table's sampler, a function of random words; None for a sampler that is composed of others."""
        return None

    @property
    @abc.abstractmethod
    def words(self) -> tuple[Words, ...]:
        """Return the types of the random words that ``reports`` takes, in order."""

    @property
    @abc.abstractmethod
    def negligible(self) -> float:
        """Return inputs at most so far from 0 may be read as 0, as processors read subnormal numbers."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: what is cached is made again from them, and compiled programs cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @property
    def variance_cost(self) -> float:
        """Return the certificate's bound on the worst-case variance over the mechanism's own, minus 1."""
        return float(self.certificate.worst_variance) / float(self.mechanism.worst_variance) - 1

    @abc.abstractmethod
    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        """Return reports for inputs in the interval; pure: of NumPy's arrays, or of JAX's with its 64-bit types on."""

    @cached_property
    def compiled(self) -> jax.stages.Wrapped:
        """Return the jitted function (memory, ends, x, *words) -> (reports, whether every value is within the ends).

        The reports take over ``memory``, of x's shape and type. The ends are the ``order_keys`` of the smallest and the
        largest valid input. A value outside them is replaced before it meets noise.
        """

        def inside(x: Array, ends: Array) -> Array:
            keys = order_keys(x)
            return (ends[0] <= keys) & (keys <= ends[1])

        def release(_: Array, ends: Array, x: Array, *words: Array) -> tuple[RealArray, Array]:
            reports = self.reports(jnp.where(inside(x, ends), x, jnp.zeros_like(x)), *words)
            # On a CPU XLA reduces one value after the other, so most of it is done on parts of the vector, together.
            parts = [inside(part, ends) for part in x.reshape(_PARTS if len(x) % _PARTS == 0 else 1, -1)]
            return reports, reduce(operator.and_, parts).all()

        return jax.jit(release, donate_argnums=0, keep_unused=True, compiler_options=ON_CPU)


class BoundedSampler(ExactSampler):
    """The sampler of a table with a row for every one of some inputs."""

    @property
    @abc.abstractmethod
    def table(self) -> BoundedTable:
        """Return the verified integers."""

    @property
    def fraction_bits(self) -> int:
        """Return bits that round an input between rows."""
        return fraction_bits(self.table.shifts)

    @cached_property
    def words(self) -> tuple[Words, ...]:
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, 16 if self.fraction_bits <= 16 else 32)

    @property
    def negligible(self) -> float:
        return negligible(self.table.shifts, *self.table.ends)

    def rows(self, x: RealArray, rounding: RealArray) -> RealArray:
        """Round an input to one of the two rows around it, with its own random bits."""
        return nearest_rows(x, rounding, self.table.shifts, *self.table.ends)

    @cached_property
    def reports_at(self) -> ReportKernel:
        """Return the function from doubled codes, counted from the middle, to reports."""
        return report_kernel(self.table.middle, self.table.step)


def order_keys(x: Any) -> Any:
    """Return integers in the order of the floats x; the key of -0 is one below that of 0.

    Comparisons of keys are exact also on a processor that reads subnormal numbers as 0. NaN is beyond the infinities.
    """
    bits = x.view(np.dtype(f"int{8 * x.dtype.itemsize}"))
    return bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def concrete_mechanism(mechanism: Any) -> Any:
    """Return a mechanism with Python numbers for parameters.

    Raises:
        TypeError: a parameter is traced, or an array.
    """
    return jax.tree.map(_concrete, mechanism)


def refuse_traced(leaf: object) -> None:
    """Refuse a traced parameter.

    Raises:
        TypeError: it is traced.
    """
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "mechanism: a traced mechanism cannot be certified, because its integers need its parameters' values; "
            "give concrete ones outside jit and vmap, and under grad those of jax.lax.stop_gradient"
        )


def _concrete(leaf: Any) -> float:
    refuse_traced(leaf)
    if np.ndim(leaf):
        raise TypeError(f"mechanism: a parameter has shape {np.shape(leaf)}; certify mechanisms of numbers, one each")
    return float(leaf)
