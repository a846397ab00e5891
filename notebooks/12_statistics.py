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
# # Three questions about one table, for a data holder and with local reports
#
# An analyst has the ages of 5,638 people of the RAND health insurance experiment. She is asked three questions:
#
# 1. What is the mean age of the people on each insurance plan?
# 2. How are the ages distributed, and what is the median?
# 3. How many people are 50 or older?
#
# She may see the data, so she adds noise to the statistics. The second half answers the same questions for somebody who
# may not see any true age. The keys are fixed here, so that the same numbers are printed every time. In a release they
# never are.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import accountants
import dpkernels as dpk

pd.options.display.float_format = "{:,.2f}".format
LOWER, UPPER, MIDDLE = 0.0, 100.0, 50.0  # chosen before the data were seen
table = pd.read_csv("data/rand_hie.csv")
largest = np.array(
    [5, 10, 11, 13, 14, 16]
)  # large plans, known from the design of the experiment and not from the table
table = table[table["plan"].isin(largest)]
ages, plans = table["age"].to_numpy(), table["plan"].to_numpy()


def key(number):
    """A key for release number so and so."""
    return dpk.key_from_bytes(number.to_bytes(32, "little"))


print(f"{len(ages):,} people on plans {', '.join(map(str, largest))}")

# %% [markdown]
# ## The data holder
#
# One ledger holds the budget of these people: epsilon 2, and a delta of 1e-9 for noise whose tables are finite.
# `perturb` charges it before each release. Neighbouring datasets differ by one person, added or removed.

# %%
folder = tempfile.TemporaryDirectory()
ledger = accountants.Ledger.create(Path(folder.name) / "people.ledger", epsilon=2, delta=1e-9)


def released(values, mechanism, label, number):
    """Charge the ledger, then release."""
    return dpk.perturb(values, mechanism, key=key(number), ledger=ledger, label=label)


def left():
    """The epsilon that is left."""
    return f"epsilon {float(ledger.statement().left.epsilon):g} is left"


# %% [markdown]
# ### 1. Means by plan, and two slips
#
# A person is on one plan, so one person changes one sum and one count. The sum of `age - 50` changes by at most 50, the
# count by 1. A ratio of the two released values is the mean, and both noises are in its interval.
#
# The first slip is a vector that is longer than the mechanism expects. It is refused before the charge. The second one
# is a sum that is missing. It is found after the charge, which stays. No noise was drawn and nobody has seen a result,
# so the analyst may take this charge back.

# %%
sums = np.array([(ages[plans == plan] - MIDDLE).sum() for plan in largest])
sizes = np.array([float((plans == plan).sum()) for plan in largest])
d = len(largest)
on_sums = dpk.on_vectors(dpk.laplace(epsilon=0.5, sensitivity=50.0), dimensions=d, norm="l1")
on_sizes = dpk.on_vectors(dpk.laplace(epsilon=0.25, sensitivity=1.0), dimensions=d, norm="l1", lattice=1.0)

for slip in (np.append(sums, sums.sum()), np.where(sizes > 1000, np.nan, sums)):
    try:
        released(slip, on_sums, "sums of ages", 1)
    except ValueError as error:
        print(error, *getattr(error, "__notes__", []))
ledger.void(ledger.statement().entries[-1].id, "refused before any noise was drawn")
print(left())

# %%
above = dpk.released_values(released(sums, on_sums, "sums of ages", 3), on_sums)
below = dpk.released_values(released(sizes, on_sizes, "people by plan", 4), on_sizes)
means = (above + MIDDLE * below) / below
print(left())


def row(value, low, high, truth):
    """A line of a table."""
    return {"answer": value, "95 % from": low, "to": high, "true": truth, "error": abs(value - truth)}


truth = [ages[plans == plan].mean() for plan in largest]
by_plan = pd.DataFrame([row(mean.value, *mean.interval(), true) for mean, true in zip(means, truth, strict=True)])
by_plan.index = pd.Index(largest, name="plan")
by_plan

# %% [markdown]
# ### 2. The distribution
#
# A histogram of disjoint bins costs as much as one count. Its quantiles cost nothing more. Their intervals consist of
# whole bins, so the bins should be narrow, but not so narrow that most of them hold fewer people than the noise.

# %%
edges = np.arange(LOWER, UPPER + 1, 2)
bins = np.histogram(ages, edges)[0].astype(float)
on_bins = dpk.on_vectors(dpk.laplace(epsilon=0.5, sensitivity=1.0), dimensions=len(bins), norm="l1", lattice=1.0)
histogram = released(bins, on_bins, "ages in 2-year bins", 5)
low, high = dpk.confidence_interval(histogram, on_bins, together=True)
median = dpk.histogram_quantile(dpk.released_values(histogram, on_bins), edges, 0.5)
print(f"median {median.value:.1f}, 95 % interval {median.interval()}, true median {np.median(ages):.1f}; {left()}")

# %% [markdown]
# ### 3. People who are 50 or older

# %%
on_count = dpk.laplace(epsilon=0.5, sensitivity=1.0)
older = dpk.released_values(released(float((ages >= 50).sum()), on_count, "50 or older", 6), on_count, lattice=1.0)
print(f"{older.value:,.1f}, 95 % interval {older.interval()}, true count {(ages >= 50).sum()}; {left()}")
pd.DataFrame(
    [
        (entry.label, float(entry.amounts.epsilon), "voided" if entry.id in ledger.statement().voided else "")
        for entry in ledger.statement().entries
        if not entry.voids
    ],
    columns=["release", "epsilon", ""],
)

# %% [markdown]
# ## If no one may see a true age
#
# The same budget buys one report of each person. All questions are answered from the same reports, which say little
# about one person and much about many. Plans were not perturbed here: a report with its plan protects the age only.

# %%
spent = float(ledger.statement().spent.epsilon)
mechanism = dpk.piecewise(epsilon=spent, lower=LOWER, upper=UPPER)
reports = dpk.perturb(ages, mechanism, key=key(7))
each = [dpk.estimate(reports[plans == plan], mechanism) for plan in largest]
e = dpk.estimate(reports, mechanism)
local = pd.DataFrame([row(one.mean.value, *one.mean.interval(), true) for one, true in zip(each, truth, strict=True)])
local.index = by_plan.index
local

# %%
found = e.quantile(0.5)
print(f"median {found.value:.1f}, 95 % interval ({found.interval()[0]:.1f}, {found.interval()[1]:.1f})")
local_older = e.count_between(50, UPPER)
low_older, high_older = local_older.interval()
print(f"50 or older: {local_older.value:.0f}, 95 % interval ({low_older:.0f}, {high_older:.0f})")

# %% [markdown]
# ## Side by side
#
# The width of the 95 % intervals, at the same epsilon in total.

# %%


def width(interval):
    """Return the width of an interval."""
    return float(np.ptp(interval))


widths = pd.DataFrame(
    {
        "noise on statistics": [width(mean.interval()) for mean in means]
        + [width(median.interval()), width(older.interval())],
        "local reports": [width(one.mean.interval()) for one in each]
        + [width(found.interval()), width(local_older.interval())],
    },
    index=[f"mean age on plan {plan}, years" for plan in largest] + ["median age, years", "people of 50 or older"],
)
widths["factor"] = widths["local reports"] / widths["noise on statistics"]
widths

# %%
figure, (left_axes, right_axes) = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
middles = (edges[1:] + edges[:-1]) / 2
share, truth_share = histogram / histogram.sum(), bins / bins.sum()
reach = np.abs(np.array([low, high]) / histogram.sum() - share)
left_axes.bar(middles, share, np.diff(edges), alpha=0.6, label="released")
left_axes.errorbar(middles, share, reach, fmt="none", color="C7", capsize=2, label="95 % intervals, all at once")
e.plot(right_axes, bins=edges, label="age in years", title=f"local reports, epsilon {spent:g}")
for axes in (left_axes, right_axes):
    axes.stairs(truth_share, edges, color="black", label="true ages")
left_axes.set(xlabel="age in years", ylabel="share of people", title="noise on counts, epsilon 0.5")
right_axes.set(ylabel="")
left_axes.legend(frameon=False)
right_axes.legend(frameon=False)
folder.cleanup()
