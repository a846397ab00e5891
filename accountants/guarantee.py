"""Guarantees as values: what a sequence of mechanisms reveals together.

    guarantee(mechanism).subsample(rate).repeat(n).compose(other)

Neighbouring is that of the mechanisms: additive noise, datasets whose true values differ by at most the sensitivity in
every report, and so bounded mechanisms with one; others, any two inputs. With ``subsample``, every report is on a
Poisson sample of its own, and neighbouring is adding or removing one record, or replacing one by another, whichever is
asked for. Covered: the reports of float laws in exact arithmetic, or exactly the integer tables of exact forms;
mechanisms fixed in advance (for budgets chosen as one goes see ``filters``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants import characteristic, serial
from accountants import exact_pairs as _exact_pairs  # noqa: F401 - registers exact forms
from accountants.bracket import Bracket
from accountants.characteristic import ConvergenceError, Parts
from accountants.density_pairs import Densities
from accountants.hockey_stick import as_float64, profile
from accountants.pairs import Atoms, Mixed, Placed, Shifted, take_none, worst_pairs
from accountants.replacement import check_replaceable
from accountants.terms import ADJACENCIES, Term, both_ways, neighbouring, one_adjacency, part_of, with_mirror
from dpkernels import checks
from dpkernels.numerics import floating, namespace
from dpkernels.pytrees import pytree

# How far the upper end of a bracket may be from the lower one where it stands in for a number.
_NEAR = 1e-3


@pytree
@dataclass(frozen=True, eq=False)
class Guarantee:
    """What reports reveal together; made by ``guarantee``, immutable, a pytree.

    Attributes:
        terms: what is composed.
    """

    terms: tuple[Term, ...]

    def repeat(self, count: int) -> Guarantee:
        """The same ``count`` times.

        Raises:
            TypeError: count is not a whole number.
            ValueError: it is not positive.
        """
        n = checks.whole("count", count, 1, 1 << 40)
        return Guarantee(tuple(dataclasses.replace(term, count=n * term.count) for term in self.terms))

    def compose(self, *others: Guarantee) -> Guarantee:
        """This and the others.

        Raises:
            ValueError: samples with added and removed records, and samples with replaced ones.
        """
        return Guarantee(one_adjacency(sum((other.terms for other in others), self.terms)))

    def subsample(self, rate: Any, adjacency: str = "add_remove") -> Guarantee:
        """Every report on a Poisson sample of its own, of this rate.

        Neighbouring is by records of the datasets, and the sensitivity of noise is the most that one record, if it is
        in the sample, adds to the true value or takes from it.

        Args:
            rate: in (0, 1].
            adjacency: "add_remove": one record added or removed; the two worst inputs are those of the dataset with
                the record and of the one without it. "replace": one record replaced by another, so that the true
                value may change by twice the sensitivity; see ``replacement``.

        Raises:
            ValueError: the rate is not in (0, 1], or reports are on samples already; replaced records and asymmetric
                noise, tables or densities.
        """
        checks.within("rate", rate, np.nextafter(0.0, 1.0), 1.0)
        checks.one_of("adjacency", adjacency, ADJACENCIES)
        if any(term.rate is not None for term in self.terms):
            raise ValueError("rate: these reports are on samples already")
        if adjacency == "replace":
            for term in self.terms:
                check_replaceable(term.pairs)
        return Guarantee(tuple(dataclasses.replace(term, rate=rate, adjacency=adjacency) for term in self.terms))

    @property
    def neighbouring(self) -> str:
        """Which inputs are neighbours, in words."""
        return neighbouring(self.terms)

    def delta(self, epsilon: Any) -> Any:
        """The least delta at eps.

        By characteristic function, precise to about 1e-9 relatively; one unsampled report by its exact profile.
        Where the contour does not converge (few reports whose losses have large atoms, asymmetric noise), the
        upper end of a bracket within 1e-3 of the lower one.

        Args:
            epsilon: eps >= 0, any shape.

        Returns:
            A float for a number, else NumPy float64; JAX for JAX arguments, differentiable, NaN where it does not
            converge.

        Raises:
            ValueError: epsilon out of range.
            ConvergenceError: neither the contour nor the bracket is good enough.
        """
        checks.within("epsilon", epsilon, 0.0, np.inf)
        return self._read("delta", epsilon, _exact_delta, lambda eps: self.bracket(epsilon=eps))

    def epsilon(self, delta: Any) -> Any:
        """The least eps >= 0 at delta; as ``delta``.

        Raises:
            ValueError: delta is not in (0, 1).
            ConvergenceError: neither the contour nor the bracket is good enough.
        """
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        return self._read("epsilon", delta, _exact_epsilon, lambda at: self.bracket(delta=at))

    def _read(self, what: str, at: Any, exact: Callable[..., Any], bracket: Callable[[float], Any]) -> Any:
        if namespace(at, *jax.tree.leaves(self)) is jnp:
            values, good = _contour(self, floating(jnp.asarray(at)), what, characteristic.MIDDLE)
            # Times NaN rather than a choice of it: derivatives are NaN too.
            return values * jnp.where(good, 1.0, jnp.nan)
        if self._is_single:
            return exact(self, at)
        points = np.asarray(at, np.float64)
        values = self.converged(what, points)
        for place in np.argwhere(np.isnan(values)):
            low, high = bracket(float(points[tuple(place)]))
            if low != high and not (high < np.inf and high - low <= _NEAR * high + 1e-12):
                raise ConvergenceError(f"at {points[tuple(place)]:g}: no value, only a bracket [{low:.9g}, {high:.9g}]")
            values[tuple(place)] = high
        return float(values) if values.ndim == 0 else values

    def converged(self, what: str, points: np.ndarray) -> np.ndarray:
        """Values on the smallest contour that converges for all, else NaN for those that do not."""
        with jax.enable_x64(True):
            for size in (characteristic.SMALL, characteristic.MIDDLE, characteristic.LARGE):
                values, good = (np.array(part) for part in _contour(as_float64(self), points, what, size))
                if good.all():
                    break
        return np.where(good, values, np.nan)

    @property
    def _is_single(self) -> bool:
        return len(self.terms) == 1 and self.terms[0].count == 1 and self.terms[0].rate is None

    def directions(self) -> tuple[Parts, ...]:
        """What is composed, for either direction of a neighbour: delta is the largest. JAX arrays."""
        return tuple(tuple(part_of(term, added) for term in self.terms) for added in self.ways)

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether the neighbour has one record more: both, but where a pair and its mirror have one profile."""
        return (False, True) if any(term.has_directions for term in self.terms) else (False,)

    def bracket(self, *, epsilon: float | None = None, delta: float | None = None) -> tuple[float, float]:
        """A rigorous interval for delta at eps, or for eps at delta; truncation and rounding errors are inside.

        Raises:
            ValueError: not exactly one of the two, or out of range.
        """
        if (epsilon is None) == (delta is None):
            raise ValueError("epsilon, delta: exactly one of them must be given")
        made = Bracket(self)
        return (
            made.delta(checks.number("epsilon", epsilon))
            if delta is None
            else made.epsilon(checks.number("delta", delta))
        )

    def renyi(self, order: Any) -> Any:
        """The Renyi divergence of the given order > 1, of any shape; inf where a loss may be infinite."""
        checks.within("order", order, np.nextafter(1.0, 2.0), np.inf)
        if namespace(order, *jax.tree.leaves(self)) is jnp:
            return _contour(self, floating(jnp.asarray(order)), "renyi", characteristic.SMALL)[0]
        with jax.enable_x64(True):
            points = np.asarray(order, np.float64)
            values = np.array(_contour(as_float64(self), points, "renyi", characteristic.SMALL)[0])
        return float(values) if values.ndim == 0 else values

    def trade_off(self, alpha: Any) -> Any:
        """The least type II error of a test of level alpha: max over eps of the two lines each (eps, delta) gives."""
        checks.within("alpha", alpha, 0.0, 1.0)
        # Fewer lines give a lower curve, which is the safe side; beyond this eps they are all but flat.
        eps = np.linspace(0.0, min(self.epsilon(1e-9), 50.0), 129)
        delta = np.asarray(self.delta(eps))
        a = np.asarray(alpha, float)[..., None]
        lines = np.maximum(1 - delta - np.exp(eps) * a, np.exp(-eps) * (1 - delta - a))
        return np.maximum(lines.max(-1), 0.0)[()]

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {"format": 1, "guarantee": serial.to_form(self)}

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Guarantee:
        """The guarantee of ``to_dict``.

        Raises:
            ValueError: it is none.
        """
        made = serial.from_form(form.get("guarantee") if form.get("format") == 1 else None)
        if not isinstance(made, cls):
            raise ValueError("form: is not a guarantee of format 1")
        serial.check_terms(made.terms)
        return made

    @classmethod
    def from_json(cls, text: str) -> Guarantee:
        """The guarantee of ``to_json``."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guarantee) and self.to_dict() == other.to_dict())

    def __hash__(self) -> int:
        return hash(self.to_json())

    def plot(self, path: Path | str, *, epsilon: float | None = None) -> None:
        """Draw the privacy profile and the trade-off curve into a .png.

        Args:
            path: the file.
            epsilon: the largest eps shown; by default where delta is 1e-9.
        """
        from accountants.plots import draw_guarantee

        draw_guarantee(self, Path(path), epsilon)


def guarantee(mechanism: Any, sensitivity: Any = None) -> Guarantee:
    """What one report of a mechanism, or of its exact form, reveals.

    Args:
        mechanism: a mechanism of dpkernels, its exact form (then the integers are accounted), or a pair of laws of
            ``accountants.pairs``, such as those that ``weights``, ``randomised_response`` and ``densities`` make.
        sensitivity: D of an additive mechanism, by default its claim's; others take none.

    Raises:
        TypeError: an unknown mechanism.
        ValueError: no sensitivity for an additive mechanism, or one for another; a pair that is none of laws.
    """
    if isinstance(mechanism, Atoms | Densities | Mixed | Placed | Shifted):
        take_none(sensitivity)
        if not isinstance(mechanism, Densities) and namespace(*jax.tree.leaves(mechanism)) is np:
            serial.check_pair(mechanism)
        return Guarantee((Term(with_mirror(mechanism), 1),))
    return Guarantee((Term(worst_pairs(mechanism, sensitivity), 1),))


_READINGS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "delta": characteristic.delta_at,
    "epsilon": characteristic.epsilon_at,
    "renyi": lambda parts, order, _: (characteristic.renyi(parts, order), jnp.bool_(True)),
}


@partial(jax.jit, static_argnames=("what", "size"))
def _contour(made: Guarantee, at: Any, what: str, size: tuple[int, float]) -> tuple[Any, Any]:
    """(largest value over both directions, whether it has converged), point by point."""
    directions = made.directions()

    def one(point: Any) -> tuple[Any, Any]:
        values, good = zip(*(_READINGS[what](parts, point, size) for parts in directions), strict=True)
        return jnp.stack(values).max(0), jnp.stack(good).all(0)

    if jnp.ndim(at) == 0:
        return one(at)
    values, good = jax.lax.map(one, at.ravel())
    return values.reshape(at.shape), good.reshape(at.shape)


def _exact_delta(made: Guarantee, epsilon: Any) -> Any:
    value = profile(both_ways(made.terms[0].pairs), epsilon)
    return float(value) if np.ndim(value) == 0 else value


def _exact_epsilon(made: Guarantee, delta: Any) -> Any:
    from accountants.profile import epsilon_of

    return epsilon_of(both_ways(made.terms[0].pairs), delta)
