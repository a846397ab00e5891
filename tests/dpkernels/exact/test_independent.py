"""Certificates of real mechanisms and the compiled kernels, by methods that share nothing with the package.

What a certificate says is compared with the laws rebuilt from its JSON (``independent``). What a kernel does is found
by bisection: how many of the 2^32 or 2^64 words yield each code, exactly, compared with the weights in that JSON.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_registry import EVERY, exact
from helpers import CENTRAL_PIECEWISE, ROWS
from independent import expanded, false_claims
from noise_tables import CLAIMS
from noise_tables import exact as exact_noise

import dpkernels as dpk
from dpkernels.exact.bounded.windows import ExactWindow
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.registry import ExactMixture

RNG = np.random.default_rng(11)
slow = pytest.mark.slow


def few(names, *kept):
    """All names, of which only some are in the ordinary suite."""
    return [pytest.param(name, id=str(name), marks=() if name in kept else slow) for name in names]


WINDOWS = [(name, epsilon) for name in EVERY for epsilon in (0.1, 1.0, 5.0)] + [("duchi", 20.0), ("piecewise", 8.0)]
BOUNDED = ROWS | CENTRAL_PIECEWISE
VECTORS = {
    "discrete": lambda: dpk.on_vectors(
        dpk.discrete_laplace(epsilon=1.0, sensitivity=2.0), dimensions=8, norm="l1", lattice=1.0, delta=1e-10
    ),
    "laplace": lambda: dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=2, norm="l1", delta=1e-10),
    "gaussian": lambda: dpk.on_vectors(
        dpk.gaussian(sigma=4.0, sensitivity=1.0, epsilon=1.0, delta=1e-5), dimensions=6, norm="l2"
    ),
}


def of(kind, name):
    """The exact form of a case."""
    match kind:
        case "window":
            return exact(*name)
        case "noise":
            return exact_noise(name)
        case "rows":
            return dpk.exact_sampler(BOUNDED[name])
    return dpk.exact_sampler(VECTORS[name]())


CASES = [
    *(("window", name) for name in WINDOWS),
    *(("noise", name) for name in CLAIMS),
    *(("rows", name) for name in BOUNDED),
    *(("vector", name) for name in VECTORS),
]
QUICK_CASES = [
    ("window", ("duchi", 1.0)),
    ("noise", "truncated-discrete-laplace"),
    ("rows", "optimal-1"),
    ("vector", "discrete"),
]


@pytest.mark.parametrize("case", few(CASES, *QUICK_CASES))
def test_everything_a_certificate_says_is_so(case):
    payload = json.loads(of(*case).certificate.to_json())
    assert false_claims(payload) == []
    assert false_claims({**payload, "worst_variance": "0"})


def test_everything_the_certificate_of_sampled_vectors_says_is_so():
    mechanism = dpk.multivariate(dimensions=5, sampled=2, epsilon=1.0, lower=0.0, upper=1.0, coordinate="duchi")
    payload = json.loads(dpk.exact_sampler(mechanism).certificate.to_json())
    assert false_claims(payload) == []
    assert false_claims({**payload, "epsilon": 0.9})


# Kernels: words to codes.


def least(inside, low, high):
    """The first of low + 1..high at which ``inside`` is true, which then stays so, for arrays of both; high if none."""
    low, high = low.astype(object), high.astype(object)
    while (wide := high - low > 1).any():
        middle = np.where(wide, (low + high) // 2, high)
        yes = inside(middle)
        low, high = np.where(wide & ~yes, middle, low), np.where(wide & yes, middle, high)
    return high


def counted(pairs, first, codes):
    counts = np.zeros(codes, object)
    for code, count in pairs:
        np.add.at(counts, code - first, count)
    return counts


def alias_counts(sample, bits, outcomes, first, codes):
    """Words by code of a kernel of 2^k equal columns of words, each with one code below a threshold and one above.

    2^k is the least power of two that gives every outcome a column. That there is no third is tried at random words.
    """
    k = (outcomes - 1).bit_length()
    size = 1 << (bits - k)
    start = np.arange(1 << k, dtype=object) * size
    last = sample(start + (size - 1))
    other = least(lambda words: sample(words) == last, start - 1, start + (size - 1))
    own = np.where(other > start, sample(start), last)
    words = start + RNG.integers(0, size, 1 << k, dtype=np.uint64).astype(object)
    assert (sample(words) == np.where(words < other, own, last)).all()
    return counted([(own, other - start), (last, start + size - other)], first, codes)


def divided_counts(sample, bits, base, window, row):
    """Words by code of a kernel that rises twice: over the base's words, then over the window's."""
    N, w, middle, end = len(base), len(window), int(base.sum()), 1 << bits
    pairs = []
    for begin, stop, codes in ((0, middle, np.arange(N)), (middle, end, row + np.arange(w))):
        stops = np.full(len(codes), stop - 1, object)
        firsts = least(lambda words, codes=codes: sample(words) >= codes, np.full(len(codes), begin - 1, object), stops)
        assert (sample(firsts) == codes).all()
        pairs.append((codes, np.diff(np.append(firsts, stop))))
    return counted(pairs, 0, N)


def compiled(kernel, bits, *row):
    """The compiled kernel, of arrays of Python integers."""
    run = jax.jit(lambda words: kernel(words, *(jnp.full(words.shape, r, jnp.int32) for r in row)))

    def sample(words):
        with jax.enable_x64(True):
            return np.asarray(run(words.astype(f"uint{bits}"))).astype(np.int64)

    return sample


def window_counts(sampler, table):
    base, window, bits = expanded(table["base"]), expanded(table["window"]), table["bits"]
    S, flat = len(base) - len(window), len(table["base"]) == len(table["window"]) == 1
    for row in sorted({0, S // 3, S}):
        sample, weights = compiled(sampler.kernel, bits, row), base.copy()
        weights[row : row + len(window)] += window
        if flat:
            yield divided_counts(sample, bits, base, window, row), weights
        else:
            yield alias_counts(sample, bits, len(base) + len(window), 0, len(base)), weights


def row_counts(sampler, table):
    places, rows = table["places"], table["weights"]
    reach = places[-1] - places[0] + 1
    for row in sorted({0, len(rows) // 3, len(rows) - 1}):
        weights = np.zeros(reach, object)
        weights[np.array(places) - places[0]] = rows[row]
        sample = compiled(sampler.kernel, table["bits"], row)
        yield alias_counts(sample, table["bits"], len(places), places[0], reach), weights


def noise_counts(sampler, table):
    weights, first = np.array(table["weights"], object), table["first"]
    sample = compiled(sampler.kernel, table["bits"])
    yield alias_counts(sample, table["bits"], len(weights), first, len(weights)), weights


def every_count(sampler):
    """Counts by bisection and weights from the JSON, of every table of a form."""
    claims = json.loads(json.dumps(sampler.certificate.to_dict()))
    match sampler:
        case ExactMixture():
            for part, inner in ((sampler.first, claims["first"]), (sampler.second, claims["second"])):
                yield from window_counts(part, inner["table"])
        case ExactWindow():
            yield from window_counts(sampler, claims["table"])
        case ExactNoise():
            yield from noise_counts(sampler, claims["noise"])
        case _:
            yield from row_counts(sampler, claims["row_table"])


@pytest.mark.lengthy
@pytest.mark.parametrize("case", few(CASES, *QUICK_CASES, ("window", ("piecewise", 1.0)), ("window", ("own", 1.0))))
def test_a_kernel_yields_every_code_for_as_many_words_as_its_weight(case):
    tables = 0
    for counts, weights in every_count(of(*case)):
        assert (counts == weights).all()
        tables += 1
    assert tables


def test_bisection_finds_a_wrong_kernel():
    """A kernel of another table than the JSON's: one unit of weight moved between two codes."""
    sampler = exact("own", 1.0)
    table = json.loads(sampler.certificate.to_json())["table"]
    weights = sampler.table.base.copy()
    weights[3] -= np.uint64(1)
    weights[4] += np.uint64(1)

    class Wrong:
        kernel = staticmethod(type(sampler.table)(weights, sampler.table.window, 32, 0.0, 1.0).kernel())

    counts, expected = next(window_counts(Wrong, table))
    assert np.flatnonzero(counts != expected).tolist() == [3, 4]
