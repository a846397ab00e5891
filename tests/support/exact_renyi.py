"""Renyi divergences of one release by adaptive quadrature in 40 digits, from the densities alone."""

from __future__ import annotations

import itertools

import mpmath as mp
from oracle import _found, _kernel, _log_linear, _weight, base_pieces, window_pieces

import dpkernels as dpk

DIGITS = 40


def _log_density(law):
    """Return (log density but for a constant, knots) of noise without weights."""
    if isinstance(law, dpk.Gaussian):
        s = mp.mpf(float(law.sigma))
        return lambda x: -((x / s) ** 2) / 2, []
    if isinstance(law, dpk.Logistic):
        b = mp.mpf(float(law.scale))
        return lambda x: -abs(x) / b - 2 * mp.log1p(mp.exp(-abs(x) / b)), [mp.mpf(0)]
    if isinstance(law, dpk.GeneralisedNormal):
        s, b = mp.mpf(float(law.scale)), mp.mpf(float(law.exponent))
        return lambda x: -((abs(x) / s) ** b), [mp.mpf(0)]
    if isinstance(law, dpk.Student):
        nu, s = mp.mpf(float(law.degrees)), mp.mpf(float(law.scale))
        return lambda x: -(nu + 1) / 2 * mp.log1p(x * x / (nu * s * s)), [mp.mpf(0)]
    if isinstance(law, dpk.Staircase):
        period, gamma, eps = (mp.mpf(float(value)) for value in (law.period, law.gamma, law.epsilon))
        ends = [(k + offset) * period for k in range(400) for offset in (0, gamma)]

        def log_f(x):
            position = abs(x) / period
            k = int(mp.floor(position))
            return -eps * (k if position - k < gamma else k + 1)

        return log_f, sorted({*ends, *(-end for end in ends)})
    if isinstance(law, dpk.Laplace | dpk.MergedLaplace):
        log_f, _, knots = _log_linear(law)
        return log_f, [mp.mpf(knot) for knot in knots]
    return law.exact_log_density, [mp.mpf(0)]


def _log_integral(log_f, points):
    """Return log of the integral of e^log_f between points, around the largest value, by adaptive quadrature."""
    ends = sorted(set(points))
    grid = [low + (high - low) * mp.mpf(k) / 24 for low, high in itertools.pairwise(ends) for k in range(25)]
    values = [(log_f(x + (high - x) * mp.mpf(10) ** -9), x, high) for x, high in itertools.pairwise(grid) if high > x]
    todo = [(low, high) for _, low, high in values]
    top = max(value for value, _, _ in values)
    total = mp.mpf(0)

    def inside(low, high):
        """The value in the middle and next to both ends, where the integrand may jump."""
        shift = (high - low) * mp.mpf(10) ** -9
        return [log_f(x) for x in (low + shift, (low + high) / 2, high - shift)]

    while todo:
        low, high = todo.pop()
        some = inside(low, high)
        finite = [value for value in some if value > -mp.inf]
        top_here = max(some)
        if top_here < top - 130 and (not finite or max(finite) - min(finite) < 60):
            continue
        if finite and len(finite) == 3 and max(finite) - min(finite) > 8:
            middle = (low + high) / 2
            todo += [(low, middle), (middle, high)]
            continue
        shift = max(top, top_here)
        if shift > top:
            total, top = total * mp.exp(top - shift), shift
        total += mp.quad(lambda x, top=top: mp.exp(log_f(x) - top), [low, high], maxdegree=7)
    return top + mp.log(total)


def _divergence(log_p, log_q, points, order):
    a = mp.mpf(order)
    for x, y in itertools.pairwise(sorted(set(points))):
        if log_q((x + y) / 2) == -mp.inf and log_p((x + y) / 2) > -mp.inf:
            return mp.inf

    def log_f(x):
        p, q = log_p(x), log_q(x)
        return -mp.inf if p == -mp.inf or q == -mp.inf else a * p + (1 - a) * q

    norm_p, norm_q = _log_integral(log_p, points), _log_integral(log_q, points)
    return (_log_integral(log_f, points) - a * norm_p - (1 - a) * norm_q) / (a - 1)


def exact_renyi(mechanism, order, sensitivity=1.0, rate=None, adjacency="add_remove"):
    """Return the largest divergence over the neighbour directions, an mpf."""
    with mp.workdps(DIGITS):
        if isinstance(mechanism, dpk.Windowed):
            return _of_window(mechanism, order)
        law, weights = _kernel(mechanism.noise)
        log_kernel, knots = _log_density(law)
        edges = [edge for low, high, _ in weights for edge in (low, high)]
        D, r = mp.mpf(sensitivity), None if rate is None else mp.mpf(rate)

        def log_f(x):
            weight = _weight(weights, x)
            return -mp.inf if not weight else log_kernel(x) + mp.log(weight)

        def log_at(shift):
            return lambda x: log_f(x - shift)

        def mixed(first, second):
            def log_mixture(x):
                top = max(first(x), second(x))
                if top == -mp.inf:
                    return top
                return top + mp.log((1 - r) * mp.exp(first(x) - top) + r * mp.exp(second(x) - top))

            return log_mixture

        reach = D * (mp.mpf(order) + 4) + 16 * _reach(law)
        shifts = (-D, 0, D) if adjacency == "replace" else (0, D)
        every = [knot + shift for knot in (*knots, *edges) for shift in (*shifts, -D)]
        points = sorted({-reach, reach, mp.mpf(0), *(point for point in every if -reach < point < reach)})
        if adjacency == "replace":
            pairs = [(mixed(log_at(0), log_at(D)), mixed(log_at(0), log_at(-D)))]
        elif rate is None:
            pairs = [(log_at(0), log_at(D)), (log_at(0), log_at(-D))]
        else:
            moved = [mixed(log_at(0), log_at(shift)) for shift in (D, -D)]
            pairs = [pair for shifted in moved for pair in ((shifted, log_at(0)), (log_at(0), shifted))]
        return max(_divergence(log_p, log_q, points, order) for log_p, log_q in pairs)


def _reach(law):
    if isinstance(law, dpk.Student):
        return mp.mpf(10) ** 6 * mp.mpf(float(law.scale))
    if isinstance(law, dpk.Staircase):
        return 8 * mp.mpf(float(law.period / law.epsilon))
    if isinstance(law, dpk.MergedLaplace):
        return 8 / mp.mpf(float(law.rates[-1]))
    if isinstance(law, dpk.Gaussian):
        return mp.mpf(float(law.sigma))
    return 8 * mp.mpf(float(law.scale if hasattr(law, "scale") else max(law.left, law.right)))


def _of_window(m, order):
    """The two ends of the input interval, whose windows mirror each other."""
    width, height = mp.mpf(float(m.width)), mp.mpf(float(m.relative_height))
    (cuts, pieces), (base_cuts, bases) = window_pieces(m.window), base_pieces(m.base)
    start = 1 - width

    def log_density(sign):
        def log_p(v):
            x = sign * v
            base = _found(base_cuts, bases, abs(x))
            window = _found(cuts, pieces, (x - start) / width)
            value = (0 if base is None else base.value(abs(x))) + (
                0 if window is None else height * window.value((x - start) / width)
            )
            return mp.log(value) if value > 0 else -mp.inf

        return log_p

    knots = {mp.mpf(-1), mp.mpf(0), mp.mpf(1), *base_cuts, *(-cut for cut in base_cuts)}
    for cut in cuts:
        knots |= {start + width * cut, -start - width * cut}
    return _divergence(log_density(1), log_density(-1), [k for k in knots if -1 <= k <= 1], order)
