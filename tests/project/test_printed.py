"""Every printed number has its computation, and differs from it by no more than is said."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import literature_laplace, printed
from benchmarks.sources import Table, tables

ROOT = Path(__file__).parents[2]

# The largest relative difference of any number of a table; 1e9 where the source's value is of another thing.
LARGEST = {
    "Zhang 2024, Table II, H1": 0.20,
    "Zhang 2024, Table II, H2": 0.008,
    "Zhang 2024, Table II, Variance": 0.42,
    "Zhang 2024, Table III, bias rate (%)": 0.11,
    "Zhang 2024, section 5.3, average variance of Table II": 0.24,
    "Zhang 2024, section 5.3, error below other noise (%)": 0.062,
    "Zhang 2024, section 5.3, MSE below truncated noise at one budget (%)": 1.6,
    "Zhang 2024, section 5.3, one shape below another on the mode (%)": 1.0,
    "Zhang 2024, section 5.3, RE descent rate": 0.024,
    "Zhang 2024, section 5.3, average descent": 0.034,
    "Zhang 2024, section 5.3, largest accuracy loss of the count": 0.17,
    "Zhang 2024, section 5.3, average accuracy loss of outliers": 0.061,
    "Mugunthan 2020, appendix table B": 0.037,
    "Mugunthan 2020, appendix table C": 0.005,
    "Jiang 2024, Table I, eps of 1,000 reports": 0.72,
    "Jiang 2024, Table I, running time": 1e9,
    "Jiang 2024, text on figure 4: eps for an acceptance": 0.038,
    "Ma 2021, eq. 41: constants of the least variance": 1e-4,
    "Ma 2021, example of Theorem 9: an eta better than Duchi's mechanism": 0.014,
    "Ma 2021, Theorem 7: type I better than type II below": 2e-5,
}
QUICK = [name for name, one in printed.REPRODUCTIONS.items() if one.quick]


def test_every_printed_table_is_computed():
    assert set(printed.REPRODUCTIONS) == set(tables()) == set(LARGEST)


def test_every_number_of_the_file_is_in_a_table():
    entries = json.loads((ROOT / "benchmarks" / "printed.json").read_text()).values()
    total = sum(len(row) - len(entry["settings"]) for entry in entries for row in entry["rows"])
    assert total == sum(table.values.size for table in tables().values()) == 508


def differences(name):
    table = tables()[name]
    assert printed.lacking(table) == ""
    return abs(printed.computed(table) / table.values - 1).max()


@pytest.mark.lengthy
@pytest.mark.quick("Mugunthan*", "Ma 2021*", "Zhang 2024, Table II, H1")
@pytest.mark.parametrize("name", QUICK)
def test_printed_numbers(name):
    assert differences(name) <= LARGEST[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(LARGEST) - set(QUICK)))
def test_printed_numbers_that_take_longer(name):
    assert differences(name) <= LARGEST[name]


@pytest.mark.parametrize("table", ["B", "C"])
def test_appendix_tables_agree_to_the_printed_digit(table):
    line = printed.summary(tables()[f"Mugunthan 2020, appendix table {table}"])
    assert line["to the digit"] == line["numbers"]


def test_corrected_two_breaks_cost_more_than_plain_laplace_noise():
    table = tables()["Mugunthan 2020, appendix table C"]
    for given, row in zip(table.inputs, printed.computed(table), strict=True):
        first, second = literature_laplace.corrected(**given)
        assert first > row[0]
        assert second > row[3]


def test_agreement_to_the_digit_is_counted_by_the_printed_digits(monkeypatch):
    """A planted table: 0.33 agrees with 1/3, 0.34 does not, 2e-6 does with 1.6e-6."""
    table = Table("planted", ("x",), ("y",), ((1 / 3, 0.33), (1 / 3, 0.34), (1.6e-6, 2e-6)))
    monkeypatch.setitem(printed.REPRODUCTIONS, "planted", printed.Reproduction(lambda x: [x], "as planted"))
    assert printed.summary(table)["to the digit"] == "2"
    assert [cell[2] for cell in printed.cells(table)] == ["0.33", "0.34", "2e-06"]
    assert printed.lacking(table) == ""


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (None, "no computation"),
        (printed.Reproduction(lambda x: [x], ""), "no finding"),
        (printed.Reproduction(lambda x: [x, x], "as planted"), "shape (2, 2) for printed ones of (2, 1)"),
        (printed.Reproduction(lambda x: [np.nan if x > 1 else x], "as planted"), "1 numbers without a value"),
    ],
)
def test_what_a_table_lacks_is_a_failure_of_the_command(made, fault, monkeypatch, capsys):
    """The command's exit status, over all tables of the file and one that is planted."""
    planted = Table(f"planted: {fault}", ("x",), ("y",), ((1, 1), (2, 2)))
    monkeypatch.setattr(printed, "tables", lambda: {**tables(), planted.name: planted})
    if made is not None:
        monkeypatch.setitem(printed.REPRODUCTIONS, planted.name, made)
    assert printed.main(["planted"]) == 1
    assert f"{planted.name}: " in (error := capsys.readouterr().err)
    assert fault in error


def test_the_command_succeeds_where_nothing_is_lacking(capsys):
    assert printed.main(["Theorem 7", "--cells"]) == 0
    assert "1.0986" in capsys.readouterr().out
    assert printed.main(["no such table"]) == 1


def test_a_row_of_the_wrong_length_is_refused():
    from benchmarks.sources import _table

    with pytest.raises(ValueError, match="has not one entry for each of"):
        _table("planted", ["x"], ["y"], [[1, 2, 3]])
