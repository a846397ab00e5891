"""One budget for queries of which some get Laplace and the others Gaussian noise: certified, and better than either."""

from __future__ import annotations

import numpy as np
import pytest

import dpkernels as dpk
from accountants import guarantee, tune
from accountants.calibrate.composed import precise_scale_factor

HEAVY = np.array([3, 7])
SENSITIVITIES = np.linspace(0.5, 2.0, 12)
WEIGHTS = np.where(np.isin(np.arange(12), HEAVY), 400.0, 1.0) / SENSITIVITIES**2
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "weights": WEIGHTS}


@pytest.mark.lengthy
def test_heavy_queries_get_laplace_noise_and_all_meet_the_budget():
    mixed = tune.allocate_mixed(SENSITIVITIES, **BUDGET)
    np.testing.assert_array_equal(mixed.is_laplace.nonzero()[0], HEAVY)
    np.testing.assert_array_equal(mixed.laplace.sensitivity, SENSITIVITIES[HEAVY])
    np.testing.assert_array_equal(mixed.gaussian.sensitivity, np.delete(SENSITIVITIES, HEAVY))
    variances = np.empty(12)
    variances[mixed.is_laplace] = 2 * mixed.laplace.noise.scale**2
    variances[~mixed.is_laplace] = mixed.gaussian.noise.sigma**2
    assert mixed.value == pytest.approx(float(WEIGHTS @ variances), rel=1e-12)
    together = guarantee(mixed.laplace).compose(guarantee(mixed.gaussian))
    assert 0.999 < together.epsilon(1e-6) <= mixed.epsilon * (1 + 1e-6)
    assert mixed.epsilon <= 1.0
    alone = tune.allocate(dpk.Additive(dpk.Gaussian(np.ones(12)), SENSITIVITIES), **BUDGET)
    assert mixed.value < 0.8 * alone.value
    # More noise for the Gaussian queries and less for the others on the same budget gains nothing.
    for factor in (0.95, 1.05):
        laplace = dpk.Additive(dpk.Laplace(mixed.laplace.noise.scale * factor), mixed.laplace.sensitivity)
        moved = precise_scale_factor(guarantee(laplace).compose(guarantee(mixed.gaussian)), 1.0, 1e-6)
        assert moved**2 * WEIGHTS @ np.where(mixed.is_laplace, variances * factor**2, variances) > 0.9999 * mixed.value
    for part in (mixed.laplace, mixed.gaussian):
        assert dpk.perturb(np.zeros(len(part)), part).shape == (len(part),)


@pytest.mark.thorough
def test_queries_that_matter_alike_get_one_kind_of_noise():
    """Many of them Gaussian, few of them Laplace."""
    many = tune.allocate_mixed(np.ones(40), epsilon=1.0, delta=1e-6)
    gaussian = tune.allocate(dpk.gaussian(sigma=1.0, sensitivity=np.ones(40)), epsilon=1.0, delta=1e-6)
    assert not many.is_laplace.any()
    assert many.laplace is None
    assert many.value == gaussian.value
    few = tune.allocate_mixed(np.ones(3), epsilon=1.0, delta=1e-6)
    assert few.is_laplace.all()
    assert few.gaussian is None
    assert few.value == pytest.approx(3 * 18.0, rel=1e-4)


@pytest.mark.parametrize(
    ("sensitivities", "arguments", "message"),
    [
        (np.ones((2, 2)), {}, "sensitivities: have shape"),
        ([], {}, "sensitivities: have shape"),
        ([1.0, -1.0], {}, "sensitivity: entry 1 is -1"),
        ([1.0, 1.0], {"weights": [1.0, 1.0, 1.0]}, "weights: have shape"),
        ([1.0, 1.0], {"weights": [1.0, 0.0]}, "weights: entry 1 is 0"),
        ([1.0], {"delta": 0.0}, "delta"),
        ([1.0], {"epsilon": 0.0}, "epsilon"),
    ],
)
def test_wrong_queries_are_refused(sensitivities, arguments, message):
    with pytest.raises(ValueError, match=message):
        tune.allocate_mixed(sensitivities, **{"epsilon": 1.0, "delta": 1e-6, **arguments})
