"""Functions of many values, some at a time: the same values as one by one, whatever there are many of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpkernels.programs import vmap_in_batches


def steps(x, y):
    """How often a value is halved until it is below y, and what is left; of pytrees."""
    state = jnp.zeros_like(x["at"]), x["at"]
    return jax.lax.while_loop(lambda s: s[1] > y, lambda s: (s[0] + 1, s[1] / 2), state)


@pytest.mark.lengthy
@pytest.mark.parametrize("size", [1, 7, 8, 17])
@pytest.mark.parametrize("together", [1, 8])
def test_the_same_as_one_by_one(size, together):
    mapped = vmap_in_batches(steps, lambda x, y: together)
    points, y = jnp.exp2(jnp.arange(size) - 0.5), jnp.float32(1.0)
    for batched in (
        jax.vmap(mapped, (0, None))({"at": points}, y),
        jax.jit(jax.vmap(mapped))({"at": points}, y + 0 * points),
    ):
        assert np.array_equal(batched[0], np.arange(size))
        assert np.allclose(batched[1], 2**-0.5)


def test_of_many_of_many_and_of_one():
    mapped = vmap_in_batches(steps, lambda x, y: 8)
    points = jnp.exp2(jnp.arange(15.0) - 0.5).reshape(3, 5)
    nested = jax.vmap(jax.vmap(mapped, (0, None)), (0, None))({"at": points}, jnp.float32(1.0))
    assert np.array_equal(nested[0].ravel(), np.arange(15))
    assert mapped({"at": points[0, 3]}, jnp.float32(1.0))[0] == 3
    alone = jax.vmap(lambda scale: scale * mapped({"at": points[0, 3]}, jnp.float32(1.0))[0])(jnp.arange(3.0))
    assert np.array_equal(alone, [0, 3, 6])


def test_so_many_are_together():
    """On a processor a loop of as many turns as it takes."""
    parameters = {"at": jnp.ones(24)}
    for together, turns in ((1, 24), (8, 3)):
        mapped = jax.vmap(vmap_in_batches(steps, lambda x, y, t=together: t), (0, None))
        assert f"length={turns}" in str(jax.make_jaxpr(mapped)(parameters, jnp.float32(2.0)))


@pytest.mark.parametrize(("together", "shape"), [(1, "3"), (2, "2,3")])
def test_no_more_of_many_of_many(together, shape):
    """What is batched is a few of the inner ones, whatever there is outside; one is not batched."""
    few = vmap_in_batches(lambda x, y: jnp.sin(x["at"]) + y, lambda x, y: together)
    twice = jax.vmap(jax.vmap(few, (0, None)), (0, None))
    program = str(jax.make_jaxpr(twice)({"at": jnp.ones((5, 4, 3))}, jnp.float32(2.0)))
    assert f"f32[{shape}] = sin" in program
    assert "length=5" in program
