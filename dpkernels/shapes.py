"""Names for arrays of known shapes, as jaxtyping has them: ``Float[RealArray, "terms points"]``.

Dimensions of one name have one length in a call; ``*batch`` stands for any number of them, ``...`` for any shape. A
name that is used alone begins with a space, because linters take a word for a type.

Annotations are never evaluated when the library runs, so that it does not import jaxtyping, which takes 25 ms. The
tests evaluate them (``tests/support/checked_shapes.py``): every call of a function that names a shape is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from jaxtyping import Bool, Complex, Float, Int, Num, UInt, UInt32
else:
    Bool = Complex = Float = Int = Num = UInt = UInt32 = Annotated

__all__ = ["Bool", "Complex", "Float", "Int", "Num", "UInt", "UInt32"]
