"""Exact forms that are made of other forms: one of two at random, and coordinate by coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.exact.combined import MixtureCertificate, MultivariateCertificate
from dpkernels.exact.form import CHOICE_STREAM, ExactForm, Words
from dpkernels.exact.windows.form import ExactWindow
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.two_point import Mixture
from dpkernels.numerics import RealArray, namespace


@dataclass(frozen=True, eq=False)
class ExactMixture(ExactForm):
    """One of two exact forms, chosen by a word of its own below a threshold out of 2^32.

    Only one of the two is reported, so both may read the same noise and rounding words.
    """

    mechanism: Mixture
    first: ExactWindow
    second: ExactWindow
    certificate: MixtureCertificate

    @cached_property
    def words(self) -> tuple[Words, ...]:
        pairs = zip(self.first.words, self.second.words, strict=True)
        shared = tuple(Words(a.stream, max(a.bits, b.bits)) for a, b in pairs)
        return (*shared, Words(CHOICE_STREAM, 32))

    @property
    def negligible(self) -> float:
        return min(self.first.negligible, self.second.negligible)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        *shared, choice = words
        reports = [
            form.reports(x, *(word.astype(f"uint{need.bits}") for word, need in zip(shared, form.words, strict=True)))
            for form in (self.first, self.second)
        ]
        return namespace(choice).where(choice < np.uint32(self.certificate.threshold), reports[0], reports[1])


def mixture_form(mechanism: Mixture, first: ExactForm, second: ExactForm) -> ExactMixture:
    """The form of a mixture by those of its parts.

    Raises:
        TypeError: a part is a mixture itself.
    """
    if not (isinstance(first, ExactWindow) and isinstance(second, ExactWindow)):
        raise TypeError("mechanism: a mixture of mixtures has no exact form")
    threshold = round(mechanism.weight * (1 << 32))
    one: Any = first.certificate  # The mixture's own certificate refuses what is not unbiased.
    other: Any = second.certificate
    certificate = MixtureCertificate(one, other, threshold)
    return ExactMixture(mechanism, first, second, certificate)


@dataclass(frozen=True, eq=False)
class ExactMultivariate:
    """s of d coordinates, each released by the exact form of the coordinate mechanism."""

    mechanism: Multivariate
    coordinate: ExactForm
    certificate: MultivariateCertificate
