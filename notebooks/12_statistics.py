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
# She may see the data, so she adds noise to the statistics. The second half of the notebook answers the same questions
# for an analyst who may not see any true age. The random keys are fixed, so that the notebook prints the same numbers
# every time. Never fix the key of a release.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import accountants
import dpkernels as dpk
from dpkernels.session import Histogram, Mean

pd.options.display.float_format = "{:,.2f}".format
LOWER, UPPER = 0.0, 100.0  # chosen before the data were seen
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
# A session has the budget for these people, epsilon 2. It derives the sensitivity of each statistic, charges its budget
# and the ledger before each release, and adds noise from certified tables. Neighbouring datasets differ by one person,
# added or removed. The analyst knows all bounds, plans and bins without looking at the data.

# %%
folder = tempfile.TemporaryDirectory()
ledger = accountants.Ledger.create(Path(folder.name) / "people.ledger", epsilon=2)
session = dpk.Session(table[["age", "plan"]], ledger=ledger, key=key(1))
by_plan = {"plan": largest.tolist()}
years = np.arange(LOWER, UPPER + 1, 2)
expected = session.plan([Mean("age", LOWER, UPPER, by=by_plan), Histogram("age", years)], epsilon=1.25).expected()
expected  # widths of intervals of a group of 1,000 people, before anything is released

# %% [markdown]
# ### 1. Means by plan, and two slips
#
# Plans are disjoint, so six means cost as much as one. The cell also makes two mistakes. The first names a column of
# groups without its keys, which would have to be read from the data. The second asks for more than the remaining
# budget. The session refuses both, and charges nothing.

# %%
means = session.mean("age", LOWER, UPPER, by=by_plan, epsilon=0.75)
for slip in (lambda: session.count(by="plan", epsilon=0.5), lambda: session.count(epsilon=1.5)):
    try:
        slip()
    except ValueError as error:
        print(error)
print("left:", session.left)


def row(value, low, high, truth):
    """A line of a table."""
    return {"answer": value, "95 % from": low, "to": high, "true": truth, "error": abs(value - truth)}


truth = [ages[plans == plan].mean() for plan in largest]
lines = [row(*numbers) for numbers in zip(means.value, *means.interval(), truth, strict=True)]
pd.DataFrame(lines, index=pd.Index(largest, name="plan"))

# %% [markdown]
# ### 2. The distribution
#
# A histogram of disjoint bins costs as much as one count. The exponential mechanism selects the median, and noisy
# counts near it give its interval. Ages are multiples of 1/12 year.

# %%
histogram = session.histogram("age", years, epsilon=0.5)
median = session.quantiles("age", LOWER, UPPER, 0.5, step=1 / 12, epsilon=0.25)
print(median, f"true median {np.median(ages):.1f}", sep="\n")
histogram.plot().figure

# %% [markdown]
# ### 3. People who are 50 or older

# %%
older = session.histogram("age", [50, UPPER], epsilon=0.5)
print(older, f"true count {(ages >= 50).sum()}", sep="\n")
print(session.report())

# %% [markdown]
# ## If no one may see a true age
#
# The same budget allows one report of each person. All questions are answered from the same reports. A report carries
# little information about one person, but many reports determine a distribution. Plans are not perturbed in this
# example, so only the age is protected.

# %%
spent = float(ledger.state().spent.epsilon)
mechanism = dpk.piecewise(epsilon=spent, lower=LOWER, upper=UPPER)
reports = dpk.perturb(ages, mechanism, key=key(7))
each = [dpk.estimate(reports[plans == plan], mechanism) for plan in largest]
e = dpk.estimate(reports, mechanism)
local = pd.DataFrame([row(one.mean.value, *one.mean.interval(), true) for one, true in zip(each, truth, strict=True)])
local.index = pd.Index(largest, name="plan")
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
# The table compares the widths of the 95 % intervals at the same total epsilon.

# %%


def width(interval):
    """Return the width of an interval."""
    return float(np.ptp(interval))


widths = pd.DataFrame(
    {
        "noise on statistics": [*np.ptp(means.interval(), axis=0), width(median.interval()), width(older.interval())],
        "local reports": [width(one.mean.interval()) for one in each]
        + [width(found.interval()), width(local_older.interval())],
    },
    index=[f"mean age on plan {plan}, years" for plan in largest] + ["median age, years", "people of 50 or older"],
)
widths["factor"] = widths["local reports"] / widths["noise on statistics"]
widths

# %%
figure, (left_axes, right_axes) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
histogram.plot(left_axes, together=True)
e.plot(right_axes, bins=years, label="age in years", title=f"local reports, epsilon {spent:g}")
true_counts = np.histogram(ages, years)[0]
left_axes.stairs(true_counts, years, color="black", label="true ages")
right_axes.stairs(true_counts / len(ages), years, color="black", label="true ages")
left_axes.set(xlabel="age in years", title="noise on counts, epsilon 0.5")
left_axes.legend(frameon=False)
right_axes.legend(frameon=False)
folder.cleanup()
