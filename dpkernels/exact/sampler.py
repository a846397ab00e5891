"""Exact samplers: integer kernels, and the map from an input and random words to a report.

A kernel maps random words to outcomes. Constants are compiled into the kernel, because traced divisors and table sizes
would be several times slower. Each table therefore has a separate compiled kernel. Kernels also accept NumPy arrays,
which they process without JAX; this is faster for few values.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from operator import and_, attrgetter
from typing import Any, NamedTuple, Self

import numpy as np

from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import Real, RealArray

# Streams of a release's key; numbers below 16 belong to the key type itself (random/chacha.py), 20 to 24 and 27 to 31
# to ``selection`` and ``categorical``.
NOISE_STREAM = 16
ROUNDING_STREAM = 17  # The rounding of an input to the grid, at random.
CHOICE_STREAM = 18  # The choice between two mechanisms.
COORDINATE_STREAM = 19  # The first of the coordinates of a vector that are reported.
# The mechanisms of a batch, or of its parts, share a key. Words of two lengths from one stream would overlap, word
# 2j + 1 of 32 bits being a half of word j of 64, so tables of the other length have a stream of their own.
WIDE_NOISE_STREAM = 25
ROW_ROUNDING_STREAM = 26
# Noise whose words come in halves.
UPPER_HALF_STREAM = 32
LOWER_HALF_STREAM = 33

# Vectors as long as the processor has them: half the time of XLA's 256 bits. Matrices are multiplied by one thread,
# however many there are. JAX below 0.11 is known to accept these options.
_ON_CPU = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_prefer_vector_width": 512}

# Returns the noise words of a turn from its number: of turn 0 the first ones again, and later ones from 1 on.
NoiseWords = Callable[[Any], RealArray]

_PIECES = 16  # of a vector whose inputs are checked together


def options_on_cpu() -> dict[str, int] | None:
    """Return the options with which XLA compiles kernels for a CPU; None for those of JAX."""
    return _ON_CPU if jax.__version_info__ < (0, 11) else None


@dataclass(frozen=True)
class Words:
    """The random words that a sampler needs, one per value: word i of the stream belongs to value i.

    Of all mechanisms that a batch may have, a stream has words of one length.
    """

    stream: int
    bits: int


@dataclass(frozen=True, eq=False)
class ExactSampler(abc.ABC):
    """The sampler of a release: a mechanism with its verified integers. ``exact_sampler`` makes it."""

    mechanism: Any
    certificate: Any

    def __post_init__(self) -> None:
        """Make the kernel, whose alias columns are checked against the certified integers."""
        _ = self.kernel

    table = property(attrgetter("certificate.table"))

    @cached_property
    def kernel(self) -> Callable[..., RealArray]:
        return self.table.kernel()

    @cached_property
    def derived(self) -> Derived:
        """Return what releases derive from the sampler: ``derived[make, *arguments]`` is ``make(self, *arguments)``."""
        return Derived(self)

    @property
    def stack_key(self) -> tuple[object, ...] | None:
        """Return what samplers have in common that ``stacked`` joins; None if the class joins none."""
        return None

    @classmethod
    def stacked(cls, samplers: Sequence[Self]) -> StackedSampler:
        """Return the sampler of several tables that have one ``stack_key``; by default of one table."""
        (sampler,) = samplers
        return StackedSampler(lambda x, words, _entry, _table: sampler.reports(x, *words), ())

    def entry_parameters(self, claims: Mapping[str, np.ndarray]) -> tuple[RealArray, ...]:
        """Return what the stacked sampler reads of every entry of a batch that has this table, from its claims."""
        return ()

    @property
    @abc.abstractmethod
    def words(self) -> tuple[Words, ...]:
        """Return the types of the random words that ``reports`` takes, in order."""

    @property
    @abc.abstractmethod
    def subnormal_safe_radius(self) -> float:
        """Return the distance from 0 within which inputs may be read as 0, as processors read subnormal numbers."""

    def least_safe_radius(self, claims: Mapping[str, np.ndarray]) -> float:
        """Return the least ``subnormal_safe_radius`` of the entries of a batch that have this table."""
        return self.subnormal_safe_radius

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: cached values are made again from them, and compiled programs cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def variance_cost(self) -> float:
        """Return the certificate's bound on the worst-case variance over the mechanism's own, minus 1."""
        return float(self.certificate.worst_variance) / float(self.mechanism.worst_variance) - 1

    @abc.abstractmethod
    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        """Return reports for inputs in the interval; pure: of NumPy's arrays, or of JAX's with its 64-bit types on."""

    def complete_reports(self, x: RealArray, *words: RealArray, noise_words: NoiseWords) -> RealArray:
        """Return ``reports``, those completed that need words of later turns."""
        return self.reports(x, *words)

    @property
    def incomplete_words(self) -> tuple[range, ...] | None:
        """Return the noise words whose reports need words of later turns, or None if these are of many ranges."""
        return ()

    def are_incomplete(self, noise: np.ndarray) -> np.ndarray:
        """Return the indices of noise words whose reports need words of later turns: of ``complete_reports``."""
        return np.zeros(0, np.int64)

    @cached_property
    def compiled(self) -> jax.stages.Wrapped:
        """Return the jitted function (memory, ends, x, *words) -> (reports, whether every value is within the ends).

        The reports take over ``memory``, of x's shape and type. The ends are the ``order_keys`` of the smallest and the
        largest valid input. A value outside them is replaced before it meets noise.
        """

        def are_valid(x: Array, ends: Array) -> Array:
            keys = order_keys(x)
            return (ends[0] <= keys) & (keys <= ends[1])

        def release(_: Array, ends: Array, x: Array, *words: Array) -> tuple[RealArray, Array]:
            reports = self.reports(jnp.where(are_valid(x, ends), x, jnp.zeros_like(x)), *words)
            return reports, all_in_pieces(lambda piece: are_valid(piece, ends), x)

        return jax.jit(release, donate_argnums=0, keep_unused=True, compiler_options=options_on_cpu())


class Derived(dict[tuple[Any, ...], Any]):
    """Values that are made once from an object, and kept as long as the object; threads make one together."""

    def __init__(self, source: object) -> None:
        self.source, self._lock = source, threading.RLock()

    def __missing__(self, key: tuple[Any, ...]) -> Any:
        make, *arguments = key
        with self._lock:
            if key not in self:
                self[key] = make(self.source, *arguments)
            return self[key]


def all_in_pieces(test: Callable[..., RealArray], x: Array, *columns: Array) -> Array:
    """Return whether a test holds for every value of a vector, and the same rows of columns, or plain numbers.

    On a CPU XLA reduces one value after the other, so most of it is done on pieces of the vector, together.
    """
    count = _PIECES if len(x) % _PIECES == 0 else 1
    pieces = [column.reshape(count, -1) if column.ndim else [column] * count for column in (x, *columns)]
    return jnp.all(reduce(and_, (test(*piece) for piece in zip(*pieces, strict=True))))


MAX_RANGES = 8  # Of incomplete words; where there are more, the kernel finds them.


def indices_within(words: np.ndarray, ranges: Sequence[range]) -> np.ndarray:
    """Return the indices of words within some ranges, which most ranges have none of."""
    word, indices = words.dtype.type, list[np.ndarray]()
    for numbers in ranges:
        if numbers.start:
            indices.append(np.flatnonzero(words - word(numbers.start) < word(numbers.stop - numbers.start)))
        elif np.minimum.reduce(words) < numbers.stop:
            indices.append(np.flatnonzero(words < word(numbers.stop)))
    return np.unique(np.concatenate(indices)) if indices else np.zeros(0, np.int64)


def order_keys(x: RealArray) -> RealArray:
    """Return integers in the order of the floats x; -0 is one below 0, NaN is beyond the infinities."""
    bits = x.view(np.dtype(f"int{8 * x.dtype.itemsize}"))
    # Comparisons of keys are exact also on a processor that reads subnormal numbers as 0.
    return bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


class FloatReports(NamedTuple):
    """A faster program for the same bits, by float arithmetic, where all values are near 0."""

    reports: Callable[..., RealArray]
    radius: Callable[..., Real]  # Parameters of each value's entry -> the distance from 0 below which it is near.


class StackedSampler(NamedTuple):
    """The reports of several tables of one kind, with the parameters of every table."""

    # (x, words, parameters of each value's entry, parameters of each value's table) -> reports
    reports: Callable[..., RealArray]
    table_parameters: tuple[np.ndarray, ...]  # One a table, in arrays.
    by_floats: FloatReports | None = None
    # Parameters of entries -> the ends of their intervals, if they tell these.
    interval: Callable[..., tuple[RealArray, RealArray]] | None = None
