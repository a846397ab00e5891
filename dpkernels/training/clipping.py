r"""Sums of clipped gradients, rounded to integers, so that the order of summation does not matter.

**Sensitivity.** Let d be the number of parameters, C the clipping norm and K the sensitivity in units, and let ``u = C
/ (K - sqrt(d)/2)``. An example with gradient g contributes ``k = round(s g)``, where ``s = min(1/u, (1 - 2^-20) (K -
sqrt(d)/2) / |g|)``. In exact arithmetic ``|s g| <= (1 - 2^-20)(K - sqrt(d)/2)``, and rounding moves every coordinate by
at most 1/2, so that ``|k| <= K``. In floating point the norm is a float64 sum of at most 2^31 squares, which is off by
a factor within 1 +- 2^-22 in any order of summation; g, s and their product are float32 numbers, off by factors within
1 +- 2^-22 together. The factor 1 - 2^-20 covers both. Norms are below 10^30, so that s is a normal number, and integers
below 2^24 are exact in float32. The sum of at most B examples is at most B K < 2^31 in every coordinate, which is
checked when it is traced. One example more or less does not change the gradients of the others (``batches.py``), so it
changes the vector of sums by at most K units in the l2 norm. The certificate of the noise is for this case: vectors of
integers at a distance of at most K.

**Devices.** Examples that are split over devices are added up on their own device, and the sums of the devices are then
added. Their gradients do not leave the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpkernels.pytrees import PyTree
from dpkernels.random.chacha import varying_like
from dpkernels.release.traced import device_axes, varying_axes
from dpkernels.shapes import Bool, Float, Int, Shaped
from dpkernels.training.correlated import ToeplitzStrategy
from dpkernels.training.noise import PrivateNoise

T = TypeVar("T")

# The factor by which norms stay below the sensitivity, for rounding errors.
_NORM_MARGIN = 1 - 2.0**-20
# The number of examples that are added up together.
_EXAMPLES_TOGETHER = 4
# Leaves with more values stay by themselves: in every step, copies of them would take time.
_MAX_JOINED_VALUES = 1 << 12
# Vectors with at least so many values are summed in lanes, of which a step of a loop adds up several values each.
_MIN_LANED_VALUES = 1 << 10
_LANES = 1 << 12  # The number of lanes; fewer for short vectors, and up to twice as many for others.
_ADDENDS = 8  # The values that a step adds up in each lane.
# An example with a larger norm contributes 0.
_MAX_NORM = 1e30


@partial(jax.tree_util.register_dataclass, data_fields=["sums"], meta_fields=["rows", "types", "noise"])
@dataclass(frozen=True)
class ClippedSums:
    """The sum over examples of clipped gradients, as integers, which ``private_aggregate`` takes for gradients."""

    sums: PyTree  #: integers in units, in the structure of the parameters; as secret as the data
    rows: int  #: the largest number of examples that are in the sums
    types: tuple[str, ...]  #: of the gradients
    noise: PrivateNoise  #: the noise for these sums, which has their unit


def clipped_sums(
    gradients: optax.Updates,
    mask: Array | bool | None,
    noise: PrivateNoise,
    norms: Float[Array, " examples"] | None = None,
) -> ClippedSums:
    """Return the sums over examples of clipped and rounded gradients.

    Args:
        gradients: of every example, with the examples along the first axis.
        mask: says of every row whether it counts, or True.
        noise: the noise that will be added.
        norms: the norm of every row's gradient, or a larger number, where the caller knows it. The guarantee depends on
            it. Values above it, and NaN, count as 0. By default norms are computed.

    Raises:
        ValueError: the mask is missing, or a shape is wrong, or so many examples may overflow 32-bit integers, or
            gradients in ``shard_map`` are the same on several devices: JAX may have added up those of their examples.
        TypeError: gradients are not floats.
    """
    _check_rows_differ(jax.tree.leaves(gradients))
    return sums_of_rows(gradients, mask, noise, norms)


def sums_of_rows(
    gradients: optax.Updates, mask: Array | bool | None, noise: PrivateNoise, norms: Array | None = None
) -> ClippedSums:
    """Return ``clipped_sums`` of gradients of which every row is known to be that of one example."""
    leaves, tree = jax.tree.flatten(gradients)
    count = _count(leaves, noise)
    counted, bounds = _mask(mask, count), None if norms is None else jnp.asarray(norms)
    if bounds is not None and (bounds.shape != (count,) or not jnp.issubdtype(bounds.dtype, jnp.floating)):
        raise ValueError(f"norms: are {type_and_shape(bounds)}; they must be floats of shape [{count}], one an example")
    check_overflow(count, noise)
    add = explicitly_sharded(partial(_sum_examples, noise), leaves, 1)
    types = tuple(str(leaf.dtype) for leaf in leaves)
    return ClippedSums(jax.tree.unflatten(tree, add(leaves, counted, bounds)), count, types, noise)


def check_overflow(
    rows: int,
    noise: PrivateNoise,
    strategy: ToeplitzStrategy | None = None,
    steps: int | None = None,
    name: str = "updates",
) -> None:
    """Refuse so many examples that their sum, or what a strategy makes of it, may not be a 32-bit integer."""
    largest = rows * noise.sensitivity
    if strategy is not None:
        first, last = noise.certificate.table.ends
        errors = strategy.errors_bound(max(-first, last), steps or 1)
        largest = strategy.bands[0] * largest + sum(strategy.bands) * errors
    if largest >= 1 << 31:
        raise ValueError(f"{name}: {rows} examples of {noise.sensitivity:g} units each may overflow 32-bit integers")


def _check_rows_differ(leaves: list[Array]) -> None:
    """Refuse gradients that are the same along an axis of ``shard_map``.

    JAX adds up the gradients of parameters that are the same on several devices. A row would then be the sum of several
    examples, whatever their masks. Examples that are the same on these devices cannot be told apart from this.
    """
    if missing := repeated_axes(leaves):
        raise ValueError(
            f"updates: are the same along {missing[0]!r}; JAX may have added up the gradients of several devices "
            "before they are clipped. Split the examples over all axes, and differentiate at parameters that are "
            f"jax.lax.pcast(params, {missing[0]!r}, to='varying')"
        )


def repeated_axes(leaves: list[Array]) -> list[str]:
    """Return the axes of devices along which a leaf is known to be the same, of the first leaf that has any."""
    axes = device_axes()
    for leaf in leaves if axes else ():
        varying = varying_axes(jnp.asarray(leaf), axes)
        if varying is not None and (repeated := [name for name in axes if name not in varying]):
            return repeated
    return []


def explicitly_sharded(function: Callable[..., T], leaves: list[Array], first: int = 0) -> Callable[..., T]:
    """Return the function for leaves on a mesh with explicit axes; its results have the leaves' axes from the first on.

    Inside, XLA chooses how arrays are sharded, as on a mesh without explicit axes.
    """
    shardings = [jax.typeof(leaf).sharding for leaf in leaves]
    mesh = next((sharding.mesh for sharding in shardings if AxisType.Explicit in sharding.mesh.axis_types), None)
    if mesh is None:
        return function
    results = [NamedSharding(mesh, PartitionSpec(*sharding.spec[first:])) for sharding in shardings]
    return jax.sharding.auto_axes(function, axes=mesh.explicit_axes, out_sharding=results)


def type_and_shape(leaf: Any) -> str:
    """Return the type and shape of an array."""
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"


def _count(leaves: list[Array], noise: PrivateNoise) -> int:
    """Return the number of examples, whose gradients must have as many values as the noise."""
    shapes = [jnp.shape(leaf) for leaf in leaves]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes) or not shapes[0][0]:
        raise ValueError(f"updates: have shapes {shapes}; the first axis of every leaf must hold the same examples")
    if (size := example_size(leaves)) != noise.dimensions:
        raise ValueError(
            f"updates: have {size} values an example; the noise is for {noise.dimensions}. Gradients of every example "
            "are needed, with the examples along the first axis"
        )
    if any(not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise TypeError(f"updates: have types {[str(leaf.dtype) for leaf in leaves]}; all must be floats")
    return int(shapes[0][0])


def example_size(leaves: list[Array]) -> int:
    """Return the number of values of an example."""
    return sum(math.prod(jnp.shape(leaf)[1:]) for leaf in leaves)


def _mask(mask: object, count: int) -> Bool[Array, " {count}"]:
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
        raise ValueError(f"mask: is {type_and_shape(counted)}; it must be bool[{count}], one entry an example, or True")
    return counted


def _sum_examples(
    noise: PrivateNoise,
    leaves: list[Float[Array, "examples ..."]],
    counted: Bool[Array, " examples"],
    norms: Float[Array, " examples"] | None,
) -> list[Array]:
    """Return the sums of the leaves, in units; see the module for the proof."""
    count = leaves[0].shape[0]
    # As many shards as devices may have, each the examples of one device: XLA splits the first axis over them. Inside
    # shard_map the examples are those of one device already.
    shards = 1 if device_axes() or _is_local() else math.gcd(count, jax.device_count())
    sharded = partial(_split, shards=shards)
    arrays, is_counted = [sharded(leaf) for leaf in leaves], sharded(counted)
    stated_norms = None if norms is None else sharded(norms)
    groups = _group_leaves(leaves)
    joined = [_joined([arrays[index] for index in group]) for group in groups]
    max_norm_in_units = _NORM_MARGIN * (noise.sensitivity - math.sqrt(noise.dimensions) / 2)
    examples = is_counted.shape[1]
    with jax.enable_x64(True):
        # A few examples at a time stay in the cache: XLA's sums over all of them take ten times as long on a CPU.
        def add(i: Array, sums: list[Array]) -> list[Array]:
            # A turn always takes the same number of examples, so that a norm has the same bits however many a device
            # has. If the number of all is no multiple, the last turn begins with examples of the turn before it, which
            # ``is_new`` leaves out.
            first = jnp.minimum(i * _EXAMPLES_TOGETHER, examples - _EXAMPLES_TOGETHER)
            by_group = [_rows(array, first) for array in joined]
            rows = [[group[j] for group in by_group] for j in range(_EXAMPLES_TOGETHER)]
            if stated_norms is None:
                norms = _norms(joined, first)
            else:
                norms = jnp.stack(_rows(stated_norms, first)).astype(jnp.float64)
                rows = [[_without_larger(leaf, norm) for leaf in row] for row, norm in zip(rows, norms, strict=True)]
            scales = jnp.minimum(1 / noise.unit, max_norm_in_units / jnp.maximum(norms, noise.l2_norm_clip / 2))
            is_new = first + jnp.arange(_EXAMPLES_TOGETHER)[:, None] >= i * _EXAMPLES_TOGETHER
            are_used = jnp.stack(_rows(is_counted, first)) & (norms < _MAX_NORM) & is_new
            leaves = zip(sums, zip(*rows, strict=True), strict=True)
            return [_add_rows(total, leaf, scales.astype(jnp.float32), are_used) for total, leaf in leaves]

        shapes = [_joined_shape([leaves[index].shape[1:] for index in group]) for group in groups]
        zeros = [varying_like(jnp.zeros((shards, *shape), jnp.int32), counted, *leaves) for shape in shapes]
        sums = jax.lax.fori_loop(0, -(-examples // _EXAMPLES_TOGETHER), add, zeros)
        totals = [total.sum(0, dtype=jnp.int32) for total in sums]
        return _separated(totals, groups, [leaf.shape[1:] for leaf in leaves])


def _split(
    array: Shaped[Array, " examples *parameters"], shards: int
) -> Shaped[Array, "{shards} shard_examples *parameters"]:
    """Return the examples in shards, each of which has at least as many as are added up together; zeros fill it."""
    array = array.reshape(shards, array.shape[0] // shards, *array.shape[1:])
    if (missing := _EXAMPLES_TOGETHER - array.shape[1]) <= 0:
        return array
    return jnp.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))


def _is_local() -> bool:
    """Return whether the values of an example are known to be on one device: else a reshape may send them."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() == 1 or bool(mesh.manual_axes and set(mesh.manual_axes) == set(mesh.axis_names))


def _group_leaves(leaves: list[Array]) -> list[list[int]]:
    """Return groups of leaves, by index, that are one vector in the program: XLA compiles each vector by itself.

    Small leaves of one type are a group. A large leaf is one alone, and so is one that may be split over devices.
    """
    is_local, groups = _is_local(), dict[str | int, list[int]]()
    for index, leaf in enumerate(leaves):
        is_small = is_local and math.prod(leaf.shape[1:]) <= _MAX_JOINED_VALUES
        groups.setdefault(leaf.dtype.name if is_small else index, []).append(index)
    return list(groups.values())


def _joined(arrays: list[Array]) -> Array:
    """Return the examples of a group of leaves as one array."""
    if len(arrays) == 1:
        return arrays[0]
    return jnp.concatenate([array.reshape(*array.shape[:2], -1) for array in arrays], axis=2)


def _rows(array: Array, first: Array) -> list[Array]:
    """Return the examples of every shard that are added up together, from a first one on."""
    return [jax.lax.dynamic_index_in_dim(array, first + j, 1, keepdims=False) for j in range(_EXAMPLES_TOGETHER)]


def _joined_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of an example of a group, whose leaves have these shapes."""
    return shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),)


def _separated(totals: list[Array], groups: list[list[int]], shapes: list[tuple[int, ...]]) -> list[Array]:
    """Return the sums of the leaves, given those of the groups."""
    leaves: dict[int, Array] = {}
    for total, group in zip(totals, groups, strict=True):
        ends = np.cumsum([math.prod(shapes[index]) for index in group])[:-1]
        arrays = [total] if len(group) == 1 else jnp.split(total, ends)
        leaves |= {index: array.reshape(shapes[index]) for index, array in zip(group, arrays, strict=True)}
    return [leaves[index] for index in range(len(shapes))]


def _norms(arrays: list[Array], first: Array) -> Array:
    """Return the norms of the examples that are added up together, from a first one on, given the arrays of groups."""
    squares = [_sums_of_squares(array, first, is_local=_is_local()) for array in arrays]
    return jnp.sqrt(jnp.stack([sum(terms[1:], terms[0]) for terms in zip(*squares, strict=True)]))


@partial(jax.jit, static_argnames="is_local")  # Traced once for all leaves of a shape.
def _sums_of_squares(array: Array, first: Array, *, is_local: bool) -> list[Array]:
    """Return the sum of squares of every row that is added up, of an array of shape (shards, rows, ...).

    Rows keep their shape where they may be split over devices: another one would gather them.
    """
    if is_local and len(array) == 1 and math.prod(array.shape[2:]) >= _MIN_LANED_VALUES:
        return _sums_in_lanes(array.reshape(array.shape[1], -1), first)
    return _row_sums([jnp.square(row.astype(jnp.float64)) for row in _rows(array, first)])


def _row_sums(rows: list[Array]) -> list[Array]:
    """Return the sum of every row.

    One reduction computes all of them: on a CPU an addition to one sum waits for the last one to the same sum, and
    meanwhile the processor adds to the others.
    """
    zeros = [varying_like(jnp.zeros((), jnp.float64), row) for row in rows]
    axes = tuple(range(1, rows[0].ndim))
    return jax.lax.reduce(rows, zeros, lambda a, b: [x + y for x, y in zip(a, b, strict=True)], axes)


def _sums_in_lanes(array: Float[Array, "examples parameters"], first: Array) -> list[Array]:
    """Return ``_sums_of_squares`` of an array of shape (rows, values).

    On a CPU, XLA adds up a vector value by value, because the order of a sum of floats is fixed. Many sums at a time,
    one in each lane, use the processor's vector instructions. The loop keeps them in memory: without it XLA would fuse
    them into the sum over lanes, which goes value by value.
    """
    size = array.shape[1]
    turns = max(2, size // (_LANES * _ADDENDS))
    lanes = size // (turns * _ADDENDS)

    def squares(begin: Array | int, count: int) -> Array:
        start_indices = first, jnp.asarray(begin, first.dtype)
        return jnp.square(jax.lax.dynamic_slice(array, start_indices, (_EXAMPLES_TOGETHER, count)).astype(jnp.float64))

    def add(i: Array, sums: Array) -> Array:
        return sum((squares((i * _ADDENDS + k) * lanes, lanes) for k in range(_ADDENDS)), sums)

    zeros = varying_like(jnp.zeros((_EXAMPLES_TOGETHER, lanes), jnp.float64), array, first)
    sums = jax.lax.fori_loop(0, turns, add, zeros)
    remainder = squares(turns * _ADDENDS * lanes, size - turns * _ADDENDS * lanes)
    totals, remainder_totals = (_row_sums([row[None] for row in terms]) for terms in (sums, remainder))
    return [a + b for a, b in zip(totals, remainder_totals, strict=True)]


def _without_larger(
    rows: Float[Array, " shards *parameters"], norm: Float[Array, " shards"]
) -> Float[Array, " shards *parameters"]:
    """Return the rows without values above the norm that the caller stated, NaN among them."""
    return jnp.where(jnp.abs(rows) <= norm.reshape(len(rows), *[1] * (rows.ndim - 1)), rows, 0.0).astype(rows.dtype)


@jax.jit
def _add_rows(
    total: Int[Array, " shards *parameters"],
    rows: tuple[Float[Array, " shards *parameters"], ...],
    scales: Float[Array, "together shards"],
    are_used: Bool[Array, "together shards"],
) -> Int[Array, " shards *parameters"]:
    """Return the sum of a leaf with several more examples, in units.

    Floats add these up without an error: they are integers of at most 4 K <= 2^19.
    """
    rounded = [_rounded(*row) for row in zip(rows, scales, are_used, strict=True)]
    return total + sum(rounded[1:], rounded[0]).astype(jnp.int32)


def _rounded(
    rows: Float[Array, " shards *parameters"], scale: Float[Array, " shards"], is_used: Bool[Array, " shards"]
) -> Float[Array, " shards *parameters"]:
    """Return the rows in units, as whole numbers in float32; those that are not used are 0."""
    columns = (len(rows), *[1] * (rows.ndim - 1))
    scaled = jnp.round(rows.astype(jnp.float32) * scale.reshape(columns))
    return jnp.where(is_used.reshape(columns), scaled, jnp.float32(0))
