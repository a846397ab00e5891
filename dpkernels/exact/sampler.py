"""Exact samplers: integer kernels, and the map from an input and random words to a report.

A kernel maps random words to outcomes. Constants are compiled into it, because traced divisors and table sizes would be
several times slower; each table therefore has a compiled kernel of its own. Kernels also accept NumPy arrays, which
they process without JAX; this is faster for few values.
"""

from __future__ import annotations

import abc
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property, reduce
from operator import and_, attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import CertificateError
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven

# Streams of a release's key; numbers below 16 belong to the key type itself (random/chacha.py), 20 to 24 and 27 to 31
# to ``choice``, ``categories``, ``permute_and_flip`` and ``prefixes``.
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
Later = Callable[[Any], RealArray]

_PARTS = 16  # of a vector whose inputs are checked together


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
    def kernel(self) -> Callable[..., Any]:
        return self.table.kernel()

    @cached_property
    def derived(self) -> Derived:
        """Return what releases derive from the sampler: ``derived[make, *arguments]`` is ``make(self, *arguments)``."""
        return Derived(self)

    @property
    def stack(self) -> tuple[object, ...] | None:
        """Return what samplers have in common that ``stacked`` joins; None if the class joins none."""
        return (type(self), self.words) if hasattr(self, "stacked") else None

    @property
    @abc.abstractmethod
    def words(self) -> tuple[Words, ...]:
        """Return the types of the random words that ``reports`` takes, in order."""

    @property
    @abc.abstractmethod
    def subnormal_safe_radius(self) -> float:
        """Return the distance from 0 within which inputs may be read as 0, as processors read subnormal numbers."""

    def safe_radius_of(self, claims: Mapping[str, np.ndarray]) -> float:
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

    def all_reports(self, x: RealArray, *words: RealArray, later: Later) -> RealArray:
        """Return ``reports``, those completed that need words of later turns."""
        return self.reports(x, *words)

    @property
    def incomplete_words(self) -> tuple[range, ...] | None:
        """Return the noise words whose reports need words of later turns, or None if these are of many ranges."""
        return ()

    def are_incomplete(self, noise: np.ndarray) -> np.ndarray:
        """Return the indices of noise words whose reports need words of later turns: of ``all_reports``."""
        return np.zeros(0, np.int64)

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
            return reports, all_in_pieces(lambda piece: inside(piece, ends), x)

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


class BoundedSampler(ExactSampler):
    """The sampler of a table with a row for every one of some inputs."""

    short_rounding_stream: ClassVar[int] = ROUNDING_STREAM  # Of words of 16 bits.

    @property
    def fraction_bits(self) -> int:
        return fraction_bits(self.table.shifts)

    @cached_property
    def words(self) -> tuple[Words, ...]:
        noise = Words(WIDE_NOISE_STREAM if self.table.bits == 64 else NOISE_STREAM, self.table.bits)
        is_short = self.fraction_bits <= 16
        return noise, Words(self.short_rounding_stream, 16) if is_short else Words(ROUNDING_STREAM, 32)

    @property
    def subnormal_safe_radius(self) -> float:
        """Return 2^-10 of a step of ``positions``."""
        first, last = self.table.ends
        return math.ldexp((last - first) / self.table.shifts, -self.fraction_bits - 10)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        rows = nearest_rows(x, rounding, self.table.shifts, *self.table.ends)
        return self.values(self.kernel(noise, rows), x.dtype)

    @abc.abstractmethod
    def values(self, outcomes: RealArray, dtype: np.dtype) -> RealArray:
        """Return the reports of the kernel's outcomes."""

    @cached_property
    def reports_at(self) -> Callable[..., Any]:
        return report_kernel(self.table.middle, self.table.step)


def all_in_pieces(test: Callable[..., Array], x: Array, *columns: Array) -> Array:
    """Return whether a test holds for every value of a vector, and for the same places of columns, or plain numbers.

    On a CPU XLA reduces one value after the other, so most of it is done on parts of the vector, together.
    """
    count = _PARTS if len(x) % _PARTS == 0 else 1
    pieces = [column.reshape(count, -1) if column.ndim else [column] * count for column in (x, *columns)]
    return reduce(and_, (test(*piece) for piece in zip(*pieces, strict=True))).all()


MAX_RANGES = 8  # Of incomplete words; where there are more, the kernel finds them.


def indices_within(words: np.ndarray, ranges: Sequence[range]) -> np.ndarray:
    """Return the indices of words within some ranges, which most ranges have none of."""
    type_, places = words.dtype.type, list[np.ndarray]()
    for numbers in ranges:
        if numbers.start:
            places.append(np.flatnonzero(words - type_(numbers.start) < type_(numbers.stop - numbers.start)))
        elif np.minimum.reduce(words) < numbers.stop:
            places.append(np.flatnonzero(words < type_(numbers.stop)))
    return np.unique(np.concatenate(places)) if places else np.zeros(0, np.int64)


def order_keys(x: RealArray) -> Any:
    """Return integers in the order of the floats x; -0 is one below 0, NaN is beyond the infinities."""
    bits = x.view(np.dtype(f"int{8 * x.dtype.itemsize}"))
    # Comparisons of keys are exact also on a processor that reads subnormal numbers as 0.
    return bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


# Kernels


@dataclass(frozen=True, eq=False)
class AliasColumns:
    """Walker's alias table in integers: column c yields c if the word's low bits are below threshold[c]."""

    packed: np.ndarray  # A column's threshold and, in the last ``log_columns`` bits, its alias.
    log_columns: int  # log2 of their number.
    bits: int

    @property
    def threshold(self) -> np.ndarray:
        """Return one integer a column, below 2^(bits - log_columns); 0 for a column with a single outcome."""
        return self.packed >> self.packed.dtype.type(self.log_columns)

    @property
    def alias(self) -> np.ndarray:
        """Return the outcome from the threshold on, int32."""
        return (self.packed & self.packed.dtype.type((1 << self.log_columns) - 1)).astype(np.int32)


def take(table: np.ndarray, index: RealArray) -> RealArray:
    """Return ``table[index]`` for indices that are within it, NumPy's or JAX's."""
    if namespace(index) is np:
        return table.take(index)
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def alias_columns(weights: np.ndarray | Sequence[float], bits: int) -> AliasColumns:
    """Return exact alias columns (Walker, Vose) of weights that sum to 2^bits; padding outcomes have weight 0.

    The light columns, one after the other, are filled up by the first heavy column that has something left, which is
    then itself a column to fill by the next one, if it is not full. With the sums D of what the light columns lack and
    E of what the heavy ones have too much, heavy m serves the light k for which D(k - 1) < E(m), the first of these
    for which D(k) >= E(m) exhausts it, and it lacks D(k) - E(m).
    """
    log_columns = (len(weights) - 1).bit_length()
    capacity = 1 << (bits - log_columns)
    padded = np.zeros(1 << log_columns, np.uint64)
    padded[: len(weights)] = np.asarray(weights, np.uint64)
    threshold, alias = padded.copy(), np.arange(1 << log_columns)
    light, heavy = (np.flatnonzero(is_one)[::-1] for is_one in (padded < capacity, padded > capacity))
    lack = np.cumsum(np.uint64(capacity) - padded[light]) if len(light) else padded[:0]
    surplus = np.cumsum(padded[heavy] - np.uint64(capacity)) if len(heavy) else padded[:0]
    if arithmetic.total(padded) != 1 << bits:
        raise CertificateError(_OFF)
    if len(heavy):
        alias[light] = heavy[np.searchsorted(surplus, np.append(np.uint64(0), lack[:-1]), side="right")]
        below = lack[np.searchsorted(lack, surplus)] - surplus
        threshold[heavy] = np.uint64(capacity) - below
        alias[heavy[:-1]] = np.where(below[:-1] > 0, heavy[1:], heavy[:-1])
    # A full column has threshold 0: its own threshold would have a bit too many, and its alias is itself.
    packed = threshold % np.uint64(capacity) << np.uint64(log_columns) | alias.astype(np.uint64)
    columns = AliasColumns(packed.astype(f"uint{bits}"), log_columns, bits)
    _check_masses(columns, padded)
    return columns


_OFF = "alias columns: do not add up to the table's weights"


def _check_masses(columns: AliasColumns, weights: np.ndarray) -> None:
    """Refuse columns that do not add up to the table's weights, so that the certified weights are sampled.

    Sums are modulo 2^64, and exact where the weights sum to 2^bits.
    """
    masses = columns.threshold.astype(np.uint64)
    np.add.at(masses, columns.alias, np.uint64(1 << (columns.bits - columns.log_columns)) - masses)
    if not np.array_equal(masses, weights):
        raise CertificateError(_OFF)


def alias_kernel(columns: AliasColumns) -> Callable[..., RealArray]:
    """Return the sampler, random word -> outcome, int32; for several tables in a row, (word, table) -> outcome."""
    word = columns.packed.dtype.type
    log_columns, shift = word(columns.log_columns), word(columns.bits - columns.log_columns)
    ones = word((1 << columns.log_columns) - 1)

    def outcomes(r: RealArray, table: RealArray | None = None) -> RealArray:
        column = (r >> shift).astype(np.int32)
        index = column if table is None else (table << np.int32(columns.log_columns)) + column
        entry = take(columns.packed, index)
        # With ones for its column bits, the word is below the entry exactly where its low bits are below the threshold.
        return namespace(r).where((r << log_columns | ones) < entry, column, (entry & ones).astype(np.int32))

    return outcomes


class NearReports(NamedTuple):
    """A faster program for the same bits, where all values are near 0."""

    reports: Callable[..., RealArray]
    reach: Callable[..., Real]  # Numbers of each value's place -> the distance from 0 below which it is near.


class Stacked(NamedTuple):
    """The reports of several tables of one kind, with the numbers of every table."""

    # (x, words, numbers of each value's place, numbers of each value's table) -> reports
    reports: Callable[..., RealArray]
    tables: tuple[np.ndarray, ...]  # The numbers, one a table, in arrays.
    near: NearReports | None = None
    # Numbers of places -> the ends of their intervals, if they tell these.
    interval: Callable[..., tuple[RealArray, RealArray]] | None = None


def stacked_alias_kernel(columns: Sequence[AliasColumns]) -> tuple[Callable[..., RealArray], np.ndarray, np.ndarray]:
    """Return ``alias_kernel`` of several tables, of words of one length, and the two numbers that it takes of each.

    The numbers are where the table begins among all columns, and log2 of its number of columns.
    """
    packed = np.concatenate([each.packed for each in columns])
    starts = np.cumsum([0, *(len(each.packed) for each in columns[:-1])])
    bits, word = columns[0].bits, packed.dtype.type
    logs = np.array([each.log_columns for each in columns], packed.dtype)
    index = np.int32 if len(packed) < 1 << 31 else np.int64
    own_log = logs[0] if (logs == logs[0]).all() else None  # A constant shift is faster.

    def outcomes(r: RealArray, start: RealArray, log_columns: RealArray) -> RealArray:
        log_columns = log_columns if own_log is None else own_log
        column = (r >> (word(bits) - log_columns)).astype(index)
        ones = (word(1) << log_columns) - word(1)
        entry = take(packed, start + column)
        below = (r << log_columns | ones) < entry
        return namespace(r).where(below, column, (entry & ones).astype(index)).astype(np.int32)

    return outcomes, starts.astype(index), logs


def fraction_bits(shifts: int) -> int:
    """Return bits that round an input between rows 0..shifts: 16, or with fewer than 256 rows enough for 30 in all."""
    return 16 if shifts >= 256 else 30 - shifts.bit_length()


@proven("row_mixtures#proof")
def nearest_rows(x: RealArray, rounding: RealArray, shifts: int, first: float, last: float) -> RealArray:
    """Round every input at random to one of the two adjacent rows, so that its mean is kept.

    Rows 0..shifts are evenly spaced from ``first`` to ``last``. Guarantees for rows hold for inputs. Neighbours d
    steps of ``positions`` apart go to rows at most ceil((d + 1)/2^bits) apart under one word; see
    docs/proofs/row_mixtures.md.
    """
    return rounded_rows(x, rounding, shifts, first, step_factor(shifts, first, last))


def step_factor(shifts: int, first: Real, last: Real) -> Real:
    """Return the factor from a distance from the first row to doubled steps of ``positions``."""
    return 2 * (shifts << fraction_bits(shifts)) / (last - first)


def rounded_rows(x: RealArray, rounding: RealArray, shifts: int, first: Real, factor: Real) -> RealArray:
    """Return ``nearest_rows`` from the first row and the ``step_factor``: numbers, or one for every value."""
    bits = fraction_bits(shifts)
    position = _positions(x, shifts, first, factor)
    low_bits = rounding.astype(position.dtype)
    if 8 * rounding.dtype.itemsize > bits:
        low_bits = low_bits & ((1 << bits) - 1)
    return ((position + low_bits) >> bits).astype(np.int32, copy=False)


@proven("row_mixtures#proof")
def positions(x: RealArray, shifts: int, first: float, last: float) -> RealArray:
    """Return the nearest of shifts 2^bits equal steps from ``first`` to ``last``, floor(2 o + 1) // 2 for position o.

    Roundings, of at most 2^40 steps, and inputs of at most ``subnormal_safe_radius`` that a processor reads as 0, move
    o by less than 2^-9. The half is added in integers: a processor that fuses a product with a sum would round
    otherwise than one that does not, and reports must be the same bits on both.
    """
    return _positions(x, shifts, first, step_factor(shifts, first, last))


def _positions(x: RealArray, shifts: int, first: Real, factor: Real) -> RealArray:
    steps = shifts << fraction_bits(shifts)
    xp, integer = namespace(x), np.int32 if steps < 1 << 30 else np.int64
    doubled = (x.astype(np.float64, copy=False) - first) * factor
    return (xp.minimum(xp.maximum(doubled, 0.0), 2.0 * steps).astype(integer) + 1) >> 1


def report_kernel(middle: Fraction, step: Fraction) -> Callable[..., Any]:
    """Return (doubled place, dtype) -> middle + step doubled/2, a function of the code alone, for |doubled| < 2^24."""
    centre, coarse, fine = report_constants(middle, step / 2)

    def reports(doubled: RealArray, dtype: np.dtype) -> RealArray:
        codes = doubled.astype(np.float64)
        return ((codes * coarse + centre) + codes * fine).astype(dtype, copy=False)

    return reports


def report_constants(middle: Fraction, half: Fraction) -> tuple[float, float, float]:
    """Return the middle, and half a step as a sum of two numbers of 29 bits: products are exact, fused or not."""
    coarse, fine = split_products([half], Fraction(1))
    return float(middle), float(coarse[0]), float(fine[0])


def split_products(numbers: Sequence[Fraction], factor: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Return products with a factor as sums of two floats of 29 bits, each: the nearest one, and that of the rest."""
    products = [(number.numerator * factor.numerator, number.denominator * factor.denominator) for number in numbers]
    coarse, fine = _shortened([n / d for n, d in products]), list[float]()
    mantissas, exponents = np.frexp(coarse)
    parts = zip(products, np.ldexp(mantissas, 29).tolist(), (exponents - 29).tolist(), strict=True)
    for (n, d), m, exponent in parts:  # n/d - m 2^exponent; a quotient of integers is rounded once.
        up, down = max(exponent, 0), max(-exponent, 0)
        fine.append(((n << down) - (int(m) * d << up)) / (d << down))
    return coarse, _shortened(fine)


def _shortened(numbers: Sequence[float]) -> np.ndarray:
    """Return the nearest floats of 29 bits."""
    mantissas, exponents = np.frexp(np.array(numbers, np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissas, 29)), exponents - 29)
