"""Noise with a density given by a table: constant between multiples of a width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import PiecewiseExponential
from dpkernels.numerics import Real, RealArray, cast_like, floating, namespace
from dpkernels.pytrees import pytree


@partial(pytree, static=("log_density", "fall"))
@dataclass(frozen=True)
class Tabulated(PiecewiseExponential):
    """An even distribution whose density is constant on cells of |z| between multiples of a width.

    The width w is in [1e-140, 1e140]. The log density of cell i, |z| in [i w, (i + 1) w), is ``log_density[i]`` up to a
    constant, and never rises. Beyond the last cell it falls without end, by ``fall``, which is positive, in each width.
    So the privacy loss is bounded, and noise of delta 0 is released without an end.
    ``accountants.tune.free_form`` finds tables of least variance. They are plain numbers, which JAX does not trace.
    """

    width: Real
    log_density: tuple[float, ...]
    fall: float
    lengths: ClassVar[tuple[str, ...]] = ("width",)

    def __post_init__(self) -> None:
        checks.width("width", self.width)
        table = np.asarray(self.log_density, np.float64)
        if table.ndim != 1 or not len(table) or not np.isfinite(table).all():
            raise ValueError(f"log_density: has shape {table.shape}; finite numbers are needed, one a cell")
        if (np.diff(table) > 0).any():
            raise ValueError("log_density: rises; it must not, away from 0")
        checks.positive("fall", self.fall)

    @property
    def roundings(self) -> float:  # type: ignore[override]
        """Return 32 and one for each cell, as tails are sums over cells."""
        return 32.0 + len(self.log_density)

    @property
    def cells(self) -> int:
        return len(self.log_density)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (log densities at width 1, tail probabilities at the multiples of the width)."""
        logs = np.asarray(self.log_density, np.float64)
        masses = np.append(np.exp(logs - logs[0]), np.exp(logs[-1] - logs[0]) / self.fall)
        tails = np.cumsum(masses[::-1])[::-1]
        total = 2 * tails[0]
        return logs - logs[0] - np.log(total), tails / total

    def _cell_position(self, z: Real) -> tuple[Real, Real]:
        """Return |z| in units of the width, and the number of its cell, that of the last one beyond it."""
        t = floating(z) / self.width
        t = namespace(t).abs(t)
        return t, namespace(t).clip(t, 0, self.cells - 1).astype(int)

    @property
    def geometric_tail(self) -> tuple[float, float | None]:
        return float(self.cells * self.width), None

    def log_prob(self, z: Real) -> Real:
        (t, cell), (logs, _) = self._cell_position(z), self._table
        xp = namespace(t, self.width)
        return cast_like(logs, t)[cell] - self.fall * xp.maximum(t - self.cells, 0.0) - xp.log(self.width)

    def score(self, z: Real) -> RealArray:
        t, _ = self._cell_position(z)
        xp = namespace(t)
        return xp.where(t >= self.cells, -xp.sign(floating(z)) * self.fall / self.width, 0.0)

    def tail(self, z: Real) -> Real:
        (t, cell), (logs, tails) = self._cell_position(z), self._table
        xp = namespace(t)
        cell_tail = cast_like(tails, t)[cell + 1] + xp.exp(cast_like(logs, t)[cell]) * (
            cell + 1 - xp.minimum(t, self.cells)
        )
        return xp.where(t < self.cells, cell_tail, tails[-1] * xp.exp(-self.fall * xp.maximum(t - self.cells, 0.0)))

    def lower_inverse(self, u: Real) -> Real:
        u, (logs, tails) = floating(u), self._table
        xp = namespace(u)
        is_lower = u < 0.5
        tail = xp.where(is_lower, u, 1 - u)
        cell = xp.clip(self.cells - xp.searchsorted(cast_like(tails[:0:-1], tail), tail), 0, self.cells - 1)
        cell_position = cell + 1 - (tail - cast_like(tails, tail)[cell + 1]) * xp.exp(-cast_like(logs, tail)[cell])
        is_positive = tail > 0
        # The mass beyond the last cell may be below the floats, and then no tail is.
        last_tail = max(tails[-1], np.finfo(np.float64).tiny)
        far_position = self.cells + xp.log(last_tail / xp.where(is_positive, tail, 1.0)) / self.fall
        t = xp.where(tail >= tails[-1], cell_position, xp.where(is_positive, far_position, xp.inf))
        return self.width * xp.where(is_lower, -t, t)

    @property
    def knots(self) -> RealArray:
        ends = np.arange(1.0, self.cells + 1)
        return np.concatenate([-ends[::-1], ends]) * self.width

    @property
    def mean(self) -> Real:
        return 0.0 * self.width

    @property
    def variance(self) -> Real:
        middles = np.arange(self.cells) + 0.5
        return self.width**2 * self._moment(middles**2 + 1 / 12, lambda s, m: 2 / s**2 + 2 * m / s + m**2)

    @property
    def absolute_moment(self) -> Real:
        return self.width * self._moment(np.arange(self.cells) + 0.5, lambda s, m: 1 / s + m)

    def _moment(self, cell_means: np.ndarray, outer_mean: Callable[[float, int], float]) -> float:
        """Return the mean of a function of |z|, from its means in the cells, and its mean beyond them."""
        logs, tails = self._table
        return float(2 * (np.exp(logs) * cell_means).sum() + 2 * tails[-1] * outer_mean(self.fall, self.cells))
