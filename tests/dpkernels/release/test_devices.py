"""A release is bit-identical on 1, 2 and 8 devices, simulated in processes of their own.

Run as a script this file prints what its process releases.
"""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import dpkernels as dpk
from dpkernels.release.engines import HostRelease, exact_engine

KEY_BYTES = bytes(range(3, 35))
SPAN = {"epsilon": 1.0, "lower": -1.0, "upper": 2.0}
LINE = np.linspace(-1, 2, 4096, dtype=np.float32)
COUNTS = np.arange(8 * 512.0, dtype=np.float32)
WIDE = np.linspace(-100, 200, 4096, dtype=np.float32)


def mechanisms():
    """One that divides, one that looks up, one that does both; noise, of numbers and of vectors."""
    return {
        "piecewise": dpk.piecewise(**SPAN),
        "sine": dpk.composite("sine", "constant", **SPAN),
        "hybrid": dpk.hybrid(**SPAN),
        "noise": dpk.laplace(epsilon=1.0, sensitivity=3.0),
        "counts": dpk.on_vectors(
            dpk.discrete_laplace(epsilon=1.0, sensitivity=2.0), dimensions=8, norm="l1", lattice=1.0
        ),
    }


def placed(values, *axes, devices=None, kind=AxisType.Auto):
    """A JAX array on all devices, split along the axes that are not None."""
    mesh = Mesh(np.array(jax.devices() if devices is None else devices), ("values",), (kind,))
    return jax.device_put(jnp.asarray(values), NamedSharding(mesh, PartitionSpec(*axes)))


def cases():
    """Inputs by name: NumPy arrays whose lengths are no multiples, JAX arrays split and placed in many ways."""
    yield "host float32", "piecewise", LINE[:4001]
    for name in ("piecewise", "sine", "hybrid"):
        yield f"numpy {name}", name, np.linspace(-1, 2, 20_011)
        yield f"split {name}", name, placed(LINE, "values")
    yield "one value", "piecewise", np.array([0.5])
    yield "numpy float32", "piecewise", LINE[:4001]
    yield "numpy noise", "noise", np.linspace(-50, 70, 20_011)
    yield "noise of numpy float32", "noise", WIDE[:4001]
    yield "noise of one value", "noise", np.array([0.5])
    yield "split noise", "noise", placed(WIDE, "values")
    yield "uneven noise", "noise", placed(WIDE[:4001])
    yield "counts", "counts", np.arange(8 * 501.0).reshape(501, 8)
    yield "split counts", "counts", placed(COUNTS.reshape(512, 8), "values")
    yield "replicated", "piecewise", placed(LINE)
    yield "uneven", "piecewise", placed(LINE[:4001])
    yield "split rows", "piecewise", placed(LINE.reshape(64, 64), "values")
    yield "split columns", "piecewise", placed(LINE.reshape(64, 64), None, "values")
    yield "devices in reverse", "piecewise", placed(LINE, "values", devices=jax.devices()[::-1])
    # The axes that jax.make_mesh makes.
    yield "explicit axis", "piecewise", placed(LINE, "values", kind=AxisType.Explicit)
    yield "explicit columns", "piecewise", placed(LINE.reshape(64, 64), None, "values", kind=AxisType.Explicit)
    yield "explicit counts", "counts", placed(COUNTS.reshape(512, 8), "values", kind=AxisType.Explicit)
    yield "last device", "piecewise", jax.device_put(LINE, jax.devices()[-1])
    yield "split half precision", "piecewise", placed(LINE.astype(np.float16), "values")
    yield "split integers", "piecewise", placed(np.tile(np.arange(-1, 3), 1024), "values")
    late = np.arange(len(LINE)) >= 1000
    yield "row 1000 is nan", "piecewise", placed(np.where(late, np.nan, LINE), "values")
    yield "row 1000 is 7, outside", "piecewise", placed(np.where(late, 7, LINE), "values")


def digest(case, x, made):
    """Of the reports' bits; or what went wrong. All devices make those of arrays in host memory, but of one case."""
    asked = {} if isinstance(x, jax.Array) or case.startswith("host") else {"devices": jax.devices()}
    try:
        reports = dpk.perturb(x, made, key=dpk.key_from_bytes(KEY_BYTES), **asked)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(';')[0]}"
    dtype = "float32" if isinstance(x, jax.Array) else x.dtype
    if type(reports) is not type(x) or reports.shape != x.shape or reports.dtype != dtype:
        return f"{x.dtype}{x.shape} became {reports.dtype}{reports.shape}"
    if isinstance(x, jax.Array) and reports.sharding != x.sharding:
        return f"{x.sharding} became {reports.sharding}"
    return hashlib.sha256(np.asarray(reports).tobytes()).hexdigest()


@cache
def released(devices=None):
    """Digests by case, of this process or of one with so many devices."""
    if devices is None:
        made = mechanisms()
        return {case: digest(case, x, made[name]) for case, name, x in cases()}
    from device_flags import several_devices  # It is not on the path of the script.

    flags = {"XLA_FLAGS": several_devices(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, str(devices)]
    return json.loads(subprocess.run(command, env=os.environ | flags, stdout=-1, check=True).stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_a_release_is_the_same_bits_on_any_devices(devices):
    here, there = released(), released(devices)
    assert {case: (here[case], there[case]) for case in here if here[case] != there[case]} == {}


@pytest.mark.lengthy
def test_releases_of_the_same_values_are_the_same_wherever_they_are():
    """And no others are: a digest that never changes would prove nothing."""
    digests = {case: result for case, result in released().items() if not case.startswith("row")}
    assert {len(result) for result in digests.values()} == {64}
    assert digests["uneven"] == digests["numpy float32"] == digests["host float32"]
    assert digests["uneven noise"] == digests["noise of numpy float32"]
    moved = ("split piecewise", "replicated", "split rows", "split columns", "devices in reverse", "last device")
    moved += ("explicit axis", "explicit columns")
    assert len({digests[case] for case in moved}) == 1
    assert digests["explicit counts"] == digests["split counts"]
    assert len(set(digests.values())) == len(digests) - 11


def test_a_device_makes_the_reports_of_host_values_only_where_it_is_asked_for(monkeypatch):
    """Whatever devices JAX has: the engine of a release of host values is chosen by its caller."""
    sampler, device = dpk.exact_sampler(dpk.piecewise(**SPAN)), jax.devices()[0]
    monkeypatch.setattr(jax, "local_devices", lambda *_, **__: [device, device])
    assert isinstance(exact_engine(sampler, KEY_BYTES), HostRelease)
    assert exact_engine(sampler, KEY_BYTES, [device]).devices == (device,)


@pytest.mark.parametrize("given", [{"exact": False}, {"devices": []}, {"x": jnp.zeros(3)}])
def test_devices_are_for_a_release_of_host_values(given):
    arguments = {"x": np.zeros(3), "mechanism": dpk.piecewise(**SPAN), "devices": jax.devices(), **given}
    with pytest.raises(ValueError, match=r"^devices: "):
        dpk.perturb(**arguments)


def test_bad_rows_are_named():
    assert {result for case, result in released().items() if case.startswith("row")} == {
        "InputError: x: row 1000 is nan",
        "InputError: x: row 1000 is 7, outside the input interval [-1, 2]",
    }


if __name__ == "__main__":
    assert jax.device_count() == int(sys.argv[1])
    print(json.dumps(released()))
