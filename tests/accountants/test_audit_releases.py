"""Audits of what runs: releases by every container, inside ``jit``, and by the command refute no claim.

The inputs are neighbours, one value repeated, so that every row is a draw.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command_helpers import Run, command

import dpkernels as dpk
from accountants import audit

DRAWS = 10**6
SAMPLERS = {
    "laplace": dpk.laplace(epsilon=1.0, sensitivity=1.0),
    "piecewise": dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0),
}

run = pytest.fixture(command)


def with_missing(values, mechanism):
    """Release a column in which every second value is missing; missing reports stay missing."""
    column = pd.Series(np.repeat(values, 2)).where(np.arange(2 * len(values)) % 2 == 0)
    return dpk.perturb(column, mechanism, missing="keep").dropna()


def in_jit(values, mechanism):
    sampler = dpk.exact_sampler(mechanism)
    return jax.jit(lambda key, values: dpk.perturb_traced(key, sampler, values))(dpk.os_key(), values)


CONTAINERS = {
    "numpy float32": lambda values, mechanism: dpk.perturb(values.astype(np.float32), mechanism),
    "numpy strided": lambda values, mechanism: dpk.perturb(np.repeat(values, 2)[::2], mechanism),
    "jit": in_jit,
    "missing": with_missing,
    "jax": lambda values, mechanism: dpk.perturb(jnp.asarray(values), mechanism),
    "pandas": lambda values, mechanism: dpk.perturb(pd.Series(values), mechanism),
    "polars": lambda values, mechanism: dpk.perturb(pl.Series(values), mechanism),
    "arrow": lambda values, mechanism: dpk.perturb(pa.chunked_array([values, values[:0]]), mechanism),
    "two calls": lambda values, mechanism: np.concatenate(
        [dpk.perturb(part, mechanism) for part in np.array_split(values, 2)]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", SAMPLERS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_no_container_refutes_the_claim(container, mechanism):
    def release(x, count):
        return np.asarray(CONTAINERS[container](np.full(count, x), SAMPLERS[mechanism]))

    result = audit(release, (0.0, 1.0), draws=DRAWS)
    assert 0.5 < result.epsilon <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("file", ["csv", "parquet"])
@pytest.mark.parametrize("mechanism", SAMPLERS)
def test_the_command_refutes_no_claim(run: Run, file: str, mechanism: str) -> None:
    options = ["--sensitivity", "1"] if mechanism == "laplace" else ["--lower", "0", "--upper", "1"]

    def release(x: float, count: int) -> np.ndarray:
        table = pa.table({"value": np.full(count, x)})
        (pyarrow.csv.write_csv if file == "csv" else pq.write_table)(table, f"in.{file}")
        names = f"in.{file}", f"out.{file}", "--column", "value", "--mechanism", mechanism, "--epsilon", "1", "--force"
        result = run("perturb", *names, *options)
        assert result.code == 0, result.err
        read = pyarrow.csv.read_csv if file == "csv" else pq.read_table
        return read(f"out.{file}")["value"].to_numpy()

    result = audit(release, (0.0, 1.0), draws=DRAWS)
    assert 0.5 < result.epsilon <= 1.0


@pytest.mark.lengthy
def test_float_kernels_are_found():
    """The known-bad example: simulations are not releases, and low bits of float noise tell the input apart."""
    mechanism = SAMPLERS["laplace"]
    key = iter(jax.random.split(jax.random.key(0), 4))
    simulate = lambda x, count: dpk.perturb(np.full(count, x), mechanism, exact=False, key=next(key))  # noqa: E731
    assert audit(simulate, (0.0, 1.0)).contradicts(1.0)
