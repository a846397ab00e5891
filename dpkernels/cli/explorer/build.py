"""Writes the page of ``dpkernels explore``: ``python -m dpkernels.cli.explorer.build``, some minutes.

With ``--keep`` the tables stay those of the page that there is, and only what surrounds them is written: a second.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import dpkernels
from dpkernels.cli.explorer.page import PAGE

_HERE = Path(__file__).parent
_PARTS = {"style": "style.css", "model": "model.js", "charts": "charts.js", "page": "page.js"}
_TABLES = re.compile(r'<script type="application/json" id="tables">(.*?)</script>', re.DOTALL)


def tables_of(page: str) -> Any:
    """The tables in a page.

    Raises:
        ValueError: it holds none.
    """
    if not (found := _TABLES.search(page)):
        raise ValueError("page: has no tables; build it without --keep")
    return json.loads(found[1])


def page_of(tables: Any) -> str:
    """The page around these tables."""
    parts = {name: (_HERE / file).read_text().strip() for name, file in _PARTS.items()}
    parts |= {"tables": json.dumps(tables, separators=(",", ":")), "version": dpkernels.__version__}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], (_HERE / "template.html").read_text())


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description="Write the page of `dpkernels explore`.")
    parser.add_argument("--keep", action="store_true", help="keep the tables of the page that there is")
    if parser.parse_args().keep:
        found = tables_of(PAGE.read_text())
    else:
        from dpkernels.cli.explorer.tables import tables

        found = tables(lambda what: print(what, file=sys.stderr))
    PAGE.write_text(page_of(found))
    print(f"{PAGE.name}: {PAGE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
