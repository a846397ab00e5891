"""Run the notebooks and save one small picture of each, for notebooks/README.md.

pip install '.[notebooks]'
python -m benchmarks.gallery                 # all notebooks, about five minutes
python -m benchmarks.gallery 02 05           # those whose names begin so
"""

from __future__ import annotations

import base64
import io
import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS, PICTURES = ROOT / "notebooks", ROOT / "docs/_static/gallery"
WIDTH = 480
# Which of its pictures stands for a notebook, counted from 1; the first one where it is not named here.
CHOSEN = {"01": 2, "02": 2, "04": 2, "05": 4, "07": 4, "08": 1, "10": 2}


def pictures(path: Path) -> list[bytes]:
    """Run a notebook and return its pictures as PNG files, in order."""
    import jupytext  # type: ignore[import-untyped]
    import nbclient

    notebook: Any = jupytext.read(path)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [base64.b64decode(data) for output in outputs if (data := output.get("data", {}).get("image/png"))]


def save_small(picture: bytes, target: Path) -> None:
    """Save a picture at the width of the gallery."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        # Median cut, the default, merges the colours of thin lines.
        small.quantize(128, method=Image.Quantize.FASTOCTREE).save(target, optimize=True)


def main() -> None:
    """Save the chosen pictures."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="first letters of notebooks; all by default")
    selected = tuple(parser.parse_args().names) or ("",)
    os.environ.update(JAX_PLATFORMS="cpu", MPLBACKEND="module://matplotlib_inline.backend_inline")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("[0-9]*.py")):
        if path.name.startswith(selected):
            images = pictures(path)
            save_small(images[CHOSEN.get(path.name[:2], 1) - 1], PICTURES / f"{path.stem}.png")
            print(f"{path.stem}: {len(images)} pictures")


if __name__ == "__main__":
    main()
