"""One release on a Poisson sample, by its exact profile: against the definition in 50 digits, for every mechanism."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import ALL, UNIT, slope_by_differences
from mpmath import mp, mpf
from noise_registry import ASYMMETRIC, LAWS, SYMMETRIC, over, scale

import dpkernels as dpk
from accountants import guarantee, randomised_response, weights
from accountants.pairs.worst import worst_pairs
from accountants.subsampling import on_sample
from dpkernels.distributions.discrete import DiscreteLaplace
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.additive import Additive

# How far above the truth a value may be, relatively. It is never below.
ABOVE = 1e-11


@pytest.fixture(autouse=True)
def many_digits():
    """References in 50 digits."""
    with mpmath.workdps(50):
        yield


# The definition, from the parameters of a law


class Exact:
    """The density of noise in many digits: a kernel times steps, with masses in closed form."""

    def __init__(self, law):
        self.steps = []
        while isinstance(law, Reweighted):
            self.steps.append((mpf(float(law.low)), mpf(float(law.high)), mpf(float(law.outside))))
            law = law.kernel
        self.kernel = law
        self.knots = sorted({end for low, high, _ in self.steps for end in (low, high)} | set(self.kernel_knots()))
        ends = [-mp.inf, *self.knots, mp.inf]
        self.total = sum(self._weight(a, b) * self.kernel_mass(a, b) for a, b in itertools.pairwise(ends))

    def kernel_knots(self):
        if isinstance(self.kernel, Gaussian):
            return []
        if isinstance(self.kernel, Laplace):
            return [mpf(0)]
        breaks = [mpf(float(c)) for c in self.kernel.breaks]
        return [mpf(0), *breaks, *(-c for c in breaks)]

    def log_density(self, y):
        """Of the kernel, but for a constant."""
        k, y = self.kernel, abs(y)
        if isinstance(k, Gaussian):
            return -((y / mpf(float(k.sigma))) ** 2) / 2
        if isinstance(k, Laplace):
            return -y / mpf(float(k.scale))
        ends = [mpf(0), *(mpf(float(c)) for c in k.breaks), mp.inf]
        return -sum(
            mpf(float(rate)) * (min(y, b) - a)
            for rate, (a, b) in zip(k.rates, itertools.pairwise(ends), strict=True)
            if y > a
        )

    def kernel_mass(self, a, b):
        """Between neighbouring knots, or beyond; unnormalised."""
        k = self.kernel
        if isinstance(k, Gaussian):
            s = mpf(float(k.sigma))
            return (
                s
                * mp.sqrt(2 * mp.pi)
                * (mp.ncdf(b / s) - mp.ncdf(a / s) if a < 0 else mp.ncdf(-a / s) - mp.ncdf(-b / s))
            )
        if a == -mp.inf:
            a, b = -b, mp.inf
        at = a + 1 if b == mp.inf else (a + b) / 2
        step = mpf(10) ** -20 * (abs(at) + 1)
        rate = (self.log_density(at + step) - self.log_density(at - step)) / (2 * step)
        rate = mpf(0) if abs(rate) < mpf(10) ** -25 else rate
        log_a = self.log_density(at) + rate * (a - at)
        if b == mp.inf:
            return -mp.exp(log_a) / rate
        return mp.exp(log_a) * ((b - a) if rate == 0 else mp.expm1(rate * (b - a)) / rate)

    def _weight(self, a, b):
        at = b - 1 if a == -mp.inf and b != mp.inf else a + 1 if b == mp.inf and a != -mp.inf else (a + b) / 2
        at = mpf(0) if a == -mp.inf and b == mp.inf else at
        return mp.fprod(mpf(1) if low <= at <= high else outside for low, high, outside in self.steps)

    def parts(self, a, b, shift):
        """Weight of f(. - shift) between neighbouring knots of all laws."""
        return self._weight(a - shift, b - shift) / self.total


def exact_stick(law, shifts, t):
    """Integral of max(0, p - t q), p and q being mixtures: {shift: (probability under p, under q)}."""
    exact, t = Exact(law), mpf(t)
    knots = sorted({knot + shift for knot in exact.knots for shift in shifts})
    reach = mpf(60) * mpf(scale(law)) + max(abs(s) for s in shifts)
    ends = [-reach, *(k for k in knots if abs(k) < reach), reach]
    total = mpf(0)
    for a, b in itertools.pairwise(ends):
        if b - a <= mpf(10) ** -35 * reach:
            continue
        coefficients = [(s, exact.parts(a, b, s) * (mpf(u) - t * mpf(v))) for s, (u, v) in shifts.items()]

        def gap(y, coefficients=coefficients):
            return sum(c * mp.exp(exact.log_density(y - s)) for s, c in coefficients if c)

        inset = (b - a) * mpf(10) ** -30
        # Not evenly spaced: of symmetric laws the gap is 0 exactly half-way.
        points = [a + inset + (b - a - 2 * inset) * (mpf(k) / 48) ** mpf(1.0371) for k in range(49)]
        cuts = [a]
        for x, y in itertools.pairwise(points):
            if gap(x) * gap(y) < 0:
                rises = gap(y) > 0
                for _ in range(100):
                    middle = (x + y) / 2
                    x, y = (x, middle) if (gap(middle) > 0) == rises else (middle, y)
                cuts.append(y)
        for x, y in itertools.pairwise([*cuts, b]):
            if gap((x + y) / 2) > 0:
                total += sum(c * exact.kernel_mass(x - s, y - s) for s, c in coefficients if c)
    return total


def added_or_removed(law, D, rate, eps):
    """The larger of both directions, and of both signs of the shift."""
    r, t = mpf(rate), mp.exp(mpf(eps))
    found = []
    for shift in {mpf(D), -mpf(D)} if law in ASYMMETRIC.values() else {mpf(D)}:
        with_record, without = {mpf(0): (r, 0), shift: (1 - r, 1)}, {mpf(0): (0, r), shift: (1, 1 - r)}
        found += [exact_stick(law, with_record, t), exact_stick(law, without, t)]
    return max(found)


def replaced(law, D, rate, eps):
    r = mpf(rate)
    shifts = {mpf(0): (1 - r, 1 - r), mpf(D): (r, 0), -mpf(D): (0, r)}
    return exact_stick(law, shifts, mp.exp(mpf(eps)))


def check(found, exact, above=ABOVE):
    """Not below the exact value by more than its own place, and hardly above; next to the largest loss a rounding."""
    assert found >= exact * (1 - mpf(10) ** -15) - mpf(10) ** -300
    assert found <= exact * (1 + mpf(above)) + mpf(10) ** -14


# Noise

SMOOTH = {name: law for name, law in LAWS.items() if law.law.degree > 0}
CASES = [(0.5, 0.3), (0.01, 0.02), (0.97, 1.1), (0.2, 0.0)]


@pytest.mark.quick("case0-gaussian", "case1-laplace", "case1-recycled-merged")
@over(SMOOTH)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case{CASES.index(case)}")
def test_a_record_added_or_removed(law, case):
    rate, eps = case
    D = 0.9 * scale(law)
    check(guarantee(Additive(law), D).subsample(rate).delta(eps), added_or_removed(law, D, rate, eps))


@pytest.mark.quick("case0-gaussian", "case1-laplace", "case2-recycled-gaussian", "case1-recycled-merged")
@over({name: law for name, law in SMOOTH.items() if name in SYMMETRIC})
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case{CASES.index(case)}")
def test_a_record_replaced(law, case):
    rate, eps = case
    D = 0.9 * scale(law)
    check(guarantee(Additive(law), D).subsample(rate, "replace").delta(eps), replaced(law, D, rate, eps))
