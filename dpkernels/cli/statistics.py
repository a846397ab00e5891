"""``dpkernels release``: statistics of a file, from a session."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dpkernels import checks
from dpkernels.budgets.filters import format_amount
from dpkernels.budgets.ledger import Ledger
from dpkernels.cli.errors import text_of
from dpkernels.cli.options import flag, usage_errors
from dpkernels.cli.text import aligned
from dpkernels.decimals import shortest
from dpkernels.estimation.intervals import format_number
from dpkernels.exact.certificate import CertificateError
from dpkernels.session import (
    Count,
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
from dpkernels.session.tables import table_of
from dpkernels.staging import replaced

_BOUNDED: dict[str, Any] = {"sum": Sum, "mean": Mean, "variance": Variance}


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _parsed(text: str, form: str) -> list[str]:
    """Return a column and what follows it, split at colons from the right: the name of a column may have some."""
    colons = form.count(":")
    pieces = text.rsplit(":", colons)
    if len(pieces) != colons + 1:
        raise ValueError(f"must have the form {form}")
    return pieces


def statistics(options: Mapping[str, Sequence[str]], by: Mapping[str, Any] | None) -> list[Statistic]:
    """Return the statistics of the command's options, in their order."""
    chosen: list[Statistic] = []
    for name, texts in options.items():
        for text in texts or ():
            with usage_errors(f"{flag(name)}: {text!r}: "):
                chosen.append(_statistic(name, text, by))
    return chosen


def _statistic(name: str, text: str, by: Mapping[str, Any] | None) -> Statistic:
    match name:
        case "count":
            return Count(by=by)
        case "histogram":
            column, edges = _parsed(text, "COL:E,E,...")
            return Histogram(column, _numbers(edges), by=by)
        case "quantiles":
            column, lower, upper, p = _parsed(text, "COL:LOW:HIGH:P,...")
            return Quantiles(column, float(lower), float(upper), _numbers(p), by=by)
        case "top":
            column, k, candidates = _parsed(text, "COL:K:VALUE,...")
            return Top(column, int(k), candidates.split(","))
        case "regression":
            y, y0, y1, x, x0, x1 = _parsed(text, "Y:LOW:HIGH:X:LOW:HIGH")
            bounds = {"y_bounds": (float(y0), float(y1)), "x_bounds": (float(x0), float(x1))}
            return Regression(y, x, **bounds, by=by)
    column, lower, upper = _parsed(text, "COL:LOW:HIGH")
    return _BOUNDED[name](column, float(lower), float(upper), by=by)


def groups(texts: Sequence[str]) -> dict[str, Any] | None:
    """Return the keys of --by, COLUMN=KEY,KEY or COLUMN=found."""
    by: dict[str, Any] = {}
    for text in texts:
        name, sign, keys = text.partition("=")
        if not sign or not name or name in by:
            raise click.UsageError(f"--by: {text!r} must be COLUMN=KEY,KEY,... or COLUMN=found, once for each column")
        by[name] = "found" if keys == "found" else keys.split(",")
    return by or None


def tidy(results: Sequence[Result], by: Mapping[str, Any] | None, confidence: float) -> dict[str, list[Any]]:
    """Return one table of all results: keys, statistic, detail, value, low, high."""
    columns: dict[str, list[Any]] = {name: [] for name in [*(by or {}), "statistic", "detail", "value", "low", "high"]}
    for result in results:
        form = result.to_dict(confidence)
        for row in range(len(result)):
            own = {name: column[row] for name, column in form["index"].items()}
            for name in by or {}:
                columns[name].append(str(own.pop(name)) if name in own else None)
            columns["statistic"].append(result.name)
            columns["detail"].append(", ".join(f"{name} {value}" for name, value in own.items()))
            for name in ("value", "low", "high"):
                columns[name].append(form[name][row])
    return columns


def _write(columns: Mapping[str, Any], target: Path) -> None:
    table = table_of("pyarrow", columns)
    with replaced(target, 0o666) as file:
        if target.suffix == ".parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(table, file)
        else:
            import pyarrow.csv

            pyarrow.csv.write_csv(table, file)


def release(
    source: Path,
    target: Path,
    statistics_: Sequence[Statistic],
    by: Mapping[str, Any] | None,
    *,
    epsilon: Any,
    delta: Any,
    dry_run: bool,
    rows: int,
    force: bool,
    plot: Path | None,
    as_json: bool,
    confidence: float,
    ledger: Path | None,
    budget: tuple[Any, ...] | None,
    **unit: Any,
) -> str:
    """Release statistics of a file into a table and a sidecar, and return a summary; or print what would be done."""
    sidecar = target.with_name(f"{target.name}.json")
    with usage_errors():
        if target.suffix not in (".csv", ".parquet") or not target.parent.is_dir():
            raise ValueError(f"OUT: {target} must be a .csv or .parquet file in an existing folder")
        if not dry_run and not force and (existing := [path for path in (target, sidecar) if path.exists()]):
            raise ValueError(f"OUT: {existing[0]} exists; --force replaces it")
        checks.within("--confidence", confidence, 0.0, 1.0, open_ends=True)
        if not statistics_:
            raise ValueError("give at least one statistic, such as --count")
        if plot is not None and len(statistics_) > 1:
            raise ValueError("--plot: draws one statistic")
        if budget is not None and ledger is None:
            raise ValueError("--budget: is that of a new --ledger")
    charged = None
    if ledger is not None and not (dry_run and not ledger.exists()):
        charged = Ledger(ledger) if budget is None else Ledger.create(ledger, *budget)
    with usage_errors():
        session = Session(source, epsilon=epsilon, delta=delta, ledger=charged, **unit)
        plan = session.plan(statistics_, epsilon=epsilon, delta=delta, rows=rows)
        for statistic, own, own_delta in zip(plan.statistics, plan.epsilons, plan.deltas, strict=True):
            session.check(statistic, epsilon=own, delta=own_delta)
    if dry_run:
        expected = plan.expected().to_pydict()
        if as_json:
            return json.dumps({"rows": rows, "cost": [format_amount(each) for each in plan.cost], **_finite(expected)})
        table = [("statistic", "epsilon", "width of the 95 % interval")]
        for name, own, width in zip(*expected.values(), strict=True):
            shown = "depends on the data" if math.isnan(width) else format_number(width)
            table.append((name, shortest(own), shown))
        about = (
            f"Nothing is released or charged. Widths are for groups of {rows:,} rows; the cost would be {plan.cost}."
        )
        return "\n".join([*aligned(table), about])
    results = plan.release()
    columns = tidy(results, by, confidence)
    session.save(sidecar, confidence=confidence)
    _write(columns, target)
    if plot is not None:
        results[0].plot(confidence=confidence).figure.savefig(plot, dpi=150)
    if as_json:
        return json.dumps(json.loads(sidecar.read_text()) | {"certificates": None}, indent=2)
    rows_ = ([_shown(cell) for cell in row] for row in zip(*columns.values(), strict=True))
    lines = [list(columns), *rows_]
    return "\n".join([*aligned(lines), "", *session.report().splitlines()[-3:], f"Written: {target}, {sidecar}"])


def _shown(cell: Any) -> str:
    return format_number(cell) if isinstance(cell, float) else str("" if cell is None else cell)


def _finite(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [None if cell != cell else cell for cell in column] for name, column in columns.items()}


@dataclass(frozen=True)
class VerifiedSession:
    """What of a saved session is verified, in lines."""

    path: Path
    lines: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form, that of other releases."""
        statements = [{"status": "", "text": line} for line in self.lines]
        return {"sidecar": str(self.path), "verified": True, "statements": statements}

    def __str__(self) -> str:
        return "\n".join(self.lines)


def verified(path: Path) -> VerifiedSession:
    """Verify a saved session.

    Raises:
        CertificateError: what it states does not follow.
    """
    try:
        return VerifiedSession(path, verify(json.loads(path.read_text())))
    except ValueError as error:
        raise CertificateError(f"{path}: {text_of(error)}") from error
