"""Block response: randomised response over the blocks of a random partition of many categories.

The number of a category, written with t digits in base g, is a vector x of GF(g)^t. Here g is a prime power, and
D = g^t >= d. A direction is a vector a whose highest digit that is not 0 is 1. There are (D - 1)/(g - 1) directions. A
report is a direction, drawn uniformly and independently of the value, and a block. The block of x in direction a is the
inner product <a, x>, one of g. Randomised response over the blocks perturbs it:

    p = e^eps/(e^eps + g - 1),    q = (c e^eps + 1 - c)/(e^eps + g - 1),    c = (D/g - 1)/(D - 1),

where c is the probability that another category is in the block of x. If d = D, the mean squared error is that of
subset selection with sets of d/g categories. The best g is near e^eps + 1.

Source: the balanced case of optimal local hashing (Wang, Blocki, Li & Jha 2017), with the linear partitions of
projective geometry response (Feldman, Nelson, Nguyen & Talwar 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, islice

import numpy as np

from dpkernels import checks
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.mechanisms.categorical.base import (
    Categorical,
    Labels,
    parse_categories,
    randomised_choice,
    response_log_prob,
    value_or_best,
)
from dpkernels.mechanisms.categorical.galois import MAX_TABLE, field, is_field
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree

_MAX_BLOCKS = 1 << 20  # blocks of a direction, at most
_MAX_REPORTS = 1 << 62  # different reports, at most: they are signed integers of 64 bits
_MAX_TABULATED = 1 << 18  # directions whose digits are tabulated


@partial(pytree, static=("categories", "blocks", "labels", "other"))
@dataclass(frozen=True)
class BlockResponse(Categorical):
    """A mechanism that reports a random direction, and the block of the category in it by randomised response.

    A report is the integer a g + s of direction a and block s.

    Attributes:
        epsilon: the budget of a report.
        categories: d.
        blocks: g, a prime, or a power of one up to 256.
        labels: the names of the categories, or None.
        other: the code of the category that stands for unknown ones, or None.
    """

    epsilon: Real
    categories: int
    blocks: int
    labels: Labels | None = None
    other: int | None = None

    kind = "block"

    def __post_init__(self) -> None:
        super().__post_init__()
        g = checks.integer_in("blocks", self.blocks, 2, _MAX_BLOCKS)
        _ = field(g)
        if self.outcomes > _MAX_REPORTS:
            raise ValueError(f"categories: {self.categories} with {g} blocks have more than 2^62 reports")

    @property
    def digits(self) -> int:
        """Return t, the number of digits of a category in base g."""
        t, size = 1, self.blocks
        while size < self.categories:
            t, size = t + 1, size * self.blocks
        return t

    @property
    def points(self) -> int:
        """Return D = g^t."""
        return self.blocks**self.digits

    @property
    def directions(self) -> int:
        """Return the number of directions, (D - 1)/(g - 1)."""
        return (self.points - 1) // (self.blocks - 1)

    @property
    def collision(self) -> float:
        """Return c, the probability that another category is in the block of the true one."""
        return (self.points // self.blocks - 1) / (self.points - 1)

    @property
    def support_probabilities(self) -> tuple[Real, Real]:
        E = namespace(self.epsilon).exp(-self.epsilon)
        p, low = 1 / (1 + (self.blocks - 1) * E), E / (1 + (self.blocks - 1) * E)
        return p, self.collision * p + (1 - self.collision) * low

    @property
    def outcomes(self) -> int:
        return self.directions * self.blocks

    def direction_vectors(self, directions: RealArray) -> RealArray:
        """Return the vector of each direction, as the number that its digits are in base g.

        Directions are ordered by these numbers. Those whose highest digit, a 1, has j digits below it begin at
        direction (g^j - 1)/(g - 1).
        """
        xp = namespace(directions)
        powers = np.array([self.blocks**j for j in range(self.digits)])
        first = (powers - 1) // (self.blocks - 1)
        j = xp.searchsorted(xp.asarray(first), directions, side="right") - 1
        return directions + xp.asarray(powers - first)[j]

    def block_indices(self, directions: RealArray, x: RealArray | int) -> RealArray:
        """Return the block <a, x> of codes x in directions a; both are integers and broadcast."""
        g, vector, gf = self.blocks, self.direction_vectors(directions), field(self.blocks)
        total = gf.multiply(vector % g, x % g)
        for _ in range(self.digits - 1):
            vector, x = vector // g, x // g
            total = gf.add(total, gf.multiply(vector % g, x % g))
        return total

    def host_block_indices(self, directions: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return ``block_indices`` for NumPy arrays of one shape, faster: several digits at a time, by tables."""
        g = self.blocks
        if g > MAX_TABLE or self.directions > _MAX_TABULATED:
            return np.asarray(self.block_indices(directions, x))
        gf, rows = field(g), _direction_chunks(g, self.digits)
        size, table = gf.chunk
        total: RealArray | None = None
        for chunks_left, chunk in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
            entry = np.take(chunk, directions, mode="clip")  # The direction's digits times the width of the table.
            higher = x // size if chunks_left else np.zeros_like(x)
            entry += x - higher * size if chunks_left else x
            product, x = np.take(table.reshape(-1), entry, mode="clip"), higher
            total = product.astype(np.int64) if total is None else gf.add(total, product)
        return np.asarray(total)

    def split(self, reports: RealArray) -> tuple[RealArray, RealArray]:
        """Return the directions and the blocks of reports."""
        g = self.blocks
        wide = reports.astype(np.int64 if namespace(reports) is np else int)
        return wide // g, wide % g

    def log_prob(self, reports: RealArray, x: RealArray) -> RealArray:
        a, block = self.split(reports)
        is_true = self.block_indices(a, x) == block
        return response_log_prob(self.epsilon, self.blocks, is_true) - math.log(self.directions)

    def supports(self, reports: RealArray) -> np.ndarray:
        a, block = self.split(np.asarray(reports))
        return np.asarray(self.block_indices(a[:, None], np.arange(self.categories)) == block[:, None])

    def draw(self, key: Array, x: Array) -> Array:
        if self.outcomes > jnp.iinfo(x.dtype).max:
            raise ValueError(f"x: holds {x.dtype}; {self.outcomes:.3g} reports need 64-bit integers, jax_enable_x64")
        direction_key, block_key, choice_key = jax.random.split(key, 3)
        a = jax.random.randint(direction_key, x.shape, 0, self.directions, x.dtype)
        true_block = self.block_indices(a, x)
        p, _ = self.support_probabilities
        block = randomised_choice(true_block, self.blocks, p, (choice_key, block_key), x.dtype)
        return (a * self.blocks + block).astype(self.report_dtype)


@lru_cache(maxsize=8)
def _direction_chunks(blocks: int, digits: int) -> list[np.ndarray]:
    """Return for every chunk of digits those of each direction's vector, times the width of the field's table."""
    mechanism = BlockResponse(1.0, blocks**digits, blocks)
    size, _ = field(blocks).chunk
    vectors = np.asarray(mechanism.direction_vectors(np.arange(mechanism.directions)))
    rows, width = list[np.ndarray](), 1
    while width < mechanism.points:
        rows.append(vectors // width % size * size)
        width *= size
    return rows


def best_blocks(epsilon: float, categories: int, is_allowed: Callable[[int], bool] = is_field) -> int:
    """Return the number of blocks with the least mean squared error, among allowed numbers near e^eps + 1."""
    optimum = min(math.exp(epsilon) + 1, float(categories), float(_MAX_BLOCKS - 1000))

    def field_sizes(start: int, step: int, length: int) -> list[int]:
        return list(islice((g for g in count(start, step) if g < 2 or is_allowed(g)), length))

    # More blocks may leave fewer points that stand for no category, so the next ones are tried as well.
    candidates = field_sizes(math.floor(optimum), -1, 3) + field_sizes(math.floor(optimum) + 1, 1, 3)
    candidates += field_sizes(categories, 1, 1) if categories <= MAX_TABLE else []
    sizes = [g for g in candidates if g >= 2]
    return min(sizes, key=lambda g: float(BlockResponse(epsilon, categories, g).mean_squared_error()))


def block_response(
    epsilon: Real, categories: object, blocks: int | None = None, *, other: object = None
) -> BlockResponse:
    """Return block response on d categories, which is for many categories or for short reports.

    Its mean squared error is at most 1.5 % above the least possible one for d >= 266 and epsilon <= 2. A report is an
    integer of about log2 d bits, and takes constant time to draw and to count. It consists of a random direction, which
    is independent of the value, and a block of categories.

    Args:
        epsilon: the budget of a report, 0.01 to 20.
        categories: their number d, at most 2^40, or their labels; see ``subset_selection``.
        blocks: their number, a prime, or a power of one up to 256; by default the one with the least mean squared
            error. A traced epsilon needs one.
        other: the label that stands for values which are no category; see ``subset_selection``.

    Raises:
        ValueError: an argument is out of range, or a label is given twice.
        TypeError: labels are neither all strings nor all integers, or epsilon is not a number.

    Example:
        >>> block_response(1.0, 4096).blocks
        4
    """
    checks.epsilon(epsilon)
    d, labels, code = parse_categories(categories, other)
    blocks = value_or_best(blocks, "the number of blocks", best_blocks, epsilon, d)
    return BlockResponse(epsilon, d, blocks, labels, code)
