"""Audits: what reports alone prove of the budget stays below it and comes close; planted faults are caught.

All keys are fixed, so no run can fail by chance. The bound itself is wrong with probability at most ``ALARM``.
"""

import dataclasses

import numpy as np
import pytest
from exact_registry import exact, mechanism
from key_helpers import numbered_key
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.bounded.window_construction import windowed_table
from dpkernels.exact.bounded.windows import ExactWindow, WindowCertificate

SAMPLES = 4_000_000
BINS = 200
ALARM = 1e-6
SECRET = bytes(range(1, 33))


def reports(made, end, number, **how):
    """Reports of one end of the interval, with the key of this number."""
    x = np.full(SAMPLES, getattr(made, "mechanism", made).input_interval[end])
    key = dpk.simulation_key(number) if how else numbered_key(SECRET, number)
    return dpk.perturb(x, made, key=key, **how)


def histogram(made, sample):
    """How many reports are in each of equal bins over everything that can be reported."""
    low, high = getattr(made, "mechanism", made).output_interval
    slack = 0.05 * (high - low)
    return np.histogram(sample, BINS, (low - slack, high + slack))[0]


def likely_bins(first, second):
    """The run of bins that speaks most for the first input: of all runs, the one with the best bound."""
    sums = [np.concatenate([[0], hits.cumsum()]) for hits in (first, second)]
    start, stop = np.triu_indices(BINS + 1, 1)
    bounds = budget_bound(*(together[stop] - together[start] for together in sums), SAMPLES)
    best = int(np.argmax(bounds))
    return slice(start[best], stop[best])


def budget_bound(first, second, n):
    """Clopper-Pearson: log(lower bound of the first probability / upper bound of the second)."""
    low = stats.beta.ppf(ALARM / 2, np.maximum(first, 1e-9), n - first + 1)
    high = stats.beta.ppf(1 - ALARM / 2, second + 1, np.maximum(n - second, 1e-9))
    return np.log(low / high)


def audited_budget(made, **how):
    """A lower bound of the budget from fresh reports, on the event that other reports chose."""
    chosen = likely_bins(*(histogram(made, reports(made, end, end, **how)) for end in (0, 1)))
    first, second = (histogram(made, reports(made, end, 2 + end, **how))[chosen].sum() for end in (0, 1))
    return budget_bound(first, second, SAMPLES)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-1.0-0.99", "duchi-1.0-0.99", "hybrid-1.0-0.99")
@pytest.mark.parametrize(
    ("name", "epsilon", "found"),
    [
        ("duchi", 1.0, 0.99),
        ("piecewise", 0.5, 0.985),
        ("piecewise", 1.0, 0.99),
        ("piecewise", 2.0, 0.99),
        ("piecewise-wang2019", 1.0, 0.99),
        ("uniform-quartic", 1.0, 0.9),
        ("sine-constant", 1.0, 0.95),
        ("hybrid", 1.0, 0.99),
    ],
)
def test_an_audit_stays_below_the_budget_and_comes_close(name, epsilon, found):
    proved = audited_budget(exact(name, epsilon))
    assert found * epsilon <= proved <= epsilon


def too_signalling(made, factor):
    """The same mechanism with its ratio of window to base height raised; ``certify`` refuses it."""
    return dataclasses.replace(made, relative_height=factor * made.relative_height)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["piecewise", "piecewise-eta3"])
def test_an_audit_catches_a_window_10_percent_too_high(name):
    faulty = too_signalling(mechanism(name, 1.0), 1.1)
    with pytest.raises(dpk.CertificateError):
        dpk.exact_sampler(faulty)
    assert audited_budget(faulty, exact=False) > 1.0


def test_an_audit_catches_a_table_of_a_larger_budget():
    """An exact form with a certificate for 1.05, released as if it were for 1."""
    made = mechanism("piecewise", 1.0)
    leaky = windowed_table(dpk.piecewise(epsilon=1.05, lower=made.lower, upper=made.upper))
    assert audited_budget(ExactWindow(made, WindowCertificate.of(leaky, 1.05))) > 1.0
