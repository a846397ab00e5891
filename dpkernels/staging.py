"""Atomic replacement of files: a file is written under a temporary name and then renamed to its target.

A staged file is in the folder of its target, so that the rename stays in one file system. Its name is ``.dpkernels-``,
a hash of the target's name, a random number and ``.part``. So remaining files of a target can be found, but their names
cannot be predicted. The file is created exclusively, never through a link, and only its owner can read it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedIOBase, BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

try:
    import fcntl
except ImportError:  # on Windows, where the rest of the package runs
    fcntl = None  # type: ignore[assignment]

_POLL_SECONDS = 0.01  # How often a waiting claim looks again.
# Flags of a file that is made here: never through a link, and as bytes where systems differ.
_NEW = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class TakenError(OSError):
    """Another running process is making the file."""


@dataclass(frozen=True)
class Staged:
    """A file that is being made, open for writing and reading; its temporary name is gone once it has been placed."""

    path: Path
    file: BufferedRandom

    def finish(self, like: Path | None = None) -> None:
        """Write the file to disk (fsync), and give it at most the permissions of another file."""
        self.file.flush()
        if like is not None and like.is_file():
            os.fchmod(self.file.fileno(), _permitted(like.stat(), os.fstat(self.file.fileno())))
        os.fsync(self.file.fileno())

    def place(self, target: Path) -> None:
        """Rename it to the target, replacing any file of that name; ``to_disk`` makes the new name durable."""
        self.path.replace(target)


@contextmanager
def staged(target: Path, mode: int = 0o600) -> Iterator[Staged]:
    """Yield a new temporary file, removed at the end unless it has been placed; the process's mask limits its mode."""
    path = target.with_name(f"{_prefix(target)}-{secrets.token_hex(8)}.part")
    descriptor = os.open(path, _NEW | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield Staged(path, file)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def replaced(target: Path, mode: int = 0o600, like: Path | None = None) -> Iterator[BufferedRandom]:
    """Yield a new file, which replaces the target, whole and on the disk, unless there is an exception.

    It has the mode as far as the process's mask leaves it, and at most the permissions of ``like``, if that is a file.
    """
    with staged(target, mode) as new:
        yield new.file
        with naming(target):
            new.finish(like)
        new.place(target)
    to_disk(target.parent)


@contextmanager
def staged_folder(target: Path, is_left: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield a new private folder for the target; it is removed at the end, unless it was renamed or is to be left."""
    path = _folder_path(target)
    path.mkdir(0o700)
    try:
        yield path
    finally:
        if not is_left():
            shutil.rmtree(path, ignore_errors=True)


def place_folder(new: Path, target: Path, like: Path | None = None) -> None:
    """Rename a folder to the target, which does not exist or is empty, with the permissions of another folder."""
    to_disk(new)
    status = new.stat()
    new.chmod(status.st_mode & 0o777 if like is None else _permitted(like.stat(), status))
    new.rename(target)
    to_disk(target.parent)


@contextmanager
def claimed(target: Path, timeout: float = 0.0) -> Iterator[None]:
    """Hold a target's name: others that claim it wait ``timeout`` seconds, and are then refused with a ``TakenError``.

    The claim is an operating system lock on an empty file beside the target, so it ends with its process in any case.
    The file is removed at the end of the claim, or of the next claim if this process is killed. The guarantees of
    ledgers and releases require that the lock is on the file with this name, and never on the target of a link.
    """
    path, deadline = target.with_name(f"{_prefix(target)}.lock"), time.monotonic() + timeout
    while (descriptor := _locked(path)) is None:
        if time.monotonic() >= deadline:
            raise TakenError(f"{target}: another process is writing it")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock goes: who waits for it sees that its file is no longer the name
        os.close(descriptor)


@dataclass(frozen=True)
class Swept:
    """A file or folder that a killed process had left, and that was removed, with all its bytes."""

    size: int
    is_folder: bool = False


def leftovers(target: Path) -> list[Path]:
    """Return the files and folders that killed processes have left of a target, whose name must be claimed."""
    ours = re.compile(re.escape(_prefix(target)) + r"-[0-9a-f]{16}\.(part(-journal)?|parts)")
    with os.scandir(target.parent) as entries:
        return [Path(entry) for entry in entries if ours.fullmatch(entry.name) and not entry.is_symlink()]


def renamed_folder(folder: Path, target: Path) -> Path:
    """Rename a folder that a killed process has left of a target: processes that survived it no longer find it."""
    path = _folder_path(target)
    folder.rename(path)
    return path


def _folder_path(target: Path) -> Path:
    return target.with_name(f"{_prefix(target)}-{secrets.token_hex(8)}.parts")


def sweep(target: Path, excluded: Collection[Path] = ()) -> list[Swept]:
    """Remove the files that killed processes have left of a target, whose name must be claimed: none is in use."""
    swept = list[Swept]()
    for path in leftovers(target):
        if path in excluded:
            continue
        size, is_folder = 0, path.suffix == ".parts"
        with suppress(OSError):  # another user's, in a folder of many
            if is_folder and path.is_dir():
                for file in path.iterdir():
                    with suppress(FileNotFoundError):  # a worker that has survived may be at work there
                        size += file.lstat().st_size
                shutil.rmtree(path, ignore_errors=True)  # a worker may make a file while its folder is removed
                swept.append(Swept(size, is_folder=True))
            elif not is_folder and path.is_file():
                size = path.lstat().st_size
                path.unlink()
                swept.append(Swept(size))
    return swept


def descriptor_path(file: BufferedIOBase) -> Path:
    """Return a path to an open file that stays valid if its name changes."""
    return Path(f"/dev/fd/{file.fileno()}")


def sha256_and_size(file: BufferedIOBase) -> tuple[str, int]:
    """Return the SHA-256 of an open file, in hexadecimal, and how many bytes it has."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def to_disk(folder: Path) -> None:
    """Write the names in a folder to disk (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prefix(target: Path) -> str:
    """Return the beginning of the names of a target's files: a hash, since its name may leave no room."""
    return f".dpkernels-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}"


def _permitted(other: os.stat_result, status: os.stat_result) -> int:
    """Return permissions that admit no user whom the other file excludes; never setuid, setgid or sticky."""
    mode = other.st_mode & 0o777
    if status.st_gid == other.st_gid:
        return mode
    # Of two groups, either may hold people who are strangers to the other.
    shared = mode >> 3 & mode & 0o007
    return mode & 0o700 | shared << 3 | shared


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock on the file of this name; None if another process does."""
    if fcntl is None:
        raise OSError(f"{path}: this system has no locks of files")
    with ExitStack() as opened:
        descriptor = os.open(path, _NEW | os.O_NONBLOCK, 0o600)
        opened.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path}: is not a file, and the lock of an output would have this name")
        # The holder before may have removed the file, so that the name is another file's or none's by now.
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                opened.pop_all()
                return descriptor
    return None


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Add the path to operating system errors that name no file, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename or not error.strerror:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_space(folder: Path, size: int) -> None:
    """Raise the OSError of a full disk if files of this size do not fit into a folder's file system."""
    free_bytes = shutil.disk_usage(folder).free
    if size > free_bytes:
        problem = f"the disk has {free_bytes} bytes left, and about {size} are needed"
        raise OSError(errno.ENOSPC, problem, str(folder))


def write_png(figure: Figure, target: Path) -> None:
    """Write a picture of matplotlib, whole or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with naming(target), replaced(target, 0o666) as file:
        FigureCanvasAgg(figure).print_png(file)
