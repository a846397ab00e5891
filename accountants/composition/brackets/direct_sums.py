"""Sums of independent losses by positive terms: no transform, no tilt, and no error but a share of each mass.

Bounds then hold their digits where losses are rare and large. Proofs: docs/proofs/sums.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from accountants.composition.brackets.masses import RATIO, GridReleases, coarsen
from accountants.composition.brackets.monotone import TooManyPointsError
from accountants.composition.brackets.sums import REPORTS_PER_BLOCK, SECOND_ORDER, ComposedBounds, sum_offsets
from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF
from dpkernels.proven import proven

_MAX_PRODUCTS = 1 << 29  # The most products of one sum by positive terms, which take about 0.3 s.
_MAX_PLAIN_POINTS = 256  # The points up to which sums are computed point by point.
_UNDERFLOW = 1e-300  # More than what products lose that are below the floats.


@proven("sums#proof")
def compose_directly(
    terms: Sequence[GridReleases], step: float, negligible: float, side: int, stages: int = 0
) -> ComposedBounds:
    """Return what ``compose`` does, without a tilt and by sums of positive terms.

    No error is larger than a share of the mass that it belongs to, so that bounds hold their digits where losses are
    rare and large, and no tilt raises those that matter. This takes a time of the square of the number of points.
    """
    with np.errstate(divide="ignore"):
        infinite = float(-np.expm1(sum(term.count * np.log1p(-min(term.infinite, 1.0)) for term in terms)))
    sums = [_Direct(term.mass, term.first_index, term.count, term.stage) for term in terms]
    total, work = sum(term.count for term in terms), _Work(_MAX_PRODUCTS)
    lost_mass = shift = 0.0
    for stage in range(stages):
        coarser = [term for term in sums if term.stage > stage]
        current = [term for term in sums if term.stage <= stage]
        for term in current:
            block_count, remainder = divmod(term.count, REPORTS_PER_BLOCK)
            for size, count in ((REPORTS_PER_BLOCK, block_count), (remainder, 1)):
                if size * count:
                    block = term.power(size, negligible / total, work)
                    mass, first = coarsen(block.g, block.first_index, step, 0.0, side)
                    coarser.append(_Direct(mass, first, count, stage + 1, block.rounding_rtol + 16 * UNIT_ROUNDOFF))
                    lost_mass += count * block.lost_mass
                    shift += 32 * UNIT_ROUNDOFF * count * RATIO * step
        sums, step = coarser, step * RATIO
    result, *further = (term.power(term.count, negligible / total, work) for term in sums)
    for addend in further:
        result = result.convolved(addend, negligible, work)
    offset, offsets = sum_offsets(terms)
    offset += side * shift
    loss = (result.first_index + np.arange(len(result.g))) * step + offset
    lost_mass = math.expm1(min(SECOND_ORDER * (lost_mass + result.lost_mass), MAX_EXPONENT)) + _UNDERFLOW
    largest = offsets + (abs(result.first_index) + len(result.g)) * step
    return ComposedBounds(loss, result.g, 0.0, 0.0, infinite, 0.0, lost_mass, 1e-13 + result.rounding_rtol, largest)


@dataclass
class _Work:
    """The number of products that are left."""

    remaining: int


@dataclass(frozen=True)
class _Direct:
    """Masses at the grid numbers first + j, with a bound on their relative errors, and on the mass that was left out.

    They are composed ``count`` times.
    """

    g: np.ndarray
    first_index: int
    count: int = 1
    stage: int = 0
    rounding_rtol: float = 0.0
    lost_mass: float = 0.0

    def convolved(self, addend: _Direct, negligible: float, work: _Work) -> _Direct:
        """Return the sum of both, without the least masses that together are negligible."""
        indices, addend_indices = np.flatnonzero(self.g), np.flatnonzero(addend.g)
        if len(addend_indices) < len(indices):
            return addend.convolved(self, negligible, work)
        work.remaining -= len(indices) * len(addend.g)
        if work.remaining < 0:
            raise TooManyPointsError(f"sums over {len(indices)} and {len(addend.g)} points take too long")
        if len(indices) < _MAX_PLAIN_POINTS:
            g = np.zeros(len(self.g) + len(addend.g) - 1)
            for index in indices:
                g[index : index + len(addend.g)] += self.g[index] * addend.g
        else:
            g = np.convolve(self.g, addend.g)
        order = np.argsort(g)
        is_light = order[: int((np.cumsum(g[order]) <= negligible).sum())]
        lost_mass = self.lost_mass + addend.lost_mass + float(g[is_light].sum())
        g[is_light] = 0.0
        nonzero = np.flatnonzero(g)
        low, high = (int(nonzero[0]), int(nonzero[-1]) + 1) if len(nonzero) else (0, 1)
        rounding_rtol = self.rounding_rtol + addend.rounding_rtol + (4 + len(indices)) * UNIT_ROUNDOFF
        return _Direct(
            g[low:high], self.first_index + addend.first_index + low, 1, self.stage, rounding_rtol, lost_mass
        )

    def power(self, count: int, negligible: float, work: _Work) -> _Direct:
        base: _Direct = replace(self, count=1)
        result: _Direct | None = None
        while count:
            if count & 1:
                result = base if result is None else result.convolved(base, negligible, work)
            count >>= 1
            base = base.convolved(base, negligible, work) if count else base
        return cast(_Direct, result)
