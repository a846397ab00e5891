"""Every mechanism is a probability law with the moments it states: against quadrature, in float64."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    ALL,
    ATOMIC,
    MULTIVARIATE,
    UNIT,
    WINDOWED,
    expectation,
    input_range,
    inputs,
    knots,
    over,
    piece_integrals,
    rounding,
    spacing,
)

import dpkernels as dpk
from benchmarks.literature_composite import h1_rate, h2_rate
from dpkernels.mechanisms.windowed.bases import Constant

TOLERANCE = 1e-10


@over(ALL)
def test_total_probability_is_one(m):
    for x in inputs(m):
        assert expectation(m, x, np.ones_like) == pytest.approx(1, abs=TOLERANCE + rounding(m))


@over(ALL)
def test_mean_is_the_input(m):
    for x in inputs(m):
        error = expectation(m, x, lambda y, x=x: y - x)
        assert error == pytest.approx(0, abs=TOLERANCE * input_range(m) + 4 * spacing(m))
        assert m.mean(x) == x


@over(ALL)
def test_variance_is_the_second_moment(m):
    for x in inputs(m):
        assert m.variance(x) == pytest.approx(expectation(m, x, lambda y, x=x: (y - x) ** 2), rel=TOLERANCE)


@over(ALL)
def test_absolute_error_is_the_first_absolute_moment(m):
    for x in inputs(m):
        expected = expectation(m, x, lambda y, x=x: abs(y - x))
        assert m.absolute_error(x) == pytest.approx(expected, rel=TOLERANCE, abs=4 * spacing(m))


@over(ALL)
def test_cdf_is_the_integral_of_the_density(m):
    for x in inputs(m):
        points = np.union1d(knots(m, x), np.linspace(*m.output_interval, 57))
        atoms, p = m.atoms(x)
        jumps = (p[:, None] * (points[1:] >= atoms[:, None]) * (points[:-1] < atoms[:, None])).sum(0)
        steps = piece_integrals(lambda y, x=x: m.pdf(y, x), points) + jumps
        np.testing.assert_allclose(np.diff(m.cdf(points, x)), steps, rtol=0, atol=TOLERANCE + rounding(m))


@over(ALL)
def test_log_prob_is_the_law(m):
    """Its exponential adds up to 1 and to differences of the cdf, over atoms and between the density's knots."""
    for x in inputs(m):
        points = np.union1d(knots(m, x), np.linspace(*m.output_interval, 31))
        atoms, p = m.atoms(x)
        np.testing.assert_allclose(m.log_prob(atoms, x), np.log(p), rtol=0, atol=1e-12)
        jumps = (
            np.exp(m.log_prob(atoms, x))[:, None] * (points[1:] >= atoms[:, None]) * (points[:-1] < atoms[:, None])
        ).sum(0)
        smooth = piece_integrals(lambda y, x=x: np.exp(m.log_prob(y, x)), points) if m.pdf(m.middle, m.middle) else 0.0
        np.testing.assert_allclose(np.diff(m.cdf(points, x)), smooth + jumps, rtol=0, atol=TOLERANCE + rounding(m))
        mass_below = (p * (atoms <= points[0])).sum()
        assert mass_below + (smooth + jumps).sum() == pytest.approx(1, abs=TOLERANCE + rounding(m))


@over(ALL)
def test_log_prob_outside_the_reports_is_never(m):
    low, high = m.output_interval
    margin = 1e-3 * (high - low)
    impossible = np.array([low - margin, high + margin, -np.inf, np.inf])[:, None]
    assert np.all(m.log_prob(impossible, inputs(m)) == -np.inf)
    if not m.pdf(m.middle, m.middle):
        atoms, _ = m.atoms(m.middle)
        assert np.all(m.log_prob((atoms[1:] + atoms[:-1]) / 2, m.middle) == -np.inf)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.5", "ring-bowl-0.5-w0.7", "duchi-0.1", "optimal-1", "central-piecewise-1")
@over(ALL)
def test_log_prob_in_jax_and_its_derivative(m, x64):
    x = jnp.asarray(inputs(m)[1:4])
    y = jnp.asarray(np.append(np.linspace(*m.output_interval, 9)[1:8], m.atoms(m.middle)[0][:2]))

    def possible(m, y, x):
        """The likelihoods, added up where reports are possible, and each."""
        log_prob = m.log_prob(y[:, None], x)
        return jnp.where(log_prob > -jnp.inf, log_prob, 0.0).sum(), log_prob

    slope, log_prob = jax.jit(jax.grad(possible, argnums=2, has_aux=True))(m, y, x)
    np.testing.assert_allclose(log_prob, m.log_prob(np.asarray(y)[:, None], np.asarray(x)), rtol=1e-9)
    assert not np.any(np.isnan(slope))


@over(ALL)
def test_output_interval_is_tight(m):
    low, high = m.output_interval
    margin = 1e-6 * (high - low)
    for x in inputs(m):
        cdf_below, cdf_at_high, cdf_above = m.cdf(np.array([low - margin, high, high + margin]), x)
        assert (cdf_below, cdf_at_high, cdf_above) == pytest.approx((0, 1, 1), abs=rounding(m))
        assert m.cdf(low + margin, x) > 0
        assert m.cdf(high - margin, x) < 1
        assert m.pdf(np.array([low - margin, high + margin]), x) == pytest.approx(0, abs=0)


@over(WINDOWED)
def test_cdf_starts_at_zero(m):
    low, _ = m.output_interval
    assert m.cdf(low, inputs(m)) == pytest.approx(0, abs=rounding(m))


@over(WINDOWED)
def test_icdf_undoes_cdf(m):
    low, high = m.output_interval
    y = low + (high - low) * np.linspace(0.001, 0.999, 41)[:, None]
    x = inputs(m)
    assert np.all(abs(m.icdf(m.cdf(y, x), x) - y) <= 4 * spacing(m) + rounding(m) / m.pdf(y, x))


@over(WINDOWED)
def test_cdf_undoes_icdf(m):
    u = np.concatenate([[1e-9, 1e-5], np.linspace(0.01, 0.99, 37), [1 - 1e-5, 1 - 1e-9]])[:, None]
    x = inputs(m)
    assert np.all(abs(m.cdf(m.icdf(u, x), x) - u) <= rounding(m))


@over(ALL)
def test_worst_variance_is_the_largest(m):
    variances = m.variance(np.linspace(m.lower, m.upper, 257))
    rel = 1e-3 if isinstance(m, dpk.Optimal) else 1e-12  # Between rows the largest is not on this grid.
    assert m.worst_variance == pytest.approx(variances.max(), rel=rel)
    assert m.worst_variance >= variances.max() * (1 - 1e-12)
    assert m.central_variance == pytest.approx(variances[128], rel=1e-12)


@over(ALL)
def test_shift_and_scale_carry_over(m):
    """A mechanism on [0, 1] mapped to [lower, upper] is the mechanism on [lower, upper]."""
    unit = _on_unit_interval(m)
    z = (inputs(m) - m.lower) / input_range(m)
    y = np.linspace(*m.output_interval, 31)[1:-1, None] + 0.0123 * input_range(m)
    on_unit = (y - m.lower) / input_range(m)
    np.testing.assert_allclose(m.cdf(y, inputs(m)), unit.cdf(on_unit, z), rtol=0, atol=1e-12 + 4 * rounding(m))
    np.testing.assert_allclose(m.variance(inputs(m)), unit.variance(z) * input_range(m) ** 2, rtol=1e-9)


def _on_unit_interval(m):
    if isinstance(m, dpk.Mixture):
        return dpk.Mixture(_on_unit_interval(m.first), _on_unit_interval(m.second), m.weight)
    if isinstance(m, dpk.TwoPoint):
        return dpk.TwoPoint(0.0, 1.0, m.epsilon)
    if isinstance(m, dpk.Optimal | dpk.CentralPiecewise):
        fields = {field.name: getattr(m, field.name) for field in dataclasses.fields(m)}
        lengths = [name for name in ("reach", "spacing", "sensitivity") if fields.get(name) is not None]
        return dataclasses.replace(m, lower=0.0, upper=1.0, **{name: fields[name] / input_range(m) for name in lengths})
    return dpk.Windowed(m.window, m.base, m.width, m.relative_height, 0.0, 1.0, m.epsilon)


@over(WINDOWED)
def test_h1_rate_is_base_over_window(m):
    assert h1_rate(m) == pytest.approx(m.base_mass / (1 - m.base_mass), rel=1e-9)


@over(WINDOWED)
def test_h2_rate_is_of_areas_on_one_side(m):
    """Both partition points lie between the input and the end of the output that is further (Zhang 2024)."""
    low, high = m.output_interval
    for x, farther_end in zip(inputs(m), (high, high, high, low, low), strict=True):
        first, second = (_area(m, x, *sorted((x, x + fraction * (farther_end - x)))) for fraction in (0.25, 0.75))
        assert h2_rate(m, x) == pytest.approx(first / second, rel=1e-8)


def test_h2_rate_beside_the_printed_column():
    """Read literally .357 to .509 at the middle; the printed .333 is the ratio of a constant base's areas."""
    rates = [
        h2_rate(m, m.middle)
        for epsilon in (0.2, 0.3, 0.4, 0.5, 1.0)
        for window in ("uniform", "sine", "triangle")
        for m in [dpk.composite(window, epsilon=epsilon, **UNIT, condition="sup_inf", objective="central")]
    ]
    assert (min(rates), max(rates)) == pytest.approx((0.3568, 0.5089), abs=5e-5)
    base = Constant()
    assert (base.cdf(0.25) - base.cdf(0.0)) / (base.cdf(0.75) - base.cdf(0.0)) == pytest.approx(1 / 3, rel=1e-15)


def _area(m, x, start, stop):
    points = np.unique(np.clip(np.append(knots(m, x), [start, stop]), start, stop))
    return piece_integrals(lambda y: m.pdf(y, x), points).sum()


@over(ATOMIC)
def test_atoms_carry_their_probability(m):
    for x in inputs(m):
        atoms, p = m.atoms(x)
        margin = 1e-9 * input_range(m)
        jumps = m.cdf(atoms + margin, x) - m.cdf(atoms - margin, x)
        assert np.all(p >= 0)
        np.testing.assert_allclose(jumps, p, atol=2 * margin * m.pdf(atoms, x).max() + 1e-12)


@over(ATOMIC)
def test_icdf_is_the_smallest_report_that_reaches(m):
    u = np.linspace(0.003, 0.997, 71)[:, None]
    x, margin = inputs(m), 1e-9 * input_range(m)
    y = m.icdf(u, x)
    assert np.all(m.cdf(y + margin, x) >= u)
    assert np.all(m.cdf(y - margin, x) <= u)


@over(ATOMIC, "duchi-0.1", "duchi-8-far", "hybrid-0.5")
def test_two_points_of_duchi(m):
    """On [-1, 1]: reports +-(e^eps + 1)/(e^eps - 1), P(+) = 1/2 + x (e^eps - 1)/(2 (e^eps + 1))."""
    E, half_width = np.exp(m.epsilon), input_range(m) / 2
    for x in inputs(m):
        atoms, p = m.atoms(x)
        unit = (x - m.middle) / half_width
        B = (E + 1) / (E - 1)
        np.testing.assert_allclose((atoms - m.middle) / half_width, [-B, B], rtol=1e-9)
        assert p[1] == pytest.approx(0.5 + unit / (2 * B), abs=1e-9)
        assert m.variance(x) == pytest.approx((B**2 - unit**2) * half_width**2, rel=1e-9)


@over(ATOMIC, "hybrid-1", "hybrid-5")
def test_hybrid_variance_is_the_same_everywhere(m):
    """Wang 2019: the weight 1 - e^(-eps/2) makes the variance independent of the input."""
    variances = m.variance(inputs(m))
    assert variances == pytest.approx(np.full(5, m.worst_variance), rel=1e-12)


def test_hybrid_changes_over_where_duchi_is_as_good():
    from dpkernels.mechanisms.named import HYBRID_EPSILON

    at_crossover = dpk.hybrid(epsilon=HYBRID_EPSILON, lower=-1, upper=1)
    past_crossover = dpk.hybrid(epsilon=HYBRID_EPSILON + 1e-9, lower=-1, upper=1)
    assert isinstance(at_crossover, dpk.TwoPoint)
    assert isinstance(past_crossover, dpk.Mixture)
    assert past_crossover.worst_variance == pytest.approx(at_crossover.worst_variance, rel=1e-6)


@pytest.mark.quick("one-of-three", "all-of-two")
@over(MULTIVARIATE)
def test_vector_variance_is_that_of_a_coordinate_reported_at_times(m):
    """A coordinate reports the middle with probability 1 - s/d, else the middle plus d/s scaled noise."""
    lower, upper = (np.broadcast_to(end, m.dimensions) for end in m.input_interval)
    half_width, middle = (upper - lower) / 2, (upper + lower) / 2
    rate = m.sampled / m.dimensions
    for z in (-1.0, -0.3, 0.0, 1.0):
        x = middle + half_width * z
        reported = expectation(m.coordinate, z, lambda r, z=z: (r / rate - z) ** 2)
        expected = (rate * reported + (1 - rate) * z**2) * half_width**2
        np.testing.assert_allclose(m.variance(x), expected, rtol=1e-9)
    ends = m.variance(lower), m.variance(middle), m.variance(upper)
    np.testing.assert_allclose(m.worst_variance, np.maximum.reduce(ends), rtol=1e-12)
