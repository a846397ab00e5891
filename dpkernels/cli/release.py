"""``dpkernels release``: statistics of a file, from a session."""

from __future__ import annotations

import json
import math
import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import click

from dpkernels import checks
from dpkernels.bounded_json import parse_json, read_text
from dpkernels.budgets.filters import EpsilonDelta, amount, format_amount
from dpkernels.budgets.ledger import Ledger
from dpkernels.cli.errors import error_text
from dpkernels.cli.ledger import LedgerAccount, LedgerCharge, Price, settling
from dpkernels.cli.options import flag, usage_errors
from dpkernels.cli.perturb.output import Output, check_target, digest, matching_sidecar, sidecar_path
from dpkernels.cli.perturb.sidecar import WrittenFile
from dpkernels.cli.terminal import private, warnings
from dpkernels.cli.text import aligned, listed
from dpkernels.decimals import format_number, shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.session import (
    Count,
    DataWarning,
    Histogram,
    Mean,
    Quantiles,
    Regression,
    Result,
    Session,
    Statistic,
    Sum,
    Top,
    Variance,
)
from dpkernels.session.reports import verify
from dpkernels.session.results import plot_all
from dpkernels.session.tables import UnknownColumnError, make_table
from dpkernels.staging import naming, sha256_and_size, write_png

_SPACE = 1 << 20  # Bytes that a table and its sidecar may need; it is checked before the charge.
_KINDS: dict[str, Any] = {
    "sum": Sum, "mean": Mean, "variance": Variance, "histogram": Histogram, "quantiles": Quantiles
}  # fmt: skip


def _parse(text: str, syntax: str) -> list[Any]:
    """Return the parts of a form in an option, which are split at colons from the right: a column's name may have some.

    A part with dots is a list. Columns and values are texts, K is a whole number, and all others are numbers.
    """
    field_types = syntax.split(":")
    fields = text.rsplit(":", len(field_types) - 1)
    if len(fields) != len(field_types):
        raise ValueError(f"must have the form {syntax}")
    return [
        [_parse_part(item, field_type) for item in field.split(",")]
        if field_type.endswith("...")
        else _parse_part(field, field_type)
        for field, field_type in zip(fields, field_types, strict=True)
    ]


def _parse_part(text: str, field_type: str) -> Any:
    if field_type.startswith(("COL", "X", "Y", "VALUE")):
        return text
    try:
        return int(text) if field_type == "K" else float(text)
    except ValueError:
        raise ValueError(f"{field_type}: {text!r} is not a {'whole ' * (field_type == 'K')}number") from None


def statistics(options: Mapping[str, tuple[str, Sequence[str]]], by: Mapping[str, Any] | None) -> list[Statistic]:
    """Return the statistics of the command's options, each with its form and the texts that were given."""
    chosen: list[Statistic] = []
    for name, (syntax, texts) in options.items():
        for text in texts:
            with usage_errors(f"{flag(name)}: {text!r}: "):
                chosen.append(_statistic(name, _parse(text, syntax), by))
    return chosen


def _statistic(name: str, fields: Sequence[Any], by: Mapping[str, Any] | None) -> Statistic:
    if name == "top":
        return Top(*fields)
    if name == "regression":
        y, y0, y1, x, x0, x1 = fields
        return Regression(y, x, y_bounds=(y0, y1), x_bounds=(x0, x1), by=by)
    return _KINDS[name](*fields, by=by)


def groups(texts: Sequence[str]) -> dict[str, Any] | None:
    """Return the keys of --by, COLUMN=KEY,KEY or COLUMN=found."""
    by: dict[str, Any] = {}
    for text in texts:
        name, sign, keys = text.partition("=")
        if not sign or not name or name in by:
            raise click.UsageError(f"--by: {text!r} must be COLUMN=KEY,KEY,... or COLUMN=found, once for each column")
        by[name] = "found" if keys == "found" else keys.split(",")
        if keys != "found" and "" in by[name]:
            raise click.UsageError(f"--by: {text!r} has an empty key; an empty cell is missing, and in no group")
    if by:
        with usage_errors("--", (TypeError, ValueError)):
            Count(by=by)
    return by or None


def tidy(results: Sequence[Result], by: Mapping[str, object] | None, confidence: float) -> dict[str, list[Any]]:
    """Return one table of all results: keys, statistic, detail, value, low, high."""
    columns: dict[str, list[object]] = {
        name: [] for name in [*(by or {}), "statistic", "detail", "value", "low", "high"]
    }
    for result in results:
        document = result.to_dict(confidence)
        for row in range(len(result)):
            row_keys = {name: column[row] for name, column in document["index"].items()}
            for name in by or {}:
                columns[name].append(str(row_keys.pop(name)) if name in row_keys else None)
            columns["statistic"].append(result.name)
            columns["detail"].append(", ".join(f"{name} {value}" for name, value in row_keys.items()))
            for name in ("value", "low", "high"):
                columns[name].append(document[name][row])
    return columns


def _write(columns: Mapping[str, Sequence[object]], target: Path, file: object) -> None:
    table = make_table("pyarrow", columns)
    if target.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, file)
    else:
        import pyarrow.csv

        pyarrow.csv.write_csv(table, file)


@dataclass(frozen=True)
class Files:
    """The files of a release of statistics; what one of them is must not be another."""

    source: Path
    target: Path
    plot: Path | None
    ledger: LedgerAccount | None

    @classmethod
    def from_options(
        cls, source: Path, target: Path, plot: Path | None, charged: Mapping[str, Any], force: bool, is_dry: bool
    ) -> Self:
        """Check the files before anything is read, and raise a click.UsageError about those that cannot be used."""
        if target.suffix not in (".csv", ".parquet"):
            raise click.UsageError(f"OUT: {target} must end in .csv or .parquet")
        check_target(source, target, force or is_dry)
        if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
            raise click.UsageError(f"OUT: {target} is in the folder of the input; choose a folder outside it")
        files = [source, target, sidecar_path(target), *([] if plot is None else [plot])]
        if is_dry and not (charged.get("ledger") or source).exists():
            charged = {}
        return cls(
            source, target, plot, LedgerAccount.from_options(charged, files, [source] if source.is_dir() else [])
        )


def _session(files: Files, ledger: Ledger | None, requested: Sequence[Statistic], **options: Any) -> tuple[Any, Any]:
    """Return the session and the plan of a release, which nothing of the options prevents."""
    epsilon, delta, rows = (options.pop(name) for name in ("epsilon", "delta", "rows"))
    try:
        with usage_errors():
            session = Session(files.source, epsilon=epsilon, delta=delta, ledger=ledger, **options)
            plan = session.plan(requested, epsilon=epsilon, delta=delta, rows=rows)
    except click.UsageError as error:
        if not isinstance(unknown := error.__cause__, UnknownColumnError):
            raise
        columns = private(listed(unknown.columns), f"{len(unknown.columns)} columns")
        raise click.UsageError(f"column: there is no {unknown.name!r}; {files.source} has {columns}") from unknown
    return session, plan


def release(
    source: Path,
    target: Path,
    requested: Sequence[Statistic],
    by: Mapping[str, object] | None,
    *,
    epsilon: object,
    delta: object,
    dry_run: bool,
    rows: int,
    force: bool,
    plot: Path | None,
    as_json: bool,
    confidence: float,
    ledger: Path | None,
    budget: tuple[object, ...] | None,
    **unit: object,
) -> str:
    """Release statistics of a file into a table and a sidecar, and return a summary; or print what would be done."""
    charged = {"ledger": ledger, **({} if budget is None else {"budget": budget})}
    files = Files.from_options(source, target, plot, charged, force, dry_run)
    with usage_errors():
        checks.within("--confidence", confidence, 0.0, 1.0, open_ends=True)
        if not requested:
            raise ValueError("give at least one statistic, such as --count")
        cost = EpsilonDelta(amount("epsilon", epsilon), amount("delta", delta))
    of_session = {"epsilon": epsilon, "delta": delta, "rows": rows, **unit}
    if files.ledger is not None and not files.ledger.path.exists():
        _session(files, None, requested, **of_session)  # No ledger is made for a release that is refused.
    account = None if files.ledger is None else files.ledger.opened(cost)
    session, plan = _session(files, account, requested, **of_session)
    if dry_run:
        return _expected(plan, rows, as_json)
    with Output(source, target, force).run() as output:
        output.check_space(_SPACE)
        with settling(lambda: _charge(files.ledger, account, plan), output):
            with python_warnings.catch_warnings():
                python_warnings.simplefilter("always", DataWarning)  # An error would say something about the data.
                results = plan.release()
            columns = tidy(results, by, confidence)
            with naming(target):
                _write(columns, target, output.file)
                written = WrittenFile(*sha256_and_size(output.file))
            document = session.to_dict(confidence=confidence) | {"output": written.to_dict()}
            output.commit(json.dumps(document) + "\n")
    if plot is not None:
        write_png(plot_all(results, confidence=confidence), plot)
    if as_json:
        del document["integers"]  # Those of the certificates, which are in the sidecar alone.
        about = {"certificates": str(sidecar_path(target)), "table": str(target), "warnings": warnings()}
        return json.dumps(document | about, indent=2)
    cells = ([_format_cell(cell) for cell in row] for row in zip(*columns.values(), strict=True))
    lines = [list(columns), *cells]
    written_note = f"Written: {target}, {sidecar_path(target)}"
    return "\n".join([*aligned(lines), "", *session.report().splitlines()[-3:], written_note])


def _charge(files_ledger: LedgerAccount | None, ledger: Ledger | None, plan: Any) -> LedgerCharge | None:
    """Return the charge that a release has made, if it has made one."""
    if files_ledger is None or ledger is None or not ledger.voidable:
        return None
    state = ledger.state()
    after = replace(state, entries=state.entries[: max(ledger.voidable)])
    return LedgerCharge(files_ledger.path, Price(plan.cost, None, 1), after, ledger)


def _expected(plan: Any, rows: int, as_json: bool) -> str:
    """Return what a release would cost, and how wide its intervals would be."""
    expected = plan.expected().to_pydict()
    if as_json:
        return json.dumps({"rows": rows, "cost": [format_amount(total) for total in plan.cost], **_finite(expected)})
    table = [("statistic", "epsilon", "width of the 95 % interval")]
    for name, epsilon, width in zip(*expected.values(), strict=True):
        width_text = "depends on the data" if math.isnan(width) else format_number(width)
        table.append((name, shortest(epsilon), width_text))
    about = f"Nothing is released or charged. Widths are for groups of {rows:,} rows; the cost would be {plan.cost}."
    return "\n".join([*aligned(table), about])


def _format_cell(cell: object) -> str:
    return format_number(cell) if isinstance(cell, float) else str("" if cell is None else cell)


def _finite(columns: Mapping[str, list[object]]) -> dict[str, object]:
    return {name: [None if cell != cell else cell for cell in column] for name, column in columns.items()}


@dataclass(frozen=True)
class VerifiedSession:
    """What of a saved session is verified, in lines."""

    path: Path
    lines: list[str]

    def to_dict(self) -> dict[str, object]:
        """Return a JSON form, that of other releases."""
        statements = [{"status": "", "text": line} for line in self.lines]
        return {"sidecar": str(self.path), "verified": True, "statements": statements}

    def __str__(self) -> str:
        return "\n".join(self.lines)


def is_session(path: Path) -> bool:
    """Return whether a file is the sidecar of statistics, or was written by ``Session.save``."""
    try:
        document = _read_document(path)
    except ValueError:
        return False
    return type(document) is dict and str(document.get("format")).startswith("dpkernels session")


def _read_document(path: Path) -> Any:
    text = matching_sidecar(_table(path), read_text(path))
    return None if text is None else parse_json(text)


def _table(sidecar: Path) -> Path:
    return sidecar.with_name(sidecar.name.removesuffix(".json"))


def verified(path: Path) -> VerifiedSession:
    """Verify a saved session, and the table beside it if it has one.

    Raises:
        CertificateError: what it states does not follow.
    """
    document, table = _read_document(path), _table(path)
    try:
        lines = verify(document)
    except ValueError as error:
        raise CertificateError(f"{path}: {error_text(error)}") from error
    if "output" in document:
        stated = document["output"].get("sha256") if type(document["output"]) is dict else None
        if stated is None or digest(table) != stated:
            raise CertificateError(f"{table}: is not the table that {path} is for, or is not there")
        lines.append(f"{table}: its SHA-256 is the stated one; its numbers are declared, not verified")
    return VerifiedSession(path, lines)
