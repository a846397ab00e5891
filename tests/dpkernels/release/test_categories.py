"""Releases of categories: containers, missing and unknown values, keys, charges, and what must not leave with them."""

from __future__ import annotations

import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import accountants
import dpkernels as dpk
from dpkernels.release.categories import MISSING, UNKNOWN, category_codes, released_reports

LABELS = ["cardio", "neuro", "ortho", "uro", "rest"]
KEY = dpk.key_from_bytes(bytes(range(32)))
MECHANISMS = {
    "response": dpk.randomised_response(1.0, LABELS),
    "sets": dpk.subset_selection(1.0, LABELS, 2),
    "blocks": dpk.block_response(1.0, LABELS, 3),
}
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
CODES = np.random.default_rng(0).integers(0, 5, 40)
TEXTS = np.array(LABELS)[CODES]
CONTAINERS = {
    "numpy": lambda values: np.array(values, object),
    "pandas": lambda values: pd.Series(values, index=np.arange(7, 7 + len(values)), name="ward"),
    "pandas objects": lambda values: pd.Series(values, dtype=object),
    "pandas categories": lambda values: pd.Series(values, dtype="category"),
    "polars": lambda values: pl.Series("ward", values),
    "polars enum": lambda values: pl.Series("ward", values, dtype=pl.Enum(LABELS)),
    "polars categories": lambda values: pl.Series("ward", values, dtype=pl.Categorical),
    "arrow": pa.array,
    "arrow dictionary": lambda values: pa.array(values).dictionary_encode(),
    "arrow chunks": lambda values: pa.chunked_array([values[:3], values[3:]], pa.string()),
}
every_container = pytest.mark.parametrize("container", CONTAINERS)


def supports_of(reports, m):
    return dpk.CategoryCounts(m).add(reports).supports


@every_container
@every_mechanism
def test_every_container_has_the_same_reports(name, container):
    m = MECHANISMS[name]
    column = CONTAINERS[container](TEXTS.tolist())
    reports = dpk.perturb(column, m, key=KEY)
    plain = dpk.perturb(TEXTS, m, key=KEY)
    assert type(reports).__module__.partition(".")[0] == type(column).__module__.partition(".")[0]
    assert len(reports) == 40
    assert supports_of(reports, m).tolist() == supports_of(plain, m).tolist()
    for row in (0, 17):
        one = reports[row : row + 1] if not isinstance(reports, pd.Series) else reports.iloc[row : row + 1]
        assert supports_of(one, m).tolist() == supports_of(plain[row : row + 1], m).tolist()
    if isinstance(column, pd.Series):
        assert reports.index.equals(column.index)
        assert reports.name == column.name


@every_mechanism
def test_parts_have_the_noise_of_their_rows(name):
    m = MECHANISMS[name]
    whole = dpk.perturb(TEXTS, m, key=KEY)
    assert np.array_equal(dpk.perturb(TEXTS[9:], m, key=KEY, start=9), whole[9:])
    assert not np.array_equal(dpk.perturb(TEXTS, m), dpk.perturb(TEXTS, m))


def row_4_of(column):
    return column.take([4]) if isinstance(column, pa.Array | pa.ChunkedArray) else column[4:5]


@every_container
@every_mechanism
def test_missing_values(name, container):
    m, values = MECHANISMS[name], TEXTS.tolist()
    column = CONTAINERS[container]([None if row in (4, 9) else value for row, value in enumerate(values)])
    with pytest.raises(ValueError, match="row 4 is missing"):
        dpk.perturb(column, m, key=KEY)
    present = [value for row, value in enumerate(values) if row not in (4, 9)]
    dropped = dpk.perturb(column, m, key=KEY, missing="drop")
    assert supports_of(dropped, m).tolist() == supports_of(dpk.perturb(np.array(present), m, key=KEY), m).tolist()
    kept = dpk.perturb(column, m, key=KEY, missing="keep")
    assert len(kept) == 40
    assert dpk.CategoryCounts(m).add(kept).total == 38
    again = dpk.perturb(
        CONTAINERS[container]([None if row in (4, 9) else "uro" for row in range(40)]), m, missing="keep"
    )
    assert pickle.dumps(row_4_of(kept)) == pickle.dumps(row_4_of(again))  # Nothing lies under a missing report.
    with pytest.raises(ValueError, match="every row has a missing value"):
        dpk.perturb(column[4:5], m, missing="keep")


@every_container
def test_an_unknown_category_is_an_error_that_names_the_row_or_another_category(container):
    values = TEXTS.tolist()
    m = dpk.subset_selection(1.0, LABELS[:4], 2)
    column = CONTAINERS[container](values)
    first = values.index("rest")
    with pytest.raises(ValueError, match=f"row {first} is 'rest', which is not one of the 4 categories"):
        dpk.perturb(column, m)
    with_other = dpk.subset_selection(1.0, LABELS[:4], 2, other="else")
    stated = dpk.perturb(np.where(TEXTS == "rest", "else", TEXTS), with_other, key=KEY)
    reports = dpk.perturb(column, with_other, key=KEY)
    assert supports_of(reports, with_other).tolist() == supports_of(stated, with_other).tolist()


MIXED = [True, 1, 1.0, np.int64(1), "1", np.bool_(True), None, 2, np.float32(1), np.nan, 1]
OBJECTS = {
    "numpy": lambda values: np.array(values, object),
    "pandas": lambda values: pd.Series(values, dtype=object),
}


@pytest.mark.parametrize("container", OBJECTS)
@pytest.mark.parametrize("labels", [[1, 2], ["1", "2"], 3])
def test_the_code_of_a_value_does_not_depend_on_other_rows(container, labels):
    """Objects may be equal and differ in type; whoever holds one of them must not change the report of another."""
    m = dpk.randomised_response(1.0, labels)
    for values in (MIXED, MIXED[::-1]):
        codes = category_codes(OBJECTS[container](values), m)[0]
        alone = [category_codes(OBJECTS[container]([value]), m)[0][0] for value in values]
        assert codes.tolist() == alone
    is_text = labels == ["1", "2"]
    wanted = [isinstance(value, str) if is_text else type(value) in (int, np.int64) for value in MIXED]
    assert (category_codes(OBJECTS[container](MIXED), m)[0] >= 0).tolist() == wanted


def test_unsigned_values_are_compared_with_labels_as_integers():
    labels = [1 << 53, (1 << 53) + 1, -1, (1 << 63) - 1]
    m, values = (
        dpk.randomised_response(1.0, labels),
        [*(label for label in labels if label > 0), 1 << 63, (1 << 64) - 1],
    )
    for column in (np.array(values, np.uint64), pd.Series(values, dtype="uint64"), pl.Series(values, dtype=pl.UInt64)):
        assert category_codes(column, m)[0].tolist() == [0, 1, 3, UNKNOWN, UNKNOWN]


def test_categories_of_another_kind_are_refused():
    """With ``other`` they would all count as unknown."""
    texts, numbers = (
        dpk.randomised_response(1.0, ["1", "2"], other="rest"),
        dpk.randomised_response(1.0, [1, 2], other=3),
    )
    for column, m in (
        (pd.Series([1, 2], dtype="category"), texts),
        (pd.Series([1.0, 2.0], dtype="category"), texts),
        (pd.Series([1.0, 2.0], dtype="category"), numbers),
        (pd.Series(["1", "2"], dtype=pd.StringDtype()).astype("category"), numbers),
    ):
        with pytest.raises(TypeError, match="x: holds"):
            dpk.perturb(column, m)


@pytest.mark.parametrize("missing", [None, np.nan])
def test_texts_of_variable_width(missing):
    m = dpk.randomised_response(1.0, ["a", "long label"])
    column = np.array(["long label", missing, "a"], np.dtypes.StringDType(na_object=missing))
    assert category_codes(column, m)[0].tolist() == [1, MISSING, 0]
    assert category_codes(np.array(["a", "b"], np.dtypes.StringDType()), m)[0].tolist() == [0, UNKNOWN]


def test_dictionaries_of_arrow_in_pandas():
    column = pd.Series(
        pa.array(TEXTS.tolist()).dictionary_encode(), dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))
    )
    assert category_codes(column, MECHANISMS["response"])[0].tolist() == CODES.tolist()


@every_mechanism
def test_single_values(name):
    m = MECHANISMS[name]
    for value in ("uro", np.str_("uro"), np.array("uro")):
        report = dpk.perturb(value, m)
        assert np.shape(report) == m.report_shape
        assert dpk.CategoryCounts(m).add(np.asarray(report)[None]).total == 1
    assert int(dpk.perturb(np.int64(2), dpk.randomised_response(1.0, 3))) in range(3)


@pytest.mark.parametrize(
    "m", [dpk.subset_selection(1.0, 60_000, 3000), dpk.subset_selection(1.0, 9, 3), *MECHANISMS.values()]
)
def test_a_stream_does_not_run_out_of_blocks(m):
    most = dpk.exact_sampler(m).most_rows
    x = np.array([0, 1]) if m.labels is None else TEXTS[:2]
    assert len(dpk.perturb(x, m, key=KEY, start=most - 2)) == 2
    with pytest.raises(ValueError, match="start"):
        dpk.perturb(x, m, key=KEY, start=most - 1)


def test_a_batch_is_not_released():
    with pytest.raises(ValueError, match=r"epsilon: has shape \(3,\)"):
        dpk.perturb(np.zeros(3, int), dpk.SubsetSelection(jnp.full(3, 1.0), 4, 2))


MARK = "Zyzzyva-7719"


def everything_of(x):
    """Bytes of a container: its pickle, and those of Arrow's and Parquet's files, without compression."""
    found = [pickle.dumps(x)]
    table = x if isinstance(x, pa.Table) else pa.Table.from_pandas(x) if isinstance(x, pd.DataFrame) else x.to_arrow()
    for write in (write_ipc, lambda table, file: pq.write_table(table, file, compression="NONE")):
        file = io.BytesIO()
        write(table, file)
        found.append(file.getvalue())
    return b"".join(found)


def write_ipc(table, file):
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@every_mechanism
@pytest.mark.parametrize("other", [False, True])
def test_categories_of_the_data_are_in_no_output(name, other):
    """Unused categories, dictionaries, metadata, and the values that another category stands for."""
    own = LABELS[:4] if other else LABELS
    build = {"response": dpk.randomised_response, "sets": dpk.subset_selection, "blocks": dpk.block_response}[name]
    m = build(1.0, own, other="else" if other else None)
    values = [MARK if other and value == "rest" else value for value in TEXTS.tolist()]
    listed = [*LABELS, MARK]
    frame = pd.DataFrame({"ward": pd.Categorical(values, categories=listed), "n": np.arange(40)})
    frame.attrs = {"raw": MARK}
    arrow = pa.table(
        {
            "ward": pa.DictionaryArray.from_arrays([listed.index(value) for value in values], listed),
            "n": np.arange(40),
        },
        metadata={"raw": MARK},
    )
    polars = pl.DataFrame({"ward": pl.Series(values, dtype=pl.Enum(listed)), "n": np.arange(40)})
    for table in (frame, arrow, polars):
        assert MARK.encode() in everything_of(table)
        for missing in ("refuse", "keep", "drop"):
            released = dpk.perturb(table, {"ward": m}, missing=missing)
            assert MARK.encode() not in everything_of(released)
    series = dpk.perturb(frame["ward"], m)
    assert MARK.encode() not in pickle.dumps(series)
    if name == "response":  # All categories of the mechanism, in its order, whatever the data are.
        assert series.cat.categories.tolist() == list(m.labels)
        assert dpk.perturb(polars["ward"], m).dtype == pl.Enum(m.labels)
        assert dpk.perturb(arrow["ward"], m).chunk(0).dictionary.to_pylist() == list(m.labels)


def test_reports_have_small_types():
    codes = np.arange(5)
    assert dpk.perturb(codes, dpk.randomised_response(1.0, 5)).dtype == np.uint8
    assert dpk.perturb(codes, dpk.randomised_response(1.0, 300)).dtype == np.uint16
    assert dpk.perturb(codes, dpk.subset_selection(1.0, 20)).shape == (5, 3)
    assert dpk.perturb(codes, dpk.block_response(1.0, 4096)).dtype == np.uint16
    assert dpk.perturb(pa.array(codes), dpk.subset_selection(1.0, 20)).type == pa.binary(3)
    assert isinstance(dpk.perturb(jnp.asarray(codes), dpk.randomised_response(1.0, 5)), type(jnp.zeros(0)))


def test_single_values_and_integer_labels():
    assert dpk.perturb("uro", MECHANISMS["response"], key=KEY) in LABELS
    assert dpk.perturb("uro", MECHANISMS["sets"]).shape == (1,)
    m = dpk.randomised_response(20.0, [10, -3, 7])
    assert dpk.perturb(7, m) == 7
    assert dpk.perturb(np.array([7, 10]), m).tolist() == [7, 10]
    assert dpk.perturb(pd.Series([7, 10]), m).tolist() == [7, 10]
    assert dpk.perturb(pl.Series([7, 10]), m).to_list() == [7, 10]
    assert dpk.perturb(pa.array([7, 10]), m).to_pylist() == [7, 10]
    assert dpk.estimate(dpk.perturb(pd.Series([7, 10] * 10), m), m).counts.value.tolist() == pytest.approx([10, 0, 10])
    with pytest.raises(ValueError, match="row 1 is 8"):
        dpk.perturb(np.array([7, 8]), m)
    with pytest.raises(ValueError, match="row 0 is -1"):
        dpk.perturb(np.array([-1]), dpk.randomised_response(1.0, 5))


@pytest.mark.lengthy
def test_simulations_have_the_same_containers():
    for m in MECHANISMS.values():
        series = dpk.perturb(pd.Series(TEXTS), m, exact=False, key=dpk.simulation_key(1))
        assert supports_of(series, m).sum() > 0


def test_ledgers_are_charged():
    m, budget = MECHANISMS["sets"], accountants.Odometer()
    for one in (m, MECHANISMS["response"], MECHANISMS["blocks"]):
        dpk.perturb(TEXTS, one, ledger=budget)
    table = pd.DataFrame({"a": TEXTS, "b": np.zeros(40)})
    dpk.perturb(table, {"a": m, "b": dpk.piecewise(epsilon=0.5, lower=0.0, upper=1.0)}, ledger=budget)
    assert float(budget.spent.epsilon) == 4.5
    for wrong in (np.ones(3), TEXTS.reshape(2, -1), np.array([1, 2]), TEXTS[:0], 1.5):  # Nothing is charged for these.
        with pytest.raises((TypeError, ValueError)):
            dpk.perturb(wrong, m, ledger=budget)
    assert float(budget.spent.epsilon) == 4.5
    limited = accountants.Filter(0.5)
    with pytest.raises(accountants.BudgetExceeded):
        dpk.perturb(TEXTS, m, ledger=limited)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.array([1, 2]), "x: holds int64; the mechanism's categories are str labels"),
        (np.array([1.0]), "categories are integers or strings"),
        (pd.Series([1.5]), "categories are integers or strings"),
        (pd.Series([True]), "categories are integers or strings"),
        (pl.Series([1.5]), "categories are integers or strings"),
        (pa.array([1.5]), "categories are integers or strings"),
        (3.5, "is not a column of categories"),
        (["uro"], "is not a column of categories"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_kinds_of_values_are_refused(x, words):
    with pytest.raises(TypeError, match=words):
        dpk.perturb(x, MECHANISMS["response"])


def test_arguments_that_do_not_apply_are_refused():
    m = MECHANISMS["response"]
    with pytest.raises(ValueError, match="clip"):
        dpk.perturb(TEXTS, m, clip=True)
    with pytest.raises(ValueError, match="devices: reports of categories are made by the CPU"):
        dpk.perturb(TEXTS, m, devices=jax.devices())
    with pytest.raises(ValueError, match="is empty"):
        dpk.perturb(TEXTS[:0], m)
    with pytest.raises(ValueError, match="are a column"):
        dpk.perturb(TEXTS.reshape(2, -1), m)
    with pytest.raises(TypeError, match="a release needs a 256-bit ChaCha20 key"):
        dpk.perturb(TEXTS, m, key=dpk.simulation_key(0))
    values = np.where(np.arange(40) == 5, "nephro", TEXTS)
    table = pd.DataFrame({"w": np.where(np.arange(40) == 2, None, values)})
    with pytest.raises(ValueError, match=r"column 'w': x: row 5 is 'nephro'"):
        dpk.perturb(table, {"w": m}, missing="drop")


@pytest.mark.parametrize("m", [dpk.randomised_response(1.0, 5), dpk.block_response(1.0, 30)], ids=lambda m: m.kind)
def test_pieces_of_a_release_have_noise_of_their_own(m):
    sampler, piece = dpk.exact_sampler(m), 1 << 16
    codes = np.zeros(piece + 500, np.int64)
    reports = released_reports(sampler, codes, bytes(32), start=7)
    assert np.array_equal(reports[piece - 7 :], sampler.reports(codes[piece - 7 :], bytes(32), piece))
    assert not np.array_equal(reports[piece - 7 :][:400], reports[:400])
