"""Fixtures of every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest

# Nothing is read from or left in the user's cache; set before anything is solved.
os.environ["DPKERNELS_CACHE"] = ""


@pytest.fixture(autouse=True)
def global_flags_survive() -> Iterator[None]:
    """Nothing in the library may leave JAX's global flags other than the user set them."""
    before = jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion
    yield
    assert (jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion) == before


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test with JAX's 64-bit types on."""
    with jax.enable_x64(True):
        yield
