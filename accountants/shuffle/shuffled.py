"""What n shuffled reports of one local mechanism reveal about one person: a value like a guarantee.

Neighbouring: one person's input replaced by any other; everybody sends one report of the same mechanism. Trusted: a
shuffler that hides who sent which report, and whatever came with it, such as when. n counts honest reports, one's own
among them: people who tell the curator what they sent hide nobody, so of n reports with c colluding n - c are
accounted. Without the shuffler a report is what its mechanism makes it, eps0-DP.
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

from accountants.composition.self_composed import SelfComposed
from accountants.dominating_pairs.discrete import Atoms, of_dots
from accountants.dominating_pairs.registry import dominating_pairs, reject_sensitivity
from accountants.guarantee import Guarantee
from accountants.shuffle import bracket
from accountants.shuffle.blanket import Blanket, WorstInputs, worst_inputs
from accountants.shuffle.estimate import Estimate, integral_epsilon, integral_log_delta
from dpkernels import checks
from dpkernels.numerics import Real, namespace

NEIGHBOURING = (
    "one person's input replaced by any other; the shuffler is trusted to hide who sent which report; n counts the "
    "honest reports, that person's own among them: whoever colludes with the curator hides nobody"
)
MOST = 1 << 50  # Reports.
# Of so many pairs a lower bound is looked for.
_LOWER = 2
# The profile's dots of a pair: down to this delta, so many, and beyond; what is added to their values.
_LAST, _DOTS, _BEYOND, _MARGIN = 1e-18, 160, 16, 2e-5


@dataclass(frozen=True, eq=False)
class Shuffled:
    """What n shuffled reports reveal; made by ``shuffled``.

    Attributes:
        blanket: what the mechanism's reports hide in.
        n: how many honest reports.
    """

    inputs: WorstInputs
    n: Any

    @property
    def neighbouring(self) -> str:
        """Which inputs are neighbours, whom is trusted, and who counts, in words."""
        return NEIGHBOURING

    def delta(self, epsilon: Any) -> Any:
        """The least delta at eps that the blanket proves, whatever the others' inputs.

        An estimate: exact to rounding for three outcomes (flat windows, two points, randomised response) and up to
        10,000 reports or so; beyond, and for more outcomes, by the integral, precise to 1e-6 of delta and mostly
        1e-9 (1e-5 at eps = 0); few reports of more outcomes on a grid from above, to 1e-4. Rigorous is ``bracket``.
        The worst pair of inputs is proven (see ``blanket``) but for tables row by row and windows that overlap: of
        integers and tables what is returned there is the bracket's upper end, over all pairs; of float mechanisms, and
        of JAX values, it is of the likely worst pairs.

        Args:
            epsilon: eps >= 0, any shape.

        Returns:
            A float for a number, else NumPy float64; JAX for JAX arguments, differentiable in eps, n and every
            parameter of the mechanism: then always by the integral, which for few reports of few outcomes is off (flat
            windows, eps0 4: 2 % below at n = 3, 0.3 % at 100, 1e-7 at 10,000): for gradients, not for guarantees. A
            derivative in a parameter has a larger relative error (flat windows, eps0 2: 1e-2 at n = 100, 1e-5 at
            1,000, 1e-8 at 10,000).

        Raises:
            ValueError: epsilon out of range; JAX values of 32 bits.
        """
        if not self._is_bounded(epsilon):
            return self._read(self._upper, epsilon)
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return _each(partial(bracket.upper_delta, self.inputs, self._certain_n), epsilon)

    def epsilon(self, delta: Any) -> Any:
        """The least eps >= 0 at delta; as ``delta``. Derivatives are implicit.

        Raises:
            ValueError: delta is not in (0, 1); JAX values of 32 bits.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        if self._is_traced(delta):
            return _jax_epsilon(self._upper.blankets, self.n, _wide(delta), self.inputs.level)
        if self._is_bounded():
            return _each(self._above, delta)
        return _each(lambda one: self._upper.epsilon(one)[0], delta)

    def lower(self, *, epsilon: Any = None, delta: Any = None) -> Any:
        """What reports reveal where all others hold one input: delta at eps, or eps at delta; also an estimate.

        Of an end and the middle (of a table, five rows) the input for which it is largest.
        """
        _exactly_one(epsilon, delta)
        if self._is_traced(epsilon if delta is None else delta):
            raise ValueError("lower: takes numbers; only delta and epsilon are differentiable")
        # Where both are the same an estimate may be above the other by rounding.
        if delta is None:
            return _plain(np.minimum(self._read(self._lower, epsilon), self.delta(epsilon)))
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        return _plain(np.minimum(_each(lambda one: self._lower.epsilon(one)[0], delta), self.epsilon(delta)))

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
            checks.within("epsilon", at := checks.number("epsilon", epsilon), 0.0, np.inf)
            return self._lower_bound(at, n)(at), bracket.upper_delta(self.inputs, n, at)
        checks.within("delta", target := checks.number("delta", delta), 0.0, 1.0, open_ends=True)
        start = self._lower.epsilon(target)
        low = bracket.crossing(self._lower_bound(start[0], n), target, *start, -1)
        return low, self._above(target)

    def _above(self, delta: float) -> float:
        """eps at delta from above."""
        delta_at = partial(bracket.upper_delta, self.inputs, self._certain_n)
        high = bracket.crossing(delta_at, delta, *self._upper.epsilon(delta), 1)
        return min(high, float(self.inputs.level) * (1 + 1e-12))

    def _is_bounded(self, *values: Any) -> bool:
        """Whether the worst pair is not proven, while a bound over all pairs is: then that is what is returned."""
        return self.inputs.stop_loss is not None and self.inputs.exact and not self._is_traced(*values)

    def upper_bound(self, epsilon: float) -> float:
        """The upper end of ``bracket`` of delta at eps, alone."""
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return bracket.upper_delta(self.inputs, self._certain_n, epsilon)

    def guarantee(self, *, rigorous: bool = True) -> Guarantee:
        """One pair that is nowhere less telling, connecting dots of the profile: to compose with others.

        Its neighbours are datasets of as many records that differ in one, so it composes with samples of replaced
        records, and not with those of added or removed ones; it cannot be put on samples itself.

        Args:
            rigorous: whether the dots are the bracket's upper ends (some seconds), or estimates plus 2e-5 of them,
                which are no guarantee.

        Raises:
            ValueError: rigorous, where ``bracket`` has none.
        """
        return Guarantee(
            (
                SelfComposed(
                    self._rigorous_pair if rigorous else self._dotted(self.delta, 1 + _MARGIN), 1, 1.0, "replace"
                ),
            )
        )

    def compose(self, *others: Shuffled | Guarantee) -> Guarantee:
        """This and others: rounds that are shuffled one by one, and reports that are not shuffled at all.

        All about the same person; a round's mechanism may be chosen by what earlier rounds gave, as long as its
        guarantee is the one that is composed.
        """
        return self.guarantee().compose(*(one.guarantee() if isinstance(one, Shuffled) else one for one in others))

    def repeat(self, count: Any) -> Guarantee:
        """``count`` rounds, each of n reports and shuffled by itself."""
        return self.guarantee().repeat(count)

    @cached_property
    def _rigorous_pair(self) -> tuple[Atoms]:
        return self._dotted(partial(_each, partial(bracket.upper_delta, self.inputs, self._certain_n)), 1.0)

    def _dotted(self, profile: Callable[[Real], Real], margin: float) -> tuple[Atoms]:
        """The pair, its own mirror, whose profile is straight in e^eps between dots: delta is convex there."""
        level = float(self.inputs.level) * (1 + 1e-12)
        last = min(max(self.epsilon(_LAST), 1e-3 * level), 0.999 * level)
        eps = np.append(np.linspace(0.0, last, _DOTS), np.geomspace(last, level, _BEYOND)[1:])
        values = np.append(np.minimum(margin * np.asarray(profile(eps[:-1])), 1.0), 0.0)
        t = np.exp(eps)
        kept = bracket.hull(t, values)[0]
        return (of_dots(t[kept], values[kept]),)

    @cached_property
    def _upper(self) -> Estimate:
        return self._estimate(pair.upper for pair in self.inputs.pairs)

    @cached_property
    def _lower(self) -> Estimate:
        return self._estimate(self._alike)

    @cached_property
    def _alike(self) -> tuple[Blanket, ...]:
        """Others that all hold one input."""
        return tuple(blanket for pair in self.inputs.pairs[:_LOWER] for blanket in pair.lower)

    def _estimate(self, blankets: Iterable[Blanket]) -> Estimate:
        return Estimate(tuple(blanket.merged for blanket in blankets), self.n, self.inputs.level)

    @property
    def _certain_n(self) -> int:
        if self._is_traced() or float(self.n) != int(self.n):
            raise ValueError(f"n: {self.n}; a bracket is of a whole number of reports")
        if not self.inputs.exact:
            raise ValueError(
                "mechanism: its losses are spread out, and known by quadrature only; a bracket is of the integers: "
                "shuffled(dpkernels.exact_sampler(mechanism), n)"
            )
        return int(self.n)

    def _is_traced(self, *values: Any) -> bool:
        return namespace(*values, self.n, *jax.tree.leaves(self.inputs.pairs)) is jnp

    def _read(self, estimate: Estimate, epsilon: Any) -> Any:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        if self._is_traced(epsilon):
            return _jax_delta(estimate.blankets, self.n, _wide(epsilon))
        return _each(lambda at: min(math.exp(estimate.log_delta(at)), 1.0), epsilon)

    def _lower_bound(self, epsilon: float, n: int) -> Callable[[float], float]:
        """Of the blanket whose estimate is the largest at eps; any is valid."""
        if not self._lower.blankets or epsilon >= self.inputs.level:
            return lambda _: 0.0
        return partial(bracket.lower_delta, self._alike[self._lower.largest(epsilon)], n)


def shuffled(mechanism: Any, n: Real) -> Shuffled:
    """What n reports of a local mechanism reveal together, their senders hidden by a trusted shuffler.

    Args:
        mechanism: bounded and pure DP for any two inputs; its exact form, whose integers then are accounted; or a 2-D
            array, row x the probabilities of the reports of x, such as randomised response on k categories.
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
        if not 2 <= whole <= MOST or whole != int(whole):
            raise ValueError(f"n: {n}; a whole number of honest reports, 2 to 2^50: of two one hides the other")
    return Shuffled(worst_inputs(mechanism), n)


@dominating_pairs.register
def _(mechanism: Shuffled, sensitivity: Any = None) -> tuple[Any, ...]:
    reject_sensitivity(sensitivity)
    return mechanism._rigorous_pair


def _exactly_one(epsilon: Any, delta: Any) -> None:
    if (epsilon is None) == (delta is None):
        raise ValueError("epsilon, delta: exactly one of them must be given")


def _each(one: Callable[[float], float], values: Any) -> Any:
    found = np.array([one(float(value)) for value in np.ravel(values)], float).reshape(np.shape(values))
    return _plain(found)


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _wide(value: Any) -> Any:
    found = jnp.asarray(value, float)
    if found.dtype != jnp.float64:
        raise ValueError("shuffled: JAX values of 32 bits do not tell sums over many reports; enable 64-bit types")
    return found


@jax.jit
def _jax_delta(blankets: tuple[Blanket, ...], n: Real, epsilon: Any) -> Any:
    def one(at: Any) -> Any:
        return jnp.stack([integral_log_delta(blanket, n, at)[0] for blanket in blankets]).max()

    return jnp.exp(jax.lax.map(one, epsilon.ravel())).reshape(epsilon.shape)


@jax.jit
def _jax_epsilon(blankets: tuple[Blanket, ...], n: Real, delta: Any, level: Any) -> Any:
    def one(at: Any) -> Any:
        return jnp.stack([integral_epsilon(blanket, n, at, level) for blanket in blankets]).max()

    return jax.lax.map(one, delta.ravel()).reshape(delta.shape)
