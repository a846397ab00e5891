"""Standard output as OUT: written to a private file first, so that what cannot be completed is not begun."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

import click

from dpkernels.cli.interrupts import finished, stop_if_asked, uninterrupted
from dpkernels.cli.release.output import digest
from dpkernels.staging import claimed, staged, sweep, to_disk


class StandardOutput:
    """A file in a folder of its own, copied to standard output by ``commit``, and its sidecar.

    Attributes:
        path: where to write the output.
    """

    def __init__(self, sidecar: Path, force: bool = False) -> None:
        self._sidecar, self._force = sidecar, force
        self._folder = TemporaryDirectory(prefix="dpkernels-")
        self.path = Path(self._folder.name) / "output"
        self._held = ExitStack()

    def __enter__(self) -> StandardOutput:
        """Claim the sidecar's name, and clear what a killed run has left of it.

        Raises:
            TakenError: another process is writing this sidecar.
        """
        with uninterrupted():
            self._held.enter_context(claimed(self._sidecar))
            sweep(self._sidecar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._held.close()
            self._folder.cleanup()

    def digest(self) -> tuple[str, int]:
        """The SHA-256 of what was written, in hexadecimal, and how many bytes these are."""
        return digest(self.path) or "", self.path.stat().st_size

    def commit(self, sidecar: str) -> None:
        """Write the output, and name its sidecar, which is on the disk by then, once it has all been taken."""
        with staged(self._sidecar) as new:
            new.file.write(sidecar.encode())
            new.finish()
            stop_if_asked()
            if os.path.lexists(self._sidecar) and not self._force:
                raise click.UsageError(f"--sidecar: {self._sidecar} exists by now; --force replaces it")
            with self.path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
            sys.stdout.buffer.flush()
            with uninterrupted():
                new.place(self._sidecar)
                to_disk(self._sidecar.parent)
                finished()
