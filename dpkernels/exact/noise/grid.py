"""The grid of additive noise: rounding of inputs to positions, and the map from positions and codes to reports.

An input x is rounded to the position

    floor((floor(x/g + 1/2) + r) / M),    g = 2^grid_log2,    r uniform on 0..M-1,

a stochastic rounding to multiples of the bin width h = M g, in exact arithmetic: x/g changes only the exponent of a
float, and all other operations use integers. The report is h (position + code), see ``table.py``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.numerics import Real, RealArray, namespace, power_of_two
from dpkernels.proven import proven

# The smallest and largest ``grid_log2``. Processors may read subnormal inputs as 0: with the smallest, those of float64
# are within half a grid point of 0 (float32 inputs are checked when they come). With the largest, reports are finite.
GRID_LOG2_RANGE = (-1021, 960)
# log2 of the largest number of cells in a sensitivity D: rounding inputs to so many adds at most D^2 2^-26 of variance.
MAX_CELLS_LOG2 = 12
# log2 of the smallest number of grid points in a sensitivity. So fine a grid hardly moves an input, and the position of
# an input far from 0 still has less than 64 bits.
GRID_BITS = 22
# log2 of the largest number of sensitivities in a bin of wide noise: a bin has less than 2^32 grid points.
MAX_BIN_LOG2 = 8


def cells_apart(distance: Fraction, grid_log2: int, points_per_bin: int) -> int:
    """Return ceil(ceil(distance / g) / M), the most cells by which the positions of such inputs can differ."""
    return math.ceil(Fraction(math.ceil(distance / Fraction(2) ** grid_log2), points_per_bin))


def covering_grid(sensitivity: Fraction, bins: int | Fraction) -> tuple[int, int]:
    """Return (grid_log2, M) with ``bins`` bins of M grid points that just cover D, which has 2^22 to 2^23 points."""
    grid_log2 = math.frexp(float(sensitivity))[1] - 1 - GRID_BITS
    if not GRID_LOG2_RANGE[0] <= grid_log2 <= GRID_LOG2_RANGE[1]:
        raise CertificateError(
            f"sensitivity: {shortest(float(sensitivity))} is too small or too large; rescale the data"
        )
    return grid_log2, math.ceil(Fraction(math.ceil(sensitivity / Fraction(2) ** grid_log2), bins))


def covering_grids(sensitivities: np.ndarray, bins_log2: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every sensitivity D, (grid_log2, ceil(D/g), M) of ``covering_grid`` with 2^bins_log2 bins; exact."""
    exponents = np.frexp(sensitivities)[1].astype(np.int64) - 1 - GRID_BITS
    points = np.ceil(np.ldexp(sensitivities, -exponents)).astype(np.int64)  # At most 2^23: exact in floats.
    M = -(-points >> bins_log2) if bins_log2 >= 0 else points << -bins_log2
    return exponents, points, M


class NoiseGrid(NamedTuple):
    """The grid of a table: plain numbers, or arrays with a number for every value, of few bytes."""

    grid_log2: RealArray  # An integer, or int16.
    points_per_bin: RealArray  # M, an integer, or uint32.

    @classmethod
    def of(cls, grid_log2: np.ndarray, points_per_bin: np.ndarray) -> NoiseGrid:
        """Return grids as arrays of few bytes; a ValueError for numbers out of range."""
        if not 1 <= points_per_bin.min() <= points_per_bin.max() < 1 << 32 or np.abs(grid_log2).max() > 1 << 14:
            raise ValueError("points_per_bin: must be from 1 to 2^32 - 1, and grid_log2 from -2^14 to 2^14")
        return cls(grid_log2.astype(np.int16), points_per_bin.astype(np.uint32))

    @property
    def half_points_per_unit(self) -> Real:
        """Return 2/g."""
        return power_of_two(1 - self._exponent)

    @property
    def bin_width(self) -> Real:
        """Return h = M g, exactly."""
        M = self.points_per_bin
        return (float(M) if isinstance(M, int) else M.astype(np.float64)) * power_of_two(self._exponent)

    @property
    def float_radius(self) -> Real:
        """Return the distance from 0, 2^50 g, below which inputs have ``float_positions``."""
        return 2.0**51 / self.half_points_per_unit

    def reports(self, position: RealArray, dtype: np.dtype) -> RealArray:
        """Return h times the positions, codes included."""
        return (position.astype(np.float64, copy=False) * self.bin_width).astype(dtype, copy=False)

    @property
    def _exponent(self) -> Real:
        return self.grid_log2 if isinstance(self.grid_log2, int) else self.grid_log2.astype(np.int64)


@proven("noise_tables#proof")
def positions(x: RealArray, rounding: RealArray, grid: NoiseGrid) -> RealArray:
    """Return floor((floor(x/g + 1/2) + r)/M) with r = floor(word M / 2^32), exactly."""
    xp, M = namespace(x), grid.points_per_bin
    # x/g is exact, g being a power of two, and floor(x/g + 1/2) is floor((floor(2x/g) + 1)/2), in integers.
    doubled = xp.floor(x.astype(np.float64, copy=False) * grid.half_points_per_unit)
    # Inputs are within this; clipping moves no two of them apart, so that no input whatever can overflow.
    doubled = xp.minimum(xp.maximum(doubled, -(2.0**62)), 2.0**62).astype(np.int64)
    unsigned = np.uint64(M) if isinstance(M, int) else M.astype(np.uint64)
    # Division is faster without signs, so a multiple of M is added and taken off again.
    offset = (1 << 62) // M if isinstance(M, int) else (1 << 62) // M.astype(np.int64)
    shifted = (((doubled + 1) >> 1) + offset * M).astype(np.uint64) + _uniform(rounding, unsigned)
    return (shifted // unsigned).astype(np.int64) - offset


def _uniform(rounding: RealArray, M: RealArray | np.uint64) -> RealArray:
    """Return r = floor(word M / 2^32), which is below M."""
    return rounding.astype(np.uint64) * M >> np.uint64(32)


@proven("noise_tables#proof")
def float_positions(x: RealArray, rounding: RealArray, grid: NoiseGrid) -> RealArray:
    """Return ``positions`` as floats, within ``float_radius``: processors divide floats faster than integers.

    All numbers are integers below 2^51, which floats hold. Where M is one number for all values, XLA does not divide,
    but multiplies by its reciprocal. Two roundings leave the quotient p/M, a multiple of 1/M, off by less than 1/M. Its
    floor is therefore never too high, and at a multiple of M at most 1 too low; the remainder is then M.
    """
    xp, M = namespace(x), grid.points_per_bin
    doubled = xp.floor(x.astype(np.float64, copy=False) * grid.half_points_per_unit)
    r, m = _uniform(rounding, M.astype(np.uint64)), M.astype(np.float64)
    p = xp.floor((doubled + 1) * 0.5) + r.astype(np.uint32).astype(np.float64)
    q = xp.floor(p / m)
    return q + (p - q * m >= m).astype(np.float64)
