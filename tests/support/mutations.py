"""Changes of JSON, drawn by hypothesis: any place of it, replaced, left out, swapped, repeated or added to."""

from __future__ import annotations

import copy
import math

from hypothesis import strategies as st

HOSTILE = [
    *(0, 1, -1, 2, 8, 15, 16, 17, 31, 32, 63, 64, 65, 128, 40_000_000_000, 2**31, 2**32, 2**63, 2**64, 2**65, 10**30),
    *(0.0, -0.0, 1.0, 0.01, 0.5, 20.0, 20.5, 5e-324, 1e-300, 1e150, 1e300, 1.7976931348623157e308),
    *(math.nan, math.inf, -math.inf),
    *(True, False, None, "", "1", "0", "1/2", "nan", "window", "noise", "l1", "l2", "linf", [], [[]], {}, [1, 1]),
]


def places(payload, path=()):
    """The paths of every value in it."""
    keys = payload if isinstance(payload, dict) else range(len(payload)) if isinstance(payload, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(payload[key], (*path, key))


def at(payload, path):
    for key in path:
        payload = payload[key]
    return payload


def hostile():
    """One of them, as a copy that later changes may change."""
    return st.sampled_from(HOSTILE).map(copy.deepcopy)


@st.composite
def near(draw, value):
    """Another value of the same kind, and often near it."""
    match value:
        case bool() | None:
            return draw(hostile())
        case int():
            step = draw(st.sampled_from([-1000, -2, -1, 1, 2, 1000, value, -value, 1 << 64, -(1 << 64)]))
            return draw(st.sampled_from([value + step, value // 2, 2 * value + 1, float(value % 2**62)]))
        case float():
            around = [math.nextafter(value, math.inf), math.nextafter(value, -math.inf), value * 2, value / 2, -value]
            return draw(st.sampled_from([*around, value * (1 - 1e-13), value * 0.99, value + 1]))
        case str():
            return draw(st.sampled_from([value[::-1], value[1:], value + "0", value.replace("1", "2"), "0", "1"]))
        case _:
            return draw(hostile())


@st.composite
def mutated(draw, payload):
    """A copy with one to three changes."""
    payload = copy.deepcopy(payload)
    for _ in range(draw(st.integers(1, 3))):
        paths = list(places(payload))
        if not paths:
            return payload
        # First the name and then the place, so that tables' many numbers do not hide the rest.
        name = draw(st.sampled_from(sorted({str(path[-1]) for path in paths if isinstance(path[-1], str)} | {"*"})))
        chosen = [path for path in paths if str(path[-1]) == name or (name == "*" and isinstance(path[-1], int))]
        path = draw(st.sampled_from(chosen or paths))
        change(draw, at(payload, path[:-1]), path[-1])
    return payload


def change(draw, holder, key):
    """One change of a list or an object, in place."""
    other_keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    other_key = draw(st.sampled_from(other_keys))
    match draw(st.sampled_from(["near", "near", "hostile", "swap", "move", "delete", "repeat", "add"])):
        case "near":
            holder[key] = draw(near(holder[key]))
        case "hostile":
            holder[key] = draw(hostile())
        case "swap":
            holder[key], holder[other_key] = holder[other_key], holder[key]
        case "move" if type(holder[key]) is int and type(holder[other_key]) is int:
            step = draw(st.sampled_from([1, 2, 1000, abs(holder[key]) // 2]))
            holder[key], holder[other_key] = holder[key] - step, holder[other_key] + step
        case "delete":
            del holder[key]
        case "repeat" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case "add" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["extra", "kind", "sensitivity", "norm", "table"]))] = draw(hostile())
        case _:
            holder[key] = copy.deepcopy(holder[other_key])
