"""Build noise tables: masses of a density on bins, or of points on a lattice, rounded up to integers.

A bin's weight is the density's mass in it, so sampling the table is a rounding of the density's noise and inherits its
guarantee. Rounding weights up costs at most one unit of 2^-bits per code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import TypeVar

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.distributions.discrete import Lattice
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.noise import (
    GRID_LOG2_RANGE,
    NoiseCertificate,
    NoiseTable,
    VectorClaim,
    VectorNoiseCertificate,
    cells_apart,
    certify_noise,
    certify_vector,
)
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.additive_vector import AdditiveVector
from dpkernels.numerics import Real, gauss_legendre

BITS = 64  # log2 of a total: one random word a value.
# The numbers of codes that are tried. Tables of the first size stay in the processor's cache. The second size has a
# smaller rounding error, for a tiny delta. Wide noise may take more codes, up to the largest number.
_SIZES, _MOST_CODES = (1 << 16, 1 << 12), 1 << 20
_FINEST = 12  # log2 of the most cells of a sensitivity D: rounding inputs to them adds at most D^2 2^-26 of variance.
# Inputs are first put on a grid of the sensitivity over 2^22 to 2^23: fine, and within 64 bits far from 0.
_GRID_BITS = 22
# And on at most a sensitivity over 2^27: inputs are within 2^34 sensitivities, and 2^61 points have room in integers.
_GRAIN_BITS = 27
# The factors, minus 1, by which a table may be wider than the exact noise of the claim to compensate for rounding.
STRETCHES = tuple(2.0**-k for k in range(40, 8, -4))
Certified = TypeVar("Certified")
_NODES, _WEIGHTS = gauss_legendre(16)


def noise_certificate(mechanism: Additive) -> NoiseCertificate:
    """Return the certified table of a mechanism's noise: the narrowest that has the claim.

    Raises:
        CertificateError: the mechanism has no claim, or no table has the claim; says what the best one has.
    """
    D, epsilon, delta = mechanism.sensitivity, mechanism.epsilon, mechanism.delta
    if D is None or epsilon is None or not delta:
        raise CertificateError(
            f"mechanism: claims sensitivity {D}, epsilon {epsilon}, delta {delta}; a release needs all three and "
            "delta > 0, see Additive.claim"
        )
    if delta < 2.0**-BITS:
        raise CertificateError(f"delta: {delta:g} is below 2^-{BITS}, the least that a table's last code weighs")

    def certified(codes: int, stretch: float) -> NoiseCertificate:
        table = next(noise_tables(mechanism.noise, Fraction(D), codes=codes, stretches=(stretch,)))
        return certify_noise(table, D, epsilon, delta)

    return narrowest([partial(certified, codes) for codes in _SIZES])


def narrowest(kinds: Sequence[Callable[[float], Certified]]) -> Certified:
    """Return the certificate of the narrowest table that satisfies its claim, from the first kind that has one.

    Args:
        kinds: functions that map a stretch to the certificate of a table wider by that factor, or to a
            CertificateError.

    Raises:
        CertificateError: even the widest tables do not satisfy the claim.
    """
    for certified in kinds:
        with suppress(CertificateError):
            return certified(STRETCHES[0])
        try:
            widest = certified(STRETCHES[-1])  # If this one fails, those in between would fail as well.
        except CertificateError as failed:
            error = failed
            continue
        for stretch in STRETCHES[1:-1]:
            with suppress(CertificateError):
                return certified(stretch)
        return widest
    raise CertificateError(f"{error}, although the noise is {STRETCHES[-1]:.3g} wider than asked for") from error


def noise_tables(
    noise: Noise,
    sensitivity: Fraction,
    bits: int = BITS,
    codes: int = _SIZES[0],
    stretches: Sequence[float] = STRETCHES,
) -> Iterator[NoiseTable]:
    """Return tables of the noise for neighbours up to ``sensitivity`` apart, from the narrowest to slightly wider ones.

    A code is a point of a lattice. Of a density, D is cut into n bins, a power of two or, since a bin is a whole number
    of grid points, a few less.

    Args:
        noise: a distribution.
        sensitivity: D, exactly.
        bits: log2 of the total.
        codes: the intended largest number of codes; wide noise takes more.
        stretches: the factors, minus 1, by which each table is wider than the distribution.

    Raises:
        CertificateError: the noise is too wide or too narrow for a table; the message says what is feasible.
        TypeError: an unknown distribution.
    """
    if isinstance(noise, Lattice):
        return _lattice_tables(noise, sensitivity, bits, stretches)
    if not isinstance(noise, Distribution):
        raise TypeError(f"noise: {type(noise).__name__} has no table")
    D = float(sensitivity)
    grid_log2, points_per_bin = grid(sensitivity, _parts(width(noise, D, bits), D, codes))
    parts = cells_apart(sensitivity, grid_log2, points_per_bin)
    return (table for table, _ in density_tables(noise, D, parts, grid_log2, points_per_bin, bits, stretches))


def _lattice_tables(
    noise: Lattice, sensitivity: Fraction, bits: int, stretches: Sequence[float]
) -> Iterator[NoiseTable]:
    """Yield tables with one code per lattice point; the distribution is stretched on the lattice."""
    grid_log2, points_per_bin = lattice_grid(noise.step, sensitivity)
    for stretch in stretches:
        weights = np.exp(noise.log_weight(noise.points / (1 + stretch)))
        yield _table(weights / weights.sum(), -noise.reach, bits, grid_log2, points_per_bin)


def density_tables(
    noise: Distribution,
    sensitivity: float,
    parts: float,
    grid_log2: int,
    points_per_bin: int,
    bits: int = BITS,
    stretches: Sequence[float] = STRETCHES,
) -> Iterator[tuple[NoiseTable, float]]:
    """Yield tables in which D is ``parts`` cells, each with the factor by which it is wider than the distribution.

    Raises:
        CertificateError: the noise is too wide for a table, or too narrow.
    """
    low, high = _ends(noise, sensitivity, bits)
    if _spread(noise, bits) * parts < sensitivity:
        raise CertificateError(
            f"noise: is within {_spread(noise, bits):.3g}; too narrow for sensitivity {shortest(sensitivity)}"
        )
    if (high - low) * parts > _MOST_CODES * sensitivity:
        raise CertificateError(
            f"noise: is {(high - low) / sensitivity:.3g} sensitivities of {parts:.3g} cells wide; a table holds at "
            f"most {_MOST_CODES} cells"
        )
    for stretch in stretches:
        bin_width = sensitivity / parts / (1 + stretch)
        first, last = math.floor(low / bin_width + 0.5), math.ceil(high / bin_width - 0.5)
        masses = _falling(_masses(noise, np.arange(first, last + 2) - 0.5, bin_width), -first)
        yield _table(masses, first, bits, grid_log2, points_per_bin), 1 + stretch


def _ends(noise: Distribution, sensitivity: float, bits: int) -> tuple[float, float]:
    """Return the ends of the support, or points D beyond those where the remaining mass is below a code's unit.

    A code without a partner D further out would count in delta; this way only codes of one unit have none.
    """
    (low, high), (first, last) = (float(end) for end in noise.support), _quantiles(noise, bits)
    return max(low, first - sensitivity), min(high, last + sensitivity)


def _quantiles(noise: Distribution, bits: int) -> tuple[float, float]:
    """Return the points beyond which less than a code's unit of mass is left on either side."""
    tail = np.float64(2.0 ** -(bits + 1))
    return float(noise.icdf(tail)), float(noise.isf(tail))


def _spread(noise: Distribution, bits: int) -> float:
    first, last = _quantiles(noise, bits)
    return last - first


def width(noise: Distribution, sensitivity: float, bits: int = BITS) -> float:
    """Return the width of a table of the noise, in data units."""
    low, high = _ends(noise, sensitivity, bits)
    return high - low


def _masses(noise: Distribution, edges: np.ndarray, bin_width: float) -> np.ndarray:
    """Return the mass between neighbouring edges, to the last digits relatively: Gauss-Legendre between knots.

    Edges are in cells, so that whole ones are exactly alike: a step of e^eps leaves no room for other differences.
    """
    cuts = np.clip(np.append(np.asarray(noise.knots), np.asarray(noise.support)) / bin_width, edges[0], edges[-1])
    points = np.union1d(edges, cuts)
    widths = np.diff(points)
    pieces = bin_width * widths * (noise.prob((points[:-1, None] + widths[:, None] * _NODES) * bin_width) @ _WEIGHTS)
    masses = np.add.reduceat(pieces, np.searchsorted(points, edges[:-1]))
    mirrored = np.allclose(masses, masses[::-1], rtol=1e-12, atol=0)
    return (masses + masses[::-1]) / 2 if mirrored else masses


def _parts(span: float, sensitivity: float, codes: int) -> int:
    """Return n, the largest power of two of cells per sensitivity that keeps within the number of codes, or 1."""
    return 1 << min(_FINEST, max(0, math.floor(math.log2(codes * sensitivity / span))))


def grid(sensitivity: Fraction, parts: int) -> tuple[int, int]:
    """Return (grid_log2, M) with n bins of M grid points that just cover D, which has 2^22 to 2^23 points.

    Raises:
        CertificateError: D is too small or too large for floats.
    """
    grid_log2 = math.frexp(float(sensitivity))[1] - 1 - _GRID_BITS
    if not GRID_LOG2_RANGE[0] <= grid_log2 <= GRID_LOG2_RANGE[1]:
        raise CertificateError(
            f"sensitivity: {shortest(float(sensitivity))} is too small or too large; rescale the data"
        )
    points_per_bin = math.ceil(Fraction(math.ceil(sensitivity / Fraction(2) ** grid_log2), parts))
    return grid_log2, points_per_bin


def lattice_grid(step: Real, sensitivity: Fraction) -> tuple[int, int]:
    """Return (grid_log2, M) with M 2^grid_log2 = step exactly, and few enough points in D for 64-bit integers.

    Raises:
        CertificateError: step is not a whole number below 2^32 times a power of two, or too fine.
    """
    exact = Fraction(float(step))
    odd = exact.numerator >> ((exact.numerator & -exact.numerator).bit_length() - 1)
    unit = exact / odd
    room = _GRAIN_BITS - math.ceil(sensitivity / unit).bit_length()
    if odd >= 1 << 32 or room < 0:
        raise CertificateError(
            f"step: {float(step)!r} is not a short binary fraction, or too fine for sensitivity "
            f"{shortest(float(sensitivity))}; reports would not be its exact multiples: use 1, 0.5, 0.25, ... or "
            "rescale the data to whole numbers"
        )
    spare = min(room, max(0, _GRID_BITS + 1 - odd.bit_length()))
    return round(math.log2(unit)) - spare, odd << spare


def _falling(masses: np.ndarray, centre: int) -> np.ndarray:
    """Return the masses without rounding noise: they fall away from 0, and flat parts are exactly flat.

    Where the distribution begins or ends within the bin of 0, the next bin is the largest.
    """
    near = [j for j in (centre, centre - 1, centre + 1) if 0 <= j < len(masses)]
    top = near[int(np.argmax(np.round(masses[near] / masses[near].max(), 9)))]
    left, right = masses[top::-1], masses[top:]
    return np.concatenate([np.minimum.accumulate(left)[:0:-1], np.minimum.accumulate(right)])


def _table(masses: np.ndarray, first: int, bits: int, grid_log2: int, points_per_bin: int) -> NoiseTable:
    weights = _rounded_up([int(mass) for mass in np.ldexp(masses, bits + 40)], 1 << bits)
    weights[-first] += (1 << bits) - sum(weights)
    if weights[-first] >> bits:
        raise CertificateError("noise: too narrow; it is 0 for certain")
    return NoiseTable(np.array(weights, np.uint64), first, bits, grid_log2, points_per_bin)


def _rounded_up(masses: list[int], total: int) -> list[int]:
    """Return ceil(mass s) for the largest scale s at which they sum to at most ``total``, within 2^-40 of a unit.

    Raises:
        CertificateError: there are more codes than units of weight.
    """
    if len(masses) >= total:
        raise CertificateError(f"noise: {len(masses)} codes for a total of {total}")
    unit, mass = total.bit_length() + 40, sum(masses)
    low, high = ((total - len(masses)) << unit) // mass, (total << unit) // mass + 1
    for _ in range(40):
        middle = (low + high) // 2
        fits = sum(-(-mass * middle >> unit) for mass in masses) <= total
        low, high = (middle, high) if fits else (low, middle)
    return [-(-mass * low >> unit) for mass in masses]


# The shares of the sensitivity that rounding may add before a finer table is tried, and before the table is refused.
_SMALL, _LARGE = 1e-3, 0.1
_VECTOR_SIZES = (1 << 16, 1 << 18)  # Codes of the tables tried, in order.


def vector_certificate(vector: AdditiveVector) -> VectorNoiseCertificate:
    """Return the certified table of a vector mechanism: the narrowest that has the claim.

    Raises:
        CertificateError: no table has the claim; says what the best one has.
    """
    return narrowest([lambda stretch: certify_vector(*_stretched(vector, stretch))])


def _stretched(vector: AdditiveVector, stretch: float) -> tuple[NoiseTable, VectorClaim]:
    """Return a table of the noise stretched by 1 + ``stretch``, and the claim to certify for it."""
    noise, own = vector.coordinate.noise, float(vector.coordinate.sensitivity)
    if isinstance(noise, Lattice):
        if vector.lattice is None or (Fraction(vector.lattice) / Fraction(float(noise.step))).denominator != 1:
            raise CertificateError(
                f"lattice: {vector.lattice}; noise in steps of {shortest(noise.step)} needs values on them"
            )
        return next(noise_tables(noise, Fraction(own), stretches=(stretch,))), _claim(vector, 1.0)
    if not isinstance(noise, Distribution):
        raise TypeError(f"noise: {type(noise).__name__} has no table")
    grid_log2, points_per_bin, parts = _finest(noise, vector, own)
    table, wider = next(density_tables(noise, own, float(parts), grid_log2, points_per_bin, stretches=(stretch,)))
    return table, _claim(vector, float(parts) / own * wider)


def _claim(vector: AdditiveVector, cells: float) -> VectorClaim:
    """Return the claim for a vector. Gaussian noise is described in cells, of which there are ``cells`` a data unit."""
    m, sigma = vector.coordinate, vector.coordinate.noise.gaussian_sigma
    lattice = None if vector.lattice is None else float(vector.lattice)
    in_cells = None if sigma is None else float(sigma) * cells
    D = float(vector.sensitivity)
    return VectorClaim(m.epsilon, m.delta, D, vector.norm, vector.dimensions, lattice, in_cells)


def _finest(noise: Distribution, vector: AdditiveVector, own: float) -> tuple[int, int, Fraction]:
    """Return (grid_log2, M, cells between neighbours) of the coarsest table that adds little to the sensitivity.

    Raises:
        CertificateError: even the finest adds more than a tenth.
    """
    claim = _claim(vector, 1.0)
    for codes in _VECTOR_SIZES:
        grid_log2, points_per_bin = _cut(noise, vector, own, codes)
        parts = claim.cells(bin_width := points_per_bin * Fraction(2) ** grid_log2, points_per_bin)
        added = float(parts * bin_width) / own - 1
        if added <= _SMALL:
            break
    if added > _LARGE:
        raise CertificateError(
            f"dimensions: rounding {vector.dimensions} values adds {100 * added:.3g} % to the sensitivity; say what "
            "they are multiples of (lattice=1.0 for counts), or release fewer at a time"
        )
    return grid_log2, points_per_bin, parts


def _cut(noise: Distribution, vector: AdditiveVector, own: float, codes: int) -> tuple[int, int]:
    """Return (grid_log2, M) for about ``codes`` cells over the width of the noise, each at most one sensitivity."""
    wide = width(noise, own)
    if vector.lattice is None:
        parts = 1 << max(0, math.floor(math.log2(max(1.0, codes * own / wide))))
        return grid(Fraction(own), parts)
    grid_log2, points_per_bin = lattice_grid(vector.lattice, Fraction(own))
    while points_per_bin % 2 == 0 and wide / float(points_per_bin * Fraction(2) ** grid_log2) < codes / 2:
        points_per_bin //= 2
    return grid_log2, points_per_bin
