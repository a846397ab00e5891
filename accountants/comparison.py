"""Comparison of two guarantees by rigorous brackets of their privacy profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountants.guarantee import Guarantee
from dpkernels import checks

_POINTS = 9  # The number of eps at which two guarantees are compared, by default.
_MIN_DELTA = 1e-9  # The last of these eps is where the larger delta has this value, or 50 if that is smaller.


@dataclass(frozen=True, eq=False)
class Comparison:
    """Brackets of two privacy profiles: (lower, upper) bounds of delta at increasing values of eps, in equal arrays."""

    epsilon: np.ndarray
    first: tuple[np.ndarray, np.ndarray]
    second: tuple[np.ndarray, np.ndarray]

    @property
    def first_below(self) -> np.ndarray:
        return self.first[1] <= self.second[0]

    @property
    def second_below(self) -> np.ndarray:
        return self.second[1] <= self.first[0]

    @property
    def verdict(self) -> str:
        """Return which guarantee has the smaller delta at every epsilon that was compared.

        It is "first" or "second" if that is proven, "neither" if the profiles are proven to cross, else "not certain".
        """
        first, second = self.first_below, self.second_below
        if first.all() != second.all():
            return "first" if first.all() else "second"
        return "neither" if (first & ~second).any() and (second & ~first).any() else "not certain"

    def __str__(self) -> str:
        lines = [f"{'epsilon':>10} {'delta of the first':>25} {'delta of the second':>25}"]
        for eps, *ends in zip(self.epsilon, *self.first, *self.second, strict=True):
            first, second = (f"[{low:.5g}, {high:.5g}]" for low, high in (ends[:2], ends[2:]))
            lines.append(f"{eps:>10.4g} {first:>25} {second:>25}")
        return "\n".join([*lines, f"more private at all of these: {self.verdict}"])


def compare(first: Guarantee, second: Guarantee, epsilon: Sequence[float] | None = None) -> Comparison:
    """Compare two guarantees at several epsilons, by rigorous brackets of delta.

    The more private guarantee has the smaller delta(eps) at every eps, but profiles may cross. The comparison does not
    cover the epsilons between its points. It does not check that both guarantees have the same neighbours
    (``Guarantee.neighbouring``) and sensitivities: the caller must do this.

    By default ``epsilon`` is 9 points from 0 to the eps at which both deltas are at most 1e-9, or to 50.

    Raises:
        ValueError: epsilon is empty, not increasing, or has negative entries.

    Example:
        >>> from accountants import compare, guarantee
        >>> from dpkernels.mechanisms.named import gaussian
        >>> less, more = (guarantee(gaussian(sigma=sigma), sensitivity=1.0).repeat(10) for sigma in (4.0, 3.0))
        >>> compare(less, more, [0.0, 1.0, 2.0]).verdict
        'first'
    """
    if epsilon is None:
        last = max(guarantee.bracket(delta=_MIN_DELTA)[1] for guarantee in (first, second))
        points = np.linspace(0.0, min(50.0, last), _POINTS)
    else:
        points = np.asarray(epsilon, np.float64)
    checks.within("epsilon", points, 0.0, np.inf)
    if points.ndim != 1 or not len(points) or not np.all(np.diff(points) > 0):
        raise ValueError(f"epsilon: {epsilon!r}; one or more increasing numbers are needed")
    columns = [np.array([guarantee.bracket(epsilon=eps) for eps in points.tolist()]).T for guarantee in (first, second)]
    return Comparison(points, *((low, high) for low, high in columns))
