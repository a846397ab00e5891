"""Mechanisms for columns of categories by name, and the command-line options for their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

import dpkernels
from dpkernels.bounded_json import JsonObject
from dpkernels.cli.options import usage_errors
from dpkernels.cli.text import aligned
from dpkernels.decimals import format_number, shortest
from dpkernels.estimation.categorical.heavy_hitters import PrefixResponse
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.block_response import BlockResponse
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.mechanisms.categorical.subset_selection import SubsetSelection

Labels = int | tuple[str, ...] | None  # The labels of categories, or their number without labels.

_MAX_CODES = 1 << 20  # without labels
_MAX_SETS = 1 << 16  # categories of which sets are compared
# Each constructor with the name of the one option that only it has.
CONSTRUCTORS: dict[str, tuple[Callable[..., Categorical], str]] = {
    "categorical": (dpkernels.categorical, "bits"),
    "subset-selection": (dpkernels.subset_selection, "size"),
    "randomised-response": (dpkernels.randomised_response, ""),
    "block-response": (dpkernels.block_response, "blocks"),
}
NAMES = (*CONSTRUCTORS, "prefix-response")


def construct(
    build: Callable[..., Categorical],
    /,
    *,
    epsilon: float,
    categories: Labels = None,
    categories_from: Labels = None,
    other: str | None = None,
    size: int | None = None,
    blocks: int | None = None,
    bits: float | None = None,
) -> Categorical:
    """Call a constructor, which takes at most one of size, blocks and bits."""
    alternatives = [labels for labels in (categories, categories_from) if labels is not None]
    if len(alternatives) != 1:
        problem = "both given" if alternatives else "missing"
        raise click.UsageError(f"--categories, --categories-from: {problem}; give one of them")
    (labels,) = alternatives
    label: str | int | None = other
    if isinstance(labels, int):
        if labels > _MAX_CODES:
            raise click.UsageError(f"--categories: {labels}; without labels at most {_MAX_CODES} are allowed")
        if other is not None and not (other.isascii() and other.isdigit() and int(other[:32]) < labels):
            raise click.UsageError(f"--other: {other!r} is not one of the codes 0 to {labels - 1}")
        label = None if other is None else int(other)
    options = {"size": size, "blocks": blocks, "bits": bits}
    return build(epsilon, labels, other=label, **{name: value for name, value in options.items() if value is not None})


def prefix_response(
    *,
    epsilon: float,
    length: int,
    alphabet: str,
    lengths: Sequence[int] | None = None,
    other: str | None = None,
    longer: str = "error",
) -> PrefixResponse:
    """Make prefix response, where each person reports at one level."""
    return dpkernels.prefix_response(epsilon, length, alphabet, lengths=lengths, other=other, longer=longer)


def name_and_options(mechanism: Categorical | PrefixPlan) -> tuple[str, dict[str, object]]:
    """Return the name of a mechanism and the options that make it again."""
    options: dict[str, object] = {"epsilon": float(mechanism.epsilon)}
    if isinstance(mechanism, PrefixPlan):
        options |= {name: getattr(mechanism, name) for name in ("length", "alphabet", "lengths", "longer")}
        other = {} if mechanism.other is None else {"other": mechanism.value(mechanism.other)}
        return "prefix-response", options | other
    options["categories"] = mechanism.categories if mechanism.labels is None else mechanism.labels
    if mechanism.other is not None:
        options["other"] = str(mechanism.label(mechanism.other))
    if isinstance(mechanism, BlockResponse):
        return "block-response", options | {"blocks": mechanism.blocks}
    if isinstance(mechanism, SubsetSelection) and mechanism.size > 1:
        return "subset-selection", options | {"size": mechanism.size}
    return "randomised-response", options


def describe(mechanism: Categorical | PrefixPlan, most: int = 6) -> str:
    """Return the categories in words."""
    if isinstance(mechanism, PrefixPlan):
        return f"texts of at most {mechanism.length} characters out of {mechanism.base - 1}"
    if mechanism.labels is None:
        return f"the codes 0 to {mechanism.categories - 1}"
    unlisted = mechanism.categories - most
    return ", ".join(map(str, mechanism.labels[:most])) + (f" and {unlisted} more" if unlisted > 0 else "")


@dataclass(frozen=True)
class CategoryComparison:
    """The mechanisms for a number of categories at one budget, the least error first."""

    epsilon: float
    categories: int
    least: float  # the strict bound of the mean squared error of one report
    rows: list[JsonObject]

    def to_dict(self) -> list[dict[str, object]]:
        return self.rows

    def __str__(self) -> str:
        heading = (
            f"epsilon {shortest(self.epsilon)}, {self.categories:,} categories\nThe error is the expected sum of "
            f"squared errors of all shares, times the number of reports. It is at least {format_number(self.least)}."
        )
        cells = [["mechanism", "reports", "error", "above the least", "bits of a report"]]
        for row in self.rows:
            numbers = format_number(row["error"]), f"{format_number(row['percent_above_least'], 4)} %"
            cells.append([row["mechanism"], row["reports"], *numbers, format_number(row["bits"], 4)])
        return "\n".join([heading, *aligned(cells)])


def compare_categories(epsilon: float, categories: int | Sequence[str]) -> CategoryComparison:
    """Compare the mechanisms for these categories, given by labels or their number."""
    d = categories if isinstance(categories, int) else len(categories)
    with usage_errors("--"):
        response = dpkernels.randomised_response(epsilon, d)
        blocks = dpkernels.block_response(epsilon, d)
    candidates = [(response, "one category"), (blocks, f"one of {blocks.blocks} blocks, in a direction")]
    with usage_errors("--"):
        if d <= _MAX_SETS:
            subsets = dpkernels.subset_selection(epsilon, d)
            candidates += [(subsets, f"a set of {subsets.size}")] if subsets.size > 1 else []
    least = float(dpkernels.strict_bound(epsilon, d))
    rows = []
    for mechanism, reports in candidates:
        error = float(mechanism.mean_squared_error())
        name = name_and_options(mechanism)[0]
        percent = max(100 * (error / least - 1), 0.0)
        row = {"mechanism": name, "reports": reports, "error": error, "percent_above_least": percent}
        rows.append(row | {"bits": float(mechanism.bits)})
    return CategoryComparison(float(epsilon), d, least, sorted(rows, key=lambda row: row["error"]))
