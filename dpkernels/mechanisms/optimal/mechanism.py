"""The bounded, unbiased mechanism of least variance, as a table of probabilities from a linear program."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.batches import each_entry
from dpkernels.jax_on_use import Array, jnp, lax
from dpkernels.mechanisms.base import Bounded, Sampler
from dpkernels.numerics import Real, RealArray, floating, namespace, unless_nan
from dpkernels.pytrees import pytree
from dpkernels.shapes import Float, Int

_GRID_TOLERANCE = 1e-6  # For reports of an exact sampler, as a fraction of the spacing.
FILES: dict[bytes, Path] = {}  # The files that tables were read from, by the digests of their probabilities.


def digest(probabilities: Real) -> bytes:
    """Return the key of a table in ``FILES``."""
    return hashlib.sha256(np.asarray(probabilities, np.float64).tobytes()).digest()


@partial(pytree, static=("places",))
@dataclass(frozen=True)
class Optimal(Bounded):
    """A mechanism given by a table of probabilities: row i of n for the input x_i, column j for the report y_j.

        x_i = middle + reach (2 i/(n - 1) - 1),    y_j = middle + spacing places_j,    sum_j p_ij y_j = x_i.

    An input between two rows is rounded to one of them at random such that its mean is kept. At the fraction f between
    rows i and i + 1, the report y_j has the probability (1 - f) p_ij + f p_(i+1)j. This adds f (1 - f)
    (x_(i+1) - x_i)^2 to the variance.

    Privacy: one report is pure epsilon-DP.

    - Without a sensitivity any two inputs are neighbours. The ratio of any two rows is at most e^epsilon, and so is the
      ratio of their mixtures.
    - With sensitivity D, inputs at most D apart are neighbours. Rows at most k = ceil(D/h) apart, with the row distance
      h = x_(i+1) - x_i, have ratios of at most e^epsilon. Rounding with a shared uniform number u,
      floor((x - x_0)/h + u), maps neighbours to rows at most k apart for every u, and a mixture over u keeps the ratio.

    The guarantee does not cover the float sampler; it covers the integers of ``exact_sampler``.

    Attributes:
        probabilities: p, of shape (n, m), n odd; all positive.
        places: m increasing integers.
        reach: the distance of the outermost rows' inputs from the middle, in data units; at least half the interval.
        spacing: data units between neighbouring places.
        epsilon: the pure-DP budget, in [0.01, 20].
        sensitivity: D, or None.
    """

    leaf_axes: ClassVar[Mapping[str, int]] = {"probabilities": 2}

    probabilities: Float[RealArray, "*batch rows outcomes"]
    places: tuple[int, ...]
    reach: Real
    spacing: Any
    lower: Real
    upper: Real
    epsilon: Any
    sensitivity: Real | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("reach", self.reach)
        checks.positive("spacing", self.spacing)
        if self.sensitivity is not None:
            checks.sensitivity(self.sensitivity)
        shape = np.shape(self.probabilities)
        if len(shape) < 2 or shape[-2] < 3 or shape[-2] % 2 == 0 or shape[-1] != len(self.places):
            raise ValueError(f"probabilities: have shape {shape}; an odd number of rows, {len(self.places)} columns")
        probabilities = checks.concrete(self.probabilities)
        if probabilities is not None and not np.all(probabilities > 0):
            raise ValueError("probabilities: must be positive; what is possible for one input is so for every other")

    def on_unit(self) -> Optimal:
        half_width, D = (self.upper - self.lower) / 2, self.sensitivity
        lengths = {"reach": self.reach / half_width, "spacing": self.spacing / half_width}
        unit_sensitivity = None if D is None else D / half_width
        return dataclasses.replace(self, lower=-1.0, upper=1.0, sensitivity=unit_sensitivity, **lengths)

    @property
    def rows(self) -> int:
        """Return n, the number of inputs with a row of their own."""
        return len(self.probabilities)

    @property
    def outputs(self) -> Float[RealArray, " outcomes"]:
        """Return y_j - middle."""
        return self.spacing * namespace(self.spacing).asarray(np.array(self.places, np.float64))

    @property
    def step(self) -> Real:
        """Return x_(i+1) - x_i."""
        return 2 * self.reach / (self.rows - 1)

    @property
    def cells(self) -> int:
        """Return k, the largest distance in rows of neighbouring inputs; n - 1 if any two inputs are neighbours."""
        if self.sensitivity is None:
            return self.rows - 1
        return min(self.rows - 1, math.ceil(float(self.sensitivity) / float(self.step) * (1 - 1e-9)))

    @property
    def output_interval(self) -> tuple[Real, Real]:
        return self.middle + self.spacing * self.places[0], self.middle + self.spacing * self.places[-1]

    def _row(self, x: Real) -> tuple[RealArray, RealArray]:
        """Return the row below an input, and the fraction of the way to the next."""
        xp = namespace(x, self.reach)
        position = (floating(x) - self.middle + self.reach) / self.step
        row = xp.clip(xp.floor(xp.fmax(position, 0.0)), 0, self.rows - 2).astype(int)
        return row, xp.clip(position - row, 0.0, 1.0)

    def _between(self, table: RealArray, x: Real, column: RealArray | int) -> RealArray:
        """Return a column of a table with n rows, at the input."""
        row, fraction = self._row(x)
        table = namespace(row, table).asarray(table)
        return (1 - fraction) * table[row, column] + fraction * table[row + 1, column]

    def _sums(self, values: Real) -> RealArray:
        """Return sums of the probabilities times values over the first 0..m columns."""
        xp = namespace(self.probabilities, values)
        sums = xp.cumsum(self.probabilities * values, axis=1)
        return xp.concatenate([xp.zeros_like(sums[:, :1]), sums], axis=1)

    def _columns_below(self, offset: Real) -> RealArray:
        """Return the number of columns whose report is at most middle + offset."""
        xp = namespace(offset, self.outputs)
        return xp.searchsorted(xp.asarray(self.outputs), offset, side="right")

    def pdf(self, y: Real, x: Real) -> RealArray:
        """Return 0: every report has positive probability."""
        return namespace(y, x).zeros_like(floating(y) + floating(x))

    @each_entry
    def cdf(self, y: Real, x: Real) -> Real:
        """Return the sum over y_j <= y of (1 - f) p_ij + f p_(i+1)j."""
        y, x = namespace(y, x).broadcast_arrays(floating(y), floating(x))
        column = self._columns_below(y - self.middle + self._tolerance(y))
        return unless_nan(self._between(self._sums(1.0), x, column), y)

    def _tolerance(self, y: Any) -> Real:
        """Return how far a report may be from an output: by rounding, and on the grid of an exact sampler."""
        xp = namespace(y, self.spacing)
        rounding = 8 * np.finfo(y.dtype).eps * (abs(y) + abs(self.middle))
        return xp.clip(rounding, _GRID_TOLERANCE * self.spacing, self.spacing / 4)

    @each_entry
    def mass(self, y: Real, x: Real) -> Real:
        """Return (1 - f) p_ij + f p_(i+1)j at the report y_j."""
        y, x = namespace(y, x).broadcast_arrays(floating(y), floating(x))
        allowance = self._tolerance(y)
        column = self._columns_below(y - self.middle + allowance) - 1
        xp = namespace(column, x, self.probabilities)
        report = xp.asarray(self.outputs)[xp.maximum(column, 0)]
        p = self._between(self.probabilities, x, xp.maximum(column, 0))
        return unless_nan(xp.where(abs(y - self.middle - report) <= allowance, p, 0.0), y, x)

    @each_entry
    def _solve_cdf(self, u: RealArray, upper_tail: Real, x: Real) -> Real:
        """Return the first report whose cdf reaches u, by bisection of the columns."""
        sums, m = self._sums(1.0), len(self.places)
        xp = namespace(u, x, sums)
        column = xp.zeros(xp.broadcast_shapes(xp.shape(u), xp.shape(x)), int)
        for power in reversed(range((m - 1).bit_length())):
            candidate = column + (1 << power)
            is_below = self._between(sums, x, xp.minimum(candidate, m)) < u
            column = xp.where(is_below & (candidate < m), candidate, column)
        return self.middle + xp.asarray(self.outputs)[column]

    @cached_property
    def alias_columns(self) -> tuple[Float[np.ndarray, "rows columns"], Int[np.ndarray, "rows columns"]]:
        """Return Walker's columns of every row: the probability of a column's own report, and its alias."""
        rows = map(_alias_columns, np.asarray(self.probabilities, np.float64).tolist())
        threshold, alias = zip(*rows, strict=True)
        return np.array(threshold), np.array(alias)

    def sampler(self) -> Sampler:
        is_single = checks.concrete(self.probabilities) is not None and not self.batch_shape
        return _Tabulated(self, *self.alias_columns) if is_single else self

    @property
    def _second_moments(self) -> Float[RealArray, "rows 1"]:
        """Return sum_j p_ij (y_j - middle)^2 of every row, of shape (n, 1)."""
        return (self.probabilities * self.outputs**2).sum(1)[:, None]

    @each_entry
    def variance(self, x: Real) -> Real:
        """Return sum_j p_j(x) (y_j - x)^2, with the rounding between rows."""
        return self._between(self._second_moments, x, 0) - (floating(x) - self.middle) ** 2

    @each_entry
    def worst_excess(self, rate: Real) -> Real:
        """Return the maximum over the cells between rows, in each of which the function is a parabola."""
        xp, half_width = namespace(self.reach, self.upper), (self.upper - self.lower) / 2
        second_moments, inputs = rate * self._second_moments[:, 0], self.reach * np.linspace(-1, 1, self.rows)
        slope = xp.diff(second_moments) / self.step
        peak = xp.clip(xp.clip(slope / 2, inputs[:-1], inputs[1:]), -half_width, half_width)
        return (second_moments[:-1] + slope * (peak - inputs[:-1]) - peak**2).max()

    @each_entry
    def absolute_error(self, x: Real) -> Real:
        """Return 2 sum over y_j <= x of p_j(x) (x - y_j), since the report is unbiased."""
        offset = floating(x) - self.middle
        column = self._columns_below(offset)
        probability, moment = (self._between(self._sums(values), x, column) for values in (1.0, self.outputs))
        return 2 * (offset * probability - moment)

    @each_entry
    def atoms(self, x: Real) -> tuple[RealArray, RealArray]:
        row, fraction = self._row(x)
        xp = namespace(row, self.probabilities)
        columns = xp.asarray(self.probabilities).T
        p = (1 - fraction) * columns[:, row] + fraction * columns[:, row + 1]
        reports = (self.middle + xp.asarray(self.outputs)).reshape((-1, *[1] * (p.ndim - 1)))
        return reports + 0 * p, p


@pytree
@dataclass(frozen=True, eq=False)
class _Tabulated:
    """A sampler of an optimal mechanism by Walker's alias method; each column of a row has mass 1/m and two reports."""

    mechanism: Optimal
    threshold: Float[RealArray, "rows outcomes"]  # The probability of every column's own report, of shape (n, m).
    other: Int[RealArray, "rows outcomes"]  # The index of the other report.

    input_interval = property(attrgetter("mechanism.input_interval"))
    pdf = property(attrgetter("mechanism.pdf"))
    cdf = property(attrgetter("mechanism.cdf"))
    atoms = property(attrgetter("mechanism.atoms"))

    def draw(self, u: Array, x: Array) -> RealArray:
        """Pick a row by the fraction, then a column, then one of its two reports, with one uniform number."""
        row, fraction = self.mechanism._row(x)
        outputs, m = jnp.asarray(self.mechanism.outputs), len(self.mechanism.places)
        is_upper = u < fraction
        in_upper = u / jnp.where(is_upper, fraction, 1.0)
        scaled = m * jnp.where(is_upper, in_upper, (u - fraction) / jnp.where(is_upper, 1.0, 1 - fraction))
        column = jnp.clip(scaled.astype(jnp.int32), 0, m - 1)
        entry = (row.astype(jnp.int32) + is_upper) * m + column
        thresholds, aliases = jnp.asarray(self.threshold).ravel(), outputs[self.other].ravel()

        def pairs(entry: Array) -> tuple[Array, Array]:
            pair = _take(jnp.stack([thresholds, aliases], -1), entry)
            return pair[..., 0], pair[..., 1]

        # One look-up of pairs is faster on GPUs, two look-ups are elsewhere.
        threshold, alias_output = lax.platform_dependent(
            entry, cuda=pairs, default=lambda entry: (_take(thresholds, entry), _take(aliases, entry))
        )
        return self.mechanism.middle + jnp.where(scaled - column < threshold, _take(outputs, column), alias_output)


def _take(table: Array, index: Array) -> Array:
    return table.at[index].get(mode="promise_in_bounds")


def _alias_columns(p: list[float]) -> tuple[list[float], list[int]]:
    """Return alias columns by Vose's construction: a light column is filled up from a heavy one."""
    m = len(p)
    mass, alias = [m * value for value in p], list(range(m))
    threshold = [1.0] * m
    light, heavy = ([c for c in range(m) if (mass[c] < 1) is less] for less in (True, False))
    while light and heavy:
        light_column, heavy_column = light.pop(), heavy[-1]
        threshold[light_column], alias[light_column] = mass[light_column], heavy_column
        mass[heavy_column] -= 1 - mass[light_column]
        if mass[heavy_column] < 1:
            light.append(heavy.pop())
    return threshold, alias
