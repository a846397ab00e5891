"""Reports on Poisson samples whose neighbours replace one record by another.

Given the rest of a sample, which shifts all three alike, the laws of a report are f without the record, and P and Q of
density

    p = (1 - r) f + r f(. - a),    q = (1 - r) f + r f(. - b),    |a|, |b| <= D

with the one record or the other, each in the sample with probability r.

Noise with f even and falling from 0: (a, b) = (D, -D) is the worst at every eps >= 0. At rate 1 it is noise moved by
2 D. Bounded mechanisms without a sensitivity, any three inputs: with e^eps' = 1 + r (e^eps - 1),
delta'(eps') <= r delta(eps) (advanced joint convexity, Balle, Barthe & Gaboardi 2018), which the worst pair's samples
attain. Proofs: docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import replaced_sticks
from accountants.pairs.base import Curve, Pair
from accountants.pairs.hockey_stick import as_float64
from accountants.pairs.losses import REACH, Losses, joined, log_ratio, panel_rule, range_of
from accountants.pairs.noise_sticks import knots_of, step_copies, width_between
from accountants.pairs.runs import Function, Spectrum, bent, between_knots
from accountants.pairs.runs import joined as all_of
from accountants.pairs.sampled import upper, with_added_record
from accountants.pairs.shifted import Shifted, unseen
from accountants.pairs.tables import Atoms
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real, floating, namespace
from dpkernels.pytrees import pytree

# Panels of a piece: of exponentials, and of a Gaussian, where the loss bends within sigma^2/D.
_PANELS, _GAUSSIAN_PANELS = 8, 96
# What symmetric pairs may differ by from their mirrors: given, and in the precision of a trace.
_CONCRETE, _TRACED = 1e-9, 1e-4


def check_replaceable(pairs: tuple[Any, ...]) -> None:
    """Refuse pairs whose worst replaced record is not known.

    Raises:
        ValueError: asymmetric noise, tables or densities, or bounded mechanisms with a sensitivity; says why.
        TypeError: a pair of an unknown type.
    """
    for pair in pairs:
        if getattr(pair, "near", False):
            raise ValueError(
                "adjacency: 'replace' may move a value by twice the sensitivity that this bounded mechanism was made "
                "for; take 'add_remove', or a mechanism for any two inputs"
            )
        odd = checks.concrete(pair.asymmetry())
        if odd is not None and not odd <= _CONCRETE:
            raise ValueError(
                "adjacency: 'replace' is known for even noise and for tables whose second row is the first one "
                f"reversed; this {type(pair).__name__} is neither, or under tracing not known to be"
            )


@pytree
@dataclass(frozen=True)
class Replaced(Pair):
    """The worst pair of one release on a Poisson sample with one record replaced; its own mirror.

    Attributes:
        pair: a worst pair of the release on all the data, that of one of two records.
        rate: r, in (0, 1].
    """

    pair: Pair
    rate: Any

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """That of the pair without samples."""
        return self.pair.joint

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        """Whether it is Gaussian noise alone, or not noise; see ``replaced_stick``."""
        if isinstance(self.pair, Shifted):
            return self.pair.rounds_up and not len(self.pair.noise.edges)
        return not _is_lattice(self.pair)

    def hockey_stick(self) -> Curve:
        return replaced_stick(self.pair, self.rate)

    def largest_loss(self) -> Any:
        raise TypeError("pair: Replaced has no known largest loss")

    def losses(self, panels: int = 0) -> Losses:
        return replaced_losses(self.pair, self.rate, panels)

    def spectrum(self) -> Spectrum:
        return replaced_spectrum(self.pair, float(self.rate))

    def mirror(self) -> Replaced:
        return self

    def asymmetry(self) -> Any:
        return 0.0

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
        check_replaceable((self.pair,))


def _is_lattice(pair: Any) -> bool:
    return isinstance(pair, Atoms) and pair.moved is not None


@singledispatch
def replaced_stick(pair: Any, rate: Any) -> Curve:
    """The hockey stick of the worst pair, exactly, from a pair of inputs without samples.

    Bounded mechanisms have that of an added record; a pair is its own mirror up to rounding, and so the larger of both.
    """
    sticks = [with_added_record(upper(one), rate) for one in (pair, *([pair.mirror()] if pair.has_two_ways else []))]
    known = jnp.where(pair.asymmetry() <= _TRACED, 1.0, jnp.nan)
    return lambda eps: known * jnp.stack([stick(eps) for stick in sticks]).max(0)


@replaced_stick.register
def _(pair: Shifted, rate: Any) -> Curve:
    D = jnp.abs(pair.shift)
    if pair.noise.law.degree:
        return replaced_sticks.of_noise(pair.noise, D, rate)
    nodes = _of_steps(pair, _Laws.of(pair, rate))
    return lambda eps: jnp.maximum(nodes.p - jnp.exp(eps)[..., None] * nodes.q, 0.0).sum(-1)


@replaced_stick.register
def _(pair: Atoms, rate: Any) -> Curve:
    if pair.moved is None:
        return replaced_stick.dispatch(object)(pair, rate)
    return _three(pair, rate).hockey_stick()


@singledispatch
def replaced_losses(pair: Any, rate: Any, panels: int = 0) -> Losses:
    """The nodes of the worst pair, from a pair of inputs without samples; JAX arrays; panels as in ``losses``."""
    return _bounded_losses(pair, rate, panels)


def _bounded_losses(pair: Any, rate: Any, panels: int) -> Losses:
    whole = pair.losses(panels).sampled(rate).both_ways()
    return whole.scaled(jnp.where(pair.asymmetry() <= _TRACED, 1.0, jnp.nan))


@singledispatch
def replaced_spectrum(pair: Any, rate: float) -> Spectrum:
    """The atoms and runs of the worst pair."""
    return _bounded_spectrum(pair, rate)


def _bounded_spectrum(pair: Any, rate: float) -> Spectrum:
    return pair.spectrum().sampled(rate).both_ways()


# Laws on a lattice


@replaced_losses.register
def _(pair: Atoms, rate: Any, panels: int = 0) -> Losses:
    return _bounded_losses(pair, rate, panels) if pair.moved is None else _three(pair, rate).losses()


@replaced_spectrum.register
def _(pair: Atoms, rate: float) -> Spectrum:
    return _bounded_spectrum(pair, rate) if pair.moved is None else _three(pair, rate).spectrum()


def _three(pair: Atoms, rate: Any) -> Atoms:
    """p moved forwards and back: p has the weights in front and q, which is as much further on, behind."""
    n = int(pair.moved or 0)
    xp = namespace(pair.p, rate)
    none = xp.zeros(n)
    middle = xp.concatenate([pair.q, none])
    forth, back = xp.concatenate([none, pair.q]), xp.concatenate([pair.p, none])
    return Atoms((1 - rate) * middle + rate * forth, (1 - rate) * middle + rate * back)


def replaced_atoms(pair: Atoms, rate: Any) -> Atoms:
    """The worst pair of a table, as a table."""
    if pair.moved is not None:
        return _three(pair, rate)
    xp = namespace(pair.p, pair.q, rate)
    p, q = rate * pair.p + (1 - rate) * pair.q, pair.q
    # What is rounding would count twice, and be taken off from the rest.
    positive = p > q * (1 + 64 * xp.finfo(p.dtype).eps)
    p, q = xp.where(positive, p, 0.0), xp.where(positive, q, 0.0)
    rest = xp.maximum(1 - p.sum(keepdims=True) - q.sum(keepdims=True), 0.0)
    known = xp.where(pair.asymmetry() <= _TRACED, 1.0, xp.nan)
    return Atoms(known * xp.concatenate([p, q, rest]), xp.concatenate([q, p, rest]))


# Noise with a density


@dataclass(frozen=True)
class _Laws:
    """P and Q of noise f at rate r, for records that move it by D either way."""

    noise: Distribution
    D: Any
    rate: Any

    @classmethod
    def of(cls, pair: Shifted, rate: Any) -> _Laws:
        return cls(pair.noise, namespace(pair.shift).abs(pair.shift), rate)

    def log_p(self, y: Real) -> Any:
        return self._mixed(y, self.D)

    def log_q(self, y: Real) -> Any:
        return self._mixed(y, -self.D)

    def _mixed(self, y: Real, shift: Any) -> Any:
        """log of (1 - r) f + r f(. - shift)."""
        logs = self.noise.log_prob(y), self.noise.log_prob(y - shift)
        xp = namespace(*logs, self.rate)
        top = jax.lax.stop_gradient(xp.maximum(*logs)) if xp is jnp else xp.maximum(*logs)
        top = xp.where(top > -jnp.inf, top, 0.0)
        total = (1 - self.rate) * xp.exp(logs[0] - top) + self.rate * xp.exp(logs[1] - top)
        return xp.where(total > 0, top + xp.log(xp.where(total > 0, total, 1.0)), -jnp.inf)

    def loss(self, y: Real) -> Any:
        """log p/q, 0 where both are 0."""
        return log_ratio(self.log_p(y), self.log_q(y))

    def steep(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """That of f at all three places, between knots; see ``Run``."""
        law, middle = self.noise.law, (left + right) / 2
        scores = [np.abs(law.score(middle - place)) for place in (0.0, self.D, -self.D)]
        bend = float(-law.score(np.float64(1.0))) if law.degree == 2 else 0.0
        return bent(np.max(scores, axis=0), bend, right - left)

    def beyond(self, y: Real) -> tuple[Any, Any]:
        """Masses of P and Q beyond y + D."""
        middle, near, far = (self.noise.sf(y + by * self.D) for by in (1, 0, 2))
        return (1 - self.rate) * middle + self.rate * near, (1 - self.rate) * middle + self.rate * far


@replaced_losses.register
def _(pair: Shifted, rate: Any, panels: int = 0) -> Losses:
    return (_of_steps, _of_exponentials, _of_gaussians)[pair.noise.law.degree](pair, _Laws.of(pair, rate), panels)


def _ends(pair: Shifted) -> Any:
    """All knots, increasing."""
    knots, D = knots_of(pair), jnp.abs(pair.shift)
    return jnp.sort(jnp.concatenate([knots - D, knots, knots + D]))


def _of_steps(pair: Shifted, laws: _Laws, panels: int = 0) -> Losses:
    ends = _ends(pair)
    at = (ends[:-1] + ends[1:]) / 2
    mass = width_between(ends[:-1], ends[1:], laws.D) * step_copies(pair, at)
    loss = laws.loss(at)
    return Losses(mass * jnp.exp(laws.log_p(at)), mass * jnp.exp(laws.log_q(at)), loss, 0 * mass)


def _of_exponentials(pair: Shifted, laws: _Laws, panels: int) -> Losses:
    """Beyond all knots the loss is constant."""
    ends = _ends(pair)
    return joined(
        [_between(ends, laws, max(_PANELS, panels // (len(ends) - 1)), panels > 0), _outer(laws, knots_of(pair).max())]
    )


def _outer(laws: _Laws, last: Real) -> Losses:
    p, q = (mass[None] for mass in laws.beyond(last))
    some = q > 0
    loss = jnp.where(some, jnp.log(jnp.where(some, p, 1.0)) - jnp.log(jnp.where(some, q, 1.0)), 0.0)
    upper = Losses(p, q, loss, 0 * p)
    return joined([upper, upper.mirrored()])


def _of_gaussians(pair: Shifted, laws: _Laws, panels: int) -> Losses:
    ends = _within_reach(pair, laws)
    return _between(ends, laws, max(12, max(panels, _GAUSSIAN_PANELS) // (len(ends) - 1)), panels > 0 and len(ends) > 2)


def _within_reach(pair: Shifted, laws: _Laws) -> Any:
    law: Any = pair.noise.law
    limit = jnp.abs(pair.shift) + REACH * law.sigma + floating(jnp.zeros(1))
    if len(law.knots) + len(pair.noise.edges) == 0:
        return jnp.concatenate([-limit, limit])
    return jnp.concatenate([-limit, jnp.clip(_ends(pair), -limit, limit), limit])


def _between(ends: Any, laws: _Laws, panels: int, dense: bool) -> Losses:
    """Nodes between knots."""
    share, weight = panel_rule(panels, ends, dense=dense)
    width = width_between(ends[:-1], ends[1:], laws.D)[:, None]
    y = ends[:-1, None] + width * share
    loss = laws.loss(y)
    finite = jnp.where(jnp.isfinite(loss), loss, 0.0)
    flat = jnp.ptp(finite, axis=1, keepdims=True) <= 1e-13 * (1 + jnp.abs(finite))
    p, q = (width * weight * jnp.exp(log(y)) for log in (laws.log_p, laws.log_q))
    return Losses(*map(jnp.ravel, (p, q, loss, jnp.where(flat, 0.0, range_of(finite)))))


@replaced_spectrum.register
def _(pair: Shifted, rate: float) -> Spectrum:
    pair = as_float64(pair)
    laws = _Laws.of(pair, rate)
    degree = pair.noise.law.degree
    with jax.enable_x64(True):
        if degree == 0:
            return _of_atoms(_of_steps(pair, laws))
        ends = np.asarray(_within_reach(pair, laws) if degree == 2 else _ends(pair))
        outer = [] if degree == 2 else [_of_atoms(_outer(laws, knots_of(pair).max()))]
    between = between_knots(_exp(laws.log_p), _exp(laws.log_q), laws.loss, ends, laws.steep)
    whole = all_of([between, *outer])
    return dataclasses.replace(whole, unseen=unseen(pair.noise))


def _of_atoms(nodes: Losses) -> Spectrum:
    p, q, loss = (np.asarray(leaf) for leaf in (nodes.p, nodes.q, nodes.loss))
    return Spectrum(p, q, loss, ())


def _exp(log_density: Function) -> Function:
    return lambda y: np.exp(log_density(y))
