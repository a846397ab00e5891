"""The square wave mechanism: a uniform window at the input itself, for estimating the distribution of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpkernels import checks
from dpkernels.mechanisms.base import Local
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.windows import Uniform
from dpkernels.numerics import Real, elementary, floating, namespace
from dpkernels.pytrees import pytree

_HALF_WIDTHS = (1e-9, 1e6)  # Beyond, the window is numerically the whole output interval, or empty.


@pytree
@dataclass(frozen=True)
class SquareWave(Local):
    """The square wave mechanism: reports near the input are e^eps times as likely as others.

    For scaled inputs t in [0, 1], reports v are in [-b, 1 + b] with the density

        p(v | t) = e^eps q where |v - t| <= b, else q,    q = 1/(2 b e^eps + 1)

    The window has the mass S1 = 2 b (e^eps - 1) q and the base S2 = (1 + 2 b) q. The mean is S1 t + S2/2, so reports
    are biased towards the middle. Stretched about the middle by 1/S1, they are the reports of ``unbiased``, a type-I
    piecewise mechanism, which has the same information about the inputs and whose mean is the input.

    Source: Li, Wang, Lopuhaa-Zwakenberg, Skoric, Li, "Estimating Numerical Distributions under Local Differential
    Privacy" (SIGMOD 2020), section 5.

    Attributes:
        half_width: b in [1e-9, 1e6], half the window's width in widths of the input interval.
        lower, upper: smallest and largest valid input.
        epsilon: the pure-DP budget, in [0.01, 20]. Any two inputs are neighbours.
    """

    half_width: Any
    lower: Real
    upper: Real
    epsilon: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.within("half_width", self.half_width, *_HALF_WIDTHS)

    @property
    def output_interval(self) -> tuple[Real, Real]:
        beyond = self.half_width * self._range
        return self.lower - beyond, self.upper + beyond

    @property
    def _range(self) -> Real:
        return self.upper - self.lower

    @property
    def level(self) -> Any:
        """Return q, the density away from the input on the scale of [0, 1]."""
        return 1 / (2 * self.half_width * namespace(self.epsilon).exp(self.epsilon) + 1)

    @property
    def window_mass(self) -> Real:
        """Return S1."""
        return 2 * self.half_width * namespace(self.epsilon).expm1(self.epsilon) * self.level

    @property
    def base_mass(self) -> Real:
        """Return S2 = 1 - S1."""
        return (1 + 2 * self.half_width) * self.level

    @property
    def unbiased(self) -> Windowed:
        """Return the type-I piecewise mechanism whose reports are these, stretched about the middle by 1/S1."""
        width = 4 * self.half_width / (1 + 2 * self.half_width)
        height = namespace(self.epsilon).expm1(self.epsilon)
        return Windowed(Uniform(), Constant(), width, height, self.lower, self.upper, self.epsilon)

    def _scaled(self, value: Real) -> Any:
        return (floating(value) - self.lower) / self._range

    def pdf(self, y: Real, x: Any) -> Any:
        b, q, v, t = self.half_width, self.level, self._scaled(y), self._scaled(x)
        xp = namespace(v, t, q)
        high = q * xp.exp(self.epsilon)
        return xp.where((v < -b) | (v > 1 + b), 0.0, xp.where(xp.abs(v - t) <= b, high, q)) / self._range

    def cdf(self, y: Real, x: Real) -> Real:
        b, v, t = self.half_width, self._scaled(y), self._scaled(x)
        xp = namespace(v, t, b)
        base, window = xp.clip((v + b) / (1 + 2 * b), 0.0, 1.0), xp.clip((v - t + b) / (2 * b), 0.0, 1.0)
        return self.base_mass * base + self.window_mass * window

    def inverse_cdf(self, u: Any, above: Any, x: Any) -> Any:
        return self.middle + self.window_mass * (self.unbiased.inverse_cdf(u, above, x) - self.middle)

    def draw(self, u: Real, x: Real) -> Real:
        """Draw from the exact mixture: u < S1 gives a point of the window, any other u a point of the base."""
        b, S1, S2, t = self.half_width, self.window_mass, self.base_mass, self._scaled(x)
        xp = namespace(u, S1, t)
        in_window = t + b * (2 * xp.minimum(u / S1, 1.0) - 1)
        in_base = (1 + 2 * b) * xp.maximum(u - S1, 0.0) / S2 - b
        return self.lower + self._range * xp.where(u < S1, in_window, in_base)

    def mean(self, x: Any) -> Any:
        """Return lower + R (S1 t + S2/2)."""
        return self.lower + self._range * (self.window_mass * self._scaled(x) + self.base_mass / 2)

    def bias(self, x: Any) -> Any:
        """Return E(report | x) - x = R S2 (1/2 - t)."""
        return self._range * self.base_mass * (0.5 - self._scaled(x))

    def variance(self, x: Real) -> Real:
        """Return R^2 (S1 b^2/3 + S2 (1 + 2 b)^2/12 + S1 S2 (t - 1/2)^2), the variance about the biased mean."""
        b, S1, S2 = self.half_width, self.window_mass, self.base_mass
        spread = S1 * b**2 / 3 + S2 * (1 + 2 * b) ** 2 / 12
        return self._range**2 * (spread + S1 * S2 * (self._scaled(x) - 0.5) ** 2)

    @property
    def worst_variance(self) -> Real:
        """Return the variance at an end."""
        return self.variance(self.upper)

    def absolute_error(self, x: Real) -> Real:
        """Return E|report - x|: R (S1 b/2 + S2 ((t + b)^2 + (1 + b - t)^2) / (2 (1 + 2 b)))."""
        b, t = self.half_width, self._scaled(x)
        far = ((t + b) ** 2 + (1 + b - t) ** 2) / (2 * (1 + 2 * b))
        return self._range * (self.window_mass * b / 2 + self.base_mass * far)


def published_half_width(epsilon: Real) -> Any:
    """Return the b of most mutual information (Li 2020), (eps e^eps - e^eps + 1) / (2 e^eps (e^eps - 1 - eps))."""
    expm1 = elementary(epsilon).expm1
    return (expm1(-epsilon) + epsilon) / (2 * (expm1(epsilon) - epsilon))


def square_wave(*, epsilon: Real, lower: Real, upper: Real, half_width: Real | None = None) -> SquareWave:
    """Return the square wave mechanism (Li 2020), for estimating the distribution of the inputs.

    Its reports are biased towards the middle: ``estimate`` corrects for this, and ``estimate_mean`` refuses them.
    ``piecewise`` with the same window width has the same information about the distribution, and is unbiased.

    Args:
        epsilon: pure-DP budget, in [0.01, 20]. Any two inputs are neighbours (local DP). Above about 13 the published
            width is too narrow for an integer table, and ``exact_sampler`` raises an error.
        lower: smallest valid input, fixed before the data are seen.
        upper: largest valid input.
        half_width: b in [1e-9, 1e6], half the window's width in widths of the interval; by default the published one.

    Example:
        >>> m = square_wave(epsilon=1.0, lower=0.0, upper=100.0)
        >>> round(m.half_width, 4), [round(float(end), 1) for end in m.output_interval]
        (0.2561, [-25.6, 125.6])
    """
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    b = published_half_width(epsilon) if half_width is None else half_width
    checks.within("half_width", b, *_HALF_WIDTHS)
    return SquareWave(checks.number("half_width", b), lower, upper, epsilon)
