"""Reports of a released dataset, counted part by part by an engine, and joined."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from dpkernels.bounded_json import JsonObject
from dpkernels.cli.dataset.engines import Engine
from dpkernels.cli.dataset.folder import SIDECAR
from dpkernels.cli.dataset.perturb import Part, Secret, plan_parts, results
from dpkernels.cli.errors import error_text
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.locations import Location
from dpkernels.cli.perturb.sidecar import parse_sidecar, versions
from dpkernels.exact.certificate import CertificateError


def read(folder: str, select: Callable[..., Any], engine: Engine) -> Any:
    """Count the reports of a column of a release of many files, and join the counts as the selection does.

    ``select`` returns the selection from the JSON of the sidecar, the columns, and the folder's name for errors.
    """
    location = Location.parse(folder)
    release, layout = _sidecar(location)
    for entry in release["output"]["parts"]:
        if "/" in entry["name"] or location.child(entry["name"]).stamp()[0] != entry["bytes"]:
            raise CertificateError(
                f"{location}: {entry['name']!r} is not the file of {entry['bytes']} bytes that was released"
            )
    hashes = {location.child(entry["name"]): entry["sha256"] for entry in release["output"]["parts"] if entry["rows"]}
    if not hashes:
        raise CertificateError(f"{location}: its files have no row, the release {release['rows']}")
    parts = plan_parts(list(hashes), layout)
    if (rows := sum(part.rows for part in parts)) != release["rows"] * release["values_per_row"]:
        raise CertificateError(f"{location}: its files have {rows} rows, the release {release['rows']}")
    with parts[0].opened(layout) as source:
        counted = select(release, source.names, folder)
    while hasattr(counted, "tally"):  # once, but for each level of prefixes
        with closing(results(engine, tally_part, Count(counted, layout, hashes), None, parts)) as tallies:
            counted = counted.join(tallies, folder)
    return counted


@dataclass(frozen=True)
class Count:
    """A description of what is counted, the same for every part. The versions are the driver's."""

    selection: Any  # of numbers or of categories
    layout: Layout
    hashes: dict[Location, str]  # of the whole files, in the sidecar
    versions: dict[str, str] = field(default_factory=versions)


def tally_part(job: Count, secret: Secret | None, part: Part) -> dict[str, object]:
    """Count one part; for the first part of a file, check that the file is the released one."""
    with part.opened(job.layout) as source:
        tallied = job.selection.tally(source, part.row)
    if part.row == 0:
        sha256 = hashlib.sha256()
        with part.file.read() as file:
            # In a store of objects every read is a request.
            while block := file.read(1 << 22):
                sha256.update(block)
        if sha256.hexdigest() != job.hashes[part.file]:
            raise CertificateError(f"{part.file}: is not the file that was released, its SHA-256 is another")
    part.check_unchanged()
    return tallied


def _sidecar(location: Location) -> tuple[JsonObject, Layout]:
    sidecar = location.child(SIDECAR)
    try:
        with sidecar.read() as file:
            release = parse_sidecar(file.read().decode())
        if "parts" not in release["output"]:
            raise ValueError("output.parts: is missing")
        return release, Layout.from_dict(release["layout"])
    except FileNotFoundError:
        raise CertificateError(f"{location}: has no {SIDECAR}, so it is no release of many files") from None
    except ValueError as error:
        raise CertificateError(
            f"{sidecar}: is not the sidecar of a release of many files; {error_text(error)}"
        ) from error
