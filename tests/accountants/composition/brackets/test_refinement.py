"""Brackets contain the truth and are narrow; planted faults are seen to break them."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import mpmath
import numpy as np
import pytest
from helpers import ALL, SKEW, UNIT, slow
from noise_registry import LAWS, scale
from scipy.special import ndtr

import dpkernels as dpk
from accountants import guarantee
from accountants.closed_forms.pure import pure_delta
from accountants.composition.brackets import refinement, sums
from accountants.composition.brackets.cells import Cells, cells_on_grid
from accountants.composition.brackets.monotone import split_monotone
from accountants.composition.brackets.refinement import (
    ComposedBounds,
    GridBracket,
    GridReleases,
    compose,
    lower_masses,
    upper_masses,
)
from accountants.composition.repeated import ConvergenceError, RepeatedReleases
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.guarantee import Guarantee
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive

DELTAS = (1e-5, 1e-10, 1e-14)
SINE = dpk.composite("sine", epsilon=0.2, width=0.7, **SKEW)
RECYCLED = Reweighted(Gaussian(17.0), -20.0, 20.0, 0.35)
# Smooth enough for the precise value; also a case where only the lattice of losses matters.
SMOOTH = {
    "gaussian": lambda: guarantee(Additive(Gaussian(30.74956613197745)), 1.0).repeat(1000),
    "laplace": lambda: guarantee(Additive(Laplace(10.0)), 1.0).repeat(1000),
    "sampled": lambda: guarantee(Additive(Gaussian(2.0)), 1.0).subsample(0.1).repeat(100),
    "recycled": lambda: guarantee(Additive(RECYCLED), 1.0).repeat(100),
    "windowed": lambda: guarantee(SINE).repeat(100),
}
smooth = cache(lambda name: SMOOTH[name]())


@pytest.mark.quick("*-gaussian")
@pytest.mark.parametrize("name", slow(SMOOTH, "laplace", "sampled"))
@pytest.mark.parametrize("delta", [1e-10, *(pytest.param(other, marks=pytest.mark.slow) for other in (1e-5, 1e-14))])
def test_bracket_holds_the_precise_value_and_is_narrow(name, delta):
    made = smooth(name)
    low, high = GridBracket(made).epsilon(delta)
    precise = made.estimate_epsilon(delta)
    assert low <= precise <= high
    assert high - low < 1e-4 * high


@pytest.mark.slow
@pytest.mark.parametrize("delta", DELTAS)
def test_bracket_of_the_reference_sampled_gaussian(delta):
    composed = guarantee(Additive(Gaussian(1.0)), 1.0).subsample(0.01).repeat(1000)
    low, high = GridBracket(composed).epsilon(delta)
    assert low <= composed.estimate_epsilon(delta) <= high
    assert high - low < 1e-4 * high


@pytest.mark.parametrize("loss", [0.3905, 0.391])
def test_the_third_of_three_losses_is_on_the_grid_too(loss):
    """No loss may lie half-way between the two heaviest: a bound of the first grid was 3.5e-4 too high."""
    uniform = dpk.composite("uniform", epsilon=loss, width=0.735, **UNIT)
    composed = guarantee(uniform).repeat(9)
    assert GridBracket(composed).upper_epsilon(3.1e-4) == pytest.approx(composed.estimate_epsilon(3.1e-4), rel=1e-8)


@pytest.mark.parametrize("n", [1, 2, 100])
def test_gaussian_far_out(n):
    """Against the closed form where it has its digits."""
    composed, mu = guarantee(Additive(Gaussian(3.0)), 1.0).repeat(n), math.sqrt(n) / 3
    for sds in (0.5, 4.0, 7.0):
        eps = mu**2 / 2 + mu * sds
        exact = ndtr(mu / 2 - eps / mu) - math.exp(eps) * ndtr(-mu / 2 - eps / mu)
        low, high = GridBracket(composed).delta(eps)
        assert low <= exact * (1 + 1e-9)
        assert exact * (1 - 1e-9) <= high


# Random mechanisms

WINDOWS = ("sine-1", "uniform-quartic0.3-1", "piecewise-0.5", "triangle-quartic0.3-5-w1.3", "sine-2-w1.3")
NAMES = (*LAWS, *WINDOWS, "duchi-0.1", "hybrid-1", "hybrid-5", "humps-1-w0.7", "uniform-0.5-w1.3")


def random_guarantee(name, seed):
    random = np.random.default_rng([seed, NAMES.index(name)])
    one = guarantee(Additive(LAWS[name]), float(scale(LAWS[name]) * random.uniform(0.1, 1.5))) if name in LAWS else None
    one = one or guarantee(ALL[name])
    one = one.subsample(float(random.uniform(0.02, 1))) if random.random() < 0.35 else one
    return one.repeat(int(random.choice([2, 3, 5, 17, 100]))), float(10 ** random.uniform(-12, -2))


def check_random(name, seed):
    made, delta = random_guarantee(name, seed)
    low, high = GridBracket(made).epsilon(delta)
    assert low <= high
    # The value of two pairs is that of a pair above both, a grid's step squared too high; a bracket's grids are finer.
    too_high = 5e-5 if any(len(term.pairs) > 1 for term in made.terms) else 0.0
    try:
        assert low <= made.estimate_epsilon(delta) <= high * (1 + too_high)
    except ConvergenceError:
        assert any(len(term.pairs) > 1 for term in made.terms), "only asymmetric noise may have a wide bracket"
    if low > 0 and high < math.inf and all(len(term.pairs) == 1 for term in made.terms):
        assert high - low <= 1e-3 * high
        # What the bracket says of eps it says of delta.
        assert GridBracket(made).delta(low)[1] >= delta * (1 - 1e-6)
        assert GridBracket(made).delta(high)[0] <= delta * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_all_random_mechanisms(name, seed):
    check_random(name, seed)


# Asymmetric noise: every report may move either way


def test_asymmetric_noise_bounds_every_choice_of_signs():
    single, n, eps = guarantee(Additive(Reweighted(Laplace(1.0), -1.5, 2.5, 0.4)), 0.7), 3, 0.8
    _, high = single.repeat(n).bracket(epsilon=eps)
    first, second = single.terms[0].pairs
    choices = [
        Guarantee(tuple(RepeatedReleases((pair,), k) for pair, k in ((first, j), (second, n - j)) if k)).bracket(
            epsilon=eps
        )
        for j in range(n + 1)
    ]
    assert high >= max(top for _, top in choices)
    assert high <= 1.1 * max(top for _, top in choices)


def test_asymmetric_noise_is_bounded_where_two_signs_are_worst():
    """Two reports that move opposite ways reveal 1 % more here than two that move alike, whichever way."""
    single, eps = guarantee(Additive(Reweighted(Gaussian(1.0), -1.0, 0.62, 0.74)), 0.51), 0.306
    first, second = single.terms[0].pairs
    alike = [Guarantee((RepeatedReleases((pair,), 2),)).bracket(epsilon=eps)[1] for pair in (first, second)]
    opposite = Guarantee((RepeatedReleases((first,), 1), RepeatedReleases((second,), 1))).bracket(epsilon=eps)[0]
    assert opposite > 1.01 * max(alike)
    assert single.repeat(2).bracket(epsilon=eps)[1] >= opposite


# The discretisations themselves


def cells(step, mechanism, D=None):
    return cells_on_grid(split_monotone(dominating_pairs(mechanism, D)[0].privacy_loss()), step)


PAIRS = {
    "gaussian": (Additive(Gaussian(3.0)), 1.0),
    "laplace": (Additive(Laplace(2.0)), 1.0),
    "recycled": (Additive(Reweighted(Laplace(0.8), -0.9, 0.9, 0.08)), 0.7),
    "windowed": (ALL["sine-2-w1.3"], None),
    "duchi": (dpk.duchi(epsilon=0.7, **UNIT), None),
}


@pytest.mark.parametrize("name", PAIRS)
def test_connected_dots_keep_both_masses(name):
    step = 0.0371
    cut = cells(step, *PAIRS[name])
    found = upper_masses(cut, step, 1)
    k = found.first_index + np.arange(len(found.mass))
    assert found.mass.sum() == pytest.approx(cut.p.sum(), rel=1e-10)
    assert found.mass @ np.exp(-k * step) == pytest.approx(np.exp(-k[:-2] * step) @ (cut.p - cut.gain).sum(1), rel=1e-8)
    assert cut.p.sum() + cut.infinite == pytest.approx(1.0, rel=1e-10)


@pytest.mark.parametrize("name", slow(PAIRS, "laplace", "windowed"))
def test_one_report_between_its_bounds(name):
    """The exact profile at every eps, on coarse grids, not only at the eps of the tilt."""
    m, D = PAIRS[name]
    exact = guarantee(m, D)
    for step in (0.5, 0.0371):
        cut = cells(step, m, D)
        low, high = (compose([side(cut, step, 1)], step, 1.0) for side in (lower_masses, upper_masses))
        for eps in np.linspace(0.0, 0.9, 14):
            assert low.delta(eps, -1) <= exact.delta(eps) <= high.delta(eps, 1)


def test_bounds_hold_for_any_tilt():
    """A poor tilt is only wide: errors of the transform are inside."""
    n, mu, step = 400, 0.05, 0.004
    cut = cells(step, Additive(Gaussian(20.0)), 1.0)
    total = mu * math.sqrt(n)
    for eps in (1.0, 5.0, 9.0):
        exact = ndtr(total / 2 - eps / total) - math.exp(eps) * ndtr(-total / 2 - eps / total)
        for tilt in (0.0, 1.0, eps, 12.0):
            low, high = (compose([side(cut, step, n)], step, tilt) for side in (lower_masses, upper_masses))
            assert low.delta(eps, -1) <= exact * (1 + 1e-9)
            assert exact * (1 - 1e-9) <= high.delta(eps, 1)


def test_without_the_error_of_the_transform_a_poor_tilt_breaks_the_bracket(monkeypatch):
    monkeypatch.setattr(sums, "_NEGLIGIBLE", 1e-22)  # Else the grid ends below this eps.
    n, step, eps = 400, 0.003, 9.0
    cut = cells(step, Additive(Gaussian(20.0)), 1.0)
    exact = ndtr(0.5 - eps) - math.exp(eps) * ndtr(-0.5 - eps)
    low = compose([lower_masses(cut, step, n)], step, 0.0)
    assert low.delta(eps, -1) <= exact
    assert dataclasses.replace(low, error=0.0, misplaced_mass=0.0).delta(eps, -1) > exact


# Planted faults


def broken(name):
    made = smooth(name)
    eps = made.estimate_epsilon(1e-6)
    low, high = GridBracket(made).delta(eps)
    return not low <= made.estimate_delta(eps) * (1 - 1e-8) < made.estimate_delta(eps) * (1 + 1e-8) <= high


@pytest.mark.parametrize("name", slow(["recycled", "windowed"], "windowed"))
def test_planted_faults_of_the_upper_bound_are_seen(monkeypatch, name):
    assert not broken(name)
    monkeypatch.setattr(
        refinement, "upper_masses", lambda n, step, count: _times(upper_masses(n, step, count), 1 - 1e-3)
    )
    assert broken(name)

    def rounded_down(n, step, count):
        return upper_masses(dataclasses.replace(n, gain=0 * n.gain), step, count)

    monkeypatch.setattr(refinement, "upper_masses", rounded_down)
    assert broken(name)


def _times(masses, factor):
    return dataclasses.replace(masses, mass=masses.mass * factor)


def _moved(some: Cells, up):
    mass = np.append((some.p * (1 - up)).sum(1), 0.0) + np.append(0.0, (some.p * up).sum(1))
    return GridReleases(mass, some.first_index, some.offset, some.infinite, 1)


def _nearest(some: Cells, step, count):
    """Every outcome to the nearer point of the grid, whatever q is left."""
    return dataclasses.replace(_moved(some, np.array([0.0, 1.0])), count=count)


def _all_up(some: Cells, step, count):
    return dataclasses.replace(_moved(some, 1.0), count=count)


@pytest.mark.parametrize(
    ("fault", "is_seen"), [(lower_masses, False), (_nearest, True), (_all_up, True), (upper_masses, True)]
)
def test_groups_that_do_not_balance_are_seen(fault, is_seen):
    """The exact profile of one report, on a coarse grid; a spread in the place of a contraction is a fault too."""
    m, D = PAIRS["gaussian"]
    step, exact = 0.1, guarantee(m, D)
    low = compose([fault(cells(step, m, D), step, 1)], step, 1.0)
    assert any(low.delta(eps, -1) > exact.delta(eps) for eps in np.linspace(0.0, 0.9, 14)) == is_seen


def test_identity_shares_are_seen():
    """They keep the mean loss and lose mass of q."""
    step = 0.5
    cut = cells(step, *PAIRS["gaussian"])
    share = -np.log1p(-cut.gain / np.maximum(cut.p, 1e-300)) / step
    k = cut.first_index + np.arange(len(cut.p) + 1)
    assert abs(_moved(cut, share).mass @ np.exp(-k * step) - np.exp(-k[:-1] * step) @ (cut.p - cut.gain).sum(1)) > 1e-3


def test_missing_infinite_mass_is_seen(monkeypatch):
    composed = guarantee(Additive(Reweighted(Gaussian(1.0), -4.0, 4.0, 0.0)), 0.1).repeat(20)
    low, high = GridBracket(composed).delta(2.0)
    # No eps hides that a report is beyond an end of the other's: at 2 the finite losses add less than a hundredth.
    one = (ndtr(4.0) - ndtr(3.9)) / (ndtr(4.0) - ndtr(-4.0))
    certain = -math.expm1(20 * math.log1p(-one))
    assert low <= 1.01 * certain
    assert certain <= high
    forget = lambda n, step, count: dataclasses.replace(upper_masses(n, step, count), infinite=0.0)  # noqa: E731
    monkeypatch.setattr(refinement, "upper_masses", forget)
    assert GridBracket(composed).delta(2.0)[1] < certain


@pytest.mark.lengthy
def test_gaussian_tails_are_followed():
    """At eps 25 delta is about 3e-134, also where records are replaced."""

    def profile(eps):
        return mpmath.ncdf(0.5 - mpmath.mpf(eps)) - mpmath.exp(eps) * mpmath.ncdf(-0.5 - mpmath.mpf(eps))

    def replaced_profile(eps, rate):
        """Return delta of (1 - r) f + r f(x - 1) and (1 - r) f + r f(x + 1), whose loss rises with x."""

        def loss(x):
            return mpmath.log1p(rate * mpmath.expm1(x - 0.5)) - mpmath.log1p(rate * mpmath.expm1(-x - 0.5))

        x = mpmath.findroot(lambda x: loss(x) - eps, 25.0)
        of_p, of_q = ((1 - rate) * mpmath.ncdf(-x) + rate * mpmath.ncdf(shift - x) for shift in (1, -1))
        return of_p - mpmath.exp(eps) * of_q

    single, rate = guarantee(Additive(Gaussian(1.0)), 1.0), 0.5
    with mpmath.workdps(60):
        sampled = rate * profile(mpmath.log1p(mpmath.expm1(25.0) / rate))
        cases = [(single, profile(25.0)), (single.subsample(rate), sampled)]
        cases.append((single.subsample(rate, "replace"), replaced_profile(mpmath.mpf(25), rate)))
        for releases, truth in cases:
            low, high = GridBracket(releases).delta(25.0)
            assert low <= truth <= high <= low * (1 + 1e-4)
        low, high = GridBracket(single).epsilon(1e-80)
        assert profile(low) >= 1e-80 >= profile(high)
    assert high < low * (1 + 1e-4)


def test_a_tilt_that_underflows_gives_a_trivial_upper_bound():
    """All mass at a loss of 10, so delta(0) = 1 - e^-10; of a tilt of 300 the weight there is 0 in floats."""
    total = ComposedBounds(np.array([10.0]), np.ones(1), 300.0, 3000.0, 0.0, 0.0, 0.0)
    assert total.delta(0.0, -1) <= -math.expm1(-10.0) <= total.delta(0.0, 1)


@pytest.mark.thorough
def test_losses_far_beyond_any_budget():
    """mu = 2000: eps is about mu^2/2; a lower end is finite there, and an upper one may be infinite."""
    single = guarantee(Additive(Gaussian(5e-4)), 1.0)
    low, high = GridBracket(single).delta(2e6)
    assert low <= 0.49980053 <= high
    low, high = GridBracket(single).epsilon(1e-5)
    assert low <= 2008528.9 <= high
    with pytest.raises(ValueError, match="too many for a grid"):
        GridBracket(guarantee(Additive(Gaussian(1e-8)), 1.0)).epsilon(1e-6)


# Errors


def test_parameters_that_are_not_numbers_have_no_bracket():
    broken = Guarantee((RepeatedReleases((AdditivePair(Gaussian(1.0), math.nan),), 1),))
    with pytest.raises(ValueError, match="a parameter is NaN"):
        broken.bracket(delta=1e-3)


@pytest.mark.parametrize("wanted", [{}, {"epsilon": 1.0, "delta": 1e-5}])
def test_exactly_one_of_epsilon_and_delta(wanted):
    with pytest.raises(ValueError, match=r"^epsilon, delta, alpha, false_positive_rate: exactly one"):
        smooth("gaussian").bracket(**wanted)


@pytest.mark.parametrize(
    ("wanted", "kind", "message"),
    [
        ({"epsilon": -0.1}, ValueError, "^epsilon: "),
        ({"epsilon": math.nan}, ValueError, "^epsilon: "),
        ({"delta": 0.0}, ValueError, "^delta: "),
        ({"delta": 1.0}, ValueError, "^delta: "),
        ({"delta": "small"}, TypeError, "^delta: "),
        ({"epsilon": [1.0, 2.0]}, TypeError, "^epsilon: "),
    ],
)
def test_arguments_out_of_range(wanted, kind, message):
    with pytest.raises(kind, match=message):
        smooth("gaussian").bracket(**wanted)


def test_what_no_randomness_hides_is_known():
    """Enough delta needs no budget; the largest loss of two points is never exceeded."""
    composed = guarantee(dpk.duchi(epsilon=0.5, **UNIT)).repeat(4)
    assert GridBracket(composed).epsilon(0.99) == (0.0, 0.0)
    low, high = GridBracket(composed).delta(2.0 * (1 + 1e-9))
    assert 0.0 == low <= high <= 1e-6
    low, high = GridBracket(composed).epsilon(1e-7)
    assert high == pytest.approx(2.0, rel=1e-5)
    assert low == pytest.approx(2.0, rel=1e-5)
    exact = float(pure_delta(0.5, 4, high))
    assert exact <= 1e-7


def test_losses_on_the_grid_may_be_off_by_roundings():
    """Next to the loss of an atom, delta is the difference of both; either bound allows for a loss 2 roundings off."""
    loss = 1000.0
    epsilon, rounding = loss - 1e-12, 2 * np.spacing(loss)
    total = ComposedBounds(np.array([loss]), np.ones(1), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    low, high = (float(-np.expm1(epsilon - (loss + sign * rounding))) for sign in (-1, 1))
    assert total.delta(epsilon, -1) <= low < high <= total.delta(epsilon, 1)
