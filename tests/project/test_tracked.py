"""Tests of the tree look at the project's files alone: those that git tracks, or those of a source archive."""

import subprocess

import pytest
from tracked import ROOT, tracked


@pytest.mark.parametrize("kind", ["clone", "archive"])
def test_an_environment_in_the_folder_is_no_part_of_the_project(kind, tmp_path):
    files = ["README.md", "dpkernels/__init__.py", "dpkernels/cli/page.js", "docs/index.md"]
    others = ["v/lib/module.py", "v/README.md", *(["dpkernels/notes.py"] if kind == "clone" else [])]
    for name in files + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    if kind == "clone":
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
        subprocess.run(["git", "add", *files], cwd=tmp_path, check=True)
    assert [path.relative_to(tmp_path).as_posix() for path in tracked(root=tmp_path)] == sorted(files)
    assert [path.name for path in tracked("dpkernels/*.py", root=tmp_path)] == ["__init__.py"]


def test_this_file_is_found():
    assert ROOT / "tests/project/test_structure.py" in tracked("tests/*.py")
