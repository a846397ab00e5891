"""The normal law in integers: values with bounds proven in docs/proofs/vectors.md, for Gaussian noise on vectors."""

from __future__ import annotations

import math
from fractions import Fraction

from dpkernels.exact.certificate import exp_lower_bound

# Fixed point with this many fractional bits; FAR is as far out as the functions below are used.
BITS = 256
FAR = 14
# The first 50 decimals of pi, rounded down.
_PI = Fraction(314159265358979323846264338327950288419716939937510, 10**50)
_ROOT = Fraction(math.isqrt(int(2 * _PI * (1 << 320))), 1 << 160)


def ndtr_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """A lower and an upper bound of Phi(x), 2^-79 apart at most."""
    if x < 0:
        low, high = ndtr_bounds(-x)
        return 1 - high, 1 - low
    if x > FAR:
        return 1 - Fraction(1, 1 << 100), Fraction(1)  # Phi(-14) < 2^-140
    value = Fraction(1, 2) + Fraction(_central(_fixed(x)), 1 << BITS)
    slack = Fraction(1, 1 << 80)
    return value - slack, value + slack


def _central(x: int) -> int:
    """Phi(x) - 1/2 for fixed-point x in [0, FAR], to within 2^-80.

        Phi(x) - 1/2 = 1/sqrt(2 pi) sum_k (-1)^k x^(2k+1) / (2^k k! (2k + 1))

    Terms follow from each other, each rounded down; of the 2^9 those from the 450th on are below a unit.
    """
    square, term, total = x * x >> BITS, x, x
    for k in range(1, 1 << 9):
        term = term * square // (2 * k) >> BITS
        total += (-1) ** k * (term // (2 * k + 1))
    return total * _ROOT.denominator // _ROOT.numerator


def cell_masses(sigma: Fraction, count: int) -> tuple[list[int], Fraction]:
    """Masses of the cells [j - 1/2, j + 1/2], j = 0..count-1, of a Gaussian, and a bound on the sum of their errors.

    With h = 1/sigma, m = j h and Hermite polynomials He,

        mass = phi(m) h (1 + He_2(m) h^2/24 + He_4(m) h^4/1920 + He_6(m) h^6/322560) + R,   |R| <= 42 h^9 / 92897280

    and phi(m) follows from cell to cell: phi(m + h) = phi(m) e^(-h^2 (2j + 1)/2), to count^2 2^-119.
    """
    h, one = 1 / sigma, 1 << BITS
    decay, factor = _fixed(1 / exp_lower_bound(h**2)), _fixed(1 / exp_lower_bound(h**2 / 2))
    step, phi, masses = _fixed(h), one * _ROOT.denominator // _ROOT.numerator, []
    a, b, c = (_fixed(h ** (2 * k) / n) for k, n in ((1, 24), (2, 1920), (3, 322560)))
    for j in range(count):
        s = (j * step) ** 2 >> BITS
        he2 = s - one
        he4 = (s * (s - 6 * one) >> BITS) + 3 * one
        he6 = (s * ((s * (s - 15 * one) >> BITS) + 45 * one) >> BITS) - 15 * one
        bracket = one + (he2 * a + he4 * b + he6 * c >> BITS)
        masses.append((phi * step >> BITS) * bracket >> BITS)
        phi, factor = phi * factor >> BITS, factor * decay >> BITS
    return masses, count * 42 * h**9 / 92897280 + Fraction(2 * count**2, 1 << 119)


def _fixed(x: Fraction) -> int:
    """x in units of 2^-BITS, rounded down."""
    return (x.numerator << BITS) // x.denominator


def root_up(x: Fraction) -> Fraction:
    """A rational at least sqrt(x), within 2^-80; exact for squares of whole numbers."""
    root = math.isqrt(x.numerator) if x.denominator == 1 else 0
    if root * root == x:
        return Fraction(root)
    return Fraction(math.isqrt((x.numerator << 160) // x.denominator) + 1, 1 << 80)
