"""A progress bar on stderr for long computations on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec


@contextmanager
def bar(total: float, visible: bool | None, long: bool) -> Iterator[Callable[..., object]]:
    """Show a progress bar; yield a function that advances it by ``advance=`` or sets it to ``completed=``.

    With ``visible`` None it is shown for long work if stderr is a terminal and rich is installed. It is thread-safe.
    """
    if visible is None:
        visible = long and sys.stderr is not None and sys.stderr.isatty() and find_spec("rich") is not None
    if not visible:
        yield lambda **_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield partial(progress.update, progress.add_task("perturbing", total=total))
