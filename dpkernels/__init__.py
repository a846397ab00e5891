"""Bounded, unbiased differential-privacy noise in JAX, released by exact integer samplers.

The public names are imported when first used, so that the command line answers without starting JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "Constant": "mechanisms.windowed.bases",
    "Quartic": "mechanisms.windowed.bases",
    "Sine": "mechanisms.windowed.windows",
    "Triangle": "mechanisms.windowed.windows",
    "Uniform": "mechanisms.windowed.windows",
    "Windowed": "mechanisms.windowed.mechanism",
    "Additive": "mechanisms.additive",
    "AdditiveVector": "mechanisms.additive_vector",
    "on_vectors": "mechanisms.additive_vector",
    **dict.fromkeys(
        (
            "budget_recycled",
            "discrete_gaussian",
            "discrete_laplace",
            "gaussian",
            "laplace",
            "logistic",
            "merged_laplace",
            "staircase",
            "student",
            "truncated_discrete_laplace",
            "truncated_gaussian",
            "truncated_laplace",
        ),
        "mechanisms.named_additive",
    ),
    "DiscreteGaussian": "distributions.discrete",
    "DiscreteLaplace": "distributions.discrete",
    "Gaussian": "distributions.gaussian",
    "Laplace": "distributions.laplace",
    "Logistic": "distributions.logistic",
    "MergedLaplace": "distributions.merged_laplace",
    "Reweighted": "distributions.reweighted",
    "Staircase": "distributions.staircase",
    "Student": "distributions.student",
    "Mixture": "mechanisms.two_point",
    "TwoPoint": "mechanisms.two_point",
    "Multivariate": "mechanisms.multivariate",
    "SquareWave": "mechanisms.windowed.square_wave",
    "square_wave": "mechanisms.windowed.square_wave",
    "base_from": "mechanisms.windowed.tabulated",
    "window_from": "mechanisms.windowed.tabulated",
    "CentralPiecewise": "mechanisms.central_piecewise",
    "central_piecewise": "mechanisms.central_piecewise",
    "Optimal": "mechanisms.optimal.mechanism",
    "optimal": "mechanisms.optimal.search",
    "MECHANISMS": "mechanisms.named",
    "composite": "mechanisms.named",
    "duchi": "mechanisms.named",
    "hybrid": "mechanisms.named",
    "multivariate": "mechanisms.named",
    "piecewise": "mechanisms.named",
    "piecewise_triangle": "mechanisms.named",
    "piecewise_wang2019": "mechanisms.named",
    "CertificateError": "exact.certificate",
    "Certificate": "exact.combined",
    "RowCertificate": "exact.rows.certificate",
    "exact_sampler": "exact.registry",
    "perturb": "release.perturb",
    "perturb_traced": "release.traced",
    "ConsistentCounts": "estimation.consistency",
    "consistent_counts": "estimation.consistency",
    "Counts": "estimation.counts",
    **dict.fromkeys(("correlation", "covariance", "least_squares"), "estimation.regression"),
    "TooFewReportsError": "estimation.intervals",
    "estimate": "estimation.estimate",
    "estimate_mean": "release.estimate",
    **dict.fromkeys(("confidence_interval", "histogram_quantile", "released_values"), "estimation.released"),
    "key_from_bytes": "random.keys",
    "os_key": "random.keys",
    "simulation_key": "random.keys",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from dpkernels.distributions.discrete import DiscreteGaussian, DiscreteLaplace
    from dpkernels.distributions.gaussian import Gaussian
    from dpkernels.distributions.laplace import Laplace
    from dpkernels.distributions.logistic import Logistic
    from dpkernels.distributions.merged_laplace import MergedLaplace
    from dpkernels.distributions.reweighted import Reweighted
    from dpkernels.distributions.staircase import Staircase
    from dpkernels.distributions.student import Student
    from dpkernels.estimation.consistency import ConsistentCounts, consistent_counts
    from dpkernels.estimation.counts import Counts
    from dpkernels.estimation.estimate import estimate
    from dpkernels.estimation.intervals import TooFewReportsError
    from dpkernels.estimation.regression import correlation, covariance, least_squares
    from dpkernels.estimation.released import confidence_interval, histogram_quantile, released_values
    from dpkernels.exact.certificate import Certificate, CertificateError
    from dpkernels.exact.registry import exact_sampler
    from dpkernels.exact.rows.certificate import RowCertificate
    from dpkernels.mechanisms.additive import Additive
    from dpkernels.mechanisms.additive_vector import AdditiveVector, on_vectors
    from dpkernels.mechanisms.central_piecewise import CentralPiecewise, central_piecewise
    from dpkernels.mechanisms.multivariate import Multivariate
    from dpkernels.mechanisms.named import (
        MECHANISMS,
        composite,
        duchi,
        hybrid,
        multivariate,
        piecewise,
        piecewise_triangle,
        piecewise_wang2019,
    )
    from dpkernels.mechanisms.named_additive import (
        budget_recycled,
        discrete_gaussian,
        discrete_laplace,
        gaussian,
        laplace,
        logistic,
        merged_laplace,
        staircase,
        student,
        truncated_discrete_laplace,
        truncated_gaussian,
        truncated_laplace,
    )
    from dpkernels.mechanisms.optimal.mechanism import Optimal
    from dpkernels.mechanisms.optimal.search import optimal
    from dpkernels.mechanisms.two_point import Mixture, TwoPoint
    from dpkernels.mechanisms.windowed.bases import Constant, Quartic
    from dpkernels.mechanisms.windowed.mechanism import Windowed
    from dpkernels.mechanisms.windowed.square_wave import SquareWave, square_wave
    from dpkernels.mechanisms.windowed.tabulated import base_from, window_from
    from dpkernels.mechanisms.windowed.windows import Sine, Triangle, Uniform
    from dpkernels.random.keys import key_from_bytes, os_key, simulation_key
    from dpkernels.release.estimate import estimate_mean
    from dpkernels.release.perturb import perturb
    from dpkernels.release.traced import perturb_traced


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
