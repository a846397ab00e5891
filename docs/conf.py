"""Configuration of the site, which ``pip install '.[docs]' && sphinx-build -W docs site`` builds."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import dpkernels
from dpkernels.cli.explorer.page import write

os.environ.update(JAX_PLATFORMS="cpu", MPLBACKEND="module://matplotlib_inline.backend_inline")

_explorer = tempfile.mkdtemp()
write(Path(_explorer, "explorer.html"))

project = "dpkernels"
version = release = dpkernels.__version__
copyright = "the dpkernels authors, Apache-2.0"  # noqa: A001
html_theme = "furo"
html_title = "dpkernels"
html_copy_source = False
html_static_path = ["_static"]
html_js_files = ["accessible.js"]
html_css_files = ["site.css"]
html_extra_path = [_explorer]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline", "sphinx_click"]

# Pages are Markdown; notebooks are percent scripts, run once and kept beside the site.
exclude_patterns = ["conf.py", "notebooks/data", "notebooks/README.md"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".py": "myst-nb"}
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

# Docstrings name types in words; signatures are shown as they are.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# Invalid HTML of the theme, of pandas' tables and of our markers, and its replacements.
_INVALID = {
    r'class="caption" role="heading"(?! aria-level)': r'class="caption" role="heading" aria-level="2"',
    r"<style scoped>.*?</style>": "",
    r' (border="1"|halign="\w+"|valign="\w+")(?=[ >])': "",
    r"<!-- (table \d|end).*?-->": "",
}
_SECTION = re.compile(r"(Args|Attributes|Example|Raises|Returns|Yields):$")


def _plain(line: str) -> str:
    """Escape marks of reStructuredText outside double backquotes: |z| is no substitution, and * no emphasis."""
    parts = re.split(r"(``.*?``)", line)
    line = "".join(part if part.startswith("``") else re.sub(r"([|*])", r"\\\1", part) for part in parts)
    return re.sub(r"(: [A-Za-z])\.(?=\s|$)", r"\1\\.", line)  # "sensitivity: D." begins no list.


def _formulas_stand_alone(lines: list[str]) -> list[str]:
    """Mark indented lines before the first section, which are formulas, as literal blocks."""
    found: list[str] = []
    for number, line in enumerate(lines):
        if _SECTION.match(line):
            return found + [text if ">>>" in text else _plain(text) for text in lines[number:]]
        starts = line.startswith("    ") and number and not lines[number - 1]
        found += ["::", ""] if starts else []
        found.append(line if line.startswith("    ") else _plain(line))
    return found


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = _formulas_stand_alone(lines)
    for place in vars(obj).get("proofs", ()) if hasattr(obj, "__dict__") else ():
        page, _, heading = place.partition("#")
        lines += ["", f"`Proof <../proofs/{page}.html#{heading}>`__."]


def _valid(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    for name in ("furo_navigation_tree", "body"):
        for wrong, right in _INVALID.items():
            if name in context:
                context[name] = re.sub(wrong, right, context[name], flags=re.DOTALL)


def _help(app: Any, context: Any, lines: list[str]) -> None:
    lines[:] = [_plain(line) for line in lines]


def setup(app: Any) -> None:
    """Connect the handlers; that of docstrings runs before napoleon."""
    app.connect("autodoc-process-docstring", _docstring, priority=100)
    app.connect("html-page-context", _valid, priority=900)  # After the theme's.
    for part in ("description", "usage", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", _help)
