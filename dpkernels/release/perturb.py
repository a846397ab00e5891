"""The function ``perturb``, which returns reports in the same kind of container as its input."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpkernels import checks
from dpkernels.batches import check_fits
from dpkernels.decimals import shortest
from dpkernels.exact.batches import ExactBatch
from dpkernels.exact.registry import ExactMultivariate, exact_sampler
from dpkernels.exact.sampler import COORDINATE_STREAM, ExactSampler
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.mechanisms.additive import Additive, AdditiveVector, check_dimensions
from dpkernels.mechanisms.base import Mechanism, sample_from
from dpkernels.mechanisms.multivariate import Multivariate, chosen_coordinates
from dpkernels.numerics import Real, RealArray
from dpkernels.progress import bar
from dpkernels.pytrees import PyTree
from dpkernels.random import host, keys
from dpkernels.release import containers
from dpkernels.release.batch_engine import BatchRelease
from dpkernels.release.categories import is_categorical, perturb_categories
from dpkernels.release.charges import Chargeable, charge
from dpkernels.release.containers import Container
from dpkernels.release.engines import DeviceRelease, exact_engine, in_chunks
from dpkernels.release.host_engine import padded_length
from dpkernels.release.inputs import Bounds, InputError, report_type
from dpkernels.release.process import check_process, kernel_settings
from dpkernels.release.ray_data import perturb_dataset

if TYPE_CHECKING:
    import ray.data

Advance = Callable[[int], object]

_PROGRESS_VALUES = 1 << 26  # The smallest number of values for which a terminal shows a progress bar.
_MAX_VALUES = 1 << 62  # of a release: a stream has 2^70 bytes, and a value takes up to 8
_ROWS = 1 << 16  # The number of vectors that are checked and released at once, which bounds the memory of copies.


def perturb(
    x: Container,
    mechanism: PyTree,
    *,
    key: Array | None = None,
    exact: bool = True,
    clip: bool = False,
    progress: bool | None = None,
    start: int = 0,
    missing: str = "refuse",
    ledger: Chargeable | None = None,
    rows: str | None = None,
    label: str = "",
    devices: Sequence[object] | None = None,
) -> Container:
    """Perturb every value of ``x`` with noise of its own, and return the reports.

    With ``exact=True`` (a release) the reports are drawn from the mechanism's certified integers, with ChaCha20 words
    under a 256-bit key from the operating system. With ``exact=False`` they come from float kernels, for simulation
    only.

    Guarantee of a release:

    - Bounded mechanisms: each report is epsilon-DP. Any two inputs of the interval are neighbours (local DP), or, if
      the mechanism has a sensitivity, any two inputs at most that far apart.
    - Additive mechanisms: their claimed (epsilon, delta), for inputs at most the sensitivity apart.

    Inputs are the floats that are perturbed. The guarantee assumes that the generator is secure. It does not cover
    timing and other side channels. Several rows about the same person compose; a ``ledger`` is charged for them.

    The noise of value i depends only on the key and on i, not on chunks, threads or devices.

    Args:
        x: a NumPy or JAX array of any shape, a Python number, a pandas, polars or pyarrow column; or a table of one of
            these, or a ray.data.Dataset. The last axis of x holds the coordinates if the mechanism is on vectors. Of a
            table, the other columns and the index are copied unprotected. What may hold raw values besides is left out:
            ``attrs`` of pandas, metadata of Arrow, categories that no row has.
        mechanism: a mechanism or its exact sampler; or a batch of mechanisms, whose parameters are arrays, for x of the
            shape (..., *batch_shape), each value with the mechanism of its own place; for a table a dict from column
            name to one of these. Names are strings, integers, or tuples of these.
        key: a ChaCha20 key, to repeat a release (``exact=True``), or any typed key to simulate. Never use a release's
            key for other data, nor for another mechanism. The key of a table's column is derived from the column's
            name, so its noise does not depend on the other columns or on their order.
        exact: release (True) or simulate (False).
        clip: clip inputs to the interval instead of refusing those outside.
        progress: show a progress bar; by default for long work on a terminal.
        start: the row number in the release of the first row of x, to make a release in parts, on several machines, or
            to repeat a part: ``perturb(x[n:], m, key=key, start=n)`` equals ``perturb(x, m, key=key)[n:]``. It requires
            the release's key. Rows are along the first axis of x; a vector by itself is one row. Never release
            different values under the same row number: they would have the same noise, and the difference of their
            reports would be the difference of the values.
        missing: the treatment of rows with a missing value (NaN, null, or a masked entry). By default they are refused.
            "keep" leaves them missing; "drop" removes them, from a table if any named column is missing. With "keep"
            and "drop" the release shows which rows are missing.
        ledger: a ``Ledger``, ``Filter`` or ``Odometer`` of ``accountants``. It is charged before a value is perturbed.
            If it refuses the charge, nothing is released. If the release fails after the charge, the charge stays.
        rows: whom the rows are about, for the charge: "same-people" charges all of them, and "different-people" one. It
            is required for several rows of a mechanism with a sensitivity, because statistics are usually about the
            same people. By default each row of a local mechanism is a person. All values of a row are charged, and
            missing ones too.
        label: a description of the release in the ledger, visible to all its readers.
        devices: the JAX devices that make the reports of values in host memory, such as ``jax.devices("gpu")``. By
            default the CPU makes them, also where there is a GPU. A JAX array is perturbed on the devices that hold it.
            The reports are the same bits everywhere.

    Returns:
        Reports of the same kind and shape as x, a scalar for a scalar: float32 for float32, else float64 (JAX arrays
        follow JAX's x64 flag).

    Raises:
        ValueError: x is empty, or holds NaN, an infinity, or (without ``clip``) a value outside the interval. The
            message names the first such row. Or the mechanism has a sensitivity and x holds integers that floats would
            round, or float32 is too coarse for the mechanism. Or start is negative, is 2^62 values or more, or is given
            without a key or for a simulation.
        TypeError: x is not numeric, or the key is of the wrong kind.
        CertificateError: the mechanism's exact sampler fails its certificate.
        BudgetExceeded: the ledger refuses the charge; nothing was charged or released.
        RuntimeError: this process was forked from one in which JAX had run.

    Example:
        >>> import numpy as np, dpkernels as dpk
        >>> ages = np.array([23.0, 35.0, 61.0])
        >>> dpk.perturb(ages, dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)).shape
        (3,)
    """
    check_process()
    if type(start) is not int or start:
        start = checks.integer_in("start", start, 0, _MAX_VALUES)
        if start and not exact:
            raise ValueError(f"start: {start} is for a release; a simulation is not made in parts")
        if start and key is None:
            raise ValueError(f"start: {start} needs the key of the release whose rows {start} and on these are")
    checks.one_of("missing", missing, ("refuse", "keep", "drop"))
    if devices is not None and (not exact or not len(devices) or isinstance(x, Array)):
        raise ValueError(f"devices: {devices}; they are one or more, for a release of values in host memory")
    options: dict[str, Any] = {"key": key, "exact": exact, "clip": clip, "progress": progress, "start": start}
    options["devices"] = devices
    if ledger is not None:
        return _charged(x, mechanism, ledger, rows, label, missing=missing, **options)
    for name, value in (("rows", rows), ("label", label)):
        if value:
            raise ValueError(f"{name}: {value!r} describes a charge; it needs the ledger that is charged")
    if type(x) is not np.ndarray:
        containers.check_container(x)
        if containers.is_ray_dataset(x):
            return _perturb_ray_dataset(x, mechanism, missing, **options)
        if containers.is_table(x):
            return _perturb_table(x, mechanism, missing, **options)
    if isinstance(mechanism, dict):
        raise TypeError(f"mechanism: a dict is for tables, but x is {type(x).__name__}")
    if is_categorical(mechanism):
        return perturb_categories(x, mechanism, missing=missing, secret=_secret(options.pop("key"), exact), **options)
    if missing != "refuse" and (isinstance(mechanism, ExactBatch) or getattr(mechanism, "batch_shape", None)):
        raise _no_missing(missing)
    if missing != "refuse" and (missing_rows := _check_missing(x, mechanism)).any():
        present = np.flatnonzero(~missing_rows)
        try:
            if missing == "drop":
                return perturb(containers.take_rows(x, present), mechanism, **options)
            reports = perturb(containers.fill_missing(x, missing_rows), mechanism, **options)
        except InputError as error:
            if np.ndim(x) > 1:
                raise
            row = present[error.row] if missing == "drop" else max(error.row, present[0])
            raise error.named(f"row {row}") from None
        return containers.with_missing(reports, missing_rows, x)
    with kernel_settings():
        return _perturb_column(x, mechanism, **options)


def _charged(
    x: Container, mechanism: PyTree, ledger: Chargeable, rows: str | None, label: str, **options: Any
) -> Container:
    """Charge the release of x and then make it; an error after the charge has a note that the charge stays."""
    if not options["exact"]:
        raise ValueError("ledger: a simulation must not be released, so it is not charged")
    if containers.is_ray_dataset(x):
        raise ValueError("ledger: a ray.data.Dataset is not charged; `dpkernels perturb --ledger` releases datasets")
    containers.check_container(x)
    if options["missing"] != "refuse":
        containers.check_may_lack_values(x)
    if options["key"] is not None:
        keys.check_release_key(options["key"])
    if containers.is_table(x):
        _check_columns(x, mechanism)
    elif isinstance(mechanism, Mapping):
        raise TypeError(f"mechanism: a dict is for tables, but x is {type(x).__name__}")
    # What is certified and charged here is released below, whatever happens to a caller's dict meanwhile.
    is_table = isinstance(mechanism, Mapping)
    samplers = {name: exact_sampler(m) for name, m in mechanism.items()} if is_table else exact_sampler(mechanism)
    _check_batches(x, samplers, **options)
    amounts = charge(ledger, x, samplers, rows, label)
    try:
        return perturb(x, samplers, **options)
    except BaseException as error:
        error.add_note(f"The ledger was charged {amounts} for this release. The charge stays.")
        raise


def _no_missing(missing: str) -> ValueError:
    return ValueError(f"missing: {missing!r}; a batch has a mechanism for every value, so none may be missing")


def _check_batches(x: Container, samplers: PyTree, *, clip: bool, missing: str, **_: object) -> None:
    """Refuse, before a charge, values that do not fit a batch or its intervals."""
    is_table = isinstance(samplers, dict)
    columns = [(x[name], sampler) for name, sampler in samplers.items()] if is_table else [(x, samplers)]
    for values, sampler in columns:
        if isinstance(sampler, ExactBatch):
            if missing != "refuse":
                raise _no_missing(missing)
            array = np.asarray(containers.unwrap(values)[0])
            check_fits(array.shape, sampler.shape)
            entries = np.arange(array.size) % sampler.size
            try:
                sampler.derived[Bounds.of, clip].check_entries(array.reshape(-1), entries, 0)
            except InputError as error:
                raise _at_index(error, array.shape) from None


def _perturb_column(
    x: Real,
    mechanism: object,
    *,
    key: Array,
    exact: bool,
    clip: bool,
    progress: bool | None,
    start: int,
    devices: Sequence[object] | None,
) -> np.ndarray:
    array, rewrap = containers.unwrap(x)
    if array.size == 0:
        raise ValueError("x: is empty; at least one value is needed")
    sampler = exact_sampler(mechanism) if exact else getattr(mechanism, "mechanism", mechanism)
    inner = getattr(sampler, "mechanism", sampler)
    if isinstance(inner, AdditiveVector):
        _check_vectors(inner, array, clip)
    if isinstance(sampler, ExactBatch):
        check_fits(array.shape, sampler.shape)
    secret = _secret(key, exact)
    if start:
        is_vector = array.ndim == 1 and isinstance(inner, Multivariate | AdditiveVector)
        start *= math.prod(array.shape if is_vector else array.shape[1:])
        checks.integer_in("start: the index of the last value", start + array.size, 0, _MAX_VALUES)
    try:
        if array.size < _PROGRESS_VALUES and not progress:
            return rewrap(_reports(sampler, array, _Settings(secret, clip, start, devices, lambda _: None)))
        with bar(array.size, progress, array.size >= _PROGRESS_VALUES) as moved:
            settings = _Settings(secret, clip, start, devices, lambda count: moved(advance=count))
            return rewrap(_reports(sampler, array, settings))
    except InputError as error:
        raise _at_index(error, array.shape) from None


def _at_index(error: InputError, shape: tuple[int, ...]) -> InputError:
    """Return an error about a value of a flat array that names its place in an array of several axes."""
    if len(shape) < 2 or error.coordinate is not None:
        return error
    return error.named(f"value {tuple(int(i) for i in np.unravel_index(error.row, shape))}")


def _check_vectors(mechanism: AdditiveVector, x: RealArray, clip: bool) -> None:
    """Refuse vectors of another length, and values off a lattice known in advance."""
    check_dimensions(mechanism.dimensions, x.shape)
    if mechanism.lattice is None:
        return
    if clip:
        raise ValueError("clip: values on a lattice are not clipped; its ends may be off the lattice")
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    for first in range(0, len(rows), _ROWS):
        block = rows[first : first + _ROWS].astype(np.float64)
        remainders = np.fmod(np.where(np.isfinite(block), block, 0.0), float(mechanism.lattice))
        if remainders.any():
            row, column = (int(index) for index in np.argwhere(remainders)[0])
            value, step = shortest(block[row, column]), shortest(mechanism.lattice)
            raise ValueError(f"x: row {first + row}, value {column} is {value}, no multiple of {step}")


def _secret(key: Array | None, exact: bool) -> Array | bytes:
    """Return the 32 bytes of a release's key, or a simulation's key, which are random by default."""
    if exact:
        return os.urandom(32) if key is None else keys.release_key_bytes(key)
    if key is None:
        return keys.simulation_key(int.from_bytes(os.urandom(4), "little"))
    return keys.typed_simulation_key(key)


class _Settings(NamedTuple):
    """What reports follow from, besides the sampler and the values."""

    secret: Any  # the 32 bytes of a release's key, or the typed key of a simulation
    clip: bool
    first: int  # the index of the first value in the whole release
    devices: Sequence[object] | None
    advance: Advance  # is called with the number of values of each completed piece

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"{type(self).__name__}(clip={self.clip}, first={self.first})"


@singledispatch
def _reports(sampler: object, x: RealArray, settings: _Settings) -> RealArray:
    """Return reports of a NumPy or JAX array."""
    raise TypeError(f"mechanism: {type(sampler).__name__} is not a mechanism or an exact sampler")


@_reports.register
def _(sampler: ExactSampler, x: RealArray, settings: _Settings) -> RealArray:
    secret, clip, first, devices, advance = settings
    bounds = sampler.derived[Bounds.of, clip]
    if isinstance(x, Array):
        holders = tuple(sorted(x.devices(), key=lambda device: device.id))
        reports = DeviceRelease(sampler, secret, holders).on_device(bounds.check_on_device(x).reshape(-1), first)
        advance(x.size)
        return reports.reshape(x.shape)
    return in_chunks(exact_engine(sampler, secret, devices), bounds, x, start=first, row=0, advance=advance)


@_reports.register
def _(sampler: ExactBatch, x: RealArray, settings: _Settings) -> RealArray:
    secret, clip, first, devices, advance = settings
    if devices is not None:
        raise ValueError("devices: are for one mechanism; the CPU releases batches")
    bounds = sampler.derived[Bounds.of, clip]
    reports = in_chunks(BatchRelease(sampler, secret), bounds, np.asarray(x), start=first, row=0, advance=advance)
    return jax.device_put(reports, x.sharding) if isinstance(x, Array) else reports


@_reports.register
def _(sampler: ExactMultivariate, x: np.ndarray, settings: _Settings) -> np.ndarray:
    """Choose coordinates, and report them by the coordinate mechanism; row i has word i of the choice's stream."""
    secret, clip, first, devices, advance = settings
    mechanism, d, s = sampler.mechanism, sampler.mechanism.dimensions, sampler.mechanism.sampled
    check_dimensions(mechanism.dimensions, x.shape)
    rows, start = np.asarray(x).reshape(-1, d), first // d
    bounds, on_unit = Bounds.of(mechanism, clip), Bounds(np.array(-1.0), np.array(1.0), clip=True)
    middle = np.broadcast_to((bounds.lower + bounds.upper) / 2, (d,))
    half_width = np.broadcast_to((bounds.upper - bounds.lower) / 2, (d,))
    engine = exact_engine(sampler.coordinate, secret, devices)
    out = np.empty(rows.shape, report_type(x.dtype))
    out[:] = middle
    for row in range(0, len(rows), _ROWS):
        block = bounds.check_rows(rows[row : row + _ROWS], row)
        chosen = chosen_coordinates(_starts(secret, start + row, len(block), d), d, s)
        z = (np.take_along_axis(block, chosen, axis=1) - middle[chosen]) / half_width[chosen]
        reports = in_chunks(engine, on_unit, z, start=(start + row) * s)
        np.put_along_axis(out[row : row + _ROWS], chosen, middle[chosen] + half_width[chosen] * (d / s) * reports, 1)
        advance(block.size)
    return out.reshape(x.shape)


def _starts(secret: bytes, first: int, rows: int, dimensions: int) -> np.ndarray:
    """Return floor(word d / 2^64) for one 64-bit word a row; every start has probability 1/d within d/2^64."""
    skip = first % 8  # A block has eight of them.
    words = np.empty(skip + rows, "<u8")
    host.fill(words, secret, COORDINATE_STREAM, first // 8)
    words = words[skip:]
    d, half_word = np.uint64(dimensions), np.uint64(32)
    high, low = words >> half_word, words & np.uint64(0xFFFFFFFF)
    return ((high * d + (low * d >> half_word)) >> half_word).astype(np.int64)


@_reports.register(Mechanism)
@_reports.register(AdditiveVector)
def _(sampler: Additive, x: np.ndarray, settings: _Settings) -> RealArray:
    bounds, mechanism = Bounds.of(sampler, settings.clip), getattr(sampler, "coordinate", sampler)
    if batch_shape := getattr(mechanism, "batch_shape", None):
        check_fits(x.shape, batch_shape)
        values = bounds.check_entries(np.asarray(x).reshape(-1), np.arange(x.size) % mechanism.batch_size, 0)
        with kernel_settings(x64=values.dtype == np.float64):
            reports = mechanism.sample(settings.secret, jnp.asarray(values.reshape(x.shape)))
        settings.advance(x.size)
        return reports if isinstance(x, Array) else np.asarray(reports)
    if isinstance(x, Array):
        return sample_from(mechanism, settings.secret, 0, bounds.check_on_device(x))

    def simulate(x: np.ndarray, start: int, out: np.ndarray, bounds: Bounds, row: int) -> int:
        values = bounds.check(x, row)
        padded = np.pad(values, (0, padded_length(len(values)) - len(values)), mode="edge")
        with kernel_settings(x64=values.dtype == np.float64):
            out[:] = np.asarray(sample_from(mechanism, settings.secret, start, jnp.asarray(padded)))[: len(values)]
        return len(values)

    return in_chunks(simulate, bounds, x, advance=settings.advance)


@_reports.register
def _(sampler: Multivariate, x: np.ndarray, settings: _Settings) -> np.ndarray:
    check_dimensions(sampler.dimensions, x.shape)
    values = Bounds.of(sampler, settings.clip).check_rows(np.asarray(x), 0)
    with kernel_settings(x64=values.dtype == np.float64):
        reports = np.asarray(sampler.sample(settings.secret, values))
    settings.advance(x.size)
    return reports


def _perturb_ray_dataset(
    x: ray.data.Dataset, mechanisms: object, missing: str, clip: bool, progress: object, **options: object
) -> ray.data.Dataset:
    if missing != "refuse":
        raise ValueError(f"missing: {missing!r} is not for a ray.data.Dataset; `dpkernels perturb` releases datasets")
    if not isinstance(mechanisms, Mapping) or not mechanisms:
        raise TypeError("mechanism: a ray.data.Dataset needs a dict from column name to mechanism")
    if any(map(is_categorical, mechanisms.values())):
        raise TypeError("mechanism: a ray.data.Dataset of categories is released by `dpkernels perturb --engine ray`")
    if options["devices"] is not None:
        raise ValueError("devices: the blocks of a ray.data.Dataset are perturbed by CPUs, where Ray holds them")
    settings = {"key": options["key"] is not None, "start": options["start"], "exact=False": not options["exact"]}
    for name, is_set in settings.items():
        if is_set:
            raise ValueError(f"{name}: the rows of a ray.data.Dataset have no order that a second run would repeat")
    return perturb_dataset(x, mechanisms, clip)


def _check_missing(x: Container, mechanism: object) -> np.ndarray:
    """Return whether each row has a missing value; refuse rows that are all missing."""
    containers.check_may_lack_values(x)
    is_missing = containers.is_missing(x)
    if is_missing.all():
        raise ValueError("x: every row has a missing value; at least one value is needed")
    if np.ndim(x) == 1 and hasattr(getattr(mechanism, "mechanism", mechanism), "dimensions") and is_missing.any():
        raise ValueError("missing: x is one vector, which cannot be released without some of its values")
    return is_missing


def _check_columns(table: object, mechanisms: object) -> None:
    """Refuse mechanisms that do not name columns of the table."""
    if not isinstance(mechanisms, Mapping) or not mechanisms:
        raise TypeError("mechanism: a table needs a dict from column name to mechanism")
    names = containers.column_names(table)
    if unknown := [name for name in mechanisms if name not in names]:
        raise ValueError(f"mechanism: no column {unknown[0]!r}; the table has {', '.join(map(str, names))}")
    for name in mechanisms:
        if (count := names.count(name)) > 1:
            raise ValueError(f"mechanism: the table has {count} columns {name!r}; which of them is not said")


def _perturb_table(table: Container, mechanisms: dict[str, Mechanism], missing: str, **options: Any) -> Container:
    """Perturb every named column with a key of its own, and leave the other columns as they are."""
    _check_columns(table, mechanisms)
    present = None
    if missing == "drop":
        is_missing = np.any([containers.is_missing(table[name]) for name in mechanisms], axis=0)
        if is_missing.any():
            present = np.flatnonzero(~is_missing)
            table = containers.take_rows(table, present)
    secret = _secret(options.pop("key"), options["exact"])
    columns, column_keys = {}, {name: _column_key(secret, name) for name in mechanisms}
    for name, mechanism in mechanisms.items():
        with containers.naming_column(name):
            try:
                columns[name] = perturb(table[name], mechanism, key=column_keys[name], missing=missing, **options)
            except InputError as error:
                if present is None:
                    raise
                raise error.named(f"row {present[error.row]}") from error  # of the table that was given
    return containers.replace_columns(table, columns)


def _column_key(secret: bytes | Array, name: Hashable) -> Array:
    """Return the key of a table's column: two columns never share noise."""
    if isinstance(secret, bytes):
        return keys.key_from_bytes(keys.column_secret(secret, name))
    return keys.column_key(secret, name)
