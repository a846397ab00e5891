"""Accuracy over epsilon of private training, here and in other libraries, on the same splits.

Run ``python -m benchmarks.training_accuracy [--epsilons 0.5 1 2 4 8] [--seeds 5] [--output FILE]``. A small network
learns scikit-learn's digits in 150 steps of 150 expected rows of 1,500, with the learning rate epsilon/2. For every
seed all methods have the same split, the same first parameters and, where they sample, the same batches. All stay
within epsilon at delta 1e-5 for one row more or less, each by its own accounting. The output is a table in CSV: method,
epsilon, seed, noise multiplier, accuracy. jax-privacy takes part where it is installed.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import pld

import dpkernels as dpk
from accountants import calibrate
from benchmarks.private_training import installed
from benchmarks.shown import machine
from dpkernels.training import PrivateBatch, ToeplitzStrategy, TrainingPlan, private_training

ROWS, STEPS, BATCH, DELTA, CLIP = 1500, 150, 150, 1e-5, 1.0
EPOCH = ROWS // BATCH
STRATEGY = ToeplitzStrategy.square_root(4, unit=4)
PARAMETERS = 64 * 32 + 32 * 10


def initial(key: jax.Array) -> dict[str, jax.Array]:
    """Return the first parameters."""
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (64, 32)) / 8.0,
        "output": jax.random.normal(second, (32, 10)) / math.sqrt(32.0),
    }


def logits(params: Any, x: jax.Array) -> jax.Array:
    """Return the network's outputs."""
    return jnp.tanh(x @ params["hidden"]) @ params["output"]


def loss(params: Any, example: Any) -> jax.Array:
    """Return the loss of one example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, example["x"]), example["y"])


class Split(NamedTuple):
    """The rows of a seed that are learned from and tested on, and the first parameters."""

    train: dict[str, jax.Array]
    test: dict[str, jax.Array]
    params: Any


def load_split(seed: int) -> Split:
    """Return the split of a seed."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits, key = load_digits(), jax.random.key(seed)
    order = jax.random.permutation(key, len(digits.target))
    rows = {"x": jnp.asarray(digits.data / 16.0, jnp.float32)[order], "y": jnp.asarray(digits.target)[order]}
    train, test = (jax.tree.map(lambda leaf, at=at: leaf[at], rows) for at in (slice(0, ROWS), slice(ROWS, None)))
    return Split(train, test, initial(jax.random.fold_in(key, 1)))


def sample_batches(plan: TrainingPlan, seed: int) -> PrivateBatch:
    """Return the row numbers and the masks of all steps, stacked; those of a seed are the same for all methods."""
    key = dpk.key_from_bytes(hashlib.sha256(b"training_accuracy %d" % seed).digest())
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *plan.batches(key))


# An update: (gradients of a batch, state) -> (update, state); gradients: (parameters, batch) -> what the update takes.
Method = tuple[optax.GradientTransformation, Callable[[Any, PrivateBatch], Any]]


def accuracies(method: Method, plan: TrainingPlan, seeds: int) -> Iterator[float]:
    """Return the accuracy of every seed."""
    transformation, gradients = method

    @jax.jit
    def train(params: Any, state: Any, rows: Any, batches: PrivateBatch) -> Any:
        def step(carry: Any, batch: PrivateBatch) -> Any:
            params, state = carry
            examples = jax.tree.map(lambda leaf: leaf[batch.examples], rows)
            updates, state = transformation.update(gradients(params, PrivateBatch(examples, batch.mask)), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, state), batches)[0][0]

    for seed in range(seeds):
        split = load_split(seed)
        state = _seeded(transformation.init(split.params), seed)
        params = train(split.params, state, split.train, sample_batches(plan, seed))
        yield float((logits(params, split.test["x"]).argmax(1) == split.test["y"]).mean())


def _seeded(state: Any, seed: int) -> Any:
    """Return the state with the noise of a seed: other libraries' keys, which are the same after every ``init``."""

    def seeded(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.fold_in(leaf, seed) if is_key else leaf

    return jax.tree.map(seeded, state)


def masked(params: Any, batch: PrivateBatch) -> Any:
    """Return the gradients of examples, 0 for padded rows: for optax.contrib, which has no mask."""
    gradients = jax.vmap(jax.grad(loss), (None, 0))(params, batch.examples)
    return jax.tree.map(lambda leaf: leaf * batch.mask.reshape(-1, 1, 1), gradients)


def inner(epsilon: float) -> optax.GradientTransformation:
    """Return the optimiser of all methods; with more noise its steps are shorter."""
    return optax.sgd(epsilon / 2)


def plans(epsilon: float) -> tuple[TrainingPlan, TrainingPlan]:
    """Return our plans for a budget: with sampling, and with correlated noise."""
    planned = partial(
        private_training,
        epsilon=epsilon,
        delta=DELTA,
        examples=ROWS,
        batch_size=BATCH,
        steps=STEPS,
        parameters=PARAMETERS,
        clip=CLIP,
    )
    return planned(), planned(strategy=STRATEGY)


def optax_method(epsilon: float, plan: TrainingPlan) -> tuple[float, Method]:
    """Return the noise multiplier by dp_accounting, and the method of optax."""
    multiplier = dp_accounting.calibrate_dp_mechanism(
        pld.PLDAccountant,
        lambda z: dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(BATCH / ROWS, dp_accounting.GaussianDpEvent(z)), STEPS
        ),
        epsilon,
        DELTA,
        tol=1e-4,
    )
    theirs = optax.contrib.differentially_private_aggregate(CLIP, multiplier, jax.random.key(2))
    # It divides by the number of rows, padded ones included.
    return multiplier, (optax.chain(theirs, optax.scale(plan.capacity / BATCH), inner(epsilon)), masked)


def jax_privacy_method(epsilon: float, is_correlated: bool) -> tuple[float, Method]:
    """Return the noise multiplier and the method of jax-privacy, with sampling or with correlated noise."""
    from jax_privacy import accounting, clipping, noise_addition
    from jax_privacy.matrix_factorization import toeplitz

    clipped = clipping.clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=BATCH, keep_batch_dim=False)
    key = jax.random.key(3)
    if is_correlated:
        coefficients = toeplitz.optimal_max_error_strategy_coefs(len(STRATEGY.bands))
        sensitivity = math.sqrt(float(toeplitz.minsep_sensitivity_squared(coefficients, EPOCH, n=STEPS)))
        multiplier = sensitivity * _gaussian_multiplier(epsilon)
        noise = noise_addition.matrix_factorization_privatizer(
            toeplitz.inverse_as_streaming_matrix(coefficients), stddev=multiplier * CLIP / BATCH, prng_key=key
        )
    else:
        multiplier = accounting.calibrate.calibrate_noise_multiplier(
            target_epsilon=epsilon,
            accountant=accounting.analysis.DpsgdTrainingAccountant(accounting.accountants.PldAccountantConfig()),
            batch_sizes=BATCH,
            num_updates=STEPS,
            num_samples=ROWS,
            target_delta=DELTA,
            tol=1e-3,
        )
        noise = noise_addition.gaussian_privatizer(stddev=multiplier * CLIP / BATCH, prng_key=key)

    def gradients(params: Any, batch: PrivateBatch) -> Any:
        return clipped(params, batch.examples, is_padding_example=~batch.mask)

    return multiplier, (optax.chain(noise, inner(epsilon)), gradients)


def _gaussian_multiplier(epsilon: float) -> float:
    """Return the noise multiplier of one Gaussian release."""
    return float(calibrate.gaussian(epsilon=epsilon, delta=DELTA, sensitivity=1.0).noise.gaussian_sigma)


def methods(epsilon: float) -> Iterator[tuple[str, float, Method, TrainingPlan]]:
    """Return all methods for a budget: name, noise multiplier, method, and the plan whose batches it has."""
    sampled, correlated = plans(epsilon)
    for name, plan in (("private_training", sampled), ("private_training, correlated", correlated)):
        method = plan.optimizer(inner(epsilon), dpk.os_key()), partial(plan.gradients, loss)
        yield name, plan.noise_multiplier, method, plan
    yield "optax.contrib", *optax_method(epsilon, sampled), sampled
    if installed("jax_privacy"):
        yield "jax-privacy", *jax_privacy_method(epsilon, False), sampled
        yield "jax-privacy, correlated", *jax_privacy_method(epsilon, True), correlated


def main(arguments: list[str] | None = None) -> None:
    """Print the means, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="CSV file")
    options = parser.parse_args(arguments)
    print(machine("optax", "jax-privacy", "dp-accounting"))
    rows = []
    for epsilon in options.epsilons:
        for name, multiplier, method, plan in methods(epsilon):
            start = time.process_time()
            scores = list(accuracies(method, plan, options.seeds))
            seconds = time.process_time() - start
            rows += [(name, epsilon, seed, f"{multiplier:.6g}", f"{score:.4f}") for seed, score in enumerate(scores)]
            print(f"{epsilon:<6g}{name:<32}{multiplier:<10.4g}{np.mean(scores):.3f}   {seconds:.0f} s", flush=True)
    if options.output:
        with options.output.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["method", "epsilon", "seed", "noise_multiplier", "accuracy"])
            table.writerows(rows)


if __name__ == "__main__":
    main()
