"""The files of the project, whatever else lies in the folder."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("accountants", "benchmarks", "docs", "dpkernels", "notebooks", "tests")


def tracked(*patterns: str, root: Path = ROOT) -> list[Path]:
    """Return the files that match a pattern of git, by default all: those that git tracks.

    A source archive has no index of git. There they are all files at the top and in the project's folders.
    """
    names = _indexed(root) or _unpacked(root)
    chosen = [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    return sorted(path for name in chosen if (path := root / name).is_file())


def _indexed(root: Path) -> list[str]:
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [name for name in listing.stdout.split("\0") if name]


def _unpacked(root: Path) -> list[str]:
    files = [*root.glob("*"), *(path for folder in FOLDERS for path in (root / folder).rglob("*"))]
    names = [path.relative_to(root) for path in files if path.is_file()]
    return [name.as_posix() for name in names if "__pycache__" not in name.parts]
