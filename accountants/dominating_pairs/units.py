"""Laws of noise in other units: of a multiple of the noise, or of the noise in units of a length."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.numerics import Real

Change = Callable[[Any], Any]


def rescaled(noise: Any, factor: Real) -> Any:
    """The law of factor * Z, for Z of this law.

    Raises:
        TypeError: a law of an unknown type.
    """
    return _with(noise, lambda length: length * factor, lambda rate: rate / factor)


def per_unit(noise: Any, unit: Real) -> Any:
    """The law of Z/unit; a length that is the unit is 1 exactly.

    Raises:
        TypeError: a law of an unknown type.
    """
    return _with(noise, lambda length: length / unit, lambda rate: rate * unit)


@singledispatch
def _with(noise: Any, length: Change, rate: Change) -> Any:
    """The law with its lengths and its rates, which are one over lengths, changed."""
    raise TypeError(f"noise: it is not known how to rescale {type(noise).__name__}")


@_with.register
def _(noise: Gaussian, length: Change, rate: Change) -> Gaussian:
    return Gaussian(length(noise.sigma))


@_with.register
def _(noise: Laplace, length: Change, rate: Change) -> Laplace:
    return Laplace(length(noise.scale))


@_with.register
def _(noise: MergedLaplace, length: Change, rate: Change) -> MergedLaplace:
    return MergedLaplace(tuple(map(rate, noise.rates)), tuple(map(length, noise.breaks)))


@_with.register
def _(noise: Staircase, length: Change, rate: Change) -> Staircase:
    return Staircase(noise.epsilon, length(noise.period), noise.gamma)


@_with.register
def _(noise: Reweighted, length: Change, rate: Change) -> Reweighted:
    return Reweighted(_with(noise.kernel, length, rate), length(noise.low), length(noise.high), noise.outside)
