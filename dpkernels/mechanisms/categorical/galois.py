"""Arithmetic of finite fields GF(q), q = r^s for a prime r, on integers 0..q - 1 whose base-r digits are coefficients.

Prime fields use arithmetic modulo q. Other fields use tables, which limits them to ``MAX_TABLE`` elements.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from dpkernels.numerics import RealArray, namespace

MAX_TABLE = 1 << 8  # A table of so many elements squared has 2^16 products.


def prime_power(number: int) -> tuple[int, int] | None:
    """Return (r, s) with number = r^s and r a prime, or None if there are none."""
    if number < 2:
        return None
    r = next((factor for factor in range(2, math.isqrt(number) + 1) if number % factor == 0), number)
    s, cofactor = 0, number
    while cofactor % r == 0:
        cofactor, s = cofactor // r, s + 1
    return (r, s) if cofactor == 1 else None


def is_field(number: int) -> bool:
    """Return whether there is a field with this number of elements here: a prime, or a small power of one."""
    power = prime_power(number)
    return power is not None and (power[1] == 1 or number <= MAX_TABLE)


@lru_cache(maxsize=64)
def field(q: int) -> Field:
    """Return the field with q elements; see ``is_field``."""
    return Field(q)


class Field:
    """The field with q elements."""

    def __init__(self, q: int) -> None:
        power = prime_power(q)
        if power is None or not is_field(q):
            raise ValueError(f"blocks: {q} is neither a prime nor a power of one up to {MAX_TABLE}")
        self.q, (self.r, self.s) = q, power

    def add(self, a: RealArray, b: RealArray) -> RealArray:
        """Return a + b; integers in 0..q - 1 of any shapes that broadcast."""
        if self.s == 1:
            return (a + b) % self.q
        return a ^ b if self.r == 2 else self._look_up(self._sums, a, b)

    def multiply(self, a: RealArray, b: RealArray | int) -> RealArray:
        """Return a b; integers in 0..q - 1 of any shapes that broadcast."""
        return a * b % self.q if self.s == 1 else self._look_up(self.products, a, b)

    def _look_up(self, table: np.ndarray, a: RealArray, b: RealArray | int) -> RealArray:
        return namespace(a, b).asarray(table.ravel())[a * self.q + b]

    @cached_property
    def _digits(self) -> np.ndarray:
        return np.arange(self.q)[:, None] // self.r ** np.arange(self.s) % self.r

    def _number(self, digits: np.ndarray) -> np.ndarray:
        return digits % self.r @ self.r ** np.arange(self.s)

    @cached_property
    def _sums(self) -> np.ndarray:
        return self._number(self._digits[:, None] + self._digits)

    @cached_property
    def products(self) -> np.ndarray:
        """Return the (q, q) table of products, for a field of a prime power or a small prime."""
        if self.s == 1:
            return np.outer(np.arange(self.q), np.arange(self.q)) % self.q
        # Every field has a primitive element, and so a polynomial of which x is one.
        powers = next(filter(None, map(self._powers, product(range(self.r), repeat=self.s))))
        logs = np.zeros(self.q, np.int64)
        logs[powers] = np.arange(self.q - 1)
        table = np.array(powers)[(logs[:, None] + logs) % (self.q - 1)]
        table[0] = table[:, 0] = 0
        return table

    def _powers(self, low: tuple[int, ...]) -> list[int] | None:
        """Return the powers of x modulo x^s + low, if they are all elements but 0; the polynomial is then primitive."""
        element, powers = (1,) + (0,) * (self.s - 1), list[int]()
        while (number := sum(c * self.r**i for i, c in enumerate(element))) not in (0, *powers[:1]):
            powers.append(number)
            shifted = (0, *element[:-1])
            element = tuple((c - element[-1] * m) % self.r for c, m in zip(shifted, low, strict=True))
            if len(powers) >= self.q:
                return None
        return powers if len(powers) == self.q - 1 else None

    @cached_property
    def chunk(self) -> tuple[int, np.ndarray]:
        """Return Q, the largest power of q up to 256, and a table of (Q, Q): sums of products of base-q digits.

        Entry (a, b) is the inner product of the digits of a and b. The field has at most 256 elements.
        """
        size, table = self.q, self.products
        while size * self.q <= MAX_TABLE:
            low, high = np.arange(size * self.q) % self.q, np.arange(size * self.q) // self.q
            table = np.asarray(self.add(self.products[low[:, None], low], table[high[:, None], high]))
            size *= self.q
        return size, np.ascontiguousarray(table, np.uint8)

    @cached_property
    def traces(self) -> np.ndarray:
        """Return the trace of every element, in 0..r - 1: the sum of its powers a^(r^i), 0 <= i < s."""
        power = total = np.arange(self.q)
        for _ in range(self.s - 1):
            for factor in [power] * (self.r - 1):
                power = np.asarray(self.multiply(power, factor))
            total = np.asarray(self.add(total, power))
        return total

    @cached_property
    def frequencies(self) -> np.ndarray:
        """Return for every element w the number k whose digit m is the trace of w x^m: Tr(w y) = sum of k_m y_m."""
        basis = self.r ** np.arange(self.s)
        return self._number(self.traces[self.multiply(np.arange(self.q)[:, None], basis)])

    def characters(self, counts: np.ndarray) -> np.ndarray:
        """Return sum_e counts[.., e] w^(-Tr(u e)) for every element u, w = e^(2 pi i/r), along the last axis."""
        if self.s == 1:
            return np.fft.fft(counts, axis=-1)
        phases = self.traces[self.products]
        return counts @ np.exp(-2j * np.pi / self.r * phases).T
