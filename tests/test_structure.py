"""The packages' shape: imports run one way, classes are abstract or final, everything public is documented."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpkernels

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for package in ("dpkernels", "accountants") for path in (ROOT / package).rglob("*.py"))
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))

# Nothing else of what is read may be a place on the machine that wrote it.
PLACES = ("/work/", "/tmp/", "/root/", "/home/")


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
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
    return [name for name in imports_of(path) if any(inside(name, package) for package in packages)]


@every_source
def test_imports_run_one_way(path):
    """accountants -> dpkernels; only the command line has both; nothing imports the command line."""
    name = module_name(path)
    if not inside(name, "dpkernels.cli"):
        assert imports_any(path, "dpkernels.cli") == []
        if inside(name, "dpkernels"):
            assert imports_any(path, "accountants") == []


LOWER = ("dpkernels.mechanisms", "dpkernels.distributions", "dpkernels.random", "dpkernels.checks")
UPPER = ("dpkernels.exact", "dpkernels.release")


@every_source
def test_mechanisms_know_nothing_of_their_release(path):
    if any(inside(module_name(path), package) for package in LOWER):
        assert imports_any(path, *UPPER) == []


def test_numerics_imports_nothing_of_ours():
    assert imports_any(ROOT / "dpkernels" / "numerics.py", "dpkernels", "accountants") == []


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


def classes():
    """Every class defined in them."""
    found = {
        item: None
        for module in modules()
        for item in vars(module).values()
        if inspect.isclass(item) and item.__module__ == module.__name__
    }
    return sorted(found, key=lambda item: (item.__module__, item.__qualname__))


CLASSES = classes()
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


def ours(cls):
    return [base for base in cls.__mro__[1:] if base.__module__.partition(".")[0] in ("dpkernels", "accountants")]


def is_method(item):
    return inspect.isroutine(item) or isinstance(item, property | classmethod | staticmethod)


@every_class
def test_no_concrete_method_is_overridden(cls):
    for base in ours(cls):
        for name, item in vars(base).items():
            if is_method(item) and not name.startswith("__") and name in vars(cls):
                assert getattr(item, "__isabstractmethod__", False), f"{base.__qualname__}.{name} is concrete"


@every_class
def test_a_class_is_abstract_or_final(cls):
    """Whatever has subclasses cannot be made; exceptions apart."""
    heirs = [heir for heir in CLASSES if cls in ours(heir)]
    if heirs and not issubclass(cls, BaseException):
        assert inspect.isabstract(cls), f"{cls.__qualname__} has {heirs} and no abstract method"


@every_source
def test_everything_public_is_documented(path):
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    if path.read_text().strip():
        assert ast.get_docstring(tree), "the module has no docstring"


def is_declared(cls, name):
    """Documented where a base declares it: as an abstract method, or as an attribute in the class's docstring."""
    return any(name in vars(base).get("__annotations__", ()) for base in ours(cls))


INTERFACES = [cls for cls in CLASSES if inspect.isabstract(cls)]
PUBLIC = [cls for cls in CLASSES if cls.__name__ in dpkernels.__all__]


@pytest.mark.parametrize("cls", INTERFACES + PUBLIC, ids=lambda cls: cls.__qualname__)
def test_every_method_of_interfaces_and_public_classes_is_documented(cls):
    """By itself or by what it implements."""
    names = [name for name, item in vars(cls).items() if is_method(item) and not name.startswith("_")]
    assert [name for name in names if not inspect.getdoc(getattr(cls, name)) and not is_declared(cls, name)] == []


def test_the_class_rules_have_something_to_rule():
    assert len(INTERFACES) >= 4
    assert all(any(cls in ours(heir) for heir in CLASSES) for cls in INTERFACES)


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
import dpkernels.release.perturb, dpkernels.release.estimate, dpkernels.release, dpkernels.cli
print(type(dpkernels.perturb).__name__, type(dpkernels.estimate_mean).__name__)
"""
    assert run(code) == "function function"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'laplace_noise_of_my_own'"):
        dpkernels.laplace_noise_of_my_own  # noqa: B018


@pytest.mark.parametrize(
    "name", ["README.md", "LICENSE", "pyproject.toml", "dpkernels/py.typed", "accountants/py.typed"]
)
def test_the_usual_files_exist(name):
    assert (ROOT / name).is_file()


def test_the_top_level_is_what_was_agreed():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    agreed = {"dpkernels", "accountants", "benchmarks", "tests", "notebooks"}
    assert {name for name in folders if not name.startswith(".")} <= agreed | {"build", "shared"}


def tracked_texts():
    """The repository's text files but the tests."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not name.startswith("tests/"):
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def test_no_file_names_a_place_on_this_machine():
    found = [(name, place) for name, text in tracked_texts() for place in PLACES if place in text]
    assert found == []
