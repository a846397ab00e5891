"""The best size of sets behind a shuffler: the least mean squared error at a central (eps, delta).

For each size, the local epsilon is the largest for which the shuffled reports meet the target. All sizes are tried,
because the calibration of each by the exact blanket takes only a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from accountants.calibrate.shuffled_reports import shuffled
from dpkernels import checks
from dpkernels.mechanisms.categorical.base import parse_categories
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection, subset_selection

__all__ = ["shuffled_categories"]


def shuffled_categories(
    categories: object,
    *,
    epsilon: float,
    delta: float,
    n: int,
    sizes: Sequence[int] | None = None,
    other: object = None,
) -> SubsetSelection:
    """Return subset selection of the size and the budget with the least error, of n shuffled reports at a target.

    The upper end of the rigorous bracket meets the target. Wherever it was tried, size 1 was the best, which is
    randomised response.

    Args:
        categories: their number d or their labels; see ``dpkernels.subset_selection``.
        epsilon: the central eps, positive.
        delta: the central delta, in (0, 1).
        n: the number of honest reports.
        sizes: the sizes that are compared, of 1..d - 1. By default 1, 2, 4, .. to d/2, and then the sizes next to the
            best one until both its neighbours are worse.
        other: the label that stands for values which are no category.

    Raises:
        ValueError: an argument is out of range, or a budget of 0.01 exceeds the target, for some size.
        NotPrivateError: no mechanism was proven to meet the target.

    Example:
        >>> m = shuffled_categories(5, epsilon=0.5, delta=1e-6, n=10_000)
        >>> m.size, round(m.epsilon, 2)
        (1, 4.37)
    """
    d, labels, code = parse_categories(categories, other)
    label = None if code is None else code if labels is None else labels[code]

    @cache
    def member(size: int) -> SubsetSelection:
        domain = d if labels is None else labels
        best: SubsetSelection = shuffled(
            subset_selection, epsilon=epsilon, delta=delta, n=n, categories=domain, size=size, other=label
        )
        return best

    def error(size: int) -> float:
        return float(member(size).mean_squared_error(n))

    if sizes is not None:
        if len(sizes) == 0:
            raise ValueError("sizes: are none; at least one is needed")
        return member(min((checks.integer_in("sizes", size, 1, d - 1) for size in sizes), key=error))
    size = min((1 << power for power in range(max(1, (d // 2).bit_length()))), key=error)
    while (better := min(_neighbouring_sizes(size, d), key=error)) != size:
        size = better
    return member(size)


def _neighbouring_sizes(size: int, d: int) -> list[int]:
    return [neighbour for neighbour in (size, size - 1, size + 1) if 1 <= neighbour < d]
