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
# # Estimates from reports: distributions, quantiles and relations
#
# This notebook perturbs a column once, value by value, and then estimates its mean, distribution, quantiles and
# relations to other columns from the reports alone. Estimation is post-processing and costs no privacy. The data are
# 5,638 people of the RAND health insurance experiment. The plots also show the true values, for comparison.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dpkernels as dpk

pd.options.display.float_format = "{:.3g}".format
table = pd.read_csv("data/rand_hie.csv")
ages = table["age"].to_numpy()
budgets = (0.5, 1.0, 2.0)


def release(epsilon, values=ages, number=0):
    """A mechanism and reports; the key is fixed, as it never is in a release, to print the same numbers every time."""
    mechanism = dpk.piecewise(epsilon=epsilon, lower=0.0, upper=100.0)
    key = dpk.key_from_bytes(int(1000 * epsilon + number).to_bytes(32, "little"))
    return dpk.perturb(values, mechanism, key=key), mechanism


estimates = {epsilon: dpk.estimate(*release(epsilon)) for epsilon in budgets}

# %% [markdown]
# ## Moments
#
# The mean of the reports is an unbiased estimate of the mean of the values. The variance of the reports is mostly
# noise, whose variance is known from the integer table and is subtracted. There are two intervals: a normal one, and
# Bernstein's, which holds at every n.

# %%
rows = {"truth": {"mean": ages.mean(), "standard deviation": ages.std()}}
for epsilon, e in estimates.items():
    for name, found in (("mean", e.mean), ("standard deviation", e.standard_deviation)):
        low, high = found.interval(0.95)
        row = rows.setdefault(f"epsilon {epsilon:g}", {})
        row |= {name: found.value, f"{name}, 95 %": f"{low:.1f} to {high:.1f}"}
pd.DataFrame(rows).T

# %% [markdown]
# ## The distribution
#
# Reports have a multinomial distribution over the codes of the integer table, with exactly known probabilities.
# `estimate` compares several models: smooth densities of few or many splines, with or without point masses. It chooses
# the model that predicts held-out reports best. The band is simultaneous, with a coverage of at least 95 %. It contains
# every distribution that is compatible with the reports, smooth or not; `assume="smooth"` makes it narrower.

# %%
grid = np.linspace(0, 100, 101)
truth = np.searchsorted(np.sort(ages), grid, side="right") / len(ages)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
for axis, (epsilon, e) in zip(axes, estimates.items(), strict=True):
    cdf = e.cdf(grid)
    axis.fill_between(grid, *cdf.band(0.95), alpha=0.25, label="95 % band")
    axis.plot(grid, cdf.value, label="estimate")
    axis.plot(grid, truth, color="black", linewidth=1, label="truth")
    axis.set(title=f"epsilon {epsilon:g}", xlabel="age")
axes[0].set_ylabel("share of people up to it")
axes[0].legend(frameon=False)

# %% [markdown]
# Quantiles also have intervals. If there are too few reports to distinguish a quantile from an end of the interval, an
# error states the number of reports that are needed.


# %%
def quantiles(e, shares=(0.1, 0.25, 0.5, 0.75, 0.9)):
    """Quantiles with their intervals, one that is refused with the reason."""
    row = {}
    for p in shares:
        try:
            found = e.quantile(p)
            low, high = found.interval(0.95)
            row[f"{p:g}"] = f"{found.value:.1f} ({low:.1f} to {high:.1f})"
        except dpk.TooFewReportsError as error:
            row[f"{p:g}"] = f"needs {error.needed:,.2g} reports"
    return row


rows = {"truth": {f"{p:g}": f"{np.quantile(ages, p):.1f}" for p in (0.1, 0.25, 0.5, 0.75, 0.9)}}
pd.DataFrame(rows | {f"epsilon {epsilon:g}": quantiles(e) for epsilon, e in estimates.items()}).T

# %% [markdown]
# The gap is a certificate: no distribution has a log-likelihood per report that exceeds that of the estimate by more
# than the gap.

# %%
pd.Series({f"epsilon {epsilon:g}": e.gap for epsilon, e in estimates.items()}, name="gap, nats a report")

# %% [markdown]
# ## By group
#
# Columns that were not perturbed are copied, in this example the insurance plan. The reports of each group are
# estimated separately, so small groups have wide intervals.

# %%
reports, mechanism = release(2.0)
rows = {}
for plan, of_plan in table.groupby("plan"):
    e = dpk.estimate(reports[of_plan.index], mechanism)
    low, high = e.mean.interval(0.95)
    mean = f"{e.mean.value:.1f} ({low:.1f} to {high:.1f})"
    rows[f"plan {plan}"] = {"people": e.count, "true mean": of_plan["age"].mean(), "mean": mean}
    rows[f"plan {plan}"] |= {"true median": of_plan["age"].median(), "median": quantiles(e, (0.5,))["0.5"]}
pd.DataFrame(rows).T

# %% [markdown]
# ## Relations
#
# Noise in a column biases slopes and correlations towards 0. Its variance is known, so it is subtracted from sums of
# squares. Products of two columns need no correction. Income is perturbed separately, on its own interval.

# %%
income = dpk.piecewise(epsilon=4.0, lower=0.0, upper=30_000.0)
key = dpk.key_from_bytes(bytes(range(32)))
incomes = dpk.perturb(np.clip(table["income"].to_numpy(float), 0, 30_000), income, key=key)
aged = release(4.0)
true = np.polyfit(ages, np.clip(table["income"], 0, 30_000), 1)
naive = np.polyfit(aged[0], incomes, 1)
fit = dpk.least_squares((incomes, income), [aged])
low, high = fit.slopes.interval(0.95)
pd.DataFrame(
    {
        "true": [true[0], np.corrcoef(ages, np.clip(table["income"], 0, 30_000))[0, 1]],
        "of the reports as they are": [naive[0], np.corrcoef(aged[0], incomes)[0, 1]],
        "corrected": [fit.slopes.value[0], dpk.correlation(aged, (incomes, income)).value],
        "95 %": [(low[0], high[0]), dpk.correlation(aged, (incomes, income)).interval(0.95)],
    },
    index=["income a year of age", "correlation"],
)

# %% [markdown]
# ## The number of people for a given accuracy
#
# The table has half the width of 95 % intervals for n people with the ages of this data set. The error of the mean is
# inversely proportional to the square root of n. The errors of the cdf and of the median decrease more slowly, because
# the only assumption about the values is that they are integers.

# %%
counts = {epsilon: dpk.Counts(release(epsilon, ages[:1])[1]) for epsilon in budgets}
bins = np.linspace(0, 100, 129)
shares = np.histogram(ages, bins)[0] / len(ages)
sizes = np.geomspace(3e3, 3e6, 5).astype(int)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for epsilon, of_budget in counts.items():
    channel, widths = of_budget.channel, []
    probabilities = channel.matrix(bins, np.arange(len(channel.reports))) @ shares
    for n in sizes:
        drawn = dpk.Counts(channel)
        drawn.numbers = np.random.default_rng(1).multinomial(n, probabilities / probabilities.sum())
        e = dpk.estimate(drawn, grid=1)
        row = [np.ptp(e.mean.interval()) / 2, np.ptp(e.cdf(40.0).interval()) / 2]
        try:
            row.append(np.ptp(e.quantile(0.5).interval()) / 2)
        except ValueError:
            row.append(np.nan)
        widths.append(row)
    for axis, width in zip(axes, np.transpose(widths), strict=True):
        axis.loglog(sizes, width, marker=".", label=f"epsilon {epsilon:g}")
for axis, name in zip(axes, ("mean, years", "share up to 40", "median, years"), strict=True):
    axis.set(title=name, xlabel="people")
    axis.grid(alpha=0.3)
axes[0].legend(frameon=False)
