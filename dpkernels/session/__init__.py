"""Sessions: statistics of data that you hold, with noise and intervals, within one privacy budget."""

from dpkernels.session.counts import Count, Crosstab, Histogram, Top
from dpkernels.session.moments import Mean, Regression, Sum, Variance
from dpkernels.session.quantiles import Quantiles
from dpkernels.session.results import Result
from dpkernels.session.session import DataWarning, Plan, Session
from dpkernels.session.statistic import Statistic

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
