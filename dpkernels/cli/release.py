"""``dpkernels release``: statistics of a file, from a session."""

from __future__ import annotations

import json
import math
import warnings as python_warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from dpkernels import checks
from dpkernels import session as sessions
from dpkernels.bounded_json import JsonObject, parse_json, read_text
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
from dpkernels.session import Count, DataWarning, Regression, Result, Session, Statistic
from dpkernels.session.reports import verify
from dpkernels.session.results import plot_all
from dpkernels.session.session import Plan
from dpkernels.session.tables import UnknownColumnError, make_table
from dpkernels.staging import naming, sha256_and_size, write_png

Groups = dict[str, Sequence[object] | str]  # stated keys by column, or "found"

_SPACE = 1 << 20  # Bytes that a table and its sidecar may need; it is checked before the charge.


def _parse(text: str, syntax: str) -> Iterator[object]:
    """Yield the fields of an option, which are split at colons from the right: a column's name may have some.

    A field with dots is a list. Columns and values are texts, K is a whole number, and all others are numbers.
    """
    names = syntax.split(":")
    fields = text.rsplit(":", len(names) - 1)
    if len(fields) != len(names):
        raise ValueError(f"must have the form {syntax}")
    for field, name in zip(fields, names, strict=True):
        yield [_parse_item(item, name) for item in field.split(",")] if "..." in name else _parse_item(field, name)


def _parse_item(text: str, name: str) -> str | float:
    if name.startswith(("COL", "X", "Y", "VALUE")):
        return text
    try:
        return int(text) if name == "K" else float(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a {'whole ' * (name == 'K')}number") from None


def _regression(y: str, y0: float, y1: float, x: str, x0: float, x1: float, *, by: Groups | None) -> Regression:
    return Regression(y, x, y_bounds=(y0, y1), x_bounds=(x0, x1), by=by)


def statistics(options: Mapping[str, tuple[str, Sequence[str]]], by: Groups | None) -> list[Statistic]:
    """Return the statistics of the command's options, each with its syntax and the texts that were given."""
    requested: list[Statistic] = []
    for name, (syntax, texts) in options.items():
        # The option of a statistic is the name of its class.
        build: Callable[..., Statistic] = _regression if name == "regression" else getattr(sessions, name.title())
        for text in texts:
            with usage_errors(f"{flag(name)}: {text!r}: "):
                requested.append(build(*_parse(text, syntax), by=by))
    return requested


def groups(texts: Sequence[str]) -> Groups | None:
    """Return the keys of --by, COLUMN=KEY,KEY or COLUMN=found."""
    by: Groups = {}
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


def tidy(results: Sequence[Result], by: Groups | None, confidence: float) -> dict[str, list[object]]:
    """Return one table of all results: keys, statistic, detail, value, low, high."""
    names = [*(by or {}), "statistic", "detail", "value", "low", "high"]
    columns: dict[str, list[object]] = {name: [] for name in names}
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


def _ledger_account(
    source: Path, target: Path, plot: Path | None, charged: Mapping[str, object], force: bool, is_dry: bool
) -> LedgerAccount | None:
    """Return the ledger to charge, after a check that no file of the release is another one, and OUT can be written."""
    if target.suffix not in (".csv", ".parquet"):
        raise click.UsageError(f"OUT: {target} must end in .csv or .parquet")
    check_target(source, target, force or is_dry)
    folders = [source] if source.is_dir() else []
    if folders and target.resolve().is_relative_to(source.resolve()):
        raise click.UsageError(f"OUT: {target} is in the folder of the input; choose a folder outside it")
    files = [source, target, sidecar_path(target), *([] if plot is None else [plot])]
    if is_dry and not Path(str(charged.get("ledger") or source)).exists():
        charged = {}
    return LedgerAccount.from_options(charged, files, folders)


def _plan(
    source: Path,
    ledger: Ledger | None,
    requested: Sequence[Statistic],
    cost: Mapping[str, Any],
    unit: Mapping[str, Any],
) -> tuple[Session, Plan]:
    """Return the session and the plan of a release, which nothing of the options prevents."""
    try:
        with usage_errors():
            session = Session(source, epsilon=cost["epsilon"], delta=cost["delta"], ledger=ledger, **unit)
            return session, session.plan(requested, **cost)
    except click.UsageError as error:
        if not isinstance(unknown := error.__cause__, UnknownColumnError):
            raise
        columns = private(listed(unknown.columns), f"{len(unknown.columns)} columns")
        raise click.UsageError(f"column: there is no {unknown.name!r}; {source} has {columns}") from unknown


def release(
    source: Path,
    target: Path,
    requested: Sequence[Statistic],
    by: Groups | None,
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
    ledger_account = _ledger_account(source, target, plot, charged, force, dry_run)
    with usage_errors():
        checks.within("--confidence", confidence, 0.0, 1.0, open_ends=True)
        if not requested:
            raise ValueError("give at least one statistic, such as --count")
        amounts = EpsilonDelta(amount("epsilon", epsilon), amount("delta", delta))
    cost = {"epsilon": epsilon, "delta": delta, "rows": rows}
    if ledger_account is not None and not ledger_account.path.exists():
        _plan(source, None, requested, cost, unit)  # No ledger is made for a release that is refused.
    account = None if ledger_account is None else ledger_account.opened(amounts)
    session, plan = _plan(source, account, requested, cost, unit)
    if dry_run:
        return _expected(plan, rows, as_json)
    with Output(source, target, force).run() as output:
        output.check_space(_SPACE)
        with settling(lambda: _charge(ledger_account, account, plan), output):
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


def _charge(account: LedgerAccount | None, ledger: Ledger | None, plan: Plan) -> LedgerCharge | None:
    """Return the charge that a release has made, if it has made one."""
    if account is None or ledger is None or not ledger.voidable:
        return None
    state = ledger.state()
    after = replace(state, entries=state.entries[: max(ledger.voidable)])
    return LedgerCharge(account.path, Price(plan.cost, None, 1), after, ledger)


def _expected(plan: Plan, rows: int, as_json: bool) -> str:
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


def _read_document(path: Path) -> JsonObject | None:
    text = matching_sidecar(_table(path), read_text(path))
    return None if text is None else parse_json(text)


def _table(sidecar: Path) -> Path:
    return sidecar.with_name(sidecar.name.removesuffix(".json"))


def verified(path: Path) -> VerifiedSession:
    """Verify a saved session, and the table beside it if it has one.

    Raises:
        CertificateError: what it states does not follow.
    """
    document, table = _read_document(path) or {}, _table(path)
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
