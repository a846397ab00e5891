"""The choice of a mechanism for categories by the exact error of its estimates."""

from __future__ import annotations

from dpkernels import checks
from dpkernels.mechanisms.categorical.base import Categorical, parse_categories
from dpkernels.mechanisms.categorical.block_response import BlockResponse, best_blocks
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection, best_size

OBJECTIVES = ("shares", "largest-share")
# A set is d bits. Beyond this number of categories, reports of block response are much shorter, and the error is at
# most 1.5 % larger.
_MAX_SET_CATEGORIES = 1 << 12


def categorical(
    epsilon: float,
    categories: object,
    *,
    objective: str = "shares",
    bits: float | None = None,
    shuffled: bool = False,
    other: object = None,
) -> SubsetSelection | BlockResponse:
    """Return the mechanism for d categories whose estimates have the least error.

    Candidates are subset selection of every size (of at most 4,096 categories), randomised response and block response.

    Args:
        epsilon: the budget of a report, 0.01 to 20.
        categories: their number d or their labels; see ``subset_selection``.
        objective: the error that is minimised. "shares" is the expected sum of squared errors of all shares.
            "largest-share" is the largest variance of any one share, whatever its true value.
        bits: the most bits that a stored report may take; by default any number.
        shuffled: whether a trusted shuffler hides who sent which report. Randomised response is then the best at the
            same central budget, and is returned. ``accountants.tune.shuffled_categories`` compares the sizes of sets,
            and finds the budget for a central one.
        other: the label that stands for values which are no category; see ``subset_selection``.

    Raises:
        ValueError: an argument is out of range, or no mechanism has reports of so few bits.
        TypeError: labels are neither all strings nor all integers, or epsilon is not a number.

    Example:
        >>> type(categorical(1.0, 266)).__name__, type(categorical(1.0, 266, bits=16)).__name__
        ('SubsetSelection', 'BlockResponse')
    """
    checks.not_traced("epsilon", "The choice depends on its value.", epsilon)
    checks.epsilon(epsilon)
    checks.one_of("objective", objective, OBJECTIVES)
    if bits is not None:
        checks.within("bits", bits, 1.0, float("inf"))
    d, labels, code = parse_categories(categories, other)
    eps = checks.number("epsilon", epsilon)
    response = SubsetSelection(eps, d, 1, labels, code)
    candidates: list[SubsetSelection | BlockResponse] = [response]
    if not shuffled:
        candidates.append(BlockResponse(eps, d, best_blocks(eps, d), labels, code))
        if d <= _MAX_SET_CATEGORIES:
            sizes = [best_size(eps, d)] if objective == "shares" else range(1, d // 2 + 1)
            candidates += [SubsetSelection(eps, d, size, labels, code) for size in sizes]
    if not (allowed := [mechanism for mechanism in candidates if bits is None or mechanism.bits <= bits]):
        least = min(mechanism.bits for mechanism in candidates)
        raise ValueError(f"bits: {bits:g}; the smallest report of {d} categories takes {least:.4g} bits")
    return min(allowed, key=lambda mechanism: _error(mechanism, objective))


def _error(mechanism: Categorical, objective: str) -> float:
    if objective == "shares":
        return float(mechanism.mean_squared_error())
    return max(float(mechanism.share_variance(0.0)), float(mechanism.share_variance(1.0)))
