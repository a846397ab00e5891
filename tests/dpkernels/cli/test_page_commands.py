"""The commands on the pages run as written, and print what the pages show, but for random digits."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dpkernels.cli import main

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What no test machine has: a store of objects, a cluster, a browser.
ELSEWHERE = re.compile(r"s3://|--engine ray|^dpkernels explore")


def blocks(page):
    """The commands of each code block of a page, and what the next block of the same section shows as output."""
    for section in re.split(r"^#+ ", page.read_text(), flags=re.MULTILINE):
        plain = re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        for text, after in pairwise([*plain, ""]):
            lines = re.sub(r"\\\n\s*", "", text).splitlines()
            commands = [line.partition("  #")[0].strip() for line in lines if line.startswith("dpkernels ")]
            if commands:
                yield commands, "" if re.search(r"^(dpkernels|pip|python) ", after, re.MULTILINE) else after


SHOWN = [(page, commands, after) for page in PAGES for commands, after in blocks(page)]


def without_digits(text):
    """The words of a text: numbers and the widths of columns are those of one release."""
    return [re.sub(r"[-+]?\d[\d.,e+-]*", "#", line).split() for line in text.splitlines() if line.strip()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the pages name."""
    data = ROOT / "notebooks/data"
    shutil.copytree(data, tmp_path / "notebooks/data")
    (tmp_path / "people").mkdir()
    for name in ("people.csv", "people/1.csv", "people/2.csv"):
        shutil.copy(data / "rand_hie.csv", tmp_path / name)
    np.save(tmp_path / "counts.npy", np.array([120.0, 30.0, 40.0]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.quick("README*")
@pytest.mark.parametrize(
    ("page", "commands", "after"), SHOWN, ids=[f"{page.relative_to(ROOT)}-{i}" for i, (page, *_) in enumerate(SHOWN)]
)
def test_commands_of_a_page_run(page, commands, after, folder, capsys):
    for line in commands:
        if not ELSEWHERE.search(line):
            capsys.readouterr()
            assert main(shlex.split(line)[1:]) == 0, f"{page.name}: {line}: {capsys.readouterr().err}"
    if after and not any(map(ELSEWHERE.search, commands)):
        printed, shown = without_digits(capsys.readouterr().out), without_digits(after)
        assert [line[0] for line in printed] == [line[0] for line in shown], f"{page.name}: {commands[-1]}"


def test_commands_are_found():
    assert sum(len(commands) for _, commands, _ in SHOWN) > 5
