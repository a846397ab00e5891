"""Certificates of additive noise on vectors: one table for every coordinate, one claim for all of them.

A neighbour moves coordinate i by s_i cells. Two facts about a table bound what any such move reveals, see
docs/proofs/vectors.md.

* l1, any noise. With rho = e^(eps/N), N a bound on sum |s_i|, let tau be the mass by which the table exceeds rho times
  itself shifted by one cell. Then the vector is (eps, tau (e^eps - 1)/(rho - 1))-DP.
* l2, Gaussian noise. With tau the total variation distance between the table and the Gaussian's cell masses, the
  vector is as private as Gaussian noise at sqrt(sum s_i^2) cells (Balle & Wang 2018), but for d tau (1 + e^eps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import Lattice
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.exact.certificate import CertificateError, exp_lower_bound, line
from dpkernels.exact.noise.certificate import NOISE_LIMITS, AdditiveCertificate, check_lattice
from dpkernels.exact.noise.lattice import density_tables, grid, lattice_grid, narrowest, noise_tables, width
from dpkernels.exact.noise.normal import BITS, FAR, cell_masses, ndtr_bounds, root_up
from dpkernels.exact.noise.table import NoiseTable, excess
from dpkernels.mechanisms.additive_vector import NORMS, AdditiveVector
from dpkernels.untrusted import real

COVERS = (
    "(epsilon, delta)-DP of each vector; neighbouring: datasets whose true vectors, as floats, differ by at most the "
    f"sensitivity in the norm. {NOISE_LIMITS}"
)
# Rounding to cells may add this to the sensitivity before a finer table is tried, and before it is refused.
_SMALL, _LARGE = 1e-3, 0.1
_SIZES = (1 << 16, 1 << 18)  # Codes of the tables tried, in order.
_FEWEST_CELLS = 32  # A sigma: the series of ``cell_masses`` is then good to 1.3e-20 a cell.


@dataclass(frozen=True)
class VectorClaim:
    """What is claimed for a vector.

    Attributes:
        epsilon: the budget, as printed.
        delta: the claimed delta, as printed.
        sensitivity: D, the float's exact value.
        norm: in which neighbours are at most D apart.
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
    def from_dict(cls, form: dict[str, Any]) -> VectorClaim:
        """The claim that a certificate's JSON form states.

        Raises:
            ValueError: something is of no such type, or out of range.
        """
        given = {name: form[name] for name in cls.__dataclass_fields__}
        for name in ("epsilon", "delta", "sensitivity", "lattice", "sigma"):
            if given[name] is not None:
                real(name, given[name])
        return cls(**given)

    def cells(self, cell: Fraction, grains: int) -> Fraction:
        """Bound on the cells between neighbours, in l1, or in l2 where there is a sigma.

        Off the lattice, coordinate i moves less than Delta_i/h + 1 cells.
        """
        d, D, root = Fraction(self.dimensions), Fraction(self.sensitivity), root_up(Fraction(self.dimensions))
        together = d if self.sigma is None else root
        if self.norm == "linf":
            each = math.floor(D / cell) if self.lattice else math.ceil(Fraction(math.ceil(D / cell * grains), grains))
            return together * each
        length = D / cell * (root if self.norm == "l2" and self.sigma is None else 1)
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
        """The budget of a vector."""
        return self.claim.epsilon

    @property
    def delta(self) -> float:  # type: ignore[override]
        """The claimed delta of a vector."""
        return self.claim.delta

    @property
    def worst_variance(self) -> Fraction:
        rounding = Fraction(0) if self.claim.lattice else self.table.cell**2 / 4
        return self.table.variance + rounding

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, form: dict[str, Any]) -> VectorNoiseCertificate:
        return certify_vector(NoiseTable.from_dict(form["noise"]), VectorClaim.from_dict(form))

    def claim_lines(self) -> list[str]:
        claim, own = self.claim, "l1" if self.claim.sigma is None else "l2"
        budget = f"{shortest(self.epsilon)}, {shortest(self.delta)} a vector of {claim.dimensions}"
        near = f"at most {shortest(claim.sensitivity)} apart in {claim.norm}"
        return [
            line("epsilon, delta", f"{budget}; realised delta at most {shortest(float_at_least(self.realised_delta))}"),
            line("neighbours", f"{near}, which is at most {shortest(float_at_least(self.shift))} cells in {own}"),
        ]


def certify_vector(table: NoiseTable, claim: VectorClaim) -> VectorNoiseCertificate:
    """Verify everything a release of vectors relies on.

    Raises:
        CertificateError: the total is wrong, values on the lattice are no codes, or delta is larger than claimed.
    """
    check_lattice(table)
    if claim.lattice and (Fraction(claim.lattice) / table.cell).denominator != 1:
        raise CertificateError(
            f"lattice: {shortest(claim.lattice)} is not a multiple of the cell {shortest(float(table.cell))}"
        )
    shift = claim.cells(table.cell, table.grains)
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
    """tau (e^eps - 1) / (rho - 1)."""
    rho = exp_lower_bound(rational(claim.epsilon) / max(1, math.floor(shift)))  # ``shift`` is whole but for roots.
    tau = max(excess(table.outcomes, sign, rho) for sign in (1, -1)) / table.total
    return tau * (_upper(claim.epsilon) - 1) / (rho - 1)


def _gaussian(table: NoiseTable, claim: VectorClaim, shift: Fraction) -> Fraction:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) + d tau (1 + e^eps), mu = shift / sigma, from above."""
    sigma, eps = Fraction(claim.sigma or 0), rational(claim.epsilon)
    mu = shift / sigma
    first, second = ndtr_bounds(mu / 2 - eps / mu)[1], ndtr_bounds(-mu / 2 - eps / mu)[0]
    exact = first - exp_lower_bound(claim.epsilon) * max(Fraction(0), second)
    return exact + claim.dimensions * _distance(table, sigma) * (1 + _upper(claim.epsilon))


def _distance(table: NoiseTable, sigma: Fraction) -> Fraction:
    """Upper bound on the total variation distance between the table and a Gaussian's cell masses.

    It is the sum of what the table has too much; cells beyond the table have too little.
    """
    far = max(-table.first, table.last) + 1
    if not (sigma >= _FEWEST_CELLS and far <= FAR * sigma):
        raise CertificateError(
            f"noise: sigma is {float(sigma):.3g} cells, and noise reaches {float(far / sigma):.3g} sigma; only tables "
            f"of at least {_FEWEST_CELLS} cells a sigma that reach at most {FAR} can be judged"
        )
    masses, error = cell_masses(sigma, far)
    unit = BITS - table.bits
    over = sum(max(0, (w << unit) - masses[abs(table.first + j)]) for j, w in enumerate(table.outcomes))
    return Fraction(over, 1 << BITS) + 2 * error


def certify_vector_law(vector: AdditiveVector) -> VectorNoiseCertificate:
    """The certified table of a vector mechanism: the narrowest that has the claim.

    Raises:
        CertificateError: no table has the claim; says what the best one has.
    """
    return narrowest([lambda stretch: certify_vector(*_stretched(vector.coordinate.noise, vector, stretch))])


@singledispatch
def _stretched(noise: Any, vector: AdditiveVector, stretch: float) -> tuple[NoiseTable, VectorClaim]:
    """A table of the noise, so much wider than asked for, and what is claimed of it."""
    raise TypeError(f"noise: {type(noise).__name__} has no table")


@_stretched.register
def _(noise: Lattice, vector: AdditiveVector, stretch: float) -> tuple[NoiseTable, VectorClaim]:
    if vector.lattice is None or (Fraction(vector.lattice) / Fraction(float(noise.step))).denominator != 1:
        raise CertificateError(
            f"lattice: {vector.lattice}; noise in steps of {shortest(noise.step)} needs values on them"
        )
    table = next(noise_tables(noise, Fraction(vector.coordinate.sensitivity), stretches=(stretch,)))
    return table, _claim(vector, None)


@_stretched.register
def _(noise: Distribution, vector: AdditiveVector, stretch: float) -> tuple[NoiseTable, VectorClaim]:
    own = float(vector.coordinate.sensitivity)
    grain, grains, parts = _finest(noise, vector, own)
    table, wider = next(density_tables(noise, own, float(parts), grain, grains, stretches=(stretch,)))
    return table, _claim(vector, _sigma(noise, float(parts) / own * wider))


@singledispatch
def _sigma(noise: Distribution, cells: float) -> float | None:
    """The Gaussian's standard deviation, at so many cells a data unit; None for noise judged in l1."""
    return None


@_sigma.register
def _(noise: Gaussian, cells: float) -> float | None:
    return float(noise.sigma) * cells


def _claim(vector: AdditiveVector, sigma: float | None) -> VectorClaim:
    m = vector.coordinate
    lattice = None if vector.lattice is None else float(vector.lattice)
    D = float(vector.sensitivity)
    return VectorClaim(m.epsilon, m.delta, D, vector.norm, vector.dimensions, lattice, sigma)


def _finest(noise: Distribution, vector: AdditiveVector, own: float) -> tuple[int, int, Fraction]:
    """(grain, M, cells between neighbours) of the coarsest table whose rounding adds little to the sensitivity.

    Raises:
        CertificateError: even the finest adds more than a tenth.
    """
    claim = _claim(vector, _sigma(noise, 1.0))
    for codes in _SIZES:
        grain, grains = _cut(noise, vector, own, codes)
        parts = claim.cells(cell := grains * Fraction(2) ** grain, grains)
        added = float(parts * cell) / own - 1
        if added <= _SMALL:
            break
    if added > _LARGE:
        raise CertificateError(
            f"dimensions: rounding {vector.dimensions} values adds {100 * added:.3g} % to the sensitivity; say what "
            "they are multiples of (lattice=1.0 for counts), or release fewer at a time"
        )
    return grain, grains, parts


def _cut(noise: Distribution, vector: AdditiveVector, own: float, codes: int) -> tuple[int, int]:
    """(grain, M) of cells so small that noise takes about ``codes`` of them, at most a cell a sensitivity."""
    wide = width(noise, own)
    if vector.lattice is None:
        parts = 1 << max(0, math.floor(math.log2(max(1.0, codes * own / wide))))
        return grid(Fraction(own), parts)
    grain, grains = lattice_grid(vector.lattice, Fraction(own))
    while grains % 2 == 0 and wide / float(grains * Fraction(2) ** grain) < codes / 2:
        grains //= 2
    return grain, grains
