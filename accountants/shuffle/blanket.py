"""The blanket of a local mechanism, which hides a report among others, and the mechanism's worst pair of inputs.

With R_x the distribution of the reports of x, gamma = sum_y min_x R_x(y) and omega(y) = min_x R_x(y)/gamma, every
report is a draw of omega with probability gamma, whatever its input (Balle, Bell, Gascon & Nissim 2019). For two inputs
x, x' let L(y) = (R_x(y) - e^eps R_x'(y))/omega(y), y ~ omega. One of n shuffled reports has

    delta(eps) <= max over x, x' of  E[(L_1 + ... + L_M)_+]/(gamma n),    M ~ Bin(n, gamma).

With gamma = 1 and omega = R_x0, the right side is the exact delta if all other people hold x0, which is a lower bound
of the worst case.

A pair of inputs is the worst if its E(L - t)_+ is the largest at every t. For a window and a base that decrease away
from their middles, the two ends of the input interval are the worst pair, if their windows do not overlap or both
window and base are flat. Proofs: docs/proofs/shuffle.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial, singledispatch
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs.discrete import pure_points
from accountants.dominating_pairs.registry import pure_epsilon, table_of_rows
from accountants.shuffle.categories import outcome_probabilities
from dpkernels import checks
from dpkernels.exact.bounded.rows import ExactRows
from dpkernels.exact.bounded.windows import ExactWindow, WindowTable
from dpkernels.exact.categorical.prefixes import PrefixSampler
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.registry import ExactMixture, ExactMultivariate
from dpkernels.mechanisms.additive import Additive, AdditiveVector
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import SquareWave, Windowed, critical_points
from dpkernels.numerics import GAUSS_LEGENDRE, Real, RealArray, cast_like, floating, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree
from dpkernels.shapes import Float
from dpkernels.solve import rising_root

_DIGITS = 13  # Outcomes whose probabilities agree to this number of digits are merged.
_MAX_THINNED = 64  # The most outcomes from which a first value is computed.
MAX_TILTED_LOSS = 600.0  # The largest c L whose exponential is computed: L^2 e^(c L) must not overflow either.
_GAMMA_ERROR = 4e-15  # More than the rounding errors of gamma, and less than those that are allowed for in losses.
_SADDLE_TOLERANCE = 1e-4  # Last Newton step of log c, which need not be precise: all contours have the same integral.

# A function from (e^eps, t) to a bound of E(L - t)_+ over all pairs.
StopLoss = Callable[[float, np.ndarray], np.ndarray]


@pytree
@dataclass(frozen=True)
class Blanket:
    """What hides one report: each of n reports is a draw of omega with probability gamma, whatever its input.

    The other reports hide nothing and are ignored.
    """

    mass: Float[RealArray, " outcomes"]  # omega of every outcome.
    p: Float[RealArray, " outcomes"]  # R_x/omega of the hidden report.
    q: Float[RealArray, " outcomes"]  # R_x'/omega of the hidden report.
    gamma: Any  # The probability of a draw of omega.

    def losses(self, epsilon: Real) -> Float[RealArray, " outcomes"]:
        return self.p - namespace(self.p, epsilon).exp(epsilon) * self.q

    @property
    def merged(self) -> Blanket:
        """Return the blanket with equivalent outcomes merged, for NumPy; under JAX unchanged."""
        if namespace(self.mass, self.p, self.q, self.gamma) is not np:
            return self
        has_mass = np.asarray(self.mass) > 0
        mass, p, q = (np.asarray(column, float)[has_mass] for column in (self.mass, self.p, self.q))
        scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.stack([p, q]))))
        keys = np.round(np.stack([p, q]) * scale) / scale
        _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        group = np.argsort(np.argsort(first))[group.ravel()]  # In the outcomes' order.
        total = np.bincount(group, mass)
        p, q = (np.bincount(group, mass * column) / total for column in (p, q))
        return Blanket(total, p, q, float(self.gamma))

    @property
    def thinned(self) -> Blanket:
        """Return at most ``_MAX_THINNED`` outcomes: of each group its mean plus and minus its deviation along q - p."""
        if len(self.mass) <= _MAX_THINNED:
            return self
        mass, p, q = self.mass, self.p, self.q
        cumulative = np.cumsum(mass * np.hypot(p, q))
        block = np.minimum((cumulative / cumulative[-1] * (_MAX_THINNED // 2)).astype(int), _MAX_THINNED // 2 - 1)
        block = np.unique(block, return_inverse=True)[1]
        total = np.bincount(block, mass)
        means = [np.bincount(block, mass * column) / total for column in (p, q)]
        deviations = [column - mean[block] for column, mean in zip((p, q), means, strict=True)]
        direction = np.sign(np.bincount(block, mass * deviations[0] * deviations[1]))
        spread = [np.sqrt(np.bincount(block, mass * gap**2) / total) for gap in deviations]
        moves = spread[0], np.where(direction < 0, -1.0, 1.0) * spread[1]
        p, q = (np.append(mean - move, mean + move) for mean, move in zip(means, moves, strict=True))
        return Blanket(np.append(total, total) / 2, p, q, self.gamma)


@pytree
@dataclass(frozen=True)
class OutcomeProbabilities:
    """The probability of every outcome of a report, for one pair of inputs x, x' and next to all inputs."""

    least: Float[RealArray, " outcomes"]  # The smallest over all inputs.
    first: Float[RealArray, " outcomes"]  # Under the input x.
    second: Float[RealArray, " outcomes"]  # Under x'.
    others: Float[RealArray, "others outcomes"]  # Of shape (k, outcomes), under inputs that all others may hold.

    @property
    def upper(self) -> Blanket:
        """Return the blanket that bounds the delta of any neighbours' n reports."""
        gamma = self.least.sum()
        return self._in_blanket(self.least / gamma, gamma)

    @property
    def lower(self) -> tuple[Blanket, ...]:
        """Return blankets of others that all hold one input: lower bounds of the worst delta."""
        return tuple(self._in_blanket(row, 1.0) for row in self.others)

    def _in_blanket(self, mass: Float[RealArray, " outcomes"], gamma: Real) -> Blanket:
        xp = namespace(mass)
        has_mass = mass > 0  # Panels of no width have no mass, under JAX.
        p, q = (xp.where(has_mass, column / xp.where(has_mass, mass, 1.0), 1.0) for column in (self.first, self.second))
        return Blanket(mass, p, q, gamma)


def moments(mass: Float[RealArray, " outcomes"], L: Float[RealArray, " outcomes"], c: Real) -> tuple[Real, Real, Real]:
    """Return E(e^(c L) - 1), E L e^(c L) and E L^2 e^(c L) of losses L with these masses, and 0 otherwise."""
    xp = namespace(mass, L, c)
    x = xp.minimum(c * L, MAX_TILTED_LOSS)
    grown = mass * xp.exp(x) * L
    return (mass * xp.expm1(x)).sum(), grown.sum(), (grown * L).sum()


def shuffled_saddle_point(
    mass: Float[RealArray, " outcomes"], L: Float[RealArray, " outcomes"], n: Real
) -> tuple[Real, Real]:
    """Return c with K'(c) = 2/c by Newton's method, and K''(c), K the cumulant generating function of n such losses."""
    xp = namespace(mass, L, n)
    highest = xp.log(MAX_TILTED_LOSS / xp.maximum(L.max(), 1e-300))

    def excess(log_c: Real) -> tuple[Real, Real]:
        c = xp.exp(log_c)
        moment, first_derivative, second_derivative = moments(mass, L, c)
        rise, second_derivative = c * first_derivative / (1 + moment), c**2 * second_derivative / (1 + moment)
        return n * rise - 2, n * (rise + second_derivative - rise**2)

    # The root of the equation with the cumulants at 0.
    _, mean, square = moments(mass, L, 0.0 * highest)
    spread = n * xp.maximum(square - mean**2, 1e-300)
    start = xp.log(xp.sqrt((n * mean) ** 2 + 8 * spread) - n * mean) - xp.log(2 * spread)
    low = highest - 80.0
    (log_c,) = rising_root(excess, xp.clip(start, low, highest), low, highest, _SADDLE_TOLERANCE)
    c = xp.exp(log_c)
    moment, first_derivative, second_derivative = moments(mass, L, c)
    return c, n * xp.maximum(second_derivative / (1 + moment) - (first_derivative / (1 + moment)) ** 2, 0.0)


@dataclass(frozen=True)
class WorstInputs:
    """The pairs of inputs of a mechanism that may be the worst."""

    pairs: tuple[OutcomeProbabilities, ...]  # The pairs for which values are computed; the result is their maximum.
    pure_epsilon: Any  # eps0, from which on delta is 0.
    # A bound over all pairs, for a rigorous bracket; None where one of ``pairs`` is proven worst.
    stop_loss: StopLoss | None = None
    # Whether the probabilities are those of the mechanism up to rounding, not nodes of a quadrature.
    is_exact: bool = True


def most_informative_outcomes(eps0: Real, gamma: Real) -> OutcomeProbabilities:
    """Return reports at least as informative as any mechanism's of this eps0 and gamma (docs/proofs/shuffle.md).

    R_x/omega and R_x'/omega are each gamma e^eps0 with probability w = (1/gamma - 1)/(e^eps0 - 1), and gamma otherwise.
    A lesser gamma is that of the same mechanism too. It keeps rounding of 1/gamma - 1 from making w too small.
    """
    high, gamma = np.exp(eps0), gamma * (1 - _GAMMA_ERROR)
    w = min((1 / gamma - 1) / np.expm1(eps0), 1.0)
    p_both = max(2 * w - 1, 0.0)  # The probability that both are high.
    mass = gamma * np.array([w - p_both, w - p_both, p_both, 1 - 2 * w + p_both])
    first, second = (mass * np.where(is_high, high, 1.0) for is_high in ([1, 0, 1, 0], [0, 1, 1, 0]))
    return OutcomeProbabilities(mass, first, second, np.zeros((0, 4)))


def different_pairs(rows: Float[np.ndarray, "rows outcomes"]) -> list[tuple[int, int]]:
    """Return one pair of rows of each class of pairs that differ only by renaming reports."""
    least = rows.min(0)
    pairs: dict[bytes, tuple[int, int]] = {}
    for x, y in permutations(range(len(rows)), 2):
        columns = np.stack([least, rows[x], rows[y]])
        pairs.setdefault(columns[:, np.lexsort(columns)].tobytes(), (x, y))
    return list(pairs.values())


# The largest tables, rows squared times outcomes, whose pairs are all tried; larger ones use eps0 and gamma only.
_MAX_CELLS = 1 << 21
_MAX_COMPARED_ROWS = 24  # Tables of so many rows are searched for all pairs of rows that differ.
_MAX_ALL_PAIRS = 12  # Up to so many of these pairs are all kept.
# Points at which the pairs of other tables are compared:
_EPSILON_SHARES = (0.02, 0.1, 0.25, 0.5, 0.8)  # shares of eps0,
_THRESHOLD_SHARES = np.linspace(0.0, 1.0, 26)[1:-1]  # and shares of the range of L.
_KEPT_PAIRS = 6  # How many pairs are kept, those that are the worst at most points.


@proven("shuffle#proof")
@singledispatch
def worst_inputs(mechanism: object) -> WorstInputs:
    """Return the worst inputs of a local mechanism, of its exact sampler (then of the integers), or of a table of rows.

    The mechanism is bounded, and eps0-DP for any two inputs. Row x of a table has the probabilities of the reports of
    x, such as randomised response on k categories. An error says why a mechanism has no blanket.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known blanket")


@worst_inputs.register(Additive)
@worst_inputs.register(AdditiveVector)
@worst_inputs.register(ExactNoise)
def _(mechanism: Any) -> WorstInputs:
    raise ValueError(
        "mechanism: inputs of additive noise are unbounded, so no report is likely for every input, and "
        "shuffling hides no report among the others; shuffle reports of a bounded mechanism, such as piecewise"
    )


@worst_inputs.register
def _(mechanism: PrefixSampler) -> WorstInputs:
    raise TypeError("mechanism: reports of prefixes have no known blanket; shuffle reports of one level")


_NEEDS_ANY_INPUTS = (
    "mechanism: is private only for inputs within a sensitivity; a person's input may change to any other, so shuffled "
    "reports need a mechanism that is eps0-DP for any two inputs"
)


@worst_inputs.register
def _(mechanism: CentralPiecewise) -> WorstInputs:
    raise ValueError(_NEEDS_ANY_INPUTS)


@worst_inputs.register(Multivariate)
@worst_inputs.register(ExactMultivariate)
def _(mechanism: Any) -> WorstInputs:
    """Return those of one coordinate, which is chosen independently of the data; each may move from end to end."""
    sampled = (mechanism if isinstance(mechanism, Multivariate) else mechanism.mechanism).sampled
    if sampled > 1:
        raise ValueError(
            f"mechanism: a report holds {sampled} coordinates, whose blanket is not known here; shuffle "
            "reports of one coordinate (sampled=1)"
        )
    return worst_inputs(mechanism.coordinate)


@worst_inputs.register
def _(mechanism: TwoPoint) -> WorstInputs:
    """Return the two ends: both probabilities are affine in the input."""
    pair = pure_points(mechanism.epsilon)
    first, second = pair.p, pair.q
    xp = namespace(first)
    others = xp.stack([second, (first + second) / 2, first])
    return WorstInputs((OutcomeProbabilities(xp.minimum(first, second), first, second, others),), mechanism.epsilon)


@worst_inputs.register(Mixture)
@worst_inputs.register(ExactMixture)
def _(mixture: ExactMixture | Mixture) -> WorstInputs:
    """Publish the choice: E(L - t)_+ is the sum of both parts', so a pair that is worst for both is the worst."""
    weight = mixture.weight if isinstance(mixture, Mixture) else float(mixture.certificate.weight)
    first, second = worst_inputs(mixture.first), worst_inputs(mixture.second)
    if first.stop_loss or second.stop_loss or not all(len(inputs.pairs[0].others) for inputs in (first, second)):
        raise ValueError("mechanism: the worst pair of a part of this mixture is not known, so that of both is not")

    def join(p: RealArray, q: RealArray) -> RealArray:
        return namespace(weight, p, q).concatenate([weight * p, (1 - weight) * q], axis=-1)

    eps0 = namespace(first.pure_epsilon, second.pure_epsilon).maximum(first.pure_epsilon, second.pure_epsilon)
    pair = jax.tree.map(join, first.pairs[0], second.pairs[0])
    return WorstInputs((pair,), eps0, is_exact=first.is_exact and second.is_exact)


@worst_inputs.register
def _(mechanism: Windowed) -> WorstInputs:
    """Return the two ends if window and base fall from their middles; else bound any mechanism of its eps0 and gamma.

    It is proven that the ends are worst where a window is at most half as wide as the output interval, or both are
    flat. Flat windows on flat bases have three outcomes. Others have nodes of a quadrature between all knots.
    """
    if not (mechanism.window.falls and mechanism.base.falls):
        knots = critical_points(mechanism.window, mechanism.base, float(mechanism.width))
        low, eps0 = mechanism.envelope((knots[1:] + knots[:-1]) / 2)[1], pure_epsilon(mechanism)
        return WorstInputs((most_informative_outcomes(eps0, 2 * (low * np.diff(knots)).sum()),), eps0, is_exact=False)
    reach = 1 - mechanism.width / 2
    v, weight = _quadrature(mechanism)
    first, second, middle = (weight * _density(mechanism, v, x) for x in (reach, -reach, 0.0))
    least = weight * mechanism.envelope(v)[1]
    if namespace(first) is np:
        outcomes = OutcomeProbabilities(least, first, second, np.stack([second, middle, first]))
        return WorstInputs((outcomes,), pure_epsilon(mechanism), is_exact=len(outcomes.upper.merged.mass) <= 3)
    outcomes = OutcomeProbabilities(least, first, second, jnp.stack([second, first]))
    return WorstInputs((outcomes,), jnp.log((outcomes.upper.p / outcomes.upper.q).max()), is_exact=False)


def _density(m: Windowed, v: Float[RealArray, " nodes"], middle: Real) -> Float[RealArray, " nodes"]:
    return m.level * m.base.density(v) + m.height * m.window.density((v - middle) / m.width + 0.5)


def _quadrature(m: Windowed) -> tuple[Float[RealArray, " nodes"], Float[RealArray, " nodes"]]:
    """Return nodes on [-1, 1] between the distributions' knots (in NumPy also the middle input's), and weights."""
    reach, bends = 1 - m.width / 2, m.width * cast_like(m.window.kinks, floating(m.width))
    fixed = np.concatenate([m.base.kinks, [0.0, 1.0]])
    knots = [fixed + 0 * reach, bends - reach, bends + reach, reach - bends]
    xp = namespace(*knots)
    knots = [*knots, bends] if xp is np else knots
    right = xp.sort(xp.clip(xp.concatenate(knots), 0.0, 1.0))
    ends = xp.concatenate([-right[::-1], right])
    width = xp.diff(ends)[:, None]
    nodes, weights = (cast_like(rule, ends) for rule in GAUSS_LEGENDRE)
    return (ends[:-1, None] + width * nodes).ravel(), (width * weights).ravel()


@worst_inputs.register(Categorical)
@worst_inputs.register(CategorySampler)
def _(mechanism: Any) -> WorstInputs:
    """Return any two categories: all pairs are alike."""
    eps0 = mechanism.epsilon if isinstance(mechanism, Categorical) else mechanism.certificate.realised_epsilon
    return WorstInputs((OutcomeProbabilities(*outcome_probabilities(mechanism)),), eps0)


@worst_inputs.register
def _(mechanism: SquareWave) -> WorstInputs:
    return worst_inputs(mechanism.unbiased)  # The same reports, stretched.


@worst_inputs.register
def _(sampler: ExactWindow) -> WorstInputs:
    """Return the first and the last row if weights fall from their middles; else any table of its eps0 and gamma."""
    table: WindowTable = sampler.table
    total, (high, low) = float(table.total), table.extremes()
    eps0, least = float(np.log(float((high / low).max()))), low.astype(float) / total
    if not table.falls:
        return WorstInputs((most_informative_outcomes(eps0, least.sum()),), eps0)
    last, first, middle = (table.row(s).astype(float) / total for s in (0, table.last_row, table.last_row // 2))
    outcomes = OutcomeProbabilities(least, first, last, np.stack([last, middle, first]))
    is_worst = table.is_flat or len(table.window) <= table.last_row
    return WorstInputs((outcomes,), eps0, None if is_worst else partial(_overlapping, outcomes))


def _overlapping(
    ends: OutcomeProbabilities, exp_epsilon: float, t: Float[np.ndarray, " levels"]
) -> Float[np.ndarray, " levels"]:
    """Return the proof's bound without its last step, at t >= gamma (1 - e^eps) and at the complement below."""
    gamma = ends.least.sum()
    first_gap, second_gap = ends.first - exp_epsilon * ends.least, exp_epsilon * ends.second - ends.least

    def bound(threshold: float) -> float:
        if threshold >= gamma * (1 - exp_epsilon):
            return float(np.maximum(first_gap - threshold / gamma * ends.least, 0.0).sum())
        return float(1 - exp_epsilon - threshold + np.maximum(second_gap + threshold / gamma * ends.least, 0.0).sum())

    return np.array([bound(threshold) for threshold in t])


@worst_inputs.register(Optimal)
@worst_inputs.register(ExactRows)
def _(mechanism: Any) -> WorstInputs:
    rows, _, sensitivity = table_of_rows(mechanism)
    if sensitivity is not None:
        raise ValueError(_NEEDS_ANY_INPUTS)
    return worst_inputs(rows)


@worst_inputs.register(np.ndarray)
def _(rows: np.ndarray) -> WorstInputs:
    checks.within("mechanism", rows, 0.0, 1.0)
    if rows.ndim != 2 or len(rows) < 2 or not np.all(np.abs(rows.sum(1) - 1) <= 1e-9):
        raise ValueError(
            f"mechanism: of shape {rows.shape}; two rows or more of probabilities that add up to 1 are needed"
        )
    rows = (rows / rows.sum(1, keepdims=True))[:, rows.any(0)].astype(float)
    if not rows.all():
        raise ValueError(
            "mechanism: a row has a 0 for a report that another row has; every report must be possible for every input"
        )
    return _rows_worst_inputs(rows.tobytes(), rows.shape)


@lru_cache(maxsize=16)
def _rows_worst_inputs(raw: bytes, shape: tuple[int, ...]) -> WorstInputs:
    rows = np.frombuffer(raw).reshape(shape)
    eps0, least = float(np.log((rows.max(0) / rows.min(0)).max())), rows.min(0)
    if rows.size * len(rows) > _MAX_CELLS:
        return WorstInputs((most_informative_outcomes(eps0, least.sum()),), eps0)
    others = rows[np.unique(np.linspace(0, len(rows) - 1, 5).round().astype(int))]
    candidates = different_pairs(rows) if len(rows) <= _MAX_COMPARED_ROWS else []
    all_kept = 0 < len(candidates) <= _MAX_ALL_PAIRS
    pairs_of_rows = candidates if all_kept else _likely_worst(rows, eps0)
    pairs = tuple(OutcomeProbabilities(least, rows[x], rows[y], others) for x, y in pairs_of_rows)
    return WorstInputs(pairs, eps0, None if all_kept else partial(largest_stop_loss, rows))


def _likely_worst(rows: Float[np.ndarray, "rows outcomes"], eps0: float) -> list[tuple[int, int]]:
    """Return the pairs whose E(L - t)_+ is most often the largest at some eps and t, and the first and last rows."""
    omega, wins = rows.min(0) / rows.min(0).sum(), np.zeros((len(rows), len(rows)))
    for exp_epsilon in np.exp(np.array(_EPSILON_SHARES) * eps0):
        ends = (rows[0] - exp_epsilon * rows[-1]) / omega
        t = ends.min() + _THRESHOLD_SHARES * np.ptp(ends)
        values = np.stack([_row_stop_loss(rows, x, exp_epsilon, t) for x in range(len(rows))])
        wins += (values >= values.max((0, 1)) * (1 - 1e-12)).sum(-1)
    most_often = [
        tuple(map(int, divmod(index, len(rows)))) for index in np.argsort(-wins, axis=None, kind="stable")[:_KEPT_PAIRS]
    ]
    pairs = dict.fromkeys([pair for pair in most_often if wins[pair]] + [(len(rows) - 1, 0)])
    return list(pairs)  # type: ignore[arg-type]


def _row_stop_loss(
    rows: Float[np.ndarray, "rows outcomes"], x: int, exp_epsilon: float, t: Float[np.ndarray, " levels"]
) -> Float[np.ndarray, "rows levels"]:
    """Return E(L - t)_+ of x and every other row, of shape (row, t)."""
    omega, gaps = rows.min(0) / rows.min(0).sum(), rows[x] - exp_epsilon * rows
    return np.stack([np.maximum(gaps - threshold * omega, 0.0).sum(1) for threshold in t], 1)


def largest_stop_loss(
    rows: Float[np.ndarray, "rows outcomes"], exp_epsilon: float, t: Float[np.ndarray, " levels"]
) -> Float[np.ndarray, " levels"]:
    """Return the maximum over all pairs of rows of E(L - t)_+."""
    return np.max([_row_stop_loss(rows, x, exp_epsilon, t).max(0) for x in range(len(rows))], axis=0)
