"""Groups of k records, all of which are added or all removed.

Without sampling, a group changes the true value by up to k sensitivities. On Poisson samples of rate r, the number of
its records in the sample is binomial. Let X_j be the ratio of the density of the noise, shifted by up to j
sensitivities, and the density at 0. The ratio for both datasets is

    R = sum over j of C(k, j) r^j (1 - r)^(k - j) X_j.

Every divergence is convex in R, so it is largest if all X_j are comonotone, each with the distribution of the largest
shift. For symmetric log-concave noise, equal records with the largest value attain this bound, also for vectors with
Gaussian noise (Choquette-Choo et al. 2023; Ganesh 2024). For other noise it is an upper bound. A group with a single
nonzero record gives a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from accountants.dominating_pairs.additive import AdditivePair, additive_pair
from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.dominating_pairs.discrete import Atoms, shifted_pair
from accountants.dominating_pairs.gaussian_mixture import GaussianMixture
from accountants.dominating_pairs.sampled import Sampled
from accountants.schemes.tables import RatioTable, TablePair, ratios
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.logistic import Logistic
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree
from dpkernels.shapes import Float

MAX_RECORDS = 1 << 10  # The most records of a group: the pair is a mixture of as many shifted noises.
_ROUNDING = 1e-11  # More than the relative errors of the weights, and of the sum of ratios.
LOG_CONCAVE = (Gaussian, Laplace, Logistic)


def binomial_weights(records: int, rate: Real) -> Float[RealArray, " {records}+1"]:
    """Return the probabilities of 0 to ``records`` records in a sample, for a rate in (0, 1)."""
    xp, j = namespace(rate), np.arange(records + 1.0)
    choices = np.concatenate([[0.0], np.cumsum(np.log((records - j[:-1]) / (j[:-1] + 1)))])
    return xp.exp(choices + j * xp.log(rate) + (records - j) * xp.log1p(-rate))


@proven("schemes#6-groups")
@partial(pytree, static=("records", "removed", "is_lower"))
@dataclass(frozen=True)
class Grouped(TablePair):
    """The pair of noise on a Poisson sample for groups of ``records`` records, or its mirror if ``removed``."""

    pair: DominatingPair
    rate: Real
    records: int
    removed: bool = False
    is_lower: bool = False

    @property
    def has_joint_axes(self) -> bool:  # type: ignore[override]
        return self.pair.has_joint_axes

    def compute_table(self, side: int) -> RatioTable:
        """Return the sum of the ratios of all shifts at equal quantiles."""
        weights = binomial_weights(self.records, float(self.rate))
        columns, infinite = [], 0.0
        for weight, shifts in zip(weights[1:], range(1, self.records + 1), strict=True):
            value, mass, infinity_mass = ratios(grouped_pair(self.pair, shifts), self.removed, side)
            order = np.argsort(value if self.removed else -value)  # What matters most is added first.
            columns.append((value[order], np.cumsum(mass[order])))
            infinite += weight * infinity_mass
        ends = np.unique(np.concatenate([sums for _, sums in columns]))
        middle = (ends + np.append(0.0, ends[:-1])) / 2
        total, last_ratio = np.full(len(ends), weights[0]), np.inf if self.removed else 0.0
        for weight, (value, sums) in zip(weights[1:], columns, strict=True):
            total += weight * np.append(value, last_ratio)[np.searchsorted(sums, middle)]
        is_finite = np.isfinite(total)
        table = RatioTable.of_ratios(total[is_finite], np.diff(ends, prepend=0.0)[is_finite], infinite, self.removed)
        return RatioTable(table.loss + side * _ROUNDING, table.mass * (1 + side * _ROUNDING), table.infinite)

    def attained(self) -> tuple[DominatingPair, ...]:
        if self.is_lower:
            return ()
        if isinstance(self.pair, AdditivePair) and type(self.pair.noise) in LOG_CONCAVE:
            return super().attained()
        if isinstance(self.pair, Atoms):
            equal = self._equal_records_pair(self.pair)
            return (equal.mirror() if self.removed else equal,)
        return (Sampled(self.pair, self.rate, self.removed),)

    def _equal_records_pair(self, pair: Atoms) -> Atoms:
        """Return the pair of noise on a lattice, where every record has the largest value."""
        weights, moved = binomial_weights(self.records, self.rate), int(pair.moved or 0)
        noise_weights = pair.p[:-moved]
        p = np.zeros(len(noise_weights) + self.records * moved)
        for j, weight in enumerate(weights):
            p[j * moved : j * moved + len(noise_weights)] += weight * noise_weights
        q = np.append(noise_weights, np.zeros(self.records * moved))
        return Atoms(p / p.sum(), q)

    def lower_hockey_stick(self) -> Curve:
        return self.table.delta if self.is_lower else self.attained()[0].lower_hockey_stick()

    def largest_loss(self) -> Real:
        """Return the loss where all ratios are the largest ones, or the smallest ones if removed."""
        weights = binomial_weights(self.records, self.rate)
        sign, total = -1.0 if self.removed else 1.0, weights[0]
        for weight, shifts in zip(weights[1:], range(1, self.records + 1), strict=True):
            shifted = grouped_pair(self.pair, shifts)
            total = total + weight * np.exp(sign * (shifted.mirror() if self.removed else shifted).largest_loss())
        return sign * np.log(total)

    def check(self) -> None:
        super().check()
        checks.within("rate", self.rate, 0.0, 1.0)
        checks.integer_in("records", self.records, 1, MAX_RECORDS)
        self.pair.check()


def grouped_pair(pair: DominatingPair, records: int) -> DominatingPair:
    """Return the pair of a release of noise on all the data for groups of so many records.

    Raises:
        ValueError: the mechanism is not additive noise.
    """
    if isinstance(pair, AdditivePair):
        return additive_pair(pair.noise, records * pair.shift)
    if isinstance(pair, Atoms) and pair.moved is not None:
        return shifted_pair(pair.p[: -pair.moved], records * pair.moved)
    raise ValueError(
        f"records: {records}; groups are known for additive noise, and this {type(pair).__name__} is none. If every "
        "record has a report of its own, repeat the report as often"
    )


def sampled_group_pair(pair: DominatingPair, records: int, rate: Real) -> DominatingPair:
    """Return the pair of a release of noise on a Poisson sample of this rate, for groups of so many records.

    Raises:
        ValueError: the mechanism is not additive noise.
    """
    grouped, plain_rate = grouped_pair(pair, records), checks.concrete(rate)
    if plain_rate is not None and plain_rate == 1:
        return grouped
    if isinstance(grouped, AdditivePair) and isinstance(grouped.noise, Gaussian):
        shift = namespace(pair.shift).abs(pair.shift)  # type: ignore[attr-defined]
        weights = binomial_weights(records, rate)
        return GaussianMixture(np.arange(records + 1.0) * shift / pair.noise.sigma, weights)  # type: ignore[attr-defined]
    return Grouped(pair, rate, records)
