"""Certificates of additive noise: (epsilon, delta) for every shift up to the sensitivity, from the integers."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.certificate import (
    Certificate,
    CertificateError,
    check_totals,
    exp_lower_bound,
    line,
)
from dpkernels.exact.noise.table import NoiseTable, hockey_stick
from dpkernels.untrusted import real

# What no certificate of additive noise covers.
NOISE_LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover the sensitivity itself, "
    "rounding while the true value was computed, timing, caches or other side channels, which rows or columns exist, "
    "values copied unperturbed, or the composition of several reports."
)
# Of grains: subnormal inputs, which processors may read as 0, are within half of the smallest one from 0 in float64
# (float32 inputs are checked when they come); with the largest, reports are finite.
GRAINS = (-1021, 960)
# Weights that rise after they fall are compared at every shift; of ours none do.
_MOST_COMPARISONS = 1 << 21


class AdditiveCertificate(Certificate):
    """Verified facts about a table of additive noise.

    Attributes:
        epsilon: the budget, as printed.
        delta: the claimed delta, as printed.
        realised_delta: bound on delta at epsilon.
        table: the integers, so that anyone can verify again.
    """

    epsilon: float
    delta: float
    realised_delta: Fraction
    table: NoiseTable

    @property
    @abc.abstractmethod
    def worst_variance(self) -> Fraction:
        """Bound on the variance of a report, or of a coordinate, at any input, rounding of the input included."""

    @abc.abstractmethod
    def claim_lines(self) -> list[str]:
        """The claim and for which neighbours, for a person."""

    @property
    def realised_epsilon(self) -> float:
        """The budget, which goes with ``realised_delta``."""
        return self.epsilon

    @property
    def lowest(self) -> Fraction:
        """The smallest noise."""
        return self.table.cell * self.table.first

    @property
    def highest(self) -> Fraction:
        """The largest noise."""
        return self.table.cell * self.table.last

    @property
    def bias(self) -> Fraction:
        """Mean of the noise."""
        return self.table.mean

    def lines(self) -> list[str]:
        ends = f"{float(self.lowest):.9g} to {float(self.highest):.9g}"
        return [
            *self.claim_lines(),
            line("reports", f"multiples of {shortest(float(self.table.cell))}"),
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
        shift: how many cells apart neighbours are, at most.
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
        return self.table.variance + self.table.cell**2 / 4

    @property
    def covers(self) -> str:
        return (
            "(epsilon, delta)-DP of each report; neighbouring: datasets whose true values, as floats, differ by at "
            f"most the sensitivity. {NOISE_LIMITS}"
        )

    @classmethod
    def certified(cls, form: dict[str, Any]) -> NoiseCertificate:
        claims = (real(name, form[name]) for name in ("sensitivity", "epsilon", "delta"))
        return certify_noise(NoiseTable.from_dict(form["noise"]), *claims)

    def claim_lines(self) -> list[str]:
        epsilon, delta, D = (shortest(value) for value in (self.epsilon, self.delta, self.sensitivity))
        realised = shortest(float_at_least(self.realised_delta))
        return [
            line("epsilon, delta", f"{epsilon}, {delta}, realised delta {realised}"),
            line("neighbours", f"at most {D} apart, which is at most {self.shift} cells"),
        ]


def certify_noise(table: NoiseTable, sensitivity: float, epsilon: float, delta: float) -> NoiseCertificate:
    """Verify everything a release relies on.

    Raises:
        CertificateError: the total is not 2^bits, delta is larger than claimed for some shift, which says by how much,
            or weights rise after they fall in a table too large for a look at every shift.
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
    """Refuse a table whose weights are not a distribution, or whose cells the sampler cannot compute with.

    Raises:
        CertificateError: says what is wrong.
    """
    check_totals(table)
    if not 1 <= table.grains < 1 << 32:
        raise CertificateError(f"grains: {table.grains} is not in 1..2^32 - 1")
    if not GRAINS[0] <= table.grain <= GRAINS[1]:
        raise CertificateError(
            f"grain: 2^{table.grain} is not in 2^{GRAINS[0]}..2^{GRAINS[1]}; rescale the data to a sensitivity near 1"
        )
    if not table.first <= 0 <= table.last:
        raise CertificateError(f"table: has codes {table.first} to {table.last}; 0 is not one")
