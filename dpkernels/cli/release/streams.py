"""Standard output as OUT: written to a private file first, so that what cannot be completed is not begun.

The private file has no name, so it goes with the process, however that ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import click

from dpkernels.cli.failures import independent_of_reports
from dpkernels.cli.interrupts import finished, stop_if_asked, uninterrupted
from dpkernels.cli.release.output import digest, say_swept
from dpkernels.staging import claimed, naming, staged, sweep, to_disk


class StandardOutput:
    """A file without a name, copied to standard output by ``commit``, and its sidecar.

    Attributes:
        path: where to write the output.
        place: how errors call it while it is written.
    """

    def __init__(self, sidecar: Path, force: bool = False) -> None:
        self._sidecar, self._force = sidecar, force
        self._begun = False  # whether any of it may have been read
        self._held = ExitStack()
        self.place = f"the temporary folder {tempfile.gettempdir()}"

    def __enter__(self) -> StandardOutput:
        """Claim the sidecar's name, clear what a killed run has left of it, and make the private file.

        Raises:
            TakenError: another process is writing this sidecar.
            OSError: the folder of the sidecar or the temporary folder cannot be written.
        """
        with uninterrupted(), ExitStack() as held:
            held.enter_context(claimed(self._sidecar))
            say_swept(sweep(self._sidecar), self._sidecar)
            with naming(self.place):
                self._file = held.enter_context(tempfile.TemporaryFile(prefix="dpkernels-"))
            self.path = Path(f"/dev/fd/{self._file.fileno()}")
            stop_if_asked()
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._held.close()

    def digest(self) -> tuple[str, int]:
        """The SHA-256 of what was written, in hexadecimal, and how many bytes these are."""
        return digest(self.path) or "", self.path.stat().st_size

    def withdraw(self) -> bool:
        """Delete what was written; return False if some of it may have been read."""
        if not self._begun:
            self._file.close()
        return not self._begun

    def commit(self, sidecar: str) -> None:
        """Write the output, and name its sidecar, which is on the disk by then, once it has all been taken."""
        with staged(self._sidecar) as new:
            with naming(self._sidecar):
                new.file.write(sidecar.encode())
                new.finish()
            stop_if_asked()
            if os.path.lexists(self._sidecar) and not self._force:
                with independent_of_reports():
                    raise click.UsageError(f"--sidecar: {self._sidecar} exists by now; --force replaces it")
            self._begun = True
            with naming("standard output"), self.path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
                sys.stdout.buffer.flush()
            with uninterrupted():
                new.place(self._sidecar)
                to_disk(self._sidecar.parent)
                finished()
