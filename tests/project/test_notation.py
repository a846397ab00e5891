"""Every name in the code column of NOTATION.md exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [
    path.read_text() for part in ("dpkernels", "accountants", "benchmarks") for path in (ROOT / part).rglob("*.py")
]
ROWS = [line.split(" | ") for line in (ROOT / "NOTATION.md").read_text().splitlines() if line.startswith("| ")][1:]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([\w.]+)", row[1])})


def has(text, word):
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


@pytest.mark.parametrize("name", NAMES)
def test_the_name_exists(name):
    *owners, last = name.split(".")
    owner = owners[-1] if owners else ""
    if owner[:1].isupper():  # a member of a class stands in the file of the class, or of one that it extends
        source = [text for text in TEXTS if f"class {owner}(" in text or f"class {owner}:" in text]
        bases = [base for text in source for base in re.findall(rf"class {owner}\((\w+)", text)]
        source += [
            text for text in TEXTS if any(f"class {base}(" in text or f"class {base}:" in text for base in bases)
        ]
    else:
        source = TEXTS
    assert any(has(text, last) for text in source), name
