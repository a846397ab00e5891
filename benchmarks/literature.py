"""The sources' tables beside the true values, as markdown.

    python -m benchmarks.literature            # about a minute
    python -m benchmarks.literature --quick    # fewer budgets and repetitions

Zhang 2024: Table II and the rates H1 and H2, the setting of the released examples, the query experiments on the RAND
data. Ma 2021: the comparison of worst-case variances, and where it changes. Jiang 2024: acceptance, composition,
sampling rates. Cesar & Rogers 2021: figure 5. Notebooks 4 and 6 to 9 draw and discuss them. ``python -m
benchmarks.printed`` has every printed number beside its computed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accountants import recycling
from benchmarks import literature_composite as composite
from benchmarks import literature_composition as composition
from benchmarks import literature_piecewise as piecewise
from benchmarks import literature_recycling as recycled
from benchmarks.shown import make_parser, markdown

DATA = Path(__file__).parents[1] / "notebooks" / "data" / "rand_hie.csv"


def table(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """A heading and a markdown table of rows with the same keys."""
    rows = list(rows)
    cells = [[_cell(value) for value in row.values()] for row in rows]
    return f"### {title}\n\n{markdown(list(rows[0]), cells)}\n"


def _cell(value: float) -> str:
    if isinstance(value, str):
        return value
    return "" if np.isnan(value) else f"{value:.4g}"


def zhang(quick: bool) -> Iterator[str]:
    """Tables of Zhang 2024."""
    epsilons = (0.2, 1.0) if quick else composite.PRINTED_EPSILONS
    yield table(
        "Zhang 2024, Table II and rates: variance at the middle (squared width), the source's condition",
        composite.table_two(epsilons),
    )
    yield table(
        "Zhang 2024: Algorithm 2 for A1B1 at eps = 1, stopped at V_t", composite.stopped(1.0, (1.1, 1.01, 1.001))
    )
    exact = [row for epsilon in epsilons[: 1 if quick else None] for row in composite.pointwise(epsilon)]
    yield table("Zhang 2024: variance at the middle, sufficient and exact privacy condition", exact)
    for name, pair in composite.RELEASED_PAIRS.items():
        setting = [{"eps": eps} | composite.released_setting(*pair, eps) for eps in (0.2, 0.5, 1.0, 2.0, 5.0)]
        yield table(f"Zhang 2024, released example, {name}: MSE; interval [f(D), f(D')], not private", setting)
    breadths = (1.0, 2.0) if quick else (1.0, 2.0, 4.0, 8.0)
    yield table("Zhang 2024: worst-case variance for a range of R, eps = 1", composite.ranges(1.0, breadths))
    yield table("Zhang 2024: queries on visits, 5,638 people, honest intervals", _queries(quick))


def _queries(quick: bool) -> list[dict[str, Any]]:
    asked = composite.queries(column("visits"), 0.0, 80.0, grain=1.0, threshold=0.0)
    epsilons, repetitions = ((1.0,), 100) if quick else ((0.2, 1.0, 3.0), 1000)
    return composite.experiment(asked, epsilons, repetitions)


def ma(quick: bool) -> Iterator[str]:
    """Tables of Ma 2021."""
    epsilons = (0.5, 1.0, 3.0) if quick else (0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 6.0)
    rows = [row | {"optimal": piecewise.floor(row["eps"])} for row in piecewise.comparison(epsilons)]
    yield table("Ma 2021: worst-case variance on [-1, 1]", rows)
    yield table("Ma 2021: where the order changes", _crossings())
    yield table("Ma 2021, Theorem 4: eta_0 and its cost", piecewise.published_cost((0.1, 0.5, 1.0, 1.5, 2.0, 3.0)))
    yield table("Ma 2021, Theorem 10: the bound over the best", piecewise.bound_over_best((0.01, 0.5, 1.0, 2.0, 2.15)))


def _crossings() -> list[dict[str, Any]]:
    pairs = (
        ("type I", "Duchi", 0.8, 2.0),
        ("piecewise, Wang 2019", "Duchi", 0.8, 2.0),
        ("type II", "Duchi", 1.5, 4.0),
        ("type I", "hybrid", 1.5, 4.0),
        ("type II", "Laplace", 1.0, 3.0),
    )
    return [{"smaller": a, "than": b, "from eps": piecewise.crossing(a, b, low, high)} for a, b, low, high in pairs]


def jiang(quick: bool) -> Iterator[str]:
    """Tables of Jiang 2024."""
    thetas = (1.0,) if quick else (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0)
    by_theta = [{"eps": 1.0, "theta / D": theta} | recycled.acceptances(theta, 1.0) for theta in thetas]
    yield table("Jiang 2024: acceptance against theta, delta = 1e-5", by_theta)
    deltas = (1e-5,) if quick else (1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
    by_delta = [{"delta": delta} | recycled.acceptances(2.0, 1.0, 1.0, delta) for delta in deltas]
    yield table("Jiang 2024: acceptance against delta, eps = 1, theta = 2 D", by_delta)
    yield table(
        "Jiang 2024: acceptance against the kernel's share, eps = 2, theta = D",
        recycled.shares((0.2, 0.4, 0.6, 0.8, 1.0), 1.0, 2.0),
    )
    counts = (10, 100) if quick else (10, 30, 100, 300, 1000)
    yield table("Jiang 2024, figure 5: eps of T reports", recycled.composed(counts, 1.0, 1.0))
    yield table("Jiang 2024, figure 6: best rates", recycled.best_rates((100, 300, 1000, 3000, 10_000, 100_000)))
    yield table("Jiang 2024, figures 7 and 8: acceptances at their settings", recycled.section_eight())
    visits = np.minimum(column("visits"), 50.0)
    noise = partial(recycling.sampling_noise_mean, visits.std(), len(visits))
    rates = (0.2, 1.0) if quick else (0.01, 0.03, 0.1, 0.2, 0.3, 0.6, 0.9, 1.0)
    yield table(
        "Jiang 2024: acceptance against the sampling rate, average visits, eps = 0.05, theta = 0.2",
        recycled.on_samples(rates, noise, 0.2, 0.05, 50 / len(visits)),
    )


def cesar(quick: bool) -> Iterator[str]:
    """Figure 5 of Cesar & Rogers 2021."""
    counts = (20, 100) if quick else range(20, 101, 10)
    yield table("Cesar & Rogers 2021, figure 5: eps of D0 counts, variance 200", composition.figure_five(counts))


def column(name: str) -> np.ndarray:
    """A column of the RAND data."""
    names = DATA.read_text().partition("\n")[0].split(",")
    return np.loadtxt(DATA, delimiter=",", skiprows=1, usecols=names.index(name))


def main() -> None:
    """Print all tables."""
    quick = make_parser(__doc__, "fewer budgets and repetitions").parse_args().quick
    for source in (zhang, ma, jiang, cesar):
        for text in source(quick):
            print(text, flush=True)


if __name__ == "__main__":
    main()
