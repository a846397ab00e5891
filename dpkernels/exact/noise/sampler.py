"""Exact samplers of additive noise, on single values and on vectors: inputs on a grid, noise from a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.exact.kernels import alias_columns, alias_kernel
from dpkernels.exact.noise.certificate import NoiseCertificate, VectorNoiseCertificate
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.sampler import NOISE_STREAM, ROUNDING_STREAM, ExactSampler, Words
from dpkernels.numerics import RealArray, namespace

NoiseKernel = Callable[[RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class ExactNoise(ExactSampler):
    """Additive noise from a table, on single values or on vectors."""

    mechanism: Any
    certificate: NoiseCertificate | VectorNoiseCertificate

    @property
    def table(self) -> NoiseTable:
        """Return the verified integers."""
        return self.certificate.table

    @cached_property
    def words(self) -> tuple[Words, ...]:
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, 32)

    @property
    def negligible(self) -> float:
        """Return half of the grid; inputs strictly closer to 0 are rounded to 0."""
        return 2.0 ** (self.table.grid_log2 - 1)

    @cached_property
    def codes(self) -> NoiseKernel:
        """Return the table's sampler."""
        return noise_kernel(self.table)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        position = self.positions(x, rounding) + self.codes(noise)
        return (position.astype(np.float64) * float(self.table.bin_width)).astype(x.dtype, copy=False)

    def positions(self, x: RealArray, rounding: RealArray) -> RealArray:
        """Return floor((floor(x/g + 1/2) + r)/M) with r = floor(word M / 2^32), exactly.

        x/g is exact, g being a power of two, and floor(x/g + 1/2) is floor((floor(2x/g) + 1)/2), in integers. Division
        is faster without signs, so a multiple of M is added and taken off again.
        """
        table, most = self.table, 1 << 62
        xp = namespace(x)
        doubled = xp.floor(x.astype(np.float64, copy=False) * 2.0 ** (1 - table.grid_log2))
        # Inputs are within this; clipping moves no two of them apart, so that no input whatever can overflow.
        doubled = xp.minimum(xp.maximum(doubled, -(2.0**62)), 2.0**62).astype(np.int64)
        r = rounding.astype(np.uint64) * np.uint64(table.points_per_bin) >> np.uint64(32)
        ahead = most // table.points_per_bin
        shifted = (((doubled + 1) >> 1) + ahead * table.points_per_bin).astype(np.uint64) + r
        return (shifted // np.uint64(table.points_per_bin)).astype(np.int64) - ahead


def noise_sampler(mechanism: Any, certificate: NoiseCertificate | VectorNoiseCertificate) -> ExactNoise:
    """Return the sampler of a mechanism by its certificate."""
    sampler = ExactNoise(mechanism, certificate)
    _ = sampler.codes  # The sampler's own tables are checked here, with the certificate.
    return sampler


def noise_kernel(table: NoiseTable) -> NoiseKernel:
    """Return the sampler of noise: random word of ``table.bits`` bits -> code, int32."""
    outcomes, first = alias_kernel(alias_columns(table.outcomes, table.bits)), np.int32(table.first)
    return lambda r: outcomes(r) + first
