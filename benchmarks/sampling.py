"""Nanoseconds a value of our samplers and of the peers, in one run.

    python -m benchmarks.sampling                     # 10^2 to 10^8 values, about 11 minutes
    python -m benchmarks.sampling --quick             # 10^4 and 10^5: a smoke run
    python -m benchmarks.sampling --sizes 7 --only exact,numpy
    python -m benchmarks.sampling --sizes 6,7 --only "laplace,gaussian,staircase,numpy normal"
    python -m benchmarks.sampling --device --sizes 6,7,8    # arrays that stay on JAX's device, a GPU where it finds one

Every figure is the median of warm runs on this machine. Peers slower than 1 us a value are timed on fewer values. The
share of the limit is that of a copy of the values and of ChaCha20 for a release's words on all cores, both of the same
run; on a device, of reading and writing float32.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import dpkernels as dpk
from benchmarks.sampling_peers import (
    DELTA,
    EPSILON,
    KEY_SEED,
    LOWER,
    UPPER,
    WIDTH,
    Task,
    chacha20,
    device_copy,
    diffprivlib_laplace,
    inputs,
    jax_laplace,
    memory_copy,
    numpy_noise,
    on_device,
    opendp_laplace,
    textbook_jax,
    textbook_numpy,
)
from benchmarks.shown import machine, make_parser

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True)
class Contestant:
    """One way to draw noise for a vector.

    Attributes:
        name: row of the table.
        prepare: from a number of values to the task that is timed.
        largest: the most values it is timed on.
        words: of 32 bits that a value takes, if the row has a limit.
    """

    name: str
    prepare: Callable[[int], Task]
    largest: int = 10**9
    words: Callable[[], float] | None = None


# Additive noise of the scale of the peers', by the name of its row.
ADDITIVE: dict[str, Callable[[], Any]] = {
    "laplace": lambda: dpk.laplace(epsilon=EPSILON, sensitivity=WIDTH),
    "truncated laplace": lambda: dpk.truncated_laplace(epsilon=EPSILON, delta=DELTA, sensitivity=WIDTH),
    "merged laplace": lambda: dpk.merged_laplace(rates=(1 / WIDTH, 0, 0.5 / WIDTH), breaks=(0.5 * WIDTH, WIDTH)),
    "staircase": lambda: dpk.staircase(epsilon=EPSILON, sensitivity=WIDTH),
    "recycled laplace": lambda: dpk.budget_recycled(dpk.Laplace(WIDTH), theta=2 * WIDTH, q=0.5),
    "gaussian": lambda: dpk.gaussian(sigma=WIDTH),
    "truncated gaussian": lambda: dpk.truncated_gaussian(sigma=WIDTH, delta=DELTA, sensitivity=WIDTH),
    "recycled gaussian": lambda: dpk.budget_recycled(dpk.Gaussian(WIDTH), theta=2 * WIDTH, q=0.5),
}

# What a release takes: noise with a claim that its integer table is certified for.
CLAIMED: dict[str, Callable[[], Any]] = {
    "laplace, 64 bits": ADDITIVE["laplace"],
    "truncated laplace, 64 bits": ADDITIVE["truncated laplace"],
    "gaussian, 64 bits": lambda: dpk.gaussian(sigma=5 * WIDTH, sensitivity=WIDTH, epsilon=EPSILON, delta=DELTA),
}


def _mechanism(name: str) -> Any:
    constructor = {**ADDITIVE, **CLAIMED}.get(name)
    if constructor is not None:
        return constructor()
    return dpk.MECHANISMS[name](epsilon=EPSILON, lower=LOWER, upper=UPPER)


def exact_numpy(name: str, dtype: DTypeLike) -> Callable[[int], Task]:
    """``perturb`` from a NumPy array to a NumPy array, with a fresh key of the operating system."""

    def prepare(count: int) -> Task:
        x, mechanism = inputs(count, dtype), _mechanism(name)
        return lambda: dpk.perturb(x, mechanism, progress=False)

    return prepare


def _words(name: str) -> Callable[[], float]:
    return lambda: sum(need.bits for need in dpk.exact_sampler(_mechanism(name)).words) / 32


def exact_device(name: str) -> Callable[[int], Task]:
    """``perturb`` of a float32 JAX array that stays on its device."""

    def prepare(count: int) -> Task:
        x, mechanism = jnp.asarray(inputs(count, np.float32)), _mechanism(name)
        return on_device(lambda: dpk.perturb(x, mechanism, progress=False))

    return prepare


def float_kernel(name: str) -> Callable[[int], Task]:
    """``sample`` with a simulation key, float32 on the default device."""

    def prepare(count: int) -> Task:
        x, mechanism = jnp.asarray(inputs(count, np.float32)), _mechanism(name)
        key = dpk.simulation_key(KEY_SEED)
        return on_device(lambda: mechanism.sample(key, x))

    return prepare


def inverse_cdf(name: str) -> Callable[[int], Task]:
    """``icdf`` of given uniform numbers, jitted, float32 on the default device."""

    def prepare(count: int) -> Task:
        x, mechanism = jnp.asarray(inputs(count, np.float32)), _mechanism(name)
        u = jnp.asarray(np.random.default_rng(4).random(count), np.float32)
        run = jax.jit(mechanism.icdf)
        return on_device(lambda: run(u, x))

    return prepare


BASELINES = ("numpy laplace", "numpy normal", "textbook piecewise, jax.random.uniform", "opendp laplace")
COPY, DEVICE_COPY, WORD = "memory copy float64", "device copy float32", "chacha20, a word"


def exact(name: str, dtype: str = "float64") -> Contestant:
    """The row of a release from a NumPy array to a NumPy array."""
    return Contestant(f"exact perturb {dtype}, {name}", exact_numpy(name, dtype), words=_words(name))


_COMPOSITE = ("piecewise", "triangle-constant", "triangle-quartic", "sine-constant", "sine-quartic")
CONTESTANTS = (
    *(Contestant(f"float kernel, {name}", float_kernel(name)) for name in (*_COMPOSITE, "optimal")),
    *(Contestant(f"inverse cdf, {name}", inverse_cdf(name)) for name in _COMPOSITE),
    *(Contestant(f"float kernel, {name}", float_kernel(name)) for name in ADDITIVE),
    exact("piecewise"),
    exact("piecewise", "float32"),
    exact("sine-quartic"),
    exact("hybrid"),
    exact("optimal"),
    Contestant("exact perturb, JAX array, piecewise", exact_device("piecewise")),
    *(exact(name) for name in CLAIMED),
    Contestant("textbook piecewise, numpy", textbook_numpy),
    Contestant("textbook piecewise, jax.random.uniform", textbook_jax),
    Contestant("numpy laplace", numpy_noise("laplace")),
    Contestant("numpy normal", numpy_noise("normal")),
    Contestant("jax.random.laplace", jax_laplace),
    Contestant("opendp laplace", opendp_laplace, largest=10**4),
    Contestant("diffprivlib laplace", diffprivlib_laplace, largest=10**4),
    Contestant(COPY, memory_copy),
    Contestant(WORD, chacha20),
)

_BOUNDED = ("piecewise", "sine-quartic", "duchi", "hybrid", "optimal")
ON_DEVICE = (
    *(Contestant(f"float kernel, {name}", float_kernel(name)) for name in (*_BOUNDED, "laplace", "gaussian")),
    *(Contestant(f"exact perturb, JAX array, {name}", exact_device(name)) for name in (*_BOUNDED, *CLAIMED)),
    Contestant("jax.random.laplace", jax_laplace),
    Contestant(DEVICE_COPY, device_copy),
)


def nanoseconds(contestant: Contestant, count: int, seconds: float) -> float:
    """Median time a value over warm runs that last about ``seconds`` in all, at least 3."""
    count = min(count, contestant.largest)
    task = contestant.prepare(count)
    task()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) / count * 1e9


def limits(contestants: list[Contestant], results: dict[str, float]) -> dict[str, float]:
    """Return lower limits of the rows, in ns a value, where the results have their components."""
    if DEVICE_COPY in results:
        return dict.fromkeys((name for name in results if name.startswith(("float", "exact"))), results[DEVICE_COPY])
    if not {COPY, WORD} <= results.keys():
        return {}
    word = results[WORD] / (os.cpu_count() or 1)
    return {c.name: results[COPY] + c.words() * word for c in contestants if c.words is not None}


def table(results: dict[str, float], count: int, least: dict[str, float]) -> str:
    """The results at one size as Markdown: ns, 10^6 values a second, share of the limit, times as fast as baselines."""
    present = [name for name in BASELINES if name in results]
    head = ["sampler", "ns a value", "10^6 values/s", "of the limit", *(f"x {name}" for name in present)]
    rows = [
        [
            *(name, f"{ns:.2f}", f"{1e3 / ns:,.2f}", f"{least[name] / ns:.0%}" if name in least else ""),
            *(f"{results[base] / ns:,.1f}" for base in present),
        ]
        for name, ns in results.items()
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return f"### {count:,} values\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Run and print."""
    parser = make_parser(__doc__, "sizes 4,5 and short runs")
    about = "decimal exponents, comma-separated (default %(default)s)"
    parser.add_argument("--sizes", default="2,3,4,5,6,7,8", help=about)
    parser.add_argument("--only", default="", help="run samplers whose name contains one of these, comma-separated")
    parser.add_argument("--device", action="store_true", help="arrays that stay on JAX's device")
    options = parser.parse_args()
    sizes = [4, 5] if options.quick else [int(size) for size in options.sizes.split(",")]
    every = ON_DEVICE if options.device else CONTESTANTS
    cases = [c for c in every if any(name in c.name for name in options.only.split(","))]
    print(machine("opendp", "diffprivlib"), flush=True)
    for size in sizes:
        results = {c.name: nanoseconds(c, 10**size, 0.1 if options.quick else 3.0) for c in cases}
        print("\n" + table(results, 10**size, limits(cases, results)), flush=True)


if __name__ == "__main__":
    main()
