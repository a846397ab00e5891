"""Batches: several mechanisms, distributions or shapes in one object, whose parameters are arrays.

Arrays of parameters broadcast to one ``batch_shape``; a single object has the shape (). Values x have the shape (...,
*batch_shape). Most formulas broadcast, so they work for batches without a change; ``each_entry`` evaluates the others.
Under ``jax.vmap`` over a batch, a function receives single objects.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeGuard, TypeVar, cast

import numpy as np

from dpkernels import checks
from dpkernels.jax_on_use import Array, Tracer, jax, jnp
from dpkernels.numerics import Real, RealArray, float_if_scalar, namespace
from dpkernels.pytrees import PyTree, tree_leaves, tree_map
from dpkernels.shapes import Int

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
B = TypeVar("B", bound="Batchable")


class Batchable:
    """A frozen dataclass and pytree whose numbers may be arrays that broadcast to one ``batch_shape``."""

    # The number of axes that a leaf has by itself; 0 for those that are not named.
    leaf_axes: ClassVar[Mapping[str, int]] = {}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        # A dataclass would write methods of its own, which cannot compare arrays.
        for name in ("__eq__", "__hash__", "__repr__"):
            if cls.__dict__.get(name) is None:
                setattr(cls, name, getattr(Batchable, name))
        if "__post_init__" in cls.__dict__:
            setattr(cls, "__post_init__", _after_freezing(cls.__dict__["__post_init__"]))  # noqa: B010

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Return the shape to which the parameters broadcast; () for a single one."""
        try:  # A release of few values asks for it again and again.
            return self.__dict__["_batch_shape"]
        except KeyError:
            shape = _broadcast(dict(_shapes(self)))
            object.__setattr__(self, "_batch_shape", shape)
            return shape

    @property
    def batch_size(self) -> int:
        """Return the number of entries; 1 for a single one."""
        return math.prod(self.batch_shape)

    def claims_of_entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the epsilon and the delta that every entry of a batch of mechanisms claims, with the batch's shape."""
        claims = (getattr(self, "epsilon", None), getattr(self, "delta", 0.0))
        if any(claim is None for claim in claims):
            raise TypeError(f"epsilon: the {type(self).__name__} claims no epsilon and delta")
        epsilons, deltas = (np.broadcast_to(np.asarray(claim, np.float64), self.batch_shape) for claim in claims)
        return epsilons, deltas

    def __len__(self) -> int:
        if not (shape := self.batch_shape):
            raise TypeError(f"{type(self).__name__} is a single one; it has no length")
        return shape[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: object) -> Self:
        """Return an entry, or the batch of some entries, as NumPy indexes an array of the batch's shape."""
        if not (shape := self.batch_shape):
            raise TypeError(f"{type(self).__name__} is a single one; it has no entries")

        def chosen(leaf: Real, axes: int) -> Real:
            if np.ndim(leaf) == axes:
                return leaf
            leaf_shape = np.shape(leaf)[np.ndim(leaf) - axes :]
            return _frozen("", float_if_scalar(namespace(leaf).broadcast_to(leaf, shape + leaf_shape)[index]))

        return map_leaves(chosen, self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return NotImplemented
        cls: object = type(self)
        if (compared := _compared(cls)) is None:
            return True
        values, other_values = compared(self), compared(other)
        if self.leaf_axes or self.batch_shape or other.batch_shape:
            return all(map(_are_equal, values, other_values))
        return values == other_values

    def __hash__(self) -> int:
        try:
            return self.__dict__["_hash"]
        except KeyError:
            cls: object = type(self)
            compared = _compared(cls)
            values = map(_hashable, compared(self)) if compared else ()
            value = hash((type(self).__qualname__, *values))
            object.__setattr__(self, "_hash", value)
            return value

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is kept, since hashes of strings differ between processes."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_hash", "_batch_shape")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Freeze the arrays again, since pickles and deep copies of read-only arrays can be changed."""
        # Names are interned, as by default: a further pickle writes each of them once.
        self.__dict__.update({sys.intern(name): value for name, value in state.items()})
        freeze(self)

    def __repr__(self) -> str:
        fields = (field.name for field in dataclasses.fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(f'{name}={_described(getattr(self, name))}' for name in fields)})"


@cache
def _compared(cls: type[Batchable]) -> Callable[[Batchable], tuple[object, ...]] | None:
    """Return the function from an object to the values by which it is compared; None if there are none."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]  # type: ignore[arg-type]
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda item: (getattr(item, names[0]),)) if names else None


def map_leaves(function: Callable[[Real, int], Real], item: T, axes: int = 0) -> T:
    """Return a batch with ``function(leaf, its own axes)`` for every leaf, without the constructors' checks."""
    if isinstance(item, Batchable):
        copy = object.__new__(type(item))
        for field in dataclasses.fields(item):  # type: ignore[arg-type]
            value = getattr(item, field.name)
            if field.name in _leaf_names(item):
                value = map_leaves(function, value, item.leaf_axes.get(field.name, 0))
            object.__setattr__(copy, field.name, value)
        return copy
    if isinstance(item, tuple):
        return cast(T, tuple(map_leaves(function, value, axes) for value in item))
    return cast(T, function(item, axes)) if _is_number(item) else item


def leaves(item: object, axes: int = 0) -> Iterator[tuple[Real, int]]:
    """Yield the numbers of a batch, each with its own axes."""
    if isinstance(item, Batchable):
        for name in _leaf_names(item):
            yield from leaves(getattr(item, name), item.leaf_axes.get(name, 0))
    elif isinstance(item, tuple):
        yield from chain.from_iterable(leaves(value, axes) for value in item)
    elif _is_number(item):
        yield item, axes


def flat_leaves(batch: B) -> B:
    """Return the batch with one axis, every leaf with an entry for each mechanism, in the order of a flat array."""
    shape, size = batch.batch_shape, batch.batch_size

    def flat(leaf: Real, axes: int) -> RealArray:
        xp, leaf_shape = namespace(leaf), np.shape(leaf)[np.ndim(leaf) - axes :]
        return xp.broadcast_to(xp.asarray(leaf), shape + leaf_shape).reshape(size, *leaf_shape)

    return map_leaves(flat, batch)


def distinct_entries(batch: Batchable) -> tuple[Int[np.ndarray, " kinds"], Int[np.ndarray, " entries"]]:
    """Return the flat index of the first entry of every kind, and the kind of every entry."""
    groups = np.zeros(batch.batch_size, np.int64)
    for leaf, axes in leaves(flat_leaves(batch)):
        column: np.ndarray = np.asarray(leaf, np.float64)
        if axes:
            column = np.unique(column.reshape(len(column), -1), axis=0, return_inverse=True)[1].ravel()
        if len(column) and (column == column[0]).all():
            continue
        values, inverse = np.unique(column, return_inverse=True)
        groups = np.unique(groups * len(values) + inverse.ravel(), return_inverse=True)[1].ravel()
    _, firsts = np.unique(groups, return_index=True)
    # In the order of first appearance.
    order = np.argsort(firsts)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return firsts[order], ranks[groups]


def evaluate_entries(function: Callable[..., float], batch: Batchable, *values: Real) -> np.ndarray:
    """Return ``function(mechanism, *values)`` of every entry of a batch of plain numbers, once for equal ones.

    Values broadcast with the batch shape, to the shape of the result.
    """
    shape = np.broadcast_shapes(batch.batch_shape, *map(np.shape, values))
    firsts, groups = distinct_entries(batch)
    columns = [np.broadcast_to(groups.reshape(batch.batch_shape), shape).ravel()]
    columns += [np.broadcast_to(np.asarray(value, np.float64), shape).ravel() for value in values]
    rows, inverse = np.unique(np.stack(columns, -1), axis=0, return_inverse=True)
    flat = flat_leaves(batch)
    entries = {group: flat[int(firsts[group])] for group in np.unique(groups).tolist()}
    results = np.array([function(entries[int(group)], *arguments) for group, *arguments in rows.tolist()])
    return results[inverse.ravel()].reshape(shape)


def each_entry(method: Method) -> Method:
    """Return a method of single objects that also evaluates batches: JAX's by vmap, NumPy's one after the other.

    Arrays among the arguments have the shape (..., *batch_shape) or broadcast to it, and so have the results.
    """

    @wraps(method)
    def evaluated(self: Batchable, *values: Real) -> PyTree:
        if not (shape := self.batch_shape):
            return method(self, *values)
        are_arrays = [np.ndim(value) > 0 for value in values]
        full_shape = np.broadcast_shapes(shape, *(np.shape(value) for value in values))
        outer_shape = full_shape[: len(full_shape) - len(shape)]
        batch, size = flat_leaves(self), self.batch_size
        xp = namespace(*values, *tree_leaves(self))
        arguments: list[Any] = [
            xp.broadcast_to(value, full_shape).reshape(*outer_shape, size) if is_array else value
            for value, is_array in zip(values, are_arrays, strict=True)
        ]
        if xp is jnp:
            axes = [-1 if is_array else None for is_array in are_arrays]
            results = jax.vmap(method, in_axes=(0, *axes), out_axes=-1)(batch, *arguments)
        else:
            rows = [
                method(
                    batch[i], *(a[..., i] if is_array else a for a, is_array in zip(arguments, are_arrays, strict=True))
                )
                for i in range(size)
            ]
            results = jax.tree.map(lambda *entries: np.stack(np.broadcast_arrays(*entries), -1), *rows)
        return tree_map(lambda result: result.reshape(*result.shape[:-1], *shape), results)

    return cast(Method, evaluated)


def has_axes(*values: object) -> bool:
    """Return whether a value is an array with axes, of NumPy: of several plain numbers."""
    return namespace(*values) is np and any(isinstance(value, np.ndarray) and value.ndim > 0 for value in values)


def entrywise(function: Callable[..., T], *values: Real) -> T:
    """Return a function of plain numbers at each entry of arrays, evaluated once for equal entries; stacked."""
    arrays = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))
    rows, inverse = np.unique(np.stack([array.ravel() for array in arrays], -1), axis=0, return_inverse=True)
    results = [function(*row) for row in rows.tolist()]
    return stacked([results[i] for i in inverse.ravel().tolist()], arrays[0].shape)


def stacked(entries: Sequence[T], shape: tuple[int, ...]) -> T:
    """Return the batch of some entries of one structure, such as mechanisms or tuples of numbers."""
    leaves, structures = zip(*map(jax.tree.flatten, entries), strict=True)
    if any(structure != structures[0] for structure in structures):
        raise ValueError(f"entries: are not of one structure, {structures[0]}; make a batch of each kind")
    columns = [
        np.array(column, np.float64).reshape(*shape, *np.shape(column[0])) for column in zip(*leaves, strict=True)
    ]
    return jax.tree.unflatten(structures[0], columns)


def plain_if_equal(column: np.ndarray) -> Any:
    """Return the number that all entries of a column have, or the column."""
    return column[0] if (column == column[0]).all() else column


def check_fits(shape: tuple[int, ...], batch_shape: tuple[int, ...], name: str = "x") -> None:
    """Refuse values whose last axes are not those of a batch: no value is broadcast, since it would be used twice."""
    if batch_shape and tuple(shape[max(0, len(shape) - len(batch_shape)) :]) != batch_shape:
        raise ValueError(
            f"{name}: has shape {tuple(shape)}; its last axes must be {batch_shape}, one value for each mechanism of "
            "the batch"
        )


def _leaf_names(item: Batchable) -> list[str]:
    return type(item).leaf_names()  # type: ignore[attr-defined]


def _is_number(value: object) -> TypeGuard[Real]:
    return isinstance(value, int | float | np.ndarray | np.generic | Array) and not isinstance(value, bool)


def _shapes(item: object, name: str = "", axes: int = 0) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(item, Batchable):
        for field in _leaf_names(item):
            yield from _shapes(getattr(item, field), f"{name}.{field}" if name else field, item.leaf_axes.get(field, 0))
    elif isinstance(item, tuple):
        for i, value in enumerate(item):
            yield from _shapes(value, f"{name}[{i}]", axes)
    elif _is_number(item):
        yield name, np.shape(item)[: max(0, np.ndim(item) - axes)]


def _broadcast(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        described = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape)
        raise ValueError(f"parameters: have shapes {described}, which do not broadcast to one batch") from None


def _after_freezing(check: Callable[[B], None]) -> Callable[[B], None]:
    @wraps(check)
    def checked(self: B) -> None:
        freeze(self)
        check(self)

    return checked


def freeze(item: Batchable) -> None:
    """Replace NumPy arrays of numbers by copies in immutable memory: what was checked and certified stays so.

    A flag of an array would not do: its owner can set it, and views made before write nevertheless.
    """
    for name in _leaf_names(item):
        object.__setattr__(item, name, _frozen(name, getattr(item, name)))
    if 0 in (shape := item.batch_shape):
        raise ValueError(f"parameters: broadcast to shape {shape}; a batch has one entry or more")


def _frozen(name: str, value: object) -> Any:
    if isinstance(value, list):
        checks.no_list(name, value)
    if isinstance(value, tuple):
        return tuple(_frozen(name, item) for item in value)
    if isinstance(value, Batchable):
        freeze(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        return value
    if not value.ndim:
        return value[()]
    if value.dtype == np.float64 and isinstance(value.base, bytes):
        return value
    return np.ndarray(value.shape, np.float64, np.asarray(value, np.float64).tobytes())


def _are_equal(value: object, other: object) -> bool:
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(_are_equal, value, other))
    if _has_axes(value):
        return _has_axes(other) and np.shape(value) == np.shape(other) and bool(np.all(value == other))
    return value is other or (not _has_axes(other) and bool(value == other))


def _has_axes(value: object) -> TypeGuard[RealArray]:
    return _is_number(value) and np.ndim(value) > 0


def _hashable(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_hashable, value))
    if _has_axes(value):
        array = np.asarray(value, np.float64)
        return array.shape, array.tobytes()
    return value


def _described(value: object) -> str:
    if not _has_axes(value) or isinstance(value, Tracer):
        return repr(value)
    low, high = float(np.min(value)), float(np.max(value))
    spread = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"<{'x'.join(map(str, np.shape(value)))} from {spread}>"
