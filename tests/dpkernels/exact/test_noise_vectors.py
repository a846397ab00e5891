"""Additive noise on vectors: bounds against brute force over all shifts, and the normal law in integers."""

import dataclasses
import itertools
import json
import math
from fractions import Fraction
from functools import cache

import jax
import mpmath
import numpy as np
import pytest
from noise_tables import plain_table

import dpkernels as dpk
from dpkernels.exact.arithmetic import root_up
from dpkernels.exact.certificate import CertificateError, exp_lower_bound
from dpkernels.exact.noise.certificate import VectorClaim, VectorNoiseCertificate, certify_vector, gaussian_distance
from dpkernels.exact.noise.construction import STRETCHES, density_table, noise_table
from dpkernels.exact.noise.gaussian_cells import FIXED_BITS, MAX_DEVIATIONS, cell_masses, ndtr_bounds
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.registry import Certificate
from dpkernels.mechanisms.additive import norm_growth

RNG = np.random.default_rng(13)
KEY = dpk.key_from_bytes(bytes(range(7, 39)))
ORDERS = {"l1": 1, "l2": 2, "linf": np.inf}


def norm_of(shifts, norm):
    """Of vectors on the last axis, exactly for whole numbers: the square for l2."""
    sizes = np.abs(shifts)
    return {"l1": sizes.sum(-1), "l2": (sizes**2).sum(-1), "linf": sizes.max(-1)}[norm]


def shifts_of(claim):
    """All shifts of neighbours on a lattice of cell 1; off it s_i cells take Delta_i > |s_i| - 1, in grains."""
    most = math.floor(claim.sensitivity) + (0 if claim.lattice else 1)
    every = np.array(list(itertools.product(range(-most, most + 1), repeat=claim.dimensions)))
    least = every if claim.lattice else np.maximum(np.abs(every) - 0.999, 0.0)
    limit = claim.sensitivity ** (2 if claim.norm == "l2" else 1)
    inside = norm_of(least, claim.norm) <= limit
    return every[inside & every.any(-1)]


# Any noise, in l1.


def small_lattice_table(scale, reach, bits):
    return noise_table(dpk.DiscreteLaplace(scale, 1.0, reach), Fraction(1), bits=bits)


def worst_delta(table, shifts, epsilon):
    """The largest hockey stick of the product table and itself shifted, in exact integers."""
    ratio = exp_lower_bound(epsilon)
    p, q, d = ratio.numerator, ratio.denominator, shifts.shape[1]
    w = table.outcomes
    reach = int(np.abs(shifts).max())
    weights = dict(enumerate(w))
    # By symmetry of sums the order and the signs of symmetric tables do not matter, so equal shifts are tried once.
    tried = (
        {tuple(sorted(map(abs, map(int, shift)))) for shift in shifts} if w == w[::-1] else map(tuple, shifts.tolist())
    )
    worst = 0
    for shift in tried:
        first, *rest = ([(weights[j], weights.get(j - s, 0)) for j in weights] for s in shift)
        pairs = first
        for more in rest:
            pairs = [(a * c, b * e) for a, b in pairs for c, e in more]
        worst = max(worst, sum(over for a, b in pairs if (over := q * a - p * b) > 0))
    assert reach < len(w)
    return Fraction(worst, q * table.total**d)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize(
    ("dimensions", "D", "scale", "reach", "lattice"),
    [
        (1, 4.0, 5.0, 12, 1.0),
        (2, 3.0, 4.0, 11, 1.0),
        (2, 1.0, 6.0, 14, None),
        (3, 2.0, 3.0, 10, 1.0),
        (3, 1.0, 4.0, 6, None),
    ],
)
def test_the_l1_bound_holds(norm, dimensions, D, scale, reach, lattice):
    """All shifts a norm allows, the product of tables, exactly."""
    epsilon = 1.0
    table = dataclasses.replace(small_lattice_table(scale, reach, 32), grid_log2=-3, points_per_bin=8)
    claim = VectorClaim(epsilon, 0.9999, D, norm, dimensions, lattice, None)
    certificate = certify_vector(table, claim)
    shifts = shifts_of(claim)
    assert norm_of(shifts, "l1").max() <= certificate.shift
    assert worst_delta(table, shifts, epsilon) <= certificate.realised_delta


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_l1_bound_holds_for_any_table(epsilon):
    """Random weights, skewed and with valleys."""
    for _ in range(6):
        weights = RNG.integers(2000, 4000, 9)
        weights[4] += (1 << 16) - weights.sum()
        table = plain_table(weights, -4)
        try:
            claim = VectorClaim(epsilon, 0.9999, 2.0, "l1", 2, 1.0, None)
            certificate = certify_vector(table, claim)
        except CertificateError:
            continue  # A bound above 1 says nothing.
        assert worst_delta(table, shifts_of(claim), epsilon) <= certificate.realised_delta


def test_the_l1_bound_is_the_same_for_noise_and_its_mirror_image():
    """Neighbours move either way: of weights that halve from code to code one way costs a half, the other nothing."""
    weights = [1 << (15 - j) for j in range(16)]
    weights[-1] += 1
    claim = VectorClaim(1.0, 0.9999, 1.0, "l1", 1, 1.0, None)
    tables = plain_table(weights, 0), plain_table(weights[::-1], -15)
    bounds = [certify_vector(table, claim).realised_delta for table in tables]
    assert bounds[0] == bounds[1]
    assert 0.5 <= float(bounds[0]) <= 0.51


def test_the_l1_bound_is_useful():
    """For a pure law with finite ends it is at most e^eps - 1 times what they cost anyway."""
    table = small_lattice_table(4.0, 40, 64)
    certificate = certify_vector(table, VectorClaim(1.0, 0.01, 4.0, "l1", 2, 1.0, None))
    ends = Fraction(sum(table.outcomes[:4]), table.total)
    assert ends <= certificate.realised_delta <= 2 * ends


# How far neighbours are in cells.


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("grains", [1, 3, 8])
@pytest.mark.parametrize("D", [0.3, 1.0, 1.7, 5.0])
def test_shifts_off_the_lattice_are_bounded(norm, grains, D):
    """Pairs of vectors with rounding words of their own, in Fractions: never more than the bound in l1 and l2."""
    d, cell = 3, Fraction(grains, 8)
    bounds = [VectorClaim(1.0, 0.5, D, norm, d, None, sigma).cells(cell, grains) for sigma in (None, 40.0)]
    x = RNG.integers(-4000, 4000, (400, d)) / 1024
    direction = RNG.normal(size=(400, d)) * RNG.integers(0, 2, (400, d))
    direction[~direction.any(1)] = 1.0
    direction /= np.linalg.norm(direction, ORDERS[norm], axis=1, keepdims=True)
    y = x + np.trunc(direction * D * 4096) / 4096
    for r in (np.zeros((400, d), int), np.full((400, d), grains - 1), RNG.integers(0, grains, (400, d))):
        first, second = ((np.floor(v * 8 + 0.5).astype(int) + r) // grains for v in (x, y))
        moved = second - first
        assert np.abs(moved).sum(1).max() <= bounds[0]
        assert (moved**2).sum(1).max() <= bounds[1] ** 2


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("sigma", [None, 50.0])
def test_shifts_on_the_lattice_are_those_of_whole_numbers(norm, sigma):
    claim = VectorClaim(1.0, 0.5, 2.0, norm, 3, 1.0, sigma)
    own = 2 if sigma else 1
    largest = max(np.sum(np.abs(s) ** own) for s in shifts_of(claim))
    assert int(largest) <= claim.cells(Fraction(1), 8) ** own <= 3**own * int(largest)


@pytest.mark.parametrize("x", [0, 1, 4, 9, 10**20, 2, 3, Fraction(1, 3), Fraction(10**30, 7)])
def test_roots_are_rounded_up(x):
    root = root_up(Fraction(x))
    assert root**2 >= x
    assert (root - Fraction(1, 1 << 79)) ** 2 < x or root == 0
    assert root**2 == x or math.isqrt(int(x)) ** 2 != x


# Gaussian noise, in l2.


@cache
def gaussian_table(parts=20, own=0.5, bits=64):
    """sigma = 1, 2 parts cells."""
    table = density_table(dpk.Gaussian(1.0), own, parts, -10, 1 << 10, bits)
    return table, parts / own * (1 + STRETCHES[0])


def float_delta(table, shift, epsilon):
    """The hockey stick of the product of two tables and itself shifted."""
    p = np.array(table.outcomes, float) / 2.0**table.bits
    halves = []
    for s in map(int, shift):
        pad = np.zeros(abs(s))
        halves.append((np.concatenate([p, pad]), np.concatenate([pad, p])))
    first, second = (np.multiply.outer(halves[0][i], halves[1][i]) for i in (0, 1))
    return np.maximum(first - math.exp(epsilon) * second, 0).sum()


def gaussian_delta(mu, epsilon):
    phi = lambda z: math.erfc(-z / math.sqrt(2)) / 2  # noqa: E731
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("norm", "D", "lattice", "epsilon"),
    [
        ("l2", 20.0, 1.0, 0.5),
        ("l2", 60.0, 1.0, 2.0),
        ("linf", 15.0, 1.0, 1.0),
        ("l1", 25.0, 1.0, 1.0),
        ("l2", 10.0, None, 0.2),
    ],
)
def test_the_l2_bound_holds(norm, D, lattice, epsilon):
    """Two coordinates, cells of 1: shifts along the axes, the diagonal, and the largest whole vectors in the norm."""
    table, sigma = gaussian_table()
    claim = VectorClaim(epsilon, 0.9999, D, norm, 2, lattice, sigma)
    certificate = certify_vector(table, claim)
    bound = float(certificate.shift)
    reach = math.floor(bound)
    angles = np.linspace(0, np.pi / 2, 13)
    shifts = {tuple(np.trunc(bound * np.array([np.cos(a), np.sin(a)]) + 1e-9).astype(int).tolist()) for a in angles}
    shifts |= {(int(D), 0), (int(D), int(D)) if norm == "linf" else (0, int(D)), (reach, 0)}
    worst = max(float_delta(table, shift, epsilon) for shift in shifts if math.hypot(*shift) <= bound)
    assert worst <= float(certificate.realised_delta) * (1 + 1e-12)
    assert float(certificate.realised_delta) == pytest.approx(gaussian_delta(bound / sigma, epsilon), rel=1e-9)
    assert worst >= 0.9 * float(certificate.realised_delta)


def test_a_table_that_is_not_gaussian_pays_for_it():
    """Twice the total variation distance, and more with dimensions."""
    table, sigma = gaussian_table()
    weights = table.outcomes.copy()
    moved = 1 << 50
    weights[-table.first] -= moved
    weights[-table.first + 200] += moved
    changed = dataclasses.replace(table, weights=np.array(weights, np.uint64))
    claims = [VectorClaim(1.0, 0.9999, 20.0, "l2", d, 1.0, sigma) for d in (1, 5)]
    for claim in claims:
        extra = certify_vector(changed, claim).realised_delta - certify_vector(table, claim).realised_delta
        tau = Fraction(moved, 1 << 64)
        assert float(extra) == pytest.approx(float(claim.dimensions * tau) * (1 + math.e), rel=1e-6)


@pytest.mark.parametrize("fault", ["narrow", "claimed wider", "16 bits"])
def test_a_gaussian_claim_that_is_not_the_tables_is_refused(fault):
    table, sigma = gaussian_table()
    claim = VectorClaim(1.0, gaussian_delta(20 / sigma, 1.0) + 1e-12, 20.0, "l2", 3, 1.0, sigma)
    certify_vector(table, claim)
    if fault == "narrow":
        table = gaussian_table(19, 0.5)[0]
    elif fault == "16 bits":
        table = gaussian_table(20, 0.5, 16)[0]
    else:
        claim = dataclasses.replace(claim, sigma=1.05 * sigma)
    with pytest.raises(CertificateError, match=r"^delta: is .* for 3 values 20 apart in l2"):
        certify_vector(table, claim)


@pytest.mark.parametrize("parts", [8, 15])
def test_coarse_gaussian_tables_are_refused(parts):
    table, sigma = gaussian_table(parts)
    with pytest.raises(CertificateError, match="only tables of at least 32 cells a sigma"):
        certify_vector(table, VectorClaim(1.0, 0.5, 3.0, "l2", 2, 1.0, sigma))


# The normal law in integers.


@pytest.mark.parametrize("part", range(3))
def test_ndtr_is_enclosed(part):
    xs = {
        0: [Fraction(float(x)) for x in RNG.uniform(-MAX_DEVIATIONS, MAX_DEVIATIONS, 60)],
        1: [Fraction(0), Fraction(MAX_DEVIATIONS), Fraction(-MAX_DEVIATIONS), Fraction(1, 10**30), Fraction(1, 3)],
        2: [Fraction(15), Fraction(-15), Fraction(40), Fraction(-200), Fraction(14) + Fraction(1, 10**9)],
    }[part]
    with mpmath.workdps(80):
        for x in xs:
            low, high = ndtr_bounds(x)
            true = mpmath.ncdf(mpmath.mpf(x.numerator) / x.denominator)
            assert mpmath.mpf(low.numerator) / low.denominator <= true <= mpmath.mpf(high.numerator) / high.denominator
            assert high - low <= Fraction(1, 1 << 79)


@pytest.mark.parametrize("sigma", [Fraction(32), Fraction(321, 10), Fraction(12345, 67), Fraction(5000)])
def test_cell_masses_are_enclosed(sigma):
    count = int(MAX_DEVIATIONS * sigma) if sigma < 200 else 3000
    masses, error = cell_masses(sigma, count)
    some = sorted({0, 1, count - 1, *RNG.integers(0, count, 60).tolist()})
    with mpmath.workdps(60):
        s = mpmath.mpf(sigma.numerator) / sigma.denominator
        wrong = [
            abs(mpmath.mpf(masses[j]) / 2**FIXED_BITS - mpmath.ncdf((-j + 0.5) / s) + mpmath.ncdf((-j - 0.5) / s))
            for j in some
        ]
        # Each is within its share of the bound, so that the sum over all is within the bound.
        assert max(wrong) <= mpmath.mpf(error.numerator) / error.denominator
        assert sum(wrong) * count / len(some) <= 2 * mpmath.mpf(error.numerator) / error.denominator
    assert error < Fraction(1, 10**11) or sigma < 40
    assert len(masses) == count


def test_the_distance_from_the_normal_law_is_bounded_from_above():
    """Of weights that are above the law just where the computed masses are, so that their errors all add up."""
    sigma = Fraction(32)
    far = int(MAX_DEVIATIONS * sigma) - 1
    masses, _ = cell_masses(sigma, far + 1)
    with mpmath.workdps(80):
        edges = [mpmath.ncdf((-j - mpmath.mpf(1) / 2) / 32) for j in range(-1, far + 1)]
        true = [above - below for above, below in itertools.pairwise(edges)]
        computed = [mpmath.mpf(mass) / 2**FIXED_BITS for mass in masses]
        half = [int(m * 2**64) + (c > t) for m, t, c in zip(true, true, computed, strict=True)]
        law, weights = true[:0:-1] + true, half[:0:-1] + half
        exact = mpmath.fsum(max(mpmath.mpf(w) / 2**64 - t, 0) for w, t in zip(weights, law, strict=True))
        found = gaussian_distance(NoiseTable(np.array(weights, np.uint64), -far, 64, 0, 1), sigma)
        assert exact <= mpmath.mpf(found.numerator) / found.denominator <= exact + mpmath.mpf(2) ** -54


# Mechanisms.

VECTORS = {
    "laplace-l1": lambda: dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=2, norm="l1"),
    "laplace-linf-counts": lambda: dpk.on_vectors(
        dpk.laplace(epsilon=2.0, sensitivity=5.0), dimensions=5, norm="linf", lattice=1.0
    ),
    "laplace-l2": lambda: dpk.on_vectors(
        dpk.laplace(epsilon=0.5, sensitivity=2.0), dimensions=4, norm="l2", lattice=0.25
    ),
    "truncated": lambda: dpk.on_vectors(
        dpk.truncated_laplace(epsilon=1.0, delta=1e-7), dimensions=3, norm="l1", delta=2e-6
    ),
    "discrete": lambda: dpk.on_vectors(
        dpk.discrete_laplace(epsilon=1.0, sensitivity=2.0), dimensions=8, norm="l1", lattice=1.0, delta=1e-10
    ),
    "gaussian-l2": lambda: dpk.on_vectors(
        dpk.gaussian(sigma=4.0, sensitivity=1.0, epsilon=1.0, delta=1e-5), dimensions=6, norm="l2"
    ),
    "gaussian-linf": lambda: dpk.on_vectors(
        dpk.gaussian(sigma=40.0, sensitivity=10.0, epsilon=1.0, delta=1e-5), dimensions=100, norm="linf"
    ),
    "gaussian-counts": lambda: dpk.on_vectors(
        dpk.gaussian(sigma=40.0, sensitivity=10.0, epsilon=1.0, delta=1e-5), dimensions=1000, norm="l2", lattice=1.0
    ),
}
every_vector = pytest.mark.parametrize("name", VECTORS)


@pytest.mark.quick("discrete")
@every_vector
def test_a_release_of_vectors_has_its_claim(name):
    made = VECTORS[name]()
    sampler = dpk.exact_sampler(made)
    certificate, table = sampler.certificate, sampler.table
    assert certificate.realised_delta <= Fraction(repr(certificate.delta))
    assert (certificate.epsilon, certificate.delta) == (made.epsilon, made.coordinate.delta)
    assert table.total == 1 << 64
    assert table.outcomes == table.outcomes[::-1]
    assert certificate.claim.sensitivity == made.sensitivity
    assert -0.01 < sampler.variance_cost < 0.02
    if made.lattice is not None:
        assert (Fraction(made.lattice) / table.bin_width).denominator == 1


@pytest.mark.quick("discrete")
@every_vector
def test_a_vectors_certificate_survives_json(name):
    certificate = dpk.exact_sampler(VECTORS[name]()).certificate
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert isinstance(again, VectorNoiseCertificate)
    assert again.to_dict() == certificate.to_dict()
    assert str(again) == str(certificate)
    assert "any" not in str(again).split("covers")[0]


@pytest.mark.parametrize(
    ("claimed_name", "lie"),
    [
        ("epsilon", 0.5),
        ("delta", 1e-21),
        ("delta", "0.1"),
        ("sensitivity", 3.0),
        ("sensitivity", 1.0),
        ("norm", "l2"),
        ("norm", "linf"),
        ("norm", "l3"),
        ("norm", None),
        ("dimensions", 8.0),
        ("dimensions", 0),
        ("dimensions", True),
        ("lattice", None),
        ("lattice", 0.5),
        ("lattice", 3.0),
        ("lattice", -1.0),
        ("lattice", 0.0),
        ("sigma", 40.0),
        ("sigma", 0.0),
        ("sigma", math.nan),
        ("shift", "3"),
        ("realised_delta", "0"),
        ("lowest", "0"),
        ("worst_variance", "1"),
        ("covers", ""),
        ("noise", None),
    ],
)
def test_a_form_that_claims_something_else_is_refused(claimed_name, lie):
    payload = json.loads(json.dumps(dpk.exact_sampler(VECTORS["discrete"]()).certificate.to_dict()))
    with pytest.raises(CertificateError):
        Certificate.from_dict({**payload, claimed_name: lie})


def test_a_form_for_neighbours_that_are_equal_is_refused():
    """On a lattice coarser than the sensitivity nothing moves, and there would be nothing to divide by."""
    table, sigma = gaussian_table()
    certificate = certify_vector(table, VectorClaim(1.0, 0.5, 3.0, "linf", 2, 1.0, sigma))
    payload = json.loads(json.dumps(certificate.to_dict()))
    with pytest.raises(CertificateError, match="lattice"):
        Certificate.from_dict({**payload, "sensitivity": 0.5})


def narrow(delta):
    """Gaussian noise of claim delta, whose own is 2.924e-6, on counts."""
    mechanism = dpk.gaussian(sigma=4.0, sensitivity=1.0, epsilon=1.0, delta=delta)
    return dpk.on_vectors(mechanism, dimensions=2, norm="l2", lattice=1.0)


def short(delta):
    """Discrete Laplace noise cut where 1e-3 is left, on counts."""
    mechanism = dpk.truncated_discrete_laplace(epsilon=1.0, delta=1e-3)
    return dpk.on_vectors(mechanism, dimensions=2, norm="l1", delta=delta, lattice=1.0)


@pytest.mark.lengthy
@pytest.mark.parametrize(("make", "enough", "short_of"), [(narrow, 2.925e-6, 2.8e-6), (short, 1e-3, 3e-4)])
def test_vector_claims_a_little_too_small_are_refused(make, enough, short_of):
    dpk.exact_sampler(make(enough))
    with pytest.raises(CertificateError, match=r"^delta: is .* above the claimed .* wider than asked for"):
        dpk.exact_sampler(make(short_of))


def test_many_values_off_the_lattice_are_refused():
    many = dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=100_000, norm="l1")
    with pytest.raises(CertificateError, match=r"rounding 100000 values adds .* % to the sensitivity; say what"):
        dpk.exact_sampler(many)


@pytest.mark.parametrize("lattice", [0.1, 1 / 3])
def test_lattices_that_floats_only_approximate_are_refused(lattice):
    with pytest.raises(CertificateError, match=r"^step: .* short binary fraction"):
        dpk.exact_sampler(dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=2, norm="l1", lattice=lattice))


@pytest.mark.parametrize("lattice", [None, 0.5, 3.0])
def test_discrete_noise_needs_values_on_its_lattice(lattice):
    mechanism = dpk.on_vectors(
        dpk.discrete_laplace(epsilon=1.0, sensitivity=4.0), dimensions=2, norm="l1", lattice=lattice
    )
    if lattice == 3.0:
        dpk.exact_sampler(mechanism)
    else:
        with pytest.raises(CertificateError, match=r"^lattice: .* noise in steps of 1 needs values on them"):
            dpk.exact_sampler(mechanism)


def test_a_lattice_too_fine_for_wide_noise_is_refused():
    """Not tried with as many codes as memory holds."""
    mechanism = dpk.on_vectors(dpk.laplace(epsilon=0.01, sensitivity=1e6), dimensions=2, norm="l1", lattice=1.0)
    with pytest.raises(CertificateError, match="a table holds at most 1048576 cells"):
        dpk.exact_sampler(mechanism)


@pytest.mark.parametrize(
    ("norm", "own", "expected"),
    [
        ("l1", "l1", 1), ("l1", "l2", 1), ("l2", "l1", 3), ("l2", "l2", 1), ("linf", "l1", 9), ("linf", "l2", 3),
    ],
)  # fmt: skip
def test_growth(norm, own, expected):
    assert norm_growth(norm, own, 9) == expected
    v = RNG.normal(size=(1000, 9))
    v[0] = 1.0
    lengths = np.linalg.norm(v, ORDERS[own], axis=1) / np.linalg.norm(v, ORDERS[norm], axis=1)
    assert lengths.max() <= expected * (1 + 1e-12)
    if norm != "l1":
        assert lengths.max() == pytest.approx(max(expected, 1)) or expected == 1


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"norm": "l3"}, "norm"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 2**31 + 1}, "dimensions"),
        ({"lattice": 0.0}, "lattice"),
        ({"lattice": -1.0}, "lattice"),
        ({"lattice": 7.0}, "lattice"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"sensitivity": math.nan}, "sensitivity"),
        ({"sensitivity": 6.1}, "sensitivity"),
        ({"sensitivity": 1.1, "norm": "linf", "dimensions": 6}, "sensitivity"),
        ({"sensitivity": 3.1, "norm": "l2", "dimensions": 4}, "sensitivity"),
        ({"delta": 1.5}, "delta"),
        ({"delta": -1.0}, "delta"),
    ],
)
def test_errors_name_the_argument(how, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=6.0), **{"dimensions": 2, "norm": "l1", **how})


@pytest.mark.parametrize("dimensions", [2.0, True, "2"])
def test_dimensions_are_whole(dimensions):
    with pytest.raises(TypeError, match=r"^dimensions:"):
        dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=dimensions, norm="l1")


def test_noise_without_a_claim_is_refused():
    with pytest.raises(ValueError, match="claims nothing"):
        dpk.on_vectors(dpk.gaussian(sigma=1.0), dimensions=2, norm="l2")


def test_defaults():
    mechanism = dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=6.0), dimensions=4, norm="l2")
    assert (mechanism.sensitivity, mechanism.coordinate.delta, mechanism.noise_norm) == (3.0, 0.0, "l1")
    mechanism = dpk.on_vectors(dpk.logistic(epsilon=1.0, sensitivity=6.0), dimensions=4, norm="l2")
    assert (mechanism.sensitivity, mechanism.coordinate.delta, mechanism.noise_norm) == (3.0, 1e-10, "l1")
    mechanism = dpk.on_vectors(
        dpk.gaussian(sigma=3.0, sensitivity=6.0, epsilon=1.0, delta=1e-5), dimensions=4, norm="linf"
    )
    assert (mechanism.sensitivity, mechanism.coordinate.delta, mechanism.noise_norm) == (3.0, 1e-5, "l2")


@every_vector
def test_vector_mechanisms_are_pytrees(name):
    made = VECTORS[name]()
    leaves, shape = jax.tree.flatten(made)
    assert jax.tree.unflatten(shape, leaves) == made
    doubled = jax.tree.map(lambda leaf: 2 * leaf, made)
    assert (doubled.dimensions, doubled.norm) == (made.dimensions, made.norm)
    assert doubled.sensitivity == 2 * made.sensitivity
    assert made.variance(np.zeros(3)).shape == (3,)


def test_traced_vector_mechanisms_are_refused():
    made = VECTORS["gaussian-l2"]()
    with pytest.raises(TypeError, match="traced mechanism cannot be certified"):
        jax.jit(lambda m: dpk.exact_sampler(m).table.bin_width)(made)


# Releases.


def counts(rows, d):
    return RNG.integers(-5, 1000, (rows, d)).astype(float)


@pytest.mark.parametrize("name", ["laplace-linf-counts", "discrete"])
def test_reports_of_counts_are_on_the_table(name):
    made = VECTORS[name]()
    table = dpk.exact_sampler(made).table
    x = counts(50, made.dimensions)
    noise = (dpk.perturb(x, made, key=KEY) - x) / float(table.bin_width)
    assert np.array_equal(noise, np.rint(noise))
    assert table.first <= noise.min()
    assert noise.max() <= table.last
    assert len(np.unique(noise)) > 5


@pytest.mark.lengthy
def test_blocks_of_rows_do_not_matter():
    made = VECTORS["gaussian-l2"]()
    x = RNG.normal(size=(60, 10, 6))
    whole = dpk.perturb(x, made, key=KEY)
    assert whole.shape == x.shape
    np.testing.assert_array_equal(dpk.perturb(x.reshape(600, 6), made, key=KEY), whole.reshape(600, 6))
    np.testing.assert_array_equal(dpk.perturb(x[:7], made, key=KEY), whole[:7])
    np.testing.assert_array_equal(dpk.perturb(x[0, 0], made, key=KEY), whole[0, 0])


@pytest.mark.lengthy
def test_each_value_has_noise_of_its_own():
    made = VECTORS["gaussian-l2"]()
    noise = dpk.perturb(np.zeros((20_000, 6)), made, key=KEY)
    correlation = np.corrcoef(noise.T) - np.eye(6)
    assert abs(correlation).max() < 6 / math.sqrt(20_000)
    np.testing.assert_allclose(noise.std(axis=0), 4.0, rtol=6 / math.sqrt(2 * 20_000))


@pytest.mark.parametrize("kind", [np.float64, np.float32, "jax"])
def test_values_off_the_lattice_are_named(kind):
    made = VECTORS["discrete"]()
    x = counts(30, 8)
    x[17, 3] = 4.5
    x[20, 0] = 0.25
    x = jax.numpy.asarray(x) if kind == "jax" else x.astype(kind)
    with pytest.raises(ValueError, match=r"x: row 17, value 3 is 4\.5, no multiple of 1"):
        dpk.perturb(x, made)
    with pytest.raises(ValueError, match="clip"):
        dpk.perturb(x, made, clip=True)


def test_bad_values_of_vectors_are_named():
    made = VECTORS["discrete"]()
    for bad, text in ((np.nan, "nan"), (np.inf, "inf"), (1e12, "1000000000000, outside")):
        x = counts(30, 8)
        x[17, 3] = bad
        with pytest.raises(ValueError, match=rf"x: value \(17, 3\) is {text}"):
            dpk.perturb(x, made)


@pytest.mark.parametrize("shape", [(8, 3), (7,), ()])
def test_vectors_of_another_length_are_refused(shape):
    for exactly in (True, False):
        with pytest.raises(ValueError, match="last axis must hold the 8 coordinates"):
            dpk.perturb(np.zeros(shape), VECTORS["discrete"](), exact=exactly)
