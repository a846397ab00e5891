"""Epsilon and time of ten published training runs by dp_accounting's accountants and by ours, as a markdown table.

Run ``python -m benchmarks.training_runs [--times 3]``. Every run is a number of Gaussian mechanisms on Poisson samples,
as its source accounts for it. Neighbours differ by one record more or less. Times are the least processor times of
``compose`` and ``get_epsilon`` after the imports.

The parameters come from these sources:

* Abadi et al. 2016, "Deep Learning with Differential Privacy": q = 0.01, sigma = 4, delta = 1e-5. The paper states
  epsilon 1.26 after 100 epochs and 2.55 after 400, by the moments accountant.
* McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models" (arXiv 1710.06963): 5,000 of 763,430
  users a round. The noise multiplier 1, the 4,120 rounds and delta 1e-9 are quoted from memory: the full text was not
  at hand.
* tensorflow/privacy, tutorials/README.md, section "Select Parameters" (commit 047e1ee): noise multipliers, epochs and
  delta. MNIST has 60,000 training images, and the tutorial's batches have 256.
* google-deepmind/jax_privacy, experiments/image_classification/configs (commit 22da50a), after De et al. 2022:
  cifar10_wrn_16_4_eps1, cifar100_wrn_28_10_eps1_finetune and imagenet_nf_resnet_50_eps8 state updates, batch size,
  ``std_relative`` and ``target_delta``. CIFAR has 50,000 training images and ImageNet 1,281,167.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting
from dp_accounting import pld, rdp

from accountants.interop.dp_accounting import Accountant
from benchmarks.shown import machine


@dataclass(frozen=True)
class Run:
    """A published run: its name, noise multiplier, sampling rate, steps and delta."""

    name: str
    noise_multiplier: float
    sampling_rate: float
    steps: int
    delta: float

    @property
    def event(self) -> Any:
        """Return the run as an event."""
        step = dp_accounting.PoissonSampledDpEvent(
            self.sampling_rate, dp_accounting.GaussianDpEvent(self.noise_multiplier)
        )
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


_MNIST = 256 / 60000, 60000 // 256
RUNS = (
    Run("Abadi 2016, 100 epochs", 4.0, 0.01, 10_000, 1e-5),
    Run("Abadi 2016, 400 epochs", 4.0, 0.01, 40_000, 1e-5),
    Run("McMahan 2018, language model", 1.0, 5000 / 763_430, 4120, 1e-9),
    Run("TF Privacy, MNIST, 1 epoch", 1.12, _MNIST[0], _MNIST[1], 1e-5),
    Run("TF Privacy, MNIST, 60 epochs", 1.12, _MNIST[0], 60 * _MNIST[1], 1e-5),
    Run("TF Privacy, MNIST, 30 epochs", 0.6, _MNIST[0], 30 * _MNIST[1], 1e-5),
    Run("TF Privacy, MNIST, 10 epochs", 1.2, _MNIST[0], 10 * _MNIST[1], 1e-5),
    Run("JAX Privacy, CIFAR-10, WRN-16-4", 10.0, 4096 / 50_000, 725, 1e-5),
    Run("JAX Privacy, CIFAR, WRN-28-10 fine-tuned", 21.1, 16_384 / 50_000, 250, 1e-5),
    Run("JAX Privacy, ImageNet, NF-ResNet-50", 2.5, 16_384 / 1_281_167, 71_589, 8e-7),
)


def least(answer: Callable[[], Any], times: int) -> tuple[Any, float]:
    """Return the answer and the least processor time of several computations."""
    seconds, value = float("inf"), None
    for _ in range(times):
        start = time.process_time()
        value = answer()
        seconds = min(seconds, time.process_time() - start)
    return value, 1e3 * seconds


def row(run: Run, times: int) -> str:
    """Return the table's row of a run."""
    event, delta = run.event, run.delta
    ours, fast = least(lambda: Accountant().compose(event).estimate_epsilon(delta), times)
    (low, high), rigorous = least(lambda: Accountant().compose(event).get_bracket(delta=delta), times)
    theirs, slow = least(lambda: pld.PLDAccountant().compose(event).get_epsilon(delta), times)
    renyi, short = least(lambda: rdp.RdpAccountant().compose(event).get_epsilon(delta), times)
    return (
        f"| {run.name} | {renyi:.5f} | {short:.0f} | {theirs:.5f} | {slow:.0f} | {ours:.5f} | {fast:.1f} | "
        f"{low:.5f} to {high:.5f} | {rigorous:.0f} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args(arguments)
    print(machine("dp-accounting"), "\n")
    print("| run | RdpAccountant | ms | PLDAccountant | ms | ours | ms | bracket | ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for run in RUNS:
        print(row(run, options.times), flush=True)


if __name__ == "__main__":
    main()
