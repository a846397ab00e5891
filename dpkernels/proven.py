"""The decorator ``proven``, which links code to its proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Proven = TypeVar("Proven", bound=Callable[..., object])


def proven(*headings: str) -> Callable[[Proven], Proven]:
    """Return a decorator that names the places in docs/proofs that prove what a function or class computes.

    A place is a page and one of its headings, "brackets#proof-of-2-above". Whoever changes the code reads that proof
    first. ``tests/project/test_proven.py`` checks that every place exists, and that every proof has its code.
    """

    def mark(item: Proven) -> Proven:
        item.proofs = headings  # type: ignore[attr-defined]
        return item

    return mark
