"""Noise tables: integer weights of additive noise on a grid, their certificates and their sampler.

An input x is rounded to the position

    floor((floor(x/g + 1/2) + r) / M),    g = 2^grid_log2,    r uniform on 0..M-1,

a stochastic rounding to multiples of the bin width h = M g, in exact arithmetic: x/g moves a float's exponent, the rest
are integers. The report is h (position + code), with code ``first + j`` of probability weights[j] / 2^bits whatever
x is. The privacy of the release is that of the table shifted by up to ceil(ceil(D/g) / M) bins, see
docs/proofs/noise_tables.md. The hockey-stick divergence is computed at every such shift.

On vectors one table serves every coordinate. A neighbour moves coordinate i by s_i bins. Two properties of a table
bound the privacy loss of any such move (docs/proofs/vectors.md).

* l1, any noise. With rho = e^(eps/N), N a bound on sum |s_i|, let tau be the mass by which the table exceeds rho times
  itself shifted by one bin. Then the vector is (eps, tau (e^eps - 1)/(rho - 1))-DP.
* l2, Gaussian noise. With tau the total variation distance between the table and the Gaussian's bin masses, the
  vector has the delta of Gaussian noise at sqrt(sum s_i^2) bins (Balle & Wang 2018), plus d tau (1 + e^eps).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.certificate import Certificate, CertificateError, check_totals, exp_lower_bound, line
from dpkernels.exact.kernels import alias_columns, alias_kernel
from dpkernels.exact.sampler import NOISE_STREAM, ROUNDING_STREAM, ExactSampler, Words
from dpkernels.exact.table import MOST_WEIGHTS, Table, frozen_weights, integers
from dpkernels.mechanisms.additive_vector import NORMS
from dpkernels.numerics import RealArray, namespace


@dataclass(frozen=True, eq=False)
class NoiseTable(Table):
    """Integer weights of additive noise.

    Attributes:
        weights: uint64, one a code.
        first: the code of weights[0].
        bits: log2 of the total.
        grid_log2: log2 of g, to which inputs are rounded first.
        points_per_bin: M, the grid points in a bin.
    """

    weights: np.ndarray
    first: int
    bits: int
    grid_log2: int
    points_per_bin: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))

    @cached_property
    def outcomes(self) -> list[int]:
        """Return the weights as Python integers."""
        return self.weights.tolist()

    @property
    def codes(self) -> int:
        return len(self.weights)

    @property
    def last(self) -> int:
        return self.first + self.codes - 1

    @cached_property
    def total(self) -> int:
        return sum(self.outcomes)

    @property
    def totals(self) -> list[int]:
        return [self.total]

    @property
    def bin_width(self) -> Fraction:
        """Return h, data units between neighbouring reports."""
        return self.points_per_bin * Fraction(2) ** self.grid_log2

    def cells(self, sensitivity: Fraction) -> int:
        """Return the largest number of cells between the positions of inputs D apart."""
        return cells_apart(sensitivity, self.grid_log2, self.points_per_bin)

    def _moment(self, power: int) -> Fraction:
        return Fraction(sum(w * (self.first + j) ** power for j, w in enumerate(self.outcomes)), self.total)

    @cached_property
    def mean(self) -> Fraction:
        """Return the exact mean of the noise, in data units."""
        return self.bin_width * self._moment(1)

    @cached_property
    def variance(self) -> Fraction:
        """Return the exact variance of the noise; rounding the input adds at most h^2/4."""
        return self.bin_width**2 * self._moment(2) - self.mean**2

    @cached_property
    def is_unimodal(self) -> bool:
        """Return whether weights never fall and then rise."""
        rises = self.weights[1:] > self.weights[:-1]
        falls = self.weights[1:] < self.weights[:-1]
        return not (falls.any() and rises[int(falls.argmax()) :].any())

    def to_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),  # A copy of the list that is sampled, because the caller may change it.
            "first": self.first,
            "bits": self.bits,
            "grain": self.grid_log2,
            "grains": self.points_per_bin,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> NoiseTable:
        numbers = (integer(name, payload[name]) for name in ("first", "bits", "grain", "grains"))
        return cls(frozen_weights(integers("weights", payload["weights"], MOST_WEIGHTS)), *numbers)


def cells_apart(distance: Fraction, grid_log2: int, points_per_bin: int) -> int:
    """Return ceil(ceil(distance / g) / M), the most cells by which the positions of such inputs can differ."""
    return math.ceil(Fraction(math.ceil(distance / Fraction(2) ** grid_log2), points_per_bin))


def excess(weights: list[int], shift: int, ratio: Fraction) -> Fraction:
    """Return the sum over codes of max(0, w[j] - ratio w[j - shift]), w being 0 beyond its ends.

    The shift may be negative.
    """
    steps = [0] * abs(shift)
    here, there = (weights + steps, steps + weights) if shift >= 0 else (steps + weights, weights + steps)
    p, q = ratio.numerator, ratio.denominator
    return Fraction(sum(d for a, b in zip(here, there, strict=True) if (d := q * a - p * b) > 0), q)


def hockey_stick(table: NoiseTable, shift: int, ratio: Fraction) -> Fraction:
    """Return delta at e^eps = ratio between the table and itself shifted by up to ``shift`` cells either way, exactly.

    For unimodal weights the largest shift is the worst. Shifts beyond the table's length have the same delta.
    """
    shift = min(shift, table.codes)
    shifts = [shift] if table.is_unimodal else range(1, shift + 1)
    worst = max(excess(table.outcomes, sign * s, ratio) for s in shifts for sign in (1, -1))
    return worst / table.total


# The exclusions of every certificate of additive noise.
NOISE_LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover the sensitivity itself, "
    "rounding while the true value was computed, timing, caches or other side channels, which rows or columns exist, "
    "values copied unperturbed, or the composition of several reports."
)
# Of ``grid_log2``: subnormal inputs, which processors may read as 0, are within half of the finest grid of 0 in float64
# (float32 inputs are checked when they come); with the largest, reports are finite.
GRID_LOG2_RANGE = (-1021, 960)
# Weights that are not unimodal are compared at every shift; tables built here are unimodal.
_MOST_COMPARISONS = 1 << 21


class AdditiveCertificate(Certificate):
    """Verified facts about a table of additive noise.

    Attributes:
        epsilon: the budget, as printed.
        delta: the claimed delta, as printed.
        realised_delta: bound on delta at epsilon.
        table: the integers, for independent verification.
    """

    epsilon: float
    delta: float
    realised_delta: Fraction
    table: NoiseTable

    @property
    @abc.abstractmethod
    def worst_variance(self) -> Fraction:
        """Return a bound on the variance of a report or a coordinate at any input, input rounding included."""

    @abc.abstractmethod
    def claim_lines(self) -> list[str]:
        """Return the claim and for which neighbours, for a person."""

    @property
    def realised_epsilon(self) -> float:
        """Return the budget, which goes with ``realised_delta``."""
        return self.epsilon

    @property
    def lowest(self) -> Fraction:
        """Return the smallest noise."""
        return self.table.bin_width * self.table.first

    @property
    def highest(self) -> Fraction:
        """Return the largest noise."""
        return self.table.bin_width * self.table.last

    @property
    def bias(self) -> Fraction:
        """Return the mean of the noise."""
        return self.table.mean

    def lines(self) -> list[str]:
        ends = f"{float(self.lowest):.9g} to {float(self.highest):.9g}"
        return [
            *self.claim_lines(),
            line("reports", f"multiples of {shortest(float(self.table.bin_width))}"),
            line("noise", f"{self.table.codes} values from {ends}"),
            line("total weight", f"2^{self.table.bits}"),
            line("mean of the noise", f"{float(self.bias):.9g}"),
            line("variance", f"at most {shortest(float_at_least(self.worst_variance))} a value"),
        ]


@dataclass(frozen=True)
class NoiseCertificate(AdditiveCertificate, kind="noise"):
    """Verified facts about one table of noise; see ``AdditiveCertificate``.

    Attributes:
        sensitivity: D, the float's exact value.
        shift: the largest distance of neighbours, in cells.
        realised_delta: the largest delta at epsilon over all shifts up to this, both ways.
    """

    epsilon: float
    delta: float
    sensitivity: float
    shift: int
    realised_delta: Fraction
    table: NoiseTable

    facts = (
        "epsilon",
        "delta",
        "sensitivity",
        "shift",
        "realised_epsilon",
        "realised_delta",
        "lowest",
        "highest",
        "bias",
        "worst_variance",
    )
    parts: ClassVar[Mapping[str, str]] = {"noise": "table"}

    @property
    def worst_variance(self) -> Fraction:
        return self.table.variance + self.table.bin_width**2 / 4

    @property
    def covers(self) -> str:
        return (
            "(epsilon, delta)-DP of each report; neighbouring: datasets whose true values, as floats, differ by at "
            f"most the sensitivity. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> NoiseCertificate:
        claims = (real(name, payload[name]) for name in ("sensitivity", "epsilon", "delta"))
        return certify_noise(NoiseTable.from_dict(payload["noise"]), *claims)

    def claim_lines(self) -> list[str]:
        epsilon, delta, D = (shortest(value) for value in (self.epsilon, self.delta, self.sensitivity))
        realised = shortest(float_at_least(self.realised_delta))
        return [
            line("epsilon, delta", f"{epsilon}, {delta}, realised delta {realised}"),
            line("neighbours", f"at most {D} apart, which is at most {self.shift} cells"),
        ]


def certify_noise(table: NoiseTable, sensitivity: float, epsilon: float, delta: float) -> NoiseCertificate:
    """Verify all properties that a release relies on, and return the certificate.

    Raises:
        CertificateError: the total is not 2^bits, delta exceeds the claim for some shift (the message has its value),
            or the weights are not unimodal in a table that is too large to check every shift.
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not positive.
    """
    checks.epsilon(epsilon)
    checks.positive("sensitivity", sensitivity)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    check_lattice(table)
    shift = table.cells(Fraction(sensitivity))
    if not table.is_unimodal and min(shift, table.codes) * table.codes > _MOST_COMPARISONS:
        raise CertificateError(f"weights: rise after they fall; {table.codes} are too many for {shift} shifts")
    realised = hockey_stick(table, shift, exp_lower_bound(epsilon))
    if realised > rational(delta):
        raise CertificateError(
            f"delta: is {shortest(float_at_least(realised))} at epsilon {shortest(epsilon)} for inputs "
            f"{shortest(sensitivity)} apart, above the claimed {shortest(delta)}"
        )
    return NoiseCertificate(float(epsilon), float(delta), float(sensitivity), shift, realised, table)


def check_lattice(table: NoiseTable) -> None:
    """Refuse a table whose weights are not a distribution, or whose cells are out of the sampler's range.

    Raises:
        CertificateError: the table is not valid.
    """
    check_totals(table)
    if not 1 <= table.points_per_bin < 1 << 32:
        raise CertificateError(f"points_per_bin: {table.points_per_bin} is not in 1..2^32 - 1")
    if not GRID_LOG2_RANGE[0] <= table.grid_log2 <= GRID_LOG2_RANGE[1]:
        raise CertificateError(
            f"grid_log2: 2^{table.grid_log2} is not in 2^{GRID_LOG2_RANGE[0]}..2^{GRID_LOG2_RANGE[1]}; "
            "rescale the data to a sensitivity near 1"
        )
    if not table.first <= 0 <= table.last:
        raise CertificateError(f"table: has codes {table.first} to {table.last}; 0 is not one")


# Fixed point with this many fractional bits; FAR is as far out as the functions below are used.
FIXED_BITS = 256
FAR = 14
# The first 50 decimals of pi, rounded down.
_PI = Fraction(314159265358979323846264338327950288419716939937510, 10**50)
_ROOT = Fraction(math.isqrt(int(2 * _PI * (1 << 320))), 1 << 160)


def ndtr_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound of Phi(x), 2^-79 apart at most."""
    if x < 0:
        low, high = ndtr_bounds(-x)
        return 1 - high, 1 - low
    if x > FAR:
        return 1 - Fraction(1, 1 << 100), Fraction(1)  # Phi(-14) < 2^-140
    value = Fraction(1, 2) + Fraction(_central(_fixed(x)), 1 << FIXED_BITS)
    slack = Fraction(1, 1 << 80)
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


VECTOR_NOISE_COVERS = (
    "(epsilon, delta)-DP of each vector; neighbouring: datasets whose true vectors, as floats, differ by at most the "
    f"sensitivity in the norm. {NOISE_LIMITS}"
)
_FEWEST_CELLS = 32  # A sigma: the series of ``cell_masses`` is then good to 1.3e-20 a bin.


@dataclass(frozen=True)
class VectorClaim:
    """The claim for a vector.

    Attributes:
        epsilon: the budget, as printed.
        delta: the claimed delta, as printed.
        sensitivity: D, the float's exact value.
        norm: the norm in which neighbours are at most D apart.
        dimensions: d.
        lattice: what every value is a multiple of, or None.
        sigma: standard deviation, in cells, of the Gaussian that the table rounds; None for noise judged in l1.
    """

    epsilon: float
    delta: float
    sensitivity: float
    norm: str
    dimensions: int
    lattice: float | None
    sigma: float | None

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
        """Return the claim that a certificate's JSON payload states.

        Raises:
            ValueError: something is of no such type, or out of range.
        """
        given = {name: payload[name] for name in cls.__dataclass_fields__}
        for name in ("epsilon", "delta", "sensitivity", "lattice", "sigma"):
            if given[name] is not None:
                real(name, given[name])
        return cls(**given)

    def cells(self, bin_width: Fraction, points_per_bin: int) -> Fraction:
        """Return the bound on the cells between neighbours, in l1, or in l2 where there is a sigma.

        Off the lattice, coordinate i moves less than Delta_i/h + 1 cells.
        """
        d, D, root = Fraction(self.dimensions), Fraction(self.sensitivity), root_up(Fraction(self.dimensions))
        together = d if self.sigma is None else root
        if self.norm == "linf":
            each = (
                math.floor(D / bin_width)
                if self.lattice
                else math.ceil(Fraction(math.ceil(D / bin_width * points_per_bin), points_per_bin))
            )
            return together * each
        length = D / bin_width * (root if self.norm == "l2" and self.sigma is None else 1)
        cells = length + (0 if self.lattice else together)
        return Fraction(math.floor(cells)) if self.sigma is None else cells


@dataclass(frozen=True)
class VectorNoiseCertificate(AdditiveCertificate, kind="vector noise"):
    """Verified facts about one table that serves every coordinate; see ``AdditiveCertificate``.

    Attributes:
        claim: what is claimed.
        shift: bound on the cells between neighbours, in l1 (or l2: Gaussian noise).
    """

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
    def worst_variance(self) -> Fraction:
        rounding = Fraction(0) if self.claim.lattice else self.table.bin_width**2 / 4
        return self.table.variance + rounding

    @property
    def covers(self) -> str:
        return VECTOR_NOISE_COVERS

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> VectorNoiseCertificate:
        return certify_vector(NoiseTable.from_dict(payload["noise"]), VectorClaim.from_dict(payload))

    def claim_lines(self) -> list[str]:
        claim, own = self.claim, "l1" if self.claim.sigma is None else "l2"
        budget = f"{shortest(self.epsilon)}, {shortest(self.delta)} a vector of {claim.dimensions}"
        near = f"at most {shortest(claim.sensitivity)} apart in {claim.norm}"
        return [
            line("epsilon, delta", f"{budget}; realised delta at most {shortest(float_at_least(self.realised_delta))}"),
            line("neighbours", f"{near}, which is at most {shortest(float_at_least(self.shift))} cells in {own}"),
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
    if realised > rational(claim.delta):
        raise CertificateError(
            f"delta: is {shortest(float_at_least(realised))} at epsilon {shortest(claim.epsilon)} for "
            f"{claim.dimensions} values {shortest(claim.sensitivity)} apart in {claim.norm}, above the claimed "
            f"{shortest(claim.delta)}"
        )
    return VectorNoiseCertificate(claim, shift, realised, table)


def _upper(epsilon: float) -> Fraction:
    return exp_lower_bound(epsilon) * (1 + Fraction(1, 1 << 100))


def _any_noise(table: NoiseTable, claim: VectorClaim, shift: Fraction) -> Fraction:
    """Return tau (e^eps - 1) / (rho - 1)."""
    rho = exp_lower_bound(rational(claim.epsilon) / max(1, math.floor(shift)))  # ``shift`` is whole but for roots.
    tau = max(excess(table.outcomes, sign, rho) for sign in (1, -1)) / table.total
    return tau * (_upper(claim.epsilon) - 1) / (rho - 1)


def _gaussian(table: NoiseTable, claim: VectorClaim, shift: Fraction) -> Fraction:
    """Return an upper bound of the Gaussian delta, mu = shift / sigma, plus the distance terms.

    The bound is Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) + d tau (1 + e^eps).
    """
    sigma, eps = Fraction(claim.sigma or 0), rational(claim.epsilon)
    mu = shift / sigma
    first, second = ndtr_bounds(mu / 2 - eps / mu)[1], ndtr_bounds(-mu / 2 - eps / mu)[0]
    exact = first - exp_lower_bound(claim.epsilon) * max(Fraction(0), second)
    return exact + claim.dimensions * _distance(table, sigma) * (1 + _upper(claim.epsilon))


def _distance(table: NoiseTable, sigma: Fraction) -> Fraction:
    """Return an upper bound on the total variation distance between the table and the bin masses of a Gaussian.

    It is the sum of the positive differences; cells beyond the table only have negative ones.
    """
    far = max(-table.first, table.last) + 1
    if not (sigma >= _FEWEST_CELLS and far <= FAR * sigma):
        raise CertificateError(
            f"noise: sigma is {float(sigma):.3g} cells, and noise reaches {float(far / sigma):.3g} sigma; only tables "
            f"of at least {_FEWEST_CELLS} cells a sigma that reach at most {FAR} can be judged"
        )
    masses, error = cell_masses(sigma, far)
    unit = FIXED_BITS - table.bits
    over = sum(max(0, (w << unit) - masses[abs(table.first + j)]) for j, w in enumerate(table.outcomes))
    return Fraction(over, 1 << FIXED_BITS) + 2 * error


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
    def kernel(self) -> NoiseKernel:
        return noise_kernel(self.table)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        position = self.positions(x, rounding) + self.kernel(noise)
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


def noise_kernel(table: NoiseTable) -> NoiseKernel:
    """Return the sampler of noise: random word of ``table.bits`` bits -> code, int32."""
    outcomes, first = alias_kernel(alias_columns(table.outcomes, table.bits)), np.int32(table.first)
    return lambda r: outcomes(r) + first
