"""A release is the same bits as it ever was, by whichever path: NumPy, XLA, threads, and after anything went wrong."""

import cProfile
import hashlib
import os
import pstats
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_registry import EVERY, exact
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import stops

import dpkernels as dpk
from dpkernels.exact.sampler import order_keys
from dpkernels.random import host
from dpkernels.release import engines as release
from dpkernels.release import host_engine, process
from dpkernels.release.engines import exact_engine, in_chunks
from dpkernels.release.host_engine import HostRelease
from dpkernels.release.inputs import Bounds, InputError
from dpkernels.release.process import kernel_settings

SECRET = bytes(range(5, 37))
SPAN = {"epsilon": 1.0, "lower": 0.1, "upper": 120.3}
MADE = {
    "piecewise": lambda: dpk.piecewise(**SPAN),
    "sine-quartic": lambda: dpk.composite("sine", "quartic", **SPAN),
    "hybrid": lambda: dpk.hybrid(**SPAN),
    "duchi": lambda: dpk.duchi(**SPAN),
    "central": lambda: dpk.central_piecewise(**SPAN, sensitivity=50.0, steps=3),
    "laplace": lambda: dpk.laplace(epsilon=1.0, sensitivity=0.7),
    "gaussian": lambda: dpk.gaussian(sigma=5.0, sensitivity=1.0, epsilon=1.0, delta=1e-6),
}
STARTS = (0, 1, 1001, 2**32 - 5, 2**40 + 7)
COUNTS = (1, 1000, 5000, 300_001)

# SHA-256 of the reports of every start and count, one after the other.
DIGESTS = {
    ("piecewise", "float32"): "714abf50ce4312b8",
    ("piecewise", "float64"): "e616dcd8c82dc526",
    ("sine-quartic", "float32"): "52c840d7b8bac2f6",
    ("sine-quartic", "float64"): "62c3b375b10dc123",
    ("hybrid", "float32"): "9095c4e2f1fc8a88",
    ("hybrid", "float64"): "628fda2a0d298ef2",
    ("duchi", "float32"): "3a550a9d20507134",
    ("duchi", "float64"): "ec99c6f3f9e35e10",
    ("central", "float32"): "695eb4d6b685320e",
    ("central", "float64"): "20548c5d814bfdf4",
    ("laplace", "float32"): "417ecb8491b51347",
    ("laplace", "float64"): "3e6c2cd4836f99ad",
    ("gaussian", "float32"): "9fbf2998910cbf3d",
    ("gaussian", "float64"): "5a30668ea66006c5",
}


def values(made, count, dtype):
    lower, upper = max(made.input_interval[0], -50.0), min(made.input_interval[1], 200.0)
    return np.clip(np.linspace(lower, upper, count), lower, upper).astype(dtype)


def reports(made, count, dtype, start=0, secret=SECRET):
    sampler = dpk.exact_sampler(made)
    return in_chunks(
        exact_engine(sampler, secret), Bounds.of(sampler, clip=True), values(made, count, dtype), start=start
    )


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-float64", "hybrid-float32", "central-float64", "laplace-float32", "gaussian-float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MADE)
def test_reports_are_the_bits_that_they_were(name, dtype):
    found, made = hashlib.sha256(), MADE[name]()
    for start in STARTS:
        for count in COUNTS if start < 2 else COUNTS[:3]:
            found.update(reports(made, count, dtype, start).tobytes())
    assert found.hexdigest()[:16] == DIGESTS[name, dtype]


# NumPy and XLA.

EVERYTHING = {
    name: np.array([np.iinfo(kind).min, np.iinfo(kind).max]) for name, kind in (("float32", "i4"), ("float64", "i8"))
}


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-float*", "sine-quartic-float*", "own-*", "duchi-*", "hybrid-*", "central-*", "laplace-*")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*EVERY, "central", "laplace", "gaussian"])
def test_numpy_and_xla_report_the_same_bits(name, dtype):
    form = dpk.exact_sampler(MADE[name]()) if name in MADE else exact(name, 1.0)
    x, engine = values(form.mechanism, 1500, dtype), HostRelease(form, SECRET)
    low, high = (np.dtype(dtype).type(end) for end in form.mechanism.input_interval)
    x[:5] = np.clip([0.0, -0.0, np.finfo(dtype).smallest_subnormal, low, high], low, high)
    for start in (0, 31, 2**33 + 5):
        by_numpy, by_xla = np.empty_like(x), np.empty_like(x)
        engine._by_numpy(x, start, by_numpy)
        assert engine._by_xla(x, start, by_xla, EVERYTHING[dtype])
        np.testing.assert_array_equal(by_numpy.view(np.uint8), by_xla.view(np.uint8))


@pytest.mark.lengthy
@pytest.mark.parametrize("exponent", [-60, -30, 0, 60])
def test_numbers_that_xla_reads_as_zero_make_no_difference(exponent):
    """Where they might, NumPy is not used. Intervals about 0, from it and up to it, and with an end just below."""
    tiny = np.float32([1e-45, 1e-40, 1.1e-38, -1e-45, -1e-40, -1.1e-38, 0.0, 1.2e-38])
    for lower, upper in ((-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (-(2.0**-30), 1.0), (-1 / 3, 1.0)):
        scale = 2.0**exponent
        sampler = dpk.exact_sampler(dpk.piecewise(epsilon=1.0, lower=lower * scale, upper=upper * scale))
        if not host_engine.is_far_from_subnormal(sampler, tiny.dtype):
            assert exponent < -20
            continue
        engine, x = HostRelease(sampler, SECRET), np.clip(np.tile(tiny, 64), lower * scale, upper * scale)
        by_numpy, by_xla = np.empty_like(x), np.empty_like(x)
        engine._by_numpy(x, 0, by_numpy)
        assert engine._by_xla(x, 0, by_xla, EVERYTHING["float32"])
        np.testing.assert_array_equal(by_numpy, by_xla)


@pytest.mark.parametrize(("count", "by_xla"), [(512, 0), (513, 3), (8193, 11)])
def test_a_program_is_compiled_once_a_form_is_called_again_and_again(monkeypatch, count, by_xla):
    sampler, called = dpk.exact_sampler(dpk.piecewise(epsilon=1.0 + count / 1e6, lower=0.0, upper=1.0)), []
    compute, x = HostRelease._by_xla, np.full(count, 0.25)
    monkeypatch.setattr(HostRelease, "_by_xla", lambda *args: called.append(args) or compute(*args))
    made = [in_chunks(HostRelease(sampler, SECRET), Bounds.of(sampler, clip=False), x) for _ in range(11)]
    assert len(called) == by_xla
    assert all(np.array_equal(reports, made[0]) for reports in made)


def test_no_values_have_no_reports():
    sampler = dpk.exact_sampler(MADE["duchi"]())
    for engine in (HostRelease(sampler, SECRET), release.DeviceRelease(sampler, SECRET, (jax.devices()[0],))):
        assert in_chunks(engine, Bounds.of(sampler, clip=False), np.empty((0, 3))).shape == (0, 3)


def test_programs_have_a_client_of_their_own_or_do_without(monkeypatch):
    assert process.calling_thread_device().client is not jax.devices("cpu")[0].client

    def another(**options):
        raise TypeError(options)

    monkeypatch.setattr("jax._src.lib.xla_client.make_cpu_client", another)
    assert process._calling_thread_device.__wrapped__() == jax.devices("cpu")[0]


def test_a_program_is_one_part_and_leaves_the_environment_alone(monkeypatch):
    """Parts would go to other threads, which are waited for; a program of JAX's own client on two cores has two."""
    sampler = dpk.exact_sampler(
        dpk.piecewise(epsilon=0.9871, lower=0.0, upper=1.0)
    )  # No other client compiles this one.
    program = host_engine._program(sampler, host_engine.CHUNK, np.dtype(np.float64))
    assert "outer_dimension_partitions" not in program.as_text()
    for value in (None, "7"):
        monkeypatch.delenv("PJRT_NPROC", raising=False)
        if value:
            monkeypatch.setenv("PJRT_NPROC", value)
        process._calling_thread_device.__wrapped__()
        assert os.environ.get("PJRT_NPROC") == value


def test_numpys_own_settings_change_nothing():
    mechanism = dpk.piecewise(epsilon=1.0, lower=-1.0, upper=1.0)
    expected = reports(mechanism, 500, "float32")
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(reports(mechanism, 500, "float32"), expected)


# Workspaces: one is given back only by a call that went well, and whatever is in it is written over.

PIECEWISE = MADE["piecewise"]()


def idle(dtype=np.float64):
    words = host_engine._word_types(dpk.exact_sampler(PIECEWISE))
    return host_engine._idle(words, host_engine.padded_length(9001), np.dtype(dtype))


def test_nothing_is_read_from_a_workspace_that_was_there_before():
    expected = reports(PIECEWISE, 9001, "float64")
    assert idle()
    for space in idle():
        space.x[:] = 77.0
        for words in space.words:
            words[:] = 12345
        with kernel_settings(x64=True):
            space.reports = jnp.full_like(space.reports, 55.0)
    np.testing.assert_array_equal(reports(PIECEWISE, 9001, "float64"), expected)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("where", ["words", "kernel"])
def test_a_call_that_ends_in_the_middle_leaves_no_workspace(monkeypatch, error, where):
    expected = reports(PIECEWISE, 9001, "float64")
    fill, compiled = host.Keystream.fill, host_engine._program

    def half(self, out, stream, first):
        fill(self, out[: len(out) // 2], stream, first)
        raise error

    def after(*kind):
        def program(*buffers):
            compiled(*kind)(*buffers)
            raise error

        return program

    idle().clear()
    with monkeypatch.context() as patch:
        if where == "words":
            patch.setattr(host.Keystream, "fill", half)
        else:
            patch.setattr(host_engine, "_program", after)
        with pytest.raises(error):
            reports(PIECEWISE, 9001, "float64")
    assert idle() == []
    np.testing.assert_array_equal(reports(PIECEWISE, 9001, "float64"), expected)
    assert len(idle()) == 1


def test_threads_that_share_a_form_share_no_workspace():
    secrets = [bytes([at] * 32) for at in range(12)]
    alone = [reports(PIECEWISE, 9001, "float64", secret=secret) for secret in secrets]
    together = threading.Barrier(6)

    def released(secret):
        together.wait(timeout=60)
        return [reports(PIECEWISE, 9001, "float64", secret=secret) for _ in range(20)][-1]

    with ThreadPoolExecutor(6) as pool:
        for found, expected in zip(pool.map(released, secrets), alone, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_nobody_writes_once_a_release_has_failed(monkeypatch):
    """Chunks at work are waited for, the others are never begun."""
    monkeypatch.setattr(release, "CHUNK", 10)
    monkeypatch.setattr(release, "_WORKERS", 4)
    begun, done, stopped, others = [], [], stops(monkeypatch), threading.Event()

    def engine(x, start, *_):
        begun.append(start)
        if start == 0:
            assert others.wait(60)
            done.append(start)
            raise MemoryError
        others.set()
        assert stopped.wait(60)
        time.sleep(0.05)  # A release that did not wait for this would have returned.
        done.append(start)
        return len(x)

    with pytest.raises(MemoryError):
        in_chunks(engine, Bounds.of(PIECEWISE, clip=False), np.ones(1000))
    assert sorted(begun) == sorted(done)
    assert 2 <= len(begun) <= 4


def test_reports_that_nobody_made_are_an_error(monkeypatch):
    monkeypatch.setattr(release, "CHUNK", 10)
    monkeypatch.setattr(release, "pairwise", lambda ends: [piece for piece in pairwise(ends) if piece[0] != 50])
    with pytest.raises(RuntimeError, match="990 of 1000 values"):
        in_chunks(lambda x, *_: len(x), Bounds.of(PIECEWISE, clip=False), np.ones(1000))


@pytest.mark.lengthy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_threads_of_its_own():
    program = """
import os, numpy as np
from dpkernels.release import engines as release
from dpkernels.release.inputs import Bounds, InputError
release.CHUNK = 10
bounds, x = Bounds(np.float64(0), np.float64(1), clip=False), np.ones(1000)
def engine(x, start, out, bounds, row):
    out[:] = start
    return len(x)
first = release.in_chunks(engine, bounds, x)
child = os.fork()
assert np.array_equal(release.in_chunks(engine, bounds, x), first)
assert child == 0 or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True, timeout=60)


# The check of inputs inside the compiled kernel.


def odd_values(dtype, low, high):
    """Values about the ends of an interval, about 0 and not finite; as many as the kernel's bits can tell apart."""
    info, kind = np.finfo(dtype), np.dtype(dtype)
    tiny = [0.0, -0.0, info.smallest_subnormal, -info.smallest_subnormal, info.smallest_normal, -info.smallest_normal]
    about = [np.nextafter(kind.type(end), kind.type(way)) for end in (low, high) for way in (-np.inf, end, np.inf)]
    return [*tiny, *about, np.nan, -np.nan, np.inf, -np.inf, info.max, info.min]


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (-1.0, 0.0), (-1.0, 2.0), (0.1, 0.7)])
def test_the_kernel_refuses_what_numpy_refuses_and_writes_nothing(lower, upper, dtype):
    sampler = dpk.exact_sampler(dpk.piecewise(epsilon=1.0, lower=lower, upper=upper))
    engine, bounds, count = HostRelease(sampler, SECRET), Bounds.of(sampler, clip=False), 10_000
    good = np.linspace(lower, upper, count).astype(dtype)
    low, high, _ = bounds.valid_range(good.dtype, good.dtype)
    good = np.clip(good, low, high)
    for value in odd_values(dtype, lower, upper):
        x, out = good.copy(), np.full(count, 12345.0, dtype)
        x[7777] = value
        if low <= x[7777] <= high:
            engine(x, 0, out, bounds, 5)
            by_numpy = np.empty_like(out)
            engine._by_numpy(x, 0, by_numpy)
            np.testing.assert_array_equal(out, by_numpy)
            continue
        with pytest.raises(InputError, match="row 7782"):
            engine(x, 0, out, bounds, 5)
        with pytest.raises(InputError, match="row 7782"):
            bounds.check(x, 5)
        assert (out == 12345.0).all()


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float16", ">f8", "int32"])
def test_the_kernel_reads_other_types_as_numpy_does(dtype):
    sampler = dpk.exact_sampler(dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0))
    bounds, x = Bounds.of(sampler, clip=False), (np.arange(10_000) % 121).astype(dtype)
    typed = bounds.check(x, 0)
    out, by_numpy = np.empty_like(typed), np.empty_like(typed)
    HostRelease(sampler, SECRET)(x, 0, out, bounds, 0)
    HostRelease(sampler, SECRET)._by_numpy(typed, 0, by_numpy)
    np.testing.assert_array_equal(out, by_numpy)


@given(st.lists(st.floats(width=32), min_size=2, max_size=20))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_order_keys_have_the_order_of_floats(values):
    x = np.array([value for value in values if value == value], np.float32)
    for kind in (x, x.astype(np.float64)):
        keys = order_keys(kind)
        below = kind[:, None] < kind[None, :]
        assert ((keys[:, None] < keys[None, :])[below]).all()
        same = (kind[:, None] == kind[None, :]) & (np.signbit(kind)[:, None] == np.signbit(kind)[None, :])
        assert ((keys[:, None] == keys[None, :]) == same).all()


@pytest.mark.parametrize("count", [600, 10_000])
def test_a_call_on_few_values_makes_few_python_calls(count, monkeypatch):
    monkeypatch.setattr("os.urandom", bytes)  # That of the tests makes calls of its own.
    mechanism, x = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0), np.linspace(0.0, 120.0, count)
    for _ in range(12):  # Then the program is compiled.
        dpk.perturb(x, mechanism)
    profile = cProfile.Profile()
    profile.runcall(dpk.perturb, x, mechanism)
    assert pstats.Stats(profile).total_calls <= 130


def test_a_process_that_cannot_ask_whether_jax_has_run_takes_it_that_it_has(monkeypatch):
    assert process.jax_has_run()
    monkeypatch.delattr("jax._src.xla_bridge.backends_are_initialized")
    assert process.jax_has_run()
