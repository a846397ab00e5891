"""The dominating pair of additive noise: a distribution, and the same distribution shifted by the sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.dominating_pairs.noise.exponential import ExponentialFormulas
from accountants.dominating_pairs.noise.formulas import NoiseFormulas
from accountants.dominating_pairs.noise.gaussian import GaussianFormulas
from accountants.dominating_pairs.noise.staircase import StepFormulas
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.staircase import Staircase
from dpkernels.numerics import Real, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree

_TRACED_PERIODS = 256  # Periods of a traced staircase, on either side, whose steps a pair keeps.
_MAX_PERIODS = 1 << 16  # The most periods of other staircases.
_FORMULAS: dict[str, type[NoiseFormulas]] = {
    "exponential": ExponentialFormulas,
    "gaussian": GaussianFormulas,
    "constant": StepFormulas,
    "general": NoiseFormulas,
}


@proven("worst_pairs#1-additive-noise")
@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class AdditivePair(DominatingPair):
    """p = f, q = f(. - 1) or f(. + 1): additive noise under two inputs one unit apart; made by ``additive_pair``.

    ``periods`` is how many periods of a staircase on either side are kept step by step; others follow geometrically.
    """

    noise: Distribution
    shift: Real
    periods: int = _TRACED_PERIODS

    is_shift: ClassVar[bool] = True
    units_of_log: ClassVar[int] = 280
    ends_at_no_loss: ClassVar[bool] = False  # Whether pieces of even noise end where its loss changes its sign.

    @property
    def formulas(self) -> NoiseFormulas:
        return _FORMULAS[self.noise.unweighted.density_form](self.noise, self.shift, self.periods, self.ends_at_no_loss)

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        """Return whether the noise is Gaussian, possibly truncated or recycled."""
        return self.formulas.rounds_up

    def hockey_stick(self) -> Curve:
        return self.formulas.hockey_stick()

    def nearest_curve(self) -> Curve:
        return self.formulas.hockey_stick(-1)

    def largest_loss(self) -> Real:
        return self.formulas.largest_loss()

    def privacy_loss(self) -> PrivacyLossDistribution:
        return self.formulas.privacy_loss()

    def mirror(self) -> AdditivePair:
        return AdditivePair(self.noise, -self.shift, self.periods)

    def symmetry_gap(self) -> Real:
        return 0.0 if self.noise.is_even else np.inf

    def with_noise_scaled(self, factor: Real) -> AdditivePair:
        return additive_pair(self.noise, self.shift / factor)

    def check(self) -> None:
        if self.shift not in (1, -1):
            raise ValueError(f"shift: {self.shift}; noise is in units of it, so it is 1 or -1")


@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class HalvedPair(AdditivePair):
    """The pair of even noise whose pieces have losses of one sign."""

    ends_at_no_loss: ClassVar[bool] = True


def additive_pair(noise: Distribution, shift: Real) -> AdditivePair:
    """Return the pair of noise and its shift, of any unit, with the number of staircase periods that it needs."""
    xp = namespace(shift)
    noise = noise if len(noise.edges) else noise.unweighted
    noise, shift = noise.rescale(1.0, xp.abs(shift)), xp.where(shift < 0, -1.0, 1.0)[()]
    return AdditivePair(noise, shift, _periods(noise))


def _periods(noise: Distribution) -> int:
    """Return how many periods of a staircase matter: those within the shift or an edge that are not negligible."""
    steps = noise.unweighted
    if not isinstance(steps, Staircase):
        return _TRACED_PERIODS
    numbers = [checks.concrete(number) for number in (steps.epsilon, steps.period, *noise.edges)]
    if any(number is None for number in numbers):
        return _TRACED_PERIODS
    epsilon, period, *edges = (float(np.max(np.abs(number))) for number in numbers)  # type: ignore[arg-type]
    reach = min(max([0.0, *edges]) / period, 120 / epsilon)
    count = 4 + 2 * math.ceil(1 / period) + math.ceil(reach)
    if count > _MAX_PERIODS:
        raise ValueError(f"sensitivity: is {1 / period:g} periods of the staircase; at most 30000 are accounted")
    return 1 << max(4, count - 1).bit_length()
