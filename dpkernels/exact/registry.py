"""The exact sampler of every kind of mechanism."""

from __future__ import annotations

from functools import lru_cache, singledispatch
from typing import Any

import jax
import numpy as np

from dpkernels.exact.combined import ExactMultivariate, MultivariateCertificate, mixture_sampler
from dpkernels.exact.noise import ExactNoise, noise_certificate
from dpkernels.exact.noise_vectors import vector_certificate
from dpkernels.exact.rows import central_sampler, optimal_sampler
from dpkernels.exact.sampler import ExactSampler
from dpkernels.exact.windows import (
    ExactWindow,
    PlacedCertificate,
    WindowCertificate,
    placed_table,
    two_point_table,
    windowed_table,
)
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.additive_vector import AdditiveVector
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave


def exact_sampler(mechanism: Any) -> Any:
    """Return the exact sampler of a mechanism, verified; its ``certificate`` prints and serialises.

    Args:
        mechanism: any mechanism of this package, with concrete parameters, or an exact sampler (returned as it is).

    Raises:
        CertificateError: the integers do not have the guarantee; the message says by how much.
        TypeError: a kind of mechanism that has no exact sampler, or a traced one.
    """
    try:
        return _once(mechanism)
    except TypeError:
        if isinstance(mechanism, Mechanism | AdditiveVector):  # A parameter may be an array, which has no hash.
            return _once(jax.tree.map(_concrete, mechanism))
        if isinstance(mechanism, Multivariate):
            return _sampler(mechanism)
        raise


@lru_cache(maxsize=256)
def _once(mechanism: Any) -> Any:
    if isinstance(mechanism, ExactSampler | ExactMultivariate):
        return mechanism
    if isinstance(mechanism, Optimal):  # Its parameters are arrays.
        for leaf in jax.tree.leaves(mechanism):
            _refuse_traced(leaf)
    elif isinstance(mechanism, Mechanism | AdditiveVector):
        mechanism = jax.tree.map(_concrete, mechanism)
    return _sampler(mechanism)


def _concrete(leaf: Any) -> float:
    _refuse_traced(leaf)
    if np.ndim(leaf):
        raise TypeError(f"mechanism: a parameter has shape {np.shape(leaf)}; certify mechanisms of numbers, one each")
    return float(leaf)


def _refuse_traced(leaf: object) -> None:
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "mechanism: a traced mechanism cannot be certified, because its integers need its parameters' values; "
            "give concrete ones outside jit and vmap, and under grad those of jax.lax.stop_gradient"
        )


@singledispatch
def _sampler(mechanism: Any) -> Any:
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact sampler")


@_sampler.register
def _(mechanism: Multivariate) -> ExactMultivariate:
    coordinate = exact_sampler(mechanism.coordinate)
    certificate = MultivariateCertificate(coordinate.certificate, mechanism.dimensions, mechanism.sampled)
    return ExactMultivariate(mechanism, coordinate, certificate)


_sampler.register(Windowed, lambda m: ExactWindow(m, WindowCertificate.of(windowed_table(m), m.epsilon)))
_sampler.register(SquareWave, lambda m: ExactWindow(m, PlacedCertificate.of(placed_table(m), m.epsilon)))
_sampler.register(TwoPoint, lambda m: ExactWindow(m, WindowCertificate.of(two_point_table(m), m.epsilon)))
_sampler.register(Mixture, lambda m: mixture_sampler(m, exact_sampler(m.first), exact_sampler(m.second)))
_sampler.register(Additive, lambda m: ExactNoise(m, noise_certificate(m)))
_sampler.register(AdditiveVector, lambda m: ExactNoise(m, vector_certificate(m)))
_sampler.register(CentralPiecewise, central_sampler)
_sampler.register(Optimal, optimal_sampler)
