"""Imports run one way and without cycles, and no file names a place on the machine that wrote it."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from tracked import ROOT, tracked

import dpkernels

SOURCES = tracked("dpkernels/*.py", "accountants/*.py")
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))

# Nothing else of what is read may be a place on the machine that wrote it.
PLACES = ("/work/", "/tmp/", "/root/", "/home/")


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path):
    """Full names of the modules and of the names that a file imports, wherever in it."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def inside(name, package):
    return name == package or name.startswith(package + ".")


def imports_any(path, *packages):
    return [name for name in imported_names(path) if any(inside(name, package) for package in packages)]


# They stand on both packages. Nothing imports them, except that the command may import the others.
APPLICATIONS = ("dpkernels.cli", "dpkernels.session", "dpkernels.training")


@every_source
def test_imports_run_one_way(path):
    """accountants -> dpkernels; applications have both, and nothing imports an application."""
    name = module_name(path)
    own = [application for application in APPLICATIONS if inside(name, application)]
    if own != ["dpkernels.cli"]:
        assert imports_any(path, *(application for application in APPLICATIONS if application not in own)) == []
    if inside(name, "dpkernels") and not own:
        assert imports_any(path, "accountants") == []


@every_source
def test_published_formulas_are_for_comparison(path):
    """Only the command, benchmarks and notebooks use what the sources published; the accountants do not."""
    name = module_name(path)
    if not inside(name, "accountants.published") and not inside(name, "dpkernels.cli"):
        assert imports_any(path, "accountants.published") == []


MODULES = {module_name(path): path for path in SOURCES}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@cache
def imports():
    """Of every file the files that it imports."""
    return {name: {home(target) for target in imported_names(path)} - {name, None} for name, path in MODULES.items()}


def home(target):
    """The file that an imported name is of."""
    return target if target in MODULES else (parent if (parent := target.rpartition(".")[0]) in MODULES else None)


def child(package, name):
    """Which file or folder of a package a module is in."""
    return name[len(package) + 1 :].partition(".")[0] if name.startswith(package + ".") else None


def circles(graph):
    """A circle of a graph, or nothing."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def test_no_circle_of_files():
    assert circles(imports()) == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_circle_of_what_is_in_a_package(package):
    """Files and folders of one folder: what a folder imports, its files import."""
    graph = {}
    for name, targets in imports().items():
        if here := child(package, name):
            graph.setdefault(here, set()).update({child(package, target) for target in targets} - {here, None})
    assert circles(graph) == []


def test_a_circle_is_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert imports()["dpkernels.exact.registry"] >= {"dpkernels.exact.sampler", "dpkernels.exact.noise.sampler"}


# Imported where it is used: what is optional, what takes long to load, and what only some systems
# or versions have.
LAZY = (
    "accountants.interop.dp_accounting",  # which is about dp_accounting
    "click",
    "cryptography",
    "dp_accounting",
    "dpkernels.release.arrow",  # which is about pyarrow
    "fcntl",
    "jaxtyping",  # which type checkers read
    "jax",
    "matplotlib",
    "pandas",
    "polars",
    "pyarrow",
    "ray",
    "rich",
    "scipy",
)


@every_source
def test_imports_are_at_the_top(path):
    """The command imports a subcommand's work when it runs, dpkernels its public names when they are asked for."""
    name, tree = module_name(path), ast.parse(path.read_text())
    if name == "dpkernels" or inside(name, "dpkernels.cli"):
        return
    late = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) and node not in tree.body]
    names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in late]
    assert [imports for imports in names if not any(inside(imports, lazy) for lazy in LAZY)] == []
    body = [node for node in tree.body if not isinstance(node, ast.Try)]
    first = next((i for i, node in enumerate(body[1:], 1) if not isinstance(node, ast.Import | ast.ImportFrom)), 0)
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) for node in body[first:] if first)


LOWER = ("dpkernels.mechanisms", "dpkernels.distributions", "dpkernels.random", "dpkernels.checks")
UPPER = ("dpkernels.exact", "dpkernels.release")


@every_source
def test_mechanisms_know_nothing_of_their_release(path):
    if any(inside(module_name(path), package) for package in LOWER):
        assert imports_any(path, *UPPER) == []


def test_numerics_imports_nothing_of_ours_but_jax():
    modules = {home(name) for name in imports_any(ROOT / "dpkernels" / "numerics.py", "dpkernels", "accountants")}
    assert modules <= {"dpkernels.jax_on_use", "dpkernels.pytrees"}


JAX = "dpkernels.jax_on_use"
# The command imports these only where it has imported JAX.
WITH_JAX = ("dpkernels.training", "dpkernels.session", "dpkernels.release.traced", "dpkernels.release.ray_data")


@every_source
def test_jax_is_imported_in_one_way(path):
    """A module that imports JAX itself takes a second from every release of the command that imports the module."""
    name, tree = module_name(path), ast.parse(path.read_text())
    if inside(name, "dpkernels") and name != JAX and not any(inside(name, package) for package in WITH_JAX):
        names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in tree.body
                 if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
        assert [imports for imports in names if inside(str(imports), "jax")] == []


def test_imports_are_seen():
    """The scan itself: it finds what is known to be there, relative imports too."""
    assert imports_any(ROOT / "dpkernels" / "release" / "perturb.py", "dpkernels.release.engines")
    assert any(imports_any(path, "accountants") for path in SOURCES)


def modules():
    """Every module of both packages but the command line, imported."""
    for package in ("dpkernels", "accountants"):
        root = importlib.import_module(package)
        names = [info.name for info in pkgutil.walk_packages(root.__path__, package + ".")]
        for name in (package, *names):
            if not inside(name, "dpkernels.cli") and not name.endswith("__main__"):
                yield importlib.import_module(name)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_does_not_start_jax():
    code = "import sys, dpkernels; dir(dpkernels); print({'jax', 'numpy', 'scipy'} & set(sys.modules))"
    assert run(code) == "set()"


def test_importing_either_package_changes_no_flag_of_jax():
    code = """
import jax
before = dict(jax.config.values)
import dpkernels, accountants
for name in dpkernels.__all__: getattr(dpkernels, name)
print(before == dict(jax.config.values))
"""
    assert run(code) == "True"


@pytest.mark.parametrize("name", dpkernels.__all__)
def test_public_names_are_what_they_say(name):
    """Importing submodules must not put a module in the place of a public function."""
    assert list(modules())
    assert not inspect.ismodule(getattr(dpkernels, name))
    assert name in dir(dpkernels)


def test_submodules_do_not_hide_perturb():
    code = """
import dpkernels.release.perturb, dpkernels.estimation.intervals, dpkernels.release, dpkernels.cli
print(type(dpkernels.perturb).__name__, type(dpkernels.estimate_mean).__name__)
"""
    assert run(code) == "function function"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="laplace_noise_of_my_own"):
        dpkernels.laplace_noise_of_my_own  # noqa: B018


@pytest.mark.parametrize(
    "name", ["README.md", "LICENSE", "pyproject.toml", "dpkernels/py.typed", "accountants/py.typed"]
)
def test_the_usual_files_exist(name):
    assert (ROOT / name).is_file()


def test_the_top_level_is_what_was_agreed():
    folders = {path.relative_to(ROOT).parts[0] for path in tracked("*.py")} - {"conftest.py"}
    assert folders == {"dpkernels", "accountants", "benchmarks", "tests", "notebooks", "docs"}


def tracked_texts():
    """The repository's text files but the tests."""
    for path in tracked():
        if not path.is_relative_to(ROOT / "tests"):
            try:
                yield str(path.relative_to(ROOT)), path.read_text()
            except UnicodeDecodeError:
                continue


def test_no_file_names_a_place_on_this_machine():
    mentions = [(name, path_prefix) for name, text in tracked_texts() for path_prefix in PLACES if path_prefix in text]
    assert mentions == []


# Tests


def test_quick_slices_are_some_of_their_tests_and_in_every_file(slices_that_are_wrong):
    assert slices_that_are_wrong == []


def test_the_map_of_the_code_names_files_that_exist():
    """A name without a folder, in a cell of the table, is in the folder of the name before it."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    for row in rows[1:]:
        folder = ROOT
        for name in re.findall(r"`([\w/]+[./]\w*)`", row):
            target = ROOT / name if "/" in name else folder / name
            assert target.exists(), name
            folder = target if name.endswith("/") else target.parent
