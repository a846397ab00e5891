"""Budget recycling as published against exact accounting, as markdown tables.

    python -m benchmarks.recycling            # about a minute

Acceptance P(|noise| <= theta) at theta = 1, delta = 1e-5, Gaussian kernel; then budgets set by the published
algorithms, with the delta that they really have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accountants import calibrate, recycling
from accountants.published import recycling as published
from benchmarks.shown import markdown
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace

DELTA = 1e-5
GAUSSIAN_CASES = ((1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (5.0, 2.0), (5.0, 3.0))
LAPLACE_CASES = ((1.0, 1.0, 1.0), (5.0, 1.0, 2.0), (1.0, 5.0, 2.0), (1.0, 5.0, 3.0), (1.0, 5.0, 4.0))


def acceptances(sensitivity: float, epsilon: float, theta: float = 1.0) -> list[float]:
    """Acceptance of the kernel alone, of the published algorithms' choice, and of exactly accounted recycling.

    The last twice: q alone calibrated, for the kernel that is private by itself, and sigma and q tuned.
    """
    budget = {"epsilon": epsilon, "delta": DELTA, "sensitivity": sensitivity}
    alone: Any = calibrate.gaussian(**budget).noise
    published_choice = published.published_budget(Gaussian, theta=theta, **budget)
    calibrated: Any = calibrate.budget_recycled(alone, theta=theta, **budget).noise
    tuned: Any = calibrate.budget_recycled(Gaussian, theta=theta, **budget).noise
    return [float(alone.mass(-theta, theta)), published_choice.acceptance, calibrated.acceptance, tuned.acceptance]


def gaussian_rows() -> Iterable[list[str]]:
    """Rows of the first table."""
    for D, eps in GAUSSIAN_CASES:
        yield [f"{D:g}", f"{eps:g}", *(f"{value:.4f}" for value in acceptances(D, eps))]


def true_delta(kernel: Any, theta: float, q: float, sensitivity: float, epsilon: float) -> list[str]:
    """q, the exact delta, and its ratio to the target."""
    delta = float(recycling.profile(kernel, theta, q, sensitivity, epsilon))
    return [f"{q:.4g}", f"{delta:.3g}", f"{delta / DELTA:.3g}"]


def unsound_rows() -> Iterable[list[str]]:
    """Rows of the second table: Algorithm 1 at a Gaussian kernel, Algorithm 2 at Laplace kernels."""
    kernel = Gaussian(calibrate.smallest_scale(Gaussian(1.0), 2.7, DELTA, 1.0))
    q = published.published_rate(kernel, 5.0, 3.0, DELTA, 1.0)
    yield ["Algorithm 1, Gaussian", "5", "1", "3", "2.7", *true_delta(kernel, 5.0, q, 1.0, 3.0)]
    for theta, D, eps in LAPLACE_CASES:
        published_choice = published.published_budget(Laplace, theta=theta, epsilon=eps, delta=DELTA, sensitivity=D)
        claimed = f"{published_choice.kernel_epsilon:.4g}"
        realised = true_delta(published_choice.kernel, theta, published_choice.q, D, eps)
        yield ["Algorithm 2, Laplace", f"{theta:g}", f"{D:g}", f"{eps:g}", claimed, *realised]


def main() -> None:
    """Print both tables."""
    columns = ["D", "eps", "kernel alone", "published algorithms", "exact, kernel kept", "exact, sigma and q tuned"]
    print(markdown(columns, gaussian_rows()))
    print()
    columns = ["published", "theta", "D", "eps", "kernel eps", "q", "true delta", "true delta / target"]
    print(markdown(columns, unsound_rows()))


if __name__ == "__main__":
    main()
