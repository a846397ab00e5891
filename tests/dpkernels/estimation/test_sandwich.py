"""Standard errors of relations between columns, in tiny tables, against the formulas of textbooks."""

import numpy as np
import pytest

import dpkernels as dpk


@pytest.mark.parametrize("n", [4, 6, 9])
def test_errors_of_least_squares_are_the_sandwich_with_its_correction_for_degrees_of_freedom(n):
    """HC1 of MacKinnon and White 1985, of columns without noise: n/(n - d) times the sandwich."""
    a, b = np.linspace(-4.0, 6.0, n), 3.0 + 5.0 * (-1.0) ** np.arange(n)
    y = np.random.default_rng(n).normal(size=n)
    fit = dpk.least_squares(y, [a, b])
    X = np.column_stack([np.ones(n), a, b])
    bread = np.linalg.inv(X.T @ X)
    beta = bread @ X.T @ y
    residuals = y - X @ beta
    covariance = n / (n - 3) * bread @ (X * residuals[:, None] ** 2).T @ X @ bread
    assert [fit.intercept.value, *fit.slopes.value] == pytest.approx(beta.tolist(), rel=1e-9)
    assert [fit.intercept.error, *fit.slopes.error] == pytest.approx(np.sqrt(np.diag(covariance)).tolist(), rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_covariance_of_a_few_rows_is_unbiased(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    moment, products = dpk.covariance(a, b), (a - a.mean()) * (b - b.mean())
    assert moment.value == pytest.approx(np.cov(a, b)[0, 1], rel=1e-12)
    assert moment.error == pytest.approx(products.std(ddof=1) / np.sqrt(n), rel=1e-12)
