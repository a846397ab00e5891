"""Sessions: statistics of data that you hold, with noise and intervals, within one privacy budget."""

from dpkernels.session.results import Result
from dpkernels.session.session import DataWarning, Plan, Session
from dpkernels.session.statistics import (
    Count,
    Crosstab,
    Histogram,
    Mean,
    Quantiles,
    Regression,
    Statistic,
    Sum,
    Top,
    Variance,
)

__all__ = [
    "Count",
    "Crosstab",
    "DataWarning",
    "Histogram",
    "Mean",
    "Plan",
    "Quantiles",
    "Regression",
    "Result",
    "Session",
    "Statistic",
    "Sum",
    "Top",
    "Variance",
]
