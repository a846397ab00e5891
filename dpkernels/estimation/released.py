"""Confidence intervals of true values from released values, exact for the integers that were sampled.

A release of x is y = h (P + C), where h is the cell of the noise table, C the random code, and P the position of x,

    P = floor((n + r) / M),    n = floor(x/g + 1/2),    r = floor(word M / 2^32),

with g the grid spacing and M = h/g. Both tail probabilities P(Y >= y | x) and P(Y <= y | x) are fractions, monotone in
x. The interval contains the x at which both exceed (1 - confidence)/2. It shifts with y, so two fractions describe it.

The noise of a linear combination of releases is a sum of a few distributions on grids (``noise_sums``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.caching import bounded_cache
from dpkernels.decimals import rational, shortest
from dpkernels.estimation.counts import as_numbers
from dpkernels.estimation.intervals import interval_repr
from dpkernels.estimation.noise_sums import CombinedNoise, repeated_sum
from dpkernels.exact.noise.certificate import AdditiveCertificate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.registry import exact_sampler
from dpkernels.numerics import Real, float_if_scalar

_WORD = 1 << 32  # One more than the largest word of 32 bits, which rounds a value to the grid.
# If true values are known to be multiples of a step, interval ends within this fraction of a step are rounded outwards.
_OUTWARD_ROUNDING = 1e-6
_MAX_DOUBLINGS = 200  # steps of a search for an interval's end until it is enclosed
_MAX_HALVINGS = 60  # steps of that search afterwards


def confidence_interval(
    released: object,
    mechanism: object,
    confidence: float = 0.95,
    *,
    together: bool = False,
    lattice: float | None = None,
) -> tuple[Any, Any]:
    """Return lower and upper bounds of the true values behind released ones.

    Each interval contains the true value with at least the given probability, for every value. Each of the two errors,
    too high and too low, has at most half of the remaining probability. Probabilities are those of the certified
    integers that ``perturb`` samples from. This is post-processing and costs no privacy.

    Args:
        released: the output of ``perturb`` for additive noise: a number, an array or a column.
        mechanism: the additive mechanism (on vectors or not), its exact sampler, or its certificate.
        confidence: in (0, 1).
        together: if true, all intervals hold at once with this probability; otherwise each by itself.
        lattice: a number of which every true value is a multiple, such as 1.0 for counts; interval ends are then
            multiples too. The default is the lattice of a mechanism on vectors, if it has one.

    Returns:
        (low, high): floats for a number, otherwise arrays of the shape of ``released``.

    Raises:
        ValueError: a number that the mechanism cannot have released; confidence not in (0, 1); lattice not positive.
        TypeError: the mechanism is not additive noise; released does not hold numbers.

    Example:
        >>> import dpkernels as dpk
        >>> noise = dpk.laplace(epsilon=1.0, sensitivity=1.0)
        >>> dpk.confidence_interval(120.0, noise, 0.95, lattice=1.0)
        (118.0, 122.0)
    """
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    table, step = noise_table(mechanism, lattice)
    y, rounding = _numbers(released, table)
    low, high = interval_ends(y, table, confidence, together=together)
    low, high = _on_lattice(low - rounding, high + rounding, step)
    return float_if_scalar(low), float_if_scalar(high)


def released_values(released: object, mechanism: object, *, lattice: float | None = None) -> Any:
    """Return a ``ReleasedValue`` for a number, otherwise a NumPy array of them, which remember their noise.

    Sums, differences, multiples and ratios of the results have ``value`` and ``interval(confidence)``. Make them once
    for every release: a value that is used twice is then known to have the same noise, and values of two calls are
    taken to have independent noise. Arguments and errors are those of ``confidence_interval``.

    Example:
        >>> import dpkernels as dpk
        >>> total = dpk.released_values(5000.0, dpk.laplace(epsilon=0.5, sensitivity=100.0))
        >>> people = dpk.released_values(200.0, dpk.laplace(epsilon=0.5, sensitivity=1.0), lattice=1.0)
        >>> mean = total / people
        >>> [round(number, 1) for number in (mean.value, *mean.interval(0.95))]
        [25.0, 22.0, 28.1]
    """
    table, step = noise_table(mechanism, lattice)
    y, rounding = _numbers(released, table)
    values = np.empty(y.shape, object)
    for i in np.ndindex(y.shape):
        values[i] = ReleasedValue({_Release(Fraction(float(y[i])), table, float(rounding[i]), step): Fraction(1)})
    return values[()]


def _tail(confidence: float) -> Fraction:
    """Return the probability of each of the two errors, or refuse a confidence that is not in (0, 1)."""
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    return (1 - rational(confidence)) / 2


def interval_ends(
    y: np.ndarray, table: NoiseTable, confidence: float, *, together: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the interval of each true value, by itself or all together, rounded outwards."""
    if together:
        confidence = min(math.nextafter(confidence ** (1 / y.size), 1.0), math.nextafter(1.0, 0.0))
    lower, upper = (math.nextafter(float(reach), math.inf) for reach in interval_reaches(table, _tail(confidence)))
    return np.nextafter(y - lower, -np.inf), np.nextafter(y + upper, np.inf)


@bounded_cache(1 << 26)
def interval_reaches(table: NoiseTable, tail: Fraction) -> tuple[Fraction, Fraction]:
    """Return (a, b): the x in [y - a, y + b] are those with P(Y >= y | x) > tail and P(Y <= y | x) > tail."""
    cumulated = [0, *accumulate(table.outcomes)]  # of the codes before the j-th
    M, half_spacing = table.points_per_bin, Fraction(2) ** (table.grid_log2 - 1)
    bound = tail * table.total * _WORD

    def at_most(code: int) -> int:
        return cumulated[min(max(code - table.first + 1, 0), table.codes)]

    def at_least(code: int) -> int:
        return table.total - at_most(code - 1)

    def is_likely(n: int, weight: Callable[[int], int]) -> bool:
        q, f = divmod(n, M)
        words = (f << 32) // M  # of 2^32, those that put it on position q + 1
        return (_WORD - words) * weight(-q) + words * weight(-q - 1) > bound

    points = range((-table.last - 2) * M, (-table.first + 2) * M)
    lowest = points[bisect_left(points, True, key=lambda n: is_likely(n, at_least))]
    highest = points[bisect_left(points, True, key=lambda n: not is_likely(n, at_most))] - 1
    return (1 - 2 * lowest) * half_spacing, (2 * highest + 1) * half_spacing


@dataclass(frozen=True, eq=False)
class _Release:
    y: Fraction
    table: NoiseTable
    rounding: float  # a bound on the distance of the number from the exact multiple of the cell
    lattice: float | None  # a number of which the true value is a multiple

    @cached_property
    def input_rounding(self) -> float:
        """Return the largest distance of a position from the true value, caused by input rounding."""
        cell = self.table.bin_width
        on_cells = self.lattice is not None and (Fraction(self.lattice) / cell).denominator == 1
        return self.rounding if on_cells else self.rounding + float(cell - Fraction(2) ** (self.table.grid_log2 - 1))


class ReleasedValue:
    """A released value, or a linear combination of released values and numbers; made by ``released_values``.

    Add, subtract, multiply and divide by numbers as usual. A ratio of two is a ``ReleasedRatio``.
    """

    def __init__(self, terms: Mapping[_Release, Fraction], constant: Fraction = Fraction(0)) -> None:
        self._terms = {release: factor for release, factor in terms.items() if factor}
        self._constant = constant

    @property
    def value(self) -> float:
        """Return the linear combination of the released numbers."""
        return float(self._constant + sum(factor * release.y for release, factor in self._terms.items()))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return bounds that contain the true value with at least this probability, half of the rest on each side.

        For one released value they are those of ``confidence_interval``; for several they are rounded outwards. A
        confidence not in (0, 1), or too near to 1 for the accuracy of convolutions, is a ValueError.
        """
        tail = _tail(confidence)
        if not self._terms:
            return self.value, self.value
        if len(self._terms) == 1:
            ((release, factor),) = self._terms.items()
            reaches = interval_reaches(release.table, tail)
            lower, upper = reaches if factor > 0 else reaches[::-1]
            rounding = abs(float(factor)) * release.rounding
            value = self._constant + factor * release.y
            low, high = float(value - abs(factor) * lower) - rounding, float(value + abs(factor) * upper) + rounding
        else:
            noise = self.noise
            _check_resolved(noise, float(tail), confidence)
            low = self.value - noise.upper_quantile(float(tail)) - noise.rounding
            high = self.value + noise.mirrored().upper_quantile(float(tail)) + noise.rounding
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        if (step := self._step) is None:
            return low, high
        constant = float(self._constant)
        low, high = _on_lattice(low - constant, high - constant, step)
        return constant + float(low), constant + float(high)

    @property
    def noise(self) -> CombinedNoise:
        """Return the noise of the combination: released minus true value, up to the noise's ``rounding``."""
        counts = Counter((release.table, factor) for release, factor in self._terms.items())
        noises = [
            repeated_sum(table, n).scaled(float(factor * table.bin_width)) for (table, factor), n in counts.items()
        ]
        rounding = sum(abs(float(factor)) * release.input_rounding for release, factor in self._terms.items())
        return CombinedNoise.from_noises(noises, rounding)

    def noise_tail(self) -> float:
        """Return a bound on the probability of noise that makes the combination this large if its true value is 0."""
        noise = self.noise
        return noise.tail(self.value - noise.rounding)

    @property
    def _step(self) -> float | None:
        """Return the step of which the combination, less its constant, is a multiple, or None if it is unknown."""
        steps = [release.lattice and factor * Fraction(release.lattice) for release, factor in self._terms.items()]
        if not steps or any(step is None for step in steps):
            return None
        common = math.lcm(*(step.denominator for step in steps))  # type: ignore[union-attr]
        return float(Fraction(math.gcd(*(int(step * common) for step in steps)), common))  # type: ignore[operator]

    def __add__(self, other: object) -> ReleasedValue:
        if isinstance(other, ReleasedValue):
            terms = dict(self._terms)
            for release, factor in other._terms.items():
                terms[release] = terms.get(release, Fraction(0)) + factor
            return ReleasedValue(terms, self._constant + other._constant)
        number = _number(other)
        return NotImplemented if number is None else ReleasedValue(self._terms, self._constant + number)

    def __mul__(self, other: object) -> ReleasedValue:
        if (number := _number(other)) is None:
            return NotImplemented
        terms = {release: factor * number for release, factor in self._terms.items()}
        return ReleasedValue(terms, self._constant * number)

    def __neg__(self) -> ReleasedValue:
        return self * -1

    def __sub__(self, other: ReleasedValue) -> ReleasedValue:
        return self + -other

    def __rsub__(self, other: object) -> ReleasedValue:
        return -self + other

    def __truediv__(self, other: object) -> Any:
        if isinstance(other, ReleasedValue):
            return ReleasedRatio(self, other)
        number = _number(other)
        return NotImplemented if number is None else self * (1 / number)

    __radd__, __rmul__ = __add__, __mul__

    __repr__ = interval_repr


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRatio:
    """The ratio of two linear combinations of released values."""

    numerator: ReleasedValue
    denominator: ReleasedValue

    @property
    def value(self) -> float:
        """Return the ratio of the released values; NaN where the denominator is 0."""
        denominator = self.denominator.value
        return self.numerator.value / denominator if denominator else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return bounds that contain the true ratio with at least this probability; errors as ``ReleasedValue``'s.

        It inverts tests of numerator - r denominator = 0 over all r, as Fieller's theorem does for normal noise. If the
        denominator is not significantly different from 0, the interval is (-inf, inf).

        Source: E. C. Fieller, "Some problems in interval estimation", J. R. Stat. Soc. B 16 (1954).
        """
        tail = float(_tail(confidence)) * (1 - 1e-12)
        numerator, denominator = self.numerator, self.denominator
        if denominator.value < 0:
            numerator, denominator = -numerator, -denominator
        # With T2 the true denominator, tests at the tail P(T1 <= r T2) + P(T2 <= 0) refuse every smaller r too, since
        # P(T1 <= r T2, T2 > 0) increases in r.
        _check_resolved(denominator.noise, tail, confidence)
        ratio_tail = tail - denominator.noise_tail()
        if ratio_tail <= 0:
            return -math.inf, math.inf

        def refuses(r: float, sign: float) -> bool:
            """Return whether the true ratio is not r, nor beyond it on the side of the sign."""
            return ((numerator - denominator * r) * -sign).noise_tail() <= ratio_tail

        low, high = (_last_refused(refuses, self.value, sign) for sign in (-1.0, 1.0))
        return math.nextafter(low, -math.inf), math.nextafter(high, math.inf)

    __repr__ = interval_repr


def _last_refused(refuses: Callable[[float, float], bool], start: float, sign: float) -> float:
    """Return the refused ratio nearest to the start on one side of it, or an infinity if none is found."""
    distance = max(abs(start), 1.0) * 1e-9
    for _ in range(_MAX_DOUBLINGS):
        if refuses(outer := start + sign * distance, sign):
            break
        distance *= 2
    else:
        return sign * math.inf
    inner = start
    for _ in range(_MAX_HALVINGS):
        middle = (inner + outer) / 2
        if abs(outer - inner) <= 1e-9 * abs(outer - start) or not min(inner, outer) < middle < max(inner, outer):
            break
        inner, outer = (inner, middle) if refuses(middle, sign) else (middle, outer)
    return outer


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedQuantile:
    """A quantile of values whose counts in bins were released; made by ``histogram_quantile``.

    ``value`` is the quantile of the released counts, which are taken to be uniform within a bin.
    """

    value: float
    _edges: np.ndarray
    _excesses: tuple[ReleasedValue, ...]

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return two edges between which the true quantile is with at least this probability."""
        tail = float(_tail(confidence)) * (1 - 1e-12)
        lower, upper = 0, len(self._excesses)  # An excess >= 0: the quantile is at most the bin's upper edge.
        while lower < len(self._excesses) and (-self._excesses[lower]).noise_tail() <= tail:
            lower += 1
        while upper > lower and self._excesses[upper - 1].noise_tail() <= tail:
            upper -= 1
        return float(self._edges[lower]), float(self._edges[upper + 1])

    __repr__ = interval_repr


def histogram_quantile(counts: Sequence[ReleasedValue], edges: Real, p: float) -> ReleasedQuantile:
    """Return the smallest x that a share p of the values does not exceed, from their counts in bins.

    Args:
        counts: of the d bins, from ``released_values``.
        edges: (d + 1,) increasing ends of the bins; the bins hold (edge, next edge], and the first one its lower end.
        p: in (0, 1).

    Raises:
        ValueError: edges that do not increase, or are not one more than the counts; p not in (0, 1).

    Example:
        >>> import numpy as np, dpkernels as dpk
        >>> noise = dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=3, norm="l1", lattice=1.0)
        >>> counts = dpk.released_values(np.array([40.0, 100.0, 60.0]), noise)
        >>> dpk.histogram_quantile(counts, [0, 10, 20, 30], 0.5).interval(0.95)
        (10.0, 20.0)
    """
    checks.within("p", p, 0.0, 1.0, open_ends=True)
    ends = np.asarray(edges, np.float64)
    if ends.shape != (len(counts) + 1,) or not (np.diff(ends) > 0).all():
        raise ValueError(f"edges: must be {len(counts) + 1} increasing numbers, the ends of {len(counts)} bins")
    *partial_sums, total = accumulate(counts)
    cumulated = np.cumsum([0.0, *(max(count.value, 0.0) for count in counts)])
    rank = p * cumulated[-1]
    k = min(max(int(np.searchsorted(cumulated, rank)), 1), len(counts))
    count = cumulated[k] - cumulated[k - 1]
    fraction = (rank - cumulated[k - 1]) / count if count > 0 else 0.5
    value = float(ends[k - 1] + fraction * (ends[k] - ends[k - 1]))
    return ReleasedQuantile(value, ends, tuple(partial_sum - total * p for partial_sum in partial_sums))


def noise_table(source: object, lattice: float | None) -> tuple[NoiseTable, float | None]:
    """Return the table of additive noise, and the number of which true values are multiples, if it is known."""
    if isinstance(source, AdditiveCertificate):
        certificate = source
    else:
        sampler = exact_sampler(source)
        if not isinstance(sampler, ExactNoise):
            raise TypeError(
                f"mechanism: {type(source).__name__} is not additive noise; `estimate` is for local reports"
            )
        certificate = sampler.certificate
    if lattice is None:
        return certificate.table.finite, certificate.lattice
    checks.positive("lattice", lattice)
    return certificate.table.finite, float(lattice)


def _numbers(released: object, table: NoiseTable) -> tuple[np.ndarray, np.ndarray]:
    """Return the released numbers as float64, and bounds on their rounding errors."""
    array = as_numbers("released", released)
    y = array.astype(np.float64)
    return y, rounding_errors("released", y, table, single=array.dtype == np.float32)


def rounding_errors(name: str, y: np.ndarray, table: NoiseTable, *, single: bool = False) -> np.ndarray:
    """Return the rounding errors of floats against exact multiples of the cell; 0 where floats hold these.

    There, refuse numbers that are no multiples; the error names the first.
    """
    cell, digits = float(table.bin_width), 24 if single else 53
    is_exact = np.abs(y) < 2.0 ** (digits + table.grid_log2)
    with np.errstate(invalid="ignore"):
        is_impossible = ~np.isfinite(y) | (is_exact & (np.fmod(y, cell) != 0))
    if is_impossible.any():
        index = np.unravel_index(int(is_impossible.argmax()), y.shape)
        number = f"number {index[0] if len(index) == 1 else tuple(map(int, index))}" if index else "it"
        raise ValueError(
            f"{name}: {number} is {shortest(y[index])}, no multiple of {shortest(cell)}; this mechanism cannot have "
            "made it (values that were rounded, or simulated, are not its own)"
        )
    return np.where(is_exact, 0.0, np.abs(y) * 2.0 ** (2 - digits))


def _on_lattice(low: Real, high: Real, step: float | None) -> tuple[Any, Any]:
    """Return the smallest and the largest multiple of the step within the ends."""
    if step is None:
        return low, high
    return np.ceil(low / step - _OUTWARD_ROUNDING) * step, np.floor(high / step + _OUTWARD_ROUNDING) * step


def _number(value: object) -> Fraction | None:
    """Return a finite number as a fraction; None for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating | Fraction):
        return None
    return Fraction(value.item() if isinstance(value, np.generic) else value)


def _check_resolved(noise: CombinedNoise, tail: float, confidence: float) -> None:
    if tail <= 2 * noise.slack:
        highest = f"{1 - 5 * noise.slack:.12g}"
        raise ValueError(f"confidence: {confidence} is too near 1 for sums of so many values; at most {highest}")
