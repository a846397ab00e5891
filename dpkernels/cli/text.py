"""Plain text for terminals."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with every column as wide as its widest cell."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def display_name(name: str) -> str:
    """Return a column's name, quoted if it would disturb a terminal."""
    return name if name.isprintable() and name else repr(name)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return the first few names, and how many more there are."""
    unlisted = len(names) - most
    return ", ".join(map(display_name, names[:most])) + (f" and {unlisted} more" if unlisted > 0 else "")


def label(name: str | None) -> str:
    """Return the beginning of an error about a column."""
    return "" if name is None else f"column {name!r}: "
