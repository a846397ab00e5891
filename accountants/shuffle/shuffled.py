"""What n shuffled reports of one local mechanism reveal about one person: a value like a guarantee.

Neighbouring: one person's input replaced by any other; everybody sends one report of the same mechanism. Trusted: a shuffler
that hides who sent which report, and whatever else came with it, such as when. n counts honest reports, one's own among them:
people who tell the curator what they sent hide nobody, so of n reports with c colluding it is n - c that are accounted. Without the
shuffler a report is what its mechanism is, eps0-DP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from accountants.composition.guarantee import Guarantee
from accountants.composition.terms import Term
from accountants.pairs.row_pairs import of_dots
from accountants.pairs.worst import Atoms, take_none, worst_pairs
from accountants.shuffle import bracket, counts, integral
from accountants.shuffle.blanket import Blanket, Crowd, blanket
from dpkernels import checks
from dpkernels.numerics import namespace

_MOST = 1 << 50
# Fewer reports of many outcomes are looked at from nodes further out: whether the integral is told by those near by.
_FEW, _TOLD = 10_000, 1e-7
_CLOSE, _SECANTS = 1e-11, 8
# The profile's dots of a pair: down to this delta, so many, and beyond; what is added to their values.
_LAST, _DOTS, _RIGOROUS_DOTS, _BEYOND, _MARGIN = 1e-18, 320, 40, 16, 1e-7


@dataclass(frozen=True, eq=False)
class Shuffled:
    """What n shuffled reports reveal; made by ``shuffled``.

    Attributes:
        blanket: what the mechanism's reports hide in.
        n: how many honest reports.
    """

    blanket: Blanket
    n: Any

    @property
    def neighbouring(self) -> str:
        """Which inputs are neighbours, whom is trusted, and who counts, in words."""
        return (
            "one person's input replaced by any other; the shuffler is trusted to hide who sent which report; n counts the "
            "honest reports, that person's own among them: whoever colludes with the curator hides nobody"
        )

    def delta(self, epsilon: Any) -> Any:
        """The least delta at eps that the blanket proves, whatever the others' inputs.

        An estimate, precise to about 1e-9 relatively, at eps = 0 and of few outcomes to about 1/n; few reports of many
        outcomes are an upper bound that exceeds it by up to 1e-4. ``bracket`` has what is rigorous.

        Args:
            epsilon: eps >= 0, any shape.

        Returns:
            A float for a number, else NumPy float64; JAX for JAX arguments, differentiable in eps, n and every
            parameter of the mechanism: then always by the integral, which few reports of few outcomes need not have
            converged for (1e-4 at 100, 1e-7 at 10,000).

        Raises:
            ValueError: epsilon out of range; JAX values of 32 bits.
        """
        return self._read(self._upper, epsilon, self._log_delta, _jax_delta)

    def epsilon(self, delta: Any) -> Any:
        """The least eps >= 0 at delta; as ``delta``. Derivatives are implicit.

        Raises:
            ValueError: delta is not in (0, 1); JAX values of 32 bits.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        if self._is_traced(delta):
            return _jax_epsilon(self._upper, self.n, _wide(delta), self.blanket.level)
        return _each(lambda one: self._epsilon(self._log_delta, self._upper, one), delta)

    def lower(self, *, epsilon: Any = None, delta: Any = None) -> Any:
        """What some people's reports do reveal: delta at eps, or eps at delta, where all others hold one input.

        The input among an end and the middle (of a table, among five rows) for which it is largest. Also an estimate.
        """
        _exactly_one(epsilon, delta)
        if self._is_traced(epsilon if delta is None else delta):
            raise ValueError("lower: takes numbers; only delta and epsilon are differentiable")
        if delta is None:
            return self._read(self._lower, epsilon, self._log_lower, _jax_delta)
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        return _each(lambda one: self._epsilon(self._log_lower, self._lower, one), delta)

    def bracket(self, *, epsilon: float | None = None, delta: float | None = None) -> tuple[float, float]:
        """A rigorous interval of the largest delta at eps over all inputs, or of eps at delta: upper and lower bound.

        From the mechanism's probabilities, with truncation, quadrature and rounding inside.

        Raises:
            ValueError: not exactly one of the two, or out of range; n that is not whole; a float mechanism whose
                probabilities are nodes of a quadrature.
        """
        _exactly_one(epsilon, delta)
        n = self._certain_n
        if delta is None:
            at = checks.number("epsilon", epsilon)
            checks.within("epsilon", at, 0.0, np.inf)
            return self._lower_bound(at, n)(at), bracket.upper_delta(self.blanket, n, at)
        target = checks.number("delta", delta)
        checks.within("delta", target, 0.0, 1.0, open_ends=True)
        start = self._start(self._log_lower, self._lower, target)
        low = bracket.crossing(self._lower_bound(start[0], n), target, *start, -1)
        start = self._start(self._log_delta, self._upper, target)
        high = bracket.crossing(lambda at: bracket.upper_delta(self.blanket, n, at), target, *start, 1)
        return low, min(high, float(self.blanket.level) * (1 + 1e-12))

    def guarantee(self, *, rigorous: bool = False) -> Guarantee:
        """One pair that is nowhere less telling, connecting dots of the profile: to compose with others.

        Args:
            rigorous: whether the dots are the bracket's upper ends (some seconds), or estimates plus 1e-7 of them.
        """
        return Guarantee((Term(self._rigorous_pair if rigorous else self._pair, 1),))

    def compose(self, *others: Shuffled | Guarantee) -> Guarantee:
        """This and others: rounds that are shuffled one by one, and reports that are not shuffled at all.

        All about the same person; a round's mechanism may be chosen by what earlier rounds gave, as long as its guarantee is
        the one that is composed.
        """
        return self.guarantee().compose(*(one.guarantee() if isinstance(one, Shuffled) else one for one in others))

    def repeat(self, count: Any) -> Guarantee:
        """``count`` rounds, each of n reports and shuffled by itself."""
        return self.guarantee().repeat(count)

    @cached_property
    def _pair(self) -> tuple[Atoms]:
        return self._dotted(self.delta, _DOTS if self._is_quick else _RIGOROUS_DOTS, 1 + _MARGIN)

    @cached_property
    def _rigorous_pair(self) -> tuple[Atoms]:
        n = self._certain_n
        return self._dotted(
            lambda eps: _each(lambda at: bracket.upper_delta(self.blanket, n, at), eps), _RIGOROUS_DOTS, 1.0
        )

    def _dotted(self, profile: Callable[[Any], Any], dots: int, margin: float) -> tuple[Atoms]:
        """The pair, its own mirror, whose profile is straight in e^eps between dots: delta is convex there."""
        level = float(self.blanket.level) * (1 + 1e-12)
        last = min(max(self.epsilon(_LAST), 1e-3 * level), 0.999 * level)
        eps = np.append(np.linspace(0.0, last, dots), np.geomspace(last, level, _BEYOND)[1:])
        values = np.append(np.minimum(margin * np.asarray(profile(eps[:-1])), 1.0), 0.0)
        t = np.exp(eps)
        kept = bracket.hull(t, values)[0]
        return (of_dots(t[kept], values[kept]),)

    @cached_property
    def _upper(self) -> tuple[Crowd, ...]:
        return tuple(pair.upper.merged for pair in self.blanket.pairs)

    @cached_property
    def _lower(self) -> tuple[Crowd, ...]:
        return tuple(crowd.merged for pair in self.blanket.pairs for crowd in pair.lower)

    @property
    def _certain_n(self) -> int:
        if self._is_traced() or float(self.n) != int(self.n):
            raise ValueError(f"n: {self.n}; a bracket is of a whole number of reports")
        if not self.blanket.exact:
            raise ValueError(
                "mechanism: its losses are spread out, and known by quadrature only; a bracket is of the integers: "
                "shuffled(dpkernels.certify(mechanism), n)"
            )
        return int(self.n)

    def _is_traced(self, *values: Any) -> bool:
        return namespace(*values, self.n, *jax.tree.leaves(self.blanket.pairs)) is jnp

    def _read(self, crowds: tuple[Crowd, ...], epsilon: Any, one: Callable[[float], float], traced: Any) -> Any:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        if self._is_traced(epsilon):
            return traced(crowds, self.n, _wide(epsilon))
        return _each(lambda at: min(math.exp(one(at)), 1.0), epsilon)

    def _lower_bound(self, epsilon: float, n: int) -> Callable[[float], float]:
        """Of the crowd whose estimate is the largest at eps; any is valid."""
        if not self._lower:
            return lambda at: 0.0
        crowd = max(self._lower, key=lambda crowd: self._log_value(crowd, epsilon))
        return lambda at: bracket.lower_delta(crowd, n, at)

    def _log_delta(self, epsilon: float) -> float:
        return max(self._log_value(crowd, epsilon) for crowd in self._upper)

    def _log_lower(self, epsilon: float) -> float:
        return max((self._log_value(crowd, epsilon) for crowd in self._lower), default=-math.inf)

    def _log_value(self, crowd: Crowd, epsilon: float) -> float:
        """By enumeration, by the integral, or, of few reports of many outcomes, by the grid from above."""
        way = self._way(crowd)
        if way == "integral":
            return integral.host_log_delta(integral.padded(crowd), self.n, epsilon)[0]
        value = (
            counts.delta(crowd, self.n, epsilon) if way == "counts" else bracket.of_crowd(crowd, int(self.n), epsilon)
        )
        return math.log(value) if value > 0 else -math.inf

    def _way(self, crowd: Crowd) -> str:
        if id(crowd) not in self._ways:
            self._ways[id(crowd)] = self._chosen(crowd)
        return self._ways[id(crowd)]

    @cached_property
    def _ways(self) -> dict[int, str]:
        return {}

    def _chosen(self, crowd: Crowd) -> str:
        if counts.applies(crowd, self.n):
            return "counts"
        if self.n >= _FEW or float(self.n) != int(self.n):
            return "integral"
        thin = integral.padded(crowd.thinned)
        for delta in (1e-3, 1e-9):
            at = integral.host_epsilon(thin, self.n, delta, self.blanket.level)[0]
            near, far = (integral.host_log_delta(thin, self.n, at, size) for size in (integral.NEAR, integral.FAR))
            if not abs(near[0] - far[0]) + far[1] < _TOLD:
                return "grid"
        return "integral"

    @property
    def _is_quick(self) -> bool:
        return all(self._way(crowd) != "grid" for crowd in self._upper)

    def _start(self, value: Callable[[float], float], crowds: tuple[Crowd, ...], delta: float) -> tuple[float, float]:
        """(eps, about the slope of log delta there)."""
        eps = self._epsilon(value, crowds, delta)
        step = 1e-4 * max(eps, 1e-9)
        slope = (value(eps + step) - value(eps)) / step if eps < float(self.blanket.level) - step else -math.inf
        return eps, slope if -math.inf < slope < 0 else -1.0 / max(eps, 1e-9)

    def _epsilon(self, value: Callable[[float], float], crowds: tuple[Crowd, ...], delta: float) -> float:
        """The root of the value, from that of the integral for the first crowd's most likely outcomes."""
        if not crowds:
            return 0.0
        goal = math.log(delta)
        eps, slope = integral.host_epsilon(integral.padded(crowds[0].thinned), self.n, delta, self.blanket.level)
        before: tuple[float, float] | None = None
        for _ in range(_SECANTS):
            gap = value(eps) - goal
            if abs(gap) < _CLOSE or (eps == 0.0 and gap <= 0):
                return eps
            if before is not None and before[0] != eps and before[1] != gap:
                slope = (gap - before[1]) / (eps - before[0])
            if not (math.isfinite(gap) and slope < 0):
                break
            before, eps = (eps, gap), eps - gap / slope
            if not 0 <= eps < self.blanket.level:
                break
        return self._bisected(value, goal)

    def _bisected(self, value: Callable[[float], float], goal: float) -> float:
        top = float(self.blanket.level)
        if value(0.0) <= goal or value(top) > goal:
            return 0.0 if value(0.0) <= goal else top
        return float(brentq(lambda eps: max(value(eps), goal - 100.0) - goal, 0.0, top, xtol=1e-14 * top, rtol=1e-13))


def shuffled(mechanism: Any, n: Any) -> Shuffled:
    """What n reports of a local mechanism reveal together, their senders hidden by a trusted shuffler.

    Args:
        mechanism: bounded and pure DP for any two inputs; its exact form, whose integers then are accounted; or a 2-D array,
            row x the probabilities of the reports of x, such as randomised response on k categories.
        n: how many people send one honest report each, at least 2; a JAX number need not be whole.

    Raises:
        TypeError: an unknown mechanism; n is no number.
        ValueError: n is below 2; a mechanism that nothing hides: additive noise, noise that is not pure DP, several
            coordinates, or neighbours within a sensitivity; says why.

    Example:
        >>> from dpkernels import piecewise
        >>> made = shuffled(piecewise(epsilon=4.0, lower=0.0, upper=1.0), 100_000)
        >>> round(made.epsilon(1e-6), 4)
        0.1158
    """
    if not isinstance(n, jax.Array):
        whole = checks.number("n", n)
        if not 2 <= whole <= _MOST:
            raise ValueError(f"n: {n}; at least 2 honest reports are needed, of which one hides the other")
    return Shuffled(blanket(mechanism), n)


@worst_pairs.register
def _(mechanism: Shuffled, sensitivity: Any = None) -> tuple[Any, ...]:
    take_none(sensitivity)
    return mechanism._pair


def _exactly_one(epsilon: Any, delta: Any) -> None:
    if (epsilon is None) == (delta is None):
        raise ValueError("epsilon, delta: exactly one of them must be given")


def _each(one: Callable[[float], float], values: Any) -> Any:
    found = np.array([one(float(value)) for value in np.ravel(values)], float).reshape(np.shape(values))
    return float(found) if found.ndim == 0 else found


def _wide(value: Any) -> Any:
    if not jax.config.jax_enable_x64:
        raise ValueError("shuffled: JAX values of 32 bits do not tell sums over many reports; enable 64-bit types")
    return jnp.asarray(value, jnp.float64)


@jax.jit
def _jax_delta(crowds: tuple[Crowd, ...], n: Any, epsilon: Any) -> Any:
    def one(at: Any) -> Any:
        return jnp.stack([integral.log_delta(crowd, n, at)[0] for crowd in crowds]).max()

    return jnp.exp(jax.lax.map(one, epsilon.ravel())).reshape(epsilon.shape)


@jax.jit
def _jax_epsilon(crowds: tuple[Crowd, ...], n: Any, delta: Any, level: Any) -> Any:
    def one(at: Any) -> Any:
        return jnp.stack([integral.epsilon(crowd, n, at, level)[0] for crowd in crowds]).max()

    return jax.lax.map(one, delta.ravel()).reshape(delta.shape)
