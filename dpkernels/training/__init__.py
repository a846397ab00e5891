"""Private training with optax: noise for gradients, Poisson batches, and the plan of a run that meets a budget."""

from dpkernels.jax_on_use import import_now
from dpkernels.training.aggregate import PrivateAggregateState, private_aggregate, renew_key
from dpkernels.training.batches import PoissonBatch, poisson_batch, poisson_capacity, poisson_overflow
from dpkernels.training.clipping import ClippedSums, clipped_sums
from dpkernels.training.correlated import CorrelatedRun, ToeplitzStrategy, correlated_run
from dpkernels.training.noise import PrivateNoise
from dpkernels.training.plan import PrivateBatch, TrainingPlan, private_training
from dpkernels.training.run import TrainingRun, best_training_run, noise_multiplier_for
from dpkernels.training.scheme_batches import allocated_batch, fixed_batch, random_assignment

import_now()  # These modules have imported it.

__all__ = [
    "ClippedSums",
    "CorrelatedRun",
    "PoissonBatch",
    "PrivateAggregateState",
    "PrivateBatch",
    "PrivateNoise",
    "ToeplitzStrategy",
    "TrainingPlan",
    "TrainingRun",
    "allocated_batch",
    "best_training_run",
    "clipped_sums",
    "correlated_run",
    "fixed_batch",
    "noise_multiplier_for",
    "poisson_batch",
    "poisson_capacity",
    "poisson_overflow",
    "private_aggregate",
    "private_training",
    "random_assignment",
    "renew_key",
]
