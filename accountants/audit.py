"""Lower bounds of epsilon from the outputs of a release, with a guaranteed error rate.

An audit can prove that a release is less private than it claims. It never proves that it is private.

- ``audit`` draws outputs for two neighbouring inputs. It chooses an event on one half of the draws, and bounds its
  probabilities P and Q on the other half (Clopper and Pearson 1934). By the definition of (eps, delta)-DP, eps is at
  least log((P - delta)/Q). Events are sets of intervals of values, and of spacings of floats. They can detect
  floating-point noise by its low bits (Mironov 2012), and discrete outputs by their values.
- ``audit_training`` needs one training run. Every canary is in the data with probability 1/2, and the scores are used
  to guess which canaries are included (Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpkernels import checks
from dpkernels.estimation.interval_formulas import clopper_pearson_lower
from dpkernels.numerics import Real, RealArray
from dpkernels.solve import bisect

_MAX_CELLS = 64  # The intervals of a coordinate that events are made of; the most different values that are kept apart.
_MAX_COORDINATES = 8  # The coordinates of a vector of which events are made one by one, at most.
_DRAWS = 200_000  # The default number of outputs of each input.
_MAX_EPSILON = 100.0  # The largest epsilon that is looked for.


@dataclass(frozen=True)
class Audit:
    """The result of an audit: a lower bound of epsilon, which is too large with probability at most ``error_rate``.

    - epsilon: the lower bound; 0 if no event separates the inputs.
    - delta, error_rate: as given.
    - event: a description of the event.
    - power, level: the lower bound of the event's probability for one input, and its upper bound for the other input.
    """

    epsilon: float
    delta: float
    error_rate: float
    event: str
    power: float
    level: float

    def contradicts(self, epsilon: float) -> bool:
        """Return whether a claim of (epsilon, delta)-DP is refuted."""
        return self.epsilon > checks.number("epsilon", epsilon)

    def __str__(self) -> str:
        bound = f"epsilon >= {self.epsilon:.4g}" if self.epsilon > 0 else "nothing found"
        return f"{bound} at delta {self.delta:g}, error rate {self.error_rate:g}; event: {self.event}"


def audit(
    release: Callable[[object, int], RealArray],
    neighbours: tuple[object, object],
    *,
    draws: int = _DRAWS,
    delta: float = 0.0,
    error_rate: float = 1e-6,
    statistic: Callable[[np.ndarray], RealArray] | None = None,
) -> Audit:
    """Return a lower bound of the epsilon of a release, from independent outputs for two neighbouring inputs.

    Args:
        release: maps (input, count) to ``count`` independent outputs: an array whose first axis has this length.
        neighbours: the two inputs.
        draws: the number of outputs for every input, of which one half chooses the event.
        delta: the delta of the claim, in [0, 1).
        error_rate: the probability with which the bound may be above the smallest epsilon of the release, in (0, 1).
        statistic: maps an array of outputs to one number or value each, of which events are made; by default the
            coordinates of the outputs, their norm, and the direction in which the means differ.

    Raises:
        TypeError: draws is not an integer.
        ValueError: an argument is out of range, or the number of outputs is not ``count``.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> noisy = lambda x, count: x + rng.laplace(scale=0.5, size=count)  # epsilon is 2, not 1
        >>> audit(noisy, (0.0, 1.0)).contradicts(1.0)
        True
    """
    checks.integer_in("draws", draws, 100, 1 << 40)
    checks.below_one("delta", delta)
    checks.within("error_rate", error_rate, 0.0, 1.0, open_ends=True)
    if len(neighbours) != 2:
        raise ValueError(f"neighbours: {len(neighbours)} inputs; must be two")
    chosen, tested = ([_outputs(release, x, count) for x in neighbours] for count in (draws // 2, draws - draws // 2))
    return _event_bound(_best_event(chosen, delta, error_rate, statistic), tested, delta, error_rate)


def _outputs(release: Callable[[object, int], RealArray], x: object, count: int) -> np.ndarray:
    outputs = np.asarray(release(x, count))
    if outputs.ndim == 0 or len(outputs) != count:
        raise ValueError(f"release: returned an array of shape {outputs.shape} for a count of {count}")
    return outputs


_Values = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Event:
    """A set of cells of a statistic, more likely for one of two inputs."""

    name: str
    values: _Values  # From outputs to values of the statistic,
    cells: _Values  # and from these to the numbers of cells.
    chosen: np.ndarray  # Whether each cell is in the event.
    first: int  # The input for which the event is the more likely one.

    def counts(self, outputs: list[np.ndarray]) -> tuple[int, int]:
        first, second = (int(self.chosen[self.cells(self.values(sample))].sum()) for sample in outputs)
        return (first, second) if self.first == 0 else (second, first)


def _event_bound(event: _Event | None, outputs: list[np.ndarray], delta: float, error_rate: float) -> Audit:
    if event is None:
        return Audit(0.0, delta, error_rate, "none", 0.0, 1.0)
    (hits, alarms), sizes = event.counts(outputs), [len(sample) for sample in outputs]
    power = float(clopper_pearson_lower(sizes[event.first], np.array([hits]), error_rate / 2)[0])
    level = float(_clopper_pearson_upper(sizes[1 - event.first], np.array([alarms]), error_rate / 2)[0])
    epsilon = math.log((power - delta) / level) if power - delta > level else 0.0
    return Audit(epsilon, delta, error_rate, event.name, power, level)


def _clopper_pearson_upper(size: int, hits: np.ndarray, error_rate: float) -> np.ndarray:
    return 1.0 - clopper_pearson_lower(size, size - hits, error_rate)


def _best_event(
    outputs: list[np.ndarray], delta: float, error_rate: float, statistic: Callable[[np.ndarray], RealArray] | None
) -> _Event | None:
    """Return the event whose bound of epsilon would be the largest one, by these outputs."""
    best, event = 0.0, None
    sizes = [len(sample) for sample in outputs]
    for name, values in _statistics(outputs, statistic):
        cells, count = _cells(np.concatenate([values(sample) for sample in outputs]))
        cell_numbers = [cells(values(sample)) for sample in outputs]
        counts = np.array([np.bincount(sample, minlength=count) for sample in cell_numbers])
        for first in (0, 1):
            hits, alarms = counts[first], counts[1 - first]
            # By the ratio of probabilities: unions of the first cells are the best tests.
            order = np.argsort(-(hits + 0.5) / (alarms + 0.5), kind="stable")
            power = clopper_pearson_lower(sizes[first], np.cumsum(hits[order]), error_rate / 2) - delta
            level = _clopper_pearson_upper(sizes[1 - first], np.cumsum(alarms[order]), error_rate / 2)
            with np.errstate(divide="ignore", invalid="ignore"):
                bounds = np.where(power > level, np.log(power / level), 0.0)
            last = int(bounds.argmax())
            if bounds[last] > best:
                best, chosen = float(bounds[last]), np.zeros(count, bool)
                chosen[order[: last + 1]] = True
                event = _Event(name, values, cells, chosen, first)
    return event


def _statistics(
    outputs: list[np.ndarray], statistic: Callable[[np.ndarray], RealArray] | None
) -> Iterator[tuple[str, _Values]]:
    """Yield names and functions from outputs to one value each."""
    if statistic is not None:
        yield "the statistic", lambda sample: np.asarray(statistic(sample)).reshape(len(sample))
        return
    dtype_kind = outputs[0].dtype.kind
    if dtype_kind not in "biuf":
        yield "the value", partial(_coordinate, 0)
        return
    size = outputs[0].reshape(len(outputs[0]), -1).shape[1]
    for k in range(min(size, _MAX_COORDINATES)):
        suffix = "" if size == 1 else f" of coordinate {k}"
        yield f"the value{suffix}", partial(_coordinate, k)
        if dtype_kind == "f":
            yield f"the lowest bit{suffix}", partial(_lowest_bit, k)
            yield f"the value and the lowest bit{suffix}", partial(_relative_lowest_bit, k)
    if size > 1:
        yield "the norm", lambda sample: np.linalg.norm(sample.reshape(len(sample), -1), axis=1)
        first, second = (sample.reshape(len(sample), -1).mean(0) for sample in outputs)
        yield "the direction of the means", lambda sample: sample.reshape(len(sample), -1) @ (second - first)


def _coordinate(k: int, outputs: np.ndarray) -> np.ndarray:
    return outputs.reshape(len(outputs), -1)[:, k]


def _lowest_bit(k: int, outputs: np.ndarray) -> np.ndarray:
    """Return the exponent of the lowest bit of every float: the largest power of 2 of which it is a multiple."""
    mantissa, exponent = np.frexp(_coordinate(k, outputs).astype(np.float64))
    with np.errstate(invalid="ignore"):
        integers = np.nan_to_num(np.abs(mantissa) * 2.0**53).astype(np.int64)
    lowest = (integers & -integers).astype(np.float64)
    return np.where(integers > 0, exponent - 53 + np.log2(np.maximum(lowest, 1.0)), 2048.0)


def _relative_lowest_bit(k: int, outputs: np.ndarray) -> np.ndarray:
    """Return the exponent of every float, and that of its lowest bit relative to it, as one number."""
    exponent = np.frexp(_coordinate(k, outputs).astype(np.float64))[1]
    return np.clip(exponent - _lowest_bit(k, outputs), 0, 60) + 64 * np.clip(exponent, -8, 8)


def _cells(values: np.ndarray) -> tuple[_Values, int]:
    """Return a function from values to the numbers of cells, and how many there are.

    Few different values are a cell each. Many are cut at quantiles, of which the outermost are close to each other.
    Values that were not seen are in a cell of their own, or in the next interval.
    """
    different, counts = np.unique(values, return_counts=True)
    if len(different) <= 16 * _MAX_CELLS:
        is_few = len(different) <= _MAX_CELLS
        frequent = different if is_few else np.sort(different[np.argsort(-counts)[: 8 * _MAX_CELLS]])

        def cell_of_value(sample: np.ndarray) -> np.ndarray:
            index = np.minimum(np.searchsorted(frequent, sample), len(frequent) - 1)
            return np.where(frequent[index] == sample, index, len(frequent))

        return cell_of_value, len(frequent) + 1
    tail = np.geomspace(1e-5, 0.5, _MAX_CELLS // 2)
    finite = values[np.isfinite(values)]
    cuts = np.unique(np.quantile(finite, np.concatenate([tail, 1 - tail]))) if len(finite) else np.zeros(1)

    def cell_of_interval(sample: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(sample), len(cuts) + 1, np.searchsorted(cuts, sample, side="right"))

    return cell_of_interval, len(cuts) + 2


# One training run


def audit_training(
    scores: object,
    included: object,
    *,
    guesses: int | Sequence[int],
    delta: float = 0.0,
    error_rate: float = 1e-6,
) -> Audit:
    """Return a lower bound of the epsilon of one training run, from the scores of its canaries.

    Every canary was in the training data with probability 1/2, independently. Half of the guesses say that the canaries
    with the largest scores were included, the other half that those with the smallest scores were not.

    Args:
        scores: one number for each canary; large where it seems to be included, such as minus its loss.
        included: whether each canary was included.
        guesses: how many guesses are made, chosen without a look at ``included``; or several numbers, of which the best
            one counts, at an error rate that is divided by how many they are.
        delta: the delta of the claim, in [0, 1).
        error_rate: the probability with which the bound may be too large, in (0, 1).

    Raises:
        ValueError: an argument is out of range, scores are NaN, or lengths differ.
    """
    checks.below_one("delta", delta)
    checks.within("error_rate", error_rate, 0.0, 1.0, open_ends=True)
    scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
    if scores.ndim != 1 or scores.shape != included.shape:
        raise ValueError(f"scores, included: of shapes {scores.shape} and {included.shape}; must be equal vectors")
    if np.isnan(scores).any():
        raise ValueError("scores: some are NaN")
    numbers = [
        checks.integer_in("guesses", number, 1, len(scores)) for number in np.atleast_1d(np.asarray(guesses)).tolist()
    ]
    order = np.argsort(scores, kind="stable")
    best = Audit(0.0, delta, error_rate, "none", 0.0, 1.0)
    for number in numbers:
        low, high = order[: number // 2], order[len(order) - (number - number // 2) :]
        correct = int(included[high].sum()) + int((~included[low]).sum())
        epsilon = _guesses_epsilon(len(scores), number, correct, delta, error_rate / len(numbers))
        if epsilon > best.epsilon:
            event, power = f"{correct} of {number} guesses", correct / number
            best = Audit(epsilon, delta, error_rate, event, power, 1 - power)
    return best


def _guesses_epsilon(canaries: int, guesses: int, correct: int, delta: float, error_rate: float) -> float:
    """Return the largest eps at which ``correct`` or more right guesses have at most the probability ``error_rate``."""

    def is_refuted(epsilon: Real) -> bool:
        return _guesses_probability(canaries, guesses, correct, float(epsilon), delta) <= error_rate

    return float(bisect(is_refuted, 0.0, _MAX_EPSILON, 60)[0]) if is_refuted(0.0) else 0.0


def _guesses_probability(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound of the probability of ``correct`` or more right guesses, if training is (eps, delta)-DP."""
    from scipy.stats import binom

    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0.0 or correct == 0:
        return tail
    fewer = np.arange(1, correct + 1)
    further = float((np.cumsum(binom.pmf(correct - fewer, guesses, chance)) / fewer).max())
    return min(tail + 2 * canaries * delta * further, 1.0)
