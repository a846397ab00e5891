"""Which of two guarantees reveals less, where that is certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountants.composition.bounds import Bracket
from accountants.guarantee import Guarantee
from dpkernels import checks

_POINTS, _SMALLEST = 9, 1e-9  # Points by default, each of two brackets; and the delta that ends them.


@dataclass(frozen=True, eq=False)
class Comparison:
    """Brackets of two privacy profiles; arrays of one length.

    Attributes:
        epsilon: where they were looked at, increasing.
        first: (lower, upper) of the first one's delta there.
        second: of the second one's.
    """

    epsilon: np.ndarray
    first: tuple[np.ndarray, np.ndarray]
    second: tuple[np.ndarray, np.ndarray]

    @property
    def first_below(self) -> np.ndarray:
        """Where the first one's delta is the smaller one for certain, or they are equal to the last digit."""
        return self.first[1] <= self.second[0]

    @property
    def second_below(self) -> np.ndarray:
        """Where the second one's is."""
        return self.second[1] <= self.first[0]

    @property
    def verdict(self) -> str:
        """Either "first" or "second" if that one's delta is the smaller one at every epsilon looked at, for certain.

        "neither" if the profiles cross for certain, so that which is more private depends on epsilon; "not certain"
        else.
        """
        for name, below, other in (
            ("first", self.first_below, self.second_below),
            ("second", self.second_below, self.first_below),
        ):
            if below.all() and not other.all():
                return name
        strictly = self.first_below & ~self.second_below, self.second_below & ~self.first_below
        return "neither" if all(some.any() for some in strictly) else "not certain"

    def __str__(self) -> str:
        lines = [f"{'epsilon':>10} {'delta of the first':>25} {'delta of the second':>25}"]
        for eps, *ends in zip(self.epsilon, *self.first, *self.second, strict=True):
            first, second = (f"[{low:.5g}, {high:.5g}]" for low, high in (ends[:2], ends[2:]))
            lines.append(f"{eps:>10.4g} {first:>25} {second:>25}")
        return "\n".join([*lines, f"more private at all of these: {self.verdict}"])


def compare(first: Guarantee, second: Guarantee, epsilon: Sequence[float] | None = None) -> Comparison:
    """Compare two guarantees at several epsilons, by rigorous brackets of delta.

    The more private one has the smaller delta(eps) at every eps. Profiles may cross: there is an order at every eps,
    but no order of guarantees. What is between the points looked at is not covered, nor whether both are about the same
    neighbours (``Guarantee.neighbouring``): these must be compared by the caller, sensitivities included.

    Args:
        first: a guarantee.
        second: another.
        epsilon: where, increasing; by default at 9 points from 0 to where both deltas are at most 1e-9, or to 50.

    Raises:
        ValueError: epsilons negative, not increasing, or none.

    Example:
        >>> from accountants import compare, guarantee
        >>> from dpkernels.mechanisms.named_additive import gaussian
        >>> less, more = (guarantee(gaussian(sigma=sigma), sensitivity=1.0).repeat(10) for sigma in (4.0, 3.0))
        >>> compare(less, more, [0.0, 1.0, 2.0]).verdict
        'first'
    """
    made = Bracket(first), Bracket(second)
    far = 0.0 if epsilon is not None else min(50.0, max(one.epsilon(_SMALLEST)[1] for one in made))
    points = np.linspace(0.0, far, _POINTS) if epsilon is None else np.asarray(epsilon, np.float64)
    checks.within("epsilon", points, 0.0, np.inf)
    if points.ndim != 1 or not len(points) or not np.all(np.diff(points) > 0):
        raise ValueError(f"epsilon: {epsilon!r}; one or more increasing numbers are needed")
    columns = [np.array([one.delta(eps) for eps in points.tolist()]).T for one in made]
    return Comparison(points, *((low, high) for low, high in columns))
