"""Noise tables: integer weights of additive noise on a grid, their certificates, their sampler and their construction.

An input x is rounded to the position

    floor((floor(x/g + 1/2) + r) / M),    g = 2^grid_log2,    r uniform on 0..M-1,

a stochastic rounding to multiples of the bin width h = M g, in exact arithmetic: x/g moves a float's exponent, the rest
are integers. The report is h (position + code), with code ``first + j`` of probability weights[j] / 2^bits whatever
x is. The privacy of the release is that of the table shifted by up to ceil(ceil(D/g) / M) bins, see
docs/proofs/noise_tables.md. The hockey-stick divergence is computed at every such shift.

Two properties of a table bound the privacy loss of a vector, one table serving every coordinate, when a neighbour moves
coordinate i by s_i bins (docs/proofs/vectors.md).

* l1, any noise. With rho = e^(eps/N), N a bound on sum |s_i|, let tau be the mass by which the table exceeds rho times
  itself shifted by one bin. Then the vector is (eps, tau (e^eps - 1)/(rho - 1))-DP.
* l2, Gaussian noise. With tau the total variation distance between the table and the Gaussian's bin masses, the
  vector has the delta of Gaussian noise at sqrt(sum s_i^2) bins (Balle & Wang 2018), plus d tau (1 + e^eps).

The distance tau of a table of 64-bit weights is about 2^-64 times the number of codes. A table with a remainder
(remainder.py) has weights of 128 bits, of which all but one in 2^47 draws need the first 64.

A table is built of the masses of a density on bins, or of points on a lattice, rounded up to integers. A bin's weight
is the density's mass in it, so sampling the table is a rounding of the density's noise and inherits its guarantee.
Rounding weights up costs at most one unit of 2^-bits per code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.distributions.discrete import Lattice
from dpkernels.exact import arithmetic
from dpkernels.exact.certificate import (
    MOST_WEIGHTS,
    Certificate,
    CertificateError,
    check_totals,
    exp_lower_bound,
    frozen_weights,
    integers,
    moments,
)
from dpkernels.exact.gaussian_cells import FAR, FIXED_BITS, cell_masses, ndtr_bounds
from dpkernels.exact.remainder import Remainder
from dpkernels.exact.sampler import (
    NOISE_STREAM,
    ROUNDING_STREAM,
    ExactSampler,
    Later,
    Stacked,
    Words,
    alias_columns,
    alias_kernel,
    stacked_alias_kernel,
)
from dpkernels.exact.tail import EDGE, FARTHEST, Tail, check_pure
from dpkernels.jax_on_use import jax, jnp
from dpkernels.mechanisms.additive import NORMS, Additive, AdditiveVector
from dpkernels.numerics import Real, RealArray, gauss_legendre, namespace
from dpkernels.proven import proven


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Integer weights of additive noise; the module states their meaning."""

    weights: np.ndarray  # uint64, one a code.
    first: int  # The code of weights[0].
    bits: int  # log2 of the total.
    grid_log2: int  # log2 of g, to which inputs are rounded first.
    points_per_bin: int  # M, the grid points in a bin.
    tail: Tail | None = None  # Codes beyond the first and the last one, which are otherwise impossible.
    remainder: Remainder | None = None  # What the weights lack, on these and further codes.

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))

    @cached_property
    def outcomes(self) -> list[int]:
        return self.weights.tolist()

    @property
    def codes(self) -> int:
        return len(self.weights)

    @property
    def last(self) -> int:
        return self.first + self.codes - 1

    @property
    def ends(self) -> tuple[int, int]:
        """Return the first and the last code that are possible, but for a tail."""
        if self.remainder is None:
            return self.first, self.last
        return min(self.first, self.remainder.first), max(self.last, self.remainder.last)

    @cached_property
    def total(self) -> int:
        return arithmetic.total(self.weights) + self.rest

    @property
    def rest(self) -> int:
        """Return the weight of draws that need the words of later turns."""
        if self.remainder:
            return self.remainder.rest
        return 2 * self.tail.rest if self.tail else 0

    @cached_property
    def finite(self) -> NoiseTable:
        """Return this table, or one without a tail or remainder, near it in 64 bits, and whose ends weigh more.

        For estimates: either side of a code has at least the true probability, as long as that is below a half.
        """
        if self.remainder:
            return self._without_remainder(self.remainder)
        if self.tail is None:
            return self
        block, blocks, scale = self.tail.block / 2.0**self.bits, list[np.ndarray](), float(self.tail.rest)
        while scale * block[0] >= 1:
            blocks.append(np.floor(scale * block).astype(np.uint64))
            scale *= float(self.tail.again)
        side = np.concatenate([*blocks, np.zeros(1, np.uint64)])
        side = side[: np.count_nonzero(side) + 1]
        side[-1] = self.tail.rest - arithmetic.total(side)
        weights = np.concatenate([side[::-1], self.weights, side])
        return replace(self, weights=weights, first=self.first - len(side), tail=None)

    def _without_remainder(self, remainder: Remainder) -> NoiseTable:
        """Return the table with the remainder's weight at either end, and as much less at the code 0."""
        weights = np.zeros(len(remainder.weights), np.uint64)
        start = self.first - remainder.first
        weights[start : start + self.codes] = self.weights
        weights[[0, -1]] += np.uint64(remainder.rest)
        weights[-remainder.first] -= np.uint64(remainder.rest)
        return replace(self, weights=weights, first=remainder.first, remainder=None)

    @property
    def bin_width(self) -> Fraction:
        """Return h, data units between neighbouring reports."""
        return self.points_per_bin * Fraction(2) ** self.grid_log2

    def cells(self, sensitivity: Fraction) -> int:
        """Return the largest number of cells between the positions of inputs D apart."""
        return cells_apart(sensitivity, self.grid_log2, self.points_per_bin)

    @cached_property
    def _mean_and_square(self) -> tuple[Fraction, Fraction]:
        first, second = (
            Fraction(moment, self.total) for moment in moments(self.outcomes, range(self.first, self.last + 1))
        )
        if self.tail:  # The same on both sides.
            mean, square = self.tail.moments
            start = self.last + 1
            second += Fraction(2 * self.tail.rest, self.total) * (start**2 + 2 * start * mean + square)
        if self.remainder:
            mean, square = self.remainder.moments
            first += Fraction(self.rest, self.total) * mean
            second += Fraction(self.rest, self.total) * square
        return self.bin_width * first, self.bin_width**2 * second

    @property
    def mean(self) -> Fraction:
        return self._mean_and_square[0]

    @property
    def variance(self) -> Fraction:
        """Return the exact variance of the noise; rounding the input adds at most h^2/4."""
        return self._mean_and_square[1] - self.mean**2

    @cached_property
    def is_unimodal(self) -> bool:
        """Return whether weights never fall and then rise."""
        rises = self.weights[1:] > self.weights[:-1]
        falls = self.weights[1:] < self.weights[:-1]
        return not (falls.any() and rises[int(falls.argmax()) :].any())

    def kernel(self) -> Callable[[RealArray], RealArray]:
        """Return the sampler, random word of ``bits`` bits -> code, int32; the one before the first draws the rest."""
        outcomes, first = alias_kernel(alias_columns(self.kernel_weights, self.bits)), np.int32(self.kernel_first)
        return lambda r: outcomes(r) + first

    @property
    def kernel_weights(self) -> np.ndarray:
        """Return the weights of the sampler's outcomes: that of the rest comes first, if there is one."""
        return np.append(np.uint64(self.rest), self.weights) if self.rest else self.weights

    @property
    def kernel_first(self) -> int:
        """Return the code of the first outcome."""
        return self.first - 1 if self.rest else self.first

    def to_dict(self) -> dict[str, Any]:
        # A copy of the list that is sampled, because the caller may change it.
        weights, grid = self.weights.tolist(), {"grain": self.grid_log2, "grains": self.points_per_bin}
        tail = {} if self.tail is None else {"tail": self.tail.to_dict()}
        remainder = {} if self.remainder is None else {"remainder": self.remainder.to_dict()}
        return {"weights": weights, "first": self.first, "bits": self.bits, **grid, **tail, **remainder}

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> NoiseTable:
        """Return the table in a payload, after a check of types and sizes only."""
        first, bits, grid_log2, points_per_bin = (
            integer(name, payload[name]) for name in ("first", "bits", "grain", "grains")
        )
        tail = Tail.from_dict(payload["tail"], bits) if "tail" in payload else None
        remainder = Remainder.from_dict(payload["remainder"], bits) if "remainder" in payload else None
        weights = frozen_weights(integers("weights", payload["weights"], MOST_WEIGHTS))
        return cls(weights, first, bits, grid_log2, points_per_bin, tail, remainder)


def cells_apart(distance: Fraction, grid_log2: int, points_per_bin: int) -> int:
    """Return ceil(ceil(distance / g) / M), the most cells by which the positions of such inputs can differ."""
    return math.ceil(Fraction(math.ceil(distance / Fraction(2) ** grid_log2), points_per_bin))


@proven("noise_tables#proof")
def excess(weights: np.ndarray, shift: int, ratio: Fraction) -> Fraction:
    """Return the sum of max(0, w[j] - ratio w[j - shift]) over codes, for a shift of either sign; w is 0 outside."""
    alone, paired = (weights[:shift], weights[shift:]) if shift >= 0 else (weights[shift:], weights[:shift])
    others = weights[: len(paired)] if shift >= 0 else weights[len(alone) :]
    above = arithmetic.exceeds(paired, others, ratio)
    return arithmetic.total(alone) + arithmetic.total(paired[above]) - ratio * arithmetic.total(others[above])


def hockey_stick(table: NoiseTable, shift: int, ratio: Fraction) -> Fraction:
    """Return delta at e^eps = ratio between the table and itself shifted by up to ``shift`` cells, exactly."""
    # Shifts beyond the table's length have the same delta. For unimodal weights the largest shift is the worst.
    shift = min(shift, table.codes)
    shifts = [shift] if table.is_unimodal else range(1, shift + 1)
    worst = max(excess(table.weights, sign * s, ratio) for s in shifts for sign in (1, -1))
    return worst / table.total


def rounding_share(table: NoiseTable, sensitivity: Fraction) -> Fraction:
    """Return the largest probability, at most 1, with which rounding moves inputs D apart to different positions.

    Where a bin has M grid points and D fewer, n, this is the probability of n neighbouring values of r, or of all but
    M - n. Of the words, n neighbouring values have at most ceil(n 2^32/M), and M - n at least floor((M - n) 2^32/M).
    """
    points = math.ceil(sensitivity / Fraction(2) ** table.grid_log2)
    return min(Fraction(1), Fraction(-((-points << 32) // table.points_per_bin), 1 << 32))


@proven("noise_tables#proof")
def mixed_hockey_stick(table: NoiseTable, share: Fraction, ratio: Fraction) -> Fraction:
    """Return delta between the table T and the mixture of T and its neighbour S, T shifted by a cell, exactly.

    With a the share of S and rho the ratio, in one order T - rho ((1 - a) T + a S) = (1 - rho + rho a) T - rho a S, in
    the other (1 - a) T + a S - rho T = a S - (rho - 1 + a) T.
    """
    rest = 1 - ratio * (1 - share)
    forward = [rest * excess(table.weights, sign, ratio * share / rest) for sign in (1, -1) if rest > 0]
    backward = [share * excess(table.weights, sign, (ratio - 1 + share) / share) for sign in (1, -1)]
    return max(Fraction(0), *forward, *backward) / table.total


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
    """Verified facts about a table of additive noise; ``realised_delta`` is a bound on delta at epsilon."""

    epsilon: float
    delta: float
    realised_delta: Fraction
    table: NoiseTable

    lattice: float | None = None  # The number of which every input is a multiple: on a lattice no input is rounded.
    parts: ClassVar[Mapping[str, str]] = {"noise": "table"}

    @property
    def worst_variance(self) -> Fraction:
        """Return a bound on the variance of a report or a coordinate at any input, input rounding included."""
        return self.table.variance + (0 if self.lattice else self.table.bin_width**2 / 4)

    @property
    def guarantee(self) -> str:
        return "(epsilon, delta)-DP" if self.delta else "pure epsilon-DP"

    realised_epsilon = property(attrgetter("epsilon"))  # The budget, which goes with ``realised_delta``.

    def entry_places(self, claims: Mapping[str, np.ndarray]) -> NoisePlace:
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
        beyond = f", and beyond in blocks of {table.tail.codes} without end" if table.tail else ""
        return [
            ("reports", f"multiples of {shortest(float(self.table.bin_width))}"),
            ("noise", f"{table.ends[1] - table.ends[0] + 1} values from {ends}{beyond}"),
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
        place = self.table.grid_log2, self.table.points_per_bin
        try:
            own = (
                p for p in range(-_WIDEST, _FINEST + 1) if grid(Fraction(self.sensitivity), Fraction(2) ** p) == place
            )
            return next(own, None)
        except CertificateError:
            return None

    @proven("noise_tables#proof-for-the-entries-of-a-batch")
    def refused_entries(self, claims: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which entries have another budget, or are other cells apart on their grid than this certificate's."""
        is_other = (claims["epsilon"] != self.epsilon) | (claims["delta"] != self.delta)
        D = claims["sensitivity"]
        if self.bins_log2 is None:
            return is_other | (self.sensitivity != D)
        is_other |= ~((D > 0) & np.isfinite(D))
        exponents, points, M = grids(np.where(is_other, self.sensitivity, D), self.bins_log2)
        is_far = (exponents < GRID_LOG2_RANGE[0]) | (exponents > GRID_LOG2_RANGE[1]) | (M < 1) | (M >= 1 << 32)
        if self.shift < 1:
            shift, apart = int(self.shift * (1 << 32)), -((-points << 32) // M)
        else:
            shift, apart = int(self.shift), -(-points // M)
        return is_other | is_far | (apart != shift)

    def entry_places(self, claims: Mapping[str, np.ndarray]) -> NoisePlace:
        """Return the places of the table for the sensitivities of entries."""
        D = claims["sensitivity"]
        if self.bins_log2 is None:
            table = self.table
            return NoisePlace.of(np.full(len(D), table.grid_log2), np.full(len(D), table.points_per_bin))
        exponents, _, M = grids(D, self.bins_log2)
        return NoisePlace.of(exponents, M)

    @property
    def covers(self) -> str:
        return (
            f"{self.guarantee} of each report; neighbouring: datasets whose true values, as floats, differ by at "
            f"most the sensitivity. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> NoiseCertificate:
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
        shift = rounding_share(table, Fraction(sensitivity))
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
        if not table.is_unimodal and min(shift, table.codes) * table.codes > _MOST_COMPARISONS:
            raise CertificateError(f"weights: rise after they fall; {table.codes} are too many for {shift} shifts")
        realised = hockey_stick(table, math.ceil(shift), ratio)
    check_delta(realised, epsilon, delta, f"inputs {shortest(sensitivity)} apart")
    return NoiseCertificate(float(epsilon), float(delta), float(sensitivity), shift, realised, table)


def check_delta(realised: Fraction, epsilon: float, delta: float, near: str) -> None:
    """Refuse a delta above the claimed one."""
    if realised > rational(delta):
        raise CertificateError(
            f"delta: is {shortest(float_at_least(realised))} at epsilon {shortest(epsilon)} for {near}, above the "
            f"claimed {shortest(delta)}"
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


_FEWEST_CELLS = 32  # A sigma: the series of ``cell_masses`` is then good to 1.3e-20 a bin.


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
    def from_dict(cls, payload: dict[str, Any]) -> VectorClaim:
        claim = {name: payload[name] for name in cls.__dataclass_fields__}
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
        *(f"claim.{name}" for name in VectorClaim.__dataclass_fields__),
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
    def certified(cls, payload: dict[str, Any]) -> VectorNoiseCertificate:
        return certify_vector(NoiseTable.from_dict(payload["noise"]), VectorClaim.from_dict(payload))

    def lines(self) -> list[tuple[str, str]]:
        claim, code_norm = self.claim, "l1" if self.claim.sigma is None else "l2"
        budget = f"{shortest(self.epsilon)}, {shortest(self.delta)} a vector of {claim.dimensions}"
        near = f"at most {shortest(claim.sensitivity)} apart in {claim.norm}"
        return [
            ("epsilon, delta", f"{budget}; realised delta at most {shortest(float_at_least(self.realised_delta))}"),
            ("neighbours", f"{near}, which is at most {shortest(float_at_least(self.shift))} cells in {code_norm}"),
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
    near = f"{claim.dimensions} values {shortest(claim.sensitivity)} apart in {claim.norm}"
    check_delta(realised, claim.epsilon, claim.delta, near)
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
    far = max(-first, last) + 1
    if not (sigma >= _FEWEST_CELLS and far <= FAR * sigma):
        raise CertificateError(
            f"noise: sigma is {float(sigma):.3g} cells, and noise reaches {float(far / sigma):.3g} sigma; only tables "
            f"of at least {_FEWEST_CELLS} cells a sigma that reach at most {FAR} can be judged"
        )
    is_fine = table.remainder is not None
    masses, error = cell_masses(sigma, far, is_fine=is_fine)
    weights, unit = table.outcomes, FIXED_BITS - table.bits
    if table.remainder:
        weights, unit = table.remainder.added_to(table.first, weights), unit - table.bits
    # The sum of the positive differences; cells beyond the table only have negative ones.
    over = sum(max(0, (w << unit) - masses[abs(first + j)]) for j, w in enumerate(weights))
    return Fraction(over, 1 << FIXED_BITS) + 2 * error


class ExactNoise(ExactSampler):
    """Additive noise from a table, on single values or on vectors."""

    may_be_incomplete = True

    @cached_property
    def words(self) -> tuple[Words, ...]:
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, 32)

    @property
    def subnormal_safe_radius(self) -> float:
        """Return half of the grid; inputs strictly closer to 0 are rounded to 0."""
        return 2.0 ** (self.table.grid_log2 - 1)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        """Return the reports; those of ``are_incomplete`` are of no use."""
        return self._placed_reports(x, words, self.place, None)

    @cached_property
    def place(self) -> NoisePlace:
        return NoisePlace.of(self.table.grid_log2, self.table.points_per_bin)

    def are_incomplete(self, noise: np.ndarray) -> np.ndarray:
        """Return the indices of words that draw a tail or the remainder.

        In the first column of the alias table they are the smallest words, unless they fill it.
        """
        if not self.table.rest:
            return np.zeros(0, np.int64)
        weight = self._smallest_words
        if weight is None:
            return np.flatnonzero(self._goes_on(self.kernel(noise)))
        return np.flatnonzero(noise < weight) if np.minimum.reduce(noise) < weight else np.zeros(0, np.int64)

    @cached_property
    def _smallest_words(self) -> np.uint64 | None:
        """Return the word below which words draw the rest, or None if they fill the first column of the alias table."""
        weight = self.table.rest
        return None if weight << self.table.codes.bit_length() >= 1 << self.table.bits else np.uint64(weight)

    def positions(self, x: RealArray, rounding: RealArray) -> RealArray:
        """Return the positions of inputs, in cells."""
        return positions(x, rounding, self.place)

    def entry_places(self, claims: Mapping[str, np.ndarray]) -> NoisePlace:
        """Return the places of the table for the sensitivities of entries."""
        return self.certificate.entry_places(claims)

    def safe_radius_of(self, claims: Mapping[str, np.ndarray]) -> float:
        return 1 / float(self.entry_places(claims).finer.max())

    def completed_at(
        self, x: RealArray, noise: RealArray, rounding: RealArray, later: Later, place: tuple[Any, ...]
    ) -> RealArray:
        """Return ``all_reports`` of values with places of their own."""
        return self.completed(x, noise, rounding, later, NoisePlace(*place))

    @classmethod
    def stacked(cls, samplers: Sequence[ExactNoise]) -> Stacked:
        """Return the noise of several tables; the numbers of an entry are its place, and its table's columns."""
        if len(samplers) == 1:
            return Stacked(samplers[0]._placed_reports, ())
        columns = [alias_columns(sampler.table.kernel_weights, sampler.table.bits) for sampler in samplers]
        outcomes, *numbers = stacked_alias_kernel(columns)
        firsts = np.array([sampler.table.kernel_first for sampler in samplers], np.int32)

        def reports(x: RealArray, words: Sequence[RealArray], place: Any, table: Any) -> RealArray:
            (noise, rounding), (*columns_of_table, first) = words, table
            place = NoisePlace(*place)
            code = outcomes(noise, *columns_of_table) + first
            return _values(positions(x, rounding, place) + code, place, x.dtype)

        return Stacked(reports, (*numbers, firsts))

    def _placed_reports(
        self, x: RealArray, words: Sequence[RealArray], place: tuple[RealArray, RealArray, RealArray, RealArray], _: Any
    ) -> RealArray:
        (noise, rounding), place = words, NoisePlace(*place)
        return _values(positions(x, rounding, place) + self.kernel(noise), place, x.dtype)

    def all_reports(self, x: RealArray, *words: RealArray, later: Later) -> RealArray:
        """Return the reports, those of the tail or the remainder by the words of later turns.

        A report beyond the edge is the edge. A code that stops at the largest one is there at any input.
        """
        if not self.table.rest:
            return self.reports(x, *words)
        noise, rounding = words
        if namespace(noise) is np:
            return self.completed(x, noise, rounding, later, self.place)
        # Seldom any of these goes on; if none does, the words of later turns are not drawn.
        weight = self._smallest_words
        goes_on = self._goes_on(self.kernel(noise)) if weight is None else noise < weight
        state = goes_on.any(), self.reports(x, *words)

        def complete(state: tuple[Any, Any]) -> tuple[Any, Any]:
            # Turn 0 draws the noise words again, so that they need not be kept for this.
            return state[0] & False, self.completed(x, later(jnp.uint32(0)), rounding, later, self.place)

        # A loop of at most one turn: under vmap, lax.cond would compute both branches.
        return jax.lax.while_loop(lambda state: state[0], complete, state)[1]

    def completed(
        self, x: RealArray, noise: RealArray, rounding: RealArray, later: Later, place: NoisePlace
    ) -> RealArray:
        """Return ``all_reports`` of a table with a rest, for inputs at a place, or at one place each."""
        code = self.kernel(noise)
        xp, goes_on, position = namespace(code), self._goes_on(code), positions(x, rounding, place)
        if self.table.remainder:
            further = self._further_kernel(later(xp.uint32(1))) + np.int32(self.table.remainder.first)
            return _values(position + xp.where(goes_on, further, code), place, x.dtype)
        # The first turn draws the side, and the others the blocks.
        side = (later(xp.uint32(1)) & noise.dtype.type(1)).astype(np.int64) * 2 - 1
        far = side * self._distance(goes_on, later)
        return _values(xp.clip(position + xp.where(goes_on, far, code), -EDGE, EDGE), place, x.dtype)

    def _goes_on(self, code: RealArray) -> RealArray:
        return code < np.int32(self.table.first)

    def _distance(self, in_tail: RealArray, later: Later) -> RealArray:
        """Return the distance from 0 of codes in the tail, int64, drawn with the words of as many turns as it takes."""
        tail, xp, kernel = self.table.tail, namespace(in_tail), self._further_kernel
        if tail is None:
            raise ValueError("table: has no tail")

        def goes_on(state: tuple[Any, Any, Any]) -> RealArray:
            return state[2].any()

        def turn(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            number, distance, pending = state
            t = kernel(later(number))
            distance = xp.minimum(distance + xp.where(pending, t, np.int32(0)), FARTHEST)
            return number + 1, distance, pending & (t == tail.codes)

        start = in_tail.astype(np.int64) * (self.table.last + 1)
        if xp is not np:
            return jax.lax.while_loop(goes_on, turn, (jnp.uint32(2), start, in_tail))[1]
        state = 2, start, in_tail
        while goes_on(state):
            state = turn(state)
        return state[1]

    @cached_property
    def _further_kernel(self) -> Any:
        return (self.table.remainder or self.table.tail).kernel()


class NoisePlace(NamedTuple):
    """Where a table is: plain numbers, or arrays with a number for every value."""

    finer: Any  # 2/g
    points_per_bin: Any  # M
    ahead: Any  # floor(2^62/M)
    bin_width: Any  # h = M g

    @classmethod
    def of(cls, grid_log2: Real, points_per_bin: Real) -> NoisePlace:
        """Return the place of a grid."""
        if isinstance(grid_log2, int):
            width = float(points_per_bin * Fraction(2) ** grid_log2)
            return cls(2.0 ** (1 - grid_log2), points_per_bin, _AHEAD // points_per_bin, width)
        M = np.asarray(points_per_bin, np.int64)
        return cls(np.ldexp(1.0, 1 - grid_log2), M, _AHEAD // M, np.ldexp(M.astype(np.float64), grid_log2))


_AHEAD = 1 << 62


def positions(x: RealArray, rounding: RealArray, place: NoisePlace) -> RealArray:
    """Return floor((floor(x/g + 1/2) + r)/M) with r = floor(word M / 2^32), exactly."""
    xp, M, one = namespace(x), place.points_per_bin, np.uint64
    # x/g is exact, g being a power of two, and floor(x/g + 1/2) is floor((floor(2x/g) + 1)/2), in integers.
    doubled = xp.floor(x.astype(np.float64, copy=False) * place.finer)
    # Inputs are within this; clipping moves no two of them apart, so that no input whatever can overflow.
    doubled = xp.minimum(xp.maximum(doubled, -(2.0**62)), 2.0**62).astype(np.int64)
    unsigned = one(M) if isinstance(M, int) else M.astype(np.uint64)
    r = rounding.astype(np.uint64) * unsigned >> one(32)
    # Division is faster without signs, so a multiple of M is added and taken off again.
    shifted = (((doubled + 1) >> 1) + place.ahead * M).astype(np.uint64) + r
    return (shifted // unsigned).astype(np.int64) - place.ahead


def _values(position: RealArray, place: NoisePlace, dtype: Any) -> RealArray:
    return (position.astype(np.float64) * place.bin_width).astype(dtype, copy=False)


# Construction

BITS = 64  # log2 of a total: one random word a value.
_REACH = 12  # Standard deviations up to which a remainder has codes; beyond is a mass of 2^-108.
# The numbers of codes that are tried. Tables of the first size stay in the processor's cache. The second size has a
# smaller rounding error, for a tiny delta.
_SIZES = 1 << 16, 1 << 12
# The number of codes that wide noise may take.
_MOST_CODES = 1 << 20
_FINEST = 12  # log2 of the most cells of a sensitivity D: rounding inputs to them adds at most D^2 2^-26 of variance.
# Inputs are first put on a grid of the sensitivity over 2^22 to 2^23: fine, and within 64 bits far from 0.
_GRID_BITS = 22
# log2 of the most sensitivities of a bin, of wide noise: a bin has less than 2^32 grid points.
_WIDEST = 8
# log2 of the most points a sensitivity of the grid of a lattice: inputs are within 2^34 sensitivities, and 2^61 points
# have room in integers.
_POINT_BITS = 27
# The factors, minus 1, by which a table may be wider than the exact noise of the claim to compensate for rounding.
STRETCHES = tuple(2.0**-k for k in range(40, 8, -4))
_NODES, _WEIGHTS = gauss_legendre(16)
_BLOCK = 1 << 12  # Of intervals that are integrated together.

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
        build = noise_table if delta else endless_table
        table = build(mechanism.noise, Fraction(D), BITS, codes, stretch)
        is_mixed = not isinstance(mechanism.noise, Lattice) and rounding_share(table, Fraction(D)) < 1
        return certify_noise(table, D, epsilon, delta, is_mixed=is_mixed)

    if not delta:
        return narrowest([partial(certified, _SIZES[0])], PURE_STRETCHES)
    return narrowest([partial(certified, codes) for codes in _SIZES])


def narrowest(kinds: Sequence[Callable[[float], Certified]], stretches: Sequence[float] = STRETCHES) -> Certified:
    """Return the certificate of the narrowest table with its claim, from the first kind that has one."""
    for certified in kinds:
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
    noise, D = in_units(noise, float(sensitivity))
    low, high = _ends(noise, D, bits)
    parts_log2 = min(_FINEST, _parts_log2(codes, D, high - low))
    if high - low > _MOST_CODES * D:
        parts_log2 = -min(_WIDEST, math.ceil(math.log2((high - low) / D / _MOST_CODES)))
    lattice = grid(sensitivity, Fraction(2) ** parts_log2)
    resolution = cells_apart(sensitivity, *lattice) if parts_log2 >= 0 else 2.0**parts_log2
    return density_table(noise, D, resolution, *lattice, bits, stretch)


@proven("endless_noise#proof")
def endless_table(
    noise: Noise, sensitivity: Fraction, bits: int = BITS, codes: int = _SIZES[0], stretch: float = PURE_STRETCHES[0]
) -> NoiseTable:
    """Return a table with a tail for neighbours up to ``sensitivity`` apart, with the bins of ``noise_table``."""
    if isinstance(noise, Lattice):
        return tailed_table(noise, 1, *lattice_grid(noise.step, sensitivity), bits, stretch)
    noise, D = in_units(noise, float(sensitivity))
    low, high = _ends(noise, D, bits)
    parts_log2 = min(_FINEST, _parts_log2(codes, D, high - low))
    reach = 2 * float(cast(Distribution, noise).isf(np.float64(_TAIL_MASS)))
    if reach > _MOST_CODES * D:
        parts_log2 = -min(_WIDEST, math.ceil(math.log2(reach / D / _MOST_CODES)))
    lattice = grid(sensitivity, Fraction(2) ** parts_log2)
    distance = cells_apart(sensitivity, *lattice)
    bin_width = D / (distance if parts_log2 >= 0 else 2.0**parts_log2)
    return tailed_table(noise, distance, *lattice, bits, stretch, bin_width)


@lru_cache(maxsize=4)
def fine_gaussian_table(sigma: int) -> NoiseTable:
    """Return the table of Gaussian noise on whole numbers with a remainder, at a distance of about 2^-97 at 2^12 cells.

    The weights are the cells' masses, cut to 64 bits. The remainder has what was cut off, in relation to all that was,
    and the mass beyond ``_REACH`` at the code 0.
    """
    masses, _ = cell_masses(Fraction(sigma), _REACH * sigma + 1, is_fine=True)
    below = FIXED_BITS - BITS
    weights = np.array([mass >> below for mass in masses], np.uint64)
    last = int(np.count_nonzero(weights)) - 1
    weights = np.concatenate([weights[last:0:-1], weights[: last + 1]])
    rest = (1 << BITS) - arithmetic.total(weights)
    cut = [(mass & ((1 << below) - 1)) // (rest << (below - BITS)) for mass in masses]
    cut[0] += (1 << BITS) - 2 * sum(cut) + cut[0]
    further = np.array(cut, np.uint64)
    remainder = Remainder(rest, np.concatenate([further[:0:-1], further]), -_REACH * sigma, BITS)
    return NoiseTable(weights, -last, BITS, *lattice_grid(1.0, Fraction(sigma)), remainder=remainder)


def tailed_table(
    noise: Noise,
    distance: int,
    grid_log2: int,
    points_per_bin: int,
    bits: int,
    stretch: float,
    bin_width: float | None = None,
) -> NoiseTable:
    """Return a table with a tail, of neighbours ``distance`` cells apart, for noise whose tail is geometric.

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
    far = start + width
    logs = noise.log_weight if isinstance(noise, Lattice) else noise.log_prob
    power = 1 / (1 + stretch)
    decay = float(logs(far) - logs(far + distance * width)) * power  # Over the distance of neighbours.
    # The last weight times decay times 2^-14 is 4 at least: so much wider noise has room for its rounding.
    mass = max(_TAIL_MASS, 2.0 ** (16 - bits) * distance / decay**2)
    if isinstance(noise, Lattice):
        reach = -math.log(mass) * distance * width / decay
    else:
        reach = float(noise.isf(np.float64(min(mass, 0.25))))
    last, block = math.ceil(max(reach, far) / width), distance * math.ceil(_TAIL_DECAY / decay)
    if max(last, block) >= _MOST_CODES:
        raise CertificateError(
            f"noise: is {2 * last} cells wide; a table holds at most {_MOST_CODES} cells; use wider ones"
        )
    if isinstance(noise, Lattice):
        masses = np.exp(noise.log_weight(width * np.arange(last + distance + block + 1)) * power)
    else:
        masses = _masses(noise, np.arange(last + distance + block + 2) - 0.5, width, power)
    # Blocks begin where the noise falls most, not within a step, so that rounding makes no block begin with a rise.
    falls = masses[last : last + distance] / masses[last + 1 : last + distance + 1]
    last += int(np.argmax(falls >= falls.max() * (1 - 1e-9)))
    half = np.minimum.accumulate(masses[: last + 1])
    tail = np.minimum.accumulate(masses[last + 1 : last + 1 + block])
    again = math.exp(-decay * block / distance)
    tail_mass = tail.sum() / (1 - again)
    all_masses = np.concatenate([[tail_mass], half[:0:-1], half, [tail_mass]])
    table = _table(all_masses / all_masses.sum(), -last - 1, bits, grid_log2, points_per_bin)
    further = math.floor(Fraction(again) * (1 << bits)) + 1
    weights = _rounded_up(np.ldexp(tail / tail.sum(), bits + 40), (1 << bits) - further)
    return replace(table, weights=table.weights[1:-1], first=-last, tail=Tail(int(table.weights[0]), weights, bits))


def in_units(noise: Noise, sensitivity: float) -> tuple[Noise, float]:
    """Return the noise in units of the sensitivity, and 1, so that tables depend on ratios alone.

    Noise that cannot be rescaled is left as it is, with its sensitivity.
    """
    if isinstance(noise, Noise):
        with suppress(TypeError):
            return noise.rescale(1.0, sensitivity), 1.0
    return noise, sensitivity


def _parts_log2(codes: int, sensitivity: float, width: float) -> int:
    """Return log2 of the largest power of two of cells per sensitivity that keeps within the number of codes."""
    return max(0, math.floor(math.log2(codes * sensitivity / width)))


def density_table(
    noise: Noise,
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
    if (high - low) * resolution > _MOST_CODES * sensitivity:
        raise CertificateError(
            f"noise: is {(high - low) / sensitivity:.3g} sensitivities of {resolution:.3g} cells wide; a table holds "
            f"at most {_MOST_CODES} cells"
        )
    bin_width = sensitivity / resolution / (1 + stretch)
    first, last = math.floor(low / bin_width + 0.5), math.ceil(high / bin_width - 0.5)
    masses = _masses(noise, np.arange(first, last + 2) - 0.5, bin_width)
    # Without rounding noise masses fall away from 0, and flat parts are exactly flat. Where the distribution begins or
    # ends within the bin of 0, the next bin is the largest.
    near = [j for j in (-first, -first - 1, 1 - first) if 0 <= j < len(masses)]
    top = near[int(np.argmax(np.round(masses[near] / masses[near].max(), 9)))]
    left, right = (np.minimum.accumulate(side) for side in (masses[top::-1], masses[top:]))
    return _table(np.concatenate([left[:0:-1], right]), first, bits, grid_log2, points_per_bin)


def _quantiles(noise: Any, bits: int) -> tuple[float, float]:
    """Return the points beyond which less than a code's unit of mass is left on either side."""
    tail = np.float64(2.0 ** -(bits + 1))
    return float(noise.icdf(tail)), float(noise.isf(tail))


def _ends(noise: Noise, sensitivity: float, bits: int = BITS) -> tuple[float, float]:
    """Return the ends of the support, or points D beyond those where the remaining mass is below a code's unit."""
    if not isinstance(noise, Distribution):
        raise TypeError(f"noise: {type(noise).__name__} has no table")
    (low, high), (first, last) = (float(end) for end in noise.support), _quantiles(noise, bits)
    # A code without a partner D further out would count in delta; this way only codes of one unit have none.
    return max(low, first - sensitivity), min(high, last + sensitivity)


def _masses(noise: Any, edges: np.ndarray, bin_width: float, power: float = 1.0) -> np.ndarray:
    """Return the mass between neighbouring edges, to the last digits relatively: Gauss-Legendre between knots.

    With a power they are integrals of the density to this power.
    """
    # In cells whole edges are exactly alike: a step of e^eps leaves no room for other differences.
    cuts = np.clip(np.append(np.asarray(noise.knots), np.asarray(noise.support)) / bin_width, edges[0], edges[-1])
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


def grid(sensitivity: Fraction, bins: int | Fraction) -> tuple[int, int]:
    """Return (grid_log2, M) with ``bins`` bins of M grid points that just cover D, which has 2^22 to 2^23 points."""
    grid_log2 = math.frexp(float(sensitivity))[1] - 1 - _GRID_BITS
    if not GRID_LOG2_RANGE[0] <= grid_log2 <= GRID_LOG2_RANGE[1]:
        raise CertificateError(
            f"sensitivity: {shortest(float(sensitivity))} is too small or too large; rescale the data"
        )
    return grid_log2, math.ceil(Fraction(math.ceil(sensitivity / Fraction(2) ** grid_log2), bins))


def grids(sensitivities: np.ndarray, bins_log2: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every sensitivity D, (grid_log2, ceil(D/g), M) of ``grid`` with 2^bins_log2 bins; exact."""
    exponents = np.frexp(sensitivities)[1].astype(np.int64) - 1 - _GRID_BITS
    points = np.ceil(np.ldexp(sensitivities, -exponents)).astype(np.int64)  # At most 2^23: exact in floats.
    M = -(-points >> bins_log2) if bins_log2 >= 0 else points << -bins_log2
    return exponents, points, M


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
    spare = min(spare_bits, max(0, _GRID_BITS + 1 - odd.bit_length()))
    return round(math.log2(unit)) - spare, odd << spare


def _table(masses: np.ndarray, first: int, bits: int, grid_log2: int, points_per_bin: int) -> NoiseTable:
    """Return the table of the masses, with what rounding leaves of the total on the code 0."""
    weights, total = _rounded_up(np.ldexp(masses, bits + 40), 1 << bits), 1 << bits
    middle = int(weights[-first]) + total - arithmetic.total(weights)
    if middle >> bits:
        raise CertificateError("noise: too narrow; it is 0 for certain")
    weights[-first] = middle
    return NoiseTable(weights, first, bits, grid_log2, points_per_bin)


def _rounded_up(masses: np.ndarray, total: int) -> np.ndarray:
    """Return ceil(floor(mass) s) for the largest scale s, in units of 2^-40 over the total, that keeps within it."""
    if len(masses) >= total:
        raise CertificateError(f"noise: {len(masses)} codes for a total of {total}")
    exponents = np.maximum(np.frexp(masses)[1] - 53, 0)
    mantissas = np.ldexp(masses, -exponents).astype(np.uint64)  # Whole numbers, or cut to them.
    return arithmetic.rounded_up(mantissas, exponents, total.bit_length() + 40, total)


# The numbers of codes that are tried for vectors.
_VECTOR_SIZES = 1 << 16, 1 << 18
# The share of the sensitivity that rounding may add before a finer table is tried.
_SMALL = 1e-3
# The share of the sensitivity that rounding may add before the table is refused.
_LARGE = 0.1


def vector_certificate(vector: AdditiveVector) -> VectorNoiseCertificate:
    """Return the certified table of a vector mechanism: the narrowest that has the claim."""
    noise, sensitivity, delta = vector.coordinate.noise, float(vector.coordinate.sensitivity), vector.coordinate.delta

    def certified(stretch: float) -> VectorNoiseCertificate:
        if isinstance(noise, Lattice):
            if vector.lattice is None or (Fraction(vector.lattice) / Fraction(float(noise.step))).denominator != 1:
                raise CertificateError(
                    f"lattice: {vector.lattice}; noise in steps of {shortest(noise.step)} needs values on them"
                )
            build = noise_table if delta else endless_table
            return certify_vector(build(noise, Fraction(sensitivity), stretch=stretch), _claim(vector, 1.0))
        grid_log2, points_per_bin, resolution = _finest(noise, vector, sensitivity)
        if not delta:
            table = tailed_table(noise, 1, grid_log2, points_per_bin, BITS, stretch, sensitivity / float(resolution))
            return certify_vector(table, _claim(vector, 1.0))
        table = density_table(noise, sensitivity, float(resolution), grid_log2, points_per_bin, stretch=stretch)
        return certify_vector(table, _claim(vector, float(resolution) / sensitivity * (1 + stretch)))

    return narrowest([certified], STRETCHES if delta else PURE_STRETCHES)


def _claim(vector: AdditiveVector, cells_per_unit: float) -> VectorClaim:
    """Return the claim for a vector. Gaussian noise is described in cells of 1/``cells_per_unit`` data units."""
    m, sigma = vector.coordinate, vector.coordinate.noise.gaussian_sigma
    lattice = None if vector.lattice is None else float(vector.lattice)
    in_cells = None if sigma is None else float(sigma) * cells_per_unit
    D = float(vector.sensitivity)
    return VectorClaim(m.epsilon, m.delta, D, vector.norm, vector.dimensions, lattice, in_cells)


def _finest(noise: Noise, vector: AdditiveVector, sensitivity: float) -> tuple[int, int, Fraction]:
    """Return (grid_log2, M, cells between neighbours) of the coarsest table that adds little to the sensitivity."""
    claim, (low, high) = _claim(vector, 1.0), _ends(noise, sensitivity)
    for codes in _VECTOR_SIZES:
        if vector.lattice is None:
            grid_log2, points_per_bin = grid(Fraction(sensitivity), 1 << _parts_log2(codes, sensitivity, high - low))
        else:
            grid_log2, points_per_bin = lattice_grid(vector.lattice, Fraction(sensitivity))
        unit = Fraction(2) ** grid_log2
        # On a lattice a bin may be a part of a step.
        while vector.lattice and points_per_bin % 2 == 0 and (high - low) / float(points_per_bin * unit) < codes / 2:
            points_per_bin //= 2
        resolution = claim.cells(bin_width := points_per_bin * unit, points_per_bin)
        added = float(resolution * bin_width) / sensitivity - 1
        if added <= _SMALL:
            break
    if added > _LARGE:
        raise CertificateError(
            f"dimensions: rounding {vector.dimensions} values adds {100 * added:.3g} % to the sensitivity; say what "
            "they are multiples of (lattice=1.0 for counts), or release fewer at a time"
        )
    return grid_log2, points_per_bin, resolution
