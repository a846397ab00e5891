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
# # Reports of a choice among categories: a published comparison, and the least error that is possible
#
# Which mechanism estimates the shares of d categories best, at which d and epsilon? Wang, Blocki, Li and Jha (USENIX
# Security 2017) compare the variances of an estimated share: randomised response is the best for d < 3 e^eps + 2, and
# local hashing or unary encoding beyond. This notebook repeats the comparison, adds the strict lower bound, and checks
# it with released reports. Then it estimates the number of people on each insurance plan.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dpkernels as dpk

pd.options.display.float_format = "{:.4g}".format

# %% [markdown]
# ## The published variances
#
# The printed formulas for n times the variance of the estimate of a small share are (d - 2 + e^eps)/(e^eps - 1)^2 for
# randomised response, and 4 e^eps/(e^eps - 1)^2 for optimised unary encoding and local hashing. The formula of the
# library agrees for randomised response. The rule is confirmed: randomised response is better up to the last d below 3
# e^eps + 2.

# %%
rows = {}
for epsilon in (0.5, 1.0, 2.0, 4.0):
    e = math.exp(epsilon)
    hashing = 4 * e / (e - 1) ** 2
    for d in (2, 16, 128):
        own = float(dpk.randomised_response(epsilon, d).share_variance(0.0))
        assert math.isclose(own, (d - 2 + e) / (e - 1) ** 2, rel_tol=1e-12)
    better = [d for d in range(2, 400) if dpk.randomised_response(epsilon, d).share_variance(0.0) < hashing]
    rows[epsilon] = {
        "hashing": hashing,
        "randomised response is better up to d": max(better),
        "3 e^eps + 2": 3 * e + 2,
    }
pd.DataFrame(rows).T.rename_axis("epsilon")

# %% [markdown]
# ## Comparison with the smallest possible error
#
# The mean squared error is summed over all categories. The lower bound holds for all mechanisms and unbiased estimates
# (Pan 2026). Subset selection attains it everywhere. So neither mechanism of the published rule is optimal: near the
# crossover, both are well above the bound. Block response has the short reports of hashing, and nearly the least error
# for many categories, because its partitions are balanced.


# %%
def hashing_error(epsilon, d):
    """Local hashing into round(e^eps + 1) buckets by random functions."""
    g = max(2, round(math.exp(epsilon) + 1))
    p, q = math.exp(epsilon) / (math.exp(epsilon) + g - 1), 1 / g
    return (p * (1 - p) + (d - 1) * q * (1 - q)) / (p - q) ** 2


ERRORS = {
    "randomised response": lambda epsilon, d: dpk.randomised_response(epsilon, d).mean_squared_error(),
    "unary encoding": lambda epsilon, d: 1 + 4 * math.exp(epsilon) * d / math.expm1(epsilon) ** 2,
    "local hashing": hashing_error,
    "block response": lambda epsilon, d: dpk.block_response(epsilon, d).mean_squared_error(),
    "subset selection": lambda epsilon, d: dpk.subset_selection(epsilon, d).mean_squared_error(),
}
budgets = np.linspace(0.25, 5, 39)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
for axis, d in zip(axes, (5, 20, 266), strict=True):
    for (name, error), line in zip(ERRORS.items(), ("-", "--", ":", "-.", "-"), strict=True):
        axis.plot(budgets, [error(eps, d) / dpk.strict_bound(eps, d) for eps in budgets], line, label=name)
    axis.set(title=f"{d} categories", xlabel="epsilon", ylim=(0.9, 4))
axes[0].set_ylabel("mean squared error / strict bound")
axes[2].legend(frameon=False)

# %% [markdown]
# ## Released reports have these errors
#
# The table has forty exact releases of 5,638 people for each mechanism, with shares proportional to 1/rank. The
# measured error is n times the sum of squared errors, with its standard error. The projection to nonnegative shares
# with the sum 1 has a much smaller error. It is biased, so it may be below the bound.


# %%
def measured(mechanism, releases=40, n=5_638):
    d, rng = mechanism.categories, np.random.default_rng(0)
    weights = 1 / np.arange(1, d + 1)
    codes = rng.choice(d, n, p=weights / weights.sum())
    truth = np.bincount(codes, minlength=d) / n
    errors = []
    for _ in range(releases):
        # A fixed key, as it never is in a release, prints the same numbers every time.
        key = dpk.key_from_bytes(rng.bytes(32))
        shares = dpk.estimate(dpk.perturb(codes, mechanism, key=key), mechanism).shares
        errors.append([n * ((estimate - truth) ** 2).sum() for estimate in (shares.unbiased, shares.value)])
    mean, spread = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1) / math.sqrt(releases)
    return {
        "measured": mean[0],
        "standard error": spread[0],
        "formula": mechanism.mean_squared_error(),
        "projected": mean[1],
    }


rows = {}
for d in (20, 266):
    for name, build in (("subset selection", dpk.subset_selection), ("block response", dpk.block_response),
                        ("randomised response", dpk.randomised_response)):  # fmt: skip
        rows[d, name] = measured(build(1.0, d))
pd.DataFrame(rows).T

# %% [markdown]
# ## The plans of the table
#
# People of the RAND health insurance experiment had one of 19 plans, one of which does not occur in the table. The list
# of plans is known without the data. The intervals hold for all plans together, including the empty one.

# %%
plans = pd.read_csv("data/rand_hie.csv")["plan"]
mechanism = dpk.categorical(1.0, list(range(1, 20)))
reports = dpk.perturb(plans, mechanism, key=dpk.key_from_bytes(bytes(32)))
estimate = dpk.estimate(reports, mechanism)
low, high = estimate.counts.band(0.95)
truth = plans.value_counts().reindex(range(1, 20), fill_value=0)
print(type(mechanism).__name__, "with sets of", mechanism.size)
pd.DataFrame({"true": truth.to_numpy(), "estimate": estimate.counts.value, "low": low, "high": high}, index=truth.index)

# %%
figure, axis = plt.subplots(figsize=(9, 3.4), layout="constrained")
axis.bar(truth.index - 0.2, truth, 0.4, label="true", color="C7")
value = estimate.counts.value
axis.bar(truth.index + 0.2, value, 0.4, label="estimate", yerr=[value - low, high - value], capsize=2)
axis.set(xlabel="plan", ylabel="people", xticks=truth.index)
axis.legend(frameon=False)
inside = ((low <= truth) & (truth <= high)).all()
print(f"all {len(truth)} intervals hold: {inside}")
