"""Private training with optax: noise for gradients, Poisson batches, and the plan of a run that meets a budget."""

from dpkernels.training.aggregate import PrivateAggregateState, private_aggregate, renew_key
from dpkernels.training.batches import PoissonBatch, poisson_batch, poisson_capacity, poisson_overflow
from dpkernels.training.noise import PrivateNoise
from dpkernels.training.plan import TrainingRun, best_training_run, noise_multiplier_for

__all__ = [
    "PoissonBatch",
    "PrivateAggregateState",
    "PrivateNoise",
    "TrainingRun",
    "best_training_run",
    "noise_multiplier_for",
    "poisson_batch",
    "poisson_capacity",
    "poisson_overflow",
    "private_aggregate",
    "renew_key",
]
