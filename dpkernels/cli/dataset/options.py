"""The options that say where a dataset is and what runs its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.mechanisms.options import Command

_WILD = re.compile(r"[*?\[]")

_OPTIONS: dict[str, dict[str, Any]] = {
    "--engine": {
        "type": click.Choice(["local", "ray"]),
        "help": "What runs the parts of a dataset: threads of this process (default), or tasks of a Ray cluster.",
    },
    "--address": {
        "metavar": "ADDRESS",
        "help": "Of the Ray cluster, auto for that of this machine; by default one that ends with the command.",
    },
    "--task-cpus": {"type": click.FloatRange(0, min_open=True), "help": "CPUs of a task of Ray, 1 by default."},
    "--task-gpus": {"type": click.IntRange(0, 1), "help": "GPUs of a task of Ray, 0 by default."},
    "--task-resource": {"metavar": "NAME=N", "multiple": True, "help": "Another resource of a task of Ray."},
    "--retries": {"type": click.IntRange(0), "help": "How often Ray tries a part again, 10 by default."},
}

ENGINE = [name[2:].replace("-", "_") for name in _OPTIONS]


class Input(click.Path):
    """A file; or, as it was given, a folder, a pattern or an URI."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("an empty name; . is the current folder", param, ctx)
        return value if is_dataset(str(value)) else super().convert(value, param, ctx)


class Target(click.Path):
    """A file or folder; an URI, as it was given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("an empty name", param, ctx)
        return value if "://" in str(value) else super().convert(value, param, ctx)


def is_dataset(text: str) -> bool:
    """Whether an argument names a folder, an URI or, where no file has this name, a pattern."""
    return (
        "://" in text or (bool(text) and Path(text).is_dir()) or (bool(_WILD.search(text)) and not Path(text).exists())
    )


def engine_options(command: Command) -> Command:
    """Give a command what says how a dataset's parts are run."""
    for name, settings in reversed(_OPTIONS.items()):
        command = click.option(name, **settings)(command)
    return command


def engine(given: Mapping[str, Any]) -> Any:
    """The engine that the options describe.

    Args:
        given: the values of the options by name; None or empty where one was not given.

    Raises:
        click.UsageError: an option that the engine does not have, or a wrong one.
    """
    wanted = {name: value for name, value in given.items() if name != "engine" and value not in (None, ())}
    if given["engine"] != "ray":
        if wanted:
            raise click.UsageError(f"--{next(iter(wanted)).replace('_', '-')}: is for --engine ray")
        from dpkernels.cli.dataset.local import LocalEngine

        return LocalEngine()
    from dpkernels.cli.dataset.on_ray import RayEngine

    address = wanted.get("address", "")
    if address.startswith("ray://"):
        raise click.UsageError(
            "--address: behind ray:// another process would be the driver and hold the key; run this command on a "
            "machine of the cluster, with --address auto"
        )
    resources = dict(_resource(text) for text in wanted.get("task_resource", ()))
    return RayEngine(
        address, wanted.get("task_cpus", 1.0), wanted.get("task_gpus", 0), resources, wanted.get("retries", 10)
    )


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        if name and float(amount) > 0:
            return name, float(amount)
    except ValueError:
        pass
    raise click.UsageError(f"--task-resource: {text!r} is not NAME=N, N positive")
