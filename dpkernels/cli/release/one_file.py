"""``dpkernels perturb`` of one file, in pieces through the exact engine into a file of the same format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import DASH, STANDARD_INPUT, layout_of
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.files.places import FILE, kind
from dpkernels.cli.files.row_options import permutation
from dpkernels.cli.interrupts import independent_of_reports
from dpkernels.cli.ledger import LedgerAccount
from dpkernels.cli.release.output import Output, StandardOutput, check_target, sidecar_path
from dpkernels.cli.release.plan import Plan, Request
from dpkernels.cli.release.rows import ReleaseSpec, check_values, perturbed, row_order_secret, some_rows
from dpkernels.cli.release.sidecar import WrittenFile
from dpkernels.cli.text import shown
from dpkernels.progress import bar
from dpkernels.staging import naming

_LONG_BYTES = 1 << 26  # of an input, from which a terminal sees a bar


@dataclass(frozen=True)
class FilePlan(Plan):
    """A release of one file.

    Attributes:
        source: the input.
        target: the output; ``DASH`` for standard output.
        beside: the sidecar.
        force: replace an existing output.
    """

    source: Source
    target: Path
    beside: Path
    force: bool

    @property
    def sidecar(self) -> Path:
        return self.beside

    @property
    def label(self) -> str:
        return f"perturb {shown(self.source.path.name)} to {shown(self.target.name)}"

    def output(self) -> Output | StandardOutput:
        if self.target == DASH:
            return StandardOutput(self.beside, self.force)
        return Output(self.source.path, self.target, self.force)

    def release(self, progress: bool | None, check_first: bool = False) -> Any:
        if check_first and self.source.path == STANDARD_INPUT:
            raise click.UsageError("--check-first: standard input can be read only once")
        return super().release(progress, check_first)

    def read(self, progress: bool | None) -> int:
        own = self.spec
        with naming(self.source.path), _shown(self.source, progress) as show:
            read, rows = check_values(self.source, own.columns, own.clip, own.row_options.missing, show)
        some_rows(self.source, read, rows)
        return rows

    def write(self, output: Output | StandardOutput, progress: bool | None) -> tuple[int, list[str], WrittenFile]:
        with _shown(self.source, progress) as show, naming(f"{self.source.path} to {output.place}"):
            rows = _write(self, output.path, show)
        return rows, self.source.not_kept(output.path), WrittenFile(*output.digest())

    def commit(self, output: Output | StandardOutput, sidecar: str, written: WrittenFile) -> None:
        output.commit(sidecar)


def plan(request: Request) -> FilePlan:
    """Check everything that can be checked before a value is read.

    Raises:
        click.UsageError: a wrong option or argument.
        ValueError: the input is not a readable file of its format.
    """
    path, target, rows = Path(request.source), Path(request.target), request.rows
    layout = layout_of(path, target, request.kind, request.delimiter, request.multiline)
    if path != DASH and (what := kind(path)) != FILE:
        raise click.UsageError(f"IN: {path} {what}; it must be a file, or - for standard input")
    path = STANDARD_INPUT if path == DASH else path
    beside = _sidecar(path, target, request.sidecar, request.force)
    ledger_account = LedgerAccount.of(request.ledger, (path, target, beside))
    rows.check_size(path)
    source = open_source(path, layout)
    rows.check_droppable(source)
    spec = ReleaseSpec(request.columns_of(source), request.clip, rows)
    facts = source.names, source.values_per_row, spec.copied(source)
    return FilePlan(spec, layout, *facts, ledger_account, source, target, beside, request.force)


def _sidecar(path: Path, target: Path, given: Path | None, force: bool) -> Path:
    """Return where the certificates go, after checking that the place is free."""
    if target != DASH:
        if given is not None:
            raise click.UsageError("--sidecar: is for standard output; the sidecar of a file is beside it")
        check_target(path, target, force)
        return sidecar_path(target)
    if given is None:
        raise click.UsageError("--sidecar: missing; standard output needs a file for its certificates")
    if given.suffix != ".json":
        raise click.UsageError(f"--sidecar: {given} must end in .json")
    check_target(path, given, force)
    return given


@contextmanager
def _shown(source: Source, wanted: bool | None) -> Iterator[Callable[[], Any]]:
    with bar(1.0, wanted, wanted is None and source.path.stat().st_size >= _LONG_BYTES) as moved:
        yield lambda: moved(completed=source.fraction)


def _write(plan: FilePlan, path: Path, show: Callable[[], Any]) -> int:
    """Perturb into a file; returns the number of rows (of an array: values) there."""
    source, row_options, secret = plan.source, plan.spec.row_options, os.urandom(32)
    held, read, rows, size = list[Any](), 0, 0, 0
    with source.sink(path) as sink, closing(perturbed(plan.spec, source, secret, show)) as pieces:
        for piece, before, left in pieces:
            read, rows = read + before, rows + left
            if not row_options.shuffle:
                sink.write(piece)
                continue
            held.append(piece)
            size += source.size(piece)
            row_options.check_held(size)
        with independent_of_reports():
            some_rows(source, read, rows)
        if held:
            order = permutation(row_order_secret(secret), rows // source.values_per_row)
            for piece in source.reordered(held, order):
                sink.write(piece)
    return rows
