"""Inputs are finite and in the interval, or are refused (or clipped) before anything random happens to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def report_type(dtype: Any) -> np.dtype:
    """The type of reports: float32 stays, half precision widens to it, all else is float64."""
    native = np.dtype(dtype).newbyteorder("=")
    return np.dtype(np.float32 if native in (np.float32, np.float16) else np.float64)


class InputError(ValueError):
    """A value that cannot be perturbed.

    Attributes:
        row: its row in the whole release.
        coordinate: its coordinate, for vectors, else None.
        value: the value.
        interval: the interval it is outside of, or None where it is not finite.
    """

    def __init__(
        self,
        row: int,
        coordinate: int | None,
        value: float,
        interval: tuple[float, float] | None,
        place: str | None = None,
    ) -> None:
        self.row, self.coordinate, self.value, self.interval = row, coordinate, value, interval
        where = place or (f"row {row}" if coordinate is None else f"row {row}, coordinate {coordinate}")
        super().__init__(f"x: {where} is {value:g}{self.reason}" + ("" if interval is None else "; clip=True clips"))

    def named(self, place: str) -> InputError:
        """The same error with the value's place in other words."""
        return InputError(self.row, self.coordinate, self.value, self.interval, place)

    @property
    def reason(self) -> str:
        """What is wrong with the value, to follow it in a sentence."""
        if self.interval is None:
            return "; every value must be finite"
        return f", outside the input interval [{self.interval[0]:g}, {self.interval[1]:g}]"


@dataclass(frozen=True)
class Bounds:
    """An input interval and what to do with values outside.

    Attributes:
        lower: smallest valid input; for vectors, one a coordinate.
        upper: largest valid input.
        clip: clip instead of refusing. NaN and infinities are always refused.
        largest: largest finite size of an input or a report.
    """

    lower: Any
    upper: Any
    clip: bool
    largest: float = 0.0

    @classmethod
    def of(cls, mechanism: Any, clip: bool) -> Bounds:
        """The bounds of a mechanism."""
        lower, upper = mechanism.input_interval
        ends = [np.abs(np.asarray(end, float)) for end in (lower, upper, *mechanism.output_interval)]
        largest = max(float(np.max(end, where=np.isfinite(end), initial=0.0)) for end in ends)
        return cls(np.asarray(lower, float), np.asarray(upper, float), clip, largest)

    def check(self, values: np.ndarray, first: int) -> np.ndarray:
        """Values fit to be perturbed, in the type of reports; ``first`` is the row of the first one.

        Raises:
            InputError: for the first bad row.
        """
        values, low, high = self._typed(values)
        if low <= values.min() and values.max() <= high:
            return values
        return self._repaired(values, low, high, first)

    def check_rows(self, rows: np.ndarray, first: int) -> np.ndarray:
        """The same for vectors, coordinates on the last axis."""
        rows, low, high = self._typed(rows)
        return self._repaired(rows.reshape(-1, rows.shape[-1]), low, high, first).reshape(rows.shape)

    def _repaired(self, values: np.ndarray, low: np.ndarray, high: np.ndarray, first: int) -> np.ndarray:
        """Values clipped, if that is allowed and enough; else an error for the first bad one."""
        _refuse(values, ~np.isfinite(values), first, None)
        if self.clip:
            return np.clip(values, low, high)
        _refuse(values, (values < low) | (values > high), first, (self.lower, self.upper))
        return values

    def check_on_device(self, x: Array) -> Array:
        """The same for a JAX array that stays on its devices unless something is wrong."""
        typed = x.astype(jax.dtypes.canonicalize_dtype(report_type(x.dtype)))
        low, high = self._ends(np.dtype(typed.dtype))
        if not bool(jnp.all((typed >= low) & (typed <= high))):
            self.check(np.asarray(typed).reshape(-1), 0)
            return jnp.clip(typed, low, high)
        return typed

    def _typed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        dtype = report_type(values.dtype)
        low, high = self._ends(dtype)
        return values.astype(dtype, copy=False), low, high

    def _ends(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """The interval as the data's own type writes it: 0.1 is float32's 0.1, and no end is infinite.

        Raises:
            ValueError: reports would not fit the type.
        """
        most = float(np.finfo(dtype).max)
        if self.largest > most:
            raise ValueError(f"x: holds {dtype}, and inputs or reports reach {self.largest:g}; use float64")
        return np.clip(self.lower, -most, most).astype(dtype), np.clip(self.upper, -most, most).astype(dtype)


def _refuse(values: np.ndarray, bad: np.ndarray, first: int, interval: tuple[Any, Any] | None) -> None:
    if not bad.any():
        return
    at = tuple(int(index) for index in np.argwhere(bad)[0])
    ends = None if interval is None else tuple(float(np.broadcast_to(end, values.shape)[at]) for end in interval)
    raise InputError(first + at[0], at[1] if len(at) > 1 else None, float(values[at]), ends)  # type: ignore[arg-type]
