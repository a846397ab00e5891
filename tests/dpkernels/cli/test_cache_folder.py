"""Compiled programs between runs of the command: kept in a folder of the user's own, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpkernels import cache_folder
from dpkernels.cache_folder import keep_programs, trim

PLACE = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPKERNELS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def kept(**given: str) -> dict[str, str]:
    environment = dict(given)
    keep_programs(environment)
    return environment


def test_the_folder_is_made_for_the_owner_alone(place: Path) -> None:
    assert kept()[PLACE] == str(place)
    assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o701, 0o720, 0o755, 0o777])
def test_a_folder_that_others_may_enter_is_not_used(place: Path, mode: int) -> None:
    place.mkdir(parents=True)
    place.chmod(mode)
    assert kept() == {}


def test_a_link_a_file_and_no_place_are_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.mkdir()
    place.symlink_to(place.parent.parent)
    assert kept() == {}
    place.unlink()
    place.touch()
    assert kept() == {}
    monkeypatch.setenv("DPKERNELS_CACHE", "")
    assert kept() == {}


def test_another_users_folder_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    assert kept() == {}


@pytest.mark.parametrize(("mode", "used"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
def test_whoever_may_rename_a_folder_above_may_exchange_it(place: Path, mode: int, used: bool) -> None:
    place.parent.mkdir()
    place.parent.chmod(mode)
    assert (PLACE in kept()) == used


def test_another_owner_above_and_a_relative_path_are_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True, mode=0o700)
    if os.getuid() == 0:  # Only root gives a folder away.
        os.chown(place.parent, 12345, -1)
        assert kept() == {}
    monkeypatch.chdir(place.parent.parent)
    monkeypatch.setenv("DPKERNELS_CACHE", "here")
    assert kept() == {}


def test_what_the_user_has_set_stays(place: Path) -> None:
    for given in ({PLACE: "elsewhere"}, {"JAX_ENABLE_COMPILATION_CACHE": "false"}):
        assert kept(**given) == given
    assert not place.exists()


@pytest.mark.thorough
def test_a_second_run_reads_what_the_first_compiled(place: Path) -> None:
    command = [sys.executable, "-c", "from dpkernels.cli import main; main()"]
    options = ["tune", "--epsilon", "1", "--lower", "-3", "--upper", "5"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    printed = []
    for _ in range(2):
        subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=True)
        printed.append({path.name for path in place.glob("*-cache")})
    kept_then, kept_now = printed
    assert kept_then
    assert kept_now == kept_then


def filled(place: Path) -> list[str]:
    """Eight programs of 10 bytes, the last written first, the first read last."""
    place.mkdir(parents=True, mode=0o700)
    for age in range(8):
        (place / f"{age}-cache").write_bytes(b"x" * 10)
        os.utime(place / f"{age}-cache", (1e9 if age == 0 else 1e6 - age, 1e6 - age))
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize(("most", "left"), [(80, 8), (79, 3), (40, 2), (0, 0)])
def test_what_was_unused_for_longest_goes_when_there_is_too_much(place: Path, most: int, left: int) -> None:
    names = filled(place)
    trim(place, most)
    assert sorted(path.name for path in place.iterdir()) == names[:left]
    trim(place / "none", 0)


def test_what_is_not_jaxs_stays(place: Path) -> None:
    filled(place)
    (place / "thesis.bin").write_bytes(b"x" * 100)
    (place / "inner-cache").mkdir()
    os.utime(place / "inner-cache", (1.0, 1.0))
    trim(place, 0)
    assert sorted(path.name for path in place.iterdir()) == ["inner-cache", "thesis.bin"]


def test_the_commands_folder_is_trimmed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(place)
    kept()
    assert len(list(place.iterdir())) == 8
    monkeypatch.setattr(cache_folder, "_MAX_BYTES", 40)
    kept()
    assert len(list(place.iterdir())) == 2
