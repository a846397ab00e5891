"""Every container, with every treatment of missing values and of values outside the interval, releases one thing.

It is the release of the valid values as a NumPy array, so that no value outside the interval reaches the noise,
whatever holds it and wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpkernels as dpk
from dpkernels.random.keys import release_key_bytes
from dpkernels.release import perturb as perturbation
from dpkernels.release.inputs import Bounds

KEY = dpk.key_from_bytes(bytes(range(7, 39)))
VALUES = np.array([-50.0, 3.0, 119.0, 500.0, 120.0, 61.0, -0.25])
GAPS = np.array([False, True, False, False, True, False, False])
MECHANISMS = {
    "piecewise": dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0),
    "duchi": dpk.duchi(epsilon=1.0, lower=0.0, upper=120.0),
    "noise": dpk.laplace(epsilon=1.0, sensitivity=2.0**-34 * 120),  # its inputs are in [-120, 120]
}
CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": np.asarray,
    "jax": jnp.asarray,
    "jax, two axes": lambda x: jnp.asarray(x)[:, None],
    "numpy, two axes": lambda x: x[:, None],
    "pandas": pd.Series,
    "pandas nullable": lambda x: pd.Series(pd.array(x, "Float64")),
    "polars": lambda x: pl.Series("x", x, nan_to_null=True),
    "pyarrow": lambda x: pa.array(x, from_pandas=True),
    "pyarrow chunks": lambda x: pa.chunked_array(
        [pa.array(x[:3], from_pandas=True), pa.array(x[3:], from_pandas=True)]
    ),
    "pandas table": lambda x: pd.DataFrame({"x": x}),
    "polars table": lambda x: pl.DataFrame({"x": pl.Series("x", x, nan_to_null=True)}),
    "pyarrow table": lambda x: pa.table({"x": pa.array(x, from_pandas=True)}),
}


def plain(released: Any) -> np.ndarray:
    """The released numbers, NaN where one is missing."""
    if isinstance(released, pa.Table | pd.DataFrame | pl.DataFrame):
        released = released["x"]
    if isinstance(released, pa.Array | pa.ChunkedArray):
        released = released.to_pylist()
    values = np.ravel(np.asarray(released)) if isinstance(released, jax.Array | np.ndarray) else list(released)
    return np.array([np.nan if value is None or value is pd.NA else value for value in values], float)


def released(container: str, mechanism: Any, x: np.ndarray, **how: Any) -> np.ndarray:
    table = container.endswith("table")
    with jax.enable_x64(True):
        reports = dpk.perturb(CONTAINERS[container](x), {"x": mechanism} if table else mechanism, key=KEY, **how)
    return plain(reports)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("missing", ["refuse", "keep", "drop"])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_released_is_that_of_the_valid_values(name: str, container: str, missing: str, clip: bool) -> None:
    mechanism = MECHANISMS[name]
    gaps = np.zeros_like(GAPS) if missing == "refuse" or "jax" in container or "two" in container else GAPS
    x = np.where(gaps, np.nan, VALUES)
    how = {"clip": clip} | ({} if missing == "refuse" or not gaps.any() else {"missing": missing})
    if not clip:
        with pytest.raises(ValueError, match=r"(row \d|value \(\d, 0\)) is (-50|500)"):
            released(container, mechanism, x, **how)
        return
    lower, upper = map(float, mechanism.input_interval)
    valid = np.clip(VALUES, lower, upper)
    kept = valid[~gaps] if missing == "drop" else valid
    # Every column of a table has a key of its own.
    expected = released("pandas table" if container.endswith("table") else "numpy", mechanism, kept)
    found = released(container, mechanism, x, **how)
    if missing == "keep":
        assert np.isnan(found).tolist() == gaps.tolist()
        found, expected = found[~gaps], expected[~gaps]
    np.testing.assert_array_equal(found, expected)


def on_device(mechanism: Any, x: Any, exact: bool, clip: bool) -> np.ndarray:
    """The release of an array that stays on its device; ``perturb`` reads one on a single CPU device from the host."""
    sampler, secret = (
        (dpk.exact_sampler(mechanism), release_key_bytes(KEY)) if exact else (mechanism, dpk.simulation_key(3))
    )
    settings = perturbation._Settings(secret, clip, 0, None, lambda count: None)
    return np.asarray(perturbation._reports(sampler, jnp.asarray(x), settings))


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("exact", [pytest.param(True, marks=pytest.mark.lengthy), False])
def test_arrays_on_devices_are_clipped_like_those_on_the_host(name: str, kind: str, exact: bool) -> None:
    mechanism = MECHANISMS[name]
    lower, upper = map(float, mechanism.input_interval)
    x = np.array([-300, 3, 119, 500, 120, 61, -1]).astype(kind)
    clipped = np.clip(x, lower, upper).astype(kind)
    with jax.enable_x64(kind == "float64"):
        assert np.asarray(Bounds.of(mechanism, clip=True).check_on_device(jnp.asarray(x))).tolist() == clipped.tolist()
        found = on_device(mechanism, x, exact, clip=True)
        np.testing.assert_array_equal(found, on_device(mechanism, clipped, exact, clip=False))
        if exact and kind == "float64":
            np.testing.assert_array_equal(found, dpk.perturb(clipped, mechanism, key=KEY))
        with pytest.raises(ValueError, match="row 0 is -300"):
            on_device(mechanism, x, exact, clip=False)
