"""``adaptive``'s upper bound in JAX, differentiable in eps0 and eps.

The recursion is that of tables of chords, on the grid x = i h, h = eps0/cells, which moves with eps0. By the envelope
theorem the derivative of a supremum is that of what is below it, at the best t held fixed: that t is searched without
derivatives, and the value there is evaluated with them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpkernels.numerics import Real, RealArray, floating


@partial(jax.jit, static_argnames=("order", "cells"))
def upper_delta(order: tuple[str, ...], epsilon0: Any, epsilon: Any, cells: int) -> Any:
    """delta at eps of mechanisms run in this order, from above but for rounding; see ``adaptive.adaptive_delta``."""
    eps0, eps = floating(jnp.asarray(epsilon0)), floating(jnp.asarray(epsilon))
    table, count = _known(eps0, cells, 0), 0
    for kind in reversed(order):
        count += 1
        known = _known(eps0, cells, count)
        rest = _between(known, table, cells)
        step = _response if kind == "DP" else _bounded_range
        table = _between(known, jnp.clip(step(eps0, rest, cells), known[cells:-cells], 1.0), cells)
    return _read(eps0, eps, table, cells, count)


def _known(eps0: Real, cells: int, count: int) -> Any:
    """[1 - e^x]_+ at the nodes of a table of so many mechanisms."""
    size = (count + 1) * cells
    x = jnp.arange(-size, size + 1) * (eps0 / cells)
    return -jnp.expm1(jnp.where(x < 0, x, 0.0))


def _between(known: Any, values: RealArray, cells: int) -> RealArray:
    return jnp.concatenate([known[:cells], values, known[-cells:]])


def _response(eps0: Real, values: RealArray, cells: int) -> Real:
    a = 1 / (1 + jnp.exp(-eps0))
    return a * values[: -2 * cells] + (1 - a) * values[2 * cells :]


def _bounded_range(eps0: Real, values: RealArray, cells: int) -> Real:
    """The supremum over all t, cell by cell: the best cell of every node first, then its value."""
    inside = len(values) - 2 * cells
    still = jax.lax.stop_gradient((eps0, values))

    def better(j: Real, best: tuple[Any, Any]) -> tuple[Real, Real]:
        value = _in_cell(*still, jnp.arange(inside), j, cells)
        return jnp.maximum(best[0], value), jnp.where(value > best[0], j, best[1])

    start = jnp.full(inside, -jnp.inf, values.dtype), jnp.zeros(inside, int)
    chosen = jax.lax.fori_loop(0, cells, better, start)[1]
    return _in_cell(eps0, values, jnp.arange(inside), chosen, cells)


def _in_cell(eps0: Any, values: Any, node: Any, j: Any, cells: int) -> Any:
    """The supremum over t in cell j, in closed form: ``adaptive._on_chords``, whose letters these are."""
    h, E, N = eps0 / cells, jnp.exp(-eps0), cells
    near, far = node + N - j - 1, node + 2 * N - j - 1

    def chord(at: Any) -> tuple[Any, Any]:
        S = (values[at + 1] - values[at]) / -jnp.expm1(-h)
        return values[at + 1] - S, S

    (A, S), (A1, S1) = chord(near), chord(far)
    K = jnp.exp((j - N) * h)
    fall, rise = K * jnp.maximum(A - A1, 0.0), jnp.maximum(E * S1 - S, 0.0)
    best = jax.lax.stop_gradient(jnp.sqrt(rise / jnp.maximum(fall, jnp.finfo(fall.dtype).tiny)))
    v = jnp.clip(best, 1.0, jnp.exp(h))
    return (A - E * A1 - K * (S - S1) - v * fall - rise / v) / -jnp.expm1(-eps0)


def _read(eps0: Real, eps: Real, table: Any, cells: int, count: int) -> Real:
    """On the chord between two nodes; 0 beyond all losses."""
    h, size = eps0 / cells, (count + 1) * cells
    i = jnp.clip(jnp.floor(jax.lax.stop_gradient(eps / h)).astype(int), 0, size - 2)
    y = jnp.expm1(jnp.minimum(eps, count * eps0) - i * h) / jnp.expm1(h)
    value = table[size + i] + y * (table[size + i + 1] - table[size + i])
    return jnp.where(eps >= count * eps0, 0.0, value)
