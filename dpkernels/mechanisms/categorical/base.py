"""The interface of mechanisms for categories, with shared formulas for probabilities, errors and sampling.

A report names a set S of categories: one, several, or a block of them. It supports a category y if y is in S. With x
the person's category,

    p = P(x in S | x),    q = P(y in S | x) for every other y,

If C_y of n reports support y, (C_y/n - q)/(p - q) is an unbiased estimate of the share of y.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.jax_on_use import Array, Tracer, jax, jit, jnp
from dpkernels.mechanisms.base import as_array, with_sample_shape
from dpkernels.numerics import Boolean, Real, RealArray, namespace
from dpkernels.random.keys import typed_simulation_key
from dpkernels.shapes import Float

# Block response reports an integer of at most 64 bits. Subset selection has a smaller limit of its own.
MAX_CATEGORIES = 1 << 40
_MAX_LABELS = 1 << 24  # categories with labels
_MAX_CHANNEL = 1 << 22  # entries of a channel matrix

Labels = tuple[str, ...] | tuple[int, ...]


class Categorical(abc.ABC):
    """A randomised map from one of d categories to a report. It is pure epsilon-DP for any two categories.

    Methods take codes 0..d - 1 of categories. ``labels`` are the names of the categories, or None. ``other`` is the
    code of the category that stands for unknown values, or None.
    """

    epsilon: Real
    categories: int
    labels: Labels | None
    other: int | None

    kind: ClassVar[str]  # of a report: "category", "set" or "block"
    is_categorical: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.integer_in("categories", self.categories, 2, MAX_CATEGORIES)
        if self.other is not None:
            checks.integer_in("other", self.other, 0, self.categories - 1)
        if self.labels is not None and len(self.labels) != self.categories:
            raise ValueError(f"labels: {len(self.labels)} for {self.categories} categories; each category needs one")

    @property
    @abc.abstractmethod
    def support_probabilities(self) -> tuple[Real, Real]:
        """Return (p, q): the probabilities that a report supports the true category, and another one."""

    @property
    @abc.abstractmethod
    def outcomes(self) -> int:
        """Return the number of possible reports, as a Python integer."""

    @property
    def bits(self) -> float:
        """Return the number of bits of a stored report."""
        return math.log2(self.outcomes)

    @property
    def report_shape(self) -> tuple[int, ...]:
        """Return the shape of a report: () for an integer, (bytes,) for a set as bits."""
        return ()

    @property
    def report_dtype(self) -> np.dtype:
        """Return the smallest unsigned type of reports."""
        return smallest_unsigned(self.outcomes)

    @abc.abstractmethod
    def log_prob(self, reports: RealArray, x: RealArray) -> RealArray:
        """Return the log probability of reports given the codes of true categories."""

    @abc.abstractmethod
    def supports(self, reports: RealArray) -> np.ndarray:
        """Return (n, d) booleans: whether each report supports each category."""

    @abc.abstractmethod
    def draw(self, key: Array, x: Array) -> Array:
        """Return float-kernel reports of an array of codes; ``sample`` checks its arguments."""

    def all_reports(self) -> np.ndarray:
        """Return every possible report, for few categories."""
        return np.arange(self.outcomes, dtype=self.report_dtype)

    def share_variance(self, share: Real, reports: Real = 1) -> Real:
        """Return the variance of the estimated share of a category with this true share among the n people.

        It is [f p (1 - p) + (1 - f) q (1 - q)]/(n (p - q)^2) for the share f of the n people themselves. For a share of
        a population from which they were drawn at random, add f (1 - f)/n.
        """
        p, q = self.support_probabilities
        return (share * p * (1 - p) + (1 - share) * q * (1 - q)) / (reports * (p - q) ** 2)

    def mean_squared_error(self, reports: Real = 1) -> Real:
        """Return the expected sum over all categories of the squared error of the estimated share, for n reports.

        It is [p (1 - p) + (d - 1) q (1 - q)]/(n (p - q)^2), the same for all data.
        """
        p, q = self.support_probabilities
        return (p * (1 - p) + (self.categories - 1) * q * (1 - q)) / (reports * (p - q) ** 2)

    def sample(self, key: Array, x: RealArray, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw reports of codes x with floating-point numbers, for simulation and not for release.

        The function is compiled once for each shape of x. ``epsilon`` may be an array that broadcasts with x, so that
        each row has a budget of its own.

        Args:
            key: a typed key, or a legacy ``jax.random.PRNGKey``.
            x: codes 0..d - 1, integers.
            sample_shape: how many independent reports each code has, along leading axes.

        Returns:
            Reports of the shape (*sample_shape, *shape, *report_shape), with x's shape broadcast with ``epsilon``, as
            unsigned integers of ``report_dtype``.
        """
        key, codes = typed_simulation_key(key), as_array(x)
        if not jnp.issubdtype(codes.dtype, jnp.integer):
            raise TypeError(f"x: holds {codes.dtype}; codes of categories are integers")
        if not isinstance(codes, Tracer) and codes.size:
            low, high = int(codes.min()), int(codes.max())
            if not 0 <= low <= high < self.categories:
                raise ValueError(f"x: holds codes {low} to {high}; they must be in 0..{self.categories - 1}")
        codes = jnp.broadcast_to(codes, jnp.broadcast_shapes(codes.shape, jnp.shape(self.epsilon)))
        return _drawn(self, key, with_sample_shape(codes, sample_shape))

    def channel(self) -> tuple[np.ndarray, Float[np.ndarray, "categories outcomes"]]:
        """Return every possible report, and the (d, reports) matrix of their probabilities given a category.

        A ValueError says that there are too many, or that the mechanism is a batch.
        """
        if shape := np.shape(self.epsilon):
            raise ValueError(f"channel: epsilon has shape {shape}; a matrix is of one mechanism")
        if self.outcomes * self.categories > _MAX_CHANNEL:
            raise ValueError(
                f"channel: {self.categories} categories have {self.outcomes:.3g} reports; a matrix has at most "
                f"{_MAX_CHANNEL} entries"
            )
        reports, x = self.all_reports(), np.arange(self.categories)
        return reports, np.exp(np.stack([self.log_prob(reports, np.full(len(reports), code)) for code in x]))

    @property
    def domain(self) -> str:
        """Return a description of the values, for errors."""
        return f"one of the {self.categories} categories"

    def label(self, code: int) -> object:
        """Return the label of a code, or the code itself if there are no labels."""
        return int(code) if self.labels is None else self.labels[code]


@jit()
def _drawn(mechanism: Categorical, key: Array, x: Array) -> Array:
    return mechanism.draw(key, x)


def value_or_best(
    parameter: int | None, name: str, best: Callable[[float, int], int], epsilon: Real, categories: int
) -> int:
    """Return the parameter of a mechanism, by default the best one, whose choice needs a plain epsilon."""
    if parameter is not None:
        return parameter
    checks.not_traced("epsilon", f"Give {name}, whose choice depends on epsilon.", epsilon)
    return best(checks.number("epsilon", epsilon), categories)


def parse_categories(categories: object, other: object) -> tuple[int, Labels | None, int | None]:
    """Return (number of categories, labels or None, code of the other category or None).

    ``categories`` is their number, or a sequence of distinct labels, all strings or all integers. ``other`` is the
    label of the category that stands for unknown values. If it is not one of the labels, it is added as the last one.
    Without labels ``other`` is a code.
    """
    if isinstance(categories, int | np.integer) and not isinstance(categories, bool):
        d = checks.integer_in("categories", categories, 2, MAX_CATEGORIES)
        return d, None, None if other is None else checks.integer_in("other", other, 0, d - 1)
    if isinstance(categories, str) or not isinstance(categories, Sequence | np.ndarray):
        raise TypeError(f"categories: {categories!r} must be a number of categories, or a list of their labels")
    labels = [label.item() if isinstance(label, np.generic) else label for label in categories]
    if other is not None and other not in labels:
        labels.append(other)
    if not 2 <= len(labels) <= _MAX_LABELS:
        raise ValueError(f"categories: {len(labels)} labels; 2 to 2^24 are needed")
    for label_type in (str, int):
        if all(type(label) is label_type for label in labels):
            break
    else:
        raise TypeError("categories: labels must be all strings or all integers")
    if label_type is str and not all(map(is_label, labels)):
        raise ValueError("categories: labels must be texts of Unicode characters, without NUL")
    if label_type is int and max(abs(label) for label in labels) >= 1 << 63:
        raise ValueError("categories: integer labels must fit into 64 bits")
    if len(set(labels)) < len(labels):
        duplicate = next(label for index, label in enumerate(labels) if label in labels[:index])
        raise ValueError(f"categories: {duplicate!r} is given twice")
    return len(labels), tuple(labels), None if other is None else labels.index(other)


def is_label(text: str) -> bool:
    """Return whether a text is of Unicode characters without NUL, which NumPy does not distinguish from the end."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def smallest_unsigned(outcomes: int) -> np.dtype:
    """Return the smallest unsigned type for codes 0..outcomes - 1."""
    return np.min_scalar_type(outcomes - 1)


def response_log_prob(epsilon: Real, choices: int, is_true: Boolean) -> RealArray:
    """Return the log probability of one of g choices under randomised response, given whether it is the true one."""
    xp = namespace(epsilon, is_true)
    low = -epsilon - xp.log1p((choices - 1) * xp.exp(-epsilon))
    return xp.where(is_true, epsilon + low, low)


def randomised_choice(
    true: RealArray, choices: int, p: Real, keys: tuple[Array, Array], dtype: type | np.dtype
) -> Array:
    """Draw the true one of g choices with the probability p, else one of the others, with a key for each decision."""
    is_true = jax.random.uniform(keys[0], true.shape) < p
    other = jax.random.randint(keys[1], true.shape, 0, choices - 1, dtype)
    return jnp.where(is_true, true, other + (other >= true))


def log_binomial(n: int, k: int) -> float:
    """Return the log of a binomial coefficient of integers."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
