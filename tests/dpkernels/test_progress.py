"""The bar: shown on a terminal where rich is, never a reason to fail."""

import io
import sys

import pytest

from dpkernels import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stderr", [None, io.StringIO()])
def test_nothing_is_shown_where_there_is_no_terminal(stderr, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "find_spec", lambda name: pytest.fail("looked for rich"))
    with progress.bar(10, None, True) as moved:
        moved(advance=1)


def test_a_terminal_without_rich_gets_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with progress.bar(10, None, True) as moved:
        moved(advance=1)
    assert sys.stderr.getvalue() == ""


def test_a_terminal_with_rich_gets_one(monkeypatch):
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with progress.bar(10, True, False) as moved:
        moved(completed=10)
    assert "perturbing" in shown.getvalue()
