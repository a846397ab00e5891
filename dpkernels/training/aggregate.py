r"""Private gradient aggregation for optax, with Gaussian noise from certified integers.

``private_aggregate`` takes the place of ``optax.contrib.differentially_private_aggregate``. It clips the gradient of
every example, adds the gradients up, adds Gaussian noise and divides by the expected batch size. It differs in three
ways.

* The sum is a sum of integers. Every clipped gradient is rounded to multiples of a unit ``u`` first, so that the sum
  has no rounding error, whatever the order and the number of devices or micro-batches. ``clipping`` has the proof.
* The noise is drawn from a table of integers with a verified certificate, with random words of ChaCha20.
* An example whose gradient is not finite, or has a norm of 10^30 or more, contributes 0.

**Cost.** The standard deviation of the noise is ``noise_multiplier * C / (1 - sqrt(d)/(2 K))``, with C the clipping
norm, d the number of parameters and K the sensitivity in units. Without rounding, the noise would be narrower by the
fraction ``PrivateNoise.rounding_cost``, because K units represent a norm of C.

**Micro-batches.** A release may use the examples of several updates. The updates in between are zero. They must not
reach the optimiser, because its moments and schedules would advance. So ``private_aggregate`` with micro-batches
contains the optimiser, as ``optax.MultiSteps`` does, and calls it once per release.

**Correlated noise.** With a strategy, later steps subtract a part of the noise of earlier steps (``correlated.py``).

**Keys.** Every step splits the state's key in two: a key for its noise, and a key for the steps to come. So no two
steps share a key, and the coordinates of a step have different words of one stream. The noise of earlier steps cannot
be computed from a state. That of later steps can, so keep the state as secret as the data. In one process, every call
of ``init`` starts a run with a separate key, which is derived from the key and from the number of the call, also if
several transformations have the same key. ``init`` cannot be compiled, because a compiled ``init`` would start every
run with the same key. Another process needs another key, or another name of the run, from which the keys of a run are
also derived.

**States.** A state is a named tuple of arrays, as those of optax, and belongs to one transformation. It carries a hash
of the transformation's key, which does not disclose it, and the transformation's settings. ``update`` uses the
transformation's own settings, and refuses a state of other settings or of another key. Inside ``jit`` the numbers of a
state are unknown; if the state belongs to another transformation, all updates are NaN. A restored checkpoint therefore
needs the same key and name of the run, or a new transformation with a new key, which ``renew_key`` puts into the state.

A repeated step is not recognised. If two runs continue from one checkpoint with one key, or a step is repeated from one
state with another batch, both have the same noise, and their difference discloses the data. Continue every run from a
checkpoint with a new key.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from dpkernels import checks
from dpkernels.pytrees import PyTree
from dpkernels.random.keys import column_key, release_key_bytes
from dpkernels.release.integers import release_integers
from dpkernels.release.traced import device_axes, varying_axes
from dpkernels.training.clipping import (
    ClippedSums,
    check_overflow,
    clipped_sums,
    example_size,
    explicitly_sharded,
    repeated_axes,
    type_and_shape,
)
from dpkernels.training.correlated import ToeplitzStrategy
from dpkernels.training.noise import MULTIPLIERS, PrivateNoise, exact_noise

# The format of states; one of another format is refused.
_FORMAT = 5
_OWNER = jax.ShapeDtypeStruct((8,), jnp.uint32)
_SETTINGS = jax.ShapeDtypeStruct((8,), jnp.uint32)
_NUMBER = jax.ShapeDtypeStruct((), jnp.int32)
_OUTSIDE = "call it outside jit and other transformations; every run needs a key of its own"
# The runs that this process has begun, by the hash of their key.
_RUNS: dict[bytes, Iterator[int]] = {}


class PrivateAggregateState(NamedTuple):
    """The state of ``private_aggregate``: a pytree of arrays that can be checkpointed and restored."""

    key: Array  #: the words of the key of the steps to come, as secret as the data
    owner: Array  #: the words of a hash of the transformation's key
    settings: Array  #: the words of the transformation's settings
    step: Array  #: the number of releases so far
    micro_step: Array  #: the number of micro-batches since the last release
    sums: PyTree  #: the sums of these, integers in units; empty without micro-batches
    inner: optax.OptState  #: the state of the optimiser that takes the releases
    noise: tuple[
        PyTree, ...
    ] = ()  #: with a strategy, the noise of the last releases in units, latest first; as secret as the data


def private_aggregate(
    l2_norm_clip: float,
    noise_multiplier: float,
    key: Array,
    *,
    expected_batch_size: float | None = None,
    inner: optax.GradientTransformation | None = None,
    micro_batches: int = 1,
    axis_name: str | tuple[str, ...] | None = None,
    run: str | None = None,
    steps: int | None = None,
    strategy: ToeplitzStrategy | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Aggregate per-example gradients with certified Gaussian noise, as DP-SGD does, in a ``PrivateAggregateState``.

    ``update`` takes gradients with the examples along the first axis, and ``mask``, which says of every row whether it
    counts. The mask is required, because the padded rows of ``poisson_batch`` repeat one example: give the mask of the
    batch, or ``mask=True`` if every row is an example of its own. If you know the norms of the rows, give them as
    ``norms``. ``update`` also takes ``ClippedSums`` in place of gradients. It returns the noisy sum over the expected
    batch size, or what ``inner`` makes of it. It works in ``jit``, on arrays that are sharded over the devices of any
    mesh, in ``shard_map`` and in ``pmap`` with ``axis_name``. See the module for the cost and the care that the state
    needs. ``init`` certifies the noise, which takes some seconds once for a number of parameters, and refuses to run
    inside ``jit``.

    Args:
        l2_norm_clip: C, in [1e-20, 1e20].
        noise_multiplier: the standard deviation of the noise over the sensitivity of the sum, in [0.25, 1000].
        key: a ChaCha20 key, such as ``dpkernels.os_key()``, for this transformation alone. Every ``init`` begins a run
            with a key that is derived from it.
        expected_batch_size: the divisor of the sum, required with micro-batches, whose sizes may differ, and by default
            the number of rows. For Poisson batches give the sampling rate times the number of examples, since the size
            of a batch is private.
        inner: the optimiser that takes the releases, required with micro-batches. By default updates are the releases.
        micro_batches: the number of updates that make one release. Updates in between are zeros, and do not reach the
            optimiser.
        axis_name: the axis of ``shard_map``, or a tuple of all axes, that the examples are split over.
        run: the name of the run, from which its keys are derived. Runs of one key in several processes need names of
            their own. A restored state needs the name of its run.
        steps: the largest number of releases, by default any number; required with a strategy.
        strategy: correlates the noise of the steps (``correlated_run``). The state then has as many copies of the
            parameters, in 32-bit integers, as the strategy has bands after the first one.

    Raises:
        ValueError: an argument is out of range, or the parameters are too many for the noise multiplier. ``init``
            raises it in ``jit`` and in ``optax.MultiSteps``. ``update`` raises it without a mask, for a state of
            another transformation, and after the last of the steps (in ``jit`` updates are then NaN). It does so, too,
            in ``shard_map`` over an axis that ``axis_name`` does not name, where every device would add the same noise
            to the sum of its own examples, or over an axis along which the examples are the same, which would count
            each several times.
        TypeError: key is not a ChaCha20 key, or is traced. ``update`` raises it for arrays of wrong types.

    Example:
        >>> import jax.numpy as jnp, dpkernels as dpk
        >>> from dpkernels.training import private_aggregate
        >>> aggregate = private_aggregate(1.0, 1.1, dpk.os_key())
        >>> state = aggregate.init({"w": jnp.zeros(3)})
        >>> update, state = aggregate.update({"w": jnp.ones((8, 3))}, state, mask=True)
        >>> update["w"].shape
        (3,)
    """
    clip, multiplier = checks.number("l2_norm_clip", l2_norm_clip), checks.number("noise_multiplier", noise_multiplier)
    checks.within("l2_norm_clip", clip, 1e-20, 1e20)
    checks.within("noise_multiplier", multiplier, *MULTIPLIERS)
    micro_batches = checks.integer_in("micro_batches", micro_batches, 1, 1 << 20)
    if expected_batch_size is not None:
        checks.positive("expected_batch_size", expected_batch_size)
    if steps is not None:
        steps = checks.integer_in("steps", steps, 1, (1 << 31) - 1)
    if micro_batches > 1 and inner is None:
        raise ValueError(
            f"inner: is missing; with {micro_batches} micro-batches give the optimiser here, inner=optax.adam(...), "
            "and not in a chain, where the updates between releases would advance its moments and schedules"
        )
    if micro_batches > 1 and expected_batch_size is None:
        raise ValueError(f"expected_batch_size: is missing; {micro_batches} micro-batches may differ in size")
    if strategy is not None and steps is None:
        raise ValueError("steps: is missing; the sensitivity of a strategy is for a number of steps")
    base, owner = _base_key(key, run)
    optimiser = optax.with_extra_args_support(inner or optax.identity())
    aggregator = _Aggregator(
        clip, multiplier, base, owner, expected_batch_size, optimiser, micro_batches, axis_name, steps, strategy
    )
    return optax.GradientTransformationExtraArgs(aggregator.init, aggregator.update)


@dataclass(frozen=True, eq=False, repr=False)  # A repr would contain the words of the key.
class _Aggregator:
    """The transformation that ``private_aggregate`` makes of its arguments, with the two functions that optax calls."""

    l2_norm_clip: float
    noise_multiplier: float
    base: Array  # The key from which those of the runs are derived.
    owner: np.ndarray  # The words of its hash.
    expected_batch_size: float | None
    inner: optax.GradientTransformationExtraArgs
    micro_batches: int
    axis_name: str | tuple[str, ...] | None
    steps: int | None
    strategy: ToeplitzStrategy | None

    def init(self, params: optax.Params) -> PrivateAggregateState:
        _refuse_multi_steps()
        leaves = jax.tree.leaves(params)
        size = sum(math.prod(jnp.shape(leaf)) for leaf in leaves)
        self._noise(size)
        key = _begin_run(self.base, self.owner)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in (key, *leaves)):
            raise ValueError(f"init: {_OUTSIDE}")
        zero, zeros = jnp.zeros((), jnp.int32), jax.tree.map(lambda leaf: jnp.zeros_like(leaf, jnp.int32), params)
        return PrivateAggregateState(
            key=key,
            owner=jnp.asarray(self.owner),
            settings=jnp.asarray(self._settings(size)),
            step=zero,
            micro_step=zero,
            inner=self.inner.init(params),
            **self._accumulated(zeros),
        )

    def update(
        self,
        updates: optax.Updates,
        state: PrivateAggregateState,
        params: optax.Params | None = None,
        *,
        mask: Array | bool | None = None,
        norms: Array | None = None,
        **extra_args: object,
    ) -> tuple[optax.Updates, PrivateAggregateState]:
        _check_axes(self.axis_name)
        if not isinstance(state, PrivateAggregateState):
            raise TypeError(f"state: is a {type(state).__name__}; it must be a PrivateAggregateState, which init makes")
        clipped, noise = self._clipped(updates, mask, norms)
        devices = 1 if self.axis_name is None else jax.lax.axis_size(self.axis_name)
        rows = clipped.rows * self.micro_batches * devices
        check_overflow(rows, noise, self.strategy, self.steps)
        sums = clipped.sums
        is_matching = _is_matching(state, self.owner, self._settings(noise.dimensions), self._accumulated(sums))
        is_valid = is_matching & _has_steps_left(state, self.steps) & _is_one_key(state)
        if self.axis_name is not None:
            _check_split(sums)
            sums = jax.lax.psum(sums, self.axis_name)
        factor = noise.unit / (rows if self.expected_batch_size is None else self.expected_batch_size)

        def release(sums: PyTree) -> tuple[PyTree, Array, PyTree, PyTree]:
            released, next_key, recent_noise = self._noisy_sums(noise, state, sums)
            released = _scaled(released, factor, clipped.types)
            released = jax.tree.map(lambda leaf: jnp.where(is_valid, leaf, jnp.nan), released)
            updates, inner_state = self.inner.update(released, state.inner, params, **extra_args)
            return updates, next_key, recent_noise, inner_state

        def wait(sums: PyTree) -> tuple[PyTree, Array, PyTree, PyTree]:
            shapes = jax.eval_shape(release, sums)[0]
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return zeros, state.key, state.noise, state.inner

        micro_step = state.micro_step + 1
        is_last = micro_step == self.micro_batches
        if self.micro_batches == 1:
            updates, next_key, recent_noise, inner_state = release(sums)
            sums = ()
        else:
            sums = jax.tree.map(jnp.add, state.sums, sums)
            updates, next_key, recent_noise, inner_state = jax.lax.cond(is_last, release, wait, sums)
            sums = jax.tree.map(lambda leaf: jnp.where(is_last, 0, leaf), sums)
        updates = jax.tree.map(lambda leaf: jnp.where(is_valid, leaf, jnp.nan), updates)
        return updates, state._replace(
            key=next_key,
            step=state.step + is_last,
            micro_step=jnp.where(is_last, 0, micro_step),
            sums=sums,
            noise=recent_noise,
            inner=inner_state,
        )

    def _noise(self, size: int) -> PrivateNoise:
        return PrivateNoise.certified(self.l2_norm_clip, self.noise_multiplier, size)

    def _settings(self, size: int) -> np.ndarray:
        return _settings(self.l2_norm_clip, self.noise_multiplier, size, self.micro_batches, self.strategy)

    def _accumulated(self, sums: PyTree) -> dict[str, PyTree]:
        """Return the fields of a state that hold copies of the sums, all with these."""
        return {
            "sums": sums if self.micro_batches > 1 else (),
            "noise": (sums,) * self.strategy.lags if self.strategy else (),
        }

    def _clipped(
        self, updates: optax.Updates, mask: Array | bool | None, norms: Array | None
    ) -> tuple[ClippedSums, PrivateNoise]:
        """Return the sums of clipped gradients, which the updates may be already, and the noise for them."""
        if not isinstance(updates, ClippedSums):
            noise = self._noise(example_size(jax.tree.leaves(updates)))
            return clipped_sums(updates, mask, noise, norms), noise
        noise = self._noise(updates.noise.dimensions)
        if updates.noise != noise or mask is not None or norms is not None:
            raise ValueError(
                f"updates: are sums for {updates.noise}, with their mask and norms; this update is for {noise}"
            )
        return updates, noise

    def _noisy_sums(
        self, noise: PrivateNoise, state: PrivateAggregateState, sums: PyTree
    ) -> tuple[PyTree, Array, PyTree]:
        """Return the sums with noise, the words of the next step's key, and the noise of the last releases."""
        step_key, next_key = jax.random.split(jax.random.wrap_key_data(state.key, impl=jax.random.key_impl(self.base)))
        next_words = jax.random.key_data(next_key)
        if self.strategy is None:
            return _noisy(noise, step_key, sums), next_words, state.noise
        mixed = self.strategy.mixed(sums, state.noise)
        released = self.strategy.unmixed(_noisy(noise, step_key, mixed))
        recent_noise = (jax.tree.map(_difference, released, sums), *state.noise)[: self.strategy.lags]
        return released, next_words, recent_noise


def renew_key(state: PrivateAggregateState, key: Array, *, run: str | None = None) -> PrivateAggregateState:
    """Return the state for a transformation with another key and the same settings, to go on from a checkpoint.

    The noise of the steps to come is that of the new key. In one process every call begins a run with a key of its own,
    as ``init`` does, so that two continuations of one checkpoint have different noise. Another process needs another
    key, or another name of the run. Give ``run`` if the transformation has it.

    Raises:
        TypeError: key is not a ChaCha20 key, or is traced.
        ValueError: the state is traced; a compiled call would begin every run with the same key.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (jnp.zeros(()), *jax.tree.leaves(state))):
        raise ValueError(f"renew_key: {_OUTSIDE}")
    base, owner = _base_key(key, run)
    return state._replace(key=_begin_run(base, owner), owner=jnp.asarray(owner))


def _begin_run(base: Array, owner: np.ndarray) -> Array:
    """Return the words of the key of the next run of this process, given the runs' common key and its hash."""
    number = next(_RUNS.setdefault(owner.tobytes(), itertools.count()))
    return jax.random.key_data(jax.random.fold_in(base, number))


def _refuse_multi_steps() -> None:
    """Refuse to be the optimiser of ``optax.MultiSteps``, which gives it means of examples of several batches."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), optax.MultiSteps):
            raise ValueError(
                "init: optax.MultiSteps averages the rows of several batches before they are clipped, so that an "
                "example moves the sum by up to twice the clipping norm; use private_aggregate(..., micro_batches=n, "
                "inner=...) instead"
            )
        frame = frame.f_back


def _check_axes(axis_name: str | tuple[str, ...] | None) -> None:
    """Refuse to run in ``shard_map`` or ``pmap`` over an axis that is not named."""
    named = (axis_name,) if isinstance(axis_name, str) else axis_name or ()
    if missing := [name for name in device_axes() if name not in named]:
        raise ValueError(
            f"axis_name: {axis_name!r} leaves out {missing[0]!r}, an axis of the shard_map that this update runs in. "
            "The devices along it would add the same noise to different sums. Name all axes or update outside shard_map"
        )


def _check_split(sums: PyTree) -> None:
    """Refuse sums that are known to be the same along an axis of devices, whose sum has every example several times."""
    if repeated := repeated_axes(jax.tree.leaves(sums)):
        raise ValueError(
            f"updates: are the same along {min(repeated)!r}, so that the sum over its devices would count every "
            "example several times; split the examples over all named axes"
        )


def _base_key(key: Array, run: str | None) -> tuple[Array, np.ndarray]:
    """Return the key of a run, and its hash, which identifies it; no ChaCha20 key, or a traced one, is an error."""
    checks.not_traced("key", "Give a key outside of transformations; states carry their own.", key)
    release_key_bytes(key)
    if run is not None and not isinstance(run, str):
        raise TypeError(f"run: is a {type(run).__name__}; it must be a string, the name of the run")
    with jax.ensure_compile_time_eval():  # A key that is a constant of a program that is traced.
        base = key if run is None else column_key(key, ("run", run))
        digest = hashlib.sha256(b"dpkernels private_aggregate key\0" + release_key_bytes(base)).digest()
    return base, np.frombuffer(digest, "<u4")


def _settings(
    clip: float, multiplier: float, size: int, micro_batches: int, strategy: ToeplitzStrategy | None
) -> np.ndarray:
    """Return the settings as words, which ``_parse_settings`` reads; a strategy is a hash of its bands."""
    digest = zlib.crc32(repr(strategy.bands).encode()) if strategy else 0
    words = np.array([size, micro_batches, digest, _FORMAT], "<u4")
    return np.concatenate([np.array([clip, multiplier]).view("<u4"), words])


def _parse_settings(words: np.ndarray) -> dict[str, float]:
    """Return the settings in the words of a state."""
    clip, multiplier = (float(number) for number in words[:4].astype("<u4").view("<f8"))
    names = "l2_norm_clip", "noise_multiplier", "parameters", "micro_batches", "strategy", "format"
    return dict(zip(names, (clip, multiplier, *map(int, words[4:])), strict=True))


def _is_matching(
    state: PrivateAggregateState, owner: np.ndarray, settings: np.ndarray, trees: dict[str, PyTree]
) -> Array:
    """Return whether the state is this transformation's; raise an error if it is known that it is not."""
    numbers = {"key": _OWNER, "owner": _OWNER, "settings": _SETTINGS, "step": _NUMBER, "micro_step": _NUMBER}
    integers = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.int32), trees)
    for name, tree in (numbers | integers).items():
        stated, expected = jax.tree.map(type_and_shape, getattr(state, name)), jax.tree.map(type_and_shape, tree)
        if stated != expected:
            raise TypeError(f"state: {name} has the form {stated}; it must be {expected}")
    is_owner, has_settings = (state.owner == owner).all(), (state.settings == settings).all()
    if not isinstance(has_settings, jax.core.Tracer) and not has_settings:
        stated, expected = _parse_settings(np.asarray(state.settings)), _parse_settings(settings)
        name = next(name for name in expected if stated[name] != expected[name])
        raise ValueError(
            f"state: is for {name} {stated[name]:g}, but this update for {expected[name]:g}; begin with a new state"
        )
    if not isinstance(is_owner, jax.core.Tracer) and not is_owner:
        raise ValueError(
            "state: belongs to a transformation with another key, or of a run with another name; renew_key gives it "
            "the key of this one"
        )
    return is_owner & has_settings


def _has_steps_left(state: PrivateAggregateState, steps: int | None) -> Array:
    """Return whether the state may make another release; raise an error if it is known that it may not."""
    if steps is None:
        return jnp.array(True)
    is_left = state.step < steps
    if not isinstance(is_left, jax.core.Tracer) and not is_left:
        raise ValueError(f"state: has made {int(state.step)} releases; the budget is for {steps}")
    return is_left


def _is_one_key(state: PrivateAggregateState) -> Array:
    """Return whether all devices have the same key; raise an error if it is known that they have not.

    Devices with keys of their own would release one sum several times, each with other noise.
    """
    if not (axes := device_axes()):
        return jnp.array(True)
    if (varying := varying_axes(state.key, axes)) is None:
        return (jax.lax.pmax(state.key, axes) == jax.lax.pmin(state.key, axes)).all()
    if varying:
        raise ValueError(
            f"state: differs along {varying[0]!r}, so that every device along it would release the same sum with noise "
            "of its own; give all devices one state"
        )
    return jnp.array(True)


def _noisy(noise: PrivateNoise, step_key: Array, sums: PyTree) -> PyTree:
    """Return the sums with noise, in units: integers in float64."""
    sampler, _ = exact_noise(noise.noise_multiplier, noise.dimensions)
    leaves, tree = jax.tree.flatten(sums)

    def noisy(step_key: Array, leaves: list[Array]) -> list[Array]:
        with jax.enable_x64(True):
            values = release_integers(step_key, sampler, jnp.concatenate([leaf.reshape(-1) for leaf in leaves]))
            pieces, offset = [], 0
            for leaf in leaves:
                pieces.append(values[offset : offset + leaf.size].reshape(leaf.shape))
                offset += leaf.size
        return pieces

    return jax.tree.unflatten(tree, explicitly_sharded(noisy, leaves)(step_key, leaves))


def _scaled(values: PyTree, factor: float, types: tuple[str, ...]) -> PyTree:
    """Return the values times a factor, in the types of the gradients."""
    leaves, tree = jax.tree.flatten(values)
    with jax.enable_x64(True):
        return jax.tree.unflatten(
            tree, [(leaf * factor).astype(dtype) for leaf, dtype in zip(leaves, types, strict=True)]
        )


def _difference(released: Array, sums: Array) -> Array:
    with jax.enable_x64(True):
        return (released - sums).astype(jnp.int32)
