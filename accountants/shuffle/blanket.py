"""What hides a report among others: the blanket of a local mechanism, and its worst pair of inputs.

With laws R_x of the reports, gamma = sum_y min_x R_x(y) and omega(y) = min_x R_x(y)/gamma, every report is with
probability gamma a draw of omega, whatever its input (Balle, Bell, Gascon & Nissim 2019). Of two inputs x, x' let
L(y) = (R_x(y) - e^eps R_x'(y))/omega(y), y ~ omega. What n reports without their senders reveal about one of them is

    delta(eps) <= max over x, x' of  E[(L_1 + ... + L_M)_+]/(gamma n),    M ~ Bin(n, gamma),

and with gamma = 1, omega = R_x0 it is exactly that where all others hold x0: a lower bound of the worst case.

Which pair: one of which E(L - t)_+ is largest at every t is the worst. The ends are, of a window that falls from its
middle on such a base, if windows at the two ends do not overlap or both are flat. Proofs: docs/proofs/shuffle.md.
"""

from __future__ import annotations

from functools import lru_cache, partial, singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs.discrete import pure_points
from accountants.dominating_pairs.registry import pure_epsilon
from accountants.shuffle.crowds import Blanket, Reports, different_pairs, of_level
from dpkernels import checks
from dpkernels.exact.combined import ExactMixture, ExactMultivariate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.rows.sampler import ExactRows
from dpkernels.exact.windows.sampler import ExactWindow
from dpkernels.exact.windows.table import WindowTable
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.additive_vector import AdditiveVector
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed, critical_points
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.numerics import gauss_legendre, like, namespace

_NODES, _WEIGHTS = gauss_legendre(16)
# Tables whose pairs are all gone through: rows squared times outcomes. Of larger ones only the level and gamma count.
_MOST_CELLS = 1 << 21
# Where pairs of a table are compared (shares of eps0, of the range of L), and how many are kept.
# Tables of so few rows are looked through for pairs that are different; so many at most are all kept.
_FEW_ROWS, _ALL = 24, 12
_SHARES, _LEVELS, _KEPT = (0.02, 0.1, 0.25, 0.5, 0.8), np.linspace(0.0, 1.0, 26)[1:-1], 6


@singledispatch
def blanket(mechanism: Any) -> Blanket:
    """The blanket of a local mechanism, of its exact form (then of the integers), or of a table of rows.

    Args:
        mechanism: bounded, and eps0-DP for any two inputs; or a 2-D array whose row x are the probabilities of the
            reports of x, such as randomised response on k categories.

    Raises:
        TypeError: an unknown mechanism.
        ValueError: one without a blanket, with the reason.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known blanket")


@blanket.register(Additive)
@blanket.register(AdditiveVector)
@blanket.register(ExactNoise)
def _(mechanism: Any) -> Blanket:
    raise ValueError(
        "mechanism: additive noise says nothing of where its inputs are, so that no report is likely whatever its "
        "input: nothing hides a report among others; shuffle reports of a bounded mechanism, such as piecewise"
    )


@blanket.register
def _(mechanism: CentralPiecewise) -> Blanket:
    raise ValueError(_NEAR)


_NEAR = (
    "mechanism: is private for inputs within a sensitivity only; a person's input may change to any other, so shuffled "
    "reports need a mechanism that is eps0-DP for any two inputs"
)


@blanket.register(Multivariate)
def _(mechanism: Multivariate) -> Blanket:
    """Of one coordinate of d: which one is drawn apart from the data, and every one may move from end to end."""
    return _of_one(mechanism, mechanism.coordinate)


@blanket.register(ExactMultivariate)
def _(mechanism: ExactMultivariate) -> Blanket:
    return _of_one(mechanism.mechanism, mechanism.coordinate)


def _of_one(mechanism: Multivariate, coordinate: Any) -> Blanket:
    if mechanism.sampled > 1:
        raise ValueError(
            f"mechanism: a report holds {mechanism.sampled} coordinates, whose blanket is not known here; shuffle "
            "reports of one coordinate (sampled=1)"
        )
    return blanket(coordinate)


@blanket.register
def _(mechanism: TwoPoint) -> Blanket:
    """The two ends: both probabilities are affine in the input."""
    pair = pure_points(mechanism.epsilon)
    first, second = pair.p, pair.q
    xp = namespace(first)
    others = xp.stack([second, (first + second) / 2, first])
    return Blanket((Reports(xp.minimum(first, second), first, second, others),), mechanism.epsilon)


@blanket.register(Mixture)
@blanket.register(ExactMixture)
def _(mixture: Any) -> Blanket:
    """The choice revealed: E(L - t)_+ is then the sum of both parts', so a pair that is worst for both is worst."""
    weight = mixture.weight if isinstance(mixture, Mixture) else float(mixture.certificate.weight)
    return _mixed(weight, blanket(mixture.first), blanket(mixture.second))


def _mixed(weight: Any, first: Blanket, second: Blanket) -> Blanket:
    if first.stop_loss or second.stop_loss or not all(len(part.pairs[0].others) for part in (first, second)):
        raise ValueError("mechanism: the worst pair of a part of this mixture is not known, so that of both is not")
    parts = [jax.tree.map(partial(_times, w), part.pairs[0]) for w, part in ((weight, first), (1 - weight, second))]
    xp = namespace(*jax.tree.leaves(parts))
    joined = jax.tree.map(lambda *masses: xp.concatenate(masses, axis=-1), *parts)
    return Blanket((joined,), xp.maximum(first.level, second.level), exact=first.exact and second.exact)


def _times(weight: Any, mass: Any) -> Any:
    return weight * mass


@blanket.register
def _(mechanism: Windowed) -> Blanket:
    """The two ends, where window and base fall from their middles; else any mechanism of its level and gamma.

    That the ends are worst is proven where a window is at most half as wide as the output interval, or both are flat.
    Flat windows on flat bases have three outcomes; of others there are nodes of a quadrature between all knots.
    """
    if not (mechanism.window.falls and mechanism.base.falls):
        v = critical_points(mechanism.window, mechanism.base, float(mechanism.width))
        low = mechanism.envelope((v[1:] + v[:-1]) / 2)[1]
        return Blanket(
            (of_level(pure_epsilon(mechanism), 2 * (low * np.diff(v)).sum()),), pure_epsilon(mechanism), exact=False
        )
    reach = 1 - mechanism.width / 2
    v, weight = _quadrature(mechanism)
    first, second, middle = (weight * _density(mechanism, v, at) for at in (reach, -reach, 0.0))
    least = weight * mechanism.envelope(v)[1]
    if namespace(first) is np:
        made = Reports(least, first, second, np.stack([second, middle, first]))
        return Blanket((made,), pure_epsilon(mechanism), exact=len(made.upper.merged.mass) <= 3)
    made = Reports(least, first, second, jnp.stack([second, first]))
    return Blanket((made,), jnp.log((made.upper.p / made.upper.q).max()), exact=False)


def _density(m: Windowed, v: Any, middle: Any) -> Any:
    return m.level * m.base.density(v) + m.height * m.window.density((v - middle) / m.width + 0.5)


def _quadrature(m: Windowed) -> tuple[Any, Any]:
    """Nodes on [-1, 1] between the knots of the laws, and their weights; in NumPy also those of the middle input.

    Under JAX knots of two laws that meet would have the derivatives of either.
    """
    reach, bends = 1 - m.width / 2, m.width * m.window.kinks
    fixed = np.concatenate([m.base.kinks, [0.0, 1.0]])
    knots = [fixed + 0 * reach, bends - reach, bends + reach, reach - bends]
    xp = namespace(*knots)
    knots = [*knots, bends] if xp is np else knots
    right = xp.sort(xp.clip(xp.concatenate(knots), 0.0, 1.0))
    ends = xp.concatenate([-right[::-1], right])
    width = xp.diff(ends)[:, None]
    v, weight = ends[:-1, None] + width * like(_NODES, ends), width * like(_WEIGHTS, ends)
    return v.ravel(), weight.ravel()


@blanket.register
def _(mechanism: SquareWave) -> Blanket:
    return blanket(mechanism.unbiased)  # The same reports, stretched.


@blanket.register
def _(form: ExactWindow) -> Blanket:
    return _of_window(form.table)


def _of_window(table: WindowTable) -> Blanket:
    """The first and the last row, where weights fall from their middles; else any table of its level and gamma."""
    total, (high, low) = float(table.total), table.extremes()
    level, least = float(np.log(float((high / low).max()))), low.astype(float) / total
    if not table.falls:
        return Blanket((of_level(level, least.sum()),), level)
    last, first, middle = (table.row(s).astype(float) / total for s in (0, table.shifts, table.shifts // 2))
    made = Reports(least, first, last, np.stack([last, middle, first]))
    if table.is_flat or len(table.window) <= table.shifts:
        return Blanket((made,), level)
    return Blanket((made,), level, partial(_overlapping, made))


def _overlapping(ends: Reports, E: float, t: np.ndarray) -> np.ndarray:
    """The proof's bound without its last step: of the other window nothing is taken off but what all inputs have.

    For t >= gamma (1 - e^eps), and of the complement below.
    """
    gamma = ends.least.sum()
    far, near = ends.first - E * ends.least, E * ends.second - ends.least

    def bound(at: float) -> float:
        if at >= gamma * (1 - E):
            return float(np.maximum(far - at / gamma * ends.least, 0.0).sum())
        return float(1 - E - at + np.maximum(near + at / gamma * ends.least, 0.0).sum())

    return np.array([bound(at) for at in t])


@blanket.register
def _(mechanism: Optimal) -> Blanket:
    if mechanism.sensitivity is not None:
        raise ValueError(_NEAR)
    return blanket(np.asarray(mechanism.probabilities, float))


@blanket.register
def _(form: ExactRows) -> Blanket:
    if form.certificate.sensitivity is not None:
        raise ValueError(_NEAR)
    return blanket(form.table.weights / float(1 << form.table.bits))


@blanket.register(np.ndarray)
def _(rows: np.ndarray) -> Blanket:
    checks.within("mechanism", rows, 0.0, 1.0)
    if rows.ndim != 2 or len(rows) < 2 or not np.all(np.abs(rows.sum(1) - 1) <= 1e-9):
        raise ValueError(
            f"mechanism: of shape {rows.shape}; two rows or more of probabilities that add up to 1 are needed"
        )
    rows = (rows / rows.sum(1, keepdims=True))[:, rows.any(0)].astype(float)
    if not rows.all():
        raise ValueError("mechanism: a report that some input never gives tells its sender; no row may have a 0 for it")
    return _of_rows(rows.tobytes(), rows.shape)


@lru_cache(maxsize=16)
def _of_rows(raw: bytes, shape: tuple[int, ...]) -> Blanket:
    rows = np.frombuffer(raw).reshape(shape)
    level, least = float(np.log((rows.max(0) / rows.min(0)).max())), rows.min(0)
    if rows.size * len(rows) > _MOST_CELLS:
        return Blanket((of_level(level, least.sum()),), level)
    others = rows[np.unique(np.linspace(0, len(rows) - 1, 5).round().astype(int))]
    different = different_pairs(rows) if len(rows) <= _FEW_ROWS else []
    known = 0 < len(different) <= _ALL
    pairs = tuple(
        Reports(least, rows[x], rows[y], others) for x, y in (different if known else _likely_worst(rows, level))
    )
    return Blanket(pairs, level, None if known else partial(largest, rows))


def _likely_worst(rows: np.ndarray, level: float) -> list[tuple[int, int]]:
    """The pairs of which E(L - t)_+ is the largest at most of some eps and t, and the first and the last row."""
    omega, wins = rows.min(0) / rows.min(0).sum(), np.zeros((len(rows), len(rows)))
    for E in np.exp(np.array(_SHARES) * level):
        ends = (rows[0] - E * rows[-1]) / omega
        values = np.stack([_of_row(rows, x, E, ends.min() + _LEVELS * np.ptp(ends)) for x in range(len(rows))])
        wins += (values >= values.max((0, 1)) * (1 - 1e-12)).sum(-1)
    found = [tuple(map(int, divmod(at, len(rows)))) for at in np.argsort(-wins, axis=None, kind="stable")[:_KEPT]]
    kept = dict.fromkeys([pair for pair in found if wins[pair]] + [(len(rows) - 1, 0)])
    return list(kept)  # type: ignore[arg-type]


def _of_row(rows: np.ndarray, x: int, E: float, t: np.ndarray) -> np.ndarray:
    """E(L - t)_+ of x and every other row: (row, t)."""
    omega, gaps = rows.min(0) / rows.min(0).sum(), rows[x] - E * rows
    return np.stack([np.maximum(gaps - at * omega, 0.0).sum(1) for at in t], 1)


def largest(rows: np.ndarray, E: float, t: np.ndarray) -> np.ndarray:
    """max over all pairs of rows of E(L - t)_+."""
    return np.max([_of_row(rows, x, E, t).max(0) for x in range(len(rows))], axis=0)
