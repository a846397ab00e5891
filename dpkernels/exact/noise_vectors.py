"""Noise tables for vectors: one table serves every coordinate.

A neighbour moves coordinate i by s_i bins. Two properties of a table bound the privacy loss of any such move
(docs/proofs/vectors.md).

* l1, any noise. With rho = e^(eps/N), N a bound on sum |s_i|, let tau be the mass by which the table exceeds rho times
  itself shifted by one bin. Then the vector is (eps, tau (e^eps - 1)/(rho - 1))-DP.
* l2, Gaussian noise. With tau the total variation distance between the table and the Gaussian's bin masses, the
  vector has the delta of Gaussian noise at sqrt(sum s_i^2) bins (Balle & Wang 2018), plus d tau (1 + e^eps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.bounded_json import real
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import Lattice
from dpkernels.exact.certificate import CertificateError, exp_lower_bound, line
from dpkernels.exact.noise import (
    NOISE_LIMITS,
    AdditiveCertificate,
    NoiseTable,
    check_delta,
    check_lattice,
    density_table,
    excess,
    grid,
    lattice_grid,
    narrowest,
    noise_table,
    table_ends,
)
from dpkernels.mechanisms.additive_vector import NORMS, AdditiveVector

# Bounds of Gaussian probabilities, in fixed point with this many fractional bits, up to FAR standard deviations.
FIXED_BITS, FAR = 256, 14
# The first 50 decimals of pi, rounded down, and sqrt(2 pi).
_PI = Fraction(314159265358979323846264338327950288419716939937510, 10**50)
_ROOT = Fraction(math.isqrt(int(2 * _PI * (1 << 320))), 1 << 160)


def ndtr_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound of Phi(x), 2^-79 apart at most."""
    if x < 0:
        low, high = ndtr_bounds(-x)
        return 1 - high, 1 - low
    if x > FAR:
        return 1 - Fraction(1, 1 << 100), Fraction(1)  # Phi(-14) < 2^-140
    value, slack = Fraction(1, 2) + Fraction(_central(_fixed(x)), 1 << FIXED_BITS), Fraction(1, 1 << 80)
    return value - slack, value + slack


def _central(x: int) -> int:
    """Return Phi(x) - 1/2 for fixed-point x in [0, FAR], to within 2^-80.

        Phi(x) - 1/2 = 1/sqrt(2 pi) sum_k (-1)^k x^(2k+1) / (2^k k! (2k + 1))

    Terms follow from each other, each rounded down; of the 2^9 those from the 450th on are below a unit.
    """
    square, term, total = x * x >> FIXED_BITS, x, x
    for k in range(1, 1 << 9):
        term = term * square // (2 * k) >> FIXED_BITS
        total += (-1) ** k * (term // (2 * k + 1))
    return total * _ROOT.denominator // _ROOT.numerator


def cell_masses(sigma: Fraction, count: int) -> tuple[list[int], Fraction]:
    """Return the Gaussian masses of the cells [j - 1/2, j + 1/2], j = 0..count-1, and a bound on their total error.

    With h = 1/sigma, m = j h and Hermite polynomials He,

        mass = phi(m) h (1 + He_2(m) h^2/24 + He_4(m) h^4/1920 + He_6(m) h^6/322560) + R,   |R| <= 42 h^9 / 92897280

    and phi(m) follows from bin to bin: phi(m + h) = phi(m) e^(-h^2 (2j + 1)/2), to count^2 2^-119.
    """
    h, one = 1 / sigma, 1 << FIXED_BITS
    decay, factor = _fixed(1 / exp_lower_bound(h**2)), _fixed(1 / exp_lower_bound(h**2 / 2))
    step, phi, masses = _fixed(h), one * _ROOT.denominator // _ROOT.numerator, []
    a, b, c = (_fixed(h ** (2 * k) / n) for k, n in ((1, 24), (2, 1920), (3, 322560)))
    for j in range(count):
        s = (j * step) ** 2 >> FIXED_BITS
        he2 = s - one
        he4 = (s * (s - 6 * one) >> FIXED_BITS) + 3 * one
        he6 = (s * ((s * (s - 15 * one) >> FIXED_BITS) + 45 * one) >> FIXED_BITS) - 15 * one
        bracket = one + (he2 * a + he4 * b + he6 * c >> FIXED_BITS)
        masses.append((phi * step >> FIXED_BITS) * bracket >> FIXED_BITS)
        phi, factor = phi * factor >> FIXED_BITS, factor * decay >> FIXED_BITS
    return masses, count * 42 * h**9 / 92897280 + Fraction(2 * count**2, 1 << 119)


def _fixed(x: Fraction) -> int:
    """Return x in units of 2^-FIXED_BITS, rounded down."""
    return (x.numerator << FIXED_BITS) // x.denominator


def root_up(x: Fraction) -> Fraction:
    """Return a rational at least sqrt(x), within 2^-80; exact for squares of whole numbers."""
    root = math.isqrt(x.numerator) if x.denominator == 1 else 0
    if root * root == x:
        return Fraction(root)
    return Fraction(math.isqrt((x.numerator << 160) // x.denominator) + 1, 1 << 80)


_FEWEST_CELLS = 32  # A sigma: the series of ``cell_masses`` is then good to 1.3e-20 a bin.


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
        checks.epsilon(self.epsilon)
        checks.within("delta", self.delta, 0.0, 1.0, open_ends=True)
        checks.positive("sensitivity", self.sensitivity)
        checks.one_of("norm", self.norm, NORMS)
        checks.whole("dimensions", self.dimensions, 1, 1 << 31)
        if self.sigma is not None:
            checks.positive("sigma", self.sigma)
        if self.lattice is not None:
            checks.positive("lattice", self.lattice)
            checks.within("lattice", self.lattice, 0.0, self.sensitivity)

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> VectorClaim:
        given = {name: payload[name] for name in cls.__dataclass_fields__}
        for name in ("epsilon", "delta", "sensitivity", "lattice", "sigma"):
            if given[name] is not None:
                real(name, given[name])
        return cls(**given)

    def cells(self, bin_width: Fraction, points_per_bin: int) -> Fraction:
        """Return the bound on the cells between neighbours, in l1, or in l2 where there is a sigma."""
        d, D, root = Fraction(self.dimensions), Fraction(self.sensitivity), root_up(Fraction(self.dimensions))
        together = d if self.sigma is None else root
        if self.norm == "linf" and self.lattice:
            return together * math.floor(D / bin_width)
        if self.norm == "linf":
            return together * math.ceil(Fraction(math.ceil(D / bin_width * points_per_bin), points_per_bin))
        length = D / bin_width * (root if self.norm == "l2" and self.sigma is None else 1)
        # Off the lattice, coordinate i moves less than Delta_i/h + 1 cells.
        cells = length + (0 if self.lattice else together)
        return Fraction(math.floor(cells)) if self.sigma is None else cells


@dataclass(frozen=True)
class VectorNoiseCertificate(AdditiveCertificate, kind="vector noise"):
    """Verified facts about one table for all coordinates. The shift is in l1, or in l2 for Gaussian noise."""

    claim: VectorClaim
    shift: Fraction
    realised_delta: Fraction
    table: NoiseTable

    facts = (
        *(f"claim.{name}" for name in VectorClaim.__dataclass_fields__),
        *("shift", "realised_delta", "lowest", "highest", "worst_variance", "realised_epsilon"),
    )
    parts: ClassVar[Mapping[str, str]] = {"noise": "table"}

    @property
    def epsilon(self) -> float:  # type: ignore[override]
        return self.claim.epsilon

    @property
    def delta(self) -> float:  # type: ignore[override]
        return self.claim.delta

    @property
    def lattice(self) -> float | None:
        return self.claim.lattice

    @property
    def covers(self) -> str:
        return (
            "(epsilon, delta)-DP of each vector; neighbouring: datasets whose true vectors, as floats, differ by at "
            f"most the sensitivity in the norm. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> VectorNoiseCertificate:
        return certify_vector(NoiseTable.from_dict(payload["noise"]), VectorClaim.from_dict(payload))

    def lines(self) -> list[str]:
        claim, own = self.claim, "l1" if self.claim.sigma is None else "l2"
        budget = f"{shortest(self.epsilon)}, {shortest(self.delta)} a vector of {claim.dimensions}"
        near = f"at most {shortest(claim.sensitivity)} apart in {claim.norm}"
        return [
            line("epsilon, delta", f"{budget}; realised delta at most {shortest(float_at_least(self.realised_delta))}"),
            line("neighbours", f"{near}, which is at most {shortest(float_at_least(self.shift))} cells in {own}"),
            *super().lines(),
        ]


def certify_vector(table: NoiseTable, claim: VectorClaim) -> VectorNoiseCertificate:
    """Verify all properties that a release of vectors relies on, and return the certificate.

    Raises:
        CertificateError: the total is wrong, the lattice is not a multiple of a cell, or delta exceeds the claim.
    """
    check_lattice(table)
    if claim.lattice and (Fraction(claim.lattice) / table.bin_width).denominator != 1:
        raise CertificateError(
            f"lattice: {shortest(claim.lattice)} is not a multiple of the bin width {shortest(float(table.bin_width))}"
        )
    shift = claim.cells(table.bin_width, table.points_per_bin)
    realised = _any_noise(table, claim, shift) if claim.sigma is None else _gaussian(table, claim, shift)
    near = f"{claim.dimensions} values {shortest(claim.sensitivity)} apart in {claim.norm}"
    check_delta(realised, claim.epsilon, claim.delta, near)
    return VectorNoiseCertificate(claim, shift, realised, table)


def _exp_upper_bound(epsilon: float) -> Fraction:
    return exp_lower_bound(epsilon) * (1 + Fraction(1, 1 << 100))


def _any_noise(table: NoiseTable, claim: VectorClaim, shift: Fraction) -> Fraction:
    """Return tau (e^eps - 1) / (rho - 1)."""
    rho = exp_lower_bound(rational(claim.epsilon) / max(1, math.floor(shift)))  # ``shift`` is whole but for roots.
    tau = max(excess(table.outcomes, sign, rho) for sign in (1, -1)) / table.total
    return tau * (_exp_upper_bound(claim.epsilon) - 1) / (rho - 1)


def _gaussian(table: NoiseTable, claim: VectorClaim, shift: Fraction) -> Fraction:
    """Return an upper bound of Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) + d tau (1 + e^eps)."""
    sigma, eps = Fraction(claim.sigma or 0), rational(claim.epsilon)
    mu = shift / sigma
    first, second = ndtr_bounds(mu / 2 - eps / mu)[1], ndtr_bounds(-mu / 2 - eps / mu)[0]
    exact = first - exp_lower_bound(claim.epsilon) * max(Fraction(0), second)
    return exact + claim.dimensions * _distance(table, sigma) * (1 + _exp_upper_bound(claim.epsilon))


def _distance(table: NoiseTable, sigma: Fraction) -> Fraction:
    """Return an upper bound on the total variation distance between the table and the bin masses of a Gaussian."""
    far = max(-table.first, table.last) + 1
    if not (sigma >= _FEWEST_CELLS and far <= FAR * sigma):
        raise CertificateError(
            f"noise: sigma is {float(sigma):.3g} cells, and noise reaches {float(far / sigma):.3g} sigma; only tables "
            f"of at least {_FEWEST_CELLS} cells a sigma that reach at most {FAR} can be judged"
        )
    masses, error = cell_masses(sigma, far)
    unit = FIXED_BITS - table.bits
    # The sum of the positive differences; cells beyond the table only have negative ones.
    over = sum(max(0, (w << unit) - masses[abs(table.first + j)]) for j, w in enumerate(table.outcomes))
    return Fraction(over, 1 << FIXED_BITS) + 2 * error


# Construction

# For vectors: the numbers of codes that are tried, and the shares of the sensitivity that rounding may add before a
# finer table is tried, and before the table is refused.
_VECTOR_SIZES, _SMALL, _LARGE = (1 << 16, 1 << 18), 1e-3, 0.1


def vector_certificate(vector: AdditiveVector) -> VectorNoiseCertificate:
    """Return the certified table of a vector mechanism: the narrowest that has the claim."""
    return narrowest([lambda stretch: certify_vector(*_stretched(vector, stretch))])


def _stretched(vector: AdditiveVector, stretch: float) -> tuple[NoiseTable, VectorClaim]:
    """Return a table of the noise stretched by 1 + ``stretch``, and the claim to certify for it."""
    noise, own = vector.coordinate.noise, float(vector.coordinate.sensitivity)
    if isinstance(noise, Lattice):
        if vector.lattice is None or (Fraction(vector.lattice) / Fraction(float(noise.step))).denominator != 1:
            raise CertificateError(
                f"lattice: {vector.lattice}; noise in steps of {shortest(noise.step)} needs values on them"
            )
        return noise_table(noise, Fraction(own), stretch=stretch), _claim(vector, 1.0)
    if not isinstance(noise, Distribution):
        raise TypeError(f"noise: {type(noise).__name__} has no table")
    grid_log2, points_per_bin, parts = _finest(noise, vector, own)
    table, wider = density_table(noise, own, float(parts), grid_log2, points_per_bin, stretch=stretch)
    return table, _claim(vector, float(parts) / own * wider)


def _claim(vector: AdditiveVector, cells: float) -> VectorClaim:
    """Return the claim for a vector. Gaussian noise is described in cells, of which there are ``cells`` a data unit."""
    m, sigma = vector.coordinate, vector.coordinate.noise.gaussian_sigma
    lattice = None if vector.lattice is None else float(vector.lattice)
    in_cells = None if sigma is None else float(sigma) * cells
    D = float(vector.sensitivity)
    return VectorClaim(m.epsilon, m.delta, D, vector.norm, vector.dimensions, lattice, in_cells)


def _finest(noise: Distribution, vector: AdditiveVector, own: float) -> tuple[int, int, Fraction]:
    """Return (grid_log2, M, cells between neighbours) of the coarsest table that adds little to the sensitivity."""
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
    low, high = table_ends(noise, own)
    if vector.lattice is None:
        return grid(Fraction(own), 1 << max(0, math.floor(math.log2(max(1.0, codes * own / (high - low))))))
    grid_log2, points_per_bin = lattice_grid(vector.lattice, Fraction(own))
    while points_per_bin % 2 == 0 and (high - low) / float(points_per_bin * Fraction(2) ** grid_log2) < codes / 2:
        points_per_bin //= 2
    return grid_log2, points_per_bin
