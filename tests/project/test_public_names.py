"""Public names, parameters and the command's options: what others' programs use stays as it was."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import click
import pytest

from dpkernels.cli.commands import dpkernels as command

# Written before the files were moved to their packages; only ever added to.
LISTED = json.loads((Path(__file__).parents[1] / "support" / "public_names.json").read_text())


def parameters(item):
    """Names, kinds and defaults, in order; None of what takes none."""
    try:
        signature = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):
        return None
    defaults = (
        "" if parameter.default is parameter.empty else "=" + plain(parameter.default) for parameter in signature
    )
    return [f"{p.kind.name} {p.name}{default}" for p, default in zip(signature, defaults, strict=True)]


def plain(value):
    return repr(value) if isinstance(value, str | int | float | bool | tuple | None) else type(value).__name__


def commands(group, path=("dpkernels",)):
    yield " ".join(path), group
    for name, subcommand in getattr(group, "commands", {}).items():
        yield from commands(subcommand, (*path, name))


def options(subcommand):
    return sorted(
        " ".join(p.opts + p.secondary_opts) if isinstance(p, click.Option) else p.name for p in subcommand.params
    )


def public():
    """All that there is now."""
    names = {}
    modules = "dpkernels", "accountants", "accountants.tune", "accountants.calibrate", "accountants.closed_forms"
    modules += "accountants.recycling", "accountants.published.recycling", "dpkernels.session", "dpkernels.training"
    for module in modules:
        loaded = importlib.import_module(module)
        own_names = [name for name, item in vars(loaded).items() if getattr(item, "__module__", "") == module]
        for name in getattr(loaded, "__all__", None) or [name for name in own_names if not name.startswith("_")]:
            names[f"{module}.{name}"] = parameters(getattr(loaded, name))
    return {"names": names, "options": {path: options(subcommand) for path, subcommand in commands(command)}}


NOW = public()


@pytest.mark.parametrize("name", LISTED["names"])
def test_a_public_name_takes_what_it_took(name):
    now, then = NOW["names"][name], LISTED["names"][name]
    if then is None:
        assert now is None
        return
    assert now[: len(then)] == then or [parameter for parameter in now if parameter in then] == then
    assert all("=" in parameter or parameter.startswith("VAR") for parameter in now if parameter not in then), (
        "a new parameter has a default"
    )


@pytest.mark.parametrize("path", LISTED["options"])
def test_a_subcommand_has_the_options_it_had(path):
    assert set(LISTED["options"][path]) <= set(NOW["options"][path])


def test_what_is_new_is_listed():
    """Add it to public_names.json: from then on it stays."""
    for section in ("names", "options"):
        assert set(NOW[section]) == set(LISTED[section])
