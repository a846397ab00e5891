"""Noise that is not even, against a dynamic program over the directions that shares nothing with the package."""

from __future__ import annotations

import numpy as np
import pytest
from two_piece import TwoPiece

from accountants import guarantee
from accountants.composition.adaptive import (
    AdaptiveDirectionBounds,
    AdaptiveProfile,
    _chords,
    _direction_bounds,
    _lower_hull,
)
from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.discrete import Atoms
from accountants.guarantee import Guarantee
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive

NOISE = {
    "recycled-gaussian": (Reweighted(Gaussian(2.0), -1.0, 3.0, 0.5), [-1.0, 0.0, 2.0, 3.0, 4.0]),
    "recycled-laplace": (Reweighted(Laplace(1.0), -1.5, 2.5, 0.4), [-2.5, -1.5, -0.5, 0.0, 1.0, 1.5, 2.5, 3.5]),
    "two-piece": (TwoPiece(2.0, 4.0), [-1.0, 0.0, 1.0]),
}


def losses_of(noise, shift, knots, reach=60.0, cells=400):
    """Masses under p and losses, by the midpoint rule between knots."""
    ends = np.unique(np.concatenate([np.linspace(-reach, reach, 241), knots, np.add(knots, shift)]))
    shares = (np.arange(cells) + 0.5) / cells
    x = (ends[:-1, None] + np.diff(ends)[:, None] * shares).ravel()
    width = np.repeat(np.diff(ends) / cells, cells)
    log_p, log_q = noise.log_prob(x), noise.log_prob(x - shift)
    mass = np.exp(log_p) * width
    some = mass > 1e-14
    return mass[some], (log_p - log_q)[some]


def by_dynamic_programming(noise, knots, count, epsilon, step=2e-3):
    """V_k(s) = max over directions of E_p V_(k-1)(s - l), interpolated linearly in s."""
    both = []
    for shift in (1.0, -1.0):
        mass, loss = losses_of(noise, shift, knots)
        # Masses in fine cells, each at its mean loss.
        cell = np.floor(loss / step * 4).astype(int)
        cell -= cell.min()
        p = np.bincount(cell, mass)
        mean = np.bincount(cell, mass * loss) / np.maximum(p, 1e-300)
        both.append((p[p > 0], mean[p > 0]))
    reach = max(np.abs(loss).max() for _, loss in both)
    s = np.arange(-count * reach - epsilon - step, count * reach + epsilon + step, step)
    values = np.maximum(-np.expm1(s), 0.0)

    def next_at(points, values):
        return np.max([[np.interp(x - loss, s, values) @ p for x in points] for p, loss in both], axis=0)

    for _ in range(count - 1):
        values = next_at(s, values)
    return float(next_at([epsilon], values)[0])


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("name", "count", "epsilon"),
    [("recycled-gaussian", 3, 0.8), pytest.param("two-piece", 2, 0.3, marks=pytest.mark.thorough)],
)
def test_brackets_hold_the_worst_adaptive_choice_of_directions(name, count, epsilon):
    """The value was 0.2337 for 0.2203, and two pieces of a user's class raised an error of NumPy."""
    noise, knots = NOISE[name]
    composed = guarantee(Additive(noise), 1.0).repeat(count)
    low, high = composed.bracket(epsilon=epsilon)
    exact = by_dynamic_programming(noise, knots, count, epsilon)
    assert low * (1 - 2e-5) <= exact <= high * (1 + 2e-5)  # The accuracy of the dynamic program.
    assert high - low <= 1e-4 * high
    assert composed.delta(epsilon) == high
    # The truth at epsilon is between low and high, so that the least epsilon is on this side for each of them.
    assert composed.bracket(delta=high)[0] <= epsilon <= composed.epsilon(low)
    assert composed.epsilon(high) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", NOISE)
def test_every_uneven_noise(name, count):
    noise, knots = NOISE[name]
    composed = guarantee(Additive(noise), 1.0).repeat(count)
    for epsilon in (0.0, 0.5, 1.1):
        low, high = composed.bracket(epsilon=epsilon)
        assert low * (1 - 1e-4) <= by_dynamic_programming(noise, knots, count, epsilon) <= high * (1 + 1e-4)


@pytest.mark.lengthy
def test_an_adaptive_adversary_gains():
    """With signs that are fixed in advance, two recycled Gaussians reveal less."""
    noise, _ = NOISE["recycled-gaussian"]
    single = guarantee(Additive(noise), 1.0)
    low, high = single.repeat(2).bracket(delta=1e-3)
    assert low <= high <= low * (1 + 1e-4)
    assert single.epsilon(1e-3) < low < 2 * single.epsilon(5e-4)


@pytest.mark.lengthy
def test_one_release_of_one_direction_is_its_profile():
    """The bounds of one step contain the exact profile; the lower ones reach the largest loss, 0.5, a step early."""
    one = guarantee(Additive(NOISE["two-piece"][0]), 1.0).numeric.terms[0]
    bounds = _direction_bounds(list(one.pairs), 1, 1 / 64, 1.0, 1e-12)
    for epsilon in (0.0, 0.1, 0.2, 0.4375):
        low, high = bounds.delta(epsilon)
        exact = guarantee(Additive(NOISE["two-piece"][0]), 1.0).delta(epsilon)
        assert low <= exact * (1 + 1e-13)
        assert exact <= high * (1 + 1e-12)
        assert high - low <= (2e-3 if epsilon < 0.4 else 1 / 64 / (0.5 - epsilon)) * high


def test_chords_and_tangents_of_a_profile_are_on_either_side():
    """Of two points, whose profile is linear in e^eps, both are the profile itself at the grid points."""
    step = 0.125
    eps = np.arange(-16, 17) * step
    profile = np.maximum(np.maximum(0.7 - np.exp(eps) * 0.3, 0.0), 1 - np.exp(eps))
    masses = _chords(profile, step)
    assert masses.total == pytest.approx(1.0, rel=1e-12)
    assert masses.infinite == 0.0
    hull = _lower_hull(np.exp(eps), profile)
    assert hull[0] == 0
    assert hull[-1] == len(eps) - 1
    np.testing.assert_allclose(np.interp(np.exp(eps), np.exp(eps)[hull], profile[hull]), profile, atol=1e-15)


def by_enumeration(pairs, count, epsilon):
    """The worst adaptive choice among pairs of a few outcomes, by recursion."""
    if count == 0:
        return max(0.0, 1 - np.exp(epsilon))
    return max(
        sum(
            a * (by_enumeration(pairs, count - 1, epsilon - np.log(a / b)) if b else 1.0)
            for a, b in zip(p, q, strict=True)
            if a
        )
        for p, q in pairs
    )


@pytest.mark.parametrize("share", [0.9, 0.995, 0.9999])
@pytest.mark.parametrize("seed", range(6))
def test_lower_ends_next_to_the_largest_sum_of_losses(seed, share):
    """The lower end was up to ten times the truth, and above the upper one, where a profile reaches 0 within a cell."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
    if seed == 5:  # An outcome with an infinite loss.
        q = np.array([0.0, 0.3, 0.7])
    largest = max(np.log(p[q > 0] / q[q > 0]).max(), np.log(q[q > 0] / p[q > 0]).max())
    releases = Guarantee((RepeatedReleases((Atoms(p, q), Atoms(q, p)), 3),))
    low, high = AdaptiveProfile(releases.numeric).bracket("delta", 3 * share * largest)
    exact = by_enumeration([(p, q), (q, p)], 3, 3 * share * largest)
    assert low * (1 - 1e-10) <= exact <= high * (1 + 1e-10)


def test_upper_ends_in_the_last_cells():
    """The last value was taken for the last three points, so that an eps up to a step too small was returned."""
    values = np.array([0.5, 0.3, 0.15, 0.05, 0.01])
    bounds = AdaptiveDirectionBounds(0.5, values, values)
    for i, value in enumerate(values):
        assert bounds.delta(0.5 * i)[1] == pytest.approx(value, rel=1e-15)
        assert bounds.epsilon(value * (1 + 1e-12))[1] == pytest.approx(0.5 * i, abs=1e-9)
    assert bounds.delta(2.0) == (0.0, 0.01)
    assert bounds.epsilon(0.005) == (2.0, np.inf)


@pytest.mark.parametrize("count", [10, 100])
def test_a_tiny_delta_has_an_epsilon_that_is_not_far_from_its_lower_end(count):
    """No eps on the grid of directions suffices: the upper end is that of all directions in any order."""
    composed = guarantee(Additive(Reweighted(Gaussian(60.0), -30.0, 90.0, 0.5)), 1.0).repeat(count)
    low, high = composed.bracket(delta=1e-50)
    alone = RigorousBounds(composed)._upper_method.profile.bracket("epsilon", 1e-50)
    assert alone[1] == np.inf
    assert alone[0] <= low <= high < 1.01 * low
