"""Pairs and guarantees as JSON: known frozen dataclasses by name, numbers and arrays as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import Mixed
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.windowed import WindowedPair
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.windowed.bases import Constant, Quartic
from dpkernels.mechanisms.windowed.tabulated import PiecewiseLinear, TabulatedBase, TabulatedWindow
from dpkernels.mechanisms.windowed.windows import Sine, Triangle, Uniform

Kinds = Mapping[str, type]
# What pairs are made of, by name.
PARTS: tuple[type, ...] = (
    *(Atoms, Mixed, WindowedPair, AdditivePair),
    *(Gaussian, Laplace, MergedLaplace, Reweighted, Staircase),
    *(Constant, Quartic, Sine, Triangle, Uniform),
    *(PiecewiseLinear, TabulatedBase, TabulatedWindow),
)
_ABSENT = "is not of this version's guarantees"


def to_form(item: Any, kinds: Kinds) -> Any:
    """A JSON form of something whose dataclasses are all of the kinds.

    Raises:
        TypeError: something that has none, such as a density of the user's own.
    """
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, tuple):
        return {"tuple": [to_form(entry, kinds) for entry in item]}
    if dataclasses.is_dataclass(item) and kinds.get(type(item).__name__) is type(item):
        fields = {field.name: to_form(getattr(item, field.name), kinds) for field in dataclasses.fields(item)}
        return {"type": type(item).__name__, **fields}
    if isinstance(item, int):
        return item
    array = np.asarray(item)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{type(item).__name__} has no JSON form: it is no law, shape or pair that is made of numbers")
    return float(array) if array.ndim == 0 else {"array": array.tolist()}


def from_form(form: Any, kinds: Kinds) -> Any:
    """The inverse of ``to_form``.

    Raises:
        ValueError: a form of nothing known.
    """
    if form is None or isinstance(form, int | float | str):
        return form
    if not isinstance(form, dict):
        raise ValueError(f"form: {type(form).__name__} {_ABSENT}")
    if "tuple" in form:
        return tuple(from_form(entry, kinds) for entry in form["tuple"])
    if "array" in form:
        return np.array(form["array"], np.float64)
    kind: Any = kinds.get(form.get("type", ""))
    names = {field.name for field in dataclasses.fields(kind)} if kind else set()
    if kind is None or set(form) - {"type"} != names:
        raise ValueError(f"form: {form.get('type')!r} {_ABSENT}")
    return kind(**{name: from_form(form[name], kinds) for name in names})
