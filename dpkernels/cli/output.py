"""An output and its sidecar: both whole, or neither."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType

import click

from dpkernels.cli.interrupts import stop_if_asked, uninterrupted


def sidecar_path(target: Path) -> Path:
    """``out.csv`` has ``out.csv.json``."""
    return target.with_name(target.name + ".json")


def check_target(source: Path, target: Path, force: bool) -> None:
    """Refuse a target that must not be written.

    Raises:
        click.UsageError: it is the input, exists (unless ``force``), or its folder does not exist.
    """
    if not target.parent.is_dir():
        raise click.UsageError(f"OUT: the folder {target.parent} does not exist")
    if target.exists() and source.samefile(target):
        raise click.UsageError(f"OUT: {target} is the input")
    taken = [path for path in (target, sidecar_path(target)) if os.path.lexists(path)]
    if taken and not force:
        raise click.UsageError(f"OUT: {taken[0]} exists; --force replaces it")


class Output:
    """Two files under temporary names beside the target, which ``commit`` renames; on any other exit both go.

    Attributes:
        temporary: where to write the output.
    """

    def __init__(self, source: Path, target: Path) -> None:
        mark = f".dpkernels-{secrets.token_hex(8)}"
        self._source = source
        self._target, self._sidecar = target, sidecar_path(target)
        self.temporary = target.with_name(f"{mark}.part")
        self._temporary_sidecar = target.with_name(f"{mark}.json.part")

    def __enter__(self) -> Output:
        try:
            # Columns that are copied are as secret as the input: no wider access than its, at any time.
            self.temporary.touch(mode=0o600, exist_ok=False)
        except KeyboardInterrupt:
            # A request to stop may come when the file is there, and this has not returned; errors leave none.
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        with uninterrupted():
            for path in (self.temporary, self._temporary_sidecar):
                path.unlink(missing_ok=True)

    def commit(self, sidecar: str) -> None:
        """Give both files their names.

        Whenever the machine stops, an output that exists has its own sidecar: an old output goes first, the new
        sidecar comes second, the new output last.
        """
        self._temporary_sidecar.write_text(sidecar, encoding="utf-8")
        shutil.copymode(self._source, self.temporary)
        for path in (self.temporary, self._temporary_sidecar):
            _to_disk(path)
        stop_if_asked()
        with uninterrupted():
            self._target.unlink(missing_ok=True)
            self._temporary_sidecar.replace(self._sidecar)
            self.temporary.replace(self._target)
            _to_disk(self._target.parent)


def write_whole(target: Path, content: bytes) -> None:
    """Write a file of its own, whole or not at all."""
    temporary = target.with_name(f".dpkernels-{secrets.token_hex(8)}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    finally:
        with uninterrupted():
            temporary.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
