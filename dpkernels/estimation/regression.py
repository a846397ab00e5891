"""Relations between columns, perturbed or not, corrected for the noise: covariance, correlation, least squares.

Reports of two columns have independent noise, so the mean of their product is the product of the inputs. The square of
a report contains the variance of the noise; it is replaced by a weight whose mean is the square of the input
(``Channel.square_weights``). All estimates are functions of means of such numbers over rows, with standard errors by
the delta method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpkernels.estimation.channel import as_channel
from dpkernels.estimation.counts import as_numbers, report_indices
from dpkernels.estimation.intervals import Moment
from dpkernels.numerics import Real


@dataclass(frozen=True)
class CentredColumn:
    """The numbers of a column, centred."""

    name: str  # of the column in errors
    middle: float  # the number that was subtracted
    values: np.ndarray  # (n,) unbiased values of the inputs less the middle
    squares: np.ndarray  # (n,) values whose means are the squares of these
    square_bias_bound: float = 0.0
    bias_bound: float = 0.0  # on the bias of the values; 0 unless reports were rounded

    @property
    def deviations(self) -> np.ndarray:
        return self.values - self.values.mean()

    def product_bias_bound(self, other: CentredColumn) -> float:
        """Return a bound on the bias of the columns' covariance: |b_1| s_2 + s_1 |b_2| + |b_1 b_2|."""
        b_1, b_2 = self.bias_bound, other.bias_bound
        return float(b_1 * other.values.std() + self.values.std() * b_2 + b_1 * b_2)

    def variance(self) -> tuple[float, np.ndarray, float]:
        """Return the variance, the influence of every row, and a bound on its bias."""
        n, squares = len(self.values), self.squares - self.values**2 + self.deviations**2
        value, error = squares.mean(), squares.std() / math.sqrt(n)
        bias_bound = self.square_bias_bound + self.bias_bound * (2 * abs(float(self.values.mean())) + self.bias_bound)
        if not value > 3 * error + bias_bound:
            raise ValueError(
                f"{self.name}: {n} reports are too few, or rounded too much, to tell the variance of its values from 0"
            )
        return float(value), squares - value, bias_bound


def covariance(a: Real, b: Real) -> Moment:
    """Return the covariance of the values behind two columns; its error assumes rows drawn from a population.

    Args:
        a: a column: ``(reports, mechanism)`` with a mechanism as for ``estimate`` (or the ``channel`` of a ``Counts``,
            for additive noise with its bounds), or numbers that were not perturbed.
        b: another column of the same rows, perturbed independently.

    Raises:
        ValueError, TypeError, CertificateError: as for ``estimate``; or the columns have different lengths.
    """
    first, second = _columns([("a", a, False), ("b", b, False)])
    products = first.deviations * second.deviations
    n = len(products)
    error = float(products.std(ddof=1) / math.sqrt(n))
    return Moment(float(products.mean() * (n / (n - 1))), error, first.product_bias_bound(second), degrees=n - 1)


def correlation(a: Real, b: Real) -> Moment:
    """Return Pearson's correlation of the values behind two columns, cov / sqrt(var_a var_b), corrected for noise.

    The columns are given as for ``covariance``.

    Raises:
        ValueError: as for ``covariance``; the reports have no information beyond the mean; there are too few reports to
            distinguish a variance from 0.
    """
    first, second = _columns([("a", a, True), ("b", b, True)])
    (var_a, influence_a, bias_a), (var_b, influence_b, bias_b) = first.variance(), second.variance()
    product, scale = first.deviations * second.deviations, math.sqrt(var_a * var_b)
    value = product.mean() / scale
    influence = (product - product.mean()) / scale - value / 2 * (influence_a / var_a + influence_b / var_b)
    bias_bound = abs(value) / 2 * (bias_a / var_a + bias_b / var_b) + first.product_bias_bound(second) / scale
    error = float(influence.std(ddof=1) / math.sqrt(len(product)))
    return Moment(float(value), error, bias_bound, -1.0, 1.0, degrees=len(product) - 1)


@dataclass(frozen=True)
class Regression:
    """The least squares fit target = intercept + sum of slopes times columns."""

    intercept: Moment  # at 0 of all columns
    slopes: Moment  # in the order of the columns


def least_squares(target: object, columns: Sequence[object]) -> Regression:
    """Return the least squares of the values behind one column on those behind others, as if there were no noise.

    With z the columns' values and a one, and t the target's, it solves mean(z z') beta = mean(z t). The squares in
    M = mean(z z') are corrected for the noise, which would otherwise shrink slopes towards 0. Standard errors are those
    of the mean of M^-1 (z t - (z z') beta) over rows drawn from a population; they allow for unequal residual variance.

    The target and one or more columns are given as for ``covariance``.

    Raises:
        ValueError: as for ``correlation``; or the reports are too few, or rounded too much, to distinguish the columns
            from linearly dependent ones.
    """
    if not columns:
        raise ValueError("columns: are none; give one or more")
    named = [("target", target, False), *((f"columns[{i}]", column, True) for i, column in enumerate(columns))]
    outcome, *regressors = _columns(named)
    n, d = len(outcome.values), len(regressors) + 1
    if n <= d:
        raise ValueError(f"reports: {n} rows are too few for {d} coefficients")
    z = np.stack([np.ones(n), *(column.values for column in regressors)])
    M, cross_moments = z @ z.T / n, z @ outcome.values / n
    for i, column in enumerate(regressors, 1):
        M[i, i] = column.squares.mean()
    # Bounds on the biases of the means of products of z with each other, and with the target: (d, d + 1).
    biases = np.array([0.0, *(column.bias_bound for column in regressors), outcome.bias_bound])
    sizes = np.sqrt((np.vstack([z, outcome.values]) ** 2).mean(axis=1))
    product_biases = (np.outer(biases, sizes) + np.outer(sizes, biases) + np.outer(biases, biases))[:-1]
    for i, column in enumerate(regressors, 1):
        product_biases[i, i] = column.square_bias_bound
    _check_definite(M, z, regressors, product_biases[1:, 1:-1])
    beta = np.linalg.solve(M, cross_moments)
    # The residual of each row's own equations, with its own corrected squares.
    residual = outcome.values - beta @ z
    score = z * residual
    for i, column in enumerate(regressors, 1):
        score[i] += beta[i] * (column.values**2 - column.squares)
    influence = np.linalg.solve(M, score)
    middles = np.array([column.middle for column in regressors])
    # About the middles of the columns and the target the intercept is beta_0; at 0 it is this combination.
    at_zero = np.concatenate([[1.0], -middles])
    intercept = outcome.middle + at_zero @ beta
    spread = np.concatenate([(at_zero @ influence)[None], influence[1:]]).std(axis=1, ddof=d) / math.sqrt(n)
    bias_bound = np.abs(np.linalg.inv(M)) @ product_biases @ np.append(np.abs(beta), 1.0)
    return Regression(
        Moment(float(intercept), float(spread[0]), float(np.abs(at_zero) @ bias_bound), degrees=n - d),
        Moment(beta[1:], spread[1:], bias_bound[1:], degrees=n - d),
    )


def _check_definite(M: np.ndarray, z: np.ndarray, regressors: Sequence[CentredColumn], bias_bound: np.ndarray) -> None:
    """Raise an error if the variance of some combination of columns is not significantly above 0."""
    n = z.shape[1]
    values, vectors = np.linalg.eigh(M[1:, 1:] - np.outer(M[0, 1:], M[0, 1:]))
    v = vectors[:, 0]
    centred = z[1:] - z[1:].mean(axis=1, keepdims=True)
    squares = (v @ centred) ** 2 + sum(v[i] ** 2 * (c.squares - c.values**2) for i, c in enumerate(regressors))
    if not values[0] > 3 * squares.std() / math.sqrt(n) + np.abs(v) @ bias_bound @ np.abs(v):
        raise ValueError(
            f"columns: {n} reports are too few, or rounded too much, to tell them from columns that depend on each "
            "other linearly, or from constants"
        )


def _columns(named: Sequence[tuple[str, object, bool]]) -> list[CentredColumn]:
    """Return columns of one length, given with their names, and whether their squares are needed."""
    columns = [_column(*description) for description in named]
    lengths = {column.name: len(column.values) for column in columns}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns: have different lengths {lengths}; a row each is needed")
    if min(lengths.values()) < 2:
        raise ValueError(f"reports: there are {min(lengths.values())}; two or more are needed")
    return columns


def _column(name: str, column: object, squares: bool) -> CentredColumn:
    if not isinstance(column, tuple):
        values = as_numbers(name, column).reshape(-1).astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError(f"{name}: row {int(np.isfinite(values).argmin())} is not finite")
        middle = float(values.mean()) if len(values) else 0.0
        return CentredColumn(name, middle, values - middle, (values - middle) ** 2)
    if len(column) != 2:
        raise TypeError(f"{name}: has {len(column)} parts; a perturbed column is (reports, mechanism)")
    reports, mechanism = column
    channel = as_channel(mechanism)
    indices = report_indices(channel, as_numbers(name, reports).reshape(-1))
    values = (channel.values - channel.middle)[indices]
    if not squares:
        return CentredColumn(name, channel.middle, values, values, 0.0, channel.bias_bound)
    weights, bias_bound = channel.square_weights
    return CentredColumn(name, channel.middle, values, weights[indices], bias_bound, channel.bias_bound)
