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
        given = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):
        return None
    return [
        f"{one.kind.name} {one.name}{'' if one.default is one.empty else '=' + plain(one.default)}" for one in given
    ]


def plain(value):
    return repr(value) if isinstance(value, str | int | float | bool | tuple | None) else type(value).__name__


def commands(group, path=("dpkernels",)):
    yield " ".join(path), group
    for name, one in getattr(group, "commands", {}).items():
        yield from commands(one, (*path, name))


def options(one):
    return sorted(" ".join(p.opts + p.secondary_opts) if isinstance(p, click.Option) else p.name for p in one.params)


def public():
    """All that there is now."""
    names = {}
    modules = "dpkernels", "accountants", "accountants.tune", "accountants.calibrate", "accountants.closed_forms"
    modules += "accountants.recycling", "accountants.published.recycling", "dpkernels.session", "dpkernels.training"
    for module in modules:
        found = importlib.import_module(module)
        own = [name for name, item in vars(found).items() if getattr(item, "__module__", "") == module]
        for name in getattr(found, "__all__", None) or [name for name in own if not name.startswith("_")]:
            names[f"{module}.{name}"] = parameters(getattr(found, name))
    return {"names": names, "options": {path: options(one) for path, one in commands(command)}}


NOW = public()


@pytest.mark.parametrize("name", LISTED["names"])
def test_a_public_name_takes_what_it_took(name):
    now, then = NOW["names"][name], LISTED["names"][name]
    if then is None:
        assert now is None
        return
    assert now[: len(then)] == then or [one for one in now if one in then] == then
    assert all("=" in one or one.startswith("VAR") for one in now if one not in then), "a new parameter has a default"


@pytest.mark.parametrize("path", LISTED["options"])
def test_a_subcommand_has_the_options_it_had(path):
    assert set(LISTED["options"][path]) <= set(NOW["options"][path])


def test_what_is_new_is_listed():
    """Add it to public_names.json: from then on it stays."""
    for kind in ("names", "options"):
        assert set(NOW[kind]) == set(LISTED[kind])
