r"""Private gradient aggregation for optax, with Gaussian noise from certified integers.

``private_aggregate`` takes the place of ``optax.contrib.differentially_private_aggregate``. It clips the gradient of
every example, adds them up, adds Gaussian noise and divides by the expected batch size. It differs in three ways.

* The sum is one of integers. Every clipped gradient is rounded to multiples of a unit ``u`` before the sum, so that the
  sum has no rounding error whatever the order, the number of devices or of micro-batches.
* The noise is drawn from a table of integers with a verified certificate, with the words of ChaCha20.
* An example whose gradient is not finite, or has a norm of 10^30 or more, contributes 0.

**Sensitivity.** Let d be the number of parameters, C the clipping norm and K the sensitivity in units, and let
``u = C / (K - sqrt(d)/2)``. An example with gradient g contributes ``k = round(s g)``, where
``s = min(1/u, (1 - 2^-20) (K - sqrt(d)/2) / |g|)``. In exact arithmetic ``|s g| <= (1 - 2^-20)(K - sqrt(d)/2)``, and
rounding moves every coordinate by at most 1/2, so that ``|k| <= K``. In floating point the norm is a float64 sum of at
most 2^31 squares, which is off by a factor within 1 +- 2^-22 in any order of summation; g, s and their product are
float32 numbers, off by factors within 1 +- 2^-22 together. The factor 1 - 2^-20 covers both. Norms are below 10^30, so
that s is a normal number, and integers below 2^24 are exact in float32. The sum of at most B examples is at most
B K < 2^31 in every coordinate, which is checked when it is traced. So one example more or less changes the vector of
sums by at most K units in the l2 norm, and the certificate of the noise is for exactly this: vectors of integers that
are at most K apart.

**Cost.** The standard deviation of the noise is ``noise_multiplier * C / (1 - sqrt(d)/(2 K))``. Noise of real numbers
is narrower by the share ``PrivateNoise.rounding_cost``, because K units stand for a norm of C.

**Keys.** Every step splits the state's key in two: a key for its noise, and a key for the steps to come. So no two
steps share a key, and the coordinates of a step have different words of one stream. The noise of earlier steps cannot
be computed from a state. That of later steps can, so keep the state as secret as the data. In one process every call of
``init`` begins a run with a key of its own, which is derived from the key and from the number of the call. ``init``
cannot be compiled, because a compiled one would begin every run with the same key. Another process needs another key.

**States.** A state belongs to one transformation. It carries a hash of the transformation's key and one of its
settings, neither of which discloses the key. ``update`` uses the transformation's own settings, and refuses a state of
other settings or of another key. Inside ``jit`` the numbers of a state are unknown: if they are of another
transformation, all updates are NaN. A restored checkpoint therefore needs the same key, or a new transformation with a
new key, which ``renew_key`` puts into the state.

A repeated step is not recognised. If two runs continue from one checkpoint with one key, or a step is repeated from one
state with another batch, both have the same noise, and their difference discloses the data. Continue every run from a
checkpoint with a new key.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from dpkernels import checks
from dpkernels.random.chacha import varying_like
from dpkernels.random.keys import release_key_bytes
from dpkernels.release.traced import device_axes, release_replicated, varying_axes
from dpkernels.training.noise import MULTIPLIERS, PrivateNoise, exact_noise

# The factor by which norms stay below the sensitivity, for rounding errors.
_MARGIN = 1 - 2.0**-20
# An example with a larger norm contributes 0.
_LARGEST_NORM = 1e30
# The format of states; one of another format is refused.
_FORMAT = 2
_HASH = jax.ShapeDtypeStruct((8,), jnp.uint32)
_NUMBER = jax.ShapeDtypeStruct((), jnp.int32)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["key", "owner", "settings", "step", "micro_step", "sums"],
    meta_fields=["noise"],
)
@dataclass(frozen=True)
class PrivateAggregateState:
    """The state of ``private_aggregate``: a pytree of arrays that can be checkpointed and restored."""

    key: Array  #: the words of the key of the steps to come, as secret as the data
    owner: Array  #: the words of a hash of the transformation's key
    settings: Array  #: the words of a hash of the transformation's settings
    step: Array  #: the number of releases so far
    micro_step: Array  #: the number of micro-batches since the last release
    sums: Any  #: the sums of these, integers in units; empty without micro-batches
    noise: PrivateNoise  #: the description of the noise with its certificate, which is static

    def __setstate__(self, values: dict[str, Any]) -> None:
        """Refuse a pickle of another version, whose settings are unknown."""
        if set(values) != {each.name for each in fields(self)}:
            raise ValueError(f"state: was pickled by another version; it has the fields {', '.join(sorted(values))}")
        self.__dict__.update(values)


def private_aggregate(
    l2_norm_clip: float,
    noise_multiplier: float,
    key: Array,
    *,
    expected_batch_size: float | None = None,
    micro_batches: int = 1,
    axis_name: str | tuple[str, ...] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Aggregate per-example gradients with certified Gaussian noise, as DP-SGD does, in a ``PrivateAggregateState``.

    ``update`` takes gradients with the examples along the first axis, and ``mask``, which says of every row whether it
    counts. The mask is required, because the padded rows of ``poisson_batch`` repeat one example: give the mask of the
    batch, or ``mask=True`` if every row is an example of its own. ``update`` returns the noisy sum over the expected
    batch size. It works in ``jit``, on arrays that are sharded over devices, and in ``shard_map`` with ``axis_name``.
    See the module for the proof, the cost and the care that the state needs. ``init`` certifies the noise, which takes
    some seconds once for a noise multiplier and a number of parameters, and refuses to run inside ``jit``.

    Args:
        l2_norm_clip: C, in [1e-20, 1e20].
        noise_multiplier: the standard deviation of the noise over the sensitivity of the sum, in [0.25, 1000].
        key: a ChaCha20 key, such as ``dpkernels.os_key()``, for this transformation alone. The first ``init`` begins a
            run with it, and every further one with a key that is derived from it.
        expected_batch_size: the divisor of the sum, by default the number of rows of all micro-batches. For Poisson
            batches give the sampling rate times the number of examples, since the size of a batch is private.
        micro_batches: the number of updates that make one release. Updates in between are zeros.
        axis_name: the axis of ``shard_map``, or a tuple of all axes, that the examples are split over.

    Raises:
        ValueError: an argument is out of range, or the parameters are too many for the noise multiplier. ``update``
            raises it without a mask, and for a state of another transformation. It does so, too, in ``shard_map`` over
            an axis that ``axis_name`` does not name, where every device would add the same noise to the sum of its own
            examples, or over an axis along which the examples are the same, which would count each several times.
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
    checks.whole("micro_batches", micro_batches, 1, 1 << 20)
    if expected_batch_size is not None:
        checks.positive("expected_batch_size", expected_batch_size)
    owner, kind, runs = _owner(key), jax.random.key_impl(key), itertools.count()

    def described(dimensions: int) -> tuple[PrivateNoise, np.ndarray]:
        """Return the noise, and the hash of the settings."""
        noise = PrivateNoise.certified(clip, multiplier, dimensions)
        return noise, _hash("settings", repr((_FORMAT, clip, multiplier, dimensions, micro_batches)).encode())

    def init(params: optax.Params) -> PrivateAggregateState:
        leaves = jax.tree.leaves(params)
        noise, settings = described(sum(math.prod(jnp.shape(leaf)) for leaf in leaves))
        sums = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.int32), params) if micro_batches > 1 else ()
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise ValueError("init: call it outside jit and other transformations; every run needs a key of its own")
        words = jax.random.key_data(jax.random.fold_in(key, next(runs)))
        zero = jnp.zeros((), jnp.int32)
        return PrivateAggregateState(words, jnp.asarray(owner), jnp.asarray(settings), zero, zero, sums, noise)

    def update(
        updates: Any,
        state: PrivateAggregateState,
        params: Any = None,
        *,
        mask: Array | bool | None = None,
        **others: Any,
    ) -> tuple[optax.Updates, PrivateAggregateState]:
        del params, others
        leaves = jax.tree.leaves(updates)
        _check_axes(axis_name)
        if not isinstance(state, PrivateAggregateState):
            raise TypeError(f"state: is a {type(state).__name__}; it must be a PrivateAggregateState, which init makes")
        count, dimensions = _shape(leaves, state.noise)
        counted = _mask(mask, count)
        noise, settings = described(dimensions)
        is_own = _is_own(state, noise, owner, settings, updates if micro_batches > 1 else ())
        rows = count * micro_batches * (1 if axis_name is None else jax.lax.axis_size(axis_name))
        if rows * noise.sensitivity >= 1 << 31:
            raise ValueError(
                f"updates: {rows} examples of {noise.sensitivity:g} units each may overflow 32-bit integers"
            )
        sums = _clipped_sums(updates, counted, noise)
        if axis_name is not None:
            _check_split(sums)
            sums = jax.lax.psum(sums, axis_name)
        types = [leaf.dtype for leaf in leaves]
        divided_by = rows if expected_batch_size is None else expected_batch_size
        release = partial(_release, kind, noise, noise.unit / divided_by, types)
        micro_step = state.micro_step + 1
        is_last = micro_step == micro_batches
        if micro_batches == 1:
            released, following = release(state.key, sums)
            sums = ()
        else:
            sums = jax.tree.map(jnp.add, state.sums, sums)
            released, following = jax.lax.cond(is_last, release, partial(_nothing, types), state.key, sums)
            sums = jax.tree.map(lambda leaf: jnp.where(is_last, 0, leaf), sums)
        released = jax.tree.map(lambda leaf: jnp.where(is_own, leaf, jnp.nan), released)
        step, micro_step = state.step + is_last, jnp.where(is_last, 0, micro_step)
        return released, PrivateAggregateState(following, state.owner, state.settings, step, micro_step, sums, noise)

    return optax.GradientTransformationExtraArgs(init, update)


def renew_key(state: PrivateAggregateState, key: Array) -> PrivateAggregateState:
    """Return the state for a transformation with another key and the same settings, to go on from a checkpoint.

    The noise of the steps to come is that of the new key. Use every key once: for one transformation, one process, and
    one state.
    """
    owner = _owner(key)
    return replace(state, key=jax.random.key_data(key), owner=jnp.asarray(owner))


def _check_axes(axis_name: str | tuple[str, ...] | None) -> None:
    """Refuse to run in ``shard_map`` or ``pmap`` over an axis that is not named."""
    named = (axis_name,) if isinstance(axis_name, str) else axis_name or ()
    if missing := [name for name in device_axes() if name not in named]:
        raise ValueError(
            f"axis_name: {axis_name!r} leaves out {missing[0]!r}, an axis of the shard_map that this update runs in. "
            "The devices along it would add the same noise to different sums. Name all axes or update outside shard_map"
        )


def _check_split(sums: Any) -> None:
    """Refuse sums that are known to be the same along an axis of devices, whose sum has every example several times."""
    axes = device_axes()
    for leaf in jax.tree.leaves(sums) if axes else ():
        varying = varying_axes(leaf, axes)
        if varying is not None and (repeated := set(axes) - set(varying)):
            raise ValueError(
                f"updates: are the same along {min(repeated)!r}, so that the sum over its devices would count every "
                "example several times; split the examples over all named axes"
            )


def _owner(key: Array) -> np.ndarray:
    """Return the hash of a key, which identifies its transformation; no ChaCha20 key, or a traced one, is an error."""
    checks.not_traced("key", "Give a key outside of transformations; states carry their own.", key)
    with jax.ensure_compile_time_eval():  # A key that is a constant of a program that is traced.
        return _hash("key", release_key_bytes(key))


def _hash(kind: str, content: bytes) -> np.ndarray:
    """Return the words of the SHA-256 hash of a content of a kind."""
    return np.frombuffer(hashlib.sha256(f"dpkernels private_aggregate {kind}\0".encode() + content).digest(), "<u4")


def _is_own(
    state: PrivateAggregateState, noise: PrivateNoise, owner: np.ndarray, settings: np.ndarray, summed: Any
) -> Array:
    """Return whether the state is this transformation's; raise an error if it is known that it is not."""
    for name in ("l2_norm_clip", "noise_multiplier", "sensitivity"):
        if (theirs := getattr(state.noise, name)) != (ours := getattr(noise, name)):
            raise ValueError(f"state: is for {name} {theirs!r}, but this update for {ours!r}; begin with a new state")
    expected = {"key": _HASH, "owner": _HASH, "settings": _HASH, "step": _NUMBER, "micro_step": _NUMBER}
    sums = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], jnp.int32), summed)
    for name, form in (*expected.items(), ("sums", sums)):
        if (stated := jax.tree.map(_form, getattr(state, name))) != jax.tree.map(_form, form):
            raise TypeError(f"state: {name} has the form {stated}; it must be {jax.tree.map(_form, form)}")
    is_owner, has_settings = (state.owner == owner).all(), (state.settings == settings).all()
    if not isinstance(is_owner, jax.core.Tracer) and not is_owner:
        raise ValueError("state: belongs to a transformation with another key; renew_key gives it the key of this one")
    if not isinstance(has_settings, jax.core.Tracer) and not has_settings:
        raise ValueError("state: belongs to a transformation with other settings; begin with a new state")
    return is_owner & has_settings


def _form(leaf: Any) -> str:
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"


def _shape(leaves: list[Any], noise: PrivateNoise) -> tuple[int, int]:
    """Return the number of examples, and of values an example, which must be those of the state's noise."""
    shapes = [jnp.shape(leaf) for leaf in leaves]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes) or not shapes[0][0]:
        raise ValueError(f"updates: have shapes {shapes}; the first axis of every leaf must hold the same examples")
    if (size := sum(math.prod(shape[1:]) for shape in shapes)) != noise.dimensions:
        raise ValueError(
            f"updates: have {size} values an example; the state is for {noise.dimensions}. Gradients of every example "
            "are needed, with the examples along the first axis"
        )
    if any(not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise TypeError(f"updates: have types {[str(leaf.dtype) for leaf in leaves]}; all must be floats")
    return int(shapes[0][0]), size


def _mask(mask: Any, count: int) -> Array:
    """Return which rows count; the user has to say so, because padded rows repeat an example."""
    if mask is None:
        raise ValueError(
            "mask: is missing; give the mask of poisson_batch, whose padded rows repeat an example, or True if every "
            "row is an example of its own"
        )
    if mask is True:
        return jnp.ones(count, bool)
    counted = jnp.asarray(mask)
    if counted.dtype != jnp.bool_ or counted.shape != (count,):
        raise ValueError(f"mask: is {_form(counted)}; it must be bool[{count}], one entry an example, or True")
    return counted


def _clipped_sums(updates: optax.Updates, counted: Array, noise: PrivateNoise) -> Any:
    """Return the sums over examples of clipped and rounded gradients, in units; see the module for the proof."""
    leaves, tree = jax.tree.flatten(updates)
    count = leaves[0].shape[0]
    most = _MARGIN * (noise.sensitivity - math.sqrt(noise.dimensions) / 2)
    with jax.enable_x64(True):
        # One example at a time stays in the cache: XLA's sums over all of them at once take twice as long on a CPU.
        def add(i: Array, sums: list[Array]) -> list[Array]:
            rows = [leaf[i] for leaf in leaves]
            norm = jnp.sqrt(sum(jnp.square(row.reshape(-1).astype(jnp.float64)).sum() for row in rows))
            scale = jnp.minimum(1 / noise.unit, most / jnp.maximum(norm, noise.l2_norm_clip / 2)).astype(jnp.float32)
            is_used = counted[i] & (norm < _LARGEST_NORM)
            scaled = [jnp.round(row.astype(jnp.float32) * scale) for row in rows]
            rounded = [jnp.where(is_used, row, 0.0).astype(jnp.int32) for row in scaled]
            return [total + part for total, part in zip(sums, rounded, strict=True)]

        zeros = [varying_like(jnp.zeros(leaf.shape[1:], jnp.int32), counted, *leaves) for leaf in leaves]
        sums = jax.lax.fori_loop(0, count, add, zeros)
    return jax.tree.unflatten(tree, sums)


def _release(kind: Any, noise: PrivateNoise, factor: float, types: list[Any], words: Array, sums: Any) -> Any:
    """Return the noisy sums times a factor, and the words of the key of the next release."""
    sampler, _ = exact_noise(noise.noise_multiplier, noise.dimensions)
    now, following = jax.random.split(jax.random.wrap_key_data(words, impl=kind))
    leaves, tree = jax.tree.flatten(sums)
    with jax.enable_x64(True):
        noisy = release_replicated(now, sampler, jnp.concatenate([leaf.reshape(-1) for leaf in leaves])) * factor
        pieces, offset = [], 0
        for leaf, dtype in zip(leaves, types, strict=True):
            pieces.append(noisy[offset : offset + leaf.size].reshape(leaf.shape).astype(dtype))
            offset += leaf.size
    return jax.tree.unflatten(tree, pieces), jax.random.key_data(following)


def _nothing(types: list[Any], words: Array, sums: Any) -> Any:
    leaves, tree = jax.tree.flatten(sums)
    zeros = [jnp.zeros(leaf.shape, dtype) for leaf, dtype in zip(leaves, types, strict=True)]
    return jax.tree.unflatten(tree, zeros), words
