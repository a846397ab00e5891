"""A cache with a limit on the memory of its entries, and an estimate of that memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, update_wrapper
from types import FunctionType
from typing import Generic, TypeVar, TypeVarTuple

import numpy as np

from dpkernels.jax_on_use import Array, is_deferred, jax

# Of a compiled program, which has copies of the tables that it looks up: measured for noise from tables of 2^16 codes.
_PROGRAM = 3 << 20
_OURS = "dpkernels", "accountants"
_OBJECT = 64  # Of a number or another small object, and of an entry of a container.


Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Entry(Generic[T]):
    value: T
    last_use: int  # When it was last used, by a counter, and when it was measured: it may have grown in between.
    last_measured: int = -1
    size: int = 0


class BoundedCache(Generic[*Arguments, T]):
    """A function of hashable arguments that keeps its values, the least recently used of which it forgets.

    Arguments and values take at most ``limit`` bytes together, by ``memory_size``, when a value is added: what a value
    caches itself counts. A value that is larger by itself is kept until the next one is added.
    """

    def __init__(self, function: Callable[[*Arguments], T], limit: int) -> None:
        self.function, self.limit = function, limit
        self._entries, self._clock, self._lock = dict[tuple[*Arguments], _Entry[T]](), 0, threading.Lock()
        update_wrapper(self, function)

    def __call__(self, *arguments: *Arguments) -> T:
        entry = self._entries.get(arguments)
        if entry is None:
            value = self.function(*arguments)
            with self._lock:
                entry = self._entries.setdefault(arguments, _Entry(value, self._clock))
                size = self._measure()
                for key, oldest in sorted(self._entries.items(), key=lambda item: item[1].last_use):
                    if size <= self.limit or oldest is entry:
                        break
                    size -= self._entries.pop(key).size
        self._clock = entry.last_use = self._clock + 1
        return entry.value

    def get(self, *arguments: *Arguments) -> T | None:
        """Return the value that is kept for arguments, or None if there is none, or they have no hash."""
        try:
            entry = self._entries[arguments]
        except (KeyError, TypeError):
            return None
        self._clock = entry.last_use = self._clock + 1
        return entry.value

    def cache_clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._entries.clear()

    def memory(self) -> int:
        """Return the bytes of all arguments and values."""
        with self._lock:
            return self._measure()

    def _measure(self) -> int:
        for key, entry in self._entries.items():
            if entry.last_measured <= entry.last_use:
                entry.last_measured, entry.size = self._clock, memory_size((*key, entry.value))
        return sum(entry.size for entry in self._entries.values())


def bounded_cache(limit: int) -> Callable[[Callable[[*Arguments], T]], BoundedCache[*Arguments, T]]:
    """Return a decorator that makes a ``BoundedCache`` of a function."""
    return partial(BoundedCache, limit=limit)


def memory_size(value: object) -> int:
    """Return about how many bytes a value takes: arrays, containers, programs, and objects and functions of ours."""
    visited, size, pending = set[int](), 0, [value]
    while pending:
        item = pending.pop()
        if item is None or isinstance(item, bool | int | float | str | type) or id(item) in visited:
            size += _OBJECT
            continue
        visited.add(id(item))
        if isinstance(item, bytes):
            size += len(item)
        elif isinstance(item, np.ndarray | Array):
            base = getattr(item, "base", None)
            pending += [] if base is None else [base]
            size += item.nbytes if base is None else 0
        elif isinstance(item, Mapping):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple) and item and type(item[0]) is int and type(item[-1]) is int:
            size += _OBJECT * len(item)
        elif isinstance(item, list | tuple | set | frozenset):
            pending += item
        elif isinstance(item, FunctionType) or type(item).__module__.startswith(_OURS):
            pending += _contents(item)
        elif isinstance(item, Fraction):
            continue
        elif not is_deferred() and isinstance(item, jax.stages.Compiled | jax.stages.Wrapped):  # This takes long.
            size += _PROGRAM
        else:
            pending += _contents(item)
    return size


def _contents(item: object) -> Iterable[object]:
    """Return what a function encloses, or the attributes of an object; nothing of other packages' objects."""
    if not str(getattr(item, "__module__", None) or "").startswith(_OURS):
        return ()
    if closure := getattr(item, "__closure__", None):
        return [cell.cell_contents for cell in closure]
    return [*getattr(item, "__dict__", {}).values()]
