"""No true value of a protected column is in any file of a release, in any encoding: the search finds planted ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from leaky_files import RELEASES, leaks

from dpkernels.cli import main
from dpkernels.release import arrow, containers

FILES = 500
QUICK = range(12)


@pytest.fixture
def released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[int], tuple[int, set[str]]]:
    """The number of files of a release, and the true values that are in them or on the terminal; by a known key."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))

    def call(*arguments: str) -> None:
        code = main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        assert code == 0, (arguments, printed.err)
        Path("out/terminal").write_text(printed.out + printed.err)

    def release(number: int) -> tuple[int, set[str]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        found = leaks(number, call)
        shutil.rmtree(folder)
        return found

    return release


def slices() -> list[Any]:
    rest = range(len(QUICK), FILES)
    quick = [pytest.param([number], id=f"file {number}") for number in QUICK]
    return quick + [pytest.param(rest[at::4], id=f"rest {at}") for at in range(4)]


@pytest.mark.quick("file *")
@pytest.mark.parametrize("numbers", slices())
def test_no_true_value_is_in_a_release(released: Any, numbers: Sequence[int]) -> None:
    found = {number: released(number) for number in numbers}
    print(f"{len(numbers)} inputs, {sum(files for files, _ in found.values())} files released")
    faults = {number: (RELEASES[number % len(RELEASES)].__name__, true) for number, (_, true) in found.items() if true}
    assert not faults


def identity(x: Any) -> Any:
    return x


# Each with the release in which its work is copied.
PLANTED = {
    "metadata of Parquet files": (arrow, "released_schema", "release_parquet"),
    "metadata of datasets": (arrow, "released_schema", "release_dataset"),
    "metadata of Arrow tables": (arrow, "released_schema", "release_arrow"),
    "dictionaries of Arrow tables": (arrow, "without_unused", "release_arrow"),
    "memory of Arrow tables": (arrow, "visible", "release_arrow"),
    "memory and categories of pandas tables": (containers, "_visible_array", "release_pandas"),
    "levels of the index of pandas tables": (containers, "visible_index", "release_pandas"),
    "memory of polars tables": (containers, "_visible_polars", "release_polars"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_search_finds_what_is_copied(released: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    module, name, release = PLANTED[fault]
    monkeypatch.setattr(module, name, identity)
    assert any(released(number)[1] for number in range(60) if RELEASES[number % len(RELEASES)].__name__ == release)
