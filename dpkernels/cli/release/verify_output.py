"""What a verified sidecar says of its output, against the files that are beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpkernels.cli.files.formats import Source, open_source
from dpkernels.cli.files.handling import MOST_DECIMALS, Handling
from dpkernels.cli.files.layout import Layout, known_format
from dpkernels.cli.release.guarantees import Guarantee
from dpkernels.cli.release.output import digest
from dpkernels.cli.release.reports import ANY, blur, can_report
from dpkernels.cli.release.sidecar import title
from dpkernels.cli.text import shown
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.untrusted import brief, integer

_LONGEST = 500  # of a text that is printed whole, such as a hash or a sentence

_MOST_PROBLEMS = 10  # that one message lists


@dataclass(frozen=True)
class VerifiedColumn:
    """A column of a sidecar, verified.

    Attributes:
        form: what the sidecar says.
        certificate: its certificate.
        own: what that guarantees.
        rebuilt: whether the mechanism of its name has been made again and has this table.
    """

    form: dict[str, Any]
    certificate: Any
    own: Guarantee
    rebuilt: bool

    def __str__(self) -> str:
        delta = f", delta {shortest(self.own.delta)}" if self.own.delta else ""
        name = shown(self.form["mechanism"]) + ("" if self.rebuilt else " (declared, not verified)")
        claim = f"epsilon {shortest(self.own.epsilon)}{delta}; neighbouring: {self.own.neighbours}"
        return f"ok: {title(self.form['column'])}, {name}, {claim}"


def outputs(form: dict[str, Any], path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The files of a release, each with what its sidecar says of it; one, but of a dataset.

    Raises:
        CertificateError: a file's name is a path, or there twice.
    """
    written = form.get("output", {})
    if "parts" not in written:
        return [(path.with_name(path.name.removesuffix(".json")), {**written, "rows": form["rows"]})]
    for name, count in Counter(part["name"] for part in written["parts"]).items():
        if Path(name).name != name:
            raise CertificateError(f"output: {name!r} is not the name of a file beside the sidecar")
        if count > 1:
            raise CertificateError(f"output: {name!r} is named twice; every row is released once")
    check_same("rows", form["rows"], sum(integer("rows", part["rows"]) for part in written["parts"]), "its files have")
    return [(path.with_name(part["name"]), {**part, "columns": written["columns"]}) for part in written["parts"]]


def check_same(word: str, stated: Any, found: Any, where: str = "its columns") -> None:
    """Refuse what a sidecar says and is not so.

    Raises:
        CertificateError: it is not.
    """
    if type(stated) is not type(found) or stated != found:
        raise CertificateError(f"{word}: the file says {_short(stated)}, {where} {_short(found)}")


def _short(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST else brief(value)


def verified_output(
    form: dict[str, Any], columns: list[VerifiedColumn], files: list[tuple[Path, dict[str, Any]]], path: Path
) -> str:
    """Check the files of a release, every one of them, and say so.

    Args:
        form: what the sidecar says.
        columns: its columns, verified.
        files: what ``outputs`` found in it.
        path: the sidecar.

    Raises:
        CertificateError: names all files that are not what the sidecar says; of a dataset also those that are missing,
            and those in its folder that the sidecar does not name.
    """
    if "parts" not in form.get("output", {}) and not files[0][0].is_file():
        return f"not verified: rows, values a row, the columns' names, the output's hash; {files[0][0]} is not there"
    coarse, problems = set[str](), _strange(form, path, files)
    for target, written in files:
        if not target.is_file():
            continue  # one of the problems
        try:
            coarse.update(_coarse(form, columns, target, written))
        except CertificateError as error:
            problems.append(str(error))
    if problems:
        more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
        raise CertificateError("; ".join([*problems[:_MOST_PROBLEMS], *more]))
    told = "its perturbed columns hold reports of these tables"
    if coarse:
        told = f"not verified: reports of {', '.join(sorted(coarse))}, too coarse to be told from other numbers"
    hashed = "SHA-256" if _is_bound(form) else "not bound by a hash"
    place = str(files[0][0]) if len(files) == 1 else f"{len(files)} files, {files[0][0]} and on"
    return f"ok: {place}, {form['rows']} rows, {hashed}; {told}"


def _strange(form: dict[str, Any], path: Path, files: list[tuple[Path, dict[str, Any]]]) -> list[str]:
    """What a dataset's folder lacks, and what it has that the sidecar does not name; nothing of one file."""
    if "parts" not in form.get("output", {}):
        return []
    there, named = {one.name for one in path.parent.iterdir()}, {target.name for target, _ in files}
    problems = [f"{path.with_name(name)}: is not there" for name in sorted(named - there)]
    problems += [f"{target}: is not a file" for target, _ in files if target.name in there and not target.is_file()]
    strange = sorted(there - named - {path.name})
    return problems + [
        f"{path.with_name(name)}: is in the folder of the release, and its sidecar does not name it" for name in strange
    ]


def _coarse(
    form: dict[str, Any], columns: list[VerifiedColumn], target: Path, written: dict[str, Any]
) -> Iterator[str]:
    """Check a file; the columns whose reports are too coarse to be told from other numbers."""
    if _is_bound(form):
        check_same("output: bytes", written["bytes"], target.stat().st_size, f"{target} has")
        check_same("output: sha256", written["sha256"], digest(target), f"{target} has")
    try:
        source = open_source(target, _layout(form, target))
        if _is_bound(form):
            check_same("output: columns", written["columns"], list(source.names), f"{target} has")
        _check_names(form, columns, source)
        rows, coarse = _rows(form, columns, source)
        check_same("rows", written["rows"], rows, f"{target} has")
    except (click.UsageError, ValueError) as error:
        raise CertificateError(f"{target}: {error}") from error
    yield from coarse


def _is_bound(form: dict[str, Any]) -> bool:
    """Whether the sidecar has a hash of its output."""
    return form["format"] > 2 or "output" in form


def _check_names(form: dict[str, Any], columns: list[VerifiedColumn], source: Source) -> None:
    names = list(source.names)
    check_same("values_per_row", form["values_per_row"], source.values_per_row, f"{source.path} has")
    chosen = [column.form["column"] for column in columns]
    if sorted(map(str, chosen)) != sorted({str(name) for name in chosen}):
        raise CertificateError(f"columns: one of {chosen} is there twice")
    for name in chosen:
        if (name is not None or names) and names.count(name) != 1:
            raise CertificateError(f"column {title(name)}: {source.path} has {names.count(name)} columns of this name")


def _layout(form: dict[str, Any], target: Path) -> Layout:
    """How the output is read: as the sidecar says, or in older formats as its name does."""
    if form["format"] > 2:
        return Layout.from_dict(form["layout"])
    kind = known_format(target)
    return Layout(kind, ",", multiline=kind == "csv")


def _rows(form: dict[str, Any], columns: list[VerifiedColumn], source: Source) -> tuple[int, list[str]]:
    """How many rows there are, and columns whose reports are too coarse to be told from other numbers.

    Raises:
        CertificateError: a number of a perturbed column is not a report of its table, or has too many decimals.
    """
    kept = form["format"] > 2 and form["missing"] == "keep"
    decimals = form["decimals"] if form["format"] > 2 else None
    if decimals is not None and not 0 <= integer("decimals", decimals) <= MOST_DECIMALS:
        raise CertificateError(f"decimals: {decimals} is not in 0..{MOST_DECIMALS}")
    handling, slack = Handling(decimals=decimals), 0.0 if decimals is None else 0.5000001 * 10.0**-decimals
    start, coarse = 0, set()
    for piece in source.pieces([column.form["column"] for column in columns]):
        for column in columns:
            found = source.numbers(piece, column.form["column"], start)
            good = can_report(column.certificate, found.values, slack) & (
                handling.rounded(found.values) == found.values
            )
            if found.missing is not None:
                good = np.where(found.missing, kept, good)
            if not good.all():
                where = source.place(piece, start + int(good.argmin()), start)
                raise CertificateError(f"column {title(column.form['column'])}: {where} is no report of its table")
            if blur(column.certificate, found.values.dtype, slack) >= ANY:
                coarse.add(title(column.form["column"]))
        start += len(piece)
    return start // source.values_per_row, sorted(coarse)
