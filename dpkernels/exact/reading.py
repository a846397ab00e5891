"""Lists of integers that anyone may have written."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpkernels.untrusted import brief


def integers(name: str, values: Any, most: int) -> list[int]:
    """A list of so many integers at most; weights are checked to be in range when their array is made.

    Raises:
        ValueError: it is not.
    """
    if type(values) is not list or len(values) > most:
        raise ValueError(f"{name}: {brief(values)} is not a list of at most {most} integers")
    if not all(type(value) is int for value in values):
        raise ValueError(f"{name}: not all are integers")
    return values


def frozen_weights(values: Any) -> np.ndarray:
    """A read-only copy as uint64: what has been certified must stay what is sampled.

    Raises:
        OverflowError: an integer is negative or has more than 64 bits.
    """
    array = np.array(values, np.uint64)
    array.setflags(write=False)
    return array
