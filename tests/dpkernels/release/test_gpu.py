"""The same properties on an accelerator as on the CPU: bits of a release, words, moments. Skipped without one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk

ACCELERATORS = [device for device in jax.devices() if device.platform != "cpu"]
KEY = bytes(range(32))
SPAN = {"epsilon": 1.0, "lower": -1.0, "upper": 1.0}
MECHANISMS = {
    "piecewise": (lambda: dpk.piecewise(**SPAN), 1.0),
    "sine-quartic": (lambda: dpk.composite("sine", "quartic", **SPAN), 1.0),
    "hybrid": (lambda: dpk.hybrid(**SPAN), 1.0),
    "laplace": (lambda: dpk.laplace(epsilon=1.0), 50.0),
}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ACCELERATORS, reason="JAX has no accelerator here, only CPUs"),
]
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)


@every_mechanism
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_release_has_the_same_bits_as_on_the_cpu(name, dtype):
    build, reach = MECHANISMS[name]
    x = np.linspace(-reach, reach, 70_001, dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        here = jax.device_put(jnp.asarray(x), ACCELERATORS[0])
        there = jax.device_put(jnp.asarray(x), jax.devices("cpu")[0])
        key = dpk.key_from_bytes(KEY)
        on_device, on_host = (np.asarray(dpk.perturb(values, build(), key=key)) for values in (here, there))
    np.testing.assert_array_equal(on_device, on_host)


@every_mechanism
def test_a_release_from_host_memory_has_these_bits_too(name):
    build, reach = MECHANISMS[name]
    x = np.linspace(-reach, reach, 70_001)
    with jax.enable_x64(True):
        here = jax.device_put(jnp.asarray(x), ACCELERATORS[0])
        on_device = np.asarray(dpk.perturb(here, build(), key=dpk.key_from_bytes(KEY)))
    np.testing.assert_array_equal(dpk.perturb(x, build(), key=dpk.key_from_bytes(KEY)), on_device)


@every_mechanism
def test_reports_are_right_on_average(name):
    """Six standard errors: a false alarm in 2e-9 of runs."""
    build, reach = MECHANISMS[name]
    mechanism, count = build(), 1 << 20
    x = jax.device_put(jnp.full(count, 0.3 * reach, jnp.float32), ACCELERATORS[0])
    for reports in (dpk.perturb(x, mechanism), mechanism.sample(dpk.simulation_key(1), x)):
        error = float(jnp.mean(reports)) - 0.3 * reach
        assert abs(error) < 6 * float(np.sqrt(mechanism.variance(0.3 * reach) / count)) + 1e-5
