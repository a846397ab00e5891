"""Construction of noise tables. ``certify_noise`` and ``certify_vector`` then verify or refuse them.

The weights of a table are the masses of a density on bins, or of points on a lattice, rounded up to integers. Without
this rounding, to sample from the table would be to sample from the density and to round to bins, which keeps the
guarantee. Rounding weights up costs at most one unit of 2^-bits per code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.distributions.discrete import Lattice
from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.noise.certificate import (
    NoiseCertificate,
    VectorClaim,
    VectorNoiseCertificate,
    certify_noise,
    certify_vector,
)
from dpkernels.exact.noise.gaussian_cells import FIXED_BITS, cell_masses
from dpkernels.exact.noise.grid import GRID_BITS, MAX_BIN_LOG2, MAX_CELLS_LOG2, cells_apart, covering_grid
from dpkernels.exact.noise.remainder import Remainder
from dpkernels.exact.noise.table import NoiseTable, rounding_probability
from dpkernels.exact.noise.tail import Tail
from dpkernels.mechanisms.additive import Additive, AdditiveVector
from dpkernels.numerics import GAUSS_LEGENDRE, Real
from dpkernels.proven import proven
from dpkernels.shapes import Float, Num, UInt64

BITS = 64  # log2 of a total: one random word a value.
_REACH = 12  # Standard deviations up to which a remainder has codes; beyond is a mass of 2^-108.
# The numbers of codes that are tried. Tables of the first size stay in the processor's cache. The second size has a
# smaller rounding error, for a tiny delta.
_SIZES = 1 << 16, 1 << 12
# The number of codes that wide noise may take.
_MAX_CODES = 1 << 20
# log2 of the largest number of grid points in a sensitivity, for noise on a lattice: inputs are within 2^34
# sensitivities, so that their positions are within 2^61 points, which 64-bit integers hold.
_POINT_BITS = 27
# The factors, minus 1, by which a table may be wider than the exact noise of the claim to compensate for rounding.
STRETCHES = tuple(2.0**-k for k in range(40, 8, -4))
_NODES, _WEIGHTS = GAUSS_LEGENDRE
_BLOCK = 1 << 12  # The number of intervals that are integrated together.

# The same for noise with a tail, whose power 1/(1 + stretch) is taken. Its last weights have about 30 bits.
PURE_STRETCHES = tuple(2.0**-k for k in range(26, 6, -4))
_TAIL_MASS = 2.0**-25  # Of either side, at most: a release hardly ever draws from it.
_TAIL_DECAY = 4.0  # Probabilities of a block are e^-4 of those of the block before it, or less.

Certified = TypeVar("Certified")


def noise_certificate(mechanism: Additive) -> NoiseCertificate:
    """Return the certified table of a mechanism's noise: the narrowest that has the claim."""
    D, epsilon, delta = mechanism.sensitivity, mechanism.epsilon, mechanism.delta
    if D is None or epsilon is None or delta is None:
        raise CertificateError(
            f"mechanism: claims sensitivity {D}, epsilon {epsilon}, delta {delta}; a release needs all three, see "
            "Additive.claim"
        )
    if 0 < delta < 2.0**-BITS:
        raise CertificateError(f"delta: {delta:g} is below 2^-{BITS}, the least that a table's last code weighs")

    def certified(codes: int, stretch: float) -> NoiseCertificate:
        build = noise_table if delta else pure_table
        table = build(mechanism.noise, Fraction(D), BITS, codes, stretch)
        is_mixed = not isinstance(mechanism.noise, Lattice) and rounding_probability(table, Fraction(D)) < 1
        return certify_noise(table, D, epsilon, delta, is_mixed=is_mixed)

    if not delta:
        return narrowest_certified([partial(certified, _SIZES[0])], PURE_STRETCHES)
    return narrowest_certified([partial(certified, codes) for codes in _SIZES])


def narrowest_certified(
    builders: Sequence[Callable[[float], Certified]], stretches: Sequence[float] = STRETCHES
) -> Certified:
    """Return the certificate of the narrowest table with its claim, from the first kind that has one."""
    for certified in builders:
        with suppress(CertificateError):
            return certified(stretches[0])
        try:
            widest = certified(stretches[-1])  # If this one fails, those in between would fail as well.
        except CertificateError as failed:
            error = failed
            continue
        for stretch in stretches[1:-1]:
            with suppress(CertificateError):
                return certified(stretch)
        return widest
    raise CertificateError(f"{error}, although the noise is {stretches[-1]:.3g} wider than asked for") from error


def noise_table(
    noise: Noise, sensitivity: Fraction, bits: int = BITS, codes: int = _SIZES[0], stretch: float = STRETCHES[0]
) -> NoiseTable:
    """Return a table of the noise for neighbours up to ``sensitivity`` apart.

    Noise on a lattice has one code per point. For a density, D is cut into n bins, a power of two or a few less,
    because a bin is a whole number of grid points. The table has about ``codes`` codes, and more for wide noise. Where
    it would have more than it holds, a bin is 2 to 2^8 sensitivities. The noise is wider by the factor 1 + ``stretch``;
    noise on a lattice is stretched on the lattice.
    """
    if isinstance(noise, Lattice):
        weights = np.exp(noise.log_weight(noise.points / (1 + stretch)))
        return _table(weights / weights.sum(), -noise.reach, bits, *lattice_grid(noise.step, sensitivity))
    noise, D = in_sensitivities(noise, float(sensitivity))
    density = _distribution(noise)
    low, high = _ends(density, D, bits)
    parts_log2 = min(MAX_CELLS_LOG2, _parts_log2(codes, D, high - low))
    if high - low > _MAX_CODES * D:
        parts_log2 = -min(MAX_BIN_LOG2, math.ceil(math.log2((high - low) / D / _MAX_CODES)))
    noise_grid = covering_grid(sensitivity, Fraction(2) ** parts_log2)
    resolution = cells_apart(sensitivity, *noise_grid) if parts_log2 >= 0 else 2.0**parts_log2
    return density_table(density, D, resolution, *noise_grid, bits, stretch)


@proven("endless_noise#proof")
def pure_table(
    noise: Noise, sensitivity: Fraction, bits: int = BITS, codes: int = _SIZES[0], stretch: float = PURE_STRETCHES[0]
) -> NoiseTable:
    """Return a table with a tail, so that delta is 0, for neighbours up to ``sensitivity`` apart.

    Its bins are those of ``noise_table``.
    """
    if isinstance(noise, Lattice):
        return pure_table_on_grid(noise, 1, *lattice_grid(noise.step, sensitivity), bits, stretch)
    noise, D = in_sensitivities(noise, float(sensitivity))
    density = _distribution(noise)
    low, high = _ends(density, D, bits)
    parts_log2 = min(MAX_CELLS_LOG2, _parts_log2(codes, D, high - low))
    reach = 2 * float(density.isf(np.float64(_TAIL_MASS)))
    if reach > _MAX_CODES * D:
        parts_log2 = -min(MAX_BIN_LOG2, math.ceil(math.log2(reach / D / _MAX_CODES)))
    noise_grid = covering_grid(sensitivity, Fraction(2) ** parts_log2)
    distance = cells_apart(sensitivity, *noise_grid)
    bin_width = D / (distance if parts_log2 >= 0 else 2.0**parts_log2)
    return pure_table_on_grid(noise, distance, *noise_grid, bits, stretch, bin_width)


@lru_cache(maxsize=4)
def fine_gaussian_table(sigma: int) -> NoiseTable:
    """Return the table of Gaussian noise on whole numbers with a remainder, at a distance of about 2^-97 at 2^12 cells.

    The weights are the cells' masses, cut to 64 bits. The remainder has what was cut off, in relation to all that was,
    and the mass beyond ``_REACH`` at the code 0.
    """
    masses, _ = cell_masses(Fraction(sigma), _REACH * sigma + 1, is_fine=True)
    dropped_bits = FIXED_BITS - BITS
    weights = np.array([mass >> dropped_bits for mass in masses], np.uint64)
    last = int(np.count_nonzero(weights)) - 1
    weights = np.concatenate([weights[last:0:-1], weights[: last + 1]])
    open_weight = (1 << BITS) - arithmetic.total(weights)
    cut = [(mass & ((1 << dropped_bits) - 1)) // (open_weight << (dropped_bits - BITS)) for mass in masses]
    cut[0] += (1 << BITS) - 2 * sum(cut) + cut[0]
    cut_weights = np.array(cut, np.uint64)
    remainder = Remainder(open_weight, np.concatenate([cut_weights[:0:-1], cut_weights]), -_REACH * sigma, BITS)
    return NoiseTable(weights, -last, BITS, *lattice_grid(1.0, Fraction(sigma)), remainder=remainder)


def pure_table_on_grid(
    noise: Noise,
    distance: int,
    grid_log2: int,
    points_per_bin: int,
    bits: int,
    stretch: float,
    bin_width: float | None = None,
) -> NoiseTable:
    """Return a table with a tail on a grid, for neighbours ``distance`` cells apart and noise whose tail is geometric.

    The density to the power 1/(1 + ``stretch``) has ratios to this power, and steps at the same places. A block is a
    whole number of times the neighbours' distance. A lattice needs no bin width.
    """
    if not isinstance(noise, Lattice | Distribution) or noise.geometric_tail is None:
        raise CertificateError(
            f"delta: is 0; the table of {type(noise).__name__} noise ends, and needs delta > 0, see Additive.claim"
        )
    start, period = noise.geometric_tail
    width = float(noise.step) if isinstance(noise, Lattice) else float(bin_width or 0.0)
    if period is not None and not math.isclose(period, distance * width, rel_tol=1e-12):
        raise CertificateError(f"delta: is 0; noise of period {shortest(period)} is pure for this sensitivity only")
    tail_point = start + width
    logs = noise.log_weight if isinstance(noise, Lattice) else noise.log_prob
    power = 1 / (1 + stretch)
    decay = float(logs(tail_point) - logs(tail_point + distance * width)) * power  # Over the distance of neighbours.
    # The last weight times decay times 2^-14 is 4 at least: so much wider noise has room for its rounding.
    mass = max(_TAIL_MASS, 2.0 ** (16 - bits) * distance / decay**2)
    if isinstance(noise, Lattice):
        reach = -math.log(mass) * distance * width / decay
    else:
        reach = float(noise.isf(np.float64(min(mass, 0.25))))
    last, block = math.ceil(max(reach, tail_point) / width), distance * math.ceil(_TAIL_DECAY / decay)
    if max(last, block) >= _MAX_CODES:
        raise CertificateError(
            f"noise: is {2 * last} cells wide; a table holds at most {_MAX_CODES} cells; use wider ones"
        )
    if isinstance(noise, Lattice):
        masses = np.exp(noise.log_weight(width * np.arange(last + distance + block + 1)) * power)
    else:
        masses = _masses(noise, np.arange(last + distance + block + 2) - 0.5, width, power)
    # Blocks begin where the noise falls most, not within a step, so that rounding makes no block begin with a rise.
    falls = masses[last : last + distance] / masses[last + 1 : last + distance + 1]
    last += int(np.argmax(falls >= falls.max() * (1 - 1e-9)))
    side = np.minimum.accumulate(masses[: last + 1])
    tail = np.minimum.accumulate(masses[last + 1 : last + 1 + block])
    continue_probability = math.exp(-decay * block / distance)
    tail_mass = tail.sum() / (1 - continue_probability)
    all_masses = np.concatenate([[tail_mass], side[:0:-1], side, [tail_mass]])
    table = _table(all_masses / all_masses.sum(), -last - 1, bits, grid_log2, points_per_bin)
    continue_weight = math.floor(Fraction(continue_probability) * (1 << bits)) + 1
    weights = _rounded_up(np.ldexp(tail / tail.sum(), bits + 40), (1 << bits) - continue_weight)
    return replace(table, weights=table.weights[1:-1], first=-last, tail=Tail(int(table.weights[0]), weights, bits))


def in_sensitivities(noise: Noise, sensitivity: float) -> tuple[Noise, float]:
    """Return the noise in units of the sensitivity, and 1, so that tables depend on ratios alone.

    Noise that cannot be rescaled is left as it is, with its sensitivity.
    """
    if isinstance(noise, Noise):
        with suppress(TypeError):
            return noise.rescale(1.0, sensitivity), 1.0
    return noise, sensitivity


def _distribution(noise: Noise) -> Distribution:
    """Return the noise, which must have a density."""
    if not isinstance(noise, Distribution):
        raise TypeError(f"noise: {type(noise).__name__} has no table")
    return noise


def _parts_log2(codes: int, sensitivity: float, width: float) -> int:
    """Return log2 of the largest power of two of cells per sensitivity that keeps within the number of codes."""
    return max(0, math.floor(math.log2(codes * sensitivity / width)))


def density_table(
    noise: Distribution,
    sensitivity: float,
    resolution: float,
    grid_log2: int,
    points_per_bin: int,
    bits: int = BITS,
    stretch: float = STRETCHES[0],
) -> NoiseTable:
    """Return a table in which D is ``resolution`` cells, wider than the distribution by the factor 1 + ``stretch``."""
    low, high = _ends(noise, sensitivity, bits)
    span = float(np.diff(_quantiles(noise, bits))[0])
    if span * resolution < sensitivity:
        raise CertificateError(f"noise: is within {span:.3g}; too narrow for sensitivity {shortest(sensitivity)}")
    if (high - low) * resolution > _MAX_CODES * sensitivity:
        raise CertificateError(
            f"noise: is {(high - low) / sensitivity:.3g} sensitivities of {resolution:.3g} cells wide; a table holds "
            f"at most {_MAX_CODES} cells"
        )
    bin_width = sensitivity / resolution / (1 + stretch)
    first, last = math.floor(low / bin_width + 0.5), math.ceil(high / bin_width - 0.5)
    masses = _masses(noise, np.arange(first, last + 2) - 0.5, bin_width)
    # Without rounding noise masses fall away from 0, and flat parts are exactly flat. Where the distribution begins or
    # ends within the bin of 0, the next bin is the largest.
    candidates = [j for j in (-first, -first - 1, 1 - first) if 0 <= j < len(masses)]
    top = candidates[int(np.argmax(np.round(masses[candidates] / masses[candidates].max(), 9)))]
    left_masses, right_masses = (np.minimum.accumulate(side) for side in (masses[top::-1], masses[top:]))
    return _table(np.concatenate([left_masses[:0:-1], right_masses]), first, bits, grid_log2, points_per_bin)


def _quantiles(noise: Distribution, bits: int) -> tuple[float, float]:
    """Return the points beyond which less than a code's unit of mass is left on either side."""
    tail = np.float64(2.0 ** -(bits + 1))
    return float(noise.icdf(tail)), float(noise.isf(tail))


def _ends(noise: Distribution, sensitivity: float, bits: int = BITS) -> tuple[float, float]:
    """Return the ends of the support, or points D beyond those where the remaining mass is below a code's unit."""
    (low, high), (first, last) = (float(end) for end in noise.support), _quantiles(noise, bits)
    # A code without a partner D further out would count in delta; this way only codes of one unit have none.
    return max(low, first - sensitivity), min(high, last + sensitivity)


def _masses(
    noise: Distribution, edges: Num[np.ndarray, " edges"], bin_width: float, power: float = 1.0
) -> Float[np.ndarray, " edges-1"]:
    """Return the mass between neighbouring edges, to the last digits relatively: Gauss-Legendre between knots.

    With a power they are integrals of the density to this power.
    """
    # In cells whole edges are exactly alike: a step of e^eps leaves no room for other differences.
    with np.errstate(over="ignore"):  # An end too far away to be counted in cells is cut off.
        breaks = np.append(np.asarray(noise.knots), np.asarray(noise.support)) / bin_width
    cuts = np.clip(breaks, edges[0], edges[-1])
    points = np.union1d(edges, cuts)
    widths = np.diff(points)
    # In blocks that stay in the processor's cache.
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(widths), _BLOCK)]
    nodes = ((points[:-1][block, None] + widths[block, None] * _NODES) * bin_width for block in blocks)
    density = noise.prob if power == 1 else lambda z: np.exp(power * noise.log_prob(z))
    pieces = bin_width * widths * np.concatenate([density(z) @ _WEIGHTS for z in nodes])
    masses = np.add.reduceat(pieces, np.searchsorted(points, edges[:-1]))
    mirrored = np.allclose(masses, masses[::-1], rtol=1e-12, atol=0)
    return (masses + masses[::-1]) / 2 if mirrored else masses


def lattice_grid(step: Real, sensitivity: Fraction) -> tuple[int, int]:
    """Return (grid_log2, M) with M 2^grid_log2 = step exactly, and few enough points in D for 64-bit integers."""
    exact = Fraction(float(step))
    odd = exact.numerator >> ((exact.numerator & -exact.numerator).bit_length() - 1)
    unit = exact / odd
    spare_bits = _POINT_BITS - math.ceil(sensitivity / unit).bit_length()
    if odd >= 1 << 32 or spare_bits < 0:
        raise CertificateError(
            f"step: {float(step)!r} is not a short binary fraction, or too fine for sensitivity "
            f"{shortest(float(sensitivity))}; reports would not be its exact multiples: use 1, 0.5, 0.25, ... or "
            "rescale the data to whole numbers"
        )
    spare = min(spare_bits, max(0, GRID_BITS + 1 - odd.bit_length()))
    return round(math.log2(unit)) - spare, odd << spare


def _table(
    masses: Float[np.ndarray, " codes"], first: int, bits: int, grid_log2: int, points_per_bin: int
) -> NoiseTable:
    """Return the table of the masses, with what rounding leaves of the total on the code 0."""
    weights, total = _rounded_up(np.ldexp(masses, bits + 40), 1 << bits), 1 << bits
    middle = int(weights[-first]) + total - arithmetic.total(weights)
    if middle >> bits:
        raise CertificateError("noise: too narrow; it is 0 for certain")
    weights[-first] = middle
    return NoiseTable(weights, first, bits, grid_log2, points_per_bin)


def _rounded_up(masses: Float[np.ndarray, " codes"], total: int) -> UInt64[np.ndarray, " codes"]:
    """Return ceil(floor(mass) s) for the largest scale s, in units of 2^-40 over the total, that keeps within it."""
    if len(masses) >= total:
        raise CertificateError(f"noise: {len(masses)} codes for a total of {total}")
    exponents = np.maximum(np.frexp(masses)[1] - 53, 0)
    mantissas = np.ldexp(masses, -exponents).astype(np.uint64)  # Whole numbers, or cut to them.
    return arithmetic.rounded_up(mantissas, exponents, total.bit_length() + 40, total)


# The numbers of codes that are tried for vectors.
_VECTOR_SIZES = 1 << 16, 1 << 18
# The share of the sensitivity that rounding may add before a finer table is tried.
_SMALL_ROUNDING = 1e-3
# The share of the sensitivity that rounding may add before the table is refused.
_MAX_ROUNDING = 0.1


def vector_certificate(vector: AdditiveVector) -> VectorNoiseCertificate:
    """Return the certified table of a vector mechanism: the narrowest that has the claim."""
    noise, sensitivity, delta = vector.coordinate.noise, float(vector.coordinate.sensitivity), vector.coordinate.delta

    def certified(stretch: float) -> VectorNoiseCertificate:
        if isinstance(noise, Lattice):
            if vector.lattice is None or (Fraction(vector.lattice) / Fraction(float(noise.step))).denominator != 1:
                raise CertificateError(
                    f"lattice: {vector.lattice}; noise in steps of {shortest(noise.step)} needs values on them"
                )
            build = noise_table if delta else pure_table
            return certify_vector(build(noise, Fraction(sensitivity), stretch=stretch), _claim(vector, 1.0))
        density = _distribution(noise)
        grid_log2, points_per_bin, resolution = _finest(density, vector, sensitivity)
        if not delta:
            bin_width = sensitivity / float(resolution)
            table = pure_table_on_grid(noise, 1, grid_log2, points_per_bin, BITS, stretch, bin_width)
            return certify_vector(table, _claim(vector, 1.0))
        table = density_table(density, sensitivity, float(resolution), grid_log2, points_per_bin, stretch=stretch)
        return certify_vector(table, _claim(vector, float(resolution) / sensitivity * (1 + stretch)))

    return narrowest_certified([certified], STRETCHES if delta else PURE_STRETCHES)


def _claim(vector: AdditiveVector, cells_per_unit: float) -> VectorClaim:
    """Return the claim for a vector. Gaussian noise is described in cells of 1/``cells_per_unit`` data units."""
    m, sigma = vector.coordinate, vector.coordinate.noise.gaussian_sigma
    lattice = None if vector.lattice is None else float(vector.lattice)
    in_cells = None if sigma is None else float(sigma) * cells_per_unit
    D = float(vector.sensitivity)
    return VectorClaim(m.epsilon, m.delta, D, vector.norm, vector.dimensions, lattice, in_cells)


def _finest(noise: Distribution, vector: AdditiveVector, sensitivity: float) -> tuple[int, int, Fraction]:
    """Return (grid_log2, M, cells between neighbours) of the coarsest table that adds little to the sensitivity."""
    claim, (low, high) = _claim(vector, 1.0), _ends(noise, sensitivity)
    for codes in _VECTOR_SIZES:
        if vector.lattice is None:
            cells = 1 << _parts_log2(codes, sensitivity, high - low)
            grid_log2, points_per_bin = covering_grid(Fraction(sensitivity), cells)
        else:
            grid_log2, points_per_bin = lattice_grid(vector.lattice, Fraction(sensitivity))
        unit = Fraction(2) ** grid_log2
        # On a lattice a bin may be a part of a step.
        while vector.lattice and points_per_bin % 2 == 0 and (high - low) / float(points_per_bin * unit) < codes / 2:
            points_per_bin //= 2
        resolution = claim.cells(bin_width := points_per_bin * unit, points_per_bin)
        added = float(resolution * bin_width) / sensitivity - 1
        if added <= _SMALL_ROUNDING:
            break
    if added > _MAX_ROUNDING:
        raise CertificateError(
            f"dimensions: rounding {vector.dimensions} values adds {100 * added:.3g} % to the sensitivity; say what "
            "they are multiples of (lattice=1.0 for counts), or release fewer at a time"
        )
    return grid_log2, points_per_bin, resolution
