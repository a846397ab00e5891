"""Seconds of a private training step with certified noise and with optax's own, as a markdown table.

Run ``python -m benchmarks.private_training [--batch 64] [--width 992] [--times 7]``. The model has one hidden layer and
about 10^6 parameters. Both steps compute the gradient of every example, aggregate privately and apply the update. They
take turns in one process, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import dpkernels as dpk
from benchmarks.shown import machine
from dpkernels.training import private_aggregate


def model(width: int) -> dict[str, jax.Array]:
    """Return the parameters of a network with ``width`` inputs, ``width`` hidden units and 10 outputs."""
    first, second = jax.random.split(jax.random.key(0))
    scale = width**-0.5
    return {
        "hidden": scale * jax.random.normal(first, (width, width)),
        "output": scale * jax.random.normal(second, (width, 10)),
    }


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the cross-entropy of one example."""
    logits = jnp.tanh(x @ params["hidden"]) @ params["output"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def step(aggregate: Any, params: Any, x: jax.Array, y: jax.Array, **arguments: Any) -> Callable[[], Any]:
    """Return a compiled training step, which starts from the same state every time."""
    optimiser = optax.chain(aggregate, optax.sgd(0.1))
    state = optimiser.init(params)

    @jax.jit
    def run(params: Any, state: Any) -> Any:
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
        updates, following = optimiser.update(gradients, state, params, **arguments)
        return optax.apply_updates(params, updates), following

    return lambda: jax.block_until_ready(run(params, state))


def least_seconds(steps: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """Return the least time of every step, after one that compiles; the steps take turns."""
    for run in steps.values():
        run()
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(times):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=992)
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args(arguments)
    params = model(given.width)
    x = jax.random.normal(jax.random.key(1), (given.batch, given.width))
    y = jnp.arange(given.batch) % 10
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    theirs = optax.contrib.differentially_private_aggregate(1.0, 1.0, jax.random.key(2))
    steps = {
        "private_aggregate": step(private_aggregate(1.0, 1.0, dpk.os_key()), params, x, y, mask=True),
        "optax.contrib": step(theirs, params, x, y),
    }
    least = least_seconds(steps, given.times)
    print(f"{size} parameters, {given.batch} examples. {machine('optax')}\n")
    print("| aggregation | ms a step | relative |\n|---|---|---|")
    for name, seconds in least.items():
        print(f"| {name} | {1e3 * seconds:.1f} | {seconds / least['optax.contrib']:.2f} |")


if __name__ == "__main__":
    main()
