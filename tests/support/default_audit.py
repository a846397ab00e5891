"""An audit of the numbers that users get: never below an independent lower bound, never outside the bracket.

Every seed is one random guarantee, an epsilon and a delta. Seeds are independent, so that any range can be run alone,

    python tests/support/default_audit.py 0 5000

which prints every failure, and how many guarantees of each kind there were. The lower bounds share no formula with the
accountants: closed forms and profiles of one release in 50 digits (``oracle``), enumeration of tables by mpmath, nested
quadrature of two sampled releases, and for everything else the binomial test of an event: of n releases, at least k are
in a set that one release hits with probability p, or else q.
"""

from __future__ import annotations

import itertools
import math
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
from oracle import exact_profile
from random_mechanisms import FAMILIES, NOISE, between, somewhere
from scipy.stats import binom

import dpkernels as dpk
from accountants import Guarantee, discrete_pair, guarantee, shuffled

# Floats of nested quadrature and of binomial tails lose some digits; 50-digit numbers do not.
_FLOATS, _DIGITS = 1e-8, 0.0
_FARTHEST = 600.0  # Of what one event distinguishes: e^eps is a float.


class Case(NamedTuple):
    """A guarantee, with a function from eps to a lower bound of delta, and the relative error of that function."""

    guarantee: Any
    lower: Callable[[float], Any]
    error: float
    is_exact: bool = False  # Whether the lower bound is the value itself.


def gaussians(random: np.random.Generator) -> Case:
    """Gaussian noise alone, of one to three scales: delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    terms = []
    for _ in range(int(random.integers(1, 4))):
        count = int(between(random, 1.0, 1e9))
        terms.append((between(random, 0.03, 30.0) * math.sqrt(count), count))
    guarantees = [guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0).repeat(count) for sigma, count in terms]

    def lower(epsilon: float) -> Any:
        mu = mp.sqrt(sum(count / mp.mpf(sigma) ** 2 for sigma, count in terms))
        eps = mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)

    return Case(guarantees[0].compose(*guarantees[1:]), lower, _DIGITS, True)


def _family(random: np.random.Generator) -> tuple[str, Any, Any]:
    name = str(random.choice(sorted(FAMILIES)))
    location, unit = somewhere(random)
    return name, FAMILIES[name](random)(location, unit), unit if name in NOISE else None


def one_release(random: np.random.Generator) -> Case:
    """One release of any mechanism, on all the data or on a sample: r H(eps') with e^eps' = 1 + (e^eps - 1)/r."""
    _, mechanism, sensitivity = _family(random)
    rate = between(random, 1e-9, 1.0) if random.random() < 0.5 else None

    def lower(epsilon: float) -> Any:
        if rate is None:
            return exact_profile(mechanism, epsilon, sensitivity)
        inner = mp.log1p(mp.expm1(mp.mpf(epsilon)) / rate)
        return rate * exact_profile(mechanism, inner, sensitivity)

    single = guarantee(mechanism, sensitivity)
    return Case(single if rate is None else single.subsample(rate), lower, 1e-14, rate is None)


def _event(mechanism: Any, sensitivity: Any, epsilon: float) -> tuple[float, float]:
    """Return P(A) and Q(A) of the event that attains the profile at eps: its tangent in e^eps."""
    x, step = mp.exp(mp.mpf(epsilon)), mp.mpf(10) ** -20
    low, middle, high = (
        exact_profile(mechanism, mp.log(points), sensitivity) for points in (x, x + step, x + 2 * step)
    )
    q = max((low - high) / (2 * step), mp.mpf(0))
    return float(min(middle + q * (x + step), 1)), float(min(q, 1))


def _binomial(count: int, p: float, q: float, epsilon: float) -> float:
    """Return the largest P(B >= k) - e^eps Q(B >= k) of binomial counts over k next to the optimal one."""
    if not 0 < q < p < 1 or epsilon > _FARTHEST:
        return 0.0
    gap = math.log(p / q) + math.log1p(-q) - math.log1p(-p)
    best = (epsilon + count * (math.log1p(-q) - math.log1p(-p))) / gap
    k = np.unique(np.clip(np.floor(best) + np.arange(-3, 4), 0, count))
    first, second = binom.sf(k - 1, count, p), math.exp(epsilon) * binom.sf(k - 1, count, q)
    # Where both cancel, or are so small that they have few digits, nothing is claimed.
    clear = (first - second > 1e-3 * first) & (first > 1e-290) & (second > 1e-290)
    return float(np.max(np.where(clear, first - second, 0.0)))


def composed(random: np.random.Generator) -> Case:
    """Many releases of one or two mechanisms, on samples or not, by events."""
    terms: list[tuple[int, list[tuple[float, float]]]] = []
    total: Guarantee | None = None
    for _ in range(int(random.integers(1, 3))):
        _, mechanism, sensitivity = _family(random)
        count, rate = int(between(random, 2.0, 1e9)), between(random, 1e-9, 1.0) if random.random() < 0.6 else None
        composed_guarantee = guarantee(mechanism, sensitivity)
        composed_guarantee = (composed_guarantee if rate is None else composed_guarantee.subsample(rate)).repeat(count)
        total = composed_guarantee if total is None else total.compose(composed_guarantee)
        r = 1.0 if rate is None else rate
        events = [_event(mechanism, sensitivity, eps) for eps in (0.0, between(random, 1e-3, 3.0))]
        terms.append((count, [(r * p + (1 - r) * q, q) for p, q in events]))

    def lower(epsilon: float) -> float:
        return max(_binomial(count, p, q, epsilon) for count, events in terms for p, q in events)

    return Case(total, lower, _FLOATS)


def tables(random: np.random.Generator) -> Case:
    """Some releases of one table of two to four outcomes, by enumeration in 50 digits."""
    outcomes = int(random.integers(2, 5))
    count = int(random.integers(1, {2: 200, 3: 40, 4: 14}[outcomes]))
    p, q = (random.dirichlet(np.full(outcomes, float(between(random, 0.2, 5.0)))) for _ in range(2))
    rate = float(between(random, 1e-6, 1.0)) if random.random() < 0.4 else None
    with mp.workdps(50):
        exact_q = [mp.mpf(float(mass)) for mass in q]
        exact_p = [mp.mpf(float(mass)) for mass in p]
        r = mp.mpf(1 if rate is None else rate)
        exact_p = [r * a + (1 - r) * b for a, b in zip(exact_p, exact_q, strict=True)]
        joint = []
        for times in itertools.product(range(count + 1), repeat=outcomes - 1):
            last = count - sum(times)
            if last >= 0:
                k = (*times, last)
                ways = mp.factorial(count) / mp.fprod(mp.factorial(n) for n in k)
                joint.append(
                    [ways * mp.fprod(m**n for m, n in zip(side, k, strict=True)) for side in (exact_p, exact_q)]
                )

    def lower(epsilon: float) -> Any:
        factor = mp.exp(mp.mpf(epsilon))
        ways = (joint, [pair[::-1] for pair in joint])
        return max(mp.fsum(max(a - factor * b, 0) for a, b in way) for way in ways)

    single = guarantee(discrete_pair(p, q))
    return Case((single if rate is None else single.subsample(rate)).repeat(count), lower, _DIGITS, True)


def two_sampled(random: np.random.Generator) -> Case:
    """Two sampled Gaussian releases: the mean over the first one of the profile of the second one, by quadrature."""
    sigma, rate = between(random, 0.4, 10.0), between(random, 1e-3, 1.0)
    ends = np.linspace(-9 * sigma, 9 * sigma + 1, 400)
    nodes, mass = np.polynomial.legendre.leggauss(20)
    half_widths = np.diff(ends)[:, None] / 2
    y, width = (ends[:-1, None] + half_widths * (nodes + 1)).ravel(), (half_widths * mass).ravel()
    density = np.exp(-((y / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    ratio = (1 - rate) + rate * np.exp((2 * y - 1) / (2 * sigma**2))

    def lower(epsilon: float) -> float:
        """Of both records added: outcomes that are not on the nodes are left out."""
        p, q = width * density * ratio, width * density
        losses = np.log(ratio)
        order = np.argsort(losses)
        p, q, losses = p[order], q[order], losses[order]
        above_p, above_q = (np.append(np.cumsum(side[::-1])[::-1], 0.0) for side in (p, q))
        first = np.searchsorted(losses, epsilon - losses, side="right")
        gain = p * above_p[first] - math.exp(epsilon) * q * above_q[first]
        total = float(np.maximum(gain, 0.0).sum())
        return total if total > 1e-6 else 0.0

    return Case(guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0).subsample(rate).repeat(2), lower, 1e-4)


def shuffled_responses(random: np.random.Generator) -> Case:
    """Shuffled binary responses of people who all hold one input: the number of ones is a sum of two binomials."""
    level, n = float(random.uniform(0.3, 4.0)), int(between(random, 2.0, 3e4))
    p = math.exp(level) / (1 + math.exp(level))
    rows = np.array([[p, 1 - p], [1 - p, p]])

    def lower(epsilon: float) -> float:
        if epsilon > _FARTHEST:
            return 0.0
        others_pmf = binom.pmf(np.arange(n + 1), n - 1, p)
        more = np.append(0.0, others_pmf[:-1])
        p_counts, q_counts = p * more + (1 - p) * others_pmf, (1 - p) * more + p * others_pmf
        ways = ((p_counts, q_counts), (q_counts, p_counts))
        # Of probabilities next to the least float, which have few digits, nothing is claimed.
        gains = (np.where((a > 1e-290) & (b > 1e-290), a - math.exp(epsilon) * b, 0.0) for a, b in ways)
        return max(float(np.maximum(gain, 0.0).sum()) for gain in gains)

    return Case(shuffled(rows, n), lower, 1e-9)


KINDS: dict[str, Callable[[np.random.Generator], Case]] = {
    "gaussians": gaussians,
    "one release": one_release,
    "composed": composed,
    "tables": tables,
    "two sampled": two_sampled,
    "shuffled": shuffled_responses,
}


def case_kind(seed: int) -> str:
    return list(KINDS)[seed % len(KINDS)]


def check(seed: int) -> None:
    """Check the guarantee of one seed; an assertion names what is wrong."""
    random = np.random.default_rng([43, seed])
    case = KINDS[case_kind(seed)](random)
    audited, lower_factor = case.guarantee, 1 - mp.mpf(case.error)
    with mp.workdps(50):
        # An eps of any size, or one at which delta is neither 0 nor 1; a delta of any size.
        target = float(
            10.0 ** random.uniform(-300, math.log10(0.9)) if random.random() < 0.4 else random.uniform(0, 0.9)
        )
        target = target or 0.5
        epsilon = audited.epsilon(target)
        low, high = audited.bracket(delta=target)
        assert low <= epsilon <= high, f"epsilon {epsilon} is outside its bracket, {low} to {high}"
        if math.isfinite(epsilon):
            truth = case.lower(epsilon) * lower_factor
            assert truth <= target, f"at delta {target} epsilon {epsilon} is too small; delta there is {float(truth)}"
        else:
            infinite = audited.infinity_mass if isinstance(audited, Guarantee) else 0.0
            assert infinite >= target * (1 - 1e-9), f"at delta {target} no epsilon is found"
        level = float(between(random, 1e-9, 60.0)) if random.random() < 0.6 or not math.isfinite(epsilon) else epsilon
        delta, (low, high) = audited.delta(level), audited.bracket(epsilon=level)
        assert low <= delta <= high, f"delta {delta} is outside its bracket, {low} to {high}"
        truth = min(case.lower(level) * lower_factor, 1)
        assert delta >= truth or truth < 5e-324, f"at epsilon {level} delta {delta} is below {float(truth)}"
        if case.is_exact:
            assert low <= truth / lower_factor, f"at epsilon {level} the lower end {low} is above {float(truth)}"
        assert math.isfinite(delta)


def main(first: int, last: int) -> int:
    """Check a range of seeds, and print failures and counts."""
    counts, failures = Counter[str](), 0
    for seed in range(first, last):
        counts[case_kind(seed)] += 1
        try:
            check(seed)
        except Exception as error:
            failures += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"seed {seed}, {case_kind(seed)}: {type(error).__name__} {error} ({where.name})", flush=True)
    print(f"seeds {first} to {last - 1}: {failures} failures; {dict(counts)}")
    return failures


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])) > 0)
