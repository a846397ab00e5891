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
# # The Laplace family: truncated, merged, staircase
#
# Is there additive noise with less error than Laplace and Gaussian noise at the same budget? This notebook examines two
# mechanisms of Mugunthan, Xiao and Kagal (2020). It recomputes the tables of their appendix, and corrects one of them.
#
# - *truncated Laplace*: Laplace noise cut to [A, B], which costs a delta;
# - *merged Laplace*: the log density decreases at different rates on different segments.
#
# Neighbouring datasets have true values that differ by at most D = 1. A guarantee covers one report, as a density in
# exact arithmetic. A release samples integers, which have a separate certificate (last section).

# %%
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

sys.path.append("..")  # for benchmarks, which is not installed

import accountants
import dpkernels as dpk
from accountants import calibrate
from benchmarks import literature_laplace as literature
from benchmarks.sources import tables

pd.options.display.float_format = "{:.4g}".format
pd.options.display.width = 150

# %% [markdown]
# ## The densities

# %%
truncated = dpk.truncated_laplace(epsilon=1.0, delta=0.01).noise
gaussian = calibrate.gaussian(epsilon=1.0, delta=0.01).noise
merged = dpk.MergedLaplace((5 / 0.34, 0.0, 5.0), (0.34, 1.0))
staircase = dpk.staircase(epsilon=5.0).noise
left = {
    "truncated Laplace, (1, 0.01)": (truncated, "tab:orange"),
    "Laplace, eps 1": (dpk.Laplace(1.0), "tab:gray"),
    "Gaussian, (1, 0.01)": (gaussian, "tab:blue"),
}
right = {
    "Laplace, eps 5": (dpk.Laplace(0.2), "tab:gray"),
    "merged Laplace, eps 5": (merged, "tab:green"),
    "staircase, eps 5": (staircase, "tab:red"),
}
figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for axis, noises, reach in ((panels[0], left, 6.5), (panels[1], right, 2.6)):
    z = np.linspace(-reach, reach, 4001)
    for name, (noise, color) in noises.items():
        density = noise.prob(z)
        axis.semilogy(z, np.maximum(density, 1e-9), "--" if color == "tab:gray" else "-", color=color, label=name)
    axis.set(xlabel="noise (unit of D)", ylabel="density (1 / unit of D)")
    axis.legend(loc="lower center", fontsize="small")
panels[0].set(title="Approximate DP: eps = 1, delta = 0.01", ylim=(1e-5, 2))
panels[1].set(title="Pure DP: eps = 5", ylim=(1e-8, 20))
plt.show()

# %% [markdown]
# *Figure 1. Log densities. Left: truncated Laplace noise is cut where the probability of the tails equals delta. Right:
# at the same pure budget, merged Laplace and staircase noise decrease steeply near 0, and are then flat up to D.*
#
# ## First table: truncated Laplace against the Gaussian
#
# The noise has scale D/eps and is cut at the symmetric bound B = (D/eps) ln(1 + (e^eps - 1)/(2 delta)). For comparison,
# sigma is that of the analytic Gaussian at the same (eps, delta). The columns of the source are A, L1* = E|X|/sigma and
# L2* = E[X^2]/sigma^2. The table has all 31 rows of its appendix table B; the computed values agree with the printed
# values to the last digit. We add the two columns on the right: E|X| divided by that of the Gaussian, and the true
# delta of the truncated density at eps, by `accountants.delta`.

# %%
printed_b = tables()["Mugunthan 2020, appendix table B"]
rows = []
for given, row in zip(printed_b.inputs, printed_b.values, strict=True):
    made = literature.table_b(**given)
    assert np.allclose(made, row, rtol=0, atol=0.005)  # all to the printed digit
    mechanism = dpk.truncated_laplace(epsilon=given["eps"], delta=given["delta"])
    normal = calibrate.gaussian(epsilon=given["eps"], delta=given["delta"]).noise
    line = dict(zip(printed_b.columns, row, strict=True))
    line["E|X| ratio"] = mechanism.noise.absolute_moment / normal.absolute_moment
    rows.append(given | line | {"realised delta": accountants.delta(mechanism, given["eps"])})
table = pd.DataFrame(rows)
assert len(table) == 31
assert np.allclose(table["realised delta"], table["delta"], rtol=1e-6)
table

# %% [markdown]
# All 31 rows hold as printed, and the noise uses its delta exactly. Note that L1* divides a mean absolute error by a
# standard deviation. The ratio of the two mean absolute errors is 1/0.798 times as large: 0.32 in the first row, not
# 0.25.
#
# ### Over all budgets

# %%
eps_grid = np.geomspace(0.02, 10, 28)
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
worst = 0.0
for delta, color in ((1e-2, "tab:red"), (1e-4, "tab:orange"), (1e-6, "tab:green"), (1e-9, "tab:blue")):
    pairs = [
        (dpk.truncated_laplace(epsilon=e, delta=delta).noise, calibrate.gaussian(epsilon=e, delta=delta).noise)
        for e in eps_grid
    ]
    absolute = np.array([t.absolute_moment / g.absolute_moment for t, g in pairs])
    square = np.array([t.variance / g.variance for t, g in pairs])
    worst = max(worst, absolute.max(), square.max())
    panels[0].plot(eps_grid, absolute, color=color, label=f"delta {delta:g}")
    panels[1].plot(eps_grid, square, color=color, label=f"delta {delta:g}")
panels[0].set(title="E|X|", ylabel="truncated Laplace / Gaussian")
panels[1].set(title="E[X^2]")
for axis in panels:
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set(xscale="log", xlabel="eps", ylim=(0, 1.3))
    axis.set_xticks([0.02, 0.1, 0.5, 2, 10], ["0.02", "0.1", "0.5", "2", "10"])
    axis.minorticks_off()
    axis.legend(ncols=2, loc="upper right")
figure.suptitle("Cost of truncated Laplace noise, relative to the analytic Gaussian at the same (eps, delta)")
plt.show()
print(f"largest ratio on the grid: {worst:.3f}")
print(f"eps towards 0: {np.sqrt(2 * np.pi) / 4 / np.sqrt(2 / np.pi):.3f} in E|X|, {2 * np.pi / 12:.3f} in E[X^2]")

# %% [markdown]
# *Figure 2. Cost ratios (no unit) over eps; below 1 the truncated Laplace has the smaller error.*
#
# The first claim of the source, less error than the analytic Gaussian, holds for one report on the whole grid. The
# largest ratio is 0.889, at delta = 0.01. If eps is far below delta, the noise is nearly uniform on +-D/(2 delta), and
# the ratios tend to 0.785 and 0.524. The source does not mention two disadvantages. With many reports, composition
# favours the Gaussian (notebook 4). And with probability delta, truncated noise reveals with certainty which neighbour
# is the true one.
#
# ### The asymmetric case
#
# B may be below the symmetric bound B*, down to B_min; |A| then increases. The interval from B_min to B* has a length
# of about delta D/(eps (e^eps - 1)), and the noise is biased. Above B* the noise is the mirror image with |A| < |B|,
# which the source does not write out: A approaches -B_min. The table has a large delta of 0.05:

# %%
eps, delta = 1.0, 0.05
highest = np.log1p(np.expm1(eps) / (2 * delta)) / eps
lowest = np.log((np.expm1(eps) + delta) / (2 * delta)) / eps
asymmetric = []
below = [lowest + share * (highest - lowest) for share in (0.02, 0.25, 0.75, 1.0)]
for B in (*below, 1.05 * highest, 1.5 * highest):
    mechanism = dpk.truncated_laplace(epsilon=eps, delta=delta, upper=B)
    noise, spent = mechanism.noise, accountants.delta(mechanism, eps)
    assert np.isclose(spent, delta, rtol=1e-7)
    asymmetric.append([noise.low, noise.high, noise.mean, noise.absolute_moment, noise.variance + noise.mean**2, spent])
print(f"B from {lowest:.4f}, symmetric at {highest:.4f}, at eps {eps:g}, delta {delta:g};", end=" ")
print(f"B* - B_min is {2.5e-6 / (0.7 * np.expm1(0.7)):.1e} at (0.7, 2.5e-6)")
asymmetric = pd.DataFrame(asymmetric, columns=["A", "B", "bias", "E|X|", "E[X^2]", "delta"])
costs, symmetric = asymmetric[["E|X|", "E[X^2]"]], asymmetric.loc[3, ["E|X|", "E[X^2]"]]
assert (costs.drop(3) > symmetric).to_numpy().all()
asymmetric

# %% [markdown]
# Every asymmetric choice costs more in E|X| and in E[X^2] than the symmetric one in the fourth row. At a small delta,
# the interval of possible B is too short to matter.
#
# ## Second table: merged Laplace
#
# The log density of merged Laplace noise is continuous, and decreases at the rates r1 up to c1, r2 up to c2, and r3
# beyond. Its epsilon for a shift D is the largest integral of the rate over an interval of length D, which
# `accountants.epsilon` computes. In the authors' code for three segments, the third piece has the factor e^(-c2 r3),
# but continuity requires e^(+c2 r3). The column *as published* integrates the function of this code. It is not a
# density, and it has a step at c2 by the factor e^(2 c2 r3). The table has all 35 rows of appendix table C as printed
# (plain Laplace noise at eps3, one break at c1, two breaks; the library reproduces every printed digit), the mass of
# the erroneous function, and the corrected values for two breaks:

# %%
printed_c = tables()["Mugunthan 2020, appendix table C"]
rows = []
for given, row in zip(printed_c.inputs, printed_c.values, strict=True):
    made = literature.table_c(**given)
    assert np.allclose(made, row, rtol=0, atol=0.005)  # all to the printed digit
    rates = literature.exact_rates((given["eps1"], given["eps2"], given["eps3"]))
    mechanism = dpk.merged_laplace(rates=rates, breaks=(given["c1"], given["c2"]))
    eps = accountants.epsilon(mechanism, 0.0, sensitivity=1.0)
    assert np.isclose(eps, max(rates))
    mass, _, _ = literature.with_the_slip(rates, (given["c1"], given["c2"]))
    line = dict(zip(printed_c.columns, row, strict=True))
    line |= {"1/rates": ", ".join(f"{1 / r:.0f}" for r in rates), "breaks": f"{given['c1']:g}, {given['c2']:g}"}
    line |= {"mass": mass}
    first, second = literature.corrected(**given)
    rows.append(line | {"L1* corrected": first, "L2* corrected": second})
rows = pd.DataFrame(rows).set_index(["1/rates", "breaks"])
assert len(rows) == 35
assert (rows["L1* corrected"] > rows["L1* Laplace"]).all()
assert (rows["L2* corrected"] > rows["L2* Laplace"]).all()
for cost in ("L1*", "L2*"):
    gap = rows[f"{cost} corrected"] / rows[f"{cost} Laplace"] - 1
    print(f"{cost}, two breaks corrected: {gap.min():.1%} to {gap.max():.1%} above plain Laplace noise")
order = [f"{cost} {kind}" for cost in ("L1*", "L2*") for kind in ("Laplace", "one break", "two breaks", "corrected")]
shown = rows[["mass", *order]]
shown.columns = pd.MultiIndex.from_tuples([("", "mass"), *(tuple(name.split(" ", 1)) for name in order)])
shown

# %% [markdown]
# The corrected costs are above those of plain Laplace noise in all 35 rows, by 1 to 30 % in E|X| and 1 to 46 % in
# E[X^2]. All segments are at least as long as D, so the budget depends only on the largest rate, and a smaller rate
# elsewhere makes the noise wider. The second claim of the source, that merging reduces the cost, does not hold for
# these rows.
#
# To divide the published function by its mass (0.65 in the first row) would not help: the step at c2 alone has a
# privacy loss of 2 c2 r3 = 2, compared with eps = 1/3.
#
# ## Where merging helps
#
# Merging helps if segments are narrower than D. Let the log density decrease at the rate eps/g up to g, be flat up to
# D, and then decrease at the rate eps/D. The integral of the rate over any interval of length D is then at most eps.

# %%
eps_grid = np.array([0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10])
widths = np.geomspace(0.005, 0.99, 80)


def merged_family(eps):
    return [dpk.MergedLaplace((eps / g, 0.0, eps), (g, 1.0)) for g in widths]


comparison = []
for eps in eps_grid:
    family = merged_family(eps)
    best = min(family, key=lambda noise: noise.absolute_moment)
    best_square = min(family, key=lambda noise: noise.variance)
    budget = accountants.epsilon(dpk.Additive(best), 0.0, sensitivity=1.0)
    assert abs(budget - eps) < 1e-9
    stairs = dpk.staircase(epsilon=eps).noise
    stairs_square = min((dpk.Staircase(eps, 1.0, g) for g in widths), key=lambda noise: noise.variance)
    comparison.append(
        {
            "eps": eps,
            "g": best.breaks[0],
            "merged E|X|": best.absolute_moment * eps,
            "staircase E|X|": stairs.absolute_moment * eps,
            "merged E[X^2]": best_square.variance * eps**2 / 2,
            "staircase E[X^2]": stairs_square.variance * eps**2 / 2,
        }
    )
comparison = pd.DataFrame(comparison).set_index("eps")
assert abs(comparison.loc[5.0, "merged E|X|"] - 0.616) < 0.001
comparison.round(3)

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for axis, cost in zip(panels, ("E|X|", "E[X^2]"), strict=True):
    axis.plot(comparison[f"merged {cost}"], "o-", color="tab:green", label="merged, best g")
    axis.plot(comparison[f"staircase {cost}"], "s-", color="tab:red", label="staircase, best gamma")
    axis.axhline(1, color="black", linewidth=0.8, label="Laplace")
    axis.set(title=cost, xlabel="eps (pure)", ylim=(0, 1.1))
    axis.legend()
panels[0].set_ylabel("cost / Laplace's")
figure.suptitle("Pure eps-DP noise for D = 1, relative to Laplace noise")
plt.show()

# %% [markdown]
# *Figure 3. Costs (no unit) over eps; in each panel g and gamma are the best for that cost.*
#
# At eps = 5, merging reduces E|X| to 0.616 times that of Laplace noise, and the staircase to 0.413 times. Below eps =
# 2, merging does not help. The staircase is the better one at every eps, as it must be: it is optimal among pure
# additive noise (Geng and Viswanath 2014).
#
# ## Released
#
# Releases are sampled from integer tables. The example certifies the truncated Laplace noise of the first row, and the
# merged noise of figure 1 with a delta of 1e-12, because its table is finite:

# %%
merged = dpk.Additive(merged).claim(sensitivity=1.0, epsilon=5.0, delta=1e-12)
for mechanism in (dpk.truncated_laplace(epsilon=0.7, delta=2.5e-6), merged):
    print(dpk.exact_sampler(mechanism).certificate, end="\n\n")
reports = dpk.perturb(np.zeros(1_000_000), merged)
print(f"merged Laplace, E|X|: {abs(reports).mean():.4f} in a million draws, {merged.noise.absolute_moment:.4f} exact")
