"""From inputs to rows: neighbours stay neighbours at every exponent of a float, and reports are the same bits anywhere.

Run as a script this file prints what its process releases.
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.exact.bounded.rows import RowCertificate
from dpkernels.exact.bounded.sampler import fraction_bits, positions
from dpkernels.exact.certificate import exp_lower_bound
from dpkernels.release.inputs import Bounds

KEY = dpk.key_from_bytes(bytes(range(5, 37)))
EPSILON = 1.0
FLOAT32 = range(-140, 118)
FLOAT64 = range(-330, 330)


def central_form():
    return dpk.exact_sampler(
        dpk.optimal(epsilon=EPSILON, lower=-4.0, upper=4.0, sensitivity=1.0, points=33, outputs=41)
    )


def scaled(sampler, exponent):
    """The same mechanism for data in another unit."""
    table, s = sampler.table, 2.0**exponent
    ends = {name: getattr(table, name) * s for name in ("first", "last", "lower", "upper")}
    mechanism = dataclasses.replace(
        sampler.mechanism, reach=sampler.mechanism.reach * s, sensitivity=s, lower=-4 * s, upper=4 * s
    )
    return dataclasses.replace(
        sampler, mechanism=mechanism, certificate=RowCertificate.of(dataclasses.replace(table, **ends), EPSILON, s)
    )


def neighbour(x, D):
    """The float farthest from x, upwards, that is exactly within D of it."""
    y = x.dtype.type(float(x) + D)
    while Fraction(float(y)) - Fraction(float(x)) > Fraction(D):
        y = np.nextafter(y, x)
    return y


def inputs(dtype, D):
    """Of every size from the smallest number of the type to the interval's, and neighbours of these."""
    limits = np.finfo(dtype)
    sizes = np.unique(np.geomspace(max(float(limits.smallest_normal), D * 2.0**-60), D, 9).astype(dtype))
    tiny = [limits.smallest_subnormal, np.nextafter(limits.smallest_normal, 0), limits.smallest_normal]
    x = np.concatenate([[-4 * D, -D, 0.0, 2.9 * D], sizes, -sizes, tiny, np.negative(tiny)]).astype(dtype)
    return x[(x >= -4 * D) & (x <= 3 * D)]


def worst_ratio(sampler, x, y):
    """The largest ratio of any report's probability between inputs x[i] and y[i], rounding included, exactly."""
    table, bits = sampler.table, fraction_bits(sampler.table.last_row)
    weights = np.concatenate([table.weights, table.weights[-1:]]).astype(object)
    with jax.enable_x64(True):
        place = jax.jit(lambda values: positions(values, table.last_row, table.first, table.last))
        px, py = (np.asarray(place(values)).astype(int) for values in (x, y))

    def law(position):
        row, share = divmod(int(position), 1 << bits)
        return weights[row] * ((1 << bits) - share) + weights[row + 1] * share

    laws = [(law(a), law(b)) for a, b in zip(px, py, strict=True)]
    return max(
        max(Fraction(int(p), int(q)), Fraction(int(q), int(p))) for one in laws for p, q in zip(*one, strict=True)
    )


def check_scale(form, exponent, dtype):
    """Whether this type may be released at this scale, and if so, that neighbours are private."""
    at, D = scaled(form, exponent), 2.0**exponent
    if at.subnormal_safe_radius < np.finfo(dtype).smallest_normal:
        with pytest.raises(ValueError, match="use float64"):
            Bounds.of(at, clip=False).check(np.zeros(1, dtype), 0)
        return False
    x = inputs(dtype, D)
    y = np.array([neighbour(value, D) for value in x])
    assert worst_ratio(at, x, y) <= exp_lower_bound(EPSILON), (exponent, dtype)
    return True


@pytest.mark.lengthy
@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbours_stay_neighbours_at_some_exponents(dtype):
    form = central_form()
    exponents = [-140, -127, -96, -95, -94, -52, -3, 0, 31, 117] if dtype is np.float32 else [-330, -200, -1, 60, 329]
    private = [check_scale(form, exponent, dtype) for exponent in exponents]
    assert private[-3:] == [True] * 3
    assert private[0] is (dtype is np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbours_stay_neighbours_at_every_exponent(dtype):
    form = central_form()
    private = [check_scale(form, exponent, dtype) for exponent in (FLOAT32 if dtype is np.float32 else FLOAT64)]
    assert private == sorted(private)
    assert private[-1]


@pytest.mark.lengthy
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inputs_of_every_exponent_in_one_interval(dtype):
    """Subnormal ones too, whatever the processor makes of them."""
    form, limits = central_form(), np.finfo(dtype)
    lowest = int(np.log2(float(limits.smallest_normal))) - limits.nmant
    x = np.ldexp(np.ones(3 - lowest), np.arange(lowest, 3)).astype(dtype)
    x = np.concatenate([x[x <= 3], -x])
    y = np.array([neighbour(value, 1.0) for value in x])
    assert worst_ratio(form, x, y) <= exp_lower_bound(EPSILON)


def test_float32_is_refused_where_subnormal_numbers_matter():
    """XLA reads 2^-127 as 0, and neighbours D = 2^-126 apart, 2^-126 and 0, are then put as if more than D apart."""
    D, tiny = 2.0**-126, np.float32([2.0**-127])
    assert worst_ratio(scaled(central_form(), -126), tiny, tiny + np.float32(D)) > exp_lower_bound(1.4)
    fine = dpk.optimal(epsilon=1.0, lower=-2e-38, upper=2e-38, sensitivity=5e-39, points=9, outputs=41)
    x = np.array([2.0**-127, 1e-39])
    with pytest.raises(ValueError, match=r"x: holds float32, whose numbers below 1\.18e-38 .* use float64"):
        dpk.perturb(x.astype(np.float32), fine)
    assert dpk.perturb(x, fine).dtype == np.float64
    for made in (dpk.piecewise(epsilon=1.0, lower=0.0, upper=1e-36), dpk.laplace(epsilon=1.0, sensitivity=1e-36)):
        with pytest.raises(ValueError, match="use float64"):
            dpk.perturb(x.astype(np.float32), made)
        assert np.isfinite(dpk.perturb(x, made)).all()


def test_bfloat16_is_refused_where_float32s_subnormal_numbers_matter():
    """It is widened on the device, which reads them as 0 on the way to float64 too."""
    fine = dpk.exact_sampler(
        dpk.optimal(epsilon=1.0, lower=-2e-38, upper=2e-38, sensitivity=5e-39, points=9, outputs=41)
    )
    with jax.enable_x64(True), pytest.raises(ValueError, match="use float64"):
        Bounds.of(fine, clip=False).check_on_device(jnp.asarray([1.166e-38], jnp.bfloat16))


# The same bits on every processor.


def digests():
    """Of the reports of one form of every kind, under one key."""
    span = {"epsilon": 1.0, "lower": 0.1, "upper": 120.3}
    made = {
        "piecewise": dpk.piecewise(**span),
        "sine-quartic": dpk.composite("sine", "quartic", **span),
        "hybrid": dpk.hybrid(**span),
        "duchi": dpk.duchi(**span),
        "optimal": dpk.optimal(**span, points=9, outputs=41),
        "central": dpk.central_piecewise(**span, sensitivity=50.0),
        "laplace": dpk.laplace(epsilon=1.0, sensitivity=0.7),
        "multivariate": dpk.multivariate(dimensions=2, **span),
    }
    x = np.linspace(0.2, 120.2, 40_000).reshape(-1, 2)
    types = (np.float32, np.float64)
    made_of = {(name, dtype): dpk.perturb(x.astype(dtype), m, key=KEY) for name, m in made.items() for dtype in types}
    return {f"{name} {t.__name__}": hashlib.sha256(y.tobytes()).hexdigest() for (name, t), y in made_of.items()}


@pytest.mark.thorough
def test_reports_are_the_same_bits_on_processors_with_and_without_fused_products():
    flags = {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = subprocess.run([sys.executable, __file__], env=os.environ | flags, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == digests()


# Forked processes.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_process_forked_after_jax_ran_is_refused_at_once():
    """JAX's threads are not in it: the release would hang."""
    m = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)
    dpk.perturb(np.array([0.5]), m)
    child = os.fork()
    if child == 0:
        try:
            dpk.perturb(np.array([0.5]), m)
        except RuntimeError as error:
            os._exit(7 if "spawn" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.lengthy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_before_jax_ran_releases():
    program = """
import os, numpy as np, dpkernels as dpk
m = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)
child = os.fork()
y = dpk.perturb(np.array([0.5]), m)
assert child == 0 or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True, timeout=120)


if __name__ == "__main__":
    print(json.dumps(digests()))
