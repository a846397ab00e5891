"""Reports of a released dataset, counted part by part by an engine, and joined."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dpkernels.cli.dataset.folder import SIDECAR
from dpkernels.cli.dataset.part import Job, Secret, answers
from dpkernels.cli.dataset.places import Place
from dpkernels.cli.dataset.plan import Part, planned
from dpkernels.cli.dataset.release import Engine
from dpkernels.cli.estimates.reading import Read, Tallied, Wanted, tallied
from dpkernels.cli.files.handling import Handling
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.release.sidecar import versions
from dpkernels.cli.release.treatment import Treatment
from dpkernels.progress import bar
from dpkernels.untrusted import parse_json

_LONG = 1 << 22  # Rows, from which a terminal sees a bar.


def read(folder: str, column: str | None, by: str | None, bounds: tuple[float, float] | None, engine: Engine) -> Read:
    """Count the reports of a column of a release of many files, as ``reading.read`` does those of one.

    Args:
        folder: the release, or its URI.
        column: the perturbed column; None where there is one only.
        by: a column that was copied as it is, whose cells are groups.
        bounds: smallest and largest value, of additive noise.
        engine: what runs the parts.

    Raises:
        click.UsageError: a wrong option.
        ValueError: not a release, a file that is not what the sidecar says, or as ``reading.read``.
    """
    place = Place.of(folder)
    form = _sidecar(place)
    try:
        written = Layout.from_dict(form["layout"])
        parts = _parts(place, form)
        long = form["rows"] >= _LONG
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{folder}: {SIDECAR} is not the sidecar of a release of many files") from error
    if not parts:
        raise ValueError(f"{folder}: holds no report; there is nothing to estimate from")
    with parts[0].opened(written) as source:
        wanted = Wanted.of(form, source.names, folder, column, by, bounds)
    job = Job(Treatment((), False, Handling()), written, "", len(parts), None, versions())
    with bar(len(parts), None, long) as moved:
        found = list(answers(engine, partial(tally_part, wanted), job, None, parts, lambda: moved(advance=1)))
    return Read.of(wanted, found, folder)


def tally_part(wanted: Wanted, job: Job, secret: Secret | None, part: Part) -> Tallied:
    """Count one part.

    Raises:
        ValueError: a number that is no report of the mechanism.
    """
    with part.opened(job.form) as source:
        return tallied(source, wanted)


def _sidecar(place: Place) -> dict[str, Any]:
    try:
        with place.within(SIDECAR).read() as file:
            form: dict[str, Any] = parse_json(file.read().decode())
    except FileNotFoundError:
        raise ValueError(f"{place}: has no {SIDECAR}, so it is no release of many files") from None
    if not isinstance(form, dict) or "parts" not in form.get("output", {}):
        raise ValueError(f"{place}: {SIDECAR} is not the sidecar of a release of many files")
    return form


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
