"""Pairs and guarantees as JSON: known frozen dataclasses by name, numbers and arrays as they are."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np

from dpkernels import checks

_ABSENT = "is not of this version's guarantees"


@cache
def _kinds() -> dict[str, Any]:
    """Every class that may occur, by its name."""
    from accountants.composition.guarantee import Guarantee
    from accountants.composition.terms import Term
    from accountants.pairs.worst import Atoms, Mixed, Placed, Shifted
    from dpkernels.distributions.gaussian import Gaussian
    from dpkernels.distributions.laplace import Laplace
    from dpkernels.distributions.merged_laplace import MergedLaplace
    from dpkernels.distributions.reweighted import Reweighted
    from dpkernels.distributions.staircase import Staircase
    from dpkernels.mechanisms.windowed.bases import Constant, Quartic
    from dpkernels.mechanisms.windowed.mechanism import Sine, Triangle, Uniform, Windowed
    from dpkernels.mechanisms.windowed.tabulated import PiecewiseLinear, TabulatedBase, TabulatedWindow

    kinds: tuple[Any, ...] = (
        *(Guarantee, Term, Atoms, Mixed, Placed, Shifted),
        *(Gaussian, Laplace, MergedLaplace, Reweighted, Staircase),
        *(Constant, Quartic, Sine, Triangle, Uniform, Windowed),
        *(PiecewiseLinear, TabulatedBase, TabulatedWindow),
    )
    return {kind.__name__: kind for kind in kinds}


def to_form(item: Any) -> Any:
    """A JSON form.

    Raises:
        TypeError: something that has none, such as a density of the user's own.
    """
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, tuple):
        return {"tuple": [to_form(entry) for entry in item]}
    if _kinds().get(type(item).__name__) is type(item):
        fields = {field.name: to_form(getattr(item, field.name)) for field in dataclasses.fields(item)}
        return {"type": type(item).__name__, **fields}
    if isinstance(item, int):
        return item
    array = np.asarray(item)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{type(item).__name__} has no JSON form: it is no law, shape or pair that is made of numbers")
    return float(array) if array.ndim == 0 else {"array": array.tolist()}


def from_form(form: Any) -> Any:
    """What ``to_form`` was given.

    Raises:
        ValueError: a form of nothing known.
    """
    if form is None or isinstance(form, int | float | str):
        return form
    if not isinstance(form, dict):
        raise ValueError(f"form: {type(form).__name__} {_ABSENT}")
    if "tuple" in form:
        return tuple(from_form(entry) for entry in form["tuple"])
    if "array" in form:
        return np.array(form["array"], np.float64)
    kind = _kinds().get(form.get("type", ""))
    names = {field.name for field in dataclasses.fields(kind)} if kind else set()
    if kind is None or set(form) - {"type"} != names:
        raise ValueError(f"form: {form.get('type')!r} {_ABSENT}")
    return kind(**{name: from_form(form[name]) for name in names})


def check_terms(terms: Any) -> None:
    """Refuse the terms of a form where ``guarantee`` could not have made them.

    Raises:
        ValueError: saying what is wrong.
        TypeError: the same, of a type.
    """
    from accountants.composition.replacement import check_replaceable
    from accountants.composition.terms import ADJACENCIES, Term, one_adjacency

    if not (isinstance(terms, tuple) and terms and all(isinstance(term, Term) for term in terms)):
        raise ValueError("form: the terms of a guarantee are one or more")
    for term in terms:
        checks.whole("count", term.count, 1, 1 << 62)
        checks.one_of("adjacency", term.adjacency, ADJACENCIES)
        if term.rate is not None:
            checks.within("rate", term.rate, np.nextafter(0.0, 1.0), 1.0)
        if not (isinstance(term.pairs, tuple) and term.pairs):
            raise ValueError("form: the pairs of a term are one or more")
        for pair in term.pairs:
            check_pair(pair)
        if term.adjacency == "replace":
            check_replaceable(term.pairs)
    one_adjacency(terms)


def check_pair(pair: Any) -> None:
    """Refuse a pair that is none of laws.

    Raises:
        ValueError: names what is wrong.
    """
    from accountants.pairs.worst import Atoms, Mixed, Placed, Shifted

    if isinstance(pair, Atoms):
        for name, mass in (("p", pair.p), ("q", pair.q)):
            checks.within(name, mass, 0.0, 1.0)
            if np.shape(mass) != np.shape(pair.p) or np.ndim(mass) != 1 or abs(np.sum(mass) - 1) > 1e-9:
                raise ValueError(f"{name}: is not of as many probabilities as the other, or they do not add up to 1")
        if pair.moved is not None:
            _check_moved(pair)
    elif isinstance(pair, Mixed):
        checks.within("weight", pair.weight, 0.0, 1.0)
        check_pair(pair.first)
        check_pair(pair.second)
    elif isinstance(pair, Shifted):
        checks.sensitivity(np.abs(pair.shift))
    elif isinstance(pair, Placed):
        _check_shapes(pair.mechanism)
        for name, x in (("x", pair.x), ("other", pair.other)):
            checks.within(name, x, pair.mechanism.lower, pair.mechanism.upper)
    else:
        raise ValueError(f"form: {type(pair).__name__} is no pair of laws")


def _check_moved(pair: Any) -> None:
    n = checks.whole("moved", pair.moved, 1, len(pair.p) - 1)
    weights = pair.p[: len(pair.p) - n]
    falls = np.all(np.diff(weights[len(weights) // 2 :]) <= 0)
    if any(pair.p[-n:]) or any(pair.q[:n]) or np.any(pair.q[n:] != weights):
        raise ValueError(f"moved: {n}; q is not p so many points further on")
    if np.any(weights != weights[::-1]) or not falls:
        raise ValueError("p: of noise on a lattice is even and falls from the middle")


def _check_shapes(mechanism: Any) -> None:
    """A table must be one that ``window_from`` and ``base_from`` make, and fall from its middle."""
    from accountants.pairs.worst import falls
    from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow, base_from, window_from

    for make, kind in ((window_from, TabulatedWindow), (base_from, TabulatedBase)):
        for name in ("window", "base"):
            shape = getattr(mechanism, name)
            if isinstance(shape, kind) and not (make(shape.shape.values) == shape and falls(shape)):
                raise ValueError(f"{name}: is not even with a peak of 1, or does not fall from its middle")
