"""Samples of a fixed size: m of n records, drawn without replacement; neighbours replace one record.

Let g = m/n, and let (P, Q) be the pair of a release on all data with one record replaced. For eps >= 0, one release on
a sample has the profile of (g P + (1 - g) Q, Q) (Balle, Barthe and Gaboardi 2018). For eps < 0, it has that of the
mirrored pair. This determines the dominating pair (Zhu, Dong and Wang 2022). For additive noise, P and Q are shifted by
twice the sensitivity, because one record is removed and another is added.

For one release, some dataset attains the profile. For several releases it is an upper bound, because no single dataset
need be the worst at every eps. Lower bounds come from two datasets: all other records have the opposite value of the
record, so that (g P + (1 - g) Q, Q) is the pair of every release, or they have the value 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accountants.dominating_pairs.additive import AdditivePair, HalvedPair, additive_pair
from accountants.dominating_pairs.base import DominatingPair
from accountants.dominating_pairs.discrete import Atoms, shifted_pair
from accountants.dominating_pairs.replaced import ReplacedBounded, ReplacedNoise
from accountants.dominating_pairs.sampled import Sampled
from accountants.schemes.groups import LOG_CONCAVE
from dpkernels import checks
from dpkernels.numerics import Real
from dpkernels.proven import proven
from dpkernels.pytrees import pytree


@proven("schemes#4-samples-of-a-fixed-size")
@pytree
@dataclass(frozen=True)
class FixedSize(ReplacedBounded):
    """The pair of one release on a sample of a fixed size, from that on all data with a record replaced."""

    neighbours: ClassVar[str | None] = "replace"

    def attained(self) -> tuple[DominatingPair, ...]:
        """Return the pairs where all other records have the opposite value of the record, and where they have 0."""
        opposite = Sampled(self.pair, self.rate)
        if not (isinstance(self.pair, AdditivePair) and type(self.pair.noise) in LOG_CONCAVE):
            return (opposite,)
        return opposite, ReplacedNoise(additive_pair(self.pair.noise, self.pair.shift / 2), self.rate)

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
        check_symmetric(self.pair)


def replacing_pair(pair: DominatingPair) -> DominatingPair:
    """Return the pair of a release on all the data if one record is replaced, from that if one is added or removed.

    Raises:
        ValueError: the mechanism is bounded and for inputs within a sensitivity alone.
    """
    if isinstance(pair, AdditivePair):
        return additive_pair(pair.noise, 2 * pair.shift)
    if isinstance(pair, Atoms) and pair.moved is not None:
        return shifted_pair(pair.p[: -pair.moved], 2 * pair.moved)
    if pair.within_sensitivity or pair.is_shift:
        raise ValueError(
            "mechanism: replacing a record may move a value by twice the sensitivity that this bounded mechanism was "
            "made for; take a mechanism for any two inputs"
        )
    return pair


def check_symmetric(pair: DominatingPair) -> None:
    """Raise a ValueError for a pair that is not symmetric."""
    gap = checks.concrete(pair.symmetry_gap())
    if gap is not None and not gap <= 1e-9:
        raise ValueError(
            f"mechanism: samples of a fixed size are known for symmetric pairs; this {type(pair).__name__} is not, or "
            "under tracing not known to be"
        )


def fixed_size_pair(pair: DominatingPair, rate: Real) -> DominatingPair:
    """Return the pair of a release on a sample that holds the share ``rate`` of all records."""
    check_symmetric(pair)
    replaced = replacing_pair(pair)
    if isinstance(replaced, AdditivePair):
        replaced = HalvedPair(replaced.noise, replaced.shift, replaced.periods)
    return FixedSize(replaced, rate)
