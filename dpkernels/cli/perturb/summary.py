"""The summary of a release: its columns, their guarantees and uses, and the data that are not protected."""

from __future__ import annotations

import math
import shlex
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from dpkernels.budgets.filters import format_amount
from dpkernels.cli.calendar import date_text
from dpkernels.cli.categories import describe
from dpkernels.cli.mechanisms import ROOM, best_variance
from dpkernels.cli.options import flag
from dpkernels.cli.perturb.sidecar import (
    CONFIDENCE,
    Column,
    Release,
    ReleaseSpec,
    describe_noise,
    interval,
    parameters,
    title,
)
from dpkernels.cli.terminal import warn, warnings
from dpkernels.cli.text import aligned, listed
from dpkernels.decimals import format_number, rational, shortest
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.mechanisms.two_point import TwoPoint

if TYPE_CHECKING:
    from dpkernels.mechanisms.base import Mechanism

# The least delta at which composed values are accounted.
_COMPOSED_DELTA = 1e-9

_WORDS = "neighbours: true values that are hard to tell apart by the released one; a smaller epsilon makes it harder"
# Names of mechanisms that do not say what they do.
_MEANINGS = {"hybrid": "each value is perturbed by piecewise or by duchi, chosen at random"}

Paths = tuple[Path | str, Path | str] | None  # of output and certificates; None for a check


def summary_lines(release: Release, paths: Paths, remaining_budget: str = "") -> list[str]:
    """Return the summary for people; ``remaining_budget`` is a ledger's, in words."""
    spec = release.spec
    total, columns = spec.guarantee, spec.columns
    amount_names = ["epsilon", "delta"] if total.delta else ["epsilon"]
    cells = [["column", "mechanism", *amount_names, "neighbours"]]
    for column in columns:
        amounts = [shortest(getattr(column.guarantee, name)) for name in amount_names]
        cells.append([title(column.name), column.mechanism, *amounts, column.guarantee.neighbouring])
    lines = aligned(cells)
    lines += [f"{title(column.name)}: {words}" for column in columns if (words := _dates(column))]
    # The parameters of noise are shown because they may have been calibrated.
    noise = {title(column.name): describe_noise(column.sampler.mechanism) for column in columns}
    lines += [f"{name}: noise with {parameters}" for name, parameters in noise.items() if parameters]
    budget = shortest(total.epsilon) + (f", delta {shortest(total.delta)}" if total.delta else "")
    lines += [f"total epsilon a row: {budget}{_neighbouring_rows(spec)}", _WORDS]
    lines += [
        f"{name}: {words}" for name, words in _MEANINGS.items() if name in {column.mechanism for column in columns}
    ]
    together = None if spec.queries is None else spec.queries.together
    if together is not None:
        lines.append(_belief(float(together.epsilon), float(together.delta), False, "columns"))
    elif total.delta < 1:
        lines.append(_belief(float(total.epsilon), float(total.delta), total.is_local))
    if release.ledger_charge is not None:
        lines.append(str(release.ledger_charge))
    lines += advice(release)
    if spec.copied:
        lines.append(f"copied as they are, NOT protected: {listed(spec.copied)}")
    lines += notices(spec)
    if release.lost_properties:
        lines.append(f"not kept of the file: {'; '.join(release.lost_properties)}")
    rows = f"{format_number(release.rows, 15)} row{'s' * (release.rows != 1)}"
    if paths is not None:
        return [*lines, f"{rows} in {paths[0]}, certificates in {paths[1]}"]
    return [*lines, *filter(None, [remaining_budget]), f"{rows} can be released; nothing was charged or written"]


def _dates(column: Column) -> str:
    """Return what the numbers of a column of dates are; empty for other columns."""
    if (origin := column.date_origin) is None:
        return ""
    lower, upper = map(float, column.sampler.mechanism.input_interval)
    is_bounded = math.isfinite(lower) and math.isfinite(upper)
    ends = f", of dates from {date_text(lower, origin)} to {date_text(upper, origin)}" if is_bounded else ""
    return f"reports are days since {origin}{ends}; times of day are left out"


def warn_about(release: Release) -> None:
    """Warn of a guarantee that says nothing; no option hides this."""
    if release.spec.guarantee.delta >= 1:
        warn("a total delta of 1 or more guarantees nothing")


def _neighbouring_rows(spec: ReleaseSpec) -> str:
    """Return which rows are neighbours, where the columns' own neighbours do not say it already."""
    if spec.guarantee.is_local:
        return "; local DP: any two rows are neighbours"
    several = len(spec.columns) > 1 or spec.values_per_row > 1
    return "; two rows are neighbours if their values are in every column" if several else ""


def _belief(epsilon: float, delta: float, is_local: bool, inputs: str = "rows") -> str:
    """Return what a guarantee means for one person.

    Total variation is at most (e^eps - 1 + 2 delta)/(e^eps + 1). Where only inputs near each other are neighbours, or
    with a delta, no belief is bounded: all that is limited is a guess between two neighbours.
    """
    percent = 100 * (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)) * (1 + 1e-15)
    bound = f"{_rounded_up(min(percent, 100))} %"
    if is_local and not delta:
        return f"if somebody is 50 % sure of a row's values, the released ones make them at most {bound} sure"
    guess = f"a guess which of two neighbouring {inputs} is the true one, if both are equally likely,"
    return f"{guess} is right in at most {bound}"


def summary_dict(release: Release, paths: Paths) -> dict[str, object]:
    """Return the same for programs."""
    target, sidecar = (None, None) if paths is None else map(str, paths)
    spec = release.spec
    return {
        "output": target,
        "certificates": sidecar,
        "rows": release.rows,
        **spec.guarantee.to_dict(),
        "columns": [
            {"column": column.name, "mechanism": column.mechanism, "parameters": parameters(column.sampler.mechanism)}
            | ({} if column.date_origin is None else {"date_origin": column.date_origin.isoformat()})
            | column.guarantee.to_dict()
            for column in spec.columns
        ],
        "copied": list(spec.copied),
        **spec.row_options.to_dict(),
        "not_kept": list(release.lost_properties),
        "notices": advice(release) + notices(spec),
        **({} if spec.queries is None else {"queries": spec.queries.to_dict()}),
        "ledger": None if release.ledger_charge is None else release.ledger_charge.to_dict(),
        "warnings": warnings(),
    }


def notices(spec: ReleaseSpec) -> list[str]:
    """Return sentences on what the output reveals about rows."""
    return ([] if spec.queries is None else [spec.queries.notice()]) + spec.row_options.notices()


def advice(release: Release) -> list[str]:
    """Return, one line a column, the uses of the released columns, and how values about one person compose."""
    lines, values = [], release.rows * release.spec.values_per_row
    for column in release.spec.columns:
        name = title(column.name)
        if release.spec.queries is not None:
            lines += [f"{name}: {text}" for text in release.spec.queries.advice(column.sampler)]
        elif (half_widths := interval(column.sampler.certificate, release.spec.row_options.decimals)) is not None:
            ends = f"[released - {_rounded_up(half_widths['below'])}, released + {_rounded_up(half_widths['above'])}]"
            lines.append(f"{name}: with probability {100 * CONFIDENCE:g} %, a true value is in {ends}")
            # With a ledger, the user has said whom the rows are about, and the charge is printed.
            lines += [f"{name}: {_composition(column, values)}"] if values > 1 and release.spec.rows is None else []
        elif "sensitivity" not in column.guarantee.stated:
            lines.append(f"{name}: {_questions(column.sampler.mechanism)}")
    return lines


def _rounded_up(margin: float) -> str:
    """Return four digits, rounded up, so that the number remains a bound."""
    return format_number(float(Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(margin)), 4)


def _composition(column: Column, values: int) -> str:
    """Return the cost of all values of a column together, if they are about the same people."""
    guarantee = column.guarantee
    amounts = guarantee.epsilon, guarantee.delta
    epsilon, delta = (format_amount(Fraction(values) * rational(amount)) for amount in amounts)
    delta_text = f"{max(_COMPOSED_DELTA, 10 * guarantee.delta):g}".replace("e-0", "e-")
    words = [column.mechanism]
    for name, value in column.options.items():
        numbers = value if isinstance(value, tuple) else [value]
        words += [flag(name), value if isinstance(value, str) else ",".join(map(shortest, numbers))]
    line = shlex.join([*words, "--reports", str(values), "--at-delta", delta_text])
    return (
        f"if all {format_number(values, 15)} values are about the same people, they compose to epsilon {epsilon}, "
        f"delta {delta} at most; for a smaller epsilon: dpkernels account {line}"
    )


def _questions(mechanism: Mechanism) -> str:
    """Return which questions the reports of a bounded mechanism answer well, and the option for the others."""
    if isinstance(mechanism, PrefixPlan):
        return f"good for the most frequent values, which `dpkernels estimate` finds; values: {describe(mechanism)}"
    if isinstance(mechanism, Categorical):
        return f"good for counts and shares, which `dpkernels estimate` computes; categories: {describe(mechanism)}"
    if isinstance(mechanism, TwoPoint):
        return "good for means, not for quantiles and histograms; for these use --mechanism balanced"
    if hasattr(mechanism, "bias"):
        return "good for quantiles and histograms, not for means, which are biased; for these leave out --mechanism"
    lower, upper = map(float, mechanism.input_interval)
    more = float(mechanism.worst_variance) / best_variance(float(mechanism.epsilon), lower, upper) - 1
    if more <= ROOM - 1 + 1e-9:
        return "good for means, and for quantiles of many people; for the best quantiles add --objective distribution"
    return (
        f"good for quantiles and histograms; the variance of means is {100 * more:.0f} % above the best, which you get "
        "without --mechanism and --objective"
    )
