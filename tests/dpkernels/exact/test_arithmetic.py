"""Vectors of words against Python integers."""

from fractions import Fraction

import numpy as np
import pytest

from dpkernels.exact import arithmetic
from dpkernels.exact.alias import alias_columns
from dpkernels.exact.certificate import CertificateError

RNG = np.random.default_rng(5)
EDGES = [0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]


def words(count):
    """Return words of every length, and those at the edges."""
    some = RNG.integers(0, 1 << 64, count, np.uint64) >> RNG.integers(0, 64, count, np.uint64)
    return np.concatenate([np.array(EDGES, np.uint64), some])


def test_totals_and_products_are_exact():
    values = words(500)
    assert arithmetic.total(values) == sum(values.tolist())
    for factor in (*EDGES, *words(20).tolist()):
        high, low = arithmetic.product(values, factor)
        products = [(above << 64) + below for above, below in zip(high.tolist(), low.tolist(), strict=True)]
        assert products == [value * factor for value in values.tolist()]


@pytest.mark.parametrize("factor", [1, 3, 1365, (1 << 32) - 1, 1 << 32, (1 << 62) - 1])
def test_high_words_of_products_are_exact(factor):
    words = np.random.default_rng(0).integers(0, 1 << 64, 300, dtype=np.uint64)
    words[:3] = 0, (1 << 32) - 1, (1 << 64) - 1
    assert arithmetic.high_product(words, factor).tolist() == [word * factor >> 64 for word in words.tolist()]


RATIOS = [
    *(Fraction(1), Fraction(3, 2), Fraction(10**9 + 1, 7), Fraction((1 << 64) + 1, 1 << 64)),
    *(Fraction((1 << 160) + 1, 1 << 160), Fraction(485165195 << 40 | 1, 1 << 40), Fraction(4, 3), Fraction(1 << 33)),
]


@pytest.mark.parametrize("ratio", RATIOS)
def test_comparisons_are_exact(ratio):
    """Also where both sides are nearly equal, or equal, or where a product does not fit into a word."""
    second = words(400)
    near = [min(int(ratio * b) + step, (1 << 64) - 1) for b in second.tolist() for step in (0, 1, -1)]
    first = np.array([max(a, 0) for a in near], np.uint64)
    second = np.repeat(second, 3)
    for a, b in ((first, second), (words(len(second) - len(EDGES)), second)):
        expected = [x > ratio * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert arithmetic.exceeds(a, b, ratio).tolist() == expected


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("count", [1, 2, 17, 300, 1025])
def test_rounding_up_uses_the_largest_scale(count, bits):
    """At the scale found the weights fit, at the next one they do not; by bisection with Python integers."""
    for shape in (np.exp(-np.linspace(0, 40, count)), RNG.random(count), np.ones(count)):
        if count >= 1 << bits:
            continue
        masses, unit, limit = np.ldexp(shape / shape.sum(), bits + 40), bits + 41, 1 << bits
        exponents = np.maximum(np.frexp(masses)[1] - 53, 0)
        mantissas = np.ldexp(masses, -exponents).astype(np.uint64)
        whole = [int(mass) for mass in masses]
        assert whole == [m << e for m, e in zip(mantissas.tolist(), exponents.tolist(), strict=True)]
        if count == 1:
            limit -= 1  # so that the weight is a word
        low, high = 0, limit << unit
        while high - low > 1:
            middle = (low + high) // 2
            fits = sum(-(-mass * middle >> unit) for mass in whole) <= limit
            low, high = (middle, high) if fits else (low, middle)
        weights = arithmetic.rounded_up(mantissas, exponents, unit, limit)
        assert weights.tolist() == [-(-mass * low >> unit) for mass in whole]


def sequential_columns(weights, bits):
    """Return thresholds and aliases by Vose's algorithm, one column after the other."""
    log_columns = (len(weights) - 1).bit_length()
    capacity = 1 << (bits - log_columns)
    left = weights + [0] * ((1 << log_columns) - len(weights))
    threshold, alias = list(left), list(range(len(left)))
    light = [c for c, weight in enumerate(left) if weight < capacity]
    heavy = [c for c, weight in enumerate(left) if weight > capacity]
    while light:
        small, large = light.pop(), heavy[-1]
        threshold[small], alias[small] = left[small], large
        left[large] -= capacity - left[small]
        if left[large] <= capacity:
            heavy.pop()
            threshold[large] = left[large]
            if left[large] < capacity:
                light.append(large)
    return [below % capacity for below in threshold], alias


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 64, 1000, 4096])
def test_alias_columns_are_those_of_the_sequential_algorithm(count, bits):
    """So that a release with a given key is the same, also with columns that fill up exactly."""
    for kind in ("any", "round", "heavy"):
        weights = [1] * count if kind == "heavy" else RNG.integers(0, (1 << bits) // count, count, np.uint64).tolist()
        if kind == "round":
            digits = max(0, bits - count.bit_length() - 3)
            weights = [max(1, weight >> digits) << digits for weight in weights]
        weights[count // 3] += (1 << bits) - sum(weights)
        columns = alias_columns(weights, bits)
        assert (columns.threshold.tolist(), columns.alias.tolist()) == sequential_columns(weights, bits)


@pytest.mark.parametrize("by", [-1, 1])
def test_weights_with_another_total_have_no_columns(by):
    with pytest.raises(CertificateError, match="do not add up"):
        alias_columns([1 << 14, 1 << 15, (1 << 14) + by], 16)
