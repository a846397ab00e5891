"""Small numerics over random parameters in both precisions: 30 settings a kind here, 500 in the slow set.

References are in 60 digits at the very parameters that the code was given. A value that passes through a float on the
way, such as cdf(icdf(u)), may be off by what that float's resolution carries.
"""

import itertools
import math
import zlib

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers import UNIT

import accountants
import dpkernels as dpk
from benchmarks.literature_composite import h2_rate

SETTINGS = [30, pytest.param(500, marks=pytest.mark.slow)]
PRECISIONS = ["float64", "float32"]


@pytest.fixture(autouse=True)
def many_digits():
    """References in 60 digits."""
    with mp.workdps(60):
        yield


over_settings = pytest.mark.parametrize("settings", SETTINGS)
over_precisions = pytest.mark.parametrize("precision", PRECISIONS)
EPSILON = {name: float(np.finfo(name).eps) for name in PRECISIONS}


def draws(name, settings):
    """One generator a setting, the same whatever how many there are."""
    return [np.random.default_rng([zlib.crc32(name.encode()), index]) for index in range(settings)]


def typed(values, precision):
    """Values as the code is given them (NumPy for float64, JAX for float32), and as exact references."""
    values = [np.dtype(precision).type(value) for value in values]
    numbers = values if precision == "float64" else [jnp.asarray(value) for value in values]
    return numbers, [mp.mpf(float(value)) for value in values]


def relative(value, expected):
    return abs(float(mp.mpf(float(value)) / expected - 1))


# Duchi's two points


@over_precisions
@over_settings
def test_two_points_keep_their_digits_at_the_ends(settings, precision):
    worst = 0.0
    for random in draws("two points", settings):
        upper = np.exp(random.normal(0, 2))
        (high, epsilon), (R, eps) = typed([upper, random.uniform(0.01, 19.9)], precision)
        m = dpk.TwoPoint(0 * high, high, epsilon)
        B = R / 2 / mp.tanh(eps / 2)
        for fraction in (0.0, 1.0, 0.5, random.uniform()):
            (x,), (exact,) = typed([fraction * float(high)], precision)
            exact = min(exact, R)
            low, top = exact - R / 2 + B, R / 2 - exact + B
            (down, up) = m.atoms(x)[1]
            worst = max(worst, relative(m.variance(x), low * top), relative(m.absolute_error(x), low * top / B))
            worst = max(worst, relative(down, top / (2 * B)), relative(up, low / (2 * B)))
    # e^eps - 1 has the relative error of eps, which is up to 20 in its last digit.
    assert worst < 40 * EPSILON[precision]


# Truncation and recycling


def kernel_cdf(kind, width, z):
    if kind == "Gaussian":
        return mp.ncdf(z / width)
    return mp.exp(z / width) / 2 if z < 0 else 1 - mp.exp(-z / width) / 2


def reweighted_cdf(kind, width, low, high, outside, z):
    def F(x):
        return kernel_cdf(kind, width, x)

    inner_mass = F(min(max(z, low), high)) - F(low)
    outer_mass = F(min(z, low)) + F(max(z, high)) - F(high)
    return (inner_mass + outside * outer_mass) / (F(high) - F(low) + outside * (F(low) + 1 - F(high)))


@pytest.mark.quick("30-float64")
@over_precisions
@over_settings
def test_reweighted_tails_have_their_digits(settings, precision):
    """Next to an end of a truncated law too, where the kernel's own tails are all but equal."""
    worst = 0.0
    for random in draws("reweighted", settings):
        kind = ("Gaussian", "Laplace")[random.integers(2)]
        width = np.exp(random.normal())
        ends = -width * np.exp(random.uniform(-3, 1.8)), width * np.exp(random.uniform(-3, 1.8))
        outside = random.choice([0.0, 0.0, 0.1, 0.5, 0.99])
        parameters, exact = typed([width, *ends, outside], precision)
        law = dpk.Reweighted(getattr(dpk, kind)(parameters[0]), *parameters[1:])
        mirror = dpk.Reweighted(law.kernel, -law.high, -law.low, law.outside)
        u = 10.0 ** random.uniform(-13, -0.4)
        (z,), (exact_z,) = typed([float(law.icdf(np.dtype(precision).type(u)))], precision)
        expected = reweighted_cdf(kind, *exact, exact_z)
        if expected > 1e-30:
            worst = max(worst, relative(law.cdf(z), expected), relative(mirror.sf(-z), expected))
    assert worst < 600 * EPSILON[precision]


def random_kernel(random, precision):
    """A symmetric law of any kind, its values as references, and its density, in pieces between breaks."""
    kind = ("Gaussian", "Laplace", "MergedLaplace", "Staircase")[random.integers(4)]
    if kind == "MergedLaplace":
        law = merged(random, precision)
    elif kind == "Staircase":
        parameters, _ = typed([random.uniform(0.05, 8), np.exp(random.normal()), random.uniform()], precision)
        law = dpk.Staircase(*parameters)
    else:
        parameters, _ = typed([np.exp(random.normal())], precision)
        law = getattr(dpk, kind)(*parameters)
    return law, float(law.variance) ** 0.5


def exact_density(law):
    """The kernel's unscaled density at z > 0 in many digits, and where its formula changes."""
    values = [mp.mpf(float(leaf)) for leaf in jax.tree.leaves(law)]
    if isinstance(law, dpk.Gaussian):
        return (lambda z: mp.exp(-((z / values[0]) ** 2) / 2)), lambda high: []
    if isinstance(law, dpk.Laplace):
        return (lambda z: mp.exp(-z / values[0])), lambda high: []
    if isinstance(law, dpk.Staircase):
        eps, period, gamma = values

        def stairs(z):
            k = mp.floor(z / period)
            return mp.exp(-eps * (k + (z / period - k >= gamma)))

        return stairs, lambda high: [
            period * (k + offset) for k in range(int(high / period) + 1) for offset in (0, gamma)
        ]
    rates, breaks = values[: len(law.rates)], values[len(law.rates) :]

    def merged_density(z):
        ends = [mp.mpf(0), *breaks, mp.inf]
        return mp.exp(-sum(rate * (min(z, b) - a) for rate, a, b in zip(rates, ends, ends[1:], strict=False) if z > a))

    return merged_density, lambda high: breaks


def exact_moment(law, power, high):
    """Integral of z^power times the unscaled density over [0, high]."""
    density, breaks = exact_density(law)
    points = sorted({mp.mpf(0), high, *(b for b in breaks(high) if 0 < b < high)})
    # In steps of a thousandth of a piece off its ends the density is that of the piece's inside.
    total = mp.mpf(0)
    for low, top in itertools.pairwise(points):
        middle = (low + top) / 2
        slope = mp.log(density(low + (top - low) * 3 / 4) / density(low + (top - low) / 4)) / ((top - low) / 2)
        if isinstance(law, dpk.Gaussian):
            total += mp.quad(lambda z: z**power * density(z), [low, middle, top])
        else:
            height = density(middle)
            total += mp.quad(
                lambda z, m=middle, a=height, r=slope: z**power * a * mp.exp(r * (z - m)), [low, middle, top]
            )
    return total


@pytest.mark.lengthy
@pytest.mark.quick("30-float64")
@over_precisions
@over_settings
def test_moments_of_truncations_however_narrow(settings, precision):
    """Variance of symmetric ones, E|Z| and both moments of one side, from 1e-6 standard deviations to 6."""
    worst = 0.0
    with mp.workdps(25):
        for random in draws("narrow", settings):
            kernel, deviation = random_kernel(random, precision)
            (low, high), ends = typed(-deviation * 10 ** random.uniform(-6, 0.8, 2) * [1, -1], precision)
            law = dpk.Reweighted(kernel, -high, high, 0.0 * high)
            mass, first, second = (exact_moment(kernel, power, ends[1]) for power in range(3))
            worst = max(worst, relative(law.variance, second / mass), relative(law.absolute_moment, first / mass))
            other_side = [exact_moment(kernel, power, -ends[0]) for power in range(3)]
            law = dpk.Reweighted(kernel, low, high, 0.0 * high)
            total = mass + other_side[0]
            worst = max(worst, relative(law.moment(2, low, high), (second + other_side[2]) / total))
            mean = (first - other_side[1]) / total
            worst = max(worst, abs(float(law.mean) - float(mean)) / float((first + other_side[1]) / total))
    assert worst < 600 * EPSILON[precision]


# Merged Laplace


def merged(random, precision):
    count = int(random.integers(1, 5))
    rates = np.exp(random.normal(0, 1.5, count + 1)) * np.append(random.uniform(size=count) > 0.2, 1.0)
    breaks = np.cumsum(np.exp(random.normal(-1, 1.5, count)))
    parameters, _ = typed([*rates, *breaks], precision)
    return dpk.MergedLaplace(tuple(parameters[: count + 1]), tuple(parameters[count + 1 :]))


def merged_mass(law, low, high):
    """P(low < Z <= high) for low >= 0."""
    rates, breaks = ([mp.mpf(float(value)) for value in values] for values in (law.rates, law.breaks))
    start, level, total, inside = mp.mpf(0), mp.mpf(1), mp.mpf(0), mp.mpf(0)
    for rate, end in zip(rates, [*breaks, mp.inf], strict=True):

        def integral(a, b, rate=rate, start=start, level=level):
            if rate == 0:
                return level * (b - a)
            return level * (mp.exp(-rate * (a - start)) - (mp.exp(-rate * (b - start)) if b != mp.inf else 0)) / rate

        total += integral(start, end)
        if min(high, end) > max(low, start):
            inside += integral(max(low, start), min(high, end))
        level *= mp.exp(-rate * (end - start)) if end != mp.inf else 0
        start = end
    return inside / (2 * total)


@pytest.mark.quick("30-float64")
@over_precisions
@over_settings
def test_merged_laplace_masses(settings, precision):
    worst = 0.0
    for random in draws("merged", settings):
        law = merged(random, precision)
        distance = float(law.breaks[-1]) * random.uniform(0, 1.5)
        ends = distance, distance + 10.0 ** random.uniform(-8, 0)
        (low, high), (a, b) = typed(ends, precision)
        mass, tail = merged_mass(law, a, b), merged_mass(law, a, mp.inf)
        if mass > 1e-30:
            worst = max(worst, relative(law.moment(0, low, high), mass))
        if tail > 1e-30:
            worst = max(worst, relative(law.sf(low), tail), relative(law.cdf(-low), tail))
    assert worst < 600 * EPSILON[precision]


# Staircase


@pytest.mark.lengthy
@over_precisions
@over_settings
def test_staircase_comes_back(settings, precision):
    """cdf(icdf(u)) and sf(isf(u)) are u but for what the resolution of z carries, at large eps too."""
    worst = 0.0
    for random in draws("staircase", settings):
        epsilon, gamma = (
            random.uniform(0.05, 20),
            random.choice([0.0, 1.0, random.uniform(), 10 ** random.uniform(-4, 0)]),
        )
        (eps, period, gamma), _ = typed([epsilon, np.exp(random.normal()), gamma], precision)
        law = dpk.Staircase(eps, period, gamma)
        u = np.dtype(precision).type(10.0 ** random.uniform(-10, math.log10(0.49)))
        (tail,), _ = typed([u], precision)
        z = law.icdf(tail)
        steepest = float(np.maximum(law.prob(z), law.prob(z * (1 - 4 * EPSILON[precision]))))
        carried = 4 * steepest * float(np.spacing(np.abs(np.dtype(precision).type(z))))
        # The exponent eps k of a period has eps k ulps of its own.
        rounding = (20 + 2 * abs(math.log(float(u)))) * EPSILON[precision] * float(u)
        for back in (law.cdf(z), law.sf(law.isf(tail))):
            worst = max(worst, abs(float(back) - float(u)) / (carried + rounding))
    assert worst < 3


# Windowed mechanisms


@pytest.mark.quick("30-float64")
@over_precisions
@over_settings
def test_windows_and_bases_keep_their_masses(settings, precision):
    """Where the base has 1e-6 of the mass too: masses, variances, the base's density and the lower end's cdf."""
    worst = 0.0
    for random in draws("masses", settings):
        window = ("uniform", "sine", "triangle")[random.integers(3)]
        base = dpk.Quartic(10.0 ** random.uniform(-3, 0)) if random.integers(2) else "constant"
        mechanism = dpk.composite(window, base, epsilon=random.uniform(0.1, 20), lower=-1.0, upper=3.0)
        values = [float(np.dtype(precision).type(leaf)) for leaf in jax.tree.leaves(mechanism)]
        reference = jax.tree.unflatten(jax.tree.structure(mechanism), [mp.mpf(value) for value in values])
        variant = mechanism
        if precision == "float32":
            variant = jax.tree.unflatten(jax.tree.structure(mechanism), [jnp.float32(value) for value in values])
        h, g, m = reference.window, reference.base, reference.width
        b = (g.edge + 4) / 5 if isinstance(g, dpk.Quartic) else mp.mpf(1)
        spread = (g.edge / 7 + mp.mpf(4) / 21) / b if isinstance(g, dpk.Quartic) else mp.mpf(1) / 3
        area, around = EXACT_WINDOWS[type(h).__name__]()
        y = 1 / (reference.relative_height * area * m + 2 * b)
        S1, S2 = reference.relative_height * area * m * y, 2 * b * y
        C = 2 * S1 * (1 - m / 2) / 4
        worst = max(
            worst, relative(variant.base_mass, S2), relative(variant.window_mass, S1), relative(variant.level, y)
        )
        for x in (-1.0, 1.0, 3.0):
            exact = (S2 * spread + S1 * around * m**2 + (mp.mpf(x - 1) * C) ** 2 * S2 / S1) / C**2
            worst = max(worst, relative(variant.variance(variant.lower + x + 1), exact))
        # A report of the base alone: the window is at the other end.
        report = variant.middle - 0.75 / variant.scale
        shape = 1 - (1 - g.edge) * mp.mpf(0.75) ** 4 if isinstance(g, dpk.Quartic) else mp.mpf(1)
        density = variant.level * variant.base.density(-0.75) * variant.scale
        worst = max(worst, relative(density, y * shape * C))
        if m < 1.7:
            likelihood = math.exp(variant.log_prob(report, variant.upper))
            worst = max(worst, relative(likelihood, y * shape * C) / 4)
    assert worst < 40 * EPSILON[precision]


# Area, and variance about the middle, of windows on [0, 1] with peak 1.
EXACT_WINDOWS = {
    "Uniform": lambda: (mp.mpf(1), mp.mpf(1) / 12),
    "Sine": lambda: (2 / mp.pi, mp.mpf(1) / 4 - 2 / mp.pi**2),
    "Triangle": lambda: (mp.mpf(1) / 2, mp.mpf(1) / 24),
}


@over_precisions
@over_settings
def test_h2_rate_is_of_areas(settings, precision):
    worst = 0.0
    for random in draws("windowed", settings):
        window = ("uniform", "sine", "triangle")[random.integers(3)]
        base = dpk.Quartic(10.0 ** random.uniform(-3, 0)) if random.integers(2) else "constant"
        mechanism = dpk.composite(
            window, base, epsilon=random.uniform(0.1, 10), lower=-1.0, upper=3.0, width=random.uniform(0.05, 1.9)
        )
        x = random.uniform(-1, 3)
        if precision == "float32":
            mechanism = jax.tree.map(jnp.float32, mechanism)
            x = jnp.float32(x)
        reference = jax.tree.map(np.float64, mechanism)
        x_value = np.float64(x)
        low, high = reference.output_interval
        farther_end = high if high - x_value > x_value - low else low
        points = np.linspace(0, 1, 20_001)

        def area(share, reference=reference, x_value=x_value, farther_end=farther_end, points=points):
            y = x_value + share * (farther_end - x_value) * points
            return np.abs(np.trapezoid(reference.pdf(y, x_value), y))

        worst = max(worst, abs(h2_rate(mechanism, x) * area(0.75) / area(0.25) - 1))
    # The trapezoidal rule on a jump of the density is good to a ten-thousandth.
    assert worst < (2e-3 if precision == "float64" else 3e-3)


# Delta near the largest loss


def exact_stick(density, knots, D, eps):
    """Integral of max(0, p - e^eps q), q being p a distance D further on; log p is affine between knots."""
    total, ends = mp.mpf(0), sorted({*knots, *(knot + D for knot in knots)})
    for low, high in itertools.pairwise(ends):
        x = low + (high - low) / 4
        step = (high - low) / 2
        (p, r), (q, s) = ((density(z), mp.log(density(z + step) / density(z)) / step) for z in (x, x - D))
        fall = r - s
        excess, is_above = (mp.log(p / q) - eps), [mp.log(p / q) + fall * (end - x) > eps for end in (low, high)]
        if not any(is_above):
            continue
        cut = x - excess / fall if is_above[0] != is_above[1] else low
        lower, upper = (low, cut) if not is_above[1] else (cut, high)
        for height, rate, sign in ((p, r, 1), (q, s, -mp.exp(eps))):
            width = upper - lower
            grown = mp.expm1(rate * width) / rate if rate else width
            total += sign * height * mp.exp(rate * (lower - x)) * grown
    return total


def exact_noise(noise, D, eps):
    """Of Laplace and merged Laplace laws, reweighted or not."""
    kernel = noise.unweighted
    unscaled, breaks = exact_density(kernel)
    weighted = isinstance(noise, dpk.Reweighted)
    low, high, outer_weight = (
        mp.mpf(float(v)) for v in ((noise.low, noise.high, noise.outside) if weighted else (0, 0, 1))
    )
    reach = 300 * mp.mpf(float(kernel.variance)) ** 0.5 + abs(D)
    while unscaled(reach) > unscaled(mp.mpf(0)) * mp.mpf(10) ** -50:  # A tail may be far wider than the deviation.
        reach *= 2
    knots = sorted({-reach, -reach + D, mp.mpf(0), low, high, reach, *breaks(reach), *(-b for b in breaks(reach))})

    def density(z):
        return unscaled(abs(z)) * (1 if low <= z <= high else outer_weight)

    norm = mp.mpf(0)
    for a, b in itertools.pairwise(knots):
        x, step = a + (b - a) / 4, (b - a) / 2
        rate = mp.log(density(x + step) / density(x)) / step
        norm += density(x) * mp.exp(rate * (a - x)) * (mp.expm1(rate * (b - a)) / rate if rate else b - a)
    return max(exact_stick(density, knots, shift, eps) for shift in (D, -D)) / norm


def exact_delta(name, m, eps):
    """The profile in many digits, of the numbers that the mechanism holds."""
    E = mp.exp(mp.mpf(eps))
    if name in ("recycled", "merged"):
        return exact_noise(m.noise, mp.mpf(float(m.sensitivity)), mp.mpf(eps))
    if name in ("laplace", "any unit"):
        return max(mp.mpf(0), 1 - mp.exp((mp.mpf(eps) - mp.mpf(m.sensitivity) / mp.mpf(m.noise.scale)) / 2))
    if name == "weights":
        return sum(max(mp.mpf(0), mp.mpf(a) - E * mp.mpf(b)) for a, b in zip(m.p.tolist(), m.q.tolist(), strict=True))
    if name == "hybrid":
        w = mp.mpf(float(m.weight))
        return w * exact_delta("piecewise", m.first, eps) + (1 - w) * exact_delta("duchi", m.second, eps)
    q = mp.exp(-mp.mpf(m.epsilon))
    if name == "duchi":
        return max(mp.mpf(0), (1 - E * q) / (1 + q))
    if name in ("piecewise", "triangle", "square_wave"):
        window = m.unbiased if name == "square_wave" else m
        k, width = (mp.mpf(float(value)) for value in (window.relative_height, window.width))
        if name == "triangle":
            return k * width * max(mp.mpf(0), 1 - (E - 1) / k) ** 2 / (k * width + 4)
        return max(mp.mpf(0), width * (1 + k - E) / (k * width + 2))
    gamma = mp.mpf(m.noise.gamma)
    peak = (1 - q) / (2 * (gamma + q * (1 - gamma)))
    ends, total = sorted({mp.mpf(0), gamma, 1 - gamma, mp.mpf(1)}), max(mp.mpf(0), (1 - E * q) / 2)
    for low, high in itertools.pairwise(ends):
        first, second = (peak * (1 if z < gamma else q) for z in ((low + high) / 2, 1 - (low + high) / 2))
        total += max(mp.mpf(0), (high - low) * (first - E * second))
    return total


def of_loss(name, random):
    """A mechanism whose loss is bounded, and its largest loss."""
    eps = float(random.uniform(1.2, 20))
    if name == "weights":
        p = random.dirichlet(np.ones(5))
        p, q = (np.sort(p), np.sort(p)[::-1].copy())
        return accountants.discrete_pair(p, q), float(max(np.log(p / q)))
    if name in ("recycled", "merged"):
        law = merged(random, "float64") if name == "merged" else dpk.Laplace(1 / eps)
        D = float(law.variance) ** 0.5 * random.uniform(0.2, 4) if name == "merged" else 1.0
        ends = random.uniform(0.3, 2, 2) * D
        noise = law if name == "merged" else dpk.Reweighted(law, -ends[0], ends[1], random.uniform(0.05, 0.95))
        m = dpk.Additive(noise, sensitivity=D)
        return m, accountants.epsilon(m)
    units = {"laplace": 0, "staircase": 0, "any unit": 12}
    make = {"any unit": dpk.laplace, "triangle": dpk.piecewise_triangle}.get(name) or getattr(dpk, name)
    interval = {"sensitivity": float(10 ** random.uniform(-units[name], units[name]))} if name in units else UNIT
    m = make(epsilon=eps, **interval)
    return m, (accountants.epsilon(m) if name in ("triangle", "any unit") else eps)


BOUNDED_LOSSES = ["laplace", "any unit", "recycled", "merged", "staircase"]
BOUNDED_LOSSES += ["duchi", "piecewise", "triangle", "square_wave", "hybrid", "weights"]


@pytest.mark.quick("30-laplace", "30-any unit", "30-duchi", "30-piecewise", "30-square_wave", "30-weights")
@pytest.mark.parametrize("name", BOUNDED_LOSSES)
@over_settings
def test_delta_next_to_the_largest_loss(settings, name):
    """Never below the truth, and above it by no more than what a few units in the last place of eps change.

    A staircase's first step is a difference of knots, whose share of the mass is near 1 where it is narrow.
    """
    lowest, highest = np.inf, 0.0
    for random in draws(name, settings):
        m, largest = of_loss(name, random)
        eps = largest - np.spacing(largest) * np.append([-2, -1, 0], np.round(10.0 ** random.uniform(0, 15, 5)))
        lost = EPSILON["float64"] / m.noise.gamma if name == "staircase" else 0
        for deltas in (accountants.delta(m, eps), accountants.guarantee(m).delta(eps)):
            for epsilon, value in zip(eps, deltas, strict=True):
                exact = exact_delta(name, m, epsilon)
                lowest = min(lowest, float(mp.mpf(value) - exact * (1 - mp.mpf(lost))))
                excess = mp.mpf(value) - exact * (1 + mp.mpf(lost))
                highest = max(highest, float(excess / (1 + epsilon)) / EPSILON["float64"])
    assert lowest >= 0.0, lowest
    assert highest < 60  # With those of the log densities, which of merged laws are far from 0.


# Types


@pytest.mark.thorough
@over_settings
def test_moments_have_the_parameters_type(settings):
    """float32 parameters have float32 moments, whether or not JAX's 64-bit types are on."""
    for random in draws("types", settings // 15):
        with jax.enable_x64(bool(random.integers(2))):
            laws = [merged(random, "float32"), dpk.Gaussian(jnp.float32(2)), dpk.Laplace(jnp.float32(2))]
            laws += [dpk.Staircase(*(jnp.float32(value) for value in (random.uniform(0.1, 9), 1.0, 0.3)))]
            laws += [dpk.Reweighted(law, *(jnp.float32(end) for end in (-1, 2, random.uniform()))) for law in laws[:2]]
            for law in laws:
                shapes = jax.eval_shape(moments, law, jnp.asarray([-1.5, 0.0, 3.0], jnp.float32))
                assert {value.dtype for value in shapes} == {jnp.dtype("float32")}, law


def moments(law, z):
    """All that a law computes, of its own parameters and of z."""
    values = [
        law.mean,
        law.variance,
        law.absolute_moment,
        law.cdf(z),
        law.sf(z),
        law.log_prob(z),
        law.icdf(z / 8 + 0.5),
    ]
    values += [law.mass(z, z + 1), law.moment(0, z, z + 1), law.moment(1, -1.0, 2), law.moment(2, z, z + 1)]
    return [*values, dpk.Additive(law).log_prob(z, z[0])]


@pytest.mark.thorough
def test_likelihoods_have_the_parameters_type():
    shapes = [("sine", dpk.Quartic(0.3)), (lambda z: 1 - z + z**2, "constant")]
    mechanisms = [dpk.composite(window, base, epsilon=2.0, **UNIT) for window, base in shapes]
    mechanisms += [dpk.central_piecewise(epsilon=1.0, sensitivity=0.3, **UNIT), dpk.hybrid(epsilon=2.0, **UNIT)]
    with jax.enable_x64(True):
        for m in jax.tree.map(jnp.float32, [*mechanisms, dpk.duchi(epsilon=1.0, **UNIT)]):
            z = jnp.asarray([0.2, 0.9], jnp.float32)
            results = jax.eval_shape(lambda m, z: [m.log_prob(z, z), m.mass(z, z), m.cdf(z, z), m.variance(z)], m, z)
            assert {value.dtype for value in results} == {jnp.dtype("float32")}, m
