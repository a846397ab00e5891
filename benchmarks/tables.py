"""Regenerate the tables of the pages, each from the output of its command.

    python -m benchmarks.tables                     # all of them: over an hour; needs an idle machine
    python -m benchmarks.tables --only recycling    # only commands with this text
    python -m benchmarks.tables --check             # fails if a cell other than a time differs; no page is written

In a page ``<!-- table 2: recycling -->`` stands above the second table that ``python -m benchmarks.recycling`` prints,
and ``<!-- end -->`` below it. Each command runs once. Those without timings take a minute together.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- table (\d+): (.+?) -->\n+)(.*?)(\n+<!-- end -->)", re.DOTALL)
# Headings of columns that change with every run: times, speeds, memory and their ratios.
_MEASURED = re.compile(r"(^|[ ,])(ns a value|ms|s)$|values/s$|^x |of the limit|Mi?B$|/ without$|s/1e9$|^ray / local$")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9  # of computed numbers, whose last printed digits depend on the platform


def pages() -> list[Path]:
    """Return every page that may have tables."""
    return [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def marked(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, command and table of each marker of a page."""
    for markers in MARKED.finditer(page.read_text()):
        yield int(markers[2]), markers[3], markers[4]


@cache
def printed(command: str) -> list[str]:
    """Return the tables that ``python -m benchmarks.COMMAND`` prints.

    Raises:
        RuntimeError: the command failed.
    """
    module, *arguments = shlex.split(command)
    call = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(call, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: ended with {done.returncode}")
    lines = groupby(done.stdout.splitlines(), lambda line: line.startswith("|"))
    return ["\n".join(rows) for is_table, rows in lines if is_table]


def table(number: int, command: str) -> str:
    """Return the table of a marker, made again.

    Raises:
        ValueError: its command prints fewer tables.
    """
    output = printed(command)
    if not 1 <= number <= len(output):
        raise ValueError(f"table {number}: {command} prints {len(output)}")
    return output[number - 1]


def cells(text: str) -> list[list[str]]:
    """Return the rows of a markdown table, without the rule below its heading."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()]
    return rows[:1] + rows[2:]


def differences(before: str, after: str) -> list[str]:
    """Return the differences between two tables, apart from measurements."""
    (head, *old), (new_head, *new) = cells(before), cells(after)
    if head != new_head or len(old) != len(new):
        return [f"{len(old)} rows of {head} are {len(new)} of {new_head}"]
    return [
        f"{row[0]}, {name}: {was} is {now}"
        for row, new_row in zip(old, new, strict=True)
        for name, was, now in zip(head, row, new_row, strict=True)
        if not _MEASURED.search(name) and not _same(was, now)
    ]


def _same(was: str, now: str) -> bool:
    try:
        return was == now or math.isclose(float(was), float(now), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    except ValueError:
        return False


def rewritten(page: Path, wanted: Callable[[str], bool]) -> str:
    """Return the page with the wanted tables made again."""

    def again(found: re.Match[str]) -> str:
        return found[1] + table(int(found[2]), found[3]) + found[5] if wanted(found[3]) else found[0]

    return MARKED.sub(again, page.read_text())


def main() -> None:
    """Write or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tables whose command has this text")
    parser.add_argument("--check", action="store_true", help="fail if a table differs; write no page")
    options = parser.parse_args()
    differing = []
    for page in pages():
        if options.check:
            for number, command, text in marked(page):
                if options.only in command:
                    location = f"{page.relative_to(ROOT)}, table {number} of {command}"
                    differing += [f"{location}: {what}" for what in differences(text, table(number, command))]
        else:
            page.write_text(rewritten(page, lambda command: options.only in command))
    if differing:
        sys.exit("\n".join(differing))


if __name__ == "__main__":
    main()
