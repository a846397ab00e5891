"""Small certificates of every kind, for tests that try many changes of their JSON."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
from exact_registry import small_table
from noise_tables import plain_table
from noise_tables import small_table as small_noise

import dpkernels as dpk
from dpkernels.exact.bounded.window_construction import square_wave_table, two_point_table, windowed_table
from dpkernels.exact.bounded.windows import SquareWaveCertificate, WindowCertificate
from dpkernels.exact.categorical.certificate import BlockCertificate, SetCertificate
from dpkernels.exact.noise.certificate import VectorClaim, certify_noise, certify_vector
from dpkernels.exact.noise.construction import noise_table
from dpkernels.exact.registry import MixtureCertificate, MultivariateCertificate

# The sidecar of a release of two columns, and a certificate whose sums wrap around at 2^64.
RECORDED = json.loads((Path(__file__).parent / "forged_certificates.json").read_text())
UNIT = {"epsilon": 1.0, "lower": -1.0, "upper": 1.0}


def mixture():
    tables = two_point_table(dpk.duchi(**UNIT), 16), windowed_table(dpk.piecewise(**UNIT), bits=16, codes=32)
    return MixtureCertificate(*(WindowCertificate.of(table, 1.0) for table in tables), 123456789)


def optimal(**more):
    return dpk.exact_sampler(dpk.optimal(**more)).certificate


def near():
    return optimal(epsilon=1.0, lower=0.1234567, upper=3.1234567, sensitivity=1.2345678901234567, points=9, outputs=15)


def gaussian_vector():
    """sigma = 32 cells, cut at 4 of them; 16 bits cost a delta of 0.02 or so."""
    cells = np.arange(-128, 129)
    weights = np.floor(65536 * 0.997 * np.exp(-(cells**2) / 2048) / np.sqrt(2048 * np.pi)).astype(int)
    weights[128] += 65536 - weights.sum()
    return certify_vector(plain_table(weights, -128), VectorClaim(1.0, 0.3, 30.0, "l2", 1, 1.0, 32.0))


def vector():
    table = noise_table(dpk.DiscreteLaplace(2.0, 1.0, 8), Fraction(1), bits=16)
    return certify_vector(table, VectorClaim(1.0, 0.5, 2.0, "l1", 2, 1.0, None))


MADE = {
    "window": lambda: WindowCertificate.of(small_table("sine-constant", 2.0, codes=32), 2.0),
    "window, flat": lambda: WindowCertificate.of(small_table("piecewise", 0.5, codes=32), 0.5),
    "window, two codes": lambda: WindowCertificate.of(small_table("duchi", 2.0), 2.0),
    "placed window": lambda: SquareWaveCertificate.of(
        square_wave_table(dpk.square_wave(**UNIT), bits=16, codes=32), 1.0
    ),
    "mixture": mixture,
    "rows": lambda: optimal(points=5, outputs=11, **UNIT),
    "rows, near": near,
    "noise": lambda: certify_noise(small_noise("recycled-laplace", 16, 64), 0.7, 2.0, 0.3),
    "noise on a lattice": lambda: certify_noise(small_noise("truncated-discrete-laplace", 16, 64), 2.0, 2.0, 0.3),
    "noise, any": lambda: certify_noise(plain_table([1 << 14, 0, 1 << 15, 1 << 14], -2), 1.0, 1.0, 0.99),
    "vector noise": vector,
    "vector noise, Gaussian": gaussian_vector,
    "multivariate": lambda: MultivariateCertificate(optimal(points=5, outputs=11, **UNIT), 5, 2),
    "multivariate, mixture": lambda: MultivariateCertificate(mixture(), 3, 3),
    "set of categories": lambda: SetCertificate.of(dpk.subset_selection(1.0, 9, 3), 16),
    "set of one category": lambda: SetCertificate.of(dpk.randomised_response(1.0, 5), 16),
    "block of categories": lambda: BlockCertificate.of(dpk.block_response(1.0, 30), 16),
    "prefixes": lambda: dpk.exact_sampler(dpk.prefix_response(1.0, 3, 3, lengths=(1, 3))).certificate,
}


@cache
def text(name):
    """Return the JSON text of one."""
    return json.dumps(MADE[name]().to_dict())


NAMES = [*MADE]
