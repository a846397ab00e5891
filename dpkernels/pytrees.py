"""Frozen dataclasses as JAX pytrees, and access to their leaves, also before JAX is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from dpkernels.jax_on_use import is_deferred, jax, when_imported

T = TypeVar("T")
# Containers of arrays in containers, for which JAX has no type.
PyTree: TypeAlias = Any


def pytree(cls: type[T], *, static: tuple[str, ...] = ()) -> type[T]:
    """Register a frozen dataclass as a pytree whose leaves are its fields, except the ``static`` ones.

    Unlike ``jax.tree_util.register_dataclass``, rebuilding one skips the constructor's checks: a gradient, or an optax
    update, is a pytree of its type but no valid mechanism. The class may be registered before it is made a dataclass.
    """

    @lru_cache
    def names() -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if field.name not in static]  # type: ignore[arg-type]

    def flatten(item: T) -> tuple[list[tuple[jax.tree_util.GetAttrKey, PyTree]], tuple[object, ...]]:
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(item, name)) for name in names()]
        return leaves, tuple(getattr(item, name) for name in static)

    def unflatten(shape: tuple[object, ...], leaves: Iterable[PyTree]) -> T:
        item = object.__new__(cls)
        for name, value in zip((*names(), *static), (*leaves, *shape), strict=True):
            object.__setattr__(item, name, value)
        return item

    cls.leaf_names, cls.static_names = staticmethod(names), static  # type: ignore[attr-defined]
    when_imported(lambda: jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten))
    return cls


def tree_leaves(tree: PyTree) -> list[PyTree]:
    """Return ``jax.tree.leaves(tree)``, which needs no JAX for trees of this package's classes."""
    return [leaf for _, leaf in named_leaves(tree)] if is_deferred() else jax.tree.leaves(tree)


def named_leaves(tree: PyTree, name: str = "") -> list[tuple[str, PyTree]]:
    """Return every leaf with its path, whose parts are joined by dots."""
    children = _children(tree)
    if children is None:
        return [(name, tree)]
    return [
        pair
        for child_name, child in children
        for pair in named_leaves(child, f"{name}.{child_name}" if name else child_name)
    ]


def tree_map(function: Callable[[PyTree], PyTree], tree: T) -> T:
    """Return ``jax.tree.map(function, tree)``, which needs no JAX for trees of this package's classes."""
    return _mapped(function, tree) if is_deferred() else jax.tree.map(function, tree)


def _mapped(function: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    children = _children(tree)
    if children is None:
        return function(tree)
    values = [_mapped(function, child) for _, child in children]
    if tree is None or type(tree) in (list, tuple):
        return tree if tree is None else type(tree)(values)
    if type(tree) is dict:
        return dict(zip(sorted(tree), values, strict=True))
    if isinstance(tree, tuple):  # It has names.
        return type(tree)(*values)
    item, names = object.__new__(type(tree)), [name for name, _ in children]
    for name, value in [*zip(names, values, strict=True), *((name, getattr(tree, name)) for name in tree.static_names)]:
        object.__setattr__(item, name, value)
    return item


def _children(tree: PyTree) -> list[tuple[str, PyTree]] | None:
    """Return what a tree holds, by name; None of a leaf."""
    if tree is None:
        return []
    if "leaf_names" in vars(type(tree)):
        return [(name, getattr(tree, name)) for name in tree.leaf_names()]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if type(tree) in (list, tuple):
        return [(str(number), child) for number, child in enumerate(tree)]
    return [(str(key), tree[key]) for key in sorted(tree)] if type(tree) is dict else None
