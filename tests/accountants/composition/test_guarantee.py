"""Guarantees as values: gradients, vmap, compilation, JSON, equality and errors."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ALL, BUMP, DOME, SKEW, UNIT, WINDOWED, slope_by_differences, slow
from noise_registry import LAWS

import dpkernels as dpk
from accountants import Guarantee, compare, guarantee
from accountants import guarantee as call
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive


def sampled(sigma, rate, D=1.0):
    return guarantee(Additive(Gaussian(sigma)), D).subsample(rate).repeat(100)


def recycled(sigma, q):
    return guarantee(Additive(Reweighted(Gaussian(sigma), -20.0, 20.0, q)), 1.0).repeat(100)


# name: (guarantee of one parameter, where, eps and delta asked for)
PARAMETERS = {
    "sigma": (lambda v: guarantee(Additive(Gaussian(v)), 1.0).repeat(10), 2.0, 1.0, 1e-6),
    "scale": (lambda v: guarantee(Additive(Laplace(v)), 1.0).repeat(1000), 10.0, 15.0, 1e-6),
    "sensitivity": (lambda v: sampled(2.0, 0.1, v), 1.1, 1.0, 1e-6),
    "rate": (lambda v: sampled(2.0, v), 0.1, 1.0, 1e-6),
    "q": (lambda v: recycled(17.0, v), 0.35, 9.0, 1e-6),
}


@pytest.mark.quick("sigma")
@pytest.mark.parametrize("name", slow(PARAMETERS, "sensitivity", "scale", "q"))
def test_gradients_against_differences(x64, name):
    make, at, eps, delta = PARAMETERS[name]
    for read in (lambda v: make(v).delta(jnp.float64(eps)), lambda v: make(v).epsilon(jnp.float64(delta))):
        both = jax.jit(jax.value_and_grad(read))
        expected = slope_by_differences(lambda v, both=both: both(jnp.float64(v))[0], at, 1e-3 * at)
        assert float(both(jnp.float64(at))[1]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.thorough
def test_gradients_in_the_budget(x64):
    composed = guarantee(Additive(Gaussian(2.0)), 1.0).repeat(10)
    eps = composed.epsilon(1e-6)
    d_eps = float(jax.grad(lambda d: composed.epsilon(d))(jnp.float64(1e-6)))
    d_delta = float(jax.grad(lambda e: composed.delta(e))(jnp.float64(eps)))
    assert d_eps * d_delta == pytest.approx(1.0, rel=1e-7)
    h = 1e-4
    assert d_delta == pytest.approx((composed.delta(eps + h) - composed.delta(eps - h)) / (2 * h), rel=1e-6)


@pytest.mark.thorough
def test_vmap_over_parameters(x64):
    sigma = np.array([1.5, 2.0, 3.0])
    make = PARAMETERS["sigma"][0]
    found = jax.vmap(lambda s: make(s).epsilon(jnp.float64(1e-6)))(jnp.asarray(sigma))
    np.testing.assert_allclose(found, [make(float(s)).epsilon(1e-6) for s in sigma], rtol=1e-8)


def test_other_parameters_do_not_compile_again(x64):
    program = jax.jit(lambda made, eps: made.delta(eps))
    for step in (0.0, 0.25):
        made = guarantee(Additive(Gaussian(2.0 + step)), 1.0 + step).repeat(10 + int(8 * step))
        program(made, jnp.float64(1.0 + step))
    assert program._cache_size() == 1


def test_kinds_and_shapes():
    composed = guarantee(Additive(Gaussian(2.0)), 1.0).repeat(10)
    assert type(composed.delta(1.0)) is type(composed.epsilon(1e-6)) is type(composed.renyi(2.0)) is float
    delta = composed.delta(np.ones((5, 2)))
    assert delta.shape == (5, 2)
    assert delta.dtype == np.float64
    np.testing.assert_allclose(delta, composed.delta(1.0), rtol=1e-12)
    assert float(composed.delta(jnp.float32(1.0))) == pytest.approx(composed.delta(1.0), rel=1e-3)
    assert composed.epsilon(0.999) == 0.0


# Values


OF_TABLES = dpk.composite(window=BUMP, base=DOME, epsilon=1.0, width=0.9, **UNIT)


def several() -> dict[str, Guarantee]:
    laws = {name: guarantee(Additive(law), 0.7) for name, law in LAWS.items()}
    windowed = {name: guarantee(WINDOWED[name]).repeat(3) for name in ("sine-1", "uniform-quartic0.3-1")}
    mixed = guarantee(dpk.hybrid(epsilon=1.0, **SKEW)).subsample(0.1).repeat(7)
    return (
        laws
        | windowed
        | {"tables": guarantee(OF_TABLES), "humps": guarantee(ALL["humps-1-w0.7"])}
        | {"hybrid": mixed, "all": laws["gaussian"].compose(mixed, windowed["sine-1"])}
    )


@pytest.mark.quick("gaussian", "staircase-0.3")
@pytest.mark.parametrize("name", several())
def test_json_round_trip(name):
    made = several()[name]
    again = Guarantee.from_json(made.to_json())
    assert again == made
    assert hash(again) == hash(made)
    assert again.to_dict() == json.loads(made.to_json()) == made.to_dict()
    # What is equal is one to the accountants; these show it.
    if name in ("gaussian", "staircase-0.3", "recycled-merged"):
        np.testing.assert_array_equal(again.delta([0.0, 0.3]), made.delta([0.0, 0.3]))


def forged(change):
    payload = json.loads(guarantee(Additive(Gaussian(2.0)), 1.0).repeat(3).to_json())
    return change(payload) or payload


FORGED = {
    "no format": lambda f: f.pop("format") and None,
    "other format": lambda f: f.update(format=2),
    "no guarantee": lambda f: f.pop("guarantee") and None,
    "unknown type": lambda f: f["guarantee"].update(type="Popen"),
    "other type": lambda f: {"format": 1, "guarantee": f["guarantee"]["terms"]["tuple"][0]},
    "field missing": lambda f: f["guarantee"]["terms"]["tuple"][0].pop("rate") and None,
    "field too many": lambda f: f["guarantee"].update(more=1),
    "a list": lambda f: {"format": 1, "guarantee": [1, 2]},
    "a negative sigma": lambda f: f["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0]["noise"].update(sigma=-2.0),
    "a count of nothing": lambda f: f["guarantee"]["terms"]["tuple"][0].update(count=0),
    "a negative count": lambda f: f["guarantee"]["terms"]["tuple"][0].update(count=-3),
    "half a count": lambda f: f["guarantee"]["terms"]["tuple"][0].update(count=0.5),
    "a rate above 1": lambda f: f["guarantee"]["terms"]["tuple"][0].update(rate=1.5),
    "no shift": lambda f: f["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0].update(shift=0.0),
    "a shift of another unit": lambda f: f["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0].update(shift=2.0),
    "no terms": lambda f: f["guarantee"]["terms"].update(tuple=[]),
    "terms of text": lambda f: f["guarantee"]["terms"].update(tuple=["none"]),
    "another second pair": lambda f: f["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"].append(
        f["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0]
    ),
    "no pairs": lambda f: f["guarantee"]["terms"]["tuple"][0]["pairs"].update(tuple=[]),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_forms_are_refused(name):
    form = forged(lambda f: FORGED[name](f))
    with pytest.raises((ValueError, TypeError)):
        Guarantee.from_dict(form)


def test_a_type_that_is_no_name_is_shown():
    with pytest.raises(ValueError, match=r"form: \['Guarantee'\] is not of this version"):
        Guarantee.from_dict({"format": 1, "guarantee": {"type": ["Guarantee"]}})


def forged_table(change):
    payload = guarantee(OF_TABLES).to_dict()
    values = payload["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0]["window"]["shape"]["values"]["tuple"]
    values[:] = change(np.array(values)).tolist()
    return payload


@pytest.mark.parametrize(
    "change",
    [
        lambda v: 2 * v,
        lambda v: v[1:],
        lambda v: v * np.where(np.arange(len(v)) == 1, 0.5, 1.0),
        lambda v: 1.2 - v,
        lambda v: v * np.nan,
    ],
)
def test_forged_tables_are_refused(change):
    """Not of peak 1, of an even number of values, asymmetric, not falling, not numbers."""
    assert Guarantee.from_dict(forged_table(lambda v: v)) == guarantee(OF_TABLES)
    with pytest.raises((ValueError, TypeError)):
        Guarantee.from_dict(forged_table(change))


def forged_window(**changes):
    payload = guarantee(dpk.composite("sine", epsilon=2.0, width=0.5, lower=0.0, upper=1.0)).to_dict()
    payload["guarantee"]["terms"]["tuple"][0]["pairs"]["tuple"][0].update(changes)
    return payload


@pytest.mark.parametrize("change", [{"width": 2.0}, {"relative_height": 0.0}, {"apart": 1.6}, {"centre": 0.1}])
def test_forged_windows_are_refused(change):
    """Too wide, without a height, beyond the reports on both sides, and on one."""
    Guarantee.from_dict(forged_window(apart=1.4, centre=0.05))
    with pytest.raises(ValueError, match=f"^{next(iter(change))}|^apart"):
        Guarantee.from_dict(forged_window(**change))


def test_immutable_and_equal_by_value():
    one, other = (guarantee(Additive(Gaussian(2.0)), 1.0).repeat(3) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != one.repeat(2)
    assert one != one.subsample(0.5)
    assert one != guarantee(Additive(Gaussian(2.5)), 1.0).repeat(3)
    assert one != "gaussian"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.terms = ()
    before = one.to_json()
    one.repeat(2), one.compose(other), one.subsample(0.5), one.delta(1.0)
    assert one.to_json() == before


# Comparison


def test_compared_where_profiles_are_ordered():
    less, more = (guarantee(Additive(Gaussian(sigma)), 1.0).repeat(10) for sigma in (4.0, 3.9))
    found = compare(less, more, [0.0, 1.0, 2.5])
    assert found.verdict == "first"
    assert compare(more, less, [0.0, 1.0, 2.5]).verdict == "second"
    assert found.first_below.all()
    assert not found.second_below.any()
    for k, eps in enumerate(found.epsilon):
        for one, (low, high) in ((less, found.first), (more, found.second)):
            assert low[k] <= one.delta(float(eps)) <= high[k]
    assert "more private at all of these: first" in str(found)


@pytest.mark.lengthy
def test_compared_where_profiles_cross_or_are_the_same():
    """Laplace noise has no delta beyond its level, and a large one at 0."""
    gaussian, laplace = guarantee(Additive(Gaussian(2.0)), 1.0), guarantee(Additive(Laplace(1.6)), 1.0)
    assert compare(gaussian, laplace).verdict == "neither"
    assert compare(gaussian, gaussian, [0.0, 0.5]).verdict == "not certain"
    found = compare(gaussian, laplace)
    assert found.epsilon[0] == 0.0
    assert gaussian.delta(float(found.epsilon[-1])) == pytest.approx(1e-9, rel=1e-2)


@pytest.mark.parametrize("points", [[], [-0.1, 1.0], [1.0, 0.5], [math.nan], [[0.5, 1.0]]])
def test_compared_nowhere(points):
    with pytest.raises(ValueError, match=r"^epsilon: "):
        compare(MADE, MADE, points)


# Errors

MADE = guarantee(Additive(Gaussian(2.0)), 1.0).repeat(3)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda: MADE.subsample(0.0), ValueError, "^rate: "),
        (lambda: MADE.subsample(1.0 + 1e-12), ValueError, "^rate: "),
        (lambda: MADE.subsample(-0.5), ValueError, "^rate: "),
        (lambda: MADE.subsample(math.nan), ValueError, "^rate: "),
        (lambda: MADE.subsample("half"), TypeError, "^rate: "),
        (lambda: MADE.subsample(0.5).subsample(0.5), ValueError, "^rate: .*samples already"),
        (lambda: MADE.compose(MADE.subsample(0.5)).subsample(0.5), ValueError, "^rate: .*samples already"),
        (lambda: MADE.delta(-1e-9), ValueError, "^epsilon: "),
        (lambda: MADE.delta([0.5, math.nan]), ValueError, "^epsilon: "),
        (lambda: MADE.delta("much"), TypeError, "^epsilon: "),
        (lambda: MADE.epsilon(0.0), ValueError, "^delta: "),
        (lambda: MADE.epsilon(1.0), ValueError, "^delta: "),
        (lambda: MADE.epsilon([1e-5, 2.0]), ValueError, "^delta: "),
        (lambda: MADE.repeat(0), ValueError, "^count: "),
        (lambda: MADE.repeat(-1), ValueError, "^count: "),
        (lambda: MADE.repeat(2.0), TypeError, "^count: "),
        (lambda: MADE.repeat(True), TypeError, "^count: "),
        (lambda: MADE.renyi(1.0), ValueError, "^order: "),
        (lambda: MADE.trade_off(1.5), ValueError, "^alpha: "),
        (lambda: call("gaussian"), TypeError, "^mechanism: str has no known"),
        (lambda: call(Gaussian(1.0), 1.0), TypeError, "^mechanism: Gaussian has no known"),
        (lambda: call(Additive(Gaussian(1.0))), ValueError, "^sensitivity: None"),
        (lambda: call(WINDOWED["sine-1"], 1.0), ValueError, "^sensitivity: "),
    ],
)
def test_bad_arguments(wrong, kind, message):
    with pytest.raises(kind, match=message):
        wrong()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("noise", [Gaussian, Laplace, lambda scale: Reweighted(Gaussian(scale), -1.0, 3.0, 0.5)])
def test_a_batch_of_mechanisms_is_composed(noise, count):
    """NumPy's messages were about broadcasting, or the truth value of an array."""
    releases = guarantee(Additive(noise(np.array([1.0, 2.0]))), 1.0).repeat(count)
    first, second = (guarantee(Additive(noise(scale)), 1.0) for scale in (1.0, 2.0))
    composed = first.repeat(count).compose(second.repeat(count))
    assert releases.unjoined == composed
    assert releases.estimate_delta(0.5) == pytest.approx(composed.estimate_delta(0.5), rel=1e-9)
    assert releases.renyi(2.0) == composed.renyi(2.0)
    assert releases.delta(0.5) == pytest.approx(composed.delta(0.5), rel=1e-9)


@pytest.mark.thorough
def test_guarantees_of_a_pair_of_laws():
    """As the docstring of ``guarantee`` promises."""
    from accountants.dominating_pairs.discrete import Atoms

    composed = guarantee(Atoms(np.array([0.6, 0.4]), np.array([0.4, 0.6]))).repeat(2)
    assert composed.delta(0.0) == pytest.approx(0.36 - 0.16, rel=1e-6)


SAVED = (
    '{"format": 1, "guarantee": {"type": "Guarantee", "terms": {"tuple": [{"type": "Term", "pairs": {"tuple": ['
    '{"type": "Shifted", "noise": {"type": "Gaussian", "sigma": 1.0}, "shift": 1.0, "periods": 256}]}, "count": 10, '
    '"rate": 0.01, "adjacency": "add_remove"}, {"type": "Term", "pairs": {"tuple": [{"type": "Placed", "window": '
    '{"type": "Uniform"}, "base": {"type": "Constant"}, "width": 0.9, "relative_height": 0.6, "apart": 1.1, '
    '"centre": 0.0}]}, "count": 20, "rate": null, "adjacency": "add_remove"}]}}}'
)


def test_saved_guarantees_are_read_and_written_as_before():
    made = Guarantee.from_json(SAVED)
    assert [term.count for term in made.terms] == [10, 20]
    assert made.to_json() == SAVED


def test_a_guarantee_is_pickled_after_it_has_been_used():
    made = call(dpk.gaussian(sigma=1.0), 1.0).subsample(0.1).repeat(3)
    before = made.epsilon(1e-3)
    assert pickle.loads(pickle.dumps(made)) == made
    assert pickle.loads(pickle.dumps(made)).epsilon(1e-3) == before


def test_delta_of_tiny_samples_at_an_infinite_epsilon():
    composed = guarantee(dpk.laplace(epsilon=1.0, sensitivity=1.0)).subsample(0.001).repeat(3)
    assert composed.delta(np.inf) == 0.0
