"""Heavy hitters: the most frequent values of a domain that is too large to enumerate, by extension of prefixes.

Values are words of a fixed number of digits. A level is a length of prefixes, with block response on all prefixes of
this length. A report with direction a and block s supports the prefixes y with <a, y> = s, so the supports of a prefix
can be counted without a table of all prefixes. Level by level, the prefixes with the most supports are kept, and
extended by all digits of the next level.

Source: prefix extension (Wang, Li & Jha, "Locally differentially private heavy hitter identification", 2019), with
block response instead of hashing, so that the supports of a value have an exact distribution.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.estimation.categorical.counts import block_supports
from dpkernels.estimation.categorical.intervals import count_intervals, share_intervals
from dpkernels.estimation.counts import ReportError
from dpkernels.exact import arithmetic
from dpkernels.exact.categorical.sampler import CategorySampler, category_sampler, stream_words
from dpkernels.jax_on_use import Array
from dpkernels.mechanisms.categorical.base import MAX_CATEGORIES, is_label
from dpkernels.mechanisms.categorical.block_response import BlockResponse, best_blocks, block_response
from dpkernels.mechanisms.categorical.galois import prime_power
from dpkernels.mechanisms.categorical.prefixes import LONGER, SPLITS, PrefixPlan
from dpkernels.numerics import RealArray
from dpkernels.pytrees import pytree
from dpkernels.random import host, keys
from dpkernels.release import containers
from dpkernels.release.categories import category_codes, check_codes, released_reports

_LEVEL_STREAM = 27  # of a key that is derived for nothing else
_FIRST_PREFIXES = 1 << 12  # prefixes of the first level, at most
_STEP_EXTENSIONS = 1 << 6  # extensions of a prefix on the next level, at most
_MAX_CANDIDATES = 1 << 20  # candidates of a level that are compared, at most
MAX_KEPT = 1 << 14  # prefixes of a level
_ENTRIES = 1 << 22  # of products that are computed at once
_FLOAT32_INTEGERS = 1 << 24  # float32 holds every whole number below this
_TABULATED = 1 << 18  # different reports


@dataclass(frozen=True)
class HeavyHitters:
    """The values that were found, in falling order of their estimated shares.

    With the stated confidence all intervals hold at once, those of all candidates of the last level. Where each person
    reports at one level, they are about the population that the people were drawn from at random; where everybody
    reports at every level, about the people themselves. Values whose prefix an earlier level dropped are not estimated.
    """

    values: list[object]
    shares: np.ndarray  #: unbiased for any one value, but the largest of many are too large on average
    low: np.ndarray
    high: np.ndarray
    people: int  #: who sent reports
    confidence: float
    about: str  #: "population" or "people"

    def table(self) -> dict[str, Any]:
        """Return columns for a table of one row a value."""
        return {"value": self.values, "share": self.shares, "share_low": self.low, "share_high": self.high}


@partial(pytree, static=("length", "alphabet", "lengths", "split", "levels", "other", "longer"))
@dataclass(frozen=True)
class PrefixResponse(PrefixPlan):
    """A plan of reports of prefixes; ``prefix_response`` makes it. Each person's reports are epsilon-DP together.

    Where people are split, ``dpk.perturb`` takes a plan like a mechanism, and a person's report is one integer. The
    command releases columns in this way. The attributes are those of ``PrefixPlan``.
    """

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
        prefixes = [self.prefixes(codes, level) for level in range(len(self.levels))]
        children = [host.fold_in(secret, 1 + level) for level in range(len(self.levels))]
        if self.split == "budget":
            by_level = enumerate(zip(self._samplers, prefixes, children, strict=True), 1)
            return {f"report_{number}": released_reports(*arguments) for number, arguments in by_level}
        # The level of a person is independent of all values.
        words = stream_words(host.fold_in(secret, 0), _LEVEL_STREAM, 0, len(codes))
        level = arithmetic.product(words, len(self.levels))[0].astype(np.uint8)
        report = np.zeros(len(codes), self.levels[-1].report_dtype)
        for index, sampler in enumerate(self._samplers):
            rows = np.flatnonzero(level == index)
            if len(rows):
                report[rows] = released_reports(sampler, prefixes[index][rows], children[index])
        return {"level": level, "report": report}

    def codes_of(self, x: object) -> np.ndarray:
        """Return values as integers in 0..base^length - 1, whose digits are the value's."""
        return check_codes(*category_codes(x, self), self, "refuse")

    def find(self, reports: object, *, most: int = 32, confidence: float = 0.95) -> HeavyHitters:
        """Return the values with the most supports, from reports as ``perturb`` returns them.

        Args:
            reports: a mapping or a table with the columns of ``plan.perturb``; or a column of the integers that
                ``dpk.perturb`` and the command make.
            most: how many prefixes each level keeps, and how many values are returned. The time is proportional to it.
            confidence: of all intervals together.

        Raises:
            ValueError: reports are missing or impossible, or an argument is out of range.
        """
        checks.integer_in("most", most, 1, MAX_KEPT)
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        columns, people = self._columns(reports)
        search = PrefixSearch(self, most)
        for column in columns:
            search = search.next(search.count(column))
        return search.heavy_hitters(people, confidence)

    def _columns(self, reports: Any) -> tuple[list[np.ndarray], int]:
        """Return the reports of each level, and the number of people."""
        people_are_split = self.split == "people"
        if people_are_split and not (isinstance(reports, Mapping) or containers.is_table(reports)):
            level, report = self.split_reports(_integers(reports, self.outcomes))
            reports = {"level": level, "report": report}
        numbers = range(1, len(self.levels) + 1)
        names = ["level", "report"] if people_are_split else [f"report_{number}" for number in numbers]
        columns = []
        for name in names:
            if name not in (reports if isinstance(reports, Mapping) else containers.column_names(reports)):
                raise ValueError(f"reports: have no column {name!r}; the plan's are {', '.join(names)}")
            values = np.asarray(reports[name])
            if values.dtype.kind not in "iu":
                raise TypeError(f"reports: column {name!r} holds {values.dtype}; integers are needed")
            columns.append(values)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("reports: the columns have different lengths")
        level = columns[0] if people_are_split else np.zeros(0, int)
        rows = [np.flatnonzero(level == index) for index in range(len(self.levels))] if people_are_split else []
        if people_are_split and sum(map(len, rows)) < len(level):
            row = int(((level < 0) | (level >= len(self.levels))).argmax())
            raise ReportError(row, f"is of level {level[row]}; the plan has 0 to {len(self.levels) - 1}")
        by_level = [columns[1][level_rows] for level_rows in rows] if people_are_split else columns
        for index, (mechanism, column) in enumerate(zip(self.levels, by_level, strict=True)):
            is_possible = (column >= 0) & (column < mechanism.outcomes)
            if not is_possible.all():
                row = int(is_possible.argmin())
                raise ReportError(int(rows[index][row]) if rows else row, "is no report of this plan")
        return [column.astype(np.int64) for column in by_level], len(columns[0])

    def split_reports(self, reports: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the level of each person's report, 0..levels - 1, and the report of its mechanism, both int64."""
        level = np.searchsorted(np.array(self.offsets[1:-1], np.int64), reports, side="right")
        return level, reports - np.array(self.offsets)[level]

    def extensions(self, prefixes: np.ndarray, length: int, longer: int) -> np.ndarray:
        """Return all prefixes of a longer length, of values, that begin with prefixes of a length."""
        for digits in range(length, longer):
            children = (prefixes[:, None] * self.base + np.arange(self.base)).ravel()
            if digits and isinstance(self.alphabet, str):  # Nothing but the end follows the end.
                is_ended = np.repeat(prefixes % self.base == 0, self.base)
                children = children[~is_ended | (children % self.base == 0)]
            prefixes = children
        if len(prefixes) > _MAX_CANDIDATES:
            raise ValueError(f"most: a level has {len(prefixes)} candidates; at most {_MAX_CANDIDATES} are compared")
        return prefixes


@dataclass(frozen=True)
class PrefixSearch:
    """The search for the most frequent values at one level: candidates, whose supports are to be counted.

    It goes on level by level. The supports of parts of a level's reports may be counted one after another and added.
    """

    plan: PrefixResponse
    most: int  # candidates that are kept of each level
    level: int = 0
    prefixes: tuple[int, ...] = (0,)  # that are kept of the level before
    supports: tuple[int, ...] = ()  # of them
    candidate_count: int = 0  # how many candidates the level before had
    reports: int = 0  # and how many reports

    @cached_property
    def candidates(self) -> np.ndarray:
        """Return the prefixes that are compared at this level, at most 2^20."""
        lengths = (0, *self.plan.lengths)
        return self.plan.extensions(np.array(self.prefixes), lengths[self.level], lengths[self.level + 1])

    def count(self, reports: np.ndarray) -> np.ndarray:
        """Return how many of a level's reports there are, and how many of them support each candidate, int64."""
        supports = _supports(self.plan.levels[self.level], reports, self.candidates)
        return np.concatenate([[len(reports)], supports])

    def next(self, counted: np.ndarray) -> PrefixSearch:
        """Return the search at the next level, given the sum of what was counted of all reports of this one."""
        reports, supports = int(counted[0]), counted[1:]
        if not reports:
            split = len(self.plan.levels)
            raise ValueError(f"reports: level {self.level} has none; there are too few people for {split} levels")
        order = np.argsort(-supports, kind="stable")[: self.most]
        prefixes, supports = self.candidates[order].tolist(), supports[order].tolist()
        return PrefixSearch(
            self.plan, self.most, self.level + 1, tuple(prefixes), tuple(supports), len(self.candidates), reports
        )

    def heavy_hitters(self, people: int, confidence: float) -> HeavyHitters:
        """Return the values that are kept after the last level."""
        plan, supports, n = self.plan, np.array(self.supports), self.reports
        certificate = plan._samplers[-1].certificate
        p, q = float(certificate.probability), float(certificate.other_probability)
        confidence_each = 1 - (1 - confidence) / self.candidate_count
        if plan.split == "people":
            low, high = share_intervals(supports, n, (p, q), confidence_each)
        else:
            low, high = (end / n for end in count_intervals(supports, n, (p, q), confidence_each))
        about = "population" if plan.split == "people" else "people"
        values = [plan.value(code) for code in self.prefixes]
        return HeavyHitters(values, (supports / n - q) / (p - q), low, high, people, confidence, about)


def _integers(reports: object, outcomes: int) -> np.ndarray:
    """Return a column of reports as int64, all of which are in 0..outcomes - 1."""
    column, rows = containers.present_rows(reports)
    if rows is not None:
        row = int(np.flatnonzero(containers.is_missing(reports))[0])
        raise ReportError(row, "is missing; leave such rows out")
    values = np.asarray(containers.unwrap(column)[0]).reshape(-1)
    if values.dtype.kind not in "iu":
        raise TypeError(f"reports: hold {values.dtype}; integers are needed")
    is_possible = (values >= 0) & (values < outcomes)
    if not is_possible.all():
        raise ReportError(int(is_possible.argmin()), "is no report of this plan")
    return values.astype(np.int64)


def _supports(mechanism: BlockResponse, reports: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return how many reports support each candidate: <a, y> is the block s, for blocks of a prime number."""
    if mechanism.outcomes <= min(_TABULATED, len(reports)):  # Reports of few prefixes are counted by a transform.
        return block_supports(mechanism, np.bincount(reports, minlength=mechanism.outcomes))[candidates]
    g, t = mechanism.blocks, mechanism.digits
    powers = np.array([g**k for k in range(t)])
    dtype = np.float32 if (g - 1) ** 2 * t < _FLOAT32_INTEGERS else np.float64  # which hold the products exactly
    digits = (candidates[None, :] // powers[:, None] % g).astype(dtype)
    total = np.zeros(len(candidates), np.int64)
    size = max(1, _ENTRIES // len(candidates))
    for start in range(0, len(reports), size):
        directions, blocks = mechanism.split(reports[start : start + size])
        vectors = (mechanism.direction_vectors(directions)[:, None] // powers % g).astype(dtype)
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
    other: object = None,
    longer: str = "error",
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
        other: the value that stands for those which are none of the plan's; by default these are errors.
        longer: "cut" lets the first ``length`` characters of a longer text stand for it, so that the most frequent
            beginnings are found; by default longer texts are none of the plan's values.

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
    checks.one_of("longer", longer, LONGER)
    checks.integer_in("length", length, 1, 40)
    base = _checked_base(alphabet)
    if not isinstance(alphabet, str):
        alphabet = base
    if base**length > MAX_CATEGORIES:
        raise ValueError(f"length: {length} digits of {base} values each are more than 2^40 values")
    level_lengths = _level_lengths(base, length, lengths)
    level_epsilon = eps if split == "people" else eps / len(level_lengths)
    while split == "budget" and len(level_lengths) * rational(level_epsilon) > rational(eps):
        level_epsilon = math.nextafter(level_epsilon, 0.0)

    def level(digits: int) -> BlockResponse:
        blocks = best_blocks(level_epsilon, base**digits, is_allowed=lambda g: prime_power(g) == (g, 1))
        return block_response(level_epsilon, base**digits, blocks)

    levels = tuple(map(level, level_lengths))
    plan = PrefixResponse(eps, length, alphabet, level_lengths, split, levels, None, longer)
    if other is None:
        return plan
    is_text = isinstance(alphabet, str)
    if isinstance(other, str) != is_text or not isinstance(other, str | int) or isinstance(other, bool):
        raise TypeError(f"other: {other!r} must be {'a text' if is_text else 'an integer'}, as the values are")
    (code,) = category_codes(other if is_text else np.array([other]), replace(plan, longer="error"))[0].tolist()
    if code < 0:
        raise ValueError(f"other: {other!r} is not {plan.domain}")
    return replace(plan, other=code)


def _checked_base(alphabet: str | int) -> int:
    """Return the number of values of a digit; of texts one more than there are characters, for the end."""
    if not isinstance(alphabet, str):
        return checks.integer_in("alphabet", alphabet, 2, MAX_CATEGORIES)
    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise ValueError(f"alphabet: {alphabet!r} must be different characters")
    if not is_label(alphabet):
        raise ValueError(f"alphabet: {alphabet!r} must be Unicode characters, without NUL")
    return len(alphabet) + 1


def _level_lengths(base: int, length: int, lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the lengths of the prefixes at each level: those that are stated, or the default ones."""
    if lengths is None:
        first = max((k for k in range(1, length + 1) if base**k <= _FIRST_PREFIXES), default=1)
        step = max((k for k in range(1, length + 1) if base**k <= _STEP_EXTENSIONS), default=1)
        return (*range(first, length, step), length)
    level_lengths = tuple(checks.integer_in("lengths", level_length, 1, length) for level_length in lengths)
    if list(level_lengths) != sorted(set(level_lengths)) or level_lengths[-1:] != (length,):
        raise ValueError(f"lengths: {lengths} must grow to {length}")
    return level_lengths
