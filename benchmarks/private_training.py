"""Processor time of private aggregation with certified noise and in other libraries, and what the noise costs.

Run ``python -m benchmarks.private_training [--batch 64] [--sizes 2000 100000 1000000] [--times 9] [--leaves 100]``. All
aggregations clip gradients of examples, add them up, add noise and divide. They take turns in one process, and the
least time of each counts. jax-privacy and Opacus have columns where they are installed. The gradients of examples are
given, except to jax-privacy, which takes a loss: that of a row is its product with the parameters, so that its gradient
is the row.
Opacus draws its noise with torch's own generator, and not in its secure mode. The second table has clipping, rounding
and summing by themselves, and the third one the noise. The fourth one has the seconds until a step of 100 leaves of
different shapes is traced and compiled. The last one has the distance of the noise from a Gaussian.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpkernels as dpk
from benchmarks.shown import machine, markdown
from dpkernels.release.integers import release_integers
from dpkernels.training import PrivateNoise, clipped_sums, private_aggregate
from dpkernels.training.noise import exact_noise

# The clock of a measurement, at least: XLA's threads may go on after a call, and would be charged to the next one.
_LEAST_CLOCK = 0.05


def least_seconds(runs: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """Return the least processor time of every run, after two, of which the first one compiles; they take turns."""
    counts = {}
    for name, run in runs.items():
        jax.block_until_ready(run())
        start = time.perf_counter()
        jax.block_until_ready(run())
        counts[name] = math.ceil(_LEAST_CLOCK / (time.perf_counter() - start))
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(times):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(counts[name]):
                jax.block_until_ready(run())
            least[name] = min(least[name], (time.process_time() - start) / counts[name])
    return least


def aggregations(size: int, batch: int) -> dict[str, Callable[[], Any]]:
    """Return updates of so many parameters, which start from the same state every time; JAX's are compiled."""
    gradients = {"w": jax.random.normal(jax.random.key(1), (batch, size))}
    params = {"w": jnp.zeros(size)}
    ours = private_aggregate(1.0, 1.0, dpk.os_key())
    theirs = optax.contrib.differentially_private_aggregate(1.0, 1.0, jax.random.key(2))
    updates = {
        "private_aggregate": (ours.init(params), jax.jit(lambda g, s: ours.update(g, s, mask=True))),
        "optax.contrib": (theirs.init(params), jax.jit(theirs.update)),
    }
    runs: dict[str, Callable[[], Any]] = {
        name: partial(update, gradients, state) for name, (state, update) in updates.items()
    }
    if installed("jax_privacy"):
        runs["jax-privacy"] = partial(_jax_privacy(params, batch), gradients)
    if installed("opacus"):
        runs["Opacus"] = _opacus(np.asarray(gradients["w"]))
    return runs


@cache
def installed(package: str) -> bool:
    """Return whether a package is there; print a line if it is not."""
    is_there = importlib.util.find_spec(package) is not None
    if not is_there:
        print(f"{package} is not installed, so it has no column\n")
    return is_there


def _jax_privacy(params: Any, batch: int) -> Callable[[Any], Any]:
    """Return the compiled update of jax-privacy with Gaussian noise."""
    from jax_privacy import clipping, noise_addition

    clipped = clipping.clipped_grad(
        lambda params, row: (params["w"] * row["w"]).sum(), l2_clip_norm=1.0, normalize_by=batch, keep_batch_dim=False
    )
    noise = noise_addition.gaussian_privatizer(stddev=1 / batch, prng_key=jax.random.key(2))
    state = noise.init(params)
    update = jax.jit(lambda gradients, state: noise.update(clipped(params, gradients), state))
    return lambda gradients: update(gradients, state)


def _opacus(gradients: np.ndarray) -> Callable[[], Any]:
    """Return the aggregation of Opacus's optimiser, whose result is the gradient of its parameter."""
    import torch
    from opacus.optimizers import DPOptimizer

    batch, size = gradients.shape
    parameter, rows = torch.nn.Parameter(torch.zeros(size)), torch.tensor(gradients)
    optimiser = DPOptimizer(
        torch.optim.SGD([parameter], lr=1.0), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
    )

    def run() -> None:
        # A new view of the rows, because an optimiser marks those that it has used.
        parameter.grad_sample, parameter.summed_grad = rows.detach(), None
        with torch.no_grad():
            optimiser.clip_and_accumulate()
            optimiser.add_noise()
            optimiser.scale_grad()

    return run


def sums(size: int, batch: int) -> dict[str, Callable[[], Any]]:
    """Return compiled functions that clip and add up gradients of so many parameters; ours also rounds."""
    gradients, noise = (
        {"w": jax.random.normal(jax.random.key(1), (batch, size))},
        PrivateNoise.certified(1.0, 1.0, size),
    )
    ours = jax.jit(lambda gradients: clipped_sums(gradients, True, noise).sums)
    theirs = jax.jit(lambda gradients: optax.per_example_global_norm_clip(jax.tree.leaves(gradients), 1.0)[0])
    return {"clipped_sums": partial(ours, gradients), "optax.contrib": partial(theirs, gradients)}


def compile_seconds(leaves: int, batch: int) -> str:
    """Return a table of the processor time until a step of leaves of different shapes is traced and compiled."""
    params = {str(i): jnp.zeros((16 + i, 16)) for i in range(leaves)}
    gradients = jax.tree.map(lambda leaf: jnp.ones((batch, *leaf.shape)), params)
    ours = private_aggregate(1.0, 1.0, dpk.os_key())
    theirs = optax.contrib.differentially_private_aggregate(1.0, 1.0, jax.random.key(2))
    updates = {
        "private_aggregate": (ours.init(params), jax.jit(lambda g, s: ours.update(g, s, mask=True))),
        "optax.contrib": (theirs.init(params), jax.jit(theirs.update)),
    }
    seconds = []
    for state, update in updates.values():
        start = time.process_time()
        update.lower(gradients, state).compile()
        seconds.append(f"{time.process_time() - start:.1f}")
    return markdown(["leaves", *(f"{name}, s" for name in updates)], [[str(leaves), *seconds]])


def noises(size: int) -> dict[str, Callable[[], Any]]:
    """Return compiled functions that draw noise alone."""
    sampler, _ = exact_noise(1.0, size)
    key, simulation_key, zeros = dpk.os_key(), jax.random.key(0), jnp.zeros(size, jnp.int32)

    @jax.jit
    def ours(key: jax.Array, zeros: jax.Array) -> jax.Array:
        with jax.enable_x64(True):
            return release_integers(key, sampler, zeros)

    theirs = jax.jit(lambda key: jax.random.normal(key, (size,)))
    return {"certified noise": lambda: ours(key, zeros), "jax.random.normal": lambda: theirs(simulation_key)}


def timed(runs_of: Callable[[int], dict[str, Callable[[], Any]]], sizes: Iterable[int], times: int) -> str:
    """Return a table of processor times, and of their ratios to the second one."""
    rows, names = [], []
    for size in sizes:
        least = least_seconds(runs_of(size), times)
        names = list(least)
        unit = least[names[1]]
        rows.append([str(size), *(f"{1e3 * least[name]:.2f} ({least[name] / unit:.2f})" for name in names)])
    return markdown(["parameters", *(f"{name}, ms" for name in names)], rows)


def distances(sizes: Iterable[int]) -> str:
    """Return a table of the distance of noise, and of what 10^4 steps at epsilon 8 add to delta."""
    rows = []
    for size in sizes:
        noise = PrivateNoise.certified(1.0, 1.0, size)
        added = 1e4 * (1 + math.exp(8)) * noise.total_variation
        rows.append(
            [str(size), f"{noise.total_variation / size:.2g}", f"{added:.2g}", f"{100 * noise.rounding_cost:.2g} %"]
        )
    return markdown(["parameters", "distance a parameter", "added to delta", "wider by rounding"], rows)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 100_000, 1_000_000])
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--leaves", type=int, default=100)
    options = parser.parse_args(arguments)
    print(f"{options.batch} examples. {machine('optax', 'jax-privacy', 'opacus', 'torch')}\n")
    print(timed(lambda size: aggregations(size, options.batch), options.sizes, options.times), end="\n\n")
    print(timed(lambda size: sums(size, options.batch), options.sizes, options.times), end="\n\n")
    print(timed(noises, options.sizes, options.times), end="\n\n")
    print(compile_seconds(options.leaves, options.batch), end="\n\n")
    print(distances([*options.sizes, 10**8]))


if __name__ == "__main__":
    main()
