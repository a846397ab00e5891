"""The privacy profile of one report of every mechanism in 50 digits, by the definitions of its densities.

It shares no formula with the accountants: a mechanism is read by its parameters, which are taken as exact, and p and q
are the laws of its report under the two worst neighbouring inputs. Between knots p - e^eps q has an antiderivative in
closed form, so that all there is to solve are its roots.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import lru_cache, singledispatch

import mpmath as mp
import numpy as np

import dpkernels as dpk
from dpkernels.distributions.discrete import DiscreteLaplace, Lattice
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow

DIGITS = 50
# Where the sign of the slope of p/q is looked at in each piece: shares of it, dense at both ends.
_NEAR_AN_END = np.geomspace(1e-12, 0.02, 24)
_SHARES = np.unique(np.concatenate([np.linspace(0.0, 1.0, 257)[1:-1], _NEAR_AN_END, 1 - _NEAR_AN_END]))
_ROOT_STEPS = 400
_NO_SHIFT = "sensitivity: neighbours of a bounded mechanism have none of the caller's"


def exact_profile(mechanism, epsilon, sensitivity=None):
    """delta(eps), an mpf of 50 digits.

    Args:
        mechanism: a mechanism of dpkernels, with plain numbers.
        epsilon: eps >= 0, a float.
        sensitivity: D of additive noise.
    """
    with mp.workdps(DIGITS):
        return +max(mp.mpf(0), _profile(mechanism, mp.mpf(epsilon), sensitivity))


@singledispatch
def _profile(mechanism, eps, D):
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no exact profile")


# Windows on bases: p(v) = y g(v) + k h((v - start)/m) on [-1, 1]


class Polynomial:
    """c_0 + c_1 x + ..."""

    def __init__(self, *coefficients):
        self.coefficients = [mp.mpf(c) for c in coefficients]
        self.primitive = [mp.mpf(0), *(c / (i + 1) for i, c in enumerate(self.coefficients))]
        self.floats = np.polynomial.Polynomial([float(c) for c in self.coefficients])
        self.slope = self.floats.deriv()

    def value(self, x):
        return _horner(self.coefficients, x)

    def integral(self, x):
        return _horner(self.primitive, x)


def _horner(coefficients, x):
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


class HalfSine:
    """sin(pi x)"""

    def value(self, x):
        return mp.sinpi(x)

    def integral(self, x):
        return -mp.cospi(x) / mp.pi

    def floats(self, x):
        return np.sin(np.pi * x)

    def slope(self, x):
        return np.pi * np.cos(np.pi * x)


def window_pieces(window):
    """(ends on [0, 1], shape between each two of them)."""
    middle = mp.mpf(1) / 2
    if isinstance(window, dpk.Uniform):
        return [mp.mpf(0), mp.mpf(1)], [Polynomial(1)]
    if isinstance(window, dpk.Sine):
        return [mp.mpf(0), mp.mpf(1)], [HalfSine()]
    if isinstance(window, dpk.Triangle):
        return [mp.mpf(0), middle, mp.mpf(1)], [Polynomial(0, 2), Polynomial(2, -2)]
    return _table(window.shape.values, TabulatedWindow, window)


def base_pieces(base):
    """The same of a base, on [-1, 1]."""
    if isinstance(base, dpk.Constant):
        return [mp.mpf(-1), mp.mpf(1)], [Polynomial(1)]
    if isinstance(base, dpk.Quartic):
        return [mp.mpf(-1), mp.mpf(1)], [Polynomial(1, 0, 0, 0, mp.mpf(float(base.edge)) - 1)]
    ends, shapes = _table(base.shape.values, TabulatedBase, base)
    stretched = [Polynomial(*_of_half(shape.coefficients)) for shape in shapes]
    return [2 * end - 1 for end in ends], stretched


def _table(values, kind, shape):
    assert isinstance(shape, kind)
    n, f = len(values) - 1, [mp.mpf(value) for value in values]
    lines = [Polynomial(f[i] - i * (f[i + 1] - f[i]), n * (f[i + 1] - f[i])) for i in range(n)]
    return [mp.mpf(i) / n for i in range(n + 1)], lines


def _of_half(line):
    """c_0 + c_1 (v + 1)/2 as coefficients of v."""
    return line[0] + line[1] / 2, line[1] / 2


class Term:
    """factor * shape((v - start)/width)"""

    def __init__(self, factor, shape, start, width):
        self.factor, self.shape, self.start, self.width = factor, shape, start, width

    def value(self, v):
        return self.factor * self.shape.value((v - self.start) / self.width)

    def integral(self, v):
        return self.factor * self.width * self.shape.integral((v - self.start) / self.width)

    def floats(self, left, right):
        """Values and slopes at shares of an interval, which may be narrow."""
        low, high = (float((end - self.start) / self.width) for end in (left, right))
        x = low + (high - low) * _SHARES
        return float(self.factor) * self.shape.floats(x), float(self.factor) * self.shape.slope(x) * (high - low)


def windowed_profile(window, base, width, height, eps, centre=None):
    """delta of the two ends of the input interval; numbers are exact.

    Args:
        window: h.
        base: g.
        width: m.
        height: k/y.
        eps: eps.
        centre: of p's window; q's is opposite. By default they are next to the ends of the reports.
    """
    (cuts, pieces), (base_cuts, base_shapes) = window_pieces(window), base_pieces(base)
    area = sum(shape.integral(b) - shape.integral(a) for shape, a, b in _spans(cuts, pieces))
    base_integral = sum(shape.integral(b) - shape.integral(a) for shape, a, b in _spans(base_cuts, base_shapes))
    y = 1 / (height * area * width + base_integral)
    k = height * y
    centre = 1 - width / 2 if centre is None else centre
    starts = centre - width / 2, -centre - width / 2
    # Below 0 q's window is the nearer one.
    knots = {mp.mpf(0), mp.mpf(1), *base_cuts, *(start + width * cut for start in starts for cut in cuts)}
    total = mp.mpf(0)
    for lower, upper in itertools.pairwise(sorted(knot for knot in knots if 0 <= knot <= 1)):
        middle = (lower + upper) / 2
        g = _found(base_cuts, base_shapes, middle)
        first_piece, second_piece = (_found(cuts, pieces, (middle - start) / width) for start in starts)
        if first_piece is None:
            continue
        p = [Term(y, g, mp.mpf(0), mp.mpf(1)), Term(k, first_piece, starts[0], width)]
        q = p[:1] if second_piece is None else [p[0], Term(k, second_piece, starts[1], width)]
        gap = [Term(-mp.expm1(eps) * y, g, mp.mpf(0), mp.mpf(1)), p[1]]
        if second_piece is not None:
            gap.append(Term(-mp.exp(eps) * k, second_piece, starts[1], width))
        total += _positive_part(gap, [lower, *_turns(p, q, lower, upper), upper])
    return total


def _spans(cuts, shapes):
    return list(zip(shapes, cuts[:-1], cuts[1:], strict=True))


def _found(cuts, shapes, x):
    """The shape at x, None outside."""
    return next((shape for shape, a, b in _spans(cuts, shapes) if a < x < b), None)


def _turns(p, q, lower, upper):
    """Where p/q has turns between two knots, to ten digits: a slip only hides losses next to a smooth maximum."""
    (p0, p1), (q0, q1) = (np.sum([term.floats(lower, upper) for term in terms], axis=0) for terms in (p, q))
    slope = p1 * q0 - p0 * q1
    changes = np.flatnonzero((slope[1:] > 0) != (slope[:-1] > 0))
    points = []
    for j in changes:
        root = (slope[j] * _SHARES[j + 1] - slope[j + 1] * _SHARES[j]) / (slope[j] - slope[j + 1])
        ends = lower + (upper - lower) * mp.mpf(_SHARES[j]), lower + (upper - lower) * mp.mpf(_SHARES[j + 1])
        points.append(_refined(p, q, *ends, lower + (upper - lower) * mp.mpf(root)))
    return sorted(points)


def _refined(p, q, low, high, point):
    """A maximum or minimum of p/q by parabolas through three points, within (low, high)."""
    for _ in range(4):
        h = (high - low) * mp.mpf(10) ** -12
        a, b, c = (sum(t.value(x) for t in p) / sum(t.value(x) for t in q) for x in (point - h, point, point + h))
        bend = a - 2 * b + c
        moved = point + h * (a - c) / (2 * bend) if bend else point
        if not low < moved < high:
            break
        point = moved
    return point


def _positive_part(gap, cuts):
    """Integral of max(0, gap), which changes its sign once at most between cuts."""
    values = [sum(term.value(v) for term in gap) for v in cuts]
    total = mp.mpf(0)
    for (lower, upper), (a, b) in zip(itertools.pairwise(cuts), itertools.pairwise(values), strict=True):
        if a <= 0 and b <= 0:
            continue
        if a < 0 or b < 0:
            root = _root(gap, lower, upper, a, b)
            lower, upper = (root, upper) if b > 0 else (lower, root)
        total += sum(term.integral(upper) - term.integral(lower) for term in gap)
    return total


def _root(gap, lower, upper, a, b):
    """False position, with the Illinois rule, to 28 digits of the interval: the gap is 0 there, so twice as many."""
    close = (upper - lower) * mp.mpf(10) ** -28
    for _ in range(_ROOT_STEPS):
        x = (lower * b - upper * a) / (b - a)
        value = sum(term.value(x) for term in gap)
        if value == 0:
            return x
        if (value > 0) == (b > 0):
            moved, upper, b = upper - x, x, value
            a /= 2
        else:
            moved, lower, a = x - lower, x, value
            b /= 2
        if abs(moved) <= close or upper - lower <= close:
            return x
    raise ArithmeticError("no root was found")


@_profile.register
def _(m: dpk.Windowed, eps, D):
    assert D is None, _NO_SHIFT
    return windowed_profile(m.window, m.base, mp.mpf(float(m.width)), mp.mpf(float(m.relative_height)), eps)


@_profile.register
def _(m: dpk.SquareWave, eps, D):
    """As published, on inputs in [0, 1]: at 0 and 1 the windows are 1 apart, and 2 b wide."""
    assert D is None, _NO_SHIFT
    b, level = mp.mpf(float(m.half_width)), mp.exp(mp.mpf(float(m.epsilon)))
    return min(1, 2 * b) * (level - mp.exp(eps)) / (2 * b * level + 1)


@_profile.register
def _(m: dpk.TwoPoint, eps, D):
    assert D is None, _NO_SHIFT
    level = mp.exp(mp.mpf(float(m.epsilon)))
    return (level - mp.exp(eps)) / (1 + level)


@_profile.register
def _(m: dpk.Mixture, eps, D):
    """A report with a density never is one of two points."""
    assert isinstance(m.first, dpk.Windowed)
    assert isinstance(m.second, dpk.TwoPoint)
    assert D is None, _NO_SHIFT
    w = mp.mpf(float(m.weight))
    first, second = (max(mp.mpf(0), _profile(part, eps, None)) for part in (m.first, m.second))
    return w * first + (1 - w) * second


@_profile.register
def _(m: dpk.Multivariate, eps, D):
    assert m.sampled == 1
    assert D is None, _NO_SHIFT
    return _profile(m.coordinate, eps, None)


@_profile.register
def _(m: dpk.CentralPiecewise, eps, D):
    """Of nested windows, piece by piece: the density falls by e^-eps at every r_l, and is the same beyond the last."""
    assert D is None, _NO_SHIFT
    E, half = mp.exp(-mp.mpf(float(m.epsilon))), (mp.mpf(float(m.upper)) - mp.mpf(float(m.lower))) / 2
    d = mp.mpf(float(m.sensitivity)) / half
    r = [mp.mpf(float(m.core)) + step * d for step in range(m.steps)]
    far, apart = 1 + r[-1], min(d, mp.mpf(2))
    levels = [E**step for step in range(m.steps + 1)]

    def level(v):
        return next((E_l for E_l, r_l in zip(levels, r, strict=False) if abs(v) < r_l), levels[-1])

    area = sum(2 * r_l * (a - b) for r_l, a, b in zip(r, levels, levels[1:], strict=False)) + 2 * far * levels[-1]
    # p's middle is as far left as inputs go, and q's is to the right of it: between the windows' ends and the reports'.
    left, right = -far, far
    middle = left + r[-1]
    knots = {left, right}
    knots |= {at + side * r_l for at in (middle, middle + apart) for r_l in r for side in (1, -1)}
    total = mp.mpf(0)
    for a, b in itertools.pairwise(sorted(knot for knot in knots if left <= knot <= right)):
        v = (a + b) / 2
        total += (b - a) * max(mp.mpf(0), level(v - middle) - mp.exp(eps) * level(v - middle - apart))
    return total / area


@_profile.register
def _(m: dpk.Optimal, eps, D):
    assert D is None, _NO_SHIFT
    rows, t = _table_rows(m), mp.exp(eps)
    zero, best = mp.mpf(0), mp.mpf(0)
    for i, j in itertools.permutations(range(len(rows)), 2):
        if abs(i - j) <= m.cells:
            best = max(best, sum(max(zero, a - t * b) for a, b in zip(rows[i], rows[j], strict=True)))
    return best


@lru_cache(maxsize=64)
def _table_rows(m):
    return [[mp.mpf(float(p)) for p in row] for row in np.asarray(m.probabilities)]


# Additive noise


@_profile.register
def _(m: dpk.Additive, eps, D):
    D = mp.mpf(float(m.sensitivity if D is None else D))
    if isinstance(m.noise, Lattice):
        return _lattice(m.noise, D, eps)
    law, weights = _kernel(m.noise)
    of = {dpk.Gaussian: _gaussian, dpk.Staircase: _staircase}.get(type(law), _exponentials)
    return max(of(law, weights, shift, eps) for shift in (D, -D))


def _kernel(noise):
    """The symmetric law, and (low, high, weight outside) of each reweighting."""
    weights = []
    while isinstance(noise, dpk.Reweighted):
        weights.append([mp.mpf(float(value)) for value in (noise.low, noise.high, noise.outside)])
        noise = noise.kernel
    return noise, weights


def _weight(weights, x):
    return mp.fprod(1 if low < x < high else outside for low, high, outside in weights)


def _pieces(knots, D):
    """Between the knots of f and of f(. - D)."""
    points = sorted({*knots, *(knot + D for knot in knots)})
    return itertools.pairwise([-mp.inf, *points, mp.inf])


def _inside(a, b):
    if mp.isinf(a):
        return b - 1 if not mp.isinf(b) else mp.mpf(0)
    return a + 1 if mp.isinf(b) else (a + b) / 2


def _exponentials(law, weights, D, eps):
    """log f is affine between knots, hence p/q is monotone."""
    log_f, rate_of, knots = _log_linear(law)
    edges = [edge for low, high, _ in weights for edge in (low, high)]
    norm = mp.mpf(0)
    for a, b in _pieces([*knots, *edges], mp.mpf(0)):
        x = _inside(a, b)
        norm += _weight(weights, x) * _grown(log_f(x), rate_of(x), x, a, b)
    total = mp.mpf(0)
    for a, b in _pieces([*knots, *edges], D):
        x = _inside(a, b)
        w_p, w_q = _weight(weights, x), _weight(weights, x - D)
        if not w_p:
            continue
        p, q = (log_f(x), rate_of(x)), (log_f(x - D), rate_of(x - D))
        if w_q:
            a, b = _above(mp.log(w_p / w_q) + p[0] - q[0] - eps, p[1] - q[1], x, a, b)
            if a >= b:
                continue
            total -= mp.exp(eps) * w_q * _grown(*q, x, a, b)
        total += w_p * _grown(*p, x, a, b)
    return total / norm


def _above(excess, slope, x, a, b):
    """Where excess + slope (. - x) > 0 in (a, b)."""
    if slope == 0:
        return (a, b) if excess > 0 else (a, a)
    cut = x - excess / slope
    return (max(a, cut), b) if slope > 0 else (a, min(b, cut))


def _grown(log_value, rate, x, a, b):
    """Integral over (a, b) of the exponential with this logarithm and rate at x."""
    if rate == 0:
        return mp.exp(log_value) * (b - a)
    ends = [mp.mpf(0) if mp.isinf(end) else mp.exp(log_value + rate * (end - x)) for end in (a, b)]
    return (ends[1] - ends[0]) / rate


def _log_linear(law):
    """(log density but for a constant, its derivative, its knots) of Laplace and merged Laplace laws."""
    if isinstance(law, dpk.Laplace):
        rates, breaks = [1 / mp.mpf(float(law.scale))], []
    else:
        rates, breaks = ([mp.mpf(float(value)) for value in values] for values in (law.rates, law.breaks))
    starts = [mp.mpf(0), *breaks]
    levels = [mp.mpf(0)]
    for rate, (low, high) in zip(rates, itertools.pairwise(starts), strict=False):
        levels.append(levels[-1] - rate * (high - low))

    def segment(x):
        return max(i for i, start in enumerate(starts) if start <= abs(x))

    def log_f(x):
        i = segment(x)
        return levels[i] - rates[i] * (abs(x) - starts[i])

    return log_f, lambda x: -mp.sign(x) * rates[segment(x)], [0, *breaks, *(-c for c in breaks)]


def _gaussian(law, weights, D, eps):
    s = mp.mpf(float(law.sigma))

    def mass(a, b):
        """From the nearer tail."""
        a, b = (-b, -a) if a + b < 0 else (a, b)
        return (mp.erfc(a / (s * mp.sqrt(2))) - mp.erfc(b / (s * mp.sqrt(2)))) / 2

    edges = [edge for low, high, _ in weights for edge in (low, high)]
    norm = sum(_weight(weights, _inside(a, b)) * mass(a, b) for a, b in _pieces(edges, mp.mpf(0)))
    total = mp.mpf(0)
    for a, b in _pieces(edges, D):
        x = _inside(a, b)
        w_p, w_q = _weight(weights, x), _weight(weights, x - D)
        if not w_p:
            continue
        if w_q:
            a, b = _above(mp.log(w_p / w_q) + D * (D - 2 * x) / (2 * s**2) - eps, -D / s**2, x, a, b)
            if a >= b:
                continue
            total -= mp.exp(eps) * w_q * mass(a - D, b - D)
        total += w_p * mass(a, b)
    return total / norm


def _staircase(law, weights, D, eps):
    """All pieces of the middle, and one period on either side of it for all that follow, each e^-eps as high."""
    period, gamma, q = mp.mpf(float(law.period)), mp.mpf(float(law.gamma)), mp.exp(-mp.mpf(float(law.epsilon)))

    powers = [mp.mpf(1)]

    def height(x):
        position = abs(x) / period
        k = int(mp.floor(position))
        k = k if position - k < gamma else k + 1
        while len(powers) <= k:
            powers.append(powers[-1] * q)
        return powers[k] * _weight(weights, x)

    edges = [edge for low, high, _ in weights for edge in (low, high)]
    low, high = min([0, D, *edges, *(edge + D for edge in edges)]), max([0, D, *edges, *(edge + D for edge in edges)])

    def knots(a, b):
        """Steps of f and of f(. - D) in [a, b]."""
        most = int(mp.ceil((max(abs(a), abs(b)) + abs(D)) / period)) + 1
        steps = [side * (k + g) * period for k in range(most) for g in (0, gamma) for side in (1, -1)]
        points = {*steps, *edges, *(point + D for point in (*steps, *edges)), a, b}
        return itertools.pairwise(sorted(point for point in points if a <= point <= b))

    def summed(a, b, D, t):
        middles = [((left + right) / 2, right - left) for left, right in knots(a, b)]
        return sum(width * max(mp.mpf(0), height(x) - (t * height(x - D) if t else 0)) for x, width in middles)

    def everywhere(D, t):
        beyond = summed(low - period, low, D, t) + summed(high, high + period, D, t)
        return summed(low, high, D, t) + beyond / (1 - q)

    return everywhere(D, mp.exp(eps)) / everywhere(mp.mpf(0), None)


def _lattice(law, D, eps):
    """Probabilities of k step, and the same n points further on."""
    step = mp.mpf(float(law.step))
    n = math.ceil(Fraction(float(D)) / Fraction(float(law.step)))
    weights = _lattice_weights(
        type(law), float(law.scale if isinstance(law, DiscreteLaplace) else law.sigma), law.reach, step
    )
    norm, t, reach = weights[0] + 2 * mp.fsum(weights[1:]), mp.exp(eps), law.reach
    total = mp.mpf(0)
    for k in range(-reach, reach + 1):
        shifted_weight = weights[abs(k - n)] if abs(k - n) <= reach else 0
        total += max(mp.mpf(0), weights[abs(k)] - t * shifted_weight)
    return total / norm


@lru_cache(maxsize=64)
def _lattice_weights(kind, width, reach, step):
    unit = step / mp.mpf(width)
    power = (lambda k: k * unit) if kind is DiscreteLaplace else (lambda k: (k * unit) ** 2 / 2)
    return [mp.exp(-power(k)) for k in range(reach + 1)]
