"""Annotations for the shapes of arrays, as in jaxtyping: ``Float[RealArray, "terms points"]``.

Dimensions with the same name have the same length in a call. ``*batch`` matches any number of dimensions, and ``...``
any shape. A single name begins with a space, because linters would take it for a type.

Annotations are never evaluated when the library runs, so that it does not import jaxtyping, which takes 25 ms. The
tests evaluate them (``tests/support/checked_shapes.py``): every call of a function that names a shape is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from jaxtyping import Bool, Complex, Float, Inexact, Int, Num, Shaped, UInt, UInt8, UInt32, UInt64
else:
    Bool = Complex = Float = Inexact = Int = Num = Shaped = UInt = UInt8 = UInt32 = UInt64 = Annotated

__all__ = ["Bool", "Complex", "Float", "Inexact", "Int", "Num", "Shaped", "UInt", "UInt8", "UInt32", "UInt64"]
