"""OpenDP measurements: domains, maps computed by hand, chains, compositors and odometers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import accountants
import dpkernels as dpk

dp = pytest.importorskip("opendp.prelude", reason="opendp is not installed")

from accountants.interop.opendp import make_measurement  # noqa: E402

dp.enable_features("contrib", "honest-but-curious")

LOCAL = dpk.piecewise(epsilon=1.0, lower=0.0, upper=10.0)
NOISE = accountants.calibrate.gaussian(epsilon=1.0, delta=1e-6, sensitivity=10.0)
COUNTS = dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=3, norm="l1", lattice=1.0)


@pytest.fixture(scope="module")
def local():
    return make_measurement(LOCAL)


@pytest.fixture(scope="module")
def noise():
    return make_measurement(NOISE, T=int)


@pytest.fixture(scope="module")
def counts():
    return make_measurement(COUNTS, T=int)


def test_a_local_mechanism_is_on_one_record(local):
    assert str(local.input_domain) == "AtomDomain(bounds=[0.0, 10.0], T=f64)"
    assert str(local.input_metric) == "DiscreteDistance()"
    assert local.output_measure == dp.max_divergence()
    realised = dpk.exact_sampler(LOCAL).certificate.realised_epsilon
    assert Fraction(local.map(1)) >= Fraction(realised)
    assert local.map(1) <= 1.0
    assert local.map(0) == 0.0
    assert local.check(1, 1.0)
    assert not local.check(1, 0.9)


@pytest.mark.lengthy
def test_reports_have_keys_of_their_own(local, noise, counts):
    for measurement, x in ((local, 3.0), (noise, 3), (counts, [1, 2, 3])):
        reports = [np.ravel(measurement(x)) for _ in range(6)]
        assert len({tuple(report) for report in reports}) > 1
    wide = make_measurement(dpk.on_vectors(dpk.laplace(epsilon=0.01), dimensions=3, norm="l1", lattice=1.0), T=int)
    assert len({tuple(wide([0, 0, 0])) for _ in range(50)}) == 50


@pytest.mark.thorough
def test_reports_are_unbiased(local):
    """Six standard errors of the mean of 4,000 reports."""
    reports = np.array([local(3.0) for _ in range(4000)])
    assert abs(reports.mean() - 3.0) <= 6 * math.sqrt(float(LOCAL.variance(3.0)) / len(reports))


@pytest.mark.thorough
def test_the_map_of_noise_is_the_one_of_the_table(noise):
    """By the definition of (eps, delta)-DP, in exact arithmetic, on the integers."""
    table = dpk.exact_sampler(NOISE).certificate.table
    outcomes, total = [int(w) for w in table.outcomes], int(table.total)
    for d_in in (1, 10, 25):
        eps, delta = noise.map(d_in)
        assert delta == 1e-6
        cells = math.ceil(Fraction(math.ceil(d_in / Fraction(2) ** table.grid_log2), table.points_per_bin))
        shifted = [0] * cells + outcomes
        exact = outcomes + [0] * cells
        t = Fraction(math.exp(eps)) * (1 - Fraction(1, 1 << 50))
        for p, q in ((exact, shifted), (shifted, exact)):
            assert sum(max(Fraction(0), a - t * b) for a, b in zip(p, q, strict=True)) <= Fraction(1e-6) * total
        smaller = Fraction(math.exp(eps - 1e-3 * eps))
        over = sum(max(Fraction(0), a - smaller * b) for a, b in zip(exact, shifted, strict=True))
        assert over > Fraction(1e-6) * total
    assert noise.map(10)[0] <= 1.001
    values = [noise.map(d)[0] for d in range(0, 60, 3)]
    assert values == sorted(values)
    assert noise.map(0) == (0.0, 0.0)


@pytest.mark.parametrize("d_in", [1, 10, 25])
def test_the_map_of_noise_covers_what_the_table_reveals(noise, d_in):
    """The definition of (eps, delta)-DP on the weights, in floats: both ways, and no wider than a thousandth."""
    table = dpk.exact_sampler(NOISE).certificate.table
    weights = np.array([float(weight) for weight in table.outcomes]) / table.total
    cells = math.ceil(math.ceil(Fraction(d_in) / Fraction(2) ** table.grid_log2) / table.points_per_bin)
    mass, mass_moved = np.append(weights, np.zeros(cells)), np.append(np.zeros(cells), weights)
    epsilon, delta = noise.map(d_in)

    def revealed(ratio):
        return max(np.maximum(p - math.exp(ratio) * q, 0.0).sum() for p, q in ((mass, mass_moved), (mass_moved, mass)))

    assert revealed(epsilon) <= delta * (1 + 1e-9)
    assert revealed(epsilon * (1 - 1e-3)) > delta


@pytest.mark.thorough
def test_another_delta_is_another_epsilon():
    assert make_measurement(NOISE, delta=1e-3, T=int).map(10)[0] < make_measurement(NOISE, delta=1e-9, T=int).map(10)[0]


def test_pure_noise_takes_no_delta():
    """It was ignored: the map had the claimed epsilon, and delta 0."""
    with pytest.raises(ValueError, match="delta: 1e-06; this noise has no end"):
        make_measurement(dpk.laplace(epsilon=1.0), delta=1e-6)


def test_the_map_of_vectors_is_group_privacy(counts):
    certificate = dpk.exact_sampler(COUNTS).certificate
    assert counts.map(1) == (1.0, certificate.delta)
    eps, delta = counts.map(3)
    assert eps == pytest.approx(3.0, rel=1e-12)
    assert eps >= 3.0
    assert delta == pytest.approx(certificate.delta * (1 + math.e + math.e**2), rel=1e-9)
    assert delta >= certificate.delta * (1 + math.e + math.e**2)
    assert counts.map(0) == (0.0, 0.0)
    assert str(counts.input_metric) == "L1Distance(i32)"


@pytest.mark.parametrize(("norm", "D", "scale", "far"), [("l1", 1.5, 1.0, (3,)), ("linf", 1.5, 2.0, (3, 3))])
def test_the_map_of_integers_covers_what_the_table_reveals(norm, D, scale, far):
    """No integers are 1.5 apart: the loss at 3, composed from the table itself, is that of three steps."""
    d = len(far)
    noise = dpk.Additive(dpk.DiscreteLaplace(scale)).claim(sensitivity=d * D, epsilon=1.0, delta=1e-10)
    vectors = dpk.on_vectors(noise, dimensions=d, norm=norm, sensitivity=D, lattice=1.0)
    table = dpk.exact_sampler(vectors).certificate.table
    assert table.bin_width == 1
    epsilon, delta = make_measurement(vectors, T=int).map(max(far))
    weights = np.array([float(weight) for weight in table.outcomes]) / table.total
    pairs = [accountants.discrete_pair(np.append(weights, np.zeros(s)), np.append(np.zeros(s), weights)) for s in far]
    first, *others = map(accountants.guarantee, pairs)
    assert first.compose(*others).bracket(epsilon=epsilon)[0] <= delta


@pytest.mark.lengthy
def test_vectors_on_the_way_are_on_the_lattice():
    """With D = 1.5, integers 3 apart are 3 steps of 1 apart, not 2 of 1.5; in l2, (1, 1, 1) is not 2 steps of 1."""
    wide = dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=1.5), dimensions=3, norm="l1", lattice=1.0)
    assert make_measurement(wide, T=int).map(3)[0] >= 3.0
    noise = accountants.calibrate.gaussian(epsilon=1.0, delta=1e-6, sensitivity=1.0)
    l2 = make_measurement(dpk.on_vectors(noise, dimensions=3, norm="l2", lattice=1.0, delta=1e-5), T=int)
    assert l2.map(1)[0] == 1.0
    with pytest.raises(dp.OpenDPException):
        l2.map(2)


@pytest.mark.lengthy
def test_a_chain_has_the_map_computed_by_hand(noise):
    """A sum of values clamped to [0, 10] moves by 10 for a record added or removed."""
    data = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
    total = data >> dp.t.then_clamp((0, 10)) >> dp.t.then_sum()
    chain = total >> noise
    assert chain.map(1) == noise.map(10)
    assert chain.map(2) == noise.map(20)
    assert abs(chain([3, 20, -5]) - 13) < 10 * float(np.sqrt(float(NOISE.worst_variance)))
    pair = dp.c.make_composition([chain, chain])
    eps, delta = noise.map(10)
    assert pair.map(1) == pytest.approx((2 * eps, 2 * delta), rel=1e-12)
    assert len(pair([3, 20, -5])) == 2


def test_compositors_odometers_and_filters_take_it(noise):
    data = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
    chain = data >> dp.t.then_clamp((0, 10)) >> dp.t.then_sum() >> noise
    budget = chain.map(1)
    compositor = dp.c.make_adaptive_composition(*data, chain.output_measure, d_in=1, d_mids=[budget, budget])
    queryable = compositor([1, 2, 3])
    assert isinstance(queryable(chain), float)
    assert isinstance(queryable(chain), float)
    with pytest.raises(dp.OpenDPException):
        queryable(chain)
    odometer = dp.c.make_fully_adaptive_composition(*data, chain.output_measure)([1, 2, 3])
    for n in (1, 2, 3):
        odometer(chain)
        assert odometer.privacy_loss(1) == pytest.approx((n * budget[0], n * budget[1]), rel=1e-9)
    limited = dp.c.make_privacy_filter(
        dp.c.make_fully_adaptive_composition(*data, chain.output_measure), d_in=1, d_out=budget
    )([1, 2, 3])
    limited(chain)
    with pytest.raises(dp.OpenDPException):
        limited(chain)


def test_infinities_are_released_like_large_values():
    measurement = make_measurement(NOISE)
    for x in (math.inf, -math.inf, 1e300):
        assert abs(measurement(x)) > 1e6


def test_what_has_no_measurement_is_an_error():
    with pytest.raises(TypeError, match="T:"):
        make_measurement(LOCAL, T=str)
    with pytest.raises(ValueError, match="delta"):
        make_measurement(LOCAL, delta=1e-6)
    with pytest.raises(ValueError, match="delta"):
        make_measurement(NOISE, delta=1.0)
    with pytest.raises(ValueError, match="lattice"):
        make_measurement(COUNTS)
    with pytest.raises(ValueError, match="sensitivity"):
        make_measurement(dpk.central_piecewise(epsilon=1.0, lower=0.0, upper=10.0, sensitivity=1.0))
    with pytest.raises(TypeError, match="vectors"):
        make_measurement(dpk.multivariate(epsilon=1.0, lower=0.0, upper=1.0, dimensions=3))
