"""Proven bounds on Gaussian probabilities in fixed point: of a half-line, and of all cells of a lattice."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from dpkernels.exact.certificate import exp_lower_bound

# Fractional bits of the fixed point in which Gaussian probabilities are bounded.
FIXED_BITS = 256
# Standard deviations up to which they are bounded.
MAX_DEVIATIONS = 14
# The first 50 decimals of pi, rounded down, and sqrt(2 pi).
_PI = Fraction(314159265358979323846264338327950288419716939937510, 10**50)
_ROOT = Fraction(math.isqrt(int(2 * _PI * (1 << 320))), 1 << 160)


def ndtr_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound of Phi(x), 2^-79 apart at most.

        Phi(x) - 1/2 = 1/sqrt(2 pi) sum_k (-1)^k x^(2k+1) / (2^k k! (2k + 1))

    Terms follow from each other, each rounded down; of the 2^9 those from the 450th on are below a unit.
    """
    if x < 0:
        low, high = ndtr_bounds(-x)
        return 1 - high, 1 - low
    if x > MAX_DEVIATIONS:
        return 1 - Fraction(1, 1 << 100), Fraction(1)  # Phi(-14) < 2^-140
    term = total = _fixed(x)
    square = term * term >> FIXED_BITS
    for k in range(1, 1 << 9):
        term = term * square // (2 * k) >> FIXED_BITS
        total += (-1) ** k * (term // (2 * k + 1))
    central, slack = total * _ROOT.denominator // _ROOT.numerator, Fraction(1, 1 << 80)
    value = Fraction(1, 2) + Fraction(central, 1 << FIXED_BITS)
    return value - slack, value + slack


@lru_cache(maxsize=2)
def cell_masses(sigma: Fraction, count: int, *, is_fine: bool = False) -> tuple[list[int], Fraction]:
    """Return the Gaussian masses of the cells [j - 1/2, j + 1/2], j = 0..count-1, and a bound on their total error.

    With h = 1/sigma, m = j h and Hermite polynomials He,

        mass = phi(m) h (1 + He_2(m) h^2/24 + He_4(m) h^4/1920 + He_6(m) h^6/322560) + R,   |R| <= 42 h^9 / 92897280

    and phi(m) follows from bin to bin: phi(m + h) = phi(m) e^(-h^2 (2j + 1)/2), to count^2 2^-119. Where ``is_fine``
    the exponentials have all digits of the fixed point, and phi(m) is known to count^2 2^-253 + 2^-150.
    """
    h, unit = 1 / sigma, 1 << FIXED_BITS
    bits = FIXED_BITS + 64 if is_fine else 160
    decay, factor = _fixed(1 / exp_lower_bound(h**2, bits)), _fixed(1 / exp_lower_bound(h**2 / 2, bits))
    step, phi, masses = _fixed(h), unit * _ROOT.denominator // _ROOT.numerator, []
    a, b, c = (_fixed(h ** (2 * k) / n) for k, n in ((1, 24), (2, 1920), (3, 322560)))
    for j in range(count):
        s = (j * step) ** 2 >> FIXED_BITS
        he2 = s - unit
        he4 = (s * (s - 6 * unit) >> FIXED_BITS) + 3 * unit
        he6 = (s * ((s * (s - 15 * unit) >> FIXED_BITS) + 45 * unit) >> FIXED_BITS) - 15 * unit
        bracket = unit + (he2 * a + he4 * b + he6 * c >> FIXED_BITS)
        masses.append((phi * step >> FIXED_BITS) * bracket >> FIXED_BITS)
        phi, factor = phi * factor >> FIXED_BITS, factor * decay >> FIXED_BITS
    roundings = Fraction(count**2, 1 << 252) + Fraction(1, 1 << 149) if is_fine else Fraction(2 * count**2, 1 << 119)
    return masses, count * 42 * h**9 / 92897280 + roundings


def _fixed(x: Fraction) -> int:
    """Return x in units of 2^-FIXED_BITS, rounded down."""
    return (x.numerator << FIXED_BITS) // x.denominator
