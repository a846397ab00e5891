"""A disk cache of solved programs; it saves time, and no guarantee relies on it.

The folder is that of ``cache_folder``. Every table that is read is checked to be private, unbiased and on the requested
grids, and a release certifies its integers in any case. The variance is not checked. A user who can write to the folder
can therefore make reports noisier, but not less private.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpkernels.cache_folder import folder
from dpkernels.staging import staged

FORMAT = 2  # Part of every key. Increase it whenever the program or the format changes.
_MOST_BYTES = 1 << 24  # Of a file, and of its uncompressed content.

Arrays = dict[str, np.ndarray]


def cached(key: str, solve: Callable[[], Arrays], sound: Callable[[Arrays], bool]) -> Arrays:
    """Return the arrays cached for a key, which states what they depend on, if they are sound; else solve and cache."""
    place = folder()
    if place is None:
        return solve()
    path = _path(place, key)
    kept = _read(path, key)
    if kept is not None and sound(kept):
        return kept
    arrays = solve()
    _write(path, key, arrays)
    return arrays


def is_kept(key: str) -> bool:
    """Return whether there is a file for a key."""
    place = folder()
    try:
        return place is not None and _path(place, key).exists()
    except OSError:  # The user may not read the folder.
        return False


def _path(place: Path, key: str) -> Path:
    return place / f"optimal-{hashlib.sha256(f'{FORMAT} {key}'.encode()).hexdigest()[:32]}.npz"


def _read(path: Path, key: str) -> Arrays | None:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        with zipfile.ZipFile(path) as file:
            if sum(member.file_size for member in file.infolist()) > _MOST_BYTES:
                return None
            arrays = {name.removesuffix(".npy"): _array(file.read(name)) for name in file.namelist()}
    except Exception:  # A damaged file fails in zipfile, in zlib or in NumPy, each with errors of its own.
        return None
    same = "key" in arrays and str(arrays.pop("key")) == key
    return arrays if same else None


def _array(data: bytes) -> np.ndarray:
    """Return the array of a .npy file; it is never larger than the file, whatever the header states."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")


def _write(path: Path, key: str, arrays: Arrays) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, 0o666) as new:
            np.savez_compressed(new.file, key=np.array(key), **arrays)  # type: ignore[arg-type]
            new.file.flush()
            new.place(path)
