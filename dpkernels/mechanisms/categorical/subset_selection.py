"""Subset selection, which has the least possible mean squared error. Randomised response is its case k = 1.

A report is a set of k of the d categories. It contains the true category with probability p = k e^eps/(k e^eps + d -
k). The other members are a uniform set of the other categories:

    P(S | x) = p/C(d - 1, k - 1) if x is in S, else (1 - p)/C(d - 1, k),    q = (k - p)/(d - 1).

Sources: Ye and Barg, "Optimal schemes for discrete distribution estimation under locally differential privacy" (2018);
Pan, "Private categorical distribution estimation" (2026) for the bound that it attains; Kairouz, Oh and Viswanath
(2014) for randomised response on d categories.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from dpkernels import checks
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.mechanisms.categorical.base import (
    Categorical,
    Labels,
    log_binomial,
    parse_categories,
    randomised_choice,
    response_log_prob,
    value_or_best,
)
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree

_MAX_SET_CATEGORIES = 1 << 16  # categories of sets, which are as many bits each
_MAX_SINGLE_CATEGORIES = 1 << 24  # categories of reports of a single one
_ROWS = 1 << 12  # sets whose members are counted together
_MAX_WORDS = 8  # words of 64 bits of a set up to which sets are counted word by word


@partial(pytree, static=("categories", "size", "labels", "other"))
@dataclass(frozen=True)
class SubsetSelection(Categorical):
    """A mechanism that reports a set of ``size`` categories; with size 1, one category (randomised response).

    Reports of size 1 are codes of categories. Larger sets are bits: category y is bit y % 8 of byte y // 8.

    Attributes:
        epsilon: the budget of a report.
        categories: d.
        size: k, 1 to d - 1.
        labels: the names of the categories, or None.
        other: the code of the category that stands for unknown ones, or None.
    """

    epsilon: Real
    categories: int
    size: int
    labels: Labels | None = None
    other: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer_in("size", self.size, 1, self.categories - 1)
        if self.categories > (most := _MAX_SINGLE_CATEGORIES if self.size == 1 else _MAX_SET_CATEGORIES):
            raise ValueError(
                f"categories: {self.categories}; reports of {self.size} are of at most {most} categories, and "
                "block_response is for more"
            )

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "category" if self.size == 1 else "set"

    @property
    def support_probabilities(self) -> tuple[Real, Real]:
        d, k, eps = self.categories, self.size, self.epsilon
        p = k / (k + (d - k) * namespace(eps).exp(-eps))
        return p, (k - p) / (d - 1)

    @property
    def outcomes(self) -> int:
        return math.comb(self.categories, self.size)

    @property
    def bits(self) -> float:
        return super().bits if self.size == 1 else 8.0 * self.report_shape[0]

    @property
    def report_shape(self) -> tuple[int, ...]:
        return () if self.size == 1 else (-(-self.categories // 8),)

    @property
    def report_dtype(self) -> np.dtype:
        return super().report_dtype if self.size == 1 else np.dtype(np.uint8)

    def log_prob(self, reports: RealArray, x: RealArray) -> RealArray:
        d, k, eps = self.categories, self.size, self.epsilon
        xp = namespace(reports, x, eps)
        if k == 1:
            return response_log_prob(eps, d, reports == x)
        byte = xp.take_along_axis(reports, (x // 8).astype(int)[..., None], axis=-1)[..., 0]
        is_member = (byte >> (x % 8).astype(byte.dtype)) & 1
        log_p = math.log(k) - xp.log(k + (d - k) * xp.exp(-eps))
        log_other = math.log(d - k) - eps - xp.log(k + (d - k) * xp.exp(-eps))
        return xp.where(is_member == 1, log_p - log_binomial(d - 1, k - 1), log_other - log_binomial(d - 1, k))

    def supports(self, reports: RealArray) -> np.ndarray:
        rows = np.asarray(reports)
        if self.size == 1:
            return rows[:, None] == np.arange(self.categories)
        return np.unpackbits(rows, axis=-1, count=self.categories, bitorder="little").view(bool)

    def are_sets(self, rows: np.ndarray) -> np.ndarray:
        """Return whether each row of bytes is a set of ``size`` categories."""
        width, sizes = rows.shape[1], np.empty(len(rows), np.uint32)
        if width > _MAX_WORDS * 8:
            np.add.reduce(np.bitwise_count(rows), axis=1, dtype=np.uint32, out=sizes)
        else:  # NumPy adds along short rows slowly, so words of all rows are counted together.
            for start in range(0, len(rows), _ROWS):
                block = np.ascontiguousarray(rows[start : start + _ROWS])
                block_sizes = sizes[start : start + _ROWS]
                block_sizes[:] = 0
                for offset in range(0, width - 7, 8):
                    block_sizes += np.bitwise_count(np.ndarray(len(block), np.uint64, block, offset, (width,)))
                for offset in range(width // 8 * 8, width):
                    block_sizes += np.bitwise_count(block[:, offset])
        is_set = sizes == self.size
        if last_bits := self.categories % 8:
            is_set &= rows[:, -1] >> np.uint8(last_bits) == 0
        return is_set

    def draw(self, key: Array, x: Array) -> Array:
        d, k = self.categories, self.size
        inclusion_key, choice_key = jax.random.split(key)
        p, _ = self.support_probabilities
        if k == 1:
            return randomised_choice(x, d, p, (inclusion_key, choice_key), int).astype(self.report_dtype)
        has_true = jax.random.uniform(inclusion_key, x.shape) < p
        is_true = x[..., None] == jnp.arange(d)
        # The k categories with the smallest numbers, of which that of the true one is below or above all others.
        scores = jax.random.uniform(choice_key, (*x.shape, d))
        scores = jnp.where(is_true, jnp.where(has_true[..., None], -1.0, 2.0), scores)
        members = jax.lax.top_k(-scores, k)[1]
        is_member = jnp.put_along_axis(jnp.zeros(is_true.shape, bool), members, True, axis=-1, inplace=False)
        return jnp.packbits(is_member, axis=-1, bitorder="little")

    def all_reports(self) -> np.ndarray:
        d, k = self.categories, self.size
        if k == 1:
            return super().all_reports()
        is_member = np.zeros((self.outcomes, d), bool)
        for row, members in zip(is_member, combinations(range(d), k), strict=True):
            row[list(members)] = True
        return np.packbits(is_member, axis=-1, bitorder="little")


def strict_bound(epsilon: float, categories: int) -> float:
    """Return the least mean squared error of one report that any unbiased eps-DP estimate of all shares can have.

    It is min over k of (d - 1)^2 (k e^eps + d - k)^2/(d k (d - k) (e^eps - 1)^2) - (d - 1)/d. Subset selection of the
    best size attains it (Pan 2026, arXiv 2603.11523). Projected estimates, which are biased, may be below it.
    """
    d = checks.integer_in("categories", categories, 2, 1 << 53)
    return min(_error(epsilon, d, k) for k in _sizes(epsilon, d))


def _error(epsilon: float, d: int, k: int) -> float:
    e = math.exp(epsilon)
    return (d - 1) ** 2 * (k * e + d - k) ** 2 / (d * k * (d - k) * math.expm1(epsilon) ** 2) - (d - 1) / d


def _sizes(epsilon: float, d: int) -> tuple[int, ...]:
    """Return the sizes below and above d/(e^eps + 1), between which the error has its minimum."""
    optimum = d / (math.exp(epsilon) + 1)
    return tuple(sorted({min(max(size, 1), d - 1) for size in (math.floor(optimum), math.ceil(optimum))}))


def best_size(epsilon: float, categories: int) -> int:
    """Return the size of the sets with the least mean squared error."""
    return min(_sizes(epsilon, categories), key=lambda k: _error(epsilon, categories, k))


def subset_selection(
    epsilon: Real, categories: object, size: int | None = None, *, other: object = None
) -> SubsetSelection:
    """Return subset selection on d categories, which has the least mean squared error of all local mechanisms.

    Args:
        epsilon: the budget of a report, 0.01 to 20.
        categories: their number d, whose values are codes 0..d - 1; or their labels, all strings or all integers. They
            are public, and must not be taken from the data.
        size: k, the number of categories in a report; by default the one with the least mean squared error. A traced
            epsilon needs one. Size 1 is randomised response.
        other: the label that stands for values which are no category; by default these are errors. If it is not one of
            the labels, it is added. Without labels it is a code.

    Raises:
        ValueError: an argument is out of range, or a label is given twice.
        TypeError: labels are neither all strings nor all integers, or epsilon is not a number.

    Example:
        >>> subset_selection(1.0, 266).size
        72
    """
    checks.epsilon(epsilon)
    d, labels, code = parse_categories(categories, other)
    return SubsetSelection(epsilon, d, value_or_best(size, "the size", best_size, epsilon, d), labels, code)


def randomised_response(epsilon: Real, categories: object, *, other: object = None) -> SubsetSelection:
    """Return randomised response on d categories: the true one with probability e^eps/(e^eps + d - 1), else another.

    It is subset selection with size 1, whose reports are categories, and the best mechanism behind a shuffler. Its
    dominating pair is ``accountants.randomised_response``. For the arguments see ``subset_selection``.

    Example:
        >>> p, q = randomised_response(1.0, ["yes", "no"]).support_probabilities
        >>> round(float(p), 4), round(float(q), 4)
        (0.7311, 0.2689)
    """
    return subset_selection(epsilon, categories, 1, other=other)
