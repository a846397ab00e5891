"""Input checks: values that are not finite or not in the interval are refused (or clipped) before any noise."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dpkernels.batches import plain_if_equal
from dpkernels.decimals import shortest
from dpkernels.exact.sampler import order_keys
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import Real, RealArray


@lru_cache(maxsize=64)
def report_type(dtype: np.dtype) -> np.dtype:
    """Return the type of reports: float32 stays, half precision widens to it, all else is float64."""
    native = np.dtype(dtype).newbyteorder("=")
    return np.dtype(np.float32 if native in (np.float32, np.float16) else np.float64)


class InputError(ValueError):
    """A value that cannot be perturbed, in a row of the whole release; ``clips`` is whether clipping would help."""

    def __init__(
        self, row: int, coordinate: int | None, value: float, clips: bool, reason: str, location: str | None = None
    ) -> None:
        self.row, self.coordinate, self.value, self.clips, self.reason = row, coordinate, value, clips, reason
        where = location or (f"row {row}" if coordinate is None else f"row {row}, coordinate {coordinate}")
        super().__init__(f"x: {where} is {shortest(value)}{reason}" + ("; clip=True clips" if clips else ""))

    def named(self, location: str) -> InputError:
        return InputError(self.row, self.coordinate, self.value, self.clips, self.reason, location)


class ValidRange(NamedTuple):
    """The range in which values of a type need no repair."""

    low: np.ndarray
    high: np.ndarray
    keys: tuple[RealArray, RealArray]  # the ``order_keys`` of both ends, with both zeros inside where an end is 0


@dataclass(frozen=True, eq=False)
class Bounds:
    """An input interval and the treatment of values outside it.

    Where only inputs within a sensitivity are neighbours (``has_sensitivity``), integers that floats would round are
    refused, since rounding may move neighbours further apart.
    """

    lower: np.ndarray  # for vectors, one per coordinate
    upper: np.ndarray
    clip: bool  # instead of refusing; NaN and infinities are always refused
    largest: float = 0.0  # the largest absolute value of an input or a report
    has_sensitivity: bool = False
    subnormal_safe_radius: float = np.inf  # inputs of at most this size may be read as 0
    _ranges: dict[tuple[np.dtype, np.dtype], ValidRange] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, sampler: Any, clip: bool) -> Bounds:
        mechanism = getattr(sampler, "mechanism", sampler)
        lower, upper = mechanism.input_interval
        if shape := getattr(mechanism, "batch_shape", ()):
            lower, upper = (np.broadcast_to(np.asarray(end, float), shape) for end in (lower, upper))
        ends = [np.abs(np.asarray(end, float)) for end in (lower, upper, *mechanism.output_interval)]
        largest = max(float(np.max(end, where=np.isfinite(end), initial=0.0)) for end in ends)
        has_sensitivity = getattr(mechanism, "sensitivity", None) is not None
        safe_radius = getattr(sampler, "subnormal_safe_radius", np.inf)
        return cls(np.asarray(lower, float), np.asarray(upper, float), clip, largest, has_sensitivity, safe_radius)

    def check(self, values: np.ndarray, first: int) -> np.ndarray:
        """Return values that may be perturbed, in the type of reports; ``first`` is the row number of the first one."""
        typed = values.astype(report_type(values.dtype), copy=False)
        low, high, _ = self.valid_range(values.dtype, typed.dtype)
        if low <= np.minimum.reduce(typed) and np.maximum.reduce(typed) <= high:
            return typed
        return self._repaired(typed, values.dtype, first)

    def check_entries(self, values: np.ndarray, entries: slice | np.ndarray, first: int) -> np.ndarray:
        """Return values that may be perturbed, each in the interval of its own entry of a batch."""
        typed = values.astype(report_type(values.dtype), copy=False)
        low, high = (end if end.ndim == 0 else end[entries] for end in self._entry_range(values.dtype, typed.dtype)[:2])
        is_valid = (low <= typed) & (typed <= high)
        if is_valid.all():
            return typed
        lower, upper = (end if end.ndim == 0 else end.reshape(-1)[entries] for end in (self.lower, self.upper))
        return replace(self, lower=lower, upper=upper, _ranges={})._repaired(typed, values.dtype, first)

    def _entry_range(self, source: np.dtype, dtype: np.dtype) -> ValidRange:
        """Return the ranges of all entries of a batch; an end that is that of every entry is a plain number."""
        key = source, dtype
        if key not in self._ranges:
            low, high = self._ends(source, dtype)
            if (largest := self._largest_exact(source, dtype)) is not None:
                low, high = np.clip(low, -largest, largest), np.clip(high, -largest, largest)
            low, high = (plain_if_equal(end.reshape(-1)) for end in (low, high))
            self._ranges[key] = ValidRange(low, high, keys_of_ends(low, high))
        return self._ranges[key]

    def entry_keys(self, source: np.dtype, dtype: np.dtype) -> tuple[RealArray, RealArray]:
        """Return the ``order_keys`` of the ends of every entry's interval, or of all entries' one, for a type."""
        return self._entry_range(source, dtype).keys

    def check_rows(self, rows: np.ndarray, first: int) -> np.ndarray:
        """Return vectors that may be perturbed, with coordinates on the last axis."""
        typed = rows.astype(report_type(rows.dtype), copy=False).reshape(-1, rows.shape[-1])
        return self._repaired(typed, rows.dtype, first).reshape(rows.shape)

    def check_on_device(self, x: Array) -> Array:
        """Return a JAX array that may be perturbed; it stays on its devices unless a value is invalid."""
        # A 64-bit array was made with JAX's x64 flag on, and must not be rounded if the flag is off now.
        with jax.enable_x64(True) if x.dtype.itemsize == 8 else nullcontext():
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(report_type(x.dtype)))
            typed = x.astype(dtype)
            low, high, _ = self.valid_range(np.dtype(x.dtype), dtype)
            if not bool(jnp.all((typed >= low) & (typed <= high))):
                self._repaired(np.asarray(typed).reshape(-1), np.dtype(x.dtype), 0)
                return jnp.clip(typed, low, high)
            return typed

    def _repaired(self, values: np.ndarray, source: np.dtype, first: int) -> np.ndarray:
        """Return clipped values if clipping is allowed and suffices; else raise an error for the first invalid one."""
        reason = '; every value must be finite (NaN: missing="keep" or missing="drop")'
        _refuse(values, ~np.isfinite(values), first, reason)
        low, high = self._ends(source, values.dtype)
        if self.clip:
            values = np.clip(values, low, high)
        _refuse(values, (values < low) | (values > high), first, interval=(self.lower, self.upper))
        if (largest := self._largest_exact(source, values.dtype)) is not None:
            reason = f"; {values.dtype} rounds {source} beyond {largest:.0f}, and with it how far apart neighbours are"
            reason += ": make them floats and use the floats' sensitivity"
            _refuse(values, np.abs(values) > largest, first, reason)
        return values

    def valid_range(self, source: np.dtype, dtype: np.dtype) -> ValidRange:
        if (source, dtype) not in self._ranges:
            largest, (low, high) = self._largest_exact(source, dtype), self._ends(source, dtype)
            if largest is not None:
                low, high = np.clip([low, high], -largest, largest)
            self._ranges[source, dtype] = ValidRange(low, high, keys_of_ends(low, high))
        return self._ranges[source, dtype]

    def _largest_exact(self, source: np.dtype, dtype: np.dtype) -> np.floating | None:
        """Return the size up to which floats hold every integer, 2^53 - 1 for float64, or None if irrelevant."""
        if not self.has_sensitivity or source.kind not in "iu":
            return None
        return dtype.type(2.0 ** (np.finfo(dtype).nmant + 1) - 1)

    def _ends(self, source: np.dtype, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Return the interval rounded to the data's own type; 0.1 becomes float32's 0.1, and no end is infinite."""
        # A processor may flush float32's subnormal numbers to 0, also those converted from bfloat16. Narrower types
        # have none.
        subnormal_below, float32_normal = (
            float(np.finfo(float_type).smallest_normal) for float_type in (dtype, np.float32)
        )
        if _smallest_normal(source) == float32_normal:
            subnormal_below = float32_normal
        largest_float = float(np.finfo(dtype).max)
        if self.largest > largest_float:
            raise ValueError(f"x: holds {dtype}, and inputs or reports reach {shortest(self.largest)}; use float64")
        if self.subnormal_safe_radius < subnormal_below:
            raise ValueError(
                f"x: holds {source}, whose numbers below {subnormal_below:.3g} a processor may read as 0; the "
                f"mechanism distinguishes inputs {self.subnormal_safe_radius:.3g} apart: use float64"
            )
        low, high = (np.clip(end, -largest_float, largest_float).astype(dtype) for end in (self.lower, self.upper))
        return low, high


def keys_of_ends(low: RealArray, high: RealArray) -> tuple[RealArray, RealArray]:
    """Return the ``order_keys`` of the ends of intervals, with both zeros inside where an end is 0."""
    low_keys, high_keys = order_keys(low), order_keys(high)
    return low_keys - (low_keys == 0), high_keys + (high_keys == -1)


@lru_cache(maxsize=8)
def finite_keys(dtype: np.dtype) -> tuple[RealArray, RealArray]:
    """Return the ``order_keys`` between which finite values are."""
    largest = np.finfo(dtype).max
    return keys_of_ends(-largest, largest)


def _smallest_normal(dtype: np.dtype) -> float | None:
    """Return the smallest normal number of a type of floats, also of those that JAX adds; None of other types."""
    if issubclass(dtype.type, np.floating):
        return float(np.finfo(dtype).smallest_normal)
    if dtype.kind in "biu" or not jnp.issubdtype(dtype, np.floating):
        return None
    return float(jnp.finfo(dtype).smallest_normal)


def _refuse(
    values: np.ndarray, is_bad: np.ndarray, first: int, reason: str = "", interval: tuple[Real, Real] | None = None
) -> None:
    """Raise an error for the first bad value, for a reason or because it is not in an interval."""
    if not is_bad.any():
        return
    row, *coordinate = index = tuple(int(index) for index in np.argwhere(is_bad)[0])
    if interval is not None:
        lower, upper = (shortest(np.broadcast_to(end, values.shape)[index]) for end in interval)
        reason = f", outside the input interval [{lower}, {upper}]"
    where = coordinate[0] if coordinate else None
    raise InputError(first + row, where, float(values[index]), interval is not None, reason)
