"""JSON Schemas of the output of ``--json``: ``python -m dpkernels.cli.schemas [NAME]`` prints them.

Within a version of the command, no field is renamed or removed, and no field gets another type. A new version may add
fields, so programs should ignore unknown fields.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dpkernels.cli.terminal import show

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
TRUTH: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _map(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    fields = required | (optional or {})
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def _all(schema: Schema, *names: str) -> dict[str, Schema]:
    return dict.fromkeys(names, schema)


_BAD_ROW = _object({"row": WHOLE, "place": TEXT, "column": _or_null(TEXT), "problem": TEXT})
_BAD_ROWS = _object({"counts": _map(WHOLE), "all": TRUTH, "first": _list(_BAD_ROW)})
_STATEMENTS = _list(_object({"status": {"enum": ["ok", "declared, not verified", "not verified", ""]}, "text": TEXT}))
_VERIFIED = {"sidecar": TEXT, "verified": TRUTH, "statements": _STATEMENTS}
_ERROR = _object(
    {"error": TEXT, "code": WHOLE, "row": _or_null(_BAD_ROW), "rows": _or_null(_BAD_ROWS)}
    | {"charge": _or_null(TEXT), "warnings": _list(TEXT)},
    _VERIFIED,
)
_GUARANTEE = _all(NUMBER, "epsilon", "realised_epsilon", "delta", "realised_delta") | {"neighbouring": TEXT}
_RELEASED_COLUMN = _object(
    {"column": _or_null(TEXT), "mechanism": TEXT, "parameters": _map(NUMBER), **_GUARANTEE}, {"date_origin": TEXT}
)
_AMOUNTS = {f"{prefix}{name}": TEXT for prefix in ("", "spent_", "budget_") for name in ("epsilon", "delta")}
_CHARGE = _object(
    {"ledger": TEXT, "charge": WHOLE, "time": TEXT, "hash": TEXT, "rows": _or_null(TEXT), "charged_rows": WHOLE}
    | _AMOUNTS
)
_PERTURB = _object(
    {
        **_all(_or_null(TEXT), "output", "certificates"),
        "rows": WHOLE,
        **_GUARANTEE,
        "columns": _list(_RELEASED_COLUMN),
        "copied": _list(TEXT),
        "missing": {"enum": ["error", "keep", "drop"]},
        "decimals": _or_null(WHOLE),
        "row_order": {"enum": ["kept", "shuffled"]},
        "not_kept": _list(TEXT),
        "notices": _list(TEXT),
        "ledger": _or_null(_CHARGE),
        "warnings": _list(TEXT),
    },
    {"queries": _object({"columns": _map(TEXT), "together": _or_null(_object(_all(TEXT, "epsilon", "delta")))})},
)
_AT_EPSILON = _object({"epsilon": NUMBER, "delta": _or_null(NUMBER)}, _all(_or_null(NUMBER), "some_inputs", "at_least"))
_AT_DELTA = _object({"delta": NUMBER, "epsilon": _or_null(NUMBER)}, _all(_or_null(NUMBER), "some_inputs", "at_least"))
_PROFILE = {"delta_at_epsilon": _list(_AT_EPSILON), "epsilon_at_delta": _list(_AT_DELTA)}
_ACCOUNTED = {"mechanism": TEXT, "parameters": _map(NUMBER), "neighbouring": TEXT, "covers": TEXT}
_ONE_REPORT = {"pure_epsilon": _or_null(NUMBER), "certified": _or_null(TEXT)}
# Errors of one report, of which each mechanism has some.
_ERRORS = _all(
    NUMBER, "variance", "mean_of_the_noise", "acceptance", "worst_variance", "central_variance", "largest_bias"
)
_ERRORS |= _all(NUMBER, "mean_squared_error", "share_variance")
_NUMBERS = {"reports": WHOLE, "subsample": _or_null(NUMBER), "shuffled": WHOLE}
_RISK = _object(
    {
        "neighbouring": TEXT,
        "delta": NUMBER,
        "epsilon": _or_null(NUMBER),
        "advantage": NUMBER,
        "beliefs": _list(_object({"prior": NUMBER, "at_most": NUMBER})),
        "true_positive_rates": _list(_object({"false_positive_rate": NUMBER, "at_most": NUMBER})),
    }
)
_ANSWER = _either(
    _object(
        {"value": NUMBER, "interval": _list(NUMBER)}, {"date": _or_null(TEXT), "date_interval": _list(_or_null(TEXT))}
    ),
    _object({"value": {"type": "null"}, "why": TEXT}),
)
_BIN = _object(
    _all(NUMBER, "lower", "upper", "share", "share_low", "share_high", "count", "count_low", "count_high"),
    _all(_or_null(TEXT), "lower_date", "upper_date"),
)
_GROUP = {
    "type": "object",
    "properties": {
        "group": _or_null(TEXT),
        "reports": WHOLE,
        "distribution": _or_null(TEXT),
        "mean": _ANSWER,
        "standard_deviation": _ANSWER,
        "histogram": _either(_list(_BIN), _ANSWER),
    },
    "patternProperties": {"^quantile_": _ANSWER},
    "required": ["group", "reports", "distribution", "mean"],
    "additionalProperties": False,
}
_ESTIMATE = {"column": _or_null(TEXT), "by": _or_null(TEXT), "mechanism": TEXT, "epsilon": NUMBER}
_ESTIMATE |= {"missing": WHOLE, "confidence": NUMBER}
_CATEGORY = _object(
    {"category": _either(TEXT, WHOLE)}
    | _all(NUMBER, "count", "count_low", "count_high", "share", "share_low", "share_high", "unbiased")
)
_FOUND = _object({"value": TEXT} | _all(NUMBER, "share", "share_low", "share_high"))
_LEDGER_ENTRY = _object(
    {"charge": WHOLE, **_all(TEXT, "time", "epsilon", "delta", "label", "hash")}
    | _all(_or_null(WHOLE), "voids", "voided_by")
)
_TUNED = _object(
    {"mechanism": TEXT, "value": NUMBER, "parameters": _map(NUMBER), **_all(NUMBER, "epsilon", "delta")}
    | {"steps": WHOLE, "evaluations": WHOLE, "python": TEXT}
)

SCHEMAS: dict[str, Schema] = {
    "any that fails": _ERROR,
    "perturb": _PERTURB,
    "release": _object(
        {"format": TEXT, "version": TEXT, "neighbouring": TEXT, "spent": _list(TEXT), "ledger": _or_null(TEXT)}
        | {"releases": _list(ANY_OBJECT), "certificates": TEXT, "output": ANY_OBJECT, "table": TEXT}
        | {"warnings": _list(TEXT)}
    ),
    "release --dry-run": _object(
        {"rows": WHOLE, "cost": _list(TEXT), "statistic": _list(TEXT), "epsilon": _list(NUMBER)}
        | {"width": _list(_or_null(NUMBER))}
    ),
    "estimate": _object(
        {
            **_ESTIMATE,
            "values": _list(NUMBER),
            "clipped": TRUTH,
            "assumption": _or_null(TEXT),
            "estimates": _list(_GROUP),
        },
        {"date_origin": TEXT},
    ),
    "estimate of categories": _object(
        {
            **_ESTIMATE,
            "estimates": _list(_object({"group": _or_null(TEXT), "reports": WHOLE, "categories": _list(_CATEGORY)})),
        }
    ),
    "estimate of prefixes": _object(
        {**_ESTIMATE, **_all(WHOLE, "reports", "compared"), "standard_error": NUMBER, "found": _list(_FOUND)}
    ),
    "certify": _object(
        {"mechanism": TEXT, "parameters": _map(NUMBER), "certificate": ANY_OBJECT}, {"variance_cost": NUMBER}
    ),
    "certify --verify": _object(_VERIFIED),
    "account": _object({**_ACCOUNTED, **_PROFILE, **_ONE_REPORT}, _ERRORS),
    "account --reports": _object({**_ACCOUNTED, **_PROFILE}, _NUMBERS),
    "account --risk": _object({**_ACCOUNTED, "risk": _RISK}, _ONE_REPORT | _ERRORS | _NUMBERS),
    "compare": _list(
        _object(
            {"mechanism": TEXT, **_all(NUMBER, "worst_variance", "central_variance", "worst_over_laplace")}
            | {"percent_above_optimum": _or_null(NUMBER), "reports": _or_null(_list(NUMBER))}
        )
    ),
    "compare --categories": _list(
        _object({"mechanism": TEXT, "reports": TEXT, **_all(NUMBER, "error", "percent_above_least", "bits")})
    ),
    "tune": _object(
        {"objective": TEXT, "unit": TEXT, "results": _list(_TUNED)}
        | {"refused": _list(_object({"family": TEXT, "reason": TEXT}))},
        {"covers": TEXT},
    ),
    "ledger": _object(
        _all(
            TEXT,
            "ledger",
            "created",
            *(f"{name}_{of}" for name in ("budget", "spent", "left") for of in ("epsilon", "delta")),
        )
        | {"charges": _list(_LEDGER_ENTRY)}
    ),
    "mechanisms": _map(_object(_all(_list(TEXT), "required", "optional"))),
    "explore": _object({"page": TEXT}),
}


def table() -> str:
    """Return the fields of all schemas as a table in Markdown; those that may be absent have a question mark."""
    rows = ["| command | fields |", "|---|---|"]
    for name, schema in SCHEMAS.items():
        rows.append(f"| {name if ' ' in name and '--' not in name else f'`{name}`'} | {_fields(schema)} |")
    return "\n".join(rows)


def _fields(schema: Schema) -> str:
    """Return what a value is, in words and names of fields."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_fields, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if schema["type"] == "array":
        return (
            f"a list of {_fields(schema['items'])}" if schema["items"].get("type") in ("object", "array") else "a list"
        )
    if "properties" not in schema:
        item = schema.get("additionalProperties")
        return f"for each name {_fields(item)}" if item and item.get("type") == "object" else str(schema["type"])
    names = []
    for name, field in schema["properties"].items():
        inner = _named_inside(field)
        optional = "" if name in schema["required"] else "?"
        names.append(f"`{name}`{optional}" + (f" ({inner})" if inner else ""))
    return ", ".join([*names, *(f"`{pattern.removeprefix('^')}P`?" for pattern in schema.get("patternProperties", ()))])


def _named_inside(schema: Schema) -> str:
    """Return the fields of the objects inside a field, or an empty string."""
    schemas = [schema for schema in schema.get("anyOf", [schema]) if schema.get("type") != "null"]
    schemas = [schema["items"] if schema.get("type") == "array" else schema for schema in schemas]
    return "; or ".join(_fields(schema) for schema in schemas if "properties" in schema)


if __name__ == "__main__":
    names = sys.argv[1:] or list(SCHEMAS)
    if names != ["--table"] and (unknown := [name for name in names if name not in SCHEMAS]):
        sys.exit(f"{unknown[0]!r} is no command with a schema; these are {', '.join(SCHEMAS)}, or --table for all")
    show(table() if names == ["--table"] else json.dumps({name: SCHEMAS[name] for name in names}, indent=2))
