"""Files whose rows are queries: every row has a separate mechanism, whose parameters are in public columns.

Columns of parameters are copied into the output, and the sidecar states the guarantee of every row. Parameters must
therefore not depend on private data: a sensitivity or an epsilon that was computed from the data leaks the data.
``accountants.tune.allocate`` divides one budget for the whole file, which is released only if the composition of its
integer tables is within the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dpkernels.bounded_json import JsonObject, brief
from dpkernels.budgets.filters import EpsilonDelta, format_amount, parse_budget
from dpkernels.budgets.ledger import UnsoundError, parse_amount
from dpkernels.cli.errors import RowError, error_text
from dpkernels.cli.files.formats import Source
from dpkernels.cli.mechanisms import CHOICES, DEFAULT, named, select_mechanism
from dpkernels.cli.options import QUERY_COLUMNS, OptionValues, flag, single, usage_errors
from dpkernels.cli.perturb.grids import ReportGrid
from dpkernels.cli.terminal import private
from dpkernels.cli.text import label
from dpkernels.decimals import shortest
from dpkernels.exact.batches import BatchCertificate, ExactBatch
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.noise.certificate import AdditiveCertificate
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.proven import proven

if TYPE_CHECKING:
    from dpkernels.distributions.base import Noise
    from dpkernels.mechanisms.base import Mechanism

# The parameters that a column may have; a weight is of a row's variance in the sum that ``--together`` makes small.
PARAMETERS = tuple(QUERY_COLUMNS)
MAX_ROWS = 1 << 21  # They are held in memory, and the sidecar has three numbers of each.
_LEVELS = 8  # Of ratios of sensitivity to scale, for which there is a table each.
_DELTA_MARGIN = 2.0**-14  # the share of epsilon that is left for the rounding of noise to integers, which delta pays
_MAX_ATTEMPTS = 8  # to allocate a budget; each one aims at a lower epsilon than the one before
_MAX_EXACT_INTEGER = 2.0**53  # Floats hold every whole number up to this.
_PUBLIC = "columns of parameters must be public"


def column_option(parameter: str) -> str:
    """Return the option that names the column of a parameter."""
    return f"{flag(parameter)}-column"


@dataclass(frozen=True)
class QueryRequest:
    """The options of a file whose rows are queries: the names of columns by parameter, and the budget of all rows."""

    columns: Mapping[str, str]
    together: EpsilonDelta | None = None

    @classmethod
    def from_options(
        cls, columns: Mapping[str, Sequence[str]], together: Sequence[tuple[Decimal, ...]]
    ) -> QueryRequest | None:
        """Return what the options ask for; None if they ask for nothing."""
        names = single({f"{parameter}-column": values for parameter, values in columns.items()})
        budget: Sequence[Decimal] | None = single({"together": together}).get("together")
        if not names and budget is None:
            return None
        if budget is not None and len(budget) > 2:
            raise click.UsageError(f"--together: {len(budget)} numbers; it is EPS or EPS,DELTA")
        with usage_errors("--together: "):
            amounts = None if budget is None else parse_budget(budget[0], *budget[1:])
        request = cls({name.removesuffix("-column"): column for name, column in names.items()}, amounts)
        if amounts is None and "weight" in request.columns:
            raise click.UsageError("--weight-column: has the weights of a division; it needs --together EPS[,DELTA]")
        if amounts is not None and "epsilon" in request.columns:
            raise click.UsageError("--epsilon-column: --together divides one budget; leave one of them out")
        return request

    def check(self, source: Source, perturbed: Sequence[str | None], missing: str, shuffle: bool) -> None:
        """Refuse columns that are not there or are private, and treatments of rows that move or drop queries."""
        if not source.names:
            raise click.UsageError(f"--together: is for files with columns; {source.path} is one array")
        if len(perturbed) > 1:
            raise click.UsageError(f"--column: {len(perturbed)} columns; a file whose rows are queries has one")
        for parameter, name in self.columns.items():
            option = column_option(parameter)
            if (count := list(source.names).count(name)) != 1:
                problem = f"{count} columns of this name" if count else "no such column"
                raise click.UsageError(f"{option}: {name!r}; {source.path} has {problem}")
            if name in perturbed:
                raise click.UsageError(f"{option}: {name!r} is perturbed; {_PUBLIC}")
        if missing != "error":
            raise click.UsageError(
                f"--missing {missing}: every row is a query with parameters; leave out rows without a value"
            )
        if shuffle:
            raise click.UsageError("--shuffle-rows: every row is a query of its own, whose place is public")

    def read(self, source: Source) -> Queries:
        """Read the parameters of every row; a RowError names the first that is missing or out of range."""
        names, values, rows = list(dict.fromkeys(self.columns.values())), dict[str, list[np.ndarray]](), 0
        with closing(source.chunks(names)) as chunks:
            for chunk in chunks if names else ():
                for name in names:
                    values.setdefault(name, []).append(_numbers(source, chunk, name, rows))
                self._check_ranges(source, chunk, {p: values[name][-1] for p, name in self.columns.items()}, rows)
                rows += len(chunk)
                if rows > MAX_ROWS:
                    raise ValueError(f"{source.path}: has more than {MAX_ROWS} rows, the most that are queries")
        rows = rows if names else source.count()
        if not rows:
            raise ValueError(f"{source.path}: is empty; there is no row to perturb")
        if rows > MAX_ROWS:
            raise ValueError(f"{source.path}: has {rows} rows; at most {MAX_ROWS} are queries")
        columns = {name: np.concatenate(blocks) for name, blocks in values.items()}
        for column in columns.values():
            column.setflags(write=False)
        return Queries(self.columns, {p: columns[name] for p, name in self.columns.items()}, self.together, rows)

    def _check_ranges(self, source: Source, chunk: Sized, values: Mapping[str, np.ndarray], start: int) -> None:
        for parameter in ("sensitivity", "epsilon", "weight"):
            if parameter in values and (is_invalid := values[parameter] <= 0).any():
                self._refuse(source, chunk, start, parameter, is_invalid, values, "is not positive")
        if {"lower", "upper"} <= values.keys() and (is_invalid := values["lower"] >= values["upper"]).any():
            self._refuse(source, chunk, start, "upper", is_invalid, values, "is not above the lower end of the row")

    def _refuse(
        self,
        source: Source,
        chunk: Sized,
        start: int,
        parameter: str,
        is_invalid: np.ndarray,
        values: Any,
        problem: str,
    ) -> None:
        row = int(is_invalid.argmax())
        cell = private(shortest(values[parameter][row]), "a value")
        text = f"is {cell}, which {problem}; it is the row's {parameter}"
        raise RowError(start + row, source.position(chunk, start + row, start), problem, text, self.columns[parameter])


def _numbers(source: Source, chunk: Sized, name: str, start: int) -> np.ndarray:
    """Return a column of parameters of a chunk; a RowError names the first that is no finite float."""
    try:
        numbers = source.numbers(chunk, name, start)
    except RowError as error:
        raise error.in_column(name) from error
    except ValueError as error:
        raise ValueError(label(name) + error_text(error)) from error
    values = numbers.values
    masks = {
        "missing": numbers.missing,
        "not finite": ~np.isfinite(values),
        "rounded": np.abs(values.astype(np.float64)) > _MAX_EXACT_INTEGER
        if values.dtype.kind in "iu"
        else numbers.rounded,
    }
    problems = {
        "missing": "is missing (empty, null, nan); every row needs its parameters",
        "not finite": "is not finite",
        "rounded": "is a whole number that float64 rounds",
    }
    for fault, is_faulty in masks.items():
        if is_faulty is not None and is_faulty.any():
            row = start + int(is_faulty.argmax())
            raise RowError(row, source.position(chunk, row, start), fault, problems[fault], name)
    return values.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Queries:
    """The public parameters of every row of a file, as they were read before anything was charged."""

    columns: Mapping[str, str]  # their names by parameter
    values: Mapping[str, np.ndarray]
    together: EpsilonDelta | None  # the budget of all rows, or None if every row claims its own
    rows: int

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(dict.fromkeys(self.columns.values()))

    def check(self, source: Source, chunk: Sized, start: int) -> None:
        """Refuse a chunk whose parameters are not those that the release was certified for."""
        stop = start + len(chunk)
        if stop > self.rows:
            raise ValueError(f"{source.path}: had {self.rows} rows when its parameters were read, and has more now")
        for parameter, name in self.columns.items():
            if not np.array_equal(_numbers(source, chunk, name, start), self.values[parameter][start:stop]):
                raise ValueError(f"{source.path}: column {name!r} has changed since its parameters were read")

    def check_row_count(self, source: Source, rows: int) -> None:
        """Refuse a file that lost rows since its parameters were read."""
        if rows != self.rows:
            raise ValueError(f"{source.path}: had {self.rows} rows when its parameters were read, and has {rows} now")

    def to_dict(self) -> dict[str, object]:
        """Return a JSON form; the parameters are in the output, and as claims in the certificate."""
        budget = self.together
        amounts = None if budget is None else {name: format_amount(getattr(budget, name)) for name in budget._fields}
        return {"columns": dict(self.columns), "together": amounts}

    def advice(self, sampler: ExactBatch) -> list[str]:
        """Return sentences on the guarantee of all rows, and on their noise."""
        lines = ["every row has a mechanism with parameters of its own; the epsilon above is the largest of a row"]
        if self.together is not None:
            lines.append(f"all {self.rows} rows together, about the same people: {self.together}")
        deviations = standard_deviations(sampler.certificate)
        if deviations is not None:
            low, middle, high = (f"{number:.4g}" for number in np.quantile(deviations, [0, 0.5, 1]))
            lines.append(f"standard deviations of the noise of the rows: {low} to {high}, median {middle}")
        return lines

    def notice(self) -> str:
        """Return the sentence that says which columns are public."""
        names = ", ".join(repr(name) for name in self.names)
        parameters = f"the parameters of the rows (columns {names}) are PUBLIC, and so are all rows' noise scales"
        return f"{parameters}: a parameter that was computed from private data leaks it"


def build(mechanism: str | None, options: OptionValues, queries: Queries) -> tuple[str, ExactBatch, dict[str, Any]]:
    """Return the name of the rows' mechanism, their exact sampler, and the options that all rows share.

    Without a name the mechanism is ``DEFAULT``, or for a budget of all rows the better one of Laplace and Gaussian
    noise.
    """
    for parameter in queries.columns:
        if parameter in options:
            raise click.UsageError(f"{flag(parameter)}: is in {column_option(parameter)}, too; give one of them")
    with _errors_of_rows(options):
        if queries.together is not None:
            return _allocate(mechanism, options, queries, queries.together)
        name, arguments = _select_for_rows(mechanism or DEFAULT, options, queries)
        built = named(name).make({**arguments, **queries.values}, release=True)
        if isinstance(built, Categorical) or getattr(built, "batch_shape", ()) != (queries.rows,):
            raise click.UsageError(f"--mechanism: {name} has one set of parameters for all rows")
        return name, exact_sampler(built), arguments


def _select_for_rows(name: str, options: Mapping[str, object], queries: Queries) -> tuple[str, dict[str, object]]:
    """Return the mechanism that a choice selects, which depends on the budget alone, and the options of all rows."""
    if name not in CHOICES:
        return name, dict(options)
    if "sensitivity" in queries.columns or "sensitivity" in options:
        raise click.UsageError("--mechanism: missing; rows with a sensitivity need the name of their noise")
    if "epsilon" in queries.columns:
        raise click.UsageError(f"--mechanism: {name} chooses by one budget; with --epsilon-column name a mechanism")
    named(name).make({**options, **{end: queries.values[end][0] for end in queries.columns}}, release=True)
    interval = {end: options[end] for end in ("lower", "upper") if end in options}
    selected, arguments = select_mechanism(name, {**options, "lower": -1.0, "upper": 1.0})
    return selected, {key: value for key, value in arguments.items() if key not in ("lower", "upper")} | interval


@contextmanager
def _errors_of_rows(options: Mapping[str, object]) -> Iterator[None]:
    """Let errors of options be usage errors, and those of rows failures that show a value on a terminal alone."""
    try:
        yield
    except (click.UsageError, CertificateError):
        raise
    except (ValueError, TypeError) as error:
        names = (text := error_text(error)).partition(":")[0].split(", ")
        if options.keys() >= set(names):
            raise click.UsageError(f"{', '.join(map(flag, names))}:{text.partition(':')[2]}") from error
        withheld = "a row's parameters are out of range, or its mechanism takes no columns"
        raise ValueError(f"parameters: {private(text, withheld)}") from error


@proven("filters#proof")
def _allocate(
    mechanism: str | None, options: Mapping[str, object], queries: Queries, budget: EpsilonDelta
) -> tuple[str, ExactBatch, dict[str, Any]]:
    """Return additive noise whose tables together have the budget, of least weighted variance."""
    from accountants.charges import ALLOWANCE, batch_bound
    from accountants.tune.allocate import allocate_claims

    for name in ("epsilon", "delta"):
        if name in options:
            raise click.UsageError(f"{flag(name)}: --together states the budget of all rows; leave it out")
    if "sensitivity" not in queries.columns and "sensitivity" not in options:
        raise click.UsageError("--sensitivity-column: missing; --together needs every row's sensitivity")
    shared = {name: value for name, value in options.items() if name != "sensitivity"}
    stated: object = queries.values.get("sensitivity", options.get("sensitivity"))
    sensitivity = np.broadcast_to(np.asarray(stated, np.float64), queries.rows)
    weights = queries.values.get("weight")
    name = mechanism or _better_noise(sensitivity, weights, shared, budget)
    batch = Additive(_noise(name, shared, budget), np.array(sensitivity))
    epsilon, delta = float(budget.epsilon), float(budget.delta)
    if delta:
        epsilon *= 1 - _DELTA_MARGIN
    levels = _LEVELS if queries.rows > _LEVELS else None
    allowance = ALLOWANCE if delta else Fraction(1)
    for _ in range(_MAX_ATTEMPTS):
        allocation = allocate_claims(batch, epsilon=epsilon, delta=delta, weights=weights, levels=levels)
        sampler = exact_sampler(allocation.mechanism)
        bound = batch_bound(sampler.certificate, budget.delta) * allowance
        if bound <= budget.epsilon:
            return name, sampler, dict(options)
        epsilon *= float(budget.epsilon / bound) * (1 - 1e-6)
    raise CertificateError(f"--together: the tables of all rows together have epsilon {float(bound):.9g}")


def _better_noise(
    sensitivity: np.ndarray, weights: np.ndarray | None, options: Mapping[str, object], budget: EpsilonDelta
) -> str:
    """Return Laplace or Gaussian noise, by their weighted variances in closed form."""
    if options:
        raise click.UsageError(f"--mechanism: missing; {flag(next(iter(options)))} is an option of one")
    if not budget.delta:
        return "laplace"
    from accountants import calibrate

    w = np.ones(len(sensitivity)) if weights is None else weights
    noise: Any = calibrate.gaussian(epsilon=float(budget.epsilon), delta=float(budget.delta)).noise
    sigma = float(noise.sigma)
    gaussian = sigma**2 * (np.sqrt(w) * sensitivity).sum() ** 2
    laplace = 2 * (np.cbrt(w * sensitivity**2).sum()) ** 3 / float(budget.epsilon) ** 2
    return "laplace" if laplace <= gaussian else "gaussian"


def _noise(name: str, options: Mapping[str, object], budget: EpsilonDelta) -> Noise:
    """Return the noise of a mechanism with the whole budget and sensitivity 1, of which the shape counts."""
    constructor = named(name)
    if "sensitivity" not in constructor.options or constructor.is_central:
        raise click.UsageError(f"--together: divides a budget among rows with additive noise; {name} is none")
    claim = {"epsilon": float(budget.epsilon), "sensitivity": 1.0}
    if "delta" in constructor.options and budget.delta:
        claim["delta"] = float(budget.delta)
    elif "delta" in constructor.required(release=True):
        raise click.UsageError(f"--together: {name} needs a delta; give EPS,DELTA")
    mechanism: Mechanism = constructor.make({**options, **claim}, release=True)
    if not isinstance(mechanism, Additive):
        raise click.UsageError(f"--together: divides a budget among rows with additive noise; {name} is none")
    return mechanism.noise


def standard_deviations(certificate: BatchCertificate) -> np.ndarray | None:
    """Return the standard deviation of every row's noise; None of mechanisms that are not additive."""
    if not all(isinstance(table, AdditiveCertificate) for table in certificate.tables):
        return None
    tables: list[Any] = [table.table for table in certificate.tables if isinstance(table, AdditiveCertificate)]
    in_cells = [float(table.variance / table.bin_width**2) ** 0.5 for table in tables]
    return np.array(in_cells)[certificate.table_index] * ReportGrid.from_certificate(certificate)[0].step


# What a verifier checks


@dataclass(frozen=True, eq=False)
class StatedQueries:
    """What a sidecar states about rows with parameters of their own; every claim is of a certified table."""

    columns: Mapping[str, str]
    together: EpsilonDelta | None
    certificate: BatchCertificate

    def __str__(self) -> str:
        names = ", ".join(f"{parameter} from {name!r}" for parameter, name in self.columns.items())
        text = f" at most, for each of {len(self.certificate.table_index)} rows ({names})"
        return text if self.together is None else f"{text}; all rows together: {self.together}"

    def check(self, source: Source, chunk: Sized, start: int) -> None:
        """Refuse a chunk of the output whose parameters are not the claims of its rows."""
        for parameter, name in self.columns.items():
            values = _numbers(source, chunk, name, start)
            if parameter in self.certificate.claims:
                differs = values != self.certificate.claims[parameter][start : start + len(values)]
                if differs.any():
                    position = source.position(chunk, start + int(differs.argmax()), start)
                    raise CertificateError(f"column {name!r}: {position} is not the {parameter} of its certificate")

    def rebuilt(self, column: JsonObject) -> ExactBatch:
        """Return the exact sampler of the rows, made again from the mechanism's name, the options and the claims."""
        values = {name: self.certificate.claims[name] for name in self.columns}
        queries = Queries(self.columns, values, None, len(self.certificate.table_index))
        return build(column["mechanism"], column["options"], queries)[1]


def stated_queries(release: JsonObject, certificate: Certificate) -> StatedQueries | None:
    """Return what a sidecar states about its rows, or None; a CertificateError if that cannot be, or is not so."""
    queries = release.get("queries")
    if not isinstance(certificate, BatchCertificate) and queries is None:
        return None
    if (
        not isinstance(certificate, BatchCertificate)
        or type(queries) is not dict
        or queries.keys() != {"columns", "together"}
    ):
        raise CertificateError("queries: are missing, or of a certificate that is not of a batch")
    columns, amounts = queries["columns"], queries["together"]
    if type(columns) is not dict or not all(p in PARAMETERS and type(name) is str for p, name in columns.items()):
        raise CertificateError(f"queries: columns: {brief(columns)} are not names by parameter")
    stated = release["values_per_row"], release["missing"], release.get("row_order"), len(release["columns"])
    if certificate.shape != (release["rows"],) or stated != (1, "error", "kept", 1):
        raise CertificateError(f"queries: {release['rows']} rows have a batch of shape {certificate.shape}")
    (column,), claims = release["columns"], certificate.claims
    together = None if amounts is None else _stated_budget(amounts)
    for name, values in claims.items():
        options = column["options"] if together is None else column["options"] | column["parameters"]
        if name not in columns and name in options and not (values == options[name]).all():
            raise CertificateError(f"{name}: is {options[name]} for all rows; their certificate has other numbers")
        if name not in columns and name not in options and name not in ("epsilon", "delta"):
            raise CertificateError(f"{name}: is of every row, and neither a column of the output nor an option")
    if missing := columns.keys() - claims.keys() - {"weight"}:
        raise CertificateError(f"queries: {min(missing)}: is no claim of the rows' certificate")
    if together is not None:
        if unknown := column["parameters"].keys() - claims.keys():
            raise CertificateError(f"parameters: {min(unknown)}: is not one number of all rows")
        from accountants.charges import batch_bound

        if (bound := batch_bound(certificate, together.delta)) > together.epsilon:
            raise CertificateError(f"queries: together: all rows have epsilon {float(bound):.9g}, not {together}")
    return StatedQueries(columns, together, certificate)


def _stated_budget(amounts: object) -> EpsilonDelta:
    if type(amounts) is not dict or amounts.keys() != set(EpsilonDelta._fields):
        raise CertificateError(f"queries: together: {brief(amounts)} is no budget")
    if not all(type(text) is str for text in amounts.values()):
        raise CertificateError(f"queries: together: {brief(amounts)} are not decimals")
    try:
        return parse_budget(*(parse_amount(amounts[name]) for name in EpsilonDelta._fields))
    except (UnsoundError, ValueError) as error:
        raise CertificateError(f"queries: together: {brief(amounts)} is no budget") from error


def is_same_batch(first: BatchCertificate, second: BatchCertificate) -> bool:
    """Return whether two certificates are of the same rows: the same claims, and tables of the same size and ends."""
    if len(first.tables) != len(second.tables) or first.claims.keys() != second.claims.keys():
        return False
    pairs = [(first.table_index, second.table_index), *((first.claims[n], v) for n, v in second.claims.items())]
    return all(np.array_equal(*pair) for pair in pairs) and all(
        is_same(getattr(a, fact), getattr(b, fact))
        for a, b in zip(first.tables, second.tables, strict=True)
        for fact in ("worst_variance", "lowest", "highest")
    )


def is_same(first: float | None, second: float | None) -> bool:
    """Return whether two numbers, or the lack of one, are of the same mechanism.

    On other machines the solver of default parameters may stop at others; two mechanisms differ by more.
    """
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-6)
