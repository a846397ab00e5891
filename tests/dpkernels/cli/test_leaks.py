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
from dpkernels.release import arrow

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
    slow = [pytest.param(rest[at::4], id=f"slow {at}", marks=pytest.mark.slow) for at in range(4)]
    return [*(pytest.param([number], id=f"file {number}") for number in QUICK), *slow]


@pytest.mark.parametrize("numbers", slices())
def test_no_true_value_is_in_a_release(released: Any, numbers: Sequence[int]) -> None:
    counts, faults = 0, {}
    for number in numbers:
        files, found = released(number)
        counts += files
        if found:
            faults[number, RELEASES[number % len(RELEASES)].__name__] = sorted(found)[:3]
    print(f"{len(numbers)} inputs, {counts} files released")
    assert not faults


def copied(schema: Any) -> Any:
    return schema


PLANTED = {"metadata": "released_schema", "dictionaries": "without_unused", "memory": "visible"}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_search_finds_what_is_copied(released: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Planted: metadata, unused values of dictionaries, or memory under nulls and around slices are copied."""
    monkeypatch.setattr(arrow, PLANTED[fault], copied)
    assert any(released(number)[1] for number in QUICK)
