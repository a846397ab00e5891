"""Arrays, columns and tables: the same kind, shape, labels and type come out."""

import io
import pickle
import re
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from key_helpers import column_key

import dpkernels as dpk
from dpkernels.release import arrow

SECRET = bytes(range(9, 41))
KEY = dpk.key_from_bytes(SECRET)
AGES = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)
PAY = dpk.duchi(epsilon=0.5, lower=0.0, upper=1e4)
VALUES = np.array([23.0, 35.5, 61.0, 0.0, 120.0])


def perturb(x, made=AGES, key_of=None, **how):
    return dpk.perturb(x, made, key=KEY if key_of is None else column_key(SECRET, key_of), **how)


EXPECTED = perturb(VALUES)


# NumPy.


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("int8", "float64"),
        ("uint8", "float64"),
        ("int64", "float64"),
        ("uint64", "float64"),
        (">f8", "float64"),
        (">i4", "float64"),
    ],
)
@pytest.mark.parametrize("exactly", [True, False])
def test_numpy_types(given, returned, exactly):
    x = np.floor(VALUES).astype(given)
    reports = dpk.perturb(x, AGES, key=KEY if exactly else jax.random.key(0), exact=exactly)
    assert type(reports) is np.ndarray
    assert reports.dtype == returned
    if exactly:
        np.testing.assert_array_equal(reports, perturb(x.astype(returned)))


@pytest.mark.parametrize("given", ["m8[s]", "M8[s]", "bool", "complex64", "U1", "longdouble"])
def test_what_is_no_number_and_what_float64_rounds_is_refused(given):
    """ "No time" is an integer to NumPy."""
    x = np.array(["NaT", "NaT"], given) if "8" in given and given[0] in "mM" else np.ones(2).astype(given)
    if x.dtype == np.float64:
        pytest.skip("this machine's longdouble is float64")
    with pytest.raises(TypeError, match=r"only integers and floats can be perturbed|which float64 rounds"):
        dpk.perturb(x, AGES)


@pytest.mark.parametrize("kind", ["int64", "Int64", "int64[pyarrow]", "UInt64", "uint64[pyarrow]", "polars", "pyarrow"])
def test_integers_that_floats_round_are_refused_in_every_container(kind):
    """pandas' columns were made floats before anyone looked."""
    numbers = [3, (1 << 53) + 1]
    columns = {"polars": pl.Series, "pyarrow": pa.array}
    column = columns[kind](numbers) if kind in columns else pd.Series(numbers, dtype=kind)
    noise = dpk.laplace(epsilon=1.0, sensitivity=2.0**30)
    with pytest.raises(ValueError, match=r"row 1 is .*float64 rounds u?int64 beyond"):
        dpk.perturb(column, noise)
    if kind not in columns:
        with pytest.raises(ValueError, match=r"column 'a': .*row 1 is .*float64 rounds"):
            dpk.perturb(pd.DataFrame({"a": column}), {"a": noise})
    dpk.perturb(column, dpk.piecewise(epsilon=1.0, lower=0.0, upper=2.0**54))


@pytest.mark.parametrize(
    ("column", "instead"),
    [
        (pd.Index([1.0]), "to_series"),
        (pd.RangeIndex(3), "to_series"),
        (pl.col("a"), "select it"),
        (pl.LazyFrame({"a": [1.0]}), "collect"),
        (pa.RecordBatch.from_pydict({"a": [1.0]}), "from_batches"),
    ],
)
@pytest.mark.parametrize("made", [AGES, {"a": AGES}])
def test_what_holds_no_values_says_what_to_do(column, instead, made):
    with pytest.raises(TypeError, match=instead):
        dpk.perturb(column, made)


def test_of_two_columns_of_one_name_neither_is_perturbed():
    with pytest.raises(ValueError, match="2 columns 'a'"):
        dpk.perturb(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), {"a": AGES})


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        ("Float64", "Float64"),
        ("Float32", "Float32"),
        ("Int64", "Float64"),
        ("double[pyarrow]", "double[pyarrow]"),
        ("float[pyarrow]", "float[pyarrow]"),
        ("int64[pyarrow]", "double[pyarrow]"),
        ("Sparse[float64]", "float64"),
        ("category", "float64"),
    ],
)
def test_pandas_columns_keep_their_kind_of_type_their_name_and_their_index(given, returned):
    column = pd.Series([23.0, 35.0, 61.0], index=[4, 5, 6], name="age").astype(given)
    column.attrs["unit"] = "years"
    reports = perturb(column)
    assert str(reports.dtype) == returned
    assert (reports.attrs, reports.name, list(reports.index)) == ({}, "age", [4, 5, 6])
    plain = perturb(
        np.array([23.0, 35.0, 61.0], np.float32 if "32" in returned or "float[" in returned else np.float64)
    )
    np.testing.assert_array_equal(reports.to_numpy(plain.dtype), plain)


class Column(pd.Series):
    """A user's own kind of column."""

    @property
    def _constructor(self):
        return Column


def test_a_pandas_subclass_is_kept():
    assert type(perturb(Column([23.0, 35.0]))) is Column


def test_pyarrow_columns_keep_their_fields_and_dictionaries_are_read():
    field = pa.field("a", pa.float64(), nullable=False, metadata={"unit": "years"})
    table = pa.table([pa.array([23.0, 35.0])], schema=pa.schema([field], metadata={"made": "by hand"}))
    reports = dpk.perturb(table, {"a": AGES}, key=KEY)
    assert reports.schema == table.schema
    assert reports.schema.metadata is None
    values = pa.array([23.0, 35.0, 23.0])
    assert perturb(values.dictionary_encode()) == perturb(values)


# What the user has set of JAX stays in the user's code.

SETTINGS = {
    "strict types": lambda: jax.numpy_dtype_promotion("strict"),
    "ranks": lambda: jax.numpy_rank_promotion("raise"),
    "transfers": lambda: jax.transfer_guard("disallow"),
    "64 bits": lambda: jax.enable_x64(True),
    "NaN": lambda: jax.debug_nans(True),
}


@pytest.mark.lengthy
@pytest.mark.quick("strict types", "64 bits")
@pytest.mark.parametrize("setting", SETTINGS)
def test_reports_do_not_depend_on_the_users_settings_of_jax(setting):
    made = [AGES, PAY, dpk.hybrid(epsilon=1.0, lower=0.0, upper=120.0), dpk.laplace(epsilon=1.0, sensitivity=1.0)]
    made += [dpk.optimal(epsilon=1.0, lower=0.0, upper=120.0, points=9, outputs=41)]
    made += [dpk.central_piecewise(epsilon=1.0, lower=0.0, upper=120.0, sensitivity=60.0)]
    made += [dpk.multivariate(dimensions=5, epsilon=1.0, lower=0.0, upper=120.0)]
    plain = [(perturb(VALUES, m), dpk.perturb(VALUES, m, key=jax.random.key(3), exact=False)) for m in made]
    key = jax.random.key(3)
    with SETTINGS[setting]():
        guarded = [(perturb(VALUES, m), dpk.perturb(VALUES, m, key=key, exact=False)) for m in made]
    for ours, theirs in zip(plain, guarded, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(), (1,), (24,), (4, 6), (2, 3, 4), (24, 1, 1)])
@pytest.mark.parametrize("exactly", [True, False])
def test_numpy_shapes(shape, exactly):
    """Flat index i of the array has noise i, whatever the shape."""
    x = np.linspace(0, 120, 24)[: int(np.prod(shape))].reshape(shape)
    how = {"key": KEY} if exactly else {"key": jax.random.key(0), "exact": False}
    reports = dpk.perturb(x, AGES, **how)
    assert np.shape(reports) == shape
    np.testing.assert_array_equal(np.ravel(reports), dpk.perturb(x.ravel(), AGES, **how))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[::-1],
        lambda x: x.T,
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x[:, 1],
    ],
    ids=["strided", "reversed", "transposed", "Fortran", "broadcast", "column"],
)
def test_numpy_layouts(view):
    """Noise belongs to the logical position, not to the place in memory."""
    x = view(np.linspace(0, 120, 40).reshape(8, 5))
    np.testing.assert_array_equal(perturb(x), perturb(np.ascontiguousarray(x)))


def test_inputs_are_left_as_they_are():
    x = VALUES.copy()
    x.flags.writeable = False
    reports = perturb(x)
    np.testing.assert_array_equal(x, VALUES)
    assert not np.shares_memory(reports, x)


@pytest.mark.parametrize("x", [23, 23.0])
def test_python_numbers(x):
    report = perturb(x)
    assert type(report) is float
    assert report == EXPECTED[0]
    assert type(dpk.perturb(x, AGES, key=dpk.simulation_key(1), exact=False)) is float


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (True, "bool is not an array"),
        (1 << 64, "an integer of 65 bits"),
        ("23", "str is not an array"),
        (pa.scalar(23.0), "pyarrow.Scalar; make it an array"),
        (pa.schema([("age", pa.float64())]), "pyarrow Schema is not an array or a column"),
        (pa.py_buffer(b"23"), "pyarrow Buffer is not an array or a column"),
    ],
)
def test_what_is_no_number_and_no_column_is_refused_in_words(x, message):
    with pytest.raises(TypeError, match=message):
        perturb(x)


@pytest.mark.parametrize(
    ("given", "returned"), [("float64", np.float64), ("float32", np.float32), ("int64", np.float64)]
)
@pytest.mark.parametrize("how", [{"key": KEY}, {"key": dpk.simulation_key(1), "exact": False}])
def test_numpy_scalars(given, returned, how):
    """A scalar gives a scalar, and an array without dimensions gives such an array."""
    x = np.asarray(23, given)
    report = dpk.perturb(x[()], AGES, **how)
    assert type(report) is returned
    assert type(dpk.perturb(x, AGES, **how)) is np.ndarray
    assert report == dpk.perturb(x, AGES, **how)
    for missing in ("keep", "drop"):
        with pytest.raises(TypeError, match="x is one number"):
            dpk.perturb(x[()], AGES, missing=missing)


def test_numpy_subclasses():
    masked = perturb(np.asarray(np.ma.masked_array(VALUES)))
    np.testing.assert_array_equal(masked, EXPECTED)


# JAX.


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "uint8"])
@pytest.mark.parametrize("exactly", [True, False])
def test_jax_arrays(dtype, exactly):
    x = jnp.asarray(np.floor(VALUES).astype(dtype))
    reports = dpk.perturb(x, AGES, key=KEY if exactly else jax.random.key(0), exact=exactly)
    assert isinstance(reports, jax.Array)
    assert reports.dtype == jnp.float32
    assert reports.sharding == x.sharding
    if exactly:
        np.testing.assert_allclose(reports, perturb(np.floor(VALUES)), rtol=1e-6)


def test_jax_arrays_of_64_bits():
    with jax.enable_x64(True):
        reports = perturb(jnp.asarray(VALUES))
        assert reports.dtype == jnp.float64
        np.testing.assert_array_equal(reports, EXPECTED)


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 3, 4)])
def test_jax_shapes(shape):
    assert perturb(jnp.full(shape, 30.0)).shape == shape


# Columns.


@pytest.mark.parametrize("dtype", ["float64", "Float64", "int64", "Int64", "float32", "Float32", "uint8"])
def test_pandas_series(dtype):
    series = pd.Series(np.floor(VALUES), index=list("vwxyz"), name="age").astype(dtype)
    reports = perturb(series)
    assert isinstance(reports, pd.Series)
    assert reports.name == "age"
    assert list(reports.index) == list("vwxyz")
    narrow = dtype.lower() == "float32"
    assert str(reports.dtype).lower() == ("float32" if narrow else "float64")
    np.testing.assert_allclose(reports, perturb(np.floor(VALUES)), rtol=1e-6 if narrow else 0)


def test_pandas_labels_may_repeat():
    series = pd.Series(VALUES, index=[3, 3, 1, 1, 0])
    np.testing.assert_array_equal(perturb(series).to_numpy(), EXPECTED)


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32, pl.Int32, pl.UInt8])
def test_polars_series(dtype):
    reports = perturb(pl.Series("age", np.floor(VALUES)).cast(dtype))
    assert isinstance(reports, pl.Series)
    assert reports.name == "age"
    assert reports.dtype == (pl.Float32 if dtype == pl.Float32 else pl.Float64)
    np.testing.assert_allclose(reports, perturb(np.floor(VALUES)), rtol=1e-6 if dtype == pl.Float32 else 0)


@pytest.mark.parametrize(
    "make",
    [
        pa.array,
        lambda values: pa.chunked_array([values[:2], values[2:]]),
        lambda values: pa.array([0.0, *values])[1:],
    ],
    ids=["Array", "ChunkedArray", "slice"],
)
@pytest.mark.parametrize("dtype", [pa.float64(), pa.float32(), pa.int16()])
def test_pyarrow_columns(make, dtype):
    column = make(np.floor(VALUES)).cast(dtype)
    reports = perturb(column)
    assert type(reports).__name__ == type(column.cast(reports.type)).__name__
    narrow = dtype == pa.float32()
    assert reports.type == (pa.float32() if narrow else pa.float64())
    np.testing.assert_allclose(reports.to_pylist(), perturb(np.floor(VALUES)), rtol=1e-6 if narrow else 0)


# Tables.


def frame():
    return pd.DataFrame({"age": VALUES, "city": list("abcde"), "pay": VALUES * 10}, index=list("vwxyz"))


TABLES = {
    "pandas": (frame, lambda table, name: table[name].to_numpy()),
    "polars": (lambda: pl.from_pandas(frame()), lambda table, name: table[name].to_numpy()),
    "pyarrow": (
        lambda: pa.Table.from_pandas(frame(), preserve_index=False),
        lambda table, name: table[name].to_numpy(),
    ),
}
every_table = pytest.mark.parametrize(("make", "column"), TABLES.values(), ids=TABLES)


@every_table
def test_tables_keep_their_columns_in_place(make, column):
    table = make()
    reports = perturb(table, {"pay": PAY, "age": AGES})
    assert type(reports) is type(table)
    assert list(getattr(reports, "column_names", reports.columns)) == ["age", "city", "pay"]
    assert list(column(reports, "city")) == list("abcde")
    assert not np.any(column(reports, "age") == VALUES)
    np.testing.assert_allclose(abs(column(reports, "pay") - PAY.middle), PAY.magnitude, rtol=1e-8)
    np.testing.assert_array_equal(column(table, "age"), VALUES)


@every_table
def test_every_column_has_a_key_of_its_own(make, column):
    """The columns' noise is that of the key derived from their names, whatever the order and the other columns."""
    reports = perturb(make(), {"age": AGES, "pay": PAY})
    for name, made in (("age", AGES), ("pay", PAY)):
        alone = dpk.perturb(column(make(), name), made, key=column_key(SECRET, name))
        np.testing.assert_array_equal(column(reports, name), alone)
        np.testing.assert_array_equal(column(perturb(make(), {name: made}), name), alone)
        np.testing.assert_array_equal(column(perturb(make(), {"pay": PAY, "age": AGES}), name), alone)


@pytest.mark.parametrize("how", [{"key": KEY}, {"key": dpk.simulation_key(5), "exact": False}])
def test_a_subset_of_the_columns_shares_no_noise_with_another_column(how):
    """By their places in the dict, "b" of the second release would have the noise of "a" in the first."""
    x = np.full(200, 60.0)
    table = pd.DataFrame({"a": x, "b": x})
    first, second = dpk.perturb(table, {"a": AGES, "b": AGES}, **how), dpk.perturb(table, {"b": AGES}, **how)
    np.testing.assert_array_equal(first["b"], second["b"])
    assert (first["a"] != second["b"]).mean() > 0.6


def test_names_that_are_no_strings():
    """pandas has integers and tuples for names; what has no one encoding is refused, before anything is drawn."""
    table = pd.DataFrame(np.repeat(VALUES[:, None], 3, axis=1), columns=[0, "0", ("a", 0)])
    reports = perturb(table, {0: AGES, "0": AGES, ("a", 0): AGES})
    assert len({tuple(reports.iloc[:, at]) for at in range(3)}) == 3
    np.testing.assert_array_equal(perturb(pd.DataFrame({0: VALUES}), {np.int64(0): AGES})[0], reports[0])
    nested = pd.DataFrame({("a", "x"): VALUES, ("a", "y"): VALUES})
    assert nested.columns.nlevels == 2
    made = perturb(nested, {("a", "y"): AGES})
    np.testing.assert_array_equal(made["a", "y"], perturb(VALUES, key_of=("a", "y")))
    with pytest.raises(TypeError, match=r"column name 1\.5: is a float"):
        perturb(pd.DataFrame({1.5: VALUES}), {1.5: AGES})


def test_attributes_of_pandas_do_not_travel_with_the_reports():
    table = frame()
    table.attrs = {"raw": VALUES.tolist()}
    assert table["age"].attrs == table.attrs
    for made in (perturb(table, {"age": AGES}), perturb(table["age"])):
        assert made.attrs == {}
    assert table.attrs == {"raw": VALUES.tolist()}


def test_metadata_of_a_perturbed_column_does_not_travel_with_the_reports(tmp_path):
    """Nor do those of other columns and of the file, where they are not known to be harmless."""
    table = frame()
    table.attrs = {"raw": "attribute"}
    table.to_parquet(tmp_path / "in.parquet")
    read = pq.read_table(tmp_path / "in.parquet")
    assert b"attribute" in read.schema.metadata[b"PANDAS_ATTRS"]
    for name in ("age", "city"):
        at = read.column_names.index(name)
        notes = {"note": name, "PARQUET:field_id": "7"}
        read = read.set_column(at, read.field(at).with_metadata(notes), read.column(at))
    reports = perturb(read, {"age": AGES})
    assert reports.schema.metadata.keys() == {b"pandas"}
    assert b"attribute" not in reports.schema.metadata[b"pandas"]
    assert not reports.field("age").metadata
    assert reports.field("city").metadata == {b"PARQUET:field_id": b"7"}
    assert list(reports.to_pandas().index) == list("vwxyz")
    bare = pa.table({"age": VALUES})
    assert perturb(bare, {"age": AGES}).schema == bare.schema


def test_metadata_of_a_pandas_subclass_do_not_travel_with_the_reports():
    class Table(pd.DataFrame):
        _metadata = ["note"]  # noqa: RUF012

        @property
        def _constructor(self):
            return Table

    table = Table(frame())
    table.note = VALUES
    reports = perturb(table, {"age": AGES})
    assert type(reports) is Table
    assert not hasattr(reports, "note")


PANDAS_TYPES = ["int64", "Int64", "uint8", "UInt8", "Float32", "int64[pyarrow]", "float[pyarrow]", "float32"]


@pytest.mark.parametrize("dtype", PANDAS_TYPES)
def test_pandas_reads_a_perturbed_arrow_column_as_its_own_kind_of_type(dtype):
    """A protected integer stays no integer: pandas could not read the table."""
    column = pd.Series([23, 35, 61], dtype=dtype)
    table = pa.Table.from_pandas(pd.DataFrame({"age": column, "copied": column}))
    made = perturb(table, {"age": AGES}).to_pandas()
    assert made["age"].dtype == perturb(column).dtype
    pd.testing.assert_series_equal(made["copied"], column, check_names=False)


FRAMES = {
    "an index": frame,
    "levels": lambda: frame().set_index(["city", "pay"]),
    "numbered": lambda: pd.DataFrame({"age": VALUES}, index=[3, 1, 4, 1, 5]),
    "whole numbers for names": lambda: pd.DataFrame({0: VALUES, 1: VALUES}),
    "pairs for names": lambda: pd.DataFrame({("a", 1): VALUES, ("a", 2): VALUES}),
    "times": lambda: frame().assign(at=pd.date_range("2020", periods=5, tz="Europe/Berlin"), span=pd.Timedelta(1)),
    "periods": lambda: frame().assign(month=pd.period_range("2020", periods=5, freq="M").array),
    "intervals": lambda: frame().assign(range=pd.interval_range(0, 5).array),
    "categories": lambda: frame().assign(plan=pd.Categorical(list("abcba"), categories=list("cba"), ordered=True)),
    "texts": lambda: frame().assign(
        who=pd.array(["x"] * 4 + [None], "string[pyarrow]"), ok=pd.array([True] * 5, "boolean")
    ),
    "arrow times": lambda: frame().assign(at=pd.array([1, 2, 3, 4, None], "timestamp[ns][pyarrow]")),
}


@pytest.mark.parametrize("case", FRAMES)
def test_pandas_reads_what_it_wrote_from_an_arrow_table(case):
    """The description of index and types is written anew, and says the same."""
    table = FRAMES[case]()
    name, columns = table.columns[0], pa.Table.from_pandas(table)
    made = perturb(columns, {columns.column_names[0]: AGES}).to_pandas()
    pd.testing.assert_frame_equal(made.drop(columns=[name]), table.drop(columns=[name]))
    assert not np.any(made[name] == table[name])


@pytest.mark.parametrize("note", [b"[1", b"\xff", b"[]", b"{}", b'{"columns": 3}', b'{"columns": [{"name": [1]}, 2]}'])
def test_a_damaged_description_of_pandas_is_replaced(note):
    table = pa.table({"age": VALUES}).replace_schema_metadata({"pandas": note})
    assert list(perturb(table, {"age": AGES}).to_pandas().columns) == ["age"]


# Every nested type of Arrow, with a field.
NESTED = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of two": lambda field: pa.list_(field, 2),
    "list view": pa.list_view,
    "large list view": pa.large_list_view,
    "struct": lambda field: pa.struct([field]),
    "map": lambda field: pa.map_(pa.field("key", pa.string(), False, {"raw": "23"}), field),
    "sparse union": lambda field: pa.sparse_union([field]),
    "dense union": lambda field: pa.dense_union([field]),
    "run ends": lambda field: pa.run_end_encoded(pa.int32(), pa.list_(field)),
    "dictionary": lambda field: pa.dictionary(pa.int8(), pa.list_(field)),
    "a field with an extension": lambda field: pa.struct([pa.field("x", pa.opaque(pa.int8(), "raw", "23"))]),
    "shape": lambda field: pa.fixed_shape_tensor(pa.int8(), [2], dim_names=["raw"]),
}


@pytest.mark.parametrize("case", NESTED)
def test_no_metadata_is_left_inside_any_type(case):
    schema = pa.schema([pa.field("x", NESTED[case](pa.field("item", pa.int8(), metadata={"raw": "23"})))])
    assert b"raw" in schema.serialize().to_pybytes()
    assert b"raw" not in arrow.released_schema(schema).serialize().to_pybytes()
    assert arrow.dropped_metadata(schema) == ["column 'x': its metadata"]


@pytest.mark.parametrize("kind", [pa.uuid(), pa.json_(), pa.bool8()])
def test_types_without_parameters_are_kept(kind):
    assert arrow.released_schema(pa.schema([("x", kind)])).field("x").type == kind


@pytest.mark.parametrize(
    ("extension", "parameters"),
    [
        (b"arrow.uuid", b"raw"),
        (b"arrow.json", b"{} raw"),
        (b"pandas.period", b'{"freq": "D"} raw'),
        (b"pandas.interval", b'{"subtype": "int64", "closed": "left"} raw'),
        (b"arrow.uuid raw", b""),
    ],
)
def test_parameters_of_known_extensions_with_more_text_are_dropped(extension, parameters):
    metadata = {"ARROW:extension:name": extension, "ARROW:extension:metadata": parameters}
    schema = pa.schema([pa.field("x", pa.binary(16), metadata=metadata)])
    assert b"raw" not in arrow.released_schema(schema).serialize().to_pybytes()
    assert arrow.dropped_metadata(schema) == ["column 'x': its metadata"]


PAIRS = [[1, 2], None] * 2
TEXTS = pa.array(["a", None, "b", "a"]).dictionary_encode()
# Every kind of Arrow column, of four rows.
KINDS = {
    "texts": pa.array(["x", None, "", "y"]),
    "views": pa.array(["a text that is not inlined", None, "b", "c"], pa.string_view()),
    "decimals": pa.array([Decimal("1.5"), None] * 2),
    "times": pa.array([1, None] * 2, pa.timestamp("ns", "Europe/Berlin")),
    "nothing": pa.nulls(4),
    "lists": pa.array(PAIRS),
    "lists of two": pa.array(PAIRS, pa.list_(pa.int8(), 2)),
    "list views": pa.array(PAIRS, pa.list_view(pa.int8())),
    "maps": pa.array([[("a", 1)], None] * 2, pa.map_(pa.string(), pa.int8())),
    "structs": pa.array([{"a": {"b": 1}}, None, {"a": None}, {"a": {"b": None}}]),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 4], [1, None]),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 1, 0], pa.int8()), [pa.array([1, 2, 3, None]), pa.array(["a"] * 4)]
    ),
    "dictionary": TEXTS,
    "dictionary of null": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["a", None, "unused"])),
    "dictionary in a list": pa.ListArray.from_arrays([0, 1, 2, 3, 4], TEXTS),
    "uuid": pa.array([bytes(16), None] * 2, pa.uuid()),
    "another extension": pa.ExtensionArray.from_storage(
        pa.opaque(pa.int8(), "a", "b"), pa.array([1, None] * 2, pa.int8())
    ),
}


@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("begin", [0, 1])
def test_other_columns_of_arrow_tables_keep_their_values(case, begin):
    """Also where the table is a part of a longer one."""
    table = pa.table({"age": VALUES[:4], "other": KINDS[case]}).slice(begin)
    reports = perturb(table, {"age": AGES})
    reports.validate(full=True)
    assert reports["other"].to_pylist() == table["other"].to_pylist()


def test_other_columns_of_arrow_tables_share_no_memory_with_more_than_they_show():
    raw = pa.array(VALUES)
    nulls = pa.array(np.ones(5, bool))
    table = pa.table(
        {
            "age": raw,
            "number": pa.Array.from_buffers(pa.float64(), 5, [pa.py_buffer(bytes(1)), raw.buffers()[1]]),
            "struct": pa.StructArray.from_arrays([raw], ["x"], mask=nulls),
            "list": pa.ListArray.from_arrays(pa.array(range(6), pa.int32()), raw, mask=nulls),
        }
    )
    longer = pa.table({"age": VALUES[:2], "part": raw.slice(3, 2)})
    for given in (table, longer):
        assert VALUES[1].tobytes() in pickle.dumps(given.drop_columns("age"), 5)
        assert VALUES[1].tobytes() not in pickle.dumps(perturb(given, {"age": AGES}), 5)


def test_categories_of_dropped_rows_are_dropped():
    names = [f"person {at}" for at in range(5)]
    table = frame().assign(who=pd.Categorical(names, ordered=True)).set_index(pd.CategoricalIndex(names))
    table.iloc[1, 0] = np.nan
    reports = perturb(table, {"age": AGES}, missing="drop")
    left = [name for name in names if name != "person 1"]
    assert (list(reports["who"].cat.categories), list(reports.index.categories), reports["who"].cat.ordered) == (
        left,
        left,
        True,
    )
    alone = perturb(table["age"], missing="drop")
    assert list(alone.index.categories) == left
    texts = pa.array(names).dictionary_encode()
    columns = {
        "age": pa.array(table["age"], from_pandas=True),
        "who": texts,
        "friends": pa.ListArray.from_arrays(range(6), texts),
    }
    read = perturb(pa.table(columns), {"age": AGES}, missing="drop")
    assert read["who"].chunk(0).dictionary.to_pylist() == left
    assert read.schema.field("who").type == texts.type
    assert read["friends"].to_pylist() == [[name] for name in left]


# Columns of texts, made from a list of them.
TEXTS = {
    "pandas str": lambda names: pd.array(names, dtype="str"),
    "pandas string": lambda names: pd.array(names, dtype="string[pyarrow]"),
    "pandas category": pd.Categorical,
    "pandas with Arrow": lambda names: pd.arrays.ArrowExtensionArray(pa.array(names)),
    "pandas with dictionary": lambda names: pd.arrays.ArrowExtensionArray(pa.array(names).dictionary_encode()),
    "pandas with lists": lambda names: pd.arrays.ArrowExtensionArray(pa.array([[name] for name in names])),
    "polars categorical": lambda names: pl.Series(names, dtype=pl.Categorical),
    "polars enum": lambda names: pl.Series(names, dtype=pl.Enum(names)),
    "polars lists of enum": lambda names: pl.Series([[name] for name in names], dtype=pl.List(pl.Enum(names))),
    "pyarrow": pa.array,
    "pyarrow dictionary": lambda names: pa.array(names).dictionary_encode(),
}


def tables_of(case):
    names, ages = [f"person {at}" for at in range(5)], VALUES[:5]
    texts = TEXTS[case](names)
    if case.startswith("polars"):
        return {"column": pl.DataFrame({"age": ages, "who": texts}).slice(2, 2)}
    if case.startswith("pyarrow"):
        return {"column": pa.table({"age": ages, "who": texts}).slice(2, 2)}
    table = pd.DataFrame({"age": ages, "who": texts})
    tables = {"column": table, "index": table[["age"]].set_axis(pd.Index(texts))}
    if not case.endswith("lists"):
        tables["levels"] = table.set_index("who", append=True)
    return {place: table.iloc[2:4] for place, table in tables.items()}


def files_of(table):
    """Return a table in every format that may hold more than it shows."""
    file = io.BytesIO()
    if isinstance(table, pl.DataFrame):
        table.write_ipc(file)
        table.write_parquet(file, compression="uncompressed")
    else:
        columns = table if isinstance(table, pa.Table) else pa.table(table)
        feather.write_feather(columns, file, compression="uncompressed")
        pq.write_table(columns, file, compression="none")
    return file.getvalue() + pickle.dumps(table, 5)


def shown_texts(table):
    if isinstance(table, pa.Table):
        return table["who"].to_pylist()
    if isinstance(table, pl.DataFrame):
        return table["who"].to_list()
    return table.reset_index().drop(columns="age").map(str).to_dict("list")


@pytest.mark.parametrize("case", TEXTS)
def test_texts_of_rows_that_were_left_out_are_in_no_file_of_a_table(case):
    for place, given in tables_of(case).items():
        reports = perturb(given, {"age": AGES})
        assert type(reports) is type(given)
        assert re.findall(rb"person [014]", files_of(reports)) == [], place
        assert shown_texts(reports) == shown_texts(given)


def test_labels_under_missing_ones_are_overwritten():
    labels = pd.arrays.FloatingArray(VALUES[:4].copy(), np.array([False, True, False, False]))
    given = pd.DataFrame({"age": VALUES[:4]}, index=pd.Index(labels))
    assert VALUES[1].tobytes() in files_of(given[[]])
    reports = perturb(given, {"age": AGES})
    assert VALUES[1].tobytes() not in files_of(reports)
    assert reports.index.equals(given.index)


def test_equal_columns_get_unrelated_noise():
    """Correlation of the noise of two columns of equal values: fixed key, 6 sigma."""
    table = pd.DataFrame(dict.fromkeys(("a", "b"), np.full(100_000, 60.0)))
    for how in ({"key": KEY}, {"key": jax.random.key(1), "exact": False}):
        noise = dpk.perturb(table, {"a": AGES, "b": AGES}, **how) - 60.0
        assert abs(noise.corr().loc["a", "b"]) < 6 / np.sqrt(100_000)


def test_pandas_index_survives():
    reports = dpk.perturb(frame(), {"age": AGES})
    assert list(reports.index) == list("vwxyz")


# What is refused.


@pytest.mark.parametrize(
    "x",
    [
        [23.0, 35.0],
        (23.0,),
        True,
        "23",
        None,
        {"age": VALUES},
        np.array([True, False]),
        np.array(["23"]),
        np.array([23.0, None], object),
        np.array([23 + 1j]),
        np.array(["2020-01-01"], "datetime64[D]"),
        jnp.array([True]),
        jnp.array([1j]),
        pd.Series([True, False]),
        pd.Series(["23"]),
        pd.Series(["a"], dtype="category"),
        pd.Series([True, None], dtype="boolean"),
        pd.Series(pd.to_datetime(["2020-01-01"])),
        pl.Series([True]),
        pl.Series(["23"]),
        pa.array([True]),
        pa.array(["23"]),
        pd.Index([1.0, 2.0]),
    ],
    ids=lambda x: type(x).__module__.partition(".")[0] + "-" + str(getattr(x, "dtype", type(x).__name__)),
)
@pytest.mark.parametrize("exactly", [True, False])
def test_what_does_not_hold_numbers_is_refused(x, exactly):
    with pytest.raises(TypeError, match="x: "):
        dpk.perturb(x, AGES, exact=exactly)


@pytest.mark.parametrize(
    "x",
    [
        pd.Series([1.0, 2.0, None]),
        pd.Series([1, 2, None], dtype="Int64"),
        pd.Series([1.0, 2.0, None], dtype="Float64"),
        pl.Series([1.0, 2.0, None]),
        pl.Series([1.0, 2.0, float("nan")]),
        pa.array([1.0, 2.0, None]),
        pa.chunked_array([[1, 2], [None]]),
    ],
    ids=["pandas", "Int64", "Float64", "polars", "polars NaN", "pyarrow", "pyarrow chunks"],
)
def test_missing_values_are_refused_with_their_row(x):
    with pytest.raises(ValueError, match="row 2 is"):
        dpk.perturb(x, AGES)


@every_table
def test_a_missing_column_is_named(make, column):
    with pytest.raises(ValueError, match="no column 'height'; the table has age, city, pay"):
        dpk.perturb(make(), {"height": AGES})


@every_table
def test_an_error_names_its_column(make, column):
    with pytest.raises(ValueError, match="column 'pay': x: row 1 is 355, outside"):
        dpk.perturb(make(), {"age": AGES, "pay": dpk.duchi(epsilon=1.0, lower=0.0, upper=300.0)})
    with pytest.raises(TypeError, match="column 'city': x: holds"):
        dpk.perturb(make(), {"city": AGES})


@every_table
@pytest.mark.parametrize("made", [AGES, {}, None])
def test_a_table_needs_a_dict(make, column, made):
    with pytest.raises(TypeError, match="dict from column name"):
        dpk.perturb(make(), made)


@pytest.mark.parametrize("x", [VALUES, pd.Series(VALUES), pl.Series(VALUES), pa.array(VALUES), jnp.ones(3)])
def test_a_dict_needs_a_table(x):
    with pytest.raises(TypeError, match="a dict is for tables"):
        dpk.perturb(x, {"age": AGES})


@pytest.mark.parametrize("x", [pd.Series([], dtype=float), pl.Series([], dtype=pl.Float64), pa.array([], pa.float64())])
def test_empty_columns_are_refused(x):
    with pytest.raises(ValueError, match="empty"):
        dpk.perturb(x, AGES)


def test_a_threefry_key_is_refused_for_tables_too():
    with pytest.raises(TypeError, match="256-bit"):
        dpk.perturb(frame(), {"age": AGES}, key=jax.random.key(0))


def test_masked_values_are_refused_and_traced_ones_too():
    with pytest.raises(ValueError, match="x: has 1 masked values"):
        perturb(np.ma.masked_array([1.0, 2.0], mask=[False, True]), AGES)
    with pytest.raises(TypeError, match=r"x: is traced.*mechanism\.sample"):
        jax.jit(lambda x: perturb(x, AGES))(jnp.ones(3))


def test_a_pandas_table_with_columns_that_are_numbers():
    table = pd.DataFrame({0: [1.0, 2.0], 1: ["a", "b"]})
    reports = perturb(table, {0: AGES})
    assert list(reports.columns) == [0, 1]
    assert not (reports[0] == table[0]).any()
    assert (reports[1] == table[1]).all()
    assert list(table[0]) == [1.0, 2.0]
    with pytest.raises(ValueError, match="no column 7; the table has 0, 1"):
        perturb(table, {7: AGES})


@pytest.mark.parametrize("exact", [True, False])
def test_an_error_in_an_array_of_several_axes_names_the_index(exact):
    x = np.zeros((3, 2))
    x[1, 1] = 500
    with pytest.raises(ValueError, match=r"x: value \(1, 1\) is 500, outside"):
        perturb(x, AGES, exact=exact)


def test_simulated_vectors_of_a_wrong_shape_are_refused():
    vectors = dpk.multivariate(dimensions=4, epsilon=1.0, lower=[0.0] * 4, upper=[1.0] * 4)
    for x in (np.float64(0.5), np.zeros((5, 3))):
        with pytest.raises(ValueError, match="last axis must hold the 4 coordinates"):
            perturb(np.asarray(x), vectors, exact=False)
