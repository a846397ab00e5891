"""Comparison of batch schemes: the least noise of each scheme for a target (epsilon, delta)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accountants.calibrate.composed import composed_scale
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from dpkernels.distributions.base import Distribution
from dpkernels.mechanisms.additive import Additive

__all__ = ["compare_schemes"]


def compare_schemes(
    noise: Distribution,
    schemes: Mapping[str, Callable[[Guarantee], Guarantee]],
    *,
    sensitivity: float = 1.0,
    count: int = 1,
    **target: Any,
) -> dict[str, float]:
    """Return the least noise scale that meets a target with each batch scheme, the best scheme first.

    Args:
        noise: the distribution of Z, whose scales c Z are returned.
        schemes: for each name, a function from the guarantee of one step to that of a whole run (or of an epoch, see
            ``count``), such as ``lambda step: step.random_allocation(100).repeat(5)``.
        sensitivity: D, in the unit of c Z.
        count: how often each of them is repeated.
        **target: epsilon and delta, or a limit of a risk, as for ``composed_scale``.

    Raises:
        ValueError: no scheme; schemes have different neighbours, so that their noise does not compare; or a case of
            ``composed_scale``.
    """
    if not schemes:
        raise ValueError("schemes: is empty; at least one is needed")
    step = guarantee(Additive(noise, sensitivity))
    neighbours = {name: scheme(step).neighbouring for name, scheme in schemes.items()}
    if len(set(neighbours.values())) > 1:
        different = "; ".join(f"{name}: {words}" for name, words in neighbours.items())
        raise ValueError(f"schemes: have different neighbours, so that they do not compare ({different})")
    scales = {
        name: float(composed_scale(noise, sensitivity=sensitivity, count=count, scheme=scheme, **target))
        for name, scheme in schemes.items()
    }
    return dict(sorted(scales.items(), key=lambda item: item[1]))
