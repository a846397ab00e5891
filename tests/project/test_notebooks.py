"""Every notebook runs from clean, in its own folder."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

# A step of its own: every notebook starts a kernel and compiles what it shows.
pytestmark = pytest.mark.notebook

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.py"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(source):
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(source.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
