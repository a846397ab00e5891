"""The page of ``dpkernels explore``, assembled from its parts: template, style, scripts and tables."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import dpkernels
from dpkernels.bounded_json import JsonObject
from dpkernels.cache_folder import folder
from dpkernels.staging import naming, replaced

_HERE = Path(__file__).parent
_PARTS = {"style": "style.css", "model": "model.js", "charts": "charts.js", "page": "page.js"}
TABLES = _HERE / "tables.json.gz"  # what ``benchmarks.explorer_tables`` computes
MECHANISMS = _HERE / "mechanisms.json"
# These tables are stored as differences of multiples of UNIT. They hold logarithms; the page shows four digits.
PACKED = ("composed", "shuffled", "distribution", "narrow")
UNIT = 2e-5


def tables() -> JsonObject:
    """Return the tables as the page takes them, with the list of mechanisms."""
    packed: JsonObject = json.loads(gzip.decompress(TABLES.read_bytes())) | json.loads(MECHANISMS.read_text())
    for table in packed["drawn"]:  # The rows of inputs in the upper half mirror those of the lower half.
        table["rows"] += [row[::-1] for row in reversed(table["rows"][:-1])]
    return {name: _unpacked(values) if name in PACKED else values for name, values in packed.items()}


def _unpacked(packed: Any) -> Any:
    if isinstance(packed, dict):
        return {name: _unpacked(item) for name, item in packed.items()}
    if isinstance(packed[0], list):
        return [_unpacked(item) for item in packed]
    return [round(UNIT * value, 5) for value in accumulate(packed)]


def page() -> str:
    """Return the page: one file, which needs no other and no network."""
    pieces = {name: (_HERE / file).read_text().strip() for name, file in _PARTS.items()}
    pieces |= {"tables": json.dumps(tables(), separators=(",", ":")), "version": dpkernels.__version__}
    return re.sub(r"\{\{(\w+)\}\}", lambda field: pieces[field[1]], (_HERE / "template.html").read_text())


def write(target: Path) -> None:
    """Write the page to a file, whole or not at all."""
    with naming(target), replaced(target, 0o666) as file:
        file.write(page().encode())


def cached_page() -> Path:
    """Write the page to the user's cache, or to a temporary folder where there is no cache, and return its path."""
    try:
        if (cache := folder()) is not None:
            cache.mkdir(parents=True, exist_ok=True)
            write(target := cache.absolute() / "explorer.html")
            return target
    except OSError:  # the cache cannot be written
        pass
    write(target := Path(tempfile.mkdtemp(prefix="dpkernels-")) / "explorer.html")
    return target
