"""Statistics of data that a data holder has, within one budget, with noise, intervals and reports derived from them."""

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
