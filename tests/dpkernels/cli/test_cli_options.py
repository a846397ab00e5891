"""Options of every subcommand, present, absent and odd: a result, or one line that says why not; never a traceback."""

from __future__ import annotations

import io
import re
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from accountants import tune
from dpkernels.cli import compare, main
from dpkernels.cli.commands import dpkernels as command
from dpkernels.cli.options import NumberList

FAST = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
THOROUGH = settings(FAST, max_examples=3_000)

# What is likely to fit together, and what is odd for its kind.
SOUND = {
    "epsilon": ["1"],
    "delta": ["1e-6"],
    "sensitivity": ["1"],
    "lower": ["0"],
    "upper": ["120"],
    "mechanism": ["piecewise", "laplace", "gaussian"],
    "columns": ["age"],
    "by": ["plan"],
    "source": ["in.csv"],
    "reports": ["in.csv", "2"],
    "target": ["out.csv"],
    "file": ["in.csv", "people.ledger"],
    "at_epsilon": ["0.5"],
    "at_delta": ["1e-6"],
    "budget": ["5,1e-5"],
    "ledger": ["people.ledger"],
    "plot": ["out.png"],
    "sidecar": ["out.json"],
    "output": ["page.html"],
}
NUMBERS = ["0", "-0", "-1", "0.5", "2", "1e-300", "1e400", "nan", "-inf", "0x1p3", "1_0", "١", "", " ", "one", "1,2"]
PATHS = [
    "in.csv",
    "none.csv",
    ".",
    "..",
    "",
    "out.txt",
    "deep/out.png",
    "a\x00b",
    "*.csv",
    "[",
    "s3:",
    "ftp://a/b",
    "é",
]
WORDS = ["", "no-such", "--", "-", "age", "plan", "é", "a\nb", "\ud800", "{}", "%s", "*", "x" * 300]
# A second process, a machine elsewhere, and what takes seconds to solve are tested elsewhere.
LEFT_OUT: dict[str, set[str]] = {"engine": {"ray"}}


def texts(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Words for one value of an option or argument."""
    kind, sound = parameter.type, SOUND.get(parameter.name or "", [])
    if isinstance(kind, click.Choice):
        odd = [*(set(map(str, kind.choices)) - LEFT_OUT.get(parameter.name or "", set())), "", "ERROR"]
    elif isinstance(kind, click.Path):
        odd = PATHS
    else:
        odd = WORDS if kind is click.STRING else NUMBERS
    odd = [*odd, "1,2,3", ",", "1,,2"] if isinstance(kind, NumberList) else odd
    strategy = st.sampled_from(sorted(odd))
    return st.one_of(*[st.sampled_from(sound)] * 3, strategy) if sound else strategy


# A sound line of every subcommand; most that is typed is one of these with something else in it, or less.
BOUNDS = ["--lower=0", "--upper=120", "--epsilon=1"]
WHOLE = {
    "account": [["piecewise"], *BOUNDS],
    "certify": ["--mechanism=duchi", *BOUNDS],
    "compare": BOUNDS,
    "estimate": [["out.csv"], "--column=age"],
    "explore": ["--print"],
    "ledger": [["people.ledger"]],
    "mechanisms": [],
    "perturb": [["in.csv"], ["new.csv"], "--column=age", *BOUNDS],
    "release": [["in.csv"], ["new.csv"], "--count", "--epsilon=1"],
    "tune": BOUNDS,
}


@st.composite
def lines(draw: st.DrawFn, name: str) -> list[str]:
    """What is typed after a subcommand: its arguments, and some of its options in any order."""
    params = command.commands[name].params
    given = [word for word in WHOLE[name] if isinstance(word, str)]
    arguments = [word for word in WHOLE[name] if not isinstance(word, str)]
    if draw(st.integers(0, 3)) == 0:
        arguments = [[draw(texts(one))] for one in params if isinstance(one, click.Argument)]
    if given and draw(st.integers(0, 2)) == 0:
        given = draw(st.lists(st.sampled_from(given), max_size=len(given)))
    options = [one for one in params if isinstance(one, click.Option)]
    likely = [one for one in options if one.name in SOUND]
    for option in draw(st.lists(st.sampled_from([*likely, *options]), max_size=4)) if options else []:
        flag = draw(st.sampled_from([*option.opts, *option.secondary_opts]))
        # One word, so that what begins with a dash is a value too.
        given.append(flag if option.is_flag else f"{flag}={draw(texts(option))}")
    if draw(st.integers(0, 9)) == 0:
        given.append(draw(st.sampled_from(["--no-such", "--no-such=1", "-x", "--=", "more"])))
    at = draw(st.integers(0, len(given)))
    given = draw(st.permutations(given))
    return [*given[:at], *(word for one in arguments for word in one), *given[at:]]


def typed(arguments: list[str]) -> tuple[int, str]:
    """The exit code and what is on stderr, in a folder of its own with a file, a release of it and a ledger."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        for name, content in there().items():
            Path(name).write_bytes(content)
        return main(arguments), err.getvalue()


@cache
def there() -> dict[str, bytes]:
    """Files by name."""
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        Path("in.csv").write_text("age,plan\n" + "".join(f"{number},{number % 2}\n" for number in range(30)))
        release = ["perturb", "in.csv", "out.csv", "--column", "age", "--mechanism", "duchi", *BOUNDS]
        assert main([*release, "--ledger", "people.ledger", "--budget", "5"]) == 0
        return {path.name: path.read_bytes() for path in Path().iterdir()}


def is_told(name: str, arguments: list[str]) -> int:
    """The exit code; what is said of a failure is one line."""
    code, said = typed([name, *arguments])
    assert code in range(6)
    errors = [line for line in said.splitlines() if line.startswith("dpkernels: ")]
    assert len(errors) == bool(code), said
    assert not re.search("unexpected [A-Z]|Traceback", said), said
    return code


@pytest.fixture(autouse=True)
def nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches, linear programs and browsers are not what is tested."""

    def refused(*_: Any) -> Any:
        raise ValueError("not searched here")

    monkeypatch.setattr(tune, "best", refused)
    monkeypatch.setattr(compare, "_optima", lambda *_: {})
    monkeypatch.setattr(compare.Comparison, "plot", lambda *_: None)
    monkeypatch.setattr("webbrowser.open", lambda _: True)


def tried(name: str, trials: settings) -> set[int]:
    """Exit codes that were seen."""
    codes = set[int]()
    trials(given(lines(name))(lambda words: codes.add(is_told(name, words))))()
    return codes


@pytest.mark.lengthy
@pytest.mark.quick("account", "certify", "estimate", "ledger", "mechanisms", "perturb", "tune")
@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_combination_gives_a_result_or_one_line(name: str) -> None:
    """And what is typed gets as far as a result, but where that is left out here."""
    assert tried(name, FAST) >= {0, 2} - ({0} if name == "tune" else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(command.commands))
def test_thousands_of_combinations(name: str) -> None:
    tried(name, THOROUGH)


@pytest.mark.parametrize("name", sorted(command.commands))
def test_help_is_one_screen_and_names_every_option(name: str) -> None:
    one = command.commands[name]
    context = click.Context(one, info_name=name, terminal_width=80)
    text = one.get_help(context)
    assert len(text.splitlines()) <= 50
    text = re.sub(r"-\n\s+", "-", text)
    flags = [option.opts[0] for option in one.params if isinstance(option, click.Option)]
    assert [flag for flag in flags if not re.search(rf"{flag}\b", text)] == []


def test_help_all_explains_what_help_names() -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["perturb", "--help-all"]) == 0
    for words in ("Standard deviation of Gaussian noise", "Repeat --column for several columns", "Further attempts"):
        assert words in out.getvalue()
        assert words not in command.commands["perturb"].get_help(click.Context(command.commands["perturb"]))
