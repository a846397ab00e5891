"""Shapes of arrays that annotations name: quick tests run again, every call of such a function being checked."""

import subprocess
import sys
from typing import Annotated

import jaxtyping
import pytest
from tracked import ROOT

from dpkernels import shapes

# What calls functions of every file that names shapes, within half a minute.
CALLERS = (
    "tests/dpkernels/random/test_chacha.py::test_words_are_the_host_stream_read_little_endian",
    "tests/dpkernels/random/test_chacha.py::test_the_gpus_kernel_makes_openssls_blocks",
    "tests/accountants/composition/test_fft.py::test_derivatives_of_three_losses_far_apart_in_32_bits",
    "tests/accountants/composition/test_fft.py::test_derivatives_at_grid_points_are_those_beside_them",
    "tests/accountants/composition/test_fft.py::test_the_highest_of_a_pair_and_itself_is_the_pair",
    "tests/accountants/composition/test_renyi.py::test_divergences_of_releases_add_up_and_the_worse_direction_counts",
    "tests/accountants/composition/test_sampled.py::test_replaced_randomised_responses",
    "tests/accountants/composition/brackets/test_stages.py::test_rare_losses_as_a_mixture_are_those_of_one_grid",
    "tests/accountants/composition/brackets/test_table_sums.py::test_two_tables_of_one_sum",
)

FAULTS = {
    "a key of seven words": (
        "from dpkernels.random import chacha",
        "chacha.counter_blocks(jnp.zeros(7, 'uint32'), jnp.zeros((4, 3), 'uint32'))",
    ),
    "losses without their masses": (
        "from accountants.composition.brackets.sums import ComposedBounds",
        "ComposedBounds(np.zeros(4), np.zeros(3), 0.0, 0.0, 0.0, 0.0, 0.0)",
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
    done = python("-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "checked_shapes", *CALLERS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "never called" not in done.stdout, done.stdout  # Add a test of this file to those above.


@pytest.mark.lengthy
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_shape_is_seen(fault):
    imports, call = FAULTS[fault]
    program = [
        "import sys",
        "sys.path.insert(0, 'tests/support')",
        "import checked_shapes",
        "import numpy as np",
        "from jax import numpy as jnp",
    ]
    done = python("-c", "\n".join([*program, imports, call]))
    assert done.returncode == 1
    assert "TypeCheckError" in done.stderr
