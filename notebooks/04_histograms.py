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
# # Top words of a text: histograms, known and unknown domain
# This notebook releases the most frequent words of a text and their counts, without revealing the contribution of any
# single author. The text is the help that every CPython contains as `pydoc_data.topics`. One *person* is one topic
# entry, and the data of a person are the words in it. The histogram has, for each word, the number of topics that
# contain it.
#
# Unless stated otherwise, neighbouring texts differ by one topic, added or removed. This changes every count by 0 or 1,
# all in the same direction. So each count has sensitivity 1, and the exponential mechanism has bounded range, which
# costs half as much as if counts could change in both directions. The guarantees for a known domain do not cover the
# replacement of a topic, or a person who wrote several topics.
#
# Figure 6 of Cesar and Rogers (2021) compares Gaussian noise, with counts in the discovered order, and Laplace noise at
# the same total budget, on the words of Macbeth. No installed package contains this text, and the values are not
# printed. Figures 1 and 2 below make the same comparison on the topics.
#
# Words and numbers below depend on the Python version.

# %%
import builtins
import keyword
import re
import sys
from bisect import bisect_left
from collections import Counter
from functools import cache
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import accountants
import dpkernels as dpk
from accountants.calibrate import gaussian_crossing, histogram_noise
from accountants.histograms import (
    known_domain_guarantee,
    known_domain_top_k,
    unknown_domain_guarantee,
    unknown_domain_top_k,
)

sys.path.append("..")  # for benchmarks, which is not installed

from benchmarks import literature_composition as composition

pd.options.display.float_format = "{:.3g}".format
DELTA, K = 1e-5, 10
entries = list(topics.values())
paragraphs = [part for entry in entries for part in re.split(r"\n\s*\n", entry) if re.search(r"\w", part)]
print(f"Python {sys.version_info.major}.{sys.version_info.minor}: {len(entries)} topics, {len(paragraphs)} paragraphs")

# %% [markdown]
# ## Known domain
#
# The domain must be fixed without looking at the data. This example uses the keywords and public builtins of Python,
# which the interpreter lists. Every name in the domain has a count, which may be 0.

# %%
domain = sorted({name for name in keyword.kwlist + dir(builtins) if not name.startswith("_")})


def histogram(units):
    words = [set(re.findall(r"\w+", unit)) for unit in units]
    return np.array([sum(name in found for found in words) for name in domain])


counts = histogram(entries)
order = np.argsort(-counts, kind="stable")
print(f"{len(domain)} names; the largest counts: {counts[order[:15]].tolist()}")

# %% [markdown]
# `known_domain_top_k` picks K = 10 names by the exponential mechanism, adds noise to their counts, and returns the most
# likely counts in the order found (isotonic regression: never increasing, never negative). The release is to be (2,
# 1e-5)-DP, for picks and counts together. Each pick has eps = 0.25, and the counts get the smallest noise that the
# remaining budget allows.

# %%
PICK, TOTAL = 0.25, 2.0


def noise_for(total, pick):
    """The least sigma, and the least scale, on a grid of 1 % steps, with which everything is (total, 1e-5)-DP."""
    grid = np.geomspace(1, 300, 573)
    sigma = grid[known_domain_guarantee(K, pick, DELTA, sigma=grid).epsilon <= total].min()
    scale = grid[known_domain_guarantee(K, pick, DELTA, scale=grid, leak=1e-15).epsilon <= total].min()
    gaussian = dpk.gaussian(sigma=sigma, sensitivity=1.0)
    # A release verifies a claim for each count on the integers that it samples.
    gaussian = gaussian.claim(sensitivity=1.0, epsilon=accountants.epsilon(gaussian, 1e-6), delta=1.01e-6)
    return {"Gaussian": gaussian, "Laplace": dpk.laplace(epsilon=float(1 / scale))}


noises = noise_for(TOTAL, PICK)
releases = {}
for kind, noise in noises.items():
    release = known_domain_top_k(counts, K, noise=noise, discovery_epsilon=PICK, delta=DELTA)
    releases[kind] = release
    print(f"{kind}: {'; '.join(release.guarantee.parts)}")
    bounds = ", ".join(f"{name} {float(value):.3f}" for name, value in release.guarantee.bounds.items())
    print(f"  at delta {DELTA:g}: eps = {release.guarantee.epsilon:.3f}, the least of {bounds}\n")
pd.DataFrame(
    {
        f"{kind} {column}": values
        for kind, release in releases.items()
        for column, values in (
            ("finds", [domain[item] for item in release.items]),
            ("noisy", release.noisy),
            ("released", release.counts),
            ("true", counts[release.items]),
        )
    }
)

# %% [markdown]
# `setwise` and `concentrated` are bounds for counts that are released after the picks; `added` is the sum of pure
# budgets. Two releases from the same topics cost two budgets; this notebook makes both because the data are public.

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for axis, (kind, release) in zip(panels, releases.items(), strict=True):
    place = np.arange(K)
    axis.bar(place, counts[release.items], color="tab:blue", alpha=0.35, label="true")
    axis.plot(place, release.noisy, "x", color="tab:gray", label="noisy")
    axis.plot(place, release.counts, "o-", color="tab:orange", label="released (isotonic)")
    axis.set_xticks(place, [domain[item] for item in release.items], rotation=45, ha="right")
    axis.set(title=f"{kind} noise", xlabel="name, in the order found")
    axis.axhline(0, color="black", linewidth=0.8)
    axis.legend()
panels[0].set_ylabel("topics with this name")
figure.suptitle(f"Top {K} of {len(domain)} names at eps = 2, delta = 1e-5, {len(entries)} topics")
plt.show()

# %% [markdown]
# *Figure 1. One release with each kind of noise. Bars: the true counts of the names found. Crosses: with noise. Line:
# the released counts, projected to the order found.*
#
# **Result:** the isotonic step removes the noise that contradicts the order found. Released counts never increase.
#
# ## How accurate, at which budget
#
# Figure 2 uses 100 simulated releases for each budget (float kernels, `exact=False`). A name is correct if its true
# count is at least the tenth largest. The privacy unit matters. If a person is one *paragraph*, there are over 30 times
# more people, and the correct names are found at every eps. But then only a paragraph is protected, and a topic has
# many of them.

# %%
units = {"topic": counts, "paragraph": histogram(paragraphs)}
REPETITIONS = 100


def accuracy(values, noise, pick):
    least = np.sort(values)[-K]
    right, error, raw = [], [], []
    for seed in range(REPETITIONS):
        key = dpk.simulation_key(seed)
        release = known_domain_top_k(values, K, noise=noise, discovery_epsilon=pick, delta=DELTA, key=key, exact=False)
        true = values[release.items]
        right.append(np.mean(true >= least))
        error.append(np.mean(abs(release.counts - true)))
        raw.append(np.mean(abs(release.noisy - true)))
    return np.mean(right), np.mean(error), np.mean(raw)


results = []
for total, pick in ((0.25, 0.034), (0.5, 0.066), (1.0, 0.13), (2.0, 0.25), (4.0, 0.46)):
    for kind, noise in noise_for(total, pick).items():
        for unit, values in units.items():
            right, error, raw = accuracy(values, noise, pick)
            results.append([total, kind, unit, right, error, raw])
columns = ["eps", "noise", "one person", "share found", "count error", "before isotonic"]
results = pd.DataFrame(results, columns=columns)
by_noise = results.pivot(index=["eps", "one person"], columns="noise", values="count error")
assert (by_noise["Gaussian"] < by_noise["Laplace"]).all()
results.pivot(index=["eps", "noise"], columns="one person", values=columns[3:])

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
looks = {
    ("topic", "Gaussian"): ("o-", "tab:orange"),
    ("topic", "Laplace"): ("s--", "tab:orange"),
    ("paragraph", "Gaussian"): ("o-", "tab:blue"),
    ("paragraph", "Laplace"): ("s--", "tab:blue"),
}
for (unit, kind), (style, color) in looks.items():
    part = results[(results["one person"] == unit) & (results["noise"] == kind)]
    if kind == "Gaussian":
        panels[0].plot(part["eps"], part["share found"], style, color=color, label=f"one person = one {unit}")
    panels[1].plot(part["eps"], part["count error"], style, color=color, label=f"{unit}, {kind}")
panels[0].set(title="True top 10 found", ylabel="share of the names released", ylim=(0, 1.05))
panels[1].set(title="Released counts", ylabel="mean |error| (topics or paragraphs)", yscale="log")
panels[1].set_yticks([4, 10, 20, 50], ["4", "10", "20", "50"])
for axis in panels:
    axis.set(xlabel="eps of the whole release, at delta = 1e-5", xscale="log")
    axis.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axis.minorticks_off()
    axis.legend()
plt.show()

# %% [markdown]
# *Figure 2. Means over 100 simulated releases. Left: share (no unit) of correct names among the ten. Right: error of
# their counts, after isotonic regression.*
#
# **Result:** Gaussian counts have the smaller error at every budget. With a paragraph as the privacy unit, the correct
# names are found at every budget; with a topic, only at the larger budgets.
#
# ## Unknown domain
# In this section, the set of words that occur is private, too. Truncated Gaussian noise on [-T, T] is added to every
# positive count, and only noisy counts above 1 + T are released. A word of a single topic has the count 1 and can never
# appear.
#
# Each topic keeps at most D0 words: its own most frequent words, with ties in alphabetical order. The selection depends
# on this topic only, so no topic affects the words of another. Neighbouring texts differ by one topic, added or
# removed, which changes at most D0 counts by 1 each. (To replace a topic could change 2 D0 counts.)


# %%
def kept_words(unit, most):
    own = Counter(re.findall(r"[a-z]+", unit.lower()))
    return [word for word, _ in sorted(own.items(), key=lambda item: (-item[1], item[0]))[:most]]


def bounded_histogram(units, most):
    return Counter(word for unit in units for word in kept_words(unit, most))


@cache
def unknown_noise(total, most):
    """Arguments for (total, 1e-5)-DP: a tenth of delta truncates, sigma is the least on a grid of 1 % steps."""
    truncation_delta, grid = DELTA / 10 / most, np.geomspace(1, 300, 573)

    def minus_spent(sigma):
        return -unknown_domain_guarantee(most, 1.0, sigma, truncation_delta, DELTA).epsilon

    sigma = float(grid[bisect_left(grid, -total, key=minus_spent)])
    return {"sigma": sigma, "truncation_delta": truncation_delta, "l0_sensitivity": most, "delta": DELTA}


D0 = 10
bounded = bounded_histogram(entries, D0)
release = unknown_domain_top_k(bounded, K, **unknown_noise(TOTAL, D0))
print("; ".join(release.guarantee.parts))
print(f"at delta {DELTA:g}: eps = {release.guarantee.epsilon:.3f}, the least of", end=" ")
print(", ".join(f"{name} {value:.3f}" for name, value in release.guarantee.bounds.items()))
print(f"threshold {release.threshold:.2f}; {len(bounded)} words occur, {len(release.items)} are released")
everywhere = bounded_histogram(entries, 10**9)
pd.DataFrame(
    {
        "released": release.counts,
        "true, kept words": [bounded[word] for word in release.items],
        "true, all words": [everywhere[word] for word in release.items],
    },
    index=pd.Index(release.items, name="word"),
)

# %% [markdown]
# Before selection, the first column is an unbiased estimate of the second. The second column is below the third,
# because each topic keeps only D0 words. A larger D0 reduces this bias, but needs more noise and a higher threshold.
# The best D0 depends on the data:

# %%
sweep = []
for unit, parts in (("topic", entries), ("paragraph", paragraphs)):
    full = bounded_histogram(parts, 10**9)
    tenth = sorted(full.values())[-K]
    for most in (2, 5, 10, 20, 40):
        kept, noise = bounded_histogram(parts, most), unknown_noise(TOTAL, most)
        runs = [unknown_domain_top_k(kept, **noise, key=dpk.simulation_key(seed), exact=False) for seed in range(15)]
        sweep.append(
            {
                "one person": unit,
                "D0": most,
                "sigma": noise["sigma"],
                "threshold": runs[0].threshold,
                "words released": np.mean([len(run.items) for run in runs]),
                "of the top 10": np.mean([sum(full[word] >= tenth for word in run.items[:K]) for run in runs]) / K,
                "lost to D0": np.mean([full[word] - kept[word] for run in runs for word in run.items[:K]]),
                "noise": np.mean(
                    [abs(y - kept[w]) for run in runs for w, y in zip(run.items[:K], run.counts[:K], strict=True)]
                ),
            }
        )
sweep = pd.DataFrame(sweep)
sweep

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for (unit, part), color in zip(sweep.groupby("one person", sort=False), ("tab:orange", "tab:blue"), strict=True):
    panels[0].plot(part["D0"], part["of the top 10"], "o-", color=color, label=f"one person = one {unit}")
    panels[1].plot(part["D0"], part["words released"], "o-", color=color, label=f"one person = one {unit}")
panels[0].set(title="True top 10 found", ylabel="share of the ten words", ylim=(0, 1.05))
panels[1].set(title="Released at all", ylabel="words above the threshold", yscale="log")
panels[1].set_yticks([2, 5, 10, 50, 100], ["2", "5", "10", "50", "100"])
for axis in panels:
    axis.set(xlabel="D0, words kept of a person", xscale="log")
    axis.set_xticks([2, 5, 10, 20, 40], ["2", "5", "10", "20", "40"])
    axis.minorticks_off()
    axis.legend(loc="center")
figure.suptitle("Unknown domain at eps = 2, delta = 1e-5")
plt.show()

# %% [markdown]
# *Figure 3. Means over 15 simulated releases. Left: share (no unit) of the ten most frequent words, all words counted,
# among the first ten released. Right: number of words released. In the table, "lost to D0" and "noise" are mean errors
# of the first ten counts released, in topics or paragraphs.*
#
# ## Gaussian or Laplace
#
# Which noise has the lower variance at the same budget? Neighbouring histograms differ in at most D0 counts, by at most
# 1 each. Gaussian noise has the l2 sensitivity sqrt(D0). With Laplace noise, each count is (1/b)-DP, and D0 counts
# compose (Cesar and Rogers 2021, Lemmas 6.1 to 6.3; this notebook uses the exact Gaussian and the optimal composition
# of pure DP).

# %%
D0s = np.unique(np.geomspace(1, 100, 22).round().astype(int))
figure, axis = plt.subplots(figsize=(7, 4.3), layout="constrained")
for delta, color in ((1e-3, "tab:red"), (1e-5, "tab:orange"), (1e-9, "tab:blue")):
    needed = [histogram_noise(int(most), 1.0, 1.0, delta) for most in D0s]
    axis.loglog(D0s, [noise.laplace_variance for noise in needed], "--", color=color, label=f"Laplace, {delta:g}")
    axis.loglog(D0s, [noise.gaussian_variance for noise in needed], "-", color=color, label=f"Gaussian, {delta:g}")
    crossing = gaussian_crossing(1.0, delta)
    at = histogram_noise(crossing, 1.0, 1.0, delta).gaussian_variance
    axis.plot(crossing, at, "o", color="black", markersize=5)
axis.set(xlabel="D0, counts that one person can change", ylabel="variance of a count's noise (counts squared)")
axis.set_title("Noise for a histogram at eps = 1, by delta")
axis.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
axis.minorticks_off()
axis.legend(fontsize="small")
plt.show()
budgets = (0.25, 0.5, 1.0, 2.0, 4.0)
crossings = {f"delta {delta:g}": [gaussian_crossing(eps, delta) for eps in budgets] for delta in (1e-3, 1e-5, 1e-9)}
pd.DataFrame(crossings, index=pd.Index(budgets, name="eps"))

# %% [markdown]
# *Figure 4. Variance against D0, both logarithmic. Dots: the first D0 at which Gaussian noise has the lower variance.
# Table: that D0 for other budgets.*
#
# For one count use Laplace noise, and from the D0 of the table on Gaussian noise. (On the left, the dashed lines are
# for budgets that add up. The composition bound uses only that Laplace noise is pure, so the true crossing may be at a
# slightly larger D0.) With ten counts at delta = 1e-5, as above, Gaussian noise has the lower error at every budget of
# figure 2.
#
# ## How not to compose Gaussian noise: figure 5
#
# Figure 5 of the source has histograms with D0 from 20 to 100. It compares four accounts. *One-shot*: each Gaussian
# count is (eps0, delta0)-DP by the analytic Gaussian (Lemma 6.1), the eps0 of D0 counts compose like pure guarantees,
# and the delta0 are added. The others are zCDP (Lemma 6.3), the exact Gaussian (l2 sensitivity sqrt(D0)), and Laplace
# noise with the same variance, 200 (Lemma 6.2):

# %%
five = pd.DataFrame(list(composition.figure_five(range(20, 101, 10), delta=1e-6))).set_index("D0")
figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
for name, style in zip(five, ("s:", "--", "o-", "^-"), strict=True):
    color = "tab:blue" if name.startswith("Laplace") else "tab:orange"
    axis.semilogy(five.index, five[name], style, color=color, markersize=4, label=name)
axis.set(xlabel="D0, counts that one person can change", ylabel="eps of the histogram")
axis.set_title("Noise of variance 200 on every count, delta = 1e-6")
axis.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
axis.minorticks_off()
axis.legend(fontsize="small")
plt.show()
assert (five["Gaussian, one-shot (eps, delta)"] > 3 * five["Laplace, as pure DP"]).all()
assert (five["Gaussian, zCDP"] < five["Laplace, as pure DP"]).all()
assert (five["Gaussian, exact"] < five["Gaussian, zCDP"]).all()
five

# %% [markdown]
# *Figure 5. eps (nats, logarithmic) of a histogram over D0. Orange: the same Gaussian noise by three accounts; blue:
# Laplace noise.*
#
# **Holds:** if each count is treated as an (eps, delta) guarantee, Gaussian noise appears 3.6 to 4.5 times as costly as
# Laplace noise. If its privacy loss is composed, the same Gaussian noise is better: zCDP is within 8 % of the exact
# eps.
#
# ## What is covered
#
# The guarantees above are for the distributions of noise, and for a selection that is sampled exactly. The noise of the
# counts is sampled from integer tables. For Laplace noise, the charge is the guarantee that is verified for the
# integers. For Gaussian noise, truncated or not, the difference between the table and the distribution is not charged.
# Timing is not covered. Each release costs a separate budget.
