"""Proofs and the code that follows them name each other: ``dpkernels.proven`` and docs/proofs."""

import ast
import re
from collections import defaultdict

import pytest
from tracked import ROOT, tracked

PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs/proofs").glob("*.md")) if path.stem != "index"}
PROOFS = re.compile(r"^## (Proof.*|Closed forms|\d\. .*)$", re.MULTILINE)


def anchor(heading):
    """Return the anchor that the site gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def proofs():
    return {f"{page}#{anchor(heading)}" for page, text in PAGES.items() for heading in PROOFS.findall(text)}


def marked():
    """Return the files and names of the functions and classes that name each place."""
    headings = defaultdict(set)
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("dpkernels/", "accountants/")) or path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for call in getattr(node, "decorator_list", ()):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "proven":
                    for heading in call.args:
                        headings[heading.value].add((name, node.name))
    return headings


MARKED = marked()


@pytest.mark.parametrize("place", sorted(MARKED))
def test_the_place_that_code_names_is_a_proof(place):
    assert place in proofs()


@pytest.mark.parametrize("place", sorted(proofs()))
def test_a_proof_has_code_that_names_it(place):
    assert MARKED[place]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_lists_the_files_whose_code_names_it(page):
    """Both ways: each file of the line "Code:" has code that names the page, and no other file has."""
    listed = re.search(r"^Code: (.+?)\n\n", PAGES[page], re.MULTILINE | re.DOTALL).group(1)
    files, folder = set(), ""
    for name in re.findall(r"`([\w/.]+)`", listed):
        folder = name.rpartition("/")[0] or folder
        files.add(name if "/" in name else f"{folder}/{name}")
    naming = {name for heading, marks in MARKED.items() if heading.startswith(page + "#") for name, _ in marks}
    for name in files:
        assert any(function.startswith(name) if name.endswith("/") else function == name for function in naming), name
    for function in naming:
        assert any(function.startswith(name) if name.endswith("/") else function == name for name in files), function


def test_what_is_proven_says_so_when_imported():
    from accountants.composition.brackets.masses import upper_masses

    assert upper_masses.proofs == ("brackets#proof-of-2-above",)
