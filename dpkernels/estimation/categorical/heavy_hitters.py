"""Heavy hitters: the most frequent values of a domain that is too large to enumerate, by extension of prefixes.

Values are words of a fixed number of digits. There is a level for each of some growing lengths, with block response on
all prefixes of this length. The supports of any one prefix are counted without a table of all of them: with direction a
and block s of a report, the prefixes y with <a, y> = s. Level by level, the prefixes with the most supports are kept,
and extended by all digits of the next level.

Source: prefix extension (Wang, Li & Jha, "Locally differentially private heavy hitter identification", 2019), with
block response in the place of hashing, so that the supports of a value have an exact distribution.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jax import Array

from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.estimation.categorical.counts import values_of
from dpkernels.estimation.categorical.intervals import count_intervals, share_intervals
from dpkernels.estimation.counts import ReportError
from dpkernels.exact import arithmetic
from dpkernels.exact.categories import CategorySampler, category_sampler, stream_words
from dpkernels.mechanisms.categorical.base import MOST_CATEGORIES
from dpkernels.mechanisms.categorical.block_response import BlockResponse, best_blocks, block_response
from dpkernels.mechanisms.categorical.galois import prime_power
from dpkernels.numerics import RealArray
from dpkernels.random import host, keys
from dpkernels.release import containers
from dpkernels.release.categories import CategoryError, is_missing_value, released_reports

SPLITS = ("people", "budget")
_LEVEL_STREAM = 27  # of a key that is derived for nothing else
_FIRST, _STEP = 1 << 12, 1 << 6  # The most prefixes of the first level, and extensions of a prefix.
_MOST_CANDIDATES = 1 << 20
_ENTRIES = 1 << 22  # of products that are computed at once
_FLOAT32_INTEGERS = 1 << 24


@dataclass(frozen=True)
class HeavyHitters:
    """The values that were found, in falling order of their estimated shares.

    The intervals hold together for all values that were compared at the last level. Where the people are split, they
    are about the population that these people were drawn from at random; where the budget is split, about the people.
    Nothing is said of values that an earlier level lost.
    """

    values: list[Any]
    shares: np.ndarray  #: unbiased for any one value, but the largest of many are too large on average
    low: np.ndarray
    high: np.ndarray
    people: int  #: who sent reports
    confidence: float
    about: str  #: "population" or "people"

    def table(self) -> dict[str, Any]:
        """Return columns for a table of one row a value."""
        return {"value": self.values, "share": self.shares, "share_low": self.low, "share_high": self.high}


@dataclass(frozen=True)
class PrefixResponse:
    """A plan of reports of prefixes; ``prefix_response`` makes it. Each person's reports are epsilon-DP together.

    Attributes:
        epsilon: the budget of a person.
        length: the number of digits of a value.
        alphabet: the characters of values that are texts, or the base of values that are integers.
        lengths: the lengths of the prefixes of the levels, of which the last is ``length``.
        split: "people", each of whom reports at one random level, or "budget", of which a part is spent at each level.
        levels: the mechanism of each level.
    """

    epsilon: float
    length: int
    alphabet: str | int
    lengths: tuple[int, ...]
    split: str
    levels: tuple[BlockResponse, ...]

    @property
    def base(self) -> int:
        """Return the number of values of a digit; of texts, 0 stands for no character."""
        return self.alphabet if isinstance(self.alphabet, int) else len(self.alphabet) + 1

    @cached_property
    def _samplers(self) -> tuple[CategorySampler, ...]:
        return tuple(map(category_sampler, self.levels))

    def standard_error(self, people: int) -> float:
        """Return the standard error of the estimated share of a rare value."""
        count = people / len(self.levels) if self.split == "people" else people
        return math.sqrt(float(self.levels[-1].share_variance(0.0, count)))

    def perturb(self, x: RealArray, *, key: Array | None = None) -> dict[str, np.ndarray]:
        """Return the reports of a column of values as columns: exact, and each person's epsilon-DP.

        Args:
            x: a NumPy or JAX array, or a pandas, polars or pyarrow column, of texts or of integers. Every row is a
                person.
            key: a ChaCha20 key, to repeat a release; by default from the operating system. Never use it for other data.

        Returns:
            "level" and "report" where people are split, and "report_1", "report_2", .. where the budget is split.

        Raises:
            ValueError: a value is missing, or none of the plan's. The message names the first such row.
        """
        secret = os.urandom(32) if key is None else keys.release_key_bytes(key)
        codes = self.codes_of(x)
        prefixes = [codes // self.base ** (self.length - length) for length in self.lengths]
        children = [host.fold_in(secret, 1 + level) for level in range(len(self.levels))]
        if self.split == "budget":
            drawn = zip(self._samplers, prefixes, children, strict=True)
            return {f"report_{1 + at}": released_reports(*arguments) for at, arguments in enumerate(drawn)}
        # The level of a person is independent of all values.
        words = stream_words(host.fold_in(secret, 0), _LEVEL_STREAM, 0, len(codes))
        level = arithmetic.product(words, len(self.levels))[0].astype(np.uint8)
        report = np.zeros(len(codes), self.levels[-1].report_dtype)
        for at, sampler in enumerate(self._samplers):
            rows = np.flatnonzero(level == at)
            if len(rows):
                report[rows] = released_reports(sampler, prefixes[at][rows], children[at])
        return {"level": level, "report": report}

    def codes_of(self, x: Any) -> np.ndarray:
        """Return values as integers in 0..base^length - 1, whose digits are the value's."""
        most = self.base**self.length - 1
        if isinstance(self.alphabet, int):
            present, rows = containers.present_rows(x)
            if rows is not None:
                raise _missing(int(np.flatnonzero(containers.is_missing(x))[0]))
            values = np.asarray(containers.unwrap(present)[0]).reshape(-1)
            if values.dtype.kind not in "iu":
                raise TypeError(f"x: holds {values.dtype}; the plan's values are integers")
            good = (values >= 0) & (values <= most)
            if not good.all():
                row = int(good.argmin())
                raise CategoryError(row, int(values[row]), f", which is not in 0..{most}")
            return values.astype(np.int64)
        digit = {character: 1 + at for at, character in enumerate(self.alphabet)}
        texts = values_of(x)
        codes = np.empty(len(texts), np.int64)
        for row, text in enumerate(texts):
            if is_missing_value(text):
                raise _missing(row)
            if not isinstance(text, str) or len(text) > self.length or not digit.keys() >= set(text):
                raise CategoryError(row, text, f", which is no text of up to {self.length} of the plan's characters")
            code = 0
            for character in text:
                code = code * self.base + digit[character]
            codes[row] = code * self.base ** (self.length - len(text))
        return codes

    def value_of(self, code: int) -> Any:
        """Return the value of a code."""
        if isinstance(self.alphabet, int):
            return code
        digits = [code // self.base**at % self.base for at in reversed(range(self.length))]
        return "".join(self.alphabet[digit - 1] for digit in digits if digit)

    def find(self, reports: object, *, most: int = 32, confidence: float = 0.95) -> HeavyHitters:
        """Return the values with the most supports, from columns of reports as ``perturb`` returns them.

        Args:
            reports: a mapping or a table with these columns.
            most: how many prefixes each level keeps, and how many values are returned. The time is proportional to it.
            confidence: of all intervals together.

        Raises:
            ValueError: reports are missing or impossible, or an argument is out of range.
        """
        checks.integer_in("most", most, 1, 1 << 14)
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        columns, people = self._columns(reports)
        candidates, before = np.zeros(1, np.int64), 0
        for mechanism, length, column in zip(self.levels, self.lengths, columns, strict=True):
            candidates = self.extensions(candidates, before, length)
            supports = _supports(mechanism, column, candidates)
            order = np.argsort(-supports, kind="stable")[:most]
            compared, candidates, supports, before = len(candidates), candidates[order], supports[order], length
        certificate: Any = self._samplers[-1].certificate
        p, q = float(certificate.probability), float(certificate.other_probability)
        each, n = 1 - (1 - confidence) / compared, len(columns[-1])
        if self.split == "people":
            low, high = share_intervals(supports, n, (p, q), each)
        else:
            low, high = (end / n for end in count_intervals(supports, n, (p, q), each))
        about = "population" if self.split == "people" else "people"
        values = [self.value_of(code) for code in candidates.tolist()]
        return HeavyHitters(values, (supports / n - q) / (p - q), low, high, people, confidence, about)

    def _columns(self, reports: Any) -> tuple[list[np.ndarray], int]:
        """Return the reports of each level, and the number of people."""
        people_are_split = self.split == "people"
        names = ["level", "report"] if people_are_split else [f"report_{1 + at}" for at in range(len(self.levels))]
        columns = []
        for name in names:
            if name not in (reports if isinstance(reports, Mapping) else containers.columns_of(reports)):
                raise ValueError(f"reports: have no column {name!r}; the plan's are {', '.join(names)}")
            values = np.asarray(reports[name])
            if values.dtype.kind not in "iu":
                raise TypeError(f"reports: column {name!r} holds {values.dtype}; integers are needed")
            columns.append(values)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("reports: the columns have different lengths")
        level = columns[0] if people_are_split else np.zeros(0, int)
        rows = [np.flatnonzero(level == at) for at in range(len(self.levels))] if people_are_split else []
        if people_are_split and sum(map(len, rows)) < len(level):
            row = int(((level < 0) | (level >= len(self.levels))).argmax())
            raise ReportError(row, f"is of level {level[row]}; the plan has 0 to {len(self.levels) - 1}")
        chosen = [columns[1][own] for own in rows] if people_are_split else columns
        for at, (mechanism, column) in enumerate(zip(self.levels, chosen, strict=True)):
            good = (column >= 0) & (column < mechanism.outcomes)
            if not good.all():
                row = int(good.argmin())
                raise ReportError(int(rows[at][row]) if rows else row, "is no report of this plan")
            if not len(column):
                raise ValueError(f"reports: level {at} has none; there are too few people for {len(rows)} levels")
        return [column.astype(np.int64) for column in chosen], len(columns[0])

    def extensions(self, prefixes: np.ndarray, length: int, longer: int) -> np.ndarray:
        """Return all prefixes of a longer length, of values, that begin with prefixes of a length."""
        for place in range(length, longer):
            children = (prefixes[:, None] * self.base + np.arange(self.base)).ravel()
            if place and isinstance(self.alphabet, str):  # Nothing but the end follows the end.
                is_ended = np.repeat(prefixes % self.base == 0, self.base)
                children = children[~is_ended | (children % self.base == 0)]
            prefixes = children
        if len(prefixes) > _MOST_CANDIDATES:
            raise ValueError(f"most: a level has {len(prefixes)} candidates; at most {_MOST_CANDIDATES} are compared")
        return prefixes


def _missing(row: int) -> ValueError:
    return ValueError(f"x: row {row} is missing; every row needs a value")


def _supports(mechanism: BlockResponse, reports: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return how many reports support each candidate: <a, y> is the block s, for blocks of a prime number."""
    g, t = mechanism.blocks, mechanism.digits
    powers = np.array([g**at for at in range(t)])
    dtype = np.float32 if (g - 1) ** 2 * t < _FLOAT32_INTEGERS else np.float64  # which hold the products exactly
    digits = (candidates[None, :] // powers[:, None] % g).astype(dtype)
    total = np.zeros(len(candidates), np.int64)
    size = max(1, _ENTRIES // len(candidates))
    for at in range(0, len(reports), size):
        directions, blocks = mechanism.split(reports[at : at + size])
        vectors = (mechanism.vectors_of(directions)[:, None] // powers % g).astype(dtype)
        products = vectors @ digits
        products -= g * np.floor(products / g)
        total += np.count_nonzero(products == blocks[:, None].astype(dtype), axis=0)
    return total


def prefix_response(
    epsilon: float,
    length: int,
    alphabet: str | int,
    *,
    lengths: Sequence[int] | None = None,
    split: str = "people",
) -> PrefixResponse:
    """Return a plan to find the most frequent values of a domain that is too large to enumerate.

    Args:
        epsilon: the budget of each person, 0.01 to 20.
        length: the number of digits of a value, or of the characters of the longest text.
        alphabet: the characters that texts are made of, or the base of values that are integers in 0..base^length - 1.
            There are at most 2^40 values; texts may be shorter, so they have a base of one more.
        lengths: the lengths of the prefixes at each level, growing to ``length``; by default at most 4,096 prefixes at
            the first level, and 64 extensions of a prefix, or one digit, at each other one.
        split: "people" lets each of them report at one level, drawn at random, with all of epsilon. "budget" lets
            everybody report at every level, with an equal part of epsilon, which is worse but for few levels.

    Raises:
        ValueError: an argument is out of range, a character is given twice, or there are too many values.
        TypeError: an argument is of the wrong type.

    Example:
        >>> prefix_response(2.0, 6, "abcdefghijklmnopqrstuvwxyz").lengths
        (2, 3, 4, 5, 6)
    """
    checks.epsilon(epsilon)
    eps = checks.number("epsilon", epsilon)
    checks.one_of("split", split, SPLITS)
    checks.integer_in("length", length, 1, 40)
    if isinstance(alphabet, str):
        if not alphabet or len(set(alphabet)) < len(alphabet):
            raise ValueError(f"alphabet: {alphabet!r} must be different characters")
        base = len(alphabet) + 1
    else:
        base = checks.integer_in("alphabet", alphabet, 2, MOST_CATEGORIES)
    if base**length > MOST_CATEGORIES:
        raise ValueError(f"length: {length} digits of {base} values each are more than 2^40 values")
    if lengths is None:
        first = max((at for at in range(1, length + 1) if base**at <= _FIRST), default=1)
        step = max((at for at in range(1, length + 1) if base**at <= _STEP), default=1)
        chosen = (*range(first, length, step), length)
    else:
        chosen = tuple(checks.integer_in("lengths", one, 1, length) for one in lengths)
        if list(chosen) != sorted(set(chosen)) or chosen[-1:] != (length,):
            raise ValueError(f"lengths: {lengths} must grow to {length}")
    own = eps if split == "people" else eps / len(chosen)
    while split == "budget" and len(chosen) * rational(own) > rational(eps):
        own = math.nextafter(own, 0.0)

    def level(digits: int) -> BlockResponse:
        blocks = best_blocks(own, base**digits, is_allowed=lambda g: prime_power(g) == (g, 1))
        return block_response(own, base**digits, blocks)

    return PrefixResponse(eps, length, alphabet, chosen, split, tuple(map(level, chosen)))
