"""The dominating pairs of mechanisms given row by row, and of exact forms, from the integers that a release samples.

A table's profile is the largest hockey stick over all neighbouring rows, in either direction, a convex function of
e^eps. Its interpolation between some values of e^eps, the dots, is never below it, and is itself the profile of one
pair (docs/proofs/worst_pairs.md). This pair is what composes, since every report may be for other rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.tables import Atoms, pure_points
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.rows.sampler import ExactRows
from dpkernels.exact.windows.sampler import ExactWindow
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.optimal.grid import largest_ratio
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.numerics import Real, RealArray, namespace

# Dots evenly spaced in eps, beside those at the losses of the table's rows; fewer for large tables.
_DOTS, _LARGE = 256, 1 << 22
# Losses closer together than this share a dot.
_SAME = 1e-5
# What a profile of masses of 1 in all is raised by: more than rounding makes it too small.
_ROUNDING = 8 * 2.0**-53
# Dots are left out where the profile is this near to the straight line without them, which is never below.
_STRAIGHT = 1e-13


def optimal_pair(mechanism: Optimal) -> Atoms:
    """One pair of which the profile is the table's, at eps 0, its own eps and the dots between; above it, if barely.

    Neighbours are those of the mechanism, of its own sensitivity.
    """
    return _traced(mechanism) if namespace(mechanism.probabilities) is jnp else _of_mechanism(mechanism)


def _traced(mechanism: Optimal) -> Atoms:
    """``optimal_pair`` of a table of JAX arrays, from dots evenly spaced in eps alone: differentiable."""
    p, cells = mechanism.probabilities, mechanism.cells
    ratio = jnp.stack([jnp.maximum(p[s:] / p[:-s], p[:-s] / p[s:]).max() for s in range(1, cells + 1)]).max()
    t = jnp.exp(jnp.log(ratio) * jnp.linspace(0.0, 1.0, _DOTS, dtype=p.dtype))

    def largest(at: Any) -> Any:
        pairs = [pair for s in range(1, cells + 1) for pair in ((p[s:], p[:-s]), (p[:-s], p[s:]))]
        return jnp.stack([jnp.maximum(x - at * y, 0.0).sum(1).max() for x, y in pairs]).max()

    f = jnp.append(jax.lax.map(largest, t[:-1]), 0.0)
    return replace(of_dots(t, f), near=mechanism.sensitivity is not None)


@lru_cache(maxsize=32)
def _of_mechanism(mechanism: Optimal) -> Atoms:
    near = mechanism.sensitivity is not None
    return replace(dominating_pair(np.asarray(mechanism.probabilities, float), mechanism.cells), near=near)


@lru_cache(maxsize=32)
def rows_pair(form: ExactRows) -> Atoms:
    """``optimal_pair`` of the integers that a release samples."""
    table, near = form.table, form.certificate.sensitivity is not None
    return replace(dominating_pair(table.weights / float(1 << table.bits), form.certificate.cells), near=near)


def central_pair(mechanism: CentralPiecewise) -> Atoms:
    """The density and itself a sensitivity further on: it falls from its middle, so the largest shift is the worst.

    On the scale v of the mechanism inputs are c <= 2 apart, and a step is as wide as c or wider. On one side of the
    point half-way the loss is eps on the outer c of every step of heights q E^l, 1 <= l < s, and on as much of the
    highest step as the other density's does not cover; it is -eps on their mirror images, and else 0.
    """
    xp = namespace(*jax.tree.leaves(mechanism))
    E, steps = xp.exp(-mechanism.epsilon), mechanism.steps
    c = xp.minimum(2 * mechanism.sensitivity / (mechanism.upper - mechanism.lower), 2.0)
    level = mechanism.masses[0][0] / (2 * mechanism.core * (1 - E))
    high = level * (xp.minimum(2 * mechanism.core, c) + c * (E ** np.arange(1, steps)).sum())
    p = xp.stack([high, xp.maximum(1 - high - high * E, 0.0), high * E])
    return Atoms(p, p[::-1], near=True)


def dominating_pair(p: np.ndarray, cells: int) -> Atoms:
    """A pair, its own mirror, whose profile is the largest hockey stick of rows at most ``cells`` apart, or above.

    With f the interpolated profile in t = e^eps, the loss ln t_i has the mass q_i = f'(t_i+) - f'(t_i-) under q and
    t_i q_i under p, the loss -ln t_i the reverse, and loss 0 the rest.
    """
    t = np.exp(_dots(p, cells))
    f = np.append([_largest(p, cells, at) + _ROUNDING for at in t[:-1]], 0.0)
    kept = _corners(t, f)
    return of_dots(t[kept], f[kept])


def of_dots(t: RealArray, f: Real) -> Atoms:
    """The pair, its own mirror, whose profile is f at e^eps = t, and straight between; see ``dominating_pair``."""
    xp = namespace(t, f)
    slopes = xp.append(xp.diff(f) / xp.diff(t), 0.0)
    q = xp.maximum(xp.diff(slopes), 0.0)
    high = t[1:] * q
    rest = xp.maximum(1 - q.sum() - high.sum(), 0.0)[None]
    return Atoms(xp.concatenate([q[::-1], rest, high]), xp.concatenate([high[::-1], rest, q]))


def _dots(p: np.ndarray, cells: int) -> np.ndarray:
    """Values of eps from 0 to the largest loss: evenly spaced ones, and the losses of the rows furthest apart."""
    level = math.log(largest_ratio(p, cells))
    count = _DOTS if p.size * cells < _LARGE else _DOTS // 4
    losses = np.abs(np.log(p[cells:] / p[:-cells])).ravel()
    losses = np.unique(np.round(losses[losses < level], 9))
    dots = np.unique(np.concatenate([np.linspace(0, level, count), losses]))
    apart = np.flatnonzero(np.diff(dots, prepend=-1.0) > max(_SAME, 1e-3 * level if len(losses) > 4 * count else 0.0))
    dots = dots[apart]
    return np.append(dots[dots < level - _SAME], level)


def _corners(t: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The fewest dots, or nearly, between which a convex f is straight to rounding; the first and the last are."""
    kept = np.array([0, len(t) - 1])
    while (above := np.interp(t, t[kept], f[kept]) - f).max() > _STRAIGHT:
        kept = np.sort(np.append(kept, above.argmax()))
    return kept


def _largest(p: np.ndarray, cells: int, t: float) -> float:
    """max over rows i, i' at most ``cells`` apart of sum_j max(0, p_ij - t p_i'j)."""
    best = 0.0
    for shift in range(1, cells + 1):
        a, b = p[shift:], p[:-shift]
        best = max(best, *(np.maximum(x - t * y, 0.0).sum(axis=1).max() for x, y in ((a, b), (b, a))))
    return float(best)


def exact_noise_pairs(form: ExactNoise, sensitivity: Any = None) -> tuple[Atoms, ...]:
    """The table and the table as many cells further on as neighbours can be apart, both ways.

    Raises:
        ValueError: noise on vectors, of which only the certificate's (epsilon, delta) is known; or another sensitivity
            than the certificate's.
    """
    certificate = form.certificate
    if not isinstance(certificate, NoiseCertificate):
        raise ValueError("mechanism: of noise on vectors only the certificate's epsilon and delta are known")
    if sensitivity is not None and sensitivity > certificate.sensitivity:
        raise ValueError(f"sensitivity: {sensitivity:g} is above the {certificate.sensitivity:g} certified")
    if not certificate.table.is_unimodal:
        raise ValueError("mechanism: its weights are not unimodal, so its worst shift is not known")
    weights = np.array([float(weight) for weight in certificate.table.outcomes]) / certificate.table.total
    none = np.zeros(certificate.shift)
    near, far = np.concatenate([weights, none]), np.concatenate([none, weights])
    even = bool((weights == weights[::-1]).all())
    return (Atoms(near, far, certificate.shift),) if even else (Atoms(near, far), Atoms(far, near))


def window_pair(form: ExactWindow) -> Atoms:
    """The first and the last row, where window and base fall from their middles; else two points at the pure level."""
    table = form.table
    if not table.falls:
        return pure_points(form.certificate.realised_epsilon)
    first, last = (table.row(s).astype(np.float64) / table.total for s in (0, table.shifts))
    return Atoms(first, last)
