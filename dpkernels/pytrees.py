"""Frozen dataclasses as JAX pytrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import jax

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

    cls.leaf_names = staticmethod(names)  # type: ignore[attr-defined]
    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
