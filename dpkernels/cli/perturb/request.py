"""``dpkernels perturb``: its arguments and options as they were given, and the release that they specify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from dpkernels.cli import categories
from dpkernels.cli.calendar import days_since
from dpkernels.cli.files.categories import is_categorical
from dpkernels.cli.files.converted import ConvertedFile
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import STANDARD_INPUT, Layout, input_layout, written_layout
from dpkernels.cli.interrupts import independent_of_reports
from dpkernels.cli.ledger import LedgerAccount
from dpkernels.cli.mechanisms import DEFAULT, build_exact_sampler, check_count, options_by_column
from dpkernels.cli.options import flag, single
from dpkernels.cli.perturb import queries
from dpkernels.cli.perturb.sidecar import Column, ReleaseSpec, RowOptions
from dpkernels.cli.terminal import private
from dpkernels.cli.text import label, listed
from dpkernels.release.charges import DIFFERENT_PEOPLE, SAME_PEOPLE, is_statistic


def describe_columns(source: Source) -> str:
    """Return the columns in words; their names may be cells of the first row, of a file without a header."""
    count = len(source.names)
    return private(listed(source.names), f"{count} column{'s' * (count > 1)}")


@dataclass(frozen=True)
class Request:
    """The arguments and options of ``dpkernels perturb``, as they were given."""

    source: Path | str
    target: Path | str
    # The values of the mechanisms' options that were given; see ``mechanisms.options_by_column``.
    options: Mapping[str, Sequence[Any]]
    columns: Sequence[str]
    mechanism: Sequence[str]  # one for all columns or one a column; none for the default
    clip: bool
    force: bool
    ledger: Sequence[Path]
    budget: Sequence[tuple[Decimal, ...]]
    rows: Sequence[str]  # whom the rows are about, for the charge to a ledger
    missing: str
    decimals: int | None
    shuffle_rows: bool
    sidecar: Path | None  # where the certificates go; needed if OUT is -
    file_format: str | None  # the format; None for the one that the suffixes say
    delimiter: str | None  # None for that of the format
    multiline: bool
    missing_markers: tuple[str, ...] = ()  # texts of cells without a value, besides the usual ones
    query_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of columns, by parameter
    together: Sequence[tuple[Decimal, ...]] = ()  # the budget of all rows
    label: str | None = None  # of the charge
    full_certificate: bool = False  # whether the sidecar has the integers of tables as numbers
    resume: bool = False  # whether to continue a killed run to the same output
    # The days from which dates are counted, of columns by name, or of all columns of numbers.
    date_origin: Sequence[tuple[str | None, date]] = ()
    output_format: str | None = None  # the format of OUT; None for the one that its suffix or ``file_format`` says

    def name(self, description: str) -> str:
        """Return what the ledger calls the charge for a release."""
        if self.label is None:
            return description
        if not self.ledger:
            raise click.UsageError("--label: is for a charge to a ledger; it needs --ledger FILE")
        return f"{self.label}: {description}"

    def account(self, files: Sequence[Path], folders: Sequence[Path] = ()) -> LedgerAccount | None:
        return LedgerAccount.from_options(single({"ledger": self.ledger, "budget": self.budget}), files, folders)

    def layouts(self, source: Path, target: Path) -> tuple[Layout, Layout | None]:
        """Return the layout of a file, and that of its output if it is another one; None if it is the same."""
        text_options = self.multiline, self.missing_markers
        layout = input_layout(source, target, self.file_format, self.delimiter, *text_options, self.output_format)
        return layout, written_layout(layout, target, self.file_format, self.output_format, self.delimiter)

    def spec(
        self, source: Source, layout: Layout, converted: Layout | None = None, shuffleable: bool = True
    ) -> ReleaseSpec:
        """Return the release of a file, or of several like it, with certified mechanisms."""
        options = RowOptions(self.missing, self.decimals, self.shuffle_rows, shuffleable)
        if options.missing == "drop" and not source.droppable:
            raise click.UsageError(f"--missing drop: {source.path} has no rows of one value each that could be dropped")
        perturbed, query_request = self._names(source), self._query_request()
        options = options if query_request is None else replace(options, shuffleable=False)
        parameters = None if query_request is None else self._read_queries(query_request, source, perturbed, options)
        if parameters is None:
            columns = self._columns(source, perturbed)
        else:
            columns = self._query_column(perturbed[0], parameters)
        if not source.names and is_categorical(columns[0].sampler.certificate):
            raise click.UsageError(f"--mechanism: {columns[0].mechanism} is for columns; {source.path} is one array")
        also = [text for name, text in source.also_copied.items() if name not in perturbed]
        also = [] if options.missing == "drop" or options.shuffle else also
        copied = *(name for name in source.names if name not in perturbed), *also
        names, values = tuple(source.names), source.values_per_row
        rows = self._rows(columns, parameters)
        specified = columns, self.clip, layout, options, names, values, copied, rows, self.full_certificate
        return ReleaseSpec(*specified, queries=parameters, converted=converted)

    def _columns(self, source: Source, perturbed: Sequence[str | None]) -> tuple[Column, ...]:
        """Return the columns with the mechanisms that are named, or the default one."""
        mechanisms = self.mechanism or [self._default]
        check_count("mechanism", len(mechanisms), len(perturbed))
        spread = list(mechanisms) * (len(perturbed) if len(mechanisms) == 1 else 1)
        origins, titles = self._origins(perturbed, spread), [label(name) for name in perturbed]
        column_options = map(in_days, options_by_column(spread, self.options), origins, titles)
        samplers = [build_exact_sampler(*setting) for setting in zip(spread, column_options, titles, strict=True)]
        settings = zip(perturbed, samplers, origins, strict=True)
        return tuple(
            Column(name, *sampler, date_origin=origin, is_single=name in source.single_precision)
            for name, sampler, origin in settings
        )

    def _query_request(self) -> queries.QueryRequest | None:
        return queries.QueryRequest.from_options(self.query_columns, self.together)

    def check_no_queries(self) -> None:
        """Refuse parameters of rows, which are for one file."""
        if self._query_request() is not None:
            option = "--together" if self.together else queries.column_option(next(iter(self.query_columns)))
            raise click.UsageError(f"{option}: is for one file; a dataset has one mechanism for all its rows")

    def _read_queries(
        self, request: queries.QueryRequest, source: Source, perturbed: Sequence[str | None], options: RowOptions
    ) -> queries.Queries:
        """Return the public parameters of every row."""
        if isinstance(source, ConvertedFile):
            raise click.UsageError("OUT: rows with parameters of their own are released in the format of IN")
        if source.path == STANDARD_INPUT:
            raise click.UsageError("IN: standard input cannot be read twice, and the rows' parameters are read first")
        request.check(source, perturbed, options.missing, options.shuffle)
        with independent_of_reports():
            return request.read(source)

    def _query_column(self, name: str | None, parameters: queries.Queries) -> tuple[Column, ...]:
        """Return the one column, of which every row has a mechanism."""
        if self.date_origin:
            raise click.UsageError("--date-origin: is for columns of dates; rows that are queries hold numbers")
        settings = in_days(single({"mechanism": self.mechanism, **self.options}), None, "")
        return (Column(name, *queries.build(settings.pop("mechanism", None), settings, parameters)),)

    def _origins(self, columns: Sequence[str | None], mechanisms: Sequence[str]) -> list[date | None]:
        """Return the day from which the dates of each column are counted; None for a column of no dates."""
        by_name = dict(self.date_origin)
        if len(by_name) < len(self.date_origin):
            raise click.UsageError("--date-origin: given twice for the same columns")
        may_have = {
            name: mechanism not in categories.NAMES
            for name, mechanism in zip(columns, mechanisms, strict=True)
            if name is not None
        }
        for name in by_name:
            if name is None and not any(may_have.values()):
                raise click.UsageError("--date-origin: is for columns of dates; there is none")
            if name is not None and not may_have.get(name):
                problem = "holds categories" if name in may_have else "is no perturbed column"
                raise click.UsageError(f"--date-origin: {name!r} {problem}")
        usual = by_name.get(None)
        return [by_name.get(name, usual) if name and may_have[name] else None for name in columns]

    @property
    def _default(self) -> str:
        """Return the mechanism of columns for which none is given."""
        if {"alphabet", "length"} & self.options.keys():
            return "prefix-response"
        if not {"categories", "categories_from"} & self.options.keys():
            return DEFAULT
        if numeric := {"lower", "upper", "sensitivity"} & self.options.keys():
            raise click.UsageError(
                f"--mechanism: missing; with --categories and --{min(numeric)} give one for each column, such as "
                f"categorical and {DEFAULT}"
            )
        return "categorical"

    def _rows(self, columns: Sequence[Column], parameters: queries.Queries | None) -> str | None:
        """Return whom the rows are about; with a ledger, rows of statistics must say so."""
        rows = single({"rows": self.rows}).get("rows")
        if parameters is not None and parameters.together is not None:
            if rows not in (None, SAME_PEOPLE):
                raise click.UsageError(f"--rows {rows}: the rows of --together are all about the same people")
            return SAME_PEOPLE
        if rows is not None and not self.ledger:
            raise click.UsageError("--rows: says what is charged to a ledger; it needs --ledger FILE")
        tables = [getattr(column.sampler.certificate, "tables", [column.sampler.certificate])[0] for column in columns]
        statistics = [column for column, table in zip(columns, tables, strict=True) if is_statistic(table)]
        if statistics and self.ledger and rows is None:
            raise click.UsageError(
                f"--rows: missing; the ledger must know whom the rows of {statistics[0].mechanism} are about: "
                f"{SAME_PEOPLE} charges all rows together, {DIFFERENT_PEOPLE} charges one"
            )
        return rows

    def _names(self, source: Source) -> Sequence[str | None]:
        if not source.names:
            if self.columns:
                raise click.UsageError(f"--column: {self.columns[0]!r}; {source.path} is one array and has no columns")
            return [None]
        if not self.columns:
            raise click.UsageError(f"--column: missing; {source.path} has {describe_columns(source)}")
        for name in self.columns:
            if (count := list(source.names).count(name)) != 1:
                problem = (
                    f"{count} columns of this name" if count else f"no such column; it has {describe_columns(source)}"
                )
                raise click.UsageError(f"--column: {name!r}; {source.path} has {problem}")
            if self.columns.count(name) > 1:
                raise click.UsageError(f"--column: {name!r} is given twice")
        return self.columns


def in_days(options: Mapping[str, object], origin: date | None, where: str) -> dict[str, Any]:
    """Return the options of a column, whose dates are days since its origin."""
    numbers = dict(options)
    for name, value in options.items():
        if isinstance(value, date):
            if origin is None:
                raise click.UsageError(f"{where}{flag(name)}: {value} is a date; --date-origin is missing")
            numbers[name] = days_since(value, origin)
    return numbers
