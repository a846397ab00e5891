"""A verifier of certificates that shares nothing with the package: what a JSON form says, from its integers alone.

Every row's law is rebuilt in integers and Fractions, and every claim is compared with it by definitions instead of
formulas: all rows that are neighbours, all shifts (of wide noise some), e^epsilon by mpmath. ``false_claims`` lists
what is not so.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from fractions import Fraction

import mpmath
import numpy as np

LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover timing, caches or other side "
    "channels, which rows or columns exist, values copied unperturbed, or the composition of several reports."
)
NOISE_LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover the sensitivity itself, "
    "rounding while the true value was computed, timing, caches or other side channels, which rows or columns exist, "
    "values copied unperturbed, or the composition of several reports."
)
LOCAL = "pure epsilon-DP of each report; neighbouring: any two inputs of the interval (local DP, replace one value). "
NEAR = "pure epsilon-DP of each report; neighbouring: inputs of the interval at most {} apart (the floats that are "
NEAR += "perturbed). "
NOISE = "(epsilon, delta)-DP of each report; neighbouring: datasets whose true values, as floats, differ by at most "
NOISE += "the sensitivity. "
VECTORS = "(epsilon, delta)-DP of each vector; neighbouring: datasets whose true vectors, as floats, differ by at most "
VECTORS += "the sensitivity in the norm. "
MANY = "pure epsilon-DP of each vector; neighbouring: any two vectors of the intervals (local DP, replace one vector). "
KEYS = {
    "window": "epsilon total codes rows realised_epsilon ratio lowest highest mean_error worst_variance covers table",
    "placed window": "epsilon total codes rows realised_epsilon ratio lowest highest slope worst_variance covers table",
    "rows": "epsilon sensitivity cells total codes rows realised_epsilon covers ratio lowest highest mean_error "
    "worst_variance row_table",
    "noise": "epsilon delta sensitivity shift realised_epsilon realised_delta lowest highest bias worst_variance "
    "covers noise",
    "vector noise": "epsilon delta sensitivity norm dimensions lattice sigma shift realised_delta lowest highest "
    "worst_variance realised_epsilon covers noise",
    "mixture": "epsilon realised_epsilon threshold lowest highest worst_variance covers first second",
    "multivariate": "epsilon realised_epsilon dimensions sampled covers coordinate",
    "set of categories": "epsilon categories threshold bits ratio realised_epsilon covers size",
    "block of categories": "epsilon categories threshold bits ratio realised_epsilon covers blocks",
    "prefixes": "epsilon categories realised_epsilon covers",  # and its levels
}
CATEGORIES = "pure epsilon-DP of each report; neighbouring: any two categories (local DP, replace one). "


def decimal(number):
    return Fraction(repr(number))


def exp_above(epsilon):
    """A Fraction above e^epsilon, and no more than 10^-45 above."""
    with mpmath.workdps(70):
        value = mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator)
        return Fraction(int(mpmath.floor(value * 10**45)) + 1, 10**45)


def certificate_kind(payload):
    """Return the kind that it names."""
    return payload["kind"]


def false_claims(payload):
    """What the payload says that is not so, as names."""
    claim_kind = certificate_kind(payload)
    names = {"kind", *KEYS[claim_kind].split()} | (prefix_levels(payload).keys() if claim_kind == "prefixes" else set())
    problems = [f"names: {sorted(odd)}"] if (odd := payload.keys() ^ names) else []
    return problems + CHECKS[claim_kind](payload)


def mismatches(payload, **truths):
    """The names of claims that are false, each given as whether it is true."""
    return [name for name, true in truths.items() if not true]


# Bounded mechanisms: integer weights row by row, whole-numbered positions of the codes, inputs of the outer rows.


class Law:
    """The distributions of a table's rows, and what follows from them.

    ``rows`` makes the rows' weights as arrays of Python integers, one after the other, since all may be many.
    """

    def __init__(self, rows, positions, bits, ends, interval, slope=1):
        self.rows, self.positions, self.total, self.interval = rows, np.array(positions, object), 2**bits, interval
        sums = [(int(row.sum()), int(row.min()), *self.moments(row)) for row in rows()]
        self.are_distributions = all(total == self.total and least >= 0 for total, least, _, _ in sums)
        self.firsts, self.seconds = zip(*((first, second) for *_, first, second in sums), strict=True)
        self.middle, S = sum(ends) / 2, len(sums) - 1
        self.slope = slope
        self.step = slope * (ends[1] - ends[0]) * self.total / (self.firsts[-1] - self.firsts[0])
        self.inputs = [ends[0] + (ends[1] - ends[0]) * s / S for s in range(S + 1)]

    def moments(self, row):
        return int((row * self.positions).sum()), int((row * self.positions**2).sum())

    def value(self, code):
        return self.middle + self.step * int(self.positions[code])

    @property
    def has_its_means(self):
        """The inputs; with a slope, so much nearer to the middle."""
        pairs = zip(self.firsts, self.inputs, strict=True)
        return all(self.step * first / self.total == self.slope * (x - self.middle) for first, x in pairs)

    def variance(self, s, t):
        """At the input half-way between two rows, or at a row."""
        first = Fraction(self.firsts[s] + self.firsts[t], 2 * self.total)
        second = Fraction(self.seconds[s] + self.seconds[t], 2 * self.total)
        return self.step**2 * (second - first**2)

    @property
    def worst_variance(self):
        """At rows and half-way between, of inputs in the interval: no more than the largest of all."""
        rows, (lower, upper) = range(len(self.inputs)), self.interval
        pairs = [*((s, s) for s in rows), *itertools.pairwise(rows)]
        inner_pairs = [(s, t) for s, t in pairs if lower <= (self.inputs[s] + self.inputs[t]) / 2 <= upper]
        return max((self.variance(s, t) for s, t in inner_pairs), default=Fraction(0))

    def largest_ratio(self, apart):
        """Over all rows up to so many apart; None where a report is possible for one of them only."""
        if apart >= len(self.inputs) - 1:
            high = low = next(iter(self.rows()))
            for row in self.rows():
                high, low = np.maximum(high, row), np.minimum(low, row)
            return _larger(Fraction(1), high, low)
        worst, recent = Fraction(1), deque(maxlen=apart + 1)
        for row in self.rows():
            recent.append(row)
            worst = _larger(worst, np.maximum.reduce(list(recent)), np.minimum.reduce(list(recent)))
        return worst


def _larger(worst, high, low):
    if worst is None or not low.all():
        return None
    return max(worst, *(Fraction(a, b) for a, b in set(zip(high.tolist(), low.tolist(), strict=True))))


def expanded(runs):
    return np.array([weight for weight, count in runs for _ in range(count)], object)


def window_law(table, is_placed=False):
    base, window = expanded(table["base"]), expanded(table["window"])
    N, S = len(base), len(base) - len(window)

    def rows():
        for s in range(S + 1):
            row = base.copy()
            row[s : s + len(window)] += window
            yield row

    ends = decimal(table["lower"]), decimal(table["upper"])
    slope = Fraction(int(window.sum()), 2 ** table["bits"]) if is_placed else 1
    return Law(rows, range(1 - N, N, 2), table["bits"], ends, ends, slope)


def row_law(table):
    ends, interval = ([decimal(table[end]) for end in pair] for pair in (("first", "last"), ("lower", "upper")))
    rows = [np.array(row, object) for row in table["weights"]]
    return Law(lambda: rows, table["places"], table["bits"], ends, interval)


def bounded_mismatches(payload, law, apart):
    ratio, realised = law.largest_ratio(apart), decimal(payload["realised_epsilon"])
    table, (lower, upper) = payload.get("table") or payload["row_table"], law.interval
    if "kind" not in payload:
        realised *= 1 + Fraction(1, 10**12)  # The logarithm of the machine that wrote it.
    return mismatches(
        payload,
        distributions=law.are_distributions,
        means=law.has_its_means,
        interval=law.inputs[0] <= lower < upper <= law.inputs[-1],
        support=ratio is not None,
        epsilon=ratio is not None and ratio < exp_above(decimal(payload["epsilon"])),
        realised_epsilon=ratio is not None and ratio < exp_above(realised),
        ratio=ratio is not None and Fraction(payload["ratio"]) >= ratio,
        total=payload["total"] == law.total and table["bits"] in (16, 32, 64),
        codes=payload["codes"] == len(law.positions),
        rows=payload["rows"] == len(law.inputs),
        lowest=Fraction(payload["lowest"]) == law.value(0) == min(law.value(0), law.value(-1)),
        highest=Fraction(payload["highest"]) == law.value(-1),
        increasing=all(a < b for a, b in itertools.pairwise(law.positions)),
        mean_error=law.slope != 1 or payload["mean_error"] == "0",
        worst_variance=Fraction(payload["worst_variance"]) >= law.worst_variance,
    )


def window_mismatches(payload):
    law = window_law(payload["table"])
    return bounded_mismatches(payload, law, len(law.inputs)) + mismatches(
        payload, covers=payload["covers"] == LOCAL + LIMITS
    )


def placed_mismatches(payload):
    law = window_law(payload["table"], is_placed=True)
    covers = payload["covers"] == f"{LOCAL}{LIMITS} No mean is claimed: reports are biased."
    problems = mismatches(payload, covers=covers, slope=Fraction(payload["slope"]) == law.slope < 1)
    return bounded_mismatches(payload, law, len(law.inputs)) + problems


def rows_mismatches(payload):
    law, D, table = row_law(payload["row_table"]), payload["sensitivity"], payload["row_table"]
    words, apart = [LOCAL], len(law.inputs) - 1
    if D is not None:
        apart = rows_apart(table, decimal(D))
        words = [NEAR.format(repr(D).removesuffix(".0"))] + ([] if "kind" in payload else [NEAR.format(f"{D:.12g}")])
    covers = payload["covers"] in [word + LIMITS for word in words]
    return mismatches(payload, covers=covers, cells=payload["cells"] >= apart) + bounded_mismatches(payload, law, apart)


def rows_apart(table, D):
    """Inputs D apart are put on steps that many apart, and rounded by one word to rows that many apart, at most."""
    S = len(table["weights"]) - 1
    steps = 1 << (16 if S >= 256 else 30 - S.bit_length())
    gap = min(decimal(table["last"]) - decimal(table["first"]), Fraction(table["last"]) - Fraction(table["first"])) / S
    return min(S, math.ceil(Fraction(math.ceil(D * steps / gap), steps)))


def mixture_mismatches(payload):
    components, weight = [payload["first"], payload["second"]], Fraction(payload["threshold"], 2**32)
    laws = [window_law(component["table"]) for component in components]
    values = [law.value(code) for law in laws for code in (0, -1)]
    # The ends of the interval are rows of both.
    mixed = max(weight * laws[0].variance(end, end) + (1 - weight) * laws[1].variance(end, end) for end in (0, -1))
    inner = [f"{n}: {problems}" for n, component in enumerate(components) for problems in window_mismatches(component)]
    return inner + mismatches(
        payload,
        covers=payload["covers"] == LOCAL + LIMITS,
        interval=laws[0].interval == laws[1].interval,
        threshold=0 < payload["threshold"] < 2**32,
        epsilon=decimal(payload["epsilon"]) >= max(decimal(component["epsilon"]) for component in components),
        realised_epsilon=payload["realised_epsilon"] >= max(component["realised_epsilon"] for component in components),
        lowest=Fraction(payload["lowest"]) == min(values),
        highest=Fraction(payload["highest"]) == max(values),
        worst_variance=Fraction(payload["worst_variance"]) >= mixed,
    )


def multivariate_mismatches(payload):
    inner, s, d = payload["coordinate"], payload["sampled"], payload["dimensions"]
    rounded = 1 if "kind" in payload else 1 + Fraction(1, 10**12)
    return [f"coordinate: {problems}" for problems in false_claims(inner)] + mismatches(
        payload,
        covers=payload["covers"] == MANY + LIMITS,
        coordinate=certificate_kind(inner) in ("window", "rows", "mixture") and inner.get("sensitivity") is None,
        sampled=type(s) is int and type(d) is int and 1 <= s <= d,
        epsilon=decimal(payload["epsilon"]) * rounded >= s * decimal(inner["epsilon"]),
        realised_epsilon=decimal(payload["realised_epsilon"]) * rounded >= s * decimal(inner["realised_epsilon"]),
    )


def set_mismatches(payload):
    size, d = payload["size"], payload["categories"]
    return mismatches(payload, size=type(size) is int and 1 <= size < d) or category_mismatches(payload, d, size)


def block_mismatches(payload):
    g = payload["blocks"]
    factors = {n for n in range(2, g + 1) if g % n == 0 and all(n % m for m in range(2, math.isqrt(n) + 1))}
    return mismatches(payload, blocks=type(g) is int and len(factors) == 1) or category_mismatches(payload, g, 1)


def prefix_levels(payload):
    """The levels that there are from 0 on, by name."""
    names = itertools.takewhile(payload.keys().__contains__, (f"level_{n}" for n in range(40)))
    return {name: payload[name] for name in names}


def prefix_mismatches(payload):
    levels = prefix_levels(payload)
    inner = [f"{name}: {problems}" for name, level in levels.items() for problems in false_claims(level)]
    return inner + mismatches(
        payload,
        covers=payload["covers"] == CATEGORIES.replace("categories", "values") + LIMITS,
        levels=bool(levels) and all(certificate_kind(level) == "block of categories" for level in levels.values()),
        growing=all(a["categories"] < b["categories"] for a, b in itertools.pairwise(levels.values())),
        categories=bool(levels) and payload["categories"] == [*levels.values()][-1]["categories"],
        epsilon=all(decimal(payload["epsilon"]) >= decimal(level["epsilon"]) for level in levels.values()),
        realised_epsilon=all(payload["realised_epsilon"] >= level["realised_epsilon"] for level in levels.values()),
    )


def category_mismatches(payload, choices, size):
    """Of a report that names ``size`` of some choices, the true one where a word is below the threshold."""
    T, d, total = payload["threshold"], payload["categories"], 2 ** payload["bits"]
    p_true, p_other = Fraction(T, total), Fraction(total - T, total)
    if choices < 64:  # The probability of one set with the true choice in it, and of one without it.
        p_true, p_other = p_true / math.comb(choices - 1, size - 1), p_other / math.comb(choices - 1, size)
        ratio = max(p_true / p_other, p_other / p_true)
    else:
        ratio = p_true * (choices - size) / (p_other * size)
    return mismatches(
        payload,
        covers=payload["covers"] == CATEGORIES + LIMITS,
        categories=type(d) is int and d >= 2,
        threshold=0 < T < total and (size > 1 or (total - T) % (choices - 1) == 0),
        ratio=Fraction(payload["ratio"]) == ratio,
        epsilon=ratio <= exp_above(decimal(payload["epsilon"])),
        realised_epsilon=ratio <= exp_above(decimal(payload["realised_epsilon"])),
    )


# Additive noise: integer weights of codes, the cell, how far apart the positions of neighbours can be.


def noise_law(table):
    cell = table["grains"] * Fraction(2) ** table["grain"]
    return {table["first"] + j: w for j, w in enumerate(table["weights"])}, cell


def positions_apart(table, D):
    """Inputs D apart: so many grains, then so many cells under one r, at most; both are reached."""
    grains = math.ceil(D / Fraction(2) ** table["grain"])
    return math.ceil(Fraction(grains, table["grains"]))


def divergence(law, shift, ratio):
    """Sum of max(0, P(code) - ratio P(code - shift)), of product laws where the shift is a tuple."""
    p, q = ratio.numerator, ratio.denominator
    shifts = (shift,) if isinstance(shift, int) else shift
    pairs = [[(w, law.get(code - s, 0)) for code, w in law.items()] for s in shifts]
    excess = 0
    for point in itertools.product(*pairs):
        here, there = (math.prod(side) for side in zip(*point, strict=True))
        excess += max(0, q * here - p * there)
    return Fraction(excess, q * sum(law.values()) ** len(shifts))


def additive_mismatches(payload, law, cell):
    table, total = payload["noise"], 2 ** payload["noise"]["bits"]
    mean = Fraction(sum(w * code for code, w in law.items()), total) * cell
    second = Fraction(sum(w * code**2 for code, w in law.items()), total) * cell**2 - mean**2
    return mean, mismatches(
        payload,
        distribution=min(law.values()) >= 0 and sum(law.values()) == total and table["bits"] in (16, 32, 64),
        lowest=Fraction(payload["lowest"]) == min(law) * cell,
        highest=Fraction(payload["highest"]) == max(law) * cell,
        worst_variance=Fraction(payload["worst_variance"]) >= second + (0 if payload.get("lattice") else cell**2 / 4),
        realised_epsilon=payload["realised_epsilon"] == payload["epsilon"],
        budget=0 < payload["epsilon"] <= 20 and 0 < payload["delta"] < 1 and payload["sensitivity"] > 0,
    )


def tried_shifts(most):
    """All of a few; of many those near the ends and some between, either way."""
    some = {*range(1, 4), *(most * n // 7 for n in range(1, 8)), *range(most - 2, most + 1)}
    positive = range(1, most + 1) if most <= 64 else some
    return [0, *positive, *(-shift for shift in positive)]


def noise_mismatches(payload):
    (law, cell), ratio = noise_law(payload["noise"]), exp_above(decimal(payload["epsilon"]))
    apart = positions_apart(payload["noise"], Fraction(payload["sensitivity"]))
    delta = max(divergence(law, shift, ratio) for shift in tried_shifts(min(apart, len(law))))
    mean, problems = additive_mismatches(payload, law, cell)
    return problems + mismatches(
        payload,
        covers=payload["covers"] == NOISE + NOISE_LIMITS,
        shift=payload["shift"] >= apart,
        bias=Fraction(payload["bias"]) == mean,
        delta=delta <= decimal(payload["delta"]),
        realised_delta=delta <= Fraction(payload["realised_delta"]),
    )


def vector_shifts(payload, cell):
    """Some shifts of one and two coordinates that neighbours can have, the largest among them."""
    D, two = Fraction(payload["sensitivity"]), min(2, payload["dimensions"])
    fractions = [Fraction(n, 4) for n in range(5)]
    size = {
        "l1": lambda a, b: a + b <= 1,
        "l2": lambda a, b: a**2 + b**2 <= 1,
        "linf": lambda a, b: max(a, b) <= 1,
    }[payload["norm"]]
    moves = {(a, b if two == 2 else Fraction(0)) for a in fractions for b in fractions}
    for a, b in moves:
        if size(a, b):
            if payload["lattice"]:
                unit = Fraction(payload["lattice"])
                steps = [math.floor(component * D / unit) * (unit / cell) for component in (a, b)]
                yield tuple(int(step) for step in steps)
            else:
                yield tuple(positions_apart(payload["noise"], component * D) for component in (a, b))


def vector_mismatches(payload):
    (law, cell), ratio = noise_law(payload["noise"]), exp_above(decimal(payload["epsilon"]))
    shifts = {(sign * a, b) for a, b in vector_shifts(payload, cell) for sign in (1, -1)}
    if len(law) > 40:  # Products of long tables take too long.
        shifts = {(a, b) for a, b in shifts if not (a and b)}
    divergences = {shift: divergence(law, shift if all(shift) else sum(shift), ratio) for shift in shifts}
    delta = max(divergences.values())
    _, problems = additive_mismatches(payload, law, cell)
    return problems + mismatches(
        payload,
        covers=payload["covers"] == VECTORS + NOISE_LIMITS,
        dimensions=type(payload["dimensions"]) is int and payload["dimensions"] >= 1,
        lattice=payload["lattice"] is None or (Fraction(payload["lattice"]) / cell).denominator == 1,
        delta=delta <= decimal(payload["delta"]),
        realised_delta=delta <= Fraction(payload["realised_delta"]),
    )


CHECKS = {
    "window": window_mismatches,
    "placed window": placed_mismatches,
    "rows": rows_mismatches,
    "noise": noise_mismatches,
    "vector noise": vector_mismatches,
    "mixture": mixture_mismatches,
    "multivariate": multivariate_mismatches,
    "set of categories": set_mismatches,
    "block of categories": block_mismatches,
    "prefixes": prefix_mismatches,
}
