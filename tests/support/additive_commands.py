"""Options of every additive mechanism of the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dpkernels as dpk
from accountants import calibrate

CLAIM = ["--epsilon", "1", "--delta", "1e-6", "--sensitivity", "2"]


PURE = ["--epsilon", "1", "--sensitivity", "2"]


TARGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "sensitivity": 2.0}


# What is typed, and the mechanism that it means.
ADDITIVE: dict[str, tuple[list[str], Callable[[], Any]]] = {
    "laplace": (PURE, lambda: dpk.laplace(epsilon=1.0, sensitivity=2.0)),
    "gaussian": (CLAIM, lambda: calibrate.gaussian(**TARGET)),
    "gaussian, sigma": ([*CLAIM, "--sigma", "9"], lambda: dpk.gaussian(sigma=9.0, **TARGET)),
    "truncated-laplace": (CLAIM, lambda: dpk.truncated_laplace(**TARGET)),
    "truncated-laplace, end": (
        [*CLAIM, "--noise-upper", "27.327378"],
        lambda: dpk.truncated_laplace(**TARGET, upper=27.327378),
    ),
    "truncated-gaussian, bound": (
        [*CLAIM, "--bound", "60"],
        lambda: calibrate.truncated_gaussian(**TARGET, bound=60.0),
    ),
    "truncated-gaussian, both": (
        [*CLAIM, "--bound", "60", "--sigma", "9"],
        lambda: dpk.truncated_gaussian(sigma=9.0, bound=60.0, **TARGET),
    ),
    "recycled-laplace, both": (
        [*CLAIM, "--theta", "6", "--scale", "2.5", "--q", "0.1"],
        lambda: dpk.budget_recycled(dpk.Laplace(2.5), theta=6.0, q=0.1, **TARGET),
    ),
    "recycled-gaussian, sigma": (
        [*CLAIM, "--theta", "6", "--sigma", "9"],
        lambda: calibrate.budget_recycled(dpk.Gaussian(9.0), theta=6.0, **TARGET),
    ),
    "recycled-gaussian, q": (
        [*CLAIM, "--theta", "6", "--q", "0.3"],
        lambda: calibrate.budget_recycled(dpk.Gaussian, theta=6.0, q=0.3, **TARGET),
    ),
    "recycled-gaussian": (
        [*CLAIM, "--theta", "6"],
        lambda: calibrate.budget_recycled(dpk.Gaussian, theta=6.0, **TARGET),
    ),
    "staircase": (PURE, lambda: dpk.staircase(epsilon=1.0, sensitivity=2.0)),
    "staircase, gamma": (
        [*PURE, "--gamma", "0.3"],
        lambda: dpk.staircase(epsilon=1.0, sensitivity=2.0, gamma=0.3),
    ),
    "merged-laplace": (
        [*CLAIM, "--rates", "0.3,0.5", "--breaks", "4"],
        lambda: dpk.merged_laplace(rates=(0.3, 0.5), breaks=(4.0,), **TARGET),
    ),
    "discrete-laplace": (PURE, lambda: dpk.discrete_laplace(epsilon=1.0, sensitivity=2.0)),
    "discrete-laplace, step": (
        [*PURE, "--step", "0.5"],
        lambda: dpk.discrete_laplace(epsilon=1.0, sensitivity=2.0, step=0.5),
    ),
    "discrete-gaussian": ([*CLAIM, "--sigma", "9"], lambda: dpk.discrete_gaussian(sigma=9.0, **TARGET)),
    "discrete-gaussian, calibrated": (CLAIM, lambda: calibrate.discrete_gaussian(**TARGET)),
    "logistic": (PURE, lambda: dpk.logistic(epsilon=1.0, sensitivity=2.0)),
    "student, degrees": ([*PURE, "--degrees", "5"], lambda: dpk.student(epsilon=1.0, sensitivity=2.0, degrees=5.0)),
    "generalised-normal": (
        [*CLAIM, "--exponent", "1.4"],
        lambda: calibrate.generalised_normal(**TARGET, exponent=1.4),
    ),
    "generalised-normal, scale": (
        [*CLAIM, "--exponent", "1.4", "--scale", "9"],
        lambda: dpk.generalised_normal(scale=9.0, exponent=1.4, **TARGET),
    ),
    "truncated-discrete-laplace": (CLAIM, lambda: dpk.truncated_discrete_laplace(**TARGET)),
}


def arguments(case: str) -> list[str]:
    return ["--mechanism", case.partition(",")[0], *ADDITIVE[case][0]]
