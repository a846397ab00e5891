"""What all batch schemes share: files, pickles, derivatives, compositions and risks."""

from __future__ import annotations

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import guarantee


def gaussian(sigma):
    return guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)


def laplace(scale):
    return guarantee(dpk.Additive(dpk.Laplace(scale)), 1.0)


SCHEMES = {
    "allocation": lambda step: step.random_allocation(20),
    "several times": lambda step: step.random_allocation(20, 3),
    "fixed size": lambda step: step.sample_fixed(5, 50),
    "capacity": lambda step: step.subsample(0.1, capacity=9, examples=50),
    "groups": lambda step: step.subsample(0.1).for_groups(3),
    "groups of all": lambda step: step.for_groups(3),
}
ONE = {"bins": lambda step: step.balls_in_bins(20, 3), "shuffled": lambda step: step.shuffled_batches(20)}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", [*SCHEMES, *ONE])
def test_files_and_pickles(name):
    release = (SCHEMES | ONE)[name](gaussian(1.2)).repeat(2)
    restored = accountants.Guarantee.from_dict(json.loads(json.dumps(release.to_dict())))
    assert restored == release
    assert restored.neighbouring == release.neighbouring
    assert restored.bracket(epsilon=1.0) == release.bracket(epsilon=1.0)
    assert pickle.loads(pickle.dumps(release)) == release


def test_class_names_in_files():
    """Files keep the name of the pair with a capacity, which differs from that in the code."""
    assert '"type": "Truncated", "one":' in json.dumps(SCHEMES["capacity"](gaussian(1.2)).to_dict())


@pytest.mark.lengthy
@pytest.mark.parametrize("name", SCHEMES)
def test_composed_with_other_noise(name):
    """With a release that costs nearly nothing it is nearly alone; with another one it costs more."""
    release = SCHEMES[name](laplace(1.0))
    low, high = release.repeat(2).bracket(epsilon=0.5)
    free = release.repeat(2).compose(gaussian(1e5)).bracket(epsilon=0.5)
    assert free[0] == pytest.approx(low, rel=2e-3, abs=1e-6)
    assert free[1] == pytest.approx(high, rel=2e-3)
    more = release.repeat(2).compose(gaussian(2.0))
    assert more.bracket(epsilon=0.5)[1] > high
    assert more.estimate_delta(0.5) <= more.bracket(epsilon=0.5)[1] * (1 + 1e-9)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", SCHEMES)
def test_values_are_upper_ends(name):
    release = SCHEMES[name](gaussian(1.2))
    assert release.epsilon(1e-5) == release.bracket(delta=1e-5)[1]
    assert release.delta(0.5) == release.bracket(epsilon=0.5)[1]
    low, high = release.bracket(alpha=0.1)
    assert 0 <= low <= high <= 0.9
    assert release.delta(release.epsilon(1e-5)) <= 1e-5 * (1 + 1e-9)


@pytest.mark.lengthy
@pytest.mark.quick("groups-1", "bins-1")
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("name", [*SCHEMES, "bins", "shuffled"])
def test_derivatives_in_the_noise(name, count):
    """Derivatives of JAX numbers are those of plain estimates by differences."""
    if name == "several times" and count == 1:
        pytest.skip("one allocation to several steps is several releases")

    def epsilon(sigma):
        return (SCHEMES | ONE)[name](gaussian(sigma)).repeat(count).estimate_epsilon(1e-5)

    with jax.enable_x64(True):
        slope = float(jax.grad(epsilon)(jnp.asarray(1.2)))
    h = 4e-3
    by_differences = (epsilon(1.2 + h) - epsilon(1.2 - h)) / (2 * h)
    assert slope == pytest.approx(by_differences, rel=1e-2)


@pytest.mark.lengthy
def test_derivatives_in_the_scheme():
    with jax.enable_x64(True):
        by_steps = float(
            jax.grad(lambda t: gaussian(1.0).random_allocation(t).estimate_epsilon(1e-5))(jnp.asarray(50.0))
        )
        by_rate = float(
            jax.grad(lambda r: gaussian(1.0).subsample(r).for_groups(3).repeat(5).estimate_delta(1.0))(jnp.asarray(0.1))
        )
        by_batch = float(
            jax.grad(lambda m: gaussian(1.0).sample_fixed(m, 50).repeat(5).estimate_delta(1.0))(jnp.asarray(5.0))
        )
    steps = [gaussian(1.0).random_allocation(t).estimate_epsilon(1e-5) for t in (49, 51)]
    rates = [gaussian(1.0).subsample(r).for_groups(3).repeat(5).estimate_delta(1.0) for r in (0.0999, 0.1001)]
    batches = [gaussian(1.0).sample_fixed(m, 50).repeat(5).estimate_delta(1.0) for m in (4.99, 5.01)]
    assert by_steps == pytest.approx((steps[1] - steps[0]) / 2, rel=1e-2)
    assert by_rate == pytest.approx((rates[1] - rates[0]) / 2e-4, rel=1e-3)
    assert by_batch == pytest.approx((batches[1] - batches[0]) / 0.02, rel=1e-3)


def test_one_direction_is_not_enough():
    """An added record of Laplace noise costs more than a removed one, and the guarantee is the larger of both."""
    release = laplace(1.0).random_allocation(100)
    pair = release.numeric.terms[0].pairs[0]
    added, removed = (float(one.hockey_stick()(np.float64(0.35))) for one in (pair.mirror(), pair))
    assert added > 1.5 * removed
    assert release.delta(0.35) == pytest.approx(added, rel=1e-9)
    assert release.bracket(delta=1e-6)[1] == pytest.approx(0.4088, abs=1e-4)


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_know_their_neighbours(name):
    """Samples of a scheme, and compositions of schemes with other neighbours, are refused."""
    release = SCHEMES[name](gaussian(1.0))
    if name == "groups of all":
        assert release.neighbouring == gaussian(1.0).neighbouring
        return
    other = gaussian(1.0).shuffled_batches(5)
    for change in (
        lambda: release.subsample(0.5),
        lambda: release.sample_fixed(1, 5),
        lambda: release.random_allocation(5),
        lambda: release.for_groups(2),
        lambda: release.compose(other),
    ):
        with pytest.raises(ValueError, match=r"samples|records|report"):
            change()


@pytest.mark.parametrize("name", ["allocation", "several times", "capacity", "groups"])
@pytest.mark.parametrize("count", [1, 2])
def test_no_test_of_level_0_finds_gaussian_noise(name, count):
    """Masses beyond the last loss of an upper bound are no part of the pair, whose densities overlap everywhere."""
    made = SCHEMES[name](gaussian(1.0)).repeat(count)
    assert made.bracket(epsilon=np.inf)[0] == made.bracket(false_positive_rate=0.0)[0] == 0.0
    assert made.bracket(alpha=0.0)[1] == 1.0


@pytest.mark.parametrize("step", [gaussian(1.0).repeat(3), gaussian(1.0).compose(laplace(1.0))])
def test_a_step_of_several_reports_is_not_taken_for_several_allocations(step):
    """Reports of one step share its records: their allocation costs more than that of each report by itself."""
    for scheme in (
        lambda: step.random_allocation(20),
        lambda: step.random_allocation(20, 3),
        lambda: step.balls_in_bins(20, 3),
        lambda: step.shuffled_batches(20),
    ):
        with pytest.raises(ValueError, match="one report"):
            scheme()


@pytest.mark.parametrize("name", ["allocation", "several times"])
def test_a_file_with_a_lower_bound_is_refused(name):
    form = SCHEMES[name](gaussian(1.0)).to_dict()
    pair = form["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0]
    assert pair["is_lower"] is False
    pair["is_lower"] = True
    with pytest.raises(ValueError, match="is_lower: True"):
        accountants.Guarantee.from_dict(form)
