"""Small numerics over random parameters in both precisions: 30 settings a kind here, 500 in the slow set.

References are in 60 digits at the very parameters that the code was given. A value that passes through a float on the
way, such as cdf(icdf(u)), may be off by what that float's resolution carries.
"""

import math
import zlib

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import dpkernels as dpk

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
    given = values if precision == "float64" else [jnp.asarray(value) for value in values]
    return given, [mp.mpf(float(value)) for value in values]


def relative(found, expected):
    return abs(float(mp.mpf(float(found)) / expected - 1))


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
        for share in (0.0, 1.0, 0.5, random.uniform()):
            (x,), (exact,) = typed([share * float(high)], precision)
            at = min(exact, R)
            low, top = at - R / 2 + B, R / 2 - at + B
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

    inside = F(min(max(z, low), high)) - F(low)
    beyond = F(min(z, low)) + F(max(z, high)) - F(high)
    return (inside + outside * beyond) / (F(high) - F(low) + outside * (F(low) + 1 - F(high)))


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
        given, exact = typed([width, *ends, outside], precision)
        law = dpk.Reweighted(getattr(dpk, kind)(given[0]), *given[1:])
        mirror = dpk.Reweighted(law.kernel, -law.high, -law.low, law.outside)
        u = 10.0 ** random.uniform(-13, -0.4)
        (z,), (at,) = typed([float(law.icdf(np.dtype(precision).type(u)))], precision)
        expected = reweighted_cdf(kind, *exact, at)
        if expected > 1e-30:
            worst = max(worst, relative(law.cdf(z), expected), relative(mirror.sf(-z), expected))
    assert worst < 600 * EPSILON[precision]


# Merged Laplace


def merged(random, precision):
    count = int(random.integers(1, 5))
    rates = np.exp(random.normal(0, 1.5, count + 1)) * np.append(random.uniform(size=count) > 0.2, 1.0)
    breaks = np.cumsum(np.exp(random.normal(-1, 1.5, count)))
    given, _ = typed([*rates, *breaks], precision)
    return dpk.MergedLaplace(tuple(given[: count + 1]), tuple(given[count + 1 :]))


def merged_mass(law, low, high):
    """P(low < Z <= high) for low >= 0."""
    rates, breaks = ([mp.mpf(float(value)) for value in values] for values in (law.rates, law.breaks))
    start, level, total, part = mp.mpf(0), mp.mpf(1), mp.mpf(0), mp.mpf(0)
    for rate, end in zip(rates, [*breaks, mp.inf], strict=True):

        def integral(a, b, rate=rate, start=start, level=level):
            if rate == 0:
                return level * (b - a)
            return level * (mp.exp(-rate * (a - start)) - (mp.exp(-rate * (b - start)) if b != mp.inf else 0)) / rate

        total += integral(start, end)
        if min(high, end) > max(low, start):
            part += integral(max(low, start), min(high, end))
        level *= mp.exp(-rate * (end - start)) if end != mp.inf else 0
        start = end
    return part / (2 * total)


@over_precisions
@over_settings
def test_merged_laplace_masses(settings, precision):
    worst = 0.0
    for random in draws("merged", settings):
        law = merged(random, precision)
        far = float(law.breaks[-1]) * random.uniform(0, 1.5)
        ends = far, far + 10.0 ** random.uniform(-8, 0)
        (low, high), (a, b) = typed(ends, precision)
        part, tail = merged_mass(law, a, b), merged_mass(law, a, mp.inf)
        if part > 1e-30:
            worst = max(worst, relative(law.narrow_mass(low, high), part))
        if tail > 1e-30:
            worst = max(worst, relative(law.sf(low), tail), relative(law.cdf(-low), tail))
    assert worst < 600 * EPSILON[precision]


# Staircase


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
        (eps, period, share), _ = typed([epsilon, np.exp(random.normal()), gamma], precision)
        law = dpk.Staircase(eps, period, share)
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


@over_precisions
@over_settings
def test_h2_rate_is_of_areas(settings, precision):
    worst = 0.0
    for random in draws("windowed", settings):
        window = ("uniform", "sine", "triangle")[random.integers(3)]
        base = dpk.Quartic(10.0 ** random.uniform(-3, 0)) if random.integers(2) else "constant"
        made = dpk.composite(
            window, base, epsilon=random.uniform(0.1, 10), lower=-1.0, upper=3.0, width=random.uniform(0.05, 1.9)
        )
        x = random.uniform(-1, 3)
        if precision == "float32":
            made = jax.tree.map(jnp.float32, made)
            x = jnp.float32(x)
        reference = jax.tree.map(np.float64, made)
        at = np.float64(x)
        low, high = reference.output_interval
        far = high if high - at > at - low else low
        points = np.linspace(0, 1, 20_001)

        def area(share, reference=reference, at=at, far=far, points=points):
            y = at + share * (far - at) * points
            return np.abs(np.trapezoid(reference.pdf(y, at), y))

        worst = max(worst, abs(float(made.h2_rate(x)) * area(0.75) / area(0.25) - 1))
    # The trapezoidal rule on a jump of the density is good to a ten-thousandth.
    assert worst < (2e-3 if precision == "float64" else 3e-3)


# Types


@over_settings
def test_moments_have_the_parameters_type(settings):
    """float32 parameters have float32 moments, whether or not JAX's 64-bit types are on."""
    for random in draws("types", settings // 10):
        with jax.enable_x64(bool(random.integers(2))):
            laws = [merged(random, "float32")]
            laws += [dpk.Reweighted(laws[0], *(jnp.float32(end) for end in (-1, 2, random.uniform())))]
            laws += [dpk.Staircase(*(jnp.float32(value) for value in (random.uniform(0.1, 9), 1.0, 0.3)))]
            laws += [dpk.Gaussian(jnp.float32(2)), dpk.Laplace(jnp.float32(2))]
            for law in laws:
                z = jnp.asarray([-1.5, 0.0, 3.0], jnp.float32)
                found = [law.mean, law.variance, law.absolute_moment, law.cdf(z), law.sf(z), law.log_prob(z)]
                found += [law.icdf(jnp.asarray([0.2, 0.7], jnp.float32)), law.mass(z, z + 1), law.narrow_mass(z, z + 1)]
                assert {value.dtype for value in found} == {jnp.dtype("float32")}, law
