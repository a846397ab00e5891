"""``perturb``: certified reports whose noise belongs to a key and a position, and inputs refused in time."""

import dataclasses
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_flags import several_devices
from exact_registry import EVERY, exact, mechanism, slow_sampler, tables
from releases import stops
from scipy import stats

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.random import host
from dpkernels.release import engines as release
from dpkernels.release import host_engine
from dpkernels.release import perturb as perturbation
from dpkernels.release.engines import DeviceRelease, HostRelease, in_chunks
from dpkernels.release.inputs import Bounds

SECRET = bytes(range(5, 37))
KEY = dpk.key_from_bytes(SECRET)
RNG = np.random.default_rng(3)
KINDS = ("piecewise", "sine-constant", "duchi", "hybrid")


def inputs(made, shape, dtype=np.float64):
    lower, upper = made.input_interval
    return RNG.uniform(lower, upper, shape).astype(dtype)


def perturb(x, made, **how):
    return dpk.perturb(x, made, key=KEY, **how)


# What is reported.


@pytest.mark.lengthy
@pytest.mark.parametrize("name", EVERY)
def test_reports_are_codes_of_the_table(name):
    """Every report is the value of a code, so it is on the lattice and in the certified range."""
    sampler = exact(name, 1.0)
    reports = perturb(inputs(sampler.mechanism, 20_000), sampler)
    codes = np.concatenate([[float(table.value(j)) for j in range(table.codes)] for table in tables(sampler)])
    codes.sort()
    step = min(float(table.report_step) for table in tables(sampler))
    at = np.clip(np.searchsorted(codes, reports), 1, len(codes) - 1)
    off = np.minimum(abs(codes[at] - reports), abs(codes[at - 1] - reports))
    assert off.max() <= 1e-9 * step + 4 * np.spacing(abs(reports).max())
    assert sampler.certificate.lowest <= rational(reports.min()) + Fraction(1, 10**9)
    assert rational(reports.max()) <= sampler.certificate.highest + Fraction(1, 10**9)


@pytest.mark.parametrize("name", ["piecewise", "own", "duchi"])
def test_reports_are_made_of_the_keys_words_by_position(name):
    """Everything again in Python integers: OpenSSL's words, the rounded row, the code, its value."""
    sampler = exact(name, 1.0)
    table, bits = sampler.table, sampler.fraction_bits
    x = inputs(sampler.mechanism, 500)
    noise, rounding = (np.empty(500, f"<u{need.bits // 8}") for need in sampler.words)
    for need, words in zip(sampler.words, (noise, rounding), strict=True):
        host.fill(words, SECRET, need.stream, 0)
    steps = (x - table.lower) / (table.upper - table.lower) * (table.last_row << bits)
    code = slow_sampler(table)
    for report, at, word, extra in zip(
        perturb(x, sampler).tolist(), steps.tolist(), noise.tolist(), rounding.tolist(), strict=True
    ):
        row = (round(at) + extra % (1 << bits)) >> bits
        assert report == pytest.approx(float(table.value(code(word, row))), rel=1e-12)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_means_and_variances_are_the_mechanisms(name, share):
    """Fixed key, within 6 standard errors; the fourth moment of bounded reports is at most range^2 variance."""
    made, n = mechanism(name, 1.0), 200_000
    lower, upper = made.input_interval
    at = lower + share * (upper - lower)
    error = perturb(np.full(n, at), made) - at
    variance, reach = float(made.variance(at)), made.output_interval[1] - made.output_interval[0]
    assert abs(error.mean()) <= 6 * np.sqrt(variance / n)
    assert abs((error**2).mean() / variance - 1) <= 1e-3 + 6 * reach / np.sqrt(variance * n)


@pytest.mark.parametrize("exactly", [True, False])
def test_fresh_releases_differ(exactly):
    made = mechanism("own", 1.0)
    x = inputs(made, 1000)
    first, second = (dpk.perturb(x, made, exact=exactly) for _ in range(2))
    assert np.mean(first == second) < 0.05


def test_an_exact_form_is_taken_for_its_mechanism():
    made = mechanism("piecewise", 1.0)
    x = inputs(made, 1000)
    np.testing.assert_array_equal(perturb(x, made), perturb(x, dpk.exact_sampler(made)))
    how = {"key": jax.random.key(0), "exact": False}
    np.testing.assert_array_equal(dpk.perturb(x, made, **how), dpk.perturb(x, dpk.exact_sampler(made), **how))


# Noise belongs to the key and the position.


@pytest.mark.lengthy
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("chunk", "workers"), [(1000, 1), (1000, 3), (77, 2), (4096, 9)])
def test_noise_does_not_depend_on_chunks_or_workers(monkeypatch, name, chunk, workers):
    made = mechanism(name, 1.0)
    x = inputs(made, 10_007)
    whole = perturb(x, made)
    monkeypatch.setattr(release, "CHUNK", chunk)
    monkeypatch.setattr(release, "_WORKERS", workers)
    np.testing.assert_array_equal(perturb(x, made), whole)


@pytest.mark.parametrize("name", [*KINDS, "own"])
@pytest.mark.parametrize("start", [1, 16, 31, 32, 1001, 8191])
def test_a_piece_from_any_start_is_a_slice_of_the_whole(name, start):
    sampler = exact(name, 8.0 if name == "own" else 1.0)
    x = inputs(sampler.mechanism, 9000)
    engine, bounds = HostRelease(sampler, SECRET), Bounds.of(sampler.mechanism, clip=False)
    piece = in_chunks(engine, bounds, x[start : start + 700], start=start)
    np.testing.assert_array_equal(piece, perturb(x, sampler)[start : start + 700])


@pytest.mark.parametrize("name", KINDS)
def test_positions_past_32_bits_have_noise_of_their_own(name):
    sampler = exact(name, 1.0)
    x = np.full(64, sampler.mechanism.middle)
    engine, bounds = HostRelease(sampler, SECRET), Bounds.of(sampler.mechanism, clip=False)
    pieces = [in_chunks(engine, bounds, x, start=start) for start in (0, 2**32, 2**35, 2**40)]
    assert len({piece.tobytes() for piece in pieces}) == len(pieces)


@pytest.mark.quick("own-float64")
@pytest.mark.parametrize(("name", "dtype"), [("piecewise", "float32"), ("hybrid", "float64"), ("own", "float64")])
def test_the_device_engine_makes_the_same_reports(name, dtype):
    """ChaCha20 and the kernel in one computation, against OpenSSL's words."""
    sampler = exact(name, 8.0 if name == "own" else 1.0)
    x = inputs(sampler.mechanism, 1000).astype(dtype)
    x = np.clip(x, *(np.dtype(dtype).type(end) for end in sampler.mechanism.input_interval))
    engine, bounds = DeviceRelease(sampler, SECRET, (jax.devices()[0],)), Bounds.of(sampler.mechanism, clip=False)
    for start in (0, 320):
        piece = in_chunks(engine, bounds, x[start:], start=start)
        np.testing.assert_array_equal(piece, perturb(x, sampler)[start:], strict=True)


def test_a_report_that_is_missing_is_an_error():
    """Of an engine that perturbs less than there is: memory that nobody wrote to is not returned as reports."""

    with pytest.raises(RuntimeError, match="x: 99 of 100 values were perturbed"):
        in_chunks(lambda x, *_: len(x) - 1, Bounds.of(AGES, clip=False), np.zeros(100))


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_devices_are_sent_a_chunk_before_the_last_one_is_back(monkeypatch, count):
    sampler, events = exact("piecewise", 1.0), []
    x, sent = inputs(sampler.mechanism, count), DeviceRelease.on_device
    monkeypatch.setattr(release, "_DEVICE_CHUNK", 256)
    monkeypatch.setattr(DeviceRelease, "on_device", lambda self, x, at: events.append(at) or sent(self, x, at))
    engine, bounds = DeviceRelease(sampler, SECRET, (jax.devices()[0],)), Bounds.of(sampler.mechanism, clip=False)
    reports = in_chunks(engine, bounds, x, advance=lambda done: events.append("back"))
    np.testing.assert_array_equal(reports, perturb(x, sampler))
    assert events == ([0, 256, "back", 512, "back", 768, "back", "back"] if count == 1000 else events)
    assert events.count("back") == -(-count // 256)


@pytest.mark.parametrize("start", [1, 31, 1001])
def test_the_device_engine_refuses_a_start_inside_a_block_or_serves_it(start):
    """Anything else would use the words of earlier rows again: noise shared by two rows."""
    sampler = exact("piecewise", 1.0)
    x = inputs(sampler.mechanism, 2000)
    engine, bounds = DeviceRelease(sampler, SECRET, (jax.devices()[0],)), Bounds.of(sampler.mechanism, clip=False)
    try:
        piece = in_chunks(engine, bounds, x[start:], start=start)
    except ValueError:
        return
    np.testing.assert_array_equal(piece, perturb(x, sampler)[start:])


@pytest.mark.parametrize("name", KINDS)
def test_a_rows_report_does_not_depend_on_other_rows(name):
    made = mechanism(name, 1.0)
    x = inputs(made, 3000)
    changed = x.copy()
    changed[::2] = inputs(made, 1500)
    np.testing.assert_array_equal(perturb(x, made)[1::2], perturb(changed, made)[1::2])
    np.testing.assert_array_equal(perturb(x, made)[:100], perturb(x[:100], made))


@pytest.mark.parametrize("name", KINDS)
def test_precisions_share_noise(name):
    """float32 and float64 of the same numbers report the same codes."""
    made = mechanism(name, 1.0)
    x = np.clip(inputs(made, 5000, np.float32), *np.float32(made.input_interval))
    wide = perturb(x.astype(np.float64), made, clip=True)
    np.testing.assert_array_equal(perturb(x, made), wide.astype(np.float32))


def test_positions_have_unrelated_noise():
    """Correlations of neighbours, and of positions a chunk or a block of words apart: fixed key, 6 sigma."""
    made, n = mechanism("piecewise", 1.0), 1 << 19
    noise = perturb(np.full(n, made.middle), made)
    noise = (noise - noise.mean()) / noise.std()
    for lag in (1, 16, 32, 1 << 10, 1 << 18):
        assert abs(np.mean(noise[:-lag] * noise[lag:])) < 6 / np.sqrt(n - lag)


# Simulation.


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-key0-float32", "duchi-key5-float64", "hybrid-key7-float64")
@pytest.mark.parametrize(
    ("name", "key", "dtype"),
    [
        *((name, jax.random.key(3), dtype) for name in KINDS for dtype in ("float32", "float64")),
        ("piecewise", KEY, "float32"),
        ("hybrid", KEY, "float64"),
    ],
)
def test_a_simulation_is_the_mechanisms_sample(name, key, dtype):
    made = mechanism(name, 1.0)
    x = np.clip(inputs(made, 5000, dtype), *np.asarray(made.input_interval, dtype))
    simulated = dpk.perturb(x, made, key=key, exact=False)
    with jax.enable_x64(dtype == "float64"):
        sampled = np.asarray(made.sample(key, jnp.asarray(x)))
    # XLA may compile a shape of its own with other fused multiply-adds: a unit in the last place.
    reach = abs(np.asarray(made.output_interval)).max()
    np.testing.assert_allclose(simulated, sampled, rtol=0, atol=8 * np.finfo(dtype).eps * reach)
    np.testing.assert_array_equal(dpk.perturb(x, made, key=key, exact=False), simulated)
    assert simulated.dtype == dtype


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
@pytest.mark.parametrize("key", [jax.random.key(3), KEY], ids=["threefry", "chacha20"])
def test_other_types_are_widened_before_they_are_sampled(key, dtype):
    made = mechanism("piecewise", 1.0)
    x = jnp.asarray([0.0, 1.0, 60.0, 120.0])
    sampled = made.sample(key, x.astype(dtype))
    assert sampled.dtype == jnp.float32
    np.testing.assert_array_equal(sampled, made.sample(key, x))


def test_a_simulation_does_not_depend_on_chunks(monkeypatch):
    made = mechanism("piecewise", 1.0)
    x, how = inputs(made, 9000), {"key": jax.random.key(3), "exact": False}
    whole = dpk.perturb(x, made, **how)
    monkeypatch.setattr(release, "CHUNK", 1024)
    np.testing.assert_allclose(dpk.perturb(x, made, **how), whole, rtol=0, atol=1e-12 * abs(whole).max())


# Vectors.


SPAN = {"lower": np.arange(7.0), "upper": np.arange(7.0) + 2}
VECTOR = dpk.multivariate(dimensions=7, epsilon=5.0, sampled=3, **SPAN)
# Duchi's reports are never the middle, which stands for "not reported".
TELLING = dpk.multivariate(dimensions=7, epsilon=5.0, sampled=3, coordinate="duchi", **SPAN)


def reported(x):
    """Which coordinates were."""
    return perturb(x, TELLING) != (TELLING.lower + TELLING.upper) / 2


def vector_inputs(rows):
    return RNG.uniform(VECTOR.lower, VECTOR.upper, (rows, 7))


def test_vectors_report_s_coordinates_and_the_middle_elsewhere():
    """A cyclic run of 3 in every row, starting anywhere alike: chi-squared at a fixed key."""
    coordinates = reported(vector_inputs(70_000))
    assert set(coordinates.sum(axis=1).tolist()) == {3}
    starts = coordinates & ~np.roll(coordinates, 1, axis=1)
    assert set(starts.sum(axis=1).tolist()) == {1}
    assert stats.chisquare(starts.sum(axis=0)).pvalue > 1e-6


def test_vectors_have_the_mechanisms_mean():
    n = 100_000
    x = np.broadcast_to(VECTOR.lower + np.array([0.0, 0.2, 0.7, 1.0, 1.3, 1.9, 2.0]), (n, 7))
    error = perturb(x, VECTOR).mean(axis=0) - x[0]
    assert np.all(abs(error) <= 6 * np.sqrt(VECTOR.variance(x[0]) / n))


def test_vectors_do_not_depend_on_blocks_of_rows(monkeypatch):
    x = vector_inputs(3000)
    whole = perturb(x, VECTOR)
    monkeypatch.setattr(perturbation, "_ROWS", 256)
    monkeypatch.setattr(release, "CHUNK", 100)
    np.testing.assert_array_equal(perturb(x, VECTOR), whole)
    np.testing.assert_array_equal(perturb(x.reshape(30, 100, 7), VECTOR), whole.reshape(30, 100, 7))
    np.testing.assert_array_equal(perturb(x[:10], VECTOR), whole[:10])


def test_which_coordinates_does_not_depend_on_the_data():
    np.testing.assert_array_equal(reported(vector_inputs(1000)), reported(vector_inputs(1000)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({(9, 4): np.nan}, "row 9, coordinate 4 is nan"),
        ({(9, 4): 8.0, (3, 0): -1.0}, "row 3, coordinate 0 is -1"),
    ],
)
def test_a_bad_coordinate_is_named(spoil, message):
    x = vector_inputs(20)
    for at, value in spoil.items():
        x[at] = value
    with pytest.raises(ValueError, match=message):
        perturb(x, VECTOR)


@pytest.mark.parametrize("shape", [(7, 3), (3,), ()])
def test_vectors_of_another_dimension_are_refused(shape):
    with pytest.raises(ValueError, match="last axis"):
        perturb(np.zeros(shape), VECTOR)


# Inputs refused or clipped.

AGES = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("exactly", [True, False])
def test_what_is_not_finite_is_always_refused(bad, dtype, clip, exactly):
    x = np.full(50, 3.0, dtype)
    x[17] = bad
    with pytest.raises(ValueError, match=r"x: row 17 is -?(nan|inf); every value must be finite"):
        dpk.perturb(x, AGES, clip=clip, exact=exactly)


@pytest.mark.parametrize("bad", [-1, 121, -1e-3, np.nextafter(120, 121), 1e300])
@pytest.mark.parametrize("exactly", [True, False])
def test_what_is_outside_is_refused(bad, exactly):
    x = np.full(50, 3.0)
    x[17] = bad
    with pytest.raises(ValueError, match=r"x: row 17 is .* outside the input interval \[0, 120\]"):
        dpk.perturb(x, AGES, exact=exactly)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_outside_are_refused(dtype):
    with pytest.raises(ValueError, match="row 1 is -7"):
        perturb(np.array([3, -7, -9], dtype), AGES)


def test_large_integers_are_compared_as_numbers():
    with pytest.raises(ValueError, match=r"row 0 is 1\.8446744073709552e\+19, outside"):
        perturb(np.array([2**64 - 1], np.uint64), AGES)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 121.0, -1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jax_arrays_are_checked_too(bad, dtype):
    x = np.full(50, 3.0, dtype)
    x[17] = bad
    with jax.enable_x64(dtype == "float64"), pytest.raises(ValueError, match="row 17"):
        perturb(jnp.asarray(x), AGES)


def test_the_first_bad_row_is_named_though_several_chunks_are_bad(monkeypatch):
    monkeypatch.setattr(release, "CHUNK", 64)
    monkeypatch.setattr(release, "_WORKERS", 4)
    x = np.full(20_000, 3.0)
    x[[900, 77, 19_000, 1500]] = [np.nan, 121, np.nan, -1]
    for _ in range(20):
        with pytest.raises(ValueError, match="row 77 is 121"):
            perturb(x, AGES)


def test_of_several_errors_the_first_in_order_is_raised(monkeypatch):
    """Though a later chunk fails while the first is still at work."""
    monkeypatch.setattr(release, "CHUNK", 10)
    monkeypatch.setattr(release, "_WORKERS", 4)
    stopped = stops(monkeypatch)

    def engine(x, start, *_):
        assert start or stopped.wait(60)
        raise RuntimeError(f"chunk at {start}")

    with pytest.raises(RuntimeError, match="chunk at 0"):
        in_chunks(engine, Bounds.of(AGES, clip=False), np.ones(100))


def test_a_release_does_not_wait_for_the_pieces_of_another(monkeypatch):
    """Though these are under way, and more of them wait, in every thread of the pool."""
    monkeypatch.setattr(release, "CHUNK", 10)
    monkeypatch.setattr(release, "_WORKERS", 3)
    go, at_work, bounds, sizes = threading.Event(), threading.Semaphore(0), Bounds.of(AGES, clip=False), []

    def slow(x, *_):
        at_work.release()
        assert go.wait(60)
        return len(x)

    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(release, "_pool", lambda: pool)
        large = other.submit(in_chunks, slow, bounds, np.ones(1000))
        assert all(at_work.acquire(timeout=60) for _ in range(3))
        small = threading.Thread(
            target=in_chunks,
            args=(lambda x, *_: len(x), bounds, np.ones(100)),
            kwargs={"advance": sizes.append},
            daemon=True,
        )
        small.start()
        small.join(20)
        is_waiting = small.is_alive() or large.done()
        go.set()
        assert not is_waiting
        assert sum(sizes) == 100
        assert len(large.result()) == 1000


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clipping_is_clipping_the_input(name, dtype):
    made = mechanism(name, 1.0)
    lower, upper = made.input_interval
    x = RNG.uniform(lower - 5 * (upper - lower), upper + 5 * (upper - lower), 3000).astype(dtype)
    clipped = np.clip(x, np.dtype(dtype).type(lower), np.dtype(dtype).type(upper))
    np.testing.assert_array_equal(perturb(x, made, clip=True), perturb(clipped, made))


@pytest.mark.parametrize(("lower", "upper"), [(0.7, 0.9), (-0.5, 0.1), (1000.0, 1000.1)])
@pytest.mark.parametrize("exactly", [True, False])
def test_bounds_are_valid_as_the_datas_type_writes_them(lower, upper, exactly):
    """float32(0.7) < 0.7 and float32(0.1) > 0.1, yet they are the bounds; one float further is outside."""
    mechanism = dpk.piecewise(epsilon=1.0, lower=lower, upper=upper)
    ends = np.float32([lower, upper])
    assert np.isfinite(dpk.perturb(ends, mechanism, exact=exactly)).all()
    for end, way in zip(ends, (-np.inf, np.inf), strict=True):
        with pytest.raises(ValueError, match="outside"):
            dpk.perturb(np.nextafter(ends * 0 + end, np.float32(way)), mechanism, exact=exactly)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("wrap", [np.asarray, jnp.asarray])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_infinities_are_refused_though_the_bound_is_one_in_the_datas_type(wrap, clip):
    """1e39 is infinite in float32."""
    mechanism = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1e39)
    with pytest.raises(ValueError, match=r"row 1 is inf|holds float32, and inputs or reports reach"):
        perturb(wrap(np.array([1.0, np.inf], np.float32)), mechanism, clip=clip)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_reports_that_do_not_fit_the_datas_type_are_refused_not_infinite():
    mechanism = dpk.piecewise(epsilon=1.0, lower=0.0, upper=3e38)
    try:
        reports = perturb(np.full(1000, 1e38, np.float32), mechanism)
    except ValueError:
        return
    assert np.isfinite(reports).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 7)])
def test_nothing_cannot_be_perturbed(shape):
    for made in (AGES, VECTOR):
        with pytest.raises(ValueError, match="empty"):
            dpk.perturb(np.zeros(shape), made)


@pytest.mark.parametrize("made", ["piecewise", None, 3, dpk.piecewise, dpk.Sine()])
@pytest.mark.parametrize("exactly", [True, False])
def test_what_is_no_mechanism_is_refused(made, exactly):
    with pytest.raises(TypeError, match="mechanism"):
        dpk.perturb(np.ones(3), made, exact=exactly)


def test_a_mechanism_that_fails_its_certificate_is_not_released():
    faulty = dataclasses.replace(AGES, relative_height=AGES.relative_height * 1.01)
    with pytest.raises(dpk.CertificateError):
        dpk.perturb(np.ones(3), faulty)


def test_a_traced_mechanism_is_refused():
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda made: dpk.exact_sampler(made).table.bits)(AGES)


def test_progress_is_shown_and_changes_nothing(capsys):
    x = np.linspace(0, 120, 3000)
    np.testing.assert_array_equal(perturb(x, AGES, progress=True), perturb(x, AGES, progress=False))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("made", "shape"), [(AGES, (600_000,)), (VECTOR, (70_000, 7))])
def test_progress_counts_every_value_once(monkeypatch, made, shape):
    told = []
    secret = perturbation._secret(KEY, True)
    x = np.broadcast_to(np.asarray(made.upper, float), shape)
    settings = perturbation._Settings(secret, False, 0, None, told.append)
    perturbation._reports(dpk.exact_sampler(made), x, settings)
    assert sum(told) == x.size
    assert len(told) > 1


# Memory.

PEAK = """
import sys
import numpy as np, dpkernels as dpk
made = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)
dpk.perturb(np.full(1 << 20, 3.0), made)  # Compiles, starts the threads.
x = np.full(int(sys.argv[1]), 3.0)

def memory(what):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))

with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")  # The peak counts from here.
before = memory("VmRSS")
y = dpk.perturb(x, made)
print(memory("VmHWM") - before - y.nbytes)
"""


def extra_memory(values, devices):
    """Bytes above input and output that the release of so many float64 values needs at most."""
    command = [sys.executable, "-c", PEAK, str(values)]
    flags = {"XLA_FLAGS": several_devices(devices)}
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | flags).stdout)


def test_the_values_that_were_checked_are_completed(monkeypatch):
    """The caller's memory may change after the check: what the noise is added to must not."""
    sampler, x = dpk.exact_sampler(dpk.laplace(epsilon=1.0)), np.linspace(0.0, 1.0, 100_000)
    key = dpk.random.key_from_bytes(bytes(32))
    reports, take_values = dpk.perturb(x, sampler, key=key), host_engine.Workspace.take_values

    def take_and_change(workspace, values):
        take_values(workspace, values)
        values[:] = 1e9

    monkeypatch.setattr(host_engine.Workspace, "take_values", take_and_change)
    monkeypatch.setattr(type(sampler), "are_incomplete", lambda _, words: np.arange(4))
    np.testing.assert_array_equal(dpk.perturb(x, sampler, key=key), reports)
    assert x[0] == 1e9


def test_settings_do_not_print_their_secret():
    settings = perturbation._Settings(b"0123456789abcdef" * 2, False, 0, None, print)
    assert "0123" not in repr(settings)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("values", "devices"), [(20_000_000, 1), (3 << 20, 8), pytest.param(100_000_000, 1, marks=pytest.mark.slow)]
)
def test_a_release_needs_little_more_than_input_and_output(values, devices):
    assert extra_memory(values, devices) <= 64 << 20
