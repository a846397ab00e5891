"""Import of JAX: immediate, or in a process of the command when JAX is first used.

The command can release a small file without JAX, whose import takes longer than the release. After ``defer``, the names
``jax``, ``jnp`` and ``lax`` are placeholders, and JAX is imported when an attribute of one of them is first used. The
placeholders in the modules of this package are then replaced, and the functions that were passed to ``when_imported``
are called. Without ``defer``, the names are the real modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

T = TypeVar("T")

_OURS = ("dpkernels.", "accountants.")
_is_deferred = False
_waiting = list[Callable[[], object]]()
_importing = RLock()  # Other threads wait until all is done.


def defer() -> None:
    """Import JAX on use from here on; for a process in which no other code uses it. Without effect after its import."""
    global _is_deferred
    _is_deferred = "jax" not in sys.modules


def is_deferred() -> bool:
    """Return whether JAX is still to be imported."""
    return _is_deferred


def import_now() -> None:
    """Import JAX if that was deferred."""
    global _is_deferred
    with _importing:
        if not _is_deferred:
            return
        _is_deferred = False
        replacements = {id(stand_in): _jax_object(name) for name, stand_in in _STAND_INS.items()}
        for module in [module for name, module in sys.modules.items() if name.startswith(_OURS)]:
            for name, value in list(vars(module).items()):
                if id(value) in replacements:
                    setattr(module, name, replacements[id(value)])
        while _waiting:
            _waiting.pop(0)()


def when_imported(function: Callable[[], object]) -> None:
    """Call a function now, or if JAX's import is deferred, after it."""
    if _is_deferred:
        _waiting.append(function)
    else:
        function()


class Decorator(Protocol):
    """A decorator that keeps what a function returns."""

    def __call__(self, function: Callable[..., T], /) -> Callable[..., T]: ...


def jit(**options: object) -> Decorator:
    """Return a decorator that is ``jax.jit`` with options."""
    return lambda function: _wrapped(function, lambda: import_module("jax").jit(function, **options))


def custom_jvp(*rules: Callable[..., object], jvp: Callable[..., object] | None = None, **options: object) -> Decorator:
    """Return a decorator that is ``jax.custom_jvp`` with ``defjvps(*rules)``, or ``defjvp(whole)``."""

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        def wrap() -> Callable[..., T]:
            result = import_module("jax").custom_jvp(function, **options)
            if rules:
                result.defjvps(*rules)
            if jvp is not None:
                result.defjvp(jvp)
            return result

        return _wrapped(function, wrap)

    return decorated


def _wrapped(function: Callable[..., T], wrap: Callable[[], Callable[..., T]]) -> Callable[..., T]:
    return _OnCall(function, wrap) if _is_deferred else wrap()


class _OnCall(Generic[T]):
    """A function that JAX wraps when it is first called."""

    def __init__(self, function: Callable[..., T], wrap: Callable[[], Callable[..., T]]) -> None:
        self.__wrapped__, self._wrap = function, wrap

    @cached_property
    def _function(self) -> Callable[..., T]:
        import_now()
        return self._wrap()

    def __call__(self, *arguments: object, **options: object) -> T:
        return self._function(*arguments, **options)

    def __getattr__(self, name: str) -> object:
        return getattr(self._function, name)


class _OnUse(ModuleType):
    """A module that stands for one of JAX, and is as that is."""

    def __getattr__(self, name: str) -> object:
        import_now()
        return getattr(import_module(self.__name__), name)


class _Class(type):
    """The class of a class that stands for one of JAX: before JAX is imported, there is no object of it."""

    def __instancecheck__(cls, item: object) -> bool:
        return not _is_deferred and isinstance(item, _jax_object(cls.__name__))


def _jax_object(name: str) -> Any:
    """Return what a name of this module is in JAX."""
    module, attribute = _NAMES[name]
    return getattr(import_module(module), attribute) if attribute else import_module(module)


# Of each name the module of JAX, and the attribute, if it is one.
_NAMES = {"jax": ("jax", ""), "jnp": ("jax.numpy", ""), "lax": ("jax.lax", "")}
_NAMES |= {"Array": ("jax", "Array"), "Tracer": ("jax.core", "Tracer")}
_STAND_INS: dict[str, object] = {
    name: _Class(name, (), {}) if attribute else _OnUse(module) for name, (module, attribute) in _NAMES.items()
}

if TYPE_CHECKING:
    import jax as jax
    import jax.numpy
    from jax import Array as Array
    from jax import lax as lax
    from jax.core import Tracer as Tracer

    jnp = jax.numpy
else:

    def __getattr__(name: str) -> object:
        if name not in _STAND_INS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _STAND_INS[name] if _is_deferred else _jax_object(name)
