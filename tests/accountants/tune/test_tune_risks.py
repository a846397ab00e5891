"""Risks as constraints of tuning: what is released meets the limit by the rigorous bound, and the limit binds."""

import math

import numpy as np
import pytest

from accountants import guarantee, tune

UNIT = {"lower": 0.0, "upper": 1.0}


def ten(report):
    return report.repeat(10)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "family",
    [tune.piecewise(epsilon=1.0, **UNIT), tune.composite("triangle", "quartic", epsilon=1.0, **UNIT)],
    ids=["one free number", "two"],
)
def test_an_advantage_is_met_by_the_bound(family):
    limit = tune.Constraint(tune.advantage(), at_most=0.3)
    free, result = tune.best(family, tune.worst_variance), tune.best(family, tune.worst_variance, subject_to=[limit])
    assert guarantee(free.mechanism).advantage() > 0.3 >= guarantee(result.mechanism).advantage() > 0.2999
    assert result.values[1] == pytest.approx(guarantee(result.mechanism).advantage(), abs=1e-12)
    assert result.value > free.value


@pytest.mark.lengthy
def test_a_true_positive_rate_of_several_reports_is_met_by_the_bound():
    family = tune.piecewise(epsilon=1.0, **UNIT)
    free = tune.best(family, tune.worst_variance)
    risk = tune.true_positive_rate(0.01, releases=ten)
    most = 0.9 * ten(guarantee(free.mechanism)).true_positive_rate(0.01)
    result = tune.best(family, tune.worst_variance, subject_to=[tune.Constraint(risk, at_most=most)])
    assert 0.99 * most < ten(guarantee(result.mechanism)).true_positive_rate(0.01) <= most


def test_the_bound_certifies_what_an_estimate_searched():
    """A bound of 0.31 where the estimate is 0.3: the planted fault, a limit that estimates alone meet."""
    objective = tune.Objective(lambda mechanism: 0.3, "constant", power=0, bound=lambda mechanism: 0.31)
    with pytest.raises(ValueError, match=r"subject_to: constant at most 0\.28; no member"):
        tune.best(
            tune.piecewise(epsilon=1.0, **UNIT),
            tune.worst_variance,
            subject_to=[tune.Constraint(objective, at_most=0.3)],
        )


def test_a_pure_budget_bounds_the_true_positive_rate_and_errors_name_the_argument():
    result = tune.best(tune.duchi(epsilon=1.0, **UNIT), tune.true_positive_rate(0.1))
    assert result.value == pytest.approx(0.1 * math.e, rel=1e-9)
    for rate in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"^false_positive_rate: "):
            tune.true_positive_rate(rate)
