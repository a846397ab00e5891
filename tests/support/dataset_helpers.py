"""Small datasets, and what a single process makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from key_helpers import column_key

import dpkernels as dpk

SECRET = bytes(range(100, 132))
BOUNDS = ("--lower", "0", "--upper", "120", "--epsilon", "1")
AGE = ("--column", "age", *BOUNDS)
MECHANISM = dpk.hybrid(epsilon=1.0, lower=0.0, upper=120.0)  # which the closed form is at epsilon 1


def write(folder: Path, files: int = 5, rows: int = 1000, group: int | None = None) -> np.ndarray:
    """A folder of Parquet files with a perturbed column and one that is copied; returns the first."""
    folder.mkdir()
    ages = np.random.default_rng(5).uniform(0, 120, files * rows)
    for at in range(files):
        part = slice(at * rows, (at + 1) * rows)
        table = pa.table({"id": np.arange(files * rows)[part], "age": ages[part]})
        pq.write_table(table, folder / f"{at:04}.parquet", row_group_size=group or rows)
    return ages


def released(folder: Path) -> pa.Table:
    """A release's rows, in the order of its files' names."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("[!_]*"))])


def expected(ages: np.ndarray, column: str | None = "age", secret: bytes = SECRET) -> np.ndarray:
    """The reports of one process that has all the rows."""
    return dpk.perturb(ages, MECHANISM, key=column_key(secret, column))


def is_release(folder: Path, ages: np.ndarray, secret: bytes = SECRET) -> bool:
    """Whether every row is there once, in order, with the report of a single process."""
    table = released(folder)
    same = np.array_equal(table["age"].to_numpy(), expected(ages, secret=secret))
    return same and np.array_equal(table["id"].to_numpy(), np.arange(len(ages)))


def names(folder: str | Path = ".") -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in Path(folder).iterdir())
