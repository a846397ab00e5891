"""Intervals of true values behind released ones: their coverage is enumerated from the tables, with fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.estimation import released as module
from dpkernels.estimation.noise_sums import CombinedNoise, repeated_sum
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.table import NoiseTable

WORD = 1 << 32
LEVELS = (0.5, 0.9, 0.95, 0.999)


def table(seed, codes=9, points_per_bin=3, grid_log2=-2, bits=16):
    """Random weights, some of them 0, of codes about 0."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 1000, codes)
    weights[rng.integers(codes)] = 0
    weights[codes // 2] += (1 << bits) - weights.sum()
    return NoiseTable(weights.astype(np.uint64), -(codes // 2) + seed % 2, bits, grid_log2, points_per_bin)


def certificate(made):
    return NoiseCertificate(1.0, 0.5, 1.0, 1, Fraction(1, 2), made)


def codes_of(noise_table, n):
    """(code of the release, probability) for an input of grain n: every r, with the words that make it, and code."""
    probabilities = {}
    for r in range(noise_table.points_per_bin):
        words = -(-(r + 1) * WORD // noise_table.points_per_bin) - -(-r * WORD // noise_table.points_per_bin)
        for j, weight in enumerate(noise_table.outcomes):
            k = (n + r) // noise_table.points_per_bin + noise_table.first + j
            probabilities[k] = probabilities.get(k, 0) + Fraction(words * weight, WORD << noise_table.bits)
    assert sum(probabilities.values()) == 1
    return [(k, p) for k, p in probabilities.items() if p]


def missed(noise_table, n, interval):
    """The probabilities that the interval of a released value is above, and below, the input n g."""
    x, above, below = n * Fraction(2) ** noise_table.grid_log2, Fraction(0), Fraction(0)
    for k, p in codes_of(noise_table, n):
        low, high = interval(k * noise_table.bin_width)
        above, below = above + p * (low > x), below + p * (high < x)
    return above, below


def exactly(noise_table, level):
    a, b = module.interval_reaches(noise_table, (1 - Fraction(str(level))) / 2)
    return lambda y: (y - a, y + b)


@pytest.mark.lengthy
@pytest.mark.quick("0-1", "0-3", "1-8")
@pytest.mark.parametrize("grains", [1, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_one_value_is_covered_and_the_interval_is_that_of_both_tests(grains, seed):
    noise_table = table(seed, points_per_bin=grains)
    for level in LEVELS:
        interval, tail = exactly(noise_table, level), (1 - Fraction(str(level))) / 2
        for n in range(-grains, grains + 1):
            assert max(missed(noise_table, n, interval)) <= tail
        # Of the released value 0 those grains are left out at which a tail probability is at most the bound.
        low, high = (end / Fraction(2) ** noise_table.grid_log2 for end in interval(Fraction(0)))
        for n in range(-12 * grains, 12 * grains):
            above = sum(p for k, p in codes_of(noise_table, n) if k >= 0)
            below = sum(p for k, p in codes_of(noise_table, n) if k <= 0)
            assert (low < n < high) == (min(above, below) > tail)


def test_an_interval_without_the_rounding_of_the_input_is_caught():
    """The planted fault: quantiles of the noise alone miss inputs between two cells more often than they may."""
    noise_table, worst = table(0, points_per_bin=8), Fraction(0)
    for level in LEVELS:
        tail = (1 - Fraction(str(level))) / 2
        cumulated = np.cumsum(noise_table.outcomes)
        first = noise_table.first + int(np.searchsorted(cumulated, float(tail) * noise_table.total, side="right"))
        last = noise_table.first + int(np.searchsorted(cumulated, (1 - float(tail)) * noise_table.total))

        def naive(y, first=first, last=last):
            return y - last * noise_table.bin_width, y - first * noise_table.bin_width

        worst = max(worst, *(max(missed(noise_table, n, naive)) - tail for n in range(9)))
    assert worst > 0


NOISES = {
    "laplace": dpk.laplace(epsilon=0.5, sensitivity=100.0),
    "gaussian": dpk.gaussian(sigma=3.0, epsilon=1.0, delta=1e-2, sensitivity=1.0),
    "discrete": dpk.discrete_laplace(epsilon=1.0, sensitivity=2),
    "discrete gaussian": dpk.discrete_gaussian(sigma=2.0, epsilon=1.0, delta=1e-2, sensitivity=1),
    "staircase": dpk.staircase(epsilon=1.0, sensitivity=1.0),
    "truncated": dpk.truncated_laplace(epsilon=1.0, delta=1e-3, sensitivity=1.0),
    "vector": dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=2.0), dimensions=3, norm="l1", lattice=1.0),
}


@pytest.mark.lengthy
@pytest.mark.quick("laplace-0.95", "discrete-0.8", "vector-0.95")
@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("name", NOISES)
def test_mechanisms_cover_their_inputs(name, level):
    """All codes of the certified table, at inputs on and between cells: at least the level, and hardly more."""
    mechanism = NOISES[name]
    noise_table = dpk.exact_sampler(mechanism).certificate.table
    codes, weights = noise_table.first + np.arange(noise_table.codes), noise_table.weights / 2.0**noise_table.bits
    grain = 2.0**noise_table.grid_log2
    lattice = name == "vector"
    for n in (
        0,
        *(
            []
            if lattice
            else [1, noise_table.points_per_bin // 2, 5 * noise_table.points_per_bin + noise_table.points_per_bin // 3]
        ),
    ):
        q, f = divmod(n, noise_table.points_per_bin)
        up = (f << 32) // noise_table.points_per_bin / WORD
        held = 0.0
        for position, share in ((q, 1 - up), (q + 1, up)):
            y = (codes + position) * float(noise_table.bin_width)
            y = np.broadcast_to(y[:, None], (len(y), 3)) if lattice else y
            low, high = dpk.confidence_interval(y, mechanism, level)
            inside = (low <= n * grain) & (n * grain <= high)
            held += share * float(weights @ (inside[:, 0] if lattice else inside))
        atom = weights.max() * (2 if "discrete" in name else 3)
        assert level - 1e-12 <= held <= level + atom + (0.2 if lattice else 0)


@pytest.mark.lengthy
def test_intervals_together_and_on_a_lattice():
    mechanism, y = NOISES["laplace"], np.array([[120.0, -3.5], [0.0, 1e4]])
    cell = float(dpk.exact_sampler(mechanism).certificate.table.bin_width)
    y = np.round(y / cell) * cell
    low, high = dpk.confidence_interval(y, mechanism, 0.9, together=True)
    each = 0.9**0.25
    assert low.shape == high.shape == (2, 2)
    assert (high - y) == pytest.approx(np.full((2, 2), -200 * math.log(1 - each)), rel=2e-3)
    assert (y - low) == pytest.approx(high - y)
    whole = dpk.confidence_interval(y, mechanism, 0.9, lattice=1.0)
    plain = dpk.confidence_interval(y, mechanism, 0.9)
    assert whole[0].tolist() == np.ceil(plain[0]).tolist()
    assert whole[1].tolist() == np.floor(plain[1]).tolist()
    # A mechanism on vectors of counts knows that they are whole.
    low, high = dpk.confidence_interval(np.array([1.0, 2.0, 3.0]), NOISES["vector"], 0.5)
    assert (low.tolist(), high.tolist()) == ([0.0, 1.0, 2.0], [2.0, 3.0, 4.0])


def outcomes(values):
    """Every (released values, probability) of independent inputs ``(table, grain)``."""
    each = [[(float(k * made.bin_width), p) for k, p in codes_of(made, n)] for made, n in values]
    for chosen in itertools.product(*each):
        yield [y for y, _ in chosen], math.prod(p for _, p in chosen)


def released(values, ys):
    return [dpk.released_values(y, certificate(noise_table)) for y, (noise_table, _) in zip(ys, values, strict=True)]


def truths(values):
    return [float(n * Fraction(2) ** made.grid_log2) for made, n in values]


A, B = table(0, codes=7, points_per_bin=2), table(3, codes=7, points_per_bin=3, grid_log2=-3)
COMBINATIONS = {
    "difference": ([(A, 5), (B, 2)], lambda a, b: a - b),
    "weighted": ([(A, 5), (B, 2)], lambda a, b: 0.3 * a - b / 7 + 2),
    "three": ([(A, 5), (A, 2), (B, 1)], lambda a, b, c: a + b - 2 * c),
    "four": ([(A, 1), (A, 3), (A, 2), (A, 5)], lambda a, b, c, d: 5 - (a + b + c + d)),
}


@pytest.mark.quick("*0.6")
@pytest.mark.parametrize("level", [0.6, 0.95])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_are_covered(name, level):
    """Every outcome: the bounds move with the released combination, so one interval gives both."""
    values, combine = COMBINATIONS[name]
    truth, tail = combine(*truths(values)), (1 - level) / 2
    sample = combine(*released(values, [0.0] * len(values)))
    low, high = sample.interval(level)
    down, up = sample.value - low, high - sample.value
    above = below = Fraction(0)
    for ys, p in outcomes(values):
        y = combine(*ys)
        above, below = above + p * (y - down > truth), below + p * (y + up < truth)
    assert max(above, below) <= tail
    # And they are not much too wide: by the rounding of the inputs, and one point of the sum.
    narrower = 2 * sum(float(made.bin_width) for made, _ in values)
    loose = sum(p for ys, p in outcomes(values) if abs(combine(*ys) - truth) > max(down, up) - narrower)
    assert loose > 1 - level


RATIOS = {
    "independent": ([(A, 9), (B, 60)], lambda a, b: (a, b)),
    "share": ([(A, 9), (B, 60)], lambda a, b: (a, a + b)),
    "centred": ([(A, 3), (B, 60)], lambda a, b: (a + 2 * b, b)),
    "near 0": ([(A, 9), (B, 3)], lambda a, b: (a, b)),
    "negative": ([(A, 9), (B, -60)], lambda a, b: (a, b)),
}


@pytest.mark.lengthy
@pytest.mark.quick("share", "near 0")
@pytest.mark.parametrize("name", RATIOS)
def test_ratios_are_covered(name):
    values, parts = RATIOS[name]
    level = 0.8
    above, below = parts(*truths(values))
    over = under = Fraction(0)
    unbounded = 0
    for ys, p in outcomes(values):
        numerator, denominator = parts(*released(values, ys))
        ratio = numerator / denominator
        low, high = ratio.interval(level)
        assert low <= ratio.value <= high or math.isnan(ratio.value)
        unbounded += low == -math.inf
        over, under = over + p * (low > above / below), under + p * (high < above / below)
    assert max(over, under) <= (1 - level) / 2
    assert (unbounded > 0) == (name == "near 0")
    assert over + under > 0 or name == "near 0"


def test_quantiles_of_histograms_are_covered():
    noise_table = table(0, codes=5, points_per_bin=1)
    values, edges = [(noise_table, 8), (noise_table, 3), (noise_table, 6)], [0.0, 1.0, 2.0, 3.0]
    shares = np.cumsum(truths(values)) / sum(truths(values))
    for p in (0.3, 0.6):
        inside = int(np.searchsorted(shares, p))  # the bin of the true quantile
        over = under = Fraction(0)
        for ys, probability in outcomes(values):
            low, high = dpk.histogram_quantile(released(values, ys), edges, p).interval(0.8)
            over += probability * (low >= edges[inside + 1])
            under += probability * (high <= edges[inside])
        assert max(over, under) <= Fraction(1, 10)
    big = dpk.released_values(np.array([100.0, 500.0, 300.0, 100.0]), dpk.laplace(epsilon=1.0, sensitivity=1.0))
    quantile = dpk.histogram_quantile(big, [*edges, 4.0], 0.35)
    assert quantile.interval() == (1.0, 2.0)
    assert quantile.value == pytest.approx(1.5)


def test_a_combination_whose_input_rounding_is_forgotten_is_caught(monkeypatch):
    monkeypatch.setattr(module._Release, "input_rounding", property(lambda self: 0.0))
    failed = 0
    for name in COMBINATIONS:
        for level in (0.6, 0.95):
            try:
                test_combinations_are_covered(name, level)
            except AssertionError:
                failed += 1
    assert failed


def test_sums_by_transform_are_within_their_slack():
    """Against convolutions of Python's integers."""
    noise_table = table(2, codes=31)
    for count in (2, 3, 7):
        weights = [1]
        for _ in range(count):
            product = [0] * (len(weights) + noise_table.codes - 1)
            for i, a in enumerate(weights):
                for j, b in enumerate(noise_table.outcomes):
                    product[i + j] += a * b
            weights = product
        exact = [sum(weights[j:]) / (1 << noise_table.bits * count) for j in range(len(weights))]
        noise = CombinedNoise.from_noises([repeated_sum(noise_table, count)])
        for j, p in enumerate(exact):
            bound = noise.tail(count * noise_table.first + j)
            assert p <= bound <= p * (1 + 1e-8) + 2 * noise.slack
        assert noise.slack < 1e-10


def test_a_coarser_grid_keeps_every_value_within_its_room():
    noise = repeated_sum(table(1, codes=101), 1).scaled(0.37)
    coarse = noise.on_grid(1.3)
    assert coarse.p.sum() == pytest.approx(1)
    for t in np.linspace(-30, 30, 13):
        exact = CombinedNoise.from_noises([noise]).tail(t)
        assert CombinedNoise.from_noises([coarse]).tail(t - coarse.rounding) >= exact * (1 - 1e-9)
        assert CombinedNoise.from_noises([coarse]).tail(t + coarse.rounding) <= exact * (1 + 1e-8)


@pytest.mark.lengthy
def test_gaussian_noise_has_the_normal_intervals_and_fiellers():
    mechanism = dpk.gaussian(sigma=30.0, epsilon=1.0, delta=1e-2, sensitivity=10.0)
    two = dpk.gaussian(sigma=2.0, epsilon=1.0, delta=1e-2, sensitivity=0.5)
    a, b = dpk.released_values(5000.0, mechanism), dpk.released_values(64.0, two)
    z = stats.norm.isf(0.025)
    assert (a.value - a.interval()[0]) == pytest.approx(z * 30, rel=1e-3)
    difference = a - 20 * b
    reach = z * math.hypot(30, 40)
    assert difference.interval() == pytest.approx((3720 - reach, 3720 + reach), rel=1e-3)
    # (y1 - r y2)^2 = z^2 (s1^2 + r^2 s2^2)
    roots = np.roots([64.0**2 - (z * 2) ** 2, -2 * 5000 * 64.0, 5000.0**2 - (z * 30) ** 2])
    assert (a / b).interval() == pytest.approx(sorted(roots.real), rel=1e-4)


def test_values_that_share_their_noise_are_known_to():
    a, b = dpk.released_values(np.array([10.0, 4.0]), NOISES["discrete"], lattice=1.0)
    assert (a - a).interval() == (0.0, 0.0)
    assert (a + a).interval() == tuple(2 * end for end in a.interval())
    assert (5 - a).interval() == tuple(5 - end for end in a.interval()[::-1])
    assert ((a + b) / (a + b)).interval() == pytest.approx((1.0, 1.0), abs=1e-6)
    assert (a - b).value == 6.0
    # Counts are whole, and so are sums of theirs.
    for value in (a + b, a - 3 * b, a - 0.5):
        assert [float(end - value.value).is_integer() for end in value.interval()] == [True, True]
    array = dpk.released_values(np.arange(6.0).reshape(2, 3), NOISES["discrete"])
    assert array.sum().value == 15.0
    assert (np.array([1.0, 2.0, 3.0]) @ array[1]).value == 26.0
    assert (np.float64(2) * array[0, 1]).value == 2.0


def test_every_kind_of_release_has_intervals():
    mechanism = NOISES["laplace"]
    reports = dpk.perturb(np.array([1.0, 2.0]), mechanism)
    low, high = dpk.confidence_interval(reports, mechanism, 0.99)
    sampler = dpk.exact_sampler(mechanism)
    for same in (sampler, sampler.certificate):
        assert np.array_equal(dpk.confidence_interval(reports, same, 0.99), (low, high))
    assert np.array_equal(dpk.confidence_interval(pd.Series(reports), mechanism, 0.99), (low, high))
    single = dpk.confidence_interval(reports.astype(np.float32), mechanism, 0.99)
    assert np.allclose(single, (low, high), rtol=1e-5)
    far = dpk.perturb(1e12, mechanism)
    low, high = dpk.confidence_interval(far, mechanism, 0.999999)
    assert low <= 1e12 <= high


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dpk.confidence_interval(1.0, dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)), "not additive noise"),
        (lambda: dpk.confidence_interval(0.123456789, NOISES["discrete"]), "no multiple of 1"),
        (lambda: dpk.confidence_interval(np.array([1.0, np.nan]), NOISES["discrete"]), "number 1 is nan"),
        (lambda: dpk.confidence_interval(1.0, NOISES["discrete"], 1.0), "confidence: 1 is not in"),
        (lambda: dpk.confidence_interval(1.0, NOISES["discrete"], lattice=0.0), "lattice: 0 is not in"),
        (lambda: dpk.confidence_interval("one", NOISES["discrete"]), "released: str is not"),
        (lambda: dpk.histogram_quantile([dpk.released_values(1.0, NOISES["discrete"])], [0, 1, 2], 0.5), "edges: must"),
        (
            lambda: dpk.released_values(np.ones(9), NOISES["discrete"]).sum().interval(1 - 1e-15),
            "too near 1",
        ),
    ],
)
def test_what_has_no_interval_is_refused(call, says):
    with pytest.raises((ValueError, TypeError), match=says):
        call()
