"""The compiled samplers against the certified integers, word by word.

At 16 random bits every word is tried, for every kind of mechanism. At 32 bits all 2^32 words are tried under
``-m slow``, a contiguous slice of 2^24 otherwise, and at 64 bits the words at every boundary.
"""

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_registry import LARGE, SMALL, exact, mechanism, slow_sampler, small_table, tables
from noise_tables import form_of, plain_table

from dpkernels import laplace, piecewise
from dpkernels.decimals import rational
from dpkernels.exact.alias import alias_columns, alias_kernel
from dpkernels.exact.bounded.sampler import nearest_rows
from dpkernels.exact.bounded.windows import ExactWindow, WindowCertificate
from dpkernels.exact.registry import ExactMixture
from dpkernels.exact.sampler import COORDINATE_STREAM, order_keys
from dpkernels.random import host
from dpkernels.release import perturb as perturbation

WORDS16 = np.arange(1 << 16, dtype=np.uint16)
SLICE = 1 << 24
RNG = np.random.default_rng(2)

every_small_case = pytest.mark.parametrize(("name", "epsilon"), SMALL)


def sampler(table):
    """The compiled kernel: (words, one row) -> codes."""
    kernel = table.kernel()
    return jax.jit(lambda words, row: kernel(words, jnp.full(words.shape, row, jnp.int32)))


def counts(sample, table, words, row):
    return np.bincount(np.asarray(sample(words, np.int32(row))), minlength=table.codes)


def some_rows(table):
    return sorted({0, 1, table.last_row // 2, table.last_row - 1, table.last_row})


# All words at 16 bits.


@pytest.mark.lengthy
@every_small_case
def test_every_16_bit_word_counts(name, epsilon):
    """The outcomes of the 2^16 words are exactly the certified weights, in every row tried."""
    table = small_table(name, epsilon)
    WindowCertificate.of(table, epsilon)
    sample = sampler(table)
    for row in some_rows(table):
        np.testing.assert_array_equal(counts(sample, table, WORDS16, row), table.row(row))


@pytest.mark.lengthy
@pytest.mark.quick("*-0.5")
@every_small_case
def test_every_row_has_the_same_support(name, epsilon):
    """Over all words, every row reports every code: no report rules an input out."""
    table = small_table(name, epsilon)
    sample = sampler(table)
    for row in range(table.last_row + 1):
        assert counts(sample, table, WORDS16, row).min() > 0


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["piecewise", "own", "duchi"])
def test_all_inputs_have_the_same_floats_as_reports(name, dtype):
    """Through the whole form, input rounding and values included: the sets of bit patterns are equal."""
    form = ExactWindow(mechanism(name, 0.5), WindowCertificate.of(small_table(name, 0.5), 0.5))
    lower, upper = (float(end) for end in form.mechanism.input_interval)
    supports = set()
    for share in (0.0, 0.123, 0.5, 1.0):
        x = np.full(1 << 16, lower + share * (upper - lower), dtype)
        rounding = RNG.integers(0, 1 << 32, 1 << 16, np.uint32)
        ends = order_keys(np.array([lower, upper], dtype))
        with jax.enable_x64(True):
            reports, inside = map(np.asarray, form.compiled(jnp.zeros_like(x), ends, x, WORDS16, rounding))
        assert inside
        assert reports.dtype == dtype
        supports.add(np.unique(reports).tobytes())
    assert len(supports) == 1
    assert len(np.unique(reports)) == form.table.codes


@pytest.mark.lengthy
def test_the_float_sampler_does_not():
    """Why the exact form exists: over all its 2^23 uniforms, most float32 reports of one input rule out another."""
    mechanism = piecewise(epsilon=1.0, lower=0.0, upper=1.0)
    u = (np.arange(1 << 23, dtype=np.float32) + np.float32(0.5)) * np.float32(2**-23)
    draw = jax.jit(mechanism.draw)
    first, second = (np.asarray(draw(u, jnp.float32(x))) for x in (0.1, 0.2))
    reachable = np.unique(second)
    at = np.minimum(np.searchsorted(reachable, first), len(reachable) - 1)
    assert np.mean(reachable[at] != first) > 0.3


# 32 and 64 bits.


@pytest.mark.lengthy
@pytest.mark.quick("0-piecewise-1.0", "0-duchi-1.0", "4278190080-piecewise-5.0")
@pytest.mark.parametrize(("name", "epsilon"), [("piecewise", 1.0), ("duchi", 1.0), ("piecewise", 5.0)])
@pytest.mark.parametrize("first", [0, 117 * SLICE, (1 << 32) - SLICE])
def test_a_slice_of_words_divides(name, epsilon, first):
    """2^24 words in a row against the division rule on the slice's ends: code j holds an interval of words."""
    table = exact(name, epsilon).table
    a, kappa, n, row = int(table.base[0]), int(table.window[0]), table.codes, table.last_row // 3
    words = np.arange(first, first + SLICE, dtype=np.uint64).astype(np.uint32)
    expected = np.zeros(n, np.int64)
    for start, weight, many, to in ((0, a, n, 0), (n * a, kappa, len(table.window), row)):
        edges = np.clip(start + weight * np.arange(many + 1, dtype=np.int64), first, first + SLICE)
        expected[to : to + many] += np.diff(edges)
    np.testing.assert_array_equal(counts(sampler(table), table, words, row), expected)


@pytest.mark.lengthy
@pytest.mark.parametrize(("name", "epsilon"), [("own", 1.0), ("sine-constant", 5.0)])
@pytest.mark.parametrize("first", [0, 117 * SLICE, (1 << 32) - SLICE])
def test_a_slice_of_words_looks_up(name, epsilon, first):
    """2^24 words in a row, a whole number of alias columns: counts are their thresholds and what is above."""
    table = exact(name, epsilon).table
    columns = alias_columns(table.outcomes, table.bits)
    capacity = 1 << (32 - columns.log_columns)
    inside = slice(first // capacity, (first + SLICE) // capacity)
    outcomes = np.zeros(1 << columns.log_columns, np.int64)
    np.add.at(outcomes, np.arange(inside.start, inside.stop), columns.threshold[inside])
    np.add.at(outcomes, columns.alias[inside], capacity - columns.threshold[inside].astype(np.int64))
    n, w, row = table.codes, len(table.window), table.last_row // 3
    expected = outcomes[:n].copy()
    expected[row : row + w] += outcomes[n : n + w]
    words = np.arange(first, first + SLICE, dtype=np.uint64).astype(np.uint32)
    np.testing.assert_array_equal(counts(sampler(table), table, words, row), expected)


@pytest.mark.lengthy
@pytest.mark.quick(
    "piecewise-1.0",
    "sine-quartic-1.0",
    "triangle-constant-1.0",
    "own-1.0",
    "duchi-1.0",
    "hybrid-1.0",
    "piecewise-8.0",
    "hybrid-0.01",
)
@pytest.mark.parametrize(
    ("name", "epsilon"), [(name, epsilon) for name, epsilon in LARGE if epsilon in (0.01, 1.0, 8.0)]
)
def test_words_at_the_boundaries(name, epsilon):
    """Where code changes, one word to either side, and random words, at 32 and 64 bits, in Python integers."""
    for table in tables(exact(name, epsilon)):
        code, dtype = slow_sampler(table), f"uint{table.bits}"
        if table.is_flat:
            a, kappa, n = int(table.base[0]), int(table.window[0]), table.codes
            edges = [a * j for j in RNG.integers(0, n + 1, 500).tolist()]
            edges += [n * a + kappa * i for i in RNG.integers(0, len(table.window), 500).tolist()]
        else:
            columns = alias_columns(table.outcomes, table.bits)
            capacity = 1 << (table.bits - columns.log_columns)
            some = RNG.integers(0, len(columns.alias), 500).tolist()
            edges = [c * capacity + at for c in some for at in (0, int(columns.threshold[c]))]
        words = {word for edge in edges for word in (edge - 1, edge, edge + 1) if 0 <= word < 1 << table.bits}
        words |= {0, (1 << table.bits) - 1, *RNG.integers(0, 1 << table.bits, 500, dtype).tolist()}
        row = table.last_row // 3
        with jax.enable_x64(True):
            codes = sampler(table)(np.array(sorted(words), dtype), np.int32(row))
        assert np.asarray(codes).tolist() == [code(word, row) for word in sorted(words)]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 31, 32, 33])
def test_every_word_of_an_alias_table_counts(count):
    """Tables of 2^k outcomes and of one more or less, by every program: in a full one the last column is an alias."""
    weights = RNG.integers(1, (1 << 16) // count, count)
    weights[-1] += (1 << 16) - weights.sum()
    columns = alias_columns(weights.tolist(), 16)
    kernel, tables_in_a_row = alias_kernel(columns), alias_kernel(stacked([columns, columns]))
    programs = {
        "host": kernel(WORDS16),
        "compiled": jax.jit(kernel)(WORDS16),
        "mapped": jax.vmap(kernel)(jnp.asarray(WORDS16).reshape(64, -1)).reshape(-1),
        "second of two, host": tables_in_a_row(WORDS16, np.int32(1)),
        "second of two, compiled": jax.jit(tables_in_a_row)(WORDS16, np.int32(1)),
    }
    if count > 1:
        sampler = form_of(laplace(epsilon=1.0), plain_table(weights, 0))
        x, ends, rounding = np.zeros(1 << 16), order_keys(np.array([-1.0, 1.0])), np.zeros(1 << 16, np.uint32)
        programs["release, host"] = sampler.reports(x, WORDS16, rounding)
        with jax.enable_x64(True):
            programs["release, compiled"] = sampler.compiled(jnp.zeros_like(x), ends, x, WORDS16, rounding)[0]
    for program, outcomes in programs.items():
        counts = np.bincount(np.asarray(outcomes).astype(int), minlength=count)
        assert counts.tolist() == weights.tolist(), program


def stacked(columns):
    """Return the columns of several tables in a row, as ``alias_kernel`` takes them."""
    return dataclasses.replace(columns[0], packed=np.concatenate([part.packed for part in columns]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("piecewise", 0.0), ("piecewise", 0.4), ("own", 1.0), ("own", 0.4)])
def test_every_32_bit_word_counts(name, share):
    """All 2^32 words through the compiled sampler for one input: exactly the certified weights."""
    table = exact(name, 1.0).table
    row, sample, total = round(share * table.last_row), sampler(table), np.zeros(table.codes, np.int64)
    piece = np.arange(1 << 20, dtype=np.uint32)  # Stays in the cache.
    for first in range(0, 1 << 32, len(piece)):
        total += counts(sample, table, piece + np.uint32(first), row)
    np.testing.assert_array_equal(total, table.row(row))


# Rounding an input between two rows.


def rounder(sampler):
    """The compiled rounding: (one input, words) -> rows."""
    rows = jax.jit(
        lambda x, words: nearest_rows(jnp.full(words.shape, x), words, sampler.table.last_row, *sampler.table.ends)
    )

    def compute(x, words):
        with jax.enable_x64(True):
            return np.asarray(rows(np.float64(x), words))

    return compute


def steps_of(sampler, x):
    """The input's place on the lattice of S 2^bits steps, as a Fraction."""
    lower, upper = rational(sampler.table.lower), rational(sampler.table.upper)
    return (Fraction(float(x)) - lower) / (upper - lower) * (sampler.table.last_row << sampler.fraction_bits)


def inputs(sampler, count):
    """Random inputs and the ends, but none half-way between two lattice steps, where float rounding decides."""
    lower, upper = (float(end) for end in sampler.mechanism.input_interval)
    values = [lower, upper, *RNG.uniform(lower, upper, count).tolist()]
    return [x for x in values if abs(steps_of(sampler, x) % 1 - Fraction(1, 2)) > Fraction(1, 100)]


@pytest.mark.parametrize(
    ("name", "epsilon"), [("piecewise", 1.0), ("own", 1.0), ("narrow", 0.5), ("sine-constant", 20.0)]
)
def test_inputs_are_rounded_with_exact_probability(name, epsilon):
    """Over all 2^16 rounding words, exactly as many go up as the input's place says."""
    sampler = exact(name, epsilon)
    assert sampler.words[1].bits == sampler.fraction_bits == 16
    compute = rounder(sampler)
    for x in inputs(sampler, 20):
        rows = compute(x, WORDS16)
        below, up = divmod(round(steps_of(sampler, x)), 1 << 16)
        assert rows.max() - rows.min() <= 1
        assert np.count_nonzero(rows == below + 1) == up
        assert np.count_nonzero(rows == below) == (1 << 16) - up


@pytest.mark.parametrize("name", ["duchi", "piecewise"])
def test_few_rows_are_rounded_with_more_bits(name):
    """Fewer than 256 rows: 30 bits in all. The words at which the row changes are where the place says."""
    form = ExactWindow(mechanism(name, 0.5), WindowCertificate.of(small_table(name, 0.5), 0.5))
    bits = form.fraction_bits
    assert form.table.last_row << bits >= 1 << 29
    compute = rounder(form)
    for x in inputs(form, 20):
        below, up = divmod(round(steps_of(form, x)), 1 << bits)
        last_down = (1 << bits) - up - 1
        words = np.array([0, last_down, min(last_down + 1, (1 << bits) - 1), (1 << bits) - 1], np.uint32)
        assert compute(x, words).tolist() == [below, below, below + (up > 0), below + (up > 0)]


@pytest.mark.parametrize("name", ["piecewise", "own", "duchi", "narrow"])
def test_the_ends_are_never_rounded(name):
    sampler = exact(name, 1.0)
    lower, upper = (float(end) for end in sampler.mechanism.input_interval)
    words = RNG.integers(0, 1 << sampler.words[1].bits, 1 << 16, f"uint{sampler.words[1].bits}")
    words[:2] = 0, np.iinfo(words.dtype).max
    assert set(rounder(sampler)(lower, words).tolist()) == {0}
    assert set(rounder(sampler)(upper, words).tolist()) == {sampler.table.last_row}


@pytest.mark.parametrize("name", ["piecewise", "duchi"])
def test_inputs_a_hair_outside_stay_in_the_table(name):
    """A bound that float32 rounds outwards is accepted; its row exists."""
    sampler = exact(name, 1.0)
    lower, upper = (float(end) for end in sampler.mechanism.input_interval)
    words = np.array([0, np.iinfo(f"uint{sampler.words[1].bits}").max], f"uint{sampler.words[1].bits}")
    hair = 1e-6 * (upper - lower)
    assert set(rounder(sampler)(lower - hair, words).tolist()) == {0}
    assert set(rounder(sampler)(upper + hair, words).tolist()) == {sampler.table.last_row}


# Choices that do not depend on the input.


@pytest.mark.lengthy
@pytest.mark.quick("1.0")
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 5.0, 20.0])
def test_a_mixture_chooses_with_exact_probability(epsilon):
    """Words below the threshold, and no others, report by the first table."""
    sampler = exact("hybrid", epsilon)
    assert isinstance(sampler, ExactMixture)
    threshold, (*shared, choice_need) = sampler.certificate.threshold, sampler.words
    assert threshold == round(sampler.mechanism.weight * 2**choice_need.bits)
    words = [RNG.integers(0, 1 << need.bits, 1000, f"uint{need.bits}") for need in shared]
    x = RNG.uniform(*sampler.mechanism.input_interval, 1000)
    with jax.enable_x64(True):
        first, second = (
            part.reports(
                jnp.asarray(x),
                *(jnp.asarray(word.astype(f"uint{need.bits}")) for word, need in zip(words, part.words, strict=True)),
            )
            for part in (sampler.first, sampler.second)
        )
        for choice, reports in ((0, first), (threshold - 1, first), (threshold, second), (2**32 - 1, second)):
            mixed = sampler.reports(*map(jnp.asarray, (x, *words, np.full(1000, choice, np.uint32))))
            np.testing.assert_array_equal(mixed, reports)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 7, 1000, 2**31 - 1])
def test_vectors_start_at_the_floor_of_word_times_d(dimensions):
    secret = bytes(range(32))
    words = np.empty(5000, "<u8")
    host.fill(words, secret, COORDINATE_STREAM, 64 * 64 // 512)
    starts = perturbation._starts(secret, 64, 5000, dimensions)
    assert starts.tolist() == [word * dimensions >> 64 for word in words.tolist()]
    assert 0 <= min(starts) <= max(starts) < dimensions
