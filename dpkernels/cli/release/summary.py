"""What ``dpkernels perturb`` says of a finished release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpkernels.cli.release.sidecar import Column, Release, law_of, parameters
from dpkernels.cli.text import aligned, listed
from dpkernels.decimals import shortest


def lines(
    release: Release, copied: Sequence[str], places: tuple[Path | str, Path | str] | None, left: Sequence[str] = ()
) -> list[str]:
    """For people: what was done to which column, and what it guarantees.

    Args:
        release: what was done, or checked.
        copied: the columns that are not perturbed.
        places: output and certificates; None for a check.
        left: what a ledger would have left.
    """
    heading = ["column", "mechanism", "neighbours", "epsilon", "realised", "delta", "realised"]
    found = aligned([heading, *map(_row, release.columns)])
    found += [line for column in release.columns for line in _noise_line(column)]
    found += _totals(release)
    if release.receipt is not None:
        found.append(str(release.receipt))
    if copied:
        found.append(f"copied as they are, NOT protected: {listed(copied)}")
    found += release.handling.notices()
    if release.not_kept:
        found.append(f"not kept of the file: {'; '.join(release.not_kept)}")
    if places is None:
        return [*found, *left, f"{release.rows} rows can be released; nothing was charged or written"]
    target, sidecar = places
    return [*found, f"{release.rows} rows: {target}, certificates: {sidecar}"]


def to_dict(release: Release, copied: Sequence[str], places: tuple[Path | str, Path | str] | None) -> dict[str, Any]:
    """For programs: the same."""
    target, sidecar = (None, None) if places is None else map(str, places)
    return {
        "output": target,
        "certificates": sidecar,
        "rows": release.rows,
        "epsilon": release.epsilon,
        "realised_epsilon": release.realised_epsilon,
        "delta": release.delta,
        "realised_delta": release.realised_delta,
        "neighbouring": release.neighbouring,
        "columns": list(map(_column, release.columns)),
        "copied": list(copied),
        **release.handling.to_dict(),
        "not_kept": list(release.not_kept),
        "notices": release.handling.notices(),
        "ledger": None if release.receipt is None else release.receipt.to_dict(),
    }


def _column(column: Column) -> dict[str, Any]:
    own = column.guarantee
    return {
        "column": column.name,
        "mechanism": column.mechanism,
        "parameters": parameters(column.form.mechanism),
        "neighbouring": own.neighbours,
        "epsilon": own.epsilon,
        "realised_epsilon": own.realised_epsilon,
        "delta": own.delta,
        "realised_delta": own.realised_delta,
    }


def _row(column: Column) -> list[str]:
    own = column.guarantee
    realised = shortest(own.realised_epsilon), shortest(own.delta), shortest(own.realised_delta)
    return [column.title, column.mechanism, own.neighbours, shortest(own.epsilon), *realised]


def _noise_line(column: Column) -> list[str]:
    """The parameters of additive noise, some of which may have been calibrated."""
    law = law_of(column.form.mechanism)
    return [f"{column.title}: noise of {law}"] if law else []


def _totals(release: Release) -> list[str]:
    budget, realised = shortest(release.epsilon), shortest(release.realised_epsilon)
    if release.delta:
        budget += f", delta {shortest(release.delta)}"
        realised += f", delta {shortest(release.realised_delta)}"
    found = [f"total epsilon a row: {budget} (realised {realised}); neighbouring: {release.neighbouring}"]
    if release.delta >= 1:
        found.append("WARNING: a total delta of 1 or more guarantees nothing")
    return found
