"""The treatment of rows besides noise: missing values, rounding, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpkernels.random import host

# Rows are held in memory to be shuffled.
MOST_SHUFFLED_BYTES = 1 << 30
MOST_DECIMALS = 15  # of reports that are rounded
_LIMIT = f"they are held in memory, at most {MOST_SHUFFLED_BYTES}"


@dataclass(frozen=True)
class RowOptions:
    """Choices of one release."""

    missing: str = "error"  # "error", "keep" or "drop"
    decimals: int | None = None  # to which reports are rounded; None for not
    shuffle: bool = False  # whether rows are put into a random order
    shuffleable: bool = True  # whether they could be: not the rows of a dataset, which are nowhere held together

    def to_dict(self) -> dict[str, Any]:
        return {"missing": self.missing, "decimals": self.decimals, "row_order": "shuffled" if self.shuffle else "kept"}

    def notices(self) -> list[str]:
        """Return sentences on what the output reveals about rows."""
        lines = []
        if self.missing == "keep":
            lines.append("missing values are kept: which values are missing is NOT protected")
        if self.missing == "drop":
            lines.append("rows with missing values are dropped: it is NOT protected that a row is not there")
        if self.decimals is not None:
            lines.append(f"reports are rounded to {self.decimals} decimals, which costs no privacy")
        if not self.shuffle:
            advice = "--shuffle-rows prevents" if self.shuffleable else "shuffle the rows beforehand to prevent"
            lines.append(f"the order of rows is kept: if they are sorted by a column, it reveals ranks; {advice} this")
        return lines

    def check_size(self, path: Path) -> None:
        """Refuse early a file that is too large to be shuffled."""
        if self.shuffle and (size := path.stat().st_size) > MOST_SHUFFLED_BYTES:
            raise click.UsageError(f"--shuffle-rows: {path} has {size} bytes; {_LIMIT}")

    def check_held(self, size: int) -> None:
        if size > MOST_SHUFFLED_BYTES:
            raise ValueError(f"--shuffle-rows: the rows take more than {size} bytes; {_LIMIT}")

    def rounded(self, reports: np.ndarray) -> np.ndarray:
        """Return reports rounded to the decimals; those too large to have decimals stay as they are."""
        if self.decimals is None:
            return reports
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.round(reports, self.decimals)
        return np.where(np.isfinite(rounded), rounded, reports)


def permutation(key: bytes, rows: int) -> np.ndarray:
    """Return a uniformly random order: that of random 64-bit words, all drawn again where two are equal."""
    for stream in count():
        words = np.empty(rows, "<u8")
        host.fill(words, key, stream, 0)
        order = np.argsort(words)
        if (np.diff(words[order]) > 0).all():
            return order
    raise AssertionError
