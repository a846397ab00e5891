"""``perturb(..., missing=...)``: rows without a value are refused, kept missing, or dropped."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpkernels as dpk
from dpkernels.release import containers

KEY = dpk.key_from_bytes(bytes(range(5, 37)))
M = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)
VECTORS = dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=2, norm="l1")
VALUES = [23.0, None, 35.0, 61.0, None]
GONE = np.array([value is None for value in VALUES])
FLOATS = np.array([np.nan if value is None else value for value in VALUES])

COLUMNS = {
    "numpy": FLOATS,
    "float32": FLOATS.astype(np.float32),
    "masked": np.ma.array(np.nan_to_num(FLOATS).astype(int), mask=GONE),
    "pandas": pd.Series(FLOATS, index=list("abcde"), name="age"),
    "pandas Int64": pd.Series([23, None, 35, 61, None], dtype="Int64", name="age"),
    "pandas arrow": pd.Series([23, None, 35, 61, None], dtype="int64[pyarrow]", name="age"),
    "polars": pl.Series("age", [23, None, 35, 61, None]),
    "polars NaN": pl.Series("age", FLOATS),
    "pyarrow": pa.array([23, None, 35, 61, None]),
    "pyarrow chunks": pa.chunked_array([[23.0, None], [35.0, 61.0, None]]),
}


def plain(column):
    """Float64 with NaN for what is missing."""
    if isinstance(column, np.ma.MaskedArray):
        return column.filled(np.nan)
    if isinstance(column, np.ndarray):
        return column
    values = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else list(column)
    return np.array([np.nan if value is None or value is pd.NA else value for value in values], float)


@pytest.mark.parametrize("kind", COLUMNS)
def test_kept_rows_stay_missing_and_others_have_their_own_noise(kind):
    """The noise of a row depends on the key and its place alone, so it is that of the column without gaps."""
    column = COLUMNS[kind]
    filled = np.where(GONE, 50.0, np.nan_to_num(FLOATS)).astype(np.float32 if kind == "float32" else np.float64)
    expected = dpk.perturb(filled, M, key=KEY)
    reports = dpk.perturb(column, M, key=KEY, missing="keep")
    assert type(reports).__module__ == type(column).__module__
    assert np.array_equal(np.isnan(plain(reports)), GONE)
    assert np.array_equal(plain(reports)[~GONE], expected[~GONE])
    if "pandas" in kind:
        assert reports.index.equals(column.index)
    assert np.array_equal(containers.is_missing(reports), GONE)


@pytest.mark.parametrize("kind", COLUMNS)
def test_dropped_rows_are_not_there(kind):
    reports = dpk.perturb(COLUMNS[kind], M, key=KEY, missing="drop")
    present = FLOATS[~GONE].astype(np.float32 if kind == "float32" else np.float64)
    assert np.array_equal(plain(reports), dpk.perturb(present, M, key=KEY))
    if kind == "pandas":
        assert list(reports.index) == ["a", "c", "d"]


@pytest.mark.parametrize("kind", COLUMNS)
def test_by_default_they_are_refused_with_the_option(kind):
    with pytest.raises(ValueError, match='missing="keep" or missing="drop"'):
        dpk.perturb(COLUMNS[kind], M)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def test_tables(make):
    table = make({"age": VALUES, "pay": [1.0, 2.0, None, 4.0, 5.0], "plan": [1, 2, 3, 4, 5]})
    mechanisms = {"age": M, "pay": M}
    kept = dpk.perturb(table, mechanisms, key=KEY, missing="keep")
    assert np.isnan(plain(kept["age"])).tolist() == GONE.tolist()
    assert np.isnan(plain(kept["pay"])).tolist() == [False, False, True, False, False]
    assert plain(kept["plan"]).tolist() == [1, 2, 3, 4, 5]
    dropped = dpk.perturb(table, mechanisms, key=KEY, missing="drop")
    assert plain(dropped["plan"]).tolist() == [1, 4]
    assert np.isfinite(plain(dropped["pay"])).all()


@pytest.mark.lengthy
def test_rows_of_vectors():
    x = np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]])
    reports = dpk.perturb(x, VECTORS, key=KEY, missing="keep")
    assert np.isnan(reports).tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert dpk.perturb(x, VECTORS, key=KEY, missing="drop").shape == (2, 2)


def test_estimates_read_missing_reports():
    x = np.where(np.arange(2000) % 3 == 0, np.nan, 40.0)
    made = dpk.perturb(x, M, key=KEY, missing="keep")
    for reports in (made, pd.Series(made), pl.Series("age", made, nan_to_null=True), pa.array(made, from_pandas=True)):
        e = dpk.estimate(reports, M)
        assert e.count == int((~np.isnan(x)).sum())
        assert e.mean.value == pytest.approx(np.nanmean(made))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: dpk.perturb(FLOATS, M, missing="ignore"), ValueError, "missing: 'ignore'"),
        (lambda: dpk.perturb(np.full(3, np.nan), M, missing="drop"), ValueError, "every row has a missing value"),
        (lambda: dpk.perturb(1.0, M, missing="keep"), TypeError, "one number"),
        (lambda: dpk.perturb(np.array([1.0, np.inf, np.nan]), M, missing="keep"), ValueError, "row 1 is inf"),
        (
            lambda: dpk.perturb(
                np.array([1.0, np.nan]),
                dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=2, norm="l1"),
                missing="keep",
            ),
            ValueError,
            "one vector",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def below_nulls(column):
    """What lies in memory where reports are missing."""
    if isinstance(column, pd.Series):
        column = column.array
        return column._data[GONE] if hasattr(column, "_mask") else below_nulls(column.__arrow_array__())
    if isinstance(column, np.ndarray):
        return np.asarray(column)[GONE]
    column = column.to_arrow() if isinstance(column, pl.Series) else column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return np.concatenate([np.frombuffer(one.buffers()[1])[one.offset :][: len(one)] for one in chunks])[GONE]


@pytest.mark.parametrize("kind", [kind for kind in COLUMNS if kind not in ("float32", "pandas")])
def test_no_report_of_another_row_is_left_where_one_is_missing(kind):
    """A missing row's stand-in is another row's value: its report would be one more of that row, for free."""
    reports = dpk.perturb(COLUMNS[kind], M, key=KEY, missing="keep")
    assert all(value == 0.0 or np.isnan(value) for value in below_nulls(reports))


@pytest.mark.parametrize("choice", ["keep", "drop"])
def test_an_error_names_the_row_of_the_column(choice):
    with pytest.raises(ValueError, match="row 1 is 999"):
        dpk.perturb(np.array([np.nan, 999.0, 1.0, 998.0]), M, missing=choice)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("choice", ["keep", "drop"])
def test_an_error_names_the_row_of_the_table(make, choice):
    table = make({"age": [1.0, 2.0, 3.0, 999.0], "pay": [5.0, None, None, 8.0]})
    with pytest.raises(ValueError, match="column 'age': x: row 3 is 999"):
        dpk.perturb(table, {"age": M, "pay": M}, missing=choice)
