"""Guarantees as JSON: frozen dataclasses are stored by name, numbers and arrays by value."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.additive import AdditivePair, HalvedPair
from accountants.dominating_pairs.base import Mixed
from accountants.dominating_pairs.discrete import Atoms, RowPair
from accountants.dominating_pairs.gaussian_mixture import GaussianMixture
from accountants.dominating_pairs.windowed import WindowedPair
from accountants.schemes.allocation import Allocated, AllocatedBlock
from accountants.schemes.fixed_size import FixedSize
from accountants.schemes.groups import Grouped
from accountants.schemes.poisson import TruncatedPoissonPair
from accountants.schemes.shuffled import ShuffledBatches
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.mechanisms.windowed.bases import Shape
from dpkernels.mechanisms.windowed.tabulated import PiecewiseLinear

# The classes that a file may hold in addition to distributions with a density, windows and bases. The dictionaries hold
# the names that files use for classes and fields, where they differ from the names in the code.
_CLASSES: tuple[type, ...] = (
    *(
        RepeatedReleases,
        Atoms,
        RowPair,
        Mixed,
        WindowedPair,
        AdditivePair,
        PiecewiseLinear,
        GaussianMixture,
        HalvedPair,
    ),
    *(Allocated, AllocatedBlock, FixedSize, Grouped, ShuffledBatches, TruncatedPoissonPair),
)
_CLASS_NAMES: dict[type, str] = {
    RepeatedReleases: "Term",
    AdditivePair: "Shifted",
    WindowedPair: "Placed",
    TruncatedPoissonPair: "Truncated",
}
_FIELD_NAMES = {
    "sampling_rate": "rate",
    "within_sensitivity": "near",
    "added": "one",
    "substituted": "other",
    "p_full": "full",
    "p_kept": "kept",
}
UNKNOWN = "is not of this version's guarantees"


def _classes_by_name() -> dict[str, type]:
    densities = (kind for kind in Noise.classes().values() if issubclass(kind, Distribution))
    classes = (*_CLASSES, *densities, *Shape.concrete_subclasses())
    return {_CLASS_NAMES.get(cls, cls.__name__): cls for cls in classes}


def _keys_by_field(item_class: Any) -> dict[str, str]:
    return {field.name: _FIELD_NAMES.get(field.name, field.name) for field in dataclasses.fields(item_class)}


def to_json_form(item: object, classes: dict[str, type] | None = None) -> Any:
    """Return a form that ``json`` can write; a TypeError names a part that cannot be saved, as a user's density."""
    classes = classes or _classes_by_name()
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, tuple):
        return {"tuple": [to_json_form(entry, classes) for entry in item]}
    name = _CLASS_NAMES.get(type(item), type(item).__name__)
    if classes.get(name) is type(item):
        values = {key: to_json_form(getattr(item, field), classes) for field, key in _keys_by_field(item).items()}
        return {"type": name, **values}
    if isinstance(item, int):
        return item
    array = np.asarray(item)
    if array.dtype.kind not in "iuf":
        raise TypeError(
            f"{type(item).__name__} has no JSON form; only distributions, shapes and pairs made of numbers can be saved"
        )
    return float(array) if array.ndim == 0 else {"array": array.tolist()}


def from_json_form(form: object, classes: dict[str, type] | None = None) -> Any:
    """Return the item from which ``to_json_form`` made the form, with the same ``classes``."""
    classes = classes or _classes_by_name()
    if form is None or isinstance(form, int | float | str):
        return form
    if not isinstance(form, dict):
        raise ValueError(f"form: {type(form).__name__} {UNKNOWN}")
    if "tuple" in form:
        return tuple(from_json_form(entry, classes) for entry in form["tuple"])
    if "array" in form:
        return np.array(form["array"], np.float64)
    name = form.get("type")
    item_class: type | None = classes.get(name) if isinstance(name, str) else None
    fields = _keys_by_field(item_class) if item_class else {}
    if item_class is None or set(form) - {"type"} != set(fields.values()):
        raise ValueError(f"form: {name!r} {UNKNOWN}")
    return item_class(**{field: from_json_form(form[key], classes) for field, key in fields.items()})
