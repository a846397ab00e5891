"""The privacy of one person among n shuffled reports of one local mechanism, as a value like a guarantee.

Neighbours differ in the input of one person, which is replaced by any other input. Everybody sends one report of the
same mechanism. The shuffler is trusted: it hides the senders of all reports and all metadata, such as times. n counts
honest reports, including that of the person. The curator knows the reports of colluding people, so these reports hide
no other: with c colluding senders among n, only n - c reports count. Without the shuffler, a report has the eps0-DP of
its mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.composition.repeated import RepeatedReleases
from accountants.composition.trade_off import CurvePoint, curve_point, points_around_tangent
from accountants.dominating_pairs.discrete import Atoms, pair_of_profile
from accountants.dominating_pairs.registry import bounded_pair
from accountants.guarantee import ASK_FOR_AN_ESTIMATE, ComposableGuarantee, Guarantee, only_argument
from accountants.precision import in_64_bits
from accountants.shuffle import bracket
from accountants.shuffle.blanket import Blanket, WorstInputs, worst_inputs
from accountants.shuffle.estimate import ShuffleEstimate, integral_epsilon, integral_log_delta
from dpkernels import checks
from dpkernels.numerics import Real, elementwise_maximum, float_if_scalar, namespace
from dpkernels.proven import proven

NEIGHBOURING = (
    "one person's input replaced by any other; the shuffler is trusted to hide who sent which report; n counts the "
    "honest reports, including that person's own; the report of a person who colludes with the curator does not count"
)
MAX_REPORTS = 1 << 50  # The most reports.
_LOWER_PAIRS = 2  # The number of pairs for which a lower bound is computed.
# The points of a pair's profile are at evenly spaced eps, and at others from there to eps0.
_LAST_DELTA = 1e-18  # The delta at the last of the evenly spaced eps.
_EVEN_POINTS = 160  # The number of evenly spaced eps.
_LAST_POINTS = 16  # The number of eps from there to eps0.
_VALUE_MARGIN = 2e-5  # The share by which estimated deltas at the points are raised.


@proven("shuffle#proof")
@dataclass(frozen=True, eq=False)
class Shuffled(ComposableGuarantee):
    """The guarantee of n honest shuffled reports, with the worst inputs and their blanket; made by ``shuffled``."""

    inputs: WorstInputs
    n: Any

    @property
    def neighbouring(self) -> str:
        """Describe which inputs are neighbours, who is trusted, and which reports count."""
        return NEIGHBOURING

    def delta(self, epsilon: Real) -> Real:
        """Return a delta at eps >= 0 that the blanket proves, whatever the inputs of the others.

        Of plain numbers it is the upper end of ``bracket``, of the integers that a release samples. Of JAX numbers it
        is ``estimate_delta``.

        Returns:
            A float for a number, otherwise a NumPy float64 array; a JAX array for JAX arguments.

        Raises:
            ValueError: epsilon is out of range; the mechanism's probabilities are not exact; or JAX values have 32
                bits.
        """
        if self._is_traced(epsilon):
            return self.estimate_delta(epsilon)
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return self._upper_ends(self._upper_delta, epsilon)

    def epsilon(self, delta: Real) -> Real:
        """Return an eps >= 0 at delta that the blanket proves: of plain numbers, the upper end of ``bracket``.

        Raises:
            ValueError: delta is not in (0, 1), or a case of ``delta``.
        """
        if self._is_traced(delta):
            return self.estimate_epsilon(delta)
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        return self._upper_ends(self._upper_epsilon, delta)

    def _upper_ends(self, bound: Callable[[float], float], value: Real) -> Real:
        self._check_proven()
        return _map_floats(bound, value)

    @in_64_bits
    def estimate_delta(self, epsilon: Real) -> Any:
        """Return an estimate of the least delta at eps >= 0 that the blanket proves, whatever the inputs of the others.

        | case | method | relative error of delta |
        |---|---|---|
        | three outcomes, such as randomised response; up to about 10,000 reports | enumeration | rounding |
        | few reports of more outcomes | grid, from above | 1e-4 |
        | all others | integral | 1e-6, mostly 1e-9; 1e-5 at eps = 0 |

        The worst pair of inputs is proven (see ``blanket``), except for tables row by row and windows that overlap. For
        integers and tables of that kind the result is the upper end of the bracket, over all pairs. For float
        mechanisms and JAX values of that kind it is that of the likely worst pairs.

        Returns:
            A float for a number, otherwise a NumPy float64 array. JAX arguments give a JAX array, differentiable in
                eps, n and every parameter of the mechanism, always by the integral. For few reports of few outcomes the
                integral is inaccurate (flat windows, eps0 4: 2 % too small at n = 3, 0.3 % at 100, 1e-7 at 10,000): use
                it for gradients, not for guarantees. A derivative in a parameter has a larger relative error (flat
                windows, eps0 2: 1e-2 at n = 100, 1e-5 at 1,000, 1e-8 at 10,000).

        Raises:
            ValueError: epsilon is out of range, or JAX traces values of 32 bits.
        """
        if not self._is_bounded(epsilon):
            return self._evaluate(self._upper, epsilon)
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return _map_floats(self._upper_delta, epsilon)

    @in_64_bits
    def estimate_epsilon(self, delta: Real) -> Any:
        """Return an estimate of the least eps >= 0 at delta, as accurate as ``estimate_delta``.

        Derivatives are implicit.

        Raises:
            ValueError: delta is not in (0, 1), or JAX traces values of 32 bits.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        if self._is_traced(delta):
            return _traced_value("epsilon", self._upper.blankets, self.n, _wide(delta), self.inputs.pure_epsilon)
        epsilon = self._upper_epsilon if self._is_bounded() else lambda target: self._upper.epsilon(target)[0]
        return _map_floats(epsilon, delta)

    def lower(self, *, epsilon: Any = None, delta: Any = None) -> Any:
        """Return delta at eps, or eps at delta, if all others hold one input; also an estimate.

        The value is the largest of those for an end and for the middle (for five rows of a table).
        """
        only_argument(epsilon=epsilon, delta=delta)
        if self._is_traced(epsilon if delta is None else delta):
            raise ValueError("lower: takes numbers; only delta and epsilon are differentiable")
        # Where both are equal, rounding may raise one estimate above the other.
        if delta is None:
            return float_if_scalar(np.minimum(self._evaluate(self._lower, epsilon), self.estimate_delta(epsilon)))
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        return float_if_scalar(
            np.minimum(_map_floats(lambda target: self._lower.epsilon(target)[0], delta), self.estimate_epsilon(delta))
        )

    def _delta_bracket(self, epsilon: float) -> tuple[float, float]:
        return self._lower_bound(epsilon, self._whole_n)(epsilon), self._upper_delta(epsilon)

    def _epsilon_bracket(self, delta: float) -> tuple[float, float]:
        n, start = self._whole_n, self._lower.epsilon(delta)
        lower_bound = partial(self._lower_bound(start[0], n), target=delta)
        low = bracket.conservative_epsilon(lower_bound, delta, *start, -1)
        return low, self._upper_epsilon(delta)

    def _curve_point(self, alpha: float) -> CurvePoint:
        if not 0 < alpha < 1:
            return CurvePoint.of_power(alpha, alpha, alpha)
        if alpha not in self._curve_points:
            level = self._pure_epsilon()
            tangents = partial(points_around_tangent, self.estimate_delta, largest_loss=level)
            self._curve_points[alpha] = curve_point(self._delta_bracket, tangents, alpha, level)
        return self._curve_points[alpha]

    @cached_property
    def _curve_points(self) -> dict[float, CurvePoint]:
        return {}

    def _pure_epsilon(self) -> float:
        return bracket.upper_pure_epsilon(self.inputs)

    def _check_proven(self) -> None:
        self._check_exact(f"; or {ASK_FOR_AN_ESTIMATE}")

    def _upper_delta(self, epsilon: float) -> float:
        return bracket.upper_delta(self.inputs, self._whole_n, epsilon)

    def _upper_epsilon(self, delta: float) -> float:
        high = bracket.conservative_epsilon(self._upper_delta, delta, *self._upper.epsilon(delta), 1)
        return min(high, self._pure_epsilon())

    def _is_bounded(self, *values: object) -> bool:
        """Return whether the worst pair is not proven, but a bound over all pairs is, and is returned instead."""
        return self.inputs.stop_loss is not None and self.inputs.is_exact and not self._is_traced(*values)

    def upper_bound(self, epsilon: float) -> float:
        """Return the upper end of ``bracket`` of delta at eps, without the lower end."""
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return self._upper_delta(epsilon)

    def guarantee(self, *, rigorous: bool = True) -> Guarantee:
        """Return a guarantee to compose with others: one pair that dominates, by connecting points of the profile.

        Its neighbours are datasets of equal size that differ in one record. It composes with samples of replaced
        records, not with those of added or removed ones. It cannot be subsampled itself. If ``rigorous``, the points
        are upper ends of the bracket, which takes some seconds. Otherwise they are estimates plus 2e-5 of them, and the
        result is not a guarantee.

        Raises:
            ValueError: rigorous is true and there is no ``bracket``.
        """
        pair = self._rigorous_pair if rigorous else self._interpolated(self.estimate_delta, 1 + _VALUE_MARGIN)
        return Guarantee((RepeatedReleases(pair, 1, 1.0, "replace"),))

    @property
    def terms(self) -> tuple[RepeatedReleases, ...]:
        """Return the rigorous pair as one release, to repeat or to compose rounds that are shuffled separately."""
        return self.guarantee().terms

    @cached_property
    def _rigorous_pair(self) -> tuple[Atoms]:
        return self._interpolated(partial(_map_floats, self._upper_delta), 1.0)

    def _interpolated(self, profile: Callable[[Real], Real], margin: float) -> tuple[Atoms]:
        """Return the symmetric pair whose profile is linear in e^eps between points, where delta is convex."""
        level = self._pure_epsilon()
        last = min(max(self.estimate_epsilon(_LAST_DELTA), 1e-3 * level), 0.999 * level)
        eps = np.append(np.linspace(0.0, last, _EVEN_POINTS), np.geomspace(last, level, _LAST_POINTS)[1:])
        values = np.append(np.minimum(margin * np.asarray(profile(eps[:-1])), 1.0), 0.0)
        exp_epsilon = np.exp(eps)
        corners = bracket.lower_hull(exp_epsilon, values)[0]
        return (pair_of_profile(exp_epsilon[corners], values[corners]),)

    @cached_property
    def _upper(self) -> ShuffleEstimate:
        return self._estimate(pair.upper for pair in self.inputs.pairs)

    @cached_property
    def _lower(self) -> ShuffleEstimate:
        """Return an estimate for others that all hold one input."""
        return self._estimate(blanket for pair in self.inputs.pairs[:_LOWER_PAIRS] for blanket in pair.lower)

    def _estimate(self, blankets: Iterable[Blanket]) -> ShuffleEstimate:
        return ShuffleEstimate(tuple(blanket.merged for blanket in blankets), self.n, self.inputs.pure_epsilon)

    @property
    def _whole_n(self) -> int:
        if self._is_traced() or float(self.n) != int(self.n):
            raise ValueError(f"n: must be a whole number of reports for a bracket, not {self.n}")
        self._check_exact()
        return int(self.n)

    def _check_exact(self, otherwise: str = "") -> None:
        if not self.inputs.is_exact:
            raise ValueError(
                "mechanism: its probabilities are known by quadrature only, without a bracket; use the integers that a "
                f"release samples: shuffled(dpkernels.exact_sampler(mechanism), n){otherwise}"
            )

    def _is_traced(self, *values: object) -> bool:
        return namespace(*values, self.n, *jax.tree.leaves(self.inputs.pairs)) is jnp

    def _evaluate(self, estimate: ShuffleEstimate, epsilon: Real) -> Real:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        if self._is_traced(epsilon):
            return _traced_value("delta", estimate.blankets, self.n, _wide(epsilon), self.inputs.pure_epsilon)
        return _map_floats(lambda eps: min(math.exp(estimate.log_delta(eps)), 1.0), epsilon)

    def _lower_bound(self, epsilon: float, n: int) -> Callable[..., float]:
        """Return the lower bound from the blanket whose estimate at eps is the largest; every blanket is valid."""
        if not self._lower.blankets or epsilon >= self.inputs.pure_epsilon:
            return lambda *_, **__: 0.0
        # Merged outcomes lower E(S)_+, so that the bound remains one.
        return partial(bracket.lower_delta, self._lower.blankets[self._lower.argmax(epsilon)], n)


def shuffled(mechanism: object, n: Real) -> Shuffled:
    """Return the guarantee of n reports of a local mechanism whose senders a trusted shuffler hides.

    Args:
        mechanism: one of these: a bounded mechanism that is pure DP for any two inputs. Its exact sampler, whose
            integers are then accounted. A 2-D array whose row x has the probabilities of the reports of x, such as
            randomised response on k categories.
        n: how many people send one honest report each, at least 2; a JAX number need not be an integer.

    Raises:
        TypeError: the mechanism is unknown, or n is not a number.
        ValueError: n is below 2, or the mechanism's reports have no blanket: additive noise, noise that is not pure DP,
            several coordinates, or neighbours within a sensitivity. The message says why.

    Example:
        >>> from dpkernels import exact_sampler, piecewise
        >>> made = shuffled(exact_sampler(piecewise(epsilon=4.0, lower=0.0, upper=1.0)), 100_000)
        >>> round(made.epsilon(1e-6), 4)
        0.1158
    """
    if not isinstance(n, jax.Array):
        number = checks.number("n", n)
        if not 2 <= number <= MAX_REPORTS or number != int(number):
            raise ValueError(f"n: must be an integer from 2 to 2^50, the number of honest reports, not {n}")
    return Shuffled(worst_inputs(mechanism), n)


@bounded_pair.register
def _(mechanism: Shuffled) -> Atoms:
    (pair,) = mechanism._rigorous_pair
    return pair


def _map_floats(function: Callable[[float], float], values: Real) -> Real:
    return float_if_scalar(
        np.array([function(float(value)) for value in np.ravel(values)], float).reshape(np.shape(values))
    )


def _wide(value: object) -> Array:
    wide = jnp.asarray(value, float)
    if wide.dtype != jnp.float64:
        raise ValueError("shuffled: 32 bits do not resolve sums over many reports; enable JAX's 64-bit types")
    return wide


@partial(jax.jit, static_argnums=0)
def _traced_value(quantity: str, blankets: tuple[Blanket, ...], n: Real, values: Array, level: Array) -> Array:

    def largest(values: Array) -> Array:
        if quantity == "epsilon":
            return elementwise_maximum([integral_epsilon(blanket, n, values, level) for blanket in blankets])
        return jnp.exp(elementwise_maximum([integral_log_delta(blanket, n, values)[0] for blanket in blankets]))

    return jax.lax.map(largest, values.ravel()).reshape(values.shape)
