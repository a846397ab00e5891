"""The exact form of every mechanism that has one, by its kind; nothing else in ``exact`` imports this file."""

from __future__ import annotations

from functools import lru_cache, singledispatch
from typing import Any

import jax

from dpkernels.exact.combined import MultivariateCertificate
from dpkernels.exact.form import ExactForm, concrete_mechanism, refuse_traced
from dpkernels.exact.mixture import ExactMultivariate, mixture_form
from dpkernels.exact.noise.form import noise_form
from dpkernels.exact.noise.lattice import certify_law
from dpkernels.exact.noise.vectors import certify_vector_law
from dpkernels.exact.rows.central import central_form
from dpkernels.exact.rows.optimal import optimal_form
from dpkernels.exact.windows.form import placed_form, window_form
from dpkernels.exact.windows.lattice import placed_table, two_point_table, windowed_table
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.additive_vector import AdditiveVector
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave


@singledispatch
def certify(mechanism: Any) -> Any:
    """The exact form of a mechanism, verified; its ``certificate`` prints and serialises.

    Args:
        mechanism: any mechanism of this package, with concrete parameters, or an exact form (returned as it is).

    Returns:
        An ``ExactForm``, or ``ExactMultivariate`` for mechanisms on vectors.

    Raises:
        CertificateError: the integers do not have the guarantee; says by how much.
        TypeError: a kind of mechanism that has no exact form, or a traced one.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact form")


@certify.register
def _(mechanism: ExactForm) -> ExactForm:
    return mechanism


@certify.register
def _(mechanism: ExactMultivariate) -> ExactMultivariate:
    return mechanism


@certify.register(Mechanism)
@certify.register(AdditiveVector)
def _(mechanism: Mechanism | AdditiveVector) -> ExactForm:
    try:
        hash(mechanism)
    except TypeError:  # A parameter is an array.
        mechanism = concrete_mechanism(mechanism)
    return _exact_once(mechanism)


@certify.register
def _(mechanism: Multivariate) -> ExactMultivariate:
    coordinate = certify(mechanism.coordinate)
    certificate = MultivariateCertificate(coordinate.certificate, mechanism.dimensions, mechanism.sampled)
    return ExactMultivariate(mechanism, coordinate, certificate)


@certify.register
def _(mechanism: Optimal) -> ExactForm:
    for leaf in jax.tree.leaves(mechanism):
        refuse_traced(leaf)
    return optimal_form(mechanism)


@lru_cache(maxsize=256)
def _exact_once(mechanism: Any) -> ExactForm:
    return _exact(concrete_mechanism(mechanism))


@singledispatch
def _exact(mechanism: Any) -> ExactForm:
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact form")


@_exact.register
def _(mechanism: Windowed) -> ExactForm:
    return window_form(mechanism, windowed_table(mechanism))


@_exact.register
def _(mechanism: SquareWave) -> ExactForm:
    return placed_form(mechanism, placed_table(mechanism))


@_exact.register
def _(mechanism: TwoPoint) -> ExactForm:
    return window_form(mechanism, two_point_table(mechanism))


@_exact.register
def _(mechanism: Additive) -> ExactForm:
    return noise_form(mechanism, certify_law(mechanism))


@_exact.register
def _(mechanism: AdditiveVector) -> ExactForm:
    return noise_form(mechanism, certify_vector_law(mechanism))


@_exact.register
def _(mechanism: CentralPiecewise) -> ExactForm:
    return central_form(mechanism)


@_exact.register
def _(mechanism: Mixture) -> ExactForm:
    return mixture_form(mechanism, certify(mechanism.first), certify(mechanism.second))
