"""Shapes of arrays that annotations name: quick tests run again, every call of such a function being checked."""

import subprocess
import sys
from typing import Annotated

import jaxtyping
import pytest
from tracked import ROOT

from dpkernels import shapes

# What calls the functions of every file that names shapes, within half a minute.
CALLERS = ("tests/dpkernels/random",)

FAULTS = {
    "a key of seven words": (
        "from dpkernels.random import chacha",
        "chacha.counter_blocks(jnp.zeros(7, 'uint32'), jnp.zeros((4, 3), 'uint32'))",
    ),
}


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_names_of_arrays_are_those_of_jaxtyping():
    """The library does not import it, so nothing else would notice a name that it has not."""
    assert [name for name in shapes.__all__ if not hasattr(jaxtyping, name)] == []
    assert all(getattr(shapes, name) is Annotated for name in shapes.__all__)


@pytest.mark.lengthy
def test_arrays_have_the_shapes_that_annotations_name():
    done = python("-m", "pytest", "-q", "-n", "0", "-p", "checked_shapes", *CALLERS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.lengthy
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_shape_is_seen(fault):
    imports, call = FAULTS[fault]
    program = [
        "import sys",
        "sys.path.insert(0, 'tests/support')",
        "import checked_shapes",
        "from jax import numpy as jnp",
    ]
    done = python("-c", "\n".join([*program, imports, call]))
    assert done.returncode == 1
    assert "TypeCheckError" in done.stderr
