"""Laws and claims of additive noise whose exact tables the tests go through.

``SMALL`` laws have tables at 16 random bits, small enough to try every word; ``CLAIMS`` are what a release certifies.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from noise_registry import ASYMMETRIC, LAWS, MERGED

import dpkernels as dpk
from accountants.dominating_pairs.registry import additive_profile
from dpkernels.exact.alias import alias_columns
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.construction import noise_table
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.table import NoiseTable

LATTICES = {
    "discrete-laplace": dpk.DiscreteLaplace(2.5, 0.5),
    "discrete-laplace-thirds": dpk.DiscreteLaplace(7.0, 3.0),
    "discrete-gaussian": dpk.DiscreteGaussian(3.3),
    "truncated-discrete-laplace": dpk.DiscreteLaplace(2.0, 1.0, 12),
}
EDGES = {
    "ends-in-cell-0": dpk.Reweighted(dpk.Laplace(1.3), -1e-5, 9.0, 0.0),
    "begins-in-cell-0": dpk.Reweighted(dpk.Laplace(1.3), -9.0, 1e-5, 0.0),
}
SMALL = {**LAWS, **EDGES, **LATTICES}
SKEWED = {*ASYMMETRIC, *EDGES}
SENSITIVITIES = (0.5, 0.7, 1.0, 0.1)


def sensitivity(name):
    """Each law has one of its own; on a lattice a multiple of the step."""
    if name in LATTICES:
        return 2.0 * LATTICES[name].step
    return SENSITIVITIES[list(SMALL).index(name) % len(SENSITIVITIES)]


@cache
def small_table(name, bits=16, codes=256):
    """The narrowest table of a law."""
    return noise_table(SMALL[name], Fraction(sensitivity(name)), bits=bits, codes=codes)


def claimed(law, D, eps, slack=1e-12):
    """The law with its own delta as the claim, or a tiny one where it is pure."""
    delta = float(additive_profile(law, D, eps))
    return dpk.Additive(law).claim(sensitivity=D, epsilon=eps, delta=max(delta * (1 + slack), 1e-15))


def _skewed(eps, delta, D, share):
    """Truncated Laplace with B so far between its bounds."""
    ends = [
        D / eps * math.log(odds) for odds in ((math.expm1(eps) + delta) / (2 * delta), 1 + math.expm1(eps) / delta / 2)
    ]
    return dpk.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D, upper=ends[0] + share * (ends[1] - ends[0]))


def ended(make, **arguments):
    """Return pure noise with a claim that a finite table can have."""
    return dataclasses.replace(make(**arguments), delta=1e-15)


CLAIMS = {
    "laplace-0.01": partial(ended, dpk.laplace, epsilon=0.01, sensitivity=0.1),
    "laplace-1": partial(ended, dpk.laplace, epsilon=1.0, sensitivity=1.0),
    "laplace-1-odd": partial(ended, dpk.laplace, epsilon=1.0, sensitivity=0.7),
    "laplace-5-tiny": partial(ended, dpk.laplace, epsilon=5.0, sensitivity=1e-9),
    "laplace-20-above-1": partial(ended, dpk.laplace, epsilon=20.0, sensitivity=1.0000003),
    "truncated-laplace-1e-2": partial(dpk.truncated_laplace, epsilon=0.3, delta=1e-2, sensitivity=3.0),
    "truncated-laplace-1e-6-huge": partial(dpk.truncated_laplace, epsilon=1.0, delta=1e-6, sensitivity=1e9),
    "truncated-laplace-1e-14": partial(dpk.truncated_laplace, epsilon=2.0, delta=1e-14),
    "truncated-laplace-skewed": partial(_skewed, 0.7, 0.01, 2.0, 0.3),
    "staircase-0.5": partial(ended, dpk.staircase, epsilon=0.5, sensitivity=0.1),
    "staircase-20": partial(ended, dpk.staircase, epsilon=20.0, sensitivity=1.0),
    "merged": partial(claimed, MERGED, 1.0, 1.7),
    "gaussian-0.01": partial(claimed, dpk.Gaussian(150.0), 1.0, 0.01),
    "gaussian-1": partial(claimed, dpk.Gaussian(4.3), 0.7, 1.0),
    "gaussian-8": partial(claimed, dpk.Gaussian(0.7e9), 1e9, 8.0),
    "truncated-gaussian": partial(dpk.truncated_gaussian, sigma=2.0, delta=1e-6, epsilon=2.5, bound=12.0),
    "recycled-gaussian": partial(claimed, LAWS["recycled-gaussian"], 1.0, 1.0),
    "recycled-laplace": partial(claimed, LAWS["recycled-laplace"], 0.3, 1.5),
    "recycled-merged": partial(claimed, LAWS["recycled-merged"], 0.3, 0.5),
    "ends-in-cell-0": partial(claimed, EDGES["ends-in-cell-0"], 0.1, 0.2),
    "discrete-laplace": partial(ended, dpk.discrete_laplace, epsilon=0.5, sensitivity=3.0),
    "discrete-laplace-wide": partial(ended, dpk.discrete_laplace, epsilon=1.0, sensitivity=300.0, step=1.0),
    "discrete-gaussian": partial(dpk.discrete_gaussian, sigma=9.0, sensitivity=2.0, epsilon=1.5, delta=1e-5, step=0.5),
    "truncated-discrete-laplace": partial(
        dpk.truncated_discrete_laplace, epsilon=1.0, delta=1e-5, sensitivity=3.0, step=0.5
    ),
}


@cache
def claim(name):
    """The mechanism of a case."""
    return CLAIMS[name]()


def exact(name):
    """Its exact form."""
    return dpk.exact_sampler(claim(name))


def brute_force(weights, shifts, ratio):
    """The largest sum of max(0, w[j] - ratio w[j - s]) over all s up to ``shifts`` either way, over the total."""
    table = dict(enumerate(weights))
    return max(
        sum(max(Fraction(0), w - ratio * table.get(j - s, 0)) for j, w in table.items())
        for s in range(-shifts, shifts + 1)
    ) / sum(weights)


def exp_bounds(epsilon):
    """e^eps of the decimal eps from below and above, by mpmath."""
    with mpmath.workdps(60):
        value = mpmath.exp(mpmath.mpf(repr(float(epsilon))))
        nearest = Fraction(int(mpmath.floor(value * 10**45)), 10**45)
    return nearest, nearest + Fraction(1, 10**45)


def form_of(mechanism, table, certificate=None):
    """An exact form of any table, certified or not."""
    D = mechanism.sensitivity
    bare = NoiseCertificate(mechanism.epsilon, mechanism.delta, D, table.cells(Fraction(D)), Fraction(0), table)
    return ExactNoise(mechanism, certificate or bare)


def plain_table(weights, first, bits=16, grid_log2=0, points_per_bin=1):
    """A table of Python integers."""
    return NoiseTable(np.array(weights, np.uint64), first, bits, grid_log2, points_per_bin)


@cache
def table_columns(table):
    """The table's alias columns."""
    return alias_columns(table.outcomes, table.bits)


def slow_sampler(table):
    """The sampler written again with Python integers."""
    columns = table_columns(table)
    threshold, alias = columns.threshold.tolist(), columns.alias.tolist()

    def code(word):
        column, low = divmod(word, 1 << (table.bits - columns.log_columns))
        return table.first + (column if low < threshold[column] else alias[column])

    return code


def slow_position(table, x, word):
    """Where an input is put, in Fractions."""
    grains = math.floor(Fraction(float(x)) / Fraction(2) ** table.grid_log2 + Fraction(1, 2))
    return (grains + (int(word) * table.points_per_bin >> 32)) // table.points_per_bin


_compiled = {}


def positions(sampler, x, words):
    """The compiled rounding of inputs, of x's type."""
    compiled = _compiled.setdefault(id(sampler), (sampler, jax.jit(sampler.positions)))[1]
    with jax.enable_x64(True):
        return np.asarray(compiled(jnp.asarray(x), jnp.asarray(words, jnp.uint32)))
