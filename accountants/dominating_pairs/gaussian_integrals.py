"""Hockey-stick divergences of Gaussian densities without cancellation, rounded upwards.

If p is a Gaussian and the loss increases with slope a towards the upper end, in units of sigma,

    gain(start, width, a, lead) = integral over 0 < t < width of  phi(start + t) (1 - e^-(lead + a t)) dt,

where lead >= 0 is the loss at the start minus eps. The integral is a difference of two masses,

    Phi[start, start + width] - e^(a (start + a/2) - lead) Phi[start + a, start + a + width],

which cancels if the loss hardly exceeds eps, as with noise much wider than the sensitivity. In this case the integral
is a sum of positive terms, by Gauss-Legendre quadrature on the part of the interval that is not negligible. NumPy
arrays are evaluated in float64, JAX arrays in their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import Real, RealArray, cast_like, gauss_legendre, namespace, without_derivative

_STANDARD = Gaussian(1.0)
_NODES, _WEIGHTS = gauss_legendre(12)
_PANELS = 8  # The panels of an integral, of 12 nodes each.
_PANEL_NODES = ((np.arange(_PANELS)[:, None] + _NODES) / _PANELS).ravel()
_PANEL_WEIGHTS = np.tile(_WEIGHTS / _PANELS, _PANELS)
VALUES = _PANEL_NODES.size  # The values from which one integral is computed.
# A density below e^-40 of the largest one is negligible: it is less than half a unit in the last place.
_NEGLIGIBLE = 40.0
# The difference of masses is used where it is at least this share of the first one.
_MIN_DIFFERENCE = 0.25
# Masses up to this, in units of the least normal float, may have lost digits.
_MIN_RESOLVED = 1e12
_MAX_STEEPNESS = 16.0  # The slopes of the loss that nodes resolve.
# A bound on the relative error of a mass, in units in the last place times 1 + the square of its position.
_UNITS = 16
# Beyond this point no mass is left; its square is finite.
_MAX_POSITION = 1e10


def gain(start: np.ndarray, width: np.ndarray, a: Real, lead: np.ndarray) -> tuple[Real, Real, Real]:
    """Return upper bounds of the integral above, and of the two masses: Phi[start, ...] and Phi[start + a, ...].

    Each exceeds the true value by a few units in the last place times 1 + start^2 and similar terms.
    """
    p, q = _mass(start, width), _mass(start + a, width)
    error = without_derivative((_mass_error(start, width, p), _mass_error(start + a, width, q)))
    return _difference(start, width, a, lead, p, q), p + error[0], q + error[1]


def endless_gain(start: RealArray, a: Real) -> RealArray:
    """Return the first value of ``gain`` for an infinite width, from the point at which the loss is eps."""
    return _difference(start, np.inf + 0 * start, a, 0.0 * start, _STANDARD.sf(start), _STANDARD.sf(start + a))


def _difference(start: RealArray, width: RealArray, a: Real, lead: RealArray, p: Real, q: Real) -> RealArray:
    xp = namespace(start, width, a, lead)
    info = xp.finfo(xp.result_type(start, width, a, lead))
    steep = xp.minimum(a, _MAX_POSITION)
    factor = xp.exp(xp.minimum(a * (start + a / 2) - lead, 0.97 * math.log(float(info.max))))
    difference = p - factor * q
    error = info.eps * _UNITS * (steep * (abs(start) + steep) + lead) * q
    error = _mass_error(start, width, p) + factor * (_mass_error(start + a, width, q) + error)
    # A tail below the floats is 0.
    cancels = (difference < _MIN_DIFFERENCE * p) | (
        (q < _MIN_RESOLVED * float(info.tiny)) & (p > 0) & (steep < _MAX_STEEPNESS)
    )
    by_quadrature = _evaluate_where(cancels, _by_nodes, start, width, a, lead)
    by_quadrature = by_quadrature * (1 + _UNITS * info.eps * (1 + without_derivative(_nearest(start, width) ** 2)))
    return xp.where(cancels, by_quadrature, difference + without_derivative(error))


def _mass(start: RealArray, width: RealArray) -> RealArray:
    xp = namespace(start, width)
    end = start + width
    contains_zero = (start < 0) & (end > 0)
    nearest = xp.where(start >= 0, start, -end)
    # Where 0 is between the ends the mass has two parts, and otherwise one.
    value = _tail_mass(xp.where(contains_zero, 0.0, nearest), xp.where(contains_zero, end, width))
    return value + _tail_mass(0.0 * value, xp.where(contains_zero, -start, 0.0))


def _mass_error(start: RealArray, width: RealArray, mass: Any) -> np.ndarray:
    return np.finfo(mass.dtype).eps * _UNITS * (1 + _nearest(start, width) ** 2) * mass


def _tail_mass(start: RealArray, width: RealArray) -> RealArray:
    """Return the mass of [start, start + width] for start >= 0: a difference of tails, or quadrature if narrow."""
    xp = namespace(start, width)
    has_width = xp.isfinite(start) & (width > 0)
    start, width = xp.where(has_width, start, 1.0), xp.where(has_width, width, 1.0)
    endless = xp.isinf(width)
    width = xp.where(endless, 1.0, width)
    difference = _STANDARD.tail(start) - xp.where(endless, 0.0, _STANDARD.tail(start + width))
    is_narrow = has_width & ~endless & (width * (1 + start) < 1)
    return xp.where(
        has_width, xp.where(is_narrow, _evaluate_where(is_narrow, _narrow_mass, start, width), difference), 0.0
    )


def _narrow_mass(start: np.ndarray, width: np.ndarray) -> np.ndarray:
    nodes, weights = (cast_like(rule, width) for rule in (_NODES, _WEIGHTS))
    return width * (_density(start[..., None] + width[..., None] * nodes) @ weights)


def _density(x: RealArray) -> RealArray:
    return namespace(x).exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _evaluate_where(condition: RealArray, function: Callable[..., RealArray], *values: Real) -> RealArray:
    xp = namespace(condition, *values)
    values = xp.broadcast_arrays(condition, *values)[1:]
    if xp is jnp:
        return jax.lax.cond(condition.any(), function, lambda argument, *_: jnp.zeros_like(argument), *values)
    return function(*values) if np.any(condition) else np.zeros_like(values[0])


def _nearest(start: RealArray, width: RealArray) -> RealArray:
    """Return the distance from 0 of the nearest point of the interval, clipped to where it matters."""
    xp = namespace(start, width)
    return xp.clip(xp.maximum(start, -(start + width)), 0.0, _MAX_POSITION)


def _by_nodes(start: RealArray, width: RealArray, a: RealArray, lead: RealArray) -> RealArray:
    """Return the integral by Gauss-Legendre quadrature between the points at which the density becomes negligible."""
    xp = namespace(start, width, a, lead)
    reach = xp.sqrt(_nearest(*without_derivative((start, width))) ** 2 + 2 * _NEGLIGIBLE)
    first = xp.where(start < -reach, without_derivative(-reach - start), 0.0)
    # reach - start, without cancellation where reach^2 = start^2 + 80.
    to_reach = xp.where(start > 0, 2 * _NEGLIGIBLE / (reach + xp.maximum(start, 0.0)), reach - start)
    last = xp.where(start + width > reach, without_derivative(to_reach), width)
    width = last - first + 0 * (a + lead)
    nodes, weights = (cast_like(rule, width) for rule in (_PANEL_NODES, _PANEL_WEIGHTS))
    t = first[..., None] + width[..., None] * nodes
    gap = -xp.expm1(-(lead[..., None] + a[..., None] * t))
    return width * (_density(start[..., None] + t) * gap * weights).sum(-1)
