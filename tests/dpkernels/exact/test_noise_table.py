"""Tables of additive noise: the compiled samplers against the integers, and where inputs are put against Fractions."""

import itertools
import math
from fractions import Fraction
from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from noise_tables import (
    CLAIMS,
    SENSITIVITIES,
    SKEWED,
    SMALL,
    claim,
    exact,
    form_of,
    plain_table,
    positions,
    sensitivity,
    slow_position,
    slow_sampler,
    small_table,
    table_columns,
)

import dpkernels as dpk
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.noise import grid as noise_grid
from dpkernels.exact.noise.construction import lattice_grid, noise_table
from dpkernels.exact.noise.grid import NoiseGrid, cells_apart, covering_grid, float_positions
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.noise.tail import Tail

RNG = np.random.default_rng(7)
WORDS16 = np.arange(1 << 16, dtype=np.uint16)
every_law = pytest.mark.parametrize("name", SMALL)
every_claim = pytest.mark.parametrize("name", CLAIMS)
a_few_quickly = pytest.mark.quick(
    "laplace-1",
    "truncated-laplace-1e-2",
    "truncated-laplace-skewed",
    "staircase-0.5",
    "gaussian-1",
    "recycled-laplace",
    "discrete-*",
)
PROMISED_COST = 1e-3


def codes_of(table, words):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(table.kernel())(words))


def counted(table):
    """How often each code is drawn over all 2^16 words."""
    codes = codes_of(table, WORDS16)
    assert codes.dtype == np.int32
    return np.bincount(codes - table.first, minlength=table.codes)


# From words to codes.


@pytest.mark.lengthy
@every_law
def test_every_16_bit_word_counts(name):
    table = small_table(name)
    np.testing.assert_array_equal(counted(table), table.weights)


@pytest.mark.parametrize("first", [0, -5, -2])
def test_one_sided_tables_are_sampled(first):
    """Support that begins or ends at 0, and weights of 0."""
    table = plain_table([1, 40000, 0, 20000, 5000, 535], first)
    np.testing.assert_array_equal(counted(table), table.weights)


@pytest.mark.lengthy
@a_few_quickly
@every_claim
def test_alias_columns_hold_the_weights(name):
    """All 2^64 words, in Python integers."""
    table = exact(name).table
    columns = table_columns(table)
    capacity = 1 << (64 - columns.log_columns)
    masses = columns.threshold.tolist()
    assert 0 <= min(masses) <= max(masses) <= capacity
    for below, other in zip(columns.threshold.tolist(), columns.alias.tolist(), strict=True):
        masses[other] += capacity - below
    assert masses == table.outcomes + [0] * (len(masses) - table.codes)


@pytest.mark.lengthy
@a_few_quickly
@every_claim
def test_words_at_the_boundaries(name):
    """Where the code changes, one word to either side, and random words."""
    table = exact(name).table
    code, columns = slow_sampler(table), table_columns(table)
    capacity = 1 << (64 - columns.log_columns)
    some = RNG.integers(0, len(columns.alias), 300).tolist()
    edges = [c * capacity + at for c in some for at in (0, int(columns.threshold[c]))]
    words = {word for edge in edges for word in (edge - 1, edge, edge + 1) if 0 <= word < 1 << 64}
    words |= {0, (1 << 64) - 1, *RNG.integers(0, 1 << 64, 500, np.uint64).tolist()}
    assert codes_of(table, np.array(sorted(words), np.uint64)).tolist() == [code(word) for word in sorted(words)]


# Where inputs are put.

PLACED = (*SENSITIVITIES, 3.0, 1e-9, 1e9, 1e12, 1.0000003, 2.0**-100)


@cache
def placed_form(D, codes=4096):
    mechanism = dpk.laplace(epsilon=1.0, sensitivity=D)
    return form_of(mechanism, noise_table(mechanism.noise, Fraction(D), bits=16, codes=codes))


def odd_inputs(sampler, dtype):
    """Random, huge, tiny, negative, half-way between grains and cells, and the floats next to these."""
    D, table = sampler.mechanism.sensitivity, sampler.table
    grain, cell = 2.0**table.grid_log2, float(table.bin_width)
    k = RNG.integers(-(1 << 20), 1 << 20, 30)
    x = [
        *(RNG.uniform(-reach, reach, 40) * D for reach in (1, 1e3, 2.0**34)),
        *((k + part) * unit for part in (0, 0.5, -0.5, 0.25) for unit in (grain, cell)),
        *(k * cell - (k % table.points_per_bin + part) * grain for part in (0, 0.5)),
        np.array([0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e-40, -1e-40, 2.0**34 * D, -(2.0**34) * D]),
    ]
    x = np.concatenate(x).astype(dtype)
    x = np.concatenate([x, np.nextafter(x, dtype(np.inf)), np.nextafter(x, dtype(-np.inf))])
    return np.clip(x, *(dtype(end) for end in sampler.mechanism.input_interval))


def edge_words(table, count):
    """Words at which r steps, and others."""
    r = RNG.integers(0, table.points_per_bin + 1, count - 4)
    steps = [
        min((int(at) << 32) // table.points_per_bin + step, 2**32 - 1)
        for at, step in zip(r, RNG.integers(0, 2, count), strict=False)
    ]
    return np.array([0, 1, 2**31, 2**32 - 1, *steps], np.uint32)


@pytest.mark.quick("0.7-*", "1e-09-*", "1000000000.0-float32", "1.0000003-float64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("D", PLACED)
def test_positions_are_exact(D, dtype):
    sampler = placed_form(D)
    x = odd_inputs(sampler, dtype)
    words = RNG.permutation(edge_words(sampler.table, len(x)))
    expected = [slow_position(sampler.table, at, word) for at, word in zip(x, words, strict=True)]
    assert positions(sampler, x, words).tolist() == expected


@a_few_quickly
@pytest.mark.parametrize("name", CLAIMS)
def test_positions_are_exact_as_far_out_as_inputs_may_be(name):
    sampler = exact(name)
    high = sampler.mechanism.input_interval[1]
    x = np.array([0.0, high, -high, np.nextafter(high, 0), high - sampler.mechanism.sensitivity, high / 3, -high / 7])
    for word in (0, 1, 2**32 - 1):
        expected = [slow_position(sampler.table, at, word) for at in x]
        assert positions(sampler, x, np.full(len(x), word, np.uint32)).tolist() == expected


@pytest.mark.parametrize("compiled", [False, True])
def test_positions_in_floats_are_those_in_integers(compiled):
    """At multiples of M and next to them, up to the largest distance, where a quotient is rounded to an integer."""
    M = np.array([1, 2, 3, 7, 255, 4097, (1 << 23) - 1, 5_000_011, (1 << 31) - 1, (1 << 32) - 1])
    quotients = np.array([0, 1, 2, 3, 1000, (1 << 20) + 1, (1 << 31) - 1, (1 << 49) // 3, (1 << 50) - 1])
    points, q, off, word = (
        each.ravel() for each in np.meshgrid(M, quotients, np.arange(-2, 3), [0, 1, 1 << 31, (1 << 32) - 1])
    )
    near = points * q.astype(float) < 2.0**49
    points, q, off, word = (each[near] for each in (points, q, off, word))
    place = NoiseGrid.of(RNG.integers(-1021, 900, len(points)), points)
    x = np.ldexp((points * q + off) * RNG.choice([-1.0, 1.0], len(points)), place.grid_log2)
    x[::3] *= 1 + 2.0**-52
    assert (abs(x) < place.float_radius).all()
    assert (place.float_radius == np.ldexp(1.0, 50 + place.grid_log2)).all()
    program = jax.jit(float_positions) if compiled else float_positions
    with jax.enable_x64(True):
        got = np.asarray(program(x, word.astype(np.uint32), place))
    assert (got == noise_grid.positions(x, word.astype(np.uint32), place)).all()
    for i in RNG.permutation(len(x))[:200].tolist():
        table = SimpleNamespace(grid_log2=int(place.grid_log2[i]), points_per_bin=int(points[i]))
        assert got[i] == slow_position(table, x[i], word[i])


def test_quotients_by_reciprocals_are_corrected():
    """XLA multiplies by the reciprocal of a divisor that is one number, which is off at multiples of many M."""
    program, off = jax.jit(float_positions), 0
    with jax.enable_x64(True):
        for M in RNG.integers(3, 1 << 32, 50).tolist():
            points = RNG.integers(-(1 << 49), 1 << 49, 1000) // M * M + RNG.integers(-1, 2, 1000)
            place = NoiseGrid(np.int16(0), np.uint32(M))
            positions = np.asarray(program(points.astype(float), np.zeros(1000, np.uint32), place))
            assert (positions == points // M).all()
            off += (np.floor(points * (1 / M)) != points // M).sum()
    assert off > 100, "no multiple tries the correction"


def test_words_of_incomplete_draws_are_those_of_the_kernel():
    """Also where the rest is more than its column of the alias table, so that words of other columns draw it."""
    seen = set()
    for rest in (0, 2, 100, 8200, 12000, 30000, 50000):
        weights = np.array([3, 40, (1 << 16) - rest - 86, 40, 3], np.uint64)
        table = NoiseTable(weights, -2, 16, 0, 1, Tail(rest // 2, np.array([1 << 15], np.uint64), 16) if rest else None)
        sampler = form_of(dpk.laplace(epsilon=1.0), table)
        expected = np.flatnonzero(table.kernel()(WORDS16) < -2)
        assert len(expected) == rest
        assert (sampler.are_incomplete(WORDS16) == expected).all()
        words = sampler.incomplete_words
        seen.add(None if words is None else len(words))
    assert {0, 1, 2} <= seen, seen


def partner(x, D):
    """The float farthest above x, but not more than D above it."""
    dtype = x.dtype.type
    other = dtype(min(float(x) + D, float(np.finfo(dtype).max)))
    while Fraction(float(other)) - Fraction(float(x)) > Fraction(D):
        other = np.nextafter(other, dtype(-np.inf))
    return other


@pytest.mark.quick("0.7-*", "1e-09-*", "1000000000.0-float32", "1.0000003-float64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("D", PLACED)
def test_neighbours_are_at_most_shift_cells_apart(D, dtype):
    """Under the same word, at grid boundaries above all; and as far apart as that somewhere."""
    sampler = placed_form(D)
    shift, table = sampler.certificate.shift, sampler.table
    low = odd_inputs(sampler, dtype)
    low = low[low <= low.max() / 2]
    high = np.array([partner(x, D) for x in low])
    apart = set()
    for words in (
        np.zeros(len(low)),
        np.full(len(low), 2**32 - 1),
        edge_words(table, len(low)),
        RNG.integers(0, 1 << 32, len(low)),
    ):
        apart |= set((positions(sampler, high, words) - positions(sampler, low, words)).tolist())
    assert 0 <= min(apart) <= max(apart) == shift


@pytest.mark.parametrize(("D", "grain", "grains"), [(1.0, -3, 3), (0.7, -5, 4), (1.0, 0, 1), (1.3, -2, 1), (0.3, 0, 2)])
def test_the_shift_is_attained_on_coarse_grids(D, grain, grains):
    """All pairs of a fine set of inputs, all r, in Fractions: the bound holds, and no smaller one would."""
    table = plain_table([1 << 16], 0, 16, grain, grains)
    shift, fine = table.cells(Fraction(D)), Fraction(2) ** grain / 8
    words = [-(-(r << 32) // grains) for r in range(grains)]
    at = [[slow_position(table, float(k * fine), word) for word in words] for k in range(-70, 70)]
    reach = math.floor(Fraction(D) / fine)
    apart = {
        b - a
        for k, first in enumerate(at)
        for other in at[k : k + reach + 1]
        for a, b in zip(first, other, strict=True)
    }
    assert max(apart) <= shift
    assert min(apart) == 0
    assert max(apart) >= shift - 1


@pytest.mark.parametrize("D", [1.0, 2.0**-40, 4.0])
def test_rounding_keeps_the_mean(D):
    """Over all r, the mean position is the input rounded to its grain, exactly."""
    sampler = placed_form(D)
    M, g = sampler.table.points_per_bin, Fraction(2) ** sampler.table.grid_log2
    assert (1 << 32) % M == 0
    words = (np.arange(M, dtype=np.uint64) * ((1 << 32) // M)).astype(np.uint32)
    for x in [*RNG.uniform(-5 * D, 5 * D, 8).tolist(), 0.0, D / 3, -1e7 * D]:
        total = int(positions(sampler, np.full(M, x), words).sum())
        assert Fraction(total, M) * sampler.table.bin_width == g * math.floor(Fraction(x) / g + Fraction(1, 2))
        assert abs(Fraction(total, M) * sampler.table.bin_width - Fraction(x)) <= g / 2


@pytest.mark.parametrize("D", [0.7, 0.1, 3.0])
def test_other_grain_counts_keep_the_mean_to_a_part_in_2_to_the_32(D):
    """Each r has floor or ceil of 2^32/M words: their edges, in integers."""
    sampler = placed_form(D)
    M = sampler.table.points_per_bin
    first = [-(-(r << 32) // M) for r in range(M + 1)]
    shares = {b - a for a, b in itertools.pairwise(first)}
    assert shares <= {(1 << 32) // M, -(-(1 << 32) // M)}
    some = RNG.integers(1, M, 500)
    words = np.array([first[r] for r in some], np.uint32)
    g = 2.0**sampler.table.grid_log2
    x = -some * g  # Position 0 from r = some on, else -1.
    assert set(positions(sampler, x, words).tolist()) == {0}
    assert set(positions(sampler, x, words - np.uint32(1)).tolist()) == {-1}


# The integers themselves.


@a_few_quickly
@every_claim
def test_tables_are_distributions(name):
    table = exact(name).table
    assert table.total == sum(table.outcomes) == 1 << 64
    assert table.first <= 0 <= table.last
    assert min(table.outcomes) > 0
    peak = table.outcomes.index(max(table.outcomes))
    steps = np.sign(np.diff(np.array(table.outcomes, object)).astype(float))
    assert set(steps[:peak]) <= {0.0, 1.0}
    assert set(steps[peak:]) <= {0.0, -1.0}
    assert table.is_unimodal


@pytest.mark.quick("laplace-1", "gaussian-1", "staircase-0.5", "discrete-*")
@every_claim
def test_even_laws_have_even_tables(name):
    table = exact(name).table
    law = claim(name).noise
    even = bool(
        np.allclose(law.cdf(-0.37 * np.sqrt(law.variance)), 1 - law.cdf(0.37 * np.sqrt(law.variance)), rtol=1e-9)
    )
    even = even or "discrete" in name
    assert (table.outcomes == table.outcomes[::-1]) == even
    assert (table.first == -table.last) or not even
    assert (table.mean == 0) == even


@pytest.mark.lengthy
@every_claim
def test_the_variance_is_the_laws(name):
    """Up to the rounding of the noise to cells, of the input, and what a finite table needs to be wider."""
    table, law = exact(name).table, claim(name).noise
    total = sum(w * (table.first + j) ** 2 for j, w in enumerate(table.outcomes))
    by_hand = (Fraction(total, 1 << 64) - (table.mean / table.bin_width) ** 2) * table.bin_width**2
    assert by_hand == table.variance
    assert float(table.variance) / float(law.variance) - 1 == pytest.approx(0, abs=PROMISED_COST)
    if "discrete" not in name:
        assert abs(exact(name).variance_cost) <= PROMISED_COST


@pytest.mark.lengthy
@pytest.mark.quick("begins-in-cell-0", "recycled-truncated", "truncated-laplace")
@pytest.mark.parametrize("name", sorted(SKEWED))
def test_skewed_laws_keep_their_mean(name):
    table, law = small_table(name, 64, 1 << 15), SMALL[name]
    assert float(table.mean) == pytest.approx(float(law.mean), abs=2e-3 * float(law.variance) ** 0.5)


@every_law
def test_weights_are_the_laws_masses(name):
    """Cell by cell, against differences of the cdf."""
    table, law, D = small_table(name, 64, 1 << 12), SMALL[name], sensitivity(name)
    if "discrete" in name:
        masses = law.probabilities
    else:
        edges = (np.arange(table.first, table.last + 2) - 0.5) * D / table.cells(Fraction(D))
        masses = law.mass(edges[:-1], edges[1:])
    found = np.array(table.outcomes, float) / 2.0**64
    np.testing.assert_allclose(found, masses, rtol=1e-6, atol=3e-12 * masses.max())


@pytest.mark.parametrize("D", [*PLACED, 1e-30, 1e290, np.nextafter(1, 0), np.nextafter(1, 2)])
@pytest.mark.parametrize("parts", [1, 2, 64, 4096])
def test_a_grid_covers_the_sensitivity(D, parts):
    grain, grains = covering_grid(Fraction(D), parts)
    cell = grains * Fraction(2) ** grain
    shift = cells_apart(Fraction(D), grain, grains)
    assert 1 << 22 <= Fraction(D) / Fraction(2) ** grain < 1 << 23
    assert shift <= parts
    assert Fraction(D) <= shift * cell < Fraction(D) * (1 + Fraction(1, 900))


@pytest.mark.parametrize("step", [1.0, 0.5, 3.0, 0.375, 1e6, 2.0**-20, float(np.float32(0.1))])
@pytest.mark.parametrize("D", [1e-3, 1.0, 7.0])
def test_lattices_are_kept_exactly_and_have_room(step, D):
    grain, grains = lattice_grid(step, Fraction(D) * Fraction(step))
    assert grains * Fraction(2) ** grain == Fraction(step)
    assert Fraction(D) * Fraction(step) / Fraction(2) ** grain <= 1 << 27


@pytest.mark.parametrize(("step", "D"), [(0.1, 1.0), (1 / 3, 1.0), (2.0**-30, 1.0), (float(np.float32(0.1)), 1e6)])
def test_lattices_too_fine_for_integers_are_refused(step, D):
    with pytest.raises(CertificateError, match=r"^step: .* short binary fraction"):
        lattice_grid(step, Fraction(D))


def test_noise_without_a_table_is_refused():
    with pytest.raises(TypeError, match="no table"):
        noise_table("laplace", Fraction(1))
    with pytest.raises(CertificateError, match=r"sensitivities of 0\.00391 cells wide; a table holds at most 1048576"):
        dpk.exact_sampler(dpk.gaussian(sigma=1e9, sensitivity=1.0, epsilon=1.0, delta=1e-5))
    with pytest.raises(CertificateError, match="codes for a total of 65536"):
        noise_table(dpk.Gaussian(1e4), Fraction(1), bits=16)


@pytest.mark.parametrize(
    "law",
    [
        dpk.Gaussian(1e-6),
        dpk.Gaussian(1e-140),
        dpk.Laplace(1e-9),
        dpk.DiscreteLaplace(1e-3),
        dpk.DiscreteGaussian(0.01),
    ],
)
def test_noise_too_narrow_for_a_table_is_refused(law):
    with pytest.raises(CertificateError, match=r"^noise: .*too narrow"):
        dpk.exact_sampler(dpk.Additive(law).claim(sensitivity=1.0, epsilon=1.0, delta=0.9999))


def test_tables_cannot_be_changed():
    given = np.array([1, 2, 1], np.uint64)
    table = NoiseTable(given, -1, 2, 0, 1)
    given[0] = 9
    assert table.outcomes == [1, 2, 1]
    with pytest.raises(ValueError, match="read-only"):
        table.weights[0] = 9


@pytest.mark.slow
def test_every_32_bit_word_counts():
    """All 2^32 words through the compiled sampler: exactly the weights."""
    table = noise_table(dpk.Laplace(1.0), Fraction(1), bits=32, codes=1 << 12)
    sample, total = jax.jit(table.kernel()), np.zeros(table.codes, np.int64)
    piece = np.arange(1 << 20, dtype=np.uint32)
    for first in range(0, 1 << 32, len(piece)):
        total += np.bincount(np.asarray(sample(piece + np.uint32(first))) - table.first, minlength=table.codes)
    np.testing.assert_array_equal(total, table.weights)


def pure_claims(epsilon, D):
    yield dpk.laplace(epsilon=epsilon, sensitivity=D)
    yield dpk.staircase(epsilon=epsilon, sensitivity=D)
    for delta in (1e-2, 1e-5, 1e-9, 1e-14):
        yield dpk.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=D)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("D", [1e-9, 0.1, 1.0000003, 3.0, 1e9])
def test_claims_of_every_size_are_certified(epsilon, D):
    for made in pure_claims(epsilon, D):
        sampler = dpk.exact_sampler(made)
        assert sampler.certificate.realised_delta <= Fraction(repr(made.delta))
        # The high steps of a staircase are narrower than cells at the largest budgets.
        assert abs(sampler.variance_cost) <= (2 if epsilon == 20.0 else 1) * PROMISED_COST


def test_what_is_given_away_is_not_what_is_sampled():
    """Whoever changes a form of a table changes nothing of the table."""
    table = exact("laplace-1").table
    before = list(table.outcomes)
    table.to_dict()["weights"].reverse()
    table.to_dict()["weights"][0] += 1
    assert table.outcomes == before
