"""Certificates of noise tables: the exact delta of a table, for one value and for vectors.

Let the same table draw the noise of every coordinate of a vector, and let neighbouring vectors differ by s_i bins in
coordinate i. Two properties of the table bound the privacy loss of the vector (docs/proofs/vectors.md).

* l1, any noise. With rho = e^(eps/N), N a bound on sum |s_i|, let tau be the mass by which the table exceeds rho times
  itself shifted by one bin. Then the vector is (eps, tau (e^eps - 1)/(rho - 1))-DP.
* l2, Gaussian noise. With tau the total variation distance between the table and the Gaussian's bin masses, the
  vector has the delta of Gaussian noise at sqrt(sum s_i^2) bins (Balle & Wang 2018), plus d tau (1 + e^eps).

The distance tau of a table of 64-bit weights is about 2^-64 times the number of codes. A table with a remainder
(remainder.py) has weights of 128 bits; all but one in 2^47 draws need only the first 64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, real
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import Certificate, CertificateError, check_totals, exp_lower_bound
from dpkernels.exact.noise.gaussian_cells import FIXED_BITS, MAX_DEVIATIONS, cell_masses, ndtr_bounds
from dpkernels.exact.noise.grid import (
    GRID_LOG2_RANGE,
    MAX_BIN_LOG2,
    MAX_CELLS_LOG2,
    NoiseGrid,
    covering_grid,
    covering_grids,
)
from dpkernels.exact.noise.table import NoiseTable, excess, hockey_stick, mixed_hockey_stick, rounding_probability
from dpkernels.exact.noise.tail import check_pure
from dpkernels.mechanisms.additive import NORMS
from dpkernels.proven import proven

# The exclusions of every certificate of additive noise.
NOISE_LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover the sensitivity itself, "
    "rounding while the true value was computed, timing, caches or other side channels, which rows or columns exist, "
    "values copied unperturbed, or the composition of several reports."
)
# Weights that are not unimodal are compared at every shift; tables built here are unimodal.
_MAX_COMPARISONS = 1 << 21


class AdditiveCertificate(Certificate):
    """Verified facts about a table of additive noise; ``realised_delta`` is a bound on delta at epsilon."""

    epsilon: float
    delta: float
    realised_delta: Fraction
    table: NoiseTable

    lattice: float | None = None  # The number of which every input is a multiple: on a lattice no input is rounded.
    components: ClassVar[Mapping[str, str]] = {"noise": "table"}

    @property
    def worst_variance(self) -> Fraction:
        """Return a bound on the variance of a report or a coordinate at any input, input rounding included."""
        return self.table.variance + (0 if self.lattice else self.table.bin_width**2 / 4)

    @property
    def guarantee(self) -> str:
        return "(epsilon, delta)-DP" if self.delta else "pure epsilon-DP"

    realised_epsilon = property(attrgetter("epsilon"))  # The budget, which goes with ``realised_delta``.

    def entry_grids(self, claims: Mapping[str, np.ndarray]) -> NoiseGrid:
        """Return the places of the table for entries of a batch, which follow from their claims."""
        raise TypeError(f"certificate: {type(self).__name__} is of no batch's entries")

    @property
    def lowest(self) -> Fraction | None:
        """Return the least noise, or None if there is none."""
        return None if self.table.tail else self.table.bin_width * self.table.ends[0]

    @property
    def highest(self) -> Fraction | None:
        """Return the largest noise, or None if there is none."""
        return None if self.table.tail else self.table.bin_width * self.table.ends[1]

    def lines(self) -> list[tuple[str, str]]:
        table = self.table
        ends = " to ".join(f"{float(table.bin_width * code):.9g}" for code in table.ends)
        tail_text = f", and beyond in blocks of {table.tail.codes} without end" if table.tail else ""
        return [
            ("reports", f"multiples of {shortest(float(self.table.bin_width))}"),
            ("noise", f"{table.ends[1] - table.ends[0] + 1} values from {ends}{tail_text}"),
            (
                "total weight",
                f"2^{self.table.bits}"
                + (f", and 2^{2 * self.table.bits} with the remainder" if table.remainder else ""),
            ),
            ("mean of the noise", f"{float(self.table.mean):.9g}"),
            ("variance", f"at most {shortest(float_at_least(self.worst_variance))} a value"),
        ]


@dataclass(frozen=True)
class NoiseCertificate(AdditiveCertificate, kind="noise"):
    """Verified facts about one table of noise; see ``AdditiveCertificate``.

    Neighbours are at most the sensitivity apart (the float's exact value), which is at most ``shift`` cells. The
    realised delta is the largest at epsilon over all shifts up to this, both ways. A shift below 1 is the probability
    with which rounding moves neighbours to different cells.
    """

    epsilon: float
    delta: float
    sensitivity: float
    shift: int | Fraction
    realised_delta: Fraction
    table: NoiseTable

    facts = (
        *("epsilon", "delta", "sensitivity", "shift", "realised_epsilon", "realised_delta", "lowest", "highest"),
        *("bias", "worst_variance"),
    )

    bias = property(attrgetter("table.mean"))
    entry_claims = ("epsilon", "delta", "sensitivity")

    @cached_property
    def bins_log2(self) -> int | None:
        """Return log2 of the bins into which ``grid`` cuts the sensitivity; None for another grid, as of a lattice."""
        table_grid, D = (self.table.grid_log2, self.table.points_per_bin), Fraction(self.sensitivity)
        try:
            exponents = range(-MAX_BIN_LOG2, MAX_CELLS_LOG2 + 1)
            return next((p for p in exponents if covering_grid(D, Fraction(2) ** p) == table_grid), None)
        except CertificateError:
            return None

    @proven("noise_tables#proof-for-the-entries-of-a-batch")
    def refused_entries(self, claims: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which entries have another budget, or are other cells apart on their grid than this certificate's."""
        refused = (claims["epsilon"] != self.epsilon) | (claims["delta"] != self.delta)
        D = claims["sensitivity"]
        if self.bins_log2 is None:
            return refused | (self.sensitivity != D)
        refused |= ~((D > 0) & np.isfinite(D))
        exponents, points, M = covering_grids(np.where(refused, self.sensitivity, D), self.bins_log2)
        is_far = (exponents < GRID_LOG2_RANGE[0]) | (exponents > GRID_LOG2_RANGE[1]) | (M < 1) | (M >= 1 << 32)
        if self.shift < 1:
            shift, apart = int(self.shift * (1 << 32)), -((-points << 32) // M)
        else:
            shift, apart = int(self.shift), -(-points // M)
        return refused | is_far | (apart != shift)

    def entry_grids(self, claims: Mapping[str, np.ndarray]) -> NoiseGrid:
        """Return the places of the table for the sensitivities of entries."""
        D = claims["sensitivity"]
        if self.bins_log2 is None:
            table = self.table
            return NoiseGrid.of(np.full(len(D), table.grid_log2), np.full(len(D), table.points_per_bin))
        exponents, _, M = covering_grids(D, self.bins_log2)
        return NoiseGrid.of(exponents, M)

    @property
    def covers(self) -> str:
        return (
            f"{self.guarantee} of each report; neighbouring: datasets whose true values, as floats, differ by at "
            f"most the sensitivity. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, payload: JsonObject) -> NoiseCertificate:
        claims = (real(name, payload[name]) for name in ("sensitivity", "epsilon", "delta"))
        is_mixed = isinstance(payload["shift"], str)
        return certify_noise(NoiseTable.from_dict(payload["noise"]), *claims, is_mixed=is_mixed)

    def lines(self) -> list[tuple[str, str]]:
        epsilon, delta, D = (shortest(value) for value in (self.epsilon, self.delta, self.sensitivity))
        realised = shortest(float_at_least(self.realised_delta))
        distance = f"{self.shift} cells"
        if self.shift < 1:
            distance = f"one cell, with probability {float_at_least(Fraction(self.shift)):.6g}"
        return [
            ("epsilon, delta", f"{epsilon}, {delta}, attained delta {realised}"),
            ("neighbours", f"at most {D} apart, which is at most {distance}"),
            *super().lines(),
        ]


@proven("noise_tables#proof")
def certify_noise(
    table: NoiseTable, sensitivity: float, epsilon: float, delta: float, *, is_mixed: bool = False
) -> NoiseCertificate:
    """Verify the total, the cells and delta at every shift, and return the certificate, or say what fails.

    With ``is_mixed``, for cells wider than the sensitivity, delta is that of the mixtures that rounding makes.
    """
    checks.noise_epsilon(epsilon)
    checks.positive("sensitivity", sensitivity)
    checks.below_one("delta", delta)
    check_lattice(table)
    shift: int | Fraction = table.cells(Fraction(sensitivity))
    ratio = exp_lower_bound(epsilon)
    if is_mixed:
        shift = rounding_probability(table, Fraction(sensitivity))
        if shift >= 1:
            raise CertificateError(f"shift: is {shift}; cells are not wider than the sensitivity")
    if table.remainder:
        raise CertificateError("table: has a remainder, which only Gaussian noise of vectors may have")
    if table.tail:
        limit = 1 + (ratio - 1) / shift if is_mixed else ratio
        check_pure(table.weights, table.first, table.tail, math.ceil(shift), limit)
        realised = Fraction(0)
    elif is_mixed:
        realised = mixed_hockey_stick(table, Fraction(shift), ratio)
    else:
        if not table.is_unimodal and min(shift, table.codes) * table.codes > _MAX_COMPARISONS:
            raise CertificateError(f"weights: rise after they fall; {table.codes} are too many for {shift} shifts")
        realised = hockey_stick(table, math.ceil(shift), ratio)
    check_delta(realised, epsilon, delta, f"inputs {shortest(sensitivity)} apart")
    return NoiseCertificate(float(epsilon), float(delta), float(sensitivity), shift, realised, table)


def check_delta(realised: Fraction, epsilon: float, delta: float, neighbours: str) -> None:
    """Refuse a delta above the claimed one."""
    if realised > rational(delta):
        raise CertificateError(
            f"delta: is {shortest(float_at_least(realised))} at epsilon {shortest(epsilon)} for {neighbours}, above "
            f"the claimed {shortest(delta)}"
        )


def check_lattice(table: NoiseTable) -> None:
    """Refuse a table whose weights are not a distribution, or whose cells are out of the sampler's range."""
    check_totals(table.bits, [table.total])
    if not 1 <= table.points_per_bin < 1 << 32:
        raise CertificateError(f"points_per_bin: {table.points_per_bin} is not in 1..2^32 - 1")
    if not GRID_LOG2_RANGE[0] <= table.grid_log2 <= GRID_LOG2_RANGE[1]:
        raise CertificateError(
            f"grid_log2: 2^{table.grid_log2} is not in 2^{GRID_LOG2_RANGE[0]}..2^{GRID_LOG2_RANGE[1]}; "
            "rescale the data to a sensitivity near 1"
        )
    if table.remainder:
        table.remainder.check(table.first, table.last)
    if table.remainder and table.tail:
        raise CertificateError("table: has both a tail and a remainder")
    if not table.first <= 0 <= table.last:
        raise CertificateError(f"table: has codes {table.first} to {table.last}; 0 is not one")


_MIN_CELLS = 32  # A sigma: the series of ``cell_masses`` is then good to 1.3e-20 a bin.


@proven("vectors#proof")
@dataclass(frozen=True)
class VectorClaim:
    """The claim for a vector."""

    epsilon: float  # The budget, as printed.
    delta: float  # As printed.
    sensitivity: float  # D, the float's exact value.
    norm: str  # In which neighbours are at most D apart.
    dimensions: int  # d
    lattice: float | None  # A number of which every value is a multiple, or None.
    sigma: float | None  # In cells, of the Gaussian that the table rounds; None for noise judged in l1.

    def __post_init__(self) -> None:
        checks.noise_epsilon(self.epsilon)
        checks.below_one("delta", self.delta)
        checks.positive("sensitivity", self.sensitivity)
        checks.one_of("norm", self.norm, NORMS)
        checks.integer_in("dimensions", self.dimensions, 1, 1 << 31)
        if self.sigma is not None:
            checks.positive("sigma", self.sigma)
        if self.lattice is not None:
            checks.positive("lattice", self.lattice)
            checks.within("lattice", self.lattice, 0.0, self.sensitivity)

    @classmethod
    def from_dict(cls, payload: JsonObject) -> VectorClaim:
        claim = {field.name: payload[field.name] for field in fields(cls)}
        for name in ("epsilon", "delta", "sensitivity", "lattice", "sigma"):
            if claim[name] is not None:
                real(name, claim[name])
        return cls(**claim)

    def cells(self, bin_width: Fraction, points_per_bin: int) -> Fraction:
        """Return the bound on the cells between neighbours, in l1, or in l2 where there is a sigma."""
        d, D = Fraction(self.dimensions), Fraction(self.sensitivity)
        root = arithmetic.root_up(d)
        together = d if self.sigma is None else root
        if self.norm == "linf" and self.lattice:
            return together * math.floor(D / bin_width)
        if self.norm == "linf":
            return together * math.ceil(Fraction(math.ceil(D / bin_width * points_per_bin), points_per_bin))
        length = D / bin_width * (root if self.norm == "l2" and self.sigma is None else 1)
        # Off the lattice, coordinate i moves less than Delta_i/h + 1 cells.
        length_in_cells = length + (0 if self.lattice else together)
        return Fraction(math.floor(length_in_cells)) if self.sigma is None else length_in_cells


@dataclass(frozen=True)
class VectorNoiseCertificate(AdditiveCertificate, kind="vector noise"):
    """Verified facts about one table for all coordinates. The shift is in l1, or in l2 for Gaussian noise."""

    claim: VectorClaim
    shift: Fraction
    realised_delta: Fraction
    table: NoiseTable

    facts = (
        *(f"claim.{field.name}" for field in fields(VectorClaim)),
        *("shift", "realised_delta", "lowest", "highest", "worst_variance", "realised_epsilon"),
    )
    epsilon = property(attrgetter("claim.epsilon"))
    delta = property(attrgetter("claim.delta"))
    lattice = property(attrgetter("claim.lattice"))

    @property
    def covers(self) -> str:
        return (
            f"{self.guarantee} of each vector; neighbouring: datasets whose true vectors, as floats, differ by at "
            f"most the sensitivity in the norm. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, payload: JsonObject) -> VectorNoiseCertificate:
        return certify_vector(NoiseTable.from_dict(payload["noise"]), VectorClaim.from_dict(payload))

    def lines(self) -> list[tuple[str, str]]:
        claim, code_norm = self.claim, "l1" if self.claim.sigma is None else "l2"
        budget = f"{shortest(self.epsilon)}, {shortest(self.delta)} a vector of {claim.dimensions}"
        neighbours = f"at most {shortest(claim.sensitivity)} apart in {claim.norm}"
        shift = shortest(float_at_least(self.shift))
        return [
            ("epsilon, delta", f"{budget}; attained delta at most {shortest(float_at_least(self.realised_delta))}"),
            ("neighbours", f"{neighbours}, which is at most {shift} cells in {code_norm}"),
            *super().lines(),
        ]


@proven("vectors#proof")
def certify_vector(table: NoiseTable, claim: VectorClaim) -> VectorNoiseCertificate:
    """Verify the total, the cells, the lattice and delta, and return the certificate, or say what fails."""
    check_lattice(table)
    if claim.lattice and (Fraction(claim.lattice) / table.bin_width).denominator != 1:
        raise CertificateError(
            f"lattice: {shortest(claim.lattice)} is not a multiple of the bin width {shortest(float(table.bin_width))}"
        )
    shift = claim.cells(table.bin_width, table.points_per_bin)
    realised = _realised(table, claim, shift)
    neighbours = f"{claim.dimensions} values {shortest(claim.sensitivity)} apart in {claim.norm}"
    check_delta(realised, claim.epsilon, claim.delta, neighbours)
    return VectorNoiseCertificate(claim, shift, realised, table)


def _realised(table: NoiseTable, claim: VectorClaim, shift: Fraction) -> Fraction:
    """Return tau (e^eps - 1)/(rho - 1), or Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) + d tau (1 + e^eps)."""
    eps, exp_lower = rational(claim.epsilon), exp_lower_bound(claim.epsilon)
    exp_upper = exp_lower * (1 + Fraction(1, 1 << 100))
    if claim.sigma is None and table.remainder:
        raise CertificateError("table: has a remainder, which only Gaussian noise may have")
    if claim.sigma is None:
        rho = exp_lower_bound(eps / max(1, math.floor(shift)))  # ``shift`` is whole but for roots.
        if table.tail:  # A code and its neighbour differ by rho at most, and rho to the power of all cells is e^eps.
            check_pure(table.weights, table.first, table.tail, 1, rho)
            return Fraction(0)
        tau = max(excess(table.weights, sign, rho) for sign in (1, -1)) / table.total
        return tau * (exp_upper - 1) / (rho - 1)
    sigma = Fraction(claim.sigma)
    mu = shift / sigma
    first, second = ndtr_bounds(mu / 2 - eps / mu)[1], ndtr_bounds(-mu / 2 - eps / mu)[0]
    return (
        first
        - exp_lower * max(Fraction(0), second)
        + claim.dimensions * gaussian_distance(table, sigma) * (1 + exp_upper)
    )


@lru_cache(maxsize=8)
def gaussian_distance(table: NoiseTable, sigma: Fraction) -> Fraction:
    """Return an upper bound on the total variation distance between the table and the bin masses of a Gaussian."""
    first, last = table.ends
    radius = max(-first, last) + 1
    if not (sigma >= _MIN_CELLS and radius <= MAX_DEVIATIONS * sigma):
        raise CertificateError(
            f"noise: sigma is {float(sigma):.3g} cells, and noise reaches {float(radius / sigma):.3g} sigma; only "
            f"tables of at least {_MIN_CELLS} cells a sigma that reach at most {MAX_DEVIATIONS} can be judged"
        )
    is_fine = table.remainder is not None
    masses, error = cell_masses(sigma, radius, is_fine=is_fine)
    weights, unit = table.outcomes, FIXED_BITS - table.bits
    if table.remainder:
        weights, unit = table.remainder.combined_weights(table.first, weights), unit - table.bits
    # The sum of the positive differences; cells beyond the table only have negative ones.
    positive_mass = sum(max(0, (w << unit) - masses[abs(first + j)]) for j, w in enumerate(weights))
    return Fraction(positive_mass, 1 << FIXED_BITS) + 2 * error
