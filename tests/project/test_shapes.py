"""Shapes of arrays that annotations name: quick tests run again, every call of such a function being checked."""

import subprocess
import sys
from typing import Annotated

import jaxtyping
import pytest
from tracked import ROOT

from dpkernels import shapes

# What calls functions of every file that names shapes, as quickly as there is, whatever its marks.
CALLERS = (
    "accountants/composition/test_fft.py::test_derivatives_of_three_losses_far_apart_in_32_bits",
    "accountants/composition/test_fft.py::test_derivatives_at_grid_points_are_those_beside_them",
    "accountants/composition/test_fft.py::test_the_highest_of_a_pair_and_itself_is_the_pair",
    "accountants/composition/test_renyi.py::test_divergences_of_releases_add_up_and_the_worse_direction_counts",
    "accountants/composition/test_sampled.py::test_replaced_randomised_responses",
    "accountants/composition/brackets/test_stages.py::test_rare_losses_as_a_mixture_are_those_of_one_grid",
    "accountants/composition/brackets/test_table_sums.py::test_two_tables_of_one_sum",
    "accountants/dominating_pairs/test_pairs.py::test_epsilon_of_bounded_mechanisms[sine-1]",
    "accountants/dominating_pairs/test_pairs.py::test_kinds_and_shapes[piecewise-0.5]",
    "accountants/dominating_pairs/test_user_pairs.py::test_supports_that_differ_have_infinite_losses",
    "accountants/schemes/test_groups.py::test_known_number",
    "accountants/schemes/test_schemes_together.py::test_derivatives_in_the_noise[allocation-1]",
    "accountants/shuffle/test_shuffle.py::test_a_table_is_bounded_over_all_its_pairs",
    "accountants/shuffle/test_shuffle.py::test_probabilities_by_quadrature_are_refused_and_estimated_by_name",
    "dpkernels/estimation/test_consistency.py::test_groups_make_sums_more_precise",
    "dpkernels/estimation/test_estimation.py::test_profile_intervals_are_those_of_constrained_optimisation",
    "dpkernels/estimation/test_estimation.py::test_reports_have_the_channels_frequencies",
    "dpkernels/estimation/test_estimation.py::test_splines_are_densities[64]",
    "dpkernels/estimation/test_estimation.py::test_two_point_reports_tell_the_mean_only",
    "dpkernels/exact/test_categories.py::test_every_word_of_randomised_response[16]",
    "dpkernels/exact/test_endless_noise.py::test_ratios_are_recomputed[laplace]",
    "dpkernels/exact/test_exponential.py::test_floats_decide_as_integers_do_or_not_at_all",
    "dpkernels/exact/test_halves.py::test_all_halves_draw_the_table[5-1]",
    "dpkernels/exact/test_packed.py::test_packed_arrays_are_the_same_again",
    "dpkernels/exact/test_permute_and_flip.py::test_integers_decide_as_floats_do[0.3]",
    "dpkernels/exact/test_prefixes.py::test_a_report_is_that_of_a_random_level_about_its_prefix",
    "dpkernels/exact/test_remainder.py::test_moments_and_ends_have_the_remainder",
    "dpkernels/exact/test_row_tables.py::test_the_kernel_is_the_alias_table[optimal-1]",
    "dpkernels/exact/test_tables.py::test_alias_columns_of_a_release_carry_its_weights[triangle-quartic-0.1]",
    "dpkernels/mechanisms/test_categorical.py::test_the_channel_has_the_log_probabilities",
    "dpkernels/mechanisms/test_optimal.py::test_expected_inputs_lower_the_average_variance",
    "dpkernels/random/test_chacha.py::test_the_gpus_kernel_makes_openssls_blocks[5-127-64]",
    "dpkernels/random/test_chacha.py::test_words_are_the_host_stream_read_little_endian",
    "dpkernels/release/test_batches.py::test_values_with_words_of_two_lengths_have_independent_noise",
    "dpkernels/session/test_sums.py",
    "dpkernels/training/test_aggregate.py::test_a_mask_leaves_rows_out",
    "dpkernels/training/test_correlated.py::test_the_square_root_squares_to_prefix_sums",
    "dpkernels/training/test_scheme_batches.py::test_assignments_are_uniform",
    "dpkernels/training/test_scheme_batches.py::test_rows_stand_at_random_places",
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
    done = python(
        "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "checked_shapes", *(f"tests/{name}" for name in CALLERS)
    )
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
