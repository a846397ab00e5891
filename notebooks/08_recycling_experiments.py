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
# # Budget recycling: the source's experiments
#
# This notebook repeats the experiments of Jiang et al. (2024) on budget recycling, and states which of their results
# hold. Notebook 2 shows the mechanism, its acceptance over eps, and the cases in which the published accounting is
# unsound. This notebook has the other experiments: acceptance against the tolerance theta and against delta, the split
# of the budget between kernel and recycler, the sampling rate, and queries on real data; notebook 9 has the composition
# of many reports, Table I, and the best sampling rates. It compares the published *algorithms* with exact accounting.
#
# Acceptance is P(|report - answer| <= theta). Neighbouring: datasets whose answers differ by at most D; a guarantee is
# (eps, delta)-DP of one report, and delta = 1e-5 unless stated otherwise. Five ways to spend it:
#
# - *kernel alone*: the analytic Gaussian;
# - *published*: Algorithms 1 and 2, which choose q and the kernel's share of eps;
# - *exact*: sigma, with the largest q that the true delta allows, tuned for the acceptance (`accountants.tune`);
# - *Laplace*: plain noise of scale D/eps, delta = 0;
# - *staircase*: the additive noise of pure eps-DP with the largest acceptance (Geng and Viswanath 2014), delta = 0: its
#   high steps end at theta.

# %%
import sys
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

sys.path.append("..")  # for benchmarks, which is not installed

import accountants
import dpkernels as dpk
from accountants import calibrate, recycling
from accountants.schemes.poisson import amplified_budget, budget_on_sample
from benchmarks import literature_recycling as literature
from benchmarks.literature_trials import errors

DELTA = literature.DELTA
STYLES = {
    "staircase": ("-", "tab:green"),
    "Laplace": (":", "black"),
    "exact": ("o-", "tab:orange"),
    "published": ("s-", "tab:blue"),
    "kernel alone": ("^--", "tab:gray"),
}
pd.options.display.float_format = "{:.4g}".format


def draw(axis, table, x):
    for name, (style, color) in STYLES.items():
        axis.plot(table[x], table[name], style, color=color, markersize=5, label=name)
    unsound = table[table["true delta of published / delta"] > 1]
    axis.plot(unsound[x], unsound["published"], "x", color="tab:red", markersize=10, label="published, not private")


# %% [markdown]
# ## Against theta

# %%
ladders = {1.0: (0.25, 0.5, 1.0, 2.0, 6.0, 12.0), 3.0: (0.25, 0.5, 1.0, 2.0, 3.5, 5.0)}
by_theta = {
    eps: pd.DataFrame([{"theta": theta} | literature.acceptances(theta, eps) for theta in ladder])
    for eps, ladder in ladders.items()
}
figure, panels = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True, layout="constrained")
for axis, (eps, table) in zip(panels, by_theta.items(), strict=True):
    draw(axis, table, "theta")
    axis.set(title=f"eps = {eps:g}", xlabel="theta (unit of D)", xscale="log", ylim=(0, 1.03))
    axis.set_xticks(table["theta"], [f"{theta:g}" for theta in table["theta"]])
    axis.minorticks_off()
    axis.legend(loc="upper left", fontsize="small")
panels[0].set_ylabel("P(|report - answer| <= theta)")
figure.suptitle("Acceptance against the tolerance, delta = 1e-5")
plt.show()
pd.concat(by_theta, names=["eps"]).droplevel(1)

# %% [markdown]
# *Figure 1. Share of reports within theta (no unit) against theta, logarithmic. A red cross marks a published choice
# whose true delta is above 1e-5. Markers are computed, lines join them.*
#
# **Holds:** recycling raises the acceptance of its Gaussian kernel at every theta. **Does not hold:** the published
# choice is not private at the largest theta of either panel, where its true delta is 21 and 72 times the target.
# Everywhere else it does not use much of the budget (at eps = 1, theta = D its acceptance is 0.23, and 0.40 with exact
# accounting). For a single report, plain Laplace noise has a larger acceptance than all three Gaussians at every theta
# >= D in the figure, with delta = 0. The staircase is at least as good everywhere, and has more than twice the
# acceptance of exact recycling at theta = D/4, eps = 1.

# %%
for table in by_theta.values():
    assert (table["exact"] >= table["kernel alone"]).all()
    assert (table["staircase"] >= table[["exact", "Laplace", "kernel alone"]].max(axis=1) - 1e-12).all()
    assert table["true delta of published / delta"].iloc[-1] > 20
    assert (table["true delta of published / delta"].iloc[:-1] < 1).all()

# %% [markdown]
# ## Against delta

# %%
by_delta = pd.DataFrame(
    [{"delta": delta} | literature.acceptances(2.0, 1.0, 1.0, delta) for delta in (1e-10, 1e-6, 1e-2)]
)
figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
draw(axis, by_delta, "delta")
axis.set(xscale="log", xlabel="delta", ylabel="P(|report - answer| <= 2 D)", ylim=(0, 1))
axis.set_title("Acceptance against delta, eps = 1, theta = 2 D")
axis.legend(fontsize="small", loc="lower right")
plt.show()
by_delta

# %% [markdown]
# *Figure 2. Share of reports within theta = 2 D (no unit) against delta, logarithmic. Laplace noise and the staircase
# spend none; at theta = 2 D they have the same acceptance. None of these published choices exceeds its delta.*
#
# A larger delta increases the acceptance of all Gaussians, and most with exact accounting. None reaches that of Laplace
# noise.
#
# ## Kernel and recycler
#
# Algorithm 2 divides eps between the kernel and the redraws, and searches for the best share of the kernel. The curves
# show the acceptance over this share. Exact accounting has no such division, because it treats both losses together.
# For comparison, the figure uses the kernel of the same share with the largest q that the true delta allows.

# %%
cases = {"theta = D, eps = 2": (1.0, 2.0), "theta = D, eps = 3": (1.0, 3.0), "theta = 5 D, eps = 3": (5.0, 3.0)}
split = {name: pd.DataFrame(literature.shares(np.linspace(0.1, 1.0, 10), *case)) for name, case in cases.items()}
figure, panels = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for axis, (name, table) in zip(panels, split.items(), strict=True):
    axis.plot(table["share"], 1 - table["exact"], "o-", color="tab:orange", markersize=4, label="exact")
    axis.plot(table["share"], 1 - table["published"], "s-", color="tab:blue", markersize=4, label="published")
    bad = table[table["published delta"] > DELTA * (1 + 1e-6)]
    axis.plot(bad["share"], 1 - bad["published"], "x", color="tab:red", markersize=10, label="published, not private")
    axis.set(title=name, xlabel="kernel's share of eps", yscale="log")
    axis.legend(fontsize="small")
panels[0].set(ylabel="P(|report - answer| > theta)", ylim=(0.2, 1))
panels[0].set_yticks([0.2, 0.3, 0.5, 1.0], ["0.2", "0.3", "0.5", "1"])
panels[0].minorticks_off()
figure.suptitle("Rejection against the kernel's share of the budget, delta = 1e-5; lower is better")
plt.show()
narrow, third, wide = split.values()
assert third["exact"].is_monotonic_increasing
assert third["published"].idxmax() < len(third) - 1
top = narrow.loc[narrow["published"].idxmax()]
tuned = literature.tuned(1.0, 2.0)
alone = calibrate.gaussian(epsilon=2.0, delta=DELTA).noise.sigma
print(f"published, theta = D: best at a share of {top['share']:.2f}, acceptance {top['published']:.4f}")
print(f"exact, theta = D: best at a share of 1, acceptance {narrow['exact'].iloc[-1]:.4f}")
print(f"exact, theta = D, sigma free: {tuned.value:.4f}, at {tuned.parameters['sigma'] / alone:.3f} times that sigma")
print(f"published, theta = 5 D: true delta up to {wide['published delta'].max():.3g}")
assert narrow["exact"].is_monotonic_increasing
assert 0.5 < top["share"] < 0.7
assert wide["published delta"].max() > 100 * DELTA

# %% [markdown]
# *Figure 3. Share of reports beyond theta (no unit, logarithmic) against the kernel's share of eps (no unit). The panel
# in the middle has the setting of the source's figure 3: eps = 3, D = 1, theta = 1.*
#
# **Holds:** under the published accounting, the share has an inner optimum at about 0.6. **Does not hold** under exact
# accounting: the best of these kernels alone uses the whole eps. Recycling reduces the mass of the tails, which contain
# its delta, and this compensates for the step. Without the restriction to these kernels, the optimiser chooses an even
# narrower kernel, which alone would exceed the budget: 0.95 times that sigma, with an acceptance of 0.766. For theta =
# 5 D the published optimum is not private.
#
# ## The sampling rate
#
# A report may use a Poisson sample of rate p, rescaled to the whole data. The budget on the sample is then larger, ln(1
# + (e^eps - 1)/p), but the estimate has a sampling error. The source proposes a best rate for each kind of query. It
# uses the sensitivity D. But the released value is divided by p (or by p n), so one person changes it by D/p.
#
# The data: 5,638 people, visits to a doctor in a year, each cut at 50. Neighbouring: one person more or less; for the
# average, n is public and one person's visits change.

# %%
people = pd.read_csv(Path("data") / "rand_hie.csv")
visits, ages = people["visits"].clip(upper=50).to_numpy(float), people["age"].to_numpy(float)
n, deviation, share = len(visits), visits.std(), (visits > 0).mean()
rates = np.array([0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0])
sampled = {
    "average, eps = 0.05, theta = 0.2 visits": (
        partial(recycling.sampling_noise_mean, deviation, n),
        {"theta": 0.2, "epsilon": 0.05, "sensitivity": 50 / n},
    ),
    "sum, eps = 1, theta = 160 visits": (
        partial(recycling.sampling_noise_sum, deviation, n),
        {"theta": 160.0, "epsilon": 1.0, "sensitivity": 50.0},
    ),
    "people with a visit, eps = 0.02, theta = 200": (
        partial(recycling.sampling_noise_count, share, n),
        {"theta": 200.0, "epsilon": 0.02, "sensitivity": 1.0},
    ),
}
curves = {name: pd.DataFrame(literature.on_samples(rates, noise, **case)) for name, (noise, case) in sampled.items()}
figure, panels = plt.subplots(1, 3, figsize=(12.5, 4), sharey=True, layout="constrained")
for axis, (name, table) in zip(panels, curves.items(), strict=True):
    axis.plot(
        table["rate"], table["D kept"], "s--", color="tab:blue", markersize=4, label="sensitivity D, as published"
    )
    axis.plot(table["rate"], table["D/p"], "o-", color="tab:orange", markersize=4, label="sensitivity D/p")
    axis.set(title=name, xlabel="sampling rate p", xscale="log", ylim=(0, 1.03))
    axis.title.set_fontsize("medium")
    axis.legend(loc="upper left", fontsize="small")
panels[0].set_ylabel("P(|report - true answer| <= theta)")
figure.suptitle("Acceptance on a sample, recycled Gaussian noise, delta = 1e-5, 5,638 people")
plt.show()

# %% [markdown]
# *Figure 4. Share of reports within theta of the answer for all people (no unit) against the sampling rate,
# logarithmic; sampling error included. The dashed reports are not private at the budget claimed.*
#
# The table has the true cost of the dashed optimum: of the noise at its rate, with the true sensitivity D/p and
# amplification by p.

# %%
spent = []
for name, (_, case) in sampled.items():
    at = curves[name]["D kept"].idxmax()
    p, D = float(rates[at]), case["sensitivity"]
    inner = dict(zip(("epsilon", "delta"), map(float, budget_on_sample(case["epsilon"], DELTA, p)), strict=True))
    kernel = calibrate.gaussian(sensitivity=D, **inner).noise
    noise = calibrate.budget_recycled(kernel, theta=case["theta"], sensitivity=D, **inner)
    true = amplified_budget(float(accountants.epsilon(noise, inner["delta"], sensitivity=D / p)), inner["delta"], p)[0]
    best = curves[name]["D/p"].idxmax()
    row = {"query": name.split(",")[0], "claimed eps": case["epsilon"], "best p, D kept": p, "true eps there": true}
    spent.append(row | {"best p, D/p": rates[best]})
spent = pd.DataFrame(spent).set_index("query")
assert (spent["best p, D/p"] == 1).all()
assert (spent["true eps there"] >= spent["claimed eps"] * 0.999).all()
spent

# %% [markdown]
# **Holds** only with the sensitivity D, and if the sampling error is small compared with theta: the average and the
# count then appear best with 10 to 30 % of the people. **Does not hold** with the sensitivity of the released value:
# all data are best in all three cases. The dashed optimum of the average claims eps = 0.05; the table has its true eps.
#
# ## Queries on real data
#
# The sum of visits (each cut at 50), the average age in [0, 100] years, and the number of people with a visit; theta is
# 0.1 % of the answer: 16 visits, 9 days, 3.9 people.

# %%
answers = {
    "sum of visits": (visits.sum(), 50.0, 1e-3 * visits.sum()),
    "average age": (ages.mean(), 100 / n, 1e-3 * ages.mean()),
    "people with a visit": ((visits > 0).sum(), 1.0, 1e-3 * (visits > 0).sum()),
}
utility = pd.DataFrame(
    [
        {"query": name, "theta / D": theta / D, "eps": eps} | literature.acceptances(theta, eps, D)
        for name, (_, D, theta) in answers.items()
        for eps in (1.0, 2.0, 4.0)
    ]
)
figure, panels = plt.subplots(1, 3, figsize=(12.5, 4), sharey=True, layout="constrained")
for axis, (name, table) in zip(panels, utility.groupby("query", sort=False), strict=True):
    draw(axis, table, "eps")
    axis.set(title=f"{name}, theta = {table['theta / D'].iloc[0]:.2f} D", xlabel="eps", xscale="log", ylim=(0, 1.03))
    axis.set_xticks([1, 2, 4], ["1", "2", "4"])
    axis.minorticks_off()
    axis.legend(loc="lower right", fontsize="small")
panels[0].set_ylabel("P(|report - answer| <= 0.1 % of the answer)")
figure.suptitle("Queries on 5,638 people, delta = 1e-5")
plt.show()
assert (utility["exact"] > utility["Laplace"]).sum() == 1
assert (utility["staircase"] >= utility[["exact", "Laplace", "kernel alone"]].max(axis=1) - 1e-12).all()
utility.set_index(["query", "eps"])

# %% [markdown]
# *Figure 5. Share of reports within 0.1 % of the answer (no unit) against eps, logarithmic. Red crosses as in figure
# 1.*
#
# **Result:** the staircase is accepted most often in all nine cases, and Laplace noise more often than recycled
# Gaussian noise in eight.
#
# The same by simulation, 1,000 repetitions at eps = 2 by `vmap`:

# %%
trials = []
for seed, (name, (answer, D, theta)) in enumerate(answers.items()):
    budget = {"epsilon": 2.0, "delta": DELTA, "sensitivity": D}
    kernel = calibrate.gaussian(**budget)
    noises = {
        "kernel alone": kernel,
        "exact": literature.tuned(theta, **budget).mechanism,
        "Laplace": dpk.laplace(epsilon=2.0, sensitivity=D),
    }
    for label, mechanism in noises.items():
        inside = float(mechanism.noise.mass(-theta, theta))
        error = abs(errors(mechanism, answer, seed))
        row = {"query": name, "noise": label, "computed": inside, "of 1,000": (error <= theta).mean()}
        trials.append(row | {"mean |error|": error.mean(), "RMSE": mechanism.noise.variance**0.5})
trials = pd.DataFrame(trials).set_index(["query", "noise"])
off = (trials["of 1,000"] - trials["computed"]) / np.sqrt(trials["computed"] * (1 - trials["computed"]) / 1000)
assert off.abs().max() < 5.5  # all nine together: a false alarm with probability below 1e-6, seeds are fixed anyway
trials

# %% [markdown]
# ## Summary
#
# - *Recycling raises the acceptance of a Gaussian kernel at the same budget*: holds, and more than published (figures
#   1, 2 and 5).
# - *The published algorithms meet the requested budget*: not for theta above about 2.5 sigma; the true delta is 21, 72
#   and 74 times the target in figures 1 and 5.
# - *Kernel and recycler share eps, with an inner optimum*: an artefact of the published accounting (figure 3).
# - *A sample is better than all the data*: only with a sensitivity that is not rescaled, and with up to nine times the
#   claimed eps; with the correct sensitivity, all data are best (figure 4).
# - *Better utility on real data*: holds in comparison with plain Gaussian noise. For one report, Laplace noise is
#   better than recycling in eight of the nine cases of figure 5. In one case, recycling with exact accounting is better
#   (sum, eps = 4: 0.89 compared with 0.73). The staircase is best in all cases.
#
# Gaussian noise, recycled or not, is for vectors and for many reports, where Laplace noise costs more (notebook 5).
