"""Composed budgets by our accountants and by the peers that are installed, in one run, as markdown tables.

    python -m benchmarks.accounting            # about two minutes, half of them for the brackets
    python -m benchmarks.accounting --quick    # no brackets, short runs: a smoke run

Peers are not among our dependencies: pip install dp-accounting prv-accountant autodp. A missing one is left out.
Neighbouring: inputs of additive noise differ by at most its sensitivity, in every report; with Poisson samples, one
record is added or removed. Times are medians of warm runs; an error's sign says on which side of the truth it is. An
interval is (lower to upper) as its maker states it.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
import numpy as np
from scipy.optimize import brentq

import dpkernels as dpk
from accountants import calibrate, tune
from accountants.closed_forms.pure import pure_epsilon
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.discrete import Atoms
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from benchmarks.shown import machine, make_parser, markdown
from dpkernels.distributions.gaussian import Gaussian

SIGMA, RATE, COUNT, PURE, PURE_COUNT = 30.74956613197745, 0.01, 1000, 0.1, 100
EPSILON, DELTA, SMALL_DELTA = 1.0, 1e-6, 1e-10  # of the calibration; of the second table


@dataclass(frozen=True)
class Accountant:
    """One way to account: eps as a number, or as (lower, estimate, upper), or as a bracket (lower, upper).

    Attributes:
        name: as in the tables.
        gaussian: eps at delta of 1000 reports with Gaussian noise of SIGMA.
        laplace: the same of Laplace noise, each report 0.1-DP.
        sampled: from sigma and delta, of Gaussian noise on Poisson samples of rate 0.01.
        pure: of 100 mechanisms that are 0.1-DP.
        calibrated: the sigma of ``sampled`` for EPSILON at DELTA.
    """

    name: str
    gaussian: Callable[[float], Any]
    laplace: Callable[[float], Any]
    sampled: Callable[[float, float], Any]
    pure: Callable[[float], Any]
    calibrated: Callable[[], Any] | None


def _root(epsilon_of: Callable[[float], float]) -> float:
    """The sigma whose eps is EPSILON; for accountants without a calibration of their own."""
    return float(brentq(lambda sigma: epsilon_of(sigma) - EPSILON, 1.0, 3.0, xtol=1e-12, rtol=1e-12))


def _sampled(sigma: float) -> Any:
    return guarantee(dpk.gaussian(sigma=sigma), 1.0).subsample(RATE).repeat(COUNT)


def ours() -> Accountant:
    """Our precise values: the FFT, the closed form of Gaussian composition, and that of pure composition."""
    gaussian = guarantee(dpk.gaussian(sigma=SIGMA), 1.0).repeat(COUNT)
    laplace = guarantee(dpk.laplace(epsilon=PURE)).repeat(COUNT)
    return Accountant(
        "ours",
        gaussian.epsilon,
        laplace.epsilon,
        lambda sigma, delta: _sampled(sigma).estimate_epsilon(delta),
        lambda delta: float(pure_epsilon(PURE, PURE_COUNT, delta)),
        lambda: calibrate.composed_scale(Gaussian(1.0), epsilon=EPSILON, delta=DELTA, count=COUNT, rate=RATE),
    )


def brackets() -> Accountant:
    """Our rigorous intervals."""
    likely = 1 / (1 + math.exp(-PURE))
    pair = Atoms(np.array([likely, 1 - likely]), np.array([1 - likely, likely]))
    response = Guarantee((RepeatedReleases((pair,), 1),))
    return Accountant(
        "our bracket",
        lambda delta: guarantee(dpk.gaussian(sigma=SIGMA), 1.0).repeat(COUNT).bracket(delta=delta),
        lambda delta: guarantee(dpk.laplace(epsilon=PURE)).repeat(COUNT).bracket(delta=delta),
        lambda sigma, delta: _sampled(sigma).bracket(delta=delta),
        lambda delta: response.repeat(PURE_COUNT).bracket(delta=delta),
        None,
    )


def dp_accounting() -> Accountant:
    """Google's dp-accounting: privacy loss distributions, its default grid of 1e-4."""
    google, pld = import_module("dp_accounting"), import_module("dp_accounting.pld")

    def composed(event: object, delta: float) -> float:
        return float(pld.PLDAccountant().compose(event, COUNT).get_epsilon(delta))

    def noise(sigma: float) -> Any:
        return google.PoissonSampledDpEvent(RATE, google.GaussianDpEvent(sigma))

    def pure(delta: float) -> float:
        budget = pld.common.DifferentialPrivacyParameters(PURE, 0)
        single = pld.privacy_loss_distribution.from_privacy_parameters(budget)
        return float(single.self_compose(PURE_COUNT).get_epsilon_for_delta(delta))

    def calibrated() -> float:
        def event(sigma: float) -> Any:
            return google.SelfComposedDpEvent(noise(sigma), COUNT)

        return float(google.calibrate_dp_mechanism(pld.PLDAccountant, event, EPSILON, DELTA))

    return Accountant(
        "dp_accounting",
        lambda delta: composed(google.GaussianDpEvent(SIGMA), delta),
        lambda delta: composed(google.LaplaceDpEvent(1 / PURE), delta),
        lambda sigma, delta: composed(noise(sigma), delta),
        pure,
        calibrated,
    )


def prv_accountant() -> Accountant:
    """Microsoft's prv_accountant at the errors that it calls typical: 0.1 of eps, a thousandth of delta."""
    prv = import_module("prv_accountant")

    def composed(variable: object, count: int, delta: float) -> tuple[float, ...]:
        accountant = prv.PRVAccountant(
            [variable], eps_error=0.1, delta_error=delta / 1000, max_self_compositions=[count]
        )
        return tuple(float(value) for value in accountant.compute_epsilon(delta, [count]))

    def sampled(sigma: float, delta: float) -> tuple[float, ...]:
        return composed(prv.PoissonSubsampledGaussianMechanism(RATE, sigma), COUNT, delta)

    return Accountant(
        "prv_accountant",
        lambda delta: composed(prv.GaussianMechanism(SIGMA), COUNT, delta),
        lambda delta: composed(prv.LaplaceMechanism(PURE), COUNT, delta),
        sampled,
        lambda delta: composed(prv.PureDPMechanism(PURE), PURE_COUNT, delta),
        lambda: _root(lambda sigma: sampled(sigma, DELTA)[1]),
    )


def autodp() -> Accountant:
    """autodp's default, Renyi composition."""
    zoo, transformers = import_module("autodp.mechanism_zoo"), import_module("autodp.transformer_zoo")

    def composed(mechanism: object, count: int, delta: float) -> float:
        return float(transformers.Composition()([mechanism], [count]).get_approxDP(delta))

    def sampled(sigma: float, delta: float) -> float:
        return float(zoo.NoisySGD_Mechanism(RATE, sigma, COUNT).get_approxDP(delta))

    likely = 1 / (1 + math.exp(-PURE))
    return Accountant(
        "autodp",
        lambda delta: composed(zoo.GaussianMechanism(SIGMA), COUNT, delta),
        lambda delta: composed(zoo.LaplaceMechanism(1 / PURE), COUNT, delta),
        sampled,
        lambda delta: composed(zoo.RandresponseMechanism(likely), PURE_COUNT, delta),
        lambda: _root(lambda sigma: sampled(sigma, DELTA)),
    )


PEERS = {"dp-accounting": dp_accounting, "prv-accountant": prv_accountant, "autodp": autodp}


@dataclass(frozen=True)
class Task:
    """One number to compute.

    Attributes:
        name: as in the table.
        run: computes it.
        reference: the true value, or None where ours stands in for it.
    """

    name: str
    run: Callable[[Accountant], Any]
    reference: float | None = None


TASKS = (
    Task(f"{COUNT} x Gaussian, sigma {SIGMA:.4f}", lambda by: by.gaussian(1e-5), 4.521553285812701),
    Task(f"{COUNT} x Laplace, eps {PURE}", lambda by: by.laplace(1e-5), 17.423651987537447),
    Task(f"{COUNT} x Gaussian, q {RATE}, sigma 1", lambda by: by.sampled(1.0, 1e-5), 1.828236666496),
    Task(f"{PURE_COUNT} x pure DP, eps {PURE}", lambda by: by.pure(1e-5), 4.306791372516507),
    Task(
        f"sigma of {COUNT} x Gaussian, q {RATE}, for ({EPSILON:g}, {DELTA:g})",
        lambda by: by.calibrated() if by.calibrated else None,
        1.5626656014552,
    ),
)
SMALL_TASKS = (
    Task(TASKS[0].name, lambda by: by.gaussian(SMALL_DELTA)),
    Task(TASKS[1].name, lambda by: by.laplace(SMALL_DELTA)),
    Task(TASKS[2].name, lambda by: by.sampled(1.0, SMALL_DELTA)),
)


def measured(run: Callable[[], Any], seconds: float) -> tuple[Any, float]:
    """The value, and the median time of warm runs that last about ``seconds`` in all, at least 3; 1 of slow ones."""
    start = time.perf_counter()
    run()
    slow = time.perf_counter() - start > 5 * seconds
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < (1 if slow else 3) or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        value = run()
        times.append(time.perf_counter() - start)
    return value, float(np.median(times))


def rows(tasks: tuple[Task, ...], accountants: list[Accountant], seconds: float) -> Iterator[list[str]]:
    """Yield the rows of a table; times are in units of the first accountant's time."""
    for task in tasks:
        reference, unit = task.reference, 0.0
        for by in accountants:
            value, took = measured(lambda by=by, task=task: task.run(by), seconds)  # type: ignore[misc]
            if value is None:
                continue
            reference, unit = reference or value, unit or took
            yield [task.name, by.name, *_cells(value, reference), f"{1e3 * took:,.3g}", f"{took / unit:,.3g}"]


def _cells(value: float, reference: float) -> tuple[str, str]:
    """The value and its error; of an interval its ends, and the error of each."""
    if not isinstance(value, tuple):
        return f"{value:.10g}", _error(value, reference)
    low, high = value[0], value[-1]
    remark = "" if low <= reference <= high else " (misses it)"
    if len(value) == 2:
        return f"{low:.8g} to {high:.8g}", f"{_error(low, reference)} to {_error(high, reference)}{remark}"
    return f"{value[1]:.6g} ({low:.4g} to {high:.4g})", _error(value[1], reference) + remark


def _error(value: float, reference: float) -> str:
    return f"{value / reference - 1:+.1e}"


def installed() -> Iterator[Accountant]:
    """The peers that can be imported; says which cannot."""
    for package, make in PEERS.items():
        try:
            yield make()
        except ImportError as error:
            print(f"{package}: left out ({error})", flush=True)


PIECEWISE: Any = tune.piecewise(epsilon=0.1, lower=-1.0, upper=1.0)
# Of a scalar of each: what repeats, at which counts, on which samples; no peer's value has a derivative.
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "piecewise, eps 0.1": lambda t: dataclasses.replace(PIECEWISE, epsilon=0.1 / t).build({"eta": 1.5}),
    "Laplace, eps 0.1": lambda t: dpk.Additive(dpk.Laplace(10.0 * t), 1.0),
    "recycled Gaussian": lambda t: dpk.Additive(dpk.Reweighted(dpk.Gaussian(9.0 * t), -8.0, 8.0, 0.3), 1.0),
    "Gaussian, sigma 9": lambda t: dpk.Additive(dpk.Gaussian(9.0 * t), 1.0),
}


def gradient_rows(count: int, sets: int, seconds: float) -> Iterator[list[str]]:
    """Yield times of eps of ``count`` reports with its derivative in the noise scale: compiled, warm, vectorised."""
    for name, mechanism in GRADIENTS.items():
        for rate in (None, RATE):

            def epsilon(t: Any, mechanism: Any = mechanism, rate: Any = rate) -> Any:
                single = guarantee(mechanism(t))
                return (single if rate is None else single.subsample(rate)).repeat(count).epsilon(DELTA)

            both = jax.value_and_grad(epsilon)
            start, processor = jax.numpy.float64(1.0), time.process_time()
            step = jax.jit(both).lower(start).compile()
            compiled = time.process_time() - processor
            value, slope = (float(gradient) for gradient in step(start))
            warm = measured(lambda step=step, start=start: jax.block_until_ready(step(start)), seconds)[1]  # type: ignore[misc]
            many = jax.jit(jax.vmap(both)).lower(np.linspace(0.9, 1.1, sets)).compile()
            began = time.perf_counter()
            jax.block_until_ready(many(np.linspace(0.9, 1.1, sets)))
            took = time.perf_counter() - began
            sampled = "" if rate is None else f", samples of {rate:g}"
            yield [
                f"{count} x {name}{sampled}",
                f"{value:.9g}",
                f"{slope:.6g}",
                f"{compiled:.2g}",
                f"{1e3 * warm:.3g}",
                f"{took:.2g}",
            ]


def main() -> None:
    """Run and print."""
    options = make_parser(__doc__, "no brackets and short runs").parse_args()
    warnings.simplefilter("ignore")
    print(machine(*PEERS), flush=True)
    accountants = [ours(), *([] if options.quick else [brackets()]), *installed()]
    seconds = 0.1 if options.quick else 1.0
    for title, tasks, against in (
        ("eps at delta = 1e-5, and a calibration", TASKS, "relative error"),
        (f"eps at delta = {SMALL_DELTA:g}", SMALL_TASKS, "against ours"),
    ):
        columns = ["task", "by", "value", against, "ms", "x ours"]
        print(f"\n### {title}\n\n{markdown(columns, rows(tasks, accountants, seconds))}", flush=True)
    sets = 10 if options.quick else 1000
    columns = ["task", "eps", "d eps / d log width", "compile, processor s", "warm ms", f"{sets} at once, s"]
    print(f"\n### A value and its gradient, which no peer has, at delta = {DELTA:g}\n", flush=True)
    with jax.enable_x64(True):
        print(markdown(columns, gradient_rows(COUNT, sets, seconds)), flush=True)


if __name__ == "__main__":
    main()
