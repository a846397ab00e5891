"""Tails and losses of noise, against 40 digits, are within the roundings that brackets assume of them."""

import mpmath as mp
import numpy as np
import pytest

from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.generalised_normal import GeneralisedNormal
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.logistic import Logistic
from dpkernels.distributions.student import Student

UNIT, LOSS_UNITS, LEAST = 2.0**-53, 64, 2.0**-1022


def gaussian_tail(law, z):
    return mp.erfc(z / law.sigma / mp.sqrt(2)) / 2


def laplace_tail(law, z):
    return mp.exp(-z / law.scale) / 2


def logistic_tail(law, z):
    return 1 / (1 + mp.exp(z / law.scale))


def student_tail(law, z):
    nu = mp.mpf(law.degrees)
    return mp.betainc(nu / 2, 0.5, 0, nu / (nu + (z / law.scale) ** 2), regularized=True) / 2


def generalised_tail(law, z):
    b = mp.mpf(law.exponent)
    return mp.gammainc(1 / b, (z / law.scale) ** b, regularized=True) / 2


def merged_tail(law, z):
    """Integrate from the start of each segment, or from z, a density that is 1 at 0."""
    level, masses = mp.mpf(1), []
    for start, end, rate in zip((0.0, *law.breaks), (*law.breaks, mp.inf), map(mp.mpf, law.rates), strict=True):
        decay = mp.exp(-rate * (end - start))
        masses.append([level * (mp.exp(-rate * (x - start)) - decay) / rate for x in (start, min(max(z, start), end))])
        level *= decay
    return sum(tail_mass for _, tail_mass in masses) / (2 * sum(segment_mass for segment_mass, _ in masses))


TAILS = [
    (Gaussian(0.37), gaussian_tail, 13.0),
    (Laplace(0.037), laplace_tail, 25.0),
    (MergedLaplace((1.0, 0.3, 2.0), (0.5, 2.0)), merged_tail, 300.0),
    (Logistic(7.3), logistic_tail, 5000.0),
    *((GeneralisedNormal(0.7, b), generalised_tail, 0.7 * 690.0 ** (1 / b)) for b in (1.0, 1.02, 1.5, 2.5, 8.0)),
    (Student(1.0, 3.0), student_tail, 1e90),
    (Student(1.0, 100.0), student_tail, 3e3),
    (Student(1.0, 1000.0), student_tail, 75.0),
]


@pytest.mark.parametrize(("law", "tail", "far"), TAILS, ids=lambda value: getattr(type(value), "__name__", ""))
def test_tails_are_as_precise_as_stated(law, tail, far):
    """Those of Student's with 1,000 degrees are off by 190 roundings."""
    with mp.workdps(40):
        for z in np.concatenate([np.geomspace(1e-3, far, 20), np.random.default_rng(1).random(10) * min(far, 5.0)]):
            true = tail(law, mp.mpf(float(z)))
            error = abs(mp.mpf(float(law.tail(z))) - true)
            assert error <= law.roundings * UNIT * (1 + abs(mp.log(true))) * true + LEAST


@pytest.mark.parametrize("shift", [1.0, -1.0, 30.0])
def test_losses_of_logistic_noise_keep_their_digits_far_out(shift):
    """Both log densities are about -600 there, and their difference is next to shift / b."""
    law = Logistic(0.4)
    with mp.workdps(40):
        for z in np.random.default_rng(2).uniform(-280.0, 280.0, 40):
            z = mp.mpf(float(z))
            softplus = [mp.log1p(mp.exp(-abs(x) / mp.mpf(0.4))) for x in (z, z - shift)]
            true = (abs(z - shift) - abs(z)) / mp.mpf(0.4) - 2 * (softplus[0] - softplus[1])
            error = abs(mp.mpf(float(law.loss(np.float64(float(z)), np.float64(shift)))) - true)
            assert error <= LOSS_UNITS / 2 * UNIT * (1 + abs(true))
