"""Results of a session: values with intervals, as numbers, tables and plots."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.decimals import format_number
from dpkernels.numerics import Real
from dpkernels.session import plots
from dpkernels.session.plots import Index
from dpkernels.session.tables import make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bounds: TypeAlias = Callable[[float], tuple[np.ndarray, np.ndarray]]
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def _rows(index: Index) -> list[tuple[object, ...]]:
    return list(zip(*index.values(), strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Released values with confidence intervals; a number, or a table with one row a value.

    Sums, differences, products and ratios of results are results. Their intervals follow from those of the operands,
    each with half of the risk, so they hold whatever the operands have in common.

    Attributes:
        name: what it is, such as "mean of age".
        index: columns that say what each value is of, such as the keys of its group; none for a single number.
    """

    name: str
    index: Index
    _values: np.ndarray
    _bounds: Bounds
    _known: tuple[Real, Real] = (-np.inf, np.inf)  # ends between which every true value is
    _kind: str = "dict"  # of tables

    @property
    def value(self) -> Any:
        """Return the released value: a float, or an array with one value a row of the table."""
        return self._values.copy() if self.index else float(self._values[0])

    def interval(self, confidence: float = 0.95, *, together: bool = False) -> tuple[Real, Real]:
        """Return (low, high), each true value within its own with at least this probability.

        Args:
            confidence: in (0, 1).
            together: if true, all intervals of a table hold at once with this probability.

        Raises:
            ValueError: confidence is not in (0, 1).
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if together:
            confidence = min(1 - (1 - confidence) / len(self._values), np.nextafter(1.0, 0.0))
        low, high = (np.clip(end, *self._known) for end in self._bounds(confidence))
        return (low, high) if self.index else (float(low[0]), float(high[0]))

    def table(self, confidence: float = 0.95, *, together: bool = False) -> Any:
        """Return a table of the kind of the data, with the columns of ``index``, value, low and high."""
        low, high = self.interval(confidence, together=together)
        numbers = {"value": self._values, "low": np.atleast_1d(low), "high": np.atleast_1d(high)}
        names = {name: f"{name} (key)" if name in numbers else str(name) for name in self.index}
        columns = {names[name]: list(column) for name, column in self.index.items()}
        columns |= {name: array.tolist() for name, array in numbers.items()}
        return make_table(self._kind, columns)

    def plot(self, ax: Axes | None = None, *, confidence: float = 0.95, together: bool = False) -> Axes:
        """Draw the values with their intervals, and return the axes.

        A histogram is drawn as bands with lines at the values, a cross table as a map of cells, and everything else as
        a forest plot. A line is dotted where the interval includes 0, and has an arrow where the interval does not end.

        Args:
            ax: axes of matplotlib, by default those of a new figure.
            confidence: that of the intervals.
            together: whether all intervals hold at once.
        """
        if ax is None:
            (ax,) = plots.new_figure([self.index], [len(self)]).axes
        low, high = (np.atleast_1d(end) for end in self.interval(confidence, together=together))
        plots.drawing(self.index)(ax, self.name, self.index, self._values, low, high)
        about = f"{confidence:.0%} intervals, {'all at once' if together else 'each by itself'}"
        ax.set_title(f"{self.name}, {about}", fontsize=9, parse_math=False)
        return ax

    def _combined(self, other: object, sign: str, *, swapped: bool = False) -> Any:
        operation, is_number = _OPERATIONS[sign], not isinstance(other, Result)
        if not isinstance(other, Result):
            if isinstance(other, bool) or not isinstance(other, int | float | np.number):
                return NotImplemented
            number = np.array([float(other)])
            other = Result(f"{float(other):g}", {}, number, lambda _: (number, number))
        left, right = (other, self) if swapped else (self, other)
        index = left.index or right.index
        if any(side.index and _rows(side.index) != _rows(index) for side in (left, right)):
            raise ValueError(f"{sign}: the values of {left.name} and of {right.name} are not of the same keys")

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            alpha = (1 - confidence) / (1 if is_number else 2)
            a, b = ([np.clip(end, *side._known) for end in side._bounds(1 - alpha)] for side in (left, right))
            low, high = np.broadcast_arrays(*b)
            with np.errstate(all="ignore"):
                corners = np.array([operation(x, y) for x in a for y in b])
            is_unbounded = np.isnan(corners).any(0)
            if sign == "/":
                is_unbounded = is_unbounded | ((low <= 0) & (high >= 0))
            return np.where(is_unbounded, -np.inf, corners.min(0)), np.where(is_unbounded, np.inf, corners.max(0))

        with np.errstate(all="ignore"):
            values = np.asarray(operation(left._values, right._values), float)
        return Result(f"({left.name} {sign} {right.name})", index, values, bounds, _kind=self._kind)

    __add__, __radd__ = partialmethod(_combined, sign="+"), partialmethod(_combined, sign="+", swapped=True)
    __sub__, __rsub__ = partialmethod(_combined, sign="-"), partialmethod(_combined, sign="-", swapped=True)
    __mul__, __rmul__ = partialmethod(_combined, sign="*"), partialmethod(_combined, sign="*", swapped=True)
    __truediv__, __rtruediv__ = partialmethod(_combined, sign="/"), partialmethod(_combined, sign="/", swapped=True)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        low, high = (np.atleast_1d(end) for end in self.interval())
        lines = [f"{self.name}, 95 % intervals"]
        labels = [", ".join(map(str, row)) for row in _rows(self.index)] or [""]
        for label, value, *ends in list(zip(labels, self._values, low, high, strict=True))[:30]:
            numbers = f"{format_number(value)} ({format_number(ends[0])} to {format_number(ends[1])})"
            lines.append(f"  {label}: {numbers}" if label else f"  {numbers}")
        return "\n".join([*lines, *(["  ..."] if len(labels) > 30 else [])])

    def to_dict(self, confidence: float = 0.95) -> JsonObject:
        """Return values and intervals in a form that ``json`` can write: an infinite end is null."""
        low, high = (np.atleast_1d(end) for end in self.interval(confidence))
        numbers = {"value": self._values, "low": low, "high": high}
        columns = {name: [x if np.isfinite(x) else None for x in array.tolist()] for name, array in numbers.items()}
        return {
            "index": {str(name): list(column) for name, column in self.index.items()},
            **columns,
            "confidence": confidence,
        }


def plot_all(results: Sequence[Result], *, confidence: float = 0.95) -> Figure:
    """Return a figure of results, one above the other."""
    figure = plots.new_figure([result.index for result in results], [len(result) for result in results])
    for result, ax in zip(results, figure.axes, strict=True):
        result.plot(ax, confidence=confidence)
    return figure
