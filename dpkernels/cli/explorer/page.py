"""``dpkernels explore``: the page, opened, copied or only named."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from dpkernels.staging import naming, staged

PAGE = Path(__file__).with_name("explorer.html")


def write(target: Path, force: bool) -> None:
    """A copy of the page.

    Raises:
        click.UsageError: the file exists, and is not to be replaced.
    """
    if target.exists() and not force:
        raise click.UsageError(f"--output: {target} exists; --force replaces it")
    if not target.parent.is_dir():
        raise click.UsageError(f"--output: the folder {target.parent} does not exist")
    with staged(target, 0o666) as new, naming(target):
        new.file.write(PAGE.read_bytes())
        new.finish()
        new.place(target)


def opened() -> bool:
    """Whether a browser took the page."""
    try:
        return webbrowser.open(PAGE.as_uri())
    except webbrowser.Error:
        return False
