"""``--config`` and ``--save-config``: options of a command in a TOML file, for runs that are repeated.

A file has a table for each command, whose keys are the names of its options without dashes in front:

    [perturb]
    column = ["age", "income"]
    lower = [0, 0]
    upper = [120, 1e6]
    epsilon = 1
    ledger = "people.ledger"

A list gives an option several times. Options of the command line override those of the file. A path is relative to the
folder of the file, so that a run does not depend on the current folder. Otherwise, a run with a ``budget`` could create
a second ledger.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType

import click

from dpkernels.cli.errors import error_text
from dpkernels.cli.options import INPUT, OUTPUT, CategoryFile, command_line_options, rare_options, together
from dpkernels.cli.terminal import answer_in_json

# Options of the file itself, and those that one run alone is meant to have.
_NOT_KEPT = ("config", "save_config", "force", "check", "resume")
_NOT_SAVED = ("budget",)  # of a new ledger: if the ledger were gone, the next run would make another one


def _key(option: click.Parameter) -> str:
    return option.opts[0].removeprefix("--")


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options that a file may have, by key."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {_key(option): option for option in options if option.name not in _NOT_KEPT and option.expose_value}


def _read(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=str)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--config: {path} cannot be read as TOML: {error_text(error)}") from error
    commands = {} if context.parent is None else getattr(context.parent.command, "commands", {})
    if unknown := sorted(tables.keys() - commands.keys()):
        raise click.UsageError(f"--config: {path}: {unknown[0]!r} is no command; options stand below [perturb]")
    table, options = tables.get(str(context.info_name), {}), _options(context.command)
    if not isinstance(table, dict):
        raise click.UsageError(f"--config: {path}: {context.info_name!r} must be a table of options")
    if unknown := sorted(table.keys() - options.keys()):
        raise click.UsageError(f"--config: {path}: {unknown[0]!r} is no option of {context.info_name}")
    context.default_map = {
        str(options[key].name): _in_folder(options[key], _value(options[key], value, path), path.absolute().parent)
        for key, value in table.items()
    }
    if context.default_map.get("as_json"):
        answer_in_json()


def _in_folder(option: click.Option, value: object, folder: Path) -> object:
    """Return a value with paths as they are from a folder."""
    if not isinstance(option.type, click.Path | CategoryFile):
        return value
    return [str(folder / path) for path in value] if isinstance(value, list) else str(folder / str(value))


def _value(option: click.Option, value: object, path: Path) -> object:
    """Return a value of a file as click takes it: texts, which it converts, and booleans for flags."""
    if isinstance(value, list) and not option.multiple:
        raise click.UsageError(f"--config: {path}: {_key(option)!r} is a list; it is given once")
    values = value if isinstance(value, list) else [value]
    is_right = all(isinstance(item, bool) if option.is_flag else type(item) in (str, int, date) for item in values)
    if not is_right:
        allowed = "true or false" if option.is_flag else "a string, a number or a date"
        raise click.UsageError(f"--config: {path}: {_key(option)!r} must be {allowed}")
    texts = [item if option.is_flag else str(item) for item in values]
    return texts if option.multiple else texts[0]


def _check_new(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and (path.exists() or not path.parent.is_dir()):
        raise click.UsageError(f"--save-config: {path} must be a new file in an existing folder")
    return path


_CONFIG = "Read options from this TOML file; those of the command line replace its own."
_SAVE = "If the run succeeds, write its options to this new TOML file."
_option = rare_options("Course of the run")
config_options = together(
    _option("--config", type=INPUT, metavar="FILE", is_eager=True, expose_value=False, callback=_read, help=_CONFIG),
    _option("--save-config", type=OUTPUT, metavar="FILE", callback=_check_new, help=_SAVE),
)


def save(path: Path, context: click.Context, usual: Mapping[str, object] = MappingProxyType({})) -> None:
    """Write the options of a command, those of ``--config`` included, to a new file; OSError if it exists.

    ``usual`` are options that the environment gave: a scheduler that runs the file later has another environment.
    """
    options = _options(context.command)
    settings = {**usual, **(context.default_map or {}), **command_line_options(context)}
    lines = [
        f"{key} = {_toml(_in_folder(option, settings[option.name], Path.cwd()))}\n"
        for key, option in options.items()
        if option.name in settings and option.name not in _NOT_SAVED
    ]
    with path.open("x", encoding="utf-8") as file:
        file.write(f"[{context.info_name}]\n{''.join(lines)}")


def _toml(value: object) -> str:
    """Return a text, a boolean or a list of them in TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
