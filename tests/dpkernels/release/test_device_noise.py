"""No two devices have equal noise: programs on 8 devices with one key for all, simulated in a process of their own.

Run as a script this file prints what became of every program.
"""

import inspect
import json
import os
import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import dpkernels as dpk
from dpkernels import training

KEY = dpk.key_from_bytes(bytes(range(5, 37)))
SPAN = {"epsilon": 1.0, "lower": -1.0, "upper": 2.0}
DEVICES = 8
SAMPLERS = {
    "piecewise": lambda: dpk.piecewise(**SPAN),
    "hybrid": lambda: dpk.hybrid(**SPAN),
    "central": lambda: dpk.central_piecewise(**SPAN, sensitivity=1.0),
    "laplace": lambda: dpk.laplace(epsilon=1.0),
}
AXES = {"one axis": ("a",), "two axes": ("a", "b")}
# That draw rows for batches of training.
BATCHES = ("poisson_batch", "fixed_batch", "random_assignment", "allocated_batch")


def on_devices(program, axes, check_vma=True, out_axes=None):
    """The program of (key, a device's values), mapped over all devices; the key is the same on each."""
    mesh = Mesh(np.array(jax.devices()).reshape((DEVICES,) if len(axes) == 1 else (4, 2)), axes)
    spec = PartitionSpec(axes)
    return jax.shard_map(
        program,
        mesh=mesh,
        in_specs=(PartitionSpec(), spec),
        out_specs=spec if out_axes is None else out_axes,
        check_vma=check_vma,
    )


def nested_scans(program):
    """The program at each of 2 x 2 steps, with the numbers of both loops in the key."""

    def run(key, x):
        def outer(carry, i):
            def inner(carry, j):
                return carry, program(jax.random.fold_in(jax.random.fold_in(key, i), j), x)

            return carry, jax.lax.scan(inner, carry, jnp.arange(2))[1]

        return jnp.moveaxis(jax.lax.scan(outer, 0, jnp.arange(2))[1], 2, 0)

    return run


def mapped_rows(program):
    """The program of every row, each with a key of its own, along an axis with a name."""
    return lambda key, x: jax.vmap(program, axis_name="rows")(jax.random.split(key, len(x)), x)


def aggregated(axis_name=None):
    """A step of private training; its values are the gradients."""
    aggregate = training.private_aggregate(1.0, 1.5, KEY, axis_name=axis_name)
    state = aggregate.init({"w": jnp.zeros(64)})
    return lambda key, x: aggregate.update({"w": x}, state, mask=True)[0]["w"][None]


def programs():
    """Programs by name, which release one row of zeros a device or 64 reports of it, and the axis of the reports."""
    rows, ones = jnp.zeros((DEVICES, 64)), jnp.zeros((2 * DEVICES, 8))
    for name, make in SAMPLERS.items():
        sampler = dpk.exact_sampler(make())

        def program(key, x, sampler=sampler):
            return dpk.perturb_traced(key, sampler, x)

        # The key of a device does not depend on the sampler: one sampler has both kinds of meshes.
        for where, axes in AXES.items():
            if where == "two axes" or name == "piecewise":
                yield f"{name}, {where}", on_devices(program, axes), rows
    yield "jit", jax.jit(on_devices(program, ("a",))), rows
    yield "nested scans", jax.jit(on_devices(nested_scans(program), ("a", "b"))), rows
    yield "rows of a device", on_devices(mapped_rows(program), ("a", "b")), ones
    yield "unknown", on_devices(program, ("a",), check_vma=False), rows
    yield "unknown in a scan", jax.jit(on_devices(nested_scans(program), ("a", "b"), check_vma=False)), rows
    yield "pmap", lambda key, x: jax.pmap(program, in_axes=(None, 0))(key, x), rows
    yield "named pmap", lambda key, x: jax.pmap(program, in_axes=(None, 0), axis_name="a")(key, x), rows
    yield "one key for rows", lambda key, x: jax.vmap(lambda row: program(key, row), axis_name="rows")(x), rows
    for check in (True, False):
        yield f"training {check}", on_devices(aggregated(), ("a",), check_vma=check), rows
        yield f"training, half named {check}", on_devices(aggregated("a"), ("a", "b"), check_vma=check), rows
        batch = lambda key, x: training.poisson_batch(key, 64, 0.5, 64).mask[None] + 0 * x.astype(int)  # noqa: E731
        yield f"poisson_batch {check}", on_devices(batch, ("a",), check_vma=check), rows
        fixed = lambda key, x: training.fixed_batch(key, 64, 8)[None] + 0 * x.astype(int)[:, :8]  # noqa: E731
        yield f"fixed_batch {check}", on_devices(fixed, ("a",), check_vma=check), rows
        assigned = lambda key, x: training.random_assignment(key, 64, 8)[None] + 0 * x.astype(int)  # noqa: E731
        yield f"random_assignment {check}", on_devices(assigned, ("a",), check_vma=check), rows
        allocated = lambda key, x: (  # noqa: E731
            training.allocated_batch(key, jnp.zeros(64, jnp.int32), 0, 64).mask[None] + 0 * x.astype(int)
        )
        yield f"allocated_batch {check}", on_devices(allocated, ("a",), check_vma=check), rows
    yield "training, pmap", lambda key, x: jax.pmap(aggregated(), in_axes=(None, 0))(key, x[:, None]), rows
    named = on_devices(aggregated("a"), ("a",), out_axes=PartitionSpec())
    same, step = PartitionSpec(), aggregated("a")
    replicated = jax.shard_map(
        lambda x: step(None, x), mesh=Mesh(np.array(jax.devices()), ("a",)), in_specs=same, out_specs=same
    )
    yield "training of the same examples", lambda key, x: replicated(x), rows
    yield "training, named", named, rows


REFUSED = {
    "unknown": "it is unknown which devices along 'a'",
    "unknown in a scan": "it is unknown which devices along 'a'",
    "pmap": "it is unknown which devices",
    "named pmap": "it is unknown which devices along 'a'",
    "one key for rows": "one for 8 rows under vmap",
    "training True": "leaves out 'a'",
    "training False": "leaves out 'a'",
    "training, half named True": "leaves out 'b'",
    "training, half named False": "leaves out 'b'",
    "training, pmap": "leaves out",
    "training of the same examples": "may have added up the gradients of several devices",
    **{
        f"{name} {check}": "all devices along 'a' would draw the same rows"
        for name in BATCHES
        for check in (True, False)
    },
}


def outcome(program, x):
    """An error's text, or how many rows of reports there are, and how many differ from all others."""
    try:
        reports = np.asarray(program(KEY, x))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    rows = reports.reshape(-1, x.shape[-1])
    assert np.isfinite(rows).all()
    return [len(rows), len(np.unique(rows, axis=0))]


@cache
def outcomes():
    from device_flags import several_devices  # It is not on the path of the script.

    flags = {"XLA_FLAGS": several_devices(DEVICES), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__]
    return json.loads(subprocess.run(command, env=os.environ | flags, stdout=-1, check=True).stdout)


@pytest.mark.lengthy
def test_no_two_devices_have_equal_noise():
    """Each program is refused, or all its rows of 8 or more reports differ; two are equal with less than 1e-6."""
    results = {name: result for name, result in outcomes().items() if name != "same values"}
    refused = {name: result for name, result in results.items() if isinstance(result, str)}
    assert set(refused) == set(REFUSED)
    for name, text in REFUSED.items():
        assert refused[name].startswith("ValueError: ")
        assert text in refused[name]
    rows = {name: result for name, result in results.items() if name not in refused}
    assert rows.pop("training, named") == [1, 1]
    assert all(count == different >= DEVICES for count, different in rows.values()), rows


@pytest.mark.lengthy
def test_devices_with_the_same_values_make_the_same_reports():
    """That is one release. On one device, the reports are those of ``perturb``."""
    assert outcomes()["same values"] is True


def test_every_public_function_with_a_key_is_among_the_programs():
    """A new one needs a program here; ``perturb`` takes no traced values, and so no values of a device."""
    names = [name for name in (*dpk.__all__, *vars(training)) if not name.startswith("_")]
    functions = {name: getattr(dpk, name, None) or getattr(training, name) for name in names}
    keyed = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "key" in inspect.signature(function).parameters
    }
    checks = {"check_release_key", "release_key_bytes", "release_replicated"}  # The last is for values after a psum.
    assert keyed - checks == {"perturb", "perturb_traced", "private_aggregate", "renew_key", *BATCHES}


def same_values():
    sampler = dpk.exact_sampler(SAMPLERS["piecewise"]())
    mesh, x = Mesh(np.array(jax.devices()), ("a",)), jnp.linspace(-1.0, 2.0, 64)
    spec = PartitionSpec()
    program = jax.shard_map(
        lambda key, x: dpk.perturb_traced(key, sampler, x), mesh=mesh, in_specs=(spec, spec), out_specs=spec
    )
    return bool((np.asarray(program(KEY, x)) == np.asarray(dpk.perturb(x, sampler, key=KEY))).all())


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    print(json.dumps({name: outcome(program, x) for name, program, x in programs()} | {"same values": same_values()}))
