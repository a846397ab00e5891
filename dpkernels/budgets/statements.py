"""What a ledger holds, and whether it is sound: sums within the budget, amounts that are amounts, a chain of hashes.

The budget's hash begins the chain; every charge's hash is of its own row and the hash before it; the last one, the
head, is kept apart. So a changed, missing, inserted or moved row shows, wherever it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce
from typing import Any, NamedTuple

from dpkernels.budgets.amounts import EpsilonDelta, minus, plus, printed

VERSION = 1  # of the tables and of what is hashed
_DECIMAL = re.compile(r"[0-9]{1,1000}(\.[0-9]{1,1000})?(e[+-][0-9]{1,3})?")


class UnsoundError(Exception):
    """What is wrong with a ledger's content."""


class Entry(NamedTuple):
    """A charge in a ledger.

    Attributes:
        id: its number, from 1.
        time: when it was made, UTC, by the clock of the machine; not checked.
        label: what it was for.
        amounts: what it cost.
        hash: of it and all before it.
    """

    id: int
    time: str
    label: str
    amounts: EpsilonDelta
    hash: str


@dataclass(frozen=True)
class Statement:
    """What a ledger held at one moment, verified.

    Attributes:
        ledger: its identity, random, made with it.
        created: when, UTC.
        budget: what was fixed.
        entries: every charge.
    """

    ledger: str
    created: str
    budget: EpsilonDelta
    entries: tuple[Entry, ...] = ()

    @cached_property
    def spent(self) -> EpsilonDelta:
        """The sum of the charges."""
        return reduce(plus, (entry.amounts for entry in self.entries), EpsilonDelta())

    @property
    def left(self) -> EpsilonDelta:
        """What can still be charged."""
        return minus(self.budget, self.spent)

    @property
    def head(self) -> str:
        """The hash of everything."""
        if self.entries:
            return self.entries[-1].hash
        return _hash("", VERSION, self.ledger, self.created, *map(printed, self.budget))

    def next(self, time: str, label: str, amounts: EpsilonDelta) -> Entry:
        """The entry of a further charge."""
        number = len(self.entries) + 1
        return Entry(number, time, label, amounts, _hash(self.head, number, time, label, *map(printed, amounts)))


def verified(budgets: Sequence[Sequence[Any]], charges: Iterable[Sequence[Any]]) -> Statement:
    """The statement that rows of a file make.

    Args:
        budgets: rows of (ledger, created, epsilon, delta, head); one is sound.
        charges: rows of (id, time, label, epsilon, delta, hash), by id.

    Raises:
        UnsoundError: says what is wrong.
    """
    if len(budgets) != 1:
        raise UnsoundError(f"is damaged: it has {len(budgets)} budgets")
    ledger, created, epsilon, delta, head = _texts(budgets[0], "budget")
    start = Statement(ledger, created, EpsilonDelta(_parsed(epsilon), _parsed(delta)))
    statement = replace(start, entries=tuple(_entries(charges, start.head)))
    if statement.head != head:
        raise UnsoundError("is damaged: its budget or its last charges were changed or deleted")
    if min(statement.left) < 0:
        raise UnsoundError(f"is damaged: its charges of {statement.spent} exceed its budget of {statement.budget}")
    return statement


def _entries(rows: Iterable[Sequence[Any]], head: str) -> Iterator[Entry]:
    """The charges, each checked against the hash of those before it."""
    for number, (found, *row) in enumerate(rows, 1):
        if found != number:
            raise UnsoundError(f"is damaged: charge {number} is missing")
        time, label, epsilon, delta, stated = _texts(row, f"charge {number}")
        head = _hash(head, number, time, label, epsilon, delta)
        if stated != head:
            raise UnsoundError(f"is damaged: charge {number}, or one before it, was changed")
        yield Entry(number, time, label, EpsilonDelta(_parsed(epsilon), _parsed(delta)), head)


def _texts(row: Sequence[Any], name: str) -> list[str]:
    if not all(isinstance(cell, str) for cell in row):
        raise UnsoundError(f"is damaged: {name} holds what is not text")
    return list(row)


def _parsed(text: str) -> Fraction:
    """An amount as the file has it: a decimal of at least 0, in the one form that ``printed`` gives it."""
    if not _DECIMAL.fullmatch(text) or printed(amount := Fraction(text)) != text:
        raise UnsoundError(f"is damaged: {text[:40]!r} is not an amount")
    return amount


def text(amount: Fraction) -> str:
    """The same, to be written."""
    try:
        return printed(_parsed(printed(amount)))
    except UnsoundError:
        raise ValueError(f"{amount} has no short decimal; a ledger keeps amounts as decimals, exactly") from None


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
