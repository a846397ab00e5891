"""Roots with derivatives by the implicit rule, of plain numbers and of JAX numbers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpkernels.jax_on_use import Array, custom_jvp, jax, jnp
from dpkernels.numerics import Boolean, Real, namespace
from dpkernels.pytrees import PyTree
from dpkernels.solve.base import Function, promote, while_loop
from dpkernels.solve.roots import NEWTON_STEPS, narrow_bracket, secant_root

_MAX_HALVINGS = 2200  # Between any two floats in 64 bits there are fewer bisections.


def root(excess: Function, parameters: PyTree, feasible: Real, infeasible: Real, rtol: float = 0.0) -> Any:
    """Return the last feasible x on the way from ``feasible`` to ``infeasible``, which may be on either side of it.

    The excess, continuous, is at most 0 at x as computed, and above 0 (or NaN) at the next float. If it changes sign
    several times, x is at one of the changes. Neither end is evaluated: ``feasible`` may be a limit, such as 0. Plain
    numbers with ``rtol``, a relative distance from the root, are searched by SciPy's ``brentq``, others by bisection.
    The result is a float for plain numbers; for JAX ones a JAX scalar, differentiable in the parameters.
    """
    parameters, feasible, infeasible = promote(parameters, feasible, infeasible)
    if namespace(feasible) is np:
        feasible, infeasible = float(feasible), float(infeasible)
        if rtol > 0:
            feasible, infeasible = narrow_bracket(lambda x: excess(x, parameters), feasible, infeasible, rtol)
        return float(_Bisection(rtol).root(excess, parameters, (feasible, infeasible)))
    return implicit_root(_Bisection(rtol), excess, parameters, (feasible, infeasible))


def newton(
    falling: Function,
    parameters: PyTree,
    initial_guess: Real,
    ends: tuple[Real, Real],
    *,
    tolerance: float,
    longest: float = np.inf,
    clip: bool = False,
) -> Any:
    """Return the root of a falling function near an initial guess, or NaN if there is none between the ends.

    JAX numbers: Newton's method. It evaluates the function and all its derivatives together, so that a large function
    is compiled once. A step beyond the bracket of the root ends halfway to the bracket's end. Plain numbers: a step of
    the function's value, which suits a slope of about -1, and secants until the root is bracketed, and then SciPy's
    ``brentq``. ``tolerance`` is the length of the last step, and the error about its square; ``longest`` limits every
    step. With ``clip``, the result is the nearer end instead of NaN. optimistix's Newton takes 0.5 s instead of 0.17 s
    the first time.
    """
    parameters, start, ends = promote(parameters, initial_guess, ends)
    if namespace(start) is np:
        low, high = map(float, ends)
        return secant_root(lambda x: falling(x, parameters), float(start), low, high, tolerance, longest, clip)
    return implicit_root(_Newton(tolerance, longest, clip), falling, parameters, (start, ends))


def differentiable_roots(
    residual: Function, parameters: PyTree, find: Callable[[PyTree], Array], slope: Function
) -> Array:
    """Return the roots that ``find`` gives for JAX parameters, with the derivatives of the implicit rule; elementwise.

    ``slope`` gives the derivatives of ``residual`` by x. Where the slope is 0 the roots' derivatives are NaN.
    """
    return implicit_root(_GivenRoots(find, slope), residual, parameters, ())


def _root_and_step(method: Method, function: Function, primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """Apply the implicit function rule. Where the function is flat, the root is an end of the bracket, or has none.

    For a derivative of NaN in reverse mode, multiply by NaN everything that moves; ``where`` would give 0.
    """
    parameters, where = primals
    x, slope, tangent = method.root_and_derivatives(function, parameters, where, tangents[0])
    steep = (slope != 0) if slope.shape == x.shape else jnp.ones(x.shape, bool)
    step = jnp.where(steep, -divide_by_slope(tangent, jnp.where(steep, slope, 1.0)), 0.0 * x)
    if method.moves_where_flat:
        moving = [leaf for leaf in jax.tree.leaves(tangents[0]) if leaf.dtype != jax.dtypes.float0]
        step = step + jnp.where(steep, 0.0, jnp.nan) * sum(moving)
    return x, step


@custom_jvp(jvp=_root_and_step, nondiff_argnums=(0, 1))
def implicit_root(method: Method, function: Function, parameters: PyTree, where: PyTree) -> Array:
    """Return the root that a method finds, with the derivatives of the implicit rule."""
    return method.root(function, parameters, where)


class Method(abc.ABC):
    """A way to find a root, and what the implicit rule needs there."""

    moves_where_flat: ClassVar[bool] = False

    @abc.abstractmethod
    def root(self, function: Function, parameters: PyTree, where: PyTree) -> Array:
        """Return the root."""

    def root_and_derivatives(
        self, function: Function, parameters: PyTree, where: PyTree, tangents: PyTree
    ) -> tuple[Array, ...]:
        """Return the root, and the function's derivatives by x and along the parameters' tangents."""
        x = implicit_root(self, function, parameters, where)
        return x, *self.derivatives(function, x, parameters, where, tangents)

    def derivatives(
        self, function: Function, x: Array, parameters: PyTree, where: PyTree, tangents: PyTree
    ) -> tuple[Array, Array]:
        value, pullback = jax.vjp(function, x, parameters)
        slope, gradient = pullback(jnp.ones_like(value))
        return slope, _directional_derivative(gradient, tangents)


def _directional_derivative(gradient: PyTree, tangents: PyTree) -> Any:
    return sum(jax.tree.leaves(jax.tree.map(lambda slope, tangent: (slope * tangent).sum(), gradient, tangents)), 0.0)


@dataclass(frozen=True)
class _GivenRoots(Method):
    """Roots that ``find`` gives; see ``differentiable_roots``."""

    moves_where_flat: ClassVar[bool] = True

    find: Callable[[PyTree], Array]
    slope: Function

    def root(self, residual: Function, parameters: PyTree, where: PyTree) -> Array:
        return self.find(parameters)

    def derivatives(
        self, residual: Function, x: Array, parameters: PyTree, where: PyTree, tangents: PyTree
    ) -> tuple[Array, Array]:
        return self.slope(x, parameters), jax.jvp(partial(residual, x), (parameters,), (tangents,))[1]


def divide_by_slope(values: Array, slope: Array) -> Array:
    """Return slope^-1 values, for one number or two."""
    if values.shape == slope.shape:
        return values / slope
    if values.size == 1:
        return values / slope[0]
    (a, b), (c, d) = slope
    return jnp.stack([d * values[0] - b * values[1], a * values[1] - c * values[0]]) / (a * d - b * c)


@dataclass(frozen=True)
class _Bisection(Method):
    """Bisection of a bracket (feasible, infeasible) down to neighbouring floats, or to ``rtol``."""

    rtol: float

    def root(self, excess: Function, parameters: PyTree, bracket: tuple[Real, Real]) -> Any:
        xp = namespace(*bracket)

        def unfinished(state: PyTree) -> Boolean:
            count, feasible, infeasible = state
            middle = (feasible + infeasible) / 2
            # Compiled without optimisation, the excess may be computed twice in a step and rounded in two ways. Next to
            # the root the bracket then stays as it is, so the steps are counted.
            wide = abs(infeasible - feasible) > self.rtol * abs(feasible)
            return (count < _MAX_HALVINGS) & (middle != feasible) & (middle != infeasible) & wide

        def halve(state: PyTree) -> PyTree:
            count, feasible, infeasible = state
            middle = (feasible + infeasible) / 2
            is_feasible = excess(middle, parameters) <= 0
            return count + 1, xp.where(is_feasible, middle, feasible), xp.where(is_feasible, infeasible, middle)

        return while_loop(unfinished, halve, (0, *bracket))[1]


class DifferentiatingMethod(Method):
    """A method whose every step evaluates the function with its derivatives: a large function is compiled once."""

    @abc.abstractmethod
    def iterate(
        self, evaluate: Callable[[Array], PyTree], zeros: PyTree, start: Array, ends: tuple[Array, Array]
    ) -> tuple[Array, ...]:
        """Return the root, and the derivatives there; ``evaluate`` gives the value and them, of the form ``zeros``."""

    def root(self, function: Function, parameters: PyTree, where: tuple[Array, tuple[Array, Array]]) -> Array:
        def evaluate(x: Array) -> tuple[Array, Array]:
            return jax.jvp(lambda x: function(x, parameters), (x,), (jnp.ones_like(x),))

        return self.iterate(evaluate, (jnp.zeros_like(where[0]),), *where)[0]

    def root_and_derivatives(
        self, function: Function, parameters: PyTree, where: tuple[Array, tuple[Array, Array]], tangents: PyTree
    ) -> tuple[Array, ...]:
        def evaluate(x: Array) -> tuple[Array, Array, PyTree]:
            value, pullback = jax.vjp(function, x, parameters)
            return value, *pullback(jnp.ones_like(value))

        zeros = jnp.zeros_like(where[0]), jax.tree.map(jnp.zeros_like, parameters)
        x, slope, gradient = self.iterate(evaluate, zeros, *where)
        return x, slope, _directional_derivative(gradient, tangents)


@dataclass(frozen=True)
class _Newton(DifferentiatingMethod):
    """Newton's method in a bracket."""

    tolerance: float
    longest: float
    clip: bool

    def iterate(
        self, evaluate: Callable[[Array], PyTree], zeros: PyTree, start: Array, ends: tuple[Array, Array]
    ) -> tuple[Array, ...]:
        def unfinished(state: PyTree) -> Array:
            count, step, *_ = state
            return (count < NEWTON_STEPS) & (jnp.abs(step) > self.tolerance)

        def improve(state: PyTree) -> PyTree:
            count, _, x, (value, slope, *_), low, high = state
            new = x - jnp.clip(value / jnp.where(slope < 0, slope, -1.0), -self.longest, self.longest)
            new = jnp.where(new <= low, (low + x) / 2, jnp.where(new >= high, (high + x) / 2, new))
            derivatives = evaluate(new)
            low, high = jnp.where(derivatives[0] > 0, new, low), jnp.where(derivatives[0] > 0, high, new)
            return count + 1, jnp.where(count > 0, new - x, jnp.inf), new, derivatives, low, high

        first = 0, jnp.full_like(start, jnp.inf), start, (jnp.zeros_like(start), *zeros), *ends
        _, step, x, (value, slope, *gradient), *_ = jax.lax.while_loop(unfinished, improve, first)
        # Steps halfway to an end get short too if there is no root; at a root the value is small beside the slope.
        precision = jnp.maximum(self.tolerance, jnp.finfo(x.dtype).eps ** 0.5)
        has_converged = (jnp.abs(step) <= self.tolerance) & (jnp.abs(value) <= precision * jnp.abs(slope))
        root = jnp.where(has_converged, x, jnp.nan)
        if self.clip:
            is_at_low, is_at_high = (jnp.abs(x - end) <= 2 * self.tolerance for end in ends)
            root = jnp.where(is_at_low & (value < 0), ends[0], jnp.where(is_at_high & (value > 0), ends[1], root))
        return root, slope, *gradient
