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
# # Shuffled reports: the privacy of many local reports together
#
# This notebook computes how much privacy a local report gains when it is mixed with the reports of others. Each of n
# people sends one report of the same local mechanism. A trusted shuffler hides who sent which report. Throughout,
# neighbours differ in one person's input, which is replaced by any other. n counts honest reports. This notebook reads
# no data and draws no samples.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dpkernels as dpk
from accountants import calibrate, shuffled
from accountants.published import shuffle as published
from accountants.shuffle.blanket import worst_inputs

pd.options.display.float_format = "{:.4g}".format
mechanism = dpk.exact_sampler(dpk.piecewise(epsilon=4.0, lower=0.0, upper=1.0))

# %% [markdown]
# ## From the blanket to the integral
#
# With R_x the distribution of the reports of x, let gamma omega(y) = min_x R_x(y). Every report is a draw of omega with
# probability gamma, whatever its input. These draws form the *blanket*, which hides the report of a person (Balle et
# al. 2019). For an upper bound, assume that all other reports outside the blanket are published. Then M ~ Bin(n, gamma)
# draws remain, and with L(y) = (R_x(y) - e^eps R_x'(y))/omega(y),
#
#     delta(eps) <= E[(L_1 + ... + L_M)_+]/(gamma n).
#
# With omega = R_x0 and gamma = 1 the formula is *exact* if all others hold x0. This is a lower bound of the worst case.
# The mechanism is a table of integers, so L has few values: three here.

# %%
(pair,) = worst_inputs(mechanism).pairs
blanket = pair.upper.merged
columns = {"omega": blanket.mass, "R_x/omega": blanket.p, "R_x'/omega": blanket.q, "L at eps 0.1": blanket.losses(0.1)}
print(f"gamma = {blanket.gamma:.5f}")
pd.DataFrame(columns)

# %% [markdown]
# A sum of independent losses has the transform of one to the power n, and x_+ is a transform of 1/s^2:
#
#     E[S_+] = (1/pi) Re integral_0^inf exp(K(s))/s^2 du,  K(s) = n ln(1 - gamma + gamma E e^(sL)),  s = c + iu,
#
# where c > 0 minimises K(c) - 2 ln c. One hundred quadrature nodes are enough for any n. Figure 1 shows the integrand
# on the scale of the saddle:

# %%
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
L, u = blanket.losses(0.1), np.linspace(0, 6, 400)
for n in (100, 10_000, 1_000_000):
    c = np.logspace(-4, 1, 4000)
    K = n * np.log1p(blanket.gamma * (np.expm1(c[:, None] * L) @ blanket.mass))
    at = int(np.argmin(K - 2 * np.log(c)))
    width = 1 / math.sqrt(np.gradient(np.gradient(K, c), c)[at] + 2 / c[at] ** 2)
    s = c[at] + 1j * width * u
    value = (
        np.exp(n * np.log1p(blanket.gamma * ((np.exp(s[:, None] * L) - 1) @ blanket.mass)) - K[at]) / (s / c[at]) ** 2
    )
    axes.plot(u, value.real, label=f"n = {n}")
axes.set(xlabel="u in widths of the saddle", ylabel="integrand, relative", title="eps0 = 4, eps = 0.1")
axes.legend()
plt.show()

# %% [markdown]
# *Figure 1. The integrand (no unit, 1 at the saddle) over the imaginary part of s in widths of the saddle, for three
# n.*
#
# **Result:** for many reports the integrand is a single bell, so few nodes suffice.
#
# The sum of few reports with three outcomes is on a lattice. Its integrand does not vanish far from the saddle, so such
# sums are enumerated instead. Both methods are estimates. `bracket` is rigorous: it rounds losses to a grid in two
# ways, which give an upper and a lower bound in convex order. It sums them by FFT and includes the errors of truncation
# and rounding. `epsilon` returns its upper end.

# %%
rows = []
for n in (30, 1000, 100_000, 10**9):
    made = shuffled(mechanism, n)
    low, high = made.bracket(delta=1e-6)
    rows.append([n, low, made.lower(delta=1e-6), made.estimate_epsilon(1e-6), high])
    assert low <= made.lower(delta=1e-6) * (1 + 1e-9)
    assert made.estimate_epsilon(1e-6) <= high * (1 + 1e-6)
    assert made.epsilon(1e-6) == high
pd.DataFrame(rows, columns=["n", "bracket, low", "some inputs", "any inputs", "bracket, high"])

# %% [markdown]
# ## Comparison with published bounds
#
# Published bounds use only eps0, or Hoeffding's and Bennett's inequalities for the same losses. The table has our eps
# at delta 1e-6, and the eps of each published bound divided by ours.

# %%
DELTA = 1e-6


def epsilons(mechanism, n):
    """Return eps by this package and by the published bounds."""
    made = shuffled(mechanism, n)
    level = float(made.inputs.pure_epsilon)
    bounds = {
        "clones (Feldman et al. 2021)": lambda e: published.published_clones(level, n, e),
        "ratio (Wang et al. 2024)": lambda e: published.published_variation_ratio(level, n, e, math.tanh(level / 2)),
        "Hoeffding (Balle et al. 2019)": lambda e: published.published_blanket(mechanism, n, e, "hoeffding"),
        "Bennett (Balle et al. 2019)": lambda e: published.published_blanket(mechanism, n, e, "bennett"),
    }
    closed = min(published.published_closed_form(level, n, DELTA), level)
    found = {name: published.epsilon_of(bound, DELTA, level) for name, bound in bounds.items()}
    return {"ours": made.epsilon(DELTA), "closed form (Feldman et al. 2021)": closed, **found}


rows = {}
for level in (1.0, 2.0, 4.0):
    for name, make in (("piecewise", dpk.piecewise), ("hybrid", dpk.hybrid), ("duchi", dpk.duchi)):
        found = epsilons(dpk.exact_sampler(make(epsilon=level, lower=0.0, upper=1.0)), 100_000)
        rows[f"{name}, eps0 {level:g}"] = {
            "ours": found["ours"],
            **{k: v / found["ours"] for k, v in found.items() if k != "ours"},
        }
        assert min(found.values()) >= found["ours"] * (1 - 1e-5)  # An upper end, and the ratio is exact for two points.
pd.DataFrame(rows).T

# %%
figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
counts = np.unique(np.logspace(2.5, 9, 14).astype(int))
found = [epsilons(mechanism, int(n)) for n in counts]
for name in found[0]:
    axes.loglog(counts, [one[name] for one in found], label=name, linewidth=2.5 if name == "ours" else 1.2)
axes.set(xlabel="n, honest reports", ylabel="eps at delta 1e-6", title="piecewise, eps0 = 4")
axes.grid(alpha=0.3, which="both")
axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# *Figure 2. eps of the shuffled reports (nats) at delta 1e-6 over the number of honest reports, both logarithmic;
# lower is better.*
#
# **Result:** the value from the mechanism itself is below every published bound at every n.
#
# ## The cost of local reports
#
# The table compares two ways to release the mean of n values in [0, 1] at a central (0.2, 1e-6): shuffled reports, each
# with the largest eps0 that the budget allows, and noise from a curator who is trusted with the values.

# %%
rows = []
for n in (1000, 10_000, 100_000, 1_000_000):
    made = calibrate.shuffled(dpk.piecewise, epsilon=0.2, delta=1e-6, n=n, lower=0.0, upper=1.0)
    trusted = calibrate.gaussian(epsilon=0.2, delta=1e-6, sensitivity=1 / n)
    rows.append([n, made.epsilon, math.sqrt(made.worst_variance / n), math.sqrt(trusted.noise.variance)])
pd.DataFrame(rows, columns=["n", "eps0 of a report", "deviation, shuffled", "deviation, central Gaussian"])

# %% [markdown]
# ## Rounds
#
# The privacy profile is convex in e^eps, so straight lines between its points are the profile of a dominating pair.
# Such pairs compose. Every round is shuffled separately, and its mechanism may depend on the results of earlier rounds.

# %%
made = shuffled(mechanism, 100_000)
rounds = (1, 4, 16, 64)
pd.DataFrame({"rounds": rounds, "eps": [made.repeat(count).epsilon(1e-6) for count in rounds]})

# %% [markdown]
# ## Limits
#
# - The shuffler is trusted. Without it a report has the guarantee of its mechanism, eps0-DP, here eps0 = 4. The
#   shuffler must also hide metadata, such as the time of a report.
# - n counts *honest* reports. The reports of people who collude with the curator hide nobody. The guarantee of the
#   other people is then that of their number.
# - One person sends one report. Several reports compose like rounds, if each is shuffled among n others.

# %%
shares = np.array([0.0, 0.1, 0.5, 0.9, 0.99])
honest = np.round(100_000 * (1 - shares)).astype(int)
eps = [shuffled(mechanism, int(n)).epsilon(1e-6) for n in honest]
pd.DataFrame({"colluding": shares, "honest n": honest, "eps at 1e-6": eps})
