r"""Correlated noise for training without sampling: a banded Toeplitz strategy in integers, and the cost of a run.

Let x_t be the integer sum of step t and z_t the certified Gaussian integers of the step. A strategy has integers
``c_0 >= c_1 >= ... >= c_{p-1} >= 0``, the bands of the lower-triangular Toeplitz matrix C. The release of step t is

    w_t = x_t + e_t,    e_t = round((z_t - c_1 e_{t-1} - ... - c_{p-1} e_{t-p+1}) / c_0),

which is x + c_0 C^-1 z/c_0 up to rounding: later steps subtract a part of earlier noise, so that sums of releases have
less noise. All releases are a function of the integers y = C x + z, because

    w_t = round((y_t - c_1 w_{t-1} - ... - c_{p-1} w_{t-p+1}) / c_0),

and rounding a sum with an integer x_t is the same as adding it to the rounded rest. So the rounding costs nothing, and
the run costs what the one Gaussian release y costs: its sensitivity is that of C, for examples that are used at most k
times, and at least b steps apart. See docs/proofs/correlated_noise.md. No amplification by sampling is claimed.

**Not supported.** If the inverse of C is banded, C^-1 z needs only the noise of a few steps, which could be drawn again
from the keys. But C and C x then have fractions with growing denominators, while z consists of integers, so the
fractional part of C x would be disclosed. The proof page has an example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels import checks
from dpkernels.decimals import float_at_least
from dpkernels.exact.arithmetic import root_up
from dpkernels.numerics import RealArray
from dpkernels.proven import proven
from dpkernels.shapes import Int
from dpkernels.training.noise import MULTIPLIERS, PrivateNoise
from dpkernels.training.run import SLACK_FACTOR, TrainingRun, calibrated_run

if TYPE_CHECKING:
    import dp_accounting

_MAX_BANDS = 64


@dataclass(frozen=True)
class ToeplitzStrategy:
    """A lower-triangular Toeplitz matrix of integers that do not rise from band to band.

    Raises:
        ValueError: there are no bands or too many, or they rise, or one is negative or too large.
    """

    bands: tuple[int, ...]  #: c_0, c_1, ...

    def __post_init__(self) -> None:
        bands = tuple(self.bands)
        checks.integer_in("bands: their number", len(bands), 1, _MAX_BANDS)
        pairs = zip(bands, (1 << 16, *bands), strict=False)
        # As Python's integers, because squares and sums of NumPy's overflow.
        bands = tuple(checks.integer_in("bands: one", band, 0, bound) for band, bound in pairs)
        object.__setattr__(self, "bands", bands)
        checks.integer_in("bands: the first", self.bands[0], 1, 1 << 16)

    @classmethod
    def rounded(cls, coefficients: Sequence[float], unit: int = 16) -> ToeplitzStrategy:
        """Return the strategy of coefficients, divided by the first and rounded to multiples of 1/unit."""
        checks.positive("coefficients: the first", coefficients[0])
        return cls(tuple(round(unit * float(coefficient) / float(coefficients[0])) for coefficient in coefficients))

    @classmethod
    def square_root(cls, bands: int, unit: int = 16) -> ToeplitzStrategy:
        """Return the banded square root of the matrix of prefix sums (Kalinin & Lampert 2024), with rounded bands."""
        checks.integer_in("bands", bands, 1, _MAX_BANDS)
        return cls.rounded([math.comb(2 * k, k) / 4**k for k in range(bands)], unit)

    def matrix(self, steps: int) -> Int[np.ndarray, "{steps} {steps}"]:
        """Return C for a number of steps."""
        bands = (c * np.eye(steps, k=-k, dtype=np.int64) for k, c in enumerate(self.bands))
        return sum(bands, np.zeros((steps, steps), np.int64))

    @proven("correlated_noise#proof")
    def sensitivity(self, steps: int, separation: int, participations: int | None = None) -> float:
        """Return an upper bound of the l2 sensitivity of C for contributions of at most 1.

        Args:
            steps: the number of steps.
            separation: b, the least number of steps from one use of an example to the next one.
            participations: k, the largest number of uses of an example; by default as many as fit.
        """
        steps = checks.integer_in("steps", steps, 1, 1 << 24)
        separation = checks.integer_in("separation", separation, 1, 1 << 24)
        most = -(-steps // separation)
        if participations is not None:
            most = min(most, checks.integer_in("participations", participations, 1, 1 << 24))
        columns = [0] * steps
        for first in range(0, most * separation, separation):
            for k, c in enumerate(self.bands[: steps - first]):
                columns[first + k] += c
        return float_at_least(root_up(Fraction(sum(entry * entry for entry in columns))))

    @property
    def lags(self) -> int:
        """Return the number of steps whose noise a release takes off."""
        return len(self.bands) - 1

    @proven("correlated_noise#proof")
    def mixed(self, sums: RealArray, errors: tuple[RealArray, ...]) -> RealArray:
        """Return c_0 x_t - c_1 e_{t-1} - ..., from the sums of a step and the noise of the last ones: integers."""

        def mix(leaf: Array, *past: Array) -> Array:
            return self.bands[0] * leaf - sum(c * error for c, error in zip(self.bands[1:], past, strict=True))

        return jax.tree.map(mix, sums, *errors)

    @proven("correlated_noise#proof")
    def unmixed(self, values: RealArray) -> RealArray:
        """Return the values over c_0, rounded to integers, halves upwards; all of them are integers in float64."""
        first = self.bands[0]

        def divide(leaf: Array) -> Array:
            with jax.enable_x64(True):
                return ((2 * leaf.astype(jnp.int64) + first) // (2 * first)).astype(jnp.float64)

        return jax.tree.map(divide, values)

    def errors_bound(self, largest: int, steps: int) -> int:
        """Return a bound on |e_t| over the steps, for noise of at most ``largest``, from the first column of C^-1."""
        # Imported here, because it takes longer than a training step.
        from scipy.signal import lfilter

        inverse = lfilter([1.0], np.asarray(self.bands, float) / self.bands[0], np.eye(1, steps)[0])
        return math.ceil(1.01 * np.abs(inverse).sum() * (largest / self.bands[0] + 1))


@dataclass(frozen=True)
class CorrelatedRun:
    """A training run with correlated noise, without sampling; ``correlated_run`` makes it."""

    strategy: ToeplitzStrategy  #: the correlation of the noise
    steps: int  #: the number of steps
    separation: int  #: the least number of steps from one use of an example to the next one
    participations: int | None  #: the largest number of uses of an example; None: as many as fit
    run: TrainingRun  #: the run as one Gaussian release, with its slack

    def __post_init__(self) -> None:
        if (self.run.sampling_rate, self.run.steps) != (1.0, 1):
            raise ValueError(
                f"run: has {self.run.steps} steps of sampling rate {self.run.sampling_rate:g}; correlated noise is one "
                "Gaussian release of all data, because no amplification by sampling is proven for it"
            )

    @cached_property
    def noise_multiplier(self) -> float:
        """Return the noise multiplier of a step, for ``private_aggregate`` with the strategy."""
        sensitivity = self.strategy.sensitivity(self.steps, self.separation, self.participations)
        return max(math.nextafter(self.run.noise_multiplier * sensitivity, math.inf), MULTIPLIERS[0])

    def epsilon(self, delta: float) -> float:
        """Return an epsilon such that the run is (epsilon, delta)-DP."""
        return self.run.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Return a delta such that the run is (epsilon, delta)-DP."""
        return self.run.delta(epsilon)

    def to_dp_event(self, delta: float) -> dp_accounting.DpEvent:
        """Return the event of dp_accounting whose epsilon at this delta is at least that of the run."""
        return self.run.to_dp_event(delta)


@proven("correlated_noise#proof")
def correlated_run(
    strategy: ToeplitzStrategy,
    *,
    epsilon: float,
    delta: float,
    steps: int,
    separation: int,
    dimensions: int,
    participations: int | None = None,
    neighbours: str = "add_remove",
    slack: float = 0.0,
) -> CorrelatedRun:
    """Return the run of the least noise that meets a budget, accounted as one Gaussian release.

    Give ``run.noise_multiplier``, ``run.strategy`` and ``run.steps`` to ``private_aggregate``. Every example must be in
    the batches of at most ``participations`` steps, which are at least ``separation`` apart, and whether other examples
    are in a batch must not depend on it: as with one ``random_assignment`` for all epochs.

    Args:
        strategy: the correlation of the noise.
        epsilon: epsilon of the whole run, positive.
        delta: delta of the whole run, in (0, 1).
        steps: the number of steps.
        separation: the least number of steps from one use of an example to the next one.
        dimensions: the number of parameters.
        participations: the largest number of uses of an example, by default as many as fit.
        neighbours: "add_remove" for data sets with one example more or less, "replace" for another example.
        slack: the total variation distance of the whole run from batches as stated, such as that of their overflow.

    Raises:
        ValueError: an argument is out of range, or no noise multiplier meets the budget for so many parameters.
        TypeError: the strategy is not a ``ToeplitzStrategy``.
    """
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    if not isinstance(strategy, ToeplitzStrategy):
        raise TypeError(
            f"strategy: is a {type(strategy).__name__}; it must be a ToeplitzStrategy, such as "
            "ToeplitzStrategy.square_root(4) or ToeplitzStrategy.rounded(coefficients)"
        )
    candidate = TrainingRun(1.0, 1.0, 1, neighbours, slack)
    while True:
        candidate = calibrated_run(candidate, epsilon, delta)
        run = CorrelatedRun(strategy, steps, separation, participations, candidate)
        distance = steps * PrivateNoise.certified(1.0, run.noise_multiplier, dimensions).total_variation
        if slack + distance <= candidate.slack:
            return run
        candidate = replace(candidate, slack=slack + distance * SLACK_FACTOR)
