"""Inputs are finite and in the interval, or are refused (or clipped) before anything random happens to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array


def report_type(dtype: Any) -> np.dtype:
    """The type of reports: float32 stays, half precision widens to it, all else is float64."""
    return np.dtype(np.float32 if np.dtype(dtype) in (np.float32, np.float16) else np.float64)


@dataclass(frozen=True)
class Bounds:
    """An input interval and what to do with values outside.

    Attributes:
        lower: smallest valid input; for vectors, one a coordinate.
        upper: largest valid input.
        clip: clip instead of refusing. NaN and infinities are always refused.
    """

    lower: Any
    upper: Any
    clip: bool

    @classmethod
    def of(cls, mechanism: Any, clip: bool) -> Bounds:
        """The bounds of a mechanism."""
        lower, upper = mechanism.input_interval
        return cls(np.asarray(lower, float), np.asarray(upper, float), clip)

    def check(self, values: np.ndarray, first: int) -> np.ndarray:
        """Values fit to be perturbed, in the type of reports; ``first`` is the row of the first one.

        Raises:
            ValueError: names the first bad row.
        """
        values, low, high = self._typed(values)
        if low <= values.min() and values.max() <= high:
            return values
        _refuse(values, ~np.isfinite(values), first, "; every value must be finite")
        if self.clip:
            return np.clip(values, low, high)
        _refuse(values, (values < low) | (values > high), first, f", outside {self._interval(low, high)}")
        return values

    def check_rows(self, rows: np.ndarray, first: int) -> np.ndarray:
        """The same for vectors, coordinates on the last axis."""
        rows, low, high = self._typed(rows)
        flat = rows.reshape(-1, rows.shape[-1])
        _refuse(flat, ~np.isfinite(flat), first, "; every value must be finite")
        if self.clip:
            return np.clip(rows, low, high)
        _refuse(flat, (flat < low) | (flat > high), first, f", outside {self._interval(low, high)}")
        return rows

    def check_on_device(self, x: Array) -> Array:
        """The same for a JAX array that stays on its devices unless something is wrong."""
        typed = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
        low, high = (np.asarray(end, np.dtype(typed.dtype)) for end in (self.lower, self.upper))
        if not bool(jnp.all((typed >= low) & (typed <= high))):
            self.check(np.asarray(typed).reshape(-1), 0)
            return jnp.clip(typed, low, high)
        return typed

    def _typed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # A bound such as 0.1 is compared as the data's own type writes it.
        dtype = report_type(values.dtype)
        return values.astype(dtype, copy=False), self.lower.astype(dtype), self.upper.astype(dtype)

    @staticmethod
    def _interval(low: np.ndarray, high: np.ndarray) -> str:
        if low.ndim == 0 and high.ndim == 0:
            return f"the input interval [{low:g}, {high:g}]; clip=True clips"
        return "its coordinate's input interval; clip=True clips"


def _refuse(values: np.ndarray, bad: np.ndarray, first: int, why: str) -> None:
    if bad.any():
        row, *column = (int(at) for at in np.argwhere(bad)[0])
        where = f"row {first + row}" + "".join(f", coordinate {at}" for at in column)
        raise ValueError(f"x: {where} is {values[(row, *column)]:g}{why}")
