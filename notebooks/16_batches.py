# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Evaluate 10,000 settings of a mechanism, and divide one budget among 1,000 queries
#
# Arrays for the parameters of a mechanism make a batch: one mechanism for each entry, in one object. This notebook
# evaluates a grid of 10,000 settings in one call, and then divides one budget among 1,000 queries by gradient.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import accountants
import dpkernels as dpk
from accountants import tune

# %% [markdown]
# ## A sweep over 10,000 settings
#
# A piecewise mechanism has two parameters: its budget and the half-width of the window around the true value. A column
# of 100 budgets and a row of 100 widths broadcast to a batch of 100 x 100 mechanisms. `worst_variance` is an array of
# the same shape. Without a width, the constructor finds the best one of every budget, for all budgets at once.

# %%
budgets, widths = np.geomspace(0.3, 6.0, 100), np.geomspace(0.1, 1.9, 100)
start = time.perf_counter()
grid = dpk.composite("uniform", epsilon=budgets[:, None], width=widths, lower=-1.0, upper=1.0)
variances = np.asarray(grid.worst_variance)
best = dpk.piecewise(epsilon=budgets, lower=-1.0, upper=1.0)
print(f"{grid.batch_size} mechanisms in {time.perf_counter() - start:.1f} s")
excess = variances / np.asarray(best.worst_variance)[:, None]
assert variances.shape == (100, 100)
assert excess.min() > 1 - 1e-9, "no setting of the grid is better than the best width of its budget"
assert (excess.min(1) < 1.01).all(), "and one of them is nearly as good"

# %% [markdown]
# The plot shows the cost of a wrong width. The lines are at 2, 10 and 50 per cent more variance than the minimum.

# %%
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
image = axis.pcolormesh(budgets, widths, excess.T, cmap="viridis_r", norm="log", vmin=1, vmax=4, shading="gouraud")
lines = axis.contour(budgets, widths, excess.T, [1.02, 1.1, 1.5], colors="0.25", linewidths=1)
axis.clabel(lines, fmt="%g")
axis.plot(budgets, best.width, color="black", linewidth=2.5)
axis.annotate("best width", (4.0, 0.5), (4.0, 1.4), color="white", arrowprops={"arrowstyle": "->", "color": "white"})
axis.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="width", title="worst-case variance over the least one")
axis.set_xticks([0.3, 1, 3, 6], ["0.3", "1", "3", "6"])
axis.set_yticks([0.1, 0.3, 1], ["0.1", "0.3", "1"])
axis.minorticks_off()
figure.colorbar(image, ax=axis, ticks=[1, 1.5, 2, 3, 4], format="%g", extend="max")

# %%
for share in (0.5, 0.8, 1.25):
    wrong = dpk.composite("uniform", epsilon=budgets, width=share * np.asarray(best.width), lower=-1.0, upper=1.0)
    cost = np.asarray(wrong.worst_variance) / np.asarray(best.worst_variance) - 1
    print(f"{share} times the best width: {cost.min():.0%} to {cost.max():.0%} more variance")

# %% [markdown]
# ## One budget for 1,000 queries
#
# The queries have different sensitivities and weights, and are all about the same people. Two simple divisions are
# equal noise scales, and budgets in proportion to the sensitivities. `tune.allocate` finds the optimal division, and
# certifies that all releases together meet the budget. With 16 levels, each query has one of 16 ratios of sensitivity
# to scale, so that the release needs few integer tables.

# %%
random = np.random.default_rng(7)
sensitivities, weights = np.exp(random.normal(0, 0.5, 1000)), np.exp(random.normal(0, 1.5, 1000))
queries = dpk.gaussian(sigma=1.0, sensitivity=sensitivities)
allocation = tune.allocate(queries, epsilon=1.0, delta=1e-6, weights=weights, levels=16)
sigma = np.asarray(allocation.mechanism.noise.sigma)
assert accountants.guarantee(allocation.mechanism).epsilon(1e-6) <= 1.0
mu = np.sqrt(((sensitivities / sigma) ** 2).sum())  # of all reports together, as of one Gaussian release
divisions = {
    "one scale for all": np.full(1000, np.linalg.norm(sensitivities) / mu),
    "scale as the sensitivity": sensitivities * np.sqrt(1000) / mu,
    "tune.allocate": sigma,
}
costs = {name: (weights * own**2).sum() / (weights * sigma**2).sum() for name, own in divisions.items()}
assert min(costs, key=lambda name: costs[name]) == "tune.allocate"
print({name: round(float(cost), 3) for name, cost in costs.items()})

# %%
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for (name, own), marker in zip(divisions.items(), "_|.", strict=True):
    axis.plot(weights, own, marker, markersize=4, label=f"{name}: {costs[name]:.2f}", alpha=0.6)
axis.set(xscale="log", yscale="log", xlabel="weight of a query", ylabel="standard deviation of its noise")
axis.set_yticks([30, 100, 300], ["30", "100", "300"])
axis.minorticks_off()
axis.legend(frameon=False, fontsize=9, title="weighted variance over the least")

# %% [markdown]
# The allocation is a batch like any other, and `perturb` releases it with the bits that were certified. Charge
# (epsilon, delta) once, for all 1,000 values.

# %%
released = dpk.perturb(np.zeros(1000), allocation.mechanism)
print(np.std(released / sigma))
