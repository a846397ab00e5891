"""Private bounds of values, from noisy counts of the values between powers of two."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpkernels.session.blocks import Block
from dpkernels.session.cells import numbers
from dpkernels.session.run import ReleaseInProgress
from dpkernels.session.sums import SumLattice

_LARGEST_EXPONENT, _SMALLEST_EXPONENT = 60, -40
_STEPS = _LARGEST_EXPONENT - _SMALLEST_EXPONENT + 1
EXPONENTS = 2 * _STEPS + 1  # negative powers of two, 0, and positive ones
_RISK = 1e-3  # that a bound is beyond all values


def exponent_indices(values: np.ndarray) -> np.ndarray:
    """Return for each value the index of the least power of two, with its sign, that is not smaller."""
    sizes = np.minimum(np.abs(values), 2.0**_LARGEST_EXPONENT)
    fractions, exponents = np.frexp(sizes)  # sizes = fractions 2^exponents, with fractions in [1/2, 1)
    exponents = np.maximum(exponents - (fractions == 0.5), _SMALLEST_EXPONENT)
    steps = np.where(sizes > 0, exponents - _SMALLEST_EXPONENT + 1, 0)
    return (_STEPS + np.sign(values) * steps).astype(np.int64)


def exponent_value(index: int) -> float:
    """Return the number at an index of ``exponent_indices``."""
    steps = min(max(index, 0), EXPONENTS - 1) - _STEPS
    return math.copysign(2.0 ** (abs(steps) - 1 + _SMALLEST_EXPONENT), steps) if steps else 0.0


def bounds_lattice(rows: int, epsilon: float) -> SumLattice:
    """Return the lattice of the counts, of which a person changes some by at most so many rows."""
    return SumLattice.for_sums(rows, epsilon, EXPONENTS, 1, counts=True)


def private_bounds(column: str, run: ReleaseInProgress, epsilon: float, title: str) -> tuple[float, float]:
    """Return bounds of nearly all values: powers of two, or 0.

    The values are counted by powers of two. A count is large if no noise of an empty one is as large, with probability
    0.999. The bounds are the ends of the first and the last power with a large count, or of the power with the largest
    one if there is none.
    """

    def indices(block: Block) -> tuple[np.ndarray, None]:
        values = numbers(block[column])
        missing = np.isnan(values)
        return np.where(missing, -1, exponent_indices(np.where(missing, 0.0, values))), None

    sums = run.sums((column,), (EXPONENTS, 1), indices)
    noisy = run.add_noise(sums, bounds_lattice(run.rows_per_person, epsilon), epsilon, title)
    counts = noisy.values[:, 0]
    large = np.flatnonzero(counts > noisy.scale * math.log(EXPONENTS / (2 * _RISK)))
    if not len(large):
        large = np.array([np.argmax(counts)])
    first, last = int(large[0]), int(large[-1])
    lower, upper = exponent_value(first - 1), exponent_value(max(last, 1))
    run.noise_records[-1] = replace(run.noise_records[-1], label=f"{title}: bounds {lower:g} to {upper:g}")
    return lower, upper
