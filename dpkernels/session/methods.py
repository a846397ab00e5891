"""The methods of a session that release one statistic each."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np

from dpkernels.session.counts import Count, Crosstab, Histogram, Top
from dpkernels.session.moments import Mean, Regression, Sum, Variance
from dpkernels.session.quantiles import Quantiles
from dpkernels.session.results import Result
from dpkernels.session.statistic import By, Statistic

Amount: TypeAlias = float | Fraction | Decimal  # a float is the decimal that it prints as


class StatisticMethods(abc.ABC):
    """A method for each statistic: its arguments, and epsilon, share and delta, which are those of ``release``."""

    @abc.abstractmethod
    def release(
        self, statistic: Statistic, *, epsilon: Amount | None = None, share: Amount | None = None, delta: Amount = 0
    ) -> Result:
        """Release a statistic with its part of the budget."""

    def count(
        self, *, by: By | None = None, epsilon: Amount | None = None, share: Amount | None = None, delta: Amount = 0
    ) -> Result:
        """Release the number of rows, of every group if ``by`` states keys."""
        return self.release(Count(by=by), epsilon=epsilon, share=share, delta=delta)

    def crosstab(
        self, *, by: By, epsilon: Amount | None = None, share: Amount | None = None, delta: Amount = 0
    ) -> Result:
        """Release the number of rows for every combination of the keys of two columns."""
        return self.release(Crosstab(by=by), epsilon=epsilon, share=share, delta=delta)

    def histogram(
        self,
        column: str,
        edges: Sequence[float],
        *,
        by: By | None = None,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release the numbers of values between stated edges."""
        statistic = Histogram(column, tuple(edges) if np.iterable(edges) else edges, by=by)
        return self.release(statistic, epsilon=epsilon, share=share, delta=delta)

    def sum(
        self,
        column: str,
        lower: float | None = None,
        upper: float | None = None,
        *,
        bounds: Literal["private"] | None = None,
        by: By | None = None,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release the sum of values, clipped to [lower, upper]; ``bounds="private"`` finds the bounds."""
        statistic = Sum(column, lower, upper, bounds=bounds, by=by)
        return self.release(statistic, epsilon=epsilon, share=share, delta=delta)

    def mean(
        self,
        column: str,
        lower: float | None = None,
        upper: float | None = None,
        *,
        bounds: Literal["private"] | None = None,
        by: By | None = None,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release the mean of values, clipped to [lower, upper]; ``bounds="private"`` finds the bounds."""
        statistic = Mean(column, lower, upper, bounds=bounds, by=by)
        return self.release(statistic, epsilon=epsilon, share=share, delta=delta)

    def variance(
        self,
        column: str,
        lower: float | None = None,
        upper: float | None = None,
        *,
        bounds: Literal["private"] | None = None,
        by: By | None = None,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release the mean squared distance of values, clipped to [lower, upper], from their mean."""
        statistic = Variance(column, lower, upper, bounds=bounds, by=by)
        return self.release(statistic, epsilon=epsilon, share=share, delta=delta)

    def quantiles(
        self,
        column: str,
        lower: float | None = None,
        upper: float | None = None,
        p: float | Sequence[float] = 0.5,
        *,
        step: float | None = None,
        interval_share: float = 0.3,
        bounds: Literal["private"] | None = None,
        by: By | None = None,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release quantiles p of values, clipped to [lower, upper]; see ``Quantiles`` for step and interval_share."""
        statistic = Quantiles(column, lower, upper, p, step=step, interval_share=interval_share, bounds=bounds, by=by)
        return self.release(statistic, epsilon=epsilon, share=share, delta=delta)

    def regression(
        self,
        y: str,
        x: str,
        *,
        y_bounds: tuple[float, float],
        x_bounds: tuple[float, float],
        by: By | None = None,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release the least-squares line of y on x: its value at x = 0, and its slope."""
        statistic = Regression(y, x, y_bounds=y_bounds, x_bounds=x_bounds, by=by)
        return self.release(statistic, epsilon=epsilon, share=share, delta=delta)

    def top(
        self,
        column: str,
        k: int,
        candidates: Sequence[object],
        *,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
    ) -> Result:
        """Release the k stated candidates that most persons have, with the numbers of these persons."""
        return self.release(Top(column, k, candidates), epsilon=epsilon, share=share, delta=delta)
