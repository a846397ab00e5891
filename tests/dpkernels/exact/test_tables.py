"""Integer tables: what they say of their rows against sums over the rows, and alias columns against the weights."""

import json
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from exact_registry import SMALL, exact, small_table

from dpkernels.decimals import rational
from dpkernels.exact.alias import alias_columns
from dpkernels.exact.bounded.windows import WindowTable
from dpkernels.exact.certificate import exp_lower_bound

RNG = np.random.default_rng(1)


def random_table(codes, width, bits=16, lower=-0.3, upper=1.1):
    """Any weights at all: what a table says of its rows does not depend on privacy."""
    base, window = (RNG.integers(0, 50, n).astype(np.uint64) for n in (codes, width))
    window[0] += np.uint64(1)
    base[0] += np.uint64((1 << bits) - int(base.sum()) - int(window.sum()))
    return WindowTable(base, window, bits, lower, upper)


TABLES = [random_table(9, 1), random_table(9, 4), random_table(8, 7), random_table(40, 13)]
TABLES += [small_table(name, 0.5) for name in ("duchi", "piecewise", "own", "wide")]


def rows_of(table):
    """Every row as a list of Python integers, from the definition."""
    base, window = table.base.tolist(), table.window.tolist()
    n, w = len(base), len(window)
    return [[base[j] + (window[j - s] if 0 <= j - s < w else 0) for j in range(n)] for s in range(n - w + 1)]


def mean_of(row, values):
    return sum(weight * value for weight, value in zip(row, values, strict=True)) / Fraction(sum(row))


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_the_definition(table):
    rows = rows_of(table)
    assert table.last_row == len(rows) - 1
    assert [table.row(s).tolist() for s in range(len(rows))] == rows
    assert {sum(row) for row in rows} == {table.total} == {1 << table.bits}


@pytest.mark.parametrize("table", TABLES)
def test_codes_are_equal_steps_about_the_middle(table):
    values = [table.value(j) for j in range(table.codes)]
    assert {b - a for a, b in pairwise(values)} == {table.report_step}
    assert values[0] + values[-1] == rational(table.lower) + rational(table.upper)


@pytest.mark.parametrize("table", TABLES)
def test_row_means_and_variances_are_the_sums(table):
    values = [table.value(j) for j in range(table.codes)]
    for s, row in enumerate(rows_of(table)):
        mean = mean_of(row, values)
        assert table.row_mean(s) == mean
        assert table.row_variance(s) == mean_of(row, [(value - mean) ** 2 for value in values])


@pytest.mark.parametrize("table", TABLES)
def test_neighbouring_row_means_are_equal_steps(table):
    width = rational(table.upper) - rational(table.lower)
    means = [table.row_mean(s) for s in range(table.last_row + 1)]
    assert {b - a for a, b in pairwise(means)} == {width / table.last_row}


@pytest.mark.parametrize(("name", "epsilon"), SMALL)
def test_variance_terms_bound_the_variance_of_every_input(name, epsilon):
    """An input a fraction f of the way between two rows reports the mixture of these."""
    table = small_table(name, epsilon)
    A, c, rho = table.variance_terms
    for s in {0, table.last_row // 2, table.last_row - 1}:
        for f in (Fraction(0), Fraction(1, 3), Fraction(1, 2)):
            mean = (1 - f) * table.row_mean(s) + f * table.row_mean(s + 1)
            second = [table.row_variance(row) + table.row_mean(row) ** 2 for row in (s, s + 1)]
            rounding = (1 - f) * second[0] + f * second[1] - mean**2 - A - c * (mean - table.middle) ** 2
            assert 0 <= rounding <= rho
            assert rounding == 4 * f * (1 - f) * rho


@pytest.mark.parametrize("table", TABLES)
def test_extremes_are_those_of_the_rows(table):
    rows = rows_of(table)
    high, low = table.extremes()
    assert high.tolist() == [max(column) for column in zip(*rows, strict=True)]
    assert low.tolist() == [min(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("table", [*TABLES, exact("own", 8.0).table, exact("piecewise", 8.0).table])
def test_a_table_survives_json(table):
    again = WindowTable.from_dict(json.loads(json.dumps(table.to_dict())))
    for name in ("base", "window"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name), strict=True)
    assert (again.bits, again.lower, again.upper) == (table.bits, table.lower, table.upper)


@pytest.mark.parametrize("number", [0.1, -1e-17, 1 / 3, 5e-324, 1.7e308])
def test_a_float_is_the_decimal_it_prints_as(number):
    assert rational(number) == Fraction(str(number))
    assert float(rational(number)) == number


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.3, 1 / 3, 0.61, 1.0, np.pi, 7.7, 12.0, 19.99, 20.0])
def test_the_bound_of_the_exponential_is_below_and_close(epsilon):
    bound = exp_lower_bound(epsilon)
    with mpmath.workdps(90):
        truth = mpmath.exp(mpmath.mpf(repr(float(epsilon))))
        relative = 1 - mpmath.mpf(bound.numerator) / bound.denominator / truth
        assert 0 <= relative < mpmath.mpf(10) ** -30


def outcome_weights(columns, bits):
    """The weight of every outcome, by summing thresholds and what is above them."""
    capacity = 1 << (bits - columns.log_columns)
    weights = [0] * (1 << columns.log_columns)
    for column, (threshold, alias) in enumerate(zip(columns.threshold.tolist(), columns.alias.tolist(), strict=True)):
        assert 0 <= threshold <= capacity
        weights[column] += threshold
        weights[alias] += capacity - threshold
    return weights


def random_weights(kind, count, bits):
    """Non-negative integers of the kind that sum to 2^bits."""
    total = 1 << bits
    match kind:
        case "even":
            parts = np.diff([0, *sorted(RNG.integers(0, total, count - 1, np.uint64).tolist()), total])
        case "zeros":
            parts = np.zeros(count, object)
            parts[RNG.integers(0, count, 3)] = total // 8
        case "powers of two":
            parts = np.array([1 << int(power) for power in RNG.integers(0, bits - 8, count)], object)
        case "one heavy":
            parts = np.ones(count, object)
    weights = [int(part) for part in parts]
    weights[count // 3] += total - sum(weights)
    return weights


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("kind", ["even", "zeros", "powers of two", "one heavy"])
@pytest.mark.parametrize("count", [3, 16, 17, 100])
def test_alias_columns_carry_exactly_the_weights(kind, count, bits):
    for _ in range(5):
        weights = random_weights(kind, count, bits)
        base, window = (np.array(part, np.uint64) for part in (weights[:-1], weights[-1:]))
        columns = alias_columns(WindowTable(base, window, bits, 0.0, 1.0).outcomes, bits)
        assert columns.threshold.dtype == f"uint{bits}"
        spare = [0] * ((1 << columns.log_columns) - count)
        assert outcome_weights(columns, bits) == weights + spare


@pytest.mark.parametrize(("name", "epsilon"), [("own", 1.0), ("sine-constant", 8.0), ("triangle-quartic", 0.1)])
def test_alias_columns_of_a_release_carry_its_weights(name, epsilon):
    table = exact(name, epsilon).table
    weights = table.base.tolist() + table.window.tolist()
    assert outcome_weights(alias_columns(table.outcomes, table.bits), table.bits)[: len(weights)] == weights
