"""How much wider all noise of a guarantee has to be for a target."""

from __future__ import annotations

import dataclasses
import math
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.calibrate.conservative import conservative_parameter, precise_parameter
from accountants.dominating_pairs.additive import AdditivePair, additive_pair
from accountants.dominating_pairs.base import Mixed
from accountants.guarantee import Guarantee
from accountants.scale import check_target
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.solve import promote

_TOLERANCE = 1e-8  # Newton's last step of log c.


def widening(made: Guarantee, *, epsilon: Any, delta: Any) -> Real:
    """The least factor c such that, with all noise c times as wide, all reports together are (eps, delta)-DP.

    Neighbouring is that of the guarantee. Plain numbers: by the bracket's upper end, in the time of about eight
    evaluations of delta and two of the bracket. JAX ones: of the precise value, to 1e-9, differentiable in every
    parameter by implicit derivatives, under vmap too; NaN where no factor was found.

    Args:
        made: of additive noise, such as ``guarantee(m).subsample(rate).repeat(n)``.
        epsilon: eps, positive.
        delta: in (0, 1).

    Raises:
        ValueError: epsilon not positive; delta not in (0, 1); a delta that reports on samples meet without noise.
        TypeError: reports that are not additive noise.
        ConvergenceError: no factor was found.
    """
    check_target(epsilon, delta)
    checks.positive("epsilon", epsilon)
    _check_needed(made, delta)
    if namespace(epsilon, delta, *jax.tree.leaves(made)) is np:
        return math.exp(conservative_parameter(lambda log_c: _all_wider(made, math.exp(log_c)), epsilon, delta))
    made, epsilon, delta = promote(made, epsilon, delta)
    return jnp.exp(_log_factor(made, epsilon, delta))


def _check_needed(made: Guarantee, delta: Real) -> None:
    """Refuse what needs no noise at all: the one record is in no sample with probability prod (1 - r)^n."""
    parts = [(1.0 if term.sampling_rate is None else term.sampling_rate, term.count) for term in made.terms]
    if any(checks.concrete(part) is None for part in (*sum(parts, ()), delta)):
        return
    with np.errstate(divide="ignore"):
        most = -math.expm1(sum(float(count) * np.log1p(-float(rate)) for rate, count in parts))
    if delta >= most:
        raise ValueError(f"delta: {delta:g}; on these samples reports without noise have {most:.6g} already")


@singledispatch
def wider(pair: Any, factor: Real) -> Any:
    """The pair with its noise ``factor`` times as wide: noise c Z seen over D is Z seen over D/c.

    Raises:
        TypeError: a pair whose reports are not additive noise on the real line.
    """
    raise TypeError(f"made: reports of {type(pair).__name__} pairs are not additive noise, and have no width")


@wider.register
def _(pair: AdditivePair, factor: Real) -> AdditivePair:
    return additive_pair(pair.noise, pair.shift / factor)


@wider.register
def _(pair: Mixed, factor: Real) -> Mixed:
    return Mixed(pair.weight, wider(pair.first, factor), wider(pair.second, factor))


def _all_wider(made: Guarantee, factor: Real) -> Guarantee:
    def one(term: Any) -> Any:
        return dataclasses.replace(term, pairs=tuple(wider(pair, factor) for pair in term.pairs))

    return Guarantee(tuple(one(term) for term in made.terms))


@jax.jit
def _log_factor(made: Guarantee, epsilon: Any, delta: Any) -> Any:
    return precise_parameter(_with_log_factor, made, epsilon, delta, tolerance=_TOLERANCE)


def _with_log_factor(log_factor: Any, made: Guarantee) -> Guarantee:
    return _all_wider(made, jnp.exp(log_factor))
