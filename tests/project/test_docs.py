"""Texts: examples run, links lead somewhere, every public name is in the reference."""

import doctest
import importlib
import json
import re
import shutil

import jax
import pytest
from tracked import ROOT, tracked

FILES = [path.relative_to(ROOT).as_posix() for path in tracked()]
PAGES = [name for name in FILES if name.endswith(".md") and not name.startswith(".github")]
NAMES = json.loads((ROOT / "tests/support/public_names.json").read_text())["names"]
REFERENCE = "\n".join((ROOT / name).read_text() for name in PAGES if name.startswith("docs/reference/"))


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def own_settings():
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.lengthy
@pytest.mark.quick("docs/exact.md", "docs/gpu.md", "docs/many_machines.md", "docs/proofs*")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_examples_of_a_page_run(page, own_settings, tmp_path, monkeypatch):
    """One after the other, as a reader would, in a folder that has the notebooks' data."""
    shutil.copytree(ROOT / "notebooks/data", tmp_path / "notebooks/data")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


def modules_with_examples():
    return [
        name[:-3].replace("/", ".").removesuffix(".__init__")
        for name in FILES
        if name.startswith(("dpkernels/", "accountants/"))
        and name.endswith(".py")
        and ">>>" in (ROOT / name).read_text()
    ]


@pytest.mark.lengthy
@pytest.mark.quick(
    "dpkernels*",
    "accountants.profile",
    "accountants.tune*",
    "accountants.dominating_pairs.discrete",
    "accountants.calibrate.counts",
    "accountants.comparison",
)
@pytest.mark.parametrize("module", modules_with_examples())
def test_examples_of_docstrings_run(module, own_settings):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        target_path = (ROOT / page).parent / target
        assert any(target_path.with_suffix(end).exists() for end in (target_path.suffix, ".md", ".py")), (
            f"{page}: {target}"
        )


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_public_name_is_in_the_reference(name):
    assert re.search(
        rf"(auto\w+|data|currentmodule):: (\S+\.)?{name.rsplit('.', 1)[-1]}$|:: {name}$", REFERENCE, re.MULTILINE
    )
