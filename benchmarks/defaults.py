"""Which default serves the mean and the distribution: the default for the mean beside piecewise of a moderate width.

    python -m benchmarks.defaults            # eps 0.25 to 6, three releases of 10^5 values of two shapes: 4 minutes
    python -m benchmarks.defaults --quick    # eps 1, one release of one shape
    python -m benchmarks.defaults --json     # the rows as JSON

The default for the mean is whichever of piecewise, hybrid and duchi has the lowest worst-case variance. For the
distribution `tune` finds the piecewise mechanism with the smallest expected error of the cdf. Moderate is the farthest
step from the first towards the second whose worst-case variance is at most 10 % above the default's: another width of
the window where the default is piecewise, otherwise a mixture that is piecewise more often than the hybrid is.

Variances are over that of the default. Distances are Wasserstein-1 between the estimated and the true distribution, on
the scale where the interval is [0, 1], means over releases at fixed keys. Two-point reports (duchi) have no information
on the distribution.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

import dpkernels as dpk
from accountants import tune
from benchmarks.estimation import AT, BINS, SHAPES, UNIT
from benchmarks.shown import markdown, parser_of
from dpkernels.estimation.counts import Counts

EPSILONS, QUICK = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), (1.0,)
SHAPES_SHOWN, N, RELEASES = ("skewed", "ages"), 100_000, 3
ROOM = 1.1  # of the worst-case variance of the default
_STEPS = 101


@cache
def mechanisms(epsilon: float) -> dict[str, Any]:
    """The mechanisms of a budget by what they are for."""
    named = (dpk.piecewise, dpk.hybrid, dpk.duchi)
    default = min((make(epsilon=epsilon, **UNIT) for make in named), key=lambda made: float(made.worst_variance))
    for_cdf = tune.best(tune.piecewise(epsilon=epsilon, **UNIT), tune.distribution(N)).mechanism
    own, two_points = dpk.piecewise(epsilon=epsilon, **UNIT), dpk.duchi(epsilon=epsilon, **UNIT)
    shares = np.linspace(0, 1, _STEPS)
    towards: list[Any]
    if type(default) is type(own):
        widths = own.width + shares * (for_cdf.width - own.width)
        towards = [dpk.composite("uniform", epsilon=epsilon, width=float(width), **UNIT) for width in widths]
    else:
        towards = [dpk.Mixture(own, two_points, float(share)) for share in shares[1:-1]] + [own]
    allowed = [made for made in towards if made.worst_variance <= ROOM * default.worst_variance]
    return {"mean": default, "moderate": allowed[-1], "piecewise": own, "distribution": for_cdf}


def distance(mechanism: Any, shape: str, releases: int) -> float:
    """The mean Wasserstein-1 distance of estimates; NaN where the reports have no information on it."""
    form, errors = dpk.exact_sampler(mechanism), []
    for release in range(releases):
        x = SHAPES[shape](np.random.default_rng(release), N)
        counts = Counts(form).add(dpk.perturb(x, form, key=dpk.key_from_bytes((1 + release).to_bytes(32, "little"))))
        try:
            _ = counts.channel.squares
        except ValueError:
            return float("nan")
        found = dpk.estimate(counts, bins=BINS, model="splines").distribution
        truth = np.searchsorted(np.sort(x), AT, side="right") / N
        errors.append(float(np.abs(found.cdf(AT) - truth).mean()))
    return float(np.mean(errors))


def row(epsilon: float, shapes: tuple[str, ...], releases: int) -> dict[str, Any]:
    """The numbers of a budget."""
    made = mechanisms(epsilon)
    default = made["mean"]
    found: dict[str, Any] = {"eps": epsilon, "default": type(default).__name__}
    for name, mechanism in made.items():
        found[f"{name}: variance"] = float(mechanism.worst_variance / default.worst_variance)
        for shape in shapes:
            found[f"{name}: {shape}"] = distance(mechanism, shape, releases)
    return found


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    shapes, releases = (SHAPES_SHOWN[:1], 1) if given.quick else (SHAPES_SHOWN, RELEASES)
    rows = [row(epsilon, shapes, releases) for epsilon in (QUICK if given.quick else EPSILONS)]
    if given.json:
        print(json.dumps(rows))
        return
    names = list(dict.fromkeys(name for one in rows for name in one))
    cells = [[_shown(one.get(name)) for name in names] for one in rows]
    print(markdown(names, cells))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return "-" if np.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


if __name__ == "__main__":
    main()
