"""The exact sampler of every kind of mechanism."""

from __future__ import annotations

from functools import lru_cache, singledispatch
from typing import Any

import jax

from dpkernels.exact.combined import ExactMultivariate, MultivariateCertificate, mixture_sampler
from dpkernels.exact.noise.build import noise_certificate, vector_certificate
from dpkernels.exact.noise.sampler import noise_sampler
from dpkernels.exact.rows.build import central_sampler, optimal_sampler
from dpkernels.exact.sampler import ExactSampler, concrete_mechanism, refuse_traced
from dpkernels.exact.windows.build import placed_table, two_point_table, windowed_table
from dpkernels.exact.windows.sampler import placed_sampler, window_sampler
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

    Returns:
        An ``ExactSampler``, or ``ExactMultivariate`` for mechanisms on vectors.

    Raises:
        CertificateError: the integers do not have the guarantee; the message says by how much.
        TypeError: a kind of mechanism that has no exact sampler, or a traced one.
    """
    try:
        return _once(mechanism)
    except TypeError:
        if isinstance(mechanism, Mechanism | AdditiveVector):  # A parameter may be an array, which has no hash.
            return _once(concrete_mechanism(mechanism))
        if isinstance(mechanism, Multivariate):
            return _exact(mechanism)
        raise


@lru_cache(maxsize=256)
def _once(mechanism: Any) -> Any:
    return _exact(mechanism)


@singledispatch
def _exact(mechanism: Any) -> Any:
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact sampler")


@_exact.register(ExactSampler)
@_exact.register(ExactMultivariate)
def _(mechanism: Any) -> Any:
    return mechanism


@_exact.register(Mechanism)
@_exact.register(AdditiveVector)
def _(mechanism: Mechanism | AdditiveVector) -> ExactSampler:
    return _of_numbers(concrete_mechanism(mechanism))


@_exact.register
def _(mechanism: Multivariate) -> ExactMultivariate:
    coordinate = exact_sampler(mechanism.coordinate)
    certificate = MultivariateCertificate(coordinate.certificate, mechanism.dimensions, mechanism.sampled)
    return ExactMultivariate(mechanism, coordinate, certificate)


@_exact.register
def _(mechanism: Optimal) -> ExactSampler:
    for leaf in jax.tree.leaves(mechanism):
        refuse_traced(leaf)
    return optimal_sampler(mechanism)


@singledispatch
def _of_numbers(mechanism: Any) -> ExactSampler:
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact sampler")


@_of_numbers.register
def _(mechanism: Windowed) -> ExactSampler:
    return window_sampler(mechanism, windowed_table(mechanism))


@_of_numbers.register
def _(mechanism: SquareWave) -> ExactSampler:
    return placed_sampler(mechanism, placed_table(mechanism))


@_of_numbers.register
def _(mechanism: TwoPoint) -> ExactSampler:
    return window_sampler(mechanism, two_point_table(mechanism))


@_of_numbers.register
def _(mechanism: Additive) -> ExactSampler:
    return noise_sampler(mechanism, noise_certificate(mechanism))


@_of_numbers.register
def _(mechanism: AdditiveVector) -> ExactSampler:
    return noise_sampler(mechanism, vector_certificate(mechanism))


@_of_numbers.register
def _(mechanism: CentralPiecewise) -> ExactSampler:
    return central_sampler(mechanism)


@_of_numbers.register
def _(mechanism: Mixture) -> ExactSampler:
    return mixture_sampler(mechanism, exact_sampler(mechanism.first), exact_sampler(mechanism.second))
