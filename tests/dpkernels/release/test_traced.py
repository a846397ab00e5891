"""Exact reports inside programs of JAX: perturb's bits, whatever the transformation; bad inputs do no harm there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import dpkernels as dpk
from dpkernels.release.inputs import Bounds

KEY = dpk.key_from_bytes(bytes(range(9, 41)))
SPAN = {"epsilon": 1.0, "lower": -1.0, "upper": 2.0}
MADE = {
    "piecewise": dpk.piecewise(**SPAN),
    "sine": dpk.composite("sine", "quartic", **SPAN),
    "hybrid": dpk.hybrid(**SPAN),
    "duchi": dpk.duchi(**SPAN),
    "central": dpk.central_piecewise(**SPAN, sensitivity=1.0),
    "laplace": dpk.laplace(epsilon=1.0),
}
X = np.linspace(-1, 2, 1001, dtype=np.float32)


def traced(name):
    sampler = dpk.exact_sampler(MADE[name])
    return lambda key, x: dpk.perturb_traced(key, sampler, x)


@pytest.mark.quick("laplace-float64", "duchi-int32")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in MADE), ("laplace", "float64"), ("piecewise", "float16"), ("duchi", "int32")],
)
def test_jitted_reports_are_perturbs(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(X.astype(dtype)).reshape(7, 143)
        found = jax.jit(traced(name))(KEY, x)
        np.testing.assert_array_equal(found, dpk.perturb(x, MADE[name], key=KEY), strict=True)


@pytest.mark.thorough
def test_keys_are_mapped_over():
    keys, x = jax.random.split(KEY, 3), np.stack([X, -X / 2, X * 0])
    found = jax.jit(jax.vmap(traced("piecewise")))(keys, x)
    for key, row, reports in zip(keys, x, found, strict=True):
        np.testing.assert_array_equal(reports, dpk.perturb(row, MADE["piecewise"], key=key))


@pytest.mark.thorough
def test_steps_of_a_scan_have_keys_of_their_own():
    step = traced("laplace")
    _, found = jax.jit(
        lambda key: jax.lax.scan(lambda c, i: (c, step(jax.random.fold_in(key, i), X)), 0, jnp.arange(3))
    )(KEY)
    for at, reports in enumerate(found):
        own = jax.random.fold_in(KEY, jnp.uint32(at))
        np.testing.assert_array_equal(reports, dpk.perturb(X, MADE["laplace"], key=own))


@pytest.mark.quick("True")
@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_a_shard_map(check_vma):
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("values",)), PartitionSpec("values")
    inside = jax.shard_map(
        traced("sine"), mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=spec, check_vma=check_vma
    )
    np.testing.assert_array_equal(jax.jit(inside)(KEY, X), dpk.perturb(X, MADE["sine"], key=KEY))


@pytest.mark.quick("laplace")
@pytest.mark.parametrize("name", ["piecewise", "central", "laplace"])
def test_bad_inputs_are_clipped(name):
    made = MADE[name]
    low, high, _ = Bounds.of(dpk.exact_sampler(made), clip=True).valid_range(X.dtype, X.dtype)
    bad, read = np.float32([np.nan, np.inf, -np.inf, 7e30, -7e30]), [low, high, low, min(high, 7e30), max(low, -7e30)]
    x, clipped = X.copy(), X.copy()
    x[10:15], clipped[10:15] = bad, np.float32(read)
    np.testing.assert_array_equal(jax.jit(traced(name))(KEY, x), dpk.perturb(clipped, made, key=KEY))


@pytest.mark.lengthy
def test_what_cannot_be_released_is_refused():
    form = dpk.exact_sampler(MADE["piecewise"])
    for key, sampler, error in (
        (KEY, MADE["piecewise"], TypeError),
        (jax.random.key(0), form, TypeError),
        (jax.random.split(KEY), form, TypeError),
        (KEY, dpk.exact_sampler(dpk.multivariate(dimensions=2, **SPAN)), TypeError),
    ):
        with pytest.raises(error):
            jax.jit(lambda key, x, sampler=sampler: dpk.perturb_traced(key, sampler, x))(key, X)
    for x, message in ((np.zeros(0), "empty"), ([0.0, 2.5], "row 1 is 2.5, outside"), ([np.nan], "row 0 is nan")):
        with pytest.raises(ValueError, match=message):
            dpk.perturb_traced(KEY, form, jnp.asarray(x))
    np.testing.assert_array_equal(dpk.perturb_traced(KEY, form, X), dpk.perturb(X, MADE["piecewise"], key=KEY))


@pytest.mark.lengthy
def test_one_key_for_several_rows_is_refused_under_vmap():
    """They would have the same noise, and their differences none."""
    sampler, keys = (
        dpk.exact_sampler(dpk.laplace(epsilon=1.0)),
        jax.random.split(dpk.key_from_bytes(bytes(range(32))), 3),
    )
    x = jnp.zeros((3, 4))
    alone = jax.jit(jax.vmap(lambda key, row: dpk.perturb_traced(key, sampler, row)))(keys, x)
    assert len(np.unique(np.asarray(alone)[:, 0])) == 3
    with pytest.raises(ValueError, match="one for 3 rows under vmap"):
        jax.vmap(lambda row: dpk.perturb_traced(keys[0], sampler, row))(x)
    with pytest.raises(ValueError, match="under vmap"):
        jax.vmap(lambda row: jax.vmap(lambda key, one: dpk.perturb_traced(key, sampler, one))(keys, row))(x[None])
