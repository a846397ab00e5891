"""n shuffled reports that meet one central budget together: what a report may spend is solved from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants import calibrate
from accountants.calibrate.shuffled import proven
from accountants.shuffle.blanket import blanket
from accountants.shuffle.integral import log_delta
from accountants.tune.certified import realised, refuse_above
from accountants.tune.domains import Domain
from accountants.tune.families.bounded import Composite, Piecewise, Plain
from accountants.tune.family import Family, Member, on_unit
from dpkernels import checks
from dpkernels.numerics import Real
from dpkernels.pytrees import pytree
from dpkernels.roots import safe_root

_RTOL = 1e-12


@partial(pytree, static=("n",))
@dataclass(frozen=True)
class Shuffled(Family):
    """n reports of one member of a family that are (eps, delta)-DP together once shuffled; see ``shuffled``.

    Attributes:
        inner: the family of one report; its own budget does not count.
        n: how many honest reports.
        epsilon: central eps.
        delta: central delta.
    """

    inner: Any
    n: int
    epsilon: Any
    delta: Any

    @property
    def name(self) -> str:
        return f"{self.n} shuffled, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        return self.inner.domains

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    def build(self, parameters: dict[str, Real]) -> Member:
        """The member of the largest eps0 that meets the budget by the integral; NaN where there is none; traceable."""

        def excess(t: Real, given: Any) -> Any:
            family, chosen = given
            made = blanket(family._member(jnp.exp(t), chosen)).pairs[0].upper
            return jnp.maximum(log_delta(made, float(family.n), family.epsilon)[0], -700.0) - jnp.log(family.delta)

        low, high = (jnp.log(jnp.asarray(end, jnp.float64)) for end in checks.EPSILON_RANGE)
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (self, parameters))
        t = safe_root(excess, given, low, high, _RTOL)
        feasible = excess(jax.lax.stop_gradient(low), jax.lax.stop_gradient(given)) <= 0
        return self._member(jnp.where(feasible, jnp.exp(t), jnp.nan), parameters)

    def _member(self, level: Any, parameters: dict[str, Any]) -> Any:
        return replace(self.inner, epsilon=level).build(parameters)

    def release(self, parameters: dict[str, Any]) -> Member:
        """As private as the upper end of the rigorous bracket of the integers."""

        def constructor(*, epsilon: float) -> Any:
            return replace(self.inner, epsilon=epsilon).release(parameters)

        return calibrate.shuffled(constructor, epsilon=float(self.epsilon), delta=float(self.delta), n=self.n)

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {**self.inner.symbols(parameters, mechanism), "epsilon of a report": mechanism.epsilon}


@on_unit.register
def _(family: Shuffled) -> tuple[Any, Any, Any] | None:
    placed = on_unit(family.inner)
    return None if placed is None else (replace(family, inner=placed[0]), *placed[1:])


@realised.register
def _(family: Shuffled, mechanism: Any) -> tuple[float, float]:
    """All reports together, by the upper end of the rigorous bracket of the integers."""
    found = proven(mechanism, family.n).upper_bound(float(family.epsilon))
    refuse_above(family, "delta", found, float(family.delta))
    return float(family.epsilon), found


def shuffled(family: Family, *, n: int, epsilon: float, delta: float) -> Shuffled:
    """n reports of one member of a bounded family that are (eps, delta)-DP together once shuffled.

    What is solved for is the epsilon of a report; whatever budget the family holds does not count. The member of least
    worst-case variance is also the one of the least variance of the mean of the n reports, which is that over n.

    Args:
        family: of one report: composite, piecewise, piecewise_triangle, duchi, hybrid or optimal.
        n: how many honest reports; neighbouring is one person's input replaced, and a shuffler is trusted.
        epsilon: central eps.
        delta: central delta, in (0, 1).

    Raises:
        ValueError: an argument out of range.
        TypeError: another family.
    """
    if not isinstance(family, Composite | Piecewise | Plain):
        raise TypeError(f"family: {family!r} is no bounded family, such as tune.piecewise(...)")
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    return Shuffled(family, checks.whole("n", n, 2, 1 << 50), np.float64(epsilon), np.float64(delta))
