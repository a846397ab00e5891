"""Exact samplers of batches: integer tables that entries share, the map from entry to table, and its certificate.

Entries share a table if they differ only by an affine map: in the interval of a local mechanism, or in the unit of
additive noise. Each entry uses the table on a separate grid. So an entry releases the same bits as the single mechanism
under the same key and index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import ClassVar

import numpy as np

from dpkernels.batches import distinct_entries, flat_leaves, leaves, map_leaves, plain_if_equal
from dpkernels.bounded_json import JsonObject, brief
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.sampler import Derived, ExactSampler, StackedSampler, Words
from dpkernels.jax_on_use import Tracer
from dpkernels.mechanisms.base import Mechanism

MAX_TABLES = 1 << 12  # Of a batch: they take a megabyte each.
_MAX_ENTRIES = 1 << 24  # Of a certificate that is read.


@dataclass(frozen=True, eq=False)
class BatchCertificate(Certificate, kind="batch"):
    """Verified facts about a batch: certificates of its tables, the table of every entry, and every entry's claim.

    ``claims`` are arrays with the numbers of every entry, in order. They are what an entry's own certificate states: an
    entry has the guarantee of its table's certificate, for its own sensitivity or interval.
    """

    tables: tuple[Certificate, ...]
    shape: tuple[int, ...]
    table_index: np.ndarray  # The index of every entry's table.
    claims: Mapping[str, np.ndarray]

    components: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        size = int(np.prod(self.shape))
        if not self.tables or not self.shape or size < 1:
            raise CertificateError(f"shape: {self.shape} with {len(self.tables)} tables is no batch")
        for name, values in (("table_of", self.table_index), *self.claims.items()):
            if np.shape(values) != (size,):
                raise CertificateError(f"{name}: has shape {np.shape(values)}; {size} entries need one number each")
        if set(np.unique(self.table_index).tolist()) != set(range(len(self.tables))):
            raise CertificateError(f"table_of: does not name each of the {len(self.tables)} tables, and no other one")
        for number, (table, entries) in enumerate(zip(self.tables, self.table_entries, strict=True)):
            claims = {name: values[entries] for name, values in self.claims.items()}
            if set(claims) != set(table.entry_claims):
                raise CertificateError(
                    f"claims: are of {', '.join(claims)}; {', '.join(table.entry_claims)} are needed"
                )
            if (refused := table.refused_entries(claims)).any():
                entry = np.unravel_index(entries[int(refused.argmax())], self.shape)
                index = entry[0] if len(entry) == 1 else tuple(map(int, entry))
                claim = ", ".join(
                    f"{name} {shortest(values[int(refused.argmax())])}" for name, values in claims.items()
                )
                raise CertificateError(f"entry {index}: table {number} is not certified for {claim}")

    @cached_property
    def table_entries(self) -> list[np.ndarray]:
        """Return, for every table, the numbers of the entries that have it, in order."""
        order = np.argsort(self.table_index, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.table_index, minlength=len(self.tables)))[:-1])

    @cached_property
    def epsilon(self) -> np.ndarray:
        """Return the budget of every entry, as printed."""
        return self._of_entries("epsilon")

    @cached_property
    def delta(self) -> np.ndarray:
        return self._of_entries("delta")

    def _of_entries(self, name: str) -> np.ndarray:
        if name in self.claims:
            return self.claims[name].reshape(self.shape)
        values = np.array([float(getattr(table, name, 0.0)) for table in self.tables])
        return values[self.table_index].reshape(self.shape)

    @property
    def covers(self) -> str:
        return f"Every entry by itself, for its own sensitivity or interval. {self.tables[0].covers}"

    def lines(self) -> list[tuple[str, str]]:
        size, count = len(self.table_index), len(self.tables)
        return [("batch", f"{size} mechanisms of shape {self.shape}; {count} tables, each verified")]

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"-- table {i}\n{table}" for i, table in enumerate(self.tables))])

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "table_of": self.table_index.tolist(),
            "claims": {name: values.tolist() for name, values in self.claims.items()},
            "covers": self.covers,
            "tables": [table.to_dict() for table in self.tables],
        }

    @classmethod
    def certified(cls, payload: JsonObject) -> BatchCertificate:
        tables, numbers, claims = payload["tables"], payload["table_of"], payload["claims"]
        if type(tables) is not list or len(tables) > MAX_TABLES:
            raise CertificateError(f"tables: {brief(tables)} is not a list of at most {MAX_TABLES} certificates")
        if type(numbers) is not list or len(numbers) > _MAX_ENTRIES or any(type(n) is not int for n in numbers):
            raise CertificateError(f"table_of: {brief(numbers)} is not a list of at most {_MAX_ENTRIES} integers")
        if any(type(x) is not float for values in claims.values() for x in values):
            raise CertificateError("claims: are not lists of floats")
        columns = {str(name): _frozen(np.array(values, np.float64)) for name, values in claims.items()}
        shape = tuple(payload["shape"])
        if any(type(n) is not int or n < 1 for n in shape):
            raise CertificateError(f"shape: {brief(shape)} is not a list of positive integers")
        certificates = tuple(Certificate.from_dict(table) for table in tables)
        return cls(certificates, shape, _frozen(np.array(numbers, np.int64)), columns)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Stack:
    """The tables of a batch that are sampled by one program."""

    tables: np.ndarray  # Their indices.
    sampler: StackedSampler
    words: tuple[int, ...]  # The indices of those of the batch's words that they take.


@dataclass(frozen=True, eq=False)
class ExactBatch:
    """An exact sampler of a batch: a verified table for every entry, which other entries may share."""

    mechanism: Mechanism
    certificate: BatchCertificate
    samplers: tuple[ExactSampler, ...]  # One a table; that of an entry that has it.

    @cached_property
    def derived(self) -> Derived:
        """Return what releases derive from the sampler, as ``ExactSampler.derived`` does."""
        return Derived(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the batch shape: values have the shape (..., *shape)."""
        return self.certificate.shape

    @property
    def size(self) -> int:
        return len(self.certificate.table_index)

    @cached_property
    def subnormal_safe_radius(self) -> float:
        """Return the least of all entries."""
        return min(sampler.least_safe_radius(self._table_claims(i)) for i, sampler in enumerate(self.samplers))

    def _table_claims(self, number: int) -> dict[str, np.ndarray]:
        entries = self.certificate.table_entries[number]
        return {name: values[entries] for name, values in self.certificate.claims.items()}

    @cached_property
    def words(self) -> tuple[Words, ...]:
        """Return the types of the words that any table takes."""
        return tuple(dict.fromkeys(chain.from_iterable(sampler.words for sampler in self.samplers)))

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return the tables by the program that samples them; those of a class that joins none stand alone."""
        groups: dict[object, list[int]] = {}
        for number, sampler in enumerate(self.samplers):
            groups.setdefault(sampler.stack_key or number, []).append(number)
        return tuple(self._stack(numbers) for numbers in groups.values())

    def _stack(self, numbers: list[int]) -> Stack:
        samplers = [self.samplers[number] for number in numbers]
        words = tuple(self.words.index(need) for need in samplers[0].words)
        return Stack(np.array(numbers), type(samplers[0]).stacked(samplers), words)

    @cached_property
    def stack_index(self) -> np.ndarray:
        """Return the number of every entry's stack."""
        stack_of_table = np.empty(len(self.samplers), np.int64)
        for number, stack in enumerate(self.stacks):
            stack_of_table[stack.tables] = number
        return stack_of_table[self.certificate.table_index]

    @cached_property
    def entry_parameters(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return, for every stack, the parameters of every entry; a plain number where all entries have the same.

        Those of entries of other stacks are 0.
        """
        return tuple(self._entry_parameters(stack) for stack in self.stacks)

    def _entry_parameters(self, stack: Stack) -> tuple[np.ndarray, ...]:
        columns: list[np.ndarray] = []
        for number in stack.tables.tolist():
            entries = self.certificate.table_entries[number]
            for i, values in enumerate(self.samplers[number].entry_parameters(self._table_claims(number))):
                if i == len(columns):
                    columns.append(np.zeros(len(self.certificate.table_index), np.asarray(values).dtype))
                columns[i][entries] = values
        return tuple(map(plain_if_equal, columns))

    @cached_property
    def table_parameters(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return, for every stack, its tables' parameters for every entry; a plain number where all have the same."""
        return tuple(self._table_parameters(stack) for stack in self.stacks)

    def _table_parameters(self, stack: Stack) -> tuple[np.ndarray, ...]:
        rank = np.zeros(len(self.samplers), np.int64)
        rank[stack.tables] = np.arange(len(stack.tables))
        entry_rank = rank[self.certificate.table_index]
        columns = [plain_if_equal(column) for column in stack.sampler.table_parameters]
        return tuple(column[entry_rank] if np.ndim(column) else column for column in columns)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: cached values are made again from them."""
        return {name: getattr(self, name) for name in ("mechanism", "certificate", "samplers")}


Tables = tuple[tuple[ExactSampler, ...], np.ndarray, dict[str, np.ndarray]]


def exact_batch(
    mechanism: Mechanism,
    in_units: Mechanism,
    exact_sampler: Callable[[Mechanism], ExactSampler],
    shared_tables: Callable[[Mechanism], Tables | None],
) -> ExactBatch:
    """Return the verified sampler of a batch, with a table for every class of entries, or tables that classes share.

    Entries of one class have the same parameters ``in_units`` of their own interval or sensitivity.
    """
    flat = flat_leaves(mechanism)
    for leaf, _ in leaves(flat):
        if isinstance(leaf, Tracer):
            raise TypeError("mechanism: a traced batch cannot be certified; its integers need its parameters' values")
    flat = map_leaves(lambda leaf, _: _frozen(np.array(leaf, np.float64)), flat)
    classes = distinct_entries(in_units)[1].reshape(in_units.batch_shape)
    classes = np.broadcast_to(classes, mechanism.batch_shape).ravel()
    tables = _class_tables(flat, classes, exact_sampler) if classes.max() < MAX_TABLES else None
    tables = tables or shared_tables(flat)
    if tables is None:
        raise CertificateError(
            f"mechanism: has over {MAX_TABLES} kinds of entries, each with a table; let more of them share their "
            "ratio of budget, delta and scale to sensitivity, for instance by rounding budgets down. Laplace noise of "
            "scale sensitivity/epsilon may have any number, from epsilon 0.002 on"
        )
    samplers, table_index, claims = tables
    frozen = {name: _frozen(values) for name, values in claims.items()}
    certificates = tuple(sampler.certificate for sampler in samplers)
    certificate = BatchCertificate(certificates, mechanism.batch_shape, _frozen(table_index), frozen)
    # A copy, so that the batch itself can be forgotten while it is a key of samplers.
    return ExactBatch(map_leaves(lambda leaf, _: leaf, mechanism), certificate, samplers)


def _class_tables(
    flat: Mechanism, classes: np.ndarray, exact_sampler: Callable[[Mechanism], ExactSampler]
) -> Tables | None:
    """Return a table for every class of alike entries; None if there are too many.

    Where a table does not fit an entry of its class, since a bin is a whole number of grid points, this entry starts a
    class of its own.
    """
    samplers: list[ExactSampler] = []
    table_index = np.full(flat.batch_size, -1)
    claims: dict[str, np.ndarray] = {}
    order = np.argsort(classes, kind="stable")
    for entries in np.split(order, np.flatnonzero(np.diff(classes[order])) + 1):
        while len(entries):
            if len(samplers) == MAX_TABLES:
                return None
            sampler: ExactSampler = exact_sampler(flat[int(entries[0])])
            certificate = sampler.certificate
            if not claims:
                claims = {name: np.empty(flat.batch_size) for name in certificate.entry_claims}
            stated = {name: np.broadcast_to(getattr(flat, name), flat.batch_size)[entries] for name in claims}
            refused = certificate.refused_entries(stated)
            if refused[0]:
                raise CertificateError("mechanism: an entry's own table is not certified for it")
            for name, values in stated.items():
                claims[name][entries[~refused]] = values[~refused]
            table_index[entries[~refused]] = len(samplers)
            samplers.append(sampler)
            entries = entries[refused]
    return tuple(samplers), table_index, claims
