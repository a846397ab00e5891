"""Certificates of additive noise: (epsilon, delta) for every shift up to the sensitivity, from the integers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpkernels import checks
from dpkernels.exact.certificate import CertificateError, check_claims, exp_lower_bound, reading
from dpkernels.exact.noise_table import NoiseTable, hockey_stick
from dpkernels.exact.tables import rational

NOISE_COVERS = (
    "(epsilon, delta)-DP of each report; neighbouring: datasets whose true values, as floats, differ by at most the "
    "sensitivity. Assumes that the key's generator is indistinguishable from random. Does not cover the sensitivity "
    "itself, rounding while the true value was computed, timing, caches or other side channels, which rows or columns "
    "exist, values copied unperturbed, or the composition of several reports."
)
# Sizes of random words, and grains: subnormal inputs, which processors may read as 0, are within half of the
# smallest one from 0 in float32 too; with the largest, reports are finite.
_WORDS, GRAINS = (16, 32, 64), (-125, 960)


@dataclass(frozen=True)
class NoiseCertificate:
    """Verified facts about one table of noise.

    Attributes:
        epsilon: the budget, as printed.
        delta: the claimed delta, as printed.
        sensitivity: D, the float's exact value.
        shift: how many cells apart neighbours are, at most.
        realised_delta: the largest delta at epsilon over all shifts up to this, both ways.
        table: the integers, so that anyone can verify again.
    """

    epsilon: float
    delta: float
    sensitivity: float
    shift: int
    realised_delta: Fraction
    table: NoiseTable

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

    @property
    def worst_variance(self) -> Fraction:
        """Bound on the variance of a report at any input, rounding of the input included."""
        return self.table.variance + self.table.cell**2 / 4

    def to_dict(self) -> dict[str, Any]:
        """A JSON form with exact fractions as text and the table itself."""
        plain = {name: getattr(self, name) for name in ("epsilon", "delta", "sensitivity", "shift")}
        plain["realised_epsilon"] = self.realised_epsilon
        exact = {
            name: str(getattr(self, name)) for name in ("realised_delta", "lowest", "highest", "bias", "worst_variance")
        }
        return {**plain, **exact, "covers": NOISE_COVERS, "noise": self.table.to_dict()}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> NoiseCertificate:
        """Verify the table in a JSON form again; what the form says of itself must agree.

        Raises:
            CertificateError: the table fails, or the form claims something else.
        """
        with reading():
            table = NoiseTable.from_dict(form["noise"])
            certificate = certify_noise(table, form["sensitivity"], form["epsilon"], form["delta"])
            check_claims(form, certificate.to_dict())
        return certificate

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        table, cell = self.table, float(self.table.cell)
        return "\n".join(
            [
                f"epsilon, delta      {self.epsilon:g}, {self.delta:g}, realised delta "
                f"{float(self.realised_delta):.9g}",
                f"neighbours          at most {self.sensitivity:g} apart, which is at most {self.shift} cells",
                f"reports             multiples of {cell:.9g}",
                f"noise               {table.codes} values from {float(self.lowest):.9g} to {float(self.highest):.9g}",
                f"total weight        2^{table.total.bit_length() - 1}",
                f"mean of the noise   {float(self.bias):.9g}",
                f"variance            at most {float(self.worst_variance):.9g} at any input",
                f"covers              {NOISE_COVERS}",
            ]
        )


def certify_noise(table: NoiseTable, sensitivity: float, epsilon: float, delta: float) -> NoiseCertificate:
    """Verify everything a release relies on.

    Raises:
        CertificateError: the total is not 2^bits, or delta is larger than claimed for some shift; says by how much.
    """
    checks.epsilon(epsilon)
    checks.positive("sensitivity", sensitivity)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    check_lattice(table)
    shift = table.cells(Fraction(sensitivity))
    realised = hockey_stick(table, shift, exp_lower_bound(epsilon))
    if realised > rational(delta):
        raise CertificateError(
            f"delta: is {float(realised):.9g} at epsilon {epsilon:g} for inputs {sensitivity:g} apart, above the "
            f"claimed {delta:g}"
        )
    return NoiseCertificate(epsilon, delta, sensitivity, shift, realised, table)


def check_lattice(table: NoiseTable) -> None:
    """Refuse a table whose weights are no distribution, or whose cells the sampler cannot compute with.

    Raises:
        CertificateError: says what is wrong.
    """
    if table.bits not in _WORDS:
        raise CertificateError(f"bits: {table.bits} is not one of {', '.join(map(str, _WORDS))}")
    if table.total != 1 << table.bits:
        raise CertificateError(f"total: weights sum to 2^{table.bits} {table.total - (1 << table.bits):+d}")
    if not 1 <= table.grains < 1 << 32:
        raise CertificateError(f"grains: {table.grains} is not in 1..2^32 - 1")
    if not GRAINS[0] <= table.grain <= GRAINS[1]:
        raise CertificateError(
            f"grain: 2^{table.grain} is not in 2^{GRAINS[0]}..2^{GRAINS[1]}; rescale the data to a sensitivity near 1"
        )
    if not table.first <= 0 <= table.last:
        raise CertificateError(f"table: has codes {table.first} to {table.last}; 0 is not one")
