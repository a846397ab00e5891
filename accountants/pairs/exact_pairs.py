"""The worst pairs of exact forms, from the integers that a release samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from accountants.pairs.worst import Atoms, Mixed, take_none, worst_pairs
from dpkernels.exact.mixture import ExactMixture
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.form import ExactNoise
from dpkernels.exact.windows.form import ExactWindow


@worst_pairs.register
def _(form: ExactNoise, sensitivity: Any = None) -> tuple[Any, ...]:
    """The table and the table as many cells further on as neighbours can be apart, both ways.

    Under the same rounding neighbours are any number of cells up to that apart; the weights are unimodal, so the
    largest shift is the worst (``pairs.noise_pairs``), and a mixture over roundings is no worse.

    Raises:
        ValueError: noise on vectors, of which only the certificate's (epsilon, delta) is known; or another sensitivity
            than the certificate's.
    """
    certificate = form.certificate
    if not isinstance(certificate, NoiseCertificate):
        raise ValueError("mechanism: of noise on vectors only the certificate's epsilon and delta are known")
    if sensitivity is not None and sensitivity > certificate.sensitivity:
        raise ValueError(f"sensitivity: {sensitivity:g} is above the {certificate.sensitivity:g} certified")
    if not certificate.table.is_unimodal:
        raise ValueError("mechanism: its weights are not unimodal, so its worst shift is not known")
    weights = np.array([float(weight) for weight in certificate.table.outcomes]) / certificate.table.total
    none = np.zeros(certificate.shift)
    near, far = np.concatenate([weights, none]), np.concatenate([none, weights])
    even = bool((weights == weights[::-1]).all())
    return (Atoms(near, far, certificate.shift),) if even else (Atoms(near, far), Atoms(far, near))


@worst_pairs.register
def _(form: ExactWindow, sensitivity: Any = None) -> tuple[Any, ...]:
    """The first and the last row, where window and base fall from their middles; else two points at the pure level."""
    take_none(sensitivity)
    table = form.table
    if not all(_falls(weights) for weights in (table.window, table.base)):
        high = 1 / (1 + np.exp(-form.certificate.realised_epsilon))
        return (Atoms(np.array([high, 1 - high]), np.array([1 - high, high])),)
    first, last = (table.row(s).astype(np.float64) / table.total for s in (0, table.shifts))
    return (Atoms(first, last),)


def _falls(weights: np.ndarray) -> bool:
    outward = weights[len(weights) // 2 :]
    return bool((weights == weights[::-1]).all() and (outward[1:] <= outward[:-1]).all())


@worst_pairs.register
def _(form: ExactMixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """The choice revealed; both parts at the two ends."""
    take_none(sensitivity)
    (first,), (second,) = worst_pairs(form.first), worst_pairs(form.second)
    return (Mixed(float(form.certificate.weight), first, second),)
