"""Laplace noise with any number of scales from few tables: entries of a batch differ in the size of their cells.

The probabilities of a table change by a factor of at most e^rate from one code to the next. So neighbours that are c
cells apart have the privacy loss c rate. An entry with budget eps divides its sensitivity D into at most c =
floor(eps/rate) cells. The noise has the scale 1/rate in cells, which is D/eps except for the rounding of c and of the
grid points of a cell. With a rate for every power of two of the budget, the scale is at most 0.15 % larger for eps >=
1/16, and 0.5 % for eps >= 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, real
from dpkernels.decimals import float_at_least, shortest
from dpkernels.distributions.laplace import Laplace
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.noise.certificate import NOISE_LIMITS, AdditiveCertificate, check_lattice
from dpkernels.exact.noise.construction import BITS, PURE_STRETCHES, narrowest_certified, pure_table_on_grid
from dpkernels.exact.noise.grid import GRID_LOG2_RANGE, NoiseGrid, covering_grids
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.noise.tail import check_pure
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.proven import proven

_CELLS_LOG2 = 11  # log2 of the cells of a sensitivity, at most one more than this.
_FINEST_RATE_LOG2 = -15  # The table then has 2^20 codes.
_MIN_CELLS = 64  # Of a sensitivity: fewer would make the noise over 2 % wider.
_SCALE_RTOL = 1e-9  # How far, relatively, a scale may be from D/eps.


@dataclass(frozen=True)
class SharedNoiseCertificate(AdditiveCertificate, kind="shared noise"):
    """Verified facts about a table whose probabilities change by at most e^rate from a code to the next one.

    ``rate`` is a power of two, so that sums of it are exact. Inputs c cells apart have the budget c rate.
    """

    rate: float
    table: NoiseTable

    facts = ("rate",)
    components: ClassVar[Mapping[str, str]] = {"noise": "table"}
    entry_claims = ("epsilon", "delta", "sensitivity")
    epsilon = property(attrgetter("rate"))
    delta = 0.0
    realised_delta = Fraction(0)

    @proven("endless_noise#proof-for-entries-that-choose-their-cells")
    def refused_entries(self, claims: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which entries are more cells apart on their grid than their budget has room for."""
        epsilon, D = claims["epsilon"], claims["sensitivity"]
        refused = (claims["delta"] != 0) | ~((D > 0) & np.isfinite(D))
        refused |= ~((epsilon >= _MIN_CELLS * self.rate) & (epsilon <= checks.EPSILON_RANGE[1]))
        exponents, points, M = shared_grids(np.where(refused, 1.0, epsilon), np.where(refused, 1.0, D), self.rate)
        is_far = (exponents < GRID_LOG2_RANGE[0]) | (exponents > GRID_LOG2_RANGE[1]) | (M < 1) | (M >= 1 << 32)
        return refused | is_far | (-(-points // np.maximum(M, 1)) * self.rate > epsilon)

    def entry_grids(self, claims: Mapping[str, np.ndarray]) -> NoiseGrid:
        """Return the cells of entries, which follow from their budgets and sensitivities."""
        exponents, _, M = shared_grids(claims["epsilon"], claims["sensitivity"], self.rate)
        return NoiseGrid.of(exponents, M)

    @property
    def covers(self) -> str:
        return (
            "pure epsilon-DP of each report, for the entry's own epsilon; neighbouring: datasets whose true values, as "
            f"floats, differ by at most the entry's sensitivity. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, payload: JsonObject) -> SharedNoiseCertificate:
        return certify_shared(NoiseTable.from_dict(payload["noise"]), real("rate", payload["rate"]))

    def lines(self) -> list[tuple[str, str]]:
        table = self.table
        return [
            ("epsilon", f"{shortest(self.rate)} for each cell between neighbours, attained delta 0"),
            ("reports", "multiples of a cell, which follows from an entry's sensitivity and epsilon"),
            ("noise", f"{table.codes} values from {table.first} to {table.last} cells, and beyond without end"),
            ("total weight", f"2^{table.bits}"),
            ("variance", f"at most {shortest(float_at_least(self.worst_variance))} squared cells a value"),
        ]


@proven("endless_noise#proof-for-entries-that-choose-their-cells")
def shared_grids(epsilon: np.ndarray, sensitivity: np.ndarray, rate: float) -> tuple[np.ndarray, ...]:
    """Return, for every entry, (grid_log2, ceil(D/g), M) such that D is at most floor(epsilon/rate) cells of M points.

    The quotient is exact, since the rate is a power of two.
    """
    exponents, points, _ = covering_grids(sensitivity, 0)
    cells = np.maximum(np.floor(epsilon / rate), 1.0).astype(np.int64)
    return exponents, points, -(-points // cells)


@proven("endless_noise#proof-for-entries-that-choose-their-cells")
def certify_shared(table: NoiseTable, rate: float) -> SharedNoiseCertificate:
    """Verify the total and the ratio of all neighbouring codes, and return the certificate, or say what fails."""
    checks.within("rate", rate, 2.0**_FINEST_RATE_LOG2, 1.0)
    if math.frexp(rate)[0] != 0.5:
        raise CertificateError(f"rate: {shortest(rate)} is not a power of two")
    if table.tail is None or table.remainder:
        raise CertificateError("table: has no tail, or a remainder")
    check_lattice(table)
    check_pure(table.weights, table.first, table.tail, 1, exp_lower_bound(rate))
    return SharedNoiseCertificate(float(rate), table)


@lru_cache(maxsize=1 - _FINEST_RATE_LOG2)
def _certificate(rate_log2: int) -> SharedNoiseCertificate:
    """Return the certified table of a rate; its own cells have the width 1."""
    rate = 2.0**rate_log2

    def certified(stretch: float) -> SharedNoiseCertificate:
        noise = Laplace(1 / rate)
        return certify_shared(pure_table_on_grid(noise, 1, -_CELLS_LOG2, 1 << _CELLS_LOG2, BITS, stretch, 1.0), rate)

    return narrowest_certified([certified], PURE_STRETCHES)


def shared_tables(flat: Mechanism) -> tuple[tuple[ExactNoise, ...], np.ndarray, dict[str, np.ndarray]] | None:
    """Return the samplers of a flat batch, the number of each entry's, and the claims; None if it cannot share tables.

    The batch has to be pure Laplace noise of scale D/eps.
    """
    if not (isinstance(flat, Additive) and type(flat.noise) is Laplace):
        return None
    claims = {name: getattr(flat, name) for name in SharedNoiseCertificate.entry_claims}
    if any(claim is None for claim in claims.values()):
        return None
    claims = {name: np.array(np.broadcast_to(claim, flat.batch_size), np.float64) for name, claim in claims.items()}
    epsilon, D = claims["epsilon"], claims["sensitivity"]
    if (np.abs(flat.noise.scale * epsilon / D - 1) > _SCALE_RTOL).any():
        return None
    rate_log2 = np.maximum(np.frexp(epsilon)[1] - 1 - _CELLS_LOG2, _FINEST_RATE_LOG2)
    rates, table_index = np.unique(rate_log2, return_inverse=True)
    certificates = [_certificate(int(rate)) for rate in rates]
    for number, certificate in enumerate(certificates):
        entries = table_index == number
        if certificate.refused_entries({name: values[entries] for name, values in claims.items()}).any():
            return None
    firsts = [int((table_index == number).argmax()) for number in range(len(rates))]
    samplers = zip(firsts, certificates, strict=True)
    return tuple(ExactNoise(flat[first], certificate) for first, certificate in samplers), table_index, claims
