"""``perturb`` with additive noise: reports are the table's codes about the input, on any kind and device.

Keys are fixed, so no run can fail by chance.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from key_helpers import column_key, numbered_key
from noise_tables import claim, exact, form_of, positions, slow_position, slow_sampler, small_table
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.sampler import order_keys
from dpkernels.random import host
from dpkernels.release import engines as release
from dpkernels.release.engines import DeviceRelease, HostRelease, in_chunks
from dpkernels.release.inputs import Bounds

SECRET = bytes(range(9, 41))
KEY = dpk.key_from_bytes(SECRET)
RNG = np.random.default_rng(17)
ALARM = 1e-6
KINDS = ("laplace-1-odd", "gaussian-1", "truncated-laplace-1e-2", "discrete-gaussian")
every_kind = pytest.mark.parametrize("name", KINDS)


def inputs(count, dtype=np.float64):
    return RNG.normal(0, 30, count).astype(dtype)


def perturb(x, made, **how):
    return dpk.perturb(x, made, key=KEY, **how)


# What is reported.


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_kind
def test_reports_are_made_of_the_keys_words_by_position(name, dtype):
    """Everything again in Python integers: OpenSSL's words, the input's place, the code, the report."""
    sampler, x = exact(name), inputs(300, dtype)
    noise, rounding = (np.empty(300, f"<u{need.bits // 8}") for need in sampler.words)
    for need, words in zip(sampler.words, (noise, rounding), strict=True):
        host.fill(words, SECRET, need.stream, 0)
    code = slow_sampler(sampler.table)
    expected = [
        float((slow_position(sampler.table, at, r) + code(word)) * sampler.table.bin_width)
        for at, word, r in zip(x, noise.tolist(), rounding.tolist(), strict=True)
    ]
    reports = perturb(x, sampler)
    assert reports.dtype == dtype
    np.testing.assert_array_equal(reports, np.array(expected).astype(dtype))


@pytest.mark.lengthy
@every_kind
def test_reports_are_exact_multiples_of_the_cell(name):
    reports, cell = perturb(inputs(20_000), exact(name)), exact(name).table.bin_width
    assert all((Fraction(report) / cell).denominator == 1 for report in reports.tolist())


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["laplace", "staircase-0.3", "truncated-laplace", "discrete-laplace-thirds", "merged"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_inputs_have_the_tables_codes_as_noise(name, dtype):
    """All 2^16 words through the whole form: the support moves with the input, and nothing else does."""
    table = small_table(name)
    sampler = form_of(dpk.laplace(epsilon=1.0, sensitivity=float(table.bin_width)), table)
    words = np.arange(1 << 16, dtype=np.uint16)
    for x in (0.0, 0.1, -3.7, 1234.5):
        for r in (0, 12345, 2**32 - 1):
            at = np.full(1 << 16, x, dtype)
            rounding = np.full(1 << 16, r, np.uint32)
            ends = order_keys(np.array([-2000.0, 2000.0], dtype))
            with jax.enable_x64(True):
                reports, inside = map(np.asarray, sampler.compiled(jnp.zeros_like(at), ends, at, words, rounding))
            assert inside
            place = slow_position(table, at[0], r)
            every, counts = np.unique(reports, return_counts=True)
            weights = {}
            for j, weight in enumerate(table.outcomes):
                value = float((place + table.first + j) * table.bin_width)
                value = float(np.dtype(dtype).type(value))
                weights[value] = weights.get(value, 0) + weight
            assert dict(zip(every.tolist(), counts.tolist(), strict=True)) == {v: w for v, w in weights.items() if w}


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 4)])
@every_kind
def test_shapes_are_kept(name, shape):
    x = inputs(24).ravel()[: int(np.prod(shape))]
    reports = perturb(x.reshape(shape), exact(name))
    assert reports.shape == shape
    np.testing.assert_array_equal(reports.ravel(), perturb(x, exact(name)))


@pytest.mark.parametrize("x64", [False, True])
@every_kind
def test_jax_arrays_have_the_same_noise(name, x64):
    """float32 without JAX's 64-bit types, though positions need them."""
    x = inputs(500, np.float64 if x64 else np.float32)
    with jax.enable_x64(x64):
        reports = perturb(jnp.asarray(x), exact(name))
        assert isinstance(reports, jax.Array)
        assert reports.dtype == x.dtype
    np.testing.assert_array_equal(reports, perturb(x, exact(name)))


@pytest.mark.quick("laplace-1-odd")
@every_kind
def test_the_device_engine_makes_the_same_reports(name):
    """ChaCha20 and the kernel in one computation, against OpenSSL's words."""
    sampler, x = exact(name), inputs(1000)
    engine, bounds = DeviceRelease(sampler, SECRET, (jax.devices()[0],)), Bounds.of(sampler.mechanism, clip=False)
    for start in (0, 1, 15, 31, 320, 347):  # Words of 32 and of 64 bits have other blocks before most of these.
        np.testing.assert_array_equal(in_chunks(engine, bounds, x[start:], start=start), perturb(x, sampler)[start:])


@pytest.mark.parametrize("dtype", ["int16", "int64", "float16"])
def test_other_types_are_widened(dtype):
    x = np.arange(-20, 20).astype(dtype)
    wide = np.float32 if dtype == "float16" else np.float64
    np.testing.assert_array_equal(
        perturb(x, exact("laplace-1")), perturb(x.astype(wide), exact("laplace-1")), strict=True
    )


def test_columns_of_tables():
    import pandas as pd

    x = inputs(50)
    made = claim("laplace-1")
    reports = perturb(pd.Series(x, index=range(5, 55), name="sum"), made)
    assert (reports.name, list(reports.index)) == ("sum", list(range(5, 55)))
    np.testing.assert_array_equal(reports.to_numpy(), perturb(x, made))
    table = perturb(pd.DataFrame({"a": x, "b": x, "c": x}), {"a": made, "c": claim("gaussian-1")})
    assert (table["b"] == x).all()
    np.testing.assert_array_equal(table["a"], dpk.perturb(x, made, key=column_key(SECRET, "a")))
    np.testing.assert_array_equal(table["c"], dpk.perturb(x, claim("gaussian-1"), key=column_key(SECRET, "c")))


def test_fresh_releases_differ():
    x = inputs(1000)
    first, second = (dpk.perturb(x, exact("gaussian-1")) for _ in range(2))
    assert np.mean(first == second) < 0.01


def test_simulations_have_the_mechanisms_law():
    made, x = claim("laplace-1"), np.full(100_000, 3.5)
    noise = dpk.perturb(x, made, key=dpk.simulation_key(2), exact=False) - x
    assert stats.kstest(noise, made.noise.cdf).pvalue > ALARM


# Noise belongs to the key and the position.


@pytest.mark.lengthy
@pytest.mark.parametrize(("chunk", "workers"), [(1000, 1), (77, 3), (4096, 9)])
@every_kind
def test_noise_does_not_depend_on_chunks_or_workers(monkeypatch, name, chunk, workers):
    sampler, x = exact(name), inputs(9001)
    whole = perturb(x, sampler)
    monkeypatch.setattr(release, "CHUNK", chunk)
    monkeypatch.setattr(release, "_WORKERS", workers)
    np.testing.assert_array_equal(perturb(x, sampler), whole)


@pytest.mark.parametrize("start", [1, 8, 31, 32, 1001, 8191])
def test_a_piece_from_any_start_is_a_slice_of_the_whole(start):
    sampler, x = exact("laplace-1-odd"), inputs(9000)
    engine, bounds = HostRelease(sampler, SECRET), Bounds.of(sampler.mechanism, clip=False)
    piece = in_chunks(engine, bounds, x[start : start + 700], start=start)
    np.testing.assert_array_equal(piece, perturb(x, sampler)[start : start + 700])


def test_positions_past_32_bits_have_noise_of_their_own():
    sampler, x = exact("laplace-1"), np.zeros(64)
    engine, bounds = HostRelease(sampler, SECRET), Bounds.of(sampler.mechanism, clip=False)
    pieces = [in_chunks(engine, bounds, x, start=start) for start in (0, 2**31, 2**32, 2**35, 2**40)]
    assert len({piece.tobytes() for piece in pieces}) == len(pieces)


def test_a_rows_report_does_not_depend_on_other_rows():
    sampler, x = exact("gaussian-1"), inputs(3000)
    changed = x.copy()
    changed[::2] += 5
    np.testing.assert_array_equal(perturb(x, sampler)[1::2], perturb(changed, sampler)[1::2])


# The law of what is reported.

SAMPLES = 1 << 20


def codes_reported(sampler, x=0.0):
    """Counts by code, of reports of an input on the lattice, whose place is certain."""
    reports = perturb(np.full(SAMPLES, x), sampler) / float(sampler.table.bin_width)
    place = x / float(sampler.table.bin_width)
    assert place == round(place)
    return np.bincount((reports - place).astype(int) - sampler.table.first, minlength=sampler.table.codes)


def goodness(counts, weights):
    """Chi-squared, over runs of codes of about a 200th each."""
    share = np.array(weights, float) / sum(weights)
    bins = np.minimum((np.cumsum(share) * 200).astype(int), 199)
    expected = np.bincount(bins, share) * counts.sum()
    found = np.bincount(bins, counts)
    kept = expected > 20
    return stats.chisquare(found[kept], expected[kept] * found[kept].sum() / expected[kept].sum()).pvalue


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["laplace-1", "gaussian-1", "staircase-0.5", "truncated-discrete-laplace"])
def test_reports_have_the_tables_weights(name):
    sampler = exact(name)
    x = float(37 * sampler.table.bin_width)
    counts = codes_reported(sampler, x)
    assert goodness(counts, sampler.table.outcomes) > ALARM
    middle, far = -sampler.table.first, np.abs(np.arange(sampler.table.codes) + sampler.table.first)
    for factor in (1.05, 1 / 1.05):
        near = np.clip(np.rint(middle + (np.arange(sampler.table.codes) - middle) * factor), 0, sampler.table.codes - 1)
        if name == "truncated-discrete-laplace":
            wrong = np.exp(-far * float(sampler.table.bin_width) * factor / sampler.mechanism.noise.scale)
        else:
            wrong = np.array(sampler.table.outcomes, float)[near.astype(int)]
        assert goodness(counts, wrong) < ALARM


@pytest.mark.parametrize("name", KINDS)
def test_means_and_variances(name):
    """Of an input between two cells; within 6 standard errors."""
    sampler = exact(name)
    x = 12.3 * float(sampler.table.bin_width)
    error = perturb(np.full(SAMPLES, x), sampler) - x
    variance = float(sampler.table.variance)
    assert abs(error.mean()) < 6 * np.sqrt(variance / SAMPLES)
    assert np.mean(error**2) < float(sampler.certificate.worst_variance) * (1 + 0.02)
    assert np.mean(error**2) > variance * (1 - 0.02)


# Audits: Clopper-Pearson bounds from fresh samples.

N = 4_000_000


def hits(form, x, event, number):
    return int(event(dpk.perturb(np.full(N, x), form, key=numbered_key(SECRET, number))).sum())


def proved(first, second):
    """(lower bound of P, upper bound of Q), wrong with probability at most ALARM."""
    low = stats.beta.ppf(ALARM / 2, max(first, 1e-9), N - first + 1)
    return low, stats.beta.ppf(1 - ALARM / 2, second + 1, max(N - second, 1e-9))


def audited_budget(form, D):
    """On the best event of Laplace noise: a report below the smaller input."""
    first, second = (hits(form, x, lambda y: y < 0.0, n) for n, x in enumerate((0.0, D)))
    low, high = proved(first, second)
    return np.log(low / high)


@pytest.mark.lengthy
@pytest.mark.parametrize(("epsilon", "D"), [(0.5, 1.0), (1.0, 0.7), (2.0, 1.0)])
def test_an_audit_stays_below_the_budget_and_comes_close(epsilon, D):
    found = audited_budget(dpk.exact_sampler(dpk.laplace(epsilon=epsilon, sensitivity=D)), D)
    assert 0.98 * epsilon <= found <= epsilon


def test_an_audit_catches_noise_5_percent_too_narrow():
    """The table of a larger budget, released as if it were for 1."""
    mechanism = dpk.laplace(epsilon=1.0)
    assert audited_budget(form_of(mechanism, dpk.exact_sampler(dpk.laplace(epsilon=1.05)).table), 1.0) > 1.0


@pytest.mark.lengthy
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_an_audit_catches_a_dropped_tail(side):
    """Noise cut where 1e-3 is left: reports beyond the cut are possible for one neighbour only."""
    mechanism = dpk.laplace(epsilon=1.0)
    table = dpk.exact_sampler(mechanism).table
    weights, p = table.outcomes.copy(), np.array(table.outcomes, float) / 2.0**64
    cut = (np.cumsum(p) < 1e-3) & (side != "right") | (np.cumsum(p[::-1])[::-1] < 1e-3) & (side != "left")
    weights = [0 if gone else w for w, gone in zip(weights, cut, strict=True)]
    weights[-table.first] += (1 << 64) - sum(weights)
    planted = type(table)(np.array(weights, np.uint64), table.first, 64, table.grid_log2, table.points_per_bin)
    kept = np.flatnonzero(~cut)
    low_end, high_end = ((table.first + end) * float(table.bin_width) for end in (kept[0], kept[-1]))
    event = (lambda y: y < low_end + 1) if side != "right" else (lambda y: y > high_end)
    x, other = (0.0, 1.0)
    if side == "right":
        x, other = 1.0, 0.0
    for form, caught in ((form_of(mechanism, planted), True), (dpk.exact_sampler(mechanism), False)):
        low, high = proved(hits(form, x, event, 5), hits(form, other, event, 6))
        assert (low - np.exp(1.0) * high > mechanism.delta) == caught


# Inputs refused or clipped.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_is_always_refused(bad, clip, dtype):
    x = np.full(50, 3.0, dtype)
    x[17] = bad
    with pytest.raises(ValueError, match=r"x: row 17 is -?(nan|inf); every value must be finite"):
        perturb(x, exact("laplace-1"), clip=clip)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, "jax"])
def test_what_is_too_far_out_is_refused_or_clipped(kind):
    end = 2.0**34 * exact("laplace-1").mechanism.sensitivity
    x = np.array([1.0, -end, end, 4 * end, -7 * end])
    x = jnp.asarray(x) if kind == "jax" else x.astype(kind)
    with pytest.raises(ValueError, match=r"x: row 3 is .* outside the input interval \[-17179869184, 17179869184\]"):
        perturb(x, exact("laplace-1"))
    clipped = np.array([1.0, -end, end, end, -end]).astype(np.float32 if kind == "jax" else kind)
    np.testing.assert_array_equal(perturb(x, exact("laplace-1"), clip=True), perturb(clipped, exact("laplace-1")))


@pytest.mark.lengthy
@pytest.mark.parametrize("name", [*KINDS, "discrete-laplace-wide", "truncated-laplace-1e-6-huge", "laplace-5-tiny"])
def test_far_reports_are_near_their_inputs(name):
    """To the ends of the input interval: no integer overflows on the way."""
    sampler = exact(name)
    low, high = sampler.mechanism.input_interval
    x = np.concatenate([np.linspace(low, high, 999), np.geomspace(sampler.mechanism.sensitivity, high, 500)])
    error = np.abs(perturb(x, sampler) - x)
    reach = float(max(-sampler.certificate.lowest, sampler.certificate.highest) + sampler.table.bin_width)
    assert np.all(error <= reach + 2 * np.spacing(np.abs(x)))


def test_subnormal_inputs_are_next_to_0():
    """Processors may read them as 0: half a grain is more."""
    mechanism = dpk.laplace(epsilon=1.0, sensitivity=2.0**-103)
    sampler = dpk.exact_sampler(mechanism)
    assert sampler.subnormal_safe_radius == 2.0**-126 == np.finfo(np.float32).smallest_normal
    for x in (np.float32([1e-45, 1.1e-38, -1.1e-38, 0.0]), np.float64([5e-324, -2e-308, 1e-310, 0.0])):
        Bounds.of(sampler, clip=False).check(x, 0)
        for r in (0, 2**32 - 1):
            words = np.full(4, r, np.uint32)
            assert positions(sampler, x, words).tolist() == [slow_position(sampler.table, at, r) for at in x]


@pytest.mark.lengthy
def test_integers_that_the_floats_of_reports_would_round_are_refused():
    """Of 2^30 + 1 and 2^30 + 65, 64 apart, float32 makes two numbers that are 128 apart."""
    x = np.array([(1 << 30) + 1, (1 << 30) + 65])
    noise = dpk.laplace(epsilon=1.0, sensitivity=64.0)
    assert np.ptp(x.astype(np.float32)) == 128
    vector = dpk.on_vectors(noise, dimensions=2, norm="l1", lattice=1.0)
    for mechanism in (noise, vector):
        bounds = Bounds.of(mechanism, clip=False)
        with jax.enable_x64(False), pytest.raises(ValueError, match=r"row 0 is .*float32 rounds int32 beyond 16777215"):
            bounds.check_on_device(jnp.asarray(x, jnp.int32))  # As arrays on accelerators come here.
        assert dpk.perturb(x, mechanism).dtype == np.float64
    noise = dpk.laplace(epsilon=1.0, sensitivity=2.0**30)
    with pytest.raises(ValueError, match=r"row 1 is .*float64 rounds int64 beyond 9007199254740991"):
        dpk.perturb(np.array([5, -(1 << 54) - 1]), noise)
    with jax.enable_x64(True):
        wide = jnp.asarray([5, 1 << 53])
    with pytest.raises(ValueError, match=r"row 1 is .*float64 rounds int64"):
        Bounds.of(noise, clip=False).check_on_device(wide)


def test_clipped_integers_are_within_what_floats_hold_or_refused():
    near = dpk.central_piecewise(epsilon=1.0, lower=0.0, upper=4.0, sensitivity=1.0)
    far = np.array([1 << 60, 3])
    np.testing.assert_array_equal(perturb(far, near, clip=True), perturb(np.array([4.0, 3.0]), near))
    with pytest.raises(ValueError, match=r"row 0 is .*float64 rounds int64"):
        perturb(far, dpk.laplace(epsilon=1.0, sensitivity=2.0**30), clip=True)


def test_noise_that_float32_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"x: holds float32, and inputs or reports reach 1\.7.*use float64"):
        dpk.perturb(np.ones(3, np.float32), dpk.laplace(epsilon=1.0, sensitivity=1e60))
    assert np.isfinite(dpk.perturb(np.ones(3), dpk.laplace(epsilon=1.0, sensitivity=1e60))).all()
