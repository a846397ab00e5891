"""The mean behind a column of a released dataset, from sums of its parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import click

from dpkernels import checks
from dpkernels.cli.dataset.folder import SIDECAR
from dpkernels.cli.dataset.part import Job, Secret, answers
from dpkernels.cli.dataset.places import Place
from dpkernels.cli.dataset.plan import Part, planned
from dpkernels.cli.dataset.release import Engine
from dpkernels.cli.files.handling import Handling
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.mechanisms.choose import exact_form
from dpkernels.cli.release.guarantees import guarantee
from dpkernels.cli.release.sidecar import Column, versions
from dpkernels.cli.release.treatment import Treatment
from dpkernels.exact.combined import read_certificate
from dpkernels.progress import bar
from dpkernels.release.estimate import MeanEstimate, ReportSums
from dpkernels.untrusted import parse_json


@dataclass(frozen=True)
class Summed:
    """The sums of a part's reports.

    Attributes:
        number: of the part.
        sums: of them; None if all are missing.
    """

    number: int
    sums: ReportSums | None


def mean(
    folder: str, name: str | None, confidence: float, engine: Engine, progress: bool | None = None
) -> MeanEstimate:
    """The mean of the values behind a column's reports, by the formulas of ``estimate_mean``.

    Args:
        folder: a release of many files, or its URI.
        name: the column; None for arrays.
        confidence: of the intervals, in (0, 1).
        engine: what runs the parts.
        progress: show a bar.

    Returns:
        The mean and its intervals; missing values that were kept are left out.

    Raises:
        ValueError: not a release, not a perturbed column of it, or a file is not what the sidecar says.
    """
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    place = Place.of(folder)
    form = _sidecar(place)
    try:
        column, parts, written = _column(form, name, folder), _parts(place, form), Layout.from_dict(form["layout"])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{folder}: {SIDECAR} is not the sidecar of a release of many files") from error
    job = Job(Treatment((column,), False, Handling()), written, "", len(parts), None, versions())
    with bar(len(parts), progress, form["rows"] >= 1 << 22) as moved:
        found = list(answers(engine, sum_part, job, None, parts, lambda: moved(advance=1)))
    # In the order of the parts, so that the last digits are those of every other run.
    sums = [one.sums for one in sorted(found, key=lambda one: one.number) if one.sums is not None]
    if not sums:
        raise ValueError(f"{folder}: has no report that is not missing")
    return reduce(add, sums).estimate(column.form, confidence)


def sum_part(job: Job, secret: Secret | None, part: Part) -> Summed:
    """The sums of one part.

    Raises:
        ValueError: a number that is no report of the mechanism.
    """
    (column,) = job.treatment.columns
    sums, row = list[ReportSums](), 0
    with part.opened(job.form) as source, closing(source.pieces([column.name])) as pieces:
        for piece in pieces:
            found = source.numbers(piece, column.name, row)
            values = found.values if found.missing is None else found.values[~found.missing]
            if values.size:
                sums.append(ReportSums.of(values.reshape(-1), column.form))
            row += len(piece)
    return Summed(part.number, reduce(add, sums) if sums else None)


def _sidecar(place: Place) -> dict[str, Any]:
    try:
        with place.system.open_input_stream(place.within(SIDECAR).path) as file:
            form: dict[str, Any] = parse_json(file.read().decode())
    except FileNotFoundError:
        raise ValueError(f"{place}: has no {SIDECAR}, so it is no release of many files") from None
    if not isinstance(form, dict) or "parts" not in form.get("output", {}):
        raise ValueError(f"{place}: {SIDECAR} is not the sidecar of a release of many files")
    return form


def _column(form: dict[str, Any], name: str | None, folder: str) -> Column:
    """A perturbed column with its mechanism, made again, which must have the certificate's table."""
    found = [one for one in form["columns"] if one["column"] == name]
    if len(found) != 1:
        raise click.UsageError(
            f"--column: {name!r}; {folder} has reports of {[one['column'] for one in form['columns']]}"
        )
    options = {key: tuple(at) if isinstance(at, list) else at for key, at in found[0]["options"].items()}
    certificate = read_certificate(found[0]["certificate"])
    mechanism, made = exact_form(found[0]["mechanism"], options)
    if guarantee(made.certificate) != guarantee(certificate):
        raise ValueError(f"{folder}: column {name!r} has another certificate than {mechanism} of {json.dumps(options)}")
    return Column(name, mechanism, made, options)


def _parts(place: Place, form: dict[str, Any]) -> Sequence[Part]:
    """The files that the sidecar names, of the sizes that it says."""
    files = [place.within(one["name"]) for one in form["output"]["parts"] if one["rows"]]
    for one in form["output"]["parts"]:
        if "/" in one["name"] or place.within(one["name"]).stamp()[0] != one["bytes"]:
            raise ValueError(f"{place}: {one['name']!r} is not the file of {one['bytes']} bytes that was released")
    parts = planned(files, Layout.from_dict(form["layout"]))
    if (rows := sum(part.rows for part in parts)) != form["rows"] * form["values_per_row"]:
        raise ValueError(f"{place}: its files have {rows} rows, the release {form['rows']}")
    return parts
