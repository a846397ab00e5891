"""Tables of numbers that the sources print, from ``printed.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Table:
    """Printed numbers and the settings they were printed for.

    Attributes:
        name: source and place.
        settings: names of the leading entries of a row.
        columns: names of its printed numbers.
        rows: settings, then numbers.
    """

    name: str
    settings: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The settings of every row, by name."""
        return [dict(zip(self.settings, row, strict=False)) for row in self.rows]

    @property
    def values(self) -> np.ndarray:
        """The printed numbers, shape (rows, columns)."""
        return np.array([row[len(self.settings) :] for row in self.rows], float)

    def column(self, name: str) -> np.ndarray:
        """One column of the printed numbers."""
        return self.values[:, self.columns.index(name)]

    def head(self, rows: int) -> Table:
        """The table's first rows."""
        return Table(self.name, self.settings, self.columns, self.rows[:rows])


@cache
def tables() -> dict[str, Table]:
    """Every printed table by its name."""
    printed: dict[str, Any] = json.loads((Path(__file__).parent / "printed.json").read_text())
    return {name: _table(name, **entry) for name, entry in printed.items()}


def _table(name: str, settings: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    for row in rows:
        if len(row) != len(settings) + len(columns):
            raise ValueError(f"{name}: the row {row} has not one entry for each of {settings} and {columns}")
    return Table(name, tuple(settings), tuple(columns), tuple(map(tuple, rows)))
