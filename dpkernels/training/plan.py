"""Private training in one call: from a budget to the noise, the batches, the gradients and the optimiser.

    plan = private_training(epsilon=3.0, delta=1e-6, examples=60_000, batch_size=600, epochs=9, params=params, clip=1.0)
    optimiser = plan.optimizer(optax.adam(1e-3), key)
    state = optimiser.init(params)
    for batch in plan.batches(key, (x, y)):
        gradients = plan.gradients(loss, params, batch, micro_batch_size=64)
        updates, state = optimiser.update(gradients, state, params)
        params = optax.apply_updates(params, updates)

The noise multiplier accounts for all costs of a run: the rigorous bound of Gaussian noise on Poisson samples, the total
variation distance of the noise from a Gaussian, overflowing batches, and rounding. With ``strategy=``, the noise of the
steps is correlated, every example is in the same batch of all epochs, and there is no amplification by sampling.

A checkpoint consists of the parameters and the state of the optimiser, whose ``step`` is the position in the batches. A
step that is repeated after a crash has the same batch and the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.decimals import shortest
from dpkernels.numerics import RealArray
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree
from dpkernels.random.chacha import varying_like
from dpkernels.random.keys import check_release_key, column_key
from dpkernels.release.traced import device_axes, varying_axes
from dpkernels.training.aggregate import private_aggregate
from dpkernels.training.batches import PoissonBatch, poisson_batch, poisson_capacity, poisson_overflow
from dpkernels.training.clipping import ClippedSums, check_overflow, sums_of_rows
from dpkernels.training.correlated import CorrelatedRun, ToeplitzStrategy, correlated_run
from dpkernels.training.noise import PrivateNoise
from dpkernels.training.run import TrainingRun, noise_multiplier_for
from dpkernels.training.scheme_batches import allocated_batch, allocation_rate, random_assignment

if TYPE_CHECKING:
    import dp_accounting

# The share of delta that the overflow of batches may take.
_OVERFLOW_SHARE = 1e-3


class PrivateBatch(NamedTuple):
    """A Poisson sample with a static shape: the rows of the data, padded, and a mask that says which count."""

    examples: PyTree
    mask: Array


@dataclass(frozen=True)
class _PoissonBatches:
    """The batches of a run with sampling: in every step each row is in the batch by itself, at one rate."""

    examples: int
    rate: float
    capacity: int

    @property
    def overflow(self) -> float:
        return poisson_overflow(self.examples, self.rate, self.capacity)

    @property
    def words(self) -> str:
        return f"each on a Poisson sample of rate {self.rate:.6g} of {self.examples} rows"

    def drawn(self, key: Array) -> Callable[[Array], PoissonBatch]:
        """Return the function from the number of a step to its batch."""
        return lambda step: poisson_batch(jax.random.fold_in(key, step), self.examples, self.rate, self.capacity)


@proven("correlated_noise#proof")
@dataclass(frozen=True)
class _AllocatedBatches:
    """The batches of a run without sampling: every row is in a random step of an epoch, the same in all epochs."""

    examples: int
    per_epoch: int
    steps: int
    capacity: int

    @property
    def overflow(self) -> float:
        # Of any batch of the run: the epochs have the same batches.
        number = min(self.per_epoch, self.steps)
        return number * poisson_overflow(self.examples, allocation_rate(self.per_epoch), self.capacity)

    @property
    def words(self) -> str:
        epoch = f"epochs of {self.per_epoch} steps with the same batches"
        return f"in {epoch}, of {self.examples} rows; no amplification by sampling is claimed"

    def drawn(self, key: Array) -> Callable[[Array], PoissonBatch]:
        """Return the function from the number of a step to its batch."""
        assignment = random_assignment(key, self.examples, self.per_epoch)

        def batch(step: Array) -> PoissonBatch:
            in_epoch = (step % self.per_epoch).astype(jnp.int32)
            return allocated_batch(jax.random.fold_in(key, step), assignment, in_epoch, self.capacity)

        return batch


@dataclass(frozen=True)
class TrainingPlan:
    """A training run that meets its budget; ``private_training`` makes it."""

    budget: tuple[float, float]  #: epsilon and delta
    examples: int  #: the number of rows of the data
    capacity: int  #: the number of rows of a batch, padded ones included
    parameters: int  #: the number of parameters
    clip: float  #: the norm that gradients are clipped to
    run: TrainingRun | CorrelatedRun  #: the noise multiplier, the use of the rows, the number of steps, their slack

    def __post_init__(self) -> None:
        run = self.run
        if isinstance(run, TrainingRun) and run.scheme != "poisson":
            raise ValueError(f"run: its scheme is {run.scheme!r}; the batches of a plan are Poisson samples")
        if isinstance(run, CorrelatedRun) and run.participations is not None:
            raise ValueError(
                f"run: its participations are {run.participations}; the batches of a plan use a row in every epoch, so "
                "they must be None"
            )

    @property
    def noise_multiplier(self) -> float:
        return self.run.noise_multiplier

    @property
    def steps(self) -> int:
        return self.run.steps

    @property
    def strategy(self) -> ToeplitzStrategy | None:
        """Return the correlation of the noise of the steps, or None if they have independent noise."""
        return self.run.strategy if isinstance(self.run, CorrelatedRun) else None

    @property
    def expected_batch_size(self) -> float:
        if isinstance(self.run, CorrelatedRun):
            return self.examples / self.run.separation
        return self.run.sampling_rate * self.examples

    @property
    def noise(self) -> PrivateNoise:
        """Return the description of the noise, with its certificate."""
        return PrivateNoise.certified(self.clip, self.noise_multiplier, self.parameters)

    @property
    def overflow(self) -> float:
        """Return a bound on the probability that a batch has more rows than its capacity, and is therefore empty.

        With a strategy it is that of any batch of the run.
        """
        return self._batches_of_a_step.overflow

    @cached_property
    def epsilon(self) -> float:
        """Return epsilon of the run at the budget's delta, with every cost: an upper bound, at most the budget's."""
        return self.run.epsilon(self.budget[1])

    @property
    def _batches_of_a_step(self) -> _PoissonBatches | _AllocatedBatches:
        if isinstance(self.run, CorrelatedRun):
            return _AllocatedBatches(self.examples, self.run.separation, self.run.steps, self.capacity)
        return _PoissonBatches(self.examples, self.run.sampling_rate, self.capacity)

    @property
    def _accounted(self) -> tuple[TrainingRun, float, float]:
        """Return the run that is accounted, and the two distances of one of its steps: of batches and of the noise.

        A run with a strategy is accounted as one step.
        """
        if isinstance(self.run, CorrelatedRun):
            return self.run.run, self.overflow, self.steps * self.noise.total_variation
        return self.run, self.overflow, self.noise.total_variation

    @property
    def state(self) -> dict[str, object]:
        """Return the plan as numbers and names, for a checkpoint as JSON; ``from_state`` returns the plan.

        A state of the optimiser belongs to one noise multiplier, which another version may not find again.
        """
        return asdict(self)

    @classmethod
    def from_state(cls, state: JsonObject) -> TrainingPlan:
        """Return the plan with this ``state``, after a check of what it costs.

        Raises:
            ValueError: the run costs more than the budget, or its slack lacks a cost.
        """
        epsilon, delta = state["budget"]
        fields: JsonObject = state | {"budget": (epsilon, delta), "run": _parse_run(state["run"])}
        plan = cls(**fields)
        accounted, overflow, noise = plan._accounted
        if accounted.slack < (distance := overflow + noise):
            raise ValueError(f"state: has a slack of {accounted.slack:g}; the distance of a step is {distance:g}")
        if not plan.epsilon <= epsilon:
            raise ValueError(f"state: is of a run of epsilon {plan.epsilon:g}, more than its budget {epsilon:g}")
        return plan

    def optimizer(
        self,
        inner: optax.GradientTransformation,
        key: Array,
        *,
        axis_name: str | tuple[str, ...] | None = None,
        run: str | None = None,
    ) -> optax.GradientTransformationExtraArgs:
        """Return ``private_aggregate`` around an optimiser, which refuses more steps than the plan has.

        Its ``init`` refuses parameters of another number than the plan's. ``update`` takes what ``gradients`` returns,
        or gradients of examples with their mask. The key may be that of the batches. ``axis_name`` and ``run`` are
        those of ``private_aggregate``.
        """
        aggregate = private_aggregate(
            self.clip,
            self.noise_multiplier,
            key,
            expected_batch_size=self.expected_batch_size,
            inner=inner,
            axis_name=axis_name,
            run=run,
            steps=self.steps,
            strategy=self.strategy,
        )

        def init(params: optax.Params) -> optax.OptState:
            if (size := _size(params)) != self.parameters:
                raise ValueError(f"params: have {size} values; the plan is for {self.parameters}")
            return aggregate.init(params)

        return optax.GradientTransformationExtraArgs(init, aggregate.update)

    def batches(
        self, key: Array, data: PyTree = None, *, start: int = 0, run: str | None = None
    ) -> Iterator[PrivateBatch]:
        """Return the batches of the steps from ``start`` on: Poisson samples, or with a strategy those of an epoch.

        Args:
            key: a ChaCha20 key for this run alone, which may be that of the optimiser. A run that goes on needs the
                same key: with a strategy, another one would use rows more often than is accounted.
            data: a pytree of arrays with a row for every example. By default batches hold the indices of rows.
            start: the number of steps that were made, the state's ``step`` of a restored run.
            run: the name of the run, as for ``optimizer``. Runs that share their samples cost more together than their
                plans say.

        Raises:
            TypeError: key is not a ChaCha20 key.
            ValueError: the data have another number of rows, or start is out of range.
        """
        check_release_key(key)
        checks.integer_in("start", start, 0, self.steps)
        for leaf in jax.tree.leaves(data):
            if not np.ndim(leaf) or len(leaf) != self.examples:
                raise ValueError(
                    f"data: has an array of shape {list(np.shape(leaf))}; the plan is for {self.examples} rows"
                )
        named = key if run is None else column_key(key, ("run", run))
        return self._batches(column_key(named, ("private_training batches",)), data, start)

    def _batches(self, key: Array, data: PyTree, start: int) -> Iterator[PrivateBatch]:
        drawn = jax.jit(self._batches_of_a_step.drawn(key))
        for step in range(start, self.steps):
            indices, mask = drawn(jnp.uint32(step))
            rows = indices if data is None else jax.tree.map(lambda leaf, indices=indices: _rows(leaf, indices), data)
            yield PrivateBatch(rows, mask)

    def gradients(
        self,
        loss: Callable[[optax.Params, PyTree], Array],
        params: optax.Params,
        batch: PrivateBatch,
        *,
        micro_batch_size: int | None = None,
    ) -> ClippedSums:
        """Return the sum of the clipped gradients of the examples of a batch, for ``update`` of the plan's optimiser.

        Args:
            loss: the function (params, example) -> loss, where an example is a row of the batch's examples.
            params: the parameters.
            batch: one of ``batches``.
            micro_batch_size: the number of examples whose gradients are in memory together, by default all.

        Raises:
            TypeError: the batch is not a ``PrivateBatch``.
            ValueError: the parameters are not as many as the plan's, or a number is out of range, or the loss differs
                between devices of ``shard_map`` on which the batch is the same.
        """
        if not isinstance(batch, PrivateBatch):
            raise TypeError(f"batch: is a {type(batch).__name__}; it must be one of plan.batches, with its mask")
        if (size := _size(params)) != self.parameters:
            raise ValueError(f"params: have {size} values; the plan is for {self.parameters}")
        count = len(batch.mask)
        together = count if micro_batch_size is None else micro_batch_size
        checks.integer_in("micro_batch_size", together, 1, 1 << 31)
        together = min(together, count)
        gradient, noise = jax.vmap(jax.value_and_grad(loss), (None, 0)), self.noise
        # In shard_map JAX would add up the gradients of parameters that are the same on all devices, before they are
        # clipped.
        params = jax.tree.map(lambda leaf: varying_like(jnp.asarray(leaf), *jax.tree.leaves(batch)), params)

        def clipped(batch: PrivateBatch) -> ClippedSums:
            losses, gradients = gradient(params, batch.examples)
            _check_losses(losses, jax.tree.leaves(params))
            return sums_of_rows(gradients, batch.mask, noise)

        if together == count:
            return clipped(batch)

        def add(sums: PyTree, micro_batch: PrivateBatch) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, sums, clipped(micro_batch).sums), None

        zeros = jax.tree.map(lambda leaf: varying_like(jnp.zeros_like(leaf, jnp.int32), leaf), params)
        sums, _ = jax.lax.scan(add, zeros, _micro_batches(batch, together))
        types = tuple(str(leaf.dtype) for leaf in jax.tree.leaves(params))
        return ClippedSums(sums, count, types, noise)

    def report(self) -> str:
        """Return a text: what the run does, and what every part of it costs."""
        epsilon, delta = self.budget
        run, overflow, distance = self._accounted
        noise, factor = self.noise, run.slack_factor(epsilon)
        correlation = {"correlation": f"bands {self.strategy.bands}"} if self.strategy else {}
        lines = {
            "budget": f"epsilon {shortest(epsilon)}, delta {shortest(delta)}, neighbours {run.neighbours}",
            "epsilon": f"{self.epsilon:.9g}, an upper bound that has every cost below",
            "noise multiplier": f"{self.noise_multiplier:.6g}",
            **correlation,
            "steps": f"{self.steps}, {self._batches_of_a_step.words}",
            "batches": f"{self.expected_batch_size:.6g} rows expected, {self.capacity} at most",
            "overflow": f"adds at most {overflow * factor:.3g} to delta",
            "noise's distance": f"adds at most {distance * factor:.3g} to delta",
            "rounding": f"makes the noise wider by {100 * noise.rounding_cost:.3g} %",
            "clipping norm": shortest(self.clip),
            "noise of a sum": f"standard deviation {noise.standard_deviation:.6g}",
        }
        return "\n".join(f"{label:<20}{text}" for label, text in lines.items())

    def to_dp_event(self) -> dp_accounting.DpEvent:
        """Return the event of dp_accounting, whose epsilon at the budget's delta has every cost of the plan.

        At other deltas it may cost less than the plan. It needs the package dp-accounting.
        """
        return self.run.to_dp_event(self.budget[1])


def private_training(
    *,
    epsilon: float,
    delta: float,
    examples: int,
    batch_size: float,
    clip: float,
    epochs: float | None = None,
    steps: int | None = None,
    params: optax.Params | None = None,
    parameters: int | None = None,
    neighbours: str = "add_remove",
    strategy: ToeplitzStrategy | None = None,
) -> TrainingPlan:
    """Return the plan of a training run with the least noise that meets a budget, with every cost included.

    Without a strategy, batches are Poisson samples, whose amplification is accounted, and steps have independent noise.
    With one, later steps take off a part of the noise of earlier ones (``correlated.py``). The rows are then divided
    into batches at random, once for all epochs. The run costs what one Gaussian release costs: uses of a row are at
    least an epoch apart, and no amplification by sampling is claimed.

    Args:
        epsilon: epsilon of the whole run, positive.
        delta: delta of the whole run, in (0, 1).
        examples: the number of rows of the data.
        batch_size: the expected number of rows of a batch. Every row is in it with probability batch_size / examples;
            with a strategy an epoch has examples / batch_size steps, to the nearest whole number.
        clip: the norm that gradients of examples are clipped to.
        epochs: the number of times that a row is used on average; or give ``steps``.
        steps: the number of steps; or give ``epochs``.
        params: the parameters, of which only the number matters; or give ``parameters``.
        parameters: the number of parameters.
        neighbours: "add_remove" for data sets with one row more or less, "replace" for another row.
        strategy: the correlation of the noise of the steps, by default none.

    Raises:
        ValueError: an argument is out of range, or both or none of two are given, or the budget cannot carry so many
            parameters and steps.
        TypeError: the strategy is not a ``ToeplitzStrategy``.

    Example:
        >>> from dpkernels.training import private_training
        >>> plan = private_training(
        ...     epsilon=3.0, delta=1e-5, examples=1000, batch_size=100, steps=20, parameters=50, clip=1.0
        ... )
        >>> plan.epsilon <= 3.0
        True
    """
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.integer_in("examples", examples, 1, 1 << 31)
    checks.within("batch_size", batch_size, examples * 2.0**-32, float(examples))
    checks.within("clip", clip, 1e-20, 1e20)
    for first, second, names in ((epochs, steps, "epochs, steps"), (params, parameters, "params, parameters")):
        if (first is None) == (second is None):
            raise ValueError(f"{names}: give one of the two")
    if epochs is not None:
        checks.positive("epochs", epochs)
    size = _size(params) if parameters is None else parameters
    checks.integer_in("parameters", size, 1, 1 << 31)
    per_epoch = max(1, round(examples / batch_size))
    if strategy is not None:
        checks.integer_in("examples / batch_size, rounded", per_epoch, 1, 1 << 16)
    if steps is None and strategy is None:
        steps = max(1, math.ceil(checks.number("epochs", epochs) * examples / batch_size))
    elif steps is None:
        steps = max(1, math.ceil(checks.number("epochs", epochs) * per_epoch))
    steps = checks.integer_in("steps", steps, 1, (1 << 31) - 1)
    run: TrainingRun | CorrelatedRun
    if strategy is None:
        rate = batch_size / examples
        sampled = TrainingRun(1.0, rate, steps, neighbours)
        capacity = _capacity(examples, rate, delta / sampled.slack_factor(epsilon))
        sampled = replace(sampled, slack=poisson_overflow(examples, rate, capacity))
        run = noise_multiplier_for(sampled, epsilon=epsilon, delta=delta, dimensions=size)
    else:
        factor = min(steps, per_epoch) * TrainingRun(1.0, 1.0, 1).slack_factor(epsilon)
        capacity = _capacity(examples, allocation_rate(per_epoch), delta / factor)
        run = correlated_run(
            strategy,
            epsilon=epsilon,
            delta=delta,
            steps=steps,
            separation=per_epoch,
            dimensions=size,
            neighbours=neighbours,
            slack=_AllocatedBatches(examples, per_epoch, steps, capacity).overflow,
        )
    plan = TrainingPlan((float(epsilon), float(delta)), examples, capacity, size, float(clip), run)
    check_overflow(capacity, plan.noise, strategy, steps, name="batch_size")
    return plan


def _capacity(examples: int, rate: float, delta: float) -> int:
    """Return the capacity of batches whose overflow takes a small share of so much delta a batch."""
    return poisson_capacity(examples, rate, max(_OVERFLOW_SHARE * delta, 1e-290))


def _parse_run(state: JsonObject) -> TrainingRun | CorrelatedRun:
    """Return the run in the state of a plan."""
    if "strategy" not in state:
        return TrainingRun(**state)
    strategy = ToeplitzStrategy(tuple(state["strategy"]["bands"]))
    fields: JsonObject = state | {"strategy": strategy, "run": TrainingRun(**state["run"])}
    return CorrelatedRun(**fields)


def _check_losses(losses: Array, params: list[Array]) -> None:
    """Refuse losses that differ along an axis of ``shard_map`` along which the parameters are the same.

    JAX would add up the gradients of several devices before they are clipped.
    """
    axes = device_axes()
    for leaf in params if axes else ():
        if missing := sorted(set(varying_axes(losses, axes) or ()) - set(varying_axes(leaf, axes) or ())):
            raise ValueError(
                f"loss: differs along {missing[0]!r}, where the batch is the same, so that JAX adds up the gradients "
                "of several examples before they are clipped; split the batch, and let the loss read it alone"
            )


def _size(params: optax.Params) -> int:
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(params))


def _rows(leaf: Array, indices: Array) -> RealArray:
    """Return rows of an array; those of NumPy's stay there, which may be a file."""
    return leaf[indices] if isinstance(leaf, jax.Array) else np.asarray(leaf[np.asarray(indices)])


def _micro_batches(batch: PrivateBatch, together: int) -> PrivateBatch:
    """Return the rows as micro-batches, padded with rows that do not count; each has rows of all devices."""
    number = -(-len(batch.mask) // together)

    def split(leaf: Array, mode: str = "edge") -> Array:
        padding = [(0, number * together - len(leaf))] + [(0, 0)] * (np.ndim(leaf) - 1)
        padded = jnp.pad(leaf, padding, mode=mode) if padding[0][1] else jnp.asarray(leaf)
        return padded.reshape(together, number, *padded.shape[1:]).swapaxes(0, 1)

    return PrivateBatch(jax.tree.map(split, batch.examples), split(batch.mask, "constant"))
