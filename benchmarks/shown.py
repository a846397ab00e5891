"""Common parts of all benchmarks: options, the description of the machine, and tables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax


def make_parser(description: str | None, quick: str = "a smoke run") -> ArgumentParser:
    """The options of a benchmark, of which ``--quick`` is one."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(*peers: str) -> str:
    """Describe the machine, the versions of the packages and installed peers, and the load at the start."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "cryptography", *peers)
    distributions = {name: list(importlib.metadata.distributions(name=name)) for name in packages}
    versions = ", ".join(f"{name} {copies[0].version}" for name, copies in distributions.items() if copies)
    where = f"{_processor()}, {os.cpu_count()} cores, JAX on {jax.devices()[0].device_kind}"
    return f"{where}, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
