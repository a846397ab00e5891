"""Pairs of the user's own that are tables: two laws on finitely many reports, randomised response."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from accountants.pairs.worst import Atoms
from dpkernels import checks
from dpkernels.numerics import namespace

_NORMALISED = 1e-9


def weights(p: Any, q: Any) -> Atoms:
    """The pair of two laws on the same finitely many reports; a report may tell either way, and delta is the larger.

    Composed reports are all of the one law or all of the other: p in every pair against q in every pair. Where a
    neighbour may have p in one report and q in the next, as where values move in opposite directions, a pair that is
    not its own mirror is not accounted for.

    With ``subsample``, q is the law without the record; with replaced records, p and q are those of the two records
    that are told apart best.

    Args:
        p: probabilities under one input, a 1-D array; JAX arrays stay differentiable.
        q: under the other.

    Raises:
        ValueError: not two arrays of one length of numbers in [0, 1] that add up to 1.
        TypeError: not numbers.
    """
    p, q = (mass if isinstance(mass, jax.Array) else np.asarray(mass) for mass in (p, q))
    for name, mass in (("p", p), ("q", q)):
        checks.within(name, mass, 0.0, 1.0)
        known = checks.concrete(mass)
        if np.ndim(mass) != 1 or np.shape(mass) != np.shape(p) or not np.size(mass):
            raise ValueError(f"{name}: has shape {np.shape(mass)}; p and q are 1-D and of one length")
        if known is not None and not abs(known.sum() - 1) <= _tolerance(mass):
            raise ValueError(f"{name}: adds up to {known.sum():.12g}; probabilities add up to 1")
    return Atoms(p, q)


def _tolerance(mass: Any) -> float:
    return _NORMALISED if mass.dtype.kind != "f" else max(_NORMALISED, 64 * float(np.finfo(mass.dtype).eps))


def randomised_response(epsilon: Any, categories: int = 2) -> Atoms:
    """The worst pair of (generalised) randomised response: the truth with probability e^eps/(e^eps + k - 1).

    Any other category has 1/(e^eps + k - 1). Neighbouring: any two true categories x and x'; of the reports x, the
    k - 2 others together, and x', the probabilities are (e^eps, k - 2, 1) and (1, k - 2, e^eps) over their sum.

    Args:
        epsilon: eps > 0 of one report; may be traced.
        categories: k, at least 2.

    Raises:
        ValueError: epsilon not positive and finite, or fewer than two categories.
        TypeError: categories is not a whole number.

    Example:
        >>> from accountants import guarantee
        >>> round(guarantee(randomised_response(1.0, categories=4)).delta(0.0), 6)
        0.300489
    """
    checks.positive("epsilon", epsilon)
    k = checks.whole("categories", categories, 2, 1 << 53)
    xp = namespace(epsilon)
    low = xp.exp(-epsilon) / (1 + (k - 1) * xp.exp(-epsilon))
    high = 1 - (k - 1) * low
    p = xp.stack([high, low] if k == 2 else [high, (k - 2) * low, low])
    return Atoms(p, p[::-1])
