"""Random command lines and forged sidecars, each a function of one number: what users mistype and others forge."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import click

from dpkernels.cli.commands import dpkernels
from dpkernels.cli.mechanisms import CONSTRUCTORS
from dpkernels.cli.options import NumberList

SEED = 20260
# Values with which a mechanism can be made, by option.
GOOD = {
    "epsilon": "1",
    "delta": "1e-6",
    "sensitivity": "1",
    "lower": "0",
    "upper": "120",
    "theta": "3",
    "sigma": "4",
    "rates": "0.3,0.5",
    "breaks": "4",
    "step": "1",
    "gamma": "0.5",
    "q": "0.5",
    "eta": "3",
    "share": "0.4",
    "scale": "2",
    "bound": "30",
    "noise_upper": "30",
    "half_width": "0.3",
    "objective": "variance",
    "degrees": "5",
    "exponent": "1.5",
    "categories": "130",
    "categories_from": "wards.txt",
    "other": "rest",
    "size": "2",
    "blocks": "3",
    "bits": "20",
    "length": "4",
    "alphabet": "0123456789ABCrest",
    "lengths": "1,4",
    "longer": "cut",
}
REALS = ["1", "0.5", "2", "0", "-1", "0.01", "20", "20.1", "1e308", "-1e308", "1e-308", "5e-324", "inf", "-inf", "nan"]
REALS += ["1e300", "100", "120", "1e-6", "1e16", "3", "x", "1_0", "", " 1", "1,2", "0.99999999999999999", "1e-17"]
REALS += ["0.9999999999999999", "-0.0", "1e400", "٣", "0x10"]
WHOLE = [
    "1",
    "2",
    "10",
    "0",
    "-1",
    "1e3",
    "99999999999999999999",
    "x",
    "",
    "1000000",
    "15",
    "16",
    "1.5",
    "1099511627776",
]
LISTS = ["1,2", "", ",", "1,,2", ".5", "0.1,0.9", "nan", "inf,1", ",".join(["0.5"] * 50), "1e308,1e-308", "0,0", "x,1"]
NAMES = ["age", "pay", "plan", "id", "", "nope", "ä", "\udcff", "a\nb", "-x", "0", "None", "🙂" * 80]
FILES = [
    "in.csv",
    "in.tsv",
    "in.npy",
    "in.parquet",
    "empty.csv",
    "latin.csv",
    "bytes.npy",
    "no.csv",
    "",
    "-",
    ".",
    "in",
]
FILES += [
    "out.csv",
    "out.npy",
    "noise.npy",
    "out.parquet",
    "released",
    "people.ledger",
    "out.csv.json",
    "/dev/null",
    "\udcff.csv",
]
TARGETS = [
    "new.csv",
    "new.npy",
    "new.parquet",
    "new.tsv.gz",
    "new",
    "in.csv",
    "no/new.csv",
    "",
    "-",
    "new.txt",
    "a" * 300,
]
SIDECARS = [
    "out.csv.json",
    "out.npy.json",
    "noise.npy.json",
    "out.parquet.json",
    "new.json",
    "in.csv",
    "bytes.npy",
    "no.json",
]
OTHERS = ["--column", "--nope", "--", "-", "--epsilon", "x", "--json", "--help", "\udcff"]
MOSTLY = ["perturb"] * 9 + ["estimate"] * 5 + ["account"] * 4 + ["certify"] * 4 + ["ledger", "explore", "mechanisms"]
MOSTLY += ["tune", "compare"]


def command_line(number: int) -> list[str]:
    """Return a command line that is good but for a few faults."""
    source = Random(f"{SEED} line {number}")
    name = source.choice(MOSTLY)
    arguments = _good(name, source)
    for _ in range(source.choice([0, 1, 1, 1, 2, 2, 3])):
        arguments = _with_a_fault(name, arguments, source)
    if name == "explore" and not {"--print", "--output"} & set(arguments):
        arguments += ["--print"]  # else a browser opens
    return [name, *arguments]


def _good(name: str, source: Random) -> list[str]:
    if name == "perturb":
        return _good_perturb(source)
    if name == "estimate":
        return _good_estimate(source)
    if name in ("account", "certify"):
        mechanism = source.choice(list(CONSTRUCTORS))
        options = _mechanism_options(mechanism, source)
        if name == "account":
            return [
                mechanism,
                *options,
                *source.choice([[], ["--at-delta", "1e-5"], ["--reports", "3"], ["--shuffle", "99"]]),
            ]
        return source.choice([["--mechanism", mechanism, *options], ["--verify", source.choice(SIDECARS)]])
    if name == "ledger":
        return ["people.ledger"]
    if name == "tune":  # the objective is wrong: a search takes too long for a fuzzer
        return [
            "--objective",
            source.choice(["quantile", "acceptance", "x", ""]),
            "--epsilon",
            "1",
            "--sensitivity",
            "1",
        ]
    if name == "compare":
        return [
            "--epsilon",
            source.choice(["1", "x", "0"]),
            "--lower",
            "0",
            "--upper",
            source.choice(["1", "0", "nan"]),
        ]
    return []


def _good_perturb(source: Random) -> list[str]:
    ending = source.choice(["csv", "csv", "tsv", "npy", "parquet"])
    name = source.choice(["in", "in", "in", "holes"])
    mechanism = source.choice(["piecewise", "duchi", "hybrid", "closed-form", "laplace", "square-wave", *CONSTRUCTORS])
    column = [] if ending == "npy" else ["--column", "age"]
    ledger = ["--ledger", "people.ledger"]
    about = [*ledger, "--rows", "different-people"]  # composing the rows of the same people would take most of the time
    more = source.choice([[], ["--json"], ["--check"], ledger, about, ["--missing", "keep"], ["--round", "2"]])
    options = ["--mechanism", mechanism, *_mechanism_options(mechanism, source)]
    return [f"{name}.{ending}", f"new.{ending}", *column, *options, *more]


def _good_estimate(source: Random) -> list[str]:
    file = source.choice(["out.csv", "out.npy", "noise.npy", "out.parquet", "released"])
    more = source.choice(
        [[], ["--by", "plan"], ["--quantiles", ".5"], ["--histogram", "3"], ["--confidence", "0.9"], ["--json"]]
    )
    return [file, *(["--lower", "0", "--upper", "120"] if file == "noise.npy" else []), *more]


def _mechanism_options(mechanism: str, source: Random) -> list[str]:
    needed, recipe = [], CONSTRUCTORS[mechanism]
    for option in recipe.options:
        if option in recipe.required(release=True) or source.random() < 0.3:
            needed += ["--" + option.replace("_", "-"), GOOD[option]]
    return needed


def _with_a_fault(name: str, arguments: list[str], source: Random) -> list[str]:
    arguments = list(arguments)
    index = source.randrange(len(arguments)) if arguments else 0
    values = [number + 1 for number, flag in enumerate(arguments[:-1]) if flag.startswith("--")]
    match source.choice([*["value"] * 8, "any", "option", "option", "option", "drop", "twice", "other"]):
        case "value" if values:
            index = source.choice(values)
            arguments[index] = _value(name, arguments[index - 1], source)
        case "any" if arguments:
            arguments[index] = _value(name, arguments[index - 1] if index else "", source)
        case "option":
            arguments += _option(name, source)
        case "drop" if arguments:
            del arguments[index]
        case "twice" if arguments:
            arguments += arguments[index : index + 2]
        case _:
            arguments.insert(index, source.choice(OTHERS))
    return arguments


def _option(name: str, source: Random) -> list[str]:
    option = source.choice(
        [parameter for parameter in dpkernels.commands[name].params if isinstance(parameter, click.Option)] or [None]
    )
    if option is None:
        return ["--nope"]
    return [option.opts[0]] if option.is_flag else [option.opts[0], _value(name, option.opts[0], source)]


def _value(name: str, flag: str, source: Random) -> str:
    """Return a value for what follows a flag, or for an argument, by its type."""
    options = {text: parameter for parameter in dpkernels.commands[name].params for text in parameter.opts}
    option_type = options[flag].type if flag in options else None
    if flag == "--engine":
        return source.choice(["local", "x", ""])  # A cluster takes too long to start for a fuzzer.
    if isinstance(option_type, click.Choice):
        return source.choice([*option_type.choices, "x", ""])
    if isinstance(option_type, NumberList):
        return source.choice(LISTS)
    if isinstance(option_type, click.types.FloatParamType):
        return source.choice(REALS)
    if isinstance(option_type, click.types.IntParamType):
        return source.choice(WHOLE)
    if flag == "--mechanism":
        return source.choice([*CONSTRUCTORS, "nope", ""])
    if flag in ("--column", "--by"):
        return source.choice(NAMES)
    if flag in ("--sidecar", "--verify"):
        return source.choice(SIDECARS)
    return source.choice([*FILES, *TARGETS, *REALS[:6]])


JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    0.5,
    -0.0,
    1e308,
    5e-324,
    2**31,
    2**40,
    2**63,
    10**25,
    "",
    "x",
    "1",
    "age",
    "\ud800",
]
JUNK += [
    "0" * 64,
    "../in.csv",
    [],
    {},
    [[]],
    [None],
    [0, 1],
    {"a": 1},
    {"kind": "windows"},
    [[1, 2], [3]],
    "piecewise",
    "laplace",
]


def forged(number: int, texts: dict[str, str]) -> tuple[str, str]:
    """Return the name of a sidecar, and its text with a few faults."""
    source = Random(f"{SEED} sidecar {number}")
    name = source.choice(sorted(texts))
    payload = json.loads(texts[name])
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        payload = _with_a_forgery(payload, source)
    text = json.dumps(payload)
    match source.randrange(12):
        case 0:
            text = text[: source.randrange(len(text))]
        case 1:
            position = source.randrange(len(text))
            text = (
                text[:position]
                + source.choice(["NaN", "1e999", "{", '"', "\\", "-", "0", "null", '{"replacing": '])
                + text[position + 1 :]
            )
        case 2:
            text = (
                '{"replacing": ' + source.choice(["null", "1", '""', json.dumps(texts[name]), "{}"]) + ", " + text[1:]
            )
    return name, text


def _with_a_forgery(payload: Any, source: Random) -> Any:
    """Return the form with one value replaced, removed, moved or repeated, as likely near the root as deep inside."""
    payload = copy.deepcopy(payload)
    node = payload
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return payload
        key = source.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and source.random() < 0.75:
            node = node[key]
            continue
        break
    match source.choice(["junk", "junk", "junk", "drop", "sibling", "change"]):
        case "junk":
            node[key] = copy.deepcopy(source.choice(JUNK))
        case "drop":
            del node[key]
        case "sibling":
            node[key] = copy.deepcopy(node[source.choice(keys)])
        case _:
            node[key] = _changed(node[key], source)
    return payload


def _changed(value: Any, source: Random) -> Any:
    """Return a value of the same type, a little or a lot different."""
    match value:
        case bool():
            return not value
        case int():
            return source.choice([value + 1, value - 1, -value, 2 * value, value * 2**40, 0])
        case float():
            return source.choice(
                [value * 1.5, -value, value * 1e300, value / 1e300, float(round(min(abs(value), 1e15))) + 1]
            )
        case str():
            return source.choice([value + "x", value[::-1], value[:-1], value.upper(), value * 1000])
        case list():
            return source.choice([value[::-1], value + value[:1], value[1:], value * 3])
        case dict():
            return {**value, source.choice(["x", "", "kind", "replacing"]): source.choice(JUNK)}
    return source.choice(JUNK)
