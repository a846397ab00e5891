"""Noise without an end: blocks that repeat, their certificate against sums of Fractions, and every engine's draws."""

import dataclasses
import json
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_tables import form_of, plain_table

import accountants
import dpkernels as dpk
from accountants.dominating_pairs.registry import dominating_pairs
from dpkernels.budgets.ledger import Ledger
from dpkernels.decimals import rational
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.noise import construction
from dpkernels.exact.noise import sampler as noise_sampler
from dpkernels.exact.noise.certificate import certify_noise
from dpkernels.exact.noise.construction import noise_certificate, pure_table_on_grid, vector_certificate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.tail import Tail, check_pure
from dpkernels.exact.registry import Certificate
from dpkernels.exact.sampler import NOISE_STREAM, ROUNDING_STREAM
from dpkernels.random import host

RNG = np.random.default_rng(17)
SECRET = bytes(range(9, 41))
KEY = dpk.key_from_bytes(SECRET)
WORDS16 = np.arange(1 << 16, dtype=np.uint16)
MERGED = dpk.MergedLaplace((3.0, 0.0, 0.8), (0.31, 1.0))
PURE = {
    "laplace": lambda: dpk.laplace(epsilon=1.0),
    "laplace-0.01": lambda: dpk.laplace(epsilon=0.01, sensitivity=0.7),
    "laplace-20": lambda: dpk.laplace(epsilon=20.0, sensitivity=1e-9),
    "laplace-1e-6": lambda: dpk.Additive(dpk.Laplace(1e6)).claim(sensitivity=1.0, epsilon=1e-6, delta=0.0),
    "staircase": lambda: dpk.staircase(epsilon=0.7, sensitivity=0.3),
    "staircase-steps-at-0": lambda: dpk.staircase(epsilon=1.0, gamma=0.0),
    "staircase-0.01": lambda: dpk.staircase(epsilon=0.01),
    "discrete": lambda: dpk.discrete_laplace(epsilon=0.5, sensitivity=3.0),
    "discrete-20": lambda: dpk.discrete_laplace(epsilon=20.0),
    "merged": lambda: dpk.Additive(MERGED).claim(sensitivity=1.0, epsilon=3.0, delta=0.0),
    "vector": lambda: dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=2, norm="l1"),
    "vector-discrete": lambda: dpk.on_vectors(
        dpk.discrete_laplace(epsilon=1.0, sensitivity=2.0), dimensions=8, norm="l1", lattice=1.0
    ),
}
every_pure = pytest.mark.parametrize("name", PURE)
a_few_quickly = pytest.mark.quick("laplace", "staircase", "discrete", "vector-discrete")


def small_table(block=(30000, 20000, 9000), weights=(100, 8000, 40000, 8000, 100)):
    """Return a table of 16 bits with a tail; what is left of each total is the rest's, or the next block's."""
    rest = ((1 << 16) - sum(weights)) // 2
    table = plain_table(weights, -(len(weights) // 2))
    return dataclasses.replace(table, tail=Tail(rest, np.array(block, np.uint64), 16))


def unrolled(table, blocks):
    """Return the probabilities of all codes up to some blocks, by code."""
    tail, first = table.tail, table.first
    found = {first + j: Fraction(w, table.total) for j, w in enumerate(table.outcomes)}
    for k in range(blocks):
        scale = Fraction(tail.rest, table.total) * tail.continue_probability**k / (1 << table.bits)
        for t, w in enumerate(tail.block.tolist()):
            for sign in (1, -1):
                found[sign * (table.last + 1 + k * tail.codes + t)] = scale * w
    return found


# Draws.


def programs_of(form):
    """Return functions of the words of six turns, the last ones repeated, by NumPy and compiled -> codes."""

    def reports(words):
        x, rounding = words[0] * 0.0, (words[0] * 0).astype(np.uint32)
        return form.complete_reports(x, words[0], rounding, noise_words=lambda turn: words[turn])

    return reports, jax.jit(reports)


@pytest.mark.lengthy
def test_every_word_of_every_turn_counts():
    """First the table and the rest, then the sides, then the block and the next one, in all blocks alike."""
    table = small_table()
    sampler, tail = form_of(dpk.laplace(epsilon=1.0), table), table.tail
    n, block = table.last, tail.block.tolist()
    kernel, draws = table.kernel()(WORDS16), tail.kernel()(WORDS16)
    assert [int((kernel == code).sum()) for code in range(-n - 1, n + 1)] == [2 * tail.rest, *table.outcomes]
    incomplete = sampler.are_incomplete(WORDS16)
    assert (kernel[incomplete] == -n - 1).all()
    assert len(incomplete) == 2 * tail.rest
    every = {
        "in tail": np.full(1 << 16, WORDS16[kernel == -n - 1][0]),
        "further": np.full(1 << 16, WORDS16[draws == tail.codes][0]),
        "ended": np.full(1 << 16, WORDS16[draws == 0][0]),
    }
    programs = programs_of(sampler)
    for program in programs:
        with jax.enable_x64(True):
            sides = np.asarray(program(np.stack([every["in tail"], WORDS16, *[every["ended"]] * 4]))).astype(int)
        assert [(sides == side * (n + 1)).sum() for side in (-1, 1)] == [1 << 15, 1 << 15]
    for blocks_before, side in ((0, 1), (1, -1), (2, 1)):
        # Words that go on once more end at the first code of the block after.
        turns = [*[every["further"]] * blocks_before, WORDS16, *[every["ended"]] * (3 - blocks_before)]
        words = np.stack([every["in tail"], np.full(1 << 16, np.uint16(side == 1)), *turns])
        for program in programs:
            with jax.enable_x64(True):
                codes = side * np.asarray(program(words)).astype(int) - n - 1
            assert np.bincount(codes - blocks_before * tail.codes).tolist() == [*block, tail.continue_weight]


def test_the_variance_is_that_of_all_blocks():
    table = small_table()
    probabilities = unrolled(table, 25)
    assert (
        1 - sum(probabilities.values())
        == Fraction(2 * table.tail.rest, table.total) * table.tail.continue_probability**25
    )
    second = sum(code**2 * p for code, p in probabilities.items())
    assert 0 < table.variance - second < Fraction(1, 10**20)
    assert table.mean == 0


def test_noise_too_large_for_integers_is_one_report_for_all_inputs(monkeypatch):
    """A code that stops at the largest one is reported as the edge, whatever the input; other reports stop there."""
    table = small_table()
    sampler, tail = form_of(dpk.laplace(epsilon=1.0), table), table.tail
    monkeypatch.setattr(noise_sampler, "EDGE", 1000)
    monkeypatch.setattr(noise_sampler, "MAX_TAIL_CODE", 1900)
    x = np.array([-900.0, 0.0, 900.0])
    kernel = table.kernel()(WORDS16)
    in_tail = np.full(3, WORDS16[kernel == table.first - 1][0])
    draws = table.tail.kernel()(WORDS16)
    further, ended = (WORDS16[draws == t][0] for t in (tail.codes, 0))

    def reports(turns):
        def later(turn):
            return np.full(3, 1 if turn == 1 else further if turn < turns + 2 else ended, np.uint16)

        return sampler.complete_reports(x, in_tail, np.zeros(3, np.uint32), noise_words=later).tolist()

    start = table.last + 1
    assert reports(10) == [start + 10 * tail.codes + at for at in x.tolist()]
    assert reports(100) == [start + 300 - 900, start + 300, 1000]
    assert reports(700) == [1000, 1000, 1000]


# The certificate.


def is_pure(table, cells, limit):
    try:
        check_pure(table.weights, table.first, table.tail, cells, limit)
    except CertificateError:
        return False
    return True


def largest_ratio(table, cells):
    """Return the largest ratio of probabilities up to some cells apart, over three blocks and what they step to."""
    p = unrolled(table, 5)
    inner = range(-table.last - 3 * table.tail.codes, table.last + 3 * table.tail.codes + 1)
    return max(p[c] / p[c + s] for c in inner for s in range(-cells, cells + 1))


@pytest.mark.lengthy
@pytest.mark.quick("2")
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_a_table_is_pure_where_all_ratios_are(cells):
    """Of random tables that fall, at the largest ratio, wherever it is, and just below it."""
    places = set()
    for _ in range(80):
        falling = [np.sort(RNG.uniform(0.3, 1.0, RNG.integers(3, 6)))[::-1] for _ in range(2)]
        half, block = falling[0], falling[1] / falling[1].sum()
        shares = RNG.uniform(0.4, 1.2, 2)  # Above 1 a block, or the first one, begins with a rise.
        block = np.floor(block * 65536 * (1 - min(0.9, shares[0] * block[-1] / block[0]))).astype(int)
        rest = shares[1] * half[-1] * 65536 / block[0]
        half = (half * 65536 / (half[0] + 2 * half[1:].sum() + 2 * rest)).astype(int).tolist()
        rest = int(shares[1] * half[-1] * 65536 / block[0])
        weights = [*half[:0:-1], (1 << 16) - 2 * sum(half[1:]) - 2 * rest, *half[1:]]
        table = small_table(block, weights)
        p, n, L = unrolled(table, 3), table.last, table.tail.codes
        outer = [p[c] for c in range(n + 2 * L + 1)]
        if outer != sorted(outer, reverse=True):
            assert not is_pure(table, cells, Fraction(10**9))
            continue
        ratio = largest_ratio(table, cells)
        assert is_pure(table, cells, ratio)
        assert not is_pure(table, cells, ratio * (1 - Fraction(1, 10**12)))
        worst = max(range(n + L + 1), key=lambda c, p=p: p[c] / p[c + cells])
        places.add((worst > n, (worst + cells > n) + (worst + cells > n + L), worst == n, worst == n + L))
    assert len({place[:2] for place in places}) >= 3  # In the table or the block, or from one to the next.


@pytest.mark.lengthy
@a_few_quickly
@every_pure
def test_claims_are_pure(name):
    mechanism = PURE[name]()
    sampler = dpk.exact_sampler(mechanism)
    certificate = sampler.certificate
    assert (certificate.delta, certificate.realised_delta) == (0.0, 0)
    assert certificate.table.tail.rest < 1 << 46
    assert "pure epsilon-DP of each" in str(certificate)
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert again.to_dict() == certificate.to_dict()
    assert str(again) == str(certificate)
    if "discrete" not in name:
        assert abs(sampler.variance_cost) < 3e-3


@pytest.mark.parametrize("name", ["laplace", "staircase", "discrete"])
def test_ratios_are_recomputed(name):
    """All codes at the largest distance of neighbours, with Python integers, over the table and two blocks."""
    certificate = noise_certificate(PURE[name]())
    table, cells, limit = certificate.table, certificate.shift, exp_lower_bound(certificate.epsilon)
    tail, half = table.tail, table.outcomes[-table.first :]
    unit, block = 1 << table.bits, tail.block.tolist()
    p = [w * unit**2 for w in half]
    p += [tail.rest * w * unit for w in block] + [tail.rest * tail.continue_weight * w for w in block]
    ratio = max(Fraction(p[c], p[c + cells]) for c in range(len(p) - cells))
    assert ratio <= limit
    assert float(ratio / limit) > 1 - 1e-4
    assert p == sorted(p, reverse=True)


# Planted faults.


def refused(table, name, message):
    made = PURE[name]()
    with pytest.raises(CertificateError, match=message):
        certify_noise(table, made.sensitivity, made.epsilon, 0.0)


def with_tail(table, **changes):
    return dataclasses.replace(table, tail=dataclasses.replace(table.tail, **changes))


@pytest.mark.parametrize("name", ["laplace", "staircase", "discrete"])
def test_blocks_of_another_length_are_refused(name):
    """A block with its last code twice; and one without it, which is another sequence unless the tail has no steps."""
    table = noise_certificate(PURE[name]()).table
    block = table.tail.block
    if name == "staircase":
        refused(with_tail(table, block=block[:-1]), name, "next one|rise away")
    longer = np.append(block, block[-1])
    longer[0] -= block[-1]
    refused(with_tail(table, block=longer), name, "rise away|next one|at its end|within a block")


@pytest.mark.parametrize("name", ["laplace", "staircase", "discrete"])
def test_a_loop_that_may_end_is_refused(name):
    """After so many blocks: a table without a tail, or with a tail of one block."""
    table = noise_certificate(PURE[name]()).table
    tail = table.tail
    block = tail.block.copy()
    block[0] += np.uint64(tail.continue_weight)
    refused(with_tail(table, block=block), name, "a code is impossible")
    weights = table.weights.copy()
    weights[-table.first] += np.uint64(2 * tail.rest)
    refused(dataclasses.replace(table, weights=weights, tail=None), name, "delta: is")


@pytest.mark.parametrize("name", ["laplace", "discrete"])
@pytest.mark.parametrize("what", ["weight", "rest", "block", "further", "uneven"])
def test_one_weight_1_percent_low_is_refused(name, what):
    table = noise_certificate(PURE[name]()).table
    tail, weights, block = table.tail, table.weights.copy(), table.tail.block.copy()
    rest, middle = tail.rest, -table.first
    if what == "weight":
        for at in (middle + 5, middle - 5):
            weights[at] -= weights[at] // np.uint64(100)
    elif what == "uneven":
        weights[middle + 1] -= np.uint64(1)
    elif what == "rest":
        rest = rest * 99 // 100
    elif what == "block":
        block[1] -= block[1] // np.uint64(100)
    else:
        block[0] += np.uint64(tail.continue_weight // 100)
    spare = (1 << 64) - sum(weights.tolist()) - 2 * rest
    if what != "block":
        weights[middle] += np.uint64(spare)
    wrong = dataclasses.replace(table, weights=weights, tail=Tail(rest, block, 64))
    refused(wrong, name, "epsilon: a ratio|not even|rise away")


def test_a_stated_tail_is_verified():
    payload = json.loads(json.dumps(dpk.exact_sampler(PURE["discrete"]()).certificate.to_dict()))
    tail = payload["noise"]["tail"]
    for wrong in (
        {**tail, "rest": tail["rest"] + 1},
        {**tail, "block": tail["block"][:-1]},
        {**tail, "block": [-1, *tail["block"]]},
        {"rest": tail["rest"]},
        None,
        [],
    ):
        with pytest.raises(CertificateError):
            Certificate.from_dict({**payload, "noise": {**payload["noise"], "tail": wrong}})
    with pytest.raises(CertificateError):
        Certificate.from_dict({**payload, "epsilon": 0.49})
    with pytest.raises(CertificateError):
        Certificate.from_dict({**payload, "noise": {k: v for k, v in payload["noise"].items() if k != "tail"}})


@pytest.mark.parametrize(
    "mechanism",
    [
        dpk.gaussian(sigma=3.0, sensitivity=1.0, epsilon=1.0, delta=0.0),
        dpk.Additive(dpk.Logistic(1.0)).claim(sensitivity=1.0, epsilon=1.0, delta=0.0),
        dpk.Additive(dpk.DiscreteLaplace(2.0, 1.0, 12)).claim(sensitivity=1.0, epsilon=1.0, delta=0.0),
        dpk.Additive(dpk.Staircase(1.0, 2.0, 0.3)).claim(sensitivity=1.0, epsilon=1.0, delta=0.0),
        dpk.Additive(dpk.Laplace(0.99)).claim(sensitivity=1.0, epsilon=1.0, delta=0.0),
    ],
)
def test_noise_that_is_not_pure_is_refused(mechanism):
    with pytest.raises(CertificateError, match=r"^delta: is 0; |^epsilon: a ratio"):
        dpk.exact_sampler(mechanism)


# Releases.


@pytest.fixture
def long_tails(monkeypatch):
    """Tables whose tail is drawn by a tenth of the values, so that it is tested."""
    monkeypatch.setattr(construction, "_TAIL_MASS", 0.05)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["laplace", "staircase", "discrete", "vector", "vector-discrete"])
def test_every_engine_and_every_piece_has_the_same_noise(name, long_tails):
    """NumPy, the compiled kernel, the sharded program and ``perturb_traced``; of value i by the key and i alone."""
    mechanism = PURE[name]()
    d = getattr(mechanism, "dimensions", 1)
    mechanism = dataclasses.replace(mechanism)  # not in the cache
    sampler = ExactNoise(mechanism, (vector_certificate if d > 1 else noise_certificate)(mechanism))
    x = (RNG.integers(-50, 50, (12_000 // d, d)) * 1.0).reshape(-1, *([d] if d > 1 else []))
    whole = dpk.perturb(x, sampler, key=KEY)
    noise = (whole - x) / float(sampler.table.bin_width)
    assert np.mean(abs(noise) > sampler.table.last) > 0.03
    pieces = [dpk.perturb(x[i : i + 40], sampler, key=KEY, start=i) for i in range(0, 2000 // d, 40)]
    np.testing.assert_array_equal(np.concatenate(pieces)[: 2000 // d], whole[: 2000 // d])
    with jax.enable_x64(True):
        on_device = dpk.perturb(jnp.asarray(x), sampler, key=KEY)
        np.testing.assert_array_equal(np.asarray(on_device), whole)
        values = jnp.asarray(x.astype(np.int32)) if "vector-discrete" in name else jnp.asarray(x)
        traced = jax.jit(lambda key, x: dpk.perturb_traced(key, sampler, x))(KEY, values)
        np.testing.assert_array_equal(np.asarray(traced), whole)


def test_later_turns_have_words_of_their_own(long_tails):
    """Value i's turn k reads word i of a stream that nothing else reads, by an independent reading of the streams."""
    mechanism = PURE["discrete"]()
    certificate = noise_certificate(mechanism)
    table, tail = certificate.table, certificate.table.tail
    sampler = ExactNoise(mechanism, certificate)
    count = 3000
    reports = dpk.perturb(np.zeros(count), sampler, key=KEY)
    words = np.empty(count, "<u8")

    def turn(number):
        host.Keystream(SECRET).fill(words, NOISE_STREAM, 0, number)
        return words.copy()

    code = table.kernel()(turn(0)).astype(int)
    in_tail = code < table.first
    side = np.where(turn(1) % 2 == 1, 1, -1)
    pending, distance = in_tail, np.full(count, table.last + 1)
    for number in range(2, 60):
        t = tail.kernel()(turn(number))
        distance += np.where(pending, t, 0)
        pending = pending & (t == tail.codes)
    assert not pending.any()
    expected = np.where(in_tail, side * distance, code)
    rounding = np.empty(count, "<u4")
    host.Keystream(SECRET).fill(rounding, ROUNDING_STREAM, 0)
    positions = sampler.positions(np.zeros(count), rounding)
    np.testing.assert_array_equal(reports / float(table.bin_width), expected + positions)


@pytest.mark.lengthy
def test_the_tail_has_its_law(long_tails):
    """Shares of reports beyond points far out, within 6 standard errors: with a fixed key, no luck."""
    mechanism = PURE["laplace"]()
    sampler = ExactNoise(mechanism, noise_certificate(mechanism))
    noise = dpk.perturb(np.zeros(200_000), sampler, key=KEY)
    for z in (1.0, 3.0, 6.0, 8.0):
        for side in (noise > z, noise < -z):
            share = np.exp(-z) / 2
            assert abs(side.mean() - share) < 6 * (share / len(noise)) ** 0.5


# What else is computed from a table.


def test_a_ledger_without_delta_takes_pure_noise(tmp_path):
    ledger = Ledger.create(tmp_path / "pure.ledger", epsilon=1.0)
    for make in (dpk.laplace, dpk.staircase, dpk.discrete_laplace):
        ledger.charge(make(epsilon=0.1))
    with pytest.raises(ValueError, match="delta"):
        ledger.charge(dpk.logistic(epsilon=0.1))


@pytest.mark.lengthy
def test_a_finite_table_is_near_and_has_heavier_ends():
    table = noise_certificate(PURE["discrete"]()).table
    finite = table.finite
    assert finite.total == 1 << 64
    assert finite.tail is None
    p = unrolled(table, 30)
    below = 0
    true = sum(q for code, q in p.items() if code < finite.first)
    for code, weight in enumerate(finite.outcomes[: -finite.first], finite.first):
        below, true = below + Fraction(weight, 1 << 64), true + p[code]
        assert true - Fraction(1, 10**30) <= below <= true + Fraction(finite.codes, 1 << 64)
    assert abs(dpk.confidence_interval(0.0, PURE["discrete"](), 0.99)[1] - 6 * np.log(100)) < 2


def test_the_pair_of_a_table_is_that_of_all_its_blocks():
    mechanism = PURE["discrete"]()
    sampler = dpk.exact_sampler(mechanism)
    (pair,) = dominating_pairs(sampler)
    table, cells = sampler.table, sampler.certificate.shift
    assert float(pair.p.sum()) == pytest.approx(1, abs=1e-13)
    assert float(pair.q.sum()) == pytest.approx(1, abs=1e-13)
    p = unrolled(table, 12)
    for epsilon in (0.1, 0.3, 0.49):
        ratio = rational(float(np.exp(epsilon)))
        delta = sum(max(Fraction(0), w - ratio * p.get(code - cells, 0)) for code, w in p.items() if code + cells in p)
        assert float(accountants.delta(sampler, epsilon)) == pytest.approx(float(delta), rel=1e-9)
    assert accountants.guarantee(sampler).bracket(epsilon=0.5)[1] < 1e-12


def test_tables_with_a_tail_are_built_for_short_words_too():
    table = pure_table_on_grid(dpk.DiscreteLaplace(2.0), 1, 0, 1, 32, 2.0**-7)
    assert table.total == 1 << 32
    check_pure(table.weights, table.first, table.tail, 1, exp_lower_bound(0.5))
